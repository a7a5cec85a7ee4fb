"""The slowest stage of many pipelines at once, from below: whole layers, memory, recomputation.

A part of n stages whose fullest holds k layers holds at most n k. With t(k) the least time in
which a stage runs k layers that fit its memory,

    slowest >= min over k_1 of max( t_1(k_1), t_2(k_2) ),  n_1 k_1 + n_2 k_2 >= layers

Memory is that of the last stage of each part, which has fewest micro-batches in flight; the ends
of the model are left out.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedProblem, Prefix
from searches.mixed.fills import Way

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def _least(prefix: Prefix) -> Floats:
    """Return the least that 0, 1, ... layers have of a figure."""
    each = np.sort(np.diff(prefix.layers))
    return np.concatenate([[0.0], np.cumsum(each)])


class Capacity:
    """The least time of k layers in each way, by micro-batches in flight and pipelines."""

    def __init__(
        self,
        problem: MixedProblem,
        ways: Sequence[Way],
        ranges: Sequence[tuple[int, int]],
        most_stages: int,
    ) -> None:
        self.problem, self.ways, self.ranges = problem, ways, ranges
        self.n_layers, self.most_flight = problem.n_layers, most_stages
        self._times: Floats | None = None

    @property
    def times_s(self) -> Floats:
        """The least time, `(n_ways, n_ranges, 1 + most_flight, 1 + n_layers)`; else infinite."""
        if self._times is None:
            size = len(self.ranges), 1 + self.most_flight, 1 + self.n_layers
            self._times = np.full((len(self.ways), *size), np.inf)
            flight = np.arange(1 + self.most_flight)[None, :, None]
            last = np.array([float(b) for _, b in self.ranges])[:, None, None]
            share = last if self.problem.zero else np.ones_like(last)
            for i, way in enumerate(self.ways):
                usable = self.problem.pools[way.pool].usable_bytes
                for x in way.tables:
                    seconds = np.diff(x.forward_s.layers + x.backward_s.layers)
                    time_s = np.concatenate([[0.0], np.cumsum(np.sort(seconds))])
                    size_ = _least(x.whole_bytes) + _least(x.shared_bytes) / share
                    size_ = size_ + flight * _least(x.activation_bytes)
                    size_ = size_ + _least(x.working_bytes) + x.fixed_bytes
                    fits = np.where(size_ <= usable, time_s, np.inf)
                    self._times[i] = np.minimum(self._times[i], fits)
        return self._times

    def slowest_s(self, parts: Ints, counts: Ints, range_: Ints) -> tuple[Floats, Floats, Ints]:
        """Return lower bounds of the slowest stage of some pipelines, `(n,)` each.

        `parts` and `counts` are those of `Structures`. The first for any micro-batches, the second
        from some on, which come third.
        """
        n = len(parts)
        second = counts[:, 1] if parts.shape[1] > 1 else np.zeros(n, dtype=np.int64)
        if parts.shape[1] > 2 and counts[:, 2:].any():
            return np.zeros(n), np.zeros(n), np.ones(n, dtype=np.int64)
        later = second + 1
        few = self._two(parts, counts, range_, np.ones(n, dtype=np.int64))
        many = np.where(second > 0, self._two(parts, counts, range_, later), few)
        return few, many, later

    def _two(self, parts: Ints, counts: Ints, range_: Ints, flight: Ints) -> Floats:
        """Return the bound with micro-batches in flight in the first part, one in the last."""
        times, layers = self.times_s, self.n_layers
        result = np.full(len(parts), np.inf)
        first, n = parts[:, 0], counts[:, 0]
        alone = counts[:, 1:].sum(axis=1) == 0
        rows = np.flatnonzero(alone)
        fullest = -(-layers // n[rows])
        result[rows] = times[first[rows], range_[rows], 1, fullest]
        rows = np.flatnonzero(~alone)
        if not len(rows):
            return result
        a, b = first[rows], parts[rows, 1]
        n_a, n_b, r, f = n[rows], counts[rows, 1], range_[rows], flight[rows]
        best = np.full(len(rows), np.inf)
        for k in range(1, layers):
            rest = np.maximum(1, -(-(layers - n_a * k) // n_b))
            inside = np.minimum(rest, layers)
            best = np.minimum(best, np.maximum(times[a, r, f, k], times[b, r, 1, inside]))
        result[rows] = best
        return result
