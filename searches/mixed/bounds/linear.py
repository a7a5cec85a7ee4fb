"""A lower bound of the step over any number of pipelines of any structure: linear programming.

With x_i >= 0 pipelines of column i, a_i devices of each pool, b_i(T) the most sequences that one
gets done within a step of T, d_i the most pipelines of a kind in the column, K kinds in a plan:

    max b(T) x   subject to   sum_i a_i x_i <= N,  sum_i x_i / d_i <= K
    (dual: min N y + K z,  a_i y + z/d_i >= b_i(T),  y, z >= 0)

The second holds as a kind has d_i pipelines at most. If the maximum is below the global batch no
plan has a step of T. Columns are added where they beat the prices, and made exact where they
decide (`columns`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from searches.mixed.answer import Halt
from searches.mixed.bounds.columns import Columns

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

ROUNDS = 60
"""Of added rows in one linear program, at most."""
PASSES = 80
"""Over all columns, at most: the bound of the last is valid."""
FEW_PASSES = 4
"""Over all columns for the prices of one step."""
REFINED = 3000
"""Columns that are made exact, at most."""
TOLERANCE = 2e-4
"""Of the bound, relative."""
ADDED = 192
"""Columns that are added at once."""
LOOKED_AT = 2048
"""Columns of which cuts are looked at together."""
ENOUGH = 24
"""Columns that beat the prices, below which all are looked at."""
MARGIN = 1e-9
"""By how much rows may be violated, relative: rounding of the solver."""


@dataclass(frozen=True, slots=True)
class Dual:
    """What a device of each pool is worth in a step of some length, sequences."""

    value: float
    """Most sequences that all pools get done."""
    prices: Floats
    """Per device of each pool, then per kind of a plan."""


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


class Bound:
    """The search for the longest step in which the pools do not get the batch done."""

    def __init__(self, columns: Columns, halt: Halt) -> None:
        self.columns, self.halt = columns, halt
        self.target = float(columns.problem.global_batch)
        self.active: Rows = np.zeros(0, dtype=np.intp)
        self.n_refined = 0

    def dual(self, time_s: float) -> Dual:
        """Return the prices over the active columns."""
        rows, columns = self.active, self.columns
        return dual_of(columns.devices(rows), columns.done(time_s, rows), columns.sizes)

    def full_dual(self, time_s: float) -> Dual:
        """Return the prices over all columns, as far as a few passes find them."""
        dual = self.dual(time_s)
        for _ in range(FEW_PASSES):
            rows = self.beaten(time_s, dual.prices, LOOKED_AT)[0]
            if not len(rows) or self.halt():
                break
            self.add(rows[:ADDED])
            dual = self.dual(time_s)
        return dual

    def add(self, rows: Rows) -> None:
        """Make some columns active, with their cuts."""
        self.columns.look(0.0, rows, np.full(len(rows), -1.0))
        self.active = np.union1d(self.active, rows)

    def refine(self, rows: Rows, time_s: float) -> bool:
        """Make some columns exact; tell whether any was not."""
        changed = False
        for row in rows.tolist():
            if self.n_refined >= REFINED or self.halt():
                break
            if self.columns.refine(row, time_s):
                self.n_refined += 1
                changed = True
        return changed

    def beaten(self, time_s: float, prices: Floats, most: int = 0) -> tuple[Rows, Floats]:
        """Return the columns that are worth more than their prices, the most so first.

        With `most` those alone that promise most are looked at, as many at most.
        """
        columns = self.columns
        worth = np.maximum(columns.worth(prices), 1e-300)
        rough = columns.most_done(time_s) / worth
        rows = np.flatnonzero(rough > 1.0 + MARGIN)
        if most and len(rows) > most:
            rows = rows[np.argpartition(-rough[rows], most - 1)[:most]]
        columns.look(time_s, rows, worth[rows])
        done = columns.done(time_s, rows)
        ratio = done / worth[rows]
        kept = np.flatnonzero((ratio > 1.0 + MARGIN) & (done > 0))
        order = kept[np.lexsort((rows[kept], -ratio[kept]))]
        return rows[order], ratio[order]

    def most_ratio(self, time_s: float, prices: Floats) -> float:
        """Return the most that any column is worth over its prices."""
        columns = self.columns
        worth = np.maximum(columns.worth(prices), 1e-300)
        rough = columns.most_done(time_s) / worth
        order = np.argsort(-rough, kind="stable")
        most = 0.0
        for i in range(0, len(order), LOOKED_AT):
            rows = order[i : i + LOOKED_AT]
            if rough[rows[0]] <= most:
                break
            columns.look(time_s, rows, worth[rows])
            most = max(most, float((columns.done(time_s, rows) / worth[rows]).max()))
        return most

    def longest_s(self, low_s: float, near_s: float, high_s: float) -> tuple[float, float]:
        """Return steps in which the active columns just do not, and just do, the whole batch.

        `low_s` is too short; `near_s` is where to look first, `high_s` the longest of interest.
        """
        step = 2.0 * TOLERANCE
        time_s = min(max(near_s, low_s * (1.0 + TOLERANCE)), high_s)
        while True:
            if self.dual(time_s).value < self.target:
                low_s = time_s
                if time_s >= high_s:
                    return high_s, high_s
                time_s = min(high_s, time_s * (1.0 + step))
            else:
                high_s = time_s
                time_s = max(low_s, time_s / (1.0 + step))
                if time_s <= low_s:
                    break
            step *= 2.0
            if low_s * (1.0 + step) >= high_s:
                break
        while high_s > low_s * (1.0 + TOLERANCE):
            time_s = 0.5 * (low_s + high_s)
            if self.dual(time_s).value < self.target:
                low_s = time_s
            else:
                high_s = time_s
        return low_s, high_s


def least_step_s(
    columns: Columns,
    low_s: float,
    high_s: float,
    halt: Halt,
    near_s: float = 0.0,
    active: Rows | None = None,
) -> tuple[float, Bound]:
    """Return a step that no plan is shorter than, and what it was found by.

    `low_s` is such a step already; longer ones than `high_s` are of no interest. `near_s` is where
    to look first, with columns that are active already.
    """
    search = Bound(columns, halt)
    proven_s, near_s = low_s, max(low_s, near_s)
    n = len(columns.sizes)
    prices = np.append(1.0 / np.maximum(columns.sizes[:-1], 1.0), 0.0)
    if not len(columns) or halt():
        return (low_s if len(columns) else high_s), search
    worth = columns.most_done(high_s) / np.maximum(columns.worth(prices), 1e-300)
    search.add(active if active is not None and len(active) else _first(-worth, 4 * n))
    dual = search.dual(near_s)
    for _ in range(PASSES):
        if halt():
            break
        below_s, above_s = search.longest_s(proven_s, near_s, high_s)
        near_s, dual = below_s, search.dual(above_s)
        if above_s > below_s and search.refine(_tight(search, dual, above_s), above_s):
            continue
        own = search.dual(below_s)
        rows, _ = search.beaten(below_s, own.prices, LOOKED_AT)
        if len(rows) < ENOUGH:
            rows, ratios = search.beaten(below_s, own.prices)
            if not len(rows) or own.value * ratios[0] < search.target:
                proven_s = below_s
            if not len(rows) or (proven_s == below_s and below_s >= high_s):
                break
        added = rows[:ADDED]
        before = len(search.active)
        search.add(added)
        search.refine(added, below_s)
        if len(search.active) == before:
            break
    if near_s > proven_s * (1.0 + TOLERANCE):
        proven_s = _with_prices(search, dual.prices, proven_s, near_s)
    return proven_s, search


def _tight(search: Bound, dual: Dual, time_s: float) -> Rows:
    """Return the active columns that decide at some prices."""
    rows, columns = search.active, search.columns
    done = columns.done(time_s, rows)
    return rows[(columns.worth(dual.prices, rows) <= done * (1.0 + 1e-6)) & (done > 0)]


def _with_prices(search: Bound, prices: Floats, low_s: float, high_s: float) -> float:
    """Return a step that prices prove, between one that is proven and one that is not."""
    value = float(search.columns.sizes @ prices)
    while high_s > low_s * (1.0 + 5.0 * TOLERANCE):
        middle_s = 0.5 * (low_s + high_s)
        if value * search.most_ratio(middle_s, prices) < search.target:
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s
