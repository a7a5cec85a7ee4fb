"""The lines under the table speak of the objective that was asked for."""

from typing import Any

import pytest

import planner
from planner.render.document import text_of
from tests.planner.command import run_here
from tests.repeats import slow

MODEL: dict[str, Any] = {
    "model": {
        "name": "small",
        "layers": 8,
        "hidden": 1024,
        "heads": 8,
        "ffn": 4096,
        "gated": False,
        "vocab": 32000,
        "tied": False,
    },
    "training": {"seq_len": 1024, "global_batch": 64, "precision": "bf16", "tokens": "1T"},
}
CLUSTER: dict[str, Any] = {
    "pools": [
        {
            "name": "small",
            "nodes": 1,
            "accelerators_per_node": 4,
            "accelerator": "h100-sxm-80gb",
            "price_per_hour": 3.0,
        }
    ]
}


def answer_text(**options: Any) -> tuple[planner.Result, str]:
    found = planner.solve(MODEL, CLUSTER, **options)
    return found, " ".join(text_of(found).split())


@pytest.mark.parametrize(
    ("objective", "best", "proof"),
    [
        ("step_time", "the fastest", "proven: none of"),
        slow("tokens_per_s", "the fastest", "proven: none of"),
        (
            "cost",
            "the cheapest",
            "proven: no plan costs over 1% less than the first; none",
        ),
        slow(
            "energy", "the one of least energy", "proven: no plan takes over 1% less energy than"
        ),
        slow(
            "goodput",
            "the one that ends the run first",
            "proven: no plan ends the run over 1% earlier",
        ),
        ("devices", "the fastest on so few devices", "proven: no plan keeps the limits on fewer"),
        ("memory", "", "proven of the step time alone, not of memory: none of"),
    ],
)
def test_proof_and_legend_name_the_objective(objective: str, best: str, proof: str) -> None:
    found, text = answer_text(objective=objective)
    assert proof in text
    if sum(plan.tie for plan in found.plans) > 1:
        assert f"= within model error of {best}" in text
        assert f"plans lie within 1% of {best}: the model cannot tell them apart" in text
    else:
        assert "within model error" not in text


def test_a_tie_is_listed_for_some_objective() -> None:
    # What the words above are about does occur.
    found, text = answer_text(objective="cost", all_variants=True)
    assert sum(plan.tie for plan in found.plans) > 1
    assert "= within model error of the cheapest" in text


def test_the_first_costs_no_more_than_its_ties_allow() -> None:
    found, _ = answer_text(objective="cost", top=50)
    every = [planner.solve(MODEL, CLUSTER, pins={"devices": n}).plans for n in (1, 2, 4)]
    least = min(p.run.usd_per_million_tokens for plans in every for p in plans)
    assert found.best.run.usd_per_million_tokens <= least * 1.01


def test_a_front_is_proven_of_the_step_time_alone() -> None:
    _, text = answer_text(pareto=["cost", "step_time"])
    assert "proven of the step time alone, not of the front of cost, step_time: none of" in text


@pytest.mark.slow
def test_the_table_says_what_its_days_count() -> None:
    words = ("solve", "llama3-8b", "h100-x8", "--pin", "tp=2", "--top", "1", "--no-cache", "-v")
    told = run_here(*words, "--set", "training.tokens=1T").stdout
    assert "days: training alone, without failures and checkpoints (planner show: with" in told
    assert "cost: with them" not in told
    priced = ("--set", "pools.0.price_per_hour=2", "--objective", "cost")
    told = run_here(*words, "--set", "training.tokens=1T", *priced).stdout
    assert "; cost: with them" in told
    assert max(map(len, told.splitlines())) <= 100
    assert "days: training" not in run_here(*words, "--set", "training.tokens=null").stdout
