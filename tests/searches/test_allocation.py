"""Which job gets which nodes: against every allocation that there is, and by hand."""

import itertools
import math
import random

import pytest

from searches.allocation import (
    IDLE_SPEED,
    OBJECTIVES,
    MoldableJob,
    NodeChoice,
    deadline_value,
    fairness_value,
    priced_bound,
    solve_allocation,
    throughput_value,
)


def random_jobs(seed: int, n_jobs: int, pools: dict[str, int]) -> list[MoldableJob]:
    draw = random.Random(seed)
    jobs = []
    for i in range(n_jobs):
        choices = []
        for pool in pools:
            speed = draw.uniform(1e3, 9e3)
            for nodes in draw.sample(range(1, 7), 2):
                choices.append(NodeChoice(pool, nodes, speed * nodes ** draw.uniform(0.5, 1.0)))
        weight, tokens = draw.choice([0.5, 1.0, 3.0]), draw.uniform(1e6, 9e7)
        jobs.append(MoldableJob(f"j{i}", tuple(choices), weight, tokens, draw.uniform(1e3, 2e4)))
    return jobs


def value_of(jobs, chosen, objective) -> float:
    """Return the objective by its words, counted apart from the search."""
    pairs = [(job, choice) for job, choice in zip(jobs, chosen, strict=True) if choice]
    if objective == "throughput":
        return sum(job.weight * choice.tokens_per_s for job, choice in pairs)
    speeds = [c.tokens_per_s / max(x.tokens_per_s for x in job.choices) for job, c in pairs]
    if objective == "fairness":
        return sum(
            job.weight * math.log(speed / 1e-3)
            for (job, _), speed in zip(pairs, speeds, strict=True)
        )
    met = sum(job.weight for job, c in pairs if job.tokens / c.tokens_per_s <= job.deadline_s)
    least = min(job.weight for job in jobs)
    return met + 0.5 * least / len(jobs) * sum(speeds)


def best_by_hand(jobs, free, objective) -> float:
    best = 0.0
    for chosen in itertools.product(*[(None, *job.choices) for job in jobs]):
        used = dict.fromkeys(free, 0)
        for choice in filter(None, chosen):
            used[choice.pool] += choice.n_nodes
        if all(used[pool] <= free[pool] for pool in free):
            best = max(best, value_of(jobs, chosen, objective))
    return best


@pytest.mark.parametrize("seed", range(6))
def test_prices_bound_every_allocation(seed):
    free = {"h100": 6, "a100": 4}
    jobs = random_jobs(seed, 4, free)
    values = [[throughput_value(job, choice) for choice in job.choices] for job in jobs]
    best = best_by_hand(jobs, free, "throughput")
    assert best * (1 - 1e-12) <= priced_bound(jobs, values, free) <= 1.5 * best


def test_prices_of_one_pool_by_hand():
    # 3 nodes, two jobs of 2 nodes worth 10 and 8: at 4 a node both take theirs, 12 + 2 + 0 = 14.
    jobs = [
        MoldableJob(name, (NodeChoice("a", 2, x),)) for name, x in (("one", 10.0), ("two", 8.0))
    ]
    assert priced_bound(jobs, [[10.0], [8.0]], {"a": 3}) == pytest.approx(14.0, rel=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_many_jobs_get_what_there_is_and_a_bound(objective):
    free = {"h100": 100, "a100": 100}
    found = solve_allocation(random_jobs(7, 700, free), free, objective, effort=0.05)
    used = dict.fromkeys(free, 0)
    for choice in filter(None, found.chosen):
        used[choice.pool] += choice.n_nodes
    assert all(0.95 * free[pool] <= used[pool] <= free[pool] for pool in free)
    assert found.is_proven or 0.0 < found.gap_frac < 0.1


def test_a_job_of_little_weight_gets_what_nobody_wants():
    jobs = [
        MoldableJob("big", (NodeChoice("a", 1, 500_000.0),), weight=100.0),
        MoldableJob("small", (NodeChoice("a", 1, 2_000.0),), weight=0.01),
    ]
    assert None not in solve_allocation(jobs, {"a": 8}).chosen


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(6))
def test_no_allocation_is_better(seed, objective):
    free = {"h100": 6, "a100": 4} if seed % 2 else {"h100": 9}
    jobs = random_jobs(seed, 4 if seed % 2 else 6, free)
    found = solve_allocation(jobs, free, objective)
    used = dict.fromkeys(free, 0)
    for choice in filter(None, found.chosen):
        used[choice.pool] += choice.n_nodes
    assert all(used[pool] <= free[pool] for pool in free)
    assert found.is_proven
    assert found.gap_frac == 0.0
    assert found.value == pytest.approx(value_of(jobs, found.chosen, objective))
    assert found.value == pytest.approx(best_by_hand(jobs, free, objective), rel=1e-5)


def test_values_by_hand():
    slow, fast = NodeChoice("p", 1, 100.0), NodeChoice("p", 4, 400.0)
    job = MoldableJob("a", (slow, fast), weight=2.0, tokens=1_000.0, deadline_s=5.0)
    assert throughput_value(job, slow) == 200.0
    # 2 x ln(0.25 / 0.001) = 2 x 5.521461
    assert fairness_value(job, slow) == pytest.approx(11.042922)
    assert fairness_value(job, fast) == pytest.approx(2.0 * math.log(1.0 / IDLE_SPEED))
    # 1,000 tokens take 10 s and 2.5 s.
    assert (deadline_value(job, slow), deadline_value(job, fast)) == (0.0, 2.0)


def test_fairness_serves_both_where_throughput_serves_one():
    whole, half = NodeChoice("p", 4, 1_000.0), NodeChoice("p", 2, 450.0)
    small = NodeChoice("p", 2, 300.0)
    jobs = [MoldableJob("a", (whole, half)), MoldableJob("b", (small,))]
    assert solve_allocation(jobs, {"p": 4}, "throughput").chosen == (whole, None)
    assert solve_allocation(jobs, {"p": 4}, "fairness").chosen == (half, small)


def test_two_hundred_jobs_on_64_nodes_are_proven_or_bounded_and_repeatable():
    free = {"h100": 40, "a100": 24}
    jobs = random_jobs(7, 200, free)
    first, second = (solve_allocation(jobs, free, "fairness") for _ in range(2))
    assert first == second
    assert first.is_proven or 0.0 < first.gap_frac < 0.05
    assert first.value <= first.bound * (1.0 + 1e-9)


def test_without_effort_there_is_a_bound():
    jobs = random_jobs(3, 60, {"p": 20})
    found = solve_allocation(jobs, {"p": 20}, "throughput", effort=1e-9)
    assert found.is_proven == (found.gap_frac == 0.0)
    assert found.bound >= found.value
    proven = solve_allocation(jobs, {"p": 20}, "throughput")
    assert found.value <= proven.value * (1.0 + 1e-5)
    assert found.bound >= proven.value * (1.0 - 1e-5)


@pytest.mark.parametrize("free", [{"p": 0}, {"p": 3}])
def test_what_does_not_fit_waits(free):
    job = MoldableJob("a", (NodeChoice("p", 4, 1.0),))
    found = solve_allocation([job, MoldableJob("b", ())], free)
    assert (found.chosen, found.value, found.is_proven) == ((None, None), 0.0, True)
