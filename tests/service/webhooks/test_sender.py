"""One attempt of a delivery: to the address that was looked at, in its time, followed nowhere."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.client.webhooks import verified
from service.jobs.webhooks import Delivery
from service.webhooks.addresses import Destinations, destinations_of
from service.webhooks.sender import Sender, _Pinned
from tests.service.webhooks.receiving import Receiver, receiver

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
LOCAL = destinations_of(["127.0.0.1", "localhost"], ["127.0.0.0/8"])


@pytest.fixture
def there() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def delivery(url: str, body: bytes = b'{"type": "x"}') -> Delivery:
    return Delivery("msg_1", "claim", "hook", "ann", url, SECRET, body, 1)


def sent(url: str, destinations: Destinations = LOCAL, **given: Any) -> tuple[int | None, str]:
    attempt = Sender(destinations, **given).send(delivery(url))
    return attempt.status, attempt.error


def test_what_arrives_is_signed_and_can_be_verified(there):
    assert sent(there.url) == (204, "")
    ((headers, body),) = there.came
    assert verified(SECRET, headers, body) == {"type": "x"}
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"] == "msg_1"
    assert there.paths == ["/hook?x=1"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"body": b'{"type": "y"}'}, "signature"),
        ({"secret": "whsec_" + "A" * 32}, "signature"),
        ({"webhook-id": "msg_2"}, "signature"),
        ({"webhook-timestamp": "1"}, "old"),
        ({"webhook-timestamp": "x"}, "headers"),
        ({"webhook-signature": "v1,AAAA v2,x"}, "signature"),
        ({"webhook-signature": ""}, "signature"),
    ],
)
def test_what_was_changed_on_the_way_is_not_verified(there, change, said):
    sent(there.url)
    ((headers, body),) = there.came
    given = {**headers, **{k: v for k, v in change.items() if k.startswith("webhook-")}}
    with pytest.raises(ValueError, match=said):
        verified(change.get("secret", SECRET), given, change.get("body", body))
    both = {**headers, "webhook-signature": f"v1,old {headers['webhook-signature']}"}
    assert verified(SECRET, both, body)


@pytest.mark.parametrize("status", [301, 302, 307, 400, 404, 500, 503])
def test_an_answer_that_is_no_success_is_a_failure_and_none_is_followed(there, status):
    there.statuses, there.headers = [status], {"location": there.url}
    found, error = sent(there.url)
    assert found == status
    assert str(status) in error
    assert len(there.came) == 1


def test_looking_up_a_name_counts_for_the_time_of_an_attempt(there, monkeypatch):
    over = threading.Event()
    resolve = Destinations.resolve

    def hanging(*given: Any) -> list[str]:
        over.wait(60)
        return resolve(*given)

    monkeypatch.setattr(Destinations, "resolve", hanging)
    try:
        status, error = sent(there.url, attempt_s=0.05)
    finally:
        over.set()
    assert (status, "not looked up within 0.05 s" in error) == (None, True)
    assert there.came == []


def test_a_receiver_that_wants_no_more_is_heard(there):
    there.statuses = [410]
    assert not Sender(LOCAL).send(delivery(there.url)).may_retry
    there.statuses = [500]
    assert Sender(LOCAL).send(delivery(there.url)).may_retry


def test_an_answer_that_never_ends_is_not_waited_for(there):
    there.drips = True
    status, error = sent(there.url, attempt_s=0.3)
    assert status is None
    assert error


def test_nobody_there_is_a_failure():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        status, error = sent(f"http://127.0.0.1:{taken.getsockname()[1]}/")
    assert status is None
    assert error


def test_what_a_name_stands_for_now_is_looked_at_now(there, monkeypatch):
    """A name that was public when the webhook was registered leads inside now."""
    public = destinations_of(["localhost"], [])
    status, error = sent(there.url.replace("127.0.0.1", "localhost"), public)
    assert (status, there.came) == (None, [])
    assert "not allowed" in error
    hosts = []

    def found(host: str, port: int, *given: Any, **more: Any) -> list[Any]:
        hosts.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    status, error = sent(there.url.replace("127.0.0.1", "localhost"))
    assert (status, error) == (204, "")
    assert there.came[0][0]["host"].startswith("localhost:")
    assert hosts.count("localhost") == 1  # the connection is made to the address


def test_a_certificate_of_nobody_is_refused_and_one_of_the_authority_taken(tmp_path: Path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=x"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *words.split(), *names], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=cert)
    with receiver(server) as there:
        status, error = sent(there.url)
        assert status is None
        assert error.startswith("TLS:")
        assert sent(there.url, context=trusting) == (204, "")
        assert sent(there.url.replace("127.0.0.1", "localhost"), context=trusting)[0] is None
        assert len(there.came) == 1


def test_an_attempt_that_was_ended_while_it_connected_goes_no_further(monkeypatch):
    connection = _Pinned("127.0.0.1", 9, ["10.0.0.1", "127.0.0.1"], None, 1.0)
    connection.abort()
    monkeypatch.setattr(socket, "create_connection", lambda *_: socket.socket())
    with pytest.raises(TimeoutError):
        connection.connect()
    assert connection.sock is None


def test_what_a_receiver_says_that_is_no_http_is_kept_by_its_kind_alone():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def answer() -> None:
            taken, _ = listening.accept()
            with taken:
                taken.recv(65_536)
                taken.sendall(b"x\0y secret banner\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        status, error = sent(f"http://127.0.0.1:{port}/")
        answering.join()
    assert (status, error) == (None, "no answer of HTTP: BadStatusLine")
