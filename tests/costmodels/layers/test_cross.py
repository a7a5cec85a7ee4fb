"""Cross attention by hand: alone, and behind attention to the own sequence."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.comm.context_parallel import P2P
from costmodels.comm.tensor_parallel import tensor_parallel_group, tp_collective_s
from costmodels.examples import LLAMA3_8B
from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.hardware_flops import recomputed_parts
from costmodels.layers.kinds import LAYER_KINDS, layer_run
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.modes import ModeRows
from costmodels.parameters import total_params
from costmodels.shapes import CrossShape

ONE = np.ones(1, dtype=np.int32)
H, F, KV, TOKENS, WIDTH = 4096, 14336, 1024, 512, 2048
CONTEXT = CrossShape(tokens=TOKENS, width=WIDTH)


def model(kind, **changes):
    runs = (layer_run(kind, LLAMA3_8B.layers),)
    return replace(LLAMA3_8B, layer_runs=runs, cross=CONTEXT, **changes)


def terms_of(problem, kind, tp=1, cp=1, sp=0):
    split = SplitDegrees(tp * ONE, cp * ONE, ONE, ONE, (cp > 1) * P2P * ONE)
    tokens = np.full(1, problem.job.seq_len / cp)
    return LAYER_KINDS[kind].terms(LayerInputs(problem, split, tokens, ModeRows.of_sp(sp * ONE)))


@pytest.mark.parametrize(
    ("kind", "own"), [("cross", 0), ("causal-cross", 1), ("bidirectional-cross", 1)]
)
def test_parameters_are_four_matrices_of_two_widths(kind, own):
    cross = 2 * H * H + 2 * WIDTH * KV
    attention = 2 * H * H + 2 * H * KV
    layer = cross + H + own * (attention + H) + 3 * H * F + H
    shape = model(f"{kind}+dense")
    assert total_params(shape, 8192) == 2 * 128256 * H + H + 32 * layer
    half = LAYER_KINDS[f"{kind}+none"].params(shape, 2 * ONE).item()
    assert half == (cross + own * attention) / 2 + (1 + own) * H


def test_biases_are_those_of_four_projections():
    plain, biased = (
        LAYER_KINDS["cross+none"].params(model("cross+none", bias=on), 2 * ONE).item()
        for on in (False, True)
    )
    assert biased - plain == (H + 2 * KV) / 2 + H


@pytest.mark.parametrize("seq_len", [256, 8192])
def test_flops_of_keys_and_values_are_those_of_the_context(seq_len):
    shape = model("cross+dense")
    layer = 2 * H * H + 2 * H * TOKENS + 2 * WIDTH * KV * TOKENS / seq_len + 3 * H * F
    expected = 6 * (32 * layer + 128256 * H)
    assert model_flops_per_token(shape, seq_len) == pytest.approx(expected, rel=1e-12)
    both = model("causal-cross+dense")
    own = 2 * H * H + 2 * H * KV + H * seq_len
    more = model_flops_per_token(both, seq_len) - model_flops_per_token(shape, seq_len)
    assert more == pytest.approx(6 * 32 * own, rel=1e-12)
    two_sided = model_flops_per_token(model("bidirectional-cross+dense"), seq_len)
    assert two_sided - model_flops_per_token(both, seq_len) == pytest.approx(
        6 * 32 * H * seq_len, rel=1e-12
    )


def test_a_layer_that_runs_again_makes_keys_and_values_again(plain_layout, toy_problem):
    shape = model("cross+none")
    whole = plain_layout(toy_problem(shape), recompute="full", recompute_layers=32)
    part = recomputed_parts(shape, 2048, whole)
    macs = 2 * H * H + 2 * H * TOKENS + 2 * WIDTH * KV * TOKENS / 2048
    assert [(x.n_layers, x.flops_per_token) for x in part] == [(32, 2 * macs)]


def test_it_keeps_queries_output_and_keys_of_the_context(toy_problem):
    problem = toy_problem(model("cross+none"), seq_len=2048)
    # q and output in 16 bits, log-sum-exp in 32; norm in and out; keys and values of 512 tokens.
    token, other = 2 * H + 2 * H + 4 * 32 + 4 * H, 4 * KV
    kept = terms_of(problem, "cross+none").kept_bytes.item()
    assert kept == pytest.approx(2048 * token + TOKENS * other, rel=1e-12)
    cut = terms_of(problem, "cross+none", cp=4).kept_bytes.item()
    assert cut == pytest.approx(512 * token + TOKENS * other, rel=1e-12)
    own = 4 * H + 4 * KV + 4 * 32 + 4 * H
    both = terms_of(toy_problem(model("causal-cross+none"), seq_len=2048), "causal-cross+none")
    assert both.kept_bytes.item() - kept == pytest.approx(2048 * own, rel=1e-12)


def test_scores_without_a_flash_kernel_are_those_of_the_context(toy_problem):
    shape = model("cross+none", flash_attention=False)
    problem = toy_problem(shape, seq_len=2048)
    flash = toy_problem(model("cross+none"), seq_len=2048)
    ours, plain = (terms_of(x, "cross+none") for x in (problem, flash))
    scores = (ours.kept_bytes - plain.kept_bytes).item() / 2048 + 4 * 32
    assert scores in (4 * 32 * TOKENS, 8 * 32 * TOKENS)  # in 16 bits twice, or in 32 besides
    assert ours.modules.attention_bytes[0].item() == pytest.approx(2048 * scores, rel=1e-12)


def test_the_core_runs_all_keys_of_the_context(toy_problem):
    problem = toy_problem(model("cross+none"), seq_len=2048)
    part = problem.pool.accelerator
    eff, flops = part.efficiency, 4 * TOKENS * H * 2048
    rate = part.peak_flops_per_s["bf16"] * (2 * TOKENS) / (2 * TOKENS + eff.attention_seq_half)
    frac = next(iter(eff.attention_frac.values()))[0]
    core = terms_of(problem, "cross+none").attention.forward_s.item()
    assert core == pytest.approx(flops / (rate * frac) + eff.kernel_latency_s, rel=1e-9)


@pytest.mark.parametrize("sp", [0, 1])
def test_a_context_is_gathered_and_its_gradient_summed_over_tp(toy_problem, sp):
    problem = toy_problem(model("cross+none"), seq_len=2048)
    ours = terms_of(problem, "cross+none", tp=8, sp=sp)
    group = tensor_parallel_group(problem, 8 * ONE)
    name, times = ("all-gather", 2) if sp else ("all-reduce", 1)
    one = tp_collective_s(problem, name, 2.0 * 2048 * H, group).item()
    half = TOKENS * WIDTH / (2 * 2048 * H)
    assert ours.tp_forward.total_s.item() == pytest.approx(times * (1 + half) * one, rel=1e-9)
    blocks = LAYER_KINDS["cross+dense"].blocks_at(problem.shape, 2048)
    assert blocks == 2 + half


def test_context_parallel_ranks_exchange_nothing_for_it(toy_problem):
    problem = toy_problem(model("causal-cross+none"), seq_len=2048)
    alone, both = (terms_of(problem, kind, cp=4) for kind in ("cross+none", "causal-cross+none"))
    plain = terms_of(toy_problem(LLAMA3_8B, seq_len=2048), "dense", cp=4)
    assert alone.cp_forward.total_s.item() == alone.cp_backward.total_s.item() == 0.0
    assert both.cp_forward.total_s.item() == plain.cp_forward.total_s.item() > 0.0
