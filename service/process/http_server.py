"""The HTTP servers of one process: that of questions, and a small one for probes alone."""

import contextlib
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.responses import PlainTextResponse

from service.access.connection_bounds import ConnectionLimits
from service.http.connections import Connection, connection_class
from service.http.exchange import Receive, Scope, Send
from service.http.listener import Listener
from service.rest.application import Rest
from service.settings.certificates import Certificates
from service.settings.serving import Serving

KEEP_ALIVE_S = 30
LAST_ANSWERS_S = 5
"""How long answers may still be sent once the engine is closed."""
PROBES = ConnectionLimits(total=64, per_address=32)
"""Connections of the listener for probes."""
PROBE_PATHS = ("/livez", "/readyz")


class HttpServer(uvicorn.Server):
    """The HTTP server with a listener of ours, and without signal handlers of its own.

    The service drains first.
    """

    tls: Callable[[], ssl.SSLContext | None] = staticmethod(lambda: None)
    """Returns the context of the next connection."""

    @staticmethod
    def _nothing() -> Iterator[None]:
        yield

    def capture_signals(self) -> Any:
        """Leave the signals alone."""
        return contextlib.contextmanager(self._nothing)()

    async def startup(self, sockets: Any = None) -> None:
        """Listen at sockets."""
        kind: Any = self.config.http_protocol_class

        def connection() -> Connection:
            made: Connection = kind(self.config, self.server_state, {})
            return made

        listeners: Any = [Listener(each, connection, kind.bounds, self.tls) for each in sockets]
        self.servers = listeners
        self.started = True


def _server(app: Any, kind: type[Connection], certificates: Certificates | None) -> HttpServer:
    config = uvicorn.Config(
        app,
        http=kind,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the address of a caller is that of the connection
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_ANSWERS_S,
    )
    server = HttpServer(config)
    if certificates is not None:
        server.tls = certificates.context
    return server


def http_server(
    rest: Rest, serving: Serving, certificates: Certificates | None = None
) -> HttpServer:
    """Return the HTTP server of an application; its certificates are read where none are given."""
    limits = ConnectionLimits(serving.limits.connections, serving.limits.connections_per_address)
    known = rest.known if rest.tracer is None else None
    kind = connection_class(limits, rest.metrics.tally("rest"), known)
    return _server(rest, kind, certificates or Certificates(serving))


def probe_server(rest: Rest, serving: Serving, certificates: Certificates) -> HttpServer:
    """Return the server of probes: with few connections, which those of callers never fill."""
    prefix = serving.root_path
    text = "this listener answers " + " and ".join(PROBE_PATHS) + " alone\n"
    not_found = PlainTextResponse(text, 404)

    async def probes(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].removeprefix(prefix) in PROBE_PATHS:
            return await rest(scope, receive, send)
        await not_found(scope, receive, send)

    return _server(probes, connection_class(PROBES, rest.metrics.tally("probes")), certificates)
