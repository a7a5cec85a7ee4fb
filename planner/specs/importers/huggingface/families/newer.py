"""More rows of `model_types`: types that came later, and those whose code lies beside the weights.

Sources as there; the types of the second table are not in transformers: their configuration and
modeling files on the Hub, whose defaults are those of no model and therefore not taken over.
"""

from collections.abc import Mapping

from planner.specs.importers.huggingface.families.remote import (
    NO_MODEL,
    REMOTE_ALIASES,
    REMOTE_ROWS,
)
from planner.specs.importers.huggingface.rules import (
    EXPERT_WIDTH_ONLY,
    POST_NORMS,
    QKV_O,
    ModelType,
    OwnLayer,
    Sizes,
    Stated,
    Switch,
    sizes,
)

_ALL: tuple[Switch, Switch, Switch] = ("attention_bias", "attention_bias", "mlp_bias")
_USE_BIAS: tuple[Switch, Switch, Switch] = ("mlp_bias", "mlp_bias", "mlp_bias")
_MINIMAX_ATTENTION = ("layer_types", "attn_type_list")


def _hunyuan_layers(stated: Stated) -> list[OwnLayer]:
    """Return which layers of Hunyuan-Large take the keys and values of the layer before.

    Source: modeling_hunyuan.py beside the weights (`use_cla`, `cla_share_factor`).
    """
    section, n_layers = stated.section, len(stated.local)
    share = section.get("cla_share_factor", 1) if section.get("use_cla") else 1
    if not isinstance(share, int) or isinstance(share, bool) or share < 1:
        raise ValueError(f"expected a whole cla_share_factor from 1 on, got {share}")
    return [OwnLayer({"kv_shared": True} if i % share else {}) for i in range(n_layers)]


_TYPES: Mapping[str, ModelType] = {
    "glm": ModelType(
        defaults=sizes(
            Sizes(151552, 4096, 13696, 40, 32, 2, 131072), head_dim=128, attention_bias=True
        ),
        biases=("attention_bias", False, False),
    ),
    "glm4_moe_lite": ModelType(
        defaults=sizes(
            Sizes(154880, 2048, 10240, 47, 20, 20, 202752),
            moe_ffn=1536,
            experts=64,
            topk=4,
            shared_experts=1,
            first_dense=1,
            groups=1,
            top_groups=1,
            q_rank=768,
            kv_rank=512,
            qk_nope=192,
            qk_rope=64,
            v_head=256,
        ),
        biases=QKV_O,
        experts=True,
        latent=True,
    ),
    "olmo": ModelType(
        defaults=sizes(Sizes(50304, 4096, 11008, 32, 32, None, 2048)),
        biases=QKV_O,
        extra=("norms, which have no weights",),
    ),
    "flex_olmo": ModelType(
        defaults=sizes(
            Sizes(100352, 4096, None, 32, 32, None, 4096), moe_ffn=11008, experts=7, topk=5
        ),
        keys=EXPERT_WIDTH_ONLY,
        biases=QKV_O,
        experts=True,
        qk_norm=True,
    ),
    "stablelm": ModelType(
        defaults=sizes(
            Sizes(50304, 2560, 6912, 32, 32, 32, 4096),
            attention_bias=False,
            qk_norm=False,
            parallel=False,
        ),
        keys={"attention_bias": ("use_qkv_bias",), "head_dim": ()},
        norm="layernorm",
        biases=("attention_bias", False, False),
        parallel="parallel",
        qk_norm="qk_norm",
    ),
    "codegen": ModelType(
        defaults=sizes(Sizes(50400, 4096, None, 28, 16, None, 2048)),
        keys={
            "layers": ("n_layer", "num_hidden_layers"),
            "hidden": ("n_embd", "hidden_size"),
            "heads": ("n_head", "num_attention_heads"),
            "kv_heads": (),
            "head_dim": (),
            "ffn": ("n_inner",),
            "max_positions": ("n_positions", "max_position_embeddings"),
        },
        gated=False,
        norm="layernorm",
        biases=(False, False, True),
        parallel=True,
        extra=("bias of the head",),
    ),
    "granitemoe": ModelType(
        defaults=sizes(
            Sizes(32000, 4096, None, 32, 32, None, 2048), moe_ffn=11008, experts=8, topk=2
        ),
        keys=EXPERT_WIDTH_ONLY,
        biases=QKV_O,
        experts=True,
    ),
    "granitemoeshared": ModelType(
        defaults=sizes(
            Sizes(32000, 4096, None, 32, 32, None, 2048),
            moe_ffn=11008,
            experts=8,
            topk=2,
            shared_ffn=0,
        ),
        keys={**EXPERT_WIDTH_ONLY, "shared_ffn": ("shared_intermediate_size",)},
        biases=QKV_O,
        experts=True,
    ),
    "minimax_m2": ModelType(
        defaults=sizes(
            Sizes(200064, 3072, None, 62, 48, 8, 196608),
            moe_ffn=1536,
            experts=256,
            topk=8,
            head_dim=128,
        ),
        keys={
            **EXPERT_WIDTH_ONLY,
            "layer_types": _MINIMAX_ATTENTION,
            "mtp_layers": ("num_mtp_modules", "num_nextn_predict_layers"),
        },
        experts=True,
        qk_norm=True,
        ignored=("mlp_intermediate_size", "mtp_transformer_layers", "use_mtp"),
    ),
    "ernie4_5": ModelType(
        defaults=sizes(
            Sizes(103424, 1024, 3072, 18, 16, 2, 131072), tied=True, head_dim=128, mlp_bias=False
        ),
        keys={"mlp_bias": ("use_bias",)},
        biases=_USE_BIAS,
    ),
    "ernie4_5_moe": ModelType(
        defaults=sizes(
            Sizes(103424, 2560, 12288, 28, 20, 4, 131072),
            tied=True,
            mlp_bias=False,
            moe_ffn=1536,
            experts=64,
            topk=6,
            shared_experts=2,
            first_dense=1,
            last_expert_layer=-1,
            expert_step=1,
        ),
        keys={
            "mlp_bias": ("use_bias",),
            "head_dim": (),
            "experts": ("moe_num_experts",),
            "topk": ("moe_k",),
            "shared_experts": ("moe_num_shared_experts",),
            "first_dense": ("moe_layer_start_index",),
            "last_expert_layer": ("moe_layer_end_index",),
            "expert_step": ("moe_layer_interval",),
        },
        biases=_USE_BIAS,
        experts=True,
    ),
    "hunyuan_v1_dense": ModelType(
        defaults=sizes(Sizes(290943, 4096, 11008, 32, 32, 32, 2048)),
        biases=QKV_O,
        qk_norm=True,
    ),
    "hunyuan_v1_moe": ModelType(
        defaults=sizes(
            Sizes(290943, 4096, None, 32, 32, 32, 2048),
            moe_ffn=11008,
            shared_ffn=11008,
            experts=1,
            topk=1,
        ),
        keys={
            **EXPERT_WIDTH_ONLY,
            "shared_ffn": ("intermediate_size",),
            "topk": ("moe_topk", "num_experts_per_tok"),
        },
        biases=QKV_O,
        experts=True,
        qk_norm=True,
        own_layers=_hunyuan_layers,
        ignored=(
            "q_lora_rank",
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
        ),
    ),
    "dots1": ModelType(
        defaults=sizes(
            Sizes(152064, 4608, 10944, 62, 32, 32, 2048),
            moe_ffn=1408,
            shared_experts=None,
            experts=None,
            topk=None,
            first_dense=0,
            groups=1,
            top_groups=1,
            window=4096,
        ),
        biases=QKV_O,
        experts=True,
        qk_norm=True,
    ),
    "exaone4": ModelType(
        defaults=sizes(
            Sizes(102400, 4096, 16384, 32, 32, 32, 2048), tied=False, window=4096, window_pattern=4
        ),
        qk_norm=True,
        extra=(POST_NORMS,),
    ),
    "bitnet": ModelType(
        defaults=sizes(Sizes(128256, 2560, 6912, 30, 20, 5, 2048)),
        biases=QKV_O,
        extra=("norms inside attention and MLP",),
    ),
    "persimmon": ModelType(
        defaults=sizes(Sizes(262144, 4096, 16384, 36, 64, None, 16384), qk_norm=True),
        keys={"kv_heads": (), "head_dim": ()},
        gated=False,
        norm="layernorm",
        biases=(True, True, True),
        qk_norm="qk_norm",
    ),
    "apertus": ModelType(
        defaults=sizes(Sizes(131072, 4096, 14336, 32, 32, None, 65536)),
        gated=False,
        biases=QKV_O,
        qk_norm=True,
    ),
    "arcee": ModelType(
        defaults=sizes(Sizes(32000, 2560, 18432, 32, 32, None, 4096)),
        gated=False,
        biases=_ALL,
    ),
    "jais2": ModelType(
        defaults=sizes(
            Sizes(150272, 3328, 26624, 32, 26, None, 8192), attention_bias=True, mlp_bias=True
        ),
        gated=False,
        norm="layernorm",
        biases=_ALL,
    ),
    "internlm3": ModelType(
        defaults=sizes(Sizes(128512, 4096, 10240, 48, 32, 2, 32768), head_dim=128),
        keys={
            "attention_bias": ("qkv_bias", "attention_bias"),
            "mlp_bias": ("bias", "mlp_bias"),
        },
        biases=("attention_bias", "mlp_bias", "mlp_bias"),
    ),
    "solar_open": ModelType(
        defaults=sizes(
            Sizes(196608, 4096, None, 48, 64, 8, 131072),
            head_dim=128,
            moe_ffn=1280,
            experts=128,
            topk=8,
            shared_experts=1,
            groups=1,
            top_groups=1,
        ),
        keys={"ffn": ("intermediate_size",)},
        biases=QKV_O,
        experts=True,
    ),
    "mpt": ModelType(
        defaults=sizes(Sizes(50368, 2048, None, 24, 16, None, 2048), tied=True, alibi=True),
        keys={
            "layers": ("n_layers",),
            "hidden": ("d_model",),
            "heads": ("n_heads",),
            "kv_heads": (),
            "head_dim": (),
            "ffn": (),
            "max_positions": ("max_seq_len",),
            "alibi": ("attn_config.alibi",),
            "soft_cap": (),
        },
        gated=False,
        norm="layernorm",
        extra=("norms, which have no biases",),
    ),
    "dbrx": ModelType(
        defaults=sizes(Sizes(32000, 2048, None, 24, 16, 1, 2048), moe_ffn=3584, experts=4, topk=1),
        keys={
            "layers": ("n_layers",),
            "hidden": ("d_model",),
            "heads": ("n_heads",),
            "kv_heads": ("attn_config.kv_n_heads",),
            "head_dim": (),
            "ffn": (),
            "max_positions": ("max_seq_len",),
            "moe_ffn": ("ffn_config.ffn_hidden_size",),
            "experts": ("ffn_config.moe_num_experts",),
            "topk": ("ffn_config.moe_top_k",),
        },
        norm="layernorm",
        experts=True,
        extra=("norms, which have no biases",),
    ),
}

_BESIDE_THE_WEIGHTS: Mapping[str, ModelType] = {
    "deepseek": ModelType(
        defaults={
            **NO_MODEL,
            "tied": False,
            "moe_ffn": None,
            "experts": None,
            "topk": None,
            "shared_experts": None,
            "first_dense": 0,
            "expert_frequency": 1,
        },
        biases=QKV_O,
        experts=True,
    ),
    "internlm2": ModelType(
        defaults={**NO_MODEL, "tied": False, "mlp_bias": False},
        keys={"mlp_bias": ("bias",)},
        biases=("mlp_bias", "mlp_bias", False),
    ),
    "baichuan": ModelType(
        defaults={**NO_MODEL, "tied": False},
        keys={
            "kv_heads": (),
            "max_positions": ("model_max_length", "max_position_embeddings"),
        },
    ),
    "qwen": ModelType(
        defaults={**NO_MODEL, "tied": False},
        keys={
            "kv_heads": (),
            "head_dim": ("kv_channels",),
            "max_positions": ("seq_length",),
        },
        biases=(True, False, False),
        ffn_parts=2,
    ),
    "chatglm": ModelType(
        defaults={**NO_MODEL, "tied": False, "attention_bias": False, "mlp_bias": False},
        keys={
            "layers": ("num_layers",),
            "vocab": ("padded_vocab_size",),
            "ffn": ("ffn_hidden_size",),
            "kv_heads": ("multi_query_group_num",),
            "head_dim": ("kv_channels",),
            "max_positions": ("seq_length",),
            "attention_bias": ("add_qkv_bias",),
            "mlp_bias": ("add_bias_linear",),
        },
        biases=("attention_bias", "mlp_bias", "mlp_bias"),
        ignored=("vocab_size",),
    ),
    "minicpm": ModelType(
        defaults={**NO_MODEL, "tied": True},
        biases=QKV_O,
        ignored=("sparse_config",),
    ),
    "exaone": ModelType(
        defaults={**NO_MODEL, "tied": True},
        keys={"layers": ("num_layers", "num_hidden_layers")},
    ),
    "bailing_moe": ModelType(
        defaults={
            **NO_MODEL,
            "tied": False,
            "moe_ffn": None,
            "experts": None,
            "topk": None,
            "shared_experts": None,
            "first_dense": 0,
            "attention_bias": False,
            "mlp_bias": False,
            "qk_norm": False,
        },
        keys={
            "shared_experts": ("num_shared_experts",),
            "attention_bias": ("use_qkv_bias",),
            "mlp_bias": ("use_bias",),
        },
        biases=("attention_bias", "mlp_bias", False),
        experts=True,
        qk_norm="qk_norm",
    ),
}

NEWER_TYPES = {**_TYPES, **_BESIDE_THE_WEIGHTS, **REMOTE_ROWS}
REMOTE_TYPES = frozenset(_BESIDE_THE_WEIGHTS) | frozenset(REMOTE_ROWS)
"""Types that transformers does not have."""

NEWER_ALIASES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    **REMOTE_ALIASES,
    "vaultgemma": (
        "gemma",
        {
            "layers": 26,
            "hidden": 2304,
            "ffn": 9216,
            "heads": 8,
            "kv_heads": 4,
            "window": 4096,
            "window_pattern": 2,
        },
    ),
    "stablelm_epoch": ("stablelm", {}),
    "hunyuan": ("hunyuan_v1_moe", dict.fromkeys(("vocab", "hidden", "moe_ffn", "layers"))),
    "bailing_moe_v2": ("bailing_moe", {"qk_norm": True}),
    "llada2_moe": ("bailing_moe", {"qk_norm": True, "both_sides": True}),
    "internlm": ("internlm2", {"mlp_bias": True}),
    "cwm": (
        "llama",
        {
            "hidden": 6144,
            "ffn": 21504,
            "layers": 64,
            "heads": 48,
            "kv_heads": 8,
            "head_dim": 128,
            "vocab": 128256,
            "max_positions": 131072,
            "window": 8192,
            "window_pattern": 4,
        },
    ),
    "iquestcoder": (
        "llama",
        {
            "vocab": 76800,
            "hidden": 5120,
            "ffn": 27648,
            "layers": 80,
            "heads": 40,
            "kv_heads": 8,
            "head_dim": 128,
            "max_positions": 131072,
        },
    ),
    "mimo": ("qwen2", dict.fromkeys(("vocab", "hidden", "ffn", "layers", "heads", "kv_heads"))),
    "aquila": ("llama", dict.fromkeys(("vocab", "hidden", "ffn", "layers", "heads"))),
    "Yi": ("llama", dict.fromkeys(("vocab", "hidden", "ffn", "layers", "heads", "tied"))),
}
"""Other names of the same layers, with the defaults that differ."""
