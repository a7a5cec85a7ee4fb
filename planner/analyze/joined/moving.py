"""The state of a job over several pools, moved between devices: what each lacks, and how long.

As `planner.analyze.replan.resharding` for one pool, of plans that are one grid of ranks: devices
keep their places, each pool's nodes in use are its first. What the devices of a pool lack may all
come over its links: the time is an upper bound.

    max over nodes of M_in / b, M / (b of all nodes that send), M of a pool / its links
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from costmodels.axes import RANK_ORDERS
from costmodels.plans import Layout
from planner.analyze.joined.nodes import LostNodes
from planner.analyze.joined_files import layout_of, node_groups, rank_order, why_no_ranks
from planner.analyze.replan.resharding import holdings, lacking_bytes, survives
from planner.solver.answer.result import Plan
from planner.solver.together.opened import OpenedSeveral
from planner.solver.together.records import JoinedPlan
from planner.specs.inputs import ClusterInput

Node = tuple[str, int]
"""Pool, and place in it as it was; negative for a node that joined."""


@dataclass(frozen=True, slots=True)
class NetworkMove:
    """The state moved between devices. Bytes and seconds."""

    total_bytes: float
    """That devices lack."""
    max_bytes: float
    """Of the device that lacks most."""
    network_s: float | None
    """None where the nodes that are left do not hold everything."""


def network_move(
    opened: OpenedSeveral, gone: LostNodes, left: ClusterInput, target: JoinedPlan | Plan
) -> NetworkMove | str:
    """Return what it takes to get from a running plan to another; a reason where it is not known.

    `left` is the cluster that the other plan is of.
    """
    for plan, cluster in ((opened.plan, opened.cluster), (target, left)):
        if isinstance(plan, JoinedPlan) and (why := why_no_ranks(plan, cluster)):
            return f"plan t{plan.rank}: {why}"
    per_node = opened.cluster.cluster.pools[opened.indices[0]].devices_per_node
    if isinstance(target, Plan) and target.layout.n_devices % per_node:
        return f"plan {target.rank} does not fill whole nodes"
    layouts = tuple(_layout(x, opened, per_node) for x in (opened.plan, target))
    before = list(_nodes(opened.plan, opened.cluster, {}))
    kept = {
        pool.name: [i for i in range(pool.n_nodes) if i not in gone.by_pool.get(pool.name, ())]
        for pool in opened.cluster.cluster.pools
    }
    after = list(_nodes(target, left, kept))
    job, shape = opened.problems[0].job, opened.model.shape
    own, new = (holdings(x, shape, job.seq_len) for x in layouts)
    place = {node: i for i, node in enumerate(before)}
    old_node = np.array([place.get(node, -1) for node in after])
    locals_ = np.arange(new.n_ranks) % per_node
    node_of = np.arange(new.n_ranks) // per_node
    was = np.where(old_node[node_of] >= 0, old_node[node_of] * per_node + locals_, -1)
    each = job.recipe.param_bytes, job.recipe.state_bytes
    lacking = lacking_bytes(own, new, was, *each)
    is_alive = np.array([place_ not in gone.by_pool.get(pool, ()) for pool, place_ in before])
    alive = np.repeat(is_alive, per_node)
    total, most = float(lacking.sum()), float(lacking.max())
    if not survives(own, alive):
        return NetworkMove(total, most, None)
    ports = {x.pool.name: x.pool.nic_bytes_per_s * per_node for x in opened.problems}
    by_node = np.add.reduceat(lacking, np.arange(0, new.n_ranks, per_node))
    senders_s = sum(ports[pool] for (pool, _), ok in zip(before, is_alive, strict=True) if ok)
    times = [total / senders_s]
    times += [n / ports[pool] for n, (pool, _) in zip(by_node.tolist(), after, strict=True)]
    by_pool: dict[str, float] = {}
    for n, (pool, _) in zip(by_node.tolist(), after, strict=True):
        by_pool[pool] = by_pool.get(pool, 0.0) + n
    times += [
        n / rate for pool, n in by_pool.items() if (rate := _links_bytes_per_s(opened, pool))
    ]
    return NetworkMove(total, most, max(times))


def _layout(target: JoinedPlan | Plan, opened: OpenedSeveral, per_node: int) -> Layout:
    if isinstance(target, Plan):
        return target.layout
    return layout_of(target, opened.model, rank_order(target, per_node) or RANK_ORDERS[0])


def _nodes(
    plan: JoinedPlan | Plan, cluster: ClusterInput, kept: Mapping[str, list[int]]
) -> Iterator[Node]:
    """Yield the node of each node rank; `kept` are the old places of a pool's nodes, in order."""
    taken: dict[str, int] = {}
    if isinstance(plan, Plan):
        pool = next(x for x in cluster.cluster.pools if x.name == plan.pool)
        pools = [plan.pool] * (plan.layout.n_devices // pool.devices_per_node)
    else:
        pools = [x.pool for x in node_groups(plan, cluster) for _ in range(x.n_nodes)]
    for name in pools:
        i = taken.get(name, 0)
        taken[name] = i + 1
        places = kept.get(name)
        if places is None:
            yield name, i
        else:
            yield name, places[i] if i < len(places) else -1 - i


def _links_bytes_per_s(opened: OpenedSeveral, name: str) -> float:
    """Return the bandwidth of all links of a pool to the others; 0 where it has none."""
    names = [pool.name for pool in opened.problem.pools]
    place = names.index(name)
    links = opened.problem.links
    return sum(link.bytes_per_s for edge, link in links.items() if place in edge)
