"""What a fit to measurements says: parameters, errors by sweep, every size or item."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.measure.benchmarks.device_fit import DeviceFit, FittedItem
from planner.measure.benchmarks.link_fit import FittedSweep, LinkFit
from planner.measure.benchmarks.nccl_tests import bus_bandwidth_factor
from planner.measure.benchmarks.pulled_fit import FITTED, UNSEEN, PulledEstimate

KEPT = {UNSEEN: "not in the data: kept", "at its bound": "would leave its range: kept"}


def _number(value: float) -> str:
    return f"{value:.4g}"


def _size(n_bytes: float) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.4g} {unit}"
    return f"{n_bytes:.0f} B"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}" if seconds < 1e-2 else f"{seconds * 1e6:.0f}"


def _error(model_s: float, measured_s: float) -> str:
    return f"{model_s / measured_s - 1:+.0%}"


def benchmark_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)
) -> list[str]:
    """Return lines of a table, the columns at `left` set to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (titles, *rows)) for i in range(len(titles))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return [line(titles), *(line(row) for row in rows)]


def estimate_lines(estimates: Sequence[PulledEstimate]) -> list[str]:
    """Return the table of parameters: before, fitted, interval, or why it keeps its value."""
    rows = []
    for e in estimates:
        fitted = e.status == FITTED
        rows.append(
            [
                e.quantity.name,
                _number(e.quantity.prior),
                _number(e.value) if fitted else "-",
                f"{_number(e.low)} - {_number(e.high)}" if fitted else "-",
                e.quantity.meaning if fitted else KEPT[e.status],
            ]
        )
    return benchmark_table(["parameter", "before", "fitted", "p10 - p90", ""], rows, left=(0, 4))


def sweep_lines(sweeps: Sequence[FittedSweep]) -> list[str]:
    """Return a line per sweep: what, where, its median error before and after."""
    rows = [
        [
            one.sweep.collective,
            one.sweep.place_words,
            str(len(one.sweep.sizes_bytes)),
            f"{one.median_error(one.before_s):.1%}",
            f"{one.median_error(one.after_s):.1%}",
            one.sweep.source,
        ]
        for one in sweeps
    ]
    titles = ["collective", "ranks", "sizes", "before", "after", "source"]
    return benchmark_table(titles, rows, left=(0, 1, 5))


def size_lines(one: FittedSweep) -> list[str]:
    """Return the residuals of one sweep by size, times in us and bus bandwidth in GB/s."""
    sweep = one.sweep
    factor = bus_bandwidth_factor(sweep.collective, sweep.n_ranks) / 1e9
    rows = [
        [
            _size(size),
            _us(measured),
            f"{factor * size / measured:.1f}",
            _us(before),
            _error(before, measured),
            _us(after),
            _error(after, measured),
        ]
        for size, measured, before, after in zip(
            sweep.sizes_bytes, sweep.times_s, one.before_s, one.after_s, strict=True
        )
    ]
    titles = ["size", "measured us", "busbw GB/s", "before us", "off", "fitted us", "off"]
    return [
        f"{sweep.collective}, {sweep.place_words} ({sweep.source})",
        *benchmark_table(titles, rows),
    ]


def half_bandwidth_bytes(sizes: Sequence[float], times_s: Sequence[float]) -> float | None:
    """Return the message that reaches half of the best bandwidth of a sweep; None if all do.

    Between two sizes the logarithm is interpolated.
    """
    size = np.asarray(sizes)
    rate = size / np.asarray(times_s)
    half = rate.max() / 2
    above = int(np.argmax(rate >= half))
    if above == 0:
        return None
    share = (half - rate[above - 1]) / (rate[above] - rate[above - 1])
    return float(np.exp(np.log(size[above - 1]) + share * np.log(size[above] / size[above - 1])))


def curve_lines(sweeps: Sequence[FittedSweep]) -> list[str]:
    """Return latency, bandwidth and half size of every sweep: measured, and of the model after."""
    rows = []
    for one in sweeps:
        sweep = one.sweep
        factor = bus_bandwidth_factor(sweep.collective, sweep.n_ranks) / 1e9
        row = [sweep.collective, sweep.place_words]
        for times in (sweep.times_s, one.before_s, one.after_s):
            rate = max(n / t for n, t in zip(sweep.sizes_bytes, times, strict=True))
            half = half_bandwidth_bytes(sweep.sizes_bytes, times)
            row += [_us(min(times)), f"{factor * rate:.1f}", _size(half) if half else "-"]
        rows.append(row)
    titles = ["collective", "ranks"]
    for title in ("measured", "before", "fitted"):
        titles += [f"{title} us", "GB/s", "half at"]
    return benchmark_table(titles, rows, left=(0, 1))


def item_lines(items: Sequence[FittedItem]) -> list[str]:
    """Return the residuals of products, memory passes and attention cores, times in us."""
    rows = [
        [
            item.kind,
            item.label,
            _us(item.measured_s),
            _us(item.before_s),
            _error(item.before_s, item.measured_s),
            _us(item.after_s),
            _error(item.after_s, item.measured_s),
        ]
        for item in items
    ]
    titles = ["", "", "measured us", "before us", "off", "fitted us", "off"]
    return benchmark_table(titles, rows, left=(0, 1))


def kind_lines(items: Sequence[FittedItem]) -> list[str]:
    """Return the median error of every kind of item before and after."""
    rows = []
    for kind in dict.fromkeys(item.kind for item in items):
        some = [item for item in items if item.kind == kind]
        before = float(np.median([abs(i.before_s / i.measured_s - 1) for i in some]))
        after = float(np.median([abs(i.after_s / i.measured_s - 1) for i in some]))
        rows.append([kind, str(len(some)), f"{before:.1%}", f"{after:.1%}"])
    return benchmark_table(["", "items", "before", "after"], rows)


def benchmark_report_text(
    heading: Sequence[str],
    links: LinkFit | None,
    device: DeviceFit | None,
    notes: Sequence[str],
    full: bool,
) -> str:
    """Return the whole report; `full` adds every size and item."""
    lines = [*heading, ""]
    estimates = [*(links.estimates if links else ()), *(device.estimates if device else ())]
    lines += [*estimate_lines(estimates), ""]
    if links and links.sweeps:
        lines += ["median error of the model", *sweep_lines(links.sweeps), ""]
        lines += ["least time, bus bandwidth at best, message at half of it"]
        lines += [*curve_lines(links.sweeps), ""]
    if device and device.items:
        lines += ["median error of the model", *kind_lines(device.items), ""]
    if full:
        for one in links.sweeps if links else ():
            lines += [*size_lines(one), ""]
        if device and device.items:
            lines += [*item_lines(device.items), ""]
    lines += [f"note: {note}" for note in notes]
    return "\n".join(lines).rstrip("\n") + "\n"


def benchmark_report_json(
    values: dict[str, float],
    links: LinkFit | None,
    device: DeviceFit | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the report with the names of the JSON format, times in seconds."""
    estimates = [*(links.estimates if links else ()), *(device.estimates if device else ())]
    return {
        "schema_version": 1,
        "values": values,
        "parameters": [
            {
                "name": e.quantity.name,
                "before": e.quantity.prior,
                "value": e.value,
                "p10": e.low,
                "p90": e.high,
                "status": e.status,
            }
            for e in estimates
        ],
        "collectives": [
            {
                "source": one.sweep.source,
                "collective": one.sweep.collective,
                "n_ranks": one.sweep.n_ranks,
                "n_nodes": one.sweep.n_nodes,
                "busy_per_node": one.sweep.busy_per_node,
                "size_bytes": list(one.sweep.sizes_bytes),
                "measured_s": list(one.sweep.times_s),
                "before_s": list(one.before_s),
                "fitted_s": list(one.after_s),
            }
            for one in (links.sweeps if links else ())
        ],
        "items": [
            {
                "kind": item.kind,
                "what": item.label,
                "measured_s": item.measured_s,
                "before_s": item.before_s,
                "fitted_s": item.after_s,
            }
            for item in (device.items if device else ())
        ],
        "notes": list(notes),
    }
