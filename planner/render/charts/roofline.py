"""Rooflines of memory and of networks, with a dot a point and what binds it.

x is FLOPs of a step per byte moved in it, y the FLOP/s that a device reaches. The roof of
bandwidth b under peak p is min(p, x b) (Williams, Waterman, Patterson 2009); a network in the
place of the memory gives the communication roofline. Where points have many different roofs, both
are divided by those of the point: x by the ridge p / b, y by p, and one roof holds for all.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.render.charts.chart import Chart, Frame, drawn_rows, log_ticks, plain_figure
from planner.render.palette import legend_fill
from planner.render.report.answers import AnswerTable
from planner.render.report.points import SweepPoints
from planner.render.report.quantities import short_number
from planner.render.report.theme import CATEGORIES

DASHES = ("solid", "dash", "dot", "dashdot")
MAX_ROOFS = len(DASHES)
"""Different roofs up to which they are drawn in FLOP/s; above, relative to each point's own."""


@dataclass(frozen=True)
class RooflineTraffic:
    """One kind of bytes of a step and the bandwidth that moves them."""

    title: str
    bytes_column: str
    bandwidth_column: str
    bound: str
    """What a point left of the ridge is."""
    symbol: str


HBM = RooflineTraffic(
    "HBM", "best.hbm_bytes_per_device", "hbm_bytes_per_s", "bound by HBM bandwidth", "circle"
)
NETWORKS = (
    RooflineTraffic(
        "scale-up",
        "best.scale_up_bytes_per_device",
        "scale_up_bytes_per_s",
        "bound by the scale-up network",
        "diamond",
    ),
    RooflineTraffic(
        "scale-out",
        "best.scale_out_bytes_per_device",
        "scale_out_bytes_per_s",
        "bound by the scale-out network",
        "square",
    ),
)


@dataclass(frozen=True)
class _Dot:
    row: int
    intensity: float
    """FLOPs per byte."""
    rate: float
    """FLOP/s of a device."""
    peak: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        return self.peak / self.bandwidth


def _dots(points: SweepPoints, traffic: RooflineTraffic) -> list[_Dot]:
    flops = points.numbers("best.flops_per_device")
    moved = points.numbers(traffic.bytes_column)
    peak, bandwidth = points.numbers("peak_flops_per_s"), points.numbers(traffic.bandwidth_column)
    step = points.numbers("best.step_time_s")
    with np.errstate(invalid="ignore"):
        usable = points.solved & (flops > 0) & (moved > 0) & (peak > 0) & (bandwidth > 0)
    return [
        _Dot(
            row,
            float(flops[row] / moved[row]),
            float(flops[row] / step[row]),
            float(peak[row]),
            float(bandwidth[row]),
        )
        for row in np.flatnonzero(usable).tolist()
    ]


def roofline(points: SweepPoints) -> Chart | None:
    """Return the roofline of the memory; None where the rows have no such columns."""
    return _roofline(
        points, (HBM,), "roofline", "Roofline: FLOP/s of a device over FLOPs per HBM byte"
    )


def communication_roofline_chart(points: SweepPoints) -> Chart | None:
    """Return the rooflines of scale-up and scale-out networks; None without such columns."""
    return _roofline(
        points,
        NETWORKS,
        "communication-roofline",
        "Communication roofline: FLOP/s of a device over FLOPs per byte sent",
    )


def _roofline(
    points: SweepPoints, kinds: tuple[RooflineTraffic, ...], key: str, title: str
) -> Chart | None:
    by_kind = {traffic: _dots(points, traffic) for traffic in kinds}
    dots = [dot for traffic_dots in by_kind.values() for dot in traffic_dots]
    if not dots:
        return None
    roofs = Counter(
        (traffic, dot.peak, dot.bandwidth)
        for traffic, traffic_dots in by_kind.items()
        for dot in traffic_dots
    )
    relative = len(roofs) > MAX_ROOFS
    traces = _relative_roof(dots) if relative else _absolute_roofs(roofs, dots)
    rows: list[tuple[str | float | int | None, ...]] = []
    notes: list[str] = []
    binding = points.texts("best.binding")
    regime_names = sorted({binding[dot.row].replace("_", " ") or "not told" for dot in dots})
    colours = {regime: CATEGORIES[k % len(CATEGORIES)] for k, regime in enumerate(regime_names)}
    for traffic, traffic_dots in by_kind.items():
        regimes: dict[str, list[_Dot]] = {}
        shown, note = drawn_rows(list(range(len(traffic_dots))))
        notes += note
        for dot in (traffic_dots[place] for place in shown):
            regime = binding[dot.row].replace("_", " ") or "not told"
            regimes.setdefault(regime, []).append(dot)
        for regime, group in sorted(regimes.items()):
            name = (
                f"{traffic.title}: bound by {regime}" if len(kinds) > 1 else f"bound by {regime}"
            )
            traces.append(_scatter(points, traffic, group, name, colours[regime], relative))
            for dot in group:
                rows.append(
                    (
                        traffic.title,
                        points.number(dot.row),
                        regime,
                        dot.intensity,
                        dot.ridge,
                        dot.rate / 1e12,
                        dot.peak / 1e12,
                    )
                )
    layout = {
        "xaxis": log_ticks(x for trace in traces for x in trace["x"])
        | {
            "title": {"text": "FLOPs per byte, 1 at the ridge" if relative else "FLOPs per byte"},
        },
        "yaxis": log_ticks(y for trace in traces for y in trace["y"])
        | {
            "title": {"text": "Share of peak FLOP/s" if relative else "TFLOP/s of a device"},
        },
    }
    if relative:
        notes.append(
            f"Points have {len(roofs)} different roofs, so both axes are relative to each point's"
            " own: the ridge is at 1."
        )
    notes.append(
        "Left of the ridge the bandwidth alone would bind, right of it the arithmetic; a dot far"
        " below its roof loses its time elsewhere: the colour says where."
    )
    return Chart(
        key,
        title,
        _says(by_kind),
        Frame(440, layout, -(-len(traces) // 3)).figure(traces),
        AnswerTable(
            (
                "Traffic",
                "Point",
                "Bound by",
                "FLOPs per byte",
                "Ridge (FLOPs per byte)",
                "TFLOP/s of a device",
                "Peak TFLOP/s",
            ),
            tuple(rows),
        ),
        tuple(dict.fromkeys(notes)),
    )


def _scatter(
    points: SweepPoints,
    traffic: RooflineTraffic,
    group: list[_Dot],
    name: str,
    colour: str,
    relative: bool,
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain_figure(name),
        "x": [dot.intensity / dot.ridge if relative else dot.intensity for dot in group],
        "y": [dot.rate / dot.peak if relative else dot.rate / 1e12 for dot in group],
        "text": [
            "<br>".join(
                plain_figure(part, 110)
                for part in (
                    points.where(dot.row),
                    points.machines(dot.row),
                    f"{short_number(dot.intensity, 3)} FLOPs per byte, ridge"
                    f" {short_number(dot.ridge, 3)}",
                    f"{short_number(dot.rate / 1e12, 3)} of {short_number(dot.peak / 1e12, 3)}"
                    f" TFLOP/s: {short_number(100 * dot.rate / dot.peak, 3)} % of peak",
                )
                if part
            )
            for dot in group
        ],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"size": 8, "opacity": 0.75, "symbol": traffic.symbol, "color": colour},
    }


def _relative_roof(dots: list[_Dot]) -> list[dict[str, Any]]:
    places = [dot.intensity / dot.ridge for dot in dots]
    low, high = min(*places, 0.5) / 1.5, max(*places, 2.0) * 1.5
    return [_roof_trace([low, 1.0, high], [low, 1.0, 1.0], "roof", "solid")]


def _absolute_roofs(roofs: Counter[Any], dots: list[_Dot]) -> list[dict[str, Any]]:
    traces = []
    places = [dot.intensity for dot in dots] + [dot.ridge for dot in dots]
    low, high = min(places) / 2, max(places) * 2
    ordered = sorted(roofs, key=lambda r: (r[0].title, r[1], r[2]))
    for number, (traffic, peak, bandwidth) in enumerate(ordered):
        ridge = peak / bandwidth
        name = (
            f"{traffic.title} {short_number(bandwidth / 1e9, 3)} GB/s, peak"
            f" {short_number(peak / 1e12, 3)} TFLOP/s"
        )
        y = [low * bandwidth / 1e12, peak / 1e12, peak / 1e12]
        traces.append(_roof_trace([low, ridge, high], y, name, DASHES[number]))
    return traces


def _roof_trace(x: list[float], y: list[float], name: str, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain_figure(name),
        "x": x,
        "y": y,
        "line": {"width": 2, "color": legend_fill("per step"), "dash": dash},
        "hoverinfo": "skip",
    }


def _says(by_kind: dict[RooflineTraffic, list[_Dot]]) -> str:
    parts = []
    for traffic, dots in by_kind.items():
        if not dots:
            continue
        left = sum(dot.intensity < dot.ridge for dot in dots)
        closest = max(dots, key=lambda d: d.rate / min(d.peak, d.intensity * d.bandwidth))
        share = closest.rate / min(closest.peak, closest.intensity * closest.bandwidth)
        where = "left" if left else "right"
        count = "all" if left in (0, len(dots)) else f"{left:,} of"
        parts.append(
            f"{traffic.title}: {count} {len(dots):,} points lie {where} of the ridge"
            f"{f' ({traffic.bound} were nothing else in the way)' if left else ''}; the closest to"
            f" its roof reaches {short_number(share * 100, 3)} % of it"
        )
    return "; ".join(parts) + "."
