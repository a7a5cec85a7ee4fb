"""The search: legal shapes, free axes, memory, time, the best few by the exact pipeline time."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.breakdown import exact_step_times
from costmodels.layer_grid import LayerGrid, known_layers, layer_grid
from costmodels.layer_terms import LayerTable, layer_table
from costmodels.plans import Layout, PlanBlock, PlanTable, ShapeTable
from costmodels.problem import Problem
from costmodels.shape_terms import ShapeTerms, shape_terms
from costmodels.stages import n_kinds
from costmodels.step import (
    PipelineParts,
    join,
    least_batch_times,
    least_peak_bytes,
    peak_bytes,
    pipeline_parts,
    score,
    step_parts,
)
from searches.candidates import ByDegrees, Candidate, closed_form_order, layout_key
from searches.executors import SHARDS_PER_TASK, Executor, SerialExecutor
from searches.near_misses import nearest_misses
from searches.objectives import Front, merged_front
from searches.plan_space import (
    LegalBlock,
    PlanSpace,
    batch_rules,
    batch_sizes,
    legal_batches,
    plan_blocks,
    plan_space,
)
from searches.rules import (
    Context,
    fits_host_with_activations,
    offers_activation_offload,
    offers_offload,
)
from searches.shape_space import ShapeSpace, legal_shapes, space_key
from searches.shared_work import job_key, n_bytes, options_key, rates_key, shapes_key, shared
from searches.splits import (
    MAX_MISSES,
    Improved,
    ShapeSplit,
    SplitPlan,
    improve_splits,
    splits_that_fit,
    splits_wanted,
)

Floats = NDArray[np.float64]

Counts = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.intp]

RIVAL_MARGIN = 1.05
"""Plans whose lower bound is less than this share of the best closed form are kept until the exact
times are known: the exact time of the first is seldom further above its closed form."""
BLOCK_CELLS = 131072
"""Plans priced at a time: one kind of rank's columns of them, a megabyte each, stay in the cache,
and the innermost loops are long."""
SHARD_SHAPES = 512
"""Shapes of one shard, the unit that executors spread."""
STOPPABLE_SHAPES = 64
"""Shapes of one shard where the search may be stopped: some 15 ms of work between two looks."""
FIRST_SHAPES = 96
"""Most shapes that are searched before all others, to know early what a good plan takes."""


MOST_KEPT = 0.8
"""Share of a block's batches from which on taking them out takes longer than it saves."""
PRICED_SHARE = 0.1
"""Of the plans that the bounds leave once the first shapes are known: the limits sink further on
the way, and whole batches do not fit."""


@dataclass(frozen=True, slots=True)
class Seldom:
    """A `stop` whose limit is long: asked between shards of full size, 0.1 s apart or so."""

    stop: Callable[[], bool]

    def __call__(self) -> bool:
        """Return whether the search is to end."""
        return self.stop()


@dataclass(frozen=True, slots=True)
class Shard:
    """A slice of the shapes, with everything that pricing them needs."""

    context: Context
    shapes: ShapeTable
    least_s: Floats
    """What the plans of each shape, mbs and sp take at least, `(n_shapes, n_mbs, 2)`."""
    known: "Limits"
    nearest: bool = False
    """Whether the plan that misses the memory by least is asked for: then none is left out for
    its memory before it is priced."""
    grid: LayerGrid | None = field(default=None, compare=False)
    """Layer terms of all shards' splits. Not sent along: computing them anew is quicker."""
    plans: PlanSpace | None = field(default=None, compare=False)
    """The legal plans of the shapes, where they are known. Not sent along either."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Shard, (self.context, self.shapes, self.least_s, self.known, self.nearest)


@dataclass(frozen=True, slots=True)
class Limits:
    """Which plans matter still, given what has been found; seconds of a step."""

    last_s: float = float("inf")
    """Closed form of the last of the best: what takes longer is not among them."""
    first_s: float = float("inf")
    """Closed form of the best."""
    settled_s: float = 0.0
    """Plans that may take less than this by the exact recurrence are asked for."""
    rival_s: float = 0.0
    """Plans that the closed form prices below this are counted."""
    exact_s: float = float("inf")
    """Exact time from which on a plan is not asked for."""

    @property
    def rivals_s(self) -> float:
        """Lower bound below which a plan may turn out to be the first."""
        return max(self.settled_s, RIVAL_MARGIN * self.first_s)

    @property
    def least_s(self) -> float:
        """Lower bound above which no plan needs a price."""
        return min(max(self.last_s, self.rivals_s, self.rival_s), self.exact_s)

    def after(self, best: list[Candidate], n: int) -> "Limits":
        """Return the limits once `best` are found, in order; n are asked for."""
        first_s = best[0].closed_form_s if best else float("inf")
        last_s = best[n - 1].closed_form_s if len(best) >= n else float("inf")
        return replace(self, first_s=min(self.first_s, first_s), last_s=min(self.last_s, last_s))


@dataclass(frozen=True, slots=True)
class Batches:
    """The plans of each batch of a shard, a batch being a shape, mbs and sp; `(n_batches,)`."""

    least_s: Floats
    n_legal: Counts
    n_fit: Counts
    """0 where the batch was not priced."""

    def priced(self, limit_s: float) -> tuple[int, int]:
        """Return (legal, fitting) plans of the batches whose bound is no higher than a limit."""
        kept = self.least_s <= limit_s
        return int(self.n_legal[kept].sum()), int(self.n_fit[kept].sum())


@dataclass(frozen=True, slots=True)
class ShardAnswer:
    """What one shard found."""

    best: tuple[Candidate, ...]
    rivals: tuple[Candidate, ...]
    """Other plans whose lower bound is below that of a plan that may be the first."""
    closest: Candidate | None
    """The plan that misses the memory by least, where that is asked for and nothing fits."""
    n_candidates: int
    batches: Batches
    n_faster: int
    rejected: dict[str, int]
    front: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The ranked plans of a search and how it came to them."""

    finalists: tuple[Candidate, ...]
    """Best first, by exact step time."""
    n_shapes: int
    n_candidate_shapes: int
    n_candidates: int
    n_legal: int
    n_fit: int
    """Priced plans that fit."""
    n_excluded: int
    """Legal plans without a price: `bound_s` keeps them from being among the best."""
    bound_s: float
    """Every plan without a price takes longer than this, by closed form and by recurrence."""
    n_rivals: int
    """Plans besides the best whose lower bound is below the exact time of the first; all are
    priced exactly."""
    rejected_shapes: dict[str, int]
    rejected_plans: dict[str, int]
    closest: Candidate | None
    stopped: str = ""
    """`time limit` or `interrupted` when not all shards were priced."""
    shards: tuple[int, int] = field(default=(0, 0))
    """Shards priced and shards in all."""
    n_faster: int = 0
    """Plans that fit and that the closed form prices below `SearchOptions.rival_s`."""
    split_shapes: tuple[ShapeSplit, ...] = ()
    """Shapes of finalists whose layers were split unevenly, the most promising first."""
    n_misses: int = 0
    """Where no plan fits: shapes that were looked at for an uneven split that does."""
    n_hopeless: int = 0
    """Those of them of which it is proven that no split fits."""
    least_unseen_s: float = float("inf")
    """What every plan takes at least that was not looked at before the search was stopped."""

    @property
    def gap(self) -> float:
        """By how much the first may be slower than the true best, as a share; 0 when proven."""
        if not self.finalists or self.least_unseen_s >= self.finalists[0].step_s:
            return 0.0
        return self.finalists[0].step_s / max(self.least_unseen_s, 1e-12) - 1.0

    front: tuple[Candidate, ...] = ()
    """With `SearchOptions.front`: the plans that no other beats in both time and memory."""
    unsearched: tuple[ShapeTable, ...] = field(default=(), compare=False)
    """Shapes of the shards that were not priced, where the search was stopped."""

    @property
    def complete(self) -> bool:
        """Whether the whole space was priced."""
        return not self.stopped


def _exact_order(candidate: Candidate) -> tuple[object, ...]:
    return (candidate.step_s, candidate.peak_bytes, ByDegrees(candidate.layout))


def _best_rows(times: Floats, n: int) -> NDArray[np.intp]:
    """Return the rows of the n smallest times and of all ties with the last of them."""
    if len(times) <= n:
        return np.arange(len(times))
    return np.flatnonzero(times <= np.partition(times, n - 1)[n - 1])


@dataclass(frozen=True, slots=True)
class BlockAnswer:
    """What one block holds."""

    best: list[Candidate]
    rivals: list[Candidate]
    closest: Candidate | None
    n_fit: Counts
    """Fitting plans of each batch."""
    n_faster: int


def price_block(
    problem: Problem,
    terms: ShapeTerms,
    layers: LayerTable,
    found: LegalBlock,
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
    rows, n_layers = join(problem, terms, found.block, layers), problem.shape.layers
    peaks = peak_bytes(rows)
    legal = found.legal
    if found.block.activation_offload_layers.any():
        legal = legal & fits_host_with_activations(rows)
    fits = legal & (peaks <= problem.pool.usable_bytes)
    n_fit = np.asarray(np.count_nonzero(fits, axis=(0, 1)), dtype=np.int64)
    if not n_fit.any():
        cell = int(np.argmin(np.where(legal if legal.any() else found.legal, peaks, np.inf)))
        table = found.block.rows(np.array([cell]))
        closest = Candidate(table.layout(0, n_layers), 0.0, float(peaks.flat[cell]))
        return BlockAnswer([], [], closest, n_fit, 0)
    pipeline = pipeline_parts(rows)
    if front is None:
        kept = _batches_in_time(pipeline, fits, limits)
        if not len(kept):
            return BlockAnswer([], [], None, n_fit, 0)
        if len(kept) < MOST_KEPT * len(n_fit):
            found, peaks, fits = found.of_batches(kept), peaks[..., kept], fits[..., kept]
            rows = join(problem, terms, found.block, layers)
            pipeline = pipeline_parts(rows)
    parts = step_parts(rows, pipeline)
    outside = np.where(fits, parts.outside_s, np.inf)
    if front is not None:
        front.add(found.block, n_layers, (parts.flush_s + outside).ravel(), peaks.ravel())
    n_faster = 0
    if limits.rival_s:
        n_faster = int(np.count_nonzero(parts.flush_s + outside < limits.rival_s))
    sharding, outside = _fastest_shardings(found.block, outside)
    closed = (parts.flush_s + outside).ravel()
    least = (parts.least_flush_s + outside).ravel()
    quick = np.flatnonzero(closed <= limits.last_s)
    n_any = int(np.count_nonzero(outside < np.inf))
    best = quick[_best_rows(closed[quick], min(n, n_any))]
    first_s = min(limits.first_s, float(closed.min()))
    rivals = np.flatnonzero(least < replace(limits, first_s=first_s).rivals_s)
    cells = np.unique(np.concatenate([best, rivals]))
    cells = cells[np.isfinite(closed[cells])]
    at = np.unravel_index(cells, outside.shape)
    chosen = np.ravel_multi_index((sharding[at], at[1], at[2]), found.block.size)
    table = found.block.rows(chosen)
    priced = {
        cell: Candidate(
            table.layout(i, n_layers),
            float(closed[cell]),
            float(peaks.flat[chosen[i]]),
            least_s=float(least[cell]),
        )
        for i, cell in enumerate(cells.tolist())
    }
    return BlockAnswer(
        sorted((priced[x] for x in best.tolist() if x in priced), key=closed_form_order)[:n],
        [priced[x] for x in rivals.tolist() if x in priced],
        None,
        n_fit,
        n_faster,
    )


def _batches_in_time(pipeline: PipelineParts, fits: Bools, limits: Limits) -> Rows:
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
        mine = np.flatnonzero((used.zero == kind[0]) & (used.optimizer_offload == kind[1]))
        mine = mine[np.lexsort((used.hpz[mine], used.copies[mine]))]
        one = outside_s[mine]
        fastest = one.argmin(axis=0)
        rows.append(mine[fastest])
        times.append(np.take_along_axis(one, fastest[None], axis=0)[0])
    return np.array(rows), np.array(times)


def search_shard(shard: Shard) -> ShardAnswer:
    """Price the legal plans of a shard's shapes that may be among the best."""
    context, shapes = shard.context, shard.shapes
    plans = shard.plans or plan_space(context, shapes)
    n_legal, n_fit = plans.n_legal, np.zeros(shard.least_s.shape, dtype=np.int64)
    best: list[Candidate] = []
    rivals: list[Candidate] = []
    closest: Candidate | None = None
    front = Front() if context.options.front else None
    n, n_faster, limits = context.options.n_finalists, 0, shard.known
    bounded = context.options.bound and front is None
    # Of shapes whose bounds are all too high nothing but the counts is needed.
    rows = np.flatnonzero(_open_batches(replace(shard, plans=plans)).any(axis=(1, 2)))
    if len(rows):
        shapes, least_s = shapes.take(rows), shard.least_s[rows]
        axes, masks = plans.used(rows)
        terms = shape_terms(context.problem, shapes, axes.shardings)
        if shard.grid:
            layers = shard.grid.table(shapes, axes.recompute_modules)
        else:
            columns = (axes.mbs, axes.recompute_modules, context.options.n_sp)
            layers = layer_table(context.problem, shapes, *columns)

        def may_fit(block: PlanBlock, shardings: Bools, options: Bools) -> Bools:
            rows = join(context.problem, terms, block, layers)
            usable = context.problem.pool.usable_bytes
            return least_peak_bytes(rows, shardings, options) <= usable

        def limit_s() -> float:
            return limits.least_s if bounded else float("inf")

        for block in plan_blocks(
            context,
            shapes,
            axes,
            masks,
            BLOCK_CELLS,
            least_s if bounded else None,
            limit_s,
            None if shard.nearest else may_fit,
        ):
            found = price_block(context.problem, terms, layers, block, n, limits, front)
            batch = rows[block.block.shape[0, 0]], block.mbs, block.block.sp[0, 0]
            np.add.at(n_fit, batch, found.n_fit)
            n_faster += found.n_faster
            best = sorted(best + found.best, key=closed_form_order)[:n]
            limits = limits.after(best, n)
            rivals = [c for c in rivals + found.rivals if c.least_s < limits.rivals_s]
            miss = found.closest
            if miss and (closest is None or miss.peak_bytes < closest.peak_bytes):
                closest = miss
    members = tuple(front.members) if front is not None else ()
    kept = n_legal > 0
    batches = Batches(shard.least_s[kept], n_legal[kept], n_fit[kept])
    counts = {code: int(count.sum()) for code, count in plans.rejected.items()}
    return ShardAnswer(
        tuple(best),
        tuple(rivals),
        closest,
        int(plans.n_candidates.sum()),
        batches,
        n_faster,
        {code: count for code, count in counts.items() if count},
        members,
    )


def _open_batches(shard: Shard) -> Bools:
    """Return which batches hold plans that the bounds leave, by shape, mbs and sp."""
    options, plans = shard.context.options, shard.plans
    legal = (plans or plan_space(shard.context, shard.shapes)).n_legal > 0
    if not options.bound or options.front:
        return legal
    return np.asarray(legal & (shard.least_s <= shard.known.least_s))


def count_plans(shard: Shard) -> int:
    """Return the legal plans of a shard that the bounds leave; a fiftieth of pricing them."""
    plans = shard.plans or plan_space(shard.context, shard.shapes)
    return int(plans.n_legal[_open_batches(replace(shard, plans=plans))].sum())


def exact_step_s(
    problem: Problem, layouts: list[Layout], grid: LayerGrid | None = None
) -> list[float]:
    """Return the step time of each layout with the pipeline simulated, seconds.

    The closed form's pipeline part is exchanged for the recurrence; all other terms are the same.
    `grid` holds layer terms, if they are known.
    """
    if not layouts:
        return []
    table = PlanTable.from_layouts(layouts)
    terms = shape_terms(problem, table.shapes, table.shardings)
    return exact_step_times(join(problem, terms, table, known_layers(grid, table)), layouts)


def price_layouts(
    problem: Problem, layouts: list[Layout], grid: LayerGrid | None = None
) -> list[Candidate]:
    """Return layouts with their closed form and memory; the recurrence is not run.

    `grid` holds layer terms, if they are known.
    """
    if not layouts:
        return []
    table = PlanTable.from_layouts(layouts)
    terms = shape_terms(problem, table.shapes, table.shardings)
    scores = score(problem, terms, table, known_layers(grid, table))
    rows = zip(layouts, scores.step_s.tolist(), scores.peak_bytes.tolist(), strict=True)
    return [Candidate(*row) for row in rows]


def peaks_of_layouts(problem: Problem, layouts: list[Layout]) -> list[float]:
    """Return the peak memory of each layout, bytes."""
    table = PlanTable.from_layouts(layouts)
    rows = join(problem, shape_terms(problem, table.shapes, table.shardings), table)
    found: list[float] = peak_bytes(rows).tolist()
    return found


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

    def shards(self, rows: Rows, n_shapes: int, limits: Limits) -> list[Shard]:
        """Cut some of the shapes into shards of `n_shapes`, the most promising shape's first.

        Shapes with equally many kinds of rank go together where there are many: the kinds are a
        dimension of the cost model's arrays, so a shard of plans without a pipeline costs a
        fraction of one whose ranks are of four kinds.
        """
        shapes, layers = self.shapes, self.context.problem.shape.layers
        if self.plans is None:
            return []
        together = [rows]
        if len(rows) > FIRST_SHAPES and self.lowest_s[rows].min() <= limits.least_s:
            some = shapes.take(rows)
            columns = (some.pp, some.vpp, some.split, some.placement, some.splits)
            kinds = n_kinds(layers, *columns)
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

    def rest(self, n_shapes: int, limits: Limits) -> list[Shard]:
        """Cut the shapes that do not come first, those that the limits leave before the others."""
        rows, options = np.flatnonzero(~self.first), self.context.options
        if not options.bound or options.front:
            return self.shards(rows, n_shapes, limits)
        left = self.lowest_s[rows] <= limits.least_s
        hopeless = self.shards(rows[~left], max(n_shapes, len(rows)), limits)
        return self.shards(rows[left], n_shapes, limits) + hopeless


def prepare(
    context: Context,
    shapes: ShapeTable,
    grid: LayerGrid | None = None,
    below_s: float = float("inf"),
) -> Prepared:
    """Return the shapes of a search with bounds; `grid` holds their layer terms, if known.

    Shapes without a plan that may take less than `below_s` are left out.
    """
    options, sizes = context.options, batch_sizes(context)
    grid = grid or context.layer_grid
    if grid is not None and not grid.covers(shapes):
        grid = None
    if grid is None and len(sizes) and len(shapes):
        grid = layer_grid(context.problem, shapes, sizes, options.n_sp)
    least_s = shared(
        context.shared,
        lambda: (
            "bounds",
            rates_key(context.problem),
            options_key(context.options),
            shapes_key(shapes),
        ),
        lambda: batch_bounds_s(context, shapes, grid),
    )
    lowest_s = least_s.min(axis=(1, 2), initial=np.inf)
    first = np.zeros(len(shapes), dtype=bool)
    if options.bound and len(shapes):
        first = _promising(shapes, lowest_s)
    if np.isfinite(below_s):
        rows = np.flatnonzero(lowest_s < below_s)
        shapes, least_s = shapes.take(rows), least_s[rows]
        lowest_s, first = lowest_s[rows], first[rows]
    if not len(shapes):
        return Prepared(context, shapes, grid, None, least_s, lowest_s, first)
    plans = plan_space(context, shapes)
    return Prepared(context, shapes, grid, plans, least_s, lowest_s, first)


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
    known, n_shapes = Limits(rival_s=context.options.rival_s), n_shapes or SHARD_SHAPES
    found = prepare(context, shapes, grid, below_s)
    parts = (np.flatnonzero(found.first), np.flatnonzero(~found.first))
    return [shard for rows in parts for shard in found.shards(rows, n_shapes, known)]


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


def batch_bounds_s(context: Context, shapes: ShapeTable, grid: LayerGrid | None = None) -> Floats:
    """Return what plans of each shape, mbs and sp take at least, `(n_shapes, n_mbs, n_sp)`.

    inf where no plan has these micro-batches: an empty batch would seem quick, and its shape the
    most promising one.
    """
    mbs, n_sp = batch_sizes(context), context.options.n_sp
    if not len(mbs):
        return np.zeros((len(shapes), 0, n_sp))
    grid = grid or layer_grid(context.problem, shapes, mbs, n_sp)
    layers = grid.table(shapes, np.zeros(1, dtype=np.int32))
    least_s = least_batch_times(context.problem, shapes, layers, mbs)
    legal = legal_batches(batch_rules(context, shapes, mbs))
    return np.where(legal[:, :, None], least_s, np.inf)


NEIGHBOURS_PLANS = 128
"""Plans of a search that the next one over the same space prices before all others: twice the
finalists, as some may not fit there."""
NEIGHBOURS_MARGIN = 1e-9
"""By how much the limits from them are raised: far more than rounding differs between tables."""


def _neighbours_key(context: Context) -> tuple[object, ...]:
    return ("best", context.problem.stack, job_key(context.problem), *space_key(context))


def leave_for_neighbours(prepared: Prepared, answers: list[ShardAnswer]) -> None:
    """Keep the best plans of a search for those of neighbouring problems."""
    context = prepared.context
    if context.shared is not None and context.options.bound and not context.options.front:
        best = sorted((c for answer in answers for c in answer.best), key=closed_form_order)
        layouts = [c.layout for c in best[:NEIGHBOURS_PLANS]]
        # Plans take about the same each; weighing all would take longer than pricing them.
        size_bytes = len(layouts) * n_bytes(layouts[:1])
        context.shared.keep(_neighbours_key(context), layouts, size_bytes)


def neighbours_limits(prepared: Prepared, known: Limits) -> Limits:
    """Return the limits that the best plans of a neighbouring problem leave, priced here.

    The space is the same, so those that fit are plans of this search, each of another pipeline:
    the last of the best takes no longer than the last of so many of them. What is found, and what
    is counted, is the same as without these limits: both depend on the last limits alone.
    """
    context = prepared.context
    bounded = context.options.bound and not context.options.front
    away = offers_offload(context) or offers_activation_offload(context)
    if context.shared is None or not bounded or away:
        return known
    layouts = context.shared.look(_neighbours_key(context))
    if not layouts:
        return known
    usable = context.problem.pool.usable_bytes
    priced = price_layouts(context.problem, layouts, prepared.grid)
    fits = [c for c in priced if c.peak_bytes * (1.0 + NEIGHBOURS_MARGIN) <= usable]
    raised = [replace(c, closed_form_s=c.closed_form_s * (1.0 + NEIGHBOURS_MARGIN)) for c in fits]
    return known.after(sorted(raised, key=closed_form_order), context.options.n_finalists)


def search(
    context: Context,
    executor: Executor | None = None,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    space: ShapeSpace | None = None,
) -> Outcome:
    """Return the best plans of the whole space, or of the legal shapes in `space`.

    Plans that a lower bound on their step time keeps from being among the best get no price
    (`SearchOptions.bound`). The first is proven: every plan whose lower bound is below its exact
    time is priced exactly too. `stop` is asked between groups of shards; when it says so, the best
    so far is returned with `complete` False; shards and groups are small where there is a `stop`
    that is not `Seldom` asked.
    `progress` is told (shards done, shards in all), and where it has a method `found`, before that
    the step time of the best so far, seconds, by the closed form. The answer does not depend on
    the executor.
    """
    executor, whole = executor or SerialExecutor(), space is None
    tell_best: Callable[[float], None] | None = getattr(progress, "found", None)
    space = space or legal_shapes(context)
    # Neither the size of shards nor that of groups changes what is found.
    n_shapes, size = SHARD_SHAPES, SHARDS_PER_TASK
    if stop is not None and not isinstance(stop, Seldom):
        n_shapes, size = STOPPABLE_SHAPES, 1
    n, stopped, known = context.options.n_finalists, "", Limits(rival_s=context.options.rival_s)
    prepared = prepare(context, space.shapes)
    if whole and len(space.shapes):
        known = neighbours_limits(prepared, known)
    if np.isfinite(known.last_s):  # as if the first were searched
        prepared = replace(prepared, first=np.zeros_like(prepared.first))
    first = prepared.shards(np.flatnonzero(prepared.first), n_shapes, known)
    shards, nearest, asked = first + prepared.rest(n_shapes, known), False, False
    answers: list[ShardAnswer] = []
    round_before: tuple[list[ShardAnswer], Limits] | None = None

    def left(enough: int) -> int:
        """Estimate what the executor has before it: most is left out once the first are known."""
        bounded = context.options.bound and not context.options.front
        share, n_plans = PRICED_SHARE if bounded else 1.0, 0
        for shard in shards[len(first) :]:
            n_plans += count_plans(replace(shard, known=known))
            if n_plans * share >= enough or (stop is not None and stop()):
                break
        return int(n_plans * share)

    try:
        while True:
            answers.clear()
            best: list[Candidate] = []
            while len(answers) < len(shards):
                if stop is not None and answers and stop():
                    stopped = "time limit"
                    break
                at = len(answers)
                if at == len(first):
                    shards = first + prepared.rest(n_shapes, known)
                if at < len(first):
                    known_now = replace(shards[at], known=known, nearest=nearest)
                    found = [search_shard(known_now)]
                else:
                    if not asked:
                        executor.prepare(left)
                        asked = True
                    n_group = max(1, executor.group_size * size // SHARDS_PER_TASK)
                    group = shards[at : at + n_group]
                    found = executor.map(
                        search_shard, [replace(x, known=known, nearest=nearest) for x in group]
                    )
                answers.extend(found)
                best = sorted(
                    (c for x in (best, *(a.best for a in found)) for c in x), key=closed_form_order
                )
                known = known.after(best[:n], n)
                if best and tell_best is not None:
                    tell_best(best[0].closed_form_s)
                if progress is not None:
                    progress(len(answers), len(shards))
            merged = _merge(context, space, answers, known)
            nothing = merged.n_legal and not merged.n_fit
            if nothing and not stopped and not nearest:
                nearest = True
                continue
            if whole and not stopped:
                leave_for_neighbours(prepared, answers)
            first_s = merged.finalists[0].step_s if merged.finalists else 0.0
            if stopped or first_s <= known.rivals_s:
                break
            # The exact time of the first lies further above its closed form than was looked at.
            round_before = answers.copy(), known
            known = replace(known, settled_s=first_s)
    except KeyboardInterrupt:
        if not round_before and not any(answer.best for answer in answers):
            raise
        stopped = "interrupted"
        merged = _merge(context, space, answers, known)
    finally:
        executor.close()
    unseen = [float(shard.least_s.min(initial=np.inf)) for shard in shards[len(answers) :]]
    if stopped and round_before:
        # It priced all that can be the first but for what its own bound left out.
        answers, known = round_before
        merged, unseen = _merge(context, space, answers, known), [known.least_s]
    try:
        merged = _with_uneven_splits(context, merged, space.shapes, whole=not stopped)
    except KeyboardInterrupt:
        stopped = "interrupted"
    return replace(
        merged,
        stopped=stopped,
        shards=(len(answers), len(shards)),
        least_unseen_s=min(unseen, default=float("inf")),
        unsearched=tuple(shard.shapes for shard in shards[len(answers) :]),
    )


def _merge(
    context: Context, space: ShapeSpace, answers: list[ShardAnswer], known: Limits
) -> Outcome:
    """Merge shard answers in shard order and re-price the best with the exact recurrence."""
    best = sorted((c for answer in answers for c in answer.best), key=closed_form_order)
    best = best[: context.options.n_finalists]
    finalists = _exact(context, best)
    first_s = min((c.step_s for c in finalists), default=0.0)
    listed = {c.layout for c in best}
    rivals = [c for a in answers for c in a.rivals if c.least_s < first_s]
    rivals = sorted((c for c in rivals if c.layout not in listed), key=closed_form_order)
    finalists = sorted(finalists + _exact(context, rivals), key=_exact_order)
    rejected: dict[str, int] = {}
    for answer in answers:
        for code, count in answer.rejected.items():
            rejected[code] = rejected.get(code, 0) + count
    bounded = context.options.bound and not context.options.front
    bound_s = known.least_s if bounded else float("inf")
    n_legal = sum(int(a.batches.n_legal.sum()) for a in answers)
    counts = [a.batches.priced(bound_s) for a in answers]
    n_priced, n_fit = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    if n_priced > n_fit:
        rejected["MEM001"] = n_priced - n_fit
    misses = [a.closest for a in answers if a.closest is not None]
    closest = min(misses, key=lambda c: (c.peak_bytes, layout_key(c.layout)), default=None)
    return Outcome(
        finalists=tuple(finalists),
        n_shapes=len(space.shapes),
        n_candidate_shapes=space.n_candidates,
        n_candidates=sum(a.n_candidates for a in answers),
        n_legal=n_legal,
        n_fit=n_fit,
        n_excluded=n_legal - n_priced,
        bound_s=bound_s,
        n_rivals=len(rivals),
        rejected_shapes=space.rejected,
        rejected_plans=rejected,
        closest=closest if not finalists else None,
        n_faster=sum(a.n_faster for a in answers),
        front=tuple(merged_front(a.front for a in answers)),
    )


def _with_uneven_splits(
    context: Context, found: Outcome, shapes: ShapeTable, *, whole: bool
) -> Outcome:
    """Return the outcome with the layers of its most promising shapes split unevenly as well.

    Where nothing fits after a `whole` search, those of the shapes that miss the memory by least.
    """
    if found.finalists or not whole:
        priced = [
            SplitPlan(c.layout, c.closed_form_s, c.peak_bytes, c.step_s) for c in found.finalists
        ]
        improved = improve_splits(context, priced)
    elif found.n_legal and splits_wanted(context.options):
        misses = nearest_misses(context, shapes, MAX_MISSES)
        improved = splits_that_fit(context, [c.layout for c in misses])
    else:
        improved = Improved()
    more = (Candidate(x.layout, x.closed_form_s, x.peak_bytes, x.step_s) for x in improved.plans)
    finalists = tuple(sorted([*found.finalists, *more], key=_exact_order))
    return replace(
        found,
        finalists=finalists,
        split_shapes=improved.shapes,
        n_misses=improved.n_misses,
        n_hopeless=improved.n_hopeless,
        closest=None if finalists else found.closest,
    )


def _exact(context: Context, candidates: list[Candidate]) -> list[Candidate]:
    """Return the candidates with their exact step times."""
    layouts = [c.layout for c in candidates]
    times = exact_step_s(context.problem, layouts, context.layer_grid)
    return [replace(c, step_s=t) for c, t in zip(candidates, times, strict=True)]
