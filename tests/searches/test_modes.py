"""Dispatchers, overlapped exchange and graphs against the oracle, and what holds of them."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from costmodels.breakdown import break_down
from costmodels.plans import Layout, PlanTable
from costmodels.problem import Problem
from costmodels.shape_terms import shape_terms
from costmodels.step import score
from searches.mode_rules import with_open_modes
from searches.options import AXES
from searches.rules import Context, rules_that_break
from searches.search import search
from tests.repeats import slow
from tests.searches import oracle, oracle_models
from tests.searches.certificate import check_certificate
from tests.searches.instances import (
    DENSE,
    GQA,
    ONE_TIER,
    context,
    of_which,
    on_stack,
    one_in,
    pins,
    real_pool,
    toy_pool,
    with_host,
    with_options,
    with_part,
)
from tests.searches.oracle_mode_rules import WORDS as EVERY_WORD
from tests.searches.oracle_mode_rules import broken_mode_rule
from tests.searches.test_oracle import CLOSE, check_against_oracle, legal_plans, thinned
from tests.searches.test_properties import axis_number, same_plan
from tests.searches.test_search import NO_SLOWER
from tests.searches.wider_instances import CAPPED, EVERYTHING, MIXED, MOE, any_framework

WORDS = {axis: words for axis, words in EVERY_WORD.items() if axis != "offload_modules"}
EIGHT = replace(MOE, n_experts=8)
EVERY = {axis: tuple(range(len(words))) for axis, words in WORDS.items()}
OVERLAP = {"ep_overlap": (0, 1)}
ROUTER = WORDS["cuda_graph"].index("attn+moe_router+moe_preprocess")
WHOLE = WORDS["cuda_graph"].index("full_iteration")


def opened(c: Context) -> Context:
    """Return a search that looks at what is open where nobody names a mode."""
    return replace(c, options=with_open_modes(c.problem, c.options))


def blackwell(n_nodes: int, per_node: int, domain: int) -> object:
    return replace(real_pool("gb200", n_nodes, per_node), scale_up_domain=domain)


FEW = {"vpp": 1, "mbs": 1, "recompute": (0, 1)}
INSTANCES: dict[str, Context] = {
    "every-mode-of-experts": context(
        EIGHT,
        real_pool("h100", 1, 8),
        batch=16,
        options=pins(**EVERY, **FEW, tp=1, pp=1, cp=1, zero=1, dp_overlap=1, ep=(1, 4, 8)),
    ),
    "dispatchers-over-nodes": context(
        replace(EIGHT, n_groups=2, top_groups=1, imbalance=1.1),
        real_pool("h100", 2, 8),
        batch=32,
        fabric=ONE_TIER,
        options=pins(
            **FEW, dispatcher=(0, 1, 2, 3), ep_overlap=(0, 1), pp=1, cp=1, tp=(1, 2), zero=(0, 1)
        ),
    ),
    "interleaved-beside": context(
        replace(MIXED, n_experts=8),
        real_pool("h100", 1, 8),
        batch=16,
        options=pins(**OVERLAP, dispatcher=(0, 3), mbs=1, pp=2, vpp=(1, 2, 3), tp=1, zero=1),
    ),
    "dualpipe-of-experts": context(
        replace(MIXED, n_experts=8),
        real_pool("h100", 1, 8),
        batch=16,
        options=any_framework(
            **FEW,
            schedule=(6, 7),
            ep=(1, 2),
            ep_overlap=(0, 2),
            dispatcher=(0, 2),
            pp=(2, 4),
            tp=1,
        ),
    ),
    "graphs-of-a-dense-model": context(
        GQA,
        toy_pool(4),
        batch=8,
        stack="megatron-core",
        options=pins(cuda_graph=EVERY["cuda_graph"], mbs=(1, 2), vpp=1, dp_overlap=1, zero=1),
    ),
    "graphs-and-offload": with_host(
        context(
            replace(DENSE, layers=4, dropout=False),
            toy_pool(2, 2),
            batch=4,
            options=pins(cuda_graph=(0, 3, WHOLE), activation_offload=(0, 1), mbs=1, zero=0),
        )
    ),
    "graphs-of-capped-experts": context(
        CAPPED,
        real_pool("h100", 1, 6),
        batch=6,
        options=any_framework(cuda_graph=EVERY["cuda_graph"], dispatcher=(0, 2, 3), **FEW, zero=1),
    ),
    "open-on-hopper": opened(
        context(
            EVERYTHING,
            real_pool("h100", 1, 4),
            batch=8,
            options=pins(mbs=1, zero=(0, 1), recompute=0, vpp=(1, 2), tp=1),
        )
    ),
    "open-on-a-rack": opened(
        context(EIGHT, blackwell(2, 4, 8), batch=16, options=pins(**FEW, tp=(1, 2), zero=1))
    ),
    "open-over-racks": opened(
        context(
            EIGHT,
            blackwell(4, 2, 4),
            batch=8,
            options=any_framework(**FEW, tp=1, zero=1, schedule=0, cp=1),
        )
    ),
    "open-in-eager-code": opened(
        context(MOE, toy_pool(4), batch=4, stack="eager", options=pins(**FEW, tp=1))
    ),
}
INSTANCES = {name: with_options(c, bound=False, n_finalists=8) for name, c in INSTANCES.items()}


@pytest.mark.parametrize(
    "name", of_which(("graphs-of-a-dense-model", "every-mode-of-experts"), INSTANCES)
)
def test_search_equals_the_oracle(name):
    check_against_oracle(INSTANCES[name])


@pytest.mark.slow
def test_the_instances_have_every_mode_that_some_plan_may_have():
    seen = {x for c in INSTANCES.values() for axis in WORDS for x in values(c, axis)}
    every = {(axis, word) for axis, words in WORDS.items() for word in words}
    assert seen == every


def values(c: Context, axis: str) -> set[tuple[str, object]]:
    plans = [plan.layout for plan in legal_plans(c)]
    return {(axis, plan.value(axis)) for plan in plans}


@pytest.mark.parametrize(
    "name", one_in(3, ["interleaved-beside", "every-mode-of-experts", "open-on-a-rack"])
)
def test_bounds_leave_out_no_better_plan(name):
    c = with_options(INSTANCES[name], bound=True)
    outcome = search(c)
    check_certificate(c, outcome)
    assert search(INSTANCES[name]).finalists[0] == outcome.finalists[0]


# Random plans --------------------------------------------------------------------------------

MODELS = {
    "moe": context(EIGHT, toy_pool(8, 4), batch=16, options=pins(mbs=(1, 2), vpp=(1, 2), tp=1)),
    "mixed": context(
        replace(MIXED, n_experts=8),
        toy_pool(8, 2),
        batch=16,
        stack="megatron-core-deepep",
        options=pins(mbs=1, vpp=(1, 3), tp=(1, 2)),
    ),
    "capped": context(
        CAPPED,
        toy_pool(6, 6),
        batch=12,
        stack="eager",
        options=any_framework(mbs=1, vpp=(1, 2), schedule=(0, 1, 2, 3), tp=1),
    ),
    "everything": context(
        EVERYTHING, toy_pool(8), batch=16, options=pins(mbs=1, vpp=(1, 2), tp=(1, 2))
    ),
    "slow-host": on_stack(
        context(EIGHT, toy_pool(8), batch=16, options=pins(mbs=1, vpp=(1, 2), tp=(1, 2))),
        host_s_per_layer=5e-3,
    ),
    "dense": context(GQA, toy_pool(8), batch=16, options=pins(mbs=(1, 2), vpp=(1, 3))),
    "eager-dense": on_stack(
        context(DENSE, toy_pool(8), batch=8, stack="eager", options=pins(mbs=1)),
        host_s_per_layer=5e-3,
    ),
}


def drawn(c: Context, n: int, seed: int) -> list[Layout]:
    """Return plans with modes drawn evenly of those that no rule but that on devices refuses."""
    random, plans = Random(seed), [plan.layout for plan in thinned(legal_plans(c), 4 * n)]
    found: dict[Layout, None] = {}
    for _ in range(200 * n):
        row = [(axis, random.choice(words)) for axis, words in WORDS.items()]
        modes = tuple((axis, x) for axis, x in row if x != WORDS[axis][0])
        layout = replace(random.choice(plans), switches=modes)
        if modes and broken_mode_rule(c.problem, layout) in ("", "DSP001"):
            found[layout] = None
        if len(found) == n:
            break
    return list(found)


@pytest.mark.parametrize("n", [10, slow(40)])
@pytest.mark.parametrize("name", of_which(("eager-dense", "moe"), MODELS))
def test_random_plans_have_the_numbers_of_the_oracle(name, n):
    """In one table and alone: closed form, exact step, terms, memory of every rank."""
    c = MODELS[name]
    layouts = drawn(c, n, seed=len(name))
    assert len(layouts) == n
    table = PlanTable.from_layouts(layouts)
    scores = score(c.problem, shape_terms(c.problem, table.shapes, table.shardings), table)
    for row, layout in enumerate(layouts):
        one = oracle.micro_batch(c.problem, layout)
        wanted = oracle.price(c.problem, layout, one)
        assert scores.step_s[row] == pytest.approx(wanted.closed_form_s, rel=CLOSE), layout
        assert scores.peak_bytes[row] == pytest.approx(wanted.peak_bytes, rel=CLOSE), layout
        check_breakdown(c.problem, layout, one)


def check_breakdown(problem: Problem, layout: Layout, one: oracle.Micro) -> None:
    opened = break_down(problem, layout)
    exact = oracle.exact_step_s(problem, layout)
    assert opened.step_s == pytest.approx(exact, rel=CLOSE), layout
    assert sum(opened.time_s.values()) == pytest.approx(exact, rel=CLOSE)
    rank_bytes = oracle_models.rank_bytes
    if not isinstance(one, oracle_models.Micro):
        rank_bytes = oracle.physics.rank_bytes
    wanted = [rank_bytes(problem, layout, one, rank) for rank in range(layout.pp)]
    assert [sum(x.values()) for x in opened.stages] == pytest.approx(wanted, rel=CLOSE), layout


@pytest.mark.slow
def test_random_plans_have_every_mode_and_some_have_three():
    layouts = [x for name, c in MODELS.items() for x in drawn(c, 40, seed=len(name))]
    seen = {switch for x in layouts for switch in x.switches}
    assert {x for x in seen if x[1] != "dualpipe"} == {
        (axis, word) for axis, words in WORDS.items() for word in words[1:] if word != "dualpipe"
    }
    assert max(len(x.switches) for x in layouts) == 3
    assert {x.pp > 1 for x in layouts if x.value("ep_overlap") == "1f1b"} == {False, True}


def test_one_plan_breaks_what_the_oracle_says():
    """`rules_that_break` of a plan alone, legal or not, has the oracle's first code on modes."""
    for name in ("every-mode-of-experts", "interleaved-beside", "graphs-of-capped-experts"):
        c = INSTANCES[name]
        plans, random = thinned(legal_plans(c), 20), Random(3)
        for plan in plans:
            row = [(axis, random.choice(words)) for axis, words in WORDS.items()]
            modes = tuple((axis, x) for axis, x in row if x != WORDS[axis][0])
            layout = replace(plan.layout, switches=modes)
            codes = [x for x in rules_that_break(c, layout) if x[:3] in ("DSP", "EPO", "CGR")]
            assert (codes or [""])[0] == broken_mode_rule(c.problem, layout), layout


# Properties ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", one_in(6, INSTANCES))
def test_more_memory_never_gives_fewer_plans_nor_a_slower_best(name):
    c = INSTANCES[name]
    usable = c.problem.pool.accelerator.memory_bytes
    outcomes = [search(with_part(c, memory_bytes=usable * x)) for x in (0.03, 0.06, 0.12, 1.0)]
    for less, more in pairwise(outcomes):
        assert more.n_fit >= less.n_fit
        if less.finalists:
            assert more.finalists[0].step_s <= less.finalists[0].step_s * NO_SLOWER
    assert outcomes[0].n_fit < outcomes[-1].n_fit


@pytest.mark.parametrize("name", one_in(6, INSTANCES))
def test_every_axis_pinned_to_the_value_of_the_best_gives_the_same_best(name):
    c = with_options(INSTANCES[name], bound=True, n_finalists=4)
    best = search(c).finalists[0]
    for axis in WORDS:
        number = frozenset((axis_number(best.layout, axis),))
        pinned = with_options(c, only={**c.options.only, axis: number})
        assert same_plan(search(pinned).finalists[0], best), axis
    whole = {axis: frozenset((axis_number(best.layout, axis),)) for axis in AXES}
    outcome = search(with_options(c, only=whole))
    assert [same_plan(plan, best) for plan in outcome.finalists] == [True]


def test_what_is_open_is_no_slower_than_all_off():
    for name in ("open-on-hopper", "open-on-a-rack"):
        c = INSTANCES[name]
        closed = search(with_options(c, open={})).finalists[0]
        assert search(c).finalists[0].step_s <= closed.step_s


def test_nothing_is_open_where_nothing_carries_it():
    """Dense models, eager code, and frameworks whose files carry none of it."""
    for c in (
        context(GQA, real_pool("h100", 1, 8)),
        context(EIGHT, real_pool("h100", 1, 8), stack="eager"),
        with_options(context(EIGHT, real_pool("h100", 1, 8)), framework="deepspeed"),
    ):
        assert not opened(c).options.open
        assert len(opened(c).options.switches) == 1


def test_what_is_open_depends_on_the_devices():
    def names(pool: object, **options: object) -> dict[str, set[str]]:
        c = with_options(context(EIGHT, pool), **options)
        return {
            axis: {WORDS[axis][code] for code in codes}
            for axis, codes in opened(c).options.open.items()
        }

    hopper, rack, toy = real_pool("h100", 1, 8), blackwell(2, 4, 8), toy_pool(8)
    assert names(hopper)["dispatcher"] == {"alltoall", "deepep", "hybridep"}
    assert names(rack)["dispatcher"] == {"alltoall", "hybridep"}
    assert "dispatcher" not in names(toy)
    router = "attn+moe_router+moe_preprocess"
    assert names(hopper)["cuda_graph"] == {"none", router}
    assert names(rack)["cuda_graph"] == {"none", router, "full_iteration"}
    assert names(hopper)["ep_overlap"] == {"off", "1f1b"}
    assert names(hopper, framework="any")["ep_overlap"] == {"off", "1f1b", "dualpipe"}
    named = pins(ep_overlap=0).only
    assert "ep_overlap" not in names(hopper, only=named)


def test_overlap_is_no_slower_in_the_steady_state():
    """Without tax the exposed part is at most the whole, whatever the plan."""
    c = on_stack(MODELS["moe"], overlap_slowdown=0.0)
    c = replace(c, problem=replace(c.problem, job=replace(c.problem.job, global_batch=512)))
    plans = [x for x in drawn(c, 200, seed=1) if x.value("ep_overlap") == "1f1b"]
    plans = [x for x in plans if x.value("dispatcher") == "alltoall" and x.n_micro >= 16]
    assert len(plans) >= 5
    for layout in plans:
        off = tuple(x for x in layout.switches if x[0] != "ep_overlap")
        steps = [
            oracle.exact_step_s(c.problem, replace(layout, switches=x))
            for x in (off, layout.switches)
        ]
        assert steps[1] <= steps[0] * (1 + CLOSE), layout
