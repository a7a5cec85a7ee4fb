"""Plans of encoders and of models with vision towers: every number opens and evaluates."""

import math
from typing import Any

import pytest

from planner.render.plan_view.data import plan_view
from planner.render.plan_view.page import plan_body
from planner.render.plan_view.quantities import evaluated
from planner.solver.solve import evaluate
from planner.solver.sources import read_inputs
from tests.planner.render.plan_view.test_opened_numbers import Walk
from tests.planner.specs import test_encoders, test_vision
from tests.searches.instances import of_which


def opened(document: dict[str, Any], **pins: object) -> tuple[Any, Any]:
    pinned = {"tp": 2, "pp": 2, "zero": 1, "mbs": 1, **pins}
    plan = evaluate(document, "h100-x8", pins=pinned, framework="any").plans[0]
    inputs = read_inputs(document, "h100-x8", ())
    return plan_view(*inputs, plan.breakdown.rows.problem, plan), plan


DOCUMENTS = {
    "trained": test_vision.document(patches=4096),
    "frozen": test_vision.document(patches=4096, trained="none"),
    "encoder": {"model": test_encoders.BASE, "training": test_encoders.JOB},
}


@pytest.mark.parametrize("name", of_which(("encoder",), DOCUMENTS))
def test_every_number_evaluates_to_its_formula(name: str) -> None:
    view, plan = opened(DOCUMENTS[name])
    walk = Walk(plan_body(view))
    assert not walk.strays
    assert set(walk.numbers) == set(walk.cards)
    for card in view.deck.cards.values():
        value = evaluated(card.derivation.substituted)
        assert math.isclose(value, card.value, rel_tol=2e-4, abs_tol=1e-9), card
    shown = any("vision tower" in card.name for card in view.deck.cards.values())
    assert shown == (name != "encoder" and plan.breakdown.critical_stage == 0)
