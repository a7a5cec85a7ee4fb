"""A fit as text and as JSON: its values, and the error by family before, after and left out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.measure.calibrate.cross_validation import HeldOut, after_references, spread_over_folds
from planner.measure.calibrate.fit import Fitted
from planner.measure.calibrate.runs import Run, Runs
from planner.measure.validate.eras import HEADLINE
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.intervals import Coverage
from planner.solver.calibration.left_out import FamilyLeftOut, LeftOut
from planner.solver.calibration.parameters import known_parameters

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

DENSE, MOE = "dense", "experts"
APART = {("dlp", "oneflow"): "dlp OneFlow", ("bsg", "deepspeed-zero3"): "bsg ZeRO-3"}
"""Parts of a family whose stack no other family runs with its switches: they are told apart."""
SEEN = 1e-3
"""Change of a prediction over that of a number from which on its run stands behind the number."""
REFERENCES = (1, 3)
"""Numbers of reference runs after which left-out families are judged again."""


@dataclass(frozen=True, slots=True)
class FitErrors:
    """Errors of some runs; fractions, None where there is nothing to judge."""

    n: int
    median: float | None
    p90: float | None
    bias: float | None = None

    @staticmethod
    def of(log_errors: Floats) -> "FitErrors":
        """Return the errors behind ln(predicted / measured)."""
        return FitErrors(len(log_errors), *spread_over_folds(log_errors))


@dataclass(frozen=True, slots=True)
class FamilyReport:
    """One family, or a part of it, under the start, the fit, and fits without it."""

    name: str
    source: str
    kind: str
    """`dense` or `experts`."""
    before: FitErrors
    after: FitErrors
    left_out: FitErrors | None
    """All of the family left out."""
    referenced: Mapping[int, FitErrors]
    """The same after so many reference runs of each stack and hardware."""
    model_left_out: FitErrors | None


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """All that `planner calibrate` says."""

    fitted: Fitted
    families: tuple[FamilyReport, ...]
    headline_before: float | None
    """Mean over the headline families of the median error, all runs of each."""
    headline_after: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the report with the field names of docs/calibration.md."""
        return {
            "schema_version": 1,
            "calibration": self.fitted.calibration.to_json(),
            "hash": self.fitted.calibration.content_hash,
            "values": [value_json(self.fitted, name) for name in _names(self.fitted)],
            "refused": dict(self.fitted.refused),
            "families": [_family_json(family) for family in self.families],
            "headline": {"before": self.headline_before, "after": self.headline_after},
        }


def _names(fitted: Fitted) -> list[str]:
    return [one.name for one in fitted.free]


def value_json(fitted: Fitted, name: str) -> dict[str, Any]:
    """Return one fitted value with its range, prior and the runs that see it."""
    parameter = known_parameters()[name]
    return {
        "name": name,
        "unit": parameter.unit,
        "low": parameter.low,
        "high": parameter.high,
        "prior": parameter.prior,
        "start": fitted.start.value(name),
        "fitted": fitted.calibration.value(name),
        "n_runs": fitted.seen_by[name],
    }


def _family_json(family: FamilyReport) -> dict[str, Any]:
    return {
        "name": family.name,
        "source": family.source,
        "kind": family.kind,
        "before": asdict(family.before),
        "after": asdict(family.after),
        "left_out": asdict(family.left_out) if family.left_out else None,
        "referenced": {str(n): asdict(errors) for n, errors in family.referenced.items()},
        "model_left_out": asdict(family.model_left_out) if family.model_left_out else None,
    }


def report_of(
    runs: Runs,
    fitted: Fitted,
    before: Floats,
    by_source: Mapping[str, HeldOut],
    by_model: Mapping[str, HeldOut],
) -> CalibrationReport:
    """Return the report; `before` are the errors, in ln, of the calibration that was there."""
    parts = _parts(runs)
    families = []
    for (name, source, kind), mask in parts.items():
        left_out, referenced = None, {}
        if source in by_source:
            held_out = _part_of(by_source[source], mask)
            left_out = FitErrors.of(held_out.log_errors)
            for n in REFERENCES:
                referenced[n] = FitErrors(*after_references(runs, held_out, n))
        model = _part_of(by_model[source], mask) if source in by_model else None
        families.append(
            FamilyReport(
                name=name,
                source=source,
                kind=kind,
                before=FitErrors.of(before[mask]),
                after=FitErrors.of(fitted.log_errors[mask]),
                left_out=left_out,
                referenced=referenced,
                model_left_out=FitErrors.of(model.log_errors) if model is not None else None,
            )
        )
    return CalibrationReport(
        fitted=fitted,
        families=tuple(families),
        headline_before=_headline(runs, before),
        headline_after=_headline(runs, fitted.log_errors),
    )


def left_out_of(
    calibration: Calibration,
    runs: Runs,
    fitted: Fitted,
    by_source: Mapping[str, HeldOut],
    coverage: tuple[Coverage, ...],
) -> LeftOut:
    """Return what the families left out, and what each number rests on, say of a calibration."""
    families = {}
    for source, held_out in sorted(by_source.items()):
        _, referenced, _ = after_references(runs, held_out, 1)
        median, p90, _ = spread_over_folds(held_out.log_errors)
        families[source] = FamilyLeftOut(len(held_out.rows), median, p90, referenced)
    return LeftOut(
        calibration.content_hash, families, coverage, families_behind(runs, fitted, calibration)
    )


def families_behind(
    runs: Runs, fitted: Fitted, calibration: Calibration
) -> dict[str, tuple[str, ...]]:
    """Return the families whose runs each fitted number moves, by its name."""
    sources = np.array([run.source for run in runs.runs])
    results = {}
    for i, one in enumerate(fitted.free):
        if calibration.provenance.get(one.name) == "fitted":
            seen = np.abs(fitted.jacobian[:, i]) > SEEN
            if seen.any():
                results[one.name] = tuple(sorted(set(sources[seen].tolist())))
    return results


def _headline(runs: Runs, log_errors: Floats) -> float | None:
    medians = []
    for source in HEADLINE:
        here = runs.where(lambda r, name=source: r.source == name)  # type: ignore[misc]
        median, _, _ = spread_over_folds(log_errors[here])
        medians += [] if median is None else [median]
    return float(np.mean(medians)) if medians else None


def _parts(runs: Runs) -> dict[tuple[str, str, str], Bools]:
    """Return the runs of each part of a family: dense and experts, and what stands `APART`."""

    def key(run: Run) -> tuple[str, str, str]:
        name = APART.get((run.source, run.stack), run.source)
        return name, run.source, MOE if run.is_moe else DENSE

    keys = [key(run) for run in runs.runs]
    return {one: np.array([k == one for k in keys]) for one in sorted(set(keys))}


def _part_of(held_out: HeldOut, mask: Bools) -> HeldOut:
    own = mask[held_out.rows]
    return HeldOut(held_out.rows[own], held_out.log_errors[own])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100.0 * value:.1f}"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table of which the first column is aligned left, the others right."""
    wide = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]
    lines = []
    for row in [titles, *rows]:
        cells = [row[0].ljust(wide[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], wide[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|---|" + "---:|" * (len(titles) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


VALUE_TITLES = ("value", "unit", "range", "prior", "before", "fitted", "runs")


def _value_rows(fitted: Fitted) -> list[list[str]]:
    rows = []
    for name in _names(fitted):
        one = value_json(fitted, name)
        span = f"{one['low']:g} to {one['high']:g}"
        numbers = [f"{one[key]:.4g}" for key in ("prior", "start", "fitted")]
        rows.append([name, one["unit"] or "-", span, *numbers, str(one["n_runs"])])
    return rows


def _refusals(fitted: Fitted) -> list[str]:
    """Return a sentence on every value that is not carried."""
    parameters = known_parameters()
    return [
        f"{name} ended at a bound ({value:.4g}): not carried,"
        f" its prior is {parameters[name].prior:g}"
        for name, value in fitted.refused.items()
    ]


def values_text(fitted: Fitted) -> str:
    """Return the table of the fitted values."""
    lines = _table(VALUE_TITLES, _value_rows(fitted))
    return "\n".join([*lines, *_refusals(fitted)]) + "\n"


def values_markdown(fitted: Fitted) -> str:
    """Return the same as Markdown."""
    titles = tuple(title for title in VALUE_TITLES if title != "before")
    rows = [[f"`{row[0]}`", *row[1:4], *row[5:]] for row in _value_rows(fitted)]
    refused = "".join(f"- {line}.\n" for line in _refusals(fitted))
    return _markdown(titles, rows) + (f"\n{refused}" if refused else "")


FAMILY_TITLES = (
    "median / p90, %",
    "layouts",
    "before",
    "fitted",
    "bias",
    "family left out",
    "+ 1 reference",
    "+ 3",
    "model left out",
)


def _family_rows(report: CalibrationReport) -> list[list[str]]:

    def both(errors: FitErrors | None) -> str:
        if errors is None or errors.median is None:
            return "-"
        return f"{_percent(errors.median)} / {_percent(errors.p90)}"

    rows = []
    for family in report.families:
        name = family.name + (f" ({MOE})" if family.kind == MOE else "")
        rows.append(
            [
                name,
                str(family.after.n),
                both(family.before),
                both(family.after),
                _percent(family.after.bias),
                both(family.left_out),
                *(both(family.referenced.get(n)) for n in REFERENCES),
                both(family.model_left_out),
            ]
        )
    return rows


def _headline_line(report: CalibrationReport) -> str:
    before, after = _percent(report.headline_before), _percent(report.headline_after)
    return f"mean over the headline families of the median: {before} % before, {after} % fitted"


def families_text(report: CalibrationReport) -> str:
    """Return the table of the errors by family, median / p90 in %."""
    lines = _table(FAMILY_TITLES, _family_rows(report))
    if report.headline_after is not None:
        lines.append(_headline_line(report))
    return "\n".join(lines) + "\n"


def families_markdown(report: CalibrationReport) -> str:
    """Return the same as Markdown."""
    return f"{_markdown(FAMILY_TITLES, _family_rows(report))}\n{_headline_line(report)}.\n"


def fit_report_text(report: CalibrationReport) -> str:
    """Return all of the report as a terminal shows it."""
    return f"{values_text(report.fitted)}\n{families_text(report)}"
