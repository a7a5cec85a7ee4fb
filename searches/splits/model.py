"""The layers of one shape split over its virtual stages, of least closed-form time: CP-SAT.

With the layers n_j of each virtual stage j and those of another kind e_j, of which the first
q_j = min(n_j, k) are recomputed (g_j of them of the other kind), per micro-batch and rank r

    t_r = sum over its stages of  layer n_j + other e_j + again q_j + again_other g_j  (+ ends)
    minimise  (m v - 1) max_r t_r + sum_r t_r              (v times `pipeline.compute_s`)
    with      the same sum in bytes (`costmodels.schedule.rank_costs`) <= usable memory, for every
    rank and, interleaved, every moment that may be its peak
              n_j >= 1, >= 0 for the first and the last stage,  sum_j n_j = layers,  k among the
              values allowed
              interleaved: n_j within `SPREAD` of layers / (p v), rounded down and up, besides
              that the first and the last stage may hold fewer

An interleaved end without layers counts here without the message that it keeps; plans that come
out are priced with what they hold.

over all n_j and k. Costs are whole numbers: times in 1/`RESOLUTION` of a mean rank's, bytes
rounded up. Every k has a lower bound (`_SplitProblem.least_slowest`); splits that are simply built
often meet it, and the solver is asked for the values of k that are still open.

The closed form does not see that a slow rank costs less in front, nor that chunks of uneven length
which run at the same time wait for one another. So an answer holds all splits found within `NEAR`
of the optimum, some built for the recurrence (`arrangements`), for the recurrence to choose from.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodels.schedule.rank_costs import RankCosts
from searches import cp_sat

Ints = NDArray[np.int64]
Cost = TypeVar("Cost", int, float)

RESOLUTION = 1 << 20
"""Parts that a mean rank's time is counted in."""
TOLERANCE = 1e-4
"""Splits this close to a lower bound count as optimal."""
SPREAD = 1
"""Layers by which interleaved stages differ from the mean: uneven ones wait for one another."""
NEAR = 0.02
"""How far above the optimum of the closed form splits are handed to the recurrence."""
EMPTY_ENDS = 2
"""Stages that may be left without layers: the first, with the embedding, and the last."""
WORK = 0.02
"""Limit of a solve in CP-SAT's deterministic seconds, which are no wall time."""
MAX_PASSED = 4
"""Splits of one shape that the solver hands to the recurrence, the best ones."""
LIMITS_TRIED = 12
"""Limits on the slowest rank's time that filling tries from above."""


@dataclass(frozen=True, slots=True)
class Split:
    """One way to split the layers of a shape."""

    counts: tuple[int, ...]
    """Layers of each virtual stage in model order."""
    recompute_layers: int


@dataclass(frozen=True, slots=True)
class SplitAnswer:
    """What was found for one shape."""

    best: Split | None
    """Of least closed form; None if nothing fits, or nothing was found in time."""
    others: tuple[Split, ...]
    """All within `NEAR` of it, itself included."""
    proven: bool
    """Whether `best` is optimal to `TOLERANCE`, or nothing fits at all."""
    gap_frac: float
    """(best - bound) / best where not proven, else 0; 1 where nothing was found."""


@dataclass(frozen=True)
class _SplitProblem:
    """The costs of a shape's ranks, times as whole numbers."""

    costs: RankCosts
    usable_bytes: float

    @property
    def room_bytes(self) -> float:
        """The usable memory as bounds take it: not to be missed by rounding."""
        return self.usable_bytes * (1.0 + 1e-9)

    @cached_property
    def unit_s(self) -> float:
        """Seconds of one."""
        c = self.costs
        work = c.n_layers * c.layer_s
        work += sum(before[-1] * c.each_s[1 + i] for i, before in enumerate(c.others_before))
        return (work + c.embedding_s + c.head_s) / c.pp / RESOLUTION

    @cached_property
    def each(self) -> tuple[int, ...]:
        """Times in the order of `RankCosts.held`."""
        return tuple(round(x / self.unit_s) for x in self.costs.each_s)

    @cached_property
    def least_each(self) -> tuple[int, int, int, int]:
        """Time of a layer, and what another kind, recomputation and both add, for bounds."""
        return self._at_least(self.each)

    def _at_least(self, each: Sequence[Cost]) -> tuple[Cost, Cost, Cost, Cost]:
        """Return figures of layers of at most two kinds; a bound from below where there are more.

        All layers then cost what the cheapest kind does.
        """
        n_others = len(self.costs.others_before)
        layer, *others = each[: 1 + n_others]
        recompute, *others_again = each[1 + n_others :]
        none = layer - layer
        if n_others == 1:
            return layer, others[0], recompute, others_again[0]
        return (
            layer + min(none, none, *others),
            none,
            recompute + min(none, none, *others_again),
            none,
        )

    @cached_property
    def before(self) -> tuple[int, ...]:
        """Layers of the one other kind among the first 0, 1, ...; none where there are more."""
        before = self.costs.others_before
        return before[0] if len(before) == 1 else (0,) * (self.costs.n_layers + 1)

    @cached_property
    def ends(self) -> Ints:
        """Time of embedding and head by rank."""
        times = np.zeros(self.costs.pp, dtype=np.int64)
        times[0] += round(self.costs.embedding_s / self.unit_s)
        times[-1] += round(self.costs.head_s / self.unit_s)
        return times

    @property
    def passes(self) -> int:
        """Factor of the slowest rank's time beside the sum of all."""
        return self.costs.n_micro * self.costs.vpp - 1

    @cached_property
    def stage_bounds(self) -> list[tuple[int, int]]:
        """Fewest and most layers of each virtual stage."""
        c = self.costs
        n_stages = c.pp * c.vpp
        if n_stages == 1:
            return [(c.n_layers, c.n_layers)]
        inside = n_stages - EMPTY_ENDS
        if c.vpp == 1:
            least, maximum = 1, c.n_layers - max(0, inside - 1)
            end = c.n_layers - inside
        else:
            least = max(1, c.n_layers // n_stages - SPREAD)
            maximum = end = -(-c.n_layers // n_stages) + SPREAD
        return [(0, end), *[(least, maximum)] * inside, (0, end)]

    @cached_property
    def work(self) -> int:
        """Time of all ranks without recomputation."""
        layer, *others = self.each[: 1 + len(self.costs.others_before)]
        pairs = zip(others, self.costs.others_before, strict=True)
        more = sum(other * before[-1] for other, before in pairs)
        return layer * self.costs.n_layers + more + int(self.ends.sum())

    @property
    def mean(self) -> int:
        """Mean time of the ranks without recomputation, rounded up."""
        return -(-self.work // self.costs.pp)

    def rank_times(self, split: Split) -> list[int]:
        """Return the time of each rank."""
        contents = self.costs.held(split.counts, split.recompute_layers)
        stages = np.array(self.each) @ contents
        times = stages.reshape(self.costs.vpp, self.costs.pp).sum(axis=0) + self.ends
        results: list[int] = times.tolist()
        return results

    def objective(self, split: Split) -> int:
        """Return what is minimised."""
        times = self.rank_times(split)
        return self.passes * max(times) + sum(times)

    def fits(self, split: Split) -> bool:
        """Tell whether every stage is within its bounds and every rank fits."""
        pairs = zip(self.stage_bounds, split.counts, strict=True)
        if not all(least <= n <= largest for (least, largest), n in pairs):
            return False
        peaks = self.costs.rank_bytes(split.counts, split.recompute_layers)
        return bool(peaks.max() <= self.usable_bytes)

    def least_objective(self, k: int, slowest: int, limit: int | None = None) -> int:
        """Return a lower bound of the objective when the slowest rank takes `slowest` or more.

        `limit` is a time that no rank of a better split exceeds.
        """
        costs, (_, _, recompute, more) = self.costs, self.least_each
        recomputed = sum(self._all_recomputed(k))
        if limit is not None and k and costs.vpp == 1:
            caps = self._layers_in_time(k, limit)
            fewest = (few for few, _ in self.stage_bounds)
            spared = costs.n_layers - sum(caps)
            least = (max(spared + cap, few) for cap, few in zip(caps, fewest, strict=True))
            recomputed = sum(min(n, k) for n in least)
        n_others = self.before[-1]
        others = max(0, recomputed - (costs.n_layers - n_others)) if more >= 0 else recomputed
        others = min(others, n_others)
        return self.passes * slowest + self.work + recompute * recomputed + more * others

    def most_slowest(self, objective: int) -> int:
        """Return a time that no rank of a split with a lower objective exceeds."""
        return (objective - self.work) // max(1, self.passes)

    def distinct(self, recompute_layers: Sequence[int], objective: int | None) -> list[int]:
        """Return the values of k that make a difference to splits below an objective."""
        longest = max(largest for _, largest in self.stage_bounds)
        if objective is not None and self.costs.vpp == 1:
            longest = min(longest, max(self._layers_in_time(0, self.most_slowest(objective))))
        values = sorted(set(recompute_layers))
        last = next((i for i, k in enumerate(values) if k >= longest), len(values))
        return values[: last + 1]

    def _all_recomputed(self, k: int) -> list[int]:
        """Return the fewest layers that each rank recomputes."""
        if k not in self._fewest:
            least, p = [min(k, few) for few, _ in self.stage_bounds], self.costs.pp
            self._fewest[k] = [sum(least[rank::p]) for rank in range(p)]
        return self._fewest[k]

    @cached_property
    def _fewest_besides(self) -> list[int]:
        """Chunks of each rank that hold a layer where another one holds nearly all."""
        p = self.costs.pp
        few = [min(1, least) for least, _ in self.stage_bounds]
        return [sum(few[rank::p]) - max(few[rank::p]) for rank in range(p)]

    @cached_property
    def _fewest(self) -> dict[int, list[int]]:
        return {}

    @cached_property
    def _ends(self) -> list[int]:
        results: list[int] = self.ends.tolist()
        return results

    @cached_property
    def _dense(self) -> list[int]:
        """Most layers of the first kind of each rank: they come first, one in each stage before.

        The first stage may be empty.
        """
        before, p = self.before, self.costs.pp
        first = before.index(1) - 1 if before[-1] else self.costs.n_layers
        if all(count == max(0, i - first) for i, count in enumerate(before)):
            return [max(0, first - max(0, rank - 1)) for rank in range(p)]
        return [self.costs.n_layers] * p

    def _layers_in_time(self, k: int, limit: int) -> list[int]:
        """Return an upper bound of each rank's layers: its chunks recompute some at least."""
        by_row: dict[tuple[int, ...], int] = {}  # most ranks are alike
        results = []
        for key in self._time_rows(k):
            if key not in by_row:
                by_row[key] = self._most_in_time(key, limit)
            results.append(by_row[key])
        return results

    def _time_rows(self, k: int) -> list[tuple[int, ...]]:
        """Return what the most layers of each rank in some time depend on.

        The time of its ends, its dense layers, what a recomputed one adds, how many there are.
        """
        _, expert, recompute, more = self.least_each
        fewest, others = self._all_recomputed(k), self._fewest_besides
        results: list[tuple[int, ...]] = []
        for end, dense, few, besides in zip(self._ends, self._dense, fewest, others, strict=True):
            # Of many layers over v chunks most are left when one chunk holds nearly all of them.
            recomputed = max(few, besides + k) if k else 0
            each = recompute + (min(0, more) if dense else more)
            # Without experts it makes no difference which layers are dense.
            results.append((end, dense if expert > 0 else 0, each, recomputed))
        return results

    @cached_property
    def _fewest_layers(self) -> list[int]:
        """Fewest layers of each rank."""
        least, p = [few for few, _ in self.stage_bounds], self.costs.pp
        return [sum(least[rank::p]) for rank in range(p)]

    def _ranks_alike(self, k: int) -> list[tuple[tuple[int, ...], list[int]]]:
        """Return the ranks by what their most layers in some time depend on, the most first."""
        if k not in self._alike:
            alike: dict[tuple[int, ...], list[int]] = {}
            for rank, key in enumerate(self._time_rows(k)):
                alike.setdefault(key, []).append(rank)
            self._alike[k] = sorted(alike.items(), key=lambda each: -len(each[1]))
        return self._alike[k]

    @cached_property
    def _alike(self) -> dict[int, list[tuple[tuple[int, ...], list[int]]]]:
        return {}

    def _most_in_time(self, row: tuple[int, ...], limit: int) -> int:
        end, dense, recompute, recomputed = row
        layer, expert = self.least_each[:2]
        return _most_layers(limit - end, layer, expert, dense, recompute, recomputed)

    def _layers_in_memory(self, k: int) -> list[int]:
        """Return an upper bound of each rank's layers: as many as may be are recomputed."""
        c = self.costs
        room = self.room_bytes - (c.fixed_recompute_bytes if k else c.fixed_bytes)
        results = []
        empty = [size <= self.room_bytes for size in self.empty_bytes]
        for rank, (left, dense) in enumerate(zip(room.tolist(), self._dense, strict=True)):
            spared, (layer, expert, recompute, more) = self._least_of_ranks[rank]
            recomputed = recompute + (min(0.0, more) if dense else more) if k else 0.0
            room_left = left - spared
            largest = _most_layers(room_left, layer, expert, dense, recomputed, c.vpp * k)
            results.append(max(0, largest) if empty[rank] else largest)
        return results

    @cached_property
    def empty_bytes(self) -> list[float]:
        """What each rank takes without any layer; infinite where it holds some."""
        c, inside = self.costs, [math.inf] * (self.costs.pp - EMPTY_ENDS)
        if c.vpp > 1 or c.pp == 1:
            return [math.inf] * c.pp
        sizes: list[float] = (c.fixed_bytes if c.empty_bytes is None else c.empty_bytes).tolist()
        return [sizes[0], *inside, sizes[-1]]

    @cached_property
    def _least_of_ranks(self) -> list[tuple[float, tuple[float, float, float, float]]]:
        """Return what each rank holds at least (`_least_bytes`), and figures of a layer of it."""
        found = [self._least_bytes(rank) for rank in range(self.costs.pp)]
        return [(spared, self._at_least(each)) for spared, each in found]

    def _least_bytes(self, rank: int) -> tuple[float, list[float]]:
        """Return what a rank holds at least whatever its layers, and of each of `RankCosts.held`.

        Interleaved: at the moment at which its least chunks would be the peak, every layer beyond
        them in the chunk of which it holds fewest, recomputed ones where it holds most.
        """
        c = self.costs
        each: list[float] = c.each_bytes[:, rank].tolist()
        if not c.beyond_mean:
            return 0.0, each
        least = np.array([few for few, _ in self.stage_bounds[rank :: c.pp]])
        more = c.beyond_mean[rank][(c.beyond_mean[rank] @ least).argmax()]
        in_flight, lowest, highest = c.in_flight_bytes, float(more.min()), float(more.max())
        bounds = [min(x * lowest, x * highest) for x in in_flight.tolist()]
        spared = max(0.0, float(in_flight[0])) * float(least @ (more - lowest))
        return spared, [x + y for x, y in zip(each, bounds, strict=True)]

    def least_slowest(self, k: int, *, memory: bool = True) -> int | None:
        """Return a lower bound of the slowest rank's time, None if no split can fit.

        It is the mean at least, and so long that the ranks together hold all layers, in whole
        numbers, within time and memory.
        """
        costs, layer, expert = self.costs, *self.least_each[:2]
        n_layers = costs.n_layers
        room = self._layers_in_memory(k) if memory else [n_layers] * costs.pp
        if any(n < few for n, few in zip(room, self._fewest_layers, strict=True)):
            return None
        if sum(room) < n_layers:
            return None
        groups = []
        for key, ranks in self._ranks_alike(k):
            rooms = sorted(room[rank] for rank in ranks)
            groups.append((key, rooms, [0, *accumulate(rooms)]))

        def holds_all(limit: int) -> bool:
            total = 0
            for (end, dense, recompute, recomputed), rooms, before in groups:
                largest = _most_layers(limit - end, layer, expert, dense, recompute, recomputed)
                if largest <= 0:
                    continue
                fuller = bisect_right(rooms, largest)
                total += before[fuller] + largest * (len(rooms) - fuller)
                if total >= n_layers:
                    return True
            return False

        low = max(self.mean, -(-self.least_objective(k, 0) // costs.pp))
        high = 2 * low
        while not holds_all(high):
            high *= 2
        while low * (1.0 + TOLERANCE / 2) < high:
            middle = (low + high) // 2
            low, high = (low, middle) if holds_all(middle) else (middle + 1, high)
        return low


def _most_layers(
    room: float, layer: float, expert: float, dense: int, recompute: float, recomputed: int
) -> int:
    """Return the most layers in `room`, the first `recomputed` costing `recompute` more.

    All but `dense` of them cost `expert` more; as many may where that is less.
    """
    size = layer + expert
    spared = max(0.0, expert) * dense
    maximum = int((room + spared - recompute * recomputed) // size)
    if maximum < recomputed:
        maximum = min(recomputed, int((room + spared) // (size + recompute)))
    if maximum >= dense or not spared:
        return maximum
    maximum = int((room - recompute * recomputed) // layer)
    return maximum if maximum >= recomputed else min(recomputed, int(room // (layer + recompute)))


def best_splits(
    costs: RankCosts,
    usable_bytes: float,
    recompute_layers: Sequence[int] = (0,),
    candidates: Iterable[Split] = (),
) -> SplitAnswer:
    """Return the split of least closed-form time that fits, and others for the recurrence.

    `recompute_layers` are the values that k may take; `candidates` are splits to start from.
    """
    if costs.n_layers < costs.pp * costs.vpp - EMPTY_ENDS:
        return SplitAnswer(None, (), True, 0.0)
    total = _SplitProblem(costs, usable_bytes)
    start = [x for x in candidates if x.recompute_layers in recompute_layers and total.fits(x)]
    for k in sorted({x.recompute_layers for x in start}):
        start += [x for x in arrangements(total, k, total.mean)[0] if total.fits(x)]
    entries = {x: total.objective(x) for x in start}
    allowed = total.distinct(recompute_layers, min(entries.values(), default=None))
    bounds: dict[int, int] = {}
    for k in allowed:
        enough = min(entries.values(), default=math.inf) * (1.0 - TOLERANCE)
        in_time = total.least_slowest(k, memory=False)
        if in_time is None or total.least_objective(k, in_time) >= enough:
            break  # a larger k takes longer still
        slowest = total.least_slowest(k)
        if slowest is None or total.least_objective(k, slowest) >= enough:
            continue
        built, slowest = arrangements(total, k, slowest)
        entries |= {x: total.objective(x) for x in built if total.fits(x)}
        least = min(entries.values(), default=None)
        maximum = None if least is None else total.most_slowest(least)
        bounds[k] = total.least_objective(k, slowest, maximum)
    enough = min(entries.values(), default=math.inf) * (1.0 - TOLERANCE)
    left = [k for k, bound in bounds.items() if bound < enough]
    proven, gap = True, 0.0
    if left:
        first = min(entries, key=entries.__getitem__, default=None)
        bound = min(bounds[k] for k in left)
        passed, proven, better_bound = _solve(total, left, first, bound)
        entries |= {split: total.objective(split) for split in passed}
        if not proven:
            gap = 1.0 - max(bound, better_bound) / min(entries.values()) if entries else 1.0
    if not entries:
        return SplitAnswer(None, (), proven, gap)
    best = min(entries, key=entries.__getitem__)
    near = tuple(x for x, value in entries.items() if value <= entries[best] * (1.0 + NEAR))
    return SplitAnswer(best, near, proven, max(0.0, gap))


def unlimited_pipeline_s(costs: RankCosts, recompute_layers: Sequence[int]) -> float:
    """Return what `least_pipeline_s` is at least, in a third of the time, seconds.

    As if memory had no end: nothing runs again but what must. Less what the two may differ by
    because bounds are closed in on to `TOLERANCE` only.
    """
    total, k = _SplitProblem(costs, math.inf), min(recompute_layers, default=0)
    slowest = total.least_slowest(k, memory=False)
    if slowest is None:
        return math.inf
    least = total.least_objective(k, slowest) / (1.0 + TOLERANCE)
    return least * total.unit_s / costs.vpp


def least_pipeline_s(
    costs: RankCosts, usable_bytes: float, recompute_layers: Sequence[int]
) -> float:
    """Return a lower bound of `RankCosts.pipeline_s` over all splits, inf if none can fit, s."""
    total, least = _SplitProblem(costs, usable_bytes), math.inf
    for k in sorted(recompute_layers):
        slowest = total.least_slowest(k, memory=False)
        if slowest is None or total.least_objective(k, slowest) >= least:
            break
        in_memory = total.least_slowest(k)
        if in_memory is not None:
            least = min(least, total.least_objective(k, in_memory))
    return least * total.unit_s / costs.vpp


def arrangements(problem: _SplitProblem, k: int, slowest: int) -> tuple[list[Split], int]:
    """Return splits that suit the recurrence, whether or not they fit, and a bound.

    One chunk: ranks filled up to the least limit on their time under which they take all layers,
    and no more than fits, from the front and from the back; where that empties an end, once more
    with a layer left for it. Interleaved: chunks of one length over
    all ranks, the longer ones first or last, then the slowest rank, again and again, a layer less.
    `slowest` is a lower bound of the slowest rank's time; the one returned is no worse.
    """
    if problem.costs.vpp > 1:
        both = [_rounds(problem, longer_first) for longer_first in (True, False)]
    else:
        front, slowest = _filled(problem, k, slowest)
        limit = max(problem.rank_times(Split(front, k))) if front else 0
        both = [front, _fill(problem, k, limit, back=True) if front else ()]
        for back, counts in enumerate(both[:]):
            if counts and not counts[0] * counts[-1]:
                both.append(_fill(problem, k, limit, back=bool(back), least_end=1))
    return [Split(x, k) for x in dict.fromkeys(both) if x], slowest


def _rounds(problem: _SplitProblem, longer_first: bool) -> tuple[int, ...]:
    costs = problem.costs
    p, v, n_layers = costs.pp, costs.vpp, costs.n_layers
    total = -(-n_layers // p)
    share, longer = divmod(total, v)
    chunks = [share + (c < longer if longer_first else c >= v - longer) for c in range(v)]
    counts = [size for size in chunks for _ in range(p)]
    # As if all layers were alike: which are of another kind is not settled yet.
    layer = sum(problem.least_each[:2])
    times = [layer * total + end for end in problem.ends.tolist()]
    for _ in range(p * total - n_layers):
        rank = max(range(p), key=lambda r: (times[r], r))
        times[rank] -= layer
        # The first rank gives a layer beside the embedding, the others of their last chunk.
        stages = range(rank, p * v, p) if rank == 0 else range((v - 1) * p + rank, -1, -p)
        least = min(counts[j] - chunks[j // p] for j in stages)
        spare = [j for j in stages if counts[j] > (0 < j < p * v - 1)]
        if not spare:
            return ()
        untouched = [j for j in spare if counts[j] - chunks[j // p] > least]
        counts[(untouched or spare)[0]] -= 1
    return tuple(counts)


def _filled(problem: _SplitProblem, k: int, low: int) -> tuple[tuple[int, ...], int]:
    """Return the layers of each rank filled from the front under the least limit, and a bound.

    Nothing, where no limit lets the ranks take all. With one chunk a rank, no limit below that
    under which filling succeeds is enough for any split: a rank that starts later reaches further,
    as a layer takes longer than what other kinds add to recomputation. `low` is no more than
    needed.
    """
    best = _fill(problem, k, low)
    if best:
        return best, low
    best, high = _fill(problem, k, 4 * low), 4 * low
    if not best:
        return (), low
    high = max(problem.rank_times(Split(best, k)))
    for _ in range(LIMITS_TRIED):
        middle = (low + high) // 2
        counts = _fill(problem, k, middle)
        if counts:
            best, high = counts, max(problem.rank_times(Split(counts, k)))
        else:
            low = middle + 1
    while low < high and (counts := _fill(problem, k, high - 1)):
        best, high = counts, max(problem.rank_times(Split(counts, k)))
    n_others = len(problem.costs.others_before)
    least = min(0, *problem.each[: 1 + n_others]) + problem.each[0]
    recompute = (0, *problem.each[2 + n_others :])
    return best, high if least >= max(recompute) - min(recompute) else low


def _fill(
    problem: _SplitProblem, k: int, limit: int, *, back: bool = False, least_end: int = 0
) -> tuple[int, ...]:
    """Return the layers of each rank when one after the other takes all it can, () if some stay.

    A rank takes no longer than `limit` and leaves a layer for each rank to come, `least_end` for
    the last of them.
    """
    costs, p = problem.costs, problem.costs.pp
    fixed = costs.fixed_recompute_bytes if k else costs.fixed_bytes
    bases, each_bytes = fixed.tolist(), costs.each_bytes.T.tolist()
    ends = problem.ends.tolist()
    counts, left = [0] * p, costs.n_layers
    for i in range(p):
        rank, other = p - 1 - i if back else i, costs.n_layers - left
        size = 0
        while size < left - max(0, p - 2 - i) - least_end * (i < p - 1):
            n = size + 1
            start = left - n if back else other
            contents = []
            for end in (n, min(n, k)):
                contents.append(end)
                contents += [before[start + end] - before[start] for before in costs.others_before]
            time = ends[rank] + sum(map(mul, problem.each, contents))
            size_bytes = bases[rank] + sum(map(mul, each_bytes[rank], contents))
            if time > limit or size_bytes > problem.room_bytes:
                break
            size = n
        if size < (1 if 0 < i < p - 1 else least_end):
            return ()
        if not size and (ends[rank] > limit or problem.empty_bytes[rank] > problem.room_bytes):
            return ()
        counts[rank], left = size, left - size
    return () if left else tuple(counts)


def _solve(
    problem: _SplitProblem, allowed: Sequence[int], start: Split | None, bound: int
) -> tuple[list[Split], bool, float]:
    """Return the best splits that CP-SAT passed, whether it is done, and its bound."""
    cp_model, model = cp_sat.cp_model(), _Model(problem, allowed, start, bound)
    passed: list[Split] = []

    def collect(solution: Any) -> None:
        counts = tuple(solution.value(n) for n in model.counts)
        passed.insert(0, Split(counts, solution.value(model.k)))

    solver = cp_sat.make_solver()
    solver.parameters.max_deterministic_time = WORK
    solver.parameters.relative_gap_limit = TOLERANCE
    solver.parameters.cp_model_presolve = False  # takes longer than it saves on models this small
    status = cp_sat.solve_model(solver, model.model, cp_sat.at_solutions(collect))
    done = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return passed[:MAX_PASSED], done, max(solver.best_objective_bound, float(bound))


class _Model:
    """The CP-SAT model of one shape."""

    def __init__(
        self,
        problem: _SplitProblem,
        allowed: Sequence[int],
        start: Split | None,
        bound: int,
    ) -> None:
        cp_model = cp_sat.cp_model()

        self._problem, self._costs = problem, problem.costs
        self.model = cp_model.CpModel()
        self._n_stages = problem.costs.pp * problem.costs.vpp
        self._none: list[Any] = [0] * self._n_stages
        self._longest = max(largest for _, largest in problem.stage_bounds)
        values = sorted(allowed)
        self.counts = [self.model.new_int_var(*bounds, "") for bounds in problem.stage_bounds]
        self.k = self.model.new_int_var_from_domain(cp_model.Domain.from_values(values), "k")
        self.model.add(sum(self.counts) == problem.costs.n_layers)
        self._held = self._add_held(values)
        self._add_memory(problem.usable_bytes, values)
        self._add_objective(values, start, bound)

    def _add_held(self, values: Sequence[int]) -> list[list[Any]]:
        """Add and return, by virtual stage, what `RankCosts.held` counts, as expressions."""
        model, others = self.model, self._costs.others_before
        recomputed = none = self._none
        if values[-1]:
            recomputed = [model.new_int_var(0, self._longest, "") for _ in self.counts]
            for n, q in zip(self.counts, recomputed, strict=True):
                model.add_min_equality(q, [n, self.k])
        starts = [0, *(sum(self.counts[:j]) for j in range(1, self._n_stages))]
        pairs = [self._add_others(before, starts, recomputed) for before in others]
        contents = [list(self.counts), *(of_kind for of_kind, _ in pairs), recomputed]
        return contents + [of_kind_again if values[-1] else none for _, of_kind_again in pairs]

    def _add_others(
        self, before: Sequence[int], starts: Sequence[Any], recomputed: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Add and return the layers of another kind, and the recomputed ones, by virtual stage."""
        model, none = self.model, self._none
        if not before[-1]:
            return none, none
        dense = before.index(1) - 1
        prefix = all(count == max(0, i - dense) for i, count in enumerate(before))

        def others_before(layer: Any, least: int) -> Any:
            """Return the layers of the kind among the first `layer`, at least `least`."""
            if prefix and least >= dense:
                return layer - dense
            result = model.new_int_var(0, before[-1], "")
            if prefix:
                model.add_max_equality(result, [layer - dense, 0])
            else:
                model.add_element(layer, list(before), result)
            return result

        edges = [0]
        edges += [others_before(starts[j], j - 1) for j in range(1, self._n_stages)]
        edges.append(before[-1])
        of_stage = [edges[j + 1] - edges[j] for j in range(self._n_stages)]
        if recomputed is self._none:
            return of_stage, none
        pairs = list(enumerate(zip(starts, recomputed, strict=True)))
        return of_stage, [
            q if prefix and j > dense else others_before(start + q, max(0, j - 1)) - edges[j]
            for j, (start, q) in pairs
        ]

    def _of_stage(self, stage: int, each: Sequence[int]) -> Any:
        """Return the sum of `each` times what a virtual stage holds."""
        pairs = zip(each, self._held, strict=True)
        return sum(factor * contents[stage] for factor, contents in pairs if factor)

    def _add_memory(self, usable_bytes: float, values: Sequence[int]) -> None:
        costs, model = self._costs, self.model
        recomputes: Any = int(values[-1] > 0)
        if values[0] == 0 and values[-1] > 0:
            recomputes = model.new_bool_var("")
            model.add(self.k >= 1).only_enforce_if(recomputes)
            model.add(self.k == 0).only_enforce_if(~recomputes)
        for rank in range(costs.pp):
            fixed = math.ceil(costs.fixed_bytes[rank])
            more = math.ceil(costs.fixed_recompute_bytes[rank]) - fixed
            stages = range(rank, self._n_stages, costs.pp)
            mean = costs.each_bytes[:, rank]
            moments = costs.beyond_mean[rank] if costs.beyond_mean else np.zeros((1, costs.vpp))
            for beyond in moments.tolist():
                by_chunk = (mean + x * costs.in_flight_bytes for x in beyond)
                each = [[math.ceil(size) for size in sizes.tolist()] for sizes in by_chunk]
                rank_bytes = sum(map(self._of_stage, stages, each))
                fits = model.add(
                    fixed + more * recomputes + rank_bytes <= math.floor(usable_bytes)
                )
                if rank not in (0, costs.pp - 1) or costs.vpp > 1:
                    continue
                has_layers = model.new_bool_var("")
                model.add(self.counts[rank] >= 1).only_enforce_if(has_layers)
                model.add(self.counts[rank] == 0).only_enforce_if(~has_layers)
                fits.only_enforce_if(has_layers)
                if self._problem.empty_bytes[rank] > usable_bytes:
                    model.add(has_layers == 1)

    def _add_objective(self, values: Sequence[int], start: Split | None, bound: int) -> None:
        costs, model, total = self._costs, self.model, self._problem
        times = [self._of_stage(j, total.each) for j in range(self._n_stages)]
        times[0] += int(total.ends[0])
        times[-1] += int(total.ends[-1]) if costs.pp > 1 else 0
        maximum = int(total.ends.sum()) + costs.n_layers * sum(max(0, x) for x in total.each)
        if start is not None:
            maximum = total.most_slowest(total.objective(start))
            if start.recompute_layers in values:
                for n, count in zip(self.counts, start.counts, strict=True):
                    model.add_hint(n, count)
                model.add_hint(self.k, start.recompute_layers)
        slowest = model.new_int_var(total.mean, max(total.mean, maximum), "slowest")
        for rank in range(costs.pp):
            model.add(slowest >= sum(times[rank :: costs.pp]))
        objective = total.passes * slowest + sum(times)
        model.add(objective >= bound)
        model.minimize(objective)
