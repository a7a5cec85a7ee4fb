import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodels.examples import LLAMA3_8B, LLAMA3_70B
from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.fsdp2.emitter import accelerate_files
from tests.planner.emitting import HEADER, JOB, golden, layout, pool


def emitted(
    shape: ModelShape = LLAMA3_8B, job: TrainingJob = JOB, **changes: Any
) -> dict[str, str]:
    changes.setdefault("zero", 3)
    return accelerate_files(EmitRequest(layout(shape, **changes), shape, job, pool(), HEADER))


def config(**changes: Any) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(emitted(**changes)["accelerate.yaml"])
    return read


def trainer(**changes: Any) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(emitted(**changes)["trainer_args.json"])
    return read


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("llama3-8b-fsdp2", emitted(recompute="full", recompute_layers=32)),
        (
            "llama3-70b-fsdp2-hsdp",
            emitted(LLAMA3_70B, n_devices=64, cp=2, dp=32, shard=16, cp_comm="p2p", zero=2),
        ),
    ],
)
def test_golden(name: str, files: dict[str, str]) -> None:
    programs = ["fsdp2_train.py", "hf_training.py"]
    rest = ["model_config.json", "trainer_args.json"]
    assert sorted(files) == sorted(["accelerate.sh", "accelerate.yaml", *programs, *rest])
    for file, text in files.items():
        if file not in programs:
            golden(f"{name}-{file}", text)


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, (1, 8, 1, 1)),
        ({"shard": 4}, (2, 4, 1, 1)),
        ({"cp": 2, "dp": 4, "cp_comm": "all-gather"}, (1, 4, 1, 2)),
        ({"cp": 2, "dp": 4, "cp_comm": "all-gather", "shard": 4}, (2, 2, 1, 2)),
        ({"tp": 2}, (1, 4, 2, 1)),
    ],
)
def test_sizes_multiply_to_the_processes(
    changes: dict[str, Any], sizes: tuple[int, int, int, int]
) -> None:
    got = config(**changes)
    block = got["parallelism_config"]
    names = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")
    assert tuple(block[f"parallelism_config_{name}"] for name in names) == sizes
    assert sizes[0] * sizes[1] * sizes[2] * sizes[3] == got["num_processes"] == 8
    assert "use_parallelism_config" not in got  # no key of the file: the block switches it on


def test_exchange_of_keys_and_values() -> None:
    key = "parallelism_config_cp_comm_strategy"
    for kind, word in (("all-gather", "allgather"), ("p2p", "alltoall")):
        assert config(cp=2, dp=4, cp_comm=kind)["parallelism_config"][key] == word
    assert key not in config()["parallelism_config"]


@pytest.mark.parametrize(("zero", "reshard"), [(2, False), (3, True)])
def test_zero_is_when_weights_are_freed(zero: int, reshard: bool) -> None:
    block = config(zero=zero)["fsdp_config"]
    assert block["fsdp_version"] == 2
    assert block["fsdp_reshard_after_forward"] is reshard
    assert not {"fsdp_sharding_strategy", "fsdp_backward_prefetch"} & set(block)  # of FSDP1


def test_recomputation_is_of_all_layers_or_none() -> None:
    for k, on in ((32, True), (0, False)):
        block = config(recompute="full", recompute_layers=k)["fsdp_config"]
        assert block["fsdp_activation_checkpointing"] is on
    assert trainer(recompute="full", recompute_layers=32)["gradient_checkpointing"] is False


@pytest.mark.parametrize(
    ("precision", "word", "flags"),
    [
        ("bf16", "bf16", (True, False)),
        ("fp16", "fp16", (False, True)),
        ("fp32", "no", (False,) * 2),
    ],
)
def test_precision(precision: str, word: str, flags: tuple[bool, bool]) -> None:
    job = replace(JOB, precision=precision)
    assert config(job=job)["mixed_precision"] == word
    got = trainer(job=job)
    assert (got["bf16"], got["fp16"]) == flags
    assert got.get("tf32", False) == (precision == "fp32")


def test_batch_goes_to_the_trainer() -> None:
    got = trainer(mbs=4)
    assert (got["per_device_train_batch_size"], got["gradient_accumulation_steps"]) == (4, 4)
    each = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    assert got["accelerator_config"] == each
    assert "accelerator_config" not in trainer(mbs=16)


def test_launcher_starts_one_of_the_nodes(tmp_path: Path) -> None:
    fake = tmp_path / "accelerate"
    fake.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    (tmp_path / "accelerate.sh").write_text(emitted(n_devices=16)["accelerate.sh"])
    done = subprocess.run(
        ["bash", str(tmp_path / "accelerate.sh"), "--mine"],
        env={
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "SLURM_NODEID": "1",
            "MASTER_ADDR": "head",
            "TRAIN_SCRIPT": "my train.py",
        },
        check=True,
        capture_output=True,
        text=True,
    )
    words = done.stdout.splitlines()
    assert words[:3] == ["launch", "--config_file", str(tmp_path / "accelerate.yaml")]
    assert words[words.index("--machine_rank") + 1] == "1"
    args = str(tmp_path / "trainer_args.json")
    rest = ["--trainer-args", args, "--seq-length", "8192", "--mine"]
    assert words[words.index("my train.py") + 1 :] == rest
