"""The view of case studies: published layouts and scaling beside the planner's own plans."""

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any

from service.pages.figures import chart_data
from service.pages.question import question_query
from service.pages.render import render_page
from service.pages.shown_data import shown_data
from service.pages.visit import Visit

if TYPE_CHECKING:
    from planner.render.charts.scaling import Curve

NAMES = ("published", "planner's first")


@cache
def case_figures() -> tuple[dict[str, Any] | None, ...]:
    """Return the terms of the published and the own step of every case; None where one lacks."""
    from planner.render.charts.pairs import two_steps_chart

    results = []
    for i, case in enumerate(shown_data("cases")["cases"]):
        sides = case["published"], case["own"]
        steps = [side["time_s"] for side in sides if side]
        title = f"{case['title']}: where the steps go"
        results.append(
            chart_data(two_steps_chart(f"case-{i}", title, NAMES, steps))
            if len(steps) == len(NAMES)
            else None
        )
    return tuple(results)


@cache
def series_figures() -> tuple[dict[str, Any] | None, ...]:
    """Return throughput and efficiency of every published series: measured, predicted, own."""
    return tuple(_series(i, each) for i, each in enumerate(shown_data("cases")["series"]))


@cache
def curve_figures() -> tuple[dict[str, Any] | None, ...]:
    """Return throughput and efficiency of the planner's own curves."""
    return tuple(_own(i, each) for i, each in enumerate(shown_data("cases")["curves"]))


def _series(i: int, series: dict[str, Any]) -> dict[str, Any] | None:
    from planner.render.charts.scaling import Curve

    rows = series["rows"]

    def curve(name: str, step: str, layout: str) -> Curve:
        priced = [row for row in rows if row[step]]
        return Curve(
            name,
            tuple(row["n_devices"] for row in priced),
            tuple(row["tokens_per_step"] / row[step] for row in priced),
            tuple(row[layout] for row in priced),
        )

    curves = [
        curve("measured", "measured_s", "layout"),
        curve("predicted, the same layouts", "predicted_s", "layout"),
        curve("planner's own plans, predicted", "own_s", "own_layout"),
    ]
    return _drawn(f"series-{i}", series["title"], curves, series["kind"] == "weak")


def _own(i: int, curves: dict[str, Any]) -> dict[str, Any] | None:
    from planner.render.charts.scaling import Curve

    rows = curves["rows"]
    curve = Curve(
        "best plan at each size",
        tuple(row["scale.size"] for row in rows),
        tuple(row["best.tokens_per_s"] for row in rows),
        tuple(row["best.layout"] for row in rows),
    )
    title = f"{curves['model']} on {curves['cluster']}, {curves['kind']}"
    return _drawn(f"curve-{i}", title, [curve], curves["kind"] == "weak")


def _drawn(key: str, title: str, curves: "list[Curve]", weak: bool) -> dict[str, Any] | None:
    from planner.render.charts.scaling import scaling_chart

    chart = scaling_chart(curves, weak)
    return None if chart is None else chart_data(chart) | {"key": key, "title": title}


async def cases(visit: Visit) -> str:
    """Show all cases."""
    return await asyncio.to_thread(_page, visit)


def _page(visit: Visit) -> str:
    data = shown_data("cases")
    studies = [
        {
            **case,
            "figure": figure,
            "key": f"study-{i}",
            "href": _question(visit, case),
            "sides": [
                {"name": name, **case[key]}
                for name, key in zip(NAMES, ("published", "own"), strict=True)
                if case[key]
            ],
            "pins": ", ".join(f"{axis} {value}" for axis, value in case["pins"].items()),
        }
        for i, (case, figure) in enumerate(zip(data["cases"], case_figures(), strict=True))
    ]
    return render_page(
        visit,
        "cases.html.j2",
        basis=data["basis"],
        studies=studies,
        series=list(zip(data["series"], series_figures(), strict=True)),
        curves=list(zip(data["curves"], curve_figures(), strict=True)),
    )


def _question(visit: Visit, case: dict[str, Any]) -> str:
    request = {
        "model": case["model"],
        "cluster": case["cluster"],
        "set": case["overrides"],
        "stack": case.get("stack", ""),
    }
    return visit.url("/ui/plans", question_query(request))


PAGES = {"/ui/cases": cases}
