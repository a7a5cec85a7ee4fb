"""Bytes per parameter of the numeric recipes in use ("16N bytes" and its variants)."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Recipe:
    """Bytes held and moved per parameter.

    Sources: ZeRO (Rajbhandari et al. 2020, section 3.1) for the 16-byte recipe; Megatron-LM
    docs/source/api-guide/core/dist_optimizer.md for the 18- and 20-byte recipes.
    """

    name: str
    gemm_precision: str
    """Key of `Accelerator.peak_flops_per_s` for the linear layers."""
    param_bytes: float
    """Working copy of the weights (W)."""
    grad_bytes: float
    """Gradients: those kept through the accumulation, and a copy of them for the update."""
    state_bytes: float
    """Optimizer state with the master copy."""
    grad_wire_bytes: float
    """Width at which gradients are reduced over the data-parallel group."""
    param_wire_bytes: float
    """Width at which updated weights are gathered."""
    note: str
    linear_precision: str = ""
    """Key of the peak for the linear layers of the body where it is not `gemm_precision`; head,
    attention, norms and activations stay in the latter."""
    linear_rate_frac: float = 1.0
    """Share of its peak that a linear layer sustains, over that of `gemm_precision`."""
    grad_copy_bytes: float = 0.0
    """The share of `grad_bytes` that is a copy for the update."""
    cast_bytes: float = 0.0
    """HBM traffic to quantise one element of a linear layer's input or output gradient."""
    fp8_recipe: str = ""
    """Name of the scaling in Megatron-LM's `--fp8-recipe`; empty without fp8."""

    @property
    def linear(self) -> str:
        """Key of the peak of the linear layers of the body."""
        return self.linear_precision or self.gemm_precision

    @property
    def activation_bytes(self) -> float:
        """Width of activations, in memory and on the wire: 4 where products take fp32, else 2.

        fp8 recipes quantise copies for the linear layers; what is kept and sent has 16 bits.
        """
        return 4.0 if self.gemm_precision in ("fp32", "tf32") else 2.0

    @property
    def has_master_copy(self) -> bool:
        """Whether the optimizer keeps fp32 weights beside narrower ones."""
        return self.param_bytes < 4.0

    @property
    def total_bytes(self) -> float:
        """W + G + K: bytes per parameter without sharding."""
        return self.param_bytes + self.grad_bytes + self.state_bytes


FP8_RATE_FRAC = 0.9
"""Sustained share of the fp8 peak over that of the bf16 peak, casts apart: H100 cubes of 4096 to
16384 reach 0.61 to 0.70 after 10,000 warm-ups (Azure's AI benchmarking guide), bf16 0.77."""


def _fp8(name: str, rate_frac: float, cast_bytes: float, note: str) -> tuple[Any, Recipe]:
    """Return an fp8 entry: bf16 weights in memory and on the wire, fp32 main gradients."""
    return (name, "adam"), Recipe(
        note,
        "bf16",
        2,
        4,
        12,
        4,
        2,
        "as bf16: 18N; fp8 in the linear layers of the body only",
        linear_precision="fp8",
        linear_rate_frac=rate_frac,
        cast_bytes=cast_bytes,
        fp8_recipe=name.removeprefix("fp8-"),
    )


_RECIPES = (
    (
        ("bf16", "adam"),
        Recipe(
            "bf16, fp32 main gradients",
            "bf16",
            2,
            4,
            12,
            4,
            2,
            "Megatron default with --bf16: 18N",
        ),
    ),
    (
        ("bf16-grads", "adam"),
        Recipe(
            "bf16 with bf16 gradients", "bf16", 2, 2, 12, 2, 2, "ZeRO paper, DeepSpeed bf16: 16N"
        ),
    ),
    (
        ("bf16-both", "adam"),
        Recipe(
            "bf16, bf16 and fp32 gradients",
            "bf16",
            2,
            6,
            12,
            4,
            2,
            "fp32 accumulation beside autograd's own gradients (nanotron): 20N",
        ),
    ),
    (
        ("fp16", "adam"),
        Recipe(
            "fp16, fp16 and fp32 gradients",
            "fp16",
            2,
            6,
            12,
            2,
            2,
            "Megatron fp16: 20N, 4 of them an fp32 gradient beside the master copy",
            grad_copy_bytes=4.0,
        ),
    ),
    (
        ("fp16-grads", "adam"),
        Recipe("fp16 with fp16 gradients", "fp16", 2, 2, 12, 2, 2, "ZeRO paper: 16N"),
    ),
    # Rates: blockwise 0.49 against 0.55 of peak on H100 (aiconfigurator's tables, casts included);
    # rowwise assumed, from published torchtitan runs at tp 8 that gain nothing over bf16.
    # Casts per element: read it, write the value and its transpose (delayed: scale known); a
    # second and third read for the current maximum; blocks read once.
    _fp8("fp8-delayed", FP8_RATE_FRAC, 4.0, "fp8, scale from earlier steps"),
    _fp8("fp8-tensorwise", FP8_RATE_FRAC, 6.0, "fp8, one current scale per tensor"),
    _fp8("fp8-blockwise", 0.9 * FP8_RATE_FRAC, 4.0, "fp8, one scale per block of 128"),
    _fp8("fp8-mxfp8", FP8_RATE_FRAC, 4.0, "fp8, one scale per 32 elements"),
    _fp8("fp8-rowwise", 0.6 * FP8_RATE_FRAC, 6.0, "fp8, one scale per row"),
    (
        ("fp32", "adam"),
        Recipe("fp32 everywhere", "tf32", 4, 4, 8, 4, 4, "no separate master copy: 16N"),
    ),
)
RECIPES: dict[tuple[str, str], Recipe] = dict(_RECIPES)
"""Recipe by (precision, optimizer) of the training section."""
PRECISIONS = tuple(dict.fromkeys(precision for precision, _ in RECIPES))
"""The names of the recipes."""
