"""What the page of plans shows of a result."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.solver.solve import solve
from service.pages.listing import asked_by, list_columns_of, listing, pareto_rows

POINTS = st.lists(st.tuples(st.integers(1, 9).map(float), st.integers(1, 9).map(float)))


@given(POINTS)
def test_the_front_is_what_nothing_beats(points):
    def beaten(point):
        return any(x <= point[0] and y <= point[1] and (x, y) != point for x, y in points)

    found = [points[i] for i in pareto_rows(points)]
    assert found == sorted({point for point in points if not beaten(point)})


@pytest.fixture(scope="module")
def result():
    return solve("llama3-8b", "h100-x8", top=64)


@pytest.fixture(scope="module")
def found(result):
    return listing(result)


def test_a_row_says_what_the_plan_says(result, found):
    keys = [column["key"] for column in found["columns"]]
    assert len(found["rows"]) == len(result.plans)
    for plan, row in zip(result.plans, found["rows"], strict=True):
        cells = dict(zip(keys, row, strict=True))
        assert (cells["rank"], cells["plan"]) == (plan.rank, plan.plan_id)
        assert cells["step"] == pytest.approx(plan.step_time_s * 1e3, abs=0.051)
        assert cells["low"] <= cells["step"] <= cells["high"]
        assert cells["memory"] == pytest.approx(plan.breakdown.peak_bytes / 2**30, abs=0.051)
        assert (cells["tie"] == "tie") == (plan.tie and plan.rank > 1)
        assert (cells["tp"], cells["dp"]) == (plan.layout.tp, plan.layout.dp)


def test_columns_of_axes_that_no_plan_uses_are_left_out(result):
    keys = {column.key for column in list_columns_of(result)}
    assert not keys & {"ep", "etp", "pool", "precision", "cost"}
    assert {"rank", "plan", "tie", "step", "memory", "runs"} <= keys


def test_the_scatter_holds_all_plans_the_front_intervals_and_the_limit(result, found):
    traces = {trace["name"]: trace for trace in found["figure"]["figure"]["data"]}
    ids = {data[1] for trace in traces.values() for data in trace.get("customdata", ())}
    assert ids == {plan.plan_id for plan in result.plans}
    best = traces["front"]
    assert all(y > 0 for y in best["error_x"]["array"])
    assert best["x"] == sorted(best["x"])
    assert best["y"] == sorted(best["y"], reverse=True)
    limit = result.plans[0].usable_bytes / 2**30
    assert traces[f"usable memory, {round(limit, 1):g} GiB"]["y"][0] == pytest.approx(
        limit, abs=0.06
    )
    assert "front" in found["figure"]["says"]
    json.dumps(found, allow_nan=False)


def test_the_words_for_the_first_plan_are_true():
    """It ties with the fastest, and need not be it: headroom in steps of 5 % decides."""
    pins = {"tp": 4, "pp": 4, "zero": 1, "mbs": 1}
    result = solve("llama3-70b", "h100-x512", pins=pins, top=30, all_variants=True)
    first = result.plans[0]
    fastest = min(result.plans, key=lambda plan: plan.step_time_s)
    assert fastest is not first
    found = listing(result)
    assert found["called"] == "Recommended"
    said = found["figure"]["says"]
    assert f"The fastest of 30 plans takes {fastest.step_time_s:.4g} s and" in said
    assert f"the recommended one, which ties with it, takes {first.step_time_s:.4g} s" in said
    steps = [int(plan.headroom_frac / 0.05) for plan in result.plans if plan.tie]
    assert steps[0] == max(steps)
    assert "in steps of 5% of the usable memory" in found["order"]
    assert any("in steps of 5%" in line for line in found["why_first"])


def test_a_front_recommends_none_of_its_plans():
    pins = {"zero": 1, "mbs": 1}
    found = listing(solve("llama3-8b", "h100-x8", pins=pins, pareto=["step_time", "memory"]))
    assert found["called"] == "First of the front"
    assert "by step_time and memory no plan is better" in found["order"]
    assert "recommended" not in found["figure"]["says"] + found["order"]


@pytest.mark.slow
def test_where_nothing_fits_the_page_says_why_and_leads_to_what_would():
    request = {"model": "llama3-70b", "cluster": "h100-x8", "top": 64}
    found = listing(solve("llama3-70b", "h100-x8", pins={"pp": 1, "zero": 0}))
    nothing = found["nothing"]
    assert nothing["says"].startswith(("Nothing fits", "No layout"))
    assert nothing["relaxations"]
    asked = [asked_by(each["command"], request) for each in nothing["relaxations"]]
    assert all(each and each["model"] == "llama3-70b" for each in asked)
    first = dict(asked[0])
    assert set(first) <= {"model", "cluster", "top", "pins", "only"}
    assert solve("llama3-70b", "h100-x8", pins=first["pins"], only=first["only"], top=1).plans
    assert found["rejected"]
    json.dumps(found, allow_nan=False)


def test_commands_become_questions_or_nothing():
    base = {"model": {"text": "x"}, "cluster": "c", "top": 64}
    command = "planner solve model c --pin tp=8 --only mbs=1,2 --max cp=4 --set 'a.b=x y'"
    assert asked_by(command, base) == {
        **base,
        "pins": {"tp": "8"},
        "only": {"mbs": ["1", "2"]},
        "max": {"cp": 4},
        "set": {"a.b": "x y"},
    }
    assert asked_by("planner evaluate model c --pin tp=8", base) is None
    assert asked_by("planner solve model c --reference runs.csv", base) is None
