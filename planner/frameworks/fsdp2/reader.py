"""Accelerate's launch configuration (FSDP1, FSDP2, DeepSpeed, plain DDP) to a run.

The file says how weights are sharded over how many processes; the model comes from a model file,
batch sizes and lengths from the training script's arguments where there is a script.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from costmodels.axes import off_values
from planner.errors import InputProblem, SpecError
from planner.frameworks.deepspeed.reader import deepspeed_run, load_config, whole_batch
from planner.frameworks.optimizers import TRAINER_NAMES, named_optimizer
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.settings import Reader, flattened, with_set
from planner.frameworks.runs.trainer_arguments import ACCUMULATION, BATCH, stated_length
from planner.option_names import option
from planner.specs.inputs import ModelInput
from planner.specs.yaml.document import parse_yaml
from searches.frameworks.fsdp2 import OF_FSDP1

STRATEGIES = {
    "FULL_SHARD": 3,
    "SHARD_GRAD_OP": 2,
    "NO_SHARD": 0,
    "HYBRID_SHARD": 3,
    "HYBRID_SHARD_ZERO2": 2,
    "1": 3,
    "2": 2,
    "3": 0,
    "4": 3,
    "5": 2,
}
"""ZeRO stage by value of `fsdp_sharding_strategy` (FSDP1) or `fsdp_reshard_after_forward`."""
HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "4", "5")
SIZES = {
    "tp": "tp_size",
    "cp": "cp_size",
    "sp": "sp_size",
    "replicate": "dp_replicate_size",
    "shard": "dp_shard_size",
}


def looks_like_accelerate(text: str) -> bool:
    """Tell whether a text is a launch configuration of Accelerate."""
    return bool(re.search(r"^distributed_type:|^compute_environment:|^fsdp_config:", text, re.M))


def read_accelerate(
    text: str,
    source: str,
    query: RunQuery,
    find: Callable[[str], str | None] | None = None,
    kind: str = "Accelerate configuration",
) -> ExistingRun:
    """Return the run of a launch configuration; `find` reads the DeepSpeed file it names."""
    data = parse_yaml(text, source).data
    if not isinstance(data, dict):
        raise SpecError(InputProblem("an Accelerate configuration is a mapping", "", source))
    if query.model is None:
        fix = (
            "name its model file: "
            + option("model", "llama3-8b")
            + ", a YAML file or a config.json"
        )
        raise SpecError(InputProblem("an Accelerate file does not say the model", fix, source))
    settings = with_set(flattened(data), query.sets)
    arguments = query.arguments
    for name in (BATCH, ACCUMULATION):
        if settings.get(name) is not None:
            arguments[name] = settings.pop(name)  # by --set: the file has no such key
    world = settings.get("num_processes")
    nodes = settings.get("num_machines")
    n_processes = int(world) if isinstance(world, int) and world > 0 else None
    query = query.launched(arguments, n_processes)
    if settings.get("distributed_type") == "DEEPSPEED":
        run = _deepspeed(settings, source, query, find, kind)
    else:
        run = _fsdp(settings, source, query, kind)
    n_nodes = nodes if isinstance(nodes, int) else 0
    return replace(
        run,
        n_devices=n_processes or run.n_devices,
        n_nodes=nodes if n_processes else None,
        per_node=n_processes // n_nodes if n_processes and n_nodes else None,
    )


def _deepspeed(
    settings: dict[str, Any],
    source: str,
    query: RunQuery,
    find: Callable[[str], str | None] | None,
    kind: str,
) -> ExistingRun:
    """Return the run of a `deepspeed_config:` block or of the file that it names."""
    read = Reader(settings, source)
    name = read.text("deepspeed_config.deepspeed_config_file")
    text = find(name) if name and find else None
    if name and text is None:
        fix = "put it beside this file, or check that file itself"
        raise SpecError(InputProblem(f"names {name}, which cannot be read", fix, source))
    if text is not None:
        inner = flattened(load_config(text, name))
    else:
        precision = read.text("mixed_precision", "no")
        stage = read.number("deepspeed_config.zero_stage", 2)
        if stage not in range(4):
            message = f"deepspeed_config.zero_stage: DeepSpeed has no stage {stage}"
            raise SpecError(InputProblem(message, "0, 1, 2 or 3", source))
        inner = {
            "zero_optimization.stage": stage,
            "train_micro_batch_size_per_gpu": "auto",
        }
        steps = settings.get("deepspeed_config.gradient_accumulation_steps")
        if steps is not None:
            inner["gradient_accumulation_steps"] = steps
        if precision in ("bf16", "fp16"):
            inner[f"{precision}.enabled"] = True
        for what in ("optimizer", "param"):
            device = read.text(f"deepspeed_config.offload_{what}_device", "none")
            if device != "none":
                inner[f"zero_optimization.offload_{what}.device"] = device
    if (parts := _size(read, "sp")) > 1:
        inner.setdefault("sequence_parallel_size", parts)
    return deepspeed_run(inner, source, query, f"{kind}, DeepSpeed")


def _fsdp(settings: dict[str, Any], source: str, query: RunQuery, kind: str) -> ExistingRun:
    model, arguments = cast(ModelInput, query.model), query.arguments
    read = Reader(settings, source)
    notes: list[str] = []
    assumed: list[str] = []
    version = read.number("fsdp_config.fsdp_version", 1)
    sharded = read.text("distributed_type") == "FSDP" or version == 2
    layout = _degrees(read, sharded, query.n_devices)
    layers = model.shape.layers
    layout |= {"vpp": 1, "schedule": "none", "split": "even", "counts": (layers,), "pp": 1}
    if version == 1 and sharded:
        notes.append("FSDP1 is priced as FSDP2")
    passed_over = [name for name in OF_FSDP1 if read.given(f"fsdp_config.{name}")]
    if version == 2 and passed_over:
        notes.append(f"{', '.join(passed_over)}: of FSDP1, FSDP2 passes over them")
    layout |= _batch(layout, arguments, model, assumed)
    full = read.switch("fsdp_config.fsdp_activation_checkpointing")
    full = full or arguments.get("gradient_checkpointing") is True
    layout |= {"recompute": "full" if full else "none", "recompute_layers": layers if full else 0}
    is_offloaded = full and read.switch("fsdp_config.fsdp_activation_checkpointing_offload")
    layout["activation_offload_layers"] = layers if is_offloaded else 0
    if read.switch("fsdp_config.fsdp_offload_params"):
        notes.append(
            "fsdp_offload_params: states on the CPU are not modelled: memory is"
            " overestimated, the step underestimated"
        )
    job: dict[str, Any] = {
        "global_batch": layout["gbs"],
        "precision": _precision(read, arguments, model, assumed),
    }
    stated = arguments.get("optim")
    job |= named_optimizer(stated, TRAINER_NAMES, model.job.optimizer, notes)
    length = stated_length(arguments)
    if length:
        job["seq_len"] = length
    title = f"FSDP{version}" if sharded else "DDP"
    return ExistingRun(
        framework="fsdp2",
        source=source,
        format=f"{kind}, {title}",
        settings=settings,
        layout=layout,
        job=job,
        assumed=tuple(assumed),
        notes=tuple(notes),
        written={key: f"{key}: {value}" for key, value in settings.items()},
    )


def _size(read: Reader, name: str) -> int:
    key = f"parallelism_config.parallelism_config_{SIZES[name]}"
    return read.number(key, read.number(f"parallelism_config.{SIZES[name]}", 0))


def _degrees(read: Reader, sharded: bool, n_devices: int | None) -> dict[str, Any]:
    tp, cp, sp = (max(1, _size(read, name)) for name in ("tp", "cp", "sp"))
    replicate, shard = _size(read, "replicate"), _size(read, "shard")
    ring = read.text("parallelism_config.parallelism_config_cp_comm_strategy") == "alltoall"
    exchange = ("p2p" if ring else "all-gather") if cp > 1 else "a2a" if sp > 1 else ""
    cp = cp * sp
    entries: dict[str, Any] = {
        "tp": tp,
        "cp": cp,
        "cp_comm": exchange,
        **off_values("pp", "ep", "etp", "sp", "rank_order"),
        **off_values("optimizer_offload", "activation_offload_layers", "dp_overlap"),
    }
    if n_devices:
        entries["n_devices"] = n_devices
        if n_devices % (tp * cp) == 0:
            entries["dp"] = n_devices // (tp * cp)
    entries["zero"] = _zero(read) if sharded else 0
    dp = entries.get("dp")
    if dp and entries["zero"]:
        total = dp * cp
        if not shard and replicate > 1 and dp % replicate == 0:
            shard = dp // replicate
        group = shard * cp if shard else total
        hybrid = read.text("fsdp_config.fsdp_sharding_strategy").upper() in HYBRID
        if hybrid and not shard and n_devices:
            nodes = read.number("num_machines", 1)
            group = max(1, total // max(1, nodes))
        if total % group == 0:
            entries["dp_shard"] = group
            if group == 1:
                entries["zero"] = 0
    return entries


def _zero(read: Reader) -> int:
    """Return the ZeRO stage: 3 where weights are dropped after the forward, 2 where they stay."""
    value = read.settings.get("fsdp_config.fsdp_reshard_after_forward")
    strategy = read.settings.get("fsdp_config.fsdp_sharding_strategy")
    for setting in (value, strategy):
        if setting is None:
            continue
        if str(setting).upper() in STRATEGIES and not isinstance(setting, bool):
            return STRATEGIES[str(setting).upper()]
        if setting is value:
            return 3 if read.switch("fsdp_config.fsdp_reshard_after_forward") else 2
    return 3


def _batch(
    layout: Mapping[str, Any],
    arguments: Mapping[str, Any],
    model: ModelInput,
    assumed: list[str],
) -> dict[str, Any]:
    mbs = int(arguments.get(BATCH) or 0)
    steps = int(arguments.get(ACCUMULATION) or 0)
    dp = layout.get("dp")
    if not mbs:
        mbs = 1
        assumed.append(f"mbs = 1: the script decides; give it with --set {BATCH}=N")
    entries: dict[str, Any] = {"mbs": mbs}
    if steps and dp:
        entries["gbs"] = mbs * steps * dp
    else:
        entries["gbs"] = whole_batch(model.job.global_batch, mbs * (dp or 1))
        assumed.append(f"gbs = {entries['gbs']}: the model file's; give --set {ACCUMULATION}=N")
    if dp and entries["gbs"] % (mbs * dp) == 0:
        entries["n_micro"] = entries["gbs"] // (mbs * dp)
    return entries


def _precision(
    read: Reader, arguments: Mapping[str, Any], model: ModelInput, assumed: list[str]
) -> str:
    """Return the numeric recipe; a model file's own variant of the same type is kept."""
    named = read.text("mixed_precision").lower()
    requested = next((kind for kind in ("bf16", "fp16") if arguments.get(kind) is True), "")
    if not named and not requested:
        assumed.append(f"precision = {model.job.precision}: the model file's; the script decides")
        return model.job.precision
    kinds = {"no": requested or "fp32", "fp16": "fp16", "fp8": "fp8-tensorwise"}
    kind = kinds.get(named, requested or "bf16")
    return model.job.precision if model.job.precision.split("-")[0] == kind else kind
