"""Limits on a run over several pools: deadline, budget, longest step; what is proven of them."""

from dataclasses import replace

import pytest

import planner
from planner.errors import UsageError
from planner.render.answers.together import proof_text, together_sentence
from planner.render.document import text_of
from planner.solver.answer.result import Result
from planner.solver.calibration.file import load_calibration
from planner.solver.calibration.intervals import interval_of
from planner.solver.together.limits import keeps, nearest_limits
from planner.specs.search.objectives import Limits, parse_budget
from tests.planner.solver.together.tiny import MODEL, NEW, OLD, PINS, cluster

RUN = {**MODEL, "training": {**MODEL["training"], "tokens": "10B"}}
PRICED = cluster(
    {**NEW, "price_per_hour": 4.0, "nodes": 2}, {**OLD, "price_per_hour": 1.0, "nodes": 2}
)


def solved(**keywords):
    """Return the answer over two pools of two nodes each, with prices."""
    asked = {"pins": PINS, "top": 40, "executor": "serial", "pools": "together", **keywords}
    return planner.solve(RUN, PRICED, **asked)


@pytest.fixture(scope="module")
def free():
    """The answer without limits."""
    return solved()


@pytest.fixture(scope="module")
def cheapest():
    """The plans by cost."""
    return solved(objective="cost")


def test_a_run_takes_its_steps_failures_and_traffic(free):
    for plan in free.together.plans:
        n_steps = 10e9 / (2048 * 16)
        assert plan.expected_s == pytest.approx(plan.step_time_s / plan.goodput_frac * n_steps)
        assert plan.cost_usd == pytest.approx(plan.usd_per_million_tokens * 10e9 / 1e6)
        hourly = 4.0 * plan.devices.get("new", 0) + 1.0 * plan.devices.get("old", 0)
        assert plan.cost_usd == pytest.approx(hourly * plan.expected_s / 3600.0)  # links are free


def test_intervals_are_those_of_unlike_jobs(free):
    calibration = load_calibration()
    for plan in free.together.plans:
        kind = max(plan.kinds, key=lambda x: x.step_time_s)
        sent_s = sum(kind.time[x] for x in ("messages", "sync", "exchange"))
        kinds = ["network"] if sent_s >= 0.25 * kind.step_time_s else ["compute", "host", "mixed"]
        bounds = [interval_of(f"unlike.{x}", calibration) for x in kinds]
        assert plan.step_time_p10_s == pytest.approx(plan.step_time_s * min(x for x, _ in bounds))
        assert plan.step_time_p90_s == pytest.approx(plan.step_time_s * max(x for _, x in bounds))


def test_the_cheapest_before_a_deadline(free, cheapest):
    fastest = free.together.plans[0]
    costs = [x.cost_usd for x in cheapest.together.plans]
    assert costs == sorted(costs)
    slow = cheapest.together.plans[0]
    assert slow.cost_usd < fastest.cost_usd
    assert slow.expected_s > fastest.expected_s
    days = 1.01 * fastest.expected_s / 86400.0
    assert days * 86400.0 < slow.expected_s
    answer = solved(objective="cost", deadline=f"{days:.9f}d").together
    assert answer.plans
    assert all(x.expected_s <= days * 86400.0 * (1 + 1e-6) for x in answer.plans)
    assert slow.cost_usd < answer.plans[0].cost_usd <= fastest.cost_usd
    assert answer.n_missed > 0
    assert not answer.cannot
    assert "t1 is the cheapest of the plans found, which is not proven" in proof_text(answer)


def test_the_fastest_within_a_budget(free, cheapest):
    fastest, least = free.together.plans[0], cheapest.together.plans[0]
    budget = 0.5 * (fastest.cost_usd + least.cost_usd)
    result = solved(budget=budget)
    answer = result.together
    assert all(x.cost_usd <= budget for x in answer.plans)
    assert fastest.step_time_s < answer.plans[0].step_time_s <= least.step_time_s
    assert answer.bound_s <= fastest.step_time_s * (1 + 1e-9)
    assert all(plan.run.cost_usd <= budget for plan in result.plans)
    assert "within the limits or not" in proof_text(answer)
    assert f"${answer.plans[0].cost_usd:,.0f}" in together_sentence(answer)
    assert Result.from_json(result.to_json()).to_json() == result.to_json()


def test_a_deadline_that_no_plan_keeps_is_proven_where_the_bound_says_so(free):
    fastest = free.together.plans[0]
    none = solved(deadline="1h")
    assert not none.together.plans
    assert none.together.cannot == ("deadline_s",)
    assert none.together.n_missed > 0
    assert none.together.nearest["deadline_s"] == pytest.approx(fastest.expected_s)
    assert none.exit_code == 3
    assert "(proven by the bound of the step)" in " ".join(text_of(none.together).split())
    # Above the steps alone, below what failures make of them: nothing is proven.
    steps_s = fastest.step_time_s * 10e9 / (2048 * 16)
    seconds = 0.5 * (steps_s + fastest.expected_s)
    close = solved(deadline=f"{seconds / 86400.0:.9f}d").together
    assert not close.plans
    assert not close.cannot
    again = solved(deadline=f"{fastest.expected_s / 86400.0 + 1e-6:.9f}d").together
    assert again.plans[0].plan_id == fastest.plan_id


def test_a_step_limit(free):
    steps = [x.step_time_s for x in free.together.plans]
    answer = solved(step_limit_s=steps[0] * 1.0001).together
    assert [x.step_time_s for x in answer.plans] == [x for x in steps if x <= steps[0] * 1.0001]
    assert solved(step_limit_s=steps[0] / 2).together.cannot == ("step_limit_s",)


def test_what_is_not_known_keeps_no_limit(free):
    plan = replace(free.together.plans[0], cost_usd=None)
    assert keeps(plan, Limits())
    assert not keeps(plan, Limits(budget_usd=1e12))
    assert nearest_limits([plan], Limits(budget_usd=1.0)) == {}


def test_prices_and_tokens_are_asked_for():
    asked = {"pins": PINS, "executor": "serial", "pools": "together"}
    with pytest.raises(UsageError, match="--budget needs the tokens"):
        planner.solve(MODEL, PRICED, budget="1M", **asked)
    with pytest.raises(UsageError, match="budget needs a price, and pool old states none"):
        planner.solve(RUN, cluster({**NEW, "price_per_hour": 4.0}, OLD), budget="1M", **asked)


@pytest.mark.parametrize(("text", "usd"), [("2.5M", 2.5e6), ("$300k", 3e5), (12, 12.0)])
def test_budgets_are_read(text, usd):
    assert parse_budget(text) == usd


@pytest.mark.parametrize("text", ["0", "-1", "much", "nan"])
def test_budgets_that_are_none_are_refused(text):
    with pytest.raises(UsageError, match="--budget"):
        parse_budget(text)


def test_one_pool_keeps_a_budget():
    one = {"pins": {"tp": 1, "cp": 1}, "executor": "serial", "top": 20}
    alone = cluster({**NEW, "price_per_hour": 4.0, "nodes": 4})
    least = planner.solve(RUN, alone, objective="cost", **one).best.run.cost_usd
    fastest = planner.solve(RUN, alone, **one).best
    budget = 0.5 * (least + fastest.run.cost_usd)
    within = planner.solve(RUN, alone, budget=budget, **one)
    assert all(plan.run.cost_usd <= budget for plan in within.plans)
    assert within.plans[0].step_time_s > fastest.step_time_s
    none = planner.solve(RUN, alone, budget=0.5 * least, **one)
    assert not none.plans
    assert f"--budget {-int(-least // 1)}" in " ".join(text_of(none).split())


SHARDED = {**RUN, "training": {**RUN["training"], "seq_len": 4096, "global_batch": 48}}


def sharded(**keywords):
    """Return the answer for sharded replicas over the same pools."""
    asked = {"top": 5, "executor": "serial", "pools": "together", **keywords}
    return planner.solve(SHARDED, PRICED, framework="torchtitan", **asked)


@pytest.fixture(scope="module")
def free_sharded():
    """Sharded replicas without limits."""
    return sharded()


def test_sharded_replicas_keep_limits(free_sharded):
    first = free_sharded.together.plans[0]
    assert first.expected_s > 0.0
    assert first.cost_usd > 0.0
    assert first.step_time_p10_s < first.step_time_s < first.step_time_p90_s
    kept = sharded(step_limit_s=first.step_time_s * 1.001).together
    assert kept.plans[0].plan_id == first.plan_id
    assert kept.proven
    assert not kept.cannot
    assert not kept.links
    assert kept.limits == {"step_limit_s": first.step_time_s * 1.001}
    assert all(x.step_time_s <= first.step_time_s * 1.001 for x in kept.plans)


def test_limits_that_no_sharded_replicas_keep_are_proven(free_sharded):
    first = free_sharded.together.plans[0]
    missed = sharded(step_limit_s=first.step_time_s * 0.99).together
    assert not missed.plans
    assert missed.cannot == ("step_limit_s",)
    assert missed.nearest == {"step_limit_s": first.step_time_s}
    assert "keeps the limits, at best --step-limit" in together_sentence(missed)


def test_sharded_replicas_on_fewer_nodes_are_looked_at_where_money_decides(free_sharded):
    most = max(x.n_devices for x in free_sharded.together.plans)
    every = sharded(objective="cost", top=40).together
    assert min(x.n_devices for x in every.plans) < most
    costs = [x.cost_usd for x in every.plans]
    assert costs == sorted(costs)
    within = sharded(budget=costs[0] * 1.001).together
    assert all(x.cost_usd <= costs[0] * 1.002 for x in within.plans)
    assert "which is not proven" in proof_text(every)
