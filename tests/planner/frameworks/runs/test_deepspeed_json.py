import json
from typing import Any

import pytest

from planner.errors import SpecError
from planner.frameworks.deepspeed.reader import read_deepspeed
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.query import RunQuery
from planner.specs.loader import load_model

MODEL = load_model("llama3-8b")


def run(config: dict[str, Any], n_devices: int = 16, **arguments: Any) -> ExistingRun:
    text = json.dumps(config)
    return read_deepspeed(
        text, "ds.json", RunQuery(MODEL, n_devices=n_devices, script_arguments=arguments)
    )


BATCH = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}


def test_two_of_three_batch_sizes_give_the_third() -> None:
    assert run(BATCH).layout["gbs"] == 2 * 4 * 16
    total = {"train_batch_size": 128}
    assert run(total | {"train_micro_batch_size_per_gpu": 2}).layout["n_micro"] == 4
    assert run(total | {"gradient_accumulation_steps": 2}).layout["mbs"] == 4
    assert run(total | BATCH | {"train_batch_size": 100}).layout.get("n_micro") is None


ALL_SIZES = BATCH | {"train_batch_size": 64}
"""For 64 / (2 x 4) = 8 ranks."""


@pytest.mark.parametrize(
    ("config", "arguments", "n_devices", "dp"),
    [
        ({}, {}, 8, 8),
        ({"sequence_parallel_size": 2}, {}, 16, 8),
        ({}, {"pipeline_stages": 4}, 32, 8),
        # DeepSpeed counts the ranks of AutoTP: 8 devices, of which tp leaves 4 replicas.
        ({"tensor_parallel": {"autotp_size": 2}}, {}, 8, 4),
    ],
)
def test_all_three_batch_sizes_say_the_ranks(
    config: dict[str, Any], arguments: dict[str, Any], n_devices: int, dp: int
) -> None:
    found = run(ALL_SIZES | config, 64, **arguments)
    assert (found.n_devices, found.layout["n_devices"], found.layout["dp"]) == (
        n_devices,
        n_devices,
        dp,
    )
    assert f"the file is for {n_devices} of the cluster's 64 devices" in found.notes[0]
    there = run(ALL_SIZES | config, n_devices, **arguments)
    assert (there.n_devices, there.notes) == (None, ())


def test_batch_sizes_for_more_ranks_than_there_are() -> None:
    found = run(ALL_SIZES, 4)
    assert (found.n_devices, found.layout["n_devices"]) == (None, 4)
    assert "for 8 devices, the cluster has 4; DeepSpeed refuses it there" in found.notes[0]


def test_batch_sizes_that_give_no_ranks_or_those_without_autotp() -> None:
    odd = run(ALL_SIZES | {"train_batch_size": 60}, 16)
    assert (odd.n_devices, odd.layout["n_devices"], odd.notes) == (None, 16, ())
    uncounted = run(ALL_SIZES | {"tensor_parallel": {"autotp_size": 2}}, 16)
    assert (uncounted.n_devices, uncounted.layout["dp"], uncounted.notes) == (None, 8, ())


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ({"zero_optimization": {"stage": 3}}, {"zero": 3, "dp_shard": 16}),
        ({}, {"zero": 0}),
        ({"tensor_parallel": {"autotp_size": 4}}, {"tp": 4, "dp": 4, "sp": False}),
        ({"sequence_parallel_size": 2}, {"cp": 2, "cp_comm": "a2a", "dp": 8}),
        ({"zero_optimization": {"stage": 3}, "sequence_parallel_size": 2}, {"dp_shard": 16}),
        ({"expert_parallel": {"enabled": True, "autoep_size": 4}}, {"ep": 4}),
        ({"expert_parallel": {"autoep_size": 4}}, {"ep": 1}),  # off unless it is enabled
    ],
)
def test_layout_fields(config: dict[str, Any], fields: dict[str, Any]) -> None:
    found = run(BATCH | config).layout
    assert {key: found.get(key) for key in fields} == fields


@pytest.mark.parametrize(
    ("config", "precision"),
    [
        ({"bf16": {"enabled": True}}, "bf16-grads"),
        ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, "bf16"),
        ({"fp16": {"enabled": True}}, "fp16-grads"),
        ({"fp16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, "fp16"),
        ({"bf16": {"enabled": False}}, "fp32"),
        ({}, "fp32"),
    ],
)
def test_precision(config: dict[str, Any], precision: str) -> None:
    assert run(BATCH | config).job["precision"] == precision


def test_the_script_s_arguments_resolve_auto() -> None:
    auto = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "bf16": {"enabled": "auto"},
    }
    told = run(
        auto,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        bf16=True,
        gradient_checkpointing=True,
        max_seq_length=2048,
    )
    assert (told.layout["mbs"], told.layout["gbs"]) == (4, 4 * 2 * 16)
    assert told.job == {"precision": "bf16-grads", "seq_len": 2048, "global_batch": 128}
    assert told.layout["recompute"] == "full"
    assert told.assumed == ()
    alone = run(auto)
    assert alone.layout["gbs"] == MODEL.job.global_batch
    assert [text.split(":")[0] for text in alone.assumed] == [
        "mbs = 1",
        "gbs = 512",
        "recompute = none",
        "precision = bf16",
    ]


def test_pipelines_are_the_script_s() -> None:
    found = run(BATCH, pipeline_stages=4, recompute="full", recompute_layers=3).layout
    assert (found["pp"], found["dp"], found["counts"]) == (4, 4, (8, 8, 8, 8))
    assert (found["schedule"], found["recompute_layers"]) == ("1f1b", 3)
    uniform = run(BATCH, pipeline_stages=4, partition_method="uniform").layout
    assert uniform["counts"] == (8, 9, 8, 7)


def test_what_is_not_modelled_is_said() -> None:
    zero = {
        "stage": 3,
        "offload_optimizer": {"device": "nvme", "ratio": 0.3},
        "offload_param": {"device": "cpu"},
        "zero_quantized_weights": True,
    }
    text = " | ".join(run(BATCH | {"zero_optimization": zero}).notes)
    parts = (
        "offload_optimizer to nvme",
        "offload_optimizer.ratio 0.3",
        "offload_param to cpu",
        "zero_quantized_weights",
    )
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    ("zero", "fields"),
    [
        ({"stage": 2}, {"dp_overlap": True, "optimizer_offload": False}),
        ({"stage": 2, "overlap_comm": False}, {"dp_overlap": False}),
        ({"stage": 2, "overlap_comm": True}, {"dp_overlap": True}),
        ({"stage": 0, "overlap_comm": False}, {"dp_overlap": True}),
        ({"stage": 1, "offload_optimizer": {"device": "cpu"}}, {"optimizer_offload": True}),
        ({"stage": 2, "cpu_offload": True}, {"optimizer_offload": True}),
        ({"stage": 3, "zero_hpz_partition_size": 8}, {"zero": 3, "hpz": 8}),
        ({"stage": 3, "zero_hpz_partition_size": 1}, {"hpz": 1}),
        ({"stage": 3, "zero_hpz_partition_size": 4096}, {"hpz": 16}),  # all there are
        ({"stage": 2, "zero_hpz_partition_size": 8}, {"hpz": 1}),  # DSP411 says why
    ],
)
def test_switches(zero: dict[str, Any], fields: dict[str, bool]) -> None:
    found = run(BATCH | {"zero_optimization": zero}).layout
    assert {name: found[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("away", "script", "n"), [(True, "full", 32), (False, "full", 0), (True, "none", 0)]
)
def test_inputs_of_recomputed_layers_on_the_host(away: bool, script: str, n: int) -> None:
    block = {"activation_checkpointing": {"cpu_checkpointing": away}}
    found = run(BATCH | block, recompute=script)
    assert found.layout["activation_offload_layers"] == n


def test_keys_twice() -> None:
    text = '{"train_batch_size": 16, "train_batch_size": 32, "bf16": {"enabled": true}}'
    found = read_deepspeed(text, "ds.json", RunQuery(MODEL, n_devices=16))
    assert found.refused == ('"train_batch_size" stands twice',)
    assert list(found.settings) == ["train_batch_size", "bf16.enabled"]


def test_errors() -> None:
    with pytest.raises(SpecError, match="does not say the model"):
        read_deepspeed("{}", "ds.json", RunQuery())
    with pytest.raises(SpecError, match=r"ds.json:2:3: not valid JSON"):
        read_deepspeed('{"train_batch_size": 1\n  "a": 2}', "ds.json", RunQuery(MODEL))
    with pytest.raises(SpecError, match="expected a whole number, got 'many'"):
        run({"train_batch_size": "many"})
