"""Experiments of Primus to a run: Megatron-LM's settings under their names, and its own keys.

A file of Primus names a model and a module whose files extend others; they are looked for beside
it and in the folders above it. A flat YAML with the same keys is read alike.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.megatron.arguments import megatron_run
from planner.frameworks.megatron.flags import Parsed, flag_table, set_flags
from planner.frameworks.primus.options import default_value, known_keys, option_table, presets
from planner.frameworks.runs.existing_run import Doubt, ExistingRun, Switch
from planner.frameworks.runs.format import FindFile, RunFile
from planner.frameworks.runs.launch_script import LaunchCommand
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.settings import flattened, with_set
from planner.frameworks.torchtitan.reader import SECTIONS, job_file_run
from planner.option_names import option
from planner.specs.yaml.document import parse_yaml, read_text
from searches.frameworks.registry import framework_rules

MOST_FILES = 20
"""Longest chain of files that extend each other."""
_MATTERS = re.compile(r"recompute|offload|zero_bubble|pp_algorithm|parallel|dualpipe|lora|peft")
"""Keys of neither Megatron-LM nor the table of Primus that a plan may depend on."""
_SIZES = ("num_layers", "hidden_size", "num_attention_heads")
SIZES = (*_SIZES, "ffn_hidden_size", "num_experts")
"""Keys of the presets that are no more than a beginning."""
TRAINER = "MegatronPretrainTrainer"
"""What trains where an experiment names no other class."""
PRESET_FILES = ("pre_trainer.yaml", "language_model.yaml", "module_base.yaml")
"""Files whose keys the table has."""


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
    trainer = str(module.get("trainer_class") or TRAINER)
    if trainer != TRAINER:
        fix = f"expected {TRAINER}, which builds a model of text"
        raise SpecError(InputProblem(f"trainer_class {trainer}: not modelled", fix, source))
    framework = str(module["framework"])
    find = _in_folders_above(source, framework, find) if query.beside is None else find
    missing: list[str] = []
    model = _extended(str(module.get("model", "")), find, missing, query.env or {})
    base = _extended(str(module.get("config", "")), find, missing, query.env or {})
    is_preset = Path(str(module.get("model", ""))).name == PRESET_FILES[1]
    overrides = module.get("overrides")
    overrides = overrides if isinstance(overrides, dict) else {}
    is_named = framework == "torchtitan" and isinstance(overrides.get("model"), dict)
    if not model and query.model is None and not is_preset and not is_named:
        fix = f"put it beside {source}, or name its model file: " + option("model", "llama3-8b")
        message = f"names the model {module.get('model')}, which does not lie beside it"
        raise SpecError(InputProblem(message, fix, source))
    if framework == "torchtitan":
        return _of_torchtitan(_merged(model, base, overrides), source, query)
    usual = presets()
    if not model and not is_preset:  # sizes are those of the model file beside it
        usual = {key: value for key, value in usual.items() if key not in SIZES}
    settings = _as_merged({**usual, **model, **base, **overrides}, query)
    why = "a file of Primus that does not lie beside the experiment"
    doubts = [
        Doubt(name, why, "its usual values are taken")
        for name in dict.fromkeys(missing)
        if name and Path(name).name not in PRESET_FILES
    ]
    doubts += _doubts(settings, overrides)
    try:
        run = _of_megatron(settings, source, _megatron_query(query), "Primus experiment")
    except SpecError as error:
        raise SpecError([_problem_in_keys(one) for one in error.problems]) from None
    return _in_own_words(run, settings, overrides, doubts)


def _as_merged(settings: Mapping[str, Any], query: RunQuery) -> dict[str, Any]:
    """Return settings with those set by hand, and what Primus itself makes of them."""
    merged = dict(settings)
    for path, value in query.sets:
        key = path.strip().lstrip("-").replace("-", "_")
        if key in _own_keys():
            merged[key] = parse_yaml(f"x: {value}", key).data["x"] if value is not None else None
    if not merged.get("enable_primus_turbo"):
        merged["use_turbo_deepep"] = False
    elif int(merged.get("turbo_sync_free_moe_stage") or 0) > 1:
        merged["use_turbo_deepep"] = True
    if merged.get("use_turbo_deepep"):
        merged |= {"moe_enable_deepep": True, "moe_token_dispatcher_type": "flex"}
    replicas = merged.get("data_parallel_replicate_degree") or 1
    if isinstance(replicas, int) and replicas > 1:
        merged["num_distributed_optimizer_instances"] = replicas
    return merged


def _named_layers(settings: Mapping[str, Any]) -> int:
    """Return how many layers `recompute_layer_ids` names: a list, or numbers with commas."""
    ids = settings.get("recompute_layer_ids")
    ids = ids.split(",") if isinstance(ids, str) else ids
    return len({str(one).strip() for one in ids}) if isinstance(ids, list) else 0


def _recomputed(run: ExistingRun, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's layout, layers that are recomputed one by one spread over its stages."""
    layout, n_layers = dict(run.layout), _named_layers(settings)
    if n_layers and layout.get("recompute") == "full":
        stages = max(1, int(layout.get("pp") or 1)) * max(1, int(layout.get("vpp") or 1))
        layout["recompute_layers"] = math.ceil(n_layers / stages)
    return layout


@cache
def _own_keys() -> frozenset[str]:
    """Return the keys that Primus has and Megatron-LM's parser has not."""
    by_dest = flag_table()[2]
    return frozenset(key for key in option_table()[1] if key not in by_dest)


def _megatron_query(query: RunQuery) -> RunQuery:
    """Return the query with settings of Megatron-LM alone, at the release that Primus runs."""
    sets = tuple(
        (path, value)
        for path, value in query.sets
        if path.strip().lstrip("-").replace("-", "_") not in _own_keys()
    )
    return replace(query, sets=sets, version=framework_rules("primus").rules_version())


NOT_PRICED: Mapping[str, str] = {
    "patch_zero_bubble": "zero-bubble schedules of its own: priced as one forward, one backward",
    "patch_primus_pipeline": "a schedule of its own: priced as one forward, one backward",
    "use_turbo_mega_moe": "experts fused with their exchange: priced as apart from it",
    "offload": "activations that it takes to the host: priced as on the device",
    "lora": "adapters: priced as a training of all weights",
    "enable_packed_sequences": "packed sequences: priced as whole ones",
    "decoder_pipeline_manual_split_list": "a split of its own: priced as an even one",
    "enable_odc": "its own reduction of gradients: priced as FSDP2's",
}
"""Keys of Primus that change time or memory, and what is priced in their place."""


def _doubts(settings: Mapping[str, Any], own: Mapping[str, Any]) -> list[Doubt]:
    """Return what of the settings is not priced, and keys that nothing is known of."""
    doubts = []
    for key, why in NOT_PRICED.items():
        value = settings.get(key)
        if value and not (isinstance(value, dict) and not value.get("enabled", True)):
            reason, _, taken = why.partition(": ")
            doubts.append(Doubt(key, reason, taken))
    if settings.get("fp4") and settings.get("fp4_recipe") == "mxfp4":
        doubts.append(Doubt("fp4_recipe", "MXFP4 has no price", "priced as NVFP4"))
    if _named_layers(settings) and (settings.get("pipeline_model_parallel_size") or 1) != 1:
        taken = "priced as equally many of every stage, rounded up"
        doubts.append(Doubt("recompute_layer_ids", "single layers over stages", taken))
    known = known_keys()
    strange = [k for k, v in own.items() if k not in known and v and _MATTERS.search(k)]
    return doubts + [
        Doubt(key, "a key that Primus does not have", "judged and priced as without it")
        for key in strange
        if key not in NOT_PRICED
    ]


def _in_own_words(
    run: ExistingRun,
    settings: Mapping[str, Any],
    own: Mapping[str, Any],
    doubts: list[Doubt],
) -> ExistingRun:
    """Return a run of Megatron-LM as one of Primus: its keys, its words."""
    keys = {key: value for key, value in settings.items() if value is not None}
    switches = tuple(
        Switch(_keys_for_flags(one.change), tuple(_turned(x) for x in one.sets))
        for one in run.switches
    )
    known = known_keys() | NOT_PRICED.keys()
    return replace(
        run,
        framework="primus",
        layout=_recomputed(run, settings),
        settings={**keys, **run.settings},
        switches=switches,
        notes=tuple(_keys_for_flags(note) for note in run.notes),
        doubts=tuple(doubts),
        unknown=tuple(k for k, v in own.items() if k not in known and v is not None),
    )


def _problem_in_keys(problem: InputProblem) -> InputProblem:
    return replace(
        problem,
        message=_keys_for_flags(problem.message),
        hint=_keys_for_flags(problem.hint),
    )


def _turned(change: tuple[str, object]) -> tuple[str, object]:
    """Return a setting to take away as one to set: the presets would put it back."""
    key, value = change
    return (key, str(default_value(key)).lower()) if value is None else change


def _keys_for_flags(text: str) -> str:
    """Return a sentence on flags of Megatron-LM with the keys of Primus in their place.

    >>> _keys_for_flags("add --cross-entropy-loss-fusion --cross-entropy-fusion-impl native")
    'cross_entropy_loss_fusion: true, cross_entropy_fusion_impl: native'
    >>> _keys_for_flags("drop --no-gradient-accumulation-fusion")
    'gradient_accumulation_fusion: true'
    >>> _keys_for_flags("--cp-comm-type a2a+p2p: priced as p2p")
    'cp_comm_type a2a+p2p: priced as p2p'
    """
    verb, _, words = text.partition(" ")
    if not re.fullmatch(r"(add|drop)( --[a-z0-9-]+( [\w.]+)?)+", text):
        return re.sub(r"--([a-z0-9][a-z0-9-]*)", lambda m: _key_of(m[0]), text)
    pairs: list[list[str]] = []
    for word in words.split():
        if word.startswith("--"):
            is_on = (verb == "add") is not word.startswith("--no-")
            pairs.append([_key_of(word), "true" if is_on else "false"])
        else:
            pairs[-1][1] = word
    return ", ".join(f"{key}: {value}" for key, value in pairs)


def _key_of(flag: str) -> str:
    named = flag_table()[1].get(flag)
    return named.dest if named else flag.lstrip("-").replace("-", "_")


def read_settings(file: RunFile) -> ExistingRun:
    """Return the run of a flat YAML of Megatron-LM's settings."""
    source, query = file.name, file.query
    settings = _mapping(_resolved(file.text, query.env or {}), source)
    if not {"seq_length", "micro_batch_size", "global_batch_size"} & set(settings):
        fix = "name the experiment that runs it"
        raise SpecError(InputProblem("is the model of an experiment, not a run", fix, source))
    kind = "YAML file of Megatron-LM's settings"
    run = _of_megatron(settings, source, query, kind)
    return replace(run, doubts=tuple(_doubts(settings, settings)), fork="Primus")


def _of_megatron(
    settings: Mapping[str, Any], source: str, query: RunQuery, kind: str
) -> ExistingRun:
    """Return the run of settings under the names of Megatron-LM's parser."""
    _, _, by_dest = flag_table()
    flags = {
        key: str(value).split() if isinstance(value, str) and by_dest[key].nargs else _value(value)
        for key, value in settings.items()
        if key in by_dest and value is not None
    }
    written = {key: f"{key}: {value}" for key, value in flags.items()}
    parsed = set_flags(Parsed(flags, written, (), (), {}), query.sets)
    launch = LaunchCommand.of_words((), query.env or {})
    return megatron_run(parsed, launch, source, query, kind)


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
            for path in (folder / name, folder / Path(name).name):
                if name and path.is_file():
                    return read_text(str(path))
        return find(name)

    return found
