"""What is read as a run of Megatron-Bridge: a recipe, and launch scripts that start one."""

from planner.frameworks.bridge.reader import looks_like_bridge, read_bridge
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.format import LaunchedRun, RunFile, RunFormat, ScriptFormat
from planner.frameworks.runs.launched import of_script


def _script(run: LaunchedRun) -> str:
    """Return the name of the recipe file that a script starts."""
    return run.launch.script.rsplit("}", 1)[-1].lstrip("/")


def _starts_recipe(run: LaunchedRun) -> bool:
    return looks_like_bridge(run.find(_script(run)) or "")


def _launched_recipe(run: LaunchedRun) -> ExistingRun:
    name = _script(run)
    file = RunFile(run.named_file(name), name, run.launched_query, run.find)
    return of_script(read_bridge(file), run)


RUN_FORMATS = (
    RunFormat(
        lambda file: looks_like_bridge(file.text) and not file.is_script,
        read_bridge,
        "a recipe of Megatron-Bridge",
        precedence=40,
    ),
)
SCRIPT_FORMATS = (ScriptFormat(_starts_recipe, _launched_recipe, precedence=80),)
