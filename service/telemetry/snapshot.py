"""What the engine tells its metrics."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class GroupCounts:
    """What there is to measure of a group of callers."""

    cpu_s: float = 0.0
    """CPU seconds of its calls and jobs in this process."""
    refused: int = 0
    """Requests that a quota refused, here."""
    jobs: Counter[str] = field(default_factory=Counter)
    """Jobs that wait and run by state, of all processes, as of some seconds ago."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the engine has counted since it started, and what it holds now: for metrics."""

    queue_depth: int
    in_flight: int
    cache_entries: int
    cache_bytes: int
    counts: Mapping[str, int]
    """`answered`, `cached`, `joined` (the same request was in flight), `computed`, `stopped`
    (best so far), `refused`, `jobs_accepted`, `jobs_finished`, `leases_lost`."""
    refused: Mapping[str, int]
    """By code of the problem."""
    workers_alive: int
    workers_died: int
    mean_work_s: float
    mean_job_s: float
    jobs: Mapping[str, int] = field(default_factory=dict)
    """Jobs in the store by state, of all processes, as of some seconds ago; empty before."""
    groups: Mapping[str, GroupCounts] = field(default_factory=dict)
    """By group of the file of tenants; those that it no longer names as one."""
