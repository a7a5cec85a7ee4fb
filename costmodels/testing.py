"""A round-numbered accelerator for doctests and tests: not a real part."""

from hardware.parts import Accelerator, Efficiency


def toy_accelerator(**changes: object) -> Accelerator:
    """Return an accelerator with round figures: 300 TFLOP/s, 2 TB/s, 100 multiprocessors."""
    base: dict[str, object] = {
        "name": "toy",
        "vendor": "none",
        "generation": "toy",
        "memory_bytes": 80e9,
        "hbm_bytes_per_s": 2e12,
        "peak_flops_per_s": {"bf16": 300e12, "fp16": 300e12, "tf32": 150e12},
        "n_sms": 100,
        "scale_up_link": "toy-link",
        "scale_up_bytes_per_s": 300e9,
        "ring_bytes_per_s": 250e9,
        "scale_up_domain": 8,
        "tdp_w": 400.0,
        "efficiency": Efficiency(
            gemm_frac=0.75,
            gemm_k_half=128.0,
            wgrad_frac=0.95,
            hbm_frac=0.8,
            kernel_latency_s=4e-6,
            attention_frac={"flash2": (0.6, 0.5), "flash3": (0.6, 0.5)},
            attention_seq_half=400.0,
        ),
    }
    return Accelerator(**{**base, **changes})  # type: ignore[arg-type]
