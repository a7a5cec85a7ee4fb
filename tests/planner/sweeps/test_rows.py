"""Rows: every column in its place, twins without a search, rows without a plan."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import planner
from planner.solver.answer.result import Result
from planner.solver.answer.result_parts import calibration_json
from planner.solver.execution import Execution
from planner.solver.options import SolveOptions
from planner.solver.request import SolveRequest
from planner.solver.solve import solve_inputs
from planner.solver.sources import read_inputs
from planner.sweeps.points import Point, point_names
from planner.sweeps.rows import (
    COLUMNS,
    Row,
    SolvedPoint,
    column_names,
    columns_table,
    failed_row,
    solved_row,
    twin_row,
)
from searches.executors.executor import make_executor

ONLY = {"tp": [2, 4], "pp": [1, 2], "mbs": [1]}
Changes = tuple[tuple[str, object], ...]
PRICED: Changes = (("pools.0.price_per_hour", 2.0),)
DEARER: Changes = (
    ("pools.0.price_per_hour", 3.0),
    ("pools.0.accelerator", {"like": "h100-sxm-80gb", "power": "500 W"}),
)

COST_COLUMNS = (
    "best.run_s",
    "best.goodput_frac",
    "best.cost_usd",
    "best.energy_j",
    "best.power_w",
    "best.usd_per_million_tokens",
    "best.energy_j_per_token",
)
"""Columns that price, power and failures change, beside names and ids."""


def options() -> SolveOptions:
    return SolveRequest.of(top=2, only=ONLY).options()


def solved(changes: Changes, model: str = "llama3-8b") -> tuple[Row, Result, Point]:
    inputs = read_inputs(model, "h100-x8", (("training.tokens", "1T"), *changes))
    result = solve_inputs(*inputs, options(), Execution(make_executor("serial")))
    point = Point(
        3, changes, *point_names(*inputs, options(), calibration_json(options().calibration))[:2]
    )
    return solved_row(point, [("in.x", 1.5)], *inputs, options(), result), result, point


def test_every_column_in_order_and_nothing_but_json() -> None:
    row, result, point = solved(PRICED)
    assert tuple(row) == column_names(["in.x"])
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    kinds = {"float": float, "int": int, "text": str, "bool": bool}
    for column in COLUMNS:
        value = row[column.name]
        assert value is None or type(value) is kinds[column.kind], column.name
    best = result.best
    assert (row["status"], row["index"], row["point_id"]) == ("ok", 3, point.point_id)
    assert row["in.x"] == 1.5
    assert row["best.step_time_s"] == best.step_time_s
    terms = [row[name] for name in row if name.startswith("best.time.")]
    assert sum(float(str(x)) for x in terms) == pytest.approx(best.step_time_s)
    memory = [row[name] for name in row if name.startswith("best.memory.")]
    assert sum(float(str(x)) for x in memory) == pytest.approx(best.breakdown.peak_bytes)
    assert row["runner_up.plan_id"] == result.plans[1].plan_id
    assert row["best.cost_usd"] == pytest.approx(2.0 * 8 * float(str(row["best.run_s"])) / 3600)


def test_a_twin_is_what_its_own_search_gives() -> None:
    row, result, point = solved(PRICED)
    other, _, twin = solved(DEARER)
    assert point.costless_key == twin.costless_key
    inputs = read_inputs("llama3-8b", "h100-x8", (("training.tokens", "1T"), *DEARER))
    assert twin_row(SolvedPoint(row, result), twin, [("in.x", 1.5)], *inputs, options()) == other
    changed = {name for name in row if row[name] != other[name]}
    named = {
        "point_id",
        "accelerator",
        "best.plan_id",
        "runner_up.plan_id",
        "best.energy_j",
        "best.cost_usd",
        "best.power_w",
        "best.energy_j_per_token",
        "best.usd_per_million_tokens",
        "assumed",
    }
    assert changed <= named
    assert {"best.cost_usd", "best.power_w"} <= changed & set(COST_COLUMNS)


def test_nothing_fits_is_a_row_with_its_reason() -> None:
    row, _, _ = solved((), "llama3-405b")
    assert row["status"] == "infeasible"
    assert "MEM000" in str(row["reason"])
    assert row["n_devices"] == 8
    assert row["best.step_time_s"] is None
    assert tuple(row) == column_names(["in.x"])


def test_a_missed_deadline_is_not_that_nothing_fits() -> None:
    inputs = read_inputs("llama3-8b", "h100-x8", (("training.tokens", "1T"),))
    late = replace(options(), step_limit_s=1e-3)
    result = solve_inputs(*inputs, late, Execution(make_executor("serial")))
    row = solved_row(Point(0, (), "abc", "abc"), (), *inputs, late, result)
    assert row["status"] == "late"
    assert str(row["reason"]).startswith("no plan keeps the limits: the fastest plan on 8 devices")
    assert row["fit"]


def test_a_sweep_and_its_report_from_python(tmp_path: Path) -> None:
    asked = {
        "model": "llama3-8b",
        "cluster": "h100-x8",
        "vary": {"pools.0.price_per_hour": [1, 2]},
        "search": {"only": ONLY},
    }
    rows = planner.sweep(asked, tmp_path / "sweep.csv", executor="serial")
    assert rows.finished
    assert rows.values["in.pools.0.price_per_hour"] == [1.0, 2.0]
    assert rows.values["status"] == ["ok", "ok"]
    page = planner.report(tmp_path / "sweep.csv")
    assert page.startswith("<!DOCTYPE html>")
    assert "The download holds the main columns" not in page
    assert planner.sweep(asked, tmp_path / "sweep.csv").values == rows.values


def test_a_failed_point_is_a_row() -> None:
    row = failed_row(Point(7, (), "abc", "abc"), "failed", "no such part", [("in.x", "h9000")])
    assert tuple(row) == column_names(["in.x"])
    assert (row["status"], row["reason"], row["in.x"]) == ("failed", "no such part", "h9000")
    assert {row[c.name] for c in COLUMNS if c.name.startswith("best.")} == {None}
    with pytest.raises(ValueError, match="broken"):
        failed_row(Point(7, (), "abc", "abc"), "broken", "")


def test_columns_are_distinct_and_explained() -> None:
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names)
    assert all(column.meaning for column in COLUMNS)
    suffixes = {"_s": "s", "_bytes": "bytes", "_usd": "USD", "_j": "J", "_w": "W"}
    for column in COLUMNS:
        unit = next((u for end, u in suffixes.items() if column.name.endswith(end)), None)
        if unit and not column.name.endswith("per_s"):
            assert column.unit == unit, column.name
    assert columns_table().count("\n") == len(COLUMNS) + 2
