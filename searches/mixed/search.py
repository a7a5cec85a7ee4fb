"""The best plan over several pools, and a bound that no plan is faster than.

1. One kind of pipeline: structures in the order of a lower bound of their step, each with its
   best splits, until the bound passes the best step.
2. Several kinds: a lower bound over any mixture of structures (`bound`), and the structures that
   are worth their devices at its prices; of those CP-SAT chooses kinds and numbers of pipelines
   (`master`) within a step that is halved towards the bound. What it chooses is priced whole.

Plans that are one grid of ranks have a search of their own (`grids`).

Small problems are searched whole: every split of every structure is a candidate, and choices are
priced until none is left whose bound is below the best.
"""

import math
from dataclasses import replace

from costmodels.mixed.tables import MixedProblem
from searches.mixed.answer import BestPlans, Halt, MixedAnswer, MixedOptions, Stop
from searches.mixed.bound import least_step_s
from searches.mixed.columns import Columns
from searches.mixed.fills import ways_of
from searches.mixed.grids.search import search_grids
from searches.mixed.several import search_several
from searches.mixed.single import search_single
from searches.mixed.structures import Structures, least_sequence_s, structures_of
from searches.mixed.whole import every_fill, search_whole

MOST_KINDS = 3
"""Kinds of pipelines in one plan, over three pools or fewer."""


def search_mixed(
    problem: MixedProblem, options: MixedOptions | None = None, stop: Stop | None = None
) -> MixedAnswer:
    """Return the fastest plans over several pools, with a proven bound.

    `stop` is asked now and then; when it says so, the best so far is returned. The answer depends
    on the problem and the options alone, unless it is stopped.
    """
    options, n_pools = options or MixedOptions(), len(problem.pools)
    options = replace(options, most_kinds=options.most_kinds or max(MOST_KINDS, n_pools))
    halt = Halt(stop)
    ways = ways_of(problem)
    best = BestPlans(problem, options)
    spanned, n_structures = options.most_spanned, 0
    while True:
        if options.is_uniform:
            bound_s = search_grids(problem, spanned, options, best, halt)
        else:
            structures = structures_of(problem, ways, spanned)
            n_structures = len(structures)
            bound_s = _search(problem, structures, options, best, halt)
        if best.step_s < math.inf or spanned >= n_pools or halt():
            break
        spanned += 1
    rows = best.first(options.n_best)
    return MixedAnswer(
        plans=tuple(x[1] for x in rows),
        prices=tuple(x[2] for x in rows),
        bound_s=min(bound_s, rows[0][0]) if rows else math.inf,
        n_structures=n_structures,
        n_priced=best.n_priced,
        stopped="time limit" if halt.is_cut else "",
    )


def _search(
    problem: MixedProblem,
    structures: Structures,
    options: MixedOptions,
    best: BestPlans,
    halt: Halt,
) -> float:
    """Search one set of structures; return the bound."""
    if not len(structures):
        return math.inf
    if (whole := every_fill(problem, structures)) is not None:
        whole_s = search_whole(problem, whole, options, best, halt)
        if whole_s > 0.0:
            return whole_s
    columns = Columns(problem, structures, options.most_kinds)
    if not len(columns):
        return math.inf
    single_s = search_single(problem, columns, best, halt)
    if options.most_kinds == 1:
        return single_s
    sequence_s = least_sequence_s(problem, structures.ways)
    fluid_s = problem.straggler_factor * problem.global_batch * sequence_s
    high_s = best.step_s if best.step_s < math.inf else 64.0 * fluid_s
    columns.prune(high_s)
    several_s, bound = least_step_s(columns, fluid_s, high_s, halt)
    if not halt():
        search_several(problem, (several_s, bound), options, best, halt)
    return min(single_s, several_s)


def without_pool(problem: MixedProblem, pool: int) -> MixedProblem:
    """Return the same job without one of the pools: its devices are not used."""
    pools = tuple(replace(x, n_devices=0) if i == pool else x for i, x in enumerate(problem.pools))
    tables = tuple(x for x in problem.tables if x.pool != pool)
    return replace(problem, pools=pools, tables=tables)
