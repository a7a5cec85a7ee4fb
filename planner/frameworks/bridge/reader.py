"""Recipes of Megatron-Bridge to runs: a Python file, or the name of a published recipe."""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from costmodels.tuning.targets import EXPERTS
from planner.errors import InputProblem, SpecError, UsageError
from planner.frameworks.bridge.adapters import ARGUMENTS, PARTS, WHOLE, adapter_job, with_experts
from planner.frameworks.bridge.recipe_settings import (
    HELPERS,
    ROOT,
    SECTIONS,
    matters,
    megatron_settings_of,
    path_of,
    precision_section,
    setting_of,
)
from planner.frameworks.bridge.recipe_table import BridgeRecipe, read_recipes
from planner.frameworks.bridge.recipe_text import model_fields_of, recipe_text
from planner.frameworks.bridge.recipe_tree import (
    ConfigSection,
    NotRead,
    RecipeTree,
    parsed_recipe,
    recipe_names,
)
from planner.frameworks.megatron.arguments import megatron_run
from planner.frameworks.megatron.flags import Parsed, flag_table
from planner.frameworks.runs.existing_run import Doubt, ExistingRun, Switch
from planner.frameworks.runs.format import RunFile
from planner.frameworks.runs.launch_script import LaunchCommand
from planner.frameworks.runs.query import RunQuery, with_layers
from planner.frameworks.runs.settings import with_set
from planner.frameworks.runs.written_facts import written_facts
from planner.option_names import joined, option

NEEDED = (
    "model.num_layers",
    "model.hidden_size",
    "model.num_attention_heads",
    "model.seq_length",
    "train.global_batch_size",
)
"""Fields without which there is no job; a model file stands for those of the model."""


def looks_like_bridge(text: str) -> bool:
    """Tell whether a text is Python for Megatron-Bridge."""
    return "megatron.bridge" in text and "import" in text


@cache
def _published() -> Mapping[str, BridgeRecipe]:
    return {recipe.name: recipe for recipe in read_recipes()}


def published_text(name: str) -> str | None:
    """Return the published recipe of a name as Python; None where there is none.

    Raises `SpecError` for a recipe that cannot be read, with what is missing.
    """
    recipe = _published().get(name) or _published().get(f"{name}_config")
    if recipe is None:
        return None
    missing = [text for text in recipe.missing if not text.startswith("precision")]
    if missing:
        message = f"a recipe of Megatron-Bridge that is not priced: {'; '.join(missing)}"
        raise SpecError(InputProblem(message, "docs/recipes.md lists those that are", name))
    return recipe_text(recipe)


def read_bridge(file: RunFile) -> ExistingRun:
    """Return the run of a recipe; `FILE#NAME` names it where a file has several."""
    names = recipe_names(parsed_recipe(file.text, file.name))
    name = file.part or (names[0] if len(names) == 1 else "")
    if name not in names:
        message = f"no recipe {name!r}" if name else f"{len(names)} recipes in one file"
        message = message if names else "no function that returns a ConfigContainer"
        listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        fix = f"name one: {file.name}#NAME with {listed}" if names else "name a recipe"
        raise SpecError(InputProblem(message, fix, file.name))
    tree = RecipeTree(file.text, file.name, file.find, HELPERS)
    config = tree.config(name)
    _complete(config)
    fields = with_set(config.flat(), _field_sets(file.query))
    run = _run(fields, file, name)
    unread = [one for one in tree.not_read if _is_of_adapters(one, fields)]
    run = _adapters_unread(run, unread[0], file) if unread else _with_adapters(run, config, file)
    doubts = _doubts(tree, fields, file.query)
    return replace(run, doubts=(*run.doubts, *doubts))


def _with_adapters(run: ExistingRun, config: ConfigSection, file: RunFile) -> ExistingRun:
    """Return the run with the task and the adapters that the section `peft` says."""
    peft, model = config.fields.get("peft"), file.query.model
    if peft is None:
        tuned = model is not None and model.job.tuning is not None
        return replace(run, job={**run.job, "task": "sft", "lora": {}}) if tuned else run
    if not isinstance(peft, ConfigSection):
        message = f"peft = {peft!r}: adapters that are not read"
        raise SpecError(InputProblem(message, f"{WHOLE}(...) or {PARTS}(...)", file.name))
    changes = [x for x in _field_sets(file.query) if x[0].startswith("peft.")]
    said = with_set({f"peft.{name}": value for name, value in peft.fields.items()}, changes)
    fields = {path.removeprefix("peft."): value for path, value in said.items()}
    job = with_experts(adapter_job(peft.kind, fields, file.name), model)
    notes = run.notes
    if EXPERTS in job["lora"]["targets"] and fields.get("share_expert_adapters", True):
        notes = (*notes, "peft.share_expert_adapters: priced as an adapter of each expert")
    return replace(run, job={**run.job, **job}, notes=notes)


def _is_of_adapters(one: NotRead, fields: Mapping[str, Any]) -> bool:
    """Tell whether what was passed over says adapters that nothing else says."""
    path = one.name.partition(".")[2]
    is_priced = path.removeprefix("peft.") in (*ARGUMENTS, "share_expert_adapters")
    return path == "peft" or (path.startswith("peft.") and is_priced and path not in fields)


def _adapters_unread(run: ExistingRun, one: NotRead, file: RunFile) -> ExistingRun:
    """Return the run with the adapters of the model file; `SpecError` where it has none."""
    path = one.name.partition(".")[2]
    model = file.query.model
    if path == "peft" and model is not None and model.job.tuning is not None:
        text = f"adapters = the model file's: {one.name} is not read, {one.why}"
        return replace(run, assumed=(*run.assumed, text))
    fix = f"write {WHOLE}(...) or {PARTS}(...) there, or give a model file of task lora"
    fix = fix if path == "peft" else "say it: " + option("set", f"{ROOT}.{path}=...")
    message = f"{ROOT}.{path} says the adapters and is not read: {one.why}"
    raise SpecError(InputProblem(message, fix, one.source or file.name, one.line))


def _complete(config: ConfigSection) -> None:
    """Fill in what names stand for: mixed precisions, models of a hub that are known here."""
    precision = config.fields.get("mixed_precision")
    if isinstance(precision, str):
        config.fields["mixed_precision"] = precision_section(precision)
    elif precision is None:
        config.fields.pop("mixed_precision", None)
    model = config.fields.get("model")
    hub = model.fields.pop("hf_config", "") if isinstance(model, ConfigSection) else ""
    for recipe in _published().values():
        if hub and recipe.model.get("hf_config") == hub and isinstance(model, ConfigSection):
            model.fields = {**model_fields_of(recipe.model), **model.fields}
            return


def _field_sets(query: RunQuery) -> list[tuple[str, object]]:
    """Return `--set` for fields, by path without `cfg.`; `UsageError` for what is none."""
    out = []
    for path, value in query.sets:
        plain = path.strip().removeprefix(f"{ROOT}.")
        if "." not in plain:
            plain = path_of(plain).removeprefix(f"{ROOT}.") if setting_of(plain) else plain
        section = plain.partition(".")[0]
        if "." not in plain or section not in (*SECTIONS, "checkpoint", "peft"):
            raise UsageError(
                option("set") + f" {path}: no field of a recipe",
                f"such as {ROOT}.model.tensor_model_parallel_size=4, or pools.0.nodes",
            )
        out.append((plain, value))
    return out


def _run(fields: Mapping[str, Any], file: RunFile, name: str) -> ExistingRun:
    """Return the run that fields by path describe."""
    settings = megatron_settings_of(fields)
    _ask_for_latents(fields, file)
    _ask_for_missing(settings, file)
    assumed: tuple[str, ...] = ()
    if (
        not {"bf16", "fp16", "fp8"} & settings.keys()
        and fields.get("mixed_precision.fp32") is None
    ):
        settings["bf16"] = True
        assumed = ("precision = bf16: the recipe states no mixed_precision that is read",)
    written = {dest: f"{path_of(dest) or dest} = {value!r}" for dest, value in settings.items()}
    typed = {dest: typed_setting(dest, value) for dest, value in settings.items()}
    faults = tuple(f"{written[dest]}: of another type" for dest, x in typed.items() if x is None)
    typed = {dest: value for dest, value in typed.items() if value is not None}
    parsed_flags = Parsed(typed, written, (), faults, {})
    launch = LaunchCommand.of_words((), _environment(fields))
    kind = f"Megatron-Bridge recipe ({name})"
    query = with_layers(file.query, written_facts(file.text))
    run = megatron_run(
        parsed_flags, launch, file.name, query, kind, name=_model_name(file.text, name)
    )
    switches = (_as_switch(switch) for switch in run.switches)
    return replace(
        run,
        framework="bridge",
        n_devices=None if file.query.all_devices else run.n_devices or _devices_of(name),
        assumed=(*assumed, *run.assumed),
        switches=tuple(x for x in switches if x),
        notes=tuple(map(_in_fields, run.notes)),
    )


_OF_LATENTS = ("model.crossattn_emb_size", "model.num_joint_layers")
"""Fields of the providers of diffusion transformers alone: Wan, Flux."""


def _ask_for_latents(fields: Mapping[str, Any], file: RunFile) -> None:
    """Raise `SpecError` for a diffusion transformer whose model file is not given."""
    if file.query.model is None and any(name in fields for name in _OF_LATENTS):
        message = "a diffusion transformer: a recipe does not say all of its layers"
        fix = "give its file beside it: --model transformer/config.json"
        raise SpecError(InputProblem(message, fix, file.name))


def _model_name(text: str, name: str) -> str:
    """Return the name of the model: that of the plan in a file of the planner, else the recipe."""
    return str(written_facts(text).get("model") or name)[:64]


def _devices_of(name: str) -> int | None:
    """Return the devices that the name of a recipe says, as those of Megatron-Bridge do."""
    match = re.search(r"_(\d{1,6})gpu_", name)
    return int(match[1]) if match and int(match[1]) else None


def _in_fields(text: str) -> str:
    """Return a note with fields of a recipe in place of flags of Megatron-LM."""
    by_name = flag_table()[1]

    def field_of(match: re.Match[str]) -> str:
        flag = by_name.get(match[0])
        return (path_of(flag.dest) if flag else "") or match[0]

    return re.sub(r"--[a-z][\w-]*\w", field_of, text)


def _environment(fields: Mapping[str, Any]) -> dict[str, str]:
    variables = fields.get("env_vars")
    return {str(k): str(v) for k, v in variables.items()} if isinstance(variables, dict) else {}


def typed_setting(dest: str, value: Any) -> Any:
    """Return a value as Megatron-LM's parser has it, None for one of another type."""
    flag = flag_table()[2][dest]
    if flag.is_switch:
        return value if isinstance(value, bool) else None
    if flag.nargs and not isinstance(value, list | tuple):
        return [value]
    if flag.kind in ("int", "float"):
        right = isinstance(value, int | float) and not isinstance(value, bool)
        whole_number = flag.kind == "float" or (right and float(value).is_integer())
        return value if right and whole_number else None
    if flag.kind == "str" and not flag.nargs:
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _ask_for_missing(settings: Mapping[str, Any], file: RunFile) -> None:
    """Raise `SpecError` naming the fields that the job needs and the recipe does not say."""
    of_file = ("model.", "train.")
    needed = [x for x in NEEDED if not (file.query.model and x.startswith(of_file))]
    missing = [x for x in needed if setting_of(x) not in settings]
    if not missing:
        return
    paths = [f"{ROOT}.{path}" for path in missing]
    fix = joined(" ", [option("set", f"{path}=...") for path in paths])
    if any(path.startswith("model.") for path in missing):
        fix = "name its model file: " + option("model", "llama3-70b") + "; or " + fix
    message = f"the recipe does not say {', '.join(paths)}"
    message += "; what it builds on does not lie beside it"
    raise SpecError(InputProblem(message, fix, file.name))


def _as_switch(switch: Switch) -> Switch | None:
    """Return a setting that would make a run faster, as a field of a recipe."""
    sets = [(path_of(dest), value) for dest, value in switch.sets]
    if not all(path for path, _ in sets):
        return None
    python = {"true": "True", "false": "False"}
    shown = (f"{path} = {python.get(str(value), value)}" for path, value in sets)
    return Switch("set " + ", ".join(shown), tuple(sets))


def _doubts(tree: RecipeTree, fields: Mapping[str, Any], query: RunQuery) -> list[Doubt]:
    """Return what was passed over and may matter, each once."""
    by_hand = {path for path, _ in _field_sets(query)}
    out: dict[tuple[int, str], Doubt] = {}
    for one in tree.not_read:
        path = one.name.partition(".")[2] or one.name
        if one.name and (not matters(f"{ROOT}.{path}") or path in by_hand):
            continue
        where = posixpath.basename(one.source)
        text = f"{one.name or one.text}" + (f" in {where}" if where else "")
        sets = (
            option("set", f"{ROOT}.{path}=...") if one.name else option("set", f"{ROOT}....=...")
        )
        why = f"not read: {one.why}"
        out.setdefault((one.line, text), Doubt(text, why, f"say what it sets: {sets}", one.line))
    return list(out.values())
