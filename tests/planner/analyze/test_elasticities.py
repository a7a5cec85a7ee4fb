"""Elasticities against dimensional analysis, one problem at a time, and full searches."""

from math import exp, log

import pytest

import planner
from costmodels.breakdown import exact_step_times, join_one
from costmodels.plans import Layout
from costmodels.problem import Problem
from planner.analyze.elasticities import (
    FIGURES,
    LOG_STEP,
    RATES,
    TIMES,
    elasticities,
    more_memory,
    sensitivity,
)
from tests.searches.instances import one_in

TIERED = {
    "name": "tiered",
    "pools": [{"accelerator": "h100-sxm-80gb", "nodes": 32, "nic": "roce-400"}],
    "fabric": {
        "rail_optimized": False,
        "tiers": [
            {"name": "rack", "nodes": 2, "oversubscription": 1},
            {"name": "pod", "nodes": 8, "oversubscription": 7},
        ],
    },
}
"""256 H100: every level of the network counts, and hops off the rail cost more."""

CASES = {
    "dense": ("llama3-70b", TIERED, {"tp": 8, "pp": 4, "vpp": 5, "zero": 1}, ""),
    "zero-bubble": ("llama3-70b", TIERED, {"tp": 8, "pp": 8, "schedule": "zb-v"}, "any"),
    "fsdp": ("llama3-8b", TIERED, {"zero": 3}, "fsdp2"),
    "hybrid fsdp": ("llama3-8b", TIERED, {"zero": 3, "dp_shard": 32}, "torchtitan"),
    "cp": ("llama3-8b", TIERED, {"tp": 2, "cp": 4, "pp": 2, "cp_comm": "all-gather"}, ""),
    "ring": ("llama3-8b", TIERED, {"tp": 2, "cp": 4, "cp_comm": "p2p"}, ""),
    "experts": ("mixtral-8x7b", TIERED, {"tp": 4, "pp": 4, "ep": 8, "etp": 1}, ""),
    "graphs": (
        "mixtral-8x7b",
        TIERED,
        {"tp": 4, "pp": 4, "ep": 8, "etp": 1, "cuda_graph": "attn+moe_router"},
        "",
    ),
    "latent": (
        "deepseek-v3",
        "gb200-nvl72-x576",
        {"devices": 512, "pp": 16, "ep": 32, "recompute_modules": "mla_up_proj"},
        "",
    ),
    "optimizer offload": ("llama3-70b", "h100-x8", {"tp": 8, "optimizer_offload": "on"}, ""),
    "deepspeed offload": (
        "llama3-8b",
        "h100-x8",
        {"zero": 2, "optimizer_offload": "on"},
        "deepspeed",
    ),
    "activation offload": (
        "llama3-8b",
        TIERED,
        {"tp": 4, "activation_offload_layers": 8},
        "",
    ),
    "mesh of links": ("llama3-8b", "mi300x-x64", {"tp": 2, "zero": 1}, ""),
    "uneven stages": (
        "llama3-70b",
        TIERED,
        {"tp": 8, "pp": 8, "split": "9-9-10-10-10-11-11-10"},
        "any",
    ),
}


def priced(name: str) -> tuple[Problem, Layout]:
    model, cluster, pins, framework = CASES[name]
    pins = dict(pins)
    found = planner.evaluate(model, cluster, pins=pins, framework=framework or "default").best
    return found.breakdown.rows.problem, found.layout


@pytest.mark.parametrize("name", CASES)
def test_sum_is_what_dimensional_analysis_says(name: str) -> None:
    problem, layout = priced(name)
    found = elasticities(problem, layout)
    over_rates, over_times = (sum(found[x] for x in names) for names in (RATES, TIMES))
    assert over_rates - over_times == pytest.approx(-1.0, abs=1e-6)
    assert found["matmul_flops"] < 0.0
    assert all(found[x] <= 1e-9 for x in RATES)
    assert all(found[x] >= -1e-9 for x in TIMES)


@pytest.mark.parametrize(
    "name", one_in(3, ["dense", "latent", "deepspeed offload", "hybrid fsdp", "ring"])
)
def test_one_table_is_one_problem_at_a_time(name: str) -> None:
    problem, layout = priced(name)
    found = elasticities(problem, layout)
    for figure in FIGURES:
        sides = [figure.changed(problem, exp(s * LOG_STEP)) for s in (1.0, -1.0)]
        more, less = (log(exact_step_times(join_one(x, layout), [layout])[0]) for x in sides)
        assert found[figure.name] == (more - less) / (2.0 * LOG_STEP)


@pytest.mark.parametrize("name", ["experts", "graphs"])
def test_scaling_every_rate_and_time_scales_the_step(name: str) -> None:
    problem, layout = priced(name)
    faster = problem
    for figure in FIGURES:
        faster = figure.changed(faster, 2.0 if figure.name in RATES else 0.5)
    before, after = (exact_step_times(join_one(x, layout), [layout])[0] for x in (problem, faster))
    assert after == pytest.approx(before / 2.0, rel=1e-12)


def test_what_a_plan_does_not_use_has_none() -> None:
    problem, layout = priced("dense")
    found = elasticities(problem, layout)
    assert found["host_link_bandwidth"] == found["host_memory_bandwidth"] == 0.0
    problem, layout = priced("optimizer offload")
    alone = elasticities(problem, layout)  # one node
    assert alone["scale_out_bandwidth"] == alone["scale_out_latency"] == 0.0
    assert alone["host_memory_bandwidth"] < -0.005


def accelerator(**changes: str) -> dict[str, object]:
    return {"like": "h100-sxm-80gb", **changes}


SEARCHED = {
    "hbm_bandwidth": (
        "pools.0.accelerator",
        lambda k: accelerator(hbm_bandwidth=f"{3.35 * k:.9f} TB/s"),
    ),
    "scale_up_bandwidth": (
        "pools.0.accelerator",
        lambda k: accelerator(scale_up_bandwidth=f"{450 * k:.9f} GB/s"),
    ),
    "matmul_flops": (
        "pools.0.accelerator",
        lambda k: {
            "like": "h100-sxm-80gb",
            "peaks": {"bf16": f"{989 * k:.9f} TFLOP/s", "tf32": f"{494.7 * k:.9f} TFLOP/s"},
        },
    ),
    "scale_out_bandwidth": ("pools.0.nic_speed", lambda k: f"{400 * k:.9f} Gb/s"),
    "scale_up_latency": ("pools.0.scale_up_latency", lambda k: f"{0.6 * k:.9f} us"),
}
STEP = 0.002


@pytest.mark.parametrize("figure", one_in(6, SEARCHED))
def test_envelope_of_full_searches(figure: str) -> None:
    """The best plan of each side is the same, so that its own derivative is that of the best."""
    only = {"tp": [2, 4, 8], "pp": [1, 2, 4], "mbs": [1, 2]}
    path, value = SEARCHED[figure]

    def best(factor: float) -> planner.Result:
        return planner.solve(
            "llama3-8b",
            "h100-x512",
            top=1,
            only=only,
            executor="serial",
            overrides=(("pools.0.nodes", 8), (path, value(factor))),
        )

    middle, more, less = best(1.0).best, best(exp(STEP)).best, best(exp(-STEP)).best
    assert more.layout == middle.layout == less.layout
    measured = log(more.step_time_s / less.step_time_s) / (2.0 * STEP)
    found = elasticities(middle.breakdown.rows.problem, middle.layout)[figure]
    assert abs(found) > 1e-3
    assert found == pytest.approx(measured, rel=1e-3)


def test_memory_traffic_of_a_known_plan() -> None:
    """At least weights and gradients a micro-batch and the optimizer; activations are more."""
    problem, layout = priced("fsdp")
    moved = sensitivity(problem, layout).hbm_bytes
    params = 8.03e9
    least = layout.n_micro * 3 * 2 * params + 42 * params / layout.dp
    assert least < moved < 20 * least


def test_memory_traffic_does_not_depend_on_the_network() -> None:
    problem, layout = priced("experts")
    slower = problem
    for figure in FIGURES:
        if figure.name.startswith(("scale", "kernel", "rank")):
            slower = figure.changed(slower, 0.5 if figure.name in RATES else 2.0)
    one, other = (sensitivity(x, layout).hbm_bytes for x in (problem, slower))
    assert other == pytest.approx(one, rel=2e-3)


def test_more_memory_saves_recomputation() -> None:
    pins = {"tp": 2, "pp": 2, "mbs": 1, "recompute": "full"}
    plan = planner.evaluate("llama3-8b", "h100-x8", pins=pins).best
    problem, layout = plan.breakdown.rows.problem, plan.layout
    found = more_memory(problem, layout)
    assert found is not None
    plain = planner.evaluate("llama3-8b", "h100-x8", pins=pins | {"recompute": "none"}).best
    assert found.step_s == pytest.approx(plain.step_time_s, rel=1e-12)
    assert found.memory_bytes == pytest.approx(plain.breakdown.peak_bytes + 4 * 2**30, rel=1e-9)
    assert more_memory(problem, plain.layout) is None
