"""Mixtures of kinds beside every mixture of small problems."""

import random
from itertools import product

import numpy as np
import pytest

from searches.mixed.mixtures import Candidates, best_mixtures


def _random_candidates(seed: int) -> tuple[Candidates, list[int]]:
    chance = random.Random(seed)
    n, sizes = 7, [chance.randint(8, 20) for _ in range(2)]
    devices = np.array(
        [[chance.randint(0, 4), chance.randint(0, 4)] for _ in range(n)], dtype=float
    )
    devices[devices.sum(axis=1) == 0] = 1.0
    least = np.array([chance.randint(1, 2) for _ in range(n)])
    fits = [min(s // d for s, d in zip(sizes, row, strict=True) if d) for row in devices.tolist()]
    most = np.array([max(1, int(x)) for x in fits])
    done = np.array([float(chance.randint(1, 3) * row.sum()) for row in devices])
    prices = np.array([3.0, 3.0])
    multiple = np.ones(n, dtype=np.int64)
    return Candidates(devices, done, least, most, multiple, devices @ prices, 0.5), sizes


def _every_done(candidates: Candidates, sizes: list[int], most_kinds: int) -> float:
    ranges = [
        (0, *range(a, b + 1)) for a, b in zip(candidates.least, candidates.most, strict=True)
    ]
    best = 0.0
    for counts in product(*ranges):
        if sum(n > 0 for n in counts) > most_kinds:
            continue
        if (np.array(counts) @ candidates.devices <= sizes).all():
            best = max(best, float(np.array(counts) @ candidates.done))
    return best


@pytest.mark.parametrize("seed", range(8))
def test_mixtures_hold_to_pools_and_kinds_and_are_near_the_best(seed):
    candidates, sizes = _random_candidates(seed)
    found = best_mixtures(candidates, sizes, 2, 10)
    reached = []
    for mixture in found:
        places, counts = (np.array(x) for x in zip(*mixture, strict=True))
        assert len(set(places.tolist())) == len(mixture) <= 2
        assert (counts @ candidates.devices[places] <= sizes).all()
        assert (counts >= candidates.least[places]).all()
        assert (counts <= candidates.most[places]).all()
        reached.append(float(counts @ candidates.done[places]))
    assert reached == sorted(reached, reverse=True)
    best = _every_done(candidates, sizes, 2)
    assert 0.9 * best <= reached[0] <= best  # a heuristic: the bound does not rest on it
