"""Two plans beside each other by term, and predictions beside measurements."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from costmodels.documentation.terms import ALL_TIME_TERMS
from planner.render.charts.chart import Chart, Frame, drawn_rows, log_ticks, plain_figure
from planner.render.report.answers import AnswerTable
from planner.render.report.quantities import short_number
from planner.render.report.theme import CATEGORIES, GREY

LEAST_SHARE = 0.002
"""Terms that take less of both steps are not drawn."""
BAND = 1.1
"""Ratio to the measurement inside which a prediction is called close."""

Measured = Mapping[str, Any]
"""`id`, `source`, `model`, `hardware`, `n_devices`, `layout`, `measured`, `predicted`."""


def two_steps_chart(
    key: str, title: str, names: Sequence[str], steps: Sequence[Mapping[str, float]]
) -> Chart:
    """Return the terms of several steps as bars beside each other, seconds by term each."""
    totals_s = [sum(step.values()) for step in steps]
    terms = [
        term
        for term in ALL_TIME_TERMS
        if any(s.get(term, 0.0) >= LEAST_SHARE * w for s, w in zip(steps, totals_s, strict=True))
    ]
    scale, unit = (1.0, "s") if max(totals_s, default=0.0) >= 2.0 else (1e3, "ms")
    traces = [
        {
            "type": "bar",
            "name": plain_figure(name),
            "x": terms,
            "y": [step.get(term, 0.0) * scale for term in terms],
            "marker": {
                "color": CATEGORIES[i],
                "pattern": {"shape": ("", "/", "x", ".")[i % 4], "fillmode": "overlay"},
            },
            "hovertemplate": f"%{{x}} %{{y:,.3g}} {unit}<extra>{plain_figure(name, 40)}</extra>",
        }
        for i, (name, step) in enumerate(zip(names, steps, strict=True))
    ]
    layout = {
        "barmode": "group",
        "yaxis": {"title": {"text": f"{unit} of the slowest stage"}},
        "xaxis": {"tickangle": -40} if len(terms) > 9 else {},  # fewer turn where it is narrow
    }
    rows: tuple[tuple[str | float | int | None, ...], ...] = tuple(
        (term, *(step.get(term, 0.0) * scale for step in steps)) for term in terms
    )
    message = ", ".join(
        f"{name} {short_number(w * scale, 4)} {unit}"
        for name, w in zip(names, totals_s, strict=True)
    )
    return Chart(
        key,
        title,
        f"Time by term of the slowest stage; in all {message}.",
        Frame(layout=layout, height=360, tick_lines=3 if len(terms) > 9 else 1).figure(traces),
        AnswerTable(("Term", *(f"{name} ({unit})" for name in names)), rows),
    )


def accuracy_chart(key: str, title: str, runs: Sequence[Measured], unit: str) -> Chart:
    """Return predictions over measurements, both logarithmic, a colour a source.

    The line is a prediction that is right, the dotted ones are `BAND` away from it.
    """
    chosen, notes = drawn_rows(range(len(runs)))
    drawn = [runs[i] for i in chosen]
    values = [value for run in drawn for value in (run["measured"], run["predicted"])]
    low, high = min(values, default=1.0) / 1.3, max(values, default=1.0) * 1.3
    traces: list[dict[str, Any]] = []
    sources = sorted({str(run["source"]) for run in drawn})
    symbols = ("circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down")
    for i, source in enumerate(sources):
        own = [run for run in drawn if run["source"] == source]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain_figure(source, 20),
                "x": [run["measured"] for run in own],
                "y": [run["predicted"] for run in own],
                "text": [_hover(run, unit) for run in own],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {
                    "size": 6,
                    "opacity": 0.65,
                    "color": CATEGORIES[i % len(CATEGORIES)],
                    "symbol": symbols[i // len(CATEGORIES) % len(symbols)],
                },
            }
        )
    for ratio, name, dash in (
        (1.0, "right", "solid"),
        (BAND, "10 % off", "dot"),
        (1 / BAND, "", "dot"),
    ):
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [low, high],
                "y": [low * ratio, high * ratio],
                "name": name or "10 % off",
                "showlegend": bool(name),
                "hoverinfo": "skip",
                "line": {"color": GREY, "width": 1, "dash": dash},
            }
        )
    ticks = log_ticks([low * 1.3, high / 1.3])
    layout = {
        "xaxis": {"title": {"text": f"measured ({unit})"}, **ticks},
        "yaxis": {"title": {"text": f"predicted ({unit})"}, **ticks},
    }
    worst = sorted(
        runs, key=lambda run: (-abs(math.log(run["predicted"] / run["measured"])), run["id"])
    )
    rows = tuple(
        (
            run["id"],
            run["source"],
            run["model"],
            f"{run['n_devices']:,} x {run['hardware']}",
            run["layout"],
            run["measured"],
            run["predicted"],
            (run["predicted"] / run["measured"] - 1) * 100,
        )
        for run in worst
    )
    close = sum(1 / BAND <= run["predicted"] / run["measured"] <= BAND for run in runs)
    share = f"{close / len(runs):.0%}" if runs else "none"
    return Chart(
        key,
        title,
        f"{len(runs):,} layouts; {share} of the predictions are within 10 % of the measurement.",
        Frame(layout=layout, height=520, legend_lines=1 + len(sources) // 7).figure(traces),
        AnswerTable(
            (
                "Run",
                "Source",
                "Model",
                "Devices",
                "Layout",
                f"Measured ({unit})",
                f"Predicted ({unit})",
                "Off (%)",
            ),
            rows,
        ),
        (*notes, "The table begins with the worst misses."),
    )


def _hover(run: Measured, unit: str) -> str:
    off = run["predicted"] / run["measured"] - 1
    parts = (
        f"{run['id']}",
        f"{run['model']}, {run['n_devices']:,} x {run['hardware']}",
        run["layout"],
        f"measured {run['measured']:.4g} {unit}, predicted {run['predicted']:.4g} ({off:+.1%})",
    )
    return "<br>".join(plain_figure(part, 110) for part in parts)
