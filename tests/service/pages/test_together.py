"""A job over several pools on the page of plans."""

import planner
from service.handlers.limits import DEFAULTS
from service.pages.answer.listing import listing
from service.pages.question import question_of
from tests.planner.solver.together.tiny import MODEL, NEW, OLD, PINS, cluster


def test_the_page_of_plans_says_what_several_pools_reach():
    asked = {"pins": PINS, "top": 2, "executor": "serial"}
    joined = listing(planner.solve(MODEL, cluster(NEW, OLD), pools="together", **asked))
    assert "<h2>Use " in joined["together"]
    assert 'data-drawing="pools"' in joined["together"]
    assert "<style>" not in joined["together"]
    assert listing(planner.solve(MODEL, cluster(NEW, OLD), **asked))["together"] == ""


def test_an_address_may_ask_for_it():
    query = {"model": ("llama3-8b",), "cluster": ("mixed-h100-a100",), "pools": ("together",)}
    assert question_of(query, DEFAULTS)["pools"] == "together"
