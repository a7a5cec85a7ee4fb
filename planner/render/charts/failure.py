"""Points without a plan: how many, where, and why."""

import re
from collections import Counter
from typing import Any

from planner.render.charts.chart import Chart, Frame, plain_figure, tick_texts
from planner.render.report.answers import AnswerTable
from planner.render.report.bins import bins
from planner.render.report.points import PointAxis, SweepPoints, shortened_name
from planner.render.report.theme import STATUS_COLOURS

MAX_REASONS = 12
_NUMBER = re.compile(r"\d[\d_,]*(?:\.\d+)?")
STATUS_WORDS = {
    "ok": "with a plan",
    "stopped": "stopped by the time limit",
    "late": "no plan keeps the limits",
    "infeasible": "nothing fits",
    "failed": "failed",
}


def status_chart(points: SweepPoints, axis: PointAxis) -> Chart:
    """Return the points by status at each value of an axis."""
    result = bins(points, axis)
    counts = Counter(
        (status, place)
        for status, place in zip(points.statuses, result.of_row, strict=True)
        if place is not None
    )
    places = list(range(len(result.labels)))
    traces: list[dict[str, Any]] = []
    for status, word in STATUS_WORDS.items():
        numbers = [counts[status, place] for place in places]
        if any(numbers):
            traces.append(
                {
                    "type": "bar",
                    "name": word,
                    "x": places,
                    "y": numbers,
                    "marker": {"color": STATUS_COLOURS[status]},
                    "hovertemplate": f"%{{y:,}} {word}<extra></extra>",
                }
            )
    texts, lines = tick_texts(result.labels)
    layout = {
        "barmode": "stack",
        "xaxis": {
            "title": {"text": plain_figure(axis.title)},
            "tickmode": "array",
            "tickvals": places,
            **texts,
        },
        "yaxis": {"title": {"text": "Points"}, "rangemode": "tozero"},
    }
    rows: tuple[tuple[str | float | int | None, ...], ...] = tuple(
        (result.labels[place], *(counts[status, place] for status in STATUS_WORDS))
        for place in places
    )
    lost = Counter(
        {p: sum(counts[s, p] for s in ("late", "infeasible", "failed")) for p in places}
    )
    worst, number = lost.most_common(1)[0]
    total = sum(lost.values())
    says = f"{total:,} of {points.n:,} points have no plan"
    says += f"; most of them ({number:,}) at {axis.at(result.labels[worst])}." if number else "."
    return Chart(
        "status-by-axis",
        f"Points with and without a plan over {axis.title}",
        says,
        Frame(360, layout, 1, lines).figure(traces),
        AnswerTable((axis.title, *STATUS_WORDS.values()), rows),
        result.note,
    )


def axis_that_fails(points: SweepPoints) -> PointAxis | None:
    """Return the axis whose values differ most in the share of points with a plan."""
    best: tuple[float, int] | None = None
    axes = [axis for axis in points.axes if len(axis.values) > 1]
    for number, axis in enumerate(axes):
        of_row = bins(points, axis).of_row
        all_, solved = (
            Counter(of_row),
            Counter(place for place, ok in zip(of_row, points.solved, strict=True) if ok),
        )
        shares = [solved[place] / count for place, count in all_.items() if place is not None]
        spread = max(shares, default=0.0) - min(shares, default=0.0)
        if best is None or spread > best[0] + 1e-12:
            best = (spread, number)
    return axes[best[1]] if best else None


def reasons(points: SweepPoints) -> AnswerTable:
    """Return why points have no plan; reasons that differ in numbers alone are one."""
    groups: dict[tuple[str, str], list[int]] = {}
    for row, (status, reason) in enumerate(
        zip(points.statuses, points.texts("reason"), strict=True)
    ):
        if status != "ok":
            key = (status, _NUMBER.sub("#", reason or "no reason given"))
            groups.setdefault(key, []).append(row)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    rows: list[tuple[str | float | int | None, ...]] = []
    for (status, _), group in ordered[:MAX_REASONS]:
        first = group[0]
        rows.append(
            (
                STATUS_WORDS.get(status, shortened_name(status)),
                len(group),
                shortened_name(points.texts("reason")[first] or "no reason given", 300),
                points.number(first),
                points.where(first) or "-",
            )
        )
    if len(ordered) > MAX_REASONS:
        rest = sum(len(group) for _, group in ordered[MAX_REASONS:])
        rows.append(("others", rest, f"{len(ordered) - MAX_REASONS:,} other reasons", None, "-"))
    return AnswerTable(
        ("What", "Points", "Reason (of the first)", "First point", "Where"), tuple(rows)
    )
