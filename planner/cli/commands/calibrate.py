"""`planner calibrate`: fits a calibration to measured runs and writes it."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from planner.cli.command_arguments import CalibrateArguments
from planner.errors import FileError, SearchError, UsageError
from planner.solver.calibration.file import (
    ANCHORS_LEFT_OUT,
    MAX_NAME,
    Calibration,
    check_name,
    load_start,
)
from planner.solver.calibration.parameters import known_parameters

FORMATS = ("table", "json")


def run_calibrate(files: Sequence[str], arguments: CalibrateArguments) -> int:
    """Run `planner calibrate`: fit, cross-validate, print, write; return the exit code.

    Without a file the runs that ship; without `start` the fit begins at the shipped calibration.
    """
    points = one_runs_file(files, arguments.options_of_benchmarks())
    form, start, out = arguments.form, arguments.start, arguments.out
    processes = 1 if arguments.processes is None else arguments.processes
    from planner.measure.calibrate.cross_validation import (
        leave_one_model_out,
        leave_one_source_out,
    )
    from planner.measure.calibrate.fit import check_names
    from planner.measure.calibrate.fit import fit as fit_runs
    from planner.measure.calibrate.report import fit_report_text, report_of
    from planner.measure.calibrate.runs import fit_runs_of
    from planner.measure.validate.points import read_measured_points
    from planner.measure.validate.report import DATA, read_entries

    _check_form(form)
    if not 1 <= processes <= 1024:
        raise UsageError(f"--processes must be 1 to 1024, not {processes}", "--processes 4")
    _check_scipy()
    names = tuple(part.strip() for part in arguments.fit.split(",") if part.strip())
    check_names(names)
    begin = load_start(start).without_anchors()
    check_name(arguments.name)
    _check_out(out)
    inputs = (
        read_measured_points(points or DATA / "points.csv"),
        read_entries(arguments.models or DATA / "models.yaml"),
        read_entries(arguments.hardware or DATA / "hardware.yaml"),
    )
    runs = fit_runs_of(*inputs)
    if not runs.runs:
        raise SearchError(
            "no run of the file can be priced", "planner validate FILE says why for each"
        )
    stem = Path(out or points).stem[:MAX_NAME]
    title = arguments.name or stem or "fitted"
    before = runs.all_log_errors(begin)
    fitted = fit_runs(runs, names, begin, title, _progress, processes)
    by_source, by_model = {}, {}
    if arguments.cross_validate:
        _progress("cross-validation")
        by_source = leave_one_source_out(runs, fitted, processes)
        by_model = leave_one_model_out(runs, fitted, processes)
    report = report_of(runs, fitted, before, by_source, by_model)
    _progress("")
    if form == "json":
        text = json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n"
    else:
        text = fit_report_text(report)
    sys.stdout.write(text)
    if load_start(start).anchored:
        sys.stderr.write(f"note: {ANCHORS_LEFT_OUT}\n")
    if out:
        write_calibration(out, fitted.calibration)
        sys.stderr.write(f"wrote {out}; planner solve --calibration {out} prices with it\n")
    return 0


def _check_form(form: str) -> None:
    if form not in FORMATS:
        raise UsageError(f"--format: unknown {form!r}", f"one of {', '.join(FORMATS)}")


def one_runs_file(files: Sequence[str], of_benchmarks: Mapping[str, str]) -> str:
    """Return the file of runs among the arguments, empty without one; `UsageError` for more."""
    stray = next((option for option, value in of_benchmarks.items() if value), "")
    if stray:
        fix = "--nccl-tests LOG... or --measured FILE beside it"
        raise UsageError(f"{stray} says where benchmarks ran, and there are none", fix)
    if len(files) > 1:
        raise UsageError(f"{len(files)} files of runs", "one RUNS.csv; logs go to --nccl-tests")
    return files[0] if files else ""


def write_calibration(path: str | os.PathLike[str], calibration: Calibration) -> None:
    """Write a calibration file."""
    try:
        Path(path).write_text(calibration.to_text(), encoding="utf-8")
    except OSError as error:
        raise FileError(f"--out: cannot write {path}: {error.strerror}", "name another") from None


def run_list(form: str = "table") -> int:
    """Run `planner calibrate --list`: print every parameter."""
    _check_form(form)
    parameters = known_parameters()
    if form == "json":
        entries: Mapping[str, object] = {
            name: {
                "unit": p.unit,
                "prior": p.prior,
                "low": p.low,
                "high": p.high,
                "meaning": p.meaning,
                "source": p.source,
            }
            for name, p in parameters.items()
        }
        sys.stdout.write(json.dumps(entries, indent=1) + "\n")
        return 0
    for name, p in parameters.items():
        unit = f" {p.unit}" * bool(p.unit)
        sys.stdout.write(f"{name}  {p.prior:g}{unit} ({p.low:g} to {p.high:g}): {p.meaning}\n")
    return 0


def _check_scipy() -> None:
    try:
        import scipy  # noqa: F401  only whether it is there
    except ImportError:
        raise SearchError(
            "a fit needs scipy, which is not installed",
            "pip install 'parallelism-planner[calibrate]'",
        ) from None


def _check_out(out: str) -> None:
    """Refuse a file that cannot be written before anything is computed for it."""
    if out and not Path(out).resolve().parent.is_dir():
        raise UsageError(
            f"--out: there is no folder {Path(out).parent}", "make it, or name another"
        )


def _progress(text: str) -> None:
    """Show one line of progress on a terminal; nothing when stderr is a file."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()
