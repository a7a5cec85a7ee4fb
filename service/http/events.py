"""Events of a job as a stream: text/event-stream."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse

from service.access.caller import Caller
from service.engine import Engine
from service.handlers.problems import Refusal, malformed
from service.http.exchange import SSE, HttpExchange
from service.jobs.records import Event

KEEP_ALIVE_S = 15.0
"""Time without events after which a watcher is told that the service is there."""


async def watch_job(
    engine: Engine, exchange: HttpExchange, caller: Caller, job_id: str
) -> Response:
    """Return the stream of a job's events, from the one on that `Last-Event-ID` names."""
    last = exchange.header(b"last-event-id") or "0"
    if not last.isascii() or not last.isdigit() or len(last) > 9:
        raise malformed("Last-Event-ID", f"Last-Event-ID: {last[:40]!r} is no number")
    after = int(last)
    job = await engine.get_job(job_id, caller)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    if job.is_final and after >= job.n_events:
        return Response(None, 204, headers)  # tells a browser not to come back
    # The first event, or a refusal, before there is a status.
    events = engine.watch(job_id, caller, after)
    first = await _next(events)
    return StreamingResponse(_event_stream(events, first, exchange.id), 200, headers, SSE)


async def _next(events: AsyncIterator[Event]) -> Event | None:
    async for event in events:
        return event
    return None


async def _event_stream(
    events: AsyncIterator[Event], event: Event | None, request_id: str
) -> AsyncIterator[bytes]:
    """Yield events as text/event-stream; a comment where nothing happens for a while."""
    waiting: asyncio.Task[Event | None] | None = None
    try:
        while event is not None:
            kind = "state" if "state" in event.data else "progress"
            data = json.dumps(dict(event.data))
            yield f"id: {event.n}\nevent: {kind}\ndata: {data}\n\n".encode()
            waiting = asyncio.ensure_future(_next(events))
            while not (await asyncio.wait({waiting}, timeout=KEEP_ALIVE_S))[0]:
                yield b": still here\n\n"
            try:
                event = waiting.result()
            except Refusal as problem:
                text = json.dumps(problem.to_json(request_id))
                yield f"event: problem\ndata: {text}\n\n".encode()
                return
    finally:
        if waiting is not None and not waiting.done():
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError, Refusal):
                await waiting
        if hasattr(events, "aclose"):
            await events.aclose()
