"""The best plan that is one grid of ranks, and a bound that no other is faster than.

Such a plan has one tp, cp, ep, micro-batch, recomputation and split, and pipelines with one share
of the batch; pipelines of several kinds may lie on other pools stage by stage. Three bounds, each
when it decides: of rows by rates, then by whole layers and memory (`rows`); of sets of kinds in a
row by their stages on slower pools (`kinds`); of sets whose slowest stage is exact (`splits`).
Whatever has the least bound is looked at next, until that passes the best step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count, pairwise

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedProblem
from searches.mixed.answer import BestPlans, Halt, MixedOptions
from searches.mixed.fills import least_filled_s
from searches.mixed.grids.kinds import Ints, counts_of, kind_sets, may_fit
from searches.mixed.grids.nodes import on_whole_nodes
from searches.mixed.grids.rows import Row, grid_ways, rows_of
from searches.mixed.grids.splits import grid_of, is_small, shared_stages, splits_of

Floats = NDArray[np.float64]

TRIED = 400
"""Sets of kinds that are split at most, once a plan is known."""
FURTHER = 40
"""Rows that are opened for more plans to list at most, once the best is known."""
LISTED = 50
"""Plans among which those are counted."""
PRICED = 12
"""Numbers of pipelines by kind that are priced of a set at most."""


@dataclass(frozen=True, slots=True, eq=False)
class _Set:
    """Kinds of pipelines that share a grid, and the numbers of pipelines that the pools hold."""

    row: Row
    kinds: tuple[tuple[int, ...], ...]
    counts: Ints
    """`(n, n_kinds)`."""
    slowest_s: float

    def offer(self, best: BestPlans) -> bool:
        """Price splits with some of the numbers of pipelines; tell whether these are all."""
        row, n = self.row, len(self.counts)
        some = np.unique(np.linspace(0, n - 1, min(n, PRICED)).astype(np.int64))
        for counts in self.counts[some].tolist():
            stages = shared_stages(row, self.kinds, counts)
            for layers in splits_of(row, self.kinds, stages, self.slowest_s):
                best.offer(grid_of(row, self.kinds, counts, layers))
        return len(some) == n and len(self.kinds) < 3 and is_small(row)


class _Sets:
    """The sets of kinds of one row, by their bounds."""

    def __init__(self, row: Row, most_spanned: int, most_kinds: int, least_s: float) -> None:
        way, n_pools = row.way, len(row.way.problem.pools)
        self.row, self.at = row, 0
        self.sets = kind_sets(way.order, n_pools, row.pp, most_spanned, most_kinds)
        rows = np.flatnonzero(may_fit(self.sets, way.stages, row.n_pipelines, way.multiple))
        slowest_s = self._slowest_s(self.sets.within[rows], row)
        members = self.sets.members[rows]
        moved = self.sets.used @ way.moved
        hops_s = np.array([_least_hop_s(row, pools) for pools in self.sets.pools])
        is_alone = members[:, 1] < 0
        bounds = np.full(len(rows), np.inf)
        for j in range(members.shape[1]):
            has = members[:, j] >= 0
            own = members[has, j]
            for alone in (True, False):
                those = np.flatnonzero(has)[is_alone[has] == alone]
                own = members[those, j]
                step_s = row.step_s(slowest_s[those], moved[own], hops_s[own], alone)
                bounds[those] = np.minimum(bounds[those], step_s)
        bounds = np.maximum(bounds, least_s)
        by_bound = np.argsort(bounds, kind="stable")
        by_bound = by_bound[np.isfinite(bounds[by_bound])]
        self.rows, self.bounds, self.slowest_s = (
            rows[by_bound],
            bounds[by_bound],
            slowest_s[by_bound],
        )
        self.moved, self.hops_s = moved, hops_s

    @staticmethod
    def _slowest_s(within: Ints, row: Row) -> Floats:
        """Return the slowest stage of sets by how many stages they have on fast pools alone."""
        held = row.held()
        if not len(within):
            return np.zeros(0)
        different, places = np.unique(within, axis=0, return_inverse=True)
        each = np.array([row.slowest_s(x, held) for x in different])
        return np.asarray(each[places.reshape(-1)])

    @property
    def least_s(self) -> float:
        """The step of the sets that are left, at least."""
        return float(self.bounds[self.at]) if self.at < len(self.bounds) else math.inf

    def first(self) -> tuple[float, _Set] | None:
        """Take the first set; return its step at least and it, None where nothing fits."""
        row, way, at = self.row, self.row.way, self.at
        self.at += 1
        members = self.sets.members[self.rows[at]]
        members = members[members >= 0]
        used = self.sets.used[members]
        kinds = tuple(self.sets.pools[i] for i in members.tolist())
        counts = counts_of(used, way.stages, row.n_pipelines, way.multiple)
        counts = on_whole_nodes(way, kinds, counts)
        if not len(counts):
            return None
        most = counts.max(axis=0)
        if len(members) == 3:  # not all numbers are among them
            most = np.full(3, row.n_pipelines - 2 * way.multiple)
        stages = shared_stages(row, kinds, most.tolist())
        n_layers, low_s = way.problem.n_layers, float(self.slowest_s[at])
        slowest_s = least_filled_s(stages, 0, n_layers, low_s)
        steps = row.step_s(
            np.full(len(members), slowest_s),
            self.moved[members],
            self.hops_s[members],
            len(members) == 1,
        )
        return float(steps.min()), _Set(row, kinds, counts, slowest_s)


def _least_hop_s(row: Row, pools: Sequence[int]) -> float:
    """Return the slowest message of pipelines over some pools, at least."""
    pairs, n = set(pairwise(pools)), row.way.multiple
    return max((row.way.hop_s(a, b, n) for a, b in pairs), default=0.0)


def _limit_s(best: BestPlans) -> float:
    """Return the step from which on no other plan is of interest: that of the last one to list."""
    steps = [s for s, plan, _ in best.first(LISTED) if len(plan.pools) > 1]
    n = best.options.n_best
    return max(best.step_s, steps[n - 1]) if len(steps) >= n else math.inf


def search_grids(
    problem: MixedProblem, most_spanned: int, options: MixedOptions, best: BestPlans, halt: Halt
) -> float:
    """Try plans that are one grid; return a step that none of them is shorter than."""
    order = count()
    queue: list[tuple[float, int, Row | _Sets | _Set]] = [
        (s, next(order), row) for way in grid_ways(problem) for s, row in rows_of(way)
    ]
    heapify(queue)
    bound_s, n_tried, n_further = math.inf, 0, 0

    def push(low_s: float, what: Row | _Sets | _Set) -> None:
        if low_s < math.inf:
            heappush(queue, (low_s, next(order), what))

    bounded: set[Row] = set()
    while queue:
        low_s, _, what = heappop(queue)
        is_done = low_s >= best.step_s and (n_further >= FURTHER or low_s >= _limit_s(best))
        if is_done or halt() or (n_tried >= TRIED and best.step_s < math.inf):
            return min(bound_s, low_s, best.step_s)
        if isinstance(what, Row) and what not in bounded:
            bounded.add(what)
            push(max(low_s, what.least_s()), what)
        elif isinstance(what, Row):
            n_further += low_s >= best.step_s
            sets = _Sets(what, most_spanned, options.most_kinds, low_s)
            push(sets.least_s, sets)
        elif isinstance(what, _Sets):
            found = what.first()
            push(what.least_s, what)
            if found is not None:
                push(max(low_s, found[0]), found[1])
        else:
            n_tried += 1
            if not what.offer(best):
                bound_s = min(bound_s, low_s)
    return min(bound_s, best.step_s)
