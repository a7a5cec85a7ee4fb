"""Layouts that DeepSpeed does not run; the keys of its JSON are in `keys`.

Codes: DSP1xx degrees and batch, DSP2xx pipeline, DSP3xx experts, DSP4xx ZeRO, DSP5xx precision.
"""

from costmodels.axes import RECOMPUTE_MODULES
from costmodels.plans import ZERO_BUBBLE, Layout
from costmodels.shapes import ModelShape
from searches.frameworks.case import Bools, Case
from searches.frameworks.common import (
    batch_divides,
    columns_divide,
    degrees_divide,
    degrees_positive,
    dense_without_experts,
    experts_divide,
    heads_divide,
    inputs_alone_leave,
    known_optimizer,
    kv_heads_split_or_replicated,
    master_copy,
    mixer_and_feed,
    narrow_moments,
    other_kinds,
    plain_schedule,
    tower_on_one_rank,
    unsplit_kinds,
    usual_rank_order,
    whole_sequence_kinds,
)
from searches.frameworks.rule import FrameworkRule

ENGINE = "deepspeed/runtime/engine.py, DeepSpeedEngine"
CONFIG = "deepspeed/runtime/config.py, DeepSpeedConfig"
AUTO_TP = "deepspeed/module_inject/auto_tp.py, AutoTP"
AUTO_EP = "deepspeed/module_inject/auto_ep_folding.py"
ULYSSES = "deepspeed/runtime/sequence_parallel/ulysses_sp.py, UlyssesSPAttentionHF"
PIPELINE = "deepspeed/runtime/pipe/module.py, PipelineModule"


def pipeline_partition(layout: Layout) -> str:
    """Return the PipelineModule `partition_method` that gives the plan's stages, or ''."""
    return partition_of(layout.stage_layers, layout.pp)


def partition_of(counts: tuple[int, ...], pp: int) -> str:
    """Return the `partition_method` that gives `counts` layers per stage, or ''.

    Counted over a list of embedding, blocks and head: `type:` balances the blocks alone,
    `uniform` cuts the whole list (deepspeed/runtime/pipe/module.py, _partition_layers).
    """
    if len(set(counts)) == 1:
        return "type:block"
    share, rest = divmod(sum(counts) + 2, pp)
    cut = [share + (i < rest) for i in range(pp)]
    cut[0] -= 1
    cut[-1] -= 1
    return "uniform" if tuple(cut) == counts else ""


FOUND_BESIDE = ("attention", "window", "chunk", "gdn", "kda", "linear", "sparse")
"""Mixers of classes whose experts AutoEP has a preset for."""


def unfound_experts(shape: ModelShape) -> list[str]:
    """Return the kinds of layers of a class whose experts AutoEP does not find."""
    kinds = other_kinds(shape) if shape.n_experts else []
    return [kind for kind in kinds if mixer_and_feed(kind)[0] not in FOUND_BESIDE]


def _auto_ep(c: Case) -> Bools:
    """Tell whether AutoEP replaces the experts, with ep 1 too: in all plans, in runs if asked."""
    if c.settings:
        return bool(c.setting("expert_parallel.enabled", False))
    return c.model.n_experts > 0 and not unfound_experts(c.model)


def _uncut(counts: tuple[int, ...], pp: int, vpp: int) -> bool:
    return pp > 1 and vpp == 1 and not partition_of(counts, pp)


LAYOUT_RULES: tuple[FrameworkRule, ...] = (
    degrees_positive("DSP100", "deepspeed", f"{CONFIG}; deepspeed/utils/groups.py"),
    degrees_divide("DSP101", "deepspeed", f"{CONFIG}; deepspeed/utils/groups.py"),
    heads_divide("DSP102", "deepspeed", AUTO_TP, "planner"),
    kv_heads_split_or_replicated("DSP103", "deepspeed", AUTO_TP, when="planner"),
    columns_divide("DSP104", "deepspeed", AUTO_TP, "planner"),
    FrameworkRule(
        "DSP105",
        "deepspeed",
        "tp above the KV heads",
        "planner",
        AUTO_TP,
        lambda c: c.tp > c.model.kv_heads,
        lambda c: (
            f"tp {c.tp} over {c.model.kv_heads} KV heads: AutoTP leaves the other ranks idle"
            " in attention"
        ),
        lambda c: f"tp {c.model.kv_heads}",
    ),
    FrameworkRule(
        "DSP106",
        "deepspeed",
        "Megatron's sequence parallelism",
        "planner",
        AUTO_TP,
        lambda c: (c.sp == 1) & (c.tp > 1),
        "sequence parallelism: DeepSpeed's AutoTP has no Megatron-style sequence parallelism",
        "sp off",
    ),
    FrameworkRule(
        "DSP107",
        "deepspeed",
        "context parallelism by a ring or all-gathers",
        "planner",
        ULYSSES,
        lambda c: (c.cp > 1) & (c.is_exchange("a2a") == 0),
        lambda c: (
            f"context parallelism by {c.exchange_name}: DeepSpeed has all-to-alls alone (Ulysses)"
        ),
        "cp 1",
    ),
    FrameworkRule(
        "DSP109",
        "deepspeed",
        "attention heads do not divide by the ranks of Ulysses",
        "start",
        ULYSSES,
        lambda c: c.is_exchange("a2a") & (c.model.heads % c.cp > 0),
        lambda c: f"Ulysses: {c.model.heads} heads do not divide by cp {c.cp}",
        "a cp that divides the heads",
    ),
    FrameworkRule(
        "DSP110",
        "deepspeed",
        "KV heads neither divide by the ranks of Ulysses nor divide them",
        "start",
        ULYSSES,
        lambda c: (
            c.is_exchange("a2a") & (c.model.kv_heads % c.cp > 0) & (c.cp % c.model.kv_heads > 0)
        ),
        lambda c: (
            f"Ulysses: {c.model.kv_heads} KV heads neither divide by cp {c.cp} nor divide it"
        ),
        "a cp that divides the KV heads or is a multiple of them",
    ),
    FrameworkRule(
        "DSP111",
        "deepspeed",
        "the sequence does not divide by the ranks of Ulysses",
        "first step",
        ULYSSES,
        lambda c: c.is_exchange("a2a") & (c.job.seq_len % c.cp > 0),
        lambda c: f"Ulysses: {c.job.seq_len} tokens do not divide by cp {c.cp}",
        "another cp or sequence length",
    ),
    FrameworkRule(
        "DSP112",
        "deepspeed",
        "Ulysses with tensor parallelism or a pipeline",
        "planner",
        ULYSSES,
        lambda c: (c.cp > 1) & ((c.tp > 1) | (c.pp > 1)),
        lambda c: (
            f"cp {c.cp} with tp {c.tp} and pp {c.pp}: Ulysses builds its groups over all ranks"
        ),
        "cp 1, or tp 1 and pp 1",
    ),
    usual_rank_order("DSP113", "deepspeed", "deepspeed/utils/groups.py"),
    FrameworkRule(
        "DSP114",
        "deepspeed",
        "replicated ZeRO groups",
        "planner",
        "deepspeed/runtime/config.py, _reject_removed_config_keys (MiCS)",
        lambda c: (c.zero > 0) & (c.dp_shard != c.dp * c.cp),
        lambda c: (
            f"ZeRO groups of {c.dp_shard}: MiCS was removed, and hpZ replicates the weights alone"
        ),
        "groups of all data-parallel ranks",
    ),
    FrameworkRule(
        "DSP116",
        "deepspeed",
        "tensor parallelism with a whole output head",
        "planner",
        f"{AUTO_TP}; deepspeed/module_inject/layers.py",
        lambda c: c.tp > 1,
        lambda c: (
            f"tp {c.tp}: plans split the head and its logits over tp (vocab_parallel_lm_head),"
            " which this release does not"
        ),
        "tp 1",
        versions="<0.19.8",
    ),
    FrameworkRule(
        "DSP117",
        "deepspeed",
        "Ulysses in layers that are no causal attention",
        "first step",
        ULYSSES,
        lambda c: (c.cp > 1) & bool(whole_sequence_kinds(c.model)),
        lambda c: (
            f"cp {c.cp} with layers of {', '.join(whole_sequence_kinds(c.model))}: Ulysses"
            " exchanges heads in causal attention alone"
        ),
        "cp 1",
    ),
    FrameworkRule(
        "DSP118",
        "deepspeed",
        "tensor parallelism of encoders, state-space and linear layers",
        "planner",
        AUTO_TP,
        lambda c: (c.tp > 1) & bool(unsplit_kinds(c.model)),
        lambda c: (
            f"tp {c.tp} with layers of {', '.join(unsplit_kinds(c.model))}: AutoTP splits"
            " neither their heads nor sublayers alone"
        ),
        "tp 1",
    ),
    tower_on_one_rank("DSP209", "deepspeed", f"{AUTO_TP}; {ULYSSES}; {PIPELINE}"),
    batch_divides("DSP115", "deepspeed", f"{CONFIG}._batch_assertion"),
    FrameworkRule(
        "DSP201",
        "deepspeed",
        "GPipe",
        "planner",
        "deepspeed/runtime/pipe/schedule.py",
        lambda c: c.is_schedule("gpipe"),
        "schedule: DeepSpeed's PipelineModule runs 1F1B, not GPipe",
        "schedule 1f1b",
    ),
    FrameworkRule(
        "DSP202",
        "deepspeed",
        "zero-bubble schedule",
        "planner",
        "deepspeed/runtime/pipe/schedule.py",
        lambda c: c.is_schedule(*ZERO_BUBBLE),
        lambda c: f"schedule {c.schedule_name}: DeepSpeed's PipelineModule runs 1F1B",
        plain_schedule,
    ),
    FrameworkRule(
        "DSP203",
        "deepspeed",
        "tensor parallelism in a pipeline",
        "planner",
        PIPELINE,
        lambda c: (c.tp > 1) & (c.pp > 1),
        lambda c: (
            f"tp {c.tp} with pp {c.pp}: DeepSpeed's pipeline brings no tensor parallelism of"
            " its own"
        ),
        "tp 1 or pp 1",
    ),
    FrameworkRule(
        "DSP204",
        "deepspeed",
        "interleaved schedule",
        "planner",
        PIPELINE,
        lambda c: c.vpp > 1,
        lambda c: (
            f"interleaved schedule: DeepSpeed's pipeline has one stage per rank, not {c.vpp}"
        ),
        "vpp 1",
    ),
    FrameworkRule(
        "DSP205",
        "deepspeed",
        "stages that no partition method gives",
        "planner",
        PIPELINE,
        lambda c: c.of_stages(_uncut),
        lambda c: (
            f"stages of {min(c.counts)} to {max(c.counts)} layers: no partition_method of"
            " PipelineModule gives them"
        ),
        "an even split",
    ),
    FrameworkRule(
        "DSP206",
        "deepspeed",
        "some layers of a stage recomputed",
        "planner",
        PIPELINE,
        lambda c: (
            (c.pp > 1)
            & c.is_recompute("full")
            & (c.recompute_layers > 0)
            & (c.recompute_layers < c.longest_stage)
        ),
        lambda c: (
            f"recompute of {c.recompute_layers} layers a stage: PipelineModule recomputes"
            " all layers or none"
        ),
        "all of them",
    ),
    FrameworkRule(
        "DSP207",
        "deepspeed",
        "modules recomputed other than the attention core",
        "planner",
        "deepspeed/runtime/activation_checkpointing/checkpointing.py, checkpoint",
        lambda c: c.recomputes(*RECOMPUTE_MODULES[1:]),
        "recompute of modules: the model code calls checkpoint, no key names what",
        "recompute full",
    ),
    FrameworkRule(
        "DSP208",
        "deepspeed",
        "a pipeline of layers of several kinds",
        "planner",
        PIPELINE,
        lambda c: (c.pp > 1) & bool(other_kinds(c.model)),
        lambda c: (
            f"pp {c.pp} with layers of {', '.join(other_kinds(c.model))}: the stages of the"
            " training program are layers of one class, without masks"
        ),
        "pp 1, or framework megatron",
    ),
    dense_without_experts("DSP301", "deepspeed", AUTO_EP, "planner"),
    FrameworkRule(
        "DSP302",
        "deepspeed",
        "experts in a pipeline",
        "planner",
        "deepspeed/module_inject/auto_ep.py, AutoEP",
        lambda c: (c.model.n_experts > 0) & (c.pp > 1),
        lambda c: (
            f"experts with a pipeline of {c.pp}: AutoEP looks for them in a Hugging Face"
            " model, which a PipelineModule is not"
        ),
        "pp 1",
    ),
    experts_divide("DSP303", "deepspeed", "deepspeed/module_inject/auto_ep_config.py", "start"),
    FrameworkRule(
        "DSP304",
        "deepspeed",
        "expert-parallel ranks do not divide a pipeline stage",
        "start",
        f"{AUTO_EP}, build_folding_spec",
        lambda c: (c.ep > 1) & (c.n_devices % (c.pp * c.ep * c.etp) > 0),
        lambda c: (
            f"expert parallelism: ep {c.ep} x etp {c.etp} do not divide"
            f" {c.n_devices // c.pp} ranks"
        ),
        "an ep that divides the ranks of a stage",
    ),
    FrameworkRule(
        "DSP305",
        "deepspeed",
        "tensor parallelism inside experts",
        "start",
        f"{AUTO_EP}, validate_folding_global",
        lambda c: (c.model.n_experts > 0) & (c.etp > 1),
        lambda c: f"etp {c.etp}: reserved in AutoEP, not supported",
        "etp 1",
    ),
    FrameworkRule(
        "DSP306",
        "deepspeed",
        "AutoEP and AutoTP in a pipeline or with Ulysses",
        "start",
        f"{AUTO_EP}, validate_folding_global",
        lambda c: (c.ep > 1) & (c.tp > 1) & ((c.pp > 1) | (c.cp > 1)),
        lambda c: (
            f"ep {c.ep} and tp {c.tp} with pp {c.pp} and cp {c.cp}: AutoEP folds over"
            " AutoTP without them"
        ),
        "tp 1",
    ),
    FrameworkRule(
        "DSP307",
        "deepspeed",
        "AutoEP with ZeRO-3 and Ulysses",
        "start",
        f"{ENGINE}._validate_zero3_moe_compatibility",
        lambda c: _auto_ep(c) & (c.zero == 3) & (c.cp > 1),
        lambda c: f"ep {c.ep} with ZeRO-3 and cp {c.cp}: AutoEP has no sequence parallelism there",
        "zero 2, or cp 1",
    ),
    FrameworkRule(
        "DSP308",
        "deepspeed",
        "experts with tp and without ep",
        "start",
        f"{AUTO_EP}, validate_folding_global",
        lambda c: _auto_ep(c) & (c.model.n_experts > 0) & (c.tp > 1) & (c.ep == 1),
        lambda c: f"experts with tp {c.tp} and ep 1: AutoEP over AutoTP needs ep above 1",
        "tp 1, or an ep above 1",
    ),
    FrameworkRule(
        "DSP309",
        "deepspeed",
        "capacity of experts",
        "planner",
        "deepspeed/module_inject/auto_ep_layer.py, AutoEPMoELayer",
        lambda c: (c.model.n_experts > 0) & (c.model.capacity_factor > 0),
        "capacity_factor: AutoEP drops no tokens and pads none",
        "no capacity_factor",
    ),
    FrameworkRule(
        "DSP310",
        "deepspeed",
        "experts before AutoEP",
        "planner",
        "deepspeed/module_inject/auto_ep.py, AutoEP",
        lambda c: c.model.n_experts > 0,
        "experts: files spread them by expert_parallel (AutoEP), which this release lacks",
        "",
        versions="<0.19.2",
    ),
    FrameworkRule(
        "DSP311",
        "deepspeed",
        "routing that is forced to balance",
        "planner",
        "deepspeed/module_inject/auto_ep_layer.py, AutoEPMoELayer",
        lambda c: (c.model.n_experts > 0) & c.model.forced_balance,
        "forced_balance: AutoEP routes as the model does",
        "forced_balance off",
    ),
    FrameworkRule(
        "DSP312",
        "deepspeed",
        "experts that AutoEP does not find",
        "planner",
        "deepspeed/module_inject/auto_ep_presets",
        lambda c: (c.ep > 1) & bool(unfound_experts(c.model)),
        lambda c: (
            f"ep {c.ep} with layers of {', '.join(unfound_experts(c.model))}: AutoEP has no"
            " preset for their classes, and leaves the experts where they are"
        ),
        "ep 1",
    ),
    FrameworkRule(
        "DSP401",
        "deepspeed",
        "ZeRO 2 or 3 in a pipeline",
        "start",
        "deepspeed/runtime/pipe/engine.py, PipelineEngine",
        lambda c: (c.zero >= 2) & (c.pp > 1),
        lambda c: (
            f"ZeRO-{c.zero} with a pipeline of {c.pp}: refused by DeepSpeed's PipelineEngine"
        ),
        "zero 1, or pp 1",
    ),
    FrameworkRule(
        "DSP402",
        "deepspeed",
        "offloaded optimizer without ZeRO",
        "planner",
        "deepspeed/runtime/zero/offload_config.py",
        lambda c: (c.optimizer_offload == 1) & (c.zero == 0) & (c.dp * c.cp > 1),
        "optimizer on the host with ZeRO-0: offload_optimizer is a setting of ZeRO",
        "zero 1",
    ),
    FrameworkRule(
        "DSP403",
        "deepspeed",
        "offloaded optimizer in a pipeline",
        "planner",
        "deepspeed/runtime/pipe/engine.py, PipelineEngine",
        lambda c: (c.optimizer_offload == 1) & (c.pp > 1),
        lambda c: (
            f"optimizer on the host with a pipeline of {c.pp}: PipelineEngine reduces the"
            " gradients itself, which offload_optimizer does not see"
        ),
        "pp 1, or optimizer_offload off",
    ),
    FrameworkRule(
        "DSP404",
        "deepspeed",
        "offloaded optimizer beside AutoEP and AutoTP",
        "start",
        "deepspeed/module_inject/auto_ep_folding.py, validate_folding_global",
        lambda c: (c.optimizer_offload == 1) & (c.ep > 1) & (c.tp > 1),
        lambda c: (
            f"optimizer on the host with ep {c.ep} and tp {c.tp}: AutoEP folds over AutoTP"
            " without offload"
        ),
        "tp 1, or optimizer_offload off",
    ),
    FrameworkRule(
        "DSP405",
        "deepspeed",
        "overlap that has no key",
        "planner",
        "deepspeed/runtime/zero/config.py, overlap_comm",
        lambda c: (c.dp_overlap == 0) & ((c.zero == 0) | (c.pp > 1)),
        lambda c: (
            f"dp_overlap off with zero {c.zero} and pp {c.pp}: overlap_comm is a key of ZeRO"
            " outside a pipeline"
        ),
        "dp_overlap on",
    ),
    inputs_alone_leave(
        "DSP406",
        "deepspeed",
        "deepspeed/runtime/activation_checkpointing/checkpointing.py",
        "activation_checkpointing.cpu_checkpointing",
    ),
    FrameworkRule(
        "DSP407",
        "deepspeed",
        "activations on the host in a pipeline",
        "planner",
        "deepspeed/runtime/activation_checkpointing/offload_activations.py",
        lambda c: (c.activation_offload_layers > 0) & (c.pp > 1),
        lambda c: (
            f"activations on the host with a pipeline of {c.pp}: inputs of several"
            " micro-batches leave there, which has no price"
        ),
        "pp 1, or activation_offload off",
    ),
    FrameworkRule(
        "DSP408",
        "deepspeed",
        "a second copy of the weights across tensor-parallel ranks",
        "planner",
        "deepspeed/utils/groups.py, _create_zero_param_parallel_group",
        lambda c: (c.hpz > 1) & (c.tp > 1),
        lambda c: (
            f"hpz {c.hpz} with tp {c.tp}: its groups are ranks with consecutive numbers,"
            " which hold different slices of the weights"
        ),
        "tp 1, or hpz 1",
    ),
    FrameworkRule(
        "DSP409",
        "deepspeed",
        "AutoEP with a second copy of the weights",
        "start",
        f"{ENGINE}._validate_zero3_moe_compatibility",
        lambda c: _auto_ep(c) & (c.zero == 3) & (c.hpz > 1),
        lambda c: f"hpz {c.hpz} with experts: AutoEP with ZeRO-3 excludes hpZ",
        "hpz 1",
    ),
    FrameworkRule(
        "DSP501",
        "deepspeed",
        "fp8 training",
        "planner",
        CONFIG,
        lambda c: c.job.precision.startswith(("fp8", "nvfp4")),
        lambda c: f"precision {c.job.precision}: DeepSpeed has no fp8 training of its own",
        "precision bf16",
    ),
    narrow_moments("DSP505", "deepspeed", CONFIG),
    master_copy("DSP506", "deepspeed", CONFIG),
    known_optimizer("DSP416", "deepspeed", "deepspeed/runtime/config.py, DEEPSPEED_OPTIMIZERS"),
    FrameworkRule(
        "DSP502",
        "deepspeed",
        "fp32 gradients without ZeRO",
        "planner",
        f"{ENGINE}._do_optimizer_sanity_check",
        # With one rank an optimizer on the host is written as ZeRO 1.
        lambda c: (
            (c.job.base_precision in ("bf16", "fp16")) & (c.zero == 0) & (c.optimizer_offload == 0)
        ),
        lambda c: f"precision {c.job.precision} with ZeRO-0: DeepSpeed has no fp32 gradients then",
        lambda c: f"zero 1, or precision {c.job.precision}-grads",
    ),
    FrameworkRule(
        "DSP503",
        "deepspeed",
        "bf16 without ZeRO in a pipeline",
        "planner",
        f"{ENGINE}._do_optimizer_sanity_check",
        lambda c: (c.job.base_precision == "bf16-grads") & (c.zero == 0) & (c.pp > 1),
        "bf16 with ZeRO-0 in a pipeline: DeepSpeed shards the optimizer there",
        "zero 1",
    ),
)
"""Rules over layouts alone."""
