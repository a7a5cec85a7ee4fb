"""Attention of encoders and what stands before their head, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.comm import context_parallel
from costmodels.comm.context_parallel import ContextSplit
from costmodels.examples import LLAMA3_8B
from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.kinds import LAYER_KINDS, layer_run
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.layers.sublayers.bidirectional import two_sided_keys, two_sided_run_keys
from costmodels.modes import ModeRows
from costmodels.parameters import total_params
from costmodels.shapes import WindowShape

ONE = np.ones(1, dtype=np.int32)
ENCODER = replace(LLAMA3_8B, layer_runs=(layer_run("bidirectional+dense", 32),))


def terms_of(problem, kind: str, cp: int = 1, cp_comm: int = 0):
    split = SplitDegrees(ONE, cp * ONE, ONE, ONE, cp_comm * ONE)
    tokens = np.full(1, problem.job.seq_len / cp)
    return LAYER_KINDS[kind].terms(LayerInputs(problem, split, tokens, ModeRows.of_sp(0 * ONE)))


@pytest.mark.parametrize(("size", "seq_len"), [(1, 7), (5, 8), (13, 8), (15, 8), (129, 512)])
def test_keys_of_a_window_on_both_sides_are_its_pairs(size, seq_len):
    reach = (size - 1) // 2
    pairs = sum(abs(i - j) <= reach for i in range(seq_len) for j in range(seq_len))
    assert two_sided_keys(size, seq_len) * seq_len == pytest.approx(pairs, rel=1e-12)


def test_flops_of_an_encoder_have_the_whole_square():
    plain, whole = (model_flops_per_token(x, 8192) for x in (LLAMA3_8B, ENCODER))
    # 4 FLOPs an element of 4096 and a key, 32 layers, three times: 8192 keys, not 4096.
    assert whole - plain == pytest.approx(32 * 3 * 4 * 4096 * 4096, rel=1e-12)
    runs = (layer_run("bidirectional-window+dense", 32),)
    windowed = replace(LLAMA3_8B, layer_runs=runs, window=WindowShape(129))
    fewer = 8192 - (129 - 64 * 65 / 8192)
    assert whole - model_flops_per_token(windowed, 8192) == pytest.approx(
        32 * 3 * 4 * 4096 * fewer, rel=1e-12
    )


def test_parameters_are_those_of_causal_layers():
    assert total_params(ENCODER, 8192) == total_params(LLAMA3_8B, 8192)


def test_the_core_does_twice_the_products_at_the_rate_of_twice_the_keys(toy_problem):
    problem = toy_problem(ENCODER, seq_len=2048)
    whole, causal = (terms_of(problem, x) for x in ("bidirectional+dense", "dense"))
    eff = problem.pool.accelerator.efficiency
    half = eff.attention_seq_half
    share = 2.0 * (2048 / (2048 + half)) / (4096 / (4096 + half))
    for way in ("forward_s", "backward_s"):
        ours, theirs = (
            getattr(x.attention, way).item() - eff.kernel_latency_s for x in (whole, causal)
        )
        assert ours == pytest.approx(share * theirs, rel=1e-9)
    assert whole.kept_bytes == pytest.approx(causal.kept_bytes, rel=1e-12)
    assert whole.linear.total_s == pytest.approx(causal.linear.total_s, rel=1e-12)


def test_a_window_runs_its_tiles(toy_problem):
    runs = (layer_run("bidirectional-window+dense", 32),)
    problem = toy_problem(
        replace(LLAMA3_8B, layer_runs=runs, window=WindowShape(129)), seq_len=8192
    )
    narrow, whole = (
        terms_of(problem, x) for x in ("bidirectional-window+dense", "bidirectional+dense")
    )
    keys = two_sided_run_keys(two_sided_keys(129, 8192), 8192)
    assert keys == pytest.approx(129 - 64 * 65 / 8192 + 128, rel=1e-12)
    eff = problem.pool.accelerator.efficiency
    half, launch = eff.attention_seq_half, eff.kernel_latency_s
    slower = (16384 / (16384 + half)) / (2 * keys / (2 * keys + half))
    ours, theirs = (x.attention.forward_s.item() - launch for x in (narrow, whole))
    assert ours == pytest.approx(keys / 8192 * slower * theirs, rel=1e-9)


def test_the_ring_of_an_encoder_writes_all_rows(toy_problem):
    problem = toy_problem(ENCODER, seq_len=8192)
    split, tokens = ContextSplit(ONE, 4 * ONE, context_parallel.P2P * ONE), np.full(1, 2048.0)
    causal, whole = (
        context_parallel.merge_times(problem, split, tokens, keys).forward_s.item()
        for keys in (0.0, 8192.0)
    )
    part = problem.pool.accelerator
    launches = 4 * part.efficiency.kernel_latency_s
    assert whole - launches == pytest.approx(4 / 3 * (causal - launches), rel=1e-12)
    # 6 bytes an element of 4096 and a kernel of four, 2048 tokens.
    moved = 6 * 4 * 4096 * 2048 / (part.hbm_bytes_per_s * part.efficiency.hbm_frac)
    assert whole == pytest.approx(moved + launches, rel=1e-12)


def test_kernels_of_the_ring_have_the_rate_of_their_keys(toy_problem):
    problem = toy_problem(ENCODER, seq_len=8192)
    ring = terms_of(problem, "bidirectional+dense", 4, context_parallel.P2P)
    split, tokens = ContextSplit(ONE, 4 * ONE, context_parallel.P2P * ONE), np.full(1, 2048.0)
    merge = context_parallel.merge_times(problem, split, tokens, 8192.0)
    eff, peak = problem.pool.accelerator.efficiency, problem.pool.accelerator.peak_flops_per_s
    # 4 s h_q FLOPs a token, kernels over 2048 keys with the rate of causal sequences of 4096.
    flops, rate = 4 * 8192 * 4096 * 2048, peak["bf16"] * 4096 / (4096 + eff.attention_seq_half)
    frac = next(iter(eff.attention_frac.values()))[0]
    expected = flops / (rate * frac) + 4 * eff.kernel_latency_s + merge.forward_s.item()
    assert ring.attention.forward_s.item() == pytest.approx(expected, rel=1e-6)


def test_a_layer_before_the_head_has_parameters_and_products():
    shape = replace(ENCODER, head_transform=True)
    assert total_params(shape, 8192) - total_params(ENCODER, 8192) == 4096 * 4096 + 4096
    more = model_flops_per_token(shape, 8192) - model_flops_per_token(ENCODER, 8192)
    assert more == pytest.approx(6 * 4096 * 4096, rel=1e-9)
