"""Plans of one kind of pipeline."""

import math

import numpy as np

from costmodels.mixed.plans import MixedPlan
from costmodels.mixed.tables import MixedProblem
from searches.mixed.answer import BestPlans, Halt, MixedOptions, pipelines_of
from searches.mixed.fills import Pipeline, best_fills
from searches.mixed.structures import Structures

TRIED_STRUCTURES = 400
"""Structures of one kind that are split, the most promising first, where there are more."""


def search_single(
    problem: MixedProblem,
    structures: Structures,
    options: MixedOptions,
    best: BestPlans,
    halt: Halt,
) -> float:
    """Try plans of one kind of pipeline; return a lower bound of the step of all of them."""
    s, batch = structures, problem.global_batch
    sizes = np.array([pool.n_devices for pool in problem.pools], dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.floor(np.where(s.devices > 0, sizes / s.devices, np.inf).min(axis=1))
    n_micro = np.ceil(batch / (s.mbs * np.maximum(1.0, most)))
    least_s = problem.straggler_factor * ((n_micro - 1.0) * s.slowest_s + s.total_s)
    least_s = np.where(most >= 1, least_s + problem.fixed_s, np.inf)
    order = np.argsort(least_s, kind="stable")
    for n_tried, i in enumerate(order.tolist()):
        if least_s[i] >= best.step_s:
            return best.step_s
        if n_tried >= TRIED_STRUCTURES and (
            best.step_s < math.inf or n_tried > 20 * TRIED_STRUCTURES
        ):
            return float(least_s[i])
        if n_tried % 8 == 0 and halt():
            return float(least_s[i])
        pipeline = s.pipeline(i)
        if options.is_uniform and len({w.n_devices for w in pipeline.ways()}) > 1:
            continue
        for n in _pipeline_counts(pipeline, problem):
            m = math.ceil(batch / (pipeline.mbs * n))
            if options.is_uniform and batch % (pipeline.mbs * n):
                continue
            limit_s = (best.step_s - problem.fixed_s) / problem.straggler_factor - s.total_s[i]
            limit_s = limit_s / (m - 1) if m > 1 else math.inf
            low_s = float(s.slowest_s[i])
            for fill in best_fills(problem, pipeline, n, m, low_s=low_s, limit_s=limit_s):
                best.offer(MixedPlan((pipelines_of(fill, pipeline, n, batch),), problem.zero))
    return best.step_s


def _pipeline_counts(pipeline: Pipeline, problem: MixedProblem) -> list[int]:
    """Return numbers of pipelines worth trying: the most, and the most that share evenly."""
    most, batches = pipeline.most_pipelines(problem), problem.global_batch // pipeline.mbs
    most = min(most, batches)
    if most < pipeline.multiple or most < 1:
        return []
    even = [n for n in range(most, 0, -1) if batches % n == 0 and n % pipeline.multiple == 0]
    return list(dict.fromkeys([most // pipeline.multiple * pipeline.multiple, *even[:1]]))
