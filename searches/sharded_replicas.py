"""The best plans of sharded replicas over several pools: a whole enumeration of their family.

For degrees of a replica, pools in use and a number R of replicas on them, the time of a
micro-batch depends on its size and its pool alone. So a step of T is possible where replicas, each
with the largest micro-batch that it ends by T, take the batch between them; the least such T is
one of the few times that there are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.sharded_plans import ReplicaDegrees, ReplicaKind, ShardedPlan
from costmodels.mixed.sharded_prices import (
    Exchange,
    ReplicaTimes,
    ShardedPrice,
    exchange,
    own_sums_s,
    replica_times,
    sharded_price,
    straggle,
)
from costmodels.mixed.sharded_tables import ReplicaKey, ReplicaTable, ShardedPool, ShardedProblem

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

ALL_COUNTS, GROWTH = 48, 1.06
"""All numbers of replicas up to here are looked at, then those that grow by so much, and all."""
MOST_POOLS = 4
"""Most pools of one plan."""
MOST_LEVELS = 4096
"""Most ways in which micro-batches of whole pools are lowered, until one fits the batch."""


@dataclass(frozen=True, slots=True)
class ShardedAnswer:
    """The best plans, the fastest first: the best of all degrees on any pools of a job."""

    plans: tuple[ShardedPlan, ...]
    prices: tuple[ShardedPrice, ...]
    n_plans: int
    """Ways that were looked at: degrees, pools, replicas and micro-batches."""
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    """The least step of some degrees on some pools."""

    step_s: float
    degrees: ReplicaDegrees
    pools: tuple[int, ...]
    n_replicas: int
    n_micro: int


@dataclass(frozen=True)
class _Replicas:
    """Replicas of one pool by micro-batch, each with its fastest recomputation that fits."""

    place: int
    pool: ShardedPool
    most: int
    """Replicas that the pool holds."""
    mbs: Ints
    """1, 2, ..."""
    rows: Ints
    """Of the pool's table, `(n_mbs, n_recomputes)`; -1 where it does not fit."""

    @cached_property
    def taken(self) -> ReplicaTable:
        """The rows one after the other."""
        return self.pool.table.take(self.rows.reshape(-1))

    def times(self, between: Exchange, slower: float) -> tuple[Floats, Ints, float]:
        """Return seconds of a micro-batch by its size, its row, and what happens once a step.

        Never less than of a smaller micro-batch, so that what a time allows is a range of sizes.
        """
        table = self.taken
        times: ReplicaTimes = replica_times(self.pool.problem.stack, table, between, slower)
        each = np.where(self.rows < 0, np.inf, times.each_s.reshape(self.rows.shape))
        best = each.argmin(axis=1)
        lines = np.arange(len(self.rows))
        least = np.maximum.accumulate(each[lines, best])
        return least, self.rows[lines, best], float(times.once_s.max())

    @cached_property
    def most_per_s(self) -> float:
        """Sequences a second of a data-parallel rank at most: with nothing between replicas."""
        nothing = Exchange(0.0, np.zeros(len(self.pool.table.reduce_piece_s)))
        least, _, _ = self.times(nothing, 1.0)
        return float((self.mbs / least).max())


def counts_up_to(most: int) -> list[int]:
    """Return the numbers of replicas that are looked at.

    >>> counts_up_to(3), counts_up_to(60)[-5:]
    ([1, 2, 3], [48, 51, 55, 59, 60])
    """
    counts = list(range(1, min(most, ALL_COUNTS) + 1))
    while counts and counts[-1] < most:
        counts.append(min(most, max(counts[-1] + 1, int(counts[-1] * GROWTH) + 1)))
    return counts


def search_sharded(
    problem: ShardedProblem, n_best: int = 5, stop: Callable[[], bool] | None = None
) -> ShardedAnswer:
    """Return the best plans over two pools or more: of each degrees and pools in use the fastest.

    Of the best pools in use as many as `n_best`, and the best of every other; the first is the
    fastest of all. `stop` is asked between degrees.
    """
    found: list[_Found] = []
    n_plans, stopped = 0, False
    search = _Search(problem)
    for degrees in search.all_degrees:
        if stop is not None and stop():
            stopped = True
            break
        for one, n in search.of_degrees(degrees):
            n_plans += n
            if one is not None:
                found.append(one)
    found.sort(key=lambda x: (x.step_s, x.n_replicas * x.degrees.n_devices, x.pools))
    kept = found[:n_best]
    pools = {x.pools for x in kept}
    for one in found[n_best:]:
        if one.pools not in pools:
            kept.append(one)
            pools.add(one.pools)
    plans = [search.plan(one) for one in kept]
    prices = [sharded_price(plan, problem) for plan in plans]
    return ShardedAnswer(tuple(plans), tuple(prices), n_plans, stopped)


@dataclass(frozen=True)
class _Search:
    """The enumeration for one problem."""

    problem: ShardedProblem

    @cached_property
    def all_degrees(self) -> list[ReplicaDegrees]:
        """Degrees that two pools or more have rows of, in the order of the first such pool."""
        counts: dict[ReplicaDegrees, int] = {}
        for pool in self.problem.pools:
            for degrees in dict.fromkeys(key.degrees for key in pool.keys):
                counts[degrees] = counts.get(degrees, 0) + 1
        whole = self.problem.global_batch
        return [x for x, n in counts.items() if n > 1 and whole % x.shard == 0]

    def replicas(self, degrees: ReplicaDegrees) -> list[_Replicas]:
        """Return the pools that hold a replica of some degrees."""
        found = []
        for place, pool in enumerate(self.problem.pools):
            usable = pool.problem.pool.usable_bytes
            fits = pool.table.peak_bytes <= usable
            by_mbs: dict[int, list[int]] = {}
            for i, key in enumerate(pool.keys):
                if key.degrees == degrees:
                    by_mbs.setdefault(key.mbs, []).append(i if fits[i] else -1)
            sizes = sorted(by_mbs)
            able = [size for size in sizes if max(by_mbs[size]) >= 0]
            most = pool.problem.pool.n_devices // degrees.n_devices
            if able and most:
                rows = np.array([by_mbs[size] for size in able], dtype=np.intp)
                found.append(_Replicas(place, pool, most, np.array(able, dtype=np.intp), rows))
        return found

    def of_degrees(self, degrees: ReplicaDegrees) -> Iterator[tuple[_Found | None, int]]:
        """Yield the best on each combination of pools, None where none is, and how many ways."""
        replicas = self.replicas(degrees)
        whole = self.problem.global_batch // degrees.shard
        micro = np.array([m for m in range(1, whole + 1) if whole % m == 0])
        sums: dict[tuple[int, int], Floats] = {}
        for size in range(2, min(MOST_POOLS, len(replicas)) + 1):
            for some in combinations(replicas, size):
                most = min(whole, sum(x.most for x in some))
                best: _Found | None = None
                n_ways = 0
                for count in reversed(counts_up_to(most)):
                    if count < size or (best and self._least_s(some, count, whole) > best.step_s):
                        continue
                    steps = self._steps_s(degrees, some, count, micro, sums)
                    n_ways += len(micro)
                    i = int(steps.argmin())
                    if np.isfinite(steps[i]) and (best is None or steps[i] <= best.step_s):
                        places = tuple(x.place for x in some)
                        best = _Found(float(steps[i]), degrees, places, count, int(micro[i]))
                yield best, n_ways

    def _least_s(self, some: Sequence[_Replicas], count: int, whole: int) -> float:
        """Return a lower bound of the step of `count` replicas: their greatest rate together."""
        left, rate = count - len(some), 0.0
        for x in sorted(some, key=lambda x: -x.most_per_s):
            more = min(left, x.most - 1)
            left -= more
            rate += (1 + more) * x.most_per_s
        return whole / rate

    def _between(
        self,
        degrees: ReplicaDegrees,
        some: Sequence[_Replicas],
        count: int,
        sums: dict[tuple[int, int], Floats] | None = None,
    ) -> tuple[Exchange, float]:
        """Return the exchange and the stragglers of `count` replicas on some pools."""
        sums = {} if sums is None else sums
        for x in some:
            if (x.place, count) not in sums:
                sums[x.place, count] = own_sums_s(x.pool, degrees, count)
        own = [sums[x.place, count] for x in some]
        places = [x.place for x in some]
        between = exchange(self.problem, degrees, places, count, own)
        return between, straggle(self.problem, count * degrees.n_devices)

    def _steps_s(
        self,
        degrees: ReplicaDegrees,
        some: Sequence[_Replicas],
        count: int,
        micro: Ints,
        sums: dict[tuple[int, int], Floats],
    ) -> Floats:
        """Return the least step for each number of micro-batches, `(n,)`; inf where none is."""
        between, slower = self._between(degrees, some, count, sums)
        priced = [x.times(between, slower) for x in some]
        wanted = self.problem.global_batch // (degrees.shard * micro)
        # (n_micro, n_times) candidates of T; (n_micro, n_times, n_pools) micro-batches by T.
        ends = [micro[:, None] * each + once for each, _, once in priced]
        step = np.concatenate(ends, axis=1)
        sizes = np.stack(
            [
                np.concatenate([[0], x.mbs])[(own[:, None, :] <= step[:, :, None]).sum(axis=2)]
                for x, own in zip(some, ends, strict=True)
            ],
            axis=2,
        )
        able = capacity(sizes, [x.most for x in some], count) >= wanted[:, None]
        able &= (sizes > 0).all(axis=2) & (wanted >= count)[:, None]
        return np.asarray(np.where(able, step, np.inf).min(axis=1))

    def plan(self, found: _Found) -> ShardedPlan:
        """Return a plan of a step that was found."""
        by_place = {x.place: x for x in self.replicas(found.degrees)}
        some = [by_place[place] for place in found.pools]
        between, slower = self._between(found.degrees, some, found.n_replicas)
        priced = [x.times(between, slower) for x in some]
        limit = found.step_s * (1.0 + 1e-12)
        reached = [
            int(np.count_nonzero(found.n_micro * each + once <= limit)) for each, _, once in priced
        ]
        sizes = [int(x.mbs[n - 1]) for x, n in zip(some, reached, strict=True)]
        numbers = shares_of(sizes, [x.most for x in some], found.n_replicas)
        wanted = self.problem.global_batch // (found.degrees.shard * found.n_micro)
        levels = lowered(sizes, numbers, wanted)
        kinds = []
        for x, (_, rows, _), level in zip(some, priced, levels, strict=True):
            for mbs, n in sorted(level.items(), reverse=True):
                row = int(rows[int(np.searchsorted(x.mbs, mbs))])
                key: ReplicaKey = x.pool.keys[row]
                kinds.append(ReplicaKind(x.place, n, mbs, key.recompute))
        return ShardedPlan(found.degrees, found.n_micro, tuple(kinds))


def capacity(sizes: Ints, most: Sequence[int], count: int) -> Ints:
    """Return the sequences that `count` replicas take at most, one or more on each pool.

    `sizes` are largest micro-batches, `(..., n_pools)`; `most` the replicas that pools hold.
    """
    order = np.argsort(-sizes, axis=-1, kind="stable")
    ranked = np.take_along_axis(sizes, order, axis=-1)
    room = np.asarray(most)[order] - 1
    before = np.cumsum(room, axis=-1) - room
    more = np.clip(count - sizes.shape[-1] - before, 0, room)
    total = (ranked * (1 + more)).sum(axis=-1)
    return np.where(count > sum(most), -1, total)


def shares_of(sizes: Sequence[int], most: Sequence[int], count: int) -> list[int]:
    """Return the replicas of each pool in `capacity`.

    >>> shares_of([2, 5], [4, 3], 5)
    [2, 3]
    """
    numbers, left = [1] * len(sizes), count - len(sizes)
    for i in sorted(range(len(sizes)), key=lambda j: -sizes[j]):
        more = min(left, most[i] - 1)
        numbers[i] += more
        left -= more
    return numbers


def lowered(sizes: Sequence[int], numbers: Sequence[int], wanted: int) -> list[Mapping[int, int]]:
    """Return replicas by micro-batch for each pool that take `wanted` sequences together.

    From the largest micro-batches down: those of whole pools where that fits, else of as many
    replicas as it takes.

    >>> lowered([4, 2], [2, 3], 11), lowered([4, 2], [2, 4], 15)
    ([{4: 2}, {1: 3}], [{4: 1, 3: 1}, {2: 4}])
    """
    excess = sum(a * b for a, b in zip(sizes, numbers, strict=True)) - wanted
    ranges = [range(min(a - 1, excess // b) + 1) for a, b in zip(sizes, numbers, strict=True)]
    n_ways = int(np.prod([len(x) for x in ranges]))
    ways = product(*ranges) if n_ways <= MOST_LEVELS else iter(())
    fitting = (x for x in ways if sum(a * b for a, b in zip(x, numbers, strict=True)) == excess)
    best = min(fitting, key=lambda x: (sum(x), x), default=None)
    if best is not None:
        return [{a - down: n} for a, down, n in zip(sizes, best, numbers, strict=True)]
    levels = [{a: n} for a, n in zip(sizes, numbers, strict=True)]
    while excess:
        # The largest batches first, so that a pool has two sizes that follow one another.
        i = max(range(len(levels)), key=lambda j: (max(levels[j]), numbers[j]))
        size = max(levels[i])
        n = min(excess, levels[i][size])
        levels[i][size] -= n
        levels[i][size - 1] = levels[i].get(size - 1, 0) + n
        levels[i] = {a: b for a, b in levels[i].items() if b}
        excess -= n
    return list(levels)
