"""Data-parallel traffic: pieces, wire times, and what the windows of compute hide."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.breakdown import break_down
from costmodels.collectives import collective_s
from costmodels.data_parallel import (
    data_parallel_times,
    exposed_each_s,
    exposed_once_s,
    n_pieces,
)
from costmodels.placement import place_group
from costmodels.stacks import STACKS

seconds = st.floats(0.0, 10.0)


def test_megatron_cuts_pieces_of_forty_million_or_a_million_per_rank(toy_problem):
    problem, params = toy_problem(), np.array([1e6, 40e6, 41e6, 1e9])
    assert n_pieces(problem, params, 8).tolist() == [1, 1, 2, 25]
    assert n_pieces(problem, params, 500).tolist() == [1, 1, 1, 2]
    eager = toy_problem(stack="eager")
    assert n_pieces(eager, params, 500).tolist() == [1, 1, 2, 25]
    whole = toy_problem(stack="megatron-lm-2022")
    assert n_pieces(whole, params, 8).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("precision", "grads", "weights"), [("bf16", 4, 2), ("bf16-grads", 2, 2), ("fp32", 4, 4)]
)
def test_wire_times_are_pieces_of_one_collective(toy_problem, precision, grads, weights):
    problem = toy_problem(precision=precision)
    group = place_group(16, 4, problem.pool, problem.fabric)
    params, pieces = np.array(1e9), np.array(25.0)
    for zero in range(4):
        found = data_parallel_times(problem, group, params, pieces, zero)
        name = "reduce-scatter" if zero else "all-reduce"
        piece = collective_s(name, grads * 40e6, group, problem.pool)
        assert found.reduce_piece_s == piece
        assert found.reduce_s == 25 * piece
        gather = collective_s("all-gather", weights * 40e6, group, problem.pool) if zero else 0.0
        assert found.gather_piece_s == gather
        assert found.gather_s == 25 * gather


@pytest.mark.parametrize(
    ("total", "piece", "window", "pp", "vpp", "m", "exposed"),
    [
        (10.0, 1.0, 4.0, 1, 1, 1, 6.0),  # what outlasts one backward
        (3.0, 1.0, 4.0, 1, 1, 1, 1.0),  # the last piece always
        (10.0, 1.0, 4.0, 4, 2, 8, 3.0),  # one chunk of two: (10 - 4)/2; overall 10 - 2 * 5 = 0
        (20.0, 1.0, 4.0, 4, 2, 8, 10.0),  # overall: 20 - 2 (1 + 4) = 10 > 8
        (20.0, 1.0, 4.0, 4, 2, 2, 14.0),  # only two micro-batches: 20 - 2 (1 + 2)
        (0.5, 1.0, 4.0, 1, 1, 1, 0.5),  # never more than all of it
    ],
)
def test_what_one_backward_hides(total, piece, window, pp, vpp, m, exposed):
    assert exposed_once_s(total, piece, window, pp, vpp, m) == pytest.approx(exposed)


@pytest.mark.parametrize(
    ("total", "piece", "window", "exposed"),
    [(10.0, 1.0, 4.0, 6.0), (10.0, 1.0, 20.0, 1.0), (0.5, 1.0, 4.0, 0.5), (10.0, 1.0, 0.0, 10.0)],
)
def test_what_a_micro_batch_hides(total, piece, window, exposed):
    assert exposed_each_s(total, piece, window) == pytest.approx(exposed)


@given(total=seconds, share=st.floats(0.01, 1.0), window=seconds, more=seconds)
def test_a_longer_window_never_exposes_more(total, share, window, more):
    piece = share * total
    for pp, vpp, m in [(1, 1, 4), (4, 2, 8), (8, 4, 8)]:
        short = exposed_once_s(total, piece, window, pp, vpp, m)
        assert exposed_once_s(total, piece, window + more, pp, vpp, m) <= short + 1e-12
        assert piece - 1e-12 <= short <= total + 1e-12
    short = exposed_each_s(total, piece, window)
    assert exposed_each_s(total, piece, window + more) <= short + 1e-12
    assert piece - 1e-12 <= short <= total + 1e-12


@pytest.mark.parametrize("zero", range(4))
def test_overlap_hides_and_its_absence_does_not(toy_problem, plain_layout, zero):
    with_overlap = toy_problem(gbs=64)
    without = replace(with_overlap, stack=replace(STACKS["fused"], dp_overlap=False))
    layout = plain_layout(with_overlap, dp=32, zero=zero)
    hidden, open_ = (break_down(p, layout) for p in (with_overlap, without))
    assert 0 < hidden.time_s["dp"] < open_.time_s["dp"]
    assert hidden.time_s["overlap"] > open_.time_s["overlap"] == 0.0
    waits = sum(t.time_s for t in open_.transfers if t.axis == "dp")
    assert open_.time_s["dp"] == pytest.approx(waits)
