"""Parameters of one layer and of the vocabulary, as one device holds them."""

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

    N = [h (h_q + 2 h_kv) + h_q h + c h f] / t + norms (+ biases), c = 3 gated, 2 otherwise; h h_q
    / t more with a gate of attention's output.
    Norms and the biases of the row-parallel layers are replicated over tp. Latent attention has
    its own count in place of the first two terms (`latent_params`).
    Source: Megatron-LM training/theoretical_memory_usage.py (form); counts checked in tests.
    """
    t = np.asarray(tp, dtype=np.float64)
    h, q, f = shape.hidden, shape.q_width, shape.ffn
    kv = kv_heads_per_rank(shape, tp) * shape.projected_dim
    up = 2 if shape.gated else 1
    if shape.latent:
        sharded = latent_params(shape, tp) + (up + 1) * h * f / t
    else:
        sharded = h * (q / t + kv) + shape.v_width / t * h + (up + 1) * h * f / t
        sharded = sharded + h * shape.gate_width / t
    norms = (2 if shape.norm == "rmsnorm" else 4) * h + qk_norm_params(shape)
    biases = (q / t + kv + up * f / t + 2 * h) if shape.bias else 0.0
    return sharded + norms + biases


def qk_norm_params(shape: ModelShape) -> int:
    """Return the parameters of norms of queries and keys, which every tp rank holds whole.

    2 d of heads, h_q + h_kv over their width. Source: transformers models/{qwen3,olmo2}.
    """
    named = shape.operators.qk_norm if shape.operators and not shape.latent else ""
    sizes = {"head": 2 * shape.head_dim, "width": shape.q_width + shape.kv_width}
    return sizes.get(named, 0)


def linear_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of the linear layers of a dense layer on one tensor-parallel rank.

    `layer_params` without norms (those of latents too) and biases.

    >>> from costmodels.examples import LLAMA3_8B
    >>> linear_params(LLAMA3_8B, np.array([1], dtype=np.int32)).item()  # 218112000 - 2 * 4096
    218103808.0
    """
    t, h = np.asarray(tp, dtype=np.float64), float(shape.hidden)
    mlp = (3.0 if shape.gated else 2.0) * h * shape.ffn / t
    if shape.latent:
        return np.asarray(latent_params(shape, tp) - shape.q_rank - shape.kv_rank + mlp)
    kv = kv_heads_per_rank(shape, tp) * shape.projected_dim
    attention = h * ((shape.q_width + shape.v_width) / t + kv)
    return np.asarray(attention + mlp + h * shape.gate_width / t)


def expert_layer_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of an expert layer beside its routed experts, on one tp rank.

    Attention, norms and shared experts as in a dense layer whose MLP has the width of the shared
    experts, and a router of h E, replicated over tp; a single expert needs no router. Latent
    experts have two projections of h l, replicated too.
    """
    router = shape.hidden * shape.n_experts if shape.n_experts > 1 else 0
    router += 2 * shape.hidden * shape.moe_latent
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
    value = 2 * norm * h + qk_norm_params(shape)
    if shape.latent:
        value += (shape.kv_rank + shape.qk_rope) * h + norm * shape.kv_rank
        value += (h + norm) * shape.q_rank
    mlp_bias = not routed or shape.shared_ffn > 0
    value += (1 + mlp_bias) * h * shape.bias
    return value + routed * h * (shape.n_experts + 2 * shape.moe_latent)


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
    one = (up + 1) * shape.expert_hidden * shape.expert_ffn / cut
    if shape.bias:
        one = one + up * shape.expert_ffn / cut + shape.expert_hidden
    return shape.n_experts / np.asarray(ep, dtype=np.float64) * one


def expert_linear_params(shape: ModelShape, ep: ArrayLike, etp: ArrayLike) -> Floats:
    """Return the weights of `expert_params` without biases."""
    width = np.asarray(ep, dtype=np.float64) * np.asarray(etp)
    matrices = (3.0 if shape.gated else 2.0) * shape.expert_hidden * shape.expert_ffn
    return np.asarray(shape.n_experts * matrices / width)


def head_transform_params(shape: ModelShape) -> int:
    """Return the parameters of the layer before the output head, whole on every tp rank.

    N = h^2 + norm (+ h with biases); 0 without one.
    Source: transformers models/modernbert (ModernBertPredictionHead); Megatron-LM
    core/models/bert/bert_lm_head.py.

    >>> from dataclasses import replace
    >>> from costmodels.examples import LLAMA3_8B
    >>> head_transform_params(replace(LLAMA3_8B, head_transform=True))  # 4096 * 4096 + 4096
    16781312
    """
    if not shape.head_transform:
        return 0
    norm = 1 if shape.norm == "rmsnorm" else 2
    return shape.hidden * (shape.hidden + norm + shape.bias)


def stream_params(shape: ModelShape) -> int:
    """Return the parameters that make further residual streams, and as many that join them.

    (a - 1) h^2 before the layers and the same behind them, whole on every tp rank; 0 with one.
    Source: transformers models/gemma3n (altup_projections, altup_unembed_projections).
    """
    return (shape.per_layer.streams - 1) * shape.hidden**2 if shape.per_layer else 0


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
