"""MaxText's configuration to a run: mesh, batch, recomputation, precision, model."""

import math
import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from costmodels.axes import off_values
from planner.errors import InputProblem, SpecError
from planner.frameworks.maxtext.command import TrainingCommand
from planner.frameworks.maxtext.sizes import all_sizes, described_model, overridden_twice
from planner.frameworks.maxtext.tables import earlier_keys, faults, key_kinds, model_sizes
from planner.frameworks.runs.existing_run import Doubt, ExistingRun
from planner.frameworks.runs.format import FindFile
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.settings import Reader, with_set
from planner.specs.yaml.document import parse_yaml
from searches.frameworks.maxtext import REMAT_POLICIES

OWN_FILES = ("base.yml", "tpu_smoke_test.yml")
"""Configurations of the package that change nothing of a plan but what base.yml says."""
MOST_FILES = 20
"""Longest chain of files that extend each other."""
_RECOMPUTED = {
    **{policy: names for names, policy in REMAT_POLICIES.items()},
    "minimal_flash": (),
    "minimal_with_quantization": ("core_attn",),
    "minimal_with_context_and_quantization": (),
    "save_dot_except_mlpwi": ("core_attn", "mlp"),
    "save_qkv_proj": ("core_attn", "mlp"),
}
"""Modules that the policies of dense layers compute again."""
_NEAR = ("save_dot_except_mlpwi", "save_qkv_proj")
"""Policies that keep somewhat more or less than what they are priced as."""
_TENSORS = {
    "attention": ("query_proj", "key_proj", "value_proj"),
    "mlp": ("mlpwi_0", "mlpwi_1", "mlpwo"),
}
_JOINT = {"attention": "qkv_proj", "mlp": "mlpwi"}
_FP8 = {
    "fp8": "fp8-delayed",
    "nanoo_fp8": "fp8-delayed",
    "fp8_gpu": "fp8-delayed",
    "te_fp8_delayedscaling": "fp8-delayed",
    "te_fp8_currentscaling": "fp8-tensorwise",
    "te_mxfp8": "fp8-mxfp8",
    "fp8_full": "fp8-tensorwise",
}
_OPTIMIZERS = {"adamw": "adam", "adam_pax": "adam", "muon": "muon", "sgd": "sgd"}


def config_chain(text: str, source: str, find: FindFile) -> dict[str, Any]:
    """Return the keys of a YAML over those of the files that it extends, `base.yml` aside.

    Raises `SpecError` for a file that is named and not there.
    """
    entries: dict[str, Any] = {}
    name, seen = source, 0
    while seen < MOST_FILES:
        data = parse_yaml(text, name).data
        if data is None:
            data = {}
        if not isinstance(data, dict):
            raise SpecError(InputProblem("is no mapping of keys", "expected a YAML file", name))
        entries = {**{str(k): v for k, v in data.items()}, **entries}
        below = entries.pop("base_config", None)
        if not below or os.path.basename(str(below)) in OWN_FILES:
            return entries
        found, seen = find(str(below)), seen + 1
        if found is None:
            raise SpecError(
                InputProblem(f"extends {below}, which cannot be read", "put it beside it", name)
            )
        text, name = found, str(below)
    raise SpecError(InputProblem(f"extends more than {MOST_FILES} files", "", source))


def command_settings(command: TrainingCommand, source: str, find: FindFile) -> dict[str, Any]:
    """Return the keys of a training command: its file, under the environment, under its words."""
    settings: dict[str, Any] = {}
    name = os.path.basename(command.config)
    if name and name not in OWN_FILES:
        text = find(command.config)
        if text is None:
            fix = f"put it beside {source}, or check that file itself"
            raise SpecError(InputProblem(f"names {name}, which cannot be read", fix, source))
        settings = config_chain(text, name, find)
    own = [(key[2:].lower(), value) for key, value in command.env.items() if key[:2] == "M_"]
    for key, value in (*(pair for pair in own if pair[0] in key_kinds()), *command.words):
        value = value.replace("'\"'\"'", "'")  # quotes within quotes of a shell
        try:
            settings = with_set(settings, [(key, value)])
        except SpecError:  # no YAML: a text
            settings[key] = value
    return settings


def maxtext_run(
    settings: Mapping[str, Any],
    source: str,
    query: RunQuery,
    kind: str,
    command: TrainingCommand | None = None,
) -> ExistingRun:
    """Return the run of a configuration's keys, `--set` of the query over them."""
    settings = {key: _number(value) for key, value in with_set(settings, query.sets).items()}
    strange = [key for key in settings if key not in key_kinds()]
    earlier = [key for key in strange if key in earlier_keys()]
    refused = faults(settings)
    run = ExistingRun(
        framework="maxtext",
        source=source,
        format=kind,
        settings=settings,
        layout={},
        unknown=tuple(key for key in strange if key not in earlier),
        refused=(*refused, *overridden_twice(settings)),
        doubts=tuple(
            Doubt(key, "a key of an earlier release", "passed over") for key in sorted(earlier)
        ),
        written={key: f"{key}: {value}" for key, value in settings.items()},
    )
    if refused:
        return run
    read, notes = Reader(settings, source), _notes(settings)
    slices = command.n_slices if command else 1
    n_devices = (command.n_devices if command else None) or query.n_devices
    stated = _stated_devices(read)
    layers = _layers(settings, query)
    layout = _degrees(read, n_devices or stated, slices)
    layout |= _batch(read, layout, n_devices or stated)
    layout |= _recompute(read, settings, layers, notes)
    layout |= {"split": "even", "schedule": "none", "vpp": 1}
    if layout["pp"] > 1:
        notes.append("pipelines of MaxText run all forwards before the backwards; priced as gpipe")
        layout |= {"schedule": "gpipe"}
    elif layers:
        layout["counts"] = (layers,)
    job = _job(read, layout, notes)
    model = query.imported(source) or described_model(settings, source, job)
    unread = ""
    if model is None:
        unread = f"decoder block {all_sizes(settings)['decoder_block']}: its sizes are not read"
        notes.append(f"{unread}; name the model file with --model")
    return replace(
        run,
        layout=layout,
        n_devices=(command.n_devices if command else None) or stated,
        env=dict(command.env) if command else {},
        model=model,
        model_unread=unread,
        job=job,
        notes=tuple(notes),
    )


def _number(value: Any) -> Any:
    """Return a value, `32_000` as the number that MaxText takes it for."""
    if isinstance(value, str) and re.fullmatch(r"\d[\d_]*", value):
        return int(value)
    return value


def _axis(read: Reader, network: str, axis: str) -> int:
    usual = -1 if (network, axis) in (("ici", "fsdp"), ("dcn", "data")) else 1
    return read.number(f"{network}_{axis}_parallelism", usual)


AXES = (
    "data",
    "pipeline",
    "fsdp",
    "fsdp_transpose",
    "context",
    "context_usp_ulysses",
    "tensor",
    "tensor_sequence",
    "expert",
    "diloco",
)


def _stated_devices(read: Reader) -> int | None:
    """Return the product of the degrees where none of ICI is left open."""
    sizes = [_axis(read, "ici", axis) for axis in AXES]
    across = [_axis(read, "dcn", axis) for axis in AXES]
    if min(sizes) < 1:
        return None
    return math.prod(sizes) * math.prod(max(1, size) for size in across)


def _resolved(sizes: Mapping[str, int], total: int | None) -> dict[str, int] | None:
    """Return degrees with the one that is open as what is left; None where that is not whole."""
    known = math.prod(size for size in sizes.values() if size > 0)
    opened = [axis for axis, size in sizes.items() if size == -1]
    if min(sizes.values()) < -1 or 0 in sizes.values() or len(opened) > 1:
        return None
    if not opened:
        return dict(sizes)
    if not total or total % known:
        return None
    return {**sizes, opened[0]: total // known}


def _degrees(read: Reader, n_devices: int | None, slices: int) -> dict[str, Any]:
    """Return the degrees of a layout as far as the axes of the mesh say them."""
    own = {axis: _axis(read, "ici", axis) for axis in AXES}
    far = {axis: _axis(read, "dcn", axis) for axis in AXES}
    # Without slices the axes of the data-centre network are 1, whatever is left open.
    across = _resolved(far, max(slices, math.prod(x for x in far.values() if x > 0)))
    per_slice = n_devices // math.prod(across.values()) if n_devices and across else None
    inside = _resolved(own, per_slice)
    sizes = {axis: max(1, own[axis]) * max(1, far[axis]) for axis in AXES}
    if inside and across:
        sizes = {axis: inside[axis] * across[axis] for axis in AXES}
    tp = sizes["tensor"] * sizes["tensor_sequence"]
    cp, pp = sizes["context"] * sizes["context_usp_ulysses"], sizes["pipeline"]
    entries: dict[str, Any] = {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "ep": sizes["expert"],
        "etp": tp if read.number("num_experts", 1) > 1 else 1,
        "sp": tp > 1,
        "cp_comm": _exchange(read) if cp > 1 else "",
        **off_values("rank_order", "optimizer_offload", "activation_offload_layers"),
        **off_values("dp_overlap"),
    }
    if n_devices:
        entries["n_devices"] = n_devices
    if not inside or not across or math.prod(sizes.values()) != n_devices:
        return entries
    group = sizes["fsdp"] * sizes["fsdp_transpose"] * sizes["context"] * sizes["expert"]
    group *= sizes["context_usp_ulysses"]
    entries["dp"] = n_devices // (tp * cp * pp)
    if group > 1:
        return entries | {"zero": 3, "dp_shard": group}
    sharded = read.switch("shard_optimizer_over_data") and entries["dp"] > 1
    return entries | {"zero": 1 if sharded else 0, "dp_shard": entries["dp"]}


def _exchange(read: Reader) -> str:
    words = {"ring": "p2p", "ulysses": "a2a", "usp": "a2a"}
    strategy = read.text("context_parallel_strategy", "all_gather").lower()
    return words.get(strategy, "all-gather")


def _batch(read: Reader, layout: Mapping[str, Any], n_devices: int | None) -> dict[str, Any]:
    """Return micro-batch, batch and micro-batches; a fraction of a sequence is left out."""
    share, steps = _real(read, "per_device_batch_size", 12.0), 1
    steps = max(1, read.number("gradient_accumulation_steps", 1))
    if not n_devices:
        return {}
    step = int(n_devices * share)
    entries: dict[str, Any] = {"gbs": step * steps}
    dp = layout.get("dp")
    rounds = 1
    if layout["pp"] > 1:
        rounds = read.number("num_pipeline_microbatches", -1)
        rounds = layout["pp"] if rounds < 1 else rounds
    if dp and step and step % (dp * rounds) == 0:
        entries |= {"mbs": step // (dp * rounds), "n_micro": steps * rounds}
    return entries


def _real(read: Reader, key: str, default: float) -> float:
    value = read.settings.get(key)
    return default if value is None else float(str(value).replace("_", ""))


def _layers(settings: Mapping[str, Any], query: RunQuery) -> int:
    """Return the layers of the model; 0 where they are not known."""
    if query.model is not None:
        return query.model.shape.layers
    name = str(settings.get("model_name", "default"))
    if name != "default" and name not in model_sizes():
        return 0
    return Reader(all_sizes(settings), "").number("base_num_decoder_layers")


def _recompute(
    read: Reader, settings: Mapping[str, Any], layers: int, notes: list[str]
) -> dict[str, Any]:
    """Return the recomputation that comes nearest to a policy."""
    policy = read.text("remat_policy", "full")
    full = {"recompute": "full", "recompute_layers": layers}
    if policy in ("none", "") or settings.get("remat_policy", "full") is None:
        notes.append("remat_policy none: every layer is computed again, as under full")
        return full
    if policy == "full":
        return full
    if policy == "custom":
        return _custom(read, settings, full, notes)
    has_experts = int(all_sizes(settings).get("num_experts") or 1) > 1
    if policy in _RECOMPUTED and not has_experts:
        if policy in _NEAR:
            notes.append(f"remat_policy {policy}: priced as save_dot_except_mlp")
        return _modules(_RECOMPUTED[policy])
    notes.append(f"remat_policy {policy}: what it keeps or moves to the host is priced as full")
    return full


def _modules(names: tuple[str, ...]) -> dict[str, Any]:
    """Return the recomputation of these modules of a dense layer."""
    if not names:
        return {"recompute": "none", "recompute_layers": 0}
    return {"recompute": "selective", "recompute_layers": 0, "recompute_modules": names}


def _custom(
    read: Reader, settings: Mapping[str, Any], full: dict[str, Any], notes: list[str]
) -> dict[str, Any]:
    """Return the recomputation of the policy that names tensors one by one."""
    has_experts = int(all_sizes(settings).get("num_experts") or 1) > 1
    kept = {
        part: read.text(_JOINT[part]) == "device"
        or all(read.text(name) == "device" for name in names)
        for part, names in _TENSORS.items()
    }
    if read.text("decoder_layer_input", "device") == "offload":
        moved = {"activation_offload_layers": full["recompute_layers"]}
        also = [name for names in _TENSORS.values() for name in names]
        if any(read.text(name, "remat") != "remat" for name in (*also, "context")):
            notes.append("remat_policy custom: tensors that it keeps are priced as computed again")
        return full | moved
    if kept["attention"] and not has_experts:
        again = {
            "core_attn": read.text("context") != "device",
            "mlp": not kept["mlp"],
        }
        modules = tuple(name for name, is_again in again.items() if is_again)
        return _modules(modules)
    notes.append("remat_policy custom: what it keeps or moves to the host is priced as full")
    return full


def _job(read: Reader, layout: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    kind = read.text("opt_type", str(all_sizes(read.settings).get("opt_type", "adamw")))
    job: dict[str, Any] = {
        "seq_len": read.number("max_target_length", 2048),
        "global_batch": layout.get("gbs"),
        "precision": _precision(read, notes),
        "optimizer": _OPTIMIZERS.get(kind, "adam"),
    }
    return {name: value for name, value in job.items() if value is not None}


def _precision(read: Reader, notes: list[str]) -> str:
    named = read.text("quantization")
    if named in _FP8:
        return _FP8[named]
    if named:
        notes.append(f"quantization {named}: not modelled, priced as bf16")
    return "fp32" if read.text("dtype", "bfloat16") == "float32" else "bf16"


def _notes(settings: Mapping[str, Any]) -> list[str]:
    """Return what of a configuration is priced otherwise."""
    read, notes = Reader(settings, ""), []
    if any(_axis(read, network, "tensor") > 1 for network in ("ici", "dcn")):
        notes.append(
            "ici_tensor_parallelism cuts the hidden width of activations: priced as"
            " tensor_sequence, which cuts their tokens and sends as much"
        )
    narrow: Sequence[str] = [
        key
        for key in ("weight_dtype", "grad_dtype", "mu_dtype")
        if read.text(key, "float32") == "bfloat16"
    ]
    if narrow:
        notes.append(f"{', '.join(narrow)} bfloat16: priced in fp32; memory is overestimated")
    if read.switch("optimizer_memory_host_offload"):
        notes.append("optimizer_memory_host_offload: not modelled; memory is overestimated")
    if read.text("custom_mesh_and_rule"):
        notes.append("custom_mesh_and_rule: priced by the axes of base.yml")
    if settings.get("model_name") and str(settings["model_name"]) not in model_sizes():
        notes.append(f"model_name {settings['model_name']}: no model of the package")
    return notes
