"""Parts of a model that change no figure of a plan and that few frameworks can say.

What each type has: models/*/modeling_*.py of transformers 5.23, and the code beside the weights.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from planner.specs.importers.huggingface.config import Config, Found

Part = tuple[str, bool | float | int | str, Found]
"""Field of `model.details`, its value, and where it comes from."""

_ONE_PLUS = (
    "gemma",
    "gemma2",
    "gemma3_text",
    "nemotron",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
)
_POST_NORMS = {
    "olmo2": "instead",
    "exaone4": "instead",
    "flex_olmo": "instead",
    "gemma2": "also",
    "grok-1": "also",
    "grok-2": "also",
    "gemma3_text": "also",
    "glm4": "also",
    "kolibri1": "also",
    "afmoe": "also",
    "beam": "also",
}
_GRANITE = (
    "granite",
    "granitemoe",
    "granitemoeshared",
    "granitemoehybrid",
    "granite_swa",
    "granitemoe_swa",
    "hyperclovax",
)
_HEAD_BIAS = ("gptj", "codegen", "phi")
_OTHER = {
    "phimoe": "jitter of the router and its own choice of two experts",
    "olmo": "norms without weights",
    "mpt": "norms without biases",
    "dbrx": "norms without biases",
    "bitnet": "norms inside attention and MLP",
    "minimax": "residuals from the normalised input, with factors",
    "llama4_text": "scores of the router times the input of an expert",
    "minicpm3": "factors of embeddings, residuals and logits",
    "nanochat": "norms without weights",
    "laguna": "a gate of every head",
    "axk1": "norm after the experts",
    "openai-gpt": "norms behind attention and MLP",
    "xglm": "positions of sines",
}


def parts_of_config(
    config: Config, model: Mapping[str, Any], unsaid_window: bool
) -> Iterator[Part]:
    """Yield the parts of a model; `unsaid_window`: no field says which layers have a window."""
    every = Found(True, f"in every {config.name}", None)
    if config.name in _ONE_PLUS:
        yield "norm_one_plus", True, every
    kind = _POST_NORMS.get(config.name) or "also" * bool(config.switch("post_norm").value)
    if kind:
        yield "post_norms", kind, every
    for name in (config.rules.parallel, "new_decoder"):
        if (match := config.switch(name)).value:
            yield "parallel_block", True, match
            break
    for name, make in _NUMBERS.items():
        if (made := make(config, model)) is not None:
            yield name, _plain(made.value), made
    if config.name in _HEAD_BIAS or config.section.get("lm_head_bias") is True:
        yield "head_bias", True, every
    if config.name == "bloom":
        yield "embedding_norm", True, every
    if (alibi := config.switch("alibi")).value:
        yield "alibi", True, alibi
    others = [_OTHER[config.name]] if config.name in _OTHER else []
    others += ["which layers see a part of the sequence"] * unsaid_window
    if others:
        yield "other_parts", "; ".join(others), every


def _plain(value: float) -> float:
    """Return a number in ten digits: roots and quotients have more than a file needs."""
    return value if isinstance(value, int) else float(f"{value:.10g}")


def _given(config: Config, default: float | None, *keys: str) -> Found | None:
    """Return a number of the file, else the default of the type; None where there is none."""
    for key in keys:
        outer, _, inner = key.partition(".")
        value = config.section.get(outer)
        if inner:
            value = value.get(inner) if isinstance(value, Mapping) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Found(float(value), key, (*config.path, *key.split(".")))
    if keys[0] in config.section or default is None:
        return None
    return Found(default, f"default of {config.name}", None)


def _changed(number: Found | None, change: Callable[[float], float]) -> Found | None:
    """Return a number that is computed from one of the file; None for one that says nothing."""
    if number is None or not number.value:
        return None
    value = change(number.value)
    return None if value == 1.0 else Found(value, number.text, number.path)


def _same(value: float) -> float:
    return value


def _embedding_scale(config: Config, model: Mapping[str, Any]) -> Found | None:
    if config.name.startswith("gemma"):
        value = math.sqrt(model["hidden"])
        return Found(value, "root of the width", None)
    if config.name in _GRANITE:
        return _changed(_given(config, 1.0, "embedding_multiplier"), _same)
    return _changed(_given(config, 1.0, "scale_emb"), _same) if _minicpm(config) else None


def _minicpm(config: Config) -> bool:
    return config.name == "minicpm"


def _attention_scale(config: Config, model: Mapping[str, Any]) -> Found | None:
    if config.name in ("gemma2", "gemma3_text"):
        number = _given(config, 256.0, "query_pre_attn_scalar")
        if number is None or number.value == model["head_dim"] or number.value <= 0:
            return None
        return Found(number.value**-0.5, number.text, number.path)
    if config.name in _GRANITE:
        number = _given(config, 1.0, "attention_multiplier")
        usual = model["head_dim"] ** -0.5
        same = number is None or math.isclose(number.value, usual, rel_tol=1e-6)
        return None if same else number
    return Found(1.0, "in every gpt_neo", None) if config.name == "gpt_neo" else None


def _residual_scale(config: Config, model: Mapping[str, Any]) -> Found | None:
    if config.name in _GRANITE:
        return _changed(_given(config, 1.0, "residual_multiplier"), _same)
    if _minicpm(config):
        depth = math.sqrt(model["layers"])
        return _changed(_given(config, None, "scale_depth"), lambda value: value / depth)
    return None


def _logit_scale(config: Config, model: Mapping[str, Any]) -> Found | None:
    if config.name in _GRANITE:
        return _changed(_given(config, 1.0, "logits_scaling"), lambda value: 1 / value)
    if config.name == "cohere":
        return _changed(_given(config, 0.0625, "logit_scale"), _same)
    if _minicpm(config):
        base = _given(config, None, "dim_model_base")
        return _changed(base, lambda value: value / model["hidden"])
    return None


def _attention_cap(config: Config, _: Mapping[str, Any]) -> Found | None:
    result = config.look("soft_cap")
    value = result.value
    number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return Found(float(value), result.text, result.path) if number else None


def _logit_cap(config: Config, _: Mapping[str, Any]) -> Found | None:
    default = 30.0 if config.name == "gemma2" else None
    return _changed(_given(config, default, "final_logit_softcapping"), _same)


def _local_base(config: Config, _: Mapping[str, Any]) -> Found | None:
    if config.name != "gemma3_text":
        return None
    inner = config.section.get("rope_parameters")
    local = inner.get("sliding_attention") if isinstance(inner, Mapping) else None
    if isinstance(local, Mapping) and isinstance(local.get("rope_theta"), int | float):
        path = (*config.path, "rope_parameters", "sliding_attention", "rope_theta")
        return Found(
            float(local["rope_theta"]), "rope_parameters.sliding_attention.rope_theta", path
        )
    return _given(config, 10_000.0, "rope_local_base_freq")


def _chunk(config: Config, _: Mapping[str, Any]) -> Found | None:
    if config.name != "llama4_text":
        return None
    result = config.count("window")
    return result if result.value else None


def _temperature(config: Config, _: Mapping[str, Any]) -> Found | None:
    tuned = config.section.get("attn_temperature_tuning", True)
    if config.name != "llama4_text" or not tuned:
        return None
    number = _given(config, 8192.0, "floor_scale")
    if number is None or not number.value.is_integer() or number.value < 1:
        return None
    return Found(int(number.value), number.text, number.path)


def _clip(config: Config, _: Mapping[str, Any]) -> Found | None:
    return _changed(_given(config, None, "clip_qkv", "attn_config.clip_qkv"), _same)


_NUMBERS: Mapping[str, Callable[[Config, Mapping[str, Any]], Found | None]] = {
    "attention_soft_cap": _attention_cap,
    "logit_soft_cap": _logit_cap,
    "embedding_scale": _embedding_scale,
    "attention_scale": _attention_scale,
    "residual_scale": _residual_scale,
    "logit_scale": _logit_scale,
    "attention_chunk": _chunk,
    "attention_temperature_from": _temperature,
    "local_rotary_base": _local_base,
    "qkv_clip": _clip,
}
