"""The answer for sharded replicas over several pools, beside the plans on each pool alone."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from costmodels.mixed.sharded_plans import ReplicaKind, ShardedPlan
from costmodels.mixed.sharded_prices import ReplicaPrice, ShardedPrice, sharded_price
from costmodels.mixed.sharded_tables import ShardedProblem
from planner.solver.answer.result import Plan
from planner.solver.calibration.intervals import interval_of_several_pools
from planner.solver.execution import Stop
from planner.solver.options import SolveOptions
from planner.solver.together.limits import (
    SEARCHED_FRACTION,
    fewer_devices_count,
    impossible_limits,
    keeps,
    nearest_limits,
)
from planner.solver.together.link_worth import HALVINGS, NARROWER, ROUNDS, WIDEST, Edge
from planner.solver.together.plan_costs import joined_links, run_costs
from planner.solver.together.ranking import pool_worth, shown, value_of
from planner.solver.together.records import (
    NARROWEST,
    SHARDED_ZERO,
    JoinedKind,
    JoinedPlan,
    JoinedStage,
    LinkWorth,
    Together,
)
from planner.solver.together.sharded_job import ShardedJob
from planner.specs.identity import PlanIds
from planner.specs.inputs import ClusterInput, ModelInput
from searches.sharded_replicas import ShardedAnswer, search_sharded

SHARDED_SHARE = 0.9
"""Share of the time limit after which the search is done."""
LEAST_LISTED = 5
"""Plans that are looked for at least."""


@dataclass(frozen=True, slots=True)
class ShardedWork:
    """The search of one answer, and the records of its plans."""

    job: ShardedJob
    model: ModelInput
    cluster: ClusterInput
    options: SolveOptions
    has_links: bool = True
    """Whether it is asked from which bandwidth on links pay, which takes searches."""

    def together(
        self, blank: Together, alone: Mapping[str, Plan | None], stop: Stop | None
    ) -> Together:
        """Return what sharded replicas reach, beside the best on each pool alone."""
        goal = self.options.objective
        n_best = max(self.options.top, LEAST_LISTED)
        answer = search_sharded(self.job.sharded, n_best, stop)
        found = dict(zip(answer.plans, answer.prices, strict=True))
        smaller = self._smaller(n_best, stop)
        found |= {plan: sharded_price(plan, self.job.sharded) for x in smaller for plan in x.plans}
        every = sorted(
            (self.record(plan, priced) for plan, priced in found.items()),
            key=lambda x: (value_of(x, goal), x.step_time_s, len(x.kinds), x.n_devices),
        )
        limits = self.options.limits
        records = [x for x in every if keeps(x, limits)]
        plans = [replace(x, rank=rank) for rank, x in enumerate(records, 1)]
        values = {name: value_of(x, goal) if x else math.inf for name, x in alone.items()}
        pays = bool(plans) and value_of(plans[0], goal) < min(values.values())
        used = set(plans[0].devices) if pays else {min(values, key=lambda x: (values[x], x))}
        names = tuple(pool.name for pool in self.job.sharded.pools)
        # Every plan of the family is looked at: the fastest is its own bound.
        bound_s = min((x.step_time_s for x in every), default=math.inf)
        fastest_s = min((x.step_time_s for x in plans), default=math.inf)
        complete = not any(x.stopped for x in (answer, *smaller))
        is_bound = bool(every) and not answer.stopped
        job = self.job.problems[0].job
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
            links=self._links(answer.plans, alone)
            if self.has_links and complete and not limits.any
            else (),
        )

    def _smaller(self, n_best: int, stop: Stop | None) -> list[ShardedAnswer]:
        """Return plans on fewer nodes of a pool, where money or energy decide between plans."""
        if not fewer_devices_count(self.options):
            return []
        return [search_sharded(x, n_best, stop) for x in smaller_problems(self.job.sharded)]

    def record(self, plan: ShardedPlan, priced: ShardedPrice) -> JoinedPlan:
        """Return a priced plan as an answer holds it, without its rank."""
        problem = self.job.problems[0]
        kinds = tuple(
            self._kind(plan, kind, its) for kind, its in zip(plan.kinds, priced.kinds, strict=True)
        )
        links = joined_links(self.cluster, self.job.indices, priced.crossing_bytes)
        costs = run_costs(self.cluster, self.job.used(plan), problem, links, priced.step_s)
        slowest = max(priced.kinds, key=lambda x: x.step_s)
        network_frac = (slowest.sync_s + slowest.exchange_s) / slowest.step_s
        low, high = interval_of_several_pools(problem, network_frac, self.options.calibration)
        pools = self.job.sharded.pools
        return JoinedPlan(
            rank=0,
            plan_id=self._plan_id(plan),
            step_time_s=priced.step_s,
            step_time_p10_s=priced.step_s * low,
            step_time_p90_s=priced.step_s * high,
            tokens_per_s=problem.job.tokens_per_step / priced.step_s,
            zero=SHARDED_ZERO,
            devices={pools[i].name: plan.n_devices(i) for i in plan.pools},
            kinds=kinds,
            links=links,
            runs_on=(self.job.framework,),
            missing=(),
            shard=plan.degrees.shard,
            **asdict(costs),
        )

    def _kind(self, plan: ShardedPlan, kind: ReplicaKind, priced: ReplicaPrice) -> JoinedKind:
        pool = self.job.problems[kind.pool].pool
        stage = JoinedStage(
            pool=pool.name,
            layers=self.job.problems[0].shape.layers,
            tp=plan.degrees.tp,
            cp=plan.degrees.cp,
            ep=1,
            recompute=kind.recompute,
            forward_s=priced.forward_s,
            backward_s=priced.backward_s,
            states_bytes=priced.states_bytes,
            activation_bytes=priced.activation_bytes,
            other_bytes=priced.other_bytes,
            peak_bytes=priced.peak_bytes,
            usable_bytes=pool.usable_bytes,
        )
        n_sequences = plan.sequences_of(kind)
        return JoinedKind(
            pools=(pool.name,),
            n_pipelines=kind.n_replicas * plan.degrees.shard,
            mbs=kind.mbs,
            n_micro=plan.n_micro,
            n_sequences=n_sequences,
            share=n_sequences / plan.n_sequences,
            step_time_s=priced.step_s,
            time={
                "compute": priced.compute_s,
                "bubble": 0.0,
                "messages": 0.0,
                "straggle": priced.straggle_s,
                "sync": priced.sync_s,
                "exchange": priced.exchange_s,
                "update": priced.update_s,
                "fixed": priced.fixed_s,
            },
            stages=(stage,),
        )

    def _plan_id(self, plan: ShardedPlan) -> str:
        """Return the id of a plan: what it lays out, of this job on this cluster."""
        pools = self.job.sharded.pools
        layout: dict[str, Any] = {
            "zero": SHARDED_ZERO,
            "framework": self.job.framework,
            "degrees": [plan.degrees.shard, plan.degrees.tp, plan.degrees.cp],
            "micro_batches": plan.n_micro,
            "replicas": [
                [pools[x.pool].name, x.n_replicas, x.mbs, x.recompute] for x in plan.kinds
            ],
        }
        return PlanIds(self.model.document, self.cluster.document).of(layout)

    def _links(
        self, plans: Sequence[ShardedPlan], alone: Mapping[str, Plan | None]
    ) -> tuple[LinkWorth, ...]:
        """Return from which bandwidth on each link between places pays."""
        places = {pool.name: i for i, pool in enumerate(self.job.sharded.pools)}
        apart_s = min((x.step_time_s for x in alone.values() if x), default=math.inf)
        links = []
        for link in self.cluster.cluster.links:
            if link.is_wan and set(link.pools) <= set(places):
                a, b = sorted(places[name] for name in link.pools)
                least = pays_from_bytes_per_s(self.job.sharded, (a, b), plans, apart_s)
                links.append(LinkWorth(link.pools, link.bytes_per_s, least))
        return tuple(links)


def smaller_problems(problem: ShardedProblem) -> Iterator[ShardedProblem]:
    """Yield a problem with fewer nodes of one of its pools: fewer devices may cost less."""
    for i, pool in enumerate(problem.pools):
        own = pool.problem.pool
        if 0 < (n := math.ceil(own.n_nodes * SEARCHED_FRACTION)) < own.n_nodes:
            fewer = replace(pool.problem, pool=replace(own, n_nodes=n))
            some = (*problem.pools[:i], replace(pool, problem=fewer), *problem.pools[i + 1 :])
            yield replace(problem, pools=some)


def with_bandwidth(problem: ShardedProblem, edge: Edge, bytes_per_s: float) -> ShardedProblem:
    """Return a problem with another bandwidth of one link."""
    link = replace(problem.links[edge], bytes_per_s=bytes_per_s)
    return replace(problem, links={**problem.links, edge: link})


def pays_from_bytes_per_s(
    problem: ShardedProblem, edge: Edge, known: Sequence[ShardedPlan], apart_s: float
) -> float | None:
    """Return the bandwidth from which on a plan over a link beats all plans that do not use it.

    As `link_worth.pays_from_bytes_per_s`: halved down to over known plans, then searched below.
    """
    plans = [*known, *search_sharded(with_bandwidth(problem, edge, WIDEST)).plans]
    over = [x for x in plans if set(edge) <= set(x.pools)]
    others = [x for x in plans if not set(edge) <= set(x.pools)]
    apart_s = min([apart_s, *(sharded_price(x, problem).step_s for x in others)])

    if _best_s(over, problem, edge, WIDEST) >= apart_s:
        return None
    least = _least_bytes_per_s(over, problem, edge, apart_s)
    for _ in range(ROUNDS):
        below = NARROWER * least
        found = search_sharded(with_bandwidth(problem, edge, below)).plans
        more = [x for x in found if set(edge) <= set(x.pools)]
        if _best_s(more, problem, edge, below) >= apart_s:
            break
        over += more
        least = _least_bytes_per_s(over, problem, edge, apart_s)
    return least


def _best_s(
    plans: Sequence[ShardedPlan], problem: ShardedProblem, edge: Edge, bytes_per_s: float
) -> float:
    """Return the least step of some plans at a bandwidth of a link; infinite without plans."""
    changed = with_bandwidth(problem, edge, bytes_per_s)
    return min((sharded_price(x, changed).step_s for x in plans), default=math.inf)


def _least_bytes_per_s(
    plans: Sequence[ShardedPlan], problem: ShardedProblem, edge: Edge, apart_s: float
) -> float:
    """Return the least bandwidth at which one of some plans is faster than `apart_s`."""
    low, high = math.log(NARROWEST), math.log(WIDEST)
    if _best_s(plans, problem, edge, NARROWEST) < apart_s:
        return NARROWEST
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        is_enough = _best_s(plans, problem, edge, math.exp(middle)) < apart_s
        low, high = (low, middle) if is_enough else (middle, high)
    return math.exp(high)
