"""`planner sweep` in a process that is killed again and again: the same file at the end.

The points are real searches, small ones; half of them differ from another in the price alone.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import planner
from planner.sweeps.reader import read_sweep
from planner.sweeps.storage import partial_path

ROOT = Path(planner.__file__).parents[1]
N_POINTS = 120
SWEEP = """
name: cheap
model: llama3-8b
cluster: h100-x8
vary:
  pools.0.accelerator.memory: 60 GiB .. 119 GiB + 1 GiB
  pools.0.price_per_hour: [2, 3]
search: {pin: {tp: 8, pp: 1, cp: 1, mbs: 1, zero: 0, recompute: none}}
"""

pytestmark = pytest.mark.slow


class Sweep:
    """The command, over and over."""

    def __init__(self, folder: Path, out: str, executor: str) -> None:
        self.out = folder / out
        file = folder / "cheap.yaml"
        file.write_text(SWEEP)
        code = "import sys\nif __name__ == '__main__':\n from planner.cli.app import main\n main()"
        self._words = [
            sys.executable,
            "-c",
            code,
            "sweep",
            str(file),
            "--out",
            str(self.out),
            "--executor",
            executor,
        ]

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._words,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def finish(self) -> str:
        """Run it to its end; return what it says."""
        process = self.start()
        said, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
        return said

    def n_rows(self) -> int:
        partial = partial_path(self.out)
        return max(0, partial.read_bytes().count(b"\n") - 1) if partial.exists() else 0

    def wait_for_rows(self, n: int, process: subprocess.Popen[str]) -> None:
        while self.n_rows() < n and process.poll() is None:
            time.sleep(0.002)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of an undisturbed run."""
    sweep = Sweep(tmp_path_factory.mktemp("undisturbed"), "sweep.parquet", "serial")
    assert f"wrote {sweep.out}: {N_POINTS} points ({N_POINTS} ok)" in sweep.finish()
    return sweep.out.read_bytes()


@pytest.mark.parametrize("executor", [pytest.param("serial", marks=pytest.mark.fit), "processes"])
def test_ten_kills_at_random_moments_leave_no_trace(
    executor: str, wanted: bytes, tmp_path: Path
) -> None:
    sweep, chance = Sweep(tmp_path, "sweep.parquet", executor), random.Random(10)
    kept = 0
    for _ in range(10):
        process = sweep.start()
        if chance.random() < 0.8:
            sweep.wait_for_rows(kept + chance.randrange(1, 6), process)
        time.sleep(chance.uniform(0.0, 0.05))
        assert process.poll() is None, process.communicate()[1]
        process.kill()
        process.communicate()
        assert sweep.n_rows() >= kept
        kept = sweep.n_rows()
    assert 10 <= kept < N_POINTS
    assert len(read_sweep(sweep.out)) >= kept
    assert "of an earlier run)" in sweep.finish()
    assert sweep.out.read_bytes() == wanted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cheap.yaml", "sweep.parquet"]
    assert "this sweep already" in sweep.finish()


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_ctrl_c_says_how_far_it_came(executor: str, wanted: bytes, tmp_path: Path) -> None:
    """Sent to the whole group, as a terminal does."""
    sweep = Sweep(tmp_path, "sweep.parquet", executor)
    process = sweep.start()
    sweep.wait_for_rows(10, process)
    os.killpg(process.pid, signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")
    assert f"interrupted: {sweep.n_rows()} of {N_POINTS} points are in" in errors
    assert "Traceback" not in errors
    sweep.finish()
    assert sweep.out.read_bytes() == wanted


def test_a_second_process_is_refused_and_the_first_goes_on(wanted: bytes, tmp_path: Path) -> None:
    first = Sweep(tmp_path, "sweep.parquet", "processes")
    running = first.start()
    first.wait_for_rows(1, running)
    second = first.start()
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "is being written by another planner sweep" in " ".join(errors.split())
    assert running.wait(timeout=600) == 0
    running.communicate()
    assert first.out.read_bytes() == wanted


def test_a_full_disk_says_what_to_do_and_loses_nothing(wanted: bytes, tmp_path: Path) -> None:
    """Files of the process may hold 100 kB, which the system enforces; then they may hold more."""
    import resource

    sweep = Sweep(tmp_path, "sweep.parquet", "processes")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        process = sweep.start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said, errors = process.communicate(timeout=600)
    text = " ".join(errors.split())
    assert (process.returncode, said) == (1, "")
    assert f"the disk is full; {sweep.n_rows()} of {N_POINTS} points are in" in text
    assert "give the same command again" in text
    assert "Traceback" not in errors
    assert sweep.n_rows() > 10
    sweep.finish()
    assert sweep.out.read_bytes() == wanted
