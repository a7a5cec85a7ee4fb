"""From a file to an existing run: which kind of file it is, and the reader for it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from planner.errors import InputProblem, SpecError, UsageError
from planner.frameworks.finetuning.formats import RUN_FORMATS as TUNER_FORMATS
from planner.frameworks.finetuning.formats import SCRIPT_FORMATS as TUNER_SCRIPTS
from planner.frameworks.registry import frameworks
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.foreign import refuse_foreign
from planner.frameworks.runs.format import (
    FOREIGN,
    FindFile,
    LaunchedRun,
    RunFile,
    RunFormat,
    ScriptFormat,
)
from planner.frameworks.runs.launch_script import read_launch
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.trainer_arguments import ACCUMULATION, BATCH, trainer_arguments
from planner.frameworks.runs.written_facts import with_unsaid
from planner.frameworks.shell.marks import unmarked
from planner.frameworks.shell.wrappers import SCRIPT_ENDINGS
from planner.option_names import option
from planner.specs.importers.formats import looks_like_megatron
from planner.specs.inputs import Content
from planner.specs.yaml.document import read_text, refuse_long_numbers
from planner.text_lines import with_article
from searches.frameworks.registry import load

SUFFIXES = (".sh", ".sbatch", ".slurm", ".json", ".toml", ".py", ".yaml", ".yml")


def run_formats() -> list[RunFormat]:
    """Return the kinds of files that describe a run, in the order in which they are tried."""
    paths = [one.run_formats for one in frameworks() if one.run_formats]
    formats = [*(one for path in paths for one in load(path)), *TUNER_FORMATS]
    return sorted(formats, key=lambda one: one.precedence)


def script_formats() -> list[ScriptFormat]:
    """Return the kinds of training commands, in the order in which they are tried."""
    paths = [one.script_formats for one in frameworks() if one.script_formats]
    formats: list[ScriptFormat] = [one for path in paths for one in load(path)]
    formats += TUNER_SCRIPTS
    return sorted(formats, key=lambda one: one.precedence)


def format_titles() -> list[str]:
    """Return what can be read, a noun phrase each."""
    paths = [p for one in frameworks() for p in (one.script_formats, one.run_formats) if p]
    titles = [one.title for path in paths for one in load(path)]
    others = [one.title for one in TUNER_FORMATS]
    return [title for title in (*titles, *others) if title]


def read_run(file: str | Content, query: RunQuery, framework: str = "") -> ExistingRun:
    """Return the run of a file; `FILE#NAME` names one recipe of several.

    Raises `SpecError` for a file that is none of `format_titles`, and `UsageError` where
    `framework` is named and the file is for another.
    """
    if isinstance(file, Content):
        name, _, part = file.name.partition("#")
        run = run_of_text(str(file.content), name or file.label, query, part)
        return _for_framework(run, framework, name or file.label)
    name, part, text = run_text(file)
    return _for_framework(run_of_text(text, name, query, part), framework, name)


def run_text(file: str) -> tuple[str, str, str]:
    """Return path, recipe and text of `FILE` or `FILE#NAME`; `SpecError` where there is none."""
    name, _, part = file.partition("#") if not Path(file).exists() else (file, "", "")
    if Path(name).is_dir():
        inside = [p.name for p in sorted(Path(name).iterdir()) if p.suffix in SUFFIXES]
        fix = "name one of its files: " + ", ".join(inside[:8])
        fix = fix if inside else f"name {format_titles()[0]}"
        raise SpecError(InputProblem("is a folder without start script, not a run", fix, name))
    if not part and not Path(name).exists():
        for one in frameworks():
            text = load(one.named_run)(name) if one.named_run else None
            if text is not None:
                return name, "", text
    return name, part, read_text(name)


def _for_framework(run: ExistingRun, framework: str, name: str) -> ExistingRun:
    if framework and run.framework != framework:
        raise UsageError(
            option("framework", framework)
            + f": {name} is {with_article(run.format)}, for {run.framework}",
            "leave it out, or " + option("framework", run.framework),
        )
    return run


def run_of_text(text: str, name: str, query: RunQuery, part: str = "") -> ExistingRun:
    """Return the run that a text describes; `part` names a recipe."""
    file = RunFile(text, name, query, _files_beside(name, query), part)
    run = with_unsaid(_read(file), text, query.model)
    return replace(run, overestimated=run.overestimated or _overestimated(run))


def _overestimated(run: ExistingRun) -> str:
    """Return what the notes of a run say that its price puts on the device and it does not."""
    match = re.compile(r"memory (is|are) overestimated")
    named = (note.partition(":")[0] for note in run.notes if match.search(note))
    return ", ".join(dict.fromkeys(named))


def _read(file: RunFile) -> ExistingRun:
    text, name = file.text, file.name
    if not text.strip():
        raise SpecError(InputProblem("the file is empty", f"expected {format_titles()[0]}", name))
    refuse_long_numbers(text, name)
    formats = run_formats()
    for one in formats:
        if one.precedence < FOREIGN and one.matches(file):
            return one.read(file)
    if file.has_ending(".yaml", ".yml") or text.lstrip().startswith("{"):
        refuse_foreign(text, name)
    for one in formats:
        if one.precedence >= FOREIGN and one.matches(file):
            return one.read(file)
    if file.has_ending(*SCRIPT_ENDINGS) or file.is_script or looks_like_megatron(text):
        return _script(file)
    if re.search(r"^(model|pools):", text, re.MULTILINE):
        fix = "name the run first, then the cluster; a model goes to " + option("model")
        raise SpecError(InputProblem("is a model or cluster file, not a run", fix, name))
    expected = f"expected {known_formats()}"
    raise SpecError(InputProblem("is not a run that is known here", expected, name))


def known_formats() -> str:
    """Return what can be read, as a list in a sentence."""
    titles = format_titles()
    return ", ".join(titles[:-1]) + f" or {titles[-1]}"


def _files_beside(
    name: str, query: RunQuery, written: Mapping[str, str] | None = None
) -> FindFile:
    """Return a reader of files that a run names: written by its script, or lying beside it."""
    folder = Path(name).parent

    def find(wanted: str) -> str | None:
        short = wanted.rsplit("/", 1)[-1]
        for file, text in {**(query.beside or {}), **(written or {})}.items():
            if file == wanted or file.rsplit("/", 1)[-1] == short:
                return text
        if query.beside is not None:
            return None
        for path in (folder / wanted, folder / short):
            try:
                if path.is_file():
                    return read_text(str(path))
            except (OSError, ValueError):
                continue
        return None

    return find


def _script(file: RunFile) -> ExistingRun:
    launch = read_launch(file.text, file.name, file.query.env, file.find)
    arguments = trainer_arguments(launch.argv)
    for size in (BATCH, ACCUMULATION):
        if not isinstance(arguments.get(size, 1), int):
            del arguments[size]
    if BATCH in arguments:
        arguments.setdefault(ACCUMULATION, 1)  # as the Trainer has it
    arguments |= file.query.arguments
    find = _files_beside(file.name, file.query, launch.files)
    run = LaunchedRun(file, launch, arguments, find)
    for one in script_formats():
        if one.matches(run):
            return one.read(run)
    script = unmarked(launch.script).rsplit("/", 1)[-1]
    message = f"{script}: no flags of Megatron-LM, no file of DeepSpeed or Accelerate"
    fix = f"expected {known_formats()}"
    raise SpecError(InputProblem(message, fix, file.name, launch.line))
