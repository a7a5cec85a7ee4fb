"""Sharded replicas over several pools: what holds of every answer."""

from dataclasses import replace
from pathlib import Path

import pytest

import planner
from costmodels.mixed.tables import LinkFacts
from planner.errors import SearchError, UsageError
from planner.render.answers.plan_table import plans_csv
from planner.render.card.joined import joined_card
from planner.render.document import text_of
from planner.solver.answer.result import Result
from planner.solver.answer.result_store import joined_plan_of
from planner.solver.together.opened import open_joined
from planner.solver.together.sharded import pays_from_bytes_per_s, with_bandwidth
from planner.solver.together.words import pipelines_text
from searches.sharded_replicas import search_sharded
from tests.costmodels.mixed.sharded_instances import instance
from tests.planner.solver.together.tiny import MODEL, cluster, pool

ROOT = Path(__file__).parents[4]
NEW, OLD = pool("new", nodes=2), pool("old", "a100-sxm-80gb", nodes=2)
LONG = {**MODEL, "training": {"seq_len": 4096, "global_batch": 48}}


def solved(*pools, framework="torchtitan", model=LONG, links=(), **keywords):
    """Return the answer for sharded replicas over several pools."""
    options = {"top": 3, "executor": "serial", "pools": "together", **keywords}
    return planner.solve(model, cluster(*pools, links=links), framework=framework, **options)


@pytest.fixture(scope="module")
def both():
    return solved(NEW, OLD)


def steps(result):
    return [plan.step_time_s for plan in result.together.plans]


def test_replicas_shard_everything_and_take_unequal_batches(both):
    together = both.together
    assert together.joined == ("old", "new")
    first = together.plans[0]
    for plan in together.plans:
        assert plan.zero == 3
        assert plan.runs_on == ("torchtitan",)
        assert not plan.missing
        assert set(plan.devices) == {"new", "old"}
        assert sum(kind.n_sequences for kind in plan.kinds) == 48
        assert len({kind.n_micro for kind in plan.kinds}) == 1
        for kind in plan.kinds:
            (stage,) = kind.stages
            assert stage.layers == 4
            assert stage.peak_bytes <= stage.usable_bytes
            assert sum(kind.time.values()) == pytest.approx(kind.step_time_s)
            assert kind.n_pipelines % plan.shard == 0
            assert kind.n_sequences == kind.n_pipelines * kind.mbs * kind.n_micro
        assert max(kind.step_time_s for kind in plan.kinds) == plan.step_time_s
    mbs = {kind.pools[0]: kind.mbs for kind in first.kinds}
    assert mbs["new"] > mbs["old"]


def test_the_answer_is_proven_and_beside_the_plans_of_each_pool(both):
    together = both.together
    assert together.proven
    assert together.bound_s == min(steps(both))
    assert together.pays
    assert together.plans[0].step_time_s < min(x.alone_s for x in together.worth)
    assert {plan.framework for plan in both.plans if hasattr(plan, "framework")} <= {"torchtitan"}


def test_fsdp2_runs_them_without_sequence_parallelism(both):
    other = solved(NEW, OLD, framework="fsdp2")
    assert other.together.plans[0].runs_on == ("fsdp2",)
    assert steps(other) != steps(both)


def test_no_framework_keeps_the_plans_of_pipelines(both):
    plain = solved(NEW, OLD, framework="megatron", top=1).together.plans
    assert all(plan.zero < 3 for plan in plain)
    assert all("shard" not in plan.to_json() for plan in plain)
    assert both.together.plans[0].to_json()["shard"] == both.together.plans[0].shard


def test_an_answer_reads_back(both):
    data = both.to_json()
    assert Result.from_json(data).to_json() == data


def test_every_field_is_described(both):
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert "`shard`" in text
    assert both.to_json()["together"]["plans"][0].keys() - {"shard"}


def test_names_and_order_of_pools_change_nothing_but_names(both):
    renamed = solved({**OLD, "name": "zeta"}, {**NEW, "name": "alpha"})
    assert steps(renamed) == steps(both)
    names = {"zeta": "old", "alpha": "new"}
    for one, other in zip(renamed.together.plans, both.together.plans, strict=True):
        assert {names[x]: n for x, n in one.devices.items()} == other.devices


def test_more_bandwidth_between_pools_never_hurts():
    found = [
        solved(NEW, OLD, links=[{"between": ["new", "old"], "bandwidth": rate}])
        for rate in ("1 GB/s", "10 GB/s", "1 TB/s")
    ]
    best = [min(steps(result)) for result in found]
    assert best == sorted(best, reverse=True)
    assert best[0] > best[-1]


def test_a_wan_link_says_from_which_bandwidth_on_it_pays():
    link = {"between": ["new", "old"], "bandwidth": "1 Gb/s", "latency": "20 ms", "wan": True}
    (worth,) = solved(NEW, OLD, links=[link]).together.links
    assert worth.from_bytes_per_s is None or worth.from_bytes_per_s > worth.stated_bytes_per_s


def test_a_link_pays_from_where_a_plan_over_it_beats_the_rest():
    times = [{(n, "none"): n * each for n in range(1, 7)} for each in (1.0, 2.0)]
    peaks = [dict.fromkeys(own, 0.5) for own in times]
    problem = instance([1, 1], times, peaks, 12, LinkFacts(1e13, 0.0))
    apart_s = 5.5
    least = pays_from_bytes_per_s(problem, (0, 1), search_sharded(problem).plans, apart_s)

    def best_s(rate):
        changed = with_bandwidth(problem, (0, 1), rate)
        return search_sharded(changed).prices[0].step_s

    assert best_s(1.01 * least) < apart_s <= best_s(0.99 * least)
    assert pays_from_bytes_per_s(problem, (0, 1), (), 0.1) is None


def test_a_third_pool_that_slows_the_rest_is_left_out():
    slow = {"between": ["new", "far"], "bandwidth": "10 MB/s"}
    far = pool("far", "h200-sxm-141gb")
    result = solved(NEW, OLD, far, links=[slow, {**slow, "between": ["old", "far"]}], top=1)
    assert set(result.together.plans[0].devices) == {"new", "old"}
    assert {x.pool: x.is_used for x in result.together.worth}["far"] is False


def test_what_is_pinned_is_kept():
    result = solved(NEW, OLD, pins={"tp": 2, "recompute": "full"}, at_most={"mbs": 2})
    for plan in result.together.plans:
        for kind in plan.kinds:
            assert (kind.stages[0].tp, kind.stages[0].recompute) == (2, "full")
            assert kind.mbs <= 2


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"pins": {"mbs": 2}}, "--max mbs"),
        ({"pins": {"zero": 1}}, "zero=3"),
        ({"pins": {"pp": 2}}, "dp_shard"),
        ({"framework": "torchtitan@0.2.2"}, "0.3.0"),
        ({"framework": "deepspeed"}, "torchtitan"),
    ],
)
def test_what_such_plans_do_not_have_is_refused(keywords, said):
    with pytest.raises(UsageError) as caught:
        solved(NEW, OLD, **keywords)
    assert said.lstrip("-") in f"{caught.value.message} {caught.value.hint}"


def test_a_batch_that_no_two_pools_share_is_told():
    one = {**MODEL, "training": {"seq_len": 4096, "global_batch": 3}}
    result = solved(NEW, OLD, model=one)
    assert not result.together.plans
    assert "fits" in text_of(result.together)


def test_a_model_that_no_replica_runs_is_told():
    odd = {**LONG, "model": {**LONG["model"], "heads": 15, "kv_heads": 15, "head_dim": 128}}
    with pytest.raises(SearchError) as caught:
        solved(NEW, OLD, model=odd, only={"tp": [2]})
    assert "replicas" in caught.value.message or caught.value.hint


def test_tables_card_and_rows_say_replicas(both):
    plan = both.together.plans[0]
    text = text_of(both.together)
    assert "sharded replicas on different pools" in text
    assert "ZeRO 3" in text
    card = joined_card(plan)
    assert sum(x.amount for x in card.step.segments) == pytest.approx(plan.step_time_s)
    assert [row.pipelines for row in card.drawing.rows] == [
        kind.n_pipelines // plan.shard for kind in plan.kinds
    ]
    assert f"shard{plan.shard}" in pipelines_text(plan)
    assert plans_csv(both).splitlines()[1].startswith("t1,")


def test_plans_open_as_the_answer_has_them(both):
    data = both.to_json()
    for rank, saved in enumerate(both.together.plans, 1):
        opened = open_joined(data, joined_plan_of(data, f"t{rank}"), "last")
        assert opened.note == ""
        assert opened.plan.plan_id == saved.plan_id
        assert opened.plan.step_time_s == pytest.approx(saved.step_time_s, rel=1e-12)
        for now, then in zip(opened.plan.kinds, saved.kinds, strict=True):
            assert now.time == pytest.approx(then.time, rel=1e-12)
            assert now.stages[0].peak_bytes == pytest.approx(then.stages[0].peak_bytes)
        assert opened.plan.links == saved.links


@pytest.mark.parametrize(
    "change",
    [
        {"kinds": []},
        {"kinds": [{}]},
        {"kinds": 3},
        {"links": [{"between": 1}]},
        {"shard": "x"},
        {"step_time_s": None},
        {"step_time_s": "1"},
        {"step_time_s": -1.0},
        {"step_time_s": float("nan")},
        {"more": 1},
    ],
)
def test_an_answer_that_was_edited_is_not_read(both, change):
    data = both.to_json()
    first, *rest = data["together"]["plans"]
    edited = {**data["together"], "plans": [{**first, **change}, *rest]}
    with pytest.raises(SearchError, match="edited by hand"):
        joined_plan_of({**data, "together": edited}, "t1")


def test_a_plan_that_was_edited_is_not_opened(both):
    data = both.to_json()
    plan = joined_plan_of(data, "t1")
    kind = plan.kinds[0]
    for change in ({"mbs": 2 * kind.mbs}, {"n_micro": 7}, {"pools": ("strange",)}):
        more = replace(plan, kinds=(replace(kind, **change), *plan.kinds[1:]))
        with pytest.raises(SearchError, match="edited by hand"):
            open_joined(data, more, "last")
