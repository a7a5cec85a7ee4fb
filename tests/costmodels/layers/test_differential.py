"""Differential attention by hand: Llama-3 8B with two softmaxes over pairs of heads."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.axes import RECOMPUTE_MODULES
from costmodels.comm import context_parallel
from costmodels.examples import LLAMA3_8B
from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.kinds import LAYER_KINDS, layer_run
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.modes import ModeRows
from costmodels.parameters import total_params

ONE = np.ones(1, dtype=np.int32)
MODEL = replace(LLAMA3_8B, layer_runs=(layer_run("differential+dense", 32),))
Q, KV, HEADS, WIDTH = 4096, 1024, 32, 128


def terms_of(problem, kind: str, tp: int = 1, cp: int = 1):
    split = SplitDegrees(tp * ONE, cp * ONE, ONE, ONE, context_parallel.P2P * ONE)
    tokens = np.full(1, problem.job.seq_len / cp)
    return LAYER_KINDS[kind].terms(LayerInputs(problem, split, tokens, ModeRows.of_sp(0 * ONE)))


def both(problem, **degrees):
    return (terms_of(problem, kind, **degrees) for kind in ("differential+dense", "dense"))


def test_four_vectors_of_a_head_more_a_layer():
    assert total_params(MODEL, 8192) - total_params(LLAMA3_8B, 8192) == 32 * 4 * WIDTH
    two = LAYER_KINDS["differential+dense"].params(MODEL, 2 * ONE).item()
    assert two - LAYER_KINDS["dense"].params(LLAMA3_8B, 2 * ONE).item() == 4 * WIDTH  # whole


def test_scores_and_values_are_multiplied_twice():
    more = model_flops_per_token(MODEL, 8192) - model_flops_per_token(LLAMA3_8B, 8192)
    # 32 layers, three passes, 4 FLOPs an element and a key, of which there are 4096 in the mean.
    assert more == pytest.approx(32 * 3 * 4 * Q * 4096, rel=1e-12)


@pytest.mark.parametrize("tp", [1, 2])
def test_kept_bytes(toy_problem, tp):
    ours, theirs = both(toy_problem(MODEL, seq_len=2048), tp=tp)
    # Cores 4 q and put together 4, difference 2, input of the projection 2, less 2 of attention's
    # one core; values repeated, 4 kv for 2; the second log-sum-exp, and one of a pair's norm.
    per_token = (4 + 4 + 2 + 2 - 2) * Q + (4 - 2) * KV + 4 * HEADS + 4 * HEADS / 2
    assert (ours.kept_bytes - theirs.kept_bytes).item() == 2048 * per_token / tp
    first = RECOMPUTE_MODULES.index("core_attn")
    dropped = (ours.modules.attention_bytes - theirs.modules.attention_bytes)[first]
    assert dropped.item() == 2048 * per_token / tp


def test_the_core_takes_twice_as_long(toy_problem):
    problem = toy_problem(MODEL, seq_len=2048)
    ours, theirs = both(problem)
    assert ours.attention.forward_s == pytest.approx(2 * theirs.attention.forward_s, rel=1e-12)
    assert ours.attention.backward_s == pytest.approx(2 * theirs.attention.backward_s, rel=1e-12)
    part, stack = problem.pool.accelerator, problem.stack
    rate = part.hbm_bytes_per_s * part.efficiency.hbm_frac / stack.elementwise_factor
    more = ours.elementwise.forward_s - theirs.elementwise.forward_s
    # Values 6; outputs 8, share 4, difference 6, norm 4, factor 4 of queries.
    assert more == pytest.approx(2048 * (26 * Q + 6 * KV) / rate, rel=1e-9)


def test_keys_and_values_are_exchanged_twice(toy_problem):
    ours, theirs = both(toy_problem(MODEL, seq_len=4096), cp=4)
    assert theirs.cp_forward.total_s > 0
    assert ours.cp_forward.total_s == pytest.approx(2 * theirs.cp_forward.total_s, rel=1e-12)
    assert ours.cp_backward.exposed_s == pytest.approx(2 * theirs.cp_backward.exposed_s, rel=1e-12)
