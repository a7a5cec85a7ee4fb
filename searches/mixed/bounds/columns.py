"""Kinds of pipelines as columns: a structure and a range of pipelines, and what one gets done.

Of a structure with p stages, B the slowest stage, W their sum, h the slowest message of them, and
m micro-batches, a plan takes at least (`costmodels.mixed.prices.price`)

    fixed + tail + S [ (m - 1) B + W + crossings(p, m) h ]

with crossings(p, m) >= 2 (p - 1) [ (p - 1) + (m - 1) ]/p. B is bounded in three ways, each
when it decides: by rates alone (`structures`), cut by cut with whole layers and memory (`cuts`,
W and the tail too), and exactly (`fills`), there by micro-batches in flight.
"""

from copy import copy

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedProblem
from searches.mixed.bounds.capacity import Capacity
from searches.mixed.bounds.cuts import CutBounds, Rows
from searches.mixed.bounds.families import Family
from searches.mixed.bounds.points import Cut, KeptPoints, Points
from searches.mixed.bounds.tails import least_tail_s
from searches.mixed.fills import least_slowest_s
from searches.mixed.structures import ROUNDING, Structures

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ALONE = Family(1)
"""Plans of one kind."""

FLIGHTS = (1, 2, 3, 5, 9, 17, 33)
"""Least micro-batches of each class below the stages, of which the slowest stage is exact."""
BLOCK = 4096
"""Rows of which the cuts are looked at together."""
ENDS_BLOCK = 512
"""The same, with the ends of the model."""
AHEAD = 0.003
"""By how much longer the steps are for which cuts are looked at, of the step."""

_BY_ROW = (
    *("base", "structure", "range", "first", "last", "kinds", "mbs", "pp", "slowest_s"),
    *("alone_s", "outside_s", "hop_s", "cut_alone", "cut", "known_s", "known_micro", "place"),
)


def _ranges(most: int) -> list[tuple[int, int]]:
    """Return 1, 2 to 3, 4 to 7, ... up to `most` at least."""
    ranges = [(1, 1)]
    while ranges[-1][1] < most:
        first = ranges[-1][1] + 1
        ranges.append((first, 2 * first - 1))
    return ranges


def _least_hop_s(problem: MixedProblem, structures: Structures, first: Ints, rows: Ints) -> Floats:
    """Return the slowest message of the pipelines at least, with `first` pipelines, seconds."""
    ways = structures.ways
    sizes = np.array([w.tables[0].message_bytes for w in ways])
    total = sizes * np.array([w.n_devices for w in ways])
    pools = np.array([w.pool for w in ways])
    nics = np.array([x.nic_bytes_per_s for x in problem.pools])
    latency, per_byte = np.array([pool.inside_hop for pool in problem.pools]).T
    inside = latency[pools] + per_byte[pools] * sizes
    parts, counts = structures.parts[rows], structures.counts[rows]
    hop = np.zeros(len(rows))
    n_pools = len(problem.pools)
    rate, wait = np.full((n_pools, n_pools), np.inf), np.zeros((n_pools, n_pools))
    for (a, b), link in problem.links.items():
        rate[a, b] = rate[b, a] = link.bytes_per_s
        wait[a, b] = wait[b, a] = link.latency_s
    for j in range(parts.shape[1]):
        own = np.asarray(parts[:, j])
        hop = np.maximum(hop, np.where(counts[:, j] > 1, inside[own], 0.0))
        if j:
            before, has = parts[:, j - 1], counts[:, j] > 0
            here, there = pools[before], pools[own]
            nic = np.maximum(sizes[before] / nics[here], sizes[own] / nics[there])
            shared = first * np.maximum(total[before], total[own]) / rate[here, there]
            hop = np.maximum(hop, np.where(has, wait[here, there] + np.maximum(nic, shared), 0.0))
    return hop


def _most_micro(cuts: Cut, room_s: Floats, hop_s: Floats, floor_s: Floats | float) -> Floats:
    """Return the most micro-batches of any cut, `(n,)`; `floor_s` bounds the slowest stage."""
    slowest_s, other_s = cuts
    with np.errstate(invalid="ignore"):
        n = (room_s[:, None] - other_s) / (np.maximum(slowest_s, floor_s) + hop_s[:, None])
    n = np.where(np.isfinite(slowest_s), n, -1.0).max(axis=1)
    return np.asarray(np.maximum(0.0, np.floor(n + ROUNDING) + 1.0))


def _by_class(points: Points, known: Floats, room: tuple[Floats, Floats], pp: Floats) -> Floats:
    """Return the most micro-batches where the slowest stage is known by those in flight."""
    best = np.zeros(len(pp))
    starts = (*FLIGHTS, 0)
    for k, start in enumerate(starts):
        first = np.full(len(pp), float(start)) if start else pp
        last = np.full(len(pp), np.inf)
        if start:
            last = np.minimum(pp, starts[k + 1] or np.inf) - 1.0
        possible = np.flatnonzero(last >= first)
        if not len(possible):
            continue
        cuts = points.some(possible).with_micro(first[possible])
        room_s, hop_s = room[0][possible], room[1][possible]
        n = _most_micro(cuts, room_s, hop_s, known[possible, k, None])
        n = np.minimum(n, last[possible])
        n = np.where(n >= first[possible], n, 0.0)
        best[possible] = np.maximum(best[possible], n)
    return best


class Columns:
    """Columns of the bound, `(n,)` each; `rows` are positions among them."""

    def __init__(self, problem: MixedProblem, structures: Structures, most_kinds: int) -> None:
        self.problem, self.structures = problem, structures
        s, ways = structures, structures.ways
        sizes = np.array([pool.n_devices for pool in problem.pools], dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            most = np.floor(np.where(s.devices > 0, sizes / s.devices, np.inf).min(axis=1))
        multiples = np.array([w.tables[0].pipelines_multiple for w in ways])
        multiple = np.where(s.counts > 0, multiples[s.parts], 1).max(axis=1)
        most = (most // multiple * multiple).astype(np.int64)
        self.multiple = multiple
        """By structure: pipelines of a kind are a multiple of this."""
        self.ranges = _ranges(int(most.max(initial=1)))
        each = []
        for k, (a, b) in enumerate(self.ranges):
            last = np.minimum(b // multiple * multiple, most)
            rows = np.flatnonzero(last >= a)
            each.append((rows, np.full(len(rows), k), last[rows]))
        self.structure = np.concatenate([x[0] for x in each])
        self.range = np.concatenate([x[1] for x in each])
        self.base = np.arange(len(self.structure))
        """Number of the row among the columns of all families."""
        self.last = np.concatenate([x[2] for x in each]).astype(np.float64)
        starts = np.array([a for a, _ in self.ranges])
        steps = multiple[self.structure]
        self.first = (-(-starts[self.range] // steps) * steps).astype(np.float64)
        self.kinds = 1.0 / self.last
        """Of the kinds of a plan, what one pipeline takes at least."""
        self.sizes = np.append(sizes, float(most_kinds))
        self.mbs, self.pp = s.mbs[self.structure], s.pp[self.structure].astype(np.float64)
        self.slowest_s = s.slowest_s[self.structure]
        self.family = Family(2)
        """Of plans of several kinds: their number is that or more."""
        self._tails_s = least_tail_s(
            problem, ways, self.ranges, int(s.pp.max()), max(2, most_kinds)
        )
        self.alone_s = problem.fixed_s + self._tail_s(1, self.structure, self.range)
        """What a step takes besides the pipeline, with one kind."""
        self.outside_s = problem.fixed_s + self._tail_s(2, self.structure, self.range)
        """The same with several."""
        hop = _least_hop_s(problem, s, self.first.astype(np.int64), self.structure)
        self.hop_s = 2.0 * (self.pp - 1.0) / self.pp * hop
        counts = sorted({*np.unique(s.counts).tolist()} - {0})
        capacity = Capacity(problem, ways, self.ranges, int(s.pp.max()))
        self._cuts = CutBounds(problem, ways, self.ranges, capacity, counts, max(2, most_kinds))
        self._points_alone, self._points = KeptPoints(), KeptPoints()
        self.cut_alone, self.cut = (np.full(len(self.structure), -1) for _ in range(2))
        """Of rows whose cuts are known, with one kind and with several: their place."""
        self.known_s, self.known_micro = (np.zeros(len(self.structure)) for _ in range(2))
        """Of rows whose cuts were looked at: for which step, and the most micro-batches there."""
        self.place = np.full(len(self.structure), -1)
        """Of rows whose slowest stage is known exactly: their place among those."""
        self._exact = np.zeros((0, len(FLIGHTS) + 1))
        self._is_exact: list[set[int]] = []
        self._pruned = {x: getattr(self, x)[:0] for x in _BY_ROW}
        """Rows that were left out, by name."""

    def _tail_s(self, n_kinds: int, structure: Ints, range_: Ints) -> Floats:
        """Return `least_tail_s` of rows: that of the part where it is least."""
        s, pp = self.structures, self.structures.pp[structure]
        tails = self._tails_s[n_kinds - 1]
        result = np.full(len(structure), np.inf)
        for j in range(s.parts.shape[1]):
            own = s.parts[structure, j]
            result = np.minimum(result, np.where(own >= 0, tails[own, pp, range_], np.inf))
        if n_kinds > 1 and self.family.crossing_s and not self.family.spanned:
            # Some part holds as much as the mean, all of whose stages wait for its exchange.
            n_parts = np.maximum(1, (s.counts[structure] > 0).sum(axis=1))
            result = np.maximum(result, self.family.exchange_s[-1] / n_parts)
        return result

    def of_family(self, family: Family) -> "Columns":
        """Return the columns of plans of a family.

        Slowest stages that are known hold for any, and are shared; cuts are to be looked at anew.
        """
        other = copy(self)
        other.family = family
        other.sizes = np.append(self.sizes[:-1], float(family.n_kinds))
        other._points = KeptPoints()
        other._is_exact = [set(x) for x in self._is_exact]
        other._pruned = {}
        is_own = family.holds(self.structures.devices)
        for name in _BY_ROW:
            kept, pruned = getattr(self, name), self._pruned[name]
            setattr(other, name, kept[is_own[self.structure]])
            other._pruned[name] = pruned[is_own[self._pruned["structure"]]]
        for values in (vars(other), other._pruned):
            n = len(values["structure"])
            tail_s = other._tail_s(family.n_kinds, values["structure"], values["range"])
            values["outside_s"] = self.problem.fixed_s + tail_s
            values["cut"] = np.full(n, -1)
            values["known_s"], values["known_micro"] = np.zeros(n), np.zeros(n)
        return other

    def rows_of(self, base: Ints) -> NDArray[np.intp]:
        """Return the rows with some numbers among all columns."""
        return np.flatnonzero(np.isin(self.base, base))

    def prune(self, time_s: float) -> None:
        """Leave out what gets nothing done in a step, nor in any shorter one.

        `without` puts it back: without a pool the best step may be longer.
        """
        does = self.micro(time_s) > 0
        for name in _BY_ROW:
            every = getattr(self, name)
            self._pruned[name] = np.concatenate([self._pruned[name], every[~does]])
            setattr(self, name, every[does])

    def without(self, pool: int, problem: MixedProblem) -> "Columns":
        """Return the columns that do not use a pool, of the problem without it.

        What is known of cuts holds, and is shared: fewer nodes slow nobody down more.
        """
        every = {x: np.concatenate([getattr(self, x), self._pruned[x]]) for x in _BY_ROW}
        rows = np.flatnonzero(self.structures.devices[every["structure"], pool] == 0)
        other = copy(self)
        other.problem = problem
        for name in _BY_ROW:
            setattr(other, name, every[name][rows])
        other._pruned = {x: every[x][:0] for x in _BY_ROW}
        other.known_s = np.zeros(len(rows))
        other.sizes = self.sizes.copy()
        other.sizes[pool] = 0.0
        other._is_exact = [set(x) for x in self._is_exact]
        return other

    def __len__(self) -> int:
        return len(self.structure)

    def worth(self, prices: Floats, rows: NDArray[np.intp] | slice = slice(None)) -> Floats:
        """Return what the devices of a pipeline are worth at prices, and its part of a kind."""
        each = self.structures.devices @ prices[:-1]
        return np.asarray(each[self.structure[rows]] + prices[-1] * self.kinds[rows])

    def devices(self, rows: NDArray[np.intp]) -> Floats:
        """Return the devices of each pool and the part of a kind, `(n_rows, n_pools + 1)`."""
        own = self.structures.devices[self.structure[rows]]
        return np.concatenate([own, self.kinds[rows, None]], axis=1)

    def _micro(self, room_s: Floats, slowest_s: Floats, rows: NDArray[np.intp] | slice) -> Floats:
        """Return an upper bound of the micro-batches within some time, see `most_micro`.

        (m - 1) (B + h) + W(B) <= room for some B of `slowest_s` at least.
        """
        s, own = self.structures, self.structure[rows]
        possible = np.isfinite(slowest_s)
        least, hop_s = np.where(possible, slowest_s, 1.0), self.hop_s[rows]
        total, slow, moved = s.total_s[own], s.slow_total_s[own], s.moved[own]
        with np.errstate(divide="ignore", invalid="ignore"):
            later = np.maximum(least, np.where(moved > 0, (slow - total) / moved, 0.0))
        near = (room_s - np.maximum(total, slow - moved * least)) / (least + hop_s)
        far = (room_s - total) / (later + hop_s)
        n = np.floor(np.maximum(near, far) + ROUNDING) + 1.0
        return np.where(possible, np.maximum(0.0, n), 0.0)

    def _room_s(self, time_s: float, rows: NDArray[np.intp] | slice) -> Floats:
        room_s = (time_s - self.outside_s[rows]) / self.problem.straggler_factor
        return np.asarray(room_s - self.hop_s[rows] * (self.pp[rows] - 1.0))

    def micro(self, time_s: float, rows: NDArray[np.intp] | slice = slice(None)) -> Floats:
        """Return the most micro-batches that a pipeline gets done in a step."""
        n = self._micro(self._room_s(time_s, rows), self.slowest_s[rows], rows)
        batch = self.problem.global_batch
        most = np.ceil(batch / (self.mbs[rows] * self.first[rows]))
        return np.asarray(np.minimum(n, most))

    def most_done(self, time_s: float) -> Floats:
        """Return an upper bound of `done` of all rows, without a look at their cuts.

        Rows that were looked at for a step as long or longer get no more done than there.
        """
        n = self.micro(time_s)
        n = np.where(self.known_s >= time_s, np.minimum(n, self.known_micro), n)
        return np.asarray(n * self.mbs)

    def done(self, time_s: float, rows: NDArray[np.intp]) -> Floats:
        """Return the most sequences that a pipeline of each row gets done in a step."""
        n = self.micro(time_s, rows)
        n = np.where(self.known_s[rows] >= time_s, np.minimum(n, self.known_micro[rows]), n)
        mine = np.flatnonzero((self.cut[rows] >= 0) & (n > 0))
        if len(mine):
            n[mine] = np.minimum(n[mine], self._cut_micro(time_s, rows[mine]))
        return np.asarray(n * self.mbs[rows])

    def look(self, time_s: float, rows: NDArray[np.intp], worth: Floats) -> None:
        """Look at the cuts of some rows, for a step and somewhat longer ones.

        Those of rows are kept that get more done than they are worth, `(n_rows,)` sequences.
        """
        later_s = time_s * (1.0 + AHEAD)
        worth = worth[self.cut[rows] < 0]
        rows = rows[self.cut[rows] < 0]
        is_two = self.structures.counts[self.structure[rows], 2:].sum(axis=1) == 0
        rows, worth = rows[is_two], worth[is_two]
        for i in range(0, len(rows), BLOCK):
            some = rows[i : i + BLOCK]
            points = self._cuts.of(self._cut_rows(some), self.family)
            n = np.minimum(self.micro(later_s, some), self._points_micro(later_s, some, points))
            self.known_s[some], self.known_micro[some] = later_s, n
            self.slowest_s[some] = np.maximum(self.slowest_s[some], points.few[0].min(axis=1))
            near = np.flatnonzero(n * self.mbs[some] > worth[i : i + BLOCK])
            self._look_at_ends(later_s, some[near], worth[i : i + BLOCK][near], points.some(near))

    def _look_at_ends(
        self, later_s: float, rows: NDArray[np.intp], worth: Floats, points: Points
    ) -> None:
        """Look at cuts with the ends of the model; keep those of rows that get more done."""
        alone = np.flatnonzero(self.pp[rows] == 1)
        if len(alone):
            self.cut[rows[alone]] = self._points.add(points.some(alone).efficient())
        rest = np.flatnonzero(self.pp[rows] > 1)
        for i in range(0, len(rest), ENDS_BLOCK):
            own = rest[i : i + ENDS_BLOCK]
            some = rows[own]
            exact = self._cuts.with_ends(self._cut_rows(some), self.family)
            n = np.minimum(self.known_micro[some], self._points_micro(later_s, some, exact))
            self.known_micro[some] = n
            near = np.flatnonzero(n * self.mbs[some] > worth[own])
            self.cut[some[near]] = self._points.add(exact.some(near).efficient())

    def _cut_rows(self, rows: NDArray[np.intp]) -> Rows:
        s, own = self.structures, self.structure[rows]
        first, n_first = s.parts[own, 0], s.counts[own, 0]
        both = s.parts.shape[1] > 1
        last = s.parts[own, 1] if both else first
        n_last = s.counts[own, 1] if both else np.zeros_like(n_first)
        return Rows(first, n_first, last, n_last, self.range[rows])

    def _cut_micro(self, time_s: float, rows: NDArray[np.intp]) -> Floats:
        """Return the most micro-batches of rows whose cuts are known."""
        points = self._points.some(self.cut[rows])
        best = self._points_micro(time_s, rows, points)
        mine = np.flatnonzero(self.place[rows] >= 0)
        if len(mine):
            known, own = self._exact[self.place[rows[mine]]], rows[mine]
            room = self._cut_room_s(time_s, own), self.hop_s[own]
            best[mine] = _by_class(points.some(mine), known, room, self.pp[own])
        return best

    def _points_micro(self, time_s: float, rows: NDArray[np.intp], points: Points) -> Floats:
        """Return the most micro-batches of any cut."""
        room_s, hop_s = self._cut_room_s(time_s, rows), self.hop_s[rows]
        few, many = (_most_micro(x, room_s, hop_s, 0.0) for x in (points.few, points.many))
        return np.where(many >= points.later, many, np.minimum(few, points.later - 1.0))

    def _cut_room_s(self, time_s: float, rows: NDArray[np.intp]) -> Floats:
        room_s = (time_s - self.problem.fixed_s) / self.problem.straggler_factor
        return np.asarray(room_s - self.hop_s[rows] * (self.pp[rows] - 1.0))

    def look_alone(self, rows: NDArray[np.intp]) -> int:
        """Look at the cuts of rows that do the whole batch; return how many were not known."""
        is_two = self.structures.counts[self.structure[rows], 2:].sum(axis=1) == 0
        rows = rows[(self.cut_alone[rows] < 0) & is_two]
        for i in range(0, len(rows), BLOCK):
            some = rows[i : i + BLOCK]
            points = self._cuts.of(self._cut_rows(some), ALONE).efficient()
            self.cut_alone[some] = self._points_alone.add(points)
        return len(rows)

    def whole_batch_s(self, rows: NDArray[np.intp] | None = None) -> Floats:
        """Return the least step of plans of one kind, which does the whole batch."""
        some = np.arange(len(self)) if rows is None else rows
        n = self._alone_micro(some)
        s, own, slowest_s = self.structures, self.structure[some], self.slowest_s[some]
        total, slow, moved = s.total_s[own], s.slow_total_s[own], s.moved[own]
        with np.errstate(divide="ignore", invalid="ignore"):
            later = np.maximum(slowest_s, np.where(moved > 0, (slow - total) / moved, 0.0))
            near = (n - 1.0) * slowest_s + np.maximum(total, slow - moved * slowest_s)
            far = (n - 1.0) * later + total
        messages_s = self.hop_s[some] * (self.pp[some] - 1.0 + n - 1.0)
        pipeline_s = np.where(np.isfinite(slowest_s), np.minimum(near, far), np.inf) + messages_s
        least_s = self.alone_s[some] + self.problem.straggler_factor * pipeline_s
        mine = np.flatnonzero(self.cut_alone[some] >= 0)
        if len(mine):
            points = self._points_alone.some(self.cut_alone[some[mine]])
            slowest, other = points.with_micro(n[mine])
            exact = np.flatnonzero(self.place[some[mine]] >= 0)
            floor = np.zeros(len(mine))
            for i in exact.tolist():
                row = int(some[mine[i]])
                floor[i] = self._exact[self.place[row], self._class(row, int(n[mine[i]]))]
            with np.errstate(invalid="ignore"):  # 0 times infinity where there is no cut
                cut_s = (n[mine, None] - 1.0) * np.maximum(slowest, floor[:, None]) + other
            cut_s = np.where(np.isfinite(slowest), cut_s, np.inf).min(axis=1) + messages_s[mine]
            cut_s = self.problem.fixed_s + self.problem.straggler_factor * cut_s
            least_s[mine] = np.maximum(least_s[mine], cut_s)
        return np.asarray(least_s)

    def _alone_micro(self, rows: NDArray[np.intp]) -> Floats:
        batch = self.problem.global_batch
        return np.asarray(np.ceil(batch / (self.mbs[rows] * self.last[rows])))

    def refine_alone(self, row: int) -> bool:
        """Make the slowest stage exact where a row does the whole batch; tell if it was not."""
        return self._refine(row, int(self._alone_micro(np.array([row]))[0]))

    def _class(self, row: int, n_micro: int) -> int:
        """Return the class of `FLIGHTS` of some micro-batches, or the last: in all stages."""
        is_few = n_micro < int(self.pp[row])
        return sum(n_micro >= x for x in FLIGHTS) - 1 if is_few else len(FLIGHTS)

    def refine(self, row: int, time_s: float) -> bool:
        """Make the slowest stage exact for what a row gets done in a step; tell if it was not."""
        n = int(self.done(time_s, np.array([row]))[0] / self.mbs[row])
        return n > 0 and self._refine(row, n)

    def _refine(self, row: int, n_micro: int) -> bool:
        k, pp = self._class(row, n_micro), int(self.pp[row])
        if self.place[row] < 0:
            self.place[row] = len(self._exact)
            self._exact = np.vstack([self._exact, np.full(len(FLIGHTS) + 1, self.slowest_s[row])])
            self._is_exact.append(set())
        known, classes = self._exact[self.place[row]], self._is_exact[self.place[row]]
        if k in classes:
            return False
        classes.add(k)
        flight = FLIGHTS[k] if k < len(FLIGHTS) else pp
        pipeline = self.structures.pipeline(int(self.structure[row]))
        exact = least_slowest_s(
            self.problem, pipeline, int(self.last[row]), flight, float(known[k])
        )
        known[k:] = np.maximum(known[k:], exact)
        return True
