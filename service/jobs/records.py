"""What is said of jobs: states, what an owner sees, leases, bounds, and the problems of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from service.handlers.problems import Fault, Refusal, with_fix
from service.tenants.groups import OPEN_GROUP, Priority


class State(StrEnum):
    """States of a job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.EXPIRED})
"""States that nothing follows, but that a result expires."""
OPEN = (State.PENDING.value, State.RUNNING.value)


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as its owner sees it."""

    job_id: str
    owner: str
    call: str
    request_id: str
    state: State
    attempts: int
    """Leases that were begun and not given back, those that ended with their process aside; from
    the last one on that kept rows."""
    n_events: int
    created_at: float
    """Time of day, seconds since 1970; so are the next two."""
    started_at: float | None
    """Begin of the last attempt."""
    finished_at: float | None
    complete: bool | None
    """False where a search was stopped with the best so far; None while there is no answer."""
    sha256: str
    """Of the answer's bytes; empty while there is none."""
    problem: Mapping[str, Any] | None
    """Why it failed, as RFC 9457 has it."""
    tenant: str = OPEN_GROUP
    """Group of its owner when it was submitted."""
    priority: int = Priority.NORMAL.value
    labels: Mapping[str, str] = field(default_factory=dict)
    version: int = 0
    """Resource version of its last change; 0 where that was before there were any."""

    @property
    def etag(self) -> str:
        """Identity of the answer: that of the request where it is the whole one."""
        return self.request_id if self.complete else self.sha256

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens to it."""
        return self.state in FINAL

    def to_json(self) -> dict[str, Any]:
        """Return the job as both transports show it."""
        return {
            "job_id": self.job_id,
            "owner": self.owner,
            "call": self.call,
            "request_id": self.request_id,
            "content_id": self.request_id,
            "state": self.state.value,
            "attempts": self.attempts,
            "n_events": self.n_events,
            "created_at": self.created_at,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "complete": self.complete,
            "etag": self.etag if self.sha256 else "",
            "problem": dict(self.problem) if self.problem else None,
            "group": self.tenant,
            "priority": Priority(self.priority).label,
            "labels": dict(self.labels),
            "resource_version": self.version,
        }


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job; `n` counts from 1 without gaps."""

    n: int
    data: Mapping[str, Any]
    """`{"state": ...}` or `{"phase", "done", "total", "best_step_time_s"}`."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job until someone else has it."""

    job_id: str
    fence: int
    call: str
    request_id: str
    body: bytes
    time_limit_s: float
    attempt: int
    """From 1."""
    rows: tuple[bytes, ...] = field(default=(), compare=False)
    """Rows that earlier leases have kept, as `service.handlers.partial_results.packed_rows`."""
    n_batches: int = field(default=0, compare=False)
    """Number of the next batch of them."""
    spent_s: float = field(default=0.0, compare=False)
    """Time in which they were computed."""
    charged_s: float = field(default=0.0, compare=False)
    """CPU seconds of earlier leases of the job."""
    tenant: str = field(default=OPEN_GROUP, compare=False)
    priority: int = field(default=Priority.NORMAL.value, compare=False)


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows of a job that came one after the other, as the store keeps them."""

    n: int
    """From 0, in the order in which they came; one number for all leases of a job."""
    request_id: str
    """Content hash of the request: rows of equal ones belong into one answer."""
    n_rows: int
    payload: bytes
    """As `service.handlers.partial_results.packed_rows`."""
    spent_s: float
    """Time in which they were computed."""


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows of a job that has no answer, a part of them."""

    payloads: tuple[bytes, ...]
    """As `service.handlers.partial_results.packed_rows`."""
    skip: int
    """Rows at the beginning of these that come before those asked for."""
    total: int
    """Rows that there are in all."""


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """An address that is told of changes of jobs, as it is registered."""

    owner: str
    url: str
    secret: str
    """`whsec_` and base64, as Standard Webhooks has it."""
    states: tuple[str, ...]
    """States that it is told of, when jobs come into them."""
    selector: str = ""
    """Only jobs with such labels."""


@dataclass(frozen=True, slots=True)
class JobTags:
    """What a job is given besides its work."""

    labels: Mapping[str, str] = field(default_factory=dict)
    webhook: NewWebhook | None = None
    """Told of this job alone."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A call to be worked on, as it is submitted."""

    owner: str
    call: str
    request_id: str
    body: bytes
    time_limit_s: float = 0.0
    tenant: str = OPEN_GROUP
    """Group of the owner."""
    priority: int = Priority.NORMAL.value
    tags: JobTags = JobTags()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the jobs of a service."""

    queued: int = 1_000
    """Jobs that wait, of all owners."""
    queued_per_owner: int = 100
    kept_per_owner: int = 20_000
    """Jobs of one owner in the store, whatever their state."""
    keys_per_owner: int = 20_000
    """Idempotency keys of one owner that are remembered."""
    max_attempts: int = 3
    """Workers that may die of one job without a new row; then it has failed."""
    max_leases: int = 100
    """Leases of one job since its last row. That a process of the service is
    killed is seldom the fault of the jobs that it works on, so it costs them no attempt; but not
    for ever."""
    lease_s: float = 15.0
    """How long a heartbeat may be missing; heartbeats come every third of it."""
    retention_s: float = 7 * 86_400.0
    """How long results are kept."""
    memory_s: float = 7 * 86_400.0
    """How long after that the job is still listed, as EXPIRED."""
    key_s: float = 86_400.0
    """How long an idempotency key is remembered."""
    claim_s: float = 300.0
    """How long an idempotency key may be in use for a call that is answered at once."""
    history_s: float = 86_400.0
    """How long changes of jobs are kept, for watchers that come back."""
    history_rows: int = 100_000
    """Changes that are kept at most."""
    webhooks_per_owner: int = 20
    """Webhooks that an owner has registered; those of single jobs are not counted."""
    deliveries_per_owner: int = 10_000
    """Deliveries of one owner that wait; what comes on top is dropped."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it was given, kept for whoever asks again."""

    payload: bytes
    etag: str


class JobQueueFull(Refusal):
    """Too many jobs wait; the engine adds when to come back."""

    def __init__(self, detail: str) -> None:
        super().__init__(429, "too-many-jobs", "too many jobs wait", detail, retry_after_s=5.0)

    def __reduce__(self) -> tuple[Any, ...]:
        return JobQueueFull, (self.detail,)


def no_such_job(job_id: str) -> Refusal:
    """Return the problem of an id that is unknown, or another owner's."""
    problem = Refusal(
        404, "unknown-job", "there is no such job", f"no job {job_id[:40]!r} of yours"
    )
    gone = "jobs that ended long ago are forgotten"
    return with_fix(
        problem,
        f"GET /v1/jobs lists yours; {gone}",
        "job_id",
        f"`planner jobs list` lists yours; {gone}",
    )


def problem_from_json(data: Mapping[str, Any]) -> Refusal:
    """Return the problem that `Refusal.to_json` wrote."""
    errors = [Fault(**fault) for fault in data.get("errors", ())]
    return Refusal(
        data["status"],
        data["code"],
        data["title"],
        data["detail"],
        data.get("retry_after_s"),
        errors,
    )
