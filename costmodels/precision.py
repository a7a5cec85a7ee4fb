"""Bytes per parameter of the numeric recipes in use ("16N bytes" and its variants)."""

from dataclasses import dataclass


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
    """Gradients kept through the accumulation (G)."""
    state_bytes: float
    """Optimizer state with the master copy (K)."""
    grad_wire_bytes: float
    """Width at which gradients are reduced over the data-parallel group."""
    param_wire_bytes: float
    """Width at which updated weights are gathered."""
    note: str

    @property
    def total_bytes(self) -> float:
        """W + G + K: bytes per parameter without sharding."""
        return self.param_bytes + self.grad_bytes + self.state_bytes


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
        ("fp16", "adam"),
        Recipe("fp16, fp16 and fp32 gradients", "fp16", 2, 6, 12, 2, 2, "Megatron fp16: 20N"),
    ),
    (
        ("fp16-grads", "adam"),
        Recipe("fp16 with fp16 gradients", "fp16", 2, 2, 12, 2, 2, "ZeRO paper: 16N"),
    ),
    (
        ("fp32", "adam"),
        Recipe("fp32 everywhere", "tf32", 4, 4, 8, 4, 4, "no separate master copy: 16N"),
    ),
)
RECIPES: dict[tuple[str, str], Recipe] = dict(_RECIPES)
"""Recipe by (precision, optimizer) of the training section."""
