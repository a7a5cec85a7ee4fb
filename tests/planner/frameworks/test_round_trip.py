"""A plan that is written for a framework and read back with `check` is the same plan."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from costmodels.schedule.stages import SPLITS
from planner.analyze.check.check import check
from planner.analyze.plan_files import header_lines
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.render.document import text_of
from planner.solver.answer.reasons import stage_words
from planner.solver.answer.result import Plan
from planner.solver.solve import evaluate, solve
from planner.solver.sources import read_inputs
from planner.specs.inputs import ClusterInput, ModelInput
from tests.searches.instances import one_in

Overrides = tuple[tuple[str, object], ...]
Case = tuple[str, str, dict[str, Any]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)
    monkeypatch.setattr("planner.analyze.check.check.best_changes", lambda *_: ())


def priced(
    case: Case, framework: str, overrides: Overrides = ()
) -> tuple[Plan, ModelInput, ClusterInput]:
    model, cluster, pins = case
    result = evaluate(model, cluster, pins=pins, framework=framework, overrides=overrides)
    return (result.best, *read_inputs(model, cluster, overrides))


MEGATRON: dict[str, Case] = {
    "data parallel": ("llama3-8b", "h100-x8", {"zero": 0}),
    "tensor parallel": ("llama3-8b", "h100-x8", {"tp": 4, "sp": True}),
    "without sequence parallelism": ("llama3-8b", "h100-x8", {"tp": 2, "sp": False, "mbs": 2}),
    "interleaved": ("llama3-70b", "h100-x512", {"tp": 8, "pp": 4, "vpp": 5}),
    "ends": ("llama3-405b", "h100-x16384", {"tp": 8, "pp": 16, "split": "ends"}),
    "ends in chunks": (
        "llama3-405b",
        "h100-x16384",
        {"tp": 8, "pp": 16, "vpp": 2, "split": "ends"},
    ),
    "full recompute": ("llama3-70b", "h100-x512", {"tp": 8, "recompute": "full"}),
    "recompute in blocks": (
        "llama3-70b",
        "h100-x512",
        {"tp": 4, "pp": 8, "recompute": "full", "recompute_layers": 3},
    ),
    "a recomputed MLP": ("llama3-70b", "h100-x512", {"tp": 8, "recompute_modules": "mlp"}),
    "recomputed modules": (
        "deepseek-v3",
        "h100-x16384",
        {"pp": 16, "ep": 64, "recompute_modules": "mla_up_proj+moe_act+layernorm"},
    ),
    "ZeRO-2": ("llama3-8b", "h100-x8", {"zero": 2, "recompute": "full"}),
    "ZeRO-3": ("llama3-8b", "h100-x512", {"zero": 3}),
    "context parallel": ("llama3-8b", "h100-x512", {"tp": 2, "cp": 4}),
    "all-to-alls": ("llama3-8b", "h100-x512", {"cp": 2, "cp_comm": "a2a"}),
    "GPT-3 of 2020": ("gpt3-175b", "a100-x1024", {"tp": 8, "pp": 8}),
    "experts": ("mixtral-8x7b", "h100-x512", {"tp": 2, "pp": 4, "ep": 8}),
    "experts and their tp": ("mixtral-8x7b", "h100-x512", {"tp": 4, "ep": 4, "etp": 4}),
    "latent attention and MTP": ("deepseek-v3", "h100-x16384", {"pp": 16, "ep": 64}),
    "another latent attention": ("deepseek-v2", "h100-x512", {"pp": 4, "ep": 8}),
    "qwen": ("qwen3-235b-a22b", "h100-x512", {"tp": 4, "pp": 2, "ep": 16}),
    "racks": ("llama3-70b", "gb300-nvl72-x512", {"tp": 8, "pp": 8}),
    "optimizer on the host": (
        "llama3-70b",
        "h100-x512",
        {"tp": 4, "pp": 2, "optimizer_offload": True},
    ),
    "activations on the host": (
        "llama3-8b",
        "h100-x512",
        {"tp": 2, "activation_offload_layers": 11},
    ),
    "nothing overlaps": ("llama3-8b", "h100-x512", {"tp": 2, "dp_overlap": False}),
    "user buffers": ("llama3-70b", "h100-x512", {"tp": 8, "pp": 4, "tp_overlap": True}),
    "nothing overlaps, ZeRO-3": ("llama3-8b", "h100-x512", {"zero": 3, "dp_overlap": False}),
}
PRECISIONS = ("bf16", "bf16-grads", "fp16", "fp8-tensorwise", "fp8-delayed")


def written(case: Case, framework: str, folder: Path, overrides: Overrides = ()) -> Plan:
    plan, model, cluster = priced(case, framework, overrides)
    header = header_lines((model, cluster), plan, plan.breakdown, "")
    pool = cluster.cluster.pools[0]
    files = emit_plan(framework, EmitRequest(plan.layout, model.shape, model.job, pool, header))
    for name, text in files.items():
        (folder / name).write_text(text)
    return plan


@pytest.mark.parametrize("name", one_in(8, MEGATRON))
def test_megatron(name: str, tmp_path: Path) -> None:
    case = MEGATRON[name]
    plan = written(case, "megatron", tmp_path)
    report = check(tmp_path / "megatron.sh", case[1])
    assert report.plan is not None, report.not_priced
    assert not report.refusals
    assert report.plan.layout == plan.layout
    assert report.plan.plan_id == plan.plan_id
    assert report.plan.step_time_s == plan.step_time_s
    assert report.plan.breakdown.peak_bytes == plan.breakdown.peak_bytes


@pytest.mark.parametrize("precision", one_in(2, PRECISIONS))
def test_precisions_of_megatron(precision: str, tmp_path: Path) -> None:
    case = ("llama3-8b", "h100-x8", {"tp": 2})
    plan = written(case, "megatron", tmp_path, (("training.precision", precision),))
    report = check(tmp_path / "megatron.sh", "h100-x8")
    assert report.plan is not None
    assert report.plan.plan_id == plan.plan_id


def drawn_numbers(seed: int) -> Overrides:
    """Return some numbers that a job on Blackwell may have and flags of Megatron-LM can say."""
    random = Random(seed)
    precision = random.choice(
        ("bf16", "fp8-delayed", "fp8-current", "fp8-blockwise", "fp8-mxfp8", "nvfp4")
    )
    fields = {
        "precision": precision,
        "grad_dtype": random.choice(("fp32", "bf16")),
        "optimizer_states": random.choice(("fp32", "bf16-moments")),
    }
    if precision != "bf16":
        fields["fp8_param_gather"] = random.random() < 0.5
        if precision != "fp8-delayed":
            fields["bf16_layers"] = [random.randint(0, 2), random.randint(0, 3)]
    fields["fp8_output"] = precision == "fp8-mxfp8" and random.random() < 0.5
    return tuple((f"training.{name}", value) for name, value in fields.items())


@pytest.mark.parametrize("seed", one_in(24, range(48)))
def test_numbers_of_megatron(seed: int, tmp_path: Path) -> None:
    """What is priced is what is written, and what is read and priced again."""
    case = ("llama3-70b", "gb300-nvl72-x512", {"tp": 4, "pp": 2})
    plan = written(case, "megatron", tmp_path, drawn_numbers(seed))
    report = check(tmp_path / "megatron.sh", case[1])
    assert report.plan is not None, report.not_priced
    assert not report.refusals
    assert report.plan.plan_id == plan.plan_id
    assert report.plan.step_time_s == plan.step_time_s
    assert report.plan.breakdown.peak_bytes == plan.breakdown.peak_bytes


def test_what_no_flag_says_comes_from_the_header(tmp_path: Path) -> None:
    """Tokens, the name, padding and the load of experts; other numbers are the flags' own."""
    changes = (
        ("training.tokens", "1.234567e12"),
        ("model.moe.imbalance", "1.15"),
        ("model.vocab_multiple", "64"),
        ("model.name", "mine"),
    )
    case = ("mixtral-8x7b", "h100-x512", {"ep": 8})
    plan = written(case, "megatron", tmp_path, changes)
    file = tmp_path / "megatron.sh"
    report = check(file, "h100-x512")
    assert report.plan is not None
    assert report.plan.plan_id == plan.plan_id
    file.write_text(file.read_text().replace("--train-iters ", "--train-iters 1"))
    edited = check(file, "h100-x512")
    assert edited.model is not None
    assert edited.model.job.tokens != 1.234567e12


DEEPSPEED: dict[str, Case] = {
    "ZeRO-1": ("llama2-7b", "h100-x8", {"zero": 1}),
    "ZeRO-3": ("llama3-8b", "h100-x512", {"zero": 3}),
    "AutoTP": ("llama3-70b", "h100-x512", {"tp": 8, "sp": False, "zero": 1}),
    "optimizer on the host": ("llama3-8b", "h100-x8", {"zero": 2, "optimizer_offload": True}),
    "second copy of the weights": ("llama3-8b", "h100-x512", {"zero": 3, "hpz": 8}),
    "inputs on the host": (
        "llama3-8b",
        "h100-x8",
        {"zero": 3, "recompute": "full", "activation_offload": True},
    ),
    "nothing overlaps": ("llama3-8b", "h100-x8", {"zero": 2, "dp_overlap": False}),
    "pipeline": ("llama3-70b", "a100-x1024", {"pp": 8, "recompute": "full"}),
    "recompute": ("llama3-8b", "h100-x8", {"zero": 2, "recompute": "full", "recompute_layers": 9}),
}


@pytest.mark.parametrize("name", one_in(4, DEEPSPEED))
def test_deepspeed_with_its_model(name: str, tmp_path: Path) -> None:
    case = DEEPSPEED[name]
    plan = written(case, "deepspeed", tmp_path)
    report = check(tmp_path / "deepspeed.sh", case[1], model=case[0])
    assert report.plan is not None, report.not_priced
    assert not report.refusals
    assert report.plan.layout == plan.layout
    assert report.plan.plan_id == plan.plan_id
    x = plan.layout
    pins = {"pp": x.pp, "recompute": x.recompute, "recompute_layers": x.recompute_layers}
    alone = check(
        tmp_path / "deepspeed.json",
        case[1],
        model=case[0],
        pins={k: v for k, v in pins.items() if v},
    )
    assert alone.plan is not None
    assert alone.plan.plan_id == plan.plan_id


TORCHTITAN: dict[str, Case] = {
    "FSDP": ("llama3-8b", "h100-x8", {"zero": 3}),
    "ZeRO-2": ("llama3-8b", "h100-x8", {"zero": 2, "tp": 2}),
    "pipeline": ("llama3-70b", "h100-x512", {"tp": 8, "pp": 4, "vpp": 2}),
    "experts": ("mixtral-8x7b", "h100-x512", {"ep": 8, "zero": 3}),
    "latent attention": ("deepseek-v2", "h100-x512", {"pp": 4, "ep": 8, "dp_shard": 8}),
    "recompute": ("llama3-8b", "h100-x8", {"zero": 3, "recompute": "full", "recompute_layers": 7}),
}


@pytest.mark.parametrize("name", one_in(8, TORCHTITAN))
def test_torchtitan_with_its_model(name: str, tmp_path: Path) -> None:
    case = TORCHTITAN[name]
    plan = written(case, "torchtitan", tmp_path)
    files = [f for f in sorted(tmp_path.iterdir()) if f.suffix in (".py", ".sh", ".toml")]
    files.remove(tmp_path / "torchtitan_smoke.py")
    assert len(files) >= 2
    for file in files:
        report = check(file, case[1], model=case[0])
        assert report.plan is not None, report.not_priced
        assert not report.refusals
        assert report.plan.layout == plan.layout
        assert report.plan.plan_id == plan.plan_id
    alone = check(tmp_path / "torchtitan_recipe.py", case[1])  # sizes as constants of the recipe
    shape = read_inputs(case[0], case[1])[0].shape
    assert alone.model is not None
    assert (alone.model.shape.layers, alone.model.shape.ffn) == (shape.layers, shape.ffn)
    assert alone.model.shape.n_experts == shape.n_experts


@pytest.mark.parametrize(
    "pins",
    one_in(
        4,
        [
            {"zero": 3},
            {"zero": 2},
            {"zero": 3, "recompute": "full"},
            {"zero": 3, "mbs": 2},
            {"zero": 3, "recompute": "full", "activation_offload": True},
            {"zero": 3, "cp": 2, "cp_comm": "p2p"},
            {"zero": 3, "tp": 2, "sp": False},
        ],
    ),
    ids=str,
)
def test_accelerate_with_its_model(pins: dict[str, Any], tmp_path: Path) -> None:
    case = ("llama3-8b", "h100-x8", pins)
    plan = written(case, "fsdp2", tmp_path)
    report = check(tmp_path / "accelerate.sh", case[1], model=case[0])
    assert report.plan is not None, report.not_priced
    assert report.plan.layout == plan.layout
    assert report.plan.plan_id == plan.plan_id
    assert not report.refusals
    assert report.run.assumed == ()
    alone = check(tmp_path / "accelerate.yaml", case[1], model=case[0])
    assert alone.run.assumed[0].startswith("mbs = 1: the script decides")


@pytest.mark.parametrize("name", one_in(16, MEGATRON))
def test_bridge(name: str, tmp_path: Path) -> None:
    case = MEGATRON[name]
    plan = written(case, "bridge", tmp_path)
    for file in ("bridge_recipe.py", "bridge.sh"):
        report = check(tmp_path / file, case[1])
        assert report.plan is not None, report.not_priced
        assert report.run.framework == "bridge"
        assert not report.refusals
        assert not report.run.doubts
        assert report.plan.layout == plan.layout
        assert report.plan.plan_id == plan.plan_id
        assert report.plan.step_time_s == plan.step_time_s
        assert report.plan.breakdown.peak_bytes == plan.breakdown.peak_bytes


@pytest.mark.parametrize("precision", one_in(2, PRECISIONS))
def test_precisions_of_bridge(precision: str, tmp_path: Path) -> None:
    plan = written(
        ("llama3-8b", "h100-x8", {"tp": 2}),
        "bridge",
        tmp_path,
        (("training.precision", precision),),
    )
    report = check(tmp_path / "bridge_recipe.py", "h100-x8")
    assert report.plan is not None
    assert report.plan.plan_id == plan.plan_id


UNEVEN: dict[str, tuple[str, Case]] = {
    "megatron, one chunk": (
        "megatron",
        ("deepseek-v3", "h800-x2048", {"tp": 2, "pp": 16, "vpp": 1, "ep": 16, "mbs": 1}),
    ),
    "megatron, interleaved": (
        "megatron",
        ("llama3-405b", "h100-x16384", {"tp": 8, "pp": 16, "vpp": 3, "mbs": 1}),
    ),
    "torchtitan": (
        "torchtitan",
        ("qwen3-235b-a22b", "h100-x512", {"tp": 2, "pp": 16, "vpp": 1, "mbs": 1}),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(3, UNEVEN))
def test_uneven_stages_of_a_solved_plan(name: str, tmp_path: Path) -> None:
    framework, (model, cluster, pins) = UNEVEN[name]
    result = solve(model, cluster, pins=pins, framework=framework)
    plan = next(plan for plan in result.plans if plan.layout.split not in SPLITS)
    assert framework in plan.runs_on
    given = read_inputs(model, cluster)
    header = header_lines(given, plan, plan.breakdown, "")
    pool = given[1].cluster.pools[0]
    files = emit_plan(
        framework, EmitRequest(plan.layout, given[0].shape, given[0].job, pool, header)
    )
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    first = {"megatron": "megatron.sh", "torchtitan": "torchtitan_recipe.py"}[framework]
    report = check(tmp_path / first, cluster, model=model)
    assert report.plan is not None, report.not_priced
    assert not report.refusals
    assert report.plan.layout == plan.layout
    assert report.plan.plan_id == plan.plan_id
    assert report.plan.step_time_s == plan.step_time_s
    # The words for people: the table says uneven, a line below which layers.
    shown = text_of(result)
    assert "uneven" in shown
    assert stage_words(plan.layout.stage_layers) in shown


def test_a_pinned_split_keeps_its_name() -> None:
    model, cluster, pins = UNEVEN["megatron, one chunk"][1]
    result = solve(model, cluster, pins={**pins, "split": "ends"})
    assert {plan.layout.split for plan in result.plans} == {"ends"}
