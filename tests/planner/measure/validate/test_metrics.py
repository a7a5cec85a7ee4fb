"""Metrics against numbers worked by hand."""

import numpy as np
import pytest

from planner.measure.validate.metrics import (
    beyond_their_bubble,
    classify,
    errors,
    kendall_tau,
    regret,
    slow_runs,
    slower_than_more_work,
    trimmed_mean,
    weighted_mean,
)


def test_errors_are_median_p90_and_signed_median():
    found = errors([1.1, 0.8, 1.0, 1.3, 0.6], [1.0] * 5)
    # sizes 0, .1, .2, .3, .4; the 90th percentile lies 60 % of the way from .3 to .4
    assert found.median_ape == pytest.approx(0.2)
    assert found.p90_ape == pytest.approx(0.36)
    assert found.bias == pytest.approx(0.0)
    assert found.n == 5


def test_no_pair_has_no_error():
    assert errors([], []).median_ape is None


@pytest.mark.parametrize(
    ("predicted", "measured", "tau"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4], [1, 2, 4, 3], 4 / 6),
        # one pair tied in x: five pairs count, all agree, over sqrt(5 * 6)
        ([1, 1, 2, 3], [1, 2, 3, 4], 5 / np.sqrt(30)),
        ([1, 1, 1], [1, 2, 3], 0.0),
    ],
)
def test_kendall_tau_b(predicted, measured, tau):
    assert kendall_tau(predicted, measured) == pytest.approx(tau)


def test_regret_is_the_best_of_the_first_choices():
    measured = [15.0, 12.0, 10.0, 11.0]
    assert regret([1, 2, 3, 4], measured, 1) == pytest.approx(0.5)
    assert regret([1, 2, 3, 4], measured, 2) == pytest.approx(0.2)
    assert regret([1, 2, 3, 4], measured, 3) == pytest.approx(0.0)
    assert regret([1, 2], [2.0, 1.0], 3) == pytest.approx(0.0)


def test_regret_averages_over_ties():
    # the second choice is one of 12 and 10, after a sure 15: the mean of 12 and 10
    assert regret([1, 2, 2, 4], [15.0, 12.0, 10.0, 11.0], 2) == pytest.approx(0.1)
    # two of {10, 12, 16}: the least is 10, 10 or 12
    assert regret([1, 1, 1], [10.0, 12.0, 16.0], 2) == pytest.approx((32 / 3 - 10) / 10)


def test_trimmed_mean_drops_both_ends():
    assert trimmed_mean([1.0] * 18 + [100.0, -100.0]) == pytest.approx(1.0)
    assert trimmed_mean([]) is None


def test_weighted_mean():
    assert weighted_mean([1.0, 0.0], [3, 1]) == pytest.approx(0.75)
    assert weighted_mean([], []) is None


def test_balanced_accuracy_is_the_mean_of_the_recalls():
    found = classify([True, True, False, True, False], [True, True, True, False, False])
    assert found.recall_oom == pytest.approx(2 / 3)
    assert found.recall_fit == pytest.approx(1 / 2)
    assert found.balanced_accuracy == pytest.approx(7 / 12)


def test_one_kind_alone_has_no_balanced_accuracy():
    found = classify([False, True], [False, False])
    assert (found.recall_oom, found.recall_fit, found.balanced_accuracy) == (None, 0.5, None)


def test_a_pipeline_is_slow_when_more_work_takes_far_less():
    # (stages, micro-batch, devices): the second does at least the first one's work a slot.
    pairs = (
        ((8, 1, 64), (4, 2, 32), True),
        ((8, 1, 64), (8, 1, 128), True),
        ((4, 1, 64), (8, 2, 64), False),  # fewer layers
        ((8, 2, 64), (4, 1, 64), False),  # a smaller micro-batch
        ((8, 1, 64), (1, 2, 64), False),  # no messages
        ((1, 1, 64), (1, 2, 64), False),
    )
    for size, other, slow in pairs:
        found = slower_than_more_work(["a", "a"], [size, other], [2.6, 1.0])
        assert found == [slow, False]
        assert slower_than_more_work(["a", "b"], [size, other], [2.6, 1.0]) == [False, False]
        assert slower_than_more_work(["a", "a"], [size, other], [2.4, 1.0]) == [False, False]


def test_slow_runs_are_judged_by_other_sizes_alone():
    groups, sizes = ["a", "a", "a", "b", "b"], [8, 16, 16, 8, 8]
    # a: 2.6 at 16 against 1.0 at 8; b: no other size, so no judgement
    assert slow_runs(groups, sizes, [1.0, 2.6, 2.5, 1.0, 9.0]) == [
        False,
        True,
        False,
        False,
        False,
    ]


def test_a_pipeline_too_fast_for_its_bubble_is_judged_by_more_chunks_alone():
    # 1.25 slots of the first are below every slot in more chunks.
    cases = (
        ([1, 4], [0.79, 1.0], [True, False]),
        ([1, 4], [0.80, 1.0], [False, False]),  # 1.25 x 0.8 is not below
        ([4, 1], [0.50, 1.0], [False, False]),  # in more chunks itself: what it saves is bubble
        ([4, 4], [0.50, 1.0], [False, False]),
        ([1, 4, 8], [0.79, 1.2, 0.9], [False, False, False]),  # one of them is near
        ([1, 4, 8], [0.70, 1.2, 0.9], [True, False, False]),
    )
    for chunks, slots, expected in cases:
        assert beyond_their_bubble(["a"] * len(chunks), chunks, slots) == expected
    assert beyond_their_bubble(["a", "b"], [1, 4], [0.5, 1.0]) == [False, False]
