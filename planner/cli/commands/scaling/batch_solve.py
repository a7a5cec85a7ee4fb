"""What `planner batch-solve` does."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from planner.cli.arguments import check_format, positive
from planner.errors import UsageError

KEYS = ("jobs", "clusters", "counts")
COLUMNS = ("job", "cluster", "n_devices", "status", "step_time_s", "tokens_per_s", "plan_id")


def batch_questions(file: str) -> dict[str, Any]:
    """Return jobs, clusters and counts of a file; the first two by name, as `solve` takes them."""
    from planner.specs.yaml.document import parse_yaml, read_text

    data = parse_yaml(read_text(file), file).data
    if not isinstance(data, Mapping) or set(data) != set(KEYS):
        raise UsageError(f"{file}: it has other keys than these three", ", ".join(KEYS))
    for name in ("jobs", "clusters"):
        if not isinstance(data[name], Mapping):
            raise UsageError(f"{file}: `{name}` is no mapping of names", f"{name}: {{a: FILE}}")
        for key, value in data[name].items():
            if not isinstance(value, str | Mapping):
                message = f"{file}: {name}.{key}: {value!r} is neither a name nor a mapping"
                raise UsageError(message, "the name of a file or an example, or its content")
    if not isinstance(data["counts"], list) or not all(type(n) is int for n in data["counts"]):
        raise UsageError(f"{file}: `counts` is no list of numbers", "counts: [8, 64]")
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
    if data["stopped"]:
        return 4
    return 0 if any(row["status"] == "ok" for row in data["rows"]) else 3


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"
    return "" if value is None else str(value)
