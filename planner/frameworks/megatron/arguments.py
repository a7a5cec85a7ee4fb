"""Megatron-LM's settings to a run: degrees, stages, batch, ZeRO, recompute, what overlaps.

What the settings mean is set by megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py. Degrees that contradict each other are left out,
so that the rules can name what is wrong.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from costmodels.axes import RECOMPUTE_MODULES
from costmodels.schedule.stages import spelled, stage_layers
from planner.errors import InputProblem, SpecError
from planner.frameworks.megatron.axis_flags import axes_of_settings, axis_dests
from planner.frameworks.megatron.flags import Parsed
from planner.frameworks.megatron.layer_kinds import (
    KIND_DESTS,
    StatedKinds,
    disagreements,
    hybrid_kinds,
    pattern_of,
)
from planner.frameworks.megatron.mode_settings import read_modes
from planner.frameworks.megatron.model import (
    MODEL_DESTS,
    MegatronSettings,
    ask_for_open_values,
    ask_for_open_words,
    megatron_model,
    missing_flags,
    moments_are_narrow,
    stated_job,
    stated_kinds,
)
from planner.frameworks.optimizers import SHARED_OUT
from planner.frameworks.runs.existing_run import ExistingRun, Switch
from planner.frameworks.runs.launch_script import LaunchCommand
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.shell.marks import COMMAND_OUTPUT
from searches.frameworks.megatron.settings import CHOICES

CP_COMMS = {"p2p": "p2p", "allgather": "all-gather", "all_gather": "all-gather", "a2a": "a2a"}
"""Exchange of a plan by value of `--cp-comm-type`."""
ZERO_OF_STRATEGY = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""ZeRO stage by value of `--data-parallel-sharding-strategy`."""
LAYOUT_DESTS = frozenset(
    (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
        "expert_tensor_parallel_size",
        "micro_batch_size",
        "global_batch_size",
        "num_layers_per_virtual_pipeline_stage",
        "recompute_num_layers",
        "num_virtual_stages_per_pipeline_rank",
        "pipeline_model_parallel_layout",
        "decoder_first_pipeline_num_layers",
        "decoder_last_pipeline_num_layers",
        "cp_comm_type",
        "recompute_granularity",
        "recompute_method",
        "recompute_modules",
        "data_parallel_sharding_strategy",
        "num_distributed_optimizer_instances",
        "microbatch_group_size_per_vp_stage",
        "cpu_offloading_num_layers",
    )
)
"""Settings that the layout depends on."""
UNFUSED_LOSS = {"fused_loss": False, "logit_bytes": 12.0}
"""Megatron-LM's own cross-entropy: exponentials and a 16-bit gradient beside fp32 logits."""
FUSED_LOSS = {"fused_loss": True, "logit_bytes": 6.0}
IN_PLACE_LOSS = {"fused_loss": True, "logit_bytes": 2.0}
"""Transformer Engine's: 16-bit logits are kept, and become their gradient in place.

Source: transformer_engine/pytorch/cross_entropy.py, CrossEntropyFunction.
"""

NOT_PRICED = {
    "moe_shared_expert_overlap": "shared experts beside the exchange are not modelled",
    "use_precision_aware_optimizer": "narrower optimizer states are not modelled: memory is"
    " overestimated",
    "distribute_saved_activations": "distributed saved activations are not modelled",
    "hybrid_context_parallel": "hybrid context parallelism is not modelled: priced as static",
    "moe_use_upcycling": "upcycling is not modelled",
    "num_moe_experts_list": "experts of several numbers are not modelled",
    "lora_dim": "adapters are not modelled",
    "step_batch_size_schedule": "the batch changes over the run: the last size is not known here",
    "use_checkpoint_args": "sizes may come from the checkpoint: those of the flags are taken",
}
"""Settings that change memory or time in a way that has no term."""


def megatron_run(
    parsed: Parsed,
    launch: LaunchCommand,
    source: str,
    query: RunQuery,
    kind: str = "Megatron-LM launch script",
    name: str = "",
) -> ExistingRun:
    """Return the run of parsed flags.

    The devices of the query are taken where the script does not say how many processes it starts;
    its model is used in place of the flags' own sizes, and fills what they do not say of the job.
    """
    model = query.imported(source)
    document = model.document["model"] if model else {}
    n_layers = int(document.get("layers") or query.whole_layers)
    settings = MegatronSettings(parsed, source, query.version, n_layers)
    ask_for_open_values(settings, (*(LAYOUT_DESTS | MODEL_DESTS), *axis_dests().values()))
    world = launch.n_devices or query.n_devices
    if model is None and (missing := missing_flags(settings)):
        ask_for_open_words(settings, missing)
        return ExistingRun(
            framework="megatron",
            source=source,
            format=kind,
            settings=dict(parsed.settings),
            layout={},
            env=launch.env,
            n_nodes=launch.n_nodes,
            per_node=launch.per_node,
            segment_nodes=launch.segment_nodes,
            n_devices=launch.n_devices,
            notes=(*launch.notes, f"no {', '.join(missing)}: nothing else is checked"),
            unknown=parsed.unknown,
            refused=parsed.faults,
            written=parsed.written,
        )
    model_file = model or megatron_model(
        settings, script=launch.script, name=name, n_devices=world or 0
    )
    job: dict[str, Any] = {}
    assumed: tuple[str, ...] = ()
    if model is not None:
        training = model.document["training"]
        job, assumed = stated_job(settings, training, world or 0)
        model_file = replace(model, document={**model.document, "training": {**training, **job}})
    notes = [*launch.notes, *model_file.notes, *_notes(settings)]
    if model is not None:
        written = [settings.flag(dest) for dest in KIND_DESTS if settings.given(dest)]
        notes += disagreements(stated_kinds(settings), document, "; ".join(written))
    layout, more = _layout(settings, model_file.document, world)
    layout |= axes_of_settings(parsed.settings)
    exchanges = layout.get("ep", 1) * layout.get("etp", 1) > 1
    layout |= read_modes(parsed.settings, notes, exchanges=exchanges)
    notes += more
    flags = dict(parsed.settings)
    faults = (*parsed.faults, *(t for d, t in parsed.odd_words.items() if d not in CHOICES))
    stack, stack_name, switches, stack_notes = _stack(settings, layout)
    return ExistingRun(
        framework="megatron",
        source=source,
        format=kind,
        settings=flags,
        layout=layout,
        env=launch.env,
        n_nodes=launch.n_nodes,
        per_node=launch.per_node,
        segment_nodes=launch.segment_nodes,
        n_devices=launch.n_devices,
        model=model_file,
        job=job,
        stack=stack,
        stack_name=stack_name,
        switches=switches,
        assumed=assumed,
        notes=tuple(dict.fromkeys([*notes, *stack_notes])),
        unknown=parsed.unknown,
        refused=faults,
        written=parsed.written,
    )


def _notes(s: MegatronSettings) -> list[str]:
    """Return what the settings ask for and the prices leave out."""
    notes = []
    for dest, text in NOT_PRICED.items():
        value = s.get(dest)
        if dest == "use_precision_aware_optimizer" and (
            s.get("optimizer_cpu_offload") or moments_are_narrow(s)
        ):
            continue  # the first needs it, and has fp32 states; the second is priced
        if s.given(dest) and value and value != "none":
            notes.append(f"{s.flag(dest).split()[0].rstrip(':')}: {text}")
    notes += _offload_notes(s)
    for name in s.parsed.open_words:
        if name.startswith(COMMAND_OUTPUT):
            notes.append(f"what {name} prints is not known: taken as no flags")
    if s.get("rampup_batch_size"):
        notes.append("--rampup-batch-size: priced at the full batch")
    return notes


def _offload_notes(s: MegatronSettings) -> list[str]:
    """Return what an optimizer on the host is priced with and the settings say otherwise."""
    if not s.get("optimizer_cpu_offload"):
        return []
    notes = []
    part = s.get("optimizer_offload_fraction")
    if part is not None and float(part) < 1.0:
        notes.append(
            f"--optimizer-offload-fraction {part}: priced as all of it on the host;"
            " memory is underestimated"
        )
    if not s.get("overlap_cpu_optimizer_d2h_h2d"):
        notes.append(
            "--optimizer-cpu-offload is priced with --overlap-cpu-optimizer-d2h-h2d;"
            " without it the step is longer"
        )
    return notes


_LEAST = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": 0,
    "micro_batch_size": 0,
    "num_distributed_optimizer_instances": 0,
    "cpu_offloading_num_layers": 0,
}
"""Least values of numbers that others are divided by, or counted with."""


def _layout(
    s: MegatronSettings, document: dict[str, Any], world: int | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the stated layout fields and notes on them."""
    notes: list[str] = []
    for dest, least in _LEAST.items():
        if s.get(dest) is not None and s.number(dest) < least:
            message = f"{s.flag(dest)}: expected a whole number from {least} on"
            raise SpecError(InputProblem(message, "", s.source))
    experts = bool(s.get("num_experts"))
    tp, pp, cp = (
        s.number(f"{axis}_parallel_size") for axis in ("tensor_model", "pipeline_model", "context")
    )
    layout: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp, "rank_order": _rank_order(s)}
    layout["ep"] = s.number("expert_model_parallel_size")
    layout["etp"] = (s.number("expert_tensor_parallel_size") or tp) if experts else 1
    layout["mbs"] = s.number("micro_batch_size") or 1
    layout["gbs"] = document["training"]["global_batch"]
    layout["sp"] = bool(s.get("sequence_parallel")) and tp > 1
    layout["tp_overlap"] = bool(s.get("tp_comm_overlap")) and layout["sp"]
    layout["cp_comm"] = _exchange(s, cp, notes)
    layout |= _stages(s, document, notes)
    layout |= _recompute(s, layout, notes)
    layout["zero"] = _zero(s)
    layout["optimizer_offload"] = bool(s.get("optimizer_cpu_offload"))
    layout["activation_offload_layers"] = s.number("cpu_offloading_num_layers")
    layout["dp_overlap"] = bool(s.get("overlap_grad_reduce") or s.get("use_torch_fsdp2"))
    degrees = tp * pp * cp
    if world:
        layout["n_devices"] = world
    if world and degrees and world % degrees == 0:
        layout["dp"] = dp = world // degrees
        if layout["gbs"] % (layout["mbs"] * dp) == 0:
            layout["n_micro"] = layout["gbs"] // (layout["mbs"] * dp)
        instances = s.number("num_distributed_optimizer_instances") or 1
        if layout["zero"] and dp * cp % instances == 0:
            layout["dp_shard"] = dp * cp // instances
    return layout, notes


def _rank_order(s: MegatronSettings) -> str:
    return "tp-cp-ep-pp-dp" if s.get("use_tp_pp_dp_mapping") else "tp-cp-ep-dp-pp"


def _exchange(s: MegatronSettings, cp: int, notes: list[str]) -> str:
    if cp <= 1:
        return ""
    kinds = s.get("cp_comm_type") or ["p2p"]
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if len(set(kinds)) > 1:
        notes.append(f"--cp-comm-type differs from layer to layer: priced as {kinds[0]}")
    if kinds[0] == "a2a+p2p":
        notes.append("--cp-comm-type a2a+p2p: priced as p2p over the whole group")
    return CP_COMMS.get(kinds[0], "p2p")


def _zero(s: MegatronSettings) -> int:
    """Return the ZeRO stage: the distributed optimizer is 1, FSDP what its strategy says."""
    if s.get("use_torch_fsdp2"):
        return 3
    if s.get("use_megatron_fsdp"):
        return ZERO_OF_STRATEGY.get(s.get("data_parallel_sharding_strategy"), 3)
    return 1 if s.get("use_distributed_optimizer") or s.get("optimizer") == SHARED_OUT else 0


def _stages(s: MegatronSettings, document: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return vpp, schedule, split and the layers of each virtual stage, where they exist."""
    layers, pp = document["model"]["layers"], s.number("pipeline_model_parallel_size")
    if (pattern := pattern_of(s.get)) and (kinds := hybrid_kinds(s.get, pattern, layers)):
        return _hybrid_stages(kinds, layers, pp)
    text = s.get("pipeline_model_parallel_layout")
    if text:
        counts = layout_counts(str(text))
        if not counts or len(counts) % pp:
            return {"vpp": 1}
        vpp = len(counts) // pp
        if "m" in str(text).rpartition("|")[0]:
            notes.append(
                "--pipeline-model-parallel-layout: multi-token prediction is priced on the last"
                " stage, beside the loss"
            )
        return _named(layers, pp, vpp, counts)
    per_rank = rank_layers(s, layers, pp)
    chunks = _vpp(s, per_rank)
    if chunks is None:
        return {}
    vpp = chunks
    if per_rank is None:
        return {"vpp": vpp, "schedule": _schedule(pp, vpp)}
    return _named(layers, pp, vpp, chunk_layers(s, per_rank, vpp))


def _hybrid_stages(kinds: StatedKinds, layers: int, pp: int) -> dict[str, Any]:
    """Return the stages that the cuts of a hybrid pattern make, or even ones without cuts."""
    counts = kinds.counts or (stage_layers(layers, pp, 1, "even") if layers % pp == 0 else ())
    return (
        {"vpp": 1} if len(counts) % pp else _named(layers, pp, max(1, len(counts) // pp), counts)
    )


def _named(layers: int, pp: int, vpp: int, counts: tuple[int, ...]) -> dict[str, Any]:
    """Return the stage fields of a layout; a split that has a name goes by it."""
    entries: dict[str, Any] = {"vpp": vpp, "schedule": _schedule(pp, vpp)}
    if not counts or min(counts) < 0 or len(counts) != pp * vpp:
        return entries
    entries["counts"] = counts
    named = (n for n in ("even", "ends") if stage_layers(layers, pp, vpp, n) == counts)
    entries["split"] = next(named, spelled(counts))
    return entries


def _schedule(pp: int, vpp: int) -> str:
    return "none" if pp <= 1 else "interleaved" if vpp > 1 else "1f1b"


def rank_layers(s: MegatronSettings, layers: int, pp: int) -> list[int] | None:
    """Return the layers of each pipeline rank, None where they do not divide.

    Embedding and loss count as a layer each where the flags say so, and are taken off again.
    """
    first, last = (s.get(f"decoder_{x}_pipeline_num_layers") for x in ("first", "last"))
    if first is not None or last is not None:
        ends = (first is not None) + (last is not None)
        middle, rest = layers - (first or 0) - (last or 0), pp - ends
        if rest < 0 or middle < rest or (rest == 0 and middle) or (rest and middle % rest):
            return None
        counts = [middle // rest if rest else 0] * pp
        if first is not None:
            counts[0] = first
        if last is not None:
            counts[-1] = last
        return counts
    embedding = bool(s.get("account_for_embedding_in_pipeline_split"))
    loss = bool(s.get("account_for_loss_in_pipeline_split"))
    units = layers + embedding + loss
    if units % pp:
        return None
    return [units // pp] * pp


def _vpp(s: MegatronSettings, per_rank: list[int] | None) -> int | None:
    """Return the chunks of a rank, None where the flags do not give a whole number."""
    stages = s.get("num_virtual_stages_per_pipeline_rank")
    if stages:
        return int(stages) if stages >= 1 else None
    per_stage = s.get("num_layers_per_virtual_pipeline_stage")
    if per_stage is None:
        return 1
    if per_rank is None or per_stage <= 0 or per_rank[0] % per_stage:
        return None
    return per_rank[0] // int(per_stage)


def chunk_layers(s: MegatronSettings, per_rank: Sequence[int], vpp: int) -> tuple[int, ...]:
    """Return the layers of each virtual stage in model order; () where ranks do not divide.

    Chunk c of rank r is stage c * pp + r and holds 1/vpp of the rank's layers.
    """
    if any(n % vpp for n in per_rank):
        return ()
    counts = [n // vpp for _ in range(vpp) for n in per_rank]
    counts[0] -= bool(s.get("account_for_embedding_in_pipeline_split"))
    counts[-1] -= bool(s.get("account_for_loss_in_pipeline_split"))
    return tuple(counts)


def layout_counts(text: str) -> tuple[int, ...]:
    """Return the layers of each virtual stage of a layout string; () where it cannot be read.

    E embedding, t layer, m MTP, L loss, | the end of a stage; `x*n` and `(...)*n` repeat.

    >>> layout_counts("Et*7|(t*8|)*3t*7L"), layout_counts("E|t|t|L")
    ((7, 8, 8, 8, 7), (0, 1, 1, 0))
    """
    plain = text.strip().strip("'\"").replace(",", "").replace(" ", "")
    for _ in range(100):
        made = re.sub(r"\(([^()]*)\)\*(\d+)", _repeated, plain)
        made = re.sub(r"([EtmL|])\*(\d+)", _repeated, made)
        if made == plain:
            break
        if len(made) > 100_000:
            return ()
        plain = made
    if not re.fullmatch(r"[EtmL|]+", plain):
        return ()
    return tuple(stage.count("t") for stage in plain.split("|"))


def _repeated(match: re.Match[str]) -> str:
    return match.group(1) * min(int(match.group(2)), 10_000)


def _recompute(s: MegatronSettings, layout: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    kind = s.get("recompute_granularity")
    if kind is None and s.get("recompute_activations"):
        kind = "selective"
    if kind == "full":
        return _full_recompute(s, layout, notes)
    if kind != "selective":
        return {"recompute": "none", "recompute_layers": 0}
    modules = s.get("recompute_modules") or ["core_attn"]
    other = [m for m in modules if m not in RECOMPUTE_MODULES]
    if other:
        notes.append(
            f"recomputed modules {' '.join(other)} are not modelled: memory is"
            " overestimated, the step underestimated"
        )
    priced_modules = tuple(m for m in RECOMPUTE_MODULES if m in modules)
    kind = "selective" if priced_modules else "none"
    return {"recompute": kind, "recompute_layers": 0, "recompute_modules": priced_modules}


def _full_recompute(
    s: MegatronSettings, layout: dict[str, Any], notes: list[str]
) -> dict[str, Any]:
    counts = layout.get("counts") or (0,)
    n, n_layers = s.number("recompute_num_layers"), max(counts)
    if s.get("recompute_method") == "block" and s.get("recompute_num_layers") is not None:
        if not n:  # the first none of a stage
            return {"recompute": "none", "recompute_layers": 0}
        return {"recompute": "full", "recompute_layers": min(n, n_layers) if n_layers else n}
    if n > 1:
        notes.append(
            f"--recompute-num-layers {n} uniform: priced with the input of every layer kept;"
            " memory is overestimated"
        )
    return {"recompute": "full", "recompute_layers": n_layers}


def _stack(
    s: MegatronSettings, layout: dict[str, Any]
) -> tuple[dict[str, Any], str, tuple[Switch, ...], list[str]]:
    """Return what the settings change in the stack profile, and which would make it faster."""
    changed: dict[str, Any] = {}
    switches: list[Switch] = []
    notes: list[str] = []
    fsdp = s.get("use_megatron_fsdp") or s.get("use_torch_fsdp2")
    gathers = s.get("overlap_param_gather") or s.get("use_torch_fsdp2")
    if fsdp and layout["dp_overlap"] and not gathers:
        notes.append(
            "Megatron-FSDP is priced with --overlap-param-gather; without it the step is longer"
        )
    elif not fsdp and layout["dp_overlap"]:
        _overlaps(s, layout, changed, switches)
    if s.get("cross_entropy_loss_fusion"):
        impl = s.get("cross_entropy_fusion_impl")
        changed |= IN_PLACE_LOSS if impl == "te" else FUSED_LOSS
    else:
        changed |= UNFUSED_LOSS
        flags = "--cross-entropy-loss-fusion --cross-entropy-fusion-impl native"
        sets = (("cross_entropy_loss_fusion", "true"), ("cross_entropy_fusion_impl", "native"))
        switches.append(Switch(f"add {flags}", sets))
    if not fsdp and s.get("gradient_accumulation_fusion") is False:
        changed["fused_wgrad"] = False
        drop = "drop --no-gradient-accumulation-fusion"
        switches.append(Switch(drop, (("gradient_accumulation_fusion", None),)))
    return changed, "", tuple(switches), notes


def _overlaps(
    s: MegatronSettings, layout: dict[str, Any], changed: dict[str, Any], switches: list[Switch]
) -> None:
    """Note whether gathers run beside compute as reductions do, and that they could."""
    sharded = layout["zero"] > 0
    key = "zero1_overlap" if sharded else "dp_overlap"
    if s.get("overlap_param_gather") or not sharded:
        changed[key] = "both"
        return
    changed[key] = "reduce"
    if layout.get("dp", 2) * layout["cp"] > 1:
        sets = (("overlap_param_gather", "true"),)
        switches.append(Switch("add --overlap-param-gather", sets))
