"""The models that torchtitan registers, as `model:` sections by name and flavor."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from planner.frameworks.torchtitan.releases import OLD_MODELS
from searches.frameworks.torchtitan.registered import FLAVORS

SMALL = {
    ("llama3", "1B"): {
        "layers": 16,
        "hidden": 2048,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 8192,
        "vocab": 128256,
        "tied": True,
    },
    ("llama3", "3B"): {
        "layers": 28,
        "hidden": 3072,
        "heads": 24,
        "kv_heads": 8,
        "ffn": 8192,
        "vocab": 128256,
        "tied": True,
    },
    ("llama4", "debugmodel"): {
        "layers": 6,
        "hidden": 256,
        "heads": 16,
        "ffn": 768,
        "vocab": 2048,
        "n_experts": 8,
        "top_k": 1,
        "expert_ffn": 512,
        "shared_ffn": 512,
        "moe_every": 2,
    },
    ("qwen3", "debugmodel"): {
        "layers": 8,
        "hidden": 256,
        "heads": 16,
        "kv_heads": 8,
        "head_dim": 128,
        "ffn": 3072,
        "vocab": 2048,
        "tied": True,
    },
    ("qwen3", "debugmodel_moe"): {
        "layers": 8,
        "hidden": 256,
        "heads": 16,
        "kv_heads": 8,
        "head_dim": 128,
        "vocab": 2048,
        "n_experts": 64,
        "top_k": 8,
        "expert_ffn": 768,
    },
    ("gpt_oss", "debugmodel"): {
        "layers": 4,
        "hidden": 256,
        "heads": 64,
        "kv_heads": 8,
        "head_dim": 64,
        "vocab": 201088,
        "bias": True,
        "n_experts": 8,
        "top_k": 4,
        "expert_ffn": 2880,
    },
}
"""Registered models that job files are not written for, as in torchtitan 0.2.2 and 0.3.0."""
GROUPS = {("deepseek_v3", "236B"): (8, 3), ("deepseek_v3", "671B"): (8, 4)}
"""Groups of experts, and those that a token may use (torchtitan/models/deepseek_v3)."""
_MOE = {
    "n_experts": "experts",
    "top_k": "topk",
    "expert_ffn": "moe_ffn",
    "shared_ffn": "shared_ffn",
    "dense_layers": "dense_layers",
    "moe_every": "every",
    "n_groups": "routing_groups",
    "top_groups": "top_groups",
}
_MLA = ("q_rank", "kv_rank", "qk_nope", "qk_rope", "v_head")


@cache
def flavors() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return the `model:` sections of torchtitan's models by name and flavor."""
    entries: dict[str, dict[str, Mapping[str, Any]]] = {}
    for (family, flavor), sizes in {**SMALL, **OLD_MODELS, **FLAVORS}.items():
        groups = GROUPS.get((family, flavor))
        more = {"n_groups": groups[0], "top_groups": groups[1]} if groups else {}
        entries.setdefault(family, {})[flavor] = model_section({**sizes, **more})
    return entries


def model_section(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `model:` section of sizes under the names of a `ModelShape`.

    Norms are RMS norms, positions rotary and MLPs gated in every model of torchtitan.
    """
    latent, experts = bool(sizes.get("kv_rank")), bool(sizes.get("n_experts"))
    plain = ("layers", "hidden", "heads", "vocab", "bias")
    section = {key: sizes[key] for key in plain if key in sizes}
    if not latent:
        section |= {key: sizes[key] for key in ("kv_heads", "head_dim") if sizes.get(key)}
    if sizes.get("ffn"):
        section["ffn"] = sizes["ffn"]
    if latent:
        section["mla"] = {key: sizes.get(key, 0) for key in _MLA}
        section.pop("bias", None)
    if experts:
        section["moe"] = {name: sizes[key] for key, name in _MOE.items() if sizes.get(key)}
    if sizes.get("layer_kinds"):
        section |= {key: sizes[key] for key in ("layer_kinds", "window")}
        for name in ("dense_layers", "every"):
            section["moe"].pop(name, None)
    if sizes.get("mtp_layers"):
        section["mtp_layers"] = sizes["mtp_layers"]
    return section | {"gated": True, "tied": bool(sizes.get("tied", False))}
