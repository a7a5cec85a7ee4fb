"""Running a sweep: its points are searched on an executor and their rows kept as they come.

The finished file is the same, byte for byte, whichever executor ran it, in whatever order answers
came and however often it was killed and started again; points that a time limit stopped are
exempt.
"""

import errno
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path

from planner.errors import PlannerError, SearchError, SweepFileError, UsageError
from planner.option_names import option
from planner.solver.execution import Execution, Stop, check_executor
from planner.solver.solve import solve_point
from planner.sweeps.points import Point
from planner.sweeps.reader import read_header
from planner.sweeps.rows import (
    FAILED,
    STOPPED,
    Inputs,
    Row,
    SolvedPoint,
    failed_row,
    solved_row,
    twin_row,
)
from planner.sweeps.storage import (
    PartialSweep,
    check_same_sweep,
    format_of,
    partial_path,
    row_text,
    write_finished,
)
from planner.sweeps.sweep import Sweep
from searches.executors.executor import ExecutorError, SerialExecutor
from searches.executors.streaming import Lost, make_stream
from searches.pricing.shared_work import SharedWork
from searches.search import Seldom

POINT_LIMIT_S = 600.0
"""Longest search of a point unless told otherwise, seconds."""
SHORT_LIMIT_S = 10.0
"""Limits from which on the clock is seldom looked at: small steps between looks cost time."""
LEAST_HARD_LIMIT_S = 10.0
"""What a point has besides twice its limit before its worker is killed, seconds: for reading its
inputs, for a solver that looks at the clock late, and for its twins."""
MAX_TWINS = 64
"""Points that are derived from one search; a hundred take a second."""
MAX_REASON = 400
"""Characters of the reason of an error that nobody foresaw."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """How far a sweep has come."""

    n_done: int
    """Points with a row, those of earlier runs included."""
    n_points: int
    n_before: int
    """Points that earlier runs have left."""
    statuses: Counter[str]
    """Of the rows of this run."""
    elapsed_s: float
    left_s: float | None
    """Time that the rest takes at the pace of this run, the start of its workers left out; None
    before there is one. Points on many devices come first, so that it rather shrinks than grows.
    """


@dataclass(frozen=True, slots=True)
class SweepRun:
    """How a run of a sweep ended."""

    out: Path
    n_points: int
    n_done: int
    n_before: int
    statuses: Counter[str] = field(default_factory=Counter)
    n_damaged: int = 0
    """Damaged rows of an earlier run, which were searched again."""
    interrupted: bool = False
    was_finished: bool = False
    """The file was there already, so that there was nothing to do."""

    @property
    def exit_code(self) -> int:
        """What the command line returns: 0, or 130 when interrupted."""
        return 130 if self.interrupted else 0


Progress = Callable[[SweepProgress], None]
Rows = list[tuple[int, str, str]]
"""Index, status and text of the rows that one search gives."""


Elsewhere = Callable[[], Iterable[Row]]
"""Searches all points of a sweep in another place and returns their rows, as they come."""


@dataclass(frozen=True, slots=True, eq=False)
class Twins:
    """Points that one search answers: they differ in price, power or failures alone."""

    points: tuple[Point, ...]


class PointSolver:
    """Searches points one after the other, with the tables that they share."""

    def __init__(self, sweep: Sweep, limit_s: float) -> None:
        self._sweep = sweep
        self._limit_s = limit_s
        self._shared = SharedWork()

    def __call__(self, twins: Twins) -> Rows:
        """Return the rows of points that one search answers; no error of a point comes through."""
        rows: Rows = []
        first: SolvedPoint | None = None
        for point in twins.points:
            try:
                row, first = self._row(point, first)
                text = row_text(row)
            except PlannerError as error:
                row = self._failed(point, _in_one_line(error))
                text = row_text(row)
            except Exception as error:
                row = self._failed(point, unforeseen(error))
                text = row_text(row)
            rows.append((point.index, str(row["status"]), text))
        return rows

    def _row(self, point: Point, first: SolvedPoint | None) -> tuple[Row, SolvedPoint]:
        """Return the row of a point, and the row and result that its twins are derived from."""
        sweep = self._sweep
        model, cluster = sweep.inputs(point)
        options, columns = sweep.options_of(point), sweep.columns(point)
        if first is not None:
            return twin_row(first, point, columns, model, cluster, options), first
        began = time.monotonic()

        def stop_at(share: float) -> Stop:
            """Return what ends the search after a share of its limit."""

            def late() -> bool:
                return time.monotonic() > began + share * self._limit_s

            return late if self._limit_s < SHORT_LIMIT_S else Seldom(late)

        execution = Execution(SerialExecutor(), stop_at(1.0), shared=self._shared)
        result = solve_point(model, cluster, options, execution, stop_at)
        if result.stopped == "interrupted":
            raise KeyboardInterrupt  # a search keeps it, to answer with the best so far
        row = solved_row(point, columns, model, cluster, options, result)
        return row, SolvedPoint(row, result)

    def _failed(self, point: Point, reason: str) -> Row:
        return failed_row(point, FAILED, reason, columns_of_point(self._sweep, point))


def solver_of_worker(sweep: Sweep, limit_s: float, priced_by: object) -> PointSolver:
    """Return what a worker searches points with.

    Raises `ExecutorError` where its version, catalogue or calibration are not those of the process
    that waits (`priced_by`, of `Sweep.header`): machines of a cluster are not always alike.
    """
    here = sweep.header().get("calibration")
    if here != priced_by:
        raise ExecutorError(
            f"a worker has another version or catalogue of planner: {here}, not {priced_by}",
            "install the same version on all machines",
        )
    return PointSolver(sweep, limit_s)


def lost_rows(sweep: Sweep, twins: Twins, lost: Lost) -> Rows:
    """Return the rows of points whose search has no answer."""
    status = STOPPED if lost.over_limit else FAILED
    rows = [
        failed_row(point, status, lost.reason, columns_of_point(sweep, point))
        for point in twins.points
    ]
    return [
        (point.index, status, row_text(row)) for point, row in zip(twins.points, rows, strict=True)
    ]


def columns_of_point(sweep: Sweep, point: Point) -> Inputs:
    """Return what a row says of its inputs; nothing where its values cannot even be read."""
    try:
        return sweep.columns(point)
    except Exception:
        return ()


def _in_one_line(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines())


def unforeseen(error: Exception) -> str:
    """Return what a row says of an error that is none of ours: its class and message, shortened.

    Addresses of objects are left out: they differ from run to run.
    """
    text = _ADDRESS.sub("0x...", " ".join(str(error).split()))
    name = type(error).__name__
    total = f"unexpected {name}: {text}" if text else f"unexpected {name}"
    return total if len(total) <= MAX_REASON else total[: MAX_REASON - 3] + "..."


def chunks_of(points: Iterable[Point]) -> list[list[Twins]]:
    """Return the searches that points take, those that share work together, large ones first."""
    by_key: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        by_key.setdefault((point.shared_key, point.costless_key), []).append(point)
    searches = [
        (shared, Twins(tuple(same[i : i + MAX_TWINS])))
        for (shared, _), same in by_key.items()
        for i in range(0, len(same), MAX_TWINS)
    ]
    searches.sort(key=lambda x: x[0], reverse=True)  # stable: in the order of the points within
    return [[one for _, one in chunk] for _, chunk in groupby(searches, key=lambda x: x[0])]


@dataclass(frozen=True, slots=True)
class SweepExecution:
    """How the searches of a sweep run; no row depends on it, unless its limit stops one."""

    executor: str = "automatic"
    """`automatic` (processes where there are several processors), `serial`, `processes` or `ray`.
    """
    ray_address: str = ""
    """Cluster of Ray; this machine without it."""
    point_limit_s: float = 0.0
    """Longest search of a point; 0: what the sweep says, else `POINT_LIMIT_S`. One that does not
    keep to it is killed with its worker."""
    progress: Progress | None = None
    """Told how far the sweep has come."""
    elsewhere: Elsewhere | None = None
    """Returns the rows where another service searches the points."""

    def check(self) -> None:
        """Raise `UsageError` for an executor that does not exist, or a limit below 0."""
        check_executor(self.executor, self.ray_address)
        if self.point_limit_s < 0:
            message = option("point-limit") + f" must be above 0 s, not {self.point_limit_s:g}"
            raise UsageError(message, "such as 60")


def run_sweep(
    sweep: Sweep,
    out: str | os.PathLike[str],
    execution: SweepExecution = SweepExecution(),
    *,
    form: str = "",
) -> SweepRun:
    """Search the points of a sweep that have no row yet; write `out` when all have one.

    `form` is `parquet`, `csv` or `jsonl`, by the ending of `out` without it. Where `out` is this
    sweep already, nothing is done. Ctrl-C ends the run early; the same call goes on where it
    stopped. Raises `SweepFileError` where rows cannot be kept, `UsageError` for bad options,
    `SearchError` when no worker can be had; the rows that there are stay in any case.
    """
    path = Path(out)
    form = format_of(path, form)
    execution.check()
    header = sweep.header()
    limit_s = execution.point_limit_s or sweep.time_limit_s or POINT_LIMIT_S
    if path.exists():
        return _finished_before(path, header)
    with closing(PartialSweep(path, header)) as partial_sweep:
        if path.exists():  # finished by another process since
            partial_sweep.close()
            return _finished_before(path, header)
        try:
            points = list(sweep.points())
            run = _Run(sweep, points, path, partial_sweep, execution.progress)
            stream = make_stream(execution.executor, execution.ray_address or None)
            done = partial_sweep.done
            left = [point for point in points if point.index not in done]
            if execution.elsewhere is not None:
                run.keep_all(_rows_of(execution.elsewhere, {point.index for point in left}))
            else:
                run.keep_all(
                    stream.answers(
                        partial(solver_of_worker, sweep, limit_s, header.get("calibration")),
                        chunks_of(left),
                        2.0 * limit_s + LEAST_HARD_LIMIT_S,
                    )
                )
            if points and not run.interrupted:
                run.finish(form, header)
        finally:
            if not partial_sweep.n_done and not path.exists():
                partial_sweep.remove()
    return run.ended()


def _rows_of(elsewhere: Elsewhere, left: set[int]) -> Iterator[tuple[Twins, Rows]]:
    """Yield the rows of points that another service searches, as they come."""
    if not left:
        return
    missing = set(left)
    for row in elsewhere():
        index = int(row["index"] or 0)
        if index in missing:
            missing.remove(index)
            yield Twins(()), [(index, str(row["status"]), row_text(row))]
    if missing:
        raise ExecutorError(
            f"{len(missing):,} points came without a row", "give the same command again"
        )


def _finished_before(path: Path, header: dict[str, object]) -> SweepRun:
    """Return that there is nothing to do; `SweepFileError` where the file is another one."""
    if path.is_dir():
        raise SweepFileError(f"{path} is a folder", f"name a file: {path / 'sweep.parquet'}")
    own_header = read_header(path)
    if own_header is None or "n_rows" not in own_header:
        raise SweepFileError(
            f"{path} exists and is no sweep", "name another file with --out, or remove that one"
        )
    check_same_sweep(path, own_header, header)
    # Of a crash between the last two steps; one of another sweep, or in use, is let alone.
    if partial_path(path).exists():
        with suppress(SweepFileError):
            PartialSweep(path, header).remove()
    n = int(own_header["n_rows"])
    return SweepRun(path, n, n, n, was_finished=True)


class _Run:
    """What becomes of the answers of one run."""

    def __init__(
        self,
        sweep: Sweep,
        points: Sequence[Point],
        out: Path,
        partial_sweep: PartialSweep,
        progress: Progress | None,
    ) -> None:
        self._sweep = sweep
        self._out = out
        self._kept = partial_sweep
        self._progress = progress
        self._n_points = len(points)
        self._n_before = partial_sweep.n_done
        self._statuses: Counter[str] = Counter()
        self._began = time.monotonic()
        self._first: tuple[float, int] | None = None
        """When the first rows came, and how many there were then."""
        self.interrupted = False

    def keep_all(self, answers: Iterator[tuple[Twins, Rows | Lost]]) -> None:
        """Keep the rows that come; an interrupt ends it, with what there is on the disk."""
        try:
            self._tell()
            for twins, rows in answers:
                if isinstance(rows, Lost):
                    rows = lost_rows(self._sweep, twins, rows)
                self._kept.append([(index, text) for index, _, text in rows])
                self._statuses.update(status for _, status, _ in rows)
                self._tell()
        except KeyboardInterrupt:
            self.interrupted = True
            self._kept.count_again()
        except OSError as error:
            raise self._unkept(error) from error
        except ExecutorError as error:
            raise SearchError(f"{error}; {self._so_far()}", error.fix) from error
        finally:
            answers.close()  # type: ignore[attr-defined]  # a generator, whose workers end with it
        try:
            self._kept.sync()
        except OSError as error:
            raise self._unkept(error) from error

    def _so_far(self) -> str:
        if not self._kept.n_done:
            return "no point has been searched yet"
        return f"{self._kept.n_done:,} of {self._n_points:,} points are in {self._kept.path}"

    def _unkept(self, error: OSError) -> SweepFileError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what = "the disk is full" if full else f"cannot write: {error.strerror or error}"
        repeat = "give the same command again: it goes on where it stopped"
        return SweepFileError(
            f"{what}; {self._so_far()}", f"free space and {repeat}" if full else repeat
        )

    def _tell(self) -> None:
        if self._progress is None:
            return
        n_done, now = self._kept.n_done, time.monotonic()
        if self._first is None and n_done > self._n_before:
            self._first = now, n_done
        left_s = 0.0 if n_done == self._n_points else None
        if self._first and n_done > self._first[1]:
            each_s = (now - self._first[0]) / (n_done - self._first[1])
            left_s = each_s * (self._n_points - n_done)
        self._progress(
            SweepProgress(
                n_done,
                self._n_points,
                self._n_before,
                self._statuses.copy(),
                now - self._began,
                left_s,
            )
        )

    def finish(self, form: str, header: dict[str, object]) -> None:
        """Write the finished file, then remove the partial one."""
        try:
            final_header = {**header, "n_rows": self._n_points}
            write_finished(self._out, form, final_header, self._kept.rows)
        except OSError as error:
            raise self._unkept(error) from error
        self._kept.remove()

    def ended(self) -> SweepRun:
        return SweepRun(
            self._out,
            self._n_points,
            self._kept.n_done,
            self._n_before,
            self._statuses,
            self._kept.n_damaged,
            self.interrupted,
        )
