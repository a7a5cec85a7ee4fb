"""Adapters in recipes of Megatron-Bridge: written, refused, read back."""

from pathlib import Path
from typing import Any

import pytest

from costmodels.examples import DEEPSEEK_V3, GPT3_175B, LLAMA3_8B, MIXTRAL_8X7B
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.tuning.records import TuningJob
from planner.errors import SpecError
from planner.frameworks.bridge.adapters import adapter_job
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run
from planner.specs.loader import load_model
from tests.planner.emitting import HEADER, keywords_of, layout, pool

PARTS = ("q", "k", "v", "o", "gate", "up", "down")
FUSED = ("qkv", "o", "gate_up", "down")


def files(
    targets: tuple[str, ...], shape: ModelShape = LLAMA3_8B, alpha: float = 32.0, **changes: Any
) -> dict[str, str]:
    tuning = TuningJob(16, targets, alpha, 0.1, "bf16")
    job = TrainingJob(2048, 128, task="lora", tuning=tuning)
    return emit_plan("bridge", EmitRequest(layout(shape, **changes), shape, job, pool(), HEADER))


def adapters(kind: str, targets: tuple[str, ...], shape: ModelShape = LLAMA3_8B) -> dict[str, Any]:
    return keywords_of(files(targets, shape)["bridge_recipe.py"], kind)


def test_parts_of_fused_layers_have_a_class_of_their_own() -> None:
    said = adapters("CanonicalLoRA", PARTS)
    assert said["target_modules"] == [
        *("linear_q", "linear_k", "linear_v", "linear_proj"),
        *("linear_fc1_gate", "linear_fc1_up", "linear_fc2"),
    ]
    assert (said["dim"], said["alpha"], said["dropout"]) == (16, 32, 0.1)
    fused = adapters("LoRA", FUSED)["target_modules"]
    assert sorted(fused) == ["linear_fc1", "linear_fc2", "linear_proj", "linear_qkv"]


def test_layers_that_are_whole_as_they_are() -> None:
    latent = adapters("LoRA", ("q_down", "q_up", "kv_up", "o"), DEEPSEEK_V3)["target_modules"]
    assert {"linear_q_down_proj", "linear_q_up_proj", "linear_kv_up_proj"} < set(latent)
    plain = adapters("LoRA", ("qkv", "up", "down"), GPT3_175B)["target_modules"]
    assert set(plain) == {"linear_qkv", "linear_fc1", "linear_fc2"}


def test_each_expert_has_an_adapter() -> None:
    said = adapters("LoRA", ("qkv", "o", "experts"), MIXTRAL_8X7B)
    assert said["share_expert_adapters"] is False
    assert set(said["target_modules"]) == {
        *("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    }


def test_the_launcher_asks_for_the_frozen_weights() -> None:
    found = files(PARTS)
    assert "PRETRAINED:?" in found["bridge.sh"]
    assert "finetune(pretrain_config(), forward_step)" in found["bridge_recipe.py"]
    said = keywords_of(found["bridge_recipe.py"], "CheckpointConfig")
    assert "pretrained_checkpoint" in said


@pytest.mark.parametrize(
    ("targets", "shape", "alpha", "word"),
    [
        (("q", "k", "gate_up"), LLAMA3_8B, 32.0, "qkv and gate_up, or q, k, v"),
        (("q", "up"), GPT3_175B, 32.0, "fused layers"),
        (("q", "o", "experts"), MIXTRAL_8X7B, 32.0, "closest: qkv"),
        (("o", "gate_up", "down"), DEEPSEEK_V3, 32.0, "routed experts"),
        (("o", "down", "experts"), DEEPSEEK_V3, 32.0, "down, gate_up"),
        (PARTS, LLAMA3_8B, 1.5, "closest: 2"),
    ],
)
def test_adapters_that_no_recipe_says(
    targets: tuple[str, ...], shape: ModelShape, alpha: float, word: str
) -> None:
    found = files(targets, shape, alpha)
    assert list(found) == ["bridge.txt"]
    assert word in found["bridge.txt"]


def read(tmp_path: Path, text: str, model: str = "llama3-8b") -> Any:
    (tmp_path / "recipe.py").write_text(text)
    return read_run(str(tmp_path / "recipe.py"), RunQuery(load_model(model), n_devices=8))


@pytest.mark.parametrize(
    ("targets", "model", "shape"),
    [
        (PARTS, "llama3-8b", LLAMA3_8B),
        (FUSED, "llama3-8b", LLAMA3_8B),
        (("qkv", "o", "experts"), "mixtral-8x7b", MIXTRAL_8X7B),
    ],
)
def test_recipes_are_read_back(
    targets: tuple[str, ...], model: str, shape: ModelShape, tmp_path: Path
) -> None:
    run = read(tmp_path, files(targets, shape)["bridge_recipe.py"], model)
    lora = run.job["lora"]
    assert run.job["task"] == "lora"
    assert (lora["rank"], lora["alpha"], lora["dropout"]) == (16, 32, 0.1)
    assert set(lora["targets"]) == set(targets)
    assert not any("share_expert" in note for note in run.notes)


def test_defaults_and_schemes_of_recipes(tmp_path: Path) -> None:
    text = files(FUSED)["bridge_recipe.py"]
    head, _, rest = text.partition("peft=LoRA(")
    tail = rest[rest.index("),\n        rng") :]
    run = read(tmp_path, head + "peft=LoRA(" + tail)
    assert run.job["lora"]["rank"] == 32
    assert set(run.job["lora"]["targets"]) == set(FUSED)
    run = read(tmp_path, head + "peft=default_peft_config('lora', dim=8" + tail)
    assert run.job["lora"]["rank"] == 8
    with pytest.raises(SpecError, match="DoRA"):
        read(tmp_path, head + "peft=default_peft_config('dora'" + tail)
    with pytest.raises(SpecError, match="a number"):
        read(tmp_path, head + "peft=LoRA(dim='many'" + tail)


def test_recipes_without_adapters_train_all_weights(tmp_path: Path) -> None:
    shape, job = LLAMA3_8B, TrainingJob(2048, 128)
    plain = emit_plan("bridge", EmitRequest(layout(shape), shape, job, pool(), HEADER))
    (tmp_path / "recipe.py").write_text(plain["bridge_recipe.py"])
    tuned = load_model("llama3-8b", [("training.task", "lora")])
    run = read_run(str(tmp_path / "recipe.py"), RunQuery(tuned, n_devices=8))
    assert (run.job["task"], run.job["lora"]) == ("sft", {})
    assert "lora" not in read(tmp_path, plain["bridge_recipe.py"]).job


def test_names_of_parts_and_of_whole_layers() -> None:
    said = adapter_job("CanonicalLoRA", {}, "")["lora"]["targets"]
    assert set(said) == set(PARTS)
    assert adapter_job("LoRA", {"dim": 4}, "")["lora"]["rank"] == 4


def recipe_with(written: str) -> str:
    """Return the text of a recipe with an expression in place of its adapters."""
    text = files(FUSED)["bridge_recipe.py"]
    head, _, rest = text.partition("peft=LoRA(")
    tail = rest[rest.index("),\n        rng") :].removeprefix(")")
    return f"{head}peft={written}{tail}"


@pytest.mark.parametrize(
    ("written", "rank", "targets"),
    [
        ("LoRA(target_modules=('linear_qkv',), dim=8)", 8, {"qkv"}),
        ("LoRA(['linear_proj'], [], {}, 4, 8)", 4, {"o"}),
        ("CanonicalLoRA(('linear_q', 'linear_v'))", 32, {"q", "v"}),
    ],
)
def test_adapters_by_place_and_in_tuples(
    written: str, rank: int, targets: set[str], tmp_path: Path
) -> None:
    lora = read(tmp_path, recipe_with(written)).job["lora"]
    assert (lora["rank"], set(lora["targets"])) == (rank, targets)


@pytest.mark.parametrize(
    ("written", "word"),
    [
        ("adapters_of(8)", r"cfg\.peft says the adapters"),
        ("'lora'", "peft = 'lora'"),
        ("LoRA(dim=RANK)", r"cfg\.peft\.dim=\.\.\."),
        ("LoRA(target_modules=['linear_qkv', NAME])", r"cfg\.peft\.target_modules"),
        ("LoRA(target_modules='linear_qkv')", "expected names of layers"),
        ("LoRA(target_modules=[])", "expected names of layers"),
        ("LoRA(target_modules=[8])", "expected names of layers"),
        ("LoRA(exclude_modules=['linear_fc1'])", r"peft\.exclude_modules"),
        ("LoRA({'linear_qkv': 1}, [])", "expected names of layers"),
        ("LoRA(dim=[8])", "a number"),
    ],
)
def test_adapters_that_cannot_be_read_are_not_dropped(
    written: str, word: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=word):
        read(tmp_path, recipe_with(written))


def test_unread_adapters_are_those_of_the_model_file_or_said_by_hand(tmp_path: Path) -> None:
    tuned = load_model("llama3-8b", [("training.task", "lora"), ("training.lora.rank", 4)])
    path = tmp_path / "recipe.py"
    path.write_text(recipe_with("adapters_of(8)"))
    run = read_run(str(path), RunQuery(tuned, n_devices=8))
    assert "lora" not in run.job
    assert any("the model file's" in text for text in run.assumed)
    path.write_text(recipe_with("LoRA(dim=RANK)"))
    said = RunQuery(tuned, n_devices=8, sets=(("cfg.peft.dim", "64"),))
    assert read_run(str(path), said).job["lora"]["rank"] == 64
