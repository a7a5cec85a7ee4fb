"""Which pools the stages of a pipeline lie on, and which such pipelines share one grid."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations, product

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MOST_KINDS = 3
"""Of one grid."""
MOST_SETS = 20_000
"""Sets of two and of three kinds that are looked at."""
FEW = 40
"""Ways to share the pipelines of a row by kinds, up to which all sets are tried with each."""


@dataclass(frozen=True, slots=True)
class KindSets:
    """Pipelines of some stages by the pool of each, and sets of them."""

    pools: tuple[tuple[int, ...], ...]
    """Of each pipeline, the pool of each stage."""
    used: Ints
    """Stages by pool, `(n_pipelines, n_pools)`."""
    members: Ints
    """Pipelines of each set, `(n_sets, MOST_KINDS)`; -1 where it has fewer."""
    within: Ints
    """Stages that none of a set has on a pool slower than the fastest 1, 2, ...;
    `(n_sets, n_pools of the order)`."""
    is_whole: bool
    """Whether every set is among them."""


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
def kind_sets(
    order: tuple[int, ...], n_pools: int, pp: int, most_spanned: int, most_kinds: int
) -> KindSets:
    """Return the pipelines of `pp` stages over the pools of an order, fastest first, and sets."""
    pools = _placings(order, pp, most_spanned)
    place = {pool: i for i, pool in enumerate(order)}
    classes = np.array([[place[p] for p in one] for one in pools], dtype=np.int8)
    used = np.zeros((len(pools), n_pools), dtype=np.int64)
    for pool in order:
        used[:, pool] = (classes == place[pool]).sum(axis=1)
    groups, is_whole = [np.arange(len(pools))[:, None]], True
    for n in range(2, min(most_kinds, MOST_KINDS) + 1):
        some = np.arange(len(pools))
        while len(some) > n and _n_sets(len(some), n) > MOST_SETS:
            some, is_whole = some[:: 2 if len(some) > 2 * n else 1][: len(some) - 1], False
        if len(some) >= n:
            groups.append(np.array(list(combinations(some.tolist(), n)), dtype=np.int64))
    members = np.concatenate(
        [np.pad(x, ((0, 0), (0, MOST_KINDS - x.shape[1])), constant_values=-1) for x in groups]
    )
    slowest = classes[members[:, 0]]
    for j in range(1, MOST_KINDS):
        has = members[:, j] >= 0
        slowest[has] = np.maximum(slowest[has], classes[members[has, j]])
    within = np.stack([(slowest <= i).sum(axis=1) for i in range(len(order))], axis=1)
    return KindSets(tuple(pools), used, members, within, is_whole)


def _n_sets(n: int, size: int) -> int:
    return n * (n - 1) // 2 if size == 2 else n * (n - 1) * (n - 2) // 6


def may_fit(sets: KindSets, stages: Ints, n_pipelines: int, multiple: int) -> NDArray[np.bool_]:
    """Tell of each set whether pipelines may lie within the stages that each pool holds.

    By weights y of the pools: all pipelines need at least min over kinds (used y) times as much as
    the pools hold, stages y. Of few pipelines all ways to share them are looked at.
    """
    members, used = sets.members, sets.used
    kinds = np.where(members >= 0, members, members[:, :1])
    result = np.ones(len(members), dtype=bool)
    for y in _weights(used.shape[1]):
        result &= (used @ y)[kinds].min(axis=1) * n_pipelines <= float(stages @ y)
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
    return grid[1:]


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
