"""What NeMo AutoModel does not run of layouts; keys of its recipes are in `keys`.

It shards with FSDP2 over one mesh (pp, dp_replicate, dp_shard, cp, tp); experts are shared out
over all of it but pp. Sources are files of the package `nemo_automodel` 0.7.0. Codes: NAM1xx
degrees and batch, NAM2xx pipeline, NAM3xx experts, NAM4xx data parallelism, NAM5xx precision,
recompute and model.
"""

from collections.abc import Mapping

from costmodels.shapes import ModelShape
from searches.frameworks.case import Bools, Case
from searches.frameworks.common import (
    activations_on_device,
    batch_divides,
    columns_divide,
    degrees_divide,
    degrees_positive,
    dense_without_experts,
    experts_divide,
    heads_divide,
    known_optimizer,
    kv_heads_split,
    master_copy,
    mixer_and_feed,
    narrow_moments,
    one_copy_of_weights,
    optimizer_on_device,
    other_kinds,
    overlap_stays,
    sequence_chunks,
    unsplit_kinds,
    usual_rank_order,
)
from searches.frameworks.rule import FrameworkRule

NAME = "automodel"
MESH = "components/distributed/mesh_utils.py, _create_fsdp2_device_mesh"
SIZES = "components/distributed/mesh_utils.py, _infer_dp_size"
HEADS = "components/distributed/parallelizer.py, validate_tp_mesh"
PLANS = "components/distributed/optimized_tp_plans.py, PARALLELIZE_FUNCTIONS"
MOE_PLANS = "components/moe/parallelizer.py, _resolve_moe_tp_plan"
MOE = "components/moe/parallelizer.py, parallelize_model"
CAPABLE = "_transformers/capabilities.py, validate_for_mesh"
CONTEXT = "components/distributed/context_parallel/sharder.py"
SCHEDULER = "components/training/step_scheduler.py, StepScheduler"
SETUP = "recipes/llm/train_ft.py, TrainFinetuneRecipeForNextTokenPrediction.setup"
PIPELINE = "components/distributed/pipelining/functional.py"
TIED = "components/distributed/pipelining/hf_utils.py, validate_hf_model_for_pipeline_support"
TORCH_SCHEDULES = "torch/distributed/pipelining/schedules.py"
FSDP = "components/distributed/config.py, FSDP2Config"
CHECKPOINTING = "components/distributed/activation_checkpointing.py"

SCHEDULES: Mapping[str, str] = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved": "interleaved1f1b",
    "zb-v": "zbvzerobubble",
}
"""`pp_schedule` by schedule of a plan; torch reads it without its case."""


def micro_batches(c: Case) -> Bools:
    """Return the micro-batches of one pass of the pipeline.

    Of plans those of a step; of a run those of its local batch, which accumulation repeats.
    """
    if not c.settings:
        return c.n_micro
    local = c.setting("step_scheduler.local_batch_size", 1)
    return local // c.setting("distributed.pipeline.pp_microbatch_size", 1)


def _rounds(c: Case) -> Bools:
    """Return in how many rounds an interleaved schedule runs the micro-batches."""
    return micro_batches(c) // c.pp + (micro_batches(c) < c.pp)


def _is_plan(c: Case) -> bool:
    """Tell whether a case is a plan, which we write, and no recipe that somebody has."""
    return not c.settings


def _exchange_unlike(c: Case) -> Bools:
    """Return whether keys and values go round otherwise than its attention sends them."""
    passed, gathered = c.is_exchange("p2p"), c.is_exchange("all-gather")
    return (
        _is_plan(c) & (c.cp > 1) & (((c.ep > 1) & (passed == 0)) | ((c.ep == 1) & (gathered == 0)))
    )


def unstaged_kinds(shape: ModelShape) -> list[str]:
    """Return the kinds of layers whose classes are not cut into stages by their names."""
    return [x for x in other_kinds(shape) if mixer_and_feed(x)[0] not in ("attention", "window")]


def without_parallel_norms(shape: ModelShape) -> bool:
    """Tell whether a model is of no class whose plan has sequence parallelism: Llama's, Qwen's."""
    return shape.norm != "rmsnorm" or not shape.gated or shape.latent or bool(other_kinds(shape))


def _expert_shards(c: Case) -> Bools:
    """Return the ranks that share one expert under expert parallelism, at least 1."""
    ranks = c.dp * c.cp * c.tp // c.ep
    return ranks + (ranks < 1)


def _empty_stages(c: Case) -> Bools:
    return c.of_stages(lambda counts, pp, vpp: pp > 1 and min(counts) == 0)


LAYOUT_RULES: tuple[FrameworkRule, ...] = (
    degrees_positive("NAM100", NAME, SIZES),
    degrees_divide("NAM101", NAME, SIZES),
    heads_divide("NAM102", NAME, HEADS, "start"),
    kv_heads_split("NAM103", NAME, HEADS, "start"),
    columns_divide("NAM104", NAME, PLANS, "planner"),
    FrameworkRule(
        "NAM105",
        NAME,
        "sequence parallelism of a model whose plan has none",
        "planner",
        PLANS,
        lambda c: (c.sp == 1) & (c.tp > 1) & without_parallel_norms(c.model),
        "sequence parallelism: of the models that we write, the plans of Llama and Qwen alone"
        " cut activations between layers by tokens",
        "sp off",
    ),
    sequence_chunks("NAM106", NAME, f"{CONTEXT}, round_robin_local_indices", "planner"),
    FrameworkRule(
        "NAM107",
        NAME,
        "another exchange of keys and values",
        "planner",
        f"{CONTEXT}; components/moe/parallelizer.py, apply_cp",
        _exchange_unlike,
        lambda c: (
            f"cp_comm {c.exchange_name}: scaled dot products of PyTorch gather keys and values,"
            " Transformer Engine under expert parallelism passes them round"
        ),
        lambda c: f"cp_comm {'p2p' if c.ep > 1 else 'all-gather'}",
    ),
    usual_rank_order("NAM108", NAME, MESH),
    FrameworkRule(
        "NAM109",
        NAME,
        "context parallelism of other layers than attention over all keys",
        "planner",
        CONTEXT,
        lambda c: (c.cp > 1) & bool(other_kinds(c.model)),
        lambda c: (
            f"cp {c.cp} with layers of {', '.join(other_kinds(c.model))}: not written, as each"
            " class has its own way"
        ),
        "cp 1",
    ),
    FrameworkRule(
        "NAM110",
        NAME,
        "tensor parallelism of state-space and linear layers",
        "planner",
        PLANS,
        lambda c: (c.tp > 1) & bool(unsplit_kinds(c.model)),
        lambda c: f"tp {c.tp} with layers of {', '.join(unsplit_kinds(c.model))}: left whole",
        "tp 1",
    ),
    batch_divides("NAM111", NAME, SCHEDULER, "start"),
    FrameworkRule(
        "NAM112",
        NAME,
        "tensor parallelism or a pipeline of a model with learned positions",
        "start",
        CAPABLE,
        lambda c: (c.model.positions == "learned") & ((c.tp > 1) | (c.pp > 1)),
        lambda c: (
            f"tp {c.tp} and pp {c.pp} with learned positions: GPT-2's class has no plan for either"
        ),
        "tp 1 and pp 1",
    ),
    FrameworkRule(
        "NAM201",
        NAME,
        "schedule that is not written",
        "planner",
        f"{TORCH_SCHEDULES}, get_schedule_class; {PIPELINE}, split_model_into_stages",
        lambda c: c.is_schedule("zb-h1", "dualpipe", "dualpipe-v"),
        lambda c: (
            f"schedule {c.schedule_name}: stages stand in a loop, or in the V of ZBVZeroBubble"
        ),
        "schedule 1f1b or interleaved; zb-v with vpp 2",
    ),
    FrameworkRule(
        "NAM202",
        NAME,
        "tied embeddings in a pipeline",
        "start",
        TIED,
        lambda c: (c.pp > 1) & c.model.tied,
        lambda c: f"tied embeddings with pp {c.pp}: not supported",
        "pp 1, or untied embeddings",
    ),
    FrameworkRule(
        "NAM203",
        NAME,
        "fewer micro-batches than stages",
        "start",
        SETUP,
        lambda c: (c.pp > 1) & (micro_batches(c) < c.pp),
        lambda c: f"pipeline: {micro_batches(c)} micro-batches for {c.pp} stages",
        "a smaller mbs, or a larger global batch",
        batches=True,
    ),
    FrameworkRule(
        "NAM204",
        NAME,
        "micro-batches that do not divide into rounds",
        "start",
        f"{TORCH_SCHEDULES}, ScheduleInterleaved1F1B",
        lambda c: (c.pp > 1) & c.is_schedule("interleaved") & (micro_batches(c) % _rounds(c) > 0),
        lambda c: (
            f"interleaved schedule: {micro_batches(c)} micro-batches do not divide into"
            f" {_rounds(c)} rounds"
        ),
        "micro-batches in multiples of pp",
        batches=True,
    ),
    FrameworkRule(
        "NAM205",
        NAME,
        "stage without a layer",
        "planner",
        f"{PIPELINE}, generate_hf_model_fqn_per_model_part",
        _empty_stages,
        "stages: one has no layer, which its own split never makes",
        "a layer in every stage",
    ),
    FrameworkRule(
        "NAM206",
        NAME,
        "stages of layers that are not cut by their names",
        "planner",
        CAPABLE,
        lambda c: (c.pp > 1) & bool(unstaged_kinds(c.model)),
        lambda c: f"pp {c.pp} with layers of {', '.join(unstaged_kinds(c.model))}: not written",
        "pp 1",
    ),
    dense_without_experts("NAM301", NAME, CAPABLE, "start"),
    experts_divide("NAM302", NAME, MOE, "start"),
    FrameworkRule(
        "NAM303",
        NAME,
        "ep does not divide the ranks of a stage",
        "start",
        MESH,
        lambda c: (c.ep > 1) & (c.dp * c.cp * c.tp % c.ep > 0),
        lambda c: (
            f"expert parallelism: ep {c.ep} does not divide {c.dp * c.cp * c.tp} ranks"
            " (dp x cp x tp)"
        ),
        "an ep that divides them",
    ),
    FrameworkRule(
        "NAM304",
        NAME,
        "experts with tensor parallelism",
        "planner",
        MOE_PLANS,
        lambda c: (c.model.n_experts > 0) & (c.tp > 1),
        lambda c: f"experts with tp {c.tp}: needs a plan for the class, and trained weights",
        "tp 1",
    ),
    FrameworkRule(
        "NAM305",
        NAME,
        "tensor parallelism inside experts",
        "planner",
        MOE,
        lambda c: c.etp > 1,
        lambda c: f"etp {c.etp}: experts are whole",
        "etp 1",
    ),
    FrameworkRule(
        "NAM306",
        NAME,
        "replicas of shards beside expert parallelism",
        "planner",
        MESH,
        lambda c: (c.zero > 0) & (c.ep > 1) & (c.dp_shard < c.dp * c.cp),
        lambda c: (
            f"ZeRO groups of {c.dp_shard} with ep {c.ep}: experts are sharded over replicas too"
        ),
        "ZeRO groups over all ranks",
    ),
    FrameworkRule(
        "NAM307",
        NAME,
        "experts that FSDP2 pads",
        "planner",
        "components/distributed/parallelizer.py, apply_fsdp2_sharding_recursively",
        lambda c: (
            (c.model.n_experts > 0)
            & (c.ep == 1)
            & (c.zero > 0)
            & (c.model.n_experts % c.dp_shard > 0)
        ),
        lambda c: (
            f"experts: {c.model.n_experts} in one tensor, which FSDP2 cuts by experts over"
            f" {c.dp_shard} ranks: most of its shards would be padding"
        ),
        "ZeRO groups that divide the experts, or ep above 1",
    ),
    FrameworkRule(
        "NAM308",
        NAME,
        "experts that their shards do not divide",
        "planner",
        "components/moe/parallelizer.py, _moe_shard_placement",
        lambda c: (c.ep > 1) & (c.model.hidden % _expert_shards(c) > 0),
        lambda c: (
            f"experts: {_expert_shards(c)} ranks share each, and do not divide its side of"
            f" {c.model.hidden}"
        ),
        "a larger ep, or fewer ranks",
    ),
    FrameworkRule(
        "NAM401",
        NAME,
        "gradients that are not sharded",
        "planner",
        f"{FSDP}.defer_fsdp_grad_sync",
        lambda c: (c.zero < 2) & (c.pp == 1) & (c.dp * c.cp > 1),
        lambda c: f"ZeRO-{c.zero}: FSDP2 shards weights, gradients and optimizer",
        "zero 2, or zero 3",
    ),
    FrameworkRule(
        "NAM402",
        NAME,
        "sharded gradients in a pipeline",
        "planner",
        f"{PIPELINE}, pipeline_model",
        lambda c: (c.zero >= 2) & (c.pp > 1),
        lambda c: (
            f"ZeRO-{c.zero} with a pipeline of {c.pp}: weights stay gathered and gradients whole"
            " until the last micro-batch"
        ),
        "zero 1, or pp 1",
    ),
    FrameworkRule(
        "NAM403",
        NAME,
        "replicas of all in a pipeline",
        "planner",
        MESH,
        lambda c: (c.zero == 0) & (c.pp > 1) & (c.dp * c.cp > 1),
        lambda c: f"ZeRO-0 over {c.dp} replicas with pp {c.pp}: DDP goes alone",
        "zero 1",
    ),
    FrameworkRule(
        "NAM404",
        NAME,
        "ZeRO groups that do not hold whole contexts",
        "planner",
        MESH,
        lambda c: (c.zero > 0) & (c.dp_shard % c.cp > 0),
        lambda c: f"ZeRO groups of {c.dp_shard}: no multiple of cp {c.cp}",
        "groups of a multiple of cp",
    ),
    FrameworkRule(
        "NAM405",
        NAME,
        "replicas alone",
        "start",
        MESH,
        lambda c: (c.zero > 0) & (c.dp > 1) & (c.dp_shard <= c.cp),
        lambda c: (
            f"ZeRO groups of {c.dp_shard} with cp {c.cp}: dp_replicate_size has to be below"
            f" dp_size {c.dp}"
        ),
        "larger ZeRO groups",
    ),
    optimizer_on_device("NAM406", NAME, f"{FSDP}.offload_policy", "offload_policy"),
    activations_on_device("NAM407", NAME, CHECKPOINTING),
    one_copy_of_weights("NAM408", NAME, FSDP),
    overlap_stays("NAM409", NAME, FSDP),
    known_optimizer("NAM410", NAME, "components/optim/optimizer.py, build_optimizer_config"),
    FrameworkRule(
        "NAM501",
        NAME,
        "precision that is not written",
        "planner",
        f"{FSDP}.mp_policy",
        lambda c: c.job.base_precision not in ("bf16", "fp32"),
        lambda c: f"precision {c.job.label}: written in bf16 and fp32 alone",
        "precision bf16",
    ),
    FrameworkRule(
        "NAM502",
        NAME,
        "recompute of modules",
        "planner",
        CHECKPOINTING,
        lambda c: c.is_recompute("selective"),
        "selective recompute: of its own kind, by operators; whole layers are written",
        "recompute full",
    ),
    FrameworkRule(
        "NAM503",
        NAME,
        "some layers recomputed",
        "planner",
        CHECKPOINTING,
        lambda c: (
            c.is_recompute("full")
            & (c.recompute_layers > 0)
            & (c.recompute_layers < c.longest_stage)
        ),
        lambda c: f"recompute of {c.recompute_layers} layers: all or none",
        "all of them",
    ),
    FrameworkRule(
        "NAM504",
        NAME,
        "parts of a model that are not written",
        "planner",
        "_transformers/auto_model.py, from_config",
        lambda c: (
            (c.model.mtp_layers > 0) | (c.model.capacity_factor > 0) | c.model.forced_balance
        ),
        "model: multi-token prediction, a capacity of experts or routing forced to balance",
        "mtp_layers 0, no capacity_factor, forced_balance off",
    ),
    narrow_moments("NAM505", NAME, "components/optim/optimizer.py"),
    master_copy("NAM506", NAME, FSDP),
)
"""Rules over layouts alone."""
