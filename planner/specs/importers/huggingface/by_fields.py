"""Rules for a file of an unknown `model_type`, made of the names and values of its own keys.

What a name says is what it says in all types that have it (`synonyms`, `rules.KEYS`). What no key
says is assumed, and marked so in the result: no biases, norms by their epsilon, as many keys as
queries.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.specs.importers.huggingface.rules import KEYS, ModelType, Switch
from planner.specs.importers.huggingface.synonyms import SYNONYMS

_GATED = ("silu", "swish", "swiglu", "geglu")
_GATE_SWITCHES = ("gated_mlp", "glu", "use_glu", "use_swiglu", "swiglu", "gated_linear_unit")
_RMS_KEYS = ("rms_norm_eps", "rms_norm_epsilon", "layernorm_epsilon", "layer_norm_rms_eps")
_LAYER_NORM_KEYS = ("layer_norm_eps", "layer_norm_epsilon", "ln_eps")
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
_ATTENTION_BIASES = (
    "attention_bias",
    "qkv_bias",
    "use_qkv_bias",
    "add_qkv_bias",
    "attention_qkv_bias",
    "use_attention_bias",
)
_MLP_BIASES = ("mlp_bias", "use_bias", "add_bias_linear", "use_mlp_bias")
_ALL_BIASES = ("use_bias", "bias", "add_bias_linear")
_QK_NORMS = ("use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm")
_PARALLEL = ("use_parallel_residual", "parallel_attn", "parallel_residual", "use_parallel_block")
_SHARED_WIDTHS = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
)
_TIES = ("tie_word_embeddings", "tie_embeddings", "share_embeddings", "weight_tying")


SIGNS: Mapping[str, tuple[str, ...]] = {
    "gated": (*_GATE_SWITCHES, *_ACTIVATIONS),
    "norm": (*_RMS_KEYS, *_LAYER_NORM_KEYS),
    "positions": ("rope_theta", "rope_scaling", "rope_parameters", "rotary_pct"),
}
"""By field of a model file, the keys from which it is told."""


def rules_by_fields(section: Mapping[str, Any]) -> ModelType:
    """Return the rules that the keys of a section make.

    No file is refused here: what is missing, or of no kind that is priced, the reader says.
    """
    is_routed = any((_number(section, name) or 0) > 1 for name in SYNONYMS["experts"])
    is_latent = _number(section, "kv_lora_rank") is not None
    attention, mlp = _biases(section)
    keys = {name: _present(section, names)[:1] for name, names in SYNONYMS.items()}
    keys |= {
        "tied": _present(section, _TIES)[:1],
        "shared_ffn": _present(section, _SHARED_WIDTHS),
        "attention_bias": attention,
        "mlp_bias": mlp,
        "qk_norm": _present(section, _QK_NORMS),
        "parallel": _present(section, _PARALLEL),
    }
    if is_routed:
        keys |= _expert_widths(section)
    return ModelType(
        defaults={"max_positions": None},
        keys={name: matched or KEYS.get(name, ()) for name, matched in keys.items()},
        gated=_is_gated(section),
        norm=_norm(section),
        biases=(_switch(attention, "attention_bias"),) * 2 + (_switch(mlp, "mlp_bias"),),
        experts=is_routed,
        dense_without=True,
        latent=is_latent,
        qk_norm=_switch(keys["qk_norm"], "qk_norm"),
        parallel=_switch(keys["parallel"], "parallel"),
    )


def _present(section: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    """Return those of some names that say a value."""
    return tuple(name for name in names if section.get(name) is not None)


def _number(section: Mapping[str, Any], name: str) -> int | None:
    value = section.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _switch(found: Sequence[str], name: str) -> Switch:
    return name if found else False


def _biases(section: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keys that say biases of attention and of the MLP."""
    every = _present(section, _ALL_BIASES)
    attention, mlp = _present(section, _ATTENTION_BIASES), _present(section, _MLP_BIASES)
    return attention or every, mlp or every


def _expert_widths(section: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the keys of the widths of experts and of dense layers.

    `intermediate_size` is that of an expert where no other key is.
    """
    own = [name for name in SYNONYMS["moe_ffn"] if name != "intermediate_size"]
    moe_ffn = _present(section, own)[:1]
    if moe_ffn:
        return {"moe_ffn": moe_ffn}
    dense = any(section.get(name) for name in ("first_k_dense_replace", "mlp_only_layers"))
    names = ("intermediate_size",)
    return {"moe_ffn": names, "ffn": names if dense else ()}


def _is_gated(section: Mapping[str, Any]) -> bool:
    """Tell whether the MLP has a gate: by its switch, else its activation, else its norm."""
    for name in _GATE_SWITCHES:
        if isinstance(section.get(name), bool):
            return bool(section[name])
    word = next((section[name] for name in _ACTIVATIONS if section.get(name)), "")
    if str(word).lower() in _GATED:
        return True
    is_squared = str(word).lower() in ("relu", "relu2", "squared_relu")
    return _norm(section) == "rmsnorm" and not is_squared


def _norm(section: Mapping[str, Any]) -> str:
    has_layer_norm = bool(_present(section, _LAYER_NORM_KEYS))
    return "layernorm" if has_layer_norm and not _present(section, _RMS_KEYS) else "rmsnorm"
