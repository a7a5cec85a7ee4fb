"""Step time and peak memory of a table of plans."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels import pipeline, zero_bubble
from costmodels.compute import ForwardBackward
from costmodels.data_parallel import exposed_each_s, exposed_once_s
from costmodels.factor import distinct
from costmodels.layer_terms import HOST_FORWARD_SHARE, LayerTable, LayerTerms, layer_table
from costmodels.memory import in_flight_chunks
from costmodels.plans import RECOMPUTES, Layout, PlanTable
from costmodels.problem import Problem
from costmodels.shape_terms import ShapeTerms, boundary_hops
from costmodels.stacks import STALLED_HOP_S

Floats = NDArray[np.float64]
FULL, SELECTIVE = RECOMPUTES.index("full"), RECOMPUTES.index("selective")


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds per micro-batch of each kind of rank, `(n, n_kinds)`."""

    forward_s: Floats
    backward_s: Floats
    """With recomputation."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What the ranking needs of each plan; arrays `(n,)`."""

    step_s: Floats
    """Closed-form step time."""
    peak_bytes: Floats
    """Memory of the rank that needs most."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A table joined with its factored terms: what every row-level formula starts from."""

    problem: Problem
    table: PlanTable
    shapes: ShapeTerms
    layers: LayerTerms
    index: NDArray[np.intp]
    """Row -> position in `layers`."""
    recomputed: Floats
    """Fully recomputed layers by kind of rank, `(n, n_kinds)`."""
    recomputed_experts: Floats | None = None
    """Those of them that have experts; None for a dense model."""


def join(
    problem: Problem, shapes: ShapeTerms, table: PlanTable, layers: LayerTable | None = None
) -> Rows:
    """Return `table` joined with the terms of its shapes and of its distinct layers.

    `layers` are those of `table.shapes` computed beforehand, for callers that join many tables.
    """
    layers = layers or layer_table(problem, table.shapes, table.mbs)
    full = distinct((table.shape, np.where(table.recompute == FULL, table.recompute_layers, 0)))
    of_shape, k = full.columns
    sizes, counts = shapes.kinds.chunk_layers[of_shape], shapes.kinds.chunk_counts[of_shape]
    recomputed = (counts * np.minimum(sizes, k[:, None, None])).sum(axis=-1)
    index = layers.index(table.shape, table.mbs, table.sp)
    prefix, routed = shapes.kinds.expert_prefix, None
    if prefix is not None:
        last = prefix.shape[-1] - 1
        routed = prefix[of_shape, :, np.minimum(k, last)][full.index]
    return Rows(problem, table, shapes, layers.terms, index, recomputed[full.index], routed)


def _at(values: NDArray[Any], rows: NDArray[Any]) -> Floats:
    """Return `values[rows]`; ten times as fast as indexing where rows are short."""
    return values.take(rows, axis=0)


def _greatest(by_kind: Floats) -> Floats:
    """Return the maximum over kinds of rank; by column 40 times as fast as `max(axis=1)`."""
    best = by_kind[:, 0]
    for kind in range(1, by_kind.shape[1]):
        best = np.maximum(best, by_kind[:, kind])
    return best


def _total(by_kind: Floats) -> Floats:
    """Return the sum over kinds of rank."""
    total = by_kind[:, 0]
    for kind in range(1, by_kind.shape[1]):
        total = total + by_kind[:, kind]
    return total


RING_STEPS_PER_RANK = 8
"""Ring steps of one layer's tensor-parallel collectives, over (tp - 1): eight all-gathers and
reduce-scatters, or four all-reduces of twice the steps."""


def stalled(rows: Rows) -> ForwardBackward:
    """Return what one layer takes longer while pipeline messages wait for another node, `(n,)`.

    max(0, H + 8 (t - 1) STALLED_HOP_S - layer) where the stack's messages block, tp > 1 and the
    pipeline leaves the scale-up domain, H the launch time of the layer; with experts the layer is
    an expert layer. Source: published sweeps of nanotron, whose layers take 8, 14, 21 to 25 and
    46 ms at tp 2, 4, 8 and 16 whatever the micro-batch, but only then. Left out: groups over
    several nodes, which stall longer.
    """
    stack, of, layer = rows.problem.stack, rows.table.shape, rows.layers.layer
    if rows.layers.experts:
        layer = rows.layers.experts.layer
    tp = rows.table.shapes.tp[of]
    held_up = (tp > 1) & (rows.shapes.pipeline_group.n_domains[of] > 1)
    least = stack.host_s_per_layer + RING_STEPS_PER_RANK * (tp - 1) * STALLED_HOP_S
    missing = np.where(held_up, np.maximum(0.0, least - layer.total_s[rows.index]), 0.0)
    if not stack.blocking_p2p:
        missing = np.zeros_like(missing)
    return ForwardBackward(HOST_FORWARD_SHARE * missing, (1.0 - HOST_FORWARD_SHARE) * missing)


def stage_times(rows: Rows) -> StageTimes:
    """Return forward and backward time of each kind of rank, seconds per micro-batch.

    t_r = layers_r * layer + embedding (first) + head (last); the backward adds a forward for
    every recomputed layer. Dense and expert layers count apart.
    """
    table, layers, index = rows.table, rows.layers, rows.index
    kinds, of = rows.shapes.kinds, rows.table.shape
    first, last = _at(kinds.has_embedding, of), _at(kinds.has_head, of)
    held = _at(kinds.layers, of)

    def column(values: Floats) -> Floats:
        return _at(values, index)[:, None]

    forward = held * column(layers.layer.forward_s) + first * column(layers.embedding.forward_s)
    forward += last * column(layers.head.forward_s)
    backward = held * column(layers.layer.backward_s) + first * column(layers.embedding.backward_s)
    backward += last * column(layers.head.backward_s)
    backward += rows.recomputed * column(layers.recompute_full_s)
    if layers.experts:
        routed, more = _routed(rows), _expert_layer_adds(layers)
        forward += routed * column(more.forward_s)
        backward += routed * column(more.backward_s)
        assert rows.recomputed_experts is not None  # they come with `layers.experts`
        again = layers.experts.recompute_full_s - layers.recompute_full_s
        backward += rows.recomputed_experts * column(again)
    if rows.problem.stack.blocking_p2p:
        late = stalled(rows)
        forward += held * late.forward_s[:, None]
        backward += held * late.backward_s[:, None]
    if np.any(table.recompute == SELECTIVE):
        core = np.where(table.recompute == SELECTIVE, layers.recompute_core_s[index], 0.0)
        backward += held * core[:, None]
    if np.any(table.schedule == zero_bubble.DUALPIPE):
        # Each stage held both ways runs every second micro-batch.
        share = np.where(table.schedule == zero_bubble.DUALPIPE, 0.5, 1.0)[:, None]
        forward, backward = share * forward, share * backward
    return StageTimes(forward, backward)


def _routed(rows: Rows) -> Floats:
    """Return the expert layers of each kind of rank, `(n, n_kinds)`."""
    layers = rows.shapes.kinds.expert_layers
    assert layers is not None  # asked for models with experts only
    return _at(layers, rows.table.shape)


def _expert_layer_adds(layers: LayerTerms) -> ForwardBackward:
    """Return what an expert layer takes beyond a dense one."""
    assert layers.experts is not None  # asked for models with experts only
    routed, dense = layers.experts.layer, layers.layer
    return ForwardBackward(
        routed.forward_s - dense.forward_s, routed.backward_s - dense.backward_s
    )


def weight_grad_times(rows: Rows) -> Floats:
    """Return the part of each kind of rank's backward that can wait, seconds, `(n, n_kinds)`."""
    kinds, of, layers = rows.shapes.kinds, rows.table.shape, rows.layers
    share = np.where(rows.table.schedule == zero_bubble.DUALPIPE, 0.5, 1.0)[:, None]
    layer = _at(kinds.layers, of) * _at(layers.weight_grad_s, rows.index)[:, None]
    head = _at(kinds.has_head, of) * _at(layers.head_weight_grad_s, rows.index)[:, None]
    return share * (layer + head)


def splits_backward(rows: Rows) -> NDArray[np.bool_]:
    """Tell which plans run weight gradients apart, `(n,)`."""
    return rows.table.schedule >= zero_bubble.FIRST_CODE


def boundary_hops_s(rows: Rows, layout: Layout, row: int = 0) -> list[float]:
    """Return the time of one message over each boundary, `(pp,)`, the last back to rank 0."""
    stride = layout.tp * layout.cp * layout.dp
    latency, per_byte = boundary_hops(rows.problem, stride, layout.pp)
    size = rows.layers.message_bytes[rows.index[row]]
    hops: list[float] = (latency + size * per_byte).tolist()
    return hops


def _zero_and_shape(rows: Rows) -> NDArray[np.intp]:
    """Return the position of each row's (zero, shape) in arrays by ZeRO stage and shape."""
    n_shapes = len(rows.table.shapes)
    return rows.table.zero.astype(np.intp) * n_shapes + rows.table.shape


def _by_zero(values: Floats, at: NDArray[np.intp]) -> Floats:
    """Return the entries of an array `(N_ZERO, n_shapes, ...)` at `_zero_and_shape`."""
    return _at(values.reshape(-1, *values.shape[2:]), at)


def hop_s(rows: Rows) -> Floats:
    """Return the time of one message as the closed form takes it, seconds, `(n,)`.

    Over the slowest boundary (1F1B) or the mean of all (interleaved), see `shape_terms`.
    """
    of, terms = rows.table.shape, rows.shapes
    size = rows.layers.message_bytes[rows.index]
    return np.asarray(terms.hop_latency_s[of] + size * terms.hop_s_per_byte[of])


def data_parallel_exposed(rows: Rows, times: StageTimes) -> tuple[Floats, Floats]:
    """Return (exposed, hidden) data-parallel time of a step, seconds, `(n, n_kinds)`.

    ZeRO 0 and 1 move once per step: the reduction beside the last backward, the gather beside
    the first forward, as far as the stack overlaps them. ZeRO 2 reduces and ZeRO 3 also gathers
    (twice) per micro-batch; ZeRO 2 gathers once, like ZeRO 1. Routed experts move over their own
    group, one after the other with the rest.
    """
    table, of, zero = rows.table, rows.table.shape, rows.table.zero
    wire = rows.shapes.data_parallel
    at = _zero_and_shape(rows)
    reduce, reduce_piece = _by_zero(wire.reduce_s, at), _by_zero(wire.reduce_piece_s, at)
    gather, gather_piece = _by_zero(wire.gather_s, at), _by_zero(wire.gather_piece_s, at)
    if rows.shapes.experts:
        # One wire for both groups; the last piece is that of the embedding or of an expert layer.
        more = rows.shapes.experts.data_parallel
        reduce, gather = reduce + _by_zero(more.reduce_s, at), gather + _by_zero(more.gather_s, at)
        reduce_piece = np.maximum(reduce_piece, _by_zero(more.reduce_piece_s, at))
        gather_piece = np.maximum(gather_piece, _by_zero(more.gather_piece_s, at))
    m, stack = table.n_micro[:, None], rows.problem.stack
    pp, vpp = table.shapes.pp[of][:, None], table.shapes.vpp[of][:, None]
    late, window, chunks = splits_backward(rows)[:, None], times.backward_s, vpp
    if late.any():
        # Gradients are whole when the last weight gradients are, all chunks together.
        window = np.where(late, weight_grad_times(rows), window)
        chunks = np.where(late, 1, vpp)
    exposed_reduce = exposed_once_s(reduce, reduce_piece, window, pp, chunks, m)
    exposed_gather = exposed_once_s(gather, gather_piece, times.forward_s, pp, vpp, m)
    for level, overlap in ((0, stack.dp_overlap), (1, stack.zero1_overlap)):
        waits = ((zero == level) & (overlap == "none"))[:, None]
        exposed_reduce = np.where(waits, reduce, exposed_reduce)
        waits = ((zero == level) & (overlap != "both"))[:, None]
        exposed_gather = np.where(waits, gather, exposed_gather)
    exposed = exposed_reduce + exposed_gather
    total = reduce + gather
    often = np.flatnonzero(zero >= 2)
    if len(often):
        stage = zero[often][:, None]
        behind = np.where(stage >= 3, gather[often], 0.0) + reduce[often]
        ahead, after, once = gather[often], behind, gather[often]
        if stack.zero3_traffic == "prefetched":
            ahead = exposed_each_s(ahead, gather_piece[often], times.forward_s[often])
            after = exposed_each_s(behind, reduce_piece[often], times.backward_s[often])
            once = exposed_gather[often] if stack.zero1_overlap == "both" else once
        m_often = m[often]
        exposed[often] = m_often * after + np.where(stage >= 3, m_often * ahead, once)
        total[often] = m_often * behind + np.where(stage >= 3, m_often, 1) * gather[often]
    return exposed, np.maximum(0.0, total - exposed)


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
    """Return the closed-form pipeline time with its point-to-point part, seconds, `(n,)`."""
    table, of = rows.table, rows.table.shape
    both = times.forward_s + times.backward_s
    slowest, all_ranks = _greatest(both), _total(_at(rows.shapes.kinds.n_ranks, of) * both)
    m, vpp, pp = table.n_micro, table.shapes.vpp[of], table.shapes.pp[of]
    flush = pipeline.compute_s(slowest, all_ranks, vpp, m)
    if splits_backward(rows).any():
        split = m * slowest + _zero_bubble_s(rows, times)
        flush = np.where(splits_backward(rows), split, flush)
    return np.asarray(flush + pipeline.p2p_s(table.schedule, pp, vpp, m, hop_s(rows)))


def _zero_bubble_s(rows: Rows, times: StageTimes) -> Floats:
    """Return the closed-form idle time of schedules that split the backward, seconds, `(n,)`.

    `zero_bubble.bubble_s` with the mean times of the ranks besides the slowest.
    """
    table, of = rows.table, rows.table.shape
    pp, n_ranks = table.shapes.pp[of], _at(rows.shapes.kinds.n_ranks, of)
    late = weight_grad_times(rows)
    slowest = (times.forward_s + times.backward_s).argmax(axis=1)[:, None]

    def others(by_kind: Floats) -> Floats:
        own = np.take_along_axis(by_kind, slowest, axis=1)[:, 0]
        return (_total(n_ranks * by_kind) - own) / np.maximum(pp - 1, 1)

    parts = (others(times.forward_s), others(times.backward_s - late), others(late))
    return zero_bubble.bubble_s(table.schedule, pp, table.n_micro, *parts)


def step_times(rows: Rows) -> Floats:
    """Return the closed-form step time of each plan, seconds.

    T = S [ pipeline + p2p ] + exposed dp (+ slowdown of compute beside the hidden part)
      + tied-embedding sum + optimizer + fixed
    """
    times = stage_times(rows)
    return flush_times(rows, times) * _straggle(rows) + outside_pipeline(rows, times)


def outside_pipeline(rows: Rows, times: StageTimes) -> Floats:
    """Return the part of a step outside the pipeline: data parallel, optimizer, fixed; seconds."""
    of, stack = rows.table.shape, rows.problem.stack
    exposed, hidden = data_parallel_exposed(rows, times)
    data = _greatest(exposed + stack.overlap_slowdown * hidden)
    once = _by_zero(rows.shapes.optimizer_s, _zero_and_shape(rows))
    once = once + rows.shapes.embedding_sync_s[of]
    return np.asarray(data + once + stack.fixed_step_s)


def _straggle(rows: Rows) -> float:
    return straggler_factor(rows.problem, rows.table.shapes.n_devices)


def memory_terms(rows: Rows) -> dict[str, Floats]:
    """Return the memory of each kind of rank by term, bytes, `(n, n_kinds)` each.

    The peak is the sum: it is reached where a backward starts while all micro-batches of the
    rank are in flight. On the last stage that is the loss's or the last layer's, whichever needs
    more: `working` holds what a layer's temporaries need beyond the logits.
    """
    table, of, layers, terms = rows.table, rows.table.shape, rows.layers, rows.shapes
    kinds, index, stack = terms.kinds, rows.index, rows.problem.stack
    vpp = table.shapes.vpp[of][:, None]
    chunks = in_flight_chunks(
        table.schedule[:, None],
        _at(kinds.rank, of),
        table.shapes.pp[of][:, None],
        vpp,
        table.n_micro[:, None],
    )
    both_ways = table.schedule[:, None] == zero_bubble.DUALPIPE
    in_flight = chunks / np.where(both_ways, 2, vpp)
    kept = np.where(
        table.recompute == SELECTIVE, layers.kept_core_bytes[index], layers.kept_bytes[index]
    )[:, None]
    whole = _at(kinds.layers, of) - rows.recomputed
    activations = in_flight * (
        whole * kept + rows.recomputed * layers.checkpoint_bytes[index][:, None]
    )
    if splits_backward(rows).any():
        activations = np.maximum(activations, _late_activations(rows, whole, kept))
    if layers.experts:
        activations += in_flight * _expert_activations(rows)
    if rows.problem.shape.mtp_layers:
        module = layers.experts if rows.problem.shape.expert_layers[-1] else None
        kept_module = module.kept_bytes[index][:, None] if module else kept
        last = _at(kinds.has_head, of) * in_flight
        activations += last * rows.problem.shape.mtp_layers * kept_module
    ids = layers.embedding_bytes[index][:, None]
    activations += _at(kinds.has_embedding, of) * in_flight * ids
    # While a recomputed layer runs backward, what it had dropped exists once.
    dropped = (layers.kept_bytes - layers.kept_core_bytes)[index]
    scores = np.where(table.recompute == SELECTIVE, dropped, 0.0)
    one = layers.kept_bytes
    if layers.experts:
        every = rows.problem.shape.n_expert_layers == rows.problem.shape.layers
        one = layers.experts.kept_bytes if every else np.maximum(one, layers.experts.kept_bytes)
    again = np.where(rows.recomputed > 0, one[index][:, None], scores[:, None])
    messages = np.where(table.shapes.pp[of] > 1, 2.0, 0.0) * layers.message_bytes[index]
    passing = again + layers.working_bytes[index][:, None]
    at = _zero_and_shape(rows)
    lasting = layers.scratch_bytes[index] + messages + _by_zero(terms.zero_working_bytes, at)
    logits = _at(kinds.has_head, of) * layers.logits_bytes[index][:, None]
    # The loss's tensors are gone when the first layer runs backward: the larger of the two counts.
    working = lasting[:, None] + np.maximum(0.0, passing - logits)
    states = _by_zero(terms.state_bytes, at)
    if terms.experts:
        states = states + _by_zero(terms.experts.state_bytes, at)
    return {
        "states": states,
        "activations": activations,
        "logits": logits,
        "working": working,
        "fragmentation": stack.fragmentation_frac * activations,
        "overhead": np.broadcast_to(terms.overhead_bytes[of][:, None], logits.shape),
    }


def _expert_activations(rows: Rows) -> Floats:
    """Return what the expert layers of a rank keep beyond dense ones, bytes, `(n, n_kinds)`."""
    layers, index = rows.layers, rows.index
    assert layers.experts is not None  # asked for models with experts only
    assert rows.recomputed_experts is not None
    core = layers.experts.kept_core_bytes - layers.kept_core_bytes
    whole = layers.experts.kept_bytes - layers.kept_bytes
    more = np.where(rows.table.recompute == SELECTIVE, core[index], whole[index])
    return (_routed(rows) - rows.recomputed_experts) * more[:, None]


def _late_activations(rows: Rows, whole: Floats, kept: Floats) -> Floats:
    """Return the activations of a rank while most weight gradients wait, bytes; 0 if none can.

    Layers that are recomputed are checkpoints before the gradient of their input, and count in
    full from then until their weight gradient.
    """
    table, of = rows.table, rows.table.shape
    before, waiting = zero_bubble.late_chunks(
        table.schedule[:, None],
        _at(rows.shapes.kinds.late_rank, of),
        table.shapes.pp[of][:, None],
        table.n_micro[:, None],
    )
    checkpoints = rows.recomputed * rows.layers.checkpoint_bytes[rows.index][:, None]
    early = before * (whole * kept + checkpoints)
    late = waiting * (whole + rows.recomputed) * kept
    one = (table.schedule == zero_bubble.ZB_H1)[:, None]
    share = np.where(one, 1.0, 0.5) * splits_backward(rows)[:, None]
    return np.asarray(share * (early + late))


def peak_bytes(rows: Rows) -> Floats:
    """Return the memory of the rank that needs most, bytes, `(n,)`."""
    terms = list(memory_terms(rows).values())
    total = terms[0] + terms[1]
    for term in terms[2:]:
        total += term
    return _greatest(total)


def score(
    problem: Problem, shapes: ShapeTerms, table: PlanTable, layers: LayerTable | None = None
) -> Scores:
    """Return step time and peak memory of every plan of `table`, over the shapes `shapes`."""
    rows = join(problem, shapes, table, layers)
    return Scores(step_times(rows), peak_bytes(rows))
