"""`scale`: from two files to a curve of best plans."""

import csv
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Unpack

from costmodels.documentation.terms import NETWORK_TERMS
from planner.documents import LibraryAnswer
from planner.errors import UsageError
from planner.option_names import option
from planner.solver.answer.result import Result
from planner.solver.answer.result_parts import calibration_json, inputs_json
from planner.solver.calibration.reference import reference_name
from planner.solver.execution import Execution, either
from planner.solver.keywords import RestrictKeywords, request_of_keywords
from planner.solver.options import SolveCommand, SolveOptions
from planner.solver.recipes import one_recipe
from planner.solver.request import SolveRequest, anchored_options
from planner.solver.solve import Extent, solve_inputs
from planner.solver.sources import Source, read_inputs, source_names
from planner.solver.unsupported import check_options
from planner.specs.identity import content_id
from planner.specs.search.axis_values import DEVICES
from planner.sweeps.points import Point, point_names
from planner.sweeps.rows import COLUMNS, COMPUTING, FLOAT, INT, Row, RowColumn, solved_row
from planner.sweeps.scaling.marks import marks
from planner.sweeps.scaling.sizes import POINTS, CurveSize, Job, SizeRange, sizes_of
from searches.executors.executor import SerialExecutor
from searches.pricing.shared_work import SharedWork

SCHEMA_VERSION = "1.0"

SCALE_COLUMNS: tuple[RowColumn, ...] = (
    RowColumn("scale.size", INT, "", "devices, tokens of a sequence, or layers"),
    RowColumn("scale.layers", INT, "", "layers of the model"),
    RowColumn("scale.tokens_per_step", INT, "tokens", "tokens of a step, all devices"),
    RowColumn("scale.tokens_per_device", FLOAT, "tokens", "the same of one device"),
    RowColumn("scale.speedup", FLOAT, "", "throughput over that of the first size with a plan"),
    RowColumn("scale.efficiency", FLOAT, "", "throughput of a device over that at the first size"),
    RowColumn(
        "scale.compute_s", FLOAT, "s", "part of the step in which the slowest device computes"
    ),
    RowColumn("scale.exposed_comm_s", FLOAT, "s", "part in which it waits for the network"),
    RowColumn("scale.wall_tokens_per_s", FLOAT, "1/s", "tokens a second, failures counted"),
    RowColumn("scale.device_s_per_token", FLOAT, "s", "device time of a token, failures counted"),
)
"""Columns of a curve besides those of a sweep's rows (`planner.sweeps.rows.COLUMNS`)."""


@dataclass(frozen=True, slots=True)
class Scaling(LibraryAnswer):
    """A curve: one row a size, and what it says."""

    result_id: str
    inputs: Mapping[str, Any]
    calibration: Mapping[str, Any]
    range: SizeRange
    rows: tuple[Row, ...]
    """By column: `SCALE_COLUMNS`, then those of a sweep's rows."""
    marks: Mapping[str, Any]
    """Knee, break-even, wall, takeover: sizes by name, None where it is not in the curve."""
    notes: tuple[str, ...] = ()
    stopped: str = ""
    """`interrupted` or `time limit` where sizes are missing."""

    @property
    def exit_code(self) -> int:
        """What the command line returns: 0, 3 nothing fits, 4 time limit, 130 interrupted."""
        if self.stopped:
            return 130 if self.stopped == "interrupted" else 4
        return 0 if any(row["best.step_time_s"] is not None for row in self.rows) else 3

    def to_json(self) -> dict[str, Any]:
        """Return the curve with its columns explained."""
        return {
            "schema_version": SCHEMA_VERSION,
            "result_id": self.result_id,
            "inputs": dict(self.inputs),
            "calibration": dict(self.calibration),
            "over": self.range.over,
            "scaling": self.range.scaling,
            "stopped": self.stopped,
            "marks": dict(self.marks),
            "columns": [
                {"name": c.name, "unit": c.unit, "meaning": c.meaning}
                for c in (*SCALE_COLUMNS, *COLUMNS)
            ],
            "rows": [dict(row) for row in self.rows],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Scaling":
        """Return the curve that `to_json` wrote; the bounds that were asked for are not in it."""
        same = ("result_id", "inputs", "calibration", "marks", "stopped")
        return cls(
            **{name: data[name] for name in same},
            range=SizeRange(data["over"], data["scaling"]),
            rows=tuple(data["rows"]),
            notes=tuple(data["notes"]),
        )

    def dumps(self) -> str:
        """Return the JSON text: the same bytes for the same inputs."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"

    def csv(self) -> str:
        """Return the rows as CSV, empty cells for what is missing."""
        out = io.StringIO()
        names = [column.name for column in (*SCALE_COLUMNS, *COLUMNS)]
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()


@dataclass(frozen=True, slots=True)
class SizeRow:
    """What the search of one size gave."""

    row: Row | None
    """None where the size has no legal layout."""
    notes: tuple[str, ...]
    """What the curve says beside its rows."""


@dataclass(frozen=True, slots=True)
class ScaleTask:
    """A curve that was read and checked, and not yet computed."""

    range: SizeRange
    job: Job
    command: SolveCommand
    notes: tuple[str, ...]
    time_limit_s: float
    """0: none."""


def scale_task(
    model: Source, cluster: Source, sizes: SizeRange, request: SolveRequest
) -> ScaleTask:
    """Return what `scale` computes, errors as there, without any search."""
    read = read_inputs(model, cluster, request.overrides)
    request = request.over(SolveRequest.of_section(read[0].search).without_goals())
    options = request.options(default_top=2)
    check_options(options)
    for named in (options.pins, options.only, options.at_most):
        if DEVICES in named:
            raise UsageError(
                "a curve chooses the numbers of devices itself",
                option("from") + " and " + option("to") + " in place of it",
            )
    options, notes = anchored_options(options, request.reference)
    model_input = one_recipe(read[0], options, "a curve is of one recipe")
    cluster_input = read[1]
    if request.pool:
        cluster_input = cluster_input.pool(request.pool)
    names = [one.name for one in cluster_input.cluster.pools]
    if len(names) > 1:
        raise UsageError(
            f"the cluster has {len(names)} pools, and a curve is of one of them",
            "name it with " + option("pool") + f": {', '.join(names)}",
            code="several",
        )
    command = SolveCommand(
        *source_names(model, cluster),
        request.overrides,
        request.pool,
        reference_name(request.reference),
    )
    job = Job(model_input, cluster_input, options)
    return ScaleTask(sizes, job, command, notes, request.time_limit_s)


class ScaleKeywords(RestrictKeywords, total=False):
    """Keywords of `planner.scale`: those of its sizes, then those of `planner.solve`."""

    scaling: str
    over: str
    least: int
    most: int
    points: int
    pool: str
    time_limit_s: float
    stop: Callable[[], bool] | None
    progress: Callable[[int, int], None] | None


def scale(
    model: Source,
    cluster: Source,
    request: SolveRequest | None = None,
    **keywords: Unpack[ScaleKeywords],
) -> Scaling:
    """Return the best plan at each size, and where adding devices stops paying.

    `over` devices: from `least` to `most` of them, beyond the cluster's own by more nodes of the
    same kind; `seq_len` and `layers`: on the whole cluster, until nothing fits. `scaling` strong:
    the tokens of a step stay; weak: they grow with the size, from those of the model file on the
    cluster's own devices. `points` is the most numbers of devices. `progress` is told how many
    sizes are done, of how many. The other keywords are those of `solve`, or one `request` of
    them; the best plan of a size is the fastest. Raises `SpecError` for a bad input and
    `UsageError` for a bad option.
    """
    start = time.monotonic()
    request = request_of_keywords(ScaleKeywords, request, keywords)
    sizes = SizeRange(
        keywords.get("over", "devices"),
        keywords.get("scaling", "strong"),
        keywords.get("least", 0),
        keywords.get("most", 0),
        keywords.get("points", POINTS),
    )
    task, stop = scale_task(model, cluster, sizes, request), keywords.get("stop")
    if task.time_limit_s:
        stop = either(stop, lambda: time.monotonic() - start > task.time_limit_s)
    return curve(task, stop, keywords.get("progress"))


def curve(
    task: ScaleTask,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    there: Mapping[int, SizeRow] = MappingProxyType({}),
    came: Callable[[int, SizeRow], None] | None = None,
) -> Scaling:
    """Return the curve of a task, whose limit of time is the caller's to keep with `stop`.

    Sizes that are `there`, from 0, are taken as they are and not searched; `came` is given the
    others as they are found. The curve is the same, whichever are there.
    """
    requested, job, command = task.range, task.job, task.command
    inputs, options = (job.model, job.cluster), job.options
    rows, notes, stopped = _rows(sizes_of(job, requested), command, stop, progress, there, came)
    return Scaling(
        result_id=content_id(
            "scale",
            requested.over,
            requested.scaling,
            requested.least,
            requested.most,
            requested.points,
            inputs[0].document,
            inputs[1].document,
            options.to_json(),
            calibration_json(options.calibration),
        ),
        inputs=inputs_json(*inputs, options, (command.model, command.cluster)),
        calibration=calibration_json(options.calibration),
        range=requested,
        rows=tuple(rows),
        marks=marks(rows, requested.over, requested.scaling),
        notes=tuple(dict.fromkeys((*task.notes, *notes))),
        stopped=stopped,
    )


def _rows(
    sizes: Sequence[CurveSize],
    command: SolveCommand,
    stop: Callable[[], bool] | None,
    progress: Callable[[int, int], None] | None,
    there: Mapping[int, SizeRow],
    came: Callable[[int, SizeRow], None] | None,
) -> tuple[list[Row], list[str], str]:
    """Return a row for every size that was searched, their notes, and why some are missing."""
    execution = Execution(SerialExecutor(), stop, shared=SharedWork())
    extent = Extent(fewer_devices=False, reasons=False, ties=False)
    rows: list[Row] = []
    notes: list[str] = []
    first: Row | None = None
    for i, size in enumerate(sizes):
        outcome = there.get(i)
        if outcome is None:
            result = solve_inputs(
                size.model, size.cluster, size.options, execution, command, extent
            )
            if result.stopped:
                return rows, notes, result.stopped
            outcome = _size_row(i, size, result, first, len(sizes) == 1)
            if came:
                came(i, outcome)
        notes += outcome.notes
        if outcome.row is not None:
            rows.append(outcome.row)
            if first is None and outcome.row["best.tokens_per_s"]:
                first = outcome.row
        if progress:
            progress(i + 1, len(sizes))
    return rows, notes, ""


def _size_row(
    index: int, size: CurveSize, result: Result, first: Row | None, alone: bool
) -> SizeRow:
    """Return what the search of a size gave; `first` is the row before it that has a plan.

    A size without a legal layout has a row where it is `alone`, so that no curve is empty.
    """
    if not (result.counts.space or alone):
        return SizeRow(None, (f"left out: {size.value:,} devices have no legal layout",))
    row = _row(index, size, result)
    if row["best.tokens_per_s"]:
        _compare(row, first or row)
    return SizeRow(row, tuple(x for x in result.notes if not x.startswith("limit: ")))


def _row(index: int, size: CurveSize, result: Result) -> Row:
    """Return the row of one size, speedup and efficiency still missing."""
    options: SolveOptions = size.options
    priced = calibration_json(options.calibration)
    name, costless, _ = point_names(size.model, size.cluster, options, priced)
    point = Point(index, (("size", size.value),), name, costless)
    row = solved_row(point, (), size.model, size.cluster, options, result)
    job, n_devices = size.model.job, options.pins[DEVICES]
    row["n_devices"] = n_devices
    entries: dict[str, Any] = {
        "scale.size": size.value,
        "scale.layers": size.model.shape.layers,
        "scale.tokens_per_step": job.tokens_per_step,
        "scale.tokens_per_device": job.tokens_per_step / n_devices,
    }
    if result.plans:
        best = result.best
        terms, good = best.breakdown.time_s, best.run.goodput.goodput_frac if best.run else 1.0
        wall = best.tokens_per_s * good
        entries |= {
            "scale.compute_s": sum(terms[x] for x in COMPUTING),
            "scale.exposed_comm_s": sum(terms[x] for x in NETWORK_TERMS),
            "scale.wall_tokens_per_s": wall,
            "scale.device_s_per_token": n_devices / wall if wall else None,
        }
    return {c.name: entries.get(c.name) for c in SCALE_COLUMNS} | row


def _compare(row: Row, first: Row) -> None:
    """Fill in what compares a row that has a plan to the first that has one."""
    ratio = _number(row, "best.tokens_per_s") / _number(first, "best.tokens_per_s")
    more = _number(row, "n_devices") / _number(first, "n_devices")
    row["scale.speedup"], row["scale.efficiency"] = ratio, ratio / more


def _number(row: Row, name: str) -> float:
    return float(row[name] or 0.0)
