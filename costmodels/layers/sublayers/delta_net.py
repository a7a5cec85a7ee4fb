"""The gated delta net: a state of keys by values a head, decayed and corrected by every token."""

import numpy as np
from numpy.typing import ArrayLike

from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.sublayers.recurrent import Recurrence, ranks, recurrent_terms
from costmodels.layers.sublayers.sublayer import HeadsCut, Mixer, MixerTerms, norm_params
from costmodels.shapes import DeltaNetShape, ModelShape


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
    whole = gdn_linear_params(shape, tp) + vectors / ranks(tp)
    return np.asarray(whole + gdn_replicated_params(shape))


def gdn_linear_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of its two projections: h (2 k + 3 v + 2 a) / t."""
    x = _sizes(shape)
    width = 2 * x.keys + 3 * x.values + 2 * x.v_heads
    return np.asarray(shape.hidden * width / ranks(tp))


def gdn_replicated_params(shape: ModelShape) -> int:
    """Return what every tensor-parallel rank holds whole: d_v + h."""
    return norm_params(shape) + _sizes(shape).v_dim


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
    kept    2 (2 k + v), the input of the convolution; 4 k, normed queries and keys; 4 e + 2 v
            + 6 a + 2 A, q, k, v, decays in fp32, beta, and the inverse of I + A; 8 v: the rule's
            output, its norm, the gate, the input of the projection

    Saved tensors: fla ops/gated_delta_rule/chunk.py (ChunkGatedDeltaRuleFunction), modules/conv
    and l2norm.py, around them Megatron-LM core/ssm/gated_delta_net. States are not saved. Without
    repetition (as many heads of keys) e copies stand in place of the normed ones all the same.
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
        kept_bytes=2 * conv + 4 * k + 4 * e + 2 * v + 6 * a + 2 * scores + 8 * v,
        backward_bytes=8 * e + 6 * v + 4 * states,
        exchanged=exchanged(inputs.problem.shape, inputs.split.tp, inputs.split.cp),
        kernels=22,
    )


def gdn_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of a gated delta net."""
    return recurrent_terms(inputs, gdn_recurrence(inputs))


def _heads(shape: ModelShape) -> HeadsCut:
    x = _sizes(shape)
    return HeadsCut(x.v_heads, x.k_heads)


GDN = Mixer(
    name="gdn",
    title="a gated delta net",
    equation="x + W_o (norm(rule(conv(q, k, v), beta, decay)) gate(z)), all of them W_i norm(x)",
    source="Yang et al. 2024 (arXiv 2412.06464); Megatron-LM core/ssm/gated_delta_net",
    params=gdn_params,
    replicated_params=gdn_replicated_params,
    linear_params=gdn_linear_params,
    macs=gdn_macs,
    terms=gdn_terms,
    modules=lambda shape: (),
    section="delta_net",
    exchanged=exchanged,
    cut_over=_heads,
    frameworks=("megatron", "fsdp2", "bridge"),
)
