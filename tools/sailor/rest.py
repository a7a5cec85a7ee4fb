"""How long the slowest stage of the layers that a partial plan lacks is at least."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.sailor.problem import Problem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ends:
    """What the messages of a stage take at least, by kind."""

    ahead_s: Floats
    behind_s: Floats


def least_slowest_s(problem: Problem, n_replicas: int, ends: Ends) -> float:
    """Return a bound of the slowest stage of any plan with some replicas.

    Within S a stage of tensor parallelism t holds n_t(S) = floor((S - message) / layer) inner
    layers and takes t devices of each replica: sum over pools of N/D max_t n_t(S)/t >= layers.
    """
    alone = [i for i, x in enumerate(problem.kinds) if not x.is_mixed]
    whole = float(problem.time_of[:, 0, -1].min())
    n = problem.profile.n_layers - 2
    layer, message, pool, tp = [], [], [], []
    for i in alone:
        layer.append(float(np.diagonal(problem.time_of[i], offset=1)[1:-1].min()))
        message.append(float(min(ends.ahead_s[i], 2.0 * ends.behind_s[i])))
        pool.append(problem.kinds[i].ends[0][0])
        tp.append(problem.kinds[i].ends[0][1])
    times, each = np.array(layer), np.array(message)
    steps = np.unique((times[:, None] * np.arange(n + 1) + each[:, None]).ravel())
    held = np.floor((steps[:, None] - each + 1e-12) / times)
    density = np.clip(held, 0, n) / np.array(tp)
    total = np.zeros(len(steps))
    for k, one in enumerate(problem.pools):
        own = density[:, np.array(pool) == k]
        if own.shape[1]:
            total += own.max(axis=1) * one.n_devices / n_replicas
    enough = np.flatnonzero(total >= n * (1.0 - 1e-9))
    several = float(steps[enough[0]]) if len(enough) else float("inf")
    return min(whole, several)


class Rest:
    """The least slowest stage of the first layers, by what devices are left for them.

    One or two pools; units are devices of one replica. Stages hold at least `held` micro-batches.
    """

    def __init__(self, problem: Problem, n_replicas: int, ends: Ends, held: int) -> None:
        self.problem, self.n_replicas = problem, n_replicas
        n, sizes = problem.profile.n_layers, [x.n_devices for x in problem.pools]
        most = 4 * n
        self.units = [min(most, x // n_replicas) for x in sizes]
        if len(self.units) == 1:
            self.units.append(0)
        shape = (n + 1, self.units[0] + 1, self.units[1] + 1)
        costs = problem.time_of + ends.ahead_s[:, None, None]
        costs = (
            costs
            + np.where(np.arange(n + 1) > 0, 1.0, 0.0)[None, :, None]
            * (ends.behind_s[:, None, None])
        )
        costs = np.where(problem.held_most >= held, costs, np.inf)
        mixed = [i for i, x in enumerate(problem.kinds) if x.is_mixed]
        self.whole = np.full(shape, np.inf)
        self.whole[0] = 0.0
        self.mixed = np.full(shape, np.inf)
        least_mixed = costs[mixed].min(axis=0) if mixed else None
        alone = [(i, x.ends[0]) for i, x in enumerate(problem.kinds) if not x.is_mixed]
        for end in range(1, n + 1):
            for i, (pool, tp) in alone:
                if tp > self.units[pool]:
                    continue
                to = (
                    (slice(tp, None), slice(None)) if pool == 0 else (slice(None), slice(tp, None))
                )
                of = (
                    (slice(None, -tp), slice(None))
                    if pool == 0
                    else (slice(None), slice(None, -tp))
                )
                cost = costs[i, :end, end][:, None, None]
                tables = (self.whole, self.mixed) if mixed else (self.whole,)
                for table in tables:
                    one = np.maximum(table[(slice(None, end), *of)], cost).min(axis=0)
                    table[(end, *to)] = np.minimum(table[(end, *to)], one)
            if least_mixed is not None:
                one = np.maximum(self.whole[:end], least_mixed[:end, end][:, None, None])
                self.mixed[end] = np.minimum(self.mixed[end], one.min(axis=0))
        self.borders = {i: self._border(i) for i in mixed}
        most_of: dict[int, int] = {}
        for border in self.borders.values():
            for x, y in border:
                most_of[x] = max(most_of.get(x, -1), y)
        self.outermost = list(most_of.items())

    def _border(self, kind: int) -> list[tuple[int, int]]:
        """Return the most whole units that leave room for a mixed stage of a kind."""
        (_, s), (_, r) = self.problem.kinds[kind].ends
        d = self.n_replicas
        n, others = (x.n_devices for x in self.problem.pools)
        found = []
        for x in range(self.units[0] + 1):
            first = (n - x * d) // s
            if first < 1:
                break
            need = max(1, d - first) * r
            y = (others - need) // d
            if y >= 0:
                found.append((x, min(y, self.units[1])))
        return found

    def slowest_s(self, start: Ints, units: Ints, mixed: Ints) -> Floats:
        """Return the bound for partial plans, `(n,)`."""
        two = np.zeros((len(start), 2), dtype=np.int64)
        two[:, : units.shape[1]] = units
        result = np.full(len(start), np.inf)
        free = mixed < 0
        left = np.array(self.units) - two
        result[free] = self.whole[start[free], left[free, 0], left[free, 1]]
        self._lower(result, self.mixed, start, two, free, self.outermost)
        for kind, border in self.borders.items():
            self._lower(result, self.whole, start, two, mixed == kind, border)
        return result

    @staticmethod
    def _lower(
        result: Floats,
        table: Floats,
        start: Ints,
        units: Ints,
        which: NDArray[np.bool_],
        border: list[tuple[int, int]],
    ) -> None:
        """Lower the bound of some plans to what totals of units on a border allow."""
        rows = np.flatnonzero(which)
        if not len(rows):
            return
        for x, y in border:
            own = rows[(units[rows, 0] <= x) & (units[rows, 1] <= y)]
            if len(own):
                value = table[start[own], x - units[own, 0], y - units[own, 1]]
                result[own] = np.minimum(result[own], value)
