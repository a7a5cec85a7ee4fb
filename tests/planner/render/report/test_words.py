"""What a report says: numbers worked out by hand, its sentences in `snapshots/words`."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from planner.render.report.answers import SweepFindings, sweep_answer
from planner.render.report.effects import effects
from planner.render.report.points import SweepPoints
from planner.render.report.quantities import kind_of_axis, percent_change, scale_for, short_number
from planner.units import GIB
from tests.planner.render.report.synthetic import HBM, MEMORY, NODES, columns, grid, header, row

DAY_S = 86400.0
Snapshot = Callable[[str], None]


def sentences(findings: SweepFindings) -> str:
    """Return what a report says, a sentence or two a line."""
    parts = {
        "headline": (findings.headline,),
        "question": findings.question,
        "points": findings.points,
        "worth": findings.worth,
        "doubts": findings.doubts,
    }
    return "".join(f"{name}: {text}\n" for name, texts in parts.items() for text in texts)


def points_of(rows: list[dict[str, Any]], axes: dict[str, list[Any]]) -> SweepPoints:
    return SweepPoints(columns(rows), header(axes))


def by_hand(times: dict[tuple[float, int], float], price: float | None = 2.0) -> SweepPoints:
    """Rows of (HBM in TB/s, nodes of 8 devices) with step times, 1,000 steps, $/device-hour."""
    axes: dict[str, list[Any]] = {
        HBM: sorted({hbm * 1e12 for hbm, _ in times}),
        NODES: sorted({n for _, n in times}),
    }
    rows = []
    for index, ((hbm, nodes), step) in enumerate(times.items()):
        run_s = 1000 * step
        cost = None if price is None else run_s / 3600 * 8 * nodes * price
        rows.append(
            {
                "index": index,
                "status": "ok",
                f"in.{HBM}": hbm * 1e12,
                f"in.{NODES}": nodes,
                "n_devices": 8 * nodes,
                "best.devices": 8 * nodes,
                "best.step_time_s": step,
                "best.tokens_per_s": 1e6 / step,
                "best.run_s": run_s,
                "best.cost_usd": cost,
            }
        )
    return points_of(rows, axes)


SQUARE = {(1, 1): 100.0, (2, 1): 80.0, (1, 2): 60.0, (2, 2): 48.0}
"""Twice the bandwidth: 80 % of the time. Twice the nodes: 60 %, at 1.2 times the cost."""


def test_what_axes_buy() -> None:
    bandwidth, nodes = effects(by_hand(SQUARE))
    assert bandwidth.method == nodes.method == "pairs"
    assert bandwidth.per_doubling == pytest.approx(0.8)
    assert bandwidth.cost_ratio == pytest.approx(0.8)
    assert bandwidth.break_even_price == pytest.approx(1.25)
    assert nodes.per_doubling == pytest.approx(0.6)
    assert nodes.cost_per_doubling == pytest.approx(1.2)
    assert math.isnan(nodes.break_even_price)
    assert [(step.low, step.high, step.n_pairs) for step in bandwidth.steps] == [(1e12, 2e12, 2)]


def test_words_of_a_small_sweep(snapshot: Snapshot) -> None:
    points = by_hand(SQUARE)
    said = sweep_answer(points, effects(points))
    # 48 s and 80 s a step, 1,000 steps: 13.3 h and 22.2 h; 16 x 13.33 x $2 and 8 x 22.22 x $2.
    for figure in ("48 s", "13.3 h", "$427", "22.2 h", "$356"):
        assert figure in said.headline
    assert len(said.worth) == 2
    snapshot(sentences(said))
    assert [cells[0] for cells in said.best.rows] == ["Fastest", "Cheapest, fewest devices"]
    assert said.worth_table.rows[0][:5] == (
        "accelerator HBM bandwidth",
        "1 TB/s",
        "2 TB/s",
        2,
        -20.0,
    )


def test_least_and_most_are_named_where_series_differ(snapshot: Snapshot) -> None:
    points = by_hand({(1, 1): 100.0, (2, 1): 80.0, (1, 2): 60.0, (2, 2): 54.0})
    step = effects(points)[0].steps[0]
    assert (step.least, step.largest) == pytest.approx((0.8, 0.9))
    assert step.time_ratio == pytest.approx(math.sqrt(0.8 * 0.9))
    snapshot(sentences(sweep_answer(points, effects(points))))


def test_the_axis_worth_most_comes_first_and_sizes_last(snapshot: Snapshot) -> None:
    axes: dict[str, list[Any]] = {NODES: [8, 16], MEMORY: [40 * GIB, 80 * GIB], HBM: [1e12, 2e12]}
    points = points_of(grid(axes), axes)
    said = sweep_answer(points, effects(points))
    assert "HBM bandwidth" in said.worth[0]
    assert "nodes" in said.worth[-1]
    snapshot(sentences(said))


def test_without_prices_nothing_is_said_about_cost() -> None:
    points = by_hand(SQUARE, price=None)
    said = sweep_answer(points, effects(points))
    assert points.cost is None
    assert "$" not in said.headline
    assert any(text.startswith("Without prices") for text in said.doubts)


def test_points_that_fit_only_with_more_memory_are_counted(snapshot: Snapshot) -> None:
    axes: dict[str, list[Any]] = {MEMORY: [80 * GIB, 160 * GIB], NODES: [2, 4]}
    points = points_of(grid(axes), axes)
    memory = effects(points)[0]
    assert [(step.n_gained, step.n_lost) for step in memory.steps] == [(1, 0)]
    snapshot(sentences(sweep_answer(points, effects(points))))


def test_samples_are_fitted() -> None:
    # t = 100 / nodes x hbm^-0.5 has no two points alike in one axis.
    rows = []
    for index, (hbm, nodes) in enumerate([(1, 1), (2, 4), (4, 2), (8, 16), (16, 8), (3, 5)]):
        rows.append(
            {
                "index": index,
                "status": "ok",
                f"in.{HBM}": hbm * 1e12,
                f"in.{NODES}": nodes,
                "best.step_time_s": 100 / nodes * hbm**-0.5,
                "best.devices": nodes,
            }
        )
    bandwidth, nodes_ = effects(points_of(rows, {HBM: [1e12, 16e12], NODES: [1, 16]}))
    assert bandwidth.method == nodes_.method == "fit"
    assert bandwidth.per_doubling == pytest.approx(2**-0.5)
    assert nodes_.per_doubling == pytest.approx(0.5)
    assert bandwidth.r_squared == pytest.approx(1.0)


def test_long_series_are_compared_and_not_fitted() -> None:
    times = {(1.0 + k / 100, n): 100.0 / n / (1.0 + k / 100) for k in range(101) for n in (1, 2)}
    bandwidth, nodes = effects(by_hand(times))  # type: ignore[arg-type]
    assert (bandwidth.method, bandwidth.n_chains, bandwidth.n_compared) == ("pairs", 2, 202)
    assert bandwidth.per_doubling == pytest.approx(0.5)
    assert (nodes.method, nodes.n_chains) == ("pairs", 101)


def test_a_fit_says_what_it_cannot_tell(snapshot: Snapshot) -> None:
    # The time follows the nodes; what it does besides has nothing to do with the bandwidth.
    rows = [
        {
            "index": k,
            "status": "ok",
            f"in.{HBM}": (1 + k * 7 % 10) * 1e12,
            f"in.{NODES}": 2 + k,
            "best.step_time_s": (1.1 if k % 2 else 0.9) * 100 / (2 + k),
            "best.devices": 8,
        }
        for k in range(10)
    ]
    points = points_of(rows, {HBM: [1e12, 10e12], NODES: [2, 11]})
    bandwidth, nodes = effects(points)
    assert not bandwidth.is_told
    assert nodes.is_told
    snapshot(sentences(sweep_answer(points, effects(points))))


def test_small_fitted_effects_and_prices_of_latencies_are_no_facts(snapshot: Snapshot) -> None:
    # Exactly t = 100 / bandwidth x latency^-0.1 x (8 nodes)^-0.005.
    latency = "pools.0.nic_latency"
    rows = [
        {
            "index": k,
            "status": "ok",
            f"in.{HBM}": (1 + k * 7 % 10) * 1e12,
            f"in.{MEMORY}": 2.0 + k,
            f"in.{latency}": (1 + k * 3 % 11) * 1e-6,
            "best.step_time_s": 100
            / (1 + k * 7 % 10)
            * (1 + k * 3 % 11) ** -0.1
            * (2 + k) ** -0.005,
            "best.devices": 8,
        }
        for k in range(10)
    ]
    points = points_of(rows, {HBM: [1e12, 10e12], MEMORY: [2.0, 11.0], latency: [1e-6, 11e-6]})
    ratios = {effect.axis.path: effect.per_doubling for effect in effects(points)}
    assert ratios[latency] == pytest.approx(2**-0.1)
    assert ratios[MEMORY] == pytest.approx(2**-0.005)
    snapshot(sentences(sweep_answer(points, effects(points))))


def test_points_that_lose_their_plan_are_told(snapshot: Snapshot) -> None:
    path = "together.end"
    rows = [
        {
            "index": k,
            "status": "ok" if ok else "late",
            f"in.{path}": name,
            f"in.{NODES}": n,
            "best.step_time_s": 10.0 / n if ok else None,
            "best.devices": 8 * n,
        }
        for k, (name, n, ok) in enumerate(
            [("March", 1, True), ("March", 2, True), ("May", 1, False), ("May", 2, True)]
        )
    ]
    points = points_of(rows, {path: ["March", "May"], NODES: [1, 2]})
    (together,) = [effect for effect in effects(points) if effect.axis.path == path]
    assert [(step.n_gained, step.n_lost) for step in together.steps] == [(0, 1)]
    snapshot(sentences(sweep_answer(points, effects(points))))


def test_jobs_are_not_compared_with_each_other(snapshot: Snapshot) -> None:
    rows = [
        {
            "index": i,
            "status": "ok",
            "in.model": name,
            "model": name,
            "n_params": n,
            "n_devices": 8,
            f"in.{HBM}": hbm,
            "best.step_time_s": step,
            "best.tokens_per_s": 1e6 / step,
        }
        for i, (name, n, hbm, step) in enumerate(
            [
                ("small", 1e9, 1e12, 4.0),
                ("small", 1e9, 2e12, 2.0),
                ("large", 9e9, 1e12, 40.0),
                ("large", 9e9, 2e12, 30.0),
            ]
        )
    ]
    points = points_of(rows, {"model": ["small", "large"], HBM: [1e12, 2e12]})
    assert [axis.path for axis in points.job_axes] == ["model"]
    said = sweep_answer(points, effects(points))
    assert ["50 %" in said.worth[0], "25 %" in said.worth[1]] == [True, True]
    assert [cells[0] for cells in said.best.rows] == ["model small", "model large"]
    snapshot(sentences(said))


def test_steps_of_different_batches_compare_by_token() -> None:
    axis = "training.global_batch"
    rows = [
        {
            "index": i,
            "status": "ok",
            f"in.{axis}": batch,
            "best.step_time_s": step,
            "best.tokens_per_s": batch * 1000 / step,
        }
        for i, (batch, step) in enumerate([(100, 1.0), (200, 1.6)])
    ]
    points = points_of(rows, {axis: [100, 200]})
    assert points.time.key == "time_per_million_tokens"
    assert points.time.values.tolist() == pytest.approx([10.0, 8.0])
    assert effects(points)[0].per_doubling == pytest.approx(0.8)


def test_all_failed(snapshot: Snapshot) -> None:
    rows = [row(i, {NODES: n}) for i, n in enumerate([1, 2])]
    points = points_of(rows, {NODES: [1, 2]})
    said = sweep_answer(points, effects(points))
    assert said.best.rows == ()
    snapshot(sentences(said))


def test_assumed_figures_are_named_by_part(snapshot: Snapshot) -> None:
    rows = [
        row(0, {NODES: 8}, assumed="rubin.hbm_bytes_per_s, nvlink6.latency_s"),
        row(1, {NODES: 16}, assumed="rubin.hbm_bytes_per_s, rubin.tdp_w"),
    ]
    points = points_of(rows, {NODES: [8, 16]})
    snapshot(sentences(sweep_answer(points, effects(points))))


def test_numbers_in_words() -> None:
    assert short_number(1234.5678) == "1,235"
    assert short_number(0.00012) == "0.00012"
    assert short_number(0) == "0"
    assert percent_change(0.875) == "12.5 % less"
    assert percent_change(3.0) == "3 times as much"
    assert percent_change(1.0001) == "the same"
    assert scale_for("bytes", [80 * GIB]).text(80 * GIB) == "80 GiB"
    assert scale_for("usd", [4.1e6]).text(4.1e6) == "$4.1 million"
    assert scale_for("run_seconds", [10 * DAY_S]).text(10 * DAY_S) == "10 days"
    assert scale_for("seconds", [0.0042]).text(0.0042) == "4.2 ms"
    assert kind_of_axis("pools.0.accelerator.memory", "B") == "bytes"
    assert kind_of_axis("pools.0.price_per_hour", "") == "usd"
    assert kind_of_axis("training.seq_len", "") == ""
    assert kind_of_axis("training.seq_len", None) == ""
    assert kind_of_axis("pools.0.nic_bandwidth", None) == "link_bytes_per_s"
    assert kind_of_axis("x", "kg") == "unit:kg"


def test_a_sweep_without_header_has_the_columns_that_vary_as_axes() -> None:
    rows = [row(i, {NODES: n, MEMORY: 80 * GIB}) for i, n in enumerate([8, 16])]
    points = SweepPoints(columns(rows), {})
    assert [axis.path for axis in points.axes] == [NODES]
    assert points.axes[0].title == "nodes"
