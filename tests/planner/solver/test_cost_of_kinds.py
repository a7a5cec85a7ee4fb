"""What further kinds of layers cost: a solve of five takes at most twice that of one."""

import time
from typing import Any

import pytest

from planner.solver.solve import solve
from planner.specs.loader import load_model

FIVE: dict[str, Any] = {
    "layer_kinds": [
        {
            "pattern": ["mamba2+none", "none+dense", "window+dense", "gdn+dense", "dense"],
            "repeat": 8,
        }
    ],
    "window": {"size": 128},
    "mamba2": {"heads": 64, "head_dim": 128, "groups": 8, "state": 128},
    "delta_net": {"k_heads": 16, "v_heads": 32, "k_dim": 128, "v_dim": 128},
}
MOST = 2.0


def document(layers: dict[str, Any]) -> dict[str, Any]:
    """Return Llama-3 8B with other layers."""
    loaded = load_model("llama3-8b").document
    training = {key: value for key, value in loaded["training"].items() if value is not None}
    model = {k: v for k, v in loaded["model"].items() if v is not None and k != "layers"}
    return {"model": {**model, **layers}, "training": training}


def solve_s(model: dict[str, Any]) -> float:
    """Return the least CPU time of three solves, seconds."""
    found = []
    for _ in range(3):
        start = time.process_time()
        assert solve(model, "h100-x512", framework="any").plans
        found.append(time.process_time() - start)
    return min(found)


@pytest.mark.slow
def test_five_kinds_cost_at_most_twice_one():
    assert solve_s(document(FIVE)) < MOST * solve_s(document({"layers": 40}))
