"""What the page of plans shows of a result."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.solver.solve import solve
from service.pages.answer.columns import MOST_SHOWN, keys_shown, list_columns_of
from service.pages.answer.front import scales
from service.pages.answer.listing import listing
from service.pages.answer.nothing_fits import asked_by
from service.pages.answer.scatter import pareto_rows

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
        assert cells["step"] == pytest.approx(plan.step_time_s, abs=0.00051)
        assert cells["low"] <= cells["step"] <= cells["high"]
        assert cells["memory"] == pytest.approx(plan.breakdown.peak_bytes / 2**30, abs=0.051)
        assert (cells["tie"] == "tie") == (plan.tie and plan.rank > 1)
        assert (cells["tp"], cells["dp"]) == (plan.layout.tp, plan.layout.dp)


def test_a_page_of_chips_says_no_gpu():
    found = listing(solve("llama3-8b", "16xtpu-v5p", top=3))
    said = {key: value for key, value in found.items() if key != "gpus"}
    assert "GPU" not in json.dumps(said)
    columns = {column["key"]: column for column in found["columns"]}
    assert columns["tokens"]["unit"] == "/chip"
    assert columns["memory"]["hint"] == "of the fullest TPU chip"
    assert "fullest TPU chip" in found["card"]
    assert found["noun"] == "TPU chip"


def test_columns_of_axes_that_no_plan_uses_are_left_out(result):
    keys = {column.key for column in list_columns_of(result)}
    assert not keys & {"ep", "etp", "pool", "precision", "cost"}
    assert {"rank", "plan", "tie", "step", "memory", "runs"} <= keys


def test_the_layout_comes_first_the_hash_last_and_ten_columns_at_first(found):
    columns = found["columns"]
    keys = [column["key"] for column in columns]
    assert (keys[0], keys[-1]) == ("layout", "plan")
    shown = keys_shown(columns, ())
    assert len(shown) == MOST_SHOWN == 10
    assert shown == [key for key in keys if key in shown]
    assert {"layout", "step", "low", "high", "memory", "mfu", "tokens", "plan"} <= set(shown)
    assert keys_shown(columns, ("tp", "nothing", "pp")) == ["layout", "tp", "pp"]


@pytest.mark.parametrize(("step_s", "unit", "cell"), [(1.25, "s", 1.25), (0.25, "ms", 250.0)])
def test_step_times_have_the_unit_of_the_card(result, step_s, unit, cell):
    plan = replace(result.plans[0], step_time_s=step_s)
    columns = {c.key: c for c in list_columns_of(replace(result, plans=(plan,)))}
    assert columns["step"].unit == columns["low"].unit == unit
    assert columns["step"].value(plan) == pytest.approx(cell)


def test_the_scatter_holds_all_plans_the_front_intervals_and_the_limit(result, found):
    traces = {trace["name"]: trace for trace in found["figure"]["figure"]["data"]}
    ids = {data[1] for trace in traces.values() for data in trace.get("customdata", ())}
    assert ids == {plan.plan_id for plan in result.plans}
    best = traces["Pareto front"]
    assert all(y > 0 for y in best["error_x"]["array"])
    assert best["x"] == sorted(best["x"])
    assert best["y"] == sorted(best["y"], reverse=True)
    limit = result.plans[0].usable_bytes / 2**30
    assert traces[f"usable memory, {round(limit, 1):g} GiB"]["y"][0] == pytest.approx(
        limit, abs=0.06
    )
    assert "Pareto front" in found["figure"]["says"]
    json.dumps(found, allow_nan=False)


def test_the_words_for_the_first_plan_are_true():
    """It ties with the fastest, and need not be it: headroom in steps of 5 % decides."""
    pins = {"tp": 4, "pp": 4, "zero": 1, "mbs": 1}
    result = solve("llama3-70b", "h100-x512", pins=pins, top=30, all_variants=True)
    first = result.plans[0]
    fastest = min(result.plans, key=lambda plan: plan.step_time_s)
    assert fastest is not first
    found = listing(result)
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
    assert "by step_time and memory no plan is better" in found["order"]
    assert "recommended" not in found["figure"]["says"] + found["order"]


def test_the_drawing_has_the_points_of_the_scatter(result, found):
    drawn, traces = found["front"], {t["name"]: t for t in found["figure"]["figure"]["data"]}
    assert drawn["front"].count("M") == len(traces["Pareto front"]["x"])
    assert drawn["others"].count("M") == len(traces["other plans"]["x"])
    assert drawn["ties"].count("M") == sum(plan.tie for plan in result.plans) - 1
    assert drawn["first"].count("M") == 1
    assert drawn["stairs"].count("M") == 1
    assert drawn["stairs"].count("V") == drawn["front"].count("M") - 1


def test_scales_of_the_drawing_by_hand():
    time, memory = scales([(10.0, 30.0), (20.0, 50.0)], 70.0)
    # 0.6 of room on both sides of 10 to 20, and 3.2 on both sides of 30 to 70.
    assert [time.place(x) for x in (9.4, 15.0, 20.6)] == [0.0, 500.0, 1000.0]
    assert [memory.place(x) for x in (26.8, 50.0, 73.2)] == [0.0, 500.0, 1000.0]
    assert (time.ticks, memory.ticks) == ([10, 12, 14, 16, 18, 20], [30, 40, 50, 60, 70])
    wide, _ = scales([(1.0, 1.0), (100.0, 2.0)], 3.0)
    assert wide.ticks == [1.0, 3.0, 10.0, 30.0, 100.0]
    assert wide.place((0.94 * 106.0) ** 0.5) == 500.0


def test_memory_that_is_missing_is_not_called_illegal():
    """Weights that exceed the memory break a rule before anything is priced: MEM000."""
    nothing = listing(solve("llama3-405b", "h100-x8"))["nothing"]
    codes = {part["code"] for conflict in nothing["conflicts"] for part in conflict}
    assert codes == {"MEM000"}
    assert nothing["title"] == "Nothing fits"
    assert "legal" not in nothing["says"]
    assert nothing["closest"]["over_gib"] > 0.0
    illegal = listing(solve("llama3-8b", "h100-x8", pins={"tp": 8, "pp": 8}))["nothing"]
    assert (illegal["title"], illegal["closest"]) == ("No plan", None)
    assert "legal" in illegal["says"]


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
