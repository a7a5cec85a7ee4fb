"""Data-parallel traffic: pieces, wire times, and what the windows of compute hide."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.breakdown import break_down, join_one
from costmodels.comm.collectives import collective_s
from costmodels.comm.data_parallel import (
    DataGroups,
    broadcast_gather_s,
    crowded,
    data_parallel_times,
    exposed_each_s,
    exposed_once_s,
    n_pieces,
    unhidden_once,
)
from costmodels.comm.placement import place_group
from costmodels.stacks import STACKS
from costmodels.step import data_parallel_exposed, stage_times

seconds = st.floats(0.0, 10.0)


def test_megatron_cuts_pieces_of_forty_million_or_a_million_per_rank(toy_problem):
    problem, params = toy_problem(), np.array([1e6, 40e6, 41e6, 1e9])
    assert n_pieces(problem, params, 8, 1).tolist() == [1, 1, 2, 25]
    assert n_pieces(problem, params, 500, 0).tolist() == [1, 1, 1, 2]
    eager = toy_problem(stack="eager")
    assert n_pieces(eager, params, 500, 0).tolist() == [1, 1, 2, 25]
    assert n_pieces(eager, params, 500, 1).tolist() == [1, 1, 1, 1]  # nothing overlaps: one piece
    whole = toy_problem(stack="megatron-lm-2022")
    assert n_pieces(whole, params, 8, 0).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("precision", "grads", "weights"), [("bf16", 4, 2), ("bf16-grads", 2, 2), ("fp32", 4, 4)]
)
def test_wire_times_are_pieces_of_one_collective(toy_problem, precision, grads, weights):
    problem = toy_problem(precision=precision)
    group = place_group(16, 4, problem.pool, problem.fabric)
    groups = DataGroups(group, group, place_group(1, 4, problem.pool, problem.fabric))
    params, pieces = np.array(1e9), np.array(25.0)
    for zero in range(4):
        found = data_parallel_times(problem, groups, params, pieces, zero)
        name = "reduce-scatter" if zero else "all-reduce"
        piece = collective_s(name, grads * 40e6, group, problem.pool)
        assert found.reduce_piece_s == piece
        assert found.reduce_s == 25 * piece
        gather = collective_s("all-gather", weights * 40e6, group, problem.pool) if zero else 0.0
        assert found.gather_piece_s == gather
        assert found.gather_s == 25 * gather


@pytest.mark.parametrize(
    ("total", "piece", "window", "pp", "vpp", "m", "exposed"),
    [
        (10.0, 1.0, 4.0, 1, 1, 1, 6.0),  # what outlasts one backward
        (3.0, 1.0, 4.0, 1, 1, 1, 1.0),  # the last piece always
        (10.0, 1.0, 4.0, 4, 2, 8, 3.0),  # one chunk of two: (10 - 4)/2; overall 10 - 2 * 5 = 0
        (20.0, 1.0, 4.0, 4, 2, 8, 10.0),  # overall: 20 - 2 (1 + 4) = 10 > 8
        (20.0, 1.0, 4.0, 4, 2, 2, 14.0),  # only two micro-batches: 20 - 2 (1 + 2)
        (0.5, 1.0, 4.0, 1, 1, 1, 0.5),  # never more than all of it
    ],
)
def test_what_one_backward_hides(total, piece, window, pp, vpp, m, exposed):
    assert exposed_once_s(total, piece, window, pp, vpp, m) == pytest.approx(exposed)


@pytest.mark.parametrize(
    ("total", "piece", "window", "exposed"),
    [(10.0, 1.0, 4.0, 6.0), (10.0, 1.0, 20.0, 1.0), (0.5, 1.0, 4.0, 0.5), (10.0, 1.0, 0.0, 10.0)],
)
def test_what_a_micro_batch_hides(total, piece, window, exposed):
    assert exposed_each_s(total, piece, window) == pytest.approx(exposed)


@given(total=seconds, share=st.floats(0.01, 1.0), window=seconds, more=seconds)
def test_a_longer_window_never_exposes_more(total, share, window, more):
    piece = share * total
    for pp, vpp, m in [(1, 1, 4), (4, 2, 8), (8, 4, 8)]:
        short = exposed_once_s(total, piece, window, pp, vpp, m)
        assert exposed_once_s(total, piece, window + more, pp, vpp, m) <= short + 1e-12
        assert piece - 1e-12 <= short <= total + 1e-12
    short = exposed_each_s(total, piece, window)
    assert exposed_each_s(total, piece, window + more) <= short + 1e-12
    assert piece - 1e-12 <= short <= total + 1e-12


@pytest.mark.parametrize("zero", range(4))
def test_overlap_hides_and_its_absence_does_not(toy_problem, plain_layout, zero):
    with_overlap = toy_problem(gbs=64)
    nothing = replace(
        STACKS["fused"], dp_overlap="none", zero1_overlap="none", zero3_traffic="by-tensor"
    )
    without = replace(with_overlap, stack=nothing)
    layout = plain_layout(with_overlap, dp=32, zero=zero)
    hidden, open_ = (break_down(p, layout) for p in (with_overlap, without))
    assert 0 < hidden.time_s["dp"] < open_.time_s["dp"]
    assert hidden.time_s["overlap"] > open_.time_s["overlap"] == 0.0
    waits = sum(t.time_s for t in open_.transfers if t.axis == "dp")
    assert open_.time_s["dp"] == pytest.approx(waits)


def test_replicated_zero_groups_reduce_twice_by_hand(toy_problem):
    # 1e9 parameters over 8 in a node, four replicas: reduce-scatter of 4 GB inside, all-reduce of
    # an eighth of it between the nodes, all-gather of 2 GB inside.
    problem = toy_problem(precision="bf16")
    pool, fabric = problem.pool, problem.fabric
    groups = DataGroups(*(place_group(n, k, pool, fabric) for n, k in ((32, 1), (8, 1), (4, 8))))
    found = data_parallel_times(problem, groups, np.array(1e9), np.array(1.0), 1)
    inside = collective_s("reduce-scatter", 4e9, groups.shard, pool)
    between = collective_s("all-reduce", 0.5e9, groups.replicas, pool)
    assert found.reduce_s == inside + between
    assert found.gather_s == collective_s("all-gather", 2e9, groups.shard, pool)
    alone = data_parallel_times(problem, groups, np.array(1e9), np.array(1.0), 0)
    assert alone.reduce_s == collective_s("all-reduce", 4e9, groups.all_ranks, pool)


def with_decline(problem, exponent):
    pool = problem.pool
    return replace(problem, pool=replace(pool, nic=replace(pool.nic, ring_decline=exponent)))


@pytest.mark.parametrize(
    ("stack", "levels"),
    [
        ("megatron-core", [(False, False), (False, False)]),
        ("eager", [(False, True), (True, True)]),  # ZeRO 0 overlaps its reduction
        ("internevo", [(False, True), (False, True)]),
        ("megatron-lm-2021", [(True, True), (True, True)]),
        ("torchtitan", [(False, False), (False, False)]),  # FSDP2 works unit by unit
    ],
)
def test_what_comes_once_a_step_with_nothing_beside_it(stack, levels):
    assert [unhidden_once(STACKS[stack], level) for level in (0, 1)] == levels


def test_rings_of_many_domains_that_run_at_once_have_less_wire_by_hand(toy_problem):
    # 64 ranks on 8 nodes: (8/2)^0.5 = 2 times less; two nodes and one lose nothing.
    problem = with_decline(toy_problem(), 0.5)
    pool, fabric = problem.pool, problem.fabric
    for n_ranks, less in ((8, 1.0), (16, 1.0), (64, 2.0)):
        group = place_group(n_ranks, 1, pool, fabric)
        assert crowded(group, pool).wire_bytes_per_s == group.wire_bytes_per_s / less
        assert crowded(group, pool, False).wire_bytes_per_s == group.wire_bytes_per_s


@pytest.mark.parametrize(("stack", "zero"), [("eager", 1), ("megatron-lm-2021", 0), ("eager", 0)])
def test_only_what_nothing_hides_meets_other_rings(toy_problem, stack, zero):
    usual = toy_problem(stack=stack)
    problem = with_decline(usual, 0.5)
    pool, fabric = problem.pool, problem.fabric
    group = place_group(64, 1, pool, fabric)
    groups = DataGroups(group, group, place_group(1, 1, pool, fabric))
    found = data_parallel_times(problem, groups, np.array(1e9), np.array(1.0), zero)
    met = [crowded(group, pool, one) for one in unhidden_once(problem.stack, zero)]
    name = "reduce-scatter" if zero else "all-reduce"
    grads = problem.job.recipe.grad_wire_bytes * 1e9
    assert found.reduce_s == collective_s(name, grads, met[0], pool)
    gather = collective_s("all-gather", 2e9, met[1], pool) if zero else 0.0
    assert found.gather_s == gather
    each = [
        data_parallel_times(x, groups, np.array(1e9), np.array(1.0), 3) for x in (usual, problem)
    ]
    assert each[0] == each[1]  # a transfer of every micro-batch is spread over the step


def test_whole_sums_of_a_sharded_optimizer_by_hand(toy_problem, plain_layout):
    # Aleph Alpha's ZeRO 1: 1e9 gradients summed whole in fp32, 4 GB; weights gathered in bf16.
    problem = toy_problem(stack="aleph-alpha", precision="bf16-grads", gbs=64)
    pool, fabric = problem.pool, problem.fabric
    groups = DataGroups(*(place_group(n, k, pool, fabric) for n, k in ((32, 1), (8, 1), (4, 8))))
    found = data_parallel_times(problem, groups, np.array(1e9), np.array(1.0), 1)
    assert found.reduce_s == collective_s("all-reduce", 4e9, groups.all_ranks, pool)
    assert found.gather_s == collective_s("all-gather", 2e9, groups.shard, pool)
    both = data_parallel_times(problem, groups, np.array(1e9), np.array(1.0), np.array([0, 1, 2]))
    assert both.reduce_s[0] == both.reduce_s[1] == found.reduce_s != both.reduce_s[2]
    opened = break_down(problem, plain_layout(problem, dp=32, zero=1)).transfers
    sent = {one.collective: one for one in opened if one.axis == "dp"}
    assert sorted(sent) == ["all-gather", "all-reduce"]
    ratio = sent["all-reduce"].message_bytes / sent["all-gather"].message_bytes
    assert ratio == pytest.approx(2.0)


def test_broadcasts_in_turn_grow_with_the_ranks(toy_problem):
    problem = toy_problem(stack="internevo")
    small, large = (place_group(n, 1, problem.pool, problem.fabric) for n in (8, 64))
    one = collective_s("broadcast", 2e9 / 64, large, problem.pool)
    assert broadcast_gather_s(problem, np.array(2e9), large) == 64 * one
    times = [broadcast_gather_s(problem, np.array(8.0), group).item() for group in (small, large)]
    assert times[1] > 50 * times[0]  # empty messages: the square of eight


@pytest.mark.parametrize(
    ("overlap", "waits"), [("none", ("reduce", "gather")), ("reduce", ("gather",)), ("both", ())]
)
def test_what_a_sharded_optimizer_waits_for(toy_problem, plain_layout, overlap, waits):
    stack = replace(STACKS["eager"], zero1_overlap=overlap)
    problem = toy_problem(gbs=64, stack=stack)
    rows = join_one(problem, plain_layout(problem, dp=32, zero=1))
    wire = rows.shapes.data_parallel
    exposed, hidden = data_parallel_exposed(rows, stage_times(rows))
    total = wire.reduce_s[0] + wire.gather_s[0]
    least = sum(getattr(wire, f"{name}_s")[0, 0, 0] for name in waits)
    assert exposed[0, 0] >= least
    assert exposed[0, 0] + hidden[0, 0] == pytest.approx(total[0, 0])
    assert (hidden[0, 0] == 0.0) == (overlap == "none")


def test_by_tensor_traffic_of_zero3_crawls(toy_problem, plain_layout):
    problem = toy_problem(gbs=64, stack="eager")
    slow = replace(problem, stack=replace(problem.stack, zero3_traffic="by-tensor"))
    slower = 1 / STACKS["deepspeed-zero3"].tensor_wire_frac
    for stage, factor in ((1, 1.0), (2, slower), (3, slower)):
        layout = plain_layout(problem, dp=32, zero=stage)
        found = [join_one(p, layout).shapes.data_parallel for p in (problem, slow)]
        assert found[1].reduce_s == pytest.approx(factor * found[0].reduce_s)


def test_by_tensor_traffic_is_held_to_a_share_of_the_whole_node(toy_problem, plain_layout):
    # tp 4 leaves two ranks of a group in a node of eight: their quarter of the wire, of which one
    # call per tensor reaches 4 times 0.14; tp 8 leaves one, whose eighth it reaches whole.
    problem = toy_problem(gbs=64, stack="eager")
    slow = replace(problem, stack=replace(problem.stack, zero3_traffic="by-tensor"))
    frac = problem.stack.tensor_wire_frac
    for tp, share in ((1, frac), (4, 4 * frac), (8, 1.0)):
        layout = plain_layout(problem, tp=tp, dp=32 // tp, zero=3)
        found = [join_one(p, layout).shapes.data_parallel for p in (problem, slow)]
        assert found[0].gather_s / found[1].gather_s == pytest.approx(share)


def test_a_zero_group_inside_the_node_holds_more_and_gathers_faster(toy_problem, plain_layout):
    problem = toy_problem(gbs=64)
    layouts = [replace(plain_layout(problem, dp=32, zero=3), shard=n) for n in (0, 8, 32)]
    whole, node, named = (break_down(problem, x) for x in layouts)
    assert named.time_s == whole.time_s
    assert node.peak_bytes > whole.peak_bytes
    kinds = [(t.collective, t.group_size) for t in node.transfers if t.axis == "dp"]
    assert kinds == [("reduce-scatter", 8), ("all-reduce", 4), ("all-gather", 8)]
    times = [
        sum(t.time_s for t in x.transfers if t.collective == "all-gather") for x in (whole, node)
    ]
    assert times[1] < times[0]
