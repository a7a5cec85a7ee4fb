"""What a reference run and a shortlist are worth, on measured runs.

Every number here is about runs whose own numbers the prediction does not know: the numbers of
their stack (`costmodels.stacks.NUMBERS`) stand at those of its class.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.stacks import EAGER, FUSED, NUMBERS, STACKS
from planner.measure.calibrate.runs import Runs
from planner.measure.trial.shortlist import MAX_CANDIDATES, NEAR_FRAC, SEED, shortlist
from planner.measure.validate.described import Entry
from planner.measure.validate.metrics import regret
from planner.measure.validate.points import MeasuredPoint
from planner.measure.validate.rows import MeasuredSweep, measured_sweeps, price_points, use
from planner.solver.calibration.anchors import NUDGE, fit_factors
from planner.solver.calibration.file import Calibration

Floats = NDArray[np.float64]

MIN_LAYOUTS = 6
"""Layouts of one user's stack below which nothing is said about it."""
N_SETS = 60
"""Sets of reference runs that are tried, for each number of them."""
_CLASSES = {profile.kind: profile for profile in (FUSED, EAGER)}


def at_class_defaults(calibration: Calibration) -> Calibration:
    """Return the calibration with the numbers of every stack those of its class."""
    entries = {}
    for stack in STACKS.values():
        base = _CLASSES[stack.kind]
        for number in NUMBERS:
            of_class = f"stack.{base.name}.{number}"
            own = calibration.values.get(of_class, float(getattr(base, number)))
            entries[f"stack.{stack.name}.{number}"] = own
    return calibration.with_values(entries, "prior")


@dataclass(frozen=True, slots=True)
class Situation:
    """The layouts of one stack, as one user would have it: what a reference run is taken from."""

    source: str
    moe: bool
    measured_s: Floats
    """`(n,)` seconds."""
    by_kind_s: Floats
    """Predicted seconds by compute, scale-up and scale-out, `(n, 3)`; a row sums to the step."""

    def predicted_s(self, factors: Floats, rows: Sequence[int] | None = None) -> Floats:
        """Return step times at some factors: the plane that touches them where all are 1."""
        return np.asarray((self.by_kind_s if rows is None else self.by_kind_s[rows]) @ factors)


def situations(runs: Runs, calibration: Calibration) -> list[Situation]:
    """Return the situations of runs: same source, stack, hardware, precision and kernels."""
    base = at_class_defaults(calibration)

    def predicted_s(near: float, far: float) -> Floats:
        these = base.with_anchors(1.0, near, far, ("",))
        return np.asarray(np.exp(runs.all_log_errors(these) + runs.log_measured))

    steps = predicted_s(1.0, 1.0)
    parts = [predicted_s(1.0 + NUDGE, 1.0) - steps, predicted_s(1.0, 1.0 + NUDGE) - steps]
    traffic = np.stack(parts, axis=1) / NUDGE
    by_kind = np.column_stack([steps - traffic.sum(axis=1), traffic])
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, run in enumerate(runs.runs):
        p = run.point
        key = (*run.setting, run.is_moe, p.precision, p.attention, p.norm_kernel)
        groups.setdefault(key, []).append(i)
    return [
        Situation(
            runs.runs[rows[0]].source,
            runs.runs[rows[0]].is_moe,
            np.array([runs.runs[i].step_s for i in rows]),
            by_kind[rows],
        )
        for rows in groups.values()
        if len(rows) >= MIN_LAYOUTS
    ]


def errors_after(one: Situation, n_runs: int) -> Floats:
    """Return the median error of the other layouts after `n_runs` reference runs, `(n_sets,)`.

    |predicted / measured - 1|; sets of runs are all, or `N_SETS` that are drawn.
    """
    rows = np.arange(len(one.measured_s))
    if n_runs == 0:
        return np.array([_median_error(one, np.ones(3), rows)])
    results = []
    for chosen in _sets(len(rows), n_runs):
        picked = list(chosen)

        def steps_s(factors: Floats, picked: Sequence[int] = picked) -> Floats:
            return one.predicted_s(factors, picked)

        factors = fit_factors(one.measured_s[picked], steps_s)
        results.append(_median_error(one, factors, np.delete(rows, picked)))
    return np.array(results)


def _median_error(one: Situation, factors: Floats, rows: NDArray[np.int_]) -> float:
    off = one.predicted_s(factors)[rows] / one.measured_s[rows] - 1.0
    return float(np.median(np.abs(off)))


def _sets(n: int, size: int) -> list[tuple[int, ...]]:
    """Return all sets of some rows, or `N_SETS` of them, drawn by raw bits."""
    if size == 1 and n <= N_SETS:
        return [(i,) for i in range(n)]
    bits = np.random.PCG64(SEED)
    results = []
    for _ in range(N_SETS):
        order = np.argsort(bits.random_raw(n), kind="stable")
        results.append(tuple(sorted(int(i) for i in order[:size])))
    return results


def anchoring_table(
    situations: Sequence[Situation],
) -> dict[tuple[str, bool], tuple[int, list[float]]]:
    """Return layouts, and the median error after 0, 1, 2 and 3 runs, by source and kind of model.

    The median over sets of runs, averaged over the situations of a source by their layouts.
    """
    rows: dict[tuple[str, bool], list[tuple[int, list[float]]]] = {}
    for one in situations:
        medians = [float(np.median(errors_after(one, n))) for n in range(4)]
        rows.setdefault((one.source, one.moe), []).append((len(one.measured_s), medians))
    out = {}
    for key in sorted(rows):
        weights = np.array([n for n, _ in rows[key]], dtype=np.float64)
        mean = np.average([m for _, m in rows[key]], axis=0, weights=weights)
        out[key] = int(weights.sum()), mean.tolist()
    return out


@dataclass(frozen=True, slots=True)
class Promise:
    """What the shortlist of one sweep promised, and what the measurements say."""

    source: str
    n_plans: int
    probability: float
    expected_regret: float
    is_kept: bool
    """Whether a plan of the shortlist is as good as the best measured."""
    regret: float
    """The best measured of the shortlist over the best of all, less 1."""
    regret_of_first: float
    regret_of_top: float
    """The same for the first three of the ranking."""


def promises(sweeps: Sequence[MeasuredSweep]) -> list[Promise]:
    """Return a promise for every sweep: the ranking of its plans alone stands for the search."""
    return [_promise(sweep) for sweep in sweeps]


def _promise(sweep: MeasuredSweep) -> Promise:
    plans = sorted(sweep.plans, key=lambda one: (one.prediction.step_s, one.point.line))
    everything = min(one.step_s or 0.0 for one in plans)
    plans = plans[:MAX_CANDIDATES]  # as in a search: plans far down are no candidates
    measured = np.array([one.step_s for one in plans], dtype=np.float64)
    message = shortlist(
        [one.prediction.time_s for one in plans], [one.case.layout for one in plans]
    )
    own = float(measured[list(message.chosen)].min() / everything - 1.0)
    return Promise(
        source=sweep.source,
        n_plans=len(plans),
        probability=message.probability,
        expected_regret=message.expected_regret,
        is_kept=own <= NEAR_FRAC,
        regret=own,
        regret_of_first=_regret(sweep, 1),
        regret_of_top=_regret(sweep, 3),
    )


def _regret(sweep: MeasuredSweep, n_first: int) -> float:
    predicted = [one.prediction.step_s for one in sweep.plans]
    return regret(predicted, [one.step_s or 0.0 for one in sweep.plans], n_first)


def sweeps_of(
    points: Sequence[MeasuredPoint],
    models: Mapping[str, Entry],
    hardware: Mapping[str, Entry],
    calibration: Calibration,
) -> list[MeasuredSweep]:
    """Return the sweeps in which nothing but the layout differs, priced as they stand."""
    return list(
        measured_sweeps(use(price_points(points, models, hardware, calibration)), "layout-only")
    )
