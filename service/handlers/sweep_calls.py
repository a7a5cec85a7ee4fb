"""The calls that search many times: the points of a sweep, the sizes of a curve."""

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

from service.handlers import schemas
from service.handlers.limits import check_input_limits
from service.handlers.partial_results import KeptRow, Rows
from service.handlers.request_contents import limited_batch, limited_curve, limited_sweep
from service.handlers.running_call import RunningCall, search_progress, stop_of, time_left_s

Data = dict[str, Any]


def scale_answer(request: schemas.ScaleBody, running: RunningCall) -> Data:
    """Return the curve over sizes."""
    from planner.sweeps.scaling.curve import SizeRow, curve
    from planner.sweeps.storage import row_text

    def keep(index: int, size: SizeRow) -> None:
        if running.keep is not None and size.row is not None:
            running.keep([KeptRow(index, row_text(size.row), size.notes)])

    task = limited_curve(request, running.settings)
    result = curve(
        task,
        stop=stop_of(running, task.time_limit_s),
        progress=search_progress(running, "sizes"),
        there={i: SizeRow(json.loads(row.text), row.notes) for i, row in running.rows.items()},
        came=keep,
    )
    data: Data = result.to_json()
    return data | {"complete": False} if result.stopped else data


def batch_solve_answer(request: schemas.BatchSolveBody, running: RunningCall) -> Data:
    """Return a row for every job, kind of devices and number of them."""
    from planner.sweeps.scaling.batch import answered
    from planner.sweeps.scaling.batch_rows import BatchRow
    from planner.sweeps.storage import row_text

    def keep(row: BatchRow) -> None:
        if running.keep is not None:
            running.keep([KeptRow(row["index"], row_text(row))])

    result: Data = answered(
        limited_batch(request, running.settings),
        stop=stop_of(running, request.time_limit_s),
        progress=search_progress(running, "questions"),
        there={i: json.loads(row.text) for i, row in running.rows.items()},
        came=keep,
    ).to_json()
    return result


def allocate_answer(request: schemas.AllocateBody, running: RunningCall) -> Data:
    """Return which job gets which of the free nodes."""
    from planner.sweeps.scaling.allocation import allocate

    data = request.model_dump(mode="json")
    result: Data = allocate(data["jobs"], data["free"], data["objective"]).to_json()
    return result


def _searched(sweep: Any, chunks: Any, limit_s: float, running: RunningCall) -> Iterator[Any]:
    """Yield the rows of the searches of a sweep, in this process or, as they come, from Ray."""
    from planner.errors import SearchError
    from planner.sweeps.run import LEAST_HARD_LIMIT_S, PointSolver, lost_rows, solver_of_worker
    from searches.executors.executor import ExecutorError
    from searches.executors.streaming import Lost, make_stream

    if running.executor == "serial":
        for chunk in chunks:
            # As the workers of a sweep do: points of a chunk share tables.
            yield from map(PointSolver(sweep, limit_s), chunk)
        return
    make = partial(solver_of_worker, sweep, limit_s, sweep.header().get("calibration"))
    stream = make_stream(running.executor, running.ray_address or None)
    answers = stream.answers(make, chunks, 2.0 * limit_s + LEAST_HARD_LIMIT_S)
    try:
        with closing(answers):  # type: ignore[type-var]  # a generator: its workers end with it
            for twins, rows in answers:
                yield lost_rows(sweep, twins, rows) if isinstance(rows, Lost) else rows
    except ExecutorError as error:
        raise SearchError(str(error), error.fix) from error


def sweep_points_answer(request: schemas.SweepBody, running: RunningCall) -> Data:
    """Return the rows of a sweep."""
    from planner.sweeps.run import POINT_LIMIT_S, chunks_of

    settings, stop = running.settings, stop_of(running, request.time_limit_s)
    sweep = limited_sweep(request, settings)
    points = list(sweep.points())
    results = [running.rows[point.index] for point in points if point.index in running.rows]
    left = [point for point in points if point.index not in running.rows]
    ended = False
    for point in left:
        if not point.fault:
            model, cluster = sweep.inputs(point)
            check_input_limits(model, cluster, settings)
        ended = stop()
        if ended:
            break
    limit_s = request.point_limit_s or sweep.time_limit_s or POINT_LIMIT_S
    point_s = min(limit_s, time_left_s(running, request.time_limit_s))
    best_s = None

    def came(rows: Rows) -> None:
        nonlocal best_s
        times = [json.loads(row.text).get("best.step_time_s") for row in rows]
        best_s = min((t for t in (*times, best_s) if t is not None), default=None)
        if running.progress is not None and rows:
            running.progress(
                {
                    "phase": "points",
                    "done": len(results),
                    "total": len(points),
                    "best_step_time_s": best_s,
                }
            )

    came(results)
    for rows in () if ended or not left else _searched(sweep, chunks_of(left), point_s, running):
        new = [KeptRow(index, text) for index, _, text in rows]
        results += new
        if running.keep is not None:
            running.keep(new)
        came(new)
        ended = len(results) < len(points) and stop()
        if ended:
            break
    return {
        "sweep": sweep.header(),
        "n_points": len(points),
        "complete": not ended,
        "stopped": "time limit" if ended else "",
        "rows": [json.loads(row.text) for row in sorted(results)],
    }
