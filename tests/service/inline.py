"""An engine for the tests of the transports: calls are worked on in this process."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from service.engine import Engine
from service.handlers.calls import CALLS
from service.handlers.limits import RequestLimits
from service.handlers.partial_results import rows_of
from service.jobs.store import Store
from service.settings.options import Options
from service.tenants.groups import Tenants
from service.worker_pool.pool import Kept, Progress, Task, WorkOutcome, read_job, slice_of
from tests.service import fake_calls

SETTINGS = RequestLimits(queue_length=2, per_caller=4, body_bytes=10_000)
OPTIONS = Options(
    workers=1,
    job_workers=1,
    lease_s=3.0,
    poll_s=0.02,
    drain_s=0.2,
    watchers=4,
    webhook_hosts=("127.0.0.1", "hooks.invalid"),
    webhook_networks=("127.0.0.0/8",),
)


class InlinePool:
    """What a pool of worker processes does, without processes; with the stand-in calls."""

    n_alive, n_deaths = 1, 0

    def __init__(self, calls: Any = fake_calls, settings: RequestLimits = SETTINGS) -> None:
        self._calls, self._settings = calls, settings
        self.held = asyncio.Event()
        """Work waits for it."""
        self.held.set()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def run(
        self, task: Task, hard_s: float, progress: Progress | None = None, kept: Kept | None = None
    ) -> WorkOutcome:
        if task.what == "page":
            return WorkOutcome("", False, slice_of(task), True, 0.0)
        if task.what == "job":
            return read_job(task.body, SETTINGS)
        begun_s = time.monotonic()
        calls = self._calls
        asked = calls.read_request(task.name, task.body, self._settings)
        measured = task.what == "read" or not (task.large or asked.large)
        large = asked.large or (measured and calls.request_size(asked, self._settings).large)
        payload, complete = None, True
        if task.what == "answer" and (task.large or not large):
            await self.held.wait()
            running = calls.RunningCall(
                settings=self._settings,
                time_limit_s=task.time_limit_s,
                progress=progress,
                rows=rows_of(task.rows, asked.request_id),
                keep=lambda rows: kept and kept(asked.request_id, rows),
                **(task.options or {}),
            )
            found = calls.answer(asked, running)
            payload = calls.dumps(found, task.name).encode()
            complete = calls.is_complete(found)
        seconds = time.monotonic() - begun_s
        return WorkOutcome(asked.request_id, large, payload, complete, seconds)


@contextlib.asynccontextmanager
async def inline_engine(
    folder: Path,
    database: str = "",
    calls: Any = fake_calls,
    settings: RequestLimits = SETTINGS,
    tenants: Tenants | None = None,
) -> AsyncIterator[Engine]:
    store = Store(database or f"sqlite:///{folder}/service.sqlite")
    engine = Engine(store, settings, OPTIONS, "tests.service.fake_calls", tenants)
    pool: Any = InlinePool(calls, settings)
    engine._pool = engine._job_pool = engine._page_pool = pool
    engine._calls = CALLS  # names and roles as they are; the stand-in answers all of them
    await engine.start()
    try:
        yield engine
    finally:
        pool.held.set()
        await engine.close()
        store.close()
