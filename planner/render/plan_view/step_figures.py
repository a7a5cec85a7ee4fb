"""The waterfall of a step: every term one behind the other, from nothing to the step time."""

from typing import Any

from costmodels.breakdown import Breakdown
from costmodels.documentation.terms import TERMS, term_groups
from costmodels.problem import Problem
from planner.render.charts.chart import Frame
from planner.render.plan_view.cards import (
    Amount,
    CardNumber,
    Cell,
    Deck,
    Derivation,
    NumberTable,
    Words,
)
from planner.render.plan_view.figures import GROUP_COLOURS, FigureHeading, ViewFigure, view_figure
from planner.render.plan_view.quantities import exact, quantity_text, total
from planner.solver.answer.result import Plan

HIDDEN_AXES = ("tp", "cp", "ep", "dp")
"""Axes whose traffic may run beside compute."""


def waterfall(
    deck: Deck, problem: Problem, plan: Plan, numbers: dict[str, CardNumber]
) -> ViewFigure:
    """Return the waterfall of the step time; `numbers` are the terms' (`add_time_cards`).

    Traffic that runs beside compute stands in it and is credited at once, so that the bars end at
    the step time exactly; the last bar has the range of 8 of 10 measured plans.
    """
    result = plan.breakdown
    bars: list[Bar] = []
    hidden, sums = hidden_traffic_figure(result)
    for group, terms in term_groups().items():
        for name in (name for name in terms if name in numbers):
            bars.append((name, group, result.time_s[name], numbers[name], TERMS[name].title))
        if group == "network" and hidden > 0.0:
            made = "costmodels.traffic.PlanTraffic.transfers"
            source = f"{made}: time on the wire less what compute waits for"
            add = deck.add(
                "hidden-traffic",
                "traffic that runs beside compute",
                Amount(hidden, "s"),
                Derivation(
                    "sum over tp, cp, ep and dp of time on the wire − time waited for",
                    total(sums),
                    source,
                ),
            )
            credit = deck.add(
                "overlap-credit",
                "overlap credit: traffic that nothing waits for",
                Amount(-hidden, "s"),
                Derivation("− hidden traffic", f"−{exact(hidden, 's')}", source),
            )
            bars.append(("hidden traffic", group, hidden, add, "on the wire beside compute"))
            bars.append(("overlap credit", group, -hidden, credit, "nothing waits for it"))
    rows: list[tuple[Cell, ...]] = []
    traces, end_s = [], 0.0
    for group, colour in GROUP_COLOURS.items():
        own = [bar for bar in bars if bar[1] == group]
        if group != "total" and own:
            traces += [_bars(group, colour, own, bars), _labels(group, own, bars)]
    for name, group, value, number, title in bars:
        share = deck.add(
            f"share-{name.replace(' ', '-')}",
            f"share of {name} in the step",
            Amount(
                value / plan.step_time_s,
                "%",
                text=f"{100 * value / plan.step_time_s:.1f} %".replace("-", "−"),
            ),
            Derivation(
                f"{name} / step time",
                f"{exact(abs(value), 's')} / {exact(plan.step_time_s, 's')}"
                if value > 0
                else f"−{exact(-value, 's')} / {exact(plan.step_time_s, 's')}",
                "costmodels.breakdown.break_down: both are terms of it",
            ),
        )
        rows.append((name, group, title, number, share))
        end_s += value
    step = deck.see("step-time")
    traces.append(
        {
            "type": "bar",
            "orientation": "h",
            "name": "step time",
            "y": ["step time"],
            "x": [plan.step_time_s],
            "marker": {"color": GROUP_COLOURS["total"]},
            "error_x": {
                "type": "data",
                "symmetric": False,
                "thickness": 2.5,
                "color": "#d55e00",
                "array": [plan.step_time_p90_s - plan.step_time_s],
                "arrayminus": [plan.step_time_s - plan.step_time_p10_s],
            },
            "hovertemplate": f"{step.text}, 8 of 10 between {deck.see('step-p10').text} and"
            f" {deck.see('step-p90').text}<extra>step time</extra>",
        }
    )
    rows.append(("step time", "total", "all of it", step, None))
    frame = Frame(
        max(300, 120 + 26 * (len(bars) + 1)),
        {
            "barmode": "overlay",
            "bargap": 0.25,
            "xaxis": {"title": {"text": "Seconds of the step"}, "rangemode": "tozero"},
            "yaxis": {
                "autorange": "reversed",
                "categoryorder": "array",
                "categoryarray": [*(bar[0] for bar in bars), "step time"],
                "title": {"text": ""},
            },
        },
    )
    largest = sorted(
        (bar for bar in bars if bar[2] > 0 and bar[0] != "hidden traffic"), key=lambda bar: -bar[2]
    )[:3]
    caption: Words = ("A step takes ", step, ". Most of it: ")
    for i, bar in enumerate(largest):
        caption += (", " * (i > 0), f"{bar[0]} ", bar[3])
    if hidden > 0.0:
        caption += (
            ". ",
            deck.see("hidden-traffic"),
            " of traffic run beside compute and cost nothing but what they slow it",
        )
    caption += (
        ". In most cases a measured step lies between ",
        deck.see("step-p10"),
        " and ",
        deck.see("step-p90"),
        ".",
    )
    nothing = [name for name in TERMS if TERMS[name].kind == "time" and name not in numbers]
    notes = (f"Terms that take no time here: {', '.join(nothing)}.",) if nothing else ()
    table = NumberTable(("Term", "Kind", "What", "Time", "Share"), tuple(rows))
    drawn = frame.figure(traces, checked=False)
    return view_figure(
        deck, FigureHeading("waterfall", "Where the step time goes", caption, notes), drawn, table
    )


def hidden_traffic_figure(breakdown: Breakdown) -> tuple[float, list[str]]:
    """Return what runs beside compute, seconds, and the sums that it is made of."""
    value, sums = 0.0, []
    for one in breakdown.transfers:
        hidden_s = one.time_s - one.exposed_s
        if one.axis in HIDDEN_AXES and hidden_s > 1e-9 * breakdown.step_s:
            value += hidden_s
            sums.append(f"({one.time_s:.9g} s − {one.exposed_s:.9g} s)".replace("e-", "e−"))
    return value, sums


GAP = "\N{NO-BREAK SPACE}"
"""Between a bar and its time."""
Bar = tuple[str, str, float, CardNumber, str]
"""Name, group, seconds, the number, what it is."""


def _starts(bars: list[Bar]) -> dict[str, float]:
    """Return where each bar begins: where the one before it ended."""
    starts, start_s = {}, 0.0
    for name, _, value, _, _ in bars:
        starts[name] = start_s
        start_s += value
    return starts


def _labels(group: str, group_bars: list[Bar], bars: list[Bar]) -> dict[str, Any]:
    """Return the times beside the bars of a group: right of early ones, left of late ones.

    On either side there is room in narrow windows, too.
    """
    starts, end_of_step = _starts(bars), sum(bar[2] for bar in bars)
    ends = [sorted((starts[bar[0]], starts[bar[0]] + bar[2])) for bar in group_bars]
    early = [low < 0.4 * end_of_step for low, _ in ends]
    return {
        "type": "scatter",
        "mode": "text",
        "legendgroup": group,
        "showlegend": False,
        "hoverinfo": "skip",
        "cliponaxis": False,
        "y": [bar[0] for bar in group_bars],
        "text": [f"{GAP}{bar[3].text}{GAP}" for bar in group_bars],
        "x": [
            high if is_early else low for (low, high), is_early in zip(ends, early, strict=True)
        ],
        "textposition": [f"middle {'right' if is_early else 'left'}" for is_early in early],
    }


def _bars(group: str, colour: str, group_bars: list[Bar], bars: list[Bar]) -> dict[str, Any]:
    """Return the bars of a group."""
    starts = _starts(bars)
    return {
        "type": "bar",
        "orientation": "h",
        "name": group,
        "legendgroup": group,
        "y": [bar[0] for bar in group_bars],
        "x": [bar[2] for bar in group_bars],
        "base": [starts[bar[0]] for bar in group_bars],
        "marker": {
            "color": colour,
            "pattern": {
                "shape": [
                    "/" if "hidden" in bar[0] or "credit" in bar[0] else "" for bar in group_bars
                ]
            },
        },
        "customdata": [[bar[3].text, bar[4]] for bar in group_bars],
        "hovertemplate": "%{customdata[0]}: %{customdata[1]}<extra>%{y}</extra>",
    }


def step_text(plan: Plan) -> str:
    """Return the step time as the view shows it."""
    return quantity_text(plan.step_time_s, "s")
