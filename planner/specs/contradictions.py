"""What contradicts itself in a model or cluster file, each of whose fields is right by itself."""

from collections.abc import Sequence, Set

from costmodels.layers.kinds import KIND_ALIASES, MIXERS, kind_of
from costmodels.optimizers.records import MuonOptions
from costmodels.precision import Numerics, numerics_fault
from costmodels.shapes import MIXER_SECTIONS
from planner.specs.schema import (
    EXPERT_DETAILS,
    ROOT_SCORES,
    ClusterFile,
    LayerPatternSpec,
    LayerRunSpec,
    ModelFile,
    ModelSpec,
    PoolSpec,
    SpecFault,
    TierSpec,
    TrainingSpec,
)
from planner.specs.sections.diffusion import diffusion_faults
from planner.specs.sections.encoder import encoder_faults, has_second_sequence
from planner.specs.sections.vision import vision_faults
from planner.specs.yaml.document import KeyPath


def model_faults(spec: ModelFile) -> list[SpecFault]:
    """Return what is wrong between the fields of a model file."""
    model, job = spec.model, spec.training
    checks = (
        (
            bool(model.kv_heads and model.heads % model.kv_heads),
            SpecFault(
                ("model", "kv_heads"),
                f"{model.heads} heads cannot be shared out over {model.kv_heads} kv_heads",
                "kv_heads must divide heads",
            ),
        ),
        (
            model.head_dim is None and model.mla is None and model.hidden % model.heads > 0,
            SpecFault(
                ("model", "heads"),
                f"hidden {model.hidden} is not a multiple of heads {model.heads}",
                "change one of them, or give head_dim",
            ),
        ),
        (model.gated and model.ffn is None and _needs_ffn(model), _FFN_FAULT),
        (
            0 < model.padded_vocab < model.vocab,
            SpecFault(
                ("model", "padded_vocab"),
                f"{model.padded_vocab} is smaller than vocab {model.vocab}",
                "give the padded size, or leave it out",
            ),
        ),
        (
            model.positions == "learned" and 0 < model.max_positions < job.seq_len,
            SpecFault(
                ("model", "max_positions"),
                f"{model.max_positions} learned positions are fewer than seq_len {job.seq_len}",
                f"raise max_positions to {job.seq_len}, or lower training.seq_len",
            ),
        ),
    )
    results = [fault for failed, fault in checks if failed]
    return [
        *results,
        *_layer_kind_faults(model),
        *_stream_faults(model),
        *vision_faults(model, job),
        *encoder_faults(model),
        *diffusion_faults(model, job),
        *_moe_faults(model),
        *_mla_faults(model),
        *_detail_faults(model),
        *_job_faults(job),
    ]


def _needs_ffn(model: ModelSpec) -> bool:
    """Tell whether some layer has an MLP, or experts, of width `ffn`."""
    moe = model.moe
    if model.layer_kinds:
        feeds = {kind_of(kind).feed for run in model.layer_kinds for kind in run.kinds}
        if feeds & {"dense", "injected"}:
            return True
        return "moe" in feeds and (moe is None or moe.moe_ffn is None)
    return moe is None or moe.moe_ffn is None or moe.dense_layers > 0 or moe.every > 1


def _layer_kind_faults(model: ModelSpec) -> list[SpecFault]:
    """Return what is wrong between the kinds of layers and the rest."""
    if model.layer_kinds is None:
        faults = _per_layer_faults(model, {"dense"})
        return [*faults, *_variant_faults(model, ()), *_section_faults(model, ())]
    moe, runs = model.moe, model.layer_kinds
    total = sum(len(run.kinds) for run in runs)
    routed = [i for i, x in enumerate(runs) if any(kind_of(kind).is_routed for kind in x.kinds)]
    section = ("model", "layer_kinds")
    checks = (
        (
            total != model.layers,
            section,
            f"the counts add up to {total}, `layers` is {model.layers}",
            f"set model.layers to {total}, or change a count",
        ),
        (
            bool(routed) and moe is None,
            (*section, routed[0] if routed else 0, "kind"),
            "layers with routed experts need a `moe` section",
            "add `moe:` with `experts` and `topk`, or name another kind",
        ),
        (
            not routed and moe is not None,
            section,
            "no layer has routed experts, which `moe` describes",
            "name a kind with experts, or leave `moe` out",
        ),
        (
            moe is not None and (moe.dense_layers > 0 or moe.every > 1),
            ("model", "moe", "dense_layers" if moe and moe.dense_layers else "every"),
            "stands beside `layer_kinds`, which says where the expert layers are",
            "keep one of them",
        ),
    )
    faults = [SpecFault(path, message, fix) for failed, path, message, fix in checks if failed]
    faults += _per_layer_faults(model, {kind_of(kind).feed for run in runs for kind in run.kinds})
    return [*faults, *_variant_faults(model, runs), *_section_faults(model, runs)]


def _per_layer_faults(model: ModelSpec, feeds: set[str]) -> list[SpecFault]:
    """Return what is wrong between embeddings of layers and the kinds that have them."""
    if model.per_layer and feeds != {"injected"}:
        message, fix = "not every layer has such an embedding", "name kinds with +injected alone"
        return [SpecFault(("model", "per_layer"), message, fix)]
    if "injected" in feeds and not model.per_layer:
        message = "`injected` layers need a `per_layer` section"
        fix = "add `per_layer:` with `width` and `vocab`, or name another kind"
        return [SpecFault(("model", "layer_kinds"), message, fix)]
    return []


def _variant_faults(
    model: ModelSpec, runs: Sequence[LayerRunSpec | LayerPatternSpec]
) -> list[SpecFault]:
    """Return what is wrong between the variants and the kinds that name them."""
    faults, used = list[SpecFault](), set[str]()
    for i, run in enumerate(runs):
        for kind in dict.fromkeys(run.kinds):
            name = kind.partition("@")[2]
            if name and name not in model.variants and name not in used:
                key = "kind" if isinstance(run, LayerRunSpec) else "pattern"
                path = ("model", "layer_kinds", i, key)
                fix = f"add `variants: {{{name}: ...}}` under `model`, or name a variant of it"
                faults.append(SpecFault(path, f"{kind}: there is no variant {name}", fix))
            used.add(name)
    every = [kind for run in runs for kind in run.kinds]
    if every and (name := every[0].partition("@")[2]) in model.variants:
        one = model.variants[name]
        if one.reused or one.kv_shared:
            where = ("model", "variants", name)
            message = "the first layer has no earlier one to take anything of"
            faults.append(SpecFault(where, message, "name another kind for the first layer"))
    faults += _own_pair_faults(model, every)
    for name, variant in model.variants.items():
        routed = any(kind_of(x).is_routed for x in every if x.partition("@")[2] == name)
        heads = variant.heads or model.heads
        kv_heads = variant.kv_heads or model.kv_heads or heads
        wrong = (
            (name not in used, "no layer is of this variant", f"name a kind with @{name}"),
            (
                variant.reused and routed,
                "layers with routed experts that run again are not priced",
                "use dense kinds for them",
            ),
            (not variant.sizes, "it says no size of its own", "state one, or leave it out"),
            (
                heads % kv_heads > 0,
                f"{heads} heads cannot be shared out over {kv_heads} kv_heads",
                "kv_heads must divide heads",
            ),
            (
                model.mla is not None and bool(set(variant.sizes) - {"ffn", "window"}),
                "heads of latent attention are the same in all layers",
                "state ffn or window alone",
            ),
        )
        where = ("model", "variants", name)
        faults += [SpecFault(where, message, fix) for failed, message, fix in wrong if failed]
    return faults


PAIRS_VARY = ("attention", "window", "chunk", "bidirectional", "bidirectional-window")
"""Mixers that are priced with keys and values of unlike widths, or of another layer."""


def _own_pair_faults(model: ModelSpec, kinds: Sequence[str]) -> list[SpecFault]:
    """Return what other attention has of keys and values that is not priced for it."""
    pair = ("value_dim", "kv_shared", "keys_as_values")
    faults = list[SpecFault]()
    for kind in dict.fromkeys(kinds):
        mixer, name = kind_of(kind).mixer, kind.partition("@")[2]
        sizes = model.variants[name].sizes if name in model.variants else {}
        stated = [key for key in pair if key in sizes or (key == "value_dim" and model.value_dim)]
        is_other = mixer not in MIXERS or MIXERS[mixer].attends
        if stated and is_other and mixer not in PAIRS_VARY:
            message = f"{kind}: {stated[0]} is not priced in layers of {mixer}"
            fix = f"leave it out, or name kinds of {', '.join(PAIRS_VARY)}"
            faults.append(SpecFault(("model", "layer_kinds"), message, fix))
    return faults


def _size_faults(model: ModelSpec, mixers: Set[str]) -> list[SpecFault]:
    """Return which sizes of a mixer do not go together."""
    faults = []
    if (x := model.mamba2) and x.heads % x.groups:
        faults.append(
            SpecFault(
                ("model", "mamba2", "groups"),
                f"{x.heads} heads cannot be shared out over {x.groups} groups",
                "groups must divide heads",
            )
        )
    if (z := model.rglru) and z.width % z.heads:
        faults.append(
            SpecFault(
                ("model", "rglru", "heads"),
                f"a width of {z.width} cannot be cut into {z.heads} blocks",
                "heads must divide width",
            )
        )
    if model.factored and model.mla:
        faults.append(
            SpecFault(
                ("model", "factored"),
                "latent attention has a rank of queries of its own",
                "set model.mla.q_rank, and leave factored out",
            )
        )
    if (v := model.indexer) and v.top_k % v.block:
        faults.append(
            SpecFault(
                ("model", "indexer", "block"),
                f"{v.top_k} keys are no whole number of blocks of {v.block}",
                "block must divide top_k",
            )
        )
    if (y := model.delta_net) and y.full_gates and "gdn" in mixers:
        faults.append(
            SpecFault(
                ("model", "delta_net", "full_gates"),
                "gdn layers have no gates of their own width",
                "leave it out, or name kda layers",
            )
        )
    if (y := model.delta_net) and y.v_heads % y.k_heads:
        faults.append(
            SpecFault(
                ("model", "delta_net", "v_heads"),
                f"{y.v_heads} heads of values are no multiple of {y.k_heads} heads of keys",
                "k_heads must divide v_heads",
            )
        )
    return faults


def _compressed_faults(model: ModelSpec, mixers: Set[str]) -> list[SpecFault]:
    """Return which sizes of compressed attention do not go together."""
    x, details = model.compressed, model.details
    if x is None and details.router_scores == ROOT_SCORES:
        message = f"{ROOT_SCORES} stands without layers that score experts so"
        fix = "write softmax or sigmoid, or name csa, hca or shared-window layers"
        return [SpecFault(("model", "details", "router_scores"), message, fix)]
    if x is None:
        return []
    width = model.head_dim or model.hidden // model.heads
    missing = [name for name in ("index_heads", "index_dim", "top_k") if not getattr(x, name)]
    checks = (
        (
            model.heads % x.groups > 0,
            "groups",
            f"{model.heads} heads cannot be shared out over {x.groups} groups",
            "groups must divide heads",
        ),
        (
            "csa" in mixers and bool(missing),
            missing[0] if missing else "top_k",
            "csa layers have an indexer, whose sizes are not all given",
            "give index_heads, index_dim and top_k",
        ),
        (
            x.rope_dim > width,
            "rope_dim",
            f"{x.rope_dim} elements of a head of {width} have rotary positions",
            f"give at most {width}",
        ),
    )
    return [
        SpecFault(("model", "compressed", name), message, fix)
        for failed, name, message, fix in checks
        if failed
    ]


def _stream_faults(model: ModelSpec) -> list[SpecFault]:
    """Return which kinds of layers cannot have several residual streams."""
    if model.residual_streams is None:
        return []
    path = ("model", "residual_streams")
    faults = []
    others = {
        "an encoder": model.encoder,
        "per_layer": model.per_layer,
        "diffusion": model.diffusion,
    }
    for name in (name for name, section in others.items() if section is not None):
        message = f"stands beside {name}, whose layers have other streams"
        faults.append(SpecFault(path, message, "leave one of them out"))
    runs = model.layer_kinds or ()
    own = [
        kind
        for run in runs
        for kind in run.kinds
        if kind.partition("@")[0] not in KIND_ALIASES.values() and "+" not in kind
    ]
    if own:
        message = f"layers of kind {own[0]} are no mixer and feed, which streams connect"
        faults.append(SpecFault(path, message, "name kinds such as attention+dense"))
    return faults


def _states(model: ModelSpec, section: str) -> bool:
    if section == "cross":
        return has_second_sequence(model)
    return getattr(model, section) is not None


def _section_faults(
    model: ModelSpec, runs: Sequence[LayerRunSpec | LayerPatternSpec]
) -> list[SpecFault]:
    """Return which sizes of mixers are missing, and which no kind of layer has."""
    faults, used = [], set()
    for i, run in enumerate(runs):
        for kind in dict.fromkeys(run.kinds):
            name = kind_of(kind).mixer
            section = MIXERS[name].section if name in MIXERS else ""
            if section and not _states(model, section) and section not in used:
                key = "kind" if isinstance(run, LayerRunSpec) else "pattern"
                faults.append(
                    SpecFault(
                        ("model", "layer_kinds", i, key),
                        f"layers of kind {kind} need a `{section}` section",
                        f"add `{section}:` under `model`, or name another kind",
                    )
                )
            used.add(section)
    mixers = {kind_of(kind).mixer for run in runs for kind in run.kinds}
    faults += _size_faults(model, mixers) + _compressed_faults(model, mixers)
    differs = any(kind_of(kind).mixer == "differential" for run in runs for kind in run.kinds)
    kv_heads = model.kv_heads or model.heads
    if differs and kv_heads % 2:
        faults.append(
            SpecFault(
                ("model", "kv_heads"),
                f"differential attention pairs its heads, and {kv_heads} is odd",
                "write an even number of KV heads",
            )
        )
    both_sides = any(
        kind_of(kind).mixer == "bidirectional-window" for run in runs for kind in run.kinds
    )
    if both_sides and model.window and model.window.size % 2 == 0:
        size = model.window.size
        faults.append(
            SpecFault(
                ("model", "window", "size"),
                f"{size} tokens are a query and not as many on both sides of it",
                f"write {size + 1} for {size // 2} on each side (local_attention {size})",
            )
        )
    faults += [
        SpecFault(
            ("model", section),
            "no kind of layer has these sizes",
            f"name kinds with them in `layer_kinds`, or leave `{section}` out",
        )
        for section in MIXER_SECTIONS
        if getattr(model, section) is not None and section not in used
    ]
    return faults


def _moe_faults(model: ModelSpec) -> list[SpecFault]:
    """Return what is wrong between the fields of the experts."""
    moe = model.moe
    if moe is None:
        return []
    groups, used = moe.routing_groups, moe.top_groups or moe.routing_groups
    first = moe.dense_layers + moe.every
    checks = (
        (
            moe.topk > moe.experts,
            "topk",
            f"{moe.topk} experts a token of {moe.experts}",
            f"give at most {moe.experts}",
        ),
        (
            first > model.layers and not model.layer_kinds,
            "dense_layers" if moe.dense_layers >= model.layers else "every",
            f"no layer has experts: the first would be layer {first} of {model.layers}",
            "lower it, or leave `moe` out",
        ),
        (
            moe.experts % groups > 0,
            "routing_groups",
            f"{moe.experts} experts cannot be shared out over {groups} groups",
            "routing_groups must divide experts",
        ),
        (used > groups, "top_groups", f"{used} groups of {groups}", f"give at most {groups}"),
        (
            used * moe.experts // groups < min(moe.topk, moe.experts),
            "top_groups",
            f"{used} groups hold {used * moe.experts // groups} experts, fewer than topk"
            f" {moe.topk}",
            "raise it",
        ),
        (
            moe.imbalance > moe.experts / moe.topk,
            "imbalance",
            f"{moe.imbalance:g} times the mean: no expert can have more than experts / topk ="
            f" {moe.experts / moe.topk:g} times",
            "1.05 to 1.3 is usual",
        ),
        (
            moe.capacity_factor > 0 and moe.imbalance > 1,
            "imbalance",
            "stands beside `capacity_factor`, which pads every expert to the same rows",
            "keep one of them",
        ),
        (
            moe.forced_balance and (moe.imbalance > 1 or moe.capacity_factor > 0),
            "forced_balance",
            "stands beside `imbalance` or `capacity_factor`: routing that is forced to balance"
            " has neither a busiest rank nor tokens to drop",
            "keep one of them",
        ),
        (
            0 < moe.capacity_factor < 1,
            "capacity_factor",
            f"{moe.capacity_factor:g} drops tokens of a perfectly balanced batch",
            "give 1 or more, or 0 for dropless",
        ),
        (
            moe.shared_ffn == 0 and moe.shared_experts > 0,
            "shared_ffn",
            f"{moe.shared_experts} shared experts of width 0",
            "give the width of all of them together, or leave it out",
        ),
    )
    return [
        SpecFault(("model", "moe", key), message, fix)
        for failed, key, message, fix in checks
        if failed
    ]


def _mla_faults(model: ModelSpec) -> list[SpecFault]:
    """Return what latent attention excludes."""
    inputs = ("kv_heads", model.kv_heads), ("head_dim", model.head_dim)
    faults = [
        SpecFault(
            ("model", key),
            "stands beside `mla`, which has a key and a value head for every head",
            "leave it out",
        )
        for key, value in inputs
        if model.mla is not None and value is not None
    ]
    if model.mla is not None and model.attention_gate:
        faults.append(
            SpecFault(
                ("model", "attention_gate"),
                "a gate of latent attention is not modelled in this version",
                "leave it out, or state heads without `mla`",
            )
        )
    if model.mla is not None and not model.flash_attention:
        message = "latent attention without a fused kernel is not modelled in this version"
        faults.append(SpecFault(("model", "flash_attention"), message, "leave it out"))
    if model.mla is not None and model.bias:
        message = "latent attention with biases is not modelled in this version"
        faults.append(SpecFault(("model", "bias"), message, "leave it out"))
    if model.mla is not None and model.positions != "rope":
        message = "latent attention has rotary positions"
        faults.append(SpecFault(("model", "positions"), message, "leave it out"))
    if model.mtp_layers and model.positions != "rope":
        message = "multi-token prediction needs rotary positions"
        faults.append(SpecFault(("model", "positions"), message, "use rope, or no mtp_layers"))
    return faults


def _detail_faults(model: ModelSpec) -> list[SpecFault]:
    """Return what is wrong between the details, and between them and the sizes."""
    details, own_details = model.details, model.details.stated()
    checks = [
        (
            details.rope_scaling not in (None, "longrope") and not details.rope_scaling_factor,
            "rope_scaling",
            "stands without `rope_scaling_factor`",
            "say by how much positions are stretched",
        ),
        (
            details.rope_scaling is None and details.rope_scaling_factor is not None,
            "rope_scaling_factor",
            "stands without `rope_scaling`",
            "say how: linear, llama3, yarn, dynamic or longrope",
        ),
        (
            details.full_attention_every is not None and details.window is None,
            "full_attention_every",
            "stands without `window`",
            "give the tokens that the other layers attend to",
        ),
    ]
    if model.moe is None:
        text, fix = "stands in a model without experts", "leave it out, or add `moe`"
        checks += [(name in own_details, name, text, fix) for name in EXPERT_DETAILS]
    if model.positions != "rope":
        text, fix = "stands beside learned positions", "leave it out"
        rotary = [name for name in own_details if name.startswith(("rotary_", "rope_"))]
        checks += [(True, name, text, fix) for name in rotary]
    return [
        SpecFault(("model", "details", key), message, fix)
        for failed, key, message, fix in checks
        if failed
    ]


_FFN_FAULT = SpecFault(
    ("model", "ffn"),
    "is missing, and a gated MLP has no usual inner width",
    "add `ffn:` (intermediate_size in a Hugging Face config)",
)


def _job_faults(job: TrainingSpec) -> list[SpecFault]:
    faults = []
    for name in job.precisions:
        numerics = Numerics(
            name,
            job.optimizer,
            job.grad_dtype or "",
            job.optimizer_states,
            job.fp8_param_gather,
            job.fp8_attention,
            job.fp8_output,
            MuonOptions(**job.muon.model_dump()),
        )
        # Of several precisions each is searched with what it can have.
        if len(job.precisions) == 1 and (message := numerics_fault(numerics)):
            field = message.partition(" ")[0]
            fix = "change one of the two, or leave it out"
            faults.append(SpecFault(("training", field), message.partition(" ")[2], fix))
    step = job.seq_len * job.global_batch
    if job.tokens is not None and job.tokens < step:
        message = f"{job.tokens:g} tokens are less than one step ({step} tokens)"
        fix = "tokens is the length of the whole run, such as 15e12"
        faults.append(SpecFault(("training", "tokens"), message, fix))
    return faults


def cluster_faults(spec: ClusterFile) -> list[SpecFault]:
    """Return what is wrong between the fields of a cluster file, catalogue figures aside."""
    faults = [fault for i, pool in enumerate(spec.pools) for fault in _pool_faults(pool, i)]
    names: list[str] = []
    for i, tier in enumerate(spec.fabric.tiers):
        path = ("fabric", "tiers", i)
        if tier.name in names:
            message = f"a second tier named {tier.name!r}"
            faults.append(SpecFault((*path, "name"), message, "give every tier its own name"))
        names.append(tier.name)
        if i and (fault := _tier_fault(spec.fabric.tiers[i - 1], tier, (*path, "nodes"))):
            faults.append(fault)
        if tier.sharp and i and not spec.fabric.tiers[i - 1].sharp:
            below = spec.fabric.tiers[i - 1].name
            message = f"the switches of {tier.name!r} sum, those of {below!r} below do not"
            faults.append(
                SpecFault((*path, "sharp"), message, "set `sharp: true` from the lowest up")
            )
    return faults


def _pool_faults(pool: PoolSpec, index: int) -> list[SpecFault]:
    """Return what is wrong between the fields of one pool, catalogue figures aside."""
    path: KeyPath = ("pools", index)
    n_listed = None if pool.free_devices is None else len(pool.free_devices)
    checks = (
        (
            pool.accelerator is None and pool.instance is None,
            SpecFault(
                (*path, "accelerator"),
                "is missing",
                "add `accelerator:` (a catalogue name) or `instance:` (a server, a cloud machine)",
            ),
        ),
        (
            pool.accelerator is not None and pool.instance is not None,
            SpecFault(
                (*path, "instance"),
                "stands beside `accelerator`, and says the accelerator itself",
                "keep one of them",
            ),
        ),
        (
            pool.free_nodes is not None and pool.free_nodes > pool.nodes,
            SpecFault(
                (*path, "free_nodes"),
                f"{pool.free_nodes} free nodes of {pool.nodes}",
                "give at most `nodes`",
            ),
        ),
        (
            pool.free_nodes is not None and pool.free_devices is not None,
            SpecFault((*path, "free_nodes"), "stands beside `free_devices`", "keep one of them"),
        ),
        (
            n_listed is not None and n_listed != pool.nodes,
            SpecFault(
                (*path, "free_devices"),
                f"{n_listed} numbers for {pool.nodes} nodes",
                "give one number for every node",
            ),
        ),
        (
            pool.partial_nodes and pool.free_devices is None,
            SpecFault(
                (*path, "partial_nodes"),
                "needs `free_devices`, the free devices of every node",
                "add it, or leave this key out",
            ),
        ),
    )
    return [fault for failed, fault in checks if failed]


def segment_fault(
    path: KeyPath, segment: int | None, domain: int, per_node: int
) -> SpecFault | None:
    """Return what is wrong with the devices that jobs use of every scale-up domain."""
    if segment is None:
        return None
    if domain <= per_node:
        message = f"a domain of {domain} devices is no more than a node"
        return SpecFault(
            path, message, "leave it out: only domains of several nodes are used in part"
        )
    if segment % per_node:
        message = f"{segment} devices are no whole nodes of {per_node}"
        return SpecFault(path, message, f"give a multiple of {per_node}")
    return None


def _tier_fault(below: TierSpec, tier: TierSpec, path: KeyPath) -> SpecFault | None:
    lower = f"the {below.nodes} of tier {below.name!r} below"
    if tier.nodes <= below.nodes:
        message = f"{tier.nodes} nodes are not more than {lower}"
        return SpecFault(path, message, "list the tiers from the lowest up")
    if tier.nodes % below.nodes:
        message = f"{tier.nodes} nodes are not a multiple of {lower}"
        return SpecFault(path, message, "a tier is made of whole groups of the one below")
    return None


def name_fault(index: int, names: Sequence[str]) -> SpecFault | None:
    """Return what is wrong with the name of a pool, given or its accelerator's."""
    if names[index] not in names[:index]:
        return None
    message = f"a second pool named {names[index]!r}"
    return SpecFault(("pools", index), message, "give every pool its own `name:`")


def domain_fault(path: KeyPath, domain: int, n_nodes: int, per_node: int) -> SpecFault | None:
    """Return what is wrong with the size of the scale-up domain, given or from the catalogue.

    The last domain of a pool may hold fewer nodes than the others, as the last rack may.
    """
    n_devices = n_nodes * per_node
    if domain > n_devices:
        message = f"{domain} devices in a domain, but only {n_devices} in the pool"
        return SpecFault(path, message, f"use at most {n_devices}")
    if per_node % domain and domain % per_node:
        message = f"a domain of {domain} devices does not divide nodes of {per_node} devices"
        return SpecFault(path, message, f"give a divisor of {per_node}, or a multiple of it")
    return None
