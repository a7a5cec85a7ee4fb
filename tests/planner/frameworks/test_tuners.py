import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodels.data.lengths import SampleData
from costmodels.problem import Problem
from costmodels.shapes import TrainingJob
from costmodels.stacks import STACKS
from costmodels.tuning.records import TuningJob
from hardware.parts import Fabric
from planner.analyze.plan_files import chosen_targets
from planner.cli.command_arguments import SolveArguments
from planner.cli.commands.plans import implied_framework, implied_values
from planner.errors import SpecError, UsageError
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.finetuning.tool_files import yaml_lines
from planner.frameworks.finetuning.tuned_plan import engine_of
from planner.frameworks.finetuning.tuners import TUNERS
from planner.frameworks.runs.changes import changed_settings
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run
from planner.solver.options import axis_items
from planner.solver.solve import solve
from planner.specs.loader import model_from_dict
from tests.planner.emitting import HEADER, golden, layout, pool
from tests.repeats import slow
from tools.samples.tuned import MODELS, drawn_samples, misread

TRAINERS = [name for name, one in TUNERS.items() if not one.has_own_loop]
"""Tools on the Trainer of Hugging Face."""
ALL = ("q", "k", "v", "o", "gate", "up", "down")
LORA = TuningJob(16, ALL, 32.0, 0.05, "bf16")
QLORA = replace(LORA, base="nf4")
SIZES = {"gated": True, "layers": 4, "hidden": 128, "heads": 8, "kv_heads": 2, "ffn": 256}
DOCUMENT: dict[str, Any] = {
    "model": {"name": "tiny", "vocab": 1024, "tied": False, **SIZES},
    "training": {"seq_len": 2048, "global_batch": 128},
}
MODEL = model_from_dict(DOCUMENT)
JOB = TrainingJob(2048, 128, tuning=LORA)


def files(
    tool: str = "trl", job: TrainingJob = JOB, engine: str = "fsdp2", **changes: Any
) -> dict[str, str]:
    plan = layout(MODEL.shape, **{"zero": 3, **changes})
    return emit_plan(tool, EmitRequest(plan, MODEL.shape, job, pool(), HEADER, engine=engine))


def settings(tool: str = "trl", **changes: Any) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(files(tool, **changes)[f"{tool}.yaml"])
    return read


@pytest.mark.parametrize("tool", TRAINERS)
@pytest.mark.parametrize("engine", ["fsdp2", "deepspeed"])
def test_golden(tool: str, engine: str) -> None:
    full = {"recompute": "full", "recompute_layers": 4}
    for name, text in files(tool, engine=engine, **full).items():
        if name != "model_config.json":
            golden(f"tiny-{engine}-{name}", text)


@pytest.mark.parametrize("tool", TRAINERS)
def test_batch_of_a_step(tool: str) -> None:
    read = settings(tool, mbs=2, zero=2 if tool != "axolotl" else 3)
    name = "micro_batch_size" if tool == "axolotl" else "per_device_train_batch_size"
    assert read[name] * read["gradient_accumulation_steps"] * 8 == 128


def test_adapters_of_each_tool() -> None:
    names = [f"{name}_proj" for name in ALL]
    trl, axolotl, factory, swift = (settings(tool) for tool in TRAINERS)
    assert (trl["use_peft"], trl["lora_r"], trl["lora_alpha"]) == (True, 16, 32)
    assert trl["lora_target_modules"] == axolotl["lora_target_modules"] == names
    assert (axolotl["adapter"], axolotl["lora_dropout"]) == ("lora", 0.05)
    assert factory["lora_target"] == ",".join(names)
    assert factory["finetuning_type"] == "lora"
    assert (swift["tuner_type"], swift["target_modules"]) == ("lora", names)


@pytest.mark.parametrize(
    ("base", "trl", "axolotl", "factory", "swift"),
    [
        ("nf4", (True, None, True), ("qlora", None), (4, True), (4, True)),
        ("nf4-plain", (True, None, False), ("qlora", False), (4, False), (4, False)),
        ("int8", (None, True, None), ("lora", None), (8, False), (8, None)),
        ("bf16", (None, None, None), ("lora", None), (None, None), (None, None)),
    ],
)
def test_storage_of_frozen_weights(
    base: str,
    trl: tuple[Any, ...],
    axolotl: tuple[Any, ...],
    factory: tuple[Any, ...],
    swift: tuple[Any, ...],
) -> None:
    change = {"job": replace(JOB, tuning=replace(LORA, base=base)), "zero": 0}
    read = settings("trl", **change)
    assert trl == tuple(
        read.get(x) for x in ("load_in_4bit", "load_in_8bit", "use_bnb_nested_quant")
    )
    read = settings("axolotl", **change)
    nested = read.get("bnb_config_kwargs", {}).get("bnb_4bit_use_double_quant")
    assert axolotl == (read["adapter"], nested)
    read = settings("llama-factory", **change)
    assert factory == (read.get("quantization_bit"), read.get("double_quantization"))
    read = settings("swift", **change)
    assert swift == (read.get("quant_bits"), read.get("bnb_4bit_use_double_quant"))


def test_sharded_weights_of_4_bits_are_stored_as_16() -> None:
    key = "bnb_4bit_quant_storage"
    assert settings(job=replace(JOB, tuning=QLORA))[key] == "bfloat16"
    assert key not in settings(job=replace(JOB, tuning=QLORA), zero=0)
    launch = yaml.safe_load(files(job=replace(JOB, tuning=QLORA))["trl-accelerate.yaml"])
    assert launch["fsdp_config"]["fsdp_cpu_ram_efficient_loading"] is False


def test_recompute_stands_in_one_place() -> None:
    full = {"recompute": "full", "recompute_layers": 4}
    launch = yaml.safe_load(files(**full)["trl-accelerate.yaml"])
    assert launch["fsdp_config"]["fsdp_activation_checkpointing"] is True
    assert settings(**full)["gradient_checkpointing"] is False
    assert settings(**full, zero=0)["gradient_checkpointing"] is True
    assert settings("llama-factory", **full)["disable_gradient_checkpointing"] is True
    assert settings("llama-factory", **full, zero=0)["disable_gradient_checkpointing"] is False


def test_plain_replicas_have_no_sections_of_fsdp() -> None:
    launch = yaml.safe_load(files(zero=0)["trl-accelerate.yaml"])
    assert launch["distributed_type"] == "MULTI_GPU"
    assert not {"fsdp_config", "parallelism_config"} & set(launch)
    alone = files(zero=0, n_devices=1, dp=1)["trl-accelerate.yaml"]
    assert yaml.safe_load(alone)["distributed_type"] == "NO"
    assert "fsdp_config" not in settings("axolotl", zero=0)


def test_deepspeed_takes_learning_rate_and_betas_of_the_trainer() -> None:
    config = json.loads(files(engine="deepspeed")["trl-deepspeed.json"])
    assert set(config["optimizer"]["params"].values()) == {"auto"}
    assert config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True
    assert config["train_batch_size"] == 128
    launch = yaml.safe_load(files(engine="deepspeed")["trl-accelerate.yaml"])
    named = launch["deepspeed_config"]["deepspeed_config_file"]
    assert (launch["distributed_type"], named) == ("DEEPSPEED", "trl-deepspeed.json")


@pytest.mark.parametrize(
    ("packing", "trl", "attention"),
    [
        ("masked", (True, "bfd"), "flash_attention_2"),
        ("unmasked", (True, "wrapped"), "sdpa"),
        ("none", (False, None), "sdpa"),
    ],
)
def test_packs(packing: str, trl: tuple[bool, str | None], attention: str) -> None:
    data = SampleData(packing, 300.0, 1e5, 0.9)
    job = replace(JOB, data=data)
    read = settings(job=job)
    assert (read["packing"], read.get("packing_strategy")) == trl
    assert read["attn_implementation"] == attention
    factory = settings("llama-factory", job=job)
    assert factory.get("neat_packing", False) is (packing == "masked")
    assert "axolotl.txt" in files("axolotl", job=job) or packing != "unmasked"


def test_one_adapted_layer_is_a_pattern_for_trl() -> None:
    job = replace(JOB, tuning=replace(LORA, targets=("q",)))
    assert settings(job=job)["lora_target_modules"] == [r".*\.q_proj"]
    assert settings("axolotl", job=job)["lora_target_modules"] == ["q_proj"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"tp": 2, "dp": 4, "engine": "deepspeed", "zero": 1}, "tp 2"),
        ({"pp": 2, "dp": 4, "engine": "deepspeed", "zero": 1, "gbs": 128}, "pipeline of 2"),
        (
            {"recompute": "full", "recompute_layers": 2, "engine": "deepspeed"},
            "all layers or none",
        ),
        ({"job": replace(JOB, tuning=replace(LORA, alpha=1.5))}, "closest: 2"),
        ({"job": replace(JOB, tuning=replace(LORA, targets=("qkv",)))}, "closest: q, k, v"),
    ],
)
def test_what_no_file_can_say_is_refused(changes: dict[str, Any], word: str) -> None:
    found = files(**changes)
    assert list(found) == ["trl.txt"]
    assert word in found["trl.txt"]


def test_sharding_of_swift_is_a_file_of_its_own() -> None:
    full = {"recompute": "full", "recompute_layers": 4}
    found = files("swift", zero=2, **full)
    assert yaml.safe_load(found["swift.yaml"])["fsdp"] == "swift-fsdp2.json"
    section = json.loads(found["swift-fsdp2.json"])
    assert section["fsdp"] == "shard_grad_op auto_wrap"
    assert section["fsdp_config"]["reshard_after_forward"] is False
    assert section["fsdp_config"]["activation_checkpointing"] is True
    assert yaml.safe_load(found["swift.yaml"])["gradient_checkpointing"] is False
    assert "swift-fsdp2.json" not in files("swift", zero=0)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"shard": 4}, "4 of 8 ranks"),
        ({"job": replace(JOB, data=SampleData("unmasked", 300.0, 1e5, 0.9))}, "masked or none"),
        (
            {"recompute": "full", "recompute_layers": 4, "activation_offload_layers": 4},
            "on the host",
        ),
    ],
)
def test_what_swift_cannot_say(changes: dict[str, Any], word: str) -> None:
    assert word in files("swift", **changes)["swift.txt"]
    assert "swift.txt" not in files("swift", replace(JOB, tuning=replace(LORA, alpha=1.5)))


def test_commands_of_swift_are_read(tmp_path: Path) -> None:
    script = """NPROC_PER_NODE=8 swift sft --model some/model --dataset some/data \\
      --tuner_type lora --target_modules q_proj v_proj --lora_rank 32 --quant_method bnb \\
      --quant_bits 4 --per_device_train_batch_size 2 --max_length 4096 --deepspeed {}
    """
    run = read(tmp_path, "a.sh", script.format("zero2_offload"))
    assert run.job["lora"]["targets"] == ["q", "v"]
    assert (run.job["task"], run.job["lora"]["rank"], run.job["seq_len"]) == ("qlora", 32, 4096)
    assert (run.n_devices, run.layout["mbs"], run.layout["gbs"]) == (8, 2, 16)
    assert (run.layout["zero"], run.layout["optimizer_offload"]) == (2, True)
    assert read(tmp_path, "b.sh", script.format("zero3")).layout["zero"] == 3
    fsdp = script.replace("--deepspeed {}", "--fsdp fsdp2").replace("swift sft", "swift rlhf")
    run = read(tmp_path, "c.sh", fsdp)
    assert (run.layout["zero"], run.layout["recompute"]) == (3, "full")
    assert (run.job["reference"], run.layout["mbs"]) == ("memory", 4)


def test_commands_of_swift_train_adapters_unless_told(tmp_path: Path) -> None:
    run = read(tmp_path, "a.sh", "swift sft --model m --dataset d --system 'a: b: c'\n")
    assert (run.job["task"], run.job["lora"]["rank"], run.n_devices) == ("lora", 8, 1)
    assert run.layout["gbs"] == 16
    full = read(tmp_path, "b.sh", "swift sft --model m --tuner_type full --dataset d\n")
    assert "lora" not in full.job
    with pytest.raises(SpecError, match="its option model"):
        read(tmp_path, "c.sh", "NPROC_PER_NODE=2 swift sft --dataset d\n")


def test_files_of_megatron_swift_are_told_apart(tmp_path: Path) -> None:
    text = "model: m\ntuner_type: lora\ndataset: d\ntensor_model_parallel_size: 2\n"
    with pytest.raises(SpecError, match="does not read yet"):
        read(tmp_path, "run.yaml", text)


def test_axolotl_always_reshards() -> None:
    assert "zero 3" in files("axolotl", zero=2)["axolotl.txt"]
    assert "axolotl.yaml" in files("axolotl", zero=2, engine="deepspeed")


def test_names_that_peft_moves_to_experts_are_refused() -> None:
    model = model_from_dict({**DOCUMENT, "model": {"name": "m", **MODELS["latent"]}})
    plan = layout(model.shape, zero=3)
    tuning = replace(LORA, targets=("q_up", "o", "gate", "up"))
    request = EmitRequest(plan, model.shape, replace(JOB, tuning=tuning), pool(), HEADER)
    assert "closest: targets q_up, o" in emit_plan("trl", request)["trl.txt"]
    request = replace(request, job=replace(JOB, tuning=replace(tuning, targets=("q_up", "o"))))
    assert "q_b_proj" in emit_plan("trl", request)["trl.yaml"]


@pytest.mark.parametrize("n", [3, slow(12)])
@pytest.mark.parametrize("tool", TUNERS)
def test_drawn_jobs_are_read_back(tool: str, n: int) -> None:
    for sample in drawn_samples(tool, n, 7):
        for file in (TUNERS[tool].config_file, TUNERS[tool].launcher_file):
            assert misread(sample, file) == []


DPO = replace(JOB, task="dpo", tuning=None, has_reference=True)
PAIRED_LORA = replace(JOB, task="lora", has_precomputed_reference=True)
DRY_LORA = replace(PAIRED_LORA, tuning=replace(LORA, dropout=0.0))


@pytest.mark.parametrize("tool", TRAINERS)
@pytest.mark.parametrize("engine", ["fsdp2", "deepspeed"])
def test_pairs_are_one_sample_of_the_batch(tool: str, engine: str) -> None:
    found = files(tool, DPO, engine, mbs=4)
    read = yaml.safe_load(found[f"{tool}.yaml"])
    name = "micro_batch_size" if tool == "axolotl" else "per_device_train_batch_size"
    assert read[name] == 2  # pairs in 4 sequences
    assert read[name] * read["gradient_accumulation_steps"] * 8 == 64
    if engine == "deepspeed":
        config = json.loads(found[f"{tool}-deepspeed.json"])
        assert config["train_batch_size"] == 64
        assert config["train_micro_batch_size_per_gpu"] == 2


def test_preferences_of_each_tool() -> None:
    of = {tool: settings(tool, job=DPO, mbs=2) for tool in TRAINERS}
    assert of["trl"]["precompute_ref_log_probs"] is False
    assert of["axolotl"]["rl"] == "dpo"
    assert of["llama-factory"]["stage"] == "dpo"
    assert of["swift"]["rlhf_type"] == "dpo"
    assert "  swift rlhf " in files("swift", DPO, mbs=2)["swift.sh"]
    packs = [read.get("packing", read.get("sample_packing", False)) for read in of.values()]
    assert not any(packs)
    assert "-m trl.scripts.dpo " in files(job=DPO, mbs=2)["trl.sh"]
    assert "-m trl.scripts.sft " in files()["trl.sh"]
    assert settings(job=PAIRED_LORA, mbs=2)["precompute_ref_log_probs"] is True
    assert settings("axolotl", job=DRY_LORA, mbs=2)["precompute_ref_log_probs"] is True


def test_trl_keeps_the_dropout_of_adapters_beside_a_reference() -> None:
    assert settings(job=PAIRED_LORA, mbs=2)["disable_dropout"] is False
    assert "disable_dropout" not in settings(job=DRY_LORA, mbs=2)


@pytest.mark.parametrize(
    ("tool", "job", "word"),
    [
        ("trl", replace(DPO, has_reference=False), "reference none"),
        ("trl", replace(DPO, data=SampleData("masked", 300.0, 1e5, 0.9)), "packing none"),
        ("axolotl", replace(DPO, has_reference=False, has_precomputed_reference=True), "TRL"),
        ("llama-factory", DRY_LORA, "reference precomputed"),
        ("axolotl", PAIRED_LORA, "dropout 0"),
        ("swift", DRY_LORA, "reference precomputed"),
        ("axolotl", replace(DRY_LORA, tuning=replace(QLORA, dropout=0.0)), "zero 0"),
    ],
)
def test_pairs_that_a_tool_cannot_say(tool: str, job: TrainingJob, word: str) -> None:
    found = files(tool, job, mbs=2)
    assert list(found) == [f"{tool}.txt"]
    assert word in found[f"{tool}.txt"]
    assert "an even mbs" in files(tool, replace(job, has_reference=True), mbs=1)[f"{tool}.txt"]


def test_pairs_beside_4_bit_weights_are_not_recomputed_reentrantly() -> None:
    full = {"recompute": "full", "recompute_layers": 4, "engine": "deepspeed", "mbs": 2}
    qlora = replace(DRY_LORA, tuning=replace(QLORA, dropout=0.0))
    read = settings("axolotl", job=qlora, zero=2, **full)
    assert read["gradient_checkpointing_kwargs"] == {"use_reentrant": False}
    assert "axolotl.txt" in files("axolotl", qlora, zero=3, **full)
    read = settings("axolotl", job=replace(JOB, tuning=QLORA), zero=2, **full)
    assert read["gradient_checkpointing_kwargs"] == {"use_reentrant": True}


def test_engine_is_what_the_plan_was_searched_for() -> None:
    plan = layout(MODEL.shape, zero=3)
    assert engine_of(plan, MODEL.shape, JOB) == "fsdp2"
    assert engine_of(plan, MODEL.shape, JOB, "deepspeed") == "deepspeed"
    assert engine_of(plan, MODEL.shape, JOB, "megatron") == "fsdp2"
    assert engine_of(replace(plan, zero=1), MODEL.shape, JOB) == "deepspeed"


@pytest.mark.parametrize(
    ("tool", "framework", "cluster", "expected"),
    [
        ("torchtune", "fsdp2", "h100-x8", {"zero": "2,3", "dp_shard": "8"}),
        ("axolotl", "fsdp2", "h100-x8", {"zero": "0,3"}),
        ("swift", "fsdp2", "h100-x8", {"dp_shard": "8"}),
        ("trl", "fsdp2", "h100-x8", {}),
        ("torchtune", "fsdp2", "no-such-cluster", {}),
        ("axolotl", "deepspeed", "h100-x8", {}),
    ],
)
def test_plans_are_searched_that_files_of_a_tool_can_say(
    tool: str, framework: str, cluster: str, expected: dict[str, str]
) -> None:
    stated = SolveArguments(emit=tool, out="x")
    values = dict(x.split("=") for x in implied_values(stated, framework, cluster))
    assert values == {"tp": "1", "pp": "1", "cp": "1", "ep": "1", **expected}
    own = SolveArguments(emit=tool, out="x", pin=("tp=2",), only=("cp=1,2",))
    assert not {"tp", "cp"} & {
        x.partition("=")[0] for x in implied_values(own, framework, cluster)
    }
    assert implied_values(SolveArguments(emit="fsdp2"), "fsdp2", cluster) == []


def test_every_plan_of_a_search_for_torchtune_is_written() -> None:
    stated = SolveArguments(emit="torchtune", out="x")
    only = axis_items(implied_values(stated, "fsdp2", "h100-x8"), "--only")
    tuned = {**DOCUMENT["training"], "task": "lora", "lora": {"rank": 16, "targets": ["q", "v"]}}
    result = solve({**DOCUMENT, "training": tuned}, "h100-x8", framework="fsdp2", only=only)
    assert result.plans
    for plan in result.plans:
        request = EmitRequest(plan.layout, MODEL.shape, JOB, pool(), HEADER, engine="fsdp2")
        assert "torchtune.yaml" in emit_plan("torchtune", request), plan.layout


def test_targets_of_the_command_line() -> None:
    assert chosen_targets("trl, fsdp2") == ["trl", "fsdp2"]
    assert chosen_targets("axolotl@0.19") == ["axolotl"]
    assert implied_framework("", "trl") == "fsdp2"
    with pytest.raises(UsageError, match=r"TRL 0\.9"):
        chosen_targets("trl@0.9")
    with pytest.raises(UsageError, match="llama-factory"):
        chosen_targets("unsloth")


def read(tmp_path: Path, name: str, text: str, **others: str) -> Any:
    for other, content in {name: text, **others}.items():
        (tmp_path / other).write_text(content)
    return read_run(str(tmp_path / name), RunQuery(MODEL, n_devices=8))


def test_changes_have_the_names_of_the_file(tmp_path: Path) -> None:
    run = read(tmp_path, "axolotl.yaml", files("axolotl")["axolotl.yaml"])
    plan = layout(MODEL.shape, zero=3)
    problem = Problem(MODEL.shape, JOB, pool(), Fabric(), STACKS["hf-fsdp2"])
    changes = changed_settings(run, plan, replace(plan, mbs=2, recompute="full"), problem)
    assert changes["micro_batch_size"] == "2"
    plan = replace(plan, shard=4)
    changes = changed_settings(run, layout(MODEL.shape, zero=3), plan, problem)
    assert changes == {"dp_replicate_size": "2", "dp_shard_size": "4"}


@pytest.mark.parametrize("tool", TRAINERS)
def test_pairs_are_read_back_as_sequences(tool: str, tmp_path: Path) -> None:
    found = files(tool, DPO, mbs=4)
    name = f"{tool}.yaml"
    run = read(tmp_path, name, found.pop(name), **found)
    assert (run.layout["mbs"], run.layout["gbs"], run.job["global_batch"]) == (4, 128, 128)
    assert (run.job["task"], run.job["reference"]) == ("dpo", "memory")
    plan = layout(MODEL.shape, zero=3, mbs=4)
    problem = Problem(MODEL.shape, DPO, pool(), Fabric(), STACKS["hf-fsdp2"])
    changes = changed_settings(run, plan, replace(plan, mbs=2), problem)
    key = "micro_batch_size" if tool == "axolotl" else "per_device_train_batch_size"
    assert changes == {key: "1", "gradient_accumulation_steps": "8"}


def test_a_pinned_micro_batch_counts_sequences(tmp_path: Path) -> None:
    for name, text in files(job=DPO, mbs=4).items():
        (tmp_path / name).write_text(text)
    for name in ("trl.yaml", "trl.sh"):
        run = read_run(str(tmp_path / name), RunQuery(MODEL, n_devices=8, pins={"mbs": 2}))
        assert (run.layout["mbs"], run.layout["gbs"]) == (2, 64)
        with pytest.raises(SpecError, match="even mbs"):
            read_run(str(tmp_path / name), RunQuery(MODEL, n_devices=8, pins={"mbs": 3}))


def test_losses_without_a_reference(tmp_path: Path) -> None:
    text = "model_name_or_path: m\ntemplate: x\nstage: dpo\npref_loss: {}\n"
    orpo = read(tmp_path, "a.yaml", text.format("orpo"))
    assert (orpo.job["reference"], orpo.layout["mbs"]) == ("none", 16)
    assert read(tmp_path, "b.yaml", text.format("sigmoid")).job["reference"] == "memory"


def test_defaults_of_each_tool(tmp_path: Path) -> None:
    trl = read(tmp_path, "a.yaml", "model_name_or_path: m\ndataset_name: d\nuse_peft: true\n")
    assert (trl.layout["mbs"], trl.job["seq_len"]) == (8, 1024)
    assert trl.job["lora"]["targets"] == ["q", "v"]
    assert trl.layout["recompute"] == "full"
    text = "base_model: m\nadapter: qlora\nload_in_4bit: true\nlora_target_linear: true\n"
    axolotl = read(tmp_path, "b.yaml", text)
    assert (axolotl.layout["mbs"], axolotl.job["seq_len"]) == (1, 512)
    assert axolotl.job["lora"]["base"] == "nf4"
    assert axolotl.job["lora"]["targets"] == ["all-linear"]
    factory = read(tmp_path, "c.yaml", "model_name_or_path: m\ntemplate: x\nstage: sft\n")
    assert (factory.job["seq_len"], factory.job["lora"]["rank"]) == (2048, 8)
    assert factory.job["lora"]["alpha"] == 16


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("model_name_or_path: m\nstage: ppo\ntemplate: x\n", "ppo"),
        ("model_name_or_path: m\nuse_peft: true\nlora_r: many\n", "lora_r: expected"),
        ("model_name_or_path: m\nuse_peft: true\nmax_length: long\n", "max_length"),
        ("base_model: m\nsequence_len: 8\ndeepspeed: gone.json\n", r"gone\.json"),
    ],
)
def test_what_cannot_be_read_is_one_error(text: str, word: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=word):
        read(tmp_path, "run.yaml", text)


def test_a_model_file_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("base_model: m\nadapter: lora\n")
    with pytest.raises(SpecError, match="not by its sizes"):
        read_run(str(tmp_path / "run.yaml"), RunQuery())


def test_yaml_is_read_as_it_was_meant() -> None:
    meant = {"a": "NO", "b": 1e-8, "c": [r".*\.q"], "d": {"e": True, "f": "no"}, "g": 0.00015}
    assert yaml.safe_load("\n".join(yaml_lines(meant))) == meant


@pytest.mark.parametrize("tool", TRAINERS)
def test_launchers_are_sound_bash(tool: str, tmp_path: Path) -> None:
    for engine in ("fsdp2", "deepspeed"):
        script = tmp_path / f"{engine}.sh"
        script.write_text(files(tool, engine=engine)[f"{tool}.sh"])
        done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
