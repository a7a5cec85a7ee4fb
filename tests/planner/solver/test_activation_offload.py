"""Stored activations on the host, from the options to what is printed."""

import pytest

import planner
from costmodels.examples import LLAMA3_8B
from costmodels.problem import Problem
from costmodels.stacks import STACKS
from planner.analyze.neighborhood import derived, single_changes
from planner.errors import SearchError
from planner.frameworks.runs.nearest_layout import nearest_layout
from planner.solver.sources import read_inputs

OPEN = {"activation_offload": ["on", "off"]}


def evaluated(**pins: object) -> planner.Plan:
    pins = {"cp": 2, "zero": 1, **pins}
    return planner.evaluate("llama3-8b", "h100-x8", pins=pins).plans[0]


@pytest.mark.slow
def test_the_search_looks_at_it_where_it_is_named() -> None:
    host = {"optimizer_offload": ("off", "on")}
    closed = planner.solve("llama3-70b", "h100-x8", only=host)
    assert not any(plan.layout.activation_offload for plan in closed.plans)
    opened = planner.solve("llama3-70b", "h100-x8", only={**host, **OPEN})
    assert opened.best.layout.activation_offload
    assert opened.best.step_time_s < closed.best.step_time_s


def test_a_free_copy_frees_memory() -> None:
    plain, away = evaluated(), evaluated(activation_offload_layers=10)
    assert away.step_time_s == plain.step_time_s
    kept = plain.breakdown.rows.layers.kept_bytes.item()
    whole = 1.0 + 0.05  # with what fragmentation adds
    freed = plain.breakdown.peak_bytes - away.breakdown.peak_bytes
    assert freed == pytest.approx(10 * kept * whole)
    assert plain.plan_id != away.plan_id
    assert "activation_offload_layers" not in plain.to_json()["layout"]
    assert away.to_json()["layout"]["activation_offload_layers"] == 10


def test_on_alone_means_all_that_may_leave() -> None:
    assert evaluated(activation_offload="on").layout.activation_offload_layers == 30
    full = evaluated(activation_offload="on", recompute_layers=9)
    assert full.layout.activation_offload_layers == 9


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({"activation_offload_layers": 31}, "OFF005"),
        ({"activation_offload_layers": 3, "recompute_layers": 4}, "OFF005"),
        ({"activation_offload": "on", "cp": 1, "pp": 2}, "OFF004"),
        ({"activation_offload": "off", "activation_offload_layers": 3}, "contradicts"),
    ],
)
def test_what_cannot_be_is_named(pins: dict[str, object], words: str) -> None:
    with pytest.raises(SearchError, match=words):
        evaluated(**pins)


def test_neighbours_move_it() -> None:
    model, cluster = read_inputs("llama3-8b", "h100-x8")
    start = evaluated().layout
    problem = Problem(
        model.shape, model.job, cluster.cluster.pools[0], cluster.cluster.fabric, STACKS["fused"]
    )
    found = [
        c
        for c in single_changes(problem, start, "megatron")
        if c.axis == "activation_offload_layers"
    ]
    assert [(c.new, bool(c.near)) for c in found] == [(8, True), (16, True), (30, True)]
    near = derived(problem, start, {"activation_offload_layers": 8})
    assert near is not None
    assert derived(problem, near, {"recompute": "full"}).activation_offload_layers == 32
    assert derived(problem, near, {"pp": 2}).activation_offload_layers == 0


@pytest.mark.slow
def test_it_is_named_where_it_makes_a_job_fit() -> None:
    pins = {
        "tp": 1,
        "pp": 1,
        "cp": 2,
        "zero": 1,
        "mbs": 1,
        "recompute": "none",
        "optimizer_offload": "off",
    }
    result = planner.solve("llama3-8b", "h100-x8", pins=pins)
    assert not result.plans
    found = {change.change: change for change in result.relaxations}
    with_it = found["stored activations on the host"]
    assert with_it.layout.activation_offload
    assert "--only activation_offload=off,on" in with_it.command


STATED = {
    "n_devices": 8,
    "tp": 1,
    "pp": 1,
    "dp": 8,
    "cp": 1,
    "ep": 1,
    "etp": 1,
    "mbs": 1,
    "gbs": 64,
    "counts": (32,),
    "recompute": "none",
    "activation_offload_layers": 31,
}


@pytest.mark.parametrize(
    ("changes", "n", "words"),
    [
        ({}, 30, "of 30 layers on the host, not of 31"),
        ({"activation_offload_layers": 8}, 8, ""),
        ({"recompute": "full", "recompute_layers": 32}, 32, ""),
        ({"recompute": "selective", "recompute_modules": ("mlp",)}, 0, "beside selective"),
        ({"pp": 2, "dp": 4, "counts": (16, 16)}, 0, "in a pipeline"),
    ],
)
def test_runs_are_priced_as_near_as_can_be(changes: dict[str, object], n: int, words: str) -> None:
    found = nearest_layout({**STATED, **changes}, LLAMA3_8B, 8192, 8, 8)
    assert found.layout is not None
    assert found.layout.activation_offload_layers == n
    assert words in " ".join(found.repairs)
