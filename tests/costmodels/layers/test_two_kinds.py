"""A model of two kinds of layers, worked out by hand: weight gradients that wait are per kind."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from costmodels.breakdown import break_down, pipeline_run, virtual_weight_grad_times
from costmodels.layers.compute import ForwardBackward
from costmodels.layers.dense import DENSE, dense_terms
from costmodels.layers.kinds import LAYER_KINDS, layer_run, register_layer_kind
from costmodels.layers.layer_kind import KindTerms, LayerInputs
from costmodels.schedule.pipeline import PipelineRun, simulate_s
from costmodels.step import stage_times
from tests.costmodels.conftest import TOY_MODEL

DENSE_S = {"forward": 3e-3, "backward": 7e-3, "weight_grad": 2e-3}
HEAVY_S = {"forward": 5e-3, "backward": 13e-3, "weight_grad": 6e-3}


def _timed(inputs: LayerInputs, seconds: dict[str, float]) -> KindTerms:
    ones = np.ones_like(inputs.tokens)
    layer = ForwardBackward(seconds["forward"] * ones, seconds["backward"] * ones)
    plain = dense_terms(inputs)
    return replace(plain, layer=layer, weight_grad_s=seconds["weight_grad"] * ones)


@pytest.fixture
def two_kinds() -> Iterator[None]:
    for name, seconds in (("light", DENSE_S), ("heavy", HEAVY_S)):
        register_layer_kind(
            replace(
                DENSE,
                name=name,
                title=f"{name} layer",
                terms=lambda inputs, seconds=seconds: _timed(inputs, seconds),
            )
        )
    yield
    for name in ("light", "heavy"):
        del LAYER_KINDS[name]


@pytest.fixture
def shape(two_kinds: None):
    """Eight layers: six light ones, then two heavy ones."""
    runs = (layer_run("light", 6), layer_run("heavy", 2))
    return replace(TOY_MODEL, layers=8, layer_runs=runs)


@pytest.mark.parametrize(("schedule", "vpp"), [("zb-h1", 1), ("zb-v", 2), ("dualpipe-v", 2)])
def test_each_stage_waits_for_its_own_layers(schedule, vpp, shape, toy_problem, plain_layout):
    problem = toy_problem(shape, gbs=16)
    layout = plain_layout(problem, pp=2, vpp=vpp, schedule=schedule)
    rows = break_down(problem, layout).rows
    head = rows.layers.head_weight_grad_s.item()
    deferred_s = virtual_weight_grad_times(rows, layout)
    # Stages of four layers: 4 x 2 ms, then 2 x 2 + 2 x 6 ms; of two: 4, 4, 4 and 12 ms.
    by_hand = [8e-3, 16e-3 + head] if vpp == 1 else [4e-3, 4e-3, 4e-3, 12e-3 + head]
    assert deferred_s == pytest.approx(by_hand, rel=1e-12)
    # By rank, as the ranking takes it: in a V rank 0 has the first stage and the last.
    ranks = [8e-3, 16e-3 + head] if vpp == 1 else [16e-3 + head, 8e-3]
    assert stage_times(rows).weight_grad_s.ravel() == pytest.approx(ranks, rel=1e-12)


def test_the_simulated_pipeline_fills_with_what_waits(shape, toy_problem, plain_layout):
    problem = toy_problem(shape, gbs=16)
    layout = plain_layout(problem, pp=2, schedule="zb-h1")
    rows = break_down(problem, layout).rows
    forward, backward = (12e-3, 16e-3), (28e-3, 40e-3)
    both = (8e-3, 16e-3), (8e-3, 8e-3)
    own, first = (
        simulate_s(PipelineRun("zb-h1", 2, 1, 16, forward, backward, 0.0, x)) for x in both
    )
    # Rank 1 starts with the first forward of rank 0 behind it and is never idle: F 16, B 24 and
    # W 16 ms of 16 micro-batches. Rank 0 ends 4 ms before it, with B 20 and W 8 ms of the last.
    assert own == pytest.approx(12e-3 + 16 * 56e-3, rel=1e-9)
    # With light layers everywhere, B of rank 1 were 32 ms, and rank 0 had to wait for the last.
    assert first == pytest.approx(12e-3 + 16 * 48e-3 + 14 * 8e-3 + 28e-3, rel=1e-9)
    run = pipeline_run(rows, layout)
    assert run.weight_grad_s == tuple(virtual_weight_grad_times(rows, layout))
    assert rows.layers.weight_grad_s.item() == DENSE_S["weight_grad"]


def test_one_kind_is_as_it_was(toy_problem, plain_layout):
    problem = toy_problem(replace(TOY_MODEL, layers=8), gbs=16)
    layout = plain_layout(problem, pp=2, schedule="zb-h1")
    rows = break_down(problem, layout).rows
    one, head = rows.layers.weight_grad_s.item(), rows.layers.head_weight_grad_s.item()
    assert virtual_weight_grad_times(rows, layout) == [4 * one, 4 * one + head]
