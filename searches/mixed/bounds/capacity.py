"""The least time in which a stage runs so many layers that fit its memory.

Of so many layers those that are least in each figure; the ends of the model are left out.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedProblem, Prefix
from searches.mixed.fills import Way

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def least_sums(each: Floats) -> Floats:
    """Return the least sum of 0, 1, ... of some values."""
    return np.concatenate([[0.0], np.cumsum(np.sort(each))])


def _least(prefix: Prefix) -> Floats:
    """Return the least that 0, 1, ... layers have of a figure."""
    return least_sums(np.diff(prefix.layers))


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
                    time_s = least_sums(seconds)
                    size_ = _least(x.whole_bytes) + _least(x.shared_bytes) / share
                    size_ = size_ + flight * _least(x.activation_bytes)
                    size_ = size_ + _least(x.working_bytes) + x.fixed_bytes
                    fits = np.where(size_ <= usable, time_s, np.inf)
                    self._times[i] = np.minimum(self._times[i], fits)
        return self._times
