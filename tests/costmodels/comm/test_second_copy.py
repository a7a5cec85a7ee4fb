"""A second copy of the weights over small groups (hpZ): bytes, times and transfers, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.breakdown import break_down, join_one
from costmodels.comm.collectives import collective_s
from costmodels.comm.data_parallel import exposed_each_s
from costmodels.comm.placement import place_group
from costmodels.memory import state_bytes_per_param
from costmodels.plans import PlanTable, ShardingTable
from costmodels.precision import RECIPES
from costmodels.schedule.timeline import step_timeline
from costmodels.shape_terms import shape_terms
from costmodels.step import score, stage_times


@pytest.fixture
def sharded(toy_problem, plain_layout):
    """Return (problem, ZeRO-3 over 32 ranks in 4 nodes, the same with a copy in each node)."""

    def make(stack="fused", gbs=128):
        problem = toy_problem(stack=stack, gbs=gbs)
        plain = plain_layout(problem, dp=32, zero=3)
        return problem, plain, replace(plain, hpz=8)

    return make


def gather_s(problem, layout, n_ranks, pieces=25) -> float:
    """Return the gather of all weights over neighbours, layer by layer: 24 layers and an end."""
    table = PlanTable.from_layouts([layout])
    params = shape_terms(problem, table.shapes, table.shardings).params.item()
    group = place_group(n_ranks, 1, problem.pool, problem.fabric)
    return pieces * collective_s("all-gather", 2 * params / pieces, group, problem.pool).item()


def test_the_copy_takes_the_width_of_a_weight_over_its_group():
    recipe = RECIPES["bf16", "adam"]
    held = state_bytes_per_param(recipe, 3, 64.0, hpz=np.array([1, 2, 8, 64]))
    assert held.tolist() == [18 / 64, 18 / 64 + 1, 18 / 64 + 0.25, 18 / 64 + 2 / 64]
    assert state_bytes_per_param(RECIPES["fp32", "adam"], 3, 4.0, hpz=2).item() == 16 / 4 + 2
    # There is none below ZeRO-3.
    assert state_bytes_per_param(recipe, 2, 4.0, hpz=2).item() == 2 + 16 / 4


def test_peak_grows_by_the_copy_alone(sharded):
    problem, plain, copied = sharded()
    table = PlanTable.from_layouts([plain])
    params = shape_terms(problem, table.shapes, table.shardings).params.item()
    more = break_down(problem, copied).peak_bytes - break_down(problem, plain).peak_bytes
    assert more == pytest.approx(2 * params / 8, rel=1e-9)


@pytest.mark.parametrize("gbs", [32, 128])
def test_only_the_first_gather_of_a_step_leaves_the_node(sharded, gbs):
    problem, plain, copied = sharded(gbs=gbs)
    m = gbs // 32
    far, near = gather_s(problem, plain, 32), gather_s(problem, plain, 8)
    assert near < far
    found = break_down(problem, copied)
    sent = {
        (t.collective, t.group_size): (t.n_calls, t.time_s)
        for t in found.transfers
        if t.axis == "dp"
    }
    assert sent["all-gather", 32] == (25, pytest.approx(far))
    assert sent["all-gather", 8] == (25 * (2 * m - 1), pytest.approx((2 * m - 1) * near))
    before = [t for t in break_down(problem, plain).transfers if t.axis == "dp"]
    assert [(t.collective, t.n_calls) for t in before] == [
        ("reduce-scatter", 25 * m),
        ("all-gather", 25 * 2 * m),
    ]


def test_exposed_by_hand(sharded):
    problem, plain, copied = sharded()
    rows = join_one(problem, copied)
    times, reduce = stage_times(rows), rows.shapes.data_parallel.reduce_s.item()
    far, near = gather_s(problem, plain, 32), gather_s(problem, plain, 8)
    forward, backward = times.forward_s.item(), times.backward_s.item()
    exposed = float(
        exposed_each_s(far, far / 25, forward)
        + 3 * exposed_each_s(near, near / 25, forward)
        + 4 * exposed_each_s(near + reduce, reduce / 25, backward)
    )
    assert break_down(problem, copied).time_s["dp"] == pytest.approx(exposed, rel=1e-12)


@pytest.mark.parametrize("stack", ["fused", "deepspeed"])
def test_all_is_waited_for_without_overlap(sharded, stack):
    problem, plain, copied = sharded(stack)
    blocking = replace(copied, dp_overlap=False)
    wire = join_one(problem, blocking).shapes.data_parallel
    slow = wire.gather_s.item() / gather_s(problem, plain, 32)  # slower by tensor
    near = slow * gather_s(problem, plain, 8)
    total = 4 * wire.reduce_s.item() + wire.gather_s.item() + 7 * near
    assert break_down(problem, blocking).time_s["dp"] == pytest.approx(total, rel=1e-12)


def test_table_and_timeline_equal_the_single_plan(sharded):
    problem, plain, copied = sharded()
    layouts = [plain, copied, replace(copied, hpz=4), replace(plain, zero=1)]
    table = PlanTable.from_layouts(layouts)
    assert [table.layout(i, 24) for i in range(4)] == layouts
    scores = score(problem, shape_terms(problem, table.shapes, table.shardings), table)
    for i, layout in enumerate(layouts):
        found = break_down(problem, layout)
        assert scores.step_s[i] == pytest.approx(found.closed_form_step_s, rel=1e-12)
        assert scores.peak_bytes[i] == pytest.approx(found.peak_bytes, rel=1e-12)
        timeline = step_timeline(found)
        end_s = timeline.pipeline.end_s + sum(seconds for *_, seconds in timeline.after)
        assert end_s == pytest.approx(found.step_s, rel=1e-9)


def test_a_group_of_all_ranks_saves_nothing(sharded):
    problem, plain, copied = sharded()
    whole = break_down(problem, replace(copied, hpz=32))
    assert whole.step_s == pytest.approx(break_down(problem, plain).step_s, rel=1e-12)
    assert whole.peak_bytes > break_down(problem, plain).peak_bytes


def test_columns_left_out_are_off():
    rows = ShardingTable.from_tuples([(3, 1), (3, 1, 0, 0, 8)])
    assert rows.hpz.tolist() == [1, 8]
    assert rows.second_shard(np.array([64, 8], dtype=np.int32)).tolist() == [[64, 8], [8, 8]]
