"""What carries messages: stdin and stdout of a process, or streamable HTTP."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import uvicorn
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service.access.auth import Auth, check_exposure, is_loopback, tokens_of
from service.agents.results import Results
from service.agents.server import make_server
from service.agents.tool import Desk
from service.handlers.problems import Refusal, refused
from service.handlers.running_call import RunningCall
from service.http.bound_socket import listening
from service.settings.serving import Serving

PATH = "/mcp"


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Where the server listens, and who may call."""

    host: str
    port: int
    token_file: Path | None
    is_insecure: bool


def serve_stdio(time_limit_s: float) -> None:
    """Answer one client over stdin and stdout until it goes; files of this machine are read."""
    desk = Desk(Results(shares_cache=True), True, RunningCall(time_limit_s=time_limit_s))
    anyio.run(partial(_stdio, desk))


async def _stdio(desk: Desk) -> None:
    server = make_server(desk)
    async with stdio_server() as (receive, send):
        await server.run(receive, send, server.create_initialization_options())


def serve_http(settings: HttpSettings, time_limit_s: float) -> None:
    """Listen at `/mcp` until it is ended; no file is read. `UsageError` for an open address."""
    tokens = tokens_of(settings.token_file) if settings.token_file else ()
    check_exposure(settings.host, bool(tokens), settings.is_insecure)
    app = http_app(Auth(tokens), settings.host, time_limit_s)
    listener = listening(Serving(host=settings.host, port=settings.port))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            access_log=False,
            timeout_keep_alive=30,
            proxy_headers=False,  # what a caller says of its address is not believed
        )
    )
    server.run(sockets=[listener])


def http_app(auth: Auth, host: str, time_limit_s: float) -> ASGIApp:
    """Return the application: the server of the protocol behind a check of tokens.

    At a loopback address requests that name another host are refused, as are those of pages of
    other origins: a page in a browser cannot reach it by a name of its own.
    """
    desk = Desk(Results(shares_cache=False), False, RunningCall(time_limit_s=time_limit_s))
    names = dict.fromkeys(("127.0.0.1", "localhost", "[::1]", host))
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=is_loopback(host),
        allowed_hosts=[f"{name}:*" for name in names],
        allowed_origins=[f"http://{name}:*" for name in names],
    )
    app = make_server(desk).streamable_http_app(
        streamable_http_path=PATH, host=host, transport_security=security
    )
    return TokenGate(app, auth)


class TokenGate:
    """Lets callers in whose token may price plans; without tokens everybody."""

    def __init__(self, app: ASGIApp, auth: Auth) -> None:
        """Stand before an application."""
        self._app, self._auth = app, auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401 or 403."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
        if refusal.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(refusal.retry_after_s)))
        answer = JSONResponse(refusal.to_json(), refusal.status, headers)
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        address = scope["client"][0] if scope.get("client") else ""
        sent = Headers(scope=scope).getlist("authorization")
        if len(sent) > 1:
            return refused("malformed", "the header Authorization stands twice", 400)
        try:
            caller = self._auth.caller(sent[0] if sent else None, address)
        except Refusal as refusal:
            return refusal
        if caller.role == "read":
            detail = "the role read prices no plans: another token"
            return Refusal(403, "forbidden", "the role does not allow it", detail)
        return None
