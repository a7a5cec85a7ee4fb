"""The REST transport: an ASGI application over the engine.

    request -> Gate: host, token, media type, body within its limits -> memory: answered unparsed
            -> FastAPI routes of `service.http.openapi.OPERATIONS` -> engine -> answer or problem

The gate is plain ASGI, so that a repeated question costs a hash of its body and two sends. What is
refused is `application/problem+json`, also by the router; a defect says so and is logged with its
trace, which no caller sees.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

import planner
from service import logs
from service.admission import overloaded
from service.auth import Auth
from service.engine import CallAnswer, Caller, Engine
from service.handlers.calls import CALLS
from service.handlers.problems import Problem, malformed, refused
from service.http import openapi
from service.http.openapi import FACTS, JSON, OPERATIONS, PROBLEM, SSE, Operation
from service.jobs.records import Event, JobView, State
from service.limits import DEFAULTS, RequestLimits
from service.metrics import CONTENT_TYPE, Metrics
from service.pages.gate import SECURITY as PAGE_SECURITY
from service.pages.gate import Pages, wants_html
from service.tracing import server_span

Found = TypeVar("Found")
Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger("planner.service")

BODY_S = 30.0
"""How long a body may take to arrive."""
LARGE_BODY = 65_536
"""Bytes from which a body that arrives is large: a caller may send some of those at a time."""
KEEP_ALIVE_S = 15.0
"""Time without events after which a watcher is told that the service is there."""
READY_S = 1.0
"""How long an answer of /readyz holds: anybody may ask."""
CLIENT_LEFT = 499
"""Status in logs and metrics of a request whose caller left before there was an answer."""
MOST_WAIT_S = 86_400.0
LEAST_WAIT_S = 0.001
SECURITY = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
HSTS = (b"strict-transport-security", b"max-age=31536000")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?")
_CALL_OF_PATH = {
    each.path: each.call for each in OPERATIONS if each.call and each.method == "POST"
}
_PATTERNS = tuple(
    (re.compile(re.sub(r"\\\{[a-z_]+\\\}", "[^/]+", re.escape(each.path))), each)
    for each in OPERATIONS
)
_FIXED: dict[tuple[str, str], Operation] = {
    (each.method, each.path): each for each in OPERATIONS if "{" not in each.path
}


class RestCallerLeft(Exception):
    """Nobody waits for the answer any more."""


@dataclass(slots=True)
class RestExchange:
    """One request and what is known of its answer."""

    id: str
    headers: Mapping[bytes, bytes]
    begun_s: float
    operation: Operation | None
    caller: Caller | None = None
    body: bytes = b""
    status: int = 0
    """0 while nothing was sent."""
    n_bytes: int = 0
    fast: bool = False
    cut: bool = False
    """The rest of its body is not read."""
    page: bool = False
    """Answered as HTML, to a browser."""
    address: str = ""
    """Of who sent it, known or not."""
    next: str = ""
    """Page to go to after a sign-in, query included: not for the log."""
    fields: dict[str, Any] = field(default_factory=dict)
    """More for the log."""

    def header(self, name: bytes) -> str:
        """Return a header of the request; empty without it."""
        return self.headers.get(name, b"").decode("latin-1").strip()


def operation_of(method: str, path: str) -> Operation | None:
    """Return the operation that a request is for."""
    result = _FIXED.get((method, path))
    if result is not None:
        return result
    return next(
        (each for pattern, each in _PATTERNS if each.method == method and pattern.fullmatch(path)),
        None,
    )


def allowed_methods(path: str) -> list[str]:
    """Return the methods that a path answers."""
    results = {each.method for pattern, each in _PATTERNS if pattern.fullmatch(path)}
    return sorted(results)


def no_such_path(method: str, path: str) -> Problem:
    """Return the problem of a request for nothing that is here: 404, or 405 for its method."""
    methods = allowed_methods(path)
    if methods:
        detail = f"{method[:20]} is not for {path[:80]}: {', '.join(methods)}"
        return Problem(405, "wrong-method", "the method is not for this path", detail)
    detail = f"nothing is at {path[:80]}; /openapi.json lists what there is"
    return Problem(404, "unknown-path", "there is no such path", detail)


def preferences(prefer: str) -> dict[str, str]:
    """Return the values of a header `Prefer` by name; of equal ones the first, after RFC 7240."""
    entries: dict[str, str] = {}
    for part in re.split("[,;]", prefer):
        name, _, value = part.partition("=")
        entries.setdefault(name.strip().lower(), value.strip().strip('"'))
    return entries


def wait_s(prefer: str) -> float | None:
    """Return the seconds of `Prefer: wait=N`; None without it.

    What is no number of seconds is ignored, as RFC 7240 has it: that no `Preference-Applied` comes
    back tells the caller. With `wait=0` there is what is known at once.
    """
    value = preferences(prefer).get("wait", "")
    if not _SECONDS.fullmatch(value):
        return None
    return min(max(float(value), LEAST_WAIT_S), MOST_WAIT_S)


def wants_job(prefer: str) -> bool:
    """Tell whether `Prefer` asks for a job."""
    return "respond-async" in preferences(prefer)


def rest_knows(if_none_match: str, etag: str) -> bool:
    """Tell whether a header If-None-Match names an answer."""
    if not if_none_match or not etag:
        return False
    names = (name.strip().removeprefix("W/") for name in if_none_match.split(","))
    return any(name in ("*", f'"{etag}"') for name in names)


class Rest:
    """The ASGI application: the gate, with FastAPI behind it."""

    def __init__(
        self,
        engine: Engine,
        auth: Auth | None = None,
        settings: RequestLimits = DEFAULTS,
        *,
        metrics: Metrics | None = None,
        tracer: Any = None,
        only_hosts: frozenset[str] | None = None,
        tls: bool = False,
        root_path: str = "",
    ) -> None:
        """Prepare an application over an engine that somebody else starts and closes.

        `only_hosts` are the names under which the service is called; others are refused, so that
        a page in a browser cannot reach a service without tokens by a name of its own. `root_path`
        is the prefix of all paths where a proxy shows the service below one.
        """
        self.engine = engine
        self.auth = auth or Auth()
        self.settings = settings
        self.metrics = metrics or Metrics(engine)
        self._tracer = tracer
        self._only_hosts = only_hosts
        hsts = (HSTS,) if tls else ()
        self._common, self._of_pages = (*SECURITY, *hsts), (*PAGE_SECURITY, *hsts)
        self.pages = Pages(self, root_path, tls)
        self._large: Counter[str] = Counter()
        """Large bodies that arrive, by caller."""
        self._ready: tuple[float, Problem | None] = (-math.inf, None)
        self._asking: asyncio.Task[None] | None = None
        self._routes = _routes(self)

    # The gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await _no_websocket(scope, receive, send)
        scope = self.pages.unprefixed(scope)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        method, path = scope["method"], scope["path"]
        value = headers.get(b"x-request-id", b"").decode("latin-1")
        id = value if _REQUEST_ID.fullmatch(value) else secrets.token_hex(8)
        operation = operation_of("GET" if method == "HEAD" else method, path)
        exchange = RestExchange(id, headers, time.monotonic(), operation)
        exchange.page = operation is None and self.pages.shows(path, headers)
        client = scope.get("client")
        exchange.address = client[0] if client else ""
        token = logs.REQUEST.set(id)
        try:
            if self._tracer is None:
                await self._served(exchange, scope, receive, send)
            else:
                await self._traced(exchange, scope, receive, send)
        finally:
            self._noted(exchange, method, path)
            logs.REQUEST.reset(token)

    async def _traced(
        self, exchange: RestExchange, scope: Scope, receive: Receive, send: Send
    ) -> None:
        name = exchange.operation.id if exchange.operation else "unknown"
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in exchange.headers.items()}
        with server_span(self._tracer, name, headers) as span:
            await self._served(exchange, scope, receive, send)
            span.set_attribute("http.request.method", scope["method"])
            span.set_attribute("http.response.status_code", exchange.status)
            span.set_attribute("planner.request_id", exchange.id)

    async def _served(
        self, exchange: RestExchange, scope: Scope, receive: Receive, send: Send
    ) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    *(self._of_pages if exchange.page else self._common),
                    (b"x-request-id", exchange.id.encode()),
                ]
                if self.engine.is_draining:  # the next request goes to another process
                    message["headers"].append((b"connection", b"close"))
            else:
                exchange.n_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._admitted(exchange, scope, receive, counted)
        except Problem as problem:
            await self._refuse(exchange, problem, scope, receive, counted)
        except RestCallerLeft:
            exchange.fields["code"] = "caller-left"
        except Exception as error:
            log.exception("a defect while answering")
            if exchange.status:
                raise  # half an answer is out: the connection must end
            await self._refuse(exchange, _defect(error), scope, receive, counted)

    async def _refuse(
        self, exchange: RestExchange, problem: Problem, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if exchange.status:
            log.warning("refused after the answer had begun: %s", problem.detail)
            return
        exchange.fields["code"] = problem.code
        await self._problem(problem, exchange, scope["path"])(scope, receive, send)

    async def _admitted(
        self, exchange: RestExchange, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer from memory, or let the request through to the routes."""
        operation = exchange.operation
        method, path = scope["method"], scope["path"]
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            # A proxy may have looked at the other one (RFC 9112, 3.2).
            raise refused("malformed", "the header Host stands twice", 400)
        self._check_browser(exchange, method)
        if exchange.page:
            return await self.pages.answer(exchange, scope, receive, send)
        if operation is None or operation.role:
            exchange.caller = self.auth.caller(
                exchange.headers.get(b"authorization"), exchange.address
            )
        if operation is None:
            raise no_such_path(method, path)
        if method == "POST":
            exchange.body = await self._body(exchange, receive)
            call = _CALL_OF_PATH.get(path)
            if call and await self._from_memory(exchange, call, send):
                return
        scope["planner"] = exchange
        await self._routes(scope, receive, send)

    def _check_browser(self, exchange: RestExchange, method: str) -> None:
        """Refuse what a page of somebody else makes a browser send."""
        host = exchange.header(b"host")
        if self._only_hosts is not None:
            name = re.sub(r":\d*$", "", host).lower()
            if name not in self._only_hosts:
                raise Problem(
                    421,
                    "wrong-host",
                    "this service is not called so",
                    f"Host: {host[:60]!r} is none of {', '.join(sorted(self._only_hosts))}",
                )
        origin = exchange.header(b"origin")
        if origin and method not in ("GET", "HEAD") and origin.partition("://")[2] != host:
            raise Problem(
                403,
                "cross-origin",
                "pages of other origins may not ask",
                f"Origin: {origin[:60]!r} is not this service",
            )

    async def _body(
        self, exchange: RestExchange, receive: Receive, most: int | None = None
    ) -> bytes:
        """Return the body, of `most` bytes where less than usual; `Problem` 413, 415, 408, 429."""
        media = exchange.header(b"content-type").partition(";")[0].strip().lower()
        needed = exchange.operation is not None and exchange.operation.request is not None
        if media and media != JSON and needed:
            raise Problem(
                415,
                "wrong-media-type",
                "the body is not JSON",
                f"Content-Type: {media[:60]!r} is not {JSON}",
            )
        coding = exchange.header(b"content-encoding").lower()
        if coding not in ("", "identity"):
            raise Problem(
                415,
                "wrong-media-type",
                "the body is compressed",
                f"Content-Encoding: {coding[:60]!r}; send it as it is",
            )
        most = min(most or self.settings.body_bytes, self.settings.body_bytes)
        length = exchange.header(b"content-length")
        if length.isdigit() and int(length) > most:
            raise refused(
                "too-large", f"bytes of the body: {int(length):,} is more than {most:,}", 413
            )
        parts: list[bytes] = []
        n_bytes = 0
        who = exchange.caller.name if exchange.caller else exchange.address
        is_large = False
        exchange.cut = True
        try:
            async with asyncio.timeout(BODY_S):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise RestCallerLeft
                    part = message.get("body", b"")
                    n_bytes += len(part)
                    if n_bytes > most:
                        raise refused("too-large", f"bytes of the body: more than {most:,}", 413)
                    if n_bytes > LARGE_BODY and not is_large:
                        self._check_large(who)
                        is_large = True
                        self._large[who] += 1
                    parts.append(part)
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise Problem(
                408,
                "slow-body",
                "the body did not arrive",
                f"it was not complete after {BODY_S:g} s",
            ) from None
        finally:
            if is_large:
                self._large[who] -= 1
                if not self._large[who]:
                    del self._large[who]
        exchange.cut = False
        if n_bytes and needed and not media:
            raise Problem(
                415,
                "wrong-media-type",
                "the body is not JSON",
                f"send the header Content-Type: {JSON}",
            )
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check_large(self, who: str) -> None:
        """Refuse one more large body: what one caller sends at once must not fill the memory."""
        maximum = self.settings.per_caller
        if self._large[who] >= maximum:
            raise overloaded(f"{maximum} large bodies of yours are on their way", 1.0)

    async def _from_memory(self, exchange: RestExchange, call: str, send: Send) -> bool:
        """Answer a question whose very bytes were answered before; tell whether that was so."""
        headers = exchange.headers
        if b"idempotency-key" in headers or wants_job(exchange.header(b"prefer")):
            return False
        assert exchange.caller is not None
        answer = self.engine.cached(call, exchange.body, exchange.caller)
        if answer is None:
            return False
        exchange.fast = True
        etag = answer.etag
        known = b"if-none-match" in headers and rest_knows(exchange.header(b"if-none-match"), etag)
        payload = b"" if known else answer.payload
        out = [
            (b"etag", b'"%s"' % etag.encode()),
            (b"cache-control", b"private, no-cache"),
            (b"cache-status", b"planner; hit"),
        ]
        if not known:
            out += [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(payload)),
            ]
        status = 304 if known else answer.status
        await send({"type": "http.response.start", "status": status, "headers": out})
        await send({"type": "http.response.body", "body": payload})
        self.metrics.answered(call, answer, time.monotonic() - exchange.begun_s)
        return True

    def _noted(self, exchange: RestExchange, method: str, path: str) -> None:
        """Count and log a request that is over."""
        operation = exchange.operation
        status = exchange.status or CLIENT_LEFT
        name = operation.id if operation else "page" if exchange.page else "unknown"
        self.metrics.request("rest", name, status)
        quiet = exchange.fast or (operation is not None and not operation.role)
        level = logging.DEBUG if quiet and status < 500 else logging.INFO
        if logs.access.isEnabledFor(level):
            logs.log_access(
                level,
                f"{method[:20]} {path[:200]}",
                operation=name,
                status=status,
                seconds=round(time.monotonic() - exchange.begun_s, 6),
                bytes=exchange.n_bytes,
                caller=exchange.caller.name if exchange.caller else "",
                address=exchange.address,
                **exchange.fields,
            )

    def _problem(self, problem: Problem, exchange: RestExchange, path: str) -> Response:
        headers = {"cache-control": "no-store"}
        if problem.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(problem.retry_after_s)))
        if problem.status == 401:
            headers["www-authenticate"] = 'Bearer realm="planner"'
        if problem.status == 405:
            headers["allow"] = ", ".join(allowed_methods(path))
        if exchange.cut or problem.status in (413, 415):
            headers["connection"] = "close"  # the rest of the body is not read
        if exchange.page and wants_html(exchange.headers):
            page = self.pages.problem(problem, exchange, path)
            return Response(page.content, page.status, headers, page.media)
        content = json.dumps(problem.to_json(exchange.id)).encode()
        return Response(content, problem.status, headers, PROBLEM)

    # Operations; each takes the request that FastAPI routed and returns its answer.

    async def call(self, request: Request) -> Response:
        """Answer a call, or accept it as a job where it is large or is to be one."""
        exchange, caller = _exchange(request)
        assert exchange.operation is not None
        name = exchange.operation.call
        body: bytes | dict[str, Any] = exchange.body
        if name in FACTS:
            which = FACTS[name]
            value = _query(request).get(which, "")
            body = {which: value} if value else {}
        key = exchange.header(b"idempotency-key")
        prefer = exchange.header(b"prefer")
        deadline_s = wait_s(prefer)
        large = CALLS[name].size == "large"
        answers_jobs = 202 in exchange.operation.answers
        if answers_jobs and (large or wants_job(prefer)):
            return await self._submitted(request, name, body, key)
        try:
            answer = await _while_there(
                request, self.engine.call(name, body, caller, deadline_s, key)
            )
        except Problem as problem:
            if problem.code != "needs-job" or not answers_jobs:
                raise
            return await self._submitted(request, name, body, key)
        self.metrics.answered(name, answer, time.monotonic() - exchange.begun_s)
        return _answered(exchange, answer)

    async def _submitted(
        self, request: Request, name: str, body: bytes | dict[str, Any], key: str
    ) -> Response:
        exchange, caller = _exchange(request)
        return self._accepted(exchange, await self.engine.submit(name, body, caller, key))

    def _accepted(self, exchange: RestExchange, job: JobView) -> Response:
        exchange.fields["job_id"] = job.job_id
        location = f"{self.pages.root}/v1/jobs/{job.job_id}"
        headers = {"location": location, "cache-control": "no-store"}
        if not job.is_final:
            headers["retry-after"] = "1"
        if wants_job(exchange.header(b"prefer")):
            headers["preference-applied"] = "respond-async"
        return _json(job.to_json(), 202, headers)

    async def submit_job(self, request: Request) -> Response:
        """Accept a job."""
        exchange, caller = _exchange(request)
        key = exchange.header(b"idempotency-key")
        return self._accepted(exchange, await self.engine.submit_body(exchange.body, caller, key))

    async def list_jobs(self, request: Request) -> Response:
        """Return a page of the caller's jobs."""
        _, caller = _exchange(request)
        query = _query(request)
        state = query.get("state", "")
        if state and state not in State.__members__:
            raise malformed("state", f"state: one of {', '.join(State)}")
        jobs, cursor = await self.engine.list_jobs(
            caller, query.get("cursor", ""), State(state) if state else None, _limit(query, 50)
        )
        content = {"jobs": [job.to_json() for job in jobs], "next_cursor": cursor}
        return _json(content, 200, {"cache-control": "no-store"})

    async def get_job(self, request: Request) -> Response:
        """Return a job."""
        return _job(await self.engine.get_job(*_job_of(request)))

    async def cancel_job(self, request: Request) -> Response:
        """Cancel a job."""
        return _job(await self.engine.cancel(*_job_of(request)))

    async def result(self, request: Request) -> Response:
        """Return the answer of a job, or a page of it."""
        exchange, _ = _exchange(request)
        job_id, caller = _job_of(request)
        query = _query(request)
        so_far = _flag(query, "so_far")
        if so_far or "limit" in query or "cursor" in query:
            answer = await self.engine.result_page(
                job_id, caller, query.get("cursor", ""), _limit(query, 100), so_far
            )
        else:
            answer = await self.engine.result(job_id, caller)
        return _answered(exchange, answer)

    async def watch(self, request: Request) -> Response:
        """Stream the events of a job."""
        exchange, _ = _exchange(request)
        job_id, caller = _job_of(request)
        last = exchange.header(b"last-event-id") or "0"
        if not last.isascii() or not last.isdigit() or len(last) > 9:
            raise malformed("Last-Event-ID", f"Last-Event-ID: {last[:40]!r} is no number")
        after = int(last)
        job = await self.engine.get_job(job_id, caller)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if job.is_final and after >= job.n_events:
            return Response(None, 204, headers)  # tells a browser not to come back
        # The first event, or a refusal, before there is a status.
        events = self.engine.watch(job_id, caller, after)
        first = await _next(events)
        return StreamingResponse(_sse(events, first, exchange.id), 200, headers, SSE)

    async def version(self, request: Request) -> Response:
        """Return what answers."""
        return _json({"version": planner.__version__, "api": "v1", "calls": list(CALLS)})

    async def metrics_text(self, request: Request) -> Response:
        """Return the metrics."""
        return Response(self.metrics.text(), 200, {"cache-control": "no-store"}, CONTENT_TYPE)

    async def livez(self, request: Request) -> Response:
        """Say that the process answers."""
        return Response(b"ok\n", 200, {"cache-control": "no-store"}, "text/plain")

    async def readyz(self, request: Request) -> Response:
        """Say whether questions would be answered."""
        if self.engine.is_draining:
            await self.engine.ready()
        if time.monotonic() - self._ready[0] > READY_S:
            if self._asking is None:  # one question to the store, however many ask
                self._asking = asyncio.create_task(self._ask_ready())
            await asyncio.shield(self._asking)
        if self._ready[1] is not None:
            raise self._ready[1]
        return Response(b"ready\n", 200, {"cache-control": "no-store"}, "text/plain")

    async def _ask_ready(self) -> None:
        problem = None
        try:
            await self.engine.ready()
        except Problem as found:
            problem = found
        finally:
            self._asking = None
        self._ready = (time.monotonic(), problem)

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document."""
        return _answered(request.scope["planner"], _openapi_answer())


@cache
def _openapi_answer() -> CallAnswer:
    payload = openapi.openapi_text().encode()
    return CallAnswer(200, payload, hashlib.sha256(payload).hexdigest(), True, True)


def _guarded(function: Callable[[Request], Awaitable[Response]]) -> Any:
    """Return an endpoint whose defects do not reach the framework, which would answer in HTML."""

    async def endpoint(request: Request) -> Response:
        try:
            return await function(request)
        except Problem:
            raise
        except RestCallerLeft:
            return Response(None, CLIENT_LEFT)
        except Exception as error:
            log.exception("a defect while answering")
            raise _defect(error) from None

    return endpoint


def _defect(error: Exception) -> Problem:
    detail = f"{type(error).__name__}: please report it with the request id"
    return refused("defect", detail, 500)


def _routes(rest: Rest) -> FastAPI:
    """Return the routes of all operations."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    functions = {
        "submitJob": rest.submit_job,
        "listJobs": rest.list_jobs,
        "getJob": rest.get_job,
        "cancelJob": rest.cancel_job,
        "watchJob": rest.watch,
        "getResult": rest.result,
        "getVersion": rest.version,
        "getMetrics": rest.metrics_text,
        "isAlive": rest.livez,
        "isReady": rest.readyz,
        "getOpenapi": rest.openapi,
    }
    for each in sorted(OPERATIONS, key=lambda each: ":" not in each.path):
        function = rest.call if each.call else functions[each.id]
        function = _guarded(function)
        methods: list[str] = ["GET", "HEAD"] if each.method == "GET" else ["POST"]
        app.add_api_route(each.path, function, methods=methods, response_model=None)

    async def problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        exchange: RestExchange = request.scope["planner"]
        exchange.fields["code"] = error.code
        return rest._problem(error, exchange, request.scope["path"])

    async def unrouted(request: Request, error: Exception) -> Response:
        return await problem(request, no_such_path(request.scope["method"], request.scope["path"]))

    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(HTTPException, unrouted)
    return app


async def _no_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1003})
        return
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


def _exchange(request: Request) -> tuple[RestExchange, Caller]:
    exchange: RestExchange = request.scope["planner"]
    assert exchange.caller is not None
    return exchange, exchange.caller


def _job_of(request: Request) -> tuple[str, Caller]:
    exchange, caller = _exchange(request)
    exchange.fields["job_id"] = request.path_params["job_id"][:64]
    return request.path_params["job_id"], caller


def _query(request: Request) -> dict[str, str]:
    """Return the parameters of a query, each once; `Problem` 400."""
    raw: bytes = request.scope.get("query_string", b"")
    try:
        result = parse_qs(
            raw.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="strict"
        )
    except ValueError:
        raise refused("malformed", "the query of the address cannot be read", 400) from None
    for name, values in result.items():
        if len(values) > 1:
            raise refused("malformed", f"the parameter {name[:40]!r} stands twice", 400)
    return {name: values[0] for name, values in result.items()}


def _flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in ("true", "false"):
        raise malformed(name, f"{name}: {value[:40]!r} is neither true nor false")
    return value == "true"


def _limit(query: Mapping[str, str], default: int) -> int:
    value = query.get("limit", str(default))
    if not (value.isascii() and value.isdigit() and 1 <= len(value) <= 4) or not (
        1 <= int(value) <= 1_000
    ):
        raise malformed("limit", f"limit: {value[:40]!r} is no number from 1 to 1000")
    return int(value)


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(content).encode(), status, dict(headers or {}), JSON)


def _job(job: JobView) -> Response:
    headers = {"cache-control": "no-store"}
    if not job.is_final:
        headers["retry-after"] = "1"
    return _json(job.to_json(), 200, headers)


def _answered(exchange: RestExchange, answer: CallAnswer) -> Response:
    headers = {"cache-control": "private, no-cache"}
    if answer.etag:
        headers["etag"] = f'"{answer.etag}"'
    headers["cache-status"] = "planner; hit" if answer.cached else "planner; fwd=miss"
    if wait_s(exchange.header(b"prefer")) is not None:
        headers["preference-applied"] = "wait"
    if rest_knows(exchange.header(b"if-none-match"), answer.etag):
        return Response(None, 304, headers)
    return Response(answer.payload, answer.status, headers, JSON)


async def _while_there(request: Request, work: Awaitable[Found]) -> Found:
    """Return what some work returns; it is cancelled when the caller leaves."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        while not task.done():
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not task.done():
                if gone.result()["type"] == "http.disconnect":
                    raise RestCallerLeft
                gone = asyncio.ensure_future(request.receive())  # the empty body of a GET
        return task.result()
    finally:
        for each in (task, gone):
            if not each.done():
                each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _next(events: AsyncIterator[Event]) -> Event | None:
    async for event in events:
        return event
    return None


async def _sse(
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
            except Problem as problem:
                text = json.dumps(problem.to_json(request_id))
                yield f"event: problem\ndata: {text}\n\n".encode()
                return
    finally:
        if waiting is not None and not waiting.done():
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError, Problem):
                await waiting
        if hasattr(events, "aclose"):
            await events.aclose()
