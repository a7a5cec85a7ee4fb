"""Many pipelines in lockstep: the same numbers as one by one, and what is proven to repeat."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.schedule import lockstep, pipeline
from costmodels.schedule.pipeline import (
    COMMON_DIVISORS,
    COMMON_PERIODS,
    LONG_PERIODS,
    PipelineRun,
    compute_s,
    flush_times_s,
    rank_program,
    simulate_s,
)
from tests.costmodels.pipelines import flush_s


def simulated_s(run: PipelineRun) -> float:
    return simulate_s(run)


def in_lockstep(runs: list[PipelineRun], lags=()) -> tuple[list[float], list[float]]:
    rows = []
    for run in runs:
        order = lockstep.Order(run.schedule, run.pp, run.vpp, run.n_micro)
        rows.append(lockstep.Pipeline(order, run.forward_s, run.backward_s, run.hops_s))
    return lockstep.flush_and_period_s(rows, lags)


def random_run(chance: random.Random, schedules, most_micro=40, spread=1.0) -> PipelineRun:
    schedule = chance.choice(schedules)
    p = chance.randint(2, 7)
    v = chance.randint(1, 4) if schedule == "interleaved" else 1
    whole = schedule in ("interleaved", "dualpipe")
    m = p * chance.randint(1, most_micro // p) if whole else chance.randint(1, most_micro)
    if schedule in ("zb-v", "dualpipe-v"):
        v, m = 2, max(m, 2 * p)
    if schedule == "dualpipe":
        p, m = 2 * (p // 2), 2 * p * max(2, m // p)
    stages = p * v
    forward = tuple(1.0 + spread * chance.random() for _ in range(stages))
    backward = tuple(2.0 + 2 * spread * chance.random() for _ in range(stages))
    hops = tuple(chance.choice([0.0, 0.05, 0.4]) * chance.random() for _ in range(p))
    late = ()
    if schedule in ("zb-h1", "zb-v", "dualpipe", "dualpipe-v"):
        late = tuple(0.4 * x for x in backward)
    return PipelineRun(schedule, p, v, m, forward, backward, hops, late)


def test_whole_steps_are_those_of_the_recurrence_bit_for_bit():
    chance = random.Random(5)
    runs = [random_run(chance, ("1f1b", "interleaved"), spread=2.0) for _ in range(120)]
    assert in_lockstep(runs)[0] == [simulated_s(run) for run in runs]


def test_steps_longer_than_one_lookup_of_blocks_are_too():
    chance = random.Random(6)
    runs = [random_run(chance, ("1f1b", "interleaved"), 240) for _ in range(8)]
    assert max(2 * run.n_micro * run.vpp for run in runs) > lockstep.TICKS
    assert in_lockstep(runs)[0] == [simulated_s(run) for run in runs]


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_ticks_order_blocks_as_the_programs_do(schedule):
    p, v, m = 5, 3 if schedule == "interleaved" else 1, 10
    order = lockstep.Order(schedule, p, v, m)
    blocks = lockstep._blocks(order, 0, order.n_ticks)
    for rank in range(p):
        seen = {False: [0] * (p * v), True: [0] * (p * v)}
        ran = []
        for tick in range(order.n_ticks):
            for stages, backward in ((blocks.forward, False), (blocks.backward, True)):
                stage = int(stages[tick, rank])
                if stage < p * v:
                    ran.append((stage, seen[backward][stage], backward))
                    seen[backward][stage] += 1
        assert ran == rank_program(schedule, rank, p, v, m)


ALL = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe", "dualpipe-v")


def test_a_batch_of_all_schedules_gets_the_times_of_single_runs():
    chance = random.Random(7)
    runs = [random_run(chance, ALL, 30) for _ in range(60)]
    runs += [replace(runs[0], pp=1, schedule="none", forward_s=(1.0,), backward_s=(2.5,))]
    runs += runs[:3]
    found = flush_times_s(runs)
    assert found == [flush_times_s([run])[0] for run in runs]
    assert found[60] == runs[60].n_micro * 3.5
    for run, flush in zip(runs[:60], found, strict=False):
        assert flush == pytest.approx(simulated_s(run), rel=1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
@pytest.mark.parametrize(("spread", "least"), [(0.0, 12), (0.01, 3), (0.1, 6)])
def test_long_steps_that_repeat_are_exact(schedule, spread, least, monkeypatch):
    # Ranks that differ by little drift apart for long before the slowest holds up all.
    chance = random.Random(f"{schedule} {spread}")
    runs = []
    while len(runs) < 12:
        run = random_run(chance, (schedule,), 60 * 7, spread)
        rest = chance.randrange(run.pp) if schedule == "1f1b" else 0
        runs.append(replace(run, n_micro=run.pp * chance.randint(36, 60) + rest))
    long = [replace(x, n_micro=(LONG_PERIODS + x.n_micro // x.pp % 12) * x.pp) for x in runs]
    _, periods = in_lockstep(long, COMMON_DIVISORS)
    proven = [run for run, period in zip(runs, periods, strict=True) if period > 0.0]
    assert len(proven) >= least
    exact = [simulated_s(run) for run in runs]
    assert flush_times_s(runs) == pytest.approx(exact, rel=1e-12)
    # Where neither that nor the whole step is to be had, the mean of the last periods.
    monkeypatch.setattr(pipeline, "WHOLE_TICKS", 0)
    found = dict(zip(runs, flush_times_s(runs), strict=True))
    for run, whole in zip(runs, exact, strict=True):
        assert found[run] == pytest.approx(whole, rel=1e-12 if run in proven else 5e-3)


def test_a_pipeline_that_repeats_after_two_periods_of_micro_batches_only_is_proven():
    # One slow boundary: the two ranks beside it play ping-pong over two micro-batches, p is 3.
    run = PipelineRun("1f1b", 3, 1, 3 * 80, (1.0,) * 3, (2.0,) * 3, (0.0, 0.8, 0.0))
    long = replace(run, n_micro=3 * (LONG_PERIODS + 80 % COMMON_PERIODS))
    assert in_lockstep([long], (1,))[1] == [-1.0]
    period = in_lockstep([long], COMMON_DIVISORS)[1][0]
    assert period == pytest.approx(3 * (3.0 + 0.8), rel=1e-12)
    assert flush_times_s([run])[0] == pytest.approx(simulated_s(run), rel=1e-12)


@given(
    p=st.integers(2, 16),
    v=st.integers(1, 6),
    rounds=st.integers(1, 200),
    f=st.floats(0.1, 2.0),
    b=st.floats(0.1, 4.0),
)
def test_equal_stages_without_hops_take_the_closed_form(p, v, rounds, f, b):
    # (m + (p - 1) / v)(f + b) of a rank: exact, so nothing is left to simulate.
    schedule = "interleaved" if v > 1 else "1f1b"
    m, stages = rounds * p, p * v
    found = flush_s(schedule, p, v, m, [f / v] * stages, [b / v] * stages, 0.0)
    assert found == pytest.approx(compute_s(f + b, p * (f + b), v, m).item(), rel=1e-11)


def test_incomplete_rounds_are_refused():
    run = PipelineRun("interleaved", 4, 2, 6, (1.0,) * 8, (2.0,) * 8, (0.0,) * 4)
    with pytest.raises(ValueError, match="6 micro-batches are no multiple of pp 4"):
        flush_times_s([run])
