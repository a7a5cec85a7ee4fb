"""What `planner batch-solve` does."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from planner.cli.arguments import check_format, positive
from planner.errors import InputProblem, PlannerError, SpecError, UsageError

if TYPE_CHECKING:  # 20 ms, which only a file of a batch is worth
    from planner.specs.yaml.document import Document

KEYS = ("jobs", "clusters", "counts")
EXAMPLE = (
    "such as examples/batch.yaml: jobs: {a: llama3-8b}, clusters: {h100: h100-x512}, counts: [8]"
)
COLUMNS = ("job", "cluster", "n_devices", "status", "step_time_s", "tokens_per_s", "plan_id")


def batch_file(file: str) -> tuple[dict[str, Any], "Document"]:
    """Return jobs, clusters and counts of a file, and where they stand in it.

    The first two are by name, each as `solve` takes it.
    """
    from planner.specs.yaml.document import parse_yaml, read_text

    document = parse_yaml(read_text(file), file)
    data = document.data
    if not isinstance(data, Mapping):
        raise UsageError(f"{file}: it must be a mapping of {', '.join(KEYS)}", EXAMPLE)
    for key in KEYS:
        if key not in data:
            raise UsageError(f"{file}: `{key}` is missing", EXAMPLE)
    for key in data:
        if key not in KEYS:
            raise UsageError(f"{file}: `{key}` is an unknown key", f"only {', '.join(KEYS)}")
    for name in ("jobs", "clusters"):
        if not isinstance(data[name], Mapping):
            raise UsageError(
                f"{file}: `{name}` must be a mapping of names", f"{name}: {{a: FILE}}"
            )
        for key, value in data[name].items():
            if not isinstance(value, str | Mapping):
                place = document.problem((name, key), "").location
                message = f"{place}: {name}.{key}: {value!r} is neither a name nor a mapping"
                raise UsageError(message, "the name of a file or an example, or its content")
    if not isinstance(data["counts"], list) or not all(type(n) is int for n in data["counts"]):
        raise UsageError(f"{file}: `counts` must be a list of whole numbers", "counts: [8, 64]")
    return {**data, "jobs": dict(data["jobs"]), "clusters": dict(data["clusters"])}, document


@contextmanager
def in_batch_file(document: "Document") -> Iterator[None]:
    """Let errors of an entry of a batch say where it stands in its file."""
    try:
        yield
    except SpecError as error:
        raise SpecError([in_document(one, document) for one in error.problems]) from None
    except PlannerError as error:
        if error.about.startswith(("jobs.", "clusters.")):
            location = in_document(InputProblem("", path=error.about), document).location
            error.message = f"{location}: " + error.message
            error.args = (error.message,)
        raise


def in_document(problem: InputProblem, document: "Document") -> InputProblem:
    """Return a problem with its place in a document, where it names none of its own."""
    from planner.specs.yaml.document import path_text

    path = problem.path or problem.message.partition(": ")[0]
    if problem.file:
        return problem
    marks = {path_text(path): mark for path, mark in document.key_marks.items()}
    within = [x for x in marks if f"{path}.".startswith(f"{x}.")]
    if not within:
        return problem
    line, column = marks[max(within, key=len)]
    return replace(problem, file=document.file, line=line, column=column)


def run_batch_solve(
    jobs: str, framework: str, time_limit: float | None, executor: str, form: str
) -> int:
    """Run `planner batch-solve`; return the exit code."""
    from planner.solver.request import SolveRequest
    from planner.sweeps.scaling.batch import batch_solve

    check_format(form, ("table", "json"))
    limit_s = positive(time_limit, "--time-limit", "20")
    request = SolveRequest(framework=framework, time_limit_s=limit_s)
    questions, document = batch_file(jobs)
    with in_batch_file(document):
        answer = batch_solve(**questions, request=request, executor=executor)
    return show_batch(answer.to_json(), form)


def show_batch(data: Mapping[str, Any], form: str) -> int:
    """Print a batch; return the exit code."""
    from planner.documents import Grid
    from planner.render.terminal import terminal_text, terminal_width

    if form == "json":
        sys.stdout.write(json.dumps(data, indent=1, allow_nan=False) + "\n")
    else:
        rows = tuple(tuple(_cell(row[name]) for name in COLUMNS) for row in data["rows"])
        grid = Grid(COLUMNS, rows, "", numeric=(2, 4, 5))
        sys.stdout.write(terminal_text([grid], terminal_width()))
        for text in _said(data):
            print(text)
    if data["stopped"]:
        return 4
    return 0 if any(row["status"] == "ok" for row in data["rows"]) else 3


def _said(data: Mapping[str, Any]) -> list[str]:
    """Return what the table has no column for: reasons, each once, and why rows are missing."""
    reasons: dict[str, list[str]] = {}
    for row in data["rows"]:
        if row["reason"]:
            place = f"{row['job']} on {row['n_devices']:,} of {row['cluster']}"
            reasons.setdefault(f"{row['status']}: {row['reason']}", []).append(place)
    lines = [f"{reason} ({', '.join(places)})" for reason, places in reasons.items()]
    if data["stopped"]:
        done = f"{len(data['rows']):,} of {data['n_cells']:,} rows"
        lines.append(f"stopped by the {data['stopped']}: {done}; raise --time-limit")
    return lines


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"
    return "" if value is None else str(value)
