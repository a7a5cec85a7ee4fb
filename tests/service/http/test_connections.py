"""Connections that are slow, endless, too many or broken, over the real HTTP server."""

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from service.http import connections
from tests.service.serving import SETTINGS, served
from tests.service.waiting import PATIENCE_S, wait_until

MOST = 8
HEAD_S = 1.0
"""How long headers may take here: a slow machine sends them in as much."""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "HEAD_S", HEAD_S)
        patch.setattr(connections, "STALLED_S", 0.3)
        few = replace(SETTINGS, connections=MOST)
        with served(tmp_path_factory.mktemp("connections"), settings=few) as address:
            yield int(address.rpartition(":")[2])


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def sent(port: int, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Return what a connection answers until it is closed; empty where it just ends."""
    found = b""
    with connected(port) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
            while piece := connection.recv(65_536):
                found += piece
        except ConnectionError:
            pass
    return found


GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
ALIVE = GET + b"Connection: close\r\n\r\n"


def check_alive(port: int) -> None:
    """Return when a request is answered: the first may come too slowly from a busy machine."""
    wait_until(lambda: sent(port, ALIVE).startswith(b"HTTP/1.1 200"))


def test_headers_that_do_not_come_end_the_connection(port):
    for slow in ((b"",), (b"GET /li",), (GET,), (b"\r\n",) * 8, (b"X",)):
        assert not sent(port, *slow, pause_s=0.1).startswith(b"HTTP/1.1 200")
    check_alive(port)


def test_a_request_after_an_answer_has_as_little_time(port):
    with connected(port) as connection:
        connection.sendall(GET + b"\r\n")
        found = b""
        while not found.endswith(b"ok\n"):
            found += connection.recv(65_536)
        connection.sendall(b"GET /l")
        assert connection.recv(65_536) == b""


def test_endless_headers_are_refused(port):
    for endless in (
        b"GET /" + b"a" * 300_000,
        GET + b"X: " + b"y" * 300_000,
        GET + b"X: y\r\n" * 60_000,
        GET + b"".join(b"X%d: %s\r\n" % (i, b"y" * 99) for i in range(900)) + b"\r\n",
    ):
        said = sent(port, endless)
        assert said == b"" or said.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")), said[:100]
    check_alive(port)


def test_many_headers_are_refused(port):
    close = b"Connection: close\r\n\r\n"
    for n, status in ((connections.MOST_HEADERS - 2, b"200"), (connections.MOST_HEADERS, b"431")):
        said = sent(port, GET + b"".join(b"X%d: y\r\n" % i for i in range(n)) + close)
        assert said.startswith(b"HTTP/1.1 " + status), said[:60]


@pytest.mark.parametrize(
    "broken",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET http://localhost/livez HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50,
        GET + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        GET + b"Content-Length: -5\r\n\r\n",
        GET + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        GET + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        GET + b"A\x00B: c\r\n\r\n",
        GET + b" folded\r\n\r\n",
        GET + b"Upgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n",
        b"GET /%00%ff%0a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"POST /v1/plans:solve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    ],
)
def test_what_is_no_http_is_refused_without_a_trace(port, broken):
    said = sent(port, broken)
    assert b"Traceback" not in said
    assert not said.startswith(b"HTTP/1.1 5"), said
    check_alive(port)


BUSY = (
    b"POST /v1/specs:check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n"
)
"""A request whose body does not come: its connection is not idle."""


def n_of(port: int, metric: str) -> float:
    """Return a value of /metrics."""
    said = sent(port, GET.replace(b"livez", b"metrics") + b"Connection: close\r\n\r\n")
    lines = (line.rpartition(" ") for line in said.decode().splitlines())
    return next(float(value) for name, _, value in lines if name == metric)


def test_connections_too_many_are_told_to_come_back(port, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", PATIENCE_S)  # they are all there, however slowly
    held = [connected(port) for _ in range(MOST)]
    try:
        for each in held:
            each.sendall(BUSY)
            assert each.recv(12) == b"HTTP/1.1 100"
        said = [sent(port, GET + b"\r\n") for _ in range(2)]
        assert [each[:12] for each in said] == [b"HTTP/1.1 503"] * 2
        head, _, body = said[0].partition(b"\r\n\r\n")
        assert b"retry-after: 1" in head
        assert json.loads(body)["code"] == "too-many-connections"
    finally:
        for each in held:
            each.close()
    check_alive(port)
    assert n_of(port, 'planner_connections_refused_total{reason="total",transport="rest"}') >= 2


def test_idle_connections_end_for_new_ones(port, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", PATIENCE_S)
    name = 'planner_connections_ended_total{reason="total",transport="rest"}'
    before = n_of(port, name)
    held = []
    try:
        for i in range(3 * MOST):  # each with another beginning, or an answer
            held.append(connected(port))
            held[-1].sendall((b"", GET, GET + b"\r\n")[i % 3])
            assert sent(port, ALIVE).startswith(b"HTTP/1.1 200")
        assert n_of(port, name) - before >= 2 * MOST
        assert n_of(port, 'planner_connections{state="busy",transport="rest"}') == 1
    finally:
        for each in held:
            each.close()


def test_who_reads_no_answer_is_left(port):
    with connected(port) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        path = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        try:
            connection.sendall(path * 200)  # megabytes of answers, and none is read
        except ConnectionError:
            return
        connection.settimeout(0.05)

        def has_ended() -> bool:
            try:
                connection.send(b"G")
            except TimeoutError:
                return False
            except ConnectionError:
                return True
            return False

        wait_until(has_ended)
