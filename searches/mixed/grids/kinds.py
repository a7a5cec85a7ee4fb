"""Which pools the stages of a pipeline lie on, and which such pipelines share one grid."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MOST_KINDS = 3
"""Of one grid."""
MOST_SETS = 20_000
"""Sets of two and of three kinds that are looked at."""


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


def may_fit(sets: KindSets, stages: Ints, n_pipelines: int) -> NDArray[np.bool_]:
    """Tell of each set whether pipelines may lie within the stages that each pool holds.

    Exact for one and two kinds but for multiples; for three a necessary condition.
    """
    members, used = sets.members, sets.used
    result = np.ones(len(members), dtype=bool)
    for p in range(used.shape[1]):
        own = np.where(members >= 0, used[members, p], np.iinfo(np.int64).max)
        result &= own.min(axis=1) * n_pipelines <= stages[p]
    pairs = np.flatnonzero(result & (members[:, 1] >= 0) & (members[:, 2] < 0))
    low, high = np.ones(len(pairs)), np.full(len(pairs), n_pipelines - 1.0)
    for p in range(used.shape[1]):
        a, b = used[members[pairs, 0], p], used[members[pairs, 1], p]
        left = stages[p] - n_pipelines * b  # (a - b) n <= left
        more, less = a > b, a < b
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = left / (a - b)
        high = np.where(more, np.minimum(high, np.floor(ratio)), high)
        low = np.where(less, np.maximum(low, np.ceil(ratio)), low)
        high = np.where((a == b) & (left < 0), 0.0, high)
    result[pairs[low > high]] = False
    return result


def counts_of(used: Ints, stages: Ints, n_pipelines: int, multiple: int) -> Ints:
    """Return the numbers of pipelines of each kind that the pools hold, `(n, n_kinds)`.

    All of one and two kinds; of three some where there are very many. `used` are the stages of
    each kind by pool, `stages` those that each pool holds.
    """
    steps = n_pipelines // multiple
    n_kinds = len(used)
    if n_kinds == 1:
        rows = np.array([[steps]])
    elif n_kinds == 2:
        first = np.arange(1, steps)
        rows = np.stack([first, steps - first], axis=1)
    else:
        some = np.unique(np.linspace(1, max(1, steps - 2), 64).astype(np.int64))
        grid = np.stack([x.ravel() for x in np.meshgrid(some, some, indexing="ij")], axis=1)
        rows = np.concatenate([grid, steps - grid.sum(axis=1, keepdims=True)], axis=1)
        rows = rows[rows[:, 2] >= 1]
    rows = rows * multiple
    return np.asarray(rows[(rows @ used <= stages).all(axis=1)])
