"""Which zones the replicas of each stage lie in."""

from collections.abc import Iterator
from itertools import islice, permutations, product

from tools.sailor.problem import Problem
from tools.sailor.step import Plan, Replica, Stage

Chain = tuple[tuple[int, int], ...]
"""Kind and first layer of each stage, in model order."""


def placed(problem: Problem, n_replicas: int, chain: Chain, most_orders: int) -> Iterator[Plan]:
    """Yield the plan with its stages in zones, in several orders.

    Zones are filled one after another. Wide stages go first, so that no zone keeps devices that
    are too few for a replica; or stages in model order, so that neighbours lie together.
    """
    indices = range(len(chain))
    widths = [max(tp for _, tp in problem.kinds[kind].ends) for kind, _ in chain]
    mixed_last = [problem.kinds[kind].is_mixed for kind, _ in chain]
    orders = (
        sorted(indices, key=lambda i: (mixed_last[i], i)),
        sorted(indices, key=lambda i: (mixed_last[i], -widths[i], i)),
    )
    zones = sorted({x for pool in problem.pools for x, _ in pool.zones})
    ranks = islice(permutations(zones), most_orders)
    known = set()
    for rank, order, flipped in product(ranks, orders, (False, True)):
        plan = _filled(problem, n_replicas, chain, order, (flipped, rank))
        if plan is not None and plan not in known:
            known.add(plan)
            yield plan


def _filled(
    problem: Problem,
    n_replicas: int,
    chain: Chain,
    order: list[int],
    along: tuple[bool, tuple[str, ...]],
) -> Plan | None:
    flipped, rank = along
    left = [dict(sorted(x.zones, key=lambda one: rank.index(one[0]))) for x in problem.pools]
    stages: dict[int, tuple[Replica, ...]] = {}

    def take(pool: int, tp: int, n: int) -> list[Replica]:
        part, found = problem.pools[pool].part, []
        zones = list(left[pool].items())
        # A zone that holds them all is best: no ring leaves it.
        whole = [x for x in zones if x[1] // tp >= n]
        for zone, free in whole[:1] or zones:
            count = min(n - len(found), free // tp)
            found += [Replica(part, zone, tp)] * count
            left[pool][zone] -= count * tp
        return found

    for i in order:
        kind = problem.kinds[chain[i][0]]
        if not kind.is_mixed:
            ((pool, tp),) = kind.ends
            replicas = take(pool, tp, n_replicas)
        else:
            (a, s), (b, r) = kind.ends
            most = min(n_replicas - 1, sum(x // s for x in left[a].values()))
            others = min(n_replicas - 1, sum(x // r for x in left[b].values()))
            prices = problem.data.parts.price_per_s
            cheap = prices[problem.pools[a].part] * s <= prices[problem.pools[b].part] * r
            n = most if cheap else n_replicas - others
            if n < 1 or n_replicas - n > others:
                return None
            one, other = take(a, s, n), take(b, r, n_replicas - n)
            replicas = [*other, *one] if flipped else [*one, *other]
        if len(replicas) < n_replicas:
            return None
        stages[i] = tuple(replicas)
    starts = [start for _, start in chain]
    ends = [*starts[1:], problem.profile.n_layers]
    return Plan(
        problem.mbs,
        tuple(Stage(starts[i], ends[i], stages[i]) for i in range(len(chain))),
    )
