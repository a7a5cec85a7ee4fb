"""How many parameters a model has, and how many of them one device holds."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.shapes import ModelShape

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


def padded_vocab(shape: ModelShape, tp: Ints) -> Floats:
    """Return the rows of the vocabulary matrices as allocated, elements.

    V = ceil(vocab / (multiple * tp)) * multiple * tp unless the model fixes it; software that does
    not pad (`pads_vocab`) has ceil(vocab / tp) * tp.
    Source: Megatron-LM training/vocab_utils.py, --make-vocab-size-divisible-by (default 128).

    >>> from costmodels.examples import LLAMA3_8B
    >>> padded_vocab(LLAMA3_8B, np.array([1, 8], dtype=np.int32))
    array([128256., 129024.])
    """
    if shape.padded_vocab and shape.pads_vocab:
        return np.full(len(tp), float(shape.padded_vocab))
    multiple = shape.vocab_multiple if shape.pads_vocab else 1
    unit = multiple * np.asarray(tp, dtype=np.float64)
    return np.ceil(shape.vocab / unit) * unit


def kv_heads_per_rank(shape: ModelShape, tp: ArrayLike) -> Floats:
    """Return the KV heads on one tensor-parallel rank; below one they are replicated.

    Source: Megatron-LM TransformerConfig: kv_heads % tp == 0 or tp % kv_heads == 0.
    """
    return np.maximum(shape.kv_heads / np.asarray(tp, dtype=np.float64), 1.0)


def latent_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of latent attention on one tensor-parallel rank, its norms included.

    N = r_q (h + 1) + r_q h_q / t + (r_kv + d_r) h + r_kv + r_kv a (d_n + d_v) / t + a d_v h / t

    r_q and r_kv the ranks, d_n, d_r and d_v the widths of a head without positions, with them and
    of its values; h h_q / t in place of the first two without compressed queries. The down
    projections and norms are replicated over tp.
    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1; Megatron-LM
    core/transformer/multi_latent_attention.py.
    """
    t, h = np.asarray(tp, dtype=np.float64), shape.hidden
    if shape.q_rank:
        query = shape.q_rank * (h + 1) + shape.q_rank * shape.q_width / t
    else:
        query = h * shape.q_width / t
    down = (shape.kv_rank + shape.qk_rope) * h + shape.kv_rank
    up = shape.kv_rank * shape.heads * (shape.qk_nope + shape.v_head) / t
    return query + down + up + shape.v_width * h / t


def layer_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of one dense layer on one tensor-parallel rank.

    N = [h (h_q + 2 h_kv) + h_q h + c h f] / t + norms (+ biases), c = 3 gated, 2 otherwise.
    Norms and the biases of the row-parallel layers are replicated over tp. Latent attention has
    its own count in place of the first two terms (`latent_params`).
    Source: Megatron-LM training/theoretical_memory_usage.py (form); counts checked in tests.
    """
    t = np.asarray(tp, dtype=np.float64)
    h, q, f = shape.hidden, shape.q_width, shape.ffn
    kv = kv_heads_per_rank(shape, tp) * shape.head_dim
    up = 2 if shape.gated else 1
    if shape.latent:
        sharded = latent_params(shape, tp) + (up + 1) * h * f / t
    else:
        sharded = h * (q / t + 2 * kv) + q / t * h + (up + 1) * h * f / t
    norms = (2 if shape.norm == "rmsnorm" else 4) * h
    biases = (q / t + 2 * kv + up * f / t + 2 * h) if shape.bias else 0.0
    return sharded + norms + biases


def expert_layer_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of an expert layer beside its routed experts, on one tp rank.

    Attention, norms and shared experts as in a dense layer whose MLP has the width of the shared
    experts, and a router of h E, replicated over tp; a single expert needs no router.
    """
    router = shape.hidden * shape.n_experts if shape.n_experts > 1 else 0
    unused_bias = shape.hidden if shape.bias and not shape.shared_ffn else 0
    return layer_params(shape.without_experts(), tp) + (router - unused_bias)


def replicated_params(shape: ModelShape, *, routed: bool) -> int:
    """Return the parameters of a layer that every tensor-parallel rank holds whole.

    Norms, biases of row-parallel layers, the router, the down projections of latent attention.
    With sequence parallelism a rank sees a part of the tokens, and their gradients are summed over
    tp once a step. Source: Megatron-LM core/distributed/finalize_model_grads.py.

    >>> from costmodels.examples import LLAMA3_8B
    >>> replicated_params(LLAMA3_8B, routed=False)  # two norms of 4096
    8192
    """
    h, norm = shape.hidden, 1 if shape.norm == "rmsnorm" else 2
    value = 2 * norm * h
    if shape.latent:
        value += (shape.kv_rank + shape.qk_rope) * h + norm * shape.kv_rank
        value += (h + norm) * shape.q_rank
    mlp_bias = not routed or shape.shared_ffn > 0
    value += (1 + mlp_bias) * h * shape.bias
    return value + routed * h * shape.n_experts


def expert_params(shape: ModelShape, ep: ArrayLike, etp: ArrayLike) -> Floats:
    """Return the parameters of the routed experts of one layer on one device.

    N = c h f_e E / (e t_e), c = 3 gated, 2 otherwise: E experts shared out over e ranks, each cut
    over t_e. With biases also the two of every expert, the second whole on every rank.

    >>> from costmodels.examples import MIXTRAL_8X7B
    >>> expert_params(MIXTRAL_8X7B, 8, 1).item()  # one expert: 3 * 4096 * 14336
    176160768.0
    """
    cut = np.asarray(etp, dtype=np.float64)
    up = 2 if shape.gated else 1
    one = (up + 1) * shape.hidden * shape.expert_ffn / cut
    if shape.bias:
        one = one + up * shape.expert_ffn / cut + shape.hidden
    return shape.n_experts / np.asarray(ep, dtype=np.float64) * one


def mtp_params(shape: ModelShape, tp: Ints, layer: ArrayLike = 0.0) -> Floats:
    """Return the modules of multi-token prediction on one tp rank, beside routed experts.

    N = k (layer + 2 h^2 / t + 3 norms of h), `layer` the parameters of one layer, embedding and
    head those of the model.
    Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2; Megatron-LM
    core/transformer/multi_token_prediction.py.
    """
    t, norm = np.asarray(tp, dtype=np.float64), 1 if shape.norm == "rmsnorm" else 2
    own = 2.0 * shape.hidden**2 / t + 3.0 * norm * shape.hidden
    return np.asarray(shape.mtp_layers * (np.asarray(layer) + own))


def embedding_params(shape: ModelShape, seq_len: int, tp: Ints) -> Floats:
    """Return the parameters of the embeddings on the first stage of one tensor-parallel rank."""
    positions = max(shape.max_positions, seq_len) if shape.positions == "learned" else 0
    return padded_vocab(shape, tp) * shape.hidden / np.asarray(tp) + positions * shape.hidden


def head_params(shape: ModelShape, tp: Ints, pp: Ints) -> Floats:
    """Return the parameters of final norm and head on the last stage of one tensor-parallel rank.

    A tied head costs nothing on one stage; over several, the last stage holds its own copy.
    Modules of multi-token prediction stand there too, with a copy of the embedding where it is
    another stage's.
    Source: Megatron-LM core/parallel_state.py (embedding group of first and last stage).
    """
    matrix = padded_vocab(shape, tp) * shape.hidden / np.asarray(tp)
    own_copy = (np.asarray(pp) > 1) | (not shape.tied)
    final_norm = (1 if shape.norm == "rmsnorm" else 2) * shape.hidden
    if shape.mtp_layers:
        layer = (expert_layer_params if shape.expert_layers[-1] else layer_params)(shape, tp)
        lookup = matrix * ((np.asarray(pp) > 1) & (not shape.tied))
        return matrix * own_copy + final_norm + lookup + mtp_params(shape, tp, layer)
    return matrix * own_copy + final_norm


def total_params(shape: ModelShape, seq_len: int) -> float:
    """Return the parameters of the whole model with its true (unpadded) vocabulary.

    All experts count, modules of multi-token prediction do not, as in published totals.

    >>> from costmodels.examples import LLAMA3_8B
    >>> total_params(LLAMA3_8B, 8192)
    8030261248.0
    """
    return _model_params(shape, seq_len, shape.n_experts)


def active_params(shape: ModelShape, seq_len: int) -> float:
    """Return the parameters that one token meets: `top_k` experts of every expert layer.

    The embeddings count in full, as in published numbers. Equal to `total_params` without experts.

    >>> from costmodels.examples import MIXTRAL_8X7B
    >>> round(active_params(MIXTRAL_8X7B, 4096) / 1e9, 2)
    12.88
    """
    return _model_params(shape, seq_len, shape.top_k)


def _model_params(shape: ModelShape, seq_len: int, n_experts: int) -> float:
    one = np.ones(1, dtype=np.int32)
    n_moe = shape.n_expert_layers
    layers = (shape.layers - n_moe) * float(layer_params(shape, one)[0])
    if n_moe:
        beside = float(expert_layer_params(shape, one)[0])
        experts = float(expert_params(shape, one, one)[0]) * n_experts / shape.n_experts
        layers += n_moe * (beside + experts)
    matrices = (1 if shape.tied else 2) * shape.vocab * shape.hidden
    positions = max(shape.max_positions, seq_len) if shape.positions == "learned" else 0
    final_norm = (1 if shape.norm == "rmsnorm" else 2) * shape.hidden
    return layers + matrices + positions * shape.hidden + final_norm
