"""The measured runs that a fit looks at: each layout once, weighed by family."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.measure.validate.batch import Batch
from planner.measure.validate.described import Entry
from planner.measure.validate.points import MeasuredPoint
from planner.measure.validate.prediction import PricedCase
from planner.measure.validate.rows import measured_layouts
from planner.solver.calibration.file import Calibration

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LARGE_FAMILY, KEPT_OF_LARGE = 1000, 240
"""Of a family with more layouts than the first, the fit looks at about as many as the second,
whole sweeps at a time: families weigh alike, so their number would only cost time."""
HALF = ("vts", "smx", "sc21", "korthikanti22")
"""Families that weigh half: a benchmark on one node, or step times that the source derived."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured layout of one source."""

    point: MeasuredPoint
    case: PricedCase
    step_s: float
    """The median of its measurements."""

    @property
    def source(self) -> str:
        """Its family."""
        return self.point.source

    @property
    def generation(self) -> str:
        """Generation of its accelerator."""
        return self.case.problem.pool.accelerator.generation

    @property
    def stack(self) -> str:
        """Name of the profile that prices it."""
        return self.case.problem.stack.name

    @property
    def is_moe(self) -> bool:
        """Whether its model has experts."""
        return bool(self.case.problem.shape.n_experts)

    @property
    def setting(self) -> tuple[str, str, str]:
        """What a user's own step would share with it: source, stack, hardware."""
        return self.source, self.stack, self.point.hardware


@dataclass(frozen=True, slots=True)
class Runs:
    """Measured layouts, ready to be priced again and again."""

    runs: tuple[Run, ...]
    batch: Batch
    weight: Floats
    """Of each run; those of one family add up to what the family weighs."""

    @property
    def log_measured(self) -> Floats:
        """Natural logarithm of the measured step times, `(n,)`."""
        return np.log([run.step_s for run in self.runs])

    @property
    def sources(self) -> tuple[str, ...]:
        """The families, in order of their names."""
        return tuple(sorted({run.source for run in self.runs}))

    def where(self, test: Callable[[Run], bool]) -> Bools:
        """Return for which runs something holds, `(n,)`."""
        return np.array([test(run) for run in self.runs], dtype=bool)

    def groups_where(self, test: Callable[[Run], bool]) -> list[int]:
        """Return the groups of the batch with any run for which something holds."""
        groups = enumerate(self.batch.groups)
        return [g for g, group in groups if any(test(self.runs[i]) for i, _ in group.rows)]

    def log_errors(
        self, calibration: Calibration, groups: Sequence[int] | None = None
    ) -> tuple[NDArray[np.intp], Floats]:
        """Return runs and ln(predicted / measured) of some groups, or of all, in any order."""
        idx, steps = self.batch.step_times(calibration, groups)
        return idx, np.log(steps) - self.log_measured[idx]

    def all_log_errors(self, calibration: Calibration) -> Floats:
        """Return ln(predicted / measured) of every run, `(n,)`."""
        idx, errors_there = self.log_errors(calibration)
        errors = np.empty(len(self.runs))
        errors[idx] = errors_there
        return errors


def fit_runs_of(
    points: Sequence[MeasuredPoint],
    models: Mapping[str, Entry],
    hardware: Mapping[str, Entry],
    thinned: Mapping[str, int] | None = None,
    family_rows: float = 30.0,
) -> Runs:
    """Return the layouts that a fit looks at.

    Unhealthy runs, and runs that cannot be priced, are left out by the rules of `planner
    validate`. A family weighs `family_rows` rows, half of that where it is one of `HALF`, and
    never more than it has. `thinned` says of which families every so many sweeps are looked at;
    without it large ones are.
    """
    every = [Run(*layout) for layout in measured_layouts(points, models, hardware)]
    if thinned is None:
        sizes = Counter(run.source for run in every)
        thinned = {x: n // KEPT_OF_LARGE for x, n in sizes.items() if n > LARGE_FAMILY}
    results = [run for run in every if not _left_out(run, thinned)]
    count = Counter(run.source for run in results)

    def weight(source: str) -> float:
        share = 0.5 if source in HALF else 1.0
        return min(1.0, share * family_rows / count[source])

    return Runs(
        tuple(results),
        Batch.of([(run.point, run.case) for run in results], models, hardware),
        np.array([weight(run.source) for run in results]),
    )


def _left_out(run: Run, thinned: Mapping[str, int]) -> bool:
    """Tell whether thinning drops the sweep of a run, by a hash of its job."""
    every = thinned.get(run.source, 1)
    p = run.point
    text = f"{p.source} {p.model} {p.hardware} {p.n_gpus} {p.seq_len} {p.gbs}"
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % every != 0
