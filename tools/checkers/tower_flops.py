"""Parameters and FLOPs of vision towers: ours, beside transformers' models and FlopCounterMode.

A tower with its projector runs one image in torch on the CPU. Eager attention multiplies all
pairs of patches of an image; of layers that attend inside blocks the share of pairs in one block
is taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from layer_flops import COMMON, FLOPS_FRAC, Config, Figure
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

from costmodels.shapes import ModelShape, VisionShape
from costmodels.towers.vision import attended, vision_flops, vision_params
from planner.specs.loader import model_from_dict

PARAMS_FRAC = 1e-3
SIDE = 16
"""Patches of a side of the image."""
TEXT: Config = {**COMMON, "vocab_size": 512}
VISION: Config = {"hidden_size": 256, "intermediate_size": 512, "patch_size": 14}
QWEN: Config = {
    "image_token_id": 10,
    "video_token_id": 11,
    "vision_start_token_id": 12,
    "vision_end_token_id": 13,
}
LLAVA: Config = {
    "model_type": "llava",
    "image_token_index": 10,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "text_config": {**TEXT, "model_type": "llama"},
    "vision_config": {
        **VISION,
        "model_type": "siglip_vision_model",
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 14 * SIDE,
        "vision_use_head": False,
    },
}
ROPE: Config = {"rope_type": "default", "mrope_section": [8, 12, 12]}
QWEN2: Config = {
    **QWEN,
    "model_type": "qwen2_vl",
    "text_config": {**TEXT, "model_type": "qwen2_vl_text", "rope_scaling": ROPE},
    "vision_config": {
        "model_type": "qwen2_vl",
        "embed_dim": 256,
        "mlp_ratio": 2,
        "depth": 3,
        "num_heads": 4,
        "hidden_size": 512,
        "patch_size": 14,
        "spatial_merge_size": 2,
    },
}
QWEN25: Config = {
    **QWEN,
    "model_type": "qwen2_5_vl",
    "text_config": {**TEXT, "model_type": "qwen2_5_vl_text", "rope_scaling": ROPE},
    "vision_config": {
        **VISION,
        "model_type": "qwen2_5_vl",
        "depth": 4,
        "num_heads": 4,
        "out_hidden_size": 512,
        "fullatt_block_indexes": [1, 3],
        "window_size": 112,
        "spatial_merge_size": 2,
    },
}
TOWER = VisionShape(
    layers=3, hidden=256, heads=4, ffn=512, gated=False, patch=14, patches=SIDE * SIDE
)
MERGED = replace(TOWER, merge=4, frames=2, projector=(1024,))


@dataclass(frozen=True)
class TowerCase:
    """A tower in a model of transformers, and the same as sections of our model file have it."""

    data: Config
    vision: VisionShape


CASES = (
    TowerCase(LLAVA, replace(TOWER, positions=SIDE * SIDE, projector=(512,))),
    TowerCase(QWEN2, MERGED),
    TowerCase(
        QWEN25,
        replace(MERGED, layers=4, gated=True, norm="rmsnorm", block=64, full_every=2),
    ),
)


def built(data: Config) -> Any:
    """Return a model of transformers with eager attention, on the CPU."""
    config = CONFIG_MAPPING[data["model_type"]].from_dict(data)
    return AutoModelForImageTextToText.from_config(config, attn_implementation="eager")


def forward_flops(model: Any, vision: VisionShape) -> float:
    """Return the FLOPs of one image, pairs of patches in other blocks left out."""
    numbers = vision.channels * vision.frames * vision.patch**2
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        if vision.frames > 1:
            grid = torch.tensor([[1, SIDE, SIDE]])
            model.model.get_image_features(torch.zeros(vision.patches, numbers), grid)
        else:
            side = SIDE * vision.patch
            model.model.get_image_features(pixel_values=torch.zeros(1, 3, side, side))
    counts = {str(op): float(n) for op, n in counter.get_flop_counts()["Global"].items()}
    products, pairs = counts.pop("aten.bmm"), attended(vision)
    run = sum(n * seen for n, seen in pairs) / (vision.layers * vision.patches)
    # Where the software cuts the sequence into blocks it multiplies no other pairs.
    whole = 4.0 * vision.layers * vision.patches**2 * vision.hidden
    return sum(counts.values()) + (products * run if products == whole else products)


def shape_of(case: TowerCase) -> ModelShape:
    """Return the language model with the tower."""
    text = model_from_dict({**COMMON, "vocab_size": 512, "model_type": "llama"}).shape
    return replace(text, vision=case.vision)


def figures() -> Iterator[Figure]:
    """Yield parameters and forward FLOPs of every tower with its projector."""
    for case in CASES:
        name, shape, model = f"tower ({case.data['model_type']})", shape_of(case), built(case.data)
        real = sum(
            weight.numel()
            for path, weight in model.named_parameters()
            if "language_model" not in path and "lm_head" not in path
        )
        ours = vision_params(shape, np.ones(1, dtype=np.int32)).item()
        yield Figure(name, "parameters", ours, float(real), PARAMS_FRAC)
        forward = replace(shape, vision=replace(case.vision, trained="none"))
        theirs = forward_flops(model, case.vision)
        yield Figure(name, "FLOPs", vision_flops(forward), theirs, FLOPS_FRAC)
