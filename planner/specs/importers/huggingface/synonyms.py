"""Names under which configurations say the same size."""

from collections.abc import Mapping

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "layers": ("n_layers", "num_layers", "n_layer", "num_hidden_layers", "num_decoder_layers"),
    "hidden": ("d_model", "n_embd", "n_embed", "hidden_size", "model_dim", "dim", "emb_dim"),
    "heads": ("n_heads", "n_head", "num_heads", "num_attention_heads", "attention_heads"),
    "kv_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_kv_heads",
        "n_head_kv",
        "multi_query_group_num",
        "num_query_groups",
        "n_kv_head",
    ),
    "head_dim": (
        "head_dim",
        "kv_channels",
        "attention_head_size",
        "attention_head_dim",
        "d_head",
        "size_per_head",
    ),
    "ffn": (
        "intermediate_size",
        "ffn_hidden_size",
        "ffn_dim",
        "n_inner",
        "inner_hidden_size",
        "mlp_hidden_size",
        "feed_forward_size",
        "shared_intermediate_size",
    ),
    "moe_ffn": (
        "moe_intermediate_size",
        "moe_ffn_hidden_size",
        "expert_ffn_hidden_size",
        "intermediate_size",
    ),
    "vocab": ("vocab_size", "padded_vocab_size", "unpadded_vocab_size"),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "topk": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "moe_topk",
        "moe_top_k",
        "moe_k",
        "num_selected_experts",
    ),
    "shared_experts": (
        "n_shared_experts",
        "num_shared_experts",
        "num_shared_expert",
        "moe_num_shared_experts",
    ),
    "lin_k_heads": ("lightning_nkv",),
    "first_dense": (
        "first_k_dense_replace",
        "moe_layer_start_index",
        "num_dense_layers",
        "n_dense_layers",
    ),
}
"""Other names of sizes: a key that says again what the reader found is no surprise."""
