"""A plan of sharded replicas of an answer, priced again: with what its record leaves out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodels.mixed.sharded_plans import ReplicaDegrees, ReplicaKind, ShardedPlan
from costmodels.mixed.sharded_prices import ShardedPrice, sharded_price
from costmodels.mixed.sharded_tables import (
    ReplicaKey,
    ReplicaTable,
    ShardedProblem,
    sharded_problem,
)
from costmodels.problem import Problem
from planner.errors import SearchError
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.solver.together.records import JoinedPlan, Together
from planner.solver.together.sharded import ShardedWork
from planner.solver.together.sharded_job import ShardedJob, sequence_parallel
from planner.solver.together.words import accelerator_of, priced_note
from planner.specs.inputs import ClusterInput, ModelInput
from searches.frameworks.registry import framework_rules

MOST = 1_000_000
"""Greatest degree, number of replicas or batch of a plan that is opened."""


@dataclass(frozen=True, slots=True)
class OpenedSharded:
    """A plan of sharded replicas with its inputs and its price."""

    model: ModelInput
    cluster: ClusterInput
    """With pools of one part as one, as the answer has them."""
    options: SolveOptions
    together: Together
    """The answer that the plan is of."""
    job: ShardedJob
    sharded: ShardedPlan
    priced: ShardedPrice
    plan: JoinedPlan
    """As priced now."""
    saved: JoinedPlan
    """As the answer has it."""

    @property
    def problem(self) -> ShardedProblem:
        """What the plan is priced against."""
        return self.job.sharded

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The job on each joined pool alone."""
        return self.job.problems

    @property
    def indices(self) -> tuple[int, ...]:
        """By joined pool: its place in the cluster."""
        return self.job.indices

    @property
    def used(self) -> dict[int, int]:
        """Devices in use by the place of their pool in the cluster."""
        return self.job.used(self.sharded)

    def row(self, kind: ReplicaKind) -> ReplicaTable:
        """Return what a micro-batch costs the replicas of a kind."""
        pool = self.problem.pools[kind.pool]
        key = ReplicaKey(self.sharded.degrees, kind.mbs, kind.recompute)
        return pool.table.take([pool.row_of[key]])

    def part(self, pool: str) -> str:
        """Return the accelerator of a pool, by name."""
        return accelerator_of(self.cluster, pool)

    @property
    def note(self) -> str:
        """How far it is from what its answer says; empty where it is not."""
        return priced_note(self.saved, self.plan)


def sharded_plan_of(plan: JoinedPlan, pools: Sequence[str]) -> ShardedPlan:
    """Return a plan as it is priced; `pools` are the names of those of the job, in order.

    Raises `ValueError` for numbers that are none of a plan.
    """
    first = plan.kinds[0].stages[0]
    numbers = [plan.shard, first.tp, first.cp, plan.kinds[0].n_micro]
    numbers += [n for kind in plan.kinds for n in (kind.n_pipelines // plan.shard, kind.mbs)]
    if not all(isinstance(n, int) and 0 < n <= MOST for n in numbers):
        raise ValueError(numbers)
    kinds = tuple(
        ReplicaKind(
            pools.index(kind.pools[0]),
            kind.n_pipelines // plan.shard,
            kind.mbs,
            kind.stages[0].recompute,
        )
        for kind in plan.kinds
    )
    return ShardedPlan(
        ReplicaDegrees(plan.shard, first.tp, first.cp), plan.kinds[0].n_micro, kinds
    )


def plan_keys(plan: ShardedPlan, n_pools: int) -> list[list[ReplicaKey]]:
    """Return the rows that a plan is priced with, by pool; of one that it leaves out any."""
    keys: list[dict[ReplicaKey, None]] = [{} for _ in range(n_pools)]
    every = [ReplicaKey(plan.degrees, x.mbs, x.recompute) for x in plan.kinds]
    for kind, key in zip(plan.kinds, every, strict=True):
        keys[kind.pool][key] = None
    return [list(own) or every[:1] for own in keys]


def job_of_keys(
    problems: Sequence[Problem],
    cluster: ClusterInput,
    framework: str,
    indices: Sequence[int],
    keys: Sequence[Sequence[ReplicaKey]],
) -> ShardedJob:
    """Return the job on some pools of a cluster with some rows alone, legal or not.

    `problems` are the job on each pool alone, `indices` their places in the cluster.
    """
    name = framework_rules(framework).name
    problem = sharded_problem(problems, cluster.cluster, keys, sp=sequence_parallel(name))
    return ShardedJob(problem, tuple(indices), name)


def indices_of(cluster: ClusterInput, names: Sequence[str]) -> list[int]:
    """Return the places of pools in a cluster; `SearchError` for one that it does not have."""
    places = {pool.name: i for i, pool in enumerate(cluster.cluster.pools)}
    strange = [name for name in names if name not in places]
    if strange:
        raise SearchError(
            f"the cluster of the answer has no pool {strange[0]}: edited by hand?", "solve again"
        )
    return [places[name] for name in names]


def price_sharded(
    inputs: tuple[ModelInput, ClusterInput, SolveOptions],
    together: Together,
    saved: JoinedPlan,
    identity: ModelInput,
) -> OpenedSharded:
    """Return a plan of an answer, priced again; `identity` is the model that its id is of.

    Raises `SearchError` for pools that are not there; other errors where figures do not go
    together.
    """
    model, cluster, options = inputs
    names = list(dict.fromkeys((*together.joined, *saved.devices)))
    indices = indices_of(cluster, names)
    plan = sharded_plan_of(saved, names)
    problems = [make_problem(model, cluster.only(i), options) for i in indices]
    keys = plan_keys(plan, len(names))
    job = job_of_keys(problems, cluster, options.framework, indices, keys)
    priced = sharded_price(plan, job.sharded)
    record = ShardedWork(job, identity, cluster, options).record(plan, priced)
    now = replace(record, rank=saved.rank)
    return OpenedSharded(model, cluster, options, together, job, plan, priced, now, saved)
