"""Step time against memory of all plans listed: the Pareto front, ties, intervals, the limit."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planner.solver.answer.reasons import shown_layout
from planner.units import GIB
from service.pages.answer.order import called

if TYPE_CHECKING:
    from planner.render.charts.chart import Chart
    from planner.solver.answer.result import Result

Data = dict[str, Any]
EQUAL_FRAC = 1e-9
MOST_DRAWN = 1_500
"""Plans that the scatter draws one by one."""
MOST_BARS = 60
"""Plans whose interval the scatter draws."""


def pareto_rows(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the places of points that no other beats in both, by growing x; less is better."""
    order = sorted(range(len(points)), key=lambda i: (*points[i], i))
    results: list[int] = []
    for i in order:
        if not results or points[i][1] < points[results[-1]][1] * (1 - EQUAL_FRAC):
            results.append(i)
    return results


def scatter(result: "Result") -> "Chart":
    """Return step time against memory of all plans: front, ties, intervals, the limit."""
    from planner.render.charts.chart import Chart, Frame
    from planner.render.nouns import noun_of
    from planner.render.palette import legend_fill
    from planner.render.report.answers import AnswerTable
    from planner.render.report.theme import GREY

    plans = result.plans
    longest = max(plan.step_time_s for plan in plans)
    factor, unit = (1.0, "s") if longest >= 10 else (1e3, "ms")
    points = [(p.step_time_s * factor, p.breakdown.peak_bytes / GIB) for p in plans]
    best = pareto_rows(points)
    ties = [i for i, plan in enumerate(plans) if plan.tie]
    named = {*best, *ties, 0}
    others = [i for i in range(len(plans)) if i not in named]
    drawn = others[:: max(1, -(-len(others) // MOST_DRAWN))]

    def trace(rows: Sequence[int], name: str, bars: bool = False, **more: Any) -> Data:
        entries: Data = {
            "type": "scatter",
            "name": name,
            "mode": "markers",
            "x": [round(points[i][0], 3) for i in rows],
            "y": [round(points[i][1], 2) for i in rows],
            "customdata": [[plans[i].rank, plans[i].plan_id] for i in rows],
            "text": [shown_layout(plans[i].layout) for i in rows],
            "hovertemplate": "#%{customdata[0]} %{customdata[1]}<br>%{text}<br>"
            f"%{{x:.4~g}} {unit}, %{{y:.1f}} GiB<extra>{name}</extra>",
            **more,
        }
        if bars and rows and len(rows) <= MOST_BARS:
            above = [(plans[i].step_time_p90_s - plans[i].step_time_s) * factor for i in rows]
            below = [(plans[i].step_time_s - plans[i].step_time_p10_s) * factor for i in rows]
            entries["error_x"] = {
                "type": "data",
                "symmetric": False,
                "thickness": 1.2,
                "width": 4,
                "color": GREY,
                "array": [round(max(0.0, x), 3) for x in above],
                "arrayminus": [round(max(0.0, x), 3) for x in below],
            }
        return entries

    grey = {"size": 6, "opacity": 0.45, "color": GREY}
    front_line = {"width": 2, "shape": "hv", "color": legend_fill("compute")}
    traces = [
        trace(drawn, "other plans", marker=grey),
        trace(
            [i for i in ties if i],
            "ties with it",
            marker={
                "size": 9,
                "symbol": "diamond-open",
                "color": legend_fill("waiting"),
                "line": {"width": 2},
            },
        ),
        trace(
            best,
            "Pareto front",
            bars=True,
            mode="lines+markers",
            line=front_line,
            marker={"size": 8, "color": legend_fill("compute")},
        ),
        trace(
            [0],
            called(result).lower(),
            bars=True,
            marker={"size": 14, "symbol": "star", "color": legend_fill("good")},
        ),
    ]
    limits = sorted({round(plan.usable_bytes / GIB, 1) for plan in plans})
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    wide = high / low > 3
    room = 0.08 * (high - low) or 0.02 * high
    shown = (
        [math.log10(low * 0.95), math.log10(high * 1.05)] if wide else [low - room, high + room]
    )
    for limit in limits:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"usable memory, {limit:g} GiB",
                "x": [low - room, high + room],
                "y": [limit, limit],
                "line": {"dash": "dash", "width": 1.5, "color": legend_fill("limit")},
                "hoverinfo": "name",
            }
        )
    layout = {
        "xaxis": {"title": {"text": f"step time ({unit})"}, "range": shown}
        | ({"type": "log"} if wide else {}),
        "yaxis": {"title": {"text": f"memory of the fullest {noun_of(result).one} (GiB)"}},
    }
    rows = tuple(
        (
            plans[i].rank,
            plans[i].plan_id,
            round(points[i][0], 2),
            round(points[i][1], 2),
            shown_layout(plans[i].layout),
        )
        for i in best
    )
    notes = [
        f"Pareto front of the {len(plans):,} plans listed. Bars: 80 % prediction intervals."
        " Double-click to zoom out to the full error bars."
    ]
    if len(drawn) < len(others):
        notes.append(
            f"{len(drawn) + len(named):,} of {len(plans):,} plans are drawn, evenly chosen."
        )
    return Chart(
        "scatter",
        "Step time against memory",
        _says(result, points, best, ties, unit),
        Frame(height=440, layout=layout).figure(traces),
        AnswerTable(("#", "Plan", f"Step ({unit})", "Memory (GiB)", "Layout"), rows),
        tuple(notes),
    )


def _the_first(result: "Result") -> str:
    front = result.inputs["options"].get("pareto")
    return "the first of the Pareto front" if front else "the recommended one"


def _says(
    result: "Result",
    points: Sequence[tuple[float, float]],
    best: Sequence[int],
    ties: Sequence[int],
    unit: str,
) -> str:
    first, last = points[best[0]], points[best[-1]]
    message = (
        f"The fastest of {len(points):,} plans takes {first[0]:.4g} {unit} and {first[1]:.1f} GiB"
    )
    if best[0]:
        chosen, ties_with = points[0], result.plans[best[0]].tie
        message += (
            f"; {_the_first(result)}{', which ties with it,' if ties_with else ''} takes"
            f" {chosen[0]:.4g} {unit} and {chosen[1]:.1f} GiB"
        )
    message += "."
    if len(best) > 1:
        message += (
            f" No other plan is both faster and smaller than the {len(best)} on the Pareto front,"
            f" down to {last[1]:.1f} GiB for {last[0]:.4g} {unit}."
        )
    n_ties = sum(1 for i in ties if i)
    if n_ties:
        message += (
            f" {n_ties} {'plan ties' if n_ties == 1 else 'plans tie'} with {_the_first(result)}."
        )
    return message
