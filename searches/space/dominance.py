"""Values of an axis that are never better than another: proven, counted, and not priced.

A switch that only moves time costs nothing to leave out where its other position is proven to be
no slower in any plan; memory is the same in both.
"""

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from costmodels.comm.data_parallel import DataParallelTimes
from costmodels.layers.factor import distinct
from costmodels.layers.kinds import kinds_of
from costmodels.plans import ShapeTable, ShardingTable
from costmodels.schedule.stages import StageKinds
from costmodels.schedule.zero_bubble import FIRST_CODE
from costmodels.shape_terms import kinds_of_stages, once_a_step_times
from searches.rules import Context

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

ROUNDING = 1e-12
"""Relative difference below which two times count as equal."""


def overlap_never_slower(
    context: Context, shapes: ShapeTable, shardings: ShardingTable, least_mbs: int
) -> Bools:
    """Return where overlapped data-parallel traffic costs at most what it costs beside nothing.

    `(n_shardings, n_shapes)`, whatever the micro-batch from `least_mbs` on, sp and recompute.
    From ZeRO 2 on always: the pieces are the same, and what is exposed is at most all of them.
    Below, overlap cuts the traffic into pieces that pay their latency each, so that it holds
    where for every kind of rank

    (1 - slowdown) e + slowdown c <= c',  e = max(piece, c/v - w/v, c - w), at most c

    c in pieces, c' in one call; w is at least the time of the linear layers' FLOPs at the peak, 2
    a parameter and token forward and 4 backward (0 for schedules that split the backward).
    """
    proven = np.ones((len(shardings), len(shapes)), dtype=bool)
    once = np.flatnonzero(shardings.zero <= 1)
    if not len(once):
        return proven
    rows, alike = shardings.take(once), _alike(shapes)
    _, firsts = np.unique(alike, return_index=True)
    result = _once_never_slower(context, shapes.take(firsts), rows, least_mbs)
    proven[once] = result[:, alike]
    return proven


def _alike(shapes: ShapeTable) -> NDArray[np.intp]:
    """Return a number for each shape, the same where nothing here tells two shapes apart."""
    is_deferred = (shapes.schedule >= FIRST_CODE).astype(np.int32)
    order = shapes.rank_order
    degrees = (shapes.tp, shapes.pp, shapes.dp, shapes.cp, shapes.ep, shapes.etp)
    return distinct(
        (*degrees, shapes.vpp, shapes.split, shapes.placement, is_deferred, order)
    ).index


def _once_never_slower(
    context: Context, shapes: ShapeTable, rows: ShardingTable, least_mbs: int
) -> Bools:
    """Return `overlap_never_slower` for shardings of ZeRO 0 and 1 alone."""
    problem, stack = context.problem, context.problem.stack
    kinds = kinds_of_stages(problem, shapes, with_held=False)
    both = rows.with_blocking(0).followed_by(rows.with_blocking(1))
    times, positions = once_a_step_times(problem, shapes, both, kinds)
    # Of ranks alike the window and the chunks are all that differs from shape to shape.
    is_deferred = (shapes.schedule >= FIRST_CODE).astype(np.int32)
    n_kinds = positions.shape[1]
    ranks = positions.ravel().astype(np.int32)
    columns = (ranks, shapes.vpp.repeat(n_kinds), is_deferred.repeat(n_kinds))
    alike = distinct(columns).index
    _, firsts = np.unique(alike, return_index=True)
    place, n = positions.ravel()[firsts], len(rows)
    cut = times.take(np.ix_(np.arange(n), place))
    total = times.take(np.ix_(np.arange(n, 2 * n), place))
    forward = _least_forward_s(context, shapes, kinds, least_mbs).ravel()[firsts]
    slow, chunks = stack.overlap_slowdown, columns[1][firsts].astype(np.float64)
    runs = np.array([stack.dp_overlap, stack.zero1_overlap])[rows.zero]
    reduces, gathers = ((runs != "none"), (runs == "both"))
    reduce = _most_exposed(cut.reduce_s, cut.reduce_piece_s, 2.0 * forward, chunks)
    gather = _most_exposed(cut.gather_s, cut.gather_piece_s, forward, chunks)
    reduce = np.where(reduces[:, None], reduce, cut.reduce_s)
    gather = np.where(gathers[:, None], gather, cut.gather_s)
    maximum = (1.0 - slow) * (reduce + gather) + slow * _all(cut)
    result = maximum <= _all(total) * (1.0 + ROUNDING)
    return np.asarray(result[:, alike.reshape(positions.shape)].all(axis=-1))


def _all(times: DataParallelTimes) -> Floats:
    return np.asarray(times.reduce_s + times.gather_s)


def _most_exposed(total_s: Floats, piece_s: Floats, window_s: Floats, chunks: Floats) -> Floats:
    """Return a bound from above on `exposed_once_s`, at a window of at least `window_s`."""
    beside = np.maximum((total_s - window_s) / chunks, total_s - window_s)
    return np.asarray(np.minimum(total_s, np.maximum(piece_s, beside)))


def _least_forward_s(
    context: Context, shapes: ShapeTable, kinds: StageKinds, least_mbs: int
) -> Floats:
    """Return a bound from below on the forward of a micro-batch by shape and kind, seconds.

    The linear layers that every token meets in the lightest kind of layer, at the peak rate.
    """
    problem, shape = context.problem, context.problem.shape
    by_kind = [kind.matrix_params(shape, shapes.tp) for kind in kinds_of(shape)]
    weights = reduce(np.minimum, by_kind)
    tokens = least_mbs * problem.job.seq_len / shapes.cp
    peaks = problem.pool.accelerator.peak_flops_per_s
    one = 2.0 * weights * tokens / peaks[problem.job.recipe.linear]
    one = np.where(shapes.schedule >= FIRST_CODE, 0.0, one)
    return np.asarray(kinds.layers * one[:, None])
