"""Optimizers in files: written, read back to the same plan, refused by name."""

import json
from pathlib import Path

import pytest

from costmodels.optimizers.records import OPTIMIZERS
from planner.analyze.check.check import check
from planner.frameworks.bridge.recipe_settings import megatron_settings_of
from planner.frameworks.emit import emit_plan, why_not
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.optimizers import optimizer_fields
from planner.solver.solve import evaluate
from planner.solver.sources import read_inputs
from tests.planner.frameworks.test_round_trip import Overrides, priced, written
from tests.searches.instances import one_row_in

SHARDED = ("llama3-70b", "h100-x512", {"tp": 8, "pp": 4, "zero": 1})
WHOLE = ("llama3-70b", "h100-x512", {"tp": 8, "pp": 8, "zero": 0})
DISTRIBUTED = {"num_ns_steps": 6, "tp_mode": "distributed", "scalar_optimizer": "lion"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)
    monkeypatch.setattr("planner.analyze.check.check.best_changes", lambda *_: ())


def job(optimizer: str, muon: dict[str, object] | None = None) -> Overrides:
    section = (("training.muon", json.dumps(muon)),) if muon else ()
    return (("training.optimizer", optimizer), *section)


@pytest.mark.parametrize(
    ("case", "overrides", "words"),
    one_row_in(
        2,
        [
            (SHARDED, job("sgd"), "--optimizer sgd"),
            (SHARDED, job("muon"), "--optimizer muon --use-distributed-optimizer"),
            (SHARDED, job("muon", {"param_layout": False}), "--no-use-layer-wise-param-layout"),
            (SHARDED, job("muon", DISTRIBUTED), "--muon-tp-mode distributed"),
            (WHOLE, job("muon"), "--optimizer muon --muon-num-ns-steps 5"),
            (SHARDED, job("soap"), "--optimizer soap --use-distributed-optimizer"),
        ],
    ),
)
def test_megatron_reads_back_what_is_written(case, overrides, words, tmp_path: Path) -> None:
    plan = written(case, "megatron", tmp_path, overrides)
    script = (tmp_path / "megatron.sh").read_text()
    assert words in " ".join(script.replace("\\\n", " ").split())
    report = check(tmp_path / "megatron.sh", case[1])
    assert report.plan is not None, report.not_priced
    assert not report.refusals
    assert report.plan.plan_id == plan.plan_id
    assert report.plan.breakdown.peak_bytes == plan.breakdown.peak_bytes
    assert report.plan.step_time_s == plan.step_time_s


def test_an_old_release_names_muon_otherwise() -> None:
    case = ("llama3-8b", "h100-x8", {"tp": 2, "zero": 1})
    overrides = job("muon", {"param_layout": False})
    plan, model, cluster = priced(case, "megatron@0.17", overrides)
    assert "megatron@0.17.0" in plan.runs_on
    request = EmitRequest(plan.layout, model.shape, model.job, cluster.cluster.pools[0])
    script = " ".join(emit_plan("megatron@0.17.0", request)["megatron.sh"].split())
    assert "--optimizer dist_muon" in script
    assert "--use-distributed-optimizer" not in script
    assert "param-layout" not in script


def test_deepspeed_and_fsdp2_say_theirs(tmp_path: Path) -> None:
    lion = ("llama2-7b", "h100-x8", {"zero": 1})
    plan = written(lion, "deepspeed", tmp_path, job("lion"))
    said = json.loads((tmp_path / "deepspeed.json").read_text())["optimizer"]
    assert said["type"] == "Lion"
    report = check(tmp_path / "deepspeed.sh", lion[1], model=lion[0])
    assert report.plan is not None
    assert report.plan.plan_id == plan.plan_id
    narrow = ("llama3-8b", "h100-x8", {"zero": 3})
    plan = written(narrow, "fsdp2", tmp_path, job("adam-8bit"))
    said = json.loads((tmp_path / "trainer_args.json").read_text())
    assert said["optim"] == "adamw_torch_8bit"


def test_bridge_has_muon_without_shards() -> None:
    case = ("llama3-8b", "h100-x8", {"tp": 4, "pp": 2, "zero": 0})
    plan, model, cluster = priced(case, "bridge", job("muon", DISTRIBUTED))
    request = EmitRequest(plan.layout, model.shape, model.job, cluster.cluster.pools[0])
    recipe = emit_plan("bridge", request)["bridge_recipe.py"]
    for words in ('optimizer="muon"', "muon_num_ns_steps=6", 'muon_tp_mode="distributed"'):
        assert words in recipe
    refused = evaluate("llama3-8b", "h100-x8", pins={"zero": 1}, overrides=job("muon")).best
    assert refused is not None
    model_input, _ = read_inputs("llama3-8b", "h100-x8", job("muon"))
    assert "ZeRO-1" in (
        why_not("bridge", refused.layout, model_input.shape, model_input.job) or ""
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_framework_runs_those_that_its_records_name(optimizer: str) -> None:
    plan = evaluate("llama3-8b", "h100-x8", pins={"tp": 1, "zero": 0}, overrides=job(optimizer))
    assert plan.best is not None
    model, _ = read_inputs("llama3-8b", "h100-x8", job(optimizer))
    for framework in ("megatron", "deepspeed", "torchtitan", "fsdp2", "bridge"):
        reason = why_not(framework, plan.best.layout, model.shape, model.job) or ""
        named = f"optimizer {optimizer}: no file for this framework" in reason
        assert named == (framework not in OPTIMIZERS[optimizer].frameworks)


def test_recipes_with_dist_muon_sum_gradients_whole() -> None:
    fields = {"optimizer.optimizer": "dist_muon", "ddp.use_distributed_optimizer": False}
    settings = megatron_settings_of(fields)
    assert optimizer_fields(Flags(**settings))["muon"]["param_layout"] is False
    settings = megatron_settings_of(fields | {"optimizer.optimizer": "muon"})
    assert "param_layout" not in optimizer_fields(Flags(**settings)).get("muon", {})


class Flags:
    def __init__(self, release: str = "", **settings: object) -> None:
        self.release, self.settings = release, settings

    def get(self, dest: str) -> object:
        return self.settings.get(dest)


def test_flags_of_a_release_say_how_matrices_are_shared_out() -> None:
    stated = {"optimizer": "dist_muon", "muon_tp_mode": "blockwise", "muon_num_ns_steps": 5}
    assert optimizer_fields(Flags(**stated)) == {
        "optimizer": "muon",
        "muon": {"tp_mode": "blockwise"},
    }
    old = optimizer_fields(Flags("0.17.1", **stated))
    assert old["muon"] == {"tp_mode": "blockwise", "param_layout": False}
    assert optimizer_fields(Flags(optimizer="lion")) == {"optimizer": "adam"}
