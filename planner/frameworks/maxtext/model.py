"""A model as keys of MaxText's YAML: a decoder block, its sizes, the details that it has."""

from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.megatron.core_details import needed_parts, setting_text
from planner.specs.schema import DetailsSpec

_YARN = {
    "rope_scaling_factor": "rope_factor",
    "rope_original_positions": "original_max_position_embeddings",
    "rope_beta_fast": "beta_fast",
    "rope_beta_slow": "beta_slow",
    "rope_mscale": "mscale",
    "rope_truncate": "rope_truncate",
}
LLAMA3_SCALING = {
    "rope_scaling_factor": 8.0,
    "rope_low_frequency": 1.0,
    "rope_high_frequency": 4.0,
    "rope_original_positions": 8192,
}
"""What `rope_type llama3.1` stretches positions by, constants of
maxtext/layers/embeddings.py, LLaMARotaryEmbedding."""


def decoder_block(shape: ModelShape, details: DetailsSpec) -> str:
    """Return the decoder block whose layers are those of a model."""
    if shape.latent:
        return "deepseek"
    normed = details.qk_norm == "head"
    if shape.n_experts:
        return "qwen3_moe" if normed else "mixtral"
    return "qwen3" if normed else "llama2"


def vocab_rows(layout: Layout, shape: ModelShape) -> int:
    """Return the rows of the vocabulary matrices, padded only to what tp divides."""
    return -(-shape.vocab // layout.tp) * layout.tp


def model_keys(shape: ModelShape, vocab: int, details: DetailsSpec) -> dict[str, object]:
    """Return the keys of the model, `vocab` rows of its matrices."""
    keys: dict[str, object] = {
        "decoder_block": decoder_block(shape, details),
        "base_emb_dim": shape.hidden,
        "base_num_query_heads": shape.heads,
        "base_num_kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "base_mlp_dim": shape.ffn,
        "base_num_decoder_layers": shape.layers,
        "mlp_activations": ["silu", "linear"],
        "vocab_size": vocab,
        "logits_via_embedding": shape.tied,
        "enable_dropout": False,
    }
    if shape.latent:
        del keys["head_dim"]
        keys |= {
            "base_num_kv_heads": shape.heads,
            "attention_type": "mla",
            "q_lora_rank": shape.q_rank,
            "kv_lora_rank": shape.kv_rank,
            "qk_nope_head_dim": shape.qk_nope,
            "qk_rope_head_dim": shape.qk_rope,
            "v_head_dim": shape.v_head,
        }
    if shape.n_experts:
        keys |= _experts(shape, details)
    if shape.mtp_layers:
        keys["mtp_num_layers"] = shape.mtp_layers
    return keys | _details(shape, details)


def _experts(shape: ModelShape, details: DetailsSpec) -> dict[str, object]:
    keys: dict[str, object] = {
        "num_experts": shape.n_experts,
        "num_experts_per_tok": shape.top_k,
        "base_moe_mlp_dim": shape.expert_ffn,
        "sparse_matmul": True,
        "capacity_factor": -1.0,
    }
    if not shape.latent:
        keys["base_mlp_dim"] = shape.expert_ffn  # of a model without dense layers the same
    else:
        keys |= {
            "first_num_dense_layers": shape.dense_layers,
            "shared_experts": shape.shared_ffn // shape.expert_ffn,
        }
        if shape.n_groups > 1:
            keys |= {
                "n_routing_groups": shape.n_groups,
                "topk_routing_group": shape.top_groups,
            }
        if details.router_scores in ("softmax", "sigmoid"):
            keys["routed_score_func"] = details.router_scores
        if details.router_scale is not None:
            keys["routed_scaling_factor"] = details.router_scale
        if details.router_bias:
            keys["routed_bias"] = True
    if details.router_norm_topk is not None and decoder_block(shape, details) == "qwen3_moe":
        keys["norm_topk_prob"] = details.router_norm_topk
    if details.aux_loss is not None:
        keys["load_balance_loss_weight"] = details.aux_loss
    return keys


def _details(shape: ModelShape, details: DetailsSpec) -> dict[str, object]:
    """Return the keys of norms and rotary positions."""
    keys: dict[str, object] = {}
    if details.norm_epsilon is not None:
        keys["normalization_layer_epsilon"] = details.norm_epsilon
    if details.rotary_base is not None:
        keys["rope_max_timescale"] = int(details.rotary_base)
    if details.qk_norm == "head" and not shape.latent:
        keys["use_qk_norm"] = True
    if details.rope_scaling == "llama3" and _is_llama3(details):
        keys["rope_type"] = "llama3.1"
    if details.rope_scaling == "yarn":
        fields = details.stated()
        keys["rope_type"] = "yarn"
        keys |= {key: fields[name] for name, key in _YARN.items() if name in fields}
        if details.rope_original_positions and details.rope_scaling_factor:
            most = details.rope_original_positions * details.rope_scaling_factor
            keys["max_position_embeddings"] = int(most)
    return keys


def _is_llama3(details: DetailsSpec) -> bool:
    """Tell whether positions are stretched by the constants of MaxText."""
    fields = details.stated()
    return all(fields.get(name, value) == value for name, value in LLAMA3_SCALING.items())


def not_said(details: DetailsSpec, shape: ModelShape, job: TrainingJob) -> tuple[str, ...]:
    """Return the details that MaxText's decoder blocks do not have, a line each."""
    fields, block = details.stated(), decoder_block(shape, details)
    window = bool(details.window) and (details.window or 0) < job.seq_len
    scaled = details.rope_scaling in (None, "yarn") or (
        details.rope_scaling == "llama3" and _is_llama3(details)
    )
    own_router = block == "deepseek"
    checks = {
        "rotary_percent": details.rotary_percent in (None, 1.0) or bool(shape.latent),
        "rope_scaling": scaled,
        "no_rope_every": details.no_rope_every is None,
        "qk_norm": details.qk_norm in (None, "head"),
        "qkv_bias": details.qkv_bias in (None, False),
        "attention_out_bias": details.attention_out_bias in (None, False),
        "activation": details.activation in (None, "silu"),
        "window": not window,
        "attention_sinks": not details.attention_sinks,
        "init_std": details.init_std is None,
        "router_scores": details.router_scores in (None, "softmax") or own_router,
        "router_norm_topk": details.router_norm_topk is not False or block == "qwen3_moe",
        "router_scale": details.router_scale in (None, 1.0) or own_router,
        "router_bias": not details.router_bias or own_router,
        "shared_expert_gate": not details.shared_expert_gate,
    }
    checks |= dict.fromkeys(needed_parts(details, job), False)
    return tuple(
        f"{name} {setting_text(fields[name])}: the decoder block {block} has none"
        for name, is_said in checks.items()
        if not is_said
    )
