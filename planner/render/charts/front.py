"""Pareto fronts: points that no other point beats in both of two measures."""

import math
from typing import Any

from planner.render.charts.chart import Chart, Frame, drawn_rows, log_ticks, plain_figure
from planner.render.report.answers import AnswerTable, layout_text
from planner.render.report.points import Measure, SweepPoints
from planner.render.report.theme import CATEGORIES, GREY

EQUAL_FRAC = 1e-9


def front_points(x: Measure, y: Measure, rows: list[int]) -> list[int]:
    """Return the rows of the front, by growing x: none has both as little and one less."""
    order = sorted(rows, key=lambda row: (x.values[row], y.values[row], row))
    results: list[int] = []
    for row in order:
        if not results or y.values[row] < y.values[results[-1]] * (1 - EQUAL_FRAC):
            results.append(row)
    return results


def front_chart(points: SweepPoints, x: Measure, y: Measure) -> Chart:
    """Return all points in two measures, less of both is better, with their front."""
    both = [
        row
        for row in range(points.n)
        if math.isfinite(x.values[row]) and math.isfinite(y.values[row])
    ]
    notes: tuple[str, ...] = ()
    job = ""
    if points.job_axes and both:
        last = points.jobs[both[-1]]
        both = [row for row in both if points.jobs[row] == last]
        job = points.job_text(last)
        notes = (f"Points of one job: {job}.",)
    best = front_points(x, y, both)
    rest, note = drawn_rows([row for row in both if row not in set(best)])
    drawn_front, front_note = drawn_rows(best)

    def trace(rows: list[int], name: str, **more: Any) -> dict[str, Any]:
        return {
            "type": "scatter",
            "name": name,
            "x": [x.scale.shown(float(x.values[row])) for row in rows],
            "y": [y.scale.shown(float(y.values[row])) for row in rows],
            "text": [_hover(points, x, y, row) for row in rows],
            "hovertemplate": "%{text}<extra></extra>",
            **more,
        }

    traces = [
        trace(
            rest,
            "other points",
            mode="markers",
            marker={"size": 6, "opacity": 0.4, "color": GREY},
        ),
        trace(
            drawn_front,
            "front",
            mode="lines+markers",
            marker={"size": 10, "color": CATEGORIES[0]},
            line={"width": 2.5, "shape": "hv", "color": CATEGORIES[0]},
        ),
    ]
    layout: dict[str, Any] = {}
    for name, measure in (("xaxis", x), ("yaxis", y)):
        values = [float(measure.values[row]) for row in both if measure.values[row] > 0]
        log = bool(values) and max(values) / min(values) >= 20
        shown = [value / measure.scale.factor for value in values]
        layout[name] = {"title": {"text": plain_figure(measure.label)}}
        layout[name] |= log_ticks(shown) if log else {"rangemode": "tozero"}
    rows = tuple(
        (
            x.scale.shown(float(x.values[row])),
            y.scale.shown(float(y.values[row])),
            points.machines(row),
            points.where(row, points.job_axes),
            layout_text(points, row),
            points.number(row),
        )
        for row in best
    )
    return Chart(
        f"front-{x.key}-{y.key}".replace("_", "-"),
        f"{x.title} against {y.title.lower()}",
        _says(points, x, y, both, best),
        Frame(layout=layout).figure(traces),
        AnswerTable((x.label, y.label, "Machines", "Where", "Layout", "Point"), rows),
        notes + note + front_note + ("The table holds the front.",),
    )


def _hover(points: SweepPoints, x: Measure, y: Measure, row: int) -> str:
    parts = (
        points.where(row),
        points.machines(row),
        f"{x.title} {x.scale.text(float(x.values[row]))}",
        f"{y.title} {y.scale.text(float(y.values[row]))}",
        layout_text(points, row),
    )
    return "<br>".join(plain_figure(part, 110) for part in parts if part)


def _says(points: SweepPoints, x: Measure, y: Measure, rows: list[int], best: list[int]) -> str:
    if not best:
        return "No point has both."
    if len(best) == 1:
        return f"One point is best in both: {points.machines(best[0])}, {points.where(best[0])}."
    ends = [
        f"{x.scale.text(float(x.values[row]), 3)} for {y.scale.text(float(y.values[row]), 3)}"
        f" ({points.machines(row)})"
        for row in (best[0], best[-1])
    ]
    return (
        f"{len(best):,} of {len(rows):,} points are on the Pareto front, from {ends[0]} to"
        f" {ends[1]}."
    )
