"""A GGUF header as a model file, by way of the type of config.json that it was converted from.

Names of keys: ggml-org/llama.cpp, gguf-py/gguf/constants.py.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.specs.importers.checkpoints.stored import compared_with
from planner.specs.importers.huggingface.model_types import ALIASES, TYPES
from planner.specs.importers.huggingface.reader import read_config
from planner.specs.importers.huggingface.rules import KEYS
from planner.specs.importers.imported import Imported, Origin
from planner.specs.yaml.document import close_names

ARCHITECTURES: Mapping[str, str] = {
    "command-r": "cohere",
    "deepseek2": "deepseek_v3",
    "dots1": "dots1",
    "ernie4_5-moe": "ernie4_5_moe",
    "exaone-moe": "exaone_moe",
    "gemma3": "gemma3_text",
    "glm4moe": "glm4_moe",
    "gpt-oss": "gpt_oss",
    "gptneox": "gpt_neox",
    "granitemoe": "granitemoe",
    "hunyuan-dense": "hunyuan_v1_dense",
    "hunyuan-moe": "hunyuan_v1_moe",
    "minimax-m2": "minimax_m2",
    "mistral3": "mistral",
    "phi2": "phi",
    "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2",
    "qwen3moe": "qwen3_moe",
    "qwen3vl": "qwen3",
    "qwen3vlmoe": "qwen3_moe",
    "seed_oss": "seed_oss",
    "starcoder": "gpt_bigcode",
}
"""Type of config.json by architecture, where the name is not the same."""
_FIELDS: Mapping[str, str] = {
    "block_count": "layers",
    "embedding_length": "hidden",
    "feed_forward_length": "ffn",
    "attention.head_count": "heads",
    "attention.head_count_kv": "kv_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_positions",
    "vocab_size": "vocab",
    "expert_count": "experts",
    "expert_used_count": "topk",
    "expert_feed_forward_length": "moe_ffn",
    "expert_shared_count": "shared_experts",
    "expert_shared_feed_forward_length": "shared_ffn",
    "leading_dense_block_count": "first_dense",
    "expert_group_count": "groups",
    "expert_group_used_count": "top_groups",
    "attention.q_lora_rank": "q_rank",
    "attention.kv_lora_rank": "kv_rank",
    "nextn_predict_layers": "mtp_layers",
    "attention.sliding_window": "window",
}
"""Field of the reader by key, without the name of the architecture."""
_PLAIN = {
    "rope.freq_base": "rope_theta",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
}
_TOKENS = "tokenizer.ggml.tokens"


def read_gguf(text: str, file: str, overrides: Mapping[str, object]) -> Imported:
    """Return the model file that a GGUF header makes; `SpecError` for an unknown architecture."""
    header = json.loads(text)
    metadata = header["gguf"]
    architecture = str(metadata.get("general.architecture", ""))
    name = _type(architecture, metadata, file)
    config, sources = _as_config(name, architecture, metadata, bool(header.get("has_head")))
    try:
        imported = read_config(json.dumps(config), file, overrides)
    except SpecError as error:
        problems = [replace(p, line=0, column=0) for p in error.problems]
        raise SpecError(problems) from None
    origins = [_renamed(origin, sources) for origin in imported.origins]
    model = replace(
        imported,
        origins=tuple(origins),
        format=f"header of a GGUF file ({architecture})",
        marks={},
        notes=tuple(n for n in imported.notes if not n.startswith("model_type")),
    )
    if int(metadata.get("split.count", 0) or 0) > 1:
        note = "one file of several: the parameters of the others are not compared"
        return replace(model, notes=(*model.notes, note))
    return compared_with(model, float(header.get("tensor_params", 0)), "tensors of the file")


def _type(architecture: str, metadata: Mapping[str, Any], file: str) -> str:
    """Return the type of config.json whose layers an architecture has."""
    name = ARCHITECTURES.get(architecture, architecture)
    if architecture == "llama" and metadata.get("llama.expert_count"):
        return "mixtral"
    if name in TYPES or name in ALIASES:
        return name
    close = close_names(architecture, [*ARCHITECTURES, *TYPES], 2)
    fix = f"did you mean {' or '.join(close)}? " if close else ""
    message = f"GGUF of the architecture {architecture or 'that it does not name'}, not known here"
    raise SpecError(InputProblem(message, f"{fix}give the config.json of the model", file))


def _as_config(
    name: str, architecture: str, metadata: Mapping[str, Any], has_head: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of a config.json, and of each the key of the header it comes from."""
    base = ALIASES[name][0] if name in ALIASES else name
    config: dict[str, Any] = {"model_type": name}
    sources: dict[str, str] = {}

    def put(field: str, value: Any, source: str) -> None:
        names = TYPES[base].keys.get(field, KEYS.get(field, ()))
        if field == "ffn" and not names:
            names = TYPES[base].keys.get("moe_ffn", ())  # every layer has experts
        is_latent_only = field in ("head_dim", "kv_heads") and TYPES[base].latent
        if names and "." not in names[0] and not is_latent_only:
            config[names[0]] = value
            sources[names[0]] = source

    for suffix, field in _FIELDS.items():
        key = f"{architecture}.{suffix}"
        value = metadata.get(key)
        if isinstance(value, int | list) and not (field == "ffn" and value == 0):
            put(field, _counted(suffix, value, architecture, metadata), key)
    for suffix, plain in _PLAIN.items():
        if (value := metadata.get(f"{architecture}.{suffix}")) is not None:
            config[plain], sources[plain] = value, f"{architecture}.{suffix}"
    tokens = metadata.get(_TOKENS)
    if f"{architecture}.vocab_size" not in metadata and isinstance(tokens, Mapping):
        put("vocab", tokens["length"], f"length of {_TOKENS}")
    put("tied", not has_head, "output.weight is there" if has_head else "no output.weight")
    if TYPES[base].latent:
        _put_latent(put, architecture, metadata)
    if TYPES[base].experts and config.get("intermediate_size") and "moe_ffn" in TYPES[base].keys:
        own = TYPES[base].keys["moe_ffn"]
        expert_width = metadata.get(f"{architecture}.expert_feed_forward_length")
        if own == ("intermediate_size",) and isinstance(expert_width, int):
            config["intermediate_size"] = expert_width
    return config, sources


def _counted(suffix: str, value: Any, architecture: str, metadata: Mapping[str, Any]) -> Any:
    """Return a value; blocks without those of multi-token prediction, which are counted there."""
    if suffix == "block_count":
        return value - int(metadata.get(f"{architecture}.nextn_predict_layers", 0) or 0)
    return value


def _put_latent(put: Any, architecture: str, metadata: Mapping[str, Any]) -> None:
    """Set the widths of heads of latent attention."""

    def get(*suffixes: str) -> Any:
        values = (metadata.get(f"{architecture}.{suffix}") for suffix in suffixes)
        return next((value for value in values if value is not None), None)

    head_width = get("attention.key_length_mla", "attention.key_length")
    rotary = get("rope.dimension_count")
    if isinstance(head_width, int) and isinstance(rotary, int):
        key = f"{architecture}.attention.key_length"
        put("qk_nope", head_width - rotary, f"{key} less rope.dimension_count")
        put("qk_rope", rotary, f"{architecture}.rope.dimension_count")
    value = get("attention.value_length_mla", "attention.value_length")
    if isinstance(value, int):
        put("v_head", value, f"{architecture}.attention.value_length")


def _renamed(origin: Origin, sources: Mapping[str, str]) -> Origin:
    """Return an origin that names the key of the header in place of that of a config.json."""
    words = origin.text.replace("(", " ( ").split(" ")
    text = " ".join(sources.get(word.rstrip(";:"), word) for word in words).replace(" ( ", "(")
    return replace(origin, text=text)
