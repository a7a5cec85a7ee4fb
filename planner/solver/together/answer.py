"""The answer for one job over several pools, beside the plans on each pool alone."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from costmodels.mixed.plans import MixedPlan
from costmodels.mixed.prices import MixedPrice
from costmodels.mixed.tables import MixedProblem
from planner.errors import SearchError
from planner.option_names import option
from planner.solver.answer.result import Plan, Result
from planner.solver.execution import Stop
from planner.solver.options import SolveOptions
from planner.solver.recipes import one_recipe
from planner.solver.together.limits import (
    fewer_devices_count,
    impossible_limits,
    keeps,
    limits_json,
    nearest_limits,
    smaller_problems,
    trimmed_plans,
)
from planner.solver.together.link_worth import Edge, pays_from_bytes_per_s
from planner.solver.together.plans import PlanRecords, with_one_recompute
from planner.solver.together.pools import MergedCluster, joinable_pools, with_merged_pools
from planner.solver.together.problems import (
    JoinedProblem,
    check_model,
    check_together,
    is_for_runner,
    joined_problem,
)
from planner.solver.together.ranking import pool_worth, shown, value_of
from planner.solver.together.records import LinkWorth, Together
from planner.solver.together.sharded import SHARDED_SHARE, ShardedWork
from planner.solver.together.sharded_job import is_sharded, sharded_job
from planner.specs.inputs import ClusterInput, ModelInput
from searches.mixed.answer import MixedAnswer, MixedOptions
from searches.mixed.search import MixedSearch, search_mixed

MAX_POOLS = 8
"""Most unlike pools that are looked at together."""
N_GRIDS = 3
"""Plans of one grid of ranks that are looked for besides."""
StopAt = Callable[[float], Stop | None]
"""What ends a search after a share of the time limit; None without a limit."""
MAIN_SHARE, GRIDS_SHARE = 0.7, 0.8
"""Shares of the time limit after which the search over all pools, and that for grids, are done."""
Alone = Callable[[int], Plan | None]
"""The best plan on one pool of the cluster alone, by its place; None where nothing fits."""


@dataclass(frozen=True, slots=True)
class Joining:
    """How the pools of a cluster are joined."""

    merged: MergedCluster

    @property
    def cluster(self) -> ClusterInput:
        """The cluster whose pools of one part are one."""
        return self.merged.cluster

    def with_together(
        self,
        result: Result,
        model: ModelInput,
        options: SolveOptions,
        solve_alone: Alone,
        stop_at: StopAt,
        *,
        has_links: bool = True,
    ) -> Result:
        """Return a result on the pools with what one job over several of them reaches.

        `has_links` also from which bandwidth on links between places pay, which takes searches.
        """
        cluster = self.cluster
        model = one_recipe(model, options, "one job over several pools runs in one")
        joinable = joinable_pools(model, cluster, options)
        blank = Together(
            joined=(),
            merged=dict(self.merged.merged),
            alone=dict(joinable.alone),
            pays=False,
            plans=(),
            bound_s=None,
            gap=None,
            complete=True,
            worth=(),
            links=(),
            objective=options.objective,
            limits=limits_json(options.limits),
        )
        if len(joinable.indices) < 2:
            names = [pool.name for pool in cluster.cluster.pools]
            left = [name for name in names if name not in joinable.alone]
            return replace(result, together=replace(blank, alone=_alone(blank, left)))
        first = _best_alone(cluster, solve_alone)
        if is_sharded(options):
            job = sharded_job(model, cluster, options, joinable.indices)
            sharded = ShardedWork(job, model, cluster, options, has_links)
            return _with(result, sharded.together(blank, first, stop_at(SHARDED_SHARE)))
        joined = joined_problem(model, cluster, options, joinable.indices)
        records = PlanRecords(model, cluster, joined, options.calibration)
        work = _Work(joined, records, options, stop_at, has_links)
        together = work.together(blank, first, cluster)
        return _with(result, together)


def joining(model: ModelInput, cluster: ClusterInput, options: SolveOptions) -> Joining:
    """Return how the pools of a cluster are joined.

    Raises `UsageError` or `SearchError` for what is asked of a job over several pools that is not
    modelled.
    """
    check_together(options)
    one_recipe(model, options, "one job over several pools runs in one")
    merged = with_merged_pools(cluster)
    if (n := len(merged.cluster.cluster.pools)) > MAX_POOLS:
        raise SearchError(
            f"one job over {n} pools is not searched: {MAX_POOLS} at most",
            "leave pools out of the cluster file, or leave " + option("pools") + " out",
            code="out-of-range",
        )
    if len(merged.cluster.cluster.pools) > 1:
        check_model(model.shape, model.job)
    return Joining(merged)


def _with(result: Result, together: Together) -> Result:
    """Return a result with what one job over several pools reaches."""
    stopped = result.stopped or ("" if together.complete else "time limit")
    return replace(result, together=together, stopped=stopped, complete=not stopped)


def _alone(together: Together, left: Sequence[str]) -> Mapping[str, str]:
    """Return why pools are planned alone where fewer than two can be joined."""
    reason = "the cluster has no other pool that it can be joined with"
    return {**together.alone, **dict.fromkeys(left, reason)}


def _best_alone(cluster: ClusterInput, solve_alone: Alone) -> dict[str, Plan | None]:
    """Return the best plan on each pool alone, by its name; None where nothing fits."""
    best: dict[str, Plan | None] = {}
    for i, pool in enumerate(cluster.cluster.pools):
        try:
            best[pool.name] = solve_alone(i)
        except SearchError:  # the pool cannot run the job; notes of the result say why
            best[pool.name] = None
    return best


@dataclass(frozen=True, slots=True)
class _Work:
    """The searches of one answer."""

    joined: JoinedProblem
    records: PlanRecords
    options: SolveOptions
    stop_at: StopAt
    has_links: bool

    @property
    def mixed_options(self) -> MixedOptions:
        """What plans are looked for."""
        return MixedOptions(
            is_uniform=is_for_runner(self.options), n_best=max(self.options.top, 5)
        )

    def search(self, problem: MixedProblem, share: float = 1.0) -> MixedAnswer:
        """Return the plans of a problem, the fastest first, by a share of the time limit."""
        return search_mixed(problem, self.mixed_options, self.stop_at(share))

    def without(self, search: MixedSearch, place: int) -> MixedAnswer:
        """Return the plans that leave a pool out."""
        later = (place + 1) / len(self.joined.problems) * (1.0 - GRIDS_SHARE)
        stop = self.stop_at(GRIDS_SHARE + later)
        return search.without(place, self.joined.without(place), stop)

    def together(
        self, blank: Together, alone: Mapping[str, Plan | None], cluster: ClusterInput
    ) -> Together:
        """Return what one job over the joined pools reaches, beside the best on each alone."""
        goal, n_pools = self.options.objective, len(self.joined.mixed.pools)
        search = MixedSearch(self.joined.mixed, self.mixed_options, self.stop_at(MAIN_SHARE))
        answer = search.answer
        grids = self._grids()
        without = [self.without(search, i) for i in range(n_pools)] if n_pools > 2 else []
        smaller = self._smaller()
        answers = [answer, *grids, *without, *smaller]
        found = self._listed([plan for x in answers for plan in x.plans])
        every = sorted(
            (self.records.record(plan, priced, 1) for plan, priced in found),
            key=lambda x: (value_of(x, goal), x.step_time_s, len(x.kinds), x.n_devices),
        )
        limits = self.options.limits
        records = [x for x in every if keeps(x, limits)]
        plans = [replace(x, rank=rank) for rank, x in enumerate(records, 1)]
        values = {name: value_of(x, goal) if x else math.inf for name, x in alone.items()}
        pays = bool(plans) and value_of(plans[0], goal) < min(values.values())
        # Plans that leave several pools out have fewer stragglers still.
        others_s = [x.bound_s * self.joined.least_factor_frac(i) for i, x in enumerate(without)]
        # Without a bound over all pools there is none.
        bound_s = min([answer.bound_s, *others_s]) if answer.bound_s < math.inf else math.inf
        fastest_s = min((x.step_time_s for x in plans), default=math.inf)
        is_bound = math.isfinite(bound_s)  # else nothing fits, on one of the pools or several
        job = self.joined.problems[0].job
        names = tuple(pool.name for pool in self.joined.mixed.pools)
        used = set(plans[0].devices) if pays else {min(values, key=lambda x: (values[x], x))}
        complete = not any(x.stopped for x in (answer, *without, *smaller))
        return replace(
            blank,
            joined=names,
            pays=pays,
            plans=shown(plans, self.options.top),
            bound_s=bound_s if is_bound else None,
            gap=max(0.0, 1.0 - bound_s / fastest_s) if is_bound and plans else None,
            complete=complete,
            n_missed=len(every) - len(records),
            nearest=nearest_limits(every, limits),
            cannot=tuple(impossible_limits(limits, bound_s, job)) if is_bound else (),
            worth=tuple(pool_worth(name, alone, records, used) for name in names),
            links=self._links(cluster, found, alone)
            if self.has_links and complete and not limits.any
            else (),
        )

    def _grids(self) -> list[MixedAnswer]:
        """Return plans that are one grid of ranks, unless all that are looked for are."""
        if is_for_runner(self.options):
            return []
        grids = MixedOptions(is_uniform=True, n_best=N_GRIDS)
        return [search_mixed(self.joined.mixed, grids, self.stop_at(GRIDS_SHARE))]

    def _smaller(self) -> list[MixedAnswer]:
        """Return plans on fewer nodes of a pool, where money or energy decide between plans."""
        if not fewer_devices_count(self.options):
            return []
        return [self.search(x, GRIDS_SHARE) for x in smaller_problems(self.joined.mixed)]

    def _listed(self, plans: Sequence[MixedPlan]) -> list[tuple[MixedPlan, MixedPrice]]:
        """Return the plans over several pools, with those that a framework runs among them."""
        if fewer_devices_count(self.options):
            plans = [*plans, *trimmed_plans(plans, self.joined.mixed)]
        alike = [with_one_recompute(plan) for plan in plans]
        plans = [*plans, *(plan for plan in alike if plan.is_uniform)]
        listed: dict[object, tuple[MixedPlan, MixedPrice]] = {}
        for plan in plans:
            kinds = frozenset(Counter(plan.kinds).items()), plan.zero
            if len(plan.pools) > 1 and kinds not in listed:
                priced = self.joined.priced(plan)
                if priced is not None:
                    listed[kinds] = plan, priced
        return list(listed.values())

    def _links(
        self,
        cluster: ClusterInput,
        found: Sequence[tuple[MixedPlan, MixedPrice]],
        alone: Mapping[str, Plan | None],
    ) -> tuple[LinkWorth, ...]:
        """Return from which bandwidth on each link between places pays."""
        places = {pool.name: i for i, pool in enumerate(self.joined.mixed.pools)}
        apart_s = min((x.step_time_s for x in alone.values() if x), default=math.inf)
        links = []
        for link in cluster.cluster.links:
            if not link.is_wan or not set(link.pools) <= set(places):
                continue
            a, b = sorted(places[name] for name in link.pools)
            edge: Edge = (a, b)
            plans = [plan for plan, _ in found]
            least = pays_from_bytes_per_s(
                self.joined.mixed, edge, plans, apart_s, lambda x: self.search(x).plans
            )
            links.append(LinkWorth(link.pools, link.bytes_per_s, least))
        return tuple(links)
