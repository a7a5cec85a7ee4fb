from dataclasses import replace
from typing import Any

import pytest
import yaml

from costmodels.examples import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL_8X7B
from costmodels.shapes import ModelShape, TrainingJob
from hardware.catalogue import load_catalogue
from hardware.parts import Pool
from planner.frameworks.emit import emit_plan, runs_on, why_not
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.maxtext.command import slice_devices
from planner.specs.schema import DetailsSpec
from tests.planner.emitting import HEADER, JOB, golden, layout, pool

RING = {"dp": 32, "cp": 2, "cp_comm": "p2p"}
EXPERTS = {"n_devices": 64, "dp": 64, "ep": 4, "zero": 3}


def tpus(of_slice: int = 8) -> Pool:
    """Return a pool of hosts of four devices, in slices of `of_slice`."""
    plain = pool()
    part = replace(plain.accelerator, vendor="Google", generation="tpu-v5p")
    return replace(plain, accelerator=part, devices_per_node=4, scale_up_domain=of_slice)


def emitted(
    shape: ModelShape = LLAMA3_8B,
    job: TrainingJob = JOB,
    details: DetailsSpec = DetailsSpec(),
    of_slice: int = 0,
    **changes: Any,
) -> dict[str, str]:
    changes.setdefault("zero", 3)
    plan = layout(shape, **{"recompute": "full", "recompute_layers": shape.layers} | changes)
    devices = tpus(of_slice or plan.n_devices)
    return emit_plan("maxtext", EmitRequest(plan, shape, job, devices, HEADER, details))


def config(**changes: Any) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(emitted(**changes)["maxtext.yml"])
    return read


@pytest.mark.parametrize(
    ("name", "files"),
    [
        (
            "llama3-8b-maxtext",
            emitted(tp=2, sp=True, recompute="full", recompute_layers=32),
        ),
        (
            "llama3-8b-maxtext-slices",
            emitted(n_devices=32, dp=16, cp=2, cp_comm="a2a", shard=8, of_slice=8),
        ),
        ("mixtral-8x7b-maxtext", emitted(MIXTRAL_8X7B, **EXPERTS)),
        ("deepseek-v3-maxtext", emitted(DEEPSEEK_V3, **EXPERTS)),
        (
            "deepseek-v3-maxtext-ring",
            emitted(replace(DEEPSEEK_V3, mtp_layers=0), **EXPERTS | RING),
        ),
    ],
)
def test_golden(name: str, files: dict[str, str]) -> None:
    assert sorted(files) == ["maxtext-xpk.txt", "maxtext.sh", "maxtext.yml"]
    for file, text in files.items():
        golden(f"{name}-{file}", text)


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, (1, 8, 1, 1, 1)),
        ({"shard": 4}, (2, 4, 1, 1, 1)),
        ({"zero": 0}, (8, 1, 1, 1, 1)),
        ({"zero": 1}, (8, 1, 1, 1, 1)),
        ({"tp": 2, "sp": True}, (1, 4, 1, 2, 1)),
        ({"cp": 2, "dp": 4, "cp_comm": "all-gather"}, (1, 4, 2, 1, 1)),
        ({"cp": 2, "dp": 4, "cp_comm": "all-gather", "shard": 4}, (2, 2, 2, 1, 1)),
        ({"shape": MIXTRAL_8X7B, "ep": 4}, (1, 2, 1, 1, 4)),
        ({"shape": MIXTRAL_8X7B, "ep": 2, "tp": 2, "etp": 2, "sp": True}, (1, 2, 1, 2, 2)),
    ],
)
def test_axes_multiply_to_the_devices(changes: dict[str, Any], sizes: tuple[int, ...]) -> None:
    keys = config(**changes)
    names = ("data", "fsdp", "context", "tensor_sequence", "expert")
    assert tuple(keys[f"ici_{name}_parallelism"] for name in names) == sizes
    assert keys.get("shard_optimizer_over_data", False) == (changes.get("zero") == 1)


def test_replicas_then_shards_go_over_slices() -> None:
    spread = config(n_devices=64, dp=64, shard=32, of_slice=16)
    assert spread["dcn_data_parallelism"] * spread["ici_data_parallelism"] == 2
    assert spread["dcn_fsdp_parallelism"] * spread["ici_fsdp_parallelism"] == 32
    assert (spread["dcn_data_parallelism"], spread["dcn_fsdp_parallelism"]) == (2, 2)
    files = emitted(n_devices=64, tp=8, sp=True, dp=8, zero=0, of_slice=4)
    assert list(files) == ["maxtext.txt"]
    assert "slices: 16 of 4 devices" in files["maxtext.txt"]


@pytest.mark.parametrize(
    ("part", "n", "slices", "name"),
    [
        ("tpu-7x", 128, 1, "tpu7x-4x4x4"),
        ("tpu-7x", 512, 2, "tpu7x-4x4x8"),
        ("tpu-v5p", 64, 1, "v5p-128"),
        ("tpu-v6e", 256, 1, "v6e-256"),
    ],
)
def test_xpk_is_told_the_slice(part: str, n: int, slices: int, name: str) -> None:
    accelerator = load_catalogue().accelerator(part)
    assert accelerator.torus
    per_node = 4 * accelerator.torus.devices_per_chip
    devices = replace(
        tpus(n // slices),
        accelerator=accelerator,
        devices_per_node=per_node,
        n_nodes=n // per_node,
    )
    job = replace(JOB, global_batch=n)
    plan = layout(
        LLAMA3_8B, n_devices=n, dp=n, zero=3, gbs=n, recompute="full", recompute_layers=32
    )
    request = EmitRequest(plan, LLAMA3_8B, job, devices, HEADER, DetailsSpec())
    text = emit_plan("maxtext", request)["maxtext-xpk.txt"]
    assert f'--device-type="${{DEVICE_TYPE:-{name}}}" --num-slices={slices} ' in text
    assert slice_devices(name) == n // slices


@pytest.mark.parametrize(
    ("changes", "share", "steps"),
    [
        ({"mbs": 2}, 2, 8),
        ({"tp": 4, "sp": True, "dp": 2}, 0.25, 64),
        ({"n_devices": 24, "tp": 3, "sp": True, "gbs": 96, "shape": "three"}, 1 / 3, 12),
    ],
)
def test_the_batch_is_the_plan_s(changes: dict[str, Any], share: float, steps: int) -> None:
    three = replace(LLAMA3_8B, heads=24, kv_heads=24, ffn=14337, vocab=3 * 42752)
    if changes.get("shape") == "three":
        changes = changes | {"shape": three, "job": replace(JOB, seq_len=8190, global_batch=96)}
    keys = config(**changes)
    assert keys["per_device_batch_size"] == pytest.approx(share)
    assert keys["gradient_accumulation_steps"] == steps
    micro = int(keys["per_device_batch_size"] * changes.get("n_devices", 8))
    assert micro * steps == changes.get("gbs", 128)


def test_policies_of_recomputation() -> None:
    full = {"recompute": "full", "recompute_layers": 32}
    none = {"recompute": "none", "recompute_layers": 0}
    assert config(**none)["remat_policy"] == "minimal_with_context"
    assert config(**full)["remat_policy"] == "full"
    moved = config(**full, activation_offload_layers=32)
    assert (moved["remat_policy"], moved["decoder_layer_input"]) == ("custom", "offload")
    modules = {
        ("core_attn",): "minimal",
        ("mlp",): "save_dot_with_context_except_mlp",
        ("core_attn", "mlp"): "save_dot_except_mlp",
    }
    for names, policy in modules.items():
        keys = config(recompute="selective", recompute_layers=0, recompute_modules=names)
        assert keys["remat_policy"] == policy


def test_exchanges_of_keys_and_values() -> None:
    words = {"all-gather": "all_gather", "p2p": "ring", "a2a": "ulysses"}
    for kind, word in words.items():
        keys = config(cp=2, dp=4, cp_comm=kind)
        assert keys["context_parallel_strategy"] == word
        assert keys.get("use_tokamax_splash", False) == (kind != "all-gather")
        assert keys.get("context_parallel_load_balance", True) == (kind != "a2a")


def test_fp8_and_details() -> None:
    keys = config(job=replace(JOB, precision="fp8-tensorwise"))
    assert (keys["quantization"], keys["use_qwix_quantization"]) == ("fp8_full", True)
    details = DetailsSpec(rotary_base=500000.0, norm_epsilon=1e-6, qk_norm="head")
    keys = config(details=details)
    assert keys["decoder_block"] == "qwen3"
    assert keys["use_qk_norm"] is True
    assert keys["rope_max_timescale"] == 500000
    assert keys["normalization_layer_epsilon"] == 1e-6


def test_another_model_is_asked_for() -> None:
    files = emitted(details=DetailsSpec(window=1024, qkv_bias=True))
    assert "NOT THE SAME MODEL" in files["maxtext.sh"]
    assert "--accept-differences" not in emitted()["maxtext.sh"]


def test_it_runs_on_tpus_alone() -> None:
    plan = layout(zero=3, recompute="full", recompute_layers=32)
    assert "maxtext" in runs_on(plan, LLAMA3_8B, JOB, vendor="Google")
    assert "maxtext" not in runs_on(plan, LLAMA3_8B, JOB, vendor="NVIDIA")
    assert "MaxText runs on Google" in (why_not("maxtext", plan, LLAMA3_8B, JOB, "NVIDIA") or "")
    files = emit_plan("maxtext", EmitRequest(plan, LLAMA3_8B, JOB, pool(), HEADER))
    assert list(files) == ["maxtext.txt"]
