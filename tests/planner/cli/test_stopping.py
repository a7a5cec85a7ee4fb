"""Ctrl-C and --time-limit on the command line: the best so far with its gap, and the exit code.

The interrupts are real ones, sent to the whole process group as a terminal does, at a moment that
the child chooses.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import planner
from tests.planner.command import run_here
from tests.searches.instances import one_in

ROOT = Path(planner.__file__).parents[1]
LARGE = ("llama3-70b", "h100-x512", "--framework", "any", "--top", "3")
LARGER = ("llama3-405b", "h100-x16384", "--framework", "any", "--pin", "tp=2", "--top", "3")
LARGER += ("--pin", "recompute=none")
"""Of which the most promising shapes do not fit."""
INTERRUPT = """
import os, signal, sys
from planner.cli import app as cli
from planner.cli.commands import plans as commands
left = [1]
def interrupt(*args):
    if left:
        left.clear()
        os.killpg(os.getpgrp(), signal.SIGINT)
"""
AFTER_A_SHARD = "commands.TerminalProgress = lambda: lambda done, of: interrupt()\n"
BEFORE_ALL = """
import searches.search as search
search.legal_shapes = lambda context: interrupt() or [x for x in range(10**9)]
"""
IN_THE_BOUNDS = """
from searches.device_counts import StepBounds
whole = StepBounds.least_s
StepBounds.least_s = lambda self, n: interrupt() or whole(self, n)
"""


def run(before: str, *words: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run `planner WORDS` in a group of its own, after some lines of Python."""
    code = f"{INTERRUPT}{before}\nsys.argv = ['planner', *{words!r}]\ncli.main()\n"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        timeout=300,
    )


@pytest.mark.parametrize("executor", one_in(2, ["serial", "processes"]))
@pytest.mark.slow
def test_ctrl_c_gives_the_best_so_far_with_its_gap(executor: str, tmp_path: Path) -> None:
    words = ("solve", *LARGE, "--format", "json", "--executor", executor)
    done = run(AFTER_A_SHARD, *words, cache=tmp_path)
    assert (done.returncode, done.stderr) == (130, "")
    found = json.loads(done.stdout)
    assert found["stopped"] == "interrupted"
    assert found["gap"] > 0
    assert len(found["plans"]) == 3


@pytest.mark.slow
def test_ctrl_c_among_the_numbers_of_devices_keeps_what_was_found(tmp_path: Path) -> None:
    words = ("solve", "llama3-8b", "h100-x512", "--top", "2")
    done = run(IN_THE_BOUNDS, *words, cache=tmp_path)
    assert (done.returncode, done.stderr) == (130, "")
    assert "stopped (interrupted): best so far, at most" in done.stdout


@pytest.mark.slow
def test_ctrl_c_before_any_plan_says_so(tmp_path: Path) -> None:
    done = run(BEFORE_ALL, "solve", *LARGE, cache=tmp_path)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "interrupted before any plan was found\n"


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("own_cache")
def test_the_time_limit_gives_the_best_so_far_with_its_gap() -> None:
    done = run_here("solve", *LARGE, "--time-limit", "0.001")
    assert (done.returncode, done.stderr) == (4, "")
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("stopped (")]
    assert line.startswith("stopped (time limit): best so far, at most ")
    assert line.endswith("% from the best there is")
    assert any(x.startswith("* ") for x in done.stdout.splitlines())


@pytest.mark.usefixtures("own_cache")
def test_a_limit_before_any_plan_claims_nothing_about_the_rest() -> None:
    done = run_here("solve", *LARGER, "--time-limit", "0.001")
    assert (done.returncode, done.stderr) == (4, "")
    assert done.stdout.startswith("No plan so far: the time limit stopped the search\n")
    assert "--time-limit" in done.stdout
    assert "fits" not in done.stdout.lower()


def test_ctrl_c_reaches_python_after_the_solver_ran() -> None:
    """CP-SAT leaves the process with the system's handler if it is let."""
    assert planner.solve("llama3-8b", "h100-x8", top=1).plans
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
