"""Plans over several pools that lose nodes."""

import json
from dataclasses import replace

import pytest

import planner
from costmodels.axes import RANK_ORDERS
from costmodels.mixed.prices import fits
from planner.analyze.joined.moving import network_move
from planner.analyze.joined.nodes import LostNodes, lost_nodes, lost_texts
from planner.analyze.joined.replan import best_of, passed_over, replan_joined
from planner.analyze.joined_files import layout_of, rank_pools
from planner.analyze.replan.gained import gained_of_text
from planner.analyze.replan.resharding import holdings
from planner.cli.commands.plans import ReplanArguments, run_replan
from planner.errors import UsageError
from planner.render.document import text_of
from planner.solver.answer.result_store import joined_plan_of
from planner.solver.execution import Execution
from planner.solver.together.fewer import with_fewer_pipelines
from planner.solver.together.opened import open_joined
from planner.solver.together.plans import PlanRecords
from searches.executors.executor import SerialExecutor
from service.handlers.calls import CALLS, call
from tests.planner.solver.together.tiny import MODEL, PINS, cluster, pool

NEW, OLD = pool("new", nodes=2), pool("old", "a100-sxm-80gb", nodes=2)
ASKED = {
    "only": {axis: (value,) for axis, value in PINS.items()},
    "top": 4,
    "executor": "serial",
    "pools": "together",
    "framework": "megatron",
}
"""Lists are kept where pins are not."""
RUN = Execution(SerialExecutor())


@pytest.fixture(scope="module")
def data():
    """Pools of two nodes each, hosts named."""
    named = cluster({**NEW, "hosts": "n[1-2]"}, {**OLD, "hosts": "o[1-2]"})
    solved = planner.solve(MODEL, named, **ASKED)
    return solved.to_json()


@pytest.fixture(scope="module")
def opened(data):
    return open_joined(data, joined_plan_of(data, "t1"), "answer")


@pytest.fixture(scope="module")
def moved(opened):
    """A node of one pool is gone."""
    return replan_joined(opened, RUN, lost=("old=1",))


def test_the_best_plan_is_that_of_a_search_on_what_is_left(opened, moved):
    left = cluster({**NEW, "hosts": "n[1-2]"}, {**OLD, "nodes": 1, "hosts": "o1"})
    fresh = planner.solve(MODEL, left, **ASKED)
    assert not fresh.together.pays
    first = min(fresh.plans, key=lambda x: x.step_time_s)
    assert moved.best.step_time_s == pytest.approx(first.step_time_s)
    assert moved.lost.nodes == {"new": (2, 2), "old": (2, 1)}
    assert moved.lost.names == ("o2",)
    assert moved.is_hit
    assert moved.verdict in ("move", "carry on")
    assert moved.best.step_time_s >= opened.plan.step_time_s
    assert {axis for axis, _, _ in moved.changes} >= {"devices"}


@pytest.mark.slow
def test_the_best_plan_may_use_several_pools_again(opened):
    found = replan_joined(opened, RUN, lost=("n2",))
    left = cluster({**NEW, "nodes": 1, "hosts": "n1"}, {**OLD, "hosts": "o[1-2]"})
    fresh = planner.solve(MODEL, left, **ASKED)
    assert fresh.together.pays
    assert found.best.plan_id == fresh.together.plans[0].plan_id
    assert set(found.best.devices) == {"new", "old"}
    assert found.best.name == "plan t1"


def test_a_plan_that_runs_is_replaced_by_one_that_runs(opened):
    result = replan_joined(opened, RUN, lost=("n2",)).result
    first, *others = result.together.plans
    plans = (replace(first, runs_on=()), *others)
    told = replace(result, together=replace(result.together, plans=plans))
    assert best_of(told, "step_time", runs=False) == plans[0]
    found = best_of(told, "step_time", runs=True)
    assert found in (*others, result.plans[0])
    assert found.runs_on
    assert found.step_time_s > first.step_time_s
    assert "no framework has what it takes" in passed_over(told, found)[0]
    assert not passed_over(result, found)


def test_the_old_layout_goes_on_with_fewer_pipelines(opened, moved):
    carried = moved.carry_on
    old = sum(kind.n_pipelines for kind in opened.plan.kinds)
    assert sum(kind.n_pipelines for kind in carried.kinds) < old
    assert sum(kind.n_sequences for kind in carried.kinds) == 16
    assert carried.devices["old"] <= 2
    assert carried.step_time_s >= moved.best.step_time_s
    assert moved.carry_on_stop_s == moved.move.stop_s > 600.0


def test_idle_nodes_that_are_lost_stop_nothing(opened):
    # Only the plan's own copy says that it leaves a node of `old` idle.
    kind = opened.mixed.kinds[0]
    half = replace(kind, n_pipelines=2, n_sequences=16, n_micro=8)
    joined = opened.joined
    plan = replace(opened.mixed, kinds=(half,))
    priced = joined.price(plan)
    record = PlanRecords(opened.model, opened.cluster, joined, opened.options.calibration).record(
        plan, priced, 1
    )
    fewer = replace(opened, mixed=plan, priced=priced, plan=record, saved=record)
    assert record.devices["old"] == 2
    found = replan_joined(fewer, RUN, lost=("o2",))
    assert not found.is_hit
    assert found.carry_on_stop_s == 0.0
    assert found.reason == "as it was"


def test_a_pool_that_is_gone_leaves_plans_on_the_other(opened):
    found = replan_joined(opened, RUN, lost=("old=2",))
    assert found.carry_on is None
    assert "nothing is left of pool old" in found.reason
    assert found.verdict == "move"
    assert found.break_even_s is None
    assert set(found.best.devices) == {"new"}
    assert "cannot go on" in text_of(found)


def test_pipelines_leave_until_the_devices_are_enough(opened):
    mixed, problem = opened.mixed, opened.joined.mixed
    assert with_fewer_pipelines(mixed, problem) is not None
    for n in range(1, 5):
        small = replace(problem, pools=tuple(replace(x, n_devices=n) for x in problem.pools))
        fewer = with_fewer_pipelines(mixed, small)
        if fewer is not None:
            assert all(fewer.n_devices(i) <= n for i in fewer.pools)
            assert fewer.n_sequences == mixed.n_sequences


def test_unequal_shares_go_by_speed(opened):
    mixed, problem = opened.mixed, opened.joined.mixed
    first = mixed.kinds[0]
    kinds = (
        replace(first, n_pipelines=1, n_sequences=10, n_micro=10),
        replace(first, n_pipelines=1, n_sequences=6, n_micro=6),
    )
    plan = replace(mixed, kinds=kinds)
    assert not plan.is_uniform
    fewer = with_fewer_pipelines(plan, problem)
    assert [kind.n_sequences for kind in fewer.kinds] == [8, 8]
    assert fits(fewer, problem, opened.joined.price(fewer))


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (1, "one of them lost it"),
        (("1",), "one of them lost it"),
        (("cold=1",), "no pool 'cold'"),
        (("old=3",), "runs on 2 nodes of old"),
        (("old=0",), "runs on 2 nodes of old"),
        (("old=x",), "runs on 2 nodes of old"),
        (("x7",), "no pool has a host 'x7'"),
        ((), "no node is lost or gained"),
        (("old=2", "new=2"), "no node is left"),
        (("old=1", "old=2"), "pool old is named twice"),
        (("o1", "old=1"), "pool old is named twice"),
        (("old=1", "o1"), "a number of pool old is named too"),
    ],
)
def test_nodes_that_are_not_there_are_refused(opened, lost, message):
    with pytest.raises(UsageError, match=message):
        replan_joined(opened, RUN, lost=lost)


def test_a_pool_that_the_plan_does_not_use_has_no_nodes_to_lose(opened):
    saved = replace(opened.saved, devices={"old": 4})
    with pytest.raises(UsageError, match="uses no node of new, and runs on as it is"):
        lost_nodes(opened.cluster, saved, ("new=1",))


def test_nodes_that_join_a_pool_are_planned_for(opened):
    grown = replan_joined(opened, RUN, lost=(), gained={"new": 1})
    assert grown.lost.nodes["new"] == (2, 3)
    assert not grown.is_hit
    assert grown.carry_on.plan_id
    assert grown.reason == "as it was"
    assert grown.carry_on_stop_s == 0.0
    assert grown.move.redo_s == 0.0
    assert grown.move.stop_s >= grown.move.restart_s + grown.move.write_s > grown.move.restart_s
    assert grown.best.step_time_s <= grown.carry_on.step_time_s * (1 + 1e-9)
    assert grown.to_json()["nodes"]["gained"] == 1
    assert grown.to_json()["nodes"]["pools"]["new"] == {"before": 2, "after": 3}
    text = " ".join(text_of(grown).split())
    assert "new 2 -> 3" in text
    assert "1 gained" in text
    both = replan_joined(opened, RUN, lost=("old=1",), gained={"new": 1, "old": 1})
    assert both.lost.nodes == {"new": (2, 3), "old": (2, 2)}
    assert both.is_hit


@pytest.mark.parametrize(
    ("gained", "message"),
    [
        (1, "one of them grew"),
        ({"cold": 1}, "no pool 'cold'"),
        ({"old": 0}, "no number of nodes"),
        ({}, "no node is lost or gained"),
    ],
)
def test_nodes_that_join_are_named_by_pool(opened, gained, message):
    with pytest.raises(UsageError, match=message):
        replan_joined(opened, RUN, lost=(), gained=gained)


@pytest.mark.parametrize("text", ["old", "old=x", "old=1,old=2", "1.5", "old=-1"])
def test_texts_that_name_no_nodes_are_refused(text):
    with pytest.raises(UsageError, match="gained"):
        gained_of_text(text)


def test_stops_of_equal_length_pay_at_once(moved):
    assert moved.verdict == "move"
    assert moved.move.stop_s == moved.carry_on_stop_s
    assert moved.break_even_s == pytest.approx(moved.move.stop_s)
    assert "carrying on stops training as long" in " ".join(text_of(moved).split())
    later = replace(moved, is_hit=False)
    assert later.break_even_s > later.move.stop_s
    assert "for more than" in " ".join(text_of(later).split())


def test_a_plan_that_stays_moves_nothing(opened):
    gone = LostNodes({}, opened.cluster, {"new": 1})
    found = network_move(opened, gone, gone.left(), opened.plan)
    assert found.total_bytes == 0.0
    assert found.network_s == 0.0


def test_devices_that_join_lack_what_their_ranks_hold(opened):
    """Of a plan on nodes that all are new every byte moves."""
    gone = LostNodes({}, opened.cluster, {"new": 2, "old": 2})
    left = gone.left()
    layout = layout_of(opened.plan, opened.model)
    job = opened.joined.problems[0].job
    held = holdings(layout, opened.model.shape, job.seq_len)
    each = job.recipe.param_bytes, job.recipe.state_bytes
    lost = LostNodes({"new": frozenset((0, 1))}, opened.cluster, {"new": 2})
    moved = network_move(opened, lost, left, opened.plan)
    pools = rank_pools(opened.plan, RANK_ORDERS[0])
    own = [n for n, pool in zip(held.bytes_held(*each), pools, strict=True) if pool == "new"]
    assert moved.total_bytes == pytest.approx(sum(own))
    assert moved.max_bytes == pytest.approx(max(own))


def test_the_network_moves_what_the_nodes_left_hold(opened):
    grown = replan_joined(opened, RUN, lost=(), gained={"new": 1}, via="network")
    assert grown.move.via == "network"
    assert grown.move.stop_s == max(grown.move.restart_s, grown.move.network_s)
    assert "(through the network)" in " ".join(text_of(grown).split())
    lost = replan_joined(opened, RUN, lost=("old=1",), via="network")
    if lost.move.network_s is None:  # ZeRO keeps pieces of the optimizer on one device alone
        assert lost.move.via == "checkpoint"
        assert any("nowhere else" in note for note in lost.notes)
    else:
        assert lost.move.via == "network"


def test_plans_without_ranks_go_through_a_checkpoint(opened):
    plan = replace(opened.plan, missing=("unequal shares",), runs_on=())
    gone = LostNodes({}, opened.cluster, {"new": 1})
    found = network_move(replace(opened, plan=plan), gone, gone.left(), opened.plan)
    assert found == "plan t1: no framework has unequal shares"


def test_hosts_and_numbers_are_read():
    assert lost_texts("old=1,new=2") == ("old=1", "new=2")
    assert lost_texts("n[1-2]") == ("n1", "n2")
    assert lost_texts("") == ()
    with pytest.raises(UsageError):
        lost_texts("n[")


def test_lost_hosts_leave_the_others_their_names(opened):
    gone = lost_nodes(opened.cluster, opened.saved, ("n1", "old=1"))
    left = gone.left()
    assert [source.hosts for source in left.sources] == [("n2",), ("o1",)]


def test_command_and_service_say_the_same(data, moved, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(data))
    code = run_replan(f"{path}#t1", ReplanArguments(lost="old=1", form="json"))
    assert code == moved.exit_code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(moved.dumps())
    answer = call("replan", {"result": data, "plan": "t1", "lost": "old=1", "with_text": True})
    CALLS["replan"].answer.model_validate(answer)
    assert answer.pop("text").startswith(f"plan {moved.old.plan_id}:")
    assert answer == printed
    run_replan("last#t1", ReplanArguments(lost="new=1", form="table"))
    assert "what changes" in capsys.readouterr().out
