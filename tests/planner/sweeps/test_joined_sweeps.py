"""Sweeps of a job over several pools: rows name the plan over several where it is the best."""

import json
import math

import pytest

import planner
from planner.errors import PlannerError
from planner.solver.together.words import pipelines_text
from tests.planner.solver.together.tiny import MODEL, NEW, OLD, PINS, cluster

LINK = {"between": ["new", "old"], "bandwidth": "100 Gb/s"}
VARY = {"pools.0.nodes": [1, 2], "links.0.bandwidth": ["1 GB/s", "100 Gb/s"]}
SPEC = {
    "name": "halls",
    "model": MODEL,
    "cluster": cluster(NEW, OLD, links=[LINK]),
    "search": {"pools": "together", "pin": PINS},
    "vary": VARY,
}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("sweep") / "halls.jsonl"


@pytest.fixture(scope="module")
def rows(out):
    """The rows of a grid of pool sizes and bandwidths, in the order of the design."""
    found = planner.sweep(SPEC, out, executor="serial")
    names = list(found.values)
    return [dict(zip(names, x, strict=True)) for x in zip(*found.values.values(), strict=True)]


def point(row):
    """Return the answer of `solve` to the point of a row."""
    nodes, bandwidth = row["in.pools.0.nodes"], row["in.links.0.bandwidth"]
    link = {**LINK, "bandwidth": f"{bandwidth} B/s"}
    own = cluster({**NEW, "nodes": nodes}, OLD, links=[link])
    return planner.solve(
        MODEL, own, pins=PINS, top=2, executor="serial", pools="together", memory_margin=0.0
    )


def test_each_row_is_the_answer_of_solve(rows):
    assert len(rows) == 4
    for row in rows:
        answer = point(row)
        together = answer.together
        first = together.plans[0] if together.plans else None
        step_s = first.step_time_s if first else math.inf
        assert row["joined.step_time_s"] == (pytest.approx(step_s) if first else None)
        assert row["joined.bound_s"] == pytest.approx(together.bound_s)
        alone = min(x.alone_s for x in together.worth)
        assert row["alone.step_time_s"] == pytest.approx(alone)
        assert row["best.step_time_s"] == pytest.approx(min(alone, step_s))
        if together.pays:
            assert row["pool"] == row["joined.pools"] == "+".join(first.devices)
            assert row["best.plan_id"] == first.plan_id
            assert row["best.layout"] == pipelines_text(first)
            assert row["best.runs_on"] == ", ".join(first.runs_on)
        else:
            assert row["pool"] == row["alone.pool"]
            assert "+" not in row["pool"]
    assert {"+" in row["pool"] for row in rows} == {True, False}


def test_proven_is_what_is_proven_of_both(rows):
    for row in rows:
        least = min(row["joined.bound_s"], row["best.step_time_s"])
        share = 1.0 - least / row["best.step_time_s"]
        assert row["proven"] == (share <= 1e-6)
        assert (row["gap"] is None) == row["proven"]


@pytest.mark.usefixtures("rows")
def test_reports_take_such_rows(out):
    assert "new" in planner.report(out)


def test_pools_apart_leave_the_columns_empty(tmp_path):
    apart = {**SPEC, "search": {"pin": PINS}, "vary": {"pools.0.nodes": [1]}}
    found = planner.sweep(apart, tmp_path / "apart.jsonl", executor="serial").values
    assert list(found["joined.step_time_s"]) == list(found["alone.step_time_s"]) == [None]


def test_prices_are_searched_anew(tmp_path):
    priced = [{**NEW, "price_per_hour": 4.0}, {**OLD, "price_per_hour": 1.0}]
    model = {**MODEL, "training": {**MODEL["training"], "tokens": "10B"}}
    spec = {
        **SPEC,
        "model": model,
        "cluster": cluster(*priced, links=[LINK]),
        "vary": {"pools.0.price_per_hour": [1.0, 40.0]},
        "search": {"pools": "together", "pin": PINS, "objective": "cost"},
    }
    found = planner.sweep(spec, tmp_path / "priced.jsonl", executor="serial").values
    costs = list(found["best.cost_usd"])
    assert costs[0] < costs[1]
    assert list(found["pool"])[1] == "old"


def test_what_such_plans_do_not_have_is_refused_before_the_search(tmp_path):
    search = {"pools": "together", "pin": {**PINS, "vpp": 2}}
    with pytest.raises(PlannerError, match="have no axis vpp"):
        planner.sweep({**SPEC, "search": search}, tmp_path / "x.jsonl")


def test_a_short_limit_stops_a_point(tmp_path):
    out = tmp_path / "short.jsonl"
    spec = {**SPEC, "vary": {"pools.0.nodes": [1]}}
    planner.sweep(spec, out, executor="serial", point_limit_s=1e-6)
    row = next(x for x in map(json.loads, out.read_text().splitlines()) if "index" in x)
    assert row["status"] == "stopped"
