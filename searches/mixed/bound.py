"""A lower bound of the step over any number of pipelines of any structure: linear programming.

With x_i >= 0 pipelines of structure i, a_i devices of each pool, b_i(T) the most sequences that
one gets done within a step of T:

    max b(T) x   subject to   sum_i a_i x_i <= N   (dual: min N y,  a_i y >= b_i(T),  y >= 0)

b_i differs with the pipelines that one kind has, as their gradients do not travel for nothing:
each structure stands there once for every range of `RANGES`, and of the pipelines in a range that
ends at d there are at most K d, K the kinds of a plan.

If the maximum is below the global batch no plan has a step of T. The dual has one variable a pool;
its rows are added as they are violated.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedProblem
from searches.mixed.answer import Halt
from searches.mixed.fills import Way, least_slowest_s
from searches.mixed.structures import Structures

Floats = NDArray[np.float64]

ROUNDS = 60
"""Of added rows, at most: the bound of the last is not valid then, and none is given."""
RISES = 400
"""Of the step, and rounds of refinement, at most: the bound of the last is valid."""
LEAST_RISE, MOST_RISE = 1.0002, 1.25
"""Factors by which the step rises at once."""
NEAR = 0.02
"""Structures this close to the prices are refined too: they would be next."""
REFINED_AT_ONCE = 256
MARGIN = 1e-9
"""By how much rows may be violated, relative: rounding of the solver."""


@dataclass(frozen=True, slots=True)
class Dual:
    """What a device of each pool is worth in a step of some length, sequences."""

    value: float
    """Most sequences that all pools get done."""
    prices: Floats
    """Per device of each pool, then per pipeline of each range that is limited."""


def _first(values: Floats, n: int) -> NDArray[np.intp]:
    """Return the positions of the least values, ascending, ties by position."""
    if len(values) > 4 * n:
        last = np.partition(values, n - 1)[n - 1]
        some = np.flatnonzero(values <= last)
        return np.asarray(some[np.argsort(values[some], kind="stable")][:n])
    return np.argsort(values, kind="stable")[:n]


def dual_of(devices: Floats, done: Floats, sizes: Floats) -> Dual:
    """Return the prices of least value that no structure beats."""
    from ortools.linear_solver import pywraplp  # 0.3 s

    n_pools = len(sizes)
    solver = pywraplp.Solver.CreateSolver("GLOP")
    prices = [solver.NumVar(0.0, solver.infinity(), f"y{k}") for k in range(n_pools)]
    solver.Minimize(sum(float(n) * y for n, y in zip(sizes, prices, strict=True)))
    per_device = done / (devices / np.maximum(sizes, 1.0)).sum(axis=1)
    added = {int(i) for i in _first(-per_device, 2 * n_pools)}
    waiting = sorted(added)
    for _ in range(ROUNDS):
        for i in waiting:
            row = sum(float(a) * y for a, y in zip(devices[i], prices, strict=True) if a)
            solver.Add(row >= float(done[i]))
        solver.Solve()
        values = np.array([max(0.0, y.solution_value()) for y in prices])
        beaten = done - devices @ values
        worst = _first(-beaten, 4 * n_pools)
        waiting = [int(i) for i in worst if beaten[i] > MARGIN * max(1.0, done[i])]
        waiting = [i for i in waiting if i not in added]
        if not waiting:
            break
        added.update(waiting)
    # Whatever is violated still is priced in: prices times the largest ratio hold for all.
    worth = devices @ values
    ratio = float(np.max(np.where(done > 0, done / np.maximum(worth, 1e-300), 0.0), initial=1.0))
    values = values * max(1.0, ratio)
    return Dual(float(sizes @ values), values)


RANGES = ((1, 1), (2, 7), (8, 0))
"""First and last number of pipelines of a kind; 0: any number."""


def least_sync_s(problem: MixedProblem, way: Way, layers: Floats, first: int, last: int) -> Floats:
    """Return what gradients and weights of a stage with some layers add at least, seconds.

    Of reduction and gather each s c + (1 - s) max(0, c - w): c the transfer at the best rate of
    `first` to `last` pipelines, w the longest window, s the slowdown of compute beside what is
    hidden; c without overlap. Increases with the layers: a stage that holds more adds no less.
    """
    rings = [
        ring
        for (n, d), ring in problem.pools[way.pool].rings.items()
        if n == way.n_devices and d >= first and (not last or d <= last)
    ]
    if last == 1 or not rings:
        return np.zeros_like(layers)
    table, share = way.tables[0], layers / problem.n_layers
    forward = share * max(float(x.forward_s.layers[-1]) for x in way.tables)
    backward = share * max(float(x.backward_s.layers[-1]) for x in way.tables)
    slowdown = problem.overlap.slowdown if problem.overlap else 1.0
    grads, weights = (share * float(x.layers[-1]) for x in (table.grad_bytes, table.weight_bytes))

    def least(sizes: Floats, operation: str, window_s: Floats) -> Floats:
        transfer = sizes * min(float(getattr(x, operation)[1]) for x in rings)
        return slowdown * transfer + (1.0 - slowdown) * np.maximum(0.0, transfer - window_s)

    if not problem.zero:
        return least(grads, "all_reduce", backward)
    return least(grads, "reduce_scatter", backward) + least(weights, "all_gather", forward)


class Refined:
    """Structures whose bounds are made exact where they decide: layers split, memory counted."""

    def __init__(self, problem: MixedProblem, structures: Structures, most_kinds: int) -> None:
        self.problem = problem
        kept = [(a, b) for a, b in RANGES if _has_pipelines(problem, structures, a)]
        self.ranges = kept
        self.sync_s = [self._least_sync_s(structures, a, b) for a, b in kept]
        limits = np.array([float(most_kinds * b) for _, b in kept if b])
        sizes = np.array([pool.n_devices for pool in problem.pools], dtype=np.float64)
        self.sizes = np.concatenate([sizes, limits])
        n, limited = len(structures), [i for i, (_, b) in enumerate(kept) if b]
        self.devices = np.zeros((n * len(kept), len(self.sizes)))
        for i in range(len(kept)):
            rows = slice(i * n, (i + 1) * n)
            self.devices[rows, : len(sizes)] = structures.devices
            if i in limited:
                self.devices[rows, len(sizes) + limited.index(i)] = 1.0
        self.structures = structures
        self.slowest_s = structures.slowest_s.copy()
        self.known = np.zeros(len(structures), dtype=bool)

    def _least_sync_s(self, structures: Structures, first: int, last: int) -> Floats:
        """Return `least_sync_s` of each structure: of the part where it is least, `(n,)`.

        Some stage holds at least the mean number of layers.
        """
        pp, ways = structures.pp, structures.ways
        mean = self.problem.n_layers / np.maximum(1, np.arange(int(pp.max(initial=1)) + 1))
        table = np.array([least_sync_s(self.problem, way, mean, first, last) for way in ways])
        each = np.where(structures.parts >= 0, table[structures.parts, pp[:, None]], np.inf)
        return np.asarray(each.min(axis=1))

    def done(self, time_s: float) -> Floats:
        """Return the most sequences that a pipeline of each structure gets done.

        `(n_ranges n,)`: those of a range of `RANGES` after one another.

        Of refined ones with at least as many micro-batches as stages; with fewer, less memory is
        in flight, and the first bound counts.
        """
        s, problem = self.structures, self.problem
        results = []
        for sync_s in self.sync_s:
            room_s = (time_s - problem.fixed_s - sync_s) / problem.straggler_factor
            few = np.minimum(s.most_micro(room_s), s.pp - 1.0)
            results.append(s.mbs * np.maximum(few, s.most_micro(room_s, self.slowest_s)))
        return np.concatenate(results)

    def refine(self, rows: NDArray[np.intp], halt: Halt) -> bool:
        """Make the bounds of some structures exact; tell whether any changed."""
        changed = False
        for i in dict.fromkeys((rows % len(self.structures)).tolist()):
            if self.known[i] or halt():
                continue
            self.known[i] = True
            pipeline = self.structures.pipeline(i)
            most = max(pipeline.multiple, pipeline.most_pipelines(self.problem))
            low = float(self.structures.slowest_s[i])
            exact = least_slowest_s(self.problem, pipeline, most, pipeline.pp, low)
            if exact > low * (1.0 + 1e-6):
                self.slowest_s[i] = exact
                changed = True
        return changed


def _has_pipelines(problem: MixedProblem, structures: Structures, n: int) -> bool:
    """Tell whether some structure has room for so many pipelines."""
    sizes = np.array([pool.n_devices for pool in problem.pools], dtype=np.float64)
    return bool(np.any(np.all(n * structures.devices <= sizes, axis=1)))


def least_step_s(refined: Refined, low_s: float, high_s: float, halt: Halt) -> tuple[float, Dual]:
    """Return a step that no plan is shorter than, and the dual just above it.

    `low_s` is such a step already; a plan has a step of `high_s`. The step rises as long as the
    pools do not get the batch done in it; structures that decide are refined, and it rises again.
    """
    target, time_s = float(refined.problem.global_batch), low_s
    n = len(refined.ranges)
    dual = Dual(0.0, np.zeros(len(refined.sizes)))
    for _ in range(RISES):
        done = refined.done(time_s)
        dual = dual_of(refined.devices, done, refined.sizes)
        if halt():
            break
        if dual.value < target:
            low_s = time_s
            if time_s >= high_s:
                break
            rise = target / dual.value if dual.value > 0 else MOST_RISE
            time_s = min(high_s, time_s * min(MOST_RISE, max(LEAST_RISE, rise)))
            continue
        worth = refined.devices @ dual.prices
        unknown = np.tile(~refined.known, n)
        near = np.flatnonzero((worth <= done * (1.0 + NEAR)) & unknown)
        tight = near[_first((worth - done)[near] / worth[near], REFINED_AT_ONCE)]
        decides = bool(np.any(worth[tight] <= done[tight] * (1.0 + 1e-6)))
        if not decides or not refined.refine(tight, halt):
            break
    return low_s, dual
