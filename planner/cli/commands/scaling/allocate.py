"""What `planner allocate` does."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from planner.cli.arguments import check_format
from planner.errors import UsageError

MOST_BYTES = 8_000_000
"""Of a file: 50,000 points of curves take 3 to 6 MB."""
KEYS = ("free", "jobs", "objective")


def allocation_request(file: str, objective: str) -> dict[str, Any]:
    """Return what a file asks, by the fields of the service's request.

    `objective` stands for that of the file where it is given.
    """
    from planner.specs.yaml.document import parse_yaml, read_text

    text = read_text(file, MOST_BYTES)
    try:
        data = json.loads(text)  # quick, and as large as a service takes it
    except ValueError:
        data = parse_yaml(text, file).data
    if not isinstance(data, Mapping):
        raise UsageError(f"{file}: it is no mapping", f"with {', '.join(KEYS)}")
    for name in data:
        if name not in KEYS:
            raise UsageError(f"{file}: unknown key {name!r}", f"one of {', '.join(KEYS)}")
    free, jobs = data.get("free"), data.get("jobs")
    if not isinstance(free, Mapping) or not isinstance(jobs, list):
        raise UsageError(
            f"{file}: `free` is a mapping of pools to nodes, `jobs` a list", "write both"
        )
    chosen = objective or data.get("objective") or "throughput"
    return {"free": dict(free), "jobs": jobs, "objective": chosen}


def run_allocate(file: str, objective: str, form: str) -> int:
    """Run `planner allocate`; return the exit code."""
    from planner.sweeps.scaling.allocation import allocate

    check_format(form, ("table", "json"))
    answer = allocate(**allocation_request(file, objective))
    return show_allocation(answer.to_json(), form)


def show_allocation(data: Mapping[str, Any], form: str) -> int:
    """Print an allocation; return the exit code."""
    from planner.render.answers.scaling.allocation import allocation_parts
    from planner.render.terminal import terminal_text, terminal_width

    if form == "json":
        text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    else:
        text = terminal_text(allocation_parts(data), terminal_width())
    sys.stdout.write(text)
    return 0 if any(job["nodes"] for job in data["jobs"]) else 3
