"""The client that openapi-python-client makes of docs/openapi.json, used against a service."""

import json
import subprocess
from pathlib import Path

import pytest

from service.access.auth import Auth, read_tokens
from tests.service.live import live_service
from tools.clients.generator import NoGenerator, generate, generator_python

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "client-0123456789abcdef"


@pytest.mark.service
def test_a_generated_client_asks_reads_refusals_and_follows_a_job(tmp_path):
    try:
        python = generator_python()
    except NoGenerator as error:
        pytest.skip(f"without a network: {error}")
    generate(ROOT / "docs" / "openapi.json", tmp_path / "planner_client")
    auth = Auth(read_tokens(f"sue solve {TOKEN}", "tokens"))
    with live_service(tmp_path, auth=auth) as address:
        script = ROOT / "tools" / "clients" / "use_python.py"
        command = [str(python), str(script), str(tmp_path), address, TOKEN]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == "v1"
    assert found["solve"]["type"] == "SolveAnswer"
    assert found["solve"]["tp"] == 2
    assert found["solve"]["step_time_s"] > 0
    refused = {"type": "ProblemAnswer", "status": 422, "fault": "Fault", "field": "model"}
    assert found["refused"] == refused
    assert (found["job"]["status"], found["job"]["state"]) == (202, "SUCCEEDED")
    assert found["job"]["deprecation"].startswith("@")
    assert found["job"]["listed"] == [True]
    assert found["job"]["code"] == found["rules"] == "TP002"
