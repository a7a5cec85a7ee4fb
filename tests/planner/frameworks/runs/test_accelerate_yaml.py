from typing import Any

import pytest

from planner.errors import SpecError
from planner.frameworks.fsdp2.reader import looks_like_accelerate, read_accelerate
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.query import RunQuery
from planner.specs.loader import load_model

MODEL = load_model("llama3-8b")
HEAD = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 16\nnum_machines: 2\n"


def run(text: str, **arguments: Any) -> ExistingRun:
    return read_accelerate(
        text, "a.yaml", RunQuery(MODEL, n_devices=64, script_arguments=arguments)
    )


def sizes(**values: int) -> str:
    lines = [f"  parallelism_config_{name}_size: {n}" for name, n in values.items()]
    return "\n".join(["fsdp_config:", "  fsdp_version: 2", "parallelism_config:", *lines])


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("fsdp_config:\n  fsdp_version: 2\n", {"zero": 3, "dp": 16, "dp_shard": 16, "tp": 1}),
        ("fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n", {"zero": 2}),
        ("fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n", {"zero": 3}),
        ("fsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n", {"zero": 2}),
        ("fsdp_config:\n  fsdp_sharding_strategy: 2\n", {"zero": 2}),
        ("fsdp_config:\n  fsdp_sharding_strategy: NO_SHARD\n", {"zero": 0}),
        ("fsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n", {"zero": 3, "dp_shard": 8}),
        (
            "fsdp_config:\n  fsdp_activation_checkpointing: true\n",
            {"recompute": "full", "recompute_layers": 32},
        ),
        (sizes(dp_replicate=2, dp_shard=4, tp=2), {"tp": 2, "dp": 8, "dp_shard": 4, "sp": False}),
        (sizes(dp_shard=4, cp=4), {"cp": 4, "cp_comm": "all-gather", "dp": 4, "dp_shard": 16}),
        (sizes(dp_shard=8, sp=2), {"cp": 2, "cp_comm": "a2a", "dp": 8}),
        (sizes(dp_replicate=16), {"zero": 0, "dp": 16}),
    ],
)
def test_layout_fields(text: str, fields: dict[str, Any]) -> None:
    found = run(HEAD + text)
    assert {key: found.layout.get(key) for key in fields} == fields
    assert (found.framework, found.n_devices, found.n_nodes) == ("fsdp2", 16, 2)


def test_plain_data_parallelism() -> None:
    found = run("distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: fp16\n")
    assert (found.layout["zero"], found.layout["dp"]) == (0, 8)
    assert found.job["precision"] == "fp16"
    assert found.format == "Accelerate configuration, DDP"


def test_the_cluster_s_devices_where_the_file_has_none() -> None:
    assert run("distributed_type: FSDP\nmixed_precision: bf16\n").layout["n_devices"] == 64


def test_batches_from_the_script() -> None:
    found = run(HEAD, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    assert (found.layout["gbs"], found.layout["n_micro"], found.assumed) == (128, 4, ())
    alone = run(HEAD)
    assert [x.split(":")[0] for x in alone.assumed] == ["mbs = 1", "gbs = 512"]


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("no", "fp32"),
        ("'no'", "fp32"),
        ("bf16", "bf16"),
        ("fp16", "fp16"),
        ("fp8", "fp8-tensorwise"),
    ],
)
def test_precision(text: str, precision: str) -> None:
    assert run(f"distributed_type: FSDP\nmixed_precision: {text}\n").job["precision"] == precision


def test_deepspeed_plugin_and_its_file() -> None:
    plugin = (
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
        "deepspeed_config:\n  zero_stage: 3\n  gradient_accumulation_steps: 4\n"
        "  offload_optimizer_device: cpu\n"
    )
    found = run(plugin)
    assert (found.framework, found.layout["zero"], found.layout["gbs"]) == ("deepspeed", 3, 32)
    assert found.layout["optimizer_offload"]
    named = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: z1.json\n"
    text = '{"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 2}'
    read = read_accelerate(named, "a.yaml", RunQuery(MODEL, n_devices=8), lambda name: text)
    assert (read.layout["zero"], read.layout["mbs"]) == (1, 2)
    with pytest.raises(SpecError, match=r"names z1\.json, which cannot be read"):
        run(named)


def test_errors() -> None:
    with pytest.raises(SpecError, match="does not say the model"):
        read_accelerate(HEAD, "a.yaml", RunQuery())
    assert looks_like_accelerate(HEAD)
    assert not looks_like_accelerate("model:\n")
