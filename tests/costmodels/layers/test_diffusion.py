"""Layers and ends of diffusion transformers, by hand and against counts of diffusers 0.42.1."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.axes import CP_COMMS
from costmodels.layers.diffusion.streams import Modulation
from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.kinds import LAYER_KINDS, layer_run
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.modes import ModeRows
from costmodels.parameters import embedding_params, head_params, total_params
from costmodels.shapes import DiffusionShape, ModelShape
from costmodels.towers.latents import end_flops

ONE = np.ones(1, dtype=np.int32)
H, F, T, N = 256, 1024, 64, 256
LATENTS = DiffusionShape(height=256, width=256, text_tokens=T, text_width=96, qk_norm="head")
"""16 x 16 patches of 2 x 2 latents of 8 x 8 pixels."""


def model(*runs: tuple[str, int], gated: bool = False, bias: bool = True, **latents) -> ModelShape:
    return ModelShape(
        "small",
        layers=sum(count for _, count in runs),
        hidden=H,
        heads=4,
        kv_heads=4,
        head_dim=64,
        ffn=F,
        gated=gated,
        vocab=0,
        tied=False,
        norm="layernorm",
        bias=bias,
        diffusion=replace(LATENTS, **latents),
        layer_runs=tuple(layer_run(kind, count) for kind, count in runs),
    )


FLUX = model(("double-stream", 2), ("single-stream", 3), pooled_width=48, guidance=True)
CROSS = {"cross": True, "modulation": "table", "text_layers": 2, "qk_norm": "width"}
WAN = model(("adaln", 2), cross_norm=True, **CROSS)
EVERY = [
    (FLUX, "double-stream"),
    (FLUX, "single-stream"),
    (model(("double-stream-last", 1)), "double-stream-last"),
    (WAN, "adaln"),
    (model(("adaln", 1), qk_norm="head-layernorm", affine=True, condition=128), "adaln"),
    (model(("single-stream", 1), gated=True, bias=False, modulation="shared"), "single-stream"),
]


def terms_of(problem, kind: str, tp: int = 1, cp: int = 1, sp: int = 0):
    comm = CP_COMMS.index("a2a") if cp > 1 else 0
    split = SplitDegrees(tp * ONE, cp * ONE, ONE, ONE, comm * ONE)
    tokens = np.full(1, problem.job.seq_len / cp)
    return LAYER_KINDS[kind].terms(LayerInputs(problem, split, tokens, ModeRows.of_sp(sp * ONE)))


@pytest.mark.parametrize(
    ("changes", "patches", "tokens"),
    [
        ({}, 16 * 16, 16 * 16 + 64),
        ({"height": 512, "cross": True}, 32 * 16, 32 * 16),
        ({"frames": 81, "vae_frames": 4}, 21 * 256, 21 * 256 + 64),
        ({"frames": 9, "vae_frames": 8, "patch": 1, "vae_factor": 32}, 2 * 8 * 8, 2 * 64 + 64),
        ({"frames": 5, "vae_frames": 4, "patch_frames": 2}, 256, 256 + 64),
    ],
)
def test_a_sequence_follows_from_resolution_and_frames(changes, patches, tokens):
    latents = replace(LATENTS, **changes)
    assert (latents.latents, latents.tokens) == (patches, tokens)


def test_parameters_of_a_double_stream():
    # Twice: 4 h^2 + 4 h of attention, two norms of 64, 8 h^2 + 5 h of the MLP, 6 h (h + 1).
    stream = 4 * H * H + 4 * H + 2 * 64 + 8 * H * H + 5 * H + 6 * H * (H + 1)
    assert LAYER_KINDS["double-stream"].params(FLUX, ONE).item() == 2 * stream


def test_the_last_double_stream_makes_nothing_of_the_text():
    whole, last = (
        LAYER_KINDS[x].params(FLUX, ONE).item() for x in ("double-stream", "double-stream-last")
    )
    # Output h^2 + h, MLP 8 h^2 + 5 h, four vectors of modulation.
    assert whole - last == H * H + H + 8 * H * H + 5 * H + 4 * H * (H + 1)


def test_parameters_of_a_single_stream():
    # 3 h^2 + 3 h, two norms, 4 h^2 + 4 h up, (h + 4 h) h + h back, 3 h (h + 1).
    wanted = 3 * H * H + 3 * H + 2 * 64 + 4 * H * H + 4 * H + 5 * H * H + H + 3 * H * (H + 1)
    assert LAYER_KINDS["single-stream"].params(FLUX, ONE).item() == wanted


def test_parameters_of_a_block_with_cross_attention():
    # Two attentions with norms over the width, 2 h of the norm between, MLP, a table of 6 h.
    attention = 4 * H * H + 4 * H + 2 * H
    wanted = 2 * attention + 2 * H + 8 * H * H + 5 * H + 6 * H
    assert LAYER_KINDS["adaln"].params(WAN, ONE).item() == wanted


@pytest.mark.parametrize(
    ("shape", "counted"),
    [
        # FluxTransformer2DModel with 2 and 3 blocks, WanTransformer3DModel(ffn_dim=1024) with 2.
        (FLUX, 8223424),
        (WAN, 2760512),
    ],
)
def test_totals_are_those_of_diffusers(shape, counted):
    assert total_params(shape, 1) == counted


def test_ends_stand_on_the_first_and_last_stage():
    # 64 -> h, 96 -> h; step and guidance 256 -> h -> h, pooled 48 -> h -> h.
    first = (64 + 1) * H + (96 + 1) * H + 2 * (257 * H + 257 * H) + (49 * H + 257 * H)
    assert embedding_params(FLUX, 320, ONE).item() == first
    last = 2 * H * (H + 1) + 64 * (H + 1)
    assert head_params(FLUX, ONE, 4 * ONE).item() == last


def test_flops_of_a_step_by_hand():
    s, core = N + T, 4 * H * (N + T)
    double = 24 * H * H * s + 2 * 12 * H * H + core * s
    single = 24 * H * H * s + 2 * 3 * H * H + core * s
    # Ends: two of three products where the input is data.
    vectors = 2 * 2 * (256 * 2 + 48) * H + 3 * 2 * (3 * H * H)
    first = 2 * 2 * (N * 64 + T * 96) * H + vectors
    last = 3 * 2 * (2 * H * H + N * H * 64)
    wanted = 3 * (2 * double + 3 * single) + first + last
    assert end_flops(FLUX) == first + last
    assert model_flops_per_token(FLUX, s) * s == pytest.approx(wanted, rel=1e-6)
    # FlopCounterMode over forward and backward of the same model, attention as plain products.
    assert wanted == 9186361344


def test_flops_of_cross_attention_by_hand():
    # Queries and outputs of patches, keys and values of the text, two products of scores.
    one = 4 * H * H * N + 4 * H * H * T + 4 * H * T * N
    own = 8 * H * H * N + 4 * H * N * N + 16 * H * H * N
    body = model_flops_per_token(WAN, N) * N - end_flops(WAN)
    assert body == pytest.approx(3 * 2 * (own + one), rel=1e-6)


@pytest.mark.parametrize(("shape", "kind"), EVERY)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_matrices_and_vectors_are_the_parameters(shape, kind, tp):
    record, x = LAYER_KINDS[kind], shape.diffusion
    matrices = sum(m.shard_elements(tp) * m.count for m in record.matrices(shape))
    streams = 2 if kind.startswith("double") else 1
    outputs = {"double-stream": 4, "single-stream": 1}.get(kind, 2)
    goes_on = streams - (kind == "double-stream-last")
    made = {"double-stream": 12, "double-stream-last": 8, "single-stream": 3}.get(kind, 12)
    cut = whole = 0.0
    if shape.bias:
        cut = 3 * H * streams + F * goes_on + made * H * (x.modulation == "block")
        whole = outputs * H
    if kind == "adaln" and x.cross:
        cut, whole = cut + 3 * H + 4 * H, whole + H + 2 * H + 6 * H
    norms = {"head": 2 * 64, "head-layernorm": 4 * 64}.get(x.qk_norm, 0)
    whole += streams * norms + 4 * H * x.affine
    assert record.params(shape, tp * ONE).item() == matrices + cut / tp + whole
    assert record.replicated_params(shape) == whole


def test_kept_bytes_of_a_double_stream_are_those_of_its_tensors(toy_problem):
    # A stream and token: norm's input, its output, the product's input, what the gate takes, twice
    # with two numbers; q, k before and after their norms, v, output; input and output of GELU.
    problem = toy_problem(FLUX, seq_len=N + T)
    token = 2 * (4 * 2 * H + 8) + 6 * 2 * H + 4 * 4 + 2 * 4 * 4 + 4 * F
    assert terms_of(problem, "double-stream").kept_bytes.item() == (N + T) * token
    # Saved tensors of diffusers' block: 3,632,128 bytes, vectors of modulation among them.
    assert (N + T) * token == pytest.approx(3632128, rel=0.003)


def test_kept_bytes_of_a_single_stream_are_those_of_its_tensors(toy_problem):
    problem = toy_problem(FLUX, seq_len=N + T)
    # The activation's output stands in what is joined with the output of attention.
    token = 4 * 2 * H + 8 + 6 * 2 * H + 4 * 4 + 2 * 4 * 4 + 2 * F + 2 * (H + F)
    assert terms_of(problem, "single-stream").kept_bytes.item() == (N + T) * token
    assert (N + T) * token == pytest.approx(3132672, rel=0.003)


def test_kept_bytes_of_a_block_with_fp32_norms(toy_problem):
    shape = model(("adaln", 2), cross_norm=True, wide_norms=True, **CROSS)
    # Patches: 8 h and 2 h around a norm, 2 h and 4 h of gates; attention 12 h; cross attention 4 h
    # of its norm, 2 h, 6 h. The text: 6 h of keys before and after their norm, and values.
    own = (10 + 2 + 12) * H + 8 + 4 * 4 + 8 + (4 + 2 + 6) * H + 8 + 4 * 4 + 4
    feed = (10 + 4) * H + 8 + 4 * F
    wanted = N * (own + feed) + T * (6 * H + 4)
    problem = toy_problem(shape, seq_len=N)
    assert terms_of(problem, "adaln").kept_bytes.item() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(("shape", "kind"), EVERY)
def test_tensor_and_sequence_parallelism_cut_what_a_layer_keeps(toy_problem, shape, kind):
    problem = toy_problem(shape, seq_len=shape.diffusion.tokens, stack="megatron-core")
    whole = terms_of(problem, kind).kept_bytes.item()
    both = terms_of(problem, kind, tp=2, sp=1).kept_bytes.item()
    alone = terms_of(problem, kind, tp=2).kept_bytes.item()
    assert both == pytest.approx(whole / 2, rel=0.01)
    assert both < alone < whole


@pytest.mark.parametrize(("shape", "kind"), EVERY)
def test_context_parallelism_sends_heads_for_sequence(toy_problem, shape, kind):
    problem = toy_problem(shape, seq_len=shape.diffusion.tokens)
    one, four = (terms_of(problem, kind, cp=n) for n in (1, 4))
    assert one.cp_forward.exposed_s.item() == 0.0
    assert four.cp_forward.exposed_s.item() > 0.0
    assert 1 / 6 < four.linear.total_s.item() / one.linear.total_s.item() < 1


def test_attention_meets_all_keys_of_both_streams(toy_problem):
    """Of two streams and of one it takes the same: weights differ, the sequence does not."""
    problem = toy_problem(FLUX, seq_len=N + T)
    double, single = (terms_of(problem, x) for x in ("double-stream", "single-stream"))
    assert double.attention.total_s.item() == single.attention.total_s.item()


def test_modulation_is_paid_a_sample_and_not_a_token():
    assert Modulation(made=6).weights(FLUX) == 6 * H * H
    assert Modulation(made=6).macs(FLUX) * (N + T) == 6 * H * H
    table = Modulation(learned=6)
    assert (table.weights(FLUX), table.params(FLUX, 2 * ONE).item()) == (0, 6 * H)
