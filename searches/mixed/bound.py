"""A lower bound of the step over any number of pipelines of any structure: linear programming.

With x_i >= 0 pipelines of structure i, a_i devices of each pool, b_i(T) the most sequences that one
gets done within a step of T:

    max b(T) x   subject to   sum_i a_i x_i <= N       (dual: min N y  with  a_i y >= b_i(T), y >= 0)

If the maximum is below the global batch no plan has a step of T. The dual has one variable a pool;
its rows are added as they are violated.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedProblem
from searches.mixed.fills import least_slowest_s
from searches.mixed.structures import Structures

Floats = NDArray[np.float64]

ROUNDS = 60
"""Of added rows, at most: the bound of the last is not valid then, and none is given."""
BISECTIONS = 14
MARGIN = 1e-9
"""By how much rows may be violated, relative: rounding of the solver."""


@dataclass(frozen=True, slots=True)
class Dual:
    """What a device of each pool is worth in a step of some length, sequences."""

    value: float
    """Most sequences that all pools get done."""
    prices: Floats
    """Per device of each pool, `(n_pools,)`."""


def dual_of(devices: Floats, done: Floats, sizes: Floats) -> Dual:
    """Return the prices of least value that no structure beats."""
    from ortools.linear_solver import pywraplp  # 0.3 s

    n_pools = devices.shape[1]
    solver = pywraplp.Solver.CreateSolver("GLOP")
    prices = [solver.NumVar(0.0, solver.infinity(), f"y{k}") for k in range(n_pools)]
    solver.Minimize(sum(float(n) * y for n, y in zip(sizes, prices, strict=True)))
    per_device = done / devices.sum(axis=1)
    added = {int(i) for i in np.argsort(-per_device, kind="stable")[: 2 * n_pools]}
    waiting = sorted(added)
    for _ in range(ROUNDS):
        for i in waiting:
            row = sum(float(a) * y for a, y in zip(devices[i], prices, strict=True) if a)
            solver.Add(row >= float(done[i]))
        solver.Solve()
        values = np.array([max(0.0, y.solution_value()) for y in prices])
        beaten = done - devices @ values
        worst = np.argsort(-beaten, kind="stable")[: 4 * n_pools]
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


class Refined:
    """Structures whose bounds are made exact where they decide: layers split, memory counted."""

    def __init__(self, problem: MixedProblem, structures: Structures) -> None:
        self.problem = problem
        self.structures = structures
        self.slowest_s = structures.slowest_s.copy()
        self._known = np.zeros(len(structures), dtype=bool)
        self.sizes = np.array([pool.n_devices for pool in problem.pools], dtype=np.float64)

    def done(self, time_s: float) -> Floats:
        """Return the most sequences that a pipeline of each structure gets done, `(n,)`.

        Of refined ones with at least as many micro-batches as stages; with fewer, less memory is
        in flight, and the first bound counts.
        """
        s, problem = self.structures, self.problem
        overhead, factor = problem.fixed_s, problem.straggler_factor
        room = (time_s - overhead) / factor - s.total_s
        exact = np.where(
            np.isfinite(self.slowest_s),
            np.floor(room / np.where(np.isfinite(self.slowest_s), self.slowest_s, 1.0) + 1e-9)
            + 1.0,
            0.0,
        )
        few = np.minimum(s.most_micro(time_s, overhead, factor), s.pp - 1.0)
        return np.asarray(s.mbs * np.maximum(np.maximum(exact, few), 0.0))

    def refine(self, rows: NDArray[np.intp], stop: Callable[[], bool] | None = None) -> bool:
        """Make the bounds of some structures exact; tell whether any changed."""
        changed = False
        for i in rows.tolist():
            if self._known[i] or (stop is not None and stop()):
                continue
            self._known[i] = True
            pipeline = self.structures.pipeline(i)
            most = max(pipeline.multiple, pipeline.most_pipelines(self.problem))
            low = float(self.structures.slowest_s[i])
            exact = least_slowest_s(self.problem, pipeline, most, pipeline.pp, low)
            if exact > low * (1.0 + 1e-6):
                self.slowest_s[i] = exact
                changed = True
        return changed


def dual_at(
    refined: Refined, time_s: float, target: float, stop: Callable[[], bool] | None = None
) -> Dual:
    """Return the dual at a step, structures refined as long as its value reaches the target."""
    s = refined.structures
    while True:
        done = refined.done(time_s)
        dual = dual_of(s.devices, done, refined.sizes)
        if dual.value < target or (stop is not None and stop()):
            return dual
        tight = np.argsort(s.devices @ dual.prices - done, kind="stable")[:48]
        if not refined.refine(tight, stop):
            return dual


def least_step_s(
    refined: Refined, low_s: float, high_s: float, stop: Callable[[], bool] | None = None
) -> tuple[float, Dual]:
    """Return a step that no plan is shorter than, and the dual just above it.

    `low_s` is such a step already; a plan has a step of `high_s`.
    """
    target = float(refined.problem.global_batch)
    dual = dual_at(refined, high_s, target, stop)
    for _ in range(BISECTIONS):
        if high_s - low_s <= 2e-4 * high_s or (stop is not None and stop()):
            break
        middle = 0.5 * (low_s + high_s)
        one = dual_at(refined, middle, target, stop)
        if one.value < target:
            low_s = middle
        else:
            high_s, dual = middle, one
    return low_s, dual
