"""Diffusion transformers of diffusers: parameters as its classes have them, what is refused."""

from typing import Any

import pytest

from costmodels.parameters import total_params
from planner.errors import SpecError
from planner.specs.importers.huggingface.families.diffusers import CLASSES
from planner.specs.loader import model_from_dict

SMALL_HEADS = {"num_attention_heads": 24, "num_layers": 24}
COUNTED: list[tuple[str, dict[str, Any], int, int]] = [
    ("FluxTransformer2DModel", {"guidance_embeds": True}, 11901408320, 64 * 64 + 512),
    ("Flux2Transformer2DModel", {}, 32223281152, 64 * 64 + 512),
    ("QwenImageTransformer2DModel", {}, 20430401088, 64 * 64 + 512),
    (
        "SD3Transformer2DModel",
        {**SMALL_HEADS, "caption_projection_dim": 1536},
        2028328000,
        64 * 64 + 333,
    ),
    (
        "SD3Transformer2DModel",
        {
            "num_attention_heads": 38,
            "num_layers": 38,
            "caption_projection_dim": 2432,
            "qk_norm": "rms_norm",
        },
        8056627520,
        64 * 64 + 333,
    ),
    ("HunyuanVideoTransformer3DModel", {}, 12821012544, 33 * 45 * 80 + 256),
    ("WanTransformer3DModel", {}, 14288491584, 21 * 30 * 52),
    (
        "WanTransformer3DModel",
        {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30},
        1418996800,
        21 * 30 * 52,
    ),
    (
        "WanTransformer3DModel",
        {
            "num_attention_heads": 24,
            "ffn_dim": 14336,
            "num_layers": 30,
            "in_channels": 48,
            "out_channels": 48,
        },
        4999787712,
        31 * 22 * 40,
    ),
    ("LTXVideoTransformer3DModel", {}, 1923385472, 21 * 16 * 22),
    ("CogVideoXTransformer3DModel", {}, 1693783872, 13 * 30 * 45 + 226),
    (
        "CogVideoXTransformer3DModel",
        {"num_attention_heads": 48, "num_layers": 42},
        5570283072,
        13 * 30 * 45 + 226,
    ),
    (
        "PixArtTransformer2DModel",
        {"caption_channels": 4096, "sample_size": 64},
        610856096,
        32 * 32,
    ),
]
"""Class, arguments, parameters on the meta device (diffusers 0.42.1), tokens of a sequence."""


def config(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_class_name": name, "_diffusers_version": "0.42.1", **arguments}


@pytest.mark.parametrize(("name", "arguments", "params", "tokens"), COUNTED)
def test_parameters_and_sequence(name, arguments, params, tokens):
    model = model_from_dict(config(name, **arguments))
    assert total_params(model.shape, model.job.seq_len) == params
    assert model.job.seq_len == tokens


def test_every_class_is_counted():
    assert {name for name, *_ in COUNTED} == set(CLASSES)


def test_resolution_frames_and_text_are_the_users():
    stated = [
        ("model.diffusion.height", "720"),
        ("model.diffusion.width", "1280"),
        ("model.diffusion.frames", "41"),
    ]
    model = model_from_dict(config("WanTransformer3DModel"), stated)
    assert model.job.seq_len == 11 * 45 * 80
    assert model.shape.diffusion is not None
    assert model.shape.diffusion.text_tokens == 512
    assumed = [note for note in model.notes if "model.diffusion" in note]
    assert len(assumed) == 1
    assert "text_tokens" in assumed[0]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("UNet2DConditionModel", {}),
        ("SanaTransformer2DModel", {}),
        ("WanTransformer3DModel", {"image_dim": 1280}),
        ("SD3Transformer2DModel", {"dual_attention_layers": [0, 1]}),
        ("SD3Transformer2DModel", {"caption_projection_dim": 1536}),
        ("CogVideoXTransformer3DModel", {"patch_size_t": 2}),
        ("HunyuanVideoTransformer3DModel", {"image_condition_type": "token_replace"}),
        ("FluxTransformer2DModel", {"num_layers": "19"}),
        ("FluxTransformer2DModel", {"num_layers": 0}),
        ("FluxTransformer2DModel", {"in_channels": 66}),
        ("FluxTransformer2DModel", {"another_width": 8}),
        ("WanTransformer3DModel", {"patch_size": [1, 2]}),
        ("PixArtTransformer2DModel", {"caption_channels": None}),
    ],
)
def test_what_is_not_priced_is_named(name, changes):
    with pytest.raises(SpecError) as caught:
        model_from_dict(config(name, **changes))
    (problem,) = caught.value.problems
    assert (next(iter(changes), "") or name) in str(problem)
