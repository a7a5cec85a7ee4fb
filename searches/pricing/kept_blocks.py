"""Plans priced once for searches that differ in the memory of a device alone.

The shapes of all such searches are cut into chunks, and the batches of a chunk, in the order of
their lower bounds, into slices. A batch is priced when the first search needs it: neither the
times of its plans nor the memory that they need hang on how much there is, so that for the next
search nothing but a comparison is left.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.layers.layer_grid import LayerGrid
from costmodels.plans import PlanBlock, ShapeTable
from costmodels.problem import Problem
from costmodels.schedule.stages import StageSplits, n_kinds
from costmodels.step import least_peak_bytes, peak_bytes, step_parts
from searches.pricing.shape_tables import BLOCK_CELLS, ShapeTables, tables_of
from searches.pricing.shared_work import shared
from searches.rules import Context, fits_host_with_activations
from searches.space.free_axes import FreeAxes
from searches.space.plan_blocks import BatchBounds, LegalBlock, plan_blocks
from searches.space.plan_masks import Masks
from searches.space.plan_space import PlanSpace

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = NDArray[np.intp]

CHUNK_SHAPES = 128
"""Shapes whose terms are computed together."""
SLICE_BATCHES = 512
"""Batches that are priced together: some 100,000 plans, 10 ms."""
MORE_MEMORY = 1.5
"""Batches are priced with those that need up to so many times the memory: for the next search."""


class PricedBlock(NamedTuple):
    """A block of plans with what each takes; of the size of the block or broadcast to it."""

    block: LegalBlock
    peaks: Floats
    """Memory of the fullest device, bytes; inf for plans that are not legal."""
    flush_s: Floats
    """As in `StepParts`."""
    least_flush_s: Floats
    outside_s: Floats

    def of_batches(self, batches: Rows) -> "PricedBlock":
        """Return some of the batches of the block."""
        n = len(self.block.mbs)
        if len(batches) == n:
            return self
        columns = (
            x[..., batches] if x.shape[-1] == n else x
            for x in (self.peaks, self.flush_s, self.least_flush_s, self.outside_s)
        )
        return PricedBlock(self.block.of_batches(batches), *columns)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some shapes of any memory with their plans."""

    key: Hashable
    """Of everything that its prices hang on."""
    shapes: ShapeTable
    least_s: Floats
    """`shards.batch_bounds_s`."""
    rows: Rows
    """Where the shapes are among those of any memory."""
    slice_of: Ints
    """Slice of each batch, `(n_shapes, n_mbs, n_modes)`; -1 where it has no plan."""
    lowest_s: Floats
    """Least bound of each slice, ascending."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """All shapes of any memory, each in one chunk."""

    chunks: tuple[Chunk, ...]
    plans: PlanSpace
    chunk_of: Rows
    """Chunk of each shape, and its row there."""
    row_of: Rows


@dataclass(frozen=True, slots=True)
class OwnShapes:
    """The shapes of a chunk that one search has."""

    chunk: Chunk
    rows: Rows
    """Where they are in the chunk, ascending."""
    plans: PlanSpace
    """Of the shapes of any memory."""


def cut_into_chunks(
    key: Hashable, problem: Problem, shapes: ShapeTable, least_s: Floats, plans: PlanSpace
) -> Chunks:
    """Return shapes in chunks of equally many kinds of rank, the most promising ones together."""
    splits = StageSplits(shapes.pp, shapes.vpp, shapes.split, shapes.splits, shapes.placement)
    kinds = n_kinds(problem.shape.layers, splits)
    order = np.lexsort((least_s.min(axis=(1, 2), initial=np.inf), kinds))
    ends = np.flatnonzero(np.diff(kinds[order])) + 1
    parts = [
        alike[start : start + CHUNK_SHAPES]
        for alike in np.split(order, ends)
        for start in range(0, len(alike), CHUNK_SHAPES)
    ]
    chunk_of, row_of = np.zeros((2, len(shapes)), dtype=np.intp)
    chunks = []
    for i, rows in enumerate(parts):
        chunk_of[rows], row_of[rows] = i, np.arange(len(rows))
        own_s = least_s[rows]
        slice_of, lowest_s = _slices(own_s, plans.n_legal[rows] > 0)
        chunks.append(Chunk((key, i), shapes.take(rows), own_s, rows, slice_of, lowest_s))
    return Chunks(tuple(chunks), plans, chunk_of, row_of)


def _slices(least_s: Floats, has_plans: Bools) -> tuple[Ints, Floats]:
    """Return the slice of each batch, and the least bound of each slice."""
    batches = np.flatnonzero(has_plans)
    batches = batches[np.argsort(least_s.flat[batches], kind="stable")]
    slice_of = np.full(least_s.size, -1, dtype=np.int64)
    slice_of[batches] = np.arange(len(batches)) // SLICE_BATCHES
    return slice_of.reshape(least_s.shape), least_s.flat[batches[::SLICE_BATCHES]]


STAGES = ((0, 1), (2, 3))
"""ZeRO stages whose plans stand in blocks of their own (`plan_blocks`)."""


class PricedSlice(NamedTuple):
    """What is known of the plans of a slice with some ZeRO stages."""

    batches: Rows
    """Flat positions in `Chunk.least_s`, ascending."""
    least_bytes: Floats
    """What the plans of each batch need at least."""
    is_priced: Bools
    blocks: tuple[PricedBlock, ...] = ()
    """Of the batches that are priced."""


def priced_blocks(
    context: Context, own: OwnShapes, grid: LayerGrid | None, limit_s: Callable[[], float]
) -> Iterator[tuple[PricedBlock, Rows]]:
    """Yield priced blocks, and which of their batches are of a search and within its limit.

    Every plan of a search that may fit, and whose bound is within the limit, is in exactly one of
    them. What no search has needed is not priced.
    """
    chunk, is_own = own.chunk, np.zeros(len(own.chunk.shapes), dtype=bool)
    is_own[own.rows] = True
    for k, lowest_s in enumerate(chunk.lowest_s.tolist()):
        limit = limit_s()
        if lowest_s > limit:
            return
        in_time = np.isfinite(chunk.least_s) & (chunk.least_s <= limit)
        inside = is_own[:, None, None] & (chunk.slice_of == k) & in_time
        if not inside.any():
            continue
        for stages in STAGES:
            for priced in _priced(_SliceWork(context, own, grid, k, stages), inside):
                block = priced.block
                batches = np.flatnonzero(inside[block.block.shape[0, 0], block.mbs, block.mode])
                if len(batches):
                    yield priced, batches


@dataclass(frozen=True, slots=True)
class _SliceWork:
    """A slice of a chunk with some ZeRO stages, and what its prices are made of."""

    context: Context
    own: OwnShapes
    grid: LayerGrid | None
    number: int
    stages: tuple[int, ...]

    @property
    def chunk(self) -> Chunk:
        """The chunk of the slice."""
        return self.own.chunk

    @property
    def key(self) -> Hashable:
        """Where searches share it."""
        return self.chunk.key, self.number, self.stages

    def tables(self) -> tuple[ShapeTables, FreeAxes, Masks]:
        """Return the terms of the chunk, its axes, and its masks over the stages alone."""

        def make() -> tuple[ShapeTables, FreeAxes, Masks]:
            axes, masks = self.own.plans.used(chunk.rows)
            return tables_of(context, chunk.shapes, axes, self.grid), axes, masks

        context, chunk = self.context, self.chunk
        return shared(context.shared, lambda: (chunk.key, "tables"), make)

    def blocks(
        self, inside: Bools, may_fit: Callable[[PlanBlock, Bools, Bools], Bools] | None = None
    ) -> Iterator[LegalBlock]:
        """Yield the plans of some batches as blocks, in the order of their positions."""
        _, axes, masks = self.tables()
        has_stage = np.isin(axes.shardings.zero, self.stages)
        coupled = masks.coupled
        if coupled is not None:
            bits = coupled.bits & np.where(has_stage, 255, 0).astype(np.uint8)[:, None]
            coupled = replace(coupled, bits=bits)
        masks = replace(masks, sharding=masks.sharding & has_stage, coupled=coupled)
        bounds = BatchBounds(np.where(inside, 0.0, np.inf), lambda: 0.0, may_fit)
        shapes = self.chunk.shapes
        yield from plan_blocks(self.context, shapes, axes, masks, BLOCK_CELLS, bounds)


def _priced(one: _SliceWork, inside: Bools) -> tuple[PricedBlock, ...]:
    """Return blocks with all plans of some batches of a slice that may fit."""
    context, work = one.context, one.context.shared
    assert work is not None
    known: PricedSlice = work.get(one.key, lambda: _unpriced(one))
    usable = context.problem.pool.usable_bytes
    needed = inside.flat[known.batches] & (known.least_bytes <= usable) & ~known.is_priced
    if not needed.any():
        return known.blocks
    chunk_s = one.chunk.least_s.flat[known.batches]
    limit_s = chunk_s[needed].max()
    needed = (chunk_s <= limit_s) & (known.least_bytes <= usable * MORE_MEMORY) & ~known.is_priced
    wanted = np.zeros(inside.shape, dtype=bool)
    wanted.flat[known.batches[needed]] = True
    tables, more = one.tables()[0], []
    for block in one.blocks(wanted):
        rows, legal = tables.join(block.block), block.legal
        if block.block.activation_offload_layers.any():
            legal = legal & fits_host_with_activations(rows)
        peaks, parts = np.where(legal, peak_bytes(rows), np.inf), step_parts(rows)
        outside = np.array(np.broadcast_to(parts.outside_s, peaks.shape))
        more.append(PricedBlock(block, peaks, parts.flush_s, parts.least_flush_s, outside))
    blocks = (*known.blocks, *more)
    work.keep(one.key, known._replace(is_priced=known.is_priced | needed, blocks=blocks))
    return blocks


def _unpriced(one: _SliceWork) -> PricedSlice:
    """Return a slice before any of its plans is priced."""
    tables, axes, masks = one.tables()
    rows = np.flatnonzero(np.isin(axes.shardings.zero, one.stages) & masks.shardings_used)
    if not len(rows):
        return PricedSlice(np.zeros(0, dtype=np.intp), np.zeros(0), np.zeros(0, dtype=bool))
    has_mode = masks.of_stages(rows)[0][:, None, :] & masks.batches[:, :, None]
    inside = has_mode & (one.chunk.slice_of == one.number)
    parts: list[Floats] = []

    def note(block: PlanBlock, shardings: Bools, options: Bools) -> Bools:
        parts.append(least_peak_bytes(tables.join(block), shardings, options))
        return np.zeros(len(parts[-1]), dtype=bool)

    assert not any(True for _ in one.blocks(inside, note))
    batches = np.flatnonzero(inside)
    least_bytes = np.concatenate(parts) if parts else np.zeros(0)
    assert len(least_bytes) == len(batches)
    return PricedSlice(batches, least_bytes, np.zeros(len(batches), dtype=bool))
