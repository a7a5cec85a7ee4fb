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
from searches.mixed.capacity import Capacity
from searches.mixed.fills import Way, layer_times_s
from searches.mixed.tails import whole_layers_tail_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BLOCK = 4096
"""Rows of which the cuts are looked at together."""


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


class Cuts:
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
        least = [_sums(np.sort(x)) for x in each]
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

    def points(self, rows: Rows, flight: Ints, is_several: bool) -> tuple[Floats, Floats]:
        """Return slowest stage and all else of the cuts worth it, seconds, `(n, n_points)` each.

        `flight` are micro-batches that stages of the first part have in flight at least. All else
        is the sum over stages and, over the stragglers' factor, what follows the pipeline. Of
        fewer cuts the rest are infinite.
        """
        blocks = [
            _efficient(*self._block(rows.part(slice(i, i + BLOCK)), flight[i : i + BLOCK], is_several))
            for i in range(0, len(rows.range), BLOCK)
        ]
        width = max((x.shape[1] for x, _ in blocks), default=1)
        slowest, other = (np.concatenate([padded(x[j], width) for x in blocks]) for j in (0, 1))
        return slowest, other

    def _block(self, rows: "Rows", flight: Ints, is_several: bool) -> tuple[Floats, Floats]:
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
        first_s = np.maximum(self._first_s[a, p, k], times_s[a, r, flight[:, None], most])
        last_s = np.maximum(self._last_s[b, q, rest], times_s[b, r, 1, most_rest])
        alone_s = np.where(has_two, 0.0, self._first_s[b, q, rest])
        slowest_s = np.maximum(np.maximum(np.where(in_first, first_s, 0.0), last_s), alone_s)
        end_s = np.maximum(slowest_s, self._least_s[b, at_end] + self._head_s[b])
        tails_s, with_head_s = (self._tail_s(is_several, x) for x in (False, True))
        tail_s = np.where(in_first, tails_s[a, most, r], 0.0)
        sums_s = self._sums_s[a, k] + self._sums_s[b, n_layers] - self._sums_s[b, k]
        sums_s = sums_s + self._embedding_s[a] + self._head_s[b]
        possible = np.where(has_two, (k >= p) & (rest >= q), k == 0)
        factor = self._problem.straggler_factor
        slowest = [np.where(possible & (q > 1), slowest_s, np.inf)]
        slowest.append(np.where(possible, end_s, np.inf))
        tails = (tails_s[b, most_rest, r], with_head_s[b, at_end, r])
        other = [sums_s + np.maximum(tail_s, x) / factor for x in tails]
        return np.concatenate(slowest, axis=1), np.concatenate(other, axis=1)


def _efficient(slowest_s: Floats, other_s: Floats) -> tuple[Floats, Floats]:
    """Return the points that no other is better than in both, by the first, left-aligned."""
    order = np.argsort(slowest_s, axis=1, kind="stable")
    slowest_s = np.take_along_axis(slowest_s, order, axis=1)
    other_s = np.take_along_axis(other_s, order, axis=1)
    before = np.minimum.accumulate(np.where(np.isfinite(slowest_s), other_s, np.inf), axis=1)
    kept = np.isfinite(slowest_s)
    kept[:, 1:] &= other_s[:, 1:] < before[:, :-1]
    width = max(1, int(kept.sum(axis=1).max(initial=1)))
    place = np.argsort(~kept, axis=1, kind="stable")[:, :width]
    has = np.take_along_axis(kept, place, axis=1)
    both = [
        np.where(has, np.take_along_axis(x, place, axis=1), np.inf) for x in (slowest_s, other_s)
    ]
    return both[0], both[1]


def padded(points: Floats, width: int) -> Floats:
    """Return points with columns of infinity up to a width."""
    if points.shape[1] == width:
        return points
    result = np.full((len(points), width), np.inf)
    result[:, : points.shape[1]] = points
    return result


def joined(first: Floats, second: Floats, width: int) -> Floats:
    """Return points of some rows, then those of others."""
    return np.concatenate([padded(first, width), padded(second, width)])
