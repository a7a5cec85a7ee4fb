"""Differential attention: one softmax less a learned share of another, over pairs of heads."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from costmodels import memory
from costmodels.comm.exposure import Exposure
from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.params import kv_heads_per_rank
from costmodels.layers.recompute import Core, attention_modules
from costmodels.layers.sublayers.attention import ATTENTION, attention_params, attention_terms
from costmodels.layers.sublayers.sublayer import MixerTerms, elementwise_s, without_feed
from costmodels.shapes import ModelShape

VECTORS = 4
"""Learned vectors of a head's width, whose products are the share of the second softmax."""
FORWARD_BYTES: Mapping[str, float] = {"queries": 26.0, "keys": 6.0}
BACKWARD_BYTES: Mapping[str, float] = {"queries": 40.0, "keys": 12.0}
"""Moved bytes of an element of queries and of keys, beside those of attention.

Forward: halves of the values repeated 6 h_kv; outputs put together 8 h_q, share 4, difference 6,
norm 4, factor 4. Backward: factor 4, norm 6, difference 4, share 4 and its gradient 8, outputs
put together 8, sums of two gradients of queries 6; of keys 6 and of repeated values 6 h_kv.
"""
MORE_LAUNCHES = 18 / 13
"""Forward: core, two copies of values, five operators, ten of the share; a dense layer has 13."""


def differential_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of differential attention and its norm on one tp rank.

    Those of attention, and 4 d of the share: every rank holds them whole.
    Source: transformers models/diffllama (the norm of pairs of heads has no weights).
    """
    return np.asarray(attention_params(shape, tp) + VECTORS * shape.head_dim)


def _replicated(shape: ModelShape) -> int:
    return ATTENTION.replicated_params(shape) + VECTORS * shape.head_dim


def differential_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token: those of attention, its core twice.

    Both halves of the values meet the same scores, which are computed for each.
    Source: Ye et al. 2024 (arXiv 2410.05258), equation 1; transformers models/diffllama.
    """
    plain = ATTENTION.macs(shape)
    return replace(plain, core=2 * plain.core)


def _second_scores(inputs: LayerInputs) -> Floats:
    """Return what the second softmax keeps of its scores, bytes: 4 a / t with a flash kernel."""
    shape, stack, tp = without_feed(inputs.problem.shape), inputs.problem.stack, inputs.split.tp
    found = inputs.tokens * 4.0 * shape.heads / tp
    if shape.flash_attention:
        return found
    keep, batch = np.ones_like(inputs.tokens), inputs.micro_batch
    fused = replace(shape, flash_attention=True)
    ours, theirs = (
        memory.layer_activation_bytes(x, stack, batch, tp, inputs.sp, keep) for x in (shape, fused)
    )
    return found + ours - theirs


def _twice(exchange: Exposure) -> Exposure:
    return Exposure(2.0 * exchange.total_s, 2.0 * exchange.exposed_s)


def differential_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of differential attention.

    The core and its exchange over cp twice, one after the other. Kept beside what attention keeps,
    bytes a token: 10 h_q / t (output of each core 2, both put together 4, difference 2, input of
    the projection 2, of which attention has 2; the core of a half 2), 2 h_kv of repeated values,
    2 a / t of the norm, and the scores of a second softmax. `core_attn` drops all of that.
    Left out: the gather of keys for the second core where the first one's is still held.
    """
    problem, tokens, tp, sp = inputs.problem, inputs.tokens, inputs.split.tp, inputs.sp
    shape, block, plain = problem.shape, inputs.attention, attention_terms(inputs)
    queries = shape.q_width / tp.astype(np.float64)
    keys = np.asarray(kv_heads_per_rank(shape, tp) * shape.head_dim)
    rotary = 4.0 * (queries + keys) if shape.positions == "rope" else np.zeros_like(queries)
    forward, backward = (
        rotary + x["queries"] * queries + x["keys"] * keys for x in (FORWARD_BYTES, BACKWARD_BYTES)
    )
    elementwise = elementwise_s(inputs, forward, backward)
    wide = inputs.element_bytes / 2.0
    more = tokens * (wide * (10.0 * queries + 2.0 * keys) + 2.0 * shape.heads / tp)
    more = more + _second_scores(inputs) + block.kept_bytes
    again_s = 2.0 * block.core.forward_s + elementwise.forward_s - plain.elementwise.forward_s
    core = Core(again_s, block.core.dropped_bytes + more - block.kept_bytes)
    return replace(
        plain,
        elementwise=elementwise,
        core=block.compute + block.compute,
        launches=plain.launches + MORE_LAUNCHES,
        kept_bytes=plain.kept_bytes + more,
        modules=attention_modules(problem, tokens, tp, sp, core),
        cp_forward=_twice(block.cp_forward),
        cp_backward=_twice(block.cp_backward),
    )


DIFFERENTIAL = replace(
    ATTENTION,
    name="differential",
    title="differential attention",
    equation="x + norm(softmax(q1 k1) v - share softmax(q2 k2) v), over pairs of heads",
    source="Ye et al. 2024 (arXiv 2410.05258); transformers models/diffllama",
    params=differential_params,
    replicated_params=_replicated,
    macs=differential_macs,
    terms=differential_terms,
    frameworks=("deepspeed", "fsdp2"),
)
