"""Heat maps over two axes: the best of a measure, and where the best layout changes."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from planner.render.charts.chart import Chart, Frame, log_ticks, plain_figure, tick_texts
from planner.render.report.answers import AnswerTable, degrees_text, layout_text
from planner.render.report.bins import Bins, bins, least_by
from planner.render.report.points import Measure, PointAxis, SweepPoints
from planner.render.report.theme import CATEGORIES, GREY, SEQUENTIAL

MAX_CELLS_WITH_TEXT = 120
"""Cells of a map up to which each is written out."""
WORDS = {"cost": "cheapest", "energy": "least hungry", "devices": "smallest"}
"""Points by what they are best in; the fastest for the two measures of time."""
_FASTEST = "fastest"
LOG_COLOURS_FROM = 8.0
"""Ratio of the largest to the least from which colours follow the logarithm."""
MAX_LAYOUTS = len(CATEGORIES) - 1
"""Layouts with a colour of their own; the rest are `other`."""


def _cells(
    points: SweepPoints, x: Bins, y: Bins | None, measure: Measure
) -> dict[tuple[int, int], int]:
    """Return by cell (column, line) the row with the least of a measure."""
    lines: Sequence[int | None] = y.of_row if y else [0] * points.n
    keys = [
        None if a is None or b is None else (a, b) for a, b in zip(x.of_row, lines, strict=True)
    ]
    return least_by(measure, keys)  # type: ignore[return-value]


def _map_layout(x: Bins, y: Bins | None) -> tuple[dict[str, Any], int]:
    """Return the axes of a map, and the lines that the labels below it take."""
    texts, lines = tick_texts(x.labels)
    layout: dict[str, Any] = {
        "xaxis": {
            "title": {"text": plain_figure(x.axis.title)},
            "tickmode": "array",
            "showgrid": False,
            "tickvals": list(range(len(x.labels))),
            **texts,
        },
        "yaxis": {"visible": False},
    }
    if y is not None:
        layout["yaxis"] = {
            "title": {"text": plain_figure(y.axis.title)},
            "tickmode": "array",
            "showgrid": False,
            "tickvals": list(range(len(y.labels))),
            "ticktext": [plain_figure(t, 28) for t in y.labels],
        }
    return layout, lines


def _height(y: Bins | None) -> int:
    return 240 if y is None else min(720, max(320, 160 + 44 * len(y.labels)))


def heat_map(
    points: SweepPoints,
    x_axis: PointAxis,
    y_axis: PointAxis,
    measure: Measure,
    by: Measure | None = None,
) -> Chart:
    """Return the best of a measure by the values of two axes, all others free.

    With `by` a cell shows the measure of the point that has the least of `by`.
    """
    x, y = bins(points, x_axis), bins(points, y_axis)
    best = _cells(points, x, y, by or measure)
    scale = measure.scale
    grid: list[list[float | None]] = [[None] * len(x.labels) for _ in y.labels]
    hover = [
        [f"{plain_figure(a)}, {plain_figure(b)}: no plan" for a in x.labels] for b in y.labels
    ]
    rows: list[tuple[str | float | int | None, ...]] = []
    for (column, line), row in sorted(best.items(), key=lambda item: item[0][::-1]):
        value = float(measure.values[row])
        grid[line][column] = scale.shown(value)
        hover[line][column] = "<br>".join(
            (
                f"{plain_figure(x_axis.title)} {plain_figure(x.labels[column])}",
                f"{plain_figure(y_axis.title)} {plain_figure(y.labels[line])}",
                f"{plain_figure(measure.title)} {plain_figure(scale.text(value))}",
                plain_figure(points.machines(row)),
                plain_figure(layout_text(points, row)),
            )
        )
        rows.append(
            (
                x.labels[column],
                y.labels[line],
                scale.shown(value),
                points.machines(row),
                layout_text(points, row),
                points.number(row),
            )
        )
    which = f" of the {WORDS.get(by.key, _FASTEST)} point" if by else ""
    n_cells = len(x.labels) * len(y.labels)
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": grid,
        "x": list(range(len(x.labels))),
        "y": list(range(len(y.labels))),
        "hovertext": hover,
        "hoverinfo": "text",
        "colorscale": [list(stop) for stop in SEQUENTIAL],
        "xgap": 2,
        "ygap": 2,
        "colorbar": {
            "title": {"text": plain_figure(measure.scale.unit or measure.title)},
            "thickness": 14,
        },
    }
    numbers = [value for line in grid for value in line if value is not None]
    if numbers and min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_COLOURS_FROM:
        ticks = log_ticks(numbers)
        trace["z"] = [[None if v is None else math.log10(v) for v in line] for line in grid]
        inside = [
            (math.log10(value), text)
            for value, text in zip(ticks["tickvals"], ticks["ticktext"], strict=True)
            if min(numbers) <= value <= max(numbers)
        ]
        trace["colorbar"] |= {
            "tickmode": "array",
            "tickvals": [value for value, _ in inside],
            "ticktext": [text for _, text in inside],
        }
    if n_cells <= MAX_CELLS_WITH_TEXT:
        trace["text"] = [
            ["" if v is None else scale.number(v * scale.factor, 3) for v in line] for line in grid
        ]
        trace["texttemplate"] = "%{text}"
    least = min(best.values(), key=lambda row: (measure.values[row], row), default=None)
    says = f"No cell of {x_axis.title} and {y_axis.title} has a plan."
    if least is not None and best:
        says = (
            f"The least is {scale.text(float(measure.values[least]))} at"
            f" {x_axis.at(x_axis.text(points.values(x_axis.column)[least]))},"
            f" {y_axis.at(y_axis.text(points.values(y_axis.column)[least]))};"
            f" {len(best)} of {n_cells} cells"
            " have a plan."
        )
    layout, lines = _map_layout(x, y)
    figure = Frame(_height(y), layout, 0, lines).figure([trace])
    return Chart(
        f"map-{measure.key.replace('_', '-')}",
        f"{measure.title}{which} over {x_axis.title} and {y_axis.title}",
        says,
        figure,
        AnswerTable(
            (x_axis.title, y_axis.title, measure.label, "Machines", "Layout", "Point"), tuple(rows)
        ),
        x.note + y.note,
    )


def layout_map(points: SweepPoints, x_axis: PointAxis, y_axis: PointAxis | None) -> Chart:
    """Return which layout is best by the values of two axes, or of one as a strip."""
    x = bins(points, x_axis)
    y = bins(points, y_axis) if y_axis else None
    best = _cells(points, x, y, points.time)
    names, left_out = _names(points, list(best.values()))
    counts = Counter(names.values())
    order = [name for name, _ in counts.most_common()]
    shown = order if len(order) <= MAX_LAYOUTS + 1 else [*order[:MAX_LAYOUTS], "other"]
    number = {name: place for place, name in enumerate(shown)}
    lines = 1 if y is None else len(y.labels)
    grid: list[list[int | None]] = [[None] * len(x.labels) for _ in range(lines)]
    text = [[""] * len(x.labels) for _ in range(lines)]
    hover = [["no plan"] * len(x.labels) for _ in range(lines)]
    rows: list[tuple[str | float | int | None, ...]] = []
    for (column, line), row in sorted(best.items(), key=lambda item: item[0][::-1]):
        name = names[row] if names[row] in number else "other"
        grid[line][column] = number[name]
        text[line][column] = plain_figure(names[row])
        where = [x.labels[column]] + ([y.labels[line]] if y else [])
        hover[line][column] = "<br>".join(
            plain_figure(part) for part in (*where, layout_text(points, row), points.machines(row))
        )
        rows.append((*where, names[row], layout_text(points, row), points.number(row)))
    count = max(1, len(shown))
    scale: list[list[Any]] = []
    for place in range(len(shown)):
        colour = CATEGORIES[place] if shown[place] != "other" else CATEGORIES[-1]
        scale += [[place / count, colour], [(place + 1) / count, colour]]
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": grid,
        "x": list(range(len(x.labels))),
        "y": list(range(lines)),
        "zmin": -0.5,
        "zmax": count - 0.5,
        "colorscale": scale or [[0, GREY], [1, GREY]],
        "hovertext": hover,
        "hoverinfo": "text",
        "xgap": 2,
        "ygap": 2,
        "colorbar": {
            "tickmode": "array",
            "tickvals": list(range(len(shown))),
            "ticktext": [plain_figure(name, 26) for name in shown],
            "thickness": 14,
            "ticks": "",
        },
    }
    if len(x.labels) * lines <= MAX_CELLS_WITH_TEXT and len(x.labels) <= 10:
        trace |= {"text": text, "texttemplate": "%{text}", "textfont": {"size": 11}}
    over = x_axis.title + (f" and {y_axis.title}" if y_axis else "")
    layout, n_lines = _map_layout(x, y)
    height = max(_height(y), 130 + 24 * len(shown))
    heads = (x_axis.title, *([y_axis.title] if y_axis else []), "Group", "Layout", "Point")
    return Chart(
        "layouts",
        f"Where the best layout changes, over {over}",
        _changes(x, y, best, names),
        Frame(height, layout, 0, n_lines).figure([trace]),
        AnswerTable(heads, tuple(rows)),
        left_out + x.note + (y.note if y else ()),
    )


def _names(points: SweepPoints, rows: list[int]) -> tuple[dict[int, str], tuple[str, ...]]:
    """Return layouts by row, in as many degrees as keep them few enough for colours."""
    ways: tuple[tuple[str, ...], ...] = (
        ("tp", "pp", "cp", "ep", "dp"),
        ("tp", "pp", "cp", "ep"),
        ("tp", "pp"),
        ("tp",),
    )
    if len(set(points.devices[rows].tolist())) > 1:
        ways = ways[1:]  # dp follows the devices, which is no change of the layout
    names: dict[int, str] = {}
    for way in ways:
        names = {row: degrees_text(points, row, way) for row in rows}
        if len(set(names.values())) <= MAX_LAYOUTS + 1:
            break
    note = f"Layouts are grouped by {', '.join(way)}; the rest stands in the table."
    return names, (note,)


def _changes(
    x: Bins, y: Bins | None, best: dict[tuple[int, int], int], names: dict[int, str]
) -> str:
    if not best:
        return "No point has a plan."
    distinct = len(set(names.values()))
    if distinct == 1:
        return f"One layout is best everywhere: {next(iter(names.values()))}."
    text = f"{distinct} layouts are best somewhere"
    if y is None:
        ordered = sorted(best)
        changes = [
            f"{names[best[a]]} to {names[best[b]]} between {x.labels[a[0]]} and {x.labels[b[0]]}"
            for a, b in pairwise(ordered)
            if names[best[a]] != names[best[b]]
        ]
        more = f"; and {len(changes) - 4} more changes" if len(changes) > 4 else ""
        return f"{text}. It changes from {'; '.join(changes[:4])}{more}."
    commonest, count = Counter(names.values()).most_common(1)[0]
    return f"{text}; the most frequent, {commonest}, on {count} of {len(best)} cells."
