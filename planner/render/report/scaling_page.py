"""The page of a scaling curve: `planner scale --html FILE`."""

from collections.abc import Sequence
from typing import Any

from planner.documents import Paragraph, Part
from planner.render.answers.scaling.curve import marks_parts, scaling_heading
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

_AXES = {
    "devices": ("n_devices", "devices"),
    "seq_len": ("training.seq_len", "sequence length"),
    "layers": ("model.layers", "layers"),
}
"""By what a curve is over: the path and the title of its axis."""


def points_of(scaling: Scaling) -> SweepPoints:
    """Return the rows of a curve as the points of a sweep over its size."""
    path, title = _AXES[scaling.range.over]
    names = list(scaling.rows[0]) if scaling.rows else []
    columns: dict[str, list[Any]] = {name: [row[name] for row in scaling.rows] for name in names}
    columns[f"in.{path}"] = columns.get("scale.size", [])
    header = {
        "axes": [{"path": path, "label": title, "unit": ""}],
        "result_id": scaling.result_id,
        **scaling.inputs,
        "calibration": scaling.calibration,
    }
    return SweepPoints(columns, header)


def scale_page(scaling: Scaling) -> str:
    """Return the page of a scaling curve as HTML."""
    points = points_of(scaling)
    heading = scaling_heading(scaling)
    message = sweep_answer(points, effects(points))
    stopped = [f"Stopped ({scaling.stopped}): larger sizes are missing."] * bool(scaling.stopped)
    # The notes of the curve name what is assumed.
    doubts = [
        text for text in message.doubts if not (scaling.notes and text.startswith("Assumed"))
    ]
    message = SweepFindings(
        message.headline,
        (f"{heading}.",),
        message.points,
        message.best,
        _sentences(marks_parts(scaling)),
        AnswerTable((), ()),
        (*stopped, *scaling.notes, *doubts),
        "What the curve says",
    )
    return points_page(
        f"Scaling: {heading}", points, message, scaling_sections(scaling, points), ""
    )


def _sentences(parts: Sequence[Part]) -> tuple[str, ...]:
    """Return labelled paragraphs as sentences."""
    texts = (f"{x.label} {x.text}".strip() for x in parts if isinstance(x, Paragraph))
    return tuple(f"{text[:1].upper()}{text[1:]}." for text in texts)


def scaling_sections(scaling: Scaling, points: SweepPoints) -> list[Section]:
    """Return the sections that the curve can fill."""
    if not points.axes or not points.solved.any():
        return []
    axis = points.axes[0]
    weak = scaling.range.scaling == "weak"
    rows = [
        {
            "n_devices": row["n_devices"],
            "tokens_per_s": row["best.tokens_per_s"],
            "layout": row["best.layout"],
        }
        for row in scaling.rows
    ]
    over_devices = scaling.range.over == "devices"
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
    parts.append(Section("bounds", "Bottlenecks", "", tuple(c for c in what if c is not None)))
    if not points.solved.all():
        parts.append(Section("status", "Sizes without a plan", "", (status_chart(points, axis),)))
    return [part for part in parts if part.charts]
