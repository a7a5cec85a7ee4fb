"""Bodies over the limit, over the real HTTP server: the answer is read, whatever is on its way."""

import http.client
import json
import socket
import threading
import time
from dataclasses import replace

import pytest

from planner.client import Client, ServiceError
from service.http import bodies
from tests.service.serving import SETTINGS, served
from tests.service.waiting import PATIENCE_S

LIMIT = 20_000
LARGE = {"model": "x" * 12_000_000, "cluster": "h100-x8"}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    few = replace(SETTINGS, body_bytes=LIMIT, document_bytes=LIMIT)
    with served(tmp_path_factory.mktemp("bodies"), settings=few) as address:
        yield address


def test_the_client_reads_what_a_large_body_is_refused_with(address):
    begun_s = time.monotonic()
    with Client(address) as client, pytest.raises(ServiceError) as found:
        client.ask("solve", LARGE)
    assert (found.value.status, found.value.code) == (413, "too-large")
    assert f"{LIMIT:,}" in found.value.detail
    assert time.monotonic() - begun_s < 5.0  # no try again


def test_a_body_in_chunks_is_drained_too(address):
    host, port = address.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    parts = (b"x" * 65_536 for _ in range(150))
    connection.request(
        "POST", "/v1/plans:solve", parts, {"Content-Type": "application/json"}, encode_chunked=True
    )
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["code"]) == (413, "too-large")
    assert answer.headers["connection"] == "close"
    connection.close()


def test_no_more_than_a_bounded_amount_is_drained(address, monkeypatch):
    monkeypatch.setattr(bodies, "DRAINED_BYTES", 100_000)
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        head = (
            b"POST /v1/plans:solve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000000\r\n"
            b"Content-Type: application/json\r\n\r\n"
        )
        with pytest.raises(OSError):  # noqa: PT011  # a reset, or a pipe that is broken
            connection.sendall(head + b"x" * 100_000_000)


def test_who_waits_for_leave_to_send_is_refused_at_once(address):
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(
            b"POST /v1/plans:solve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000000\r\n"
            b"Content-Type: application/json\r\nExpect: 100-continue\r\n\r\n"
        )
        said = b""
        while part := connection.recv(65_536):
            said += part
    assert said.startswith(b"HTTP/1.1 413")


def test_an_answer_before_the_body_was_sent_is_read():
    problem = b'{"code": "too-large", "detail": "no", "title": "no", "status": 413}'
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        connection.recv(1_000)
        connection.sendall(
            b"HTTP/1.1 413 Refused\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
            % (len(problem), problem)
        )
        time.sleep(0.2)  # the answer is there before the reset
        connection.close()
        listener.close()  # a second try finds nobody

    thread = threading.Thread(target=answer)
    thread.start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with Client(address, retries=0) as client, pytest.raises(ServiceError) as found:
        client.ask("solve", LARGE)
    thread.join(PATIENCE_S)
    assert (found.value.status, found.value.code) == (413, "too-large")
