"""A model file from the sizes of a MaxText configuration."""

import math
import re
from collections.abc import Mapping
from typing import Any

from planner.frameworks.maxtext.tables import default_sizes, model_sizes
from planner.frameworks.runs.settings import Reader
from planner.frameworks.torchtitan.flavors import model_section
from planner.specs.importers.imported import Imported, Origin

BLOCKS = ("llama2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek")
"""Decoder blocks whose sizes make a model file: dense, or experts in every layer but the first."""


def all_sizes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of base.yml, under those of the named model, under those that are set."""
    named = model_sizes().get(str(settings.get("model_name", "default")), {})
    own = {key: settings[key] for key in default_sizes() if key in settings}
    return {**default_sizes(), **named, **own}


def overridden_twice(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return sizes that a named model has and the run sets otherwise, in words: it is refused."""
    if str(settings.get("override_model_config", False)).lower() == "true":
        return ()
    named = model_sizes().get(str(settings.get("model_name", "default")), {})
    names = [k for k, v in named.items() if k in settings and settings[k] != v]
    return tuple(
        f"{name} {settings[name]}: model {settings['model_name']} has {named[name]}, which"
        " changes with override_model_config=true alone"
        for name in names
    )


def described_model(
    settings: Mapping[str, Any], source: str, job: Mapping[str, Any]
) -> Imported | None:
    """Return the model file of a configuration; None for a block that is not read.

    Of a model whose name the package does not have, too, unless it states its own sizes.
    """
    name = str(settings.get("model_name", "default"))
    if name != "default" and name not in model_sizes():
        return None
    read = Reader(all_sizes(settings), source)
    block = read.text("decoder_block")
    if block not in BLOCKS:
        return None
    if read.number("interleave_moe_layer_step", 1) > 1 or read.number("sliding_window_size") > 0:
        return None
    sizes, details = _sizes(read, settings, block), _details(read, settings, block)
    section = model_section(sizes)
    title = name if name != "default" else f"{block}-{sizes['layers']}x{sizes['hidden']}"
    section = {"name": re.sub(r"[^A-Za-z0-9._+-]", "-", title), **section}
    if details:
        section["details"] = details
    training = {"optimizer": "adam", "global_batch": 1, **job}
    origins = [Origin(("model", key), f"MaxText's {name}") for key in section]
    origins += [Origin(("training", key), "the configuration") for key in training]
    document = {"model": section, "training": training}
    return Imported("model", document, tuple(origins), source, "MaxText configuration")


def _sizes(read: Reader, settings: Mapping[str, Any], block: str) -> dict[str, Any]:
    """Return the sizes under the names of a `ModelShape`."""
    emb, heads, mlp, layers = _scales(Reader(settings, read.source))
    sizes: dict[str, Any] = {
        "layers": read.number("base_num_decoder_layers") * layers,
        "hidden": read.number("base_emb_dim") * emb,
        "heads": read.number("base_num_query_heads") * heads,
        "kv_heads": read.number("base_num_kv_heads") * heads,
        "head_dim": read.number("head_dim"),
        "ffn": read.number("base_mlp_dim") * mlp,
        "vocab": read.number("vocab_size"),
        "tied": read.switch("logits_via_embedding"),
    }
    experts = read.number("num_experts", 1)
    if experts > 1:
        width = read.number("base_moe_mlp_dim", -1)
        width = (width if width > 0 else read.number("base_mlp_dim")) * mlp
        sizes |= {
            "n_experts": experts,
            "top_k": read.number("num_experts_per_tok", 1),
            "expert_ffn": width,
            "shared_ffn": read.number("shared_experts") * width,
            "dense_layers": read.number("first_num_dense_layers"),
        }
        if read.number("n_routing_groups", -1) > 1:
            sizes["n_groups"] = read.number("n_routing_groups")
            sizes["top_groups"] = max(1, read.number("topk_routing_group", 1))
    if read.text("attention_type") == "mla":
        sizes |= {
            "q_rank": read.number("q_lora_rank"),
            "kv_rank": read.number("kv_lora_rank"),
            "qk_nope": read.number("qk_nope_head_dim"),
            "qk_rope": read.number("qk_rope_head_dim"),
            "v_head": read.number("v_head_dim"),
            "mtp_layers": read.number("mtp_num_layers"),
        }
    return sizes


def _details(read: Reader, settings: Mapping[str, Any], block: str) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if block in ("qwen3", "qwen3_moe") and read.switch("use_qk_norm"):
        details["qk_norm"] = "head"
    if read.switch("attention_bias"):
        details["qkv_bias"] = True
    for key, name in (
        ("rope_max_timescale", "rotary_base"),
        ("normalization_layer_epsilon", "norm_epsilon"),
    ):
        if isinstance(settings.get(key), (int, float)):
            details[name] = float(settings[key])
    return details


def _scales(read: Reader) -> tuple[int, int, int, int]:
    """Return factors of width, heads, MLP and layers by `global_parameter_scale`.

    As maxtext/configs/types.py, get_individual_scales.
    """
    scale = max(1, read.number("global_parameter_scale", 1))
    base, rest = divmod(int(math.log2(scale)), 3)
    heads = 2 ** (base + (rest > 0))
    return 2 ** (base + (rest > 1)), heads, heads, 2**base
