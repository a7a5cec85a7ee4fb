"""Cuts of pipelines as points, slowest stage and all else, of many rows at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Places = NDArray[np.intp]

Cut = tuple[Floats, Floats]
"""Slowest stage, and all else: the sum over stages and, over the stragglers' factor, the tail."""


@dataclass(frozen=True, slots=True)
class Points:
    """Cuts of some rows, `(n, n_points)` each, seconds; infinite where there is none."""

    later: Ints
    """Micro-batches from which on `many` holds, `(n,)`."""
    few: Cut
    """With any micro-batches."""
    many: Cut
    """With so many that stages of the first part have more in flight."""

    def __len__(self) -> int:
        return len(self.later)

    def some(self, rows: Places) -> "Points":
        """Return those of some rows."""
        few, many = ((x[0][rows], x[1][rows]) for x in (self.few, self.many))
        return Points(self.later[rows], few, many)

    def with_micro(self, n_micro: Floats) -> Cut:
        """Return the cuts that hold with some micro-batches, `(n,)`."""
        later = (n_micro >= self.later)[:, None]
        first, second = (np.where(later, x, y) for x, y in zip(self.many, self.few, strict=True))
        return first, second

    def efficient(self) -> "Points":
        """Return the same without cuts that another is as good as in both."""
        few, many = _efficient(*self.few), _efficient(*self.many)
        width = max(few[0].shape[1], many[0].shape[1])
        one, two = ((_padded(x[0], width), _padded(x[1], width)) for x in (few, many))
        return Points(self.later, one, two)


class KeptPoints:
    """Cuts of rows, to which more are added."""

    def __init__(self) -> None:
        self._n, self._width = 0, 1
        self._later = np.zeros(0, dtype=np.int64)
        self._values = np.zeros((4, 0, 1))

    def add(self, points: Points) -> Places:
        """Add those of more rows; return their places."""
        first, n = self._n, self._n + len(points)
        width = max(self._width, points.few[0].shape[1])
        if n > len(self._later) or width > self._width:
            values = np.full((4, max(2 * n, len(self._later)), width), np.inf)
            values[:, :first, : self._width] = self._values[:, :first]
            later = np.zeros(values.shape[1], dtype=np.int64)
            later[:first] = self._later[:first]
            self._values, self._later, self._width = values, later, width
        for own, values in zip(self._values, (*points.few, *points.many), strict=True):
            own[first:n, : values.shape[1]] = values
        self._later[first:n] = points.later
        self._n = n
        return np.arange(first, n)

    def some(self, rows: Places) -> Points:
        """Return those at some places."""
        few_s, few, many_s, many = (x[rows] for x in self._values)
        return Points(self._later[rows], (few_s, few), (many_s, many))


def _efficient(slowest_s: Floats, other_s: Floats) -> Cut:
    """Return the points that no other is better than in both, by the first, left-aligned."""
    order = np.argsort(slowest_s, axis=1, kind="stable")
    slowest_s = np.take_along_axis(slowest_s, order, axis=1)
    other_s = np.take_along_axis(other_s, order, axis=1)
    kept = np.isfinite(slowest_s)
    before = np.minimum.accumulate(np.where(kept, other_s, np.inf), axis=1)
    kept[:, 1:] &= other_s[:, 1:] < before[:, :-1]
    width = max(1, int(kept.sum(axis=1).max(initial=1)))
    place = np.argsort(~kept, axis=1, kind="stable")[:, :width]
    has = np.take_along_axis(kept, place, axis=1)
    slowest_s, other_s = (
        np.where(has, np.take_along_axis(x, place, axis=1), np.inf) for x in (slowest_s, other_s)
    )
    return slowest_s, other_s


def _padded(points: Floats, width: int) -> Floats:
    if points.shape[1] == width:
        return points
    result = np.full((len(points), width), np.inf)
    result[:, : points.shape[1]] = points
    return result
