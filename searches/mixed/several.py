"""Plans of several kinds of pipelines: the master mixes structures that the bound values."""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.plans import MixedStage
from costmodels.mixed.tables import MixedProblem
from searches.mixed.answer import BestPlans, Halt, MixedOptions
from searches.mixed.bound import Bound
from searches.mixed.fills import Fill, Pipeline, best_fills
from searches.mixed.master import choose
from searches.mixed.offers import Offer, offer_of, shared_out

Floats = NDArray[np.float64]

LOOKED_AT = 8192
"""Columns of which cuts are looked at for the offers of one step."""
OFFERED = 120
"""Columns whose splits are offered to the master for one length of the step."""
OFFERED_ALIKE = 2
"""Those of them that take as many devices of every pool, as many pipelines."""
POLISHED = 200
"""Neighbours of the best mixture that are priced at most."""
LENGTHS = (0.005, 0.015, 0.03, 0.05, 0.08)
"""Over the bound, of the steps for which columns are offered."""
SLACK = (0.0, 0.03, 0.06, 0.1, 0.15, 0.3)
"""Of the slowest stage, of splits that are offered of pipelines with few micro-batches."""
FEW = 24
"""Micro-batches below which that counts."""
APART = 0.004
"""Of the step, by which offers with unlike numbers of pipelines may differ in what is outside."""
STEPS = 12
"""Lengths of the step that the master is asked for."""


def search_several(
    problem: MixedProblem,
    bound: tuple[float, Bound],
    options: MixedOptions,
    best: BestPlans,
    halt: Halt,
) -> None:
    """Let the master mix the columns that are worth most at the prices of steps over the bound.

    `bound` is the least step, and what it was found by.
    """
    n_pools, sizes = len(problem.pools), [pool.n_devices for pool in problem.pools]
    offers = _Offers(problem, bound[1], halt)
    low_s, high_s = bound[0], best.step_s
    for length in LENGTHS:
        if low_s * (1.0 + length) < high_s and not halt():
            offers.add(low_s * (1.0 + length))
    if not offers.all:
        return
    target = problem.global_batch
    if not math.isfinite(high_s):
        high_s = max(x.step_s(-(-target // x.pipeline.mbs)) for x in offers.all)
    mixtures: list[tuple[float, list[tuple[Offer, int]]]] = []
    for _ in range(STEPS):
        if halt() or high_s - low_s <= 1e-3 * high_s:
            break
        time_s = 0.5 * (low_s + high_s)
        candidates = [x.candidate(time_s, n_pools) for x in offers.all]
        chosen = choose(candidates, sizes, options.most_kinds, target)
        if not chosen.counts:
            low_s = time_s
            continue
        counts = [(offers.all[v], n) for v, n in enumerate(chosen.counts) if n]
        mixtures.append((_offer_counts(problem, counts, best), counts))
        high_s = min(best.step_s, time_s)
    if mixtures and not halt():
        _polish(problem, min(mixtures, key=lambda x: x[0]), best)


def _offer_counts(
    problem: MixedProblem, counts: Sequence[tuple[Offer, int]], best: BestPlans
) -> float:
    """Price some kinds with the shares of the batch that suit them; return the step, seconds."""
    exact = [(offer_of(problem, x.pipeline, x.fill, (n, n)), n) for x, n in counts]
    plan = shared_out(problem, exact)
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


class _Offers:
    """The kinds that the master chooses among."""

    def __init__(self, problem: MixedProblem, bound: Bound, halt: Halt) -> None:
        self.problem, self.bound, self.halt = problem, bound, halt
        self.all: list[Offer] = []
        self._known: set[tuple[int, tuple[MixedStage, ...]]] = set()

    def add(self, time_s: float) -> None:
        """Offer what loses least in a step, at the prices of that step."""
        columns, dual = self.bound.columns, self.bound.full_dual(time_s)
        worth = columns.worth(dual.prices)
        rows = _first(columns.most_done(time_s) / np.maximum(worth, 1e-300))
        columns.look(time_s, rows, worth[rows])
        done = columns.done(time_s, rows)
        loss = np.where(done > 0, 1.0 - done / np.maximum(worth[rows], 1e-300), np.inf)
        taken: dict[tuple[float, ...], int] = {}
        n_offered = 0
        for i in np.argsort(loss, kind="stable").tolist():
            if n_offered >= OFFERED or not np.isfinite(loss[i]) or self.halt():
                break
            row = int(rows[i])
            key = (*columns.structures.devices[columns.structure[row]].tolist(), columns.last[row])
            if taken.get(key, 0) >= OFFERED_ALIKE:
                continue
            taken[key] = taken.get(key, 0) + 1
            n_offered += 1
            self._add_row(row, int(done[i]))

    def _add_row(self, row: int, n_sequences: int) -> None:
        columns = self.bound.columns
        pipeline = columns.structures.pipeline(int(columns.structure[row]))
        first, last = int(columns.first[row]), int(columns.last[row])
        m = math.ceil(n_sequences / pipeline.mbs)
        # With few micro-batches all stages count, with many the slowest alone.
        fills = best_fills(self.problem, pipeline, first, m, SLACK if m < FEW else SLACK[:1])
        if fills:
            fill = min(fills, key=lambda x: (m - 1) * x.slowest_s + sum(x.times_s))
            if (row, fill.stages) not in self._known:
                self._known.add((row, fill.stages))
                self.all += _by_pipelines(self.problem, pipeline, fill, (first, last))


def _first(gain: Floats) -> NDArray[np.intp]:
    """Return columns that may lose least, as far as is known without a look at their cuts."""
    n = min(len(gain), LOOKED_AT)
    rows = np.argpartition(-gain, n - 1)[:n]
    return np.asarray(np.sort(rows))


def _by_pipelines(
    problem: MixedProblem, pipeline: Pipeline, fill: Fill, counts: tuple[int, int]
) -> list[Offer]:
    """Return offers of one split by ranges of pipelines in which the optimizer takes as long."""
    offer, step = offer_of(problem, pipeline, fill, counts), pipeline.multiple
    first, last = counts
    if first == last:
        return [offer]
    least = offer_of(problem, pipeline, fill, (first, first))
    if abs(offer.outside_s - least.outside_s) <= APART * offer.outside_s:
        return [offer]
    middle = first + (last - first) // (2 * step) * step
    return [
        *_by_pipelines(problem, pipeline, fill, (first, middle)),
        *_by_pipelines(problem, pipeline, fill, (middle + step, last)),
    ]
