"""Charts of things beside each other: what is drawn is what is said."""

import pytest

from planner.render.charts.chart import MAX_DRAWN
from planner.render.charts.pairs import accuracy_chart, two_steps_chart

EVIL = "<b>x</b>%{y}"


def run(i: int, measured: float, predicted: float, source: str = "a") -> dict[str, object]:
    return {
        "id": f"r{i}",
        "source": source,
        "model": EVIL,
        "hardware": "h",
        "n_devices": 8,
        "layout": "tp1",
        "measured": measured,
        "predicted": predicted,
    }


def test_two_steps_by_term() -> None:
    found = two_steps_chart("k", "t", ("A", EVIL), [{"linear": 3.0, "tp": 1.0}, {"linear": 2.0}])
    assert found.table.rows == (("linear", 3.0, 2.0), ("tp", 1.0, 0.0))
    assert [list(trace.y) for trace in found.figure.data] == [[3.0, 1.0], [2.0, 0.0]]
    assert "A 4 s" in found.says
    assert found.figure.data[1].name == "&lt;b&gt;x&lt;/b&gt;%\u200b{y}"
    short = two_steps_chart("k", "t", ("A",), [{"linear": 0.5, "fixed": 1e-6}])
    assert short.table.rows == (("linear", 500.0),)  # ms, and nothing too small to see


def test_accuracy_says_how_many_are_close_and_begins_with_the_worst() -> None:
    runs = [run(0, 1.0, 1.05), run(1, 1.0, 3.0), run(2, 2.0, 1.0, "b"), run(3, 4.0, 3.9)]
    found = accuracy_chart("k", "t", runs, "s")
    assert "4 layouts; 50% of the predictions" in found.says
    assert [row[0] for row in found.table.rows] == ["r1", "r2", "r0", "r3"]
    assert found.table.rows[0][-1] == pytest.approx(200.0)
    assert "<b>" not in "".join(found.figure.data[0].text)


def test_of_very_many_runs_some_are_drawn_and_all_are_counted() -> None:
    runs = [run(i, 1.0 + i, 1.0 + i) for i in range(MAX_DRAWN + 500)]
    found = accuracy_chart("k", "t", runs, "s")
    assert f"{len(runs):,} layouts; 100%" in found.says
    assert len(found.figure.data[0].x) <= MAX_DRAWN
    assert found.notes[0].endswith("points are drawn, evenly chosen.")
