"""What one sharded replica costs on each pool, from the cost model of plans on one pool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.comm.fsdp import grad_wire_bytes
from costmodels.mixed.sharded_plans import ReplicaDegrees
from costmodels.mixed.tables import LinkFacts
from costmodels.plans import Layout, PlanTable
from costmodels.problem import Problem
from costmodels.shape_terms import ShapeTerms, shape_terms
from costmodels.step import join, memory_terms, stage_times, wire_times
from hardware.parts import Cluster
from hardware.pool_links import link_between

Floats = NDArray[np.float64]

ROOM = 1 << 26
"""Global batch of the tables: every row has micro-batches; no figure depends on how many."""


class ReplicaKey(NamedTuple):
    """What tells rows of a `ReplicaTable` apart."""

    degrees: ReplicaDegrees
    mbs: int
    recompute: str


@dataclass(frozen=True, slots=True)
class Cuts:
    """Gradients on their way between replicas; one entry each for dense layers and experts."""

    n_pieces: Floats
    """Calls for one micro-batch: one a unit of FSDP."""
    part_bytes: Floats
    """Of one call, on one device of a replica."""
    total_bytes: float
    """Of one micro-batch, on all devices of a replica."""


@dataclass(frozen=True, slots=True)
class ReplicaTable:
    """Replicas on one pool: seconds of one micro-batch, bytes on one device; arrays `(n,)`."""

    forward_s: Floats
    backward_s: Floats
    """With recomputation."""
    gather_s: Floats
    """All weights once, inside a replica."""
    gather_piece_s: Floats
    reduce_s: Floats
    """All gradients scattered inside a replica."""
    reduce_piece_s: Floats
    """Of one unit, `(1 or 2, n)`: dense layers, experts."""
    update_s: Floats
    """Of one step."""
    states_bytes: Floats
    activation_bytes: Floats
    other_bytes: Floats

    @property
    def peak_bytes(self) -> Floats:
        """Memory that a device needs."""
        return self.states_bytes + self.activation_bytes + self.other_bytes

    def take(self, rows: Sequence[int] | NDArray[np.intp]) -> "ReplicaTable":
        """Return some of the rows."""
        names = ReplicaTable.__slots__
        return ReplicaTable(*(getattr(self, name)[..., np.asarray(rows)] for name in names))


@dataclass(frozen=True)
class ShardedPool:
    """One pool of a job, and what replicas cost on it."""

    problem: Problem
    """The job on this pool alone."""
    keys: tuple[ReplicaKey, ...]
    """Of the rows of `table`."""
    table: ReplicaTable
    cuts: Mapping[ReplicaDegrees, Cuts]

    @property
    def name(self) -> str:
        """Name of the pool."""
        return self.problem.pool.name

    @cached_property
    def row_of(self) -> Mapping[ReplicaKey, int]:
        """Row of `table` by key."""
        return {key: i for i, key in enumerate(self.keys)}

    def with_nodes_of(self, n_devices: int) -> Problem:
        """Return the job on a pool of such nodes with so many devices."""
        pool = self.problem.pool
        n_nodes = max(1, -(-n_devices // pool.devices_per_node))
        return replace(self.problem, pool=replace(pool, n_nodes=n_nodes))


@dataclass(frozen=True, slots=True)
class ShardedProblem:
    """One job of sharded replicas on several pools."""

    pools: tuple[ShardedPool, ...]
    links: Mapping[tuple[int, int], LinkFacts]
    """By the places of two pools, the smaller first."""
    global_batch: int

    def link(self, first: int, second: int) -> LinkFacts:
        """Return the link between two pools."""
        return self.links[min(first, second), max(first, second)]


def replica_layout(
    key: ReplicaKey,
    layers: int,
    *,
    n_replicas: int = 1,
    n_micro: int = 1,
    sp: bool | None = None,
) -> Layout:
    """Return so many replicas on one pool as the layout of a plan on it.

    `layers` are those of the model; `sp` is Megatron's sequence parallelism, with tensor
    parallelism unless it is said.
    """
    degrees = key.degrees
    dp, cp = n_replicas * degrees.shard, degrees.cp
    has_sp = degrees.tp > 1 if sp is None else sp and degrees.tp > 1
    return Layout(
        n_devices=n_replicas * degrees.n_devices,
        tp=degrees.tp,
        pp=1,
        dp=dp,
        vpp=1,
        split="even",
        mbs=key.mbs,
        gbs=dp * key.mbs * n_micro,
        zero=3,
        sp=has_sp,
        schedule="none",
        recompute=key.recompute,
        recompute_layers=layers if key.recompute == "full" else 0,
        stage_layers=(layers,),
        cp=cp,
        shard=degrees.shard * cp if n_replicas > 1 else 0,
        cp_comm="all-gather" if cp > 1 else "",
    )


def replica_tables(
    problem: Problem, keys: Sequence[ReplicaKey], *, sp: bool | None = None
) -> tuple[ReplicaTable, dict[ReplicaDegrees, Cuts]]:
    """Return what a replica costs by each of some keys, and what it sends to others."""
    layers = problem.shape.layers
    layouts = [replace(replica_layout(key, layers, sp=sp), gbs=ROOM) for key in keys]
    table = PlanTable.from_layouts(layouts)
    terms = shape_terms(problem, table.shapes, table.shardings)
    rows = join(problem, terms, table)
    times, wire, memory = stage_times(rows), wire_times(rows), memory_terms(rows)
    shape, stack = table.shape, problem.stack
    pieces = [terms.data_parallel.reduce_piece_s]
    pieces += [terms.experts.data_parallel.reduce_piece_s] if terms.experts else []
    # Replicas on other pools: the communicator between them, where a replica alone has none.
    alone = terms.data_groups.all_ranks.n_domains <= 1
    more = np.where(alone[shape], stack.communicator_bytes, 0.0)
    kept = memory["activations"][0] + memory["fragmentation"][0]
    costs = ReplicaTable(
        forward_s=times.forward_s[0],
        backward_s=times.backward_s[0],
        gather_s=wire.gather_s[0],
        gather_piece_s=wire.gather_piece_s[0],
        reduce_s=wire.reduce_s[0],
        reduce_piece_s=np.array([x[table.sharding, shape, 0] for x in pieces]),
        update_s=terms.optimizer_s[table.sharding, shape],
        states_bytes=memory["states"][0],
        activation_bytes=kept,
        other_bytes=memory["logits"][0] + memory["working"][0] + memory["overhead"][0] + more,
    )
    cuts = {
        key.degrees: _cuts(problem, terms, int(shape[i]), int(table.sharding[i]), key.degrees)
        for i, key in enumerate(keys)
    }
    return costs, cuts


def _cuts(
    problem: Problem, terms: ShapeTerms, shape: int, sharding: int, degrees: ReplicaDegrees
) -> Cuts:
    """Return what a replica sends to others for one micro-batch."""
    width = grad_wire_bytes(problem.job.recipe, problem.stack)
    parts = [(terms.params, terms.data_parallel)]
    if terms.experts:
        parts.append((terms.experts.params, terms.experts.data_parallel))
    counts, sizes, total = [], [], 0.0
    n_sharing = (degrees.shard * degrees.cp, degrees.n_devices)
    for (params, wire), n_ranks in zip(parts, n_sharing, strict=False):
        own = width * float(params[shape, 0])
        piece_s = float(wire.gather_piece_s[sharding, shape, 0])
        count = round(float(wire.gather_s[sharding, shape, 0]) / piece_s) if piece_s else 1
        counts.append(float(count))
        sizes.append(own / count / n_ranks)
        total += own / n_ranks * degrees.n_devices
    return Cuts(np.array(counts), np.array(sizes), total)


def sharded_problem(
    problems: Sequence[Problem],
    cluster: Cluster,
    keys: Sequence[Sequence[ReplicaKey]],
    *,
    sp: bool | None = None,
) -> ShardedProblem:
    """Return one job on several pools; `problems` and `keys` are those of each of them.

    The models, jobs and stacks of the problems have to be one.
    """
    pools = []
    for problem, own in zip(problems, keys, strict=True):
        table, cuts = replica_tables(problem, own, sp=sp)
        pools.append(ShardedPool(problem, tuple(own), table, cuts))
    links = {}
    for i, j in combinations(range(len(problems)), 2):
        link = link_between(cluster, problems[i].pool, problems[j].pool)
        links[i, j] = LinkFacts(link.bytes_per_s, link.latency_s, link.price_per_byte)
    return ShardedProblem(tuple(pools), links, problems[0].job.global_batch)


def crossed(
    degrees: Sequence[ReplicaDegrees], mbs: Sequence[int], recomputes: Sequence[str]
) -> list[ReplicaKey]:
    """Return all combinations as keys."""
    return [ReplicaKey(*one) for one in product(degrees, mbs, recomputes)]
