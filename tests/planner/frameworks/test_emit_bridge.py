import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodels.examples import DEEPSEEK_V3, GPT3_175B, LLAMA3_8B, LLAMA3_70B, MIXTRAL_8X7B
from costmodels.schedule.stages import stage_layers
from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.bridge.emitter import bridge_files
from planner.frameworks.emit_request import EmitRequest
from tests.planner.emitting import HEADER, JOB, golden, keywords_of, layout, pool


def emitted(
    shape: ModelShape = LLAMA3_8B, job: TrainingJob = JOB, **changes: Any
) -> dict[str, str]:
    gbs = int(changes.get("gbs", job.global_batch))
    return bridge_files(
        EmitRequest(
            layout(shape, **changes), shape, replace(job, global_batch=gbs), pool(), HEADER
        )
    )


def recipe(shape: ModelShape = LLAMA3_8B, job: TrainingJob = JOB, **changes: Any) -> str:
    return emitted(shape, job, **changes)["bridge_recipe.py"]


def model(shape: ModelShape = LLAMA3_8B, **changes: Any) -> dict[str, Any]:
    provider = "MLAModelProvider" if shape.latent else "GPTModelProvider"
    return keywords_of(recipe(shape, **changes), provider)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        (
            "llama3-70b-bridge",
            emitted(
                LLAMA3_70B,
                n_devices=512,
                tp=8,
                pp=4,
                vpp=5,
                sp=True,
                gbs=1024,
                recompute="full",
                recompute_layers=2,
            ),
        ),
        ("llama3-8b-bridge-fsdp", emitted(n_devices=16, zero=3, shard=8)),
        (
            "deepseek-v3-bridge",
            emitted(
                DEEPSEEK_V3,
                n_devices=1024,
                pp=16,
                ep=64,
                gbs=8192,
                split="ends",
                stage_layers=stage_layers(61, 16, 1, "ends"),
            ),
        ),
    ],
)
def test_golden(name: str, files: dict[str, str]) -> None:
    assert sorted(files) == ["bridge.sh", "bridge_recipe.py"]
    for file, text in files.items():
        golden(f"{name}-{file}", text)


def test_recipes_are_linted_and_formatted(tmp_path: Path) -> None:
    for number, shape in enumerate((LLAMA3_8B, GPT3_175B, MIXTRAL_8X7B, DEEPSEEK_V3)):
        for zero in (0, 1, 3):
            text = recipe(shape, n_devices=64, zero=zero)
            (tmp_path / f"recipe_{number}_{zero}.py").write_text(text)
    for words in (["check", "--select", "E,F,I,W", "--ignore", "E501"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, "--isolated", "--line-length", "99"]
        done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_degrees_and_batch() -> None:
    text = recipe(n_devices=64, tp=2, pp=4, sp=True, cp=2, dp=4, cp_comm="all-gather", mbs=2)
    got = keywords_of(text, "GPTModelProvider")
    sizes = [got[f"{x}_parallel_size"] for x in ("tensor_model", "pipeline_model")] + [
        got["context_parallel_size"]
    ]
    assert sizes == [2, 4, 2]
    assert got["sequence_parallel"] is True
    assert got["cp_comm_type"] == "all_gather"
    assert got["virtual_pipeline_model_parallel_size"] is None
    train = keywords_of(text, "TrainingConfig")
    assert (train["micro_batch_size"], train["global_batch_size"]) == (2, 128)
    assert got["seq_length"] == keywords_of(text, "GPTDatasetConfig")["seq_length"] == 8192


@pytest.mark.parametrize(
    ("pp", "vpp", "split", "wants"),
    [
        (4, 1, "even", {}),
        (4, 2, "even", {"virtual_pipeline_model_parallel_size": 2}),
        (2, 1, "ends", {"account_for_embedding_in_pipeline_split": None}),
        (4, 1, "6-10-10-6", {"pipeline_model_parallel_layout": "Et*6|(t*10|)*2t*6L"}),
    ],
)
def test_stages(pp: int, vpp: int, split: str, wants: dict[str, Any]) -> None:
    shape = replace(LLAMA3_8B, layers=32)
    got = model(shape, pp=pp, vpp=vpp, split=split, stage_layers=stage_layers(32, pp, vpp, split))
    for name, value in wants.items():
        assert got.get(name) == value
    assert ("pipeline_model_parallel_layout" in got) == ("pipeline_model_parallel_layout" in wants)


def test_ends_that_count_as_layers() -> None:
    got = model(replace(LLAMA3_8B, layers=30), pp=4, split="ends", stage_layers=(7, 8, 8, 7))
    assert got["account_for_embedding_in_pipeline_split"] is True
    assert got["account_for_loss_in_pipeline_split"] is True


@pytest.mark.parametrize(
    ("changes", "wants"),
    [
        ({"zero": 0}, {"use_distributed_optimizer": False, "overlap_param_gather": False}),
        ({"zero": 1}, {"use_distributed_optimizer": True, "overlap_param_gather": True}),
        ({"zero": 1, "shard": 4}, {"num_distributed_optimizer_instances": 2}),
        (
            {"zero": 2},
            {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads"},
        ),
        (
            {"zero": 3, "shard": 2},
            {
                "data_parallel_sharding_strategy": "optim_grads_params",
                "num_distributed_optimizer_instances": 4,
            },
        ),
    ],
)
def test_zero(changes: dict[str, Any], wants: dict[str, Any]) -> None:
    text = recipe(**changes)
    got = keywords_of(text, "DistributedDataParallelConfig")
    assert wants.items() <= got.items()
    fsdp = changes["zero"] >= 2
    assert keywords_of(text, "DistributedInitConfig")["use_megatron_fsdp"] is fsdp
    form = keywords_of(text, "CheckpointConfig")["ckpt_format"]
    assert form == ("fsdp_dtensor" if fsdp else "torch_dist")
    overlap = keywords_of(text, "CommOverlapConfig")
    assert overlap["overlap_grad_reduce"] == got["overlap_grad_reduce"]
    assert overlap["bucket_size"] == got["bucket_size"] == 40_000_000


def test_experts_and_latent_attention() -> None:
    got = model(DEEPSEEK_V3, n_devices=1024, ep=64, gbs=8192)
    assert got["num_moe_experts"] == 256
    assert got["moe_layer_freq"] == [0, 0, 0, *[1] * 58]
    assert (got["expert_model_parallel_size"], got["expert_tensor_parallel_size"]) == (64, 1)
    assert (got["q_lora_rank"], got["kv_lora_rank"], got["qk_head_dim"]) == (1536, 512, 128)
    assert "num_query_groups" not in got
    assert "moe_layer_freq" not in model(MIXTRAL_8X7B, n_devices=64, ep=8)


@pytest.mark.parametrize(
    ("precision", "wants"),
    [
        ("bf16", {"bf16": True, "params_dtype": "torch.bfloat16", "grad_reduce_in_fp32": True}),
        ("bf16-grads", {"bf16": True, "grad_reduce_in_fp32": False}),
        ("fp16", {"fp16": True, "params_dtype": "torch.float16", "grad_reduce_in_fp32": False}),
        ("fp32", {"fp32": True, "params_dtype": "torch.float32", "grad_reduce_in_fp32": True}),
        ("fp8-mxfp8", {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"}),
    ],
)
def test_precision(precision: str, wants: dict[str, Any]) -> None:
    text = recipe(job=replace(JOB, precision=precision))
    assert wants.items() <= keywords_of(text, "MixedPrecisionConfig").items()


def test_attention_beside_fp4_runs_in_mxfp8() -> None:
    named = "NVTE_DPA_FP8_RECIPE=MXFP8BlockScaling"
    job = replace(JOB, precision="nvfp4", fp8_attention=True)
    assert named in emitted(job=job)["bridge.sh"]
    assert "fp8_dot_product_attention=True" in emitted(job=job)["bridge_recipe.py"]
    assert named not in emitted(job=replace(job, precision="fp8-mxfp8"))["bridge.sh"]


def test_launcher_runs_the_recipe(tmp_path: Path) -> None:
    fake = tmp_path / "torchrun"
    fake.write_text(
        '#!/usr/bin/env bash\nprintf "%s\\n" "$@" "${CUDA_DEVICE_MAX_CONNECTIONS:-}"\n'
    )
    fake.chmod(0o755)
    (tmp_path / "bridge.sh").write_text(emitted(n_devices=16, tp=2, sp=True)["bridge.sh"])
    done = subprocess.run(
        ["bash", str(tmp_path / "bridge.sh")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "MASTER_ADDR": "head"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-2:] == [str(tmp_path / "bridge_recipe.py"), "1"]
