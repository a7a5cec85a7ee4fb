"""Errors by era and by what runs have, and what one reference run makes of them."""

from dataclasses import replace

import numpy as np
import pytest

from planner.measure.validate.eras import (
    FAMILIES_OF_ERA,
    HEADLINE,
    YEARS,
    after_one_reference,
    era_errors,
)
from planner.measure.validate.rows import price_points, use
from planner.solver.calibration.anchors import believed
from planner.solver.calibration.file import load_calibration
from tests.planner.measure.validate.test_predict import HARDWARE, MODELS, POINT


def lines(*points, calibration=None):
    rows = price_points(points, MODELS, HARDWARE)
    found = era_errors(rows, use(rows), calibration or load_calibration())
    return {one.key: one for one in found}


def run(name, line, factor, **cells):
    """Return a run that took so many times what is predicted."""
    point = replace(POINT, id=name, line=line, **cells)
    (row,) = price_points([replace(point, step_time_s=1.0)], MODELS, HARDWARE)
    return replace(point, step_time_s=factor * row.prediction.step_s)


def test_families_of_an_era_weigh_the_same():
    """aa: 10 and 30 % too fast, so 20; lf: 50 % too slow. Of an unknown family nothing."""
    points = [
        run("aa-1", 2, 1 / 0.9),
        run("aa-2", 3, 1 / 0.7, mbs=2),
        run("lf-1", 4, 1 / 1.5),
        run("zz-1", 5, 10.0),
    ]
    (old,) = lines(*points).values()
    assert (old.key, old.by, old.families, old.n) == ("2019-24", "families", ("aa", "lf"), 3)
    assert old.median_ape == pytest.approx((0.2 + 0.5) / 2)
    assert old.bias == pytest.approx((-0.2 + 0.5) / 2)
    assert old.years == (2023, 2023)


def test_rows_of_what_runs_have_weigh_the_same():
    experts = {"model": "moe", "ep": 4, "etp": 1}
    points = [run(f"zz-{i}", 2 + i, 1.0 / (1.0 + i / 10), **experts) for i in (1, 2, 3)]
    points += [run("zz-9", 9, 1.0 / 1.4, precision="fp8"), run("zz-10", 10, 1.0)]
    found = lines(*points)
    assert set(found) == {"experts", "fp8"}
    assert found["experts"].by == "rows"
    assert found["experts"].n == 3
    assert found["experts"].median_ape == pytest.approx(0.2)
    assert found["fp8"].median_ape == pytest.approx(0.4)
    assert found["fp8"].referenced_ape is None
    assert found["experts"].n_referenced == 3


def test_what_lies_inside_depends_on_the_intervals():
    points = [run("aa-1", 2, 1.05), run("aa-2", 3, 1.5, mbs=2)]
    wide = dict.fromkeys(load_calibration().intervals, (0.5, 2.0))
    narrow = dict.fromkeys(load_calibration().intervals, (0.9, 1.1))
    shipped = load_calibration()
    for intervals, inside in ((wide, 1.0), (narrow, 0.5)):
        calibration = replace(shipped, intervals=intervals)
        assert lines(*points, calibration=calibration)["2019-24"].inside == inside


def test_a_reference_takes_out_what_a_setting_shares():
    """All of a setting 30 % too fast: what is left is what is not believed of it."""
    n, left = after_one_reference(["a"] * 5, np.full(5, np.log(0.7)))
    assert n == 5
    assert left == pytest.approx(abs(np.expm1(np.log(0.7) - believed(np.log(0.7), 1))))
    assert left < 0.03


def test_a_run_alone_in_its_setting_is_not_judged():
    assert after_one_reference(["a", "b"], np.array([0.1, 0.2])) == (0, None)


def test_every_run_counts_once_whatever_its_references():
    """Of three, one is 20 % off: the two others correct each other to 0, and by it they err."""
    errors = np.array([0.0, 0.0, 0.2])
    n, median = after_one_reference(["a"] * 3, errors)
    # six pairs of weight 1/2: 0, 0 (the two), twice 0.2 by a right one, twice by the wrong one
    pairs = sorted([0.0, 0.0, np.expm1(0.2), np.expm1(0.2)] + [1 - np.exp(-believed(0.2, 1))] * 2)
    assert n == 3
    assert median == pytest.approx(pairs[2])


def test_every_headline_family_has_its_years():
    assert len(HEADLINE) == len(set(HEADLINE)) == 25
    assert set(HEADLINE) <= set(YEARS)
    assert len(FAMILIES_OF_ERA) == 2
