"""Memory of a step that a compiler lays out: counted by hand, the most of its moments."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.breakdown import break_down, join_one
from costmodels.examples import LLAMA3_8B, MIXTRAL_8X7B
from costmodels.layers.params import expert_params
from costmodels.memory import MicroBatch, layer_activation_bytes, param_bytes_kept, rebuilt_bytes
from costmodels.plans import Layout
from costmodels.precision import RECIPES
from costmodels.problem import Problem
from costmodels.stacks import FUSED, STACKS
from costmodels.step import peak_bytes

XLA = STACKS["maxtext"]
LAYER = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
MATRIX, NORM = 128256 * 4096, 4096
"""Of embedding and of head; of the norm before the head."""
TOKENS = 2048
FOUR = replace(LLAMA3_8B, layers=4)
KEPT = 4 * 4096 + 4 * 4096 + 4 * 1024 + 4 * 14336 + 4 * 32
"""Of a token and layer: inputs of two norms, query and context, key and value, both products of
the MLP, the log-sum-exp."""
BACKWARD = KEPT + 2 * (2 * 4096 + 14336) + 6 * (14336 + 4096)
"""What a layer holds of a token while it runs backward: all of that, what is built again, and
gradients."""


@pytest.fixture
def working(toy_problem, toy_pool):
    """Return what the peak holds beside states, activations and logits, bytes."""

    def find(zero: int = 3, n: int = 8, gbs: int = 0, recompute: str = "full", **more) -> float:
        problem = toy_problem(
            shape=more.pop("shape", FOUR),
            pool=toy_pool(8),
            stack=XLA,
            seq_len=TOKENS,
            gbs=gbs or n,
        )
        return stage(problem, zero, n, recompute, **more)["working"]

    return find


def stage(problem: Problem, zero: int, n: int, recompute: str, **more: object) -> dict[str, float]:
    """Return the terms of a plan on n devices without tensor parallelism."""
    full = {"recompute": recompute, "recompute_layers": 4 if recompute == "full" else 0}
    base = {"n_devices": n, "tp": 1, "pp": 1, "vpp": 1, "split": "even", "mbs": 1, "dp": n}
    same = {"gbs": problem.job.global_batch, "sp": False, "schedule": "none", "stage_layers": (4,)}
    layout = Layout(**{**base, **same, **full, "zero": zero, **more})  # type: ignore[arg-type]
    found = break_down(problem, layout)
    assert found.peak_bytes == pytest.approx(peak_bytes(join_one(problem, layout)).item())
    return dict(found.stages[0])


def test_weights_and_moments_alone_stay_from_step_to_step(toy_problem, toy_pool):
    assert param_bytes_kept(RECIPES["bf16", "adam"], XLA) == (4.0, 4.0, 0.0, 8.0)
    assert param_bytes_kept(RECIPES["bf16", "adam"], FUSED) == (2.0, 2.0, 4.0, 12.0)
    problem = toy_problem(shape=FOUR, pool=toy_pool(8), stack=XLA, seq_len=TOKENS, gbs=8)
    n = 4 * LAYER + 2 * MATRIX + NORM
    found = {zero: stage(problem, zero, 8, "none")["states"] for zero in (0, 1, 3)}
    assert found == {0: 12.0 * n, 1: (4.0 + 8.0 / 8) * n, 3: 12.0 / 8 * n}


def test_layers_keep_outputs_of_products_alone():
    batch = MicroBatch(TOKENS, TOKENS)
    one = layer_activation_bytes(LLAMA3_8B, XLA, batch, 1, 0, 1).item()
    assert one / TOKENS == KEPT
    again = rebuilt_bytes(LLAMA3_8B, XLA, TOKENS, 1, 0).item()
    whole = layer_activation_bytes(LLAMA3_8B, FUSED, batch, 1, 0, 1).item()
    assert one + again == whole
    assert rebuilt_bytes(LLAMA3_8B, FUSED, TOKENS, 1, 0).item() == 0.0


def test_a_ring_sums_the_gradient_of_the_head_on_few_chips_and_it_is_whole_on_many(working):
    logits = 2 * TOKENS * 128256
    # Casts of the layers, the head gathered, the gradient of the logits beside them.
    assert working(n=8) == 2 * (4 * LAYER + NORM) / 8 + 2 * MATRIX + logits
    # Casts, the head gathered, and its gradient, which is whole too.
    assert working(n=64) == 2 * (4 * LAYER + NORM) / 64 + 4 * MATRIX


def test_the_backward_of_a_deep_model_is_the_peak(working):
    few = replace(LLAMA3_8B, vocab=1024, layers=4)
    logits = (2 * 1024 + 4 * 4096) * TOKENS
    n, matrix = 4 * LAYER + NORM, 1024 * 4096
    # Casts and fp32 gradients of the layers, three shards of the head's gradient, two matrices
    # gathered, and a layer that runs backward; the logits have gone.
    gathered = 2 * 2 * 4096 * 14336
    held = 6 * n / 8 + 3 * 2 * matrix / 8 + gathered + BACKWARD * TOKENS
    assert working(shape=few) == pytest.approx(held - logits, rel=1e-12)
    of_kept = held - (KEPT * TOKENS)  # its products are among what is stored
    assert working(shape=few, recompute="none") == pytest.approx(of_kept - logits, rel=1e-12)


def test_gradients_of_several_micro_batches_are_summed_beside(working):
    once, twice = working(gbs=8), working(gbs=16)
    # The sum in fp32, and the ends cast before the first micro-batch.
    assert twice - once == (4 * (4 * LAYER + NORM + 2 * MATRIX) + 2 * 2 * MATRIX) / 8


def test_whole_weights_are_cast_and_those_of_a_sharded_optimizer_stand_twice(working):
    logits, of_layers = (2 * 128256 + 4 * 4096) * TOKENS, 4 * LAYER + NORM
    held = 6 * of_layers + 2 * MATRIX + BACKWARD * TOKENS
    assert working(zero=0) == held - logits
    # Casts, a second copy of all weights, gradients sharded, the head's in three pieces.
    twice = 2 * of_layers + 4 * (of_layers + 2 * MATRIX)
    twice += (4 * of_layers + 3 * 2 * MATRIX) / 8 + BACKWARD * TOKENS
    assert working(zero=1) == twice - logits


def test_experts_of_a_layer_are_gathered_together(working):
    experts = replace(MIXTRAL_8X7B, layers=4, vocab=1024)
    one = expert_params(experts, np.array([1]), np.array([1])).item()
    assert one == 8 * 3 * 4096 * 14336
    cut = replace(experts, n_experts=4)
    more = working(shape=experts) - working(shape=cut)
    router = 4 * 4096 * 4  # of four experts and layers
    held = 6 * (4 * one / 2 + router) / 8 + 2 * one / 2
    assert more == pytest.approx(held + 8 * 4 * TOKENS, rel=1e-3)  # and scores of the router
