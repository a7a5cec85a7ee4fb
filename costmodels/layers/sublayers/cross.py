"""Attention to a context: queries of the sequence, keys and values of what stands beside it.

The context (output of an encoder, embeddings of a text) has a length and a width of its own and is
the same for all layers; each makes keys and values of it. Cross attention is a mixer alone, and
behind a layer's attention to its own sequence, as decoders have it.
"""

from dataclasses import replace

import numpy as np

from costmodels.comm.exposure import Exposure
from costmodels.layers.compute import (
    AttentionKernels,
    ForwardBackward,
    LinearTimes,
    attention_times,
    products_of,
)
from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.params import kv_heads_per_rank
from costmodels.layers.recompute import RecomputedModule
from costmodels.layers.sublayers.attention import ATTENTION
from costmodels.layers.sublayers.bidirectional import BIDIRECTIONAL
from costmodels.layers.sublayers.sublayer import (
    Mixer,
    MixerTerms,
    elementwise_s,
    ends_bytes,
    norm_params,
)
from costmodels.memory import keeps_output_twice, own_operators, score_bytes
from costmodels.optimizers.matrices import Matrix
from costmodels.schedule.launches import ATTENTION_SHARE
from costmodels.shapes import CrossShape, ModelShape

GRADIENT_BYTES = 6.0
"""Traffic of an element where a layer's gradient of the context is summed to that of the layers
behind it: 2 + 2 read, 2 written."""


def _sizes(shape: ModelShape) -> CrossShape:
    assert shape.cross is not None  # checked where the model is read
    return shape.cross


def _kv_width(shape: ModelShape, tp: Ints) -> Floats:
    """Return the width of keys, and of values, on one tensor-parallel rank."""
    return np.asarray(kv_heads_per_rank(shape, tp) * shape.head_dim, dtype=np.float64)


def cross_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of cross attention and its norm on one tensor-parallel rank.

    N = (2 h h_q + 2 w h_kv) / t + norm,  with biases also (h_q + 2 h_kv) / t + h

    w the width of the context. Source: transformers models/t5 (EncDecAttention), models/whisper
    (encoder_attn); Megatron-LM core/transformer/attention.py (CrossAttention).

    >>> from costmodels.examples import LLAMA3_8B
    >>> model = replace(LLAMA3_8B, cross=CrossShape(tokens=512, width=2048))
    >>> cross_params(model, np.array([1], dtype=np.int32)).item()  # 2 4096^2 + 2 2048 1024 + 4096
    37752832.0
    """
    total = cross_weights(shape, tp) + norm_params(shape)
    if shape.bias:
        q = shape.q_width / np.asarray(tp, dtype=np.float64)
        total = total + q + 2.0 * _kv_width(shape, tp) + shape.hidden
    return np.asarray(total)


def cross_weights(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of its linear layers on one tensor-parallel rank."""
    t, width = np.asarray(tp, dtype=np.float64), _sizes(shape).width
    return np.asarray(2.0 * shape.hidden * shape.q_width / t + 2.0 * width * _kv_width(shape, tp))


def _replicated(shape: ModelShape) -> int:
    return norm_params(shape) + shape.hidden * shape.bias


def cross_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return the matrices of cross attention: queries, keys and values as one, the output.

    Source: Megatron-LM core/transformer/attention.py (linear_q, linear_kv, linear_proj).
    """
    kv = shape.kv_heads * shape.head_dim
    return (
        Matrix(shape.q_width, shape.hidden, cut="rows"),
        Matrix(2 * kv, _sizes(shape).width, cut="rows", parts=(kv, kv)),
        Matrix(shape.hidden, shape.q_width, cut="columns"),
    )


def cross_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of cross attention.

    2 h h_q of a token in queries and output, 2 h_q L in the core over a context of L tokens, none
    of them masked; 2 w h_kv L of a sequence in keys and values, however long it is.

    >>> from costmodels.examples import LLAMA3_8B
    >>> macs = cross_macs(replace(LLAMA3_8B, cross=CrossShape(tokens=512, width=2048)))
    >>> macs.projections == 2 * 4096**2, macs.core_macs(8192) == 2 * 4096 * 512
    (True, True)
    >>> macs.of_sequence == 2 * 2048 * 1024 * 512
    True
    """
    x, kv = _sizes(shape), shape.kv_heads * shape.head_dim
    core = 2.0 * shape.q_width * x.tokens
    return LayerMacs(
        2 * shape.hidden * shape.q_width,
        0,
        0,
        {},
        lambda seq_len: core,
        of_sequence=2 * x.width * kv * x.tokens,
    )


def context_elements(shape: ModelShape) -> int:
    """Return the elements of the context of one sequence."""
    return _sizes(shape).tokens * _sizes(shape).width


def context_tokens(inputs: LayerInputs) -> Floats:
    """Return the tokens of the context of a micro-batch: every rank of cp has all of them."""
    sequences = inputs.tokens * inputs.split.cp / inputs.problem.job.seq_len
    return np.asarray(sequences * _sizes(inputs.problem.shape).tokens)


def _core(inputs: LayerInputs) -> ForwardBackward:
    """Return the time of the core, seconds: each query over all L tokens of the context.

    That of attention over a sequence with as many keys (`attention_times`); the tiles that have to
    fill the device are those of the queries. Without a flash kernel the scores of L keys.
    """
    problem, tokens, tp = inputs.problem, inputs.tokens, inputs.split.tp
    shape, job = problem.shape, problem.job
    n_keys, kernels = _sizes(shape).tokens, AttentionKernels(tp)
    if shape.flash_attention:
        kernels = replace(kernels, run_keys=float(n_keys))
    else:
        job = replace(job, seq_len=n_keys)
    return attention_times(shape, job, problem.pool.accelerator, problem.stack, tokens, kernels)


def _score_bytes(inputs: LayerInputs) -> tuple[Floats, Floats]:
    """Return what is kept of the scores, and what of it recomputing the core leaves out, bytes.

    4 a / t a token with a flash kernel, which nothing leaves out, or in PyTorch's own attention,
    whose bias is not learned here (`OperatorsShape.scores` math); without one what
    `memory.score_bytes` says, over the context.
    """
    problem, tokens, shape = inputs.problem, inputs.tokens, inputs.problem.shape
    heads, own = (
        shape.heads / inputs.split.tp.astype(np.float64),
        own_operators(shape, problem.stack),
    )
    if shape.flash_attention or (own and own.scores == "math"):
        return tokens * 4.0 * heads, np.zeros_like(tokens)
    matrices = np.round(heads * tokens / problem.job.seq_len)
    each, besides = score_bytes(shape, problem.stack, matrices, inputs.element_bytes)
    kept = tokens * heads * _sizes(shape).tokens * (each + besides)
    return kept, kept


def _products(inputs: LayerInputs) -> LinearTimes:
    """Return its linear layers: queries and output of all tokens, keys and values of the context.

    h -> h_q / t and h_q / t -> h; w -> 2 h_kv / t over L tokens a sequence on every rank of cp.
    """
    problem, tokens, shape = inputs.problem, inputs.tokens, inputs.problem.shape
    q = shape.q_width / inputs.split.tp.astype(np.float64)
    three = products_of(shape.layers, problem.job, problem.pool.accelerator, problem.stack)
    queries, output = three(tokens, float(shape.hidden), q), three(tokens, q, float(shape.hidden))
    wide = 2.0 * _kv_width(shape, inputs.split.tp)
    keys = three(context_tokens(inputs), float(_sizes(shape).width), wide)
    ahead, dgrad, wgrad = (a + b for a, b in zip(queries, keys, strict=True))
    return LinearTimes(ahead, dgrad, wgrad, *output)


def cross_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of cross attention.

    Kept per token 4 h_q / t of queries and output (6 where it is kept twice) and what is kept of
    scores, per token of the context 4 h_kv / t of keys and values; the context is kept once for
    all layers, by who makes it. Backward adds the gradient of the context to that of the layers
    behind, 6 w bytes a token of it. With cp queries are cut, the context is not, and nothing is
    exchanged. Over tp one block of collectives, and that of the context
    (`LayerKind.blocks_at`).
    Source: saved tensors of transformers models/t5, models/whisper; Megatron-LM
    core/transformer/attention.py (CrossAttention).
    """
    shape, stack = inputs.problem.shape, inputs.problem.stack
    zeros, context, wide = (
        np.zeros_like(inputs.tokens),
        context_tokens(inputs),
        inputs.element_bytes,
    )
    q, kv = shape.q_width / inputs.split.tp.astype(np.float64), _kv_width(shape, inputs.split.tp)
    core, nothing = _core(inputs), Exposure(zeros, zeros)
    scores, dropped = _score_bytes(inputs)
    outputs = 2.0 if keeps_output_twice(shape, stack) else 1.0
    kept = inputs.tokens * (1.0 + outputs) * wide * q + context * 2.0 * wide * kv + scores
    summed = GRADIENT_BYTES * _sizes(shape).width * context / inputs.tokens
    weights = cross_weights(shape, inputs.split.tp)
    return MixerTerms(
        linear=_products(inputs),
        elementwise=elementwise_s(inputs, zeros, summed),
        blocks=1.0 + _sizes(shape).width * context / (2.0 * inputs.tokens * shape.hidden),
        launches=ATTENTION_SHARE,
        kept_bytes=kept + ends_bytes(inputs),
        modules={
            "core_attn": RecomputedModule(core.forward_s, dropped, zeros, nothing, zeros),
        },
        scratch_bytes=2.0 * weights if stack.fused_wgrad else zeros,
        core=core,
        cp_forward=nothing,
        cp_backward=nothing,
        buffer_bytes=zeros,
    )


CROSS = Mixer(
    name="cross",
    title="cross attention",
    equation="x + attention(norm(x), context), each query over all tokens of a context",
    source="Vaswani et al. 2017; Megatron-LM core/transformer/attention.py (CrossAttention)",
    params=cross_params,
    replicated_params=_replicated,
    linear_params=cross_weights,
    macs=cross_macs,
    terms=cross_terms,
    modules=lambda shape: ("core_attn",),
    section="cross",
    attends=True,
    context_elements=context_elements,
    matrices=cross_matrices,
)


def followed_by_cross(own: Mixer, name: str) -> Mixer:
    """Return a mixer of two sublayers: attention to the own sequence, then to the context."""
    parts = (own, CROSS)

    def macs(shape: ModelShape) -> LayerMacs:
        first, second = own.macs(shape), cross_macs(shape)
        return LayerMacs(
            first.projections + second.projections,
            0,
            0,
            first.modules,
            lambda seq_len: first.core_macs(seq_len) + second.core_macs(seq_len),
            of_sequence=first.of_sequence + second.of_sequence,
        )

    def matrices(shape: ModelShape) -> tuple[Matrix, ...]:
        return tuple(m for part in parts if part.matrices for m in part.matrices(shape))

    return replace(
        own,
        name=name,
        title=f"{own.title} and cross attention",
        equation=f"{own.equation}, then {CROSS.equation}",
        source=f"{own.source}; transformers models/t5, models/whisper",
        params=lambda shape, tp: np.asarray(sum(x.params(shape, tp) for x in parts)),
        replicated_params=lambda shape: sum(x.replicated_params(shape) for x in parts),
        linear_params=lambda shape, tp: np.asarray(sum(x.linear_params(shape, tp) for x in parts)),
        macs=macs,
        terms=lambda inputs: both_terms(own.terms(inputs), cross_terms(inputs)),
        blocks=lambda shape: own.blocks(shape) + CROSS.blocks(shape),
        section="cross",
        context_elements=context_elements,
        frameworks=(),
        matrices=matrices,
    )


def both_terms(first: MixerTerms, second: MixerTerms) -> MixerTerms:
    """Return the terms of two mixers one after the other; only the first exchanges over cp."""
    modules = dict(first.modules)
    for name, one in second.modules.items():
        modules[name] = modules[name] + one if name in modules else one
    return MixerTerms(
        linear=first.linear + second.linear,
        elementwise=first.elementwise + second.elementwise,
        blocks=first.blocks + second.blocks,
        launches=first.launches + second.launches,
        kept_bytes=first.kept_bytes + second.kept_bytes,
        modules=modules,
        scratch_bytes=first.scratch_bytes + second.scratch_bytes,
        core=first.core + second.core,
        cp_forward=first.cp_forward,
        cp_backward=first.cp_backward,
        buffer_bytes=np.maximum(first.buffer_bytes, second.buffer_bytes),
    )


CAUSAL_CROSS = replace(
    followed_by_cross(ATTENTION, "causal-cross"), frameworks=("deepspeed", "fsdp2")
)
BIDIRECTIONAL_CROSS = followed_by_cross(BIDIRECTIONAL, "bidirectional-cross")
