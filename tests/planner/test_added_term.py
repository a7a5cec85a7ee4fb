"""A term that is added is found by everything that tells the terms of a plan."""

from dataclasses import replace

import pytest

import planner
from costmodels.documentation.terms import TERMS, Term
from planner.analyze.explain import Explanation
from planner.render.answers.explanation import explanation_json
from planner.render.plan_view.data import plan_view
from planner.solver.answer.result_store import open_plan
from tests.test_docs import docs_generator

JITTER_S = 0.125


def jitter_s(rows):
    """Return the time that all ranks wait for the unluckiest of them.

    t = J

    Source: made up.
    """
    return JITTER_S + 0.0 * rows


JITTER = Term(
    name="jitter",
    kind="time",
    group="waiting",
    title="the unluckiest rank",
    equation="J, a constant",
    source="made up",
    left_out="how it comes about",
    functions=(jitter_s,),
)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A plan of Llama-3 8B with the term in its step."""
    path = tmp_path_factory.mktemp("plans") / "result.json"
    pins = {"tp": 2, "pp": 1, "cp": 1, "zero": 1, "mbs": 1}
    path.write_text(planner.evaluate("llama3-8b", "h100-x8", pins=pins).dumps(), encoding="utf-8")
    model, cluster, problem, plan, *_ = open_plan(f"{path}#1")
    result = plan.breakdown
    time_s = {**result.time_s, "jitter": JITTER_S}
    longer = replace(result, time_s=time_s, step_s=result.step_s + JITTER_S)
    return model, cluster, problem, replace(plan, breakdown=longer)


@pytest.fixture(autouse=True)
def jitter(monkeypatch):
    """The term, for the time of a test."""
    monkeypatch.setitem(TERMS, "jitter", JITTER)


@pytest.mark.slow
def test_explain_shows_it_in_its_group_and_opens_it(opened):
    _, _, problem, plan = opened

    def text_of(term):
        return explanation_json(Explanation(problem, plan, term, None))["text"]

    (line,) = [x for x in text_of("").splitlines() if "unluckiest" in x]
    assert line.split()[2:5] == ["jitter", "0.1250", "s"]
    text = text_of("jitter")
    assert "t = J" in text
    assert "0.1250 s" in text


def test_the_plan_view_has_its_card_its_bar_and_its_derivation(opened):
    view = plan_view(*opened)
    card = view.deck.cards["time-jitter"]
    assert (card.value, card.derivation.formula, card.derivation.source) == (
        JITTER_S,
        "J, a constant",
        "made up",
    )
    assert "jitter" in [row[0] for row in view.waterfall.table.rows]
    assert [method.title for method in view.methods if method.key == "jitter"] == [JITTER.title]


def test_the_documentation_lists_it():
    generator = docs_generator()
    assert "| [jitter](terms/jitter.md) | the unluckiest rank |" in generator.terms_table("time")
    table = generator.term_table(JITTER)
    assert all(text in table for text in ("J, a constant", "made up", "how it comes about"))
