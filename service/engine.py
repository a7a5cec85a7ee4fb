"""The engine behind both transports: admission, cache, workers, jobs.

    request -> role -> cache (memory) -> rate, concurrency -> same request in flight? -> turn
            -> worker -> answer
    job     -> role -> rate, concurrency -> read by a worker -> row in the store -> accepted
            -> lease -> worker -> result in the store

Nothing is computed on the event loop: it hands requests over and waits. Everything refused is a
`Refusal`, which the transports translate.
"""

import asyncio
import contextlib
import hashlib
import importlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from service.access.admission import Cache, Rates, Turns, TurnShare, overloaded
from service.access.caller import Caller, check_known, not_allowed
from service.handlers.calls import PAGE_PREFIX
from service.handlers.limits import DEFAULTS, SMALL_BODY, RequestLimits
from service.handlers.problems import Refusal
from service.jobs.leases import new_claim
from service.jobs.queue import Jobs, cursor_number
from service.jobs.records import (
    Bounds,
    Event,
    JobQueueFull,
    JobView,
    NewJob,
    Reply,
    State,
)
from service.jobs.store import CONNECTIONS, Store
from service.jobs.work import JobWork
from service.settings.options import Options
from service.telemetry.snapshot import GroupCounts, Snapshot
from service.tenants.groups import Priority, Tenants
from service.webhooks.addresses import destinations_of
from service.webhooks.delivery import DeliveryWork
from service.webhooks.requests import job_tags
from service.webhooks.sender import Sender
from service.worker_pool.pool import (
    CALLS_MODULE,
    Progress,
    Task,
    WorkerDied,
    WorkerPool,
    WorkOutcome,
    in_time,
    read_job,
)

__all__ = [
    "MAX_KEY_CHARS",
    "CallAnswer",
    "CallTerms",
    "Engine",
    "cache_key",
    "request_body",
]

Found = TypeVar("Found")

MAX_KEY_CHARS = 200
STORE_SLOTS, SPARE_STORE_SLOTS = CONNECTIONS // 2, 2
"""Threads of the store that callers may use to read at the same time; those after them are for
callers who use none. What is left is for heartbeats, leases and what is accepted."""
READY_S = 0.7
"""How long the store may take to say that it can be written: probes have a second or more."""
UNBOUNDED = 10**9
"""Reads that may wait for a turn: connections and calls are bounded already."""
JOB_NICENESS = 19
"""How far jobs stand back behind requests that are answered at once, where both compute: as far
as there is, so that a question takes as long as on an idle machine. Nothing else runs there."""


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """An answer as both transports send it."""

    status: int
    payload: bytes
    """The same bytes as the command line's JSON."""
    etag: str
    cached: bool
    complete: bool
    """False where a deadline stopped the search with the best so far."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall-clock time by phase: `queue`, `work`."""


@dataclass(frozen=True, slots=True)
class CallTerms:
    """How a caller wants a call to be answered."""

    deadline_s: float | None = None
    """From now on: when it is over the best so far is returned."""
    idempotency_key: str = ""
    """A call that is repeated under it gets the bytes of the first."""
    progress: Progress | None = None
    """Told how far the work is, on the event loop."""


@dataclass(frozen=True, slots=True)
class _PendingCall:
    """A call that is not answered yet."""

    name: str
    body: bytes
    key: bytes
    """Of the answer in memory."""
    caller: Caller
    terms: CallTerms


def too_late_problem(deadline_s: float) -> Refusal:
    """Return the problem of a deadline that passed before the work began."""
    return Refusal(
        504,
        "out-of-time",
        "there is no answer in time",
        f"the deadline of {deadline_s:g} s passed while the request waited",
        retry_after_s=1.0,
    )


def needs_job(name: str) -> Refusal:
    """Return the problem of a request that is too large for an answer at once."""
    return Refusal(
        413,
        "needs-job",
        "the request is one for a job",
        f"{name} asks for more than is answered at once: submit it as a job",
    )


def request_body(body: bytes | Mapping[str, Any]) -> bytes:
    """Return the bytes of a request: those that came, or those of a mapping."""
    return body if isinstance(body, bytes) else json.dumps(body).encode()


@dataclass(slots=True)
class _Flight:
    """A request that is computed, and how many wait for it."""

    listeners: list[Progress]
    """Told of progress on the event loop."""
    task: "asyncio.Task[CallAnswer]" = field(init=False)
    n_waiting: int = 0
    is_computed: bool = False
    """Whether it has a worker; before that it waits for its turn."""


_FlightKey = tuple[bytes, float, Priority]
"""Body, deadline and priority of the first who asked."""


class Engine:
    """Answers calls and keeps jobs; one for each process of the service."""

    def __init__(
        self,
        store: Store,
        settings: RequestLimits = DEFAULTS,
        options: Options = Options(),
        module: str = CALLS_MODULE,
        tenants: Tenants | None = None,
    ) -> None:
        """Prepare an engine over a store that is open; `start` starts its workers.

        `module` holds the calls: `CALLS` and what `service.worker_pool.pool` uses of it.
        `tenants` are the groups of callers, which somebody else may replace meanwhile.
        """
        self.tenants = tenants or Tenants()
        self.settings = settings
        self.options = options
        self.jobs = Jobs(
            store,
            Bounds(
                queued=settings.jobs_queued,
                queued_per_owner=settings.jobs_queued_per_owner,
                kept_per_owner=settings.jobs_kept_per_owner,
                keys_per_owner=settings.keys_per_owner,
                max_attempts=options.max_attempts,
                lease_s=options.lease_s,
                retention_s=options.retention_s,
                claim_s=2 * settings.hard_s + 60.0,
                history_s=options.history_s,
                webhooks_per_owner=options.webhooks_per_owner,
            ),
            tenants=self.tenants,
        )
        self.destinations = destinations_of(options.webhook_hosts, options.webhook_networks)
        self._store = store
        self._calls: Mapping[str, Any] = importlib.import_module(module).CALLS
        self._pool = WorkerPool(options.workers + options.spare_workers, settings, module)
        of_jobs = replace(settings, solve_s=options.job_hard_s)  # the task says how long
        self._job_pool = WorkerPool(options.job_workers, of_jobs, module, niceness=JOB_NICENESS)
        self._page_pool = WorkerPool(options.n_page_workers, of_jobs, module)
        self._turns = Turns(options.workers, settings.queue_length, options.spare_workers)
        self._store_turns = Turns(STORE_SLOTS, UNBOUNDED, SPARE_STORE_SLOTS)
        self._rates = Rates(settings.requests_per_s, settings.burst)
        self._cache: Cache[CallAnswer] = Cache(options.cache_bytes)
        self._flights: dict[_FlightKey, _Flight] = {}
        self._active: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="store")
        self._look_thread = ThreadPoolExecutor(1, thread_name_prefix="ready")
        self._looking: asyncio.Future[None] | None = None
        self._news = asyncio.Event()
        self._draining = False
        self._n_watchers: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._quota_refused: Counter[str] = Counter()
        self._job_work = JobWork(self.jobs, settings, options, self._in_store, self._tell_watchers)
        sender = Sender(self.destinations)
        self._deliveries = DeliveryWork(store, self.jobs.webhooks, sender, self._in_store)

    # Life

    @property
    def _pools(self) -> tuple[WorkerPool, ...]:
        return self._pool, self._job_pool, self._page_pool

    async def start(self) -> None:
        """Start workers, and what works on jobs and looks after the store."""
        await asyncio.gather(*(pool.start() for pool in self._pools))
        self._job_work.start(self._job_pool, self._page_pool, self._calls)
        self._deliveries.start()

    async def ready(self) -> None:
        """Raise `Refusal` 503 unless requests would be answered now."""
        self._check_open()
        if not self._pool.n_alive:
            raise Refusal(503, "no-workers", "the service has no workers", "they are starting")
        loop = asyncio.get_running_loop()
        if self._looking is None or self._looking.done():
            # A thread of its own: those of the store may all wait for a database that is away.
            self._looking = loop.run_in_executor(self._look_thread, self._store.check_writable)
        try:
            async with asyncio.timeout(READY_S):
                await asyncio.shield(self._looking)
        except TimeoutError:
            detail = f"it has not answered within {READY_S:g} s"
            title = "the store does not answer"
            raise Refusal(503, "store-unavailable", title, detail, retry_after_s=1.0) from None

    @property
    def is_draining(self) -> bool:
        """Whether nothing new is accepted, because the service stops."""
        return self._draining

    async def close(self) -> None:
        """Accept nothing more, finish what runs, and give back the jobs that take too long."""
        self._draining = True
        self._job_work.drain()
        end_s = time.monotonic() + self.options.drain_s
        flights = [each.task for each in self._flights.values()]
        running = [*flights, *self._job_work.running]
        if running:
            await asyncio.wait(running, timeout=self.options.drain_s)
        for flight in flights:
            flight.cancel()
        await self._job_work.close(max(0.0, end_s - time.monotonic()) + self.options.grace_s)
        await self._deliveries.close(self.options.grace_s)
        await asyncio.gather(*flights, return_exceptions=True)
        await asyncio.gather(*(pool.close() for pool in self._pools))
        self._threads.shutdown()
        self._look_thread.shutdown(wait=False)
        if self._looking is not None:
            self._looking.add_done_callback(lambda done: done.cancelled() or done.exception())

    def snapshot(self) -> Snapshot:
        """Return what there is to measure."""
        return Snapshot(
            self._turns.n_waiting,
            self._turns.n_held,
            len(self._cache),
            self._cache.n_bytes,
            {**self._counts, **self._job_work.counted, **self._deliveries.counted},
            dict(self._refused),
            sum(pool.n_alive for pool in self._pools),
            sum(pool.n_deaths for pool in self._pools),
            self._turns.mean_s,
            self._job_work.mean_s,
            dict(self._job_work.counts),
            self._group_counts(),
        )

    def _group_counts(self) -> dict[str, GroupCounts]:
        """Return what there is to measure of every group, those that are gone as one."""
        found = {name: GroupCounts() for name in self.tenants.groups}
        for (name, state), n in self._job_work.open_jobs.items():
            found.setdefault(self.tenants.label(name), GroupCounts()).jobs[state] += n
        for name, seconds in self._job_work.spending.total_s.items():
            found.setdefault(self.tenants.label(name), GroupCounts()).cpu_s += seconds
        for name, n in self._quota_refused.items():
            found.setdefault(self.tenants.label(name), GroupCounts()).refused += n
        return found

    async def _in_store(self, work: Callable[..., Found], *args: Any, **named: Any) -> Found:
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._threads, lambda: work(*args, **named))
        except RuntimeError:
            self._check_open()  # its threads are gone once it is closed
            raise
        return await running

    async def _read(
        self, caller: Caller, work: Callable[..., Found], *args: Any, **named: Any
    ) -> Found:
        """Return what is in the store, in the caller's turn.

        Who asks for very much waits by himself: nobody else's reading, nor the heartbeats of jobs.
        """
        share = share_of(caller)
        await self._store_turns.take(caller.name, share)
        begun_s = time.monotonic()
        running = asyncio.ensure_future(self._in_store(work, *args, **named))

        def over(done: "asyncio.Future[Found]") -> None:  # its thread goes on if a caller leaves
            self._store_turns.give(time.monotonic() - begun_s, caller.name, share)
            if not done.cancelled():
                done.exception()  # seen: it may be that nobody waits for it

        running.add_done_callback(over)
        return await asyncio.shield(running)

    # Admission

    def _check_open(self) -> None:
        if self._draining:
            raise Refusal(
                503,
                "draining",
                "the service stops",
                "ask another process of it, or again later",
                retry_after_s=5.0,
            )

    @property
    def call_names(self) -> list[str]:
        """Names of the calls of the interface, in the order of the alphabet."""
        return sorted(each for each in self._calls if not each.startswith(PAGE_PREFIX))

    def _no_such_call(self, name: str) -> Refusal:
        return Refusal(
            404,
            "unknown-call",
            "there is no such call",
            f"no call {name[:40]!r}: {', '.join(self.call_names)}",
        )

    def _check_call(self, name: str, caller: Caller) -> None:
        call = self._calls.get(name)
        if call is None:
            raise self._no_such_call(name)
        if not caller.may(call.role):
            raise not_allowed(caller, call.role)

    @contextlib.contextmanager
    def _admitted(self, caller: Caller) -> Any:
        """Hold one of the places of a caller; `Refusal` 429 where there is none."""
        self._rates.take(caller.name)
        if self._active[caller.name] >= self.settings.per_caller:
            raise overloaded(
                f"{self.settings.per_caller} requests of yours are being worked on",
                self._turns.wait_s(),
            )
        self._active[caller.name] += 1
        try:
            yield
        finally:
            self._active[caller.name] -= 1
            if not self._active[caller.name]:
                del self._active[caller.name]

    @contextlib.contextmanager
    def _counted(self) -> Any:
        try:
            yield
        except Refusal as problem:
            self._counts["refused"] += 1
            self._refused[problem.code] += 1
            if problem.code == "quota-exceeded" and problem.more:
                self._quota_refused[problem.more["quota"]["group"]] += 1
            raise

    # Calls

    def allows(self, name: str, caller: Caller) -> bool:
        """Tell whether a caller may make a call; nothing is counted."""
        call = self._calls.get(name)
        return call is not None and caller.may(call.role)

    def cached(self, name: str, body: bytes, caller: Caller) -> CallAnswer | None:
        """Return the answer to this very body where memory has it; nothing is parsed or awaited.

        Raises `Refusal` for a caller who may not ask.
        """
        with self._counted():
            self._check_call(name, caller)
        return self._remembered(cache_key(name, body))

    def repeated(self, name: str, caller: Caller) -> None:
        """Count an answer that a transport has kept for the very bytes of a request.

        Raises `Refusal` for a caller who may not ask.
        """
        with self._counted():
            self._check_call(name, caller)
        self._counts["answered"] += 1
        self._counts["cached"] += 1

    def _remembered(self, key: bytes) -> CallAnswer | None:
        outcome = self._cache.get(key)
        if outcome is not None:
            self._counts["answered"] += 1
            self._counts["cached"] += 1
        return outcome

    async def call(
        self,
        name: str,
        body: bytes | Mapping[str, Any],
        caller: Caller,
        terms: CallTerms = CallTerms(),
    ) -> CallAnswer:
        """Return the answer of a call, from memory where it was given before.

        Raises `Refusal` for everything refused; `needs-job` for what is too large to be answered
        at once.
        """
        with self._counted():
            self._check_call(name, caller)
            body = request_body(body)
            key = cache_key(name, body)
            pending = _PendingCall(name, body, key, caller, terms)
            if terms.idempotency_key:
                return await self._once(pending)
            remembered = self._remembered(key)
            if remembered is not None:
                return remembered
            self._check_open()
            self._job_work.spending.check(caller.group)
            with self._admitted(caller):
                return await self._joined(pending)

    async def _once(self, pending: _PendingCall) -> CallAnswer:
        """Answer a call with an idempotency key: a repeated one gets the bytes of the first."""
        check_key(pending.terms.idempotency_key)
        self._check_open()
        self._job_work.spending.check(pending.caller.group)
        claim = new_claim()
        own = (pending.caller.name, pending.terms.idempotency_key)
        with self._admitted(pending.caller):
            claiming = asyncio.ensure_future(
                self._in_store(self.jobs.claim, *own, pending.key.hex(), claim)
            )
            try:
                first = await asyncio.shield(claiming)
                if first:
                    self._counts["answered"] += 1
                    self._counts["cached"] += 1
                    complete = not first.etag.startswith(PARTIAL)
                    return CallAnswer(200, first.payload, first.etag, True, complete)
                answer = self._cache.get(pending.key) or await self._joined(pending)
                reply = Reply(answer.payload, answer.etag)
                await self._in_store(self.jobs.reply, *own, claim, reply)
            except BaseException:
                # Not awaited by one who has left: the key must be free again all the same.
                releasing = asyncio.ensure_future(self._released(claiming, own, claim))
                with contextlib.suppress(Refusal):
                    await asyncio.shield(releasing)
                raise
            return answer

    async def _released(
        self, claiming: "asyncio.Future[Reply | None]", own: tuple[str, str], claim: str
    ) -> None:
        """Free an idempotency key, once it is known to be taken: a thread may be at it still."""
        with contextlib.suppress(Refusal):
            if await claiming is None:
                await self._in_store(self.jobs.release, *own, claim)

    async def _joined(self, pending: _PendingCall) -> CallAnswer:
        """Return the answer of the same request in flight, or of this one."""
        progress = pending.terms.progress
        which = self._flight_of(pending)
        flight = self._flights.get(which)
        if flight is None:
            listeners: list[Progress] = []
            flight = _Flight(listeners)
            task = flight.task = asyncio.create_task(self._computed(pending, flight))
            self._flights[which] = flight
            task.add_done_callback(lambda _: self._landed(which, task))
        else:
            self._counts["joined"] += 1
        flight.n_waiting += 1
        if progress is not None:
            flight.listeners.append(progress)
        try:
            answer = await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            if flight.task.cancelled() and not _is_cancelled():
                self._check_open()  # the service stops: its answer says so
            raise
        finally:
            flight.n_waiting -= 1
            if progress is not None:
                flight.listeners.remove(progress)
            if not (flight.n_waiting or flight.task.done()):
                self._landed(which, flight.task)
                flight.task.cancel()  # nobody waits for it any more
        self._counts["answered"] += 1
        return answer

    def _flight_of(self, pending: _PendingCall) -> _FlightKey:
        """Return the key of the flight that a call joins, or begins.

        Who has more time must not get what another's deadline has cut short, and who is more
        urgent must not wait in the line of who is less.
        """
        priority = pending.caller.priority
        key, deadline_s = pending.key, pending.terms.deadline_s or 0.0
        for each in Priority:
            flight = self._flights.get((key, deadline_s, each))
            if flight is not None and (flight.is_computed or each <= priority):
                return key, deadline_s, each
        return key, deadline_s, priority

    def _landed(self, which: _FlightKey, task: "asyncio.Task[CallAnswer]") -> None:
        """Forget a request that was computed or left; not one that was asked since then."""
        outcome = self._flights.get(which)
        if outcome is not None and outcome.task is task:
            del self._flights[which]

    async def _computed(self, pending: _PendingCall, flight: _Flight) -> CallAnswer:
        deadline_s, caller = pending.terms.deadline_s, pending.caller
        begun_s = time.monotonic()
        await self._turn(caller, deadline_s)
        taken_s, flight.is_computed = time.monotonic(), True
        try:
            left_s, hard_s = 0.0, self.settings.hard_s
            if deadline_s:
                left_s = deadline_s - (taken_s - begun_s)
                if left_s <= 0:
                    raise too_late_problem(deadline_s)
                hard_s = min(hard_s, left_s + self.options.grace_s)
            task = Task("answer", pending.name, pending.body, time_limit_s=in_time(left_s))
            outcome = await self._tried_twice(task, hard_s, caller, _told(flight.listeners))
        finally:
            self._turns.give(time.monotonic() - taken_s, caller.name, share_of(caller))
        if outcome.payload is None:
            raise needs_job(pending.name)
        self._counts["computed"] += 1
        self._counts["stopped"] += not outcome.complete
        seconds = {"queue": taken_s - begun_s, "work": outcome.seconds}
        etag = outcome.request_id
        if not outcome.complete:
            etag = PARTIAL + hashlib.sha256(outcome.payload).hexdigest()[: 64 - len(PARTIAL)]
        answer = CallAnswer(200, outcome.payload, etag, False, outcome.complete, seconds)
        if outcome.complete:
            repeated = CallAnswer(200, outcome.payload, etag, True, True)
            self._cache.put(pending.key, repeated, len(outcome.payload))
        return answer

    async def _turn(self, caller: Caller, deadline_s: float | None) -> None:
        if not deadline_s:
            return await self._turns.take(caller.name, share_of(caller))
        try:
            async with asyncio.timeout(deadline_s):
                return await self._turns.take(caller.name, share_of(caller))
        except TimeoutError:
            raise too_late_problem(deadline_s) from None

    async def _tried_twice(
        self, task: Task, hard_s: float, caller: Caller, progress: Progress | None = None
    ) -> WorkOutcome:
        """Return the outcome of a small task; once more where its worker was killed by others.

        Its CPU seconds are the caller's group's; where no worker says how many, its time is.
        """
        begun_s, cpu_s = time.monotonic(), None
        try:
            try:
                outcome = await self._pool.run(task, hard_s, progress)
            except WorkerDied:
                outcome = await self._pool.run(task, hard_s, progress)
            cpu_s = outcome.cpu_s
            return outcome
        finally:
            spent_s = time.monotonic() - begun_s if cpu_s is None else cpu_s
            self._job_work.spending.add(caller.group.name, spent_s)

    # Jobs

    async def submit(
        self,
        name: str,
        body: bytes | Mapping[str, Any],
        caller: Caller,
        idempotency_key: str = "",
        time_limit_s: float = 0.0,
        tags: Mapping[str, Any] = {},
    ) -> JobView:
        """Accept a job and return it: its row is committed, and it will end exactly once.

        A request that cannot be read is refused here. A repeated one is answered from the store.
        `tags` are labels and a webhook, as `service.handlers.schemas.JobBody` has them. Raises
        `Refusal`.
        """
        with self._counted():
            self._check_call(name, caller)
            if not caller.may("solve"):
                raise not_allowed(caller, "solve")
            self._check_open()
            check_key(idempotency_key)
            body = request_body(body)
            given = job_tags(tags, caller.name, self.destinations)
            with self._admitted(caller):
                read = await self._soon(Task("read", name, body), caller)
                try:
                    job = await self._in_store(
                        self.jobs.submit,
                        NewJob(
                            caller.name,
                            name,
                            read.request_id,
                            body,
                            time_limit_s,
                            caller.group.name,
                            caller.priority,
                            given,
                        ),
                        key=idempotency_key,
                        fingerprint=_fingerprint(name, body, time_limit_s, tags),
                    )
                except JobQueueFull as problem:
                    problem.retry_after_s = min(
                        600.0, max(1.0, self._job_work.mean_s / max(1, self.options.job_workers))
                    )
                    raise
            self._counts["jobs_accepted"] += 1
            self._job_work.look()
            self._tell_watchers()
            return job

    async def waited(
        self,
        name: str,
        body: bytes,
        caller: Caller,
        wait_s: float,
        idempotency_key: str = "",
        tags: Mapping[str, Any] = {},
    ) -> CallAnswer | JobView:
        """Return the answer of a call that is a job, where it is there within `wait_s`.

        Otherwise the job, which goes on, and whose rows so far can be read. A question that was
        answered before is answered at once. Raises `Refusal`, also that of the job.
        """
        key = cache_key(name, body)
        with self._counted():
            self._check_call(name, caller)
        if not idempotency_key and (answer := self._remembered(key)):
            return answer
        job = await self.submit(name, body, caller, idempotency_key, tags=tags)
        if not job.is_final:
            # Refused, such as by one who stops: the job is accepted all the same, and is told.
            with contextlib.suppress(TimeoutError, Refusal):
                async with (
                    asyncio.timeout(wait_s),
                    contextlib.aclosing(
                        self.watch(job.job_id, caller, job.n_events)  # type: ignore[type-var]  # a generator
                    ) as events,
                ):
                    async for _ in events:
                        pass
            job = await self.get_job(job.job_id, caller)
        if not job.is_final:
            return job
        answer = await self.result(job.job_id, caller)
        if answer.complete:
            self._cache.put(key, answer, len(answer.payload))
        return answer

    async def submit_body(
        self,
        body: bytes,
        caller: Caller,
        idempotency_key: str = "",
        tags: Mapping[str, Any] = {},
    ) -> JobView:
        """Accept a job that a body names: `{"call", "request", "time_limit_s"?}`.

        A small body is read here, a larger one by a worker. `tags` are those of a body without.
        """
        if len(body) <= SMALL_BODY:
            with self._counted():
                read = read_job(body, self.settings)
        else:
            with self._counted():
                self._check_open()
                with self._admitted(caller):
                    read = await self._soon(Task("job", "", body), caller)
        if read.call.startswith(PAGE_PREFIX):  # no part of the interface, and of wider limits
            with self._counted():
                raise self._no_such_call(read.call)
        request = read.payload or b""
        return await self.submit(
            read.call, request, caller, idempotency_key, read.time_limit_s, {**tags, **read.tags}
        )

    async def get_job(self, job_id: str, caller: Caller) -> JobView:
        """Return a job of the caller's; `Refusal` 404."""
        with self._counted():
            self._rates.take(caller.name)
            return await self._read(caller, self.jobs.get, job_id, caller.sees)

    async def usage(self, caller: Caller, name: str = "") -> dict[str, Any]:
        """Return what a group may use and has used: the caller's own; of any for an admin.

        Raises `Refusal`: 403 for another's group, 404 for one that is not there.
        """
        with self._counted():
            self._rates.take(caller.name)
            group = caller.group
            if name and name != group.name:
                if not caller.may("admin"):
                    raise not_allowed(caller, "admin")
                named = self.tenants.groups.get(name)
                if named is None:
                    detail = f"no group {name[:70]!r}: {', '.join(self.tenants.groups)}"
                    raise Refusal(404, "unknown-group", "there is no such group", detail)
                group = named
            uses = await self._read(caller, self.jobs.uses, group)
            return {
                "group": group.name,
                "weight": group.weight,
                "priority": group.priority.label,
                "highest_priority": group.highest_priority.label,
                "window_s": group.quotas.window_s,
                "quotas": [use.to_json() for use in uses],
            }

    async def list_jobs(
        self, caller: Caller, cursor: str = "", state: State | None = None, limit: int = 50
    ) -> tuple[list[JobView], str]:
        """Return the caller's jobs, the newest first, and the cursor of the next page."""
        with self._counted():
            self._rates.take(caller.name)
            limit = max(1, min(limit, self.options.page_items))
            return await self._read(
                caller, self.jobs.page, caller.sees, state=state, cursor=cursor, limit=limit
            )

    async def cancel(self, job_id: str, caller: Caller) -> JobView:
        """Cancel a job of the caller's and return it; one that has ended stays as it is."""
        with self._counted():
            self._rates.take(caller.name)
            if not caller.may("solve"):
                raise not_allowed(caller, "solve")
            job = await self._read(caller, self.jobs.cancel, job_id, caller.sees)
            if job.state is State.CANCELLED:
                self._job_work.stop(job_id)
            self._tell_watchers()
            return job

    async def watch(self, job_id: str, caller: Caller, after: int = 0) -> AsyncIterator[Event]:
        """Yield what happens to a job, from event `after` + 1 until it has ended."""
        with self.watching(caller):
            while True:
                await check_known(caller)
                news = self.news
                job, events = await self._read(
                    caller, self.jobs.events, job_id, caller.sees, after
                )
                for event in events:
                    yield event
                    after = event.n
                if job.is_final:
                    return
                await self.wait_for(news, self.options.poll_s)

    @contextlib.contextmanager
    def watching(self, caller: Caller) -> Any:
        """Count a stream of events that a caller opens; `Refusal` 429 where there are too many."""
        with self._counted():
            self._rates.take(caller.name)
            if self._n_watchers.total() >= self.options.watchers:
                raise overloaded(f"{self.options.watchers} streams of events are open", 5.0)
            if self._n_watchers[caller.name] >= self.options.watchers_per_caller:
                maximum = self.options.watchers_per_caller
                raise overloaded(f"{maximum} streams of events of yours are open", 5.0)
            self._n_watchers[caller.name] += 1
            try:
                yield
            finally:
                self._n_watchers[caller.name] -= 1
                if not self._n_watchers[caller.name]:
                    del self._n_watchers[caller.name]

    @property
    def news(self) -> asyncio.Event:
        """Set when this process changes a job the next time."""
        return self._news

    async def wait_for(self, news: asyncio.Event, most_s: float) -> None:
        """Return when there is news, or after `most_s`; `Refusal` 503 where the service stops."""
        self._check_open()
        # wait_for of Python 3.11 loses a cancellation that comes with the news.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await news.wait()

    async def from_store(
        self, caller: Caller, work: Callable[..., Found], *args: Any, **named: Any
    ) -> Found:
        """Return what some work reads or writes in the store for a caller, within his rate."""
        with self._counted():
            self._rates.take(caller.name)
            return await self._read(caller, work, *args, **named)

    async def version(self) -> int:
        """Return the version of the last change of any job."""
        return await self._in_store(self.jobs.changes.version)

    def look_for_deliveries(self) -> None:
        """Send what is due to webhooks, at once."""
        self._deliveries.look()

    async def read_store(
        self, caller: Caller, work: Callable[..., Found], *args: Any, **named: Any
    ) -> Found:
        """Return the same for a stream that is counted already."""
        return await self._read(caller, work, *args, **named)

    async def result(self, job_id: str, caller: Caller) -> CallAnswer:
        """Return the whole answer of a job; `Refusal` 404, 409 not ended, 410 expired, its own."""
        with self._counted():
            self._rates.take(caller.name)
            job, payload = await self._read(caller, self.jobs.result, job_id, caller.sees)
            return CallAnswer(200, payload, job.etag, True, bool(job.complete))

    async def result_page(
        self, job_id: str, caller: Caller, cursor: str = "", limit: int = 100, so_far: bool = False
    ) -> CallAnswer:
        """Return a page of a job's answer, see `service.worker_pool.pool.cut_page`.

        With `so_far` one of the rows of a job that has no answer, in the order in which they
        came; while it runs, there is a cursor for those that will come.
        """
        with self._counted():
            first = cursor_number(cursor) if cursor else 0
            limit = max(1, min(limit, self.options.page_items))
            with self._admitted(caller):
                if so_far:
                    job, task = await self._rows_task(job_id, caller, first, limit)
                else:
                    job, payload = await self._in_store(self.jobs.result, job_id, caller.sees)
                    task = Task("page", job.call, payload, first=first, n_items=limit)
                page = await self._soon(task, caller)
            return CallAnswer(200, page.payload or b"", "", True, bool(job.complete))

    async def _rows_task(
        self, job_id: str, caller: Caller, first: int, limit: int
    ) -> tuple[JobView, Task]:
        """Return a job and what cuts a page of its rows so far."""
        job, rows = await self._in_store(self.jobs.rows_so_far, job_id, caller.sees, first, limit)
        call = self._calls.get(job.call)
        if call is None or not call.rows:
            raise self._without_rows(job)
        n = max(0, min(limit, rows.total - first))
        more = not job.is_final or first + n < rows.total
        options = {
            "rows": rows.payloads,
            "total": rows.total,
            "next_cursor": str(first + n) if more else "",
        }
        return job, Task("page", job.call, b"", first=rows.skip, n_items=n, options=options)

    def _without_rows(self, job: JobView) -> Refusal:
        """Return the problem of a job of which nothing is there before its answer."""
        names = " and ".join(sorted(name for name, call in self._calls.items() if call.rows))
        return Refusal(
            409,
            "no-rows",
            "the job has no rows",
            f"{job.call} has its answer at the end; rows before have {names}",
        )

    async def _soon(self, task: Task, caller: Caller) -> WorkOutcome:
        """Return the outcome of a task that takes little time, in the caller's turn."""
        share = share_of(caller)
        await self._turns.take(caller.name, share)
        begun_s = time.monotonic()
        try:
            return await self._tried_twice(task, self.settings.hard_s, caller)
        finally:
            self._turns.give(time.monotonic() - begun_s, caller.name, share)

    def _tell_watchers(self) -> None:
        self._deliveries.look()
        self._news.set()
        self._news = asyncio.Event()


PARTIAL = "partial-"
"""Beginning of the ETag of an answer that was stopped: it names these bytes, not the request."""


def share_of(caller: Caller) -> TurnShare:
    """Return whose budget a turn of a caller is of."""
    return TurnShare(caller.group.name, caller.group.weight, caller.priority)


def check_key(key: str) -> None:
    """Raise `Refusal` 400 for an idempotency key that cannot be one."""
    if len(key) > MAX_KEY_CHARS or not key.isprintable():
        raise Refusal(
            400,
            "bad-key",
            "the idempotency key cannot be one",
            f"at most {MAX_KEY_CHARS} printable characters",
        )


def cache_key(name: str, body: bytes) -> bytes:
    """Return the key of a call with this very body."""
    return hashlib.sha256(name.encode() + b"\0" + body).digest()


def _fingerprint(name: str, body: bytes, time_limit_s: float, tags: Mapping[str, Any]) -> str:
    """Return what must be the same where a submission is repeated under its key."""
    given = f" {json.dumps(tags, sort_keys=True)}" if tags else ""
    return cache_key(f"job {time_limit_s!r} {name}{given}", body).hex()


def _told(listeners: list[Progress]) -> Progress:
    """Return what takes progress from a worker's thread to listeners on the event loop."""
    loop = asyncio.get_running_loop()

    def tell(data: Mapping[str, Any]) -> None:
        for each in tuple(listeners):
            each(data)

    def note(data: Mapping[str, Any]) -> None:
        if listeners:
            loop.call_soon_threadsafe(tell, data)

    return note


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
