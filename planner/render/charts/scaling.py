"""Scaling curves: throughput and what is left of each device as devices are added.

Strong: the tokens of a step stay; weak: the tokens of a step grow with the devices. The efficiency
is tokens per second and device over that of the smallest size of the curve.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.render.charts.chart import Chart, Frame, log_ticks, plain_figure, spaced, tick_texts
from planner.render.report.answers import AnswerTable, layout_text
from planner.render.report.points import PointAxis, SweepPoints
from planner.render.report.quantities import short_number
from planner.render.report.theme import CATEGORIES, GREY

MAX_CURVES = 6
"""Curves of one figure; of more, those with most sizes and the highest throughput."""


@dataclass(frozen=True)
class Curve:
    """Throughput over devices with the rest alike."""

    name: str
    devices: tuple[int, ...]
    tokens_per_s: tuple[float, ...]
    layouts: tuple[str, ...]

    @property
    def efficiencies(self) -> tuple[float, ...]:
        """Tokens per second and device, as a share of the smallest size's."""
        first = self.tokens_per_s[0] / self.devices[0]
        return tuple(
            rate / n / first for rate, n in zip(self.tokens_per_s, self.devices, strict=True)
        )


def curves_of(points: SweepPoints, weak: bool) -> list[Curve]:
    """Return the strong or weak curves of a sweep, those with most sizes first; may be empty.

    The points of a strong curve have one number of tokens a step, those of a weak one a number
    that grows with the devices; what does not change the number of devices or tokens is alike.
    """
    value = points.numbers("n_devices")
    devices = value if math.isfinite(value.sum()) and len(value) else points.devices
    tokens, rate = points.tokens_per_step, points.numbers("best.tokens_per_s")
    rows = [
        row
        for row in range(points.n)
        if points.solved[row] and devices[row] > 0 and math.isfinite(tokens[row])
    ]
    fixed = [
        axis
        for axis in points.axes
        if not axis.is_size and not axis.path.endswith(("global_batch", "gbs"))
    ]
    groups: dict[tuple[Any, ...], dict[int, int]] = {}
    for row in rows:
        work = tokens[row] / devices[row] if weak else tokens[row]
        key = (float(f"{work:.4g}"), *(points.values(axis.column)[row] for axis in fixed))
        sizes = groups.setdefault(key, {})
        size = int(devices[row])
        if size not in sizes or rate[row] > rate[sizes[size]]:
            sizes[size] = row
    results = []
    for sizes in groups.values():
        if len(sizes) < 2:
            continue
        chosen = [sizes[size] for size in sorted(sizes)]
        name = ", ".join(f"{a.title} {a.text(points.values(a.column)[chosen[0]])}" for a in fixed)
        per = tokens[chosen[0]] / (devices[chosen[0]] if weak else 1.0)
        if weak or len({float(f"{tokens[r]:.4g}") for r in rows}) > 1:
            unit = "tokens a step and device" if weak else "tokens a step"
            name = ", ".join(part for part in (name, f"{short_number(per)} {unit}") if part)
        results.append(
            Curve(
                name or "all",
                tuple(sorted(sizes)),
                tuple(float(rate[row]) for row in chosen),
                tuple(layout_text(points, row) for row in chosen),
            )
        )
    results.sort(key=lambda c: (-len(c.devices), -c.tokens_per_s[-1], c.name))
    return results


def scaling_chart(curves: Sequence[Curve], weak: bool) -> Chart | None:
    """Return throughput and efficiency over devices; None without curves of two sizes."""
    curves = _different([curve for curve in curves if len(curve.devices) > 1])
    if not curves:
        return None
    shown = list(curves[:MAX_CURVES])
    kind = "Weak" if weak else "Strong"
    traces: list[dict[str, Any]] = []
    rows: list[tuple[str | float | int | None, ...]] = []
    for curve in shown:
        efficiencies = curve.efficiencies
        hover = [
            "<br>".join(
                (
                    plain_figure(curve.name, 110),
                    f"{n:,} devices: {short_number(rate)} tokens/s",
                    f"{short_number(100 * share, 3)} % of the efficiency of {curve.devices[0]:,}",
                    plain_figure(layout, 110),
                )
            )
            for n, rate, share, layout in zip(
                curve.devices, curve.tokens_per_s, efficiencies, curve.layouts, strict=True
            )
        ]
        common = {
            "type": "scatter",
            "mode": "lines+markers",
            "name": plain_figure(curve.name, 110),
            "legendgroup": plain_figure(curve.name),
            "x": list(curve.devices),
            "text": hover,
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"size": 8},
        }
        traces.append(common | {"y": list(curve.tokens_per_s), "xaxis": "x", "yaxis": "y"})
        traces.append(
            common
            | {
                "y": [100 * share for share in efficiencies],
                "xaxis": "x2",
                "yaxis": "y2",
                "showlegend": False,
            }
        )
        for n, rate, share, layout in zip(
            curve.devices, curve.tokens_per_s, efficiencies, curve.layouts, strict=True
        ):
            rows.append((curve.name, n, rate, round(100 * share, 3), layout))
    _pair_colours(traces)
    first = shown[0]
    ends = [first.devices[0], first.devices[-1]]
    ideal = [first.tokens_per_s[0] * n / ends[0] for n in ends]
    grey = {"width": 1.5, "dash": "dash", "color": GREY}
    base = {"type": "scatter", "mode": "lines", "line": grey, "hoverinfo": "skip"}
    traces.append(base | {"name": "ideal", "x": ends, "y": ideal, "xaxis": "x", "yaxis": "y"})
    all_sizes = sorted({n for curve in shown for n in curve.devices})
    ticks = spaced([float(n) for n in all_sizes], log=True, panels=2)
    sizes: dict[str, Any] = {
        "type": "log",
        "title": {"text": "Devices"},
        "tickmode": "array",
        "tickvals": ticks,
        "tickangle": 0,
    }
    sizes["ticktext"] = [f"{n:,.0f}" for n in ticks]
    shares = [100 * share for curve in shown for share in curve.efficiencies]
    lowest, highest = 10 * math.floor((min(shares) - 5) / 10), max(max(shares), 100.0) + 3
    rates = [rate for curve in shown for rate in curve.tokens_per_s]
    settings = {
        "grid": {"rows": 1, "columns": 2, "pattern": "independent"},
        "xaxis": sizes,
        "xaxis2": sizes,
        "yaxis": log_ticks(rates) | {"title": {"text": "Tokens per second"}},
        "yaxis2": {
            "title": {"text": "Efficiency of a device (%)"},
            "range": [lowest, highest],
        },
    }
    last = first.efficiencies[-1]
    says = (
        f"{first.name}: from {ends[0]:,} to {ends[1]:,} devices the throughput grows"
        f" {short_number(first.tokens_per_s[-1] / first.tokens_per_s[0], 3)} times, so that each"
        f" device keeps {short_number(100 * last, 3)} % of its efficiency."
    )
    notes = (
        (f"{len(shown)} of {len(curves)} different curves are drawn.",)
        if len(curves) > len(shown)
        else ()
    )
    batch = "tokens of a step grow with the devices" if weak else "tokens of a step stay the same"
    return Chart(
        f"scaling-{kind.lower()}",
        f"{kind} scaling: the {batch}",
        says,
        Frame(layout=settings, legend_lines=len(shown) + 1).figure(traces),
        AnswerTable(
            ("Series", "Devices", "Tokens per second", "Efficiency (%)", "Layout"), tuple(rows)
        ),
        notes,
    )


def _different(curves: Sequence[Curve]) -> list[Curve]:
    """Return one of all curves with the same throughput, named after the first."""
    entries: dict[tuple[Any, ...], Curve] = {}
    for curve in curves:
        entries.setdefault((curve.devices, curve.tokens_per_s), curve)
    return list(entries.values())


def _pair_colours(traces: list[dict[str, Any]]) -> None:
    """Give both panels of a curve one colour, which a template does not do."""
    names = list(dict.fromkeys(trace["name"] for trace in traces))
    for trace in traces:
        colour = CATEGORIES[names.index(trace["name"]) % len(CATEGORIES)]
        trace["line"] = {"width": 2.5, "color": colour}
        trace["marker"] = trace["marker"] | {"color": colour}


def curve_of_rows(rows: Sequence[Mapping[str, Any]], name: str) -> Curve:
    """Return the curve of rows with `n_devices`, `tokens_per_s` and `layout`, one a size."""
    ordered = sorted(
        (row for row in rows if row.get("n_devices") and row.get("tokens_per_s")),
        key=lambda row: row["n_devices"],
    )
    return Curve(
        name,
        tuple(int(row["n_devices"]) for row in ordered),
        tuple(float(row["tokens_per_s"]) for row in ordered),
        tuple(str(row.get("layout") or "") for row in ordered),
    )


def waiting_chart(points: SweepPoints, axis: PointAxis) -> Chart | None:
    """Return computing, waiting for the network and the rest as shares of the step over an axis.

    Of rows with `scale.compute_s` and `scale.exposed_comm_s`; None without any.
    """
    step, compute = points.numbers("best.step_time_s"), points.numbers("scale.compute_s")
    waits = points.numbers("scale.exposed_comm_s")
    column = points.values(axis.column)
    rows = [row for row in range(points.n) if math.isfinite(step[row] + compute[row] + waits[row])]
    if not rows:
        return None
    rows.sort(key=lambda row: column[row])
    rest = step - compute - waits
    shares = {"computing": compute, "waiting for the network": waits, "the rest": rest}
    x = [axis.text(column[row]) for row in rows]
    traces = [
        {
            "type": "bar",
            "name": name,
            "x": list(range(len(rows))),
            "y": [100 * float(part[row] / step[row]) for row in rows],
            "marker": {"color": CATEGORIES[place]},
            "text": [f"{short_number(float(part[row]), 3)} s" for row in rows],
            "textposition": "none",
            "hovertemplate": "%{y:.1f} %, %{text}<extra></extra>",
        }
        for place, (name, part) in enumerate(shares.items())
    ]
    texts, lines = tick_texts(x)
    layout = {
        "barmode": "stack",
        "xaxis": {
            "title": {"text": plain_figure(axis.title)},
            "tickmode": "array",
            "tickvals": list(range(len(rows))),
            **texts,
        },
        "yaxis": {"title": {"text": "Share of the step (%)"}, "range": [0, 100]},
    }
    ends = [
        f"{short_number(100 * float(waits[row] / step[row]), 3)} % at"
        f" {axis.at(axis.text(column[row]))}"
        for row in (rows[0], rows[-1])
    ]
    return Chart(
        "waiting",
        "What a step consists of",
        f"Of the step, waiting for the network takes {ends[0]} and {ends[1]}.",
        Frame(380, layout, 1, lines).figure(traces),
        AnswerTable(
            (axis.title, *(f"{name} (s)" for name in shares)),
            tuple(
                (axis.text(column[row]), *(float(part[row]) for part in shares.values()))
                for row in rows
            ),
        ),
        ("The rest: bubble, stragglers, compute slowed by traffic beside it, fixed times.",),
    )
