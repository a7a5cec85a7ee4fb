"""What leads the report of a sweep: numbers worked out by hand on tiny tables."""

from typing import Any

import pytest

from costmodels.documentation.terms import TIME_TERMS
from planner.render.report.lead_text import LEAD_COLUMNS, lead_text, plot_lines
from planner.render.report.page import sweep_page
from planner.render.report.points import SweepPoints
from planner.render.report.sweep_charts import lead_chart
from planner.render.report.sweep_lead import axis_spread, parts_of_row, sweep_lead, turn_idx
from planner.sweeps.rows import COLUMNS
from planner.units import GIB
from tests.planner.render.report.synthetic import HBM, MEMORY, NODES, columns, grid, header

CURVE = {1: 100.0, 2: 60.0, 4: 50.0, 8: 49.8, 16: 55.0}
"""Step time by nodes: 8 is best, but 4 is within a tie (1 %) of it."""
SQUARE = {(1, 1): 100.0, (2, 1): 80.0, (1, 2): 60.0, (2, 2): 48.0}
"""Step time by HBM in TB/s and nodes."""


def points_of(times: dict[tuple[Any, ...], float], paths: tuple[str, ...]) -> SweepPoints:
    rows = []
    for index, (values, step_s) in enumerate(times.items()):
        rows.append(
            {"index": index, "status": "ok"}
            | {f"in.{path}": value for path, value in zip(paths, values, strict=True)}
            | {"best.devices": 8, "best.step_time_s": step_s, "best.tokens_per_s": 1e6 / step_s}
            | {"best.binding": "tp" if step_s < 90 else "compute"}
        )
    axes = {path: list(dict.fromkeys(v[i] for v in times)) for i, path in enumerate(paths)}
    return SweepPoints(columns(rows), header(axes))


def curve(times: dict[int, float] = CURVE) -> SweepPoints:
    return points_of({(nodes,): step_s for nodes, step_s in times.items()}, (NODES,))


def square() -> SweepPoints:
    return points_of({(a * 1e12, b): t for (a, b), t in SQUARE.items()}, (HBM, NODES))


def test_a_curve_turns_where_no_later_value_is_better_by_more_than_a_tie() -> None:
    lead = sweep_lead(curve())
    best, limit, turn = lead.sentences
    # 49.8 s against the median, 55 s: 9.45 % less. 55 over 50 is 10 % more.
    assert lead.best_idx == 3
    assert "9.45 %" in best
    assert "55 s" in best
    assert "tp" in limit
    assert "3 of the 4" in limit
    assert "from 4 nodes" in turn.lower()
    assert "10 %" in turn
    assert [axis.path for axis in lead.axes] == [NODES]


@pytest.mark.parametrize(
    ("values", "place"),
    [([3.0, 2.0, 1.0], 2), ([1.0, 2.0], 0), ([100.0, 60.0, 50.0, 49.8, 55.0], 2), ([5.0], 0)],
)
def test_turns(values: list[float], place: int) -> None:
    assert turn_idx(values) == place


def test_a_curve_that_falls_to_its_end_says_what_the_last_step_takes_off() -> None:
    turn = sweep_lead(curve({1: 100.0, 2: 80.0, 4: 60.0})).sentences[2]
    assert "2 to 4" in turn  # 80 to 60
    assert "25 %" in turn


def test_more_of_what_only_lengthens_a_step_never_pays() -> None:
    turn = sweep_lead(curve({1: 50.0, 2: 60.0, 4: 110.0})).sentences[2]
    assert "from 1" not in turn.lower()
    assert "than 1 " in turn
    assert "2.2" in turn  # 110 over 50


def test_equal_points_are_counted_and_an_axis_that_moves_nothing_is_told() -> None:
    best, _, turn = sweep_lead(curve({1: 50.0, 2: 50.0, 4: 50.0})).sentences
    assert "equal points: 2" in best
    assert "0 %" in turn
    assert "below" not in best


def test_values_that_are_names_have_a_leader_and_no_turn() -> None:
    points = points_of({("a",): 3.0, ("b",): 2.0, ("c",): 4.0}, ("pools.0.accelerator",))
    lead = sweep_lead(points)
    assert "b leads a by 33.3 %" in lead.sentences[2]
    assert [line.split()[-1] for line in plot_lines(lead, 60)[1:]] == ["3", "2*", "4"]


def test_samples_are_judged_by_a_fit() -> None:
    """No two points share a value: t = 100 / nodes, so that each doubling halves the step."""
    memory = (90, 140, 80, 120, 100, 130)
    times = {(m * GIB, 2**k): 100.0 / 2**k for k, m in enumerate(memory)}
    lead = sweep_lead(points_of(times, (MEMORY, NODES)))
    assert lead.sentences[2].startswith("Nodes decides")
    assert "50 % less" in lead.sentences[2]
    assert lead.axes[0].path == NODES


def test_the_axis_of_the_wider_spread_decides() -> None:
    points = square()
    bandwidth, nodes = points.axes
    # Chains over nodes: 100 over 60, 80 over 48; over bandwidth 100 over 80, 60 over 48.
    assert axis_spread(points, nodes, points.time) == pytest.approx(5 / 3)
    assert axis_spread(points, bandwidth, points.time) == pytest.approx(1.25)
    lead = sweep_lead(points)
    assert [axis.path for axis in lead.axes] == [NODES, HBM]
    assert lead.sentences[2].startswith("Nodes decides")
    for figure in ("66.7 %", "25 %", "40 %"):  # 80 s to 48 s: 40 % off
        assert figure in lead.sentences[2]
    # Median of 48, 60, 80, 100 s: 70 s; 48 s is 31.4 % less.
    assert "31.4 %" in lead.sentences[0]
    assert [axis.path for axis in sweep_lead(points, bandwidth, nodes).axes] == [HBM, NODES]


def test_plots_hold_the_values_of_the_rows() -> None:
    bars = plot_lines(sweep_lead(curve()), 40)[1:]
    sizes = {int(line.split("│")[0]): line.count("█") for line in bars}
    numbers = [line.split()[-1] for line in bars]
    assert numbers == ["100", "60", "50", "49.8*", "55"]
    # 40 columns less labels of 2, numbers of 10 and 4 between: 24 for 100 s.
    assert sizes == {1: 24, 2: 14, 4: 12, 8: 12, 16: 13}
    cells = [line.split("│")[1].split() for line in plot_lines(sweep_lead(square()), 80)[-2:]]
    # Shades by quarters of 48 to 100 s, the best the darkest.
    assert cells == [["░", "100", "█", "60"], ["▒", "80", "█", "48*"]]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_window_or_80_columns(width: int) -> None:
    wide: dict[str, list[Any]] = {
        NODES: list(range(1, 31)),
        MEMORY: [80 * GIB, 320 * GIB],
        HBM: [k * 1e12 for k in range(1, 25)],
    }
    for axes in (wide, {NODES: wide[NODES]}, {HBM: wide[HBM], NODES: [8, 16]}):
        lead = sweep_lead(SweepPoints(columns(grid(axes)), header(axes)))
        text = lead_text(lead, width)
        assert max(map(len, text.splitlines())) <= min(width, LEAD_COLUMNS)
        assert len(plot_lines(lead, width)) > 3


def test_parts_of_a_row_sum_to_its_step() -> None:
    times = {term: float(i + 1) for i, term in enumerate(TIME_TERMS)}
    cut = {"matmul_flops": -0.6, "hbm_bandwidth": -0.2, "kernel_latency": 0.0}
    row = {c.name: None for c in COLUMNS} | {f"best.time.{t}_s": s for t, s in times.items()}
    row |= {f"elasticity.{name}": value for name, value in cut.items()}
    row |= {"best.step_time_s": sum(times.values()), "best.binding": "tp"}
    row |= {"index": 0, "status": "ok", f"in.{NODES}": 1}
    points = SweepPoints(columns([row]), header({NODES: [1]}))
    parts = parts_of_row(points, 0)
    assert sum(parts.values()) == pytest.approx(sum(times.values()))
    assert parts["compute"] == pytest.approx(3 * parts["hbm"])
    assert f"{100 * times['tp'] / sum(times.values()):.3g} %" in sweep_lead(points).sentences[1]


def test_jobs_are_not_compared() -> None:
    path = "training.seq_len"
    times = {(4096, 1): 1.0, (4096, 2): 0.5, (8192, 1): 4.0, (8192, 2): 2.0, (8192, 4): 1.5}
    lead = sweep_lead(points_of(times, (path, NODES)))
    assert lead.points.n == 3  # those of 8192, of which there are more
    assert [axis.path for axis in lead.axes] == [NODES]
    assert "25 %" in lead.sentences[0]  # 1.5 s against the median, 2 s


def test_without_a_plan_there_is_no_chart() -> None:
    axes: dict[str, list[Any]] = {NODES: [1, 2]}
    lead = sweep_lead(SweepPoints(columns(grid(axes)), header(axes)))
    assert (lead.best_idx, lead.axes, plot_lines(lead, 80)) == (None, (), [])
    assert "2 points" in lead.sentences[0]
    assert "nothing fits" in lead.sentences[1]


def test_the_page_begins_with_the_lead_and_draws_its_map_once() -> None:
    points = square()
    lead, page = sweep_lead(points), sweep_page(points, "x.csv")
    chart = lead_chart(lead)
    assert chart is not None
    assert chart.figure.data[0].z == ([100.0, 60.0], [80.0, 48.0])
    places = [page.index(mark) for mark in (lead.sentences[0], 'id="lead-data"', "Fastest is")]
    assert places == sorted(places)
    assert 'id="map-step-time"' not in page
    assert 'id="layouts"' in page
