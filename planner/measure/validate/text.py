"""A validation report as text."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.measure.validate.metrics import Errors
from planner.measure.validate.report import ValidationReport, ranking, totals
from planner.solver.calibration.intervals import Coverage
from planner.solver.calibration.left_out import LeftOut
from planner.text_lines import WIDTH, wrapped
from planner.units import format_gib

Cells = Sequence[str]
LEAST_TEXT = 16
"""Columns that a wrapped text has at least."""


def _percent(value: float | None, sign: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value * 100:{'+' if sign else ''}.1f}"


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table that gives up columns where the window is narrow."""

    head: Cells
    rows: Sequence[Cells]
    n_left: int = 1
    """Columns that are left-justified, the first ones."""
    dispensable: tuple[int, ...] = ()
    """Columns in the order in which they are left out."""
    gap: str = "  "

    def lines(self, width: int) -> list[str]:
        """Return aligned lines of at most `width` columns; a last column of text is wrapped."""
        kept = list(range(len(self.head)))
        for i in self.dispensable:
            if self._width(kept) <= width:
                break
            kept.remove(i)
        widths = [self._column_width(i) for i in kept]
        start = self._width(kept[:-1]) + len(self.gap)
        lines = []
        for row in (self.head, *self.rows):
            cells = (
                row[i].ljust(size) if i < self.n_left else row[i].rjust(size)
                for i, size in zip(kept, widths, strict=True)
            )
            line = self.gap.join(cells).rstrip()
            lines += _hung(line, start, width) if kept[-1] < self.n_left else [line]
        return lines

    def _width(self, columns: Sequence[int]) -> int:
        return sum(self._column_width(i) + len(self.gap) for i in columns) - len(self.gap)

    def _column_width(self, i: int) -> int:
        return max(len(row[i]) for row in (self.head, *self.rows))


def _hung(line: str, start: int, width: int) -> list[str]:
    """Return a row whose last text goes on below itself."""
    if len(line) <= width:
        return [line]
    first, *more = wrapped("", line[start:], max(width - start, LEAST_TEXT), 0)
    return [line[:start] + first, *(" " * start + x for x in more)]


Part = str | FittedTable
"""A line of the report, or one of its tables."""


def shown_lines(parts: Iterable[Part], width: int = WIDTH) -> list[str]:
    """Return lines and tables as lines of at most `width` columns."""
    lines: list[str] = []
    for part in parts:
        if isinstance(part, FittedTable):
            lines += part.lines(width)
        else:
            indent = len(part) - len(part.lstrip())
            lines += wrapped("", part, width, indent + 2) or [""]
    return lines


def _errors(errors: Errors) -> list[str]:
    return [
        str(errors.n),
        _percent(errors.median_ape),
        _percent(errors.p90_ape),
        _percent(errors.bias, sign=True),
    ]


def report_text(report: ValidationReport, by: str, width: int = WIDTH) -> str:
    """Return the report for a terminal of `width` columns, by source, sweep or row."""
    body = {"source": _by_source, "sweep": _by_sweep, "row": _by_row}[by](report)
    return "\n".join(shown_lines([*body, "", *_totals(report)], width)) + "\n"


def _by_source(report: ValidationReport) -> list[Part]:
    return [
        "Predicted against measured, fractions in %. Repeats of one layout count once.",
        "",
        _step_table(report),
        "",
        *_era_table(report),
        coverage_table(report.coverage, report.left_out),
        "",
        _memory_table(report),
        "",
        *_skipped(report),
        _ranking(report),
        "",
        _assumed(report),
    ]


def _step_table(report: ValidationReport) -> FittedTable:
    header = ["step time", "rows", "used", "layouts", "median", "p90", "bias", "B0", "B1"]
    left_out = report.left_out
    if left_out:
        header += ["left out", "+1 run"]
    lines = []
    for x in report.sources:
        base = [_percent(report.baselines[name][x.source].median_ape) for name in ("b0", "b1")]
        line = [x.source, str(x.n_rows), str(x.n_used), *_errors(x.step_time), *base]
        if left_out:
            one = left_out.families.get(x.source)
            line += [_percent(one.median), _percent(one.referenced)] if one else ["-", "-"]
        lines.append(line)
    dispensable = (7, 8, 1, *((10, 9) if left_out else ()), 6, 5)
    return FittedTable(header, lines, dispensable=dispensable)


def _era_table(report: ValidationReport) -> list[Part]:
    """Return a line by era and by what runs have."""
    header = ("steps", "of", "layouts", "median", "p90", "bias", "+1 run", "inside", "measured")
    lines = []
    for x in report.eras:
        of = f"{len(x.families)} families" if x.by == "families" else "rows"
        numbers = [_percent(x.median_ape), _percent(x.p90_ape), _percent(x.bias, sign=True)]
        numbers += [_percent(x.referenced_ape), _percent(x.inside)]
        lines.append([x.title, of, str(x.n), *numbers, years_text(x.years)])
    return [FittedTable(header, lines, 2, (1, 8, 6, 5)), ""] if lines else []


def years_text(years: tuple[int, int] | None) -> str:
    """Return the years of some documents.

    >>> years_text((2021, 2024)), years_text((2023, 2023)), years_text(None)
    ('2021-24', '2023', '-')
    """
    if years is None:
        return "-"
    first, last = years
    return str(first) if first == last else f"{first}-{last % 100:02d}"


def coverage_table(coverages: Sequence[Coverage], left_out: LeftOut | None = None) -> Part:
    """Return the share of rows inside their 80 % intervals, by regime.

    Beside it, where that was found, the share of runs whose family neither fit nor intervals saw.
    """
    header = ["80 % interval", "layouts", "inside", "below", "above"]
    lines = [
        [x.regime, str(x.n), _percent(x.inside), _percent(x.below), _percent(x.above)]
        for x in coverages
    ]
    if not lines:
        return "No step time was measured."
    if left_out:
        header += ["left out", "inside"]
        apart = {x.regime: [str(x.n), _percent(x.inside)] for x in left_out.coverage}
        lines = [[*line, *apart.get(line[0], ["-", "-"])] for line in lines]
    return FittedTable(header, lines, dispensable=(4, 3))


def _memory_table(report: ValidationReport) -> Part:
    """Return the sources with memory figures or runs that did not fit."""
    header = (
        "memory",
        "layouts",
        "median",
        "p90",
        "bias",
        "ran out",
        "found",
        "fitted",
        "found",
        "balanced",
    )
    lines = [
        [
            x.source,
            *_errors(x.memory),
            str(x.oom.n_oom),
            _percent(x.oom.recall_oom),
            str(x.oom.n_fit),
            _percent(x.oom.recall_fit),
            _percent(x.oom.balanced_accuracy),
        ]
        for x in report.sources
        if x.memory.n or x.oom.n_oom or x.oom.n_fit
    ]
    dispensable = (5, 7, 4, 6, 8)
    return FittedTable(header, lines, 1, dispensable) if lines else "No memory was measured."


def _skipped(report: ValidationReport) -> list[Part]:
    lines = [
        [x.source, ", ".join(f"{reason} {n}" for reason, n in x.skipped.items())]
        for x in report.sources
        if x.skipped
    ]
    return [FittedTable(("skipped", "reasons"), lines, 2), ""] if lines else []


def _ranking(report: ValidationReport) -> Part:
    """Return one line per mode and family, the model beside B1 and B2."""
    entries = {name: ranking(report.sweeps[name]) for name in report.sweeps}
    header = (
        "ranking",
        "mode",
        "sweeps",
        "tau",
        "regret@1",
        "median",
        "trim",
        "max",
        "regret@3",
        "B1 tau",
        "r@1",
        "B2 tau",
        "r@1",
    )
    lines = []
    for mode, families in entries["model"].items():
        for source, x in families.items():
            regrets = (x["regret_1"][k] for k in ("mean", "median", "trimmed_mean", "max"))
            lines.append([source, mode, str(x["n_sweeps"]), _tau(x)])
            lines[-1] += [_percent(value) for value in regrets]
            lines[-1].append(_percent(x["regret_3"]["mean"]))
            for base in (entries["b1"][mode][source], entries["b2"][mode][source]):
                lines[-1] += [_tau(base), _percent(base["regret_1"]["mean"])]
    if not lines:
        return "No sweep: none has 4 rows and 3 layouts."
    return FittedTable(header, lines, 2, (10, 12, 9, 11, 7, 6, 5, 8), " ")


def _tau(entry: Mapping[str, Any]) -> str:
    return f"{entry['tau']:.2f}"


def _by_sweep(report: ValidationReport) -> list[Part]:
    b2 = {(sweep.key, sweep.mode): sweep for sweep in report.sweeps["b2"]}
    header = ("sweep", "mode", "plans", "tau", "r@1 %", "r@3 %", "B2 tau", "B2 r@1 %")
    lines = [
        [
            x.key,
            x.mode,
            str(x.n_plans),
            f"{x.tau:.2f}",
            _percent(x.regret_1),
            _percent(x.regret_3),
            f"{b2[x.key, x.mode].tau:.2f}",
            _percent(b2[x.key, x.mode].regret_1),
        ]
        for x in report.sweeps["model"]
    ]
    return [FittedTable(header, lines, 2, (6, 7, 5))]


def _by_row(report: ValidationReport) -> list[Part]:
    """Return one line per run; assumptions are numbers into the list at the end."""
    codes = {text: i for i, (text, _) in enumerate(_counted(report), 1)}
    header = (
        "id",
        "step s",
        "pred s",
        "err %",
        "GiB",
        "pred GiB",
        "err %",
        "oom",
        "pred",
        "assumed",
    )
    lines = []
    for row in report.rows:
        point, result = row.point, row.prediction
        if result is None:
            lines.append([point.id, *["-"] * 8, row.skipped])
            continue
        step, peak = point.step_s, point.peak_bytes
        lines.append(
            [
                point.id,
                f"{step:.4g}" if step else "-",
                f"{result.step_s:.4g}",
                _percent(result.step_s / step - 1, sign=True) if step else "-",
                format_gib(peak) if peak else "-",
                format_gib(result.memory_bytes),
                _percent(result.memory_bytes / peak - 1, sign=True) if peak else "-",
                {None: "-", True: "oom", False: "fits"}[point.oom],
                "fits" if result.fits else "oom",
                ",".join(str(codes[text]) for text in result.assumptions),
            ]
        )
    return [FittedTable(header, lines, 1, (6, 4, 5, 7, 8, 9)), "", _assumed(report)]


def _counted(report: ValidationReport) -> list[tuple[str, int]]:
    """Return every assumption with the runs that needed it, most first."""
    counts = Counter(
        a for row in report.rows if row.prediction for a in row.prediction.assumptions
    )
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _assumed(report: ValidationReport) -> Part:
    lines = [[str(i), str(n), text] for i, (text, n) in enumerate(_counted(report), 1)]
    if not lines:
        return "Nothing was assumed."
    return FittedTable(("no", "runs", "assumed where a run does not say"), lines, 3)


def _totals(report: ValidationReport) -> list[str]:
    result = totals(report)
    share = _percent(result["n_used"] / result["n_eligible"]) if result["n_eligible"] else "-"
    lines = [
        f"{result['n_used']} of {result['n_rows']} rows used: {share} % of the"
        f" {result['n_eligible']} that are neither slow nor hybrid.",
        "Families weigh the same:",
    ]
    for name, title in (("headline", "headline families"), ("all", "all families")):
        entry = result[name]
        if not entry["families"]:
            continue
        step, memory = entry["step_time"], entry["memory"]
        base = entry["baselines"]
        lines.append(
            f"  {title} ({step['n_families']}): step time median {_percent(step['median_ape'])} %,"
            f" p90 {_percent(step['p90_ape'])} %, bias {_percent(step['bias'], sign=True)} %"
            f" (B0 {_percent(base['b0']['median_ape'])} %, B1 {_percent(base['b1']['median_ape'])}"
            f" %); memory median {_percent(memory['median_ape'])} %,"
            f" p90 {_percent(memory['p90_ape'])} %"
        )
    for mode, entry in result["sweeps"].items():
        lines.append(
            f"  {mode} sweeps ({entry['n_families']} families): tau {entry['tau']:.2f},"
            f" regret@1 {_percent(entry['regret_1'])} %, regret@3 {_percent(entry['regret_3'])} %"
        )
    return lines
