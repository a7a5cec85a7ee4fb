"""What one plan sends over which wire: calls, bytes, message sizes, time and exposed time."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodels.comm.buckets import in_one_buffer, rank_buckets
from costmodels.comm.collectives import (
    chosen_algorithm,
    collective_s,
    point_to_point_s,
    torus_sent_bytes_per_s,
)
from costmodels.comm.context_parallel import ContextSplit, widths
from costmodels.comm.data_parallel import DataGroups, DataParallelTimes, sums_whole
from costmodels.comm.dispatch import (
    Degrees,
    dispatch_s,
    dispatcher_of,
    expert_group,
    sent_copies,
    token_exchange,
)
from costmodels.comm.fsdp import Units, alone_positions, grad_wire_bytes
from costmodels.comm.fsdp import gathers as fsdp_gathers
from costmodels.comm.placement import Group, place_group, tier_names
from costmodels.comm.tensor_parallel import loss_calls, tensor_parallel_group, tp_collective_s
from costmodels.comm.torus import TorusShare
from costmodels.layers.compute import ForwardBackward
from costmodels.layers.experts import (
    expert_rows,
    load_factor,
    local_tokens,
    parts_for_routing,
)
from costmodels.layers.kinds import (
    MIXERS,
    added_kinds,
    has_attention,
    has_mlp,
    kinds_of,
    sublayers,
)
from costmodels.layers.layer_kind import ExpertLayerTerms, KindTerms, LayerKind
from costmodels.layers.params import padded_vocab, replicated_params
from costmodels.layers.recompute import RunAgain, latent_bytes, repeated_blocks, run_again
from costmodels.layers.streams.connections import collapse_params
from costmodels.offload.activations import copy_bytes_per_s
from costmodels.offload.modules import offloads_modules
from costmodels.offload.optimizer import COPY_BYTES, gradients_leave
from costmodels.optimizers.groups import GroupTerms
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.schedule.stages import BOTH_WAYS, layer_prefix, other_kinds
from costmodels.shape_terms import (
    end_pair,
    frozen_expert_weights,
    frozen_weights,
    narrow_expert_params,
    narrow_params,
    shared_params,
)
from costmodels.shapes import ModelShape
from costmodels.step import (
    Rows,
    StageTimes,
    activation_waits,
    boundary_hops_s,
    data_parallel_exposed,
    offload_exposed,
    offloaded_activation_bytes,
)
from costmodels.tuning.frozen import FrozenWeights, gathered_params, least_stage
from costmodels.tuning.reference import GATHERS

Floats = NDArray[np.float64]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class PlanTransfer:
    """One kind of transfer of the device that sends most, per optimizer step."""

    axis: str
    """`tp`, `cp`, `ep`, `pp`, `dp`, or `host` for copies to and from it."""
    collective: str
    tier: str
    """The widest network level that the group spans; `host`."""
    group_size: int
    n_calls: int
    message_bytes: float
    """Logical tensor of one call."""
    sent_bytes: float
    """Bytes that the device puts on the wire per step."""
    time_s: float
    """Wire time of all calls."""
    exposed_s: float
    """The part that compute waits for."""
    dtype: str
    algorithm: str
    scale_out_bytes: float = 0.0
    """Of `sent_bytes`, what leaves the scale-up domain; the mean of the group's ranks."""
    torus_bytes_per_s: float = 0.0
    """What the device sends at inside its slice, by the links that the group has of a torus; 0
    without one."""


def _wire_factor(collective: str, ranks: int) -> float:
    """Return bytes sent per rank over the size of the logical tensor (ring volumes)."""
    share = (ranks - 1) / ranks
    factors = {"all-reduce": 2 * share, "point-to-point": 1.0, "broadcast": 1.0}
    return factors.get(collective, share)


def _width(rows: Rows, n_bytes: float) -> str:
    """Return the name of the type of `n_bytes` in which gradients or weights travel."""
    return {2.0: _activation_type(rows), 4.0: "fp32"}.get(n_bytes, f"{n_bytes:g} B")


class Place(NamedTuple):
    """Where one group of ranks lies, as in `placement.Group`."""

    n_ranks: float
    ranks_per_domain: float
    n_domains: float
    wire_bytes_per_s: float
    tier: int
    extra_hop_s: float
    torus: TorusShare | None = None

    @property
    def group(self) -> Group:
        """The same as arrays without an axis."""
        return Group(
            np.asarray(self.n_ranks),
            np.asarray(self.ranks_per_domain),
            np.asarray(self.n_domains),
            np.asarray(self.wire_bytes_per_s),
            np.asarray(self.tier, dtype=np.int32),
            self.extra_hop_s,
            self.torus and self.torus.each(np.asarray),
        )


def _place(group: Group, *index: int) -> Place:
    """Return one of the groups of an array, that at `index` (or its last numbers)."""
    rows = index[len(index) - group.n_ranks.ndim :]
    return Place(
        group.n_ranks[rows].item(),
        group.ranks_per_domain[rows].item(),
        group.n_domains[rows].item(),
        group.wire_bytes_per_s[rows].item(),
        group.tier[rows].item(),
        np.asarray(group.extra_hop_s).item(),
        group.torus and group.torus.each(lambda column: column[rows].item()),
    )


@dataclass(slots=True)
class Wires:
    """Groups and collectives of one problem: plans ask for the same few again and again."""

    problem: Problem
    tiers: tuple[str, ...] = field(init=False)
    _known: dict[Hashable, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tiers = tier_names(self.problem.fabric)

    def known(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return what `make` does, made once for each key."""
        if key not in self._known:
            self._known[key] = make()
        result: Value = self._known[key]
        return result

    def place(self, n_ranks: int, stride: int) -> Place:
        """Return where a group lies (`place_group`)."""
        pool, fabric = self.problem.pool, self.problem.fabric
        return self.known(
            ("place", n_ranks, stride),
            lambda: _place(place_group(n_ranks, stride, pool, fabric)),
        )

    def of_tp(self, tp: int) -> Place:
        """Return where a tensor-parallel group lies."""
        degree = np.array(tp, dtype=np.int32)
        return self.known(("tp", tp), lambda: _place(tensor_parallel_group(self.problem, degree)))

    def collective_s(self, name: str, size_bytes: float, place: Place) -> float:
        """Return the time of a collective, seconds."""
        pool = self.problem.pool
        return self.known(
            ("time", name, size_bytes, place),
            lambda: float(collective_s(name, size_bytes, place.group, pool).item()),
        )

    def tp_collective_s(self, name: str, size_bytes: float, place: Place) -> float:
        """Return the time of a collective whose ranks wait for the last of them, seconds."""
        return self.known(
            ("tp time", name, size_bytes, place),
            lambda: float(tp_collective_s(self.problem, name, size_bytes, place.group).item()),
        )

    def torus_bytes_per_s(self, name: str, place: Place) -> float:
        """Return what a rank sends at on the links of a torus, bytes per second; 0 without one."""
        if place.torus is None:
            return 0.0
        return float(torus_sent_bytes_per_s(name, place.group, self.problem.pool).item())

    def algorithm(self, name: str, size_bytes: float, place: Place) -> str:
        """Return the fastest algorithm of a collective."""
        if name == "point-to-point":
            return "direct"
        pool = self.problem.pool
        return self.known(
            ("algorithm", name, size_bytes, place),
            lambda: chosen_algorithm(name, size_bytes, place.group, pool).name,
        )


@dataclass(slots=True)
class Traffic:
    """What all plans of a joined table send; what is asked for of one is looked up here."""

    rows: Rows
    times: StageTimes
    """`stage_times` of the rows."""
    wires: Wires
    _columns: dict[str, Any] = field(default_factory=dict)

    def _column(self, name: str, make: Callable[[], Value]) -> Value:
        """Return what is computed for all rows together, once."""
        if name not in self._columns:
            self._columns[name] = make()
        result: Value = self._columns[name]
        return result

    @property
    def data_parallel(self) -> tuple[Floats, Floats]:
        """`data_parallel_exposed` of all rows."""
        return self._column("dp", lambda: data_parallel_exposed(self.rows, self.times))

    @property
    def slowest_kind(self) -> list[int]:
        """The kind of rank that waits longest for data-parallel traffic, by row."""
        exposed, hidden = self.data_parallel
        slow = self.rows.problem.stack.overlap_slowdown
        return self._column("kind", lambda: (exposed + slow * hidden).argmax(axis=0).tolist())

    @property
    def offloaded(self) -> Floats:
        """`offload_exposed` of all rows."""
        return self._column("offload", lambda: offload_exposed(self.rows, self.times))

    @property
    def activation_waits(self) -> ForwardBackward:
        """`activation_waits` of all rows."""
        return self._column("activations", lambda: activation_waits(self.rows))

    @property
    def activation_bytes(self) -> Floats:
        """`offloaded_activation_bytes` of all rows."""
        return self._column("stored", lambda: offloaded_activation_bytes(self.rows))

    @property
    def shared_params(self) -> Floats:
        """`shared_params` of all rows."""
        shapes, maximum = self.rows.table.shapes, self.rows.shapes.params.max(axis=1)
        return self._column("tied", lambda: shared_params(self.rows.problem, shapes, maximum))

    @property
    def end_pair(self) -> Group:
        """`end_pair` of all rows."""
        shapes = self.rows.table.shapes
        return self._column("ends", lambda: end_pair(self.rows.problem, shapes))

    def of(
        self, row: int, layout: Layout, critical: int, pp_exposed_s: float, alone: bool = False
    ) -> "PlanTraffic":
        """Return what row `row`, which is `layout`, sends."""
        return PlanTraffic(self, row, layout, critical, pp_exposed_s, alone)


@dataclass(frozen=True, slots=True)
class PlanTraffic:
    """One plan of a table, as its transfers are made from it."""

    table: Traffic
    row: int
    layout: Layout
    critical: int
    pp_exposed_s: float
    alone: bool = False
    """All traffic is that of `critical`; otherwise between replicas that of the slowest."""

    @property
    def kind(self) -> int:
        """The kind of the rank whose traffic between replicas this is."""
        return self.kind_of(self.critical) if self.alone else self.table.slowest_kind[self.row]

    @property
    def copies_rank(self) -> int:
        """That rank, or the first of its kind."""
        if self.alone:
            return self.critical
        return int(
            self.rows.shapes.kinds.rank.item(self.rows.table.shape.item(self.row), self.kind)
        )

    def kind_of(self, rank: int) -> int:
        """Return the kind of a pipeline rank: that with the same layers and ends."""
        layout, longest = self.layout, max(self.layout.stage_layers)
        kinds = other_kinds(self.rows.problem.shape.layer_sequence)

        def what(r: int) -> tuple[object, ...]:
            stages = layout.stages_of(r)
            others = [layer_prefix(layout.stage_layers, stages, x, longest) for x in kinds]
            ends = layout.has_embedding(r), layout.has_head(r)
            return sorted(layout.chunks_of(r)), others, ends

        firsts = self.rows.shapes.kinds.rank[self.rows.table.shape.item(self.row)].tolist()
        return next(k for k, first in enumerate(firsts) if what(first) == what(rank))

    @property
    def rows(self) -> Rows:
        """The joined table."""
        return self.table.rows

    @property
    def wires(self) -> Wires:
        """Groups and collectives."""
        return self.table.wires

    def layer(self, column: Floats) -> float:
        """Return the plan's number of a column of layer terms."""
        return float(column.item(self.rows.index.item(self.row)))

    def transfers(self) -> tuple[PlanTransfer, ...]:
        """Return every kind of transfer of the plan, in the order tp, cp, ep, pp, dp, host.

        Tensor-, context- and expert-parallel traffic is that of pipeline rank `critical`, the
        slowest, with its recomputed forwards and the collectives of its end of the model.
        """
        results = [*_tensor_parallel(self), *_context_parallel(self), *_expert_parallel(self)]
        results += _pipeline(self)
        results += _data_parallel(self) + _tied_embedding(self)
        results += _host_copies(self) + _activation_copies(self) + _module_copies(self)
        return tuple(results)

    def make(
        self,
        axis: str,
        calls: "Calls",
        exposed_s: float,
        time_s: float | None = None,
        algorithm: str = "",
    ) -> PlanTransfer:
        """Return one transfer; without a time or an algorithm, those of the wire."""
        wires, place = self.wires, calls.place
        collective, message = calls.collective, calls.message_bytes
        if time_s is None:
            time_s = calls.n_calls * wires.collective_s(collective, message, place)
        ranks = int(place.n_ranks)
        sent = calls.n_calls * message * _wire_factor(collective, ranks)
        return PlanTransfer(
            axis,
            collective,
            wires.tiers[place.tier],
            ranks,
            calls.n_calls,
            message,
            sent,
            time_s,
            exposed_s,
            calls.dtype,
            algorithm or wires.algorithm(collective, message, place),
            sent * _outside_frac(collective, place),
            wires.torus_bytes_per_s(collective, place),
        )


@dataclass(frozen=True, slots=True)
class Calls:
    """Equal calls of one collective in one group, in an optimizer step."""

    collective: str
    place: Place
    n_calls: int
    message_bytes: float
    """Logical tensor of one call."""
    dtype: str


def _outside_frac(collective: str, place: Place) -> float:
    """Return the share of what a group sends that leaves the scale-up domain.

    Of N ranks, m of them in a domain, rings and chains cross once every m ranks: 1 / m.
    All-to-alls send (N - m) / (N - 1) of it to ranks outside.
    """
    ranks, inside = place.n_ranks, place.ranks_per_domain
    if place.n_domains <= 1:
        return 0.0
    if collective == "all-to-all":
        return float((ranks - inside) / (ranks - 1))
    return 1.0 / max(1.0, float(inside))


def _tensor_parallel(plan: PlanTraffic) -> list[PlanTransfer]:
    """Return the tensor-parallel collectives of one pipeline rank.

    Embedding: a reduce-scatter forward and an all-gather backward (one all-reduce without SP);
    head: an all-gather forward and a reduce-scatter backward (one all-reduce); the loss three
    all-reduces of 4 bytes a token.
    """
    rows, layout, critical, wires = plan.rows, plan.layout, plan.critical, plan.wires
    if layout.tp == 1:
        return []
    layers, stack = rows.layers, rows.problem.stack
    chunks = layout.chunks_of(critical)
    passes: float = layout.n_passes * sum(chunks)
    recomputed: float = layout.n_passes * sum(min(c, layout.recompute_layers) for c in chunks)
    tokens = float(layout.mbs * rows.problem.job.seq_len) / layout.cp
    message = rows.problem.job.recipe.activation_bytes * tokens * rows.problem.shape.hidden
    width = _activation_type(rows)
    group = wires.of_tp(layout.tp)
    forward_s = plan.layer(layers.tp_forward.exposed_s)
    backward_s = plan.layer(layers.tp_backward.exposed_s)
    exposed = passes * (forward_s + backward_s)
    exposed += recomputed * forward_s
    n_layers, routed = sum(chunks), 0.0
    added = added_kinds(rows.problem.shape)
    if added:
        counts = _counts_by_kind(rows, layout, critical)
        passes, recomputed, exposed = _blocks_by_kind(plan, counts)
        routed, _ = _routed_layers(rows, layout, critical)
    elif more := layers.experts:
        routed, routed_again = _routed_layers(rows, layout, critical)
        n_routed, n_again = layout.n_passes * routed, layout.n_passes * routed_again
        ahead = plan.layer(more.tp_forward.exposed_s) - forward_s
        after = plan.layer(more.tp_backward.exposed_s) - backward_s
        exposed += n_routed * (ahead + after) + n_again * ahead
        inside = stack.etp_gathers == "tokens" and layout.etp > 1
        if not (
            rows.problem.shape.shared_ffn or inside
        ):  # attention alone: half of the collectives
            passes, recomputed = passes - n_routed / 2, recomputed - n_again / 2
    dense, of_experts = repeated_blocks(layout.recompute_modules, rows.problem.shape)
    with_mlp, attending = n_layers - routed, float(n_layers)
    if added:
        with_mlp, attending = _with_mlp(rows, layout, critical), _attending(rows, layout, critical)
    recomputed += layout.n_passes * (with_mlp * dense + routed * of_experts) / 2
    modules = selective_again(rows, layout, critical, row=plan.row, with_mtp=False)
    latent = _latent_gathers(plan, round(attending))
    exposed += layout.n_passes * modules.tp_exposed_s - sum(x.exposed_s for x in latent)
    n_ends = layout.has_embedding(critical) + layout.has_head(critical)
    ends = layout.n_passes * n_ends
    results = []
    # Positions of every token are added first: the sum is reduced whole, and cut.
    learned = layout.n_passes * layout.has_embedding(critical)
    learned *= rows.problem.shape.positions == "learned" and stack.kind == "fused"
    if layout.sp:
        one = wires.tp_collective_s("all-gather", message, group)
        gathers = round((4 + (2 if stack.sp_regather else 0)) * passes + 2 * recomputed)
        reduces = round(4 * passes + 2 * recomputed)
        share = gathers / max(1, gathers + reduces)
        for name, calls, part in (
            ("all-gather", gathers, share),
            ("reduce-scatter", reduces, 1.0 - share),
        ):
            waits = part * exposed + ends * one
            n = calls + ends
            if name == "reduce-scatter":
                n -= learned
            if name == "all-gather" and stack.sp_regather and layout.has_head(critical):
                n += layout.n_passes  # the head's input once more, beside its gradient
            time_s = n * one
            results.append(plan.make("tp", Calls(name, group, n, message, width), waits, time_s))
        if learned:
            time_s = learned * wires.tp_collective_s("all-reduce", message, group)
            calls_of_sum = Calls("all-reduce", group, learned, message, width)
            results[-1] = replace(results[-1], exposed_s=results[-1].exposed_s - learned * one)
            results.append(plan.make("tp", calls_of_sum, learned * one, time_s))
    else:
        calls = round(4 * passes + 2 * recomputed) + ends
        one = wires.tp_collective_s("all-reduce", message, group)
        waits, time_s = exposed + ends * one, calls * one
        results.append(
            plan.make("tp", Calls("all-reduce", group, calls, message, width), waits, time_s)
        )
    n_again = layout.n_passes * sum(min(c, layout.recompute_layers) for c in chunks)
    results = _latent_traffic(plan, group, results, n_again) + latent
    if layout.has_head(critical) and not plan.rows.problem.shape.diffusion:
        results.append(_loss(plan, tokens, group, width))
    if stack.replicated_grads != "each":
        return results + _replicated_gradients(plan, group)
    return results + _replicated(plan, n_layers, routed, group)


@dataclass(frozen=True, slots=True)
class _KindCounts:
    """Layers of one kind of a pipeline rank."""

    kind: LayerKind
    terms: KindTerms
    layers: float
    recomputed: float
    """Those that run again in full."""


def _counts_by_kind(rows: Rows, layout: Layout, rank: int) -> list[_KindCounts]:
    """Return the layers of each kind of a rank, those of multi-token prediction left out."""
    shape, counts, stages = rows.problem.shape, layout.stage_layers, layout.stages_of(rank)
    results = []
    for i, (kind, terms) in enumerate(zip(kinds_of(shape), rows.layers.of_kinds, strict=True)):
        flags = tuple(one == i for one in shape.layer_sequence)
        total = layer_prefix(counts, stages, flags, max(counts))
        again = total[min(layout.recompute_layers, len(total) - 1)]
        results.append(_KindCounts(kind, terms, float(total[-1]), float(again)))
    return results


def _blocks_by_kind(
    plan: PlanTraffic, counts: Sequence[_KindCounts]
) -> tuple[float, float, float]:
    """Return passes and repeated forwards of layers with two blocks of collectives, and waits.

    A layer with one block counts as half a pass.
    """
    shape, n_passes = plan.rows.problem.shape, plan.layout.n_passes
    seq_len = plan.rows.problem.job.seq_len / plan.layout.cp
    inside = plan.rows.problem.stack.etp_gathers == "tokens" and plan.layout.etp > 1
    passes, recomputed, exposed = 0.0, 0.0, 0.0
    for one in counts:
        half = one.kind.blocks_at(shape, seq_len) / 2
        if one.kind.is_routed and not shape.shared_ffn and inside:
            half += 0.5
        passes += n_passes * one.layers * half
        recomputed += n_passes * one.recomputed * half
        forward_s = plan.layer(one.terms.tp_forward.exposed_s)
        backward_s = plan.layer(one.terms.tp_backward.exposed_s)
        exposed += n_passes * (one.layers * (forward_s + backward_s) + one.recomputed * forward_s)
    return passes, recomputed, exposed


def _with_mlp(rows: Rows, layout: Layout, rank: int) -> float:
    """Return the layers of a rank that have an MLP."""
    counts = _counts_by_kind(rows, layout, rank)
    return sum(x.layers for x in counts if has_mlp(x.kind))


def _attending(rows: Rows, layout: Layout, rank: int) -> float:
    """Return the layers of a rank that have the model's attention."""
    counts = _counts_by_kind(rows, layout, rank)
    return sum(x.layers for x in counts if has_attention(x.kind))


def _replicated_gradients(plan: PlanTraffic, group: Place) -> list[PlanTransfer]:
    """Return the sum of the gradients of what tp ranks hold whole, once a step.

    Their inputs are cut over tp with sequence parallelism. Part of `StackProfile.fixed_step_s`.
    """
    layout, problem, rank = plan.layout, plan.rows.problem, plan.critical
    if not layout.sp or problem.stack.kind != "fused":
        return []
    shape, n_layers = problem.shape, sum(layout.chunks_of(rank))
    routed = _routed_layers(plan.rows, layout, rank)[0]
    if added_kinds(shape):
        counts = _layers_by_kind(plan.rows, layout, rank, with_mtp=False)
        pairs = zip(kinds_of(shape), counts, strict=True)
        n = sum(count * kind.replicated_params(shape) for kind, count in pairs)
    else:
        n = routed * replicated_params(shape, routed=True)
        n += (n_layers - routed) * replicated_params(shape, routed=False)
    norm = shape.hidden * (1 if shape.norm == "rmsnorm" else 2)
    n += layout.has_head(rank) * (norm + collapse_params(shape))
    wire = problem.job.recipe.grad_wire_bytes
    time_s, dtype = (
        plan.wires.tp_collective_s("all-reduce", wire * n, group),
        _width(plan.rows, wire),
    )
    return [plan.make("tp", Calls("all-reduce", group, 1, wire * n, dtype), 0.0, time_s)]


def _replicated(
    plan: PlanTraffic, n_layers: int, routed: float, group: Place
) -> list[PlanTransfer]:
    """Return the sums of gradients of what tensor parallelism replicates, a call for each tensor.

    Routers, the down-projections of latent attention and the norms behind them; with sequence
    parallelism also two norms a layer and the last one. Beside the backward, in fp32: once a step
    in a pipeline, else for every micro-batch.
    """
    shape, layout = plan.rows.problem.shape, plan.layout
    n_norms = 2 * n_layers
    if added_kinds(shape):
        counts = _counts_by_kind(plan.rows, layout, plan.critical)
        n_norms = round(sum(x.layers * sublayers(x.kind) for x in counts))
        n_layers = round(_attending(plan.rows, layout, plan.critical))
    norms = n_norms + layout.has_head(plan.critical) if layout.sp else 0
    sizes = [(norms, shape.hidden)]
    sizes.append((round(routed), shape.hidden * shape.n_experts if shape.n_experts > 1 else 0))
    if shape.latent:
        sizes += [
            (n_layers, (shape.kv_rank + shape.qk_rope) * shape.hidden),
            (n_layers, shape.kv_rank),
        ]
        sizes += [(n_layers, shape.q_rank * shape.hidden), (n_layers, shape.q_rank)]
    times = 1 if layout.pp > 1 else layout.n_passes
    return [
        plan.make("tp", Calls("all-reduce", group, n * times, 4.0 * size, "fp32"), 0.0)
        for n, size in sizes
        if n and size
    ]


def selective_again(
    rows: Rows, layout: Layout, rank: int, *, row: int = 0, with_mtp: bool = True
) -> RunAgain:
    """Return what the recomputed modules of a rank take for one micro-batch.

    `layout` is row `row` of the joined table.
    """
    modules = (kind.modules for kind in rows.layers.of_kinds)
    by_kind = _layers_by_kind(rows, layout, rank, with_mtp=with_mtp)
    pairs = list(zip(modules, by_kind, strict=True))
    return run_again(layout.recompute_modules, pairs, rows.index.item(row))


def _layers_by_kind(
    rows: Rows, layout: Layout, rank: int, *, with_mtp: bool = True
) -> list[float]:
    """Return the layers of each kind of a rank, those of multi-token prediction as the last."""
    shape, counts = rows.problem.shape, layout.stage_layers
    others = [
        layer_prefix(counts, layout.stages_of(rank), flags, max(counts))[-1]
        for flags in other_kinds(shape.layer_sequence)
    ]
    by_kind = [sum(layout.chunks_of(rank)) - sum(others), *others]
    by_kind[shape.layer_sequence[-1]] += shape.mtp_layers * (layout.has_head(rank) and with_mtp)
    return by_kind


def _latent_gathers(plan: PlanTraffic, n_layers: int) -> list[PlanTransfer]:
    """Return the gathers of latents that recomputed up-projections of attention repeat."""
    layout, wires = plan.layout, plan.wires
    problem, calls = plan.rows.problem, layout.n_passes * n_layers
    if "mla_up_proj" not in layout.recompute_modules or not layout.sp:
        return []
    if not problem.shape.latent:  # queries of `compressed` come from a latent of all tokens
        return []
    tokens = np.array([float(layout.mbs * problem.job.seq_len) / layout.cp])
    group = wires.of_tp(layout.tp)
    message = latent_bytes(problem, tokens).item()
    time_s = calls * wires.tp_collective_s("all-gather", message, group)
    width = _activation_type(plan.rows)
    if problem.stack.kind == "fused":  # one call for queries, one for keys and values
        shape = problem.shape
        calls, message = (
            2 * calls,
            problem.job.recipe.activation_bytes
            / 2.0
            * tokens.item()
            * ((shape.q_rank or shape.hidden) + shape.kv_rank),
        )
    return [plan.make("tp", Calls("all-gather", group, calls, message, width), time_s, time_s)]


def _latent_traffic(
    plan: PlanTraffic, group: Place, transfers: list[PlanTransfer], n_again: int
) -> list[PlanTransfer]:
    """Return the transfers of a rank with those of latent attention as Megatron-Core makes them.

    Every rank projects its tokens down with the whole matrix; what is gathered (with sequence
    parallelism) or summed in backward are the latents, before each is projected up, and the keys
    with positions. With compressed queries the layer's input is not. They are priced as the wider
    input. Source: Megatron-LM core/transformer/multi_latent_attention.py.
    """
    layout, problem = plan.layout, plan.rows.problem
    shape, width = problem.shape, _activation_type(plan.rows)
    if not shape.latent or problem.stack.kind != "fused":
        return transfers
    passes = layout.n_passes * sum(layout.chunks_of(plan.critical))
    tokens = float(layout.mbs * problem.job.seq_len) / layout.cp
    calls = {
        "all-gather": 2 * passes + n_again,
        "reduce-scatter": passes,
        "all-reduce": passes,
    }
    if shape.q_rank:
        transfers = [
            replace(
                one,
                n_calls=one.n_calls - calls[one.collective],
                sent_bytes=one.sent_bytes * (1 - calls[one.collective] / one.n_calls),
                scale_out_bytes=one.scale_out_bytes * (1 - calls[one.collective] / one.n_calls),
            )
            for one in transfers
        ]
    names = ("all-gather", "reduce-scatter") if layout.sp else ("all-reduce",)
    latents = [rank for rank in (shape.q_rank, shape.kv_rank) if rank]
    rows = [(name, calls[name], rank) for name in names for rank in latents]
    if layout.sp:
        rows += [("all-gather", passes + n_again, shape.qk_rope)]
        rows += [("reduce-scatter", passes, shape.qk_rope)]
    for name, n, rank in rows:
        message = problem.job.recipe.activation_bytes * tokens * rank
        time_s = n * plan.wires.tp_collective_s(name, message, group)
        transfers.append(plan.make("tp", Calls(name, group, n, message, width), 0.0, time_s))
    return transfers


def _routed_layers(rows: Rows, layout: Layout, rank: int) -> tuple[float, float]:
    """Return the expert layers of a pipeline rank, and how many of them are fully recomputed."""
    if rows.layers.experts is None:
        return 0.0, 0.0
    chunks, counts = layout.stages_of(rank), layout.stage_layers
    experts = rows.problem.shape.expert_layers
    total = layer_prefix(counts, chunks, experts, max(counts))[-1]
    return total, layer_prefix(counts, chunks, experts, layout.recompute_layers)[-1]


@dataclass(frozen=True, slots=True)
class _TokenExchange:
    """One exchange of tokens between experts, and what a device sends in it."""

    time_s: float
    message_bytes: float
    outside_frac: float
    algorithm: str


def _expert_parallel(plan: PlanTraffic) -> list[PlanTransfer]:
    """Return the exchange of tokens of one pipeline rank: dispatch and combine, both directions.

    A message is what a device holds for all ranks, its copies and its own included.
    """
    rows, layout, wires = plan.rows, plan.layout, plan.wires
    problem, more = rows.problem, rows.layers.experts
    if more is None:
        return []
    shape = problem.shape
    n_layers, n_recomputed = _routed_layers(rows, layout, plan.critical)
    modules = shape.mtp_layers * shape.expert_layers[-1] * layout.has_head(plan.critical)
    if "moe" in layout.recompute_modules:
        n_recomputed += n_layers + modules
    passes = int(layout.n_passes * (2 * (n_layers + modules) + n_recomputed))
    if not passes:
        return []
    tp, ep, etp = (np.array([x], dtype=np.int32) for x in (layout.tp, layout.ep, layout.etp))
    sp = np.array([int(layout.sp)], dtype=np.int32)
    total = np.array([layout.mbs * problem.job.seq_len / layout.cp])
    tokens = local_tokens(problem.stack, total, tp, sp, ep)
    modes, degrees = rows.table.modes.at(plan.row), Degrees(tp, sp, ep, etp)
    dispatcher = dispatcher_of(problem, modes)
    width, results = _activation_type(rows), []
    element = problem.job.recipe.activation_bytes
    if layout.ep > 1 or (dispatcher == "allgather" and layout.etp > 1):
        key = layout.ep, layout.etp, dispatcher
        place = wires.known(("experts", *key), lambda: _expert_place(problem, degrees, dispatcher))

        def exchange() -> _TokenExchange:
            group, pool = expert_group(problem, ep, etp), problem.pool
            load = load_factor(shape, ep)
            one_copy = element * shape.expert_hidden * tokens * load
            inside, outside = sent_copies(problem, group, modes)
            per_call = (inside + outside) * one_copy
            time_s = dispatch_s(problem, tokens, load, degrees, modes).item()
            if dispatcher == "allgather":
                total = (element * shape.expert_hidden * tokens * ep * etp).item()
                return _TokenExchange(time_s, total, 0.0, "")
            sent = token_exchange(problem, one_copy, group, modes)
            return _TokenExchange(
                time_s,
                per_call.item() * layout.ep / (layout.ep - 1),
                (outside / (inside + outside)).item(),
                chosen_algorithm("all-to-all", sent, group, pool).name,
            )

        one = wires.known(("exchange", *key, tokens.item()), exchange)
        if dispatcher == "allgather":
            for name in ("all-gather", "reduce-scatter"):
                calls = Calls(name, place, passes, one.message_bytes, width)
                results.append(plan.make("ep", calls, *_shown(plan, passes * one.time_s)))
        else:
            calls = Calls("all-to-all", place, 2 * passes, one.message_bytes, width)
            spent = _shown(plan, calls.n_calls * one.time_s)
            made = plan.make("ep", calls, *spent, one.algorithm)
            results.append(replace(made, scale_out_bytes=made.sent_bytes * one.outside_frac))
        if _sends_weights(problem, dispatcher):
            share = one.message_bytes / shape.expert_hidden
            time_s = passes * wires.collective_s("all-to-all", share, place)
            results.append(
                plan.make("ep", Calls("all-to-all", place, passes, share, width), 0.0, time_s)
            )
    if layout.tp > 1 and parts_for_routing(problem.stack, sp, ep).item():
        row, message = wires.place(layout.tp, 1), (element * shape.expert_hidden * total).item()
        time_s = passes * wires.tp_collective_s("all-gather", message, row)
        results.append(
            plan.make("tp", Calls("all-gather", row, passes, message, width), time_s, time_s)
        )
    if layout.etp > 1 and problem.stack.etp_gathers != "tokens" and dispatcher != "allgather":
        inner = wires.place(layout.etp, 1)
        message = (
            element * shape.expert_hidden * expert_rows(problem, tokens, sp, ep, etp)
        ).item()
        one_s = wires.tp_collective_s("all-gather", message, inner)
        for name in ("all-gather", "reduce-scatter"):
            calls = Calls(name, inner, passes, message, width)
            results.append(plan.make("ep", calls, *_shown(plan, passes * one_s)))
        if _sends_weights(problem, dispatcher):
            backward = layout.n_passes * int(n_layers + modules)
            share = message / shape.expert_hidden
            for name, n in (("all-gather", passes - backward), ("reduce-scatter", backward)):
                time_s = n * wires.tp_collective_s(name, share, inner)
                results.append(plan.make("ep", Calls(name, inner, n, share, width), 0.0, time_s))
    return results


def _expert_place(problem: Problem, degrees: Degrees, dispatcher: str) -> Place:
    """Return the ranks among which a dispatcher exchanges tokens."""
    if dispatcher != "allgather":
        return _place(expert_group(problem, degrees.ep, degrees.etp), 0)
    ranks = degrees.ep * degrees.etp
    return _place(place_group(ranks, np.ones_like(ranks), problem.pool, problem.fabric), 0)


def _shown(plan: PlanTraffic, time_s: float) -> tuple[float, float]:
    """Return what a step waits for exchanges of tokens of some time, and that time, seconds.

    Those of the first and last micro-batch, beside which nothing runs, count as exposed.
    """
    terms = plan.rows.layers.experts
    assert terms is not None  # there is an exchange
    row = plan.rows.index.reshape(-1)[plan.row]
    hidden = terms.exchange_hidden_s.item(row)
    total = hidden + terms.exchange.total_s.item(row)
    if added_kinds(plan.rows.problem.shape):
        counts = _counts_by_kind(plan.rows, plan.layout, plan.critical)
        kinds = [(x.layers, x.terms) for x in counts if isinstance(x.terms, ExpertLayerTerms)]
        hidden = sum(n * x.exchange_hidden_s.item(row) for n, x in kinds)
        total = hidden + sum(n * x.exchange.total_s.item(row) for n, x in kinds)
    if not hidden or not total:
        return time_s, time_s
    passes = plan.layout.n_passes
    alone = min(1.0, 1.0 / passes)
    return time_s * (1.0 - hidden / total * (1.0 - alone)), time_s


def _sends_weights(problem: Problem, dispatcher: str) -> bool:
    """Tell whether the router's weights travel in calls of their own, beside the tokens.

    One number a copy; too little to price. Source: Megatron-LM
    core/transformer/moe/token_dispatcher.py (MoEAlltoAllTokenDispatcher).
    """
    return problem.stack.kind == "fused" and dispatcher == "alltoall"


def _loss(plan: PlanTraffic, tokens: float, group: Place, width: str) -> PlanTransfer:
    """Return the collectives of the loss: three numbers a token, or the gathered logits."""
    problem, layout = plan.rows.problem, plan.layout
    per_pass = loss_calls(problem.stack)
    name, size, kind = "all-reduce", 12.0 * tokens / per_pass, "fp32"
    calls = per_pass * layout.n_passes
    if not problem.stack.logits_sharded:
        vocab = padded_vocab(problem.shape, np.array([layout.tp], dtype=np.int32)).item()
        size = problem.job.recipe.activation_bytes * tokens * vocab
        name, calls, kind = "all-gather", layout.n_passes, width
    waits = calls * plan.wires.tp_collective_s(name, size, group)
    return plan.make("tp", Calls(name, group, calls, size, kind), waits, waits)


def _context_parallel(plan: PlanTraffic) -> list[PlanTransfer]:
    """Return the exchange of keys and values of one pipeline rank, by kind of message.

    Exposed time is shared out over the messages by their time.
    """
    rows, layout = plan.rows, plan.layout
    if layout.cp == 1:
        return []
    layers, problem = rows.layers, rows.problem
    chunks = layout.chunks_of(plan.critical)
    passes = layout.n_passes * sum(chunks)
    deep = sum(min(c, layout.recompute_layers) for c in chunks)
    core = sum(chunks) if "core_attn" in layout.recompute_modules else 0
    forwards = passes + layout.n_passes * (deep + core)
    forward, backward = layers.cp_forward, layers.cp_backward
    time_s = forwards * plan.layer(forward.total_s) + passes * plan.layer(backward.total_s)
    waits = forwards * plan.layer(forward.exposed_s) + passes * plan.layer(backward.exposed_s)
    group = plan.wires.place(layout.cp, layout.tp)
    width, c = _activation_type(rows), layout.cp
    n_tokens = layout.mbs * problem.job.seq_len / c
    element, keeps_gathered = (
        problem.job.recipe.activation_bytes,
        problem.stack.cp_gathers == "kept",
    )

    def calls_of(shape: ModelShape) -> list[tuple[str, float, int]]:
        split = ContextSplit(*(np.array([n], dtype=np.int32) for n in (layout.tp, c, 0)))
        queries, keys = (float(x.item()) for x in widths(shape, split))
        key_bytes, query_bytes = element * n_tokens * keys, element * n_tokens * queries
        calls = {
            "p2p": [
                ("point-to-point", 2 * key_bytes, (c - 1) * forwards + 2 * passes),
                ("point-to-point", 4 * key_bytes, (c - 2) * passes),
            ],
            "all-gather": [
                (
                    "all-gather",
                    c * key_bytes,
                    2 * forwards + (0 if keeps_gathered else 2) * passes,
                ),
                ("reduce-scatter", c * key_bytes, 2 * passes),
            ],
            "a2a": [
                ("all-to-all", query_bytes, 2 * (forwards + passes)),
                ("all-to-all", key_bytes, 2 * (forwards + passes)),
            ],
        }
        return calls[layout.cp_comm]

    kinds = calls_of(problem.shape)
    if added_kinds(problem.shape):
        sends = _context_by_kind(plan)
        kinds = [
            (name, size, round(calls * share))
            for shape, share in sends.attending.items()
            for name, size, calls in calls_of(shape)
        ]
        kinds += [("all-to-all", size, calls) for size, calls in sends.all_to_alls]
        time_s, waits = sends.time_s, sends.waits_s
    wanted = [(name, size, calls) for name, size, calls in kinds if calls]
    each = [_one_exchange_s(plan.wires, name, size, group) for name, size, _ in wanted]
    taken = [one * calls for one, (_, _, calls) in zip(each, wanted, strict=True)]
    share = [waits * spent / time_s for spent in taken]
    return [
        plan.make("cp", Calls(name, group, calls, size, width), exposed, spent)
        for (name, size, calls), exposed, spent in zip(wanted, share, taken, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _ContextSends:
    """What the kinds of layers of a pipeline rank exchange over cp in a step."""

    attending: dict[ModelShape, float]
    """Share of its layers that have attention, by the model as they see it (`of_kind`)."""
    all_to_alls: list[tuple[float, int]]
    """Bytes and calls of those of heads for sequence, of other mixers."""
    time_s: float
    waits_s: float


def _context_by_kind(plan: PlanTraffic) -> _ContextSends:
    """Return the exchanges over cp where layers are of several kinds."""
    rows, layout, shape = plan.rows, plan.layout, plan.rows.problem.shape
    counts = _counts_by_kind(rows, layout, plan.critical)
    core = "core_attn" in layout.recompute_modules
    n_tokens = layout.mbs * rows.problem.job.seq_len / layout.cp
    width, tp = rows.problem.job.recipe.activation_bytes, np.array([layout.tp], dtype=np.int32)
    time_s, waits_s, sends = 0.0, 0.0, dict[float, int]()
    attending, total = dict[ModelShape, float](), max(1.0, sum(one.layers for one in counts))
    for one in counts:
        ahead, after = one.terms.cp_forward, one.terms.cp_backward
        passes = layout.n_passes * one.layers
        forwards = passes + layout.n_passes * (one.recomputed + core * one.layers)
        time_s += forwards * plan.layer(ahead.total_s) + passes * plan.layer(after.total_s)
        waits_s += forwards * plan.layer(ahead.exposed_s) + passes * plan.layer(after.exposed_s)
        if has_attention(one.kind):
            own = shape.of_kind(one.kind.name)
            attending[own] = attending.get(own, 0.0) + one.layers
        exchanged = MIXERS[one.kind.mixer].exchanged if one.kind.mixer in MIXERS else None
        for elements in exchanged(shape, tp, layout.cp) if exchanged else ():
            size = width * n_tokens * float(np.asarray(elements).reshape(-1)[0])
            sends[size] = sends.get(size, 0) + round(passes + forwards)
    shares = {own: layers / total for own, layers in attending.items()}
    return _ContextSends(shares, list(sends.items()), time_s, waits_s)


def _one_exchange_s(wires: Wires, name: str, size: float, place: Place) -> float:
    """Return the time of one message of context parallelism, seconds."""
    if name != "point-to-point":
        return wires.tp_collective_s(name, size, place)
    pool = wires.problem.pool
    return wires.known(
        ("message", size, place), lambda: float(point_to_point_s(size, place.group, pool).item())
    )


def _activation_type(rows: Rows) -> str:
    """Return the name of the activations' type: that of the linear layers, fp32 for TF32."""
    recipe = rows.problem.job.recipe
    return "fp32" if recipe.activation_bytes == 4.0 else recipe.gemm_precision


def _pipeline(plan: PlanTraffic) -> list[PlanTransfer]:
    """Return the activations and gradients that a rank passes on to other ranks."""
    rows, layout = plan.rows, plan.layout
    if layout.pp == 1:
        return []
    n_calls = layout.n_passes * sends_per_pass(layout, plan.critical)
    message = plan.layer(rows.layers.message_bytes)
    place = plan.wires.place(layout.pp, layout.stage_stride)
    hops = boundary_hops_s(rows, layout, plan.row)
    time_s, width = n_calls * max(hops[:-1]), _activation_type(rows)
    calls = Calls("point-to-point", place, n_calls, message, width)
    return [plan.make("pp", calls, plan.pp_exposed_s, time_s)]


def sends_per_pass(layout: Layout, rank: int) -> int:
    """Return the messages that a pipeline rank sends for one micro-batch.

    Every stage but the last passes its output on, every one but the first its gradient back;
    stages next to each other on one rank send nothing.
    """
    value, last = 0, len(layout.stage_layers) - 1
    stages = layout.stages_of(rank)
    local = () if layout.placement == BOTH_WAYS else stages
    for j in stages:
        value += j < last and j + 1 not in local
        value += j > 0 and j - 1 not in local
    return value


@dataclass(frozen=True, slots=True)
class _Copies:
    """What one device shares with the ranks that hold the same parameters."""

    params: float
    wire: DataParallelTimes
    groups: DataGroups
    params_of_layers: bool = False
    """All but routed experts."""
    n_buckets: int = 0
    """Calls of one pass over the parameters; 0: as many as there are pieces."""
    narrow_params: float = 0.0
    """Those that are gathered quantised."""
    frozen_params: float = 0.0
    """Frozen weights that are gathered with them, as parameters of the recipe's width."""


def _data_parallel(plan: PlanTraffic) -> list[PlanTransfer]:
    """Return the gradient reductions and the weight gathers of the rank that waits longest.

    Of `critical` where a rank is named.

    Routed experts have a group of their own; what is waited for is shared out by wire time.
    """
    layout, row, shapes = plan.layout, plan.row, plan.rows.shapes
    kind, parts = plan.kind, []
    problem, of_experts, of_rest = plan.rows.problem, 0, 0
    stack = problem.stack
    if stack.bucket_params_per_rank and not stack.sharded_units and layout.zero < 2:
        found_of = problem.shape, problem.job, stack, layout
        of_experts, of_rest = rank_buckets(*found_of, plan.copies_rank)
    if layout.dp * layout.cp > 1:
        params = shapes.params.item(row, kind) + _padding(plan, shapes.groups)
        narrow = narrow_params(problem, plan.rows.table.shapes, shapes.kinds)
        parts.append(
            _Copies(
                params,
                shapes.data_parallel,
                shapes.data_groups,
                True,
                of_rest,
                0.0 if narrow is None else narrow.item(row, kind),
                _frozen_params(plan, frozen_weights),
            )
        )
    if routed := shapes.experts:
        replicas = _place(routed.data_groups.all_ranks, *_sharding_of(plan))
        frozen = _frozen_params(plan, frozen_expert_weights)
        if replicas.n_ranks > 1 and routed.params.item(row, kind) + frozen > 0:
            params = routed.params.item(row, kind) + _padding(plan, routed.groups)
            found_groups = routed.data_parallel, routed.data_groups
            narrow = narrow_expert_params(problem, plan.rows.table.shapes, shapes.kinds)
            gathered = 0.0 if narrow is None else narrow.item(row, kind)
            parts.append(
                _Copies(
                    params,
                    *found_groups,
                    n_buckets=of_experts,
                    narrow_params=gathered,
                    frozen_params=frozen,
                )
            )
    results = [one for part in parts for one in _copies(plan, part, kind)]
    if (of_rest and in_one_buffer(layout)) or (stack.sharded_units and layout.ep == 1):
        results = _in_one_unit(results)
    waits, total = plan.table.data_parallel[0].item(kind, row), sum(one.time_s for one in results)
    return [replace(one, exposed_s=waits * (one.time_s / total)) for one in results]


def _frozen_params(plan: PlanTraffic, weights_of: Callable[..., FrozenWeights]) -> float:
    """Return the frozen weights of a rank that are gathered beside adapters; 0 where none are."""
    problem, table = plan.rows.problem, plan.rows.table
    if problem.job.tuning is None or plan.layout.zero < least_stage(problem):
        return 0.0
    weights = weights_of(problem, table.shapes, plan.rows.shapes.kinds)
    return float(gathered_params(problem, weights)[plan.row, plan.kind])


def _padding(plan: PlanTraffic, groups: GroupTerms | None) -> float:
    """Return the parameters by which a buffer of whole matrices is longer than they are."""
    if groups is None:
        return 0.0
    return groups.moved_params.item(*_sharding_of(plan), plan.kind)


def _in_one_unit(transfers: list[PlanTransfer]) -> list[PlanTransfer]:
    """Return transfers with those of experts in the calls of the layers that they belong to."""
    joined: dict[tuple[str, int], PlanTransfer] = {}
    for one in transfers:
        key = one.collective, one.group_size
        if key not in joined:
            joined[key] = one
            continue
        total = joined[key]
        message = one.n_calls * one.message_bytes / total.n_calls
        joined[key] = replace(
            total,
            message_bytes=total.message_bytes + message,
            sent_bytes=total.sent_bytes + one.sent_bytes,
            time_s=total.time_s + one.time_s,
            scale_out_bytes=total.scale_out_bytes + one.scale_out_bytes,
        )
    return list(joined.values())


def _sharding_of(plan: PlanTraffic) -> tuple[int, int]:
    """Return the place of a plan in arrays by sharding and shape."""
    table = plan.rows.table
    return table.sharding.item(plan.row), table.shape.item(plan.row)


def _copies(plan: PlanTraffic, part: _Copies, kind: int) -> list[PlanTransfer]:
    """Return the transfers of one group, nothing exposed yet."""
    rows, layout, wires = plan.rows, plan.layout, plan.wires
    zero, recipe, wire, params = layout.zero, rows.problem.job.recipe, part.wire, part.params
    sharding = _sharding_of(plan)
    position = (*sharding, kind)
    reduce, piece = wire.reduce_s.item(*position), wire.reduce_piece_s.item(*position)
    gather_s, gather_piece_s = wire.gather_s.item(*position), wire.gather_piece_s.item(*position)
    pieces = round(reduce / piece) if piece else 1
    is_whole = sums_whole(rows.problem, zero)
    group = _place(part.groups.all_ranks if is_whole else part.groups.shard, *sharding)
    units = rows.problem.stack.sharded_units
    often = zero >= 2 or (units and layout.pp == 1)
    reduces = layout.n_micro if often else 1
    gathers = {0: 0, 1: 1, 2: 1, 3: 2 * layout.n_micro}[zero]
    near = (
        _place(part.groups.second_copy, *sharding)
        if layout.hpz > 1 and part.groups.second_copy
        else None
    )
    gathers = 1 if near else gathers
    over = _place(part.groups.replicas, *sharding)
    shard, replicas = int(_place(part.groups.shard, *sharding).n_ranks), int(over.n_ranks)
    wide = grad_wire_bytes(recipe, rows.problem.stack)
    grads = wide * params / pieces
    width, copies = _width(rows, wide), 0.0
    if not is_whole and replicas > 1:
        one = wires.collective_s("all-reduce", grads / shard, over)
        copies = reduces * pieces * one
    pieces = part.n_buckets or pieces
    grads = wide * params / pieces
    name, calls = "all-reduce" if is_whole else "reduce-scatter", reduces * pieces
    time_s = reduces * reduce - copies
    results = []
    if group.n_ranks > 1 and params:
        results.append(plan.make("dp", Calls(name, group, calls, grads, width), 0.0, time_s))
    if copies:
        calls_of_sum = Calls("all-reduce", over, calls, grads / shard, width)
        results.append(plan.make("dp", calls_of_sum, 0.0, copies))
    if gathers and shard > 1:
        held = params + part.frozen_params
        weights = recipe.param_wire_bytes * held
        if part.frozen_params:
            pieces = round(gather_s / gather_piece_s)
        if part.narrow_params:
            narrower = recipe.param_wire_bytes - recipe.linear_wire_bytes
            weights -= narrower * part.narrow_params
        time_s = gathers * gather_s
        kind_of = _width(rows, recipe.param_wire_bytes)
        name, calls, size = "all-gather", gathers * pieces, weights / pieces
        if units:
            ends = _units(plan, pieces, part, kind)
            calls, gathered = fsdp_gathers(ends, rows.problem.stack, zero, layout.n_micro)
            size = recipe.param_wire_bytes * gathered / calls
            if zero < 3:  # a step of ZeRO 3 is priced as if its tail were gathered twice too
                time_s *= gathered / (gathers * held)
        if rows.problem.job.has_reference and zero >= 3:
            calls = round(GATHERS * calls)
        if zero == 1 and rows.problem.stack.zero1_gather == "broadcast":
            name, calls, size = "broadcast", shard, weights / shard
        results.append(plan.make("dp", Calls(name, group, calls, size, kind_of), 0.0, time_s))
        if near and wire.again_s is not None:  # all but a step's first are from the second copy
            more = 2 * layout.n_micro - 1
            time_s = more * wire.again_s.item(*position)
            calls_of_copy = Calls("all-gather", near, more * pieces, size, kind_of)
            results.append(plan.make("dp", calls_of_copy, 0.0, time_s))
    return results


def _units(plan: PlanTraffic, number: int, part: _Copies, kind: int) -> Units:
    """Return the units in which FSDP2 gathers a part; none of routed experts' stays."""
    problem, kinds, tail = plan.rows.problem, plan.rows.shapes.kinds, 0.0
    shape_idx, shape = plan.rows.table.shape.item(plan.row), problem.shape
    has_head = bool(part.params_of_layers and kinds.has_head.item(shape_idx, kind))
    has_embedding = bool(part.params_of_layers and kinds.has_embedding.item(shape_idx, kind))
    positions = has_embedding * alone_positions(problem)
    if has_head:
        tp = np.array([plan.layout.tp], dtype=np.int32)
        norm = 1 if shape.norm == "rmsnorm" else 2
        tail = (padded_vocab(shape, tp) / tp).item() * shape.hidden
        tail += norm * shape.hidden
    if positions:
        tail += max(shape.max_positions, problem.job.seq_len) * shape.hidden
    return Units(number, part.params + part.frozen_params, has_head + positions, tail)


def _tied_embedding(plan: PlanTraffic) -> list[PlanTransfer]:
    """Return the sum of the gradients that two pipeline ranks share (`shared_params`)."""
    rows, recipe = plan.rows, plan.rows.problem.job.recipe
    shared = plan.table.shared_params.item(plan.row)
    if not shared or plan.layout.pp == 1:
        return []
    if plan.alone and not _shares(plan.layout, plan.critical):
        return []
    message, width = recipe.grad_wire_bytes * shared, _width(rows, recipe.grad_wire_bytes)
    place, exposed = _place(plan.table.end_pair, plan.row), rows.shapes.embedding_sync_s
    return [plan.make("pp", Calls("all-reduce", place, 1, message, width), exposed.item(plan.row))]


def _shares(layout: Layout, rank: int) -> bool:
    """Tell whether a rank is one of those that share parameters with another."""
    both_ways = layout.placement == BOTH_WAYS
    return both_ways or layout.has_embedding(rank) or layout.has_head(rank)


def _activation_copies(plan: PlanTraffic) -> list[PlanTransfer]:
    """Return the copies of stored activations, a call for each layer and micro-batch."""
    layout, host, row = plan.layout, plan.rows.problem.pool.host, plan.row
    if not layout.activation_offload or host is None:
        return []
    sent = layout.n_micro * plan.table.activation_bytes.item(0, row)
    calls, waits = layout.n_micro * layout.activation_offload_layers, plan.table.activation_waits
    time_s, width = float(sent / copy_bytes_per_s(host)), _activation_type(plan.rows)
    return [
        PlanTransfer(
            "host",
            name,
            "host",
            1,
            calls,
            sent / calls,
            sent,
            time_s,
            layout.n_micro * waited.item(0, row),
            width,
            "copy",
        )
        for name, waited in (
            ("activations-to-host", waits.forward_s),
            ("activations-to-device", waits.backward_s),
        )
    ]


def _module_copies(plan: PlanTraffic) -> list[PlanTransfer]:
    """Return the copies of offloaded modules of `critical`, a call for a layer and micro-batch."""
    layout, rows, host = plan.layout, plan.rows, plan.rows.problem.pool.host
    if not offloads_modules(rows.table.modes) or host is None:
        return []
    by_kind = _layers_by_kind(rows, layout, plan.critical)
    kinds = [pair for pair in zip(rows.layers.of_kinds, by_kind, strict=True) if pair[1]]

    def total(column: Callable[[KindTerms], Floats]) -> float:
        return layout.n_passes * sum(n * plan.layer(column(kind)) for kind, n in kinds)

    sent = total(lambda kind: kind.away.copied_bytes)
    calls = layout.n_passes * round(sum(n for _, n in kinds))
    if not sent:
        return []
    time_s, width = float(sent / copy_bytes_per_s(host)), _activation_type(rows)
    waited = (
        ("modules-to-host", total(lambda kind: kind.copies.forward_s)),
        ("modules-to-device", total(lambda kind: kind.copies.backward_s)),
    )
    return [
        PlanTransfer(
            *("host", name, "host", 1, calls, sent / calls, sent, time_s, exposed, width, "copy")
        )
        for name, exposed in waited
    ]


def _host_copies(plan: PlanTraffic) -> list[PlanTransfer]:
    """Return what goes to and from the host on the rank whose update takes longest.

    What is waited for is shared out by time, Adam's part left out. Sums of gradients on the host
    (ZeRO 2 and 3 where they leave) go down after every micro-batch, up before all but the first.
    """
    rows, layout = plan.rows, plan.layout
    update, host = rows.shapes.host_update, rows.problem.pool.host
    if update is None or host is None or not layout.optimizer_offload:
        return []
    exposed = plan.table.offloaded[:, plan.row]
    kind = int(exposed.argmax())
    position = (*_sharding_of(plan), kind)
    once, adam_s = update.down_s.item(*position), update.adam_s.item(*position)
    pieces, recomputed = round(update.n_pieces.item(*position)), 0
    if gradients_leave(rows.problem.stack) and layout.zero >= 2:
        recomputed = layout.n_micro - 1
    width = min(1.0, rows.problem.job.recipe.grad_bytes / COPY_BYTES)
    time_s = once * (1.0 + recomputed * width)
    share = exposed[kind].item() / (2.0 * time_s + adam_s)
    sent = time_s * host.link_bytes_per_s
    calls = pieces * (1 + recomputed)
    return [
        PlanTransfer(
            "host",
            name,
            "host",
            1,
            calls,
            sent / calls,
            sent,
            time_s,
            share * time_s,
            "fp32",
            "copy",
        )
        for name in ("device-to-host", "host-to-device")
    ]
