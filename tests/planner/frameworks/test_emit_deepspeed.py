import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodels.examples import LLAMA3_8B, LLAMA3_70B, MIXTRAL_8X7B
from costmodels.schedule.stages import stage_layers
from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.deepspeed.emitter import deepspeed_files
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from searches.frameworks.deepspeed.layouts import pipeline_partition
from tests.planner.emitting import HEADER, JOB, golden, layout, pool


def emitted(
    shape: ModelShape = LLAMA3_8B, job: TrainingJob = JOB, **changes: Any
) -> dict[str, str]:
    return emit_plan(
        "deepspeed", EmitRequest(layout(shape, **changes), shape, job, pool(), HEADER)
    )


def config(job: TrainingJob = JOB, **changes: Any) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(emitted(job=job, **changes)["deepspeed.json"])
    return read


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("llama3-8b-zero3", emitted(zero=3, recompute="full", recompute_layers=7)),
        ("llama3-70b-autotp", emitted(LLAMA3_70B, n_devices=64, tp=8, zero=1)),
        ("llama3-8b-pipeline", emitted(pp=4, recompute="full", recompute_layers=8)),
    ],
)
def test_golden(name: str, files: dict[str, str]) -> None:
    programs = ["deepspeed_train.py", "hf_training.py"]
    assert sorted(files) == ["deepspeed.json", "deepspeed.sh", *programs, "model_config.json"]
    for file, text in files.items():
        if file not in programs:
            golden(f"{name}-{file}", text)


def test_launcher_runs_the_users_script(tmp_path: Path) -> None:
    fake = tmp_path / "deepspeed"
    fake.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    file = tmp_path / "deepspeed.sh"
    file.write_text(emitted(n_devices=16, gbs=128)["deepspeed.sh"])
    env = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "TRAIN_SCRIPT": "my train.py",
        "HOSTFILE": "hosts",
    }
    done = subprocess.run(
        ["bash", str(file), "--mine"], check=True, capture_output=True, text=True, env=env
    )
    words = done.stdout.splitlines()
    assert words[:6] == ["--hostfile", "hosts", "--num_nodes", "2", "--num_gpus", "8"]
    assert words[words.index("my train.py") + 1 :][:3] == [
        "--deepspeed",
        "--deepspeed_config",
        str(tmp_path / "deepspeed.json"),
    ]
    assert words[-1] == "--mine"


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_and_batch(zero: int) -> None:
    got = config(zero=zero, mbs=2)
    assert got["zero_optimization"]["stage"] == zero
    sizes = [got[f"train_{x}"] for x in ("batch_size", "micro_batch_size_per_gpu")]
    assert [*sizes, got["gradient_accumulation_steps"]] == [128, 2, 8]
    assert ("stage3_prefetch_bucket_size" in got["zero_optimization"]) == (zero == 3)
    assert all(isinstance(value, int | bool) for value in got["zero_optimization"].values())


def test_autotp_gives_no_product_of_the_batch() -> None:
    got = config(tp=2)
    assert got["tensor_parallel"]["autotp_size"] == 2
    assert "train_batch_size" not in got
    assert got["gradient_accumulation_steps"] == 32
    assert "tensor_parallel" not in config()


@pytest.mark.parametrize(
    ("precision", "zero", "blocks", "accumulated", "wire"),
    [
        ("bf16", 1, {"bf16"}, "fp32", "fp32"),
        ("bf16", 3, {"bf16"}, "fp32", "fp32"),
        ("bf16-grads", 2, {"bf16"}, "bf16", "bf16"),
        ("bf16-grads", 0, {"bf16"}, None, "bf16"),
        ("fp16", 2, {"fp16"}, "fp32", "fp16"),
        ("fp16-grads", 0, {"fp16"}, None, "fp16"),
        ("fp32", 1, set(), "fp32", "fp32"),
    ],
)
def test_precision(
    precision: str, zero: int, blocks: set[str], accumulated: str | None, wire: str
) -> None:
    got = config(job=replace(JOB, precision=precision), zero=zero)
    assert {"bf16", "fp16"} & set(got) == blocks
    assert got.get("data_types", {}).get("grad_accum_dtype") == accumulated
    assert got["communication_data_type"] == wire


def test_recompute_that_the_json_cannot_say_goes_to_the_script() -> None:
    assert "activation_checkpointing" not in config()
    files = emitted(recompute="full", recompute_layers=5)
    assert "activation_checkpointing" in json.loads(files["deepspeed.json"])
    assert "--recompute full --recompute-layers 5" in files["deepspeed.sh"]
    assert "the first 5 layers; the script decides" in files["deepspeed.sh"]
    assert "--recompute" not in emitted()["deepspeed.sh"]


def test_pipeline_goes_to_the_script() -> None:
    files = emitted(pp=4)
    assert "--pipeline-stages 4 --partition-method type:block" in files["deepspeed.sh"]
    assert json.loads(files["deepspeed.json"])["zero_optimization"]["overlap_comm"] is False


def test_ulysses() -> None:
    plan = layout(cp=4, dp=2, cp_comm="a2a", zero=2)
    files = deepspeed_files(EmitRequest(plan, LLAMA3_8B, JOB, pool(), HEADER))
    got = json.loads(files["deepspeed.json"])
    assert got["sequence_parallel_size"] == 4
    assert "data_parallel_size" not in got  # ZeRO would shard over it alone
    assert got["seq_parallel_communication_data_type"] == got["communication_data_type"] == "fp32"
    sizes = [got[f"train_{x}"] for x in ("batch_size", "micro_batch_size_per_gpu")]
    assert [*sizes, got["gradient_accumulation_steps"]] == [128, 1, 64]
    assert "register_with_transformers" in files["deepspeed.sh"]


def test_experts_by_autoep() -> None:
    plan = layout(MIXTRAL_8X7B, ep=8, zero=2)
    files = deepspeed_files(EmitRequest(plan, MIXTRAL_8X7B, JOB, pool(), HEADER))
    got = json.loads(files["deepspeed.json"])
    assert got["expert_parallel"] == {"enabled": True, "autoep_size": 8}
    assert "expert_parallel" not in config()


@pytest.mark.parametrize(
    ("layers", "pp", "method"),
    [(32, 4, "type:block"), (30, 4, "uniform"), (126, 16, "uniform"), (80, 16, "")],
)
def test_partition_methods(layers: int, pp: int, method: str) -> None:
    split = "even" if layers % pp == 0 and method == "type:block" else "ends"
    plan = layout(n_devices=pp, pp=pp, stage_layers=stage_layers(layers, pp, 1, split))
    assert pipeline_partition(plan) == method


@pytest.mark.parametrize(
    ("changes", "precision", "part", "closest"),
    [
        ({"tp": 2, "sp": True}, "bf16", "sequence parallelism", "sp off"),
        ({"tp": 2, "pp": 2}, "bf16", "tp 2 with pp 2", "tp 1 or pp 1"),
        ({"pp": 2, "vpp": 2}, "bf16", "interleaved", "vpp 1"),
        ({"pp": 2, "zero": 2}, "bf16", "ZeRO-2", "zero 1"),
        ({"pp": 4, "stage_layers": (7, 9, 9, 7)}, "bf16", "stages of 7 to 9", "even split"),
        ({"pp": 4, "recompute": "full", "recompute_layers": 3}, "bf16", "recompute of 3", "all"),
        ({"n_devices": 16, "tp": 16}, "bf16", "8 KV heads", "tp 8"),
        ({"zero": 0}, "bf16", "precision bf16 with ZeRO-0", "bf16-grads"),
        ({"zero": 0}, "fp16", "precision fp16 with ZeRO-0", "fp16-grads"),
        ({"zero": 0, "pp": 2}, "bf16-grads", "ZeRO-0 in a pipeline", "zero 1"),
        ({"pp": 2, "schedule": "gpipe"}, "bf16", "schedule", "1f1b"),
        ({"pp": 2, "schedule": "zb-h1"}, "bf16", "schedule zb-h1", "1f1b"),
        ({"rank_order": "tp-cp-ep-pp-dp"}, "bf16", "rank order", "tp-cp-ep-dp-pp"),
    ],
)
def test_refusals_name_the_part_and_the_closest(
    changes: dict[str, Any], precision: str, part: str, closest: str
) -> None:
    files = emitted(job=replace(JOB, precision=precision), **changes)
    assert list(files) == ["deepspeed.txt"]
    text = files["deepspeed.txt"]
    assert text.startswith("DeepSpeed cannot run this plan.\nplan 0123456789ab")
    reasons = [line for line in text.splitlines() if line.startswith("- ")]
    assert len(reasons) == 1
    assert part in reasons[0]
    assert closest in reasons[0].split("closest:")[1]
