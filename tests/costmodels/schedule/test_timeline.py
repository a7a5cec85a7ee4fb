"""The step in time: the recurrence's own times, memory replayed, traffic that adds up."""

import pytest

from costmodels.breakdown import break_down
from costmodels.schedule.pipeline import simulate_s, timeline
from costmodels.schedule.timeline import (
    MemoryLevel,
    RankMemory,
    memory_course,
    memory_levels,
    step_timeline,
)
from costmodels.schedule.zero_bubble import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD
from tests.costmodels.pipelines import run_of
from tests.costmodels.timelines import CASES, case

SCHEDULES = [
    ("1f1b", 1),
    ("gpipe", 1),
    ("interleaved", 3),
    ("zb-h1", 1),
    ("zb-v", 2),
    ("dualpipe", 1),
    ("dualpipe-v", 2),
]


@pytest.mark.parametrize(("schedule", "chunks"), SCHEDULES)
@pytest.mark.parametrize("hop_s", [0.0, 0.05, 3.0])
def test_blocks_start_when_rank_and_input_are_there(schedule, chunks, hop_s):
    p, m = 4, 12
    n = p * chunks
    forward = [1.0 + 0.1 * (j % 3) for j in range(n)]
    backward, late = [2.1 * x for x in forward], [0.8 * x for x in forward]
    run = run_of(schedule, (p, chunks, m), (forward, backward), hop_s, late)
    found = timeline(run)
    assert found.end_s == simulate_s(run)
    assert found.end_s == max(blocks[-1].end_s for blocks in found.blocks)
    arrives = {
        (x.stage + (1 if x.kind == FORWARD else -1), x.micro, x.kind == FORWARD): x.end_s
        for x in found.messages
    }
    done = {
        (stage, micro, kind): block.end_s
        for blocks in found.blocks
        for block in blocks
        for stage, micro, kind in block.parts
    }
    for blocks in found.blocks:
        free = 0.0
        for block in blocks:
            inputs = [
                arrives[stage, micro, kind == FORWARD]
                for stage, micro, kind in block.parts
                if kind != WEIGHT_GRAD and (stage, micro, kind == FORWARD) in arrives
            ]
            for stage, micro, kind in block.parts:
                if kind == WEIGHT_GRAD or (stage, micro, kind == FORWARD) in arrives:
                    continue
                # From the same rank: the loss, or the turn of the V.
                if kind != FORWARD and (stage, micro, FORWARD) in done:
                    inputs.append(done[stage, micro, FORWARD])
                before = stage - 1 if kind == FORWARD else stage + 1
                folded = schedule in ("zb-v", "dualpipe-v")
                for other in (FORWARD,) if kind == FORWARD else (BACKWARD, INPUT_GRAD):
                    if folded and (before, micro, other) in done:
                        inputs.append(done[before, micro, other])
            assert block.start_s == pytest.approx(max([free, *inputs]), abs=1e-12)
            assert block.end_s > block.start_s
            free = block.end_s
    work = sum(b.end_s - b.start_s for blocks in found.blocks for b in blocks)
    each = m // 2 if schedule == "dualpipe" else m
    copies = 2 if schedule == "dualpipe" else 1
    assert work == pytest.approx(copies * each * (sum(forward) + sum(backward)))


def test_by_hand():
    """Two ranks, one micro-batch, F 1 s, B 2 s, messages of half a second."""
    found = timeline(run_of("1f1b", (2, 1, 1), ([1.0, 1.0], [2.0, 2.0]), 0.5))
    assert [(b.start_s, b.end_s) for b in found.blocks[1]] == [(1.5, 2.5), (2.5, 4.5)]
    assert [(b.start_s, b.end_s) for b in found.blocks[0]] == [(0.0, 1.0), (5.0, 7.0)]
    sent = [(x.sender, x.receiver, x.start_s, x.end_s) for x in found.messages]
    assert sent == [(0, 1, 1.0, 1.5), (1, 0, 4.5, 5.0)]


def test_memory_over_the_step_by_hand():
    """Rank 0 of two under 1F1B, F 1 s, B 2 s, no messages: warm-up, steady state, cool-down.

    F0 0-1, F1 1-2, then it waits for the backward of micro-batch 0 on rank 1 (1-2 forward, 2-4
    backward): B0 4-6, F2 6-7, B1 7-9, B2 10-12. Two micro-batches are kept at most.
    """
    found = timeline(run_of("1f1b", (2, 1, 3), ([1.0, 1.0], [2.0, 2.0]), 0.0))
    blocks = found.blocks[0]
    assert [(b.start_s, b.end_s) for b in blocks] == [
        (0.0, 1.0),
        (1.0, 2.0),
        (4.0, 6.0),
        (6.0, 7.0),
        (7.0, 9.0),
        (10.0, 12.0),
    ]
    memory = RankMemory(100.0, 7.0, (10.0,), 0.0, 2)
    assert memory_course(memory, blocks) == [
        MemoryLevel(0.0, 1, 10.0, 0.0),
        MemoryLevel(1.0, 2, 20.0, 0.0),
        MemoryLevel(2.0, 2, 20.0, 0.0),
        MemoryLevel(4.0, 2, 20.0, 7.0),
        MemoryLevel(6.0, 2, 20.0, 0.0),
        MemoryLevel(7.0, 2, 20.0, 7.0),
        MemoryLevel(9.0, 1, 10.0, 0.0),
        MemoryLevel(10.0, 1, 10.0, 7.0),
        MemoryLevel(12.0, 0, 0.0, 0.0),
    ]
    assert max(level for _, level in memory_levels(memory, blocks)) == 127.0


@pytest.mark.parametrize("name", CASES)
def test_the_end_is_the_step_and_the_peak_the_memory(name):
    found = break_down(*case(name))
    step = step_timeline(found)
    end_s = step.pipeline.end_s + sum(seconds for _, _, seconds in step.after)
    assert end_s == pytest.approx(found.step_s, rel=1e-9)
    for rank, stage in enumerate(found.stages):
        levels = memory_levels(step.memory[rank], step.pipeline.blocks[rank])
        peak = max(level for _, level in levels)
        assert peak == pytest.approx(sum(stage.values()), rel=1e-9)
        assert levels[-1][1] == pytest.approx(stage["states"] + stage["overhead"], rel=1e-12)
        assert levels[0][1] >= stage["states"]
        times = [at for at, _ in levels]
        assert times == sorted(set(times))


@pytest.mark.parametrize("name", CASES)
def test_traffic_of_the_slowest_rank_adds_up_to_its_terms(name):
    found = break_down(*case(name))
    step = step_timeline(found)
    for axis in ("tp", "cp", "ep"):
        waits = sum(
            (step.wires[stage].forward if kind == FORWARD else step.wires[stage].backward)[
                axis
            ].exposed_s
            for block in step.pipeline.blocks[found.critical_stage]
            for stage, _, kind in block.parts
            if kind != WEIGHT_GRAD
        )
        assert waits == pytest.approx(found.time_s[axis], rel=1e-9, abs=1e-15)
    after = {name: seconds for name, _, seconds in step.after}
    for term in ("dp", "optimizer", "straggler", "fixed"):
        assert after.get(term, 0.0) == pytest.approx(found.time_s[term], rel=1e-9)
