"""`planner solve` whose worker is killed in the middle: the serial answer, and exit code 0."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import planner

ROOT = Path(planner.__file__).parents[1]
SOLVE = ("solve", "llama3-8b", "h100-x512", "--framework", "any", "--format", "json")
ALL_SPREAD = """
from searches import search
from searches.space import shards
shards.FIRST_SHAPES = 0  # the most promising shapes are not searched in this process
"""
DYING = f"""{ALL_SPREAD}
from tests.searches import work
search.search_shard = work.search_shard_dying_once
"""


def solve(folder: Path, executor: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, after some lines of Python."""
    words = ("planner", *SOLVE, "--executor", executor)
    lines = f"import sys\nif __name__ == '__main__':\n sys.argv = {[*words]!r}\n"
    code = f"{before}\n{lines} from planner.cli.app import main\n main()\n"
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder),
        "DIES_ONCE_IN": str(folder),
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_killed_worker_changes_neither_answer_nor_exit_code(
    executor: str, tmp_path: Path
) -> None:
    serial = solve(tmp_path, "serial", ALL_SPREAD)
    assert (serial.returncode, serial.stderr) == (0, "")
    killed = tmp_path / "killed"
    assert not killed.exists()
    done = solve(tmp_path, executor, DYING)
    assert int(killed.read_text()) > 0
    assert done.returncode == 0, done.stderr
    assert done.stdout == serial.stdout


@pytest.mark.slow
def test_the_worker_that_is_killed_is_a_real_one(tmp_path: Path) -> None:
    """In one process there is nobody else to kill."""
    assert solve(tmp_path, "serial", DYING).returncode == -9
