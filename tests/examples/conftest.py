"""One process of the service for all examples that ask one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "slurm-solves-0123456789"


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the environment of a program that asks a service; `GRPC` is its other address."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "tokens").write_text(f"slurm solve {TOKEN}\n")
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from service.command import app; app()",
            "--port",
            "0",
            "--grpc-port",
            str(free_port()),
            "--workers",
            "1",
            "--job-workers",
            "1",
            "--data",
            str(folder),
            "--token-file",
            str(folder / "tokens"),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    found = {"PLANNER_TOKEN": TOKEN}
    for line in process.stderr:
        if line.startswith("planner serves gRPC at "):
            found["GRPC"] = line.split()[4]
        elif line.startswith("planner serves at "):
            found["PLANNER_SERVER"] = line.split()[3]
            break
    assert "PLANNER_SERVER" in found, "the service did not start"
    try:
        yield os.environ | {"PYTHONPATH": str(ROOT)} | found
    finally:
        process.terminate()
        process.communicate(timeout=60)


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
