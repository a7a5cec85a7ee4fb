"""The search against a second implementation: nested loops, scalars, every rank, every block."""

import itertools
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.axes import SCHEDULES
from costmodels.breakdown import break_down
from costmodels.comm.collectives import collective_s
from costmodels.comm.placement import place_group
from costmodels.documentation.terms import TIME_TERMS
from costmodels.plans import Layout, PlanTable
from costmodels.problem import Problem
from costmodels.schedule.stages import SPLITS, spelled
from costmodels.shape_terms import shape_terms
from costmodels.shapes import ModelShape
from costmodels.stacks import STACKS, StackProfile
from costmodels.step import score
from hardware.parts import Fabric, Tier
from searches.rules import Context, first_broken_rule
from searches.search import search
from searches.space.free_axes import free_axes
from searches.space.plan_space import legal_masks
from searches.space.shape_space import legal_shapes
from tests.repeats import examples
from tests.searches import oracle
from tests.searches.certificate import remembered
from tests.searches.instances import (
    GB,
    INSTANCES,
    TOY_NIC,
    context,
    of_which,
    on_stack,
    one_in,
    real_pool,
    toy_pool,
    with_options,
)
from tests.searches.tables import plan_tables

CLOSE = 1e-9
ORDERS = oracle.WORDS["rank_order"]
Row = TypeVar("Row")


def solve(c: Context) -> oracle.Answer:
    with remembered():
        return oracle.solve(c.problem, c.options, c.n_devices)


def legal_plans(c: Context) -> list[oracle.Priced]:
    """Return every legal plan of the package with its closed-form time and its memory."""
    shapes = legal_shapes(c).shapes
    if not len(shapes):
        return []
    axes = free_axes(c, shapes)
    terms = shape_terms(c.problem, shapes, axes.shardings)
    found = []
    for table in plan_tables(c, shapes, axes, legal_masks(c, shapes, axes)[0], 1000):
        scores = score(c.problem, terms, table)
        for row in range(len(table)):
            layout = table.layout(row, c.problem.shape.layers)
            found.append(
                oracle.Priced(layout, float(scores.step_s[row]), float(scores.peak_bytes[row]))
            )
    return found


def thinned(rows: list[Row], n: int) -> list[Row]:
    """Return about `n` of the rows, from the first on."""
    return rows[:: max(1, len(rows) // n)]


def by_layout(plans: list[oracle.Priced]) -> dict[Layout, oracle.Priced]:
    table = {plan.layout: plan for plan in plans}
    assert len(table) == len(plans), "a plan is listed twice"
    return table


def named(row: tuple[int, ...]) -> tuple[int | str, ...]:
    """Return the first seven axes of a shape with words for positions."""
    return (*row[:4], SPLITS[row[4]], row[5], oracle.CP_COMMS[row[6]])


def check_against_oracle(c: Context) -> None:
    """Compare shapes, plans, numbers, counts and ranking of one search."""
    wanted, outcome = solve(c), search(c)
    shapes = legal_shapes(c)
    columns = (getattr(shapes.shapes, axis).tolist() for axis in oracle.SHAPE_AXES)
    found = [
        (*named(row[:7]), *row[7:9], SCHEDULES[row[9]], ORDERS[row[10]])
        for row in zip(*columns, strict=True)
    ]
    assert sorted(found) == sorted(wanted.shapes)
    assert outcome.rejected_shapes == dict(wanted.rejected_shapes)
    assert outcome.rejected_plans == dict(wanted.rejected_plans)
    assert (outcome.n_legal, outcome.n_fit) == (len(wanted.legal), len(wanted.fitting))
    ours, theirs = by_layout(legal_plans(c)), by_layout(wanted.legal)
    assert set(ours) == set(theirs)
    for layout, plan in theirs.items():
        assert ours[layout].peak_bytes == pytest.approx(plan.peak_bytes, rel=CLOSE), layout
        assert ours[layout].closed_form_s == pytest.approx(plan.closed_form_s, rel=CLOSE), layout
    numbered = [replace(x, n_devices=0, split="") for x in theirs]
    assert len(set(numbered)) == len(numbered), "two names for one plan"
    check_ranking(c, outcome.finalists, wanted, ours)


def check_ranking(c, finalists, wanted, ours) -> None:
    """Check that the finalists are the oracle's first plans, re-priced and in order.

    Of plans that differ in the copies of their ZeRO groups and the overlap alone the first stands
    for all.
    """
    usable = oracle.usable_bytes(c.problem)
    fits = (
        p
        for p in ours.values()
        if p.peak_bytes <= usable and oracle.host_holds(c.problem, p.layout)
    )
    fitting = sorted(fits, key=oracle.rank_key)
    assert len(fitting) == len(wanted.fitting)
    for a, b in zip(fitting, wanted.fitting, strict=True):  # ties differ by the last bits only
        assert a.closed_form_s == pytest.approx(b.closed_form_s, rel=CLOSE)
    pipelines: dict[Layout, oracle.Priced] = {}
    for plan in fitting:
        plain = replace(plan.layout, shard=0, dp_overlap=True, hpz=1)
        pipelines.setdefault(plain, plan)
    first = list(pipelines.values())[: c.options.n_finalists]
    best = {plan.layout for plan in first}
    assert best <= {f.layout for f in finalists} <= {p.layout for p in pipelines.values()}
    for f in finalists:
        assert f.layout in best or f.least_s < finalists[0].step_s
    for f in finalists:
        assert (f.closed_form_s, f.peak_bytes) == (
            ours[f.layout].closed_form_s,
            ours[f.layout].peak_bytes,
        )
        assert f.step_s == pytest.approx(oracle.exact_step_s(c.problem, f.layout), rel=CLOSE)
    keys = [(f.step_s, f.peak_bytes, oracle.degrees(f.layout)) for f in finalists]
    assert keys == sorted(keys)


LONG = (
    "toy-24-racks-of-8",
    "toy-24-tight",
    "toy-24-sums-up-to-the-leaf",
    "toy-24-one-tier",
    "toy-20-racks-of-8-the-last-half-full",
    "a100-16-2022-flash",
)
LONG_PARAMETERS = [pytest.param(name, marks=pytest.mark.slow) for name in LONG]


@pytest.mark.parametrize(
    "name",
    [
        *LONG_PARAMETERS,
        *of_which(("internevo", "pins", "toy-4"), [n for n in INSTANCES if n not in LONG]),
    ],
)
def test_search_equals_the_oracle(name):
    check_against_oracle(INSTANCES[name])


SWITCHES = {
    "tp_overlap": {"none", "bulk", "pieces", "userbuffers"},
    "tp_overlap_on": {"", "pieces", "userbuffers"},
    "dp_overlap": {"none", "reduce", "both"},
    "zero1_overlap": {"none", "reduce", "both"},
    "zero3_traffic": {"prefetched", "by-tensor"},
    "zero1_reduce": {"reduce-scatter", "all-reduce"},
    "zero1_gather": {"all-gather", "broadcast"},
    "offload_overlap": {"pipelined", "gradients"},
    "activation_copies": {"windowed", "on-demand", "blocking"},
}
"""The values of the switches that are words and change a price."""
REPLAYED = (
    "sharded_units",
    "reduce_width",
    "replicated_grads",
    "cp_gathers",
    "etp_gathers",
    "routed_scores",
    "norm_keeps",
    "grad_copies",
)
"""Switches of FSDP2 and torchtitan, which the oracle does not know: comm/test_fsdp.py
and test_memory.py have numbers counted by hand, tests/searches/test_replayed_switches.py searches
them."""
COMPILED = ("memory_plan", "keeps")
"""Switches of steps that are one program: the wider instances of `maxtext`, and numbers counted by
hand in tests/costmodels/test_phases.py."""


def test_every_switch_of_a_stack_is_searched_both_ways():
    stacks = [c.problem.stack for c in INSTANCES.values()]
    words = dict(SWITCHES)
    for field in fields(StackProfile):
        # The first is decided in the shape, the next in `compiled`, before anything is priced; the
        # last is of latent attention: the wider instance `latent-product`.
        decided = ("pads_vocab", "compiles_loss", "keeps_kv_product")
        if field.type is bool and field.name not in decided:
            words[field.name] = {False, True}
    assert {field.name for field in fields(StackProfile) if field.type is str} == {
        *SWITCHES,
        *REPLAYED,
        *COMPILED,
        "name",
        "kind",
        "balancer",
        "dispatcher",
        "tp_overlap_compiled",  # becomes `tp_overlap_on` before anything is priced
    }
    for name, values in words.items():
        assert {getattr(stack, name) for stack in stacks} == values, name
        assert {getattr(stack, name) for stack in STACKS.values()} <= values, name


@pytest.mark.slow
def test_layers_stall_only_where_messages_leave_the_node():
    """The instance has plans on both sides of every condition, or it would test nothing."""
    c, seen = INSTANCES["nanotron-across"], set()
    for plan in legal_plans(c):
        layout = plan.layout
        one = oracle.physics.micro_batch(c.problem, layout)
        late = oracle.physics.stalled_s(c.problem, layout, one) > 0
        seen.add((layout.tp > 1, layout.pp > 1, late))
    assert seen >= {(True, True, True), (True, True, False), (True, False, False)}
    assert not {(False, True, True), (False, False, True), (True, False, True)} & seen


def check_breakdown(problem: Problem, layout: Layout) -> None:
    """Compare the terms of one plan, of time and of memory, and what its transfers expose."""
    opened = break_down(problem, layout)
    problem = oracle.as_overlapped(problem, layout)
    one = oracle.physics.micro_batch(problem, layout)
    priced = oracle.price(problem, layout, one)
    assert opened.closed_form_step_s == pytest.approx(priced.closed_form_s, rel=CLOSE)
    assert opened.peak_bytes == pytest.approx(priced.peak_bytes, rel=CLOSE)
    exact = oracle.exact_step_s(problem, layout)
    assert opened.step_s == pytest.approx(exact, rel=CLOSE)
    ranks, critical = range(layout.pp), opened.critical_stage
    busy = [sum(oracle.physics.rank_s(problem, layout, one, rank)) for rank in ranks]
    assert busy[critical] == pytest.approx(max(busy), rel=CLOSE)
    terms = oracle.physics.time_terms(problem, layout, one, critical)
    assert set(terms) == set(TIME_TERMS) == set(opened.time_s)
    for term, wanted in terms.items():
        assert opened.time_s[term] == pytest.approx(wanted, rel=CLOSE, abs=CLOSE * exact), term
    for rank, stage in enumerate(opened.stages):
        wanted = oracle.physics.rank_memory(problem, layout, one, rank)
        assert stage == pytest.approx(wanted, rel=CLOSE), rank
    for axis in ("tp", "cp", "pp", "dp"):
        exposed = sum(t.exposed_s for t in opened.transfers if t.axis == axis)
        assert exposed == pytest.approx(terms[axis], rel=CLOSE, abs=CLOSE * exact), axis


@pytest.mark.parametrize("name", one_in(48, INSTANCES))
def test_a_breakdown_has_the_numbers_of_the_oracle(name):
    c = INSTANCES[name]
    for plan in thinned(sorted(legal_plans(c), key=oracle.rank_key), 12):
        check_breakdown(c.problem, plan.layout)


def check_table(problem: Problem, layouts: list[Layout]) -> None:
    """Compare the scores of many layouts in one table, and every breakdown."""
    table = PlanTable.from_layouts(layouts)
    scores = score(problem, shape_terms(problem, table.shapes, table.shardings), table)
    for row, layout in enumerate(layouts):
        one = oracle.physics.micro_batch(problem, layout)
        wanted = oracle.price(problem, layout, one)
        assert scores.step_s[row] == pytest.approx(wanted.closed_form_s, rel=CLOSE), layout
        assert scores.peak_bytes[row] == pytest.approx(wanted.peak_bytes, rel=CLOSE), layout
        check_breakdown(problem, layout)


@pytest.mark.parametrize(
    "name",
    one_in(
        6,
        [
            "toy-24-one-tier",
            "toy-24-two-tiers",
            "internevo",
            "zero3-by-tensor",
            "h100-24-megatron",
        ],
    ),
)
def test_replicated_zero_groups_have_the_numbers_of_the_oracle(name):
    """Groups of one, and groups that leave a node or a leaf: no search lists them."""
    c = INSTANCES[name]
    plans = [plan.layout for plan in legal_plans(c) if plan.layout.zero]
    few = [x for zero in (1, 2, 3) for x in thinned([y for y in plans if y.zero == zero], 5)]
    sizes = [replace(x, shard=size) for x in few for size in oracle.divisors(x.dp * x.cp)[:-1]]
    assert {(x.zero, x.shard > 1) for x in sizes} == {*itertools.product((1, 2, 3), (False, True))}
    check_table(c.problem, [*few, *sizes])


def spelled_layouts(c: Context) -> Iterator[Layout]:
    """Yield plans with pipelines whose layers go to the stages in proportions of their own."""
    layers, n = c.problem.shape.layers, c.n_devices
    job, splits = c.problem.job, ((1, 0, 2, 3), (4, 2, 1, 1), (0, 1, 1, 1))
    for weights, (vpp, zero, recompute) in itertools.product(
        splits, ((1, 0, "none"), (1, 1, "full"), (2, 1, "none"), (1, 2, "selective"))
    ):
        stages = 4 if vpp == 1 else 2 * vpp
        held = [layers * w // sum(weights) for w in weights[:stages]]
        held[-1] += layers - sum(held)
        pp, depth = stages // vpp, max(held) // 2 if recompute == "full" else 0
        schedule = "interleaved" if vpp > 1 else "gpipe" if zero == 0 else "1f1b"
        yield Layout(
            n,
            1,
            pp,
            n // pp,
            vpp,
            spelled(held),
            1,
            job.global_batch,
            zero,
            False,
            schedule,
            recompute,
            depth,
            tuple(held),
        )


@pytest.mark.parametrize(
    "name", one_in(2, ["toy-8", "toy-16-mesh", "a100-16-2022-flash", "eager-scores"])
)
def test_spelled_out_splits_have_the_numbers_of_the_oracle(name):
    """Stages of very different size, some without a layer; GPipe too."""
    check_table(INSTANCES[name].problem, list(spelled_layouts(INSTANCES[name])))


@pytest.mark.parametrize(
    "name",
    one_in(3, ["toy-12-odd-batch", "toy-8", "v100-8-fp16"]),
)
@pytest.mark.slow
def test_the_rule_of_one_layout_is_the_oracles(name):
    c = with_options(INSTANCES[name], framework="any")  # frameworks are not looked at
    problem, options = c.problem, c.options
    seen = set()
    for shape in oracle.all_shapes(problem, options, c.n_devices):
        if not oracle.stage_layers(problem.shape.layers, shape[1], *shape[3:5]):
            continue  # no layers to make a layout of
        wanted = oracle.broken_shape_rule(problem, options, shape)
        for layout in list(oracle.all_layouts(problem, options, shape))[:: 17 if wanted else 5]:
            code = wanted or oracle.broken_plan_rule(problem, options, layout)
            assert first_broken_rule(c, layout) == code, layout
            seen.add(code)
    assert {"", "BAT001", "BAT002", "SP001"} <= seen


@pytest.mark.slow
@pytest.mark.parametrize(
    "pool", [real_pool("h100", 256, 8), real_pool("a100", 64, 4), toy_pool(64)]
)
@pytest.mark.parametrize("fabric", [Fabric(), Fabric((Tier("t", 4, 7.0),), rail_optimized=False)])
def test_collectives_have_the_times_of_the_oracle(pool, fabric):
    """Small and huge messages and groups, where other protocols and algorithms win."""
    problem = context(pool=pool, fabric=fabric).problem
    check_collectives(problem, (1, 3, 8, 48, 1024), (1, 8, 32))


@pytest.mark.parametrize(
    "pool",
    one_in(
        2,
        [
            real_pool("mi300x", 16, 8),
            replace(real_pool("gb200", 36, 4), scale_up_domain=72),
            replace(real_pool("h100", 16, 8), n_summing_tiers=1),
            replace(real_pool("mi355x", 16, 8), n_summing_tiers=2),
            replace(toy_pool(128, 8), nic=replace(TOY_NIC, lockstep=True)),
            replace(toy_pool(128, 8), nic=replace(TOY_NIC, ring_decline=0.4)),
        ],
    ),
)
@pytest.mark.parametrize("fabric", [Fabric(), Fabric((Tier("t", 18, 7.0),), rail_optimized=False)])
def test_racks_meshes_and_sums_in_the_network_have_the_times_of_the_oracle(pool, fabric):
    check_collectives(context(pool=pool, fabric=fabric).problem, (2, 3, 8, 16, 24), (1, 2, 8))


def check_collectives(problem, n_ranks_of_groups, strides):
    pool, fabric = problem.pool, problem.fabric
    for n_ranks, stride in itertools.product(n_ranks_of_groups, strides):
        theirs = place_group(n_ranks, stride, pool, fabric)
        ours = oracle.physics.place(problem, n_ranks, stride)
        for size in (0.0, 1.0, 3e3, 2e5, 1e6, 3e7, 4e9):
            for name, run in COLLECTIVES.items():
                wanted = run(problem, ours, size)
                found = collective_s(name, size, theirs, pool).item()
                assert found == pytest.approx(wanted, rel=CLOSE), (name, n_ranks, stride, size)


COLLECTIVES = {
    "all-reduce": oracle.physics.all_reduce_s,
    "all-gather": oracle.physics.all_gather_s,
    "reduce-scatter": oracle.physics.all_gather_s,
    "broadcast": oracle.physics.broadcast_s,
    "all-to-all": lambda problem, group, n: (
        oracle.physics.all_to_all_s(problem, group, n) if group.n_ranks > 1 else 0.0
    ),
}


def stack_changes() -> st.SearchStrategy[dict[str, object]]:
    """Return the values of some switches of a stack, any together."""
    booleans = [field.name for field in fields(StackProfile) if field.type is bool]
    switches: dict[str, st.SearchStrategy[object]] = {name: st.booleans() for name in booleans} | {
        name: st.sampled_from(sorted(values)) for name, values in SWITCHES.items()
    }
    return st.fixed_dictionaries({}, optional=switches)


@st.composite
def searches(draw: st.DrawFn) -> Context:
    """Return a search with at most a few hundred plans."""
    tp_unit = draw(st.sampled_from([1, 2, 3, 4]))
    heads = tp_unit * draw(st.sampled_from([1, 2, 4]))
    kv_heads = draw(st.sampled_from([d for d in (1, 2, 3, 4, 6, 8) if heads % d == 0]))
    shape = ModelShape(
        "drawn",
        layers=draw(st.integers(1, 9)),
        hidden=heads * 128,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([64, 128])),
        ffn=draw(st.sampled_from([1024, 1536, 3000])),
        gated=draw(st.booleans()),
        vocab=draw(st.integers(100, 40000)),
        tied=draw(st.booleans()),
        norm=draw(st.sampled_from(["rmsnorm", "layernorm"])),
        bias=draw(st.booleans()),
        positions=draw(st.sampled_from(["rope", "learned"])),
        flash_attention=draw(st.booleans()),
        dropout=draw(st.booleans()),
    )
    per_node = draw(st.sampled_from([1, 2, 3, 4]))
    n, memory = per_node * draw(st.integers(1, 4)), draw(st.floats(2.0, 24.0)) * GB
    peaks = {**toy_pool(1, 1).accelerator.peak_flops_per_s, "fp8": 600e12}
    links = draw(st.sampled_from([0, 3]))
    pool = toy_pool(n, per_node, memory, peak_flops_per_s=peaks, n_peer_links=links)
    loss = draw(st.sampled_from([0.0, 0.4]))
    nic = replace(pool.nic, lockstep=draw(st.booleans()), ring_decline=loss)
    pool = replace(pool, nic=nic)
    tiers = tuple(
        Tier(f"t{n}", n, draw(st.floats(1.0, 8.0)))
        for n in draw(st.sampled_from([(), (1,), (2, 3)]))
    )
    drawn = context(
        shape,
        pool,
        seq_len=draw(st.sampled_from([128, 300, 2048, 8192])),
        batch=draw(st.integers(1, 24)),
        precision=draw(st.sampled_from(["bf16", "fp16", "bf16-grads", "fp32", "fp8-delayed"])),
        stack=draw(st.sampled_from(sorted(n for n, x in STACKS.items() if not x.sharded_units))),
        fabric=Fabric(tiers, draw(st.booleans())),
    )
    return on_stack(drawn, **draw(stack_changes()))


@pytest.mark.slow
@settings(max_examples=examples(60), derandomize=True, deadline=None, database=None)
@given(searches())
def test_drawn_searches_equal_the_oracle(c):
    check_against_oracle(replace(c, options=replace(c.options, n_finalists=20, bound=False)))
