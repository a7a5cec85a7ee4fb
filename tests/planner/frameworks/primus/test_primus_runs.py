"""Experiments of Primus and the scripts that start them, read as runs and changed."""

from dataclasses import replace
from pathlib import Path

import pytest

import planner
from planner.analyze.check.check import check
from planner.analyze.check.report import Report
from planner.errors import SpecError
from planner.frameworks.emit import emit_plan, why_not
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.runs.changes import changed_settings
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.specs.inputs import Content
from planner.specs.loader import load_cluster, load_model

EXPERIMENT = """work_group: mine
user_name: me
exp_name: tiny
workspace: ./output
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: language_model.yaml
    overrides:
      num_layers: 16
      hidden_size: 2048
      ffn_hidden_size: 8192
      num_attention_heads: 16
      vocab_size: 32000
      max_position_embeddings: 4096
      position_embedding_type: rope
      hidden_dropout: 0.0
      attention_dropout: 0.0
      seq_length: 4096
      micro_batch_size: 2
      global_batch_size: 128
      num_experts: 32
      moe_router_topk: 4
      moe_ffn_hidden_size: 1024
      moe_grouped_gemm: true
      expert_model_parallel_size: 8
      moe_router_dtype: fp32
      moe_token_dispatcher_type: alltoall
"""
DEEPEP = "      enable_primus_turbo: true\n      use_turbo_deepep: true\n"


def read(tmp_path: Path, more: str = "", script: str = "", **query: object) -> ExistingRun:
    (tmp_path / "exp.yaml").write_text(EXPERIMENT + more, encoding="utf-8")
    if script:
        (tmp_path / "run.sh").write_text(script, encoding="utf-8")
    name = "run.sh" if script else "exp.yaml"
    return read_run(str(tmp_path / name), RunQuery(**{"n_devices": 16, **query}))


def test_what_the_presets_set_counts(tmp_path: Path) -> None:
    run = read(tmp_path)
    assert (run.framework, run.fork, run.doubts) == ("primus", "", ())
    assert (run.layout["zero"], run.layout["sp"], run.layout["ep"]) == (1, False, 8)
    model = run.model.document["model"] if run.model else {}
    assert (model["gated"], model["bias"], model["tied"]) == (True, False, False)
    assert run.layout["dispatcher"] == "alltoall"


@pytest.mark.parametrize(
    ("more", "dispatcher"),
    [
        ("      use_turbo_deepep: true\n", "alltoall"),
        (DEEPEP, "deepep"),
        (
            "      enable_primus_turbo: true\n      use_turbo_grouped_gemm: true\n"
            "      turbo_sync_free_moe_stage: 2\n",
            "deepep",
        ),
    ],
)
def test_deepep_is_sent_where_turbo_is_on(tmp_path: Path, more: str, dispatcher: str) -> None:
    assert read(tmp_path, more).layout["dispatcher"] == dispatcher


def test_own_keys_can_be_set_by_hand(tmp_path: Path) -> None:
    run = read(tmp_path, DEEPEP, sets=(("use_turbo_deepep", "false"), ("micro_batch_size", "4")))
    assert (run.layout["dispatcher"], run.layout["mbs"]) == ("alltoall", 4)


@pytest.mark.parametrize(
    ("more", "doubted"),
    [
        ("      patch_zero_bubble: true\n", ["patch_zero_bubble"]),
        ("      use_turbo_mega_moe: true\n", ["use_turbo_mega_moe"]),
        ("      lora:\n        enabled: true\n", ["lora"]),
        ("      lora:\n        enabled: false\n", []),
        ("      recompute_layer_frobs: 3\n", ["recompute_layer_frobs"]),
    ],
)
def test_what_is_not_priced_is_doubted(tmp_path: Path, more: str, doubted: list[str]) -> None:
    assert [one.what for one in read(tmp_path, more).doubts] == doubted


def test_keys_that_nothing_reads_are_named(tmp_path: Path) -> None:
    assert read(tmp_path, "      use_turbo_magic: true\n").unknown == ("use_turbo_magic",)


def test_trainers_of_other_models_are_refused(tmp_path: Path) -> None:
    flux = EXPERIMENT.replace("    config:", "    trainer_class: FluxPretrainTrainer\n    config:")
    (tmp_path / "flux.yaml").write_text(flux, encoding="utf-8")
    with pytest.raises(SpecError, match="FluxPretrainTrainer: not modelled"):
        read_run(str(tmp_path / "flux.yaml"), RunQuery(n_devices=8))


@pytest.mark.parametrize(
    ("script", "n_devices", "mbs"),
    [
        ("NNODES=4 ./primus-cli direct -- train pretrain --config exp.yaml\n", 32, 2),
        (
            'export NNODES="${NNODES:-2}" GPUS_PER_NODE="${GPUS_PER_NODE:-4}"\n'
            'exec runner/primus-cli direct -- train pretrain --config "${HERE}/exp.yaml" \\\n'
            "  micro_batch_size=4\n",
            8,
            4,
        ),
        ("./primus-cli slurm srun -N 8 -- train pretrain --config exp.yaml\n", 64, 2),
        ("export NNODES=2\nEXP=exp.yaml bash examples/run_pretrain.sh\n", 16, 2),
        ("./primus-cli container -- train pretrain --config exp.yaml\n", None, 2),
    ],
)
def test_scripts_say_nodes_and_keys(
    tmp_path: Path, script: str, n_devices: int | None, mbs: int
) -> None:
    run = read(tmp_path, script="#!/bin/bash\n" + script)
    assert (run.framework, run.n_devices, run.layout["mbs"]) == ("primus", n_devices, mbs)
    assert run.layout["n_devices"] == (n_devices or 16)


def test_a_script_that_names_no_experiment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="starts Primus without an experiment"):
        read(tmp_path, script='./primus-cli direct -- train pretrain --config "$1"\n')


def test_a_script_without_its_experiment_is_refused(tmp_path: Path) -> None:
    script = "./primus-cli direct -- train pretrain --config other.yaml\n"
    with pytest.raises(SpecError, match=r"other\.yaml, which cannot be read"):
        read(tmp_path, script=script)


@pytest.mark.parametrize(
    ("more", "layers"),
    [
        ("", 16),
        ("      recompute_layer_ids: [0, 3, 5]\n", 3),
        ("      recompute_layer_ids: '0,3,5,7,11'\n      pipeline_model_parallel_size: 4\n", 2),
    ],
)
def test_layers_that_are_recomputed_one_by_one(
    more: str, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = judged(EXPERIMENT + "      recompute_granularity: full\n" + more, monkeypatch)
    assert not [one for one in report.refusals if one.rule.code == "PRM635"]
    assert report.plan is not None
    x = report.plan.layout
    assert (x.recompute, x.recompute_layers) == ("full", layers)
    assert report.partial == (x.pp > 1)


REFUSED = [
    ("      enable_primus_turbo: true\n      turbo_sync_free_moe_stage: 2\n", "PRM622"),
    (DEEPEP + "      moe_shared_expert_overlap: true\n", "PRM624"),
    (DEEPEP.replace("      use", "      moe_router_dtype: fp64\n      use"), "PRM625"),
    ("      recompute_layer_ids: [0, 99]\n      recompute_granularity: full\n", "PRM635"),
]


@pytest.mark.parametrize(("more", "code"), REFUSED)
def test_what_primus_refuses_is_told_by_its_rule(
    more: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        EXPERIMENT.replace("      moe_router_dtype: fp32\n", "") if "fp64" in more else EXPERIMENT
    )
    report = judged(text + more, monkeypatch)
    assert [one.rule.code for one in report.refusals] == [code]


def judged(text: str, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)
    monkeypatch.setattr("planner.analyze.check.check.best_changes", lambda *_: ())
    cluster = load_cluster("16xmi300x").document
    return check(Content(text, name="exp.yaml"), cluster, files={})


def test_a_run_without_faults_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    report = judged(EXPERIMENT + DEEPEP, monkeypatch)
    assert report.refusals == ()
    assert report.plan is not None


def test_nvidia_is_not_its_vendor() -> None:
    plan = planner.solve("llama3-8b", "8xmi300x", framework="primus", top=1).plans[0]
    model = load_model("llama3-8b")
    assert why_not("primus", plan.layout, model.shape, model.job, "AMD") is None
    assert "accelerator of NVIDIA" in str(
        why_not("primus", plan.layout, model.shape, model.job, "NVIDIA")
    )
    pool = load_cluster("h100-x8").cluster.pools[0]
    files = emit_plan("primus", EmitRequest(plan.layout, model.shape, model.job, pool))
    assert list(files) == ["primus.txt"]


def test_a_change_of_plan_is_said_in_its_keys() -> None:
    pins = {"tp": 1, "ep": 8, "dispatcher": "alltoall", "zero": 1}
    model, cluster = load_model("mixtral-8x7b"), load_cluster("8xmi300x")
    problem = make_problem(model, cluster, SolveOptions(framework="primus"))
    old, new = (
        planner.evaluate("mixtral-8x7b", "8xmi300x", pins={**pins, **more}).plans[0].layout
        for more in ({}, {"recompute": "full"})
    )
    new, pool = replace(new, switches=(("dispatcher", "deepep"),)), cluster.cluster.pools[0]
    files = emit_plan("primus", EmitRequest(old, model.shape, model.job, pool))
    (content,) = [text for name, text in files.items() if name == "primus.yaml"]
    run = read_run(Content(content, name="primus.yaml"), RunQuery(n_devices=8, beside={}))
    changes = changed_settings(run, old, new, problem)
    assert changes["use_turbo_deepep"] == "true"
    assert changes["recompute_granularity"] == "full"
    assert not any(key.startswith("--") for key in changes)
