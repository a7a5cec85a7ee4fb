"""The recurrence of schedules that split the backward, as numpy rows: many runs of one order.

Which block waits for which depends on (schedule, pp, n_micro) alone, so the programs of all ranks
are cut into rounds once: a rank runs at most one step in a round, and what it waits for ran in an
earlier one. A round is then a maximum and a sum over its ranks, for all runs at once.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from costmodels.schedule import zero_bubble
from costmodels.schedule.zero_bubble import FORWARD, WEIGHT_GRAD

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
N_KINDS = 4
"""Kinds of block, see `costmodels.schedule.zero_bubble`."""


@dataclass(frozen=True, slots=True)
class Times:
    """The seconds of one run by virtual stage, DualPipe's way back included."""

    blocks: Sequence[Sequence[float]]
    """By kind of block, then by virtual stage."""
    hops: Sequence[float]
    """Of a message from each virtual stage but the last to the next, 0 where no rank changes."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """The steps of all ranks in an order in which they can run, cut into rounds.

    Arrays `(n_steps, 2)` have an entry for each block of a step: the second of a single one waits
    for nothing, takes no time and ends nowhere.
    """

    n_stages: int
    n_micro: int
    stops: tuple[int, ...]
    """Where each round ends among the steps."""
    pairs: tuple[bool, ...]
    """Whether a round has a step of two blocks."""
    rank: Ints
    """Of each step, `(n_steps,)`."""
    waits_for: Ints
    """Position among the ends of blocks."""
    hop: Ints
    """Position among `Times.hops`, one past the last where no message is waited for."""
    took: Ints
    """Position among the flattened `Times.blocks`, one past the last for none."""
    ends: Ints
    """Position among the ends of blocks."""

    @property
    def n_bytes(self) -> int:
        """About what it takes in memory."""
        arrays = (self.rank, self.waits_for, self.hop, self.took, self.ends)
        return sum(array.nbytes for array in arrays) + 64 * len(self.stops)


MOST_KEPT, KEPT_BYTES = 64, 64_000_000
"""Orders whose rounds are kept for the next call; those of one take from kilobytes to some 10 MB.
"""
_KEPT: OrderedDict[tuple[str, int, int], Rounds] = OrderedDict()


def rounds_of(schedule: str, pp: int, n_micro: int) -> Rounds:
    """Return the rounds of an order; `zero_bubble.program` says what each rank runs."""
    key = schedule, pp, n_micro
    result = _KEPT.pop(key, None)
    if result is None:
        result = _rounds_of(*key)
        n_bytes = result.n_bytes + sum(rounds.n_bytes for rounds in _KEPT.values())
        while _KEPT and (n_bytes > KEPT_BYTES or len(_KEPT) >= MOST_KEPT):
            n_bytes -= _KEPT.popitem(last=False)[1].n_bytes
    _KEPT[key] = result
    return result


def _rounds_of(schedule: str, pp: int, n_micro: int) -> Rounds:
    n_stages = pp if schedule == "zb-h1" else 2 * pp
    ways = ((0, pp - 1), (pp, n_stages - 1)) if schedule == "dualpipe" else ((0, n_stages - 1),)
    programs = [zero_bubble.program(schedule, rank, pp, n_micro) for rank in range(pp)]
    n_blocks = np.fromiter((len(step) for program in programs for step in program), dtype=np.intp)
    blocks = chain.from_iterable(chain.from_iterable(programs))
    parts = np.fromiter(chain.from_iterable(blocks), dtype=np.intp).reshape(-1, 3)
    # Two more places: an end that is always there, at 0, and one that nobody looks at.
    places = 2 * n_stages * n_micro + 2
    none = np.array([places - 2, n_stages - 1, N_KINDS * n_stages, places - 1])
    table = np.tile(none, (len(n_blocks), 2, 1))
    first, pair = np.cumsum(n_blocks) - n_blocks, np.flatnonzero(n_blocks == 2)
    block_rows = _blocks(parts, ways, n_stages, n_micro, none)
    table[:, 0], table[pair, 1] = block_rows[first], block_rows[first[pair] + 1]
    lengths = np.array([len(program) for program in programs])
    stop = np.cumsum(lengths)
    ended = np.arange(places) == none[0]
    order = _order(ended, table[..., 0], table[..., 3], stop - lengths, stop)
    table, rank = table[np.concatenate(order)], np.repeat(np.arange(pp), lengths)
    stops = np.cumsum([len(steps) for steps in order]).tolist()
    second = table[:, 1, 3] != none[3]
    pairs = [bool(second[a:b].any()) for a, b in zip([0, *stops], stops, strict=False)]
    columns = (np.ascontiguousarray(table[..., i]) for i in range(4))
    steps = rank[np.concatenate(order)]
    return Rounds(n_stages, n_micro, tuple(stops), tuple(pairs), steps, *columns)


def _blocks(
    parts: Ints, ways: Sequence[tuple[int, int]], n_stages: int, n_micro: int, none: Ints
) -> Ints:
    """Return what each block waits for, its hop, its time and its end: positions, `(n, 4)`.

    `parts` are (virtual stage, micro-batch, kind); `none` the positions that stand for nothing.
    """
    stage, micro, kind = parts.T
    forward, weight_grad, total = kind == FORWARD, kind == WEIGHT_GRAD, n_stages * n_micro
    end = stage * n_micro + micro
    starts, turns = (np.isin(stage, [way[i] for way in ways]) for i in (0, 1))
    free = weight_grad | (forward & starts)
    # The gradient of the last stage needs its own forward, no message.
    alone = free | (~forward & turns)
    waits_for = np.where(forward, end - n_micro, np.where(turns, end, total + end + n_micro))
    return np.stack(
        [
            np.where(free, none[0], waits_for),
            np.where(alone, none[1], np.where(forward, stage - 1, stage)),
            kind * n_stages + stage,
            np.where(weight_grad, none[3], np.where(forward, end, total + end)),
        ],
        axis=1,
    )


def _order(
    ended: NDArray[np.bool_], waits_for: Ints, ends: Ints, start: Ints, stop: Ints
) -> list[Ints]:
    """Return the steps of each round; rank r runs steps `start[r]` to `stop[r]` in order.

    `ended` says which ends are there from the start; it is filled.
    """
    position, live = start.copy(), np.flatnonzero(start < stop)
    rounds = []
    while len(live):
        steps = position[live]
        ready = ended[waits_for[steps]].all(axis=1)
        assert ready.any(), "the programs deadlock"
        steps = steps[ready]
        rounds.append(steps)
        ended[ends[steps]] = True
        position[live[ready]] += 1
        live = live[position[live] < stop[live]]
    return rounds


def simulate(schedule: str, pp: int, n_micro: int, runs: Sequence[Times]) -> tuple[Floats, Floats]:
    """Return the step of each run, `(n_runs,)`, and when its blocks end, in seconds.

    The ends are `(2, n_stages, n_micro, n_runs)`, forwards and then backwards, -1 for those that
    no rank runs.

    end(step) = max( end(previous step of the rank), end(producer) + tau ) + duration

    A step of two blocks waits for both inputs and takes as long as both.
    """
    order = rounds_of(schedule, pp, n_micro)
    n_runs = len(runs)
    blocks = np.array([[*(x for kind in run.blocks for x in kind), 0.0] for run in runs]).T
    hops = np.array([[*run.hops, 0.0] for run in runs]).T
    took = blocks[order.took[:, 0]] + blocks[order.took[:, 1]]
    hop, first, second = hops[order.hop], order.waits_for[:, 0], order.waits_for[:, 1]
    ends = np.full((2 * order.n_stages * n_micro + 2, n_runs), -1.0)
    ends[-2] = 0.0
    clock = np.zeros((pp, n_runs))
    start = 0
    for stop, pairs in zip(order.stops, order.pairs, strict=True):
        ranks = order.rank[start:stop]
        now = ends[first[start:stop]] + hop[start:stop, 0]
        np.maximum(now, clock[ranks], out=now)
        if pairs:
            np.maximum(now, ends[second[start:stop]] + hop[start:stop, 1], out=now)
        now += took[start:stop]
        clock[ranks] = now
        ends[order.ends[start:stop, 0]] = now
        if pairs:
            ends[order.ends[start:stop, 1]] = now
        start = stop
    return clock.max(axis=0), ends[:-2].reshape(2, order.n_stages, n_micro, n_runs)
