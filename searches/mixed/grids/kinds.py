"""Which pools the stages of a pipeline lie on, and which such pipelines share one grid."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise, permutations, product

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MOST_KINDS = 3
"""Of one grid."""
MOST_SETS = 50_000
"""Sets of two kinds that are looked at in one row."""
FEW = 40
"""Ways to share the pipelines of a row by kinds, up to which all sets are tried with each."""


@dataclass(frozen=True, slots=True)
class Pipelines:
    """Pipelines of some stages by the pool of each stage: the kinds that a grid may have."""

    pools: tuple[tuple[int, ...], ...]
    """The pool of each stage."""
    classes: NDArray[np.int8]
    """The same as its place among the pools, the fastest first, `(n_pipelines, pp)`."""
    used: Ints
    """Stages by pool, `(n_pipelines, n_pools)`."""
    neighbours: NDArray[np.bool_]
    """Whether a stage on a pool is followed by one on another, `(n_pipelines, pools, pools)`."""

    def within(self, members: Ints, n_classes: int) -> Ints:
        """Return the stages that sets have on the fastest 1, 2, ... pools alone."""
        slowest = self.classes[members[:, 0]]
        for j in range(1, members.shape[1]):
            has = members[:, j] >= 0
            slowest[has] = np.maximum(slowest[has], self.classes[members[has, j]])
        return np.stack([(slowest <= i).sum(axis=1) for i in range(n_classes)], axis=1)


def _placings(order: tuple[int, ...], pp: int, most_spanned: int) -> list[tuple[int, ...]]:
    """Return the pools of the stages of every pipeline: each pool's stages together."""
    results = []
    for n in range(1, min(most_spanned, len(order), pp) + 1):
        for pools in permutations(order, n):
            for cuts in combinations(range(1, pp), n - 1):
                lengths = np.diff((0, *cuts, pp)).tolist()
                results.append(
                    tuple(p for p, k in zip(pools, lengths, strict=True) for _ in range(k))
                )
    return results


@lru_cache(maxsize=512)
def pipelines_of(order: tuple[int, ...], n_pools: int, pp: int, most_spanned: int) -> Pipelines:
    """Return the pipelines of `pp` stages over the pools of an order, the fastest first."""
    pools = _placings(order, pp, most_spanned)
    place = {pool: i for i, pool in enumerate(order)}
    classes = np.array([[place[p] for p in one] for one in pools], dtype=np.int8)
    used = np.zeros((len(pools), n_pools), dtype=np.int64)
    for pool in order:
        used[:, pool] = (classes == place[pool]).sum(axis=1)
    neighbours = np.zeros((len(pools), n_pools, n_pools), dtype=bool)
    for i, one in enumerate(pools):
        for a, b in set(pairwise(one)):
            neighbours[i, a, b] = True
    return Pipelines(tuple(pools), classes, used, neighbours)


def pairs_of(some: Ints) -> tuple[Ints, bool]:
    """Return sets of two pipelines, `(n_sets, MOST_KINDS)`, and whether these are all.

    Of too many pipelines a part is taken.
    """
    n = len(some)
    while n * (n - 1) // 2 > MOST_SETS:
        n -= 1 + n // 50
    places = np.unique(np.linspace(0, max(0, len(some) - 1), n).round().astype(np.int64))
    first, second = np.triu_indices(len(places), 1)
    pairs = np.stack([some[places[first]], some[places[second]]], axis=1)
    return _padded(pairs), n == len(some)


def _padded(members: Ints) -> Ints:
    more = MOST_KINDS - members.shape[1]
    return np.pad(members.astype(np.int64), ((0, 0), (0, more)), constant_values=-1)


def singles_of(some: Ints) -> Ints:
    """Return sets of one pipeline each, `(n_sets, MOST_KINDS)`."""
    return _padded(some[:, None])


def thirds_of(pairs: Ints, used: Ints, stages: Ints, steps: int, multiple: int) -> Ints:
    """Return sets of three kinds of which every two are among some pairs, `(n_sets, MOST_KINDS)`.

    `used` are the stages of each pipeline by pool, `stages` those that each pool holds, `steps`
    the pipelines over their multiple. Of few all ways to share them are looked at: sets that do
    not fit are left out.
    """
    first, second = pairs[:, 0], pairs[:, 1]
    goes_with = np.zeros((len(used), len(used)), dtype=bool)
    goes_with[first, second] = True
    result = goes_with[first] & goes_with[second]
    counts = multiple * _shares(steps, MOST_KINDS)
    if len(counts) <= FEW:
        fits = np.zeros_like(result)
        for a, b, c in counts.tolist():
            left = stages - a * used[first] - b * used[second]
            own = np.ones_like(result)
            for pool in np.flatnonzero(used.any(axis=0)).tolist():
                own &= c * used[:, pool] <= left[:, pool, None]
            fits |= own
        result &= fits
    places, third = np.nonzero(result)
    return np.stack([first[places], second[places], third], axis=1)


def may_fit(
    members: Ints, used: Ints, stages: Ints, n_pipelines: int, multiple: int
) -> NDArray[np.bool_]:
    """Tell of each set whether pipelines may lie within the stages that each pool holds.

    By weights y of the pools: all pipelines need at least min over kinds (used y) times as much as
    the pools hold, stages y. Of few pipelines all ways to share them are looked at.
    """
    kinds = np.where(members >= 0, members, members[:, :1])
    left = np.arange(len(members))
    for y in _weights(used.shape[1]):
        needed = (used @ y)[kinds[left]].min(axis=1) * n_pipelines
        left = left[needed <= float(stages @ y)]
    result = np.zeros(len(members), dtype=bool)
    result[left] = True
    for n_kinds in range(2, MOST_KINDS + 1):
        rows = np.flatnonzero(result & ((members >= 0).sum(axis=1) == n_kinds))
        counts = multiple * _shares(n_pipelines // multiple, n_kinds)
        if not len(rows) or len(counts) > FEW:
            result[rows] &= len(counts) > 0
            continue
        own = used[members[rows, :n_kinds]]
        fits = np.zeros(len(rows), dtype=bool)
        for row in counts:
            fits |= (np.tensordot(own, row, axes=(1, 0)) <= stages).all(axis=1)
        result[rows] = fits
    return result


@lru_cache(maxsize=16)
def _weights(n_pools: int) -> Ints:
    """Return weights of pools that tell what does not fit: 0, 1, 2 or 3 each, of few pools."""
    most = 3 if n_pools <= 3 else 1
    grid = np.array(list(product(range(most + 1), repeat=n_pools)), dtype=np.int64)
    return grid[np.argsort(grid.sum(axis=1), kind="stable")][1:]


@lru_cache(maxsize=1024)
def _shares(n: int, n_kinds: int) -> Ints:
    """Return ways to share n pipelines by some kinds, `(n_ways, n_kinds)`: of three kinds some."""
    if n_kinds == 1:
        return np.array([[n]])
    if n_kinds == 2:
        first = np.arange(1, n)
        return np.stack([first, n - first], axis=1)
    some = np.unique(np.linspace(1, max(1, n - 2), 64).astype(np.int64))
    grid = np.stack([x.ravel() for x in np.meshgrid(some, some, indexing="ij")], axis=1)
    rows = np.concatenate([grid, n - grid.sum(axis=1, keepdims=True)], axis=1)
    return np.asarray(rows[rows[:, 2] >= 1])


def counts_of(used: Ints, stages: Ints, n_pipelines: int, multiple: int) -> Ints:
    """Return the numbers of pipelines of each kind that the pools hold, `(n, n_kinds)`.

    All of one and two kinds; of three some where there are very many. `used` are the stages of
    each kind by pool, `stages` those that each pool holds.
    """
    rows = multiple * _shares(n_pipelines // multiple, len(used))
    return np.asarray(rows[(rows @ used <= stages).all(axis=1)])
