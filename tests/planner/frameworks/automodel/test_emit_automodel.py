"""What is written for NeMo AutoModel: recipe, launcher, config.json of the model."""

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from costmodels.examples import LLAMA3_8B, MIXTRAL_8X7B
from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.automodel.settings import own_split, stage_keys
from planner.frameworks.emit import emit_plan, why_not
from planner.frameworks.emit_request import EmitRequest
from planner.specs.schema import DetailsSpec
from tests.planner.emitting import HEADER, JOB, golden, layout, pool

EXPERTS = {"n_devices": 64, "dp": 64, "ep": 8, "zero": 2}
PIPE = {"n_devices": 16, "pp": 4, "dp": 4, "schedule": "1f1b", "stage_layers": (8, 8, 8, 8)}
NORMED = DetailsSpec(qk_norm="head")


def emitted(
    shape: ModelShape = LLAMA3_8B,
    job: TrainingJob = JOB,
    details: DetailsSpec = DetailsSpec(),
    **changes: Any,
) -> dict[str, str]:
    changes.setdefault("zero", 2)
    plan = layout(shape, **changes)
    return emit_plan("automodel", EmitRequest(plan, shape, job, pool(), HEADER, details))


def recipe(*args: Any, **changes: Any) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(emitted(*args, **changes)["automodel.yaml"])
    return read


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("llama3-8b-automodel", emitted(tp=2, sp=True, zero=3)),
        ("llama3-8b-automodel-pipeline", emitted(**PIPE | {"zero": 1})),
        ("qwen3-moe-automodel", emitted(MIXTRAL_8X7B, details=NORMED, **EXPERTS)),
    ],
)
def test_golden(name: str, files: dict[str, str]) -> None:
    assert sorted(files) == ["automodel.sh", "automodel.yaml", "config.json"]
    for file, text in files.items():
        golden(f"{name}-{file}", text)


def test_shards_are_groups_over_contexts() -> None:
    keys = recipe(n_devices=32, dp=16, cp=2, cp_comm="all-gather", shard=8, zero=3)["distributed"]
    assert (keys["dp_size"], keys["dp_replicate_size"], keys["cp_size"]) == (16, 4, 2)
    assert keys["reshard_after_forward"] is True


def test_several_micro_batches_reduce_each_and_a_pipeline_takes_them_as_one_batch() -> None:
    several = recipe(n_devices=8, dp=8, mbs=2)
    assert several["step_scheduler"]["local_batch_size"] == 2
    assert several["distributed"]["defer_fsdp_grad_sync"] is False
    staged = recipe(**PIPE | {"zero": 1, "mbs": 2})
    n_micro = staged["step_scheduler"]["global_batch_size"] // 8
    assert staged["step_scheduler"]["local_batch_size"] == 2 * n_micro
    assert staged["dataset"]["batch_size"] == 2 * n_micro
    assert staged["distributed"]["pipeline"]["pp_microbatch_size"] == 2
    assert staged["distributed"]["defer_fsdp_grad_sync"] is True


@pytest.mark.parametrize(
    ("counts", "pp", "schedule", "keys"),
    [
        ((8, 8, 8, 8), 4, "1f1b", {}),
        ((8, 8, 7, 7), 4, "1f1b", {}),
        ((4,) * 8, 4, "interleaved", {}),
        ((2,) * 16, 4, "interleaved", {"layers_per_stage": 2}),
    ],
)
def test_a_split_of_its_own_is_said_in_few_words(
    counts: tuple[int, ...], pp: int, schedule: str, keys: dict[str, Any]
) -> None:
    assert own_split(sum(counts), len(counts)) == counts
    assert stage_keys(counts, pp, schedule) == keys


def test_another_split_names_the_modules() -> None:
    parts = stage_keys((7, 8, 9, 8), 4, "1f1b")["module_fqns_per_model_part"]
    assert [sum(".layers." in x for x in part) for part in parts] == [7, 8, 9, 8]
    assert parts[0][0] == "model.embed_tokens"
    assert parts[3][-3:] == ["model.norm", "lm_head", "model.rotary_emb"]


def test_whole_layers_are_recomputed_by_the_class_of_transformers() -> None:
    full = recipe(n_devices=8, dp=8, recompute="full", recompute_layers=32)
    assert full["distributed"]["activation_checkpointing"] is True
    assert full["model"]["force_hf"] is True
    assert "force_hf" not in recipe(n_devices=8, dp=8)["model"]
    experts = recipe(
        MIXTRAL_8X7B, details=NORMED, **EXPERTS, recompute="full", recompute_layers=32
    )
    assert "force_hf" not in experts["model"]  # its own class recomputes whole layers


@pytest.mark.parametrize(
    ("dispatcher", "word"),
    [("", "deepep"), ("deepep", "deepep"), ("allgather", "torch"), ("hybridep", "hybridep")],
)
def test_dispatchers(dispatcher: str, word: str) -> None:
    switches = (("dispatcher", dispatcher),) if dispatcher else ()
    backend = recipe(MIXTRAL_8X7B, details=NORMED, **EXPERTS, switches=switches)["model"]
    assert backend["backend"]["dispatcher"] == word


def test_experts_of_a_class_that_is_not_its_own_need_another_model() -> None:
    files = emitted(MIXTRAL_8X7B, **EXPERTS)
    assert "config.json" not in files
    assert '"${MODEL:?' in files["automodel.sh"]
    assert "mixtral's, of which there is no class" in files["automodel.sh"]


def test_a_model_beside_the_recipe_names_its_architecture() -> None:
    assert json.loads(emitted()["config.json"])["architectures"] == ["LlamaForCausalLM"]
    plain = emitted(MIXTRAL_8X7B, n_devices=8, dp=8, ep=1)
    assert "architectures" not in json.loads(plain["config.json"])


def test_sequence_parallelism_is_refused_for_classes_without_a_plan() -> None:
    files = emitted(details=DetailsSpec(window=4096), tp=2, sp=True)
    assert list(files) == ["automodel.txt"]
    assert "no plan for mistral has it" in files["automodel.txt"]


def test_precision_and_optimizer() -> None:
    keys = recipe(job=replace(JOB, precision="fp32"), n_devices=8, dp=8)
    assert keys["distributed"]["mp_policy"]["param_dtype"] == "float32"
    assert recipe(n_devices=8, dp=8)["distributed"]["mp_policy"]["reduce_dtype"] == "bfloat16"
    sgd = recipe(job=replace(JOB, optimizer="sgd"), n_devices=8, dp=8)["optimizer"]
    assert sgd["_target_"] == "torch.optim.SGD"
    muon = replace(JOB, optimizer="muon")
    assert "optimizer muon" in (why_not("automodel", layout(LLAMA3_8B), LLAMA3_8B, muon) or "")


def test_it_is_for_accelerators_of_nvidia_alone() -> None:
    plan = layout(LLAMA3_8B, n_devices=8, dp=8, zero=2)
    assert why_not("automodel", plan, LLAMA3_8B, JOB, "NVIDIA") is None
    assert "runs on NVIDIA" in (why_not("automodel", plan, LLAMA3_8B, JOB, "AMD") or "")
