"""What devices hold and lack: counted by hand, against the memory model, and by every rank."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import planner
from costmodels.parameters import total_params
from costmodels.plans import Layout
from planner.analyze.replan.resharding import (
    Holdings,
    holdings,
    lacking_bytes,
    port_bytes_per_s,
    survives,
)
from planner.solver.problem import make_problem
from planner.solver.request import SolveRequest
from planner.solver.sources import read_inputs
from planner.specs.loader import load_model

MODEL = load_model("llama3-8b")
N = total_params(MODEL.shape, 8192)
W, K = 2.0, 12.0


def layout(n: int, tp: int = 1, pp: int = 1, zero: int = 0, **more: Any) -> Layout:
    dp = n // (tp * pp)
    base = Layout(
        n_devices=n,
        tp=tp,
        pp=pp,
        dp=dp,
        vpp=1,
        split="even",
        mbs=1,
        gbs=32 * dp,
        zero=zero,
        sp=False,
        schedule="none" if pp == 1 else "1f1b",
        recompute="none",
        recompute_layers=0,
        stage_layers=(32 // pp,) * pp,
    )
    return replace(base, **more)


def held(x: Layout) -> Holdings:
    return holdings(x, MODEL.shape, 8192)


def lacking(old: Layout, new: Layout, was: list[int] | None = None) -> list[float]:
    ranks = np.arange(new.n_devices) if was is None else np.array(was)
    return list(lacking_bytes(held(old), held(new), ranks, W, K) / N)


# By hand, in bytes over N: what a device needs, less what it has of that.
CASES = [
    ("nothing changes", layout(2, tp=2), layout(2, tp=2), None, [0.0, 0.0]),
    ("halves of a whole", layout(2), layout(2, tp=2), None, [0.0, 0.0]),
    ("the other half", layout(2, tp=2), layout(2), None, [7.0, 7.0]),
    ("half of the state", layout(2, zero=1), layout(1), [0], [6.0]),
    ("a piece of the state", layout(1), layout(2, zero=1), [0, -1], [0.0, 2.0 + 6.0]),
    (
        "other pieces",
        layout(2, zero=1),
        layout(4, zero=1),
        [0, 1, -1, -1],
        [0.0, 3.0, 2.0 + 3.0, 2.0 + 3.0],
    ),
    ("ZeRO 3 from 1", layout(2, zero=1), layout(2, zero=3), None, [0.0, 0.0]),
    ("ZeRO 1 from 3", layout(2, zero=3), layout(2, zero=1), None, [1.0, 1.0]),
    ("devices swapped", layout(2, tp=2), layout(2, tp=2), [1, 0], [7.0, 7.0]),
]


@pytest.mark.parametrize(("name", "old", "new", "was", "want"), CASES, ids=[c[0] for c in CASES])
def test_what_devices_lack(
    name: str, old: Layout, new: Layout, was: list[int] | None, want: list[float]
) -> None:
    # 128,256 rows are no multiple of 128 tp for every tp: the padding is at most 1 in 10,000.
    assert lacking(old, new, was) == pytest.approx(want, abs=2e-3)


def test_stages_hold_their_layers_and_ends() -> None:
    one, two = held(layout(1)), held(layout(2, pp=2))
    halves = two.bytes_held(W, K)
    assert halves.sum() == pytest.approx(one.bytes_held(W, K)[0])
    # Of the first half of the layers and the embedding the first device has everything.
    assert lacking(layout(2, pp=2), layout(1), [0]) == pytest.approx([halves[1] / N])


@pytest.mark.parametrize(
    ("model", "cluster", "pins"),
    [
        ("llama3-8b", "h100-x8", {"tp": 1, "zero": 1}),
        ("llama3-8b", "h100-x8", {"tp": 1, "pp": 2, "vpp": 2, "zero": 1}),
        ("mixtral-8x7b", "h100-x512", {"pp": 4, "ep": 8, "zero": 1}),
        ("mixtral-8x7b", "h100-x512", {"tp": 2, "pp": 2, "ep": 4, "etp": 2, "zero": 1}),
        ("llama3-8b", "h100-x512", {"tp": 2, "zero": 1, "dp_shard": 8}),
    ],
)
def test_holdings_are_those_of_the_memory_model(
    model: str, cluster: str, pins: dict[str, object]
) -> None:
    plan = planner.evaluate(model, cluster, pins=pins).plans[0]
    given, _ = read_inputs(model, cluster)
    recipe, found = given.job.recipe, holdings(plan.layout, given.shape, given.job.seq_len)
    each = found.bytes_held(recipe.param_bytes + recipe.grad_bytes, recipe.state_bytes)
    for rank, stage in enumerate(plan.breakdown.stages):
        mine = each[found.stage == rank]
        assert mine.max() == pytest.approx(mine.min())
        assert mine.max() == pytest.approx(stage["states"], rel=2e-3)


def test_every_piece_is_held_as_often_as_there_are_copies() -> None:
    x = layout(8, tp=2, zero=1, shard=2)
    states = held(x).states
    points = np.linspace(0.0, 1.0, 97, endpoint=False) + 1e-4
    inside = (states.start[:, None] <= points) & (points < (states.start + states.width)[:, None])
    assert (inside.sum(axis=0) == x.dp // 2).all()


@pytest.mark.parametrize(
    ("x", "lost", "want"),
    [
        (layout(4), [0, 1, 2], True),
        (layout(4), [0, 1, 2, 3], False),
        (layout(4, zero=1), [3], False),
        (layout(4, zero=1, shard=2), [0, 3], True),
        (layout(4, zero=1, shard=2), [0, 2], False),
        (layout(4, tp=2), [0, 3], True),
        (layout(4, tp=2), [0, 2], False),
        (layout(4, pp=2), [0, 2], True),
        (layout(4, pp=2), [0, 1], False),
    ],
)
def test_what_is_left_holds_everything_or_not(x: Layout, lost: list[int], want: bool) -> None:
    alive = np.ones(4, dtype=bool)
    alive[lost] = False
    assert survives(held(x), alive) == want


def test_a_lost_expert_is_missed() -> None:
    model = load_model("mixtral-8x7b")
    x = layout(4, ep=2)
    found = holdings(x, model.shape, 4096)
    # Experts alternate over the four copies of all else: 0 and 2 hold the same ones.
    assert survives(found, np.array([True, True, False, False]))
    assert not survives(found, np.array([True, False, True, False]))


def test_bandwidth_is_that_of_the_level_that_all_share() -> None:
    model, cluster = read_inputs("llama3-8b", "h100-x16384")
    problem = make_problem(model, cluster, SolveRequest.of(top=1).options())
    pool = problem.pool
    assert port_bytes_per_s(problem, 1) == pool.accelerator.ring_bytes_per_s
    assert port_bytes_per_s(problem, 2) == pool.nic_bytes_per_s
    over = np.prod([t.oversubscription for t in problem.fabric.tiers if t.n_nodes < pool.n_nodes])
    assert port_bytes_per_s(problem, pool.n_nodes) == pytest.approx(pool.nic_bytes_per_s / over)


@pytest.mark.parametrize(
    ("cluster", "n_nodes", "links"),
    [
        ("64xtpu-v5p", 16, 2 * 63 / 64),  # a ring of 4 an axis: 8 w / 4 of each rank
        ("64xtpu-v5p", 1, 2 * 3 / 4),  # one such ring alone
        ("64xtpu-v6e", 8, 63 / 64 / 2),  # 8x8 closes nowhere: 4 w / 8
    ],
)
def test_on_a_torus_all_devices_exchange_along_its_axes(
    cluster: str, n_nodes: int, links: float
) -> None:
    model, inputs = read_inputs("llama3-8b", cluster)
    problem = make_problem(model, inputs, SolveRequest.of(top=1).options())
    assert port_bytes_per_s(problem, n_nodes) == pytest.approx(links * 90e9)
