"""What `planner sweep` does: reads the sweep, runs it or says what it would take."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from planner.cli.arguments import overrides_of, positive, short_time
from planner.cli.command_arguments import SweepArguments
from planner.errors import UsageError
from planner.render.style import style_of
from planner.render.terminal import terminal_width
from planner.solver.execution import check_executor
from planner.sweeps.estimate import ROW_BYTES, Estimate, estimate, no_point
from planner.sweeps.rows import Row
from planner.sweeps.run import POINT_LIMIT_S, SweepExecution, SweepProgress, SweepRun, run_sweep
from planner.sweeps.spec.description import described_sweep, remarks
from planner.sweeps.spec.spec import load_sweep, sweep_content, sweep_from_options
from planner.sweeps.storage import FORMATS, format_of, partial_path
from planner.sweeps.sweep import Sweep
from planner.units import format_time

LINE_EVERY_S = 30.0
"""Where no terminal shows a bar: seconds between two lines."""
DRAW_EVERY_S = 0.2
BAR_WIDTH = 24
MAX_LED = 50_000
"""Points of a sweep whose rows are read once more for what leads its answer."""


def run_sweep_command(
    files: Sequence[str],
    arguments: SweepArguments,
    remote_rows: Callable[[Mapping[str, Any], float], Iterable[Row]] | None = None,
) -> int:
    """Run `planner sweep`; return the exit code.

    `remote_rows` lets a service search: it is given what `sweep_content` returns and the longest
    search of a point, 0 for the usual one, and returns the rows.
    """
    overrides = overrides_of(arguments.set_)
    own_limit_s = positive(arguments.point_limit, "--point-limit", "60")
    sections = {
        "vary": list(arguments.vary),
        "design": arguments.design,
        "samples": arguments.samples,
        "seed": arguments.seed,
        "where": list(arguments.where),
        "let": _named(arguments.let),
        "set": list(overrides),
        "search": arguments.request().to_section(),
        "stack": arguments.stack,
        "calibration": arguments.calibration,
        "reference": arguments.reference,
    }
    more = {key: value for key, value in sections.items() if value not in (None, "", [], {})}
    sweep = _read(files, more)
    limit_s = own_limit_s or sweep.time_limit_s or POINT_LIMIT_S
    executor, form, quiet = arguments.executor, arguments.form, arguments.quiet
    check_executor(executor, arguments.ray_address)
    if arguments.dry_run:
        result = estimate(
            sweep, executor=executor, point_limit_s=limit_s, tell=None if quiet else _tell
        )
        sys.stdout.write(estimate_text(sweep, result))
        return 0
    elsewhere = (
        partial(remote_rows, sweep_content(files, more), own_limit_s) if remote_rows else None
    )
    path = Path(arguments.out or f"{sweep.name}.{_ending(form)}")
    format_of(path, form)
    if next(sweep.points(), None) is None:
        raise no_point(sweep)
    if not quiet:
        _say_start(sweep, path)
    shown = ProgressLine(sys.stderr) if not quiet else None
    try:
        execution = SweepExecution(executor, arguments.ray_address, limit_s, shown, elsewhere)
        run = run_sweep(sweep, path, execution, form=form)
    finally:
        if shown:
            shown.close()
    message = sweep_run_text(run)
    if not run.interrupted:
        message = f"{sweep_lead_text(run)}{message}"
    (sys.stderr if run.interrupted else sys.stdout).write(message)
    return run.exit_code


def _read(files: Sequence[str], more: Mapping[str, Any]) -> Sweep:
    if len(files) == 1:
        if files[0].endswith((".parquet", ".csv", ".jsonl")):
            fix = f"planner report {files[0]} shows it"
            raise UsageError(f"{files[0]} is the result of a sweep, not a sweep file", fix)
        return load_sweep(files[0], more)
    if len(files) == 2:
        arguments = {key: value for key, value in more.items() if key != "vary"}
        return sweep_from_options(files[0], files[1], more.get("vary", ()), arguments)
    raise UsageError(
        f"sweep takes a sweep file, or a model and a cluster, not {len(files)} names",
        "planner sweep SWEEP.yaml, or planner sweep MODEL CLUSTER --vary PATH=VALUES",
    )


def _ending(form: str) -> str:
    return form if form in FORMATS else "parquet"


def _named(items: Sequence[str]) -> dict[str, str]:
    entries = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or not name.strip() or text.startswith("="):
            fix = "--let chip_power='pools.0.accelerator.power * 1.2'"
            raise UsageError(f"--let: {item!r} is not of the form NAME=EXPRESSION", fix)
        entries[name.strip()] = text.strip()
    return entries


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}\r")
        sys.stderr.flush()


def _say_start(sweep: Sweep, path: Path) -> None:
    there = path.exists()
    left = partial_path(path)
    if not there:
        continuation = f", going on with {left}" if left.exists() else ""
        n = f"{sweep.n_points:,} point{'s' * (sweep.n_points != 1)}"
        less = " before constraints" if sweep.constraints else ""
        sys.stderr.write(f"sweep {sweep.name}: {n}{less}, to {path}{continuation}\n")
        sys.stderr.writelines(f"  note: {note}\n" for note in remarks(sweep))


class ProgressLine:
    """Shows how far a sweep is: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, stream: TextIO, clock: Any = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._bar = stream.isatty()
        self._next = clock() + (0.0 if self._bar else LINE_EVERY_S)

    def __call__(self, done: SweepProgress) -> None:
        """Show the progress, unless that was done just now."""
        now, last = self._clock(), done.n_done == done.n_points
        if now < self._next and not (last and self._bar):
            return
        self._next = now + (DRAW_EVERY_S if self._bar else LINE_EVERY_S)
        text = progress_text(done)
        self._stream.write(f"\r\x1b[K{bar(done)} {text}" if self._bar else f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def bar(done: SweepProgress) -> str:
    """Return the bar."""
    full = BAR_WIDTH * done.n_done // max(1, done.n_points)
    return f"[{'#' * full}{'.' * (BAR_WIDTH - full)}]"


def progress_text(done: SweepProgress) -> str:
    """Return how far a sweep is in one line.

    The time left is the time of the points of this run, for each of those that are left.
    """
    share = 100 * done.n_done // max(1, done.n_points)
    text = f"{done.n_done:,}/{done.n_points:,} points ({share}%)"
    n_new = done.n_done - done.n_before
    if n_new and done.left_s is not None and done.n_done < done.n_points:
        text += f", {_rate(n_new, done.elapsed_s)}, about {short_time(done.left_s)} left"
    if odd := _odd(done.statuses):
        text += f"; {odd}"
    return text


def _rate(n: int, time_s: float) -> str:
    """Return how many points a second, or seconds a point, whichever is above one."""
    if n > time_s:
        return f"{n / time_s:.2g} a second" if time_s else "at once"
    return f"{time_s / n:.2g} s a point"


def _odd(statuses: Counter[str]) -> str:
    return ", ".join(f"{n:,} {s}" for s, n in sorted(statuses.items()) if s != "ok")


def sweep_lead_text(run: SweepRun) -> str:
    """Return what leads the answer, from the rows in the file: three sentences and a plot.

    Of more than `MAX_LED` points, whose rows would take much memory, only how to see them.
    """
    if run.n_points > MAX_LED:
        return ""
    from planner.render.report.lead_text import lead_text  # 60 ms, for finished sweeps alone
    from planner.render.report.points import SweepPoints
    from planner.render.report.sweep_lead import sweep_lead
    from planner.sweeps.reader import read_sweep

    rows = read_sweep(run.out)
    lead = sweep_lead(SweepPoints(rows.values, rows.header))
    return lead_text(lead, terminal_width(), style_of()) + "\n"


def sweep_run_text(run: SweepRun) -> str:
    """Return how a run ended, in a few lines."""
    if run.interrupted and not run.n_done:
        return "interrupted before any point was done\n"
    if run.interrupted:
        return (
            f"interrupted: {run.n_done:,} of {run.n_points:,} points are in"
            f" {partial_path(run.out)}\n"
            "the same command goes on where it stopped\n"
        )
    if run.was_finished:
        return f"{run.out} is this sweep already: {run.n_points:,} points, nothing to do\n"
    counts = [f"{n:,} {status}" for status, n in sorted(run.statuses.items())]
    counts += [f"{run.n_before:,} of an earlier run"] if run.n_before else []
    lines = [f"wrote {run.out}: {run.n_points:,} points ({', '.join(counts)})"]
    if run.n_damaged:
        lines.append(f"  {run.n_damaged:,} damaged rows of an earlier run were searched again")
    if run.statuses.keys() - {"ok"}:
        lines.append("  the column `reason` says why a point has no plan")
    lines.append(f"  planner report {run.out} shows them")
    return "\n".join(lines) + "\n"


def estimate_text(sweep: Sweep, forecast: Estimate) -> str:
    """Return what a sweep would take, and how that is known."""
    lines = described_sweep(sweep)
    about = "" if forecast.exact else "about "
    if sweep.constraints or forecast.n_points != forecast.n_combinations:
        lines.append(
            f"points: {forecast.n_combinations:,} before constraints,"
            f" {about}{forecast.n_points:,} after"
        )
    else:
        lines.append(f"points: {forecast.n_points:,}")
    if forecast.n_invalid:
        lines.append(
            f"  {about}{forecast.n_invalid:,} make no valid inputs and become rows that say"
            f" so, such as: {' '.join(forecast.first_fault.split())}"
        )
    n_valid = forecast.n_points - forecast.n_invalid
    if forecast.n_searches < n_valid:
        lines.append(
            f"  {about}{n_valid - forecast.n_searches:,} differ from others in price, power"
            " or failures alone and need no search"
        )
    lines += _time_lines(forecast)
    size = forecast.n_points * ROW_BYTES
    lines.append(f"size: about {max(1, round(size / 1e6)):,} MB on the disk while it runs")
    return "\n".join(lines) + "\n"


def _time_lines(forecast: Estimate) -> list[str]:
    if forecast.time_s is None or forecast.work_s is None:
        return ["time: nothing to search"]
    on = f"{forecast.n_workers} processors" if forecast.n_workers > 1 else "one processor"
    busy = "of this machine, as busy as it is now"
    lines = [f"time: about {short_time(forecast.time_s)} on {on} {busy}"]
    firsts = [t.first_s for t in forecast.timings]
    nexts = [time_s for timing in forecast.timings for time_s in timing.next_s]
    n_timed = len(firsts) + len(nexts)
    lines.append(
        f"  timed: {n_timed} point{'s' * (n_timed != 1)} of {len(firsts)} of"
        f" {forecast.n_groups:,} groups"
        " (one model on one number of devices each); the first of a group took"
        f" {_span(firsts)}" + (f", the next {_span(nexts)}" if nexts else "")
    )
    return lines


def _span(times_s: Sequence[float]) -> str:
    low, high = format_time(min(times_s)), format_time(max(times_s))
    return low if low == high else f"{low} to {high}"
