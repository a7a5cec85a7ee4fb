"""Kimi delta attention, linear attention, sparse attention with an indexer, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.examples import DEEPSEEK_V3, LLAMA3_8B
from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.kinds import LAYER_KINDS, layer_run
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.layers.params import expert_params
from costmodels.layers.sublayers.attention import window_keys
from costmodels.modes import ModeRows
from costmodels.shapes import DeltaNetShape, FactoredShape, IndexerShape, LinearShape

ONE = np.ones(1, dtype=np.int32)
TWO = 2 * ONE
DELTA = DeltaNetShape(k_heads=32, v_heads=32, k_dim=128, v_dim=128, conv=4, chunk=64)


def model(kind: str, plain=LLAMA3_8B, **sizes):
    runs = (layer_run(kind, plain.layers),)
    return replace(plain, layer_runs=runs, **sizes)


def terms_of(problem, kind: str, tp=ONE):
    split = SplitDegrees(tp, ONE, ONE, ONE, 0 * ONE)
    tokens = np.full(1, float(problem.job.seq_len))
    return LAYER_KINDS[kind].terms(LayerInputs(problem, split, tokens, ModeRows.of_sp(0 * ONE)))


def test_kimi_delta_attention(toy_problem):
    kind, shape, h, w, a = (
        LAYER_KINDS["kda+none"],
        model("kda+none", delta_net=DELTA),
        4096,
        4096,
        32,
    )
    linear = h * (4 * w + a) + 2 * h * 128 + 2 * 128 * w  # q k v o, beta; two matrices twice
    vectors = 4 * 3 * w + w + a + 128 + h  # conv; dt bias, A; norm of heads, norm before
    assert kind.params(shape, ONE).item() == linear + vectors
    sharded = h * (4 * w + a) + 2 * 128 * w + 4 * 3 * w + w + a
    assert kind.params(shape, TWO).item() == sharded / 2 + 2 * h * 128 + 128 + h
    assert kind.replicated_params(shape) == 2 * h * 128 + 128 + h
    macs = kind.macs(shape)
    assert macs.projections == linear
    assert macs.core_macs(8192) == 4 * 3 * w + 4 * 32 * 128 * 128
    # conv inputs; q, k, v; decays before their gate; beta twice; two matrices of scores; inner of
    # decays and of the gate; output, gate, input of the projection; fp32 numbers of three norms.
    saved = 4 * h + 2 * 3 * w + 4 * w + 2 * w + 2 * w + 6 * a + 4 * 64 * a + 4 * 128 + 6 * w
    saved += 4 * (32 + 32 + a)
    problem = toy_problem(shape, seq_len=2048)
    assert terms_of(problem, "kda+none").kept_bytes.item() == 2048 * saved
    gdn = terms_of(toy_problem(model("gdn+none", delta_net=DELTA)), "gdn+none")
    kda = terms_of(toy_problem(shape), "kda+none")
    assert kda.attention.total_s > gdn.attention.total_s  # decays of every element


def test_kimi_delta_attention_with_full_gates(toy_problem):
    sizes = replace(DELTA, full_gates=True)
    kind, h, w, a = LAYER_KINDS["kda+none"], 4096, 4096, 32
    shape, narrow = model("kda+none", delta_net=sizes), model("kda+none", delta_net=DELTA)
    linear = h * (6 * w + a)  # q k v o, decays, gate; beta
    vectors = 4 * 3 * w + w + a
    assert kind.params(shape, ONE).item() == linear + vectors + 128 + h
    assert kind.params(shape, TWO).item() == (linear + vectors) / 2 + 128 + h
    assert kind.replicated_params(shape) == 128 + h
    assert kind.macs(shape).projections == linear
    assert kind.macs(shape).core_macs(8192) == kind.macs(narrow).core_macs(8192)
    assert sum(m.rows * m.columns * m.count for m in kind.matrices(shape)) == linear
    full, two = (terms_of(toy_problem(x, seq_len=2048), "kda+none") for x in (shape, narrow))
    # The inner of decays and gate, two of 128 elements in 16 bits, is no longer kept.
    assert two.kept_bytes.item() - full.kept_bytes.item() == 2048 * 4 * 128
    assert full.linear.total_s.item() > two.linear.total_s.item()


def test_linear_attention(toy_problem):
    sizes = LinearShape(heads=32, head_dim=128, gate=True, chunk=256)
    kind, shape, h, w = LAYER_KINDS["linear+none"], model("linear+none", linear=sizes), 4096, 4096
    assert kind.params(shape, ONE).item() == 5 * h * w + w + h
    assert kind.params(shape, TWO).item() == (5 * h * w + w) / 2 + h
    bare = replace(shape, linear=replace(sizes, gate=False))
    assert kind.params(bare, ONE).item() == 4 * h * w + w + h
    assert kind.macs(shape).core_macs(8192) == 2 * w * 128
    problem = toy_problem(shape, seq_len=2048)
    terms, part = terms_of(problem, "linear+none"), problem.pool.accelerator
    assert terms.kept_bytes.item() == 2048 * (4 * h + 20 * w)
    flops, moved = 4 * w * 128 + 2 * 256 * w, 8 * w + 8 * w * 128 / 256
    rate = part.peak_flops_per_s["bf16"] * part.efficiency.gemm_frac / 2
    bandwidth = part.hbm_bytes_per_s * part.efficiency.hbm_frac
    expected = 2048 * max(flops / rate, moved / bandwidth) + 3 * part.efficiency.kernel_latency_s
    assert terms.attention.forward_s.item() == pytest.approx(expected, rel=1e-12)


def test_sparse_attention(toy_problem):
    sizes = IndexerShape(heads=64, head_dim=128, top_k=2048)
    shape = replace(
        DEEPSEEK_V3,
        layer_runs=(layer_run("sparse+dense", 3), layer_run("sparse+moe", 58)),
        indexer=sizes,
    )
    kind, plain = LAYER_KINDS["sparse+dense"], LAYER_KINDS["dense"]
    indexer = 1536 * 64 * 128 + 7168 * 128 + 7168 * 64
    for tp in (ONE, TWO):  # whole on every rank
        more = kind.params(shape, tp).item() - plain.params(shape, tp).item()
        assert more == pytest.approx(indexer + 2 * 128, rel=1e-9)
    s = 65536
    keys = window_keys(2048, s)
    assert keys == 2048 - 2048 * 2047 / (2 * s)
    core = 2 * (128 * (192 + 128) // 2) * keys + 64 * 128 * s / 2
    assert kind.macs(shape).core_macs(s) == pytest.approx(core, rel=1e-12)
    # All in all 6 FLOPs a multiply-add; the expert layers' and the module's too.
    fewer = model_flops_per_token(DEEPSEEK_V3, s) - model_flops_per_token(shape, s)
    full = 2 * (128 * (192 + 128) // 2) * s / 2
    assert fewer == pytest.approx(6 * 62 * (full - core - indexer), rel=1e-9)
    problem = toy_problem(shape, seq_len=s, stack="megatron-core")
    sparse, dense = (terms_of(problem, name) for name in ("sparse+dense", "dense"))
    assert sparse.attention.total_s < 0.7 * dense.attention.total_s
    kept = sparse.kept_bytes.item() - dense.kept_bytes.item()
    assert kept == pytest.approx(s * (2 * (64 * 128 + 128 + 64) + 4 * 2048), rel=1e-9)


def test_sparse_attention_over_blocks(toy_problem):
    sizes = IndexerShape(heads=4, head_dim=128, top_k=2048, block=128)
    one = replace(sizes, block=1)
    kind, plain, h = LAYER_KINDS["sparse+dense"], LAYER_KINDS["dense"], 4096
    shape, by_key = model("sparse+dense", indexer=sizes), model("sparse+dense", indexer=one)
    more = kind.params(shape, TWO).item() - plain.params(LLAMA3_8B, TWO).item()
    assert more == h * 4 * 128 + h * 128 + 2 * 128  # no weights of heads; two norms
    assert kind.params(by_key, ONE).item() - kind.params(shape, ONE).item() == h * 4
    s, core = 8192, 2 * 32 * 128
    # Queries 1 to 2048 see all before them, later ones 15 blocks and (1 + ... + 128) / 128.
    keys = (2048 * 2049 / 2 + (s - 2048) * (15 * 128 + 64.5)) / s
    assert kind.macs(shape).core_macs(s) == pytest.approx(core * keys + 4 * 128 * s / 2, rel=1e-12)
    problem, other = toy_problem(shape, seq_len=s), toy_problem(by_key, seq_len=s)
    kept = [terms_of(x, "sparse+dense").kept_bytes.item() for x in (problem, other)]
    # 4 heads choose 16 blocks each; by keys 2048 positions and 4 weights in 16 bits.
    assert kept[1] - kept[0] == s * (4 * 2048 + 2 * 4 - 4 * 4 * 16)


@pytest.mark.parametrize("name", sorted(LAYER_KINDS))
def test_every_kind_says_what_it_is(name):
    kind = LAYER_KINDS[name]
    assert kind.name == name
    assert kind.title.endswith("layer")
    assert kind.equation
    assert kind.source


def test_latent_experts(toy_problem):
    """As Nemotron 3 has them: experts of a narrower width between two projections."""
    plain = replace(LLAMA3_8B, n_experts=8, top_k=2, expert_ffn=2048, shared_ffn=1024, layers=16)
    latent = replace(plain, moe_latent=1024)
    kind, h = LAYER_KINDS["moe"], 4096
    more = kind.params(latent, TWO).item() - kind.params(plain, TWO).item()
    assert more == 2 * h * 1024  # whole on every rank
    assert kind.replicated_params(latent) - kind.replicated_params(plain) == 2 * h * 1024
    assert expert_params(latent, 4, 1).item() == 2 * 3 * 1024 * 2048
    macs = kind.macs(latent)
    # Megatron's moe_layer_flops: 4 T l f k 3/2 + 4 T h l + 4 T h f_s 3/2, 2 FLOPs each.
    assert macs.mlp == 3 * 1024 * 2048 * 2 + 2 * h * 1024 + 3 * h * 1024
    assert LAYER_KINDS["none+moe"].macs(latent).mlp == macs.mlp
    split = SplitDegrees(ONE, ONE, 8 * ONE, ONE, 0 * ONE)
    terms = []
    for shape in (plain, latent):
        inputs = LayerInputs(
            toy_problem(shape), split, np.full(1, 4096.0), ModeRows.of_sp(0 * ONE)
        )
        terms.append(kind.terms(inputs))
    wide, narrow = terms
    # Rows of a quarter of the width: 2 k (h - l) bytes a token less, and 2 l for the way back.
    kept = wide.kept_bytes.item() - narrow.kept_bytes.item()
    assert kept == pytest.approx(4096 * (2 * 2 * (h - 1024) - 2 * 1024), rel=1e-9)
    assert narrow.exchange.forward_s < 0.35 * wide.exchange.forward_s
    assert narrow.routed.forward_s < wide.routed.forward_s


def test_attention_with_factored_queries(toy_problem):
    kind, plain, h, r = LAYER_KINDS["factored+none"], LAYER_KINDS["attention+none"], 4096, 1024
    shape, dense = model("factored+none", factored=FactoredShape(q_rank=r)), LLAMA3_8B
    # Keys and values have 8 heads of 128; queries and output are as wide as the stream.
    assert kind.params(shape, ONE).item() == r * h + r + r * h + 2 * h * 1024 + h * h + h
    assert kind.params(shape, TWO).item() == r * h + r + (r * h + 2 * h * 1024 + h * h) / 2 + h
    assert kind.replicated_params(shape) == plain.replicated_params(dense) + r * h + r
    assert kind.macs(shape).projections == 2 * r * h + 2 * h * 1024 + h * h
    assert kind.macs(shape).core_macs(8192) == plain.macs(dense).core_macs(8192)
    ours, theirs = (
        terms_of(toy_problem(x, seq_len=2048), name)
        for x, name in ((shape, "factored+none"), (model("attention+none"), "attention+none"))
    )
    # Latents before and after their norm, in 16 bits.
    assert ours.kept_bytes.item() - theirs.kept_bytes.item() == 2048 * 4 * r
    assert ours.linear.total_s.item() < theirs.linear.total_s.item()
    assert ours.attention.total_s.item() == theirs.attention.total_s.item()
