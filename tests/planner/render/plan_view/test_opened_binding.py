"""What binds, on the plan view: the sentences of `planner explain`, their numbers by hand."""

import pytest

from planner.analyze.bottleneck_levers import bound_of
from planner.render.answers import bottleneck as text
from planner.render.plan_view.cards import plain_words
from tests.planner.render.plan_view import plans

SOME = ["zero3", *(pytest.param(n, marks=pytest.mark.slow) for n in plans.SPECS if n != "zero3")]


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_it_says_what_explain_says(name):
    found, view = plans.opened(name), plans.viewed(name).binding
    bound = bound_of(found.problem, found.plan)
    few = bound_of(found.problem, found.plan, is_brief=True)
    assert text.bottleneck_parts(few) == text.bottleneck_parts(bound)
    assert all(lever in bound.levers for lever in few.levers)

    def said(words):
        return plain_words(words).replace("−", "-")

    assert said(view.says) == text.bottleneck_headline(bound)
    assert said(view.compute) == text.plain_text(text.compute_sentence(bound))
    assert said(view.next) == text.plain_text(text.next_sentence(bound))
    assert said(view.memory) == text.plain_text(text.memory_sentence(bound))
    for shown, levers in (
        (view.relaxing, text.relaxing(bound)),
        (view.others, text.others(bound)),
    ):
        for words, x in zip(shown, levers, strict=True):
            more = text.plain_text(text.lever_sentence(bound, x))
            price = f"{x.after.step_s:.4f} s a step, {text.percent_text(-x.gain_frac, True)}"
            assert said(words) == f"{x.change}: {price}" + (f"; {more}" if more else "")


@pytest.mark.parametrize("name", plans.all_plans())
def test_its_numbers_are_those_of_the_plan(name):
    view, plan = plans.viewed(name), plans.opened(name).plan
    cards = view.deck.cards
    shares = [c for key, c in cards.items() if key.startswith("binding-share-")]
    assert shares
    # The part that binds first; of terms that are parts, the numbers are those of the waterfall.
    for card in shares:
        term = card.key.removeprefix("binding-share-")
        if term in ("tp", "cp", "ep", "pp", "dp", "overlap", "bubble", "straggler", "host"):
            share = plan.breakdown.time_s[term] / plan.step_time_s
            assert card.value == pytest.approx(share, rel=1e-12)
    for key, card in cards.items():
        if key.startswith("lever-") and key.endswith("-change"):
            step = cards.get(key.replace("change", "step"))
            assert step.value / plan.step_time_s - 1 == pytest.approx(card.value, abs=1e-12)


@pytest.mark.slow
def test_computing_is_cut_by_hand():
    """C e / (e_matmul + e_hbm + e_kernel), with the fixed time of a step where it belongs."""
    view, found = plans.viewed("zero3"), plans.opened("zero3")
    bound = bound_of(found.problem, found.plan, is_brief=True)
    time, e = found.plan.breakdown.time_s, bound.now.elasticity
    computing = sum(
        time[t]
        for t in (
            "linear",
            "attention",
            "elementwise",
            "experts",
            "head",
            "embedding",
            "optimizer",
        )
    )
    matmul, hbm, kernel = -e["matmul_flops"], -e["hbm_bandwidth"], e["kernel_latency"]
    share = computing * matmul / (matmul + hbm + kernel) / found.plan.step_time_s
    assert view.deck.cards["binding-share-compute"].value == pytest.approx(share)
    parts = bound.now.parts
    assert parts["compute"] + parts["hbm"] + parts["overhead"] == pytest.approx(
        computing + time["fixed"]
    )
