"""Attention over a window and compressed keys (DeepSeek-V4), by hand."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.examples import LLAMA3_8B
from costmodels.layers.compressed.entries import seen_entries
from costmodels.layers.kinds import LAYER_KINDS, layer_run
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.modes import ModeRows
from costmodels.shapes import CompressedShape

ONE = np.ones(1, dtype=np.int32)
FLASH = replace(
    LLAMA3_8B,
    hidden=4096,
    heads=64,
    kv_heads=1,
    head_dim=512,
    compressed=CompressedShape(
        q_rank=1024,
        window=128,
        groups=8,
        out_rank=1024,
        index_heads=64,
        index_dim=128,
        top_k=512,
    ),
)
"""Sizes of DeepSeek-V4-Flash (transformers models/deepseek_v4, defaults of its configuration)."""
W = 64 * 512
CUT = 1024 * W + W * 1024 + 8 * 1024 * 4096  # queries, groups of outputs, the way back
WHOLE = 4096 * 1024 + 4096 * 512  # to the latent of queries, and to keys
VECTORS = 4096 + 1024 + 512  # the norm in front, of the latent, of keys
HEAVY = 2 * 4096 * 512  # keys and gates of one series
SPARSE = 2 * 4096 * 2 * 512  # of two
INDEX = 2 * 4096 * 2 * 128 + 1024 * 64 * 128 + 4096 * 64
WEIGHTS = {
    "shared-window": CUT + WHOLE,
    "hca": CUT + WHOLE + HEAVY,
    "csa": CUT + WHOLE + SPARSE + INDEX,
}
OTHERS = {  # whole on every rank, beside 64 sinks: norms, and biases by position with theirs
    "shared-window": VECTORS,
    "hca": VECTORS + 128 * 512 + 512,
    "csa": VECTORS + 4 * 2 * 512 + 512 + 4 * 2 * 128 + 128,
}


def terms_of(problem, kind: str, tp: int = 1):
    split = SplitDegrees(tp * ONE, ONE, ONE, ONE, 0 * ONE)
    tokens = np.full(1, float(problem.job.seq_len))
    return LAYER_KINDS[kind].terms(LayerInputs(problem, split, tokens, ModeRows.of_sp(0 * ONE)))


def model(kind: str, plain=FLASH):
    return replace(plain, layer_runs=(layer_run(kind, plain.layers),))


@pytest.mark.parametrize("mixer", WEIGHTS)
def test_parameters(mixer: str):
    kind = LAYER_KINDS[f"{mixer}+none"]
    assert kind.params(FLASH, ONE).item() == WEIGHTS[mixer] + OTHERS[mixer] + 64
    whole = WEIGHTS[mixer] - CUT + OTHERS[mixer]
    assert kind.params(FLASH, 8 * ONE).item() == (CUT + 64) / 8 + whole
    assert kind.replicated_params(FLASH) == whole
    assert kind.linear_weights(FLASH, 8 * ONE).item() == CUT / 8 + WEIGHTS[mixer] - CUT


@pytest.mark.parametrize("ratio", [4, 96, 128])
@pytest.mark.parametrize("seq_len", [1, 100, 512, 1000])
@pytest.mark.parametrize("top_k", [0, 1, 7, 300])
def test_entries_are_those_behind_a_query(ratio: int, seq_len: int, top_k: int):
    most = top_k or seq_len
    seen = sum(min(t // ratio, most) for t in range(1, seq_len + 1)) / seq_len
    assert seen_entries(ratio, seq_len, top_k) == pytest.approx(seen, rel=1e-12)


@pytest.mark.parametrize("mixer", WEIGHTS)
def test_multiply_adds(mixer: str):
    s = 4096
    window = sum(min(t, 128) for t in range(1, s + 1))
    seen = {
        "shared-window": 0,
        "hca": sum(t // 128 for t in range(1, s + 1)),
        "csa": sum(min(t // 4, 512) for t in range(1, s + 1)),
    }
    core = 2 * W * (window + seen[mixer])
    if mixer == "csa":  # the scores of all entries behind a query
        core += 64 * 128 * sum(t // 4 for t in range(1, s + 1))
    macs = LAYER_KINDS[f"{mixer}+none"].macs(FLASH)
    assert macs.projections == WEIGHTS[mixer]
    assert macs.core_macs(s) == pytest.approx(core / s, rel=1e-12)
    assert macs.modules == {"mla_up_proj": 1024 * W}


def test_kept_bytes_of_fused_kernels(toy_problem):
    """Tensors of a token: norm's input and output, latents, queries, keys, outputs, sums."""
    every = 2 * 2 * 4096 + 2 * 2 * 1024 + 2 * 2 * W + 2 * 2 * 512 + 2 * 2 * W + 2 * 8 * 1024
    every += 4 * 64
    heavy = 2 * 2 * 512 + 2 * 2 * 512 / 128
    sparse = 2 * 2 * 2 * 512 + 2 * 2 * 512 / 4 + 2 * 2 * 2 * 128 + 2 * 2 * 128 / 4
    sparse += 2 * 64 * 128 + 2 * 64 + 4 * 512
    more = {"shared-window": 0, "hca": heavy, "csa": sparse}
    for mixer, size in more.items():
        problem = toy_problem(model(f"{mixer}+none"), stack="megatron-core")
        kept = terms_of(problem, f"{mixer}+none").kept_bytes.item()
        assert kept == pytest.approx(4096 * (every + size), rel=1e-12)
        terms = terms_of(problem, f"{mixer}+none")
        # Queries before and after their norm are what the group computes again.
        assert terms.modules.attention_bytes.max() == 4096 * 4 * W


@pytest.mark.parametrize(
    ("mixer", "bytes_of_a_token"),
    # scripts/check_layers counts these of transformers' class, its connection left out.
    [("shared-window", 27784.0), ("hca", 28688.53125), ("csa", 33689.0)],
)
def test_kept_bytes_of_eager_operators(mixer, bytes_of_a_token, toy_problem):
    small = replace(
        FLASH,
        hidden=512,
        heads=8,
        head_dim=96,
        flash_attention=False,
        compressed=CompressedShape(192, 128, 2, 80, 32, 4, 128, 4, 64, 64),
    )
    problem = toy_problem(model(f"{mixer}+none", small), stack="hf-fsdp2", seq_len=1024)
    kept = terms_of(problem, f"{mixer}+none").kept_bytes.item() / 1024
    # The norm in front: input and scaled input in fp32, output in 16 bits.
    assert kept == pytest.approx(bytes_of_a_token + 10 * 512, rel=1e-12)


def test_compression_is_faster_than_full_attention(toy_problem):
    """At 64k tokens a query of `hca` sees about 384 keys, one of `csa` 640 of 65536."""
    plain = replace(model("attention+none"), kv_heads=1)
    times = {
        mixer: terms_of(
            toy_problem(model(f"{mixer}+none", plain), seq_len=65536), f"{mixer}+none"
        ).attention.total_s.item()
        for mixer in ("shared-window", "csa", "hca", "attention")
    }
    assert times["shared-window"] < times["hca"] < times["csa"] < 0.2 * times["attention"]


def test_tensor_parallelism_cuts_heads_and_groups(toy_problem):
    problem = toy_problem(model("csa+none"), stack="megatron-core")
    one, eight = (terms_of(problem, "csa+none", tp) for tp in (1, 8))
    left = 4096 * (2 * 2 * W + 2 * 2 * W + 2 * 8 * 1024 + 4 * 64)
    fewer = one.kept_bytes.item() - eight.kept_bytes.item()
    assert fewer == pytest.approx(7 / 8 * left, rel=1e-12)
