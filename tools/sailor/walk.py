"""Plans of one number of replicas and one micro-batch, put together from the last stage.

A stage knows from the stages behind it how many micro-batches it holds. Partial plans that another
beats in every figure are dropped, and those whose bound reaches the best plan.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tools.sailor.place import Chain
from tools.sailor.problem import Asked, Kind, Problem
from tools.sailor.profiles import BYTES_PER_VALUE
from tools.sailor.rest import Ends, Rest, least_slowest_s
from tools.sailor.step import Plan, Score

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Item = tuple[Problem, int, Chain]
"""A plan before its stages lie in zones: problem, replicas, stages."""
Realized = Callable[[Item], tuple[float, Plan | None, Score | None]]

RENEWED = 300
"""Partial plans from which the bound of the rest is made anew for the stages behind it."""
COMPARED = 64
"""Partial plans of one place that others are compared with."""


@dataclass
class Tables:
    """What partial plans of one micro-batch are made of."""

    problem: Problem
    message_s: Floats = field(init=False)
    """Of a layer inside the model, kind to kind."""
    logits_s: Floats = field(init=False)
    update_s: Floats = field(init=False)
    """Optimizer by kind."""
    ends: Ends = field(init=False)
    least_s: Floats = field(init=False)
    """Least time of the first 0, 1, ... layers, `(n + 1,)`."""
    work: Floats = field(init=False)
    """Least work of the same, in units of the pools' rates."""
    rates: Floats = field(init=False)
    """What one device of each pool gets done a second, `(n_pools,)`."""
    work_cost: Floats = field(init=False)
    """US dollars that the first layers cost at least, of one micro-batch of one replica."""

    def __post_init__(self) -> None:
        p = self.problem
        values = BYTES_PER_VALUE * p.mbs
        outputs = p.profile.outputs
        self.message_s = p.message_s(float(outputs[0]) * values)
        self.logits_s = p.message_s(float(outputs[-1]) * values)
        self.update_s = p.update_s()
        self.ends = Ends(self.message_s.min(axis=1), self.message_s.min(axis=0))
        alone = [i for i, x in enumerate(p.kinds) if not x.is_mixed]
        layers = np.array([np.diagonal(p.time_of[i], offset=1) for i in alone])
        self.least_s = np.concatenate([[0.0], np.cumsum(layers.min(axis=0))])
        tps = np.array([p.kinds[i].ends[0][1] for i in alone], dtype=np.float64)
        pools = np.array([p.kinds[i].ends[0][0] for i in alone])
        device_s = layers * tps[:, None]
        each = np.full((len(p.pools), layers.shape[1]), np.inf)
        cost = np.full(layers.shape[1], np.inf)
        prices = [p.data.parts.price_per_s[x.part] for x in p.pools]
        for k in range(len(p.pools)):
            if (pools == k).any():
                each[k] = device_s[pools == k].min(axis=0)
                cost = np.minimum(cost, each[k] * prices[k])
        self.rates = 1.0 / each.sum(axis=1)
        work = np.where(np.isfinite(each), each * self.rates[:, None], np.inf).min(axis=0)
        self.work = np.concatenate([[0.0], np.cumsum(work)])
        self.work_cost = np.concatenate([[0.0], np.cumsum(cost)])


@dataclass
class Level:
    """Partial plans with as many stages: columns `(n,)`."""

    start: Ints
    """First layer that they hold."""
    units: Ints
    """Devices of each pool for one replica, `(n, n_pools)`, mixed stages left out."""
    kind: Ints
    """Of the first stage."""
    first_s: Floats
    """Time of the first stage and its message to the next."""
    slowest_s: Floats
    """Of the stages behind it."""
    total_s: Floats
    sync_s: Floats
    update_s: Floats
    mixed: Ints
    """The kind of the mixed stage; -1 without."""
    parent: Ints
    bound: Floats

    def take(self, rows: Ints) -> "Level":
        """Return some of them."""
        return Level(*(getattr(self, x)[rows] for x in Level.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.start)


class Best:
    """The best plan so far, its stages in zones."""

    def __init__(self, asked: Asked, realized: Realized) -> None:
        self.asked, self.realized = asked, realized
        self.value = math.inf
        self.plan: Plan | None = None
        self.score: Score | None = None
        self.least = math.inf
        """The smallest bound of a plan that was put together."""
        self.placed: list[tuple[float, Item]] = []

    def offer(self, bound: float, item: Item) -> None:
        """Put the stages of a plan in zones, and keep it if it is the best."""
        self.least = min(self.least, bound)
        found = self.realized(item)
        self.placed.append((found[0], item))
        self.keep(*found)

    def keep(self, value: float, plan: Plan | None, found: Score | None) -> None:
        """Keep a plan if it is the best."""
        if value < self.value:
            self.value, self.plan, self.score = value, plan, found


class Walk:
    """The search for one micro-batch and D."""

    def __init__(self, tables: Tables, n_replicas: int, n_micro: int, best: Best) -> None:
        self.tables, self.best = tables, best
        self.n_replicas, self.n_micro = n_replicas, n_micro
        p = tables.problem
        self.n = p.profile.n_layers
        self.sizes = np.array([x.n_devices for x in p.pools], dtype=np.int64)
        self.prices = np.array([p.data.parts.price_per_s[x.part] for x in p.pools])
        self.unit_of = np.zeros((len(p.kinds), len(p.pools)), dtype=np.int64)
        for i, kind in enumerate(p.kinds):
            if not kind.is_mixed:
                self.unit_of[i, kind.ends[0][0]] = kind.ends[0][1]
        self.mixed_price = np.array([self._mixed_price(x) for x in p.kinds])
        self.fluid_s = tables.work[-1] * n_replicas / float(self.sizes @ tables.rates)
        self.n_stages = 1
        self.rests: dict[int, Rest] = {}
        """By the stages that partial plans have."""
        self.n_partial, self.dropped = 0, math.inf

    def _mixed_price(self, kind: Kind) -> float:
        """Return the least price a second of a mixed stage; 0 of others."""
        if not kind.is_mixed:
            return 0.0
        return self.n_replicas * min(self.prices[k] * tp for k, tp in kind.ends)

    def least(self) -> float:
        """Return a bound of the objective of every plan with this micro-batch and D."""
        t = self.tables
        slowest = max(self.fluid_s, least_slowest_s(t.problem, self.n_replicas, t.ends))
        time_s = (self.n_micro - 1) * slowest + t.least_s[-1] + float(t.update_s.min())
        cost = self.n_micro * self.n_replicas * float(t.work_cost[-1])
        if time_s > self.best.asked.most_s or cost > self.best.asked.most_cost:
            return math.inf
        return time_s if self.best.asked.objective == "time" else cost

    def run(self, most_labels: int) -> None:
        """Walk level by level, with the best so many partial plans of each."""
        self.sync_s = self.tables.problem.sync_s(self.n_replicas)
        empty = np.zeros(1)
        none = np.zeros(1, dtype=np.int64)
        level = Level(
            start=none + self.n,
            units=np.zeros((1, len(self.sizes)), dtype=np.int64),
            kind=none - 1,
            first_s=empty,
            slowest_s=empty,
            total_s=empty,
            sync_s=empty,
            update_s=empty,
            mixed=none - 1,
            parent=none - 1,
            bound=empty,
        )
        levels = [level]
        for n_stages in range(1, self.n + 1):
            self.n_stages = n_stages
            parts = [
                x
                for i in range(len(self.tables.problem.kinds))
                if (x := self._before(levels[-1], i, n_stages)) is not None
            ]
            if not parts:
                return
            columns = Level.__dataclass_fields__
            whole = Level(*(np.concatenate([getattr(x, c) for x in parts]) for c in columns))
            self._finish(whole, levels)
            open_ = np.flatnonzero((whole.start > 0) & (whole.bound < self.best.value))
            level = self._undominated(whole.take(open_))
            if len(level) > most_labels:
                order = np.argsort(level.bound, kind="stable")
                self.dropped = min(self.dropped, float(level.bound[order[most_labels]]))
                level = level.take(order[:most_labels])
            self.n_partial += len(level)
            levels.append(level)
            if not len(level):
                return

    def _before(self, level: Level, kind: int, n_stages: int) -> Level | None:
        """Return the plans that a stage of a kind makes of others in front of them."""
        t, p = self.tables, self.tables.problem
        d, m = self.n_replicas, self.n_micro
        is_mixed = p.kinds[kind].is_mixed
        if is_mixed and d == 1:
            return None
        units = level.units + self.unit_of[kind]
        ok = (units * d <= self.sizes).all(axis=1)
        if is_mixed:
            ok &= level.mixed < 0
        rows = np.flatnonzero(ok)
        if not len(rows):
            return None
        starts = np.arange(self.n)
        end = level.start[rows][:, None]
        fits = (starts[None, :] < end) & (p.held_most[kind][starts[None, :], end] >= n_stages)
        row, start = np.nonzero(fits)
        if not len(row):
            return None
        row = rows[row]
        end = level.start[row]
        next_kind = level.kind[row]
        stage_s = p.time_of[kind][start, end]
        is_first, is_last = start == 0, n_stages == 1
        if is_last:
            ahead = np.zeros(len(row))
            behind = np.zeros(len(row))
        else:
            one = t.message_s[kind][next_kind]
            ahead = np.where(is_first & (n_stages > 3), 2.0 * one, one)
            back = t.message_s[next_kind, kind]
            if n_stages == 2:
                logits = t.logits_s[next_kind, kind]
                back = 2.0 * np.where(end == self.n - 1, logits, back)
            behind = back
        slowest = np.maximum(
            level.slowest_s[row], np.where(is_last, 0.0, level.first_s[row] + behind)
        )
        first = stage_s + ahead
        total = level.total_s[row] + behind + first
        least_back = t.message_s.min(axis=0)[kind] * (2.0 if is_last else 1.0)
        low = np.maximum(slowest, first + np.where(start > 0, least_back, 0.0))
        low = np.maximum(low, self.fluid_s)
        sync = np.maximum(level.sync_s[row], self.sync_s[kind][start, end])
        update = np.maximum(level.update_s[row], t.update_s[kind])
        mixed = np.where(is_mixed, kind, level.mixed[row])
        units = units[row]
        later = total + t.least_s[start] + sync + update
        price = (units * d) @ self.prices + self.mixed_price[mixed] * (mixed >= 0)
        least_cost = m * d * t.work_cost[start]

        def promising(low: Floats, which: Ints) -> tuple[Floats, Ints]:
            """Return the bounds of plans, and which of them may beat the best."""
            time_s = (m - 1) * low + later[which]
            cost = time_s * price[which] + least_cost[which]
            asked = self.best.asked
            bound = time_s if asked.objective == "time" else cost
            keep = (bound < self.best.value) & (time_s <= asked.most_s) & (cost <= asked.most_cost)
            at = np.flatnonzero(keep)
            return bound[at], which[at]

        _, at = promising(low, np.arange(len(row)))
        at = at[(mixed[at] < 0) | self._mixed_fits(mixed[at], units[at])]
        if not len(at):
            return None
        still = self._rest(len(level)).slowest_s(start[at], units[at], mixed[at])
        finite = np.isfinite(still)
        at, still = at[finite], still[finite]
        bound, at = promising(np.maximum(low[at], still), at)
        if not len(at):
            return None
        return Level(
            start[at].astype(np.int64),
            units[at],
            np.full(len(at), kind, dtype=np.int64),
            first[at],
            slowest[at],
            total[at],
            sync[at],
            update[at],
            mixed[at],
            row[at].astype(np.int64),
            bound,
        )

    def _rest(self, n_partial: int) -> Rest:
        """Return the bound of what is lacking, made anew where many plans depend on it."""
        near = [x for x in self.rests if x <= self.n_stages]
        if not near or (max(near) < self.n_stages and n_partial > RENEWED):
            p, held = self.tables.problem, self.n_stages + 1
            self.rests[self.n_stages] = Rest(p, self.n_replicas, self.tables.ends, held)
            near.append(self.n_stages)
        return self.rests[max(near)]

    def _mixed_fits(self, mixed: Ints, units: Ints) -> NDArray[np.bool_]:
        """Tell whether the pools hold the mixed stage beside whole ones."""
        d, p = self.n_replicas, self.tables.problem
        left = self.sizes - units * d
        result = np.zeros(len(mixed), dtype=np.bool_)
        for kind in np.unique(mixed[mixed >= 0]).tolist():
            (a, s), (b, r) = p.kinds[kind].ends
            most, others = left[:, a] // s, left[:, b] // r
            result |= (mixed == kind) & (most + others >= d) & (most >= 1) & (others >= 1)
        return result

    def _finish(self, level: Level, levels: list[Level]) -> None:
        """Keep the plans that hold every layer."""
        t, asked = self.tables, self.best.asked
        rows = np.flatnonzero(level.start == 0)
        if not len(rows):
            return
        slowest = np.maximum(level.slowest_s[rows], level.first_s[rows])
        time_s = (self.n_micro - 1) * slowest + level.total_s[rows]
        time_s = time_s + level.sync_s[rows] + level.update_s[rows]
        price = (level.units[rows] * self.n_replicas) @ self.prices
        price = price + self.mixed_price[level.mixed[rows]] * (level.mixed[rows] >= 0)
        cost = time_s * price
        value = time_s if asked.objective == "time" else cost
        good = (time_s <= asked.most_s) & (cost <= asked.most_cost) & (value < self.best.value)
        ordered = np.flatnonzero(good)
        for i in ordered[np.argsort(value[ordered], kind="stable")].tolist():
            if value[i] >= self.best.value:
                break
            chain = [(int(level.kind[rows[i]]), 0)]
            at, parent = len(levels) - 1, int(level.parent[rows[i]])
            while at > 0:
                chain.append((int(levels[at].kind[parent]), int(levels[at].start[parent])))
                at, parent = at - 1, int(levels[at].parent[parent])
            self.best.offer(float(value[i]), (t.problem, self.n_replicas, tuple(chain)))

    def _undominated(self, level: Level) -> Level:
        """Drop plans that another with the same first stage beats or equals in every figure."""
        n = len(level)
        if n < 2:
            return level
        order = np.argsort(level.bound, kind="stable")
        level = level.take(order)
        figures = np.column_stack(
            [
                level.units,
                level.first_s,
                np.maximum(level.slowest_s, self.fluid_s),
                level.total_s,
                level.sync_s,
                level.update_s,
            ]
        )
        n_kinds = len(self.tables.problem.kinds)
        place = (level.start * n_kinds + level.kind) * (n_kinds + 1) + level.mixed + 1
        by_place = np.argsort(place, kind="stable")
        cuts = np.flatnonzero(np.diff(place[by_place])) + 1
        kept = np.ones(n, dtype=np.bool_)
        for group in np.split(by_place, cuts):
            if len(group) < 2:
                continue
            own = figures[group]
            alive = np.ones(len(group), dtype=np.bool_)
            for i in range(min(len(group), COMPARED)):
                if alive[i]:
                    beaten = (own[i] <= own[i + 1 :]).all(axis=1)
                    alive[i + 1 :] &= ~beaten
            kept[group] = alive
        return level.take(np.flatnonzero(kept))
