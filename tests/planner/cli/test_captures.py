"""Captures of the terminal at several widths: kept in files, no line too wide, no word cut."""

import re
from pathlib import Path

import pytest

from tests.planner.command import run_here
from tests.snapshots import check_snapshot

WIDTHS = (60, 80, 100, 160)
FOLDER = Path(__file__).parent / "snapshots" / "captures"
SOLVE = ("solve", "llama3-70b", "h100-x512", "--pin", "tp=4,pp=4", "--top", "3")
COMMANDS = {
    "solve": SOLVE,
    "solve-verbose": (*SOLVE, "--verbose"),
    "nothing-fits": ("solve", "llama3-70b", "h100-x8"),
    "pareto": ("solve", "llama3-8b", "h100-x8", "--pareto", "step_time,memory", "--top", "6"),
    "evaluate": ("evaluate", "llama3-8b", "h100-x8", "--pin", "tp=2,mbs=1"),
    "show": ("show", "last#1"),
    "explain": ("explain", "last#1"),
    "rule": ("rule", "MEM001"),
    "first-steps": (),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize(
    "width", [w if w == 60 else pytest.param(w, marks=pytest.mark.slow) for w in WIDTHS]
)
def test_captures(width: int, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    monkeypatch.setenv("COLUMNS", str(width))
    words: dict[str, set[str]] = {}
    for name, command in COMMANDS.items():
        done = run_here(*command)
        assert done.stderr == ""
        lines = done.stdout.splitlines()
        assert max(map(len, lines)) <= width, (name, max(lines, key=len))
        words[name] = set(re.findall(r"[a-z]{4,}", done.stdout))
        check_snapshot(FOLDER / f"{name}-{width}.txt", done.stdout)
    # A word that was cut at the edge is none of the words of a wide window.
    monkeypatch.setenv("COLUMNS", "200")
    again = ("nothing-fits",) if width > min(WIDTHS) else ()  # seconds each time
    for name in (*again, "evaluate", "rule", "first-steps"):
        assert words[name] <= set(re.findall(r"[a-z]{4,}", run_here(*COMMANDS[name]).stdout))


def test_a_pipe_is_plain_and_has_100_columns(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    text = run_here(*SOLVE).stdout
    assert "\x1b" not in text
    assert text == (FOLDER / "solve-100.txt").read_text("utf-8")
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run_here(*SOLVE).stdout
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text
    monkeypatch.setenv("NO_COLOR", "1")
    assert run_here(*SOLVE).stdout == text
