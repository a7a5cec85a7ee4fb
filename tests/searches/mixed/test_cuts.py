"""What cuts take at least, beside the prices of every split."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from costmodels.mixed.plans import MixedPlan
from costmodels.mixed.prices import fits, price
from searches.mixed.answer import pipelines_of
from searches.mixed.columns import Columns
from searches.mixed.fills import fastest_fill, ways_of
from searches.mixed.structures import structures_of
from tests.searches.mixed.instances import random_problem


@pytest.mark.parametrize("seed", range(12))
def test_no_split_is_faster_than_the_least_of_its_cuts(seed):
    problem = random_problem(seed)
    structures = structures_of(problem, ways_of(problem), 2)
    columns = Columns(problem, structures, 3)
    rows = np.arange(len(columns))
    rough_s = columns.whole_batch_s(rows)
    columns.look_alone(rows)
    least_s = columns.whole_batch_s(rows)
    assert (least_s >= rough_s - 1e-12).all()
    n_compared = 0
    for row in rows.tolist():
        pipeline = structures.pipeline(int(columns.structure[row]))
        n = int(columns.last[row])
        m = math.ceil(problem.global_batch / (pipeline.mbs * n))
        for cuts in combinations(range(1, problem.n_layers), pipeline.pp - 1):
            layers = np.diff((0, *cuts, problem.n_layers)).tolist()
            fill = fastest_fill(problem, pipeline, layers, n, m)
            if fill is None:
                continue
            kind = pipelines_of(fill, pipeline, n, problem.global_batch)
            plan = MixedPlan((kind,), problem.zero)
            priced = price(plan, problem)
            if fits(plan, problem, priced):
                n_compared += 1
                assert priced.step_s >= least_s[row] * (1.0 - 1e-9)
    assert n_compared or not np.isfinite(least_s).any()


def test_what_was_looked_at_holds_without_a_pool():
    problem = replace(random_problem(3), straggler_factor=1.05)
    structures = structures_of(problem, ways_of(problem), 2)
    columns = Columns(problem, structures, 3)
    columns.look_alone(np.arange(len(columns)))
    other = columns.without(0, replace(problem, straggler_factor=1.0))
    assert 0 < len(other) < len(columns)
    fresh = Columns(other.problem, structures, 3)
    fresh.look_alone(np.arange(len(fresh)))
    exact = {
        (int(a), int(b)): s
        for a, b, s in zip(fresh.structure, fresh.range, fresh.whole_batch_s(), strict=True)
    }
    for a, b, s in zip(other.structure, other.range, other.whole_batch_s(), strict=True):
        assert s <= exact[int(a), int(b)] * (1.0 + 1e-12)


def test_columns_that_are_pruned_are_back_without_a_pool():
    problem = replace(random_problem(3), straggler_factor=1.05)
    structures = structures_of(problem, ways_of(problem), 2)
    columns = Columns(problem, structures, 3)
    whole = columns.without(0, problem)
    columns.prune(1e-3)
    assert not len(columns)
    other = columns.without(0, problem)
    assert sorted(zip(other.structure, other.range, strict=True)) == sorted(
        zip(whole.structure, whole.range, strict=True)
    )
    assert sorted(other.whole_batch_s()) == pytest.approx(sorted(whole.whole_batch_s()))
