"""Numeric recipes: products of the linear layers x width of gradients x widths of the states.

A recipe says at what rate linear layers multiply, what their quantised copies take in memory, on
the wire and in HBM traffic, and the bytes per parameter of weights, gradients and optimizer states
("16N bytes" and its variants). `RECIPES` holds those with a name of their own; `recipe_of`
composes one with narrower gradients and states, quantised weights on the wire, attention or head
in fp8.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from costmodels.optimizers.records import (
    BY_MATRIX,
    OPTIMIZERS,
    USUAL_MUON,
    MuonOptions,
    Optimizer,
    least_state_bytes,
    step_bytes,
)


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
    fp4_recipe: str = ""
    """The same of `--fp4-recipe`."""
    linear_input_bytes: float = 0.0
    """What one element of a quantised linear layer's input takes until its backward, scales
    included; 0 where it is kept as wide as activations are."""
    output_copy_bytes: float = 0.0
    """The same beside the 16-bit output of attention, which its own backward keeps: delayed
    scaling alone cannot keep the original in place of a copy (`save_original_input`)."""
    layout_bytes: float = 0.0
    """One layout (rows or columns) of a quantised weight, bytes a weight, scales included."""
    transposes: str = ""
    """Layouts of a quantised weight: `always` two, or two where the matrix units take operands in
    one order alone (`by-part`: Hopper, Ada)."""
    gathers_quantized: bool = False
    """The working copy of the weights of linear layers is the quantised one, and is gathered."""
    linear_wire_bytes: float = 0.0
    """Width in which those weights are gathered then."""
    adam_bytes: float = 24.0
    """What the update reads and writes of master copy and states, per updated parameter."""
    attention_precision: str = ""
    """Key of the peak for the products of the attention core, where not that of 16 bits."""
    head_precision: str = ""
    """The same of the output head."""
    optimizer: Optimizer = OPTIMIZERS["adam"]
    """What the states are of."""
    is_narrow: bool = False
    """Weights, gradients and states are as wide as the products, without a copy in fp32."""

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
        return self.param_bytes < 4.0 and not self.is_narrow

    @property
    def total_bytes(self) -> float:
        """W + G + K: bytes per parameter without sharding."""
        return self.param_bytes + self.grad_bytes + self.state_bytes

    def quantized_weight_bytes(self, *, one_layout: bool) -> float:
        """Return what a weight of a quantised linear layer takes more than any other, bytes.

        n L: beside the 16-bit weight, quantised once a step; n L - W: in place of it where the
        quantised one is what is gathered. L `layout_bytes`; n = 1 with `one_layout` (the part's
        matrix units take both orders) unless the recipe scales along the rows and along the
        columns apart, else 2.

        Source: Transformer Engine 2.x, cached workspaces of weights; Megatron-LM core
        distributed/param_and_grad_buffer.py. Left out: scales of whole tensors.

        >>> delayed = RECIPES["fp8-delayed", "adam"]
        >>> delayed.quantized_weight_bytes(one_layout=True)
        1.0
        >>> delayed.quantized_weight_bytes(one_layout=False)
        2.0
        """
        if not self.transposes:
            return 0.0
        n = 1.0 if one_layout and self.transposes == "by-part" else 2.0
        return n * self.layout_bytes - (self.param_bytes if self.gathers_quantized else 0.0)

    @property
    def spared_weight_bytes(self) -> float:
        """What the weights of linear layers take less than others at most, bytes a weight."""
        return max(0.0, -self.quantized_weight_bytes(one_layout=True))


FP8_RATE_FRAC = 0.9
"""Sustained share of the fp8 peak over that of the bf16 peak, casts apart: H100 cubes of 4096 to
16384 reach 0.61 to 0.70 after 10,000 warm-ups (Azure's AI benchmarking guide), bf16 0.77."""


FP4_RATE_FRAC = 0.75
"""The same of fp4, casts apart: assumed. No measured shapes are at hand; NVIDIA's parts draw more
power at that rate than they may, and tiles of a quarter of the bytes are fed less easily."""


@dataclass(frozen=True, slots=True)
class _Quantized:
    """How a recipe quantises linear layers."""

    precision: str
    rate_frac: float
    cast_bytes: float
    note: str
    layout_bytes: float
    transposes: str = "always"
    wire_bytes: float = 1.0
    """A weight on the wire where quantised weights are gathered."""
    output_copy_bytes: float = 0.0


MX_BYTES, BLOCK_BYTES, FP4_BYTES = 1.0 + 1.0 / 32.0, 1.0 + 4.0 / 128.0, 0.5 + 1.0 / 16.0
"""An element with its share of the scale: of 8 bits per 32, of 32 bits per 128 (activations), of 8
bits per 16 elements of 4 bits."""

# Rates: blockwise 0.49 against 0.55 of peak on H100 (aiconfigurator's tables, casts included);
# rowwise assumed, from published torchtitan runs at tp 8 that gain nothing over bf16.
# Casts per element: read it, write the value and its transpose (delayed: scale known); a
# second and third read for the current maximum; blocks read once. nvfp4: one read for the maximum
# of the tensor (and of its rotated columns), one to write both layouts.
# Layouts and wire: docs/framework_switches.md, section 7.3. mxfp8 gathers 16 bits in the buffer of
# the gradients and quantises both layouts from them.
_QUANTIZED = {
    "fp8-delayed": _Quantized(
        "fp8", FP8_RATE_FRAC, 4.0, "fp8, scale from earlier steps", 1.0, "by-part", 1.0, 1.0
    ),
    "fp8-tensorwise": _Quantized(
        "fp8", FP8_RATE_FRAC, 6.0, "fp8, one current scale per tensor", 1.0, "by-part"
    ),
    "fp8-blockwise": _Quantized(
        "fp8", 0.9 * FP8_RATE_FRAC, 4.0, "fp8, one scale per block of 128", 1.0
    ),
    "fp8-mxfp8": _Quantized(
        "fp8", FP8_RATE_FRAC, 4.0, "fp8, one scale per 32 elements", MX_BYTES, "always", 2.0
    ),
    "fp8-rowwise": _Quantized(
        "fp8", 0.6 * FP8_RATE_FRAC, 6.0, "fp8, one scale per row", 1.0, "by-part"
    ),
    "nvfp4": _Quantized(
        "fp4",
        FP4_RATE_FRAC,
        4.0 + 2.0 * FP4_BYTES,
        "fp4, one scale per 16 elements and one per tensor",
        FP4_BYTES,
        "always",
        0.5,
    ),
}
_INPUT_BYTES = {"fp8-blockwise": BLOCK_BYTES, "fp8-mxfp8": MX_BYTES, "nvfp4": FP4_BYTES}


def _quantized(name: str) -> tuple[Any, Recipe]:
    """Return a quantised entry: bf16 weights in memory and on the wire, fp32 main gradients."""
    how = _QUANTIZED[name]
    return (name, "adam"), Recipe(
        how.note,
        "bf16",
        2,
        4,
        12,
        4,
        2,
        f"as bf16: 18N; {how.precision} in the linear layers of the body only",
        linear_precision=how.precision,
        linear_rate_frac=how.rate_frac,
        cast_bytes=how.cast_bytes,
        fp8_recipe=name.removeprefix("fp8-") if how.precision == "fp8" else "",
        fp4_recipe=name if how.precision == "fp4" else "",
        linear_input_bytes=_INPUT_BYTES.get(name, 1.0),
        output_copy_bytes=how.output_copy_bytes,
        layout_bytes=how.layout_bytes,
        transposes=how.transposes,
        linear_wire_bytes=2.0,
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
    *(_quantized(name) for name in _QUANTIZED if name != "nvfp4"),
    (
        ("fp32", "adam"),
        Recipe("fp32 everywhere", "tf32", 4, 4, 8, 4, 4, "no separate master copy: 16N"),
    ),
    _quantized("nvfp4"),
    (
        ("bf16-true", "adam"),
        Recipe(
            "bf16 throughout",
            "bf16",
            2,
            2,
            4,
            2,
            2,
            "weights, gradients and both moments in bf16, no master copy (torchtune): 8N",
            adam_bytes=12.0,
            is_narrow=True,
        ),
    ),
)
RECIPES: dict[tuple[str, str], Recipe] = dict(_RECIPES)
"""Recipe by precision of the training section, with Adam; `recipe_of` has other optimizers."""
PRECISIONS = tuple(dict.fromkeys(precision for precision, _ in RECIPES))
"""The names of the recipes."""
PRECISION_ALIASES = {
    "fp8-current": "fp8-tensorwise",
    "fp8": "fp8-tensorwise",
    "mxfp8": "fp8-mxfp8",
}
"""Other names of them."""
GRAD_DTYPES = ("fp32", "bf16")
"""Widths of the gradients, in memory and on the wire."""
OPTIMIZER_STATES = ("fp32", "bf16-moments")
"""Widths of the optimizer states: both moments in fp32 or in bf16."""
SIXTEEN_BIT = ("bf16", *_QUANTIZED)
"""Recipes with bf16 weights and fp32 gradients, whose gradients and states may be narrower."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """What a job says of its numbers; every field but the first is off by default."""

    precision: str = "bf16"
    optimizer: str = "adam"
    grad_dtype: str = ""
    """One of `GRAD_DTYPES`; empty: that of the precision."""
    optimizer_states: str = "fp32"
    fp8_param_gather: bool = False
    """Weights of linear layers are held and gathered quantised (fp8 or fp4)."""
    fp8_attention: bool = False
    """The products of the attention core run in fp8."""
    fp8_output: bool = False
    """The output head runs in fp8."""
    muon: MuonOptions = USUAL_MUON
    """How Muon orthogonalizes; as it is by default with every other optimizer."""


def numerics_fault(x: Numerics) -> str:
    """Return why a job cannot have these numbers; empty where it can.

    >>> numerics_fault(Numerics("fp16", grad_dtype="bf16"))
    'grad_dtype bf16 with precision fp16: that is for bf16, fp8 and nvfp4 alone'
    """
    is_quantized, alone = x.precision in _QUANTIZED, "that is for bf16, fp8 and nvfp4 alone"
    optimizer = OPTIMIZERS.get(x.optimizer)
    if (x.precision, "adam") not in RECIPES or optimizer is None:
        return f"no recipe for {x.precision} with {x.optimizer}"
    if fault := _optimizer_fault(x, optimizer):
        return fault
    if x.precision == "bf16-true" and x.optimizer not in ("adam", "adam-8bit"):
        return f"precision bf16-true with optimizer {x.optimizer}: it has no price"
    if x.grad_dtype and x.precision not in SIXTEEN_BIT:
        wide = f"grad_dtype {x.grad_dtype} with precision {x.precision}"
        return f"{wide}: {alone}"
    if x.optimizer_states != "fp32" and x.precision not in (*SIXTEEN_BIT, "bf16-grads"):
        states = f"optimizer_states {x.optimizer_states} with precision {x.precision}"
        return f"{states}: {alone}"
    if x.fp8_param_gather and not is_quantized:
        return f"fp8_param_gather with precision {x.precision}: it has no quantised weights"
    if x.fp8_param_gather and x.precision == "fp8-rowwise":
        return "fp8_param_gather with precision fp8-rowwise: no framework gathers such weights"
    if x.fp8_attention and x.precision not in FP8_ATTENTION:
        return (
            f"fp8_attention with precision {x.precision}: Transformer Engine has it with delayed,"
            " current (tensorwise) and mxfp8 scaling, and beside nvfp4"
        )
    if x.fp8_output and x.precision != "fp8-mxfp8":
        return f"fp8_output with precision {x.precision}: the head runs in fp8 with mxfp8 alone"
    return ""


def _optimizer_fault(x: Numerics, optimizer: Optimizer) -> str:
    """Return why an optimizer does not go with the other numbers; empty where it does."""
    if x.optimizer_states not in optimizer.widths:
        has = ", ".join(optimizer.widths)
        return f"optimizer_states {x.optimizer_states} with optimizer {x.optimizer}: it has {has}"
    if x.muon != USUAL_MUON and not optimizer.is_orthogonalized:
        return f"muon options with optimizer {x.optimizer}: they are of muon alone"
    if optimizer.sharding == BY_MATRIX and x.precision.startswith("fp16"):
        # Megatron-LM core/optimizer/__init__.py: "emerging optimizer with fp16 is not supported".
        return f"precision {x.precision} with optimizer {x.optimizer}: it has no loss scaling"
    if optimizer.sharding == BY_MATRIX and x.fp8_param_gather:
        asked_for = f"fp8_param_gather with optimizer {x.optimizer}"
        return f"{asked_for}: gathers of quantised whole matrices have no price"
    return ""


FP8_ATTENTION = ("fp8-delayed", "fp8-tensorwise", "fp8-mxfp8", "nvfp4")
"""Precisions with which the attention core may run in fp8; beside nvfp4 in mxfp8
(Transformer Engine dot_product_attention.py, NVTE_DPA_FP8_RECIPE)."""
ONE_LAYOUT_GENERATIONS = ("blackwell", "blackwell-ultra", "rubin")
"""Generations whose fp8 matrix units take operands in both orders, so that no transpose is kept
(Transformer Engine, is_non_tn_fp8_gemm_supported: SM 10 and 11, not 12)."""


@lru_cache(maxsize=4096)
def recipe_of(x: Numerics) -> Recipe:
    """Return the recipe of a job: its products x the width of gradients x those of the states.

    grad_dtype bf16: G = 2 in memory and on the wire. optimizer_states bf16-moments: K = 4 + 2 + 2;
    K = 2 + 2 + 2 where 16-bit weights hold the upper half of the master copy, which needs them
    (bf16, delayed without `fp8_param_gather`). Adam reads and writes 2 K.
    fp8_param_gather: weights of linear layers as `Recipe.quantized_weight_bytes` says, gathered at
    1 byte (0.5 with nvfp4, 2 with mxfp8: quantised after the gather).

    Source: Megatron-LM core/optimizer/{optimizer_config,distrib_optimizer}.py
    (use_precision_aware_optimizer, store_param_remainders). Left out: the fp32 copy of a shard's
    gradient during the update, when activations are gone. `KeyError` for an unknown precision.

    >>> recipe_of(Numerics("fp8-blockwise", grad_dtype="bf16")).total_bytes  # 2 + 2 + 12
    16
    >>> recipe_of(Numerics(optimizer_states="bf16-moments")).total_bytes  # 2 + 4 + 6
    12.0
    """
    precision = x.precision
    if precision == "bf16" and x.grad_dtype == "bf16":
        precision = "bf16-grads"
    recipe = RECIPES[precision, "adam"]
    if x.grad_dtype == "bf16" and precision != "bf16-grads":
        recipe = replace(
            recipe, name=f"{recipe.name}, bf16 gradients", grad_bytes=2, grad_wire_bytes=2
        )
    if x.optimizer_states == "bf16-moments":
        halves = recipe.fp8_recipe in ("", "delayed") and not recipe.fp4_recipe
        master = 2.0 if halves and not x.fp8_param_gather else 4.0
        recipe = replace(
            recipe,
            name=f"{recipe.name}, bf16 moments",
            state_bytes=master + 4.0,
            adam_bytes=2.0 * (master + 4.0),
        )
    if x.optimizer != "adam":
        recipe = _with_states(recipe, OPTIMIZERS[x.optimizer], x.muon)
    if x.fp8_param_gather:
        wire = _QUANTIZED[precision].wire_bytes
        recipe = replace(recipe, gathers_quantized=True, linear_wire_bytes=wire)
    return replace(
        recipe,
        attention_precision="fp8" if x.fp8_attention else "",
        head_precision="fp8" if x.fp8_output else "",
    )


def _with_states(recipe: Recipe, optimizer: Optimizer, muon: MuonOptions) -> Recipe:
    """Return a recipe with another optimizer's states in place of Adam's two moments.

    K = master copy + the least that a parameter of any group takes; the rest by group is
    `costmodels.optimizers.groups`.
    """
    states = least_state_bytes(optimizer, muon)
    if recipe.is_narrow:
        moved = 2.0 * (recipe.param_bytes + states)
        name = f"{recipe.name}, {optimizer.name}"
        return replace(
            recipe, name=name, state_bytes=states, adam_bytes=moved, optimizer=optimizer
        )
    other_bytes = recipe.state_bytes - OPTIMIZERS["adam"].matrix_bytes
    return replace(
        recipe,
        name=f"{recipe.name}, {optimizer.name}",
        state_bytes=other_bytes + states,
        adam_bytes=step_bytes(optimizer, states, recipe.grad_bytes),
        optimizer=optimizer,
    )
