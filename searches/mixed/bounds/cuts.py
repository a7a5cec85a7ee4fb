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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedProblem
from searches.mixed.bounds.capacity import Capacity, least_sums
from searches.mixed.bounds.families import Family
from searches.mixed.bounds.points import Points
from searches.mixed.bounds.tails import (
    ANY,
    FIRST,
    INNER,
    LAST,
    NOT_LAST,
    Ends,
    whole_layers_tail_s,
)
from searches.mixed.fills import Way, layer_times_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

CASES = 3
"""Of what a stage at an end of the model holds: the mean of its part, one layer less, fewer."""


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


class _Part(NamedTuple):
    """One part of pipelines at every cut."""

    way: Ints
    n_stages: Ints
    layers: Ints
    most: Ints
    """Layers of its fullest stage at least."""

    def held(self, case: int) -> tuple[Ints, Ints]:
        """Return the layers that a stage at the end holds at least and at most."""
        if case == 0:
            return self.most, self.layers
        most = np.maximum(0, self.most - case)
        return (most if case == 1 else np.minimum(1, most)), most


class _Cuts(NamedTuple):
    """Every cut of some rows, `(n, 1 + n_layers)` each or one of both."""

    rows: Rows
    has_two: Bools
    in_first: Bools
    """Whether the first of two parts holds layers."""
    first: _Part
    last: _Part
    few_s: Floats
    """Slowest stage; infinite where there is no such cut."""
    more_s: Floats
    """That of the first part with so many micro-batches that it has more in flight."""
    sum_s: Floats
    """Sum over the stages."""


class CutBounds:
    """What every cut of pipelines over one or two pools takes at least."""

    def __init__(
        self,
        problem: MixedProblem,
        ways: Sequence[Way],
        ranges: Sequence[tuple[int, int]],
        capacity: Capacity,
        counts: Sequence[int],
        most_kinds: int,
    ) -> None:
        self._problem, self._ways, self._ranges = problem, ways, ranges
        self._most_kinds = most_kinds
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
        self._tails: dict[Ends, Floats] = {}

    def _tail_s(self, n_kinds: int, ends: Ends) -> Floats:
        """Return what follows the pipeline in a stage of so many layers, by way and range."""
        if ends not in self._tails:
            self._tails[ends] = whole_layers_tail_s(
                self._problem, self._ways, self._ranges, self._most_kinds, ends
            )
        return np.asarray(self._tails[ends][n_kinds - 1])

    def _exchanges_s(self, cuts: _Cuts, family: Family) -> tuple[Floats, Floats]:
        """Return the exchange of each part over the link between sites; 0 if it need not cross."""
        if not family.crossing_s:
            return np.zeros(1), np.zeros(1)
        crosses = family.crosses([x.pool for x in self._ways])
        exchange_s, n_first = family.exchange_s, np.where(cuts.has_two, cuts.first.layers, 0)
        first_s, last_s = exchange_s[n_first], exchange_s[-1] - exchange_s[n_first]
        return (
            np.where(crosses[cuts.first.way], first_s, 0.0),
            np.where(crosses[cuts.last.way], last_s, 0.0),
        )

    def _after_s(
        self, family: Family, ends: Ends, stages: tuple[Ints, Ints, Ints], exchange_s: Floats
    ) -> Floats:
        """Return what follows the pipeline in stages (way, layers, range), with its exchange.

        Over the NIC of a device, or `exchange_s` where that takes longer.
        """
        tail_s = self._tail_s(family.n_kinds, ends)[stages]
        if not family.crossing_s:
            return np.asarray(tail_s)
        return np.asarray(np.maximum(tail_s, self._tail_s(1, ends)[stages] + exchange_s))

    def _cuts(self, rows: Rows) -> _Cuts:
        n_layers, times_s = self._problem.n_layers, self._capacity.times_s
        k = np.arange(n_layers + 1)[None, :]
        r = rows.range[:, None]
        has_two = rows.n_last[:, None] > 0
        a, p = rows.first[:, None], np.where(has_two, rows.n_first[:, None], 0)
        b = np.where(has_two, rows.last[:, None], a)
        q = np.where(has_two, rows.n_last[:, None], rows.n_first[:, None])
        rest = n_layers - k
        most, most_rest = -(-k // np.maximum(1, p)), -(-rest // q)
        in_first = has_two & (k > 0)
        last_s = np.maximum(self._last_s[b, q, rest], times_s[b, r, 1, most_rest])
        alone_s = np.where(has_two, 0.0, self._first_s[b, q, rest])
        few_s = np.maximum(last_s, alone_s)
        first_s = np.maximum(self._first_s[a, p, k], times_s[a, r, 1, most])
        few_s = np.maximum(few_s, np.where(in_first, first_s, 0.0))
        later = (rows.n_last + 1)[:, None]
        more_s = np.where(in_first, times_s[a, r, later, most], 0.0)
        sums_s = self._sums_s[a, k] + self._sums_s[b, n_layers] - self._sums_s[b, k]
        sums_s = sums_s + self._embedding_s[a] + self._head_s[b]
        possible = np.where(has_two, (k >= p) & (rest >= q), k == 0)
        few_s = np.where(possible, few_s, np.inf)
        first, last = _Part(a, p, k, most), _Part(b, q, rest, most_rest)
        return _Cuts(rows, has_two, in_first, first, last, few_s, more_s, sums_s)

    def of(self, rows: Rows, family: Family) -> Points:
        """Return slowest stage and all else of every cut, `(n, 2 (1 + n_layers))`.

        Of the last part some stage but the last of all holds c = ceil(k/q) layers; or those hold
        c - 1 at most, and the last holds the others and the head.
        """
        cuts, r = self._cuts(rows), rows.range[:, None]
        first, last = cuts.first, cuts.last
        # What the last stage holds where the others of its part hold one less than the fullest.
        at_end = last.layers - (last.n_stages - 1) * (last.most - 1)
        at_end = np.clip(at_end, last.most, self._problem.n_layers)
        end_s = self._least_s[last.way, at_end] + self._head_s[last.way]
        exchange_s, last_exchange_s = self._exchanges_s(cuts, family)
        tail_s = self._after_s(family, NOT_LAST, (first.way, first.most, r), exchange_s)
        tail_s = np.where(cuts.in_first, tail_s, 0.0)
        before_s = np.where(last.n_stages > 1, cuts.few_s, np.inf)
        few_s = np.concatenate([before_s, np.maximum(cuts.few_s, end_s)], axis=1)
        many_s = np.maximum(few_s, np.concatenate([cuts.more_s, cuts.more_s], axis=1))
        tails = [
            self._after_s(family, ends, (last.way, n, r), last_exchange_s)
            for ends, n in ((NOT_LAST, last.most), (ANY, at_end))
        ]
        factor = self._problem.straggler_factor
        other_s = np.concatenate(
            [cuts.sum_s + np.maximum(tail_s, x) / factor for x in tails], axis=1
        )
        return Points(rows.n_last + 1, (few_s, other_s), (many_s, other_s))

    def with_ends(self, rows: Rows, family: Family) -> Points:
        """Return the same with what the stages at the ends of the model hold, nine of each cut.

        The first stage holds c = ceil(k/p) layers of its part or more; or c - 1; or fewer: what
        it does not hold its neighbours hold. The last likewise. Of two stages or more.
        """
        cuts = self._cuts(rows)
        start = _Part(
            *(np.where(cuts.has_two, x, y) for x, y in zip(cuts.first, cuts.last, strict=True))
        )
        each = [
            self._with_held(cuts, start, (i, j), family)
            for i in range(CASES)
            for j in range(CASES)
        ]
        few_s, many_s, other_s = (np.concatenate(x, axis=1) for x in zip(*each, strict=True))
        return Points(rows.n_last + 1, (few_s, other_s), (many_s, other_s))

    def _with_held(
        self, cuts: _Cuts, start: _Part, cases: tuple[int, int], family: Family
    ) -> tuple[Floats, Floats, Floats]:
        """Return slowest stage, with few and many micro-batches, and all else in one case."""
        rows, last = cuts.rows, cuts.last
        r, later = rows.range[:, None], (rows.n_last + 1)[:, None]
        (held, most), (held_last, most_last) = start.held(cases[0]), last.held(cases[1])
        # Of one part the other stages are those between its ends.
        both = np.where(cuts.has_two, most, most + most_last)
        between = start.n_stages - np.where(cuts.has_two, 1, 2)
        inner, is_possible = _others(start.layers - both, between)
        inner_last, is_last = _others(last.layers - most_last, last.n_stages - 1)
        is_possible = is_possible & (held > 0) & (held_last > 0)
        is_possible = is_possible & (is_last | ~cuts.has_two)
        inner_last = np.where(cuts.has_two, inner_last, 0)
        a, b, times_s = start.way, last.way, self._capacity.times_s
        few_s = np.maximum(
            self._least_s[a, held] + self._embedding_s[a],
            self._least_s[b, held_last] + self._head_s[b],
        )
        for way, n in ((a, inner), (b, inner_last)):
            few_s = np.maximum(few_s, times_s[way, r, 1, n])
        few_s = np.where(is_possible, np.maximum(few_s, cuts.few_s), np.inf)
        more_s = np.maximum(cuts.more_s, np.where(cuts.has_two, times_s[a, r, later, inner], 0.0))
        exchange_s, last_exchange_s = self._exchanges_s(cuts, family)
        start_exchange_s = np.where(cuts.has_two, exchange_s, last_exchange_s)
        tail_s = np.maximum(
            self._after_s(family, FIRST, (a, held, r), start_exchange_s),
            self._after_s(family, LAST, (b, held_last, r), last_exchange_s),
        )
        for way, n, own_s in ((a, inner, start_exchange_s), (b, inner_last, last_exchange_s)):
            between_s = self._after_s(family, INNER, (way, n, r), own_s)
            tail_s = np.maximum(tail_s, np.where(n > 0, between_s, 0.0))
        other_s = cuts.sum_s + tail_s / self._problem.straggler_factor
        return few_s, np.maximum(few_s, more_s), other_s


def _others(layers: Ints, n_stages: Ints) -> tuple[Ints, Bools]:
    """Return the layers of the fullest of some stages at least, and whether there may be such."""
    most = -(-np.maximum(0, layers) // np.maximum(1, n_stages))
    return np.where(n_stages > 0, most, 0), (n_stages > 0) | (layers <= 0)
