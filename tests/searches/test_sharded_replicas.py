"""The search over sharded replicas, against all plans of small jobs."""

import math
import random
from collections import Counter
from itertools import combinations_with_replacement, product

import numpy as np
import pytest

from costmodels.mixed.sharded_plans import ReplicaKind, ShardedPlan
from costmodels.mixed.sharded_prices import sharded_fits, sharded_price
from costmodels.mixed.tables import LinkFacts
from searches.sharded_replicas import capacity, lowered, search_sharded, shares_of
from tests.costmodels.mixed.sharded_instances import DEGREES, instance

RECOMPUTES = ("none", "full")


def _random(seed, n_pools):
    """Return a job on pools of few nodes, times that grow with the micro-batch."""
    draw = random.Random(seed)
    most = 3 if n_pools == 2 else 2
    times, peaks = [], []
    for _ in range(n_pools):
        each = draw.uniform(1.0, 4.0)
        own, full, total, peak = {}, {}, 0.0, draw.uniform(0.0, 0.3)
        for mbs in range(1, most + 1):
            total += each * draw.uniform(0.6, 1.2)
            peak += draw.uniform(0.1, 0.4)
            for recompute in RECOMPUTES:
                own[mbs, recompute] = total * (1.3 if recompute == "full" else 1.0)
                full[mbs, recompute] = peak * (0.6 if recompute == "full" else 1.0)
        times.append(own)
        peaks.append(full)
    nodes = [draw.randint(1, 3) for _ in range(n_pools)]
    link = LinkFacts(10 ** draw.uniform(10, 12.5), 10 ** draw.uniform(-6, -2))
    return instance(nodes, times, peaks, draw.choice([8, 12, 16, 20]), link)


def _every_plan(problem):
    """Yield every plan over two pools or more."""
    whole = problem.global_batch // DEGREES.shard
    rows = [[(i, key.mbs, key.recompute) for key in x.keys] for i, x in enumerate(problem.pools)]
    nodes = [x.problem.pool.n_nodes for x in problem.pools]
    choices = [
        [some for n in range(nodes[i] + 1) for some in combinations_with_replacement(own, n)]
        for i, own in enumerate(rows)
    ]
    for chosen in product(*choices):
        replicas = Counter(row for some in chosen for row in some)
        size = sum(n * mbs for (_, mbs, _), n in replicas.items())
        if len({place for place, _, _ in replicas}) > 1 and whole % size == 0:
            kinds = tuple(
                ReplicaKind(place, n, mbs, again) for (place, mbs, again), n in replicas.items()
            )
            yield ShardedPlan(DEGREES, whole // size, kinds)


def _least_s(problem):
    priced = ((plan, sharded_price(plan, problem)) for plan in _every_plan(problem))
    fitting = (x.step_s for plan, x in priced if sharded_fits(plan, problem, x))
    return min(fitting, default=math.inf)


FEW = [(2, seed) for seed in (1, 3, 4, 5)] + [(3, seed) for seed in (0, 1)]
MANY = [(n, seed) for n in (2, 3) for seed in range(12) if (n, seed) not in FEW]


@pytest.mark.parametrize(
    ("n_pools", "seed"), [*FEW, *(pytest.param(*one, marks=pytest.mark.slow) for one in MANY)]
)
def test_the_first_plan_is_the_fastest_of_all(n_pools, seed):
    problem = _random(seed, n_pools)
    answer = search_sharded(problem)
    found = answer.prices[0].step_s if answer.prices else math.inf
    assert found == pytest.approx(_least_s(problem), rel=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_plans_hold_the_batch_and_fit(seed):
    problem = _random(seed, 3)
    answer = search_sharded(problem)
    for plan, priced in zip(answer.plans, answer.prices, strict=True):
        assert plan.n_sequences == problem.global_batch
        assert sharded_fits(plan, problem, priced)
        assert len(plan.pools) > 1
        kinds = Counter(kind.pool for kind in plan.kinds)
        assert max(kinds.values()) <= 2
        assert priced == sharded_price(plan, problem)


def test_a_fast_pool_takes_the_larger_batch():
    times = [{(n, "none"): n * each for n in range(1, 7)} for each in (1.0, 2.0)]
    peaks = [dict.fromkeys(own, 0.5) for own in times]
    problem = instance([1, 1], times, peaks, 12, LinkFacts(1e13, 0.0))
    plan = search_sharded(problem).plans[0]
    by_pool = {kind.pool: kind.mbs for kind in plan.kinds}
    assert by_pool[0] == 2 * by_pool[1]


def test_a_search_ends_when_it_is_told_to():
    answer = search_sharded(_random(0, 2), stop=lambda: True)
    assert answer.stopped
    assert not answer.plans


def test_replicas_go_where_batches_are_largest():
    sizes, most = [3, 1, 2], [2, 4, 2]
    assert shares_of(sizes, most, 5) == [2, 1, 2]
    assert capacity(np.array(sizes), most, 5) == 3 * 2 + 1 + 2 * 2
    assert capacity(np.array(sizes), most, 9) == -1


@pytest.mark.parametrize("wanted", range(6, 16))
def test_micro_batches_are_lowered_to_the_batch(wanted):
    levels = lowered([4, 3, 1], [2, 2, 1], wanted)
    assert sum(mbs * n for level in levels for mbs, n in level.items()) == wanted
    assert [sum(level.values()) for level in levels] == [2, 2, 1]
    assert all(
        0 < mbs <= most for level, most in zip(levels, (4, 3, 1), strict=True) for mbs in level
    )
