"""What a configuration says of a model and no figure of a plan depends on.

Names of keys and defaults: the configuration classes of transformers 5.23
(models/*/configuration_*.py); what a router does: models/*/modeling_*.py there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import SpecError
from planner.specs.importers.huggingface.config import Config, Found
from planner.specs.importers.huggingface.parts import parts_of_config
from planner.specs.model import full_attention_every
from planner.specs.schema import ROOT_SCORES
from planner.specs.yaml.document import path_text
from planner.units import shown_value

_KEYS = {
    "rotary_base": ("rope_theta", "rotary_emb_base"),
    "rotary_percent": ("partial_rotary_factor", "rotary_pct"),
    "norm_epsilon": (
        "rms_norm_eps",
        "layer_norm_epsilon",
        "layer_norm_eps",
        "norm_epsilon",
        "norm_eps",
    ),
    "init_std": ("initializer_range", "init_std"),
    "router_scale": ("routed_scaling_factor",),
    "aux_loss": ("router_aux_loss_coef", "aux_loss_alpha"),
}
_SCALING_KEYS = {
    "rope_scaling_factor": "factor",
    "rope_low_frequency": "low_freq_factor",
    "rope_high_frequency": "high_freq_factor",
    "rope_beta_fast": "beta_fast",
    "rope_beta_slow": "beta_slow",
    "rope_mscale": "mscale",
    "rope_mscale_all_dim": "mscale_all_dim",
}
_SCALINGS = {"su": "longrope"} | {
    name: name for name in ("linear", "llama3", "yarn", "dynamic", "longrope")
}
"""Our word by `rope_type`; the others (`default`, `mrope`) stretch nothing."""
_LONG = 1e-5
_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "mixtral": {"rotary_base": 1e6, "norm_epsilon": _LONG, "aux_loss": 0.001},
    "qwen2_moe": {"aux_loss": 0.001},
    "qwen3_moe": {"aux_loss": 0.001},
    "deepseek_v2": {"aux_loss": 0.001, "router_scale": 1.0},
    "deepseek_v3": {"router_scale": 2.5},
    "deepseek_v4": {"router_scale": 1.5},
    "gpt_neox": {"rotary_percent": 0.25},
    "gpt_oss": {"rotary_base": 150000.0, "norm_epsilon": _LONG, "aux_loss": 0.001},
    "llama4_text": {"rotary_base": 500000.0, "norm_epsilon": _LONG, "aux_loss": 0.001},
    "gemma3_text": {"rotary_base": 1e6},
    "phi": {"rotary_percent": 0.5},
    "phi3": {"norm_epsilon": _LONG},
    "phimoe": {"rotary_base": 1e6, "aux_loss": 0.001},
    "glm4": {"rotary_percent": 0.5, "norm_epsilon": 1.5625e-7},
    "glm4_moe": {"rotary_percent": 0.5, "norm_epsilon": _LONG, "router_scale": 1.0},
    "glm": {"rotary_percent": 0.5, "norm_epsilon": 1.5625e-7},
    "stablelm": {"rotary_percent": 0.25},
    "persimmon": {"rotary_percent": 0.5, "rotary_base": 25000.0},
    "chatglm": {"rotary_percent": 0.5, "norm_epsilon": _LONG},
    "minimax_m2": {"rotary_base": 5e6, "aux_loss": 0.001},
    "apertus": {"rotary_base": 12e6, "norm_epsilon": _LONG},
    "ernie4_5": {"rotary_base": 500000.0, "norm_epsilon": _LONG},
    "ernie4_5_moe": {"rotary_base": 500000.0, "norm_epsilon": _LONG},
    "olmo2": {"norm_epsilon": _LONG},
    "olmoe": {"norm_epsilon": _LONG, "aux_loss": 0.01},
    "cohere": {"rotary_base": 500000.0},
    "starcoder2": {"init_std": 0.018042},
    "smollm3": {"rotary_base": 2e6},
    "nemotron": {"rotary_percent": 0.5, "init_std": 0.0134},
}
"""Defaults of a type where they are none of the usual ones."""
_NORM_TOPK = {
    "mixtral": True,
    "qwen2_moe": False,
    "qwen3_moe": False,
    "deepseek_v2": False,
    "deepseek_v3": True,
    "deepseek_v4": True,
    "glm4_moe": True,
    "gpt_oss": True,
    "olmoe": False,
    "phimoe": False,
}
"""Whether scores of the chosen experts are made to sum to one, where the file does not say."""
_SIGMOID = (
    "deepseek_v3",
    "glm4_moe",
    "glm4_moe_lite",
    "llama4_text",
    "dots1",
    "minimax_m2",
    "solar_open",
    "nemotron_h",
    "kimi_linear",
    "deepseek_v32",
    "glm_moe_dsa",
    "lfm2_moe",
)
_LOAD_BIAS = (
    "deepseek_v3",
    "glm4_moe",
    "glm4_moe_lite",
    "dots1",
    "minimax_m2",
    "solar_open",
    "ernie4_5_moe",
    "nemotron_h",
    "kimi_linear",
    "deepseek_v32",
    "glm_moe_dsa",
    "deepseek_v4",
)
"""Types whose experts are balanced by a bias of the router."""
_QK_NORMS = {
    "olmo2": "width",
    "olmoe": "width",
    "flex_olmo": "width",
    "minimax_m2": "width",
    "llama4_text": "l2",
}
"""How queries and keys are normalised, where it is not head by head."""
_NO_POSITIONS = ("jamba", "kimi_linear", "nemotron_h")
"""Types whose attention rotates nothing."""
_GATED_SHARED = ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text")
"""Types whose shared experts have a gate."""
_ACTIVATION_KEYS = (
    "hidden_activation",
    "hidden_act",
    "activation_function",
    "activation",
    "mlp_hidden_act",
)
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "squared_relu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "xielu": "xielu",
}
_TYPE_ACTIVATIONS = {
    "gpt_oss": "clamped_swiglu",
    "gpt2": "gelu_tanh",
    "gpt_bigcode": "gelu_tanh",
    "gptj": "gelu_tanh",
    "gpt_neo": "gelu_tanh",
    "opt": "relu",
    "bloom": "gelu_tanh",
    "gemma": "gelu_tanh",
    "gemma2": "gelu_tanh",
    "gemma3_text": "gelu_tanh",
    "phi": "gelu_tanh",
    "starcoder2": "gelu_tanh",
    "nemotron": "squared_relu",
    "nemotron_h": "squared_relu",
    "apertus": "xielu",
    "arcee": "squared_relu",
    "jais2": "squared_relu",
    "persimmon": "squared_relu",
    "codegen": "gelu_tanh",
    "bitnet": "squared_relu",
}
"""Where the file does not say; `silu` in other gated MLPs, `gelu` in plain ones."""
_OWN_ACTIVATION = ("gpt_oss", "bloom")
"""Types whose code has one activation, whatever the file says."""


@dataclass(frozen=True, slots=True)
class Detail:
    """One field of `model.details` with where it comes from."""

    name: str
    value: bool | float | int | str
    source: Found


def details_of(config: Config, model: Mapping[str, Any], local: list[bool]) -> Iterator[Detail]:
    """Yield the details of a configuration.

    `model` is the `model:` section without them; `local` tells of each layer whether it sees a
    part of the sequence only.
    """
    every = Found(True, f"in every {config.name}", None)
    if model["positions"] == "rope" and not _alibi(config):
        yield from _rotary(config, model)
    yield from _number(config, "norm_epsilon", 1e-5 if config.rules.norm == "layernorm" else 1e-6)
    if model.get("mla"):
        yield Detail("qk_norm", "head", Found(True, "norms of the latents", None))
    elif (norm := config.switch(config.rules.qk_norm)).value:
        yield Detail("qk_norm", _QK_NORMS.get(config.name, "head"), norm)
    if not model.get("mla"):
        for name, rule in zip(
            ("qkv_bias", "attention_out_bias"), config.rules.biases, strict=False
        ):
            bias = config.switch(rule)
            if bias.value != model["bias"]:
                yield Detail(name, bool(bias.value), bias)
    yield from _activation(config, model)
    window = list(_window(config, local))
    yield from window
    chunked = "chunk" in config.look("window").text
    unsaid = any(local) and bool(config.count("window").value) and not window and not chunked
    yield from (Detail(*part) for part in parts_of_config(config, model, unsaid))
    if config.name == "gpt_oss":
        yield Detail("attention_sinks", True, every)
    yield from _number(config, "init_std", 0.02)
    if model.get("moe"):
        yield from _router(config, model, every)


def _alibi(config: Config) -> bool:
    return bool(config.switch("alibi").value)


def _rope(config: Config) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the section that says how positions are rotated, and where it stands."""
    for key in ("rope_scaling", "rope_parameters"):
        value = config.section.get(key)
        if isinstance(value, Mapping):
            inner = value.get("full_attention")
            if isinstance(inner, Mapping):
                return inner, (key, "full_attention")
            return value, (key,)
    return {}, ()


def _value(config: Config, keys: tuple[str, ...], what: str) -> Found | None:
    """Return a number under one of several keys, of the section or of its rotary part."""
    rope, where = _rope(config)
    for section, inside in ((config.section, ()), (rope, where)):
        for key in keys:
            value, path = section.get(key), (*config.path, *inside, key)
            if isinstance(value, list) and value:
                value = value[0]  # of every layer: that of the first
            if value is None or value is False:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                message = f"expected a number ({what}), got {shown_value(value)}"
                raise SpecError(config.problem(path, message))
            return Found(value, path_text(path), path)
    return None


def _number(config: Config, name: str, default: float | None) -> Iterator[Detail]:
    """Yield a field from its keys, else the default of the type, else `default` if given."""
    value = _value(config, _KEYS[name], name)
    if value is None:
        usual = _DEFAULTS.get(config.name, {}).get(name, default)
        if usual is None:
            return
        text = f"default of {config.name}: no {_KEYS[name][0]} in the file"
        value = Found(usual, text, None)
    yield Detail(name, value.value, value)


def _rotary(config: Config, model: Mapping[str, Any]) -> Iterator[Detail]:
    """Yield base, share and scaling of rotary positions."""
    if config.name in _NO_POSITIONS:
        yield Detail("no_rope_every", 1, Found(1, f"in every {config.name}", None))
        return
    yield from _number(config, "rotary_base", 10_000.0)
    rotated = config.section.get("rotary_dim")
    if model.get("head_dim") and type(rotated) is int and rotated > 0:
        path = (*config.path, "rotary_dim")
        text = f"{path_text(path)} / head_dim"
        share = min(1.0, rotated / model["head_dim"])
        yield Detail("rotary_percent", share, Found(share, text, path))
    elif not (model.get("mla") or model.get("compressed")):
        for detail in _number(config, "rotary_percent", 1.0):
            if detail.value != 1.0:
                yield detail
    every = config.section.get("no_rope_layer_interval", 4)
    if config.name in ("smollm3", "llama4_text") and type(every) is int and every > 0:
        text = "no_rope_layer_interval"
        in_file = text in config.section
        interval = Found(every, text if in_file else f"default of {config.name}: no {text}", None)
        yield Detail("no_rope_every", every, interval)
    yield from _scaling(config)


def _scaling(config: Config) -> Iterator[Detail]:
    """Yield how rotary positions are stretched."""
    rope, where = _rope(config)
    key = "rope_type" if "rope_type" in rope else "type"
    word = _SCALINGS.get(str(rope.get(key)))
    factor = _value_of(config, rope, where, "factor")
    if word is None or (word != "longrope" and not (factor and factor.value)):
        return
    path = (*config.path, *where, key)
    yield Detail("rope_scaling", word, Found(word, path_text(path), path))
    for name, inner in _SCALING_KEYS.items():
        if value := _value_of(config, rope, where, inner):
            yield Detail(name, value.value, value)
    inner = "original_max_position_embeddings"
    original = _value_of(config, rope, where, inner) or _value_of(
        config, config.section, (), inner
    )
    if original and type(original.value) is int and original.value > 0:
        yield Detail("rope_original_positions", original.value, original)
    if rope.get("truncate") is False:
        path = (*config.path, *where, "truncate")
        yield Detail("rope_truncate", False, Found(False, path_text(path), path))


def _value_of(
    config: Config, section: Mapping[str, Any], where: tuple[str, ...], key: str
) -> Found | None:
    """Return a number of one section, None where it has none."""
    value, path = section.get(key), (*config.path, *where, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Found(value, path_text(path), path)


def _activation(config: Config, model: Mapping[str, Any]) -> Iterator[Detail]:
    """Yield the activation where it is none of the usual ones."""
    usual = "silu" if model["gated"] else "gelu"
    activation = Found(
        _TYPE_ACTIVATIONS.get(config.name, usual), f"as in every {config.name}", None
    )
    if config.name not in _OWN_ACTIVATION:
        for key in _ACTIVATION_KEYS:
            word = config.section.get(key)
            if isinstance(word, str) and word in _ACTIVATIONS:
                activation = Found(_ACTIVATIONS[word], key, (*config.path, key))
                break
    if activation.value != usual:
        yield Detail("activation", activation.value, activation)


def _window(config: Config, local: list[bool]) -> Iterator[Detail]:
    """Yield the window of local layers, where a model file can say which layers these are."""
    window = config.count("window")
    every = full_attention_every(local) if any(local) else None
    if not window.value or every is None or "chunk" in window.text:
        return
    yield Detail("window", window.value, window)
    if every:
        types = config.look("layer_types")
        text = types.text if types.path else f"every {every} layers in {config.name}"
        yield Detail("full_attention_every", every, Found(every, text, types.path))


def _router(config: Config, model: Mapping[str, Any], every: Found) -> Iterator[Detail]:
    """Yield how tokens are sent to experts."""
    section, name = config.section, config.name
    scores = section.get("scoring_func")
    if scores in ("softmax", "sigmoid", ROOT_SCORES):
        path = (*config.path, "scoring_func")
        yield Detail("router_scores", scores, Found(scores, path_text(path), path))
    else:
        usual = ROOT_SCORES if name == "deepseek_v4" else "softmax"
        yield Detail("router_scores", "sigmoid" if name in _SIGMOID else usual, every)
    norm = section.get("norm_topk_prob", _NORM_TOPK.get(name))
    if isinstance(norm, bool) and model["moe"]["topk"] > 1:
        in_file = "norm_topk_prob" in section
        text = "norm_topk_prob" if in_file else every.text
        norm_path = (*config.path, text) if in_file else None
        yield Detail("router_norm_topk", norm, Found(norm, text, norm_path))
    for detail in _number(config, "router_scale", None):
        if detail.value != 1:
            yield detail
    if name in _LOAD_BIAS:
        yield Detail("router_bias", True, every)
        balanced = Found(0.0, "experts are balanced by the bias of the router", None)
        yield next(_number(config, "aux_loss", None), Detail("aux_loss", 0.0, balanced))
    else:
        yield from _number(config, "aux_loss", None)
    if section.get("seq_aux") is True:
        path = (*config.path, "seq_aux")
        yield Detail("aux_loss_scope", "sequence", Found(True, path_text(path), path))
    if name in _GATED_SHARED and model["moe"].get("shared_ffn"):
        yield Detail("shared_expert_gate", True, every)
