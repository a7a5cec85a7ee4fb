"""The REST transport: an ASGI application over the engine.

    request -> Rest: host, token, media type, body within its limits -> memory: answered unparsed
            -> Starlette routes of `service.rest.operations.OPERATIONS` -> `endpoints` -> engine

The gate is plain ASGI, so that a repeated question costs a hash of its body and two sends. What is
refused is `application/problem+json`, also by the router; a defect says so and is logged with its
trace, which no caller sees.
"""

import json
import logging
import math
import time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.access.auth import Auth
from service.access.caller import CallerLeft, caller_fields
from service.engine import Engine
from service.handlers.limits import DEFAULTS, RequestLimits
from service.handlers.problems import Refusal, refused
from service.http.bodies import BodyReader, drain
from service.http.exchange import (
    PROBLEM,
    HttpExchange,
    Message,
    Receive,
    Scope,
    Send,
    request_id,
    wait_s,
    wants_job,
)
from service.pages.gate import SECURITY as PAGE_SECURITY
from service.pages.gate import Pages, wants_html
from service.rest.deprecation import DEPRECATED
from service.rest.endpoints import CLIENT_LEFT, Endpoints, defect
from service.rest.known_answers import LARGE, KnownAnswers, memory_reply
from service.rest.operations import (
    CALL_OF_PATH,
    OPERATIONS,
    allowed_methods,
    is_operation_path,
    no_such_path,
    operation_of,
)
from service.rest.responses import check_headers
from service.settings.serving import PublicAddress, is_own_name
from service.telemetry import logs
from service.telemetry.audit import outcome_of
from service.telemetry.metrics import Metrics
from service.telemetry.tracing import server_span

log = logging.getLogger("planner.service")

SECURITY = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)
HSTS = (b"strict-transport-security", b"max-age=31536000")


class Rest:
    """The ASGI application: the gate, with pages and the routes of Starlette behind it."""

    tracer: Any = None
    """Of OpenTelemetry, where one is configured."""

    def __init__(
        self,
        engine: Engine,
        auth: Auth | None = None,
        settings: RequestLimits = DEFAULTS,
        address: PublicAddress = PublicAddress(),
        metrics: Metrics | None = None,
    ) -> None:
        """Prepare an application over an engine that somebody else starts and closes."""
        self.engine = engine
        self.auth = auth or Auth()
        self.metrics = metrics or Metrics(engine)
        self._only_hosts = address.only_hosts
        hsts = (HSTS,) if address.tls else ()
        self._common, self._of_pages = (*SECURITY, *hsts), (*PAGE_SECURITY, *hsts)
        self._deprecations = {
            key: each.headers(address.root_path) for key, each in DEPRECATED.items()
        }
        self._bodies = BodyReader(settings)
        self.pages = Pages(engine, self.auth, settings, self._bodies, address)
        self.known = KnownAnswers(engine, self.auth, self.metrics, address, self._common)
        """Answers what came at once and is in memory, before the application is asked."""
        self._routes = self._router(Endpoints(engine, self.metrics, address.root_path))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await _no_websocket(scope, receive, send)
        scope = self.pages.unprefixed(scope)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        method, path = scope["method"], scope["path"]
        id = request_id(headers)
        operation = operation_of("GET" if method == "HEAD" else method, path)
        exchange = HttpExchange(id, headers, time.monotonic(), operation)
        exchange.page = (
            operation is None and self.pages.shows(path, headers) and not is_operation_path(path)
        )
        client = scope.get("client")
        exchange.address = client[0] if client else ""
        token = logs.REQUEST.set(id)
        try:
            if self.tracer is None:
                await self._served(exchange, scope, receive, send)
            else:
                await self._traced(exchange, scope, receive, send)
        finally:
            self._noted(exchange, method, path)
            logs.REQUEST.reset(token)

    async def _traced(
        self, exchange: HttpExchange, scope: Scope, receive: Receive, send: Send
    ) -> None:
        name = exchange.operation.id if exchange.operation else "unknown"
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in exchange.headers.items()}
        with server_span(self.tracer, name, headers) as span:
            await self._served(exchange, scope, receive, send)
            span.set_attribute("http.request.method", scope["method"])
            span.set_attribute("http.response.status_code", exchange.status)
            span.set_attribute("planner.request_id", exchange.id)

    async def _served(
        self, exchange: HttpExchange, scope: Scope, receive: Receive, send: Send
    ) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    *(self._of_pages if exchange.page else self._common),
                    (b"x-request-id", exchange.id.encode()),
                ]
                if exchange.operation is not None:
                    key = exchange.operation.id, exchange.status
                    message["headers"] += self._deprecations.get(key, ())
                if self.engine.is_draining:  # the next request goes to another process
                    message["headers"].append((b"connection", b"close"))
            else:
                exchange.n_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._admitted(exchange, scope, receive, counted)
        except Refusal as problem:
            await self._refuse(exchange, problem, scope, receive, counted)
        except CallerLeft:
            exchange.fields["code"] = "caller-left"
        except Exception as error:
            log.exception("a defect while answering")
            if exchange.status:
                raise  # half an answer is out: the connection must end
            await self._refuse(exchange, defect(error), scope, receive, counted)

    async def _refuse(
        self, exchange: HttpExchange, problem: Refusal, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if exchange.status:
            log.warning("refused after the answer had begun: %s", problem.detail)
            return
        exchange.fields["code"] = problem.code
        response = self._problem(problem, exchange, scope["path"])
        if not exchange.cut or scope["method"] != "POST" or exchange.header(b"expect"):
            return await response(scope, receive, send)

        async def send_and_drain(message: Message) -> None:
            if message["type"] != "http.response.body":
                return await send(message)
            await send({**message, "more_body": True})
            await drain(receive)
            await send({"type": "http.response.body", "body": b""})

        await response(scope, receive, send_and_drain)

    async def _admitted(
        self, exchange: HttpExchange, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer from memory, or let the request through to the routes."""
        operation = exchange.operation
        method, path = scope["method"], scope["path"]
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            # A proxy may have looked at the other one (RFC 9112, 3.2).
            raise refused("malformed", "the header Host stands twice", 400)
        if sum(name == b"authorization" for name, _ in scope["headers"]) > 1:
            raise refused("malformed", "the header Authorization stands twice", 400)
        self._check_browser(exchange, method)
        if exchange.page:
            return await self.pages.answer(exchange, scope, receive, send)
        if operation is None or operation.role:
            exchange.caller = await self.auth.identified(
                exchange.headers.get(b"authorization"),
                exchange.address,
                exchange.optional_header(b"planner-priority"),
            )
        if operation is None:
            raise no_such_path(method, path)
        check_headers(operation, exchange.headers)
        if method == "POST":
            exchange.body = await self._bodies.read(exchange, receive)
            call = CALL_OF_PATH.get(path)
            is_waited = call and (call not in LARGE or wait_s(exchange.header(b"prefer")))
            if call and is_waited and await self._from_memory(exchange, call, send):
                return
        scope["planner"] = exchange
        await self._routes(scope, receive, send)

    def _check_browser(self, exchange: HttpExchange, method: str) -> None:
        """Refuse what a page of somebody else makes a browser send."""
        host = exchange.header(b"host")
        if self._only_hosts is not None and not is_own_name(host, self._only_hosts):
            detail = f"Host: {host[:60]!r} is none of {', '.join(sorted(self._only_hosts))}"
            raise Refusal(421, "wrong-host", "this service is not called so", detail)
        origin = exchange.header(b"origin")
        if origin and method not in ("GET", "HEAD") and origin.partition("://")[2] != host:
            detail = f"Origin: {origin[:60]!r} is not this service"
            raise Refusal(403, "cross-origin", "pages of other origins may not ask", detail)

    async def _from_memory(self, exchange: HttpExchange, call: str, send: Send) -> bool:
        """Answer a question whose very bytes were answered before; tell whether that was so."""
        headers = exchange.headers
        if b"idempotency-key" in headers or wants_job(exchange.header(b"prefer")):
            return False
        assert exchange.caller is not None
        answer = self.engine.cached(call, exchange.body, exchange.caller)
        if answer is None:
            return False
        exchange.fast = True
        status, out, payload = memory_reply(answer, exchange.header(b"if-none-match"))
        await send({"type": "http.response.start", "status": status, "headers": out})
        await send({"type": "http.response.body", "body": payload})
        self.metrics.answered(call, answer, time.monotonic() - exchange.begun_s)
        return True

    def _noted(self, exchange: HttpExchange, method: str, path: str) -> None:
        """Count and log a request that is over."""
        operation = exchange.operation
        status = exchange.status or CLIENT_LEFT
        name = operation.id if operation else "page" if exchange.page else "unknown"
        self.metrics.request("rest", name, status)
        if self.auth.audit.is_on and not (operation is not None and not operation.role):
            self._audited(exchange, name, status, f"{method[:20]} {path}")
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

    def _audited(self, exchange: HttpExchange, name: str, status: int, what: str) -> None:
        """Write who asked for what, and what came of it."""
        if exchange.page and exchange.caller is None and status < 400:
            return  # what everybody may see: the sign-in, styles
        self.auth.audit.note(
            "request",
            transport="page" if exchange.page else "rest",
            operation=name,
            request=what,
            **caller_fields(exchange.caller),
            address=exchange.address,
            outcome=outcome_of(status),
            status=status,
            code=exchange.fields.get("code"),
            request_id=exchange.id,
            job_id=exchange.fields.get("job_id"),
        )

    def _problem(self, problem: Refusal, exchange: HttpExchange, path: str) -> Response:
        headers = {"cache-control": "no-store"}
        if problem.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(problem.retry_after_s)))
        if problem.status == 401:
            headers["www-authenticate"] = 'Bearer realm="planner"'
        if problem.status == 405:
            headers["allow"] = ", ".join(allowed_methods(path))
        if exchange.cut:
            headers["connection"] = "close"  # the rest of the body is not read
        if exchange.page and wants_html(exchange.headers):
            page = self.pages.problem(problem, exchange, path)
            return Response(page.content, page.status, headers, page.media)
        content = json.dumps(problem.to_json(exchange.id)).encode()
        return Response(content, problem.status, headers, PROBLEM)

    def _router(self, endpoints: Endpoints) -> Starlette:
        """Return the routes of all operations."""

        async def refused_by_endpoint(request: Request, error: Exception) -> Response:
            assert isinstance(error, Refusal)
            exchange: HttpExchange = request.scope["planner"]
            exchange.fields["code"] = error.code
            return self._problem(error, exchange, request.scope["path"])

        async def unrouted(request: Request, error: Exception) -> Response:
            problem = no_such_path(request.scope["method"], request.scope["path"])
            return await refused_by_endpoint(request, problem)

        routes = [
            Route(each.path, endpoints.of(each), methods=[each.method])
            for each in sorted(OPERATIONS, key=lambda each: ":" not in each.path)
        ]
        app = Starlette(
            routes=routes,
            exception_handlers={Refusal: refused_by_endpoint, HTTPException: unrouted},
        )
        app.router.redirect_slashes = False
        return app


async def _no_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1003})
        return
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})
