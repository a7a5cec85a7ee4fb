"""Splits of least closed-form time: an exact dynamic program and enumeration as oracles."""

import itertools
import random
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from costmodels.schedule.in_flight import beyond_mean
from costmodels.schedule.rank_costs import RankCosts
from searches.splits import model as split_model
from searches.splits.model import (
    TOLERANCE,
    Split,
    best_splits,
    least_pipeline_s,
    unlimited_pipeline_s,
)
from tests.searches.instances import one_in

Floats = NDArray[np.float64]
GIB = 2.0**30


def random_costs(chance: random.Random, *, layers, pp, vpp=1, dense=None) -> RankCosts:
    """Made-up costs of the right signs; `dense` leading layers without experts, None: all."""
    experts = dense is not None
    before = [0]
    for i in range(layers):
        before.append(before[-1] + int(experts and i >= dense))
    layer = chance.uniform(1.0, 2.0) * GIB
    # Earlier ranks hold more micro-batches.
    flying = np.array([pp - r for r in range(pp)]) * chance.uniform(0.2, 0.6) * GIB
    fixed = np.full(pp, chance.uniform(1.0, 3.0) * GIB)
    fixed[0] += chance.uniform(0.0, 2.0) * GIB
    fixed[-1] += chance.uniform(0.0, 4.0) * GIB
    seconds = [chance.uniform(1.0, 2.0), chance.uniform(0.1, 1.5) if experts else 0.0]
    seconds += [chance.uniform(0.3, 0.6), chance.uniform(0.0, 0.5) if experts else 0.0]
    n_micro = pp * chance.randint(1, 12)
    ends = chance.uniform(0.0, 0.3), chance.uniform(0.0, 4.0)
    more = np.full(pp, chance.uniform(0.0, 1.0) * GIB if experts else 0.0)
    more_again = -0.01 * flying if experts else np.zeros(pp)
    return RankCosts(
        pp=pp,
        vpp=vpp,
        n_micro=n_micro,
        each_s=tuple(seconds),
        embedding_s=ends[0],
        head_s=ends[1],
        fixed_bytes=fixed,
        fixed_recompute_bytes=fixed + chance.uniform(0.0, 0.3) * GIB,
        each_bytes=np.stack([layer + flying, more, -0.8 * flying, more_again]),
        others_before=(tuple(before),),
        n_layers=layers,
        in_flight_bytes=flying[-1] * np.array([1.0, 0.1, -0.8, -0.01]),
        beyond_mean=tuple(beyond_mean(r, pp, vpp, 3) for r in range(pp if vpp > 1 else 0)),
    )


def stage_cost(costs: RankCosts, stage: int, first: int, n: int, k: int) -> tuple[float, Floats]:
    """Seconds of `n` layers from `first` on as a virtual stage, and bytes at each moment."""
    (before,), rank, chunk = costs.others_before, stage % costs.pp, stage // costs.pp
    q = min(n, k)
    held = np.array([n, before[first + n] - before[first], q, before[first + q] - before[first]])
    size = held @ costs.each_bytes[:, rank]
    more = costs.beyond_mean[rank][:, chunk] if costs.beyond_mean else np.zeros(1)
    return float(held @ np.array(costs.each_s)), size + more * (held @ costs.in_flight_bytes)


def fewest(stage: int, n_stages: int) -> int:
    """Layers of a stage at least: the ends may hold the embedding or the loss alone."""
    return int(0 < stage < n_stages - 1)


def dynamic_program_s(costs: RankCosts, usable: float, ks) -> float | None:
    """Least pipeline time over all splits into one stage a rank, None if nothing fits.

    For every k and every time that a rank may take as limit: the least sum of times, rank by rank.
    """
    p, n = costs.pp, costs.n_layers
    best = None
    for k in ks:
        cost = {}
        for rank in range(p):
            end = costs.embedding_s * (rank == 0) + costs.head_s * (rank == p - 1)
            fixed = costs.fixed_recompute_bytes[rank] if k else costs.fixed_bytes[rank]
            for first in range(n + 1):
                for size in range(fewest(rank, p), n - first + 1):
                    seconds, held = stage_cost(costs, rank, first, size, k)
                    if held.max() + fixed <= usable:
                        cost[rank, first, size] = seconds + end
        for limit in sorted(set(cost.values())):
            sums = {0: 0.0}
            for rank in range(p):
                after: dict[int, float] = {}
                for first, total in sums.items():
                    for size in range(fewest(rank, p), n - first + 1):
                        one = cost.get((rank, first, size))
                        if one is not None and one <= limit:
                            whole = total + one
                            at = first + size
                            after[at] = min(after.get(at, whole), whole)
                sums = after
            if n in sums:
                found = costs.n_micro * limit + sums[n] - limit
                best = found if best is None else min(best, found)
            if best is not None and (costs.n_micro - 1) * limit > best:
                break
    return best


def enumerated_s(costs: RankCosts, usable: float, ks, least: int, most: int) -> float | None:
    """Least pipeline time of interleaved stages of `least` to `most` layers, the ends from 0."""
    stages, best = costs.pp * costs.vpp, None
    ranges = [range(least, most + 1)] * stages
    ranges[0] = ranges[-1] = range(most + 1)
    for counts in itertools.product(*ranges):
        if sum(counts) != costs.n_layers:
            continue
        for k in ks:
            seconds = [0.0] * costs.pp
            held: list[Floats] = [np.zeros(1)] * costs.pp
            first = 0
            for j, n in enumerate(counts):
                s, b = stage_cost(costs, j, first, n, k)
                seconds[j % costs.pp] += s
                held[j % costs.pp] = held[j % costs.pp] + b
                first += n
            fixed = costs.fixed_recompute_bytes if k else costs.fixed_bytes
            seconds[0] += costs.embedding_s
            seconds[-1] += costs.head_s
            if max(b.max() + f for b, f in zip(held, fixed, strict=True)) <= usable:
                slowest = max(seconds)
                time = costs.n_micro * slowest + (sum(seconds) - slowest) / costs.vpp
                best = time if best is None else min(best, time)
    return best


def checked(costs: RankCosts, usable: float, ks, oracle) -> str:
    """Compare the answer with the oracle's and return what it was."""
    usable *= 1.0 + 1e-6  # the solver counts in whole bytes, rounded up
    answer, exact = best_splits(costs, usable, ks), oracle(costs, usable, ks)
    assert answer.proven
    if exact is None:
        assert answer.best is None
        assert answer.others == ()
        return "infeasible"
    found = answer.best
    assert found is not None
    assert sum(found.counts) == costs.n_layers
    assert min(found.counts[1:-1], default=1) >= 1
    assert found.recompute_layers in ks
    assert costs.rank_bytes(found.counts, found.recompute_layers).max() <= usable
    time = costs.pipeline_s(found.counts, found.recompute_layers)
    assert time == pytest.approx(exact, rel=2 * TOLERANCE)
    assert time >= exact * (1 - 1e-9)
    least_s = least_pipeline_s(costs, usable, ks)
    assert unlimited_pipeline_s(costs, ks) <= least_s <= exact * (1 + 1e-5)
    assert found in answer.others
    for other in answer.others:
        assert costs.rank_bytes(other.counts, other.recompute_layers).max() <= usable
    return "recomputed" if found.recompute_layers else "fits"


@pytest.mark.parametrize("dense", one_in(2, [None, 0, 1, 3]))
def test_one_chunk_a_rank_agrees_with_a_dynamic_program(dense, monkeypatch):
    monkeypatch.setattr(split_model, "WORK", 10.0)
    chance = random.Random(f"one chunk {dense}")
    seen = []
    for _ in range(15):
        pp = chance.randint(2, 5)
        layers = chance.randint(pp, 14)
        costs = random_costs(chance, layers=layers, pp=pp, dense=dense)
        even = [layers // pp + 1] + [layers // pp] * (pp - 1)
        even[-1] += layers - sum(even)
        # From memory for anything down to memory for nothing.
        usable = costs.rank_bytes(even, 0).max() * chance.choice([4.0, 1.0, 0.9, 0.8, 0.4])
        ks = chance.choice([(0,), range(layers + 1), (0, 2, 3), (2,)])
        seen.append(checked(costs, usable, ks, dynamic_program_s))
    assert {"fits", "infeasible"} <= set(seen)


@pytest.mark.slow
def test_limited_memory_is_answered_by_recomputation(monkeypatch):
    monkeypatch.setattr(split_model, "WORK", 10.0)
    chance = random.Random("recompute")
    seen = []
    for _ in range(20):
        costs = random_costs(chance, layers=12, pp=4, dense=chance.choice([None, 2]))
        usable = costs.rank_bytes((3, 3, 3, 3), 2).max() * chance.uniform(0.95, 1.05)
        seen.append(checked(costs, usable, range(13), dynamic_program_s))
    assert seen.count("recomputed") > 8


@pytest.mark.parametrize("dense", one_in(2, [None, 1]))
def test_interleaved_stages_agree_with_enumeration(dense, monkeypatch):
    monkeypatch.setattr(split_model, "WORK", 10.0)
    chance = random.Random(f"interleaved {dense}")
    seen = []
    for _ in range(12):
        pp, vpp = chance.choice([(2, 2), (3, 2), (2, 3)])
        layers = chance.randint(pp * vpp, 15)
        costs = random_costs(chance, layers=layers, pp=pp, vpp=vpp, dense=dense)
        mean = layers / (pp * vpp)
        least, most = max(1, int(mean) - 1), -(-layers // (pp * vpp)) + 1
        fill = [max(1, int(mean))] * (pp * vpp)
        fill[0] += layers - sum(fill)
        usable = costs.rank_bytes(fill, 0).max() * chance.choice([2.0, 0.95, 0.85, 0.4])
        ks = chance.choice([(0,), (0, 1, 2), range(layers)])
        oracle = partial(enumerated_s, least=least, most=most)
        seen.append(checked(costs, usable, ks, oracle))
    assert len(set(seen)) > 1


def test_experts_in_every_second_layer_are_counted_where_they_are(monkeypatch):
    monkeypatch.setattr(split_model, "WORK", 10.0)
    chance = random.Random("alternating")
    before = tuple(i // 2 for i in range(13))
    for _ in range(6):
        costs = random_costs(chance, layers=12, pp=4, dense=0)
        fields = {name: getattr(costs, name) for name in costs.__slots__}
        costs = RankCosts(**fields | {"others_before": (before,)})
        usable = costs.rank_bytes((3, 3, 3, 3), 1).max()
        checked(costs, usable, range(13), dynamic_program_s)


def test_a_heavy_head_by_hand():
    # Layers of 1 s, a head of 3 s: 13 layers on 4 ranks are 4-4-4-1, and all ranks take 4 s.
    flat = np.zeros(4)
    costs = RankCosts(
        pp=4,
        vpp=1,
        n_micro=8,
        each_s=(1.0, 0.4),
        embedding_s=0.0,
        head_s=3.0,
        fixed_bytes=flat,
        fixed_recompute_bytes=flat,
        each_bytes=np.stack([flat + 1.0, flat - 0.5]),
        others_before=(),
        n_layers=13,
        in_flight_bytes=np.zeros(2),
        beyond_mean=(),
    )
    answer = best_splits(costs, 100.0)
    assert answer.best == Split((4, 4, 4, 1), 0)
    assert answer.proven
    assert costs.pipeline_s((4, 4, 4, 1), 0) == 8 * 4.0 + 12.0
    # With memory for three layers a rank nothing fits, for 3.5 the ranks of four recompute one.
    assert best_splits(costs, 3.0).best is None
    assert best_splits(costs, 3.5, range(14)).best == Split((4, 4, 4, 1), 1)


def test_a_solve_cut_short_says_how_far_it_may_be_off(monkeypatch):
    monkeypatch.setattr(split_model, "WORK", 1e-9)
    chance = random.Random("cut short")
    gaps = []
    for _ in range(4):
        costs = random_costs(chance, layers=20, pp=3, vpp=2, dense=2)
        usable = costs.rank_bytes((4, 4, 3, 3, 3, 3), 2).max()
        known = Split((4, 4, 3, 3, 3, 3), 2)
        answer = best_splits(costs, usable, range(20), [known])
        assert answer.best is not None
        monkeypatch.setattr(split_model, "WORK", 10.0)
        least = best_splits(costs, usable, range(20), [known])
        monkeypatch.setattr(split_model, "WORK", 1e-9)
        assert least.proven
        cut, whole = (
            costs.pipeline_s(x.best.counts, x.best.recompute_layers) for x in (answer, least)
        )
        assert cut * (1 - answer.gap_frac) <= whole * (1 + 2 * TOLERANCE)
        gaps.append(answer.gap_frac)
    assert max(gaps) > 0.0


def test_fewer_layers_than_stages_have_no_split():
    costs = random_costs(random.Random(1), layers=1, pp=4)
    assert best_splits(costs, 1e15).best is None
    costs = random_costs(random.Random(1), layers=2, pp=4)
    assert best_splits(costs, 1e15).best == Split((0, 1, 1, 0), 0)
