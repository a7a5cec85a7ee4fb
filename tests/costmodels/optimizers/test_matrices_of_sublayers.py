"""Matrices of mixers and feeds: with their vectors they are the parameters, by hand."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from costmodels.examples import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL_8X7B
from costmodels.layers.kinds import LAYER_KINDS, MIXERS, layer_run
from costmodels.layers.params import expert_params
from costmodels.layers.recurrences.short_conv import CONV
from costmodels.layers.sublayers.attention import ATTENTION
from costmodels.layers.sublayers.composition import composed
from costmodels.layers.sublayers.feeds import EXPERTS, FEEDS, MLP
from costmodels.optimizers.groups import kinds_without_matrices
from costmodels.optimizers.matrices import Matrix, attention_matrices
from costmodels.shapes import (
    ChunkShape,
    CompressedShape,
    CrossShape,
    DeltaNetShape,
    FactoredShape,
    IndexerShape,
    LinearShape,
    Mamba1Shape,
    Mamba2Shape,
    ModelShape,
    RglruShape,
    ShortConvShape,
    WindowShape,
)

H = 4096
SIZES = replace(
    LLAMA3_8B,
    window=WindowShape(129),
    chunk=ChunkShape(128),
    mamba2=Mamba2Shape(heads=128, head_dim=64, groups=8, state=128, conv=4, chunk=128),
    delta_net=DeltaNetShape(k_heads=16, v_heads=32, k_dim=128, v_dim=64, conv=4, chunk=64),
    linear=LinearShape(heads=64, head_dim=96, gate=True, chunk=64),
    indexer=IndexerShape(heads=64, head_dim=128, top_k=2048),
    mamba1=Mamba1Shape(inner=8192, state=16, dt_rank=256, conv=4),
    short_conv=ShortConvShape(conv=3),
    cross=CrossShape(tokens=512, width=2048),
    rglru=RglruShape(width=5120, heads=10, conv=4),
    factored=FactoredShape(q_rank=1024),
    compressed=CompressedShape(1024, 128, 8, 512, index_heads=16, index_dim=64, top_k=256),
)
# What is no matrix: cut over tp, and whole on every rank (the norm before a mixer is H).
VECTORS = {
    "attention": (0, H),
    "window": (0, H),
    "chunk": (0, H),
    "bidirectional": (0, H),
    "bidirectional-window": (0, H),
    "cross": (0, H),
    "causal-cross": (0, 2 * H),
    "bidirectional-cross": (0, 2 * H),
    "sparse": (0, H + 2 * 128),  # the norm of the indexer's keys
    "factored": (0, H + 1024),  # the norm of the latents
    "differential": (0, H + 4 * 128),  # of which the share of the second softmax is computed
    # Four taps and a bias of x, B and C; A, D and the bias of dt; the gated norm.
    "mamba2": (5 * (8192 + 2 * 1024) + 3 * 128 + 8192, H),
    "gdn": (4 * (2 * 2048 + 2048) + 2 * 32, H + 64),
    # Decays have a bias of their width, 32 heads of 128; A is one a head.
    "kda": (4 * (2 * 2048 + 2048) + 32 * 128 + 32, H + 64),
    "linear": (64 * 96, H),
    "mamba1": (5 * 8192 + 8192 + 8192, H),  # the filter and its bias, the bias of dt, D
    "conv": (3 * H, H),
    # Four taps; biases of the filter, x, y and both gates; decays. Gates are blocks of 512.
    "rglru": (4 * 5120 + 6 * 5120 + 2 * 5120 * 512, 2 * H),
    # A sink a head; norms of the latent and of keys, of entries, of those of the indexer.
    "shared-window": (32, H + 1024 + 128),
    "csa": (32, H + 1024 + 128 + 128 + 64),
    "hca": (32, H + 1024 + 128 + 128),
    "none": (0, 0),
}
BIASES = {"csa": 4 * 2 * (128 + 64), "hca": 128 * 128}
"""Matrices that are no weights of linear layers: biases by position."""


def elements(matrices: tuple[Matrix, ...], tp: int) -> float:
    return sum(m.shard_elements(tp) * m.count for m in matrices)


OF_TOKENS = sorted(name for name, mixer in MIXERS.items() if mixer.section != "diffusion")
"""Mixers of language models; tests/costmodels/layers/test_diffusion.py has the others."""


@pytest.mark.parametrize("name", OF_TOKENS)
@pytest.mark.parametrize("tp", [1, 2])
def test_matrices_and_vectors_of_a_mixer_are_its_parameters(name: str, tp: int):
    mixer, (cut, whole) = MIXERS[name], VECTORS[name]
    params = mixer.params(SIZES, np.array([tp], dtype=np.int32)).item()
    listed = mixer.matrices(SIZES) if mixer.matrices else ()
    assert elements(listed, tp) + cut / tp + whole == params


@pytest.mark.parametrize("name", sorted(set(OF_TOKENS) - {"none", "mamba1", "rglru"}))
def test_they_are_the_weights_of_its_linear_layers(name: str):
    mixer, one = MIXERS[name], np.ones(1, dtype=np.int32)
    assert mixer.matrices is not None
    weights = mixer.linear_params(SIZES, one).item() + BIASES.get(name, 0)
    assert elements(mixer.matrices(SIZES), 1) == weights


LATENT_QUERIES = replace(DEEPSEEK_V3, indexer=SIZES.indexer)
BIASED = replace(LLAMA3_8B, bias=True)
# QKV are 6144 rows, the output has 4096; biases of the latter are whole on every rank.
OTHER_ATTENTION: list[tuple[str, ModelShape, int, int]] = [
    ("attention", replace(LLAMA3_8B, attention_gate=True), 0, H),
    ("window", replace(BIASED, window=WindowShape(128)), 6144, 2 * H),
    ("attention", replace(LLAMA3_8B, norm="layernorm"), 0, 2 * H),
    ("sparse", LATENT_QUERIES, 0, 7168 + 1536 + 512 + 2 * 128),
]


@pytest.mark.parametrize(("name", "shape", "cut", "whole"), OTHER_ATTENTION)
@pytest.mark.parametrize("tp", [1, 2])
def test_attention_with_gates_biases_and_latents(name, shape, cut, whole, tp):
    mixer = MIXERS[name]
    params = mixer.params(shape, np.array([tp], dtype=np.int32)).item()
    assert elements(mixer.matrices(shape), tp) + cut / tp + whole == params


def test_a_gate_is_a_part_of_the_fused_matrix():
    fused, output = attention_matrices(replace(LLAMA3_8B, attention_gate=True))
    assert (fused.rows, fused.parts) == (4096 + 6144, (4096, 4096, 1024, 1024))
    assert [piece.rows for piece in fused.pieces] == [4096, 4096, 1024, 1024]
    assert output == attention_matrices(LLAMA3_8B)[1]


LATENT_EXPERTS = replace(MIXTRAL_8X7B, moe_latent=1024, shared_ffn=2048)


@pytest.mark.parametrize("shape", [MIXTRAL_8X7B, DEEPSEEK_V3, LATENT_EXPERTS])
@pytest.mark.parametrize("tp", [1, 2])
def test_matrices_and_the_norm_of_experts_are_their_parameters(shape: ModelShape, tp: int):
    assert EXPERTS.matrices is not None
    of_ranks, routed = [], []
    for matrix in EXPERTS.matrices(shape):
        (routed if matrix.is_routed else of_ranks).append(matrix)
    params = EXPERTS.params(shape, np.array([tp], dtype=np.int32)).item()
    assert elements(tuple(of_ranks), tp) + shape.hidden == params
    assert elements(tuple(routed), tp) == expert_params(shape, 1, tp).item()


@pytest.mark.parametrize("tp", [1, 2])
def test_matrices_and_the_norm_of_an_mlp_are_its_parameters(tp: int):
    assert MLP.matrices is not None
    params = MLP.params(LLAMA3_8B, np.array([tp], dtype=np.int32)).item()
    assert elements(MLP.matrices(LLAMA3_8B), tp) + H == params


def test_projections_around_latent_experts():
    # Router 8 x 4096, down 1024 x 4096, up back; eight experts of 14336 at a width of 1024.
    assert EXPERTS.matrices is not None
    shared, router, routed = slice(0, 2), slice(2, 5), slice(5, None)
    listed = [(m.rows, m.columns, m.count, m.cut) for m in EXPERTS.matrices(LATENT_EXPERTS)]
    assert listed[shared] == [(4096, 4096, 1, "rows"), (4096, 2048, 1, "columns")]
    assert listed[router] == [(8, 4096, 1, ""), (1024, 4096, 1, ""), (4096, 1024, 1, "")]
    assert listed[routed] == [(28672, 1024, 8, "rows"), (1024, 14336, 8, "columns")]


MATRICES: list[tuple[str, list[tuple[int, int, int, str]]]] = [
    # z, x 8192, B, C 1024, dt 128.
    ("mamba2", [(18560, H, 1, "rows"), (H, 8192, 1, "columns")]),
    # q, k, v and the gate 2048, beta and decays 32.
    ("gdn", [(8256, H, 1, "rows"), (H, 2048, 1, "columns")]),
    (
        "kda",
        [
            (2048, H, 2, "rows"),
            (2048, H, 1, "rows"),
            (32, H, 1, "rows"),
            (64, H, 2, ""),
            (4096, 64, 1, "rows"),
            (2048, 64, 1, "rows"),
            (H, 2048, 1, "columns"),
        ],
    ),
    ("linear", [(3 * 6144, H, 1, "rows"), (6144, H, 1, "rows"), (H, 6144, 1, "columns")]),
    (
        "mamba1",
        [
            (16384, H, 1, "rows"),
            (256 + 32, 8192, 1, "columns"),
            (8192, 256, 1, "rows"),
            (H, 8192, 1, "columns"),
            (8192, 16, 1, "rows"),
        ],
    ),
    ("conv", [(3 * H, H, 1, "rows"), (H, H, 1, "columns")]),
]


@pytest.mark.parametrize(("name", "expected"), MATRICES)
def test_matrices_as_the_software_holds_them(name, expected):
    matrices: Callable[[ModelShape], tuple[Matrix, ...]] | None = MIXERS[name].matrices
    assert matrices is not None
    assert [(m.rows, m.columns, m.count, m.cut) for m in matrices(SIZES)] == expected


def test_a_kind_has_the_matrices_of_both_sublayers():
    kind, experts = LAYER_KINDS["gdn+moe"], replace(SIZES, n_experts=8, expert_ffn=1024)
    assert kind.matrices is not None
    assert EXPERTS.matrices is not None
    gdn = MIXERS["gdn"].matrices
    assert gdn is not None
    assert kind.matrices(experts) == gdn(experts) + EXPERTS.matrices(experts)
    for feed in FEEDS:
        assert composed(ATTENTION, feed).matrices is not None


def test_a_mixer_without_a_list_is_refused_with_its_kind(monkeypatch):
    unlisted = composed(replace(CONV, name="unlisted", matrices=None), MLP)
    assert unlisted.matrices is None
    monkeypatch.setitem(LAYER_KINDS, unlisted.name, unlisted)
    runs = (layer_run("conv+dense", 3), layer_run(unlisted.name, 29))
    assert kinds_without_matrices(replace(SIZES, layer_runs=runs)) == (unlisted.name,)
