"""Files ask for the dispatch of experts' tokens that was priced, or say why they do not."""

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
from planner.specs.loader import cluster_from_dict
from tests.planner.emitting import HEADER, JOB, keywords_of, layout
from tests.planner.emitting import pool as toy_pool

EXPERTS = {"n_devices": 64, "pp": 4, "ep": 8}


def pool(generation: str = "hopper", per_node: int = 8) -> Pool:
    made = toy_pool(generation, per_node)
    return replace(made, accelerator=replace(made.accelerator, vendor="NVIDIA"))


def files(
    target: str, where: Pool, shape: ModelShape = MIXTRAL_8X7B, **changes: Any
) -> dict[str, str]:
    plan = layout(shape, **EXPERTS | changes)
    return emit_plan(target, EmitRequest(plan, shape, JOB, where, HEADER), dispatch="deduplicated")


def racks() -> Pool:
    return cluster_from_dict({"pools": [{"accelerator": "gb200", "nodes": 16}]}).cluster.pools[0]


def settings(script: str) -> dict[str, object]:
    words = script.split("pretrain_gpt.py", 1)[1].replace("\\\n", " ").split()[1:]
    return dict(parse_flags([word.strip("'\"") for word in words]).settings)


@pytest.mark.parametrize("generation", ["ampere", "hopper", "blackwell"])
def test_deepep_on_nodes_of_eight(generation):
    script = files("megatron", pool(generation))["megatron.sh"]
    found = settings(script)
    assert found["moe_token_dispatcher_type"] == "flex"
    assert found["moe_flex_dispatcher_backend"] == "deepep"
    assert found["moe_router_dtype"] == "fp32"
    assert "HYBRID" not in script
    fields = keywords_of(files("bridge", pool(generation))["bridge_recipe.py"], "GPTModelProvider")
    assert fields["moe_token_dispatcher_type"] == "flex"
    assert fields["moe_flex_dispatcher_backend"] == "deepep"


def test_hybridep_on_racks():
    script = files("megatron", racks())["megatron.sh"]
    assert settings(script)["moe_flex_dispatcher_backend"] == "hybridep"
    assert "moe_router_dtype" not in settings(script)
    told = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=8\nexport NVLINK_DOMAIN_SIZE=72 USE_MNNVL=1\n"
    assert told in script
    made = files("bridge", racks())
    assert told in made["bridge.sh"]
    assert 'moe_flex_dispatcher_backend="hybridep"' in made["bridge_recipe.py"]


def test_nothing_changes_where_no_token_leaves_its_rank():
    plain = layout(MIXTRAL_8X7B, n_devices=64, pp=4)
    for shape, plan in ((MIXTRAL_8X7B, plain), (LLAMA3_8B, layout())):
        for target in ("megatron", "bridge", "torchtitan"):
            request = EmitRequest(plan, shape, JOB, pool(), HEADER)
            assert emit_plan(target, request, "deduplicated") == emit_plan(target, request)


def test_all_to_all_is_written_where_it_was_priced():
    plan = layout(MIXTRAL_8X7B, **EXPERTS)
    script = emit_plan("megatron", EmitRequest(plan, MIXTRAL_8X7B, JOB, pool(), HEADER))[
        "megatron.sh"
    ]
    assert settings(script)["moe_token_dispatcher_type"] == "alltoall"


@pytest.mark.parametrize(
    ("target", "where", "shape", "changes", "reason"),
    [
        ("torchtitan", pool(), MIXTRAL_8X7B, {}, "these files do not ask for"),
        ("deepspeed", pool(), MIXTRAL_8X7B, {}, "these files do not ask for"),
        ("megatron", pool("volta"), MIXTRAL_8X7B, {}, "do not run on"),
        ("megatron", pool(), replace(MIXTRAL_8X7B, capacity_factor=1.0), {}, "pad experts"),
        ("megatron", pool("hopper", 4), MIXTRAL_8X7B, {}, "joins nodes of 8 devices, not of 4"),
        (
            "bridge",
            pool(),
            replace(MIXTRAL_8X7B, n_experts=12, n_groups=1),
            {"ep": 12, "pp": 1, "n_devices": 96, "gbs": 96},
            "no setting for 12 ranks; closest: ep x etp 8",
        ),
    ],
)
def test_what_cannot_be_asked_for(target, where, shape, changes, reason):
    job = replace(JOB, global_batch=changes.get("gbs", JOB.global_batch))
    plan = layout(shape, **EXPERTS | changes)
    made = emit_plan(target, EmitRequest(plan, shape, job, where, HEADER), dispatch="deduplicated")
    assert list(made) == [f"{target}.txt"]
    assert reason in made[f"{target}.txt"]


def test_the_script_is_read_back_as_priced(tmp_path, monkeypatch):
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)
    cluster = {"pools": [{"accelerator": "h100", "nodes": 8}]}
    where = cluster_from_dict(cluster).cluster.pools[0]
    steps = {}
    for dispatch in ("all-to-all", "deduplicated"):
        plan = layout(MIXTRAL_8X7B, **EXPERTS | {"ep": 4})  # a rank has two experts
        made = emit_plan(
            "megatron", EmitRequest(plan, MIXTRAL_8X7B, JOB, where, HEADER), dispatch=dispatch
        )
        (tmp_path / "megatron.sh").write_text(made["megatron.sh"])
        report = check(tmp_path / "megatron.sh", cluster)
        assert not report.refusals
        assert report.plan is not None
        steps[dispatch] = report.plan.step_time_s
    assert steps["deduplicated"] < steps["all-to-all"]
