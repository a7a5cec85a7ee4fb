"""The training programs that are emitted, run on two CPU ranks with data, checkpoints, resumption.

PLANNER_TORCH_PYTHON names an interpreter with torch, transformers, DeepSpeed and Accelerate.
"""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from tests.planner.emitting import HEADER, layout, pool

LIMIT_S = 400
NEEDS = {
    "deepspeed": "torch, transformers, deepspeed",
    "fsdp2": "torch, transformers, accelerate, datasets",
}
TINY = ModelShape("tiny", 2, 32, 2, 2, 16, 64, True, 128, False)
JOB = TrainingJob(seq_len=32, global_batch=4)


@cache
def python_with(modules: str) -> str:
    """An interpreter that has these modules; empty where there is none."""
    names = [name.strip() for name in modules.split(",")]
    code = (
        f"from importlib.util import find_spec as f; raise SystemExit(not all(map(f, {names!r})))"
    )
    for python in (os.environ.get("PLANNER_TORCH_PYTHON", ""), sys.executable):
        if python and subprocess.run([python, "-c", code], capture_output=True).returncode == 0:
            return python
    return ""


def started(framework: str, folder: Path, *words: str) -> str:
    """Return what a program on two ranks prints; the launcher gives its first words."""
    python = python_with(NEEDS[framework])
    if not python:
        pytest.skip(f"no interpreter with {NEEDS[framework]}")
    env = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "HF_HOME": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [python, "-m"]
    if framework == "deepspeed":
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += [str(folder / "deepspeed_train.py"), "--deepspeed_config"]
        command += [str(folder / "deepspeed.json")]
    else:
        command += ["accelerate.commands.launch", "--main_process_port", "0", "--config_file"]
        command += [str(folder / "accelerate.yaml"), str(folder / "fsdp2_train.py")]
        command += ["--trainer-args", str(folder / "trainer_args.json")]
    command += ["--seq-length", "32", "--cpu", *words]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def losses(output: str) -> dict[int, float]:
    """Return the loss by step."""
    found = re.findall(r"^iteration (\d+)/\d+ \| loss ([\d.]+) \|", output, re.M)
    return {int(step): float(loss) for step, loss in found}


@pytest.fixture(params=["deepspeed", "fsdp2"])
def emitted(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Write the files of a plan for two ranks and a flat file of tokens."""
    plan = layout(TINY, n_devices=2, gbs=4, zero={"deepspeed": 2, "fsdp2": 3}[request.param])
    for name, text in emit_plan(
        request.param, EmitRequest(plan, TINY, JOB, pool(), HEADER)
    ).items():
        (tmp_path / name).write_text(text)
    tokens = np.random.default_rng(0).integers(0, 128, 32 * 40 + 1, dtype=np.uint16)
    tokens.tofile(tmp_path / "tokens.bin")
    return request.param, tmp_path


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint(emitted: tuple[str, Path]) -> None:
    framework, folder = emitted
    words = ("--data", str(folder / "tokens.bin"))
    saved = (*words, "--save", str(folder / "saved"))
    whole = losses(started(framework, folder, *words, "--train-steps", "4"))
    assert sorted(whole) == [1, 2, 3, 4]
    assert all(abs(loss - np.log(128)) < 0.35 for loss in whole.values())
    first = losses(started(framework, folder, *saved, "--train-steps", "2"))
    second = started(framework, folder, *saved, "--train-steps", "4", "--resume")
    assert "goes on after step 2" in second
    assert first | losses(second) == whole


@pytest.mark.slow
def test_text_is_packed(emitted: tuple[str, Path]) -> None:
    framework, folder = emitted
    python = python_with("transformers, datasets, deepspeed, accelerate")
    if not python:
        pytest.skip("no interpreter with transformers and datasets")
    subprocess.run([python, "-c", _TOKENIZER], cwd=folder, check=True, capture_output=True)
    lines = [{"words": " ".join(f"w{(i + j) % 100}" for j in range(50))} for i in range(40)]
    (folder / "text.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("--data", str(folder / "text.jsonl"), "--tokenizer", str(folder / "tokenizer"))
    found = losses(
        started(framework, folder, *words, "--text-field", "words", "--train-steps", "2")
    )
    assert sorted(found) == [1, 2]
    assert all(abs(loss - np.log(128)) < 0.35 for loss in found.values())


_TOKENIZER = """
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(100)} | {"</s>": 100}, "</s>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained("tokenizer")
"""
