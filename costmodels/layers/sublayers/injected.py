"""An MLP, and behind it a row of an embedding that the layer has of its own (Gemma 3n and 4).

Such layers have norms behind attention and MLP too, and norms of queries, keys and values: they
are counted here, whatever attention stands before.
"""

import numpy as np

from costmodels.layers.compute import ForwardBackward, LinearTimes, products_of
from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.params import kv_heads_per_rank
from costmodels.layers.sublayers.feeds import MLP, mlp_terms
from costmodels.layers.sublayers.sublayer import Feed, FeedTerms, elementwise_s, norm_params
from costmodels.memory import eager_norm_bytes
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import ModelShape, PerLayerShape

LAUNCHES = 0.7
"""Kernels of the injection over those of a dense layer, host-bound stacks: three products, an
activation, two norms and what adds them, and the five norms beside, counted."""


EAGER_NORM_BYTES = 6.0
"""What an eager norm of Gemma keeps of an element beside a fused one: its input and the scaled
input in fp32, in place of the input in 16 bits (saved tensors of transformers' Gemma4RMSNorm)."""
EAGER_VALUE_NORM_BYTES = 2.0
"""The same of a norm without weights, as values have: its input in fp32 alone."""


def _sizes(shape: ModelShape) -> PerLayerShape:
    assert shape.per_layer is not None  # checked where the model is read
    return shape.per_layer


def injection_weights(shape: ModelShape) -> int:
    """Return the weights of the injection, whole on every tensor-parallel rank.

    3 h p + 2 h r + h a: gate and projection of the layer, and its rows of the one projection of
    the model's embedding to the width p of those of the layers; LAuReL's two matrices of rank r;
    the router of AltUp's a streams.
    """
    x = _sizes(shape)
    return shape.hidden * (3 * x.width + 2 * x.laurel_rank + x.streams * (x.streams > 1))


def _others(shape: ModelShape) -> int:
    """Return the norms and vectors, and the small matrices that mix streams: a^3 + a^2.

    Of h elements behind attention, MLP and injection; of a head for queries and for keys.
    """
    x, h = _sizes(shape), shape.hidden
    laurel = h * bool(x.laurel_rank)
    altup = (2 * h + x.streams**3 + x.streams**2) * (x.streams > 1)
    heads = shape.head_dim * (1 if shape.kv_shared else 2)
    return 3 * norm_params(shape) + heads + laurel + altup


def injected_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of MLP, injection and their norms on one tensor-parallel rank.

    N = N_mlp + 3 h p + 3 h + 2 d (d with keys of another layer), with LAuReL 2 h r + h more, with
    AltUp h a + a^3 + a^2 + 2 h.
    Source: transformers models/gemma4 and gemma3n (decoder layers, per_layer_model_projection).
    Left out: the norm of p elements that all layers share.
    """
    return np.asarray(MLP.params(shape, tp) + injection_weights(shape) + _others(shape))


def injected_replicated(shape: ModelShape) -> int:
    """Return those of them that every tensor-parallel rank holds whole."""
    return MLP.replicated_params(shape) + injection_weights(shape) + _others(shape)


def injected_linear_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of its linear layers on one tensor-parallel rank."""
    return np.asarray(MLP.linear_params(shape, tp) + injection_weights(shape))


def injected_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token: those of the MLP, and of the injection.

    3 h p + 2 h r; with AltUp also h a^2 of the prediction and 2 (h a) + a^3 + a^2 of its router,
    which runs before and behind the layer.
    """
    x, h, mlp = _sizes(shape), shape.hidden, MLP.macs(shape)
    more = h * (3 * x.width + 2 * x.laurel_rank)
    if (a := x.streams) > 1:
        more += h * a * a + 2 * h * a + a**3 + a * a
    return LayerMacs(0, 0, mlp.mlp + more, mlp.modules)


def injected_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return the matrices of the MLP and of the injection.

    The projection of the model's embedding is one matrix of all layers, here cut into theirs. Left
    out: the small ones that mix streams.
    """
    assert MLP.matrices is not None  # its record has them
    x, h = _sizes(shape), shape.hidden
    found = [*MLP.matrices(shape), Matrix(x.width, h, count=2), Matrix(h, x.width)]
    if x.laurel_rank:
        found += [Matrix(x.laurel_rank, h), Matrix(h, x.laurel_rank)]
    if x.streams > 1:
        found.append(Matrix(x.streams, h))
    return tuple(found)


def _moved(shape: ModelShape) -> tuple[float, float]:
    """Return the bytes a token that operators beside products, norm and residual move.

    Activation and product 6 p forward and 10 p backward; the row of the table, and the norm and
    sum that make its input, 14 p and 16 p. LAuReL's norm and two sums 16 h and 20 h. AltUp, a
    streams: prediction 10 a h, copies 8 a h, correction 10 a h, injection 6 (a - 1) h, two norms
    and a scale 12 h; twice that backward.
    """
    x, h = _sizes(shape), float(shape.hidden)
    p, a = float(x.width), float(x.streams)
    forward, backward = 20.0 * p, 26.0 * p
    if x.laurel_rank:
        forward, backward = forward + 16.0 * h, backward + 20.0 * h
    if a > 1:
        mixed = (28.0 * a + 6.0 * (a - 1.0) + 12.0) * h
        forward, backward = forward + mixed, backward + 2.0 * mixed
    return forward, backward


def _kept_elements(shape: ModelShape) -> float:
    """Return the elements a token that the injection keeps.

    4 h (the gate's input, those of three norms) and 5 p (gate, activation, embedding, their
    product, what the shared norm reads); LAuReL r + h (its products' outputs); AltUp 3 a h + h
    (streams, predictions beside the one that the layer's norm keeps, innovations; the layer's
    output, the one that is scaled).
    """
    x, h = _sizes(shape), float(shape.hidden)
    kept = 4.0 * h + 5.0 * x.width
    if x.laurel_rank:
        kept += x.laurel_rank + h
    return kept + (3.0 * x.streams + 1.0) * h if x.streams > 1 else kept


def _eager_bytes(inputs: LayerInputs) -> float:
    """Return what norms over h keep of a token where a stack does not fuse them.

    Three; one more with LAuReL, and two of the router with AltUp. The two before attention and MLP
    are counted there as norms of Llama: here what those of Gemma keep beyond.
    """
    stack, x = inputs.problem.stack, _sizes(inputs.problem.shape)
    if stack.fused_norms:
        return 0.0
    n_norms = 3.0 + bool(x.laurel_rank) + 2.0 * (x.streams > 1)
    each = _eager_norm_bytes(inputs)
    before = 2.0 * (each - eager_norm_bytes(stack, inputs.element_bytes))
    return (n_norms * each + before) * inputs.problem.shape.hidden


def _eager_norm_bytes(inputs: LayerInputs) -> float:
    """Return what an eager norm keeps of an element beside a fused one: `EAGER_NORM_BYTES`."""
    return EAGER_NORM_BYTES if inputs.element_bytes == 2.0 else 4.0


def _head_widths(inputs: LayerInputs) -> tuple[Floats, Floats]:
    """Return the widths on one rank of queries, and of a layer's own keys, elements."""
    shape, tp = inputs.problem.shape, inputs.split.tp
    keys = kv_heads_per_rank(shape, tp) * shape.head_dim * (not shape.kv_shared)
    return shape.q_width / tp.astype(np.float64), np.asarray(keys)


def _head_norm_bytes(inputs: LayerInputs) -> Floats:
    """Return what norms of queries, keys and values keep of a token: e (q + 2 k), their inputs.

    e q + e k where keys are the values. Where they are not fused `EAGER_NORM_BYTES` more of
    queries and keys, and of values those of a norm without weights.
    """
    queries, keys = _head_widths(inputs)
    e, shape = inputs.element_bytes, inputs.problem.shape
    kept = e * (queries + (1.0 if shape.keys_as_values else 2.0) * keys)
    if inputs.problem.stack.fused_norms:
        return np.asarray(kept)
    values = EAGER_VALUE_NORM_BYTES if e == 2.0 else 0.0
    if shape.keys_as_values:  # its copy in fp32 is not that of the keys
        values = 4.0
    return np.asarray(kept + _eager_norm_bytes(inputs) * (queries + keys) + values * keys)


def _normed(inputs: LayerInputs, share: Floats) -> Floats:
    """Return u (2 h + q + 2 k) of a token: what is normed besides, as passes over memory."""
    stack, (queries, keys) = inputs.problem.stack, _head_widths(inputs)
    elements = 2.0 * inputs.problem.shape.hidden / share + queries + 2.0 * keys
    return np.asarray(elements * (1.0 if stack.fused_norms else stack.unfused_norm_factor))


def injected_terms(inputs: LayerInputs) -> FeedTerms:
    """Return the terms of an MLP and of the injection behind it.

    Products h -> p twice and p -> h, with LAuReL h -> r and r -> h, whole on every rank (of its
    part of the sequence with SP); those of AltUp are bound by memory. Norms behind attention and
    MLP, of queries, keys and values move 4 u (2 h + q + 2 k) bytes a token forward and 6 u
    backward, u as in `elementwise_s`. Operands counted by hand, after transformers models/gemma4
    and gemma3n. Left out: Gemma 3n's sparse activations.
    """
    problem, tp, terms = inputs.problem, inputs.split.tp, mlp_terms(inputs)
    shape, x = problem.shape, _sizes(inputs.problem.shape)
    share = np.where(inputs.sp > 0, tp, 1).astype(np.float64)
    rows, h, width = inputs.tokens / share, float(shape.hidden), inputs.element_bytes
    normed, (ahead, after) = _normed(inputs, share), _moved(shape)
    forward, backward = ahead / share + 4.0 * normed, after / share + 6.0 * normed
    scratch = 2.0 * injection_weights(shape) if problem.stack.fused_wgrad else 0.0
    return FeedTerms(
        linear=terms.linear + _products(inputs, rows),
        elementwise=terms.elementwise + elementwise_s(inputs, forward, backward),
        blocks=terms.blocks,
        launches=terms.launches + LAUNCHES * (2.0 if x.streams > 1 else 1.0),
        kept_bytes=terms.kept_bytes
        + rows * (width * _kept_elements(shape) + _eager_bytes(inputs))
        + inputs.tokens * _head_norm_bytes(inputs),
        modules=terms.modules,
        scratch_bytes=terms.scratch_bytes + scratch,
        working_bytes=terms.working_bytes + 3.0 * width * rows * (x.streams - 1.0) * h,
    )


def _products(inputs: LayerInputs, rows: Floats) -> LinearTimes:
    """Return the products of the injection; the last of each pair counts as row-parallel."""
    problem = inputs.problem
    shape, x = problem.shape, _sizes(problem.shape)
    three = products_of(shape.layers, problem.job, problem.pool.accelerator, problem.stack)
    h, p, r = float(shape.hidden), float(x.width), float(x.laurel_rank)
    first, last, none = three(rows, h, p), three(rows, p, h), 3 * (np.zeros_like(rows),)
    found = LinearTimes(*first, *last) + LinearTimes(*first, *none)
    return found + LinearTimes(*three(rows, h, r), *three(rows, r, h)) if r else found


def stream_times(inputs: LayerInputs) -> ForwardBackward:
    """Return the time that makes the further streams of AltUp, or that joins them, seconds.

    (a - 1) products h -> h, and 10 h bytes a stream and way: each is scaled to the size of the
    first. Source: transformers models/gemma3n (Gemma3nTextModel).
    """
    problem, shape = inputs.problem, inputs.problem.shape
    more, part = float(_sizes(shape).streams - 1), problem.pool.accelerator
    share = np.where(inputs.sp > 0, inputs.split.tp, 1).astype(np.float64)
    rows, h = inputs.tokens / share, float(shape.hidden)
    three = products_of(shape.layers, problem.job, part, problem.stack)
    forward, dgrad, wgrad = three(rows, h, h)
    eff = part.efficiency
    per_byte = problem.stack.elementwise_factor / (part.hbm_bytes_per_s * eff.hbm_frac)
    scaled = rows * 10.0 * h * per_byte
    return ForwardBackward(more * (forward + scaled), more * (dgrad + wgrad + scaled))


INJECTED = Feed(
    name="injected",
    title="MLP and an injected embedding",
    equation="x + norm(mlp(norm(x))), then x + norm(W_p (act(W_g x) e)), e the row of the layer's "
    "table; norms of queries, keys, values and behind attention",
    source="transformers models/gemma4 (Gemma4TextDecoderLayer), gemma3n",
    params=injected_params,
    replicated_params=injected_replicated,
    linear_params=injected_linear_params,
    macs=injected_macs,
    terms=injected_terms,
    modules=MLP.modules,
    matrices=injected_matrices,
    sees_heads=True,
)
