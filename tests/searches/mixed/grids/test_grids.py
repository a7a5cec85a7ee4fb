"""Plans that are one grid of ranks, against every such plan of small random jobs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from costmodels.mixed.plans import MixedPlan, MixedStage, PipelineKind
from costmodels.mixed.prices import fits, price
from costmodels.mixed.tables import MixedProblem
from searches.mixed.answer import BestPlans, Halt, MixedOptions
from searches.mixed.grids.kinds import counts_of, may_fit, pairs_of, pipelines_of, thirds_of
from searches.mixed.grids.nodes import is_on_whole_nodes
from searches.mixed.grids.rows import grid_ways, rows_of
from searches.mixed.grids.search import search_grids
from searches.mixed.search import search_mixed
from tests.searches.mixed.instances import every_plan, random_problem

GRIDS = MixedOptions(most_kinds=2, is_uniform=True)


def _grids(problem: MixedProblem) -> list[tuple[float, MixedPlan]]:
    """Return every grid of up to two kinds that fits, with its step."""
    found = []
    for plan in every_plan(problem, 2):
        if plan.is_uniform and is_on_whole_nodes(plan, problem):
            priced = price(plan, problem)
            if fits(plan, problem, priced):
                found.append((priced.step_s, plan))
    return found


def _check(seed: int) -> bool:
    """Hold the search to every grid; tell whether the best has several kinds."""
    problem = random_problem(seed)
    answer = search_mixed(problem, GRIDS)
    step_s, plan = min(_grids(problem), key=lambda x: x[0], default=(math.inf, None))
    if plan is None:
        assert not answer.plans
        return False
    assert answer.prices[0].step_s == pytest.approx(step_s, rel=1e-9)
    assert answer.bound_s <= step_s * (1.0 + 1e-9)
    assert answer.proven
    for found in answer.plans:
        assert found.is_uniform
        assert is_on_whole_nodes(found, problem)
    return len(plan.kinds) > 1


def test_the_best_grid_is_found_and_proven():
    assert {_check(seed) for seed in (2, 3)} == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 200, 20))
def test_the_best_grid_is_found_and_proven_of_200(start):
    for seed in range(start, start + 20):
        _check(seed)


@pytest.mark.parametrize("seed", [3])
def test_no_row_is_bounded_above_its_grids(seed):
    problem = random_problem(seed)
    grids = _grids(problem)
    n_held = 0
    for way in grid_ways(problem):
        for rough_s, row in rows_of(way, len(problem.pools)):
            least_s = row.least_s(len(problem.pools))
            table = next(iter(way.tables.values()))
            for step_s, plan in grids:
                stage, kind = plan.kinds[0].stages[0], plan.kinds[0]
                n = sum(x.n_pipelines for x in plan.kinds)
                alike = (stage.tp, kind.mbs, stage.recompute) == (
                    table.tp,
                    table.mbs,
                    table.recompute,
                )
                if alike and (kind.pp, n) == (row.pp, row.n_pipelines):
                    assert rough_s <= step_s * (1.0 + 1e-9)
                    assert least_s <= step_s * (1.0 + 1e-9)
                    n_held += 1
    assert n_held >= len(grids)


def test_sets_of_kinds_that_do_not_fit_are_left_out():
    """Against every number of pipelines of each kind."""
    kinds = pipelines_of((1, 0, 2), 3, 4, 2)
    stages, n = [7, 5, 8], 4
    pairs, is_whole = pairs_of(np.arange(len(kinds.pools)))
    assert is_whole
    fitting = may_fit(pairs, kinds.used, stages, n, 1)
    for members, fits_ in zip(pairs.tolist(), fitting.tolist(), strict=True):
        counts = counts_of(kinds.used[members[:2]], stages, n, 1)
        assert bool(len(counts)) == fits_
        for row in counts.tolist():
            assert sum(row) == n
            assert min(row) >= 1
            assert (row @ kinds.used[members[:2]] <= stages).all()
    thirds = {tuple(x) for x in thirds_of(pairs, kinds.used, stages, n, 1).tolist()}
    every = {
        (a, b, c)
        for a in range(len(kinds.pools))
        for b in range(a + 1, len(kinds.pools))
        for c in range(b + 1, len(kinds.pools))
        if len(counts_of(kinds.used[[a, b, c]], stages, n, 1))
    }
    assert thirds == every


def _three_pools() -> MixedProblem:
    """Return a job on three pools of one device, of which each holds the whole model."""
    problem = random_problem(0)
    first = [x for x in problem.tables if x.pool == 0 and x.tp == 1]
    tables = tuple(replace(x, pool=k) for k in range(3) for x in first)
    pool = replace(problem.pools[0], n_devices=1, devices_per_node=1, usable_bytes=1e9, rings={})
    link = problem.links[0, 1]
    return replace(
        problem,
        pools=tuple(replace(pool, name=f"pool-{k}") for k in range(3)),
        links=dict.fromkeys([(0, 1), (0, 2), (1, 2)], replace(link, bytes_per_s=1e9)),
        tables=tables,
        global_batch=6,
    )


def test_a_third_kind_uses_a_third_pool():
    problem = _three_pools()
    answer = search_mixed(problem, replace(GRIDS, most_kinds=3))
    (kinds,) = {tuple(sorted(k.pools for k in answer.plans[0].kinds))}
    assert kinds == ((0,), (1,), (2,))
    two = search_mixed(problem, GRIDS)
    assert two.prices[0].step_s > answer.prices[0].step_s
    assert answer.bound_s <= answer.prices[0].step_s


def test_a_stopped_search_has_a_bound_that_holds():
    problem = random_problem(3)
    best = BestPlans(problem, GRIDS)
    bound_s = search_grids(problem, 2, GRIDS, best, Halt(lambda: True))
    assert bound_s <= min(s for s, _ in _grids(problem))


def _plan(*kinds: tuple[tuple[int, ...], int], tp: int = 1, cp: int = 1) -> MixedPlan:
    return MixedPlan(
        tuple(
            PipelineKind(tuple(MixedStage(p, tp, cp, 1, "none") for p in pools), n, 1, 2, 2 * n)
            for pools, n in kinds
        ),
        1,
    )


def test_a_grid_is_one_where_all_runs_alike():
    assert _plan(((0, 1), 2), ((0, 0), 1)).is_uniform
    plan = _plan(((0, 1), 2))
    (kind,) = plan.kinds
    assert plan.is_uniform
    first, second = kind.stages
    unlike = replace(kind, stages=(replace(first, recompute="full"), second))
    assert not replace(plan, kinds=(unlike,)).is_uniform
    assert not replace(plan, kinds=(replace(kind, n_sequences=3),)).is_uniform
    assert not replace(plan, kinds=(kind, kind)).is_uniform


@pytest.mark.parametrize(
    ("plan", "is_whole"),
    [
        (_plan(((0, 1), 2)), True),  # stages of both pipelines fill a node
        (_plan(((0, 1), 1)), False),
        (_plan(((0, 0, 1, 1), 1)), True),
        (_plan(((0, 0), 1), ((1, 1), 1)), True),  # whole pipelines fill one
        (_plan(((0, 0), 1), ((1, 1), 1), cp=2), True),
        (_plan(((0, 0, 0), 1), ((1, 1, 1), 3)), False),
    ],
)
def test_nodes_are_of_one_pool(plan, is_whole):
    problem = random_problem(0)
    pools = tuple(replace(x, devices_per_node=2) for x in problem.pools)
    assert is_on_whole_nodes(plan, replace(problem, pools=pools)) == is_whole
    unlike = (pools[0], replace(pools[1], devices_per_node=3))
    assert is_on_whole_nodes(plan, replace(problem, pools=unlike))


def test_experts_want_their_pipelines_where_attention_has_them():
    """With pipelines inside, a stage of two kinds on a node each: cp 2 leaves experts others."""
    problem = random_problem(0)
    pools = tuple(replace(x, devices_per_node=4) for x in problem.pools)
    problem = replace(problem, pools=pools)
    assert is_on_whole_nodes(_plan(((0, 0), 1), ((1, 1), 1), tp=2), problem)
    assert not is_on_whole_nodes(_plan(((0, 0), 1), ((1, 1), 1), cp=2), problem)
