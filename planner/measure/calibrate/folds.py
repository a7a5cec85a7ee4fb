"""Runs under fits that have not seen what they are of: generations, precisions, releases.

A group of runs is left out, and the fit to all is corrected once by its derivatives, without
pricing anything again: what a prediction becomes is read off the same derivatives. That costs a
linear problem a group, so that many kinds of groups can be left out. Families are left out by
`planner.measure.calibrate.cross_validation`, which prices them anew.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from planner.measure.calibrate.cross_validation import HeldOut
from planner.measure.calibrate.fit import Fitted, Pull, bounds_of, solve_linear
from planner.measure.calibrate.runs import Run, Runs
from planner.solver.calibration.intervals import BY_UNKNOWNS, is_quantized

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

LEAST_ROWS = 3
"""Runs of a group that is left out, at least, and as many others must stay in the fit."""


def families(runs: Runs) -> dict[str, Bools]:
    """Return the runs of each family, by its name."""
    return {
        name: runs.where(lambda run, name=name: run.source == name)  # type: ignore[misc]
        for name in runs.sources
    }


def left_out_groups(runs: Runs) -> dict[str, Bools]:
    """Return the groups that are left out one by one, by name.

    Each generation of devices, each generation's runs in fp8 and fp4, each release of a stack. A
    release that is all of its family is left out with the family.
    """
    keys: dict[str, list[int]] = {}
    n_of_family: dict[str, int] = {}
    for i, run in enumerate(runs.runs):
        n_of_family[run.source] = n_of_family.get(run.source, 0) + 1
        for name in _group_names(run):
            keys.setdefault(name, []).append(i)
    results = {}
    for name, members in sorted(keys.items()):
        families = {runs.runs[i].source for i in members}
        is_whole = name.startswith("release ") and len(members) == sum(
            n_of_family[family] for family in families
        )
        if LEAST_ROWS <= len(members) <= len(runs.runs) - LEAST_ROWS and not is_whole:
            mask = np.zeros(len(runs.runs), dtype=bool)
            mask[members] = True
            results[name] = mask
    return results


def _group_names(run: Run) -> list[str]:
    names = [f"generation {run.generation}"]
    if is_quantized(run.case.problem):
        names.append(f"precision {run.generation}")
    if run.point.release:
        names.append(f"release {run.stack} {run.point.release}")
    return names


def leave_groups_out(
    runs: Runs, fitted: Fitted, groups: Mapping[str, Bools]
) -> dict[str, HeldOut]:
    """Return what each group looks like to a fit without it, linear in the values.

    What counts is how far the values move for want of the group: from where the same linear
    problem ends with all runs. From `fitted.u` they would also move where that is no minimum, as
    values that were fitted part by part are not, and the group would be blamed for that.
    """
    pull, bounds = Pull.of(fitted.free), bounds_of(fitted.free)

    def ends(weight: Floats) -> Floats:
        return solve_linear(fitted.jacobian, fitted.log_errors, weight, pull, fitted.u, bounds)

    with_all = ends(runs.weight)
    results = {}
    for name, is_held_out in groups.items():
        rows = np.flatnonzero(is_held_out)
        moved = ends(np.where(is_held_out, 0.0, runs.weight)) - with_all
        results[name] = HeldOut(rows, fitted.log_errors[rows] + fitted.jacobian[rows] @ moved)
    return results


def evidence_without(runs: Runs, held_out: HeldOut) -> list[str]:
    """Return what stands behind the prediction of each run left out, as `evidence_for` has it.

    A stack, a generation or fp8 on it is known where some run that stays has it.
    """
    out = set(held_out.rows.tolist())
    left = [run for i, run in enumerate(runs.runs) if i not in out]
    stacks = {run.stack for run in left}
    parts = {(run.generation, quantized) for run in left for quantized in _numbers(run)}
    results = []
    for row in held_out.rows:
        run = runs.runs[row]
        has_stack = run.stack != run.case.problem.stack.kind and run.stack in stacks
        has_part = (run.generation, is_quantized(run.case.problem)) in parts
        results.append(BY_UNKNOWNS[2 - has_stack - has_part])
    return results


def _numbers(run: Run) -> tuple[bool, ...]:
    """Return what a run says of its devices: its 16-bit numbers, and fp8 where it has that."""
    return (False, True) if is_quantized(run.case.problem) else (False,)
