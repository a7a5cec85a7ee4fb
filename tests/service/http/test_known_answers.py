"""Questions that memory answers before the application is asked, over the real HTTP server."""

import http.client
import json
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from service.access.auth import Auth, read_tokens
from service.http import connections
from service.rest.application import Rest
from tests.service.live import live_service
from tests.service.process.test_serve_hardened import certificate
from tests.service.serving import SETTINGS, served
from tests.service.transports import TOKENS
from tests.service.waiting import PATIENCE_S, wait_until

QUESTION = {"model": "llama3-8b", "cluster": "h100-x8", "pins": {"tp": 2, "pp": 1, "cp": 1}}
BODY = json.dumps(QUESTION).encode()
SUE, TOM, ANN = (TOKENS[name][1] for name in ("sue", "tom", "ann"))
HEADERS = {
    "Host": "127.0.0.1",
    "Content-Type": "application/json",
    "Authorization": f"Bearer {SUE}",
    "X-Request-Id": "mine",
}


class Connection:
    """A connection; what it answers, to the byte."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._file = self.socket.makefile("rb")

    def read(self) -> tuple[int, dict[str, str], bytes, bytes]:
        """Return status, headers and body of a response, and all of its bytes, its date aside."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self._file.readline()
            assert line, "the connection ended"
            head += line
        lines = head.decode("latin-1").splitlines()
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        body = self._file.read(int(headers.get("content-length", 0)))
        head = re.sub(rb"\r\ndate: [^\r]+ GMT\r\n", b"\r\ndate: now\r\n", head)
        return int(lines[0].split()[1]), headers, body, head + body

    def close(self) -> None:
        """End it."""
        self._file.close()
        self.socket.close()

    def ask(self, *parts: bytes) -> tuple[int, dict[str, str], bytes, bytes]:
        """Send parts, each of which the server has read before the next, and read the response."""
        for part in parts:
            self.socket.sendall(part)
        return self.read()


def request(
    body: bytes = BODY,
    path: str = "/v1/plans:evaluate",
    without: str = "",
    first: str = "POST {} HTTP/1.1",
    **more: str,
) -> bytes:
    """Return a request; `more` are headers, with _ for -."""
    headers = HEADERS | {"Content-Length": str(len(body))}
    headers |= {name.replace("_", "-").title(): value for name, value in more.items()}
    lines = [f"{k}: {v}" for k, v in headers.items() if k != without]
    return "\r\n".join([first.format(path), *lines, "", ""]).encode() + body


def in_chunks(body: bytes) -> bytes:
    """Return a request whose body comes in chunks."""
    head = request(b"", without="Content-Length")
    head = head.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
    return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


class Known:
    """A service that has answered the question, and which requests reach its application."""

    def __init__(self, port: int, auth: Auth) -> None:
        self.port, self.auth = port, auth
        self.asked: list[str] = []
        self.open: list[Connection] = []

    def connect(self) -> Connection:
        self.open.append(Connection(self.port))
        return self.open[-1]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    lines = "".join(f"{name} {role} {token}\n" for name, (role, token) in TOKENS.items())
    auth = Auth(read_tokens(lines, "tokens"), failed_logins=SETTINGS.failed_logins)
    with served(tmp_path_factory.mktemp("known"), auth) as address:
        found = Known(int(address.rpartition(":")[2]), auth)
        assert found.connect().ask(request())[0] == 200
        yield found
        for each in found.open:
            each.close()


@pytest.fixture(autouse=True)
def asked(known: Known, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of requests that reach the application."""
    known.asked = []
    through: Callable[..., Any] = Rest.__call__

    async def noted(self: Rest, scope: Any, receive: Any, send: Any) -> None:
        known.asked.append(scope["path"])
        await through(self, scope, receive, send)

    monkeypatch.setattr(Rest, "__call__", noted)
    return known.asked


def metric(known: Known, name: str) -> float:
    """Return a value of /metrics."""
    connection = known.connect()
    text = connection.ask(request(b"", "/metrics", "Content-Type", "GET {} HTTP/1.1"))[2]
    connection.close()
    lines = (line.rpartition(" ") for line in text.decode().splitlines())
    return next(float(value) for key, _, value in lines if key == name)


def busy(known: Known) -> float:
    """Return the connections with a request."""
    return metric(known, 'planner_connections{state="busy",transport="rest"}')


def test_a_known_answer_has_the_bytes_of_the_application(known, asked):
    connection = known.connect()
    at_once = connection.ask(request())
    assert asked == []
    assert at_once[0] == 200
    assert at_once[1]["cache-status"] == "planner; hit"
    assert at_once[1]["x-request-id"] == "mine"
    assert b"\r\ndate: now\r\n" in at_once[3]
    by_application = connection.ask(in_chunks(BODY))
    assert asked == ["/v1/plans:evaluate"]
    assert at_once[3] == by_application[3]


def test_the_caller_who_has_the_answer_gets_304(known, asked):
    connection = known.connect()
    etag = connection.ask(request())[1]["etag"]
    for value in (etag, f'"other", W/{etag}', "*"):
        status, headers, _, _ = connection.ask(request(if_none_match=value))
        assert (status, headers["etag"]) == (304, etag)
        assert "content-length" not in headers
    assert connection.ask(request(if_none_match='"other"'))[0] == 200
    assert asked == []


def test_other_callers_of_the_role_get_the_same_bytes(known, asked):
    other = known.connect().ask(request(authorization=f"Bearer {TOM}"))
    assert other[3] == known.connect().ask(request())[3]
    assert asked == []


@pytest.mark.parametrize(
    ("authorization", "refused"),
    [
        (f"Bearer {ANN}", (403, "not-allowed")),
        ("Bearer nobody-knows-0123456789", (401, "unauthenticated")),
        (f"Basic {SUE}", (401, "unauthenticated")),
        ("", (401, "unauthenticated")),
    ],
)
def test_who_may_not_ask_gets_no_answer_that_others_got(known, asked, authorization, refused):
    status, _, body, _ = known.connect().ask(request(authorization=authorization))
    assert (status, json.loads(body)["code"]) == refused
    assert asked == ["/v1/plans:evaluate"]


def test_a_token_that_was_removed_opens_no_known_answer(known):
    tokens = known.auth._tokens
    connection = known.connect()
    assert connection.ask(request())[0] == 200
    try:
        known.auth.replace([each for each in tokens if each.name != "sue"])
        assert connection.ask(request())[0] == 401
    finally:
        known.auth.replace(tokens)


def test_an_unknown_token_counts_as_one_failure(tmp_path):
    auth = Auth(read_tokens(f"sue solve {SUE}\n", "tokens"), failed_logins=2)
    wrong = request(authorization="Bearer nobody-knows-0123456789")
    with served(tmp_path, auth) as address:
        connection = Connection(int(address.rpartition(":")[2]))
        assert [connection.ask(wrong)[0] for _ in range(3)][:2] == [401, 401]
        connection.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request(origin="http://elsewhere"), 403),
        (request(content_type="text/plain"), 415),
        (request(content_encoding="gzip"), 415),
        (request(without="Content-Type"), 415),
        (request(prefer="respond-async"), 202),
        (request(idempotency_key="mine"), 200),
        (request().replace(b"Host: ", b"Host: other\r\nHost: "), 400),
        (
            request().replace(b"Authorization: ", b"Authorization: Bearer x\r\nAuthorization: "),
            400,
        ),
        (request(first="GET {} HTTP/1.1"), 405),
        (request(first="POST {} HTTP/1.0"), 200),
        (request(connection="close"), 200),
        (request(path="/v1/plans:solved"), 404),
        (request(BODY[:-1]), 400),
        (request(b'{"model": "llama3-8b"}'), 422),
    ],
)
def test_what_asks_for_more_is_for_the_application(known, asked, sent, status):
    assert known.connect().ask(sent)[0] == status
    assert len(asked) == 1


def test_a_body_right_after_its_headers_is_answered_at_once(known, asked, monkeypatch):
    monkeypatch.setattr(connections, "HELD_S", PATIENCE_S)
    connection = known.connect()
    whole = request()
    at_once = connection.ask(whole)
    for cut in (len(whole) - len(BODY), len(whole) - 7):
        before = busy(known)
        connection.socket.sendall(whole[:cut])
        wait_until(lambda n=before: busy(known) == n + 1)  # a connection with its place
        assert connection.ask(whole[cut:])[3] == at_once[3]
        wait_until(lambda n=before: busy(known) == n)
    assert [path for path in asked if path != "/metrics"] == []


def test_a_body_that_comes_later_is_the_same_question(known, asked):
    connection = known.connect()
    whole = request()
    at_once = connection.ask(whole)
    for cut in (len(whole) - len(BODY), len(whole) - 7):
        n_asked = len(asked) + 1
        connection.socket.sendall(whole[:cut])  # the application has it before the rest comes
        wait_until(lambda n=n_asked: len(asked) == n)
        assert connection.ask(whole[cut:])[3] == at_once[3]
    assert len(asked) == 2


def test_a_caller_who_leaves_with_half_a_question_is_forgotten(known, asked, monkeypatch):
    monkeypatch.setattr(connections, "HELD_S", PATIENCE_S)
    before = busy(known)
    connection = known.connect()
    connection.socket.sendall(request()[:-7])
    wait_until(lambda: busy(known) == before + 1)
    connection.close()
    wait_until(lambda: busy(known) == before)
    assert "/v1/plans:evaluate" not in asked


def test_a_body_without_its_type_is_refused_and_the_connection_goes_on(known):
    connection = known.connect()
    status, headers, _, _ = connection.ask(request(without="Content-Type"))
    assert (status, headers.get("connection")) == (415, None)
    assert connection.ask(request())[0] == 200


def test_questions_in_a_row_are_answered_in_their_order(known, asked):
    connection = known.connect()
    fresh = json.dumps(QUESTION | {"pins": {"tp": 4, "pp": 1, "cp": 1}}).encode()
    rows = [(BODY, "a"), (fresh, "b"), (BODY, "c"), (BODY, "d")]
    connection.socket.sendall(b"".join(request(body, x_request_id=id) for body, id in rows))
    found = [connection.read() for _ in rows]
    assert [each[0] for each in found] == [200] * 4
    assert [each[1]["x-request-id"] for each in found] == ["a", "b", "c", "d"]
    assert found[0][2] == found[2][2] == found[3][2] != found[1][2]


def test_known_answers_are_counted(known):
    names = (
        'planner_requests_total{operation="evaluate",status="200",transport="rest"}',
        'planner_call_seconds_count{call="evaluate",phase="total"}',
        "planner_cache_hits_total",
    )
    before = [metric(known, name) for name in names]
    connection = known.connect()
    for _ in range(3):
        connection.ask(request())
    assert [metric(known, name) for name in names] == [n + 3 for n in before]


def test_known_answers_are_the_same_under_tls(tmp_path, asked):
    cert, key = certificate(tmp_path)
    with live_service(tmp_path, tls_cert=cert, tls_key=key) as url:
        context = ssl.create_default_context(cafile=str(cert))
        host, port = "localhost", int(url.rpartition(":")[2])
        connection = http.client.HTTPSConnection(host, port, timeout=PATIENCE_S, context=context)
        found = []
        for _ in range(2):
            connection.request("POST", "/v1/plans:evaluate", BODY, dict(HEADERS))
            answer = connection.getresponse()
            found.append(
                (answer.status, answer.read(), answer.headers["strict-transport-security"])
            )
        connection.close()
    assert found[0] == found[1]
    assert (found[0][0], bool(found[0][2])) == (200, True)
    assert len(asked) == 1
