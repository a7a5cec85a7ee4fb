"""The layout of a plan of sharded replicas on other nodes: the replicas that they hold."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from costmodels.mixed.sharded_plans import ReplicaKind, ShardedPlan
from costmodels.mixed.sharded_prices import ShardedPrice, sharded_fits, sharded_price
from costmodels.mixed.sharded_tables import ReplicaKey, crossed
from planner.solver.problem import make_problem
from planner.solver.together.records import JoinedPlan
from planner.solver.together.replicas.opened import (
    OpenedSharded,
    indices_of,
    job_of_keys,
    plan_keys,
    sharded_plan_of,
)
from planner.solver.together.sharded import ShardedWork
from planner.solver.together.sharded_job import MOST_MBS, ShardedJob
from planner.specs.inputs import ClusterInput
from searches.options import usual_most_mbs
from searches.sharded_replicas import search_sharded


def carried_sharded(opened: OpenedSharded, left: ClusterInput) -> tuple[JoinedPlan | None, str]:
    """Return the old replicas on the nodes that are left, and what changed; None and why not.

    Replicas keep their degrees and a pool its recomputation. Where the nodes do not hold all of
    them, their number, micro-batches and accumulation are those of the fastest plan of such
    replicas on the same pools.
    """
    names = {pool.name for pool in left.cluster.pools}
    missing = [name for name in opened.plan.devices if name not in names]
    if missing:
        return None, f"nothing is left of pool {missing[0]}, which it uses"
    order = [pool.name for pool in opened.problem.pools if pool.name in opened.plan.devices]
    plan = sharded_plan_of(opened.plan, order)
    before = plan.n_replicas
    job = _job(opened, left, order, plan_keys(plan, len(order)))
    priced = sharded_price(plan, job.sharded)
    if sharded_fits(plan, job.sharded, priced):
        return _record(opened, left, job, plan, priced), "as it was"
    for name, problem in zip(order, job.problems, strict=True):
        if (n := problem.pool.n_devices) < plan.degrees.n_devices:
            each = plan.degrees.n_devices
            return None, f"pool {name} has {n} devices left, a replica takes {each}"
    job = _job_of_sizes(opened, left, order, plan)
    found = search_sharded(job.sharded, 1).plans
    kept = next((x for x in found if len(x.pools) == len(order)), None)
    if kept is None:
        return None, "no micro-batches of the replicas that are left take the batch and fit"
    text = f"replicas {before} -> {kept.n_replicas}"
    if (old := _sizes(plan, order)) != (new := _sizes(kept, order)):
        text += f", micro-batches {old} -> {new}"
    return _record(opened, left, job, kept, sharded_price(kept, job.sharded)), text


def _job_of_sizes(
    opened: OpenedSharded, left: ClusterInput, order: list[str], plan: ShardedPlan
) -> ShardedJob:
    """Return the job with replicas of the old degrees and recomputation, of any micro-batch."""
    job = opened.problems[0].job
    most = min(MOST_MBS, usual_most_mbs(job.seq_len), job.global_batch)
    most = min(most, opened.options.at_most.get("mbs", most))
    by_pool: Mapping[int, dict[str, None]] = {
        i: {x.recompute: None for x in plan.kinds if x.pool == i} for i in range(len(order))
    }
    keys: list[list[ReplicaKey]] = [
        crossed([plan.degrees], range(1, most + 1), list(own)) for own in by_pool.values()
    ]
    return _job(opened, left, order, keys)


def _job(
    opened: OpenedSharded,
    left: ClusterInput,
    order: Sequence[str],
    keys: Sequence[Sequence[ReplicaKey]],
) -> ShardedJob:
    """Return the job of a plan on pools of another cluster."""
    indices, options = indices_of(left, order), opened.options
    problems = [make_problem(opened.model, left.only(i), options) for i in indices]
    return job_of_keys(problems, left, options.framework, indices, keys)


def _sizes(plan: ShardedPlan, order: list[str]) -> str:
    """Return the micro-batches of a plan by pool: `2 of 7 on old, 2 of 17 on new`."""

    def words(kind: ReplicaKind) -> str:
        return f"{plan.n_micro} of {kind.mbs} on {order[kind.pool]}"

    return ", ".join(dict.fromkeys(map(words, plan.kinds)))


def _record(
    opened: OpenedSharded,
    left: ClusterInput,
    job: ShardedJob,
    plan: ShardedPlan,
    priced: ShardedPrice,
) -> JoinedPlan:
    record = ShardedWork(job, opened.model, left, opened.options).record(plan, priced)
    return replace(record, rank=opened.plan.rank)
