"""One job over several pools: what holds of every answer."""

from pathlib import Path

import pytest

import planner
from planner.errors import SearchError, UsageError
from planner.render.document import text_of
from planner.solver.answer.result import Result
from tests.planner.solver.together.tiny import MODEL, NEW, OLD, PINS, cluster, pool

ROOT = Path(__file__).parents[4]


def solved(*pools, links=(), model=MODEL, **keywords):
    """Return the answer for one job over several pools."""
    options = {"pins": PINS, "top": 3, "executor": "serial", "pools": "together", **keywords}
    return planner.solve(model, cluster(*pools, links=links), **options)


@pytest.fixture(scope="module")
def both():
    return solved(NEW, OLD)


def steps(result):
    return [plan.step_time_s for plan in result.together.plans]


def test_a_second_pool_never_makes_the_best_plan_slower(both):
    together, fastest = both.together, both.plans[0].step_time_s
    assert together.joined == ("old", "new")
    assert together.pays
    assert together.plans[0].step_time_s < fastest
    alone = {x.pool: x.alone_s for x in together.worth}
    without = {x.pool: x.without_s for x in together.worth}
    assert min(alone.values()) == fastest
    assert without == {"new": alone["old"], "old": alone["new"]}
    assert all(x.is_used for x in together.worth)


def test_the_bound_is_proven_and_below_every_plan(both):
    together = both.together
    assert together.proven
    assert together.complete
    assert together.bound_s <= min(steps(both)) * (1 + 1e-9)


def test_plans_hold_the_job_and_fit_their_pools(both):
    for plan in both.together.plans:
        assert set(plan.devices) == {"new", "old"}
        assert sum(kind.n_sequences for kind in plan.kinds) == 16
        assert sum(kind.share for kind in plan.kinds) == pytest.approx(1.0)
        for kind in plan.kinds:
            assert sum(kind.time.values()) == pytest.approx(kind.step_time_s)
            assert sum(stage.layers for stage in kind.stages) == 4
            assert all(stage.peak_bytes <= stage.usable_bytes for stage in kind.stages)
        assert max(kind.step_time_s for kind in plan.kinds) == plan.step_time_s
        assert bool(plan.runs_on) != bool(plan.missing)


def test_a_job_that_fits_on_no_pool_alone_may_fit_on_both():
    one = pool("new", per_node=1), pool("old", "a100-sxm-80gb", per_node=1)
    keywords = {"pins": {}, "overrides": (("training.global_batch", 16),)}
    result = solved(*one, model="llama2-7b", **keywords)
    assert not result.plans
    assert result.together.pays
    assert result.exit_code == 0
    assert result.together.plans[0].devices == {"old": 1, "new": 1}
    assert all(x.alone_s is None for x in result.together.worth)
    # Found for pools apart, whose plans have more axes.
    assert not any("--pools" in x.command for x in result.relaxations)


def test_where_the_fastest_use_one_pool_the_bound_says_so():
    link = {"between": ["new", "old"], "bandwidth": "500 MB/s"}
    result = solved({**NEW, "nodes": 2}, OLD, links=[link])
    together = result.together
    assert not together.plans
    assert not together.pays
    assert together.gap is None
    assert together.bound_s <= together.worth[1].alone_s * (1 + 1e-2)
    assert "none over several takes less than" in " ".join(text_of(together).split())


def test_one_of_the_plans_runs_on_megatron(both):
    first = solved(NEW, OLD, top=1).together.plans
    assert any(plan.runs_on for plan in first)
    able = [plan for plan in both.together.plans if plan.runs_on]
    assert able
    grid = {(s.tp, s.cp, s.recompute) for kind in able[0].kinds for s in kind.stages}
    assert len(grid) == 1


def test_pools_apart_are_answered_as_ever():
    asked = {"pins": PINS, "executor": "serial"}
    apart = planner.solve(MODEL, cluster(NEW, OLD), **asked)
    named = planner.solve(MODEL, cluster(NEW, OLD), pools="apart", **asked)
    assert apart.dumps() == named.dumps()
    assert "together" not in apart.to_json()
    assert "pools" not in apart.inputs["options"]


def test_an_answer_reads_back(both):
    data = both.to_json()
    assert Result.from_json(data).to_json() == data


def test_every_field_is_described(both):
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")

    def names(value):
        if isinstance(value, dict):
            inner = (names(x) for x in value.values())
            return set(value).union(*inner) - {"new", "old"}
        return set().union(*map(names, value)) if isinstance(value, list) else set()

    assert not [x for x in sorted(names(both.to_json()["together"])) if f"`{x}`" not in text]


def test_plans_on_one_pool_are_those_of_pools_apart(both):
    apart = planner.solve(MODEL, cluster(NEW, OLD), pins=PINS, top=3, executor="serial")
    assert [plan.to_json() for plan in both.plans] == [plan.to_json() for plan in apart.plans]


def test_the_same_question_has_the_same_answer(both):
    assert solved(NEW, OLD).dumps() == both.dumps()


def test_names_and_order_of_pools_change_nothing_but_names(both):
    renamed = solved({**OLD, "name": "zeta"}, {**NEW, "name": "alpha"})
    names = {"zeta": "old", "alpha": "new"}
    assert steps(renamed) == steps(both)
    for one, other in zip(renamed.together.plans, both.together.plans, strict=True):
        assert {names[x]: n for x, n in one.devices.items()} == other.devices
        pools = [[names[x.pool] for x in kind.stages] for kind in one.kinds]
        assert pools == [[x.pool for x in kind.stages] for kind in other.kinds]


def test_two_pools_of_one_part_are_one_pool():
    halves = solved(pool("a"), pool("b"))
    whole = planner.solve(MODEL, cluster(pool("a", nodes=2)), pins=PINS, top=3, executor="serial")
    assert halves.together.merged == {"a+b": ("a", "b")}
    assert halves.together.joined == ()
    assert [x.step_time_s for x in halves.plans] == [x.step_time_s for x in whole.plans]


def test_two_pools_of_one_part_beside_another_are_one_pool():
    halves = solved(pool("a", per_node=1), pool("b", per_node=1), OLD)
    whole = solved(pool("a", nodes=2, per_node=1), OLD)
    assert steps(halves) == steps(whole)


def test_a_link_that_is_stated_keeps_pools_of_one_part_apart():
    link = {"between": ["a", "b"], "bandwidth": "100 GB/s"}
    result = solved(pool("a"), pool("b"), links=[link])
    assert result.together.merged == {}
    assert result.together.joined == ("a", "b")


def test_more_bandwidth_between_pools_never_hurts():
    fastest = []
    for bandwidth in ("1 GB/s", "10 GB/s", "100 GB/s", "1 TB/s"):
        link = {"between": ["new", "old"], "bandwidth": bandwidth}
        fastest.append(min(steps(solved(NEW, OLD, links=[link]))))
    assert fastest == sorted(fastest, reverse=True)
    assert fastest[-1] < fastest[0]


def test_a_link_between_places_says_from_which_bandwidth_on_it_pays():
    def linked(bytes_per_s):
        link = {
            "between": ["new", "old"],
            "bandwidth": f"{bytes_per_s} B/s",
            "latency": "1 ms",
            "wan": True,
            "price_per_gb": 0.1,
        }
        return solved(NEW, OLD, links=[link]).together

    (worth,) = linked(1e9).links
    least = worth.from_bytes_per_s
    assert worth.stated_bytes_per_s == 1e9
    more, less = linked(1.05 * least), linked(0.7 * least)
    assert more.pays
    assert not less.pays
    first = more.plans[0]
    (crossing,) = first.links
    assert crossing.wan
    assert crossing.usd == pytest.approx(crossing.bytes * 0.1e-9)


def test_a_pool_that_slows_the_rest_is_left_out():
    link = {"between": ["new", "old"], "bandwidth": "1 MB/s", "latency": "1 s", "wan": True}
    together = solved(NEW, OLD, links=[link]).together
    assert not together.pays
    assert [x.pool for x in together.worth if not x.is_used] == ["old"]


def test_three_pools_say_what_each_adds():
    third = pool("third", "h200-sxm-141gb")
    result = solved(NEW, OLD, third)
    best_s = result.together.plans[0].step_time_s
    assert {x.pool for x in result.together.worth} == {"new", "old", "third"}
    for worth in result.together.worth:
        assert worth.without_s >= best_s
    pair = solved(NEW, OLD)
    (worth,) = [x for x in result.together.worth if x.pool == "third"]
    assert worth.without_s == pytest.approx(min(steps(pair)), rel=1e-6)


def test_objectives_rank_plans():
    priced = {**NEW, "price_per_hour": 3.0}, {**OLD, "price_per_hour": 1.0}
    by_cost = solved(*priced, objective="cost").together
    costs = [plan.usd_per_million_tokens for plan in by_cost.plans]
    assert costs == sorted(costs)
    first = by_cost.plans[0]
    hourly = 3.0 * first.devices["new"] + 1.0 * first.devices["old"]
    tokens = 16 * 2048
    expected = hourly / 3600 * first.step_time_s / first.goodput_frac / tokens * 1e6
    assert costs[0] == pytest.approx(expected)
    unpriced = solved(NEW, OLD).together.plans[0]
    assert unpriced.usd_per_million_tokens is None
    assert unpriced.energy_j_per_token > 0


def test_nodes_that_are_taken_away_cost_goodput():
    spot = {**OLD, "device_mtbf": "20 h"}
    steady, often = solved(NEW, OLD).together, solved(NEW, spot, objective="goodput").together
    assert often.plans[0].goodput_frac < steady.plans[0].goodput_frac
    assert often.plans[0].plan_id in {x.plan_id for x in steady.plans}


def test_pools_that_cannot_be_joined_are_planned_alone():
    amd = pool("amd", "mi300x-192gb", per_node=1)
    together = solved(NEW, OLD, amd, pins={**PINS, "mbs": 1}).together
    assert together.joined == ("old", "new")
    assert "no collective library joins" in together.alone["amd"]


def test_a_pool_without_units_of_the_precision_is_planned_alone():
    model = {**MODEL, "training": {**MODEL["training"], "precision": "fp8-tensorwise"}}
    together = solved(NEW, OLD, model=model).together
    assert together.joined == ()
    assert "fp8" in together.alone["old"]
    assert "no other pool" in together.alone["new"]


def test_one_pool_is_joined_with_nothing():
    result = solved(NEW)
    assert result.together.joined == ()
    assert result.exit_code == 0


def test_a_search_that_is_stopped_says_so():
    result = solved(NEW, OLD, time_limit_s=1e-9)
    assert not result.together.complete
    assert not result.together.proven
    assert result.stopped == "time limit"
    assert result.exit_code == 4
    assert "stopped" in text_of(result.together)


REFUSED = [
    ({"pool": "new"}, "--pools together and --pool new contradict"),
    ({"pools": "all"}, "--pools: unknown 'all'"),
    ({"framework": "deepspeed"}, "no configuration of deepspeed holds a job over unlike pools"),
    ({"pareto": "step_time,memory"}, "has no front"),
    ({"objective": "memory"}, "is not ranked by memory"),
    ({"pins": {"vpp": 2}}, "have no axis vpp"),
    ({"only": {"schedule": ["1f1b"]}}, "have no axis schedule"),
    ({"pins": {"zero": 3}}, "ZeRO stage 3 is not modelled"),
]


@pytest.mark.parametrize(("keywords", "message"), REFUSED)
def test_what_is_not_planned_over_several_pools_is_refused(keywords, message):
    with pytest.raises(UsageError) as caught:
        solved(NEW, OLD, **keywords)
    assert message in str(caught.value)


def test_more_pools_than_are_searched_are_refused():
    pools = [pool(f"p{i}", nodes=1, per_node=1, memory_margin=f"{i + 1} GiB") for i in range(9)]
    with pytest.raises(SearchError, match="one job over 9 pools is not searched: 8 at most"):
        solved(*pools)


def test_models_that_are_not_modelled_over_several_pools_are_refused():
    model = {**MODEL, "model": {**MODEL["model"], "mtp_layers": 1}}
    with pytest.raises(SearchError, match="multi-token prediction: not modelled"):
        solved(NEW, OLD, model=model)
    muon = {**MODEL, "training": {**MODEL["training"], "optimizer": "muon"}}
    with pytest.raises(SearchError, match="optimizer muon"):
        solved(NEW, OLD, model=muon)


def test_the_section_of_a_model_file_asks_for_it_and_the_caller_wins():
    model = {**MODEL, "search": {"pools": "together", "pin": PINS}}
    asked = {"executor": "serial", "top": 1}
    result = planner.solve(model, cluster(NEW, OLD), **asked)
    assert result.together.plans
    assert planner.solve(model, cluster(NEW, OLD), pool="new", **asked).together is None


def test_only_plans_that_megatron_runs_where_it_is_named():
    result = solved(NEW, OLD, framework="megatron")
    assert result.together.plans
    assert all(plan.runs_on == ("megatron",) for plan in result.together.plans)
