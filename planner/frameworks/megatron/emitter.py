"""Writes a plan as a Megatron-LM launch script.

The flags stand as plain words after `pretrain_gpt.py`, one group after another, so that the line
can be read, copied and checked by tools that do not run bash. What they mean is set by
`megatron/training/arguments.py` and `megatron/core/transformer/transformer_config.py`.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from costmodels.layers.kinds import added_kinds
from costmodels.optimizers.records import BY_MATRIX
from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.emit_request import EmitRequest, RefusedPlanError
from planner.frameworks.emitted_text import (
    fact_lines,
    guarded,
    head,
    nodes,
    train_steps,
    training_only,
    wrap,
)
from planner.frameworks.megatron.axis_flags import axis_flags
from planner.frameworks.megatron.core_details import AUX_LOSS, comment_lines, core_details
from planner.frameworks.megatron.details import stated_details
from planner.frameworks.megatron.flags import flag_table, parse_flags
from planner.frameworks.megatron.layer_kinds import hybrid_program, pattern_settings
from planner.frameworks.megatron.mode_settings import (
    dispatcher_settings,
    graph_settings,
    graphed_modules,
    hybrid_environment,
    offload_environment,
    offload_settings,
    overlap_settings,
)
from planner.frameworks.programs import MEGATRON_SMOKE, programs
from planner.frameworks.releases import lacking_words
from planner.specs.schema import NO_DETAILS, DetailsSpec
from searches.frameworks.megatron.layer_kinds import is_hybrid, layer_count
from searches.frameworks.megatron.layouts import vocab_divisor
from searches.frameworks.registry import framework_rules
from searches.frameworks.switches import switch_words

SINGLE_CONNECTION = "CUDA_DEVICE_MAX_CONNECTIONS"
NO_QUEUE_LIMIT = ("blackwell", "rubin")
"""Generations that keep the order of kernels without a single hardware queue."""

DTYPE = {"bf16": "bf16", "fp16": "fp16", "tf32": ""}
"""Precision flag by type of the matrix units; fp32 is Megatron's default and has none."""

OFFLOAD_FLAGS = [
    "--use-precision-aware-optimizer",
    "--optimizer-cpu-offload",
    "--optimizer-offload-fraction",
    "1.0",
    "--overlap-cpu-optimizer-d2h-h2d",
]
"""Master weights and optimizer states on the host, copies beside the update."""

EVALUATION = ["--eval-iters", "0", "--eval-interval", "1000"]
"""None. The interval has to be said all the same: Megatron-LM divides the steps by it."""

CP_COMM_TYPE = {"p2p": "p2p", "all-gather": "all_gather", "a2a": "a2a"}
"""Value of `--cp-comm-type` by exchange of the plan."""


def megatron_files(request: EmitRequest) -> dict[str, str]:
    """Return the script of a plan that Megatron-LM can run and its smoke run, by file name."""
    smoke = programs(*MEGATRON_SMOKE) if runs_on_cpu(request.shape) else {}
    return {"megatron.sh": megatron_script(request), **smoke}


def runs_on_cpu(shape: ModelShape) -> bool:
    """Tell whether the smoke run can hold a model: state-space and linear layers have no kernels.

    Nor do experts or an MLP alone have a place in a GPT model.
    """
    return all(kind.mixer in ("attention", "window") for kind in added_kinds(shape)) and not (
        is_hybrid(shape)
    )


def megatron_script(request: EmitRequest) -> str:
    """Return the script of a plan that Megatron-LM can run."""
    layout, shape, job, details = request.layout, request.shape, request.job, request.details
    n_nodes, per_node = nodes(layout, request.pool)
    release = request.release_of("megatron")
    title = f"Megatron-LM launch script; flags as of Megatron-LM (megatron-core) {release}."
    groups = flag_groups(layout, shape, job, details, release)
    refuse_lacking(f"megatron@{release}", [word for _, flags in groups for word in flags])
    lines = [line for _, flags in groups for line in wrap(flags)]
    program = hybrid_program(release)[0] if is_hybrid(shape) else "pretrain_gpt.py"
    launch = [
        f'torchrun --nnodes {n_nodes} --nproc-per-node {per_node} --node-rank "${{NODE_RANK}}" \\',
        '  --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \\',
        f'  "${{MEGATRON_DIR}}/{program}" \\',
        *(f"  {line} \\" for line in lines[:-1]),
        f"  {lines[-1]}",
    ]
    rest = _unsaid_details([word for _, flags in groups for word in flags], details)
    has_details, missing = bool(details.stated()), _yours(layout, shape, job, details)
    parts = [
        *head(title, request.header, fact_lines(request, rest if has_details else None)),
        *guarded(_settings(shape).format(n_nodes=n_nodes, free=_FREE[has_details]), missing),
        *environment(request),
        *_FUNCTION.splitlines(),
        "",
        *comment_lines(training_only(missing), "Megatron-LM has no flag for this."),
        "# Flags, each group from a new line:",
        f"# {', '.join(name for name, _ in groups)}.",
        *launch,
    ]
    return "\n".join(parts) + "\n"


def refuse_lacking(framework: str, words: Sequence[str]) -> None:
    """Raise `RefusedPlanError` for flags, or values of them, that a release does not have."""
    lacking = lacking_words(framework, words)
    if lacking:
        title = f"{framework_rules(framework).title} {framework_rules(framework).release}"
        raise RefusedPlanError(
            [
                f"flags: {title} does not have {one.words}"
                + f"; closest: {one.instead}" * bool(one.instead)
                for one in lacking
            ]
        )


def _unsaid_details(flags: Sequence[str], details: DetailsSpec) -> dict[str, object]:
    """Return the details that the flags do not give back; null: those that they alone have."""
    result = stated_details(parse_flags([word.strip("'") for word in flags]).settings)
    back, fields = {name: value for name, value, _ in result}, details.stated()
    lost = {name: value for name, value in fields.items() if back.get(name) != value}
    return lost | {name: None for name in back if name not in fields}


def _yours(
    layout: Layout, shape: ModelShape, job: TrainingJob, details: DetailsSpec
) -> tuple[str, ...]:
    """Return the details that no flag says, a line each."""
    result = core_details(details, layout, shape, job)
    by_dest = flag_table()[2]
    config = "MLATransformerConfig" if shape.latent else "TransformerConfig"
    no_flag = (
        f"{dest} {value!r}: a field of {config} without a flag"
        for dest, value in result.model.items()
        if dest not in by_dest
    )
    return (*result.yours, *no_flag)


def _detail_flags(settings: Mapping[str, object]) -> list[str]:
    """Return settings of megatron-core as flags."""
    _, by_name, by_dest = flag_table()
    tokens = []
    for dest, value in settings.items():
        flag = by_dest.get(dest)
        if flag is None:
            continue
        if isinstance(value, tuple):
            tokens += [flag.flags[0], ",".join(map(str, value))]
        elif isinstance(value, list):
            tokens += [flag.flags[0], f"'{layer_frequency([bool(x) for x in value])}'"]
        elif isinstance(value, bool):
            same = (name for name, one in by_name.items() if one.dest == dest)
            tokens += [next(name for name in same if name.startswith("--no-") is not value)]
        else:
            tokens += [flag.flags[0], _plain(value)]
    return tokens


def _plain(value: object) -> str:
    """Return a value in as few digits as give it back."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def flag_groups(
    layout: Layout,
    shape: ModelShape,
    job: TrainingJob,
    details: DetailsSpec = NO_DETAILS,
    release: str = "",
) -> list[tuple[str, list[str]]]:
    """Return the words after `pretrain_gpt.py` in named groups.

    For a release of megatron-core, the newest where it is empty.
    """
    of_core = core_details(details, layout, shape, job)
    groups = [
        ("model", _model_flags(layout, shape, job, of_core.model)),
        ("kinds of layers", _hybrid_flags(layout, shape, release)),
        ("experts", _expert_flags(layout, shape, of_core.experts)),
        ("layout", _layout_flags(layout, shape, job)),
        ("batch and schedule", _batch_flags(layout, job)),
        ("precision and optimizer", _precision_flags(layout, job, release)),
        ("recompute", _recompute_flags(layout)),
        ("overlap", _overlap_flags(layout)),
        ("graphs", _graph_flags(layout, shape, release)),
        ("module offload", setting_flags(offload_settings(layout))),
        ("further axes", axis_flags(layout)),
        ("logging", ["--log-interval", "1", "--log-throughput"]),
        ("evaluation", EVALUATION),
        ("data", ["--mock-data", "--tokenizer-type", "NullTokenizer"]),
    ]
    return [(name, flags) for name, flags in groups if flags]


def attention_backend(shape: ModelShape, settings: Mapping[str, object]) -> str:
    """Return the backend to ask for.

    FlashAttention 2 wants keys and values of one width, and has no sinks.
    """
    if not shape.flash_attention:
        return "unfused"
    return "auto" if shape.latent or "softmax_type" in settings else "flash"


def _model_flags(
    layout: Layout, shape: ModelShape, job: TrainingJob, settings: Mapping[str, object]
) -> list[str]:
    """Return the flags of the sizes, and of the details as settings of megatron-core."""
    dropout = "0.1" if shape.dropout else "0.0"
    positions = shape.max_positions if shape.positions == "learned" else 0
    tokens = {
        "--num-layers": layer_count(shape),
        "--hidden-size": shape.hidden,
        "--ffn-hidden-size": shape.ffn,
        "--num-attention-heads": shape.heads,
        "--kv-channels": shape.head_dim,
        "--seq-length": job.seq_len,
        "--max-position-embeddings": max(positions, job.seq_len),
        "--position-embedding-type": "rope" if shape.positions == "rope" else "learned_absolute",
        "--normalization": "RMSNorm" if shape.norm == "rmsnorm" else "LayerNorm",
        "--vocab-size": shape.vocab,
        "--make-vocab-size-divisible-by": vocab_divisor(shape, layout.tp),
        "--hidden-dropout": dropout,
        "--attention-dropout": dropout,
        "--attention-backend": attention_backend(shape, settings),
    }
    if "position_embedding_type" in settings:
        del tokens["--position-embedding-type"]
    if shape.latent:
        if shape.hidden % shape.heads == 0:  # the parser works it out, and refuses a remainder
            del tokens["--kv-channels"]
        tokens |= {
            "--kv-lora-rank": shape.kv_rank,
            "--qk-head-dim": shape.qk_nope,
            "--qk-pos-emb-head-dim": shape.qk_rope,
            "--v-head-dim": shape.v_head,
        }
        tokens |= {"--q-lora-rank": shape.q_rank} if shape.q_rank else {}
    tokens |= {"--mtp-num-layers": shape.mtp_layers} if shape.mtp_layers else {}
    flags = [word for option, value in tokens.items() for word in (option, str(value))]
    flags += ["--multi-latent-attention"] * shape.latent
    if shape.kv_heads != shape.heads:
        flags += ["--group-query-attention", "--num-query-groups", str(shape.kv_heads)]
    flags += ["--swiglu"] * (shape.gated and "quick_geglu" not in settings)
    flags += ["--disable-bias-linear"] * (not shape.bias)
    # No kernel fuses the bias with this activation; without biases Megatron-LM fuses nothing.
    flags += ["--no-bias-gelu-fusion"] * ("squared_relu" in settings and shape.bias)
    flags += ["--untie-embeddings-and-output-weights"] * (not shape.tied)
    flags += ["--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl", "native"]
    return flags + _detail_flags(settings)


def _hybrid_flags(layout: Layout, shape: ModelShape, release: str) -> list[str]:
    """Return the pattern of a hybrid model, and where its layers are defined."""
    settings = pattern_settings(layout, shape)
    if not settings:
        return []
    spec = hybrid_program(release or framework_rules("megatron").release)[1]
    flags = [
        word
        for dest, value in settings.items()
        for word in (flag_table()[2][dest].flags[0], f"'{value}'")
    ]
    return [*flags, "--spec", *spec.split()]


def _expert_flags(layout: Layout, shape: ModelShape, settings: Mapping[str, object]) -> list[str]:
    """Return the flags of the routed experts; none for a dense model.

    `settings` of megatron-core are those of the details of the router.
    """
    if not shape.n_experts:
        return []
    remaining = dict(settings)
    kind = remaining.pop("moe_router_load_balancing_type", "aux_loss")
    aux_loss = remaining.pop("moe_aux_loss_coeff", None)
    pre_softmax = bool(remaining.pop("moe_router_pre_softmax", False))
    dispatch = setting_flags(dispatcher_settings(layout))
    tokens = {
        "--num-experts": shape.n_experts,
        "--moe-router-topk": shape.top_k,
        "--moe-ffn-hidden-size": shape.expert_ffn,
        "--expert-model-parallel-size": layout.ep,
        "--expert-tensor-parallel-size": layout.etp,
        **dict(zip(dispatch[::2], dispatch[1::2], strict=True)),
        "--moe-router-load-balancing-type": kind,
        "--moe-aux-loss-coeff": "1e-2" if aux_loss in (None, AUX_LOSS) else _plain(aux_loss),
    }
    if shape.shared_ffn:
        tokens["--moe-shared-expert-intermediate-size"] = shape.shared_ffn
    if shape.n_groups > 1:
        tokens["--moe-router-num-groups"] = shape.n_groups
        tokens["--moe-router-group-topk"] = shape.top_groups
    if shape.capacity_factor:
        tokens["--moe-expert-capacity-factor"] = f"{shape.capacity_factor:g}"
    flags = [word for option, value in tokens.items() for word in (option, str(value))]
    if not all(shape.expert_layers) and not is_hybrid(shape):
        flags += ["--moe-layer-freq", f"'{layer_frequency(shape.expert_layers)}'"]
    flags += ["--moe-pad-expert-input-to-capacity"] * bool(shape.capacity_factor)
    flags += ["--moe-router-force-load-balancing"] * shape.forced_balance
    # The parser refuses one expert a token after the softmax over all of them.
    flags += ["--moe-router-pre-softmax"] * (shape.top_k == 1 or pre_softmax)
    return [*flags, "--moe-grouped-gemm", *_detail_flags(remaining)]


def _graph_flags(layout: Layout, shape: ModelShape, release: str) -> list[str]:
    """Return the flags of CUDA graphs as a release spells them, the newest where it is empty."""
    settings = graph_settings(layout, shape)
    if not settings:
        return []
    graph, framework = str(layout.value("cuda_graph")), f"megatron@{release}".removesuffix("@")
    if graph in ("layer", "full_iteration"):
        words = switch_words(framework, f"cuda_graph={graph}")
    else:
        words = switch_words(framework, "cuda_graph=modules", graphed_modules(graph, shape))
    said = ("cuda_graph_impl", "cuda_graph_modules")
    others = {dest: value for dest, value in settings.items() if dest not in said}
    return [*words, *setting_flags(others)]


def setting_flags(settings: Mapping[str, object]) -> list[str]:
    """Return settings of megatron-core as flags of Megatron-LM's parser."""
    by_dest, words = flag_table()[2], []
    for dest, value in settings.items():
        flags = by_dest[dest].flags
        if isinstance(value, bool):
            words.append(next(x for x in flags if x.startswith("--no-") is not value))
        elif isinstance(value, list):
            words += [flags[0], *map(str, value)]
        else:
            words += [flags[0], f"{value:g}" if isinstance(value, float) else str(value)]
    return words


def layer_frequency(experts: Sequence[bool]) -> str:
    """Return Megatron's pattern of dense (0) and expert (1) layers, a Python expression.

    >>> layer_frequency((False, False, False, True, True))
    '([0]*3+[1]*2)'
    """
    if len(experts) % 2 == 0 and not any(experts[::2]) and all(experts[1::2]):
        return f"([0,1]*{len(experts) // 2})"
    runs = [(int(kind), len(list(run))) for kind, run in groupby(experts)]
    return f"({'+'.join(f'[{kind}]*{n}' for kind, n in runs)})"


def _layout_flags(layout: Layout, shape: ModelShape, job: TrainingJob) -> list[str]:
    narrow_states = job.optimizer_states != "fp32"
    flags = ["--tensor-model-parallel-size", str(layout.tp)]
    flags += ["--sequence-parallel"] * (layout.sp and layout.tp > 1)
    flags += ["--pipeline-model-parallel-size", str(layout.pp)]
    if layout.pp > 1 and not is_hybrid(shape):  # a pattern has the cuts in it
        flags += _stage_flags(layout, shape)
    if layout.cp > 1:
        flags += ["--context-parallel-size", str(layout.cp)]
        flags += ["--cp-comm-type", CP_COMM_TYPE[layout.cp_comm]]
    if job.recipe.optimizer.sharding == BY_MATRIX:
        pass  # said with the optimizer, whose releases say it in two ways
    elif layout.zero == 1 or (layout.zero == 0 and (layout.optimizer_offload or narrow_states)):
        # One rank alone shards over itself: only the distributed optimizer can be offloaded.
        flags += ["--use-distributed-optimizer"]
    elif layout.zero >= 2:
        flags += _fsdp_flags(layout)
    if zero_replicas(layout) > 1:
        flags += ["--num-distributed-optimizer-instances", str(zero_replicas(layout))]
        if layout.pp > 1 and layout.zero == 1:
            # Otherwise the schedule starts the sum of gradients, and `finish_grad_sync` starts it
            # again: for several instances it cannot see that (param_and_grad_buffer.py, 0.19.2).
            flags += ["--no-align-grad-reduce"]
    return flags + ["--use-tp-pp-dp-mapping"] * (layout.rank_order == "tp-cp-ep-pp-dp")


def zero_replicas(layout: Layout) -> int:
    """Return how many groups of ranks hold the same shards: 1 where ZeRO takes all ranks.

    Megatron cuts the data-parallel ranks into groups of neighbours, reduce-scatters gradients in
    a group and all-reduces the shards over the groups (megatron/core/parallel_state.py).
    """
    return layout.dp * layout.cp // layout.dp_shard if layout.zero else 1


def stage_split(layout: Layout, shape: ModelShape) -> tuple[str, int]:
    """Return how the layers go to the virtual stages in the plainest words, and layers a stage.

    `even`; `ends` where embedding and loss count as a layer each; else `layout`, spelled out.
    """
    counts, n_stages = layout.stage_layers, layout.pp * layout.vpp
    share, rest = divmod(shape.layers + 2, n_stages)
    if len(set(counts)) == 1:
        return "even", counts[0]
    if rest == 0 and counts == (share - 1, *(share,) * (n_stages - 2), share - 1):
        return "ends", share
    return "layout", 0


def _stage_flags(layout: Layout, shape: ModelShape) -> list[str]:
    split, per_stage = stage_split(layout, shape)
    if split == "layout":
        layout_string = stage_layout(layout.stage_layers, shape.mtp_layers)
        return ["--pipeline-model-parallel-layout", f"'{layout_string}'"]
    flags = []
    if split == "ends":
        flags = [
            "--account-for-embedding-in-pipeline-split",
            "--account-for-loss-in-pipeline-split",
        ]
    if layout.vpp > 1:
        flags += ["--num-layers-per-virtual-pipeline-stage", str(per_stage)]
    return flags


def stage_layout(counts: Sequence[int], mtp_layers: int = 0) -> str:
    """Return Megatron's layout string: E embedding, t layer, m MTP, L loss, | the end of a stage.

    A stage without layers has no t. The stages stand in model order; stage j is chunk j // pp on
    rank j % pp there too (megatron/core/transformer/pipeline_parallel_layer_layout.py).

    >>> stage_layout((7, 8, 8, 8, 7))
    'Et*7|(t*8|)*3t*7L'
    >>> stage_layout((1, 2, 2, 0, 2, 0), 1)
    'Et*1|(t*2|)*2|t*2|mL'
    """

    def layers(n: int) -> str:
        return f"t*{n}" if n else ""

    inner = [(n, len(list(run))) for n, run in groupby(counts[1:-1])]
    middle = "".join(
        f"({layers(n)}|)*{times}" if n and times > 1 else f"{layers(n)}|" * times
        for n, times in inner
    )
    return f"E{layers(counts[0])}|{middle}{layers(counts[-1])}{'m' * mtp_layers}L"


def _fsdp_flags(layout: Layout) -> list[str]:
    """Return Megatron-FSDP's flags; weights start on the meta device where they are sharded."""
    strategy = "optim_grads" if layout.zero == 2 else "optim_grads_params"
    flags = ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", strategy]
    flags += ["--use-distributed-optimizer", "--no-gradient-accumulation-fusion"]
    flags += ["--init-model-with-meta-device"] * (layout.zero == 3)
    return [*flags, "--ckpt-format", "fsdp_dtensor"]


def _batch_flags(layout: Layout, job: TrainingJob) -> list[str]:
    flags = ["--micro-batch-size", str(layout.mbs), "--global-batch-size", str(layout.gbs)]
    return [*flags, "--train-iters", str(train_steps(job))]


def _optimizer_flags(layout: Layout, job: TrainingJob, release: str) -> list[str]:
    """Return what is said of an optimizer, and of how whole matrices are shared out."""
    framework, name = f"megatron@{release}".removesuffix("@"), job.optimizer
    if job.recipe.optimizer.sharding != BY_MATRIX:
        return list(switch_words(framework, f"optimizer={name}"))
    sharded = ",sharded" if layout.zero == 1 else ""
    words = [*switch_words(framework, f"optimizer={name}{sharded}")]
    if layout.zero == 1 and not job.muon.param_layout:
        words += switch_words(framework, "muon_without_layout")
    if name != "muon":
        return words
    for option in ("num_ns_steps", "tp_mode", "scalar_optimizer"):
        words += switch_words(framework, f"muon_{option}", getattr(job.muon, option))
    return words


def _precision_flags(layout: Layout, job: TrainingJob, release: str) -> list[str]:
    dtype = DTYPE[job.recipe.gemm_precision]
    recipe = job.recipe
    flags = [f"--{dtype}"] * bool(dtype)
    flags += _quantized_flags(layout, job)
    narrow = dtype == "bf16" and recipe.grad_bytes == 2
    if dtype == "bf16" and recipe.grad_bytes == 4:
        flags += ["--accumulate-allreduce-grads-in-fp32"]
    elif narrow:
        flags += ["--grad-reduce-in-bf16"]
    if job.optimizer_states != "fp32":
        flags += ["--use-precision-aware-optimizer", "--exp-avg-dtype", "bf16"]
        flags += ["--exp-avg-sq-dtype", "bf16", *["--main-grads-dtype", "bf16"] * narrow]
    if layout.zero >= 2:
        main = "bf16" if narrow else "fp32"
        wire = "fp32" if recipe.grad_wire_bytes == 4 else dtype
        flags += [
            "--megatron-fsdp-main-grads-dtype",
            main,
            "--megatron-fsdp-grad-comm-dtype",
            wire,
        ]
    flags += OFFLOAD_FLAGS * layout.optimizer_offload
    flags += _optimizer_flags(layout, job, release)
    return [*flags, "--lr", "1.5e-4", "--clip-grad", "1.0"]


def _quantized_flags(layout: Layout, job: TrainingJob) -> list[str]:
    """Return what is said of fp8 and fp4 products, and of quantised weights."""
    recipe, flags = job.recipe, []
    if recipe.fp8_recipe:
        form = "e4m3" if recipe.fp8_recipe == "mxfp8" else "hybrid"
        flags += ["--fp8-format", form, "--fp8-recipe", recipe.fp8_recipe]
    if recipe.fp4_recipe:
        flags += ["--fp4-format", "e2m1", "--fp4-recipe", recipe.fp4_recipe]
    if job.fp8_param_gather:
        flags += ["--fp4-param-gather" if recipe.fp4_recipe else "--fp8-param-gather"]
        # Megatron-FSDP turns it off: it has no buffer to share.
        if recipe.fp8_recipe == "mxfp8" and layout.zero < 2:
            flags += ["--reuse-grad-buf-for-mxfp8-param-ag"]
    if any(job.bf16_layers) and (recipe.fp8_recipe or recipe.fp4_recipe):
        first, last = map(str, job.bf16_layers)
        flags += ["--first-last-layers-bf16", "--num-layers-at-start-in-bf16", first]
        flags += ["--num-layers-at-end-in-bf16", last]
    return flags + ["--fp8-output-proj"] * job.fp8_output


def _recompute_flags(layout: Layout) -> list[str]:
    if layout.recompute == "full" and layout.recompute_layers:
        n_layers = str(layout.recompute_layers)
        flags = ["--recompute-granularity", "full", "--recompute-method", "block"]
        return [*flags, "--recompute-num-layers", n_layers]
    if layout.recompute == "selective":
        modules = list(layout.recompute_modules)
        return ["--recompute-granularity", "selective", "--recompute-modules", *modules]
    if layout.activation_offload:
        return ["--cpu-offloading-num-layers", str(layout.activation_offload_layers)]
    return []


def _overlap_flags(layout: Layout) -> list[str]:
    beside = layout.dp_overlap and layout.dp * layout.cp > 1
    flags = ["--overlap-grad-reduce"] * beside
    flags += ["--overlap-param-gather"] * (beside and layout.zero > 0)
    flags += setting_flags(overlap_settings(layout))
    return flags + ["--tp-comm-overlap"] * layout.tp_overlap


def environment(request: EmitRequest) -> list[str]:
    """Return the settings that the plan needs, each with its reason."""
    layout, pool = request.layout, request.pool
    lines = hybrid_environment(layout, pool) if layout.value("dispatcher") == "hybridep" else []
    lines += offload_environment(layout)
    if layout.value("ep_overlap") != "off":
        lines += [
            "# The exchange of tokens has a queue of its own beside the compute that hides it.",
            f"export {SINGLE_CONNECTION}=32",
        ]
    elif layout.zero >= 2:
        lines += [
            "# Megatron-FSDP refuses the value 1, which some containers set.",
            f"unset {SINGLE_CONNECTION}",
        ]
    elif layout.tp * layout.cp > 1 and pool.accelerator.generation not in NO_QUEUE_LIMIT:
        lines += [
            "# One hardware queue keeps collectives ahead of the GEMMs they overlap; required",
            f"# with {_queue_reason(layout)} parallelism before Blackwell.",
            f"export {SINGLE_CONNECTION}=1",
        ]
    if request.job.fp8_attention and request.job.recipe.fp4_recipe:
        lines += [
            "# Attention has no fp4: it runs in mxfp8 beside products in nvfp4.",
            "export NVTE_DPA_FP8_RECIPE=MXFP8BlockScaling NVTE_DPA_FP8_FORMAT=E4M3",
        ]
    if request.job.recipe.gemm_precision == "tf32":
        lines += [
            "# The plan prices fp32 GEMMs at TF32 rates.",
            "export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1",
        ]
    return [*lines, ""] if lines else []


def _queue_reason(layout: Layout) -> str:
    return "tensor" if layout.tp > 1 else "context"


_FREE = {
    False: "Learning rate, epsilon, rotary base and initialisation do not change the cost and are"
    " yours.",
    True: "The learning rate does not change the cost and is yours.",
}
"""What no figure of a plan depends on, by whether the model file states its details."""

_SETTINGS = """#
# Run it once on each of the {n_nodes} node(s), with NODE_RANK and MASTER_ADDR set (Slurm: one task
# per node). Further flags of your own go after the script name and win over those below, for
# example: megatron.sh --train-iters 20, or megatron.sh --save DIR --save-interval 500.
# {free}
set -euo pipefail

MASTER_ADDR="${{MASTER_ADDR:-localhost}}"
MASTER_PORT="${{MASTER_PORT:-29500}}"
NODE_RANK="${{NODE_RANK:-${{SLURM_NODEID:-0}}}}"

# ---- YOURS: where things are ----
# Folder of the Megatron-LM checkout.
MEGATRON_DIR="${{MEGATRON_DIR:-.}}"
# As it stands the run takes synthetic data, for a timing trial. Set both for a real one:
# DATA_PATH=/data/corpus_text_document TOKENIZER_MODEL=meta-llama/Meta-Llama-3-8B
DATA_PATH="${{DATA_PATH:-}}"
TOKENIZER_MODEL="${{TOKENIZER_MODEL:-}}"
# ---------------------------------

# megatron.sh --smoke: two steps on CPU processes of this machine, for a plan of a tiny model.
SMOKE=""
if [[ "${{1:-}}" == "--smoke" ]]; then
  SMOKE="$(dirname "${{BASH_SOURCE[0]}}")/megatron_smoke.py"
  shift
fi
EXTRA=("$@")

"""

_SMOKE = """SMOKE=""
if [[ "${{1:-}}" == "--smoke" ]]; then
  SMOKE="$(dirname "${{BASH_SOURCE[0]}}")/megatron_smoke.py"
  shift
fi
"""
_NO_SMOKE = """SMOKE=""
if [[ "${{1:-}}" == "--smoke" ]]; then
  echo "--smoke: the layers of this model have kernels for GPUs alone" >&2
  exit 2
fi
"""


def _settings(shape: ModelShape) -> str:
    """Return the first lines of the script, with or without a smoke run."""
    if runs_on_cpu(shape):
        return _SETTINGS
    head, _, rest = _SETTINGS.partition("# megatron.sh --smoke")
    _, _, tail = rest.partition(_SMOKE)
    return head + _NO_SMOKE + tail


_FUNCTION = """# Puts real data in place of the synthetic and adds the flags of your own.
torchrun() {
  local words=() word
  for word in "$@"; do
    if [[ -n "${DATA_PATH}" && "${word}" == "--mock-data" ]]; then
      # Several weighted paths are several words.
      # shellcheck disable=SC2206
      words+=(--data-path ${DATA_PATH} --split "99,1,0")
    elif [[ -n "${DATA_PATH}" && "${word}" == "NullTokenizer" ]]; then
      words+=(HuggingFaceTokenizer --tokenizer-model "${TOKENIZER_MODEL:?set it with DATA_PATH}")
    else
      words+=("${word}")
    fi
  done
  if [[ -n "${SMOKE}" ]]; then
    exec "${PYTHON:-python3}" "${SMOKE}" "${words[@]}" "${EXTRA[@]}"
  fi
  command torchrun "${words[@]}" "${EXTRA[@]}"
}
"""
