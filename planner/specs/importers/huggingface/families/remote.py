"""Types whose code lies beside the weights, not in transformers.

Names of keys and layers: the configuration and modeling files beside the weights on the Hub. Their
defaults are those of no model and are not taken over: a file has to say its sizes.
"""

from collections.abc import Mapping

from planner.specs.importers.huggingface.rules import (
    EXPERT_WIDTH_ONLY,
    POST_NORMS,
    QKV_O,
    ModelType,
)

NO_MODEL: Mapping[str, object] = dict.fromkeys(
    ("vocab", "hidden", "ffn", "layers", "heads", "kv_heads", "head_dim", "max_positions")
)
"""Defaults of a type whose file has to say its sizes."""
_EXPERTS: Mapping[str, object] = dict.fromkeys(("moe_ffn", "experts", "topk"))
_GPT2_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("n_layer",),
    "hidden": ("n_embd",),
    "heads": ("n_head",),
    "head_dim": (),
    "ffn": ("n_inner",),
    "max_positions": ("n_positions",),
}
_OLMO_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("n_layers",),
    "hidden": ("d_model",),
    "heads": ("n_heads",),
    "kv_heads": ("n_kv_heads",),
    "head_dim": (),
    "ffn": ("mlp_hidden_size",),
    "vocab": ("embedding_size",),
    "tied": ("weight_tying",),
    "max_positions": ("max_sequence_length",),
    "mlp_bias": ("include_bias",),
    "attention_bias": ("include_bias",),
}

REMOTE_ROWS: Mapping[str, ModelType] = {
    "grok-1": ModelType(
        defaults={**NO_MODEL, **_EXPERTS, "tied": True, "soft_cap": 30.0},
        keys={**EXPERT_WIDTH_ONLY, "soft_cap": ("max_attn_value",)},
        experts=True,
        extra=(POST_NORMS,),
    ),
    "grok-2": ModelType(
        defaults={**NO_MODEL, **_EXPERTS, "tied": False, "shared_ffn": None},
        keys={"ffn": (), "shared_ffn": ("intermediate_size",), "parallel": ("residual_moe",)},
        experts=True,
        extra=(POST_NORMS,),
    ),
    "arctic": ModelType(
        defaults={**NO_MODEL, **_EXPERTS, "tied": False, "shared_ffn": None, "expert_step": 1},
        keys={
            **EXPERT_WIDTH_ONLY,
            "shared_ffn": ("hidden_size",),
            "expert_step": ("moe_layer_frequency",),
        },
        biases=QKV_O,
        experts=True,
        ignored=("parallel_attn_mlp_res", "use_residual", "enable_expert_tensor_parallelism"),
        extra=("a third norm",),
    ),
    "solar": ModelType(
        defaults={**NO_MODEL, "tied": False},
        keys={"window": ()},
        biases=("attention_bias", "attention_bias", "mlp_bias"),
        ignored=("bskcn_1", "bskcn_2", "bskcn_3", "bskcn_4", "bskcn_tv", "sliding_window"),
        extra=("states of earlier layers that later ones add",),
    ),
    "plamo": ModelType(
        defaults={**NO_MODEL, "tied": False, "own_kv_heads": 8},
        keys={"kv_heads": (), "head_dim": (), "own_kv_heads": ("n_shared_head",)},
        computed={"kv_heads": lambda look: -(-look("heads") // look("own_kv_heads"))},
        parallel=True,
        ignored=("num_key_value_heads",),
    ),
    "PanguProMoE": ModelType(
        defaults={**NO_MODEL, **_EXPERTS, "tied": False, "shared_ffn": None},
        keys={
            "ffn": (),
            "groups": ("num_groups",),
            "top_groups": ("num_groups",),
            "attention_bias": (),
        },
        biases=(True, True, False),
        experts=True,
        ignored=("num_experts_per_group", "attention_bias"),
    ),
    "llada": ModelType(
        defaults={
            **NO_MODEL,
            "tied": False,
            "both_sides": True,
            "attention_bias": False,
            "mlp_bias": False,
        },
        keys={
            **_OLMO_NAMES,
            "vocab": ("embedding_size", "vocab_size"),
            "attention_bias": ("include_qkv_bias",),
        },
        biases=("attention_bias", "mlp_bias", "mlp_bias"),
        ignored=(
            "mlp_ratio",
            "block_type",
            "bias_for_layer_norm",
            "attention_layer_norm_with_affine",
            "layer_norm_with_affine",
        ),
    ),
    "xverse_moe": ModelType(
        defaults={**NO_MODEL, **_EXPERTS, "tied": False, "shared_experts": None},
        keys={
            **EXPERT_WIDTH_ONLY,
            "topk": ("moe_top_k",),
            "shared_experts": ("num_shared_experts",),
        },
        experts=True,
        ignored=("max_tokenizer_truncation",),
    ),
    "xverse": ModelType(
        defaults={**NO_MODEL, "tied": False},
        ignored=("max_tokenizer_truncation",),
    ),
    "orion": ModelType(
        defaults={**NO_MODEL, "tied": False},
        norm="layernorm",
        biases=QKV_O,
    ),
    "telechat": ModelType(
        defaults={**NO_MODEL, "tied": False, "mlp_bias": False},
        keys={
            "layers": ("n_layer", "num_hidden_layers"),
            "heads": ("n_head", "num_attention_heads"),
            "ffn": ("ffn_hidden_size", "intermediate_size"),
            "max_positions": ("seq_length", "training_seqlen", "max_position_embeddings"),
        },
        ignored=("embed_layernorm",),
        extra=("biases of the attention output and of the MLP's output",),
    ),
    "phi-msft": ModelType(
        defaults={**NO_MODEL, "tied": False},
        keys={**_GPT2_NAMES, "kv_heads": ("n_head_kv",)},
        gated=False,
        norm="layernorm",
        biases=(True, True, True),
        parallel=True,
        extra=("bias of the head",),
    ),
    "codeshell": ModelType(
        defaults={**NO_MODEL, "tied": True},
        keys={**_GPT2_NAMES, "kv_heads": ("num_query_groups",)},
        gated=False,
        norm="layernorm",
        biases=(True, True, True),
        ignored=("group_query_attention",),
    ),
    "jais": ModelType(
        defaults={**NO_MODEL, "tied": True, "alibi": True},
        keys={**_GPT2_NAMES, "kv_heads": (), "alibi": ()},
        norm="layernorm",
        biases=(True, True, True),
    ),
    "molmo": ModelType(
        defaults={**NO_MODEL, "tied": False, "attention_bias": False, "qk_norm": False},
        keys={
            "tied": ("weight_tying",),
            "attention_bias": ("qkv_bias",),
            "qk_norm": ("attention_layer_norm",),
        },
        biases=("attention_bias", False, False),
        qk_norm="qk_norm",
        ffn_parts=2,
        ignored=("embedding_size", "tie_word_embeddings"),
        extra=("rows of tokens for images",),
    ),
    "mobilellm": ModelType(
        defaults={**NO_MODEL, "tied": False},
        keys={"tied": ("share_embedding",)},
        biases=("attention_bias", "attention_bias", "mlp_bias"),
        ignored=("tie_word_embeddings",),
    ),
    "hf_olmo": ModelType(
        defaults={**NO_MODEL, "tied": True},
        keys=_OLMO_NAMES,
        biases=("attention_bias", "attention_bias", "mlp_bias"),
        ignored=("vocab_size", "mlp_ratio", "block_type", "bias_for_layer_norm"),
        ffn_parts=2,
        extra=("norms, which have no weights",),
    ),
}

_SMALL_LLAMA: Mapping[str, object] = {**NO_MODEL, "tied": False}
_NO_SIZES: Mapping[str, object] = dict.fromkeys(("vocab", "hidden", "moe_ffn", "layers"))
REMOTE_ALIASES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "grok1": ("grok-1", {}),
    "grok_1": ("grok-1", {}),
    "mixformer-sequential": ("phi-msft", {}),
    "telechat2": ("telechat", {}),
    "btlm": ("jais", {}),
    "llava_llama": ("llama", _SMALL_LLAMA),
    "llava_mistral": ("mistral", {**_SMALL_LLAMA, "window": None}),
    "llava_qwen": ("qwen2", _SMALL_LLAMA),
    "nanbeige": ("llama", _SMALL_LLAMA),
    "dream": ("qwen2", {**_SMALL_LLAMA, "both_sides": True}),
    "Dream": ("qwen2", {**_SMALL_LLAMA, "both_sides": True}),
    "qwen2_5_omni_text": ("qwen2", NO_MODEL),
    "qwen2_5_omni_thinker": ("qwen2", NO_MODEL),
    "qwen3_omni_moe_text": ("qwen3_moe", dict.fromkeys(("vocab", "hidden", "moe_ffn", "layers"))),
    "olmo_original": ("hf_olmo", {}),
    "kimi_k25_text": ("deepseek_v3", _NO_SIZES),
    "kimi_vl_text": ("deepseek_v3", _NO_SIZES),
}
"""Other names of the same layers, with the defaults that differ."""
