"""Types whose attention is linear, sparse, gated, or twice in a layer.

Sources as in `model_types`: configuration and modeling files of transformers 5.23.
"""

from collections.abc import Mapping

from planner.specs.importers.huggingface.families.hybrids import every_second
from planner.specs.importers.huggingface.rules import (
    EXPERT_WIDTH_ONLY,
    POST_NORMS,
    QKV_O,
    ModelType,
    Sizes,
    sizes,
)


def first_and_fourth(layer: int, n_layers: int) -> bool:
    """Tell whether a layer of Kimi-Linear has full attention where no key says it."""
    return layer > 0 and layer % 4 == 0


_DSA_IGNORED = (
    "indexer_rope_interleave",
    "index_topk_freq",
    "index_skip_topk_offset",
    "index_share_for_mtp_iteration",
    "moe_router_dtype",
)

VARIANT_TYPES: Mapping[str, ModelType] = {
    "minimax": ModelType(
        defaults=sizes(
            Sizes(32000, 4096, None, 32, 32, 8, 131072),
            moe_ffn=14336,
            experts=8,
            topk=2,
            lin_chunk=256,
        ),
        keys={**EXPERT_WIDTH_ONLY, "layer_types": ("layer_types", "attn_type_list")},
        experts=True,
        mixer="linear",
        is_full=every_second,
    ),
    "kimi_linear": ModelType(
        defaults=sizes(
            Sizes(163840, 2304, 9216, 27, 32, 32, 1048576),
            moe_ffn=1024,
            experts=256,
            topk=8,
            shared_experts=1,
            first_dense=1,
            groups=1,
            top_groups=1,
            q_rank=None,
            kv_rank=512,
            qk_nope=128,
            qk_rope=64,
            v_head=128,
            lin_k_heads=32,
            lin_k_dim=128,
            lin_conv=4,
        ),
        keys={
            "topk": ("num_experts_per_token", "num_experts_per_tok"),
            "shared_experts": ("num_shared_experts", "n_shared_experts"),
            "groups": ("num_expert_group", "n_group"),
            "max_positions": ("model_max_length", "max_position_embeddings"),
            "lin_k_heads": ("linear_attn_config.num_heads", "linear_num_heads"),
            "lin_k_dim": ("linear_attn_config.head_dim", "linear_head_dim"),
            "lin_conv": (
                "linear_attn_config.short_conv_kernel_size",
                "linear_conv_kernel_dim",
            ),
            "attention_layers_from_1": ("linear_attn_config.full_attn_layers",),
        },
        biases=QKV_O,
        experts=True,
        latent=True,
        mixer="kda",
        is_full=first_and_fourth,
        computed={
            "lin_v_heads": lambda look: look("lin_k_heads"),
            "lin_v_dim": lambda look: look("lin_k_dim"),
        },
        ignored=(
            "linear_attn_config.kda_layers",
            "mla_use_nope",
            "use_grouped_topk",
            "moe_router_activation_func",
            "moe_layer_freq",
            "head_dim",
        ),
    ),
    "deepseek_v32": ModelType(
        defaults=sizes(
            Sizes(129280, 7168, 18432, 61, 128, 128, 163840),
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
            index_heads=64,
            index_dim=128,
            index_topk=2048,
        ),
        biases=QKV_O,
        experts=True,
        latent=True,
        mixer="sparse",
        is_full=lambda layer, n_layers: False,
        ignored=_DSA_IGNORED,
    ),
    "glm_moe_dsa": ModelType(
        defaults=sizes(
            Sizes(154880, 6144, 12288, 78, 64, 64, 202752),
            moe_ffn=2048,
            experts=256,
            topk=8,
            shared_experts=1,
            first_dense=3,
            groups=1,
            top_groups=1,
            q_rank=2048,
            kv_rank=512,
            qk_nope=192,
            qk_rope=64,
            v_head=256,
            index_heads=32,
            index_dim=128,
            index_topk=2048,
        ),
        keys={"index_kinds": ("indexer_types",)},
        biases=QKV_O,
        experts=True,
        latent=True,
        mixer="sparse",
        is_full=lambda layer, n_layers: False,
        ignored=_DSA_IGNORED,
    ),
    "afmoe": ModelType(
        defaults=sizes(
            Sizes(200192, 2048, 6144, 32, 16, 16, 16384),
            head_dim=128,
            moe_ffn=1408,
            experts=64,
            topk=6,
            shared_experts=2,
            first_dense=1,
            window=1024,
            window_pattern=4,
        ),
        keys={
            "shared_experts": ("num_shared_experts",),
            "first_dense": ("num_dense_layers",),
            "window_pattern": ("global_attn_every_n_layers",),
        },
        biases=QKV_O,
        experts=True,
        qk_norm=True,
        gate=True,
        extra=(POST_NORMS,),
    ),
    "beam": ModelType(
        defaults=sizes(
            Sizes(151936, 5120, 20480, 52, 48, 8, 8192),
            head_dim=128,
            moe_ffn=2560,
            experts=256,
            topk=8,
            first_dense=3,
            groups=8,
            top_groups=4,
            window=512,
            window_pattern=6,
        ),
        biases=QKV_O,
        experts=True,
        qk_norm=True,
        gate=True,
        extra=(POST_NORMS,),
    ),
    "longcat_flash": ModelType(
        defaults=sizes(
            Sizes(131072, 6144, 12288, 28, 64, None, 131072),
            moe_ffn=2048,
            experts=512,
            topk=12,
            zero_experts=256,
            q_rank=1536,
            kv_rank=512,
            qk_nope=128,
            qk_rope=64,
            v_head=128,
        ),
        keys={
            "layers": ("num_layers", "num_hidden_layers"),
            "ffn": ("ffn_hidden_size",),
            "moe_ffn": ("expert_ffn_hidden_size",),
            "topk": ("moe_topk", "num_experts_per_tok"),
        },
        biases=QKV_O,
        experts=True,
        latent=True,
        twice=True,
        ignored=(
            "zero_expert_type",
            "router_bias",
            "mla_scale_q_lora",
            "mla_scale_kv_lora",
            "head_dim",
        ),
    ),
}

VARIANT_ALIASES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "minimax_text_01": ("minimax", dict.fromkeys(("vocab", "hidden", "moe_ffn", "layers"))),
    "minimax_m1": ("minimax", dict.fromkeys(("vocab", "hidden", "moe_ffn", "layers"))),
    "longcat": ("longcat_flash", {}),
}
"""Other names of the same layers."""
