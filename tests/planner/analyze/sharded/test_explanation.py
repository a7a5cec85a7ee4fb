"""What explains a plan of sharded replicas."""

import json
from dataclasses import replace

import numpy as np
import pytest

import planner
from costmodels.mixed.sharded_prices import exchange, exchange_by_part_s, sharded_price
from planner.analyze.several_pools import explain_several, trace_several_json
from planner.analyze.sharded.terms import SHARDED_TERMS, sharded_term_values
from planner.cli.commands.plans import run_explain
from planner.errors import UsageError
from planner.render.answers.joined.explanation import joined_explanation_json
from planner.render.document import text_of
from planner.solver.answer.result_store import joined_plan_of
from planner.solver.together.opened import open_joined
from tests.planner.analyze.sharded.conftest import JOB, NEW, OLD
from tests.planner.solver.together.tiny import cluster, pool


def test_waits_and_slowdowns_sum_to_their_terms(plans):
    for opened in plans:
        found = explain_several(opened)
        for kind, traffic in zip(opened.plan.kinds, found.traffic, strict=True):
            own = traffic.gather_waits_s + traffic.scatter_waits_s + traffic.own_slowdown_s
            assert own == pytest.approx(kind.time["sync"], rel=1e-9)
            more = traffic.exchange_waits_s + traffic.exchange_slowdown_s
            assert more == pytest.approx(kind.time["exchange"], rel=1e-9)
            assert traffic.gather_waits_s <= traffic.gather_s
            assert traffic.exchange_waits_s <= traffic.exchange_s


def test_parts_sum_to_the_step(plans):
    for opened in plans:
        for kind in explain_several(opened).to_json()["together"]["kinds"]:
            assert sum(kind["time"].values()) == pytest.approx(kind["step_time_s"], rel=1e-9)
            whole = kind["step_time_s"] + kind["waits_s"]
            assert whole == pytest.approx(opened.plan.step_time_s, rel=1e-9)


def test_the_slowest_replicas_decide(plans):
    for opened in plans:
        found = explain_several(opened)
        slowest = opened.plan.kinds[found.binding_kind - 1]
        assert slowest.step_time_s == opened.plan.step_time_s
        full = found.fullest_stage
        shares = [x.peak_bytes / x.usable_bytes for k in opened.plan.kinds for x in k.stages]
        assert full.peak_bytes / full.usable_bytes == max(shares)


def test_the_longest_of_pools_and_links_holds_up_the_exchange(plans):
    for opened in plans:
        plan, problem = opened.sharded, opened.problem
        between = explain_several(opened).between
        total_s = exchange(problem, plan.degrees, plan.pools, plan.n_replicas).total_s
        assert between.micro_batch_s == pytest.approx(total_s, rel=1e-9)
        parts = sharded_term_values(opened, "exchange")[0]["micro_batch_s"]
        name = f"on {between.of}" if between.what == "pool" else f"link {between.of}"
        assert parts[name] == max(parts.values(), key=lambda x: x["dense layers"])
        assert [x.unit for x in between.units] == ["dense layers"]
        assert between.free_links_s <= opened.plan.step_time_s


def with_link(opened, **more):
    """Return a plan on other links between its pools."""
    links = {edge: replace(x, **more) for edge, x in opened.problem.links.items()}
    return replace(opened, job=replace(opened.job, sharded=replace(opened.problem, links=links)))


def test_dense_layers_and_experts_may_be_held_up_by_two_parts():
    moe = {**JOB["model"], "moe": {"experts": 4, "topk": 2, "moe_ffn": 4096}}
    result = planner.solve(
        {**JOB, "model": moe},
        cluster(NEW, OLD),
        framework="torchtitan",
        pools="together",
        executor="serial",
        top=1,
        at_most={"mbs": 2},
        pins={"recompute": "none", "tp": 1},
    )
    data = result.to_json()
    solved = open_joined(data, joined_plan_of(data, "t1"), "answer")
    free = with_link(solved, latency_s=0.0, bytes_per_s=1.0)
    pools, links = exchange_by_part_s(free.problem, free.sharded)
    (link_s,) = links.values()
    # Bandwidths at which the link takes as long as the slowest pool: for dense layers, experts.
    first, second = sorted(link_s / np.max(list(pools.values()), axis=0))
    assert first < 0.99 * second
    seen = set()
    for bytes_per_s in (0.5 * first, (first * second) ** 0.5, 2.0 * second):
        opened = with_link(solved, latency_s=0.0, bytes_per_s=bytes_per_s)
        plan, problem = opened.sharded, opened.problem
        found = explain_several(opened)
        between = found.between
        total_s = exchange(problem, plan.degrees, plan.pools, plan.n_replicas).total_s
        assert between.micro_batch_s == pytest.approx(total_s, rel=1e-9)
        assert sum(x.micro_batch_s for x in between.units) == pytest.approx(total_s, rel=1e-9)
        by_part = sharded_term_values(opened, "exchange")[0]["micro_batch_s"]
        for held in between.units:
            assert held.micro_batch_s == max(x[held.unit] for x in by_part.values())
        holders = {(x.what, x.of) for x in between.units}
        seen.add(len(holders))
        text = " ".join(text_of(found).split())
        assert ("holds it up" in text) == (len(holders) == 1)
        assert ("holds up experts" in text) == (len(holders) == 2)
    assert seen == {1, 2}


def test_what_slows_down_is_not_said_to_be_waited_for(plans):
    for opened in plans:
        found = explain_several(opened)
        traffic = found.traffic[found.binding_kind - 1]
        waits = f"{traffic.exchange_waits_s * 1e3:.1f} ms waited for"
        slowed = f"{traffic.exchange_slowdown_s * 1e3:.1f} ms slowed down"
        assert traffic.exchange_slowdown_s > 0.0
        text = " ".join(text_of(found).split())
        assert f"{waits} and {slowed}, a step" in text
        assert "not hidden" not in text
        assert all(SHARDED_TERMS[x].title in text for x in ("sync", "exchange"))
        assert "slowdown (x hidden)" in text_of(explain_several(opened, "exchange"))


def test_a_slow_link_holds_up_the_exchange(plans):
    opened = plans[0]
    slow = {edge: replace(x, bytes_per_s=1e9) for edge, x in opened.problem.links.items()}
    problem = replace(opened.problem, links=slow)
    priced = sharded_price(opened.sharded, problem)
    job = replace(opened.job, sharded=problem)
    plan = replace(opened.plan, step_time_s=priced.step_s)
    found = explain_several(replace(opened, job=job, priced=priced, plan=plan))
    assert (found.between.what, found.between.of) == ("link", "old - new")
    assert found.between.free_links_s < 0.5 * priced.step_s
    assert found.gains[0].what == "link"


def test_a_faster_pool_gains_only_where_it_decides(plans):
    opened = plans[0]
    found = explain_several(opened)
    gains = {(x.what, x.of): x.gain_percent for x in found.gains}
    slowest = opened.plan.kinds[found.binding_kind - 1].pools[0]
    assert gains["compute", slowest] > 0.0
    (other,) = set(opened.plan.devices) - {slowest}
    assert gains["compute", other] == pytest.approx(0.0, abs=1e-9)
    assert gains["network", slowest] >= 0.0


def test_other_plans_are_those_of_the_answer(data, plans):
    steps = {x["plan_id"]: x["step_time_s"] for x in data["together"]["plans"]}
    found = explain_several(plans[0])
    assert {x.plan_id for x in found.others} == set(steps) - {plans[0].plan.plan_id}
    for other in found.others:
        assert other.step_time_s == steps[other.plan_id]
        assert other.changes
        more = steps[other.plan_id] / plans[0].plan.step_time_s - 1.0
        assert other.more_frac == pytest.approx(more)


def test_links_carry_what_the_plan_says(plans):
    for opened in plans:
        (link,) = explain_several(opened).links
        assert link.exchange_bytes == pytest.approx(opened.plan.links[0].bytes)
        assert 0.0 < link.busy_frac < 1.0


def test_every_term_opens_with_its_numbers(plans):
    opened = plans[0]
    for term, text in SHARDED_TERMS.items():
        values = sharded_term_values(opened, term)
        assert [x["time_s"] for x in values] == [x.time[term] for x in opened.plan.kinds]
        assert text.equation in text_of(explain_several(opened, term))
        if term in ("compute", "sync", "exchange"):
            for value in values:
                assert sum(value["parts"].values()) == pytest.approx(value["time_s"], rel=1e-9)
    with pytest.raises(UsageError, match="has no term 'bubble'"):
        explain_several(opened, "bubble")


def test_the_command_prints_it(data, plans, tmp_path, capsys):
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(data))
    run_explain(f"{path}#t1", "", "json")
    printed = json.loads(capsys.readouterr().out)
    expected = joined_explanation_json(explain_several(plans[0]))
    assert printed == json.loads(json.dumps(expected))
    run_explain(f"{path}#t1", "", "table")
    assert "slowest replicas:" in capsys.readouterr().out
    assert explain_several(plans[0])._repr_html_()


@pytest.mark.slow
def test_three_pools_and_a_slow_link_keep_their_sums():
    link = {"between": ["new", "old"], "bandwidth": "5 GB/s", "latency": "1 ms"}
    few = pool("few", "h200-sxm-141gb")
    result = planner.solve(
        {**JOB, "training": {"seq_len": 4096, "global_batch": 60}},
        cluster(NEW, OLD, few, links=[link]),
        framework="fsdp2",
        pools="together",
        executor="serial",
        top=6,
    )
    data = result.to_json()
    used = set()
    for rank in range(1, len(data["together"]["plans"]) + 1):
        opened = open_joined(data, joined_plan_of(data, f"t{rank}"), "answer")
        used.add(len(opened.plan.devices))
        found = explain_several(opened)
        for kind, traffic in zip(opened.plan.kinds, found.traffic, strict=True):
            assert sum(kind.time.values()) == pytest.approx(kind.step_time_s, rel=1e-9)
            more = traffic.exchange_waits_s + traffic.exchange_slowdown_s
            assert more == pytest.approx(kind.time["exchange"], rel=1e-9, abs=1e-12)
        about = json.loads(trace_several_json(opened))["otherData"]
        assert about["trace_end_s"] == pytest.approx(opened.plan.step_time_s, rel=1e-9)
        if {"new", "old"} <= set(opened.plan.devices):
            assert (found.between.what, found.between.of) == ("link", "old - new")
    assert {2, 3} <= used
