"""Factors from measured steps, memory from measured peaks: exact cases and properties."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.solver.calibration.anchors import (
    LEAST_CONTEXT_BYTES,
    Floats,
    Peak,
    Steps,
    believed,
    fit_factors,
    fit_slack,
)

GIB = 2.0**30
CONTEXT, FRACTION = (1.5 * GIB, 4 * GIB), (0.05, 0.3)


def steps(by_kind: list[list[float]]) -> Steps:
    def at(factors: Floats) -> Floats:
        return np.array(by_kind) @ factors

    return at


@given(st.lists(st.floats(0.01, 10.0), min_size=3, max_size=3), st.floats(0.2, 5.0))
def test_one_run_scales_all_times_by_its_ratio(parts: list[float], ratio: float) -> None:
    found = fit_factors([ratio * sum(parts)], steps([parts]))
    assert found == pytest.approx([math.exp(believed(math.log(ratio), 1))] * 3)


def test_a_small_deviation_is_half_believed_and_a_large_one_almost_wholly() -> None:
    # c / (1 + 1 / (1 + (c / 0.1)^2)): 0.1 / 1.5 at c = 0.1, 1 / (1 + 1 / 101) at c = 1.
    assert believed(0.0, 1) == 0.0
    assert believed(1e-6, 1) == pytest.approx(0.5e-6, rel=1e-6)
    assert believed(0.1, 1) == pytest.approx(0.1 / 1.5)
    assert believed(1.0, 1) == pytest.approx(101 / 102)
    assert believed(-0.1, 3) == pytest.approx(-0.1 * 3 / 3.5)
    growing = [believed(c / 100, 1) for c in range(100)]
    assert growing == sorted(growing)


def test_runs_that_agree_share_one_factor() -> None:
    by_kind = [[8.0, 1.0, 1.0], [5.0, 4.0, 0.5], [6.0, 0.0, 3.0]]
    measured = [1.2 * sum(parts) for parts in by_kind]
    wanted = math.exp(believed(math.log(1.2), 3))
    assert fit_factors(measured, steps(by_kind)) == pytest.approx([wanted] * 3, rel=1e-4)


def test_slow_traffic_is_told_from_slow_compute() -> None:
    """Compute as predicted, traffic inside the domain twice as slow: the factors part that way."""
    by_kind = [[9.5, 0.5, 0.0], [6.0, 4.0, 0.0]]
    measured = [9.5 + 1.0, 6.0 + 8.0]
    compute, near, far = fit_factors(measured, steps(by_kind))
    assert near > 1.15 > compute
    free = fit_factors(measured, steps(by_kind), ridge=1e-6)
    assert free[1] / free[0] == pytest.approx(2.0, rel=0.02)
    # What no run sees stays with the others: its part of the penalty alone places it.
    assert min(compute, near) <= far <= max(compute, near)


def test_a_strong_ridge_leaves_one_factor() -> None:
    by_kind = [[9.5, 0.5, 0.0], [6.0, 4.0, 0.0]]
    found = fit_factors([10.5, 11.0], steps(by_kind), ridge=1e6)
    assert np.ptp(found) < 1e-4
    assert np.log(found[0]) == pytest.approx(believed(np.log(1.05 * 1.1) / 2, 2), rel=2e-2)


def test_one_slow_run_of_three_does_not_carry_the_fit() -> None:
    by_kind = [[8.0, 1.0, 1.0]] * 3
    found = fit_factors([10.0, 10.0, 30.0], steps(by_kind))
    assert found[0] < 1.06  # the mean of the logarithms would be 1.44


def test_factors_stay_in_reach() -> None:
    assert fit_factors([1000.0], steps([[1.0, 0.0, 0.0]])) == pytest.approx([10.0] * 3)


def test_no_peaks_leave_the_slack() -> None:
    assert fit_slack([], CONTEXT, FRACTION).context_bytes == CONTEXT[0]


@given(st.floats(-10.0, 30.0), st.floats(0.1, 60.0), st.booleans())
def test_no_run_is_predicted_to_need_less_than_it_took(
    gap_gib: float, stored_gib: float, device: bool
) -> None:
    peak = Peak(40 * GIB + gap_gib * GIB, 40 * GIB, stored_gib * GIB, device)
    found = fit_slack([peak], CONTEXT, FRACTION)
    more = (found.fragmentation_frac - FRACTION[0]) * stored_gib * GIB
    more += (found.context_bytes - CONTEXT[0]) + found.unexplained_bytes
    assert more >= min(peak.missing, 0.0) * (1 + 1e-9) - 1 or gap_gib <= 0
    if gap_gib > 0:
        assert more >= peak.missing - 2.0
    assert LEAST_CONTEXT_BYTES <= found.context_bytes <= CONTEXT[1]
    assert 0.0 <= found.fragmentation_frac <= FRACTION[1]


def test_a_peak_below_its_prediction_gives_back_slack_alone() -> None:
    """20 GiB less than predicted: the counted tensors keep their room."""
    found = fit_slack([Peak(20 * GIB, 40 * GIB, 10 * GIB, True)], CONTEXT, FRACTION)
    assert found.context_bytes == LEAST_CONTEXT_BYTES
    assert found.fragmentation_frac == 0.0
    assert found.unexplained_bytes == 0.0


def test_what_the_allocator_holds_says_nothing_about_the_context() -> None:
    found = fit_slack([Peak(42 * GIB, 40 * GIB, 20 * GIB, False)], CONTEXT, FRACTION)
    assert found.context_bytes == pytest.approx(CONTEXT[0])
    assert found.fragmentation_frac == pytest.approx(0.15, abs=0.002)


def test_a_run_out_of_memory_only_raises() -> None:
    roomy = Peak(80 * GIB, 90 * GIB, 20 * GIB, True, at_least=True)
    assert fit_slack([roomy], CONTEXT, FRACTION).context_bytes == CONTEXT[0]
    tight = Peak(80 * GIB, 79 * GIB, 20 * GIB, True, at_least=True)
    found = fit_slack([tight], CONTEXT, FRACTION)
    more = found.context_bytes - CONTEXT[0] + (found.fragmentation_frac - 0.05) * 20 * GIB
    assert more >= 1.0 * GIB * (1 - 1e-9)
