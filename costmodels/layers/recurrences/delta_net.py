"""Delta nets: a state of keys by values a head, decayed and corrected by every token.

The decay is a number a head and token (gated delta net), or one for each element of a key (Kimi
delta attention).
"""

import numpy as np
from numpy.typing import ArrayLike

from costmodels.comm.exposure import Exposure
from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.recompute import Modules, RecomputedModule
from costmodels.layers.recurrences.recurrent import (
    Recurrence,
    exchange_s,
    recurrent_terms,
)
from costmodels.layers.sublayers.sublayer import HeadsCut, Mixer, MixerTerms, norm_params, ranks
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import DeltaNetShape, ModelShape

NORM_OUT = "gdn_norm_out"
"""Recompute group of a gated delta net."""


def _sizes(shape: ModelShape) -> DeltaNetShape:
    assert shape.delta_net is not None  # checked where the model is read
    return shape.delta_net


def gdn_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of a gated delta net and its norm on one tensor-parallel rank.

    N = [h (2 k + 2 v + 2 a) + c (2 k + v) + 2 a + v h] / t + d_v + h

    k and v the widths of all keys and values, a the heads of values, c the taps of the
    convolution; decays and their bias are 2 a. The norm of a head's output, d_v, and the norm
    before it are whole on every rank. Source: Megatron-LM core/ssm/gated_delta_net/gdn.py.
    """
    x = _sizes(shape)
    vectors = x.conv * (2 * x.keys + x.values) + 2 * x.v_heads
    total = gdn_linear_params(shape, tp) + vectors / ranks(tp)
    return np.asarray(total + gdn_replicated_params(shape))


def gdn_linear_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of its two projections: h (2 k + 3 v + 2 a) / t."""
    x = _sizes(shape)
    width = 2 * x.keys + 3 * x.values + 2 * x.v_heads
    return np.asarray(shape.hidden * width / ranks(tp))


def gdn_replicated_params(shape: ModelShape) -> int:
    """Return what every tensor-parallel rank holds whole: d_v + h."""
    return norm_params(shape) + _sizes(shape).v_dim


def gdn_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return its two projections: q, k, v, gate, beta and decays in one, and the output.

    Decays, their bias and norms have one dimension, the filters three.
    Source: Megatron-LM core/ssm/gated_delta_net/gdn.py (in_proj, out_proj).
    """
    x = _sizes(shape)
    rows = 2 * x.keys + 2 * x.values + 2 * x.v_heads
    return (
        Matrix(rows, shape.hidden, cut="rows"),
        Matrix(shape.hidden, x.values, cut="columns"),
    )


def gdn_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token: the projections, c (2 k + v) and 4 a d_v^2.

    Source: Megatron-LM training/training.py, gdn_layer_flops: K K^T, V K^T, the update of the
    state and its product with the query, which it takes as squares of d_v.
    """
    x = _sizes(shape)
    projections = shape.hidden * (2 * x.keys + 3 * x.values + 2 * x.v_heads)
    rule = x.conv * (2 * x.keys + x.values) + 4 * x.v_heads * x.v_dim**2
    return LayerMacs(projections, 0, 0, {}, lambda seq_len: float(rule))


def exchanged(shape: ModelShape, tp: Ints, cp: ArrayLike) -> tuple[Floats, ...]:
    """Return the elements of a token in the two all-to-alls of a forward: all inputs, the output.

    Source: Megatron-LM core/ssm/gated_delta_net (a2a_cp_to_hp, a2a_hp_to_cp).
    """
    x, t = _sizes(shape), ranks(tp)
    return (2 * x.keys + 2 * x.values + 2 * x.v_heads) / t, x.values / t


def gdn_recurrence(inputs: LayerInputs) -> Recurrence:
    """Return what a gated delta net of one rank is to `recurrent_terms`.

    Per token, with k, v and a heads of the rank, e = a d_k (keys repeated for every head of
    values), q tokens of a chunk, S = a d_k d_v / q elements of states, A = a q of scores:

    FLOPs   6 a d_k d_v + 6 q e + 4 q v forward; 16 a d_k d_v + 12 q e + 10 q v + 4 q A backward
    bytes   12 e + 12 v + 2 A + 4 S forward; 36 e + 30 v + 4 A + 8 S backward
    others  conv 8 an element of 2 k + v forward, 10 backward (with the copy before it); l2 norm
            8 k and 12 k, keys repeated 4 e and 6 e, copies 8 v, gates 12 a and 20 a, norm and
            gate 10 v and 16 v
    kept    4 k + 4 v + 4 a, the projection's output, of which the convolution keeps a view; 4 k,
            normed queries and keys; 4 e + 2 v + 6 a + 2 A, q, k, v, decays in fp32, beta, and the
            inverse of I + A; 2 a, the input of the decays; 8 v: the rule's output, its norm, the
            gate, the input of the projection; numbers of the norms in fp32, 4 a and 4 a head of
            queries and of keys

    Saved tensors: fla ops/gated_delta_rule/chunk.py (ChunkGatedDeltaRuleFunction), modules/conv
    and l2norm.py, around them Megatron-LM core/ssm/gated_delta_net; scripts/check_layers counts
    them. States are not saved. Without repetition (as many heads of keys) e copies stand in place
    of the normed ones all the same.
    """
    x, t = _sizes(inputs.problem.shape), ranks(inputs.split.tp)
    k, v, a = x.keys / t, x.values / t, x.v_heads / t
    e, q = a * x.k_dim, float(x.chunk)
    square, scores = e * x.v_dim, a * q
    states = square / q
    conv = 2 * k + v
    return Recurrence(
        in_width=2 * k + 2 * v + 2 * a,
        out_width=v,
        elementwise_bytes=(
            8 * conv + 8 * k + 4 * e + 8 * v + 12 * a + 10 * v,
            10 * conv + 12 * k + 6 * e + 8 * v + 20 * a + 16 * v,
        ),
        scan_flops=(
            6 * square + 6 * q * e + 4 * q * v,
            16 * square + 12 * q * e + 10 * q * v + 4 * q * scores,
        ),
        scan_bytes=(
            12 * e + 12 * v + 2 * scores + 4 * states,
            36 * e + 30 * v + 4 * scores + 8 * states,
        ),
        scan_kernels=(6, 10),
        kept_bytes=8 * k + 4 * e + 14 * v + 16 * a + 2 * scores + 8 * x.k_heads / t,
        backward_bytes=8 * e + 6 * v + 4 * states,
        exchanged=exchanged(inputs.problem.shape, inputs.split.tp, inputs.split.cp),
        kernels=22,
    )


def gdn_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of a gated delta net."""
    return recurrent_terms(inputs, gdn_recurrence(inputs), gdn_modules)


def gdn_modules(inputs: LayerInputs) -> Modules:
    """Return its recompute group, `gdn_norm_out`: norm and gate of the output, and the all-to-all.

    Of v elements and a heads of the rank it drops 2 v of the norm's output, 2 v of the input of
    the projection (in 8 bits with fp8 recipes) and 4 a of the norm, and keeps the rule's output
    and the gate. It moves 10 v bytes again in two launches, and sends v elements over cp.
    Source: Megatron-LM 0.19 core/ssm/gated_delta_net/gdn.py (norm_out_checkpoint).
    """
    problem, tokens = inputs.problem, inputs.tokens
    x, t = _sizes(problem.shape), ranks(inputs.split.tp)
    v, a, part = x.values / t, x.v_heads / t, problem.pool.accelerator
    wide = inputs.element_bytes / 2.0
    per_byte = problem.stack.elementwise_factor / (part.hbm_bytes_per_s * part.efficiency.hbm_frac)
    moved_s = tokens * wide * 10.0 * v * per_byte + 2.0 * part.efficiency.kernel_latency_s
    dropped = wide * (4.0 * v + 4.0 * a) - inputs.micro_batch.quantized.saved_bytes * v
    zeros = np.zeros_like(tokens)
    again = RecomputedModule(
        moved_s + exchange_s(inputs, (v,)), tokens * dropped, zeros, Exposure(zeros, zeros), zeros
    )
    return {NORM_OUT: again}


def _heads(shape: ModelShape) -> HeadsCut:
    x = _sizes(shape)
    return HeadsCut(x.v_heads, x.k_heads)


GDN = Mixer(
    name="gdn",
    title="gated delta net",
    equation="x + W_o (norm(rule(conv(q, k, v), beta, decay)) gate(z)), all of them W_i norm(x)",
    source="Yang et al. 2024 (arXiv 2412.06464); Megatron-LM core/ssm/gated_delta_net",
    params=gdn_params,
    replicated_params=gdn_replicated_params,
    linear_params=gdn_linear_params,
    macs=gdn_macs,
    terms=gdn_terms,
    modules=lambda shape: (NORM_OUT,),
    section="delta_net",
    exchanged=exchanged,
    cut_over=_heads,
    frameworks=("megatron", "deepspeed", "fsdp2", "bridge", "primus", "automodel"),
    matrices=gdn_matrices,
)


def _gate_weights(shape: ModelShape) -> tuple[int, int]:
    """Return the weights behind decays and output gate: those cut over tp, those whole on a rank.

    d_v (e + v) and 2 h d_v; h (e + v) and none with full gates.
    """
    x = _sizes(shape)
    width = x.v_heads * x.k_dim + x.values
    if x.full_gates:
        return shape.hidden * width, 0
    return x.v_dim * width, 2 * shape.hidden * x.v_dim


def kda_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of Kimi delta attention and its norm on one tensor-parallel rank.

    N = [h (2 k + v + a) + c (2 k + v) + d_v (e + v) + e + a + v h] / t + 2 h d_v + d_v + h

    e = a d_k, the width of the decays. Decays and output gate are products of two matrices of
    inner width d_v, the first of them, like the norms, whole on every rank; with full gates each
    is one matrix, h (e + v) / t in place of both terms of d_v.
    Source: fla layers/kda.py (KimiDeltaAttention), without the bias of the output gate, which
    Kimi-Linear has not; transformers models/bailing_hybrid (BailingHybridDeltaAttention).
    """
    x = _sizes(shape)
    decays = x.v_heads * x.k_dim
    sharded = shape.hidden * (2 * x.keys + 2 * x.values + x.v_heads) + _gate_weights(shape)[0]
    sharded += x.conv * (2 * x.keys + x.values)
    sharded += decays + x.v_heads
    return np.asarray(sharded / ranks(tp) + kda_replicated_params(shape))


def kda_linear_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of its linear layers: [h (2 k + 2 v + a) + d_v (e + v)] / t + 2 h d_v.

    With full gates [h (2 k + 3 v + a + e)] / t.
    """
    x, (cut, whole) = _sizes(shape), _gate_weights(shape)
    sharded = shape.hidden * (2 * x.keys + 2 * x.values + x.v_heads) + cut
    return np.asarray(sharded / ranks(tp) + whole)


def kda_replicated_params(shape: ModelShape) -> int:
    """Return what every tensor-parallel rank holds whole: 2 h d_v + d_v + h."""
    return norm_params(shape) + _sizes(shape).v_dim + _gate_weights(shape)[1]


def kda_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return its linear layers, each a matrix of its own.

    Queries, keys, values, beta; the two factors of decays and of the gate, or one of each; the
    output. Source: fla layers/kda.py ({q,k,v,b,o}_proj, f_proj, g_proj).
    """
    x, h = _sizes(shape), shape.hidden
    inner = h if x.full_gates else x.v_dim
    return (
        Matrix(x.keys, h, count=2, cut="rows"),
        Matrix(x.values, h, cut="rows"),
        Matrix(x.v_heads, h, cut="rows"),
        *(() if x.full_gates else (Matrix(x.v_dim, h, count=2),)),
        Matrix(x.v_heads * x.k_dim, inner, cut="rows"),
        Matrix(x.values, inner, cut="rows"),
        Matrix(h, x.values, cut="columns"),
    )


def kda_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token: linear layers, c (2 k + v) and 4 a d_k d_v.

    As `gdn_macs` counts the rule. Source: Kimi Linear (arXiv 2510.26692).
    """
    x, one = _sizes(shape), np.ones(1, dtype=np.int32)
    rule = x.conv * (2 * x.keys + x.values) + 4 * x.v_heads * x.k_dim * x.v_dim
    projections = round(kda_linear_params(shape, one).item())
    return LayerMacs(projections, 0, 0, {}, lambda seq_len: float(rule))


def kda_recurrence(inputs: LayerInputs) -> Recurrence:
    """Return what Kimi delta attention of one rank is to `recurrent_terms`.

    As a gated delta net (`gdn_recurrence`), with decays of width e in fp32 in every kernel:

    FLOPs   3 q e more forward, 6 q e backward: keys with their decays, and gated ones
    bytes   18 e more forward, 36 e backward
    others  conv 8 an element of 2 k + v forward, 10 backward; norm and gate 6 v, 10 v
    kept    2 (2 k + v), the inputs of the convolutions; 4 k + 2 v + 2 e + 6 a + 4 A, normed q and
            k, v, decays before their gate, beta before and (in fp32) after, both matrices of
            scores; 4 d_v, the inner of decays and output gate; 6 v: output, gate, input of the
            projection; numbers of the norms in fp32, 4 a and 4 a head of queries and of keys

    Full gates are projections from the residual stream, with nothing kept between.

    Saved tensors: fla ops/kda/chunk.py (ChunkKDAFunction; w, u, states and the sums of decays are
    computed again), modules/{conv,fused_norm_gate}, layers/kda.py.
    """
    x, t = _sizes(inputs.problem.shape), ranks(inputs.split.tp)
    k, v, a = x.keys / t, x.values / t, x.v_heads / t
    e, q = a * x.k_dim, float(x.chunk)
    square, scores, conv = e * x.v_dim, a * q, 2 * k + v
    states = square / q
    first = np.full_like(t, 0.0 if x.full_gates else float(x.v_dim))
    gates = e + v if x.full_gates else 2 * first
    return Recurrence(
        in_width=2 * k + v + a + gates,
        out_width=v,
        inner=() if x.full_gates else ((first, e), (first, v)),
        elementwise_bytes=(8 * conv + 6 * v, 10 * conv + 10 * v),
        scan_flops=(
            6 * square + 9 * q * e + 4 * q * v,
            16 * square + 18 * q * e + 10 * q * v + 4 * q * scores,
        ),
        scan_bytes=(
            30 * e + 12 * v + 4 * scores + 4 * states,
            72 * e + 30 * v + 8 * scores + 8 * states,
        ),
        scan_kernels=(8, 12),
        kept_bytes=8 * k + 10 * v + 2 * e + 10 * a + 4 * scores + 4 * first + 8 * x.k_heads / t,
        backward_bytes=20 * e + 6 * v + 4 * states,
        exchanged=kda_exchanged(inputs.problem.shape, inputs.split.tp, inputs.split.cp),
        kernels=26,
    )


def kda_exchanged(shape: ModelShape, tp: Ints, cp: ArrayLike) -> tuple[Floats, ...]:
    """Return the elements of a token in the two all-to-alls of a forward, as `exchanged`."""
    x, t = _sizes(shape), ranks(tp)
    inputs = 2 * x.keys + 2 * x.values + x.v_heads * (x.k_dim + 1)
    return inputs / t, x.values / t


def kda_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of Kimi delta attention."""
    return recurrent_terms(inputs, kda_recurrence(inputs))


KDA = Mixer(
    name="kda",
    title="Kimi delta attention",
    equation="x + W_o (norm(rule(conv(q), conv(k), conv(v), beta, decays)) gate(z))",
    source="Kimi Linear (arXiv 2510.26692); fla layers/kda.py",
    params=kda_params,
    replicated_params=kda_replicated_params,
    linear_params=kda_linear_params,
    macs=kda_macs,
    terms=kda_terms,
    modules=lambda shape: (),
    section="delta_net",
    frameworks=("deepspeed", "fsdp2"),
    exchanged=kda_exchanged,
    cut_over=_heads,
    matrices=kda_matrices,
)
