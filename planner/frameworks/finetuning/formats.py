"""What is read as a run of a tool that fine-tunes: its YAML, and launch scripts that name one."""

import json
from dataclasses import replace

from planner.errors import InputProblem, SpecError
from planner.frameworks.finetuning.reader import TunedFile, read_tuned, tuner_of
from planner.frameworks.finetuning.torchtune.recipes import (
    check_recipe,
    config_of,
    missing_config,
    recipe_of,
    unfit_model,
)
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.format import LaunchedRun, RunFile, RunFormat, ScriptFormat
from planner.frameworks.runs.launch_script import FOREIGN, SWIFT_TASKS, TUNE, TUNER_TASKS
from planner.frameworks.runs.launched import launched_run
from planner.frameworks.runs.trainer_arguments import plain_value
from planner.frameworks.shell.marks import unmarked

TRL_TASKS = ("sft", "dpo")
"""Scripts of TRL that are read."""
ENDINGS = (".yaml", ".yml")
LAUNCHER_ARGUMENTS = ("config", "config_file", "accelerate_config", "num_processes", "launcher")
"""Arguments that name a file or say how many start, behind the name of what trains."""


def _is_configuration(file: RunFile) -> bool:
    if not file.has_ending(*ENDINGS) or file.is_script:
        return False
    return tuner_of(file.text, file.name) is not None


def _configuration(file: RunFile) -> ExistingRun:
    return read_tuned(TunedFile(file.text, file.name, file.query, file.find))


def _named(run: LaunchedRun) -> tuple[str, str] | None:
    """Return name and text of the configuration that a command names; None where it names none."""
    for word in (*run.argv, config_of(run.argv)):
        text = run.find(word) if word.endswith(ENDINGS) else None
        if text and tuner_of(text, word) is not None:
            return word.rsplit("/", 1)[-1], text
    return None


def _is_swift(run: LaunchedRun) -> bool:
    return run.launch.launcher == "swift" and run.launch.script in SWIFT_TASKS


def _is_tune(run: LaunchedRun) -> bool:
    """Tell whether torchtune starts it, by its command or as the script of a recipe."""
    return run.launch.launcher == TUNE or bool(recipe_of(run.launch.script))


def _swift_text(run: LaunchedRun) -> str:
    """Return the options of a command of ms-swift as its configuration; lists keep their words."""
    words: dict[str, list[object]] = {}
    name = ""
    for word in run.argv:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            words[name] = [plain_value(value)] if equals else []
        elif name:
            words[name].append(plain_value(word))
    settings = {key: x[0] if len(x) == 1 else x or True for key, x in words.items()}
    settings.setdefault("tuner_type", settings.get("train_type", "lora"))
    return json.dumps(settings)


def _launched(run: LaunchedRun) -> ExistingRun:
    check_recipe(run.launch.script, run.file.name)
    named = _named(run)
    if named is None and _is_tune(run):
        raise missing_config(config_of(run.launch.argv), run.file.name)
    if named is None and run.launch.launcher in TUNER_TASKS:
        message = f"starts {FOREIGN[run.launch.launcher]}, of which no configuration lies here"
        raise SpecError(InputProblem(message, "name its YAML, beside this file", run.file.name))
    name, text = named or (run.file.name, _swift_text(run))
    tuner = tuner_of(text, name)
    if tuner is None:
        raise SpecError(InputProblem("ms-swift: no model", "name one with its option model", name))
    config = run.launch.options.get("config-file", "")
    config = config or str(run.arguments.get("accelerate_config", ""))
    launch = run.named_file(unmarked(config)) if config else ""
    query = run.launched_query
    given = run.arguments if named else run.query.arguments  # else the text has them
    arguments = {k: v for k, v in given.items() if k not in LAUNCHER_ARGUMENTS}
    arguments |= _stage(run, name)
    pinned = {"mbs": run.query.pins["mbs"]} if "mbs" in run.query.pins else {}
    stated = run.arguments.get("num_processes")
    n_devices = run.launch.n_devices or (stated if isinstance(stated, int) else None)
    query = replace(query.launched(arguments, n_devices), pins=pinned)
    file = TunedFile(text, name, query, run.find, launch, "launch script")
    if _is_tune(run):
        file = replace(file, changes=run.launch.argv)
    elif tuner.name == "llama-factory":
        words = (word for word in run.launch.argv if "=" in word and not word.startswith("-"))
        file = replace(file, changes=tuple(words))
    found = launched_run(read_tuned(file), run)
    if _is_tune(run):
        adapted = bool(found.job.get("lora"))
        refused = (*found.refused, *unfit_model(run.launch.script, adapted))
        found = replace(found, refused=refused)
    return replace(found, n_devices=found.n_devices or n_devices)


def _stage(run: LaunchedRun, name: str) -> dict[str, str]:
    """Return what the script of a tool says of the task; empty where a file says it."""
    script = unmarked(run.launch.script).rsplit("/", 1)[-1].removesuffix(".py")
    if _is_swift(run):
        return {"stage": script}
    module, _, task = script.rpartition(".")
    if module != "trl.scripts" and run.launch.launcher != "trl":
        return {}
    if task not in TRL_TASKS:
        fix = f"check a run of trl.scripts.{' or '.join(TRL_TASKS)}"
        raise SpecError(InputProblem(f"TRL trains by {task} here, which is not read", fix, name))
    return {"stage": task}


RUN_FORMATS = (
    RunFormat(
        _is_configuration,
        _configuration,
        "a YAML of TRL, axolotl, LLaMA-Factory, ms-swift or torchtune",
        precedence=10,
    ),
)
SCRIPT_FORMATS = (
    ScriptFormat(
        lambda run: (
            _named(run) is not None
            or _is_swift(run)
            or _is_tune(run)
            or run.launch.launcher in TUNER_TASKS
        ),
        _launched,
        precedence=20,
    ),
)
