"""Types of 2025 and 2026 whose layers are attention and an MLP or experts.

Sources as in `model_types`: configuration and modeling files of transformers 5.23.
"""

from collections.abc import Mapping

from planner.specs.importers.huggingface.rules import (
    EXPERT_WIDTH_ONLY,
    POST_NORMS,
    QKV_O,
    ModelType,
    Sizes,
    Switch,
    sizes,
)

_ALL: tuple[Switch, Switch, Switch] = ("attention_bias", "attention_bias", "mlp_bias")
_SINKS = "attention sinks"
_HEAD_GATE = "gate of every head"


def first_of_four(layer: int, n_layers: int) -> bool:
    """Tell whether a layer of the SWA models of Granite attends to all tokens."""
    return layer % 4 == 0


def flint_full(layer: int, n_layers: int) -> bool:
    """Tell whether a layer of Flint attends to all tokens."""
    return layer < 2 or layer % 4 == 1 or layer == n_layers - 1


_DENSE: Mapping[str, ModelType] = {
    "molmo2_text": ModelType(
        defaults=sizes(
            Sizes(151936, 4096, 12288, 36, 32, 8, 36864), head_dim=128, attention_bias=False
        ),
        keys={"attention_bias": ("qkv_bias", "attention_bias")},
        biases=("attention_bias", False, False),
        qk_norm=True,
        ignored=("additional_vocab_size", "qk_norm_type", "rope_scaling_layers"),
        extra=("rows of tokens for images",),
    ),
    "helium": ModelType(
        defaults=sizes(Sizes(48000, 2560, 7040, 24, 20, 20, 4096), head_dim=128),
        biases=("attention_bias", False, "mlp_bias"),
    ),
    "hyperclovax": ModelType(
        defaults=sizes(Sizes(32000, 4096, 11008, 32, 32, None, 2048), post_norm=True),
        biases=_ALL,
        extra=(POST_NORMS,),
    ),
    "nanochat": ModelType(
        defaults=sizes(Sizes(50304, 768, 8192, 12, 6, 6, 2048)),
        keys={"head_dim": ()},
        gated=False,
        biases=QKV_O,
        extra=("norms, which have no weights",),
    ),
    "diffllama": ModelType(
        defaults=sizes(Sizes(32000, 2048, 8192, 16, 32, None, 2048)),
        biases=QKV_O,
        mixer="differential",
        is_full=lambda layer, n_layers: False,
    ),
    "granite_swa": ModelType(
        defaults=sizes(Sizes(100352, 2560, 8192, 24, 20, 4, 8192), tied=True, window=128),
        biases=_ALL,
        extra=(_SINKS,),
        is_full=first_of_four,
    ),
    "minicpm3": ModelType(
        defaults=sizes(
            Sizes(73448, 2560, 6400, 62, 40, 40, 32768),
            tied=True,
            q_rank=768,
            kv_rank=256,
            qk_nope=64,
            qk_rope=32,
            v_head=None,
        ),
        biases=QKV_O,
        latent=True,
    ),
    "youtu": ModelType(
        defaults=sizes(
            Sizes(128256, 2048, 6144, 32, 16, 16, 131072),
            tied=True,
            q_rank=1536,
            kv_rank=512,
            qk_nope=128,
            qk_rope=64,
            v_head=128,
        ),
        biases=QKV_O,
        latent=True,
    ),
    "openai-gpt": ModelType(
        defaults=sizes(Sizes(40478, 768, None, 12, 12, None, 512), tied=True),
        keys={
            "layers": ("n_layer", "num_hidden_layers"),
            "hidden": ("n_embd", "hidden_size"),
            "heads": ("n_head", "num_attention_heads"),
            "kv_heads": (),
            "head_dim": (),
            "ffn": (),
            "max_positions": ("n_positions", "max_position_embeddings"),
        },
        gated=False,
        norm="layernorm",
        positions="learned",
        biases=(True, True, True),
        dropout=0.1,
    ),
    "biogpt": ModelType(
        defaults=sizes(Sizes(42384, 1024, 4096, 24, 16, None, 1024), tied=True),
        keys={"kv_heads": (), "head_dim": ()},
        gated=False,
        norm="layernorm",
        positions="learned",
        biases=(True, True, True),
        dropout=0.1,
    ),
    "xglm": ModelType(
        defaults=sizes(Sizes(256008, 1024, 4096, 24, 16, None, 2048), tied=True),
        keys={
            "layers": ("num_layers", "num_hidden_layers"),
            "hidden": ("d_model", "hidden_size"),
            "heads": ("attention_heads", "num_attention_heads"),
            "kv_heads": (),
            "head_dim": (),
            "ffn": ("ffn_dim",),
        },
        gated=False,
        norm="layernorm",
        biases=(True, True, True),
        dropout=0.1,
        extra=("positions of sines, which have no weights",),
    ),
}

_EXPERTS: Mapping[str, ModelType] = {
    "exaone_moe": ModelType(
        defaults=sizes(
            Sizes(102400, 4096, 16384, 32, 32, 32, 2048),
            moe_ffn=1024,
            experts=64,
            topk=8,
            shared_experts=1,
            first_dense=1,
            groups=1,
            top_groups=1,
            window=4096,
            window_pattern=4,
        ),
        keys={
            "shared_experts": ("num_shared_experts",),
            "expert_flags": ("is_moe_layer",),
            "first_dense": ("first_k_dense_replace", "first_last_k_dense_replace"),
        },
        experts=True,
        qk_norm=True,
    ),
    "granitemoe_swa": ModelType(
        defaults=sizes(
            Sizes(32000, 4096, None, 32, 32, None, 2048),
            moe_ffn=11008,
            experts=8,
            topk=2,
            shared_ffn=0,
            window=128,
        ),
        keys={**EXPERT_WIDTH_ONLY, "shared_ffn": ("shared_intermediate_size",)},
        biases=QKV_O,
        experts=True,
        extra=(_SINKS,),
        is_full=first_of_four,
    ),
    "hy_v3": ModelType(
        defaults=sizes(
            Sizes(120832, 4096, 13312, 80, 64, 8, 131072),
            head_dim=128,
            moe_ffn=1536,
            experts=192,
            topk=8,
            shared_experts=1,
            first_dense=1,
        ),
        keys={
            "shared_experts": ("num_shared_experts",),
            "moe_ffn": ("moe_intermediate_size", "expert_hidden_dim"),
        },
        biases=_ALL,
        experts=True,
        qk_norm=True,
    ),
    "cohere2_moe": ModelType(
        defaults=sizes(
            Sizes(256000, 8192, None, 40, 64, None, 8192),
            tied=True,
            head_dim=128,
            moe_ffn=22528,
            experts=8,
            topk=2,
            shared_experts=0,
            first_dense=0,
            window=4096,
            window_pattern=4,
            parallel=True,
        ),
        keys={
            "ffn": ("prefix_dense_intermediate_size", "intermediate_size"),
            "moe_ffn": ("intermediate_size",),
            "shared_experts": ("num_shared_experts",),
            "parallel": (),
        },
        norm="layernorm",
        biases=QKV_O,
        experts=True,
        parallel=True,
        extra=("norms, which have no biases",),
    ),
    "laguna": ModelType(
        defaults=sizes(
            Sizes(100352, 2048, 8192, 40, 48, 8, 131072),
            head_dim=128,
            moe_ffn=512,
            shared_ffn=512,
            experts=256,
            topk=8,
            first_dense=1,
            window=512,
            window_on=False,
        ),
        keys={"heads": ("num_attention_heads", "num_attention_heads_per_layer")},
        biases=QKV_O,
        experts=True,
        qk_norm=True,
        extra=(_HEAD_GATE,),
    ),
    "mellum": ModelType(
        defaults=sizes(
            Sizes(98304, 2304, 7168, 28, 32, 4, 131072),
            head_dim=128,
            moe_ffn=896,
            experts=64,
            topk=8,
            window=1024,
            window_on=False,
        ),
        biases=QKV_O,
        experts=True,
        qk_norm=True,
    ),
    "axk1": ModelType(
        defaults=sizes(
            Sizes(163840, 7168, 18432, 61, 64, 64, 32768),
            moe_ffn=2048,
            experts=192,
            topk=8,
            shared_experts=1,
            first_dense=1,
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
        extra=("norm after the experts",),
    ),
    "aria_text": ModelType(
        defaults=sizes(
            Sizes(32000, 4096, None, 32, 32, None, 2048),
            moe_ffn=4096,
            experts=8,
            topk=2,
            shared_experts=2,
        ),
        keys={
            "ffn": (),
            "moe_ffn": ("intermediate_size", "moe_intermediate_size"),
            "experts": ("moe_num_experts",),
            "topk": ("moe_topk",),
            "shared_experts": ("moe_num_shared_experts",),
        },
        biases=_ALL,
        experts=True,
    ),
    "flint": ModelType(
        defaults=sizes(
            Sizes(150144, 2048, 6144, 49, 32, 4, 262144),
            head_dim=128,
            moe_ffn=512,
            shared_ffn=1024,
            experts=256,
            topk=6,
            expert_step=1,
            dense_list=[0, 1],
            window=513,
        ),
        biases=QKV_O,
        experts=True,
        dense_without=True,
        qk_norm=True,
        extra=(_SINKS,),
        is_full=flint_full,
    ),
    "kolibri1": ModelType(
        defaults=sizes(
            Sizes(128000, 2560, None, 50, 48, 4, 262144),
            head_dim=128,
            moe_ffn=512,
            shared_ffn=512,
            experts=384,
            topk=6,
            window=513,
            window_pattern=5,
        ),
        keys={"ffn": ()},
        experts=True,
        qk_norm=True,
        extra=(POST_NORMS,),
    ),
}

PLAIN_TYPES: Mapping[str, ModelType] = {**_DENSE, **_EXPERTS}

_NO_SIZES: Mapping[str, object] = dict.fromkeys(("vocab", "hidden", "ffn", "layers", "heads"))
PLAIN_ALIASES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "glm_ocr_text": (
        "glm4",
        {
            "vocab": 59392,
            "hidden": 1024,
            "ffn": 4096,
            "layers": 16,
            "heads": 16,
            "kv_heads": 8,
            "head_dim": None,
            "attention_bias": False,
        },
    ),
    "granite_docling_text": (
        "granite",
        {
            "vocab": 133800,
            "hidden": 1024,
            "ffn": 2048,
            "layers": 28,
            "heads": 16,
            "kv_heads": 4,
            "tied": True,
            "max_positions": 32768,
        },
    ),
    "mistral4": (
        "deepseek_v3",
        {
            "vocab": 131072,
            "hidden": 4096,
            "ffn": 12288,
            "layers": 36,
            "heads": 32,
            "experts": 128,
            "topk": 4,
            "first_dense": 0,
            "groups": 1,
            "top_groups": 1,
            "q_rank": 1024,
            "kv_rank": 256,
            "qk_nope": 64,
            "max_positions": 1048576,
        },
    ),
    "molmo2": ("molmo2_text", {}),
    "emu3_text_model": (
        "llama",
        {"vocab": 184622, "ffn": 14336, "kv_heads": 8, "max_positions": 9216},
    ),
    "emu3": ("llama", {"vocab": 184622, "ffn": 14336, "kv_heads": 8, "max_positions": 9216}),
    "gpt-sw3": ("gpt2", {}),
    "granite4_vision_text": ("granite", {}),
    "hunyuan_vl_text": ("hunyuan_v1_dense", {}),
    "paddleocr_vl_text": ("ernie4_5", {}),
    "phi4_multimodal": (
        "phi3",
        {"vocab": 200064, "kv_heads": 8, "max_positions": 131072, "tied": True},
    ),
    "phi4mm": (
        "phi3",
        {"vocab": 200064, "kv_heads": 8, "max_positions": 131072, "tied": True},
    ),
    "qwen2_5_omni_text": ("qwen2", {}),
    "qwen3_omni_moe_text": ("qwen3_moe", {}),
}
"""Other names of the same layers, with the defaults that differ."""
