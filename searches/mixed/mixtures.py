"""Mixtures of kinds that get most done in a step: a beam over columns, and exchanges of two kinds.

Of columns that take as many devices of every pool, as many pipelines, the one that gets most done
is a candidate. With prices y of devices and z of a kind (`bounds`) a kind of n pipelines loses

    n (a y - b) + z >= 0

of the value of all devices; the beam keeps the mixtures that have lost least, fills every kind up
as far as devices are left, and judges full ones by what they get done.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WIDTH = 160
"""Mixtures that the beam keeps."""
EXTENDED = 40
"""Of one mixture, candidates that are added to it."""
FIRST_OF_TWO = 120
"""Candidates for the first of two kinds that are exchanged."""
PAIRS = 8
"""Of them, pairs that are looked at further."""
EXCHANGED = 12
"""Mixtures of which two kinds are exchanged."""

ROUNDING = 1e-9
"""Of pipelines."""

Mixture = tuple[tuple[int, int], ...]
"""Candidates by place, and pipelines of each; by place."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Kinds to choose among, `(n,)` each."""

    devices: Floats
    """Of each pool, one pipeline, `(n, n_pools)`."""
    done: Floats
    """Sequences that a pipeline gets done in the step."""
    least: Ints
    most: Ints
    multiple: Ints
    worth: Floats
    """Of the devices of a pipeline, sequences."""
    kind_worth: float
    """Of one kind of the plan, sequences."""

    def counts(self, left: Floats) -> Ints:
        """Return the most pipelines that devices which are left hold; 0 if too few.

        `left` are those of some mixtures, `(m, n_pools)`; the result is `(m, n)`.
        """
        most = np.broadcast_to(self.most.astype(np.float64), (len(left), len(self.most)))
        for k in range(left.shape[1]):
            with np.errstate(divide="ignore", invalid="ignore"):
                per = np.where(self.devices[:, k] > 0, 1.0 / self.devices[:, k], np.inf)
                ratio = np.where(np.isfinite(per), left[:, k, None] * per + ROUNDING, np.inf)
            most = np.minimum(most, ratio)
        n = most.astype(np.int64) // self.multiple * self.multiple
        return np.where(n >= self.least, n, 0)


def best_mixtures(
    candidates: Candidates, sizes: Sequence[int], most_kinds: int, n_best: int
) -> list[Mixture]:
    """Return mixtures that get most done, the most first."""
    all_devices = np.array(sizes, dtype=np.float64)
    known: dict[Mixture, float] = {}
    beam: list[Mixture] = [()]
    for _ in range(most_kinds):
        rows: dict[Mixture, float] = {}
        for mixture in beam:
            for extended, lost in _extended(candidates, mixture, all_devices):
                rows[extended] = lost
                known.setdefault(extended, _done(candidates, extended))
        beam = sorted(rows, key=lambda x: (rows[x], x))[:WIDTH]
    looked: set[Mixture] = set()
    while True:
        order = sorted(known, key=lambda x: (-known[x], x))[:EXCHANGED]
        new = [x for x in order if x not in looked]
        if not new:
            return sorted(known, key=lambda x: (-known[x], x))[:n_best]
        looked.update(new)
        for mixture in new:
            for other in _exchanged(candidates, mixture, all_devices, most_kinds):
                known.setdefault(other, _done(candidates, other))


def _done(candidates: Candidates, mixture: Mixture) -> float:
    return float(sum(n * candidates.done[i] for i, n in mixture))


def _left(candidates: Candidates, mixture: Mixture, sizes: Floats) -> Floats:
    left = sizes.copy()
    for i, n in mixture:
        left -= n * candidates.devices[i]
    return left


def _lost(candidates: Candidates, counts: Ints) -> Floats:
    """Return what kinds of so many pipelines lose, sequences; infinite for none."""
    each = counts * (candidates.worth - candidates.done) + candidates.kind_worth
    return np.where(counts > 0, each, np.inf)


def _with(mixture: Mixture, i: int, n: int) -> Mixture:
    return tuple(sorted((*mixture, (i, n))))


def _extended(
    candidates: Candidates, mixture: Mixture, sizes: Floats
) -> Iterator[tuple[Mixture, float]]:
    """Yield a mixture with one kind more, and what it has lost."""
    counts = candidates.counts(_left(candidates, mixture, sizes)[None])[0]
    for i, _ in mixture:
        counts[i] = 0
    lost = _lost(candidates, counts)
    before = sum(
        n * (candidates.worth[i] - candidates.done[i]) + candidates.kind_worth for i, n in mixture
    )
    for i in _least(lost, EXTENDED):
        yield _with(mixture, i, int(counts[i])), float(before + lost[i])
    done = np.where(counts > 0, counts * candidates.done, 0.0)
    i = int(done.argmax())
    if done[i] > 0:
        yield _with(mixture, i, int(counts[i])), float(before + lost[i])


def _least(values: Floats, n: int) -> list[int]:
    """Return the places of the least finite values, ascending, ties by place."""
    some = np.flatnonzero(np.isfinite(values))
    if len(some) > n:
        last = np.partition(values[some], n - 1)[n - 1]
        some = some[values[some] <= last]
    return [int(i) for i in some[np.argsort(values[some], kind="stable")][:n]]


def _exchanged(
    candidates: Candidates, mixture: Mixture, sizes: Floats, most_kinds: int
) -> Iterator[Mixture]:
    """Yield a mixture with two of its kinds exchanged for others, or more added."""
    free = most_kinds - len(mixture)
    for n_out in range(max(0, 1 - free), 1 + max(0, min(len(mixture), 2 - free))):
        for out in combinations(range(len(mixture)), n_out):
            kept = tuple(x for i, x in enumerate(mixture) if i not in out)
            yield from _best_two(candidates, kept, sizes, min(2, free + n_out))


def _best_two(
    candidates: Candidates, kept: Mixture, sizes: Floats, n_more: int
) -> Iterator[Mixture]:
    """Yield mixtures with one kind or two added, the best second for each first."""
    left = _left(candidates, kept, sizes)
    counts = candidates.counts(left[None])[0]
    for i, _ in kept:
        counts[i] = 0
    if n_more == 1:
        done = counts * candidates.done
        i = int(done.argmax())
        if done[i] > 0:
            yield _with(kept, i, int(counts[i]))
        return
    firsts: list[tuple[int, int]] = []
    for i in _least(_lost(candidates, counts), FIRST_OF_TWO):
        fewer = int(counts[i] - candidates.multiple[i])
        firsts.append((i, int(counts[i])))
        if fewer >= candidates.least[i]:
            firsts.append((i, fewer))
    if not firsts:
        return
    places, numbers = (np.array(x) for x in zip(*firsts, strict=True))
    rest = candidates.counts(left - numbers[:, None] * candidates.devices[places])
    rest[np.arange(len(places)), places] = 0
    rest[:, [i for i, _ in kept]] = 0
    done = rest * candidates.done
    best = done.argmax(axis=1)
    reached = numbers * candidates.done[places] + done[np.arange(len(best)), best]
    for j in np.argsort(-reached, kind="stable")[:PAIRS].tolist():
        one, i = _with(kept, *firsts[j]), int(best[j])
        yield _with(one, i, int(rest[j, i])) if rest[j, i] else one
