"""Which plans the model cannot tell apart: monotone regression, thresholds, groups."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from planner.solver.answer.uncertainty import resolution_groups
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.resolution import Timed, learn_resolution, likeness, monotone


def layout(tp: int = 1, pp: int = 1) -> Any:
    return SimpleNamespace(tp=tp, pp=pp)


@pytest.mark.parametrize("seed", range(10))
def test_monotone_is_the_largest_of_the_least_means(seed: int) -> None:
    draw = np.random.default_rng(seed)
    y, w = draw.normal(size=12), draw.uniform(0.1, 2.0, 12)

    def mean(j: int, k: int) -> float:
        return float(np.average(y[j : k + 1], weights=w[j : k + 1]))

    oracle = [max(min(mean(j, k) for k in range(i, 12)) for j in range(i + 1)) for i in range(12)]
    assert monotone(y, w) == pytest.approx(oracle)


def test_the_resolution_is_the_gap_from_which_the_order_is_right() -> None:
    """Pairs up to 4 % apart come out the other way round; those of 6 % and more do not."""
    sweeps = []
    for gap in (0.01, 0.02, 0.04, 0.06, 0.08, 0.10):
        measured = 0.9 if gap < 0.05 else 1.1
        fast, slow = Timed(layout(), 1.0, 1.0), Timed(layout(), 1.0 + gap, measured)
        other = Timed(layout(2), 1.0 + gap / 2, 1.0 + gap / 2)
        sweeps += [("a", [fast, slow]), ("a", [fast, other])]
    found = learn_resolution(sweeps)
    assert found == {"same-tp-pp": 0.06, "other-tp-pp": pytest.approx(0.005)}


def test_plans_that_are_never_told_apart_have_the_widest() -> None:
    pair = [Timed(layout(), 1.0, 1.1), Timed(layout(), 1.1, 1.0)]
    assert learn_resolution([("a", pair)])["same-tp-pp"] == pytest.approx(0.35)


def test_groups_are_led_by_their_first_plan() -> None:
    found = Calibration("mine", resolution={"same-tp-pp": 0.02, "other-tp-pp": 0.08})
    assert likeness(layout(2, 4), layout(2, 4)) == "same-tp-pp"
    plans = [
        (layout(1), 1.000),
        (layout(1), 0.995),  # faster, put behind by its headroom
        (layout(1), 1.030),  # same tp and pp, 3 % behind: told apart
        (layout(2), 1.070),  # another tp, 7 % behind: not told apart
        (layout(1), 1.045),  # 1.5 % behind the third
        (layout(2), 1.200),
    ]
    assert resolution_groups(plans, found) == (1, 1, 2, 1, 2, 3)
    assert resolution_groups([], found) == ()
