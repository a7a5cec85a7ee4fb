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
from costmodels.schedule.stages import LOOPED, SPLITS, spelled, stage_layers
from costmodels.shape_terms import shape_terms
from costmodels.step import join, peak_bytes, step_times, straggler_factor
from searches.frameworks.registry import searched_frameworks
from searches.frameworks.table import refusals
from searches.options import SearchOptions
from searches.pricing.shared_work import options_key, rates_key, shared_each
from searches.rules import Context, first_broken_rule
from searches.splits.model import (
    EMPTY_ENDS,
    Split,
    best_splits,
    least_pipeline_s,
    unlimited_pipeline_s,
)

LEAST_GAIN = 1e-3
"""Share of the step by which an uneven split must be faster to be offered."""
MAX_ROUNDS = 2
"""How often as many shapes are split, where one could still come first."""
MOST_PLANS = 64
"""Plans whose shapes are split, however many are asked for."""
MAX_PRICED = 24
"""Shapes whose ranks are priced to see how much an uneven split could help."""
MAX_MISSES = 64
"""Shapes that are looked at for a split that fits, where no named one does."""
ANY_SIZE = 2.0**60
"""Bytes of a device on which everything fits."""
RIVAL = 1.05
"""Shapes whose steps would exceed the fastest by this factor, however even, are left out."""


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """One layout with an uneven split, priced as finalists are."""

    layout: Layout
    closed_form_s: float
    peak_bytes: float
    step_s: float = math.inf


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
    everything but the split and the recomputed layers. `split_shapes` of them are split, and as
    many again where a split without any waste could still come first: of the shapes of the
    `MOST_PLANS` least closed forms, so that longer lists take no place from the best.
    """
    options = context.options
    last_s = sorted(x.closed_form_s for x in finalists)[:MOST_PLANS][-1] if finalists else 0.0
    best = _first_of_shapes(context, [x for x in finalists if x.closed_form_s <= last_s])
    if not splits_wanted(options) or not best:
        return Improved()
    fastest_s = finalists[0].step_s
    promising = _promising(context, fastest_s * RIVAL, best[:MAX_PRICED])
    plans: list[SplitPlan] = []
    shapes: list[ShapeSplit] = []
    most_shapes = MAX_ROUNDS * options.split_shapes
    for start in range(0, min(len(promising), most_shapes), options.split_shapes):
        group = promising[start : start + options.split_shapes]
        if start and group[0].ideal_s >= fastest_s:
            break  # no later shape can be split so well that it comes first
        more, results = _split_each(context, group)
        plans += more
        shapes += results
        fastest_s = min([fastest_s, *(x.step_s for x in more)])
    return Improved(tuple(plans), tuple(shapes))


def worth_splitting(
    context: Context, plans: Sequence[SplitPlan], most_s: float
) -> list[tuple[float, SplitPlan]]:
    """Return the first plan of each shape that some split may bring below a step, best first.

    Beside the closed form of a split without any waste, seconds; as `most_s` is. The exact steps
    of the plans need not be known.
    """
    best = _first_of_shapes(context, plans)[:MAX_PRICED]
    return [(x.ideal_s, x.plan) for x in _promising(context, most_s, best)] if best else []


def _first_of_shapes(context: Context, plans: Sequence[SplitPlan]) -> list[SplitPlan]:
    """Return the first plan of each shape whose layers can be split unevenly."""
    layers = context.problem.shape.layers
    first: dict[Layout, SplitPlan] = {}
    for one in plans:
        x = one.layout
        if x.pp > 1 and x.schedule in SCHEDULES and _has_splits(layers, x):
            first.setdefault(_shape_of(x), one)
    return list(first.values())


def _split_each(
    context: Context, promising: Sequence["_Promising"]
) -> tuple[list[SplitPlan], list[ShapeSplit]]:
    """Return the plans of some shapes that are faster than their finalists, and all shapes."""
    usable, plans, shapes, answers = context.problem.pool.usable_bytes, [], [], []
    for each in promising:
        one, layout = each.plan, each.plan.layout
        present = Split(layout.stage_layers, layout.recompute_layers)
        allowed = _recompute_values(context, layout)
        answers.append((one, best_splits(each.costs, usable, allowed, [present])))
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
    return plans, shapes


def splits_that_fit(context: Context, misses: Sequence[Layout]) -> Improved:
    """Return plans whose layers are split so that they fit, where no named split of them does.

    `misses` are layouts of different shapes, those that miss the memory by least first. Looked at
    until `split_shapes` of them fit.
    """
    options, problem = context.options, context.problem
    tried = [x for x in misses if _has_splits(problem.shape.layers, x)][:MAX_MISSES]
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


def _has_splits(layers: int, layout: Layout) -> bool:
    """Tell whether there is a layer for every virtual stage but the ends."""
    return layers >= layout.pp * layout.vpp - EMPTY_ENDS


def resplit(context: Context, plans: Sequence[Layout], n_shapes: int) -> tuple[SplitPlan, ...]:
    """Return plans of the first shapes among some, split so that they fit the context's memory.

    `plans` need more than that; the shapes are looked at in their order, `n_shapes` of them.
    """
    layers = context.problem.shape.layers
    shapes: dict[Layout, Layout] = {}
    for x in plans:
        if x.pp > 1 and x.schedule in SCHEDULES and _has_splits(layers, x):
            shapes.setdefault(_shape_of(x), x)
    return splits_that_fit(context, list(shapes.values())[:n_shapes]).plans


def _shape_of(layout: Layout) -> Layout:
    kind = layout.recompute if layout.recompute == "selective" else "full"
    return replace(layout, split="", stage_layers=(), recompute=kind, recompute_layers=0)


@dataclass(frozen=True, slots=True)
class _Promising:
    """The best plan of a shape whose layers are worth splitting unevenly."""

    ideal_s: float
    """Its step with a split without any waste."""
    plan: SplitPlan
    costs: RankCosts


def _promising(
    context: Context, most_s: float, finalists: Sequence[SplitPlan]
) -> list["_Promising"]:
    """Return the shapes that a split without any waste could bring below a step, best first."""
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
        enough_s = min(one.step_s * (1.0 - LEAST_GAIN), most_s)
        if one.closed_form_s - factor * (now_s - bound_s) >= enough_s:
            continue
        least_s = least_pipeline_s(own_costs, problem.pool.usable_bytes, allowed)
        ideal_s = one.closed_form_s - factor * (now_s - least_s)
        if ideal_s < enough_s and _takes_any_split(context, x):
            results.append(_Promising(ideal_s, one, own_costs))
    results.sort(key=lambda x: x.ideal_s)
    return results


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
    if others[longest] <= 1:
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
    vendor = problem.pool.accelerator.vendor
    names = searched_frameworks(framework, vendor)
    return any(not refusals(name, layout, problem.shape, problem.job, vendor) for name in names)


def _recompute_values(context: Context, layout: Layout) -> list[int]:
    """Return the numbers of recomputed layers that the search allows for a layout's shape."""
    options, layers = context.options, context.problem.shape.layers
    if layout.recompute == "selective":
        return [0]
    allows = options.allows
    none = allows("recompute", RECOMPUTES.index("none")) and allows("recompute_layers", 0)
    full = allows("recompute", RECOMPUTES.index("full"))
    maximum = layers - layout.pp * layout.vpp + 1 + EMPTY_ENDS
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


@dataclass(frozen=True, slots=True)
class SplitChoice:
    """The split of one layout of which all else is given."""

    layout: Layout
    step_s: float
    rivals: tuple[tuple[str, float], ...]
    """Other splits that the search looks at and their steps, the fastest first, seconds; those
    that fit where the chosen one does."""
    too_large: tuple[str, ...]
    """Those that do not fit where the chosen one does."""


def best_split_of(context: Context, layout: Layout) -> SplitChoice:
    """Return a layout with the split that the search would give its shape.

    Of the named splits and those that `best_splits` hands to the recurrence: the least exact step
    among those that fit, or among all where none fits. An uneven split has to win by `LEAST_GAIN`.
    Only what a framework of the search runs is looked at, if it runs any. All else stays; where
    all layers are recomputed they all are.
    """
    layers, usable = context.problem.shape.layers, context.problem.pool.usable_bytes
    all_again = layout.recompute == "full" and layout.recompute_layers >= max(layout.stage_layers)
    k = layers if all_again else layout.recompute_layers
    splits = [
        Split(counts, k)
        for name in SPLITS
        if (counts := stage_layers(layers, layout.pp, layout.vpp, name))
    ]

    def made(split: Split) -> Layout:
        return _split_layout(layout, replace(split, recompute_layers=min(k, max(split.counts))))

    named = {made(x) for x in splits}
    if layout.schedule in SCHEDULES and layout.placement == LOOPED and _has_splits(layers, layout):
        [costs] = rank_costs(context.problem, [layout])
        for room in (usable, ANY_SIZE):
            answer = best_splits(costs, room, [k], splits)
            if answer.best:
                splits += answer.others
                break
    layouts = list(dict.fromkeys(map(made, splits)))
    layouts = [x for x in layouts if _runs(context, x)] or layouts
    table = PlanTable.from_layouts(layouts)
    rows = join(
        context.problem, shape_terms(context.problem, table.shapes, table.shardings), table
    )
    steps, fits = exact_step_times(rows, layouts), peak_bytes(rows) <= usable
    order = sorted(
        range(len(layouts)),
        key=lambda i: (
            not fits[i],
            steps[i] * (1.0 if layouts[i] in named else 1.0 + LEAST_GAIN),
            layouts[i].split != layout.split,
            layouts[i].split,
        ),
    )
    first, *others = order
    rivals = tuple((layouts[i].split, steps[i]) for i in others if fits[i] == fits[first])
    too_large = tuple(layouts[i].split for i in others if fits[first] and not fits[i])
    return SplitChoice(layouts[first], steps[first], rivals, too_large)
