"""What `planner jobs` does: asks a service for jobs, and prints them."""

import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from planner.cli.arguments import check_format
from planner.client import Client, ServiceError
from planner.documents import Grid
from planner.errors import UsageError

Params = Mapping[str, Any]
COLUMNS = ("job", "state", "call", "created", "seconds", "labels")
OPEN = ("PENDING", "RUNNING")
STATES = (*OPEN, "SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")


def list_jobs(service: Client, params: Params) -> int:
    """Print jobs, the newest first."""
    check_format(params["form"])
    names = ("state", "labels", "call", "created_after", "created_before")
    limit = int(params["limit"])
    wanted = {name: params[name] for name in names}
    jobs = list(islice(service.jobs(**wanted, page=min(limit, 1_000)), limit))
    if params["form"] == "json":
        _print_json({"jobs": jobs})
        return 0
    _print_grid(COLUMNS, tuple(_row(job) for job in jobs), numeric=(4,))
    return 0


def show_job(service: Client, params: Params) -> int:
    """Print a job; exit code 3 where it has failed."""
    check_format(params["form"])
    return _shown(service.job(params["job"]), params["form"])


def cancel_job(service: Client, params: Params) -> int:
    """Cancel a job and print it."""
    check_format(params["form"])
    _shown(service.cancel(params["job"]), params["form"])
    return 0


def watch_jobs(service: Client, params: Params) -> int:
    """Print the jobs that are open, then every change, until the interrupt.

    With `until_ended` until none of them is open any more; exit code 3 where one has failed.
    Changes into other states than `state` are not printed, and count all the same.
    """
    check_format(params["form"])
    state = params["state"]
    if state and state not in STATES:
        raise UsageError(f"--state {state} is no state of a job", f"one of {', '.join(STATES)}")
    wanted = {"labels": params["labels"], "call": params["call"]}
    is_open: set[str] = set()
    failed = False
    for change in _changes(service, wanted):
        job = change["job"]
        if job is None:
            if params["until_ended"] and not is_open:
                break
            continue
        (is_open.add if job["state"] in OPEN else is_open.discard)(job["job_id"])
        failed = failed or job["state"] == "FAILED"
        if state in ("", job["state"]):
            _print_change(change, params["form"])
        if params["until_ended"] and not is_open:
            break
    return 3 if failed and params["until_ended"] else 0


def _print_change(change: Mapping[str, Any], form: str) -> None:
    job = change["job"]
    if form == "json":
        sys.stdout.write(json.dumps(change) + "\n")
    else:
        labels = _labels(job)
        words = (_clock(job), change["type"], job["job_id"], job["state"], job["call"], labels)
        sys.stdout.write("  ".join(words).rstrip() + "\n")
    sys.stdout.flush()


def _changes(service: Client, wanted: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    """Yield open jobs as added, then what changes; list again where the history is too short."""
    seen = 0
    while True:
        jobs, version = service.list_jobs(**wanted)
        known = {job["job_id"]: int(job["resource_version"]) for job in jobs}
        for job in reversed(jobs):
            if job["state"] in OPEN or int(job["resource_version"]) > seen > 0:
                yield {"type": "ADDED", "resource_version": job["resource_version"], "job": job}
        yield {"type": "BOOKMARK", "resource_version": version, "job": None}
        try:
            for change in service.watch_jobs(version, **wanted):
                seen = int(change["resource_version"])
                job = change["job"]
                if job is None or seen > known.get(job["job_id"], 0):
                    yield change
        except ServiceError as error:
            if error.code != "history-trimmed":
                raise


def _shown(job: Mapping[str, Any], form: str) -> int:
    if form == "json":
        _print_json(job)
    else:
        names = ("job_id", "state", "call", "owner", "attempts")
        rows = [(name, str(job[name])) for name in names]
        for name in ("created_at", "started_at", "finished_at"):
            rows.append((name, _moment(job[name])))
        rows.append(("labels", _labels(job)))
        if job["problem"]:
            rows.append(("problem", str(job["problem"].get("detail", ""))))
        _print_grid(("field", "value"), tuple(rows))
    return 3 if job["state"] == "FAILED" else 0


def _row(job: Mapping[str, Any]) -> tuple[str, ...]:
    begun, ended = job["started_at"], job["finished_at"]
    seconds = f"{ended - begun:.1f}" if begun and ended else ""
    created = _moment(job["created_at"])
    return (job["job_id"], job["state"], job["call"], created, seconds, _labels(job))


def _labels(job: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in job["labels"].items())


def _clock(job: Mapping[str, Any]) -> str:
    """Return when a job came into its state."""
    times = (job["finished_at"], job["started_at"], job["created_at"])
    return _moment(next(filter(None, times), None))


def _moment(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _print_json(data: Any) -> None:
    sys.stdout.write(json.dumps(data, indent=1, allow_nan=False) + "\n")


def _print_grid(
    columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...], numeric: tuple[int, ...] = ()
) -> None:
    from planner.render.terminal import terminal_text, terminal_width

    sys.stdout.write(terminal_text([Grid(columns, rows, "", numeric=numeric)], terminal_width()))
