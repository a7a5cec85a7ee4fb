"""What cuts take at least, beside the prices of every split."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, groupby

import numpy as np
import pytest

from costmodels.mixed.plans import MixedPlan, PipelineKind
from costmodels.mixed.prices import fits, price
from costmodels.mixed.tables import LinkFacts, MixedProblem
from searches.mixed.answer import pipelines_of
from searches.mixed.bounds.columns import Columns
from searches.mixed.bounds.families import Family, families_of, sites_of
from searches.mixed.bounds.tails import FIRST, least_sync_s
from searches.mixed.fills import fastest_fill, ways_of
from searches.mixed.structures import structures_of
from tests.repeats import slow
from tests.searches.mixed.instances import every_kind, random_problem


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


def _place(columns: Columns, kind: PipelineKind) -> int:
    """Return the row of pipelines of a kind."""
    parts = [(key, len(list(same))) for key, same in groupby((x.pool, x.tp) for x in kind.stages)]
    for row in range(len(columns)):
        pipeline = columns.structures.pipeline(int(columns.structure[row]))
        own = [((way.pool, way.tables[0].tp), n) for way, n in pipeline.parts]
        is_own = own == parts and pipeline.mbs == kind.mbs
        if is_own and columns.first[row] <= kind.n_pipelines <= columns.last[row]:
            return row
    return -1


def _family(problem: MixedProblem, kinds: Sequence[PipelineKind]) -> Family:
    """Return the family of a plan, however little the link between sites decides."""
    sites, _ = sites_of(problem)
    pools = [{x.pool for x in kind.stages} for kind in kinds]
    spanned = tuple(site for site in sites if not any(x <= site for x in pools))
    every = families_of(problem, ways_of(problem), len(kinds), 1e-9)
    return next(x for x in every if (x.n_kinds, x.spanned) == (len(kinds), spanned))


@pytest.mark.parametrize("is_thin", [False, True])
@pytest.mark.parametrize("n_kinds", [2, 3])
@pytest.mark.parametrize("seed", [*range(4), *map(slow, range(4, 40))])
def test_no_kind_of_a_plan_gets_more_done_than_its_column(seed, n_kinds, is_thin):
    problem, chance = random_problem(seed), random.Random(seed)
    if is_thin:
        links = {pair: LinkFacts(0.2, 0.1) for pair in problem.links}
        problem = replace(problem, links=links)
    base = Columns(problem, structures_of(problem, ways_of(problem), 2), 3)
    plain = base.of_family(Family(n_kinds))
    every, known = list(every_kind(problem)), dict[Family, Columns]()
    n_compared = 0
    for _ in range(60):
        kinds = []
        for stages, mbs, most in (chance.choice(every) for _ in range(n_kinds)):
            n, n_micro = chance.randint(1, most), chance.randint(1, problem.global_batch)
            kinds.append(PipelineKind(stages, n, mbs, n_micro, n * mbs * n_micro))
        alone, columns = MixedPlan((kinds[0],), problem.zero), plain
        if is_thin:
            family = _family(problem, kinds)
            columns = known.setdefault(family, base.of_family(family))
        row = _place(columns, kinds[0])
        if row < 0 or not fits(alone, problem, price(alone, problem)):
            continue
        time_s = price(MixedPlan(tuple(kinds), problem.zero), problem).kinds[0].step_s
        time_s *= 1.0 + 1e-9
        rows, done = np.array([row]), float(kinds[0].n_micro * kinds[0].mbs)
        done = min(done, problem.global_batch / kinds[0].n_pipelines)
        assert columns.done(time_s, rows)[0] >= done - 1e-9
        columns.look(time_s, np.arange(len(columns)), np.full(len(columns), -1.0))
        assert columns.done(time_s, rows)[0] >= done - 1e-9
        assert columns.most_done(time_s)[row] >= done - 1e-9
        columns.refine(row, time_s)
        assert columns.done(time_s, rows)[0] >= done - 1e-9
        n_compared += 1
    assert n_compared


def test_more_kinds_of_pipelines_get_less_done_each():
    problem = random_problem(3)
    columns = Columns(problem, structures_of(problem, ways_of(problem), 2), 3)
    two, three = (columns.of_family(Family(n)) for n in (2, 3))
    assert (three.outside_s >= two.outside_s).all()
    assert (three.outside_s > two.outside_s).any()
    assert (two.sizes[-1], three.sizes[-1]) == (2.0, 3.0)


def test_the_gradients_of_the_embedding_follow_the_pipeline():
    problem = random_problem(3)
    way = ways_of(problem)[0]
    shares = np.array([0.0, 0.5, 1.0])
    least = least_sync_s(problem, way, shares, 3)
    first = least_sync_s(problem, way, shares, 3, FIRST)
    assert (first >= least - 1e-12).all()
    assert (first[:, 2:] > least[:, 2:]).all()


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
