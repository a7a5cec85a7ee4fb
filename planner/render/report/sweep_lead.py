"""What leads the report of a sweep: three sentences, and the axes of one chart.

One view model for terminals, files and pages. Every number comes from the rows. Points are judged
by what the search was to make small (`SweepPoints.aim`), of which less is better.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from costmodels.documentation.terms import TIME_TERMS
from planner.analyze.bottleneck import CUT_BY, MEANING, MEMORY, parts_of_terms
from planner.render.report.answers import none_fits
from planner.render.report.effects import MIN_CHAINS_SHARE, Effect, chains, effects
from planner.render.report.points import Measure, PointAxis, SweepPoints, shortened_name
from planner.render.report.quantities import short_number
from planner.solver.answer.uncertainty import TIE_FRAC
from planner.units import GIB

EQUAL_FRAC = 1e-9
"""Points whose values are this near are equal: floating point aside they are one."""


@dataclass(frozen=True)
class SweepLead:
    """The head of a report."""

    sentences: tuple[str, str, str]
    """Which point is best, what limits it, where the curve turns or which axis decides."""
    points: SweepPoints
    """Those that compare: of one job where jobs differ."""
    measure: Measure
    best_idx: int | None
    """Row of the best of them."""
    axes: tuple[PointAxis, ...]
    """Of the chart: none without a plan or an axis, one, or two (across, down)."""


def sweep_lead(
    points: SweepPoints, x: PointAxis | None = None, y: PointAxis | None = None
) -> SweepLead:
    """Return the lead of a sweep; `x` and `y` are the axes of its chart where they are chosen."""
    compared, job = comparable(points)
    measure = compared.aim
    best_idx = compared.best(measure)
    if best_idx is None:
        return SweepLead(_sentences_without_plan(points), compared, measure, None, ())
    ranked = _ranked(compared, measure)
    sentences = (
        job + best_sentence(compared, measure, best_idx),
        limit_sentence(compared, best_idx),
        deciding_sentence(compared, measure, best_idx, ranked),
    )
    own = {axis.path: axis for axis in compared.axes}
    x, y = (own[axis.path] if axis is not None else None for axis in (x, y))
    shown = map_axes([axis for axis, _ in ranked], x, y)
    axes = tuple(axis for axis in shown if axis is not None)
    return SweepLead(sentences, compared, measure, best_idx, axes)


def map_axes(
    ranked: Sequence[PointAxis], x: PointAxis | None, y: PointAxis | None
) -> tuple[PointAxis | None, PointAxis | None]:
    """Return the axes of a map: those asked for, then those that matter most."""
    free = [axis for axis in ranked if axis not in (x, y)]
    if x is None and free:
        x = free.pop(0)
    if y is None and free:
        y = free.pop(0)
    return x, y


def comparable(points: SweepPoints) -> tuple[SweepPoints, str]:
    """Return the points of one job, and the words that name it; all points without other axes.

    Of several jobs it is the one with most plans, of equal ones the last.
    """
    planned = [points.jobs[row] for row in range(points.n) if points.solved[row]]
    jobs = list(dict.fromkeys(planned))
    if len(jobs) < 2:
        return points, ""
    job = max(reversed(jobs), key=planned.count)
    alone = points.only([row for row in range(points.n) if points.jobs[row] == job])
    if planned.count(job) < 2 or not _varied(alone):
        return points, ""
    return alone, f"{shortened_name(points.job_text(job))}, one of {len(jobs)} jobs: "


def best_sentence(points: SweepPoints, measure: Measure, best_idx: int) -> str:
    """Return which point is best, and by how much against the median of those with a plan."""
    values = [float(v) for v in measure.values if math.isfinite(v)]
    best = float(measure.values[best_idx])
    machines = points.machines(best_idx)
    where = points.where(best_idx, [a for a in points.axes if len(a.values) < 2])
    name = f"{where} ({machines})" if where else machines
    text = f"{measure.title.lower()} {measure.scale.text(best)}"
    if len(values) == 1:
        return f"The only point with a plan is {name}: {text}."
    middle = max(values) if len(values) == 2 else float(median(values))
    against = "the other" if len(values) == 2 else f"the median of {len(values):,} points"
    n_equal = sum(value <= best * (1 + EQUAL_FRAC) for value in values) - 1
    equal = f"; equal points: {n_equal:,}" if n_equal else ""
    less = f"{share_text(1 - best / middle)} below {against}, {measure.scale.text(middle)}"
    if middle <= best * (1 + EQUAL_FRAC):
        less = f"the same as {against}"
    return f"Best is {name}: {text}, {less}{equal}."


def limit_sentence(points: SweepPoints, best_idx: int) -> str:
    """Return what limits the best point, its share of the step, and how many points share it."""
    bindings = points.texts("best.binding")
    part = bindings[best_idx]
    if not part:
        return "The rows do not say what limits it."
    others = [row for row in range(points.n) if points.solved[row] and row != best_idx]
    n_alike = sum(bindings[row] == part for row in others)
    alike = f"; so are {n_alike:,} of the {len(others):,} others" if others else ""
    if len(others) == 1:
        alike = "; so is the other point" if n_alike else "; the other point is not"
    step_s = float(points.numbers("best.step_time_s")[best_idx])
    next_s = float(points.numbers("best.next_step_time_s")[best_idx])
    roomier = float(points.numbers("best.next_memory_bytes")[best_idx])
    if part == MEMORY and next_s < step_s:
        saved = share_text(1 - next_s / step_s)
        needs = f"without recomputation a step takes {saved} less"
        if math.isfinite(roomier):
            needs += f", in {short_number(roomier / GIB, 3)} GiB"
        return f"It is limited by memory: {needs}{alike}."
    share_s = parts_of_row(points, best_idx).get(part)
    share = "" if share_s is None else f", {share_text(share_s / step_s)} of the step"
    meaning = f" ({MEANING[part]})" if part in MEANING else ""
    return f"It is limited by {shortened_name(part).replace('_', ' ')}{share}{meaning}{alike}."


def parts_of_row(points: SweepPoints, row: int) -> Mapping[str, float]:
    """Return the parts of a row's step, seconds (`planner.analyze.bottleneck.parts_s`).

    Empty where the rows lack a term or an elasticity.
    """
    time = {term: float(points.numbers(f"best.time.{term}_s")[row]) for term in TIME_TERMS}
    cut = {name: float(points.numbers(f"elasticity.{name}")[row]) for name in CUT_BY}
    if not all(math.isfinite(value) for value in (*time.values(), *cut.values())):
        return {}
    return parts_of_terms(time, cut, points.values("best.optimizer_offload")[row] is True)


def deciding_sentence(
    points: SweepPoints,
    measure: Measure,
    best_idx: int,
    ranked: Sequence[tuple[PointAxis, float]],
) -> str:
    """Return which axis decides, and from which of its values on more no longer pays."""
    if not ranked:
        return "Nothing was varied."
    axis, spread = ranked[0]
    if not math.isfinite(spread):
        return _fitted_sentence(points)
    turn = turn_clause(points, measure, axis, best_idx)
    if len(ranked) == 1:
        return f"{turn[:1].upper()}{turn[1:]}."
    name, what = f"{axis.title[:1].upper()}{axis.title[1:]}", measure.title.lower()
    text = f"{name} decides: {what} differs by {ratio_text(spread)} over its values"
    second, next_spread = ranked[1]
    if math.isfinite(next_spread):
        text += f", by {ratio_text(next_spread)} over those of {second.title}"
    return f"{text}; {turn}."


def turn_clause(points: SweepPoints, measure: Measure, axis: PointAxis, best_idx: int) -> str:
    """Return where the curve of an axis turns, all other axes as at the best point."""
    rows = [
        row
        for chain in chains(points, axis)
        if best_idx in chain
        for row in chain
        if math.isfinite(measure.values[row])
    ]
    places = [axis.text(points.values(axis.column)[row]) for row in rows]
    curve = [float(measure.values[row]) for row in rows]
    what = measure.title.lower()
    if len(rows) < 2:
        return f"no other value of {axis.title} has a plan beside the best"
    if max(curve) <= min(curve) * (1 + TIE_FRAC):
        return (
            f"{axis.title} hardly matters: {what} differs by {ratio_text(max(curve) / min(curve))}"
        )
    if not axis.numeric:
        (_, first), (following, second) = sorted(zip(curve, places, strict=True))[:2]
        gap = share_text(1 - min(curve) / following)
        return f"by {axis.title}, {first} leads {second} by {gap}"
    k = turn_idx(curve)
    if k == len(curve) - 1:
        gain = share_text(1 - curve[-1] / curve[-2])
        return f"{axis.title} still pays at the end: {places[-2]} to {places[-1]} takes {gain} off"
    worst, where = max(zip(curve[k + 1 :], places[k + 1 :], strict=True))
    grown = worst / curve[k]
    rest = share_text(max(0.0, 1 - min(curve[k + 1 :]) / curve[k]))
    beyond = f"the rest takes {rest} off"
    if grown > 1 + TIE_FRAC:
        beyond = f"at {where} {what} is higher by {ratio_text(grown)}"
    if k == 0:
        return f"more {axis.title} than {places[0]} pays nowhere here: {beyond}"
    return f"from {axis.at(places[k])} on more no longer pays: {beyond}"


def turn_idx(curve: Sequence[float]) -> int:
    """Return the first place of a curve from which no later value is better by more than a tie.

    k = min i with c_i <= (1 + `TIE_FRAC`) min(c_i, c_i+1, ...); less is better.

    >>> turn_idx([100.0, 60.0, 50.0, 49.8, 55.0]), turn_idx([3.0, 2.0, 1.0]), turn_idx([1.0, 2.0])
    (2, 2, 0)
    """
    return next(i for i, value in enumerate(curve) if value <= min(curve[i:]) * (1 + TIE_FRAC))


def axis_spread(points: SweepPoints, axis: PointAxis, measure: Measure) -> float:
    """Return the worst over the best value along an axis: the geometric mean over its chains.

    A chain holds points alike in all other axes. NaN where too few points stand in chains.
    """
    logs: list[float] = []
    n_compared = 0
    for chain in chains(points, axis):
        values = [float(measure.values[row]) for row in chain]
        planned = [value for value in values if math.isfinite(value) and value > 0]
        if len(planned) > 1:
            logs.append(math.log(max(planned) / min(planned)))
            n_compared += len(planned)
    if not logs or n_compared < MIN_CHAINS_SHARE * int(points.solved.sum()):
        return math.nan
    return math.exp(sum(logs) / len(logs))


def share_text(share: float) -> str:
    """Return a share as per cent: `12.5 %`."""
    return f"{short_number(round(share * 100, 2), 3)} %"


def ratio_text(ratio: float) -> str:
    """Return how far apart two values are, the larger over the smaller.

    >>> ratio_text(1.125), ratio_text(3.9583)
    ('12.5 %', 'a factor of 3.96')
    """
    return f"a factor of {short_number(ratio, 3)}" if ratio >= 2 else share_text(ratio - 1)


def _varied(points: SweepPoints) -> list[PointAxis]:
    return [axis for axis in points.axes if len(axis.values) > 1]


def _ranked(points: SweepPoints, measure: Measure) -> list[tuple[PointAxis, float]]:
    """Return the varied axes with their spread, the widest first; those of a fit by its effect."""
    spreads = [(axis, axis_spread(points, axis, measure)) for axis in _varied(points)]
    fitted = {} if all(math.isfinite(s) for _, s in spreads) else _strengths(points)

    def key(entry: tuple[PointAxis, float]) -> tuple[bool, float, str]:
        axis, spread = entry
        is_told = math.isfinite(spread)
        return not is_told, -(spread if is_told else fitted.get(axis.path, 0.0)), axis.path

    return sorted(spreads, key=key)


def _strengths(points: SweepPoints) -> dict[str, float]:
    return {effect.axis.path: effect.strength for effect in effects(points)}


def _fitted_sentence(points: SweepPoints) -> str:
    """Return which axis decides where no points are alike in all but one: by a fit."""
    told = [effect for effect in effects(points) if effect.method == "fit" and effect.is_told]
    if not told:
        return "Which axis decides the points do not tell: too few are alike in all but one."
    strongest: Effect = max(told, key=lambda effect: effect.strength)
    ratio, doubled = strongest.per_doubling, math.isfinite(strongest.per_doubling)
    ratio = ratio if doubled else strongest.time_ratio
    change = f"{share_text(abs(ratio - 1))} {'less' if ratio < 1 else 'more'}"
    how = "each doubling" if doubled else "its last value against its first"
    title = strongest.axis.title
    return (
        f"{title[:1].upper()}{title[1:]} decides, by a fit over the samples:"
        f" {how} takes {change} {points.time.title.lower()}."
    )


def _sentences_without_plan(points: SweepPoints) -> tuple[str, str, str]:
    """Return what is to be said where no point has a plan."""
    first, _, why = none_fits(points).partition(" Most")
    varied = ", ".join(f"{axis.title} ({axis.spans})" for axis in _varied(points))
    return (
        first,
        f"Most{why}" if why else "The rows give no reason.",
        f"No value of {varied} changes that." if varied else "Nothing was varied.",
    )
