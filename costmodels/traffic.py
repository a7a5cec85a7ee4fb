"""What one plan sends over which wire: calls, bytes, message sizes, time and exposed time."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodels.activation_offload import copy_bytes_per_s
from costmodels.collectives import chosen_algorithm, collective_s, point_to_point_s
from costmodels.compute import ForwardBackward
from costmodels.context_parallel import ELEMENT_BYTES
from costmodels.data_parallel import DataGroups, DataParallelTimes
from costmodels.experts import (
    all_to_all_s,
    expert_group,
    expert_rows,
    load_factor,
    local_tokens,
    sent_copies,
)
from costmodels.offload import COPY_BYTES, gradients_leave
from costmodels.parameters import kv_heads_per_rank, padded_vocab
from costmodels.placement import Group, place_group, tier_names
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.recompute import RunAgain, latent_bytes, repeated_blocks, run_again
from costmodels.shape_terms import end_pair, shared_params
from costmodels.stages import expert_prefix
from costmodels.step import (
    Rows,
    StageTimes,
    activation_waits,
    boundary_hops_s,
    data_parallel_exposed,
    offload_exposed,
    offloaded_activation_bytes,
)
from costmodels.tensor_parallel import tensor_parallel_group, tp_collective_s

Floats = NDArray[np.float64]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Transfer:
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


def _wire_factor(collective: str, ranks: int) -> float:
    """Return bytes sent per rank over the size of the logical tensor (ring volumes)."""
    share = (ranks - 1) / ranks
    whole = {"all-reduce": 2 * share, "point-to-point": 1.0, "broadcast": 1.0}
    return whole.get(collective, share)


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
        )


def _place(group: Group, *at: int) -> Place:
    """Return one of the groups of an array, that at `at` (its last numbers, if it has fewer)."""
    rows = at[len(at) - group.n_ranks.ndim :]
    return Place(
        group.n_ranks[rows].item(),
        group.ranks_per_domain[rows].item(),
        group.n_domains[rows].item(),
        group.wire_bytes_per_s[rows].item(),
        group.tier[rows].item(),
        np.asarray(group.extra_hop_s).item(),
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
        found: Value = self._known[key]
        return found

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

    def algorithm(self, name: str, size_bytes: float, place: Place) -> str:
        """Return the fastest algorithm of a collective."""
        if name == "point-to-point":
            return "direct"
        pool = self.problem.pool
        return self.known(
            ("algorithm", name, size_bytes, place),
            lambda: chosen_algorithm(name, size_bytes, place.group, pool),
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
        found: Value = self._columns[name]
        return found

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
        shapes, most = self.rows.table.shapes, self.rows.shapes.params.max(axis=1)
        return self._column("tied", lambda: shared_params(self.rows.problem, shapes, most))

    @property
    def end_pair(self) -> Group:
        """`end_pair` of all rows."""
        shapes = self.rows.table.shapes
        return self._column("ends", lambda: end_pair(self.rows.problem, shapes))

    def of(self, row: int, layout: Layout, critical: int, pp_exposed_s: float) -> "PlanTraffic":
        """Return what row `row`, which is `layout`, sends."""
        return PlanTraffic(self, row, layout, critical, pp_exposed_s)


@dataclass(frozen=True, slots=True)
class PlanTraffic:
    """One plan of a table, as its transfers are made from it."""

    table: Traffic
    row: int
    layout: Layout
    critical: int
    pp_exposed_s: float

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

    def transfers(self) -> tuple[Transfer, ...]:
        """Return every kind of transfer of the plan, in the order tp, cp, ep, pp, dp, host.

        Tensor-, context- and expert-parallel traffic is that of pipeline rank `critical`, the
        slowest, with its recomputed forwards and the collectives of its end of the model.
        """
        found = [*_tensor_parallel(self), *_context_parallel(self), *_expert_parallel(self)]
        found += _pipeline(self)
        found += _data_parallel(self) + _tied_embedding(self)
        return tuple(found + _host_copies(self) + _activation_copies(self))

    def make(
        self,
        axis: str,
        collective: str,
        place: Place,
        n_calls: int,
        message: float,
        exposed_s: float,
        dtype: str,
        time_s: float | None = None,
    ) -> Transfer:
        """Return one transfer; its time is that of the wire where none is given."""
        wires, ranks = self.wires, int(place.n_ranks)
        if time_s is None:
            time_s = n_calls * wires.collective_s(collective, message, place)
        algorithm = wires.algorithm(collective, message, place)
        sent = n_calls * message * _wire_factor(collective, ranks)
        return Transfer(
            axis, collective, wires.tiers[place.tier], ranks, n_calls, message, sent, time_s,
            exposed_s, dtype, algorithm, sent * _outside_frac(collective, place),
        )  # fmt: skip


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


def _tensor_parallel(plan: PlanTraffic) -> list[Transfer]:
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
    again: float = layout.n_passes * sum(min(c, layout.recompute_layers) for c in chunks)
    tokens = float(layout.mbs * rows.problem.job.seq_len) / layout.cp
    message, width = 2.0 * tokens * rows.problem.shape.hidden, _activation_type(rows)
    group = wires.of_tp(layout.tp)
    forward_s = plan.layer(layers.tp_forward.exposed_s)
    backward_s = plan.layer(layers.tp_backward.exposed_s)
    exposed = passes * (forward_s + backward_s)
    exposed += again * forward_s
    held, routed = sum(chunks), 0.0
    if more := layers.experts:
        routed, routed_again = _routed_layers(rows, layout, critical)
        n_routed, n_again = layout.n_passes * routed, layout.n_passes * routed_again
        ahead = plan.layer(more.tp_forward.exposed_s) - forward_s
        after = plan.layer(more.tp_backward.exposed_s) - backward_s
        exposed += n_routed * (ahead + after) + n_again * ahead
        if not rows.problem.shape.shared_ffn:  # attention alone: half of the collectives
            passes, again = passes - n_routed / 2, again - n_again / 2
    dense, of_experts = repeated_blocks(layout.recompute_modules, rows.problem.shape)
    again += layout.n_passes * ((held - routed) * dense + routed * of_experts) / 2
    modules = selective_again(rows, layout, critical, row=plan.row, with_mtp=False)
    latent = _latent_gathers(plan, held)
    exposed += layout.n_passes * modules.tp_exposed_s - sum(x.exposed_s for x in latent)
    n_ends = layout.has_embedding(critical) + layout.has_head(critical)
    ends = layout.n_passes * n_ends
    found = []
    if layout.sp:
        one = wires.tp_collective_s("all-gather", message, group)
        gathers = round((4 + (2 if stack.sp_regather else 0)) * passes + 2 * again)
        reduces = round(4 * passes + 2 * again)
        share = gathers / max(1, gathers + reduces)
        for name, calls, part in (
            ("all-gather", gathers, share),
            ("reduce-scatter", reduces, 1.0 - share),
        ):
            waits = part * exposed + ends * one
            n, time_s = calls + ends, (calls + ends) * one
            found.append(plan.make("tp", name, group, n, message, waits, width, time_s))
    else:
        calls = round(4 * passes + 2 * again) + ends
        one = wires.tp_collective_s("all-reduce", message, group)
        waits, time_s = exposed + ends * one, calls * one
        found.append(plan.make("tp", "all-reduce", group, calls, message, waits, width, time_s))
    found += latent
    if layout.has_head(critical):
        found.append(_loss(plan, tokens, group, width))
    return found


def selective_again(
    rows: Rows, layout: Layout, rank: int, *, row: int = 0, with_mtp: bool = True
) -> RunAgain:
    """Return what the recomputed modules of a rank take for one micro-batch.

    `layout` is row `row` of the joined table.
    """
    layers, shape = rows.layers, rows.problem.shape
    more = shape.mtp_layers * (layout.has_head(rank) and with_mtp)
    routed, of_experts = 0.0, None
    if layers.experts:
        routed = _routed_layers(rows, layout, rank)[0] + more * shape.expert_layers[-1]
        of_experts = layers.experts.modules
    held = sum(layout.chunks_of(rank)) + more
    at = rows.index.item(row)
    return run_again(layout.recompute_modules, layers.modules, of_experts, held, routed, at)


def _latent_gathers(plan: PlanTraffic, n_layers: int) -> list[Transfer]:
    """Return the gathers of latents that recomputed up-projections of attention repeat."""
    layout, wires = plan.layout, plan.wires
    if "mla_up_proj" not in layout.recompute_modules or not layout.sp:
        return []
    problem, calls = plan.rows.problem, layout.n_passes * n_layers
    tokens = np.array([float(layout.mbs * problem.job.seq_len) / layout.cp])
    group = wires.of_tp(layout.tp)
    message = latent_bytes(problem.shape, tokens).item()
    time_s = calls * wires.tp_collective_s("all-gather", message, group)
    width = _activation_type(plan.rows)
    return [plan.make("tp", "all-gather", group, calls, message, time_s, width, time_s)]


def _routed_layers(rows: Rows, layout: Layout, rank: int) -> tuple[float, float]:
    """Return the expert layers of a pipeline rank, and how many of them are fully recomputed."""
    if rows.layers.experts is None:
        return 0.0, 0.0
    chunks, counts = layout.stages_of(rank), layout.stage_layers
    experts = rows.problem.shape.expert_layers
    whole = expert_prefix(counts, chunks, experts, max(counts))[-1]
    return whole, expert_prefix(counts, chunks, experts, layout.recompute_layers)[-1]


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One exchange of tokens between experts, and what a device sends in it."""

    time_s: float
    message_bytes: float
    outside_frac: float


def _expert_parallel(plan: PlanTraffic) -> list[Transfer]:
    """Return the exchange of tokens of one pipeline rank: dispatch and combine, both directions.

    A message is what a device holds for all ranks, its copies and its own included.
    """
    rows, layout, wires = plan.rows, plan.layout, plan.wires
    problem, more = rows.problem, rows.layers.experts
    if more is None:
        return []
    shape = problem.shape
    held, again = _routed_layers(rows, layout, plan.critical)
    modules = shape.mtp_layers * shape.expert_layers[-1] * layout.has_head(plan.critical)
    if "moe" in layout.recompute_modules:
        again += held + modules
    passes = int(layout.n_passes * (2 * (held + modules) + again))
    if not passes:
        return []
    tp, ep, etp = (np.array([x], dtype=np.int32) for x in (layout.tp, layout.ep, layout.etp))
    tokens = local_tokens(
        np.array([layout.mbs * problem.job.seq_len / layout.cp]),
        tp,
        np.array([int(layout.sp)], dtype=np.int32),
    )
    width, found = _activation_type(rows), []
    if layout.ep > 1:
        key = layout.ep, layout.etp
        place = wires.known(("experts", *key), lambda: _place(expert_group(problem, ep, etp), 0))

        def exchange() -> _Exchange:
            group = expert_group(problem, ep, etp)
            weight = 2.0 * shape.hidden * tokens * load_factor(shape, ep)
            inside, outside = sent_copies(problem, group)
            per_call = ((inside + outside) * weight).item()
            return _Exchange(
                all_to_all_s(problem, weight, group).item(),
                per_call * layout.ep / (layout.ep - 1),
                (outside / (inside + outside)).item(),
            )

        one = wires.known(("exchange", *key, tokens.item()), exchange)
        calls = 2 * passes
        spent = calls * one.time_s
        made = plan.make("ep", "all-to-all", place, calls, one.message_bytes, spent, width, spent)
        found.append(replace(made, scale_out_bytes=made.sent_bytes * one.outside_frac))
    if layout.etp > 1:
        inner = wires.place(layout.etp, 1)
        message = (2.0 * shape.hidden * expert_rows(shape, tokens, ep, etp)).item()
        one_s = wires.tp_collective_s("all-gather", message, inner)
        for name in ("all-gather", "reduce-scatter"):
            time_s = passes * one_s
            found.append(plan.make("ep", name, inner, passes, message, time_s, width, time_s))
    return found


def _loss(plan: PlanTraffic, tokens: float, group: Place, width: str) -> Transfer:
    """Return the collectives of the loss: three sums a token, or the gathered logits."""
    problem, layout = plan.rows.problem, plan.layout
    name, size, calls, kind = "all-reduce", 4.0 * tokens, 3 * layout.n_passes, "fp32"
    if not problem.stack.logits_sharded:
        vocab = padded_vocab(problem.shape, np.array([layout.tp], dtype=np.int32)).item()
        name, size, calls, kind = "all-gather", 2.0 * tokens * vocab, layout.n_passes, width
    waits = calls * plan.wires.tp_collective_s(name, size, group)
    return plan.make("tp", name, group, calls, size, waits, kind, waits)


def _context_parallel(plan: PlanTraffic) -> list[Transfer]:
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
    kv = kv_heads_per_rank(problem.shape, layout.tp).item() * problem.shape.head_dim
    key_bytes = ELEMENT_BYTES * n_tokens * kv
    query_bytes = ELEMENT_BYTES * n_tokens * problem.shape.q_width / layout.tp
    kinds = {
        "p2p": [
            ("point-to-point", 2 * key_bytes, (c - 1) * forwards + 2 * passes),
            ("point-to-point", 4 * key_bytes, (c - 2) * passes),
        ],
        "all-gather": [
            ("all-gather", c * key_bytes, 2 * forwards + 2 * passes),
            ("reduce-scatter", c * key_bytes, 2 * passes),
        ],
        "a2a": [
            ("all-to-all", query_bytes, 2 * (forwards + passes)),
            ("all-to-all", key_bytes, 2 * (forwards + passes)),
        ],
    }[layout.cp_comm]
    wanted = [(name, size, calls) for name, size, calls in kinds if calls]
    each = [_one_exchange_s(plan.wires, name, size, group) for name, size, _ in wanted]
    taken = [one * calls for one, (_, _, calls) in zip(each, wanted, strict=True)]
    share = [waits * spent / time_s for spent in taken]
    return [
        plan.make("cp", name, group, calls, size, exposed, width, spent)
        for (name, size, calls), exposed, spent in zip(wanted, share, taken, strict=True)
    ]


def _one_exchange_s(wires: Wires, name: str, size: float, place: Place) -> float:
    """Return the time of one message of context parallelism, seconds."""
    if name != "point-to-point":
        return wires.tp_collective_s(name, size, place)
    pool = wires.problem.pool
    return wires.known(
        ("message", size, place), lambda: float(point_to_point_s(size, place.group, pool).item())
    )


def _activation_type(rows: Rows) -> str:
    """Return the name of the activations' type: that of the linear layers."""
    return rows.problem.job.recipe.gemm_precision


def _pipeline(plan: PlanTraffic) -> list[Transfer]:
    """Return the activations and gradients that an interior rank passes on."""
    rows, layout = plan.rows, plan.layout
    if layout.pp == 1:
        return []
    n_calls = 2 * layout.n_micro * layout.vpp
    message = plan.layer(rows.layers.message_bytes)
    place = plan.wires.place(layout.pp, layout.stage_stride)
    hops = boundary_hops_s(rows, layout, plan.row)
    time_s, width = n_calls * max(hops[:-1]), _activation_type(rows)
    args = (n_calls, message, plan.pp_exposed_s, width, time_s)
    return [plan.make("pp", "point-to-point", place, *args)]


@dataclass(frozen=True, slots=True)
class _Copies:
    """What one device shares with the ranks that hold the same parameters."""

    params: float
    wire: DataParallelTimes
    groups: DataGroups


def _data_parallel(plan: PlanTraffic) -> list[Transfer]:
    """Return the gradient reductions and the weight gathers of the rank that waits longest.

    Routed experts have a group of their own; what is waited for is shared out by wire time.
    """
    layout, row, shapes = plan.layout, plan.row, plan.rows.shapes
    kind, parts = plan.table.slowest_kind[row], []
    if layout.dp * layout.cp > 1:
        params = shapes.params.item(row, kind)
        parts.append(_Copies(params, shapes.data_parallel, shapes.data_groups))
    if routed := shapes.experts:
        whole = _place(routed.data_groups.whole, *_sharding_of(plan))
        if whole.n_ranks > 1 and routed.params.item(row, kind) > 0:
            params = routed.params.item(row, kind)
            parts.append(_Copies(params, routed.data_parallel, routed.data_groups))
    found = [one for part in parts for one in _copies(plan, part, kind)]
    waits, total = plan.table.data_parallel[0].item(kind, row), sum(one.time_s for one in found)
    return [replace(one, exposed_s=waits * (one.time_s / total)) for one in found]


def _sharding_of(plan: PlanTraffic) -> tuple[int, int]:
    """Return the place of a plan in arrays by sharding and shape."""
    table = plan.rows.table
    return table.sharding.item(plan.row), table.shape.item(plan.row)


def _copies(plan: PlanTraffic, part: _Copies, kind: int) -> list[Transfer]:
    """Return the transfers of one group, nothing exposed yet."""
    rows, layout, wires = plan.rows, plan.layout, plan.wires
    zero, recipe, wire, params = layout.zero, rows.problem.job.recipe, part.wire, part.params
    of = _sharding_of(plan)
    at = (*of, kind)
    reduce, piece = wire.reduce_s.item(*at), wire.reduce_piece_s.item(*at)
    pieces = round(reduce / piece)
    group = _place(part.groups.shard if zero else part.groups.whole, *of)
    reduces = layout.n_micro if zero >= 2 else 1
    gathers = {0: 0, 1: 1, 2: 1, 3: 2 * layout.n_micro}[zero]
    near = _place(part.groups.again, *of) if layout.hpz > 1 and part.groups.again else None
    gathers = 1 if near else gathers
    over = _place(part.groups.replicas, *of)
    shard, replicas = int(_place(part.groups.shard, *of).n_ranks), int(over.n_ranks)
    grads = recipe.grad_wire_bytes * params / pieces
    width, copies = _width(rows, recipe.grad_wire_bytes), 0.0
    if zero and replicas > 1:
        one = wires.collective_s("all-reduce", grads / shard, over)
        copies = reduces * pieces * one
    name, calls = "reduce-scatter" if zero else "all-reduce", reduces * pieces
    time_s = reduces * reduce - copies
    found = []
    if group.n_ranks > 1:
        found.append(plan.make("dp", name, group, calls, grads, 0.0, width, time_s))
    if copies:
        args = (over, calls, grads / shard, 0.0, width, copies)
        found.append(plan.make("dp", "all-reduce", *args))
    if gathers and shard > 1:
        weights = recipe.param_wire_bytes * params
        time_s = gathers * wire.gather_s.item(*at)
        kind_of = _width(rows, recipe.param_wire_bytes)
        name, calls, size = "all-gather", gathers * pieces, weights / pieces
        if zero == 1 and rows.problem.stack.zero1_gather == "broadcast":
            name, calls, size = "broadcast", shard, weights / shard
        found.append(plan.make("dp", name, group, calls, size, 0.0, kind_of, time_s))
        if near and wire.again_s is not None:  # all but a step's first are from the second copy
            more = 2 * layout.n_micro - 1
            time_s = more * wire.again_s.item(*at)
            args = (near, more * pieces, size, 0.0, kind_of, time_s)
            found.append(plan.make("dp", "all-gather", *args))
    return found


def _tied_embedding(plan: PlanTraffic) -> list[Transfer]:
    """Return the sum of the gradients that two pipeline ranks share (`shared_params`)."""
    rows, recipe = plan.rows, plan.rows.problem.job.recipe
    shared = plan.table.shared_params.item(plan.row)
    if not shared or plan.layout.pp == 1:
        return []
    message, width = recipe.grad_wire_bytes * shared, _width(rows, recipe.grad_wire_bytes)
    place, exposed = _place(plan.table.end_pair, plan.row), rows.shapes.embedding_sync_s
    return [plan.make("pp", "all-reduce", place, 1, message, exposed.item(plan.row), width)]


def _activation_copies(plan: PlanTraffic) -> list[Transfer]:
    """Return the copies of stored activations, a call for each layer and micro-batch."""
    layout, host, row = plan.layout, plan.rows.problem.pool.host, plan.row
    if not layout.activation_offload or host is None:
        return []
    sent = layout.n_micro * plan.table.activation_bytes.item(0, row)
    calls, late = layout.n_micro * layout.activation_offload_layers, plan.table.activation_waits
    time_s, width = float(sent / copy_bytes_per_s(host)), _activation_type(plan.rows)
    return [
        Transfer(
            "host", name, "host", 1, calls, sent / calls, sent, time_s,
            layout.n_micro * waited.item(0, row), width, "copy",
        )
        for name, waited in (
            ("activations-to-host", late.forward_s),
            ("activations-to-device", late.backward_s),
        )
    ]  # fmt: skip


def _host_copies(plan: PlanTraffic) -> list[Transfer]:
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
    at = (*_sharding_of(plan), kind)
    once, adam_s = update.down_s.item(*at), update.adam_s.item(*at)
    pieces, again = round(update.n_pieces.item(*at)), 0
    if gradients_leave(rows.problem.stack) and layout.zero >= 2:
        again = layout.n_micro - 1
    width = min(1.0, rows.problem.job.recipe.grad_bytes / COPY_BYTES)
    time_s = once * (1.0 + again * width)
    share = exposed[kind].item() / (2.0 * time_s + adam_s)
    sent = time_s * host.link_bytes_per_s
    calls = pieces * (1 + again)
    return [
        Transfer(
            "host", name, "host", 1, calls, sent / calls, sent, time_s, share * time_s, "fp32",
            "copy",
        )
        for name in ("device-to-host", "host-to-device")
    ]  # fmt: skip
