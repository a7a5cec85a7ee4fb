"""What one plan sends over which wire: calls, bytes, message sizes, time and exposed time."""

from dataclasses import dataclass, replace

import numpy as np

from costmodels.activation_offload import copy_bytes_per_s
from costmodels.collectives import chosen_algorithm, collective_s, point_to_point_s
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
from costmodels.recompute import RunAgain, latent_bytes, repeated_blocks, run_again
from costmodels.shape_terms import end_pair, shared_params
from costmodels.stages import expert_prefix
from costmodels.step import (
    Rows,
    activation_waits,
    boundary_hops_s,
    data_parallel_exposed,
    offload_exposed,
    offloaded_activation_bytes,
    stage_times,
)
from costmodels.tensor_parallel import tensor_parallel_group, tp_collective_s


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


def transfers(
    rows: Rows, layout: Layout, critical: int, pp_exposed_s: float
) -> tuple[Transfer, ...]:
    """Return every kind of transfer of one plan, in the order tp, cp, ep, pp, dp, host.

    Tensor-, context- and expert-parallel traffic is that of pipeline rank `critical`, the slowest,
    with its recomputed forwards and the collectives of its end of the model.
    """
    found = [*_tensor_parallel(rows, layout, critical), *_context_parallel(rows, layout, critical)]
    found += _expert_parallel(rows, layout, critical)
    found += _pipeline(rows, layout, pp_exposed_s)
    found += _data_parallel(rows, layout) + _tied_embedding(rows, layout)
    return tuple(found + _host_copies(rows, layout) + _activation_copies(rows, layout))


def _make(
    rows: Rows,
    axis: str,
    collective: str,
    group: Group,
    n_calls: int,
    message: float,
    exposed_s: float,
    dtype: str,
    time_s: float | None = None,
) -> Transfer:
    pool, ranks = rows.problem.pool, int(np.asarray(group.n_ranks).item())
    if time_s is None:
        time_s = n_calls * collective_s(collective, message, group, pool).item()
    algorithm = "direct"
    if collective != "point-to-point":
        algorithm = chosen_algorithm(collective, message, group, pool)
    tier = tier_names(rows.problem.fabric)[int(np.asarray(group.tier).item())]
    sent = n_calls * message * _wire_factor(collective, ranks)
    return Transfer(
        axis, collective, tier, ranks, n_calls, message, sent, time_s, exposed_s, dtype, algorithm,
        sent * _outside_frac(collective, group),
    )  # fmt: skip


def _outside_frac(collective: str, group: Group) -> float:
    """Return the share of what a group sends that leaves the scale-up domain.

    Of N ranks, m of them in a domain, rings and chains cross once every m ranks: 1 / m.
    All-to-alls send (N - m) / (N - 1) of it to ranks outside.
    """
    ranks, inside = np.asarray(group.n_ranks).item(), np.asarray(group.ranks_per_domain).item()
    if np.asarray(group.n_domains).item() <= 1:
        return 0.0
    if collective == "all-to-all":
        return float((ranks - inside) / (ranks - 1))
    return 1.0 / max(1.0, float(inside))


def _tensor_parallel(rows: Rows, layout: Layout, critical: int) -> list[Transfer]:
    """Return the tensor-parallel collectives of one pipeline rank.

    Embedding: a reduce-scatter forward and an all-gather backward (one all-reduce without SP);
    head: an all-gather forward and a reduce-scatter backward (one all-reduce); the loss three
    all-reduces of 4 bytes a token.
    """
    if layout.tp == 1:
        return []
    layers, stack = rows.layers, rows.problem.stack
    chunks = layout.chunks_of(critical)
    passes: float = layout.n_passes * sum(chunks)
    again: float = layout.n_passes * sum(min(c, layout.recompute_layers) for c in chunks)
    tokens = float(layout.mbs * rows.problem.job.seq_len) / layout.cp
    message, width = 2.0 * tokens * rows.problem.shape.hidden, _activation_type(rows)
    group = tensor_parallel_group(rows.problem, np.array(layout.tp, dtype=np.int32))
    forward, backward = layers.tp_forward, layers.tp_backward
    exposed = passes * (forward.exposed_s.item() + backward.exposed_s.item())
    exposed += again * forward.exposed_s.item()
    if more := layers.experts:
        routed, routed_again = (
            layout.n_passes * x for x in _routed_layers(rows, layout, critical)
        )
        ahead = more.tp_forward.exposed_s.item() - forward.exposed_s.item()
        after = more.tp_backward.exposed_s.item() - backward.exposed_s.item()
        exposed += routed * (ahead + after) + routed_again * ahead
        if not rows.problem.shape.shared_ffn:  # attention alone: half of the collectives
            passes, again = passes - routed / 2, again - routed_again / 2
    dense, of_experts = repeated_blocks(layout.recompute_modules, rows.problem.shape)
    held, routed = sum(chunks), _routed_layers(rows, layout, critical)[0]
    again += layout.n_passes * ((held - routed) * dense + routed * of_experts) / 2
    modules = selective_again(rows, layout, critical, with_mtp=False)
    latent = _latent_gathers(rows, layout, held)
    exposed += layout.n_passes * modules.tp_exposed_s - sum(x.exposed_s for x in latent)
    n_ends = layout.has_embedding(critical) + layout.has_head(critical)
    ends = layout.n_passes * n_ends
    found = []
    if layout.sp:
        one = tp_collective_s(rows.problem, "all-gather", message, group).item()
        gathers = round((4 + (2 if stack.sp_regather else 0)) * passes + 2 * again)
        reduces = round(4 * passes + 2 * again)
        share = gathers / max(1, gathers + reduces)
        for name, calls, part in (
            ("all-gather", gathers, share),
            ("reduce-scatter", reduces, 1.0 - share),
        ):
            waits = part * exposed + ends * one
            n, time_s = calls + ends, (calls + ends) * one
            found.append(_make(rows, "tp", name, group, n, message, waits, width, time_s))
    else:
        calls = round(4 * passes + 2 * again) + ends
        one = tp_collective_s(rows.problem, "all-reduce", message, group).item()
        waits, time_s = exposed + ends * one, calls * one
        found.append(_make(rows, "tp", "all-reduce", group, calls, message, waits, width, time_s))
    found += latent
    if layout.has_head(critical):
        found.append(_loss(rows, layout, tokens, group, width))
    return found


def selective_again(rows: Rows, layout: Layout, rank: int, *, with_mtp: bool = True) -> RunAgain:
    """Return what the recomputed modules of a rank take for one micro-batch."""
    layers, shape = rows.layers, rows.problem.shape
    more = shape.mtp_layers * (layout.has_head(rank) and with_mtp)
    routed, of_experts = 0.0, None
    if layers.experts:
        routed = _routed_layers(rows, layout, rank)[0] + more * shape.expert_layers[-1]
        of_experts = layers.experts.modules
    held = sum(layout.chunks_of(rank)) + more
    return run_again(layout.recompute_modules, layers.modules, of_experts, held, routed)


def _latent_gathers(rows: Rows, layout: Layout, n_layers: int) -> list[Transfer]:
    """Return the gathers of latents that recomputed up-projections of attention repeat."""
    if "mla_up_proj" not in layout.recompute_modules or not layout.sp:
        return []
    problem, calls = rows.problem, layout.n_passes * n_layers
    tokens = np.array([float(layout.mbs * problem.job.seq_len) / layout.cp])
    group = tensor_parallel_group(problem, np.array(layout.tp, dtype=np.int32))
    message = latent_bytes(problem.shape, tokens).item()
    time_s = calls * tp_collective_s(problem, "all-gather", message, group).item()
    width = _activation_type(rows)
    return [_make(rows, "tp", "all-gather", group, calls, message, time_s, width, time_s)]


def _routed_layers(rows: Rows, layout: Layout, rank: int) -> tuple[float, float]:
    """Return the expert layers of a pipeline rank, and how many of them are fully recomputed."""
    if rows.layers.experts is None:
        return 0.0, 0.0
    chunks, counts = layout.stages_of(rank), layout.stage_layers
    experts = rows.problem.shape.expert_layers
    whole = expert_prefix(counts, chunks, experts, max(counts))[-1]
    return whole, expert_prefix(counts, chunks, experts, layout.recompute_layers)[-1]


def _expert_parallel(rows: Rows, layout: Layout, critical: int) -> list[Transfer]:
    """Return the exchange of tokens of one pipeline rank: dispatch and combine, both directions.

    A message is what a device holds for all ranks, its copies and its own included.
    """
    problem, more = rows.problem, rows.layers.experts
    if more is None:
        return []
    shape, shapes = problem.shape, rows.table.shapes
    held, again = _routed_layers(rows, layout, critical)
    modules = shape.mtp_layers * shape.expert_layers[-1] * layout.has_head(critical)
    if "moe" in layout.recompute_modules:
        again += held + modules
    passes = int(layout.n_passes * (2 * (held + modules) + again))
    if not passes:
        return []
    tokens = local_tokens(
        np.array([layout.mbs * problem.job.seq_len / layout.cp]),
        shapes.tp,
        np.array([int(layout.sp)], dtype=np.int32),
    )
    copy, width = 2.0 * shape.hidden * tokens, _activation_type(rows)
    found = []
    if layout.ep > 1:
        group = expert_group(problem, shapes.ep, shapes.etp)
        weight = copy * load_factor(shape, shapes.ep)
        one = all_to_all_s(problem, weight, group).item()
        inside, outside = sent_copies(problem, group)
        per_call = ((inside + outside) * weight).item()
        message = per_call * layout.ep / (layout.ep - 1)
        calls = 2 * passes
        spent = calls * one
        made = _make(rows, "ep", "all-to-all", group, calls, message, spent, width, spent)
        leaves = made.sent_bytes * (outside / (inside + outside)).item()
        found.append(replace(made, scale_out_bytes=leaves))
    if layout.etp > 1:
        inner = place_group(layout.etp, 1, problem.pool, problem.fabric)
        message = (2.0 * shape.hidden * expert_rows(shape, tokens, shapes.ep, shapes.etp)).item()
        one = tp_collective_s(problem, "all-gather", message, inner).item()
        for name in ("all-gather", "reduce-scatter"):
            time_s = passes * one
            found.append(_make(rows, "ep", name, inner, passes, message, time_s, width, time_s))
    return found


def _loss(rows: Rows, layout: Layout, tokens: float, group: Group, width: str) -> Transfer:
    """Return the collectives of the loss: three sums a token, or the gathered logits."""
    name, size, calls, kind = "all-reduce", 4.0 * tokens, 3 * layout.n_passes, "fp32"
    if not rows.problem.stack.logits_sharded:
        vocab = padded_vocab(rows.problem.shape, rows.table.shapes.tp).item()
        name, size, calls, kind = "all-gather", 2.0 * tokens * vocab, layout.n_passes, width
    waits = calls * tp_collective_s(rows.problem, name, size, group).item()
    return _make(rows, "tp", name, group, calls, size, waits, kind, waits)


def _context_parallel(rows: Rows, layout: Layout, critical: int) -> list[Transfer]:
    """Return the exchange of keys and values of one pipeline rank, by kind of message.

    Exposed time is shared out over the messages by their time.
    """
    if layout.cp == 1:
        return []
    layers, problem = rows.layers, rows.problem
    chunks = layout.chunks_of(critical)
    passes = layout.n_passes * sum(chunks)
    deep = sum(min(c, layout.recompute_layers) for c in chunks)
    core = sum(chunks) if "core_attn" in layout.recompute_modules else 0
    forwards = passes + layout.n_passes * (deep + core)
    forward, backward = layers.cp_forward, layers.cp_backward
    time_s = forwards * forward.total_s.item() + passes * backward.total_s.item()
    waits = forwards * forward.exposed_s.item() + passes * backward.exposed_s.item()
    group = place_group(layout.cp, layout.tp, problem.pool, problem.fabric)
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
    each = [_one_exchange_s(rows, name, size, group) for name, size, _ in wanted]
    taken = [one * calls for one, (_, _, calls) in zip(each, wanted, strict=True)]
    share = [waits * spent / time_s for spent in taken]
    return [
        _make(rows, "cp", name, group, calls, size, exposed, width, spent)
        for (name, size, calls), exposed, spent in zip(wanted, share, taken, strict=True)
    ]


def _one_exchange_s(rows: Rows, name: str, size: float, group: Group) -> float:
    """Return the time of one message of context parallelism, seconds."""
    if name == "point-to-point":
        return point_to_point_s(size, group, rows.problem.pool).item()
    return tp_collective_s(rows.problem, name, size, group).item()


def _activation_type(rows: Rows) -> str:
    """Return the name of the activations' type: that of the linear layers."""
    return rows.problem.job.recipe.gemm_precision


def _pipeline(rows: Rows, layout: Layout, exposed_s: float) -> list[Transfer]:
    """Return the activations and gradients that an interior rank passes on."""
    if layout.pp == 1:
        return []
    n_calls = 2 * layout.n_micro * layout.vpp
    message = rows.layers.message_bytes.item()
    group = place_group(layout.pp, layout.stage_stride, rows.problem.pool, rows.problem.fabric)
    hops = boundary_hops_s(rows, layout)
    time_s = n_calls * max(hops[:-1])
    return [
        _make(
            rows,
            "pp",
            "point-to-point",
            group,
            n_calls,
            message,
            exposed_s,
            _activation_type(rows),
            time_s,
        )
    ]


@dataclass(frozen=True, slots=True)
class _Copies:
    """What one device shares with the ranks that hold the same parameters."""

    params: float
    wire: DataParallelTimes
    groups: DataGroups


def _data_parallel(rows: Rows, layout: Layout) -> list[Transfer]:
    """Return the gradient reductions and the weight gathers of the rank that waits longest.

    Routed experts have a group of their own; what is waited for is shared out by wire time.
    """
    exposed, hidden = data_parallel_exposed(rows, stage_times(rows))
    kind = int((exposed + rows.problem.stack.overlap_slowdown * hidden)[:, 0].argmax())
    shapes = rows.shapes
    parts = []
    if layout.dp * layout.cp > 1:
        params = shapes.params[0, kind].item()
        parts.append(_Copies(params, shapes.data_parallel, shapes.data_groups))
    routed = shapes.experts
    if routed and routed.data_groups.whole.n_ranks.item() > 1 and routed.params[0, kind] > 0:
        params = routed.params[0, kind].item()
        parts.append(_Copies(params, routed.data_parallel, routed.data_groups))
    found = [one for part in parts for one in _copies(rows, layout, part, kind)]
    waits, total = exposed[kind, 0].item(), sum(one.time_s for one in found)
    return [replace(one, exposed_s=waits * (one.time_s / total)) for one in found]


def _copies(rows: Rows, layout: Layout, part: _Copies, kind: int) -> list[Transfer]:
    """Return the transfers of one group, nothing exposed yet."""
    zero, recipe, wire, params = layout.zero, rows.problem.job.recipe, part.wire, part.params
    at = (rows.table.sharding.item(), 0, kind)
    reduce, piece = wire.reduce_s[at].item(), wire.reduce_piece_s[at].item()
    pieces = round(reduce / piece)
    group = part.groups.shard if zero else part.groups.whole
    reduces = layout.n_micro if zero >= 2 else 1
    gathers = {0: 0, 1: 1, 2: 1, 3: 2 * layout.n_micro}[zero]
    near = part.groups.again if layout.hpz > 1 else None
    gathers = 1 if near else gathers
    shard, replicas = (
        int(np.asarray(x.n_ranks).item()) for x in (part.groups.shard, part.groups.replicas)
    )
    grads = recipe.grad_wire_bytes * params / pieces
    width, copies = _width(rows, recipe.grad_wire_bytes), 0.0
    if zero and replicas > 1:
        over = part.groups.replicas
        one = collective_s("all-reduce", grads / shard, over, rows.problem.pool).item()
        copies = reduces * pieces * one
    name, calls = "reduce-scatter" if zero else "all-reduce", reduces * pieces
    time_s = reduces * reduce - copies
    found = []
    if np.asarray(group.n_ranks).item() > 1:
        found.append(_make(rows, "dp", name, group, calls, grads, 0.0, width, time_s))
    if copies:
        args = (part.groups.replicas, calls, grads / shard, 0.0, width, copies)
        found.append(_make(rows, "dp", "all-reduce", *args))
    if gathers and shard > 1:
        weights = recipe.param_wire_bytes * params
        time_s = gathers * wire.gather_s[at].item()
        kind_of = _width(rows, recipe.param_wire_bytes)
        name, calls, size = "all-gather", gathers * pieces, weights / pieces
        if zero == 1 and rows.problem.stack.zero1_gather == "broadcast":
            name, calls, size = "broadcast", shard, weights / shard
        found.append(_make(rows, "dp", name, group, calls, size, 0.0, kind_of, time_s))
        if near and wire.again_s is not None:  # all but a step's first are from the second copy
            more = 2 * layout.n_micro - 1
            time_s = more * wire.again_s[at].item()
            args = (near, more * pieces, size, 0.0, kind_of, time_s)
            found.append(_make(rows, "dp", "all-gather", *args))
    return found


def _tied_embedding(rows: Rows, layout: Layout) -> list[Transfer]:
    """Return the sum of the gradients that two pipeline ranks share (`shared_params`)."""
    shapes, recipe = rows.table.shapes, rows.problem.job.recipe
    shared = shared_params(rows.problem, shapes, rows.shapes.params.max(axis=1)).item()
    if not shared or layout.pp == 1:
        return []
    message = recipe.grad_wire_bytes * shared
    group = end_pair(rows.problem, shapes)
    exposed = rows.shapes.embedding_sync_s.item()
    return [
        _make(
            rows,
            "pp",
            "all-reduce",
            group,
            1,
            message,
            exposed,
            _width(rows, recipe.grad_wire_bytes),
        )
    ]


def _activation_copies(rows: Rows, layout: Layout) -> list[Transfer]:
    """Return the copies of stored activations, a call for each layer and micro-batch."""
    host = rows.problem.pool.host
    if not layout.activation_offload or host is None:
        return []
    sent = layout.n_micro * offloaded_activation_bytes(rows)[0].item()
    calls, late = layout.n_micro * layout.activation_offload_layers, activation_waits(rows)
    time_s, width = sent / copy_bytes_per_s(host), _activation_type(rows)
    return [
        Transfer(
            "host", name, "host", 1, calls, sent / calls, sent, time_s,
            layout.n_micro * waited.item(), width, "copy",
        )
        for name, waited in (
            ("activations-to-host", late.forward_s[0]),
            ("activations-to-device", late.backward_s[0]),
        )
    ]  # fmt: skip


def _host_copies(rows: Rows, layout: Layout) -> list[Transfer]:
    """Return what goes to and from the host on the rank whose update takes longest.

    What is waited for is shared out by time, Adam's part left out. Sums of gradients on the host
    (ZeRO 2 and 3 where they leave) go down after every micro-batch, up before all but the first.
    """
    update, host = rows.shapes.host_update, rows.problem.pool.host
    if update is None or host is None:
        return []
    exposed = offload_exposed(rows, stage_times(rows))[:, 0]
    kind = int(exposed.argmax())
    at = (rows.table.sharding.item(), 0, kind)
    once, adam_s = update.down_s[at].item(), update.adam_s[at].item()
    pieces, again = round(update.n_pieces[at].item()), 0
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
