"""The answer of a sweep in words: what was asked, what is best, what each axis buys."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.render.report.effects import NO_CHANGE, Effect, effects
from planner.render.report.points import Measure, SweepPoints, shortened_name
from planner.render.report.quantities import Scale, percent_change, scale_for, short_number
from planner.units import format_count

MAX_ASSUMED = 8
"""Parts with assumed figures that are named."""
MAX_JOBS_IN_HEADLINE = 3
MAX_JOBS_APART = 8
"""Jobs up to which each gets sentences of its own on what the axes buy."""
MAX_NAMES = 10
"""Values of an axis of names that are told one by one."""
MAX_JOBS = 12
"""Models or sequence lengths that the table of best points lists."""


@dataclass(frozen=True)
class AnswerTable:
    """A table for people: heads with units, cells as text or numbers as shown."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str | float | int | None, ...], ...]


@dataclass(frozen=True)
class SweepFindings:
    """What the head of a report says."""

    headline: str
    question: tuple[str, ...]
    points: tuple[str, ...]
    best: AnswerTable
    worth: tuple[str, ...]
    worth_table: AnswerTable
    doubts: tuple[str, ...]
    worth_title: str = "What each axis buys"


def sweep_answer(points: SweepPoints, axis_effects: Sequence[Effect]) -> SweepFindings:
    """Return the answer in words; every number in it comes from the rows."""
    return SweepFindings(
        _headline(points),
        _asked(points),
        _counts(points),
        _best(points),
        _worth(points, axis_effects),
        _worth_table(points, axis_effects),
        _doubts(points, axis_effects),
    )


def run_sentence(seconds: float) -> str:
    """Return the length of a run: days, or hours below two days."""
    if not math.isfinite(seconds):
        return "-"
    return scale_for("run_seconds", [seconds]).text(seconds, 3)


def layout_text(points: SweepPoints, row: int) -> str:
    """Return the layout of a row's best plan: its own text, or its degrees."""
    return shortened_name(points.texts("best.layout")[row]) or degrees_text(points, row)


def degrees_text(
    points: SweepPoints, row: int, names: Sequence[str] = ("tp", "pp", "cp", "ep", "dp")
) -> str:
    """Return degrees of parallelism of a row, those of 1 left out: `tp8 pp4`."""
    results = []
    for name in names:
        value = points.values(f"best.{name}")[row]
        if isinstance(value, int | float) and value > 1:
            results.append(f"{name}{int(value)}")
    return " ".join(results) or "no split"


def _headline(points: SweepPoints) -> str:
    """Return the best points in a sentence or two, of what the search was to make small first."""
    if not points.n:
        return "There are no points."
    rows = [row for row in range(points.n) if points.solved[row]]
    if not rows:
        return none_fits(points)
    if not points.job_axes:
        return _best_words(points, rows)
    jobs = list(dict.fromkeys(points.jobs[row] for row in rows))
    chosen = jobs if len(jobs) <= MAX_JOBS_IN_HEADLINE else [jobs[0], jobs[-1]]
    return " ".join(
        f"{_capital(points.job_text(job))}: "
        + _best_words(points, [row for row in rows if points.jobs[row] == job], n=1)
        for job in chosen
    )


def _best_words(points: SweepPoints, rows: Sequence[int], n: int = 2) -> str:
    """Return the best of some rows by aim, time and cost, at most `n` of them."""
    measures = [points.aim, points.time, *([points.cost] if points.cost else [])]
    message: dict[int, str] = {}
    for measure in measures:
        row = points.best(measure, rows)
        if row is not None and row not in message and len(message) < n:
            message[row] = _best_sentence(points, measure, row, is_first=not message)
    return " ".join(message.values())


_SUPERLATIVES = {"cost": "Cheapest", "energy": "Least energy", "devices": "Fewest devices"}


def _best_sentence(points: SweepPoints, measure: Measure, row: int, is_first: bool) -> str:
    """Return machines, time, length and cost of the best point by a measure."""
    time, cost = points.time, points.cost
    parts = []
    if is_first or measure is time:
        parts.append(f"{time.title.lower()} {time.scale.text(time.values[row])}")
    run = points.numbers("best.run_s")[row]
    if math.isfinite(run):
        parts.append(f"{run_sentence(run)} for the run")
    if cost is not None and math.isfinite(cost.values[row]):
        text = cost.scale.text(cost.values[row], 3)
        parts.append(text if "run" in cost.title else f"{text} per million tokens")
    which = _SUPERLATIVES.get(measure.key, "Fastest")
    return f"{which} is {points.machines(row)}{_named(points, row)}: {', '.join(parts)}."


def _named(points: SweepPoints, row: int) -> str:
    """Return the names that the point has on axes of names, the jobs aside: ` (twice the NIC)`."""
    named = [
        axis.text(points.values(axis.column)[row])
        for axis in points.axes
        if not axis.numeric and axis not in points.job_axes and len(axis.values) > 1
    ]
    return f" ({', '.join(named)})" if named else ""


def none_fits(points: SweepPoints) -> str:
    """Return that no point has a plan, and why most often."""
    reasons = Counter(shortened_name(r, 120) for r in points.texts("reason") if r)
    maximum = reasons.most_common(1)
    why = f" Most often because: {maximum[0][0]} ({maximum[0][1]:,} points)." if maximum else ""
    return f"None of the {points.n:,} points has a plan.{why}"


def _asked(points: SweepPoints) -> tuple[str, ...]:
    header, results = points.header, []
    job = ", ".join(
        shortened_name(text)
        for text in (
            _one(points.texts("model")) or _name(header, "model"),
            _one(points.texts("cluster")) or _name(header, "cluster"),
        )
        if text
    )
    if job:
        results.append(f"Job and cluster: {job}.")
    training = header.get("model")
    training = training.get("training") if isinstance(training, Mapping) else None
    if isinstance(training, Mapping):
        varied_words = {axis.path.rsplit(".", 1)[-1] for axis in points.axes}
        messages = [
            f"{word} {_plain_value(training[key])}"
            for key, word in _TRAINING_WORDS.items()
            if training.get(key) is not None and key not in varied_words
        ]
        if messages:
            results.append(f"The same everywhere: {', '.join(messages)}.")
    changed = header.get("set")
    if isinstance(changed, Mapping) and changed:
        results.append(f"Set: {_pairs(changed)}.")
    varied = [axis for axis in points.axes if len(axis.values) > 1]
    if varied:
        results.append(
            "Varied: " + "; ".join(f"{axis.title} ({axis.spans})" for axis in varied) + "."
        )
    else:
        results.append("Nothing was varied.")
    where = header.get("where")
    if isinstance(where, list | tuple) and where:
        results.append(f"Only where: {'; '.join(shortened_name(text, 120) for text in where)}.")
    search = {**_mapping(header.get("options")), **_mapping(header.get("search"))}
    messages = [
        f"{shortened_name(key).replace('_', ' ')} {_plain_value(value)}"
        for key, value in search.items()
        if key not in ("top", "allow") and value not in (None, "", [], {}, False, 0, ())
    ]
    if messages:
        results.append(f"Search: {', '.join(messages)}.")
    return tuple(results)


_TRAINING_WORDS = {
    "tokens": "tokens",
    "seq_len": "sequence",
    "global_batch": "global batch",
    "precision": "precision",
    "optimizer": "optimizer",
}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _plain_value(value: object) -> str:
    """Return a value of a header in a few words."""
    if isinstance(value, Mapping):
        return _pairs(value)
    if isinstance(value, list | tuple):
        return shortened_name(" / ".join(_plain_value(item) for item in value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return format_count(float(value)) if abs(value) >= 1e6 else short_number(float(value), 6)
    return shortened_name(value)


def _pairs(values: Mapping[Any, Any]) -> str:
    return ", ".join(
        f"{shortened_name(key)} {_plain_value(value)}" for key, value in values.items()
    )


def _name(header: Mapping[str, Any], key: str) -> str:
    value = header.get(key)
    if isinstance(value, Mapping):
        value = value.get("name")
    return str(value) if isinstance(value, str | int) else ""


def _one(texts: Sequence[str]) -> str:
    """Return the only text, or how many there are; empty without any."""
    result = list(dict.fromkeys(text for text in texts if text))
    if len(result) > 3:
        return (
            f"{len(result)} of them, {shortened_name(result[0])} to {shortened_name(result[-1])}"
        )
    return " / ".join(shortened_name(text) for text in result)


def _counts(points: SweepPoints) -> tuple[str, ...]:
    counts = Counter(points.statuses)
    n_solved = int(points.solved.sum())
    design = str(points.header.get("design") or "")
    text = f"{points.n:,} points{f' ({shortened_name(design)})' if design else ''}: "
    parts = [f"{n_solved:,} with a plan"]
    proven = [
        value for value, ok in zip(points.values("proven"), points.solved, strict=True) if ok
    ]
    if any(value is not None for value in proven):
        n_proven = sum(bool(value) for value in proven)
        parts[0] += f" ({'all' if n_proven == n_solved else f'{n_proven:,}'} proven best)"
    if counts["late"]:
        parts.append(f"{counts['late']:,} on which no plan keeps the limits")
    if counts["infeasible"]:
        parts.append(f"{counts['infeasible']:,} on which nothing fits")
    if counts["stopped"]:
        parts.append(f"{counts['stopped']:,} stopped by the time limit")
    if counts["failed"]:
        parts.append(f"{counts['failed']:,} failed")
    expected = points.header.get("n_points")
    results = [text + ", ".join(parts) + "."]
    if isinstance(expected, int) and expected > points.n:
        results.append(
            f"{expected - points.n:,} of {expected:,} points of the design are not in the file:"
            " left out by its constraints, or not finished."
        )
    return tuple(results)


def _best(points: SweepPoints) -> AnswerTable:
    """Return the best point by each measure, or the fastest of each job where jobs differ."""
    time, cost, energy = points.time, points.cost, points.energy
    run = points.numbers("best.run_s")
    run_scale = scale_for("run_seconds", run.tolist())
    with_run = bool(points.solved.any()) and any(math.isfinite(v) for v in run[points.solved])
    picks: list[tuple[str, int]] = []
    if points.job_axes:
        jobs = dict.fromkeys(points.jobs)
        for job in list(jobs)[:MAX_JOBS]:
            row = points.best(points.aim, [r for r in range(points.n) if points.jobs[r] == job])
            if row is not None:
                picks.append((points.job_text(job), row))
    else:
        wanted: list[tuple[str, Measure | None]] = [
            ("Fastest", time),
            ("Cheapest", cost),
            ("Least energy", energy),
            ("Fewest devices", points.size),
        ]
        wanted.sort(key=lambda entry: entry[1] is not points.aim)
        titles: dict[int, list[str]] = {}
        for title, measure in wanted:
            row = points.best(measure) if measure is not None else None
            if row is not None:
                row_titles = titles.setdefault(row, [])
                row_titles.append(title.lower() if row_titles else title)
        picks = [(", ".join(row_titles), row) for row, row_titles in titles.items()]
    heads = ["", "Machines", time.label]
    heads += [f"Run ({run_scale.unit})"] if with_run else []
    heads += [measure.label for measure in (cost, energy) if measure is not None]
    heads += ["Layout", "Bound by", "Where", "Point"]
    rows = []
    for title, row in picks:
        cells: list[str | float | int | None] = [title, points.machines(row)]
        cells.append(time.scale.number(time.values[row]))
        cells += [run_scale.number(run[row], 3)] if with_run else []
        cells += [m.scale.number(m.values[row], 3) for m in (cost, energy) if m is not None]
        without = points.job_axes if points.job_axes else ()
        cells += [
            layout_text(points, row),
            points.texts("best.binding")[row].replace("_", " ") or "-",
            points.where(row, without) or "-",
            points.number(row),
        ]
        rows.append(tuple(cells))
    return AnswerTable(tuple(heads), tuple(rows))


def _faster(ratio: float, what: str) -> str:
    """Return what a time ratio means: `shortens the step time by 12.5 %`."""
    if abs(ratio - 1) * 100 < 0.05:
        return f"leaves the {what} as it is"
    if ratio < 1:
        return f"shortens the {what} by {short_number((1 - ratio) * 100, 3)} %"
    if ratio >= 2:
        return f"makes the {what} {short_number(ratio, 3)} times as long"
    return f"lengthens the {what} by {short_number((ratio - 1) * 100, 3)} %"


def _worth(points: SweepPoints, axis_effects: Sequence[Effect]) -> tuple[str, ...]:
    """Return a sentence an axis; for each job its own where jobs differ and are few."""
    jobs = list(dict.fromkeys(points.jobs[row] for row in range(points.n) if points.solved[row]))
    own = {axis.path for axis in points.job_axes}
    others = [effect for effect in axis_effects if effect.axis.path not in own]
    if not points.job_axes or not others or not 1 < len(jobs) <= MAX_JOBS_APART:
        return _worth_of(points, axis_effects, own)
    messages = []
    for job in jobs:
        alike = points.only([row for row in range(points.n) if points.jobs[row] == job])
        messages += [
            f"{_capital(points.job_text(job))}: {text[:1].lower()}{text[1:]}"
            if text.startswith(("Doubling", "Worth", "Against"))
            else text
            for text in _worth_of(alike, effects(alike), own)
        ]
    return tuple(messages)


def _worth_of(
    points: SweepPoints, axis_effects: Sequence[Effect], jobs: Collection[str]
) -> tuple[str, ...]:
    """Return a sentence an axis: the hardware first, the strongest first, sizes and jobs last."""
    what = points.time.title.lower()
    measured = [e for e in axis_effects if e.method and not e.axis.is_money_or_power]
    measured.sort(
        key=lambda e: (
            e.axis.path in jobs,
            not e.axis.is_hardware,
            e.axis.is_size,
            -e.strength,
            e.axis.path,
        )
    )
    messages = []
    doubled = [
        e
        for e in measured
        if e.axis.is_hardware and not e.axis.is_size and math.isfinite(e.per_doubling)
    ]
    gains = [e for e in doubled if e.is_told and e.per_doubling < 1 - NO_CHANGE]
    if gains and len(doubled) > 1:
        text = f"Worth most is {gains[0].axis.title}: twice as much"
        text += f" {_faster(gains[0].per_doubling, what)}; "
        if len(gains) > 1:
            text += f"the next, {gains[1].axis.title}, {_faster(gains[1].per_doubling, what)}."
        else:
            text += f"twice as much of nothing else varied shortens the {what}."
        messages.append(text)
    by_cost = points.aim is points.cost
    messages += [_effect_sentence(effect, what, by_cost) for effect in measured]
    for effect in axis_effects:
        if effect.axis.is_money_or_power:
            messages.append(
                f"{_capital(effect.axis.title)} changes cost or energy, not the {what}."
                if not effect.method or abs(math.log(effect.time_ratio)) < NO_CHANGE
                else _effect_sentence(effect, what, by_cost)
            )
        elif not effect.method:
            messages.append(
                f"What {effect.axis.title} buys cannot be told: no two points with a plan are"
                " alike in everything else."
            )
    return tuple(messages)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _effect_sentence(effect: Effect, what: str, by_cost: bool) -> str:
    axis = effect.axis
    if not effect.is_told:
        low, high = sorted((effect.least_per_doubling, effect.most_per_doubling))
        if effect.is_small_fit:
            return (
                f"Doubling {axis.title} changes the {what} by about 1 % or less"
                f" ({_signed(low)} to {_signed(high)}): too little for a fit to tell."
            )
        return (
            f"Doubling {axis.title} changes the {what} by {_signed(low)} to {_signed(high)}: the"
            " points do not tell which way."
        )
    if math.isfinite(effect.per_doubling):
        text = f"Doubling {axis.title} {_faster(effect.per_doubling, what)}"
        low, high = sorted((effect.least_per_doubling, effect.most_per_doubling))
        if effect.n_chains > 1 and math.isfinite(low) and high - low > 2e-3:
            text += (
                f" on average ({_signed(low)} to {_signed(high)} over {effect.n_chains:,} series"
                " of points alike in the rest)"
            )
        if effect.method == "fit":
            text += f" by a fit over all points ({_signed(low)} to {_signed(high)})"
        solved = [s for s in effect.steps if s.n_pairs and math.isfinite(s.time_ratio)]
        if len(solved) > 1 and abs(math.log(effect.per_doubling)) > NO_CHANGE:
            first, last = solved[0], solved[-1]
            text += (
                f"; from {axis.text(first.low)} to {axis.text(first.high)}"
                f" {_signed(first.time_ratio)}, from {axis.text(last.low)} to"
                f" {axis.text(last.high)} {_signed(last.time_ratio)}"
            )
        if math.isfinite(effect.cost_per_doubling) and (axis.is_size or by_cost):
            text += f"; the run costs {percent_change(effect.cost_per_doubling)}"
        price = math.nan if by_cost else effect.break_even_price
        if axis.is_price_worthy and math.isfinite(price) and price > 1.0005:
            text += (
                f". The run costs the same if devices with twice as much cost"
                f" {percent_change(price)} an hour"
            )
    elif effect.steps and not axis.numeric:
        return _names_sentence(effect, what, by_cost)
    else:
        text = f"{_capital(axis.title)} {axis.text(axis.values[-1])}"
        text += f" in place of {axis.text(axis.values[0])}"
        text += f" {_faster(effect.time_ratio, what)}"
        if effect.n_chains > 1:
            text += f" on average over {effect.n_chains:,} series"
        if math.isfinite(effect.cost_ratio):
            text += f"; the run costs {percent_change(effect.cost_ratio)}"
    gained = [step for step in effect.steps if step.n_gained]
    if gained:
        n = sum(change.n_gained for change in gained)
        text += (
            f". {n:,} {'point fits' if n == 1 else 'points fit'} only from"
            f" {axis.at(axis.text(gained[0].high))} on"
        )
    return text + "."


def _names_sentence(effect: Effect, what: str, by_cost: bool) -> str:
    """Return each value of an axis of names against the first, the best first."""
    axis = effect.axis
    finite = [step for step in effect.steps if math.isfinite(step.time_ratio)]
    if by_cost and all(math.isfinite(step.cost_ratio) for step in finite):
        finite.sort(key=lambda step: step.cost_ratio)
    else:
        finite.sort(key=lambda step: step.time_ratio)
        by_cost = False
    parts = []
    for step in finite[:MAX_NAMES]:
        name = axis.text(step.high)
        spread = ""
        if step.n_pairs > 1 and step.largest - step.least > 2e-3:
            spread = (
                f" ({_signed(step.least)} to {_signed(step.largest)} over {step.n_pairs:,} pairs)"
            )
        if by_cost:
            text = f"{name} costs {percent_change(step.cost_ratio)}"
            text += f" and {_faster(step.time_ratio, what)}{spread}"
        else:
            text = f"{name} {_faster(step.time_ratio, what)}{spread}"
            if (
                math.isfinite(step.cost_ratio)
                and abs(step.cost_ratio / step.time_ratio - 1) > 1e-3
            ):
                text += f" (the run costs {percent_change(step.cost_ratio)})"
        parts.append(text)
    if len(finite) > MAX_NAMES:
        parts.append(f"{len(finite) - MAX_NAMES} more stand in the table of steps")
    gained = [axis.text(step.high) for step in effect.steps if step.n_gained]
    if gained:
        parts.append(f"points that have a plan only with {_any_of(gained)} are not counted")
    lost = [f"{s.n_lost:,} with {axis.text(s.high)}" for s in effect.steps if s.n_lost]
    if lost:
        shown = ", ".join(lost[:4]) + (", ..." if len(lost) > 4 else "")
        parts.append(
            f"points that have a plan with {axis.text(axis.values[0])} have none: {shown}"
        )
    if not parts:
        parts = ["no other value has a plan beside it"]
    return f"Against {axis.title} {axis.text(axis.values[0])}: {'; '.join(parts)}."


def _any_of(names: Sequence[str]) -> str:
    return " or ".join(names[:4]) + (" or others" if len(names) > 4 else "")


def _signed(ratio: float) -> str:
    change = (ratio - 1) * 100
    text = short_number(abs(change), 3)
    return f"{'−' if change < 0 and text != '0' else '+'}{text} %"


def _worth_table(points: SweepPoints, axis_effects: Sequence[Effect]) -> AnswerTable:
    """Return every step of every axis, jobs aside, with its change of time and cost."""
    rows: list[tuple[str | float | int | None, ...]] = []
    jobs = {axis.path for axis in points.job_axes}
    for effect in (effect for effect in axis_effects if effect.axis.path not in jobs):
        for step in effect.steps:
            rows.append(
                (
                    effect.axis.title,
                    effect.axis.text(step.low),
                    effect.axis.text(step.high),
                    step.n_pairs,
                    _cell(step.time_ratio),
                    _cell(step.least),
                    _cell(step.largest),
                    _cell(step.cost_ratio),
                    step.n_gained,
                    step.n_lost,
                )
            )
        if effect.method == "fit":
            axis = effect.axis
            rows.append(
                (
                    axis.title,
                    axis.text(axis.values[0]),
                    axis.text(axis.values[-1]),
                    None,
                    _cell(effect.time_ratio),
                    None,
                    None,
                    None,
                    None,
                    None,
                )
            )
    return AnswerTable(
        (
            "Axis",
            "From",
            "To",
            "Pairs",
            f"{points.time.title} (%)",
            "least (%)",
            "most (%)",
            "Cost (%)",
            "Gained",
            "Lost",
        ),
        tuple(rows),
    )


def _r_squared(axis_effects: Sequence[Effect]) -> float:
    return next(effect.r_squared for effect in axis_effects if effect.method == "fit")


def _cell(ratio: float) -> float | None:
    return round((ratio - 1) * 100, 2) + 0.0 if math.isfinite(ratio) else None


def _doubts(points: SweepPoints, axis_effects: Sequence[Effect]) -> tuple[str, ...]:
    """Return what the reader should know before believing: assumptions, intervals, limits."""
    notes = points.header.get("notes")
    result = (
        [shortened_name(text, 300) for text in notes] if isinstance(notes, list | tuple) else []
    )
    parts: dict[str, dict[str, None]] = {}
    for text in dict.fromkeys(points.texts("assumed")):
        for name in filter(None, (item.strip() for item in text.split(","))):
            part, _, figure = name.partition(".")
            parts.setdefault(part, {})[figure] = None
    for part, figures in list(parts.items())[:MAX_ASSUMED]:
        figure_names = ", ".join(
            figure.replace("_", " ").replace(".", " ") for figure in figures if figure
        )
        result.append(
            f"Assumed, without a second source: {shortened_name(part)}"
            f"{': ' + shortened_name(figure_names, 300) if figure_names else ''}."
        )
    if len(parts) > MAX_ASSUMED:
        result.append(
            f"{len(parts) - MAX_ASSUMED:,} more parts have assumed figures: the file of all points"
            " names them."
        )
    row = points.best(points.time)
    if row is not None:
        low = points.numbers("best.step_time_p10_s")[row]
        high = points.numbers("best.step_time_p90_s")[row]
        if math.isfinite(low) and math.isfinite(high):
            scale: Scale = scale_for("seconds", [high])
            result.append(
                f"Step time of the fastest point: 80 % prediction interval {scale.text(low)} to"
                f" {scale.text(high)}."
            )
    if any(effect.method == "fit" for effect in axis_effects):
        result.append(
            "The points are samples: effects by a fit assume that each doubling is alike; their"
            " ranges are two standard errors wide on both sides; R² is"
            f" {_r_squared(axis_effects):.2f}."
        )
    if not points.same_work and not points.job_axes:
        result.append(
            "Steps differ in tokens, so points are compared by the time of a million tokens."
        )
    if points.job_axes:
        names = ", ".join(axis.title for axis in points.job_axes)
        result.append(f"Jobs differ ({names}): only points of one job are compared.")
    if points.cost is None and points.solved.any():
        result.append(
            "Without prices (price_per_hour of a pool) no cost is known: what a figure may cost is"
            " said as a share of the price of a device-hour."
        )
    if points.aim is not points.time:
        result.append(
            f"Each point is its best plan by {points.aim.title.lower()}: others may be faster,"
            " also than the one named fastest."
        )
    n_stopped = Counter(points.statuses)["stopped"]
    if n_stopped:
        result.append(
            f"{n_stopped:,} points were stopped by the time limit: their plans may not be the"
            " best."
        )
    return tuple(result)
