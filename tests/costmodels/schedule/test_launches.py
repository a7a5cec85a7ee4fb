"""CUDA graphs: what is left of a layer's launches, and what they hold, by hand."""

from dataclasses import replace
from itertools import pairwise

import pytest

from costmodels.axes import CUDA_GRAPHS, SwitchTable
from costmodels.breakdown import break_down
from costmodels.modes import ModeRows
from costmodels.schedule import launches
from tests.costmodels.comm.test_dispatch import ROUTED, arr, ranks

DENSE = replace(ROUTED, n_experts=0, expert_ffn=0, top_k=0)
US = 1e-6


def capturing(word: str) -> ModeRows:
    codes = {"cuda_graph": (CUDA_GRAPHS.index(word),)}
    return ModeRows(ranks(0), ranks(0), SwitchTable.of_product(codes))


DENSE_LEFT = {  # of 1000 us; a graph is launched in both directions, 10 us each
    "none": 1000,
    "attn": 400 + 20,
    "mlp": 600 + 20,
    "attn+mlp": 0 + 40,
    "moe_router": 1000,
    "moe_router+moe_preprocess": 1000,
    "attn+moe_router": 400 + 20,
    "attn+moe_router+moe_preprocess": 400 + 20,
    "layer": 20,
    "full_iteration": 0,
}


@pytest.mark.parametrize("word", CUDA_GRAPHS)
def test_launches_of_a_dense_layer(word):
    left = launches.dense_launch_s(arr(1000 * US), 10 * US, capturing(word)).item()
    assert left == pytest.approx(DENSE_LEFT[word] * US, abs=1e-15)


EXPERT_LEFT = {  # of 1000 us and 600 us of routing: alone, with shared experts
    "none": (1600, 1600),
    "attn": (400 + 600 + 20, 400 + 600 + 20),
    "mlp": (1600, 1600),
    "attn+mlp": (400 + 600 + 20, 400 + 600 + 20),
    "moe_router": (900 + 540 + 20, 600 + 540 + 20),  # a tenth of routing, a twentieth
    "moe_router+moe_preprocess": (900 + 510 + 20, 600 + 510 + 20),
    "attn+moe_router": (300 + 540 + 40, 0 + 540 + 40),
    "attn+moe_router+moe_preprocess": (300 + 510 + 40, 0 + 510 + 40),
    "layer": (20, 20),
    "full_iteration": (0, 0),
}


@pytest.mark.parametrize("word", CUDA_GRAPHS)
def test_launches_of_an_expert_layer(word):
    left = [
        launches.expert_launch_s(
            arr(1000 * US), 600 * US, 10 * US, capturing(word), shared=shared
        ).item()
        for shared in (False, True)
    ]
    assert left == pytest.approx([x * US for x in EXPERT_LEFT[word]], abs=1e-15)


@pytest.mark.parametrize("word", CUDA_GRAPHS)
def test_grouped_products_are_launched_one_by_one_outside_whole_graphs(word):
    left = launches.eager_products_s(arr(300 * US), capturing(word)).item()
    assert left == (0.0 if word in ("layer", "full_iteration") else 300 * US)


@pytest.mark.parametrize("word", CUDA_GRAPHS)
def test_pools_hold_a_layers_temporaries_once_more(word):
    held = launches.pool_bytes(arr(1e9), capturing(word)).item()
    assert held == (0.0 if word == "none" else 1e9)


def test_without_the_axis_nothing_changes():
    off = ModeRows.of_sp(ranks(0))
    assert launches.dense_launch_s(arr(1.0), 0.1, off).item() == 1.0
    assert launches.expert_launch_s(arr(1.0), 0.5, 0.1, off, shared=True).item() == 1.5
    assert launches.eager_products_s(arr(1.0), off).item() == 1.0
    assert launches.pool_bytes(arr(1.0), off).item() == 0.0


# Whole plans ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [DENSE, ROUTED, replace(ROUTED, dense_layers=3, shared_ffn=512)])
def test_graphs_take_time_of_the_host_alone_and_some_memory(toy_problem, plain_layout, shape):
    slow = replace(toy_problem().stack, host_s_per_layer=0.05)
    problem = toy_problem(shape, stack=slow)
    layout = replace(plain_layout(problem, dp=16, zero=1), ep=4 if shape.n_experts else 1)

    def plan(word: str):
        switches = (("cuda_graph", word),) if word != "none" else ()
        return break_down(problem, replace(layout, switches=switches))

    words = ("none", "attn", "full_iteration")
    plans = [plan(word) for word in words]
    for one, other in pairwise(plans):
        assert other.time_s["host"] < one.time_s["host"]
        for term in set(one.time_s) - {"host", "bubble", "straggler", "dp", "overlap"}:
            assert other.time_s[term] == pytest.approx(one.time_s[term], rel=1e-12), term
        for term in ("states", "activations", "logits", "overhead"):
            assert other.stages[0][term] == one.stages[0][term], term
    assert plans[2].time_s["host"] == 0.0
    assert plans[1].stages[0]["working"] > plans[0].stages[0]["working"]


def test_memory_of_a_dense_model_by_hand(toy_problem, plain_layout):
    """The gradients of the MLP and three tensors of the width: 6 f + 6 h bytes a token."""
    problem = toy_problem(DENSE)
    layout = plain_layout(problem, dp=16, zero=1)
    off, on = (
        break_down(problem, replace(layout, switches=x)) for x in ((), (("cuda_graph", "attn"),))
    )
    more = on.stages[0]["working"] - off.stages[0]["working"]
    assert more == 4096 * (6 * 4096 + 6 * 1024)


def test_one_pool_serves_layers_of_all_kinds(toy_problem, plain_layout):
    """Dense layers have more temporaries than attention and shared experts, or less."""
    for shared, inner in ((512, 4096), (8192, 8192)):
        problem = toy_problem(replace(ROUTED, dense_layers=3, shared_ffn=shared))
        layout = replace(plain_layout(problem, dp=16, zero=1), ep=4)
        off, on = (
            break_down(problem, replace(layout, switches=x))
            for x in ((), (("cuda_graph", "attn"),))
        )
        more = on.stages[0]["working"] - off.stages[0]["working"]
        assert more == pytest.approx(4096 * (6 * inner + 6 * 1024), rel=1e-12)


def test_what_is_left_is_a_third_forward(toy_problem, plain_layout):
    slow = replace(toy_problem().stack, host_s_per_layer=1.0)
    problem = toy_problem(DENSE, stack=slow)
    layout = replace(plain_layout(problem, dp=16), switches=(("cuda_graph", "attn"),))
    terms = break_down(problem, layout).rows.layers
    left = 0.6 * 0.4 + 20 * US  # six tenths without collectives to launch
    assert terms.layer.total_s.item() == pytest.approx(left, rel=1e-12)
    assert terms.host.forward_s.item() == pytest.approx(terms.host.total_s.item() / 3)
