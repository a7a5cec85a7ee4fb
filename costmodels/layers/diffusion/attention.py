"""Attention of diffusion transformers: one over all streams of a layer, and one to text beside it.

No position is masked: every query sees all keys. Queries and keys are normed, by head or over
their width, before they are rotated.
"""

import numpy as np

from costmodels.comm.context_parallel import ContextSplit, attention_kernels
from costmodels.layers.compute import ForwardBackward, attention_times
from costmodels.layers.diffusion.streams import (
    Size,
    cut_of,
    diffusion_sizes,
    gathered_factor,
    moved_s,
    samples_of,
    text_share,
)
from costmodels.layers.layer_kind import Floats, Ints, LayerInputs
from costmodels.layers.sublayers.sublayer import ranks
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import ModelShape

LSE_BYTES = 4.0
"""Logarithm of the sum of a head's scores, fp32."""


def qk_norm_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of the norms of queries and keys of one stream, on one rank.

    2 d by `head`, 2 w / t by `width`, 4 d with biases (`head-layernorm`).
    """
    of_kind = {"none": 0.0, "head": 2.0, "head-unfused": 2.0, "head-layernorm": 4.0}
    kind = diffusion_sizes(shape).qk_norm
    if kind == "width":
        return 2.0 * shape.q_width / ranks(tp)
    return np.full(len(tp), of_kind[kind] * shape.head_dim)


def attention_stream_params(shape: ModelShape, tp: Ints, *, has_output: bool = True) -> Floats:
    """Return the projections of one stream and their norms on one tensor-parallel rank.

    N = (3 h w + 3 w bias) / t + h w / t + h bias + norms of queries and keys, w = heads * head_dim

    Without its output where nothing of the stream is used behind the attention.
    Source: diffusers models/transformers/transformer_flux.py (FluxAttention).
    """
    h, w, t = shape.hidden, shape.q_width, ranks(tp)
    inner = 3.0 * w * (h + shape.bias) / t + qk_norm_params(shape, tp)
    return np.asarray(inner + (h * w / t + h * shape.bias) * has_output)


def stream_weights(shape: ModelShape, tp: Ints, *, has_output: bool = True) -> Floats:
    """Return the weights of a stream's products on one rank: 3 or 4 h w / t."""
    return (3.0 + has_output) * shape.hidden * shape.q_width / ranks(tp)


def stream_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return the matrices of one stream: queries, keys and values in one, and the output."""
    w = shape.q_width
    return (
        Matrix(3 * w, shape.hidden, cut="rows", parts=(w, w, w)),
        Matrix(shape.hidden, w, cut="columns"),
    )


def stream_products(inputs: LayerInputs, share: float) -> tuple[Size, Size]:
    """Return the products of a stream with a share of the tokens: into attention, out of it."""
    shape, t = inputs.problem.shape, ranks(inputs.split.tp)
    rows, w = inputs.tokens * share, shape.q_width / t
    return (rows, float(shape.hidden), 3.0 * w), (rows, w, float(shape.hidden))


def normed_bytes(inputs: LayerInputs, *, streams: int) -> tuple[Floats, Floats]:
    """Return what norms and rotation of queries and keys move, bytes a token, each way.

    8 w / t for norms where there are some, 8 w / t for the rotation; 12 and 8 backward; norms of
    single operators 32 and 40 w / t. Where two
    streams meet, their queries, keys and values are copied into one: 12 w / t each way, and the
    output back 4 w / t.
    """
    w = inputs.problem.shape.q_width / ranks(inputs.split.tp)
    kind, joined = diffusion_sizes(inputs.problem.shape).qk_norm, 16.0 * (streams > 1)
    ahead, after = {"none": (0.0, 0.0), "head-unfused": (32.0, 40.0)}.get(kind, (8.0, 12.0))
    return (ahead + 8.0 + joined) * w, (after + 8.0 + joined) * w


def core_kept_bytes(inputs: LayerInputs) -> Floats:
    """Return what attention over all tokens keeps, bytes a token.

    4 e w / t of queries, keys, values and output, a sum a head, and of queries and keys before
    their norms 2 e w / t; in single operators (`head-unfused`) their copies in fp32, and what
    their weights multiply, (8 + 4 e) w / t in place of it. The output twice with `heads_first`.
    Source: saved tensors of diffusers models/transformers/transformer_flux.py and
    models/normalization.py (RMSNorm).
    """
    shape, t, e = inputs.problem.shape, ranks(inputs.split.tp), inputs.element_bytes
    x, w, heads = diffusion_sizes(shape), shape.q_width / t, shape.heads / t
    copies = {"none": 0.0, "head-unfused": 8.0 + 4.0 * e}.get(x.qk_norm, 2.0 * e)
    numbers = {"none": 0.0, "width": 0.0, "head-layernorm": 4.0}.get(x.qk_norm, 2.0) * heads
    numbers = numbers + 2.0 * (x.qk_norm == "width")
    width = (4.0 + x.heads_first) * e + copies
    return np.asarray(width * w + LSE_BYTES * heads + 4.0 * numbers)


# Cross attention to text ------------------------------------------------------------------------


def text_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return cross attention and its norm on one tensor-parallel rank.

    As one stream, and 2 h of a norm before it where there is one (`cross_norm`).
    Source: diffusers models/transformers/transformer_wan.py (attn2, norm2).
    """
    if not diffusion_sizes(shape).cross:
        return np.zeros(len(tp))
    return (
        attention_stream_params(shape, tp) + 2.0 * shape.hidden * diffusion_sizes(shape).cross_norm
    )


def text_macs(shape: ModelShape) -> tuple[float, float]:
    """Return the multiply-adds of a token in projections and in the core of cross attention.

    2 h w (1 + T / s) and 2 w T: queries and outputs of s tokens, keys and values of T.
    """
    x = diffusion_sizes(shape)
    if not x.cross:
        return 0.0, 0.0
    both = 2.0 * shape.hidden * shape.q_width * (1.0 + text_share(shape))
    return both, 2.0 * shape.q_width * x.text_tokens


def cross_products(inputs: LayerInputs) -> tuple[list[Size], list[Size]]:
    """Return its column-parallel products (queries; keys and values of the text) and its last.

    Every rank of a context-parallel group makes keys and values of the whole text for the heads
    that it has of it.
    """
    shape, t = inputs.problem.shape, ranks(inputs.split.tp)
    x, h, w = diffusion_sizes(shape), float(shape.hidden), shape.q_width / t
    if not x.cross:
        return [], []
    text = samples_of(inputs) * x.text_tokens
    return [(inputs.tokens, h, w), (text, h, 2.0 * w)], [(inputs.tokens, w, h)]


def cross_core(inputs: LayerInputs) -> ForwardBackward:
    """Return the time of its core: every token over T keys, with no exchange over cp."""
    problem, x = inputs.problem, diffusion_sizes(inputs.problem.shape)
    zeros = np.zeros_like(inputs.tokens)
    if not x.cross:
        return ForwardBackward(zeros, zeros)
    alone = ContextSplit(inputs.split.tp, np.ones_like(inputs.split.cp), inputs.split.cp_comm)
    kernels = attention_kernels(alone, float(x.text_tokens))
    part, stack = problem.pool.accelerator, problem.stack
    return attention_times(problem.shape, problem.job, part, stack, inputs.tokens, kernels)


def cross_elementwise(inputs: LayerInputs) -> ForwardBackward:
    """Return the time of its norms and its residual addition, as of any sublayer without gate."""
    shape = inputs.problem.shape
    x, w = diffusion_sizes(shape), shape.q_width / ranks(inputs.split.tp)
    zeros = np.zeros_like(inputs.tokens)
    if not x.cross:
        return ForwardBackward(zeros, zeros)
    width = shape.hidden / cut_of(inputs)
    normed = (x.qk_norm != "none") * w * (1.0 + text_share(shape))
    ahead = (6.0 + 4.0 * x.cross_norm) * width + 4.0 * normed
    return moved_s(inputs, (ahead, (4.0 + 6.0 * x.cross_norm) * width + 6.0 * normed), (4, 8))


def cross_kept_bytes(inputs: LayerInputs) -> Floats:
    """Return what cross attention keeps, bytes a token of latents.

    With a norm of its own its input and two numbers; the input of the queries; queries before and
    after their norm and the output; of T tokens keys before and after their norm, and values.
    The text itself is kept once for all layers, with the embeddings.
    """
    shape, t, e = inputs.problem.shape, ranks(inputs.split.tp), inputs.element_bytes
    x, w = diffusion_sizes(shape), shape.q_width / t
    if not x.cross:
        return np.zeros_like(inputs.tokens)
    is_normed = 1.0 * (x.qk_norm != "none")
    text = text_share(shape) * inputs.split.cp
    own = (4.0 if x.wide_norms else e) * shape.hidden + 8.0
    width = (own * x.cross_norm) / cut_of(inputs) + e * shape.hidden / gathered_factor(inputs)
    inner = e * w * ((2.0 + is_normed) + (2.0 + is_normed) * text) + LSE_BYTES * shape.heads / t
    return np.asarray(width + inner + 4.0 * is_normed * (1.0 + text))
