"""Command lines of torchtune and configurations of its recipes: read, changed, refused by name."""

from pathlib import Path
from typing import Any

import pytest

import planner
from costmodels.plans import Layout
from costmodels.precision import RECIPES, Numerics, recipe_of
from costmodels.problem import Problem
from costmodels.shapes import TrainingJob
from costmodels.stacks import STACKS
from hardware.parts import Fabric
from planner.errors import SpecError
from planner.frameworks.runs.changes import changed_settings
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run
from planner.specs.loader import model_from_dict
from tests.planner.emitting import layout, pool
from tests.repeats import slow

SIZES = {"gated": True, "layers": 4, "hidden": 128, "heads": 8, "kv_heads": 2, "ffn": 256}
MODEL = model_from_dict(
    {
        "model": {"name": "tiny", "vocab": 1024, "tied": False, **SIZES},
        "training": {"seq_len": 2048, "global_batch": 128},
    }
)
CONFIG = """
model: {_component_: torchtune.models.llama3_1.lora_llama3_1_8b,
  lora_attn_modules: [q_proj, v_proj], apply_lora_to_mlp: True, lora_rank: 8, lora_alpha: 16}
tokenizer: {path: a, max_seq_len: 1024}
checkpointer: {checkpoint_dir: b}
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: False}
optimizer: {_component_: torch.optim.AdamW, lr: 3e-4}
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
batch_size: 2
gradient_accumulation_steps: 4
enable_activation_checkpointing: True
dtype: bf16
"""


def read(tmp_path: Path, command: str, config: str = CONFIG) -> Any:
    (tmp_path / "a.yaml").write_text(config)
    name = "a.yaml" if not command else "a.sh"
    if command:
        (tmp_path / name).write_text(command + "\n")
    return read_run(str(tmp_path / name), RunQuery(MODEL, n_devices=8))


LORA = "tune run --nproc_per_node 4 lora_finetune_distributed "


@pytest.mark.parametrize("names", ["--config a.yaml", "--config=a.yaml"])
def test_changes_on_the_command_line_are_read(names: str, tmp_path: Path) -> None:
    words = "batch_size=4 model.lora_rank=32 tokenizer.max_seq_len=512"
    run = read(tmp_path, f"{LORA} {names} {words} ~enable_activation_checkpointing")
    assert (run.n_devices, run.layout["mbs"], run.layout["gbs"]) == (4, 4, 64)
    assert (run.job["lora"]["rank"], run.job["seq_len"]) == (32, 512)
    assert run.layout["recompute"] == "none"
    assert read(tmp_path, f"{LORA} {names}").layout["recompute"] == "full"


def test_components_go_by_their_section(tmp_path: Path) -> None:
    words = "model=torchtune.models.llama3_1.qlora_llama3_1_8b model.apply_lora_to_mlp=False"
    run = read(tmp_path, f"{LORA} --config a.yaml {words}")
    assert (run.job["task"], run.job["lora"]["targets"]) == ("qlora", ["q", "v"])
    run = read(tmp_path, f"{LORA} --config a.yaml optimizer=bitsandbytes.optim.AdamW8bit")
    assert run.job["optimizer"] == "adam-8bit"
    assert (
        "seq_len" not in read(tmp_path, f"{LORA} --config a.yaml tokenizer.max_seq_len=None").job
    )


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (f"{LORA} --config llama3_1/8B_lora", "tune cp llama3_1/8B_lora my.yaml"),
        (f"{LORA} --config gone.yaml", "names gone.yaml, which cannot be read"),
        (f"{LORA} --config a.yaml ~nope", "~nope takes away a key that is not there"),
        (f"{LORA} --config a.yaml ~model.nope", "~nope takes away|~model.nope takes away"),
        (f"{LORA} --config a.yaml --batch_size 3", "written as key=value, got --batch_size"),
        (f"{LORA} --config a.yaml --batch_size=3", "written as key=value, got --batch_size=3"),
        (f"{LORA} --config a.yaml batch_size=${{B}}", "depends on B, which nothing sets"),
        (f"{LORA} --config a.yaml model.use_dora=True", "use_dora true is not read: DoRA"),
        ("tune run eleuther_eval --config a.yaml", "not a training run: it evaluates"),
        ("tune run generate --config a.yaml", "not a training run: it generates"),
        ("tune run dev/generate_v2 --config a.yaml", "not a training run: it generates"),
        ("tune run quantize --config=a.yaml", "not a training run: it quantizes"),
        ("tune run knowledge_distillation_single_device --config a.yaml", "distillation"),
        ("tune run qat_distributed --config a.yaml", "QAT"),
        ("tune run qat_lora_finetune_distributed --config a.yaml", "QAT"),
        ("tune run ppo_full_finetune_single_device --config a.yaml", "reinforcement"),
        ("tune run dev/grpo_full_finetune_distributed --config a.yaml", "reinforcement"),
        ("tune run dev/early_exit_finetune_distributed --config a.yaml", "skipped"),
    ],
)
def test_command_lines_that_are_not_read(command: str, word: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        read(tmp_path, command)
    assert any(one in str(error.value) for one in word.split("|")), error.value


def test_recipes_by_path_and_by_a_name_of_ones_own(tmp_path: Path) -> None:
    for recipe in ("dev/full_finetune_distributed", "my_recipe", "recipes/mine.py"):
        run = read(tmp_path, f"tune run --nproc_per_node 2 {recipe} --config a.yaml batch_size=8")
        assert (run.n_devices, run.layout["mbs"]) == (2, 8), recipe


WITHOUT_OPTIMIZER = "\n".join(line for line in CONFIG.splitlines() if "optim." not in line)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ("tasks: [truthfulqa_mc2]", "it evaluates a model"),
        ("prompt: {user: Tell a joke}", "it generates text"),
        ("quantizer: {_component_: a.b, groupsize: 256}", "it quantizes a model"),
        ("", "it has no optimizer"),
    ],
)
def test_configurations_that_train_nothing(more: str, word: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=word):
        read(tmp_path, "", WITHOUT_OPTIMIZER + f"\n{more}\n")


def test_what_trains_nothing_needs_no_model(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: {_component_: a.b}\nquantizer: {_component_: c}\n")
    with (tmp_path / "a.yaml").open("a") as file:
        file.write("checkpointer: {checkpoint_dir: b}\n")
    with pytest.raises(SpecError, match="it quantizes a model"):
        read_run(str(tmp_path / "a.yaml"), RunQuery())


def changes(run: Any, old: Layout, new: Layout) -> dict[str, str | None]:
    problem = Problem(MODEL.shape, TrainingJob(1024, 64), pool(), Fabric(), STACKS["hf-fsdp2"])
    return changed_settings(run, old, new, problem)


def test_changes_have_keys_of_torchtune_or_none(tmp_path: Path) -> None:
    run = read(tmp_path, "", CONFIG)
    old = layout(MODEL.shape, zero=3, mbs=2, gbs=64)
    assert changes(run, old, layout(MODEL.shape, zero=2, mbs=2, gbs=64)) == {
        "fsdp_reshard_after_forward": "false"
    }
    wide = layout(MODEL.shape, zero=3, mbs=4, gbs=64)
    assert set(changes(run, old, wide)) == {"batch_size", "gradient_accumulation_steps"}
    assert changes(run, old, layout(MODEL.shape, zero=3, mbs=2, gbs=64, shard=4)) == {}
    split = layout(MODEL.shape, zero=3, mbs=2, gbs=64, tp=2, dp=4)
    assert changes(run, old, split) == {}
    plan = "tensor_parallel_plan: {_component_: torchtune.models.llama3.base_llama_tp_plan}\n"
    assert "tensor_parallel_dim" in changes(read(tmp_path, "", CONFIG + plan), old, split)


FULL = CONFIG.replace("lora_llama3_1_8b", "llama3_1_8b")


@pytest.mark.parametrize(
    ("dtype", "precision", "per_param"), [("bf16", "bf16-true", 8), ("fp32", "fp32", 16)]
)
def test_all_weights_are_trained_in_one_format(
    dtype: str, precision: str, per_param: int, tmp_path: Path
) -> None:
    run = read(tmp_path, "", FULL.replace("dtype: bf16", f"dtype: {dtype}"))
    assert run.job["precision"] == precision
    assert RECIPES[precision, "adam"].total_bytes == per_param
    assert read(tmp_path, "", CONFIG).job["precision"] == "bf16"  # of frozen weights


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [("torch.optim.AdamW", 4.0), ("bitsandbytes.optim.PagedAdamW8bit", 2.03125)],
)
def test_states_of_a_run_in_bf16_alone(optimizer: str, states: float, tmp_path: Path) -> None:
    run = read(tmp_path, "", FULL.replace("torch.optim.AdamW", optimizer))
    recipe = recipe_of(Numerics(run.job["precision"], run.job.get("optimizer", "adam")))
    assert (recipe.param_bytes, recipe.grad_bytes) == (2.0, 2.0)
    assert recipe.state_bytes == pytest.approx(states, abs=0.01)
    assert recipe.adam_bytes == pytest.approx(2 * (2 + states), abs=0.02)


def test_gradients_that_the_backward_frees_are_said(tmp_path: Path) -> None:
    freed = FULL.replace("gradient_accumulation_steps: 4", "gradient_accumulation_steps: 1")
    run = read(tmp_path, "", freed + "optimizer_in_bwd: True\n")
    assert (run.overestimated, run.refused) == ("optimizer_in_bwd", ())


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ("optimizer_in_bwd: True", "gradient_accumulation_steps"),
        slow("optimizer_in_bwd: True\nclip_grad_norm: 1.0", "clip_grad_norm"),
        ("tensor_parallel_dim: 2", "without tensor_parallel_plan"),
    ],
)
def test_what_torchtune_refuses_itself(more: str, word: str, tmp_path: Path) -> None:
    assert any(word in text for text in read(tmp_path, "", f"{FULL}{more}\n").refused)
    (tmp_path / "b.yaml").write_text(f"{FULL}{more}\n")
    report = planner.check(tmp_path / "b.yaml", "h100-x8", model="llama3-8b")
    assert "ACC127" in {refusal.rule.code for refusal in report.refusals}


@pytest.mark.parametrize(
    ("recipe", "config", "word"),
    [
        ("lora_finetune_distributed", FULL, "without adapters: full_finetune_distributed"),
        ("full_finetune_distributed", CONFIG, "with adapters: lora_finetune_distributed"),
        ("lora_finetune_distributed", CONFIG, ""),
        ("full_finetune_distributed", FULL, ""),
    ],
)
def test_a_recipe_is_for_models_with_adapters_or_without(
    recipe: str, config: str, word: str, tmp_path: Path
) -> None:
    run = read(tmp_path, f"tune run --nproc_per_node 4 {recipe} --config a.yaml", config)
    assert [word in text for text in run.refused] == [True] * bool(word)


def test_the_best_plan_is_one_that_a_recipe_can_say(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(FULL)
    report = planner.check(tmp_path / "b.yaml", "h100-x8", model="llama3-8b")
    assert report.standing is not None
    assert report.standing.best is not None
    best = report.standing.best.layout
    assert (best.tp, best.cp, best.dp_shard, best.zero in (2, 3)) == (1, 1, 8, True)
