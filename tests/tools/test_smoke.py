"""The comparison of a running job with its plan, without a framework."""

import copy
import json
import math

import pytest

from planner.solver.solve import solve
from planner.specs.loader import cluster_from_dict, model_from_dict
from tools.smoke.case import Case
from tools.smoke.expected import LINE, differences, expected_facts, reported_facts
from tools.smoke.run import Outcome, cluster_of
from tools.smoke.table import write_table

MODEL = {
    "model": {
        "name": "tiny-experts",
        "layers": 4,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "gated": True,
        "vocab": 256,
        "tied": False,
        "moe": {"experts": 4, "topk": 2, "moe_ffn": 64, "imbalance": 1.0},
    },
    "training": {"seq_len": 64, "global_batch": 16, "precision": "bf16", "optimizer": "adam"},
}
PINS = {"tp": 1, "pp": 2, "ep": 2, "zero": 1, "mbs": 1, "vpp": 1, "cp": 1, "devices": 8}


@pytest.fixture(scope="module")
def expected():
    model, cluster = model_from_dict(MODEL), cluster_from_dict(cluster_of(8)).cluster
    (plan,) = solve(MODEL, cluster_of(8), pins=PINS, framework="megatron", top=1).plans
    return expected_facts(plan.layout, model.shape, model.job, cluster.pools[0], cluster.fabric)


def told(expected):
    """Return what a job that is the plan's reports."""
    losses = [expected["first_loss"] + 0.1, expected["first_loss"]]
    facts = {name: value for name, value in expected.items() if name != "first_loss"}
    return copy.deepcopy(facts | {"losses": losses, "release": "1.0"})


def test_the_plan_in_the_words_of_a_job(expected):
    # 8 ranks as pp 2 x dp 4: stages are ranks 0-3 and 4-7, experts alternate in each stage.
    assert expected["groups"]["pp"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert expected["groups"]["dp"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert expected["groups"]["ep"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert expected["experts"] == [[0, 1], [2, 3]] * 4
    assert expected["sharding"] == {"parameters": 1, "gradients": 1, "optimizer": 4}
    assert (expected["n_micro"], expected["stage_layers"]) == (4, [2, 2])
    attention, experts, router = 64 * 16 * (4 + 2 + 2) + 64 * 64, 4 * 3 * 64 * 64, 64 * 4
    layer = attention + experts + router + 2 * 64
    assert expected["parameters"] == 4 * layer + 2 * 256 * 64 + 64
    assert expected["first_loss"] == pytest.approx(math.log(256))


def test_a_job_as_planned_has_no_differences(expected):
    assert differences(expected, told(expected)) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_micro", 3),
        ("stage_layers", [1, 3]),
        ("groups", {}),
        ("sharding", {"parameters": 1, "gradients": 1, "optimizer": 1}),
        ("experts", [[0, 1, 2, 3]] * 8),
        ("parameters", 1000),
        ("losses", [9.0, 8.0]),
        ("losses", [5.5]),
        ("losses", [5.5, math.nan]),
    ],
)
def test_every_difference_is_noticed(expected, name, value):
    assert differences(expected, told(expected) | {name: value})


def test_the_line_is_found_in_the_output_of_a_job():
    output = f"warning\n[rank0]: {LINE}{json.dumps({'release': '1'})}\nbye"
    assert reported_facts(output) == {"release": "1"}
    assert reported_facts("nothing") is None


def test_the_table_keeps_the_rows_of_other_releases(tmp_path):
    case = Case("dense", "megatron", MODEL, PINS, "dense")
    layout = {"tp": 2, "pp": 1, "recompute": "full"}
    path = tmp_path / "table.md"
    write_table(path, [Outcome(case, "0.17.0", (), 1.0, layout)])
    write_table(path, [Outcome(case, "0.19.2", ("no line of facts: x",), 1.0, layout)])
    rows = [line for line in path.read_text().splitlines() if line.startswith("| megatron")]
    assert rows == [
        "| megatron | 0.17.0 | dense | tp2 recompute full | ran as planned |",
        "| megatron | 0.19.2 | dense | tp2 recompute full | did not: no line of facts: x |",
    ]
