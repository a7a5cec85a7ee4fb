"""Best step time and cost over one varied axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.render.charts.chart import (
    HEIGHT,
    Chart,
    Frame,
    axis_layout,
    drawn_rows,
    log_ticks,
    plain_figure,
)
from planner.render.report.answers import AnswerTable, layout_text
from planner.render.report.bins import Bins, bins, least_by
from planner.render.report.points import Measure, PointAxis, SweepPoints
from planner.render.report.quantities import Scale
from planner.render.report.theme import CATEGORIES, GREY

LOG_FROM = 20.0
"""Ratio of the largest to the least point from which a figure of points is logarithmic."""
MAX_LINES = 6
"""Jobs that are drawn as lines of their own."""


@dataclass(frozen=True, slots=True)
class _Panel:
    """One panel of the figure: a measure over the values of the axis."""

    points: SweepPoints
    axis_bins: Bins
    measure: Measure
    where: dict[str, Any]
    """Settings of every trace in it: its axes, and whether the legend lists it."""


def axis_chart(
    points: SweepPoints, axis: PointAxis, number: int, only: Sequence[Measure] = ()
) -> Chart:
    """Return best step time and cost at each value of an axis, all others free and as at the best.

    `number` tells apart the keys of several axes; `only` are measures in place of these two.
    """
    measures = list(only) or [points.time] + ([points.cost] if points.cost else [])
    measures.sort(key=lambda measure: measure is not points.aim)
    tick_lines = 1
    axis_bins = bins(points, axis)
    own_job = axis in points.job_axes
    other_jobs = [a for a in points.job_axes if a is not axis]
    job_of_row = [
        tuple(points.values(a.column)[row] for a in other_jobs) for row in range(points.n)
    ]
    all_jobs = list(dict.fromkeys(job_of_row))
    if len(all_jobs) > 1:
        # Jobs have times of their own size; beside them is what the axis changes in each.
        measures = [measures[0], _relative(measures[0], axis_bins, job_of_row)]
    jobs = all_jobs if len(all_jobs) <= MAX_LINES else _spread(all_jobs, MAX_LINES)
    traces: list[dict[str, Any]] = []
    rows: list[tuple[str | float | int | None, ...]] = []
    layout: dict[str, Any] = {
        "grid": {"rows": 1, "columns": len(measures), "pattern": "independent"}
    }
    notes = list(axis_bins.note)
    for i, measure in enumerate(measures):
        suffix = "" if i == 0 else str(i + 1)
        layout[f"xaxis{suffix}"], tick_lines = axis_layout(axis, axis_bins, len(measures))
        layout[f"yaxis{suffix}"] = {
            "title": {"text": plain_figure(measure.label)},
            "rangemode": "tozero",
        }
        where = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}", "showlegend": i == 0}
        panel = _Panel(points, axis_bins, measure, where)
        if axis_bins.binned:
            drawn, note = drawn_rows([r for r in range(points.n) if points.solved[r]])
            notes += note if i == 0 else ()
            traces.append(_dots(panel, drawn))
            shown = [value for value in traces[-1]["y"] if value]
            if shown and max(shown) / min(shown) >= LOG_FROM:
                layout[f"yaxis{suffix}"] = log_ticks(shown) | {
                    "title": {"text": plain_figure(measure.label)}
                }
        for place, job in enumerate(jobs):
            name = (
                "best of all"
                if not job
                else ", ".join(
                    f"{a.title} {a.text(v)}" for a, v in zip(other_jobs, job, strict=True)
                )
            )
            keys = [
                place if job_of_row[row] == job else None
                for row, place in enumerate(axis_bins.of_row)
            ]
            best = least_by(measure, keys)
            colour = CATEGORIES[place]
            traces.append(_line(panel, best, name, colour))
            if i == 0:
                rows += _rows(points, measures, best, name, axis_bins)
        if len(points.axes) > 1 and not points.job_axes and not axis_bins.binned:
            traces += _slice(panel)
    if len(all_jobs) > len(jobs):
        notes.append(f"{len(jobs)} of {len(all_jobs)} jobs are drawn.")
    head = (f"{axis.title} range",) if axis_bins.binned else (axis.label,)
    shown_measures = [m.title.lower() for m in measures if m.key != "relative"]
    what = f"Best {' and '.join(shown_measures)} over {axis.title}"
    return Chart(
        f"axis-{number}",
        what,
        _says(points, axis, axis_bins, own_job),
        Frame(HEIGHT, layout, -(-len(jobs) // 2), tick_lines).figure(traces),
        AnswerTable(
            ("Series", *head, *(m.label for m in measures), "Machines", "Layout", "Point"),
            tuple(rows),
        ),
        tuple(dict.fromkeys(notes)),
    )


def _relative(measure: Measure, axis_bins: Bins, job_of_row: list[tuple[Any, ...]]) -> Measure:
    """Return a measure as a share of the best of the same job at the first value with a plan."""
    keys = [
        None if place is None else (job, place)
        for job, place in zip(job_of_row, axis_bins.of_row, strict=True)
    ]
    first: dict[Any, tuple[int, float]] = {}
    best: dict[Any, int] = least_by(measure, keys)
    for (job, place), row in best.items():
        if job not in first or place < first[job][0]:
            first[job] = (place, float(measure.values[row]))
    base = [first[job][1] if job in first else math.nan for job in job_of_row]
    title = f"{measure.title} against the first"
    return Measure("relative", title, measure.values / np.array(base), Scale(0.01, "%"))


def _spread(items: list[Any], count: int) -> list[Any]:
    """Return `count` items from the first to the last, evenly spaced."""
    return [items[round(k * (len(items) - 1) / (count - 1))] for k in range(count)]


def _places(axis_bins: Bins, numbers: list[int]) -> list[float | None]:
    axis = axis_bins.axis
    if not axis.numeric:
        return [float(number) for number in numbers]
    return [axis.scale.shown(axis_bins.centres[number]) for number in numbers]


def _line(panel: _Panel, best: dict[Any, int], name: str, colour: str) -> dict[str, Any]:
    points, measure, axis_bins = panel.points, panel.measure, panel.axis_bins
    numbers = sorted(best)
    trace = {
        "name": plain_figure(name),
        "legendgroup": plain_figure(name),
        "x": _places(axis_bins, numbers),
        "y": [measure.scale.shown(float(measure.values[best[n]])) for n in numbers],
        "text": [_hover(points, best[n]) for n in numbers],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"size": 9, "color": colour},
        **panel.where,
    }
    if axis_bins.axis.numeric:
        del trace["textposition"]
        line = {"width": 2.5, "color": colour}
        return trace | {"type": "scatter", "mode": "lines+markers", "line": line}
    return trace | {"type": "bar", "marker": {"color": colour}}


def _slice(panel: _Panel) -> list[dict[str, Any]]:
    """Return the line on which all other axes are as at the fastest point; empty if too short."""
    points, measure, axis_bins = panel.points, panel.measure, panel.axis_bins
    axis = axis_bins.axis
    row = points.best(points.time)
    if row is None:
        return []
    others = [points.values(a.column) for a in points.axes if a is not axis]
    alike = [
        place if all(column[r] == column[row] for column in others) else None
        for r, place in enumerate(axis_bins.of_row)
    ]
    best = least_by(measure, alike)
    over_all = least_by(measure, list(axis_bins.of_row))
    values = measure.values
    if len(best) < 2 or all(values[row] == values[over_all[key]] for key, row in best.items()):
        return []
    name = "other axes as at the fastest point"
    line = _line(panel, best, name, CATEGORIES[1])
    if axis.numeric:
        line["line"] |= {"width": 2, "dash": "dot"}
        line["marker"] |= {"size": 12, "symbol": "circle-open"}
    return [line]


def _dots(panel: _Panel, rows: list[int]) -> dict[str, Any]:
    points, measure, axis = panel.points, panel.measure, panel.axis_bins.axis
    column = points.values(axis.column)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "points",
        "legendgroup": "points",
        "x": [axis.scale.shown(float(column[row])) for row in rows],
        "y": [measure.scale.shown(float(measure.values[row])) for row in rows],
        "hovertemplate": "%{x}: %{y}<extra></extra>",
        "marker": {"size": 4, "opacity": 0.45, "color": GREY},
        **panel.where,
    }


def _hover(points: SweepPoints, row: int) -> str:
    parts = [points.where(row), points.machines(row)]
    parts.append(f"{points.time.title} {points.time.scale.text(points.time.values[row])}")
    if points.cost is not None and math.isfinite(points.cost.values[row]):
        parts.append(f"{points.cost.title} {points.cost.scale.text(points.cost.values[row], 3)}")
    parts.append(layout_text(points, row))
    return "<br>".join(plain_figure(part, 110) for part in parts if part)


def _rows(
    points: SweepPoints, measures: list[Measure], best: dict[Any, int], name: str, axis_bins: Bins
) -> list[tuple[str | float | int | None, ...]]:
    """Return the rows of the fastest points; each measure is the best of its own."""
    rows: list[tuple[str | float | int | None, ...]] = []
    axis = axis_bins.axis
    for number in sorted(best):
        row = best[number]
        inside = [
            r
            for r, place in enumerate(axis_bins.of_row)
            if place == number and points.jobs[r] == points.jobs[row]
        ]
        cells: list[str | float | int | None] = [name]
        cells.append(
            axis_bins.labels[number]
            if axis_bins.binned or not axis.numeric
            else axis.scale.shown(axis_bins.centres[number])
        )
        for measure in measures:
            least = points.best(measure, inside)
            cells.append(
                None if least is None else measure.scale.shown(float(measure.values[least]))
            )
        cells += [points.machines(row), layout_text(points, row), points.number(row)]
        rows.append(tuple(cells))
    return rows


def _says(points: SweepPoints, axis: PointAxis, axis_bins: Bins, own_job: bool) -> str:
    measure = points.aim
    jobs = points.jobs
    rows = [row for row in range(points.n) if points.solved[row]]
    if points.job_axes and not own_job and rows:
        rows = [row for row in rows if jobs[row] == jobs[rows[-1]]]
    chosen = set(rows)
    best = least_by(
        measure, [p if row in chosen else None for row, p in enumerate(axis_bins.of_row)]
    )
    if not best:
        return f"No value of {axis.title} has a plan."
    numbers = sorted(place for place in best if isinstance(place, int))
    texts = [
        f"{measure.scale.text(float(measure.values[best[n]]))} at {axis.at(axis_bins.labels[n])}"
        for n in (numbers[0], numbers[-1])
    ]
    least = min(numbers, key=lambda n: (measure.values[best[n]], n))
    text = f"The best {measure.title.lower()} is {texts[0]}"
    if points.job_axes and not own_job:
        text = f"{points.job_text(jobs[rows[-1]])}: {text[:1].lower()}{text[1:]}"
        text = f"{text[:1].upper()}{text[1:]}"
    if len(numbers) > 1:
        text += f" and {texts[1]}"
    if least not in (numbers[0], numbers[-1]):
        text += f"; the least is at {axis_bins.labels[least]}"
    empty = [axis_bins.labels[n] for n in range(len(axis_bins.labels)) if n not in best]
    if empty:
        text += f"; without a plan: {', '.join(empty[:5])}{', ...' if len(empty) > 5 else ''}"
    return text + "."
