"""Runs the files for TRL on the CPU: two steps of a tiny model, held against the plan."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from costmodels.parameters import total_params
from costmodels.tuning.model import model_adapter_params
from planner.specs.loader import model_from_dict
from tools.smoke.case import Case
from tools.smoke.run import n_devices, solve_command

HERE = Path(__file__).resolve().parent
LINE = "planner-tuned "
LOSS_TOLERANCE = 0.35
LIMIT_S = 400
TRAINING = {
    **{"seq_len": 128, "global_batch": 8, "precision": "bf16", "task": "lora"},
    "data": {"packing": "unmasked", "lengths": {"mean": 60, "p95": 100}},
}
DENSE = {
    **{"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128},
    **{"gated": True, "vocab": 512, "tied": False},
}


@dataclass(frozen=True)
class TunedCase:
    """One plan of one tiny job."""

    name: str
    pins: Mapping[str, object]
    training: Mapping[str, object] = field(default_factory=dict)

    @property
    def case(self) -> Case:
        """As `planner solve` takes it."""
        fields = {**TRAINING, **self.training}
        training = {key: value for key, value in fields.items() if value is not None}
        model = {"model": {"name": self.name, **DENSE}, "training": training}
        pins = {"devices": 2, "mbs": 1, "recompute": "none", **self.pins}
        return Case(self.name, "fsdp2", model, pins, self.name)


CASES = (
    TunedCase("lora-zero3", {"zero": 3, "recompute": "full"}, {"lora": {"rank": 8}}),
    TunedCase("lora-replicas", {"zero": 0, "recompute": "full"}, {"lora": {"targets": "q"}}),
    TunedCase("full-zero2", {"zero": 2}, {"task": "sft"}),
    TunedCase("dpo-zero3", {"zero": 3, "mbs": 2}, {"task": "dpo", "data": None}),
    TunedCase(
        "dpo-lora-precomputed", {"zero": 0, "mbs": 2}, {"reference": "precomputed", "data": None}
    ),
)


def wanted(case: TunedCase) -> dict[str, Any]:
    """Return what the first rank must hold: elements of its own and of the whole."""
    model = model_from_dict(case.case.model)
    total, tuning = round(total_params(model.shape, model.job.seq_len)), model.job.tuning
    trained = round(model_adapter_params(model.shape, tuning, 1.0)) if tuning else total
    n_shards = n_devices(case.case) if case.pins["zero"] else 1
    tokens = model.job.seq_len * model.job.global_batch
    beside = total if model.job.has_reference and not tuning else 0
    return {
        "trained": [trained // n_shards, trained],
        "frozen": [total // n_shards, total] if tuning else [0, 0],
        "reference": [beside // n_shards, beside],
        "tokens": [tokens, 2 * tokens],
        "world_size": n_devices(case.case),
    }


def run_tuned(case: TunedCase, python: str, folder: Path) -> list[str]:
    """Return what a job has otherwise than its plan, a line each; empty where all is well."""
    folder.mkdir(parents=True)
    command = solve_command([sys.executable, "-m", "planner"], case.case, folder)
    command[command.index("--emit") + 1] = "trl"
    solved = subprocess.run(command, capture_output=True, text=True)
    if solved.returncode:
        return [f"planner solve: {solved.stderr[-600:]}"]
    (place,) = (folder / "plans").iterdir()
    env = {
        **{name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ},
        "PATH": f"{launcher_folder(python, folder)}:{os.environ['PATH']}",
        "PYTHONPATH": str(HERE / "on_cpu"),
        "ACCELERATE_TORCH_DEVICE": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "MASTER_PORT": "0",
    }
    compares = model_from_dict(case.case.model).job.compares_answers
    words = [str(HERE / "tuned_data.py"), str(place / "model_config.json"), str(folder)]
    words += ["pairs"] * compares
    subprocess.run([python, *words], check=True, capture_output=True, timeout=LIMIT_S)
    words = ["--use_cpu", "true", "--max_steps", "2", "--report_to", "none"]
    words += ["--model_name_or_path", f"{folder}/model", "--dataset_name", f"{folder}/data"]
    words += ["--output_dir", f"{folder}/out", "--save_strategy", "no"]
    done = subprocess.run(
        ["bash", str(place / "trl.sh"), *words],
        capture_output=True,
        text=True,
        env=env,
        timeout=LIMIT_S,
    )
    said = next((x for x in done.stdout.splitlines() if x.startswith(LINE)), None)
    if done.returncode or said is None:
        return [f"exit {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"]
    first = math.log(2 if compares else DENSE["vocab"])
    return differences(wanted(case), json.loads(said.removeprefix(LINE)), first)


def launcher_folder(python: str, folder: Path) -> Path:
    """Return a folder with the command `accelerate` of the environment of the tools."""
    place = folder / "bin"
    place.mkdir()
    script = place / "accelerate"
    words = f'exec {python} -m accelerate.commands.launch "${{@:2}}"'
    script.write_text(f"#!/usr/bin/env bash\n{words}\n")
    script.chmod(0o755)
    return place


def differences(want: Mapping[str, Any], got: Mapping[str, Any], first: float) -> list[str]:
    """Return where a job is not the plan's; losses start near `first`."""
    lines = [f"{key}: {got[key]}, the plan says {x}" for key, x in want.items() if got[key] != x]
    losses = [float(x) for x in got["losses"]]
    good = len(losses) == 2 and all(map(math.isfinite, losses))
    if not good or abs(losses[0] - first) > LOSS_TOLERANCE:
        lines.append(f"losses {losses}: two are due, the first near {first:.2f}")
    return lines
