"""torchtitan's settings to a run: of its job files (TOML, releases up to 0.2) and its recipes."""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from costmodels.axes import off_values
from costmodels.schedule.stages import spelled, stage_layers
from planner.errors import InputProblem, SpecError
from planner.frameworks.runs.existing_run import Doubt, ExistingRun, Switch
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.settings import Reader, flattened, with_set
from planner.frameworks.torchtitan.flavors import flavors, model_section
from planner.frameworks.torchtitan.releases import (
    SPLIT_POINTS,
    TOML_RELEASE,
    old_fields,
    release_of,
    split_counts,
    unknown_in,
    with_present_names,
)
from planner.option_names import option
from planner.specs.importers.imported import Imported, Origin
from searches.frameworks.registry import framework_rules

SECTIONS = ("model", "training", "parallelism", "activation_checkpoint")
SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "zbvzerobubble": "zb-v",
    "dualpipev": "dualpipe-v",
    "loopedbfs": "interleaved",
    "interleavedzerobubble": "interleaved",
}
"""Schedule of a plan by lower-case name in torch.distributed.pipelining."""
ONE_STAGE = ("1f1b", "gpipe")
"""Names (lower case) of schedules with one stage a rank; the others have two unless told."""


def looks_like_toml(text: str) -> bool:
    """Tell whether a text is a torchtitan job file."""
    return bool(
        re.search(r"^\s*\[(parallelism|training|activation_checkpoint)\]", text, re.M)
        and "=" in text
    )


def read_toml(text: str, source: str, query: RunQuery, *, launched: bool = False) -> ExistingRun:
    """Return the run of a job file.

    `launched`: a launcher says on how many devices it starts. Otherwise the product of the degrees
    wins over it.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"at line (\d+), column (\d+)", str(error))
        line, column = (int(x) for x in match.groups()) if match else (0, 0)
        tokens = re.sub(r"\s*\(at line.*\)", "", str(error))
        raise SpecError(
            InputProblem(f"not valid TOML: {tokens}", "check the line", source, line, column)
        ) from None
    settings = with_set(flattened(data), query.sets)
    return job_file_run(settings, source, query, launched=launched)


def job_file_run(
    settings: dict[str, Any], source: str, query: RunQuery, *, launched: bool = False
) -> ExistingRun:
    """Return the run of a job file's settings.

    Of whichever release they are: where the user names none the fields tell.
    """
    kind = "torchtitan job file (TOML)"
    older = "" if query.version else release_of(_unknown(settings, TOML_RELEASE), settings)
    if not older:
        run = run_of_settings(settings, source, kind, query, launched=launched)
        return _with_own_fields(run) if any(settings.get(key) for key in OWN_FIELDS) else run
    strange = unknown_in(old_fields()[older], settings)
    run = run_of_settings(with_present_names(settings), source, kind, query, launched=launched)
    note = f"its keys are those of release {older}; changes are named by those of {TOML_RELEASE}"
    return replace(
        run,
        release=older,
        unknown=(),
        notes=(*run.notes, note),
        doubts=tuple(
            Doubt(key, f"no key of torchtitan {older}", "judged and priced as without it")
            for key in strange
        ),
        written={**run.written, **{key: f"{key} = {value}" for key, value in settings.items()}},
    )


OWN_FIELDS = ("experimental.custom_args_module", "job.custom_config_module")
"""Keys that name a module with more fields."""


def _with_own_fields(run: ExistingRun) -> ExistingRun:
    """Return the run of a job file whose own module may define what is not known of it."""
    why = "no field of torchtitan's; the module that the file names may have it"
    doubts = tuple(Doubt(key, why, "judged and priced as without it") for key in run.unknown)
    return replace(run, unknown=(), doubts=doubts)


@cache
def known_fields(release: str) -> frozenset[str]:
    """Return the fields of a release's configuration, dotted (`scripts/torchtitan_fields`)."""
    text = (files("planner") / "data" / "torchtitan_fields.json").read_text(encoding="utf-8")
    return frozenset(json.loads(text)[release])


def _unknown(settings: Mapping[str, Any], release: str) -> tuple[str, ...]:
    """Return the settings that a release does not have, of the sections that are known of it.

    What stands below a known field is that field's value.
    """
    fields = known_fields(release)
    sections = {name.partition(".")[0] for name in fields}
    if release != TOML_RELEASE:  # a recipe's other parts are Python of any kind
        sections &= {"training", "parallelism", "compile"}
    results = []
    for name in settings:
        parts = name.split(".")
        is_known = any(".".join(parts[: i + 1]) in fields for i in range(len(parts)))
        inside = any(field.startswith(f"{name}.") for field in fields)
        if not is_known and not inside and (parts[0] in sections or release == TOML_RELEASE):
            results.append(name)
    return tuple(results)


def run_of_settings(
    settings: dict[str, Any],
    source: str,
    kind: str,
    query: RunQuery,
    sizes: Mapping[str, Any] | None = None,
    *,
    launched: bool = False,
) -> ExistingRun:
    """Return the run of dotted settings; `sizes` are those that a recipe states as constants.

    `launched`: a launcher says on how many devices it starts.
    """
    model = query.model
    read = Reader(settings, source)
    notes: list[str] = []
    own_devices = None if launched else _stated_devices(read)
    layout = _degrees(read, own_devices or query.n_devices)
    batch = _batch(read, layout)
    layout |= batch
    local = max(1, read.number("training.local_batch_size", 8))
    passes = layout.get("n_micro", 0) * layout["mbs"] // local
    if layout["pp"] > 1 and passes > 1:
        notes.append(
            f"gradients are accumulated over {passes} local batches: the pipeline fills"
            " and drains for each of them, and is priced as if once"
        )
    job: dict[str, Any] = {
        "seq_len": read.number("training.seq_len", 2048),
        "precision": _precision(read, notes),
    }
    if "gbs" in layout:
        job["global_batch"] = layout["gbs"]
        steps = read.number("training.steps", 10_000)
        job["tokens"] = float(steps * layout["gbs"] * job["seq_len"])
    imported = None if model else described_model(read, job, sizes or {})
    layers = model.shape.layers if model else imported.document["model"]["layers"]  # type: ignore[union-attr]
    experts = model.shape.n_experts if model else imported.document["model"].get("moe")  # type: ignore[union-attr]
    if experts and layout["ep"] == 1:
        layout["etp"] = layout["tp"]  # without ep the experts are split over tp like any MLP
    layout |= _stages(read, layers, notes)
    layout |= _recompute(read, layout, layers, notes)
    job_file = kind.endswith("(TOML)")
    release = TOML_RELEASE if job_file else framework_rules("torchtitan").release
    stack, switches = _stack(read, layout)
    if read.switch("training.enable_cpu_offload"):
        notes.append(
            "training.enable_cpu_offload: states on the CPU are not modelled: memory is"
            " overestimated, the step underestimated"
        )
    return ExistingRun(
        framework="torchtitan",
        source=source,
        format=kind,
        settings=settings,
        layout=layout,
        release=TOML_RELEASE if job_file else "",
        unknown=_unknown(settings, release),
        n_devices=own_devices,
        model=imported,
        job=job,
        stack=stack,
        switches=switches,
        notes=tuple(notes),
        written={key: f"{key} = {value}" for key, value in settings.items()},
    )


def described_model(read: Reader, job: Mapping[str, Any], sizes: Mapping[str, Any]) -> Imported:
    """Return the model file of `[model] name, flavor`, or of sizes that the recipe states.

    Raises `SpecError` for a model that is not known.
    """
    name = read.text("model.name", "llama3")
    flavor = read.text("model.flavor", "debugmodel")
    if sizes:
        section, why = model_section(sizes), "a constant of the recipe"
    else:
        family = flavors().get(name.removesuffix("_ft"))
        plain = re.sub(r"_(flex|varlen)(_attn)?$|_irope$", "", flavor)
        if family is None or plain not in family:
            names = ", ".join(family) if family else ", ".join(flavors())
            what = f"flavor {flavor!r} of {name}" if family else f"model {name!r}"
            fix = f"known: {names}; or give the sizes with " + option("model", "FILE")
            raise SpecError(InputProblem(f"{what} is not in the table of sizes", fix, read.source))
        section, why = dict(family[plain]), f"torchtitan's {name} {flavor}"
        title = re.sub(r"[^A-Za-z0-9._+-]", "-", f"{name}-{plain}".lower())
        section = {"name": title, **section}
    training = {"optimizer": "adam", "global_batch": 1, **job}
    origins = [Origin(("model", key), why) for key in section]
    origins += [Origin(("training", key), f"training.{key}") for key in training]
    document = {"model": section, "training": training}
    return Imported("model", document, tuple(origins), read.source, why)


def _stated_devices(read: Reader) -> int | None:
    """Return the product of the degrees where none of them is left open."""
    degrees = [
        read.number(f"parallelism.{axis}_parallel_degree", 1)
        for axis in ("tensor", "pipeline", "context")
    ]
    degrees.append(read.number("parallelism.data_parallel_replicate_degree", 1))
    degrees.append(read.number("parallelism.data_parallel_shard_degree", -1))
    return math.prod(degrees) if min(degrees) > 0 else None


def _degrees(read: Reader, n_devices: int | None) -> dict[str, Any]:
    """Return the degrees; the leftover ranks shard where the degree is -1."""
    tp, pp, cp = (
        read.number(f"parallelism.{axis}_parallel_degree", 1)
        for axis in ("tensor", "pipeline", "context")
    )
    replicate = read.number("parallelism.data_parallel_replicate_degree", 1)
    shard = read.number("parallelism.data_parallel_shard_degree", -1)
    ep = read.number("parallelism.expert_parallel_degree", 1)
    rotate = read.text("parallelism.context_parallel_rotate_method", "allgather")
    entries: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "etp": read.number("parallelism.expert_tensor_parallel_degree", 1) if ep > 1 else 1,
        "sp": tp > 1 and read.switch("parallelism.enable_sequence_parallel", True),
        "cp_comm": "" if cp == 1 else "p2p" if rotate == "alltoall" else "all-gather",
        **off_values("rank_order", "optimizer_offload"),
        **off_values("activation_offload_layers", "dp_overlap"),
    }
    entries["tp_overlap"] = entries["sp"] and any(read.switch(key) for key in ASYNC_TP)
    rest = tp * pp * cp * max(1, replicate)
    if shard < 0:
        if not n_devices or n_devices % rest:
            return entries | ({"n_devices": n_devices} if n_devices else {})
        shard = n_devices // rest
    entries |= {"n_devices": shard * rest, "dp": shard * replicate, "dp_shard": shard * cp}
    if n_devices:
        entries["n_devices"] = n_devices
    sharded = shard * cp > 1
    policy = read.text("parallelism.fsdp_reshard_after_forward", "default")
    keeps = policy == "never" or (policy == "default" and pp > 1)
    # In a pipeline gradients are reduced once a step, not for every micro-batch.
    entries["zero"] = (1 if pp > 1 else 2 if keeps else 3) if sharded else 0
    if n_devices and shard * rest != n_devices:
        del entries["dp"], entries["dp_shard"]
    if not sharded and "dp" in entries:
        entries["dp_shard"] = entries["dp"] * cp  # no group of its own: as a plan has it
    return entries


def _batch(read: Reader, layout: Mapping[str, Any]) -> dict[str, Any]:
    """Return micro-batch, batch and micro-batches of a step.

    With a pipeline the local batch is cut into micro-batches; accumulation repeats it.
    """
    local = read.number("training.local_batch_size", 8)
    total = read.number("training.global_batch_size", -1)
    mbs = max(1, local)
    if layout["pp"] > 1:
        mbs = max(1, read.number("parallelism.pipeline_parallel_microbatch_size", 1))
    entries: dict[str, Any] = {"mbs": mbs}
    dp = layout.get("dp")
    if total > 0:
        entries["gbs"] = total
    elif dp:
        entries["gbs"] = local * dp
    if dp and entries["gbs"] % (mbs * dp) == 0:
        entries["n_micro"] = entries["gbs"] // (mbs * dp)
    return entries


def _precision(read: Reader, notes: list[str]) -> str:
    converters = " ".join(str(x).lower() for x in read.settings.get("model.converters") or ())
    fp8 = "float8" in converters or "Float8" in converters
    recipe = next(
        (
            str(read.settings[key])
            for key in ("quantize.linear.float8.recipe_name", "float8.recipe_name")
            if read.given(key)
        ),
        "",
    )
    if "mx" in converters:
        return "fp8-mxfp8"
    if fp8:
        return "fp8-rowwise" if recipe.startswith("rowwise") else "fp8-tensorwise"
    if read.text("training.dtype", "float32") == "bfloat16":
        notes.append(
            "training.dtype bfloat16: priced with fp32 master weights and optimizer"
            " states; memory is overestimated"
        )
    if read.text("training.mixed_precision_param", "bfloat16") == "float32":
        return "fp32"
    return "bf16"


def stage_counts(n_stages: int, layers: int, first: int = 1, last: int = 1) -> tuple[int, ...]:
    """Return the layers of each virtual stage; () where torchtitan refuses to cut them.

    The ends hold `first` and `last` layers fewer; larger shares come first
    (torchtitan/distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part).

    >>> stage_counts(4, 32), stage_counts(1, 32)
    ((8, 9, 8, 7), (32,))
    """
    if n_stages == 1:
        return (layers,)
    share, rest = divmod(layers + first + last, n_stages)
    if share == 0 or max(first, last) > share:
        return ()
    counts = [share + (i < rest) for i in range(n_stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts)


def _stages(read: Reader, layers: int, notes: list[str]) -> dict[str, Any]:
    pp = read.number("parallelism.pipeline_parallel_degree", 1)
    if pp == 1:
        return {"vpp": 1, "schedule": "none", "split": "even", "counts": (layers,)}
    name = read.text("parallelism.pipeline_parallel_schedule", "1F1B").lower()
    if name not in SCHEDULES:
        return {"vpp": 1}
    schedule = SCHEDULES[name]
    if name in ("loopedbfs", "interleavedzerobubble"):
        notes.append(f"schedule {name}: priced as Interleaved1F1B")
    first, last = (
        read.number(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1)
        for end in ("first", "last")
    )
    parts = read.settings.get("parallelism.module_fqns_per_model_part")
    split = split_counts(read.settings.get(SPLIT_POINTS), layers)
    if isinstance(parts, list) and parts:
        counts = tuple(sum(str(x).startswith("layers.") for x in part) for part in parts)
        stages = len(parts)
    elif split:
        counts, stages = split, len(split)
    else:
        per_stage = read.number("parallelism.pipeline_parallel_layers_per_stage")
        stages = pp * (1 if name in ONE_STAGE else 2)
        if per_stage:
            stages = math.ceil((layers + first + last) / per_stage)
        counts = stage_counts(stages, layers, first, last)
    if stages % pp:
        return {}
    vpp = stages // pp
    entries: dict[str, Any] = {"vpp": vpp, "schedule": schedule}
    if counts and min(counts) >= 0:
        entries["counts"] = counts
        named = (n for n in ("even", "ends") if stage_layers(layers, pp, vpp, n) == counts)
        entries["split"] = next(named, spelled(counts))
    return entries


def _recompute(
    read: Reader, layout: Mapping[str, Any], layers: int, notes: list[str]
) -> dict[str, Any]:
    mode = read.text("activation_checkpoint.mode", "selective")
    policy = read.text("activation_checkpoint.policy", mode)
    n_layers = max(layout.get("counts") or (layers,))
    if policy == "full":
        return {"recompute": "full", "recompute_layers": n_layers}
    if policy == "first-layers":
        n = read.number("activation_checkpoint.layers", n_layers)
        return {"recompute": "full", "recompute_layers": min(n, n_layers)}
    if policy == "attention-core":
        return {"recompute": "selective", "recompute_layers": 0}
    if mode == "selective":
        option = read.text("activation_checkpoint.selective_ac_option", "2")
        if option.isdecimal() and int(option) > 0:
            every = -(-n_layers // int(option))
            return {"recompute": "full", "recompute_layers": every}
        notes.append("selective recomputation by operator: priced as full for half of the layers")
        return {"recompute": "full", "recompute_layers": -(-n_layers // 2)}
    if mode == "memory_budget":
        notes.append("recomputation by a memory budget is not modelled: priced without any")
    return {"recompute": "none", "recompute_layers": 0}


ASYNC_TP = (
    "parallelism.enable_async_tensor_parallel",
    "compile.enable_async_tensor_parallel",
)
"""Names of one setting: up to release 0.2, and from 0.3."""


def _stack(read: Reader, layout: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Switch, ...]]:
    """Return what torch.compile and the exchange of tokens change in the profile, and switches."""
    changed: dict[str, Any] = {}
    switches: list[Switch] = []
    components = read.settings.get("compile.components")
    enabled = read.switch("compile.enable") or read.switch("training.compile")
    if enabled and (components is None or "model" in components):
        changed["compiled"] = True
    else:
        sets = [("compile.enable", "true")]
        sets += [("compile.components", "[model, loss]")] * (components is not None)
        text = "set compile.enable = true (components model and loss)"
        switches.append(Switch(text, tuple(sets)))
    if layout["ep"] > 1:
        backend = read.text("parallelism.expert_parallel_comm_backend", "standard")
        if backend in ("deepep", "hybridep"):
            changed["dispatcher"] = backend
        else:
            key = "parallelism.expert_parallel_comm_backend"
            switches.append(Switch(f'set {key} = "deepep"', ((key, "deepep"),)))
    return changed, tuple(switches)
