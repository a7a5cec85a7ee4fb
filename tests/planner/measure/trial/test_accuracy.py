"""The figures of docs/trial.md: hand-computed errors and promises, and the page itself."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from costmodels.stacks import NUMBERS
from planner.measure.trial.accuracy import (
    Situation,
    anchoring_table,
    at_class_defaults,
    errors_after,
    promises,
    situations,
    sweeps_of,
)
from planner.measure.validate.points import MeasuredPoint
from planner.solver.calibration.anchors import believed
from planner.solver.calibration.file import load_calibration
from tests.planner.measure.validate.test_report import HARDWARE, MODELS, points

ROOT = Path(__file__).resolve().parents[4]


def situation(ratios: list[float], source: str = "x") -> Situation:
    by_kind = np.array([[0.8, 0.1, 0.1]] * len(ratios)) * 10.0
    return Situation(source, False, 10.0 * np.array(ratios), by_kind)


def test_errors_after_reference_runs() -> None:
    one = situation([1.25] * 6)
    assert errors_after(one, 0) == pytest.approx([0.2])
    for n in (1, 2, 3):
        left = believed(math.log(1.25), n) - math.log(1.25)
        assert errors_after(one, n) == pytest.approx(1.0 - math.exp(left), abs=1e-6)
    # One of four is twice as slow: as a reference it nearly doubles the others, which are right.
    found = sorted(errors_after(situation([1.0, 1.0, 1.0, 2.0]), 1).tolist())
    doubled = math.exp(believed(math.log(2.0), 1)) - 1.0
    assert found == pytest.approx([0.0, 0.0, 0.0, doubled], abs=1e-6)


def test_situations_of_a_source_count_by_their_layouts() -> None:
    table = anchoring_table([situation([1.25] * 6), situation([2.0] * 18)])
    n, medians = table["x", False]
    assert n == 24
    assert medians[0] == pytest.approx(0.25 * 0.2 + 0.75 * 0.5)
    for n, median in enumerate(medians[1:], start=1):
        lefts = [1 - math.exp(believed(math.log(x), n) - math.log(x)) for x in (1.25, 2.0)]
        assert median == pytest.approx(0.25 * lefts[0] + 0.75 * lefts[1], abs=1e-6)


def test_the_source_s_own_numbers_are_left_out() -> None:
    shipped = load_calibration()
    found = at_class_defaults(shipped)
    for number in NUMBERS:
        assert found.value(f"stack.nanotron.{number}") == found.value(f"stack.eager.{number}")
        assert found.value(f"stack.eager.{number}") == shipped.value(f"stack.eager.{number}")
    own = "stack.nanotron.elementwise_factor"
    assert found.value(own) != shipped.value(own)


LAYOUTS = (
    {},
    {"tp": 2, "dp": 4},
    {"tp": 4, "dp": 2},
    {"mbs": 2},
    {"mbs": 4},
    {"pp": 2, "dp": 4},
    {"tp": 2, "pp": 2, "dp": 2},
)


def sweep_of(times: list[float]) -> list[MeasuredPoint]:
    """Return runs of seven layouts that took so many seconds."""
    return points(*({**x, "step_time_s": t} for x, t in zip(LAYOUTS, times, strict=True)))


def test_a_promise_is_held_against_the_measurements() -> None:
    calibration = load_calibration()
    given = (MODELS, HARDWARE, calibration)
    predicted = [
        plan.prediction.step_s for plan in sweeps_of(sweep_of([1.0] * 7), *given)[0].plans
    ]
    right = promises(sweeps_of(sweep_of(predicted), *given))[0]
    assert right.is_kept
    assert right.regret == right.regret_of_first == right.regret_of_top == 0.0
    wrong = promises(sweeps_of(sweep_of([1 / x for x in predicted]), *given))[0]
    assert wrong.regret_of_first == pytest.approx(max(predicted) / min(predicted) - 1.0)
    assert wrong.regret <= wrong.regret_of_first
    assert wrong.is_kept == (wrong.regret <= 0.01)


def test_situations_are_priced_by_kind_of_time() -> None:
    from planner.measure.calibrate.runs import fit_runs_of

    runs = fit_runs_of(sweep_of([1.0] * 7), MODELS, HARDWARE, thinned={})
    found = situations(runs, load_calibration())[0]
    plain = np.exp(runs.all_log_errors(at_class_defaults(load_calibration()))) * 1.0
    assert found.by_kind_s.sum(axis=1) == pytest.approx(plain)
    single = [i for i, run in enumerate(runs.runs) if run.case.layout.tp == 4]
    assert found.by_kind_s[single, 1].min() > 0  # all traffic of one node is inside the domain
    assert found.by_kind_s[:, 2] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.fit
def test_the_page_is_what_the_script_writes() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "trial_accuracy"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
