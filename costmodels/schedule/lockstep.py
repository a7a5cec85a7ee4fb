"""The recurrence of 1F1B and interleaved pipelines for many of them at a time, as numpy rows.

Every block gets a tick such that a block's producer and its rank's block before come earlier. Tick
n is two half-ticks, all forwards and then all backwards; s = p - 1 - r counts ranks from the last.

    interleaved:  F number k of rank r at tick k + r,    B at k + (v - 1) p + (p - 1) + s
    1F1B:         F number k of rank r at tick 2 k + r,  B at 2 k + (p - 1) + s

Interleaved rank r warms up with w = 2 s + (v - 1) p forwards, so its F number k + w stands at tick
k + 2 (p - 1) - r + (v - 1) p: that of its B number k, one half-tick before it, which is the order
of `pipeline.rank_program`; 1F1B likewise with w = s. A forward gets its input from the rank before
(the first rank from the last one's chunk before), a backward from the rank after, both sent in the
tick before. So the state of a pipeline is what each rank ended last in both half-ticks, and a tick
is two shifts, maxima and sums over ranks, for all pipelines at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

SCHEDULES = ("1f1b", "interleaved")
TICKS = 256
"""Ticks whose blocks are looked up at a time."""
SAME = 1e-12
"""Spread of the shifts of all ranks, over the shift, below which they are taken for equal."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the order of blocks depends on."""

    schedule: str
    pp: int
    vpp: int
    n_micro: int

    @property
    def _stretch(self) -> int:
        """Ticks from one forward of a rank to its next."""
        return 1 if self.schedule == "interleaved" else 2

    @property
    def _first_backward(self) -> int:
        """Tick of rank 0's first backward: from then on all ranks run both kinds."""
        return (self.vpp - 1) * self.pp + 2 * (self.pp - 1)

    @property
    def n_ticks(self) -> int:
        """Ticks of one step."""
        return self.last_forward + self._first_backward + 1

    @property
    def last_forward(self) -> int:
        """Tick of rank 0's last forward: up to it, a longer step is the same."""
        return self._stretch * (self.n_micro * self.vpp - 1)

    @property
    def period(self) -> int:
        """Ticks of p micro-batches."""
        return self._stretch * self.pp * self.vpp

    def repeats(self, n_periods: int) -> bool:
        """Tell whether the last `n_periods` periods of forwards run all ranks both ways."""
        return self.last_forward - n_periods * self.period + 1 >= self._first_backward


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline: its order and the seconds of its blocks."""

    order: Order
    forward_s: tuple[float, ...]
    """By virtual stage in model order."""
    backward_s: tuple[float, ...]
    hop_s: tuple[float, ...]
    """By boundary: from rank r to r + 1, the last from rank p - 1 back to rank 0."""


@dataclass(frozen=True, slots=True)
class _Blocks:
    """What each rank runs in some ticks, `(n_ticks, pp)`: virtual stage and boundary before it.

    One past the last virtual stage where a rank runs nothing, one past the last boundary where it
    waits for no message.
    """

    forward: Ints
    activation: Ints
    backward: Ints
    gradient: Ints


@lru_cache(maxsize=64)
def _blocks(order: Order, start: int, stop: int) -> _Blocks:
    p, v = order.pp, order.vpp
    rank, idle, silent = np.arange(p), p * v, p
    tick = np.arange(start, stop)[:, None]

    def stages(number: Ints, backward: bool) -> tuple[Ints, NDArray[np.bool_]]:
        """Return the virtual stage of a rank's k-th block, and whether it exists."""
        k = number if order.schedule == "interleaved" else number // 2
        runs = (k >= 0) & (k < order.n_micro * v)
        if order.schedule != "interleaved":
            runs &= number % 2 == 0
        chunk = k % (p * v) // p
        chunk = v - 1 - chunk if backward else chunk
        return np.where(runs, chunk * p + rank, idle), runs

    forward, runs = stages(tick - rank, backward=False)
    activation = np.where(runs & (forward > 0), (rank - 1) % p, silent)
    backward, runs = stages(tick - order._first_backward + rank, backward=True)
    gradient = np.where(runs & (backward < idle - 1), rank, silent)
    return _Blocks(forward, activation, backward, gradient)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The ranks of all pipelines side by side, `(n_columns,)`."""

    before: Ints
    """Column of the rank before each in its pipeline, and after it, in a ring."""
    after: Ints
    clock: Floats
    """When each ended last."""
    forward_s: Floats
    """When the rank before ended its last forward, the rank after its last backward."""
    backward_s: Floats


def flush_and_period_s(
    pipelines: Sequence[Pipeline], lags: Sequence[int]
) -> tuple[list[float], list[float]]:
    """Return the step of each pipeline, and the time of one period once it repeats, seconds.

    A period is p micro-batches. It is -1 unless the last `lag` periods, for one of `lags`, shifted
    all ranks by the same time while every rank ran forwards and backwards. Then the next `lag`
    periods would do the same, as the recurrence knows nothing but differences: a step with `lag`
    periods more takes `lag` times the period longer, exactly.
    """
    # Longest first: the pipelines that still run are the first columns.
    by_length = sorted(range(len(pipelines)), key=lambda i: _rank_of(pipelines[i].order))
    rows = [pipelines[i] for i in by_length]
    groups = [(order, list(same)) for order, same in groupby(rows, key=lambda x: x.order)]
    n_columns = sum(len(x.forward_s) // x.order.vpp for x in rows)
    before, after = np.empty(n_columns, dtype=np.intp), np.empty(n_columns, dtype=np.intp)
    starts: list[int] = []
    first = 0
    for order, same in groups:
        starts.append(first)
        for _ in same:
            ranks = np.arange(order.pp)
            before[first : first + order.pp] = first + (ranks - 1) % order.pp
            after[first : first + order.pp] = first + (ranks + 1) % order.pp
            first += order.pp
    state = _Columns(before, after, *(np.zeros(n_columns) for _ in range(3)))
    marks: dict[tuple[int, int], Floats] = {}
    for start in range(0, groups[0][0].n_ticks if groups else 0, TICKS):
        running = [(g, i) for g, i in zip(groups, starts, strict=True) if g[0].n_ticks > start]
        stop = min(start + TICKS, groups[0][0].n_ticks)
        last, width = running[-1][0], running[-1][1]
        width += last[0].pp * len(last[1])
        ended = _run(start, stop, running, width, state)
        state.clock[:width] = ended[1][-1]
        for (order, same), first in running:
            columns = slice(first, first + order.pp * len(same))
            for mark in (order.last_forward - lag * order.period for lag in (0, *lags)):
                if start <= mark < stop:
                    marks[first, mark] = np.stack([half[mark - start, columns] for half in ended])
    flush, period = [0.0] * len(rows), [-1.0] * len(rows)
    result = iter(by_length)
    for (order, same), first in zip(groups, starts, strict=True):
        shape = (len(same), order.pp)
        ends = state.clock[first : first + len(same) * order.pp].reshape(shape).max(axis=1)
        steady = np.full(len(same), -1.0)
        for lag in lags:
            if not order.repeats(lag):
                continue
            earlier, later = (
                marks[first, order.last_forward - back * order.period].reshape(2, *shape)
                for back in (lag, 0)
            )
            moved = (later - earlier).transpose(1, 0, 2).reshape(len(same), -1)
            equal = np.ptp(moved, axis=1) <= SAME * moved[:, 0]
            steady = np.where(equal & (steady < 0.0), moved[:, 0] / lag, steady)
        for one, each in zip(ends.tolist(), steady.tolist(), strict=True):
            i = next(result)
            flush[i], period[i] = one, each
    return flush, period


def _rank_of(order: Order) -> tuple[int, str, int, int, int]:
    return (-order.n_ticks, order.schedule, order.pp, order.vpp, order.n_micro)


def _run(
    start: int,
    stop: int,
    running: Sequence[tuple[tuple[Order, list[Pipeline]], int]],
    width: int,
    state: _Columns,
) -> tuple[Floats, Floats]:
    """Return when each rank ended its forwards and backwards of some ticks, `(n_ticks, width)`."""
    shape = (stop - start, width)
    forward, backward, activation, gradient = (np.empty(shape) for _ in range(4))
    for (order, same), first in running:
        columns = slice(first, first + len(same) * order.pp)
        blocks = _blocks(order, start, stop)
        for into, values, index, absent in (
            (forward, [x.forward_s for x in same], blocks.forward, 0.0),
            (backward, [x.backward_s for x in same], blocks.backward, 0.0),
            (activation, [x.hop_s for x in same], blocks.activation, -np.inf),
            (gradient, [x.hop_s for x in same], blocks.gradient, -np.inf),
        ):
            table = np.array([(*row, absent) for row in values])
            into[:, columns] = table[:, index].transpose(1, 0, 2).reshape(len(index), -1)
    after_forward, after_backward = np.empty(shape), np.empty(shape)
    before, after = state.before[:width], state.after[:width]
    from_before, from_after = state.forward_s[:width], state.backward_s[:width]
    now, ready = state.clock[:width], np.empty(width)
    ticks = zip(
        activation, forward, after_forward, gradient, backward, after_backward, strict=True
    )
    for hop, took, ended, hop_back, took_back, ended_back in ticks:
        np.add(from_before, hop, out=ready)
        np.maximum(ready, now, out=ready)
        np.add(ready, took, out=ended)
        ended.take(before, out=from_before, mode="clip")
        np.add(from_after, hop_back, out=ready)
        np.maximum(ready, ended, out=ready)
        np.add(ready, took_back, out=ended_back)
        ended_back.take(after, out=from_after, mode="clip")
        now = ended_back
    return after_forward, after_backward
