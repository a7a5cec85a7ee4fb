"""A chart: a Plotly figure, what it says in words, and the data that it shows.

Plotly reads its texts as a small HTML and hover texts as templates, so every text that comes from
an input goes through `plain_figure` first. Charts that draw points one by one draw at most
`MAX_DRAWN`.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from planner.render.charts.plain_figure import PlainFigure
from planner.render.report.answers import AnswerTable
from planner.render.report.bins import Bins, is_log
from planner.render.report.points import PointAxis, shortened_name
from planner.render.report.quantities import short_number

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_DRAWN = 1000
"""Points that one chart draws one by one."""
LEAST_TICK_FRAC = 0.055
"""Share of the width of a figure by which written values of an axis are apart."""
TICK_CHARACTERS, MIN_TICK_CHARACTERS = 116, 9
"""Characters that fit side by side below a figure; least that a label is broken into."""
MAX_TURNED_CHARACTERS = 24
"""Of a label that is turned."""
HEIGHT = 420
"""Pixels."""


@dataclass(frozen=True)
class Chart:
    """One figure with its words and its data."""

    key: str
    """Name of files and anchors: letters, digits, `-`."""
    title: str
    says: str
    """What the figure shows, in words; read out in its place."""
    figure: "go.Figure | PlainFigure"
    table: AnswerTable
    """The numbers that are drawn."""
    notes: tuple[str, ...] = ()
    """What was left out or put together."""


def plain_figure(text: object, limit: int = 80) -> str:
    """Return text that Plotly shows as it is: no tags, no templates, one line.

    >>> plain_figure("<b>R&D")
    '&lt;b&gt;R&amp;D'
    """
    line = shortened_name(text, limit)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return line.replace("%{", "%\u200b{")


def tick_texts(labels: Sequence[str], panels: int = 1) -> tuple[dict[str, Any], int]:
    """Return the settings of the labels below a figure, and the lines that they take.

    Few labels are broken into lines that fit their place, many are turned.
    """
    room = TICK_CHARACTERS // max(1, len(labels) * panels)
    longest = max((len(label) for label in labels), default=0)
    if longest <= room:
        return {"ticktext": [plain_figure(label) for label in labels], "tickangle": 0}, 1
    if room >= MIN_TICK_CHARACTERS:
        lines = [textwrap.wrap(label, room)[:4] for label in labels]
        broken = [
            "<br>".join(plain_figure(line, room) for line in label_lines) for label_lines in lines
        ]
        return {"ticktext": broken, "tickangle": 0}, max(map(len, lines), default=1)
    texts = [plain_figure(label, MAX_TURNED_CHARACTERS) for label in labels]
    # Turned by 40 degrees, three characters (of 7 pixels each) reach a line further down.
    lines_down = 2 + min(longest, MAX_TURNED_CHARACTERS) // 3
    return {"ticktext": texts, "tickangle": -40}, lines_down


def axis_layout(axis: PointAxis, axis_bins: Bins, panels: int = 1) -> tuple[dict[str, Any], int]:
    """Return the Plotly settings of an axis that shows a swept one in its units, and its lines."""
    title = {"text": plain_figure(axis.label)}
    if not axis.numeric:
        places = list(range(len(axis_bins.labels)))
        texts, lines = tick_texts(axis_bins.labels, panels)
        return {"title": title, "tickmode": "array", "tickvals": places, **texts}, lines
    layout: dict[str, Any] = {"title": title, "type": "log" if is_log(axis) else "linear"}
    if not axis_bins.binned:
        apart = spaced(axis_bins.centres, is_log(axis), panels)
        layout |= {
            "tickmode": "array",
            "tickvals": [axis.scale.shown(centre) for centre in apart],
            "ticktext": [axis.scale.number(centre) for centre in apart],
            "tickangle": 0,
        }
    elif is_log(axis):
        layout |= log_ticks([float(value) / axis.scale.factor for value in axis.values])
    return layout, 1


def spaced(values: Sequence[float], log: bool, panels: int = 1) -> list[float]:
    """Return ascending values without those too close to one before them to be written below."""
    if len(values) < 3:
        return list(values)
    places = [math.log(value) if log else value for value in values]
    least = (places[-1] - places[0]) * LEAST_TICK_FRAC * panels
    chosen = [0]
    for number in range(1, len(values) - 1):
        if min(places[number] - places[chosen[-1]], places[-1] - places[number]) >= least:
            chosen.append(number)
    return [values[number] for number in (*chosen, len(values) - 1)]


def drawn_rows(rows: Sequence[int], keep: Iterable[int] = ()) -> tuple[list[int], tuple[str, ...]]:
    """Return at most `MAX_DRAWN` rows, evenly spaced, with those to keep; and a note if fewer."""
    if len(rows) <= MAX_DRAWN:
        return list(rows), ()
    always = set(keep)
    stride = -(-len(rows) // max(1, MAX_DRAWN - len(always)))
    chosen = sorted(set(rows[::stride]) | always)
    return chosen, (f"{len(chosen):,} of {len(rows):,} points are drawn, evenly chosen.",)


def log_ticks(values: Iterable[float]) -> dict[str, Any]:
    """Return the settings of a logarithmic axis over positive values, its ticks 1, 2, 5, 10."""
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    low, high = min(positive, default=1.0), max(positive, default=1.0)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    n_decades = math.log10(high / low)
    steps = (1, 2, 5) if n_decades < 3 else (1,)
    stride = max(1, math.ceil(n_decades / 8))
    ticks = [step * 10.0**k for k in decades if k % stride == 0 for step in steps]
    ticks = [tick for tick in ticks if low / 2.5 <= tick <= high * 2.5]
    return {
        "type": "log",
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [short_number(tick) for tick in ticks],
    }


@dataclass
class Frame:
    """Settings that all figures share; `layout` holds what is special to one."""

    height: int = HEIGHT
    layout: dict[str, Any] = field(default_factory=dict)
    legend_lines: int = 1
    """Lines that the legend below the figure takes."""
    tick_lines: int = 1
    """Lines that the labels of the horizontal axis take."""

    def figure(
        self, traces: Sequence[dict[str, Any]], *, checked: bool = True
    ) -> "go.Figure | PlainFigure":
        """Return the figure of traces given as plain data; where Plotly is missing, plain data.

        `checked=False` spares Plotly's check of every value, nine tenths of the time that a figure
        takes; for figures of pages that are waited for, whose tests have them checked.
        """
        top, bottom = 30, 76
        more = 16 * (self.tick_lines - 1)
        below = 24 * self.legend_lines + more
        base = {
            "height": self.height + below,
            "margin": {"l": 64, "r": 24, "t": top, "b": bottom + below},
            "legend": {
                "orientation": "h",
                "yanchor": "top",
                "x": 0,
                "xanchor": "left",
                "y": -(bottom - 8 + more) / (self.height - top - bottom),
            },
            "hovermode": "closest",
        }
        own = self.layout | {"legend": base["legend"] | self.layout.get("legend", {})}
        data = {"data": list(traces), "layout": base | own}
        try:
            import plotly.graph_objects as go
        except ModuleNotFoundError:
            return PlainFigure(data)
        return go.Figure(data, _validate=checked)
