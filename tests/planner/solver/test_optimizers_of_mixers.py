"""Models of unlike layers with optimizers that treat a matrix as one: solved, and by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import planner
from costmodels.layers.kinds import LAYER_KINDS
from costmodels.layers.recurrences.delta_net import GDN
from costmodels.layers.sublayers.composition import composed
from costmodels.layers.sublayers.feeds import EXPERTS
from planner.errors import SearchError
from planner.specs.loader import load_model
from tests.searches.instances import one_in

CLUSTER = "h100-x8"
EXPERT_SIZES = {"experts": 32, "topk": 4, "moe_ffn": 1024}
# Every second layer with a window of 128, biases, experts everywhere.
WINDOWS: dict[str, Any] = {
    "layer_kinds": [{"pattern": ["window+moe", "moe"], "repeat": 4}],
    "window": {"size": 128},
    "heads": 32,
    "bias": True,
}
# Three delta nets to one attention with a gated output.
DELTAS: dict[str, Any] = {
    "layer_kinds": [{"pattern": ["gdn+moe", "gdn+moe", "gdn+moe", "moe"], "repeat": 2}],
    "delta_net": {"k_heads": 16, "v_heads": 32, "k_dim": 128, "v_dim": 128},
    "heads": 16,
    "attention_gate": True,
}


def model_file(folder: Path, changes: dict[str, Any]) -> str:
    """Write a small model of eight layers with experts, with the job of Llama 3."""
    loaded = load_model("llama3-8b").document
    own = {key: value for key, value in loaded["model"].items() if value is not None}
    job = {key: value for key, value in loaded["training"].items() if value is not None}
    del own["layers"]
    sizes = {"name": "small", "hidden": 2048, "kv_heads": 8, "head_dim": 64, "ffn": 5632}
    path = folder / "small.yaml"
    model = {**own, **sizes, "moe": EXPERT_SIZES, **changes}
    path.write_text(yaml.safe_dump({"model": model, "training": job}))
    return str(path)


def solved(path: str, optimizer: str):
    overrides = [("training.optimizer", optimizer)]
    pins = {"tp": 2, "pp": 1, "ep": 4, "zero": 1}
    return planner.solve(
        path, CLUSTER, top=1, framework="megatron", overrides=overrides, pins=pins
    )


def states_bytes(path: str, optimizer: str) -> float:
    """Return the optimizer's states of one device that holds all layers and shares none out."""
    overrides = [("training.optimizer", optimizer)]
    pins = {"tp": 2, "ep": 4, "etp": 1, "zero": 0}
    plan = planner.evaluate(path, CLUSTER, framework="any", overrides=overrides, pins=pins).best
    (stage,) = plan.breakdown.stages
    return stage["states"]


Shards = list[tuple[int, int, int]]
"""Rows, columns and number of the matrices of a rank."""
# Of 8 layers on one of 2 tensor ranks; of 32 experts 8, which no rank cuts.
EXPERTS_OF_RANK: Shards = [(32, 2048, 8), (2048, 2048, 64), (2048, 1024, 64)]
CASES: list[tuple[dict[str, Any], Shards]] = [
    # QKV (2048 + 2 * 512) / 2 rows, the output 2048 / 2 columns.
    (WINDOWS, [(1536, 2048, 8), (2048, 1024, 8), *EXPERTS_OF_RANK]),
    # Delta nets (2 * 2048 + 2 * 4096 + 2 * 32) / 2 rows, 4096 / 2 columns; two layers of attention
    # with 1024 queries, as many gates, 2 * 512 keys and values.
    (
        DELTAS,
        [
            (6176, 2048, 6),
            (2048, 2048, 6),
            (1536, 2048, 2),
            (2048, 512, 2),
            *EXPERTS_OF_RANK,
        ],
    ),
]
LIKE = ["gpt-oss", "qwen3-next"]


@pytest.mark.parametrize(("changes", "shards"), CASES, ids=LIKE)
def test_states_by_hand(tmp_path: Path, changes: dict[str, Any], shards: Shards):
    path = model_file(tmp_path, changes)
    adam, muon, soap = (states_bytes(path, name) for name in ("adam", "muon", "soap"))
    # One momentum in place of two moments for matrices, two for all others.
    assert adam - muon == 4 * sum(m * n * count for m, n, count in shards)
    # Both moments, and two square matrices a side with their eigenvalues.
    beside = sum((8 * (m * m + n * n) + 4 * (m + n)) * count for m, n, count in shards)
    assert soap - adam == beside


@pytest.mark.parametrize("optimizer", one_in(2, ["muon", "soap"]))
@pytest.mark.parametrize("changes", [WINDOWS, DELTAS], ids=LIKE)
def test_a_search_finds_plans(tmp_path: Path, changes: dict[str, Any], optimizer: str):
    plan = solved(model_file(tmp_path, changes), optimizer).plans[0]
    assert (plan.layout.tp, plan.layout.ep, plan.layout.zero) == (2, 4, 1)
    assert plan.breakdown.time_s["optimizer"] > 0.0


def test_a_mixer_without_a_list_is_refused_by_its_kind(tmp_path: Path, monkeypatch):
    path = model_file(tmp_path, DELTAS)
    unlisted = composed(replace(GDN, matrices=None), EXPERTS)
    monkeypatch.setitem(LAYER_KINDS, "gdn+moe", unlisted)
    for optimizer in ("muon", "soap"):
        with pytest.raises(SearchError, match=r"gdn\+moe"):
            solved(path, optimizer)
