"""The slowest stage, the sum over stages and the tail of pipelines, cut by cut, from below.

A pipeline over two pools holds the first k layers in p_1 stages of one way and the others in p_2
stages of another. Of a cut

    slowest >= max over parts of the least time of ceil(k/p) layers that fit, ends included
    sum      = layers of each part on its way, and the ends of the model
    tail    >= that of a stage with ceil(k/p) layers

so that a step of m micro-batches takes (m - 1) B_k + C_k at least: the best cut of each m. Cuts
that are no better than another in both are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedProblem
from searches.mixed.capacity import Capacity, least_sums
from searches.mixed.fills import Way, layer_times_s
from searches.mixed.tails import whole_layers_tail_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Rows:
    """Pipelines of one or two parts; `(n,)` each."""

    first: Ints
    """Way of the first part."""
    n_first: Ints
    """Its stages."""
    last: Ints
    """Way of the second part; any where there is none."""
    n_last: Ints
    """Its stages; 0 where there is none."""
    range: Ints
    """Place of the range of pipelines."""

    def part(self, rows: slice) -> "Rows":
        """Return some of them."""
        return Rows(*(getattr(self, x.name)[rows] for x in fields(self)))


def _sums(each: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(each)])


def _ends_s(way: Way) -> tuple[float, float]:
    """Return what the embedding and the head take in a stage, seconds."""
    table = way.tables[0]
    return (
        table.forward_s.embedding + table.backward_s.embedding,
        table.forward_s.head + table.backward_s.head,
    )


def _with_end_s(least_s: Floats, end_s: float, counts: Sequence[int]) -> Floats:
    """Return the least slowest of p stages with k layers, one with an end, `(1 + p, 1 + k)`.

    min over the j layers beside the end of max( t(j) + end, t( ceil((k - j)/(p - 1)) ) )
    """
    n_layers = len(least_s) - 1
    result = np.full((max(counts) + 1, n_layers + 1), np.inf)
    layers = np.arange(n_layers + 1)
    left = layers[:, None] - layers[None, :]
    here_s = least_s + end_s
    for p in counts:
        if p == 1:
            result[1] = here_s
            continue
        others = np.where(left >= 0, -(-left // (p - 1)), 0)
        each = np.maximum(here_s[None, :], least_s[others])
        result[p] = np.where(left >= 0, each, np.inf).min(axis=1)
    return result


class CutBounds:
    """What every cut of pipelines over one or two pools takes at least."""

    def __init__(
        self,
        problem: MixedProblem,
        ways: Sequence[Way],
        ranges: Sequence[tuple[int, int]],
        capacity: Capacity,
        counts: Sequence[int],
    ) -> None:
        self._problem, self._ways, self._ranges = problem, ways, ranges
        self._capacity = capacity
        each = [layer_times_s(way.tables[0]) for way in ways]
        ends = [_ends_s(way) for way in ways]
        self._embedding_s, self._head_s = np.array(ends).T
        self._sums_s = np.array([_sums(x) for x in each])
        least = [least_sums(x) for x in each]
        self._least_s = np.array(least)
        self._first_s, self._last_s = (
            np.array([_with_end_s(x, end[j], counts) for x, end in zip(least, ends, strict=True)])
            for j in (0, 1)
        )
        self._tails: dict[tuple[bool, bool], Floats] = {}

    def _tail_s(self, is_several: bool, has_head: bool) -> Floats:
        key = is_several, has_head
        if key not in self._tails:
            self._tails[key] = whole_layers_tail_s(
                self._problem, self._ways, self._ranges, is_several, has_head
            )
        return self._tails[key]

    def of(self, rows: Rows, is_several: bool) -> "Points":
        """Return slowest stage and all else of every cut, `(n, 2 (1 + n_layers))`.

        Of the last part some stage but the last of all holds c = ceil(k/q) layers; or those hold
        c - 1 at most, and the last holds the others and the head.
        """
        n_layers = self._problem.n_layers
        k = np.arange(n_layers + 1)[None, :]
        r = rows.range[:, None]
        has_two = rows.n_last[:, None] > 0
        a, p = rows.first[:, None], np.where(has_two, rows.n_first[:, None], 0)
        b = np.where(has_two, rows.last[:, None], a)
        q = np.where(has_two, rows.n_last[:, None], rows.n_first[:, None])
        rest = n_layers - k
        most, most_rest = -(-k // np.maximum(1, p)), -(-rest // q)
        # What the last stage holds where the others of its part hold one less than the fullest.
        at_end = np.clip(rest - (q - 1) * (most_rest - 1), most_rest, n_layers)
        times_s, in_first = self._capacity.times_s, has_two & (k > 0)
        later = rows.n_last + 1
        last_s = np.maximum(self._last_s[b, q, rest], times_s[b, r, 1, most_rest])
        alone_s = np.where(has_two, 0.0, self._first_s[b, q, rest])
        few_s = np.maximum(last_s, alone_s)
        first_s = np.maximum(self._first_s[a, p, k], times_s[a, r, 1, most])
        few_s = np.maximum(few_s, np.where(in_first, first_s, 0.0))
        more_s = np.where(in_first, times_s[a, r, later[:, None], most], 0.0)
        end_s = self._least_s[b, at_end] + self._head_s[b]
        tails_s, with_head_s = (self._tail_s(is_several, x) for x in (False, True))
        tail_s = np.where(in_first, tails_s[a, most, r], 0.0)
        sums_s = self._sums_s[a, k] + self._sums_s[b, n_layers] - self._sums_s[b, k]
        sums_s = sums_s + self._embedding_s[a] + self._head_s[b]
        possible = np.where(has_two, (k >= p) & (rest >= q), k == 0)
        few_s = np.where(possible, few_s, np.inf)
        few_s = np.concatenate([np.where(q > 1, few_s, np.inf), np.maximum(few_s, end_s)], axis=1)
        many_s = np.maximum(few_s, np.concatenate([more_s, more_s], axis=1))
        tails = (tails_s[b, most_rest, r], with_head_s[b, at_end, r])
        factor = self._problem.straggler_factor
        other_s = np.concatenate([sums_s + np.maximum(tail_s, x) / factor for x in tails], axis=1)
        return Points(later, (few_s, other_s), (many_s, other_s))


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
