"""An HTTP server with a listener of ours: renewable certificates, bounds of connections."""

import contextlib
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Literal

import uvicorn

from service.access.connection_bounds import ConnectionLimits
from service.http.connections import Connection, KnownReplies, connection_class
from service.http.listener import Listener
from service.settings.certificates import Certificates
from service.telemetry.connection_tally import ConnectionTally

KEEP_ALIVE_S = 30
LAST_ANSWERS_S = 5
"""How long answers may still be sent once nothing new is accepted."""


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
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            self.should_exit = True
            return
        kind: Any = self.config.http_protocol_class

        def connection() -> Connection:
            made: Connection = kind(self.config, self.server_state, self.lifespan.state)
            return made

        listeners: Any = [Listener(each, connection, kind.bounds, self.tls) for each in sockets]
        self.servers = listeners
        self.started = True


def bound_server(
    app: Any,
    limits: ConnectionLimits,
    tally: ConnectionTally,
    certificates: Certificates | None,
    lifespan: Literal["on", "off"] = "off",
    known: KnownReplies | None = None,
) -> HttpServer:
    """Return the server of an application, with bounds of its own.

    `lifespan` tells whether the application is told when it starts and stops; `known` answers
    before the application what it knows.
    """
    config = uvicorn.Config(
        app,
        http=connection_class(limits, tally, known),
        lifespan=lifespan,
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
