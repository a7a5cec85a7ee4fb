"""Types whose attention is linear, sparse, gated, or twice in a layer.

Sources as in `model_types`: configuration and modeling files of transformers 5.23.
"""

from collections.abc import Callable, Mapping
from typing import Any

from planner.specs.importers.huggingface.families.hybrids import always, every_second
from planner.specs.importers.huggingface.families.remote import NO_MODEL
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


def _grouped(look: Callable[[str], Any]) -> list[str]:
    """Return the words of all layers of Ring-linear: the last of each group has attention.

    So have those behind the last whole group. Source: modeling_bailing_moe_linear_v2.py.
    """
    n_layers, every = int(look("layers")), int(look("linear_every") or 1)
    whole = n_layers // every * every
    full = [(i + 1) % every == 0 or i >= whole for i in range(n_layers)]
    return ["full_attention" if on else "linear_attention" for on in full]


_BAILING_KEYS: Mapping[str, tuple[str, ...]] = {
    "shared_experts": ("num_shared_experts", "n_shared_experts"),
    "linear_every": ("layer_group_size",),
    "attention_bias": ("use_qkv_bias",),
    "mlp_bias": ("use_bias",),
    "layer_types": (),
}
_BAILING = {
    **NO_MODEL,
    **dict.fromkeys(("moe_ffn", "experts", "topk", "shared_experts")),
    "tied": False,
    "first_dense": 0,
    "groups": 1,
    "top_groups": 1,
    "lin_chunk": 64,
    "linear_every": 1,
    "attention_bias": False,
    "mlp_bias": False,
    "qk_norm": False,
}
_BAILING_IGNORED = (
    "group_norm_size",
    "linear_silu",
    "use_linear_silu",
    "linear_rope",
    "linear_backend",
    "full_attention_type",
    "moe_router_enable_shared_expert",
)
_LATENT_IGNORED = ("head_dim", "num_key_value_heads", "qk_head_dim")
_KDA_KEYS: Mapping[str, tuple[str, ...]] = {
    "lin_k_heads": ("linear_num_heads",),
    "lin_k_dim": ("linear_head_dim",),
    "lin_conv": ("short_conv_kernel_size", "linear_conv_kernel_dim"),
}


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
    "bailing_moe_linear": ModelType(
        defaults=_BAILING,
        keys=_BAILING_KEYS,
        biases=("attention_bias", "mlp_bias", False),
        experts=True,
        qk_norm="qk_norm",
        mixer="linear",
        computed={"layer_types": _grouped},
        ignored=_BAILING_IGNORED,
    ),
    "bailing_moe_v2_5": ModelType(
        defaults={
            **_BAILING,
            **dict.fromkeys(("q_rank", "kv_rank", "qk_nope", "qk_rope", "v_head")),
        },
        keys=_BAILING_KEYS,
        experts=True,
        latent=True,
        mixer="linear",
        computed={"layer_types": _grouped},
        ignored=(*_BAILING_IGNORED, *_LATENT_IGNORED, "use_qkv_bias", "use_bias", "use_qk_norm"),
    ),
    "bailing_hybrid": ModelType(
        defaults=sizes(
            Sizes(157184, 2560, 6144, 42, 32, 32, 262144),
            head_dim=128,
            moe_ffn=768,
            experts=512,
            topk=8,
            shared_experts=1,
            first_dense=2,
            groups=8,
            top_groups=4,
            q_rank=None,
            kv_rank=512,
            qk_nope=128,
            qk_rope=64,
            v_head=128,
            lin_conv=4,
            linear_every=6,
            mtp_layers=1,
        ),
        keys={
            **_KDA_KEYS,
            "topk": ("num_experts_per_tok", "num_experts_per_token"),
            "shared_experts": ("n_shared_experts", "num_shared_experts"),
            "linear_every": ("layer_group_size",),
            "groups": ("n_group", "num_expert_group"),
        },
        experts=True,
        latent=True,
        mixer="kda",
        full_gates=True,
        computed={
            "lin_k_heads": lambda look: look("heads"),
            "lin_v_heads": lambda look: look("lin_k_heads"),
            "lin_k_dim": lambda look: look("head_dim"),
            "lin_v_dim": lambda look: look("lin_k_dim"),
        },
        ignored=(
            *_BAILING_IGNORED,
            *_LATENT_IGNORED,
            "attention_bias",
            "kda_safe_gate",
            "kda_lower_bound",
            "gated_attention_proj",
            "use_qk_norm",
            "use_bias",
            "use_qkv_bias",
        ),
        extra=("a gate for each head of attention",),
    ),
    "minicpm_sala": ModelType(
        defaults={
            **NO_MODEL,
            "tied": True,
            "attention_bias": False,
            "lin_chunk": 64,
            "lin_k_heads": None,
            "lin_k_dim": None,
        },
        keys={
            "layer_types": ("mixer_types",),
            "lin_k_heads": ("lightning_nh",),
            "lin_k_dim": ("lightning_head_dim",),
        },
        biases=QKV_O,
        qk_norm=True,
        mixer="linear",
        gate=True,
        ignored=(
            "sparse_config",
            "lightning_scale",
            "lightning_use_rope",
            "attn_use_rope",
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
    "minimax_m3_vl_text": ModelType(
        defaults=sizes(
            Sizes(200064, 6144, 12288, 60, 64, 4, 524288),
            head_dim=128,
            moe_ffn=3072,
            shared_ffn=3072,
            experts=128,
            topk=4,
            index_heads=4,
            index_dim=128,
            index_block=128,
            index_blocks=16,
        ),
        keys={
            "ffn": ("dense_intermediate_size",),
            "moe_ffn": ("intermediate_size",),
            "shared_ffn": ("shared_intermediate_size",),
            "index_topk": (),
            **{
                field: (name, f"sparse_attention_config.{inner}")
                for field, name, inner in (
                    ("index_heads", "index_n_heads", "sparse_num_index_heads"),
                    ("index_dim", "index_head_dim", "sparse_index_dim"),
                    ("index_block", "index_block_size", "sparse_block_size"),
                    ("index_blocks", "index_topk_blocks", "sparse_topk_blocks"),
                )
            },
            "sparse_flags": ("sparse_attention_config.sparse_attention_freq",),
        },
        experts=True,
        qk_norm=True,
        mixer="sparse",
        is_full=always,
        computed={"index_topk": lambda look: look("index_block") * look("index_blocks")},
        ignored=(
            "index_local_blocks",
            *(
                f"sparse_attention_config.{name}"
                for name in (
                    "use_sparse_attention",
                    "sparse_local_block",
                    "sparse_init_block",
                    "sparse_score_type",
                    "sparse_disable_index_value",
                )
            ),
        ),
        extra=("clamped SwiGLU",),
    ),
    "step3_text": ModelType(
        defaults={
            **NO_MODEL,
            **dict.fromkeys(("moe_ffn", "experts", "topk", "shared_ffn", "q_factor")),
            "tied": False,
            "first_dense": 1,
        },
        keys={
            "kv_heads": ("num_attention_groups", "num_key_value_heads"),
            "experts": ("moe_num_experts",),
            "topk": ("moe_top_k",),
            "shared_ffn": ("share_expert_dim",),
            "expert_list": ("moe_layers_enum",),
            "q_factor": ("share_q_dim",),
            "max_positions": ("max_position_embedding", "max_seq_len", "max_position_embeddings"),
        },
        experts=True,
        mixer="factored",
        is_full=lambda layer, n_layers: False,
        ignored=("norm_expert_weight", "moe_every_n_layer"),
    ),
    "deepseek_v4": ModelType(
        defaults=sizes(
            Sizes(129280, 4096, None, 43, 64, 1, 1048576),
            head_dim=512,
            moe_ffn=2048,
            shared_ffn=2048,
            experts=256,
            topk=6,
            window=128,
            index_heads=64,
            index_dim=128,
            index_topk=512,
            cmp_q_rank=1024,
            cmp_groups=8,
            cmp_out_rank=1024,
            cmp_sparse_ratio=4,
            cmp_heavy_ratio=128,
            cmp_streams=4,
            sinkhorn_steps=20,
        ),
        keys={
            "ffn": (),
            "moe_ffn": ("moe_intermediate_size", "intermediate_size"),
            "shared_ffn": ("moe_intermediate_size", "intermediate_size"),
            "shared_experts": (),
            "dense_or_sparse": (),
            "first_dense": (),
            "groups": (),
            "top_groups": (),
            "cmp_q_rank": ("q_lora_rank",),
            "cmp_groups": ("o_groups",),
            "cmp_out_rank": ("o_lora_rank",),
            "cmp_ratios": ("compress_ratios",),
            "cmp_sparse_ratio": (
                "compress_rates.compressed_sparse_attention",
                "compress_rate_csa",
            ),
            "cmp_heavy_ratio": (
                "compress_rates.heavily_compressed_attention",
                "compress_rate_hca",
            ),
            "cmp_rope_dim": ("qk_rope_head_dim",),
            "cmp_streams": ("hc_mult",),
            "sinkhorn_steps": ("hc_sinkhorn_iters",),
        },
        experts=True,
        mixer="csa",
        is_full=lambda layer, n_layers: False,
        extra=("clamped SwiGLU", "a table of hashes that sends tokens in the first layers"),
        ignored=(
            "n_shared_experts",
            "mlp_layer_types",
            "num_hash_layers",
            "compress_rope_theta",
            "swiglu_limit",
            "hc_eps",
            "attention_bias",
            "mlp_bias",
            "num_key_value_heads",
            "expert_dtype",
        ),
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
            "groups": ("num_expert_groups", "n_group"),
            "top_groups": ("num_limited_groups", "topk_group"),
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
    "step3": ("step3_text", {}),
    "step3_vl": ("step3_text", {}),
    "minimax_m3_vl": ("minimax_m3_vl_text", {}),
    "minimax_m3": ("minimax_m3_vl_text", {}),
}
"""Other names of the same layers."""
