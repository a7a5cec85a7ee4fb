"""Context parallelism: the exchange of keys and values in one layer, its kernels and its buffers.

The c ranks of a group hold s/c tokens of every sequence, as two of 2 c chunks from opposite ends
(zigzag), so that the causal mask leaves all ranks the same work. Three ways to attend to the other
ranks' tokens:

    p2p          a ring: c kernels, each beside the transfer of the next rank's keys and values
    all-gather   the keys and values of all ranks first, then two kernels over them
    a2a          Ulysses: all-to-alls turn s/c tokens of all heads into all tokens of 1/c heads

Arrays have one length: an entry for each (tp, cp, kind, micro-batch).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import CP_COMMS
from costmodels.comm.collectives import collective_s, point_to_point_s
from costmodels.comm.exposure import Exposure
from costmodels.comm.placement import Group, place_group
from costmodels.layers.compute import AttentionKernels, ForwardBackward
from costmodels.layers.params import kv_heads_per_rank
from costmodels.problem import Problem
from costmodels.shapes import ModelShape

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

P2P, ALL_GATHER, A2A = (CP_COMMS.index(name) for name in ("p2p", "all-gather", "a2a"))
ADD_BYTES, COPY_BYTES = 6.0, 4.0
"""Traffic per element of adding a part to a sum (2 + 2 read, 2 written), and of a copy (2 + 2)."""
RING_COVER = 0.75
"""Mean share of a rank's rows that a kernel of the causal ring writes: all or half of them."""


@dataclass(frozen=True, slots=True)
class ContextSplit:
    """How one layer's tokens are split; arrays of one length."""

    tp: Ints
    cp: Ints
    kind: Ints
    """Index into `CP_COMMS`."""


def context_group(problem: Problem, split: ContextSplit) -> Group:
    """Return the placement of context-parallel groups: cp ranks, tp apart."""
    return place_group(split.cp, split.tp, problem.pool, problem.fabric)


def attention_kernels(split: ContextSplit, run_keys: float = 0.0) -> AttentionKernels:
    """Return how the attention core is cut; `run_keys` as in `AttentionKernels`.

    p2p: c kernels over s/c keys; all-gather: two, one for each of the rank's chunks; a2a: one.
    Source: Transformer Engine, attention/dot_product_attention/context_parallel.py.
    """
    kernels = np.select([split.kind == P2P, split.kind == ALL_GATHER], [split.cp, 2], 1)
    blocks = np.where(split.kind == P2P, split.cp, 1)
    return AttentionKernels(split.tp, kernels, blocks, run_keys)


def widths(shape: ModelShape, split: ContextSplit) -> tuple[Floats, Floats]:
    """Return the widths of queries and of keys on one rank, elements.

    Where values have another width without latent attention: the means of queries and output, and
    of keys and values.
    """
    tp = np.asarray(split.tp, dtype=np.float64)
    heads = kv_heads_per_rank(shape, split.tp)
    if shape.latent:
        return shape.q_width / tp, heads * shape.head_dim
    return (shape.q_width + shape.v_width) / 2.0 / tp, heads * (shape.pair_dim / 2.0)


def merge_times(
    problem: Problem, split: ContextSplit, tokens: Floats, run_keys: float = 0.0
) -> ForwardBackward:
    """Return the time of what puts the parts of the attention together, seconds.

    bytes per token, n = tokens of the rank:
    p2p: every kernel's output is added to the sum, and in backward the gradients of queries, keys
    and values: 6 * 3/4 c q forward, 6 * 3/4 c (q + 2 k) backward. all-gather: gathered keys and
    values are put in order, 4 * 2 c k forward; again in backward, with their gradients, which are
    summed over the two kernels, (2 * 4 + 6) 2 c k. a2a: a copy before and after each of four
    all-to-alls, 2 * 4 (2 q + 2 k) each way. Over the sustained HBM bandwidth, plus launches.
    Where no mask halves the keys (`run_keys` over s / 2) every kernel of the ring writes all rows:
    1 in place of 3/4.
    Source: operands of Transformer Engine's context_parallel.py, counted by hand.
    """
    q, kv = widths(problem.shape, split)
    c = np.asarray(split.cp, dtype=np.float64)
    kinds = [split.kind == P2P, split.kind == ALL_GATHER, split.kind == A2A]
    cover = 1.0 if run_keys > problem.job.seq_len / 2.0 else RING_COVER
    added, moved = cover * ADD_BYTES * c, 2 * COPY_BYTES * (2 * q + 2 * kv)
    ordered, summed = COPY_BYTES * 2 * c * kv, (2 * COPY_BYTES + ADD_BYTES) * 2 * c * kv
    forward = np.select(kinds, [added * q, ordered, moved], 0.0)
    backward = np.select(kinds, [added * (q + 2 * kv), summed, moved], 0.0)
    eff = problem.pool.accelerator.efficiency
    per_byte = 1.0 / (problem.pool.accelerator.hbm_bytes_per_s * eff.hbm_frac)
    first = np.select(kinds, [c, 2 + 0 * c, 8 + 0 * c], 0.0) * eff.kernel_latency_s
    second = np.select(kinds, [3 * c, 6 + 0 * c, 8 + 0 * c], 0.0) * eff.kernel_latency_s
    return ForwardBackward(
        tokens * forward * per_byte + first, tokens * backward * per_byte + second
    )


def exchange_times(
    problem: Problem, split: ContextSplit, tokens: Floats, attention: ForwardBackward
) -> tuple[Exposure, Exposure]:
    """Return the forward and backward exchange of one layer, and what of it is exposed, seconds.

    n tokens on a rank, widths q and k of its queries and keys, `attention` its core.
    p2p: c - 1 messages of B = 4 n k bytes forward, each beside 1/c of the core, so
    (c - 1) max(0, m(B) - f/c) is exposed; backward c messages, the first of keys and values alone,
    the last of their gradients alone, the others of both:
    2 max(0, m(B) - b/c) + (c - 2) max(0, m(2 B) - b/c).
    all-gather: keys and values are gathered, 2 c n k bytes each; in backward they are gathered
    again, unless the stack keeps them, and their gradients scattered. a2a: queries, keys, values
    and the output, 2 n q or 2 n k bytes each, one call each; backward the same for the gradients.
    Both are exposed, and ranks reach them apart (`tp_hop_s`).

    Hidden ring, as tokens per rank: s/c >= 2 R k / (q B_link), R the core's FLOP rate.
    Source: Liu et al. 2023 (ring attention); Llama 3 paper, section 3.3.2 (all-gather); Jacobs et
    al. 2023 (Ulysses); order of operations of Transformer Engine's context_parallel.py. Left out:
    hierarchical a2a+p2p, and running a part of the gathers beside the projections.
    """
    if np.all(split.cp == 1):
        zero = np.zeros_like(tokens)
        return Exposure(zero, zero), Exposure(zero, zero)
    q, kv = widths(problem.shape, split)
    c = np.asarray(split.cp, dtype=np.float64)
    group, pool = context_group(problem, split), problem.pool
    # In 16 bits, also in fp8 recipes, whose attention stays in 16 bits; in fp32 where all is.
    width = problem.job.recipe.activation_bytes
    block = 2 * width * tokens * kv
    one, two = (point_to_point_s(n * block, group, pool) for n in (1, 2))
    beside = ForwardBackward(attention.forward_s / c, attention.backward_s / c)
    ring = ring_times(c, one, two, beside)
    hops_s = problem.stack.tp_hop_s * (c - 1)
    gather = collective_s("all-gather", c * block / 2, group, pool) + hops_s
    sizes = [width * tokens * elements for elements in (q, kv)]
    queries, keys = (collective_s("all-to-all", size, group, pool) + hops_s for size in sizes)
    moved = 2 * queries + 2 * keys
    kinds = [split.kind == P2P, split.kind == ALL_GATHER, split.kind == A2A]

    recomputed = 2 if problem.stack.cp_gathers == "kept" else 4

    def chosen(on_ring: Floats, gathers: int) -> Floats:
        return np.asarray(np.select(kinds, [on_ring, gathers * gather, moved], 0.0))

    forward, backward = ring
    return (
        Exposure(chosen(forward.total_s, 2), chosen(forward.exposed_s, 2)),
        Exposure(chosen(backward.total_s, recomputed), chosen(backward.exposed_s, recomputed)),
    )


def ring_times(
    cp: Floats, one_s: Floats, two_s: Floats, beside: ForwardBackward
) -> tuple[Exposure, Exposure]:
    """Return the forward and backward of a ring of `cp` ranks.

    `one_s` is a message of keys and values, `two_s` one with their gradients as well, `beside` the
    attention of one step.

    >>> ms = 1e-3
    >>> forward, backward = ring_times(4.0, 3 * ms, 5 * ms, ForwardBackward(2 * ms, 4 * ms))
    >>> [round(x.item() * 1e3, 3) for x in (forward.exposed_s, backward.exposed_s)]
    [3.0, 2.0]
    """
    ahead, after = beside.forward_s, beside.backward_s
    forward = np.maximum(0.0, one_s - ahead)
    ends, inner = np.maximum(0.0, one_s - after), np.maximum(0.0, two_s - after)
    return (
        Exposure((cp - 1) * one_s, np.asarray((cp - 1) * forward)),
        Exposure(2 * one_s + (cp - 2) * two_s, np.asarray(2 * ends + (cp - 2) * inner)),
    )


def kept_bytes(problem: Problem, split: ContextSplit, tokens: Floats) -> Floats:
    """Return what the exchange keeps of one layer until its backward, bytes.

    a2a: 2 n q, the attention's output before its all-to-all, which Transformer Engine keeps beside
    the one behind it, the input of the projection. all-gather where what was gathered is kept:
    4 (c - 1) n k, the keys and values of the other ranks. The others keep nothing.
    """
    q, kv = widths(problem.shape, split)
    width = problem.job.recipe.activation_bytes
    stored = np.where(split.kind == A2A, width * tokens * q, 0.0)
    if problem.stack.cp_gathers == "kept":
        others = 2 * width * tokens * kv * (np.asarray(split.cp, dtype=np.float64) - 1)
        stored = np.where(split.kind == ALL_GATHER, others, stored)
    return stored


def buffer_bytes(problem: Problem, split: ContextSplit, tokens: Floats) -> Floats:
    """Return the buffers of one layer's exchange in backward, with the core's gradients, bytes.

    p2p: two buffers of keys, values and their gradients, 2 * 8 n k, beside the gradients of one
    kernel and their sum, 2 * 2 n (q + 2 k). all-gather: gathered keys and values and their
    gradients, 8 c n k, and the gradient of the queries, 2 n q. a2a: gradients before and after
    their all-to-all, 2 * 2 n (q + 2 k). They exist while the core runs backward, when the MLP's
    temporaries are gone. Source: allocations of Transformer Engine's context_parallel.py.
    """
    q, kv = widths(problem.shape, split)
    c = np.asarray(split.cp, dtype=np.float64)
    width = problem.job.recipe.activation_bytes
    gradients = 2 * width * (q + 2 * kv)
    kinds = [split.kind == P2P, split.kind == ALL_GATHER, split.kind == A2A]
    ring, gathered = 8.0 * width * kv + gradients, 4.0 * width * c * kv + width * q
    return np.asarray(tokens * np.select(kinds, [ring, gathered, gradients], 0.0))
