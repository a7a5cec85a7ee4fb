"""Requests of the client over HTTP, with the standard library: connections, retries, events.

Why no library does it: docs/decisions/http-client.md.
"""

import hashlib
import http.client
import json
import os
import random
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from planner.client.errors import ServiceError, problem_error
from planner.client.requests import Data
from planner.errors import UsageError

RETRIES = 6
"""Times that a request is sent again after a refusal that passes, or a lost connection."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
KEPT_ANSWERS = 64
"""Answers that are kept to be asked for by their ETag."""
KEPT_BYTES = 32_000_000
_PLAIN = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""What OpenSSL calls an answer that is not TLS, in releases before and since 3.2."""
_DONE = (200, 201, 202, 204)
"""Statuses of answers; others are refusals."""
_PASSES = (429, 502, 503)
"""Statuses of refusals that pass; 502 is a proxy's whose service starts."""
LOST = (OSError, http.client.HTTPException)
"""Errors of a connection that is lost, or was never there."""
PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    payload: bytes

    @property
    def etag(self) -> str:
        """The content hash of the request; empty without one."""
        return (self.headers.get("ETag") or "").removeprefix("W/").strip('"')


class _Answers:
    """The answers used last, by the hash of their request."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, bytes], tuple[str, bytes]] = OrderedDict()
        self._n_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[str, bytes]) -> tuple[str, bytes] | None:
        """Return ETag and text of an answer."""
        with self._lock:
            answer = self._answers.get(key)
            if answer:
                self._answers.move_to_end(key)
            return answer

    def put(self, key: tuple[str, bytes], reply: HttpReply) -> None:
        """Keep an answer that has an ETag and is not too large."""
        if not reply.etag or len(reply.payload) > KEPT_BYTES // 4:
            return
        with self._lock:
            old = self._answers.pop(key, None)
            self._n_bytes += len(reply.payload) - (len(old[1]) if old else 0)
            self._answers[key] = (reply.etag, reply.payload)
            while len(self._answers) > KEPT_ANSWERS or self._n_bytes > KEPT_BYTES:
                _, (_, payload) = self._answers.popitem(last=False)
                self._n_bytes -= len(payload)


class Transport:
    """Connections to one service, kept open: as many as were in use at the same time."""

    def __init__(
        self,
        url: str,
        token: str,
        tls_files: tuple[PathLike, tuple[PathLike, PathLike] | None],
        timeout_s: float,
        retries: int,
        priority: str = "",
    ) -> None:
        """Prepare; `tls_files` are the authority's, and one's own certificate with its key.

        `priority` is asked for with every request; empty for that of one's group.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        tls = parts.scheme == "https"
        plain = parts.username is None and not parts.query and not parts.fragment
        if parts.scheme not in ("http", "https") or not host or not plain:
            raise UsageError(f"{url!r} is not the address of a service", "http://127.0.0.1:8642")
        if any(tls_files) and not tls:
            raise UsageError(f"certificates are for https, not for {url}", "https://HOST:PORT")
        if priority and not priority.isalpha():
            raise UsageError(f"{priority!r} is no priority", "urgent, normal or background")
        if "\n" in token or "\r" in token or not token.isascii():
            raise UsageError("the token is not one line of ASCII", "check its file")
        self.url = url.rstrip("/")
        self.retries = retries
        self._host, self._port, self._prefix = host, port, parts.path.rstrip("/")
        self._token = token
        self._priority = {"Planner-Priority": priority} if priority else {}
        self._timeout_s = timeout_s
        self._tls = _tls_context(*tls_files) if tls else None
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._answers = _Answers()

    def close(self) -> None:
        """Close the connections that nobody uses now; a later request opens new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def send(
        self,
        method: Literal["GET", "POST", "DELETE"],
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        cached: bool = False,
    ) -> HttpReply:
        """Return the reply to a request, sent again where that may help.

        Sending twice does no harm: questions only ask, and what makes jobs carries a key. With
        `cached` the answer is kept, and asked for by its ETag the next time.
        """
        sent = dict(headers or {})
        cached = cached and "Prefer" not in sent
        key = (path, hashlib.sha256(body).digest())
        cached_answer = self._answers.get(key) if cached else None
        if cached_answer:
            sent["If-None-Match"] = f'"{cached_answer[0]}"'
        for tried in range(1, self.retries + 2):
            try:
                reply = self.send_once(method, path, body, sent)
            except LOST as error:
                # Who was silent for so long is busy: asking again would make it worse.
                final = isinstance(error, TimeoutError | ssl.SSLCertVerificationError)
                if final or tried > self.retries:
                    raise self.unreachable(error) from None
                pause(tried)
                continue
            if reply.status == 304 and cached_answer:
                return HttpReply(200, reply.headers, cached_answer[1])
            if reply.status in _DONE:
                if cached and reply.status == 200:
                    self._answers.put(key, reply)
                return reply
            refusal = _refusal(reply)
            is_quota = refusal.code == "quota-exceeded"  # which may free in hours
            late = is_quota and (refusal.retry_after_s or 0.0) > LONGEST_PAUSE_S
            if reply.status not in _PASSES or tried > self.retries or late:
                raise refusal
            pause(tried, refusal.retry_after_s)
        raise AssertionError("the last try returns or raises")

    def send_new(self, path: str, body: bytes) -> HttpReply:
        """Return the reply to a request that makes something new each time: it is sent once."""
        try:
            reply = self.send_once("POST", path, body)
        except LOST as error:
            raise self.unreachable(error) from None
        if reply.status not in _DONE:
            raise _refusal(reply)
        return reply

    def send_once(
        self,
        method: Literal["GET", "POST", "DELETE"],
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """Return the reply to a request, over a kept connection where there is one.

        One that the service has closed meanwhile is opened again.
        """
        sent = self._headers(headers or {})
        if method == "POST":
            sent["Content-Type"] = "application/json"
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            try:
                return self._send_over(idle, method, path, body, sent)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                pass
        return self._send_over(self._connection(), method, path, body, sent)

    def _send_over(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes,
        headers: dict[str, str],
    ) -> HttpReply:
        """Return the reply over a connection, which is kept for the next request."""
        keep = False
        try:
            response = _response(connection, method, self._prefix + path, (body, headers))
            reply = HttpReply(response.status, response.headers, response.read())
            keep = not response.will_close
        finally:
            if keep:
                with self._lock:
                    self._idle.append(connection)
            else:
                connection.close()
        return reply

    def events(self, path: str, after: int) -> Iterator[Data]:
        """Yield the events of one connection, each with its number; `OSError` where it is lost."""
        connection = self._connection()
        try:
            headers = {"Accept": "text/event-stream"}
            if after:
                headers["Last-Event-ID"] = str(after)
            connection.request("GET", self._prefix + path, headers=self._headers(headers))
            with connection.getresponse() as response:
                if response.status == 204:
                    return
                if response.status != 200:
                    reply = HttpReply(response.status, response.headers, response.read())
                    if reply.status in _PASSES:
                        raise ConnectionError(f"HTTP {reply.status}")
                    raise _refusal(reply)
                for fields in _event_fields(response):
                    if fields.get("event") == "problem":
                        raise _ended_with(_object(fields["data"]))
                    if "data" in fields:
                        yield {"n": int(fields.get("id", after)), **_object(fields["data"])}
        finally:
            connection.close()

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        sent = {"Accept": "application/json", "User-Agent": "parallelism-planner", **headers}
        sent |= self._priority
        return sent | ({"Authorization": f"Bearer {self._token}"} if self._token else {})

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout_s, context=self._tls
        )

    def unreachable(self, error: Exception) -> ServiceError:
        """Return the error of a service that cannot be asked, with what may help."""
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        fix = "is it running (planner serve), and is the address right?"
        if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):
            reason = "what came back is not HTTP"
            fix = (
                "name the port of HTTP (8642 unless told), not that of gRPC, and https where it is"
            )
        elif isinstance(error, ssl.SSLError) and error.reason in _PLAIN:
            fix = "the service may speak plain HTTP there: http:// in place of https://"
        elif isinstance(error, ssl.SSLError):
            fix = "name the authority of its certificate: ca=FILE, --server-ca FILE"
        return ServiceError("unreachable", f"{self.url} does not answer: {reason}", fix)


def _response(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    sent: tuple[bytes, dict[str, str]],
) -> http.client.HTTPResponse:
    """Return the response to a request, also one that came before all of its body was sent.

    A service that refuses a large body answers and ends the connection.
    """
    body, headers = sent
    try:
        connection.request(method, path, body or None, headers)
    except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError) as error:
        try:
            return connection.getresponse()
        except LOST:
            raise error from None
    return connection.getresponse()


def _event_fields(response: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
    """Yield the fields of each server-sent event; comments are left out."""
    fields: dict[str, str] = {}
    for raw in response:
        line = raw.decode("utf-8").rstrip("\r\n")
        if not line:
            yield fields
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")


def _object(text: str | bytes) -> Data:
    result = json.loads(text)
    if not isinstance(result, dict):
        raise ValueError("no object")
    return result


def json_bytes(request: Mapping[str, Any]) -> bytes:
    """Return the bytes of a request; `UsageError` for what is no JSON."""
    try:
        return json.dumps(request, allow_nan=False, default=os.fspath).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the request is no JSON: {error}", "plain data only") from None


def reply_object(payload: bytes) -> Data:
    """Return what a service answered; `ServiceError` where that is no JSON object."""
    try:
        return _object(payload)
    except ValueError:
        raise _no_service() from None


def _no_service(status: int = 0) -> ServiceError:
    message = f": HTTP {status}" if status else ""
    fix = "is this the address of planner serve, its HTTP port?"
    return ServiceError(
        "no-service", f"the answer is none of a service{message}", fix, status=status
    )


def _refusal(reply: HttpReply) -> ServiceError:
    """Return the error that a reply is."""
    try:
        data = _object(reply.payload)
    except ValueError:
        data = {}
    result = problem_error(data, reply.status) if "code" in data else _no_service(reply.status)
    after = reply.headers.get("Retry-After", "")
    if result.retry_after_s is None and after.isdigit():
        result.retry_after_s = float(after)
    return result


def _ended_with(problem: Data) -> Exception:
    """Return the error of events that ended with a problem; one that passes is a lost connection.

    Such as that of a service that stops: another process has the job.
    """
    status = int(problem.get("status", 0))
    if status in _PASSES:
        return ConnectionError(f"HTTP {status}")
    return problem_error(problem, status)


def pause(tried: int, retry_after_s: float | None = None) -> None:
    """Wait before another try."""
    time.sleep(pause_s(tried, retry_after_s))


def pause_s(tried: int, retry_after_s: float | None = None) -> float:
    """Return how long to wait before another try: what was asked for, else longer every time.

    Spread at random, so that those who were refused together do not come back together.
    """
    doubled = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (tried - 1))
    if not retry_after_s:
        return doubled * random.uniform(0.5, 1.0)
    return max(min(LONGEST_PAUSE_S, retry_after_s), doubled) * random.uniform(1.0, 1.25)


def _tls_context(ca: PathLike, cert: tuple[PathLike, PathLike] | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=os.fspath(ca) if ca else None)
        if cert:
            context.load_cert_chain(*cert)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        named = ", ".join(os.fspath(x) for x in (ca, *(cert or ())) if x)
        raise UsageError(f"{named}: {reason}", "PEM files") from None
    return context
