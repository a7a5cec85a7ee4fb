"""Which charts a sweep gets, in the order of the page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.render.charts.axis import axis_chart
from planner.render.charts.chart import Chart
from planner.render.charts.elasticity import tornado
from planner.render.charts.failure import axis_that_fails, status_chart
from planner.render.charts.front import front_chart
from planner.render.charts.map import heat_map, layout_map
from planner.render.charts.roofline import communication_roofline_chart, roofline
from planner.render.charts.scaling import curves_of, scaling_chart
from planner.render.report.effects import Effect
from planner.render.report.points import PointAxis, SweepPoints
from planner.render.report.sweep_lead import SweepLead, map_axes

MAX_AXIS_CHARTS = 8


@dataclass(frozen=True)
class Section:
    """Charts under one heading."""

    key: str
    title: str
    lead: str
    charts: tuple[Chart, ...]


def ranked_axes(points: SweepPoints, effects: Sequence[Effect]) -> list[PointAxis]:
    """Return the axes with several values, those that move the time most first, jobs last."""
    strength = {effect.axis.path: effect.strength for effect in effects}
    varied = [axis for axis in points.axes if len(axis.values) > 1]
    jobs = {axis.path for axis in points.job_axes}
    return sorted(
        varied,
        key=lambda axis: (axis.path in jobs, -strength.get(axis.path, 0.0), axis.path),
    )


def sections(
    points: SweepPoints,
    effects: Sequence[Effect],
    x: PointAxis | None = None,
    y: PointAxis | None = None,
) -> list[Section]:
    """Return the sections that the rows can fill; `x` and `y` are the axes of the maps."""
    ranked = ranked_axes(points, effects)
    x, y = map_axes(ranked, x, y)
    results = []
    if points.solved.any():
        charts = tuple(
            axis_chart(points, axis, number + 1)
            for number, axis in enumerate(ranked[:MAX_AXIS_CHARTS])
        )
        lead = "The best over all points with this value, whatever the other axes are."
        if len(ranked) > MAX_AXIS_CHARTS:
            lead += f" The {MAX_AXIS_CHARTS} axes that matter most, of {len(ranked)}."
        results.append(Section("axes", "Over each axis", lead, charts))
        maps = []
        if x is not None and y is not None:
            maps += [
                heat_map(points, x, y, measure)
                for measure in (points.time, points.cost)
                if measure is not None
            ]
            if points.aim is points.cost:
                maps.reverse()
            sizes = points.size.values[points.solved]
            if len(set(sizes.tolist())) > 1 and not x.is_size and not y.is_size:
                maps.append(heat_map(points, x, y, points.size, points.aim))
        if x is not None:
            maps.append(layout_map(points, x, y))
        lead = "Each cell is the best over all other axes. --x and --y choose the axes."
        results.append(Section("maps", "Over two axes", lead, tuple(maps)))
        others = [m for m in (points.cost, points.energy, points.size) if m is not None]
        pairs = [(points.time, other) for other in others if len(set(other.values.tolist())) > 1]
        if points.cost is not None and points.energy is not None:
            pairs.append((points.cost, points.energy))
        fronts = [front_chart(points, a, b) for a, b in pairs] if points.solved.sum() > 1 else []
        fronts = [chart for chart in fronts if len(chart.table.rows) > 1]
        lead = "On the front nothing gets better without something getting worse."
        results.append(Section("fronts", "What to trade", lead, tuple(fronts)))
        curves = tuple(
            chart
            for weak in (False, True)
            if (chart := scaling_chart(curves_of(points, weak), weak)) is not None
        )
        lead = "Dashed: every device as useful as at the smallest size."
        results.append(Section("scaling", "Scaling", lead, curves))
        what = tuple(
            chart
            for chart in (tornado(points), roofline(points), communication_roofline_chart(points))
            if chart is not None
        )
        results.append(Section("bounds", "Bottlenecks", "", what))
    fails = axis_that_fails(points)
    if not points.solved.all() and fails is not None:
        chart = status_chart(points, fails)
        results.append(Section("status", "Points without a plan", "", (chart,)))
    return [section for section in results if section.charts]


def lead_chart(lead: SweepLead) -> Chart | None:
    """Return the chart of a lead: a line or a map of what points are judged by; None without."""
    if not lead.axes:
        return None
    if len(lead.axes) == 1:
        chart = axis_chart(lead.points, lead.axes[0], 1, (lead.measure,))
    else:
        across, down = lead.axes
        chart = heat_map(lead.points, across, down, lead.measure)
    return replace(chart, key="lead")


def after_lead(parts: Sequence[Section], lead: Chart | None) -> list[Section]:
    """Return sections without the map that leads already."""
    if lead is None:
        return list(parts)
    shown = [
        replace(part, charts=tuple(c for c in part.charts if c.table != lead.table))
        if part.key == "maps"
        else part
        for part in parts
    ]
    return [part for part in shown if part.charts]
