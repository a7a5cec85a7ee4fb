"""The best plan of Sailor's family under its own formulas, with a proven bound.

The family: D replicas, one micro-batch, contiguous layers to stages in any split, each stage on
one pool with one tensor parallelism or, once in a plan, over two pools. More than one such stage
never helps but for rounding: moving replicas between two of them changes no stage's time, so all
but one can be made whole.

Every number of replicas and micro-batch has its walk (`walk`), in the order of their bounds, until
the bound passes the best plan. Pools are regions: which zones a stage lies in is chosen after
(`place`); the bound takes the fastest link.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from tools.sailor.place import placed
from tools.sailor.problem import Asked, Pool, Problem
from tools.sailor.profiles import Data, Profile
from tools.sailor.step import Plan, Score, micro_batches, score
from tools.sailor.walk import Best, Item, Tables, Walk

BEAM = 48
"""Partial plans a level in the first pass, which finds a plan to prune by."""
FIRST = 12
"""Micro-batches and replica counts in the first pass."""
WIDTH = 400
"""Partial plans a level in the second pass."""
FEW_ORDERS, ORDERS = 4, 120
"""Orders of zones that are tried for every plan, and for the best ones in the end."""
AGAIN = 6
"""Plans that are placed again in the end."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The best plan, and what is proven of it."""

    plan: Plan | None
    score: Score | None
    bound: float
    """No plan of the family has a smaller objective; infinite where none fits."""
    n_partial: int

    def gap_frac(self, objective: str) -> float:
        """Return (best - bound) / best."""
        if self.score is None:
            return 0.0
        best = self.score.step_s if objective == "time" else self.score.cost
        return max(0.0, (best - self.bound) / best)


def _counts(profile: Profile, mbs: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the least replicas for each number of micro-batches, and that number."""
    known = set()
    for d in range(1, most + 1):
        m = micro_batches(profile.global_batch, mbs, d)
        if m not in known:
            known.add(m)
            yield d, m


def search(
    data: Data, profile: Profile, pools: tuple[Pool, ...], asked: Asked, width: int = WIDTH
) -> Answer:
    """Return the best plan for a model on some devices.

    `width` partial plans a level are kept; the bound counts those that are dropped.
    """
    best = Best(asked, partial(_realized, data, profile, asked))
    if len(pools) > 1:
        # One pool is soon searched, and its plan cuts off much of the rest.
        for pool in pools:
            for least, _, walk in _walks(data, profile, (pool,), best):
                if least < best.value:
                    walk.run(width)
    walks = _walks(data, profile, pools, best)
    for least, _, walk in walks[:FIRST]:
        if least < best.value:
            walk.run(BEAM)
    n_partial, dropped = 0, math.inf
    for least, _, walk in walks:
        if least >= best.value:
            break
        walk.dropped = math.inf
        walk.run(width)
        n_partial, dropped = n_partial + walk.n_partial, min(dropped, walk.dropped)
    for item in [x for _, x in sorted(best.placed, key=lambda x: x[0])][:AGAIN]:
        best.keep(*_realized(data, profile, asked, item, ORDERS))
    bound = min(best.value, best.least, dropped)
    return Answer(best.plan, best.score, bound, n_partial)


def _walks(
    data: Data, profile: Profile, pools: tuple[Pool, ...], best: Best
) -> list[tuple[float, int, Walk]]:
    """Return the walks of a search, the most promising first, each with its bound."""
    walks = []
    for mbs in sorted({b for x in pools for b in profile.micro_batches(x.part)}):
        problem = Problem(data, profile, pools, mbs)
        if not problem.kinds:
            continue
        tables = Tables(problem)
        for d, m in _counts(profile, mbs, sum(x.n_devices for x in pools)):
            walk = Walk(tables, d, m, best)
            walks.append((walk.least(), len(walks), walk))
    return sorted(walks, key=lambda x: x[:2])


def _realized(
    data: Data, profile: Profile, asked: Asked, item: Item, most_orders: int = FEW_ORDERS
) -> tuple[float, Plan | None, Score | None]:
    """Return the objective of a plan whose stages lie in zones, the best of some orders."""
    least: tuple[float, Plan | None, Score | None] = math.inf, None, None
    for plan in placed(*item, most_orders):
        found = score(plan, profile, data)
        if not found.fits or found.step_s > asked.most_s or found.cost > asked.most_cost:
            continue
        own = found.step_s if asked.objective == "time" else found.cost
        if own < least[0]:
            least = own, plan, found
    return least
