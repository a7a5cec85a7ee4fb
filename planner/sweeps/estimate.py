"""`planner sweep --dry-run`: how many points, and how long they would take.

A few points are searched and their rows thrown away. Points of one model on the same number of
devices share tables: of some such groups, from the most devices to the fewest, the first point
and some of the next ones are timed, and the groups between them take what lies between.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from statistics import mean

from planner.errors import SpecError
from planner.sweeps.points import Point
from planner.sweeps.run import PointSolver, Twins, chunks_of
from planner.sweeps.sweep import Sweep

COUNTED = 20_000
"""Combinations that are looked at, drawn from larger sweeps; counts are shares then."""
TIMED_GROUPS = 4
TIMED_POINTS = 12
"""Shared out over the timed groups, two of each at least."""
BUDGET_S = 30.0
"""No further point is timed after so many seconds."""
TWIN_S = 0.01
"""A point that differs in price or power alone: one row is written, nothing is searched."""
ROW_BYTES = 3_000
"""Of an unfinished sweep on the disk, a row."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What the points of one group take, seconds."""

    place: float
    """Of the group among all, 0 to 1, most devices first."""
    first_s: float
    next_s: tuple[float, ...] = ()
    """Of points whose group has been entered; none where the group has one point."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a sweep would take."""

    n_combinations: int
    """Before constraints."""
    n_points: int
    """After them."""
    n_searches: int
    """Points that need a search of their own: they differ in more than price and power."""
    n_invalid: int
    """Points that make no valid inputs: rows with a reason, at no cost."""
    exact: bool
    """Every combination was looked at."""
    n_groups: int
    timings: tuple[Timing, ...]
    work_s: float | None
    """Of one worker; None where there is nothing to search."""
    start_s: float
    """What every worker takes besides to load the solver, all at the same time."""
    n_workers: int
    first_fault: str

    @property
    def time_s(self) -> float | None:
        """Wall-clock time: the work shared out over the workers, which start together."""
        return None if self.work_s is None else self.start_s + self.work_s / self.n_workers


def estimate(
    sweep: Sweep,
    *,
    executor: str = "automatic",
    point_limit_s: float = 600.0,
    tell: Callable[[str], None] | None = None,
) -> Estimate:
    """Return what a sweep would take on this machine. Raises `SpecError` where no point is left.

    `tell` is given a word on what is done now.
    """
    share, points = points_to_look_at(sweep)
    if not points:
        raise no_point(sweep)
    valid = [point for point in points if not point.fault]
    chunks = chunks_of(valid)
    n_valid = len(valid) / share
    n_searches = float(sum(len(chunk) for chunk in chunks))
    scale = 1.0
    if share < 1.0 and n_searches:
        scale = max(1.0, n_valid / points_of_a_search(sweep) / n_searches)
    start_s, timings = _timings(sweep, chunks, point_limit_s, tell)
    n_twins = n_valid - n_searches * scale
    faults = [point.fault for point in points if point.fault]
    return Estimate(
        n_combinations=sweep.n_points,
        n_points=round(len(points) / share),
        n_searches=round(n_searches * scale),
        n_invalid=round(len(faults) / share),
        exact=share == 1.0,
        n_groups=len(chunks),
        timings=timings,
        work_s=work_s([len(chunk) * scale for chunk in chunks], timings, n_twins),
        start_s=start_s,
        n_workers=1 if executor == "serial" else _processors(),
        first_fault=faults[0] if faults else "",
    )


def points_to_look_at(sweep: Sweep) -> tuple[float, list[Point]]:
    """Return the share of all combinations that is looked at, and those of it that are points."""
    if sweep.n_points <= COUNTED:
        return 1.0, list(sweep.points())
    chosen = set(Random(0).sample(range(sweep.n_points), COUNTED))
    every = (x for x in enumerate(sweep.combinations()) if x[0] in chosen)
    results = [sweep.point(index, values) for index, values in every]
    return COUNTED / sweep.n_points, [point for point in results if point is not None]


def points_of_a_search(sweep: Sweep) -> float:
    """Return how many points of a grid one search answers, by the axes of price and power.

    Every axis is looked at alone, around the first valid point; 1 for other designs.
    """
    free = replace(sweep, constraints=())
    first = next((p for p in islice(free.points(), COUNTED) if not p.fault), None)
    if first is None or sweep.design != "grid":
        return 1.0
    product = 1.0
    for i, axis in enumerate(sweep.axes):
        values = list(first.values)
        keys = set()
        for value in axis.values:
            values[i] = (axis.name, value)
            point = free.point(0, tuple(values))
            keys.add(point.costless_key if point else "")
        product *= len(axis.values) / len(keys)
    return product


def no_point(sweep: Sweep) -> SpecError:
    """Return what to say where the constraints leave nothing."""
    from planner.errors import InputProblem

    message = f"no point keeps the constraints: {sweep.why_empty()}"
    return SpecError(InputProblem(message, "loosen a constraint of `where:`, or widen an axis"))


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _timings(
    sweep: Sweep,
    chunks: Sequence[Sequence[Twins]],
    point_limit_s: float,
    tell: Callable[[str], None] | None,
) -> tuple[float, tuple[Timing, ...]]:
    """Return what it takes to load the solver, and what points take after that."""
    if not chunks:
        return 0.0, ()
    n_timed = min(TIMED_GROUPS, len(chunks))
    places = sorted({round(i * (len(chunks) - 1) / max(1, n_timed - 1)) for i in range(n_timed)})
    began = time.monotonic()
    if tell:
        tell("timing a few points")
    # The first search also loads the solver: that is not what a point takes.
    loading_s = _seconds(PointSolver(sweep, point_limit_s), chunks[places[-1]][0])
    n_next = max(1, TIMED_POINTS // len(places) - 1)
    results = []
    for place in places:
        chunk, solver = chunks[place], PointSolver(sweep, point_limit_s)
        first_s, next_s = _seconds(solver, chunk[0]), []
        for i in _spread(len(chunk) - 1, n_next):
            if time.monotonic() - began < BUDGET_S:
                next_s.append(_seconds(solver, chunk[1 + i]))
        results.append(Timing(place / max(1, len(chunks) - 1), first_s, tuple(next_s)))
        if time.monotonic() - began > BUDGET_S:
            break
    return max(0.0, loading_s - results[-1].first_s), tuple(results)


def _spread(n: int, k: int) -> list[int]:
    """Return `k` places out of `n`, in the middle of equal parts."""
    return sorted({(2 * i + 1) * n // (2 * k) for i in range(k)}) if n else []


def _seconds(solver: PointSolver, twins: Twins) -> float:
    began = time.monotonic()
    solver(Twins(twins.points[:1]))
    return time.monotonic() - began


def work_s(sizes: Sequence[float], timings: Sequence[Timing], n_twins: float) -> float | None:
    """Return the time of all searches on one worker, between the groups that were timed.

    `sizes` are the searches of each group, `n_twins` the points that need none.
    """
    if not timings:
        return None
    nexts = [(t.place, mean(t.next_s)) for t in timings if t.next_s]
    total = n_twins * TWIN_S
    for i, size in enumerate(sizes):
        place = i / max(1, len(sizes) - 1)
        first_s = _between(place, [(t.place, t.first_s) for t in timings])
        next_s = _between(place, nexts) if nexts else first_s
        total += first_s + (size - 1) * next_s
    return total


def _between(x: float, points: Sequence[tuple[float, float]]) -> float:
    """Return the value at `x` on the line through known places, the nearest outside of them."""
    before = [point for point in points if point[0] <= x]
    after = [point for point in points if point[0] >= x]
    if not before or not after:
        return (after or before)[0 if after else -1][1]
    (x0, y0), (x1, y1) = before[-1], after[0]
    return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
