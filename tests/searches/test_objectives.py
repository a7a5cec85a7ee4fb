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
from searches.pricing.layout_prices import exact_step_s
from searches.search import search
from searches.space.free_axes import free_axes
from searches.space.plan_blocks import plan_blocks
from searches.space.plan_space import legal_masks
from searches.space.shape_space import legal_shapes
from tests.repeats import examples
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


@pytest.mark.parametrize("name", one_in(4, NAMES))
def test_the_front_is_that_of_brute_force(name):
    context = INSTANCES[name]
    points = all_points(context)
    expected = sorted(p for p in points if not beaten(p, points))
    front = search(with_options(context, front=True)).front
    assert [(c.closed_form_s, c.peak_bytes) for c in front] == expected
    assert len({c.layout for c in front}) == len(front) > 0


def plans_near_the_front(context, factor=1.1):
    """Every plan that fits and that no plan with as little memory is far faster than."""
    shapes = legal_shapes(context).shapes
    axes = free_axes(context, shapes)
    masks, _, _ = legal_masks(context, shapes, axes)
    terms = shape_terms(context.problem, shapes, axes.shardings)
    layers = layer_table(context.problem, shapes, axes.mbs, axes.recompute_modules)
    found = []
    for one in plan_blocks(context, shapes, axes, masks, 700):
        rows = join(context.problem, terms, one.block, layers)
        peaks, times = peak_bytes(rows), step_times(rows)
        fits = one.legal & (peaks <= context.problem.pool.usable_bytes)
        cells = np.flatnonzero(fits)
        table = one.block.rows(cells)
        found += [
            (
                float(times.flat[cell]),
                float(peaks.flat[cell]),
                table.layout(i, context.problem.shape.layers),
            )
            for i, cell in enumerate(cells.tolist())
        ]
    found.sort(key=lambda x: (x[1], x[0]))
    near, least = [], np.inf
    for closed_s, peak, layout in found:
        least = min(least, closed_s)
        if closed_s <= least * factor:
            near.append((peak, layout))
    return near


@pytest.mark.parametrize("name", one_in(4, NAMES))
def test_the_exact_front_is_among_the_plans_kept_for_it(name):
    context = INSTANCES[name]
    near = plans_near_the_front(context)
    exact = exact_step_s(context.problem, [layout for _, layout in near])
    points = {(time_s, peak) for time_s, (peak, _) in zip(exact, near, strict=True)}
    best = [p for p in points if not beaten(p, points)]
    found = search(with_options(context, front=True, n_finalists=1))
    kept = [*found.finalists, *found.front, *found.near_front]
    kept_s = exact_step_s(context.problem, [c.layout for c in kept])
    kept_points = [(time_s, c.peak_bytes) for time_s, c in zip(kept_s, kept, strict=True)]
    for time_s, peak in best:
        slack = 1 + 1e-12
        assert any(t <= time_s * slack and m <= peak * slack for t, m in kept_points)


def test_without_the_option_no_front_is_kept():
    found = search(INSTANCES["toy-8"])
    assert (found.front, found.near_front) == ((), ())


def test_a_front_changes_no_other_part_of_the_answer():
    plain = search(INSTANCES["toy-8"])
    found = search(with_options(INSTANCES["toy-8"], front=True))
    assert replace(found, front=(), near_front=()) == plain


@pytest.mark.slow
def test_the_front_is_the_same_in_worker_processes(monkeypatch):
    monkeypatch.setattr("searches.search.SHARD_SHAPES", 5)
    context = with_options(INSTANCES["toy-24-two-tiers"], front=True)
    found, expected = search(context, ProcessExecutor(2)), search(context)
    assert (found.front, found.near_front) == (expected.front, expected.near_front)


def test_parts_merge_in_any_order():
    front = search(with_options(INSTANCES["toy-8"], front=True)).front
    others = search(with_options(INSTANCES["toy-8"], front=True, n_finalists=40)).finalists
    others = [replace(c, step_s=0.0) for c in others]
    parts = [front[:2], others[:7], front[2:], tuple(others[7:])]
    merged = [merged_front(order) for order in itertools.permutations(parts)]
    assert all(m == list(front) for m in merged)


@settings(max_examples=examples(60), deadline=None)
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
