"""How the card compares a plan with the best one by each objective, and what is proven."""

from dataclasses import replace
from functools import cache

import pytest

import planner
from planner.render.card.answer import card_of
from planner.render.card.choice import choice_words, fastest_s, proof_words
from planner.render.card.sentences import closed_axes
from planner.solver.answer.result import Certificate, Plan, Result
from tests.repeats import slow

PRICE: tuple[tuple[str, object], ...] = (("pools.0.price_per_hour", 2.5),)


@cache
def result(objective: str = "step_time") -> Result:
    """On 8 GPUs DP 8 is the fastest, but leaves less than 5 % of the memory free."""
    return planner.solve("llama3-8b", "h100-x8", objective=objective, overrides=PRICE, top=3)


def with_fastest(found: Result, step_s: float) -> Result:
    """The answer as if nothing were passed over, and the fastest plan took `step_s`."""
    assert found.certificate is not None
    proof = replace(found.certificate, fastest_s=step_s)
    slower = tuple(slowed(plan, 1.1) for plan in found.plans[1:])
    return replace(found, certificate=proof, margin=None, plans=(found.plans[0], *slower))


def slowed(plan: Plan, factor: float) -> Plan:
    return replace(plan, step_time_s=plan.step_time_s * factor)


@pytest.mark.parametrize(
    ("objective", "best", "difference"),
    [
        ("step_time", "The fastest plan", "{} less time"),
        ("cost", "The cheapest plan", "{} less)"),
        slow("energy", "The plan of least energy", "{} less energy"),
        slow("goodput", "The plan that ends the run first", "{} less wall-clock time"),
    ],
)
def test_a_plan_without_margin_is_named_by_every_objective(
    objective: str, best: str, difference: str
) -> None:
    found = result(objective)
    margin = found.margin
    assert margin is not None
    assert margin.fastest_step_s is not None
    gain = 1 - margin.fastest_step_s / found.best.step_time_s
    words = choice_words(found, found.best)
    assert words.startswith(best)
    assert difference.format(f"{gain:.1%}") in words
    assert "less than 5% of memory free" in words
    ranks = "time" if objective == "step_time" else objective
    assert words.endswith(f"--memory-margin 0 ranks by {ranks}.")


@pytest.mark.parametrize("objective", ["step_time", "cost", "energy", "goodput", "devices"])
def test_a_tie_is_named_by_every_objective(objective: str) -> None:
    """An unlisted plan is 0.5 % faster; on as many GPUs that is 0.5 % of any objective."""
    base = result()
    options = {**base.inputs["options"], "objective": objective}
    found = replace(base, inputs={**base.inputs, "options": options})
    found = with_fastest(found, base.best.step_time_s * 0.995)
    words = choice_words(found, found.best)
    assert words.startswith("A tie: the ")
    assert "0.5% less" in words
    alone = with_fastest(found, base.best.step_time_s)
    assert choice_words(alone, alone.best).startswith("This is the ")


def test_memory_says_how_far_from_the_fastest_it_may_be() -> None:
    found = result("memory")
    fastest = fastest_s(found, found.best)
    assert choice_words(found, found.best).endswith(f"within 5% of the fastest ({fastest:.2f} s).")


@pytest.mark.parametrize(
    ("objective", "lead"),
    [
        ("step_time", "Proven: none of "),
        ("memory", "Proven of the step time alone, not of memory: none of "),
        ("cost", "Proven: no plan costs over 4% less than the first; none of "),
        ("energy", "Proven: no plan takes over 4% less energy than the first; none of "),
    ],
)
def test_the_proof_speaks_of_the_objective(objective: str, lead: str) -> None:
    """A plan passed over for the margin may be 3 % better, and ties are 1 %: 4 % in all."""
    assert proof_words(result(objective)).startswith(lead)


def test_one_card_knows_one_fastest_plan() -> None:
    """An uneven split may beat what the proof counts: the card then names its time alone."""
    base = result()
    assert base.certificate is not None
    even: Certificate = replace(base.certificate, fastest_s=base.best.step_time_s * 1.02)
    found = replace(base, certificate=even)
    assert base.margin is not None
    fastest = f"{base.margin.fastest_step_s:.2f} s"
    card = card_of(found)
    assert fastest in card.choice
    assert f"beats {fastest}" in card.proof


def test_short_steps_keep_their_digits() -> None:
    """A step of 42.5 ms is no step of 0.04 s."""
    base = result()
    factor = 0.0425 / base.best.step_time_s
    plans = tuple(slowed(plan, factor) for plan in base.plans)
    found = with_fastest(replace(base, plans=plans, alternatives=()), 0.0425 * 0.995)
    assert "takes 42.3 ms (0.5% less)" in choice_words(found, found.best)
    assert "beats 42.3 ms" in proof_words(found)
    opened = tuple(replace(x, step_time_s=0.0311) for x in base.alternatives[:1])
    (axis,) = closed_axes(replace(found, alternatives=opened))
    assert "31.1 ms" in axis.text


def test_the_card_of_an_objective_has_its_figure() -> None:
    """J a token in three digits; MWh of all tokens where the model file states them."""
    energy = card_of(result("energy")).figure("energy_j")
    run = result("energy").best.run
    assert run is not None
    assert run.energy_j is not None
    assert energy.text == f"{run.energy_j / 3.6e9:,.1f} MWh"
    assert energy.note == f"{run.energy_j_per_token:.3g} J a token"
    assert card_of(result("cost")).figure("cost_usd").value > 0
    keys = {figure.key for figure in card_of(result()).figures}
    assert not keys & {"energy_j", "energy_j_per_token"}
