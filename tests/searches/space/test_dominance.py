"""What is left out as never better: the bound holds in every plan, and leaves open the rest."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.plans import PlanTable, ShardingTable
from costmodels.shape_terms import shape_terms
from costmodels.step import join, peak_bytes, step_times
from searches.search import search
from searches.space.dominance import overlap_never_slower
from searches.space.free_axes import free_axes
from searches.space.plan_space import legal_masks
from searches.space.shape_space import legal_shapes
from tests.searches.instances import GQA, INSTANCES, context, on_stack, pins, toy_pool
from tests.searches.tables import plan_tables

SMALL = replace(GQA, hidden=512, heads=4, ffn=1536)
DOUBT = INSTANCES["overlap-in-doubt"]


@pytest.mark.parametrize("name", ["toy-8", "toy-12-odd-batch", "internevo", "overlap-in-doubt"])
def test_no_plan_is_faster_without_overlap_where_that_is_proven(name):
    c = INSTANCES[name]
    shapes = legal_shapes(c).shapes
    axes = free_axes(c, shapes)
    masks, _, _ = legal_masks(c, shapes, axes)
    checked = 0
    for table in plan_tables(c, shapes, axes, masks, 10_000):
        proven = axes.dominates[table.shape, table.sharding]
        both = ShardingTable.from_tuples(
            [(*row, off) for off in (0, 1) for row in _rows(axes.shardings)]
        )
        n = len(axes.shardings)
        on, off = (
            PlanTable(
                table.shapes,
                both,
                table.gbs,
                table.shape,
                table.mbs,
                table.sharding + add,
                table.sp,
                table.recompute,
                table.recompute_layers,
                table.recompute_modules,
                table.activation_offload_layers,
            )
            for add in (0, n)
        )
        terms = shape_terms(c.problem, shapes, both)
        rows = [join(c.problem, terms, x) for x in (on, off)]
        fast, slow = (step_times(x) for x in rows)
        assert (fast[proven] <= slow[proven] * (1 + 1e-12)).all()
        np.testing.assert_array_equal(*(peak_bytes(x) for x in rows))
        checked += int(proven.sum())
    assert checked > 0


def _rows(shardings):
    columns = (shardings.zero, shardings.copies, shardings.optimizer_offload)
    return zip(*(x.tolist() for x in columns), strict=True)


def test_many_small_pieces_leave_it_open():
    """A short sequence hides little, and every one of the pieces pays its latency."""
    shapes = legal_shapes(DOUBT).shapes
    table = ShardingTable.from_tuples([(1, 1), (3, 1)])
    slow = on_stack(DOUBT, bucket_params=1e4, bucket_params_per_rank=0.0)
    once, often = overlap_never_slower(slow, shapes, table, 1)
    assert not once.all()
    assert often.all()
    longer = replace(
        DOUBT,
        problem=replace(DOUBT.problem, job=replace(DOUBT.problem.job, seq_len=1 << 17)),
    )
    short, long = (overlap_never_slower(x, shapes, table, 1)[0] for x in (DOUBT, longer))
    assert 0 < short.sum() < long.sum()
    outcome = search(slow)
    assert any(not x.layout.dp_overlap for x in outcome.finalists)


def test_what_is_left_out_is_counted_but_for_what_is_pinned():
    c = context(GQA, toy_pool(8), batch=16)
    free = search(c)
    off = search(replace(c, options=pins(dp_overlap=0)))
    assert free.rejected_plans["DOM001"] == off.n_legal
    assert "DOM001" not in off.rejected_plans
    assert off.finalists[0].step_s > free.finalists[0].step_s
    on = search(replace(c, options=pins(dp_overlap=1)))
    assert on.finalists == free.finalists
