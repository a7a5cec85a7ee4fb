"""Connections of the HTTP server: how many there are, and how slow and how large one may be.

The server bounds no connection by itself: one that sends its headers byte by byte, or reads no
answer, would be held for ever, and headers without an end would fill the memory. What is refused
here is a problem document like any other.
"""

import asyncio
import json
import logging
import secrets
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.access.connection_bounds import (
    ConnectionBounds,
    ConnectionLimits,
    OpenConnection,
)
from service.handlers.limits import DEFAULTS
from service.handlers.problems import Refusal
from service.http.exchange import PROBLEM, Header
from service.telemetry.connection_tally import ConnectionTally

log = logging.getLogger("planner.service")

HEAD_S = 10.0
"""How long the headers of a request may take, from its first byte, or from the connection on."""
HEAD_BYTES = 65_536
"""Most bytes of the first line and the headers of a request."""
MOST_HEADERS = 128
"""Most headers of a request: browsers and proxies send some thirty."""
STALLED_S = 30.0
"""How long a caller may read nothing of an answer that is sent."""
HELD_BYTES = 65_536
"""Most bytes of a body that is looked up before the application is told of the request."""
HELD_S = 0.02
"""How long the application is not told of a request whose body may be looked up: most clients send
headers and body one right after the other."""
REFUSED_FACTOR = 2
"""Connections that are still answered, with a refusal, as a multiple of those that are served."""


class KnownReplies(Protocol):
    """What knows the answers to some requests."""

    def takes(self, target: bytes) -> bool:
        """Tell whether a POST to a target may be answered here."""

    def reply(
        self, target: bytes, headers: list[Header], body: bytes
    ) -> tuple[bytes, bytes, bytes] | None:
        """Return status line, headers and body of a response; None for the application's."""


def too_many_connections(maximum: int) -> Refusal:
    """Return the refusal of a request on a connection too many."""
    return Refusal(
        503,
        "too-many-connections",
        "the service has too many connections",
        f"{maximum} are open: use one for several requests, or come back",
        retry_after_s=1.0,
    )


def head_too_large() -> Refusal:
    """Return the refusal of endless headers."""
    return Refusal(
        431,
        "headers-too-large",
        "the headers are too large",
        f"the first line and the headers have more than {HEAD_BYTES:,} bytes",
    )


def too_many_headers() -> Refusal:
    """Return the refusal of many headers."""
    return Refusal(
        431,
        "headers-too-large",
        "there are too many headers",
        f"the request has more than {MOST_HEADERS} headers",
    )


def _document(problem: Refusal) -> tuple[str, bytes]:
    id = secrets.token_hex(8)
    return id, json.dumps(problem.to_json(id)).encode()


class Connection(HttpToolsProtocol):
    """One connection; `bounds` says whether there is a place for it."""

    bounds: ConnectionBounds
    maximum: int = DEFAULTS.connections
    """Connections that are served."""
    handshake: OpenConnection | None = None
    """Holds its place until it is made."""
    known: KnownReplies | None = None
    """Answers what came at once, where it knows the answer."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._head: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._stalled: asyncio.TimerHandle | None = None
        self._unsent = 0
        """Bytes that waited to be sent when the caller was last seen to stall."""
        self._held: bytearray | None = None
        """Body so far of a request that the application has not been told of."""
        self._own_app = self.app
        self._release_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or one too many that is told so."""
        super().connection_made(transport)
        if self.handshake is not None:
            self.bounds.forget(self.handshake)
        if not self.bounds.admit(self, self.client[0] if self.client else ""):
            self.app = self._refused
            if len(self.connections) > REFUSED_FACTOR * self.maximum:
                transport.abort()
        self._await_head()

    def end_idle(self) -> None:
        """End it, because others need its place."""
        if self._stalled is not None or self.scheme == "https":
            self.transport.abort()  # what it has to read would hold it for longer
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what was waited for."""
        self.bounds.forget(self)
        self._held = None
        for timer in (self._head, self._stalled, self._release_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if self.transport.is_closing():
            return
        between = self._held is None and (self.cycle is None or self.cycle.response_complete)
        if between and self._head is None:
            self._await_head()
        super().data_received(data)
        if self._held is not None and self._release_timer is None:
            self.bounds.set_busy(self)
            self._release_timer = self.loop.call_later(HELD_S, self._release)
        if self._head is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES and between and not self.transport.is_closing():
                self._refuse(head_too_large())

    def on_headers_complete(self) -> None:
        """Begin to answer a request whose headers are there."""
        if self._head is not None:
            self._head.cancel()
            self._head = None
        if len(self.url) + sum(len(k) + len(v) for k, v in self.headers) > HEAD_BYTES:
            self.app = self._refused_head
        elif len(self.headers) > MOST_HEADERS:
            self.app = self._refused_headers
        if self._may_be_known():
            self._held = bytearray()
            return
        self.bounds.set_busy(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        if self._held is None:
            return super().on_body(body)
        self._held += body
        if len(self._held) > HELD_BYTES:
            self._release()

    def on_message_complete(self) -> None:
        """Answer a request that came at once where its answer is known."""
        if self._held is None:
            return super().on_message_complete()
        assert self.known is not None
        try:
            reply = self.known.reply(self.url, self.headers, bytes(self._held))
        except Exception:
            log.exception("a defect while answering at once")
            reply = None
        if reply is None:
            self._release()
            if self.cycle is None:  # the connection ends
                return
            return super().on_message_complete()
        self._take_held()
        status_line, *rest = reply
        of_server = (b"%s: %s\r\n" % header for header in self.server_state.default_headers)
        self.transport.writelines((status_line, *of_server, *rest))
        self.bounds.renew(self)
        super().on_response_complete()

    def _may_be_known(self) -> bool:
        """Tell whether a request whose headers are there may be answered at once."""
        parser = self.parser
        return (
            self.known is not None
            and self.known.takes(self.url)
            and parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and not self.expect_100_continue
            and self.app is self._own_app
            and (self.cycle is None or self.cycle.response_complete)
            and not (self.flow.write_paused or self.transport.is_closing())
        )

    def _take_held(self) -> bytearray | None:
        """Return the body of the request that is held, which is held no more."""
        if self._release_timer is not None:
            self._release_timer.cancel()
            self._release_timer = None
        body, self._held = self._held, None
        return body

    def shutdown(self) -> None:
        """End it once what was asked is answered."""
        self._release()
        super().shutdown()

    def _release(self) -> None:
        """Tell the application of a request that was held."""
        body = self._take_held()
        if body is None or self.transport.is_closing():
            return
        self.bounds.set_busy(self)
        super().on_headers_complete()
        if body:
            super().on_body(bytes(body))

    def on_response_complete(self) -> None:
        """Wait for the next request, or answer one that waits."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self.bounds.set_idle(self)

    def pause_writing(self) -> None:
        """Wait for the caller to read, for a while."""
        super().pause_writing()
        self.bounds.set_idle(self)
        self._unsent = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(STALLED_S, self._check_stalled)

    def resume_writing(self) -> None:
        """Go on: the caller reads."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        if self.cycle is not None and not self.cycle.response_complete:
            self.bounds.set_busy(self)
        super().resume_writing()

    def _check_stalled(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent >= self._unsent:
            self.transport.abort()
            return
        self._unsent = unsent
        self._stalled = self.loop.call_later(STALLED_S, self._check_stalled)

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head = self.loop.call_later(HEAD_S, self._late)

    def _late(self) -> None:
        self._head = None
        if not self.transport.is_closing():
            self.transport.abort()

    def _refuse(self, problem: Refusal) -> None:
        """Answer what never became a request, and end the connection."""
        id, content = _document(problem)
        head = (
            f"HTTP/1.1 {problem.status} Refused\r\ncontent-type: {PROBLEM}\r\nx-request-id: {id}"
            f"\r\ncontent-length: {len(content)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + content)
        self.transport.close()

    async def _refused(self, scope: Any, receive: Any, send: Any) -> None:
        await _send(send, too_many_connections(self.maximum))

    async def _refused_headers(self, scope: Any, receive: Any, send: Any) -> None:
        await _send(send, too_many_headers())

    async def _refused_head(self, scope: Any, receive: Any, send: Any) -> None:
        await _send(send, head_too_large())


async def _send(send: Any, problem: Refusal) -> None:
    id, content = _document(problem)
    headers = [
        (b"content-type", PROBLEM.encode()),
        (b"content-length", b"%d" % len(content)),
        (b"x-request-id", id.encode()),
        (b"connection", b"close"),
    ]
    if problem.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % problem.retry_after_s))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def connection_class(
    limits: ConnectionLimits, tally: ConnectionTally, known: KnownReplies | None = None
) -> type[Connection]:
    """Return the class of the connections of one listener, bounded together."""
    bounds = ConnectionBounds(limits, tally)
    fields = {"bounds": bounds, "maximum": limits.total, "known": known}
    return type("BoundConnection", (Connection,), fields)
