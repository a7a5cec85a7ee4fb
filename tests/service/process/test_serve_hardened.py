"""A started service: what TLS it speaks, a port that is shared, limits from a file."""

import http.client
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from planner.errors import SpecError
from service.command import app
from service.proto.planner.v1 import planner_pb2, planner_pb2_grpc
from tests.service.process.test_serve import ROOT, ask, started, state_of
from tests.service.waiting import PATIENCE_S, wait_until


def test_a_limit_that_is_none_stops_the_start(tmp_path):
    file = tmp_path / "limits.yaml"
    file.write_text("solve_seconds: 5\n")
    found = CliRunner().invoke(app, ["--port", "0", "--limits", str(file), "--check"])
    assert isinstance(found.exception, SpecError)
    assert "no such limit" in str(found.exception)


def test_the_database_may_be_named_by_the_environment(monkeypatch):
    monkeypatch.setenv("PLANNER_DATABASE", "mysql://ann:secret@host/db")
    found = CliRunner().invoke(app, ["--port", "0", "--check"])
    assert "mysql is no database" in str(found.exception)
    assert "secret" not in str(found.exception)


def test_a_check_notes_what_the_log_would_say(monkeypatch):
    async def noting(serving, say):
        logging.getLogger("planner.service").warning("probes have no listener of %s", "their own")
        logging.getLogger("planner.service").info("more")
        say("address: free")

    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr("service.process.serve.check_setup", noting)
    found = CliRunner().invoke(app, ["--port", "0", "--check"])
    assert found.output == "note  probes have no listener of their own\nok  address: free\n"


@pytest.mark.service
def test_a_service_leaves_no_core_file_and_may_open_many_connections():
    code = (
        "import resource; from service.process.serve import _bound_process; _bound_process();"
        "print(resource.getrlimit(resource.RLIMIT_CORE)[0],"
        " resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    shell = f"ulimit -Sn 256; exec {sys.executable} -c '{code}'"
    said = subprocess.run(["bash", "-c", shell], cwd=ROOT, env=env, capture_output=True, text=True)
    core, files = map(int, said.stdout.split())
    assert core == 0
    assert files > 256


def certificate(folder: Path) -> tuple[Path, Path]:
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            "key.pem",
            "-out",
            "cert.pem",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.service
def test_old_versions_of_tls_and_weak_ciphers_are_not_spoken(tmp_path):
    cert, key = certificate(tmp_path)
    process, address = started(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key))
    port = int(address.rpartition(":")[2])

    def spoken(version: ssl.TLSVersion, ciphers: str = "ALL:@SECLEVEL=0") -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ciphers(ciphers)
        context.minimum_version = context.maximum_version = version
        with socket.create_connection(("127.0.0.1", port), 10.0) as plain:
            try:
                with context.wrap_socket(plain) as tls:
                    return tls.version() or ""
            except (ssl.SSLError, ConnectionError):
                return ""

    try:
        assert spoken(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        assert spoken(ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        assert spoken(ssl.TLSVersion.TLSv1_2, "AES128-GCM-SHA256") == ""  # no forward secrecy
        assert spoken(ssl.TLSVersion.TLSv1_2, "ECDHE-RSA-AES128-SHA256") == ""  # CBC
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            assert spoken(ssl.TLSVersion.TLSv1_1) == ""
        context = ssl.create_default_context(cafile=str(cert))
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port, context=context, timeout=PATIENCE_S
        )
        connection.request("GET", "/livez")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"ok\n")
        assert "max-age" in (answer.headers["strict-transport-security"] or "")
        connection.close()
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.service
def test_two_processes_behind_one_port_while_one_of_them_stops(tmp_path):
    """Every request is answered, by whichever process is there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    limits = tmp_path / "limits.yaml"
    limits.write_text("drain_s: 3\nsolve_s: 5\nhard_s: 20\n")
    quiet = ("--log-level", "error")  # nobody reads what it writes
    options = ("--share-port", "--port", port, "--limits", str(limits), *quiet)
    first, address = started(tmp_path, *options)
    second, _ = started(tmp_path, *options)  # the same SQLite file too
    seen: Counter[object] = Counter()
    over = threading.Event()

    def asking() -> None:
        while not over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE_S)
            try:
                connection.request("GET", "/v1/rules?code=TP002")
                seen[connection.getresponse().status] += 1
            except ConnectionError:  # it was not taken yet when its process left: asked again
                seen["again"] += 1
            finally:
                connection.close()

    threads = [threading.Thread(target=asking) for _ in range(3)]
    try:
        job = ask(address, "/v1/jobs", {"call": "rules", "request": {"code": "TP002"}})[1]
        for each in threads:
            each.start()
        wait_until(lambda: seen[200] > 20)
        first.terminate()
        first.communicate(timeout=PATIENCE_S)
        assert first.returncode == 0
        n_before = seen[200]
        wait_until(lambda: seen[200] > n_before + 20)
        over.set()
        for each in threads:
            each.join(PATIENCE_S)
        assert seen.keys() <= {200, "again"}, seen
        # One that each waits to be taken when the port is left, and one that was taken unasked.
        assert seen["again"] <= 2 * len(threads), seen
        wait_until(lambda: state_of(address, job) == "SUCCEEDED")
    finally:
        over.set()
        for process in (first, second):
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


@pytest.mark.service
def test_two_processes_share_the_port_of_grpc_while_one_of_them_stops(tmp_path):
    """Both take calls; who keeps a connection to the one that leaves goes on with the other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    options = ("--share-port", "--grpc-port", port, "--log-level", "error")
    first, first_address = started(tmp_path, *options)
    second, second_address = started(tmp_path, *options)
    over = threading.Event()
    seen: Counter[object] = Counter()

    def call(channel: grpc.Channel) -> None:
        try:
            rules = planner_pb2_grpc.PlannerStub(channel).Rules
            rules(planner_pb2.RulesRequest(code="TP002"), timeout=30)
            seen["answered"] += 1
        except grpc.RpcError as error:
            seen[error.code()] += 1

    def channel() -> grpc.Channel:
        alone = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
        return grpc.insecure_channel(f"127.0.0.1:{port}", alone)

    def keeping() -> None:
        with channel() as kept:
            while not over.is_set():
                call(kept)
                over.wait(0.01)

    def coming() -> None:
        while not over.is_set():
            with channel() as fresh:
                call(fresh)

    threads = [threading.Thread(target=x) for x in (keeping, keeping, keeping, coming)]
    try:
        for each in threads:
            each.start()

        def both_were_called() -> bool:  # the kernel chooses which takes a connection
            texts = [ask(x, "/metrics")[1] for x in (first_address, second_address)]
            return all('call="rules"' in text for text in texts)

        wait_until(both_were_called)
        before = seen["answered"]
        first.terminate()
        first.communicate(timeout=PATIENCE_S)
        assert first.returncode == 0
        wait_until(lambda: seen["answered"] > before + 20)
        over.set()
        for each in threads:
            each.join(PATIENCE_S)
        # On their way when it left: gRPC ends them itself, and a caller asks again.
        lost = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED
        assert seen.keys() <= {"answered", *lost}, seen
        assert sum(seen[x] for x in lost) <= 4, seen
    finally:
        over.set()
        for process in (first, second):
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
