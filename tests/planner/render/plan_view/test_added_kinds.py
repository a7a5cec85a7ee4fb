"""The view of a plan whose layers are of added kinds opens every number by their records."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from costmodels.documentation.terms import TERMS
from costmodels.layers.dense import DENSE, dense_macs, dense_terms
from costmodels.layers.kinds import LAYER_KINDS, register_layer_kind
from costmodels.layers.layer_kind import KindTerms, LayerInputs, LayerMacs
from costmodels.layers.params import layer_params
from costmodels.shapes import ModelShape
from planner.analyze.terms import term_numbers
from planner.render.plan_view.data import PlanView, plan_view
from planner.render.plan_view.page import plan_body
from planner.render.plan_view.quantities import evaluated
from planner.solver.answer.result import Plan
from planner.solver.solve import evaluate
from planner.solver.sources import read_inputs
from planner.specs.loader import load_model
from tests.planner.render.plan_view.test_opened_numbers import Walk
from tests.searches.instances import one_in, one_row_in

EQUATION, SOURCE = "x + retention(norm(x))", "Sun et al. 2023, arXiv:2307.08621"
RUNS = {
    "alone": [{"kind": "retention", "count": 32}],
    "mixed": [{"kind": "dense", "count": 4}, {"kind": "retention", "count": 28}],
}


def retention_terms(inputs: LayerInputs) -> KindTerms:
    """Return the terms of a layer with twice the products of a dense one and half its core."""
    plain = dense_terms(inputs)
    linear, attention = plain.linear * 2.0, plain.attention * 0.5
    more = linear + attention + (plain.linear + plain.attention) * -1.0
    return replace(
        plain,
        linear=linear,
        attention=attention,
        layer=plain.layer + more,
        weight_grad_s=2.0 * plain.weight_grad_s,
        kept_bytes=1.5 * plain.kept_bytes,
    )


def retention_macs(shape: ModelShape) -> LayerMacs:
    plain = dense_macs(shape)
    return replace(plain, core=plain.core // 2, projections=3 * plain.projections)


@pytest.fixture(scope="module", autouse=True)
def retention() -> Iterator[None]:
    register_layer_kind(
        replace(
            DENSE,
            name="retention",
            title="retention layer",
            equation=EQUATION,
            source=SOURCE,
            terms=retention_terms,
            macs=retention_macs,
            params=lambda shape, tp: 1.25 * layer_params(shape, tp),
            frameworks=(),
        )
    )
    yield
    del LAYER_KINDS["retention"]


@cache
def opened(runs: str, **pins: object) -> tuple[PlanView, Plan]:
    loaded = load_model("llama3-8b").document
    model = {key: value for key, value in loaded["model"].items() if value is not None}
    training = {key: value for key, value in loaded["training"].items() if value is not None}
    document = {"model": {**model, "layer_kinds": RUNS[runs]}, "training": training}
    pinned = {"tp": 2, "pp": 2, "zero": 1, "split": "even", **pins}
    plan = evaluate(document, "h100-x8", pins=pinned, framework="any").plans[0]
    inputs = read_inputs(document, "h100-x8", ())
    return plan_view(*inputs, plan.breakdown.rows.problem, plan), plan


CASES = [
    ("alone", {}),
    ("mixed", {}),
    ("mixed", {"recompute": "full"}),
    ("mixed", {"cp": 2, "dp": 1, "cp_comm": "p2p"}),
    ("mixed", {"schedule": "zb-h1"}),
]


@pytest.mark.parametrize(("runs", "pins"), one_row_in(5, CASES))
def test_every_number_opens_to_the_record(runs: str, pins: dict[str, object]) -> None:
    view, plan = opened(runs, **pins)
    walk = Walk(plan_body(view))
    assert not walk.strays
    assert set(walk.numbers) == set(walk.cards)
    for card in view.deck.cards.values():
        value = evaluated(card.derivation.substituted)
        assert math.isclose(value, card.value, rel_tol=2e-4, abs_tol=1e-9), card
    cards = view.deck.cards
    memory = f"memory-{plan.breakdown.peak_stage}"
    for key in ("time-linear", "time-attention", "flops-per-token", f"{memory}-states"):
        opened_to = cards[key].derivation
        assert f"retention layer: {SOURCE}" in opened_to.source, key
        assert ("one retention layer", EQUATION) in opened_to.inputs, key


@pytest.mark.parametrize("runs", one_in(2, RUNS))
def test_no_added_kind_is_shown_as_a_dense_layer(runs: str) -> None:
    view, plan = opened(runs)
    cards = view.deck.cards.values()
    names = [card.name for card in cards]
    assert any("retention layer" in name for name in names)
    texts = " ".join([*names, *(card.derivation.formula for card in cards)])
    assert ("dense layer" in texts or "dense and retention layers" in texts) == (runs == "mixed")
    mixed_rank = runs == "mixed" and plan.breakdown.critical_stage == 0
    assert any("MLP up" in name for name in names) == mixed_rank
    problem = plan.breakdown.rows.problem
    for name in ("linear", "tp", "overlap", "host", "activations"):
        labels = [label for label, _ in term_numbers(TERMS[name], problem, plan)]
        assert any("one retention layer" in label for label in labels)
        assert not any("one layer" in label for label in labels)


def test_the_terms_are_those_of_both_kinds_by_hand() -> None:
    view, plan = opened("mixed")
    breakdown = plan.breakdown
    rows, rank = breakdown.rows, breakdown.critical_stage
    dense, other = rows.layers.of_kinds
    counts = (4, 12) if rank == 0 else (0, 16)
    m = plan.layout.n_micro
    for name in ("linear", "attention"):
        one, two = (getattr(x, name).total_s.item() for x in (dense, other))
        by_hand = m * (counts[0] * one + counts[1] * two)
        assert view.deck.cards[f"time-{name}"].value == pytest.approx(by_hand, rel=1e-9)
