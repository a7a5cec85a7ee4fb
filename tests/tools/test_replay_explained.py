"""Differences of a replay that are explained: on the pages, for plans of a kind, up to a size."""

from dataclasses import replace
from pathlib import Path

import pytest

from tools.replay.cases import drawn_plans
from tools.replay.compare import compare
from tools.replay.explained import EXPLAINED, reason_for

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("one", EXPLAINED, ids=lambda one: one.reason)
def test_a_reason_stands_on_the_page_of_its_framework(one):
    for framework in one.frameworks:
        page = "replay.md" if framework == "megatron" else "replay_torch.md"
        assert one.reason in (DOCS / page).read_text()
    assert one.least_frac < one.most_frac


def test_a_difference_is_explained_for_its_plans_and_up_to_its_size():
    plan = drawn_plans("megatron", 1, seed=0)[0]
    plain = replace(plan, layout=replace(plan.layout, cp=1, tp=1))
    ring = replace(plan, layout=replace(plan.layout, cp=2, tp=1))
    assert reason_for(ring, "kept activations", 0.04) == "context parallelism"
    assert reason_for(ring, "kept activations", 0.2) == ""
    assert reason_for(ring, "parameters", 0.04) == ""
    assert reason_for(plain, "kept activations", 0.04) == ""


def test_a_figure_beyond_its_limit_is_off():
    plan = drawn_plans("megatron", 1, seed=0)[0]
    row = {"axis": "dp", "collective": "all-reduce", "n_calls": 2, "bytes": 1000, "dtype": "bf16"}
    real = {
        "collectives": [row],
        "parameters": 10,
        "gradient_bytes": 20,
        "optimizer_bytes": 120,
        "kept_activation_bytes": 100,
    }
    mine = {
        "collectives": [row | {"bytes": 1006}],
        "parameters": 10,
        "state_bytes": 161.0,
        "kept_activation_bytes": 103,
    }
    off = {one.term: one.is_off for one in compare(plan, real, mine)}
    assert off == {
        "dp all-reduce calls": False,
        "dp all-reduce bytes": True,
        "parameters": False,
        "states": False,
        "kept activations": False,
    }
    mine["state_bytes"] = 162.0  # 10 weights of 2 bytes, gradients, optimizer: 160
    assert [one.term for one in compare(plan, real, mine) if one.is_off][1:] == ["states"]
