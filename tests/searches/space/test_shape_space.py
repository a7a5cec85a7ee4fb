"""CP-SAT's shapes against brute force over the predicates, their number, and the memory bound."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodels.axes import RANK_ORDERS, SCHEDULES
from costmodels.examples import GPT3_175B, LLAMA3_8B, LLAMA3_70B, LLAMA3_405B
from costmodels.plans import PIPELINES_INSIDE, SHAPE_AXES, ShapeTable
from hardware.parts import Fabric, Tier
from searches import rules
from searches.options import SearchOptions
from searches.rules import SHAPE_RULES, Context, least_model_parallel
from searches.search import search
from searches.space import shape_space
from searches.space.shape_space import candidates, divisors, legal_shapes, prime_exponents
from tests.repeats import examples
from tests.searches import oracle
from tests.searches.instances import (
    DENSE,
    GB,
    INSTANCES,
    THIRDS,
    context,
    one_in,
    pins,
    real_pool,
    toy_pool,
    with_part,
    with_pool,
)

PLAIN = (1, 0, 1, 1)
"""cp, cp_comm, ep and etp of shapes without them."""
NONE, PLAIN_1F1B, INTERLEAVED = (SCHEDULES.index(x) for x in ("none", "1f1b", "interleaved"))
MODELS = {shape.name: shape for shape in (LLAMA3_8B, LLAMA3_70B, LLAMA3_405B, GPT3_175B)}
N_DEVICES = (8, 24, 64, 96, 512, 1000, 1024, 3072, 4096, 5040, 10000, 15360, 16384)


def rows_of(shapes: ShapeTable) -> list[tuple[int, ...]]:
    columns = (getattr(shapes, axis).tolist() for axis in SHAPE_AXES)
    return list(zip(*columns, strict=True))


def brute_force(c: Context) -> list[tuple[int, ...]]:
    """Return the candidates that keep every predicate."""
    shapes = candidates(c)
    ok = np.ones(len(shapes), dtype=bool)
    for _, predicate in SHAPE_RULES:
        ok &= predicate(c, shapes)
    return sorted(rows_of(shapes.take(np.flatnonzero(ok))))


def by_oracle(c: Context) -> list[tuple[int, ...]]:
    answer = [
        (
            *shape[:4],
            oracle.SPLITS.index(shape[4]),
            shape[5],
            oracle.CP_COMMS.index(shape[6]),
            *shape[7:9],
            SCHEDULES.index(shape[9]),
            oracle.WORDS["rank_order"].index(shape[10]),
        )
        for shape in oracle.all_shapes(c.problem, c.options, c.n_devices)
        if not oracle.broken_shape_rule(c.problem, c.options, shape)
    ]
    return sorted(answer)


def example(model: str, n_devices: int, options: SearchOptions = SearchOptions()) -> Context:
    """Return a model on H100 nodes; the batch is one that many dp divide."""
    pool = real_pool("h100", n_devices // 8, 8)
    shape = MODELS[model]
    batch = 2 * n_devices if shape.layers < 100 else 2048
    seq_len = 2048 if shape is GPT3_175B else 8192
    return context(shape, pool, seq_len=seq_len, batch=batch, options=options)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("n_devices", one_in(4, N_DEVICES))
def test_solver_equals_brute_force_on_the_examples(model, n_devices):
    c = example(model, n_devices)
    space = legal_shapes(c)
    assert rows_of(space.shapes) == brute_force(c)
    assert len(space.shapes) < 5000
    assert space.n_candidates == len(space.shapes) + sum(space.rejected.values())


@pytest.mark.parametrize("n_devices", one_in(3, [5040, 15360, 16384]))
@pytest.mark.parametrize("model", MODELS)
def test_fewer_than_5000_shapes_also_without_the_bound_on_memory(model, n_devices):
    c = example(model, n_devices)
    c = with_part(
        replace(c, problem=replace(c.problem, job=replace(c.problem.job, global_batch=n_devices))),
        memory_bytes=1e15,
    )
    space = legal_shapes(c)
    assert 0 < len(space.shapes) < 5000
    assert rows_of(space.shapes) == brute_force(c)


@pytest.mark.parametrize("name", one_in(2, INSTANCES))
def test_solver_equals_brute_force_and_oracle_on_the_instances(name):
    c = INSTANCES[name]
    space = legal_shapes(c)
    assert rows_of(space.shapes) == brute_force(c) == by_oracle(c)
    assert space.n_candidates == len(space.shapes) + sum(space.rejected.values())


def test_the_example_of_llama3_405b_keeps_its_published_layout():
    shapes = legal_shapes(example("llama3-405b", 16384)).shapes
    assert (8, 16, 128, 1, 1, *PLAIN, PLAIN_1F1B, 0) in rows_of(
        shapes
    )  # 126 layers on 16 stages, the ends fewer


@settings(max_examples=examples(40), derandomize=True, deadline=None, database=None)
@given(
    layers=st.integers(1, 48),
    heads=st.sampled_from([6, 8, 12, 16, 40, 96]),
    groups=st.sampled_from([1, 2, 3]),
    n_nodes=st.integers(1, 40),
    per_node=st.sampled_from([1, 3, 4, 8]),
    batch=st.sampled_from([7, 24, 60, 256, 720]),
    memory=st.floats(1.2, 60.0),
)
def test_solver_equals_brute_force_on_drawn_spaces(
    layers, heads, groups, n_nodes, per_node, batch, memory
):
    assume(heads % groups == 0)
    shape = replace(
        DENSE, layers=layers, heads=heads, kv_heads=heads // groups, hidden=heads * 128
    )
    pool = toy_pool(n_nodes * per_node, per_node, memory * GB)
    c = context(shape, pool, batch=batch)
    space = legal_shapes(c)
    assert rows_of(space.shapes) == brute_force(c) == by_oracle(c)
    assert space.n_candidates == len(space.shapes) + sum(space.rejected.values())


@pytest.mark.parametrize("above", [1e-12, 1e-8, 1e-7, 3e-7, 1e-6, 1e-3])
@pytest.mark.parametrize("product", [2, 4, 8])
def test_a_memory_bound_just_above_a_legal_product_counts_the_same(product, above):
    # A bound in rounded logarithms let tp * pp = 4 pass where 4.0000004 was needed.
    c = INSTANCES["toy-8"]
    held = least_model_parallel(c) * c.problem.pool.usable_bytes
    c = with_pool(with_part(c, memory_bytes=held / product / (1 + above)), memory_margin_bytes=0.0)
    assert least_model_parallel(c) > product
    space = legal_shapes(c)
    assert rows_of(space.shapes) == brute_force(c)
    assert space.rejected["MEM000"] > 0
    assert space.n_candidates == len(space.shapes) + sum(space.rejected.values())


@pytest.mark.parametrize(
    "name", one_in(4, ["toy-8", "toy-24-tight", "toy-12-odd-batch", "tied-in-one-node"])
)
@pytest.mark.parametrize("precision", one_in(2, ["bf16", "fp16"]))
def test_the_memory_bound_never_removes_a_plan_that_fits(name, precision, monkeypatch):
    c = INSTANCES[name]
    problem = replace(c.problem, job=replace(c.problem.job, precision=precision))
    smallest = min(p.peak_bytes for p in oracle.solve(problem, c.options, c.n_devices).legal)
    for memory in (0.5 * smallest, smallest, 1.2 * smallest, 3 * smallest):
        part = replace(problem.pool.accelerator, memory_bytes=memory + 1 * GB)
        tight = replace(c, problem=replace(problem, pool=replace(problem.pool, accelerator=part)))
        bounded = search(tight)
        with monkeypatch.context() as patch:
            patch.setattr(shape_space, "least_model_parallel", lambda context: 0.0)
            patch.setattr(rules, "least_model_parallel", lambda context: 0.0)
            free = search(tight)
        assert "MEM000" not in free.rejected_shapes
        assert bounded.n_fit == free.n_fit
        assert bounded.finalists == free.finalists
        assert bounded.n_shapes <= free.n_shapes


def test_the_bound_removes_something():
    outcome = search(INSTANCES["toy-8-hopeless"])
    assert outcome.rejected_shapes["MEM000"] > 0


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (pins(tp=5), []),
        (pins(tp=2, pp=2, vpp=1, rank_order=0), [(2, 2, 2, 1, 0)]),
        (pins(vpp=1, dp=8), [(1, 1, 8, 1, 0)]),
        (SearchOptions(at_most={"pp": 1, "tp": 2}), [(1, 1, 8, 1, 0), (2, 1, 4, 1, 0)]),
        (pins(split=1, tp=1, dp=2, vpp=1, rank_order=0), [(1, 4, 2, 1, 1)]),
    ],
)
def test_pins_reach_the_solver(options, left):
    found = rows_of(legal_shapes(context(options=options, batch=16)).shapes)
    schedules = [NONE if row[1] == 1 else PLAIN_1F1B for row in left]
    assert found == [(*row, *PLAIN, code, 0) for row, code in zip(left, schedules, strict=True)]


def test_pipelines_lie_inside_only_where_that_moves_a_group():
    """Nodes of 4: tp cp of 4 ranks fill a node, and tiers count where their uplinks are slower."""

    def inside(c: Context) -> set[tuple[int, int]]:
        shapes = legal_shapes(c).shapes
        rows = shapes.take(np.flatnonzero(shapes.rank_order == PIPELINES_INSIDE))
        assert (rows.pp > 1).all()
        return set(zip(rows.tp.tolist(), rows.dp.tolist(), strict=True))

    c = context(DENSE, toy_pool(16, 4), batch=8)
    narrow = {(1, 8), (1, 4), (1, 2), (2, 4), (2, 2)}
    assert inside(c) == narrow
    slow, even = Fabric((Tier("leaf", 2, 2.0),)), Fabric((Tier("leaf", 2, 1.0),))
    assert inside(context(DENSE, toy_pool(16, 4), batch=8, fabric=slow)) == {*narrow, (4, 2)}
    assert inside(context(DENSE, toy_pool(16, 4), batch=8, fabric=even)) == narrow
    assert not inside(context(DENSE, toy_pool(16, 16), batch=8))
    assert inside(replace(c, options=pins(rank_order=1))) > narrow
    for framework in ("deepspeed", "torchtitan", "fsdp2"):
        assert not inside(replace(c, options=SearchOptions(framework=framework)))


@pytest.mark.parametrize("tp", [4, 8])
def test_the_orders_that_are_left_out_have_the_same_price(tp):
    c = context(DENSE, toy_pool(32, 4), batch=8)
    prices = {}
    for order in (0, 1):
        found = search(replace(c, options=pins(tp=tp, rank_order=order, vpp=1, mbs=1, pp=(2, 4))))
        for x in found.finalists:
            plain = replace(x.layout, rank_order=RANK_ORDERS[0])
            prices.setdefault(plain, set()).add((x.step_s, x.peak_bytes))
    several = {plan: found for plan, found in prices.items() if plan.dp > 1}
    assert len(several) > 20
    assert all(len(found) == 1 for found in several.values())


def test_a_pinned_vpp_beyond_the_default_is_tried():
    c = context(
        replace(THIRDS, layers=32), toy_pool(2, 2), batch=8, options=pins(vpp=16, pp=2, split=0)
    )
    assert rows_of(legal_shapes(c).shapes) == [(1, 2, 1, 16, 0, *PLAIN, INTERLEAVED, 0)]


def test_cp_is_tried_from_8192_tokens_on_or_where_it_is_named():
    def degrees(seq_len: int, options: SearchOptions = SearchOptions()) -> set[tuple[int, int]]:
        shapes = legal_shapes(context(seq_len=seq_len, batch=16, options=options)).shapes
        return set(zip(shapes.cp.tolist(), shapes.cp_comm.tolist(), strict=True))

    assert degrees(4096) == degrees(8191) == {(1, 0)}
    assert degrees(8192) == {(1, 0), (2, 1), (2, 2), (2, 3)}
    assert degrees(8192, pins(cp=8)) == {(8, 1), (8, 2)}  # two KV heads are too few for a2a
    assert degrees(1024, SearchOptions(at_most={"cp": 2})) == degrees(8192)
    assert degrees(1024, pins(cp=2, cp_comm=1)) == {(2, 1)}


MIXTURE = replace(THIRDS, heads=16, kv_heads=8, n_experts=6, expert_ffn=1536, flash_attention=True)


@pytest.mark.parametrize("n_nodes", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(),
        SearchOptions(at_most={"cp": 4, "vpp": 1}),
        pins(ep=(2, 6), etp=2, pp=(1, 2), cp=(1, 2)),
        pins(ep=5, vpp=1),
    ],
)
def test_shapes_of_a_mixture_of_experts_equal_brute_force_and_oracle(n_nodes, options):
    c = context(MIXTURE, toy_pool(8 * n_nodes, 8), batch=24, options=options)
    space = legal_shapes(c)
    assert rows_of(space.shapes) == brute_force(c) == by_oracle(c)
    assert space.n_candidates == len(space.shapes) + sum(space.rejected.values())
    if not options.only:
        grids = {row[7:9] for row in rows_of(space.shapes)}
        assert {(1, 1), (2, 1), (3, 1) if n_nodes == 3 else (2, 2), (2, 2)} <= grids


def test_ends_is_listed_only_where_it_differs_from_even():
    shapes = rows_of(legal_shapes(context(batch=16, options=pins(pp=2, vpp=1))).shapes)
    assert {row[4] for row in shapes} == {0}  # (3, 3) both ways
    odd = context(replace(DENSE, layers=7), batch=16, options=pins(pp=2, vpp=1))
    assert {row[4] for row in rows_of(legal_shapes(odd).shapes)} == {1}  # (4, 3)


@given(st.integers(1, 20000))
@settings(max_examples=examples(50), derandomize=True, deadline=None, database=None)
def test_divisors_and_prime_exponents(n):
    assert divisors(n) == [d for d in range(1, n + 1) if n % d == 0]
    product = 1
    for prime, exponent in prime_exponents(n).items():
        assert all(prime % d for d in range(2, prime))
        product *= prime**exponent
    assert product == n
