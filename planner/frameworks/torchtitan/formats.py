"""What is read as a run of torchtitan: recipes, job files, and launch scripts that name one."""

from dataclasses import replace

from planner.errors import InputProblem, SpecError
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.format import LaunchedRun, RunFile, RunFormat, ScriptFormat
from planner.frameworks.runs.launched import dotted_options, of_script
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.written_facts import with_constants, with_unsaid
from planner.frameworks.torchtitan.reader import looks_like_toml, read_toml
from planner.frameworks.torchtitan.recipe import looks_like_recipe, read_recipe
from planner.frameworks.torchtitan.releases import WRITTEN_MODULE


def _recipe(file: RunFile) -> ExistingRun:
    run = read_recipe(file.text, file.name, file.query, file.part)
    return with_constants(run, file.text)


def _job_file(file: RunFile) -> ExistingRun:
    return read_toml(file.text, file.name, file.query)


def _query(run: LaunchedRun) -> RunQuery:
    """Return the query of a file that a script names: its options win over the file."""
    query = run.query.with_sets(*dotted_options(run.launch.argv))
    return replace(query, n_devices=run.launch.n_devices or query.n_devices)


def _config(run: LaunchedRun) -> str:
    named = run.arguments.get("job.config_file") or run.arguments.get("job_config_file")
    return str(named or "")


def _launched_job_file(run: LaunchedRun) -> ExistingRun:
    config, launched = _config(run), bool(run.launch.n_devices)
    text, short = run.named_file(config), config.rsplit("/", 1)[-1]
    return of_script(read_toml(text, short, _query(run), launched=launched), run)


def _launched_recipe(run: LaunchedRun) -> ExistingRun:
    """Return the run of `-m torchtitan.train --module MODULE --config RECIPE`."""
    module, recipe = str(run.arguments["module"]), str(run.arguments["config"])
    path = module.replace(".", "/")
    text = run.find(f"{path}.py")
    if text is None:
        message = f"names the recipe {recipe} of {module}, which does not lie beside it"
        if path == WRITTEN_MODULE:
            fix = f"put {path}.py back, or write the folder again (planner emit)"
        else:
            path = path if "/" in path else f"torchtitan/models/{path}"
            fix = f"check the file with it: {path}/config_registry.py#{recipe}"
        raise SpecError(InputProblem(message, fix, run.file.name, run.launch.line))
    launched = bool(run.launch.n_devices)
    result = read_recipe(text, f"{path}.py", _query(run), recipe, launched=launched)
    return with_unsaid(of_script(result, run), text, run.query.model)


RUN_FORMATS = (
    RunFormat(
        lambda file: (
            file.has_ending(".py") or (looks_like_recipe(file.text) and not file.is_script)
        ),
        _recipe,
        "a torchtitan TOML or recipe",
        precedence=50,
    ),
    RunFormat(
        lambda file: (
            file.has_ending(".toml") or (looks_like_toml(file.text) and not file.is_script)
        ),
        _job_file,
        precedence=90,
    ),
)
SCRIPT_FORMATS = (
    ScriptFormat(lambda run: bool(_config(run)), _launched_job_file, precedence=20),
    ScriptFormat(
        lambda run: bool(run.arguments.get("module") and run.arguments.get("config")),
        _launched_recipe,
        precedence=20,
    ),
)
