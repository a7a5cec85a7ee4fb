"""Attention whose queries pass a narrow width that all heads share (Step-3)."""

from dataclasses import replace

import numpy as np

from costmodels.layers.compute import LinearTimes, products_of, rotary_width
from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.params import kv_heads_per_rank
from costmodels.layers.sublayers.attention import ATTENTION, attention_params, attention_terms
from costmodels.layers.sublayers.sublayer import MixerTerms, elementwise_s, ranks, without_feed
from costmodels.memory import norm_bytes_besides
from costmodels.optimizers.matrices import Matrix, attention_matrices
from costmodels.shapes import ModelShape

NORM_BYTES = 5.0
"""Moved of an element of the latents for their norm: 4 forward, 6 backward."""
MORE_LAUNCHES = 2 / 13
"""Forward: the norm of the latents and the second product of queries; a dense layer has 13."""


def _rank(shape: ModelShape) -> int:
    assert shape.factored is not None  # checked where the model is read
    return shape.factored.q_rank


def _query_weights(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of queries that are more than those of one matrix, on one rank.

    r h + r h_q / t - h h_q / t
    """
    r, q = _rank(shape), shape.q_width / ranks(tp)
    return np.asarray(r * shape.hidden + r * q - shape.hidden * q)


def factored_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of such attention and its norm on one tensor-parallel rank.

    Those of attention, with r h + r + r h_q / t in place of h h_q / t: the first matrix and its
    norm are whole on every rank. Source: Step-3 (arXiv 2507.19427), section 3; Step3TextAttention
    beside its weights.
    """
    return np.asarray(attention_params(shape, tp) + _query_weights(shape, tp) + _rank(shape))


def _replicated(shape: ModelShape) -> int:
    return ATTENTION.replicated_params(shape) + _rank(shape) * (shape.hidden + 1)


def _linear_params(shape: ModelShape, tp: Ints) -> Floats:
    return np.asarray(ATTENTION.linear_params(shape, tp) + _query_weights(shape, tp))


def factored_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return its matrices: the two of queries, keys and values in one, the output.

    Source: Step3TextAttention beside its weights (q_proj, wq, k_proj, v_proj, o_proj).
    """
    fused, output = attention_matrices(shape)
    parts = fused.parts[1:]
    return (
        Matrix(_rank(shape), shape.hidden),
        Matrix(shape.q_width, _rank(shape), cut="rows"),
        replace(fused, rows=sum(parts), parts=parts),
        output,
    )


def factored_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token: those of attention, r (h + h_q) in place of h h_q."""
    plain, one = ATTENTION.macs(shape), np.ones(1, dtype=np.int32)
    return replace(plain, projections=plain.projections + round(_query_weights(shape, one).item()))


def factored_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of attention with factored queries.

    h -> r + 2 h_kv of all tokens on every rank, then r -> h_q / t. Kept beside what attention
    keeps, 4 r bytes a token: latents before and after their norm; of an eager one what it keeps
    besides (`memory.norm_bytes_besides`).
    Left out: that inputs of the second product are smaller in the recipes that quantise them.
    """
    problem, tokens, tp = inputs.problem, inputs.tokens, inputs.split.tp
    shape, part = without_feed(problem.shape), problem.pool.accelerator
    plain = attention_terms(inputs)
    r, h, t = float(_rank(shape)), float(shape.hidden), ranks(tp)
    three = products_of(shape.layers, problem.job, part, problem.stack)
    pair = kv_heads_per_rank(shape, tp) * shape.projected_dim + shape.gate_width / t
    first, second = three(tokens, h, r + pair), three(tokens, r, shape.q_width / t)
    ahead, dgrad, wgrad = (a + b for a, b in zip(first, second, strict=True))
    moved = np.asarray(rotary_width(shape, tp) + NORM_BYTES * r)
    besides = norm_bytes_besides(shape, problem.stack, inputs.element_bytes)
    scratch = plain.scratch_bytes
    if problem.stack.fused_wgrad:
        scratch = scratch + 2.0 * _query_weights(shape, tp)
    return replace(
        plain,
        linear=LinearTimes(ahead, dgrad, wgrad, *three(tokens, shape.v_width / t, h)),
        elementwise=elementwise_s(inputs, moved, moved),
        launches=plain.launches + MORE_LAUNCHES,
        kept_bytes=plain.kept_bytes + tokens * (2.0 * inputs.element_bytes + besides) * r,
        scratch_bytes=scratch,
    )


FACTORED = replace(
    ATTENTION,
    name="factored",
    title="attention with factored queries",
    equation="x + attention(norm(x)), queries W_2 norm(W_1 x) with W_1 of a narrow width",
    source="Step-3 (arXiv 2507.19427), section 3 (multi-matrix factorization attention)",
    params=factored_params,
    replicated_params=_replicated,
    linear_params=_linear_params,
    macs=factored_macs,
    terms=factored_terms,
    section="factored",
    frameworks=(),
    matrices=factored_matrices,
)
