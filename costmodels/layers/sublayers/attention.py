"""The model's attention as a mixer: over all keys, over a window, or inside chunks."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from costmodels import memory
from costmodels.layers import params
from costmodels.layers.compute import ATTENTION_TILE, linear_times, rotary_width
from costmodels.layers.dense import attention_macs, attention_modules_of, up_projection_macs
from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.recompute import attention_modules
from costmodels.layers.sublayers.sublayer import (
    Mixer,
    MixerTerms,
    elementwise_s,
    ends_bytes,
    norm_params,
    without_feed,
)
from costmodels.optimizers.matrices import attention_matrices
from costmodels.schedule.launches import ATTENTION_SHARE, LATENT_LAUNCHES
from costmodels.shapes import ModelShape

Keys = Callable[[ModelShape, int], float]
"""Mean keys of a query in a model, by the length of a sequence."""


def window_keys(size: int, seq_len: int) -> float:
    """Return the mean keys of a query that sees itself and the size - 1 before it.

    k = w - w (w - 1) / (2 s)  for w < s, else s / 2

    The first w - 1 queries see fewer. s / 2, as of full attention, leaves out half a key.
    Source: a count; Megatron-LM `--window-size` (w - 1, 0).

    >>> window_keys(4, 8)  # (1 + 2 + 3 + 5 x 4) / 8 = 26 / 8
    3.25
    >>> window_keys(4096, 4096)
    2048.0
    """
    if size >= seq_len:
        return seq_len / 2.0
    return size - size * (size - 1) / (2.0 * seq_len)


def chunk_keys(size: int, seq_len: int) -> float:
    """Return the mean keys of a query that sees those before it in its own chunk of w tokens.

    k = sum of (w_i)^2 / (2 s),  w_i the lengths of the chunks, the last one shorter

    As of full attention half a key is left out. Source: a count; transformers models/llama4.

    >>> chunk_keys(4, 10)  # (16 + 16 + 4) / 20
    1.8
    """
    n_full, rest = divmod(seq_len, size)
    return (n_full * size * size + rest * rest) / (2.0 * seq_len)


def _window_keys(shape: ModelShape, seq_len: int) -> float:
    assert shape.window is not None  # checked where the model is read
    return window_keys(shape.window.size, seq_len)


def _chunk_keys(shape: ModelShape, seq_len: int) -> float:
    assert shape.chunk is not None  # checked where the model is read
    return chunk_keys(shape.chunk.size, seq_len)


def attention_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of attention and its norm on one tensor-parallel rank.

    Those of a dense layer without its MLP, whose norm and bias are left.
    """
    of_feed = norm_params(shape) + shape.hidden * shape.bias
    return np.asarray(params.layer_params(without_feed(shape), tp) - of_feed)


def _replicated(shape: ModelShape) -> int:
    total = params.replicated_params(without_feed(shape), routed=False)
    return total - norm_params(shape) - shape.hidden * shape.bias


def _linear_params(shape: ModelShape, tp: Ints) -> Floats:
    return params.linear_params(without_feed(shape), tp)


def attention_macs_over(keys: Keys | None) -> Callable[[ModelShape], LayerMacs]:
    """Return the multiply-adds of a token: projections, and 2 h_q k of a core over k keys."""

    def macs(shape: ModelShape) -> LayerMacs:
        projections, core = attention_macs(shape)
        modules = up_projection_macs(shape)
        if keys is None:
            return LayerMacs(projections, core, 0, modules)

        def core_at(seq_len: int) -> float:
            return 2.0 * core * keys(shape, seq_len)

        return LayerMacs(projections, 0, 0, modules, core_at)

    return macs


def run_keys(keys: float, seq_len: int, edges: float) -> float:
    """Return the mean keys that a flash kernel multiplies for a query, tiles being whole.

    min( s / 2,  k + 128 e )

    Each edge of the reach cuts tiles of 128 rows in half: e is 1 for a window, which has two, and
    0 for chunks, whose diagonal the rate of full attention has in it. Source: tiles of
    FlashAttention-2 and -3 (`ATTENTION_TILE`); no benchmark of windows was at hand.

    >>> run_keys(128.0, 8192, 1.0), run_keys(4000.0, 8192, 1.0)
    (256.0, 4096.0)
    """
    return min(seq_len / 2.0, keys + ATTENTION_TILE * edges)


def attention_terms(inputs: LayerInputs, reach: float = 0.0) -> MixerTerms:
    """Return the terms of attention over all keys, or over `reach` in the mean."""
    problem, tokens, sp, tp = inputs.problem, inputs.tokens, inputs.sp, inputs.split.tp
    shape, job, stack = without_feed(problem.shape), problem.job, problem.stack
    block = inputs.attention_over(reach) if reach else inputs.attention
    rotary = np.asarray(rotary_width(shape, tp))
    kept_bytes = memory.layer_activation_bytes(
        shape, stack, inputs.micro_batch, tp, sp, np.ones_like(tokens)
    )
    return MixerTerms(
        linear=linear_times(shape, job, problem.pool.accelerator, stack, tokens, tp),
        elementwise=elementwise_s(inputs, rotary, rotary),
        blocks=1,
        launches=ATTENTION_SHARE + (LATENT_LAUNCHES if shape.latent else 0.0),
        kept_bytes=kept_bytes - ends_bytes(inputs) + block.kept_bytes,
        modules=attention_modules(problem, tokens, tp, sp, block.core),
        scratch_bytes=memory.scratch_bytes(shape, stack, tp),
        core=block.compute,
        cp_forward=block.cp_forward,
        cp_backward=block.cp_backward,
        buffer_bytes=block.buffer_bytes,
    )


def window_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of attention over a window."""
    shape, seq_len = inputs.problem.shape, inputs.problem.job.seq_len
    return attention_terms(inputs, run_keys(_window_keys(shape, seq_len), seq_len, 1.0))


def chunk_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of attention inside chunks."""
    shape, seq_len = inputs.problem.shape, inputs.problem.job.seq_len
    return attention_terms(inputs, run_keys(_chunk_keys(shape, seq_len), seq_len, 0.0))


ATTENTION = Mixer(
    name="attention",
    title="attention",
    equation="x + attention(norm(x))",
    source="Vaswani et al. 2017; Megatron-LM core/transformer/attention.py",
    params=attention_params,
    replicated_params=_replicated,
    linear_params=_linear_params,
    macs=attention_macs_over(None),
    terms=attention_terms,
    modules=attention_modules_of,
    attends=True,
    frameworks=("megatron", "deepspeed", "fsdp2", "bridge", "primus", "automodel"),
    matrices=attention_matrices,
)
WINDOW = replace(
    ATTENTION,
    name="window",
    title="window attention",
    equation="x + attention(norm(x)), each query over itself and the w - 1 tokens before it",
    source="Beltagy et al. 2020 (Longformer); Megatron-LM `--window-size`; Transformer Engine "
    "attention/dot_product_attention/context_parallel.py (windows not with p2p)",
    macs=attention_macs_over(_window_keys),
    terms=window_terms,
    section="window",
    cp_comms=("all-gather", "a2a"),
    frameworks=("megatron", "deepspeed", "torchtitan", "fsdp2", "bridge", "primus", "automodel"),
)
CHUNK = replace(
    ATTENTION,
    name="chunk",
    title="chunked attention",
    equation="x + attention(norm(x)), each query over the tokens before it in its chunk of w",
    source="transformers models/llama4 (attention_chunk_size)",
    macs=attention_macs_over(_chunk_keys),
    terms=chunk_terms,
    section="chunk",
    cp_comms=("all-gather", "a2a"),
    frameworks=("deepspeed", "fsdp2"),
)
