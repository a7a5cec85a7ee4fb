"""Plans of one kind of pipeline."""

import math
from heapq import heapify, heappop, heappush

import numpy as np

from costmodels.mixed.plans import MixedPlan
from costmodels.mixed.tables import MixedProblem
from searches.mixed.answer import BestPlans, Halt, pipelines_of
from searches.mixed.bounds.columns import Columns
from searches.mixed.fills import best_fills

TRIED = 160
"""Columns that are split, the most promising first, where there are more."""
BOUNDED = 8192
"""Columns of which cuts are looked at together."""
REFINED = 2000
"""Columns that are made exact, at most."""


def search_single(problem: MixedProblem, columns: Columns, best: BestPlans, halt: Halt) -> float:
    """Try plans of one kind of pipeline; return a lower bound of the step of all of them.

    Columns in the order of a lower bound, which is made exact when a column comes first: that of
    the first exact one holds for all.
    """
    rough_s = columns.whole_batch_s()
    order = np.argsort(rough_s, kind="stable")
    order = order[: int(np.isfinite(rough_s).sum())]
    n_queued = 0
    queue: list[tuple[float, int]] = []
    bound_s: float = math.inf
    n_tried = n_refined = 0
    while True:
        rest_s = float(rough_s[order[n_queued]]) if n_queued < len(order) else math.inf
        low_s = min(rest_s, queue[0][0] if queue else math.inf)
        if low_s >= best.step_s or low_s == math.inf:
            return min(bound_s, best.step_s)
        is_done = n_tried >= TRIED and best.step_s < math.inf
        if is_done or n_refined >= REFINED or halt():
            return min(bound_s, low_s)
        if rest_s <= low_s:
            rows = order[n_queued : n_queued + BOUNDED]
            n_queued += len(rows)
            columns.look_alone(rows)
            found = zip(columns.whole_batch_s(rows).tolist(), rows.tolist(), strict=True)
            queue += [(s, row) for s, row in found if s < math.inf]
            heapify(queue)
            continue
        low_s, row = heappop(queue)
        if columns.refine_alone(row):
            n_refined += 1
            one_s = float(columns.whole_batch_s(np.array([row]))[0])
            heappush(queue, (max(low_s, one_s), row))
            continue
        bound_s = min(bound_s, low_s)
        n_tried += 1
        _try(problem, columns, row, best)


def _try(problem: MixedProblem, columns: Columns, row: int, best: BestPlans) -> None:
    """Price the best splits of one column."""
    batch, pipeline = problem.global_batch, columns.structures.pipeline(columns.structure[row])
    total_s = float(columns.structures.total_s[columns.structure[row]])
    for n in _pipeline_counts(columns, row, batch):
        m = math.ceil(batch / (pipeline.mbs * n))
        limit_s = (best.step_s - problem.fixed_s) / problem.straggler_factor - total_s
        limit_s = limit_s / (m - 1) if m > 1 else math.inf
        low_s = float(columns.slowest_s[row])
        for fill in best_fills(problem, pipeline, n, m, low_s=low_s, limit_s=limit_s):
            best.offer(MixedPlan((pipelines_of(fill, pipeline, n, batch),), problem.zero))


def _pipeline_counts(columns: Columns, row: int, batch: int) -> list[int]:
    """Return numbers of pipelines worth trying: the most, and the most that share evenly."""
    pipeline = columns.structures.pipeline(int(columns.structure[row]))
    first, last = int(columns.first[row]), int(columns.last[row])
    batches, step = batch // pipeline.mbs, pipeline.multiple
    last = min(last, batches // step * step)
    if last < first:
        return []
    even = [n for n in range(last, first - 1, -1) if batches % n == 0 and n % step == 0]
    return list(dict.fromkeys([last, *even[:1]]))
