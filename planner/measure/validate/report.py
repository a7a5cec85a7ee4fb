"""From measured runs to a report: errors by source, ranking by sweep, baselines, totals."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputProblem, SpecError
from planner.measure.validate import baselines
from planner.measure.validate.described import ENTRY_KEYS, NESTED_KEYS, Entry, value_fault
from planner.measure.validate.eras import HEADLINE, EraErrors, era_errors
from planner.measure.validate.metrics import (
    Classified,
    Errors,
    classify,
    errors,
    kendall_tau,
    mean,
    regret,
    trimmed_mean,
    weighted_mean,
)
from planner.measure.validate.points import MeasuredPoint
from planner.measure.validate.rows import (
    MODES,
    SLOW,
    MeasuredSweep,
    Row,
    Used,
    measured_sweeps,
    price_points,
    use,
)
from planner.solver.calibration.file import Calibration, load_calibration
from planner.solver.calibration.intervals import Coverage, coverage, interval_of, regime_of
from planner.solver.calibration.left_out import LeftOut, read_left_out
from planner.specs.progress import Progress
from planner.specs.yaml.document import Document, KeyPath, close_names, load_yaml
from planner.units import shown_value

Floats = NDArray[np.float64]

DATA = Path(str(files("planner"))) / "data" / "validation"
"""The measured runs that ship with the package."""
NOT_ELIGIBLE = (SLOW, "hybrid layers")
"""Reasons that do not count against the share of rows used: unhealthy runs, and what has no price
yet."""
FORMATS = ("table", "json")
VIEWS = ("source", "sweep", "row", "search")
ESTIMATORS = ("model", "b0", "b1", "b2")


@dataclass(frozen=True, slots=True)
class SourceReport:
    """One family of runs."""

    source: str
    n_rows: int
    n_used: int
    n_layouts: int
    """Distinct layouts among the rows used: what the errors count."""
    skipped: Mapping[str, int]
    step_time: Errors
    memory: Errors
    oom: Classified


@dataclass(frozen=True, slots=True)
class SweepReport:
    """One sweep under one estimator."""

    source: str
    key: str
    mode: str
    n_plans: int
    tau: float
    regret_1: float
    regret_3: float


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """All that `planner validate` says."""

    calibration: Calibration
    """The numbers that priced the runs."""
    rows: tuple[Row, ...]
    sources: tuple[SourceReport, ...]
    sweeps: Mapping[str, tuple[SweepReport, ...]]
    """By estimator."""
    baselines: Mapping[str, Mapping[str, Errors]]
    """Step-time errors of B0 and B1 by source."""
    coverage: tuple[Coverage, ...]
    """Of the 80 % intervals: of all layouts with a step time, then by regime."""
    left_out: LeftOut | None
    """What was found for families left out of the fit; None for a calibration without that."""
    eras: tuple[EraErrors, ...]
    """Errors by era of the software, with experts, in fp8, on AMD."""

    def to_json(self, by: str = "source") -> dict[str, Any]:
        """Return the report with the names of the JSON format; `by="row"` adds the rows."""
        out: dict[str, Any] = {
            "schema_version": 1,
            "calibration": {
                "name": self.calibration.name,
                "hash": self.calibration.content_hash,
                "anchored": self.calibration.anchored,
            },
            "sources": [asdict(source) for source in self.sources],
            "sweeps": [asdict(sweep) for sweep in self.sweeps["model"]],
            "baselines": {
                name: {
                    "step_time": {
                        source: asdict(errors)
                        for source, errors in self.baselines.get(name, {}).items()
                    },
                    "sweeps": ranking(self.sweeps[name]),
                }
                for name in ESTIMATORS[1:]
            },
            "intervals": [asdict(one) for one in self.coverage],
            "left_out": _left_out_json(self.left_out),
            "eras": [asdict(one) for one in self.eras],
            "totals": totals(self),
        }
        if by == "row":
            out["rows"] = [_row_json(row) for row in self.rows]
        return out


def _left_out_json(found: LeftOut | None) -> dict[str, Any] | None:
    """Return errors and coverage of families left out of the fit."""
    if found is None:
        return None
    document = found.to_json()
    return {"families": document["families"], "intervals": document["coverage"]}


def _row_json(row: Row) -> dict[str, Any]:
    point, result = row.point, row.prediction
    return {
        "id": point.id,
        "skipped": row.skipped or None,
        "measured": {
            "step_time_s": point.step_s,
            "peak_bytes": point.peak_bytes,
            "oom": point.oom,
        },
        "predicted": {
            "step_time_s": result.step_s,
            "peak_bytes": result.memory_bytes,
            "oom": not result.fits,
            "time": dict(result.time_s),
            "step_range_s": list(result.range_s) if result.range_s else None,
        }
        if result
        else None,
        "assumed": list(result.assumptions) if result else [],
    }


def validation_report(
    points: Sequence[MeasuredPoint],
    models: Mapping[str, Entry],
    hardware: Mapping[str, Entry],
    calibration: Calibration | None = None,
    progress: Progress = None,
) -> ValidationReport:
    """Predict every run that states enough and compare; `models` and `hardware` are by name.

    `progress` is told how many runs are priced, and of how many.
    """
    calibration = calibration or load_calibration()
    rows = price_points(points, models, hardware, calibration, progress)
    used = use(rows)
    names = sorted({point.source for point in points})
    estimates = _estimates(used)
    all_sweeps = [sweep for mode in MODES for sweep in measured_sweeps(used, mode)]
    return ValidationReport(
        calibration=calibration,
        rows=rows,
        sources=tuple(_source(name, rows, used) for name in names),
        sweeps={
            name: tuple(_sweep(sweep, times) for sweep in all_sweeps)
            for name, times in estimates.items()
        },
        baselines={
            name: {source: _step_errors(used, source, estimates[name]) for source in names}
            for name in ("b0", "b1")
        },
        coverage=coverage_of(used, calibration),
        left_out=read_left_out(calibration),
        eras=era_errors(rows, used, calibration),
    )


def coverage_of(used: Sequence[Used], calibration: Calibration) -> tuple[Coverage, ...]:
    """Return how many of the measured layouts lie inside the intervals of their predictions."""
    timed = [plan for plan in used if plan.step_s is not None]
    regimes = [
        regime_of(
            plan.case.problem,
            plan.case.layout,
            plan.prediction.time_s,
            plan.prediction.step_s,
            calibration,
        )
        for plan in timed
    ]
    ratios = np.log([(plan.step_s or 0.0) / plan.prediction.step_s for plan in timed])
    return coverage(regimes, ratios, np.array([interval_of(x, calibration) for x in regimes]))


def _estimates(used: Sequence[Used]) -> dict[str, Callable[[Sequence[Used]], Floats]]:
    """Return each estimator as a function from plans to step times (or ranks for B2)."""
    timed = [plan for plan in used if plan.step_s is not None]
    measured = np.array([plan.step_s for plan in timed], dtype=np.float64)
    hardware = [plan.point.hardware for plan in timed]
    constant = baselines.constant_mfu([plan.case for plan in timed], hardware, measured)
    b0 = {plan.point.line: value for plan, value in zip(timed, constant, strict=True)}
    b1 = {plan.point.line: baselines.naive_step_s(plan.case) for plan in timed}

    def model(plans: Sequence[Used]) -> Floats:
        return np.array([plan.prediction.step_s for plan in plans], dtype=np.float64)

    def table(values: Mapping[int, float]) -> Callable[[Sequence[Used]], Floats]:
        return lambda plans: np.array([values[p.point.line] for p in plans], dtype=np.float64)

    return {
        "model": model,
        "b0": table(b0),
        "b1": table(b1),
        "b2": lambda plans: baselines.rule_of_thumb([plan.case for plan in plans]),
    }


def _of(used: Sequence[Used], source: str) -> list[Used]:
    return [plan for plan in used if plan.point.source == source]


def _step_errors(
    used: Sequence[Used], source: str, estimate: Callable[[Sequence[Used]], Floats]
) -> Errors:
    timed = [plan for plan in _of(used, source) if plan.step_s is not None]
    return errors(estimate(timed), [plan.step_s or 0.0 for plan in timed])


def _source(name: str, rows: Sequence[Row], used: Sequence[Used]) -> SourceReport:
    own = [row for row in rows if row.point.source == name]
    plans = _of(used, name)
    weighed = [plan for plan in plans if plan.peak_bytes]
    labelled = [plan for plan in plans if plan.oom is not None]
    skipped = Counter(row.skipped for row in own if row.skipped)
    timed = [plan for plan in plans if plan.step_s is not None]
    return SourceReport(
        source=name,
        n_rows=len(own),
        n_used=len(own) - sum(skipped.values()),
        n_layouts=len(plans),
        skipped=dict(sorted(skipped.items())),
        step_time=errors(
            [plan.prediction.step_s for plan in timed], [plan.step_s or 0.0 for plan in timed]
        ),
        memory=errors(
            [plan.prediction.memory_bytes for plan in weighed],
            [plan.peak_bytes or 0.0 for plan in weighed],
        ),
        oom=classify(
            [not plan.prediction.fits for plan in labelled], [bool(plan.oom) for plan in labelled]
        ),
    )


def _sweep(sweep: MeasuredSweep, estimate: Callable[[Sequence[Used]], Floats]) -> SweepReport:
    predicted = estimate(sweep.plans)
    measured = [plan.step_s or 0.0 for plan in sweep.plans]
    return SweepReport(
        source=sweep.source,
        key=sweep.key,
        mode=sweep.mode,
        n_plans=len(measured),
        tau=kendall_tau(predicted, measured),
        regret_1=regret(predicted, measured, 1),
        regret_3=regret(predicted, measured, 3),
    )


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    return {
        "mean": mean(values),
        "median": float(np.median(values)) if len(values) else None,
        "trimmed_mean": trimmed_mean(values),
        "max": max(values, default=None),
    }


def ranking(sweeps: Sequence[SweepReport]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return tau (weighted by plans) and the spread of the regrets, by mode and source."""
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for mode in MODES:
        for source in sorted({sweep.source for sweep in sweeps}):
            own = [s for s in sweeps if (s.mode, s.source) == (mode, source)]
            if own:
                out.setdefault(mode, {})[source] = {
                    "n_sweeps": len(own),
                    "tau": weighted_mean([s.tau for s in own], [s.n_plans for s in own]),
                    "regret_1": _spread([s.regret_1 for s in own]),
                    "regret_3": _spread([s.regret_3 for s in own]),
                }
    return out


def totals(report: ValidationReport) -> dict[str, Any]:
    """Return counts and means in which every family weighs the same."""
    skipped = Counter[str]()
    for source in report.sources:
        skipped.update(source.skipped)
    headline = [source for source in report.sources if source.source in HEADLINE]
    by_mode = ranking(report.sweeps["model"])
    return {
        "n_rows": sum(source.n_rows for source in report.sources),
        "n_used": sum(source.n_used for source in report.sources),
        "n_eligible": sum(row.skipped not in NOT_ELIGIBLE for row in report.rows),
        "skipped": dict(sorted(skipped.items())),
        "all": _family_means(report, report.sources),
        "headline": _family_means(report, headline),
        "sweeps": {
            mode: {
                "n_families": len(families),
                "tau": mean([entry["tau"] for entry in families.values()]),
                "regret_1": mean([entry["regret_1"]["mean"] for entry in families.values()]),
                "regret_3": mean([entry["regret_3"]["mean"] for entry in families.values()]),
            }
            for mode, families in by_mode.items()
        },
        "ranking": by_mode,
    }


def _family_means(report: ValidationReport, sources: Sequence[SourceReport]) -> dict[str, Any]:
    """Return means over families: of medians, 90th percentiles and biases."""

    def means(errors: Sequence[Errors]) -> dict[str, Any]:
        return {
            "n_families": sum(one.n > 0 for one in errors),
            "median_ape": mean([one.median_ape for one in errors]),
            "p90_ape": mean([one.p90_ape for one in errors]),
            "bias": mean([one.bias for one in errors]),
        }

    names = [source.source for source in sources]
    return {
        "families": [source.source for source in sources if source.step_time.n],
        "step_time": means([source.step_time for source in sources]),
        "memory": means([source.memory for source in sources]),
        "oom": {"balanced_accuracy": mean([s.oom.balanced_accuracy for s in sources])},
        "baselines": {
            name: means([errors[source] for source in names])
            for name, errors in report.baselines.items()
        },
    }


def read_entries(path: str | os.PathLike[str]) -> dict[str, Entry]:
    """Read a file of models or hardware by name."""
    document = load_yaml(path)
    data = document.data
    if not isinstance(data, dict) or not all(isinstance(entry, dict) for entry in data.values()):
        fix = "write `name:` and under it the keys of models.yaml or hardware.yaml that ships"
        raise SpecError(InputProblem("is no mapping of names to entries", fix, os.fspath(path)))
    wrong = [x for name, entry in data.items() for x in _entry_problems(document, name, entry)]
    if wrong:
        raise SpecError(wrong)
    return data


def _entry_problems(document: Document, name: str, entry: Entry) -> list[InputProblem]:
    """Return values of the wrong kind, and unknown keys in the mappings inside an entry."""
    wrong = _wrong_values(document, (name,), entry)
    for key, known in NESTED_KEYS.items():
        nested = entry.get(key) or {}
        if not isinstance(nested, dict):
            fix = f"a mapping with {', '.join(known[:3])}, ..."
            wrong.append(
                document.problem((name, key), f"{shown_value(nested)} is no mapping", fix)
            )
            continue
        wrong += _wrong_values(document, (name, key), nested)
        for unknown in (x for x in nested if x not in known):
            close = close_names(str(unknown), known, 1)
            fix = f"did you mean {close[0]}?" if close else f"one of {', '.join(known)}"
            path = (name, key, unknown)
            wrong.append(document.problem(path, f"unknown key {unknown!r}", fix, at_key=True))
    return wrong


def _wrong_values(document: Document, path: KeyPath, values: Entry) -> list[InputProblem]:
    faults = ((key, value_fault(key, value)) for key, value in values.items())
    return [document.problem((*path, key), *fault) for key, fault in faults if fault]


def unread_keys(entries: Mapping[str, Entry]) -> tuple[tuple[str, str], ...]:
    """Return the keys of entries that mean nothing here, each with a key of a like name or ""."""
    titles = dict.fromkeys(key for entry in entries.values() for key in entry)
    return tuple(
        (title, next(iter(close_names(title, ENTRY_KEYS, 1)), ""))
        for title in titles
        if title not in ENTRY_KEYS
    )
