"""Plots of `accuracy_page`: predicted against measured, one SVG a source."""

import re
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

import numpy as np

from planner.measure.validate.rows import Used

GIB = 2.0**30
MAX_POINTS = 400
"""Points in one plot; of more, evenly chosen ones in the order of the measurement."""
BAND = 0.10
"""Half width of the band around the identity line."""
MANY, WIDE = 100, 300.0
"""More points are drawn smaller; below this ratio of its ends an axis has ticks at 2 and 5."""
STYLE = {
    "svg.fonttype": "none",  # text stays text: small, searchable
    "svg.hashsalt": "planner",  # ids of clip paths and markers do not change from run to run
    "font.size": 9.0,
    "figure.facecolor": "white",
}

Pair = tuple[Used, float, float]
"""A layout with its predicted and its measured value."""


def timed(plans: Iterable[Used]) -> list[Pair]:
    """Return (layout, predicted s, measured s)."""
    return [(p, p.prediction.step_s, p.step_s) for p in plans if p.step_s]


def weighed(plans: Iterable[Used]) -> list[Pair]:
    """Return (layout, predicted bytes, measured bytes)."""
    return [(p, p.prediction.memory_bytes, p.peak_bytes) for p in plans if p.peak_bytes]


def file_name(source: str) -> str:
    """Return the name of a plot; characters that a path or a link may not hold are replaced."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", source) + ".svg"


def chosen(pairs: Sequence[Pair]) -> tuple[list[float], list[float]]:
    """Return measured and predicted of at most MAX_POINTS pairs, evenly chosen."""
    ordered = sorted((measured, predicted) for _, predicted, measured in pairs)
    n = min(len(ordered), MAX_POINTS)
    picked = [ordered[i] for i in np.linspace(0, len(ordered) - 1, n).round().astype(int)]
    return [x for x, _ in picked], [y for _, y in picked]


def draw(axes: Any, measured: Sequence[float], predicted: Sequence[float], what: str) -> None:
    """Draw one panel: points, line of equality, band."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    low = min(*measured, *predicted) / 1.3
    high = max(*measured, *predicted) * 1.3
    ends = [low, high]
    below, above = [x * (1 - BAND) for x in ends], [x * (1 + BAND) for x in ends]
    axes.fill_between(ends, below, above, color="#d9d9d9", linewidth=0, label=f"±{BAND:.0%}")
    axes.plot(ends, ends, color="#555555", linewidth=0.8, label="equal")
    size = 3.5 if len(measured) > MANY else 6.0
    style = {"color": "#1f6fb2", "markersize": size, "markeredgewidth": 0}
    axes.plot(measured, predicted, ".", label="layout", **style)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < WIDE else (1,)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set(xlabel=f"measured {what}", ylabel=f"predicted {what}")
    axes.legend(loc="upper left", frameon=False)


def plot(source: str, plans: Sequence[Used]) -> str:
    """Return the SVG of one source: step time, and memory where it was measured."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    panels = [(timed(plans), "step time, s", 1.0), (weighed(plans), "memory, GiB", GIB)]
    panels = [panel for panel in panels if panel[0]]
    with mpl.rc_context({**mpl.rcParamsDefault, **STYLE}):
        figure = Figure(figsize=(3.6 * len(panels), 3.4), layout="constrained")
        FigureCanvasSVG(figure)
        for axes, (pairs, what, unit) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            measured, predicted = chosen(pairs)
            draw(axes, [x / unit for x in measured], [y / unit for y in predicted], what)
            shown = f"{len(measured)} of {len(pairs)}" if len(measured) < len(pairs) else ""
            axes.set_title(f"{source}, {shown or len(pairs)} layouts", fontsize=9)
        return svg_text(figure)


def svg_text(figure: Any) -> str:
    """Return the figure as SVG without date and version, coordinates with two decimals."""
    file = StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", file.getvalue())
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
