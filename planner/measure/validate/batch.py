"""Step times of many measured runs at once: what `prediction.price` says, at a tenth of the cost.

Runs of one problem (model, cluster, job, stack) are one table of the cost model, and the pipelines
of all tables are simulated together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.breakdown import pipeline_run
from costmodels.plans import Layout, PlanTable
from costmodels.schedule import pipeline
from costmodels.shape_terms import shape_terms
from costmodels.step import join, outside_pipeline, stage_times, straggler_factor
from planner.measure.validate.described import Entry
from planner.measure.validate.points import MeasuredPoint
from planner.measure.validate.prediction import PricedCase, case_of
from planner.solver.calibration.file import Calibration

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs that share their problem."""

    point: MeasuredPoint
    """The first of them: what the problem is made from anew for another calibration."""
    layouts: tuple[Layout, ...]
    """Distinct ones."""
    table: PlanTable
    """The layouts as the cost model takes them."""
    rows: tuple[tuple[int, int], ...]
    """Position of each run among all, and of its layout among `layouts`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Measured runs that can be priced again and again."""

    groups: tuple[RunGroup, ...]
    n_rows: int
    models: Mapping[str, Entry]
    hardware: Mapping[str, Entry]

    @staticmethod
    def of(
        runs: Sequence[tuple[MeasuredPoint, PricedCase]],
        models: Mapping[str, Entry],
        hardware: Mapping[str, Entry],
    ) -> "Batch":
        """Return the runs, with the case of each, grouped by what they are priced against."""
        entries: dict[str, list[int]] = {}
        for i, (_, case) in enumerate(runs):
            key = f"{case.layout.n_devices} {case.problem!r}"
            entries.setdefault(key, []).append(i)
        groups = []
        for members in entries.values():
            layouts = tuple(dict.fromkeys(runs[i][1].layout for i in members))
            idx_of = {layout: k for k, layout in enumerate(layouts)}
            rows = tuple((i, idx_of[runs[i][1].layout]) for i in members)
            table = PlanTable.from_layouts(layouts)
            groups.append(RunGroup(runs[members[0]][0], layouts, table, rows))
        return Batch(tuple(groups), len(runs), models, hardware)

    def step_times(
        self, calibration: Calibration, groups: Sequence[int] | None = None
    ) -> tuple[Ints, Floats]:
        """Return rows and their step times, seconds: of some groups, or of all, in any order."""
        chosen = range(len(self.groups)) if groups is None else groups
        parts = [self._parts(self.groups[g], calibration) for g in chosen]
        runs = [run for part in parts for run in part.runs]
        flush: Iterator[float] = iter(pipeline.flush_times_s(runs))
        idx, results = [], []
        for g, part in zip(chosen, parts, strict=True):
            own = [next(flush) for _ in part.runs]
            steps = [part.straggle * x + y for x, y in zip(own, part.rest_s, strict=True)]
            for row, layout in self.groups[g].rows:
                idx.append(row)
                results.append(steps[layout])
        return np.array(idx, dtype=np.intp), np.array(results, dtype=np.float64)

    def _parts(self, group: RunGroup, calibration: Calibration) -> "_Parts":
        problem = case_of(group.point, self.models, self.hardware, calibration).problem
        table = group.table
        rows = join(problem, shape_terms(problem, table.shapes, table.shardings), table)
        runs = [pipeline_run(rows, layout, i) for i, layout in enumerate(group.layouts)]
        rest: list[float] = outside_pipeline(rows, stage_times(rows)).tolist()
        return _Parts(runs, rest, straggler_factor(problem, table.shapes.n_devices))


@dataclass(frozen=True, slots=True)
class _Parts:
    runs: list[pipeline.PipelineRun]
    rest_s: list[float]
    straggle: float
