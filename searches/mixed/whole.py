"""Small problems, searched whole: every split of every structure, every choice of them."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np

from costmodels.mixed.plans import MixedPlan
from costmodels.mixed.tables import MixedProblem
from searches.mixed.answer import BestPlans, Halt, MixedOptions, pipelines_of
from searches.mixed.fills import Fill, Pipeline, fastest_fill
from searches.mixed.master import choose
from searches.mixed.offers import Offer, offer_of, shares_of
from searches.mixed.structures import Structures

SMALL = 4000
"""Splits and numbers of pipelines of all structures, up to which a problem is searched whole."""
KNOWN_CHOICES = 400
"""Choices of a small problem that are priced at most."""


def every_fill(problem: MixedProblem, structures: Structures) -> tuple[Offer, ...] | None:
    """Return all splits and numbers of pipelines; None where there are too many."""
    n_layers, total = problem.n_layers, 0
    for i in range(len(structures)):
        pipeline = structures.pipeline(i)
        most = pipeline.most_pipelines(problem)
        total += math.comb(n_layers - 1, pipeline.pp - 1) * max(0, most // pipeline.multiple)
        if total > SMALL:
            return None
    offers = []
    for i in range(len(structures)):
        pipeline = structures.pipeline(i)
        for n in range(pipeline.multiple, pipeline.most_pipelines(problem) + 1, pipeline.multiple):
            for fill, most_micro in _all_fills(problem, pipeline, n).items():
                offers.append(offer_of(problem, pipeline, fill, (n, n), most_micro))
    return tuple(offers)


def _all_fills(problem: MixedProblem, pipeline: Pipeline, n: int) -> dict[Fill, int]:
    """Return every split, and the micro-batches up to which it fits.

    Each stage recomputes least among what fits with 1, 2, ... micro-batches in flight.
    """
    n_layers, pp = problem.n_layers, pipeline.pp
    fills: dict[Fill, int] = {}
    for cuts in combinations(range(1, n_layers), pp - 1):
        counts = np.diff((0, *cuts, n_layers)).tolist()
        for n_micro in range(1, pp + 1):
            fill = fastest_fill(problem, pipeline, counts, n, n_micro)
            if fill is not None:
                fills[fill] = n_micro if n_micro < pp else 1 << 30
    return fills


def search_whole(
    problem: MixedProblem,
    offers: tuple[Offer, ...],
    options: MixedOptions,
    best: BestPlans,
    halt: Halt,
) -> float:
    """Search a small problem whole; return the bound: the best step where it came to its end.

    0 where it did not.
    """
    batch = problem.global_batch
    for x in offers:
        kind = pipelines_of(x.fill, x.pipeline, x.least, batch)
        if x.least * x.pipeline.mbs <= batch and kind.n_micro <= x.most_micro:
            best.offer(MixedPlan((kind,), problem.zero))
    if options.most_kinds == 1 or not offers:
        return best.step_s
    sizes = [pool.n_devices for pool in problem.pools]
    n_pools = len(sizes)
    offers = tuple(
        replace(x, groups=n)
        for x in offers
        for n in range(1, options.most_kinds + 1)
        if all(n * x.least * x.pipeline.n_devices(k) <= size for k, size in enumerate(sizes))
    )
    ceiling = max(x.step_s(batch) for x in offers)
    known: list[tuple[tuple[int, int], ...]] = []
    for _ in range(KNOWN_CHOICES):
        time_s = min(best.step_s, ceiling) * (1.0 - 1e-9)
        if halt():
            break
        candidates = [x.candidate(time_s, n_pools) for x in offers]
        chosen = choose(candidates, sizes, options.most_kinds, batch, known)
        if not chosen.counts:
            return best.step_s if chosen.bound < batch else 0.0
        used = tuple((v, n) for v, n in enumerate(chosen.counts) if n)
        known.append(used)
        kinds = [(offers[v], n) for v, n in used for _ in range(offers[v].groups)]
        for plan in shares_of(problem, kinds, time_s):
            best.offer(plan)
    return 0.0
