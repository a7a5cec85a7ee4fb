"""Ends of an encoder in front of a decoder: what makes vectors of its input, its last norm.

Its layers are layers of the model (`towers.encoder_layers`); these stand on the first stage.
"""

import numpy as np
from numpy.typing import NDArray

from costmodels.layers.compute import ForwardBackward, embedding_times, products_of
from costmodels.layers.layer_kind import LayerInputs
from costmodels.layers.sublayers.sublayer import norm_params
from costmodels.shapes import EncoderShape, ModelShape
from costmodels.towers.encoder_layers import encoder_inputs, encoder_shape

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

TAPS = 3
"""Taps of each of the two convolutions over sound."""


def sound_conv_macs(shape: ModelShape) -> tuple[float, float]:
    """Return the multiply-adds of a frame in the two convolutions over sound; 0 without them.

    2 . 3 c h_e and 3 h_e^2: the second takes every other frame of the first.
    Source: transformers models/whisper (conv1, conv2).
    """
    x = shape.encoder
    if x is None or not x.conv_channels:
        return 0.0, 0.0
    hidden = float(encoder_shape(shape).hidden)
    return 2.0 * TAPS * x.conv_channels * hidden, TAPS * hidden * hidden


def encoder_end_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of an encoder beside its layers, on one tensor-parallel rank.

    N = V_e h_e / t + P h_e + 3 c h_e + 3 h_e^2 + 2 h_e + norm

    an embedding of its own, learned positions, two convolutions with biases, the last norm.
    Source: transformers models/{bart,t5,whisper}.
    """
    x = shape.encoder
    if x is None:
        return np.zeros(len(tp))
    inner = encoder_shape(shape)
    total = float(x.positions * inner.hidden + norm_params(inner))
    if x.conv_channels:
        total += TAPS * inner.hidden * (x.conv_channels + inner.hidden) + 2.0 * inner.hidden
    return x.vocab * inner.hidden / np.asarray(tp, dtype=np.float64) + total


def encoder_end_flops(shape: ModelShape) -> float:
    """Return forward plus backward FLOPs of the convolutions over sound for one sequence.

    F = S (3 . 2 m_2 + 2 . 2 m_1)

    m_1, m_2 the multiply-adds of a frame (`sound_conv_macs`): the first has no gradient of its
    input.
    """
    x = shape.encoder
    if x is None:
        return 0.0
    first, second = sound_conv_macs(shape)
    return x.seq_len * (6.0 * second + 4.0 * first)


def encoder_end_times(inputs: LayerInputs) -> ForwardBackward:
    """Return the time of an encoder's lookups or convolutions, for one micro-batch.

    Whole on every tensor-parallel rank. Left out: its last norm, activations between the
    convolutions.
    """
    own = encoder_inputs(inputs)
    problem, x = own.problem, _sizes(inputs.problem.shape)
    if not x.conv_channels:
        part = problem.pool.accelerator
        return embedding_times(problem.shape, part, own.tokens, own.split.tp, own.sp)
    three = products_of(0, problem.job, problem.pool.accelerator, problem.stack)
    hidden = float(problem.shape.hidden)
    first = three(2.0 * own.tokens, float(TAPS * x.conv_channels), hidden)
    second = three(own.tokens, TAPS * hidden, hidden)
    return ForwardBackward(first[0] + second[0], first[2] + second[1] + second[2])


def encoder_end_bytes(inputs: LayerInputs) -> Floats:
    """Return what an encoder keeps beside its layers for one micro-batch, bytes.

    Its output, which the keys of all layers are made of, and the input of its last norm, 4 h_e a
    token in 16 bits; token ids, 8; of the convolutions 2 (2 c + 3 . 2 h_e + h_e) a frame:
    their inputs and those of their activations.
    """
    own = encoder_inputs(inputs)
    shape, x, wide = own.problem.shape, _sizes(inputs.problem.shape), own.element_bytes
    per_token = 2.0 * wide * shape.hidden
    if x.conv_channels:
        per_token += wide * (2.0 * x.conv_channels + 5.0 * shape.hidden)
    else:
        per_token += 8.0
    return np.asarray(own.tokens * per_token)


def _sizes(shape: ModelShape) -> EncoderShape:
    assert shape.encoder is not None  # asked for models with one alone
    return shape.encoder
