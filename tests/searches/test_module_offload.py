"""Inputs of modules on the host against the oracle, and what holds of them."""

from dataclasses import replace
from random import Random

import pytest

from costmodels.breakdown import break_down
from costmodels.plans import Layout, PlanTable
from costmodels.shape_terms import shape_terms
from costmodels.step import needed_host_bytes, score
from searches.rules import Context, rules_that_break
from searches.search import search
from tests.repeats import slow
from tests.searches import oracle, oracle_models
from tests.searches.certificate import check_certificate
from tests.searches.instances import (
    GB,
    GQA,
    TOY_HOST,
    context,
    of_which,
    on_stack,
    one_in,
    pins,
    real_pool,
    toy_pool,
    with_options,
    with_pool,
)
from tests.searches.oracle_mode_rules import WORDS, broken_mode_rule
from tests.searches.oracle_offload import sent_modules
from tests.searches.test_modes import check_breakdown
from tests.searches.test_oracle import CLOSE, check_against_oracle, legal_plans, thinned
from tests.searches.wider_instances import EVERYTHING, LATENT, MIXED, MOE, any_framework

EIGHT = replace(MOE, n_experts=8)
SETS = WORDS["offload_modules"]


def codes(*words: str) -> tuple[int, ...]:
    return tuple(SETS.index(word) for word in words)


def on_host(c: Context, memory: float = 100 * GB, link: float = 0.0) -> Context:
    """Return the same search with a host, by a link of another speed if one is named."""
    host = replace(TOY_HOST, memory_bytes=memory)
    return with_pool(c, host=replace(host, link_bytes_per_s=link or host.link_bytes_per_s))


def long(c: Context) -> Context:
    """Return the same search over sequences whose tensors are large enough to leave."""
    return replace(c, problem=replace(c.problem, job=replace(c.problem.job, seq_len=8192)))


FEW = {"mbs": 1, "vpp": (1, 2), "dp_overlap": 1, "cp": 1}
ATTENTION = codes("none", "core_attn", "core_attn+attn_proj", "qkv_linear+core_attn+attn_proj")
INSTANCES = {
    "dense": context(
        GQA,
        toy_pool(4),
        batch=8,
        options=pins(**FEW, offload_modules=ATTENTION, recompute=(0, 1), zero=(0, 1), tp=(1, 2)),
    ),
    "latent": context(
        LATENT,
        toy_pool(4, 2),
        batch=8,
        options=pins(
            **FEW,
            tp=1,
            zero=1,
            offload_modules=codes(
                "none", "attn_norm", "qkv_linear", "attn_norm+qkv_linear+core_attn+attn_proj"
            ),
        ),
    ),
    "experts": context(
        replace(MIXED, n_experts=8),
        toy_pool(4),
        batch=8,
        options=pins(
            **FEW,
            tp=1,
            zero=1,
            ep=(1, 4),
            cuda_graph=(0, 6),
            ep_overlap=(0, 1),
            offload_modules=codes("none", "mlp_norm", "expert_fc1+moe_act", "attn_norm"),
        ),
    ),
    "any": context(
        GQA,
        toy_pool(4),
        batch=8,
        options=any_framework(
            **{**FEW, "vpp": (1, 2)},
            tp=1,
            zero=(0, 1),
            schedule=(0, 2, 3, 4, 5),
            offload_modules=codes("none", "core_attn+attn_proj", "attn_proj"),
        ),
    ),
}
INSTANCES = {
    name: with_options(long(on_host(c)), bound=False, n_finalists=8)
    for name, c in INSTANCES.items()
}


@pytest.mark.parametrize("name", of_which(("dense",), INSTANCES))
def test_search_equals_the_oracle(name):
    check_against_oracle(INSTANCES[name])


@pytest.mark.parametrize("name", one_in(2, ["dense", "experts"]))
def test_bounds_leave_out_no_better_plan(name):
    # Graphs that save nothing are left out whatever they are bounded by.
    only = {**INSTANCES[name].options.only, "cuda_graph": frozenset({0})}
    c = with_options(INSTANCES[name], bound=True, only=only)
    outcome = search(c)
    check_certificate(c, outcome)
    assert search(with_options(c, bound=False)).finalists[0] == outcome.finalists[0]


@pytest.mark.parametrize("memory", [0.2 * GB, 1.0 * GB])
def test_a_small_host_leaves_out_what_the_oracle_does(memory):
    check_against_oracle(on_host(INSTANCES["dense"], memory))


MODELS = {
    "dense": context(GQA, toy_pool(8), batch=16, options=pins(mbs=(1, 2), vpp=(1, 3))),
    "latent": context(LATENT, toy_pool(8), batch=16, options=pins(mbs=(1, 2), vpp=(1, 2), cp=1)),
    "experts": context(EIGHT, toy_pool(8, 4), batch=16, options=pins(mbs=(1, 2), vpp=(1, 2))),
    "mixed": context(
        replace(MIXED, n_experts=8), toy_pool(8, 2), batch=16, options=pins(mbs=1, vpp=(1, 3))
    ),
    "everything": context(
        EVERYTHING, toy_pool(8), batch=16, options=pins(mbs=1, vpp=(1, 2), cp=1)
    ),
    "delayed": context(GQA, real_pool("h100", 1, 8), batch=16, options=pins(mbs=1, vpp=1)),
    "blocks": context(
        EVERYTHING, real_pool("b200", 1, 8), batch=16, options=pins(mbs=1, vpp=1, cp=1)
    ),
}
SLOW = {"delayed": 50e9, "mixed": 20e9}
"""Links that are not as slow as those of the others."""
PRECISION = {"delayed": "fp8-delayed", "blocks": "fp8-mxfp8"}


def model(name: str) -> Context:
    c = long(on_host(MODELS[name], link=SLOW.get(name, 2e9)))
    if name not in PRECISION:
        return c
    job = replace(c.problem.job, precision=PRECISION[name])
    c = replace(c, problem=replace(c.problem, job=job))
    return on_stack(c, quantized_copies=True)


def drawn(c: Context, n: int, seed: int) -> list[Layout]:
    """Return plans that offload modules, half of them with other modes too."""
    random, plans = Random(seed), [plan.layout for plan in thinned(legal_plans(c), 6 * n)]
    found: dict[Layout, None] = {}
    for i in range(400 * n):
        row = [
            (axis, random.choice(words))
            for axis, words in WORDS.items()
            if axis == "offload_modules" or i % 2
        ]
        modes = tuple((axis, x) for axis, x in row if x != WORDS[axis][0])
        layout = replace(random.choice(plans), switches=modes)
        code = broken_mode_rule(c.problem, layout)
        if sent_modules(layout) and code in ("", "DSP001"):
            found[layout] = None
        if len(found) == n:
            break
    return list(found)


@pytest.mark.parametrize("n", [8, slow(30)])
@pytest.mark.parametrize("name", of_which(("dense",), MODELS))
def test_random_plans_have_the_numbers_of_the_oracle(name, n):
    """In one table and alone: closed form, exact step, terms, memory of every rank, the host's."""
    c = model(name)
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


@pytest.mark.slow
def test_random_plans_wait_and_send_every_module():
    layouts = [(model(name), x) for name in MODELS for x in drawn(model(name), 30, len(name))]
    assert set().union(*(sent_modules(x) for _, x in layouts)) == set(SETS[-1].split("+"))
    waits = [oracle.micro_batch(c.problem, x) for c, x in layouts]
    of_dense = [x.copies for x in waits if not isinstance(x, oracle_models.Micro)]
    assert any(x[0] > 0 for x in of_dense)
    assert any(x == (0.0, 0.0) for x in of_dense)


@pytest.mark.slow
def test_one_plan_breaks_what_the_oracle_says():
    """`rules_that_break` of a plan alone, legal or not, has the oracle's first code on modes."""
    seen = set()
    for c in (*INSTANCES.values(), MODELS["everything"]):
        plans, random = thinned(legal_plans(with_options(c, only={})), 60), Random(5)
        for plan in plans:
            modes = tuple(
                (axis, x)
                for axis, x in ((axis, random.choice(words)) for axis, words in WORDS.items())
                if x != WORDS[axis][0] and (axis == "offload_modules" or random.random() < 0.4)
            )
            layout = replace(plan.layout, switches=modes)
            found = [
                x for x in rules_that_break(c, layout) if x[:3] in ("DSP", "EPO", "CGR", "OFM")
            ]
            assert (found or [""])[0] == broken_mode_rule(c.problem, layout), layout
            seen.add((found or [""])[0])
    assert {"", "OFM001", "OFM002", "OFM005"} <= seen


# Properties ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_module_more_is_no_faster_and_takes_more_of_the_host():
    """Of plans with random sets and the same without one module of them, on a slow link."""
    c = model("everything")
    for layout in drawn(c, 30, seed=9):
        names = sent_modules(layout)
        fewer = names - {min(names)} - ({"attn_proj"} if min(names) == "core_attn" else set())
        word = "+".join(x for x in SETS[-1].split("+") if x in fewer)
        rest = tuple(x for x in layout.switches if x[0] != "offload_modules")
        less = replace(layout, switches=(*rest, ("offload_modules", word)) if word else rest)
        few, many = (break_down(c.problem, x) for x in (less, layout))
        assert few.step_s <= many.step_s * (1 + CLOSE)
        assert few.time_s["offload"] <= many.time_s["offload"] * (1 + CLOSE)
        assert needed_host_bytes(few.rows).item() <= needed_host_bytes(many.rows).item()


def test_memory_that_is_short_is_found_by_sending():
    """Of a device on which no plan fits one does that sends, none else."""
    c = with_options(
        INSTANCES["dense"], only={**INSTANCES["dense"].options.only, "recompute": frozenset({0})}
    )
    off = with_options(c, only={**c.options.only, "offload_modules": frozenset({0})})
    least = min(x.peak_bytes for x in search(off).finalists)
    best = min(search(c).finalists, key=lambda x: x.peak_bytes)
    assert best.layout.value("offload_modules") != "none" or best.peak_bytes == least
    assert best.peak_bytes < least
