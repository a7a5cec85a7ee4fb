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
from itertools import count, product

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedProblem
from searches.mixed.answer import BestPlans, Halt, MixedOptions
from searches.mixed.fills import least_filled_s
from searches.mixed.grids.kinds import (
    MOST_KINDS,
    Ints,
    Pipelines,
    counts_of,
    may_fit,
    pairs_of,
    pipelines_of,
    singles_of,
    thirds_of,
)
from searches.mixed.grids.nodes import on_whole_nodes
from searches.mixed.grids.rows import Row, grid_ways, rows_of
from searches.mixed.grids.splits import grid_of, is_small, shared_stages, splits_of

Floats = NDArray[np.float64]

TRIED = 400
"""Sets of kinds that are split at most, once a plan is known."""
FARTHEST = 1.5
"""Of the best step, up to which plans are listed."""
MOST_SETS_OF_ALL = 1_000_000
"""Sets of kinds that are made at most, of one size."""
FURTHER = 40
"""Rows that are opened for more plans to list at most, once the best is known."""
LISTED = 50
"""Plans among which those are counted."""
MOST_THIRDS = 100_000
"""Sets of three kinds that are looked at in one row."""
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

    def __init__(self, row: Row, kinds: Pipelines, members: Ints) -> None:
        way = row.way
        own = (members, kinds.used, way.stages, row.n_pipelines, way.multiple)
        members = members[may_fit(*own)]
        self.row, self.kinds, self.at = row, kinds, 0
        self.moved = kinds.used @ way.moved
        hops_s = np.where(kinds.neighbours, way.hops_s, 0.0)
        self.hops_s = hops_s.max(axis=(1, 2), initial=0.0)
        slowest_s = row.slowest_s(kinds.within(members, len(way.order)))
        is_alone = members[:, 1] < 0
        bounds = np.full(len(members), np.inf)
        for j, alone in product(range(members.shape[1]), (True, False)):
            rows = np.flatnonzero((members[:, j] >= 0) & (is_alone == alone))
            each = members[rows, j]
            step_s = row.step_s(slowest_s[rows], self.moved[each], self.hops_s[each], alone)
            bounds[rows] = np.minimum(bounds[rows], step_s)
        first = np.argsort(bounds, kind="stable")
        first = first[np.isfinite(bounds[first])]
        self.members, self.bounds, self.slowest_s = members[first], bounds[first], slowest_s[first]

    @property
    def least_s(self) -> float:
        """The step of the sets that are left, at least."""
        return float(self.bounds[self.at]) if self.at < len(self.bounds) else math.inf

    def first(self) -> tuple[float, _Set] | None:
        """Take the first set; return its step at least and it, None where nothing fits."""
        row, way, at = self.row, self.row.way, self.at
        self.at += 1
        members = self.members[at]
        members = members[members >= 0]
        pools = tuple(self.kinds.pools[i] for i in members.tolist())
        counts = counts_of(self.kinds.used[members], way.stages, row.n_pipelines, way.multiple)
        counts = on_whole_nodes(way, pools, counts)
        if not len(counts):
            return None
        most = counts.max(axis=0)
        if len(members) == MOST_KINDS:  # not all numbers are among them
            most = np.full(MOST_KINDS, row.n_pipelines - 2 * way.multiple)
        stages = shared_stages(row, pools, most.tolist())
        n_layers, low_s = way.problem.n_layers, float(self.slowest_s[at])
        slowest_s = least_filled_s(stages, 0, n_layers, low_s)
        steps = row.step_s(
            np.full(len(members), slowest_s),
            self.moved[members],
            self.hops_s[members],
            len(members) == 1,
        )
        return float(steps.min()), _Set(row, pools, counts, slowest_s)


class _Search:
    """What is tried in the order of its bound: rows, sets of kinds, and splits of those."""

    def __init__(self, most_spanned: int, best: BestPlans, halt: Halt) -> None:
        self.most_spanned, self.best, self.halt = most_spanned, best, halt
        self.bound_s = math.inf
        """No grid of those that are done with has a shorter step."""
        self.n_tried = self.n_sets = self.n_further = 0

    def run(self, rows: Sequence[tuple[float, Row]], size: int) -> None:
        """Look at sets of some size, of rows whose bounds may be rough."""
        order, best = count(), self.best
        queue: list[tuple[float, int, Row | _Sets | _Set]] = [(s, next(order), x) for s, x in rows]
        heapify(queue)
        exact: set[Row] = set()
        self.n_tried = self.n_sets = self.n_further = 0
        while queue:
            low_s, _, what = heappop(queue)
            if self._is_done(low_s, size):
                self.bound_s = min(self.bound_s, low_s)
                return
            found: list[tuple[float, Row | _Sets | _Set]] = []
            if isinstance(what, Row) and what not in exact:
                exact.add(what)
                found = [(what.least_s(size * self.most_spanned), what)]
            elif isinstance(what, Row):
                sets = self._sets(low_s, what, size)
                found = [(sets.least_s, sets)]
            elif isinstance(what, _Sets):
                first = what.first()
                found = [(what.least_s, what), *([first] if first else [])]
            else:
                self.n_tried += 1
                if not what.offer(best):
                    self.bound_s = min(self.bound_s, low_s)
            for least_s, other in found:
                if least_s < math.inf:
                    heappush(queue, (max(low_s, least_s), next(order), other))

    def _is_done(self, low_s: float, size: int) -> bool:
        """Tell whether nothing of what is left is of interest, or it is too much."""
        best = self.best
        is_tried = self.n_tried >= TRIED and best.step_s < math.inf
        is_listed = self.n_further >= FURTHER or low_s >= _limit_s(best, size)
        is_last = low_s >= best.step_s and is_listed
        return is_last or is_tried or self.n_sets >= MOST_SETS_OF_ALL or self.halt()

    def _sets(self, low_s: float, row: Row, size: int) -> _Sets:
        """Return the sets of a row; of several kinds those that may be listed."""
        way, limit_s = row.way, _limit_s(self.best, size)
        kinds = pipelines_of(way.order, len(way.problem.pools), row.pp, self.most_spanned)
        steps, is_whole = row.n_pipelines // way.multiple, True
        members = singles_of(np.arange(len(kinds.pools)))
        self.n_further += low_s >= self.best.step_s

        def fast(members: Ints) -> Ints:
            """Return the sets that are fast enough; one is no faster than a part of it."""
            slowest_s = row.slowest_s(kinds.within(members, len(way.order)))
            return np.asarray(members[row.any_step_s(slowest_s) < limit_s])

        if size > steps:
            members = members[:0]
        elif size > 1:
            members, is_whole = pairs_of(fast(members)[:, 0])
            self.n_sets += len(members)
            if size > 2:
                members = fast(members)
                members = thirds_of(members, kinds.used, way.stages, steps, way.multiple)
                is_whole &= len(members) <= MOST_THIRDS
                members = members[:MOST_THIRDS]
        self.n_sets += len(members)
        if not is_whole:
            self.bound_s = min(self.bound_s, low_s)
        return _Sets(row, kinds, members)


def _limit_s(best: BestPlans, size: int) -> float:
    """Return the step from which on no other plan is of interest: that of the last one to list.

    Of three kinds the best alone is.
    """
    if size > 2:
        return best.step_s
    steps = [s for s, plan, _ in best.first(LISTED) if len(plan.pools) > 1]
    n = best.options.n_best
    last_s = steps[n - 1] if len(steps) >= n else math.inf
    return max(best.step_s, min(last_s, FARTHEST * best.step_s))


def search_grids(
    problem: MixedProblem, most_spanned: int, options: MixedOptions, best: BestPlans, halt: Halt
) -> float:
    """Try plans that are one grid; return a step that none of them is shorter than.

    Sets of one kind first, then of two and of three: what is known leaves few that may be faster.
    """
    search = _Search(most_spanned, best, halt)
    ways = grid_ways(problem)
    for size in range(1, min(options.most_kinds, MOST_KINDS) + 1):
        rows = [row for way in ways for row in rows_of(way, size * most_spanned)]
        search.run(rows, size)
    return min(search.bound_s, best.step_s)
