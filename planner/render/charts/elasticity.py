"""Tornado chart: what one per cent more of each hardware figure does to the step time."""

import math
from typing import Any

import numpy as np

from planner.render.charts.chart import Chart, Frame, plain_figure
from planner.render.report.answers import AnswerTable
from planner.render.report.points import SweepPoints, shortened_name
from planner.render.report.theme import BETTER, GREY, WORSE

PREFIX = "elasticity."
NEGLIGIBLE = 5e-4
"""Elasticity below which a figure is left out, where it is so at all points."""


_TITLES = {
    "matmul_flops": "matrix product FLOP/s",
    "hbm_bandwidth": "HBM bandwidth",
    "scale_up_bandwidth": "scale-up bandwidth",
    "scale_up_latency": "scale-up latency",
    "scale_out_bandwidth": "scale-out (NIC) bandwidth",
    "scale_out_latency": "scale-out latency",
}


def figure_title(name: str) -> str:
    """Return a hardware figure in words: `scale_out_bandwidth` is the NICs' bandwidth."""
    return _TITLES.get(name) or shortened_name(name.replace("_", " ").replace(".", " "))


def tornado(points: SweepPoints) -> Chart | None:
    """Return elasticities of the fastest point, with their range over all; None without any."""
    row = points.best(points.time)
    names = [name for name in points.columns if name.startswith(PREFIX)]
    if row is None or not names:
        return None
    results = []
    for name in names:
        values = points.numbers(name)
        finite = values[points.solved & np.isfinite(values)]
        if len(finite) and math.isfinite(values[row]):
            low, middle, high = (float(np.quantile(finite, q)) for q in (0.1, 0.5, 0.9))
            title = figure_title(name.removeprefix(PREFIX))
            results.append((title, float(values[row]), low, middle, high))
    if not results:
        return None
    weak = [e[0] for e in results if max(map(abs, e[1:])) < NEGLIGIBLE]
    if len(weak) < len(results):
        results = [entry for entry in results if entry[0] not in weak]
    results.sort(key=lambda entry: (abs(entry[1]), entry[0]))
    titles = [plain_figure(entry[0]) for entry in results]
    several = int(points.solved.sum()) > 1
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": titles,
            "x": [entry[1] for entry in results],
            "marker": {"color": [BETTER if entry[1] <= 0 else WORSE for entry in results]},
            "name": "fastest point",
            "showlegend": False,
            "hovertemplate": "1 % more %{y}: %{x:+.3f} % step time<extra></extra>",
        }
    ]
    if several:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "y": titles,
                "x": [e[3] for e in results],
                "name": "median of all points, bars: 8 of 10 points",
                "marker": {"size": 8, "symbol": "line-ns-open", "color": GREY},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "thickness": 1.5,
                    "color": GREY,
                    "array": [e[4] - e[3] for e in results],
                    "arrayminus": [e[3] - e[2] for e in results],
                },
                "hovertemplate": "%{y}: median %{x:+.3f} %<extra></extra>",
            }
        )
    layout = {
        "xaxis": {"title": {"text": "Change of the step time for 1 % more (%)"}, "zeroline": True},
        "yaxis": {"type": "category"},
        "bargap": 0.35,
    }
    strongest = results[-1]
    says = (
        f"At the fastest point ({points.where(row) or points.machines(row)}) 1 % more"
        f" {strongest[0]} changes the step time by"
        f" {_signed(strongest[1])} %"
    )
    if len(results) > 1:
        says += f"; the next is {results[-2][0]} with {_signed(results[-2][1])} %"
    rows = tuple((entry[0], entry[1], *(entry[2:] if several else ())) for entry in results[::-1])
    heads: tuple[str, ...] = ("Figure", "Fastest point (% per %)")
    if several:
        heads += ("p10 of all", "median of all", "p90 of all")
    return Chart(
        "elasticities",
        "Sensitivity: step time per 1 % more of each figure",
        says + ".",
        Frame(max(260, 130 + 34 * len(results)), layout).figure(traces),
        AnswerTable(heads, rows),
        (f"Without an effect anywhere: {', '.join(weak)}.",) if weak else (),
    )


def _signed(change: float) -> str:
    return f"{change:+.3g}".replace("-", "−", 1)
