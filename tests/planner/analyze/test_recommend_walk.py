"""The walk to a layout: its numbers are those of searches, its costs add up."""

from functools import cache
from typing import Any

import pytest

import planner
from planner.analyze.recommend.answer import Recommendation
from planner.render.answers.recommendation import conclusion, walk_end, walk_parts
from planner.render.document import text_of
from planner.render.terminal import lines_of
from planner.text_lines import WIDTH

SMALL = {
    "model": {
        "name": "small",
        "layers": 24,
        "hidden": 6144,
        "heads": 48,
        "kv_heads": 8,
        "ffn": 24576,
        "gated": True,
        "vocab": 32000,
        "tied": True,
    },
    "training": {"seq_len": 4096, "global_batch": 64},
}
EXPERTS = {
    "model": {
        **SMALL["model"],
        "hidden": 2048,
        "heads": 16,
        "ffn": 4096,
        "moe": {"experts": 16, "topk": 2, "moe_ffn": 4096},
    },
    "training": SMALL["training"],
}
NODE = "h100-x8"
TWO: tuple[tuple[str, object], ...] = (("pools.0.nodes", 2),)


@cache
def walked(name: str = "small", tp: int = 0) -> Recommendation:
    model = {"small": SMALL, "experts": EXPERTS}[name]
    return planner.recommend("layout", model, NODE, overrides=TWO, pins={"tp": tp} if tp else None)


def steps(found: Recommendation) -> dict[str, Any]:
    assert found.answer is not None
    return {step["step"]: step for step in found.answer["steps"]}


@pytest.mark.slow
def test_values_are_what_searches_with_pins_say() -> None:
    of = steps(walked())["tp"]
    for choice in of["choices"]:
        pins = {"tp": choice["value"], "pp": 1, "cp": 1}
        other = planner.solve(SMALL, NODE, overrides=TWO, pins=pins, top=1)
        if choice["fits"]:
            assert other.certificate is not None
            assert choice["step_time_s"] == other.certificate.fastest_s
            assert choice["peak_bytes"] == round(other.best.breakdown.peak_bytes)
        elif choice["peak_bytes"] is not None:
            assert other.closest is not None
            assert choice["peak_bytes"] == round(other.closest.peak_bytes)


@pytest.mark.slow
def test_costs_of_the_decisions_sum_to_what_the_walk_costs() -> None:
    found = walked()
    assert found.answer is not None
    end, best = found.answer["end"], found.answer["best"]
    costs = [step["costs_s"] for step in found.answer["steps"]]
    assert all(cost >= -1e-12 for cost in costs)
    assert sum(costs) == pytest.approx(end["step_time_s"] - best["step_time_s"], abs=1e-12)
    assert found.answer["costs_frac"] == end["step_time_s"] / best["step_time_s"] - 1
    assert found.answer["same"] == (end["plan_id"] == best["plan_id"])


def test_it_ends_beside_the_plan_of_solve() -> None:
    found = walked()
    assert found.answer is not None
    assert found.plan is not None
    solved = planner.solve(SMALL, NODE, overrides=TWO, top=1)
    assert found.plan.plan_id == solved.best.plan_id
    assert solved.certificate is not None
    assert found.answer["best"]["step_time_s"] == solved.certificate.fastest_s


def test_the_first_step_counts_the_states() -> None:
    """24 layers of 6144, ffn 24,576: 13.2 B parameters of 18 bytes are 222 GiB."""
    why = steps(walked())["one"]["why"]
    # Attention 2 x 6144^2 + 2 x 6144 x 1024, three products of 6144 x 24,576.
    n = 24 * (2 * 6144**2 + 2 * 6144 * 1024 + 3 * 6144 * 24576 + 2 * 6144) + 32000 * 6144 + 6144
    assert why.startswith(f"{n / 1e9:.1f} B parameters of 18 bytes")
    assert f"are {n * 18 / 2**30:,.0f} GiB" in why


def test_tp_stays_in_the_domain_and_the_price_of_leaving_is_said() -> None:
    of = steps(walked())["tp"]
    values = [choice["value"] for choice in of["choices"]]
    assert of["chosen"] <= 8
    assert all(value <= 16 for value in values)


@pytest.mark.slow
def test_a_pinned_axis_is_no_step() -> None:
    found = walked(tp=4)
    assert "tp" not in steps(found)
    assert found.answer is not None
    assert "tp4 " in found.answer["end"]["shown"]
    assert all(
        "tp4 " in choice["layout"]
        for step in found.answer["steps"]
        for choice in step["choices"]
        if choice["layout"] and step["step"] != "one"
    )


@pytest.mark.slow
def test_models_with_experts_are_asked_for_ep() -> None:
    of = steps(walked("experts"))
    assert [c["value"] for c in of["ep"]["choices"]][:2] == [1, 2]
    assert "ep" not in steps(walked())


def test_a_long_layout_is_shown_to_its_end() -> None:
    layout = "tp1 pp1 dp512 vpp1 zero3 mbs1 groups of 32 rank order pp-dp recompute full 60"
    choice = {
        "value": 1,
        "peak_bytes": 70 * 2**30,
        "step_time_s": 16.59,
        "layout": layout,
        "why_not": "",
    }
    step = {
        "step": "tp",
        "question": "?",
        "choices": [choice, {**choice, "value": 16}],
        "chosen": 1,
        "why": "it fits",
        "costs_s": 0.0,
        "best_step_time_s": 16.0,
    }
    lines = lines_of(walk_parts({"steps": [step], "usable_bytes": 75 * 2**30}))
    assert " ".join(" ".join(lines[1:3]).split()).endswith(layout)
    assert max(map(len, lines)) <= WIDTH
    assert lines[3].index("tp1") == lines[1].index("tp1")


def test_words() -> None:
    found = walked()
    assert found.answer is not None
    text = text_of(found)
    for number, step in enumerate(found.answer["steps"], start=1):
        assert f"{number}. {step['question']}" in text
    dear = dict(steps(found)["tp"], costs_s=1.0, best_step_time_s=4.0)
    assert conclusion(dear).endswith("the decisions so far: 4.000 s, +1.000 s")
    nothing = dict(found.answer, end=None)
    assert walk_end(nothing).startswith("Greedy result: no plan fits")
    other = dict(found.answer, same=False, costs_frac=0.25, steps=[dear])
    other["best"] = {"shown": "tp4 vpp4", "step_time_s": 15.939}  # of the fastest, which ties
    said = "Of all plans tp4 vpp4 is recommended, and the fastest takes 15.939 s"
    assert said in walk_end(other)
    assert f"the walk costs +25.0% (tp {dear['chosen']} +1.000 s)" in walk_end(other)
