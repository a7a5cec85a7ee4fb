"""The recurrence of schedules that split the backward, as numpy rows: many runs of one order.

Which block waits for which depends on (schedule, pp, n_micro) alone, so the programs of all ranks
are cut into rounds once: a rank runs at most one step in a round, and what it waits for ran in an
earlier one. A round is then a maximum and a sum over its ranks, for all runs at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodels import zero_bubble
from costmodels.zero_bubble import FORWARD, INPUT_GRAD, WEIGHT_GRAD, Part

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
N_KINDS = 4
"""Kinds of block, see `costmodels.zero_bubble`."""


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


@lru_cache(maxsize=64)
def rounds_of(schedule: str, pp: int, n_micro: int) -> Rounds:
    """Return the rounds of an order; `zero_bubble.program` says what each rank runs."""
    n_stages = pp if schedule == "zb-h1" else 2 * pp
    ways = ((0, pp - 1), (pp, n_stages - 1)) if schedule == "dualpipe" else ((0, n_stages - 1),)
    firsts, lasts = {way[0] for way in ways}, {way[1] for way in ways}
    whole = n_stages * n_micro
    # Two more places: an end that is always there, at 0, and one that nobody looks at.
    at_once, nowhere, no_hop, no_time = 2 * whole, 2 * whole + 1, n_stages - 1, N_KINDS * n_stages

    def block(part: Part) -> tuple[int, int, int, int]:
        stage, micro, kind = part
        took, end = kind * n_stages + stage, stage * n_micro + micro
        if kind == WEIGHT_GRAD:
            return at_once, no_hop, took, nowhere
        if kind == FORWARD:
            if stage in firsts:
                return at_once, no_hop, took, end
            return end - n_micro, stage - 1, took, end
        if stage in lasts:
            return end, no_hop, took, whole + end
        return whole + end + n_micro, stage, took, whole + end

    none = (at_once, no_hop, no_time, nowhere)
    programs = [zero_bubble.program(schedule, rank, pp, n_micro) for rank in range(pp)]
    rows = [
        (block(step[0]), block(step[1]) if len(step) > 1 else none)
        for program in programs
        for step in program
    ]
    table = np.array(rows, dtype=np.intp)
    lengths = np.array([len(program) for program in programs])
    stop = np.cumsum(lengths)
    order = _order(table[..., 0], table[..., 3], stop - lengths, stop)
    table, rank = table[np.concatenate(order)], np.repeat(np.arange(pp), lengths)
    stops = np.cumsum([len(steps) for steps in order]).tolist()
    second = table[:, 1, 2] != no_time
    pairs = [bool(second[a:b].any()) for a, b in zip([0, *stops], stops, strict=False)]
    columns = (np.ascontiguousarray(table[..., i]) for i in range(4))
    steps = rank[np.concatenate(order)]
    return Rounds(n_stages, n_micro, tuple(stops), tuple(pairs), steps, *columns)


def _order(waits_for: Ints, ends: Ints, start: Ints, stop: Ints) -> list[Ints]:
    """Return the steps of each round; rank r runs steps `start[r]` to `stop[r]` in order."""
    ended = np.zeros(int(ends.max()) + 1, dtype=bool)
    ended[-2] = True
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
