"""The best plan over several pools, and a bound that no plan is faster than.

1. One kind of pipeline: structures in the order of a lower bound of their step, each with its
   best splits, until the bound passes the best step.
2. Several kinds: a lower bound over any mixture of structures (`bounds`), and the structures that
   are worth their devices at its prices; of those a beam mixes kinds and numbers of pipelines
   (`mixtures`), then CP-SAT (`master`) within a step that is halved towards the bound. What they
   choose is priced whole.

Plans that are one grid of ranks have a search of their own (`grids`).

Small problems are searched whole: every split of every structure is a candidate, and choices are
priced until none is left whose bound is below the best.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedProblem
from searches.mixed.answer import BestPlans, Halt, MixedAnswer, MixedOptions, Stop
from searches.mixed.bounds.columns import Columns
from searches.mixed.bounds.families import families_of
from searches.mixed.bounds.linear import Bound, least_step_s
from searches.mixed.fills import ways_of
from searches.mixed.grids.search import search_grids
from searches.mixed.several import FULL, QUICK, Effort, search_several
from searches.mixed.single import search_single
from searches.mixed.structures import Structures, least_sequence_s, structures_of
from searches.mixed.whole import every_fill, search_whole

FLUID_MOST = 64.0
"""Steps of interest over those in which all devices compute all the time, at most."""
MOST_KINDS = 3
"""Kinds of pipelines in one plan, over three pools or fewer."""


def search_mixed(
    problem: MixedProblem, options: MixedOptions | None = None, stop: Stop | None = None
) -> MixedAnswer:
    """Return the fastest plans over several pools, with a proven bound.

    `stop` is asked now and then; when it says so, the best so far is returned. The answer depends
    on the problem and the options alone, unless it is stopped.
    """
    return MixedSearch(problem, options, stop).answer


class MixedSearch:
    """A search over several pools, and searches of the same job without one of them."""

    def __init__(
        self,
        problem: MixedProblem,
        options: MixedOptions | None = None,
        stop: Stop | None = None,
    ) -> None:
        options, n_pools = options or MixedOptions(), len(problem.pools)
        options = replace(options, most_kinds=options.most_kinds or max(MOST_KINDS, n_pools))
        self._options = options
        self._families: list[Columns] = []
        """What is known of the columns by kinds of a plan; none where the search needed none."""
        self._decided: tuple[float, NDArray[np.int64]] | None = None
        """Their bound over `_fluid_s`, and the numbers of the columns that decided it."""
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
                bound_s = self._search(problem, structures, best, halt)
            if best.step_s < math.inf or spanned >= n_pools or halt():
                break
            spanned += 1
        self.answer = _answer(best, bound_s, n_structures, halt, options.n_best)

    def _search(
        self, problem: MixedProblem, structures: Structures, best: BestPlans, halt: Halt
    ) -> float:
        """Search one set of structures; return the bound."""
        options, self._families = self._options, []
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
            self._families = [columns]
            return single_s
        fluid_s, high_s = _fluid_s(columns), best.step_s
        columns.prune(high_s if high_s < math.inf else FLUID_MOST * fluid_s)
        families = families_of(problem, structures.ways, options.most_kinds, fluid_s)
        self._families = [columns.of_family(x) for x in families]
        several_s, bound = _search_several(self._families, options, best, halt, FULL)
        self._decided = several_s / fluid_s, bound.columns.base[bound.active]
        return min(single_s, several_s)

    def without(self, pool: int, problem: MixedProblem, stop: Stop | None = None) -> MixedAnswer:
        """Return the fastest plans without a pool that are found soon, with a proven bound.

        `problem` is the same job without it: as `without_pool` makes it, with stragglers of fewer
        nodes.
        """
        if not self._families:
            return search_mixed(problem, self._options, stop)
        families = [x.without(pool, problem) for x in self._families]
        best, halt = BestPlans(problem, self._options), Halt(stop)
        bound_s, columns = math.inf, families[0]
        if len(columns):
            bound_s = search_single(problem, columns, best, halt)
        if len(columns) and self._options.most_kinds > 1:
            several_s, _ = _search_several(
                families, self._options, best, halt, QUICK, self._decided
            )
            bound_s = min(bound_s, several_s)
        answer = _answer(best, bound_s, len(columns), halt, self._options.n_best)
        # A quick search that found nothing did not prove that nothing fits.
        return answer if answer.plans else replace(answer, bound_s=bound_s)


def _answer(
    best: BestPlans, bound_s: float, n_structures: int, halt: Halt, n_best: int
) -> MixedAnswer:
    rows = best.first(n_best)
    unknown_s = bound_s if halt.is_cut else math.inf
    return MixedAnswer(
        plans=tuple(x[1] for x in rows),
        prices=tuple(x[2] for x in rows),
        bound_s=min(bound_s, rows[0][0]) if rows else unknown_s,
        n_structures=n_structures,
        n_priced=best.n_priced,
        stopped="time limit" if halt.is_cut else "",
    )


def _fluid_s(columns: Columns) -> float:
    """Return a step that no plan is shorter than: all devices compute all the time."""
    problem = columns.problem
    sequence_s = least_sequence_s(problem, columns.structures.ways)
    return problem.straggler_factor * problem.global_batch * sequence_s


def _search_several(
    families: Sequence[Columns],
    options: MixedOptions,
    best: BestPlans,
    halt: Halt,
    effort: Effort,
    like: tuple[float, NDArray[np.int64]] | None = None,
) -> tuple[float, Bound]:
    """Search plans of several kinds by families; return the bound, and what it was found by.

    The first family is bounded as well as can be, the others only as far as it is. `like` is the
    bound of a problem like this one over its `_fluid_s`, and the columns that decided it.
    """
    fluid_s = _fluid_s(families[0])
    high_s = best.step_s if best.step_s < math.inf else FLUID_MOST * fluid_s
    near_s = like[0] * fluid_s if like else 0.0
    rows = families[0].rows_of(like[1]) if like else None
    least_s, least = least_step_s(families[0], fluid_s, high_s, halt, near_s, rows)
    for columns in families[1:]:
        active = columns.rows_of(least.columns.base[least.active])
        one_s, one = least_step_s(columns, fluid_s, least_s, halt, least_s, active)
        if one_s < least_s:
            least_s, least = one_s, one
    if not halt():
        search_several(
            families[0].problem, (least_s, least), options.most_kinds, best, halt, effort
        )
    return least_s, least


def without_pool(problem: MixedProblem, pool: int) -> MixedProblem:
    """Return the same job without one of the pools: its devices are not used."""
    pools = tuple(replace(x, n_devices=0) if i == pool else x for i, x in enumerate(problem.pools))
    tables = tuple(x for x in problem.tables if x.pool != pool)
    return replace(problem, pools=pools, tables=tables)
