"""Sizes of grids, each with a bound from below: degrees, stages and pipelines.

All pipelines of a grid have one split of the layers. A stage that some pipeline has on a pool
takes at least what its layers take there. Of D pipelines of n devices a stage, pools 1 to c, the
fastest, hold whole at most f_c = floor( sum N / (D n) ) stages; so with k_c(B) the most layers
that end within B on pool c, or on slower ones,

    sum over c of (f_c - f_c-1) k_c(B) >= layers
    sum over stages of min( k_1(B), held ) >= layers

bound the slowest stage B, `held` being what fits the memory of any pool. The step is at least

    fixed + tail + S [ (m - 1) B + W + crossings hop ]
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from math import comb

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.prices import hop_s
from costmodels.mixed.tables import MixedProblem, StageTable
from costmodels.schedule.zero_bubble import alternating_crossings
from searches.mixed.bounds.tails import least_tail_s
from searches.mixed.fills import Way, layer_sum_s, layer_times_s
from searches.mixed.structures import MOST_STAGES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDING = 1e-9
"""Share by which bounds may be missed by rounding."""


def _least(values: Floats) -> Floats:
    """Return the least sum of 0, 1, ... of some values."""
    return np.concatenate([[0.0], np.cumsum(np.sort(values))])


class GridWay:
    """One tp, cp, ep, micro-batch and recomputation on the pools that have a table of it."""

    def __init__(self, problem: MixedProblem, tables: tuple[StageTable, ...]) -> None:
        self.problem = problem
        self.tables = {x.pool: x for x in sorted(tables, key=lambda x: (layer_sum_s(x), x.pool))}
        self.order = tuple(self.tables)
        """Pools, the fastest first."""
        self.ways = {pool: Way((x,)) for pool, x in self.tables.items()}
        first = tables[0]
        self.mbs, self.n_devices = first.mbs, first.n_devices
        self.degrees = first.tp, first.cp, first.ep
        self.multiple = max(x.pipelines_multiple for x in tables)
        self.stages = np.zeros(len(problem.pools), dtype=np.int64)
        for pool in self.order:
            self.stages[pool] = problem.pools[pool].n_devices // self.n_devices
        each = np.array([layer_times_s(self.tables[p]) for p in self.order])
        self.sums_s = each.sum(axis=1)
        """Forward and backward of all layers, by the order of pools."""
        slower = np.minimum.accumulate(each[::-1], axis=0)[::-1]
        self.least_s = np.array([_least(x) for x in slower])
        """The least time of 0, 1, ... layers on a pool or on a slower one."""
        ends = [
            sum(getattr(x, end) for x in (t.forward_s, t.backward_s))
            for t in self.tables.values()
            for end in ("embedding", "head")
        ]
        self.ends_s = min(ends[::2]) + min(ends[1::2])
        self.total_s = float(each.min(axis=0).sum()) + self.ends_s
        """Of a micro-batch in all stages, at least."""
        self.slow_total_s = float(each[-1].sum()) + self.ends_s
        """The same with all layers on the slowest pool."""
        ratios = np.max(each[-1] / np.maximum(each, 1e-30), axis=1)
        self.moved = np.zeros(len(problem.pools))
        """What a second of a stage takes from that sum at most, seconds, by pool."""
        self.moved[list(self.order)] = np.maximum(0.0, ratios - 1.0)
        self.means = 1.0 / self.sums_s
        self.work = float((each * self.means[:, None]).min(axis=0).sum())
        """Least of all layers, each on a pool, in units of the whole model there."""

    @property
    def n_pipelines(self) -> list[int]:
        """Numbers of pipelines that share the batch evenly, and fit with one stage."""
        batches, most = self.problem.global_batch // self.mbs, int(self.stages.sum())
        if self.problem.global_batch % self.mbs:
            return []
        return [
            n
            for n in range(self.multiple, min(batches, most) + 1, self.multiple)
            if batches % n == 0
        ]

    @cached_property
    def hops_s(self) -> Floats:
        """The time of a message from a stage on one pool to one on another, at least."""
        n_pools = len(self.problem.pools)
        result = np.full((n_pools, n_pools), np.inf)
        for (a, sender), (b, receiver) in product(self.tables.items(), repeat=2):
            size = max(x.message_bytes * x.n_devices for x in (sender, receiver))
            result[a, b] = hop_s(self.problem, sender, receiver, self.multiple * size)
        return result

    def held(self, most_pools: int) -> Ints:
        """Return the stages that the fastest 1, 2, ... of some pools hold, `(n_choices, n)`.

        By every choice of so many pools.
        """
        stages = self.stages[list(self.order)]
        n = min(most_pools, len(stages))
        choices = np.zeros((comb(len(stages), n), len(stages)), dtype=np.int64)
        for i, chosen in enumerate(combinations(range(len(stages)), n)):
            choices[i, list(chosen)] = stages[list(chosen)]
        return np.cumsum(choices, axis=1)

    @cached_property
    def limits(self) -> tuple[Floats, Ints]:
        """Times of whole layers, and the most layers within each by the order of pools."""
        times = np.unique(self.least_s[:, 1:])
        near = times * (1.0 + ROUNDING)
        return times, np.array([x.searchsorted(near, side="right") - 1 for x in self.least_s])

    @cached_property
    def tails_s(self) -> dict[tuple[int, bool], Floats]:
        """What follows the pipeline at least, by stages: of D pipelines, and whether of one kind.

        Of several kinds it is that of any number of pipelines up to D.
        """
        keys = [(d, alone) for d in self.n_pipelines for alone in (False, True)]
        ranges = [(d if alone else self.multiple, d) for d, alone in keys]
        ways = list(self.ways.values())
        tails = least_tail_s(self.problem, ways, ranges, MOST_STAGES, 1)[0].min(axis=0)
        return {key: tails[:, i] for i, key in enumerate(keys)}


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Pipelines of some stages, all of the same degrees."""

    way: GridWay
    pp: int
    n_pipelines: int

    @property
    def n_micro(self) -> int:
        """Micro-batches of each pipeline."""
        return self.way.problem.global_batch // (self.way.mbs * self.n_pipelines)

    def step_s(self, slowest_s: Floats, moved: Floats, hop_s: Floats, alone: bool) -> Floats:
        """Return the step with a slowest stage of some time at least; see `least_pipeline_s`.

        `moved` is what the sum of the stages falls by for each second in the slowest at most,
        `alone` whether pipelines are of one kind.
        """
        way, m = self.way, self.n_micro
        crossings = float(alternating_crossings(self.pp, m)) if self.pp > 1 else 0.0
        tail_s = float(way.tails_s[self.n_pipelines, alone][self.pp])
        pipeline_s = least_pipeline_s(way, m, slowest_s, moved) + crossings * hop_s
        return way.problem.fixed_s + way.problem.straggler_factor * pipeline_s + tail_s

    def any_step_s(self, slowest_s: Floats) -> Floats:
        """Return the step with a slowest stage of some time at least, of any kinds."""
        moved = np.full(len(slowest_s), self.pp * self.way.moved.max())
        hops_s = np.full(len(slowest_s), self.way.hops_s.min() if self.pp > 1 else 0.0)
        alone = self.step_s(slowest_s, moved, hops_s, alone=True)
        return np.minimum(alone, self.step_s(slowest_s, moved, hops_s, alone=False))

    def least_s(self, most_pools: int) -> float:
        """Return the step at least, on so many pools at most."""
        within = np.minimum(self.way.held(most_pools) // self.n_pipelines, self.pp)
        return float(self.any_step_s(self.slowest_s(within)).min(initial=np.inf))

    def held(self) -> Ints:
        """Return the most layers of each stage that fit the memory of any pool, `(pp,)`."""
        problem, n_layers = self.way.problem, self.way.problem.n_layers
        share = self.n_pipelines if problem.zero else 1
        active = np.minimum(self.n_micro, self.pp - np.arange(self.pp))[:, None]
        most = np.zeros(self.pp, dtype=np.int64)
        for pool, x in self.way.tables.items():
            sizes = [
                _least(np.diff(prefix.layers))
                for prefix in (x.whole_bytes, x.shared_bytes, x.activation_bytes, x.working_bytes)
            ]
            whole = sizes[0] + sizes[1] / share + sizes[3] + x.fixed_bytes
            usable = problem.pools[pool].usable_bytes * (1.0 + ROUNDING)
            fits = whole[None, :] + active * sizes[2][None, :] <= usable
            most = np.maximum(most, fits.sum(axis=1) - 1)
        return np.minimum(most, n_layers)

    def slowest_s(self, within: Ints) -> Floats:
        """Return the slowest stage at least, `(n,)`; infinite where memory holds too few layers.

        `within` are stages on the fastest 1, 2, ... pools alone, `(n, n_pools)`.
        """
        way, n_layers = self.way, self.way.problem.n_layers
        times, layers = way.limits
        within, places = np.unique(within, axis=0, return_inverse=True)
        counts = np.diff(within, prepend=0, axis=1)
        held = self.held()
        enough = counts @ layers >= n_layers
        enough &= np.minimum(held[:, None], layers[0]).sum(axis=0) >= n_layers
        fluid_s = way.work / np.maximum(counts @ way.means, 1e-300)
        slowest_s = np.maximum(times[enough.argmax(axis=1)], fluid_s) * (1.0 - ROUNDING)
        possible = enough[:, -1] & (within[:, -1] == self.pp) & bool(held.min() > 0)
        return np.asarray(np.where(possible, slowest_s, np.inf)[places.reshape(-1)])


def least_pipeline_s(way: GridWay, n_micro: int, slowest_s: Floats, moved: Floats) -> Floats:
    """Return micro-batches through all stages but for messages, at least.

    (m - 1) B + max( total, slow total - moved B, B ) for some B of `slowest_s` at least: convex
    in B, so least at that or where the sum of the stages falls no further.
    """

    def through(slowest_s: Floats) -> Floats:
        total_s = np.maximum(way.total_s, way.slow_total_s - moved * slowest_s)
        return np.asarray((n_micro - 1) * slowest_s + np.maximum(total_s, slowest_s))

    with np.errstate(divide="ignore", invalid="ignore"):
        later = np.where(moved > 0, (way.slow_total_s - way.total_s) / moved, 0.0)
        later = np.minimum(later, way.slow_total_s / (1.0 + moved))
        result = np.minimum(through(slowest_s), through(np.maximum(slowest_s, later)))
    return np.asarray(np.where(np.isfinite(slowest_s), result, np.inf))


def grid_ways(problem: MixedProblem) -> list[GridWay]:
    """Return the degrees that grids may have."""
    groups: dict[tuple[object, ...], list[StageTable]] = {}
    for table in problem.tables:
        groups.setdefault(table.key[1:], []).append(table)
    return [GridWay(problem, tuple(x)) for _, x in sorted(groups.items())]


def rows_of(way: GridWay, most_pools: int) -> list[tuple[float, Row]]:
    """Return the sizes of grids of some degrees that pools hold, with a rough bound of each.

    By rates alone: with y_c a pool's mean rate, B >= sum over layers of min_c ( y_c t_c ) over
    sum over stages of y (weak duality, as in `structures`).
    """
    problem, most = way.problem, min(MOST_STAGES, way.problem.n_layers)
    held, pp = way.held(most_pools), np.arange(1, most + 1)
    results = []
    for n in way.n_pipelines:
        m = problem.global_batch // (way.mbs * n)
        own = pp[pp <= int(held[:, -1].max()) // n]
        within = np.minimum((held // n)[:, None, :], own[None, :, None])
        rates = np.diff(within, prepend=0, axis=2) @ way.means
        slowest_s = way.work / np.maximum(rates, 1e-300)
        slowest_s[within[:, :, -1] < own] = np.inf
        step_s = least_pipeline_s(way, m, slowest_s.min(axis=0), own * way.moved.max())
        step_s = problem.fixed_s + problem.straggler_factor * step_s
        pairs = zip(step_s.tolist(), own.tolist(), strict=True)
        results += [(s, Row(way, p, n)) for s, p in pairs if s < np.inf]
    return results
