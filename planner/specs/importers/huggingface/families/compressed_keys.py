"""Layers of DeepSeek-V4: which keys a layer compresses, their sizes, and the residual streams.

Source: transformers 5.23, models/deepseek_v4/configuration_deepseek_v4.py.
"""

from collections.abc import Mapping
from typing import Any

from planner.errors import SpecError
from planner.specs.importers.huggingface.config import Config, Found
from planner.units import shown_value

COMPRESSED_WORDS: Mapping[str, str] = {
    "shared-window": "sliding_attention",
    "csa": "compressed_sparse_attention",
    "hca": "heavily_compressed_attention",
}
"""Words of `layer_types` by mixer."""
RATIOS: Mapping[int, str] = {0: "shared-window", 4: "csa", 128: "hca"}
"""Mixers by the ratio that files of the first release list for every layer."""
ROPE_FRAC = 64 / 512
"""Share of a head with rotary positions where no key says it."""


def compressed_mixers(config: Config, n_layers: int) -> tuple[list[str], Found]:
    """Return the mixer of each layer, and what says so.

    `layer_types`, else `compress_ratios`; entries beyond the layers are those of further modules.
    Without both two layers compress heavily, then every second one.
    """
    types, ratios = config.look("layer_types"), config.look("cmp_ratios")
    if types.value is not None:
        named = {word: mixer for mixer, word in COMPRESSED_WORDS.items()}
        return _listed(config, types, named, n_layers), types
    if ratios.value is not None:
        return _listed(config, ratios, RATIOS, n_layers), ratios
    rest = ["csa" if i % 2 else "hca" for i in range(max(0, n_layers - 2))]
    return ["hca"] * min(2, n_layers) + rest, config.always()


def _listed(config: Config, found: Found, words: Mapping[Any, str], n_layers: int) -> list[str]:
    """Return the mixers that a list names; `SpecError` for a short list or another word."""
    listed = found.value if isinstance(found.value, list) else [found.value]
    for i, word in enumerate(listed):
        if isinstance(word, bool | list | dict) or word not in words:
            message = f"layers with {shown_value(word)}, which a {config.name} has not"
            fix = f"one of {', '.join(map(str, words))}"
            raise SpecError(config.problem((*(found.path or ()), i), message, fix))
    if len(listed) < n_layers:
        message = f"{len(listed)} layers are listed, and the model has {n_layers}"
        raise SpecError(config.problem(found.path, message, "list every layer"))
    return [words[word] for word in listed[:n_layers]]


def compressed_sizes(config: Config) -> dict[str, Found]:
    """Return the sizes of such attention, by field of `model.compressed`."""
    names = {
        "q_rank": "cmp_q_rank",
        "window": "window",
        "groups": "cmp_groups",
        "out_rank": "cmp_out_rank",
        "rope_dim": "cmp_rope_dim",
        "sparse_ratio": "cmp_sparse_ratio",
        "heavy_ratio": "cmp_heavy_ratio",
        "index_heads": "index_heads",
        "index_dim": "index_dim",
        "top_k": "index_topk",
    }
    own = {name: key for name, key in names.items() if name != "rope_dim"}
    found = {name: config.needed(key) for name, key in own.items()}
    return {name: found[name] if name in found else _rope_dim(config) for name in names}


def _rope_dim(config: Config) -> Found:
    """Return the elements of a head with rotary positions: stated, or a share of the head."""
    stated, share = config.count("cmp_rope_dim"), config.section.get("partial_rotary_factor")
    if isinstance(share, int | float) and not isinstance(share, bool):
        path = (*config.path, "partial_rotary_factor")
        text = "head_dim * partial_rotary_factor"
        return Found(int(config.needed("head_dim").value * share), text, path)
    if stated.value is not None:
        return stated
    text = f"default of {config.name}: {ROPE_FRAC:g} head_dim"
    return Found(int(config.needed("head_dim").value * ROPE_FRAC), text, None)


def stream_sizes(config: Config) -> dict[str, Found]:
    """Return the residual streams, by field of `model.residual_streams`."""
    return {
        "count": config.needed("cmp_streams"),
        "sinkhorn_steps": config.needed("sinkhorn_steps"),
    }
