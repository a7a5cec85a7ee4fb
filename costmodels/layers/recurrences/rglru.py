"""A real-gated linear recurrent unit in place of attention (Griffin, RecurrentGemma)."""

import numpy as np
from numpy.typing import ArrayLike

from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.recurrences.mamba1 import VECTOR_SHARE
from costmodels.layers.recurrences.recurrent import Recurrence, recurrent_terms
from costmodels.layers.sublayers.sublayer import HeadsCut, Mixer, MixerTerms, norm_params, ranks
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import ModelShape, RglruShape


def _sizes(shape: ModelShape) -> RglruShape:
    assert shape.rglru is not None  # checked where the model is read
    return shape.rglru


def rglru_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of a recurrent block and its norm on one tensor-parallel rank.

    N = [3 h w + 2 w^2 / a + (c + 1) w + 5 w] / t + h + norm

    w the width, a the blocks of both gates, c taps. Biases: two projections in, two gates, the
    filter, one projection out; one decay a channel. Source: transformers models/recurrent_gemma
    (RecurrentGemmaRecurrentBlock, RecurrentGemmaRglru).
    """
    x = _sizes(shape)
    vectors = (x.conv + 1) * x.width + 5 * x.width
    sharded = rglru_linear_params(shape, tp) + vectors / ranks(tp)
    return np.asarray(sharded + shape.hidden + norm_params(shape))


def rglru_linear_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of its linear layers: [3 h w + 2 w^2 / a] / t."""
    x = _sizes(shape)
    return np.asarray(x.width * (3 * shape.hidden + 2 * x.block) / ranks(tp))


def rglru_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return its three projections. Gates have three dimensions: one block a head."""
    x, h = _sizes(shape), shape.hidden
    return Matrix(x.width, h, count=2, cut="rows"), Matrix(h, x.width, cut="columns")


def rglru_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token: 3 h w + 2 w^2 / a, and c w + w of filter and state."""
    x = _sizes(shape)
    projections = x.width * (3 * shape.hidden + 2 * x.block)
    state = float((x.conv + 1) * x.width)
    return LayerMacs(projections, 0, 0, {}, lambda seq_len: state)


def rglru_recurrence(inputs: LayerInputs) -> Recurrence:
    """Return what a recurrent block of one rank is to `recurrent_terms`.

    Per token, with w of the rank:

    FLOPs   4 w forward, twice that backward, in fp32 on the vector units (`VECTOR_SHARE`)
    bytes   10 w forward (decays in fp32, inputs, states), 24 w backward
    others  filter 4 w, activation 4 w, two gates 8 w, decays and scaled inputs 12 w, product 6 w;
            62 w backward
    kept    2 w each: projection y and its activation, x, the filter's output, both gates, states,
            the product

    Source: De et al. 2024 (arXiv 2402.19427), section 4; operands counted by hand.
    """
    x, t = _sizes(inputs.problem.shape), ranks(inputs.split.tp)
    w, block = x.width / t, float(x.block) + 0.0 * t
    flops = 4.0 * w * VECTOR_SHARE
    return Recurrence(
        in_width=2 * w,
        out_width=w,
        elementwise_bytes=(34 * w, 62 * w),
        scan_flops=(flops, 2 * flops),
        scan_bytes=(10 * w, 24 * w),
        scan_kernels=(1, 2),
        kept_bytes=16 * w,
        backward_bytes=12 * w,
        exchanged=exchanged(inputs.problem.shape, inputs.split.tp, inputs.split.cp),
        kernels=14,
        inner=((block, w), (block, w)),
    )


def exchanged(shape: ModelShape, tp: Ints, cp: ArrayLike) -> tuple[Floats, ...]:
    """Return the elements of a token in the all-to-alls of a forward: x and y; the output."""
    width = _sizes(shape).width / ranks(tp)
    return 2 * width, width


def rglru_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of a recurrent block."""
    return recurrent_terms(inputs, rglru_recurrence(inputs))


RGLRU = Mixer(
    name="rglru",
    title="a gated linear recurrence",
    equation="x + W_o (act(y) s), s = a s' + sqrt(1 - a^2) (i conv(x)), a = exp(-8 r softplus(A))",
    source="De et al. 2024 (Griffin, arXiv 2402.19427); transformers models/recurrent_gemma",
    params=rglru_params,
    replicated_params=lambda shape: shape.hidden + norm_params(shape),
    linear_params=rglru_linear_params,
    macs=rglru_macs,
    terms=rglru_terms,
    modules=lambda shape: (),
    section="rglru",
    frameworks=("fsdp2",),
    exchanged=exchanged,
    cut_over=lambda shape: HeadsCut(_sizes(shape).heads, _sizes(shape).heads),
    matrices=rglru_matrices,
)
