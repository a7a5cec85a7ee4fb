"""What each axis buys: points that are alike in everything else, compared along it.

Two points form a pair where they differ in one axis alone and are neighbours along it; on an axis
of names each value is paired with the first. A ratio of a pair is that of the later value to the
earlier one; the ratio of an axis is the geometric mean over its chains (points alike in all other
axes), each from its first to its last value that has a plan. Where a design has no pairs (it is
sampled), the logarithm of the time is fitted by least squares on the logarithms of the numeric
axes, with one level for each value of the others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.render.report.points import PointAxis, SweepPoints

NO_CHANGE = 5e-4
"""Logarithm of a ratio below which nothing has changed."""
NO_FITTED_CHANGE = 0.01
"""The same of a fitted effect: below it what the fit leaves out, kinks and other layouts, may be
more than the effect, which standard errors of exact times do not tell."""
SURE = 2.0
"""Standard errors of a fitted effect within which it is told."""
MIN_CHAINS_SHARE = 0.05
"""Share of the points with a plan that must stand in chains before pairs are trusted to say it."""


@dataclass(frozen=True)
class Step:
    """From one value of an axis to the next."""

    low: float | str
    high: float | str
    n_pairs: int
    """Pairs that have a plan at both values."""
    time_ratio: float
    """Geometric mean over the pairs, NaN without any; below 1 is faster."""
    least: float
    largest: float
    cost_ratio: float
    n_gained: int
    """Pairs with a plan at the later value only."""
    n_lost: int
    """Pairs with a plan at the earlier value only."""


@dataclass(frozen=True)
class Effect:
    """What one axis buys."""

    axis: PointAxis
    method: str
    """`pairs`, `fit`, or empty where nothing can be said."""
    steps: tuple[Step, ...]
    n_chains: int
    time_ratio: float
    """Time at the last value over that at the first; NaN where nothing can be said."""
    per_doubling: float
    """The same for a doubling, were each doubling alike; NaN where the axis has no ratio."""
    least_per_doubling: float
    most_per_doubling: float
    cost_ratio: float
    cost_per_doubling: float
    devices_ratio: float
    n_compared: int = 0
    """Points with a plan in chains that have two or more of them."""
    r_squared: float = math.nan

    @property
    def strength(self) -> float:
        """How much the axis moves the time, sign aside, in the unit that ranks axes."""
        ratio = self.per_doubling if math.isfinite(self.per_doubling) else self.time_ratio
        return abs(math.log(ratio)) if math.isfinite(ratio) and ratio > 0 else 0.0

    @property
    def is_told(self) -> bool:
        """Whether it is known to move the time one way: a fit may not tell it from nothing."""
        if self.method != "fit" or not math.isfinite(self.least_per_doubling):
            return bool(self.method)
        low, high = math.log(self.least_per_doubling), math.log(self.most_per_doubling)
        sure = not low < 0 < high or max(-low, high) < NO_CHANGE
        return sure and not self.is_small_fit

    @property
    def is_small_fit(self) -> bool:
        """Whether it is fitted, and too small to be told from what the fit leaves out."""
        if self.method != "fit" or not math.isfinite(self.per_doubling):
            return False
        return abs(math.log(self.per_doubling)) < NO_FITTED_CHANGE

    @property
    def break_even_price(self) -> float:
        """What a device-hour may cost, times as now, before a doubled figure costs more per run.

        1 / time ratio: cost is price x devices x time. NaN where devices change with the axis.
        """
        ratio = self.per_doubling
        same_devices = math.isfinite(self.devices_ratio) and abs(self.devices_ratio - 1) < 0.01
        return 1 / ratio if math.isfinite(ratio) and ratio > 0 and same_devices else math.nan


def effects(points: SweepPoints) -> tuple[Effect, ...]:
    """Return what each axis with several values buys, in the order of the axes."""
    varied = [axis for axis in points.axes if len(axis.values) > 1]
    results = [_by_pairs(points, axis) for axis in varied]
    n_solved = int(points.solved.sum())
    lacking = [effect for effect in results if effect.n_compared < MIN_CHAINS_SHARE * n_solved]
    if lacking and n_solved > len(varied) + 2:
        fitted = _by_fit(points, [effect.axis for effect in lacking], varied)
        results = [fitted.get(effect.axis.path, effect) for effect in results]
    return tuple(results)


def _geometric_mean(ratios: Sequence[float]) -> float:
    logs = [math.log(ratio) for ratio in ratios if ratio > 0 and math.isfinite(ratio)]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def chains(points: SweepPoints, axis: PointAxis) -> list[list[int]]:
    """Return rows alike in all other axes, each list in the order of this axis' values."""
    others = [points.values(other.column) for other in points.axes if other is not axis]
    keys = list(zip(*others, strict=True)) if others else [()] * points.n
    place = {value: number for number, value in enumerate(axis.values)}
    groups: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for row, value in enumerate(points.values(axis.column)):
        number = place.get(value if axis.numeric else str(value))
        if number is not None:
            groups.setdefault(keys[row], []).append((number, row))
    return [[row for _, row in sorted(group)] for group in groups.values() if len(group) > 1]


def _by_pairs(points: SweepPoints, axis: PointAxis) -> Effect:
    time = points.time.values
    cost = points.cost.values if points.cost else np.full(points.n, math.nan)
    solved, devices, column = np.isfinite(time), points.devices, points.values(axis.column)
    pairs: dict[tuple[float | str, float | str], list[tuple[int, int]]] = {}
    ends: list[tuple[int, int]] = []
    n_compared = 0
    for chain in chains(points, axis):
        first = [(chain[0], row) for row in chain[1:] if column[chain[0]] == axis.values[0]]
        for low, high in pairwise(chain) if axis.numeric else first:
            pairs.setdefault((column[low], column[high]), []).append((low, high))
        planned = [row for row in chain if solved[row]]
        if len(planned) > 1 and column[planned[0]] != column[planned[-1]]:
            ends.append((planned[0], planned[-1]))
            n_compared += len(planned)
    steps = []
    place = {value: number for number, value in enumerate(axis.values)}
    for (low_value, high_value), neighbours in pairs.items():
        both = [pair for pair in neighbours if solved[pair[0]] and solved[pair[1]]]
        ratios = [float(time[high] / time[low]) for low, high in both]
        steps.append(
            Step(
                low_value,
                high_value,
                len(both),
                _geometric_mean(ratios),
                min(ratios, default=math.nan),
                max(ratios, default=math.nan),
                _geometric_mean([float(cost[high] / cost[low]) for low, high in both]),
                sum(bool(solved[high] and not solved[low]) for low, high in neighbours),
                sum(bool(solved[low] and not solved[high]) for low, high in neighbours),
            )
        )
    steps.sort(key=lambda s: (place.get(s.low, 0), place.get(s.high, 0)))
    doublings = [
        math.log2(column[high] / column[low]) if _has_ratio(axis) else math.nan
        for low, high in ends
    ]
    slopes = [
        math.log(time[high] / time[low]) / count
        for (low, high), count in zip(ends, doublings, strict=True)
        if math.isfinite(count) and count > 0
    ]
    cost_slopes = [
        math.log(cost[high] / cost[low]) / count
        for (low, high), count in zip(ends, doublings, strict=True)
        if math.isfinite(count) and count > 0 and cost[low] > 0 and cost[high] > 0
    ]
    return Effect(
        axis,
        "pairs" if ends else "",
        tuple(steps),
        len(ends),
        _geometric_mean([float(time[high] / time[low]) for low, high in ends]),
        math.exp(sum(slopes) / len(slopes)) if slopes else math.nan,
        math.exp(min(slopes)) if slopes else math.nan,
        math.exp(max(slopes)) if slopes else math.nan,
        _geometric_mean([float(cost[high] / cost[low]) for low, high in ends]),
        math.exp(sum(cost_slopes) / len(cost_slopes)) if cost_slopes else math.nan,
        _geometric_mean([float(devices[high] / devices[low]) for low, high in ends]),
        n_compared,
    )


def _has_ratio(axis: PointAxis) -> bool:
    return axis.numeric and all(isinstance(v, float) and v > 0 for v in axis.values)


def _by_fit(
    points: SweepPoints, wanted: Sequence[PointAxis], varied: Sequence[PointAxis]
) -> dict[str, Effect]:
    """Return effects from a fit of log time on all axes; none where the fit is not determined."""
    rows = np.flatnonzero(np.isfinite(points.time.values))
    blocks: list[np.ndarray] = [np.ones((len(rows), 1))]
    place: dict[str, tuple[int, int]] = {}
    for axis in varied:
        start = sum(block.shape[1] for block in blocks)
        if axis.numeric:
            values = np.array([points.values(axis.column)[row] for row in rows], dtype=float)
            block = (np.log2(values) if _has_ratio(axis) else values)[:, None]
        else:
            texts = [str(points.values(axis.column)[row]) for row in rows]
            block = np.array([[t == value for value in axis.values[1:]] for t in texts], float)
        place[axis.path] = (start, start + block.shape[1])
        blocks.append(block)
    design = np.hstack(blocks)
    if np.linalg.matrix_rank(design) < design.shape[1] or len(rows) <= design.shape[1]:
        return {}
    target = np.log(points.time.values[rows])
    solution, *_ = np.linalg.lstsq(design, target, rcond=None)
    spread = float(((target - target.mean()) ** 2).sum())
    left_over = float(((target - design @ solution) ** 2).sum())
    r_squared = 1 - left_over / spread if spread else 1.0
    variance = left_over / (len(rows) - design.shape[1])
    errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    entries = {}
    for axis in wanted:
        start, stop = place[axis.path]
        nan = math.nan
        one, error = float(solution[start]), float(errors[start])
        doubled = [one, one - SURE * error, one + SURE * error]
        per_doubling, least, largest = [
            math.exp(value) if _has_ratio(axis) else nan for value in doubled
        ]
        if axis.numeric:
            low, high = float(axis.values[0]), float(axis.values[-1])
            width = math.log2(high / low) if _has_ratio(axis) else high - low
            ratio = math.exp(solution[start] * width)
        else:
            ratio = math.exp(solution[stop - 1])
        entries[axis.path] = Effect(
            axis,
            "fit",
            (),
            0,
            ratio,
            per_doubling,
            least,
            largest,
            nan,
            nan,
            nan if axis.is_size else 1.0,
            0,
            r_squared,
        )
    return entries
