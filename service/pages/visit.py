"""One request for a page: who asks, for what, and how an answer is got from the engine."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from service.access.caller import Caller
from service.engine import Engine, cache_key, request_body
from service.handlers.limits import RequestLimits, check_data, json_body
from service.handlers.problems import Refusal, refused
from service.jobs.records import JobView, State
from service.pages.question import question_of, title_of

PATIENCE_S = 1.5
"""How long a page waits for an answer before it shows the progress of a job in its place."""
MOST_ADDRESS_CHARS = 48_000
"""Of a query: below what servers and browsers take."""
MOST_FIELDS = 200
MOST_WAITING = 1_000
"""Questions of which a process remembers that a job works on them."""
LARGE_BYTES = 100_000
HTML = "text/html; charset=utf-8"
Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """What a function of a page returns."""

    content: bytes | str
    status: int = 200
    media: str = HTML
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file in a form."""

    name: str
    text: str


class Working(Exception):
    """The answer takes longer: a job works on it, and the page shows its progress."""

    def __init__(self, job: JobView) -> None:
        super().__init__(job.job_id)
        self.job = job


def read_query(raw: bytes) -> dict[str, tuple[str, ...]]:
    """Return the parameters of an address in order; `Refusal` 400."""
    if len(raw) > MOST_ADDRESS_CHARS:
        detail = f"the address has more than {MOST_ADDRESS_CHARS:,} characters"
        raise refused("malformed", detail, 400)
    return fields_of(raw)


def fields_of(raw: bytes) -> dict[str, tuple[str, ...]]:
    """Return urlencoded fields by name, the values of each in order; `Refusal` 400."""
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            max_num_fields=MOST_FIELDS,
            errors="strict",
        )
    except ValueError:
        raise refused("malformed", "the address or the form cannot be read", 400) from None
    entries: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        if "\0" in value:
            raise refused("malformed", "a field holds the character NUL", 400)
        entries[name] = (*entries.get(name, ()), value)
    return entries


@dataclass(slots=True)
class Visit:
    """One request for a page."""

    engine: Engine
    settings: RequestLimits
    caller: Caller
    root: str
    """Path prefix of the service, such as `/planner`; empty where there is none."""
    path: str
    """Below the prefix: `/ui/plans`."""
    query: Mapping[str, tuple[str, ...]]
    parts: Mapping[str, str] = field(default_factory=dict)
    """Of a path with parameters, by name."""
    form: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    files: Mapping[str, Upload] = field(default_factory=dict)
    body: bytes = b""
    """What a script of ours has sent as JSON."""
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    theme: str = ""
    """`light` or `dark` where it was chosen."""
    asks_tokens: bool = False
    waiting: dict[str, None] = field(default_factory=dict)
    """Keys of questions that a job was made of: shared by all visits of a process, and a hint
    only, for the key brings the job back from the store."""

    def get(self, name: str, default: str = "") -> str:
        """Return a parameter of the address, the last where it stands several times."""
        return self.query.get(name, (default,))[-1]

    def posted(self, name: str, default: str = "") -> str:
        """Return a field of the form."""
        return self.form.get(name, (default,))[-1]

    def url(self, path: str, query: Mapping[str, Any] | None = None, **more: Any) -> str:
        """Return the address of a page, prefix included: `visit.url("/ui/plans", model="x")`.

        Values that are empty or None are left out; those in lists stand once each.
        """
        fields = {**(query or {}), **more}
        stated_fields = {
            key: value
            for key, value in fields.items()
            if value is not None and value not in ("", (), [])
        }
        text = urlencode(stated_fields, doseq=True)
        return f"{self.root}{path}" + (f"?{text}" if text else "")

    def here(self, **changed: Any) -> str:
        """Return the address of this page with some parameters changed (None: without)."""
        return self.url(self.path, {**self.query, **changed})

    def question(self) -> Data | None:
        """Return the solve request of the address, None where it has none; `Refusal` 400, 422."""
        return question_of(self.query, self.settings)

    async def json(self) -> Data:
        """Return the object that a script has sent; `Refusal` 400, 413.

        Much of it is read beside the event loop.
        """
        if len(self.body) < LARGE_BYTES:
            return object_of(self.body, self.settings)
        return await asyncio.to_thread(object_of, self.body, self.settings)

    async def ask(self, name: str, request: Mapping[str, Any]) -> Data:
        """Return the answer of a call, however long it takes; `Refusal` for everything refused."""
        answer = await self.engine.call(name, request_body(request), self.caller)
        return await answer_data(answer.payload)

    async def ask_patiently(self, name: str, request: Mapping[str, Any]) -> Data:
        """Return the answer of a call; where it takes long, `Working` with a job that finds it.

        The shell shows the progress of the job and comes back to the same address, where the
        answer is read from the store. Role `solve`.
        """
        body = request_body(request)
        result = self.engine.cached(name, body, self.caller)
        if result is not None:
            return await answer_data(result.payload)
        key = f"page-{cache_key(name, body).hex()}-{self.get('try')[:9]}"
        if key not in self.waiting:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    answer = await self.engine.call(name, body, self.caller)
                return await answer_data(answer.payload)
            except TimeoutError:
                pass
            except Refusal as problem:
                if problem.code != "needs-job":
                    raise
        job = await self.engine.submit(name, body, self.caller, key)
        query = {key: list(values) for key, values in self.query.items() if key != "try"}
        titles = title_of(request.get("solve", request))  # the page of a plan holds its question
        what = f"{self.path.rpartition('/')[2]} {' on '.join(titles)}"
        note = {"what": what, "path": self.path, "query": query}
        await asyncio.to_thread(self.engine.jobs.note, job.job_id, note)
        if job.state is not State.SUCCEEDED:
            self.waiting[key] = None
            while len(self.waiting) > MOST_WAITING:
                self.waiting.pop(next(iter(self.waiting)))
            raise Working(job)
        answer = await self.engine.result(job.job_id, self.caller)
        return await answer_data(answer.payload)


def object_of(body: bytes, settings: RequestLimits) -> Data:
    """Return the JSON object of a body, within the limits; `Refusal` 400, 413."""
    data = json_body(body or b"{}", settings)
    if not isinstance(data, dict):
        raise refused("malformed", "the body is no JSON object", 400)
    check_data(data, settings)
    return data


async def answer_data(payload: bytes) -> Data:
    """Return an answer of the engine as data; a large one is read beside the event loop."""
    if len(payload) < LARGE_BYTES:
        result: Data = json.loads(payload)
        return result
    return await asyncio.to_thread(json.loads, payload)
