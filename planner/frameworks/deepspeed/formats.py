"""What is read as a run of DeepSpeed: its JSON, and launch scripts that name or make one."""

import json
from dataclasses import replace
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.deepspeed.reader import MICRO, looks_like_deepspeed, read_deepspeed
from planner.frameworks.runs.existing_run import Doubt, ExistingRun
from planner.frameworks.runs.format import LaunchedRun, RunFile, RunFormat, ScriptFormat
from planner.frameworks.runs.launched import of_script
from planner.frameworks.runs.reader import known_formats
from planner.frameworks.runs.trainer_arguments import ACCUMULATION, BATCH
from planner.option_names import option

_KIND = "DeepSpeed launch script"


def _json(file: RunFile) -> ExistingRun:
    try:
        data = json.loads(file.text)
    except json.JSONDecodeError:
        data = {"zero_optimization": None}  # its reader says where the JSON is wrong
    if isinstance(data, dict) and "model_type" in data and "zero_optimization" not in data:
        fix: str = "name the run first, and this file with " + option("model")
        raise SpecError(InputProblem("is a model (config.json), not a run", fix, file.name))
    if isinstance(data, dict) and BATCH in data and "zero_optimization" not in data:
        fix = "name the launch script, or the Accelerate or DeepSpeed file that goes with it"
        message = "arguments of the Hugging Face Trainer, not a run"
        raise SpecError(InputProblem(message, fix, file.name))
    if not looks_like_deepspeed(data):
        fix = f"expected {known_formats()}"
        raise SpecError(InputProblem("is not a DeepSpeed configuration", fix, file.name))
    return read_deepspeed(file.text, file.name, file.query)


def _names_json(run: LaunchedRun) -> bool:
    named = run.arguments.get("deepspeed_config") or run.arguments.get("deepspeed")
    return isinstance(named, str)


def _named_json(run: LaunchedRun) -> ExistingRun:
    name = str(run.arguments.get("deepspeed_config") or run.arguments.get("deepspeed"))
    text, short = run.named_file(name), name.rsplit("/", 1)[-1]
    return of_script(read_deepspeed(text, short, run.launched_query, _KIND), run)


def _own_configuration(run: LaunchedRun) -> ExistingRun:
    """Return the run of a script that makes its DeepSpeed configuration of its own arguments."""
    arguments = run.arguments
    keywords: dict[str, Any] = {"stage": int(arguments["zero_stage"]), "overlap_comm": True}
    if arguments.get("offload") is True:
        keywords |= {f"offload_{what}": {"device": "cpu"} for what in ("optimizer", "param")}
    bf16 = arguments.get("dtype") == "bf16" or arguments.get("bf16") is True
    half = "bf16" if bf16 else "fp16"
    config: dict[str, Any] = {"zero_optimization": keywords, half: {"enabled": True}}
    for key, theirs in ((MICRO, BATCH), ("gradient_accumulation_steps", ACCUMULATION)):
        if arguments.get(theirs):
            config[key] = arguments[theirs]
    result = read_deepspeed(json.dumps(config), run.file.name, run.launched_query, _KIND)
    why = "the script itself makes its DeepSpeed configuration of its arguments"
    taken = f"ZeRO {keywords['stage']} and the batch sizes of the arguments, {half}, are taken"
    doubt = Doubt("--zero_stage", why, taken, run.launch.line)
    return of_script(replace(result, doubts=(doubt, *result.doubts)), run)


RUN_FORMATS = (
    RunFormat(
        lambda file: file.text.lstrip().startswith("{"), _json, "a DeepSpeed JSON", precedence=30
    ),
)
SCRIPT_FORMATS = (
    ScriptFormat(_names_json, _named_json, precedence=40),
    ScriptFormat(
        lambda run: (
            run.arguments.get("zero_stage") in (0, 1, 2, 3) and run.launch.launcher == "deepspeed"
        ),
        _own_configuration,
        precedence=40,
    ),
)
