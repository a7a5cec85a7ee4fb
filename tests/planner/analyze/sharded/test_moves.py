"""Plans of sharded replicas set side by side, and on other nodes."""

import json
from dataclasses import replace

import pytest

from planner.analyze.joined.comparison import compare_joined
from planner.analyze.joined.replan import replan_joined
from planner.cli.commands.inspection import run_diff
from planner.errors import UsageError
from planner.render.document import text_of
from planner.solver.answer.result_store import plan_of_result
from planner.solver.execution import Execution
from searches.executors.executor import SerialExecutor

RUN = Execution(SerialExecutor())


def test_two_plans_are_compared_by_term(plans):
    first, second = plans[:2]
    found = compare_joined(first, second)
    assert found.winner == "A"
    assert compare_joined(second, first).winner == "B"
    for side, opened in ((found.a, first), (found.b, second)):
        assert sum(side.time.values()) == pytest.approx(opened.plan.step_time_s, rel=1e-9)
        assert int(side.axes["replicas"]) == opened.sharded.n_replicas
        assert int(side.axes["shard"]) == opened.sharded.degrees.shard
        assert "sharded replica" in side.layout
    assert found.layout
    assert text_of(found)


def test_a_plan_on_one_pool_is_compared_too(data, plans):
    alone = plan_of_result(data, "1", "answer")
    found = compare_joined(plans[0], alone)
    assert sum(found.b.time.values()) == pytest.approx(alone[3].step_time_s, rel=1e-9)
    layout = alone[3].layout
    expected = max(1, layout.dp_shard // layout.cp) if layout.zero == 3 else 1
    assert int(found.b.axes["shard"]) == expected
    assert int(found.b.axes["replicas"]) == layout.dp // expected


def test_the_command_compares(data, tmp_path, capsys):
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(data))
    run_diff(f"{path}#t1", f"{path}#1", "json")
    assert json.loads(capsys.readouterr().out)["winner"] == "A"


@pytest.fixture(scope="module")
def after_a_loss(plans):
    """A plan of replicas of one node, and what to do after one of them is gone."""
    opened = next(x for x in plans if x.sharded.degrees.n_devices == 2)
    return opened, replan_joined(opened, RUN, lost=("old=1",))


def test_replicas_that_are_left_take_the_whole_batch(after_a_loss):
    opened, found = after_a_loss
    carried = found.carry_on
    assert carried is not None
    assert found.lost.nodes == {"new": (2, 2), "old": (2, 1)}
    assert sum(kind.n_sequences for kind in carried.kinds) == 48
    assert carried.shard == opened.plan.shard
    assert carried.devices["old"] <= 2
    for kind in carried.kinds:
        stage, old = kind.stages[0], opened.plan.kinds[0].stages[0]
        assert (stage.tp, stage.cp, stage.recompute) == (old.tp, old.cp, "none")
        assert stage.peak_bytes <= stage.usable_bytes
        assert sum(kind.time.values()) == pytest.approx(kind.step_time_s, rel=1e-9)
    assert found.reason.startswith("replicas ")
    # A search over all layouts finds nothing slower than the old one.
    assert found.best is not None
    assert found.best.step_time_s <= carried.step_time_s * (1.0 + 1e-9)


def test_moving_through_the_network_is_known(after_a_loss):
    opened, found = after_a_loss
    assert found.move.total_bytes is not None
    assert found.move.total_bytes <= found.move.checkpoint_bytes * opened.sharded.n_replicas
    again = replan_joined(opened, RUN, lost=("o2",), via="network")
    assert again.carry_on == found.carry_on
    assert again.move.via == "network"
    assert text_of(again)


def test_a_pool_without_room_for_a_replica_cannot_carry_on(plans):
    opened = next(x for x in plans if x.sharded.degrees.n_devices == 4)
    found = replan_joined(opened, RUN, lost=("old=1",))
    assert found.carry_on is None
    assert found.reason == "pool old has 2 devices left, a replica takes 4"
    gone = replan_joined(opened, RUN, lost=("old=2",))
    assert gone.reason == "nothing is left of pool old, which it uses"
    assert gone.best is not None
    assert list(gone.best.devices) == ["new"]


def test_nodes_that_join_leave_the_old_layout_as_it_is(plans):
    opened = plans[0]
    found = replan_joined(opened, RUN, lost=(), gained={"new": 1})
    assert found.carry_on is not None
    assert found.reason == "as it was"
    assert found.carry_on.step_time_s == pytest.approx(opened.plan.step_time_s, rel=1e-9)
    assert found.carry_on_stop_s == 0.0
    with pytest.raises(UsageError, match="no pool"):
        replan_joined(opened, RUN, lost=(), gained={"other": 1})


def test_small_differences_have_no_unit(plans):
    same = compare_joined(plans[0], plans[0])
    slower = replace(same.b, tokens_per_s=0.999 * same.b.tokens_per_s)
    text = text_of(replace(same, b=slower))
    assert "more tokens a second: many small differences\n" in text
    apart = compare_joined(plans[0], plans[-1])
    assert " ms" in next(x for x in text_of(apart).splitlines() if "more tokens a second" in x)
