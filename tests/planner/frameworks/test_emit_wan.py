"""Wan for Megatron-Bridge: what the recipe says, what is refused by name, what is read back."""

from typing import Any

import pytest

from planner.analyze.check.check import check
from planner.errors import SpecError
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.specs.loader import model_from_dict
from tests.planner.emitting import HEADER, keywords_of, layout, pool

WAN: dict[str, Any] = {
    "_class_name": "WanTransformer3DModel",
    "_diffusers_version": "0.42.1",
    "num_attention_heads": 12,
    "ffn_dim": 8960,
    "num_layers": 30,
}
FLUX = {
    "_class_name": "FluxTransformer2DModel",
    "_diffusers_version": "0.42.1",
    "num_layers": 10,
    "num_single_layers": 20,
}
PLAN = {"tp": 2, "pp": 2, "gbs": 256, "recompute": "full", "recompute_layers": 15}


def written(model: dict[str, Any] | None = None, **changes: Any) -> dict[str, str]:
    given = model_from_dict(model or WAN)
    plan = layout(given.shape, **{**PLAN, **changes})
    return emit_plan("bridge", EmitRequest(plan, given.shape, given.job, pool(), HEADER))


def test_the_recipe_says_sizes_layout_and_latents():
    text = written()["bridge_recipe.py"]
    provider = keywords_of(text, "WanModelProvider")
    assert {key: provider[key] for key in ("num_layers", "hidden_size", "ffn_hidden_size")} == {
        "num_layers": 30,
        "hidden_size": 1536,
        "ffn_hidden_size": 8960,
    }
    assert provider["crossattn_emb_size"] == 1536
    assert provider["tensor_model_parallel_size"] == 2
    assert provider["pipeline_model_parallel_size"] == 2
    assert provider["recompute_granularity"] == "full"
    data = keywords_of(text, "WanDatasetConfig")
    # 81 frames of 480 x 832: 21 frames of latents of 60 x 104.
    assert [data[f"{side}_latents"] for side in "FHW"] == [21, 60, 104]
    assert data["seq_length"] == provider["seq_length"] == 21 * 30 * 52
    assert (data["context_seq_len"], data["context_embeddings_dim"]) == (512, 4096)
    assert "WanForwardStep()" in text
    assert "GPTDatasetConfig(" not in text


@pytest.mark.parametrize(
    ("model", "changes", "word"),
    [
        (WAN, {"cp": 2, "cp_comm": "a2a", "tp": 1, "dp": 2}, "cp 2"),
        (WAN, {"mbs": 2}, "mbs 2"),
        (WAN, {"zero": 2, "pp": 1, "recompute_layers": 30}, "zero 2"),
        (WAN, {"vpp": 3, "recompute_layers": 5}, "vpp 3"),
        ({**WAN, "in_channels": 36}, {}, "16 channels"),
        (FLUX, {}, "state no double-stream, single-stream"),
    ],
)
def test_what_it_does_not_run_is_refused_by_name(model, changes, word):
    files = written(model, **changes)
    assert list(files) == ["bridge.txt"]
    assert word in files["bridge.txt"]


def test_a_recipe_is_read_beside_its_model_file_alone(tmp_path):
    file = tmp_path / "bridge_recipe.py"
    file.write_text(written()["bridge_recipe.py"], encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        check(str(file), "h100-x8")
    assert "--model" in str(caught.value)
