"""Sparse attention: an indexer scores all keys, attention takes the best of them (DSA)."""

from dataclasses import replace

import numpy as np

from costmodels.layers import params
from costmodels.layers.compute import ForwardBackward, LinearTimes, products_of
from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.recurrences.recurrent import scan_s
from costmodels.layers.sublayers.attention import (
    ATTENTION,
    attention_params,
    attention_terms,
    run_keys,
    window_keys,
)
from costmodels.layers.sublayers.sublayer import Mixer, MixerTerms, without_feed
from costmodels.optimizers.matrices import Matrix, attention_matrices
from costmodels.shapes import IndexerShape, ModelShape

INDEX_BYTES = 4.0
"""Of the position of one chosen key."""


def _sizes(shape: ModelShape) -> IndexerShape:
    assert shape.indexer is not None  # checked where the model is read
    return shape.indexer


def indexer_weights(shape: ModelShape) -> int:
    """Return the weights of the indexer's projections, which every tp rank holds whole.

    N = r_q H d + h d + h H,  r_q the width of compressed queries, h without them

    Heads that choose blocks have no weights, h H. Source: Megatron-LM
    core/transformer/experimental_attention_variant/dsa.py (DSAIndexer); transformers
    models/minimax_m3_vl (MiniMaxM3VLIndexer).
    """
    x = _sizes(shape)
    queries = (shape.q_rank or shape.hidden) * x.heads * x.head_dim
    return queries + shape.hidden * (x.head_dim + _weighted_heads(x))


def _weighted_heads(sizes: IndexerShape) -> int:
    """Return the heads whose scores a token weighs: all where they choose together."""
    return sizes.heads if sizes.block == 1 else 0


def chosen(sizes: IndexerShape, seq_len: int) -> float:
    """Return the positions that are kept of a query: top_k, or H ceil(top_k / block) of blocks.

    >>> chosen(IndexerShape(heads=64, head_dim=128, top_k=2048), 8192)
    2048
    >>> chosen(IndexerShape(heads=4, head_dim=128, top_k=2048, block=128), 8192)
    64
    """
    n_keys = min(sizes.top_k, seq_len)
    return n_keys if sizes.block == 1 else sizes.heads * -(-n_keys // sizes.block)


def chosen_keys(sizes: IndexerShape, seq_len: int) -> float:
    """Return the mean keys of a query, each over its best ones.

    `window_keys` of top_k; of blocks, (b - 1) / 2 (1 - top_k / s) fewer: a query's own block is
    always one of them, and of it only the tokens before the query are seen.
    Source: a count; transformers models/minimax_m3_vl (index_local_blocks).

    >>> chosen_keys(IndexerShape(heads=1, head_dim=8, top_k=4, block=2), 8)
    3.0
    """
    keys = window_keys(sizes.top_k, seq_len)
    return keys - (sizes.block - 1) / 2.0 * max(0.0, 1.0 - sizes.top_k / seq_len)


def sparse_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of attention with an indexer and its norm on one tp rank.

    Those of attention, the indexer's weights and the norm of its keys, 2 d; of blocks two norms
    of d, of queries and of keys.
    """
    more = indexer_weights(shape) + 2 * _sizes(shape).head_dim
    return np.asarray(attention_params(shape, tp) + more)


def _replicated(shape: ModelShape) -> int:
    more = indexer_weights(shape) + 2 * _sizes(shape).head_dim
    return ATTENTION.replicated_params(shape) + more


def _linear_params(shape: ModelShape, tp: Ints) -> Floats:
    return params.linear_params(without_feed(shape), tp) + indexer_weights(shape)


def sparse_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return the matrices of attention and the three of the indexer, which no tp rank cuts.

    Source: Megatron-LM core/transformer/experimental_attention_variant/dsa.py (linear_wq_b,
    linear_wk, linear_weights_proj).
    """
    x, h = _sizes(shape), shape.hidden
    index = (
        Matrix(x.heads * x.head_dim, shape.q_rank or h),
        Matrix(x.head_dim, h),
        *(() if x.block > 1 else (Matrix(x.heads, h),)),
    )
    return attention_matrices(shape) + index


def sparse_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token.

    Projections, 2 c k of the core over k mean keys (`chosen_keys`), and H d s / 2 of the
    scores that the indexer gives to all keys before a query.
    Source: DeepSeek-V3.2, section 2; 2 T (T / 2) H d FLOPs of a layer.
    """
    x, plain = _sizes(shape), ATTENTION.macs(shape)
    core = plain.core

    def core_at(seq_len: int) -> float:
        index = x.heads * x.head_dim * seq_len / 2.0
        return 2.0 * core * chosen_keys(x, seq_len) + index

    projections = plain.projections + indexer_weights(shape)
    return LayerMacs(projections, 0, 0, plain.modules, core_at)


def sparse_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of attention over the keys that an indexer chooses.

    Attention over `chosen_keys`, as a window of as many keys. The indexer: its
    projections of all tokens on every tp rank; scores of H d s FLOPs a token (the causal half of
    2 H d s), twice that backward, at half the rate of a large product; of the scores the choice
    reads and writes 8 s bytes a token. Kept besides: 2 H d + 2 d + 2 H bytes of its queries, keys
    and weights, and 4 top_k of positions (`chosen` of blocks, whose heads have no weights).
    Left out: the loss that teaches it where it needs the weights of all keys, a rate of gathered
    keys below that of whole ones.
    """
    problem, tokens, shape = inputs.problem, inputs.tokens, inputs.problem.shape
    x, seq_len, part = _sizes(shape), problem.job.seq_len, problem.pool.accelerator
    keys = run_keys(chosen_keys(x, seq_len), seq_len, 1.0)
    plain = attention_terms(inputs, keys)
    three = products_of(shape.layers, problem.job, part, problem.stack)
    of_queries = three(tokens, float(shape.q_rank or shape.hidden), float(x.heads * x.head_dim))
    of_keys = three(tokens, float(shape.hidden), float(x.head_dim + _weighted_heads(x)))
    zeros = np.zeros_like(tokens)
    ahead, dgrad, wgrad = (a + b for a, b in zip(of_queries, of_keys, strict=True))
    flops = np.full_like(tokens, float(x.heads * x.head_dim * seq_len))
    moved = np.full_like(tokens, 8.0 * seq_len)
    launch = part.efficiency.kernel_latency_s
    index = ForwardBackward(
        scan_s(inputs, flops, moved) + 3 * launch, scan_s(inputs, 2.0 * flops, moved) + 3 * launch
    )
    wide = inputs.element_bytes
    index_bytes = wide * (x.heads * x.head_dim + x.head_dim + _weighted_heads(x))
    index_bytes += INDEX_BYTES * chosen(x, seq_len)
    scratch = plain.scratch_bytes
    if problem.stack.fused_wgrad:
        scratch = scratch + 2.0 * indexer_weights(shape)
    return replace(
        plain,
        linear=plain.linear + LinearTimes(ahead, dgrad, wgrad, zeros, zeros, zeros),
        core=plain.core + index,
        launches=plain.launches + 8 / 13,
        kept_bytes=plain.kept_bytes + tokens * index_bytes,
        scratch_bytes=scratch,
    )


SPARSE: Mixer = replace(
    ATTENTION,
    name="sparse",
    title="sparse attention",
    equation="x + attention(norm(x)) over the top_k keys of sum over H of w relu(q k)",
    source="DeepSeek-V3.2; Megatron-LM core/transformer/experimental_attention_variant/dsa.py;"
    " of blocks transformers models/minimax_m3_vl",
    params=sparse_params,
    replicated_params=_replicated,
    linear_params=_linear_params,
    macs=sparse_macs,
    terms=sparse_terms,
    section="indexer",
    cp_comms=("all-gather",),
    frameworks=("megatron", "deepspeed", "fsdp2", "bridge", "primus", "automodel"),
    matrices=sparse_matrices,
)
