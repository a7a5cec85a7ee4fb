"""Layouts that torchtitan does not run; fields of its configuration are in `fields`.

Codes: TTN1xx degrees and batch, TTN2xx pipeline, TTN3xx experts, TTN4xx data parallelism, TTN5xx
precision and model.
"""

from collections.abc import Callable

from costmodels.axes import RECOMPUTE_MODULES
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
    kind_sequence,
    known_optimizer,
    kv_heads_split,
    narrow_moments,
    one_copy_of_weights,
    optimizer_on_device,
    overlap_stays,
    usual_rank_order,
)
from searches.frameworks.rule import FrameworkRule, Words
from searches.frameworks.torchtitan.registered import SDPA, registered_model

MESH = "torchtitan/distributed/parallel_dims.py, ParallelDims"
DECODER = "torchtitan/models/common/decoder.py, Decoder.Config.update_from_config"
TRAINER = "torchtitan/trainer.py, Trainer"
FSDP = "torchtitan/distributed/fsdp.py"
PIPELINE = "torchtitan/distributed/pipeline_parallel.py"
SCHEDULES_PY = "torch/distributed/pipelining/schedules.py"
STAGE = "torch/distributed/pipelining/stage.py, backward_maybe_with_nosync"


def _divisor(c: Case) -> Bools:
    """Return what the tokens of a sequence divide by: tp with sequence parallelism, 2 cp."""
    over_tp = (c.sp == 0) + c.tp * (c.sp == 1)
    return over_tp * ((c.cp == 1) + 2 * c.cp * (c.cp > 1))


def _shard_ranks(c: Case) -> Bools:
    """Return the ranks that FSDP shards over: a ZeRO group, the cp ranks alone without ZeRO."""
    return c.dp_shard * (c.zero > 0) + c.cp * (c.zero == 0)


def _expert_ranks(c: Case) -> Bools:
    """Return the ranks that FSDP shards one expert-parallel share over, at least 1."""
    ranks = _shard_ranks(c) * (c.tp * (c.ep > 1) + (c.ep == 1)) // c.ep
    return ranks + (ranks < 1)


def _cuts_inside(c: Case) -> Bools:
    """Return whether FSDP cuts inside experts, as it has more ranks than there are experts.

    Without ep torchtitan counts the whole mesh, replicas and tp ranks too.
    """
    ranks = _expert_ranks(c) * c.ep * (c.ep > 1) + c.dp * c.cp * c.tp * (c.ep == 1)
    return (c.model.n_experts > 0) & (ranks > c.model.n_experts)


def _uneven_inside(c: Case) -> Bools:
    """Return whether the sides of an expert's matrices do not divide by its FSDP ranks."""
    ranks, width = _expert_ranks(c), c.model.expert_ffn
    of_tp = c.tp * (c.ep == 1) + (c.ep > 1)
    return (c.model.hidden % ranks > 0) | (width % (of_tp * ranks) > 0)


def _hollow(counts: tuple[int, ...], pp: int, vpp: int) -> bool:
    """Tell whether a stage between the ends has no layer, and so no parameter."""
    return pp > 1 and 0 in counts[1:-1]


def _micro_batches(c: Case) -> Bools:
    """Return the micro-batches of one pass of the pipeline.

    Of plans those of a step; of a run those of its local batch, which accumulation repeats.
    """
    if not c.settings:
        return c.n_micro
    local = c.setting("training.local_batch_size", 8)
    return local // c.setting("parallelism.pipeline_parallel_microbatch_size", 1)


def _in_rounds(c: Case) -> Bools:
    """Return whether a loop runs in rounds: all but LoopedBFS, which a run may name."""
    named = str(c.setting("parallelism.pipeline_parallel_schedule", ""))
    return c.is_schedule("interleaved") & (named.lower() != "loopedbfs")


def _rounds(c: Case) -> Bools:
    """Return in how many rounds an interleaved schedule runs the micro-batches."""
    return _micro_batches(c) // c.pp + (_micro_batches(c) < c.pp)


def _etp(c: Case) -> Bools:
    """Return the etp that release 0.3 gives experts: all of tp without ep, else none."""
    return c.tp * (c.ep == 1) + (c.ep > 1)


def _unnamed(c: Case) -> Bools:
    """Return whether a job file has no name for the model of a plan.

    A run has one already.
    """
    return not c.settings and registered_model(c.model) is None


def _attention_unsplit(c: Case) -> Bools:
    """Return whether the registered model's attention is not one that cp of 0.2 splits."""
    model = None if c.settings else registered_model(c.model)
    return model is not None and model[0] not in SDPA


def _every_nth(c: Case) -> Bools:
    """Return whether recomputing every n-th layer gives the layers that the plan recomputes."""
    longest, k = c.longest_stage, c.recompute_layers
    shortest = c.of_stages(lambda counts, pp, vpp: min(counts))
    share = k + (k == 0)
    return (k >= longest) | ((shortest == longest) & (k > 0) & (shortest % share == 0))


def _plain_shard(c: Case) -> Bools:
    """Return the ranks of a ZeRO group, 1 without ZeRO."""
    return c.dp_shard * (c.zero > 0) + (c.zero == 0)


def missing_parts(shape: ModelShape) -> list[str]:
    """Return the parts of a model that none of torchtitan's decoders has."""
    parts = {
        "layer norm": shape.norm != "rmsnorm",
        "learned positions": shape.positions != "rope",
        "an MLP without a gate": not shape.gated,
        "biases": shape.bias and not shape.n_experts,
        "biases beside shared experts, dense layers or latent attention": shape.bias
        and shape.n_experts > 0
        and (shape.latent or shape.shared_ffn > 0 or not all(shape.expert_layers)),
        "dropout": shape.dropout,
        "a gate of attention's output": shape.attention_gate,
        "a capacity factor": shape.capacity_factor > 0,
        "forced balance of routing (a debug option, not written here)": shape.forced_balance,
        "multi-token prediction without latent attention": shape.mtp_layers > 0
        and not shape.latent,
    }
    return [name for name, wanted in parts.items() if wanted]


def _job_file_rule(
    code: str,
    title: str,
    source: str,
    broken: Callable[[Case], Bools],
    reason: Words,
    closest: str,
) -> FrameworkRule:
    """Return a rule on what a job file cannot say; those of 0.2 were the last."""
    return FrameworkRule(
        code, "torchtitan", title, "planner", source, broken, reason, closest, versions="<0.3"
    )


def _windowed_kinds(c: Case) -> list[str]:
    return [kind for kind in dict.fromkeys(kind_sequence(c.model)) if kind.startswith("window+")]


def _is_gpt_oss(c: Case) -> bool:
    """Tell whether its classes of gpt-oss can hold a model: those with experts and biases."""
    kinds = set(kind_sequence(c.model))
    return bool(c.model.bias) and not c.model.latent and kinds <= {"window+moe", "moe"}


def _alternates(c: Case) -> bool:
    kinds = kind_sequence(c.model)
    sizes = c.model.window
    return (
        sizes is not None
        and sizes.size == 128
        and kinds == tuple("moe" if i % 2 else "window+moe" for i in range(len(kinds)))
    )


JOB_FILE_RULES: tuple[FrameworkRule, ...] = (
    _job_file_rule(
        "TTN112",
        "attention that context parallelism of 0.2 does not split",
        "torchtitan/models, args of each",
        lambda c: (c.cp > 1) & _attention_unsplit(c),
        "context parallelism: the registered model has no attention that it splits",
        "cp 1",
    ),
    _job_file_rule(
        "TTN411",
        "16 bits without FSDP",
        "torchtitan/distributed/utils.py, maybe_enable_amp",
        lambda c: (not c.settings) & (_plain_shard(c) == 1) & (c.cp == 1) & (c.tp * c.pp > 1),
        "precision: torchtitan computes in 16 bits where FSDP shards, or with DDP alone",
        "ZeRO groups of several ranks",
    ),
    _job_file_rule(
        "TTN504",
        "model that is not registered",
        "torchtitan/models, __init__ of each",
        _unnamed,
        "model: a job file can only name a registered model, and none has these sizes",
        "a model of the sizes of Llama 3, Qwen 3, Llama 4, DeepSeek-V3 or gpt-oss",
    ),
    _job_file_rule(
        "TTN505",
        "attention core recomputed alone",
        "torchtitan/config/job_config.py, ActivationCheckpoint",
        lambda c: (not c.settings) & c.is_recompute("selective"),
        "recompute: no mode recomputes the attention core alone",
        "recompute full",
    ),
    _job_file_rule(
        "TTN506",
        "recomputed layers that are not every n-th",
        "torchtitan/config/job_config.py, ActivationCheckpoint",
        lambda c: (not c.settings) & c.is_recompute("full") & (_every_nth(c) == 0),
        lambda c: f"recompute: no every n-th layer gives {c.recompute_layers} of each stage",
        "recompute_layers of a whole stage",
    ),
)
"""What a job file cannot say of a plan: an existing run is no plan, and not held to them."""

LAYOUT_RULES: tuple[FrameworkRule, ...] = (
    degrees_positive("TTN100", "torchtitan", f"{MESH}._validate"),
    degrees_divide("TTN101", "torchtitan", f"{MESH}._validate"),
    heads_divide("TTN102", "torchtitan", DECODER, "start"),
    kv_heads_split("TTN103", "torchtitan", DECODER, "start"),
    columns_divide("TTN104", "torchtitan", "torchtitan/models/common/decoder_sharding.py"),
    FrameworkRule(
        "TTN105",
        "torchtitan",
        "the sequence does not divide by tp x 2 cp",
        "start",
        f"{TRAINER}.__init__",
        lambda c: c.job.seq_len % _divisor(c) > 0,
        lambda c: (
            f"sequence: {c.job.seq_len} tokens do not divide by {_divisor(c)}"
            " (tp with sequence parallelism, 2 cp)"
        ),
        "another sequence length, tp or cp",
    ),
    FrameworkRule(
        "TTN106",
        "torchtitan",
        "all-to-alls over attention heads (Ulysses)",
        "planner",
        "torchtitan/distributed/context_parallel",
        lambda c: (c.cp > 1) & c.is_exchange("a2a"),
        "context parallelism by a2a: torchtitan has no exchange of heads",
        "cp_comm all-gather",
    ),
    FrameworkRule(
        "TTN107",
        "torchtitan",
        "ring of keys and values",
        "planner",
        "torchtitan/distributed/context_parallel, flex_cp_allgather",
        lambda c: (c.cp > 1) & c.is_exchange("p2p"),
        "context parallelism by p2p: torchtitan gathers keys and values",
        "cp_comm all-gather",
        versions=">=0.3",
    ),
    FrameworkRule(
        "TTN108",
        "torchtitan",
        "tensor without sequence parallelism",
        "planner",
        "torchtitan/models, infra/parallelize.py of each, apply_tp",
        lambda c: (c.tp > 1) & (c.sp == 0),
        lambda c: f"tp {c.tp}: sequence parallelism cannot be switched off",
        "sp on",
        versions="<0.3",
    ),
    usual_rank_order("TTN109", "torchtitan", f"{MESH}.build_mesh"),
    batch_divides("TTN110", "torchtitan", f"{TRAINER}.__init__", "start"),
    FrameworkRule(
        "TTN111",
        "torchtitan",
        "the sequence does not divide into blocks of attention",
        "first step",
        "torch/distributed/tensor/experimental/_context_parallel/_attention.py,"
        " _create_cp_block_mask",
        lambda c: (c.cp > 1) & (c.job.seq_len % (128 * c.cp) > 0),
        lambda c: (
            f"sequence: {c.job.seq_len} tokens do not divide by {128 * c.cp} (blocks of 128"
            f" on cp {c.cp} ranks)"
        ),
        "another sequence length or cp",
        versions=">=0.3",
    ),
    FrameworkRule(
        "TTN201",
        "torchtitan",
        "schedule that PyTorch has not",
        "planner",
        SCHEDULES_PY,
        lambda c: c.is_schedule("zb-h1", "dualpipe"),
        lambda c: f"schedule {c.schedule_name}: PyTorch has ZBVZeroBubble and DualPipeV",
        "schedule zb-v or dualpipe-v with vpp 2",
    ),
    FrameworkRule(
        "TTN202",
        "torchtitan",
        "tied embeddings in a pipeline",
        "start",
        DECODER,
        lambda c: (c.pp > 1) & c.model.tied,
        lambda c: f"tied embeddings with pp {c.pp}: torchtitan keeps them on one rank",
        "pp 1, or untied embeddings",
    ),
    FrameworkRule(
        "TTN203",
        "torchtitan",
        "fewer micro-batches than stages",
        "start",
        f"{SCHEDULES_PY}, Schedule1F1B",
        lambda c: c.is_schedule("1f1b") & (c.pp > 1) & (_micro_batches(c) < c.pp),
        lambda c: f"schedule 1f1b: {_micro_batches(c)} micro-batches for {c.pp} stages",
        "a smaller mbs, or a larger global batch",
        batches=True,
    ),
    FrameworkRule(
        "TTN204",
        "torchtitan",
        "micro-batches that do not divide into rounds",
        "start",
        f"{SCHEDULES_PY}, ScheduleInterleaved1F1B",
        lambda c: _in_rounds(c) & (_micro_batches(c) % _rounds(c) > 0),
        lambda c: (
            f"interleaved schedule: {_micro_batches(c)} micro-batches do not divide into"
            f" {_rounds(c)} rounds"
        ),
        "micro-batches in multiples of pp",
        batches=True,
    ),
    FrameworkRule(
        "TTN205",
        "torchtitan",
        "fewer micro-batches than virtual stages",
        "start",
        f"{SCHEDULES_PY}, ScheduleDualPipeV",
        lambda c: c.is_schedule("dualpipe-v") & (_micro_batches(c) < 2 * c.pp),
        lambda c: f"schedule dualpipe-v: {_micro_batches(c)} micro-batches for {2 * c.pp} stages",
        "a smaller mbs, or a larger global batch",
        batches=True,
    ),
    FrameworkRule(
        "TTN206",
        "torchtitan",
        "multi-token prediction in a pipeline or over the context",
        "start",
        "torchtitan/models/deepseek_v3/mtp.py, MTPDecoder.Config",
        lambda c: (c.model.mtp_layers > 0) & ((c.pp > 1) | (c.cp > 1)),
        lambda c: f"multi-token prediction with pp {c.pp} and cp {c.cp}: not supported yet",
        "pp 1 and cp 1",
    ),
    FrameworkRule(
        "TTN207",
        "torchtitan",
        "stage without a parameter",
        "start",
        "torchtitan/components/optimizer.py, OptimizersContainer",
        lambda c: c.of_stages(_hollow),
        lambda c: (
            f"stages of {min(c.counts)} to {max(c.counts)} layers: every stage has an optimizer,"
            " which takes no empty list of parameters"
        ),
        "a layer in every stage but the first and the last",
    ),
    dense_without_experts("TTN301", "torchtitan", MESH, "planner"),
    experts_divide("TTN302", "torchtitan", "torchtitan/models/common/moe_sharding.py", "start"),
    FrameworkRule(
        "TTN303",
        "torchtitan",
        "ep does not divide the ranks of an FSDP group",
        "start",
        f"{MESH}.build_mesh",
        lambda c: (c.ep > 1) & (_shard_ranks(c) * c.tp % (c.ep * c.etp) > 0),
        lambda c: (
            f"expert parallelism: ep {c.ep} x etp {c.etp} does not divide"
            f" {_shard_ranks(c) * c.tp} ranks (dp_shard x cp x tp)"
        ),
        "an ep that divides them",
    ),
    FrameworkRule(
        "TTN304",
        "torchtitan",
        "tensor parallelism inside experts that cannot be chosen",
        "planner",
        "torchtitan/models/common/moe_sharding.py",
        lambda c: (c.model.n_experts > 0) & (c.etp != _etp(c)),
        lambda c: f"etp {c.etp}: with tp {c.tp} and ep {c.ep} torchtitan has etp {_etp(c)}",
        lambda c: f"etp {_etp(c)}",
        versions=">=0.3",
    ),
    FrameworkRule(
        "TTN305",
        "torchtitan",
        "etp between 1 and tp",
        "parse",
        f"{MESH}._validate",
        lambda c: (c.ep > 1) & (c.etp != 1) & (c.etp != c.tp),
        lambda c: f"etp {c.etp}: 1 or tp {c.tp} with ep",
        "etp 1",
        versions="<0.3",
    ),
    FrameworkRule(
        "TTN306",
        "torchtitan",
        "experts that FSDP cannot cut evenly",
        "start",
        f"{FSDP}, apply_fsdp_to_decoder",
        lambda c: _cuts_inside(c) & _uneven_inside(c),
        lambda c: (
            f"experts: {_expert_ranks(c)} FSDP ranks for {c.model.n_experts // c.ep} experts"
            f" cut their matrices of {c.model.hidden} x {c.model.expert_ffn}, which do not divide"
        ),
        "smaller ZeRO groups, or another ep",
    ),
    FrameworkRule(
        "TTN307",
        "torchtitan",
        "experts that FSDP pads",
        "planner",
        f"{FSDP}, apply_fsdp_to_decoder",
        lambda c: (
            (c.model.n_experts > 0)
            & (_cuts_inside(c) == 0)
            & (c.model.n_experts // c.ep % _expert_ranks(c) > 0)
        ),
        lambda c: (
            f"experts: {c.model.n_experts // c.ep} over {_expert_ranks(c)} FSDP ranks are"
            " padded, and take more memory than their share"
        ),
        "ZeRO groups that divide the experts",
    ),
    FrameworkRule(
        "TTN401",
        "torchtitan",
        "optimizer alone sharded",
        "planner",
        FSDP,
        lambda c: (c.zero == 1) & (c.pp == 1),
        "ZeRO-1: FSDP2 reduces and shards the gradients of every micro-batch",
        "zero 2",
    ),
    FrameworkRule(
        "TTN402",
        "torchtitan",
        "sharded gradients in a pipeline",
        "planner",
        STAGE,
        lambda c: (c.zero >= 2) & (c.pp > 1),
        lambda c: (
            f"ZeRO-{c.zero} with a pipeline of {c.pp}: PyTorch keeps whole gradients until"
            " the last micro-batch"
        ),
        "zero 1, or pp 1",
    ),
    FrameworkRule(
        "TTN403",
        "torchtitan",
        "replicas over the context",
        "planner",
        FSDP,
        lambda c: (c.zero == 0) & (c.cp > 1),
        lambda c: f"ZeRO-0 with cp {c.cp}: FSDP always shards over the context-parallel ranks",
        "a ZeRO level above 0",
    ),
    FrameworkRule(
        "TTN404",
        "torchtitan",
        "ZeRO groups that do not hold whole contexts",
        "planner",
        MESH,
        lambda c: (c.zero > 0) & (c.dp_shard % c.cp > 0),
        lambda c: f"ZeRO groups of {c.dp_shard}: no multiple of cp {c.cp}",
        "groups of a multiple of cp",
    ),
    FrameworkRule(
        "TTN405",
        "torchtitan",
        "replicas beside another parallelism",
        "start",
        "torchtitan/models/llama3/infra/parallelize.py, parallelize_llama",
        lambda c: (c.zero == 0) & (c.dp > 1) & ((c.tp > 1) | (c.pp > 1)),
        lambda c: f"ZeRO-0 over {c.dp} replicas with tp {c.tp} and pp {c.pp}: DDP goes alone",
        "a ZeRO level above 0",
        versions="<0.3",
    ),
    optimizer_on_device("TTN406", "torchtitan", FSDP, "training.enable_cpu_offload"),
    overlap_stays("TTN407", "torchtitan", FSDP),
    activations_on_device(
        "TTN408", "torchtitan", "torchtitan/distributed/activation_checkpoint.py"
    ),
    one_copy_of_weights("TTN409", "torchtitan", FSDP),
    FrameworkRule(
        "TTN410",
        "torchtitan",
        "experts alone sharded",
        "planner",
        f"{MESH}.build_mesh",
        lambda c: (c.zero == 0) & (c.ep > 1) & (c.tp > c.ep),
        lambda c: (
            f"ZeRO-0 with tp {c.tp} and ep {c.ep}: FSDP shards each expert over"
            f" {c.tp // c.ep} ranks of tp"
        ),
        "a ZeRO level above 0, or ep tp",
    ),
    FrameworkRule(
        "TTN501",
        "torchtitan",
        "precision that is not emitted",
        "planner",
        "torchtitan/config/configs.py, TrainingConfig",
        lambda c: c.job.base_precision not in ("bf16", "fp32"),
        lambda c: f"precision {c.job.label}: the recipes compute in bf16 and reduce in fp32",
        "precision bf16",
    ),
    narrow_moments("TTN507", "torchtitan", "torchtitan/components/optimizer.py"),
    known_optimizer("TTN412", "torchtitan", "torchtitan/components/optimizer.py"),
    FrameworkRule(
        "TTN502",
        "torchtitan",
        "model that no decoder of torchtitan can be",
        "planner",
        "torchtitan/models",
        lambda c: bool(missing_parts(c.model)),
        lambda c: f"model: torchtitan's decoders have no {', no '.join(missing_parts(c.model))}",
        "a model like Llama 3, Qwen 3, DeepSeek-V3 or gpt-oss",
    ),
    FrameworkRule(
        "TTN503",
        "torchtitan",
        "modules recomputed other than the attention core",
        "planner",
        "torchtitan/distributed/activation_checkpoint.py, apply_ac",
        lambda c: c.recomputes(*RECOMPUTE_MODULES[1:]),
        "recompute of modules: torchtitan recomputes whole layers, or all but a list of operators",
        "recompute full",
    ),
    FrameworkRule(
        "TTN508",
        "torchtitan",
        "a window in another model than gpt-oss",
        "planner",
        "torchtitan/models/gpt_oss/model.py, Attention.Config.sliding_window_size",
        lambda c: bool(_windowed_kinds(c)) and not _is_gpt_oss(c),
        lambda c: (
            f"layers: {', '.join(_windowed_kinds(c))}: its classes of gpt-oss alone have a window,"
            " with experts and biases in every layer"
        ),
        "a model like gpt-oss, or framework megatron",
    ),
    FrameworkRule(
        "TTN509",
        "torchtitan",
        "other windows than those of the registered gpt-oss",
        "planner",
        "torchtitan/models/gpt_oss/model/model.py, use_sliding_attention",
        lambda c: bool(_windowed_kinds(c)) and not _alternates(c),
        "layers: its gpt-oss has a window of 128 tokens in every second layer, the first with one",
        "framework torchtitan@0.3.0",
        versions="<0.3",
    ),
    *JOB_FILE_RULES,
)
"""Rules over layouts alone."""
