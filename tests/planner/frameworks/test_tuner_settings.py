"""Settings of tools that fine-tune: what has no price is refused by name, or said."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

import planner
from costmodels.problem import Problem
from costmodels.shapes import TrainingJob
from costmodels.stacks import STACKS
from hardware.parts import Fabric
from planner.errors import SpecError
from planner.frameworks.finetuning.settings.table import SettingRule, setting_table
from planner.frameworks.finetuning.tuners import TUNERS
from planner.frameworks.runs.changes import changed_settings
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run
from planner.specs.loader import model_from_dict
from tests.planner.emitting import layout, pool

SIZES = {"gated": True, "layers": 4, "hidden": 128, "heads": 8, "kv_heads": 2, "ffn": 256}
MODEL = model_from_dict(
    {
        "model": {"name": "tiny", "vocab": 1024, "tied": False, **SIZES},
        "training": {"seq_len": 2048, "global_batch": 128},
    }
)
PLAIN = {
    "trl": "model_name_or_path: m\ndataset_name: d\nuse_peft: true\n",
    "axolotl": "base_model: m\nadapter: lora\nsequence_len: 2048\n",
    "llama-factory": "model_name_or_path: m\ntemplate: x\nstage: sft\ndo_train: true\n",
    "swift": "model: m\ntarget_modules: all-linear\ndataset: d\n",
    "torchtune": """model: {_component_: torchtune.models.llama3_1.lora_llama3_1_8b}
tokenizer: {path: a}
checkpointer: {checkpoint_dir: b}
optimizer: {_component_: torch.optim.AdamW}
""",
}


def read(tmp_path: Path, tool: str, more: str = "", **others: str) -> Any:
    for name, text in others.items():
        (tmp_path / name.replace("_json", ".json")).write_text(text)
    (tmp_path / "a.yaml").write_text(PLAIN[tool] + more)
    return read_run(str(tmp_path / "a.yaml"), RunQuery(MODEL, n_devices=8))


@pytest.mark.parametrize(
    ("tool", "line", "word"),
    [
        ("trl", "use_dora: true", "DoRA"),
        ("trl", "optim: galore_adamw_8bit", "GaLore"),
        ("trl", "optim: apollo_adamw", "APOLLO"),
        ("trl", "optim: adafactor", "its states have no price"),
        ("trl", "lora_modules_to_save: [lm_head]", "whole layers"),
        ("trl", "num_generations: 8", "reinforcement"),
        ("trl", "auto_find_batch_size: true", "no file says"),
        ("axolotl", "peft_use_dora: true", "DoRA"),
        ("axolotl", "optimizer: galore_adamw", "GaLore"),
        ("axolotl", "lisa_n_layers: 4", "LISA"),
        ("axolotl", "s2_attention: true", "LongLoRA"),
        ("axolotl", "qat: {weight_dtype: int4}", "QAT"),
        ("axolotl", "unfrozen_parameters: [lm_head]", "some of the weights"),
        ("axolotl", "plugins: [axolotl.integrations.kd.KDPlugin]", "otherwise"),
        ("axolotl", "optimizer: muon", "its states have no price"),
        ("axolotl", "expert_parallel_size: 2", "expert parallelism"),
        ("axolotl", "context_parallel_size: 2", "without FSDP2"),
        ("axolotl", "dp_shard_size: 4", "without FSDP2"),
        ("axolotl", "fsdp: [full_shard]\ncontext_parallel_size: 2", "without FSDP2"),
        ("axolotl", "deepspeed: a.json\ncontext_parallel_size: 2", "with DeepSpeed"),
        ("axolotl", "fsdp_config: {nope: 1}", "fsdp_config.nope 1 is not read"),
        ("axolotl", "fsdp: [full_speed]", "fsdp: full_speed is not read"),
        ("llama-factory", "use_dora: true", "DoRA"),
        ("llama-factory", "use_galore: true", "GaLore"),
        ("llama-factory", "use_apollo: true", "APOLLO"),
        ("llama-factory", "use_badam: true", "BAdam"),
        ("llama-factory", "shift_attn: true", "LongLoRA"),
        ("llama-factory", "use_llama_pro: true", "LLaMA Pro"),
        ("llama-factory", "additional_target: embed_tokens", "whole layers"),
        ("llama-factory", "export_dir: out", "it exports a model"),
        ("llama-factory", "fsdp_config: {activation_checkpointing: true}", "passes over"),
        ("llama-factory", "fsdp: true\nfsdp_config: gone.json", "cannot be read"),
        ("swift", "use_dora: true", "DoRA"),
        ("swift", "use_galore: true", "GaLore"),
        ("swift", "lisa_activated_layers: 2", "LISA"),
        ("swift", "tuner_type: longlora", "tuner_type longlora is not read"),
        ("swift", "task_type: seq_cls", "classify"),
        ("swift", "optimizer: muon", "ms-swift itself"),
        ("torchtune", "quantizer: {_component_: a.b}", "QAT"),
        ("torchtune", "teacher_model: {_component_: a.b}", "distillation"),
        ("torchtune", "ac_mode: selective", "some of the layers"),
        ("torchtune", "device: cpu", "CPU"),
    ],
)
def test_what_has_no_price_is_refused_by_name(
    tool: str, line: str, word: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as error:
        read(tmp_path, tool, f"{line}\n", a_json="{}")
    problem = error.value.problems[0]
    assert word in problem.message
    assert problem.file.endswith("a.yaml")
    assert problem.hint


@pytest.mark.parametrize(
    ("tool", "lines"),
    [
        ("trl", "use_rslora: true\noptim: adamw_torch\nuse_dora: false"),
        ("axolotl", "loraplus_lr_ratio: 16\npeft_use_rslora: true\npeft_use_dora: false"),
        ("axolotl", "peft_init_lora_weights: pissa\npeft: {loftq_config: {loftq_bits: 4}}"),
        ("llama-factory", "loraplus_lr_ratio: 16.0\nuse_rslora: true\npissa_init: true"),
        ("swift", "init_weights: pissa\nlorap_lr_ratio: 16\nuse_rslora: true"),
        ("torchtune", "quantizer: null\nac_mode: null"),
    ],
)
def test_what_changes_no_price_is_read(tool: str, lines: str, tmp_path: Path) -> None:
    plain, run = read(tmp_path, tool), read(tmp_path, tool, f"{lines}\n")
    assert (run.layout, run.job, run.doubts) == (plain.layout, plain.job, ())
    assert run.notes == plain.notes


@pytest.mark.parametrize("tool", TUNERS)
def test_settings_that_are_unknown_are_doubted(tool: str, tmp_path: Path) -> None:
    assert read(tmp_path, tool).doubts == ()
    run = read(tmp_path, tool, "no_such_setting: 3\n")
    assert [doubt.what for doubt in run.doubts] == ["no_such_setting 3"]
    assert TUNERS[tool].title in run.doubts[0].why


def test_plugins_are_known_one_by_one(tmp_path: Path) -> None:
    liger = "axolotl.integrations.liger.LigerPlugin"
    run = read(tmp_path, "axolotl", f"plugins: [{liger}]\n")
    assert run.doubts == ()
    assert run.overestimated == "plugins"
    run = read(tmp_path, "axolotl", f"plugins: [{liger}, my.own.Plugin]\n")
    assert [doubt.what.split()[0] for doubt in run.doubts] == ["plugins"]


@pytest.mark.parametrize(
    ("optim", "optimizer", "overestimated"),
    [
        ("adamw_bnb_8bit", "adam-8bit", ""),
        ("paged_adamw_8bit", "adam-8bit", "optimizer paged_adamw_8bit"),
        ("paged_adamw_32bit", None, "optimizer paged_adamw_32bit"),
    ],
)
def test_states_of_optimizers(
    optim: str, optimizer: str | None, overestimated: str, tmp_path: Path
) -> None:
    run = read(tmp_path, "axolotl", f"optimizer: {optim}\n")
    assert (run.job.get("optimizer"), run.overestimated) == (optimizer, overestimated)


@pytest.mark.parametrize("tool", ["trl", "llama-factory"])
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("fsdp: full_shard auto_wrap", (3, "none", False)),
        ("fsdp: [shard_grad_op, auto_wrap]", (2, "none", False)),
        ("fsdp: true\nfsdp_config: {reshard_after_forward: false}", (2, "none", False)),
        ("fsdp: true\nfsdp_config: {fsdp_activation_checkpointing: true}", (3, "full", False)),
        ("fsdp: true\nfsdp_config: b.json", (2, "full", False)),
        ("fsdp: full_shard offload", (3, "none", True)),
        ("fsdp: ''", (0, "none", False)),
    ],
)
def test_sharding_in_the_file_of_a_tool(
    tool: str, lines: str, expected: tuple[int, str, bool], tmp_path: Path
) -> None:
    off = {"trl": "gradient_checkpointing: false\n"}.get(
        tool, "disable_gradient_checkpointing: true\n"
    )
    file = '{"version": 2, "reshard_after_forward": false, "activation_checkpointing": true}'
    run = read(tmp_path, tool, f"{off}{lines}\n", b_json=file)
    assert (run.layout["zero"], run.layout["recompute"]) == expected[:2]
    assert ("offload_params" in run.overestimated) is expected[2]


@pytest.mark.parametrize(
    ("lines", "zero", "degrees"),
    [
        ("fsdp: [full_shard, auto_wrap]", 3, (1, 8)),
        ("fsdp_config: {fsdp_version: 2, reshard_after_forward: false}", 2, (1, 8)),
        ("fsdp_config: {version: 2}\ncontext_parallel_size: 2", 3, (2, 8)),
        ("fsdp_version: 2\nfsdp_config: {a: null}\nsequence_parallel_degree: 4", 3, (4, 8)),
    ],
)
def test_sharding_of_axolotl(
    lines: str, zero: int, degrees: tuple[int, int], tmp_path: Path
) -> None:
    lines = lines.replace("a: null", "offload_params: false")
    run = read(tmp_path, "axolotl", f"{lines}\n")
    assert (run.layout["zero"], run.layout["cp"], run.layout["n_devices"]) == (zero, *degrees)
    assert run.n_devices in (None, 8)


def test_a_file_of_dpo_is_known_by_its_settings(tmp_path: Path) -> None:
    run = read(tmp_path, "trl", "beta: 0.1\n")
    assert (run.job["reference"], run.sample_sequences) == ("memory", 2)
    assert any("trl.scripts.dpo" in note for note in run.notes)


def test_lengths_of_generation_are_not_those_of_samples(tmp_path: Path) -> None:
    run = read(tmp_path, "llama-factory", "cutoff_len: 512\nmax_length: 4096\n")
    assert run.job["seq_len"] == 512


def test_a_rule_is_about_values_or_all_that_are_on() -> None:
    rule = SettingRule(("a", "b.*"), "why", unless=("1",))
    held = [rule.holds("a", x) for x in (2, 1, "1", False, None, "none", [], "x")]
    assert held == [True, False, False, False, False, False, False, True]
    assert rule.holds("b.c", 3)
    assert not rule.holds("ab", 3)
    words = SettingRule(("a",), "why", values=("*x*",))
    assert [words.holds("a", x) for x in ("axe", ["b", "AX"], "b")] == [True, True, False]


@pytest.mark.parametrize("tool", TUNERS)
def test_tables_say_each_setting_once(tool: str) -> None:
    table = setting_table(tool)
    assert not set(table.read) & set(table.same)
    assert all(rule.text and rule.fix for rule in table.refused)
    assert all(rule.text and not rule.fix for rule in table.said)


EXAMPLES: dict[str, Any] = json.loads(
    (Path(__file__).parent / "tuner_examples.json").read_text(encoding="utf-8")
)
"""Settings of the tools' own examples, with some values (`tools.samples.tuner_examples`)."""
STRANGE = {
    "axolotl": {"context_parapllel_size", "device_map.", "full_finetune"},
    "llama-factory": {"mixed_precision", "use_packed_sequences"},
}
"""Settings of the examples that the tools themselves have not."""
AT_LEAST = {"trl": 23, "axolotl": 250, "llama-factory": 66, "swift": 199, "torchtune": 156}


def example_values(tool: str) -> list[tuple[str, Any]]:
    settings = EXAMPLES[tool]["settings"]
    return [(key, value) for key, values in settings.items() for value in values or [True]]


@pytest.mark.parametrize("tool", TUNERS)
def test_settings_of_examples_are_known(tool: str) -> None:
    assert EXAMPLES[tool]["files"] >= AT_LEAST[tool]
    table = setting_table(tool)
    strange = {key for key, value in example_values(tool) if not table.knows(key, value)}
    assert strange == STRANGE.get(tool, set())


@pytest.mark.slow
@pytest.mark.parametrize("tool", TUNERS)
def test_no_setting_of_an_example_is_dropped_in_silence(tool: str, tmp_path: Path) -> None:
    table, plain = setting_table(tool), set(yaml.safe_load(PLAIN[tool]))
    outcomes: Counter[str] = Counter()
    for key, value in example_values(tool):
        top = key.partition(".")[0]
        if top in plain or (tool == "torchtune" and top in ("model", "optimizer", "tokenizer")):
            continue
        nested: Any = value
        for part in reversed(key.split(".")[1:]):
            nested = {part: nested}
        try:
            run = read(tmp_path, tool, f"{json.dumps({top: nested})[1:-1]}\n")
        except SpecError:
            outcomes["refused"] += 1
            continue
        doubted = any(doubt.what.startswith(f"{key} ") for doubt in run.doubts)
        said = any(rule.holds(key, value) for rule in table.said)
        noted = any(key in note.partition(": ")[0].split(", ") for note in run.notes)
        outcomes["doubted" if doubted else "said" if said else "read"] += 1
        assert doubted != table.knows(key, value), key
        assert noted or not said, key
        assert not table.refusal({key: value}), key
    assert min(outcomes["read"], outcomes["refused"]) > 10 or tool == "trl"


@pytest.mark.parametrize("tool", [*TUNERS, "trainer"])
def test_what_is_read_stands_in_a_reader(tool: str) -> None:
    folder = Path(planner.__file__).parent / "frameworks"
    rooms = ("finetuning", "fsdp2", "runs")
    text = "".join(p.read_text() for room in rooms for p in (folder / room).rglob("*.py"))
    names = [key.removesuffix(".*") for key in setting_table(tool).read]
    assert [name for name in names if f'"{name}"' not in text and f'"{name}.' not in text] == []


@pytest.mark.parametrize(
    ("tool", "command", "n_devices"),
    [
        ("llama-factory", "llamafactory-cli train a.yaml lora_rank=64", None),
        ("llama-factory", "torchrun -m llamafactory.launcher a.yaml lora_rank=64", 1),
        ("llama-factory", "NPROC_PER_NODE=4 llamafactory-cli train a.yaml lora_rank=64", 4),
        ("axolotl", "axolotl train a.yaml --lora-r 64", None),
        ("axolotl", "CUDA_VISIBLE_DEVICES=0,1 axolotl train a.yaml --lora-r=64", 2),
        ("trl", "trl sft --config a.yaml --lora_r 64 --num_processes 4", 4),
    ],
)
def test_commands_of_the_tools(
    tool: str, command: str, n_devices: int | None, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(PLAIN[tool])
    (tmp_path / "a.sh").write_text(f"{command}\n")
    run = read_run(str(tmp_path / "a.sh"), RunQuery(MODEL, n_devices=8))
    assert (run.n_devices, run.job["lora"]["rank"]) == (n_devices, 64)
    (tmp_path / "a.yaml").unlink()
    with pytest.raises(SpecError):
        read_run(str(tmp_path / "a.sh"), RunQuery(MODEL, n_devices=8))


def test_commands_of_trl_say_the_task(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(PLAIN["trl"])
    for task, reference in (("sft", None), ("dpo", "memory")):
        (tmp_path / "a.sh").write_text(f"trl {task} --config a.yaml\n")
        run = read_run(str(tmp_path / "a.sh"), RunQuery(MODEL, n_devices=8))
        assert run.job.get("reference") == reference


def test_degrees_are_no_change_of_a_file_that_shards_itself(tmp_path: Path) -> None:
    run = read(tmp_path, "trl", "fsdp: full_shard auto_wrap\n")
    old, new = layout(MODEL.shape, zero=3), layout(MODEL.shape, zero=3, shard=4)
    problem = Problem(MODEL.shape, TrainingJob(2048, 128), pool(), Fabric(), STACKS["hf-fsdp2"])
    assert changed_settings(run, old, new, problem) == {}
    wider = changed_settings(run, old, layout(MODEL.shape, zero=2), problem)
    assert wider["fsdp_config.fsdp_reshard_after_forward"] == "false"
    with_file = read(tmp_path, "trl")
    assert "parallelism_config" in " ".join(changed_settings(with_file, old, new, problem))
