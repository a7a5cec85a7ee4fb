"""One attempt to send a delivery: one connection, one POST, one status."""

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from urllib.parse import urlsplit

import planner
from service.jobs.webhooks import Delivery
from service.webhooks.addresses import Destinations
from service.webhooks.signature import signature_headers

ATTEMPT_S = 15.0
"""Longest attempt, from looking up the name to the status of the answer."""
GONE = 410
"""Status by which a receiver says that it wants no more: the delivery is not tried again."""
MOST_REASON = 200
"""Characters that are kept of why an attempt failed."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How an attempt went."""

    status: int | None
    """Of the answer; None where there was none."""
    error: str
    """Empty where the delivery has arrived."""

    @property
    def may_retry(self) -> bool:
        """Whether another attempt makes sense."""
        return self.status != GONE


class _Pinned(http.client.HTTPConnection):
    """A connection to addresses that were looked at, whatever their name stands for by now."""

    def __init__(
        self,
        host: str,
        port: int,
        addresses: Sequence[str],
        context: ssl.SSLContext | None,
        timeout_s: float,
    ) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._addresses, self._context = addresses, context
        self.is_aborted = False
        """Whether it was ended because it took too long."""

    def connect(self) -> None:
        """Connect, with TLS to the name where it is asked for."""
        self.sock = self._connected()
        self._check_time()
        if self._context is not None:
            self.sock = self._context.wrap_socket(
                self.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            self._check_time()
            self.sock.do_handshake()

    def _check_time(self) -> None:
        """Raise `TimeoutError` where `abort` came while there was no socket to end."""
        if self.is_aborted:
            self.close()
            raise TimeoutError("timed out")

    def _connected(self) -> socket.socket:
        """Return a socket to the first of the addresses that takes it."""
        for address in self._addresses[:-1]:
            with contextlib.suppress(OSError):
                return socket.create_connection((address, self.port), self.timeout)
            self._check_time()
        return socket.create_connection((self._addresses[-1], self.port), self.timeout)

    def abort(self) -> None:
        """End what goes on, from another thread."""
        self.is_aborted = True
        held = self.sock
        if held is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(held, socket.SHUT_RDWR)


class Sender:
    """Sends deliveries to allowed addresses; from any thread."""

    def __init__(
        self,
        destinations: Destinations,
        context: ssl.SSLContext | None = None,
        attempt_s: float = ATTEMPT_S,
    ) -> None:
        """Prepare; certificates of receivers must be of an authority that the system trusts.

        `SSL_CERT_FILE` names others. `context` takes its place.
        """
        self.destinations = destinations
        self._context = context or ssl.create_default_context()
        self._attempt_s = attempt_s

    def send(self, delivery: Delivery) -> Attempt:
        """Send a delivery once and return how that went; nothing is raised, none is followed."""
        body = delivery.body
        headers = {
            "content-type": "application/json",
            "user-agent": f"parallelism-planner/{planner.__version__}",
            "connection": "close",
        }
        try:
            headers |= signature_headers(
                delivery.secret, delivery.delivery_id, int(time.time()), body
            )
            status = self._posted(delivery.url, headers, body)
        except ssl.SSLError as error:
            return Attempt(None, f"TLS: {error.reason or 'the handshake failed'}")
        except http.client.HTTPException as error:  # its text is the receiver's
            return Attempt(None, f"no answer of HTTP: {type(error).__name__}")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return Attempt(None, "".join(x for x in reason[:MOST_REASON] if x.isprintable()))
        if 200 <= status < 300:
            return Attempt(status, "")
        followed = ": redirects are not followed" if 300 <= status < 400 else ""
        return Attempt(status, f"the receiver has answered {status}{followed}")

    def _resolved(self, host: str, port: int, encrypted: bool) -> list[str]:
        """Return the addresses of a host; `TimeoutError` where a look-up takes too long.

        No look-up can be stopped: its thread ends when the resolver of the system gives up.
        """
        found: Future[list[str]] = Future()

        def look_up() -> None:
            try:
                found.set_result(self.destinations.resolve(host, port, encrypted))
            except Exception as error:
                found.set_exception(error)

        threading.Thread(target=look_up, name="webhook-name", daemon=True).start()
        try:
            return found.result(self._attempt_s)
        except TimeoutError:
            if found.done():
                raise
            detail = f"the name {host} was not looked up within {self._attempt_s:g} s"
            raise TimeoutError(detail) from None

    def _posted(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        parts = urlsplit(url)
        encrypted = parts.scheme == "https"
        port = parts.port or (443 if encrypted else 80)
        host = parts.hostname or ""
        end_s = time.monotonic() + self._attempt_s
        addresses = self._resolved(host, port, encrypted)
        context = self._context if encrypted else None
        left_s = max(0.001, end_s - time.monotonic())
        connection = _Pinned(host, port, addresses, context, left_s)
        timer = threading.Timer(left_s, connection.abort)
        timer.daemon = True
        timer.start()
        try:
            path = parts.path or "/"
            target = f"{path}?{parts.query}" if parts.query else path
            connection.request("POST", target, body, dict(headers))
            status = connection.getresponse().status
            if connection.is_aborted:  # to the parser the end of a connection ends the headers
                raise TimeoutError(f"no answer within {self._attempt_s:g} s")
            return status
        finally:
            timer.cancel()
            connection.close()
