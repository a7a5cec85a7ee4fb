"""Recipes of NeMo AutoModel as `planner check` reads them."""

from pathlib import Path
from typing import Any

import pytest

from planner.analyze.check.verdict import describe, judge
from planner.errors import SpecError
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run, run_of_text
from planner.solver.sources import read_inputs
from tests.planner.emitting import pool

HEAD = """# To run: torchrun --nproc-per-node 8 -m nemo_automodel.cli.app this.yaml
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler:
  global_batch_size: 512
  local_batch_size: 8
  max_steps: 10
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config
  config:
    _target_: transformers.AutoConfig.from_pretrained
    pretrained_model_name_or_path: deepseek-ai/DeepSeek-V3
loss_fn:
  _target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy
"""
PIPELINE = """
  pipeline:
    pp_microbatch_size: 1
    pp_schedule: interleaved1f1b
    round_virtual_stages_to_pp_multiple: down
    layers_per_stage: 2
"""


def run_of(text: str, **query: Any) -> ExistingRun:
    return run_of_text(text, "recipe.yaml", RunQuery(**query))


def sized(distributed: str, more: str = "", **query: Any) -> ExistingRun:
    lines = [f"  {word.replace('=', ': ')}" for word in distributed.split()]
    return run_of("\n".join([HEAD, "distributed:", *lines, more]), **query)


def refused(run: ExistingRun) -> list[str]:
    model, _ = describe(run, None)
    return [one.rule.code for one in judge(run, model, pool().accelerator, "0.7.0").refused]


def fields(run: ExistingRun, *names: str) -> tuple[Any, ...]:
    return tuple(run.layout.get(name) for name in names)


def test_the_mesh_of_a_recipe_with_experts_and_a_pipeline() -> None:
    model, _ = read_inputs("deepseek-v3", "h100-x512")
    run = sized("dp_size=16 tp_size=1 pp_size=8 ep_size=16", PIPELINE, model=model)
    assert (run.framework, run.n_devices) == ("automodel", 128)
    assert fields(run, "tp", "pp", "dp", "ep", "etp", "cp") == (1, 8, 16, 16, 1, 1)
    assert fields(run, "mbs", "gbs", "n_micro") == (1, 512, 32)
    # 61 layers in stages of 2 are 31, 24 in whole rounds of 8.
    assert fields(run, "schedule", "vpp") == ("interleaved", 3)
    assert run.layout["counts"] == (3,) * 13 + (2,) * 11
    assert fields(run, "zero", "dp_shard") == (1, 16)


@pytest.mark.parametrize(
    ("distributed", "zero", "shard"),
    [
        ("dp_size=none", 3, 8),
        ("reshard_after_forward=false", 2, 8),
        ("ep_size=8", 2, 8),
        ("ep_size=8 reshard_after_forward=true", 3, 8),
        ("dp_size=8 dp_replicate_size=2", 3, 4),
        ("cp_size=2", 3, 8),
        ("strategy=ddp", 0, None),
        ("strategy=megatron_fsdp zero_dp_strategy=1", 1, 8),
        ("tp_size=8", 0, None),
    ],
)
def test_sharding(distributed: str, zero: int, shard: int | None) -> None:
    assert fields(sized(distributed, n_devices=8), "zero", "dp_shard") == (zero, shard)


@pytest.mark.parametrize(
    ("word", "kind"),
    [("true", "full"), ("full", "full"), ("selective", "none"), ("off", "none"), ("null", "none")],
)
def test_recomputation(word: str, kind: str) -> None:
    run = sized(f"activation_checkpointing={word}", n_devices=8)
    assert run.layout["recompute"] == kind
    assert any("selective" in note for note in run.notes) == (word == "selective")


@pytest.mark.parametrize(
    ("more", "precision"),
    [
        ("optimizer: {_target_: torch.optim.Adam}", "bf16-true"),
        ("optimizer: {_target_: transformer_engine.pytorch.optimizers.FusedAdam}", "bf16"),
        ("peft: {dim: 8}", "bf16"),
        ("fp8: {enabled: true, recipe_name: rowwise}", "fp8-rowwise"),
    ],
)
def test_precision(more: str, precision: str) -> None:
    assert sized("tp_size=1", more, n_devices=8).job["precision"] == precision


def test_weights_in_fp32_are_a_master_copy() -> None:
    text = HEAD.replace("model:\n", "model:\n  torch_dtype: float32\n")
    run = run_of(f"{text}distributed:\n  tp_size: 1\n", n_devices=8)
    assert run.job["precision"] == "bf16"


def test_adapters() -> None:
    more = (
        "peft:\n  _target_: nemo_automodel.components._peft.lora.PeftConfig\n"
        '  target_modules: ["*q_proj", "*v_proj"]\n  dim: 16\n  alpha: 32\n'
    )
    run = sized("tp_size=1", more, n_devices=8)
    assert run.job["task"] == "lora"
    assert run.job["lora"]["targets"] == ["q", "v"]
    assert (run.job["lora"]["rank"], run.job["lora"]["base"]) == (16, "bf16")
    four = sized("tp_size=1", f"{more}quantization: {{load_in_4bit: true}}", n_devices=8)
    assert (four.job["task"], four.job["lora"]["base"]) == ("qlora", "nf4")


@pytest.mark.parametrize(
    ("distributed", "more", "code"),
    [
        ("tensor_size=2", "", "NAM120"),
        ("tp_size=two", "", "NAM121"),
        ("strategy=fsdp1", "", "NAM122"),
        ("activation_checkpointing=some", "", "NAM122"),
        ("dp_size=8 dp_replicate_size=8", "", "NAM123"),
        ("strategy=ddp cp_size=2", "", "NAM124"),
        ("dp_size=24", "", "NAM125"),
        ("pp_size=4", "", "NAM220"),
        ("pp_size=4", PIPELINE.replace("interleaved1f1b", "interleaved_1f1b"), "NAM122"),
        ("tp_size=2 ep_size=4 sequence_parallel=true", "", "NAM320"),
    ],
)
def test_what_automodel_refuses_is_refused(distributed: str, more: str, code: str) -> None:
    assert code in refused(sized(distributed, more, n_devices=8))


@pytest.mark.parametrize(
    ("distributed", "more"),
    [
        ("dp_size=none tp_size=1 cp_size=1 sequence_parallel=false", ""),
        ("strategy=fsdp2 ep_size=8", "packed_sequence: {packed_sequence_size: 0}"),
        ("pp_size=2 ep_size=4", PIPELINE),
        ("tp_size=2 sequence_parallel=true", ""),
    ],
)
def test_what_it_accepts_is_accepted(distributed: str, more: str) -> None:
    run = sized(distributed, more, n_devices=8)
    assert (refused(run), run.unknown) == ([], ())


def test_settings_are_changed_by_hand() -> None:
    changes = (("distributed.tp_size", "4"), ("step_scheduler.local_batch_size", 2))
    run = sized("tp_size=1", n_devices=8, sets=changes)
    assert fields(run, "tp", "mbs") == (4, 2)


def test_a_script_starts_a_recipe_with_changes_of_its_own(tmp_path: Path) -> None:
    Path(tmp_path, "recipe.yaml").write_text(f"{HEAD}distributed:\n  tp_size: 1\n")
    words = "torchrun --nnodes 2 --nproc-per-node 8 -m nemo_automodel.cli.app recipe.yaml"
    script = Path(tmp_path, "run.sh")
    script.write_text(f"#!/bin/bash\n{words} --distributed.tp_size 2 --seed 1\n")
    run = read_run(str(script), RunQuery())
    assert (run.framework, run.n_devices) == ("automodel", 16)
    assert fields(run, "tp", "dp") == (2, 8)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("TrainFinetuneRecipeForNextTokenPrediction", "TrainDiffusionRecipe", "not modelled"),
        ("ForCausalLM.from_config", "ForSeq2SeqLM.from_config", "not modelled"),
    ],
)
def test_other_recipes_are_named(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        run_of(HEAD.replace(old, new) + "distributed:\n  tp_size: 1\n", n_devices=8)


def test_a_recipe_is_told_from_files_of_other_trainers() -> None:
    text = HEAD.replace("nemo_automodel.", "megatron.bridge.").replace("nemo_automodel", "x")
    with pytest.raises(SpecError):
        run_of(text + "optimizer: {lr: 1}\ntrain: {}\n", n_devices=8)
