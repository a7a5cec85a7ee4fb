"""The files that run one plan over several pools: a script, node ranks by pool, a Slurm job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodels.axes import RANK_ORDERS
from costmodels.mixed.rank_runs import pipelines_inside, rank_runs
from costmodels.plans import Layout
from planner import __version__
from planner.analyze.sharded_files import kind_layout, sharded_files
from planner.errors import UsageError
from planner.frameworks.emit import emit_plan, refusal_file
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.launchers.launch import job_name
from planner.frameworks.launchers.node_types import NODE_LIST, NodeGroup, hetjob_script, node_list
from planner.frameworks.launchers.placement import Placement, place_plan
from planner.frameworks.launchers.rank_files import placement_json
from planner.option_names import option
from planner.solver.answer.result_store import read_options
from planner.solver.recipes import one_recipe
from planner.solver.together.records import JoinedPlan
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import cluster_from_dict, model_from_dict

LAUNCHERS = ("torchrun", "slurm")
"""What starts such a plan."""
BETWEEN_POOLS = "between pools"
"""In the place of the tier of a group whose ranks lie on several pools."""


def joined_files(
    data: Mapping[str, Any], plan: JoinedPlan, targets: Sequence[str], launchers: Sequence[str]
) -> dict[str, str]:
    """Return the files of one plan over several pools of a result; others get a reason instead.

    `data` is the JSON of the result. Raises `UsageError` for a launcher that starts no such plan.
    """
    for name in launchers:
        if name not in LAUNCHERS:
            raise UsageError(
                f"launcher {name} starts no job over nodes of several types",
                f"one of {', '.join(LAUNCHERS)}",
                "launcher",
            )
    inputs = data["inputs"]
    options = read_options(inputs["options"])
    model = one_recipe(model_from_dict(inputs["model"]), options, "a file is of one recipe")
    cluster = cluster_from_dict(inputs["cluster"])
    header = (
        f"plan {plan.plan_id}, t{plan.rank} of result {data['result_id']}",
        f"model {model.shape.name}, cluster {cluster.cluster.name}, over several pools",
        f"predicted step {plan.step_time_s:.3f} s",
        f"written by planner {__version__}",
    )
    files: dict[str, str] = {}
    for target in targets:
        framework = target.partition("@")[0]
        reasons = _reasons(plan, cluster, framework)
        if reasons:
            lines = [*header, *(f"- {reason}" for reason in reasons)]
            files[refusal_file(target)] = "\n".join(lines) + "\n"
            continue
        if plan.is_sharded:
            groups = node_groups(plan, cluster)
            files |= sharded_files(plan, model, cluster, target, groups, launchers, header)
            continue
        files |= _files(plan, model, cluster, target, launchers, header)
    return files


def _reasons(plan: JoinedPlan, cluster: ClusterInput, framework: str) -> list[str]:
    """Return why a framework has no files for a plan; none where it has."""
    if plan.missing:
        return [f"no framework has {feature}" for feature in plan.missing]
    if framework not in plan.runs_on:
        closest = plan.runs_on[0] if plan.is_sharded else "megatron"
        what = "this plan" if plan.is_sharded else "a job over unlike pools"
        return [f"{framework}: no configuration holds {what}; closest: {closest}"]
    pools = {pool.name: pool for pool in cluster.cluster.pools}
    sizes = {name: pools[name].devices_per_node for name in plan.devices}
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{n} in {name}" for name, n in sizes.items())
        return [f"nodes of unlike size ({shown}): torchrun starts as many processes on each"]
    if rank_order(plan, next(iter(sizes.values()))) is None:
        return ["stages of a pool do not fill whole nodes: a node would hold ranks of two pools"]
    return []


def why_no_ranks(plan: JoinedPlan, cluster: ClusterInput) -> str:
    """Return why a plan has no ranks on whole nodes of its pools; empty where it has."""
    framework = plan.runs_on[0] if plan.runs_on else ""
    return next(iter(_reasons(plan, cluster, framework)), "")


def _kinds(plan: JoinedPlan) -> list[tuple[tuple[str, ...], int]]:
    """Return the pool of each stage and the pipelines of each kind."""
    return [(tuple(x.pool for x in kind.stages), kind.n_pipelines) for kind in plan.kinds]


def _stage_devices(plan: JoinedPlan) -> int:
    stage = plan.kinds[0].stages[0]
    return stage.tp * stage.cp


def rank_order(plan: JoinedPlan, per_node: int) -> str | None:
    """Return the order of ranks in which every node holds ranks of one pool; None without.

    The usual one where both do: of a stage all pipelines follow one another, kind by kind.
    """
    inside = pipelines_inside(_kinds(plan), _stage_devices(plan), per_node)
    return None if inside is None else RANK_ORDERS[inside]


def rank_pools(plan: JoinedPlan, order: str) -> list[str]:
    """Return the pool of each rank."""
    runs = rank_runs(_kinds(plan), _stage_devices(plan), order != RANK_ORDERS[0])
    return [pool for pool, n in runs for _ in range(n)]


def node_groups(plan: JoinedPlan, cluster: ClusterInput) -> list[NodeGroup]:
    """Return the groups of nodes in the order of ranks; each pool's hosts are used in order."""
    places = {pool.name: i for i, pool in enumerate(cluster.cluster.pools)}
    per_node = cluster.cluster.pools[places[next(iter(plan.devices))]].devices_per_node
    taken = dict.fromkeys(plan.devices, 0)
    inside = pipelines_inside(_kinds(plan), _stage_devices(plan), per_node)
    groups = []
    for name, n_ranks in rank_runs(_kinds(plan), _stage_devices(plan), bool(inside)):
        n, i = n_ranks // per_node, places[name]
        hosts = cluster.sources[i].hosts[taken[name] : taken[name] + n]
        taken[name] += n
        part = cluster.cluster.pools[i].accelerator.name
        groups.append(NodeGroup(name, part, n, per_node, hosts))
    return groups


@dataclass(frozen=True, slots=True)
class JoinedPlacement:
    """Ranks of a plan over several pools on nodes."""

    plan_id: str
    placement: Placement
    pools: tuple[Mapping[str, Any], ...]
    """Nodes in the order of ranks: `pool`, `accelerator`, first and last of `nodes` and `ranks`,
    `hosts`."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of a placement on one pool, with the nodes by pool as `pools`."""
        return {**placement_json(self.placement, self.plan_id), "pools": list(self.pools)}


def joined_placement(data: Mapping[str, Any], plan: JoinedPlan) -> JoinedPlacement:
    """Return which nodes hold which ranks of a plan over several pools of a result.

    Hosts are those of the cluster file, by pool. Raises `UsageError` for a plan that no framework
    lays out.
    """
    inputs = data["inputs"]
    cluster = cluster_from_dict(inputs["cluster"])
    if why := why_no_ranks(plan, cluster):
        message = f"plan t{plan.rank} has no ranks: {why}"
        raise UsageError(message, "planner show says more", "plan")
    own = node_groups(plan, cluster)
    pools, node = [], 0
    for group in own:
        pools.append(
            {
                "pool": group.pool,
                "accelerator": group.accelerator,
                "nodes": [node, node + group.n_nodes - 1],
                "ranks": [node * group.per_node, (node + group.n_nodes) * group.per_node - 1],
                "hosts": list(group.hosts),
            }
        )
        node += group.n_nodes
    options = read_options(inputs["options"])
    model = one_recipe(model_from_dict(inputs["model"]), options, "a plan is of one recipe")
    hosts = [name for group in own for name in group.hosts]
    known = {pool.name: pool for pool in cluster.cluster.pools}
    domain = min(known[group.pool].scale_up_domain for group in own)
    whole = replace(known[own[0].pool], n_nodes=node, scale_up_domain=domain)
    order = rank_order(plan, own[0].per_node) or RANK_ORDERS[0]
    placed = place_plan(
        layout_of(plan, model, order),
        model.shape,
        whole,
        cluster.cluster.fabric,
        hosts if len(hosts) == node else (),
    )
    return JoinedPlacement(
        plan.plan_id, _between_pools(placed, rank_pools(plan, order)), tuple(pools)
    )


def joined_heading(data: Mapping[str, Any], plan: JoinedPlan) -> str:
    """Return what a placement is of, in a line."""
    inputs = data["inputs"]
    names = inputs["model"]["model"]["name"], inputs["cluster"]["name"]
    return f"plan {plan.plan_id}, model {names[0]}, cluster {names[1]}"


def check_own_hosts(hosts: object) -> None:
    """Raise `UsageError` where hosts are named for a plan over several pools."""
    if hosts is not None:
        raise UsageError(
            option("hosts") + ": the plan uses several pools, and a list does not say of which",
            "name `hosts:` of each pool in the cluster file, and solve again",
            "hosts",
        )


def _between_pools(placed: Placement, pools: Sequence[str]) -> Placement:
    """Return a placement whose groups over several pools say so in the place of a tier."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(pools))}
    by_rank = np.array([numbers[name] for name in pools])
    groups = tuple(
        replace(group, tier=BETWEEN_POOLS) if np.ptp(by_rank[group.ranks], axis=1).any() else group
        for group in placed.groups
    )
    return replace(placed, groups=groups)


def layout_of(plan: JoinedPlan, model: ModelInput, order: str = RANK_ORDERS[0]) -> Layout:
    """Return the layout of a plan that is one grid of ranks, numbered in some order.

    Batches are those of its first kind. Sharded replicas are a grid of like groups.
    """
    if plan.is_sharded:
        return kind_layout(plan, plan.kinds[0], plan.runs_on[0])
    kind, stage = plan.kinds[0], plan.kinds[0].stages[0]
    counts = tuple(x.layers for x in kind.stages)
    is_even = len(set(counts)) == 1
    dp = sum(x.n_pipelines for x in plan.kinds)
    return Layout(
        n_devices=plan.n_devices,
        tp=stage.tp,
        pp=len(counts),
        dp=dp,
        vpp=1,
        split="even" if is_even else "-".join(map(str, counts)),
        schedule="1f1b" if len(counts) > 1 else "none",
        mbs=kind.mbs,
        gbs=model.job.global_batch,
        zero=plan.zero,
        sp=stage.tp > 1,
        recompute=stage.recompute,
        recompute_layers=max(counts) if stage.recompute == "full" else 0,
        stage_layers=counts,
        cp=stage.cp,
        ep=stage.ep,
        rank_order=order,
        cp_comm="p2p" if stage.cp > 1 else "",
    )


def _files(
    plan: JoinedPlan,
    model: ModelInput,
    cluster: ClusterInput,
    target: str,
    launchers: Sequence[str],
    header: Sequence[str],
) -> dict[str, str]:
    groups = node_groups(plan, cluster)
    first = next(x for x in cluster.cluster.pools if x.name == groups[0].pool)
    pool = replace(first, n_nodes=sum(group.n_nodes for group in groups))
    order = rank_order(plan, first.devices_per_node) or RANK_ORDERS[0]
    layout = layout_of(plan, model, order)
    request = EmitRequest(layout, model.shape, model.job, pool, header, model.details)
    files = emit_plan(target, request)
    scripts = [name for name in files if name.endswith(".sh")]
    if not scripts:
        return files
    files[NODE_LIST] = node_list(groups)
    if "slurm" in launchers:
        name = job_name(f"{model.shape.name}-{plan.plan_id}")
        framework = scripts[0].removesuffix(".sh")
        files[f"slurm-{framework}.sbatch"] = hetjob_script(groups, scripts[0], name, header)
    return files
