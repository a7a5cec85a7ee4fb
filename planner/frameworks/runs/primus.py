"""YAML files with Megatron-LM's settings under their own names, underscores for dashes: Primus.

A file of Primus names a model and a module whose files extend others; they are looked for beside
it and in the folders above it. A flat YAML with the same keys is read alike.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.megatron.arguments import megatron_run
from planner.frameworks.megatron.flags import Parsed, flag_table, set_flags
from planner.frameworks.runs.existing_run import Doubt, ExistingRun
from planner.frameworks.runs.format import FindFile, RunFile, RunFormat
from planner.frameworks.runs.launch_script import LaunchCommand
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.settings import flattened, with_set
from planner.frameworks.torchtitan.reader import SECTIONS, job_file_run
from planner.option_names import option
from planner.specs.yaml.document import parse_yaml, read_text

MOST_FILES = 20
"""Longest chain of files that extend each other."""
DEFAULTS: Mapping[str, Any] = {
    "bf16": True,
    "micro_batch_size": 2,
    "global_batch_size": 16,
    "seq_length": 1024,
    "use_distributed_optimizer": True,
}
"""What Primus's module for pretraining sets, where its files do not lie beside the run."""
_MATTERS = re.compile(r"recompute|offload|zero_bubble|pp_algorithm|parallel|dualpipe|lora|peft")
"""Keys of Primus that a plan depends on and that are not read."""
_SIZES = ("num_layers", "hidden_size", "num_attention_heads")


def looks_like_primus(text: str) -> bool:
    """Tell whether a text is an experiment of Primus."""
    return bool(
        re.search(r"^modules:", text, re.M)
        and re.search(r"^\s+overrides:", text, re.M)
        and re.search(r"^\s+framework:", text, re.M)
    )


def looks_like_settings(text: str) -> bool:
    """Tell whether a YAML file states Megatron-LM's settings at its top, underscored."""
    results = [key for key in _SIZES if re.search(rf"^{key}:", text, re.M)]
    return len(results) == len(_SIZES)


def read_primus(file: RunFile) -> ExistingRun:
    """Return the run of an experiment of Primus for Megatron-LM or torchtitan."""
    text, source, query, find = file.text, file.name, file.query, file.find
    data = _mapping(_resolved(text, query.env or {}), source)
    named = data.get("modules")
    modules = [
        m for m in (named.values() if isinstance(named, dict) else ()) if isinstance(m, dict)
    ]
    module = next((m for m in modules if m.get("framework") in ("megatron", "torchtitan")), None)
    if module is None:
        theirs = ", ".join(str(m.get("framework")) for m in modules)
        fix = "expected megatron or torchtitan under framework:"
        raise SpecError(
            InputProblem(f"an experiment of Primus for {theirs}: not modelled", fix, source)
        )
    framework = str(module["framework"])
    find = _in_folders_above(source, framework, find) if query.beside is None else find
    missing: list[str] = []
    model = _extended(str(module.get("model", "")), find, missing, query.env or {})
    base = _extended(str(module.get("config", "")), find, missing, query.env or {})
    if not model and query.model is None:
        fix = f"put it beside {source}, or name its model file: " + option("model", "llama3-8b")
        message = f"names the model {module.get('model')}, which does not lie beside it"
        raise SpecError(InputProblem(message, fix, source))
    overrides = module.get("overrides")
    overrides = overrides if isinstance(overrides, dict) else {}
    if framework == "torchtitan":
        return _of_torchtitan(_merged(model, base, overrides), source, query)
    settings = {**({} if base else DEFAULTS), **model, **base, **overrides}
    why = "a file of Primus that does not lie beside the experiment"
    doubts = [Doubt(name, why, "its usual values are taken") for name in missing if name]
    return _of_megatron(settings, source, query, "Primus experiment", doubts, overrides)


def read_settings(file: RunFile) -> ExistingRun:
    """Return the run of a flat YAML of Megatron-LM's settings."""
    source, query = file.name, file.query
    settings = _mapping(_resolved(file.text, query.env or {}), source)
    if not {"seq_length", "micro_batch_size", "global_batch_size"} & set(settings):
        fix = "name the experiment that runs it"
        raise SpecError(InputProblem("is the model of an experiment, not a run", fix, source))
    kind = "YAML file of Megatron-LM's settings"
    return _of_megatron(settings, source, query, kind, [], settings)


def _of_megatron(
    settings: Mapping[str, Any],
    source: str,
    query: RunQuery,
    kind: str,
    doubts: list[Doubt],
    own: Mapping[str, Any],
) -> ExistingRun:
    """Return the run of settings; `own` are those that the file itself states."""
    _, _, by_dest = flag_table()
    flags = {
        key: str(value).split() if isinstance(value, str) and by_dest[key].nargs else _value(value)
        for key, value in settings.items()
        if key in by_dest and value is not None
    }
    written = {key: f"{key}: {value}" for key, value in flags.items()}
    parsed = set_flags(Parsed(flags, written, (), (), {}), query.sets)
    run = megatron_run(
        parsed,
        LaunchCommand.of_words((), query.env or {}),
        source,
        query,
        kind,
    )
    strange = [k for k, v in own.items() if k not in by_dest and v and _MATTERS.search(k)]
    doubts += [
        Doubt(key, "a key that Megatron-LM does not have", "judged and priced as without it")
        for key in strange
    ]
    return replace(run, doubts=tuple(doubts), fork="Primus")


def _of_torchtitan(settings: Mapping[str, Any], source: str, query: RunQuery) -> ExistingRun:
    sections = {
        key: settings[key]
        for key in (*SECTIONS, "compile", "float8", "quantize")
        if isinstance(settings.get(key), dict)
    }
    flat = with_set(flattened(sections), query.sets)
    run = job_file_run(flat, source, replace(query, version=""))
    return replace(run, format="Primus experiment (torchtitan)", unknown=(), doubts=())


def _value(value: Any) -> Any:
    """Return a value of a YAML file; numbers such as 1e-5 are texts to some readers."""
    if isinstance(value, str) and re.fullmatch(r"\d+", value):
        return int(value)
    return value


def _resolved(text: str, env: Mapping[str, str]) -> str:
    """Return a text with `${NAME:default}` as the variable, or the default."""
    return re.sub(r"\$\{(\w+):([^}]*)\}", lambda m: env.get(m[1], m[2]), text)


def _mapping(text: str, source: str) -> dict[str, Any]:
    data = parse_yaml(text, source).data
    if not isinstance(data, dict):
        raise SpecError(InputProblem("is no mapping of keys", "expected a YAML file", source))
    return data


def _extended(
    name: str, find: FindFile, missing: list[str], env: Mapping[str, str]
) -> dict[str, Any]:
    """Return the keys of a file over those of the files that it extends; {} for none."""
    entries: dict[str, Any] = {}
    waiting, seen = [name], 0
    while waiting and seen < MOST_FILES:
        wanted, seen = waiting.pop(0), seen + 1
        text = find(wanted) if wanted else None
        if text is None:
            missing.append(wanted)
            continue
        data = _mapping(_resolved(text, env), wanted)
        more = data.pop("extends", None) or data.pop("bases", None) or []
        waiting += [str(one) for one in (more if isinstance(more, list) else [more])]
        entries = _merged(data, entries)
    return entries


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested keys, those of later mappings over those of earlier ones."""
    made: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            section = made.get(key)
            if isinstance(section, dict) and isinstance(value, dict):
                value = _merged(section, value)
            made[key] = value
    return made


def _in_folders_above(source: str, framework: str, find: FindFile) -> FindFile:
    """Return a reader that also looks into Primus's own folders above the experiment."""
    folders = [
        parent / "primus" / "configs" / kind / framework
        for parent in list(Path(source).resolve().parents)[:8]
        for kind in ("models", "modules")
    ]

    def found(name: str) -> str | None:
        for folder in folders:
            if name and (folder / Path(name).name).is_file():
                return read_text(str(folder / Path(name).name))
        return find(name)

    return found


PRIMUS_FORMATS = (
    RunFormat(
        lambda file: looks_like_primus(file.text),
        read_primus,
        "a Primus experiment",
        precedence=10,
    ),
    RunFormat(
        lambda file: looks_like_settings(file.text) and not file.is_script,
        read_settings,
        precedence=70,
    ),
)
"""Files of Primus, which runs Megatron-LM and torchtitan."""
