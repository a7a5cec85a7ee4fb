"""What notebooks show of results, without a notebook."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import planner
from planner.analyze.comparison import compare
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
