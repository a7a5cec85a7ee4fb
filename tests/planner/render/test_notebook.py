"""What notebooks show of results, without a notebook."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import planner
from planner.analyze.comparison import compare
from planner.render.colours import LEGEND
from planner.solver.answer.result import Conflict, ConflictPart, Relaxation, Result
from planner.solver.answer.result_store import plan_of_result
from tests.planner.analyze.test_recommend import answer
from tests.planner.test_documents import Tags

EVIL = "<img src=x onerror=alert(1)>|*x*"


@cache
def result() -> Result:
    return planner.solve("llama3-8b", "h100-x8", top=3, only={"tp": [1, 2], "mbs": [1]})


def without_plans(found: Result) -> Result:
    """The answer of a question of which nothing fits, made up."""
    conflict = Conflict((ConflictPart("MEM000", "too little"),))
    change = Relaxation("a smaller margin", "software", 2.0, "planner solve again", None, 6.5)
    return replace(found, plans=(), conflicts=(conflict,), relaxations=(change,))


def comparison() -> Any:
    data = result().to_json()
    return compare(*(plan_of_result(data, which, "the result") for which in ("1", "2")))


def test_a_result_shows_its_plans() -> None:
    found = result()
    for text in (found._repr_html_(), found._repr_markdown_()):
        assert all(plan.plan_id in text for plan in found.plans)
        assert f"{found.best.step_time_s:.3f}" in text
    assert Tags(found._repr_html_()).found.count("tr") == 1 + len(found.plans)


def test_answers_with_plans_show_cards_with_their_styles_inside() -> None:
    for found, n_cards in ((result(), 1), (result().best, 1), (comparison(), 2)):
        html = found._repr_html_()
        assert Tags(html).found.count("section") == n_cards
        assert html.count("<style>") == n_cards
        assert "prefers-color-scheme: dark" in html
        assert 'data-jp-theme-light="false"' in html
        assert ".vscode-dark" in html
        assert "<script" not in html


def test_the_data_frame_is_the_json() -> None:
    frame = result().to_pandas()
    plans = json.loads(result().dumps())["plans"]
    assert list(frame["plan_id"]) == [plan["plan_id"] for plan in plans]
    assert list(frame["step_time_s"]) == [plan["step_time_s"] for plan in plans]
    assert list(frame["tp"]) == [plan["layout"]["tp"] for plan in plans]
    assert list(frame["peak_bytes"]) == [plan["memory"]["peak_bytes"] for plan in plans]
    assert list(frame["time.linear"]) == [plan["time"]["linear"] for plan in plans]


def test_figures_sum_to_the_step_and_the_memory() -> None:
    plan = result().best
    step = sum(bar.x[0] for bar in plan.step_figure().data)
    assert step == pytest.approx(plan.step_time_s, rel=1e-9)
    memory = sum(bar.x[0] for bar in plan.memory_figure().data)
    assert memory == pytest.approx(plan.usable_bytes / 2**30, rel=1e-6)
    points = result().plans_figure().data[0]
    assert list(points.y) == [each.step_time_s for each in result().plans]
    colours = {bar.marker.color for bar in plan.step_figure().data}
    assert colours <= {colour.light for colour in LEGEND.values()}


def test_a_result_without_plans_says_why() -> None:
    text = without_plans(result())._repr_markdown_()
    assert "MEM000" in text
    assert "too little" in text
    assert "a smaller margin" in text
    assert "planner solve again" in text


def test_a_plan_shows_time_and_memory() -> None:
    plan = result().best
    text = plan._repr_markdown_()
    for term, seconds in plan.breakdown.time_s.items():
        assert (f"| {term} |" in text) == (seconds > 0)
    assert plan.plan_id in plan._repr_html_()


def test_a_comparison_shows_both_sides_and_the_verdict() -> None:
    found = comparison()
    html, text = found._repr_html_(), found._repr_markdown_()
    assert "more tokens a second" in text
    assert all(turn in Tags(html).text for turn in found.turns)
    for plan in found.plans:
        assert f"{plan.step_time_s:.4f}" in text


@pytest.mark.parametrize("question", ["devices", pytest.param("layout", marks=pytest.mark.slow)])
def test_a_recommendation_shows_its_answer(question: str) -> None:
    found = answer(question)
    assert found.plan is not None
    assert found.plan.plan_id in found._repr_html_()
    if question == "layout":
        assert "Does it fit on one device?" in found._repr_markdown_()


def test_names_are_escaped() -> None:
    found = result()
    model = {**found.inputs["model"]["model"], "name": EVIL}
    inputs = {**found.inputs, "model": {**found.inputs["model"], "model": model}}
    evil = replace(found, inputs=inputs)
    assert "<img" not in evil._repr_html_()
    assert "<img" not in evil._repr_markdown_()
    assert EVIL in Tags(evil._repr_html_()).text
