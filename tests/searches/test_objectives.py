"""Fronts of time and memory against brute force over every plan."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.layers.layer_terms import layer_table
from costmodels.shape_terms import shape_terms
from costmodels.step import join, peak_bytes, step_times
from searches.executors.executor import ProcessExecutor
from searches.pricing.candidates import Candidate
from searches.pricing.fronts import dominated, merged_front, non_dominated, staircase
from searches.search import search
from searches.space.free_axes import free_axes
from searches.space.plan_blocks import plan_blocks
from searches.space.plan_space import legal_masks
from searches.space.shape_space import legal_shapes
from tests.searches.instances import INSTANCES, one_in, with_options

NAMES = (
    "toy-4",
    "toy-8",
    "toy-8-tight",
    "toy-12-odd-batch",
    "toy-24-two-tiers",
    "h100-16",
    "limits",
)


def all_points(context) -> set[tuple[float, float]]:
    """Time and memory of every plan that fits, in other blocks than those of the search."""
    shapes = legal_shapes(context).shapes
    axes = free_axes(context, shapes)
    masks, _, _ = legal_masks(context, shapes, axes)
    terms = shape_terms(context.problem, shapes, axes.shardings)
    layers = layer_table(context.problem, shapes, axes.mbs, axes.recompute_modules)
    points = set()
    for found in plan_blocks(context, shapes, axes, masks, 700):
        rows = join(context.problem, terms, found.block, layers)
        peaks, times = peak_bytes(rows), step_times(rows)
        fits = found.legal & (peaks <= context.problem.pool.usable_bytes)
        points |= set(zip(times[fits].tolist(), peaks[fits].tolist(), strict=True))
    return points


def beaten(point, points) -> bool:
    return any(q != point and q[0] <= point[0] and q[1] <= point[1] for q in points)


@pytest.mark.parametrize("name", one_in(2, NAMES))
def test_the_front_is_that_of_brute_force(name):
    context = INSTANCES[name]
    points = all_points(context)
    expected = sorted(p for p in points if not beaten(p, points))
    front = search(with_options(context, front=True)).front
    assert [(c.closed_form_s, c.peak_bytes) for c in front] == expected
    assert len({c.layout for c in front}) == len(front) > 0


def test_without_the_option_no_front_is_kept():
    assert search(INSTANCES["toy-8"]).front == ()


def test_a_front_changes_no_other_part_of_the_answer():
    plain = search(INSTANCES["toy-8"])
    assert replace(search(with_options(INSTANCES["toy-8"], front=True)), front=()) == plain


@pytest.mark.slow
def test_the_front_is_the_same_in_worker_processes(monkeypatch):
    monkeypatch.setattr("searches.search.SHARD_SHAPES", 5)
    context = with_options(INSTANCES["toy-24-two-tiers"], front=True)
    assert search(context, ProcessExecutor(2)).front == search(context).front


def test_parts_merge_in_any_order():
    front = search(with_options(INSTANCES["toy-8"], front=True)).front
    others = search(with_options(INSTANCES["toy-8"], front=True, n_finalists=40)).finalists
    others = [replace(c, step_s=0.0, least_s=0.0) for c in others]
    parts = [front[:2], others[:7], front[2:], tuple(others[7:])]
    merged = [merged_front(order) for order in itertools.permutations(parts)]
    assert all(m == list(front) for m in merged)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), max_size=40))
def test_non_dominated_is_the_definition(points):
    found = [p for p, _ in non_dominated([(p, i) for i, p in enumerate(points)])]
    distinct = set(points)
    expected = {p for p in distinct if not dominated(p, distinct - {p})}
    assert found == sorted(expected)


def test_equal_plans_are_told_apart_by_their_degrees():
    layouts = [c.layout for c in search(INSTANCES["toy-8"]).finalists[:4]]
    same = [Candidate(x, 1.0, 5.0) for x in layouts]
    assert staircase(same) == staircase(reversed(same))
    assert len(staircase(same)) == 1
    assert np.isclose(staircase([*same, Candidate(layouts[0], 0.5, 9.0)])[0].peak_bytes, 9.0)
