"""A model with a kind of layer that a framework does not carry is refused by it, everywhere."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import planner
from costmodels.layers.dense import DENSE
from costmodels.layers.kinds import LAYER_KINDS, register_layer_kind
from planner.analyze.check.check import check
from planner.frameworks.emit import why_not
from planner.render.document import text_of
from planner.solver.solve import evaluate, solve
from planner.specs.loader import load_model, model_from_dict
from searches.frameworks.carried import foreign_kinds
from searches.frameworks.registry import FrameworkRules, framework_names, framework_rules
from searches.frameworks.table import refusals, rules_by_code
from service.handlers.calls import call
from tests.planner.command import run_here

OF_NVIDIA = tuple(x for x in framework_names() if "NVIDIA" in framework_rules(x).vendors)
CLUSTER = "h100-x8"
PINS = {"tp": 1, "pp": 1, "zero": 3, "mbs": 1, "recompute": "full"}
ABLE = "fsdp2"
KIND = "echo"


@pytest.fixture(scope="module", autouse=True)
def echo() -> Iterator[None]:
    """A kind of layer, priced as the dense one, that one framework alone can be told."""
    register_layer_kind(
        replace(DENSE, name=KIND, title="echo of the dense layer", frameworks=(ABLE,))
    )
    yield
    del LAYER_KINDS[KIND]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    loaded = load_model("llama3-8b").document
    model = {key: value for key, value in loaded["model"].items() if value is not None}
    runs = [{"kind": "dense", "count": 2}, {"kind": KIND, "count": 30}]
    training = {key: value for key, value in loaded["training"].items() if value is not None}
    return {"model": {**model, "layer_kinds": runs}, "training": training}


def test_every_framework_but_the_one_that_has_it_refuses(document: dict[str, Any]) -> None:
    plan = evaluate(document, CLUSTER, pins=PINS, framework="any").plans[0]
    assert plan.runs_on == (ABLE,)
    shape, job = model_from_dict(document).shape, model_from_dict(document).job
    for name in framework_names():
        reasons = refusals(name, plan.layout, shape, job)
        named = [text for text in reasons if text.startswith("layers: ")]
        assert len(named) == (name != ABLE)
        assert all(f"has no {KIND}; closest: framework {ABLE}" in text for text in named)
        assert (KIND in (why_not(name, plan.layout, shape, job) or "")) == (name != ABLE)
    dense = load_model("llama3-8b")
    assert not refusals("deepspeed", plan.layout, dense.shape, dense.job)


@pytest.mark.parametrize(
    "framework",
    [
        pytest.param(name, marks=[] if name == ABLE else pytest.mark.slow)
        for name in ("default", *OF_NVIDIA)
    ],
)
def test_the_search_of_a_framework_without_it_finds_nothing_and_says_why(
    framework: str, document: dict[str, Any]
) -> None:
    result = solve(document, CLUSTER, framework=framework, top=1)
    assert bool(result.plans) == (framework == ABLE)
    parts = {part.code: part.text for one in result.conflicts for part in one.parts}
    if framework != ABLE:
        assert f"has no {KIND}; closest: framework {ABLE}" in parts["FRM001"]
        assert f"has no {KIND}" in text_of(result)


def test_layers_that_no_framework_has_are_priced_on_request(document: dict[str, Any]) -> None:
    model = {**document["model"], "layer_kinds": [{"kind": "factored+dense", "count": 32}]}
    foreign = {**document, "model": {**model, "factored": {"q_rank": 1024}}}
    result = solve(foreign, CLUSTER, top=1)
    assert [part.code for one in result.conflicts for part in one.parts] == ["FRM001"]
    (relaxation,) = result.relaxations
    assert "--framework any --stack megatron-core" in relaxation.command
    priced = solve(foreign, CLUSTER, framework="any", stack="megatron-core", memory_margin=0.0)
    least_s = min(plan.step_time_s for plan in priced.plans)
    assert relaxation.step_time_s == pytest.approx(least_s, rel=1e-12)
    assert not any(plan.runs_on for plan in priced.plans)


@pytest.mark.slow
def test_where_memory_is_short_besides_what_helps_is_said_with_prices_alone(
    document: dict[str, Any],
) -> None:
    model = {**document["model"], "layer_kinds": [{"kind": "factored+dense", "count": 32}]}
    foreign = {**document, "model": {**model, "factored": {"q_rank": 1024}}}
    result = solve(foreign, CLUSTER, top=1, overrides={"pools.0.memory_margin": "70 GiB"})
    assert result.relaxations
    assert all("--framework any" in each.command for each in result.relaxations)


def test_its_files_are_one_text_with_the_reason(document: dict[str, Any]) -> None:
    result = evaluate(document, CLUSTER, pins=PINS, framework="any").to_json()
    for name in framework_names():
        files = call("emit", {"result": result, "plan": 1, "for": [name]})["files"]
        assert (list(files) == [f"{name}.txt"]) == (name != ABLE)
        if name != ABLE:
            assert f"- layers: {rules_title(name)} has no {KIND}" in files[f"{name}.txt"]


def rules_title(name: str) -> str:
    return planner.frameworks.registry.framework(name).title


def test_check_refuses_the_run(document: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "ds_config.json"
    settings = {
        "train_batch_size": 128,
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
    }
    file.write_text(json.dumps(settings))
    report = check(file, CLUSTER, model=document)
    assert "KIND-DEEPSPEED" in [broken.rule.code for broken in report.refusals]
    assert not report.accepted
    assert f"DeepSpeed has no {KIND}" in text_of(report)
    plain = check(file, CLUSTER, model=load_model("llama3-8b").document)
    assert "KIND-DEEPSPEED" not in [broken.rule.code for broken in plain.refusals]


def test_the_rule_has_a_page() -> None:
    assert {f"KIND-{name.upper()}" for name in framework_names()} <= rules_by_code().keys()
    shown = run_here("rule", "KIND-MEGATRON").stdout
    assert "a kind of layer that it does not have" in shown
    page = Path(__file__).parents[3] / "docs" / "frameworks.md"
    assert "| KIND-DEEPSPEED | a kind of layer" in page.read_text(encoding="utf-8")


def test_a_framework_of_another_package_says_which_kinds_it_has(document: dict[str, Any]) -> None:
    shape = model_from_dict(document).shape
    assert foreign_kinds(FrameworkRules("own", "Own", "1"), shape) == (KIND,)
    own = FrameworkRules("own", "Own", "1", layer_kinds=("dense", KIND))
    assert foreign_kinds(own, shape) == ()
    assert foreign_kinds(own, load_model("mixtral-8x7b").shape) == ("moe",)
