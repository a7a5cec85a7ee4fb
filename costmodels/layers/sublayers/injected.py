"""An MLP, and behind it a row of an embedding that the layer has of its own (Gemma 3n and 4)."""

import numpy as np

from costmodels.layers.compute import LinearTimes, products_of
from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.sublayers.feeds import MLP, mlp_terms
from costmodels.layers.sublayers.sublayer import Feed, FeedTerms, elementwise_s, norm_params
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import ModelShape, PerLayerShape

LAUNCHES = 0.3
"""Kernels of the injection over those of a dense layer, host-bound stacks: three products, an
activation, two norms and what adds them, counted."""


def _sizes(shape: ModelShape) -> PerLayerShape:
    assert shape.per_layer is not None  # checked where the model is read
    return shape.per_layer


def injection_weights(shape: ModelShape) -> int:
    """Return the weights of the injection, whole on every tensor-parallel rank: 3 h p.

    Gate and projection of the layer, and its rows of the one projection of the model's embedding
    to the width p of those of the layers.
    """
    return 3 * shape.hidden * _sizes(shape).width


def injected_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of MLP, injection and their norms on one tensor-parallel rank.

    N = N_mlp + 3 h p + h. Source: transformers models/gemma4 (Gemma4TextDecoderLayer,
    per_layer_model_projection). Left out: the norm of p elements that all layers share.
    """
    return np.asarray(MLP.params(shape, tp) + injection_weights(shape) + norm_params(shape))


def injected_replicated(shape: ModelShape) -> int:
    """Return those of them that every tensor-parallel rank holds whole."""
    return MLP.replicated_params(shape) + injection_weights(shape) + norm_params(shape)


def injected_linear_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of its linear layers on one tensor-parallel rank."""
    return np.asarray(MLP.linear_params(shape, tp) + injection_weights(shape))


def injected_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token: those of the MLP, and 3 h p."""
    mlp = MLP.macs(shape)
    return LayerMacs(0, 0, mlp.mlp + injection_weights(shape), mlp.modules)


def injected_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return the matrices of the MLP and of the injection.

    The projection of the model's embedding is one matrix of all layers, here cut into theirs.
    """
    assert MLP.matrices is not None  # its record has them
    h, p = shape.hidden, _sizes(shape).width
    return *MLP.matrices(shape), Matrix(p, h, count=2), Matrix(h, p)


def injected_terms(inputs: LayerInputs) -> FeedTerms:
    """Return the terms of an MLP and of the injection behind it.

    Products h -> p twice and p -> h, whole on every rank (of its part of the sequence with SP).
    Bytes a token: norm and residual as of any sublayer; activation and product 6 p forward and
    10 p backward; the row of the table, and the norm and sum that make its input, 14 p and 16 p.
    Kept: 4 h (the gate's input, that of the norm) and 10 p (gate, activation, embedding, their
    product, what the shared norm reads). Operands counted by hand, after transformers
    models/gemma4.
    """
    problem, tp, terms = inputs.problem, inputs.split.tp, mlp_terms(inputs)
    shape, p = problem.shape, float(_sizes(inputs.problem.shape).width)
    share = np.where(inputs.sp > 0, tp, 1).astype(np.float64)
    rows, h = inputs.tokens / share, float(shape.hidden)
    three = products_of(shape.layers, problem.job, problem.pool.accelerator, problem.stack)
    forward, dgrad, wgrad = three(rows, h, p)
    gates = LinearTimes(forward, dgrad, wgrad, *three(rows, p, h))
    products = gates + LinearTimes(forward, dgrad, wgrad, *(3 * (np.zeros_like(rows),)))
    width = inputs.element_bytes
    ones = np.ones_like(share)
    return FeedTerms(
        linear=terms.linear + products,
        elementwise=terms.elementwise + elementwise_s(inputs, 20.0 * p / share, 26.0 * p / share),
        blocks=terms.blocks,
        launches=terms.launches + LAUNCHES,
        kept_bytes=terms.kept_bytes + width * rows * (2.0 * h + 5.0 * p),
        modules=terms.modules,
        scratch_bytes=terms.scratch_bytes
        + (2.0 * injection_weights(shape) * ones if problem.stack.fused_wgrad else 0.0 * ones),
        working_bytes=terms.working_bytes,
    )


INJECTED = Feed(
    name="injected",
    title="MLP and an embedding of the layer",
    equation="x + mlp(norm(x)), then x + norm(W_p (act(W_g x) e)), e the row of the layer's table",
    source="transformers models/gemma4 (Gemma4TextDecoderLayer)",
    params=injected_params,
    replicated_params=injected_replicated,
    linear_params=injected_linear_params,
    macs=injected_macs,
    terms=injected_terms,
    modules=MLP.modules,
    matrices=injected_matrices,
)
