"""`batch_solve`: the fastest plans of several jobs on several kinds of devices."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from planner.errors import UsageError
from planner.solver.answer.result import Result
from planner.solver.calibration.file import load_calibration
from planner.solver.execution import Execution
from planner.solver.problem import make_problem
from planner.solver.request import SolveRequest
from planner.solver.solve import Extent, solve_inputs
from planner.solver.sources import Source
from planner.specs.identity import content_id
from planner.specs.search.axis_values import DEVICES
from planner.sweeps.scaling.curve import ScaleTask, scale_task
from planner.sweeps.scaling.sizes import SizeRange, grown
from searches.device_counts import device_counts
from searches.executors.executor import SerialExecutor
from searches.feasibility import states_can_fit
from searches.pricing.shared_work import SharedWork

SCHEMA_VERSION = "1.0"
BatchRow = dict[str, Any]
"""`index`, `job`, `cluster`, `n_devices`, `n_nodes`, `status` (`ok`, `nothing fits`, `no layout`),
`reason`; of the plan `plan_id`, `step_time_s`, `tokens_per_s`, `peak_bytes`, `layout`."""


@dataclass(frozen=True, slots=True)
class BatchCell:
    """One question of a batch."""

    index: int
    job: str
    cluster: str
    n_devices: int
    task: ScaleTask


@dataclass(frozen=True, slots=True)
class Batch:
    """The answers to a batch, a row each, in order."""

    result_id: str
    n_cells: int
    rows: tuple[BatchRow, ...]
    stopped: str = ""
    """`time limit` where rows are missing."""

    @property
    def exit_code(self) -> int:
        """What the command line returns: 0, 3 nothing fits anywhere, 4 time limit."""
        if self.stopped:
            return 4
        return 0 if any(row["status"] == "ok" for row in self.rows) else 3

    def to_json(self) -> dict[str, Any]:
        """Return the batch as plain data."""
        data = {
            "schema_version": SCHEMA_VERSION,
            "result_id": self.result_id,
            "n_cells": self.n_cells,
            "stopped": self.stopped,
            "rows": list(self.rows),
        }
        return data | {"complete": False} if self.stopped else data

    def dumps(self) -> str:
        """Return the JSON text: the same bytes for the same inputs."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def batch_cells(
    jobs: Mapping[str, Source],
    clusters: Mapping[str, Source],
    counts: Sequence[int],
    request: SolveRequest,
) -> list[BatchCell]:
    """Return the questions of a batch, read and checked, without any search.

    Jobs and clusters go by the names that rows have for them; `counts` are numbers of devices,
    also beyond a cluster, which then has more nodes of the same kind. Those of one job and one
    cluster come together: they share most of their work.
    """
    for what, given in (("jobs", jobs), ("clusters", clusters), ("counts", counts)):
        if not given:
            raise UsageError(f"{what}: there are none", "one at least")
    wrong = next((n for n in counts if isinstance(n, bool) or not 1 <= n <= 10**6), None)
    if wrong is not None:
        raise UsageError(f"counts: {wrong!r} is no number of devices", "1 to 1000000")
    if len(set(counts)) < len(counts):
        raise UsageError("counts: a number stands twice", "each once")
    cells: list[BatchCell] = []
    for job, model in jobs.items():
        for name, cluster in clusters.items():
            task = scale_task(model, cluster, SizeRange("devices", "strong"), request)
            for n in sorted(counts):
                cells.append(BatchCell(len(cells), job, name, n, task))
    return cells


def batch_solve(
    jobs: Mapping[str, Source],
    clusters: Mapping[str, Source],
    counts: Sequence[int],
    request: SolveRequest | None = None,
) -> Batch:
    """Return the fastest plan of every job on every cluster at every number of devices.

    What is searched beside that is that of `request`, as in `scale`. Raises `SpecError` for a bad
    input and `UsageError` for a bad option; a number of devices that a job cannot use has a row.
    """
    return answered(batch_cells(jobs, clusters, counts, request or SolveRequest()))


def answered(
    cells: Sequence[BatchCell],
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    there: Mapping[int, BatchRow] = MappingProxyType({}),
    came: Callable[[BatchRow], None] | None = None,
) -> Batch:
    """Return the rows of cells; those that are `there` are taken, `came` is given the others."""
    rows: list[BatchRow] = []
    stopped = ""
    for row in _rows(cells, stop, there):
        if row is None:
            stopped = "time limit"
            break
        if row["index"] not in there and came is not None:
            came(row)
        rows.append(row)
        if progress is not None:
            progress(len(rows), len(cells))
    return Batch(_batch_id(cells), len(cells), tuple(rows), stopped)


def _batch_id(cells: Sequence[BatchCell]) -> str:
    seen = [
        (cell.job, cell.cluster, cell.n_devices, cell.task.job.options.to_json()) for cell in cells
    ]
    documents = {
        name: document
        for cell in cells
        for name, document in (
            (f"job {cell.job}", cell.task.job.model.document),
            (f"cluster {cell.cluster}", cell.task.job.cluster.document),
        )
    }
    return content_id("batch", seen, documents, load_calibration().content_hash)


def _rows(
    cells: Sequence[BatchCell],
    stop: Callable[[], bool] | None,
    there: Mapping[int, BatchRow],
) -> Iterator[BatchRow | None]:
    """Yield the row of every cell; None, and no more, where the search was stopped."""
    execution = Execution(SerialExecutor(), stop, shared=SharedWork())
    for cell in cells:
        row = there.get(cell.index)
        yield _row(cell, execution) if row is None else row


def _row(cell: BatchCell, execution: Execution) -> BatchRow | None:
    job = cell.task.job
    extent = Extent(fewer_devices=False, reasons=False)
    options = replace(job.options, top=1, pins={**job.options.pins, DEVICES: cell.n_devices})
    cluster = grown(job.cluster, cell.n_devices)
    problem = make_problem(job.model, cluster, job.options)
    if cell.n_devices not in device_counts(problem.pool):
        return _cell_row(cell, "no layout", "neither whole nodes nor an equal part of one")
    if not states_can_fit(problem, cell.n_devices):  # a bound, for none of the search's time
        return _cell_row(cell, "nothing fits", "parameters and their states alone are too large")
    result = solve_inputs(job.model, cluster, options, execution, cell.task.command, extent)
    if result.stopped:
        return None
    if not result.plans:
        status = "nothing fits" if result.counts.space else "no layout"
        return _cell_row(cell, status, "")
    return _cell_row(cell, "ok", "") | _plan(result)


def _cell_row(cell: BatchCell, status: str, reason: str) -> BatchRow:
    per_node = cell.task.job.cluster.cluster.pools[0].devices_per_node
    return {
        "index": cell.index,
        "job": cell.job,
        "cluster": cell.cluster,
        "n_devices": cell.n_devices,
        "n_nodes": math.ceil(cell.n_devices / per_node),
        "status": status,
        "reason": reason,
        **dict.fromkeys(("plan_id", "step_time_s", "tokens_per_s", "peak_bytes", "layout")),
    }


def _plan(result: Result) -> BatchRow:
    best = result.best.to_json()
    return {
        "plan_id": best["plan_id"],
        "step_time_s": best["step_time_s"],
        "tokens_per_s": best["tokens_per_s"],
        "peak_bytes": best["memory"]["peak_bytes"],
        "layout": best["layout"],
    }
