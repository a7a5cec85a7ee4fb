"""Plans of one kind of pipeline."""

import math
from heapq import heapify, heappop, heappush

import numpy as np

from costmodels.mixed.plans import MixedPlan
from costmodels.mixed.tables import MixedProblem
from searches.mixed.answer import BestPlans, Halt, pipelines_of
from searches.mixed.columns import Columns
from searches.mixed.fills import best_fills

TRIED = 160
"""Columns that are split, the most promising first, where there are more."""
BOUNDED = 20_000
"""Columns of which whole layers and memory are counted first."""
REFINED = 2000
"""Columns that are made exact, at most."""


def search_single(problem: MixedProblem, columns: Columns, best: BestPlans, halt: Halt) -> float:
    """Try plans of one kind of pipeline; return a lower bound of the step of all of them.

    Columns in the order of a lower bound, which is made exact when a column comes first: that of
    the first exact one holds for all.
    """
    rows = np.arange(len(columns))
    least_s = columns.whole_batch_s(rows)
    first = np.argsort(least_s, kind="stable")[:BOUNDED]
    columns.look_alone(rows[first])
    least_s[first] = columns.whole_batch_s(rows[first])
    queue: list[tuple[float, int]] = [
        (s, i) for s, i in zip(least_s.tolist(), rows.tolist(), strict=True) if s < math.inf
    ]
    heapify(queue)
    bound_s: float = math.inf
    n_tried = n_refined = 0
    while queue:
        low_s, row = heappop(queue)
        if low_s >= best.step_s:
            return min(bound_s, best.step_s)
        is_done = n_tried >= TRIED and best.step_s < math.inf
        if is_done or n_refined >= REFINED or halt():
            return min(bound_s, low_s)
        one = np.array([row])
        if columns.look_alone(one) or columns.refine_alone(row):
            n_refined += 1
            heappush(queue, (max(low_s, float(columns.whole_batch_s(one)[0])), row))
            continue
        bound_s = min(bound_s, low_s)
        n_tried += 1
        _try(problem, columns, row, best)
    return min(bound_s, best.step_s)


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
