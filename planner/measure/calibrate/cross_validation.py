"""What a fit is worth for runs that it has not seen.

A family is left out, and all is fitted again without it; the numbers of a stack that no other
family runs are then those of its class. Or one model of a family is left out, the rest of the
family stays. Each fold starts from the fit to all runs and its derivatives, and corrects itself
once: a round of `planner.measure.calibrate.fit`, not a fit from scratch.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.stacks import STACKS
from planner.measure.calibrate.fit import (
    CLASSES,
    STACK_FIELDS,
    Fitted,
    Pull,
    bounds_of,
    solve_linear,
)
from planner.measure.calibrate.runs import Runs
from planner.measure.calibrate.workers import mapped
from planner.solver.calibration.file import Calibration

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]

DRAWS = 101
"""Choices of reference runs over which the median is taken."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Runs that a fit did not see, and how far off it is on them."""

    rows: Ints
    """Positions among the runs."""
    log_errors: Floats
    """ln(predicted / measured)."""


def leave_one_source_out(runs: Runs, fitted: Fitted, processes: int = 1) -> dict[str, HeldOut]:
    """Return what each family looks like to a fit to all others; none where there is but one."""

    def without(source: str) -> HeldOut:
        return leave_out(runs, fitted, runs.where(lambda run: run.source == source), True)

    sources = runs.sources if len(runs.sources) > 1 else ()
    return dict(zip(sources, mapped(without, sources, processes), strict=True))


def leave_one_model_out(runs: Runs, fitted: Fitted, processes: int = 1) -> dict[str, HeldOut]:
    """Return what each model looks like to a fit without it, by family with several models."""
    pairs = [
        (source, model)
        for source in runs.sources
        for model in sorted({run.point.model for run in runs.runs if run.source == source})
    ]
    n_models = Counter(source for source, _ in pairs)
    several = [(source, model) for source, model in pairs if n_models[source] > 1]

    def without(pair: tuple[str, str]) -> HeldOut:
        is_held_out = runs.where(lambda run: (run.source, run.point.model) == pair)
        return leave_out(runs, fitted, is_held_out)

    parts: dict[str, list[HeldOut]] = {}
    for (source, _), part in zip(several, mapped(without, several, processes), strict=True):
        parts.setdefault(source, []).append(part)
    return {
        source: HeldOut(
            np.concatenate([part.rows for part in parts_of_source]),
            np.concatenate([part.log_errors for part in parts_of_source]),
        )
        for source, parts_of_source in parts.items()
    }


def leave_out(runs: Runs, fitted: Fitted, is_held_out: Bools, corrected: bool = False) -> HeldOut:
    """Return the errors of the `is_held_out` runs under a fit to the others.

    `corrected` prices the others once more and solves again from there.
    """
    weight = np.where(is_held_out, 0.0, runs.weight)
    free, pull = fitted.free, Pull.of(fitted.free)
    bounds = bounds_of(free)

    def errors_at(u: Floats, groups: Sequence[int] | None) -> tuple[Ints, Floats]:
        return runs.log_errors(_calibration(runs, fitted, u, is_held_out), groups)

    u = solve_linear(fitted.jacobian, fitted.log_errors, weight, pull, fitted.u, bounds)
    if corrected:
        errors = fitted.log_errors.copy()
        idx, errors_there = errors_at(u, None)
        errors[idx] = errors_there
        u = solve_linear(fitted.jacobian, errors, weight, pull, u, bounds)
    groups = [
        g
        for g, group in enumerate(runs.batch.groups)
        if any(is_held_out[row] for row, _ in group.rows)
    ]
    idx, errors_there = errors_at(u, groups)
    own = is_held_out[idx]
    order = np.argsort(idx[own], kind="stable")
    return HeldOut(idx[own][order], errors_there[own][order])


def _calibration(runs: Runs, fitted: Fitted, u: Floats, is_held_out: Bools) -> Calibration:
    """Return the calibration of a fold: stacks that only held runs have get their class's."""
    values = {one.name: one.value(x) for one, x in zip(fitted.free, u, strict=True)}
    values = {**fitted.start.values, **values}
    seen = {run.stack for run, out in zip(runs.runs, is_held_out, strict=True) if not out}
    for stack in sorted({run.stack for run in runs.runs} - seen):
        base = STACKS[CLASSES[STACKS[stack].kind]]
        for name in STACK_FIELDS:
            of_class = values.get(f"stack.{base.name}.{name}", float(getattr(base, name)))
            values[f"stack.{stack}.{name}"] = of_class
    return Calibration("fold", values)


def settings_of(runs: Runs, held_out: HeldOut) -> list[list[int]]:
    """Return the positions in `held_out` of the runs of each setting (family, stack, hardware)."""
    settings: dict[tuple[str, str, str], list[int]] = {}
    for k, row in enumerate(held_out.rows):
        settings.setdefault(runs.runs[row].setting, []).append(k)
    return list(settings.values())


def after_references(
    runs: Runs, held_out: HeldOut, n_references: int
) -> tuple[int, float | None, float | None]:
    """Return how many runs are judged, and median and 90th percentile of |error| over them.

    In every setting (family, stack, hardware) `n_references` runs are drawn, all predictions there
    are scaled by the geometric mean of measured over predicted, and the other runs are judged. The
    medians over `DRAWS` draws; settings without a run left to judge are left out.
    """
    usable = [members for members in settings_of(runs, held_out) if len(members) > n_references]
    if not usable:
        return 0, None, None
    draw = np.random.default_rng(0)
    medians, tails = [], []
    for _ in range(DRAWS):
        errors = []
        for members in usable:
            mixed = draw.permutation(len(members))
            own_errors = held_out.log_errors[members][mixed]
            errors.append(own_errors[n_references:] - own_errors[:n_references].mean())
        size = np.abs(np.expm1(np.concatenate(errors)))
        medians.append(float(np.median(size)))
        tails.append(float(np.quantile(size, 0.9)))
    n = sum(len(members) - n_references for members in usable)
    return n, float(np.median(medians)), float(np.median(tails))


def spread_over_folds(log_errors: Floats) -> tuple[float | None, float | None, float | None]:
    """Return median and 90th percentile of |error|, and the median error with its sign."""
    if not log_errors.size:
        return None, None, None
    off = np.expm1(log_errors)
    size = np.abs(off)
    return float(np.median(size)), float(np.quantile(size, 0.9)), float(np.median(off))
