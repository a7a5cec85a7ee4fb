"""The terms from which the plans of some shapes are priced."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.layers.layer_grid import LayerGrid
from costmodels.layers.layer_terms import LayerTable, layer_table
from costmodels.plans import PlanBlock, ShapeTable
from costmodels.problem import Problem
from costmodels.shape_terms import ShapeTerms, shape_terms
from costmodels.step import Rows, join, least_peak_bytes
from searches.rules import Context
from searches.space.free_axes import FreeAxes

Bools = NDArray[np.bool_]

BLOCK_CELLS = 131072
"""Plans priced at a time: one kind of rank's columns of them, a megabyte each, stay in the cache,
and the innermost loops are long."""


@dataclass(frozen=True, slots=True)
class ShapeTables:
    """The terms from which the plans of some shapes are priced."""

    problem: Problem
    terms: ShapeTerms
    layers: LayerTable

    def join(self, block: PlanBlock) -> Rows:
        """Return the rows of a block of plans."""
        return join(self.problem, self.terms, block, self.layers)

    def may_fit(self, block: PlanBlock, shardings: Bools, options: Bools) -> Bools:
        """Return which batches of a block may fit by a lower bound, `(n_batches,)`.

        `shardings` and `options` say which of them a batch has (`BatchBounds.may_fit`).
        """
        least_bytes = least_peak_bytes(self.join(block), shardings, options)
        return np.asarray(least_bytes <= self.problem.pool.usable_bytes)


def tables_of(
    context: Context, shapes: ShapeTable, axes: FreeAxes, grid: LayerGrid | None
) -> ShapeTables:
    """Return the terms of some shapes and their axes; `grid` holds those of layers, if known."""
    terms = shape_terms(context.problem, shapes, axes.shardings)
    if grid:
        layers = grid.table(shapes, axes.recompute_modules)
    else:
        columns = (axes.mbs, axes.recompute_modules, context.options.mode_table)
        layers = layer_table(context.problem, shapes, *columns)
    return ShapeTables(context.problem, terms, layers)
