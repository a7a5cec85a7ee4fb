"""What measure.py would write on a machine that follows the model, as Python data."""

from typing import Any

from costmodels.layers.gemm import gemm_s
from costmodels.precision import FP8_RATE_FRAC
from hardware.parts import Accelerator
from planner.measure.benchmarks.device_fit import price_core
from planner.measure.benchmarks.results import MeasuredCore
from tests.planner.measure.benchmarks.logs import H100

SHAPES = [
    (8192, 8192, 8192),
    (8192, 4096, 14336),
    (8192, 1024, 8192),
    (8192, 512, 8192),
    (8192, 128, 8192),
    (4096, 4096, 4096),
    (1024, 4096, 4096),
    (256, 512, 512),
    (128, 128, 128),
]
LENGTHS = (512, 2048, 8192, 16384)


def measured_file(part: Accelerator, device: str = H100) -> dict[str, Any]:
    """Times as `part`'s own figures have them: products in two precisions, memory, attention."""
    products = [
        {
            "rows": m,
            "inner": k,
            "columns": n,
            "precision": precision,
            "time_s": gemm_s(m, k, n, part, precision, frac).item(),
        }
        for precision, frac in (("bf16", 1.0), ("fp8", FP8_RATE_FRAC))
        for m, k, n in SHAPES
    ]
    eff = part.efficiency
    memory = [
        {
            "kind": "copy",
            "bytes": n,
            "time_s": n / (part.hbm_bytes_per_s * eff.hbm_frac) + eff.kernel_latency_s,
        }
        for n in (2**15, 2**31)
    ]
    # In a cache: twice as fast as memory, and not to be believed.
    memory.append({"kind": "copy", "bytes": 2**25, "time_s": 2**24 / part.hbm_bytes_per_s})
    attention = []
    for length in LENGTHS:
        core = MeasuredCore("flash2", 16384 // length, 32, length, 128, "bf16", 1.0, 1.0)
        attention.append(
            {
                "kernel": "flash2",
                "batch": core.batch,
                "heads": 32,
                "length": length,
                "head_dim": 128,
                "causal": True,
                "precision": "bf16",
                "forward_s": price_core(core, "flash2", part, False),
                "backward_s": price_core(core, "flash2", part, True),
            }
        )
    return {
        "format": "planner-measured",
        "version": 1,
        "complete": True,
        "provenance": {"date": "2026-11-01", "device": device, "torch": "2.9.0", "nccl": "2.27.5"},
        "gemm": products,
        "attention": attention,
        "memory": memory,
        "collectives": [
            {
                "collective": "all-gather",
                "n_ranks": 8,
                "n_nodes": 1,
                "busy_per_node": 8,
                "size_bytes": 2**i,
                "time_s": 2e-5 + 2**i * 7 / 8 / 250e9,
            }
            for i in range(12, 31, 2)
        ],
        "left_out": [],
    }
