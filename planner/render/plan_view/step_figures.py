"""Where a step goes: its time term by term, and its FLOP/s from the data sheet down."""

from dataclasses import dataclass
from typing import Any

from costmodels.breakdown import Breakdown
from costmodels.documentation.terms import TERMS, term_groups
from costmodels.layers.flops import model_flops_per_step
from costmodels.problem import Problem
from planner.render.charts.chart import Frame
from planner.render.colours import LEGEND, TIME_KEYS, time_key
from planner.render.palette import legend_fill
from planner.render.plan_view.cards import (
    Amount,
    CardNumber,
    Cell,
    Deck,
    Derivation,
    NumberTable,
    Words,
)
from planner.render.plan_view.figures import FigureHeading, ViewFigure, view_figure
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
    for key in LEGEND:
        own = [bar for bar in bars if legend_key(bar[0]) == key]
        if own:
            label = LEGEND[key].label
            traces += [_bars(label, legend_fill(key), own, bars), _labels(label, own, bars)]
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
            "marker": {"color": legend_fill("per step")},
            "error_x": {
                "type": "data",
                "symmetric": False,
                "thickness": 2.5,
                "color": legend_fill("limit"),
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


def legend_key(name: str) -> str:
    """Return the key of the legend of a bar: its term's, or that of traffic beside compute."""
    return TIME_KEYS.get(name, "network")


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


TAKEN_BY = {
    "compute": "kernels: smaller products, attention, and operators that HBM binds",
    "recompute": "forwards that run again before their backward",
    "tp": "traffic of TP that compute waits for",
    "cp": "traffic of CP that compute waits for",
    "ep": "traffic of EP that compute waits for",
    "dp": "traffic of DP that compute waits for",
    "pp": "messages between stages that compute waits for",
    "slowed": "compute that is slower while traffic runs beside it",
    "waiting": "waiting: pipeline bubble, stragglers, the host",
    "offload": "copies to and from the host",
    "per step": "the optimizer, and what is fixed in a step",
}
"""What takes FLOP/s away, by key of the legend."""
LEVEL_NAMES = {"compute": "in kernels", "slowed": "less slowdown by traffic"}
"""Names of levels that are not `less` the label of the legend."""


@dataclass(frozen=True, slots=True)
class RateLevel:
    """One level on the way from the data sheet down to what a step reaches."""

    key: str
    name: str
    taken_by: str
    """What takes away the difference to the level before; empty for the first."""
    fill: str
    """Key of the legend."""
    time_s: float
    """Time of a step at this rate."""
    rate: float
    """Model FLOP/s of a device."""


def rate_levels(problem: Problem, plan: Plan) -> list[RateLevel]:
    """Return the FLOP/s of a device from peak to sustained to achieved.

    With F model FLOPs of a device in a step, peak P and sustained share s, the levels are P, s P,
    then F over the time of compute, and F over that time with each further kind of time added; the
    last is F over the step time. Roofline terms of Williams, Waterman and Patterson 2009. A level
    may lie above the one before it: attention counts FLOPs that its kernels need not do.
    """
    part = problem.pool.accelerator
    peak, frac = part.peak_flops_per_s[problem.job.recipe.linear], part.efficiency.gemm_frac
    flops = model_flops_per_step(problem.shape, problem.job) / plan.layout.n_devices
    levels = [
        RateLevel("peak", "peak", "", "free", flops / peak, peak),
        RateLevel(
            "sustained",
            "sustained",
            "what large matrix products reach of the data sheet",
            "states",
            flops / (peak * frac),
            peak * frac,
        ),
    ]
    sums: dict[str, float] = dict.fromkeys(TAKEN_BY, 0.0)
    for term, seconds in plan.breakdown.time_s.items():
        sums[time_key(term)] += seconds
    used, spent_s = [key for key, seconds in sums.items() if seconds > 0.0], 0.0
    for key in used:
        spent_s += sums[key]
        is_last = key == used[-1]
        name = "achieved" if is_last else LEVEL_NAMES.get(key, f"less {LEGEND[key].label}")
        time_s = plan.step_time_s if is_last else spent_s
        levels.append(RateLevel(key, name, TAKEN_BY[key], key, time_s, flops / time_s))
    return levels


def reached_rates(deck: Deck, problem: Problem, plan: Plan) -> ViewFigure:
    """Return the roofline as steps: peak, sustained, achieved, and what takes each step away."""
    levels = rate_levels(problem, plan)
    flops = levels[0].rate * levels[0].time_s
    rows = [_rate_row(deck, flops, levels, i) for i in range(len(levels))]
    names = [level.name for level in levels]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "showlegend": False,
            "y": names,
            "x": [level.rate / 1e12 for level in levels],
            "text": [
                f"{GAP}{row[1].text}{GAP}" if isinstance(row[1], CardNumber) else ""
                for row in rows
            ],
            "textposition": "auto",
            "marker": {"color": [legend_fill(level.fill) for level in levels]},
            "customdata": [level.taken_by or "the data sheet" for level in levels],
            "hovertemplate": "%{x:.4~g} TFLOP/s: %{customdata}<extra>%{y}</extra>",
        }
    ]
    frame = Frame(
        max(240, 110 + 30 * len(levels)),
        {
            "bargap": 0.25,
            "xaxis": {"title": {"text": "TFLOP/s of a device"}, "rangemode": "tozero"},
            "yaxis": {
                "autorange": "reversed",
                "categoryorder": "array",
                "categoryarray": names,
                "title": {"text": ""},
            },
        },
    )
    lost = max(range(2, len(levels)), key=lambda i: levels[i - 1].rate - levels[i].rate)
    caption: Words = (
        "A device has a peak of ",
        rows[0][1] or "",
        ", sustains ",
        rows[1][1] or "",
        " and achieves ",
        rows[-1][1] or "",
        ", ",
        rows[-1][2] or "",
        f" of its peak. Below what it sustains, most is taken by {levels[lost].taken_by}.",
    )
    heading = FigureHeading(
        "reached",
        "From peak to sustained to achieved",
        caption,
        ("FLOPs are the model's: recomputed ones do not count.",),
    )
    table = NumberTable(("Level", "Rate", "Of the peak", "What takes it away"), tuple(rows))
    return view_figure(deck, heading, frame.figure(traces, checked=False), table)


def _rate_row(deck: Deck, flops: float, levels: list[RateLevel], i: int) -> tuple[Cell, ...]:
    level, peak = levels[i], levels[0].rate
    source = "costmodels.layers.flops.model_flops_per_step and costmodels.breakdown.break_down"
    formula = "model FLOPs of a device / time so far", f"{exact(flops, 'FLOP')}"
    texts = formula[0], f"{formula[1]} / {exact(level.time_s, 's')}"
    if level.key == "peak":
        texts = "data sheet", exact(peak, "FLOP/s")
    elif level.key == "sustained":
        texts = "peak × share", f"{exact(peak, 'FLOP/s')} × {level.rate / peak:.9g}"
    rate = deck.add(
        f"rate-{level.key.replace(' ', '-')}",
        f"FLOP/s of a device: {level.name}",
        Amount(level.rate, "FLOP/s"),
        Derivation(*texts, source),
    )
    share = deck.add(
        f"rate-share-{level.key.replace(' ', '-')}",
        f"share of the peak: {level.name}",
        Amount(level.rate / peak, "%", text=f"{100 * level.rate / peak:.1f} %"),
        Derivation(
            "rate / peak", f"{exact(level.rate, 'FLOP/s')} / {exact(peak, 'FLOP/s')}", source
        ),
    )
    taken = level.taken_by or "nothing: the data sheet"
    gains = i > 0 and level.rate > levels[i - 1].rate
    return level.name, rate, share, f"gained: {taken}" if gains else taken
