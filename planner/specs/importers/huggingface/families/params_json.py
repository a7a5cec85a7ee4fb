"""`params.json`: what Meta and Mistral lay beside weights in place of a config.json.

Sources: meta-llama/llama-models, models/llama3/args.py and model.py (`ModelArgs`, `FeedForward`);
mistralai/mistral-inference, src/mistral_inference/args.py (`TransformerArgs`, `MoeArgs`).
"""

from collections.abc import Mapping
from typing import Any

from planner.specs.importers.huggingface.rules import ModelType, Switch

_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("n_layers",),
    "hidden": ("dim",),
    "heads": ("n_heads",),
    "kv_heads": ("n_kv_heads",),
    "ffn": ("hidden_dim",),
    "max_positions": ("max_position_embeddings", "max_seq_len"),
    "tied": ("tied_embeddings",),
}
_MOE_NAMES: Mapping[str, tuple[str, ...]] = {
    "experts": ("moe.num_experts",),
    "topk": ("moe.num_experts_per_tok",),
    "moe_ffn": ("moe.expert_hidden_dim",),
    "shared_experts": ("moe.num_shared_experts",),
    "first_dense": ("moe.first_k_dense_replace",),
    "expert_frequency": ("moe.route_every_n",),
    "groups": ("moe.num_expert_groups",),
    "top_groups": ("moe.num_expert_groups_per_tok",),
}
_NOTHING: Mapping[str, object] = {"tied": False, "head_dim": None, "max_positions": None}
_BIASES: tuple[Switch, Switch, Switch] = ("attention_bias", False, False)
_HARMLESS = (
    "norm_eps",
    "rope_scaling_factor",
    "max_batch_size",
    "use_scaled_rope",
    "llama_4_scaling",
    "yarn",
    "vision_encoder",
    "quantization",
    "moe.routed_scale",
    "moe.expert_parallel",
    "moe.expert_model_parallel",
    "model_parallel",
)


def meta_ffn(section: Mapping[str, Any]) -> tuple[int, str]:
    """Return the inner width of an MLP of Llama, and how it is computed.

    f = r ceil( floor( m floor( 8 h / 3 ) ) / r ), m `ffn_dim_multiplier`, r `multiple_of`.

    >>> meta_ffn({"dim": 4096, "ffn_dim_multiplier": 1.3, "multiple_of": 1024})[0]
    14336
    >>> meta_ffn({"dim": 4096, "multiple_of": 256})[0]
    11008
    """
    width = 2 * 4 * int(section["dim"]) // 3
    factor, multiple = section.get("ffn_dim_multiplier"), int(section.get("multiple_of", 256))
    if factor is not None:
        width = int(factor * width)
    text = "8/3 dim times ffn_dim_multiplier, in whole multiple_of"
    return multiple * -(-width // multiple), text


PARAMS_TYPES: Mapping[str, ModelType] = {
    "params.json of Mistral": ModelType(
        defaults=dict(_NOTHING),
        keys={**_NAMES, "attention_bias": ("use_biases",)},
        biases=_BIASES,
        ignored=_HARMLESS,
        format="params.json of Mistral",
    ),
    "params.json of Mistral with experts": ModelType(
        defaults=dict(_NOTHING),
        keys={
            **_NAMES,
            **_MOE_NAMES,
            "ffn": (),
            "moe_ffn": ("hidden_dim",),
            "attention_bias": ("use_biases",),
        },
        biases=_BIASES,
        experts=True,
        ignored=_HARMLESS,
        format="params.json of Mistral (experts)",
    ),
    "params.json of Mistral with latent attention": ModelType(
        defaults=dict(_NOTHING),
        keys={**_NAMES, **_MOE_NAMES, "attention_bias": ("use_biases",)},
        biases=_BIASES,
        experts=True,
        latent=True,
        ignored=(*_HARMLESS, "n_kv_heads", "head_dim"),
        format="params.json of Mistral (latent attention)",
    ),
    "params.json of Llama": ModelType(
        defaults={**_NOTHING, "vocab": 32000},
        keys={**_NAMES, "ffn": ()},
        ffn_of=meta_ffn,
        ignored=(*_HARMLESS, "ffn_dim_multiplier", "multiple_of"),
        null_is_missing=("vocab",),
        format="params.json of Llama",
    ),
}
"""By name; a file of this kind states no `model_type`."""


def params_type(section: Mapping[str, Any]) -> str:
    """Return the row of a `params.json`; nothing for another file."""
    if not {"dim", "n_layers", "n_heads"} <= set(section) or "model_type" in section:
        return ""
    if "hidden_dim" not in section:
        return "params.json of Llama"
    name = "params.json of Mistral"
    if section.get("kv_lora_rank"):
        return name + " with latent attention"
    return name + " with experts" * bool(section.get("moe"))
