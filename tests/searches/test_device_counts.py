"""Numbers of devices: which there are, and that no plan is faster than its lower bound."""

import math
from dataclasses import replace

import numpy as np
import pytest

from costmodels.examples import toy_accelerator
from costmodels.layers.layer_terms import layer_table
from costmodels.schedule.stages import SPLITS
from costmodels.shape_terms import shape_terms
from costmodels.shapes import ModelShape
from costmodels.step import join, peak_bytes, step_times
from searches import device_counts as device_counts_module
from searches.device_counts import StepBounds, device_counts, flops_bound_s, on_devices
from searches.pricing.candidates import layout_key
from searches.rules import Context
from searches.search import search
from searches.space.free_axes import free_axes
from searches.space.plan_blocks import plan_blocks
from searches.space.plan_space import legal_masks
from searches.space.shape_space import legal_shapes
from searches.space.shards import make_shards
from tests.searches.instances import (
    GB,
    GQA,
    INSTANCES,
    ONE_TIER,
    context,
    one_in,
    pins,
    toy_pool,
    with_fast_host,
    with_options,
)

EXPERTS = ModelShape(
    "experts",
    layers=6,
    hidden=1024,
    heads=16,
    kv_heads=4,
    head_dim=64,
    ffn=4096,
    gated=True,
    vocab=32000,
    tied=False,
    n_experts=8,
    top_k=2,
    expert_ffn=1024,
    shared_ffn=1024,
    dense_layers=1,
)
MORE = {
    "experts-16": context(EXPERTS, toy_pool(16, 8), batch=16),
    "experts-16-tight": context(EXPERTS, toy_pool(16, 8, memory=7 * GB), batch=16),
    "zero-bubble": context(
        replace(GQA, layers=12),
        toy_pool(8),
        batch=16,
        options=replace(pins(schedule=(4, 5, 6)), framework="any"),
    ),
    "everything": context(GQA, toy_pool(8), batch=8, options=replace(pins(), framework="any")),
    "pipeline": context(replace(GQA, layers=24), toy_pool(24, 6), batch=24, options=pins(tp=1)),
}
NAMES = (
    "toy-8",
    "toy-8-tight",
    "toy-12-odd-batch",
    "toy-24-one-tier",
    "h100-16",
    "b200-16-fp8",
    "toy-24-racks-of-8",
    "cp-by-default",
    "ring-beyond-the-node",
    "pinned-words",
    "userbuffers",
    "nanotron-across",
    "v100-8-fp16",
)
CONTEXTS = {**{name: INSTANCES[name] for name in NAMES}, **MORE}
ROUNDING = 1 - 1e-9


def bounds_of(c: Context) -> StepBounds:
    return StepBounds(c.problem, c.options)


def best_by_shape(c: Context):
    """Yield shapes with the least time of their plans that fit, inf where none does."""
    for shard in make_shards(c, legal_shapes(c).shapes):
        shapes = shard.shapes
        axes = free_axes(c, shapes)
        masks, _, _ = legal_masks(c, shapes, axes)
        terms = shape_terms(c.problem, shapes, axes.shardings)
        layers = layer_table(c.problem, shapes, axes.mbs, axes.recompute_modules)
        best = np.full(len(shapes), np.inf)
        for found in plan_blocks(c, shapes, axes, masks, 4096):
            rows = join(c.problem, terms, found.block, layers)
            fits = found.legal & (peak_bytes(rows) <= c.problem.pool.usable_bytes)
            times = np.where(fits, step_times(rows), np.inf)
            of = np.broadcast_to(found.block.shape, times.shape)
            np.minimum.at(best, of.ravel(), times.ravel())
        yield shapes, best


def test_whole_nodes_and_divisors_of_one():
    assert device_counts(toy_pool(24, 6)) == [1, 2, 3, 6, 12, 18, 24]
    assert device_counts(toy_pool(8, 8)) == [1, 2, 4, 8]


def test_fewer_devices_are_the_first_nodes_of_the_pool():
    pool = replace(toy_pool(24, 4), scale_up_domain=8)
    smaller = pool.first_devices(12)
    assert (smaller.n_nodes, smaller.devices_per_node, smaller.scale_up_domain) == (3, 4, 8)
    part = pool.first_devices(2)
    assert (part.n_nodes, part.devices_per_node, part.scale_up_domain) == (1, 2, 2)
    assert part.nic_bytes_per_s == pool.nic_bytes_per_s
    assert pool.first_devices(24) is pool
    for wrong in (0, 3, 6, 25, 28):
        with pytest.raises(ValueError, match="no whole nodes of 4"):
            pool.first_devices(wrong)


@pytest.mark.parametrize("name", one_in(3, CONTEXTS))
def test_no_plan_is_faster_than_the_bound_of_its_shape(name):
    c = CONTEXTS[name]
    bounds, n_shapes = bounds_of(c), 0
    for shapes, best in best_by_shape(c):
        bound = bounds.of_shapes(c, shapes)
        assert (bound * ROUNDING <= best).all()
        n_shapes += len(shapes)
        assert (bounds.least_s(c.n_devices) <= bound * (1 + 1e-12)).all()
    assert n_shapes > 0
    assert flops_bound_s(c) * ROUNDING <= bounds.least_s(c.n_devices)


@pytest.mark.parametrize(
    "name", one_in(4, ["toy-8", "toy-24-one-tier", "h100-16", "experts-16", "pipeline"])
)
def test_no_exact_step_is_shorter_than_the_bound(name):
    c = with_options(CONTEXTS[name], n_finalists=200)
    bounds = bounds_of(c)
    for n in device_counts(c.problem.pool):
        least, found = bounds.least_s(n), search(bounds.context(n)).finalists
        assert all(least * ROUNDING <= x.step_s for x in found)
        assert least < math.inf or not found


def test_the_bound_is_worth_something():
    c = CONTEXTS["h100-16"]
    best = search(c).finalists[0].step_s
    assert 0.5 * best < bounds_of(c).least_s(16) <= best


def test_a_number_without_a_layout_has_no_bound():
    c = context(GQA, toy_pool(44, 4), batch=8)  # 44 = 4 x 11: no 11 stages, heads or sequences
    assert bounds_of(c).least_s(44) == math.inf
    assert bounds_of(c).least_s(24) < math.inf
    assert not search(bounds_of(c).context(44)).finalists


@pytest.mark.parametrize(
    "name", one_in(4, ["toy-8", "toy-24-one-tier", "cp-by-default", "experts-16"])
)
def test_below_finds_what_the_search_finds(name):
    c = CONTEXTS[name]
    bounds = bounds_of(c)
    for n in device_counts(c.problem.pool)[-3:]:
        found = search(bounds.context(n)).finalists
        best = bounds.below(n, math.inf)
        assert [x.layout for x in best] == [x.layout for x in found[:1]]
        if found:
            step = found[0].step_s
            assert bounds.below(n, step) == []
            assert bounds.below(n, math.nextafter(step, math.inf))[0].step_s == step


@pytest.mark.slow
def test_the_least_step_counts_uneven_splits():
    n_uneven = 0
    for name in ("toy-8", "toy-24-one-tier", "h100-16"):
        c = with_fast_host(CONTEXTS[name])  # a late host favours fewer stages
        bounds = bounds_of(with_options(c, split_shapes=6))
        for n in device_counts(bounds.problem.pool)[-3:]:
            first = next(iter(search(bounds.context(n)).finalists), None)
            if first is None:
                assert bounds.least_below(n, math.inf) == math.inf
                continue
            n_uneven += first.layout.split not in SPLITS
            assert bounds.least_below(n, math.inf) == pytest.approx(first.step_s, rel=1e-12)
            assert bounds.least_below(n, first.step_s * (1 + 1e-9)) == pytest.approx(first.step_s)
            assert bounds.least_below(n, first.step_s * (1 - 1e-9)) == math.inf
    assert n_uneven


def test_promising_shapes_are_the_legal_ones_below_the_limit():
    for name in ("toy-8", "toy-24-one-tier", "experts-16", "cp-by-default", "pins"):
        c = {**INSTANCES, **CONTEXTS}[name]
        shapes = legal_shapes(c).shapes
        rows = sorted(map(tuple, np.transpose([getattr(shapes, a) for a in SHAPE_COLUMNS])))
        found = bounds_of(c).promising(c.n_devices, math.inf).shapes
        assert rows == sorted(map(tuple, np.transpose([getattr(found, a) for a in SHAPE_COLUMNS])))


SHAPE_COLUMNS = ("tp", "pp", "dp", "vpp", "split", "cp", "cp_comm", "ep", "etp")


def test_a_smaller_number_is_priced_as_a_pool_of_its_own():
    large = context(GQA, toy_pool(24, 4), batch=24, fabric=ONE_TIER)
    small = context(GQA, toy_pool(8, 4), batch=24, fabric=ONE_TIER)
    part = Context(on_devices(large.problem, 8), large.options, 8)
    ours, theirs = search(part).finalists, search(small).finalists
    assert [(x.step_s, layout_key(x.layout)) for x in ours] == [
        (x.step_s, layout_key(x.layout)) for x in theirs
    ]


def test_more_power_lowers_the_flops_bound_in_proportion():
    c = context(GQA, toy_pool(8))
    fast = toy_accelerator(
        peak_flops_per_s={k: 2 * v for k, v in c.problem.pool.accelerator.peak_flops_per_s.items()}
    )
    twice = replace(c, problem=replace(c.problem, pool=replace(c.problem.pool, accelerator=fast)))
    assert flops_bound_s(twice) == pytest.approx(flops_bound_s(c) / 2, rel=1e-3)


def test_layer_terms_are_those_of_the_job_and_the_pins_alone() -> None:
    c = with_options(INSTANCES["toy-8"], only={"mbs": frozenset({2})})
    mine = StepBounds(c.problem, c.options).context(c.n_devices)
    assert mine.layer_grid is not None
    opened = replace(mine, options=replace(mine.options, only={}))
    assert opened.layer_grid is None
    deeper = replace(mine.problem.shape, layers=2 * mine.problem.shape.layers)
    assert replace(mine, problem=replace(mine.problem, shape=deeper)).layer_grid is None


@pytest.mark.parametrize("name", ["toy-24-one-tier", "experts-16", "cp-by-default"])
def test_bounds_of_all_counts_at_once_are_those_of_each(name, monkeypatch):
    c = CONTEXTS[name]
    counts = device_counts(c.problem.pool)
    together = bounds_of(c)
    together.find_least(counts)
    found = [together.least_s(n) for n in counts]
    assert found == [bounds_of(c).least_s(n) for n in counts]
    # The degrees that one table holds are those that are listed one by one.
    monkeypatch.setattr(device_counts_module, "MOST_DEGREES", 0)
    assert found == [bounds_of(c).least_s(n) for n in counts]
    assert [together.floor_s(n) for n in counts] == [
        flops_bound_s(together.context(n)) for n in counts
    ]
