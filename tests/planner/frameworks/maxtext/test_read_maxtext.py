from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodels.examples import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL_8X7B
from costmodels.shapes import ModelShape
from planner.analyze.check.verdict import describe, judge
from planner.errors import SpecError
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.maxtext.command import slice_devices
from planner.frameworks.maxtext.tables import faults
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run, run_of_text
from tests.planner.emitting import HEADER, JOB, layout
from tests.planner.frameworks.maxtext.test_emit_maxtext import tpus

XPK = """#!/bin/bash
export BASE_OUTPUT_DIR=gs://bucket
MAXTEXT_ARGS="\\
model_name=llama3.1-70b \\
per_device_batch_size=2 \\
remat_policy=custom context=device query_proj=device key_proj=device value_proj=device \\
ici_fsdp_parallelism=-1 \\
max_target_length=8192 \\
quantization=fp8_full \\
weight_quantization_calibration_method='fixed,-224,224' \\
base_output_directory=${BASE_OUTPUT_DIR}"
xpk workload create --cluster=$CLUSTER --device-type=tpu7x-4x4x4 --num-slices=2 \\
  --command="set -e && export LIBTPU_INIT_ARGS='--xla_x=1' && \\
python3 -m maxtext.trainers.pre_train.train maxtext/configs/base.yml ${MAXTEXT_ARGS} | tee log"
"""
JOBSET = """apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec:
  replicatedJobs:
  - replicas: 1
    template:
      nodeSelector:
        cloud.google.com/gke-tpu-accelerator: tpu-v5p-slice
        cloud.google.com/gke-tpu-topology: 4x4x8
      command:
      - |
        echo "python3 -m MaxText.train MaxText/configs/base.yml model_name=none"
        (export A=1 && python3 -m MaxText.train base.yml model_name=deepseek3-671b \
per_device_batch_size=8.0 max_target_length=4096 ici_fsdp_parallelism=-1 remat_policy=full \
fsdp_shard_on_exp=True) & PID=$!;
"""


def run_of(text: str, name: str = "run.sh", **query: Any) -> ExistingRun:
    return run_of_text(text, name, RunQuery(**query))


def command(words: str, **query: Any) -> ExistingRun:
    start = "python3 -m maxtext.trainers.pre_train.train base.yml"
    return run_of(f"#!/bin/bash\n{start} {words}\n", **query)


def refused(run: ExistingRun) -> list[str]:
    model, _ = describe(run, None)
    return [one.rule.code for one in judge(run, model, tpus().accelerator, "0.2.5").refused]


def fields(run: ExistingRun, *names: str) -> tuple[Any, ...]:
    return tuple(run.layout.get(name) for name in names)


def test_a_script_of_xpk() -> None:
    run = run_of(XPK)
    assert run.framework == "maxtext"
    assert run.n_devices == 256  # two slices of 64 chips of two devices
    assert fields(run, "dp", "dp_shard", "zero", "mbs", "gbs") == (256, 128, 3, 2, 512)
    assert fields(run, "recompute", "recompute_modules") == ("selective", ("mlp",))
    assert run.job["precision"] == "fp8-tensorwise"
    assert run.settings["weight_quantization_calibration_method"] == "fixed,-224,224"
    model, _ = describe(run, None)
    assert model is not None
    assert (model.shape.layers, model.shape.hidden, model.shape.kv_heads) == (80, 8192, 8)
    assert refused(run) == []


def test_a_jobset() -> None:
    run = run_of(JOBSET, "job.yaml")
    assert run.n_devices == 128
    assert run.settings["model_name"] == "deepseek3-671b"
    assert fields(run, "dp", "mbs", "recompute") == (128, 8, "full")
    assert [doubt.what for doubt in run.doubts] == ["fsdp_shard_on_exp"]
    model, _ = describe(run, None)
    assert model is not None
    assert (model.shape.n_experts, model.shape.dense_layers, model.shape.kv_rank) == (256, 3, 512)
    assert refused(run) == []


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("v5p-256", 128),
        ("v4-128", 64),
        ("v6e-256", 256),
        ("v5litepod-16", 16),
        ("tpu7x-128", 128),
        ("tpu7x-4x4x4", 128),
        ("h100-8", None),
    ],
)
def test_devices_of_a_slice(name: str, devices: int | None) -> None:
    assert slice_devices(name) == devices


def test_words_win_over_files_that_extend_files(tmp_path: Path) -> None:
    (tmp_path / "below.yml").write_text("base_config: base.yml\nici_tensor_parallelism: 4\n")
    own = "base_config: below.yml\nper_device_batch_size: 1\nici_fsdp_parallelism: 4\n"
    (tmp_path / "own.yml").write_text(own)
    plain = read_run(str(tmp_path / "own.yml"), RunQuery(n_devices=16))
    assert fields(plain, "tp", "dp", "dp_shard", "mbs", "sp") == (4, 4, 4, 4, True)
    assert any("hidden width" in note for note in plain.notes)
    script = tmp_path / "run.sh"
    script.write_text("python3 MaxText/train.py own.yml ici_tensor_parallelism=2 steps=3\n")
    run = read_run(str(script), RunQuery(n_devices=8))
    assert fields(run, "tp", "dp", "mbs") == (2, 4, 2)
    changed = RunQuery(n_devices=4, sets=(("ici_tensor_parallelism", 1),))
    assert fields(read_run(str(script), changed), "tp", "dp") == (1, 4)
    script.write_text("python3 -m MaxText.train lost.yml steps=3\n")
    with pytest.raises(SpecError, match=r"lost\.yml"):
        read_run(str(script), RunQuery())


RING_OF_LATENTS = (
    "model_name=deepseek2-16b ici_context_parallelism=2 context_parallel_strategy=ring"
    " use_tokamax_splash=true attention=flash"
)
PLANS: Mapping[str, tuple[ModelShape, dict[str, Any]]] = {
    "fsdp": (LLAMA3_8B, {"zero": 3}),
    "replicas": (LLAMA3_8B, {"zero": 3, "shard": 4, "mbs": 2}),
    "zero 1": (LLAMA3_8B, {"zero": 1}),
    "zero 0": (LLAMA3_8B, {"zero": 0}),
    "tensor": (LLAMA3_8B, {"zero": 3, "tp": 4, "sp": True}),
    "ring": (LLAMA3_8B, {"zero": 3, "cp": 2, "dp": 4, "cp_comm": "p2p"}),
    "heads": (LLAMA3_8B, {"zero": 3, "cp": 2, "dp": 4, "cp_comm": "a2a"}),
    "full": (LLAMA3_8B, {"zero": 3, "recompute": "full", "recompute_layers": 32}),
    "moved": (
        LLAMA3_8B,
        {
            "zero": 3,
            "recompute": "full",
            "recompute_layers": 32,
            "activation_offload_layers": 32,
        },
    ),
    "modules": (
        LLAMA3_8B,
        {
            "zero": 3,
            "recompute": "selective",
            "recompute_layers": 0,
            "recompute_modules": ("core_attn", "mlp"),
        },
    ),
    "nothing again": (LLAMA3_8B, {"zero": 3, "recompute": "none", "recompute_layers": 0}),
    "experts": (MIXTRAL_8X7B, {"zero": 3, "ep": 2, "tp": 2, "etp": 2, "sp": True}),
    "latent": (DEEPSEEK_V3, {"zero": 3, "ep": 4, "n_devices": 64, "dp": 64}),
    "latent ring": (
        replace(DEEPSEEK_V3, mtp_layers=0),
        {"zero": 3, "ep": 4, "cp": 2, "cp_comm": "p2p", "n_devices": 64, "dp": 32},
    ),
    "slices": (LLAMA3_8B, {"zero": 3, "n_devices": 64, "dp": 64, "shard": 16}),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_read_back(name: str, tmp_path: Path) -> None:
    shape, changes = PLANS[name]
    plan = layout(shape, **{"recompute": "full", "recompute_layers": shape.layers} | changes)
    files = emit_plan("maxtext", EmitRequest(plan, shape, JOB, tpus(8), HEADER))
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    for file in ("maxtext.yml", "maxtext.sh"):
        run = read_run(str(tmp_path / file), RunQuery(n_devices=plan.n_devices))
        for field, value in run.layout.items():
            if field not in ("counts", "n_micro"):
                assert value == getattr(plan, field), field
        assert run.layout["n_micro"] == plan.n_micro
        assert run.job["seq_len"] == JOB.seq_len
        model, why = describe(run, None)
        assert model is not None, why
        same = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "n_experts")
        same += ("top_k", "expert_ffn", "shared_ffn", "dense_layers", "q_rank", "kv_rank")
        for field in same:
            assert getattr(model.shape, field) == getattr(shape, field), field
        assert refused(run) == []
        assert run.unknown == ()


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        ("ici_tensor_paralellism=2", ["MXT120"]),
        ("ici_fsdp_parallelism=many", ["MXT121"]),
        ("opt_type=adamx", ["MXT121"]),
        ("ici_tensor_parallelism=-1", ["MXT122"]),
        ("ici_fsdp_parallelism=3 ici_tensor_parallelism=4 dcn_data_parallelism=1", ["MXT123"]),
        ("ici_context_parallelism=2 context_parallel_strategy=ring", ["MXT124"]),
        (RING_OF_LATENTS, ["MXT124"]),
        (f"{RING_OF_LATENTS} packing=false", []),
        ("ici_context_parallelism=2 context_parallel_strategy=ulysses", ["MXT125"]),
        ("ici_pipeline_parallelism=4 num_layers_per_pipeline_stage=3", ["MXT220"]),
        ("shard_optimizer_over_data=true ici_fsdp_parallelism=8", ["MXT420"]),
        ("quantization=fp8 gradient_accumulation_steps=2", ["MXT520"]),
        ("model_name=llama3-8b base_emb_dim=2048", ["MXT121"]),
        ("ici_tensor_parallelism=32", ["MXT103"]),
        ("model_name=llama3-8b override_model_config=true base_emb_dim=2048", []),
        ("model_name=llama3-8b base_emb_dim=4096", []),
        ("ici_pipeline_parallelism=4 num_layers_per_pipeline_stage=2", []),
        ("enable_checkpointing=False dtype=bfloat16 steps=1e3", []),
    ],
)
def test_what_maxtext_refuses_is_refused_by_its_rule(words: str, codes: list[str]) -> None:
    assert refused(command(words, n_devices=64)) == codes


def test_a_model_that_is_not_read_is_asked_for() -> None:
    run = command("model_name=gpt-oss-120b ici_fsdp_parallelism=64", n_devices=64)
    assert run.model is None
    assert any("decoder block gpt_oss" in note for note in run.notes)
    scaled = command("global_parameter_scale=8", n_devices=64)
    model, _ = describe(scaled, None)
    assert model is not None
    assert (model.shape.hidden, model.shape.layers) == (4096, 32)


def test_kinds_of_values() -> None:
    assert faults({"steps": "10", "enable_checkpointing": "False", "learning_rate": "1e-4"}) == ()
    assert len(faults({"steps": 1.5, "enable_checkpointing": "maybe", "dtype": "x"})) == 3


def test_pipelines_and_policies_are_told() -> None:
    run = command("ici_pipeline_parallelism=4 remat_policy=minimal_offloaded", n_devices=64)
    assert fields(run, "pp", "schedule", "n_micro") == (4, "gpipe", 4)
    assert any("gpipe" in note for note in run.notes)
    assert any("minimal_offloaded" in note for note in run.notes)
    kept = replace(RunQuery(), n_devices=64)
    assert run_of_text(XPK, "x.sh", kept).layout["recompute"] == "selective"


def test_numbers_with_underscores_and_files_of_maxdiffusion() -> None:
    text = "base_emb_dim: 4_096\nvocab_size: 128_256\nici_fsdp_parallelism: 8\n"
    run = run_of(text, "own.yml", n_devices=8)
    model, _ = describe(run, None)
    assert model is not None
    assert (model.shape.hidden, model.shape.vocab) == (4096, 128256)
    with pytest.raises(SpecError):
        run_of(f"{text}pretrained_model_name_or_path: wan\nremat_policy: full\n", "own.yml")
