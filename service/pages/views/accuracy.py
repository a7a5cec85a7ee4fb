"""The view of accuracy: predicted against measured by source, worst misses, what is missed."""

import asyncio
import math
from functools import lru_cache
from typing import Any

from service.handlers.problems import Fault, refused
from service.pages.figures import chart_data
from service.pages.render import render_page
from service.pages.shown_data import shown_data
from service.pages.visit import Visit

N_WORST = 20
ALL = ""
KINDS = (("step", "Step time", "s", 1.0), ("memory", "Memory", "GiB", 2.0**30))


def measured_rows_of(source: str, kind: str) -> list[dict[str, Any]]:
    """Return the measured layouts of a source (all: ``""``) with what was predicted, of a kind.

    `step` in seconds, `memory` in GiB.
    """
    data = shown_data("accuracy")
    measured, predicted = (
        ("measured_s", "predicted_s") if kind == "step" else ("measured_bytes", "predicted_bytes")
    )
    scale = next(factor for key, _, _, factor in KINDS if key == kind)
    results = []
    for values in data["layouts"]:
        row = dict(zip(data["columns"], values, strict=True))
        if row[measured] and row[predicted] and (not source or row["source"] == source):
            row |= {"measured": row[measured] / scale, "predicted": row[predicted] / scale}
            results.append(row)
    return results


def worst(runs: list[dict[str, Any]], n: int = N_WORST) -> list[dict[str, Any]]:
    """Return the runs whose prediction is furthest off, as a ratio either way."""
    return sorted(
        runs, key=lambda run: (-abs(math.log(run["predicted"] / run["measured"])), run["id"])
    )[:n]


@lru_cache(maxsize=64)
def accuracy_figure(source: str, kind: str) -> dict[str, Any] | None:
    """Return predicted over measured as a figure; None where nothing was measured."""
    from planner.render.charts.pairs import accuracy_chart

    runs = measured_rows_of(source, kind)
    if not runs:
        return None
    title, unit = next((title, unit) for key, title, unit, _ in KINDS if key == kind)
    return chart_data(
        accuracy_chart(f"accuracy-{kind}", f"{title}: predicted against measured", runs, unit)
    )


RATIO_LEAST, RATIO_MOST = 0.5, 2.0
"""Ends of the scale of ratios, logarithmic."""


def ratio_place(ratio: float) -> float:
    """Return where a ratio lies on its scale, in per cent.

    >>> ratio_place(1.0), ratio_place(0.1), ratio_place(4.0)
    (50.0, 0.0, 100.0)
    """
    inside = min(max(ratio, RATIO_LEAST), RATIO_MOST)
    return round(100 * math.log(inside / RATIO_LEAST) / math.log(RATIO_MOST / RATIO_LEAST), 2)


def family_ratios(kind: str = "step") -> list[dict[str, Any]]:
    """Return predicted over measured by source, by what people call it: median and 8 of 10.

    Sources without a name are called by their key; the one that is furthest off comes first.
    """
    names = {each["source"]: each["what"] for each in shown_data("accuracy")["sources"]}
    by_source: dict[str, list[float]] = {}
    for row in measured_rows_of(ALL, kind):
        by_source.setdefault(row["source"], []).append(row["predicted"] / row["measured"])
    families = []
    for source, ratios in by_source.items():
        low, median, high = quantiles_of(ratios)
        places = {
            name: ratio_place(x) for name, x in (("low", low), ("median", median), ("high", high))
        }
        families.append(
            {
                "source": source,
                "name": names.get(source) or source,
                "n": len(ratios),
                "low": low,
                "median": median,
                "high": high,
                "places": places,
            }
        )
    return sorted(families, key=lambda x: (-abs(math.log(x["median"])), x["source"]))


def quantiles_of(values: list[float]) -> tuple[float, float, float]:
    """Return the quantiles 0.1, 0.5 and 0.9, between neighbours linearly.

    >>> quantiles_of([1.0, 2.0, 3.0])
    (1.2, 2.0, 2.8)
    """
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = math.floor(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return round(at(0.1), 12), round(at(0.5), 12), round(at(0.9), 12)


async def accuracy(visit: Visit) -> str:
    """Show all sources, or one of them."""
    data = shown_data("accuracy")
    source = visit.get("source")[:40]
    sources = {each["source"]: each for each in data["sources"]}
    if source and source not in sources:
        detail = f"there is no source {source!r}"
        fault = Fault(detail, f"sources: {', '.join(sources)}", "source")
        raise refused("malformed", detail, 404, [fault])
    return await asyncio.to_thread(_page, visit, data, source, sources.get(source))


def _page(visit: Visit, data: dict[str, Any], source: str, about: dict[str, Any] | None) -> str:
    figures = [match for kind, _, _, _ in KINDS if (match := accuracy_figure(source, kind))]
    return render_page(
        visit,
        "accuracy.html.j2",
        data=data,
        source=source,
        about=about,
        figures=figures,
        families=[] if source else family_ratios(),
        worst=worst(measured_rows_of(source, "step")),
        worst_memory=worst(measured_rows_of(source, "memory"), 10),
    )


PAGES = {"/ui/accuracy": accuracy}
