"""What a `model_type` of a Hugging Face configuration says without saying it: one row a type.

Names of keys and defaults: the configuration classes of transformers 5.23
(models/*/configuration_*.py); what a layer is made of: models/*/modeling_*.py there. A default
counts where the file leaves the key out, as it does there; a `null` in the file is a value.
"""

from collections.abc import Mapping

from planner.specs.importers.huggingface.families.attention_variants import (
    VARIANT_ALIASES,
    VARIANT_TYPES,
)
from planner.specs.importers.huggingface.families.hybrids import HYBRID_ALIASES, HYBRID_TYPES
from planner.specs.importers.huggingface.families.newer import NEWER_ALIASES, NEWER_TYPES
from planner.specs.importers.huggingface.families.plain import PLAIN_ALIASES, PLAIN_TYPES
from planner.specs.importers.huggingface.families.state_spaces import STATE_SPACE_TYPES
from planner.specs.importers.huggingface.families.widths import WIDTH_ALIASES, WIDTH_TYPES
from planner.specs.importers.huggingface.rules import (
    EXPERT_WIDTH_ONLY,
    POST_NORMS,
    QKV_O,
    ModelType,
    Sizes,
    Switch,
    sizes,
)

_GPT2_KEYS = {
    "layers": ("n_layer", "num_hidden_layers"),
    "hidden": ("n_embd", "hidden_size"),
    "heads": ("n_head", "num_attention_heads"),
    "kv_heads": (),
    "head_dim": (),
    "ffn": ("n_inner",),
    "max_positions": ("n_positions", "max_position_embeddings"),
}
_ALL = (True, True, True)
_QKV_ONLY: tuple[Switch, Switch, Switch] = (True, False, False)
_ALTERNATING = [[["global", "local"], 12]]

TYPES: Mapping[str, ModelType] = {
    "llama": ModelType(
        defaults=sizes(Sizes(32000, 4096, 11008, 32, 32, None, 2048)),
        biases=("attention_bias", "attention_bias", "mlp_bias"),
    ),
    "mistral": ModelType(
        defaults=sizes(Sizes(32000, 4096, 14336, 32, 32, 8, 131072), window=4096),
    ),
    "mixtral": ModelType(
        defaults=sizes(
            Sizes(32000, 4096, None, 32, 32, 8, 131072), moe_ffn=14336, experts=8, topk=2
        ),
        keys=EXPERT_WIDTH_ONLY,
        experts=True,
    ),
    "qwen2": ModelType(
        defaults=sizes(
            Sizes(151936, 4096, 22016, 32, 32, 32, 32768),
            window=4096,
            window_on=False,
            window_from=28,
        ),
        biases=_QKV_ONLY,
    ),
    "qwen2_moe": ModelType(
        defaults=sizes(
            Sizes(151936, 2048, 5632, 24, 16, 16, 32768),
            moe_ffn=1408,
            experts=60,
            topk=4,
            shared_ffn=5632,
            expert_step=1,
            window=4096,
            window_on=False,
            window_from=28,
            attention_bias=True,
        ),
        keys={"attention_bias": ("qkv_bias",)},
        biases=("attention_bias", False, False),
        experts=True,
        dense_without=True,
        extra=("gate of the shared expert",),
    ),
    "qwen3": ModelType(
        defaults=sizes(
            Sizes(151936, 4096, 22016, 32, 32, 32, 32768),
            head_dim=128,
            window=4096,
            window_on=False,
            window_from=28,
        ),
        biases=QKV_O,
        qk_norm=True,
    ),
    "qwen3_moe": ModelType(
        defaults=sizes(
            Sizes(151936, 2048, 6144, 24, 32, 4, 32768),
            moe_ffn=768,
            experts=128,
            topk=8,
            expert_step=1,
            window=4096,
            window_on=False,
        ),
        keys={"window_from": ()},
        biases=QKV_O,
        experts=True,
        dense_without=True,
        qk_norm=True,
    ),
    "deepseek_v2": ModelType(
        defaults=sizes(
            Sizes(102400, 4096, 11008, 32, 32, None, 2048),
            moe_ffn=1407,
            experts=64,
            topk=6,
            shared_experts=2,
            first_dense=0,
            topk_method="greedy",
            q_rank=1536,
            kv_rank=512,
            qk_nope=128,
            qk_rope=64,
            v_head=128,
        ),
        biases=QKV_O,
        experts=True,
        latent=True,
        null_is_missing=("topk",),
    ),
    "deepseek_v3": ModelType(
        defaults=sizes(
            Sizes(129280, 7168, 18432, 61, 128, 128, 4096),
            moe_ffn=2048,
            experts=256,
            topk=8,
            shared_experts=1,
            first_dense=3,
            groups=8,
            top_groups=4,
            q_rank=1536,
            kv_rank=512,
            qk_nope=128,
            qk_rope=64,
            v_head=128,
        ),
        biases=QKV_O,
        experts=True,
        latent=True,
    ),
    "gpt2": ModelType(
        defaults=sizes(Sizes(50257, 768, None, 12, 12, None, 1024), tied=True),
        keys=_GPT2_KEYS,
        gated=False,
        norm="layernorm",
        positions="learned",
        biases=_ALL,
        dropout=0.1,
    ),
    "gpt_bigcode": ModelType(
        defaults=sizes(Sizes(50257, 768, None, 12, 12, None, 1024), tied=True, multi_query=True),
        keys=_GPT2_KEYS,
        gated=False,
        norm="layernorm",
        positions="learned",
        biases=_ALL,
        dropout=0.1,
    ),
    "gptj": ModelType(
        defaults=sizes(Sizes(50400, 4096, None, 28, 16, None, 2048)),
        keys=_GPT2_KEYS,
        gated=False,
        norm="layernorm",
        biases=(False, False, True),
        parallel=True,
        extra=("bias of the head",),
    ),
    "gpt_neo": ModelType(
        defaults=sizes(
            Sizes(50257, 2048, None, 24, 16, None, 2048),
            tied=True,
            window=256,
            attention_types=_ALTERNATING,
        ),
        keys={
            "layers": ("num_layers", "num_hidden_layers"),
            "heads": ("num_heads", "num_attention_heads"),
            "kv_heads": (),
            "head_dim": (),
            "window": ("window_size",),
        },
        ignored=("attention_layers",),
        gated=False,
        norm="layernorm",
        positions="learned",
        biases=(False, True, True),
    ),
    "gpt_neox": ModelType(
        defaults=sizes(
            Sizes(50432, 6144, 24576, 44, 64, None, 2048), attention_bias=True, parallel=True
        ),
        keys={"kv_heads": (), "head_dim": ()},
        gated=False,
        norm="layernorm",
        biases=("attention_bias", "attention_bias", True),
        parallel="parallel",
    ),
    "falcon": ModelType(
        defaults=sizes(
            Sizes(65024, 4544, None, 32, 71, None, 2048),
            tied=True,
            multi_query=True,
            new_decoder=False,
            parallel=True,
            alibi=False,
            mlp_bias=False,
        ),
        keys={
            "layers": ("num_hidden_layers", "n_layer"),
            "hidden": ("hidden_size", "n_embed"),
            "heads": ("num_attention_heads", "n_head"),
            "kv_heads": ("num_kv_heads", "n_head_kv"),
            "head_dim": (),
            "ffn": ("ffn_hidden_size",),
            "mlp_bias": ("bias",),
            "parallel": ("parallel_attn",),
        },
        gated=False,
        norm="layernorm",
        biases=("mlp_bias", "mlp_bias", "mlp_bias"),
        parallel="parallel",
    ),
    "opt": ModelType(
        defaults=sizes(Sizes(50272, 768, 3072, 12, 12, None, 2048), tied=True, mlp_bias=True),
        keys={
            "kv_heads": (),
            "head_dim": (),
            "ffn": ("ffn_dim",),
            "mlp_bias": ("enable_bias",),
        },
        gated=False,
        norm="layernorm",
        positions="learned",
        biases=("mlp_bias", "mlp_bias", "mlp_bias"),
        dropout=0.1,
    ),
    "bloom": ModelType(
        defaults=sizes(Sizes(250880, 64, None, 2, 8, None, 2048), tied=True, alibi=True),
        keys={
            "layers": ("n_layer", "num_hidden_layers"),
            "hidden": ("hidden_size", "n_embed"),
            "heads": ("n_head", "num_attention_heads"),
            "kv_heads": (),
            "head_dim": (),
            "ffn": (),
            "max_positions": ("seq_length",),
            "alibi": (),
        },
        gated=False,
        norm="layernorm",
        biases=_ALL,
        extra=("norm of the embeddings",),
    ),
    "gpt_oss": ModelType(
        defaults=sizes(
            Sizes(201088, 2880, None, 36, 64, 8, 131072),
            head_dim=64,
            moe_ffn=2880,
            experts=128,
            topk=4,
            attention_bias=True,
            window=128,
            window_pattern=2,
        ),
        keys={**EXPERT_WIDTH_ONLY, "topk": ("num_experts_per_tok", "experts_per_token")},
        biases=("attention_bias", "attention_bias", True),
        experts=True,
        extra=("attention sinks", "bias of the router"),
    ),
    "llama4_text": ModelType(
        defaults=sizes(
            Sizes(202048, 5120, 16384, 48, 40, 8, 131072),
            head_dim=128,
            moe_ffn=8192,
            shared_ffn=8192,
            experts=16,
            topk=1,
            expert_step=1,
            window=8192,
            window_pattern=4,
            qk_norm=True,
        ),
        keys={
            "ffn": ("intermediate_size_mlp",),
            "moe_ffn": ("intermediate_size",),
            "shared_ffn": ("intermediate_size",),
            "window": ("attention_chunk_size",),
            "window_pattern": ("no_rope_layer_interval",),
        },
        biases=QKV_O,
        experts=True,
        dense_without=True,
        qk_norm="qk_norm",
    ),
    "gemma": ModelType(
        defaults=sizes(Sizes(256000, 3072, 24576, 28, 16, 16, 8192), tied=True, head_dim=256),
        biases=QKV_O,
    ),
    "gemma2": ModelType(
        defaults=sizes(
            Sizes(256000, 2304, 9216, 26, 8, 4, 8192),
            tied=True,
            head_dim=256,
            window=4096,
            window_pattern=2,
            soft_cap=50.0,
        ),
        biases=QKV_O,
        extra=(POST_NORMS,),
    ),
    "gemma3_text": ModelType(
        defaults=sizes(
            Sizes(262208, 2304, 9216, 26, 8, 4, 131072),
            tied=True,
            head_dim=256,
            window=4096,
            window_pattern=6,
        ),
        keys={"both_sides": ("use_bidirectional_attention",)},
        biases=QKV_O,
        qk_norm=True,
        extra=(POST_NORMS,),
    ),
    "phi": ModelType(
        defaults=sizes(Sizes(51200, 2048, 8192, 24, 32, None, 2048), qk_norm=False),
        keys={"head_dim": ()},
        gated=False,
        norm="layernorm",
        biases=_ALL,
        parallel=True,
        qk_norm="qk_norm",
        extra=("bias of the head",),
    ),
    "phi3": ModelType(
        defaults=sizes(Sizes(32064, 3072, 8192, 32, 32, None, 4096)),
    ),
    "phimoe": ModelType(
        defaults=sizes(
            Sizes(32064, 4096, None, 32, 32, 8, 131072), moe_ffn=6400, experts=16, topk=2
        ),
        keys=EXPERT_WIDTH_ONLY,
        norm="layernorm",
        biases=QKV_O,
        experts=True,
        extra=("bias of the head",),
    ),
    "glm4": ModelType(
        defaults=sizes(
            Sizes(151552, 4096, 13696, 40, 32, 2, 131072), head_dim=128, attention_bias=True
        ),
        biases=("attention_bias", False, False),
        extra=(POST_NORMS,),
    ),
    "glm4_moe": ModelType(
        defaults=sizes(
            Sizes(151552, 4096, 10944, 46, 96, 8, 131072),
            moe_ffn=1408,
            experts=128,
            topk=8,
            shared_experts=1,
            first_dense=1,
            groups=1,
            top_groups=1,
            qk_norm=False,
        ),
        biases=("attention_bias", False, False),
        experts=True,
        qk_norm="qk_norm",
    ),
    "chameleon": ModelType(
        defaults=sizes(Sizes(65536, 4096, 11008, 32, 32, 32, 4096)),
        biases=("attention_bias", "attention_bias", "mlp_bias"),
        qk_norm=True,
        ignored=("model_parallel_size", "vq_config", "swin_norm"),
    ),
    "olmo2": ModelType(
        defaults=sizes(Sizes(50304, 4096, 11008, 32, 32, None, 2048)),
        biases=QKV_O,
        qk_norm=True,
    ),
    "olmoe": ModelType(
        defaults=sizes(
            Sizes(50304, 2048, None, 16, 16, None, 4096), moe_ffn=2048, experts=64, topk=8
        ),
        keys=EXPERT_WIDTH_ONLY,
        biases=QKV_O,
        experts=True,
        qk_norm=True,
    ),
    "cohere": ModelType(
        defaults=sizes(Sizes(256000, 8192, 22528, 40, 64, None, 8192), tied=True, qk_norm=False),
        norm="layernorm",
        biases=QKV_O,
        parallel=True,
        qk_norm="qk_norm",
    ),
    "starcoder2": ModelType(
        defaults=sizes(Sizes(49152, 3072, 12288, 30, 24, 2, 4096), tied=True, mlp_bias=True),
        keys={"mlp_bias": ("use_bias",)},
        gated=False,
        norm="layernorm",
        biases=("mlp_bias", "mlp_bias", "mlp_bias"),
    ),
    "granite": ModelType(
        defaults=sizes(Sizes(32000, 4096, 11008, 32, 32, None, 2048)),
        biases=("attention_bias", "attention_bias", "mlp_bias"),
    ),
    "smollm3": ModelType(
        defaults=sizes(Sizes(128256, 2048, 11008, 36, 16, 4, 32768), tied=True, window_on=False),
        biases=("attention_bias", "attention_bias", "mlp_bias"),
    ),
    "seed_oss": ModelType(
        defaults=sizes(
            Sizes(155136, 4096, 27648, 64, 80, 8, 524288), head_dim=128, attention_bias=True
        ),
        biases=("attention_bias", "attention_out_bias", "mlp_bias"),
        dropout=0.1,
    ),
    "nemotron": ModelType(
        defaults=sizes(Sizes(256000, 6144, 24576, 32, 48, None, 4096)),
        gated=False,
        norm="layernorm",
        biases=("attention_bias", "attention_bias", "mlp_bias"),
    ),
    **NEWER_TYPES,
    **PLAIN_TYPES,
    **HYBRID_TYPES,
    **VARIANT_TYPES,
    **STATE_SPACE_TYPES,
    **WIDTH_TYPES,
}

ALIASES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "RefinedWebModel": ("falcon", {}),
    "RefinedWeb": ("falcon", {"new_decoder": True}),
    "cohere2": ("cohere", {"window": 4096, "window_pattern": 4}),
    "glm4v_text": ("glm4", {}),
    "glm4v_moe_text": ("glm4_moe", {}),
    "kimi_k2": ("deepseek_v3", {}),
    "ministral": ("mistral", {}),
    "ministral3": ("mistral", {"window": None, "vocab": 131072, "layers": 34, "head_dim": 128}),
    "olmo3": ("olmo2", {"window": 4096, "window_pattern": 4}),
    "qwen2_vl": ("qwen2", {}),
    "qwen2_vl_text": ("qwen2", {}),
    "qwen2_5_vl": ("qwen2", {}),
    "qwen2_5_vl_text": ("qwen2", {}),
    "qwen3_vl_text": ("qwen3", {}),
    "qwen3_vl_moe_text": ("qwen3_moe", {}),
    "llama4": ("llama4_text", {}),
    "gemma3": ("gemma3_text", {}),
    **NEWER_ALIASES,
    **PLAIN_ALIASES,
    **HYBRID_ALIASES,
    **VARIANT_ALIASES,
    **WIDTH_ALIASES,
}
"""Other names of the same layers, with the defaults that differ."""
