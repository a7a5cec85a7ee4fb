"""How many parameters a model has, and how many of them one device holds."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.shapes import ModelShape

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


def padded_vocab(shape: ModelShape, tp: Ints) -> Floats:
    """Return the rows of the vocabulary matrices as allocated, elements.

    V = ceil(vocab / (multiple * tp)) * multiple * tp unless the model fixes it.
    Source: Megatron-LM training/vocab_utils.py, --make-vocab-size-divisible-by (default 128).

    >>> from costmodels.examples import LLAMA3_8B
    >>> padded_vocab(LLAMA3_8B, np.array([1, 8], dtype=np.int32))
    array([128256., 129024.])
    """
    if shape.padded_vocab:
        return np.full(len(tp), float(shape.padded_vocab))
    unit = shape.vocab_multiple * np.asarray(tp, dtype=np.float64)
    return np.ceil(shape.vocab / unit) * unit


def kv_heads_per_rank(shape: ModelShape, tp: ArrayLike) -> Floats:
    """Return the KV heads on one tensor-parallel rank; below one they are replicated.

    Source: Megatron-LM TransformerConfig: kv_heads % tp == 0 or tp % kv_heads == 0.
    """
    return np.maximum(shape.kv_heads / np.asarray(tp, dtype=np.float64), 1.0)


def layer_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of one layer on one tensor-parallel rank.

    N = [h (h_q + 2 h_kv) + h_q h + c h f] / t + norms (+ biases), c = 3 gated, 2 otherwise.
    Norms and the biases of the row-parallel layers are replicated over tp.
    Source: Megatron-LM training/theoretical_memory_usage.py (form); counts checked in tests.
    """
    t = np.asarray(tp, dtype=np.float64)
    h, q, f = shape.hidden, shape.q_width, shape.ffn
    kv = kv_heads_per_rank(shape, tp) * shape.head_dim
    up = 2 if shape.gated else 1
    sharded = h * (q / t + 2 * kv) + q / t * h + (up + 1) * h * f / t
    norms = (2 if shape.norm == "rmsnorm" else 4) * h
    biases = (q / t + 2 * kv + up * f / t + 2 * h) if shape.bias else 0.0
    return sharded + norms + biases


def embedding_params(shape: ModelShape, seq_len: int, tp: Ints) -> Floats:
    """Return the parameters of the embeddings on the first stage of one tensor-parallel rank."""
    positions = max(shape.max_positions, seq_len) if shape.positions == "learned" else 0
    return padded_vocab(shape, tp) * shape.hidden / np.asarray(tp) + positions * shape.hidden


def head_params(shape: ModelShape, tp: Ints, pp: Ints) -> Floats:
    """Return the parameters of final norm and head on the last stage of one tensor-parallel rank.

    A tied head costs nothing on one stage; over several, the last stage holds its own copy.
    Source: Megatron-LM core/parallel_state.py (embedding group of first and last stage).
    """
    matrix = padded_vocab(shape, tp) * shape.hidden / np.asarray(tp)
    own_copy = (np.asarray(pp) > 1) | (not shape.tied)
    final_norm = (1 if shape.norm == "rmsnorm" else 2) * shape.hidden
    return matrix * own_copy + final_norm


def total_params(shape: ModelShape, seq_len: int) -> float:
    """Return the parameters of the whole model with its true (unpadded) vocabulary.

    >>> from costmodels.examples import LLAMA3_8B
    >>> total_params(LLAMA3_8B, 8192)
    8030261248.0
    """
    one = np.ones(1, dtype=np.int32)
    layers = shape.layers * float(layer_params(shape, one)[0])
    matrices = (1 if shape.tied else 2) * shape.vocab * shape.hidden
    positions = max(shape.max_positions, seq_len) if shape.positions == "learned" else 0
    final_norm = (1 if shape.norm == "rmsnorm" else 2) * shape.hidden
    return layers + matrices + positions * shape.hidden + final_norm
