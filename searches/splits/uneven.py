"""Uneven splits for the most promising shapes of a search.

The shapes are those of the finalists: everything but the split and the recomputed layers.
`splits.model` finds the splits of least closed-form time and near ones, for all `recompute_layers`
that the search allows; the exact recurrence picks among them, and those of a finalist stay where
nothing is faster. Where no plan fits with a named split, the shapes are those that miss the memory
by least (`splits_that_fit`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodels.axes import RECOMPUTES
from costmodels.breakdown import exact_step_times
from costmodels.layers.layer_grid import known_layers
from costmodels.plans import Layout, PlanTable
from costmodels.schedule.rank_costs import SCHEDULES, RankCosts, rank_costs
from costmodels.schedule.stages import SPLITS, spelled, stage_layers
from costmodels.shape_terms import shape_terms
from costmodels.step import join, peak_bytes, step_times, straggler_factor
from searches.frameworks.registry import searched_frameworks
from searches.frameworks.table import refusals
from searches.options import SearchOptions
from searches.pricing.shared_work import options_key, rates_key, shared_each
from searches.rules import Context, first_broken_rule
from searches.splits.model import Split, best_splits, least_pipeline_s, unlimited_pipeline_s

LEAST_GAIN = 1e-3
"""Share of the step by which an uneven split must be faster to be offered."""
MAX_PRICED = 24
"""Shapes whose ranks are priced to see how much an uneven split could help."""
MAX_MISSES = 64
"""Shapes that are looked at for a split that fits, where no named one does."""
RIVAL = 1.05
"""Shapes whose steps would exceed the fastest by this factor, however even, are left out."""


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """One layout with an uneven split, priced as finalists are."""

    layout: Layout
    closed_form_s: float
    peak_bytes: float
    step_s: float


@dataclass(frozen=True, slots=True)
class ShapeSplit:
    """What splitting the layers of one shape came to."""

    layout: Layout
    """The fastest of its plans; the best finalist where no split is faster."""
    before_s: float
    """Exact step of the best finalist of the shape; infinite where none fits."""
    step_s: float
    """Exact step of `layout`."""
    proven: bool
    """Whether no split has a shorter closed form than the best that was found."""
    gap_frac: float
    """See `SplitAnswer`."""


@dataclass(frozen=True, slots=True)
class Improved:
    """The uneven splits of the most promising shapes."""

    plans: tuple[SplitPlan, ...] = ()
    """Those that are faster than every finalist of their shape."""
    shapes: tuple[ShapeSplit, ...] = ()
    """Every shape whose layers were split, the most promising first."""
    n_misses: int = 0
    """Shapes that fit with no named split and were looked at for another one (`splits_that_fit`).
    """
    n_hopeless: int = 0
    """Those of them of which it is proven that no split fits."""


def splits_wanted(options: SearchOptions) -> bool:
    """Tell whether a search splits layers unevenly: not with the split restricted to some."""
    return options.split_shapes > 0 and "split" not in options.only


def improve_splits(context: Context, finalists: Sequence[SplitPlan]) -> Improved:
    """Return plans with the layers of the most promising shapes split as well as can be.

    `finalists` are plans that fit, with their exact step times, the fastest first. A shape is
    everything but the split and the recomputed layers.
    """
    options, problem = context.options, context.problem
    best: dict[Layout, SplitPlan] = {}
    for one in finalists:
        x = one.layout
        if x.pp > 1 and x.schedule in SCHEDULES and problem.shape.layers >= x.pp * x.vpp:
            best.setdefault(_shape_of(x), one)
    if not splits_wanted(options) or not best:
        return Improved()
    promising = _promising(context, finalists[0].step_s, list(best.values())[:MAX_PRICED])
    usable, plans, shapes = problem.pool.usable_bytes, [], []
    answers = []
    for one, costs in promising[: options.split_shapes]:
        allowed = _recompute_values(context, one.layout)
        present = Split(one.layout.stage_layers, one.layout.recompute_layers)
        answers.append((one, best_splits(costs, usable, allowed, [present])))
    layouts = [_split_layout(one.layout, x) for one, answer in answers for x in answer.others]
    priced = _priced(context, list(dict.fromkeys(layouts)))
    for one, answer in answers:
        own = [priced[x] for s in answer.others if (x := _split_layout(one.layout, s)) in priced]
        own.sort(key=lambda x: (x.step_s, x.peak_bytes, x.layout.split))
        first = own[0] if own else one
        if first.step_s < one.step_s * (1.0 - LEAST_GAIN):
            plans.append(first)
        else:
            first = one
        result = (first.layout, one.step_s, first.step_s, answer.proven, answer.gap_frac)
        shapes.append(ShapeSplit(*result))
    return Improved(tuple(plans), tuple(shapes))


def splits_that_fit(context: Context, misses: Sequence[Layout]) -> Improved:
    """Return plans whose layers are split so that they fit, where no named split of them does.

    `misses` are layouts of different shapes, those that miss the memory by least first. Looked at
    until `split_shapes` of them fit.
    """
    options, problem = context.options, context.problem
    tried = [x for x in misses if problem.shape.layers >= x.pp * x.vpp][:MAX_MISSES]
    if not splits_wanted(options) or not tried:
        return Improved()
    usable = problem.pool.usable_bytes
    plans: list[SplitPlan] = []
    shapes: list[ShapeSplit] = []
    n_misses = n_hopeless = 0
    for one, costs in zip(tried, rank_costs(problem, tried), strict=True):
        if len(plans) == options.split_shapes:
            break
        n_misses += 1
        allowed = _recompute_values(context, one)
        if math.isinf(least_pipeline_s(costs, usable, allowed)):
            n_hopeless += 1
            continue
        answer = best_splits(costs, usable, allowed)
        # Of interleaved stages only splits near the mean are looked at.
        n_hopeless += answer.proven and answer.best is None and one.vpp == 1
        priced = _priced(context, [_split_layout(one, split) for split in answer.others])
        if priced:
            best = min(priced.values(), key=lambda x: (x.step_s, x.peak_bytes, x.layout.split))
            plans.append(best)
            bound = (answer.proven, answer.gap_frac)
            shapes.append(ShapeSplit(best.layout, math.inf, best.step_s, *bound))
    return Improved(tuple(plans), tuple(shapes), n_misses, n_hopeless)


def _shape_of(layout: Layout) -> Layout:
    kind = layout.recompute if layout.recompute == "selective" else "full"
    return replace(layout, split="", stage_layers=(), recompute=kind, recompute_layers=0)


def _promising(
    context: Context, fastest_s: float, finalists: Sequence[SplitPlan]
) -> list[tuple[SplitPlan, RankCosts]]:
    """Return the shapes that a split without any waste could bring to the front, best first."""
    problem = context.problem
    factor = straggler_factor(problem, context.n_devices)
    layouts = [x.layout for x in finalists]
    costs = shared_each(
        context.shared,
        lambda: ("rank costs", rates_key(problem), options_key(context.options)),
        layouts,
        lambda some: _pipelines(context, some),
    )
    results = []
    for one, (own_costs, allowed, now_s, bound_s) in zip(finalists, costs, strict=True):
        x = one.layout
        enough_s = min(one.step_s * (1.0 - LEAST_GAIN), fastest_s * RIVAL)
        if one.closed_form_s - factor * (now_s - bound_s) >= enough_s:
            continue
        least_s = least_pipeline_s(own_costs, problem.pool.usable_bytes, allowed)
        ideal_s = one.closed_form_s - factor * (now_s - least_s)
        if ideal_s < enough_s and _takes_any_split(context, x):
            results.append((ideal_s, one, own_costs))
    results.sort(key=lambda x: x[0])
    return [(one, own_costs) for _, one, own_costs in results]


def _pipelines(
    context: Context, layouts: list[Layout]
) -> list[tuple[RankCosts, list[int], float, float]]:
    """Return what the ranks of each layout cost, and the layers that it may recompute.

    Then the closed-form pipeline time of its split, and the least of any, whatever the memory.
    """
    layers = known_layers(context.layer_grid, PlanTable.from_layouts(layouts))
    results = []
    for x, costs in zip(layouts, rank_costs(context.problem, layouts, layers), strict=True):
        allowed = _recompute_values(context, x)
        now_s = costs.pipeline_s(x.stage_layers, x.recompute_layers)
        results.append((costs, allowed, now_s, unlimited_pipeline_s(costs, allowed)))
    return results


def _takes_any_split(context: Context, layout: Layout) -> bool:
    """Tell whether a framework of the search takes a split that is neither even nor `ends`."""
    first, *others = layout.stage_layers
    longest = others.index(max(others))
    if others[longest] == 1:
        return False
    others[longest] -= 1
    uneven = (first + 1, *others)
    return _runs(context, replace(layout, split=spelled(uneven), stage_layers=uneven))


def _runs(context: Context, layout: Layout) -> bool:
    """Tell whether a layout breaks no rule and runs on a framework of the search."""
    if first_broken_rule(context, layout):
        return False
    framework, problem = context.options.framework, context.problem
    if framework == "any":
        return True
    names = searched_frameworks(framework)
    return any(not refusals(name, layout, problem.shape, problem.job) for name in names)


def _recompute_values(context: Context, layout: Layout) -> list[int]:
    """Return the numbers of recomputed layers that the search allows for a layout's shape."""
    options, layers = context.options, context.problem.shape.layers
    if layout.recompute == "selective":
        return [0]
    allows = options.allows
    none = allows("recompute", RECOMPUTES.index("none")) and allows("recompute_layers", 0)
    full = allows("recompute", RECOMPUTES.index("full"))
    maximum = layers - layout.pp * layout.vpp + 1
    results = [k for k in range(1, maximum + 1) if full and allows("recompute_layers", k)]
    return [0] * none + results


def _split_layout(layout: Layout, split: Split) -> Layout:
    """Return a layout with other layers in its stages; splits that have a name go by it."""
    counts, k = split.counts, split.recompute_layers
    layers = sum(counts)
    named = (x for x in SPLITS if stage_layers(layers, layout.pp, layout.vpp, x) == counts)
    kind = layout.recompute if layout.recompute == "selective" else "full" if k else "none"
    return replace(
        layout,
        split=next(named, spelled(counts)),
        stage_layers=counts,
        recompute=kind,
        recompute_layers=k,
    )


def _priced(context: Context, layouts: Sequence[Layout]) -> dict[Layout, SplitPlan]:
    """Return the layouts that fit and that a framework runs, with their exact steps."""
    problem = context.problem
    legal = [x for x in layouts if _runs(context, x)]
    if not legal:
        return {}
    table = PlanTable.from_layouts(legal)
    terms = shape_terms(problem, table.shapes, table.shardings)
    rows = join(problem, terms, table, known_layers(context.layer_grid, table))
    peaks, closed = peak_bytes(rows), step_times(rows)
    exact = exact_step_times(rows, legal)
    return {
        x: SplitPlan(x, float(closed[i]), float(peaks[i]), exact[i])
        for i, x in enumerate(legal)
        if peaks[i] <= problem.pool.usable_bytes
    }
