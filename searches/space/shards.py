"""Shapes with bounds on what their plans take, cut into shards, which executors spread."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.layers.layer_grid import LayerGrid, layer_grid
from costmodels.layers.layer_terms import LayerTable
from costmodels.modes import without_graphs
from costmodels.plans import ShapeTable
from costmodels.schedule.stages import StageSplits, n_kinds
from costmodels.step import least_batch_times
from searches.mode_rules import legal_modes
from searches.pricing.kept_blocks import Chunks, OwnShapes, cut_into_chunks
from searches.pricing.limits import Limits
from searches.pricing.shared_work import (
    SharedWork,
    options_key,
    rates_key,
    shapes_key,
    shared,
)
from searches.rules import Context, offers_activation_offload, offers_offload
from searches.space.free_axes import batch_sizes
from searches.space.plan_rules import batch_rules, legal_batches
from searches.space.plan_space import PlanSpace, plan_space
from searches.space.shape_space import AnyMemory

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.intp]

SHARD_SHAPES = 512
"""Shapes of one shard, the unit that executors spread."""
STOPPABLE_SHAPES = 64
"""Shapes of one shard where the search may be stopped: some 15 ms of work between two looks."""
FIRST_SHAPES = 96
"""Most shapes that are searched before all others, to know early what a good plan takes."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A slice of the shapes, with everything that pricing them needs."""

    context: Context
    shapes: ShapeTable
    least_s: Floats
    """What the plans of each shape, mbs and sp take at least, `(n_shapes, n_mbs, 2)`."""
    limits: Limits
    nearest: bool = False
    """Whether the plan that misses the memory by least is asked for: then none is left out for
    its memory before it is priced."""
    grid: LayerGrid | None = field(default=None, compare=False)
    """Layer terms of all shards' splits. Not sent along: computing them anew is quicker."""
    plans: PlanSpace | None = field(default=None, compare=False)
    """The legal plans of the shapes, where they are known. Not sent along either."""
    own: OwnShapes | None = field(default=None, compare=False)
    """Where other searches have priced the shapes, or will. Not sent along either."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Shard, (self.context, self.shapes, self.least_s, self.limits, self.nearest)


def open_batches(shard: Shard) -> Bools:
    """Return which batches hold plans that the bounds leave, by shape, mbs and sp."""
    options, plans = shard.context.options, shard.plans
    legal = (plans or plan_space(shard.context, shard.shapes)).n_legal > 0
    if not options.bound or options.front:
        return legal
    # Those without a bound are left out even where no limit is known: whether one is hangs on the
    # order of shards, and on what other searches found.
    bounded = np.isfinite(shard.least_s)
    return np.asarray(legal & bounded & (shard.least_s <= shard.limits.least_s))


def count_plans(shard: Shard) -> int:
    """Return the legal plans of a shard that the bounds leave; a fiftieth of pricing them."""
    plans = shard.plans or plan_space(shard.context, shard.shapes)
    return int(plans.n_legal[open_batches(replace(shard, plans=plans))].sum())


@dataclass(frozen=True, slots=True)
class Prepared:
    """The shapes of a search with what is known of them before any plan is priced."""

    context: Context
    shapes: ShapeTable
    grid: LayerGrid | None
    """Layer terms of all shapes; None where there is no micro-batch."""
    plans: PlanSpace | None
    """None where there is no shape."""
    least_s: Floats
    """`batch_bounds_s`."""
    lowest_s: Floats
    """The least of each shape."""
    first: Bools
    """Which shapes are searched before all others."""
    chunks: Chunks | None = None
    """The shapes of any memory, where searches share their prices, ..."""
    chunk_rows: Rows | None = None
    """... and which of them these are."""

    def shards(self, rows: Rows, n_shapes: int, limits: Limits) -> list[Shard]:
        """Cut some of the shapes into shards of `n_shapes`, the most promising shape's first.

        Shapes with equally many kinds of rank go together where there are many: the kinds are a
        dimension of the cost model's arrays, so a shard of plans without a pipeline costs a
        fraction of one whose ranks are of four kinds.
        """
        shapes, layers = self.shapes, self.context.problem.shape.layers
        if self.plans is None:
            return []
        if self.chunks is not None and self.chunk_rows is not None:
            return self._of_chunks(rows, self.chunks, self.chunk_rows, limits)
        together = [rows]
        if len(rows) > FIRST_SHAPES and self.lowest_s[rows].min() <= limits.least_s:
            some = shapes.take(rows)
            columns = (some.pp, some.vpp, some.split, some.splits, some.placement)
            kinds = n_kinds(layers, StageSplits(*columns))
            together = [rows[kinds == count] for count in np.unique(kinds)]
        shards = []
        for alike in together:
            # Blocks of shapes with equally many replicas have the same sharding groups.
            ordered = alike[np.argsort(shapes.replicas[alike], kind="stable")]
            for i in range(0, len(ordered), n_shapes):
                part = ordered[i : i + n_shapes]
                one = shapes.take(part), self.least_s[part], limits
                shards.append(
                    Shard(self.context, *one, grid=self.grid, plans=self.plans.take(part))
                )
        if self.context.options.bound:
            shards.sort(key=lambda shard: float(shard.least_s.min(initial=np.inf)))
        return shards

    def _of_chunks(
        self, rows: Rows, chunks: Chunks, chunk_rows: Rows, limits: Limits
    ) -> list[Shard]:
        """Return some of the shapes as shards, those of a chunk together."""
        assert self.plans is not None
        chunk_of, shards = chunks.chunk_of[chunk_rows[rows]], []
        for i in np.unique(chunk_of).tolist():
            part = rows[chunk_of == i]
            rows_there = chunks.row_of[chunk_rows[part]]
            own = OwnShapes(chunks.chunks[i], rows_there, chunks.plans)
            one = Shard(self.context, self.shapes.take(part), self.least_s[part], limits)
            shards.append(replace(one, grid=self.grid, plans=self.plans.take(part), own=own))
        shards.sort(key=lambda shard: float(shard.least_s.min(initial=np.inf)))
        return shards

    def rest(self, n_shapes: int, limits: Limits) -> list[Shard]:
        """Cut the shapes that do not come first, those that the limits leave before the others."""
        rows, options = np.flatnonzero(~self.first), self.context.options
        if not options.bound or options.front:
            return self.shards(rows, n_shapes, limits)
        left = self.lowest_s[rows] <= limits.least_s
        plain = replace(self, chunks=None)
        hopeless = plain.shards(rows[~left], max(n_shapes, len(rows)), limits)
        return self.shards(rows[left], n_shapes, limits) + hopeless


def prepare(
    context: Context,
    shapes: ShapeTable,
    grid: LayerGrid | None = None,
    below_s: float = float("inf"),
    source: AnyMemory | None = None,
) -> Prepared:
    """Return the shapes of a search with bounds; `grid` holds their layer terms, if known.

    Shapes without a plan that may take less than `below_s` are left out. `source` is where the
    shapes come from, if searches with other memory share it.
    """
    options, sizes = context.options, batch_sizes(context)
    grid = grid or context.layer_grid
    if grid is not None and not grid.covers(shapes):
        grid = None
    if grid is None and len(sizes) and len(shapes):
        grid = layer_grid(context.problem, shapes, sizes, options.mode_table)
    if source is not None and not _comes_again(context, source.shapes):
        source = None
    least_s = _bounds_s(context, shapes, grid, source)
    lowest_s = least_s.min(axis=(1, 2), initial=np.inf)
    first = np.zeros(len(shapes), dtype=bool)
    if options.bound and len(shapes):
        first = _promising(shapes, lowest_s)
    if np.isfinite(below_s):
        rows = np.flatnonzero(lowest_s < below_s)
        shapes, least_s = shapes.take(rows), least_s[rows]
        lowest_s, first = lowest_s[rows], first[rows]
        source = None if source is None else source.take(rows)
    if not len(shapes):
        return Prepared(context, shapes, grid, None, least_s, lowest_s, first)
    if context.shared is None or source is None or _offers_any_offload(context):
        plans = plan_space(context, shapes)
        return Prepared(context, shapes, grid, plans, least_s, lowest_s, first)
    plans, chunks = _shared_plans(context, context.shared, source.shapes, grid)
    plans = plans.take(source.rows)
    return Prepared(context, shapes, grid, plans, least_s, lowest_s, first, chunks, source.rows)


def _bounds_s(
    context: Context, shapes: ShapeTable, grid: LayerGrid | None, source: AnyMemory | None
) -> Floats:
    """Return `batch_bounds_s` of some shapes; of all that they come from, what searches share."""
    every = shapes if source is None else source.shapes
    known = grid if grid is not None and grid.covers(every) else None
    least_s = shared(
        context.shared,
        lambda: (
            "bounds",
            rates_key(context.problem),
            options_key(context.options),
            shapes_key(every),
        ),
        lambda: batch_bounds_s(context, every, known),
    )
    return least_s if source is None else least_s[source.rows]


def _comes_again(context: Context, every: ShapeTable) -> bool:
    """Tell whether the same search was asked for before, of another memory or this one.

    What serves any memory is made from the second on: it is more than one search needs.
    """
    work = context.shared
    if work is None:
        return False
    key = ("asked", rates_key(context.problem), options_key(context.options), shapes_key(every))
    before = work.look(key) is not None
    work.keep(key, True)
    return before


def _offers_any_offload(context: Context) -> bool:
    """Tell whether plans with anything on the host are looked at: keys hold nothing of it."""
    return offers_offload(context) or offers_activation_offload(context)


def _shared_plans(
    context: Context, work: SharedWork, every: ShapeTable, grid: LayerGrid | None
) -> tuple[PlanSpace, Chunks | None]:
    """Return the plans of the shapes of any memory, and their chunks.

    No chunks where every legal plan is priced.
    """
    key = rates_key(context.problem), options_key(context.options), shapes_key(every)
    plans = work.get(("plans", *key), lambda: plan_space(context, every))
    if not context.options.bound or context.options.front:
        return plans, None
    least_s = _bounds_s(context, every, grid, None)
    return plans, work.get(
        ("chunks", *key),
        lambda: cut_into_chunks(("chunk", *key), context.problem, every, least_s, plans),
    )


def make_shards(
    context: Context,
    shapes: ShapeTable,
    below_s: float = float("inf"),
    grid: LayerGrid | None = None,
    n_shapes: int = 0,
) -> list[Shard]:
    """Cut the shapes into shards of `n_shapes` (`SHARD_SHAPES`), the most promising shape first.

    Up to `FIRST_SHAPES` promising ones come before all others, so that what they take is known
    when the rest is looked at. Shapes without a plan that may take less than `below_s` are
    left out. `grid` holds the layer terms of all shapes, if they are known.
    """
    if not len(shapes):
        return []
    limits, n_shapes = Limits(rival_s=context.options.rival_s), n_shapes or SHARD_SHAPES
    result = prepare(context, shapes, grid, below_s)
    parts = (np.flatnonzero(result.first), np.flatnonzero(~result.first))
    return [shard for rows in parts for shard in result.shards(rows, n_shapes, limits)]


def _promising(shapes: ShapeTable, lowest_s: Floats) -> Bools:
    """Return which shapes are looked at first: the quickest by bound of each (tp, pp, cp, ep).

    Memory decides between those degrees, and no bound on time knows it: the shapes with the lowest
    bounds of all often have nothing that fits.
    """
    order = np.argsort(lowest_s, kind="stable")
    degrees = np.stack((shapes.tp, shapes.pp, shapes.cp, shapes.ep), axis=1)[order]
    _, firsts = np.unique(degrees, axis=0, return_index=True)
    promising = np.zeros(len(shapes), dtype=bool)
    promising[order[np.sort(firsts)[:FIRST_SHAPES]]] = True
    return promising


def _useless_graphs(layers: LayerTable, shapes: ShapeTable, mbs: Ints) -> Bools:
    """Return batches whose layers take no less in CUDA graphs than the same mode without.

    `(n_shapes, n_mbs, n_modes)`. Their plans take as long and hold more memory (the graphs' pool)
    than those without graphs, so they are left out as too slow.
    """
    table = layers.modes
    rows = table.rows(np.arange(len(table), dtype=np.int32))
    plain = without_graphs(table)
    useless = np.zeros((len(layers.terms.kept_bytes) // len(table), len(table)), dtype=bool)
    useless |= (plain >= 0) & (rows.codes("cuda_graph") > 0)
    for kind in layers.terms.of_kinds:
        for times in (kind.layer.forward_s, kind.layer.backward_s, kind.recompute_full_s):
            by_mode = times.reshape(-1, len(table))
            useless &= by_mode >= by_mode[:, np.maximum(plain, 0)]
    of_split = useless.reshape(-1, layers.n_mbs, len(table))
    return of_split[layers.split_code[: len(shapes)]][:, layers.mbs_code[mbs]]


def batch_bounds_s(context: Context, shapes: ShapeTable, grid: LayerGrid | None = None) -> Floats:
    """Return what plans of each shape, mbs and mode take at least, `(n_shapes, n_mbs, n_modes)`.

    inf where no plan has these micro-batches: an empty batch would seem quick, and its shape the
    most promising one.
    """
    mbs, modes = batch_sizes(context), context.options.mode_table
    if not len(mbs):
        return np.zeros((len(shapes), 0, len(modes)))
    grid = grid or layer_grid(context.problem, shapes, mbs, modes)
    layers = grid.table(shapes, np.zeros(1, dtype=np.int32))
    legal = legal_batches(batch_rules(context, shapes, mbs))
    wanted = legal[:, :, None] & legal_modes(context.problem, context.options, shapes)[:, None]
    if modes.rows(np.arange(len(modes), dtype=np.int32)).uses("cuda_graph"):
        wanted &= ~_useless_graphs(layers, shapes, mbs)
    return least_batch_times(context.problem, shapes, layers, mbs, wanted)
