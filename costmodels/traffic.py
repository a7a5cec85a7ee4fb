"""What one plan sends over which wire: calls, bytes, message sizes, time and exposed time."""

from dataclasses import dataclass

import numpy as np

from costmodels.collectives import chosen_algorithm, collective_s
from costmodels.parameters import padded_vocab
from costmodels.placement import Group, place_group, tier_names
from costmodels.plans import Layout
from costmodels.shape_terms import shared_params
from costmodels.step import Rows, boundary_hops_s, data_parallel_exposed, stage_times
from costmodels.tensor_parallel import tensor_parallel_group, tp_collective_s


@dataclass(frozen=True, slots=True)
class Transfer:
    """One kind of transfer of the device that sends most, per optimizer step."""

    axis: str
    """`tp`, `pp` or `dp`."""
    collective: str
    tier: str
    """The widest network level that the group spans."""
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


def _wire_factor(collective: str, ranks: int) -> float:
    """Return bytes sent per rank over the size of the logical tensor (ring volumes)."""
    share = (ranks - 1) / ranks
    return {"all-reduce": 2 * share, "point-to-point": 1.0}.get(collective, share)


def _width(rows: Rows, n_bytes: float) -> str:
    """Return the name of the type of `n_bytes` in which gradients or weights travel."""
    return {2.0: _activation_type(rows), 4.0: "fp32"}.get(n_bytes, f"{n_bytes:g} B")


def transfers(
    rows: Rows, layout: Layout, critical: int, pp_exposed_s: float
) -> tuple[Transfer, ...]:
    """Return every kind of transfer of one plan, in the order tp, pp, dp.

    Tensor-parallel traffic is that of pipeline rank `critical`, the slowest, with its recomputed
    forwards and the collectives of its end of the model.
    """
    found = [*_tensor_parallel(rows, layout, critical), *_pipeline(rows, layout, pp_exposed_s)]
    return tuple(found + _data_parallel(rows, layout) + _tied_embedding(rows, layout))


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
        axis, collective, tier, ranks, n_calls, message, sent, time_s, exposed_s, dtype, algorithm
    )


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
    passes = layout.n_passes * sum(chunks)
    again = layout.n_passes * sum(min(c, layout.recompute_layers) for c in chunks)
    tokens = float(layout.mbs * rows.problem.job.seq_len)
    message, width = 2.0 * tokens * rows.problem.shape.hidden, _activation_type(rows)
    group = tensor_parallel_group(rows.problem, np.array(layout.tp, dtype=np.int32))
    forward, backward = layers.tp_forward, layers.tp_backward
    exposed = passes * (forward.exposed_s.item() + backward.exposed_s.item())
    exposed += again * forward.exposed_s.item()
    n_ends = layout.has_embedding(critical) + layout.has_head(critical)
    ends = layout.n_passes * n_ends
    found = []
    if layout.sp:
        one = tp_collective_s(rows.problem, "all-gather", message, group).item()
        gathers = (4 + (2 if stack.sp_regather else 0)) * passes + 2 * again
        reduces = 4 * passes + 2 * again
        share = gathers / max(1, gathers + reduces)
        for name, calls, part in (
            ("all-gather", gathers, share),
            ("reduce-scatter", reduces, 1.0 - share),
        ):
            waits = part * exposed + ends * one
            n, time_s = calls + ends, (calls + ends) * one
            found.append(_make(rows, "tp", name, group, n, message, waits, width, time_s))
    else:
        calls = 4 * passes + 2 * again + ends
        one = tp_collective_s(rows.problem, "all-reduce", message, group).item()
        waits, time_s = exposed + ends * one, calls * one
        found.append(_make(rows, "tp", "all-reduce", group, calls, message, waits, width, time_s))
    if layout.has_head(critical):
        found.append(_loss(rows, layout, tokens, group, width))
    return found


def _loss(rows: Rows, layout: Layout, tokens: float, group: Group, width: str) -> Transfer:
    """Return the collectives of the loss: three sums a token, or the gathered logits."""
    name, size, calls, kind = "all-reduce", 4.0 * tokens, 3 * layout.n_passes, "fp32"
    if not rows.problem.stack.logits_sharded:
        vocab = padded_vocab(rows.problem.shape, rows.table.shapes.tp).item()
        name, size, calls, kind = "all-gather", 2.0 * tokens * vocab, layout.n_passes, width
    waits = calls * tp_collective_s(rows.problem, name, size, group).item()
    return _make(rows, "tp", name, group, calls, size, waits, kind, waits)


def _activation_type(rows: Rows) -> str:
    """Return the name of the activations' type: that of the linear layers."""
    return rows.problem.job.recipe.gemm_precision


def _pipeline(rows: Rows, layout: Layout, exposed_s: float) -> list[Transfer]:
    """Return the activations and gradients that an interior rank passes on."""
    if layout.pp == 1:
        return []
    n_calls = 2 * layout.n_micro * layout.vpp
    message = rows.layers.message_bytes.item()
    group = place_group(layout.pp, layout.tp * layout.dp, rows.problem.pool, rows.problem.fabric)
    hops = boundary_hops_s(rows, layout.tp, layout.pp, layout.dp)
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


def _data_parallel(rows: Rows, layout: Layout) -> list[Transfer]:
    """Return the gradient reduction and the weight gathers of the rank that waits longest."""
    if layout.dp == 1:
        return []
    wire, zero, recipe = rows.shapes.data_parallel, layout.zero, rows.problem.job.recipe
    exposed, hidden = data_parallel_exposed(rows, stage_times(rows))
    kind = int((exposed + rows.problem.stack.overlap_slowdown * hidden).argmax(axis=1)[0])
    params = rows.shapes.params[0, kind].item()
    pieces = round(wire.reduce_s[zero, 0, kind].item() / wire.reduce_piece_s[zero, 0, kind].item())
    groups = rows.shapes.data_groups
    group = groups.shard if zero else groups.whole
    reduces = layout.n_micro if zero >= 2 else 1
    gathers = {0: 0, 1: 1, 2: 1, 3: 2 * layout.n_micro}[zero]
    reduce_time = reduces * wire.reduce_s[zero, 0, kind].item()
    gather_time = gathers * wire.gather_s[zero, 0, kind].item()
    replicas, copies = int(groups.replicas.n_ranks.item()), 0.0
    part = recipe.grad_wire_bytes * params / pieces / layout.dp_shard
    if zero and replicas > 1:
        one = collective_s("all-reduce", part, groups.replicas, rows.problem.pool).item()
        copies = reduces * pieces * one
    share = reduce_time / (reduce_time + gather_time)
    waits = exposed[0, kind].item()
    name = "reduce-scatter" if zero else "all-reduce"
    found = [
        _make(
            rows,
            "dp",
            name,
            group,
            reduces * pieces,
            recipe.grad_wire_bytes * params / pieces,
            share * waits * (1 - copies / reduce_time),
            _width(rows, recipe.grad_wire_bytes),
            reduce_time - copies,
        )
    ]
    if copies:
        found.append(
            _make(
                rows,
                "dp",
                "all-reduce",
                groups.replicas,
                reduces * pieces,
                part,
                share * waits * copies / reduce_time,
                _width(rows, recipe.grad_wire_bytes),
                copies,
            )
        )
    if gathers:
        found.append(
            _make(
                rows,
                "dp",
                "all-gather",
                group,
                gathers * pieces,
                recipe.param_wire_bytes * params / pieces,
                (1 - share) * waits,
                _width(rows, recipe.param_wire_bytes),
                gather_time,
            )
        )
    return found


def _tied_embedding(rows: Rows, layout: Layout) -> list[Transfer]:
    """Return the sum of the gradients that two pipeline ranks share (`shared_params`)."""
    shapes, recipe = rows.table.shapes, rows.problem.job.recipe
    shared = shared_params(rows.problem, shapes, rows.shapes.params.max(axis=1)).item()
    if not shared or layout.pp == 1:
        return []
    message = recipe.grad_wire_bytes * shared
    group = place_group(2, layout.n_devices / 2, rows.problem.pool, rows.problem.fabric)
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
