"""Values of an axis as places of a chart or a plot, and the best point of each place."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from planner.render.report.points import Measure, PointAxis, SweepPoints

MAX_VALUES = 24
"""Values of a numeric axis that are taken one by one; more are put into bins."""
N_BINS = 12


@dataclass(frozen=True)
class Bins:
    """Values of an axis as places in a figure: one each, or ranges where there are many."""

    axis: PointAxis
    labels: tuple[str, ...]
    centres: tuple[float, ...]
    """Where on a numeric axis; the number of the bin on others."""
    of_row: tuple[int | None, ...]
    """By row: its bin."""
    binned: bool

    @property
    def note(self) -> tuple[str, ...]:
        """What the reader should know about it."""
        if not self.binned:
            return ()
        n = len(self.axis.values)
        return (f"{n:,} values of {self.axis.title} are put into {len(self.labels)} ranges.",)


def bins(points: SweepPoints, axis: PointAxis, max_values: int = MAX_VALUES) -> Bins:
    """Return the places of an axis: its values, or `N_BINS` ranges alike in ratio or width."""
    column = points.values(axis.column)
    if not axis.numeric or len(axis.values) <= max_values:
        values = list(axis.values)
        dropped: dict[object, int] = {value: number for number, value in enumerate(values)}
        of_row = tuple(
            None if value is None else dropped.get(value if axis.numeric else str(value))
            for value in column
        )
        centres = (
            tuple(float(value) for value in values)
            if axis.numeric
            else tuple(float(number) for number in range(len(values)))
        )
        return Bins(axis, tuple(axis.text(value) for value in values), centres, of_row, False)
    low, high = float(axis.values[0]), float(axis.values[-1])
    log = is_log(axis)
    first, last = (math.log(low), math.log(high)) if log else (low, high)
    edges = [first + (last - first) * number / N_BINS for number in range(N_BINS + 1)]
    back: Callable[[float], float] = math.exp if log else float
    labels = tuple(
        f"{axis.scale.number(back(a), 3)} to {axis.scale.text(back(b), 3)}"
        for a, b in pairwise(edges)
    )
    centres = tuple(back((a + b) / 2) for a, b in pairwise(edges))
    width = (last - first) / N_BINS

    def place(value: Any) -> int | None:
        if not isinstance(value, int | float):
            return None
        where = (math.log(value) if log else float(value)) - first
        return min(N_BINS - 1, max(0, int(where / width)))

    return Bins(axis, labels, centres, tuple(place(value) for value in column), True)


def is_log(axis: PointAxis) -> bool:
    """Return whether ratios of an axis are what counts: positive, and four times or more apart."""
    if not axis.numeric or len(axis.values) < 2:
        return False
    low, high = float(axis.values[0]), float(axis.values[-1])
    return low > 0 and high / low >= 4


def least_by(measure: Measure, keys: Sequence[object | None]) -> dict[object, int]:
    """Return by key the row with the least of a measure; rows without key or value left out."""
    entries: dict[object, int] = {}
    values = measure.values
    for row, key in enumerate(keys):
        if key is None or not math.isfinite(values[row]):
            continue
        if key not in entries or values[row] < values[entries[key]]:
            entries[key] = row
    return entries
