"""Layouts that Megatron-LM (megatron-core) does not run; its flags are in `flags`.

Codes: MLM1xx sizes and order of ranks, MLM2xx pipeline, MLM3xx experts and sequence parallelism,
MLM4xx data parallelism and optimizer, MLM5xx recompute and precision.
"""

import numpy as np

from costmodels.axes import RANK_ORDERS
from costmodels.layers import params
from costmodels.optimizers.records import BY_MATRIX, OPTIMIZERS
from costmodels.plans import PIPELINES_INSIDE, ZERO_BUBBLE
from costmodels.shapes import ModelShape
from searches.frameworks.case import RANK_ORDER, Bools, Case
from searches.frameworks.common import (
    batch_divides,
    columns_divide,
    degrees_divide,
    degrees_positive,
    dense_without_experts,
    experts_divide,
    heads_divide,
    known_optimizer,
    kv_heads_split,
    kv_heads_split_or_replicated,
    master_copy,
    one_copy_of_weights,
    plain_schedule,
    sequence_chunks,
)
from searches.frameworks.rule import FrameworkRule

ARGUMENTS = "megatron/training/arguments.py, validate_args"
TRANSFORMER_CONFIG = "megatron/core/transformer/transformer_config.py, TransformerConfig"
PARALLEL_STATE = "megatron/core/parallel_state.py, initialize_model_parallel"
MICROBATCHES = "megatron/core/num_microbatches_calculator.py"
SCHEDULES_PY = "megatron/core/pipeline_parallel/schedules.py"
INTERLEAVED = f"{SCHEDULES_PY}, forward_backward_pipelining_with_interleaving"
DIVIDE = "megatron/core/utils.py, divide"
MUON = "megatron/training/arguments.py, --optimizer and --muon-tp-mode"
NO_FLAG = "MLM509"
"""The rule over a field of its configuration that Megatron-LM has no flag for."""
FP8_RECIPES = ("", "delayed", "tensorwise", "blockwise", "mxfp8")
"""Values of `--fp8-recipe` that a precision of ours maps to, and none."""
PP_BEFORE_DP = RANK_ORDERS[PIPELINES_INSIDE]
"""The other order of ranks, `--use-tp-pp-dp-mapping`."""


def megatron_vocab(shape: ModelShape, tp: int) -> int:
    """Return the rows of the vocabulary matrices over all tp ranks."""
    return int(params.padded_vocab(shape, np.array([tp], dtype=np.int32))[0])


def _asks_for_flash(c: Case) -> bool:
    """Tell whether flash attention is named: plans do, a run may leave the choice to `auto`."""
    requested = c.settings.get("attention_backend") == "flash" or c.settings.get("use_flash_attn")
    return not c.settings or bool(requested)


def _is_by_matrix(c: Case) -> bool:
    return OPTIMIZERS[c.job.optimizer].sharding == BY_MATRIX


def _is_plan(c: Case) -> bool:
    """Tell a plan from a run, whose flags have rules of their own."""
    return not c.settings


def vocab_divisor(shape: ModelShape, tp: int) -> int:
    """Return the --make-vocab-size-divisible-by that gives the plan's padding, 0 if none does.

    Megatron pads up to a multiple of divisor * tp (megatron/training/vocab_utils.py).
    """
    padded = megatron_vocab(shape, tp)
    for divisor in (shape.vocab_multiple, 128, padded // tp):
        multiple = divisor * tp
        if multiple and -(-shape.vocab // multiple) * multiple == padded:
            return divisor
    return 0


def _sequence(c: Case) -> str:
    over = f" x cp {c.cp}" if c.cp > 1 else ""
    return f"{c.job.seq_len} tokens do not divide by tp {c.tp}{over}"


def _group(c: Case) -> Bools:
    """Return how many micro-batches the interleaved schedule runs together."""
    named = c.setting("microbatch_group_size_per_vp_stage")
    return c.pp if named is None else named


def _leaves_bubbles(c: Case) -> Bools:
    group, left = _group(c), c.n_micro % _group(c)
    outside = (group < c.pp) | (group > c.n_micro)
    return (c.vpp > 1) & (outside | ((left > 0) & (left < c.pp)))


def _linear_bias(c: Case) -> Bools:
    """Return whether linear layers carry biases; of a run also where our model has none."""
    return (c.model.bias == 1) | bool(c.settings and c.setting("add_bias_linear", True))


def _expert_tp(c: Case) -> Bools:
    """Return the tensor-parallel degree of the experts' grid: tp where there are none."""
    return c.etp if c.model.n_experts else c.tp


LAYOUT_RULES: tuple[FrameworkRule, ...] = (
    degrees_positive("MLM100", "megatron", ARGUMENTS),
    degrees_divide("MLM101", "megatron", ARGUMENTS),
    heads_divide("MLM102", "megatron", TRANSFORMER_CONFIG, "parse"),
    kv_heads_split_or_replicated("MLM103", "megatron", TRANSFORMER_CONFIG, ">=0.16"),
    kv_heads_split("MLM104", "megatron", TRANSFORMER_CONFIG, versions="<0.16"),
    columns_divide("MLM105", "megatron", DIVIDE),
    sequence_chunks("MLM106", "megatron", ARGUMENTS, "parse"),
    FrameworkRule(
        "MLM107",
        "megatron",
        "heads do not divide by tp x cp for all-to-alls",
        "first step",
        "Transformer Engine, attention with context parallelism",
        lambda c: (
            c.is_exchange("a2a")
            & (c.cp > 1)
            & ((c.model.heads % (c.tp * c.cp) > 0) | (c.model.kv_heads % (c.tp * c.cp) > 0))
        ),
        lambda c: (
            f"context parallelism by a2a: {c.model.heads} heads and {c.model.kv_heads} KV"
            f" heads do not both divide by tp {c.tp} x cp {c.cp}"
        ),
        "cp_comm p2p or all-gather, or a smaller cp",
    ),
    FrameworkRule(
        "MLM108",
        "megatron",
        "padded vocabulary that no divisor gives",
        "planner",
        "megatron/training/vocab_utils.py, calculate_padded_vocab_size",
        lambda c: c.of_tp(lambda tp: not 0 < tp < 1 << 31 or vocab_divisor(c.model, tp) > 0) == 0,
        lambda c: (
            f"vocabulary: {megatron_vocab(c.model, c.tp)} padded rows "
            f"cannot be split over tp {c.tp}"
        ),
        "leave padded_vocab out",
    ),
    FrameworkRule(
        "MLM109",
        "megatron",
        "order of ranks that no flag gives",
        "planner",
        "megatron/training/initialize.py, --use-tp-pp-dp-mapping",
        lambda c: (c.rank_order != RANK_ORDER) & ((c.rank_order != PP_BEFORE_DP) | (c.zero >= 2)),
        lambda c: (
            f"rank order {c.rank_order}: Megatron-LM offers {RANK_ORDER}, and without FSDP"
            f" {PP_BEFORE_DP}"
        ),
        RANK_ORDER,
    ),
    FrameworkRule(
        "MLM110",
        "megatron",
        "pipeline before dp with unequal data parallelism of the experts",
        "start",
        PARALLEL_STATE,
        lambda c: (
            (c.rank_order == PP_BEFORE_DP)
            & (c.pp > 1)
            & (c.n_devices != c.dp * c.ep * _expert_tp(c) * c.pp)
        ),
        lambda c: (
            f"rank order {c.rank_order}: the experts' grid (ep {c.ep}, etp {_expert_tp(c)})"
            f" leaves another data-parallel size than {c.dp}"
        ),
        RANK_ORDER,
    ),
    FrameworkRule(
        "MLM111",
        "megatron",
        "replicated ZeRO groups that cut the experts' ranks",
        "start",
        PARALLEL_STATE,
        lambda c: (
            (c.zero > 0)
            & (c.dp_shard < c.dp * c.cp)
            & (c.tp * c.cp * c.dp % (c.ep * _expert_tp(c) * (c.dp * c.cp // c.dp_shard)) > 0)
        ),
        lambda c: (
            f"ZeRO groups of {c.dp_shard}: their {c.dp * c.cp // c.dp_shard} replicas do not"
            f" divide the {c.tp * c.cp * c.dp // (c.ep * _expert_tp(c))} ranks that hold an expert"
        ),
        "groups of all data-parallel ranks",
    ),
    batch_divides("MLM112", "megatron", f"{ARGUMENTS}; {MICROBATCHES}"),
    FrameworkRule(
        "MLM201",
        "megatron",
        "GPipe",
        "planner",
        SCHEDULES_PY,
        lambda c: c.is_schedule("gpipe"),
        "schedule: Megatron-LM has no GPipe, it runs 1F1B or interleaved 1F1B",
        "schedule 1f1b",
    ),
    FrameworkRule(
        "MLM202",
        "megatron",
        "zero-bubble schedule",
        "planner",
        SCHEDULES_PY,
        lambda c: c.is_schedule(*ZERO_BUBBLE),
        lambda c: f"schedule {c.schedule_name}: Megatron-LM keeps the backward whole",
        plain_schedule,
    ),
    FrameworkRule(
        "MLM203",
        "megatron",
        "micro-batches that leave the interleaved schedule incomplete",
        "first step",
        INTERLEAVED,
        _leaves_bubbles,
        lambda c: (
            f"interleaved schedule: {c.n_micro} micro-batches are not a multiple of"
            + (f" pp {c.pp}" if c.pp == _group(c) else f" groups of {_group(c)}, remainder < pp")
        ),
        "vpp 1, or a global batch that gives such a multiple",
        batches=True,
    ),
    FrameworkRule(
        "MLM204",
        "megatron",
        "interleaving without a pipeline",
        "parse",
        ARGUMENTS,
        lambda c: (c.vpp > 1) & (c.pp == 1),
        lambda c: f"interleaved schedule: vpp {c.vpp} without a pipeline",
        "vpp 1, or pp 2",
    ),
    dense_without_experts("MLM301", "megatron", f"{ARGUMENTS}; {TRANSFORMER_CONFIG}"),
    FrameworkRule(
        "MLM302",
        "megatron",
        "experts with tp and no sequence parallelism",
        "first step",
        "megatron/core/transformer/moe/moe_layer.py, MoELayer.forward",
        lambda c: (c.model.n_experts > 0) & (c.tp > 1) & (c.sp == 0),
        lambda c: (
            f"experts with tp {c.tp}: Megatron-LM trains them with sequence parallelism only"
        ),
        "sp on",
    ),
    experts_divide("MLM303", "megatron", ARGUMENTS, "parse"),
    FrameworkRule(
        "MLM304",
        "megatron",
        "MLP width of an expert does not divide by etp",
        "start",
        DIVIDE,
        lambda c: (c.model.n_experts > 0) & (c.model.expert_ffn % c.etp > 0),
        lambda c: (
            f"expert parallelism: experts of width {c.model.expert_ffn} do not divide by"
            f" etp {c.etp}"
        ),
        "an etp that divides it",
    ),
    FrameworkRule(
        "MLM305",
        "megatron",
        "the experts' grid does not fit the devices",
        "start",
        PARALLEL_STATE,
        lambda c: (c.model.n_experts > 0) & (c.n_devices % (c.ep * c.etp * c.pp) > 0),
        lambda c: (
            f"expert parallelism: ep {c.ep} x etp {c.etp} x pp {c.pp} do not divide"
            f" {c.n_devices} devices"
        ),
        "degrees that do",
    ),
    FrameworkRule(
        "MLM306",
        "megatron",
        "experts with biases and etp",
        "parse",
        TRANSFORMER_CONFIG,
        lambda c: (c.model.n_experts > 0) & _linear_bias(c) & (c.etp > 1),
        lambda c: f"experts with biases and etp {c.etp}: refused by Megatron-LM",
        "etp 1",
        versions=">=0.15",
    ),
    FrameworkRule(
        "MLM307",
        "megatron",
        "groups of experts that do not divide",
        "parse",
        TRANSFORMER_CONFIG,
        lambda c: (
            (c.model.n_experts > 0)
            & (
                (c.model.n_experts % c.model.n_groups > 0)
                | (c.model.top_groups > c.model.n_groups)
            )
        ),
        lambda c: (
            f"routing: {c.model.top_groups} of {c.model.n_groups} groups over"
            f" {c.model.n_experts} experts"
        ),
        "a number of groups that divides the experts",
    ),
    FrameworkRule(
        "MLM308",
        "megatron",
        "sequence parallelism that does not divide the sequence",
        "first step",
        "megatron/core/tensor_parallel/mappings.py",
        lambda c: (c.sp == 1) & (c.tp > 1) & (c.job.seq_len % (c.tp * c.cp) > 0),
        lambda c: f"sequence parallelism: {_sequence(c)}",
        "sp off",
    ),
    FrameworkRule(
        "MLM401",
        "megatron",
        "sharded gradients in a pipeline",
        "planner",
        "docs/discussions/megatron-fsdp-user-guide/megatron-fsdp-user-guide.md",
        lambda c: (c.zero >= 2) & (c.pp > 1),
        lambda c: (
            f"ZeRO-{c.zero} with a pipeline of {c.pp}: sharded gradients need Megatron-FSDP,"
            " which is documented for TP, CP and EP and not for a pipeline"
        ),
        "zero 1, or pp 1",
    ),
    FrameworkRule(
        "MLM402",
        "megatron",
        "offloaded optimizer without the distributed one",
        "parse",
        "megatron/core/optimizer/optimizer_config.py, use_precision_aware_optimizer",
        lambda c: (c.optimizer_offload == 1) & (c.zero == 0) & (c.dp * c.cp > 1),
        "optimizer on the host with ZeRO-0: Megatron-LM offloads the distributed optimizer only",
        "zero 1",
    ),
    FrameworkRule(
        "MLM403",
        "megatron",
        "offloaded optimizer with Megatron-FSDP",
        "planner",
        "megatron/core/optimizer/cpu_offloading/README.md",
        lambda c: (c.optimizer_offload == 1) & (c.zero >= 2),
        lambda c: (
            f"optimizer on the host with ZeRO-{c.zero}: documented for the distributed"
            " optimizer, not for Megatron-FSDP"
        ),
        "zero 1",
    ),
    FrameworkRule(
        "MLM404",
        "megatron",
        "offloaded optimizer of another precision",
        "planner",
        "megatron/core/optimizer/__init__.py, HybridDeviceOptimizer",
        lambda c: (
            (c.optimizer_offload == 1) & (not str(c.job.precision).startswith(("bf16", "fp8")))
        ),
        lambda c: f"optimizer on the host with precision {c.job.precision}: documented for bf16",
        "precision bf16, or optimizer_offload off",
    ),
    FrameworkRule(
        "MLM405",
        "megatron",
        "activations on the host beside recompute or a pipeline",
        "parse",
        TRANSFORMER_CONFIG,
        lambda c: (
            (c.activation_offload_layers > 0) & (c.is_recompute("selective", "full") | (c.pp > 1))
        ),
        lambda c: (
            f"activations on the host with recompute {c.recompute_name} and pp {c.pp}:"
            " --cpu-offloading-num-layers excludes recompute and a pipeline"
        ),
        "recompute none and pp 1, or activation_offload off",
    ),
    FrameworkRule(
        "MLM406",
        "megatron",
        "activations on the host with Megatron-FSDP",
        "planner",
        "megatron/core/transformer/transformer_block.py, get_cpu_offload_context",
        lambda c: (c.activation_offload_layers > 0) & (c.zero >= 2),
        lambda c: (
            f"activations on the host with ZeRO-{c.zero}: what a layer keeps holds views of"
            " gathered weights there, which would be copied too"
        ),
        "zero 1, or activation_offload off",
    ),
    one_copy_of_weights("MLM407", "megatron", "megatron/core/distributed/fsdp/src/README.md"),
    FrameworkRule(
        "MLM501",
        "megatron",
        "fp16 gradients",
        "planner",
        "megatron/core/optimizer/optimizer.py, Float16OptimizerWithFloat16Params",
        lambda c: c.job.precision == "fp16-grads",
        "precision fp16-grads: Megatron-LM keeps an fp32 copy of fp16 gradients",
        "precision fp16",
    ),
    master_copy("MLM526", "megatron", "megatron/core/optimizer/optimizer.py"),
    FrameworkRule(
        "MLM502",
        "megatron",
        "unknown scaling of fp8",
        "parse",
        "megatron/training/arguments.py, --fp8-recipe",
        lambda c: c.fp8_recipe not in FP8_RECIPES,
        lambda c: (
            f"precision {c.job.precision}: Megatron-LM scales fp8 delayed, tensorwise,"
            " blockwise or as mxfp8"
        ),
        "precision fp8-tensorwise",
    ),
    FrameworkRule(
        "MLM503",
        "megatron",
        "fp32 with flash attention",
        "first step",
        "Transformer Engine, attention backends",
        lambda c: (c.job.precision == "fp32") & c.model.flash_attention & _asks_for_flash(c),
        "precision fp32: flash attention has no fp32 kernel",
        "no flash attention, or bf16",
    ),
    FrameworkRule(
        "MLM504",
        "megatron",
        "modules that delayed scaling cannot recompute",
        "parse",
        TRANSFORMER_CONFIG,
        lambda c: (c.fp8_recipe == "delayed") & c.recomputes("moe_act", "layernorm"),
        lambda c: (
            f"precision {c.job.precision}: recompute of moe_act and layernorm discards"
            " what delayed scaling needs"
        ),
        "precision fp8-tensorwise, or other modules",
    ),
    FrameworkRule(
        "MLM505",
        "megatron",
        "quantised weights without a sharded optimizer",
        "parse",
        ARGUMENTS,
        lambda c: _is_plan(c) & c.job.fp8_param_gather & (c.zero == 0),
        "fp8_param_gather with ZeRO-0: --fp8-param-gather and --fp4-param-gather need the"
        " distributed optimizer or Megatron-FSDP",
        "zero 1, or fp8_param_gather off",
    ),
    FrameworkRule(
        "MLM506",
        "megatron",
        "layers in bf16 that cannot be",
        "parse",
        TRANSFORMER_CONFIG,
        lambda c: (
            _is_plan(c)
            & (max(c.job.bf16_layers) > 0)
            & ((c.fp8_recipe == "delayed") | (max(c.job.bf16_layers) > c.model.layers // c.pp))
        ),
        lambda c: (
            f"bf16_layers {list(c.job.bf16_layers)} with precision {c.job.precision} and pp"
            f" {c.pp}: not with delayed scaling, and at most layers / pp at either end"
        ),
        "fewer bf16_layers, or precision fp8-tensorwise",
    ),
    FrameworkRule(
        "MLM507",
        "megatron",
        "narrow moments without the distributed optimizer",
        "parse",
        "megatron/core/optimizer/__init__.py, use_precision_aware_optimizer",
        lambda c: (
            _is_plan(c)
            & (c.job.optimizer_states != "fp32")
            & ((c.zero >= 2) | (c.optimizer_offload == 1) | ((c.zero == 0) & (c.dp * c.cp > 1)))
        ),
        lambda c: (
            f"optimizer_states {c.job.optimizer_states} with ZeRO-{c.zero} and optimizer_offload"
            f" {c.optimizer_offload}: only the distributed optimizer on the device has them"
        ),
        "zero 1 and optimizer_offload off, or optimizer_states fp32",
    ),
    FrameworkRule(
        "MLM508",
        "megatron",
        "quantised weights with the optimizer on the host",
        "parse",
        ARGUMENTS,
        lambda c: (
            _is_plan(c)
            & c.job.fp8_param_gather
            & (c.optimizer_offload == 1)
            & (c.fp8_recipe != "delayed")
        ),
        lambda c: (
            f"fp8_param_gather with precision {c.job.precision} and the optimizer on the host:"
            " documented for delayed scaling alone"
        ),
        "fp8_param_gather off, or optimizer_offload off",
    ),
    known_optimizer("MLM426", "megatron", f"{ARGUMENTS}, --optimizer"),
    FrameworkRule(
        "MLM427",
        "megatron",
        "matrices with one home in the tensor-parallel group",
        "parse",
        MUON,
        lambda c: _is_plan(c) & (c.job.muon.tp_mode == "layer-sharded"),
        "muon.tp_mode layer-sharded: no release has it (issue 6676)",
        "muon.tp_mode distributed",
    ),
    FrameworkRule(
        "MLM428",
        "megatron",
        "symmetric products by SYRK",
        "parse",
        MUON,
        lambda c: _is_plan(c) & c.job.muon.use_syrk,
        "muon.use_syrk: --muon-use-syrk came after release 0.19",
        "muon.use_syrk off",
        versions="<0.20",
    ),
    FrameworkRule(
        "MLM429",
        "megatron",
        "whole matrices in shards of their own",
        "parse",
        MUON,
        lambda c: _is_plan(c) & _is_by_matrix(c) & (c.zero == 1) & c.job.muon.param_layout,
        lambda c: (
            f"optimizer {c.job.optimizer} with ZeRO-1 and muon.param_layout on: gradients are"
            " all-reduced before release 0.18"
        ),
        "muon.param_layout off",
        versions="<0.18",
    ),
    FrameworkRule(
        "MLM430",
        "megatron",
        "an optimizer of a later release",
        "parse",
        MUON,
        lambda c: _is_plan(c) & (c.job.optimizer == "soap"),
        "optimizer soap: --optimizer soap came with release 0.18",
        "optimizer muon",
        versions="<0.18",
    ),
    FrameworkRule(
        "MLM431",
        "megatron",
        "reductions beside the backward of Muon without shards",
        "parse",
        MUON,
        lambda c: (
            _is_plan(c)
            & (c.job.optimizer == "muon")
            & (c.zero == 0)
            & (c.dp * c.cp > 1)
            & (c.dp_overlap == 1)
        ),
        "optimizer muon with ZeRO-0: it excludes --overlap-grad-reduce before release 0.18",
        "zero 1, or dp_overlap off",
        versions="<0.18",
    ),
    FrameworkRule(
        NO_FLAG,
        "megatron",
        "attention in fp8",
        "planner",
        TRANSFORMER_CONFIG,
        lambda c: c.job.fp8_attention,
        "fp8_attention: fp8_dot_product_attention has no flag; Megatron-Bridge has the field",
        "framework bridge, or fp8_attention off",
    ),
)
"""Rules over layouts alone, which Megatron-Bridge has as well."""
