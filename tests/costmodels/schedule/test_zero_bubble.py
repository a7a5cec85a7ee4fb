"""Zero-bubble schedules: programs replayed, hand-computed pipelines, published bubbles."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.axes import SCHEDULES
from costmodels.plans import ZERO_BUBBLE
from costmodels.schedule import zero_bubble
from costmodels.schedule.pipeline import p2p_s
from costmodels.schedule.zero_bubble import (
    BACKWARD,
    DUALPIPE,
    DUALPIPE_V,
    FORWARD,
    INPUT_GRAD,
    WEIGHT_GRAD,
    ZB_H1,
    ZB_V,
    bubble_s,
    held_chunks,
    late_chunks,
    program,
)
from tests.costmodels.pipelines import exact_s, flush_s


def chunks_of(schedule: str) -> int:
    return 2 if schedule in ("zb-v", "dualpipe-v") else 1


def equal_s(schedule: str, p: int, m: int, f=1.0, b=1.0, w=1.0, hop=0.0) -> float:
    """Step of equal ranks that hold F + B + W of work for one micro-batch."""
    v = chunks_of(schedule)
    times = ([x / v] * (p * v) for x in (f, b + w, w))
    forward, backward, wgrad = times
    return exact_s(schedule, p, v, m, forward, backward, hop, wgrad)


def idle_s(schedule: str, p: int, m: int, f=1.0, b=1.0, w=1.0) -> float:
    return equal_s(schedule, p, m, f, b, w) - m * (f + b + w)


def sizes(schedule: str):
    """Legal (p, m) of a schedule."""
    if schedule == "dualpipe":
        pairs = st.tuples(st.integers(1, 4), st.integers(0, 8))
        return pairs.map(lambda x: (2 * x[0], 4 * x[0] + 2 * x[1]))
    if schedule == "dualpipe-v":
        return st.tuples(st.integers(1, 6), st.integers(0, 12)).map(
            lambda x: (x[0], 2 * x[0] + x[1])
        )
    return st.tuples(st.integers(1, 7), st.integers(1, 20))


times = st.floats(0.1, 3.0)


# By hand.


def test_two_ranks_two_micro_batches_by_hand():
    # Rank 0: F0 0-1, F1 1-2, B0 3-4, W0 4-5, B1 5-6, W1 6-7; rank 1: F0 1-2, B0 2-3, F1 3-4,
    # B1 4-5, W0 5-6, W1 6-7.
    assert equal_s("zb-h1", 2, 2) == 7.0
    assert exact_s("1f1b", 2, 1, 2, [1.0] * 2, [2.0] * 2, 0.0) == 9.0
    assert [step[0] for step in program("zb-h1", 1, 2, 2)] == [
        (1, 0, FORWARD),
        (1, 0, INPUT_GRAD),
        (1, 1, FORWARD),
        (1, 1, INPUT_GRAD),
        (1, 0, WEIGHT_GRAD),
        (1, 1, WEIGHT_GRAD),
    ]


def test_one_micro_batch_is_the_way_through_all_ranks_and_one_weight_gradient():
    # 4 (F + B) + W, and over 8 half-stages in a V the same with half a W: nothing overlaps.
    assert equal_s("zb-h1", 4, 1, 1.0, 1.5, 0.7) == pytest.approx(4 * 2.5 + 0.7)
    assert equal_s("zb-v", 4, 1, 1.0, 1.5, 0.7) == pytest.approx(4 * 2.5 + 0.7)


def test_a_v_of_two_ranks_and_three_micro_batches_by_hand():
    # Chunks of 1: rank 0 runs 18 without a pause but one: stage 3 starts at 3 and rank 0 has
    # three forwards before it, so only the fill of rank 1, one chunk, is left: 19.
    step = exact_s("zb-v", 2, 2, 3, [1.0] * 4, [2.0] * 4, 0.0, [1.0] * 4)
    assert step == 19.0


def test_two_ranks_of_dualpipe_are_never_idle():
    # Each rank is first for two micro-batches and last for two: (p/2 - 1) of anything is 0.
    assert equal_s("dualpipe", 2, 4) == 12.0


# Published bubbles.


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize(("f", "b", "w"), [(1, 1, 1), (1, 1.2, 0.8), (1, 2, 0.5)])
def test_zb_h1_has_the_published_bubble(p, f, b, w):
    # (p - 1)(F + B - W): Qi et al. 2023; DeepSeek writes (p - 1)(F + B' - 2 W), B' = B + W.
    for m in (p, 2 * p, 3 * p + 1):
        assert idle_s("zb-h1", p, m, f, b, w) == pytest.approx((p - 1) * (f + b - w))


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("unit", [1.0, 0.3])
def test_dualpipe_has_the_published_bubble_where_forward_and_input_gradient_are_equal(p, unit):
    # (p/2 - 1)(F&B + B' - 3 W) with p stages; the pair takes F + B', B' = B + W.
    for w in (0.6 * unit, unit):
        pair, whole = 2 * unit + w, unit + w
        published = (p / 2 - 1) * (pair + whole - 3 * w)
        assert idle_s("dualpipe", p, 4 * p, unit, unit, w) == pytest.approx(published)
        # DualPipeV: half the ranks, two stages each.
        v = idle_s("dualpipe-v", p // 2, 2 * p, 2 * unit, 2 * unit, 2 * w)
        assert v == pytest.approx(published)


@given(p=st.integers(1, 4), b=st.floats(1.0, 2.5), w=st.floats(0.3, 1.0))
def test_the_published_bubble_of_dualpipe_is_never_exceeded_with_longer_input_gradients(p, b, w):
    published = (p - 1) * ((1 + b + w) + (b + w) - 3 * w)
    assert idle_s("dualpipe-v", p, 4 * p, 2.0, 2 * b, 2 * w) <= published + 1e-9


@pytest.mark.parametrize("p", [2, 4, 8])
def test_zb_v_of_equal_blocks_idles_while_the_first_chunk_goes_down(p):
    for m in (2 * p - 1, 4 * p):
        assert idle_s("zb-v", p, m) == pytest.approx((p - 1) / 2)


@given(p=st.integers(1, 6), more=st.integers(0, 9), f=times, b=times, w=times)
def test_dualpipe_is_dualpipe_v_folded_open(p, more, f, b, w):
    m = 2 * p + more
    both = exact_s("dualpipe", 2 * p, 1, 2 * m, [f] * 2 * p, [b + w] * 2 * p, 0.0, [w] * 2 * p)
    one = exact_s("dualpipe-v", p, 2, m, [f] * 2 * p, [b + w] * 2 * p, 0.0, [w] * 2 * p)
    assert both == pytest.approx(one)


@given(data=st.data(), b=st.floats(0.8, 2.5), ratio=st.floats(0.3, 1.2))
def test_closed_forms_agree_with_the_recurrence(data, b, ratio):
    w = min(ratio, b)
    for schedule, code in zip(ZERO_BUBBLE, (ZB_H1, ZB_V, DUALPIPE, DUALPIPE_V), strict=True):
        p, m = data.draw(sizes(schedule))
        closed = bubble_s(code, p, m, 1.0, b, w).item()
        exact = idle_s(schedule, p, m, 1.0, b, w)
        if schedule == "zb-h1" and w <= 1.0:
            assert closed == pytest.approx(exact, abs=1e-9)
        else:
            # Fitted: within 3 % of the step, 15 % where the pipeline is not full.
            allowed = (0.03 if m >= 2 * p - 1 else 0.15) * (exact + m * (1 + b + w))
            assert abs(exact - closed) <= allowed


@given(data=st.data(), f=times, b=times, w=times)
def test_no_schedule_is_slower_than_1f1b_for_equal_stages(data, f, b, w):
    for schedule in ZERO_BUBBLE:
        p, m = data.draw(sizes(schedule))
        plain = exact_s("1f1b", p, 1, m, [f] * p, [b + w] * p, 0.0)
        if schedule == "zb-v" and m < p:
            continue
        assert equal_s(schedule, p, m, f, b, w) <= plain * (1 + 1e-9)


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("schedule", ZERO_BUBBLE)
def test_short_messages_cost_what_the_closed_form_says(schedule, p):
    tau, code = 1e-6, SCHEDULES.index(schedule)
    m = 4 * p
    waits = (equal_s(schedule, p, m, hop=tau) - equal_s(schedule, p, m)) / tau
    closed = p2p_s(code, p, chunks_of(schedule), m, 1.0).item()
    slack = 3.01 if schedule == "dualpipe" else 1e-3
    assert waits == pytest.approx(closed, abs=slack)


# Causality, completeness and memory, replayed from the programs alone.


@given(data=st.data())
@pytest.mark.parametrize("schedule", ZERO_BUBBLE)
def test_every_block_runs_once_and_in_an_order_that_can_run(schedule, data):
    p, m = data.draw(sizes(schedule))
    both_ways = schedule == "dualpipe"
    n_stages, micros = (p, m) if schedule == "zb-h1" else (2 * p, m // 2 if both_ways else m)
    ran: list[tuple[int, int, int]] = []
    for rank in range(p):
        mine = {rank} if schedule == "zb-h1" else {rank, 2 * p - 1 - rank}
        parts = list(itertools.chain.from_iterable(program(schedule, rank, p, m)))
        assert {stage for stage, _, _ in parts} == mine
        place = {part: i for i, part in enumerate(parts)}
        assert len(place) == len(parts)
        for stage, micro in itertools.product(mine, range(micros)):
            whole = (stage, micro, BACKWARD) in place
            grad = (stage, micro, BACKWARD if whole else INPUT_GRAD)
            assert place[stage, micro, FORWARD] < place[grad]
            assert ((stage, micro, WEIGHT_GRAD) in place) is not whole
            if not whole:
                assert place[grad] < place[stage, micro, WEIGHT_GRAD]
        ran += parts
    done = {(s, i, FORWARD if k == FORWARD else BACKWARD) for s, i, k in ran if k != WEIGHT_GRAD}
    assert len(done) == 2 * n_stages * micros
    # With steps of unit time nothing starts before its producer has ended (no deadlock).
    assert equal_s(schedule, p, m) > 0.0


def replayed(schedule: str, rank: int, p: int, m: int) -> list[tuple[int, int]]:
    """(chunks before their B, chunks that wait for W) after each step of a rank."""
    before = waiting = 0
    seen = []
    for step in program(schedule, rank, p, m):
        for _, _, kind in step:
            before += {FORWARD: 1, BACKWARD: -1, INPUT_GRAD: -1}.get(kind, 0)
            waiting += {INPUT_GRAD: 1, WEIGHT_GRAD: -1}.get(kind, 0)
            seen.append((before, waiting))
    assert (before, waiting) == (0, 0)
    return seen


@given(data=st.data(), checkpoint=st.floats(0.01, 1.0))
@pytest.mark.parametrize("schedule", ZERO_BUBBLE)
def test_no_program_holds_more_than_the_memory_model_says(schedule, data, checkpoint):
    p, m = data.draw(sizes(schedule))
    code = SCHEDULES.index(schedule)
    most = held_chunks(code, p, m).item()
    for rank in range(p):
        seen = replayed(schedule, rank, p, m)
        assert max(sum(x) for x in seen) <= most
        # Recomputed layers: a checkpoint before B, the whole layer after; one is being rebuilt.
        before, waiting = (x.item() for x in late_chunks(code, rank, p, m))
        held = max(x * checkpoint + y for x, y in seen)
        assert held <= max(most * checkpoint, before * checkpoint + waiting) + 1.0 + 1e-9


@pytest.mark.parametrize(
    ("schedule", "p", "chunks"), [("zb-h1", 8, 8), ("zb-v", 8, 16), ("dualpipe", 8, 9)]
)
def test_every_rank_reaches_the_stated_peak(schedule, p, chunks):
    assert held_chunks(SCHEDULES.index(schedule), p, 3 * p).item() == chunks
    for rank in range(p):
        assert max(sum(x) for x in replayed(schedule, rank, p, 3 * p)) == chunks


def test_chunks_that_wait_for_their_weight_gradient():
    before, waiting = late_chunks(np.array([ZB_H1, ZB_V, DUALPIPE]), np.array([3, 3, 5]), 8, 32)
    assert before.tolist() == [5, 5, 2]
    assert waiting.tolist() == [3, 6, 2]


# Refusals and long steps.


@pytest.mark.parametrize(
    ("schedule", "p", "m"), [("dualpipe", 3, 12), ("dualpipe", 4, 9), ("dualpipe-v", 4, 7)]
)
def test_dualpipe_needs_full_pipelines(schedule, p, m):
    with pytest.raises(ValueError, match=f"{schedule}: {m} micro-batches do not fill"):
        program(schedule, 0, p, m)


@pytest.mark.parametrize("schedule", ZERO_BUBBLE)
def test_long_steps_are_extrapolated_within_a_tenth_of_a_percent(schedule):
    p, v, m = 4, chunks_of(schedule), 150
    forward = [1.0 + 0.05 * (i % 3) for i in range(p * v)]
    backward, wgrad = [2.1 * x for x in forward], [0.8 * x for x in forward]
    args = (schedule, p, v, m, forward, backward, 0.02, wgrad)
    assert flush_s(*args) == pytest.approx(exact_s(*args), rel=1e-3)


@given(data=st.data(), which=st.integers(0, 50), more=st.floats(0.0, 2.0), hop=st.floats(0, 0.5))
@pytest.mark.parametrize("schedule", ZERO_BUBBLE)
def test_a_slower_stage_or_wire_never_makes_the_step_shorter(schedule, data, which, more, hop):
    p, m = data.draw(sizes(schedule))
    v = chunks_of(schedule)
    forward, wgrad = [1.0] * (p * v), [0.7] * (p * v)
    longer = [x + more * (i == which % (p * v)) for i, x in enumerate([2.0] * (p * v))]
    base = exact_s(schedule, p, v, m, forward, [2.0] * (p * v), 0.0, wgrad)
    assert exact_s(schedule, p, v, m, forward, longer, hop, wgrad) >= base * (1 - 1e-12)


def test_codes_are_the_last_schedules():
    assert (ZB_H1, ZB_V, DUALPIPE, DUALPIPE_V) == (4, 5, 6, 7)
    assert len(SCHEDULES) == 8
    assert zero_bubble.FIRST_CODE == 4
