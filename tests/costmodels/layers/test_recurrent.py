"""Mamba-2 layers and gated delta nets, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.axes import RECOMPUTE_MODULES
from costmodels.examples import LLAMA3_8B
from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.kinds import LAYER_KINDS, layer_run
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.modes import ModeRows
from costmodels.parameters import active_params, total_params
from costmodels.shapes import DeltaNetShape, Mamba2Shape

ONE = np.ones(1, dtype=np.int32)
TP = np.array([1, 2, 4, 8], dtype=np.int32)
MAMBA = Mamba2Shape(heads=128, head_dim=64, groups=8, state=128, conv=4, chunk=128)
DELTA = DeltaNetShape(k_heads=16, v_heads=32, k_dim=128, v_dim=128, conv=4, chunk=64)
# A model as Nemotron-H has them: 24 Mamba-2 layers, 4 of attention, 24 MLPs.
HYBRID = replace(
    LLAMA3_8B,
    layers=52,
    ffn=21504,
    gated=False,
    vocab=131072,
    mamba2=MAMBA,
    layer_runs=tuple(
        layer_run(name, count)
        for name, count in (("mamba2+none", 24), ("none+dense", 24), ("attention+none", 4))
    ),
)
# One as Qwen3-Next: three delta nets to one attention, experts everywhere.
NEXT = replace(
    LLAMA3_8B,
    layers=48,
    hidden=2048,
    heads=16,
    kv_heads=2,
    head_dim=256,
    n_experts=512,
    top_k=10,
    expert_ffn=512,
    shared_ffn=512,
    delta_net=DELTA,
    layer_runs=tuple(layer_run(name, n) for name, n in (("gdn+moe", 3), ("moe", 1))) * 12,
)


def terms_of(problem, kind: str, tp=ONE, cp: int = 1, sp: int = 0):
    ones = np.ones_like(tp)
    split = SplitDegrees(tp, cp * ones, ones, ones, (3 if cp > 1 else 0) * ones)
    tokens = np.full(len(tp), problem.job.seq_len / cp)
    return LAYER_KINDS[kind].terms(LayerInputs(problem, split, tokens, ModeRows.of_sp(sp * ones)))


def test_parameters_of_a_mamba_layer():
    kind, h, d, g = LAYER_KINDS["mamba2+none"], 4096, 8192, 1024
    in_proj, out_proj = h * (2 * d + 2 * g + 128), d * h
    conv, vectors = 5 * (d + 2 * g), 3 * 128 + d  # four taps and a bias; A, D, dt; gated norm
    assert kind.params(HYBRID, ONE).item() == in_proj + out_proj + conv + vectors + h
    assert kind.params(HYBRID, TP)[3] == (in_proj + out_proj + conv + vectors) / 8 + h
    assert kind.replicated_params(HYBRID) == h
    assert kind.linear_weights(HYBRID, ONE).item() == in_proj + out_proj


def test_parameters_of_a_delta_net():
    kind, h, k, v = LAYER_KINDS["gdn+none"], 2048, 2048, 4096
    in_proj, out_proj = h * (2 * k + 2 * v + 64), v * h
    conv, vectors = 4 * (2 * k + v), 2 * 32
    assert kind.params(NEXT, ONE).item() == in_proj + out_proj + conv + vectors + 128 + h
    assert kind.params(NEXT, TP)[1] == (in_proj + out_proj + conv + vectors) / 2 + 128 + h
    assert kind.replicated_params(NEXT) == 128 + h


def test_parameters_of_whole_models():
    mamba = 4096 * (3 * 8192 + 2048 + 128) + 5 * 10240 + 3 * 128 + 8192 + 4096
    attention, mlp = 4096 * (2 * 4096 + 2048) + 4096, 2 * 4096 * 21504 + 4096
    ends = 2 * 131072 * 4096 + 4096
    assert total_params(HYBRID, 8192) == 24 * (mamba + mlp) + 4 * attention + ends
    delta = 2048 * (2 * 2048 + 3 * 4096 + 64) + 4 * 8192 + 64 + 128 + 2048
    full = 2048 * (2 * 4096 + 2 * 512) + 2048
    experts = 3 * 2048 * 512
    moe = 2048 + 2048 * 512 + experts  # norm, router, shared expert
    ends = 2 * NEXT.vocab * 2048 + 2048
    plain = 36 * delta + 12 * full + 48 * moe + ends
    assert total_params(NEXT, 4096) == plain + 48 * 512 * experts
    assert active_params(NEXT, 4096) == plain + 48 * 10 * experts


def test_model_flops_are_those_that_megatron_counts():
    # training.py, mamba_layer_flops with d_in = 2 h, as here.
    h, d, n = 4096, 8192, 128
    mamba = 2 * h * (2 * d + 2 * 8 * n + 128) + 7 * d * n + 2 * d * h
    attention = 4 * h * (h + h / 4) + 2 * 8192 * h
    flops = 24 * mamba + 4 * attention + 24 * 4 * h * 21504 + 2 * h * 131072
    assert model_flops_per_token(HYBRID, 8192) == pytest.approx(3 * flops, rel=1e-12)
    # gdn_layer_flops, moe_layer_flops.
    h, k, v = 2048, 2048, 4096
    delta = 2 * (h * (2 * k + 2 * v + 64) + 4 * (2 * k + v) + 32 * 128**2 * 4 + h * v)
    attention = 4 * h * 2 * (h + h / 8) + 2 * 4096 * h * 2
    moe = 6 * h * 512 * 11
    vocab = -(-NEXT.vocab // 128) * 128
    flops = 36 * delta + 12 * attention + 48 * moe + 2 * h * vocab
    assert model_flops_per_token(NEXT, 4096) == pytest.approx(3 * flops, rel=1e-12)


def test_kept_bytes_are_the_saved_tensors(toy_problem):
    problem, n = toy_problem(HYBRID, seq_len=4096), 4096
    h, d, g, heads, groups = 4096, 8192, 1024, 128, 8
    # Input and output of the norm; z x B C dt; out_x, y and its norm; rstd of 8 groups in fp32.
    saved = 4 * h + 2 * (2 * d + 2 * g + heads) + 3 * 2 * d + 4 * groups
    assert terms_of(problem, "mamba2+none").kept_bytes.item() == n * saved
    cut = 4 * h / 4 + (saved - 4 * h) / 4
    terms = terms_of(problem, "mamba2+none", np.array([4], dtype=np.int32), sp=1)
    assert terms.kept_bytes.item() == pytest.approx(n * cut, rel=1e-12)
    problem, h, k, v, a = toy_problem(NEXT, seq_len=4096), 2048, 2048, 4096, 32
    # The projection's output, whose view the convolution keeps; l2 norm; q, k, v, g in fp32, beta,
    # A; o, its norm, gate, input of the projection; input of g; fp32 numbers of three norms.
    saved = 4 * h + 2 * (2 * k + 2 * v + 2 * a) + 4 * k
    saved += 2 * (2 * a * 128 + v) + 4 * a + 2 * a + 2 * 64 * a
    saved += 4 * 2 * v + 2 * a + 4 * (16 + 16 + a)
    assert terms_of(problem, "gdn+none").kept_bytes.item() == n * saved


def test_a_scan_takes_as_long_as_its_bytes(toy_problem):
    problem, n = toy_problem(HYBRID, seq_len=4096), 4096
    part, eff = problem.pool.accelerator, problem.pool.accelerator.efficiency
    d, g, states, scores = 8192, 1024, 8192, 1024
    moved = 10 * d + 8 * g + 10 * states + 8 * scores
    flops = 2 * 128 * g + 128 * d + 4 * 128 * d
    rate = part.peak_flops_per_s["bf16"] * eff.gemm_frac / 2
    bandwidth = part.hbm_bytes_per_s * eff.hbm_frac
    expected = n * max(flops / rate, moved / bandwidth) + 5 * eff.kernel_latency_s
    core = terms_of(problem, "mamba2+none").attention
    assert core.forward_s.item() == pytest.approx(expected, rel=1e-12)
    moved = 32 * d + 16 * g + 30 * states + 28 * scores
    flops = 6 * 128 * g + 3 * 128 * d + 10 * 128 * d
    expected = n * max(flops / rate, moved / bandwidth) + 13 * eff.kernel_latency_s
    assert core.backward_s.item() == pytest.approx(expected, rel=1e-12)


def test_a_rule_of_a_delta_net_by_its_operands(toy_problem):
    problem, n = toy_problem(NEXT, seq_len=4096), 4096
    part, eff = problem.pool.accelerator, problem.pool.accelerator.efficiency
    e, v, square, scores = 32 * 128, 4096, 32 * 128 * 128, 32 * 64
    moved = 12 * e + 12 * v + 2 * scores + 4 * square / 64
    flops = 6 * square + 6 * 64 * e + 4 * 64 * v
    rate = part.peak_flops_per_s["bf16"] * eff.gemm_frac / 2
    expected = n * max(flops / rate, moved / (part.hbm_bytes_per_s * eff.hbm_frac))
    core = terms_of(problem, "gdn+none").attention
    assert core.forward_s.item() - 6 * eff.kernel_latency_s == pytest.approx(expected, rel=1e-12)


def test_heads_for_sequence_over_cp(toy_problem):
    from costmodels.comm.collectives import collective_s
    from costmodels.comm.placement import place_group

    problem = toy_problem(HYBRID, seq_len=8192)
    two = np.array([2], dtype=np.int32)
    group = place_group(two, ONE, problem.pool, problem.fabric)
    n, hops_s = 4096, problem.stack.tp_hop_s
    widths = (8192, 8192, 1024, 1024, 128, 8192)  # z, x, B, C, dt; y
    expected = sum(
        collective_s("all-to-all", np.array([2.0 * n * w]), group, problem.pool).item() + hops_s
        for w in widths
    )
    terms = terms_of(problem, "mamba2+none", cp=2)
    for way in (terms.cp_forward, terms.cp_backward):
        assert way.exposed_s.item() == pytest.approx(expected, rel=1e-12)
    # With 16 ranks over 8 groups each group is on two of them: twice the B and C.
    more = terms_of(problem, "mamba2+none", cp=16).kept_bytes.item() / 512
    less = terms_of(problem, "mamba2+none", cp=8).kept_bytes.item() / 1024
    assert more - less == pytest.approx(2 * 2 * 1024 + 4 * 8, rel=1e-9)


def test_tp_of_a_layer_of_one_sublayer_is_one_block(toy_problem):
    problem = toy_problem(HYBRID, seq_len=4096)
    four = np.array([4], dtype=np.int32)
    names = ("mamba2+none", "attention+none", "none+dense")
    halves = [terms_of(problem, x, four, sp=1).tp_forward.total_s.item() for x in names]
    whole = terms_of(problem, "dense", four, sp=1).tp_forward.total_s.item()
    assert halves == pytest.approx([whole / 2] * 3, rel=1e-12)


def test_scratch_gradients_once_for_every_shape_of_weights(toy_problem):
    problem = toy_problem(HYBRID, seq_len=4096)
    terms = [terms_of(problem, name) for name in HYBRID.kinds]
    mamba = 2 * 4096 * (3 * 8192 + 2048 + 128)
    attention, mlp = 2 * 4096 * (2 * 4096 + 2048), 2 * 4096 * 2 * 21504
    assert HYBRID.kinds == ("mamba2+none", "none+dense", "attention+none")
    assert [x.scratch_bytes.item() for x in terms] == [mamba, mlp, attention]
    problem = toy_problem(NEXT, seq_len=4096)
    gdn, full = (terms_of(problem, name).scratch_bytes.item() for name in ("gdn+moe", "moe"))
    assert gdn == 2 * 2048 * (2 * 2048 + 3 * 4096 + 64)
    assert full == 2 * 2 * 2048 * 3 * 512  # routed and shared


def test_the_output_norm_of_a_delta_net_runs_again(toy_problem):
    problem = toy_problem(replace(NEXT, layer_runs=(layer_run("gdn+none", 4),)))
    part, stack = problem.pool.accelerator, problem.stack
    tokens, index = problem.job.seq_len, RECOMPUTE_MODULES.index("gdn_norm_out")
    modules = terms_of(problem, "gdn+none", TP).modules
    v, a = 32 * 128 / TP, 32 / TP
    # 2 v of the norm's output, 2 v of the projection's input, 4 bytes a head and token.
    assert modules.attention_bytes[index] == pytest.approx(tokens * (4 * v + 4 * a))
    rate = part.hbm_bytes_per_s * part.efficiency.hbm_frac / stack.elementwise_factor
    again = tokens * 10 * v / rate + 2 * part.efficiency.kernel_latency_s
    assert modules.forward_s[index] == pytest.approx(again)
    assert not modules.mlp_bytes[index].any()
    # One of its two all-to-alls over cp is in it: v elements, of 2 (k + v + a) + v.
    whole = terms_of(problem, "gdn+none", ONE, cp=2)
    waits = whole.modules.forward_s[index] - again[0] / 2 - part.efficiency.kernel_latency_s
    assert 0 < waits.item() < whole.cp_forward.total_s.item() / 2


def test_other_mixers_have_no_such_group(toy_problem):
    index = RECOMPUTE_MODULES.index("gdn_norm_out")
    assert not terms_of(toy_problem(HYBRID), "mamba2+none").modules.forward_s[index].any()
    assert LAYER_KINDS["gdn+moe"].modules(NEXT)[0] == "gdn_norm_out"
    assert "gdn_norm_out" not in LAYER_KINDS["kda+moe"].modules(NEXT)
