"""Plans of several kinds of pipelines: the master mixes structures that the bound values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedProblem
from searches.mixed.answer import BestPlans, Halt
from searches.mixed.bounds.linear import LOOKED_AT, Bound, dual_of
from searches.mixed.fills import best_fills
from searches.mixed.master import choose
from searches.mixed.mixtures import Candidates, best_mixtures
from searches.mixed.offers import Offer, offer_of, shared_out

Floats = NDArray[np.float64]

CANDIDATES = 600
"""Columns of unlike devices or pipelines that are mixed for one length of the step."""
RANKED = 240
"""Columns that lose least in a step, of which splits are offered."""
OFFERED = 240
"""Splits that the master chooses among at last, of the columns that lose least."""
POLISHED = 100
"""Neighbours of a mixture that are priced at most."""
SLACK = (0.0, 0.03, 0.06, 0.1, 0.15, 0.3)
"""Of the slowest stage, of splits of pipelines with few micro-batches."""
FEW = 24
"""Micro-batches below which that counts."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long mixtures are looked for."""

    lengths: tuple[float, ...]
    """Over the bound, of the steps for which columns are mixed."""
    n_priced: int
    """Mixtures of one length of the step that are priced."""
    offered: tuple[float, ...]
    """Over the bound, of the steps for which splits of those columns are mixed."""
    n_offered: int
    """Mixtures of splits that are priced."""
    n_steps: int
    """Lengths of the step that the master is asked for."""
    n_polished: int
    """Mixtures whose neighbours are priced."""


FULL = Effort((0.003, 0.01, 0.03), 24, (0.004, 0.008, 0.012, 0.016, 0.02, 0.03), 12, 8, 2)
QUICK = Effort((0.006, 0.012, 0.03), 24, (), 0, 0, 1)

Counts = list[tuple[Offer, int]]
"""Kinds of pipelines, and how many of each."""


def search_several(
    problem: MixedProblem,
    bound: tuple[float, Bound],
    most_kinds: int,
    best: BestPlans,
    halt: Halt,
    effort: Effort = FULL,
) -> None:
    """Mix the columns that are worth most at the prices of steps over the bound.

    `bound` is the least step, and what it was found by. A beam mixes columns (`mixtures`), then
    splits of the columns that lose least, which are priced; then CP-SAT mixes those splits for
    shorter steps (`master`).
    """
    mixer = _Mixer(problem, bound[1], most_kinds, best, halt)
    low_s = bound[0]
    for length in effort.lengths:
        time_s = low_s * (1.0 + length)
        if time_s < best.step_s and not halt():
            mixer.mix(time_s, effort.n_priced)
    if effort.offered:
        mixer.offer_ranked()
    for length in effort.offered:
        time_s = low_s * (1.0 + length)
        if time_s < best.step_s and not halt():
            mixer.mix_offers(time_s, effort.n_offered)
    if not halt():
        mixer.choose(low_s, effort.n_steps)
    for mixture in mixer.fastest(effort.n_polished):
        if not halt():
            _polish(problem, mixture, best)


class _Mixer:
    """Mixtures of columns, made plans."""

    def __init__(
        self,
        problem: MixedProblem,
        bound: Bound,
        most_kinds: int,
        best: BestPlans,
        halt: Halt,
    ) -> None:
        self.problem, self.bound, self.most_kinds = problem, bound, most_kinds
        self.best, self.halt = best, halt
        self.sizes = [pool.n_devices for pool in problem.pools]
        self._priced: list[tuple[float, Counts]] = []
        self._offers: dict[tuple[int, int], Offer | None] = {}
        self._losses: dict[int, float] = {}
        self._done: set[tuple[tuple[int, int], ...]] = set()
        self._ranked: dict[int, float] = {}
        """Rows that lose least in some step, and what a pipeline gets done there."""

    def mix(self, time_s: float, n_priced: int) -> None:
        """Price the best mixtures of the columns that lose least in a step."""
        rows, candidates = self._candidates(time_s)
        if not len(rows):
            return
        for mixture in best_mixtures(candidates, self.sizes, self.most_kinds, n_priced):
            if self.halt():
                return
            counts = [(self._offer(int(rows[i]), candidates.done[i]), n) for i, n in mixture]
            key = tuple((int(rows[i]), n) for i, n in mixture)
            if key not in self._done:
                self._done.add(key)
                self._price([(x, n) for x, n in counts if x])

    def _price(self, counts: Counts) -> None:
        if counts:
            self._priced.append((_offer_counts(self.problem, counts, self.best), counts))

    def fastest(self, n: int) -> list[tuple[float, Counts]]:
        """Return the fastest mixtures that were priced, with their steps."""
        found = [x for x in self._priced if math.isfinite(x[0])]
        return sorted(found, key=lambda x: x[0])[:n]

    def _candidates(self, time_s: float) -> tuple[NDArray[np.intp], Candidates]:
        """Return rows that lose least, and what the beam needs of them."""
        columns, dual = self.bound.columns, self.bound.full_dual(time_s)
        worth = np.maximum(columns.worth(dual.prices), 1e-300)
        rough = columns.most_done(time_s) / worth
        rows = np.flatnonzero(rough > 0)
        if len(rows) > LOOKED_AT:
            rows = np.sort(rows[np.argpartition(-rough[rows], LOOKED_AT - 1)[:LOOKED_AT]])
        columns.look(time_s, rows, worth[rows])
        done = columns.done(time_s, rows)
        loss = 1.0 - done / worth[rows]
        rows, done = self._unlike(rows, done, loss)
        for row, n in zip(rows[:RANKED].tolist(), done[:RANKED].tolist(), strict=True):
            self._ranked.setdefault(row, n)
        own = columns.structure[rows]
        return rows, Candidates(
            devices=columns.structures.devices[own],
            done=done,
            least=columns.first[rows].astype(np.int64),
            most=columns.last[rows].astype(np.int64),
            multiple=columns.multiple[own],
            worth=columns.structures.devices[own] @ dual.prices[:-1],
            kind_worth=float(dual.prices[-1]),
        )

    def _unlike(
        self, rows: NDArray[np.intp], done: Floats, loss: Floats
    ) -> tuple[NDArray[np.intp], Floats]:
        """Return, of rows of as many devices and pipelines, the one that gets most done."""
        columns = self.bound.columns
        kept: list[int] = []
        seen: set[tuple[float, ...]] = set()
        for i in np.lexsort((rows, loss)).tolist():
            if done[i] <= 0 or len(kept) >= CANDIDATES:
                break
            row = int(rows[i])
            key = (*columns.structures.devices[columns.structure[row]].tolist(), columns.last[row])
            self._losses[row] = min(loss[i], self._losses.get(row, math.inf))
            if key not in seen:
                seen.add(key)
                kept.append(i)
        return rows[kept], done[kept]

    def _offer(self, row: int, n_sequences: float) -> Offer | None:
        """Return the split of a row that suits what it gets done; None where none fits."""
        columns = self.bound.columns
        pipeline = columns.structures.pipeline(int(columns.structure[row]))
        m = math.ceil(n_sequences / pipeline.mbs)
        if (row, m) not in self._offers:
            counts = int(columns.first[row]), int(columns.last[row])
            # With few micro-batches all stages count, with many the slowest alone.
            slack = SLACK if m < FEW else SLACK[:1]
            fills = best_fills(self.problem, pipeline, counts[0], m, slack)
            fill = min(fills, key=lambda x: (m - 1) * x.slowest_s + sum(x.times_s), default=None)
            kinds = self.most_kinds
            self._offers[row, m] = (
                offer_of(self.problem, pipeline, fill, counts, n_kinds=kinds) if fill else None
            )
        return self._offers[row, m]

    def offer_ranked(self) -> None:
        """Find splits of the columns that lose least."""
        for row, n_sequences in self._ranked.items():
            if self.halt():
                return
            self._offer(row, n_sequences)

    def mix_offers(self, time_s: float, n_priced: int) -> None:
        """Price the best mixtures of the splits that are known, for a step."""
        offers = [x for x in self._offers.values() if x]
        each = [x.candidate(time_s, len(self.sizes)) for x in offers]
        if not any(x.done for x in each):
            return
        devices = np.array([x.devices for x in each], dtype=np.float64)
        done = np.array([x.done for x in each], dtype=np.float64)
        least, most, multiple = np.array([(x.least, x.most, x.multiple) for x in each]).T
        taken = np.concatenate([devices, 1.0 / most[:, None]], axis=1)
        dual = dual_of(taken, done, np.append(self.sizes, float(self.most_kinds)))
        loss = 1.0 - done / np.maximum(taken @ dual.prices, 1e-300)
        kept: dict[tuple[float, ...], int] = {}
        for i in np.argsort(loss, kind="stable").tolist():
            if done[i] > 0:
                kept.setdefault((*devices[i].tolist(), least[i], most[i]), i)
        rows = list(kept.values())
        candidates = Candidates(
            devices=devices[rows],
            done=done[rows],
            least=least[rows],
            most=most[rows],
            multiple=multiple[rows],
            worth=devices[rows] @ dual.prices[:-1],
            kind_worth=float(dual.prices[-1]),
        )
        for mixture in best_mixtures(candidates, self.sizes, self.most_kinds, n_priced):
            if self.halt():
                return
            self._price([(offers[rows[i]], n) for i, n in mixture])

    def choose(self, low_s: float, n_steps: int) -> None:
        """Let the master mix the splits that are known for steps above one."""
        known = [(self._losses.get(row, 1.0), row, m) for (row, m), x in self._offers.items() if x]
        offers = [self._offers[row, m] for _, row, m in sorted(known)[:OFFERED]]
        some = [x for x in offers if x]
        high_s = self.best.step_s
        if not some or not math.isfinite(high_s):
            return
        for _ in range(n_steps):
            if self.halt() or high_s - low_s <= 2e-3 * high_s:
                return
            time_s = 0.5 * (low_s + high_s)
            candidates = [x.candidate(time_s, len(self.sizes)) for x in some]
            chosen = choose(candidates, self.sizes, self.most_kinds, self.problem.global_batch)
            if not chosen.counts:
                low_s = time_s
                continue
            self._price([(some[v], n) for v, n in enumerate(chosen.counts) if n])
            high_s = min(self.best.step_s, time_s)


def _offer_counts(
    problem: MixedProblem, counts: Sequence[tuple[Offer, int]], best: BestPlans
) -> float:
    """Price some kinds with the shares of the batch that suit them; return the step, seconds."""
    n_kinds = max(2, len(counts))
    own = [(offer_of(problem, x.pipeline, x.fill, (n, n), n_kinds=n_kinds), n) for x, n in counts]
    plan = shared_out(problem, own)
    return math.inf if plan is None else best.offer(plan)


def _polish(
    problem: MixedProblem, mixture: tuple[float, list[tuple[Offer, int]]], best: BestPlans
) -> None:
    """Move pipelines between the kinds of a mixture as long as that makes it faster."""
    step_s, counts = mixture
    sizes = [pool.n_devices for pool in problem.pools]
    n_left = POLISHED
    improved = True
    while improved and n_left > 0:
        improved = False
        for moves in product((-2, -1, 0, 1, 2), repeat=len(counts)):
            if not any(moves) or n_left <= 0:
                continue
            moved = [
                (x, n + move * x.pipeline.multiple)
                for (x, n), move in zip(counts, moves, strict=True)
            ]
            if any(n < 1 for _, n in moved) or any(
                sum(n * x.pipeline.n_devices(k) for x, n in moved) > size
                for k, size in enumerate(sizes)
            ):
                continue
            n_left -= 1
            one_s = _offer_counts(problem, moved, best)
            if one_s < step_s * (1.0 - 1e-9):
                step_s, counts, improved = one_s, moved, True
                break
