"""The Mamba-2 layer: a state of N by P elements a head, decayed by a scalar a head and token."""

import numpy as np
from numpy.typing import ArrayLike

from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.recurrences.recurrent import Recurrence, recurrent_terms
from costmodels.layers.sublayers.sublayer import HeadsCut, Mixer, MixerTerms, norm_params, ranks
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import Mamba2Shape, ModelShape


def _sizes(shape: ModelShape) -> Mamba2Shape:
    assert shape.mamba2 is not None  # checked where the model is read
    return shape.mamba2


def mamba2_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of a Mamba-2 layer and its norm on one tensor-parallel rank.

    N = [h (2 d + 2 G n + H) + (c + 1) (d + 2 G n) + 3 H + d + d h] / t + h

    d = H P the inner width, G groups, n the state, c the taps of the convolution (with a bias); A,
    D and the bias of dt are 3 H, the gated norm d. The norm before it is whole on every rank.
    Source: Megatron-LM core/ssm/mamba_mixer.py.
    """
    x = _sizes(shape)
    conv = x.inner + 2 * x.groups * x.state
    vectors = (x.conv + 1) * conv + 3 * x.heads + x.inner
    return np.asarray(mamba2_linear_params(shape, tp) + vectors / ranks(tp) + norm_params(shape))


def mamba2_linear_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of its two projections: h (3 d + 2 G n + H) / t."""
    x = _sizes(shape)
    width = 3 * x.inner + 2 * x.groups * x.state + x.heads
    return np.asarray(shape.hidden * width / ranks(tp))


def mamba2_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return its two projections: z, x, B, C and dt in one, and the output.

    A, D, norms and the bias of dt have one dimension, the filters three.
    Source: Megatron-LM core/ssm/mamba_mixer.py (in_proj, out_proj).
    """
    x = _sizes(shape)
    rows = 2 * x.inner + 2 * x.groups * x.state + x.heads
    return (
        Matrix(rows, shape.hidden, cut="rows", is_state_input=True),
        Matrix(shape.hidden, x.inner, cut="columns"),
    )


def mamba2_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token: h (2 d + 2 G n + H) + d h, and 3.5 d n of the scan.

    Source: Megatron-LM training/training.py, mamba_layer_flops, which counts 7 d n FLOPs of the
    scan (and takes d = 2 h whatever the heads). Left out there and here: the convolution.
    """
    x = _sizes(shape)
    projections = shape.hidden * (3 * x.inner + 2 * x.groups * x.state + x.heads)
    scan = 3.5 * x.inner * x.state
    return LayerMacs(projections, 0, 0, {}, lambda seq_len: scan)


def groups_of_rank(shape: ModelShape, tp: Ints, cp: ArrayLike) -> Floats:
    """Return the groups of one rank's share of the sequence, repeated where cp > G / t."""
    context = np.asarray(cp, dtype=np.float64)
    return np.maximum(_sizes(shape).groups / ranks(tp), np.where(context > 1, context, 0.0))


def exchanged(shape: ModelShape, tp: Ints, cp: ArrayLike) -> tuple[Floats, ...]:
    """Return the elements of a token in the all-to-alls of a forward: z, x, B, C, dt, then y.

    Source: Megatron-LM core/ssm/mamba_context_parallel.py.
    """
    x, t = _sizes(shape), ranks(tp)
    d, g = x.inner / t, groups_of_rank(shape, tp, cp) * x.state
    return d, d, g, g, x.heads / t, d


def mamba2_recurrence(inputs: LayerInputs) -> Recurrence:
    """Return what a Mamba-2 layer of one rank is to `recurrent_terms`.

    Per token, with d, g = G n and H of the rank, q = tokens of a chunk, S = d n / q elements of
    states, C = q G elements of scores inside chunks:

    FLOPs   2 q g + q d + 4 n d forward: scores, their product with x, states in and out; backward
            6 q g + 3 q d + 10 n d, states and scores computed again
    bytes   10 d + 8 g + 10 S + 8 C forward, 32 d + 16 g + 30 S + 28 C backward
    conv    4 bytes an element of d + 2 g forward, 10 backward (computed again); gated norm 4 d,
            10 d
    kept    2 (2 d + 2 g + H), the projection's output; 2 d each: the scan's output before and
            after its gate, the norm's output; 4 bytes a group of the norm

    Saved tensors: zxbcdt and out_x (mamba_ssm ops/triton/ssd_combined.py,
    MambaSplitConv1dScanCombinedFn), the input and rstd of the norm (layernorm_gated.py), the input
    of the projection; states are not saved. Operands of its kernels, counted by hand. With cp >
    G / t the groups are repeated: g = n cp (Megatron-LM core/ssm/mamba_context_parallel.py).
    """
    x, t = _sizes(inputs.problem.shape), ranks(inputs.split.tp)
    d, heads = x.inner / t, x.heads / t
    groups = groups_of_rank(inputs.problem.shape, inputs.split.tp, inputs.split.cp)
    g, q = groups * x.state, float(x.chunk)
    states, scores = d * x.state / q, q * groups
    conv = d + 2 * g
    projected = x.groups / t * x.state
    return Recurrence(
        in_width=2 * d + 2 * projected + heads,
        out_width=d,
        elementwise_bytes=(4 * conv + 4 * d, 10 * conv + 10 * d),
        scan_flops=(
            2 * q * g + q * d + 4 * x.state * d,
            6 * q * g + 3 * q * d + 10 * x.state * d,
        ),
        scan_bytes=(
            10 * d + 8 * g + 10 * states + 8 * scores,
            32 * d + 16 * g + 30 * states + 28 * scores,
        ),
        scan_kernels=(5, 13),
        kept_bytes=2 * (2 * d + 2 * g + heads) + 6 * d + 4 * groups,
        backward_bytes=2 * (2 * d + 2 * g + heads) + 4 * conv + 4 * d + 12 * states + 8 * scores,
        exchanged=exchanged(inputs.problem.shape, inputs.split.tp, inputs.split.cp),
        kernels=14,
    )


def mamba2_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of a Mamba-2 layer."""
    return recurrent_terms(inputs, mamba2_recurrence(inputs))


MAMBA2 = Mixer(
    name="mamba2",
    title="Mamba",
    equation="x + W_o norm(gate(z) ssd(conv(x, B, C), dt)), all of them W_i norm(x)",
    source="Dao and Gu 2024 (arXiv 2405.21060); Megatron-LM core/ssm/mamba_mixer.py",
    params=mamba2_params,
    replicated_params=norm_params,
    linear_params=mamba2_linear_params,
    macs=mamba2_macs,
    terms=mamba2_terms,
    modules=lambda shape: (),
    section="mamba2",
    exchanged=exchanged,
    cut_over=lambda shape: HeadsCut(_sizes(shape).heads, _sizes(shape).groups, repeats=True),
    frameworks=("megatron", "deepspeed", "fsdp2", "bridge", "primus", "automodel"),
    matrices=mamba2_matrices,
)
