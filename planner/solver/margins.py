"""The memory margin: what the first plan leaves free of the usable memory, where that is cheap.

A plan fits when its peak is within the usable memory. The prediction of that peak has an error of
its own (median of 5 % over the measured families, `docs/accuracy.md`), so a plan that fills the
memory to the last per cent may run out. Of plans that take about the same time the first one
keeps the margin; those passed over for it are still listed, with their times, and named.
"""

from collections.abc import Sequence
from dataclasses import replace

from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import MarginUse, Miss
from planner.solver.answer.uncertainty import MARGIN_COST_FRAC, TIE_FRAC, keeps_margin
from planner.solver.options import SolveOptions
from planner.solver.ranking import Found
from planner.solver.scenarios import Searched, Searches, Variant, by_name, take_into_front
from planner.specs.search.objectives import BEST
from planner.units import GIB, format_percent
from searches.pricing.candidates import Candidate, layout_key
from searches.splits.uneven import resplit

RESPLIT_SHAPES = 3
"""Shapes of finalists whose layers are split again for less memory."""


def with_plans_of_margin(
    searches: Searches, variants: Sequence[Variant], options: SolveOptions
) -> None:
    """List the fastest plan that keeps the margin beside the finalists, where they have none.

    The finalists are the fastest plans, and all of them may fill the memory. So where the fastest
    does, and none of them keeps the margin as fast as makes no difference, each search is asked
    for its fastest plan on as much less memory: bounded by what such a plan may cost. A front of
    memory takes them up, so that no listed plan beats it.
    """
    unused = options.objective == "memory" or (options.pareto and "memory" not in options.pareto)
    if not options.memory_margin or unused or searches.stopped:
        return
    named, values = by_name(variants), _values(searches, variants)
    if not values:
        return
    best = min(value for value, _, _ in values)
    margin = options.memory_margin
    free = [value for value, c, one in values if keeps_margin(c, _usable(one), margin)]
    least = min(free, default=float("inf"))
    if least <= best * (1.0 + TIE_FRAC):
        return
    slowest = min(least, best * (1.0 + MARGIN_COST_FRAC))
    for i, one in enumerate(searches.listed):
        variant = named[one.name]
        limit_s = min(slowest / variant.per_s(one.n_devices), variant.limit_s(one.n_devices))
        known = {c.layout for c in one.outcome.finalists}
        new = [c for c in _plans_of_margin(variant, one, margin, limit_s) if c.layout not in known]
        if new:
            ordered = sorted((*one.outcome.finalists, *new), key=_exact_order)
            outcome = replace(one.outcome, finalists=tuple(ordered))
            searches.listed[i] = replace(one, outcome=outcome)
            if options.pareto:
                take_into_front(searches, variant, searches.listed[i], new)


def _plans_of_margin(
    variant: Variant, one: Searched, margin: float, limit_s: float
) -> list[Candidate]:
    """Return plans below a step time that keep the margin.

    The fastest of the named splits, and the first shapes of the finalists split for less memory.
    """
    bounds = variant.bounds.with_usable((1.0 - margin) * _usable(one))
    results = bounds.below(one.n_devices, limit_s)
    near = [c.layout for c in one.outcome.finalists if c.step_s < limit_s]
    for x in resplit(bounds.context(one.n_devices), near, RESPLIT_SHAPES):
        if x.step_s < limit_s:
            results.append(Candidate(x.layout, x.closed_form_s, x.peak_bytes, x.step_s))
    return results


def _exact_order(c: Candidate) -> tuple[object, ...]:
    return (c.step_s, c.peak_bytes, layout_key(c.layout))


def _usable(one: Searched) -> float:
    return one.problem.pool.usable_bytes


def _values(
    searches: Searches, variants: Sequence[Variant]
) -> list[tuple[float, Candidate, Searched]]:
    """Return the finalists that keep the limits, with the value that is to be small."""
    named, results = by_name(variants), []
    for one in searches.listed:
        variant, n = named[one.name], one.n_devices
        per_s, limit_s = variant.per_s(n), variant.limit_s(n)
        results += [
            (per_s * c.step_s, c, one) for c in one.outcome.finalists if c.step_s <= limit_s
        ]
    return results


def margin_use(
    ranked: Sequence[Found], variants: Sequence[Variant], options: SolveOptions
) -> MarginUse | None:
    """Return whether the first of the ranked plans keeps the margin, and what it passed over."""
    if not ranked or not _ranks_by_time(options):
        return None
    named, margin = by_name(variants), options.memory_margin
    rows = [(named[one.name].per_s(one.n_devices) * c.step_s, c, one) for c, one, _ in ranked]
    first_value, first, first_one = rows[0]
    if not keeps_margin(first, _usable(first_one), margin):
        return MarginUse(margin, is_kept=False)
    passed = [
        row
        for row in rows
        if row[0] < first_value and not keeps_margin(row[1], _usable(row[2]), margin)
    ]
    if not passed:
        return MarginUse(margin, is_kept=True)
    _, c, one = min(passed, key=lambda row: row[0])
    miss = Miss(c.layout, c.peak_bytes, _usable(one))
    return MarginUse(margin, True, len(passed), miss, c.step_s)


def margin_words(margin: MarginUse | None, step_s: float) -> tuple[str, ...]:
    """Return the sentence on the memory margin of a first plan of some step time.

    None is needed where it keeps the margin and no faster plan was passed over.
    """
    if margin is None:
        return ()
    share = format_percent(margin.frac, 0)
    if not margin.is_kept:
        return (
            f"leaves less than {share} of the memory free (--memory-margin): no plan was found"
            f" that leaves it and takes less than {MARGIN_COST_FRAC:.0%} more time",
        )
    miss = margin.fastest
    if miss is None or margin.fastest_step_s is None:
        return ()
    several = (
        f"{margin.n_passed_over} faster plans stand"
        if margin.n_passed_over > 1
        else "1 faster plan stands"
    )
    return (
        f"{several} behind for leaving less than {share} of the memory free: at best"
        f" {shown_layout(miss.layout)} ({margin.fastest_step_s / step_s - 1:+.1%}) at"
        f" {miss.peak_bytes / GIB:.1f} of {miss.usable_bytes / GIB:.1f} GiB;"
        " --memory-margin 0 ranks by time alone",
    )


def tie_words(objective: str, margin: MarginUse | None, step_s: float) -> str:
    """Return what plans tie with: the best by the objective, or the best that keeps the margin.

    `step_s` is the step time of the first plan.
    """
    words = BEST[objective]
    faster_s = margin.fastest_step_s if margin else None
    if faster_s is None or step_s <= faster_s * (1.0 + TIE_FRAC):
        return words
    return f"{words} that keeps the memory margin"


def _ranks_by_time(options: SolveOptions) -> bool:
    """Tell whether a margin means anything: plans are ranked by time, and some is asked for."""
    return bool(options.memory_margin) and not options.pareto and options.objective != "memory"
