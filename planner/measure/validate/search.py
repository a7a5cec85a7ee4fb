"""Measured sweeps searched: does the search pick what ranking one by one does, and what is best.

Restricted to the layouts that were measured, the search must find the one whose prediction is the
shortest; unrestricted it must never predict a longer step than any of them. A published run fitted
its devices, so where the model says otherwise its memory is raised to what it says.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodels.axes import AXES, axis_names, modules_code
from costmodels.plans import Layout, PlanTable
from costmodels.problem import Problem
from planner.measure.validate.metrics import mean
from planner.measure.validate.rows import MeasuredSweep, Used
from planner.solver.answer.reasons import shown_layout
from planner.specs.progress import Progress
from planner.text_lines import wrapped
from searches.mode_rules import with_open_modes
from searches.options import SearchOptions
from searches.rules import CORE, Context
from searches.search import search
from searches.space.shape_space import ShapeSpace

EQUAL = 1e-9
"""Relative difference below which two predicted steps count as equal."""
FREE_AXES = axis_names("batch", "sharding", "mode", "recompute")
"""Axes besides those of a shape."""
N_FINALISTS = 8
"""Plans that an unrestricted search ranks: the first is proven with any number."""


@dataclass(frozen=True, slots=True)
class SearchedSweep:
    """What the search says about one sweep. Seconds are predicted."""

    sweep: MeasuredSweep
    ranked: Layout
    """The layout with the shortest prediction, each priced alone."""
    ranked_s: float
    picked: Layout | None
    """The first of the search restricted to the measured layouts."""
    picked_s: float
    best: Layout | None
    """The first of the unrestricted search."""
    best_s: float

    @property
    def agrees(self) -> bool:
        """The restricted search picks the plan that ranking one by one picks, or one as fast."""
        return abs(self.picked_s - self.ranked_s) <= EQUAL * self.ranked_s

    @property
    def covers(self) -> bool:
        """The unrestricted search predicts no longer step than the published layouts."""
        return self.best_s <= self.ranked_s * (1.0 + EQUAL)


def searched_name(problem: Problem, layout: Layout) -> Layout:
    """Return the name under which a search lists a layout.

    ZeRO without data parallelism is ZeRO 0 (ZER002), recomputing a fused attention core is no
    recomputation (REC001).
    """
    if layout.dp * layout.cp == 1:
        layout = replace(layout, zero=0, shard=0, dp_overlap=True)
    if modules_code(layout.recompute_modules) == CORE and problem.shape.flash_attention:
        layout = replace(layout, recompute="none", recompute_modules=())
    return layout


def axis_number(layout: Layout, axis: str) -> int:
    """Return the value of a free axis of a layout as `SearchOptions.only` has it."""
    return layout.code(axis)


def fitting(problem: Problem, peak_bytes: float) -> Problem:
    """Return the problem on accelerators that have room for `peak_bytes`."""
    pool = problem.pool
    if peak_bytes <= pool.usable_bytes:
        return problem
    memory = peak_bytes * (1.0 + EQUAL) + pool.memory_margin_bytes
    part = replace(pool.accelerator, memory_bytes=memory)
    return replace(problem, pool=replace(pool, accelerator=part))


def restricted(plans: Sequence[Used]) -> tuple[Layout | None, float]:
    """Return the first of a search over nothing but measured layouts of one problem, and its step.

    The search runs over their shapes and over the values that they have on every other axis; what
    was not measured of that product is passed over. Nothing where no measured layout is found.
    """
    case = plans[0].case
    peak = max(plan.prediction.peak_bytes for plan in plans)
    problem = fitting(case.problem, peak)
    named = [searched_name(problem, plan.case.layout) for plan in plans]
    results: list[tuple[float, Layout]] = []
    # Of plans that differ in the size of their ZeRO groups alone a search lists the fastest.
    for shard in sorted({layout.dp_shard for layout in named}):
        own = [layout for layout in named if layout.dp_shard == shard]
        only = {axis: frozenset(axis_number(x, axis) for x in own) for axis in FREE_AXES}
        options = SearchOptions(only=only, framework="any", bound=False, n_finalists=1_000_000)
        shapes = PlanTable.from_layouts(one_of_each_shape(own)).shapes
        context = Context(problem, options, case.layout.n_devices)
        outcome = search(context, space=ShapeSpace(shapes, len(shapes), {}))
        listed = {*own}
        results += [(c.step_s, c.layout) for c in outcome.finalists if c.layout in listed][:1]
    if not results:
        return None, float("inf")
    step_s, layout = min(results, key=lambda x: x[0])
    return layout, step_s


def one_of_each_shape(layouts: Iterable[Layout]) -> list[Layout]:
    """Return the first layout of every shape among some."""
    entries: dict[object, Layout] = {}
    for x in layouts:
        key = (x.tp, x.pp, x.vpp, x.split, x.cp, x.cp_comm, x.ep, x.etp, x.schedule, x.rank_order)
        entries.setdefault(key, x)
    return list(entries.values())


def unrestricted(
    problem: Problem, n_devices: int, layouts: Sequence[Layout] = ()
) -> tuple[Layout | None, float]:
    """Return the first of a search of everything that the model prices, and its step.

    What nobody looks at unless it is named, ways to run a layer and activations on the host, is
    looked at where one of some `layouts` runs so.
    """
    axis = "activation_offload_layers"
    only = {axis: frozenset({0, *(layout.code(axis) for layout in layouts)})}
    options = SearchOptions(
        framework="any", n_finalists=N_FINALISTS, only=only if only[axis] > {0} else {}
    )
    options = with_open_modes(problem, options)
    opened = dict(options.open)
    for layout in layouts:
        for axis, _ in layout.switches:
            usual = opened.get(axis, frozenset({AXES[axis].code(AXES[axis].off)}))
            opened[axis] = usual | {layout.code(axis)}
    outcome = search(Context(problem, replace(options, open=opened), n_devices))
    if not outcome.finalists:
        return None, float("inf")
    return outcome.finalists[0].layout, outcome.finalists[0].step_s


def by_problem(plans: Iterable[Used]) -> list[list[Used]]:
    """Return plans by what is priced besides the layout: kernels and precision may differ."""
    groups: dict[str, list[Used]] = {}
    for plan in plans:
        groups.setdefault(repr((plan.case.problem, plan.case.layout.n_devices)), []).append(plan)
    return list(groups.values())


def search_sweep(sweep: MeasuredSweep) -> SearchedSweep:
    """Return one sweep searched, restricted and not."""
    first = min(sweep.plans, key=lambda plan: plan.prediction.step_s)
    groups = by_problem(sweep.plans)
    layout, picked_s = min((restricted(group) for group in groups), key=lambda x: x[1])
    best = min((best_of(group) for group in groups), key=lambda x: x[1])
    return SearchedSweep(
        sweep, first.case.layout, first.prediction.step_s, layout, picked_s, *best
    )


def best_of(plans: Sequence[Used]) -> tuple[Layout | None, float]:
    """Return the first of an unrestricted search for layouts of one problem, and its step.

    Where the fastest of them exceeds the memory by its prediction, it has the memory.
    """
    first = min(plans, key=lambda plan: plan.prediction.step_s)
    problem = fitting(first.case.problem, first.prediction.peak_bytes)
    layouts = [plan.case.layout for plan in plans]
    return unrestricted(problem, first.case.layout.n_devices, layouts)


def search_sweeps(
    sweeps: Sequence[MeasuredSweep], progress: Progress = None
) -> list[SearchedSweep]:
    """Return every sweep searched: a second each; `progress` is told how many are."""
    results = []
    for i, sweep in enumerate(sweeps, start=1):
        results.append(search_sweep(sweep))
        if progress is not None:
            progress(i, len(sweeps))
    return results


def searched_json(sweeps: Sequence[SearchedSweep]) -> dict[str, Any]:
    """Return the sweeps and how many hold, in seconds."""
    return {
        "schema_version": 1,
        "sweeps": [
            {
                "source": one.sweep.source,
                "key": one.sweep.key,
                "n_plans": len(one.sweep.plans),
                "ranked": shown_layout(one.ranked),
                "ranked_s": one.ranked_s,
                "picked": shown_layout(one.picked) if one.picked else None,
                "agrees": one.agrees,
                "best": shown_layout(one.best) if one.best else None,
                "best_s": one.best_s if one.best else None,
                "covers": one.covers,
            }
            for one in sweeps
        ],
        "n_agree": sum(one.agrees for one in sweeps),
        "n_cover": sum(one.covers for one in sweeps),
    }


def searched_text(sweeps: Sequence[SearchedSweep]) -> str:
    """Return the same as lines, with what the best plan gains on the fastest measured layout."""
    lines = [
        "Every sweep searched. Restricted to the measured layouts: is the pick that of ranking",
        "them one by one? Unrestricted: what the first gains on the best of them, both predicted.",
        "",
    ]
    for one in sweeps:
        lines.append(f"{one.sweep.key}, {len(one.sweep.plans)} layouts")
        same = "the same" if one.agrees else "ANOTHER"
        lines += wrapped(
            "  measured:", f"{shown_layout(one.ranked)}, {one.ranked_s:.3f} s", indent=12
        )
        lines.append(f"  search:   {same}")
        gain = 1.0 - one.best_s / one.ranked_s
        best = f"{shown_layout(one.best)}, {gain:.1%} less" if one.best else "nothing fits"
        lines += wrapped("  open:", best + ("" if one.covers else ", LONGER"), indent=12)
    gains = [1.0 - one.best_s / one.ranked_s for one in sweeps if one.best]
    lines += [
        "",
        f"{len(sweeps)} sweeps: the same pick in {sum(x.agrees for x in sweeps)}, no longer step"
        f" in {sum(one.covers for one in sweeps)}, {mean(gains) or 0.0:.1%} less on average",
    ]
    return "\n".join(lines) + "\n"
