"""Rules on modes: each broken and met by one plan, reported by a search, told alone and in all."""

from dataclasses import replace

import pytest

from costmodels.axes import (
    CUDA_GRAPHS,
    DISPATCHERS,
    EP_OVERLAPS,
    OFFLOAD_MODULES,
    modules_code,
    switch_axes,
)
from costmodels.examples import MIXTRAL_8X7B
from costmodels.plans import Layout
from costmodels.stacks import STACKS
from planner.frameworks.emit import why_not
from searches.mode_rules import (
    DEEPEP_RANKS,
    MODE_RULES,
    deepep_runs,
    hybridep_runs,
    with_open_modes,
)
from searches.rules import RULES, Context, first_broken_rule, rules_that_break
from searches.search import search
from tests.planner.emitting import JOB, layout
from tests.searches.instances import (
    GQA,
    context,
    pins,
    real_pool,
    toy_pool,
    with_host,
    with_options,
    with_pool,
)
from tests.searches.oracle_mode_rules import broken_mode_rule
from tests.searches.test_modes import blackwell
from tests.searches.wider_instances import LATENT, MOE, any_framework

EIGHT = replace(MOE, n_experts=8)
CAPPED = replace(EIGHT, capacity_factor=1.5)
H100 = real_pool("h100", 1, 8)
FEW = {"mbs": 1, "zero": 1, "tp": 1, "cp": 1, "dp_overlap": 1}


def moded(shape=EIGHT, pool=H100, batch=16, **only: int | tuple[int, ...]) -> Context:
    return context(shape, pool, batch=batch, options=pins(**{**FEW, "vpp": 1, **only}))


def a(name: str) -> int:
    return DISPATCHERS.index(name)


def graph(name: str) -> int:
    return CUDA_GRAPHS.index(name)


def sent(*names: str) -> dict[str, int]:
    return {"offload_modules": modules_code(names, OFFLOAD_MODULES)}


ON, DUAL = EP_OVERLAPS.index("1f1b"), EP_OVERLAPS.index("dualpipe")
MLP, WHOLE = graph("mlp"), graph("full_iteration")
ROUTER = graph("attn+moe_router")
CASES: dict[str, list[tuple[Context, dict[str, int], dict[str, int]]]] = {
    # code: (context, pins of the broken plans, pins of their twins)
    "DSP001": [
        (moded(pool=toy_pool(8, 8), ep=8), {"dispatcher": a("deepep")}, {"dispatcher": 1}),
        (moded(pool=toy_pool(8, 8), ep=8), {"dispatcher": a("hybridep")}, {"dispatcher": 0}),
        (
            moded(pool=blackwell(2, 4, 8), ep=8),
            {"dispatcher": a("deepep")},
            {"dispatcher": a("hybridep")},
        ),
    ],
    "DSP002": [
        (
            moded(replace(EIGHT, n_experts=6), real_pool("h100", 1, 6), 6, etp=1),
            {"dispatcher": a("deepep"), "ep": 6},
            {"dispatcher": a("deepep"), "ep": 2},
        ),
        (  # over nodes of four
            moded(pool=real_pool("h100", 2, 4), ep=8),
            {"dispatcher": a("deepep")},
            {"dispatcher": a("hybridep")},
        ),
        (
            moded(replace(EIGHT, n_experts=6), real_pool("h100", 1, 6), 6),
            {"dispatcher": a("hybridep"), "ep": 6},
            {"dispatcher": a("allgather"), "ep": 6},
        ),
        (  # two experts in each domain of two
            moded(pool=real_pool("h100", 4, 2), ep=8),
            {"dispatcher": a("hybridep")},
            {"dispatcher": a("alltoall")},
        ),
        (
            moded(replace(EIGHT, hidden=1032, heads=8, head_dim=129), ep=8),
            {"dispatcher": a("hybridep")},
            {"dispatcher": a("deepep")},
        ),
    ],
    "DSP003": [
        (moded(), {"dispatcher": a("allgather"), "ep": 1}, {"dispatcher": 1, "ep": 2}),
        (moded(GQA), {"dispatcher": a("deepep")}, {"dispatcher": 0}),
    ],
    "DSP004": [
        (
            moded(CAPPED, ep=8),
            {"dispatcher": a("deepep")},
            {"dispatcher": a("hybridep")},
        )
    ],
    "EPO001": [
        (moded(pp=1), {"ep_overlap": ON, "ep": 1}, {"ep_overlap": ON, "ep": 2}),
        (
            moded(pp=1, ep=8, ep_overlap=ON),
            {"dispatcher": a("allgather")},
            {"dispatcher": a("deepep")},
        ),
    ],
    "EPO002": [
        (moded(ep=4, ep_overlap=ON), {"pp": 2}, {"pp": 1}),
        (moded(ep=4, ep_overlap=ON), {"pp": 2, "vpp": 1}, {"pp": 2, "vpp": 2}),
        (moded(ep=8, pp=1), {"ep_overlap": DUAL}, {"ep_overlap": ON}),
    ],
    "EPO003": [
        (moded(ep=8, ep_overlap=ON), {"recompute": 2}, {"recompute": 0}),
        (
            moded(ep=8, ep_overlap=ON),
            {"recompute_modules": modules_code(["moe"])},
            {"recompute_modules": modules_code(["moe_act"])},
        ),
    ],
    "EPO004": [
        (moded(replace(EIGHT, mtp_layers=2), ep=8), {"ep_overlap": ON}, {"ep_overlap": 0}),
    ],
    "CGR001": [
        (moded(GQA), {"cuda_graph": ROUTER}, {"cuda_graph": graph("attn+mlp")}),
        (moded(ep=8), {"cuda_graph": MLP}, {"cuda_graph": ROUTER}),
        (moded(ep=8), {"cuda_graph": graph("layer")}, {"cuda_graph": graph("attn")}),
    ],
    "CGR002": [
        (
            moded(pool=blackwell(2, 4, 8), ep=8, cuda_graph=WHOLE),
            {"dispatcher": a("alltoall")},
            {"dispatcher": a("hybridep")},
        ),
        (moded(ep=8, dispatcher=a("hybridep")), {"cuda_graph": WHOLE}, {"cuda_graph": ROUTER}),
        (
            moded(replace(EIGHT, gated=False), blackwell(2, 4, 8), ep=8, dispatcher=a("hybridep")),
            {"cuda_graph": WHOLE},
            {"cuda_graph": graph("attn")},
        ),
    ],
    "CGR003": [
        (moded(GQA), {"cuda_graph": MLP, "recompute": 2}, {"cuda_graph": WHOLE, "recompute": 2}),
        (
            moded(ep=8, recompute_modules=modules_code(["moe"])),
            {"cuda_graph": ROUTER},
            {"cuda_graph": graph("attn")},
        ),
        (
            with_host(moded(GQA, pp=1, cuda_graph=(0, WHOLE))),
            {"activation_offload": 1, "cuda_graph": WHOLE},
            {"activation_offload": 1, "cuda_graph": 0},
        ),
    ],
    "CGR004": [
        (
            moded(replace(EIGHT, dense_layers=1), ep=8, ep_overlap=ON),
            {"cuda_graph": MLP},
            {"cuda_graph": graph("attn")},
        ),
        (
            moded(CAPPED, ep=8, ep_overlap=ON),
            {"cuda_graph": graph("layer")},
            {"cuda_graph": WHOLE},
        ),
    ],
    "OFM001": [
        (with_host(moded(GQA)), sent("attn_norm"), sent("qkv_linear")),
        (with_host(moded(GQA)), sent("attn_proj"), sent("core_attn", "attn_proj")),
        (with_host(moded(GQA)), sent("mlp_norm", "core_attn"), sent("core_attn")),
        (
            with_host(moded(replace(EIGHT, n_experts=1), ep=1)),
            sent("expert_fc1"),
            sent("moe_act"),
        ),
    ],
    "OFM002": [(moded(GQA), sent("core_attn"), sent())],
    "OFM003": [
        (
            with_host(
                context(
                    GQA,
                    H100,
                    batch=16,
                    options=any_framework(**FEW, pp=2, **sent("core_attn"), schedule=(2, 4)),
                )
            ),
            {"schedule": 4},
            {"schedule": 2},
        )
    ],
    "OFM004": [
        (
            with_host(moded(ep=8, cuda_graph=(0, ROUTER))),
            {"cuda_graph": ROUTER, **sent("mlp_norm")},
            {"cuda_graph": ROUTER, **sent("core_attn")},
        ),
        (
            with_host(moded(replace(LATENT, ffn=2048), cuda_graph=(0, graph("attn")))),
            {"cuda_graph": graph("attn"), **sent("attn_norm")},
            {"cuda_graph": graph("attn"), **sent("qkv_linear")},
        ),
        (
            with_host(
                moded(pool=blackwell(2, 4, 8), ep=8, dispatcher=a("hybridep"), cuda_graph=WHOLE)
            ),
            sent("moe_act"),
            sent("core_attn"),
        ),
    ],
    "OFM005": [
        (with_host(moded(GQA, **sent("core_attn"))), {"recompute": 2}, {"recompute": 0}),
        (
            with_host(moded(ep=8, **sent("expert_fc1"))),
            {"recompute_modules": modules_code(["moe"])},
            {"recompute_modules": modules_code(["moe_act"])},
        ),
        (
            with_host(moded(replace(GQA, flash_attention=False), **sent("core_attn"))),
            {"recompute_modules": modules_code(["core_attn"])},
            {"recompute_modules": modules_code(["mlp"])},
        ),
        (
            with_host(moded(GQA, pp=1, **sent("core_attn"))),
            {"activation_offload_layers": 2},
            {"activation_offload_layers": 0},
        ),
    ],
}
ROWS = [(code, *row) for code, rows in CASES.items() for row in rows]
FIRST_ROWS = [
    pytest.param(code, *row, marks=[pytest.mark.slow] * (i > 0))
    for code, rows in CASES.items()
    for i, row in enumerate(rows)
]
"""The same for searches: the first of each code by default."""


def pinned(c: Context, only: dict[str, int]) -> Context:
    values = {axis: frozenset((value,)) for axis, value in only.items()}
    return with_options(c, only={**c.options.only, **values})


def test_every_rule_on_modes_has_examples():
    assert set(CASES) == set(MODE_RULES)
    assert set(CASES) == {code for code in RULES if code[:3] in ("DSP", "EPO", "CGR", "OFM")}


@pytest.mark.parametrize(("code", "c", "broken", "twin"), FIRST_ROWS)
def test_a_search_reports_the_code_and_has_plans_of_the_twin(code, c, broken, twin):
    none = search(pinned(c, broken))
    assert none.n_shapes > 0
    assert none.n_legal == 0
    assert none.rejected_plans[code] > 0
    assert search(pinned(c, twin)).n_legal > 0


@pytest.mark.parametrize(("code", "c", "broken", "twin"), ROWS)
def test_a_plan_alone_breaks_what_a_search_reports(code, c, broken, twin):
    """The twin's plan with the broken values, as far as they are modes and recomputation."""
    best = search(pinned(c, twin)).finalists[0].layout
    assert first_broken_rule(c, best) == ""
    assert broken_mode_rule(c.problem, best) == ""
    for plan in candidates(c, best, broken):
        codes = [x for x in rules_that_break(c, plan) if x in MODE_RULES]
        assert codes[0] == code == broken_mode_rule(c.problem, plan)


def candidates(c: Context, best: Layout, broken: dict[str, int]) -> list[Layout]:
    """Return the plan with other modes; none where the pins change its shape or recomputation."""
    words = {axis.name: axis.choices for axis in switch_axes()}
    if set(broken) - set(words):
        return []
    values = {axis: best.value(axis) for axis in words}
    values |= {axis: words[axis][code] for axis, code in broken.items()}
    modes = tuple((axis, x) for axis, x in values.items() if x != words[axis][0])
    return [replace(best, switches=modes)]


def test_dualpipe_alone_hides_the_exchange_of_schedules_that_split_the_backward():
    only = {**FEW, "vpp": (1, 2), "ep": 2, "ep_overlap": DUAL}
    options = any_framework(**only, schedule=(0, 2, 4, 5, 6, 7))
    outcome = search(context(EIGHT, H100, batch=32, options=options))
    assert {x.layout.schedule for x in outcome.finalists} <= {"dualpipe", "dualpipe-v"}
    assert outcome.n_legal > 0
    assert outcome.rejected_shapes["SCH002"] > 0
    assert outcome.rejected_plans["EPO002"] > 0


def test_rules_read_nothing_where_no_mode_is_named():
    outcome = search(moded(ep=8))
    assert not set(outcome.rejected_plans) & set(MODE_RULES)


def test_kernels_by_device():
    runs = {
        "h100": (True, True),
        "a100-sxm-80gb": (True, True),
        "b200": (True, True),
        "mi300x": (True, False),  # of Primus-Turbo
        "mi355x": (True, False),
        "mi210": (False, False),
        "v100-sxm-32gb": (False, False),
    }
    for name, wanted in runs.items():
        problem = context(EIGHT, real_pool(name, 1, 8)).problem
        assert (deepep_runs(problem), hybridep_runs(problem)) == wanted, name
    rack = context(EIGHT, blackwell(18, 4, 72)).problem
    assert (deepep_runs(rack), hybridep_runs(rack)) == (False, True)
    one = with_pool(context(EIGHT, H100), scale_up_domain=8).problem
    assert deepep_runs(one)


@pytest.mark.parametrize("n", [2, 4, 6, 8, 16, 24, 32, 40])
def test_groups_of_deepep_are_those_of_its_table(n):
    """One of n experts on each of n ranks, on nodes of eight or within one."""
    pool = real_pool("h100", max(1, n // 8), min(n, 8))
    shape = replace(EIGHT, n_experts=n, layers=2)
    c = context(shape, pool, batch=n, options=pins(**FEW, pp=1, ep=n, dispatcher=2))
    assert (search(c).n_legal > 0) == (n in DEEPEP_RANKS)


@pytest.mark.parametrize(("n", "is_known"), [(8, True), (32, True), (40, False), (48, False)])
def test_groups_of_its_port_on_amd_are_fewer(n, is_known):
    shape = replace(EIGHT, n_experts=n, layers=2)
    pool = real_pool("mi300x", max(1, n // 8), min(n, 8))
    c = context(shape, pool, batch=n, options=pins(**FEW, pp=1, ep=n, dispatcher=2))
    found = search(replace(c, options=replace(c.options, framework="any")))
    assert (found.n_legal > 0) == is_known


@pytest.mark.parametrize(
    ("framework", "part", "is_opened"),
    [
        ("primus", "mi300x", True),
        ("any", "mi300x", True),
        ("default", "mi300x", False),
        ("megatron", "mi300x", False),
        ("megatron", "h100", True),
    ],
)
def test_deepep_is_looked_at_where_a_framework_has_its_kernels(framework, part, is_opened):
    c = context(EIGHT, real_pool(part, 1, 8))
    problem = replace(c.problem, stack=STACKS["megatron-core"])
    options = with_open_modes(problem, replace(c.options, framework=framework))
    assert (a("deepep") in options.open.get("dispatcher", ())) == is_opened


@pytest.mark.parametrize("framework", ["megatron", "bridge"])
def test_others_are_refused_it_on_amd(framework):
    at = {"dispatcher": "deepep"}
    plan = layout(MIXTRAL_8X7B, n_devices=8, dp=8, ep=8, switches=tuple(at.items()))
    reason = why_not(framework, plan, MIXTRAL_8X7B, JOB, "AMD") or ""
    assert "calls DeepEP's CUDA kernels" in reason
    assert "DeepEP" not in (why_not(framework, plan, MIXTRAL_8X7B, JOB, "NVIDIA") or "")
    assert "DeepEP" not in (why_not("primus", plan, MIXTRAL_8X7B, JOB, "AMD") or "")
