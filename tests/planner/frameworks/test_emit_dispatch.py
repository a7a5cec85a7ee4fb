"""Files ask for the dispatch of experts' tokens that was priced, or say why they do not."""

from dataclasses import replace
from typing import Any

import pytest

import planner
from costmodels.examples import LLAMA3_8B, MIXTRAL_8X7B
from costmodels.shapes import ModelShape
from hardware.parts import Pool
from planner.analyze.check.check import check
from planner.analyze.plan_files import as_dispatched
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.megatron.emitter import flag_groups
from planner.frameworks.megatron.flags import parse_flags
from planner.specs.loader import cluster_from_dict, load_model
from tests.planner.emitting import HEADER, JOB, keywords_of, layout
from tests.planner.emitting import pool as toy_pool

EXPERTS = {"n_devices": 64, "pp": 4, "ep": 8}
DEEPEP = {"switches": (("dispatcher", "deepep"),)}
HYBRIDEP = {"switches": (("dispatcher", "hybridep"),)}


def pool(generation: str = "hopper", per_node: int = 8) -> Pool:
    made = toy_pool(generation, per_node)
    return replace(made, accelerator=replace(made.accelerator, vendor="NVIDIA"))


def files(
    target: str, where: Pool, shape: ModelShape = MIXTRAL_8X7B, **changes: Any
) -> dict[str, str]:
    plan = layout(shape, **EXPERTS | changes)
    return emit_plan(target, EmitRequest(plan, shape, JOB, where, HEADER))


def racks() -> Pool:
    return cluster_from_dict({"pools": [{"accelerator": "gb200", "nodes": 16}]}).cluster.pools[0]


def settings(script: str) -> dict[str, object]:
    words = script.split("pretrain_gpt.py", 1)[1].replace("\\\n", " ").split()[1:]
    return dict(parse_flags([word.strip("'\"") for word in words]).settings)


@pytest.mark.parametrize("generation", ["ampere", "hopper", "blackwell"])
def test_deepep_on_nodes_of_eight(generation):
    script = files("megatron", pool(generation), **DEEPEP)["megatron.sh"]
    found = settings(script)
    assert found["moe_token_dispatcher_type"] == "flex"
    assert found["moe_flex_dispatcher_backend"] == "deepep"
    assert found["moe_router_dtype"] == "fp32"
    assert "HYBRID" not in script
    recipe = files("bridge", pool(generation), **DEEPEP)["bridge_recipe.py"]
    fields = keywords_of(recipe, "GPTModelProvider")
    assert fields["moe_token_dispatcher_type"] == "flex"
    assert fields["moe_flex_dispatcher_backend"] == "deepep"


def test_hybridep_on_racks():
    script = files("megatron", racks(), **HYBRIDEP)["megatron.sh"]
    assert settings(script)["moe_flex_dispatcher_backend"] == "hybridep"
    assert "moe_router_dtype" not in settings(script)
    told = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=8\nexport NVLINK_DOMAIN_SIZE=72 USE_MNNVL=1\n"
    assert told in script
    made = files("bridge", racks(), **HYBRIDEP)
    assert told in made["bridge.sh"]
    assert 'moe_flex_dispatcher_backend="hybridep"' in made["bridge_recipe.py"]


@pytest.mark.parametrize("name", ["alltoall", "allgather"])
def test_megatrons_own_dispatchers(name):
    switches = (("dispatcher", name),) if name != "alltoall" else ()
    script = files("megatron", pool(), switches=switches)["megatron.sh"]
    assert settings(script)["moe_token_dispatcher_type"] == name


def test_a_price_with_the_dispatcher_of_its_stack_is_written_so():
    plan = layout(MIXTRAL_8X7B, **EXPERTS)
    named = as_dispatched(plan, MIXTRAL_8X7B, "deepep")
    assert named.value("dispatcher") == "deepep"
    assert as_dispatched(named, MIXTRAL_8X7B, "hybridep") == named
    at_home = layout(MIXTRAL_8X7B, n_devices=64, pp=4)
    assert as_dispatched(at_home, MIXTRAL_8X7B, "deepep") == at_home
    assert as_dispatched(layout(), LLAMA3_8B, "deepep") == layout()


@pytest.mark.parametrize("target", ["torchtitan", "deepspeed"])
def test_what_cannot_be_asked_for(target):
    made = files(target, pool(), **DEEPEP)
    assert list(made) == [f"{target}.txt"]
    assert "files do not carry it; closest: dispatcher alltoall" in made[f"{target}.txt"]


@pytest.mark.slow
def test_the_script_is_read_back_as_priced(tmp_path, monkeypatch):
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)
    monkeypatch.setattr("planner.analyze.check.check.best_changes", lambda *_: ())
    cluster = {"pools": [{"accelerator": "h100", "nodes": 8}]}
    where = cluster_from_dict(cluster).cluster.pools[0]
    steps = {}
    for name in ("alltoall", "deepep"):
        changes = {"ep": 4} | (DEEPEP if name == "deepep" else {})  # a rank has two experts
        (tmp_path / "megatron.sh").write_text(files("megatron", where, **changes)["megatron.sh"])
        report = check(tmp_path / "megatron.sh", cluster)
        assert not report.refusals
        assert report.plan is not None
        assert report.plan.layout.value("dispatcher") == name
        steps[name] = report.plan.step_time_s
    assert steps["deepep"] < steps["alltoall"]


def test_a_dispatcher_that_cannot_run_is_priced_as_all_to_all(tmp_path, monkeypatch):
    """DeepEP has no setting for 12 ranks: the run is priced, and what was changed is said."""
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)
    monkeypatch.setattr("planner.analyze.check.check.best_changes", lambda *_: ())
    shape = replace(MIXTRAL_8X7B, n_experts=12)
    cluster = {"pools": [{"accelerator": "h100", "nodes": 12}]}
    where = cluster_from_dict(cluster).cluster.pools[0]
    job = replace(JOB, global_batch=96)
    plan = layout(shape, n_devices=96, gbs=96, ep=12, **DEEPEP)
    made = emit_plan("megatron", EmitRequest(plan, shape, job, where, HEADER))
    (tmp_path / "megatron.sh").write_text(made["megatron.sh"])
    report = check(tmp_path / "megatron.sh", cluster)
    assert report.plan is not None
    assert report.plan.layout.value("dispatcher") == "alltoall"
    assert report.repairs == (
        "dispatcher alltoall, not deepep: the dispatcher has no setting for such groups",
    )


@pytest.mark.parametrize(
    ("release", "flag"),
    [
        ("0.17.0", "--cuda-graph-scope"),
        ("0.19.2", "--cuda-graph-modules"),
        ("", "--cuda-graph-modules"),
    ],
)
def test_graphs_are_spelled_as_the_release_spells_them(release, flag):
    pins = {"tp": 1, "ep": 8, "cuda_graph": "moe_router+moe_preprocess"}
    layout = planner.evaluate("mixtral-8x7b", "h100-x512", pins=pins).plans[0].layout
    model = load_model("mixtral-8x7b")
    groups = dict(flag_groups(layout, model.shape, model.job, release=release))
    graph = ["--cuda-graph-impl", "transformer_engine", flag, "moe_router", "moe_preprocess"]
    assert groups["graphs"] == graph
