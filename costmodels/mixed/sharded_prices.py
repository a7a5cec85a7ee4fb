"""Step time and memory of sharded replicas over several pools: closed form, by term."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from costmodels.comm.collectives import collective_s
from costmodels.comm.data_parallel import exposed_each_s
from costmodels.comm.placement import place_group
from costmodels.mixed.prices import ring_order
from costmodels.mixed.sharded_plans import ReplicaDegrees, ReplicaKind, ShardedPlan
from costmodels.mixed.sharded_tables import (
    ReplicaKey,
    ReplicaTable,
    ShardedPool,
    ShardedProblem,
)
from costmodels.stacks import StackProfile
from costmodels.step import straggler_factor

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Exchange:
    """What summing the gradients of one micro-batch over all replicas takes, seconds."""

    total_s: float
    piece_s: Floats
    """One call, `(1 or 2,)`: of dense layers, of experts."""


@dataclass(frozen=True, slots=True)
class ReplicaTimes:
    """Seconds of one micro-batch by term, arrays of one shape; `fixed_s` of a step."""

    compute_s: Floats
    straggle_s: Floats
    sync_s: Floats
    """Gathers and scatters inside a replica that compute waits for, and what the hidden rest slows
    it down by."""
    exchange_s: Floats
    """The same of the sum over the replicas."""
    update_s: Floats
    """Of a step."""
    fixed_s: float

    @property
    def each_s(self) -> Floats:
        """One micro-batch."""
        return np.asarray(self.compute_s + self.straggle_s + self.sync_s + self.exchange_s)

    @property
    def once_s(self) -> Floats:
        """What happens once a step."""
        return np.asarray(self.update_s + self.fixed_s)


@dataclass(frozen=True, slots=True)
class ReplicaWaits:
    """Traffic of one micro-batch of replicas, on the wire and waited for; arrays of one shape."""

    ahead_s: Floats
    """Weights gathered before the forward."""
    ahead_exposed_s: Floats
    behind_s: Floats
    """Weights gathered again, gradients scattered and summed over the replicas."""
    behind_exposed_s: Floats
    slowdown: float
    """Share of hidden traffic by which it slows compute down."""

    @property
    def slowed_s(self) -> Floats:
        """What hidden traffic slows compute down by."""
        exposed = self.ahead_exposed_s + self.behind_exposed_s
        return np.asarray(self.slowdown * (self.behind_s + self.ahead_s - exposed))

    @property
    def total_s(self) -> Floats:
        """What a micro-batch waits, and is slowed down by."""
        return np.asarray(self.ahead_exposed_s + self.behind_exposed_s + self.slowed_s)


@dataclass(frozen=True, slots=True)
class ReplicaPrice:
    """The step of one kind of replica, seconds; the terms sum to `step_s`. Bytes on one device."""

    forward_s: float
    backward_s: float
    """Of one micro-batch, with recomputation."""
    compute_s: float
    straggle_s: float
    sync_s: float
    exchange_s: float
    update_s: float
    fixed_s: float
    states_bytes: float
    activation_bytes: float
    other_bytes: float

    @property
    def step_s(self) -> float:
        """Time from the first forward to the end of the update."""
        once = self.update_s + self.fixed_s
        return self.compute_s + self.straggle_s + self.sync_s + self.exchange_s + once

    @property
    def peak_bytes(self) -> float:
        """Memory that a device needs."""
        return self.states_bytes + self.activation_bytes + self.other_bytes


@dataclass(frozen=True, slots=True)
class ShardedPrice:
    """A priced plan."""

    kinds: tuple[ReplicaPrice, ...]
    crossing_bytes: dict[tuple[int, int], float]
    """What crosses the link between two pools in a step, both directions, by their places."""

    @property
    def step_s(self) -> float:
        """Step time: the slowest kind of replica decides."""
        return max(kind.step_s for kind in self.kinds)


def exchange(
    problem: ShardedProblem,
    degrees: ReplicaDegrees,
    pools: Collection[int],
    n_replicas: int,
    own_s: Sequence[Floats] | None = None,
) -> Exchange:
    """Return what the sum of gradients over R replicas on U pools takes for one micro-batch.

    Each device passes its shard round a ring of the R replicas, a unit of FSDP at a time:

        max( max_u all_reduce_u(g, R), 2 (R - 1)/R ( G / B_link + U latency ) )

    g gradients of a unit on one device, G = g n those on all n devices of a replica, which cross
    each link of the ring together; all_reduce_u is the collective of the one-pool model as if all
    replicas were on pool u: the slowest pool holds up the ring. A shard makes 2 (R - 1) hops, U of
    R over links. `own_s` are the collectives of `own_sums_s` by pool where they are known. Source:
    hybrid sharding of FSDP2 (torch fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce): one
    all-reduce a unit and micro-batch over one process group. Left out: NCCL's trees, which pay for
    short messages over long links.
    """
    used = sorted(set(pools))
    cuts = problem.pools[used[0]].cuts[degrees]
    piece_s = np.zeros_like(cuts.part_bytes)
    for i, place in enumerate(used):
        own = own_s[i] if own_s else own_sums_s(problem.pools[place], degrees, n_replicas)
        piece_s = np.maximum(piece_s, own)
    for over_link in link_sums_s(problem, degrees, used, n_replicas).values():
        piece_s = np.maximum(piece_s, over_link)
    return Exchange(float((cuts.n_pieces * piece_s).sum()), piece_s)


def link_sums_s(
    problem: ShardedProblem, degrees: ReplicaDegrees, used: Sequence[int], n_replicas: int
) -> dict[tuple[int, int], Floats]:
    """Return what each link of the ring takes for the sum of one unit, `(1 or 2,)` seconds.

    By the places of its two pools, in the order of the ring.
    """
    cuts = problem.pools[used[0]].cuts[degrees]
    share, together = 2.0 * (n_replicas - 1) / n_replicas, cuts.part_bytes * degrees.n_devices
    sums = {}
    for first, second in ring_edges(problem, used):
        link = problem.link(first, second)
        sums[first, second] = share * (together / link.bytes_per_s + len(used) * link.latency_s)
    return sums


def exchange_by_part_s(
    problem: ShardedProblem, plan: ShardedPlan
) -> tuple[dict[int, Floats], dict[tuple[int, int], Floats]]:
    """Return what `exchange` takes the greatest of, for one micro-batch: by pool, and by link.

    `(1 or 2,)` seconds of all dense layers, of all experts, as if each pool or link alone held up
    the ring; links by places, the smaller first. `exchange` sums the greatest of dense layers and
    the greatest of experts, which may be of two parts: more than the sum of either.
    """
    degrees, n = plan.degrees, plan.n_replicas
    n_pieces = problem.pools[plan.pools[0]].cuts[degrees].n_pieces
    pools = {i: n_pieces * own_sums_s(problem.pools[i], degrees, n) for i in plan.pools}
    links = {
        (min(edge), max(edge)): n_pieces * piece_s
        for edge, piece_s in link_sums_s(problem, degrees, plan.pools, n).items()
    }
    return pools, links


def own_sums_s(pool: ShardedPool, degrees: ReplicaDegrees, n_replicas: int) -> Floats:
    """Return the sum of one unit over R replicas that are all on one pool, `(1 or 2,)` seconds."""
    if n_replicas == 1:
        return np.zeros_like(pool.cuts[degrees].part_bytes)
    own = pool.with_nodes_of(n_replicas * degrees.n_devices)
    group = place_group(n_replicas, degrees.n_devices, own.pool, own.fabric)
    return collective_s("all-reduce", pool.cuts[degrees].part_bytes, group, own.pool)


def ring_edges(problem: ShardedProblem, pools: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of pools that follow one another in the ring; none of one pool."""
    if len(pools) < 2:
        return []
    order = ring_order(pools, problem.link)
    return list(pairwise((*order, order[0])))


def replica_times(
    stack: StackProfile, table: ReplicaTable, between: Exchange, straggle: float
) -> ReplicaTimes:
    """Return what one micro-batch takes the replicas of a table.

    ZeRO 3 as `costmodels.step` has it: weights are gathered before the forward and again before
    the backward, gradients scattered behind it and then summed over the replicas, each unit beside
    the compute of the next (`exposed_each_s`); hidden traffic slows compute down.
    """
    without = replica_waits(stack, table).total_s
    with_it = replica_waits(stack, table, between).total_s
    compute = table.forward_s + table.backward_s
    return ReplicaTimes(
        compute_s=compute,
        straggle_s=(straggle - 1.0) * compute,
        sync_s=without,
        exchange_s=with_it - without,
        update_s=table.update_s,
        fixed_s=stack.fixed_step_s,
    )


def replica_waits(
    stack: StackProfile, table: ReplicaTable, between: Exchange | None = None
) -> ReplicaWaits:
    """Return the traffic of one micro-batch and what compute waits of it.

    `between` is the sum over the replicas; None leaves it out.
    """
    more_s = between.total_s if between else 0.0
    behind = table.gather_s + table.reduce_s + more_s
    ahead, after = table.gather_s, behind
    if stack.zero3_traffic == "prefetched":
        piece_s = between.piece_s if between else np.zeros(1)
        last = (table.reduce_piece_s + piece_s[:, None]).max(axis=0)
        ahead = exposed_each_s(ahead, table.gather_piece_s, table.forward_s)
        after = exposed_each_s(behind, last, table.backward_s)
    return ReplicaWaits(
        ahead_s=table.gather_s,
        ahead_exposed_s=np.asarray(ahead),
        behind_s=np.asarray(behind),
        behind_exposed_s=np.asarray(after),
        slowdown=stack.overlap_slowdown,
    )


def straggle(problem: ShardedProblem, n_devices: int) -> float:
    """Return the growth of compute because the slowest of all nodes in use decides."""
    return straggler_factor(problem.pools[0].problem, n_devices)


def sharded_price(plan: ShardedPlan, problem: ShardedProblem) -> ShardedPrice:
    """Return the step time and memory of a plan.

        T = max over kinds ( m ( S (f + b) + waits ) + update + fixed )

    m micro-batches, S stragglers of all nodes, waits as `replica_times` has them. Every term is
    that of the one-pool model for a replica on its pool at its own micro-batch; the sum over the
    replicas is `exchange`. Left out: that a fast replica, whose backward hides less of the
    exchange, also waits for the slow one unit by unit: where exchange and compute are about as
    long, the step is a lower bound.
    """
    degrees, m = plan.degrees, plan.n_micro
    between = exchange(problem, degrees, plan.pools, plan.n_replicas)
    slower = straggle(problem, plan.n_replicas * degrees.n_devices)
    kinds = tuple(_kind_price(kind, plan, problem, between, slower) for kind in plan.kinds)
    crossing: dict[tuple[int, int], float] = {}
    share = 2.0 * (plan.n_replicas - 1) / plan.n_replicas
    size = problem.pools[plan.pools[0]].cuts[degrees].total_bytes
    for first, second in ring_edges(problem, plan.pools):
        edge = (min(first, second), max(first, second))
        crossing[edge] = crossing.get(edge, 0.0) + m * share * size
    return ShardedPrice(kinds, crossing)


def _kind_price(
    kind: ReplicaKind,
    plan: ShardedPlan,
    problem: ShardedProblem,
    between: Exchange,
    slower: float,
) -> ReplicaPrice:
    pool = problem.pools[kind.pool]
    table = pool.table.take([pool.row_of[ReplicaKey(plan.degrees, kind.mbs, kind.recompute)]])
    times = replica_times(pool.problem.stack, table, between, slower)
    m = plan.n_micro
    return ReplicaPrice(
        forward_s=float(table.forward_s[0]),
        backward_s=float(table.backward_s[0]),
        compute_s=m * float(times.compute_s[0]),
        straggle_s=m * float(times.straggle_s[0]),
        sync_s=m * float(times.sync_s[0]),
        exchange_s=m * float(times.exchange_s[0]),
        update_s=float(times.update_s[0]),
        fixed_s=times.fixed_s,
        states_bytes=float(table.states_bytes[0]),
        activation_bytes=float(table.activation_bytes[0]),
        other_bytes=float(table.other_bytes[0]),
    )


def sharded_fits(plan: ShardedPlan, problem: ShardedProblem, priced: ShardedPrice) -> bool:
    """Tell whether every replica fits its pool's memory, and the pools hold the devices in use."""
    for kind, its in zip(plan.kinds, priced.kinds, strict=True):
        if its.peak_bytes > problem.pools[kind.pool].problem.pool.usable_bytes:
            return False
    pools = enumerate(problem.pools)
    return all(plan.n_devices(i) <= x.problem.pool.n_devices for i, x in pools)
