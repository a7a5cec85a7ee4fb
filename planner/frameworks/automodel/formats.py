"""What is read as a run of NeMo AutoModel: its recipes, and scripts that start one."""

import re

from planner.errors import InputProblem, SpecError
from planner.frameworks.automodel.reader import read_recipe
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.format import LaunchedRun, RunFile, RunFormat, ScriptFormat
from planner.frameworks.runs.launched import dotted_options, launched_run

ENDINGS = (".yaml", ".yml")
MODULE = "nemo_automodel"


def looks_like_recipe(text: str) -> bool:
    """Tell whether a text is a recipe: sections of its own, and a class of the package."""
    keys = re.findall(r"^(recipe|step_scheduler|distributed|dist_env|loss_fn):", text, re.M)
    return len(set(keys)) > 2 and MODULE in text


def _recipe(file: RunFile) -> ExistingRun:
    return read_recipe(file.text, file.name, file.query)


def _named(run: LaunchedRun) -> str:
    """Return the recipe that a command names; empty where it names none."""
    return next((word for word in run.argv if word.endswith(ENDINGS)), "")


def _starts(run: LaunchedRun) -> bool:
    return MODULE in run.launch.script or run.launch.launcher in ("automodel", "am")


def _launched(run: LaunchedRun) -> ExistingRun:
    name = _named(run)
    if not name:
        fix = "name it, as in: automodel recipe.yaml"
        raise SpecError(InputProblem("starts NeMo AutoModel without a recipe", fix, run.file.name))
    text = run.named_file(name)
    query = run.query.launched(run.query.arguments, run.launch.n_devices)
    sets = tuple(dotted_options(run.argv))
    kind = "NeMo AutoModel launch script"
    return launched_run(read_recipe(text, name.rsplit("/", 1)[-1], query, sets, kind), run)


RUN_FORMATS = (
    RunFormat(
        lambda file: looks_like_recipe(file.text) and not file.text.startswith("#!"),
        _recipe,
        "a recipe of NeMo AutoModel",
        precedence=9,
    ),
)
SCRIPT_FORMATS = (ScriptFormat(_starts, _launched, precedence=15),)
