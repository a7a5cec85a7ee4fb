"""Worker processes: where every request is read and computed, within bounds of memory and time.

A worker is forked from a server process that has already imported everything and read the
packaged examples (`multiprocessing`'s forkserver), so that a new one is there in milliseconds. It
handles one task at a time. It is killed where it does not keep to its time, ends by itself where
its memory has grown, and is replaced either way; the task then ends with a `Refusal`.
"""

import asyncio
import contextlib
import gc
import importlib
import logging
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

from searches.pricing.shared_work import LIMIT_BYTES, SharedWork
from service.handlers.limits import DEFAULTS, RequestLimits, job_request
from service.handlers.partial_results import Rows, rows_of, rows_page
from service.handlers.problems import Refusal, refused
from service.telemetry import logs
from service.worker_pool.process_memory import Tidy, resident_bytes

log = logging.getLogger("planner.service")

Progress = Callable[[Mapping[str, Any]], None]
Kept = Callable[[str, Rows], None]
"""Takes the content hash of a request and rows of it, as they come."""

CALLS_MODULE = "service.pages.calls"
"""Module whose `read_request`, `request_size`, `answer`, `is_complete`, `dumps` workers call."""
PAGED = ("plans", "rows", "points")
"""Lists of answers that are read by page."""
WARM = "service.process.preload"
"""Module that the process imports from which workers are forked."""
PROGRESS_S = 0.1
"""Least time between two reports of progress of one task."""
START_S = 60.0
"""How long a worker may take to start."""
GROWN = 0.5
"""Part of its memory limit from which a worker that has finished a task is replaced."""
SHARED = 1 / 16
"""Part of its memory limit that a worker's questions share tables in
(`searches.pricing.shared_work`)."""
WRITING, WRITING_S = 0.15, 0.5
"""Part of the time left that is kept for pricing and writing what a search has found, and the
most that is."""
COLLECTED_AFTER = 50_000, 20, 100
"""Thresholds of a worker's garbage collector: an answer makes far more objects than the usual 700,
nearly all of which are gone by themselves, and looking at them takes a tenth of its time."""
FIRST_VICTIM = 500
"""Added to a worker's score where the kernel runs out of memory and looks for a process to end:
a worker rather than the service."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is asked to do."""

    what: Literal["read", "answer", "page", "job"]
    """Read a request and name it, answer it, cut a page out of an answer, or read what is to be a
    job."""
    name: str
    """Of the call."""
    body: bytes
    """Of the request; of the answer for a page."""
    time_limit_s: float = 0.0
    """After which a search answers with the best so far; 0: the limit of the settings."""
    large: bool = False
    """Whether a large request is computed; otherwise it is only read."""
    first: int = 0
    """First item of a page."""
    n_items: int = 0
    """Items of a page."""
    options: Mapping[str, Any] | None = None
    """More fields of `RunningCall`, such as the executor; for a page of rows of a job that has no
    answer, what `partial_results.rows_page` takes."""
    rows: tuple[bytes, ...] = ()
    """Rows that are there from before, as `partial_results.packed_rows`."""


@dataclass(frozen=True, slots=True)
class WorkOutcome:
    """What a worker made of a task."""

    request_id: str
    large: bool
    """Whether the request is one for a job."""
    payload: bytes | None
    """The answer; None where the request was only read."""
    complete: bool
    """False where the search was stopped with the best so far."""
    seconds: float
    """Wall-clock time in the worker."""
    call: str = ""
    """Of a job that was read; its request is then the payload."""
    time_limit_s: float = 0.0
    """The same."""
    cpu_s: float = 0.0
    """CPU time of the worker."""
    tags: Mapping[str, Any] = field(default_factory=dict)
    """The same: its `limits.JOB_TAGS`."""


class WorkerDied(Refusal):
    """A worker ended in the middle of a task, and nobody here ended it."""

    def __init__(self, detail: str) -> None:
        super().__init__(500, "worker-died", "the process that computed this died", detail)

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerDied, (self.detail,)


class Lagging(Refusal):
    """A worker did not stop when its time was over, and was killed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            504,
            "out-of-time",
            "there is no answer in time",
            f"nothing was found in {seconds:.1f} s: ask for less, or give it more time",
        )
        self.seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return Lagging, (self.seconds,)


def in_time(left_s: float) -> float:
    """Return how long to search so that the answer is there in time: it has to be written too."""
    return left_s - min(WRITING_S, WRITING * left_s)


def out_of_memory(limit_bytes: int) -> Refusal:
    """Return the problem of a request that needs more memory than a worker has."""
    return refused(
        "too-much-work",
        f"the request needs more memory than a worker has ({limit_bytes / 1e9:.1f} GB): "
        "restrict the search, or ask for fewer points or plans",
    )


# In the worker


def _bound_memory(limit_bytes: int) -> None:
    """Bound what this process allocates; where the system cannot, its score is all there is."""
    import resource

    # RLIMIT_DATA counts private memory alone; the address space would also count libraries.
    which = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(which, (limit_bytes, limit_bytes))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write(str(FIRST_VICTIM))


class _Worker:
    """The worker's side: a thread listens for tasks and for the wish to stop."""

    def __init__(self, connection: Connection, settings: RequestLimits, module: str) -> None:
        self._connection = connection
        self._settings = settings
        self._calls: Any = importlib.import_module(module)
        self._tasks: queue.SimpleQueue[tuple[int, Task]] = queue.SimpleQueue()
        self._shared = self._new_shared()
        self._tidy = Tidy()
        self._stopped = -1
        self._sending = threading.Lock()
        self._told_s = 0.0

    def _new_shared(self) -> SharedWork:
        return SharedWork(min(LIMIT_BYTES, int(SHARED * self._settings.worker_bytes)))

    def listen(self) -> None:
        while True:
            try:
                n, task = self._connection.recv()
            except BaseException:  # the service is gone, or there is no memory even to listen
                os._exit(1)
            if task is None:
                self._stopped = max(self._stopped, n)
            else:
                self._tasks.put((n, task))

    def send(self, kind: str, n: int, content: Any) -> None:
        with self._sending:
            self._connection.send((kind, n, content))

    def work(self) -> None:
        while True:
            n, task = self._tasks.get()
            begun, cpu_begun = time.monotonic(), time.process_time()
            self._told_s = 0.0  # the first progress of a task is told, however soon after another
            try:
                content: Any = self._done(n, task, begun)
                content = replace(content, cpu_s=time.process_time() - cpu_begun)
                kind = "done"
            except MemoryError:
                self._shared = self._new_shared()
                kind, content = "problem", None
            except Refusal as problem:
                kind, content = "problem", problem
            except Exception as error:
                log.exception("a defect in the call %s", task.name)
                detail = f"{type(error).__name__} in call {task.name}: please report it"
                kind, content = "problem", refused("defect", detail, status=500)
            if content is None:
                content = out_of_memory(self._settings.worker_bytes)
            held_bytes = resident_bytes()
            grown = held_bytes > GROWN * self._settings.worker_bytes
            self.send("last" if grown else kind, n, content)
            if grown:
                return
            del content, task
            self._tidy.after(held_bytes)  # while nobody waits for an answer

    def _done(self, n: int, task: Task, begun: float) -> WorkOutcome:
        if task.what == "page":
            return WorkOutcome("", False, slice_of(task), True, time.monotonic() - begun)
        if task.what == "job":
            return read_job(task.body, self._settings)
        calls = self._calls
        request = calls.read_request(task.name, task.body, self._settings)
        # A job may be large; to measure it here is to refuse it before it is accepted.
        measured = task.what == "read" or not (task.large or request.large)
        size_is_large = measured and calls.request_size(request, self._settings).large
        large = request.large or size_is_large
        payload, complete = None, True
        if task.what == "answer" and (task.large or not large):
            running = calls.RunningCall(
                settings=self._settings,
                time_limit_s=task.time_limit_s,
                stop=lambda: self._stopped >= n,
                progress=lambda data: self._tell(n, data),
                rows=rows_of(task.rows, request.request_id),
                keep=lambda rows: self.send("rows", n, (request.request_id, rows)),
                shared=self._shared,
                **(task.options or {}),
            )
            result = calls.answer(request, running)
            payload = calls.dumps(result, task.name).encode()
            complete = calls.is_complete(result)
        return WorkOutcome(request.request_id, large, payload, complete, time.monotonic() - begun)

    def _tell(self, n: int, data: Mapping[str, Any]) -> None:
        now_s = time.monotonic()
        last = data.get("done") == data.get("total")
        if last or now_s - self._told_s >= PROGRESS_S:
            self._told_s = now_s
            self.send("progress", n, dict(data))


def read_job(body: bytes, settings: RequestLimits) -> WorkOutcome:
    """Return the call and the request of a body for a job."""
    begun = time.monotonic()
    name, request, limit_s, tags = job_request(body, settings)
    return WorkOutcome(
        "", False, request, True, time.monotonic() - begun, name, limit_s, tags=tags
    )


def slice_of(task: Task) -> bytes:
    """Return the page that a task asks for."""
    if task.options is not None:
        return rows_page(first=task.first, n_items=task.n_items, **task.options)
    return cut_page(task.body, task.first, task.n_items)


def cut_page(payload: bytes, first: int, n_items: int) -> bytes:
    """Return a page of an answer: a part of its list, and with the first page everything else.

    The list is the first of `PAGED` that it has, else its longest. `{"list", "total", "items",
    "next_cursor", "answer"?}`; `next_cursor` is empty after the last.
    """
    import json

    answer = json.loads(payload)
    lists = {key: value for key, value in answer.items() if isinstance(value, list)}
    longest = max(lists, key=lambda key: (len(lists[key]), key), default="")
    name = next((key for key in PAGED if key in lists), longest)
    items = lists.get(name, [])
    end = first + n_items
    page: dict[str, Any] = {
        "list": name,
        "total": len(items),
        "items": items[first:end],
        "next_cursor": str(end) if end < len(items) else "",
    }
    if not first:
        page["answer"] = {key: value for key, value in answer.items() if key != name}
    return (json.dumps(page, indent=1, allow_nan=False) + "\n").encode()


def worker_main(
    connection: Connection, settings: RequestLimits, module: str, niceness: int = 0
) -> None:
    """Run a worker until the other end of its connection is closed."""
    os.nice(niceness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which drains
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logs.configure("warning")  # traces of defects: callers see none
    gc.set_threshold(*COLLECTED_AFTER)
    worker = _Worker(connection, settings, module)
    _bound_memory(settings.worker_bytes)
    threading.Thread(target=worker.listen, daemon=True).start()
    worker.send("ready", -1, None)
    worker.work()


# In the service


class _Process:
    """The service's side of one worker process; `run` blocks and belongs into a thread."""

    def __init__(self, settings: RequestLimits, module: str, niceness: int) -> None:
        context = multiprocessing.get_context("forkserver")
        # The main script too: every worker would otherwise run it anew before its first task.
        context.set_forkserver_preload(["__main__", WARM if module == CALLS_MODULE else module])
        self._settings = settings
        self._connection, theirs = context.Pipe()
        self.process = context.Process(
            target=worker_main, args=(theirs, settings, module, niceness), daemon=True
        )
        self.process.start()
        theirs.close()
        self._n = 0
        self._sending = threading.Lock()
        self.is_spent = False
        if self._receive(time.monotonic() + START_S, START_S)[0] != "ready":
            raise WorkerDied("a worker did not start")

    def run(
        self, task: Task, hard_s: float, progress: Progress | None, keep_rows: Kept | None
    ) -> WorkOutcome:
        """Return the outcome of a task; `Refusal` where there is none within `hard_s`."""
        n = self._n
        try:
            with self._sending:
                self._connection.send((n, task))
        except OSError:
            raise self._died() from None
        end_s = time.monotonic() + hard_s
        while True:
            kind, number, content = self._receive(end_s, hard_s)
            if number != n:
                continue
            if kind == "progress":
                if progress:
                    progress(content)
                continue
            if kind == "rows":
                if keep_rows:
                    keep_rows(*content)
                continue
            self._n += 1
            self.is_spent = kind == "last"
            if isinstance(content, Refusal):
                raise content
            outcome: WorkOutcome = content
            return outcome

    def _receive(self, end_s: float, hard_s: float) -> tuple[str, int, Any]:
        ready = wait([self._connection, self.process.sentinel], max(0.0, end_s - time.monotonic()))
        if not ready:
            self.kill()
            raise Lagging(hard_s)
        if self._connection in ready:
            with contextlib.suppress(EOFError, OSError):
                return self._connection.recv()  # type: ignore[no-any-return]
        raise self._died()

    def _died(self) -> WorkerDied:
        self.is_spent = True
        self.process.join(5.0)
        code = self.process.exitcode
        how = f"status {code}"
        if code is not None and code < 0:
            how = signal.Signals(-code).name
        return WorkerDied(f"its process ended ({how}), perhaps for want of memory: ask again")

    def has_ended(self) -> bool:
        """Tell whether the process is not there any more."""
        return bool(wait([self.process.sentinel], 0.0))

    def stop(self) -> None:
        """Ask for the best so far."""
        with contextlib.suppress(OSError), self._sending:
            self._connection.send((self._n, None))

    def kill(self) -> None:
        """End the process at once; a `run` in another thread then raises."""
        self.is_spent = True
        self.process.kill()

    def close(self) -> None:
        """End the process and free what it held."""
        self.kill()
        self.process.join()
        self._connection.close()
        self.process.close()


class WorkerPool:
    """A fixed number of workers; a task waits until one is idle.

    Who may wait, and how long, is decided before (`service.engine`).
    """

    def __init__(
        self,
        n_workers: int,
        settings: RequestLimits = DEFAULTS,
        module: str = CALLS_MODULE,
        niceness: int = 0,
    ) -> None:
        self.n_workers = n_workers
        self._settings = settings
        self._module = module
        self._niceness = niceness
        self._threads = ThreadPoolExecutor(max(1, 2 * n_workers), thread_name_prefix="worker")
        self._idle: asyncio.Queue[_Process | None] = asyncio.Queue()
        self._all: set[_Process] = set()
        self.n_deaths = 0
        """Workers that had to be replaced."""
        self._closed = False

    @property
    def n_alive(self) -> int:
        """Workers that run now."""
        return sum(not worker.is_spent for worker in list(self._all))

    def process_ids(self) -> list[int]:
        """Return the ids of the worker processes that run."""
        return [w.process.pid for w in list(self._all) if not w.is_spent and w.process.pid]

    async def start(self) -> None:
        """Start the workers; the first takes as long as the imports."""
        loop = asyncio.get_running_loop()
        for _ in range(self.n_workers):
            self._idle.put_nowait(await loop.run_in_executor(self._threads, self._new))

    def _new(self) -> _Process:
        worker = _Process(self._settings, self._module, self._niceness)
        self._all.add(worker)
        return worker

    async def run(
        self,
        task: Task,
        hard_s: float,
        progress: Progress | None = None,
        keep_rows: Kept | None = None,
        grace_s: float = 1.0,
    ) -> WorkOutcome:
        """Return the outcome of a task.

        `progress` and `keep_rows` are called from another thread. A cancelled task is asked to
        stop and killed after `grace_s`. Raises `Refusal`: `Lagging` after `hard_s`, `WorkerDied`,
        and what the call refuses.
        """
        worker = await self._taken()
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(
            self._threads, worker.run, task, hard_s, progress, keep_rows
        )
        # Not before its thread has ended, however often this is cancelled: two threads that
        # receive from one worker would each get half of its next answer.
        running.add_done_callback(lambda _: self._back(worker))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(lambda done: done.exception())  # seen: nobody waits for it
            worker.stop()
            try:
                await asyncio.wait([running], timeout=grace_s)
            finally:
                if not running.done():
                    worker.kill()
            await asyncio.wait([running])
            raise

    async def _taken(self) -> _Process:
        """Return a worker that is idle and alive; one that died while idle costs nobody a try."""
        while True:
            worker = await self._idle.get()
            if worker is None:  # the last one could not be replaced: try again
                if await asyncio.shield(self._renewed(None)) is None:
                    raise WorkerDied("its process could not be started again: ask again")
            elif worker.has_ended():
                worker.is_spent = True
                self._back(worker)
            else:
                return worker

    def _back(self, worker: _Process) -> None:
        """Let a worker wait for its next task, or another in its place."""
        if self._closed:
            return
        if not worker.is_spent:
            self._idle.put_nowait(worker)
            return
        self.n_deaths += 1
        self._all.discard(worker)
        self._renewed(worker)

    def _renewed(self, old: _Process | None) -> "asyncio.Future[_Process | None]":
        """Start a worker in place of one that is spent; it goes to those that are idle."""

        def renew() -> _Process | None:
            if old is not None:
                old.close()
            try:
                return self._new()
            except (OSError, Refusal):
                return None

        renewing = asyncio.get_running_loop().run_in_executor(self._threads, renew)
        renewing.add_done_callback(lambda done: self._idle.put_nowait(done.result()))
        return renewing

    async def close(self) -> None:
        """Kill all workers; what they work on ends with `WorkerDied`."""
        self._closed = True
        for worker in list(self._all):
            worker.kill()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._threads.shutdown)
        for worker in list(self._all):
            await loop.run_in_executor(None, worker.close)
        self._all.clear()
