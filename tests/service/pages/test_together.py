"""A job over several pools on the page of plans."""

import json
import re

import pytest

import planner
from service.handlers.limits import DEFAULTS
from service.handlers.running_call import RunningCall
from service.pages.answer.listing import listing
from service.pages.question import question_of
from service.pages.views.plan import PAGE_CALLS, PlanPageBody, TraceBody
from tests.planner.solver.together.tiny import MODEL, NEW, OLD, PINS, cluster


def test_the_page_of_plans_says_what_several_pools_reach():
    asked = {"pins": PINS, "top": 2, "executor": "serial"}
    joined = listing(planner.solve(MODEL, cluster(NEW, OLD), pools="together", **asked))
    assert "<h2>Use " in joined["together"]
    assert 'data-drawing="pools"' in joined["together"]
    assert "<style>" not in joined["together"]
    assert joined["joined"] == ["t1", "t2"]
    assert listing(planner.solve(MODEL, cluster(NEW, OLD), **asked))["together"] == ""


def test_an_address_may_ask_for_it():
    query = {"model": ("llama3-8b",), "cluster": ("mixed-h100-a100",), "pools": ("together",)}
    assert question_of(query, DEFAULTS)["pools"] == "together"


QUESTIONS = {
    "pipelines": {
        "model": MODEL,
        "cluster": cluster(NEW, OLD),
        "pins": PINS,
        "top": 2,
        "pools": "together",
    },
    "replicas": {
        "model": MODEL,
        "cluster": cluster({**NEW, "nodes": 2}, {**OLD, "nodes": 2}),
        "pins": {"tp": 1, "recompute": "none"},
        "framework": "torchtitan",
        "top": 2,
        "pools": "together",
    },
}


@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_plan_over_several_pools_has_a_page_and_a_trace(kind):
    asked = {"solve": QUESTIONS[kind], "plan": "t1"}
    body = PlanPageBody.model_validate({**asked, "trace_link": "/ui/plan/trace?a=1&b=<"})
    call = PAGE_CALLS["page-plan"]
    shown = call.function(body, RunningCall())
    call.answer.model_validate(shown)
    assert shown["title"].startswith("Plan t1 over ")
    assert 'href="/ui/plan/trace?a=1&amp;b=&lt;"' in shown["body"]
    assert 'data-drawing="pools"' in shown["body"]
    assert "slowest" in shown["body"]
    assert re.findall(r"<h[12]", shown["body"])[0] == "<h1"
    trace = PAGE_CALLS["page-plan-trace"].function(TraceBody.model_validate(asked), RunningCall())
    assert trace["name"] == f"{shown['plan_id']}-step.json"
    about = json.loads(trace["text"])["otherData"]
    assert about["plan"] == shown["plan_id"]
    assert about["trace_end_s"] == pytest.approx(about["predicted_step_s"], rel=1e-9)


def test_plans_on_one_pool_keep_their_page_beside_them():
    body = PlanPageBody.model_validate({"solve": QUESTIONS["pipelines"], "plan": "1"})
    shown = PAGE_CALLS["page-plan"].function(body, RunningCall())
    assert "named" not in shown
    assert "timeline" in shown["figures"]
