"""Vision towers of multimodal configurations, against the classes of transformers."""

from typing import Any

import pytest

from costmodels.parameters import total_params
from planner.errors import SpecError
from planner.specs.importers.huggingface.families.towers import layer_parameters
from planner.specs.loader import model_from_dict

QWEN2 = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32768,
}
QWEN25_VL = {
    **QWEN2,
    "model_type": "qwen2_5_vl",
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
}
LLAVA = {
    "model_type": "llava",
    "text_config": {
        "model_type": "llama",
        "vocab_size": 32064,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    },
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "image_size": 336,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
    },
}
INTERNVL = {
    "model_type": "internvl",
    "text_config": {
        "model_type": "qwen2",
        **QWEN2,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "vision_config": {
        "model_type": "internvl_vision",
        "hidden_size": 1024,
        "image_size": [448, 448],
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": [14, 14],
    },
}
IMAGES = ("model.vision.images", "1")


def read(config: dict[str, Any], **more: str) -> Any:
    pairs = [IMAGES, *((f"model.vision.{name}", value) for name, value in more.items())]
    return model_from_dict(config, [*pairs, ("training.seq_len", "4096")])


@pytest.mark.parametrize(
    ("config", "more", "counted"),
    [
        # Models of transformers 5.23 on the meta device, whole.
        (QWEN25_VL, {"patches": "4096"}, 8_292_166_656),
        (LLAVA, {}, 7_063_427_072),
        (INTERNVL, {}, 11_765_025_792),
    ],
)
def test_parameters_are_those_of_the_class(config, more, counted):
    model = read(config, **more)
    assert total_params(model.shape, 4096) == pytest.approx(counted, rel=1e-3)


def test_sizes_come_from_the_file():
    vision = read(QWEN25_VL, patches="4096").shape.vision
    assert (vision.block, vision.full_every, vision.merge, vision.frames) == (64, 8, 4, 2)
    assert vision.projector == (5120,)
    llava = read(LLAVA).shape.vision
    assert (llava.patches, llava.merge, llava.tokens) == (576, 1, 576)
    intern = read(INTERNVL).shape.vision
    assert (intern.patches, intern.merge, intern.tokens) == (1024, 4, 256)


def test_gemma_takes_the_mean_of_its_patches():
    config = {
        "model_type": "gemma3",
        "mm_tokens_per_image": 256,
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 262208,
        },
        "vision_config": {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "image_size": 896,
            "patch_size": 14,
        },
    }
    vision = read(config).shape.vision
    assert (vision.patches, vision.merge, vision.pooled, vision.tokens) == (4096, 16, True, 256)
    assert vision.projector == ()


def test_it_is_left_out_unless_images_are_stated_and_missing_patches_are_named():
    model = model_from_dict(QWEN25_VL)
    assert model.shape.vision is None
    assert any("vision_config left out" in note for note in model.notes)
    assert not any("left out" in note for note in read(QWEN25_VL, patches="4096").notes)
    with pytest.raises(SpecError) as caught:
        read(QWEN25_VL)
    assert caught.value.problems[0].path == "model.vision.patches"


def test_other_towers_are_refused_by_name():
    with pytest.raises(SpecError) as caught:
        read({**LLAVA, "model_type": "aria"})
    assert "aria" in caught.value.problems[0].message
    with pytest.raises(SpecError):
        read({**QWEN25_VL, "vision_config": {"depth": "32"}}, patches="4096")
    uneven = {**QWEN25_VL["vision_config"], "fullatt_block_indexes": [0, 31]}
    with pytest.raises(SpecError) as caught:
        read({**QWEN25_VL, "vision_config": uneven}, patches="4096")
    assert "[0, 31]" in caught.value.problems[0].message


def test_layers_of_a_tower_by_hand():
    clip = {"hidden_size": 4, "intermediate_size": 16, "num_hidden_layers": 3}
    assert layer_parameters(clip) == 3 * (4 * 16 + 2 * 4 * 16)
    gated = {**clip, "hidden_act": "silu"}
    assert layer_parameters(gated) == 3 * (4 * 16 + 3 * 4 * 16)
    by_ratio = {"embed_dim": 8, "depth": 2, "mlp_ratio": 2.5}
    assert layer_parameters(by_ratio) == 2 * (4 * 64 + 2 * 8 * 20)
    assert layer_parameters({"model_type": "clip_vision_model"}) == 0


def test_shares_of_what_is_left_out_are_named():
    tower = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    text = {**QWEN2, "model_type": "qwen2"}
    (note,) = shares({"model_type": "internvl_chat", "llm_config": text, "vision_config": tower})
    # 24 (4 h^2 + 8 h^2) is 302.0 M beside 7.615 B.
    assert "vision_config about 302.0 M parameters" in note
    assert "3.8% of all and 3.8% of the FLOPs" in note
    thinker = {"text_config": text, "vision_config": tower, "audio_config": {}}
    (note,) = shares(
        {"model_type": "qwen2_5_omni", "thinker_config": thinker, "tts_config": {"a": 1}}
    )
    assert "vision_config about 302.0 M" in note
    assert "tts_config unknown" in note
    assert shares(text) == []
    molmo = {**QWEN2, "model_type": "molmo", "qkv_bias": True, "weight_tying": False}
    assert any("tower of images left out" in note for note in model_from_dict(molmo).notes)


def test_a_tower_that_is_priced_is_not_left_out():
    given = model_from_dict(LLAVA, [("model.vision.images", "1")])
    assert not any("left out" in note for note in given.notes)


def shares(config):
    return [x for x in model_from_dict(config).notes if "shares of what" in x]
