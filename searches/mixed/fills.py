"""Layers to the stages of one pipeline over several pools: the split of least slowest stage.

Exact: a stage that holds some layers can hold fewer, so filling every stage from the front as far
as a limit on its time allows tells whether any split keeps to the limit.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.plans import MixedStage
from costmodels.mixed.prices import in_flight
from costmodels.mixed.tables import MixedProblem, StageTable

HALVINGS = 60
"""Steps of bisection on the slowest stage's time."""
TOLERANCE = 1e-7
"""Of the same, relative: less than any two splits differ by, but for rounding."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run layers on one pool: its tables, one for each recomputation."""

    tables: tuple[StageTable, ...]
    """The fastest first."""

    @property
    def pool(self) -> int:
        """Place of the pool."""
        return self.tables[0].pool

    @property
    def n_devices(self) -> int:
        """Devices of a stage."""
        return self.tables[0].n_devices

    @property
    def mbs(self) -> int:
        """Sequences of a micro-batch."""
        return self.tables[0].mbs

    @property
    def degrees(self) -> tuple[int, int, int]:
        """What stages of one pipeline share: cp, ep and micro-batch."""
        return self.tables[0].cp, self.tables[0].ep, self.tables[0].mbs


def ways_of(problem: MixedProblem) -> list[Way]:
    """Return the ways to run layers, in the order of their keys."""
    groups: dict[tuple[int, ...], list[StageTable]] = {}
    for table in problem.tables:
        groups.setdefault(table.key[:5], []).append(table)
    ways = []
    for _, tables in sorted(groups.items()):
        tables.sort(key=lambda x: (layer_sum_s(x), x.recompute))
        ways.append(Way(tuple(tables)))
    return ways


def layer_times_s(table: StageTable) -> NDArray[np.float64]:
    """Return forward and backward of each layer, seconds, `(n_layers,)`."""
    return np.diff(table.forward_s.layers + table.backward_s.layers)


def layer_sum_s(table: StageTable) -> float:
    """Return forward and backward of all layers, seconds."""
    return float(table.forward_s.layers[-1] + table.backward_s.layers[-1])


class Filling(Protocol):
    """A stage that layers are put into, of one pipeline or of several with one split."""

    def time_s(self, start: int, end: int) -> float:
        """Return the least time in which the stage holds layers; infinite if they do not fit."""

    def reach(self, start: int, most_s: float) -> int:
        """Return the most layers' end that the stage reaches from `start`; `start` if none."""

    def back(self, end: int, most_s: float) -> int:
        """Return the least start from which the stage reaches `end`; `end` if none."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """One stage of a pipeline: per recomputation, prefix sums of seconds and of bytes."""

    seconds: tuple[list[float], ...]
    bytes_: tuple[list[float], ...]
    first: tuple[tuple[float, float], ...]
    """What the embedding adds, seconds and bytes, where the stage is the first; else zeros."""
    last: tuple[tuple[float, float], ...]
    fixed_bytes: tuple[float, ...]
    usable_bytes: float

    def chosen(self, start: int, end: int, most_s: float) -> int:
        """Return the first recomputation in which the stage holds layers within a time; or -1."""
        pairs = zip(self.first, self.last, strict=True)
        for i, ((first_s, first_bytes), (last_s, last_bytes)) in enumerate(pairs):
            size = self.bytes_[i][end] - self.bytes_[i][start] + first_bytes + last_bytes
            if size + self.fixed_bytes[i] > self.usable_bytes:
                continue
            if self.seconds[i][end] - self.seconds[i][start] + first_s + last_s <= most_s:
                return i
        return -1

    def time_s(self, start: int, end: int) -> float:
        """Return the least time in which the stage holds layers; infinite if they do not fit."""
        i = self.chosen(start, end, math.inf)
        if i < 0:
            return float("inf")
        ends_s = self.first[i][0] + self.last[i][0]
        return self.seconds[i][end] - self.seconds[i][start] + ends_s

    def reach(self, start: int, most_s: float) -> int:
        """Return the most layers' end that the stage reaches from `start`; `start` if none."""
        best = start
        for i, seconds in enumerate(self.seconds):
            sizes, first, last = self.bytes_[i], self.first[i], self.last[i]
            end = bisect_right(seconds, seconds[start] + most_s - first[0] - last[0], start)
            room = sizes[start] + self.usable_bytes - self.fixed_bytes[i] - first[1] - last[1]
            if end - 1 <= best:
                continue  # slower ones reach no further
            held = bisect_right(sizes, room, start)
            best = max(best, min(end, held) - 1)
            if held >= end:
                break
        return best

    def back(self, end: int, most_s: float) -> int:
        """Return the least start from which the stage reaches `end`; `end` if none."""
        best = end
        for i, seconds in enumerate(self.seconds):
            sizes, first, last = self.bytes_[i], self.first[i], self.last[i]
            start = bisect_left(seconds, seconds[end] - most_s + first[0] + last[0])
            room = sizes[end] - self.usable_bytes + self.fixed_bytes[i] + first[1] + last[1]
            best = min(best, max(start, bisect_left(sizes, room)))
        return best


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One structure of pipelines: how many stages run in which way, in model order."""

    parts: tuple[tuple[Way, int], ...]
    """Ways, and their stages."""

    @property
    def pp(self) -> int:
        """Stages."""
        return sum(n for _, n in self.parts)

    @property
    def mbs(self) -> int:
        """Sequences of a micro-batch."""
        return self.parts[0][0].mbs

    def ways(self) -> list[Way]:
        """Return the way of each stage."""
        return [way for way, n in self.parts for _ in range(n)]

    @property
    def multiple(self) -> int:
        """Pipelines of a kind are a multiple of this."""
        return max(way.tables[0].pipelines_multiple for way, _ in self.parts)

    def n_devices(self, pool: int) -> int:
        """Devices of a pool in one pipeline."""
        return sum(n * way.n_devices for way, n in self.parts if way.pool == pool)

    def most_pipelines(self, problem: MixedProblem) -> int:
        """Return the most pipelines that the pools hold, a whole multiple."""
        each = [
            pool.n_devices // self.n_devices(i)
            for i, pool in enumerate(problem.pools)
            if self.n_devices(i)
        ]
        return min(each) // self.multiple * self.multiple


@lru_cache(maxsize=65536)
def _prefixes(known: "_Known", share: int, active: int) -> tuple[list[float], list[float]]:
    """Return seconds and bytes of the first 0, 1, ... layers in a stage, without the ends."""
    x = known.table
    seconds = x.forward_s.layers + x.backward_s.layers
    size = x.whole_bytes.layers + x.shared_bytes.layers / share
    size = size + active * x.activation_bytes.layers + x.working_bytes.layers
    return seconds.tolist(), size.tolist()


class _Known:
    """A table by identity, for caches."""

    def __init__(self, table: StageTable) -> None:
        self.table = table

    def __hash__(self) -> int:
        return id(self.table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self.table is other.table


def stages_of(
    problem: MixedProblem, pipeline: Pipeline, n_pipelines: int, n_micro: int
) -> list[_Stage]:
    """Return the stages of a pipeline, as many alike of which share the optimizer's states."""
    share = n_pipelines if problem.zero else 1
    results, pp = [], pipeline.pp
    for r, way in enumerate(pipeline.ways()):
        active = in_flight(pp, r, n_micro)
        tables = way.tables
        both = [_prefixes(_Known(x), share, active) for x in tables]

        def ends(
            name: str, tables: tuple[StageTable, ...] = tables, active: int = active
        ) -> tuple[tuple[float, float], ...]:
            return tuple(
                (
                    getattr(x.forward_s, name) + getattr(x.backward_s, name),
                    getattr(x.whole_bytes, name)
                    + getattr(x.shared_bytes, name) / share
                    + active * getattr(x.activation_bytes, name)
                    + getattr(x.working_bytes, name),
                )
                for x in tables
            )

        nothing = ((0.0, 0.0),) * len(tables)
        results.append(
            _Stage(
                seconds=tuple(x for x, _ in both),
                bytes_=tuple(x for _, x in both),
                first=ends("embedding") if r == 0 else nothing,
                last=ends("head") if r == pp - 1 else nothing,
                fixed_bytes=tuple(x.fixed_bytes for x in tables),
                usable_bytes=problem.pools[way.pool].usable_bytes,
            )
        )
    return results


def filled(stages: Sequence[Filling], start: int, end: int, most_s: float) -> list[int] | None:
    """Return the ends of stages that hold layers `start` to `end` within a time; None if none."""
    ends, at = [], start
    for r, stage in enumerate(stages):
        left = len(stages) - 1 - r
        reached = min(stage.reach(at, most_s), end - left)
        if reached <= at:
            return None
        ends.append(reached)
        at = reached
    return ends if at == end else None


def emptied(stages: Sequence[Filling], start: int, end: int, most_s: float) -> list[int] | None:
    """Return the starts of stages, filled from the last; None if they cannot hold the layers."""
    starts, at = [], end
    for r in range(len(stages) - 1, -1, -1):
        reached = max(stages[r].back(at, most_s), start + r)
        if reached >= at:
            return None
        starts.append(reached)
        at = reached
    return starts[::-1] if at == start else None


def slowest_filled_s(stages: Sequence[Filling], start: int, ends: Sequence[int]) -> float:
    """Return the time of the slowest of some filled stages."""
    return max(
        stage.time_s(first, last)
        for stage, first, last in zip(stages, (start, *ends), ends, strict=False)
    )


def least_filled_s(stages: Sequence[Filling], start: int, end: int, low_s: float) -> float:
    """Return the least time of the slowest stage of any split; infinite where nothing fits.

    `low_s` is a lower bound of it. Exact: it ends where no split is faster than the last one.
    """
    ends = filled(stages, start, end, low_s * (1.0 + TOLERANCE))
    if ends is not None:
        return slowest_filled_s(stages, start, ends)
    ends = filled(stages, start, end, math.inf)
    if ends is None:
        return math.inf
    high_s, rise = slowest_filled_s(stages, start, ends), max(low_s, 1e-12)
    while rise < high_s:
        rise *= 1.1
        ends = filled(stages, start, end, min(rise, high_s))
        if ends is not None:
            high_s = min(high_s, slowest_filled_s(stages, start, ends))
            break
        low_s = rise
    for i in range(HALVINGS):
        below = high_s * (1.0 - TOLERANCE)
        middle = 0.5 * (low_s + high_s) if i % 3 < 2 and high_s - low_s > 1e-3 * high_s else below
        if middle >= below:
            middle = below
        ends = filled(stages, start, end, middle)
        if ends is not None:
            high_s = min(middle, slowest_filled_s(stages, start, ends))
        elif middle >= below:
            break
        else:
            low_s = middle
    return high_s


@dataclass(frozen=True, slots=True)
class Fill:
    """One split of a pipeline's layers."""

    stages: tuple[MixedStage, ...]
    times_s: tuple[float, ...]

    @property
    def slowest_s(self) -> float:
        """Forward and backward of the slowest stage."""
        return max(self.times_s)


def least_slowest_s(
    problem: MixedProblem, pipeline: Pipeline, n_pipelines: int, n_micro: int, low_s: float = 0.0
) -> float:
    """Return the least time of the slowest stage over all splits; infinite where none fits."""
    stages = stages_of(problem, pipeline, n_pipelines, n_micro)
    return least_filled_s(stages, 0, problem.n_layers, low_s)


def best_fills(
    problem: MixedProblem,
    pipeline: Pipeline,
    n_pipelines: int,
    n_micro: int,
    slack: Sequence[float] = (0.0, 0.02, 0.06, 0.15),
    low_s: float = 0.0,
    limit_s: float = math.inf,
) -> list[Fill]:
    """Return splits of least slowest stage, and of somewhat slower ones with less work in all.

    Within a limit on the slowest stage as many layers go to the faster pool as it takes. For
    pipelines over one or two pools the first is exactly of least slowest stage, and of least sum
    among those. `low_s` is a lower bound of the slowest stage; nothing is returned where it takes
    `limit_s` at least.
    """
    stages = stages_of(problem, pipeline, n_pipelines, n_micro)
    n_layers = problem.n_layers
    if pipeline.pp > n_layers:
        return []
    rates = sum(1.0 / max(min(x[-1] for x in stage.seconds), 1e-30) for stage in stages)
    least_s = least_filled_s(stages, 0, n_layers, low_s or 0.5 / rates)
    if least_s >= limit_s:
        return []
    if not math.isfinite(least_s):
        return []
    fills: dict[tuple[MixedStage, ...], Fill] = {}
    limits = slack if len(pipeline.parts) > 1 else slack[:1]
    for more in limits:
        limit = least_s * (1.0 + max(more, TOLERANCE))  # sums of ends and layers are rounded
        for cuts in cuts_of(stages, [n for _, n in pipeline.parts], n_layers, limit):
            fill = _balanced(stages, pipeline, cuts)
            if fill is not None:
                fills.setdefault(fill.stages, fill)
    return list(fills.values())


def cuts_of(
    stages: Sequence[Filling], lengths: Sequence[int], n_layers: int, most_s: float
) -> list[tuple[int, ...]]:
    """Return where the parts of a pipeline may meet: as far back and as far forward as can be.

    `lengths` are the stages of each part.
    """
    ends = filled(stages, 0, n_layers, most_s)
    starts = emptied(stages, 0, n_layers, most_s)
    if ends is None or starts is None:
        return []
    borders, at = [], 0
    for n in lengths[:-1]:
        at += n
        borders.append((starts[at], ends[at - 1]))
    if not borders:
        return [()]
    low, high = tuple(a for a, _ in borders), tuple(b for _, b in borders)
    return list(dict.fromkeys([high, low]))


def _balanced(stages: Sequence[_Stage], pipeline: Pipeline, cuts: tuple[int, ...]) -> Fill | None:
    """Return the split with its parts cut at some layers, each part as even as can be."""
    n_layers = len(stages[0].seconds[0]) - 1
    borders, at, results = (0, *cuts, n_layers), 0, []
    times: list[float] = []
    for (way, n), start, end in zip(pipeline.parts, borders, borders[1:], strict=False):
        own = stages[at : at + n]
        at += n
        if end - start < n:
            return None
        least = min(x[end] - x[start] for x in own[0].seconds)
        limit = least_filled_s(own, start, end, least / n)
        if not math.isfinite(limit):
            return None
        ends = filled(own, start, end, limit * (1.0 + TOLERANCE))
        if ends is None:
            return None
        first = start
        for stage, last in zip(own, ends, strict=True):
            i = stage.chosen(first, last, math.inf)
            table = way.tables[i]
            results.append(
                MixedStage(way.pool, table.tp, table.cp, last - first, table.recompute, table.ep)
            )
            times.append(stage.time_s(first, last))
            first = last
    return Fill(tuple(results), tuple(times))


def fastest_fill(
    problem: MixedProblem,
    pipeline: Pipeline,
    counts: Sequence[int],
    n_pipelines: int,
    n_micro: int,
) -> Fill | None:
    """Return the split with some layers in each stage, recomputing least; None if none fits."""
    stages = stages_of(problem, pipeline, n_pipelines, n_micro)
    results, times, start = [], [], 0
    for way, stage, n in zip(pipeline.ways(), stages, counts, strict=True):
        i = stage.chosen(start, start + n, math.inf)
        if i < 0:
            return None
        table = way.tables[i]
        results.append(MixedStage(way.pool, table.tp, table.cp, n, table.recompute, table.ep))
        times.append(stage.time_s(start, start + n))
        start += n
    return Fill(tuple(results), tuple(times))
