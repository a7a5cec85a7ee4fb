"""`batch_solve`: the fastest plans of several jobs on several kinds of devices."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any

from planner.errors import SearchError, UsageError
from planner.solver.calibration.file import load_calibration
from planner.solver.execution import check_executor
from planner.solver.request import SolveRequest
from planner.solver.sources import Source, read_cluster_source, read_model_source
from planner.specs.identity import content_id
from planner.specs.inputs import ClusterInput
from planner.sweeps.scaling.batch_places import named
from planner.sweeps.scaling.batch_rows import BatchCell, BatchRow, RowSearch
from planner.sweeps.scaling.curve import scale_task
from planner.sweeps.scaling.sizes import SizeRange
from searches.executors.streaming import Lost, make_stream

SCHEMA_VERSION = "1.0"
CELLS_FOR_PROCESSES = 8
"""Questions from which on processes pay: each takes some 0.1 s, to start them as much."""


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
    for job, model in jobs.items():
        with named(f"jobs.{job}"):
            read_model_source(model, request.overrides)
    for name, cluster in clusters.items():
        with named(f"clusters.{name}"):
            _check_pools(read_cluster_source(cluster, request.overrides, request.pool))
    cells: list[BatchCell] = []
    for job, model in jobs.items():
        for name, cluster in clusters.items():
            with named(f"jobs.{job}", f"clusters.{name}"):
                task = scale_task(model, cluster, SizeRange("devices", "strong"), request)
            for n in sorted(counts):
                cells.append(BatchCell(len(cells), job, name, n, task))
    return cells


def _check_pools(cluster: ClusterInput) -> None:
    names = [one.name for one in cluster.cluster.pools]
    if len(names) > 1:
        raise UsageError(
            f"the cluster has {len(names)} pools, and a row is of one of them",
            f"make each a cluster of its own: {', '.join(names)}",
            code="several",
        )


def batch_solve(
    jobs: Mapping[str, Source],
    clusters: Mapping[str, Source],
    counts: Sequence[int],
    request: SolveRequest | None = None,
    executor: str = "automatic",
) -> Batch:
    """Return the fastest plan of every job on every cluster at every number of devices.

    What is searched beside that is that of `request`, as in `scale`; its time limit ends the batch
    with the rows so far. As in `scale`, time alone orders plans: `solve` may list first one that
    ties with the fastest and is simpler or smaller. `executor` is `automatic`, `serial`,
    `processes` or `ray`; no row depends on it. Raises `SpecError` for a bad input and `UsageError`
    for a bad option; a number of devices that a job cannot use has a row.
    """
    start, request = time.monotonic(), request or SolveRequest()
    check_executor(executor, "")
    cells = batch_cells(jobs, clusters, counts, request)
    limit_s = request.time_limit_s
    stop = (lambda: time.monotonic() - start > limit_s) if limit_s else None
    return answered(cells, stop, executor=executor)


def answered(
    cells: Sequence[BatchCell],
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
    there: Mapping[int, BatchRow] = MappingProxyType({}),
    came: Callable[[BatchRow], None] | None = None,
    executor: str = "serial",
) -> Batch:
    """Return the rows of cells; those that are `there` are taken, `came` is given the others.

    `executor` is one of `searches.executors.executor.NAMES`; no row depends on it.
    """
    rows: list[BatchRow] = []
    stopped = ""
    for row in _rows(cells, stop, there, executor):
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
    executor: str,
) -> Iterator[BatchRow | None]:
    """Yield the row of every cell in order; None, and no more, where the search was stopped."""
    left = [cell for cell in cells if cell.index not in there]
    searched = _searched(left, stop, executor)
    for cell in cells:
        row = there.get(cell.index)
        yield next(searched) if row is None else row


def _searched(
    cells: Sequence[BatchCell], stop: Callable[[], bool] | None, executor: str
) -> Iterator[BatchRow | None]:
    """Yield the rows of cells in their order, from as many processes as the executor has."""
    if executor == "serial" or len(cells) < CELLS_FOR_PROCESSES:
        yield from map(RowSearch(stop).row, cells)
        return
    by_index = {cell.index: cell for cell in cells}
    waiting: dict[int, BatchRow | None] = {}
    chunks = [
        [cell.index for cell in some]
        for _, some in groupby(cells, key=lambda cell: (cell.job, cell.cluster))
    ]
    order = iter(cells)
    at = next(order, None)
    answers = make_stream(executor).answers(partial(_row_of_worker, by_index), chunks)
    with closing(answers):  # type: ignore[type-var]  # a generator: its workers end with it
        for index, row in answers:
            if isinstance(row, Lost):
                raise SearchError(
                    f"job {by_index[index].job} on {by_index[index].cluster}: {row.reason}",
                    "free memory on this machine, or --executor serial",
                )
            waiting[index] = row
            while at is not None and at.index in waiting:
                yield waiting.pop(at.index)
                at = next(order, None)
            if stop is not None and stop():
                yield None
                return


def _row_of_worker(by_index: Mapping[int, BatchCell]) -> Callable[[int], BatchRow | None]:
    """Return what a worker answers with: a row for the index of a cell."""
    search = RowSearch()
    return lambda index: search.row(by_index[index])
