"""Types whose layers differ from one another in width.

Sources: configuration and modeling files of transformers 5.23; of OpenELM and the models of an
architecture search (NAS) those beside their weights on the Hub.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.specs.importers.huggingface.families.remote import NO_MODEL
from planner.specs.importers.huggingface.rules import (
    POST_NORMS,
    QKV_O,
    ModelType,
    OwnLayer,
    Sizes,
    Stated,
    sizes,
)


def rounded_width(width: float, divisor: int) -> int:
    """Return a width as a multiple of `divisor`, at most a tenth below the one that is asked for.

    Source: modeling_openelm.py (make_divisible).

    >>> rounded_width(0.5 * 1280, 256), rounded_width(0.73 * 1280, 256)
    (768, 1024)
    """
    value = max(divisor, int(width + divisor / 2) // divisor * divisor)
    return value + divisor if value < 0.9 * width else value


def _last(name: str) -> Callable[[Callable[[str], Any]], Any]:
    """Return the function that looks up what a list says of the last layer."""

    def last(look: Callable[[str], Any]) -> Any:
        stated = look(name)
        return stated[-1] if isinstance(stated, list) and stated else stated

    return last


def _openelm_layers(stated: Stated) -> list[OwnLayer]:
    """Return heads, KV heads and width of the MLP of each layer of OpenELM."""
    section = stated.section
    multipliers, queries = section.get("ffn_multipliers"), section.get("num_query_heads")
    keys, groups = section.get("num_kv_heads"), section.get("num_gqa_groups") or 1
    if not isinstance(multipliers, list) or not isinstance(queries, list):
        raise ValueError("expected lists of ffn_multipliers and num_query_heads by layer")
    keys = keys if isinstance(keys, list) else [n // groups for n in queries]
    hidden, divisor = stated.look("hidden"), section.get("ffn_dim_divisor") or 256
    return [
        OwnLayer({"heads": q, "kv_heads": k, "ffn": rounded_width(m * hidden, divisor)})
        for q, k, m in zip(queries, keys, multipliers, strict=True)
    ]


def _openelm_ffn(section: Mapping[str, Any]) -> tuple[int, str]:
    last, hidden = section.get("ffn_multipliers"), section.get("model_dim")
    last = last[-1] if isinstance(last, list) and last else last
    divisor = section.get("ffn_dim_divisor") or 256
    return rounded_width((last or 4.0) * (hidden or 0), divisor), "ffn_multipliers * model_dim"


def nas_width(multiple: float, hidden: int) -> int:
    """Return the width of an MLP by its multiple of the hidden width: 2/3 of it, in steps of 256.

    Source: modeling_decilm.py (_ffn_mult_to_intermediate_size).

    >>> nas_width(5.25, 8192), nas_width(1.3125, 8192)
    (28672, 7168)
    """
    width = int(2 * multiple * hidden / 3)
    return -(-width // 256) * 256


_STEP = ("num_sink_tokens", "window_length", "unshifted_sink", "sparsify", "mamba", "llama4")


def _nas_attention(block: Mapping[str, Any], heads: int) -> dict[str, int]:
    """Return the KV heads of a block; a `ValueError` for what its attention is instead."""
    if block.get("replace_with_linear"):
        raise ValueError("a matrix in place of attention (replace_with_linear) is not priced")
    if odd := [key for key in _STEP if block.get(key)]:
        raise ValueError(f"{odd[0]} of a block's attention is not priced")
    if kv_heads := block.get("num_key_value_heads"):
        return {"kv_heads": int(kv_heads)}
    return {"kv_heads": heads // int(block["n_heads_in_group"])}


def _nas_mlp(block: Mapping[str, Any], hidden: int) -> dict[str, int]:
    if block.get("replace_with_linear"):
        raise ValueError("a matrix in place of an MLP (replace_with_linear) is not priced")
    if block.get("moe"):
        raise ValueError("experts that differ from block to block are not priced")
    if width := block.get("intermediate_size"):
        return {"ffn": int(width)}
    return {"ffn": nas_width(float(block["ffn_mult"]), hidden)}


def _nas_layers(stated: Stated) -> list[OwnLayer]:
    """Return KV heads and width of the MLP of each block, `none` where it has no such part."""
    heads, hidden = stated.look("heads"), stated.look("hidden")
    blocks = stated.section.get("block_configs")
    if blocks is None:
        each = stated.section.get("num_key_value_heads_per_layer")
        if not isinstance(each, list):
            raise ValueError("neither block_configs nor num_key_value_heads_per_layer is there")
        return [OwnLayer({"kv_heads": n}) for n in each]
    results = []
    for block in blocks:
        attention, mlp = block["attention"], block["ffn"]
        none = ["none" if part.get("no_op") else "" for part in (attention, mlp)]
        widths = {} if none[0] else _nas_attention(attention, heads)
        results.append(OwnLayer(widths | ({} if none[1] else _nas_mlp(mlp, hidden)), *none))
    return results


def _nas_ffn(section: Mapping[str, Any]) -> tuple[int, str]:
    """Return the width that most MLPs have, which is that of the model."""
    if isinstance(section.get("intermediate_size"), int):
        return int(section["intermediate_size"]), "intermediate_size"
    hidden, blocks = section.get("hidden_size") or 0, section.get("block_configs") or ()
    mlps = [x.get("ffn") or {} for x in blocks if isinstance(x, Mapping)]
    widths = [int(x["intermediate_size"]) for x in mlps if x.get("intermediate_size")]
    widths += [nas_width(float(x["ffn_mult"]), hidden) for x in mlps if x.get("ffn_mult")]
    return _usual(widths) or 1, "most of block_configs"


def _nas_kv_heads(look: Callable[[str], Any]) -> int | None:
    """Return the KV heads that most layers have, which are those of the model."""
    each, heads = look("own_kv_heads"), look("heads")
    if isinstance(each, list):
        return _usual(each)
    parts = [x.get("attention") or {} for x in look("blocks") or () if isinstance(x, Mapping)]
    return _usual(
        [
            x.get("num_key_value_heads") or heads // x["n_heads_in_group"]
            for x in parts
            if x.get("num_key_value_heads") or x.get("n_heads_in_group")
        ]
    )


def _usual(values: Sequence[int]) -> int | None:
    """Return the value that stands there most often, the first of several."""
    return max(dict.fromkeys(values), key=values.count, default=None)


def _mimo_layers(stated: Stated) -> list[OwnLayer]:
    """Return the heads of each layer: twice the KV heads with a window by default."""
    section = stated.section
    names = {
        "heads": "swa_num_attention_heads",
        "kv_heads": "swa_num_key_value_heads",
        "head_dim": "swa_head_dim",
        "value_dim": "swa_v_head_dim",
    }
    own = {field: section[key] for field, key in names.items() if section.get(key)}
    own.setdefault("kv_heads", 2 * stated.look("kv_heads"))
    return [OwnLayer(own if local else {}) for local in stated.local]


def _mimo_is_full(layer: int, n_layers: int) -> bool:
    """Tell whether a layer of MiMo-V2-Flash attends to all tokens: the first, and every sixth."""
    return layer == 0 or (layer + 1) % 6 == 0


def _step_layers(stated: Stated) -> list[OwnLayer]:
    """Return the heads of each layer of Step 3.5: others with a window."""
    other = stated.section.get("attention_other_setting") or {}
    heads = stated.section.get("num_sliding_attention_heads") or other.get("num_attention_heads")
    own = {"heads": int(heads)} if heads else {}
    return [OwnLayer(own if local else {}) for local in stated.local]


def per_layer_sizes(section: Mapping[str, Any], n_layers: int) -> list[dict[str, int]]:
    """Return the sizes of each layer that `per_layer_config` has, those without any empty.

    Source: transformers integrations/heterogeneity. Raises a `ValueError` for other keys.
    """
    names = {
        "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads",
        "head_dim": "head_dim",
        "intermediate_size": "ffn",
        "sliding_window": "window",
    }
    results: list[dict[str, int]] = [{} for _ in range(n_layers)]
    stated = section.get("per_layer_config") or {}
    entries = stated.items() if isinstance(stated, Mapping) else enumerate(stated)
    for i, sizes_of in entries:
        for key, value in (sizes_of or {}).items():
            if key not in names:
                raise ValueError(f"per_layer_config has {key}, which is not priced")
            if value is not None:
                results[int(i)][names[key]] = int(value)
    return results


def _gemma4_is_full(layer: int, n_layers: int) -> bool:
    """Tell whether a layer of Gemma 4 attends to all tokens: every sixth, and the last."""
    return (layer + 1) % 6 == 0 or layer == n_layers - 1


def _gemma4_layers(stated: Stated) -> list[OwnLayer]:
    """Return what each layer of Gemma 4 has of its own.

    Layers that attend to all tokens have wider heads, perhaps fewer KV heads and keys that are the
    values too; the last layers take keys and values of earlier ones, and perhaps have an MLP of
    twice the width.
    """
    section, n_layers = stated.section, len(stated.local)
    if section.get("use_bidirectional_attention") == "all":
        raise ValueError("attention to tokens on both sides, and this plans decoders")
    shares = stated.look("n_kv_shared") or 0
    one_projection = bool(section.get("attention_k_eq_v"))
    own = per_layer_sizes(section, n_layers)
    feed = "injected" if stated.look("row_width") else ""
    results = []
    for i, local in enumerate(stated.local):
        sizes_of: dict[str, int] = {}
        if not local and "per_layer_config" not in section:
            sizes_of["head_dim"] = section.get("global_head_dim") or 512
            if one_projection and section.get("num_global_key_value_heads"):
                sizes_of["kv_heads"] = section["num_global_key_value_heads"]
        sizes_of |= own[i]
        if i >= n_layers - shares > 0:
            sizes_of["kv_shared"] = True
            if section.get("use_double_wide_mlp"):
                sizes_of["ffn"] = 2 * stated.look("ffn")
        elif one_projection and not local:
            sizes_of["keys_as_values"] = True
        results.append(OwnLayer(sizes_of, feed=feed))
    return results


def _gemma3n_is_full(layer: int, n_layers: int) -> bool:
    """Tell whether a layer of Gemma 3n attends to all tokens: every fifth."""
    return (layer + 1) % 5 == 0


def _gemma3n_layers(stated: Stated) -> list[OwnLayer]:
    """Return what each layer of Gemma 3n has of its own: its MLP, or keys of another layer."""
    n_layers, widths = len(stated.local), stated.section.get("intermediate_size")
    if stated.section.get("use_bidirectional_attention"):
        raise ValueError("attention to tokens on both sides, and this plans decoders")
    shares = stated.look("n_kv_shared") or 0
    if isinstance(widths, list) and len(widths) != n_layers:
        raise ValueError(f"intermediate_size has {len(widths)} widths for {n_layers} layers")
    results = []
    for i in range(n_layers):
        sizes_of = {"ffn": widths[i]} if isinstance(widths, list) else {}
        if i >= n_layers - shares > 0:
            sizes_of["kv_shared"] = True
        results.append(OwnLayer(sizes_of, feed="injected"))
    return results


def _gemma3n_ffn(section: Mapping[str, Any]) -> tuple[int, str]:
    width = section.get("intermediate_size", 16384)
    if isinstance(width, list):
        return _usual(width) or 1, "most of intermediate_size"
    return width, "intermediate_size"


WIDTH_TYPES: Mapping[str, ModelType] = {
    "openelm": ModelType(
        defaults={**NO_MODEL, "tied": False, "own_heads": None, "own_kv_heads": None},
        keys={
            "layers": ("num_transformer_layers",),
            "hidden": ("model_dim",),
            "heads": (),
            "kv_heads": (),
            "own_heads": ("num_query_heads",),
            "own_kv_heads": ("num_kv_heads",),
            "ffn": (),
            "tied": ("share_input_output_layers",),
            "max_positions": ("max_context_length",),
        },
        computed={"heads": _last("own_heads"), "kv_heads": _last("own_kv_heads")},
        ffn_of=_openelm_ffn,
        own_layers=_openelm_layers,
        qk_norm=True,
        ignored=(
            "num_kv_heads",
            "num_query_heads",
            "num_gqa_groups",
            "ffn_multipliers",
            "qkv_multipliers",
            "ffn_dim_divisor",
            "ffn_with_glu",
            "normalize_qk_projections",
            "normalization_layer_name",
            "activation_fn_name",
            "rope_max_length",
            "rope_freq_constant",
        ),
    ),
    "nemotron-nas": ModelType(
        defaults={**NO_MODEL, "tied": False, "own_kv_heads": None, "blocks": None},
        keys={"own_kv_heads": ("num_key_value_heads_per_layer",), "blocks": ("block_configs",)},
        null_is_missing=("kv_heads",),
        computed={"kv_heads": _nas_kv_heads},
        biases=("attention_bias", "attention_bias", "mlp_bias"),
        ffn_of=_nas_ffn,
        own_layers=_nas_layers,
        ignored=("block_configs", "num_key_value_heads_per_layer"),
    ),
    "gemma4_text": ModelType(
        defaults=sizes(
            Sizes(262144, 2304, 9216, 30, 8, 4, 131072),
            tied=True,
            head_dim=256,
            window=512,
            experts=0,
            topk=None,
            moe_ffn=None,
            row_width=256,
            row_vocab=262144,
            n_kv_shared=0,
            attention_bias=False,
        ),
        keys={
            "experts": ("num_experts",),
            "topk": ("top_k_experts",),
            "shared_ffn": ("intermediate_size",),
            "row_width": ("hidden_size_per_layer_input",),
            "row_vocab": ("vocab_size_per_layer_input",),
            "n_kv_shared": ("num_kv_shared_layers",),
            "window_pattern": (),
        },
        biases=QKV_O,
        experts=True,
        dense_without=True,
        null_is_missing=("experts", "topk", "moe_ffn", "layer_types"),
        is_full=_gemma4_is_full,
        own_layers=_gemma4_layers,
        qk_norm=True,
        extra=(POST_NORMS,),
        ignored=(
            "global_head_dim",
            "num_global_key_value_heads",
            "attention_k_eq_v",
            "use_double_wide_mlp",
            "per_layer_config",
            "enable_moe_block",
            "use_bidirectional_attention",
        ),
    ),
    "gemma3n_text": ModelType(
        defaults=sizes(
            Sizes(262400, 2048, 16384, 35, 8, 2, 32768),
            tied=True,
            head_dim=256,
            window=512,
            row_width=256,
            row_vocab=262144,
            n_kv_shared=15,
            streams=4,
            laurel=64,
            attention_bias=False,
        ),
        keys={
            "row_width": ("hidden_size_per_layer_input",),
            "row_vocab": ("vocab_size_per_layer_input",),
            "n_kv_shared": ("num_kv_shared_layers",),
            "streams": ("altup_num_inputs",),
            "laurel": ("laurel_rank",),
            "window_pattern": (),
        },
        biases=QKV_O,
        ffn_of=_gemma3n_ffn,
        is_full=_gemma3n_is_full,
        own_layers=_gemma3n_layers,
        null_is_missing=("layer_types",),
        qk_norm=True,
        extra=(POST_NORMS, "sparse activations of the first layers"),
        ignored=(
            "altup_active_idx",
            "altup_coef_clip",
            "altup_correct_scale",
            "altup_lr_multiplier",
            "activation_sparsity_pattern",
            "use_bidirectional_attention",
        ),
    ),
    "mimo_v2_flash": ModelType(
        defaults=sizes(
            Sizes(152576, 4096, 16384, 48, 64, 4, 131072),
            head_dim=192,
            value_dim=128,
            window=129,
            experts=256,
            topk=8,
            moe_ffn=2048,
            first_dense=1,
            groups=1,
            top_groups=1,
            attention_bias=False,
        ),
        keys={
            "value_dim": ("v_head_dim",),
            "layer_pattern": (),
            "window_flags": ("hybrid_layer_pattern",),
        },
        biases=("attention_bias", False, False),
        experts=True,
        is_full=_mimo_is_full,
        own_layers=_mimo_layers,
        extra=("sinks of attention",),
        ignored=(
            "swa_num_attention_heads",
            "swa_num_key_value_heads",
            "swa_head_dim",
            "swa_v_head_dim",
            "sliding_window_size",
            "attention_value_scale",
            "attention_chunk_size",
            "add_full_attention_sink_bias",
            "add_swa_attention_sink_bias",
        ),
    ),
    "step3p5": ModelType(
        defaults=sizes(
            Sizes(128815, 4096, 11264, 45, 64, 8, 128000),
            head_dim=128,
            window=None,
            experts=288,
            topk=8,
            moe_ffn=1280,
            shared_ffn=1280,
            first_dense=3,
            attention_bias=False,
            mlp_bias=False,
        ),
        keys={
            "kv_heads": ("num_attention_groups", "num_key_value_heads"),
            "experts": ("moe_num_experts", "n_routed_experts"),
            "topk": ("moe_top_k", "num_experts_per_tok"),
            "shared_ffn": ("share_expert_dim", "share_expert_dims"),
            "expert_list": ("moe_layers_enum",),
        },
        biases=("attention_bias", "attention_bias", "mlp_bias"),
        experts=True,
        qk_norm=True,
        own_layers=_step_layers,
        extra=("a gate for each head of attention",),
        ignored=(
            "num_sliding_attention_heads",
            "attention_other_setting",
            "per_layer_config",
            "swiglu_limits",
            "swiglu_limits_shared",
            "num_local_experts",
            "moe_router_scaling_factor",
            "query_pre_attn_scalar",
            "mtp_layer_types",
            "mtp_mlp_layer_types",
            "gating",
            "use_head_wise_attn_gate",
            "use_moe_router_bias",
            "need_fp32_gate",
            "moe_router_activation",
            "norm_expert_weight",
            "partial_rotary_factors",
            "yarn_only_types",
            "zero_centered",
        ),
    ),
}
WIDTH_ALIASES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "nemotron_nas": ("nemotron-nas", {}),
    "deci": ("nemotron-nas", {}),
    "decilm": ("nemotron-nas", {}),
    "step3p7": ("step3p5", {}),
    "gemma4": ("gemma4_text", {}),
    "gemma3n": ("gemma3n_text", {}),
    "gemma4_unified": ("gemma4_text", {"row_width": 0, "window": 1024}),
    "gemma4_unified_text": ("gemma4_text", {"row_width": 0, "window": 1024}),
}
