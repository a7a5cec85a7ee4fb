"""The shortlist: which plans err together, all sets compared, the same answer every time."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from costmodels.plans import Layout
from planner.measure.trial.shortlist import (
    FEATURES,
    MAX_CANDIDATES,
    N_DRAWS,
    NEAR_FRAC,
    PLAN_SPREAD,
    SCALES,
    WELL_KNOWN,
    carried_rank,
    distinct_layouts,
    draws,
    normals,
    shortlist,
)

PLAIN = Layout(
    n_devices=8,
    tp=1,
    pp=1,
    dp=8,
    vpp=1,
    split="even",
    mbs=1,
    gbs=64,
    zero=1,
    sp=False,
    schedule="none",
    recompute="none",
    recompute_layers=0,
    stage_layers=(32,),
    cp=1,
    ep=1,
    etp=1,
    cp_comm="",
    shard=0,
    recompute_modules=(),
    rank_order="tp-cp-ep-dp-pp",
    optimizer_offload=False,
    dp_overlap=True,
    activation_offload_layers=0,
    tp_overlap=False,
    hpz=1,
)


def plans(n: int) -> list[Layout]:
    return [replace(PLAIN, mbs=2**i, tp=2 ** (i % 3)) for i in range(n)]


def test_normals_are_stratified_and_repeat() -> None:
    found = normals(3)
    assert np.array_equal(found, normals(3))
    assert np.array_equal(np.sort(found[:, 0]), np.sort(found[:, 2]))
    assert found[:, 1].mean() == pytest.approx(0.0, abs=1e-12)
    assert found[:, 1].std() == pytest.approx(1.0, abs=0.01)
    assert abs(np.corrcoef(found.T)[np.triu_indices(3, 1)]).max() < 5 / np.sqrt(N_DRAWS)


def test_plans_of_the_same_terms_and_features_err_together() -> None:
    times = [{"linear": 10.0, "tp": 1.0}] * 2
    same = draws(times, [PLAIN, replace(PLAIN, recompute_layers=0, split="ends")])
    other = draws(times, [PLAIN, replace(PLAIN, mbs=8, tp=8, sp=True)])
    apart = [np.std(np.log(x[:, 0] / x[:, 1])) for x in (same, other)]
    scale = (WELL_KNOWN * SCALES[0] ** 2 + (1 - WELL_KNOWN) * SCALES[1] ** 2) ** 0.5
    assert apart[0] == pytest.approx(scale * PLAN_SPREAD * 2**0.5, rel=0.05)
    width, micro = FEATURES["width"][0], FEATURES["micro-batch"][0]
    both = 2 * (width**2 + micro**2 + PLAN_SPREAD**2)
    assert apart[1] == pytest.approx(scale * both**0.5, rel=0.05)


def test_a_term_that_only_one_plan_has_sets_it_apart() -> None:
    times = [{"linear": 10.0, "dp": 5.0}, {"linear": 10.0, "bubble": 5.0}]
    found = draws(times, [PLAIN, PLAIN])
    alike = draws([times[0], times[0]], [PLAIN, PLAIN])
    spread = [np.std(np.log(x[:, 0] / x[:, 1])) for x in (found, alike)]
    assert spread[0] > 5 * spread[1]


@pytest.mark.parametrize("n", [4, 7, 9])
def test_no_other_set_is_more_likely(n: int) -> None:
    rng = np.random.default_rng(n)
    times = [
        {"linear": 10 + rng.random(), "tp": 2 * rng.random(), "bubble": 2 * rng.random()}
        for _ in range(n)
    ]
    times.sort(key=lambda one: sum(one.values()))
    found = shortlist(times, plans(n))
    slower = draws(times, plans(n))
    slower = slower / slower.min(axis=1, keepdims=True)

    def probability(which: tuple[int, ...]) -> float:
        return float((slower[:, list(which)].min(axis=1) <= 1 + NEAR_FRAC).mean())

    best = max(probability(which) for which in combinations(range(n), 3))
    assert found.probability == pytest.approx(best, abs=1e-12)
    assert probability(found.chosen) == pytest.approx(best, abs=1e-12)
    assert found.probability >= found.probability_of_first
    assert found.expected_regret <= found.regret_of_first


def test_three_plans_or_fewer_hold_the_best_for_sure() -> None:
    for n in (1, 2, 3):
        found = shortlist([{"linear": 1.0 + i} for i in range(n)], plans(n))
        assert found.chosen == tuple(range(n))
        assert found.probability == 1.0
        assert found.expected_regret == 0.0


def test_far_slower_plans_are_no_rivals() -> None:
    times = [{"linear": 10.0}, {"linear": 10.05}, {"linear": 10.1}, *[{"linear": 100.0}] * 4]
    found = shortlist(times, plans(7))
    assert found.chosen == (0, 1, 2)
    assert found.probability == 1.0


def test_one_layout_of_each_set_of_features() -> None:
    twice = [PLAIN, replace(PLAIN, recompute="full", recompute_layers=1)]
    found = distinct_layouts([*twice, replace(PLAIN, recompute="full", recompute_layers=2), PLAIN])
    assert found == [0, 1]
    assert len(distinct_layouts([replace(PLAIN, mbs=i) for i in range(1, 80)])) == MAX_CANDIDATES


def test_nothing_to_choose_from() -> None:
    with pytest.raises(ValueError, match="no plans"):
        shortlist([], [])


def test_errors_carry_over_to_plans_like_the_measured_one() -> None:
    times = [{"linear": 10.0, "tp": 1.0}] * 3
    layouts = [PLAIN, replace(PLAIN, split="ends"), replace(PLAIN, mbs=8, tp=8, pp=2, zero=3)]
    found = carried_rank(times, layouts, {0: 11.0 * 0.9})
    assert 0.90 < found.factor[0] < 0.93
    assert found.factor[0] <= found.factor[1] < 0.93
    assert 0.95 < found.factor[2] < 1.0
    assert found.spread[0] < found.spread[1] < found.spread[2]


def test_what_two_plans_measured_alike_share_is_believed_more() -> None:
    times = [{"linear": 10.0}] * 3
    layouts = [PLAIN, replace(PLAIN, tp=2), replace(PLAIN, tp=4)]
    one = carried_rank(times, layouts, {0: 9.0})
    both = carried_rank(times, layouts, {0: 9.0, 1: 9.0})
    assert both.factor[2] < one.factor[2] < 1.0


def test_a_surprise_is_cut() -> None:
    layouts = [PLAIN, replace(PLAIN, split="ends")]
    times = [{"linear": 10.0}] * 2
    slow = carried_rank(times, layouts, {0: 13.0})
    absurd = carried_rank(times, layouts, {0: 500.0})
    assert slow.factor[1] == absurd.factor[1] < 1.13


def test_without_measurements_nothing_is_carried() -> None:
    found = carried_rank([{"linear": 10.0}], [PLAIN], {})
    assert found.factor.tolist() == [1.0]
    assert found.spread[0] > 0
