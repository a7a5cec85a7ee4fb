"""Whole matrices over ranks, the costliest first."""

from functools import lru_cache
from heapq import heapify, heappop, heappush

Holding = tuple[int, ...]
"""How many of each item a rank has."""
Ranks = dict[tuple[float, Holding], int]
"""How many ranks have one load and holding."""


@lru_cache(maxsize=65536)
def packed(costs: tuple[float, ...], counts: tuple[int, ...], n_ranks: int) -> tuple[Holding, ...]:
    """Return the different holdings of ranks when an item goes to the one with the least so far.

    Costliest items first (LPT); `counts[i]` items cost `costs[i]` each. Ranks with equal loads are
    counted together, so that the time does not grow with items or ranks.
    Source: Megatron-LM core/optimizer/layer_wise_optimizer.py (_emit_bucket). Left out: buckets,
    each of which is packed apart with loads carried on, and their cap on elements.

    >>> packed((3.0, 2.0), (3, 2), 2)  # 3 + 3 against 3 + 2 + 2
    ((1, 2), (2, 0))
    """
    ranks: Ranks = {(0.0, (0,) * len(costs)): n_ranks}
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        if counts[i]:
            ranks = _handed_out(ranks, i, costs[i], counts[i])
    return tuple(sorted({holding for _, holding in ranks}))


def _handed_out(ranks: Ranks, item: int, cost: float, count: int) -> Ranks:
    """Return the ranks with `count` items more, one at a time to the least loaded."""
    heap = [(load, holding, n) for (load, holding), n in ranks.items()]
    heapify(heap)
    n_ranks, left = sum(ranks.values()), count
    while left:
        if max(heap)[0] - heap[0][0] <= cost and left >= n_ranks:
            rounds, left = divmod(left, n_ranks)
            heap = [(a + rounds * cost, _more(b, item, rounds), n) for a, b, n in heap]
            heapify(heap)
            continue
        load, holding, n = heappop(heap)
        taken = min(n, left)
        left -= taken
        if taken < n:
            heappush(heap, (load, holding, n - taken))
        heappush(heap, (load + cost, _more(holding, item, 1), taken))
    result: Ranks = {}
    for load, holding, n in heap:
        result[load, holding] = result.get((load, holding), 0) + n
    return result


def _more(holding: Holding, item: int, count: int) -> Holding:
    return (*holding[:item], holding[item] + count, *holding[item + 1 :])
