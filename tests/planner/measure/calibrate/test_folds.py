"""Groups left out of a fit by its derivatives: which, what remains known, what they look like."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from planner.measure.calibrate.cross_validation import HeldOut
from planner.measure.calibrate.fit import Fitted, Free
from planner.measure.calibrate.folds import evidence_without, leave_groups_out, left_out_groups
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.parameters import known_parameters


def run(source: str, stack: str, generation: str, quantized: str = "", release: str = "") -> Any:
    """Return what a fold looks at of a run."""
    recipe = SimpleNamespace(linear_precision=quantized)
    problem = SimpleNamespace(
        stack=SimpleNamespace(kind="eager"), job=SimpleNamespace(recipe=recipe)
    )
    return SimpleNamespace(
        source=source,
        stack=stack,
        generation=generation,
        point=SimpleNamespace(release=release),
        case=SimpleNamespace(problem=problem),
    )


def runs_of(*runs: Any) -> Any:
    """Return runs of equal weight."""
    return SimpleNamespace(runs=runs, weight=np.ones(len(runs)))


def test_generations_precisions_and_releases_are_left_out() -> None:
    """The release of `b` is all of its family; that of `a` is half of it."""
    found = left_out_groups(
        runs_of(
            *[run("a", "one", "hopper", release="1.0")] * 3,
            *[run("a", "one", "hopper", "fp8", release="2.0")] * 3,
            *[run("b", "two", "ampere", release="x")] * 4,
            run("c", "two", "volta"),
        )
    )
    members = {name: np.flatnonzero(mask).tolist() for name, mask in found.items()}
    assert members == {
        "generation ampere": [6, 7, 8, 9],
        "generation hopper": [0, 1, 2, 3, 4, 5],
        "precision hopper": [3, 4, 5],
        "release one 1.0": [0, 1, 2],
        "release one 2.0": [3, 4, 5],
    }


def test_what_stays_known_without_some_runs() -> None:
    runs = runs_of(
        run("a", "one", "hopper"),
        run("b", "one", "hopper", "fp8"),
        run("c", "one", "ampere"),
        run("d", "eager", "hopper"),
        run("e", "two", "volta"),
    )
    everything = HeldOut(np.arange(5), np.zeros(5))
    assert evidence_without(runs, everything) == ["unlike"] * 5
    for rows, evidence in (
        ([0], ["fitted"]),  # b and d know Hopper
        ([1], ["new"]),  # nothing else runs fp8 there
        ([2], ["new"]),  # the devices are gone
        ([3], ["new"]),  # a class is no stack of its own
        ([4], ["unlike"]),
    ):
        held_out = HeldOut(np.array(rows), np.zeros(len(rows)))
        assert evidence_without(runs, held_out) == evidence


def test_values_that_are_no_minimum_are_not_held_against_a_group() -> None:
    """All runs want 0.3 less: left out or not, the value would fall, so the error stays."""
    parameter = known_parameters()["generation.hopper.gemm_frac"]
    fitted = Fitted(
        calibration=Calibration("x"),
        free=(Free(parameter, "", 1e3, (0,)),),
        start=Calibration("x"),
        refused={},
        seen_by={},
        jacobian=np.ones((2, 1)),
        u=np.array([np.log(0.9)]),
        log_errors=np.array([0.3, 0.3]),
        cost=0.0,
        rounds=1,
    )
    group = {"generation hopper": np.array([True, False])}
    (held_out,) = leave_groups_out(runs_of(None, None), fitted, group).values()
    assert held_out.log_errors == pytest.approx([0.3], abs=1e-3)


def test_a_group_left_out_by_hand() -> None:
    """One value, moved 1 by 1 by runs that want 0.1 more and 0.1 less of it than it has.

    Without the former the latter pull alone: the value falls, and the run left out is off by more
    than before, by just what the value fell.
    """
    parameter = known_parameters()["generation.hopper.gemm_frac"]
    free = (Free(parameter, "", 1e3, (0,)),)  # hardly pulled
    u = np.array([np.log(0.7)])
    fitted = Fitted(
        calibration=Calibration("x"),
        free=free,
        start=Calibration("x"),
        refused={},
        seen_by={},
        jacobian=np.ones((2, 1)),
        u=u,
        log_errors=np.array([-0.1, 0.1]),
        cost=0.0,
        rounds=1,
    )
    group = {"generation hopper": np.array([True, False])}
    (held_out,) = leave_groups_out(runs_of(None, None), fitted, group).values()
    assert held_out.rows.tolist() == [0]
    assert held_out.log_errors == pytest.approx([-0.2], abs=1e-3)
