"""The line of progress: drawn on terminals alone, after half a second, and taken away."""

import io
from itertools import pairwise
from pathlib import Path

import pytest

from planner.analyze.recommend.questions import recommend
from planner.cli.commands.validate import run_validate
from planner.cli.progress import AFTER_S, TerminalProgress, search_progress_text
from planner.measure.validate.points import read_measured_points
from planner.measure.validate.report import DATA, read_entries
from planner.measure.validate.rows import price_points
from tests.repeats import slow


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, times_s: list[float]) -> str:
    clock = iter([0.0, *times_s])
    line = TerminalProgress("searching", stream, lambda: next(clock))
    line.found(17.0)
    line.found(16.126)
    line.found(18.0)
    for done in range(len(times_s)):
        line(done + 1, len(times_s) + 1)
    line(1, 1) if not times_s else line.close()
    return stream.getvalue()


def test_nothing_is_drawn_before_half_a_second_or_in_a_file() -> None:
    assert shown(Terminal(), [AFTER_S / 2]) == ""
    assert shown(io.StringIO(), [1.0, 2.0]) == ""


def test_the_line_tells_the_best_so_far_and_goes_away() -> None:
    text = shown(Terminal(), [1.0, 2.0, 3.0])
    assert text.count("best so far 16.13 s") == 3
    assert text.endswith("\r\x1b[K")


def test_rate_and_remaining_follow_from_the_elapsed_time() -> None:
    """A quarter in 2 s: 12.5 % a second, 6 s are left."""
    text = search_progress_text("sizes", (25, 100), 2.0)
    assert "25%, 12.5 %/s, 2 s elapsed, 6 s left" in text
    assert text.startswith("sizes [#####...............]")
    assert "left" not in search_progress_text("sizes", (0, 100), 2.0)


def test_an_open_number_is_counted_and_a_new_total_begins_anew() -> None:
    stream, clock = Terminal(), iter([0.0, 2.0, 10.0, 12.0])
    line = TerminalProgress("searching", stream, lambda: next(clock))
    line(8, 0)
    line(0, 100)
    line(25, 100)
    drawn = stream.getvalue().split("\r\x1b[K")[1:]
    assert drawn[0] == "searching: 8 tried, 4/s, 2 s elapsed"
    assert "25%, 12.5 %/s, 2 s elapsed, 6 s left" in drawn[2]  # of its own 2 s, not of 12


@pytest.mark.parametrize(
    ("question", "cluster", "is_open"),
    [
        ("devices", "h100-x512", True),
        slow("sequence", "h100-x8", True),
        slow("layout", "h100-x8", True),
        ("hardware", "8xh100,8xa100", False),
    ],
)
def test_recommend_tells_its_progress_and_answers_alike(
    question: str, cluster: str, is_open: bool
) -> None:
    told: list[tuple[int, int]] = []
    answer = recommend(
        question, "llama3-8b", cluster, progress=lambda done, total: told.append((done, total))
    )
    assert answer.dumps() == recommend(question, "llama3-8b", cluster).dumps()
    tried = [done for done, total in told if not total]
    if is_open:
        assert all(a < b for a, b in pairwise(tried))
        assert answer.n_tried >= tried[-1] > 0
    else:
        assert not tried
    shares = [done / total for done, total in told if total]
    assert max(shares) == 1.0
    assert is_open or all(a <= b for a, b in pairwise(shares))


def test_runs_are_counted_while_they_are_priced() -> None:
    told: list[tuple[int, int]] = []
    entries = read_entries(DATA / "models.yaml"), read_entries(DATA / "hardware.yaml")
    points = read_measured_points(DATA / "points.csv")[:5]
    rows = price_points(points, *entries, progress=lambda done, of: told.append((done, of)))
    assert told == [(i, 5) for i in range(6)]
    assert [row.point for row in rows] == list(points)


def test_a_terminal_sees_the_line_of_validate_and_a_pipe_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "points.csv"
    lines = (DATA / "points.csv").read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:12]))
    monkeypatch.setattr("planner.cli.progress.AFTER_S", 0.0)
    monkeypatch.setattr("planner.cli.progress.EVERY_S", 0.0)
    run_validate(str(file))
    piped, screen = capsys.readouterr(), Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    run_validate(str(file))
    assert capsys.readouterr().out == piped.out
    assert piped.err == ""
    assert "pricing runs [" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")
