"""Types with layers of the first Mamba, or with short convolutions.

Sources as in `model_types`: configuration and modeling files of transformers 5.23.
"""

from collections.abc import Callable, Mapping
from typing import Any

from planner.specs.importers.huggingface.families.hybrids import always, never
from planner.specs.importers.huggingface.rules import ModelType, Sizes, sizes

Look = Callable[[str], Any]


def _rank(look: Look) -> int:
    """Return the rank of the time steps: a sixteenth of the width where a file says `auto`."""
    return -(-int(look("hidden")) // 16)


def lfm2_ffn(section: Mapping[str, Any]) -> tuple[int, str]:
    """Return the inner width of an MLP of LFM2, and how it is computed.

    Two thirds of the stated width, times `block_ffn_dim_multiplier`, in whole `block_multiple_of`,
    unless `block_auto_adjust_ff_dim` is off.

    >>> lfm2_ffn({"intermediate_size": 12288})[0]
    8192
    """
    width = int(section.get("block_ff_dim", section.get("intermediate_size", 12288)))
    if not section.get("block_auto_adjust_ff_dim", True):
        return width, "intermediate_size"
    width = int(2 * width / 3)
    factor = section.get("block_ffn_dim_multiplier", 1.0)
    if factor is not None:
        multiple = int(section.get("block_multiple_of", 256))
        width = multiple * -(-int(factor * width) // multiple)
    return width, "2/3 intermediate_size, in whole block_multiple_of"


_MAMBA_NAMES: Mapping[str, tuple[str, ...]] = {
    "heads": (),
    "kv_heads": (),
    "head_dim": (),
    "ffn": (),
    "max_positions": (),
    "m1_state": ("state_size",),
    "m1_rank": ("time_step_rank",),
    "m1_conv": ("conv_kernel",),
    "m1_expand": ("expand",),
    "m1_inner": ("intermediate_size", "d_inner"),
}
_MAMBA = sizes(
    Sizes(50280, 768, None, 32, 1, None, None),
    tied=True,
    m1_state=16,
    m1_conv=4,
    m1_expand=2,
)
_MAMBA_IGNORED = (
    "use_bias",
    "use_conv_bias",
    "residual_in_fp32",
    "rescale_prenorm_residual",
    "time_step_scale",
    "time_step_min",
    "time_step_max",
    "time_step_init_scheme",
    "time_step_floor",
    "use_mambapy",
    "use_falcon_mambapy",
    "use_associative_scan",
    "mixer_rms_eps",
    "d_model",
    "n_layer",
    "rms_norm",
    "fused_add_norm",
)
_LFM2: Mapping[str, tuple[str, ...]] = {
    "tied": ("tie_word_embeddings", "tie_embedding"),
    "attention_layers": ("full_attn_idxs",),
    "short_conv": ("conv_L_cache",),
}
_LFM2_IGNORED = (
    "conv_bias",
    "conv_dim",
    "conv_dim_out",
    "conv_use_xavier_init",
    "block_auto_adjust_ff_dim",
    "block_dim",
    "block_ff_dim",
    "block_ffn_dim_multiplier",
    "block_mlp_init_scale",
    "block_multiple_of",
    "block_norm_eps",
    "block_out_init_scale",
    "block_use_swiglu",
    "block_use_xavier_init",
    "use_pos_enc",
    "use_expert_bias",
    "num_heads",
    "intermediate_size",
)


def _griffin_layers(look: Look) -> list[Any]:
    """Return the words of all layers of a Griffin, whose file says those that repeat."""
    words, n_layers = list(look("lru_blocks")), int(look("layers"))
    return (words * -(-n_layers // len(words)))[:n_layers]


STATE_SPACE_TYPES: Mapping[str, ModelType] = {
    "recurrent_gemma": ModelType(
        defaults=sizes(
            Sizes(256000, 2560, 7680, 26, 10, None, None),
            tied=True,
            window=2048,
            lru_width=None,
            lru_conv=4,
            lru_blocks=("recurrent", "recurrent", "attention"),
            attention_bias=False,
        ),
        keys={
            "head_dim": (),
            "layer_types": (),
            "window": ("attention_window_size", "sliding_window"),
            "lru_width": ("lru_width",),
            "lru_conv": ("conv1d_width",),
            "lru_blocks": ("block_types",),
        },
        biases=("attention_bias", True, True),
        mixer="rglru",
        computed={"layer_types": _griffin_layers},
        ffn_parts=2,
        ignored=("w_init_variance_scale", "final_w_init_variance_scale", "logits_soft_cap"),
    ),
    "mamba": ModelType(
        defaults=_MAMBA,
        keys=_MAMBA_NAMES,
        mixer="mamba1",
        feed="none",
        is_full=never,
        computed={"m1_rank": _rank},
        ignored=_MAMBA_IGNORED,
    ),
    "falcon_mamba": ModelType(
        defaults=_MAMBA,
        keys=_MAMBA_NAMES,
        mixer="mamba1",
        feed="none",
        is_full=never,
        computed={"m1_rank": _rank},
        ignored=_MAMBA_IGNORED,
    ),
    "jamba": ModelType(
        defaults=sizes(
            Sizes(65536, 4096, 14336, 32, 32, 8, 262144),
            experts=16,
            topk=2,
            m1_state=16,
            m1_conv=4,
            m1_expand=2,
            attention_period=8,
            attention_offset=4,
            expert_period=2,
            expert_offset=1,
        ),
        keys={
            "moe_ffn": ("intermediate_size",),
            "attention_period": ("attn_layer_period",),
            "attention_offset": ("attn_layer_offset",),
            "expert_period": ("expert_layer_period",),
            "expert_offset": ("expert_layer_offset",),
            "m1_state": ("mamba_d_state",),
            "m1_rank": ("mamba_dt_rank",),
            "m1_conv": ("mamba_d_conv",),
            "m1_expand": ("mamba_expand",),
            "layer_types": (),
        },
        experts=True,
        dense_without=True,
        mixer="mamba1",
        is_full=never,
        computed={"m1_rank": _rank, "moe_ffn": lambda look: look("ffn")},
        ignored=(
            "mamba_inner_layernorms",
            "use_mamba_kernels",
            "use_mambapy",
            "use_associative_scan",
            "mamba_conv_bias",
            "mamba_proj_bias",
            "layers_block_type",
            "layer_types",
            "layers_num_experts",
        ),
        extra=("norms of dt, B and C",),
    ),
    "lfm2": ModelType(
        defaults=sizes(Sizes(65536, 2560, None, 32, 32, 8, 128000), tied=True, short_conv=3),
        keys={**_LFM2, "ffn": ()},
        qk_norm=True,
        mixer="conv",
        is_full=always,
        ffn_of=lfm2_ffn,
        ignored=_LFM2_IGNORED,
    ),
    "lfm2_moe": ModelType(
        defaults=sizes(
            Sizes(65536, 2048, 7168, 32, 32, 8, 128000),
            tied=True,
            moe_ffn=1792,
            experts=32,
            topk=4,
            first_dense=2,
            short_conv=3,
        ),
        keys={**_LFM2, "first_dense": ("num_dense_layers",)},
        experts=True,
        qk_norm=True,
        mixer="conv",
        is_full=always,
        ignored=tuple(x for x in _LFM2_IGNORED if x != "intermediate_size"),
    ),
}
