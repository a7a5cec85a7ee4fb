"""The memory margin of the first plan: by hand, against searches on less memory, and its words."""

import pytest

import planner
from planner.errors import UsageError
from planner.solver.answer.result import Result
from planner.solver.answer.uncertainty import MARGIN_COST_FRAC, TIE_FRAC, RankLimits
from planner.solver.margins import margin_words
from planner.solver.options import SolveCommand, SolveOptions
from planner.solver.request import SolveRequest
from planner.units import GIB
from searches.pricing.candidates import Candidate
from tests.planner.emitting import layout
from tests.searches.instances import one_in, one_row_in

USABLE = 100.0
MARGIN = 0.05


def candidate(step_s: float, peak: float) -> Candidate:
    return Candidate(layout(), step_s, peak, step_s)


def order(plans: list[Candidate], margin: float = MARGIN) -> list[float]:
    rows = [(c.step_s, c.peak_bytes <= (1 - margin) * USABLE) for c in plans]
    limits = RankLimits.of(rows, margin)
    return [c.step_s for c in sorted(plans, key=lambda c: limits.key(c, USABLE, c.step_s))]


def test_a_plan_that_fills_the_memory_stands_behind_one_that_costs_a_few_per_cent():
    plans = [candidate(1.0, 99.0), candidate(1.02, 94.0), candidate(1.025, 60.0)]
    # 1.025 ties with 1.02 and has more headroom; the tight one follows by its time.
    assert order(plans) == [1.025, 1.02, 1.0]
    assert order(plans, margin=0.0) == [1.0, 1.02, 1.025]


def test_where_the_margin_costs_more_time_ranks():
    assert order([candidate(1.0, 99.0), candidate(1.031, 50.0)]) == [1.0, 1.031]


def test_among_ties_those_that_keep_the_margin_come_first():
    # 0.96 of the memory is a whole step of headroom above 0.999, but no margin of 10 %.
    plans = [candidate(1.0, 99.9), candidate(1.001, 94.0), candidate(1.002, 89.0)]
    assert order(plans, margin=0.1) == [1.002, 1.001, 1.0]


CASES = [
    ("llama3-8b", "h100-x8", {"tp": 2, "devices": 8}),
    ("llama3-70b", "a100-x1024", {"devices": 1024, "tp": 8}),
    ("llama3-70b", "mi300x-x64", {"devices": 64, "mbs": 1, "cp": 1}),
]


@pytest.mark.parametrize(("model", "cluster", "pins"), one_row_in(2, CASES))
@pytest.mark.parametrize("margin", one_in(3, [0.05, 0.02, 0.2]))
def test_the_first_keeps_the_margin_where_a_search_on_less_memory_finds_a_near_plan(
    model: str, cluster: str, pins: dict[str, int], margin: float
):
    keywords = {"pins": {**pins, "split": "even"}, "top": 64, "all_variants": True}
    free = planner.solve(model, cluster, memory_margin=0.0, **keywords)
    usable = free.best.usable_bytes
    best_s = min(plan.step_time_s for plan in free.plans)
    memory = free.best.breakdown.rows.problem.pool.accelerator.memory_bytes
    less = (("pools.0.memory_margin", f"{(memory - (1 - margin) * usable) / GIB:.9f} GiB"),)
    reduced = planner.solve(model, cluster, memory_margin=0.0, overrides=less, **keywords)
    found = planner.solve(model, cluster, memory_margin=margin, **keywords)
    assert found.counts == free.counts
    near = [
        p.step_time_s
        for p in reduced.plans
        if p.step_time_s <= best_s * (1 + MARGIN_COST_FRAC) * (1 - 1e-9)
    ]
    first = found.best
    assert found.margin is not None
    assert found.margin.is_kept == (first.headroom_frac >= margin - 1e-9)
    if near:
        assert found.margin.is_kept
        assert first.step_time_s <= min(near) * (1 + TIE_FRAC) * (1 + 1e-9)
    else:
        assert first.plan_id == free.best.plan_id
    faster = [p for p in found.plans if p.step_time_s < first.step_time_s]
    tight = [p for p in faster if p.headroom_frac < margin]
    assert found.margin.n_passed_over == (len(tight) if near else 0)


def test_the_answer_names_what_was_passed_over():
    found = planner.solve("llama3-70b", "a100-x1024", pins={"devices": 1024})
    margin = found.margin
    assert margin is not None
    assert margin.fastest is not None
    assert margin.fastest.peak_bytes > 0.95 * margin.fastest.usable_bytes
    assert found.best.headroom_frac >= MARGIN
    assert not any(warning.code == "MEM101" for warning in found.best.warnings)
    (line,) = margin_words(margin, found.best.step_time_s)
    assert line in found.why_first
    assert "--memory-margin 0" in line
    again = Result.from_json(found.to_json())
    assert again.margin is not None
    assert again.margin.to_json() == margin.to_json()


def test_no_margin_no_word():
    found = planner.solve("llama3-70b", "a100-x1024", pins={"devices": 1024}, memory_margin=0.0)
    assert found.margin is None
    assert found.to_json()["memory_margin"] is None
    assert not any("memory-margin" in line for line in found.why_first)


@pytest.mark.parametrize("wrong", [-0.1, 0.95, 5.0])
def test_a_margin_outside_of_its_range_is_refused(wrong: float):
    with pytest.raises(UsageError, match="memory-margin must be a fraction"):
        SolveRequest.of(memory_margin=wrong).options()


def test_a_margin_of_0_wins_over_the_section_and_survives_its_texts():
    request = SolveRequest.of(memory_margin=0.0)
    filled = request.over(SolveRequest.of(memory_margin=0.1))
    assert filled.options().memory_margin == 0.0
    assert SolveRequest.of_json(filled.to_json()).options().memory_margin == 0.0
    assert (
        SolveRequest.of().over(SolveRequest.of(memory_margin=0.1)).options().memory_margin == 0.1
    )
    text = SolveCommand("m", "c").text(SolveOptions(memory_margin=0.0), {})
    assert text.endswith("--memory-margin 0")
    assert "memory_margin" not in SolveOptions().to_json()
