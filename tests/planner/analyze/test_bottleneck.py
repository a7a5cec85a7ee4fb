"""What binds: parts that sum to the step, levers that are what repricing says, honest words."""

import json
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import planner
from costmodels.breakdown import Breakdown, break_down
from costmodels.documentation.terms import TIME_TERMS
from planner.analyze.bottleneck import MEMORY, PARTS, binding_part, is_wall, largest, parts_s
from planner.analyze.bottleneck_levers import Bound, Lever, bound_of, state_of
from planner.analyze.elasticities import RATES, TIMES, MoreMemory, elasticities
from planner.analyze.explain import explain
from planner.analyze.recommend.questions import with_bandwidth
from planner.render.answers.bottleneck import (
    bottleneck_headline,
    bottleneck_parts,
    relaxing,
)
from planner.render.answers.explanation import explanation_json
from planner.render.terminal import terminal_text
from planner.solver.answer.result import Plan
from planner.solver.options import SolveOptions

CASES: dict[str, tuple[str, str, dict[str, object], tuple[tuple[str, object], ...]]] = {
    "dense": ("llama3-70b", "h100-x512", {"tp": 4, "pp": 4, "cp": 2, "vpp": 4}, ()),
    "bubble": (
        "llama3-8b",
        "h100-x512",
        {"tp": 1, "pp": 16, "mbs": 1, "split": "even"},
        (("training.global_batch", 32),),
    ),
    "experts": ("deepseek-v3", "h800-x2048", {"pp": 16, "ep": 64, "split": "ends"}, ()),
    "full": ("llama3-70b", "h100-x512", {"tp": 2, "pp": 2, "mbs": 1, "recompute": "full"}, ()),
}


BOUND = ["bubble", *(pytest.param(x, marks=pytest.mark.slow) for x in ("experts", "full"))]
"""Cases beside `dense` whose changes are priced as well."""


@cache
def plan_of(name: str) -> Plan:
    model, cluster, pins, overrides = CASES[name]
    return planner.evaluate(model, cluster, pins=pins, framework="any", overrides=overrides).best


@cache
def bound(name: str) -> Bound:
    plan = plan_of(name)
    return bound_of(plan.breakdown.rows.problem, plan)


def fake(**time_s: float) -> Breakdown:
    found = plan_of("dense").breakdown
    time = dict.fromkeys(TIME_TERMS, 0.0) | time_s
    return replace(found, time_s=time, step_s=sum(time.values()))


@pytest.mark.parametrize("name", CASES)
def test_parts_sum_to_the_step(name: str) -> None:
    plan = plan_of(name)
    parts = parts_s(plan.breakdown, elasticities(plan.breakdown.rows.problem, plan.layout))
    assert tuple(parts) == PARTS
    assert all(seconds >= 0 for seconds in parts.values())
    assert sum(parts.values()) == pytest.approx(plan.step_time_s, rel=1e-12)


def test_words_of_the_line_that_says_why_mean_what_they_mean_as_parts() -> None:
    """`compute` is a part of what binds: the sum of all kernels is not called that."""
    found = planner.solve("llama3-8b", "h100-x8", top=1)
    plan = found.best
    parts = parts_s(plan.breakdown, elasticities(plan.breakdown.rows.problem, plan.layout))
    said = dict(re.findall(r"([a-z]+) ([\d.]+) s", found.why_first[0]))
    assert float(said["kernels"]) > parts["compute"] + 0.01
    assert {name for name in said if name not in PARTS} == {"kernels"}
    for name in said.keys() & set(PARTS):
        assert float(said[name]) == pytest.approx(parts[name], abs=0.006), name


def test_computing_is_cut_by_its_three_figures() -> None:
    """8 s of computing at elasticities of 0.6, 0.15 and 0.05 are 6, 1.5 and 0.5 s."""
    flat = dict.fromkeys((*RATES, *TIMES), 0.0)
    flat |= {"matmul_flops": -0.6, "hbm_bandwidth": -0.15, "kernel_latency": 0.05}
    parts = parts_s(fake(linear=7.0, head=0.5, optimizer=0.5, bubble=1.0, recompute=2.0), flat)
    assert parts["compute"] == pytest.approx(6.0)
    assert parts["hbm"] == pytest.approx(1.5)
    assert parts["overhead"] == pytest.approx(0.5)
    assert (parts["bubble"], parts[MEMORY]) == (1.0, 2.0)
    assert largest(parts) == "compute"


def test_memory_binds_where_it_does_not_fit_and_would_be_faster() -> None:
    parts = dict.fromkeys(PARTS, 1.0) | {"bubble": 5.0}
    assert is_wall(10.0, 80.0, MoreMemory(100.0, 9.0))
    assert not is_wall(10.0, 80.0, MoreMemory(70.0, 9.0))  # it would fit
    assert not is_wall(10.0, 80.0, MoreMemory(100.0, 9.95))  # a tie
    assert binding_part(parts, 10.0, 80.0, MoreMemory(100.0, 9.0)) == MEMORY
    assert binding_part(parts, 10.0, 80.0, None) == "bubble"


@pytest.mark.slow
def test_an_idle_pipeline_binds_and_rows_of_sweeps_say_so() -> None:
    from planner.sweeps.rows import _elasticities

    found = bound("bubble")
    assert found.binds == "bubble"
    assert found.now.share("bubble") == pytest.approx(plan_of("bubble").breakdown.bubble_frac)
    assert _elasticities(plan_of("bubble"))["best.binding"] == "bubble"
    assert any(x.kind == "job" for x in found.relaxing("bubble"))


@pytest.mark.parametrize("name", [pytest.param("dense", marks=pytest.mark.slow), *BOUND])
def test_rows_and_explanations_agree(name: str) -> None:
    from planner.sweeps.rows import _elasticities

    assert _elasticities(plan_of(name))["best.binding"] == bound(name).binds


def lever(found: Bound, change: str) -> Lever:
    return next(x for x in found.levers if x.change == change)


def test_bandwidth_relaxes_by_what_repricing_says() -> None:
    plan, found = plan_of("dense"), bound("dense")
    problem = with_bandwidth(plan.breakdown.rows.problem, "scale-up", 2.0)
    step_s = break_down(problem, plan.layout).step_s
    x = lever(found, "twice the scale_up_bandwidth")
    assert x.after.step_s == step_s
    assert x.gain_frac == 1.0 - step_s / plan.step_time_s
    assert x.relaxes == "tp"


def test_a_batch_relaxes_by_what_another_evaluation_says() -> None:
    model, cluster, pins, _ = CASES["bubble"]
    larger = planner.evaluate(
        model, cluster, pins=pins, framework="any", overrides=(("training.global_batch", 64),)
    ).best
    x = lever(bound("bubble"), "a global batch of 64")
    assert x.after.step_s == pytest.approx(larger.step_time_s / 2, rel=1e-12)
    assert x.after.parts["bubble"] == pytest.approx(larger.breakdown.time_s["bubble"] / 2)
    assert x.gain_frac == pytest.approx(1 - larger.step_time_s / 2 / plan_of("bubble").step_time_s)


def test_a_layout_relaxes_by_what_another_evaluation_says() -> None:
    model, cluster, pins, _ = CASES["dense"]
    x, same = lever(bound("dense"), "cp 2 -> 1"), plan_of("dense").layout.split
    other = planner.evaluate(
        model, cluster, pins=pins | {"cp": 1, "split": same}, framework="any"
    ).best
    assert x.after.step_s == pytest.approx(other.step_time_s, rel=1e-12)
    assert x.fits == (other.headroom_frac >= 0)
    assert (x.kind == "memory") == (not x.fits)


@pytest.mark.parametrize("name", ["dense", *BOUND])
def test_what_is_relaxed_is_what_falls_most(name: str) -> None:
    found = bound(name)
    assert found.levers
    for x in found.levers:
        falls = {p: found.now.parts[p] - x.after.parts[p] for p in PARTS}
        if x.kind == "memory":
            assert x.relaxes == MEMORY
            assert not x.fits
        else:
            assert falls[x.relaxes] == max(falls.values())
        if x.costs:
            assert falls[x.costs] == min(falls.values()) < 0
    gains = [x.gain_frac for x in found.levers]
    assert gains == sorted(gains, reverse=True)


def test_what_needs_more_memory_is_faster_than_what_needs_less() -> None:
    walled = sorted(
        (x for x in bound("dense").levers if x.kind == "memory"), key=lambda x: x.after.peak_bytes
    )
    steps = [x.after.step_s for x in walled]
    assert steps == sorted(steps, reverse=True)
    assert all(x.after.peak_bytes > plan_of("dense").usable_bytes for x in walled)


@pytest.mark.parametrize("name", ["dense", *BOUND])
def test_next_is_another_part_at_the_least_factor(name: str) -> None:
    found = bound(name)
    after = found.next
    if found.binds == MEMORY:
        assert after.after == "no recomputation"
        return
    assert after.part != found.binds or after.same
    assert after.part == after.state.largest or not after.after


def test_next_of_compute_is_what_faster_products_leave() -> None:
    from planner.analyze.elasticities import FIGURES

    plan, found = plan_of("dense"), bound("dense")
    assert found.next.after == "4 times the matmul_flops"
    problem, figure = plan.breakdown.rows.problem, FIGURES[0]
    parts = {k: state_of(figure.changed(problem, k), plan.layout) for k in (2.0, 4.0)}
    assert parts[2.0].largest == "compute"
    assert found.next.state.step_s == parts[4.0].step_s
    assert found.next.part == parts[4.0].largest != "compute"


def test_words_say_when_nothing_dominates() -> None:
    found = bound("dense")
    assert found.dominates
    assert bottleneck_headline(found).startswith("compute, ")
    flat = dict.fromkeys(PARTS, 0.0) | {"compute": 3.0, "ep": 2.5, "hbm": 2.0, "dp": 1.0}
    even = replace(found, now=replace(found.now, step_s=8.5, parts=flat))
    assert not even.dominates
    assert bottleneck_headline(even).startswith(
        "nothing dominates: the largest part is compute 35.3%, then"
    )


@pytest.mark.slow
def test_a_wall_names_recomputation() -> None:
    full = bound("full")
    assert full.binds == (MEMORY if full.roomier else full.now.largest)
    assert full.roomier is not None
    text = terminal_text(bottleneck_parts(full))
    assert "without recomputation a step takes" in text
    assert full.next.state.step_s == pytest.approx(full.roomier.step_s)


def test_no_gain_is_not_promised() -> None:
    """Where all that relaxes the part makes the step longer, the least loss is shown."""
    found = bound("bubble")
    losing = tuple(replace(x, gain_frac=-abs(x.gain_frac)) for x in found.levers)
    worse = replace(found, levers=losing)
    assert relaxing(worse) == worse.relaxing("bubble")[:1]


@pytest.mark.slow
def test_explanation_is_plain_data() -> None:
    plan = plan_of("dense")
    problem = plan.breakdown.rows.problem
    data: dict[str, Any] = explanation_json(explain(problem, plan, SolveOptions()))
    text = json.dumps(data, allow_nan=False)
    assert data["binding"]["binds"] == "compute"
    assert sum(p["time_s"] for p in data["binding"]["parts"]) == pytest.approx(plan.step_time_s)
    assert (
        json.dumps(explanation_json(explain(problem, plan, SolveOptions())), allow_nan=False)
        == text
    )
    assert explanation_json(explain(problem, plan, SolveOptions(), "tp"))["binding"] is None
    assert all(len(line) <= 100 for line in data["text"].splitlines())
