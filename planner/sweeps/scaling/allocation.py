"""`allocate`: which of several jobs gets which of the nodes that are free, by their curves."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.documents import LibraryAnswer
from planner.errors import UsageError
from planner.specs.identity import content_id
from searches.allocation import (
    OBJECTIVES,
    Allocation,
    MoldableJob,
    NodeChoice,
    solve_allocation,
)

SCHEMA_VERSION = "1.0"
MOST_JOBS, MOST_CHOICES = 2_000, 50_000
"""Of one question: jobs, and points of all their curves."""
LEAST = 1e-9
"""Least speed and weight of a job: what is less makes no sense, and divides to infinity."""
FIELDS = ("name", "weight", "tokens", "deadline_s", "curve")
POINT_FIELDS = ("pool", "nodes", "tokens_per_s")


@dataclass(frozen=True, slots=True)
class AllocationAnswer(LibraryAnswer):
    """Which job gets what."""

    result_id: str
    objective: str
    free: Mapping[str, int]
    """Nodes by pool."""
    jobs: tuple[MoldableJob, ...]
    allocation: Allocation

    @property
    def exit_code(self) -> int:
        """What the command line returns: 0, or 3 where no job gets anything."""
        return 0 if any(self.allocation.chosen) else 3

    def used(self) -> dict[str, int]:
        """Return the nodes that are given, by pool."""
        entries = dict.fromkeys(self.free, 0)
        for choice in self.allocation.chosen:
            if choice is not None:
                entries[choice.pool] += choice.n_nodes
        return entries

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        found = self.allocation
        return {
            "schema_version": SCHEMA_VERSION,
            "result_id": self.result_id,
            "objective": self.objective,
            "free": dict(self.free),
            "used": self.used(),
            "value": found.value,
            "bound": found.bound,
            "is_proven": found.is_proven,
            "gap_frac": found.gap_frac,
            "jobs": [
                _job_json(job, choice) for job, choice in zip(self.jobs, found.chosen, strict=True)
            ],
        }

    def dumps(self) -> str:
        """Return the JSON text: the same bytes for the same inputs."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def _job_json(job: MoldableJob, choice: NodeChoice | None) -> dict[str, Any]:
    return {
        "name": job.name,
        "pool": choice.pool if choice else None,
        "nodes": choice.n_nodes if choice else 0,
        "tokens_per_s": choice.tokens_per_s if choice else 0.0,
        "speed_frac": choice.tokens_per_s / job.best_tokens_per_s if choice else 0.0,
        "remaining_s": job.tokens / choice.tokens_per_s if choice and job.tokens else None,
        "is_in_time": job.is_in_time(choice) if choice and job.deadline_s else None,
    }


def allocate(
    jobs: Sequence[Mapping[str, Any]], free: Mapping[str, int], objective: str = "throughput"
) -> AllocationAnswer:
    """Return which job gets which nodes.

    A job has a `name` and a `curve`: points of `pool`, `nodes` and `tokens_per_s`, of which it
    gets one or none; further `weight`, and `tokens` that are left with a `deadline_s` from now on.
    `free` has the nodes of every pool. `objective`: `throughput` (most weighted tokens a second),
    `fairness` (the largest product of speeds), `deadline` (most weight of jobs in time). Raises
    `UsageError` for what makes no sense.
    """
    if objective not in OBJECTIVES:
        raise UsageError(
            f"objective: unknown {objective!r}",
            f"one of {', '.join(OBJECTIVES)}",
            code="unknown-name",
        )
    for pool, n in free.items():
        if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= 10**6:
            raise UsageError(f"free.{pool}: {n!r} is no number of nodes", "0 to 1000000")
    if len(jobs) > MOST_JOBS:
        raise UsageError(f"jobs: {len(jobs):,} are too many", f"at most {MOST_JOBS:,}")
    read = tuple(_job(i, job, free) for i, job in enumerate(jobs))
    names = [job.name for job in read]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise UsageError(f"jobs: the name {twice!r} stands twice", "a name for every job")
    n_choices = sum(len(job.choices) for job in read)
    if n_choices > MOST_CHOICES:
        raise UsageError(f"jobs: {n_choices:,} points of curves", f"at most {MOST_CHOICES:,}")
    if objective == "deadline" and read and not any(job.deadline_s for job in read):
        raise UsageError("objective deadline: no job has a deadline", "deadline_s and tokens")
    result_id = content_id("allocate", [_identity(job) for job in read], dict(free), objective)
    found = solve_allocation(read, free, objective)
    return AllocationAnswer(result_id, objective, dict(free), read, found)


def _identity(job: MoldableJob) -> list[Any]:
    """Return what a job is, every default filled in."""
    points = [[each.pool, each.n_nodes, each.tokens_per_s] for each in job.choices]
    return [job.name, points, job.weight, job.tokens, job.deadline_s]


def _job(i: int, data: Mapping[str, Any], free: Mapping[str, int]) -> MoldableJob:
    where = f"jobs.{i}"
    _check_fields(where, data, FIELDS, ("name", "curve"))
    name, curve = data["name"], data["curve"]
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise UsageError(f"{where}.name: {name!r} is no name", "a text of one line")
    if not isinstance(curve, Sequence) or isinstance(curve, str):
        raise UsageError(f"{where}.curve: it is no list", "points of pool, nodes, tokens_per_s")
    choices = tuple(_choice(f"{where}.curve.{n}", point, free) for n, point in enumerate(curve))
    places = [(each.pool, each.n_nodes) for each in choices]
    if len(set(places)) < len(places):
        raise UsageError(f"{where}.curve: a number of nodes stands twice", "one point for each")
    weight = _number(f"{where}.weight", data.get("weight", 1.0), least=LEAST)
    tokens = _number(f"{where}.tokens", data.get("tokens", 0.0))
    deadline_s = _number(f"{where}.deadline_s", data.get("deadline_s", 0.0))
    if deadline_s and not tokens:
        raise UsageError(f"{where}: a deadline, and no tokens that are left", f"{where}.tokens")
    return MoldableJob(name, choices, weight, tokens, deadline_s)


def _choice(where: str, point: Mapping[str, Any], free: Mapping[str, int]) -> NodeChoice:
    _check_fields(where, point, POINT_FIELDS, POINT_FIELDS)
    pool, nodes = point["pool"], point["nodes"]
    if not isinstance(pool, str) or pool not in free:
        pools = ", ".join(free) or "none"
        raise UsageError(f"{where}.pool: {pool!r} is none of those in free", f"one of {pools}")
    if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= 10**6:
        raise UsageError(f"{where}.nodes: {nodes!r} is no number of nodes", "1 or more")
    return NodeChoice(
        pool, nodes, _number(f"{where}.tokens_per_s", point["tokens_per_s"], least=LEAST)
    )


def _check_fields(where: str, data: Any, known: Sequence[str], needed: Sequence[str]) -> None:
    if not isinstance(data, Mapping):
        raise UsageError(f"{where}: it is no mapping", f"with {', '.join(known)}")
    unknown = next((name for name in data if name not in known), None)
    if unknown is not None:
        raise UsageError(f"{where}: unknown field {unknown!r}", f"one of {', '.join(known)}")
    missing = next((name for name in needed if name not in data), None)
    if missing is not None:
        raise UsageError(f"{where}: {missing} is missing", f"{where}.{missing}")


def _number(where: str, value: Any, least: float | None = None) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0.0 <= value <= 1e18:
        raise UsageError(f"{where}: {value!r} is no number that makes sense", "0 or more")
    if least is not None and value < least:
        raise UsageError(f"{where}: {value!r} is below {least:g}", "a larger number")
    return float(value)
