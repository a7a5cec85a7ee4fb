"""Plans that miss the memory by least: what uneven splits start from where nothing fits."""

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import SCHEDULES
from costmodels.layers.layer_terms import layer_table
from costmodels.plans import ShapeTable
from costmodels.schedule.rank_costs import SCHEDULES as SPLIT_SCHEDULES
from costmodels.shape_terms import shape_terms
from costmodels.step import join, peak_bytes, sends_activations
from searches.pricing.candidates import Candidate, layout_key
from searches.rules import Context, fits_host_with_activations
from searches.space.free_axes import free_axes
from searches.space.plan_blocks import plan_blocks
from searches.space.plan_space import legal_masks

SHAPES_AT_ONCE, CELLS_AT_ONCE = 512, 131072
"""As the search prices them."""


def nearest_misses(context: Context, shapes: ShapeTable, n: int) -> list[Candidate]:
    """Return the pipelines that need least memory, the least first; of each shape the one plan.

    A shape is everything coupled but the split. At most `n`; only schedules whose layers
    `searches.splits.uneven` can split. Times are 0: none is priced.
    """
    pipelines = (shapes.pp > 1) & np.isin(
        shapes.schedule, [SCHEDULES.index(name) for name in SPLIT_SCHEDULES]
    )
    shapes = shapes.take(np.flatnonzero(pipelines))
    keys = _without_split(shapes)
    best: dict[int, Candidate] = {}
    for start in range(0, len(shapes), SHAPES_AT_ONCE):
        rows = np.arange(start, min(start + SHAPES_AT_ONCE, len(shapes)))
        for key, one in _least(context, shapes.take(rows), keys[rows]):
            if key not in best or _order(one) < _order(best[key]):
                best[key] = one
    return sorted(best.values(), key=_order)[:n]


def _order(one: Candidate) -> tuple[object, ...]:
    return one.peak_bytes, layout_key(one.layout)


def _without_split(shapes: ShapeTable) -> NDArray[np.intp]:
    """Return a number for each shape, the same for those that differ in the split alone."""
    columns = (
        shapes.tp,
        shapes.pp,
        shapes.dp,
        shapes.vpp,
        shapes.cp,
        shapes.ep,
        shapes.etp,
        shapes.cp_comm,
        shapes.schedule,
        shapes.rank_order,
    )
    _, group_idx = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return np.asarray(group_idx).reshape(-1)


def _least(
    context: Context, shapes: ShapeTable, keys: NDArray[np.intp]
) -> list[tuple[int, Candidate]]:
    """Return plans that need least memory by key, one or more for each."""
    problem, axes = context.problem, free_axes(context, shapes)
    masks, _, _ = legal_masks(context, shapes, axes)
    if not masks.n_plans:
        return []
    terms = shape_terms(problem, shapes, axes.shardings)
    layers = layer_table(
        problem, shapes, axes.mbs, axes.recompute_modules, context.options.mode_table
    )
    results: list[tuple[int, Candidate]] = []
    least = np.full(int(keys.max(initial=0)) + 1, np.inf)
    for block in plan_blocks(context, shapes, axes, masks, CELLS_AT_ONCE):
        rows = join(problem, terms, block.block, layers)
        legal = block.legal
        if sends_activations(block.block):
            legal = legal & fits_host_with_activations(rows)
        peaks = np.where(legal, peak_bytes(rows), np.inf)
        n_batches = peaks.shape[-1]
        cells = peaks.reshape(-1, n_batches).argmin(axis=0) * n_batches + np.arange(n_batches)
        own, bytes_of = keys[block.block.shape[0, 0]], peaks.ravel()[cells]
        order = np.lexsort((bytes_of, own))
        first = order[np.unique(own[order], return_index=True)[1]]
        first = first[bytes_of[first] < least[own[first]]]
        least[own[first]] = bytes_of[first]
        table = block.block.rows(cells[first])
        results += [
            (
                int(own[i]),
                Candidate(table.layout(j, problem.shape.layers), 0.0, float(bytes_of[i])),
            )
            for j, i in enumerate(first.tolist())
        ]
    return results
