"""MLPs of diffusion transformers: one for every stream of tokens, under modulation."""

import numpy as np

from costmodels.layers.diffusion.streams import (
    ALL,
    Size,
    linear_of,
    modulated_bytes,
    modulated_kept_bytes,
    moved_s,
    two_streams,
)
from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.sublayers.sublayer import Feed, FeedTerms, ranks
from costmodels.optimizers.matrices import Matrix, mlp_matrices
from costmodels.schedule.launches import ATTENTION_SHARE
from costmodels.shapes import ModelShape


def mlp_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return one MLP on one tensor-parallel rank, without a norm.

    N = c h f / t (+ (c - 1) f / t + h with biases), c = 3 gated, 2 otherwise
    Source: diffusers models/attention.py (FeedForward), transformer_flux2.py (Flux2FeedForward).
    """
    up = 2.0 if shape.gated else 1.0
    inner = (up + 1.0) * shape.hidden * shape.ffn + up * shape.ffn * shape.bias
    return np.asarray(inner / ranks(tp) + shape.hidden * shape.bias)


def mlp_weights(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of one MLP on one tensor-parallel rank: c h f / t."""
    return (3.0 if shape.gated else 2.0) * shape.hidden * shape.ffn / ranks(tp)


def mlp_macs(shape: ModelShape) -> int:
    """Return the multiply-adds of a token: c h f."""
    return (3 if shape.gated else 2) * shape.hidden * shape.ffn


def mlp_products(inputs: LayerInputs, share: float) -> tuple[Size, Size]:
    """Return the products of the MLP of a stream with a share of the tokens: up and down."""
    shape, t = inputs.problem.shape, ranks(inputs.split.tp)
    rows, h, up = inputs.tokens * share, float(shape.hidden), 2.0 if shape.gated else 1.0
    return (rows, h, up * shape.ffn / t), (rows, shape.ffn / t, h)


def activation_moved_bytes(inputs: LayerInputs) -> tuple[Floats, Floats]:
    """Return what the activation moves, bytes a token, each way: 4 f / t and 6 f / t.

    Gated as two kernels, SiLU and product: 10 f / t and 16 f / t.
    """
    shape, t = inputs.problem.shape, ranks(inputs.split.tp)
    ahead, after = (10.0, 16.0) if shape.gated else (4.0, 6.0)
    return ahead * shape.ffn / t, after * shape.ffn / t


def activation_kept_bytes(inputs: LayerInputs) -> Floats:
    """Return what an MLP keeps between its products, bytes a token.

    Input and output of the activation: 2 e f / t; gated both halves, that of SiLU and the product:
    4 e f / t. Source: saved tensors of diffusers models/attention.py (GELU), transformer_flux2.py
    (Flux2SwiGLU).
    """
    shape = inputs.problem.shape
    width = (4.0 if shape.gated else 2.0) * shape.ffn / ranks(inputs.split.tp)
    return np.asarray(inputs.element_bytes * width)


def activation_working_bytes(inputs: LayerInputs) -> Floats:
    """Return the gradients inside an MLP while it runs backward, bytes a token of its stream.

    Those of the activation's input and output: 2 e f / t, 3 e f / t gated.
    """
    width = (3.0 if inputs.problem.shape.gated else 2.0) * inputs.problem.shape.ffn
    return np.asarray(inputs.element_bytes * width / ranks(inputs.split.tp))


def stream_feed_terms(inputs: LayerInputs, shares: tuple[float, ...]) -> FeedTerms:
    """Return the terms of one MLP for each stream, whose shares of the tokens are given."""
    pairs = [mlp_products(inputs, share) for share in shares]
    moved = [
        a + b for a, b in zip(modulated_bytes(inputs), activation_moved_bytes(inputs), strict=True)
    ]
    n = len(shares)
    scratch = np.zeros_like(inputs.tokens)
    if inputs.problem.stack.fused_wgrad:
        scratch = 2.0 * mlp_weights(inputs.problem.shape, inputs.split.tp)
    kept = modulated_kept_bytes(inputs, is_feed=True) + activation_kept_bytes(inputs)
    total = sum(shares)
    return FeedTerms(
        linear=linear_of(inputs, [up for up, _ in pairs], [down for _, down in pairs]),
        elementwise=moved_s(inputs, (total * moved[0], total * moved[1]), (6 * n, 12 * n)),
        blocks=1,
        launches=n * (1.0 - ATTENTION_SHARE),
        kept_bytes=inputs.tokens * total * kept,
        modules={},
        scratch_bytes=scratch,
        working_bytes=inputs.tokens * max(shares) * activation_working_bytes(inputs),
    )


def one_stream_terms(inputs: LayerInputs) -> FeedTerms:
    """Return the terms of one MLP for all tokens."""
    return stream_feed_terms(inputs, ALL)


def two_stream_terms(inputs: LayerInputs) -> FeedTerms:
    """Return the terms of an MLP for patches and another for text."""
    return stream_feed_terms(inputs, two_streams(inputs.problem.shape))


def patch_stream_terms(inputs: LayerInputs) -> FeedTerms:
    """Return the terms of an MLP for patches alone."""
    return stream_feed_terms(inputs, two_streams(inputs.problem.shape)[:1])


def _twice(shape: ModelShape) -> tuple[Matrix, ...]:
    return mlp_matrices(shape, shape.ffn) * 2


def _patch_macs(shape: ModelShape) -> LayerMacs:
    return LayerMacs(0, 0, round(mlp_macs(shape) * two_streams(shape)[0]), {})


_SOURCE = "diffusers models/attention.py (FeedForward)"
ONE_STREAM = Feed(
    name="stream",
    title="an MLP under modulation",
    equation="x + gate mlp(scale norm(x) + shift)",
    source=_SOURCE,
    params=mlp_params,
    replicated_params=lambda shape: shape.hidden * shape.bias,
    linear_params=mlp_weights,
    macs=lambda shape: LayerMacs(0, 0, mlp_macs(shape), {}),
    terms=one_stream_terms,
    modules=lambda shape: (),
    matrices=lambda shape: mlp_matrices(shape, shape.ffn),
)
TWO_STREAMS = Feed(
    name="two-streams",
    title="an MLP for patches and one for text",
    equation="x + gate mlp(scale norm(x) + shift) for patches and for text",
    source=_SOURCE,
    params=lambda shape, tp: 2.0 * mlp_params(shape, tp),
    replicated_params=lambda shape: 2 * shape.hidden * shape.bias,
    linear_params=lambda shape, tp: 2.0 * mlp_weights(shape, tp),
    macs=lambda shape: LayerMacs(0, 0, mlp_macs(shape), {}),
    terms=two_stream_terms,
    modules=lambda shape: (),
    matrices=_twice,
)
PATCH_STREAM = Feed(
    name="patch-stream",
    title="an MLP for patches",
    equation="x + gate mlp(scale norm(x) + shift) for patches",
    source=_SOURCE,
    params=mlp_params,
    replicated_params=lambda shape: shape.hidden * shape.bias,
    linear_params=mlp_weights,
    macs=_patch_macs,
    terms=patch_stream_terms,
    modules=lambda shape: (),
    matrices=lambda shape: mlp_matrices(shape, shape.ffn),
)
