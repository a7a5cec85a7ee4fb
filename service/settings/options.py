"""How a service is set up, besides the limits of requests."""

from dataclasses import dataclass, field
from typing import Literal

from searches.executors.executor import n_cpus


@dataclass(frozen=True, slots=True)
class Options:
    """How a service is set up, besides the limits of requests."""

    workers: int = field(default_factory=n_cpus)
    """Processes for requests that are answered at once."""
    spare_workers: int = 1
    """More of them, for callers of whom no request is computed when the others are busy."""
    job_workers: int = field(default_factory=lambda: max(1, n_cpus() // 2))
    """Processes for jobs; 0 takes jobs and leaves them to other processes of the service."""
    page_workers: int = 1
    """More of them, for what pages ask alone: no sweep takes them."""
    cache_bytes: int = 64_000_000
    """Answers kept in memory."""
    lease_s: float = 15.0
    """How long a process of the service may be silent before its jobs are taken from it."""
    poll_s: float = 0.5
    """How often the store is asked for jobs and events of other processes."""
    clean_up_s: float = 60.0
    drain_s: float = 20.0
    """How long running jobs may go on when the service stops; then others take them."""
    grace_s: float = 5.0
    """How much later than its deadline an answer may be before its worker is killed."""
    job_hard_s: float = 86_400.0
    """Time after which the worker of a job is killed."""
    max_attempts: int = 3
    """How often a job is begun whose worker dies each time, without a new row; then
    it has failed."""
    retention_s: float = 7 * 86_400.0
    """How long results are kept; the job is listed as EXPIRED for another week."""
    watchers: int = 512
    """Streams of events of jobs that are open at the same time."""
    watchers_per_caller: int = 64
    """The same of one caller."""
    history_s: float = 86_400.0
    """How long changes of jobs are kept for watchers that come back; later they list again."""
    webhooks_per_owner: int = 20
    """Webhooks that one caller may register; those of single jobs come on top."""
    page_items: int = 1_000
    """Most items in a page of a result."""
    executor: Literal["serial", "ray"] = "serial"
    """Executor of the searches of jobs; one worker process of ours has no processes of its own."""
    webhook_hosts: tuple[str, ...] = ()
    """Hosts that webhooks may lead to; without them there are none."""
    webhook_networks: tuple[str, ...] = ()
    """Networks of private addresses that they may lead to as well."""
    ray_address: str = ""
    """Ray cluster that jobs use with the executor `ray`; empty for one of their own, here."""

    @property
    def n_page_workers(self) -> int:
        """Workers for jobs of pages: none where this process works on no jobs."""
        return self.page_workers if self.job_workers else 0
