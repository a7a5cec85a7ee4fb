"""The list of a caller's jobs, and what changes in it: list, then watch from there on."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.access.caller import Caller, check_known
from service.engine import Engine
from service.handlers.problems import malformed
from service.jobs.changes import JobFilter, JobPage
from service.jobs.labels import read_selector, selects
from service.jobs.queue import cursor_number
from service.jobs.records import State

BOOKMARK_S = 15.0
"""Time without changes after which a watcher is told the version up to which it has seen all."""
MOST_WATCH_S = 86_400.0
MOST_VERSION = 2**53
"""Numbers up to it are the same in every reader of JSON."""


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """What a watcher is told: a change, or how far it has seen all of them."""

    kind: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    version: int
    """To go on from after a break."""
    job: Mapping[str, Any] | None = None
    """After the change; None with a bookmark."""

    def to_json(self) -> dict[str, Any]:
        """Return it as both transports show it."""
        return {"type": self.kind, "resource_version": self.version, "job": self.job}


@dataclass(frozen=True, slots=True)
class WatchTerms:
    """Which changes a watcher is told of."""

    after: int = 0
    """Version of the last change that it has seen; 0: from now on."""
    labels: str = ""
    """Selector of jobs."""
    call: str = ""
    """Only jobs of this call; empty for all."""
    timeout_s: float | None = None
    """After which the stream ends with a bookmark; 0: with what there is. None: never."""
    state: State | None = None
    """Only changes after which a job is in this state; None for all."""


class JobFeed:
    """Lists and watches jobs, over an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading: asyncio.Future[int] | None = None

    async def page(
        self, caller: Caller, wanted: JobFilter, cursor: str = "", limit: int = 50
    ) -> JobPage:
        """Return a page of the caller's jobs, the newest first; `Refusal` 400 for no call."""
        self._check_call(wanted.call)
        before = cursor_number(cursor) if cursor else None
        limit = max(1, min(limit, self._engine.options.page_items))
        return await self._engine.from_store(
            caller, self._engine.jobs.changes.page, caller.sees, wanted, before=before, limit=limit
        )

    async def watch(self, caller: Caller, terms: WatchTerms) -> AsyncIterator[FeedEvent]:
        """Yield changes of the caller's jobs in their order.

        Raises `Refusal`: 400 for a call that is none, 410 to list again.
        The first event comes at once, if only a bookmark. A watcher that comes back with the
        version of the last event misses nothing.
        """
        self._check_call(terms.call)
        selector, after, state = read_selector(terms.labels), terms.after, terms.state
        engine = self._engine
        with engine.watching(caller):
            if not after:
                after = await engine.read_store(caller, engine.jobs.changes.version)
            end_s = time.monotonic() + (math.inf if terms.timeout_s is None else terms.timeout_s)
            told, told_s = -1, -math.inf
            while True:
                await check_known(caller)
                news, now_s = engine.news, time.monotonic()
                page = await engine.read_store(
                    caller, engine.jobs.changes.since, caller.sees, after, terms.call
                )
                for change in page.changes:
                    wanted = state is None or change.job["state"] == state.value
                    if wanted and selects(selector, change.labels):
                        told, told_s = change.version, now_s
                        yield FeedEvent(change.kind.value, change.version, change.job)
                behind, after = page.version < await self._head(), page.version
                ends = now_s >= end_s and not behind
                if (ends and told < after) or now_s - told_s >= BOOKMARK_S:
                    told, told_s = after, now_s
                    yield FeedEvent("BOOKMARK", after)
                if ends:
                    return
                if behind:
                    continue
                # As long as nothing changes one number is read, by one of all the watchers.
                while await self._head() == after:
                    most_s = min(end_s, told_s + BOOKMARK_S) - time.monotonic()
                    if most_s <= 0:
                        break
                    await engine.wait_for(news, min(most_s, engine.options.poll_s))
                    news = engine.news
                    await check_known(caller)

    def _check_call(self, call: str) -> None:
        names = self._engine.call_names
        if call and call not in names:
            detail = f"call: {call[:40]!r} is the name of no call: one of {', '.join(names)}"
            raise malformed("call", detail)

    async def _head(self) -> int:
        """Return the version of the last change, read once for all who ask at the same time."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._engine.version())
            self._reading.add_done_callback(lambda x: x.cancelled() or x.exception())
        return await asyncio.shield(self._reading)


def job_filter(query: Mapping[str, str]) -> JobFilter:
    """Return the filter that parameters name; `Refusal` 400 for what is none."""
    return JobFilter(
        _state(query),
        _call(query),
        read_selector(query.get("labels", "")),
        moment_of(query.get("created_after", ""), "created_after"),
        moment_of(query.get("created_before", ""), "created_before"),
    )


def moment_of(text: str, field: str) -> float | None:
    """Return the time of day that a text says, in seconds since 1970; None for an empty one."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = _moment(text)
    if not math.isfinite(seconds):
        detail = f"{field}: {text[:40]!r} is no time: 2025-11-29T08:00:00Z, or seconds since 1970"
        raise malformed(field, detail)
    return seconds


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
        return moment.timestamp() if moment.tzinfo is not None else math.nan
    except (ValueError, OverflowError):
        return math.nan


def watch_terms(query: Mapping[str, str], last_event_id: str = "") -> WatchTerms:
    """Return what a watcher asks for; `Last-Event-ID` of one that comes back counts most."""
    after = _version(query.get("resource_version", ""), "resource_version")
    if last_event_id:
        after = _version(last_event_id, "Last-Event-ID")
    text, timeout_s = query.get("timeout_s", ""), None
    if text:
        try:
            timeout_s = float(text)
        except ValueError:
            timeout_s = math.nan
        if not 0.0 <= timeout_s <= MOST_WATCH_S:
            detail = f"timeout_s: {text[:40]!r} is no number of seconds up to {MOST_WATCH_S:g}"
            raise malformed("timeout_s", detail)
    read_selector(query.get("labels", ""))
    return WatchTerms(after, query.get("labels", ""), _call(query), timeout_s, _state(query))


def _state(query: Mapping[str, str]) -> State | None:
    state = query.get("state")
    if state is not None and state not in State.__members__:
        detail = f"state: {state[:40]!r} is no state of a job: one of {', '.join(State)}"
        raise malformed("state", detail)
    return State(state) if state else None


def _call(query: Mapping[str, str]) -> str:
    """Return the call that a query names; which there are is known to the feed."""
    call = query.get("call")
    if call is not None and not call:
        raise malformed("call", "call: it is empty: name a call, or leave it out for all")
    return call or ""


def _version(text: str, field: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 17) or int(text) > MOST_VERSION:
        detail = f"{field}: {text[:40]!r} is the version of no list: pass the number that a list"
        raise malformed(field, f"{detail} or the last event came with, or none for now on")
    return int(text)
