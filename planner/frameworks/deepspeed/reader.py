"""DeepSpeed's configuration to a run. The model comes from a model file, or from the script.

The file says how states are sharded and how large micro-batches are; what is recomputed and how
many pipeline stages there are stands in the training script. `auto` values are the Trainer's.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from costmodels.axes import off_values
from costmodels.schedule.stages import balanced_layers, spelled, stage_layers
from planner.errors import InputProblem, SpecError
from planner.frameworks.optimizers import DEEPSPEED_TYPES, named_optimizer
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.settings import Reader, flattened, with_set
from planner.frameworks.runs.trainer_arguments import ACCUMULATION, BATCH, stated_length
from planner.option_names import option
from planner.specs.inputs import ModelInput

REPEATED = "keys that stand twice"
"""Entry of a loaded configuration beside its own keys."""
KEYS = (
    "zero_optimization",
    "train_micro_batch_size_per_gpu",
    "train_batch_size",
    "gradient_accumulation_steps",
)
"""Top-level keys by which a configuration is known."""
MICRO, STEPS, TOTAL = "train_micro_batch_size_per_gpu", KEYS[3], "train_batch_size"


def looks_like_deepspeed(data: Any) -> bool:
    """Tell whether JSON data is a DeepSpeed configuration."""
    return isinstance(data, Mapping) and any(key in data for key in KEYS)


def load_config(text: str, source: str) -> dict[str, Any]:
    """Return the configuration; `SpecError` with the line for text that is not JSON.

    Numbers such as 5e8, comments of the kind that DeepSpeed's examples carry (`//`) and commas
    before a closing bracket are read; a key that stands twice is kept for the rules to name.
    """
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        repeated.extend(name for name in names if names.count(name) > 1)
        return dict(pairs)

    try:
        data = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg}"
        fix = "check quotes, commas and brackets near here"
        raise SpecError(InputProblem(message, fix, source, error.lineno, error.colno)) from None
    if not isinstance(data, dict):
        raise SpecError(InputProblem("a DeepSpeed configuration is one JSON object", "", source))
    data.update({REPEATED: sorted(set(repeated))} if repeated else {})
    return data


def read_deepspeed(
    text: str, source: str, query: RunQuery, kind: str = "DeepSpeed configuration"
) -> ExistingRun:
    """Return the run of a configuration."""
    settings = with_set(flattened(load_config(text, source)), query.sets)
    return deepspeed_run(settings, source, query, kind)


def deepspeed_run(
    settings: dict[str, Any], source: str, query: RunQuery, kind: str
) -> ExistingRun:
    """Return the run of dotted settings; `REPEATED` among them is taken out."""
    model, n_devices, arguments = query.model, query.n_devices, query.arguments
    if model is None:
        fix = (
            "name its model file: "
            + option("model", "llama3-8b")
            + ", a YAML file or a config.json"
        )
        raise SpecError(
            InputProblem("a DeepSpeed configuration does not say the model", fix, source)
        )
    repeated = settings.pop(REPEATED, ())
    all_settings = dict(settings)
    read = Reader({k: v for k, v in settings.items() if v != "auto"}, source)
    assumed: list[str] = []
    notes: list[str] = []
    own_devices = None if query.all_devices else _stated_devices(read, arguments, n_devices, notes)
    layout = _degrees(read, arguments, own_devices or n_devices)
    layout |= _batch(read, arguments, layout, model, assumed)
    layout |= pipeline_stages(arguments, layout, model.shape.layers)
    layout |= _recompute(read, arguments, layout, model.shape.layers, assumed)
    layout["zero"] = zero = read.number("zero_optimization.stage")
    if "dp" in layout and zero:
        layout["dp_shard"] = layout["dp"] * layout["cp"]
    layout["optimizer_offload"] = _offload(read, notes)
    is_offloaded = read.switch("activation_checkpointing.cpu_checkpointing")
    layout["activation_offload_layers"] = layout["recompute_layers"] if is_offloaded else 0
    layout["dp_overlap"] = _overlaps(read, layout)
    hpz = read.number("zero_optimization.zero_hpz_partition_size", 1)
    # DeepSpeed cuts what is larger down to all ranks; below ZeRO-3 the key does nothing.
    layout["hpz"] = min(hpz, layout["dp"] * layout["cp"]) if "dp" in layout and zero == 3 else 1
    for key in ("zero_quantized_weights", "zero_quantized_gradients"):
        if read.switch(f"zero_optimization.{key}"):
            notes.append(f"{key}: traffic is priced unquantized")
    if read.switch("expert_parallel.enabled"):
        layout["ep"] = read.number("expert_parallel.autoep_size", 1)
    job: dict[str, Any] = {"precision": _precision(read, all_settings, arguments, model, assumed)}
    stated = all_settings.get("optimizer.type")
    job |= named_optimizer(stated, DEEPSPEED_TYPES, model.job.optimizer, notes)
    length = stated_length(arguments)
    if length:
        job["seq_len"] = length
    if "gbs" in layout:
        job["global_batch"] = layout["gbs"]
    return ExistingRun(
        framework="deepspeed",
        source=source,
        format=kind,
        settings=all_settings,
        layout=layout,
        n_devices=own_devices,
        job=job,
        assumed=tuple(assumed),
        notes=tuple(notes),
        refused=tuple(f'"{key}" stands twice' for key in repeated),
        written={key: f'"{key}": {json.dumps(value)}' for key, value in all_settings.items()},
    )


def _stated_devices(
    read: Reader, arguments: Mapping[str, Any], n_devices: int | None, notes: list[str]
) -> int | None:
    """Return the ranks for which all three batch sizes go together; None where others start.

    DeepSpeed counts the ranks of tensor parallelism among those that the batch is for. More ranks
    than `n_devices` are only noted.
    """
    micro, steps, total = _sizes(read, arguments)
    if min(micro, steps, total) < 1 or total % (micro * steps) or not n_devices:
        return None
    tp, pp, cp = _model_ranks(read, arguments)
    ranks = total // (micro * steps)
    world = ranks * pp * cp
    meant = n_devices in (world, world * tp)  # where AutoTP's ranks were not counted
    if meant or world % (tp * pp * cp):
        return None
    over = "".join(f" x {axis} {n}" for axis, n in (("pp", pp), ("cp", cp)) if n > 1)
    text = f"{TOTAL} {total} = {micro} x {steps} x {ranks} ranks{over}: the file is for {world}"
    if world > n_devices:
        notes.append(
            f"{text} devices, the cluster has {n_devices}; DeepSpeed refuses it there (DSP123)"
        )
        return None
    notes.append(
        f"{text} of the cluster's {n_devices} devices and judged on them; DeepSpeed refuses it"
        " on all of them (DSP123)"
    )
    return world


def _sizes(read: Reader, arguments: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return micro-batch, accumulation steps and batch of a step, 0 for what is not said."""
    for key in (MICRO, STEPS, TOTAL):
        if read.number(key) < 0:
            message = f"{key}: must be at least 1, got {read.number(key)}"
            raise SpecError(InputProblem(message, "", read.source))
    micro = read.number(MICRO) or int(arguments.get(BATCH) or 0)
    steps = read.number(STEPS) or int(arguments.get(ACCUMULATION) or 0)
    return micro, steps, read.number(TOTAL)


def _model_ranks(read: Reader, arguments: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return tp, pp and cp."""
    tp = max(1, read.number("tensor_parallel.autotp_size", 1))
    cp = max(1, read.number("sequence_parallel_size", 1))
    pp = arguments.get("pipeline_stages") or arguments.get("pipe_parallel_size") or 1
    return tp, int(pp), cp


def _degrees(read: Reader, arguments: Mapping[str, Any], n_devices: int | None) -> dict[str, Any]:
    tp, pp, cp = _model_ranks(read, arguments)
    entries: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "cp_comm": "a2a" if cp > 1 else "",
        "schedule": "1f1b" if pp > 1 else "none",
        **off_values("ep", "etp", "sp", "rank_order", "vpp"),
    }
    if n_devices:
        entries["n_devices"] = n_devices
        degrees = tp * cp * pp
        if n_devices % degrees == 0:
            entries["dp"] = n_devices // degrees
    return entries


def _batch(
    read: Reader,
    arguments: Mapping[str, Any],
    layout: Mapping[str, Any],
    model: ModelInput,
    assumed: list[str],
) -> dict[str, Any]:
    """Return micro-batch, batch and micro-batches of a step: of the three two give the third."""
    mbs, steps, total = _sizes(read, arguments)
    dp = layout.get("dp")
    if not mbs and total and steps and dp:
        mbs = total // (steps * dp)
    if not mbs:
        mbs = 1
        assumed.append(f"mbs = 1: no {MICRO}; give it with --set {MICRO}=N")
    entries: dict[str, Any] = {"mbs": mbs}
    if total:
        entries["gbs"] = total
    elif steps and dp:
        entries["gbs"] = mbs * steps * dp
    else:
        entries["gbs"] = whole_batch(model.job.global_batch, mbs * (dp or 1))
        assumed.append(
            f"gbs = {entries['gbs']}: the model file's; no {STEPS} and no {TOTAL}"
            if not steps
            else f"gbs = {entries['gbs']}: the model file's"
        )
    if dp and entries["gbs"] % (mbs * dp) == 0:
        entries["n_micro"] = entries["gbs"] // (mbs * dp)
    return entries


def whole_batch(wanted: int, unit: int) -> int:
    """Return the multiple of `unit` that is nearest to a batch that no file states.

    >>> whole_batch(512, 12), whole_batch(512, 64), whole_batch(4, 64)
    (516, 512, 64)
    """
    return max(1, (wanted + unit // 2) // unit) * unit


def pipeline_stages(
    arguments: Mapping[str, Any], layout: Mapping[str, Any], layers: int
) -> dict[str, Any]:
    """Return the layers of each stage by PipelineModule's partition method."""
    pp = layout["pp"]
    if pp == 1:
        return {"counts": (layers,), "split": "even"}
    method = str(arguments.get("partition_method", "type:block"))
    if method == "uniform":
        share, rest = divmod(layers + 2, pp)
        cut = [share + (i < rest) for i in range(pp)]
        cut[0] -= 1
        cut[-1] -= 1
    elif method.startswith("type"):
        share, rest = divmod(layers, pp)
        cut = [share + (i < rest) for i in range(pp)]
    else:
        cut = list(balanced_layers(layers, pp, 0.0, 0.0, "params"))
    counts = tuple(cut)
    if min(counts) < 0 or 0 in counts[1:-1]:
        return {}
    named = (n for n in ("even", "ends") if stage_layers(layers, pp, 1, n) == counts)
    return {"counts": counts, "split": next(named, spelled(counts))}


def _recompute(
    read: Reader,
    arguments: Mapping[str, Any],
    layout: Mapping[str, Any],
    layers: int,
    assumed: list[str],
) -> dict[str, Any]:
    n_layers = max(layout.get("counts") or (layers,))
    message = arguments.get("recompute")
    if message == "full":
        n = int(arguments.get("recompute_layers") or n_layers)
        return {"recompute": "full", "recompute_layers": min(n, n_layers)}
    if message == "selective":
        return {"recompute": "selective", "recompute_layers": 0}
    if arguments.get("gradient_checkpointing") is True:
        return {"recompute": "full", "recompute_layers": n_layers}
    if message == "none" or arguments.get("gradient_checkpointing") is False:
        return {"recompute": "none", "recompute_layers": 0}
    if any(key.startswith("activation_checkpointing.") for key in read.settings):
        assumed.append(
            "recompute = full: the file has an activation_checkpointing block; the"
            " script decides, --pin recompute=none if it does not"
        )
        return {"recompute": "full", "recompute_layers": n_layers}
    assumed.append(
        "recompute = none: the file has no activation_checkpointing block; the script"
        " decides, --pin recompute=full if it does"
    )
    return {"recompute": "none", "recompute_layers": 0}


def _overlaps(read: Reader, layout: Mapping[str, Any]) -> bool:
    """Tell whether reductions run beside the backward: unless `overlap_comm` is switched off.

    Without ZeRO, in a pipeline and on one rank the key says nothing.
    """
    key = "zero_optimization.overlap_comm"
    alone = layout.get("dp", 2) * layout["cp"] == 1
    if not layout["zero"] or layout["pp"] > 1 or alone or not read.given(key):
        return True
    return bool(read.switch(key))


def _offload(read: Reader, notes: list[str]) -> bool:
    """Tell whether the optimizer is on the host; note what else is there, which has no price."""
    zero = "zero_optimization"
    device = read.text(f"{zero}.offload_optimizer.device", "none")
    weights = read.text(f"{zero}.offload_param.device", "none")
    if weights not in ("none", ""):
        notes.append(
            f"offload_param to {weights}: not modelled; memory is overestimated, the"
            " step underestimated"
        )
    if device == "nvme":
        notes.append("offload_optimizer to nvme: priced as on the CPU; the step is underestimated")
    part = read.settings.get(f"{zero}.offload_optimizer.ratio", 1.0)
    if isinstance(part, (int, float)) and part < 1.0:
        notes.append(
            f"offload_optimizer.ratio {part}: priced as all of it on the host; memory is"
            " underestimated"
        )
    return device not in ("none", "") or read.switch(f"{zero}.cpu_offload")


def _precision(
    read: Reader,
    settings: Mapping[str, Any],
    arguments: Mapping[str, Any],
    model: ModelInput,
    assumed: list[str],
) -> str:
    """Return the numeric recipe: gradients are summed as `grad_accum_dtype` says."""
    fp16, bf16 = (_enabled(read, settings, arguments, name) for name in ("fp16", "bf16"))
    accumulate = read.text("data_types.grad_accum_dtype")
    if not fp16 and not bf16:
        auto = any(settings.get(f"{name}.enabled") == "auto" for name in ("bf16", "fp16"))
        if not auto:
            return "fp32"
        assumed.append(f"precision = {model.job.precision}: the model file's; the file says auto")
        return model.job.precision
    name = "fp16" if fp16 else "bf16"
    return name if re.fullmatch(r"fp32|float32", accumulate) else f"{name}-grads"


def _enabled(
    read: Reader, settings: Mapping[str, Any], arguments: Mapping[str, Any], name: str
) -> bool:
    value = settings.get(f"{name}.enabled", settings.get(name))
    if value == "auto":
        return arguments.get(name) is True
    return read.switch(f"{name}.enabled") or value is True
