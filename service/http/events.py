"""Events of a job, and of the list of jobs, as a stream: text/event-stream."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from starlette.responses import Response, StreamingResponse

from service.access.caller import Caller
from service.engine import Engine
from service.feeds.jobs import FeedEvent, JobFeed, WatchTerms
from service.handlers.problems import Refusal, malformed
from service.http.exchange import SSE, HttpExchange
from service.jobs.records import Event

Item = TypeVar("Item")

KEEP_ALIVE_S = 15.0
"""Time without events after which a watcher is told that the service is there."""
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


async def watch_job(
    engine: Engine, exchange: HttpExchange, caller: Caller, job_id: str
) -> Response:
    """Return the stream of a job's events, from the one on that `Last-Event-ID` names."""
    last = exchange.header(b"last-event-id") or "0"
    if not last.isascii() or not last.isdigit() or len(last) > 9:
        raise malformed("Last-Event-ID", f"Last-Event-ID: {last[:40]!r} is no number")
    after = int(last)
    job = await engine.get_job(job_id, caller)
    if job.is_final and after >= job.n_events:
        return Response(None, 204, HEADERS)  # tells a browser not to come back
    return await _stream(engine.watch(job_id, caller, after), _job_event, exchange.id)


async def watch_jobs(
    feed: JobFeed, exchange: HttpExchange, caller: Caller, terms: WatchTerms
) -> Response:
    """Return the stream of changes of the caller's jobs."""
    return await _stream(feed.watch(caller, terms), _change, exchange.id)


def _job_event(event: Event) -> bytes:
    kind = "state" if "state" in event.data else "progress"
    return f"id: {event.n}\nevent: {kind}\ndata: {json.dumps(dict(event.data))}\n\n".encode()


def _change(event: FeedEvent) -> bytes:
    data = json.dumps(event.to_json())
    return f"id: {event.version}\nevent: {event.kind.lower()}\ndata: {data}\n\n".encode()


async def _stream(
    events: AsyncIterator[Item], text: Callable[[Item], bytes], request_id: str
) -> Response:
    # The first event, or a refusal, before there is a status.
    first = await _next(events)
    return StreamingResponse(_event_stream(events, first, text, request_id), 200, HEADERS, SSE)


async def _next(events: AsyncIterator[Item]) -> Item | None:
    async for event in events:
        return event
    return None


async def _event_stream(
    events: AsyncIterator[Item],
    event: Item | None,
    text: Callable[[Item], bytes],
    request_id: str,
) -> AsyncIterator[bytes]:
    """Yield events as text/event-stream; a comment where nothing happens for a while."""
    waiting: asyncio.Task[Item | None] | None = None
    try:
        while event is not None:
            yield text(event)
            waiting = asyncio.ensure_future(_next(events))
            while not (await asyncio.wait({waiting}, timeout=KEEP_ALIVE_S))[0]:
                yield b": still here\n\n"
            try:
                event = waiting.result()
            except Refusal as problem:
                data = json.dumps(problem.to_json(request_id))
                yield f"event: problem\ndata: {data}\n\n".encode()
                return
    finally:
        if waiting is not None and not waiting.done():
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError, Refusal):
                await waiting
        if hasattr(events, "aclose"):
            await events.aclose()
