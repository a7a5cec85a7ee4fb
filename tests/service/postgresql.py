"""A private PostgreSQL server for tests: its own data and socket, nothing of the machine's."""

import itertools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SKIP = "PLANNER_NO_POSTGRESQL"
"""Set on machines without the server's programs, to skip its tests."""


def binaries() -> Path:
    """Return the folder of initdb and pg_ctl; the test fails, or is skipped, without them."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: p.parent.name)
    if folders:
        return folders[-1]
    if os.environ.get(SKIP):
        pytest.skip(f"{SKIP} is set")
    pytest.fail(f"no PostgreSQL here: apt-get install postgresql, or set {SKIP}=1 to skip")


class Server:
    """A server that is started in a temporary folder; root runs it as the user postgres."""

    def __init__(self) -> None:
        self._bin = binaries()
        self.folder = Path(tempfile.mkdtemp(prefix="planner-pg-"))
        self._names = itertools.count()
        self._as = []
        if os.geteuid() == 0:  # the server refuses to run as root
            shutil.chown(self.folder, "postgres", "postgres")
            self._as = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        # What the server writes survives its own crash; that of the machine is not tested.
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", "planner", "--no-sync")
        self.start()

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as, str(self._bin / program), *arguments]
        with open(self.folder / "tests.log", "a") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log, cwd=self.folder)

    def start(self) -> None:
        settings = f"-c listen_addresses= -c unix_socket_directories={self.folder} -c fsync=off"
        log = str(self.folder / "server.log")
        self._run("pg_ctl", "-D", self._data, "-w", "-l", log, "-o", settings, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server; `immediate` as if it had crashed."""
        self._run("pg_ctl", "-D", self._data, "-w", "-m", mode, "stop")

    def new_database(self) -> str:
        """Create an empty database and return its address."""
        name = f"test_{next(self._names)}"
        self._run(
            "psql",
            "-h",
            str(self.folder),
            "-U",
            "planner",
            "-d",
            "postgres",
            "-c",
            f"CREATE DATABASE {name}",
        )
        return f"postgresql://planner@/{name}?host={self.folder}"

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
