"""What Megatron-LM (megatron-core) refuses.

Codes: MLM1xx sizes and order of ranks, MLM2xx pipeline, MLM3xx experts and sequence parallelism,
MLM4xx ZeRO, MLM5xx precision and recompute.
"""

import numpy as np

from costmodels import parameters
from costmodels.plans import ZERO_BUBBLE
from costmodels.shapes import ModelShape
from searches.frameworks.case import RANK_ORDER, Case
from searches.frameworks.common import (
    dense_without_experts,
    heads_divide,
    kv_heads_fit,
    plain_schedule,
    whole_zero_groups,
)
from searches.frameworks.rule import FrameworkRule

TRANSFORMER_CONFIG = "megatron/core/transformer/transformer_config.py, TransformerConfig"
ARGUMENTS = "megatron/training/arguments.py, validate_args"
SCHEDULES_PY = "megatron/core/pipeline_parallel/schedules.py"
FP8_RECIPES = ("", "delayed", "tensorwise", "blockwise", "mxfp8")
"""Values of `--fp8-recipe`, and none."""


def padded_vocab(shape: ModelShape, tp: int) -> int:
    """Return the rows of the vocabulary matrices over all tp ranks."""
    return int(parameters.padded_vocab(shape, np.array([tp], dtype=np.int32))[0])


def vocab_divisor(shape: ModelShape, tp: int) -> int:
    """Return the --make-vocab-size-divisible-by that gives the plan's padding, 0 if none does.

    Megatron pads up to a multiple of divisor * tp (megatron/training/vocab_utils.py).
    """
    padded = padded_vocab(shape, tp)
    for divisor in (shape.vocab_multiple, 128, padded // tp):
        multiple = divisor * tp
        if multiple and -(-shape.vocab // multiple) * multiple == padded:
            return divisor
    return 0


def _sequence(c: Case) -> str:
    return f"{c.job.seq_len} tokens do not divide by tp {c.tp}" + (
        f" x cp {c.cp}" if c.cp > 1 else ""
    )


LAYOUT_RULES = (
    heads_divide("MLM101", "megatron", TRANSFORMER_CONFIG),
    kv_heads_fit("MLM102", "megatron", TRANSFORMER_CONFIG),
    FrameworkRule(
        "MLM103", "megatron", "padded vocabulary that no divisor gives", "start",
        "megatron/training/vocab_utils.py",
        lambda c: c.of_tp(lambda tp: vocab_divisor(c.model, tp)) == 0,
        lambda c: f"vocabulary: {padded_vocab(c.model, c.tp)} padded rows cannot be split over tp"
        f" {c.tp}",
        "leave padded_vocab out",
    ),
    FrameworkRule(
        "MLM104", "megatron", "order of ranks that no flag gives", "planner",
        "megatron/training/initialize.py, --use-tp-pp-dp-mapping",
        lambda c: (c.rank_order != RANK_ORDER)
        & ((c.rank_order != "tp-cp-ep-pp-dp") | (c.zero >= 2)),
        lambda c: f"rank order {c.rank_order}: Megatron-LM offers {RANK_ORDER}, and without FSDP"
        " tp-cp-ep-pp-dp",
        RANK_ORDER,
    ),
    whole_zero_groups("MLM105", "megatron"),
    FrameworkRule(
        "MLM201", "megatron", "GPipe", "planner", SCHEDULES_PY,
        lambda c: c.is_schedule("gpipe"),
        lambda c: "schedule: Megatron-LM has no GPipe, it runs 1F1B or interleaved 1F1B",
        "schedule 1f1b",
    ),
    FrameworkRule(
        "MLM202", "megatron", "zero-bubble schedule", "planner",
        SCHEDULES_PY,
        lambda c: c.is_schedule(*ZERO_BUBBLE),
        lambda c: f"schedule {c.schedule_name}: Megatron-LM keeps the backward whole",
        plain_schedule,
    ),
    FrameworkRule(
        "MLM203", "megatron", "interleaving without micro-batches in multiples of pp",
        "first step",
        f"{SCHEDULES_PY}, forward_backward_pipelining_with_interleaving",
        lambda c: (c.vpp > 1) & ((c.n_micro < c.pp) | (c.n_micro % c.pp > 0)),
        lambda c: f"interleaved schedule: {c.n_micro} micro-batches are not a multiple of pp"
        f" {c.pp}",
        "vpp 1, or a global batch that gives such a multiple",
    ),
    dense_without_experts("MLM301", "megatron", TRANSFORMER_CONFIG),
    FrameworkRule(
        "MLM302", "megatron", "experts with tp and no sequence parallelism", "first step",
        "megatron/core/transformer/moe/moe_layer.py, MoELayer.forward",
        lambda c: (c.model.n_experts > 0) & (c.tp > 1) & (c.sp == 0),
        lambda c: f"experts with tp {c.tp}: Megatron-LM trains them with sequence parallelism"
        " only",
        "sp on",
    ),
    FrameworkRule(
        "MLM303", "megatron", "experts or their width do not divide", "parse",
        TRANSFORMER_CONFIG,
        lambda c: (c.model.n_experts > 0)
        & ((c.model.n_experts % c.ep > 0) | (c.model.expert_ffn % c.etp > 0)),
        lambda c: f"expert parallelism: {c.model.n_experts} experts of width {c.model.expert_ffn}"
        f" do not divide by ep {c.ep} and etp {c.etp}",
        "degrees that do",
    ),
    FrameworkRule(
        "MLM304", "megatron", "experts' grid does not fit a pipeline stage", "start",
        "megatron/core/parallel_state.py, initialize_model_parallel",
        lambda c: (c.model.n_experts > 0) & (c.n_devices % (c.ep * c.etp * c.pp) > 0),
        lambda c: f"expert parallelism: ep {c.ep} x etp {c.etp} do not divide the"
        f" {c.n_devices // c.pp} ranks of a pipeline stage",
        "degrees that do",
    ),
    FrameworkRule(
        "MLM305", "megatron", "experts with biases and etp", "parse", TRANSFORMER_CONFIG,
        lambda c: (c.model.n_experts > 0) & (c.model.bias == 1) & (c.etp > 1),
        lambda c: f"experts with biases and etp {c.etp}: refused by Megatron-LM",
        "etp 1",
    ),
    FrameworkRule(
        "MLM306", "megatron", "sequence parallelism that does not divide the sequence",
        "first step", "megatron/core/tensor_parallel/mappings.py",
        lambda c: (c.sp == 1) & (c.job.seq_len % (c.tp * c.cp) > 0),
        lambda c: f"sequence parallelism: {_sequence(c)}",
        "sp off",
    ),
    FrameworkRule(
        "MLM401", "megatron", "sharded gradients in a pipeline", "planner",
        "docs/user-guide/features/custom_fsdp.md",
        lambda c: (c.zero >= 2) & (c.pp > 1),
        lambda c: f"ZeRO-{c.zero} with a pipeline of {c.pp}: sharded gradients need Megatron-FSDP,"
        " which is documented for TP, CP and EP and not for a pipeline",
        "zero 1, or pp 1",
    ),
    FrameworkRule(
        "MLM501", "megatron", "fp16 gradients", "planner",
        "megatron/core/optimizer/optimizer.py",
        lambda c: c.job.precision == "fp16-grads",
        lambda c: "precision fp16-grads: Megatron-LM keeps an fp32 copy of fp16 gradients",
        "precision fp16",
    ),
    FrameworkRule(
        "MLM502", "megatron", "unknown scaling of fp8", "parse",
        "megatron/training/arguments.py, --fp8-recipe",
        lambda c: c.fp8_recipe not in FP8_RECIPES,
        lambda c: f"precision {c.job.precision}: Megatron-LM scales fp8 delayed, tensorwise,"
        " blockwise or as mxfp8",
        "precision fp8-tensorwise",
    ),
    FrameworkRule(
        "MLM503", "megatron", "fp32 with flash attention", "first step",
        "Transformer Engine, attention backends",
        lambda c: (c.job.precision == "fp32") & c.model.flash_attention,
        lambda c: "precision fp32: flash attention has no fp32 kernel",
        "no flash attention, or bf16",
    ),
)  # fmt: skip

RULES: tuple[FrameworkRule, ...] = LAYOUT_RULES
"""All rules of Megatron-LM."""
