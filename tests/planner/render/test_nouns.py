"""Answers call devices what their maker does: on TPUs and NPUs nothing says GPU."""

import json
from dataclasses import replace
from functools import cache

import pytest

import planner
from hardware.nouns import DEVICE, GPU, NOUNS
from planner.analyze.explain import explain
from planner.render.answer_text import result_markdown
from planner.render.answers.plan_table import plan_grid, plans_csv
from planner.render.card.answer import card_of, card_of_plan
from planner.render.card.html import card_html
from planner.render.card.text import card_text
from planner.render.document import answer_document
from planner.render.markdown import markdown
from planner.render.nouns import noun_of, noun_of_plan, noun_of_pool
from planner.render.terminal import lines_of
from planner.solver.answer.result import Result
from planner.solver.options import SolveOptions
from tests.repeats import slow


@cache
def answer(cluster: str) -> Result:
    return planner.solve("llama3-8b", cluster, top=3)


@pytest.mark.parametrize(
    ("cluster", "one", "head"),
    [("16xtpu-v5p", "TPU chip", "/chip"), ("2xatlas-800t-a2", "NPU", "/NPU")],
)
def test_no_answer_off_gpus_says_gpu(cluster: str, one: str, head: str) -> None:
    result = answer(cluster)
    card = card_of(result)
    texts = {
        "card": card_text(card),
        "html": card_html(card, is_styled=False),
        "markdown": result_markdown(result),
        "document": "\n".join(lines_of(answer_document(result))),
        "plan": markdown(answer_document(result.plans[0])),
        "alone": card_text(card_of_plan(result.plans[0])),
        "columns": plans_csv(result, ("step", "tok/s", "devices")),
    }
    for name, text in texts.items():
        assert "GPU" not in text, name
    assert f"per {one}" in texts["card"]
    assert f"fullest {one}" in texts["card"]
    assert head in texts["markdown"]
    assert f"tok/s ({head}),devices" in texts["columns"]


@pytest.mark.parametrize("cluster", ["16xtpu-v5p", slow("2xatlas-800t-a2")])
def test_explanations_off_gpus_say_no_gpu(cluster: str) -> None:
    plan = answer(cluster).plans[0]
    assert plan.breakdown.rows is not None
    explained = explain(plan.breakdown.rows.problem, plan, SolveOptions())
    text = "\n".join(lines_of(answer_document(explained)))
    assert "GPU" not in text
    assert NOUNS["Google" if "tpu" in cluster else "Huawei"].one in text


def test_a_plan_of_another_process_is_named_by_its_frameworks() -> None:
    result = answer("16xtpu-v5p")
    again = Result.from_json(json.loads(json.dumps(result.to_json())))
    assert again.plans[0].breakdown.rows is None
    assert noun_of_plan(again.plans[0]) == noun_of(again) == NOUNS["Google"]
    assert "/chip" in plan_grid(again.plans).units
    assert noun_of_plan(replace(again.plans[0], runs_on=())) == DEVICE
    assert noun_of_plan(replace(again.plans[0], runs_on=("megatron@0.17",))) == GPU


def test_pools_of_unlike_devices_hold_devices() -> None:
    result = answer("16xtpu-v5p")
    pools = [*result.inputs["cluster"]["pools"], {"accelerator": "h100-sxm-80gb", "name": "b"}]
    mixed = replace(result, inputs={**result.inputs, "cluster": {"pools": pools}})
    assert noun_of(mixed) == DEVICE


def test_parts_spelled_out_are_called_as_what_they_resemble() -> None:
    assert noun_of_pool({"accelerator": {"like": "tpu-v5p", "name": "mine"}}) == NOUNS["Google"]
    assert noun_of_pool({"accelerator": {"name": "mine"}}) == DEVICE
