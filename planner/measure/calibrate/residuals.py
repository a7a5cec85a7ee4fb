"""From measured runs to the residuals that intervals and resolution are learnt from."""

from collections.abc import Mapping, Sequence

import numpy as np

from planner.measure.calibrate.cross_validation import HeldOut, settings_of
from planner.measure.calibrate.folds import evidence_without
from planner.measure.calibrate.runs import Runs
from planner.measure.validate.rows import Used, measured_sweeps
from planner.solver.calibration.anchors import believed
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.intervals import (
    ANCHORED,
    ANCHORED_WELL,
    Interval,
    Residuals,
    evidence_for,
    intervals_by_evidence,
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


def known_residuals(used: Sequence[Used], calibration: Calibration) -> Residuals:
    """Return the residuals of the layouts with a step time, each once, under a calibration."""
    timed = [plan for plan in used if plan.step_s is not None]
    return Residuals.of(
        [plan.point.source for plan in timed],
        [kind_of_used(plan) for plan in timed],
        [evidence_for(plan.case.problem, calibration) for plan in timed],
        np.log([(plan.step_s or 0.0) / plan.prediction.step_s for plan in timed]),
    )


def left_out_residuals(
    runs: Runs, used: Sequence[Used], held_out: Mapping[str, HeldOut]
) -> Residuals:
    """Return the residuals of groups of runs under fits that have not seen them."""
    kinds = _kinds(runs, used)
    rows = [int(row) for name in sorted(held_out) for row in held_out[name].rows]
    evidence = [
        text for name in sorted(held_out) for text in evidence_without(runs, held_out[name])
    ]
    errors = np.concatenate([held_out[name].log_errors for name in sorted(held_out)])
    return Residuals.of(
        [runs.runs[row].source for row in rows], [kinds[row] for row in rows], evidence, -errors
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
    evidence = ANCHORED if n_references == 1 else ANCHORED_WELL
    return Residuals(
        np.array([runs.runs[row].source for row in rows]),
        np.array([kinds[row] for row in rows]),
        np.full(len(rows), evidence),
        np.array([residual for _, residual in results]),
        np.array([1.0 / n_draws[row] for row in rows]),
    )


def learn_intervals(
    used: Sequence[Used],
    calibration: Calibration,
    runs: Runs | None = None,
    held_out: Mapping[str, HeldOut] | None = None,
    groups: Mapping[str, HeldOut] | None = None,
) -> dict[str, Interval]:
    """Return the intervals by regime of a calibration, which priced the layouts.

    `held_out` are families under fits without them, `groups` generations, precisions and releases.
    Without them what is learnt is too narrow, and that of anchored predictions is left out.
    """
    known = known_residuals(used, calibration)
    if runs is None or not held_out:
        return intervals_by_evidence(known, known.where(np.zeros(len(known.log_ratio), bool)))
    left_out = left_out_residuals(runs, used, {**held_out, **(groups or {})})
    out = intervals_by_evidence(known, left_out)
    for evidence, n_references in ((ANCHORED, 1), (ANCHORED_WELL, 3)):
        residuals = anchored_residuals(runs, used, held_out, n_references)
        learnt = learnt_intervals(residuals)
        out |= {f"{evidence}.{kind}": bounds for kind, bounds in learnt.items()}
    return out


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


def _kinds(runs: Runs, used: Sequence[Used]) -> list[str]:
    kind_by_point = {plan.point.id: kind_of_used(plan) for plan in used}
    return [kind_by_point[run.point.id] for run in runs.runs]
