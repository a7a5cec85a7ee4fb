"""What `planner batch-solve` does."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from planner.cli.arguments import check_format, positive
from planner.errors import UsageError

KEYS = ("jobs", "clusters", "counts")
EXAMPLE = (
    "such as examples/batch.yaml: jobs: {a: llama3-8b}, clusters: {h100: h100-x512}, counts: [8]"
)
COLUMNS = ("job", "cluster", "n_devices", "status", "step_time_s", "tokens_per_s", "plan_id")


def batch_questions(file: str) -> dict[str, Any]:
    """Return jobs, clusters and counts of a file; the first two by name, as `solve` takes them."""
    from planner.specs.yaml.document import parse_yaml, read_text

    data = parse_yaml(read_text(file), file).data
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
                message = f"{file}: {name}.{key}: {value!r} is neither a name nor a mapping"
                raise UsageError(message, "the name of a file or an example, or its content")
    if not isinstance(data["counts"], list) or not all(type(n) is int for n in data["counts"]):
        raise UsageError(f"{file}: `counts` must be a list of whole numbers", "counts: [8, 64]")
    return {**data, "jobs": dict(data["jobs"]), "clusters": dict(data["clusters"])}


def run_batch_solve(
    jobs: str, framework: str, time_limit: float | None, executor: str, form: str
) -> int:
    """Run `planner batch-solve`; return the exit code."""
    from planner.solver.request import SolveRequest
    from planner.sweeps.scaling.batch import batch_solve

    check_format(form, ("table", "json"))
    limit_s = positive(time_limit, "--time-limit", "20")
    request = SolveRequest(framework=framework, time_limit_s=limit_s)
    answer = batch_solve(**batch_questions(jobs), request=request, executor=executor)
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
