"""A gated short convolution in place of attention (LFM2)."""

import numpy as np
from numpy.typing import ArrayLike

from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.recurrences.recurrent import Recurrence, recurrent_terms
from costmodels.layers.sublayers.sublayer import HeadsCut, Mixer, MixerTerms, norm_params, ranks
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import ModelShape, ShortConvShape


def _sizes(shape: ModelShape) -> ShortConvShape:
    assert shape.short_conv is not None  # checked where the model is read
    return shape.short_conv


def conv_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of a short convolution and its norm on one tensor-parallel rank.

    N = (4 h^2 + c h) / t + h,  c taps: three projections in, one back, a filter a channel

    Source: transformers models/lfm2 (Lfm2ShortConv).
    """
    filters = _sizes(shape).conv * shape.hidden / ranks(tp)
    return np.asarray(conv_linear_params(shape, tp) + filters + norm_params(shape))


def conv_linear_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of its linear layers: 4 h^2 / t."""
    return np.asarray(4.0 * shape.hidden**2 / ranks(tp))


def conv_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return its two projections: B, C and x in one, and the output.

    Filters have three dimensions. Source: transformers models/lfm2 (Lfm2ShortConv).
    """
    h = shape.hidden
    return Matrix(3 * h, h, cut="rows"), Matrix(h, h, cut="columns")


def conv_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token: 4 h^2, and c h of the filters."""
    taps = float(_sizes(shape).conv * shape.hidden)
    return LayerMacs(4 * shape.hidden**2, 0, 0, {}, lambda seq_len: taps)


def conv_recurrence(inputs: LayerInputs) -> Recurrence:
    """Return what a short convolution of one rank is to `recurrent_terms`.

    Per token, w = h / t: B x moves 6 w, the filter 4 w, the product with C 6 w forward; 10, 10 and
    10 w backward. Kept: B, C and x 6 w, B x 2 w, the filter's output 2 w, the product 2 w.
    Operands counted by hand, after transformers models/lfm2 (Lfm2ShortConv).
    """
    width = inputs.problem.shape.hidden / ranks(inputs.split.tp)
    return Recurrence(
        in_width=3 * width,
        out_width=width,
        elementwise_bytes=(16 * width, 30 * width),
        scan_flops=(0 * width, 0 * width),
        scan_bytes=(0 * width, 0 * width),
        scan_kernels=(0, 0),
        kept_bytes=12 * width,
        backward_bytes=6 * width,
        exchanged=exchanged(inputs.problem.shape, inputs.split.tp, inputs.split.cp),
        kernels=6,
    )


def exchanged(shape: ModelShape, tp: Ints, cp: ArrayLike) -> tuple[Floats, ...]:
    """Return the elements of a token in the all-to-alls of a forward: B, C and x; the output."""
    width = shape.hidden / ranks(tp)
    return 3 * width, width


def conv_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of a short convolution."""
    return recurrent_terms(inputs, conv_recurrence(inputs))


CONV = Mixer(
    name="conv",
    title="a short convolution",
    equation="x + W_o (C conv(B x)), B, C and x W_i norm(x)",
    source="transformers models/lfm2 (Lfm2ShortConv)",
    params=conv_params,
    replicated_params=norm_params,
    linear_params=conv_linear_params,
    macs=conv_macs,
    terms=conv_terms,
    modules=lambda shape: (),
    section="short_conv",
    exchanged=exchanged,
    cut_over=lambda shape: HeadsCut(shape.hidden, shape.hidden),
    frameworks=("deepspeed", "fsdp2"),
    matrices=conv_matrices,
)
