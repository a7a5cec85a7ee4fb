"""Figures against the rows that they draw."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from planner.render.charts.axis import axis_chart
from planner.render.charts.chart import MAX_DRAWN, Chart, log_ticks, plain_figure
from planner.render.charts.elasticity import tornado
from planner.render.charts.failure import axis_that_fails, reasons, status_chart
from planner.render.charts.front import front_chart
from planner.render.charts.map import heat_map, layout_map
from planner.render.charts.roofline import communication_roofline_chart, roofline
from planner.render.charts.scaling import curve_of_rows, curves_of, scaling_chart
from planner.render.report.bins import N_BINS
from planner.render.report.effects import effects
from planner.render.report.points import PointAxis, SweepPoints
from planner.render.report.sweep_charts import sections
from planner.units import GIB
from tests.planner.render.report.synthetic import (
    HBM,
    MEMORY,
    NIC,
    NODES,
    TOKENS_PER_STEP,
    columns,
    grid,
    header,
    row,
)

AXES: dict[str, list[Any]] = {
    NODES: [2, 8, 32],
    MEMORY: [80 * GIB, 320 * GIB],
    HBM: [1e12, 4e12],
    NIC: [50e9, 100e9],
}


@pytest.fixture(scope="module")
def points() -> SweepPoints:
    return SweepPoints(columns(grid(AXES)), header(AXES))


def axis(points: SweepPoints, path: str) -> PointAxis:
    found = points.axis(path)
    assert found is not None
    return found


def trace(chart: Chart, name: str, place: int = 0) -> Any:
    return [t for t in chart.figure.to_plotly_json()["data"] if t.get("name") == name][place]


def least(points: SweepPoints, column: str, **where: Any) -> float:
    """Return the least of a column over the rows with such inputs, by the plainest loop."""
    values = [
        value
        for number, value in enumerate(points.values(column))
        if value is not None
        and all(points.values(f"in.{path}")[number] == v for path, v in where.items())
    ]
    return min(values, default=math.nan)


def test_best_over_an_axis(points: SweepPoints) -> None:
    chart = axis_chart(points, axis(points, NODES), 1)
    time, cost = trace(chart, "best of all"), trace(chart, "best of all", 1)
    assert list(time["x"]) == [2, 8, 32]
    for x, seconds, usd in zip(time["x"], time["y"], cost["y"], strict=True):
        assert seconds == pytest.approx(least(points, "best.step_time_s", **{NODES: x}))
        assert usd == pytest.approx(least(points, "best.cost_usd", **{NODES: x}))
    assert [cells[2] for cells in chart.table.rows] == pytest.approx(list(time["y"]))
    assert chart.figure.layout.yaxis.title.text == "Step time (s)"


def test_axes_are_in_units_that_people_read(points: SweepPoints) -> None:
    chart = axis_chart(points, axis(points, MEMORY), 1)
    assert list(trace(chart, "best of all")["x"]) == [80, 320]
    assert chart.figure.layout.xaxis.title.text == "accelerator memory (GiB)"
    assert chart.figure.layout.xaxis.type == "log"


def test_heat_map(points: SweepPoints) -> None:
    x, y = axis(points, NODES), axis(points, HBM)
    chart = heat_map(points, x, y, points.time)
    text = chart.figure.to_plotly_json()["data"][0]["text"]
    for line, hbm in enumerate(y.values):
        for column, nodes in enumerate(x.values):
            expected = least(points, "best.step_time_s", **{NODES: nodes, HBM: hbm})
            assert float(text[line][column]) == pytest.approx(expected, rel=5e-3)
    assert len(chart.table.rows) == 6
    assert [cells[2] for cells in chart.table.rows][-1] == pytest.approx(
        least(points, "best.step_time_s", **{NODES: 32, HBM: 4e12})
    )


def test_layout_map_names_the_layout_of_the_fastest(
    points: SweepPoints, snapshot: Callable[[str], None]
) -> None:
    # tp8 below 8 TiB in all devices, tp4 from there on, by the formula of the rows.
    chart = layout_map(points, axis(points, NODES), axis(points, MEMORY))
    found = {(cells[0], cells[1]): cells[2] for cells in chart.table.rows}
    assert found == {
        ("2", "320 GiB"): "tp8 pp2",
        ("8", "80 GiB"): "tp8 pp2",
        ("8", "320 GiB"): "tp4 pp2",
        ("32", "80 GiB"): "tp4 pp2",
        ("32", "320 GiB"): "tp4 pp2",
    }
    snapshot(f"{chart.says}\n")


def test_layouts_over_one_axis_are_a_strip_with_the_places_of_change(
    snapshot: Callable[[str], None],
) -> None:
    axes: dict[str, list[Any]] = {MEMORY: [80 * GIB, 160 * GIB, 320 * GIB]}
    one = SweepPoints(columns(grid(axes)), header(axes))
    chart = layout_map(one, axis(one, MEMORY), None)
    snapshot(f"{chart.says}\n")


def test_front_is_what_none_beats(points: SweepPoints) -> None:
    cost = points.cost
    assert cost is not None
    chart = front_chart(points, points.time, cost)
    rows = [r for r in range(points.n) if points.solved[r]]
    times, usd = points.time.values, cost.values
    expected = {
        r
        for r in rows
        if not any(
            times[o] <= times[r] and usd[o] <= usd[r] and (times[o] < times[r] or usd[o] < usd[r])
            for o in rows
        )
    }
    line = trace(chart, "front")
    drawn = set(zip(line["x"], line["y"], strict=True))
    shown = {
        (points.time.scale.shown(float(times[r])), cost.scale.shown(float(usd[r])))
        for r in expected
    }
    assert drawn == shown
    assert len(drawn) > 1


def test_roofline_is_flops_over_bytes(points: SweepPoints) -> None:
    chart = roofline(points)
    assert chart is not None
    for cells in chart.table.rows:
        number = [int(i) for i in points.values("index")].index(int(cells[1] or 0))
        flops = points.values("best.flops_per_device")[number]
        assert cells[3] == pytest.approx(
            flops / points.values("best.hbm_bytes_per_device")[number]
        )
        assert cells[4] == pytest.approx(1e15 / points.values("hbm_bytes_per_s")[number])
        step = points.values("best.step_time_s")[number]
        assert cells[5] == pytest.approx(flops / step / 1e12)
    roof = [t for t in chart.figure.to_plotly_json()["data"] if t["mode"] == "lines"]
    assert len(roof) == 2
    # At the ridge the slope meets the peak: 1 PFLOP/s / 1 TB/s = 1,000 FLOPs a byte.
    assert roof[0]["x"][1] == 1000
    assert list(roof[0]["y"][1:]) == [1000, 1000]


def test_many_roofs_become_one() -> None:
    axes: dict[str, list[Any]] = {HBM: [k * 1e12 for k in range(1, 8)]}
    many = SweepPoints(columns(grid(axes)), header(axes))
    chart = roofline(many)
    assert chart is not None
    assert len([t for t in chart.figure.data if t.mode == "lines"]) == 1
    assert "relative to each point" in " ".join(chart.notes)
    assert communication_roofline_chart(many) is not None


def test_strong_scaling(points: SweepPoints) -> None:
    curves = curves_of(points, weak=False)
    longest = curves[0]
    assert longest.devices == (16, 64, 256)
    assert "320 GiB" in longest.name
    assert "4 TB/s" in longest.name
    step = [4096 / n + 512 / n + 0.5 for n in longest.devices]
    assert longest.tokens_per_s == pytest.approx([TOKENS_PER_STEP / s for s in step])
    expected = [step[0] * 16 / (s * n) for s, n in zip(step, longest.devices, strict=True)]
    assert longest.efficiencies == pytest.approx(expected)
    chart = scaling_chart(curves, weak=False)
    assert chart is not None
    assert len(chart.table.rows) == sum(len(c.devices) for c in _different(curves)[:6])
    assert curves_of(points, weak=True) == []


def _different(curves: Iterable[Any]) -> list[Any]:
    return list({(c.devices, c.tokens_per_s): c for c in reversed(list(curves))}.values())[::-1]


def test_weak_scaling_keeps_tokens_of_a_device() -> None:
    rows = []
    for index, (nodes, batch) in enumerate([(1, 8), (2, 16), (4, 32), (4, 8)]):
        values = {NODES: nodes, "training.global_batch": batch}
        step = 1.0 + 0.25 * math.log2(nodes)
        rows.append(
            {
                "index": index,
                "status": "ok",
                "n_devices": 8 * nodes,
                "best.step_time_s": step,
                "best.tokens_per_s": batch * 1000 / step,
            }
            | {f"in.{path}": value for path, value in values.items()}
        )
    axes: dict[str, list[Any]] = {NODES: [1, 2, 4], "training.global_batch": [8, 16, 32]}
    curve, *others = curves_of(SweepPoints(columns(rows), header(axes)), weak=True)
    assert others == []
    assert curve.devices == (8, 16, 32)
    assert curve.efficiencies == pytest.approx([1.0, 0.8, 1 / 1.5])


def test_rows_of_other_commands_make_a_curve() -> None:
    curve = curve_of_rows(
        [
            {"n_devices": 16, "tokens_per_s": 19.0},
            {"n_devices": 8, "tokens_per_s": 10.0},
            {"n_devices": 32, "tokens_per_s": None},
        ],
        "all",
    )
    assert curve.efficiencies == pytest.approx((1.0, 0.95))
    assert scaling_chart([curve], weak=False) is not None
    assert scaling_chart([], weak=False) is None


def test_tornado(points: SweepPoints) -> None:
    chart = tornado(points)
    assert chart is not None
    fastest = points.best(points.time)
    assert fastest is not None
    assert {cells[0]: cells[1] for cells in chart.table.rows} == {
        "matrix product FLOP/s": points.values("elasticity.matmul_flops")[fastest],
        "HBM bandwidth": points.values("elasticity.hbm_bandwidth")[fastest],
        "scale-out (NIC) bandwidth": points.values("elasticity.scale_out_bandwidth")[fastest],
    }
    assert chart.table.rows[0][0] == "matrix product FLOP/s"


def test_points_without_a_plan(points: SweepPoints, snapshot: Callable[[str], None]) -> None:
    # 16 and 64 devices: 16 x 80 GiB is below 2 TiB, nothing else is.
    found = axis_that_fails(points)
    assert found is not None
    assert found.path == NODES
    chart = status_chart(points, found)
    assert [cells[1:5:3] for cells in chart.table.rows] == [(4, 4), (8, 0), (8, 0)]
    snapshot(f"{chart.says}\n")
    assert [cells[:2] for cells in reasons(points).rows] == [("nothing fits", 4)]


def test_reasons_that_differ_in_numbers_are_one() -> None:
    rows = [row(i, {NODES: n}) for i, n in enumerate([1, 2])]
    rows.append(row(2, {NODES: 3}, status="failed", reason="worker died"))
    found = reasons(SweepPoints(columns(rows), header({NODES: [1, 2, 3]})))
    assert [cells[:2] for cells in found.rows] == [("nothing fits", 2), ("failed", 1)]


def test_many_points_are_thinned_and_binned_and_said_so(snapshot: Callable[[str], None]) -> None:
    rows = [
        row(k, {NODES: 8, HBM: 1e12 * (1 + k / 500), NIC: 50e9 * (1 + (k * 7919) % 3001 / 1000)})
        for k in range(3000)
    ]
    points = SweepPoints(columns(rows), header({HBM: [1e12, 7e12], NIC: [50e9, 200e9]}))
    chart = axis_chart(points, axis(points, HBM), 1)
    assert len(trace(chart, "best of all")["x"]) == N_BINS
    assert len(trace(chart, "points")["x"]) <= MAX_DRAWN
    snapshot("".join(f"{note}\n" for note in chart.notes))
    assert min(cells[2] for cells in chart.table.rows) == pytest.approx(  # type: ignore[type-var]
        least(points, "best.step_time_s")
    )


@pytest.mark.parametrize(
    "drop",
    [
        "best.tokens_per_s",
        "best.cost_usd",
        "index",
        "best.binding",
        "elasticity.matmul_flops",
        "best.layout",
        "best.tp",
        "status",
        "best.flops_per_device",
        "n_devices",
        "model",
    ],
)
def test_missing_columns_leave_out_what_needs_them(drop: str) -> None:
    axes: dict[str, list[Any]] = {NODES: [8, 32], HBM: [1e12, 4e12]}
    kept = {name: values for name, values in columns(grid(axes)).items() if name != drop}
    points = SweepPoints(kept, header(axes))
    found = sections(points, effects(points))
    assert [section.key for section in found][:2] == ["axes", "maps"]


def test_plain_text_is_no_markup() -> None:
    assert plain_figure("<b>R&D") == "&lt;b&gt;R&amp;D"
    assert "%{" not in plain_figure("%{x}")
    assert len(plain_figure("x" * 500)) == 80


def test_ticks_of_logarithmic_axes_are_whole_numbers() -> None:
    assert log_ticks([9, 300])["ticktext"] == ["5", "10", "20", "50", "100", "200", "500"]
    assert log_ticks([0.3, 5e6])["ticktext"][:3] == ["1", "10", "100"]
    assert log_ticks([])["type"] == "log"
