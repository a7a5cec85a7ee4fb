"""`planner check` on the command line: output, exit codes, options and one error a mistake."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.planner.command import run_here

SCRIPT = """#!/bin/bash
#SBATCH --nodes=1
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
MBS=${MBS:-1}
ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336  # Llama 3 8B
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 8192
    --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope
    --untie-embeddings-and-output-weights --bf16 --use-distributed-optimizer
    --tensor-model-parallel-size $TP --sequence-parallel
    --micro-batch-size $MBS --global-batch-size $((16 * GPUS_PER_NODE))
    --attention-dropout 0 --hidden-dropout 0 --vocab-size 128256 --mock-data
    --tokenizer-type NullTokenizer --train-iters 100 --eval-interval 100
)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes ${NNODES:-1} pretrain_gpt.py ${ARGS[@]}
"""
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "launch.sh").write_text(SCRIPT)
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    model = "model: # --num-layers 8\n  layers: 8  # --hidden-size, --num-attention-heads\n"
    (tmp_path / "model.yaml").write_text(model)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "run.sh").write_text(SCRIPT)
    return tmp_path


def planner(*words: str) -> subprocess.CompletedProcess[str]:
    return run_here(*words)


def check(*words: str) -> subprocess.CompletedProcess[str]:
    return planner("check", *words)


def test_accepted_and_fits(folder: Path) -> None:
    done = check("launch.sh", "h100-x8", "--env", "TP=4")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    for text in (
        "Megatron-LM accepts it",
        "fits: stage 0",
        "MFU",
        "against the best plan:",
        "rank ",
        "most valuable changes:",
        "write --",
    ):
        assert text in done.stdout
    again = check("launch.sh", "h100-x8", "--env", "TP=4")
    assert again.stdout == done.stdout


def test_json_and_what_does_not_fit(folder: Path) -> None:
    done = check("launch.sh", "h100-x8", "--env", "TP=1", "--env", "MBS=8", "--format", "json")
    assert (done.returncode, done.stderr) == (3, "")
    data = json.loads(done.stdout)
    assert (data["accepted"], data["fits"], data["framework"]) == (True, False, "megatron")
    assert data["changes"][0]["fits"] is True
    assert data["standing"]["rank"] is None


def test_refused(folder: Path) -> None:
    done = check("launch.sh", "h100-x8", "--env", "TP=3")
    assert done.returncode == 3
    assert "refuses it" in done.stdout
    assert "MLM1" in done.stdout


def test_settings_pins_and_the_model_of_a_file_without_one(folder: Path) -> None:
    done = check("launch.sh", "h100-x8", "--env", "TP=4", "--set", "micro_batch_size=2")
    assert (done.returncode, "mbs2" in done.stdout) == (0, True)
    done = check("ds.json", "h100-x8", "--model", "llama3-8b", "--pin", "pp=4,recompute=full")
    assert done.returncode == 0
    assert "pp4" in done.stdout


def test_its_model_can_be_imported_and_planned(folder: Path) -> None:
    done = planner("import", "model", "launch.sh", "--out", "made.yaml")
    assert done.returncode == 0
    assert "ffn: 14336" in (folder / "made.yaml").read_text()
    assert "32 layers" in planner("check-spec", "made.yaml").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none.sh", "h100-x8"), "none.sh: no such file"),
        (("folder", "h100-x8"), "name one of its files: run.sh"),
        (("launch.sh", "h100-x8"), "depends on TP, which nothing sets"),
        (("launch.sh", "h100-x9"), "h100-x9"),
        (("model.yaml", "h100-x8"), "is a model or cluster file, not a run"),
        (("launch.sh", "h100-x8", "--env", "TP"), "is not of the form NAME=VALUE"),
        (("launch.sh", "h100-x8", "--env", "TP=4", "--format", "csv"), "table or json"),
        (("launch.sh", "h100-x8", "--env", "TP=4", "--framework", "nemo"), "unknown framework"),
        (("launch.sh", "h100-x8", "--env", "TP=4", "--framework", "deepspeed"), "for megatron"),
        (("launch.sh", "h100-x8", "--env", "TP=4", "--set", "tp"), "PATH=VALUE"),
        (
            ("launch.sh", "h100-x8", "--env", "TP=4", "--set", "tensor_parallel=2"),
            "tensor_model_parallel_size",
        ),
        (("launch.sh", "h100-x8", "--env", "TP=4", "--pin", "pp=2"), "says its whole layout"),
        (("launch.sh", "h100-x8", "--env", "TP=4", "--version", "latest"), "is not a release"),
        (("ds.json", "h100-x8"), "--model"),
        (("ds.json", "h100-x8", "--model", "llama9"), "llama9"),
        (("ds.json", "h100-x8", "--model", "llama3-8b", "--pin", "xx=2"), "xx"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_one_error_a_mistake(folder: Path, words: tuple[str, ...], message: str) -> None:
    done = check(*words)
    assert (done.returncode in (1, 2), done.stdout) == (True, "")  # 2: a wrong option
    assert message in " ".join(done.stderr.split())
    assert done.stderr.count("error: ") == 1
    assert "fix: " in done.stderr or "no such file" in message
    assert "Traceback" not in done.stderr


def test_nothing_is_run(folder: Path) -> None:
    evil = SCRIPT.replace("$TP", "$(touch made; echo 4)") + "\ntouch made\n"
    (folder / "launch.sh").write_text(evil)
    done = check("launch.sh", "h100-x8")
    assert done.returncode == 1
    assert "touch made" in done.stderr
    assert not os.path.exists("made")


def test_a_command_line_in_place_of_a_file(folder: Path) -> None:
    """A script with its arguments, or the flags themselves, behind the cluster."""
    (folder / "sized.sh").write_text("export TP=$1 MBS=$2\n. ./launch.sh\n")
    command = ("--format", "json", "--", "bash", "sized.sh", "4", "2")
    done = run_here("check", "h100-x8", *command)
    report = json.loads(done.stdout)
    assert (done.returncode, report["source"]) == (0, "command line")
    assert (report["layout"]["tp"], report["layout"]["mbs"]) == (4, 2)


def test_a_script_without_its_arguments_says_how_to_give_them(folder: Path) -> None:
    (folder / "sized.sh").write_text("TP=$1\n. ./launch.sh\n")
    done = run_here("check", "sized.sh", "h100-x8")
    assert done.returncode == 1
    assert "-- bash sized.sh" in " ".join(done.stderr.split())
