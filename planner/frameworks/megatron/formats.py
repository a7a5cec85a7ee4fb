"""What is read as a run of Megatron-LM: launch scripts, MODEL_ARGS, flat YAML of its settings."""

from planner.errors import InputProblem, SpecError
from planner.frameworks.megatron.arguments import megatron_run
from planner.frameworks.megatron.flags import parse_flags, set_flags
from planner.frameworks.megatron.scripts import (
    has_megatron_flags,
    megatron_deepspeed_script,
    script_around_megatron,
    swift_script,
)
from planner.frameworks.megatron.yaml_arguments import looks_like_model_args, read_model_args
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.format import LaunchedRun, RunFile, RunFormat, ScriptFormat
from planner.frameworks.runs.launch_script import SWIFT_TASKS, LaunchCommand
from planner.option_names import option
from planner.specs.importers.formats import looks_like_megatron


def _model_args(file: RunFile) -> ExistingRun:
    flags, env = read_model_args(file.text, file.name)
    launch = LaunchCommand.of_words(flags, env)
    parsed = set_flags(parse_flags(flags), file.query.sets)
    return megatron_run(parsed, launch, file.name, file.query, "Megatron-LM MODEL_ARGS")


def _by_flags(run: LaunchedRun) -> ExistingRun:
    if "deepspeed_config" in run.arguments or "deepspeed" in run.arguments:
        return megatron_deepspeed_script(run)
    return script_around_megatron(run)


def _without_sizes(run: LaunchedRun) -> ExistingRun:
    if run.query.model is None:
        fix = "name its model file: " + option("model", "llama3-8b") + ", or a config.json"
        message = "takes the sizes of its model from a checkpoint: the script does not say them"
        raise SpecError(InputProblem(message, fix, run.file.name, run.launch.line))
    return script_around_megatron(run)


RUN_FORMATS = (
    RunFormat(
        lambda file: looks_like_model_args(file.text),
        _model_args,
        "a YAML file with MODEL_ARGS",
        precedence=60,
    ),
)
SCRIPT_FORMATS = (
    ScriptFormat(
        lambda run: run.launch.launcher == "megatron" and run.launch.script in SWIFT_TASKS,
        swift_script,
        "a Megatron-LM launch script or its flags",
        precedence=10,
    ),
    ScriptFormat(lambda run: has_megatron_flags(run.launch, run.argv), _by_flags, precedence=10),
    ScriptFormat(
        lambda run: "tensor_model_parallel_size" in run.arguments and bool(run.launch.script),
        _without_sizes,
        precedence=60,
    ),
    ScriptFormat(
        lambda run: not run.launch.script or looks_like_megatron(run.file.text),
        script_around_megatron,
        precedence=70,
    ),
)
