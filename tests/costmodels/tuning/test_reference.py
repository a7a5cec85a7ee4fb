"""A reference beside the model: forward twice, weights a second time, a gather more."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.breakdown import break_down
from costmodels.examples import LLAMA3_8B
from costmodels.layers.layer_kind import SplitDegrees
from costmodels.layers.layer_terms import layer_terms
from costmodels.modes import ModeRows
from costmodels.plans import PlanTable
from costmodels.shape_terms import shape_terms
from costmodels.step import join, memory_terms
from costmodels.tuning.records import TuningJob

ONE = np.ones(1, dtype=np.int32)


def referenced(problem, **job):
    return replace(problem, job=replace(problem.job, task="dpo", has_reference=True, **job))


def test_every_forward_runs_twice_and_no_backward(toy_problem):
    problem = toy_problem()
    plain, twice = (
        layer_terms(x, SplitDegrees.of_tp(2 * ONE), ONE, ModeRows.of_sp(ONE))
        for x in (problem, referenced(problem))
    )
    for name in ("linear", "attention", "elementwise", "head", "embedding", "layer"):
        one, two = getattr(plain, name), getattr(twice, name)
        assert two.forward_s == pytest.approx(2 * one.forward_s), name
        assert two.backward_s == one.backward_s, name
    assert twice.tp_forward.exposed_s == 2 * plain.tp_forward.exposed_s
    assert twice.recompute_full_s == plain.recompute_full_s
    assert twice.kept_bytes == plain.kept_bytes


def test_its_weights_lie_beside_the_models(toy_problem, plain_layout):
    problem = referenced(toy_problem(LLAMA3_8B))
    layouts = [plain_layout(problem, dp=8, zero=zero) for zero in (1, 3)]
    table = PlanTable.from_layouts(layouts)
    terms = shape_terms(problem, table.shapes, table.shardings)
    assert terms.frozen_bytes[:, 0, 0].tolist() == [2 * 8030261248, 2 * 8030261248 / 8]
    states = memory_terms(join(problem, terms, table))["states"][0]
    alone = replace(problem, job=replace(problem.job, has_reference=False))
    terms = shape_terms(alone, table.shapes, table.shardings)
    before = memory_terms(join(alone, terms, table))["states"][0]
    assert (states - before).tolist() == [2 * 8030261248, 2 * 8030261248 / 8]


def test_adapters_are_off_for_it(toy_problem, plain_layout):
    tuning = TuningJob(8, ("q", "v"))
    problem = toy_problem()
    alone = replace(problem, job=replace(problem.job, task="lora", tuning=tuning))
    both = referenced(problem, tuning=tuning)
    layout = plain_layout(problem, dp=8, zero=1)
    priced = [break_down(x, layout) for x in (alone, both)]
    assert priced[0].peak_bytes == priced[1].peak_bytes
    assert priced[1].step_s > 1.3 * priced[0].step_s


def test_zero_3_gathers_three_times_a_micro_batch(toy_problem, plain_layout):
    problem = toy_problem(LLAMA3_8B, gbs=16)
    layout = plain_layout(problem, dp=8, zero=3)
    calls, sizes = [], []
    for x in (problem, referenced(problem)):
        (gather,) = [t for t in break_down(x, layout).transfers if t.collective == "all-gather"]
        calls.append(gather.n_calls)
        sizes.append(gather.time_s)
    assert calls[1] == 1.5 * calls[0]
    assert sizes[1] == pytest.approx(1.5 * sizes[0])
