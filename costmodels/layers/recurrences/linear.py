"""Linear attention with a fixed decay a head (lightning attention)."""

import numpy as np
from numpy.typing import ArrayLike

from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.recurrences.recurrent import Recurrence, recurrent_terms
from costmodels.layers.sublayers.sublayer import HeadsCut, Mixer, MixerTerms, norm_params, ranks
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import LinearShape, ModelShape


def _sizes(shape: ModelShape) -> LinearShape:
    assert shape.linear is not None  # checked where the model is read
    return shape.linear


def linear_attention_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of linear attention and its norm on one tensor-parallel rank.

    N = (5 h w + w) / t + h,  w = heads * head_dim

    Queries, keys, values, output gate, projection back, and a norm of the output; 4 h w without a
    gate. Source: transformers models/minimax (MiniMaxLightningAttention).
    """
    x = _sizes(shape)
    return np.asarray(weights(shape, tp) + x.width / ranks(tp) + norm_params(shape))


def weights(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of its linear layers on one tensor-parallel rank."""
    x = _sizes(shape)
    return np.asarray((4 + x.gate) * shape.hidden * x.width / ranks(tp))


def linear_attention_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return its projections: queries, keys and values in one, the gate if any, the output.

    Source: transformers models/minimax (MiniMaxLightningAttention).
    """
    x, h = _sizes(shape), shape.hidden
    gate = (Matrix(x.width, h, cut="rows"),) if x.gate else ()
    return Matrix(3 * x.width, h, cut="rows"), *gate, Matrix(h, x.width, cut="columns")


def linear_attention_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token: (4 + gate) h w, and 2 w d of the state.

    k v^T into the state and q times it, d x d a head. Source: Lightning Attention-2 (arXiv
    2401.04658), section 3. Left out: the products inside chunks.
    """
    x = _sizes(shape)
    state = 2.0 * x.width * x.head_dim
    projections = (4 + x.gate) * shape.hidden * x.width
    return LayerMacs(projections, 0, 0, {}, lambda seq_len: state)


def linear_recurrence(inputs: LayerInputs) -> Recurrence:
    """Return what linear attention of one rank is to `recurrent_terms`.

    Per token, w of the rank, q tokens of a chunk, S = w d / q elements of states:

    FLOPs   4 w d + 2 q w forward (the causal half inside chunks), 2.5 times that backward
    bytes   8 w + 8 S forward, 20 w + 20 S backward
    others  activation of q, k, v 12 w and 18 w; norm 4 w and 6 w; gate 6 w and 10 w
    kept    6 w before and 6 w after the activation; 2 w each: output, its norm, and with a gate
            the gate and the input of the projection

    Source: operands counted by hand, after Lightning Attention-2 (arXiv 2401.04658).
    """
    x, t = _sizes(inputs.problem.shape), ranks(inputs.split.tp)
    w, d, q = x.width / t, float(x.head_dim), float(x.chunk)
    states, flops = w * d / q, 4 * w * d + 2 * q * w
    gate = 1.0 * x.gate
    return Recurrence(
        in_width=(3 + x.gate) * w,
        out_width=w,
        elementwise_bytes=((16 + 6 * gate) * w, (24 + 10 * gate) * w),
        scan_flops=(flops, 2.5 * flops),
        scan_bytes=(8 * w + 8 * states, 20 * w + 20 * states),
        scan_kernels=(3, 5),
        kept_bytes=(12 + 4 + 4 * gate) * w,
        backward_bytes=8 * w + 8 * states,
        exchanged=exchanged(inputs.problem.shape, inputs.split.tp, inputs.split.cp),
        kernels=12,
    )


def exchanged(shape: ModelShape, tp: Ints, cp: ArrayLike) -> tuple[Floats, ...]:
    """Return the elements of a token in the all-to-alls of a forward: q, k, v; the output."""
    width = _sizes(shape).width / ranks(tp)
    return 3 * width, width


def linear_attention_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of linear attention."""
    return recurrent_terms(inputs, linear_recurrence(inputs))


LINEAR = Mixer(
    name="linear",
    title="linear attention",
    equation="x + W_o (norm(q state(k, v)) gate(x)), the state decayed by a number a head",
    source="Lightning Attention-2 (arXiv 2401.04658); transformers models/minimax",
    params=linear_attention_params,
    replicated_params=norm_params,
    linear_params=weights,
    macs=linear_attention_macs,
    terms=linear_attention_terms,
    modules=lambda shape: (),
    section="linear",
    frameworks=("deepspeed", "fsdp2"),
    exchanged=exchanged,
    cut_over=lambda shape: HeadsCut(_sizes(shape).heads, _sizes(shape).heads),
    matrices=linear_attention_matrices,
)
