"""Blocks hold every legal plan once, and are priced like its plans one by one."""

import numpy as np
import pytest

from costmodels.shape_terms import shape_terms
from costmodels.step import score
from searches.search import search
from searches.space.free_axes import free_axes
from searches.space.plan_blocks import plan_blocks
from searches.space.plan_space import legal_masks
from searches.space.shape_space import legal_shapes
from tests.searches.instances import INSTANCES
from tests.searches.tables import plan_tables

WHOLE = 10**6
"""Cells of a block that holds all plans."""


@pytest.mark.slow
def test_blocks_hold_about_as_many_cells_as_asked_and_every_plan_once():
    c = INSTANCES["h100-16"]
    shapes = legal_shapes(c).shapes
    axes = free_axes(c, shapes)
    masks, _, _ = legal_masks(c, shapes, axes)

    def layouts(n_cells):
        tables = plan_tables(c, shapes, axes, masks, n_cells)
        return [t.layout(i, c.problem.shape.layers) for t in tables for i in range(len(t))]

    whole = layouts(WHOLE)
    assert len(set(whole)) == len(whole) == masks.n_plans == search(c).n_legal
    assert set(layouts(300)) == set(whole)
    assert len(layouts(300)) == len(whole)
    parts = list(plan_blocks(c, shapes, axes, masks, 300))
    assert len(parts) > 3
    for part in parts:  # a batch is never cut
        assert part.legal.shape == part.block.size
        assert part.legal.size <= 300 or part.block.size[-1] == 1


def test_a_block_is_priced_like_its_rows_one_by_one():
    for name in ("h100-16", "toy-24-two-tiers"):
        c = INSTANCES[name]
        shapes = legal_shapes(c).shapes
        axes = free_axes(c, shapes)
        masks, _, _ = legal_masks(c, shapes, axes)
        terms = shape_terms(c.problem, shapes, axes.shardings)
        for part in plan_blocks(c, shapes, axes, masks, 5000):
            cells = np.flatnonzero(part.legal)
            whole = score(c.problem, terms, part.block)
            alone = score(c.problem, terms, part.block.rows(cells))
            times = np.broadcast_to(whole.step_s, part.block.size).ravel()[cells]
            peaks = np.broadcast_to(whole.peak_bytes, part.block.size).ravel()[cells]
            assert np.allclose(times, alone.step_s, rtol=1e-12, atol=0)
            assert np.allclose(peaks, alone.peak_bytes, rtol=1e-12, atol=0)
