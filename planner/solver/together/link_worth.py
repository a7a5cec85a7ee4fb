"""From which bandwidth on a link between two pools pays."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from costmodels.mixed.plans import MixedPlan
from costmodels.mixed.prices import price
from costmodels.mixed.tables import MixedProblem
from planner.solver.together.records import NARROWEST

WIDEST = 1e15
"""Bandwidth of a link that nothing waits for, bytes/s."""
ROUNDS = 3
"""Searches at the bandwidth found so far, for plans that need less."""
HALVINGS = 40
NARROWER = 0.8
"""Bandwidth of the next search over the one found so far."""

Edge = tuple[int, int]
"""Places of two pools, the smaller first."""
Search = Callable[[MixedProblem], Sequence[MixedPlan]]
"""The best plans of a problem."""


def with_bandwidth(problem: MixedProblem, edge: Edge, bytes_per_s: float) -> MixedProblem:
    """Return a problem with another bandwidth of one link."""
    link = replace(problem.links[edge], bytes_per_s=bytes_per_s)
    return replace(problem, links={**problem.links, edge: link})


def pays_from_bytes_per_s(
    problem: MixedProblem,
    edge: Edge,
    known: Sequence[MixedPlan],
    apart_s: float,
    search: Search,
) -> float | None:
    """Return the bandwidth from which on a plan over a link beats all plans that do not use it.

    More bandwidth makes no plan slower, so there is one such bandwidth: it is halved down to over
    the plans that are known, and searched below for plans that need less. `known` may hold any
    plans; `apart_s` is the step of the best plan on one pool. None where no bandwidth is enough.
    """
    plans = [*known, *search(with_bandwidth(problem, edge, WIDEST))]
    if len(problem.pools) > 2:  # else all plans over several pools use the link
        plans += search(with_bandwidth(problem, edge, NARROWEST))
    priced = [(plan, price(plan, problem)) for plan in plans]
    apart_s = min([apart_s, *(x.step_s for _, x in priced if edge not in x.crossing_bytes)])
    over = [plan for plan, x in priced if edge in x.crossing_bytes]
    if _best_s(over, problem, edge, WIDEST) >= apart_s:
        return None
    least = _least_bytes_per_s(over, problem, edge, apart_s)
    for _ in range(ROUNDS):
        below = NARROWER * least
        changed = with_bandwidth(problem, edge, below)
        more = [x for x in search(changed) if edge in price(x, problem).crossing_bytes]
        if _best_s(more, problem, edge, below) >= apart_s:
            break
        over += more
        least = _least_bytes_per_s(over, problem, edge, apart_s)
    return least


def _best_s(
    plans: Sequence[MixedPlan], problem: MixedProblem, edge: Edge, bytes_per_s: float
) -> float:
    """Return the least step of some plans at a bandwidth of a link; infinite without plans."""
    changed = with_bandwidth(problem, edge, bytes_per_s)
    return min((price(plan, changed).step_s for plan in plans), default=math.inf)


def _least_bytes_per_s(
    plans: Sequence[MixedPlan], problem: MixedProblem, edge: Edge, apart_s: float
) -> float:
    """Return the least bandwidth at which one of some plans is faster than `apart_s`."""
    low, high = math.log(NARROWEST), math.log(WIDEST)
    if _best_s(plans, problem, edge, NARROWEST) < apart_s:
        return NARROWEST
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        is_enough = _best_s(plans, problem, edge, math.exp(middle)) < apart_s
        low, high = (low, middle) if is_enough else (middle, high)
    return math.exp(high)
