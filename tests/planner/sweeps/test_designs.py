"""Designs: a grid is every combination once, a Latin hypercube each stratum once."""

import math
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import BadValue
from planner.sweeps.axes import SweepAxis, field_axis
from planner.sweeps.designs import (
    MAX_POINTS,
    check_size,
    grid_points,
    grid_size,
    latin_points,
    latin_shares,
)
from tests.repeats import examples

FIELDS = ("pools.0.nodes", "training.seq_len", "training.global_batch")


def axes_of(sizes: list[int]) -> list[SweepAxis]:
    return [
        field_axis(path, list(range(1, n + 1))) for path, n in zip(FIELDS, sizes, strict=False)
    ]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_a_grid_is_the_product_of_its_axes(sizes):
    axes = axes_of(sizes)
    points = list(grid_points(axes))
    assert len(points) == grid_size(axes) == math.prod(sizes)
    assert len(set(points)) == len(points)
    # The last axis is the fastest: the order of counting.
    keys = [tuple(value for _, value in point) for point in points]
    assert keys == sorted(keys)


@settings(max_examples=examples(25))
@given(st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_a_latin_hypercube_uses_each_stratum_once(n, seed):
    shares = latin_shares("pools.0.nodes", n, seed)
    assert sorted(int(share * n) for share in shares) == list(range(n))
    assert all(0 <= share < 1 for share in shares)


def test_values_of_a_list_are_sampled_equally_often():
    axes = [field_axis("pools.0.nodes", [1, 2, 3]), field_axis("pools.0.nic_speed", "1..9 GB/s")]
    points = list(latin_points(axes, 30, seed=7))
    assert Counter(dict(point)["pools.0.nodes"] for point in points) == {1: 10, 2: 10, 3: 10}
    speeds = sorted(float(dict(p)["pools.0.nic_speed"].split()[0]) for p in points)
    edges = [1 + 8 * i / 30 for i in range(31)]
    assert all(
        a - 1e-5 <= x <= b + 1e-5 for a, x, b in zip(edges, speeds, edges[1:], strict=False)
    )


def test_the_seed_decides_and_other_axes_do_not():
    one = field_axis("pools.0.nodes", "8..4096 log")
    other = field_axis("pools.0.nic_speed", "100..800 Gb/s")
    alone = [dict(p)["pools.0.nodes"] for p in latin_points([one], 20, 3)]
    assert alone == [dict(p)["pools.0.nodes"] for p in latin_points([other, one], 20, 3)]
    assert alone != [dict(p)["pools.0.nodes"] for p in latin_points([one], 20, 4)]
    # Written down: a sweep that was begun with another release of numpy has the same points.
    assert alone[:5] == [756, 1075, 2576, 163, 79]


def test_a_billion_points_are_refused_and_none_is_made():
    axes = [field_axis(path, "1..1000+1") for path in FIELDS]
    with pytest.raises(BadValue, match=r"1,000,000,000 points, more than 1,000,000") as error:
        check_size(grid_size(axes))
    assert "--design latin --samples" in error.value.hint
    check_size(MAX_POINTS)
    assert len(list(islice(grid_points(axes), 3))) == 3  # lazily
