"""A service in this process: sockets, tokens, jobs and real answers, without worker processes."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from service.access.auth import Auth
from service.engine import Engine
from service.handlers import calls
from service.handlers.limits import DEFAULTS, RequestLimits
from service.http.bound_socket import listening
from service.jobs.store import Store
from service.process.serve import http_server
from service.rest.application import Rest
from service.settings.options import Options
from service.settings.serving import PublicAddress, Serving
from service.worker_pool.pool import Kept, Progress, Task, WorkOutcome, slice_of
from tests.service.waiting import PATIENCE_S


class InProcess:
    """What a pool of worker processes does, in a thread."""

    n_alive, n_deaths = 1, 0

    def __init__(self, settings: RequestLimits) -> None:
        self._settings = settings

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def run(
        self, task: Task, hard_s: float, progress: Progress | None = None, kept: Kept | None = None
    ) -> WorkOutcome:
        return await asyncio.to_thread(self._done, task, progress, kept)

    def _done(self, task: Task, progress: Progress | None, kept: Kept | None) -> WorkOutcome:
        begun_s = time.monotonic()
        if task.what == "page":
            return WorkOutcome("", False, slice_of(task), True, 0.0)
        asked = calls.read_request(task.name, task.body, self._settings)
        large = asked.large or calls.request_size(asked, self._settings).large
        payload, complete = None, True
        if task.what == "answer" and (task.large or not large):
            running = calls.RunningCall(
                self._settings,
                task.time_limit_s,
                progress=progress,
                keep=lambda rows: kept and kept(asked.request_id, rows),
            )
            found = calls.answer(asked, running)
            payload, complete = calls.dumps(found, task.name).encode(), calls.is_complete(found)
        return WorkOutcome(asked.request_id, large, payload, complete, time.monotonic() - begun_s)


@contextlib.contextmanager
def live_service(
    folder: Path, settings: RequestLimits = DEFAULTS, auth: Auth | None = None, **tls: Any
) -> Iterator[str]:
    """Serve at a free port and give the address; `tls` are options of `Serving`."""
    started: list[str] = []
    ready, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        store = Store(f"sqlite:///{folder}/service.sqlite")
        engine = Engine(store, settings, Options(workers=1, job_workers=1, poll_s=0.05))
        pool: Any = InProcess(settings)
        engine._pool = engine._job_pool = engine._page_pool = pool
        serving = Serving(port=0, **tls)
        listener = listening(serving)
        server = http_server(Rest(engine, auth, settings, PublicAddress(tls=bool(tls))), serving)
        await engine.start()
        task = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.005)
        started.append(f"{serving.scheme}://127.0.0.1:{listener.getsockname()[1]}")
        ready.set()
        await stop.wait()
        await engine.close()
        server.should_exit = True
        await task
        listener.close()
        store.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
        loop.close()
