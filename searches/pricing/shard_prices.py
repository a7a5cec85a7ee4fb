"""What one shard holds: its legal plans priced block by block, and the best few of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodels.plans import PlanBlock
from costmodels.step import (
    PipelineParts,
    peak_bytes,
    pipeline_parts,
    sends_activations,
    step_parts,
)
from searches.pricing.candidates import Candidate, Rivals, closed_form_order
from searches.pricing.fronts import Front, PricedCells
from searches.pricing.kept_blocks import PricedBlock, priced_blocks
from searches.pricing.limits import Limits
from searches.pricing.shape_tables import BLOCK_CELLS, ShapeTables, tables_of
from searches.rules import fits_host_with_activations
from searches.space.plan_blocks import BatchBounds, LegalBlock, plan_blocks
from searches.space.plan_space import PlanSpace, plan_space
from searches.space.shards import Shard, open_batches

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Bools = NDArray[np.bool_]
BatchRows = NDArray[np.intp]

MOST_KEPT = 0.8
"""Share of a block's batches from which on taking them out takes longer than it saves."""


@dataclass(frozen=True, slots=True)
class Batches:
    """The plans of each batch of a shard, a batch being a shape, mbs and sp; `(n_batches,)`."""

    least_s: Floats
    n_legal: Counts
    n_fit: Counts
    """0 where the batch was not priced."""

    def priced(self, limit_s: float) -> tuple[int, int]:
        """Return (legal, fitting) plans of the batches whose bound is no higher than a limit."""
        is_priced = self.least_s <= limit_s
        return int(self.n_legal[is_priced].sum()), int(self.n_fit[is_priced].sum())


@dataclass(frozen=True, slots=True)
class ShardAnswer:
    """What one shard found."""

    best: tuple[Candidate, ...]
    rivals: tuple[Rivals, ...]
    """Other plans whose lower bound is below that of a plan that may be the first."""
    closest: Candidate | None
    """The plan that misses the memory by least, where that is asked for and nothing fits."""
    n_candidates: int
    batches: Batches
    n_faster: int
    rejected: dict[str, int]
    front: tuple[Candidate, ...] = ()
    near_front: tuple[Candidate, ...] = ()
    """Other plans that exact times may put on the front."""


def search_shard(shard: Shard) -> ShardAnswer:
    """Price the legal plans of a shard's shapes that may be among the best."""
    context, shapes = shard.context, shard.shapes
    plans = shard.plans or plan_space(context, shapes)
    n_legal, n_fit = plans.n_legal, np.zeros(shard.least_s.shape, dtype=np.int64)
    best: list[Candidate] = []
    rivals: list[Rivals] = []
    closest: Candidate | None = None
    front = Front() if context.options.front else None
    n, n_faster, limits = context.options.n_finalists, 0, shard.limits

    def limits_now() -> Limits:
        return limits

    # Of shapes whose bounds are all too high nothing but the counts is needed.
    rows = np.flatnonzero(open_batches(replace(shard, plans=plans)).any(axis=(1, 2)))
    if len(rows):
        for batch, answer in _answers(shard, plans, rows, limits_now, front):
            np.add.at(n_fit, batch, answer.n_fit)
            n_faster += answer.n_faster
            best = sorted(best + answer.best, key=closed_form_order)[:n]
            limits = limits.after(best, n)
            left = (some.below(limits.rivals_s) for some in (*rivals, *answer.rivals))
            rivals = [some for some in left if len(some.rows)]
            miss = answer.closest
            if miss and (closest is None or miss.peak_bytes < closest.peak_bytes):
                closest = miss
    members, near = (front.members, front.hopeful) if front is not None else ([], [])
    is_legal = n_legal > 0
    batches = Batches(shard.least_s[is_legal], n_legal[is_legal], n_fit[is_legal])
    counts = {code: int(count.sum()) for code, count in plans.rejected.items()}
    return ShardAnswer(
        tuple(best),
        tuple(rivals),
        closest,
        int(plans.n_candidates.sum()),
        batches,
        n_faster,
        {code: count for code, count in counts.items() if count},
        tuple(members),
        tuple(near),
    )


Batch = tuple[BatchRows, BatchRows, BatchRows]
"""Positions of batches in `Shard.least_s`: shape, mbs and mode."""


def _answers(
    shard: Shard,
    plans: PlanSpace,
    rows: BatchRows,
    limits: Callable[[], Limits],
    front: Front | None,
) -> Iterator[tuple[Batch, "BlockAnswer"]]:
    """Yield what the blocks of some shapes of a shard hold, with the batches of each.

    `limits` are asked when it is the turn of a block.
    """
    context = shard.context
    bounded, n = context.options.bound and front is None, context.options.n_finalists

    def limit_s() -> float:
        return limits().least_s if bounded else float("inf")

    if shard.own is not None and bounded and not shard.nearest:
        place = np.zeros(len(shard.own.chunk.shapes), dtype=np.intp)
        place[shard.own.rows] = np.arange(len(shard.shapes))
        own = replace(shard.own, rows=shard.own.rows[rows])
        usable = context.problem.pool.usable_bytes
        for priced, batches in priced_blocks(context, own, shard.grid, limit_s):
            some = priced.of_batches(batches)
            fits = some.peaks <= usable
            block = some.block
            batch = place[block.block.shape[0, 0]], block.mbs, block.mode
            yield batch, _answer_of(some, fits, n, limits(), context.problem.shape.layers)
        return
    shapes, least_s = shard.shapes.take(rows), shard.least_s[rows]
    axes, masks = plans.used(rows)
    tables = tables_of(context, shapes, axes, shard.grid)

    may_fit = None if shard.nearest else tables.may_fit
    bounds = BatchBounds(least_s if bounded else None, limit_s, may_fit)
    for block in plan_blocks(context, shapes, axes, masks, BLOCK_CELLS, bounds):
        batch = rows[block.block.shape[0, 0]], block.mbs, block.mode
        yield batch, price_block(tables, block, n, limits(), front)


@dataclass(frozen=True, slots=True)
class BlockAnswer:
    """What one block holds."""

    best: list[Candidate]
    rivals: list[Rivals]
    closest: Candidate | None
    n_fit: Counts
    """Fitting plans of each batch."""
    n_faster: int


def price_block(
    tables: ShapeTables,
    block: LegalBlock,
    n: int,
    limits: Limits = Limits(),
    front: Front | None = None,
) -> BlockAnswer:
    """Price the plans of a block.

    Of plans that differ in nothing but the copies of their ZeRO groups, a second copy of the
    weights and the overlap the fastest stands for all.
    The best are the n with the least closed form, the rivals those whose lower bound is below that
    of `limits`.
    """
    problem = tables.problem
    rows, n_layers = tables.join(block.block), problem.shape.layers
    peaks = peak_bytes(rows)
    legal = block.legal
    if sends_activations(block.block):
        legal = legal & fits_host_with_activations(rows)
    fits = legal & (peaks <= problem.pool.usable_bytes)
    n_fit = np.asarray(np.count_nonzero(fits, axis=(0, 1)), dtype=np.int64)
    if not n_fit.any():
        cell = int(np.argmin(np.where(legal if legal.any() else block.legal, peaks, np.inf)))
        table = block.block.rows(np.array([cell]))
        closest = Candidate(table.layout(0, n_layers), 0.0, float(peaks.flat[cell]))
        return BlockAnswer([], [], closest, n_fit, 0)
    pipeline = pipeline_parts(rows)
    if front is None:
        in_time = _batches_in_time(pipeline, fits, limits)
        if not len(in_time):
            return BlockAnswer([], [], None, n_fit, 0)
        if len(in_time) < MOST_KEPT * len(n_fit):
            block, peaks, fits = block.of_batches(in_time), peaks[..., in_time], fits[..., in_time]
            rows = tables.join(block.block)
            pipeline = pipeline_parts(rows)
    parts = step_parts(rows, pipeline)
    if front is not None:
        outside = np.where(fits, parts.outside_s, np.inf)
        times_s, least_s = parts.flush_s + outside, parts.least_flush_s + outside
        numbers = PricedCells(times_s.ravel(), least_s.ravel(), peaks.ravel())
        front.add(block.block, n_layers, numbers)
    priced = PricedBlock(block, peaks, parts.flush_s, parts.least_flush_s, parts.outside_s)
    return replace(_answer_of(priced, fits, n, limits, n_layers), n_fit=n_fit)


def _answer_of(
    priced_block: PricedBlock, fits: Bools, n: int, limits: Limits, n_layers: int
) -> BlockAnswer:
    """Return the best n of the plans of a block that fit, and the rivals by `limits`."""
    block, peaks = priced_block.block.block, priced_block.peaks
    n_fit = np.asarray(np.count_nonzero(fits, axis=(0, 1)), dtype=np.int64)
    if not n_fit.any():
        return BlockAnswer([], [], None, n_fit, 0)
    outside = np.where(fits, priced_block.outside_s, np.inf)
    n_faster = 0
    if limits.rival_s:
        n_faster = int(np.count_nonzero(priced_block.flush_s + outside < limits.rival_s))
    sharding, outside = _fastest_shardings(block, outside)
    closed = (priced_block.flush_s + outside).ravel()
    least = (priced_block.least_flush_s + outside).ravel()
    quick = np.flatnonzero(closed <= limits.last_s)
    n_any = int(np.count_nonzero(outside < np.inf))
    best = quick[_best_rows(closed[quick], min(n, n_any))]
    first_s = min(limits.first_s, float(closed.min()))
    rivals = np.flatnonzero(least < replace(limits, first_s=first_s).rivals_s)

    def priced(cells: NDArray[np.intp]) -> Rivals:
        cells = cells[np.isfinite(closed[cells])]
        cell_idx = np.unravel_index(cells, outside.shape)
        chosen = np.ravel_multi_index((sharding[cell_idx], cell_idx[1], cell_idx[2]), block.size)
        return Rivals(
            block.rows(chosen),
            n_layers,
            np.arange(len(cells)),
            closed[cells],
            peaks.flat[chosen],
            least[cells],
        )

    first = sorted(priced(best).candidates(), key=closed_form_order)[:n]
    return BlockAnswer(first, [priced(rivals)] if len(rivals) else [], None, n_fit, n_faster)


def _best_rows(times: Floats, n: int) -> NDArray[np.intp]:
    """Return the rows of the n smallest times and of all ties with the last of them."""
    if len(times) <= n:
        return np.arange(len(times))
    return np.flatnonzero(times <= np.partition(times, n - 1)[n - 1])


def _batches_in_time(pipeline: PipelineParts, fits: Bools, limits: Limits) -> BatchRows:
    """Return the batches of a block with a plan that fits and whose pipeline alone is in time.

    `fits` is of the size of the block. All other plans are too slow for `limits` whatever their
    sharding: neither among the best nor rivals, nor counted as faster.
    """
    limit_s = max(limits.last_s, limits.rivals_s, limits.rival_s)
    least = np.minimum(pipeline.flush_s, pipeline.least_flush_s)
    options = np.broadcast_to(least, (1, *fits.shape[1:]))[0]
    in_time = fits.any(axis=0) & (options <= limit_s)
    return np.flatnonzero(in_time.any(axis=0))


def _fastest_shardings(block: PlanBlock, outside_s: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Return the fastest sharding of each kind, and its time outside the pipeline.

    A kind is a ZeRO stage with the optimizer on the device or on the host: the latter is slower
    and takes less memory, so neither stands for the other. Both results are
    `(n_kinds, n_options, n_batches)`. Of equally fast ones the one with the fewest copies, and
    without a second copy of the weights, is taken: it needs least memory.
    """
    used = block.shardings.take(block.sharding[:, 0, 0].astype(np.intp))
    rows, times = [], []
    for kind in sorted({*zip(used.zero.tolist(), used.optimizer_offload.tolist(), strict=True)}):
        own = np.flatnonzero((used.zero == kind[0]) & (used.optimizer_offload == kind[1]))
        own = own[np.lexsort((used.hpz[own], used.copies[own]))]
        one = outside_s[own]
        fastest = one.argmin(axis=0)
        rows.append(own[fastest])
        times.append(np.take_along_axis(one, fastest[None], axis=0)[0])
    return np.array(rows), np.array(times)
