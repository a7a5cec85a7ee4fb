"""Two thousand mutated and hostile requests; `scripts/fuzz` sends as many as there is time for."""

import logging

import pytest

from tests.service import fuzzing, fuzzing_wire


def assert_clean(found: fuzzing.Found, least_answered: float) -> None:
    shown = "\n".join(f"{kind}\n    {request[:800]}" for kind, request in found.faults.items())
    assert not found.faults, shown
    good = sum(
        n
        for status, n in found.statuses.items()
        if status.endswith((" 200", " 201", " 202", " 204", "OK"))
    )
    assert good >= least_answered * found.n, found.statuses  # mutations are near what is valid


@pytest.mark.service
def test_the_same_seed_makes_the_same_requests():
    first, second = (
        [fuzzing.RestRequests(3).next() for _ in range(1)] + [requests.next() for _ in range(20)]
        for requests in (fuzzing.RestRequests(4), fuzzing.RestRequests(4))
    )
    assert first == second


def test_faults_are_found(monkeypatch):
    """A defect, a trace in an answer and growth are what the fuzzer is there to see."""
    from service.handlers import request_contents

    def broken(*given: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr(request_contents, "check_input_limits", broken)
    found = fuzzing.Found()
    fuzzing.ask_in_process(
        found, "evaluate", {"model": "llama3-8b", "cluster": "h100-x8", "pins": {}}
    )
    assert "ZeroDivisionError" in next(iter(found.faults))
    sent = fuzzing.Sent("GET", "/", [], b"", "rules")
    fuzzing.check_answer(found, sent, 500, {}, b'Traceback, File "/x"')
    assert any("trace" in kind for kind in found.faults)
    assert any("no problem document" in kind for kind in found.faults)
    found.begin = {"rss_bytes": 0.0, "files": 1.0, "threads": 1.0}
    found.end = {"rss_bytes": 1e9, "files": 50.0, "threads": 1.0}
    found.check_growth()
    assert sum(kind.startswith("growth") for kind in found.faults) == 2


@pytest.mark.service
def test_documents_of_every_format():
    assert_clean(fuzzing.fuzz_yaml(700, 2), 0.1)


@pytest.mark.service
def test_requests_over_rest(tmp_path):
    assert_clean(fuzzing.fuzz_rest(400, 5, folder=tmp_path), 0.2)


@pytest.mark.service
def test_requests_over_grpc(tmp_path):
    assert_clean(fuzzing.fuzz_grpc(600, 6, folder=tmp_path), 0.2)


@pytest.mark.service
def test_calls_and_frames_over_a_grpc_port(tmp_path):
    found = fuzzing_wire.fuzz_wire(200, 7, folder=tmp_path)
    assert_clean(found, 0.05)
    assert found.statuses["connection"] > 40  # after each of them a call was answered


@pytest.mark.slow
def test_faults_on_the_wire_are_found():
    """A defect, a trace, a call that the server ends and an error in the log are noted."""
    found, calls = fuzzing.Found(), fuzzing_wire.Calls(8)
    path = "/planner.v1.Planner/GetVersion"
    asked = fuzzing_wire.Ask(path, [b""], (), None, None, False, True, False)
    for status, details in (
        ("INTERNAL", "defect"),
        ("UNKNOWN", 'File "/x"'),
        ("UNAVAILABLE", ""),
        ("CANCELLED", ""),
    ):
        fuzzing_wire.note_answer(found, calls, asked, status, [], details)
    fuzzing_wire.note_answer(found, calls, asked, "OK", [b"\xff"], "")
    with fuzzing_wire.errors_logged(found):
        logging.getLogger("planner.service").error("a defect")
    assert len(found.faults) == 7, found.faults
    whole = fuzzing_wire.frame(fuzzing_wire.PING, 1, 0, b"pingping")
    assert whole == b"\0\0\x08\x06\x01\0\0\0\0pingping"  # RFC 9113, 4.1 and 6.7
    long = fuzzing_wire.headers_block([(b"a", b"x" * 300)])
    assert long == b"\0\x01a\x7f\xad\x01" + b"x" * 300  # RFC 7541, 5.1: 300 = 127 + 45 + 128
