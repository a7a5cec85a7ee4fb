"""Plans of several kinds of pipelines: the master mixes structures that the bound values."""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from costmodels.mixed.tables import MixedProblem
from searches.mixed.answer import BestPlans, Halt, MixedOptions
from searches.mixed.bound import Dual
from searches.mixed.columns import Columns
from searches.mixed.fills import best_fills
from searches.mixed.master import choose
from searches.mixed.offers import Offer, offer_of, shared_out

OFFERED = 240
"""Structures that the master chooses among."""
OFFERED_ALIKE = 2
"""Those of them that take as many devices of every pool."""
POLISHED = 200
"""Neighbours of the best mixture that are priced at most."""
REFINED_TWICE = 2
"""Rounds in which the structures of least loss are made exact before they are offered."""
LENGTHS = 5
"""Of the step at which structures are weighed for the master."""
LONGEST = 1.1
"""The longest of them, over the bound."""
MOST_LOSS = 0.3
"""Of what the devices are worth, of columns that are looked at."""
SLACK = (0.0, 0.03, 0.06, 0.1, 0.15, 0.3)
"""Of the slowest stage, of splits that are offered of pipelines with few micro-batches."""
FEW = 24
"""Micro-batches below which that counts."""
STEPS = 12
"""Lengths of the step that the master is asked for."""


def search_several(
    problem: MixedProblem,
    columns: Columns,
    bound: tuple[float, Dual],
    options: MixedOptions,
    best: BestPlans,
    halt: Halt,
) -> None:
    """Let the master mix the columns that are worth most at the prices of the bound.

    `bound` is the least step and those prices.
    """
    n_pools, sizes = len(problem.pools), [pool.n_devices for pool in problem.pools]
    high_s = best.step_s
    offers = _offers(problem, columns, bound, high_s, halt)
    if not offers:
        return
    target, low_s = problem.global_batch, 0.0
    mixture: tuple[float, list[tuple[Offer, int]]] = (math.inf, [])
    if not math.isfinite(high_s):
        high_s = max(x.step_s(-(-target // x.pipeline.mbs)) for x in offers)
    for _ in range(STEPS):
        if halt():
            return
        time_s = high_s if low_s == 0.0 else 0.5 * (low_s + high_s)
        time_s = high_s * 0.97 if low_s == 0.0 else time_s
        candidates = [x.candidate(time_s, n_pools) for x in offers]
        chosen = choose(candidates, sizes, options.most_kinds, target)
        if not chosen.counts:
            low_s = time_s
        else:
            counts = [(offers[v], n) for v, n in enumerate(chosen.counts) if n]
            step_s = _offer_counts(problem, counts, best)
            if step_s < mixture[0]:
                mixture = step_s, counts
            high_s = min(high_s, best.step_s, time_s)
        if low_s and high_s - low_s <= 1e-3 * high_s:
            break
    if mixture[1] and not halt():
        _polish(problem, mixture, best)


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


def _offers(
    problem: MixedProblem, columns: Columns, bound: tuple[float, Dual], high_s: float, halt: Halt
) -> list[Offer]:
    """Return the kinds that the master chooses among, by what they lose at the prices."""
    low_s, prices = bound[0], bound[1].prices
    lengths = np.linspace(low_s, max(low_s, min(high_s, LONGEST * low_s)), LENGTHS)
    worth = columns.worth(prices) / low_s
    with np.errstate(divide="ignore", invalid="ignore"):
        rows = np.flatnonzero(columns.done(lengths[-1]) > (1.0 - MOST_LOSS) * worth * lengths[-1])
    columns.bound(rows)
    worth = worth[rows]
    done, loss = np.zeros(len(rows)), np.full(len(rows), np.inf)
    # Micro-batches are whole: what loses at one length of the step may lose nothing at another.
    for length_s in lengths:
        for _ in range(REFINED_TWICE):
            own = columns.done(float(length_s), rows)
            one = np.where(worth > 0, 1.0 - own / np.maximum(1e-300, worth * length_s), np.inf)
            order = np.argsort(one, kind="stable")[:OFFERED]
            changed = [columns.refine(int(row), float(length_s)) for row in rows[order]]
            if halt() or not any(changed):
                break
        done, loss = np.maximum(done, own), np.minimum(loss, one)
    offers: list[Offer] = []
    taken: dict[tuple[float, ...], int] = {}
    for i in np.argsort(loss, kind="stable").tolist():
        if len(offers) >= OFFERED or not np.isfinite(loss[i]) or done[i] <= 0 or halt():
            break
        row = int(rows[i])
        key = (*columns.structures.devices[columns.structure[row]].tolist(), columns.first[row])
        if taken.get(key, 0) >= OFFERED_ALIKE:
            continue
        taken[key] = taken.get(key, 0) + 1
        pipeline = columns.structures.pipeline(int(columns.structure[row]))
        first, last = int(columns.first[row]), int(columns.last[row])
        m = math.ceil(done[i] / pipeline.mbs)
        # With few micro-batches all stages count, with many the slowest alone.
        fills = best_fills(problem, pipeline, first, m, SLACK if m < FEW else SLACK[:1])
        if fills:
            fill = min(fills, key=lambda x: (m - 1) * x.slowest_s + sum(x.times_s))
            offers.append(offer_of(problem, pipeline, fill, (first, last)))
    return offers
