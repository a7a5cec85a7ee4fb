"""A model like DeepSeek-V4-Flash from its config.json to plans: what it holds, who can run it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import planner
from costmodels.parameters import active_params, total_params
from planner.specs.loader import load_model
from searches.frameworks.carried import foreign_kinds
from searches.frameworks.registry import framework_names, framework_rules

KEYS = {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 43,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "num_hash_layers": 3,
    "n_shared_experts": 1,
    "qk_rope_head_dim": 64,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
}
"""As its file says them; the rest is the defaults of its class, which are of this model."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(KEYS))
    return path


def test_its_parameters_by_hand(config: Path):
    h, w, d, vocab = 4096, 64 * 512, 512, 129_280
    shape = load_model(str(config)).shape
    shared = h * 1024 + 1024 + 1024 * w + h * d + d + w * 1024 + 8 * 1024 * h + 64 + h
    heavy = 2 * h * d + 128 * d + d
    series = 4 * h * d + 4 * 2 * d + d
    index = 4 * h * 128 + 4 * 2 * 128 + 128 + 1024 * 64 * 128 + h * 64
    experts = 256 * h + 3 * h * 2048 * (256 + 1) + h
    connection = 24 * 4 * h + 24 + 3
    layers = 43 * (shared + experts + 2 * connection) + 20 * heavy + 21 * (series + index)
    ends = 2 * vocab * h + h + 4 * 4 * h + 4 + 1
    assert total_params(shape, 4096) == layers + ends
    assert layers + ends == pytest.approx(284e9, rel=2e-3)
    asleep = 43 * 3 * h * 2048 * (256 - 6)
    assert active_params(shape, 4096) == layers + ends - asleep


def test_only_frameworks_with_its_class_can_be_told(config: Path):
    shape = load_model(str(config)).shape
    able = {name for name in framework_names() if not foreign_kinds(framework_rules(name), shape)}
    assert able == {"deepspeed", "fsdp2"}
    dense = replace(load_model("llama3-8b").shape, residual_streams=shape.residual_streams)
    assert not any(foreign_kinds(framework_rules(name), dense) == () for name in framework_names())
    assert foreign_kinds(framework_rules("fsdp2"), dense) == ("residual streams",)


def test_plans_on_a_cluster(config: Path):
    """Four streams are what stages pass on; whole layers keep four inputs of theirs."""
    pins = {"tp": 1, "pp": 8, "ep": 32, "mbs": 1, "vpp": 1, "zero": 1, "recompute": "full"}
    found = []
    for count in (2, 4):
        changed = {"training.seq_len": 4096, "model.residual_streams.count": count}
        answer = planner.solve(
            str(config), "h100-x512", framework="any", pins=pins, overrides=changed
        )
        found.append(answer.plans[0])
    messages = [
        next(x for x in plan.breakdown.transfers if x.axis == "pp").message_bytes for plan in found
    ]
    assert messages == [2 * 2 * 4096 * 4096, 4 * 2 * 4096 * 4096]
    assert found[1].breakdown.step_s > found[0].breakdown.step_s
