"""The row of one question of a batch: the fastest plan of a job on so many devices."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from costmodels.breakdown import break_down
from costmodels.plans import Layout
from costmodels.problem import Problem
from planner.solver.execution import Execution
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem, searched_problem
from planner.solver.solve import Extent, solve_inputs
from planner.specs.identity import plan_id
from planner.specs.inputs import ClusterInput
from planner.specs.search.axis_values import DEVICES, layout_to_json
from planner.sweeps.scaling.batch_places import named
from planner.sweeps.scaling.curve import ScaleTask
from planner.sweeps.scaling.sizes import grown
from searches.device_counts import StepBounds, device_counts
from searches.executors.executor import SerialExecutor
from searches.feasibility import states_can_fit
from searches.pricing.shared_work import SharedWork
from searches.search import search

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


class RowSearch:
    """Searches the cells of a batch one after the other; neighbours share tables and bounds."""

    def __init__(self, stop: Callable[[], bool] | None = None) -> None:
        self._stop = stop
        self._shared = SharedWork()
        self._of: tuple[ScaleTask, ClusterInput] | None = None
        self._bounds: StepBounds | None = None

    def row(self, cell: BatchCell) -> BatchRow | None:
        """Return the row of a cell; None where the search is to stop."""
        with named(f"jobs.{cell.job}", f"clusters.{cell.cluster}"):
            return self._row(cell)

    def _row(self, cell: BatchCell) -> BatchRow | None:
        if self._stop is not None and self._stop():
            return None
        job, n = cell.task.job, cell.n_devices
        cluster = grown(job.cluster, n)
        problem = make_problem(job.model, cluster, job.options)
        if n not in device_counts(problem.pool):
            return _cell_row(cell, "no layout", "neither whole nodes nor an equal part of one")
        if not states_can_fit(problem, n):  # a bound, for none of the search's time
            reason = "parameters and their states alone are too large"
            return _cell_row(cell, "nothing fits", reason)
        options = replace(job.options, top=1, pins={**job.options.pins, DEVICES: n})
        if not _is_of_step_time(options):
            return self._solved_row(cell, cluster, options)
        context = self._bounds_of(cell.task, cluster).context(n)
        outcome = search(context, SerialExecutor(), self._stop)
        if outcome.stopped:
            return None
        if not outcome.finalists:
            return _cell_row(cell, "nothing fits" if outcome.n_legal else "no layout", "")
        fastest = outcome.finalists[0].layout
        return _cell_row(cell, "ok", "") | _plan(cell, cluster, context.problem, fastest)

    def _bounds_of(self, task: ScaleTask, cluster: ClusterInput) -> StepBounds:
        """Return the bounds of a job on a cluster, those of the cell before where they are."""
        known = self._of
        is_known = known is not None and known[0] is task and known[1] is cluster
        if self._bounds is None or not is_known:
            job = task.job
            problem = searched_problem(job.model, cluster, job.options)
            restrictions = replace(job.options, top=1).search_options(problem)
            self._of, self._bounds = (
                (task, cluster),
                StepBounds(problem, restrictions, self._shared),
            )
        return self._bounds

    def _solved_row(
        self, cell: BatchCell, cluster: ClusterInput, options: SolveOptions
    ) -> BatchRow | None:
        """Return the row of an answer with another objective or with limits."""
        execution = Execution(SerialExecutor(), self._stop, shared=self._shared)
        extent = Extent(fewer_devices=False, reasons=False, ties=False)
        job, command = cell.task.job, cell.task.command
        result = solve_inputs(job.model, cluster, options, execution, command, extent)
        if result.stopped:
            return None
        if not result.plans:
            return _cell_row(cell, "nothing fits" if result.counts.space else "no layout", "")
        own = make_problem(job.model, cluster, job.options, cell.n_devices)
        return _cell_row(cell, "ok", "") | _plan(cell, cluster, own, result.best.layout)


def _is_of_step_time(options: SolveOptions) -> bool:
    """Tell whether the shortest step is all that is wanted: no other objective, and no limit."""
    return options.objective == "step_time" and not (options.is_limited or options.pareto)


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


def _plan(
    cell: BatchCell, cluster: ClusterInput, problem: Problem, layout: Layout
) -> dict[str, Any]:
    opened, written = break_down(problem, layout), layout_to_json(layout)
    return {
        "plan_id": plan_id(cell.task.job.model.document, cluster.document, written),
        "step_time_s": opened.step_s,
        "tokens_per_s": problem.job.tokens_per_step / opened.step_s,
        "peak_bytes": round(opened.peak_bytes),
        "layout": written,
    }
