"""From measured runs to the residuals that intervals and resolution are learnt from."""

from collections.abc import Mapping, Sequence

import numpy as np

from planner.measure.calibrate.cross_validation import HeldOut, settings_of
from planner.measure.calibrate.runs import Runs
from planner.measure.validate.rows import Used, measured_sweeps
from planner.solver.calibration.anchors import believed
from planner.solver.calibration.intervals import (
    ANCHORED,
    ANCHORED_WELL,
    FITTED,
    NEW,
    Interval,
    Residuals,
    learnt_intervals,
    regime_kind_of,
)
from planner.solver.calibration.resolution import Timed, learn_resolution

DRAWS = 31
"""Choices of reference runs behind the intervals of anchored predictions."""


def kind_of_used(plan: Used) -> str:
    """Return what the predicted step of a measured layout consists of."""
    result = plan.prediction
    return regime_kind_of(plan.case.problem, plan.case.layout, result.time_s, result.step_s)


def fitted_residuals(used: Sequence[Used]) -> Residuals:
    """Return the residuals of the layouts with a step time, each once."""
    timed = [plan for plan in used if plan.step_s is not None]
    return Residuals.of(
        [plan.point.source for plan in timed],
        [kind_of_used(plan) for plan in timed],
        np.log([(plan.step_s or 0.0) / plan.prediction.step_s for plan in timed]),
    )


def left_out_residuals(
    runs: Runs, used: Sequence[Used], held_out: Mapping[str, HeldOut]
) -> Residuals:
    """Return the residuals of families under fits that have not seen them."""
    rows, errors = _joined(held_out)
    kinds = _kinds(runs, used)
    return Residuals.of(
        [runs.runs[row].source for row in rows], [kinds[row] for row in rows], -errors
    )


def anchored_residuals(
    runs: Runs, used: Sequence[Used], held_out: Mapping[str, HeldOut], n_references: int
) -> Residuals:
    """Return the same after reference runs of the same family, stack, hardware and kind of step.

    In each of `DRAWS` draws `n_references` runs scale the other predictions of their kind by what
    is believed of their mean deviation (`planner.solver.calibration.anchors`). References of
    another kind are worth less.
    """
    kinds, draw = _kinds(runs, used), np.random.default_rng(0)
    results: list[tuple[int, float]] = []
    n_draws: dict[int, int] = {}
    for source in sorted(held_out):
        one = held_out[source]
        alike: dict[tuple[int, str], list[int]] = {}
        for i, members in enumerate(settings_of(runs, one)):
            for k in members:
                alike.setdefault((i, kinds[one.rows[k]]), []).append(k)
        for members in alike.values():
            if len(members) <= n_references:
                continue
            for _ in range(DRAWS):
                mixed = draw.permutation(members)
                errors = one.log_errors[mixed]
                common = believed(float(errors[:n_references].mean()), n_references)
                rest = errors[n_references:] - common
                rows = one.rows[mixed[n_references:]].tolist()
                results += zip(rows, (-rest).tolist(), strict=True)
                for row in rows:
                    n_draws[row] = n_draws.get(row, 0) + 1
    rows = [row for row, _ in results]
    return Residuals(
        np.array([runs.runs[row].source for row in rows]),
        np.array([kinds[row] for row in rows]),
        np.array([residual for _, residual in results]),
        np.array([1.0 / n_draws[row] for row in rows]),
    )


def learn_intervals(
    used: Sequence[Used], runs: Runs | None = None, held_out: Mapping[str, HeldOut] | None = None
) -> dict[str, Interval]:
    """Return the intervals by regime; those of unseen stacks and of anchors need `held_out`."""
    by_evidence = {FITTED: fitted_residuals(used)}
    if runs is not None and held_out:
        by_evidence[NEW] = left_out_residuals(runs, used, held_out)
        by_evidence[ANCHORED] = anchored_residuals(runs, used, held_out, 1)
        by_evidence[ANCHORED_WELL] = anchored_residuals(runs, used, held_out, 3)
    return {
        f"{evidence}.{kind}": bounds
        for evidence, residuals in by_evidence.items()
        for kind, bounds in learnt_intervals(residuals).items()
    }


def resolution_from(used: Sequence[Used]) -> dict[str, float]:
    """Return the resolution that sweeps in which only the layout varies show."""
    return learn_resolution(
        [
            (
                sweep.source,
                [Timed(p.case.layout, p.prediction.step_s, p.step_s or 0.0) for p in sweep.plans],
            )
            for sweep in measured_sweeps(used, "layout-only")
        ]
    )


def _joined(held_out: Mapping[str, HeldOut]) -> tuple[list[int], np.ndarray]:
    rows = [int(row) for source in sorted(held_out) for row in held_out[source].rows]
    return rows, np.concatenate([held_out[source].log_errors for source in sorted(held_out)])


def _kinds(runs: Runs, used: Sequence[Used]) -> list[str]:
    kind_by_point = {plan.point.id: kind_of_used(plan) for plan in used}
    return [kind_by_point[run.point.id] for run in runs.runs]
