"""Megatron-LM's settings to the details of a model: what no figure of a plan depends on."""

from collections.abc import Iterator, Mapping
from typing import Any

Found = tuple[str, Any, str]
"""Field of `model.details`, its value, and the setting that says it."""

_PLAIN = {
    "rotary_base": "rotary_base",
    "rotary_percent": "rotary_percent",
    "norm_epsilon": "layernorm_epsilon",
    "init_std": "init_method_std",
}
LAYERS, TOKENS = 10_000, 10_000_000
"""Most layers and tokens that a model file may state."""
_ROTARY = ("rotary_base", "rotary_percent", "rope_")
_SCALING = {
    "rope_scaling_factor": "rotary_scaling_factor",
    "rope_original_positions": "yarn_original_max_position_embeddings",
    "rope_beta_fast": "yarn_beta_fast",
    "rope_beta_slow": "yarn_beta_slow",
    "rope_mscale": "mscale",
    "rope_mscale_all_dim": "mscale_all_dim",
}


def stated_details(settings: Mapping[str, Any]) -> list[Found]:
    """Return the details that settings state, by the dest names of the parser.

    What is left to the parser's defaults is left out.
    """
    results = [*_of_the_model(settings), *_of_attention(settings)]
    if settings.get("num_experts"):
        results += _of_the_experts(settings)
    if _learned(settings):
        results = [item for item in results if not item[0].startswith(_ROTARY)]
    return results


def _learned(settings: Mapping[str, Any]) -> bool:
    """Tell whether positions are learned, as in `planner.frameworks.megatron.model`."""
    kind = settings.get("position_embedding_type", "learned_absolute")
    rotary = settings.get("multi_latent_attention") or settings.get("mtp_num_layers")
    return kind == "learned_absolute" and not rotary


def _of_the_model(settings: Mapping[str, Any]) -> Iterator[Found]:
    for name, dest in _PLAIN.items():
        if _is_set(settings, dest):
            yield name, float(settings[dest]), dest
    yield from _of_scaling(settings)
    if isinstance(settings.get("no_rope_freq"), int) and 0 < settings["no_rope_freq"] <= LAYERS:
        yield "no_rope_every", settings["no_rope_freq"], "no_rope_freq"
    if settings.get("layernorm_zero_centered_gamma"):
        yield "norm_one_plus", True, "layernorm_zero_centered_gamma"
    if settings.get("squared_relu"):
        yield "activation", "squared_relu", "squared_relu"
    elif settings.get("quick_geglu") and settings.get("activation_func_clamp_value"):
        yield "activation", "clamped_swiglu", "quick_geglu"


def _of_scaling(settings: Mapping[str, Any]) -> Iterator[Found]:
    """Yield how rotary positions are stretched: llama3's way, linearly, or YaRN's."""
    latent = bool(settings.get("multi_latent_attention"))
    yarn = "rope_type" if latent else "position_embedding_type"
    factor = settings.get("rotary_scaling_factor")
    times = settings.get("rotary_seq_len_interpolation_factor")
    if settings.get("use_rope_scaling") and not latent:
        stretch = {"rope_scaling_factor": 8.0, **settings}
        if _is_set(stretch, "rope_scaling_factor") and stretch["rope_scaling_factor"]:
            yield "rope_scaling", "llama3", "use_rope_scaling"
            value = float(stretch["rope_scaling_factor"])
            yield "rope_scaling_factor", value, "rope_scaling_factor"
    elif settings.get(yarn) == "yarn" and factor and _is_set(settings, "rotary_scaling_factor"):
        yield "rope_scaling", "yarn", yarn
        for name, dest in _SCALING.items():
            if not _is_set(settings, dest) or (latent and dest.startswith("yarn_")):
                continue
            if name != "rope_original_positions":
                yield name, float(settings[dest]), dest
            elif 0 < settings[dest] <= TOKENS:
                yield name, settings[dest], dest
        if settings.get("yarn_correction_range_round_to_int") is False and not latent:
            yield "rope_truncate", False, "yarn_correction_range_round_to_int"
    elif times and _is_set(settings, "rotary_seq_len_interpolation_factor") and not latent:
        yield "rope_scaling", "linear", "rotary_seq_len_interpolation_factor"
        yield "rope_scaling_factor", float(times), "rotary_seq_len_interpolation_factor"


def _of_attention(settings: Mapping[str, Any]) -> Iterator[Found]:
    if settings.get("qk_layernorm") and not settings.get("multi_latent_attention"):
        yield "qk_norm", "head", "qk_layernorm"
    elif settings.get("qk_l2_norm"):
        yield "qk_norm", "l2", "qk_l2_norm"
    if settings.get("add_qkv_bias") and settings.get("add_bias_linear") is False:
        yield "qkv_bias", True, "add_qkv_bias"
    if settings.get("softmax_type") == "learnable":
        yield "attention_sinks", True, "softmax_type"


def causal_window(text: Any) -> int:
    """Return the tokens of a causal window `(left, 0)`, its own among them; 0 for another one."""
    try:
        left, right = (int(x) for x in str(text).strip("()'\"").split(","))
    except ValueError:
        return 0
    return left + 1 if 0 <= left < TOKENS and right == 0 else 0


def _of_the_experts(settings: Mapping[str, Any]) -> Iterator[Found]:
    scores = settings.get("moe_router_score_function")
    if scores in ("softmax", "sigmoid"):
        yield "router_scores", scores, "moe_router_score_function"
    if settings.get("moe_router_pre_softmax") and settings.get("moe_router_topk", 2) > 1:
        yield "router_norm_topk", False, "moe_router_pre_softmax"
    if _is_set(settings, "moe_router_topk_scaling_factor"):
        value = float(settings["moe_router_topk_scaling_factor"])
        yield "router_scale", value, "moe_router_topk_scaling_factor"
    if settings.get("moe_router_enable_expert_bias"):
        yield "router_bias", True, "moe_router_enable_expert_bias"
    losses, kinds = (
        value if isinstance(value, list) else [value]
        for value in (
            settings.get("moe_aux_loss_coeff"),
            settings.get("moe_router_load_balancing_type"),
        )
    )
    loss = {"loss": losses[0] if len(losses) == 1 else None}
    if _is_set(loss, "loss"):
        yield "aux_loss", float(loss["loss"] or 0), "moe_aux_loss_coeff"
    if kinds == ["seq_aux_loss"]:
        yield "aux_loss_scope", "sequence", "moe_router_load_balancing_type"
    if settings.get("moe_shared_expert_gate"):
        yield "shared_expert_gate", True, "moe_shared_expert_gate"


def _is_set(settings: Mapping[str, Any], dest: str) -> bool:
    """Tell whether a setting is a number that a model file may hold; an open variable is none."""
    value = settings.get(dest)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 <= value <= (1 if dest == "rotary_percent" else 1e12)
