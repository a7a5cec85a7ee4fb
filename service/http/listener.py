"""The listening socket of HTTP: takes connections, bounded from the first packet on.

asyncio's own servers hold TLS handshakes that nobody has counted, and one context of TLS for as
long as they live. Here a handshake has a place among the connections, and certificates may change.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from service.access.connection_bounds import ConnectionBounds
from service.http.connections import Connection

log = logging.getLogger("planner.service")

HANDSHAKE_S = 10.0
"""How long a handshake of TLS may take."""
BACKLOG = 4_096
"""Connections that the system holds until they are taken."""
AT_ONCE = 64
"""Connections taken before others have their turn."""
FULL_S = 0.1
"""Pause where the system has no place for another connection."""


class Handshake:
    """A connection whose handshake of TLS goes on."""

    task: "asyncio.Task[None] | None" = None

    def end_idle(self) -> None:
        """End it, because others need its place."""
        if self.task is not None:
            self.task.cancel()


class Listener:
    """Takes the connections of one socket; `tls` returns the context of the next one."""

    def __init__(
        self,
        listening: socket.socket,
        factory: Callable[[], Connection],
        bounds: ConnectionBounds,
        tls: Callable[[], ssl.SSLContext | None],
    ) -> None:
        self._socket, self._factory = listening, factory
        self._bounds, self._tls = bounds, tls
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None
        self._is_open = True
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Take no more connections; those that are there go on."""
        if not self._is_open:
            return
        self._is_open = False
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    async def wait_closed(self) -> None:
        """Wait for handshakes that go on."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("no connection can be taken for now: %s", error.strerror)
                self._loop.remove_reader(self._socket)
                self._paused = self._loop.call_later(FULL_S, self._resume)
                return
            connection.setblocking(False)
            self._take(connection, str(address[0]))

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._socket, self._accept)

    def _take(self, connection: socket.socket, address: str) -> None:
        context = self._tls()
        handshake = None
        if context is not None:
            handshake = Handshake()
            if not self._bounds.admit(handshake, address):
                connection.close()
                return
        task = self._loop.create_task(self._connected(connection, context, handshake))
        if handshake is not None:
            handshake.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(
        self,
        connection: socket.socket,
        context: ssl.SSLContext | None,
        handshake: Handshake | None,
    ) -> None:
        protocol = self._factory()
        protocol.handshake = handshake
        limit_s = HANDSHAKE_S if context is not None else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=context, ssl_handshake_timeout=limit_s
            )
        except (OSError, asyncio.CancelledError):  # so are faults of TLS
            connection.close()
        finally:
            if handshake is not None:
                self._bounds.forget(handshake)
