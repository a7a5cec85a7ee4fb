"""What DeepSpeed refuses. Codes: DSP1xx degrees, DSP2xx pipeline, DSP3xx ZeRO and precision."""

from costmodels.plans import ZERO_BUBBLE, Layout
from searches.frameworks.common import (
    dense_without_experts,
    heads_divide,
    kv_heads_fit,
    plain_schedule,
    usual_rank_order,
    whole_zero_groups,
)
from searches.frameworks.rule import FrameworkRule

ENGINE = "deepspeed/runtime/engine.py"
AUTO_TP = "deepspeed/module_inject/auto_tp.py"
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


def _uncut(counts: tuple[int, ...], pp: int, vpp: int) -> bool:
    return pp > 1 and vpp == 1 and not partition_of(counts, pp)


LAYOUT_RULES = (
    heads_divide("DSP101", "deepspeed", AUTO_TP),
    kv_heads_fit("DSP102", "deepspeed", AUTO_TP),
    FrameworkRule(
        "DSP103", "deepspeed", "tp above the KV heads", "planner", AUTO_TP,
        lambda c: c.tp > c.model.kv_heads,
        lambda c: f"tp {c.tp} over {c.model.kv_heads} KV heads: AutoTP leaves the other ranks idle"
        " in attention",
        lambda c: f"tp {c.model.kv_heads}",
    ),
    FrameworkRule(
        "DSP104", "deepspeed", "Megatron's sequence parallelism", "planner", AUTO_TP,
        lambda c: (c.sp == 1) & (c.tp > 1),
        lambda c: "sequence parallelism: DeepSpeed's AutoTP has no Megatron-style sequence"
        " parallelism",
        "sp off",
    ),
    FrameworkRule(
        "DSP105", "deepspeed", "context parallelism by a ring or all-gathers", "planner",
        "deepspeed/runtime/sequence_parallel/ulysses_sp.py",
        lambda c: (c.cp > 1) & (c.is_exchange("a2a") == 0),
        lambda c: f"context parallelism by {c.exchange_name}: DeepSpeed has all-to-alls alone"
        " (Ulysses)",
        "cp 1",
    ),
    FrameworkRule(
        "DSP106", "deepspeed", "Ulysses without a training script for it", "planner",
        "deepspeed/runtime/sequence_parallel/ulysses_sp.py",
        lambda c: (c.cp > 1) & c.is_exchange("a2a"),
        lambda c: "context parallelism by a2a: Ulysses is set up in the training script (sequence"
        " ranks, wrapped attention and data loader), which no configuration says",
        "cp 1",
    ),
    usual_rank_order("DSP107", "deepspeed"),
    whole_zero_groups("DSP108", "deepspeed"),
    dense_without_experts("DSP109", "deepspeed", "deepspeed/module_inject/auto_ep_folding.py"),
    FrameworkRule(
        "DSP110", "deepspeed", "experts", "planner", "deepspeed/moe/layer.py",
        lambda c: c.model.n_experts > 0,
        lambda c: "experts: DeepSpeed's expert layers (deepspeed.moe) are written into the model's"
        " own code, which no configuration says",
        "Megatron-LM",
    ),
    FrameworkRule(
        "DSP201", "deepspeed", "GPipe", "planner", "deepspeed/runtime/pipe/schedule.py",
        lambda c: c.is_schedule("gpipe"),
        lambda c: "schedule: DeepSpeed's PipelineModule runs 1F1B, not GPipe",
        "schedule 1f1b",
    ),
    FrameworkRule(
        "DSP202", "deepspeed", "zero-bubble schedule", "planner",
        "deepspeed/runtime/pipe/schedule.py",
        lambda c: c.is_schedule(*ZERO_BUBBLE),
        lambda c: f"schedule {c.schedule_name}: DeepSpeed's PipelineModule runs 1F1B",
        plain_schedule,
    ),
    FrameworkRule(
        "DSP203", "deepspeed", "tensor parallelism in a pipeline", "planner", PIPELINE,
        lambda c: (c.tp > 1) & (c.pp > 1),
        lambda c: f"tp {c.tp} with pp {c.pp}: DeepSpeed's pipeline brings no tensor parallelism of"
        " its own",
        "tp 1 or pp 1",
    ),
    FrameworkRule(
        "DSP204", "deepspeed", "interleaved schedule", "planner", PIPELINE,
        lambda c: c.vpp > 1,
        lambda c: "interleaved schedule: DeepSpeed's pipeline has one stage per rank, not"
        f" {c.vpp}",
        "vpp 1",
    ),
    FrameworkRule(
        "DSP205", "deepspeed", "stages that no partition method gives", "planner", PIPELINE,
        lambda c: c.of_stages(_uncut),
        lambda c: f"stages of {min(c.counts)} to {max(c.counts)} layers: no partition_method of"
        " PipelineModule gives them",
        "an even split",
    ),
    FrameworkRule(
        "DSP206", "deepspeed", "some layers of a stage recomputed", "planner", PIPELINE,
        lambda c: (c.pp > 1) & c.is_recompute("full") & (c.recompute_layers > 0)
        & (c.recompute_layers < c.longest_stage),
        lambda c: f"recompute of {c.recompute_layers} layers a stage: PipelineModule recomputes"
        " all layers or none",
        "all of them",
    ),
    FrameworkRule(
        "DSP301", "deepspeed", "ZeRO 2 or 3 in a pipeline", "start",
        "deepspeed/runtime/pipe/engine.py, PipelineEngine",
        lambda c: (c.zero >= 2) & (c.pp > 1),
        lambda c: f"ZeRO-{c.zero} with a pipeline of {c.pp}: refused by DeepSpeed's"
        " PipelineEngine",
        "zero 1, or pp 1",
    ),
    FrameworkRule(
        "DSP302", "deepspeed", "fp8", "planner", "no key of the configuration",
        lambda c: c.fp8_recipe != "",
        lambda c: f"precision {c.job.precision}: DeepSpeed has no fp8 training of its own",
        "precision bf16",
    ),
    FrameworkRule(
        "DSP303", "deepspeed", "fp32 gradients without ZeRO", "planner", ENGINE,
        lambda c: (c.job.precision in ("bf16", "fp16")) & (c.zero == 0),
        lambda c: f"precision {c.job.precision} with ZeRO-0: DeepSpeed has no fp32 gradients then",
        lambda c: f"zero 1, or precision {c.job.precision}-grads",
    ),
    FrameworkRule(
        "DSP304", "deepspeed", "bf16 without ZeRO in a pipeline", "planner", ENGINE,
        lambda c: (c.job.precision == "bf16-grads") & (c.zero == 0) & (c.pp > 1),
        lambda c: "bf16 with ZeRO-0 in a pipeline: DeepSpeed shards the optimizer there",
        "zero 1",
    ),
)  # fmt: skip

RULES: tuple[FrameworkRule, ...] = LAYOUT_RULES
"""All rules of DeepSpeed."""
