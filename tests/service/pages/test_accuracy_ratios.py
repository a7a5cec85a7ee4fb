"""Ratios of predicted to measured by family, and the marks of the timeline."""

import pytest

from service.pages.shown_data import shown_data
from service.pages.views.accuracy import (
    family_ratios,
    measured_rows_of,
    quantiles_of,
    ratio_place,
)


@pytest.mark.parametrize(
    ("values", "quantiles"),
    [
        ([2.0], (2.0, 2.0, 2.0)),
        ([1.0, 2.0], (1.1, 1.5, 1.9)),
        ([0.5, 1.0, 1.5, 2.0, 4.0, 8.0], (0.75, 1.75, 6.0)),
    ],
)
def test_quantiles_by_hand(values, quantiles):
    assert quantiles_of(list(reversed(values))) == pytest.approx(quantiles)


def test_the_scale_is_logarithmic_and_ends_at_half_and_twice():
    assert [ratio_place(x) for x in (0.5, 2**-0.5, 1.0, 2**0.5, 2.0, 9.0)] == [
        0.0,
        25.0,
        50.0,
        75.0,
        100.0,
        100.0,
    ]


def test_every_measured_family_is_listed_by_its_name_the_furthest_off_first():
    families = family_ratios()
    rows = measured_rows_of("", "step")
    assert {x["source"] for x in families} == {row["source"] for row in rows}
    assert sum(x["n"] for x in families) == len(rows)
    names = {x["source"]: x["what"] for x in shown_data("accuracy")["sources"]}
    assert all(x["name"] == names[x["source"]] != "" for x in families)
    off = [max(x["median"], 1 / x["median"]) for x in families]
    assert off == sorted(off, reverse=True)
    for x in families:
        assert x["low"] <= x["median"] <= x["high"]
        assert x["places"]["low"] <= x["places"]["median"] <= x["places"]["high"]
