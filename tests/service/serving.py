"""A service with the real calls, for tests that send it more requests than processes would bear.

Calls are worked on in this process, so that a defect has a trace that a test can show.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from service.access.auth import Auth
from service.engine import Engine
from service.handlers.limits import DEFAULTS, RequestLimits
from service.handlers.problems import Refusal, refused
from service.http.bound_socket import listening
from service.jobs.store import Store
from service.process.serve import http_server
from service.rest.application import Rest
from service.settings.options import Options
from service.settings.serving import Serving
from service.worker_pool.pool import CALLS_MODULE, Kept, Progress, Task, WorkOutcome, _Worker
from tests.service.waiting import PATIENCE_S

SETTINGS = replace(
    DEFAULTS,
    solve_s=2.0,
    job_s=2.0,
    jobs_queued_per_owner=10_000,
    jobs_queued=10_000,
    failed_logins=10**9,
)
OPTIONS = Options(
    workers=1,
    job_workers=1,
    poll_s=0.02,
    drain_s=0.2,
    job_hard_s=10.0,
    cache_bytes=16_000_000,
    grace_s=100.0,
    webhook_hosts=("hooks.invalid", "127.0.0.1"),  # where nobody listens
    webhook_networks=("127.0.0.0/8",),
    webhooks_per_owner=1_000_000,
)


class _Nowhere:
    """The connection of a worker that tells its progress nobody."""

    def send(self, content: Any) -> None: ...


class CallsPool:
    """What a pool of workers does, with the real calls, in a thread of this process."""

    n_alive, n_deaths = 1, 0

    def __init__(self, settings: RequestLimits, note: Callable[[BaseException], None]) -> None:
        nowhere: Any = _Nowhere()
        self._worker = _Worker(nowhere, settings, CALLS_MODULE)
        self._note = note
        self._one = asyncio.Lock()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def run(
        self, task: Task, hard_s: float, progress: Progress | None = None, kept: Kept | None = None
    ) -> WorkOutcome:
        async with self._one:
            return await asyncio.to_thread(self._done, task)

    def _done(self, task: Task) -> WorkOutcome:
        try:
            return self._worker._done(0, task, time.monotonic())
        except Refusal as problem:
            if problem.status >= 500:
                self._note(problem)
            raise
        except Exception as error:
            self._note(error)
            raise refused("defect", type(error).__name__, 500) from error


@contextlib.asynccontextmanager
async def calls_engine(
    folder: Path, note: Callable[[BaseException], None], database: str = ""
) -> AsyncIterator[Engine]:
    """Yield an engine with the real calls; `note` is told of defects."""
    store = Store(database or f"sqlite:///{folder}/service.sqlite")
    # Jobs end by themselves soon: here nobody kills them.
    engine = Engine(store, SETTINGS, replace(OPTIONS, job_hard_s=2.0))
    pool, job_pool = CallsPool(SETTINGS, note), CallsPool(SETTINGS, note)
    engine._pool, engine._job_pool = pool, job_pool  # type: ignore[assignment]  # as far as asked
    engine._page_pool = job_pool  # type: ignore[assignment]  # the same
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()
        store.close()


@contextlib.contextmanager
def served(
    folder: Path,
    auth: Auth | None = None,
    note: Callable[[BaseException], None] = print,
    settings: RequestLimits = SETTINGS,
) -> Iterator[str]:
    """Serve with the real HTTP server in a thread; yield the address."""
    serving = Serving(port=0, limits=settings)
    listener = listening(serving)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    started = threading.Event()

    async def run() -> None:
        async with calls_engine(folder, note) as engine:
            server = http_server(Rest(engine, auth, settings), serving)
            serves = asyncio.create_task(server.serve([listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            started.set()
            await stop.wait()
            server.should_exit = True
            await serves

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        assert started.wait(PATIENCE_S)
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
        loop.close()
        listener.close()
