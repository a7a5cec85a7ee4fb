"""What goes wrong in operation: kill -9 at any moment, a database that restarts, a full disk.

Every job that was accepted ends exactly once, with the right answer.
"""

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from service.handlers.problems import Refusal
from service.jobs.queue import Jobs
from service.jobs.records import NewJob, State
from service.jobs.store import Store
from tests.service.postgresql import Server
from tests.service.waiting import wait_until

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("PLANNER_CHAOS_KILLS", "5"))
PATIENCE_S = 240.0

pytestmark = pytest.mark.service


class Process:
    """A process of the service, its requests and what it accepted."""

    def __init__(self, database: str, accepted: dict[int, str], *module: str) -> None:
        command = [sys.executable, "-m", "tests.service.one_process", database, *module]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.pid = self._process.pid
        self.accepted = accepted
        self.refused: dict[int, str] = {}
        self.asked: set[int] = set()
        self.ready = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            n, _, said = line.strip().partition(" ")
            if n == "ready":
                self.ready.set()
            elif said.startswith("!"):
                self.refused[int(n)] = said[1:]
            elif len(said) == 32:  # a line that was cut short was not said
                self.accepted[int(n)] = said

    def ask(self, n: int, request: dict[str, Any], call: str = "sweep") -> None:
        assert self._process.stdin is not None
        self.asked.add(n)
        try:
            self._process.stdin.write(f"{n} {call} {json.dumps(request)}\n")
            self._process.stdin.flush()
        except OSError:
            return  # it was killed

    def wait_for_answers(self) -> None:
        """Wait until it has said of everything that it was asked what becomes of it."""
        wait_until(lambda: not (self.asked - self.accepted.keys() - self.refused.keys()))

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._ended()

    def close(self) -> None:
        """Let it finish what it was asked."""
        self._process.stdin.close()
        assert self._ended() == 0

    def _ended(self) -> int:
        status = self._process.wait(PATIENCE_S)
        self._thread.join()
        self._process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        return status


def request_of(n: int, log: Path) -> dict[str, Any]:
    return {"n": n, "steps": 3, "step_s": 0.02 * (n % 5), "log": str(log)}


def wait_for_end(jobs: Jobs, accepted: dict[int, str]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    for job_id in list(accepted.values()):
        while not jobs.get(job_id, None).is_final:
            assert time.monotonic() < end_s, jobs.counts()
            time.sleep(0.1)


def check_ends(jobs: Jobs, accepted: dict[int, str]) -> None:
    """Check that every job ended once, with its square."""
    for n, job_id in accepted.items():
        view, payload = jobs.result(job_id, None)
        assert (view.state, json.loads(payload)["square"]) == (State.SUCCEEDED, n * n)
        said = [event.data.get("state") for event in jobs.events(job_id, None)[1]]
        assert said.count("SUCCEEDED") == 1
        assert said[-1] == "SUCCEEDED"


def started(database: str, accepted: dict[int, str]) -> Process:
    process = Process(database, accepted)
    assert process.ready.wait(PATIENCE_S)
    return process


def test_the_whole_service_is_killed_while_it_works(tmp_path):
    """`planner serve` twice over one store, with a full disk and workers without memory."""
    command = [
        sys.executable,
        str(ROOT / "scripts" / "chaos"),
        "--kills",
        str(KILLS),
        "--seed",
        "2",
        "--pause-s",
        "1",
        "--rest-s",
        "1.5",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--keep", str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert (said["wrong"], said["traces_in_logs"]) == ([], 0)
    assert sum(said["kills"].values()) == KILLS
    assert said["faults"] == ["disk", "memory"] or said["faults"] == ["memory", "disk"]
    assert said["jobs"] > KILLS
    assert said["questions"] > 0
    assert said["sweeps_killed_midway"] > 0


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_accepted_jobs_outlive_kills_of_their_processes(database, tmp_path):
    """Two processes share the work; one of them is killed, again and again, and started again."""
    random_, accepted = random.Random(KILLS), dict[int, str]()
    log, n = tmp_path / "log", 0
    processes = [started(database, accepted) for _ in range(2)]
    for _ in range(KILLS):
        for _ in range(8):
            processes[n % 2].ask(n, request_of(n, log))
            n += 1
        time.sleep(random_.uniform(0.0, 1.0))
        victim = random_.randrange(2)
        processes[victim].kill()
        processes[victim] = started(database, accepted)
    for process in processes:
        process.wait_for_answers()
    assert len(accepted) > 4 * KILLS
    jobs = Jobs(Store(database))
    wait_for_end(jobs, accepted)
    check_ends(jobs, accepted)
    # A request whose answer was lost on the way is asked again with its key: the same jobs.
    again: dict[int, str] = {}
    processes[0].accepted = again
    for each in accepted:
        processes[0].ask(each, request_of(each, log))
    for process in processes:
        process.close()
    assert again == accepted
    jobs.store.close()


def test_accepted_jobs_outlive_a_restart_of_the_database(tmp_path):
    server = Server()
    try:
        database, accepted = server.new_database(), dict[int, str]()
        process = started(database, accepted)
        log = tmp_path / "log"
        for n in range(30):
            process.ask(n, request_of(n, log))
            if n in (8, 20):
                server.stop()  # as if it had crashed, with jobs running
                time.sleep(0.5)
                server.start()
        jobs = Jobs(Store(database))
        process.close()
        assert len(accepted) == 30  # it was waited for
        process = started(database, accepted)
        wait_for_end(jobs, accepted)
        check_ends(jobs, accepted)
        process.close()
        server.stop()
        impatient = Jobs(jobs.store)
        impatient.store.patience_s = 0.2
        with pytest.raises(Refusal) as caught:
            impatient.submit(NewJob("ann", "solve", "r" * 64, b"{}"))
        assert (caught.value.status, caught.value.code) == (503, "store-unavailable")
        assert caught.value.detail == "the database does not answer"  # not where it is
        server.start()
        jobs.store.close()
    finally:
        server.close()


def _fill(database: str, limit_bytes: int) -> None:
    """Submit until the file may not grow, then report what was accepted."""
    jobs = Jobs(Store(database))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))
    found: list[str] = []
    try:
        for n in range(2000):
            found.append(jobs.submit(NewJob("ann", "solve", f"{n:064d}", os.urandom(3000))).job_id)
    except Refusal as problem:
        print(json.dumps({"status": problem.status, "code": problem.code, "accepted": found}))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(jobs.submit(NewJob("ann", "solve", "f" * 64, b"{}")).job_id)


def test_where_the_file_may_not_grow_nothing_that_was_accepted_is_lost(tmp_path):
    database = f"sqlite:///{tmp_path}/service.sqlite"
    code = f"from tests.service.test_chaos import _fill; _fill({database!r}, 1_200_000)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    first, after = done.stdout.splitlines()
    said = json.loads(first)
    assert (said["status"], said["code"]) == (507, "store-full")
    assert len(said["accepted"]) > 10
    jobs = Jobs(Store(database))
    listed, _ = jobs.page(None, limit=5000)
    assert [job.job_id for job in listed] == [after, *reversed(said["accepted"])]
    jobs.store.close()
