"""Plans over several pools against every plan of small random jobs, and what must never happen."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from costmodels.mixed.plans import MixedPlan, PipelineKind
from costmodels.mixed.prices import fits, price
from costmodels.mixed.tables import LinkFacts, MixedProblem, Prefix
from searches.mixed.answer import BestPlans, Halt, MixedAnswer, MixedOptions, pipelines_of
from searches.mixed.bounds.columns import Columns
from searches.mixed.bounds.linear import least_step_s
from searches.mixed.fills import ways_of
from searches.mixed.search import search_mixed, without_pool
from searches.mixed.single import search_single
from searches.mixed.structures import least_sequence_s, structures_of
from searches.mixed.whole import every_fill
from tests.repeats import slow
from tests.searches.mixed.instances import every_plan, random_problem

TWO = MixedOptions(most_kinds=2)


def _best_s(problem: MixedProblem) -> float:
    """Return the least step of every plan of up to two kinds; infinite where none fits.

    A kind is no faster beside another, and needs as much memory: plans with a kind that is too
    slow alone, or does not fit, are not priced.
    """
    alone: dict[PipelineKind, float] = {}

    def alone_s(kind: PipelineKind) -> float:
        if kind not in alone:
            plan = MixedPlan((kind,), problem.zero)
            priced = price(plan, problem)
            alone[kind] = priced.step_s if fits(plan, problem, priced) else math.inf
        return alone[kind]

    best_s = math.inf
    for plan in every_plan(problem, 2):
        if any(alone_s(kind) >= best_s for kind in plan.kinds):
            continue
        priced = price(plan, problem)
        if priced.step_s < best_s and fits(plan, problem, priced):
            best_s = priced.step_s
    return best_s


def _first_s(answer: MixedAnswer) -> float:
    return answer.prices[0].step_s if answer.prices else float("inf")


def _check(seed: int) -> None:
    problem = random_problem(seed)
    answer = search_mixed(problem, TWO)
    best_s = _best_s(problem)
    assert _first_s(answer) == pytest.approx(best_s, rel=1e-9)
    assert answer.bound_s <= best_s * (1.0 + 1e-9)
    if answer.prices:
        assert answer.proven


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 29, 137])
def test_the_search_finds_the_best_of_every_plan(seed):
    _check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(3, 200, 16))
def test_the_search_finds_the_best_of_every_plan_of_200(start):
    for seed in range(start, min(200, start + 16)):
        _check(seed)


@pytest.mark.parametrize("seed", range(300, 305))
def test_another_pool_never_makes_the_best_plan_slower(seed):
    problem = random_problem(seed)
    both_s = _first_s(search_mixed(problem, TWO))
    for pool in range(2):
        assert both_s <= _first_s(search_mixed(without_pool(problem, pool), TWO)) * (1.0 + 1e-9)


@pytest.mark.parametrize("seed", range(320, 323))
def test_more_bandwidth_between_pools_never_hurts(seed):
    problem = random_problem(seed)
    link = problem.links[0, 1]
    steps = [
        _first_s(
            search_mixed(
                replace(problem, links={(0, 1): LinkFacts(link.bytes_per_s * x, link.latency_s)}),
                TWO,
            )
        )
        for x in (0.1, 1.0, 10.0)
    ]
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize("seed", range(330, 333))
def test_the_order_of_pools_changes_nothing(seed):
    problem = random_problem(seed)
    tables = tuple(replace(x, pool=1 - x.pool) for x in problem.tables)
    swapped = replace(problem, pools=problem.pools[::-1], tables=tables)
    first, second = search_mixed(problem, TWO), search_mixed(swapped, TWO)
    assert _first_s(second) == pytest.approx(_first_s(first), rel=1e-9)


def test_a_stopped_search_says_so_and_has_a_bound():
    problem = random_problem(1)
    answer = search_mixed(problem, TWO, stop=lambda: True)
    assert answer.stopped == "time limit"
    assert not answer.proven
    assert answer.bound_s <= _best_s(problem)


def test_a_search_that_came_to_its_end_is_not_a_stopped_one():
    problem = random_problem(1)
    n_asked = 0

    def counted() -> bool:
        nonlocal n_asked
        n_asked += 1
        return False

    search_mixed(problem, TWO, stop=counted)
    n_left = n_asked

    def after_all() -> bool:
        nonlocal n_left
        n_left -= 1
        return n_left < 0

    answer = search_mixed(problem, TWO, stop=after_all)
    assert n_asked > 0
    assert answer.stopped == ""
    assert answer.proven


def _check_bounds(seed: int) -> None:
    """Hold the bound of large problems, which are not searched whole, to every plan."""
    problem = random_problem(seed)
    best_s = _best_s(problem)
    structures = structures_of(problem, ways_of(problem), 2)
    halt, best = Halt(None), BestPlans(problem, TWO)
    columns = Columns(problem, structures, 2)
    if not len(columns):
        assert best_s == math.inf
        return
    single_s = search_single(problem, columns, best, halt)
    several_s, _ = least_step_s(columns, 1e-3, 1e3, halt)
    assert min(single_s, several_s) <= best_s * (1.0 + 1e-9)


@pytest.mark.parametrize("seed", [*range(5), slow(5)])
def test_the_bound_of_large_problems_is_below_every_plan(seed):
    _check_bounds(seed)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(6, 200, 16))
def test_the_bound_of_large_problems_is_below_every_plan_of_200(start):
    for seed in range(start, min(200, start + 16)):
        _check_bounds(seed)


@pytest.mark.parametrize("seed", [0, 3, 12])
def test_the_bound_of_grids_is_below_grids_over_several_pools(seed):
    problem = random_problem(seed)
    steps = [
        priced.step_s
        for plan in every_plan(problem, 2)
        if plan.is_uniform and fits(plan, problem, priced := price(plan, problem))
    ]
    answer = search_mixed(problem, replace(TWO, is_uniform=True))
    assert answer.bound_s <= min(steps) * (1.0 + 1e-9)


def _with_layers(problem: MixedProblem, weights: list[list[float]]) -> MixedProblem:
    """Return a job whose layers take some times as long, by pool and layer."""

    def scaled(prefix: Prefix, pool: int) -> Prefix:
        each = np.diff(prefix.layers) * weights[pool]
        return replace(prefix, layers=np.concatenate([[0.0], np.cumsum(each)]))

    tables = (
        replace(
            x,
            forward_s=scaled(x.forward_s, x.pool),
            backward_s=scaled(x.backward_s, x.pool),
            grad_bytes=scaled(x.grad_bytes, 0),
        )
        for x in problem.tables
    )
    return replace(problem, tables=tuple(tables))


@pytest.mark.parametrize("seed", [3, 4, 7])
def test_offers_are_no_slower_than_their_plans(seed):
    problem = random_problem(seed)
    chance = random.Random(seed)
    weights = [[chance.choice([0.2, 4.0]) for _ in range(problem.n_layers)] for _ in range(2)]
    problem = _with_layers(problem, weights)
    nics = (0.05, 3.0)
    pools = (replace(x, nic_bytes_per_s=y) for x, y in zip(problem.pools, nics, strict=True))
    problem = replace(problem, pools=tuple(pools))
    offers = every_fill(problem, structures_of(problem, ways_of(problem), 2))
    assert offers
    for x, y in zip(offers, offers[1:] + offers[:1], strict=True):
        kinds = [
            pipelines_of(z.fill, z.pipeline, z.least, z.least * z.pipeline.mbs) for z in (x, y)
        ]
        priced = price(MixedPlan(tuple(kinds), problem.zero), problem)
        assert x.step_s(1) <= priced.kinds[0].step_s * (1.0 + 1e-9)


def test_pools_that_suit_other_layers_are_faster_together_than_their_rates():
    problem = next(x for x in map(random_problem, range(100)) if x.n_layers == 2)
    tables = tuple(
        replace(
            x,
            forward_s=Prefix(np.array([0.0, first, 4.0]), 0.0, 0.0),
            backward_s=Prefix(np.zeros(3), 0.0, 0.0),
        )
        for x in problem.tables
        if (x.tp, x.mbs, x.recompute) == (1, 1, "none")
        for first in [(1.0, 3.0)[x.pool]]
    )
    pools = tuple(replace(x, n_devices=1) for x in problem.pools)
    problem = replace(problem, tables=tables, pools=pools)
    # Each pool runs the layer that it does in 1 s: a sequence a second, not one in 2 s.
    assert least_sequence_s(problem, ways_of(problem)) == pytest.approx(1.0)
