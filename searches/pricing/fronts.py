"""Exact fronts of step time and memory, kept while plans are priced; non-dominated points."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodels.plans import PlanBlock
from searches.pricing.candidates import Candidate, closed_form_order

Floats = NDArray[np.float64]
Point = tuple[float, ...]
Item = TypeVar("Item")


def staircase(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that no other beats, by closed-form time and by peak memory.

    Fastest first, so memory falls along the list. Of plans with equal numbers the first by
    `layout_key` stays, so the answer does not depend on the order of the candidates.
    """
    steps: list[Candidate] = []
    for c in sorted(candidates, key=closed_form_order):
        if not steps or c.peak_bytes < steps[-1].peak_bytes:
            steps.append(c)
    return steps


def merged_front(parts: Iterable[Sequence[Candidate]]) -> list[Candidate]:
    """Return the front of the union of several fronts."""
    return staircase(c for part in parts for c in part)


def hopeful(candidates: Iterable[Candidate], front: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that may be of the front by exact times, in the order of degrees.

    Those whose lower bound (`Candidate.least_s`) no plan of `front` (a `staircase`) with as little
    memory is below by its closed form.
    """
    times = np.array([c.closed_form_s for c in front])
    peaks = np.array([c.peak_bytes for c in front])
    return [c for c in candidates if c.least_s <= _least_s(times, peaks, np.array(c.peak_bytes))]


def _least_s(times: Floats, peaks: Floats, of_bytes: Floats) -> Floats:
    """Return the least time of a staircase within so much memory each; inf where none is.

    `times` ascend and `peaks` descend.
    """
    rows = np.searchsorted(-peaks, -of_bytes, side="left")
    return np.asarray(np.append(times, np.inf)[rows])


@dataclass(frozen=True, slots=True)
class PricedCells:
    """Numbers of the plans of a block, one entry a cell, in the order of its cells."""

    times_s: Floats
    """Closed form, seconds; inf where a plan is illegal or does not fit."""
    least_s: Floats
    """A lower bound of the exact time, seconds; inf likewise."""
    peaks: Floats
    """Bytes."""


class Front:
    """The plans of all blocks seen so far that no other beats in both time and memory."""

    def __init__(self) -> None:
        self.members: list[Candidate] = []
        """By the closed form, fastest first."""
        self.hopeful: list[Candidate] = []
        """Others that exact times may put there, see `hopeful`."""
        self._times: Floats = np.empty(0)
        self._peaks: Floats = np.empty(0)

    def add(self, block: PlanBlock, n_layers: int, priced: PricedCells) -> None:
        """Take up the plans of a block."""
        times, peaks = priced.times_s, priced.peaks
        cells = np.flatnonzero(np.isfinite(times))
        if len(self.members):
            # Points beaten by a member; equal ones stay, for `staircase` to choose among.
            last = np.searchsorted(self._times, times[cells], side="right") - 1
            against = np.maximum(last, 0)
            faster = self._times[against] < times[cells]
            beaten = (self._peaks[against] < peaks[cells]) | (
                faster & (self._peaks[against] == peaks[cells])
            )
            new = cells[(last < 0) | ~beaten]
        else:
            new = cells
        new = new[_undominated(times[new], peaks[new])]
        if len(new):
            candidates = self._candidates(block, n_layers, priced, new)
            replaced = self.members
            self.members = staircase([*self.members, *candidates])
            self._times = np.array([c.closed_form_s for c in self.members])
            self._peaks = np.array([c.peak_bytes for c in self.members])
            member_ids = set(map(id, self.members))
            lost = [c for c in (*replaced, *candidates) if id(c) not in member_ids]
            self.hopeful = hopeful([*self.hopeful, *lost], self.members)
        near = priced.least_s[cells] <= _least_s(self._times, self._peaks, peaks[cells])
        near[np.isin(cells, new)] = False
        if near.any():
            self.hopeful += self._candidates(block, n_layers, priced, cells[near])

    def _candidates(
        self, block: PlanBlock, n_layers: int, priced: PricedCells, cells: NDArray[np.intp]
    ) -> list[Candidate]:
        table = block.rows(cells)
        return [
            Candidate(
                table.layout(i, n_layers),
                float(priced.times_s[cell]),
                float(priced.peaks[cell]),
                least_s=float(priced.least_s[cell]),
            )
            for i, cell in enumerate(cells.tolist())
        ]


def _undominated(times: Floats, peaks: Floats) -> NDArray[np.intp]:
    """Return the rows that no other row beats; rows with equal numbers all stay."""
    order = np.lexsort((peaks, times))
    t, p = times[order], peaks[order]
    before = np.concatenate(([np.inf], np.minimum.accumulate(p)[:-1])) if len(p) else p
    first = p < before
    # A row equal to the one before it in both numbers is as good as that one.
    group = np.concatenate(([True], (t[1:] != t[:-1]) | (p[1:] != p[:-1]))) if len(p) else first
    first_idx = np.maximum.accumulate(np.where(group, np.arange(len(p)), 0))
    return np.asarray(order[first[first_idx]])


def non_dominated(items: Sequence[tuple[Point, Item]]) -> list[tuple[Point, Item]]:
    """Return the items whose point no other beats in all axes; all axes are to be small.

    In the order of the points; of items with equal points the first stays.

    >>> non_dominated([((1, 3), "a"), ((2, 2), "b"), ((2, 3), "c"), ((1, 3), "d")])
    [((1, 3), 'a'), ((2, 2), 'b')]
    """
    front: list[tuple[Point, Item]] = []
    for point, item in sorted(items, key=_point):
        if not dominated(point, [p for p, _ in front]):
            front.append((point, item))
    return front


def _point(entry: tuple[Point, Any]) -> Point:
    return entry[0]


def dominated(point: Point, by: Iterable[Point]) -> bool:
    """Tell whether some point is at least as good on every axis."""
    return any(all(a <= b for a, b in zip(one, point, strict=True)) for one in by)
