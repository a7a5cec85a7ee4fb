"""The plan view of a hybrid model: every number opens, kinds are named by their sublayers."""

import math
from typing import Any

import pytest

from planner.render.plan_view.data import plan_view
from planner.render.plan_view.page import plan_body
from planner.render.plan_view.quantities import evaluated
from planner.solver.solve import evaluate
from planner.solver.sources import read_inputs
from planner.specs.loader import load_model
from tests.planner.render.plan_view.test_opened_numbers import Walk
from tests.searches.instances import one_row_in

MOE = {"experts": 16, "topk": 2, "moe_ffn": 1024, "shared_experts": 1}
MODELS: dict[str, dict[str, Any]] = {
    "nemotron": {
        "layer_kinds": [
            {"pattern": ["mamba2+none", "none+dense", "attention+none", "none+moe"], "repeat": 8}
        ],
        "mamba2": {"heads": 64, "head_dim": 128, "groups": 8, "state": 128},
        "moe": MOE,
    },
    "qwen-next": {
        "layer_kinds": [{"pattern": ["gdn+moe", "gdn+moe", "attention+moe"], "repeat": 10}],
        "delta_net": {"k_heads": 16, "v_heads": 32, "k_dim": 128, "v_dim": 128},
        "moe": MOE,
    },
    "gpt-oss": {
        "layer_kinds": [{"pattern": ["window+moe", "attention+moe"], "repeat": 16}],
        "window": {"size": 128},
        "moe": MOE,
    },
}
PINS = [
    {"tp": 2, "pp": 2, "zero": 1, "split": "even"},
    {"tp": 1, "pp": 1, "cp": 2, "cp_comm": "a2a", "ep": 1, "recompute": "full"},
]


@pytest.mark.parametrize(
    ("name", "pins"),
    one_row_in(
        8,
        [
            (name, pins)
            for i, name in enumerate(MODELS)
            for pins in (reversed(PINS) if i % 2 else PINS)
        ],
    ),
)
def test_every_number_opens(name: str, pins: dict[str, Any]) -> None:
    check_numbers(MODELS[name], pins)


STREAMS: dict[str, Any] = {
    "dense": {"residual_streams": {"count": 4}},
    "experts": {"residual_streams": {"count": 2}, "moe": {**MOE, "dense_layers": 4}},
    "deepseek-v4": {
        "layer_kinds": [{"pattern": ["shared-window+moe", "csa+moe", "hca+moe", "moe"]}] * 8,
        "compressed": {
            "q_rank": 1024,
            "window": 128,
            "groups": 8,
            "out_rank": 512,
            "index_heads": 16,
            "index_dim": 64,
            "top_k": 512,
        },
        "residual_streams": {"count": 4},
        "mtp_layers": 1,
        "moe": MOE,
    },
}


@pytest.mark.parametrize(
    ("name", "recompute"),
    one_row_in(6, [(name, x) for name in STREAMS for x in ("none", "full")]),
)
def test_every_number_of_several_streams_opens(name: str, recompute: str) -> None:
    pins = {"tp": 2, "pp": 2, "zero": 1, "split": "even", "recompute": recompute, "vpp": 1}
    check_numbers(STREAMS[name], pins)


def check_numbers(changes: dict[str, Any], pins: dict[str, Any]) -> None:
    """Open every number of the fastest plan of a model."""
    loaded = load_model("llama3-8b").document
    model = {**loaded["model"], **changes}
    model = {k: v for k, v in model.items() if v is not None and k != "layers"}
    model |= {"layers": 32} if "layer_kinds" not in model else {}
    training = {key: value for key, value in loaded["training"].items() if value is not None}
    document = {"model": model, "training": training}
    plan = evaluate(document, "h100-x8", pins=pins, framework="any").plans[0]
    inputs = read_inputs(document, "h100-x8", ())
    view = plan_view(*inputs, plan.breakdown.rows.problem, plan)
    walk = Walk(plan_body(view))
    assert not walk.strays
    assert set(walk.numbers) == set(walk.cards)
    for card in view.deck.cards.values():
        value = evaluated(card.derivation.substituted)
        assert math.isclose(value, card.value, rel_tol=2e-4, abs_tol=1e-9), card
