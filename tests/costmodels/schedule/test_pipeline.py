"""Pipeline schedules: closed forms, the recurrence, and an independent simulator as oracle."""

import heapq
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.axes import SCHEDULES
from costmodels.memory import in_flight_chunks
from costmodels.schedule.pipeline import (
    PROVEN_PERIODS,
    STEADY_PERIODS,
    bubble_frac,
    compute_s,
    p2p_s,
    rank_program,
)
from tests.costmodels.pipelines import exact_s, flush_s
from tests.repeats import examples

GPIPE, ONE_F_ONE_B, INTERLEAVED = (SCHEDULES.index(x) for x in ("gpipe", "1f1b", "interleaved"))


def equal(schedule: str, p: int, v: int, m: int, hop: float = 0.0, f=1.0, b=2.0) -> float:
    """Simulated time of equal stages of f + b seconds, cut into v chunks."""
    return exact_s(schedule, p, v, m, [f / v] * (p * v), [b / v] * (p * v), hop)


# Closed forms of equal stages.


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(1, 5), (2, 1), (2, 8), (4, 3), (4, 8), (8, 32), (5, 7)])
def test_gpipe_and_1f1b_take_m_plus_p_less_one_slots(schedule, p, m):
    # (m + p - 1)(t_f + t_b): Narayanan et al. 2021, section 2.2.
    assert equal(schedule, p, 1, m) == pytest.approx((m + p - 1) * 3.0)
    assert compute_s(3.0, 3.0 * p, 1, m).item() == pytest.approx((m + p - 1) * 3.0)


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 2), (4, 2, 8), (4, 3, 4), (8, 4, 64), (3, 5, 9)])
def test_interleaving_divides_the_bubble_by_the_chunks(p, v, m):
    by_hand = m * 3.0 + (p - 1) * 3.0 / v
    assert equal("interleaved", p, v, m) == pytest.approx(by_hand)
    assert compute_s(3.0, 3.0 * p, v, m).item() == pytest.approx(by_hand)
    assert bubble_frac(p, v, m) == pytest.approx(1 - m * 3.0 / by_hand)


def test_one_chunk_interleaved_has_the_length_of_1f1b():
    for p, m in [(2, 4), (4, 8), (8, 16)]:
        assert equal("interleaved", p, 1, m) == pytest.approx(equal("1f1b", p, 1, m))


def test_bubble_of_four_stages_and_eight_micro_batches():
    assert bubble_frac(4, 1, 8) == pytest.approx(3 / 11)  # 27.3 % of the step, not 3/8
    assert bubble_frac(1, 1, 8) == 0.0


# Point-to-point latency, physics 7.3: simulated, the message does not occupy the ranks.


@pytest.mark.parametrize(
    ("schedule", "p", "v", "m", "crossings"),
    [
        ("1f1b", 8, 1, 32, 68),
        ("1f1b", 8, 1, 64, 124),
        ("1f1b", 4, 1, 8, 16),  # 2 * 3 + 2 * (7 - 2)
        ("1f1b", 8, 1, 1, 14),  # one micro-batch: down and up once
        ("gpipe", 8, 1, 32, 14),  # 2 (p - 1)
        ("gpipe", 4, 1, 9, 6),
        ("interleaved", 8, 6, 64, 94),  # 2 (p v - 1), whatever m
        ("interleaved", 8, 6, 32, 94),
        ("interleaved", 4, 2, 8, 14),
    ],
)
def test_exposed_hops(schedule, p, v, m, crossings):
    tau = 1e-3
    code = SCHEDULES.index(schedule)
    exposed = (equal(schedule, p, v, m, tau) - equal(schedule, p, v, m)) / tau
    assert exposed == pytest.approx(crossings, rel=1e-9)
    assert p2p_s(code, p, v, m, tau).item() == pytest.approx(crossings * tau)


def test_a_hop_longer_than_a_chunk_grows_with_the_micro_batches():
    # p = 8, v = 6, m = 64, tau = 1.5 chunk forwards: 187 tau, not the closed form's 94.
    tau = 1.5 / 6
    exposed = equal("interleaved", 8, 6, 64, tau) - equal("interleaved", 8, 6, 64)
    assert exposed / tau == pytest.approx(187, abs=1.0)


def test_one_rank_sends_nothing():
    assert p2p_s(0, 1, 1, 8, 1.0).item() == 0.0
    assert equal("none", 1, 1, 8, hop=5.0) == pytest.approx(24.0)
    assert flush_s("none", 1, 1, 8, [1.0], [2.0], 5.0) == pytest.approx(24.0)


def sizes(schedule: str) -> st.SearchStrategy[tuple[int, int, int]]:
    """Legal (p, v, m) of a schedule."""
    several = schedule == "interleaved"
    chunks = st.integers(2, 4) if several else st.just(1)
    sized = st.tuples(st.integers(2, 17), chunks, st.integers(1, 40))
    return sized.map(lambda x: (x[0], x[1], x[2] * x[0] if several else x[2]))


@given(data=st.data(), backward=st.floats(0.5, 4.0))
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_the_closed_form_of_messages_is_exact_while_they_are_short(schedule, data, backward):
    p, v, m = data.draw(sizes(schedule))
    times, tau = ([1.0] * (p * v), [backward] * (p * v)), 1e-5
    exposed = exact_s(schedule, p, v, m, *times, tau) - exact_s(schedule, p, v, m, *times, 0)
    closed = p2p_s(SCHEDULES.index(schedule), p, v, m, 1.0).item()
    assert exposed / tau == pytest.approx(closed, abs=1e-3)


@given(data=st.data(), backward=st.floats(0.5, 4.0), tau=st.floats(0.0, 20.0))
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_the_closed_form_of_messages_is_a_lower_bound_of_longer_ones(
    schedule, data, backward, tau
):
    p, v, m = data.draw(sizes(schedule))
    times = [1.0] * (p * v), [backward] * (p * v)
    exposed = exact_s(schedule, p, v, m, *times, tau) - exact_s(schedule, p, v, m, *times, 0)
    closed = p2p_s(SCHEDULES.index(schedule), p, v, m, tau).item()
    assert closed <= exposed + 1e-9 * m * p * (1 + backward + tau)


def test_the_closed_form_of_1f1b_by_hand():
    # p = 2, m = 2: F0 0-1, message, F0 on rank 1, ... a micro-batch down and up; the other hides.
    assert p2p_s(ONE_F_ONE_B, 2, 1, 2, 1.0).item() == 2.0
    # 16 ranks, 18 micro-batches: 30 messages of the first, two each of 15 of the 17 others.
    assert p2p_s(ONE_F_ONE_B, 16, 1, 18, 1.0).item() == 30 + 2 * 15


# Uneven stages, physics 7.4: p = 4, m = 8, t_f = 1, t_b = 2.


def slowed(*factors: float) -> tuple[list[float], list[float]]:
    return [1.0 * x for x in factors], [2.0 * x for x in factors]


@pytest.mark.parametrize(("slow", "seconds"), [(0, 37.5), (1, 38.4), (2, 39.3), (3, 40.2)])
def test_one_stage_thirty_percent_slower(slow, seconds):
    factors = [1.3 if i == slow else 1.0 for i in range(4)]
    assert exact_s("1f1b", 4, 1, 8, *slowed(*factors), 0.0) == pytest.approx(seconds)
    # GPipe: sum of all stages plus (m - 1) of the slowest, wherever it is.
    gpipe = exact_s("gpipe", 4, 1, 8, *slowed(*factors), 0.0)
    assert gpipe == pytest.approx(3 * 3.0 + 3.9 + 7 * 3.9) == pytest.approx(40.2)
    assert compute_s(3.9, 12.9, 1, 8).item() == pytest.approx(40.2)


@pytest.mark.parametrize(
    ("slow", "seconds"),
    [
        ((0, 1), 36.15),
        ((0, 2), 36.6),
        ((1, 2), 36.6),
        ((0, 3), 37.05),
        ((1, 3), 37.05),
        ((2, 3), 37.05),
    ],
)
def test_two_stages_fifteen_percent_slower(slow, seconds):
    # 37.05 = 2 * 3 + 2 * 3.45 + 7 * 3.45 as on GPipe, if the last stage is one of the two.
    factors = [1.15 if i in slow else 1.0 for i in range(4)]
    assert exact_s("1f1b", 4, 1, 8, *slowed(*factors), 0.0) == pytest.approx(seconds)
    assert exact_s("gpipe", 4, 1, 8, *slowed(*factors), 0.0) == pytest.approx(37.05)


# Properties against the closed form.

durations = st.floats(0.1, 3.0)


@st.composite
def uneven(draw, schedules=("gpipe", "1f1b", "interleaved"), most=6):
    schedule = draw(st.sampled_from(schedules))
    p = draw(st.integers(1 if schedule != "interleaved" else 2, most))
    v = draw(st.integers(1, 3)) if schedule == "interleaved" else 1
    m = p * draw(st.integers(1, 4)) if schedule == "interleaved" else draw(st.integers(1, 14))
    stages = p * v
    forward = draw(st.lists(durations, min_size=stages, max_size=stages))
    backward = draw(st.lists(durations, min_size=stages, max_size=stages))
    return schedule, p, v, m, forward, backward


@given(case=uneven(), hop=st.floats(0, 1.0))
def test_no_schedule_beats_its_slowest_rank_or_its_longest_path(case, hop):
    _, p, v, m, forward, backward = case
    time = exact_s(*case, hop)
    per_rank = [sum(forward[r::p]) + sum(backward[r::p]) for r in range(p)]
    crossings = 2 * (p * v - 1) if p > 1 else 0
    assert time >= m * max(per_rank) * (1 - 1e-12)
    assert time >= (sum(forward) + sum(backward) + crossings * hop) * (1 - 1e-12)
    assert time >= exact_s(*case, 0.0) * (1 - 1e-12)


@given(case=uneven(("1f1b",)), ratio=st.floats(1.0, 3.0))
def test_the_closed_form_bounds_1f1b_whose_backward_is_in_proportion(case, ratio):
    schedule, p, v, m, forward, _ = case
    backward = [ratio * f for f in forward]
    closed = compute_s((1 + ratio) * max(forward), (1 + ratio) * sum(forward), v, m).item()
    assert exact_s(schedule, p, v, m, forward, backward, 0.0) <= closed * (1 + 1e-12)


def test_the_closed_form_is_no_bound_in_general():
    forward, backward = [1.0, 3.0, 1.0, 1.0, 1.0, 0.5], [1.0, 0.5, 1.0, 1.0, 2.0, 0.5]
    total = [f + b for f, b in zip(forward, backward, strict=True)]
    closed = compute_s(max(total), sum(total), 1, 2).item()
    assert closed < exact_s("1f1b", 6, 1, 2, forward, backward, 0.0) < 1.1 * closed


@given(case=uneven(("gpipe",)))
def test_gpipe_is_two_flow_shops(case):
    # All forwards, then all backwards: each its sum and (m - 1) of its slowest stage.
    _, _, _, m, forward, backward = case
    by_hand = sum(forward) + (m - 1) * max(forward) + sum(backward) + (m - 1) * max(backward)
    assert exact_s(*case, 0.0) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize(
    ("p", "v", "m", "head"), [(8, 2, 32, 2.4), (8, 4, 32, 1.0), (16, 8, 64, 0.66)]
)
def test_the_closed_form_is_exact_when_only_the_last_chunk_is_longer(p, v, m, head):
    # The usual unevenness: equal layers, and a head worth some layers behind the last chunk.
    forward = [1.0] * (p * v - 1) + [1.0 + head]
    backward = [2.0 * x for x in forward]
    total = [3.0 * v] * (p - 1) + [3.0 * (v + head)]
    closed = compute_s(max(total), sum(total), v, m).item()
    assert exact_s("interleaved", p, v, m, forward, backward, 0.0) == pytest.approx(closed)


def test_interleaving_uneven_chunks_can_exceed_the_closed_form():
    # One rank has its long chunk first, the next its long chunk last: neighbours wait twice.
    forward = [2.0, 1.0, 1.0, 2.0]
    backward = [2.0 * x for x in forward]
    exact = exact_s("interleaved", 2, 2, 8, forward, backward, 0.0)
    assert exact > 1.05 * compute_s(9.0, 18.0, 2, 8).item()


@given(case=uneven(), which=st.integers(0, 100), more=st.floats(0.0, 2.0))
def test_a_slower_stage_never_makes_the_step_shorter(case, which, more):
    schedule, p, v, m, forward, backward = case
    base = exact_s(*case, 0.1)
    j = which % (p * v)
    longer = [x + more * (i == j) for i, x in enumerate(forward)]
    assert exact_s(schedule, p, v, m, longer, backward, 0.1) >= base * (1 - 1e-12)


# The oracle: events in a heap. Another order of evaluation, programs from index arithmetic.


def nth_block(p: int, v: int, k: int) -> tuple[int, int]:
    """Chunk and micro-batch of the k-th forward of a rank: groups of p micro-batches a chunk."""
    return k % (p * v) // p, k // (p * v) * p + k % p


def oracle_program(schedule: str, rank: int, p: int, v: int, m: int) -> list[tuple[str, int, int]]:
    """('F' or 'B', virtual stage, micro-batch) in the order in which a rank runs them."""
    total = m * v
    if schedule == "gpipe":
        ahead = total
    elif schedule == "interleaved":
        ahead = min(total, 2 * (p - 1 - rank) + (v - 1) * p)
    else:
        ahead = min(total, p - 1 - rank)
    blocks, forward, backward = [], 0, 0
    while backward < total:
        if forward < total and forward - backward <= ahead:
            blocks.append(("F", forward))
            forward += 1
        if forward == total or forward - backward > ahead:
            blocks.append(("B", backward))
            backward += 1
    out = []
    for kind, k in blocks:
        chunk, micro = nth_block(p, v, k) if schedule == "interleaved" else (0, k)
        stage = (v - 1 - chunk if kind == "B" else chunk) * p + rank
        out.append((kind, stage, micro))
    return out


def oracle_s(schedule, p, v, m, forward, backward, hop) -> float:
    """Length of the step by discrete events: a block starts when the last it needs arrives."""
    last = p * v - 1
    hop = hop if p > 1 else 0.0
    waiting: dict[tuple[str, int, int], int] = {}
    unlocks: dict[tuple[str, int, int], list[tuple[tuple[str, int, int], float]]] = {}

    def edge(before: tuple[str, int, int], after: tuple[str, int, int], delay: float) -> None:
        unlocks.setdefault(before, []).append((after, delay))
        waiting[after] = waiting.get(after, 0) + 1

    for rank in range(p):
        program = oracle_program(schedule, rank, p, v, m)
        for before, after in itertools.pairwise(program):
            edge(before, after, 0.0)
    for micro in range(m):
        for stage in range(last):
            edge(("F", stage, micro), ("F", stage + 1, micro), hop)
            edge(("B", stage + 1, micro), ("B", stage, micro), hop)
        edge(("F", last, micro), ("B", last, micro), 0.0)
    arrivals = [(0.0, ("F", 0, 0))]
    waiting[("F", 0, 0)] = 1
    finished, end = 0, 0.0
    while arrivals:
        now, block = heapq.heappop(arrivals)
        waiting[block] -= 1
        if waiting[block]:
            continue
        kind, stage, _ = block
        done = now + (forward if kind == "F" else backward)[stage]
        finished, end = finished + 1, max(end, done)
        for after, delay in unlocks.get(block, ()):
            heapq.heappush(arrivals, (done + delay, after))
    assert finished == 2 * m * v * p, "deadlock"
    return end


@given(case=uneven(), hop=st.floats(0, 2.0))
def test_the_recurrence_agrees_with_an_event_simulator(case, hop):
    assert exact_s(*case, hop) == pytest.approx(oracle_s(*case, hop), rel=1e-12)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_programs_run_every_block_once_and_forward_before_backward(schedule):
    p, v, m = 4, 3 if schedule == "interleaved" else 1, 8
    for rank in range(p):
        program = rank_program(schedule, rank, p, v, m)
        blocks = {(stage, micro) for stage in range(rank, p * v, p) for micro in range(m)}
        assert len(program) == 2 * m * v
        for backward in (False, True):
            assert {(s, i) for s, i, b in program if b is backward} == blocks
        place = {block: i for i, block in enumerate(program)}
        assert all(place[s, i, False] < place[s, i, True] for s, i in blocks)
        # The same order as the oracle's index arithmetic.
        named = [("B" if b else "F", s, i) for s, i, b in program]
        assert named == oracle_program(schedule, rank, p, v, m)


@pytest.mark.parametrize(("schedule", "v"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 3)])
def test_programs_hold_as_many_micro_batches_as_the_memory_model_says(schedule, v):
    p, m = 4, 8
    for rank in range(p):
        flying = most = 0
        for _, _, backward in rank_program(schedule, rank, p, v, m):
            flying += -1 if backward else 1
            most = max(most, flying)
        code = SCHEDULES.index(schedule)
        assert most == in_flight_chunks(code, rank, p, v, m)


def test_interleaving_needs_whole_groups():
    with pytest.raises(ValueError, match="6 micro-batches are no multiple of pp 4"):
        rank_program("interleaved", 0, 4, 2, 6)


# Extrapolation of long steps.


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
@pytest.mark.parametrize("p", [2, 4, 8])
def test_long_steps_are_extrapolated_within_a_tenth_of_a_percent(schedule, p):
    chance = random.Random(f"{schedule}{p}")
    for _ in range(4):
        v = chance.choice([2, 3]) if schedule == "interleaved" else 1
        m = p * chance.randint(STEADY_PERIODS[1] + 1, 40)
        m += 0 if schedule == "interleaved" else chance.randrange(p)
        forward = [chance.uniform(0.7, 1.3) for _ in range(p * v)]
        backward = [chance.uniform(1.4, 2.6) for _ in range(p * v)]
        hop = chance.choice([0.0, 0.01, 0.1])
        args = (schedule, p, v, m, forward, backward, hop)
        assert flush_s(*args) == pytest.approx(exact_s(*args), rel=1e-3)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_short_steps_are_simulated(schedule):
    v = 2 if schedule == "interleaved" else 1
    args = (schedule, 4, v, 4 * PROVEN_PERIODS[0], [1.0, 1.3] * 2 * v, [2.0] * 4 * v, 0.05)
    assert flush_s(*args) == exact_s(*args)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_steps_of_equal_stages_are_extrapolated_exactly(schedule):
    v = 2 if schedule == "interleaved" else 1
    for p, last in itertools.product((2, 4, 8), (1.0, 1.2)):
        forward = [1.0] * (p * v - 1) + [last]
        for m in (10 * p, 33 * p):
            args = (schedule, p, v, m, forward, [2.0] * p * v, 0.02)
            assert flush_s(*args) == pytest.approx(exact_s(*args), rel=1e-12)


def test_a_step_that_keeps_changing_is_not_called_periodic():
    # A gap of 1e-4 between the two slowest ranks takes thousands of micro-batches to close.
    forward, backward = [1.0, 1.0001, 1.0, 1.0], [2.0] * 4
    args = ("1f1b", 4, 1, 4 * 60, forward, backward, 0.3)
    assert flush_s(*args) == pytest.approx(exact_s(*args), rel=1e-3)


@settings(max_examples=examples(25))
@given(case=uneven(("1f1b",), 4), hop=st.floats(0, 0.3), extra=st.integers(1, 20))
def test_any_uneven_1f1b_becomes_periodic(case, hop, extra):
    schedule, p, v, m, forward, backward = case
    m += extra + p * STEADY_PERIODS[1]
    args = (schedule, p, v, m, forward, backward, hop)
    assert flush_s(*args) == pytest.approx(exact_s(*args), rel=1e-3)
