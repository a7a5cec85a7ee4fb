"""Classes of transformers with other mixers: written, read back as the same layers."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from costmodels.layers.kinds import attends
from costmodels.shapes import VisionShape
from planner.errors import EmitError
from planner.frameworks.hf_config import config_file, hf_config
from planner.frameworks.hf_kernels import kernel_notes, kernel_packages, lacking_images
from planner.frameworks.hf_kinds import class_of, sees_both_sides
from planner.specs.inputs import ModelInput
from planner.specs.loader import load_model, model_from_dict
from tools.smoke.kinds import MODELS

TYPES = {"deepseek-v3.2": "deepseek_v32", "kimi-linear": "kimi_linear", "lfm2-moe": "lfm2_moe"}
TYPES |= {"qwen3-next": "qwen3_next", "nemotron-h": "nemotron_h", "m2m-100": "m2m_100"}
JOB = {"seq_len": 128, "global_batch": 8, "precision": "bf16", "optimizer": "adam"}


def model(name: str, **more: Any) -> ModelInput:
    """Return one of the tiny models, as a file states it."""
    return model_from_dict({"model": {"name": name, **MODELS[name], **more}, "training": JOB})


@pytest.mark.parametrize("name", MODELS)
def test_the_layers_come_back(name: str, tmp_path: Path) -> None:
    one = model(name)
    files, why = config_file(one.shape, one.job, one.details)
    assert why == ""
    path = tmp_path / "config.json"
    path.write_text(files["model_config.json"])
    again = load_model(str(path)).shape
    differ = {
        field: (value, getattr(again, field))
        for field, value in asdict(one.shape).items()
        if value != asdict(again)[field]
    }
    unread = {"name", "layer_runs", "max_positions"}
    unread |= set() if attends(one.shape) else {"heads", "kv_heads", "head_dim"}
    assert set(differ) <= unread
    assert (again.kinds, again.layer_sequence) == (one.shape.kinds, one.shape.layer_sequence)


@pytest.mark.parametrize("name", MODELS)
def test_the_layers_choose_the_class(name: str) -> None:
    one = model(name)
    kind = hf_config(one.shape, one.job, one.details)["model_type"]
    assert kind == TYPES.get(name, {"qwen3.5": "qwen3_5_text"}.get(name, name))
    assert sees_both_sides(one.shape) == (name in ("bert", "modernbert"))


def test_sizes_stand_under_the_keys_of_the_class() -> None:
    one = model("jamba")
    got = hf_config(one.shape, one.job, one.details)
    periods = ("attn_layer_period", "attn_layer_offset", "expert_layer_period")
    assert [got[key] for key in periods] == [4, 2, 2]
    assert (got["mamba_expand"], got["mamba_d_state"], got["mamba_dt_rank"]) == (2, 8, 4)
    assert "rope_theta" not in got


@pytest.mark.parametrize(
    ("name", "more", "part"),
    [
        ("mamba", {"mamba1": {"inner": 96, "state": 8, "dt_rank": 4, "conv": 4}}, "inner width"),
        ("jamba", {"details": {}}, "positions"),
        ("lfm2", {"details": {}}, "no norms of queries and keys"),
        ("qwen3.5", {"attention_gate": False}, "attention without a gate"),
        ("bert", {"details": {}}, "norms before attention and MLP"),
        ("modernbert", {"head_transform": False}, "a head without a layer before it"),
    ],
)
def test_what_a_class_does_not_have_is_named(name: str, more: dict, part: str) -> None:
    one = model(name, **more)
    with pytest.raises(EmitError, match=part):
        hf_config(one.shape, one.job, one.details)


def test_experts_at_uneven_distances_are_no_jamba() -> None:
    kinds = ["mamba1+dense", "mamba1+moe", "dense", "mamba1+moe", "mamba1+moe"]
    one = model("jamba", layer_kinds=[{"pattern": kinds}])
    with pytest.raises(EmitError, match="experts at other distances"):
        hf_config(one.shape, one.job, one.details)


def test_kernels_are_named_by_their_packages() -> None:
    state_space = ("mamba-ssm", "causal-conv1d")
    assert kernel_packages(model("jamba").shape) == state_space
    assert kernel_packages(model("kimi-linear").shape)[0] == "flash-linear-attention"
    assert kernel_packages(model("minimax").shape) == ()
    assert any("no kernel" in line for line in kernel_notes(model("minimax").shape))
    plain = load_model("llama3-8b").shape
    assert kernel_notes(plain) == []
    assert class_of(plain) is None


def test_towers_ask_for_a_script_of_yours() -> None:
    plain = load_model("llama3-8b")
    seeing = replace(plain.shape, vision=VisionShape(2, 64, 4, 256, False, 14, 256))
    assert (lacking_images(seeing), lacking_images(plain.shape)) == ("images", "")
    with pytest.raises(EmitError, match="a vision tower"):
        hf_config(seeing, plain.job, plain.details)
