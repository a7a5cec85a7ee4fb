"""The search: legal shapes, free axes, memory, time, the best few by the exact pipeline time."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodels import pipeline
from costmodels.breakdown import virtual_stage_times, virtual_weight_grad_times
from costmodels.layer_terms import LayerTable, layer_table
from costmodels.plans import Layout, PlanTable, ShapeTable
from costmodels.problem import Problem
from costmodels.shape_terms import ShapeTerms, shape_terms
from costmodels.stages import n_kinds
from costmodels.step import (
    boundary_hops_s,
    join,
    outside_pipeline,
    peak_bytes,
    stage_times,
    step_times,
    straggler_factor,
)
from searches.candidates import Candidate, closed_form_order, layout_key
from searches.executors import Executor, SerialExecutor
from searches.objectives import Front, merged_front
from searches.options import SearchOptions
from searches.plan_space import LegalBlock, free_axes, legal_masks, plan_blocks
from searches.rules import Context
from searches.shape_space import ShapeSpace, legal_shapes

Floats = NDArray[np.float64]

BLOCK_CELLS = 16384
"""Plans priced at a time: their columns stay in the second-level cache."""
SHARD_SHAPES = 512
"""Shapes of one shard, the unit that executors spread."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A slice of the shapes, with everything that pricing them needs."""

    context: Context
    shapes: ShapeTable


@dataclass(frozen=True, slots=True)
class ShardAnswer:
    """What one shard found."""

    best: tuple[Candidate, ...]
    closest: Candidate | None
    """The plan that misses the memory by least, when nothing fits."""
    n_candidates: int
    n_legal: int
    n_fit: int
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
    rejected_shapes: dict[str, int]
    rejected_plans: dict[str, int]
    closest: Candidate | None
    stopped: str = ""
    """`time limit` or `interrupted` when not all shards were priced."""
    shards: tuple[int, int] = field(default=(0, 0))
    """Shards priced and shards in all."""
    n_faster: int = 0
    """Plans that fit and that the closed form prices below `SearchOptions.rival_s`."""
    front: tuple[Candidate, ...] = ()
    """With `SearchOptions.front`: the plans that no other beats in both time and memory."""
    unsearched: tuple[ShapeTable, ...] = field(default=(), compare=False)
    """Shapes of the shards that were not priced, where the search was stopped."""

    @property
    def complete(self) -> bool:
        """Whether the whole space was priced."""
        return not self.stopped


def _best_rows(times: Floats, n: int) -> NDArray[np.intp]:
    """Return the rows of the n smallest times and of all ties with the last of them."""
    if len(times) <= n:
        return np.arange(len(times))
    return np.flatnonzero(times <= np.partition(times, n - 1)[n - 1])


def price_block(
    problem: Problem,
    terms: ShapeTerms,
    layers: LayerTable,
    found: LegalBlock,
    n: int,
    slower_s: float = float("inf"),
    rival_s: float = 0.0,
    front: Front | None = None,
) -> tuple[list[Candidate], Candidate | None, int, int]:
    """Return the best plans of a block that fit, the closest that does not, and two counts.

    The counts are those of the plans that fit, and of those that take less than `rival_s`. Plans
    that take longer than `slower_s` are not among the best, whatever the block holds.
    """
    rows, n_layers = join(problem, terms, found.block, layers), problem.shape.layers
    peaks = peak_bytes(rows)
    fits = found.legal & (peaks <= problem.pool.usable_bytes)
    n_fit = int(np.count_nonzero(fits))
    if not n_fit:
        cell = int(np.argmin(np.where(found.legal, peaks, np.inf)))
        table = found.block.rows(np.array([cell]))
        closest = Candidate(table.layout(0, n_layers), 0.0, float(peaks.flat[cell]))
        return [], closest, 0, 0
    times = np.where(fits, step_times(rows), np.inf).ravel()
    if front is not None:
        front.add(found.block, n_layers, times, peaks.ravel())
    quick = np.flatnonzero(times <= slower_s)
    cells = quick[_best_rows(times[quick], min(n, n_fit))]
    table = found.block.rows(cells)
    best = [
        Candidate(table.layout(i, n_layers), float(times[cell]), float(peaks.flat[cell]))
        for i, cell in enumerate(cells)
    ]
    n_faster = int(np.count_nonzero(times < rival_s))
    return sorted(best, key=closed_form_order)[:n], None, n_fit, n_faster


def search_shard(shard: Shard) -> ShardAnswer:
    """Price every legal plan of a shard's shapes."""
    context, shapes = shard.context, shard.shapes
    axes = free_axes(context, shapes)
    masks, n_candidates, rejected = legal_masks(context, shapes, axes)
    terms = shape_terms(context.problem, shapes)
    layers = layer_table(context.problem, shapes, axes.mbs) if len(axes.mbs) else None
    best: list[Candidate] = []
    closest: Candidate | None = None
    n_legal = n_fit = n_faster = 0
    n, rival_s = context.options.n_finalists, context.options.rival_s
    front = Front() if context.options.front else None
    if layers is None:
        return ShardAnswer((), None, n_candidates, 0, 0, 0, rejected)
    for block in plan_blocks(context, shapes, axes, masks, BLOCK_CELLS):
        slower_s = best[-1].closed_form_s if len(best) == n else float("inf")
        found, miss, fitting, faster = price_block(
            context.problem, terms, layers, block, n, slower_s, rival_s, front
        )
        n_legal += int(np.count_nonzero(block.legal))
        n_fit, n_faster = n_fit + fitting, n_faster + faster
        best = sorted(best + found, key=closed_form_order)[:n]
        if miss and (closest is None or miss.peak_bytes < closest.peak_bytes):
            closest = miss
    members = tuple(front.members) if front is not None else ()
    return ShardAnswer(
        tuple(best), closest, n_candidates, n_legal, n_fit, n_faster, rejected, members
    )


def count_plans(shard: Shard) -> int:
    """Return the number of legal plans of a shard; takes a fiftieth of pricing them."""
    axes = free_axes(shard.context, shard.shapes)
    masks, _, _ = legal_masks(shard.context, shard.shapes, axes)
    return masks.n_plans


def exact_step_s(problem: Problem, layouts: list[Layout]) -> list[float]:
    """Return the step time of each layout with the pipeline simulated, seconds.

    The closed form's pipeline part is exchanged for the recurrence; all other terms are the same.
    """
    if not layouts:
        return []
    table = PlanTable.from_layouts(layouts)
    terms = shape_terms(problem, table.shapes)
    rows = join(problem, terms, table)
    rest = outside_pipeline(rows, stage_times(rows))
    straggle = straggler_factor(problem, table.shapes.n_devices)
    out = []
    for i, layout in enumerate(layouts):
        forward, backward = virtual_stage_times(rows, layout, i)
        hops = boundary_hops_s(rows, layout, i)
        args = (layout.schedule, layout.pp, layout.vpp, layout.n_micro, forward, backward, hops)
        flush = pipeline.flush_s(*args, virtual_weight_grad_times(rows, layout, i))
        out.append(straggle * flush + float(rest[i]))
    return out


def make_shards(context: Context, shapes: ShapeTable) -> list[Shard]:
    """Cut the shapes into shards; shapes with equally many kinds of rank go together.

    The kinds are the second dimension of the cost model's arrays, so a shard of plans without a
    pipeline costs a fraction of one whose ranks are of four kinds.
    """
    layers = context.problem.shape.layers
    kinds = n_kinds(layers, shapes.pp, shapes.vpp, shapes.split, shapes.placement)
    shards = []
    for count in np.unique(kinds):
        rows = np.flatnonzero(kinds == count)
        for i in range(0, len(rows), SHARD_SHAPES):
            shards.append(Shard(context, shapes.take(rows[i : i + SHARD_SHAPES])))
    return shards


def search(
    context: Context,
    executor: Executor | None = None,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    space: ShapeSpace | None = None,
) -> Outcome:
    """Return the best plans of the whole space, or of the legal shapes in `space`.

    `stop` is asked between groups of shards; when it says so, the best so far is returned with
    `complete` False. `progress` is told (shards done, shards in all). The order of the answer
    does not depend on the executor.
    """
    executor = executor or SerialExecutor()
    space = space or legal_shapes(context)
    shards = make_shards(context, space.shapes)
    answers: list[ShardAnswer] = []
    stopped = ""
    try:
        executor.prepare(lambda: sum(count_plans(shard) for shard in shards))
        group = executor.group_size
        for i in range(0, len(shards), group):
            if stop is not None and answers and stop():
                stopped = "time limit"
                break
            answers.extend(executor.map(search_shard, shards[i : i + group]))
            if progress is not None:
                progress(len(answers), len(shards))
    except KeyboardInterrupt:
        if not any(answer.best for answer in answers):
            raise
        stopped = "interrupted"
    finally:
        executor.close()
    merged = _merge(context, space, answers)
    left = tuple(shard.shapes for shard in shards[len(answers) :])
    return replace(merged, stopped=stopped, shards=(len(answers), len(shards)), unsearched=left)


def _merge(context: Context, space: ShapeSpace, answers: list[ShardAnswer]) -> Outcome:
    """Merge shard answers in shard order and re-price the best with the exact recurrence."""
    best = sorted((c for answer in answers for c in answer.best), key=closed_form_order)
    best = best[: context.options.n_finalists]
    exact = exact_step_s(context.problem, [c.layout for c in best])
    finalists = [replace(c, step_s=t) for c, t in zip(best, exact, strict=True)]
    finalists.sort(key=lambda c: (c.step_s, c.peak_bytes, layout_key(c.layout)))
    rejected: dict[str, int] = {}
    for answer in answers:
        for code, count in answer.rejected.items():
            rejected[code] = rejected.get(code, 0) + count
    n_legal, n_fit = sum(a.n_legal for a in answers), sum(a.n_fit for a in answers)
    if n_legal > n_fit:
        rejected["MEM001"] = n_legal - n_fit
    misses = [a.closest for a in answers if a.closest is not None]
    closest = min(misses, key=lambda c: (c.peak_bytes, layout_key(c.layout)), default=None)
    return Outcome(
        finalists=tuple(finalists),
        n_shapes=len(space.shapes),
        n_candidate_shapes=space.n_candidates,
        n_candidates=sum(a.n_candidates for a in answers),
        n_legal=n_legal,
        n_fit=n_fit,
        rejected_shapes=space.rejected,
        rejected_plans=rejected,
        closest=closest if not finalists else None,
        n_faster=sum(a.n_faster for a in answers),
        front=tuple(merged_front(a.front for a in answers)),
    )


def search_problem(
    problem: Problem, options: SearchOptions | None = None, executor: Executor | None = None
) -> Outcome:
    """Search all devices of the problem's pool."""
    context = Context(problem, options or SearchOptions(), problem.pool.n_devices)
    return search(context, executor)
