"""What MaxText does not run on TPUs, and what its configuration refuses.

Sources are those of the package `maxtext`. Settings are the keys of its YAML, which words
`key=value` of the command line change. Codes: MXT1xx degrees, batch and context, MXT2xx pipeline,
MXT3xx experts, MXT4xx data parallelism, MXT5xx precision, model and recompute; from x20 on keys.
"""

from collections.abc import Callable
from functools import partial

from costmodels.axes import modules_code
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
    kv_heads_split,
    master_copy,
    narrow_moments,
    one_copy_of_weights,
    optimizer_on_device,
    sequence_chunks,
    usual_rank_order,
)
from searches.frameworks.rule import (
    Enforcement,
    FrameworkRule,
    conditions_rule,
    holding,
    setting_rule,
)

BASE = "maxtext/configs/base.yml, logical_axis_rules"
TYPES = "maxtext/configs/types.py, MaxTextConfig.set_derived_and_validate_values"
PYCONFIG = "maxtext/configs/pyconfig.py, _prepare_for_pydantic"
MESH = "maxtext/utils/max_utils.py, fill_unspecified_mesh_axes"
REORDER = "maxtext/utils/max_utils.py, reorder_sequence"
ATTENTIONS = "maxtext/layers/attentions.py, Attention._validate_kv_head_sharding"
REMAT = "maxtext/layers/nnx_decoders.py, NNXDecoder.get_remat_policy"

PRECISIONS = ("bf16", "fp8-tensorwise")
"""Precisions of plans that files are written for."""
REMAT_POLICIES: dict[tuple[str, ...], str] = {
    (): "minimal_with_context",
    ("core_attn",): "minimal",
    ("mlp",): "save_dot_with_context_except_mlp",
    ("core_attn", "mlp"): "save_dot_except_mlp",
}
"""Policies of dense models by the modules that are computed again, in the order of
`RECOMPUTE_MODULES`. All of them keep products alone: norms and activations are computed again
too, which is not priced."""
AXES = (
    "data",
    "pipeline",
    "fsdp",
    "fsdp_transpose",
    "sequence",
    "context",
    "context_usp_ulysses",
    "context_autoregressive",
    "tensor",
    "tensor_sequence",
    "expert",
    "autoregressive",
    "diloco",
)
"""Axes of the mesh, as keys name them between `ici_` or `dcn_` and `_parallelism`."""
FP8_WITHOUT_ACCUMULATION = ("fp8", "nanoo_fp8", "fp8_gpu", "te_fp8_delayedscaling")

_enforced_in = partial(Enforcement, "maxtext")


def _fsdp_ranks(c: Case) -> Bools:
    """Return the ranks that the hidden width of dense weights is cut over."""
    return c.dp_shard * (c.zero == 3) + (c.zero != 3)


def missing_parts(shape: ModelShape) -> list[str]:
    """Return the parts of a model that the decoder blocks which are written do not have.

    Those are llama2, qwen3, mixtral, qwen3_moe and deepseek.
    """
    experts, latent = shape.n_experts > 0, bool(shape.latent)
    parts = {
        "layer norm": shape.norm != "rmsnorm",
        "learned positions": shape.positions != "rope",
        "an MLP without a gate": not shape.gated,
        "biases": shape.bias,
        "dropout": shape.dropout,
        "a gate of attention's output": shape.attention_gate,
        "a capacity factor": shape.capacity_factor > 0,
        "forced balance of routing": shape.forced_balance,
        "latent attention without experts": latent and not experts,
        "shared experts without latent attention": shape.shared_ffn > 0 and not latent,
        "shared experts of another width than whole routed ones": shape.shared_ffn > 0
        and shape.shared_ffn % max(1, shape.expert_ffn) > 0,
        "dense layers beside experts without latent attention": experts
        and not latent
        and not all(shape.expert_layers),
        "experts in every n-th layer": experts and shape.moe_every > 1,
        "latent experts": shape.moe_latent > 0,
        "multi-token prediction without latent attention": shape.mtp_layers > 0 and not latent,
        "groups of experts without latent attention": shape.n_groups > 1 and not latent,
    }
    return [name for name, wanted in parts.items() if wanted]


def _unwritten_policy(c: Case) -> Bools:
    """Return whether selective recompute is none of the policies of dense models."""
    written = [modules_code(names) for names in REMAT_POLICIES]
    known = sum((c.recompute_modules == code) for code in written) > 0
    dense = c.model.n_experts == 0
    return c.is_recompute("selective") & ((known == 0) | (not dense))


def _layout_rule(
    code: str,
    title: str,
    source: str,
    broken: Callable[[Case], Bools],
    reason: str | Callable[[Case], str],
    closest: str | Callable[[Case], str],
) -> FrameworkRule:
    """Return a rule on plans that no file is written for."""
    return FrameworkRule(code, "maxtext", title, "planner", source, broken, reason, closest)


LAYOUT_RULES: tuple[FrameworkRule, ...] = (
    degrees_positive("MXT100", "maxtext", MESH),
    degrees_divide("MXT101", "maxtext", MESH),
    heads_divide("MXT102", "maxtext", BASE, "planner"),
    kv_heads_split("MXT103", "maxtext", ATTENTIONS, "start"),
    columns_divide("MXT104", "maxtext", BASE, "planner"),
    _layout_rule(
        "MXT105",
        "tensor without sequence parallelism",
        BASE,
        lambda c: (c.tp > 1) & (c.sp == 0),
        lambda c: (
            f"tp {c.tp} with sp off: the axis tensor cuts the hidden width of activations, the"
            " axis tensor_sequence their tokens; no axis keeps them whole"
        ),
        "sp on",
    ),
    _layout_rule(
        "MXT106",
        "the sequence does not divide by tp x cp",
        BASE,
        lambda c: c.job.seq_len % (c.tp * c.cp) > 0,
        lambda c: (
            f"sequence: {c.job.seq_len} tokens do not divide by tp {c.tp} x cp {c.cp}"
            " (activation_norm_length)"
        ),
        "another sequence length, tp or cp",
    ),
    sequence_chunks("MXT107", "maxtext", REORDER, "first step"),
    FrameworkRule(
        "MXT108",
        "maxtext",
        "an odd number of context-parallel ranks",
        "first step",
        REORDER,
        lambda c: (c.cp > 1) & (c.cp % 2 > 0) & (c.is_exchange("a2a") == 0),
        lambda c: f"context parallelism: cp {c.cp} is odd, and chunks are swapped in pairs",
        "an even cp, or cp_comm a2a",
    ),
    usual_rank_order("MXT109", "maxtext", f"{BASE}, mesh_axes"),
    batch_divides("MXT110", "maxtext", TYPES, "planner"),
    FrameworkRule(
        "MXT111",
        "maxtext",
        "a ring of keys and values whose sequence does not divide by cp squared",
        "parse",
        TYPES,
        lambda c: c.is_exchange("p2p") & (c.job.seq_len % (c.cp * c.cp) > 0),
        lambda c: (
            f"ring of cp {c.cp}: {c.job.seq_len} tokens do not divide by {c.cp} x {c.cp}"
            " (context_parallel_strategy ring)"
        ),
        "cp_comm all-gather",
    ),
    FrameworkRule(
        "MXT112",
        "maxtext",
        "a ring of keys and values beside multi-token prediction",
        "parse",
        TYPES,
        lambda c: c.is_exchange("p2p") & (c.model.mtp_layers > 0),
        "ring of keys and values: not with multi-token prediction and balanced chunks",
        "cp_comm all-gather",
    ),
    FrameworkRule(
        "MXT113",
        "maxtext",
        "heads that all-to-alls over the context do not divide",
        "start",
        ATTENTIONS,
        lambda c: c.is_exchange("a2a") & (c.model.kv_heads % (c.tp * c.cp) > 0),
        lambda c: (
            f"all-to-alls over heads: {c.model.kv_heads} KV heads do not divide by tp {c.tp}"
            f" x cp {c.cp} (context_parallel_strategy ulysses)"
        ),
        "cp_comm all-gather",
    ),
    FrameworkRule(
        "MXT114",
        "maxtext",
        "all-to-alls over the heads of latent attention",
        "parse",
        TYPES,
        lambda c: c.is_exchange("a2a") & bool(c.model.latent),
        "all-to-alls over heads: for attention_type global alone, not mla",
        "cp_comm all-gather",
    ),
    _layout_rule(
        "MXT201",
        "a pipeline",
        "maxtext/layers/pipeline.py, Pipeline",
        lambda c: c.pp > 1,
        lambda c: (
            f"pipeline of {c.pp}: every micro-batch runs forward before the first runs backward,"
            " in rounds that have no price; files for it are not written"
        ),
        "pp 1",
    ),
    _layout_rule(
        "MXT202",
        "schedule of a pipeline",
        "maxtext/layers/pipeline.py, Pipeline",
        lambda c: c.is_schedule("none") == 0,
        lambda c: f"schedule {c.schedule_name}: files for a pipeline are not written",
        "pp 1",
    ),
    dense_without_experts("MXT301", "maxtext", BASE, "planner"),
    experts_divide("MXT302", "maxtext", f"{BASE}, exp", "planner"),
    _layout_rule(
        "MXT303",
        "ep does not divide the ranks that sequences are spread over",
        BASE,
        lambda c: (c.ep > 1) & (c.zero == 3) & (c.dp_shard % (c.ep * c.cp) > 0),
        lambda c: (
            f"expert parallelism: ep {c.ep} x cp {c.cp} does not divide ZeRO groups of"
            f" {c.dp_shard}: the axes expert, fsdp and context share them"
        ),
        "an ep that divides dp_shard / cp",
    ),
    _layout_rule(
        "MXT304",
        "experts that are cut otherwise than over tp",
        f"{BASE}, mlp_moe",
        lambda c: (c.model.n_experts > 0) & (c.etp != c.tp),
        lambda c: f"etp {c.etp} with tp {c.tp}: the axis of tp cuts experts too",
        lambda c: f"etp {c.tp}",
    ),
    _layout_rule(
        "MXT305",
        "expert width does not divide by tp",
        f"{BASE}, mlp_moe",
        lambda c: (c.model.n_experts > 0) & (c.model.expert_ffn % c.tp > 0),
        lambda c: f"experts: width {c.model.expert_ffn} does not divide by tp {c.tp}",
        "a tp that divides it",
    ),
    _layout_rule(
        "MXT401",
        "gradients alone sharded",
        BASE,
        lambda c: c.zero == 2,
        "ZeRO-2: the axis fsdp shards weights, gradients and optimizer",
        "zero 3",
    ),
    _layout_rule(
        "MXT402",
        "replicas over context or experts",
        f"{BASE}, embed",
        lambda c: (c.zero < 3) & ((c.cp > 1) | (c.ep > 1)),
        lambda c: (
            f"ZeRO-{c.zero} with cp {c.cp} and ep {c.ep}: weights are always cut over the axes"
            " context and expert"
        ),
        "zero 3",
    ),
    _layout_rule(
        "MXT403",
        "an optimizer sharded in groups",
        "maxtext/utils/sharding.py, maybe_update_params_sharding_with_opt",
        lambda c: (c.zero == 1) & (c.dp_shard != c.dp * c.cp),
        lambda c: (
            f"ZeRO-1 in groups of {c.dp_shard}: shard_optimizer_over_data takes all of the axis"
            " data"
        ),
        lambda c: f"dp_shard {c.dp * c.cp}",
    ),
    _layout_rule(
        "MXT404",
        "ZeRO groups that do not hold whole contexts",
        BASE,
        lambda c: (c.zero == 3) & (c.dp_shard % c.cp > 0),
        lambda c: f"ZeRO groups of {c.dp_shard}: no multiple of cp {c.cp}",
        "groups of a multiple of cp",
    ),
    _layout_rule(
        "MXT405",
        "a hidden width that the shards do not divide",
        f"{BASE}, embed",
        lambda c: c.model.hidden % _fsdp_ranks(c) > 0,
        lambda c: (
            f"ZeRO-3 over {c.dp_shard} ranks: they do not divide the hidden width"
            f" {c.model.hidden}, which the axes fsdp, context and expert cut"
        ),
        "ZeRO groups that divide the hidden width",
    ),
    optimizer_on_device("MXT406", "maxtext", TYPES, "optimizer_memory_host_offload"),
    _layout_rule(
        "MXT407",
        "data-parallel traffic that runs beside nothing",
        "XLA, latency-hiding scheduler",
        lambda c: c.dp_overlap == 0,
        "dp_overlap off: XLA schedules collectives beside compute by itself",
        "dp_overlap on",
    ),
    inputs_alone_leave("MXT408", "maxtext", REMAT, "decoder_layer_input offload"),
    _layout_rule(
        "MXT409",
        "inputs of some layers on the host",
        REMAT,
        lambda c: (
            (c.activation_offload_layers > 0) & (c.activation_offload_layers < c.longest_stage)
        ),
        lambda c: (
            f"activations of {c.activation_offload_layers} layers on the host: a policy holds for"
            " all layers"
        ),
        "those of all layers, or activation_offload off",
    ),
    one_copy_of_weights("MXT410", "maxtext", BASE),
    known_optimizer("MXT411", "maxtext", "maxtext/optimizers/optimizers.py, get_optimizer"),
    narrow_moments("MXT412", "maxtext", "maxtext/optimizers/optimizers.py, get_optimizer"),
    master_copy("MXT413", "maxtext", "maxtext/configs/types.py, DataTypes"),
    _layout_rule(
        "MXT501",
        "precision that is not written",
        "maxtext/layers/quantizations.py",
        lambda c: c.job.precision not in PRECISIONS,
        lambda c: f"precision {c.job.label}: written are {' and '.join(PRECISIONS)}",
        "precision bf16",
    ),
    _layout_rule(
        "MXT502",
        "model that no decoder block is written for",
        "maxtext/models",
        lambda c: bool(missing_parts(c.model)),
        lambda c: (
            "model: the decoder blocks that are written have no"
            f" {', no '.join(missing_parts(c.model))}"
        ),
        "a model like Llama, Qwen 3, Mixtral or DeepSeek-V3",
    ),
    _layout_rule(
        "MXT503",
        "recomputed modules that no policy has",
        REMAT,
        _unwritten_policy,
        "recompute of modules: policies of dense models compute core_attn and mlp again; of"
        " experts they save nothing",
        "recompute full, or modules core_attn or mlp of a dense model",
    ),
    _layout_rule(
        "MXT504",
        "some layers recomputed",
        REMAT,
        lambda c: (
            c.is_recompute("full")
            & (c.recompute_layers > 0)
            & (c.recompute_layers < c.longest_stage)
        ),
        lambda c: f"recompute of {c.recompute_layers} layers: a policy holds for all layers",
        "all of them",
    ),
    _layout_rule(
        "MXT505",
        "options of fp8 beside the products",
        "maxtext/layers/quantizations.py",
        lambda c: (
            c.job.fp8_param_gather
            or c.job.fp8_attention
            or c.job.fp8_output
            or c.job.bf16_layers != (0, 0)
        ),
        "precision: quantization fp8_full says products of weights alone",
        "fp8_param_gather, fp8_attention and fp8_output off, no bf16_layers",
    ),
    _layout_rule(
        "MXT506",
        "nothing of experts recomputed",
        f"{REMAT}; {PYCONFIG}",
        lambda c: c.is_recompute("none") & (c.model.n_experts > 0),
        "recompute none: no policy keeps the products of experts; remat_policy none is read as no"
        " policy, under which every layer is computed again",
        "recompute full",
    ),
)
"""Rules over layouts alone."""


def _unequal_widths(c: Case) -> bool:
    """Tell whether a mixtral block has two widths (a YAML states both, and no model name)."""
    mlp, moe = c.setting("base_mlp_dim"), c.setting("base_moe_mlp_dim")
    return (
        c.setting("decoder_block") == "mixtral"
        and mlp is not None
        and moe is not None
        and int(str(mlp)) != int(str(moe))
    )


def axis_size(c: Case, network: str, axis: str) -> int:
    """Return a degree of the mesh; -1 stands for all devices that are left."""
    usual = -1 if (network, axis) in (("ici", "fsdp"), ("dcn", "data")) else 1
    return int(str(c.setting(f"{network}_{axis}_parallelism", usual)))


def degree(c: Case, axis: str) -> int:
    """Return a degree over both networks; -1 counts as 1."""
    return max(1, axis_size(c, "ici", axis)) * max(1, axis_size(c, "dcn", axis))


def _open_axes(c: Case) -> list[str]:
    """Return the networks of which several axes are left open, or have sizes below 1."""
    results = []
    for network in ("ici", "dcn"):
        sizes = {axis: axis_size(c, network, axis) for axis in AXES}
        opened = [axis for axis, size in sizes.items() if size == -1]
        odd = [f"{network}_{axis}_parallelism {n}" for axis, n in sizes.items() if n < -1 or not n]
        if len(opened) > 1:
            names = " and ".join(f"{network}_{axis}_parallelism" for axis in opened)
            results.append(f"{names} are -1, which one may be")
        results += odd
    return results


def _mesh(c: Case) -> list[str]:
    """Return what is wrong where all degrees of the mesh are stated, or do not divide."""
    product, is_open = 1, False
    for network in ("ici", "dcn"):
        for axis in AXES:
            size = axis_size(c, network, axis)
            is_open |= size == -1
            product *= max(1, size)
    if is_open:
        return [f"degrees of {product} do not divide {c.n_devices} devices"] * (
            c.n_devices % product > 0
        )
    return [f"degrees multiply to {product}, not to {c.n_devices} devices"] * (
        product != c.n_devices
    )


def _stages(c: Case) -> list[str]:
    """Return what MaxText refuses of a pipeline."""
    stages = degree(c, "pipeline")
    if stages == 1:
        return []
    layers = c.setting("pipeline_parallel_layers", -1)
    layers = c.model.layers - c.model.dense_layers if layers == -1 else layers
    each = c.setting("num_layers_per_pipeline_stage", 1)
    repeats = c.setting("num_pipeline_repeats", -1)
    micro = c.setting("num_pipeline_microbatches", -1)
    broken = {
        f"{layers} layers do not divide into {stages} stages of {each}": repeats == -1
        and layers % (stages * each) > 0,
        f"{stages} stages x {repeats} repeats x {each} layers are not {layers}": repeats != -1
        and stages * repeats * each != layers,
        f"num_pipeline_microbatches {micro} is no multiple of {stages} stages": micro != -1
        and micro % stages > 0,
    }
    return holding(broken)


def _ring(c: Case) -> list[str]:
    if str(c.setting("context_parallel_strategy", "all_gather")).lower() != "ring":
        return []
    cp = degree(c, "context")
    return holding(
        {
            "ring needs ici_context_parallelism above 1": cp == 1,
            "ring needs use_tokamax_splash": not c.setting("use_tokamax_splash", False),
            "ring needs attention flash": c.setting("attention", "autoselected") != "flash",
            "ring of latent attention needs packing false": bool(c.model.latent)
            and bool(c.setting("packing", True)),
        }
    )


def _ulysses(c: Case) -> list[str]:
    if str(c.setting("context_parallel_strategy", "all_gather")).lower() != "ulysses":
        return []
    return holding(
        {
            "ulysses needs ici_context_parallelism above 1": axis_size(c, "ici", "context") <= 1,
            "ulysses knows no dcn_context_parallelism": axis_size(c, "dcn", "context") != 1,
            "ulysses needs use_tokamax_splash": not c.setting("use_tokamax_splash", False),
            "ulysses needs attention flash": c.setting("attention", "autoselected") != "flash",
            "ulysses needs context_parallel_load_balance false": bool(
                c.setting("context_parallel_load_balance", True)
            ),
        }
    )


SETTINGS_RULES: tuple[FrameworkRule, ...] = (
    setting_rule(
        "MXT120",
        "key that the release does not know",
        lambda c: bool(c.unknown),
        lambda c: f"unknown: {', '.join(c.unknown)}",
        "a key of base.yml",
        _enforced_in(PYCONFIG),
    ),
    setting_rule(
        "MXT121",
        "value that its schema refuses",
        lambda c: bool(c.refused),
        lambda c: "; ".join(c.refused),
        "a value of the type of the key",
        _enforced_in("maxtext/configs/types.py, MaxTextConfig"),
    ),
    conditions_rule(
        "MXT122",
        "several axes that are left open",
        _open_axes,
        "-1 for one axis of each network",
        _enforced_in(MESH, "start"),
    ),
    conditions_rule(
        "MXT123",
        "a mesh that does not take all devices",
        _mesh,
        "degrees whose product is the number of devices, or -1 for one of them",
        _enforced_in(MESH, "start", covers=("MXT101",)),
    ),
    conditions_rule(
        "MXT124",
        "a ring of keys and values without its kernel",
        _ring,
        "context_parallel_strategy all_gather",
        _enforced_in(TYPES),
    ),
    conditions_rule(
        "MXT125",
        "all-to-alls over heads without their kernel",
        _ulysses,
        "context_parallel_strategy all_gather",
        _enforced_in(TYPES),
    ),
    conditions_rule(
        "MXT220",
        "layers that do not divide into stages",
        _stages,
        "num_layers_per_pipeline_stage that divides them, micro-batches in multiples of stages",
        _enforced_in(TYPES),
    ),
    setting_rule(
        "MXT420",
        "an optimizer sharded over data beside fsdp",
        lambda c: (
            bool(c.setting("shard_optimizer_over_data", False))
            and (degree(c, "fsdp") > 1 or degree(c, "fsdp_transpose") > 1)
        ),
        "shard_optimizer_over_data is for the axis data alone, beside an fsdp of 1",
        "shard_optimizer_over_data false",
        _enforced_in(TYPES),
    ),
    setting_rule(
        "MXT520",
        "fp8 beside accumulated gradients",
        lambda c: (
            c.setting("quantization", "") in FP8_WITHOUT_ACCUMULATION
            and c.setting("gradient_accumulation_steps", 1) > 1
        ),
        lambda c: (
            f"quantization {c.setting('quantization')} with gradient_accumulation_steps"
            f" {c.setting('gradient_accumulation_steps')}"
        ),
        "quantization fp8_full with use_qwix_quantization, or gradient_accumulation_steps 1",
        _enforced_in(TYPES),
    ),
    setting_rule(
        "MXT521",
        "widths of experts and dense layers that differ",
        _unequal_widths,
        lambda c: (
            f"base_mlp_dim {c.setting('base_mlp_dim')} is not base_moe_mlp_dim"
            f" {c.setting('base_moe_mlp_dim')}, and every layer of mixtral has experts"
        ),
        lambda c: f"base_mlp_dim {c.setting('base_moe_mlp_dim')}",
        _enforced_in(TYPES),
    ),
)
"""Rules over keys."""

RULES: tuple[FrameworkRule, ...] = LAYOUT_RULES + SETTINGS_RULES
"""All rules of MaxText."""
