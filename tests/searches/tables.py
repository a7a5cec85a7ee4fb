"""Whole spaces as plain tables of plans, for oracles that look at every plan."""

from collections.abc import Iterator

import numpy as np

from costmodels.plans import PlanTable, ShapeTable
from searches.rules import Context
from searches.space.free_axes import FreeAxes
from searches.space.plan_blocks import plan_blocks
from searches.space.plan_masks import Masks


def plan_tables(
    context: Context, shapes: ShapeTable, axes: FreeAxes, masks: Masks, n_cells: int
) -> Iterator[PlanTable]:
    """Yield the legal plans as tables, one for each of `plan_blocks`."""
    for found in plan_blocks(context, shapes, axes, masks, n_cells):
        yield found.block.rows(np.flatnonzero(found.legal))
