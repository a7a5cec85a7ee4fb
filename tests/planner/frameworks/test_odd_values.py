"""Odd values in files of tools that fine-tune: one error of ours, or a run; never a traceback."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from planner.analyze.check.check import check
from planner.analyze.check.verdict import describe
from planner.errors import PlannerError, SpecError
from planner.frameworks.finetuning.readings import READINGS
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run
from planner.specs.loader import model_from_dict
from tests.repeats import slow

MODEL = model_from_dict(
    {
        "model": {
            "name": "tiny",
            "vocab": 1024,
            "tied": False,
            **{"gated": True, "layers": 4, "hidden": 128, "heads": 8, "kv_heads": 2, "ffn": 256},
        },
        "training": {"seq_len": 2048, "global_batch": 128},
    }
)
ODD: tuple[Any, ...] = (
    None,
    "",
    "odd",
    "auto",
    0,
    -1,
    1.5,
    10**30,
    float("nan"),
    True,
    [],
    ["odd"],
    [None, {}],
    {},
    {"a": {"b": 1}},
)
BATCH = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}
FILES: dict[str, dict[str, Any]] = {
    "trl": {
        **{"model_name_or_path": "m", "dataset_name": "d", **BATCH, "max_length": 512},
        **{
            "use_peft": True,
            "lora_r": 8,
            "lora_alpha": 16,
            "lora_dropout": 0.1,
            "optim": "adamw_torch",
        },
        **{"lora_target_modules": ["q_proj"], "lora_target_parameters": None, "bf16": True},
        **{"load_in_4bit": True, "load_in_8bit": False, "use_bnb_nested_quant": True},
        **{"packing": True, "packing_strategy": "bfd", "gradient_checkpointing": True},
        **{"precompute_ref_log_probs": False, "stage": "sft", "deepspeed": None, "fp16": False},
    },
    "axolotl": {
        **{"base_model": "m", "micro_batch_size": 2, "gradient_accumulation_steps": 8},
        **{"sequence_len": 512, "adapter": "qlora", "load_in_4bit": True, "load_in_8bit": False},
        **{"lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.1, "lora_target_linear": True},
        **{"lora_target_modules": ["q_proj"], "lora_target_parameters": None, "rl": None},
        **{"bnb_config_kwargs": {"bnb_4bit_use_double_quant": True}, "sample_packing": True},
        **{"optimizer": "adamw_torch", "bf16": "auto", "fp16": False, "deepspeed": None},
        **{"gradient_checkpointing": True, "fsdp_version": 2, "dp_shard_size": 4},
        **{"dp_replicate_size": 2, "tensor_parallel_size": 1, "context_parallel_size": 1},
        "precompute_ref_log_probs": False,
        "fsdp_config": {
            **{"reshard_after_forward": True, "offload_params": False, "version": 2},
            **{"activation_checkpointing": True, "mixed_precision_policy": "bf16"},
            "sharding_strategy": "FULL_SHARD",
        },
    },
    "llama-factory": {
        **{"model_name_or_path": "m", "template": "x", "stage": "sft", **BATCH, "cutoff_len": 512},
        **{"finetuning_type": "lora", "lora_rank": 8, "lora_alpha": 16, "lora_dropout": 0.1},
        **{"lora_target": "all", "quantization_bit": 4, "double_quantization": True},
        **{"quantization_method": "bnb", "pref_loss": "sigmoid", "neat_packing": False},
        **{"packing": True, "disable_gradient_checkpointing": False, "optim": "adamw_torch"},
        **{"bf16": True, "fp16": False, "deepspeed": None},
    },
    "swift": {
        **{"model": "m", **BATCH, "max_length": 512, "tuner_type": "lora", "train_type": "lora"},
        **{"lora_rank": 8, "lora_alpha": 16, "lora_dropout": 0.1, "target_modules": "all-linear"},
        **{"target_parameters": None, "quant_method": "bnb", "quant_bits": 4, "fsdp": None},
        **{"bnb_4bit_use_double_quant": True, "packing": True, "rlhf_type": None, "bf16": True},
        **{"deepspeed": "zero2", "torch_dtype": "bfloat16", "gradient_checkpointing": True},
        **{"sequence_parallel_size": 1, "deepspeed_autotp_size": None, "fp16": False},
        **{"optim": "adamw_torch", "stage": "sft"},
    },
    "torchtune": {
        "model": {
            "_component_": "torchtune.models.llama3.lora_llama3",
            **{"lora_attn_modules": ["q_proj"], "apply_lora_to_mlp": True, "lora_rank": 8},
            **{"lora_alpha": 16, "lora_dropout": 0.1, "quantize_base": False},
            "apply_lora_to_output": False,
        },
        "tokenizer": {"_component_": "t", "max_seq_len": 512},
        "dataset": {"_component_": "d", "packed": True},
        "optimizer": {"_component_": "torch.optim.AdamW"},
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "checkpointer": {"_component_": "c"},
        **{"batch_size": 2, "gradient_accumulation_steps": 8, "dtype": "bf16"},
        **{"enable_activation_checkpointing": True, "enable_activation_offloading": False},
        **{"fsdp_reshard_after_forward": True, "fsdp_cpu_offload": False},
        "tensor_parallel_dim": 1,
    },
}


def read(folder: Path, text: object, **others: object) -> Any:
    """Return the run of a file, with the plan and the job that it says; an error of ours else."""
    for name, content in {"run.yaml": text, **others}.items():
        plain = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(plain)
    run = read_run(str(folder / "run.yaml"), RunQuery(MODEL, n_devices=8))
    describe(run, MODEL)
    return run


EVERY = [7, slow(1)]
"""Of the odd values: every seventh, so that the keys meet others of them; all in a slow test."""


def changed(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a file with each key, also those in sections, holding each odd value in turn."""
    for key, value in data.items():
        for odd in ODD:
            yield f"{key}: {odd!r}", {**data, key: odd}
        if isinstance(value, dict):
            for path, section in changed(value):
                yield f"{key}.{path}", {**data, key: section}


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("tool", FILES)
def test_odd_values_are_read_or_refused(tool: str, every: int, tmp_path: Path) -> None:
    assert read(tmp_path, FILES[tool]).job["lora"]["rank"] == 8
    n_refused, leaks = 0, []
    for path, data in islice(changed(FILES[tool]), 0, None, every):
        try:
            read(tmp_path, data)
        except PlannerError:
            n_refused += 1
        except Exception as error:  # what is looked for
            leaks.append(f"{path}: {error!r}")
    assert leaks == []
    assert n_refused * every > 5 * len(FILES[tool])


def test_each_tool_is_asked() -> None:
    assert set(FILES) == {one.name for one in READINGS}


LAUNCH: dict[str, Any] = {
    "distributed_type": "FSDP",
    "fsdp_config": {
        **{"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_offload_params": False},
        **{"fsdp_activation_checkpointing": True, "fsdp_sharding_strategy": "FULL_SHARD"},
    },
    "parallelism_config": {
        **{"parallelism_config_dp_shard_size": 8, "parallelism_config_tp_size": 1},
        **{"parallelism_config_cp_size": 1, "parallelism_config_sp_size": 1},
        "parallelism_config_dp_replicate_size": 1,
    },
    **{"mixed_precision": "bf16", "num_processes": 8, "num_machines": 1},
}
BLOCK: dict[str, Any] = {
    "distributed_type": "DEEPSPEED",
    "deepspeed_config": {
        **{"deepspeed_config_file": None, "zero_stage": 2, "gradient_accumulation_steps": 8},
        **{"offload_optimizer_device": "none", "offload_param_device": "none"},
    },
    "mixed_precision": "bf16",
}


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("launch", [LAUNCH, BLOCK], ids=["fsdp", "deepspeed"])
def test_odd_values_of_launch_files(launch: dict[str, Any], every: int, tmp_path: Path) -> None:
    own = FILES["trl"]
    leaks = []
    for path, data in islice(changed(launch), 0, None, every):
        try:
            read(tmp_path, own, **{"trl-accelerate.yaml": data})
        except PlannerError:
            continue
        except Exception as error:  # what is looked for
            leaks.append(f"{path}: {error!r}")
    assert leaks == []


@pytest.mark.parametrize("odd", [one for one in ODD if one and not isinstance(one, dict)])
def test_odd_sections_of_swift_are_refused(odd: object, tmp_path: Path) -> None:
    data = {**FILES["swift"], "deepspeed": None, "fsdp": "x.json"}
    for content in (odd, {"fsdp_config": odd}):
        with pytest.raises(SpecError, match=r"x\.json"):
            read(tmp_path, data, **{"x.json": content})


@pytest.mark.parametrize(
    ("tool", "key", "value", "word"),
    [
        ("axolotl", "dp_shard_size", "auto", "dp_shard_size: expected a whole number"),
        ("axolotl", "adapter", "llama-adapter", "adapter lora or qlora"),
        ("llama-factory", "finetuning_type", "freeze", "finetuning_type lora or full"),
        ("llama-factory", "quantization_method", "hqq", "quantization_method hqq is not read"),
        ("llama-factory", "lora_rank", 0, "lora_rank: expected a whole number from 1 on"),
        ("llama-factory", "deepspeed", {"stage": 2}, "deepspeed: expected the name of a file"),
        ("swift", "tuner_type", "longlora", "tuner_type lora or full"),
        ("swift", "quant_method", "hqq", "quant_method hqq is not read"),
        ("swift", "deepspeed_autotp_size", 2, "deepspeed_autotp_size 2"),
        ("swift", "fsdp", ["full_shard"], "name of a file"),
    ],
)
def test_what_is_not_read_is_named(
    tool: str, key: str, value: object, word: str, tmp_path: Path
) -> None:
    data = {**FILES[tool], key: value}
    with pytest.raises(SpecError, match=word):
        read(tmp_path, data | ({"deepspeed": None} if key == "fsdp" else {}))


def test_null_is_what_the_tool_takes_by_itself(tmp_path: Path) -> None:
    run = read(tmp_path, {**FILES["llama-factory"], "lora_rank": None, "lora_alpha": None})
    assert (run.job["lora"]["rank"], run.job["lora"]["alpha"]) == (8, 16)


@pytest.mark.parametrize(
    ("stated", "precision"),
    [
        ({}, "bf16-grads"),
        ({"torch_dtype": "float16"}, "fp16-grads"),
        ({"fp16": True}, "fp16-grads"),
        ({"bf16": False, "fp16": False}, "fp32"),
    ],
)
@pytest.mark.parametrize("preset", ["zero2", "zero3_offload"])
def test_presets_of_swift_have_its_precision(
    preset: str, stated: dict[str, Any], precision: str, tmp_path: Path
) -> None:
    plain = {"model": "m", "tuner_type": "lora", "deepspeed": preset}
    assert read(tmp_path, plain | stated).job["precision"] == precision


@pytest.mark.parametrize("sharding", [{}, {"fsdp": "fsdp2"}, {"deepspeed": "zero3"}])
def test_sequences_shared_by_ranks_of_swift(sharding: dict[str, Any], tmp_path: Path) -> None:
    plain = {"model": "m", "tuner_type": "lora", "sequence_parallel_size": 2, **sharding}
    layout = read(tmp_path, {**plain, "gradient_accumulation_steps": 4}).layout
    assert (layout["cp"], layout["cp_comm"], layout["dp"]) == (2, "a2a", 4)
    assert layout["gbs"] == 16


def test_numbers_of_commands(tmp_path: Path) -> None:
    command = "swift sft --model m --dataset d --lora_dropout 0.1 --learning_rate 1e-4"
    (tmp_path / "run.sh").write_text(command)
    run = read_run(str(tmp_path / "run.sh"), RunQuery(MODEL, n_devices=1))
    assert run.job["lora"]["dropout"] == 0.1


def test_a_stage_that_deepspeed_has_not_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "accelerate.yaml"
    file.write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 4}\n")
    with pytest.raises(SpecError, match="has no stage 4"):
        check(file, "h100-x8", model="llama3-8b")
    script = tmp_path / "sft.sh"
    script.write_text("swift sft --model x --deepspeed zero4 --tuner_type full\n")
    with pytest.raises(SpecError, match="zero4, which cannot be read"):
        check(script, "h100-x8", model="llama3-8b")
