"""One job of sharded replicas on the pools of a request: which rows its tables have."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodels.axes import RECOMPUTES
from costmodels.mixed.layer_tables import possible_degrees
from costmodels.mixed.sharded_plans import ReplicaDegrees, ShardedPlan
from costmodels.mixed.sharded_tables import (
    ReplicaKey,
    ShardedProblem,
    crossed,
    replica_layout,
    sharded_problem,
)
from costmodels.problem import Problem
from planner.errors import SearchError
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.specs.inputs import ClusterInput, ModelInput
from searches.frameworks.registry import framework_rules
from searches.frameworks.releases import version_key
from searches.options import SearchOptions, usual_most_mbs
from searches.rules import Context, first_broken_rule

FRAMEWORKS = ("torchtitan", "fsdp2")
"""Those that run sharded replicas with unequal batches."""
WEIGHS_TOKENS = {"torchtitan": "0.3.0"}
"""The first release that divides the sum of all losses by all tokens of a step; those before it
average the losses of ranks, whatever they hold (torchtitan trainer.py, train_step)."""
SHARDED_AXES = ("tp", "cp", "mbs", "recompute", "zero", "dp_shard")
"""Axes of such plans that a request may name; `mbs` by its largest value alone."""
MOST_MBS = 64
"""Largest micro-batch that is looked at; fewer where the search on one pool looks at fewer."""
NODES = tuple(n << i for i in range(12) for n in (2, 3))
"""Nodes of one replica that are looked at, besides one and all of a pool."""


def is_sharded(options: SolveOptions) -> bool:
    """Tell whether plans of sharded replicas are wanted."""
    return options.framework.partition("@")[0] in FRAMEWORKS


def too_old(framework: str) -> str:
    """Return the release of a framework that is needed for unequal batches; "" where it has it."""
    rules = framework_rules(framework)
    least = WEIGHS_TOKENS.get(rules.name, "")
    return least if version_key(rules.release) < version_key(least) else ""


def sequence_parallel(framework: str) -> bool | None:
    """Return whether a framework shards what tensor parallelism replicates; None: it does."""
    return False if framework == "fsdp2" else None


@dataclass(frozen=True, slots=True)
class ShardedJob:
    """One job of sharded replicas on the pools of a cluster that can be joined."""

    sharded: ShardedProblem
    indices: tuple[int, ...]
    """By joined pool: its place in the cluster."""
    framework: str
    """Key of the framework that runs it."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The job on each pool alone."""
        return tuple(pool.problem for pool in self.sharded.pools)

    def used(self, plan: ShardedPlan) -> dict[int, int]:
        """Return the devices in use by the place of their pool in the cluster."""
        return {self.indices[i]: plan.n_devices(i) for i in plan.pools}


def sharded_job(
    model: ModelInput, cluster: ClusterInput, options: SolveOptions, indices: Sequence[int]
) -> ShardedJob:
    """Return the job on some pools of a cluster.

    Raises `SearchError` where no degrees are left of which two pools have replicas.
    """
    problems = [make_problem(model, cluster.only(i), options) for i in indices]
    framework = framework_rules(options.framework).name
    sp = sequence_parallel(framework)
    keys = [_keys(problem, options, sp) for problem in problems]
    if sum(map(bool, keys)) < 2:
        raise SearchError(
            f"{framework} runs no sharded replicas of this job on two pools or more",
            "open tp, cp, mbs, recompute and dp_shard, or plan for each pool alone",
            code="contradiction",
        )
    able = [i for i, own in enumerate(keys) if own]
    problem = sharded_problem(
        [problems[i] for i in able], cluster.cluster, [keys[i] for i in able], sp=sp
    )
    return ShardedJob(problem, tuple(indices[i] for i in able), framework)


def replica_degrees(problem: Problem, options: SolveOptions) -> list[ReplicaDegrees]:
    """Return the degrees of replicas that fill whole nodes of a pool.

    Replicas of 1, 2, 3, 4, 6, 8, 12, ... nodes and of all; tp and cp inside a scale-up domain.
    """
    pool, found = problem.pool, []
    inner = sorted({(x.tp, x.cp) for x in possible_degrees(problem, most_mbs=1) if x.ep == 1})
    nodes = sorted({1, *(n for n in NODES if n < pool.n_nodes), pool.n_nodes})
    for n_nodes in nodes:
        for tp, cp in inner:
            n_devices = n_nodes * pool.devices_per_node
            shard, rest = divmod(n_devices, tp * cp)
            values = {"tp": tp, "cp": cp, "dp_shard": shard * cp}
            is_allowed = all(_is_allowed(axis, x, options) for axis, x in values.items())
            if not rest and shard * cp > 1 and is_allowed:
                found.append(ReplicaDegrees(shard, tp, cp))
    return found


def _is_allowed(axis: str, value: int, options: SolveOptions) -> bool:
    named = options.restricted().get(axis, (value,))
    return value in named and value <= options.at_most.get(axis, value)


def _keys(problem: Problem, options: SolveOptions, sp: bool | None) -> list[ReplicaKey]:
    """Return the rows of a pool: what the framework runs of what the options allow."""
    recomputes = [x for i, x in enumerate(RECOMPUTES) if _is_allowed("recompute", i, options)]
    job = problem.job
    most = min(MOST_MBS, usual_most_mbs(job.seq_len), job.global_batch)
    most = min(most, options.at_most.get("mbs", most))
    keys: list[ReplicaKey] = []
    for degrees in replica_degrees(problem, options):
        able = [x for x in recomputes if _is_legal(problem, options, degrees, x, sp)]
        keys += crossed([degrees], range(1, most + 1), able)
    return keys


def _is_legal(
    problem: Problem,
    options: SolveOptions,
    degrees: ReplicaDegrees,
    recompute: str,
    sp: bool | None,
) -> bool:
    """Tell whether the framework runs two such replicas."""
    key = ReplicaKey(degrees, 1, recompute)
    layout = replica_layout(key, problem.shape.layers, n_replicas=2, sp=sp)
    n_nodes = layout.n_devices // problem.pool.devices_per_node
    pair = replace(
        problem,
        job=replace(problem.job, global_batch=layout.gbs),
        pool=replace(problem.pool, n_nodes=n_nodes),
    )
    context = Context(pair, SearchOptions(framework=options.framework), layout.n_devices)
    return not first_broken_rule(context, layout)
