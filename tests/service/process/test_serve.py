"""`planner serve`: the command, its checks, and a process that is started and stopped."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from planner.cli import app as cli
from planner.cli import plugins
from planner.errors import UsageError
from service.access.auth import Auth, read_tokens
from service.process.serve import (
    Serving,
    check_ports,
    check_setup,
    check_tls,
    listening,
    only_hosts,
    probe_listener,
    serve_forever,
)
from service.settings.callers import Callers
from tests.service.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def declared(monkeypatch):
    """Let the commands that pyproject.toml declares be found without installing them again."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = {
        name: EntryPoint(name, value, plugins.GROUP)
        for name, value in declared["project"]["entry-points"][plugins.GROUP].items()
    }
    monkeypatch.setattr(plugins, "_found", lambda: found)


def test_the_command_is_found_and_its_help_names_the_options(declared):
    runner = CliRunner()
    assert "serve" in runner.invoke(cli.app, ["--help"]).output
    shown = runner.invoke(cli.app, ["serve", "--help"])
    assert shown.exit_code == 0
    for option in ("--token-file", "--tls-client-ca", "--check", "--insecure", "--grpc-port"):
        assert option in shown.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "no tokens"),
        (["--host", "0.0.0.0", "--check"], "no tokens"),
        (["--tls-cert", "cert.pem"], "certificate and its key"),
        (["--tls-client-ca", "ca.pem"], "without TLS"),
        (["--token-file", "/nowhere/tokens"], "cannot be read"),
        (["--executor", "threads"], "serial or ray"),
        (["--log-level", "loud"], "debug, info"),
        (["--webhook-host", "a b"], "no host"),
        (["--webhook-network", "10.0.0.0/8"], "no host is allowed"),
        (["--database", "mysql://x/y"], "mysql is no database"),
        (["--database", "sqlite:///:memory:"], "lose every job"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(declared, tmp_path, options, said):
    given = ["serve", "--port", "0", "--data", str(tmp_path), *options]
    found = CliRunner().invoke(cli.app, given)
    assert isinstance(found.exception, UsageError), found.exception
    assert said in str(found.exception)


def test_a_usual_port_of_probes_that_is_taken_stops_nothing(monkeypatch):
    with listening(Serving(port=0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("service.process.serve.PROBE_PORT", port)
        assert probe_listener(Serving()) is None
        assert probe_listener(Serving(probe_port=0)) is None
        with pytest.raises(UsageError, match=f"port {port}"):
            probe_listener(Serving(probe_port=port))
    with probe_listener(Serving()) as free:
        assert free.getsockname()[1] == port
    with pytest.raises(UsageError, match="as another one is"):
        check_ports(Serving(port=8001, grpc_port=8002, probe_port=8002))


def test_files_of_tls_that_cannot_be_used_are_named(tmp_path):
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    with pytest.raises(UsageError, match=r"bad\.pem"):
        check_tls(Serving(tls_cert=bad, tls_key=bad))
    with pytest.raises(UsageError, match=r"missing\.pem"):
        check_tls(Serving(tls_cert=tmp_path / "missing.pem", tls_key=bad))


def test_a_port_in_use_is_said(tmp_path):
    first = listening(Serving(port=0))
    first.listen()
    try:
        with pytest.raises(UsageError, match="port"):
            listening(Serving(port=first.getsockname()[1]))
    finally:
        first.close()


def test_http_and_grpc_at_one_port_are_refused_before_anything_starts(tmp_path):
    one = Serving(port=9, grpc_port=9, data=tmp_path / "none")
    for start in (serve_forever(one, lambda *_: None), check_setup(one, lambda _: None)):
        with pytest.raises(UsageError, match="--port and --grpc-port are both 9"):
            asyncio.run(start)
    assert not (tmp_path / "none").exists()
    check_ports(Serving(port=0, grpc_port=0))


def test_names_are_checked_only_where_no_token_is_asked_for():
    tokens = Auth(read_tokens("ann read 0123456789abcdef", "tokens"))
    assert only_hosts(Serving(), tokens) is None
    assert only_hosts(Serving(host="0.0.0.0", insecure=True), Auth()) is None
    named = only_hosts(Serving(), Auth())
    assert named is not None
    assert {"localhost", "127.0.0.1", "[::1]"} <= named


def test_a_start_asks_for_tokens_where_there_are_some(tmp_path):
    file = tmp_path / "tokens"
    file.write_text("ann read 0123456789abcdef\n")
    assert Callers(Serving(host="0.0.0.0", token_file=file)).auth.asks
    with pytest.raises(UsageError):
        asyncio.run(serve_forever(replace(Serving(), host="0.0.0.0")))


# Processes


def started(folder: Path, *options: str) -> tuple["subprocess.Popen[str]", str]:
    """Return a running service and its address."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from service.command import app; app()",
            "--port",
            "0",
            "--grpc-port",
            "0",
            "--workers",
            "1",
            "--job-workers",
            "1",
            "--data",
            str(folder),
            *options,
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("planner serves at "):
            return process, line.split()[3]
    raise AssertionError("the service did not start")


def ask(address: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(address + path, data, headers)
    with urllib.request.urlopen(request, timeout=120, **more) as answer:
        text = answer.read().decode()
        return answer.status, json.loads(text) if text.startswith("{") else text


def state_of(address: str, job: Any) -> str:
    return str(ask(address, f"/v1/jobs/{job['job_id']}")[1]["state"])


@pytest.mark.service
def test_a_process_answers_and_drains_on_sigterm(tmp_path):
    process, address = started(tmp_path)
    try:
        question = {"model": "llama3-8b", "cluster": "h100-x8", "top": 1}
        status, answer = ask(address, "/v1/plans:solve", question)
        assert (status, len(answer["plans"])) == (200, 1)
        assert ask(address, "/v1/plans:solve", question)[1] == answer
        text = ask(address, "/metrics")[1]
        assert 'planner_plans_total{stage="fit"}' in text
        assert "planner_rejections_total{rule=" in text
        request = {"model": "llama3-8b", "cluster": "h100-x8", "points": 2}
        job = ask(address, "/v1/jobs", {"call": "scale", "request": request})[1]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert '"message": "stopped"' in errors
    process, address = started(tmp_path)  # what was accepted goes on
    try:
        wait_until(lambda: state_of(address, job) not in ("PENDING", "RUNNING"))
        assert state_of(address, job) == "SUCCEEDED"
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.service
def test_tls_asks_for_certificates_of_the_given_authority(tmp_path):
    import ssl

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=tmp_path)

    openssl(
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
    )
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    process, address = started(
        tmp_path, "--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(cert)
    )
    try:
        context = ssl.create_default_context(cafile=str(cert))
        with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
            ask(address, "/livez", context=context)
        context.load_cert_chain(cert, key)
        assert ask(address, "/livez", context=context) == (200, "ok\n")
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
