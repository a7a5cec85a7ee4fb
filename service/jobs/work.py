"""Work on jobs: what a process of the service does with those that it has leased.

    lease -> worker -> rows into the store as they come -> result in the store
      |________________ heartbeats, with progress ________________|

One loop for each worker leases jobs; others send heartbeats, keep rows, and look after the jobs of
processes that died. Whatever ends an attempt before its job (a worker that died, a service that
stops), the rows that have come are kept, and the next attempt goes on with them.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from service.access.admission import SMOOTHING
from service.handlers.calls import PAGE_PREFIX
from service.handlers.limits import RequestLimits
from service.handlers.partial_results import KeptRow, Rows, packed_rows
from service.handlers.problems import Refusal
from service.jobs.queue import Jobs
from service.jobs.records import Lease, RowBatch
from service.jobs.spending import Spending
from service.jobs.store import StoreFull, StoreUnavailable
from service.settings.options import Options
from service.telemetry import logs
from service.worker_pool.pool import Progress, Task, WorkerDied, WorkerPool, WorkOutcome, in_time

Found = TypeVar("Found")

log = logging.getLogger("planner.service")

PROGRESS_GROWTH = 0.02
"""Least part of a job's time so far between two of its progress events: hours give hundreds."""
LEAST_ROOM_S = 0.2
"""Least time between two looks whether a job has to make room."""
ROW_BYTES = 64_000_000
"""Compressed rows of one job that are kept, some 50,000; what comes after them a next attempt
computes again."""


def page_calls(calls: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of calls that pages alone make and that are one search each."""
    return tuple(
        sorted(
            name
            for name, call in calls.items()
            if name.startswith(PAGE_PREFIX) and call.size == "small"
        )
    )


class InStore(Protocol):
    """How an engine works with the store."""

    def __call__(
        self, work: Callable[..., Found], /, *args: Any, **named: Any
    ) -> Awaitable[Found]:
        """Return what some work returns that is done in a thread."""
        ...


class RowKeeper:
    """Rows of a job on their way from a worker into the store, for one lease."""

    def __init__(self, jobs: Jobs, lease: Lease) -> None:
        self._jobs, self._lease = jobs, lease
        self._came: deque[tuple[str, Rows]] = deque()
        # A batch whose commit was lost on the way is sent again as it is, under its number.
        self._batches: deque[RowBatch] = deque()
        self._n = lease.n_batches
        self._n_bytes = sum(map(len, lease.rows))
        self._is_full = False
        self._since_s = time.monotonic()
        self._storing = threading.Lock()

    def add(self, request_id: str, rows: Rows) -> None:
        """Take rows; from any thread."""
        self._came.append((request_id, rows))

    @property
    def has_new(self) -> bool:
        """Whether rows have come under this lease."""
        return self._n > self._lease.n_batches

    @property
    def waits(self) -> bool:
        """Whether there are rows that are not in the store."""
        return bool(self._came or self._batches)

    def store(self) -> bool:
        """Store what has come; tell whether the lease still holds. `Refusal` of the store."""
        with self._storing:
            self._pack()
            while self._batches:
                if not self._jobs.keep_rows(self._lease, self._batches[0]):
                    self._batches.clear()
                    return False
                self._batches.popleft()
            return True

    def _pack(self) -> None:
        rows: list[KeptRow] = []
        request_id = ""
        while self._came:
            request_id, more = self._came.popleft()
            rows += more
        if not rows:
            return
        payload, now_s = packed_rows(request_id, rows), time.monotonic()
        if self._is_full or self._n_bytes + len(payload) > ROW_BYTES:
            if not self._is_full:
                log.warning("no more rows of a job are kept: %d bytes are", self._n_bytes)
            self._is_full = True
            return
        batch = RowBatch(self._n, request_id, len(rows), payload, now_s - self._since_s)
        self._batches.append(batch)
        self._n, self._n_bytes, self._since_s = self._n + 1, self._n_bytes + len(payload), now_s


@dataclass(slots=True)
class _Run:
    """A job that this process works on."""

    task: "asyncio.Task[WorkOutcome]"
    rows: RowKeeper
    begun_s: float
    beaten_s: float
    """Last heartbeat."""
    stored_s: float
    """Last progress that was stored."""
    progress: Mapping[str, Any] | None = None
    """The newest that is not stored yet."""
    lost: bool = False
    yields: bool = False
    """Whether its worker is wanted for a job that is more urgent."""

    @property
    def spent_s(self) -> float:
        """Time so far; it stands for CPU seconds until the worker says how many there were."""
        return time.monotonic() - self.begun_s


class JobWork:
    """The loops that work on jobs, of one process of the service."""

    def __init__(
        self,
        jobs: Jobs,
        settings: RequestLimits,
        options: Options,
        in_store: InStore,
        tell_watchers: Callable[[], None],
    ) -> None:
        """Prepare; `start` begins the work."""
        self._jobs = jobs
        self._settings = settings
        self._options = options
        self._in_store = in_store
        self._tell_watchers = tell_watchers
        self.counted: Counter[str] = Counter()
        """`jobs_finished`, `leases_lost`, and `jobs_yielded` to more urgent ones."""
        self._calls: Mapping[str, Any] = {}
        self._runs: dict[Lease, _Run] = {}
        self._new_jobs = asyncio.Event()
        self._draining = False
        self._working: list[asyncio.Task[None]] = []
        self._others: list[asyncio.Task[None]] = []
        self.counts: Mapping[str, int] = {}
        """Jobs in the store by state, as of some seconds ago; empty before."""
        self.mean_s = 0.0
        """Mean time of a job."""
        self.spending = Spending(jobs)
        self.open_jobs: Mapping[tuple[str, str], int] = {}
        """Jobs that wait and run by group and state, as of some seconds ago."""

    # Life

    def start(self, pool: WorkerPool, page_pool: WorkerPool, calls: Mapping[str, Any]) -> None:
        """Start the loops; `calls` by name, with their `size`.

        The workers of `page_pool` take jobs of pages alone, so that nobody who looks at a page
        waits behind sweeps.
        """
        self._calls = calls
        options, of_pages = self._options, page_calls(calls)
        loops = [self._work_on_jobs(pool, ()) for _ in range(options.job_workers)]
        if of_pages:
            n = options.n_page_workers
            loops += [self._work_on_jobs(page_pool, of_pages) for _ in range(n)]
        self._working = [asyncio.create_task(loop) for loop in loops]
        others = (self._beat(), self._keep_rows(), self._look_after(), self._make_room())
        self._others = [asyncio.create_task(loop) for loop in others]

    @property
    def running(self) -> "list[asyncio.Task[WorkOutcome]]":
        """What is worked on now."""
        return [run.task for run in self._runs.values()]

    def look(self) -> None:
        """Look for jobs that wait, at once."""
        self._new_jobs.set()

    def stop(self, job_id: str) -> None:
        """Stop the work on a job that was cancelled."""
        for lease, run in self._runs.items():
            if lease.job_id == job_id:
                run.lost = True
                run.task.cancel()

    def drain(self) -> None:
        """Lease nothing more."""
        self._draining = True
        self._new_jobs.set()

    async def close(self, within_s: float) -> None:
        """Give back what is still worked on, and end the loops."""
        for run in self._runs.values():
            run.task.cancel()  # its loop gives the job back
        if self._working:
            await asyncio.wait(self._working, timeout=within_s)
        with contextlib.suppress(Refusal):
            await self.spending.store(self._in_store)
        loops = [*self._working, *self._others]
        for each in loops:
            each.cancel()
        await asyncio.gather(*loops, return_exceptions=True)

    # Loops

    async def _work_on_jobs(self, pool: WorkerPool, calls: tuple[str, ...]) -> None:
        """Lease jobs and work on them, one at a time, until the service stops.

        `calls` names the calls whose jobs are taken; empty for all.
        """
        while not self._draining:
            self._new_jobs.clear()
            try:
                lease = await self._in_store(self._jobs.lease, calls)
                if lease is not None:
                    self._tell_watchers()
                    await self._work_on(lease, pool)
                    continue
            except Refusal as problem:
                log.warning("the job loop waits: %s", problem.detail)
            except Exception:
                log.exception("a defect in the job loop")
            if not self._draining:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._new_jobs.wait(), self._options.poll_s)

    async def _work_on(self, lease: Lease, pool: WorkerPool) -> None:
        logged = logs.JOB.set(lease.job_id)
        now_s, rows = time.monotonic(), RowKeeper(self._jobs, lease)
        task = asyncio.create_task(
            pool.run(self._job_task(lease), self._options.job_hard_s, self._noted(lease), rows.add)
        )
        run = self._runs[lease] = _Run(task, rows, now_s, now_s, now_s)
        try:
            if self._draining:
                task.cancel()
            await asyncio.wait([task])
            if run.lost:
                self.counted["leases_lost"] += 1
                with contextlib.suppress(Refusal):
                    await self._in_store(self._jobs.charge_cancelled, lease, run.spent_s)
                return
            cpu_s = self._cpu_s(run)
            self.spending.note(lease.tenant, cpu_s)
            failure = None if task.cancelled() else task.exception()
            if task.cancelled() or failure:
                with contextlib.suppress(Refusal):  # else they are computed again
                    await self._in_store(rows.store)
            if task.cancelled():
                self.counted["jobs_yielded"] += run.yields
                await self._in_store(self._jobs.give_back, lease, cpu_s)
                return
            if isinstance(failure, WorkerDied):
                await self._stored(run, self._jobs.retry, lease, failure.detail)
                return
            payload, complete, problem = None, False, None
            if failure is None:
                outcome = task.result()
                payload, complete = outcome.payload, outcome.complete
            elif isinstance(failure, Refusal):
                problem = failure
            else:
                log.error("a defect in a job", exc_info=failure)
                detail = f"{type(failure).__name__}: please report it"
                problem = Refusal(500, "defect", "a defect of planner", detail)
            unsent, run.progress = [run.progress] if run.progress else [], None
            won = await self._stored(
                run,
                self._jobs.finish,
                lease,
                payload,
                complete=complete,
                problem=problem,
                unsent=unsent,
                cpu_s=cpu_s,
            )
            spent_s = time.monotonic() - now_s
            share = SMOOTHING if self.mean_s else 1.0
            self.mean_s += (spent_s - self.mean_s) * share
            self.counted["jobs_finished" if won else "leases_lost"] += 1
        finally:
            self._runs.pop(lease, None)
            self._tell_watchers()
            logs.JOB.reset(logged)

    def _cpu_s(self, run: _Run) -> float:
        """Return the CPU seconds of a run that has ended, its wall-clock time where none says."""
        if run.task.cancelled() or run.task.exception() is not None:
            return run.spent_s
        if self._options.executor != "serial":  # other processes have worked on it
            return max(run.spent_s, run.task.result().cpu_s)
        return run.task.result().cpu_s

    def _job_task(self, lease: Lease) -> Task:
        options: dict[str, Any] = {"spent_s": lease.spent_s}
        if self._options.executor != "serial":
            # Without an address Ray would join whatever cluster it finds on this machine.
            address = self._options.ray_address or "local"
            options |= {"executor": self._options.executor, "ray_address": address}
        call = self._calls.get(lease.call)
        one_search = call is None or call.size == "small"
        limit_s = self._settings.job_s if one_search else self._options.job_hard_s
        limit_s = in_time(min(limit_s, lease.time_limit_s or limit_s))
        return Task(
            "answer", lease.call, lease.body, limit_s, large=True, options=options, rows=lease.rows
        )

    async def _stored(
        self, run: _Run, work: Callable[..., bool], *args: Any, **named: Any
    ) -> bool:
        """Write the end of a job, as often as it takes while the lease is held.

        A full disk or a lost database must not lose an answer that is there: nobody else can
        take the job without writing either, and who can will finish it.
        """
        while True:
            try:
                return await self._in_store(work, *args, **named)
            except (StoreFull, StoreUnavailable) as problem:
                log.warning("the end of a job waits for the store: %s", problem.detail)
            if run.lost or self._draining:
                return False
            await asyncio.sleep(max(0.2, self._options.poll_s))

    def _noted(self, lease: Lease) -> Progress:
        """Return what keeps the newest progress of a job for the next heartbeat."""

        def note(data: Mapping[str, Any]) -> None:  # from the worker's thread
            run = self._runs.get(lease)
            if run is not None:
                run.progress = data

        return note

    async def _beat(self) -> None:
        """Send heartbeats with progress; stop the work on jobs whose lease is lost."""
        while True:
            await asyncio.sleep(min(self._options.poll_s, self._options.lease_s / 3))
            due = self._due(time.monotonic())
            try:
                spent_s = {lease: self._runs[lease].spent_s for lease in due}
                still_leased = await self._in_store(self._jobs.beat, due, spent_s)
            except Refusal as problem:
                log.warning("heartbeats are late: %s", problem.detail)
                for run in self._runs.values():
                    run.beaten_s = 0.0
                continue
            except Exception:
                log.exception("a defect in the heartbeats")
                continue
            if any(due.values()):
                self._tell_watchers()
            for lease in due.keys() - still_leased:
                own = self._runs.get(lease)
                if own is not None and not own.task.done():
                    own.lost = True
                    own.task.cancel()

    def _due(self, now_s: float) -> dict[Lease, list[Mapping[str, Any]]]:
        """Return the leases that need a heartbeat now, or that have progress worth an event."""
        due: dict[Lease, list[Mapping[str, Any]]] = {}
        for lease, run in self._runs.items():
            rest_s = max(self._options.poll_s, PROGRESS_GROWTH * (now_s - run.begun_s))
            tell = run.progress is not None and now_s - run.stored_s >= rest_s
            if tell and run.progress is not None:
                due[lease] = [run.progress]
                run.progress, run.stored_s = None, now_s
            elif now_s - run.beaten_s >= self._options.lease_s / 3:
                due[lease] = []
            else:
                continue
            run.beaten_s = now_s
        return due

    async def _keep_rows(self) -> None:
        """Store the rows of jobs as they come."""
        while True:
            await asyncio.sleep(self._options.poll_s)
            for run in [run for run in self._runs.values() if run.rows.waits and not run.lost]:
                try:
                    await self._in_store(run.rows.store)
                except Refusal as problem:
                    log.warning("rows of a job wait for the store: %s", problem.detail)
                    await asyncio.sleep(self._options.lease_s / 3)
                except Exception:
                    log.exception("a defect in keeping rows")

    async def _make_room(self) -> None:
        """Let a job with rows wait again where a more urgent one finds all workers busy.

        One that has kept no row yet goes on, so that every lease brings the job further.
        """
        while True:
            await asyncio.sleep(max(LEAST_ROOM_S, self._options.poll_s))
            try:
                least = self._least_urgent()
                if least is None:
                    continue
                urgent = await self._in_store(self._jobs.most_urgent)
                run = self._runs.get(least)
                if run is not None and urgent is not None and urgent < least.priority:
                    run.yields = True
                    run.task.cancel()  # its loop keeps the rows and gives the job back
            except Refusal as problem:
                log.warning("urgent jobs wait for the store: %s", problem.detail)
            except Exception:
                log.exception("a defect in making room")

    def _least_urgent(self) -> Lease | None:
        """Return the job that would make room; None where a worker is free or one does already."""
        of_pages = page_calls(self._calls)
        runs = {lease: run for lease, run in self._runs.items() if lease.call not in of_pages}
        if self._draining or not runs or len(runs) < self._options.job_workers:
            return None
        if any(run.yields or run.lost for run in runs.values()):
            return None
        may = [
            (lease.priority, run.begun_s, lease)
            for lease, run in runs.items()
            if lease.priority > 0 and run.rows.has_new and not run.task.done()
        ]
        return max(may, key=lambda each: each[:2])[2] if may else None

    async def _look_after(self) -> None:
        """Take back jobs of processes that died, and clean up, now and then."""
        cleaned_s = time.monotonic() - self._options.clean_up_s
        while True:
            try:
                own = [lease.job_id for lease in self._runs]
                if await self._in_store(self._jobs.take_back, own):
                    self._new_jobs.set()
                self.counts = await self._in_store(self._jobs.counts)
                self.open_jobs = await self._in_store(self._jobs.open_jobs)
                await self.spending.store(self._in_store)
                if time.monotonic() - cleaned_s >= self._options.clean_up_s:
                    cleaned_s = time.monotonic()
                    await self._in_store(self._jobs.clean_up)
            except Refusal as problem:
                log.warning("the store is not looked after: %s", problem.detail)
            except Exception:
                log.exception("a defect in looking after the store")
            await asyncio.sleep(self._options.lease_s / 3)
