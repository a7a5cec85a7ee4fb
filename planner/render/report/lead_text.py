"""The lead of a sweep as text: its sentences, and its chart in characters."""

import textwrap

from planner.render.report.bins import Bins, bins, least_by
from planner.render.report.points import shortened_name
from planner.render.report.sweep_lead import SweepLead
from planner.render.style import Style
from planner.render.text_plots import SHADES, plot_cell

PLAIN = Style(is_on=False)
LEAD_COLUMNS = 80
"""Widest line of a lead."""
MAX_LABEL = 24
MAX_HEAD = 10
"""Characters of a value: before a line, above a column of a map."""
MAX_PLACES = 24
"""Values of an axis that are drawn."""
NUMBER = 10
"""Columns of a number and its mark."""
SHADE_CELL = 2
"""Columns of a cell that has no number."""


def lead_text(lead: SweepLead, width: int = LEAD_COLUMNS, style: Style = PLAIN) -> str:
    """Return the sentences and the plot in lines of at most `width` columns, 80 at most."""
    width = min(width, LEAD_COLUMNS)
    lines = [line for text in lead.sentences for line in textwrap.wrap(text, width)]
    plot = plot_lines(lead, width, style)
    return "\n".join([*lines, *([""] if plot else []), *plot]) + "\n"


def plot_lines(lead: SweepLead, width: int, style: Style = PLAIN) -> list[str]:
    """Return the chart of a lead: bars over one axis, a map over two; nothing without axes."""
    if not lead.axes:
        return []
    lines = (
        _bar_lines(lead, width, style) if len(lead.axes) == 1 else _map_lines(lead, width, style)
    )
    return [line.rstrip() for line in lines]


def _bar_lines(lead: SweepLead, width: int, style: Style) -> list[str]:
    """Return a bar for the best of each value, that of the best point marked."""
    places = bins(lead.points, lead.axes[0])
    best = least_by(lead.measure, places.of_row)
    values = {place: float(lead.measure.values[row]) for place, row in best.items()}
    largest, least = max(values.values()), min(values.values())
    labels = _labels(places, min(MAX_LABEL, width // 4))
    left = max(map(len, labels))
    room = width - left - NUMBER - 4
    lines = textwrap.wrap(f"{lead.measure.label} over {lead.axes[0].label}; * is the best", width)
    for place, label in enumerate(labels):
        if place not in values:
            lines.append(f"{label:>{left}} │ no plan")
            continue
        value = values[place]
        bar = style.colour("█" * max(1, round(room * value / largest)), "compute")
        mark = "*" if value == least else ""
        lines.append(f"{label:>{left}} │{bar} {lead.measure.scale.number(value, 3)}{mark}")
    return lines + _left_out(places)


def _map_lines(lead: SweepLead, width: int, style: Style) -> list[str]:
    """Return the best of each pair of values, shaded; with its number where that fits."""
    across, down = (bins(lead.points, axis) for axis in lead.axes)
    keys = [
        None if x is None or y is None else (x, y)
        for x, y in zip(across.of_row, down.of_row, strict=True)
    ]
    best = least_by(lead.measure, keys)
    values = {key: float(lead.measure.values[row]) for key, row in best.items()}
    ends = min(values.values()), max(values.values())
    heads, labels = _labels(across, MAX_HEAD), _labels(down, min(MAX_LABEL, width // 4))
    left = max(map(len, labels))
    numbers = {key: lead.measure.scale.number(value, 3) for key, value in values.items()}
    cell = max(map(len, (*(f"░ {n}*" for n in numbers.values()), *heads))) + 1
    has_numbers = left + 2 + cell * len(heads) <= width
    cell = cell if has_numbers else SHADE_CELL
    heads = heads[: (width - left - 2) // cell]
    x_axis, y_axis = lead.axes
    lines = textwrap.wrap(
        f"{lead.measure.label}: {x_axis.label} across, {y_axis.label} down; dark is less, * is the"
        " best, - has no plan",
        width,
    )
    lines.append(" " * (left + 2) + _head(heads, cell, has_numbers))
    for y, label in enumerate(labels):
        row = f"{label:>{left}} │"
        for x in range(len(heads)):
            value = values.get((x, y))
            text, shade = "", "-"
            if value is not None:
                shade = style.colour(SHADES[plot_cell(value, ends, len(SHADES))], "compute")
                text = f" {numbers[x, y]}" if has_numbers else ""
                text += "*" if value == ends[0] else ""
            row += shade + text.ljust(cell - 1)
        lines.append(row)
    return lines + _left_out(across, len(heads)) + _left_out(down)


def _head(heads: list[str], cell: int, has_numbers: bool) -> str:
    """Return the values above the columns of a map; the first and the last above narrow ones."""
    if has_numbers:
        return "".join(head.ljust(cell) for head in heads)
    first, last = heads[0], heads[-1]
    return first + last.rjust(max(len(last) + 1, cell * len(heads) - len(first)))


def _labels(places: Bins, limit: int) -> list[str]:
    return [shortened_name(label, limit) for label in places.labels[:MAX_PLACES]]


def _left_out(places: Bins, n_drawn: int = MAX_PLACES) -> list[str]:
    """Return what is not drawn, or put together."""
    n_more = len(places.labels) - n_drawn
    more = (
        [f"{n_more:,} more of {shortened_name(places.axis.title, MAX_LABEL)}"]
        if n_more > 0
        else []
    )
    return more + [line for note in places.note for line in textwrap.wrap(note, LEAD_COLUMNS // 2)]
