"""Step time and memory of plans over several pools: closed form, by term."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import ceil

from costmodels.mixed.plans import MixedPlan, MixedStage, PipelineKind
from costmodels.mixed.tables import LinkFacts, MixedProblem, StageTable
from costmodels.schedule.zero_bubble import alternating_crossings


@dataclass(frozen=True, slots=True)
class StagePrice:
    """One stage of one kind of pipeline; seconds, bytes on one of its devices."""

    forward_s: float
    backward_s: float
    """Of one micro-batch, with recomputation."""
    states_bytes: float
    activation_bytes: float
    other_bytes: float
    sync_s: float
    """Gradients and weights among the pipelines of the kind."""
    exchange_s: float
    """Gradients between groups of pipelines that hold the same layers."""
    update_s: float

    @property
    def peak_bytes(self) -> float:
        """Memory that the stage needs."""
        return self.states_bytes + self.activation_bytes + self.other_bytes


@dataclass(frozen=True, slots=True)
class KindPrice:
    """The step of one kind of pipeline, seconds; the terms sum to `step_s`."""

    compute_s: float
    """Micro-batches on the slowest stage."""
    bubble_s: float
    messages_s: float
    straggle_s: float
    sync_s: float
    exchange_s: float
    update_s: float
    fixed_s: float
    stages: tuple[StagePrice, ...]
    hops_s: tuple[float, ...]
    """Message over the boundary after each stage but the last."""

    @property
    def step_s(self) -> float:
        """Time from the first forward to the end of the update."""
        pipeline_s = self.compute_s + self.bubble_s + self.messages_s + self.straggle_s
        return pipeline_s + self.sync_s + self.exchange_s + self.update_s + self.fixed_s


@dataclass(frozen=True, slots=True)
class MixedPrice:
    """A priced plan."""

    kinds: tuple[KindPrice, ...]
    crossing_bytes: dict[tuple[int, int], float]
    """What crosses the link between two pools in a step, both directions, by their places."""

    @property
    def step_s(self) -> float:
        """Step time: the slowest kind of pipeline decides."""
        return max(kind.step_s for kind in self.kinds)


def table_of(problem: MixedProblem, stage: MixedStage, mbs: int) -> StageTable:
    """Return what layers cost on a stage; `KeyError` for one that the problem has no table of."""
    return problem.by_key[stage.pool, stage.tp, stage.cp, stage.ep, mbs, stage.recompute]


def hop_s(
    problem: MixedProblem, sender: StageTable, receiver: StageTable, shared_bytes: float
) -> float:
    """Return the time of one message from a stage to the next, seconds.

    Inside a pool latency + bytes x s/byte of its boundary. Between pools
    latency + max( b_1/B_1, b_2/B_2, b_link / B_link ): each device sends (receives) its part over
    its NIC, and `shared_bytes` b_link share the link at the same time (`messages_bytes`).
    """
    if sender.pool == receiver.pool:
        latency, per_byte = problem.pools[sender.pool].inside_hop
        return latency + per_byte * max(sender.message_bytes, receiver.message_bytes)
    link = problem.link(sender.pool, receiver.pool)
    own = max(x.message_bytes / problem.pools[x.pool].nic_bytes_per_s for x in (sender, receiver))
    return link.latency_s + max(own, shared_bytes / link.bytes_per_s)


def messages_bytes(
    plan: MixedPlan, tables: Sequence[Sequence[StageTable]]
) -> dict[tuple[int, int], float]:
    """Return the messages that share the link between two pools at the same time, bytes.

    Of every boundary over it D n b: the n devices of a stage of all D pipelines send a message of
    b bytes. Kinds of pipelines run beside each other, so those of all kinds count.
    """
    total: dict[tuple[int, int], float] = {}
    for kind, own in zip(plan.kinds, tables, strict=True):
        for one, other in pairwise(own):
            if one.pool != other.pool:
                edge = (min(one.pool, other.pool), max(one.pool, other.pool))
                size = max(x.message_bytes * x.n_devices for x in (one, other))
                total[edge] = total.get(edge, 0.0) + kind.n_pipelines * size
    return total


def in_flight(pp: int, stage: int, n_micro: int) -> int:
    """Return the micro-batches that a stage holds at its peak under 1F1B: min(m, p - r)."""
    return min(n_micro, pp - stage)


@dataclass(frozen=True, slots=True)
class Sync:
    """What the pipelines of a kind exchange for one of their stages, and what runs beside it."""

    grad_bytes: float
    weight_bytes: float
    forward_s: float
    backward_s: float


def sync_s(problem: MixedProblem, table: StageTable, n_pipelines: int, sync: Sync) -> float:
    """Return what gradients and weights of a stage add to the step, seconds.

    ZeRO 1: reduce-scatter and all-gather; ZeRO 0: all-reduce. With overlap a transfer c in n
    pieces beside a window w, the last backward or the first forward of one micro-batch, exposes
    e = min(c, max(c/n, c - w)) (`comm.data_parallel.exposed_once_s`), and slows compute down by a
    share of the rest.
    """
    ring = problem.pools[table.pool].rings.get((table.n_devices, n_pipelines))
    if ring is None or n_pipelines == 1:
        return 0.0
    if problem.zero:
        windows = [
            (ring.reduce_scatter, sync.grad_bytes, sync.backward_s),
            (ring.all_gather, sync.weight_bytes, sync.forward_s),
        ]
    else:
        windows = [(ring.all_reduce, sync.grad_bytes, sync.backward_s)]
    total, overlap = 0.0, problem.overlap
    for (latency, per_byte), size, window_s in windows:
        one = size * per_byte
        if overlap is None:
            total += latency + one
            continue
        piece = max(overlap.piece_bytes, overlap.piece_bytes_per_rank * n_pipelines)
        n = max(1.0, ceil(sync.grad_bytes / piece))
        transfer = n * latency + one
        exposed = min(transfer, max(transfer / n, transfer - window_s))
        total += exposed + overlap.slowdown * (transfer - exposed)
    return total


@dataclass(frozen=True, slots=True)
class _Unit:
    """Stages of one kind in one pool that hold neighbouring layers."""

    kind: int
    pool: int
    start: int
    end: int
    stages: range


def _units(plan: MixedPlan) -> list[_Unit]:
    """Return the groups of stages whose gradients are exchanged with those of others."""
    units = []
    for i, kind in enumerate(plan.kinds):
        start = first = 0
        for j, stage in enumerate(kind.stages):
            last = j + 1 == kind.pp or kind.stages[j + 1].pool != stage.pool
            if last:
                end = sum(x.layers for x in kind.stages[: j + 1])
                units.append(_Unit(i, stage.pool, start, end, range(first, j + 1)))
                start, first = end, j + 1
    return units


def ring_order(pools: Sequence[int], link: Callable[[int, int], LinkFacts]) -> tuple[int, ...]:
    """Return the order of pools in a ring whose slowest link is fastest; `link` is that of two."""

    def slowest(order: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        edges = pairwise((*order, order[0]))
        return -min(link(a, b).bytes_per_s for a, b in edges), order

    first, *others = sorted(set(pools))
    return min(((first, *rest) for rest in permutations(others)), key=slowest)


def exchanges_s(
    plan: MixedPlan, problem: MixedProblem, tables: Sequence[Sequence[StageTable]]
) -> tuple[list[list[float]], dict[tuple[int, int], float]]:
    """Return what the exchange between groups takes each stage, seconds, and bytes by link.

    A layer is held by U groups of pipelines, each of one kind in one pool. After each group has
    summed its gradients, its devices pass their shards round a ring of the U groups:

        2 (U - 1)/U max( g/(D B_nic), G / B_link ) + 2 (U - 1) latency

    g gradients of a stage on one device, D pipelines of its kind, G those of all layers that the
    groups share, which cross the slowest link of the ring together. Source: all-reduce of shards
    between instances (Megatron-LM `--num-distributed-optimizer-instances`, hybrid sharding of
    FSDP2). Left out: overlap with the backward; that groups of unlike tp cut their shards again.
    """
    units = _units(plan)
    times = [[0.0] * kind.pp for kind in plan.kinds]
    crossing: dict[tuple[int, int], float] = {}
    if len(plan.kinds) == 1:
        return times, crossing
    cuts = sorted({x for unit in units for x in (unit.start, unit.end)})
    shared: dict[tuple[int, ...], float] = {}
    for start, end in pairwise(cuts):
        members = tuple(i for i, u in enumerate(units) if u.start <= start and end <= u.end)
        if len(members) > 1 and end > start:
            unit = units[members[0]]
            table = tables[unit.kind][unit.stages[0]]
            size = table.grad_bytes.of(start, end) * table.n_devices
            shared[members] = shared.get(members, 0.0) + size
    for members, size in shared.items():
        pools = {units[i].pool for i in members}
        share = 2.0 * (len(members) - 1) / len(members)
        slowest_s, latency = 0.0, 0.0
        if len(pools) > 1:
            order = ring_order(sorted(pools), problem.link)
            for a, b in pairwise((*order, order[0])):
                link = problem.link(a, b)
                # Two pools have one link: the ring goes out and comes back over it.
                slowest_s = max(slowest_s, size / link.bytes_per_s)
                latency = max(latency, link.latency_s)
                edge = (min(a, b), max(a, b))
                crossing[edge] = crossing.get(edge, 0.0) + share * size
        for i in members:
            unit = units[i]
            kind = plan.kinds[unit.kind]
            start = sum(x.layers for x in kind.stages[: unit.stages[0]])
            for j in unit.stages:
                end = start + kind.stages[j].layers
                table = tables[unit.kind][j]
                own = table.grad_bytes.of(start, end) / kind.n_pipelines
                nic_s = own / problem.pools[unit.pool].nic_bytes_per_s
                steps = 2 * (len(members) - 1)
                times[unit.kind][j] += share * max(nic_s, slowest_s) + steps * latency
                start = end
    return times, crossing


def price(plan: MixedPlan, problem: MixedProblem) -> MixedPrice:
    """Return the step time and memory of a plan.

    Of a kind with p stages, t_r forward and backward of stage r, m micro-batches (closed form of
    `costmodels.schedule.pipeline.compute_s`, messages as in `p2p_s` over the slowest boundary):

        T = S [ m max t + sum t - max t + crossings hop ] + max_r ( sync + exchange + update )
            + tied + fixed

    The step is that of the slowest kind.
    """
    tables = [[table_of(problem, x, kind.mbs) for x in kind.stages] for kind in plan.kinds]
    exchanged, crossing = exchanges_s(plan, problem, tables)
    shared = messages_bytes(plan, tables)
    kinds = tuple(
        _kind_price(kind, problem, tables[i], exchanged[i], shared)
        for i, kind in enumerate(plan.kinds)
    )
    for kind, own in zip(plan.kinds, tables, strict=True):
        for one, other in pairwise(own):
            if one.pool != other.pool:
                edge = (min(one.pool, other.pool), max(one.pool, other.pool))
                size = max(x.message_bytes * x.n_devices for x in (one, other))
                batches = kind.n_sequences / kind.mbs
                crossing[edge] = crossing.get(edge, 0.0) + 2.0 * batches * size
    return MixedPrice(kinds, crossing)


def _kind_price(
    kind: PipelineKind,
    problem: MixedProblem,
    tables: Sequence[StageTable],
    exchanged_s: Sequence[float],
    shared_bytes: Mapping[tuple[int, int], float],
) -> KindPrice:
    pp, m, d = kind.pp, kind.n_micro, kind.n_pipelines
    share = d if problem.zero else 1
    stages, start = [], 0
    for r, (stage, table) in enumerate(zip(kind.stages, tables, strict=True)):
        end = start + stage.layers
        active = in_flight(pp, r, m)
        grads, weights = table.grad_bytes.of(start, end), table.weight_bytes.of(start, end)
        forward_s, backward_s = table.forward_s.of(start, end), table.backward_s.of(start, end)
        stages.append(
            StagePrice(
                forward_s=forward_s,
                backward_s=backward_s,
                states_bytes=table.whole_bytes.of(start, end)
                + table.shared_bytes.of(start, end) / share,
                activation_bytes=active * table.activation_bytes.of(start, end),
                other_bytes=table.fixed_bytes + table.working_bytes.of(start, end),
                sync_s=sync_s(problem, table, d, Sync(grads, weights, forward_s, backward_s)),
                exchange_s=exchanged_s[r],
                update_s=table.update_s.of(start, end) / share + table.clear_s.of(start, end),
            )
        )
        start = end
    times = [x.forward_s + x.backward_s for x in stages]
    slowest, total = max(times), sum(times)
    hops = tuple(
        hop_s(problem, a, b, shared_bytes.get((min(a.pool, b.pool), max(a.pool, b.pool)), 0.0))
        for a, b in pairwise(tables)
    )
    crossings = float(alternating_crossings(pp, m)) if pp > 1 else 0.0
    messages_s = crossings * max(hops, default=0.0)
    pipeline_s = m * slowest + total - slowest + messages_s
    last = max(stages, key=lambda x: x.sync_s + x.exchange_s + x.update_s)
    return KindPrice(
        compute_s=m * slowest,
        bubble_s=total - slowest,
        messages_s=messages_s,
        straggle_s=(problem.straggler_factor - 1.0) * pipeline_s,
        sync_s=last.sync_s + _tied_s(problem, tables),
        exchange_s=last.exchange_s,
        update_s=last.update_s,
        fixed_s=problem.fixed_s,
        stages=tuple(stages),
        hops_s=hops,
    )


def _tied_s(problem: MixedProblem, tables: Sequence[StageTable]) -> float:
    """Return the sum of a tied matrix's gradients over the first and the last stage, seconds."""
    first, last = tables[0], tables[-1]
    if len(tables) == 1 or not first.tied_bytes:
        return 0.0
    if first.pool == last.pool:
        latency, per_byte = problem.pools[first.pool].inside_hop
        return latency + per_byte * first.tied_bytes
    link = problem.link(first.pool, last.pool)
    nics = [problem.pools[x.pool].nic_bytes_per_s for x in (first, last)]
    size = first.tied_bytes * first.n_devices
    return link.latency_s + max(first.tied_bytes / min(nics), size / link.bytes_per_s)


def fits(plan: MixedPlan, problem: MixedProblem, priced: MixedPrice) -> bool:
    """Tell whether every stage fits its pool's memory, and the pools hold the devices in use."""
    for kind, its in zip(plan.kinds, priced.kinds, strict=True):
        for stage, one in zip(kind.stages, its.stages, strict=True):
            if one.peak_bytes > problem.pools[stage.pool].usable_bytes:
                return False
    return all(plan.n_devices(i) <= x.n_devices for i, x in enumerate(problem.pools))
