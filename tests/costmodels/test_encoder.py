"""Layers and ends of an encoder in front of a decoder."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.examples import LLAMA3_8B
from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.kinds import LAYER_KINDS, layer_run
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.modes import ModeRows
from costmodels.parameters import total_params
from costmodels.shapes import CrossShape, EncoderShape
from costmodels.stacks import STACKS
from costmodels.towers.encoder import encoder_end_flops, encoder_end_params, sound_conv_macs
from costmodels.towers.encoder_layers import encoder_macs, encoder_shape

ONE, TWO = np.array([1], dtype=np.int32), np.array([2], dtype=np.int32)
WHISPER = replace(
    LLAMA3_8B,
    name="whisper",
    layers=64,
    hidden=1280,
    heads=20,
    kv_heads=20,
    head_dim=64,
    ffn=5120,
    gated=False,
    vocab=51866,
    tied=True,
    norm="layernorm",
    bias=True,
    positions="learned",
    max_positions=448,
    layer_runs=(layer_run("encoder+dense", 32), layer_run("causal-cross+dense", 32)),
    cross=CrossShape(1500, 1280),
    encoder=EncoderShape(1500, positions=1500, conv_channels=128),
)


def test_whisper_has_the_parameters_of_its_checkpoint():
    """whisper-large-v3 has 1,543,490,560; biases of 96 projections of keys are ours alone."""
    assert total_params(WHISPER, 448) - 96 * 1280 == 1_543_490_560


def test_a_layer_of_the_encoder_is_a_bidirectional_one_of_its_sizes():
    narrow = replace(WHISPER, encoder=EncoderShape(1500, hidden=512, heads=8, ffn=2048))
    inner = encoder_shape(narrow)
    assert (inner.hidden, inner.heads, inner.kv_heads, inner.ffn) == (512, 8, 8, 2048)
    # QKV, output, two of the MLP with their biases; two norms of two vectors.
    expected = 4 * 512 * 512 + 2 * 512 * 2048 + (4 * 512 + 2048 + 512) + 4 * 512
    assert LAYER_KINDS["encoder+dense"].params(narrow, ONE)[0] == expected


def test_ends_of_an_encoder():
    # Positions, convolutions of three taps with biases, the last norm.
    expected = 1500 * 1280 + 3 * 1280 * (128 + 1280) + 2 * 1280 + 2 * 1280
    assert encoder_end_params(WHISPER, ONE)[0] == expected
    reads = replace(WHISPER, encoder=EncoderShape(512, vocab=32_000))
    assert encoder_end_params(reads, TWO)[0] == 32_000 * 1280 / 2 + 2 * 1280
    assert encoder_end_params(LLAMA3_8B, ONE)[0] == 0.0


def test_flops_of_a_sequence_do_not_depend_on_the_length_of_the_decoder():
    """2 multiply-adds: 4 h^2 + 2 h f in projections and MLP, 2 h S in the core."""
    macs = encoder_macs(WHISPER)
    assert macs.of_sequence == 1500 * (4 * 1280**2 + 2 * 1280 * 5120)
    assert macs.core_macs(448) * 448 == pytest.approx(1500 * 2 * 1280 * 1500)
    assert macs.core_macs(100) * 100 == pytest.approx(macs.core_macs(448) * 448)


def test_convolutions_over_sound():
    assert sound_conv_macs(WHISPER) == (2 * 3 * 128 * 1280, 3 * 1280 * 1280)
    assert encoder_end_flops(WHISPER) == 1500 * (6 * 3 * 1280**2 + 4 * 2 * 3 * 128 * 1280)
    assert sound_conv_macs(replace(WHISPER, encoder=EncoderShape(512))) == (0.0, 0.0)


def test_a_longer_encoder_costs_more():
    longer = replace(
        WHISPER, encoder=EncoderShape(3000, conv_channels=128), cross=CrossShape(3000, 1280)
    )
    assert model_flops_per_token(longer, 448) > 1.9 * model_flops_per_token(WHISPER, 448)


def test_scratch_of_mlps_is_shared_where_their_sizes_are_equal(toy_problem):
    """2 bytes of 2 h f: of the decoder besides, unless the encoder's have the same sizes."""
    found = []
    for sizes in (EncoderShape(1500), EncoderShape(1500, ffn=2048)):
        problem = toy_problem(replace(WHISPER, encoder=sizes), stack=STACKS["megatron-core"])
        split = SplitDegrees(ONE, ONE, ONE, ONE, 0 * ONE)
        inputs = LayerInputs(problem, split, np.full(1, 448.0), ModeRows.of_sp(0 * ONE))
        found.append(LAYER_KINDS["causal-cross+dense"].terms(inputs).scratch_bytes.item())
    assert found[1] - found[0] == 2 * 2 * 1280 * 5120
