"""Hidden data-parallel traffic in time: it adds up to the term, stays in its windows."""

from dataclasses import replace

import pytest

from costmodels.breakdown import break_down, join_one
from costmodels.comm.hidden_traffic import BACKWARDS, LAST_BACKWARD, data_parallel_parts
from costmodels.schedule.timeline import step_timeline
from costmodels.schedule.zero_bubble import BACKWARD, FORWARD
from costmodels.stacks import STACKS
from costmodels.step import data_parallel_exposed, stage_times
from tests.costmodels.timelines import CASES, case

OTHERS = ("eager", "megatron-lm-2021", "deepspeed-zero3", "internevo", "maxtext")
"""Stacks that hide less, more, or nothing."""
PREFETCHES = "hf-fsdp2"


def variants():
    """Every case under one stage of ZeRO in turn; hpZ, blocking calls and other stacks besides."""
    for i, name in enumerate(CASES):
        problem, layout = case(name)
        zero = (1, 0, 2, 3, 1)[i % 5]
        yield f"{name} zero {zero}", problem, replace(layout, zero=zero)
    problem, layout = case("zero 3")
    yield "hpz", problem, replace(layout, hpz=8)
    yield "blocking calls", problem, replace(layout, zero=1, dp_overlap=False)
    for stack in OTHERS:
        for zero in (1, 2, 3):
            yield (
                f"{stack} {zero}",
                replace(problem, stack=STACKS[stack]),
                replace(layout, zero=zero),
            )


VARIANTS = {name: (problem, layout) for name, problem, layout in variants()}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_parts_are_the_traffic_of_the_step(name):
    rows = join_one(*VARIANTS[name])
    times = stage_times(rows)
    exposed, hidden = data_parallel_exposed(rows, times)
    parts = data_parallel_parts(rows, times)
    assert sum(p.exposed_s for p in parts) == pytest.approx(exposed, rel=1e-12)
    # The price takes all parts together; only rounding makes one of them negative.
    assert sum(p.hidden_s for p in parts) == pytest.approx(hidden, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_drawn_and_what_is_waited_for_is_the_term(name):
    problem, layout = VARIANTS[name]
    found = break_down(problem, layout)
    step = step_timeline(found)
    wires = sum(x.time_s for x in found.transfers if x.axis == "dp")
    waited = sum(s for name, _, s in step.after if name == "dp")
    assert waited == pytest.approx(found.time_s["dp"], rel=1e-12, abs=1e-15)
    drawn = [sum(x.end_s - x.start_s for x in rank.hidden) for rank in step.data_parallel]
    for rank, hidden_s in zip(step.data_parallel, drawn, strict=True):
        assert hidden_s == pytest.approx(rank.hidden_s, rel=1e-9, abs=1e-12)
    assert any(
        hidden_s + waited == pytest.approx(wires, rel=1e-9) for hidden_s in drawn
    )  # of the ranks that all others wait for
    for rank, blocks in zip(step.data_parallel, step.pipeline.blocks, strict=True):
        ends = 0.0
        for span in rank.hidden:
            assert span.start_s >= ends
            assert span.start_s < span.end_s
            ends = span.end_s
        assert ends <= blocks[-1].end_s * (1 + 1e-12)


@pytest.mark.parametrize("name", ["none", "1f1b", "interleaved", "many chunks"])
def test_gradients_run_beside_the_last_backwards(name):
    """Long traffic: all windows are full. Its beginning is no earlier than the first of them."""
    problem, layout = case(name)
    nic = problem.pool.nic
    for slow in (1.0, 8.0, 64.0):
        link = replace(nic, bytes_per_s=nic.bytes_per_s / slow)
        found = break_down(replace(problem, pool=replace(problem.pool, nic=link)), layout)
        step = step_timeline(found)
        for rank, blocks in zip(step.data_parallel, step.pipeline.blocks, strict=True):
            last = {b.parts[0][0]: b for b in blocks if b.parts[0][2] == BACKWARD}
            first = min(b.start_s for b in last.values())
            spans = [x for x in rank.hidden if x.what == "gradients"]
            assert spans
            assert len(spans) <= layout.vpp
            assert all(x.start_s >= first - 1e-12 for x in spans)
            weights = [x for x in rank.hidden if x.what == "weights"]
            assert [x.start_s for x in weights] == [blocks[0].start_s]


def test_one_device_group_by_hand(toy_problem, plain_layout):
    """ZeRO 1 without a pipeline, two micro-batches: gradients end with the last backward."""
    problem = toy_problem(gbs=64)
    found = break_down(problem, plain_layout(problem, dp=32, zero=1, mbs=1))
    step, wire = step_timeline(found), found.rows.shapes.data_parallel
    forward, backward, *_ = [b.end_s - b.start_s for b in step.pipeline.blocks[0]]
    reduce_s, piece_s = wire.reduce_s.max(), wire.reduce_piece_s.max()
    gather_s, first_s = wire.gather_s.max(), wire.gather_piece_s.max()
    weights, gradients = step.data_parallel[0].hidden
    assert (weights.what, gradients.what) == ("weights", "gradients")
    assert weights.start_s == 0.0
    assert weights.end_s == pytest.approx(gather_s - max(first_s, gather_s - forward))
    assert gradients.end_s == pytest.approx(step.pipeline.end_s, rel=1e-12)
    waits = max(piece_s, reduce_s - backward)
    assert gradients.end_s - gradients.start_s == pytest.approx(reduce_s - waits)


def test_zero_3_by_hand(toy_problem, plain_layout):
    """Every forward gathers, every backward gathers and reduces, one unit ahead of compute."""
    problem = toy_problem(gbs=64, stack=PREFETCHES)
    found = break_down(problem, plain_layout(problem, dp=32, zero=3, mbs=1))
    step, wire = step_timeline(found), found.rows.shapes.data_parallel
    blocks, rank = step.pipeline.blocks[0], step.data_parallel[0]
    gather_s, first_s = wire.gather_s.max(), wire.gather_piece_s.max()
    behind_s, piece_s = gather_s + wire.reduce_s.max(), wire.reduce_piece_s.max()
    assert len(rank.hidden) == len(blocks) == 2 * found.n_micro
    for block, span in zip(blocks, rank.hidden, strict=True):
        ahead = block.parts[0][2] == FORWARD
        compute_s = block.end_s - block.start_s
        total, piece = (gather_s, first_s) if ahead else (behind_s, piece_s)
        waits = min(total, piece + max(0.0, total - piece - compute_s))
        assert span.what == ("weights" if ahead else "weights and gradients")
        assert span.start_s == block.start_s
        assert span.end_s - span.start_s == pytest.approx(total - waits)
    assert rank.time_s == pytest.approx(found.n_micro * (gather_s + behind_s))


def test_where_traffic_runs(toy_problem, plain_layout):
    problem = toy_problem(gbs=64)
    places = {}
    for zero in (0, 1, 2, 3):
        rows = join_one(problem, plain_layout(problem, dp=32, zero=zero, mbs=1))
        parts = data_parallel_parts(rows, stage_times(rows))
        places[zero] = [p.beside for p in parts if p.time_s.max() > 0]
    assert places[0] == [LAST_BACKWARD]
    assert places[1] == ["first forward", LAST_BACKWARD]
    assert places[2] == ["first forward", BACKWARDS]
    assert places[3] == ["forwards", BACKWARDS]
