"""Files ask for the modules whose inputs wait on the host, and are read as they were priced."""

from dataclasses import replace
from typing import Any

import pytest

from costmodels.examples import LLAMA3_8B, MIXTRAL_8X7B
from costmodels.shapes import ModelShape
from hardware.parts import Pool
from planner.analyze.check.check import check
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.megatron.flags import parse_flags
from planner.frameworks.megatron.mode_settings import read_modes
from planner.specs.loader import cluster_from_dict
from tests.planner.emitting import HEADER, JOB, keywords_of, layout

H100 = {"pools": [{"accelerator": "h100", "nodes": 1}]}
B200 = {"pools": [{"accelerator": "b200", "nodes": 1}]}
ATTENTION = ("offload_modules", "core_attn+attn_proj")


def pool(cluster: dict[str, Any] = H100) -> Pool:
    return cluster_from_dict(cluster).cluster.pools[0]


def files(
    target: str, shape: ModelShape = LLAMA3_8B, where: Pool | None = None, **changes: Any
) -> dict[str, str]:
    plan = layout(shape, **{"switches": (ATTENTION,)} | changes)
    request = EmitRequest(plan, shape, JOB, where or pool(), HEADER)
    return emit_plan(target, request)


def settings(script: str) -> dict[str, object]:
    words = script.split("pretrain_gpt.py", 1)[1].replace("\\\n", " ").split()[1:]
    return dict(parse_flags([word.strip("'\"") for word in words]).settings)


def test_megatron_is_told():
    script = files("megatron")["megatron.sh"]
    assert "--offload-modules core_attn attn_proj" in script
    assert "export NVTE_CPU_OFFLOAD_V1=1" in script
    assert settings(script)["fine_grained_activation_offloading"] is True
    plain = files("megatron", switches=())["megatron.sh"]
    assert "offload" not in plain.lower()


def test_bridge_is_told():
    made = files("bridge")
    fields = keywords_of(made["bridge_recipe.py"], "GPTModelProvider")
    assert fields["fine_grained_activation_offloading"] is True
    assert fields["offload_modules"] == ["core_attn", "attn_proj"]
    assert "export NVTE_CPU_OFFLOAD_V1=1" in made["bridge.sh"]


def test_a_graph_of_the_whole_iteration_says_how_many_copies_may_be_on_their_way():
    modes = (("cuda_graph", "full_iteration"), ATTENTION)
    found = settings(files("megatron", switches=modes)["megatron.sh"])
    assert found["fine_grained_offloading_max_inflight_offloads"] == 1
    older = files("megatron@0.17.0", switches=modes)
    assert "megatron.sh" not in older
    assert "--fine-grained-offloading-max-inflight-offloads" in " ".join(older.values())
    alone = files("megatron@0.17.0")
    assert "--offload-modules core_attn attn_proj" in alone["megatron.sh"]


@pytest.mark.parametrize("target", ["torchtitan", "deepspeed", "fsdp2"])
def test_what_cannot_be_asked_for(target):
    made = files(target)
    assert list(made) == [f"{target}.txt"]
    assert "offload_modules" in made[f"{target}.txt"]
    assert "closest: offload_modules none" in made[f"{target}.txt"]


def test_the_script_is_read_back_as_priced(tmp_path, monkeypatch):
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)
    monkeypatch.setattr("planner.analyze.check.check.best_changes", lambda *_: ())
    peaks = {}
    for switches in ((), (ATTENTION,)):
        text = files("megatron", pp=2, switches=switches)["megatron.sh"]
        (tmp_path / "megatron.sh").write_text(text)
        report = check(tmp_path / "megatron.sh", H100)
        assert not report.refusals
        assert not report.repairs
        assert report.plan is not None
        assert report.plan.layout.switches == switches
        peaks[switches] = report.plan.breakdown.peak_bytes
    assert peaks[(ATTENTION,)] < peaks[()]


def test_modules_that_a_model_has_not_are_left_out(tmp_path, monkeypatch):
    """Megatron-LM passes over them: the others leave."""
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)
    monkeypatch.setattr("planner.analyze.check.check.best_changes", lambda *_: ())
    text = files("megatron")["megatron.sh"]
    words = "--offload-modules attn_norm core_attn attn_proj expert_fc1"
    text = text.replace("--offload-modules core_attn attn_proj", words)
    (tmp_path / "megatron.sh").write_text(text)
    report = check(tmp_path / "megatron.sh", H100)
    assert not report.refusals
    assert report.plan is not None
    assert report.plan.layout.value("offload_modules") == "core_attn+attn_proj"
    assert any("no such module to offload" in text for text in report.repairs)


def test_what_megatron_refuses_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)
    monkeypatch.setattr("planner.analyze.check.check.best_changes", lambda *_: ())
    shape = replace(MIXTRAL_8X7B, layers=8)
    changes: dict[str, Any] = {"ep": 8, "recompute": "selective", "recompute_modules": ("moe",)}
    text = files("megatron", shape, **changes)["megatron.sh"]
    text = text.replace("core_attn attn_proj", "core_attn expert_fc1")
    (tmp_path / "megatron.sh").write_text(text)
    report = check(tmp_path / "megatron.sh", B200)
    found = [one.text for one in report.refusals]
    assert any("recompute of moe excludes offload of expert_fc1" in text for text in found)


@pytest.mark.parametrize(
    ("changes", "value", "said"),
    [
        ({}, "core_attn+attn_proj", ""),
        ({"fine_grained_activation_offloading": None}, "none", ""),
        ({"offload_modules": ["moe_act", "expert_fc1"]}, "expert_fc1+moe_act", ""),
        (
            {"offload_modules": ["fused_group_mlp"]},
            "expert_fc1+moe_act",
            "offload of fused_group_mlp is priced as that of expert_fc1 and moe_act",
        ),
        (
            {"offload_modules": ["gdp_qkv", "core_attn"]},
            "core_attn",
            "offload of gdp_qkv is not priced",
        ),
        (
            {"activation_offload_fraction": 0.5},
            "core_attn+attn_proj",
            "--activation-offload-fraction 0.5: priced as 1.0, memory is underestimated",
        ),
        (
            {"min_offloaded_tensor_size": 0},
            "core_attn+attn_proj",
            "--min-offloaded-tensor-size 0: priced as 1048576",
        ),
    ],
)
def test_settings_are_read(changes, value, said):
    usual = {
        "fine_grained_activation_offloading": True,
        "offload_modules": ["core_attn", "attn_proj"],
    }
    notes: list[str] = []
    assert read_modes(usual | changes, notes)["offload_modules"] == value
    assert notes == [said] * bool(said)
