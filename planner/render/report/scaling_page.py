"""The page of a scaling curve: `planner scale --html FILE`."""

from collections.abc import Sequence
from typing import Any

from planner.render.charts.axis import axis_chart
from planner.render.charts.chart import Chart
from planner.render.charts.elasticity import tornado
from planner.render.charts.failure import status_chart
from planner.render.charts.front import front_chart
from planner.render.charts.map import layout_map
from planner.render.charts.roofline import communication_roofline_chart, roofline
from planner.render.charts.scaling import curve_of_rows, scaling_chart, waiting_chart
from planner.render.report.answers import AnswerTable, SweepFindings, sweep_answer
from planner.render.report.effects import effects
from planner.render.report.page import points_page
from planner.render.report.points import SweepPoints
from planner.render.report.sweep_charts import Section
from planner.sweeps.scaling.curve import Scaling
from planner.sweeps.scaling.text import marks_lines, scaling_text

_AXES = {
    "devices": ("n_devices", "devices"),
    "seq_len": ("training.seq_len", "sequence length"),
    "layers": ("model.layers", "layers"),
}
"""By what a curve is over: the path and the title of its axis."""


def points_of(found: Scaling) -> SweepPoints:
    """Return the rows of a curve as the points of a sweep over its size."""
    path, title = _AXES[found.asked.over]
    names = list(found.rows[0]) if found.rows else []
    columns: dict[str, list[Any]] = {name: [row[name] for row in found.rows] for name in names}
    columns[f"in.{path}"] = columns.get("scale.size", [])
    header = {
        "axes": [{"path": path, "label": title, "unit": ""}],
        "result_id": found.result_id,
        **found.inputs,
        "calibration": found.calibration,
    }
    return SweepPoints(columns, header)


def scale_page(found: Scaling) -> str:
    """Return the page of a scaling curve as HTML."""
    points = points_of(found)
    heading = scaling_text(found).split("\n", 1)[0]
    message = sweep_answer(points, effects(points))
    stopped = (f"Stopped ({found.stopped}): larger sizes are missing.",) if found.stopped else ()
    # The notes of the curve name what is assumed.
    doubts = [text for text in message.doubts if not (found.notes and text.startswith("Assumed"))]
    message = SweepFindings(
        message.headline,
        (f"{heading}.",),
        message.points,
        message.best,
        _joined(marks_lines(found)),
        AnswerTable((), ()),
        (*stopped, *found.notes, *doubts),
        "What the curve says",
    )
    return points_page(f"Scaling: {heading}", points, message, scaling_sections(found, points), "")


def _joined(lines: Sequence[str]) -> tuple[str, ...]:
    """Return lines with those that go on behind blanks joined to the one before, capitalised."""
    whole: list[str] = []
    for line in lines:
        if line.startswith(" ") and whole:
            whole[-1] += f" {line.strip()}"
        else:
            whole.append(line.strip())
    return tuple(f"{text[:1].upper()}{text[1:]}." for text in whole)


def scaling_sections(found: Scaling, points: SweepPoints) -> list[Section]:
    """Return the sections that the curve can fill."""
    if not points.axes or not points.solved.any():
        return []
    axis = points.axes[0]
    weak = found.asked.scaling == "weak"
    rows = [
        {
            "n_devices": row["n_devices"],
            "tokens_per_s": row["best.tokens_per_s"],
            "layout": row["best.layout"],
        }
        for row in found.rows
    ]
    over_devices = found.asked.over == "devices"
    scaled = scaling_chart([curve_of_rows(rows, "best plan")], weak) if over_devices else None
    charts: list[Chart | None] = [
        scaled,
        axis_chart(points, axis, 1),
        waiting_chart(points, axis),
        layout_map(points, axis, None),
    ]
    parts = [Section("curve", "The curve", "", tuple(c for c in charts if c is not None))]
    if points.cost is not None and over_devices:
        front = front_chart(points, points.time, points.cost)
        parts.append(Section("trade", "What to trade", "", (front,)))
    what = (tornado(points), roofline(points), communication_roofline_chart(points))
    parts.append(Section("bounds", "What binds", "", tuple(c for c in what if c is not None)))
    if not points.solved.all():
        parts.append(Section("status", "Sizes without a plan", "", (status_chart(points, axis),)))
    return [part for part in parts if part.charts]
