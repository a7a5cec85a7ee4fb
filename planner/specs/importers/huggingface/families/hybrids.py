"""Types with a state space, a delta net or another recurrence in some layers.

Sources as in `model_types`: configuration and modeling files of transformers 5.23.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.specs.importers.huggingface.rules import (
    EXPERT_WIDTH_ONLY,
    QKV_O,
    ModelType,
    Sizes,
    Switch,
    sizes,
)

_ALL: tuple[Switch, Switch, Switch] = ("attention_bias", "attention_bias", "mlp_bias")
_GRANITE_NAMES = ("layer_types", "layers_block_type")
_HARMLESS_SSM = (
    "mamba_conv_bias",
    "mamba_proj_bias",
    "mamba_hidden_act",
    "mamba_ssm_cache_dtype",
    "mamba_norm_before_gate",
    "use_mamba_kernels",
    "use_conv_bias",
    "time_step_limit",
    "time_step_min",
    "time_step_max",
    "time_step_floor",
    "time_step_rank",
    "hidden_mamba_act",
    "residual_in_fp32",
    "rescale_prenorm_residual",
    "rms_norm",
    "norm_before_gate",
    "A_initializer_range",
)
"""Keys of a state space that say no size."""
_SSM: Mapping[str, Any] = {
    "ssm_heads": 128,
    "ssm_head_dim": None,
    "ssm_groups": 1,
    "ssm_state": 256,
    "ssm_conv": 4,
    "ssm_chunk": 256,
    "ssm_expand": 2,
}
_DELTA: Mapping[str, Any] = {
    "lin_k_heads": 16,
    "lin_v_heads": 32,
    "lin_k_dim": 128,
    "lin_v_dim": 128,
    "lin_conv": 4,
}
_QWEN3_5 = ("attn_output_gate", "output_gate_type", "mamba_ssm_dtype", "mtp_num_hidden_layers")
NEMOTRON_LETTERS: Mapping[str, str] = {
    "M": "mamba2+none",
    "*": "attention+none",
    "-": "none+dense",
    "E": "none+moe",
}
"""Kind of layer by the letter of `hybrid_override_pattern`."""
NEMOTRON_WORDS: Mapping[str, str] = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}
"""Its letter by the word of `layers_block_type`."""


def every_fourth(layer: int, n_layers: int) -> bool:
    """Tell whether a layer of Qwen3-Next attends to all tokens."""
    return layer % 4 == 3


def never(layer: int, n_layers: int) -> bool:
    """Tell that no layer has attention unless the file says so."""
    return False


def always(layer: int, n_layers: int) -> bool:
    """Tell that every layer has attention unless the file says otherwise."""
    return True


def every_second(layer: int, n_layers: int) -> bool:
    """Tell whether a layer of MiniMax has attention: the first, the third, ..."""
    return layer % 2 == 0


def pattern_letters(value: Any) -> list[str] | None:
    """Return the letters of a pattern of Nemotron, or of its list of words; None for neither."""
    if isinstance(value, str) and set(value.replace("|", "")) <= set(NEMOTRON_LETTERS):
        return list(value.replace("|", ""))
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if is_list and all(isinstance(word, str) and word in NEMOTRON_WORDS for word in value):
        return [NEMOTRON_WORDS[word] for word in value]
    return None


HYBRID_TYPES: Mapping[str, ModelType] = {
    "mamba2": ModelType(
        defaults=sizes(
            Sizes(32768, 4096, None, 64, 128, None, None),
            **{**_SSM, "ssm_groups": 8, "ssm_state": 128, "ssm_head_dim": 64},
        ),
        keys={
            "heads": ("num_heads",),
            "kv_heads": (),
            "head_dim": ("head_dim",),
            "ffn": (),
            "max_positions": (),
            "ssm_heads": ("num_heads",),
            "ssm_head_dim": ("head_dim",),
            "ssm_groups": ("n_groups",),
            "ssm_state": ("state_size",),
            "ssm_conv": ("conv_kernel",),
            "ssm_chunk": ("chunk_size",),
            "ssm_expand": ("expand",),
        },
        mixer="mamba2",
        feed="none",
        is_full=never,
        ignored=(*_HARMLESS_SSM, "intermediate_size"),
    ),
    "bamba": ModelType(
        defaults=sizes(Sizes(128000, 4096, 14336, 32, 32, 8, 262144), **_SSM),
        keys={"layer_types": _GRANITE_NAMES},
        biases=_ALL,
        mixer="mamba2",
        is_full=never,
        ignored=_HARMLESS_SSM,
    ),
    "falcon_h1": ModelType(
        defaults=sizes(Sizes(128000, 4096, 14336, 32, 32, 8, 8192), **{**_SSM, "ssm_inner": 1024}),
        biases=_ALL,
        mixer="mamba2",
        beside=True,
        ignored=(
            *_HARMLESS_SSM,
            "mamba_rms_norm",
            "projectors_bias",
            "mlp_multipliers",
            "ssm_multipliers",
            "ssm_in_multiplier",
            "ssm_out_multiplier",
            "attention_in_multiplier",
            "attention_out_multiplier",
            "key_multiplier",
            "mamba_use_mlp",
            "mlp_expansion_factor",
            "layers_block_type",
            "layer_types",
        ),
        extra=("no norm of the state space's output, which is counted here",),
    ),
    "nemotron_h": ModelType(
        defaults=sizes(
            Sizes(131072, 4096, 21504, 4, 32, 8, 4096),
            head_dim=128,
            moe_ffn=7688,
            experts=8,
            topk=2,
            shared_experts=1,
            shared_ffn=7688,
            groups=1,
            top_groups=1,
            ssm_heads=128,
            ssm_head_dim=64,
            ssm_groups=8,
            ssm_state=128,
            ssm_conv=4,
            ssm_chunk=128,
            ssm_expand=2,
            layer_pattern="M*-E",
        ),
        keys={
            "ssm_heads": ("mamba_num_heads", "mamba_n_heads"),
            "ssm_head_dim": ("mamba_head_dim", "mamba_d_head"),
            "ssm_groups": ("n_groups", "mamba_n_groups"),
            "ssm_state": ("ssm_state_size", "mamba_d_state"),
            "ssm_conv": ("conv_kernel", "mamba_d_conv"),
            "ssm_chunk": ("chunk_size", "mamba_chunk_size"),
            "ssm_expand": ("expand", "mamba_expand"),
            "shared_ffn": ("moe_shared_expert_intermediate_size",),
            "layer_types": (),
        },
        gated=False,
        biases=_ALL,
        experts=True,
        mixer="mamba2",
        ignored=(
            *_HARMLESS_SSM,
            "mtp_layers_block_type",
            "mtp_hybrid_override_pattern",
            "moe_shared_expert_overlap",
            "use_bias",
        ),
    ),
    "granitemoehybrid": ModelType(
        defaults=sizes(
            Sizes(32000, 4096, 1024, 32, 32, None, 2048),
            moe_ffn=11008,
            experts=8,
            topk=2,
            shared_ffn=1024,
            **_SSM,
        ),
        keys={
            **EXPERT_WIDTH_ONLY,
            "ffn": ("shared_intermediate_size",),
            "shared_ffn": ("shared_intermediate_size",),
            "layer_types": _GRANITE_NAMES,
        },
        biases=QKV_O,
        experts=True,
        dense_without=True,
        mixer="mamba2",
        is_full=never,
        ignored=_HARMLESS_SSM,
    ),
    "qwen3_next": ModelType(
        defaults=sizes(
            Sizes(151936, 2048, 5632, 48, 16, 2, 32768),
            head_dim=256,
            moe_ffn=512,
            experts=512,
            topk=10,
            shared_ffn=512,
            expert_step=1,
            **_DELTA,
        ),
        keys={"linear_every": ("full_attention_interval",)},
        biases=QKV_O,
        experts=True,
        dense_without=True,
        qk_norm=True,
        mixer="gdn",
        is_full=every_fourth,
        gate=True,
        extra=("gate of the shared expert",),
    ),
    "qwen3_5_text": ModelType(
        defaults=sizes(
            Sizes(248320, 4096, 12288, 32, 16, 4, 32768), head_dim=256, tied=False, **_DELTA
        ),
        keys={"linear_every": ("full_attention_interval",)},
        biases=QKV_O,
        qk_norm=True,
        mixer="gdn",
        is_full=every_fourth,
        gate=True,
        ignored=_QWEN3_5,
    ),
    "qwen3_5_moe_text": ModelType(
        defaults=sizes(
            Sizes(248320, 2048, None, 40, 16, 2, 32768),
            head_dim=256,
            moe_ffn=512,
            experts=256,
            topk=8,
            shared_ffn=512,
            **_DELTA,
        ),
        keys={"ffn": (), "linear_every": ("full_attention_interval",)},
        biases=QKV_O,
        experts=True,
        qk_norm=True,
        mixer="gdn",
        is_full=every_fourth,
        gate=True,
        ignored=_QWEN3_5,
        extra=("gate of the shared expert",),
    ),
    "olmo_hybrid": ModelType(
        defaults=sizes(
            Sizes(100352, 3840, 11008, 32, 30, None, 65536),
            lin_conv=4,
        ),
        computed={
            "lin_k_heads": lambda look: look("heads"),
            "lin_v_heads": lambda look: look("heads"),
            "lin_k_dim": lambda look: int(0.75 * look("hidden") / look("lin_k_heads")),
            "lin_v_dim": lambda look: 2 * look("lin_k_dim"),
        },
        biases=QKV_O,
        qk_norm=True,
        mixer="gdn",
        is_full=every_fourth,
        ignored=(
            "linear_allow_neg_eigval",
            "linear_a_log_min",
            "linear_a_log_max",
            "linear_dt_min",
            "linear_dt_max",
            "linear_dt_init_floor",
        ),
        extra=("norms of the whole width of queries and keys",),
    ),
}

HYBRID_ALIASES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "nemotron_h_v2": ("nemotron_h", {}),
    "codestral_mamba": ("mamba2", {}),
    "qwen3_5": ("qwen3_5_text", {}),
    "qwen3_5_moe": ("qwen3_5_moe_text", {}),
}
"""Other names of the same layers."""
