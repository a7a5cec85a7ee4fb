"""The plans of an answer are different layouts, each the best of its variants."""

import pytest

from planner.solver.answer.result import Plan
from planner.solver.solve import solve

MODEL, CLUSTER = "llama3-70b", "h100-x512"


def degrees(plan: Plan) -> tuple[int, ...]:
    x = plan.layout
    return x.n_devices, x.tp, x.pp, x.cp, x.ep


@pytest.fixture(scope="module")
def listed():
    return solve(MODEL, CLUSTER), solve(MODEL, CLUSTER, all_variants=True, top=64)


@pytest.mark.slow
def test_no_two_plans_have_the_same_degrees(listed):
    short, _ = listed
    assert len({degrees(plan) for plan in short.plans}) == len(short.plans) >= 3


def test_each_is_the_first_of_its_variants(listed):
    short, long = listed
    first: dict[tuple[int, ...], Plan] = {}
    for plan in long.plans:
        first.setdefault(degrees(plan), plan)
    for plan in short.plans:
        assert plan.plan_id == first[degrees(plan)].plan_id
        assert plan.n_variants >= sum(degrees(x) == degrees(plan) for x in long.plans) >= 1
    assert [plan.rank for plan in short.plans] == list(range(1, len(short.plans) + 1))


def test_the_proof_is_the_same(listed):
    short, long = listed
    assert short.certificate == long.certificate
    assert short.counts == long.counts
    assert short.plans[0].plan_id == long.plans[0].plan_id


def test_json_says_it_where_it_is_more_than_one(listed):
    short, long = listed
    assert all(plan.n_variants == 1 for plan in long.plans)
    assert "n_variants" not in long.to_json()["plans"][0]
    first = short.to_json()["plans"][0]
    assert first["n_variants"] == short.plans[0].n_variants > 1
    assert Plan.from_json(first).n_variants == first["n_variants"]
    assert short.inputs["options"].get("all_variants") is None
    assert long.inputs["options"]["all_variants"] is True
    assert short.result_id != long.result_id


@pytest.mark.slow
def test_variants_of_a_pinned_layout_are_listed():
    pins = {"tp": 4, "pp": 4, "cp": 1, "devices": 512}
    plans = solve(MODEL, CLUSTER, pins=pins, top=5).plans
    assert len({degrees(plan) for plan in plans}) == 1
    assert len(plans) == 5


def test_values_that_are_named_are_told_apart():
    plans = solve(MODEL, CLUSTER, only={"zero": [1, 3]}, top=20).plans
    keys = [(degrees(plan), plan.layout.zero) for plan in plans]
    assert len(set(keys)) == len(keys)
    assert {zero for _, zero in keys} == {1, 3}
