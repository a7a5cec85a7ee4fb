"""Recipes of Megatron-Bridge, which are recognised and not read."""

from planner.errors import InputProblem, SpecError
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.format import LaunchedRun, RunFile, RunFormat, ScriptFormat


def _is_recipe(text: str) -> bool:
    """Tell whether a text is Python for Megatron-Bridge."""
    return "megatron.bridge" in text and "import" in text


def _refuse(source: RunFile | LaunchedRun) -> ExistingRun:
    name = source.name if isinstance(source, RunFile) else source.file.name
    fix = "check the flags of Megatron-LM that it stands for (planner emit --for megatron)"
    raise SpecError(InputProblem("a recipe of Megatron-Bridge, which is not read", fix, name))


def _starts_recipe(run: LaunchedRun) -> bool:
    return _is_recipe(run.find(run.launch.script.rsplit("}", 1)[-1].lstrip("/")) or "")


RUN_FORMATS = (
    RunFormat(lambda file: _is_recipe(file.text) and not file.is_script, _refuse, precedence=40),
)
SCRIPT_FORMATS = (ScriptFormat(_starts_recipe, _refuse, precedence=80),)
