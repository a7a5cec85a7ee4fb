"""What carries messages: stdin and stdout of a process, or streamable HTTP."""

import asyncio
import contextlib
import math
import secrets
import signal
from collections.abc import Callable
from functools import partial

import anyio
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access.admission import Rates
from service.access.auth import Auth, is_loopback
from service.access.caller import Caller, caller_fields
from service.access.connection_bounds import ConnectionLimits
from service.agents.results import Results
from service.agents.server import make_server
from service.agents.tool import Desk
from service.handlers.problems import Refusal, refused
from service.handlers.running_call import RunningCall
from service.http.bound_socket import listening
from service.http.server import HttpServer, bound_server
from service.settings.callers import Callers
from service.settings.certificates import Certificates, check_tls
from service.settings.serving import Serving
from service.telemetry.audit import AuditLog, outcome_of
from service.telemetry.connection_tally import ConnectionTally

PATH = "/mcp"
KNOWN_S = 5.0
"""Time between two looks whether the token of an open stream is still known."""


def serve_stdio(time_limit_s: float) -> None:
    """Answer one client over stdin and stdout until it goes; files of this machine are read."""
    desk = Desk(Results(shares_cache=True), True, RunningCall(time_limit_s=time_limit_s))
    anyio.run(partial(_stdio, desk))


async def _stdio(desk: Desk) -> None:
    server = make_server(desk)
    async with stdio_server() as (receive, send):
        await server.run(receive, send, server.create_initialization_options())


def serve_http(serving: Serving, time_limit_s: float) -> None:
    """Listen at `/mcp` until a signal; no file is read. `UsageError` for an open address.

    Tokens, groups, TLS and bounds of connections are those of `planner serve`.
    """
    asyncio.run(serve_http_forever(serving, time_limit_s))


async def serve_http_forever(
    serving: Serving,
    time_limit_s: float,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reads files again. `ready` is told the address."""
    audit = AuditLog(serving.audit_log)
    callers = Callers(serving, audit.note)
    callers.auth.audit = audit
    check_tls(serving)
    certificates = Certificates(serving)
    listener = listening(serving)
    app = http_app(callers.auth, serving, time_limit_s)
    limits = ConnectionLimits(serving.limits.connections, serving.limits.connections_per_address)
    tally = ConnectionTally("mcp")
    server = bound_server(app, limits, tally, certificates, lifespan="on")

    def reread() -> None:
        certificates.read_again()
        audit.reopen()
        callers.read_again()

    _on_signals(server, reread)
    fresh = asyncio.create_task(callers.keep_fresh())
    running = asyncio.create_task(server.serve([listener]))
    try:
        while not (server.started or running.done()):
            await asyncio.sleep(0.01)
        port = listener.getsockname()[1]
        audit.note("started", host=serving.host, port=port, transport="mcp")
        ready(f"{serving.scheme}://{serving.host}:{port}{PATH}")
        await running
    finally:
        fresh.cancel()
        callers.close()
        listener.close()
        audit.note("stopped", transport="mcp")
        audit.close()


def _on_signals(server: HttpServer, reread: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.force_exit, server.should_exit = server.should_exit, True

    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not this thread's
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGHUP, reread)


def http_app(auth: Auth, serving: Serving, time_limit_s: float) -> ASGIApp:
    """Return the application: the server of the protocol behind a check of tokens.

    At a loopback address requests that name another host are refused, as are those of pages of
    other origins: a page in a browser cannot reach it by a name of its own.
    """
    host = serving.host
    desk = Desk(Results(shares_cache=False), False, RunningCall(time_limit_s=time_limit_s))
    names = dict.fromkeys(("127.0.0.1", "localhost", "[::1]", host))
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=is_loopback(host),
        allowed_hosts=[f"{name}:*" for name in names],
        allowed_origins=[f"{serving.scheme}://{name}:*" for name in names],
    )
    app = make_server(desk).streamable_http_app(
        streamable_http_path=PATH, host=host, transport_security=security
    )
    limits = serving.limits
    return TokenGate(app, auth, Rates(limits.requests_per_s, limits.burst))


class TokenGate:
    """Lets callers in whose token may price plans; without tokens everybody."""

    def __init__(self, app: ASGIApp, auth: Auth, rates: Rates) -> None:
        """Stand before an application."""
        self._app, self._auth, self._rates = app, auth, rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401, 403 or 429."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        id, status, caller, code = secrets.token_hex(8), 499, None, ""

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                message["headers"] = [*headers, (b"x-request-id", id.encode())]
            await send(message)

        try:
            caller = await self._caller(scope)
            self._check(caller)
        except Refusal as problem:
            code = problem.code
            await _refusing(problem, id)(scope, receive, counted)
        else:
            await self._while_known(caller, scope, receive, counted)
        finally:
            self._audited(caller, scope, id, status, code)

    async def _caller(self, scope: Scope) -> Caller:
        address = scope["client"][0] if scope.get("client") else ""
        sent = Headers(scope=scope).getlist("authorization")
        if len(sent) > 1:
            raise refused("malformed", "the header Authorization stands twice", 400)
        return await self._auth.identified(sent[0] if sent else None, address)

    def _check(self, caller: Caller) -> None:
        if caller.role == "read":
            detail = "the role read prices no plans: another token"
            raise Refusal(403, "forbidden", "the role does not allow it", detail)
        self._rates.take(caller.name)

    async def _while_known(
        self, caller: Caller, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Pass a request on; its stream ends where the caller's token goes first."""
        working = asyncio.ensure_future(self._app(scope, receive, send))
        try:
            while not (await asyncio.wait({working}, timeout=KNOWN_S))[0]:
                if not await caller.is_known():
                    return
            working.result()
        finally:
            if not working.done():
                working.cancel()
                await asyncio.wait({working})

    def _audited(
        self, caller: Caller | None, scope: Scope, id: str, status: int, code: str
    ) -> None:
        self._auth.audit.note(
            "request",
            transport="mcp",
            operation="mcp",
            request=f"{scope['method'][:20]} {scope['path']}",
            **caller_fields(caller),
            address=scope["client"][0] if scope.get("client") else "",
            outcome=outcome_of(status),
            status=status,
            code=code,
            request_id=id,
        )


def _refusing(problem: Refusal, id: str) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    if problem.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(problem.retry_after_s)))
    return JSONResponse(problem.to_json(id), problem.status, headers)
