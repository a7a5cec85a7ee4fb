"""Answers that memory has to the very bytes of a request, written without a task of their own.

    headers and body that came at once    -> `KnownAnswers.reply` -> bytes of the response
                                          -> None: the gate answers it, or refuses it

Only what the gate would answer from memory, and only where nothing else is to be done: what is to
be refused, logged or traced is left to the gate, which decides as if it had not been asked here.
The bytes are those of the gate. What an answer holds depends on the request alone, never on who
asks; who may not ask gets none.
"""

import logging
import time
from collections.abc import Mapping

from service.access.auth import Auth
from service.engine import CallAnswer, Engine
from service.handlers.calls import CALLS
from service.http.exchange import JSON, Header, etag_matches, request_id
from service.rest.operations import CALL_OF_PATH, operation_of
from service.settings.serving import PublicAddress, is_own_name
from service.telemetry import logs
from service.telemetry.metrics import Metrics

LARGE = frozenset(name for name, call in CALLS.items() if call.size == "large")
"""Calls that are jobs, unless the caller waits."""
_STATUS_LINES = {200: b"HTTP/1.1 200 OK\r\n", 304: b"HTTP/1.1 304 Not Modified\r\n"}
_NOT_HERE = (
    b"content-encoding",
    b"idempotency-key",
    b"origin",
    b"planner-labels",
    b"planner-priority",
    b"prefer",
    b"transfer-encoding",
)
"""Headers of requests that are the gate's."""


def memory_reply(answer: CallAnswer, if_none_match: str) -> tuple[int, list[Header], bytes]:
    """Return status, headers and body of an answer from memory; 304 where the caller has it."""
    headers = [
        (b"etag", b'"%s"' % answer.etag.encode()),
        (b"cache-control", b"private, no-cache"),
        (b"cache-status", b"planner; hit"),
    ]
    if etag_matches(if_none_match, answer.etag):
        return 304, headers, b""
    headers += [
        (b"content-type", JSON.encode()),
        (b"content-length", b"%d" % len(answer.payload)),
    ]
    return answer.status, headers, answer.payload


class KnownAnswers:
    """Replies to requests that came together, from memory."""

    def __init__(
        self,
        engine: Engine,
        auth: Auth,
        metrics: Metrics,
        address: PublicAddress,
        common: tuple[Header, ...],
    ) -> None:
        """Prepare replies over an engine; `common` are headers of every response."""
        self._engine, self._auth, self._metrics = engine, auth, metrics
        self._only_hosts = address.only_hosts
        self._common = b"".join(b"%s: %s\r\n" % header for header in common)
        self._calls: dict[bytes, tuple[str, str]] = {}
        for path, call in CALL_OF_PATH.items():
            operation = operation_of("POST", path)
            if operation is not None and call not in LARGE:
                for prefix in {"", address.root_path}:
                    self._calls[(prefix + path).encode()] = call, operation.id

    def takes(self, target: bytes) -> bool:
        """Tell whether a POST to a target of HTTP may be answered here."""
        return target in self._calls

    def reply(
        self, target: bytes, headers: list[Header], body: bytes
    ) -> tuple[bytes, bytes, bytes] | None:
        """Return status line, headers and body of the response; None where the gate has to answer.

        `headers` are those of the request, names in lower case. Those of the response end with an
        empty line; the server puts its own before them.
        """
        if self._auth.audit.is_on:
            return None
        begun_s = time.monotonic()
        named = dict(headers)
        if len(named) < len(headers) or not self._is_plain(named):
            return None
        call, operation = self._calls[target]
        caller = self._auth.known(named.get(b"authorization"))
        if caller is None or not self._engine.allows(call, caller):
            return None
        answer = self._engine.cached(call, body, caller)
        if answer is None:
            return None
        if_none_match = named.get(b"if-none-match", b"").decode("latin-1").strip()
        status, out, payload = memory_reply(answer, if_none_match)
        lines = [*(b"%s: %s\r\n" % header for header in out), self._common]
        lines.append(b"x-request-id: %s\r\n\r\n" % request_id(named).encode())
        self._metrics.answered(call, answer, time.monotonic() - begun_s)
        self._metrics.request("rest", operation, status)
        return _STATUS_LINES[status], b"".join(lines), payload

    def _is_plain(self, headers: Mapping[bytes, bytes]) -> bool:
        """Tell whether the headers ask for nothing that is the gate's."""
        media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        return (
            media == JSON.encode()
            and not any(name in headers for name in _NOT_HERE)
            and is_own_name(headers.get(b"host", b"").decode("latin-1"), self._only_hosts)
            and not self._engine.is_draining
            and not logs.access.isEnabledFor(logging.DEBUG)
        )
