"""Figures of the calculators: lines and bars as `Chart`s with their data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.render.charts.chart import Chart, Frame, log_ticks, plain_figure
from planner.render.palette import legend_fill
from planner.render.report.answers import AnswerTable

HEIGHT = 330
"""Pixels of a figure without its legend: two stand beside each other."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True)
class Line:
    """One line: a name and a value for every place of the horizontal axis."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True)
class ChartText:
    """What a figure is called."""

    key: str
    title: str
    says: str
    """One sentence below the title."""


@dataclass(frozen=True)
class Axes:
    """The axes of a figure of lines, and what is marked on them."""

    x: tuple[str, Sequence[float]]
    """Title and places."""
    y: str
    log_x: bool = True
    log_y: bool = False
    here: float | None = None
    """Where the inputs at hand stand."""
    level: tuple[str, float] | None = None
    """A limit, with its name."""


def lines_chart(text: ChartText, axes: Axes, lines: Sequence[Line]) -> Chart:
    """Return lines over one axis.

    Lines differ in dashes and not in colour alone. Values that are not finite are left out.
    """
    x, y, log_y, here, level = axes.x, axes.y, axes.log_y, axes.here, axes.level
    places = [float(value) for value in x[1]]
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": plain_figure(line.name),
            "x": places,
            "y": [_drawn(value, log_y) for value in line.values],
            "line": {"dash": DASHES[number % len(DASHES)], "width": 2.5},
            "hovertemplate": f"{plain_figure(line.name)}<br>%{{x:.4g}}: %{{y:.4g}}<extra></extra>",
        }
        for number, line in enumerate(lines)
    ]
    shown = [v for line in lines for v in line.values if math.isfinite(v)]
    shapes, notes = [], []
    if level is not None:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": plain_figure(level[0]),
                "x": [places[0], places[-1]],
                "y": [level[1], level[1]],
                "line": {"color": legend_fill("limit"), "width": 1.5, "dash": "dot"},
                "hoverinfo": "name",
            }
        )
        shown.append(level[1])
    if here is not None and places[0] <= here <= places[-1]:
        shapes.append(
            {
                "type": "line",
                "xref": "x",
                "yref": "paper",
                "x0": here,
                "x1": here,
                "y0": 0,
                "y1": 1,
                "line": {"color": legend_fill("per step"), "width": 1.5, "dash": "dot"},
            }
        )
        notes.append("The dotted upright line is where the inputs stand.")
    x_axis = log_ticks(places) if axes.log_x else {"type": "linear"}
    y_axis = log_ticks(shown) if log_y else {"type": "linear", "rangemode": "tozero"}
    layout = {
        "xaxis": {"title": {"text": plain_figure(x[0])}} | x_axis,
        "yaxis": {"title": {"text": plain_figure(y)}} | y_axis,
        "shapes": shapes,
    }
    figure = Frame(HEIGHT, layout, legend_lines=-(-len(traces) // 3)).figure(traces)
    table = AnswerTable(
        (x[0], *(f"{line.name} ({y})" if len(lines) > 1 else y for line in lines)),
        tuple(
            (place, *(_finite(line.values[row]) for line in lines))
            for row, place in enumerate(places)
        ),
    )
    return Chart(text.key, text.title, text.says, figure, table, tuple(notes))


def bars_chart(
    text: ChartText,
    y: str,
    bars: Sequence[tuple[str, float]],
    *,
    log_y: bool = False,
    level: tuple[str, float] | None = None,
    marked: str = "",
) -> Chart:
    """Return one bar for each name; the marked one has a pattern as well as a colour."""
    names, values = [name for name, _ in bars], [value for _, value in bars]
    traces: list[dict[str, object]] = [
        {
            "type": "bar",
            "name": plain_figure(y),
            "x": [plain_figure(name) for name in names],
            "y": [_drawn(value, log_y) for value in values],
            "marker": {
                "pattern": {"shape": ["/" if name == marked else "" for name in names]},
            },
            "hovertemplate": "%{x}: %{y:.4g}<extra></extra>",
            "showlegend": False,
        }
    ]
    shown = [value for value in values if math.isfinite(value)]
    if level is not None:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": plain_figure(level[0]),
                "x": [plain_figure(name) for name in names],
                "y": [level[1]] * len(names),
                "line": {"color": legend_fill("limit"), "width": 2, "dash": "dot"},
            }
        )
        shown.append(level[1])
    y_axis: dict[str, Any] = (
        log_ticks(shown) if log_y else {"type": "linear", "rangemode": "tozero"}
    )
    if log_y and (drawn := [value for value in shown if value > 0]):  # the least is seen, too
        low, high = min(drawn) / 3, max(drawn) * 1.5
        y_axis["range"] = [math.log10(low), math.log10(high)]
    layout = {
        "xaxis": {"type": "category"},
        "yaxis": {"title": {"text": plain_figure(y)}} | y_axis,
    }
    table = AnswerTable(("", y), tuple((name, _finite(value)) for name, value in bars))
    return Chart(text.key, text.title, text.says, Frame(HEIGHT, layout).figure(traces), table)


def log_spread(low: float, high: float, n: int = 41) -> list[float]:
    """Return n values from low to high, evenly in ratio."""
    step = (high / low) ** (1 / (n - 1))
    return [low * step**k for k in range(n)]


def doubled(low: int, high: int) -> list[int]:
    """Return low, 2 low, ... up to high.

    >>> doubled(1, 8)
    [1, 2, 4, 8]
    """
    return [low * 2**k for k in range(int(math.log2(high / low)) + 1)]


def _drawn(value: float, log: bool) -> float | None:
    ok = math.isfinite(value) and (value > 0 or not log)
    return float(value) if ok else None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
