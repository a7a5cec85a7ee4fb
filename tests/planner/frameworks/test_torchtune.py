"""Files of torchtune: written, refused, read back."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodels.data.lengths import SampleData
from costmodels.shapes import TrainingJob
from costmodels.tuning.records import TuningJob
from planner.errors import SpecError
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run
from planner.specs.loader import model_from_dict
from tests.planner.emitting import HEADER, golden, layout, pool
from tools.samples.tuned import MODELS, WIDER

MODEL = model_from_dict(
    {
        "model": {"name": "small", "gated": True, "tied": False, **WIDER},
        "training": {"seq_len": 2048, "global_batch": 128},
    }
)
ALL = ("q", "k", "v", "o", "gate", "up", "down")
LORA = TuningJob(16, ALL, 32.0, 0.05, "bf16")
JOB = TrainingJob(2048, 128, tuning=LORA)
FULL = {"recompute": "full", "recompute_layers": 4}


def files(
    job: TrainingJob = JOB, model: Any = MODEL, engine: str = "fsdp2", **changes: Any
) -> dict[str, str]:
    plan = layout(model.shape, **{"zero": 3, **changes})
    request = EmitRequest(plan, model.shape, job, pool(), HEADER, model.details, engine=engine)
    return emit_plan("torchtune", request)


def settings(job: TrainingJob = JOB, **changes: Any) -> Any:
    return yaml.safe_load(files(job, **changes)["torchtune.yaml"])


def test_golden() -> None:
    for name, text in files(**FULL).items():
        golden(f"small-{name}", text)


def test_recipes_and_what_starts_them() -> None:
    assert "tune run --nnodes 1 --nproc_per_node 8" in files()["torchtune.sh"]
    assert "  lora_finetune_distributed --config" in files()["torchtune.sh"]
    alone = files(zero=0, n_devices=1, dp=1)["torchtune.sh"]
    assert "  lora_finetune_single_device --config" in alone
    assert "nproc" not in alone
    full = replace(JOB, tuning=None, precision="fp32")
    assert "  full_finetune_distributed --config" in files(full)["torchtune.sh"]
    assert settings(full)["model"]["_component_"] == "torchtune.models.llama3.llama3"
    assert settings(full)["dtype"] == "fp32"
    assert settings(replace(full, precision="bf16-true"))["dtype"] == "bf16"


def test_sizes_adapters_and_batches() -> None:
    read = settings(mbs=2, zero=2, **FULL)
    model = read["model"]
    sizes = ("vocab_size", "num_layers", "num_heads", "num_kv_heads", "embed_dim")
    assert [model[name] for name in (*sizes, "intermediate_dim")] == [1024, 4, 8, 4, 256, 512]
    assert model["lora_attn_modules"] == ["q_proj", "k_proj", "v_proj", "output_proj"]
    assert (model["apply_lora_to_mlp"], model["quantize_base"]) == (True, False)
    assert read["batch_size"] * read["gradient_accumulation_steps"] * 8 == 128
    assert read["fsdp_reshard_after_forward"] is False
    assert read["enable_activation_checkpointing"] is True
    assert "fsdp_reshard_after_forward" not in settings(zero=0, n_devices=1, dp=1)
    of_q = replace(JOB, tuning=replace(LORA, targets=("q",), base="nf4"))
    model = settings(of_q, zero=0, n_devices=1, dp=1)["model"]
    assert model["lora_attn_modules"] == ["q_proj"]
    assert (model["apply_lora_to_mlp"], model["quantize_base"]) == (False, True)


@pytest.mark.parametrize(
    ("tuning", "changes", "word"),
    [
        ({"targets": ("gate", "up", "down")}, {}, "targets q and v"),
        ({"targets": ("q", "up")}, {}, "whole MLPs or none"),
        ({"base": "int8"}, {"zero": 0, "n_devices": 1, "dp": 1}, "base nf4"),
        ({"base": "nf4"}, {}, "fewer devices"),  # 256 * 128 weights of k over 8 ranks
        ({}, {"zero": 0}, "zero 3 or 2"),
        ({}, {"engine": "deepspeed"}, "--framework fsdp2"),
        ({}, {"shard": 4}, "dp_shard of all ranks"),
    ],
)
def test_what_no_recipe_says(tuning: dict[str, Any], changes: dict[str, Any], word: str) -> None:
    found = files(replace(JOB, tuning=replace(LORA, **tuning)), **changes)
    assert list(found) == ["torchtune.txt"]
    assert word in found["torchtune.txt"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"precision": "fp16"}, "precision bf16"),
        ({"tuning": None}, "precision bf16-true or precision fp32"),
        ({"precision": "bf16-true"}, "precision bf16"),
        ({"optimizer": "adam-8bit"}, "optimizer adam"),
        ({"has_reference": True}, "pairs of answers"),
        ({"data": SampleData("unmasked", 300.0, 1e5, 0.9)}, "masked or none"),
    ],
)
def test_jobs_that_no_recipe_says(changes: dict[str, Any], word: str) -> None:
    assert word in files(replace(JOB, **changes))["torchtune.txt"]


@pytest.mark.parametrize("name", ["tied", "starcoder", "qwen", "experts", "latent"])
def test_models_without_a_builder(name: str) -> None:
    document = {"model": {"name": "m", **MODELS[name]}, "training": JOB_FIELDS}
    job = replace(JOB, tuning=replace(LORA, targets=("q_up", "o") if name == "latent" else ("q",)))
    assert "as those of Llama" in files(job, model_from_dict(document))["torchtune.txt"]


JOB_FIELDS = {"seq_len": 2048, "global_batch": 128}


def read(tmp_path: Path, name: str, **texts: str) -> Any:
    for other, text in texts.items():
        (tmp_path / other).write_text(text)
    return read_run(str(tmp_path / name), RunQuery(MODEL, n_devices=8))


@pytest.mark.parametrize("name", ["torchtune.yaml", "torchtune.sh"])
def test_files_are_read_back(name: str, tmp_path: Path) -> None:
    run = read(tmp_path, name, **files(mbs=2, **FULL))
    assert (run.layout["mbs"], run.layout["gbs"], run.layout["zero"]) == (2, 128, 3)
    assert (run.n_devices or 8, run.layout["dp_shard"], run.layout["recompute"]) == (8, 8, "full")
    lora = run.job["lora"]
    assert (lora["rank"], lora["alpha"], set(lora["targets"])) == (16, 32.0, set(ALL))
    assert run.job["task"] == "lora"


PUBLISHED = """
model: {_component_: torchtune.models.llama3_1.qlora_llama3_1_8b,
  lora_attn_modules: [q_proj, v_proj], apply_lora_to_mlp: %s, apply_lora_to_output: %s}
tokenizer: {path: a, max_seq_len: null}
checkpointer: {checkpoint_dir: b}
dataset: {packed: True}
optimizer: {_component_: %s}
batch_size: %s
dtype: bf16
"""


def test_recipes_as_published(tmp_path: Path) -> None:
    text = PUBLISHED % ("False", "False", "bitsandbytes.optim.PagedAdamW8bit", 2)
    run = read(tmp_path, "a.yaml", **{"a.yaml": text})
    assert (run.job["task"], run.job["lora"]["base"]) == ("qlora", "nf4")
    assert (run.job["lora"]["rank"], run.job["lora"]["targets"]) == (8, ["q", "v"])
    assert run.layout["mbs"] == 2
    assert any("priced in fp32" in note for note in run.notes)
    script = "tune run --nproc_per_node 4 full_finetune_distributed --config a.yaml\n"
    full = text.replace("qlora_llama3_1_8b", "llama3_1_8b")
    run = read(tmp_path, "a.sh", **{"a.yaml": full, "a.sh": script})
    assert (run.n_devices, "lora" in run.job) == (4, False)
    script = "tune run lora_finetune_single_device --config a.yaml\n"
    run = read(tmp_path, "a.sh", **{"a.yaml": text, "a.sh": script})
    assert (run.n_devices, run.layout["zero"]) == (1, 0)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        (("False", "True", "x", 2), "apply_lora_to_output True is not read"),
        (("maybe", "False", "x", 2), r"model\.apply_lora_to_mlp: expected true or false"),
        (("False", "False", "x", "many"), "batch_size: expected a whole number"),
    ],
)
def test_recipes_that_are_not_read(values: tuple[Any, ...], word: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=word):
        read(tmp_path, "a.yaml", **{"a.yaml": PUBLISHED % values})


def test_launchers_are_sound_bash(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(files()["torchtune.sh"])
    done = subprocess.run(["bash", "-n", str(tmp_path / "a.sh")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
