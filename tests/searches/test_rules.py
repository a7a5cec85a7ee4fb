"""Every rule: explained, reported under its code, broken by an example and kept by its twin."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import searches
from costmodels.axes import RANK_ORDERS, SCHEDULES, modules_code
from costmodels.layers.kinds import layer_run
from costmodels.schedule.stages import SPLITS
from costmodels.shapes import CrossShape, EncoderShape, Mamba2Shape, WindowShape
from searches.options import SearchOptions
from searches.rules import (
    RULES,
    SHAPE_RULES,
    Context,
    first_broken_rule,
    fully_sharded_fits,
    least_model_parallel,
    schedules_of,
)
from searches.search import search
from searches.space.shape_space import legal_shapes, table_of
from tests.searches import oracle
from tests.searches.instances import (
    DENSE,
    GB,
    GQA,
    INSTANCES,
    THIRDS,
    context,
    pins,
    toy_pool,
    with_host,
    with_optimizer,
    with_part,
)
from tests.searches.test_mode_rules import ROWS as MODE_EXAMPLES
from tests.searches.test_mode_rules import pinned
from tests.searches.wider_instances import READERS, STREAMED

PREDICATES = dict(SHAPE_RULES)
NEVER_COUNTED = {"SCH001"}
"""Rules about one given layout; the search builds its schedules so that they hold."""


@pytest.mark.parametrize("code", RULES)
def test_every_rule_says_what_why_and_what_to_change(code):
    rule = RULES[code]
    assert rule.code == code
    assert re.fullmatch(r"[A-Z]{2,3}\d{3}", code)
    for text in (rule.title, rule.why, rule.relax, rule.source):
        assert len(text) > 3
        assert text == text.strip()
        assert "  " not in text
    assert rule.why.endswith(".")
    assert not rule.title.endswith(".")


def test_every_code_that_the_sources_name_is_a_rule():
    folder = Path(searches.__file__).parent
    named = set()
    for file in folder.rglob("*.py"):
        if "frameworks" in file.parts:  # codes of their own
            continue
        named |= set(re.findall(r'"([A-Z]{2,3}\d{3})"', file.read_text(encoding="utf-8")))
    assert named == set(RULES)


def test_rules_are_listed_in_the_order_in_which_shapes_meet_them():
    order = list(RULES)
    positions = [order.index(code) for code, _ in SHAPE_RULES if code not in ("VPP001",)]
    assert positions == sorted(positions)


REPORTING = (
    "activations-on-a-small-host",
    "second-copy-or-copies",
    "tensor-overlap-alone",
    "no-host-for-activations",
    "activations-in-line",
    "overlap-or-not",
    "cp-without-a-fused-kernel",
    "pinned-modules",
    "toy-8-hopeless",
)
"""Instances that together with `EXTRA` report every code."""


@pytest.mark.slow
def test_every_code_is_reported_by_some_search_and_no_other():
    silent = {"VPP001"}  # candidates without a pipeline have one chunk from the start
    wanted = set(RULES) - NEVER_COUNTED - silent
    reported = set(legal_shapes(EXPERTS).rejected)
    of_modes = [pinned(c, broken) for _, c, broken, _ in MODE_EXAMPLES]
    for c in (*EXTRA, *(INSTANCES[name] for name in REPORTING), *of_modes):
        outcome = search(c)
        reported |= set(outcome.rejected_shapes) | set(outcome.rejected_plans)
    assert reported == wanted


DUALPIPE = replace(pins(schedule=SCHEDULES.index("dualpipe")), framework="any")
EXTRA = [
    context(replace(DENSE, ffn=4100), toy_pool(8, 8), batch=8),
    context(batch=8, options=DUALPIPE),
    context(replace(GQA, n_experts=4, expert_ffn=512), toy_pool(8, 8), options=DUALPIPE),
    context(
        replace(GQA, n_experts=4, expert_ffn=512),
        toy_pool(16, 8),
        batch=16,
        options=pins(tp=2, pp=2, vpp=1, mbs=1),
    ),
    context(READERS),
]

WINDOWS = replace(
    GQA,
    window=WindowShape(256),
    layer_runs=tuple(layer_run(name, 1) for name in ("window+dense", "dense")) * 4,
)
EXTRA.append(context(WINDOWS, batch=8, options=pins(cp=(1, 2))))
STATES = replace(
    GQA,
    mamba2=Mamba2Shape(heads=12, head_dim=64, groups=4, state=64, conv=4, chunk=64),
    layer_runs=tuple(layer_run(name, 1) for name in ("mamba2+none", "dense")) * 4,
)
EXTRA.append(context(STATES, toy_pool(8, 8), batch=8, options=pins(tp=8, cp=1)))
EXTRA.append(context(STATES, batch=8, options=pins(tp=1, cp=8)))
TRANSLATING = replace(
    GQA,
    encoder=EncoderShape(seq_len=512),
    cross=CrossShape(tokens=512, width=GQA.hidden),
    layer_runs=tuple(layer_run(name, 4) for name in ("encoder+dense", "causal-cross+dense")),
)
EXTRA.append(
    replace(context(TRANSLATING, batch=8), options=replace(pins(cp=(1, 2)), framework="any"))
)
EXTRA.append(
    replace(context(STREAMED, batch=8), options=replace(pins(cp=(1, 2)), framework="any"))
)
ZB_H1 = SCHEDULES.index("zb-h1")
ROUTED = context(replace(GQA, n_experts=4, expert_ffn=512), toy_pool(8, 8), batch=8)
EXTRA.append(replace(ROUTED, options=pins(recompute_modules=modules_code(["moe", "moe_act"]))))

EXTRA += [
    with_optimizer(context(batch=24), "muon"),
    with_optimizer(with_host(context(batch=24)), "sgd"),
]

SECOND = context(batch=24, options=pins(hpz=(1, 2, 3)))
EXTRA.append(replace(context(batch=24), options=replace(SECOND.options, framework="any")))
EXPERTS = context(
    replace(GQA, n_experts=4, expert_ffn=510), toy_pool(8, 8), options=pins(ep=(1, 2, 3, 4))
)
SHAPE_EXAMPLES = {
    # code: (context, breaks, keeps), shapes in the order of `SHAPE_AXES`
    "PIN001": (context(options=pins(tp=2)), (1, 1, 8, 1, 0), (2, 1, 4, 1, 0)),
    "TP001": (context(THIRDS, toy_pool(24, 12)), (8, 1, 3, 1, 0), (12, 1, 2, 1, 0)),
    "TP002": (context(THIRDS, toy_pool(12, 6)), (2, 1, 6, 1, 0), (6, 1, 2, 1, 0)),
    "TP003": (EXTRA[0], (8, 1, 1, 1, 0), (4, 1, 2, 1, 0)),
    "TP005": (context(THIRDS, toy_pool(12, 4)), (3, 1, 4, 1, 0), (1, 1, 12, 1, 0)),
    "CP001": (context(seq_len=1020), (1, 1, 1, 1, 0, 8, 1, 1, 1), (1, 1, 4, 1, 0, 2, 1, 1, 1)),
    "CP002": (context(), (2, 1, 2, 1, 0, 2, 3, 1, 1), (1, 1, 4, 1, 0, 2, 3, 1, 1)),
    "CP003": (context(DENSE), (1, 1, 4, 1, 0, 2, 2, 1, 1), (2, 1, 4, 1, 0)),
    "TP006": (context(STATES), (8, 1, 1, 1, 0), (4, 1, 2, 1, 0)),
    "CP005": (
        context(STATES),
        (1, 1, 1, 1, 0, 8, 1, 1, 1),
        (1, 1, 2, 1, 0, 4, 1, 1, 1),
    ),
    "CP004": (
        context(WINDOWS),
        (1, 1, 4, 1, 0, 2, 1, 1, 1),
        (1, 1, 4, 1, 0, 2, 2, 1, 1),
    ),
    "CP006": (context(TRANSLATING), (1, 1, 4, 1, 0, 2, 2, 1, 1), (1, 1, 8, 1, 0)),
    "CP007": (context(STREAMED), (1, 1, 4, 1, 0, 2, 2, 1, 1), (1, 1, 8, 1, 0)),
    "PP003": (context(TRANSLATING), (1, 2, 4, 1, 0), (2, 1, 4, 1, 0)),
    "EP001": (EXPERTS, (1, 1, 8, 1, 0, 1, 0, 3, 1), (1, 1, 8, 1, 0, 1, 0, 2, 1)),
    "EP002": (EXPERTS, (2, 2, 2, 1, 0, 1, 0, 4, 2), (2, 1, 4, 1, 0, 1, 0, 4, 2)),
    "EP003": (EXPERTS, (4, 1, 2, 1, 0, 1, 0, 1, 4), (2, 1, 4, 1, 0, 1, 0, 1, 2)),
    "VPP001": (context(), (1, 1, 8, 3, 0), (1, 2, 4, 3, 0)),
    "PP001": (context(), (1, 2, 4, 5, 1), (1, 2, 4, 4, 1)),
    "PP002": (context(), (1, 4, 2, 1, 0), (1, 4, 2, 1, 1)),
    "PP004": (context(READERS), (1, 2, 4, 1, 0), (1, 1, 8, 1, 0)),
    "SCH002": (
        EXPERTS,
        (1, 2, 4, 1, 0, 1, 0, 1, 1, ZB_H1),
        (1, 2, 4, 1, 0, 1, 0, 1, 1, ZB_H1 - 2),
    ),
    "SCH003": (
        context(),
        (1, 2, 4, 1, 0, 1, 0, 1, 1, ZB_H1),
        (1, 2, 4, 1, 0, 1, 0, 1, 1, ZB_H1 - 2),
    ),
    "ORD001": (
        context(pool=toy_pool(8, 2)),
        (2, 2, 2, 1, 0, 1, 0, 1, 1, 2, 1),
        (1, 2, 4, 1, 0, 1, 0, 1, 1, 2, 1),
    ),
    "ORD002": (
        context(EXPERTS.problem.shape, toy_pool(16, 8), batch=16),
        (2, 2, 4, 1, 0, 1, 0, 1, 1, 2, 1),
        (2, 2, 4, 1, 0, 1, 0, 2, 1, 2, 1),
    ),
    "DP001": (context(batch=12), (1, 1, 8, 1, 0), (2, 1, 4, 1, 0)),
    "MEM000": (context(DENSE, toy_pool(8, memory=1.2 * GB)), (1, 2, 4, 1, 0), (2, 4, 1, 1, 0)),
}


def keeps(code: str, c: Context, shape: tuple[int, ...]) -> bool:
    return bool(PREDICATES[code](c, table_of(c, [whole(shape)]))[0])


def whole(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape with the axes that it leaves out: off, with the usual schedule."""
    usual = 0 if shape[1] == 1 else 3 if shape[3] > 1 else 2
    off = (1, 0, 1, 1, usual, 0)
    return (*shape, *off[len(shape) - 5 :])


def test_every_shape_rule_has_an_example():
    assert set(SHAPE_EXAMPLES) == set(PREDICATES)


@pytest.mark.parametrize("code", SHAPE_EXAMPLES)
def test_a_shape_rule_rejects_its_example_and_keeps_the_repaired_twin(code):
    c, breaks, twin = SHAPE_EXAMPLES[code]
    assert not keeps(code, c, breaks)
    assert all(keeps(other, c, twin) for other in PREDICATES)
    row = whole(breaks)
    named = (
        *row[:4],
        SPLITS[row[4]],
        row[5],
        oracle.CP_COMMS[row[6]],
        *row[7:9],
        SCHEDULES[row[9]],
        RANK_ORDERS[row[10]],
    )
    if code != "VPP001":  # no candidate of the search
        assert oracle.broken_shape_rule(c.problem, c.options, named) == code


def test_tp_may_fill_several_domains():
    assert keeps("TP005", context(GQA, toy_pool(8, 4)), (8, 1, 1, 1, 0))
    odd = context(THIRDS, toy_pool(12, 4))
    assert not keeps("TP005", odd, (3, 1, 4, 1, 0))  # would still straddle
    assert not keeps("TP005", odd, (6, 1, 2, 1, 0))


def test_the_memory_bound_lets_a_fully_sharded_plan_pass():
    c = context(DENSE, toy_pool(8, memory=1.5 * GB))
    assert least_model_parallel(c) > 1
    assert fully_sharded_fits(c)
    assert keeps("MEM000", c, (1, 1, 8, 1, 0))  # ZeRO 3
    less = with_part(c, memory_bytes=1.1 * GB)
    assert not keeps("MEM000", less, (1, 1, 8, 1, 0))  # 0.1 GB left


PLAN_EXAMPLES = {
    # code: (context, pins of the broken plan, pins of its twin)
    "BAT001": (context(batch=12), {"tp": 2, "pp": 1, "mbs": 2}, {"tp": 2, "pp": 1, "mbs": 3}),
    "BAT002": (
        context(batch=24),
        {"dp": 4, "pp": 2, "vpp": 3, "mbs": 2},
        {"dp": 4, "pp": 2, "vpp": 3, "mbs": 1},
    ),
    "SP001": (context(batch=24), {"tp": 1, "sp": 1}, {"tp": 2, "sp": 1}),
    "ZER001": (context(batch=24), {"pp": 2, "zero": 2}, {"pp": 1, "zero": 2}),
    "ZER002": (context(DENSE, batch=24), {"dp": 1, "zero": 1}, {"dp": 2, "zero": 1}),
    "HPZ001": (context(batch=24), {"hpz": 2, "pp": 1, "zero": 2}, {"hpz": 2, "pp": 1, "zero": 3}),
    "HPZ002": (context(batch=24), {"hpz": 2, "zero": 3, "tp": 2}, {"hpz": 2, "zero": 3, "tp": 1}),
    "HPZ003": (context(batch=24), {"hpz": 3, "zero": 3, "tp": 1}, {"hpz": 2, "zero": 3, "tp": 1}),
    "REC001": (context(batch=24), {"recompute_modules": 1}, {"recompute_modules": 16}),
    "REC002": (context(batch=24), {"recompute_modules": 8}, {"recompute_modules": 16}),
    "REC003": (
        ROUTED,
        {"recompute_modules": modules_code(["moe", "moe_act"])},
        {"recompute_modules": modules_code(["moe", "layernorm"])},
    ),
    "OPT001": (
        with_optimizer(context(batch=24), "muon"),
        {"zero": 2, "pp": 1},
        {"zero": 1, "pp": 1},
    ),
    "OPT002": (
        with_optimizer(with_host(context(batch=24)), "sgd"),
        {"optimizer_offload": 1, "zero": 1},
        {"optimizer_offload": 0, "zero": 1},
    ),
    "OFF001": (context(batch=24), {"optimizer_offload": 1}, {"optimizer_offload": 0}),
    "OFF002": (
        with_host(context(batch=24), memory=2 * GB),
        {"optimizer_offload": 1, "dp": 8, "zero": 0},
        {"optimizer_offload": 1, "dp": 8, "zero": 1},
    ),
    "OFF003": (
        with_host(context(batch=24)),
        {"optimizer_offload": 1, "pp": 1, "zero": 2},
        {"optimizer_offload": 1, "pp": 1, "zero": 1},
    ),
    "OFF004": (
        with_host(context(batch=24)),
        {"activation_offload": 1, "pp": 2},
        {"activation_offload": 1, "pp": 1},
    ),
    "OFF005": (
        with_host(context(batch=24)),
        {"activation_offload_layers": 5, "recompute": 0},
        {"activation_offload_layers": 4, "recompute": 0},
    ),
    "FRM001": (
        context(batch=24, options=SearchOptions(framework="deepspeed")),
        {"tp": 2, "pp": 2},
        {"tp": 2, "pp": 1},
    ),
    "PIN001": (
        context(batch=24),
        {"recompute": 0, "recompute_layers": 2},
        {"recompute_layers": 2},
    ),
}


@pytest.mark.parametrize("code", PLAN_EXAMPLES)
def test_a_plan_rule_rejects_its_example_and_keeps_the_repaired_twin(code):
    c, broken, twin = PLAN_EXAMPLES[code]

    def alone(only: dict[str, int]) -> Context:
        values = {axis: frozenset((value,)) for axis, value in only.items()}
        return replace(c, options=replace(c.options, only=values))

    none = search(alone(broken))
    assert none.n_shapes > 0
    assert none.n_legal == 0
    assert none.rejected_plans[code] > 0
    assert search(alone(twin)).n_legal > 0


def test_sequence_parallelism_needs_a_sequence_that_divides():
    assert search(context(seq_len=1022, options=pins(tp=4, sp=1))).n_legal == 0
    assert search(context(seq_len=1024, options=pins(tp=4, sp=1))).n_legal > 0


def test_selective_recompute_exists_without_a_flash_kernel():
    eager = context(replace(GQA, flash_attention=False), options=pins(recompute=1))
    assert search(eager).n_legal > 0


def test_schedules_of_a_pipeline():
    assert schedules_of(1, 1) == ("none",)
    assert schedules_of(2, 1) == ("1f1b", "gpipe", "zb-h1", "dualpipe")
    assert schedules_of(2, 2) == ("interleaved", "zb-v", "dualpipe-v")
    assert schedules_of(2, 3) == ("interleaved",)


@pytest.mark.parametrize(
    ("only", "runs"),
    [
        ({"tp": 1, "pp": 1}, True),
        ({"tp": 2, "pp": 1, "zero": 1}, True),
        ({"tp": 4}, False),  # two KV heads
        ({"tp": 2, "pp": 2}, False),
        ({"vpp": 3}, False),
        ({"sp": 1}, False),
        ({"pp": 2, "zero": 1}, True),
        ({"pp": 2, "zero": 0}, False),
        ({"pp": 4, "split": 1}, True),  # 1-2-2-1 is a uniform cut of embedding, blocks and head
        ({"pp": 2, "recompute": 2, "recompute_layers": 3}, True),
        ({"pp": 2, "recompute": 2, "recompute_layers": 2}, False),
    ],
)
def test_what_deepspeed_runs(only, runs):
    options = replace(pins(**only), framework="deepspeed")
    outcome = search(context(batch=24, precision="bf16-grads", options=options))
    assert (outcome.n_legal > 0) == runs
    if not runs:
        assert outcome.rejected_plans["FRM001"] > 0
        megatron = replace(options, framework="megatron")
        assert search(context(batch=24, precision="bf16-grads", options=megatron)).n_legal > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_that_does_not_match_the_pipeline_is_named(schedule):
    c = context(DENSE, batch=16)
    # Four micro-batches at least: as many as DualPipe needs with two ranks.
    plan = search(replace(c, options=pins(pp=2, vpp=1, mbs=1))).finalists[0].layout
    code = first_broken_rule(c, replace(plan, schedule=schedule))
    assert code == ("" if schedule in ("1f1b", "gpipe", "zb-h1", "dualpipe") else "SCH001")
    folded = replace(plan, vpp=2, split="even", stage_layers=(2,) * 4)
    code = first_broken_rule(c, replace(folded, schedule=schedule))
    assert code == ("" if schedule in ("interleaved", "zb-v", "dualpipe-v") else "SCH001")
    alone = search(replace(c, options=pins(pp=1))).finalists[0].layout
    code = first_broken_rule(c, replace(alone, schedule=schedule))
    assert code == ("" if schedule == "none" else "SCH001")
