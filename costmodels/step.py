"""Step time and peak memory of a table of plans."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import RECOMPUTES, modules_code
from costmodels.comm.data_parallel import DataParallelTimes, exposed_each_s, exposed_once_s
from costmodels.comm.tensor_parallel import tensor_parallel_group
from costmodels.layers.compute import ForwardBackward
from costmodels.layers.layer_kind import HOST_FORWARD_SHARE, ExpertLayerTerms, KindTerms
from costmodels.layers.layer_terms import LayerTable, LayerTerms, layer_table
from costmodels.layers.recompute import SetTerms
from costmodels.memory import in_flight_chunks, queue_is_full
from costmodels.modes import ModeTable
from costmodels.offload.activations import INPUTS_AT_ONCE, copy_bytes_per_s, waits
from costmodels.offload.modules import LAYERS_ON_THE_WAY, offloads_modules
from costmodels.offload.optimizer import COPY_BYTES, HostUpdate, gradients_leave, pipelined_s
from costmodels.plans import WHOLE, Layout, PlanBlock, PlanTable, ShapeTable
from costmodels.problem import Problem
from costmodels.schedule import pipeline, zero_bubble
from costmodels.shape_terms import ShapeTerms, boundary_hops, host_bytes, unsharded_terms

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]
FULL = RECOMPUTES.index("full")
CORE = modules_code(["core_attn"])


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds per micro-batch of each kind of rank, `(n_kinds, ...)`."""

    forward_s: Floats
    backward_s: Floats
    """With recomputation."""
    weight_grad_s: Floats | None = None
    """Part of the backward that can wait; None where no schedule splits it."""

    def kind(self, k: int) -> "StageTimes":
        """Return the times of one kind of rank."""
        weight_grad_s = None if self.weight_grad_s is None else self.weight_grad_s[k]
        return StageTimes(self.forward_s[k], self.backward_s[k], weight_grad_s)


@dataclass(frozen=True, slots=True)
class Scores:
    """What the ranking needs of each plan; arrays of the table's shape."""

    step_s: Floats
    """Closed-form step time."""
    peak_bytes: Floats
    """Memory of the rank that needs most."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Plans joined with their factored terms: what every formula of a plan starts from.

    The columns of a `PlanTable` are `(n,)`, those of a `PlanBlock` broadcast to (sharding,
    recompute, batch); every formula below is elementwise and holds for both. Arrays by kind of
    rank have the kinds first: `(n_kinds, ...)`.
    """

    problem: Problem
    table: PlanTable | PlanBlock
    shapes: ShapeTerms
    layers: LayerTerms
    index: NDArray[np.intp]
    """Position of each plan in `layers`."""
    sets: SetTerms
    """Terms of the sets of recomputed modules."""
    set_index: NDArray[np.intp]
    """Position of each plan in the flattened arrays of `sets`."""
    recomputed: Floats
    """Fully recomputed layers by kind of rank."""
    recomputed_others: Floats | None = None
    """Those of them of each other kind than the model's first, the kinds of layers first; None
    where all layers are of one kind."""


def join(
    problem: Problem,
    shapes: ShapeTerms,
    table: PlanTable | PlanBlock,
    layers: LayerTable | None = None,
) -> Rows:
    """Return `table` joined with the terms of its shapes and of its distinct layers.

    `layers` are those of `table.shapes` computed beforehand, for callers that join many tables.
    """
    if layers is None:
        modes = ModeTable.of_rows(table.modes)
        layers = layer_table(problem, table.shapes, table.mbs, table.recompute_modules, modes)
    index = layers.index(table.shape, table.mbs, table.modes)
    return join_at(problem, shapes, table, layers.terms, layers.sets, index)


def join_at(
    problem: Problem,
    shapes: ShapeTerms,
    table: PlanTable | PlanBlock,
    layers: LayerTerms,
    sets: SetTerms,
    index: NDArray[np.intp],
) -> Rows:
    """Return `table` joined with terms of its layers; `index` says where each plan has its own."""
    prefix = shapes.kinds.prefix
    k = np.where(table.recompute == FULL, table.recompute_layers, 0)
    recomputed, others = _of_depth(shapes.layers_again, table.shape, k), None
    if prefix is not None:
        others = np.array([_of_depth(of_kind, table.shape, k) for of_kind in prefix])
    of_sets = sets.index(table.recompute_modules, index)
    return Rows(problem, table, shapes, layers, index, sets, of_sets, recomputed, others)


def _by_rank(values: NDArray[Any], shape_idx: NDArray[Any]) -> Floats:
    """Return `values[at]` of an array `(n, n_kinds)` with the kinds first."""
    result: Floats = values.T.take(shape_idx, axis=1)
    return result


def _of_depth(values: Floats, shape_idx: Ints, k: Ints) -> Floats:
    """Return what `(n_shapes, n_kinds, 1 + most layers)` says of k layers a chunk, kinds first."""
    n_kinds, n_depths = values.shape[1:]
    position = shape_idx.astype(np.intp) * (n_kinds * n_depths) + np.minimum(k, n_depths - 1)
    kinds = np.arange(n_kinds).reshape(-1, *(1,) * position.ndim) * n_depths
    return np.asarray(values.reshape(-1).take(position + kinds))


def _greatest(by_kind: Floats) -> Floats:
    """Return the maximum over kinds of rank."""
    best: Floats = by_kind[0]
    for one in by_kind[1:]:
        best = np.maximum(best, one)
    return best


def _total(by_kind: Floats) -> Floats:
    """Return the sum over kinds of rank."""
    total: Floats = by_kind[0]
    for one in by_kind[1:]:
        total = total + one
    return total


STALLED_COLLECTIVES = 8
"""Tensor-parallel collectives of one layer: eight all-gathers and reduce-scatters, or four
all-reduces that count twice."""


def stalled(rows: Rows) -> ForwardBackward:
    """Return what one layer takes longer while pipeline messages wait for another node, `(n,)`.

    max(0, H + 8 (t + 2 k) stalled_hop - layer) where the stack's messages block, tp > 1 and the
    pipeline leaves the scale-up domain, H the launch time of the layer; with experts the layer is
    an expert layer. Eight collectives a layer, each held up once and at its t - 1 ring steps; of a
    group over k > 1 domains also at its k crossings, before and after (k = 0 inside one).
    Source: published sweeps of nanotron, whose layers take 8 to 9, 12 to 14, 17 to 21 and 38 to
    46 ms at tp 2, 4, 8 and 16 on nodes of eight whatever the micro-batch, but only then.
    """
    stack, shape_idx, layer = rows.problem.stack, rows.table.shape, rows.layers.layer
    if rows.layers.experts:
        layer = rows.layers.experts.layer
    tp = rows.table.shapes.tp[shape_idx]
    held_up = (tp > 1) & (rows.shapes.pipeline_group.n_domains[shape_idx] > 1)
    over = tensor_parallel_group(rows.problem, tp).n_domains
    steps = tp + np.where(over > 1, 2.0 * over, 0.0)
    least = stack.host_s_per_layer + STALLED_COLLECTIVES * steps * stack.stalled_hop_s
    missing = np.where(held_up, np.maximum(0.0, least - layer.total_s[rows.index]), 0.0)
    if not stack.blocking_p2p:
        missing = np.zeros_like(missing)
    return ForwardBackward(HOST_FORWARD_SHARE * missing, (1.0 - HOST_FORWARD_SHARE) * missing)


def _plain_stage_times(rows: Rows) -> tuple[Floats, Floats]:
    """Return forward and backward of each kind of rank without recomputation, seconds."""
    layers, index = rows.layers, rows.index
    kinds, shape_idx = rows.shapes.kinds, rows.table.shape
    first, last = _by_rank(kinds.has_embedding, shape_idx), _by_rank(kinds.has_head, shape_idx)
    n_layers = _by_rank(kinds.layers, shape_idx)

    def ends(direction: str) -> Floats:
        embedding, head = (
            getattr(x, direction)[index] for x in (layers.before_layers, layers.head)
        )
        return np.asarray(first * embedding + last * head)

    forward = n_layers * layers.layer.forward_s[index] + ends("forward_s")
    backward = n_layers * layers.layer.backward_s[index] + ends("backward_s")
    for count, more in _other_layers(rows):
        forward = forward + count * more.forward_s[index]
        backward = backward + count * more.backward_s[index]
    if rows.problem.stack.blocking_p2p:
        stall = stalled(rows)
        forward, backward = (
            forward + n_layers * stall.forward_s,
            backward + n_layers * stall.backward_s,
        )
    return forward, backward


def stage_times(rows: Rows) -> StageTimes:
    """Return forward and backward time of each kind of rank, seconds per micro-batch.

    t_r = layers_r * layer + embedding (first) + head (last); the backward adds a forward for
    every recomputed layer. Dense and expert layers count apart.
    """
    table, layers, index = rows.table, rows.layers, rows.index
    forward, backward = _plain_stage_times(rows)
    kinds = rows.shapes.kinds
    n_layers, last = _by_rank(kinds.layers, table.shape), _by_rank(kinds.has_head, table.shape)
    backward = backward + rows.recomputed * layers.recompute_full_s[index]
    for count, again_s in _other_layers_again(rows):
        backward = backward + count * again_s[index]
    if len(rows.sets.codes) > 1:
        backward = backward + _modules_again_s(rows, n_layers, last)
    if rows.table.activation_offload_layers.any():
        more = activation_waits(rows)
        forward, backward = forward + more.forward_s, backward + more.backward_s
    if np.any(table.schedule == zero_bubble.DUALPIPE):
        # Each stage held both ways runs every second micro-batch.
        share = np.where(table.schedule == zero_bubble.DUALPIPE, 0.5, 1.0)
        forward, backward = share * forward, share * backward
    weight_grad_s = weight_grad_times(rows) if splits_backward(rows).any() else None
    return StageTimes(forward, backward, weight_grad_s)


def _modules_again_s(rows: Rows, n_layers: Floats, last: Floats) -> Floats:
    """Return what selective recomputation adds to a backward, by kind of rank.

    `n_layers` layers, and on the last stage those of multi-token prediction, which are like the
    last layer of the model.
    """
    sets, set_idx, shape = rows.sets, rows.set_index, rows.problem.shape
    layers = n_layers + last * shape.mtp_layers if shape.mtp_layers else n_layers
    again_s = layers * sets.again_s.take(set_idx)
    for i, (count, more_s) in enumerate(
        zip(_of_other_kinds(rows), sets.other_again_s, strict=True), start=1
    ):
        if shape.mtp_layers and shape.layer_sequence[-1] == i:
            count = count + last * shape.mtp_layers
        again_s = again_s + count * more_s.take(set_idx)
    return np.asarray(again_s)


@dataclass(frozen=True, slots=True)
class _OffloadedLayers:
    """Layers whose stored activations lie on the host, by kind of rank."""

    stored: Floats
    """Those with all that they keep."""
    others: tuple[Floats, ...]
    """Those of them of each other kind than the model's first."""
    inputs: Floats
    """Those of which only the input is kept: they are recomputed."""


def _offloaded_layers(rows: Rows) -> _OffloadedLayers:
    """Return what of each plan lies on the host; one micro-batch of a rank with all layers."""
    table, kinds = rows.table, rows.shapes.kinds
    n, full = table.activation_offload_layers, table.recompute == FULL
    first = np.where(full, 0, n)
    total = np.minimum(_by_rank(kinds.layers, table.shape), first)
    inputs = np.where(full & (n > 0), rows.recomputed, 0.0)
    others: tuple[Floats, ...] = ()
    if kinds.prefix is not None:
        others = tuple(_of_depth(prefix, table.shape, first) for prefix in kinds.prefix)
    return _OffloadedLayers(total, others, inputs)


def offloaded_activation_bytes(rows: Rows) -> Floats:
    """Return what a micro-batch of each kind of rank has on the host, bytes.

    n k, k what a layer keeps, for the first n layers where nothing is recomputed; the inputs of
    the recomputed layers with full recomputation.
    """
    offloaded = _offloaded_layers(rows)
    layer_bytes = rows.sets.kept_bytes.take(rows.set_index)
    value = (
        offloaded.stored * layer_bytes
        + offloaded.inputs * rows.layers.checkpoint_bytes[rows.index]
    )
    for count, more in zip(offloaded.others, rows.sets.other_kept_bytes, strict=True):
        value = value + count * more.take(rows.set_index)
    return np.asarray(value)


def activation_waits(rows: Rows) -> ForwardBackward:
    """Return what a micro-batch waits for copies of activations, by kind of rank, seconds."""
    host, layers, index = rows.problem.pool.host, rows.layers, rows.index
    if host is None:  # refused (OFF001), and priced as if it were free where somebody insists
        nothing = np.zeros(np.broadcast(index, rows.table.activation_offload_layers).shape)[None]
        return ForwardBackward(nothing, nothing)
    n_layers = _by_rank(rows.shapes.kinds.layers, rows.table.shape)
    forward = n_layers * layers.layer.forward_s[index]
    backward = n_layers * layers.layer.backward_s[index]
    backward = backward + rows.recomputed * layers.recompute_full_s[index]
    for count, more in _other_layers(rows):
        forward = forward + count * more.forward_s[index]
        backward = backward + count * more.backward_s[index]
    for count, again_s in _other_layers_again(rows):
        backward = backward + count * again_s[index]
    copy = offloaded_activation_bytes(rows) / copy_bytes_per_s(host)
    result = waits(rows.problem.stack, copy, forward, backward, n_layers)
    off = rows.table.activation_offload_layers == 0
    return ForwardBackward(
        np.where(off, 0.0, result.forward_s), np.where(off, 0.0, result.backward_s)
    )


def sends_activations(table: PlanTable | PlanBlock) -> bool:
    """Tell whether some plan of a table has activations on the host."""
    return bool(table.activation_offload_layers.any() or offloads_modules(table.modes))


def needed_host_bytes(rows: Rows) -> Floats:
    """Return what a device of each plan has on the host, bytes: its optimizer and activations."""
    of_optimizer = host_bytes(rows.problem, rows.table.shapes, rows.table.shardings)
    result = _of_sharding(of_optimizer, _sharding_and_shape(rows))
    if rows.table.activation_offload_layers.any():
        result = np.asarray(result + _greatest(offloaded_activation_bytes(rows)))
    if offloads_modules(rows.table.modes):
        chunks, chunks_of_batch = _chunks_in_flight(rows)
        offloaded = copied_module_bytes(rows) * (chunks / chunks_of_batch)
        result = np.asarray(result + _greatest(offloaded))
    return result


def copied_module_bytes(rows: Rows) -> Floats:
    """Return what the offloaded modules of a micro-batch have on the host by kind of rank, bytes.

    n a + (layers of each other kind) (a_kind - a), a `ModuleCopies.copied_bytes` of a layer, those
    of modules of multi-token prediction as of the model's last layer.
    """
    layers, index, shape = rows.layers, rows.index, rows.problem.shape
    one = layers.away.copied_bytes[index]
    value = _by_rank(rows.shapes.kinds.layers, rows.table.shape) * one
    for count, other in zip(_of_other_kinds(rows), layers.others, strict=True):
        value = value + count * (other.away.copied_bytes - layers.away.copied_bytes)[index]
    if shape.mtp_layers:
        last = layers.of_kinds[shape.layer_sequence[-1]].away.copied_bytes[index]
        has_head = _by_rank(rows.shapes.kinds.has_head, rows.table.shape)
        value = value + has_head * shape.mtp_layers * last
    return np.asarray(value)


def modules_on_the_way(rows: Rows, in_flight: Floats) -> Floats:
    """Return what offloaded modules have on the device all the same, by kind of rank, bytes.

    min(2, layers in flight) of the layer that sends most.
    """
    layers, shape = rows.layers, rows.problem.shape
    of_kinds = layers.of_kinds[0 if shape.kind_counts[0] else 1 :]
    layer_bytes = of_kinds[0].away.freed_bytes
    for other in of_kinds[1:]:
        layer_bytes = np.maximum(layer_bytes, other.away.freed_bytes)
    n_layers = _by_rank(rows.shapes.kinds.layers, rows.table.shape)
    if shape.mtp_layers:
        n_layers = (
            n_layers + _by_rank(rows.shapes.kinds.has_head, rows.table.shape) * shape.mtp_layers
        )
    return np.asarray(
        np.minimum(LAYERS_ON_THE_WAY, n_layers * in_flight) * layer_bytes[rows.index]
    )


def _of_other_kinds(rows: Rows) -> list[Floats]:
    """Return the layers of each other kind than the model's first, by kind of rank."""
    counts, shape_idx = rows.shapes.kinds.of_other_kinds, rows.table.shape
    if counts is None:  # none of the stages, as of a table without shapes, has them
        return [0.0 * _by_rank(rows.shapes.kinds.layers, shape_idx)] * len(rows.layers.others)
    return [_by_rank(count, shape_idx) for count in counts]


def _other_layers(rows: Rows) -> Iterator[tuple[Floats, ForwardBackward]]:
    """Yield the layers of each other kind, and what one takes beyond one of the first kind."""
    first = rows.layers.layer
    for count, terms in zip(_of_other_kinds(rows), rows.layers.others, strict=True):
        more = ForwardBackward(
            terms.layer.forward_s - first.forward_s, terms.layer.backward_s - first.backward_s
        )
        yield count, more


def _other_layers_again(rows: Rows) -> Iterator[tuple[Floats, Floats]]:
    """Yield the recomputed layers of each other kind, and what one takes beyond the first kind."""
    if rows.recomputed_others is not None:
        for count, terms in zip(rows.recomputed_others, rows.layers.others, strict=True):
            yield count, terms.recompute_full_s - rows.layers.recompute_full_s


def weight_grad_times(rows: Rows) -> Floats:
    """Return the part of each kind of rank's backward that can wait, seconds.

    W_r = sum over kinds of layers n w + the head's on the last rank.
    """
    kinds, shape_idx, layers = rows.shapes.kinds, rows.table.shape, rows.layers
    share = np.where(rows.table.schedule == zero_bubble.DUALPIPE, 0.5, 1.0)
    layer = _by_rank(kinds.layers, shape_idx) * layers.weight_grad_s[rows.index]
    for count, other in zip(_of_other_kinds(rows), layers.others, strict=True):
        layer = layer + count * (other.weight_grad_s - layers.weight_grad_s)[rows.index]
    head = _by_rank(kinds.has_head, shape_idx) * layers.head_weight_grad_s[rows.index]
    return np.asarray(share * (layer + head))


def splits_backward(rows: Rows) -> NDArray[np.bool_]:
    """Tell which plans run weight gradients apart."""
    return rows.table.schedule >= zero_bubble.FIRST_CODE


def boundary_hops_s(rows: Rows, layout: Layout, row: int = 0) -> list[float]:
    """Return the time of one message over each boundary, `(pp,)`, the last back to rank 0."""
    latency, per_byte = _boundary_hops(rows, layout)
    size = rows.layers.message_bytes[rows.index[row]]
    hops: list[float] = (latency + size * per_byte).tolist()
    return hops


def boundary_hops_columns(rows: Rows, layout: Layout) -> list[list[float]]:
    """Return the same for a table of which every row is `layout`, `(n, pp)`."""
    latency, per_byte = _boundary_hops(rows, layout)
    size = rows.layers.message_bytes[rows.index][:, None]
    hops: list[list[float]] = (latency + size * per_byte).tolist()
    return hops


def _boundary_hops(rows: Rows, layout: Layout) -> tuple[Floats, Floats]:
    blocks = layout.dp if layout.pipelines_inside else 1
    return boundary_hops(rows.problem, layout.stage_stride, layout.pp, blocks, layout.tp)


def _sharding_and_shape(rows: Rows) -> NDArray[np.intp]:
    """Return the position of each plan's (sharding, shape) in arrays by both."""
    n_shapes = len(rows.table.shapes)
    return rows.table.sharding.astype(np.intp) * n_shapes + rows.table.shape


def _of_sharding(values: Floats, position: NDArray[np.intp]) -> Floats:
    """Return the entries of an array `(n_shardings, n_shapes)` at `_sharding_and_shape`."""
    return values.reshape(-1).take(position)


def _by_sharding(values: Floats, position: NDArray[np.intp]) -> Floats:
    """Return the entries of an array `(n_shardings, n_shapes, n_kinds)`, the kinds first."""
    return _by_rank(values.reshape(-1, values.shape[-1]), position)


def hop_s(rows: Rows) -> Floats:
    """Return the time of one message as the closed form takes it, seconds.

    Over the slowest boundary (1F1B) or the mean of all (interleaved), see `shape_terms`.
    """
    shape_idx, terms = rows.table.shape, rows.shapes
    size = rows.layers.message_bytes[rows.index]
    return np.asarray(terms.hop_latency_s[shape_idx] + size * terms.hop_s_per_byte[shape_idx])


def data_parallel_exposed(rows: Rows, times: StageTimes) -> tuple[Floats, Floats]:
    """Return (exposed, hidden) data-parallel time of a step by kind of rank, seconds."""
    exposed, total = _data_parallel(rows, times, wire_times(rows))
    return exposed, np.maximum(0.0, total - exposed)


def _data_parallel(
    rows: Rows, times: StageTimes, wire: DataParallelTimes
) -> tuple[Floats, Floats]:
    """Return (exposed, whole) data-parallel time of a step by kind of rank, seconds.

    ZeRO 0 and 1 move once per step: the reduction beside the last backward, the gather beside
    the first forward, as far as the stack overlaps them. ZeRO 2 reduces and ZeRO 3 also gathers
    (twice) per micro-batch; ZeRO 2 gathers once, like ZeRO 1. With a second copy of the weights
    (hpZ) the first forward of a step gathers over all ranks and fills it, and the other 2 m - 1
    gathers run inside its group, until the update makes it stale. Source: DeepSpeed runtime/zero/
    partition_parameters.py (all_gather_coalesced), stage3.py (_post_step). Routed experts move
    over their own group, one after the other with the rest. Nothing is hidden with `dp_blocking`.
    """
    exposed, total = _overlapped_data_parallel(rows, times, wire)
    blocking = rows.table.shardings.dp_blocking
    if blocking.any():
        exposed = np.where(blocking[rows.table.sharding] > 0, total, exposed)
    return exposed, total


def _overlapped_data_parallel(
    rows: Rows, times: StageTimes, wire: DataParallelTimes
) -> tuple[Floats, Floats]:
    """Return (exposed, whole) as far as the stack overlaps the traffic."""
    zero, often = rows.table.zero, rows.table.zero >= 2
    units = bool(rows.problem.stack.sharded_units)
    if units:  # FSDP2 reduces every micro-batch but in a pipeline
        often = often | (rows.table.shapes.pp[rows.table.shape] == 1)
    total = wire.reduce_s + wire.gather_s
    if not often.any():
        exposed = exposed_reduce_once(rows, times, wire)
        exposed = np.add(exposed, exposed_gather_once(rows, times, wire), out=exposed)
        return exposed, total
    m, stack = rows.table.n_micro, rows.problem.stack
    near = wire.gather_s if wire.again_s is None else wire.again_s
    behind = np.where(zero >= 3, near, 0.0) + wire.reduce_s
    ahead, after, once = wire.gather_s, behind, wire.gather_s
    later = near
    if stack.zero3_traffic == "prefetched":
        ahead = exposed_each_s(ahead, wire.gather_piece_s, times.forward_s)
        after = exposed_each_s(behind, wire.reduce_piece_s, times.backward_s)
        if wire.again_piece_s is not None:
            later = exposed_each_s(near, wire.again_piece_s, times.forward_s)
        if stack.zero1_overlap == "both":
            once = exposed_gather_once(rows, times, wire)
    if wire.again_s is None:
        gathers, all_ahead = np.where(zero >= 3, m, 1) * wire.gather_s, m * ahead
    else:
        gathers = wire.gather_s + np.where(zero >= 3, m - 1, 0) * near
        all_ahead = ahead + (m - 1) * later
    if units:
        gathers = np.where(zero >= 2, m, 1) * wire.gather_s
        all_ahead, once = m * ahead, np.where(zero == 2, m * ahead, once)
    exposed = m * after + np.where(zero >= 3, all_ahead, once)
    total_often = m * behind + gathers
    if not often.all():
        seldom = exposed_gather_once(rows, times, wire)
        seldom = seldom + exposed_reduce_once(rows, times, wire)
        exposed = np.where(often, exposed, seldom)
    return exposed, np.where(often, total_often, total)


def wire_times(rows: Rows) -> DataParallelTimes:
    """Return the wire times of one pass over a rank's parameters, by kind of rank."""
    position, wire = _sharding_and_shape(rows), rows.shapes.data_parallel
    names = ("reduce_s", "reduce_piece_s", "gather_s", "gather_piece_s")
    reduce, reduce_piece, gather, gather_piece = (
        _by_sharding(getattr(wire, x), position) for x in names
    )
    if rows.shapes.experts:
        # One wire for both groups; the last piece is that of the embedding or of an expert layer.
        more = rows.shapes.experts.data_parallel
        reduce, gather = (
            reduce + _by_sharding(more.reduce_s, position),
            gather + _by_sharding(more.gather_s, position),
        )
        reduce_piece = np.maximum(reduce_piece, _by_sharding(more.reduce_piece_s, position))
        gather_piece = np.maximum(gather_piece, _by_sharding(more.gather_piece_s, position))
    data_parallel_times = DataParallelTimes(reduce, reduce_piece, gather, gather_piece)
    if wire.again_s is None or wire.again_piece_s is None:
        return data_parallel_times
    recomputed, piece = (
        _by_sharding(wire.again_s, position),
        _by_sharding(wire.again_piece_s, position),
    )
    if rows.shapes.experts:
        more = rows.shapes.experts.data_parallel
        assert more.again_s is not None  # they come with those of the rest
        assert more.again_piece_s is not None
        recomputed = recomputed + _by_sharding(more.again_s, position)
        piece = np.maximum(piece, _by_sharding(more.again_piece_s, position))
    return replace(data_parallel_times, again_s=recomputed, again_piece_s=piece)


def _pp_vpp(rows: Rows) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    shapes, shape_idx = rows.table.shapes, rows.table.shape
    return shapes.pp[shape_idx], shapes.vpp[shape_idx]


def exposed_reduce_once(rows: Rows, times: StageTimes, wire: DataParallelTimes) -> Floats:
    """Return what a reduction once per step exposes beside the last backward."""
    table, stack = rows.table, rows.problem.stack
    exposed = exposed_once_s(wire.reduce_s, wire.reduce_piece_s, *_last_backward(rows, times))
    for level, overlap in ((0, stack.dp_overlap), (1, stack.zero1_overlap)):
        if overlap == "none" and np.any(table.zero == level):
            exposed = np.where(table.zero == level, wire.reduce_s, exposed)
    return exposed


def _last_backward(
    rows: Rows, times: StageTimes
) -> tuple[Floats, NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Return window, pp, chunks and micro-batches of what runs beside the last backward."""
    pp, chunks = _pp_vpp(rows)
    is_split, window = splits_backward(rows), times.backward_s
    if times.weight_grad_s is not None:
        # Gradients are whole when the last weight gradients are, all chunks together.
        window = np.where(is_split, times.weight_grad_s, window)
        chunks = np.where(is_split, 1, chunks)
    return window, pp, chunks, rows.table.n_micro


def offload_exposed(rows: Rows, times: StageTimes) -> Floats:
    """Return what an optimizer on the host adds to a step by kind of rank, seconds.

    `pipelined_s`; or, where gradients leave during the backward, what that exposes of their way
    down, then Adam, then the way up. Up to ZeRO 1 they leave once a step; from ZeRO 2 on after
    every micro-batch, and are added up on the device: from the second on they come up before.
    Source: DeepSpeed runtime/zero/stage_1_and_2.py (async_accumulate_grad_in_cpu_via_gpu) and
    stage3.py (partition_grads). Left out: slowdown of compute beside the copies.
    """
    result, position = rows.shapes.host_update, _sharding_and_shape(rows)
    if result is None:
        return np.zeros((1,) * (1 + np.ndim(position)))
    update = HostUpdate(
        *(
            _by_sharding(getattr(result, x), position)
            for x in ("down_s", "adam_s", "up_s", "n_pieces")
        )
    )
    if gradients_leave(rows.problem.stack):
        piece = update.down_s / update.n_pieces
        wait = exposed_once_s(update.down_s, piece, *_last_backward(rows, times))
        often = rows.table.zero >= 2
        if np.any(often):
            wait = np.where(often, _exposed_sums(rows, times, update), wait)
        added = wait + update.adam_s + update.up_s
    else:
        added = pipelined_s(update)
    return np.asarray(np.where(_offloaded(rows), added, 0.0))


def _offloaded(rows: Rows) -> Bools:
    """Tell which plans have the optimizer on the host."""
    return np.asarray(rows.table.shardings.optimizer_offload[rows.table.sharding] > 0)


def _exposed_sums(rows: Rows, times: StageTimes, update: HostUpdate) -> Floats:
    """Return what gradients that are summed up on the host expose over all micro-batches.

    s = min(4, G) bytes a parameter: s down after the first, s up and s down after the others, 4
    down after the last.
    """
    m, share = rows.table.n_micro, min(1.0, rows.problem.job.recipe.grad_bytes / COPY_BYTES)
    down, piece = update.down_s, update.down_s / update.n_pieces
    one = share * down

    def exposed(sent_s: Floats) -> Floats:
        return exposed_each_s(sent_s, piece, times.backward_s)

    several = exposed(one) + (m - 2) * exposed(2 * one) + exposed(one + down)
    return np.asarray(np.where(m > 1, several, exposed(down)))


def exposed_gather_once(rows: Rows, times: StageTimes, wire: DataParallelTimes) -> Floats:
    """Return what a gather once per step exposes beside the first forward."""
    table, stack = rows.table, rows.problem.stack
    args = (wire.gather_s, wire.gather_piece_s, times.forward_s, *_pp_vpp(rows), table.n_micro)
    exposed = exposed_once_s(*args)
    for level, overlap in ((0, stack.dp_overlap), (1, stack.zero1_overlap)):
        if overlap != "both" and np.any(table.zero == level):
            exposed = np.where(table.zero == level, wire.gather_s, exposed)
    return exposed


def straggler_factor(problem: Problem, n_devices: int) -> float:
    """Return the growth of the step because the slowest of many nodes decides.

    S = 1 + sigma Phi^-1( (n - 3/8) / (n + 1/4) ), n nodes: the expected maximum of n Gaussian
    step times of relative spread sigma. With sigma = 2 % it gives 1.2, 2.9, 4.7 and 5.2 % for 2,
    8, 64 and 128 nodes; a fit over measured runs of up to 128 nodes grows by 0.9 % per doubling.
    Source: Blom 1958 (expected order statistics). Left out: failing nodes, network jitter.
    """
    nodes = max(1.0, n_devices / problem.pool.devices_per_node)
    if nodes <= 1.0:
        return 1.0
    expected = NormalDist().inv_cdf((nodes - 0.375) / (nodes + 0.25))
    return 1.0 + problem.stack.node_spread * expected


def flush_times(rows: Rows, times: StageTimes) -> Floats:
    """Return the closed-form pipeline time with its point-to-point part, seconds."""
    table, shape_idx = rows.table, rows.table.shape
    both = times.forward_s + times.backward_s
    slowest = _greatest(both)
    all_ranks = _total(_by_rank(rows.shapes.kinds.n_ranks, shape_idx) * both)
    m, (pp, vpp) = table.n_micro, _pp_vpp(rows)
    flush = pipeline.compute_s(slowest, all_ranks, vpp, m)
    if splits_backward(rows).any():
        split = m * slowest + _zero_bubble_s(rows, times)
        flush = np.where(splits_backward(rows), split, flush)
    return np.asarray(flush + pipeline.p2p_s(table.schedule, pp, vpp, m, hop_s(rows)))


def least_flush_times(rows: Rows, times: StageTimes) -> Floats:
    """Return a lower bound of the time that the exact recurrence gives, seconds.

    T >= max_r ( m t_r + r c ),  t_r forward plus backward of rank r

    c is what every virtual stage takes at least for a forward and a backward: rank r starts when a
    micro-batch has come forward through r of them, and after its last block a gradient goes back
    through the same. Schedules that split the backward or fold the pipeline start and end
    elsewhere: r c is left out. Left out too: messages, recomputation in c, all other idle time.
    """
    table, kinds, shape_idx = rows.table, rows.shapes.kinds, rows.table.shape
    layer = rows.layers.layer.total_s
    for other in rows.layers.others:
        layer = np.minimum(layer, other.layer.total_s)
    least_layers = np.where(kinds.chunk_counts > 0, kinds.chunk_layers, np.inf).min(axis=(1, 2))
    passed = np.where(splits_backward(rows), 0.0, least_layers[shape_idx] * layer[rows.index])
    busy = table.n_micro * (times.forward_s + times.backward_s)
    return _greatest(busy + _by_rank(kinds.rank.astype(np.float64), shape_idx) * passed)


def _zero_bubble_s(rows: Rows, times: StageTimes) -> Floats:
    """Return the closed-form idle time of schedules that split the backward, seconds.

    `zero_bubble.bubble_s` with the mean times of the ranks besides the slowest.
    """
    table, shape_idx = rows.table, rows.table.shape
    pp, n_ranks = table.shapes.pp[shape_idx], _by_rank(rows.shapes.kinds.n_ranks, shape_idx)
    weight_grad_s = times.weight_grad_s
    assert weight_grad_s is not None  # some schedule splits the backward
    slowest = (times.forward_s + times.backward_s).argmax(axis=0)[None]

    def others(by_kind: Floats) -> Floats:
        full = np.broadcast_to(by_kind, (len(by_kind), *slowest.shape[1:]))
        own = np.take_along_axis(full, slowest, axis=0)[0]
        return np.asarray((_total(n_ranks * full) - own) / np.maximum(pp - 1, 1))

    parts = (
        others(times.forward_s),
        others(times.backward_s - weight_grad_s),
        others(weight_grad_s),
    )
    return zero_bubble.bubble_s(table.schedule, pp, table.n_micro, *parts)


def step_times(rows: Rows, times: StageTimes | None = None) -> Floats:
    """Return the closed-form step time of each plan, seconds.

    T = S [ pipeline + p2p ] + exposed dp (+ slowdown of compute beside the hidden part)
      + tied-embedding sum + optimizer + offload + fixed

    `times` are the `stage_times` of the rows, if they are known.
    """
    times = times or stage_times(rows)
    return flush_times(rows, times) * _straggle(rows) + outside_pipeline(rows, times)


@dataclass(frozen=True, slots=True)
class StepParts:
    """The step time of each plan in parts, seconds: the pipeline's part without the sharding."""

    flush_s: Floats
    """The pipeline by its closed form, point-to-point messages and stragglers included."""
    least_flush_s: Floats
    """A lower bound of the same by the exact recurrence."""
    outside_s: Floats
    """All else; the step is the sum."""


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """What the step takes in the pipeline, which no sharding changes, seconds."""

    times: StageTimes
    flush_s: Floats
    """As in `StepParts`."""
    least_flush_s: Floats


def pipeline_parts(rows: Rows) -> PipelineParts:
    """Return the part of `step_parts` that is cheap in blocks: it has no axis of shardings."""
    times, straggle = stage_times(rows), _straggle(rows)
    flush_s = flush_times(rows, times) * straggle
    return PipelineParts(times, flush_s, least_flush_times(rows, times) * straggle)


def step_parts(rows: Rows, parts: PipelineParts | None = None) -> StepParts:
    """Return the parts of `step_times`, and the lower bound of what is exact.

    `parts` are the `pipeline_parts` of the rows, if they are.
    """
    result = parts or pipeline_parts(rows)
    outside_s = outside_pipeline(rows, result.times)
    return StepParts(result.flush_s, result.least_flush_s, outside_s)


def least_batch_times(
    problem: Problem,
    shapes: ShapeTable,
    layers: LayerTable,
    mbs: Ints,
    wanted: Bools | None = None,
) -> Floats:
    """Return what every plan of a shape, micro-batch and mode takes at least, seconds.

    `(n_shapes, n_mbs, n_modes)`: `least_flush_times` without recomputation, and the fixed time.
    All that sharding and recomputation add is left out, so it bounds every plan of the batch.
    Of those that are `wanted`, `(n_shapes, n_mbs, n_modes)`; inf elsewhere.
    """
    size = len(shapes), len(mbs), len(layers.modes)
    if wanted is None:
        wanted = np.ones(size, dtype=bool)
    shape_idx, mbs_idx, mode = (x.astype(np.int32) for x in np.nonzero(wanted))
    result = np.full(size, np.inf)
    if not len(mode):
        return result
    nothing, modes = np.zeros_like(shape_idx), layers.modes.rows(mode)
    unsharded = WHOLE.take([0])
    columns = (shape_idx, mbs[mbs_idx], nothing, modes.sp, nothing, nothing, nothing, nothing)
    switches = (modes.switch, modes.switches)
    table = PlanTable(shapes, unsharded, problem.job.global_batch, *columns, *switches)
    rows = join(problem, unsharded_terms(problem, shapes), table, layers)
    least = least_flush_times(rows, stage_times(rows)) * _straggle(rows)
    result[wanted] = least + problem.stack.fixed_step_s
    return result


def outside_pipeline(rows: Rows, times: StageTimes) -> Floats:
    """Return the part of a step outside the pipeline: data parallel, optimizer, fixed; seconds."""
    shape_idx, stack = rows.table.shape, rows.problem.stack
    wire, data = wire_times(rows), None
    slow = stack.overlap_slowdown
    for k in range(len(times.forward_s)):  # one after the other, so that all stay in the cache
        exposed, total = _data_parallel(rows, times.kind(k), wire.kind(k))
        # Compute beside the hidden rest, total - exposed, is slowed down.
        exposed *= 1.0 - slow
        exposed += slow * total
        data = exposed if data is None else np.maximum(data, exposed, out=data)
    assert data is not None  # there is a rank
    once = _of_sharding(rows.shapes.optimizer_s, _sharding_and_shape(rows))
    once = once + rows.shapes.embedding_sync_s[shape_idx]
    if table_overlaps_experts(rows):
        once = once + overlap_fill_s(rows)
    if rows.shapes.host_update is not None and _offloaded(rows).any():
        once = once + _greatest(offload_exposed(rows, times))
    return np.asarray(data + once + stack.fixed_step_s)


def table_overlaps_experts(rows: Rows) -> bool:
    """Tell whether some plan hides the exchange of tokens beside another micro-batch."""
    return rows.layers.experts is not None and rows.table.modes.uses("ep_overlap")


def overlap_fill_s(rows: Rows) -> Floats:
    """Return what a step takes more as nothing hides the exchange at its ends, seconds.

    n_e x f, n_e expert layers of the model and its modules of multi-token prediction, f what one
    takes more alone than beside another micro-batch, forward and backward (summed over the kinds
    of such layers): the first forward and the last backward of every virtual stage run alone, and
    in a pipeline those of all stages follow one another. With one stage this is exact (m + 1
    phases, the first and the last alone).
    """
    shape = rows.problem.shape
    counts = list(shape.kind_counts)
    counts[shape.layer_sequence[-1]] += shape.mtp_layers
    kinds = zip(rows.layers.of_kinds, counts, strict=True)
    each = [n * x.fill_s[rows.index] for x, n in kinds if isinstance(x, ExpertLayerTerms)]
    return np.asarray(reduce(np.add, each))


def _straggle(rows: Rows) -> float:
    return straggler_factor(rows.problem, rows.table.shapes.n_devices)


@dataclass(frozen=True, slots=True)
class _Phases:
    """What moments of a step hold beside states, activations, logits and temporaries, bytes."""

    head: Floats
    ring: Floats
    ring_logits: Floats
    """What comes to `ring`; ZeRO does not change it."""
    backward: Floats


@dataclass(frozen=True, slots=True)
class _Memory:
    """Memory by term and kind of rank, bytes; what ZeRO changes apart from what it does not."""

    states: Floats
    activations: Floats
    logits: Floats
    passing: Floats
    """Temporaries of one layer's backward beyond the logits, scratch and messages."""
    zero_units: Floats
    """Unsharded units of ZeRO 2 and 3."""
    overhead: Floats
    frozen: Floats | None = None
    """Weights of a vision tower that are not trained, whole on every device of the first stage."""
    phases: _Phases | None = None
    """Of a step that a compiler lays out; then the peak is no sum (`costmodels.phases`)."""

    @property
    def working(self) -> Floats:
        """What the peak holds beside the other terms."""
        if self.phases is None:
            return self.passing + self.zero_units
        head = np.maximum(self.phases.head, self.phases.ring + self.phases.ring_logits)
        return np.maximum(head, self.phases.backward + self.passing - self.logits)


def _chunks_in_flight(rows: Rows) -> tuple[Floats, Floats]:
    """Return the chunks that each kind of rank holds at its peak, and those of a micro-batch."""
    table, (pp, vpp) = rows.table, _pp_vpp(rows)
    rank = _by_rank(rows.shapes.kinds.rank, table.shape)
    chunks = in_flight_chunks(table.schedule, rank, pp, vpp, table.n_micro)
    if table_overlaps_experts(rows):
        # Combined 1F1B runs one more forward before the first backward (get_pp_rank_microbatches).
        combined = table.modes.have("ep_overlap", "1f1b")
        one_more = np.minimum(chunks + 1.0, table.n_micro * vpp)
        chunks = np.where(combined & (pp > 1), one_more, chunks)
    return chunks, np.where(table.schedule == zero_bubble.DUALPIPE, 2, vpp)


def _memory(rows: Rows) -> _Memory:
    table, shape_idx, layers, terms = rows.table, rows.table.shape, rows.layers, rows.shapes
    kinds, index = terms.kinds, rows.index
    pp, _ = _pp_vpp(rows)
    chunks, chunks_of_batch = _chunks_in_flight(rows)
    beside = table_overlaps_experts(rows)
    in_flight = chunks / chunks_of_batch
    layer_bytes = rows.sets.kept_bytes.take(rows.set_index)
    total, inputs = _by_rank(kinds.layers, shape_idx) - rows.recomputed, rows.recomputed
    offloaded = _offloaded_layers(rows) if table.activation_offload_layers.any() else None
    if offloaded:
        total = total - offloaded.stored
        inputs = inputs - offloaded.inputs + np.minimum(offloaded.inputs, INPUTS_AT_ONCE)
    if kinds.passing is not None:
        inputs = inputs + _by_rank(kinds.passing, shape_idx)
    activations = np.asarray(inputs * layers.checkpoint_bytes[index] + total * layer_bytes)
    activations *= in_flight
    others = list(_other_resident_layers(rows, offloaded))
    for resident, more in others:
        activations = activations + in_flight * np.asarray(resident * more)
    if splits_backward(rows).any():
        deferred = _late_activations(rows, total, layer_bytes, others)
        activations = np.maximum(activations, deferred)
    if kinds.unequal is not None:
        _add_unequal_chunks(rows, activations)
    if rows.problem.shape.mtp_layers:
        kept_module, last_kind = layer_bytes, rows.problem.shape.layer_sequence[-1]
        if last_kind:
            more = rows.sets.other_kept_bytes[last_kind - 1]
            kept_module = layer_bytes + more.take(rows.set_index)
        last = _by_rank(kinds.has_head, shape_idx) * in_flight
        activations = activations + last * rows.problem.shape.mtp_layers * kept_module
    ids = _by_rank(kinds.has_embedding, shape_idx) * in_flight * layers.embedding_bytes[index]
    activations = activations + ids
    # While a recomputed layer runs backward, what it had dropped exists once.
    dropped = rows.sets.passing_bytes.take(rows.set_index)
    one = layers.kept_bytes if rows.problem.shape.kind_counts[0] else layers.others[0].kept_bytes
    for other in layers.others:
        one = np.maximum(one, other.kept_bytes)
    recomputed = np.where(rows.recomputed > 0, one[index], dropped)
    messages = np.where(pp > 1, 2.0, 0.0) * layers.message_bytes[index]
    logits = _by_rank(kinds.has_head, shape_idx) * layers.logits_bytes[index]
    # The loss's tensors are gone when the first layer runs backward: the larger of the two counts.
    # Gathered logits are the model's output, which the caller of the loss holds until the end;
    # what the gather itself took is gone.
    gone = logits
    if not rows.problem.stack.logits_sharded:
        gone = _by_rank(kinds.has_head, shape_idx) * layers.gathered_bytes[index]
    if terms.phases is None:
        passing = recomputed + (layers.working_bytes[index] - gone)
        np.maximum(0.0, passing, out=passing)
        passing += layers.scratch_bytes[index]
    else:  # the logits have gone as a whole then, and no product adds to a gradient in place
        passing = recomputed + layers.working_bytes[index] + np.zeros_like(gone)
    if kinds.passing is not None:
        module = rows.problem.shape.mtp_layers * _by_rank(kinds.has_head, shape_idx)
        has_layers = _by_rank(kinds.layers, shape_idx) + module > 0.0
        passing = np.where(has_layers, passing, 0.0)
    passing = passing + messages
    if beside:
        # Without a pipeline a layer's activations of the next micro-batch fill as others empty.
        combined = table.modes.have("ep_overlap", "1f1b")
        passing = passing + np.where(combined & (pp == 1), one[index], 0.0)
    if offloads_modules(table.modes):
        passing = passing + modules_on_the_way(rows, in_flight)
    if rows.problem.stack.queued_tensors:
        passing += np.where(_queue_is_full(rows, chunks), layers.queued_bytes[index], 0.0)
    position = _sharding_and_shape(rows)
    states = _by_sharding(terms.state_bytes, position)
    if terms.experts:
        states = states + _by_sharding(terms.experts.state_bytes, position)
    if terms.quantized_bytes is not None:
        states = states + _by_sharding(terms.quantized_bytes, position)
    if terms.frozen_bytes is not None:
        states = states + _by_sharding(terms.frozen_bytes, position)
    return _Memory(
        states=states,
        activations=activations,
        logits=logits,
        passing=passing,
        zero_units=_of_sharding(terms.zero_working_bytes, position),
        overhead=terms.overhead_bytes[shape_idx],
        frozen=_frozen_bytes(rows),
        phases=_phases(rows, position),
    )


def _phases(rows: Rows, position: NDArray[np.intp]) -> _Phases | None:
    """Return what the moments of a planned step hold by kind of rank; None of other steps."""
    terms = rows.shapes.phases
    if terms is None:
        return None

    def at(values: Floats, sums: Floats) -> Floats:
        more = np.where(rows.table.n_micro > 1, _by_sharding(sums, position), 0.0)
        return _by_sharding(values, position) + more

    logits = _by_rank(rows.shapes.kinds.has_head, rows.table.shape)
    return _Phases(
        at(terms.head, terms.head_sums),
        at(terms.ring, terms.head_sums),
        logits * rows.layers.ring_bytes[rows.index],
        at(terms.backward, terms.backward_sums),
    )


def _frozen_bytes(rows: Rows) -> Floats | None:
    """Return the weights of each kind of rank that are not trained; None where all are."""
    if rows.layers.tower is None:
        return None
    first = _by_rank(rows.shapes.kinds.has_embedding, rows.table.shape)
    return np.asarray(first * rows.layers.tower.frozen_bytes[rows.index])


def _queue_is_full(rows: Rows, chunks: Floats) -> Bools:
    """Return which kinds of rank have a host far ahead; `chunks` are their chunks in flight."""
    problem, shape_idx = rows.problem, rows.table.shape
    domains = tensor_parallel_group(problem, rows.table.shapes.tp[shape_idx]).n_domains
    blocking = problem.stack.blocking_p2p
    layers = problem.shape.layers
    return queue_is_full(layers, *_pp_vpp(rows), chunks, domains, blocking_p2p=blocking)


def memory_terms(rows: Rows, *, is_linear: bool = False) -> dict[str, Floats]:
    """Return the memory of each kind of rank by term, bytes, `(n_kinds, ...)` each.

    The peak is the sum: it is reached where a backward starts while all micro-batches of the
    rank are in flight. On the last stage that is the loss's or the last layer's, whichever needs
    more: `working` holds what a layer's temporaries need beyond the logits. Of a step that a
    compiler lays out it holds what makes the sum the most of its moments (`costmodels.phases`);
    with `is_linear` the sum of them, which is more, but linear in the layers of a rank.
    """
    memory = _memory(rows)
    working = memory.working
    if is_linear and memory.phases:
        phases = memory.phases
        head = np.maximum(phases.head, phases.ring + phases.ring_logits)
        working = head + phases.backward + memory.passing
    parts = {
        "states": memory.states if memory.frozen is None else memory.states + memory.frozen,
        "activations": memory.activations,
        "logits": memory.logits,
        "working": working,
        "fragmentation": rows.problem.stack.fragmentation_frac * memory.activations,
        "overhead": memory.overhead[None],
    }
    total = np.broadcast_shapes(*(part.shape for part in parts.values()))
    return {term: np.broadcast_to(part, total) for term, part in parts.items()}


def _other_resident_layers(
    rows: Rows, offloaded: _OffloadedLayers | None
) -> Iterator[tuple[Floats, Floats]]:
    """Yield the layers of each other kind that keep all on the device, and what one keeps more.

    By kind of rank; bytes beyond a layer of the first kind.
    """
    recomputed = rows.recomputed_others
    for i, (count, more) in enumerate(
        zip(_of_other_kinds(rows), rows.sets.other_kept_bytes, strict=True)
    ):
        assert recomputed is not None  # they come with layers of other kinds
        on_host = offloaded.others[i] if offloaded else 0.0
        yield count - recomputed[i] - on_host, more.take(rows.set_index)


def _add_unequal_chunks(rows: Rows, activations: Floats) -> None:
    """Add what ranks with unequal interleaved chunks hold beyond chunks of mean size, bytes.

    The largest over the moments that may be the peak of  kept x layers + input x recomputed layers
    + (kept by another kind beyond the first) x its layers, layers counted as `UnequalChunks` does.
    A chunk without layers keeps its input.
    """
    unequal, table = rows.shapes.kinds.unequal, rows.table
    assert unequal is not None
    shape = table.shape.reshape(-1)
    columns = np.flatnonzero(np.asarray(unequal.row.any(axis=1))[shape])
    if not len(columns):
        return

    def cut(values: NDArray[Any]) -> NDArray[Any]:
        return values[..., columns] if values.shape[-1] == len(shape) else values

    n_rounds, n_moments, n_kinds, n_depths = unequal.layers.shape[1:]
    pp = table.shapes.pp[shape[columns]]
    rounds = np.clip(cut(table.n_micro) // pp, 1, n_rounds) - 1
    k = np.where(cut(table.recompute) == FULL, cut(table.recompute_layers), 0)
    depth = np.minimum(k, n_depths - 1)
    row = unequal.row.T[:, shape[columns]]
    row = row.reshape(len(row), *(1,) * (activations.ndim - 2), len(columns))
    start = (row * n_rounds + rounds) * (n_moments * n_kinds * n_depths)
    flat, set_idx = unequal.layers.reshape(-1), cut(rows.set_index)
    flat_left = (unequal.layers[..., -1:] - unequal.layers).reshape(-1)
    layer_bytes = rows.sets.kept_bytes.take(set_idx)
    others = [more.take(set_idx) for more in rows.sets.other_kept_bytes]
    inputs = rows.layers.checkpoint_bytes[cut(rows.index)]
    largest: Floats = np.full(1, -np.inf)
    has_passing = n_kinds > 1 + len(others)
    for moment in range(n_moments):
        of_kind = [start + (moment * n_kinds + kind) * n_depths for kind in range(n_kinds)]
        position = of_kind[0] + depth
        size = layer_bytes * flat_left.take(position) + inputs * flat.take(position)
        if has_passing:
            size = size + inputs * flat.take(of_kind.pop())
        for position, more in zip(of_kind[1:], others, strict=True):
            size = size + more * flat_left.take(position + depth)
        largest = np.maximum(largest, size)
    activations[..., columns] += largest


def _late_activations(
    rows: Rows, n_stored: Floats, layer_bytes: Floats, others: Sequence[tuple[Floats, Floats]]
) -> Floats:
    """Return the activations of a rank while most weight gradients wait, bytes; 0 if none can.

    Layers that are recomputed are checkpoints before the gradient of their input, and count in
    full from then until their weight gradient; so do recomputed modules, but for the scores, which
    no weight gradient reads. `others` are the layers of other kinds that keep all, and what one
    keeps more than one of the first kind.
    """
    table, shape_idx = rows.table, rows.table.shape
    layers, index = rows.layers, rows.index
    is_core_again = (table.recompute_modules & CORE) > 0

    def kept_late_of(kind: KindTerms) -> Floats:
        core = kind.modules.attention_bytes[0][index]
        return np.asarray(kind.kept_bytes[index] - np.where(is_core_again, core, 0.0))

    kept_late = kept_late_of(layers)
    late_rank = _by_rank(rows.shapes.kinds.late_rank, shape_idx)
    args = (table.schedule, late_rank, table.shapes.pp[shape_idx], table.n_micro)
    before, waiting = zero_bubble.late_chunks(*args)
    inputs = rows.recomputed
    if rows.shapes.kinds.passing is not None:
        inputs = inputs + _by_rank(rows.shapes.kinds.passing, shape_idx)
    checkpoints = inputs * rows.layers.checkpoint_bytes[rows.index]
    early = before * (n_stored * layer_bytes + checkpoints)
    deferred = waiting * (n_stored + rows.recomputed) * kept_late
    for i, (resident, more) in enumerate(others):
        assert rows.recomputed_others is not None  # they come with layers of other kinds
        early = early + before * resident * more
        more_late = kept_late_of(layers.others[i]) - kept_late
        deferred = deferred + waiting * (resident + rows.recomputed_others[i]) * more_late
    share = np.where(table.schedule == zero_bubble.ZB_H1, 1.0, 0.5) * splits_backward(rows)
    return np.asarray(share * (early + deferred))


def peak_bytes(rows: Rows) -> Floats:
    """Return the memory of the rank that needs most, bytes.

    The sum of `memory_terms`, what ZeRO does not change first: in a block that part is computed
    once for all ZeRO stages.
    """
    maximum: Floats | None = None
    for stays, shared in _peak_parts(rows):
        for of_kind in zip(stays, shared, strict=True):
            if maximum is None:
                maximum = of_kind[0] + of_kind[1]
                one = np.empty_like(maximum)
            else:
                np.maximum(maximum, np.add(*of_kind, out=one), out=maximum)
    assert maximum is not None  # there is a rank
    return maximum


def _peak_parts(rows: Rows) -> list[tuple[Floats, Floats]]:
    """Return the memory that ZeRO does not change and what it does, by kind of rank, bytes.

    Of each moment that may be the peak: one, or those of a step that a compiler lays out.
    """
    memory = _memory(rows)
    stays = (1.0 + rows.problem.stack.fragmentation_frac) * memory.activations
    if memory.phases is None:
        stays += memory.passing
        stays += memory.logits + memory.overhead
        if memory.frozen is not None:
            stays += memory.frozen
        return [(stays, memory.states + memory.zero_units)]
    stays = stays + memory.overhead
    if memory.frozen is not None:
        stays = stays + memory.frozen
    at_head = stays + memory.logits
    return [
        (at_head, memory.states + memory.phases.head),
        (at_head + memory.phases.ring_logits, memory.states + memory.phases.ring),
        (stays + memory.passing, memory.states + memory.phases.backward),
    ]


def least_peak_bytes(rows: Rows, shardings: Bools, options: Bools) -> Floats:
    """Return a lower bound on the peak memory of each batch of a block, `(n_batches,)` bytes.

    The sum of the least that any of its recompute options needs and the least that any of its
    shardings does, on the rank and at the moment where that is most. `shardings`,
    `(n_shardings, n_batches)`, and `options`, `(n_options, n_batches)`, say which a batch has.
    """
    of_moments = []
    for stays, shared in _peak_parts(rows):
        least = np.where(options[None, None], stays, np.inf).min(axis=2)
        least = least + np.where(shardings[None, :, None], shared, np.inf).min(axis=1)
        of_moments.append(least.max(axis=(0, 1)))
    return np.asarray(np.maximum.reduce(of_moments))


def score(
    problem: Problem,
    shapes: ShapeTerms,
    table: PlanTable | PlanBlock,
    layers: LayerTable | None = None,
) -> Scores:
    """Return step time and peak memory of every plan of `table`, over the shapes `shapes`."""
    rows = join(problem, shapes, table, layers)
    return Scores(step_times(rows), peak_bytes(rows))
