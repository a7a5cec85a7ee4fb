"""Layers to stages, against every split."""

from itertools import combinations

import numpy as np
import pytest

from searches.mixed.fills import Pipeline, best_fills, fastest_fill, least_slowest_s, ways_of
from searches.mixed.structures import structures_of
from tests.searches.mixed.instances import random_problem


@pytest.mark.parametrize("seed", range(12))
def test_the_least_slowest_stage_is_that_of_every_split(seed):
    problem = random_problem(seed)
    ways = ways_of(problem)
    first, second = (next(w for w in ways if w.pool == k) for k in range(2))
    pipeline = Pipeline(((first, 1), (second, 1)))
    times = []
    for cuts in combinations(range(1, problem.n_layers), 1):
        counts = np.diff((0, *cuts, problem.n_layers)).tolist()
        fill = fastest_fill(problem, pipeline, counts, 1, 4)
        if fill is not None:
            times.append(fill.slowest_s)
    least_s = least_slowest_s(problem, pipeline, 1, 4)
    assert least_s == pytest.approx(min(times, default=float("inf")), rel=1e-6)
    fills = best_fills(problem, pipeline, 1, 4)
    assert bool(fills) == bool(times)
    if fills:
        assert fills[0].slowest_s == pytest.approx(least_s, rel=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_a_pipeline_that_fits_has_a_split_of_its_least_slowest_stage(seed):
    problem = random_problem(seed)
    structures = structures_of(problem, ways_of(problem), 2)
    n_fitting = 0
    for i in range(len(structures)):
        pipeline = structures.pipeline(i)
        least_s = least_slowest_s(problem, pipeline, 1, 2, 1e-3)
        if least_s < float("inf"):
            n_fitting += 1
            fills = best_fills(problem, pipeline, 1, 2, slack=(0.0,), low_s=1e-3)
            assert fills
            assert fills[0].slowest_s == pytest.approx(least_s, rel=1e-6)
    assert n_fitting
