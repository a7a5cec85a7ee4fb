"""Small named shapes and an accelerator that is no real part, for doctests and tests.

Users' models come from YAML.
"""

from costmodels.shapes import ModelShape
from hardware.parts import Accelerator, Efficiency

LLAMA3_8B = ModelShape(
    "llama3-8b",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=14336,
    gated=True,
    vocab=128256,
    tied=False,
)
LLAMA3_70B = ModelShape(
    "llama3-70b",
    layers=80,
    hidden=8192,
    heads=64,
    kv_heads=8,
    head_dim=128,
    ffn=28672,
    gated=True,
    vocab=128256,
    tied=False,
)
LLAMA3_405B = ModelShape(
    "llama3-405b",
    layers=126,
    hidden=16384,
    heads=128,
    kv_heads=8,
    head_dim=128,
    ffn=53248,
    gated=True,
    vocab=128256,
    tied=False,
)
GPT3_175B = ModelShape(
    "gpt3-175b",
    layers=96,
    hidden=12288,
    heads=96,
    kv_heads=96,
    head_dim=128,
    ffn=49152,
    gated=False,
    vocab=50257,
    tied=True,
    norm="layernorm",
    bias=True,
    positions="learned",
    dropout=True,
    padded_vocab=51200,
)
MIXTRAL_8X7B = ModelShape(
    "mixtral-8x7b",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=14336,
    gated=True,
    vocab=32000,
    tied=False,
    n_experts=8,
    top_k=2,
    expert_ffn=14336,
)
DEEPSEEK_V3 = ModelShape(
    "deepseek-v3",
    layers=61,
    hidden=7168,
    heads=128,
    kv_heads=128,
    head_dim=192,
    ffn=18432,
    gated=True,
    vocab=129280,
    tied=False,
    n_experts=256,
    top_k=8,
    expert_ffn=2048,
    shared_ffn=2048,
    dense_layers=3,
    n_groups=8,
    top_groups=4,
    q_rank=1536,
    kv_rank=512,
    qk_nope=128,
    qk_rope=64,
    v_head=128,
    mtp_layers=1,
)


def toy_accelerator(**changes: object) -> Accelerator:
    """Return an accelerator with round figures: 300 TFLOP/s, 2 TB/s, 100 multiprocessors."""
    base: dict[str, object] = {
        "name": "toy",
        "vendor": "NVIDIA",
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
