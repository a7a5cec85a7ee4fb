"""Vision towers of multimodal files: `vision_config` as the `vision` section of a model file.

A tower is read where the user says how many images a sequence has (`model.vision.images`): no
such file says it. Otherwise it is left out. Sources: configuration and modeling files of
transformers 5.23.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from costmodels.parameters import active_params, total_params
from planner.errors import SpecError
from planner.specs.importers.imported import Imported, Origin
from planner.specs.model import read_model
from planner.specs.yaml.document import Document
from planner.units import format_count

IMAGES = "model.vision.images"
"""Path by which a user says that the tower is priced, and with how many images a sequence."""
_SECTION = "vision_config"

Fields = dict[str, tuple[object, str]]
"""Fields of the section, each with where it comes from."""


class _Keys:
    """The keys of a `vision_config`, and what a field of the section came from."""

    def __init__(self, document: Document, hidden: int) -> None:
        self.document, self.hidden = document, hidden
        self.whole: Mapping[str, Any] = document.data
        self.section: Mapping[str, Any] = document.data[_SECTION]

    def whole_number(self, key: str, default: int | None = None) -> int:
        """Return a whole number; both sides of a square image are one."""
        value = self.section.get(key, default)
        if isinstance(value, list) and value and all(x == value[0] for x in value):
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            message = f"{key} is no whole number from 1 on: the tower cannot be read"
            hint = f"correct it, or leave {IMAGES} out"
            raise SpecError(self.document.problem((_SECTION,), message, hint))
        return value

    def took(self, key: str, default: int | None = None) -> tuple[object, str]:
        """Return a whole number with the key that says it."""
        stated = key in self.section
        return self.whole_number(key, default), f"{_SECTION}.{key}" if stated else "usual"


def _plain(keys: _Keys, **names: str) -> Fields:
    """Return the sizes that all towers have; `names` are keys that differ."""
    usual = {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "ffn": "intermediate_size",
        "patch": "patch_size",
    }
    return {field: keys.took(name) for field, name in {**usual, **names}.items()}


def _square(keys: _Keys) -> tuple[object, str]:
    """Return the patches of an image of the only size that a tower takes."""
    side = keys.whole_number("image_size") // keys.whole_number("patch_size")
    return side * side, f"({_SECTION}.image_size / patch_size)^2"


def _merged(keys: _Keys, *, frames: bool = True) -> Fields:
    """Return what towers of Qwen have in common: patches merged in squares, of two frames."""
    merge = keys.whole_number("spatial_merge_size", 2)
    sizes: Fields = {"merge": (merge * merge, "spatial_merge_size^2")}
    if frames:
        sizes["frames"] = keys.took("temporal_patch_size", 2)
    return sizes


def _qwen2(keys: _Keys) -> Fields:
    names = {"layers": "depth", "hidden": "embed_dim", "heads": "num_heads"}
    sizes = {k: keys.took(n) for k, n in {**names, "patch": "patch_size"}.items()}
    width, ratio = keys.whole_number("embed_dim"), keys.whole_number("mlp_ratio", 4)
    merged = _merged(keys)
    inner = width * int(str(merged["merge"][0]))
    ffn = (ratio * width, "mlp_ratio * embed_dim")
    return {**sizes, **merged, "ffn": ffn, "projector": ([inner], "merged patches")}


def _qwen25(keys: _Keys) -> Fields:
    sizes = {**_plain(keys, layers="depth", heads="num_heads"), **_merged(keys)}
    inner = keys.whole_number("hidden_size") * int(str(sizes["merge"][0]))
    side = keys.whole_number("window_size", 112) // keys.whole_number("patch_size")
    full = keys.section.get("fullatt_block_indexes", [7, 15, 23, 31])
    layers = keys.whole_number("depth")
    every = layers // len(full) if full else 0
    if full and [(i + 1) * every - 1 for i in range(len(full))] != list(full):
        message = f"layers {full} attend to whole images: a model file has every n-th"
        raise SpecError(keys.document.problem((_SECTION, "fullatt_block_indexes"), message, ""))
    return {
        **sizes,
        "gated": (True, "three MLP matrices, as in every qwen2_5_vl"),
        "norm": ("rmsnorm", "as in every qwen2_5_vl"),
        "projector": ([inner], "merged patches"),
        "block": (side * side, "(window_size / patch_size)^2"),
        "full_every": (every, "fullatt_block_indexes"),
    }


def _qwen3(keys: _Keys) -> Fields:
    sizes = {**_plain(keys, layers="depth", heads="num_heads"), **_merged(keys)}
    inner = keys.whole_number("hidden_size") * int(str(sizes["merge"][0]))
    deep = keys.section.get("deepstack_visual_indexes", [8, 16, 24])
    return {
        **sizes,
        "positions": keys.took("num_position_embeddings", 2304),
        "projector": ([inner], "merged patches"),
        "inner_projectors": (len(deep), "deepstack_visual_indexes"),
    }


def _llava(keys: _Keys) -> Fields:
    patches, text = _square(keys)
    bias = keys.whole.get("multimodal_projector_bias", True)
    return {
        **_plain(keys),
        "patches": (patches, text),
        "positions": (patches, "one for each patch"),
        "projector": ([keys.hidden], "width of the language model"),
        "projector_bias": (bias is not False, "multimodal_projector_bias"),
    }


def _gemma3(keys: _Keys) -> Fields:
    patches, text = _square(keys)
    tokens = keys.whole.get("mm_tokens_per_image", 256)
    return {
        **_plain(keys),
        "patches": (patches, text),
        "positions": (patches, "one for each patch"),
        "merge": (int(str(patches)) // int(tokens), "patches / mm_tokens_per_image"),
        "pooled": (True, "mean of merged patches, as in every gemma3"),
        "projector_bias": (False, "as in every gemma3"),
    }


def _internvl(keys: _Keys) -> Fields:
    patches, text = _square(keys)
    ratio = float(keys.whole.get("downsample_ratio", 0.5))
    is_rms = keys.section.get("norm_type", "layer_norm") == "rms_norm"
    return {
        **_plain(keys),
        "patches": (patches, text),
        "positions": (patches, "one for each patch"),
        "norm": ("rmsnorm" if is_rms else "layernorm", f"{_SECTION}.norm_type"),
        "merge": (round(1 / ratio**2), "1 / downsample_ratio^2"),
        "projector": ([keys.hidden], "width of the language model"),
    }


TOWERS: Mapping[str, Callable[[_Keys], Fields]] = {
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen25,
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3,
    "llava": _llava,
    "gemma3": _gemma3,
    "internvl": _internvl,
    "internvl_chat": _internvl,
}
"""Readers by the `model_type` of the whole file."""


def with_tower(
    imported: Imported, document: Document, overrides: Mapping[str, object]
) -> Imported:
    """Return an imported model with its vision tower, where the user says how many images it has.

    Patches of an image are those of the only size that a tower takes; of towers that take images
    as they are the user says them (`model.vision.patches`). Raises `SpecError` for a tower that is
    not read.
    """
    if not any(key.startswith("model.vision.") for key in overrides):
        return imported
    kind = document.data.get("model_type")
    if not isinstance(document.data.get(_SECTION), Mapping) or kind not in TOWERS:
        message = f"no vision tower of a {kind} is read"
        hint = f"one of {', '.join(TOWERS)}; or write the `vision` section of a model file"
        raise SpecError(document.problem((), message, hint))
    hidden = int(imported.document["model"]["hidden"])
    sizes = TOWERS[str(kind)](_Keys(document, hidden))
    sizes.setdefault("images", (1, "assumed"))
    with_vision = copy.deepcopy(imported.document)
    with_vision["model"]["vision"] = {name: value for name, (value, _) in sizes.items()}
    origins = [
        Origin(("model", "vision", name), text, text == "assumed")
        for name, (_, text) in sizes.items()
    ]
    left_out = [x for x in imported.notes if not x.startswith(f"{_SECTION} left out")]
    return replace(
        imported,
        document=with_vision,
        origins=(*imported.origins, *origins),
        notes=tuple(left_out),
    )


LEFT_OUT = "left out: this is the language model alone"
"""Words of the note that names the parts beside the language model."""
_DEPTHS = ("num_hidden_layers", "depth", "encoder_layers", "layers", "n_layers")
_WIDTHS = ("hidden_size", "embed_dim", "d_model", "width")
_INNER = ("intermediate_size", "encoder_ffn_dim", "ffn_dim")


def with_shares(imported: Imported, document: Document) -> Imported:
    """Return an import whose notes say how much of the whole the parts are that were left out.

    Shares are of the parameters, and of the FLOPs of a token of text and a patch (or a frame of
    sound) together.
    """
    named = [note.partition(f" {LEFT_OUT}")[0] for note in imported.notes if LEFT_OUT in note]
    keys = [key for text in named for key in text.split(" and ")]
    if not keys:
        return imported
    model = read_model(Document(copy.deepcopy(imported.document)))
    total = total_params(model.shape, model.job.seq_len)
    active = active_params(model.shape, model.job.seq_len)
    shares = [_share(key, document, total, active) for key in keys]
    note = f"shares of what is left out: {'; '.join(shares)}"
    return replace(imported, notes=(*imported.notes, note))


def _share(key: str, document: Document, total: float, active: float) -> str:
    """Return the share of one part, by the sizes that its section says."""
    data = document.data
    thinker = data.get("thinker_config")
    section = data.get(key, thinker.get(key) if isinstance(thinker, Mapping) else None)
    params = layer_parameters(section) if isinstance(section, Mapping) else 0
    if not params:
        return f"{key} unknown, as the file does not say its sizes"
    of_all, of_flops = params / (total + params), params / (active + params)
    return (
        f"{key} about {format_count(params)} parameters in its layers, {of_all:.1%} of all and"
        f" {of_flops:.1%} of the FLOPs of a token of text and a patch"
    )


def layer_parameters(section: Mapping[str, Any]) -> int:
    """Return the matrices of the layers of a tower, by the sizes of its section; 0 where unsaid.

    L (4 h^2 + m h f), with m = 3 where the MLP has a gate and 2 elsewhere. Source: a count of
    matrices. Left out: embeddings of patches, projectors, norms, biases.
    """
    depth, width, inner = (_first(section, names) for names in (_DEPTHS, _WIDTHS, _INNER))
    if not inner and width:
        ratio = section.get("mlp_ratio", 4)
        inner = round(ratio * width) if isinstance(ratio, int | float) else 4 * width
    matrices = 3 if section.get("hidden_act") in ("silu", "swiglu") else 2
    return depth * (4 * width**2 + matrices * width * inner)


def _first(section: Mapping[str, Any], names: Sequence[str]) -> int:
    values = (section.get(name) for name in names)
    return next((x for x in values if isinstance(x, int) and not isinstance(x, bool) and x > 0), 0)
