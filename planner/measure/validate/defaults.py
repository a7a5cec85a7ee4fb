"""What a run did where its row does not say: one table, by stack, with two class defaults.

Each value is what the stack does when nobody changes it, as its documentation of the time says.
Every use is listed with the prediction.
"""

from dataclasses import dataclass, replace

from costmodels.stacks import EAGER, FUSED, STACKS, StackProfile


@dataclass(frozen=True, slots=True)
class Defaults:
    """Cells of a row that are filled in when they are empty."""

    kind: str
    """`fused` or `eager`: the class whose profile stands in for a stack without one."""
    zero: int
    sp: bool
    """Sequence parallelism, where tp > 1."""
    recompute: str
    precision: str
    flash_attention: bool
    dropout: bool
    """Hidden and attention dropout are on."""
    bf16: str = "bf16"
    """Numeric recipe of a run that says bf16: key of `costmodels.precision.RECIPES`."""
    fp16: str = "fp16"
    """The same for fp16."""
    fp8: str = "delayed"
    """Scaling of an fp8 run."""
    cp_comm: str = "p2p"
    """How context-parallel ranks exchange keys and values."""
    memory: str = "allocated"
    """What its memory figure counts: `allocated` (tensors), `reserved` (with fragmentation) or
    `device` (with the context, as nvidia-smi shows)."""
    memory_rank: str = "max"
    """`max`: the largest of all ranks; `first`: global rank 0."""


_FUSED = Defaults("fused", 1, True, "none", "bf16", True, False)
_EAGER = Defaults("eager", 1, False, "none", "bf16", True, False)
_FSDP = replace(_EAGER, zero=3, sp=True, fp8="tensorwise")
# The code of 2021 and 2022 trained in fp16 with dropout and had no flash attention; sequence
# parallelism and the distributed optimizer came with 2022's second half.
_MEGATRON_2021 = Defaults("fused", 0, False, "none", "fp16", False, True, memory="device")
# DeepSpeed prints the memory of rank 0 alone
# (deepspeed/runtime/utils.py, see_memory_usage).
_DEEPSPEED = replace(_MEGATRON_2021, kind="eager", memory_rank="first")

BY_STACK: dict[str, Defaults] = {
    "fused": _FUSED,
    "eager": _EAGER,
    "megatron-core": _FUSED,
    "megatron-lm-2021": _MEGATRON_2021,
    "megatron-lm-2022": _MEGATRON_2021,
    "oneflow": replace(_MEGATRON_2021, fp16="fp16-grads"),
    # BF16_Optimizer keeps fp32 gradients of all of a rank's weights beside autograd's own
    # (deepspeed/runtime/bf16_optimizer.py).
    "megatron-deepspeed": replace(_DEEPSPEED, zero=1, bf16="bf16-both"),
    "deepspeed-zero3": replace(_DEEPSPEED, zero=3),
    "hf-deepspeed": replace(_DEEPSPEED, zero=3),
    "maxtext": replace(_FUSED, zero=3),
    "paxml": replace(_FUSED, zero=3),
    # Its presets recompute per op (train_configs/llama3_*.toml, activation_checkpoint).
    "torchtitan": replace(
        _FSDP, recompute="selective per op", memory="reserved", cp_comm="all-gather"
    ),
    "llm-foundry": replace(_FSDP, bf16="bf16-grads"),
    "meta": replace(_FSDP, zero=2, cp_comm="all-gather"),
    "nemo-automodel": _FSDP,
    "fms-fsdp": _FSDP,
    # Its recipes of adapters recompute layers (recipes/configs/llama3_1/405B_qlora.yaml,
    # enable_activation_checkpointing).
    "torchtune": replace(_EAGER, recompute="full"),
    "internevo": replace(_EAGER, bf16="bf16-grads"),
    "aleph-alpha": replace(_EAGER, bf16="bf16-grads"),
    # Its log has both, allocated and reserved; the published sweep does not say which. Peaks of
    # one layout differ with the number of devices, as those of a caching allocator do.
    "nanotron": replace(_EAGER, sp=True, bf16="bf16-both", memory="reserved", memory_rank="first"),
}
"""By the canonical key of the `stack` cell."""


_SAME = {"primus": "megatron-core"}
"""Stacks whose kernels are another's: Primus trains with Megatron-Core."""
UNFUSED_LOSS = ("primus",)
"""Those of them that leave Megatron-LM's `--cross-entropy-loss-fusion` off, as it is by default
(Primus examples/moe_package: the baseline; Megatron-Bridge's recipes set it). fp32 logits, their
exponentials and a 16-bit gradient then stand beside the 16-bit logits, as in 2021."""


WITHOUT_MASTER_COPY = ("torchtune",)
"""Stacks that train weights in bf16 with gradients and moments as wide: no recipe has that
(torchtune recipes/configs, dtype: bf16)."""
CHUNKED_LOSS = {"torchtune": 8}
"""Stacks that project and sum the loss so many tokens at a time, by the chunks of a micro-batch
(torchtune modules/loss, LinearCrossEntropyLoss: num_output_chunks)."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The profile and the defaults that stand for a `stack` cell."""

    profile: StackProfile
    defaults: Defaults
    assumptions: tuple[str, ...]


def stack_of_cell(cell: str) -> Stack:
    """Return what stands for a canonical stack key; an unknown one is taken as eager.

    >>> stack_of_cell("never-heard-of").assumptions
    ("stack 'never-heard-of' has no profile: class eager",)
    """
    key = cell.strip().lower()
    key = _SAME.get(key, key)
    defaults = BY_STACK.get(key) or (_class_defaults(key) if key in STACKS else _EAGER)
    if key in STACKS:
        return Stack(STACKS[key], defaults, ())
    profile = FUSED if defaults.kind == "fused" else EAGER
    named = f"stack {cell!r} has no profile" if key else "stack not stated"
    return Stack(profile, defaults, (f"{named}: class {defaults.kind}",))


def _class_defaults(key: str) -> Defaults:
    return _FUSED if STACKS[key].kind == "fused" else _EAGER
