"""Parameter counts: arithmetic written out, published totals, and what each rank holds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.examples import GPT3_175B, LLAMA3_8B, LLAMA3_70B, LLAMA3_405B
from costmodels.layers.params import kv_heads_per_rank, layer_params, padded_vocab
from costmodels.parameters import embedding_params, head_params, total_params
from costmodels.plans import WHOLE, ShapeTable
from costmodels.schedule.stages import SPLITS
from costmodels.shape_terms import shape_terms
from costmodels.shapes import ModelShape


def ranks(*degrees: int) -> np.ndarray:
    return np.array(degrees, dtype=np.int32)


def test_a_llama_layer_by_hand():
    # attention 4096 (4096 + 2 * 1024) + 4096 * 4096 = 25,165,824 + 16,777,216
    # SwiGLU 3 * 4096 * 14336 = 176,160,768; two RMS norms 2 * 4096 = 8,192
    by_hand = 25_165_824 + 16_777_216 + 176_160_768 + 8_192
    assert by_hand == 218_112_000
    assert layer_params(LLAMA3_8B, ranks(1)).item() == by_hand


@pytest.mark.parametrize(
    ("shape", "layer", "layers", "matrix", "hidden", "published"),
    [
        # Published totals: the parameter counts of the checkpoints on the Hugging Face hub.
        (LLAMA3_8B, 218_112_000, 32, 128_256 * 4_096, 4_096, 8_030_261_248),
        (LLAMA3_70B, 855_654_400, 80, 128_256 * 8_192, 8_192, 70_553_706_496),
        (LLAMA3_405B, 3_187_703_808, 126, 128_256 * 16_384, 16_384, 405_853_388_800),
    ],
)
def test_published_totals_exactly(shape, layer, layers, matrix, hidden, published):
    assert layers * layer + 2 * matrix + hidden == published
    assert total_params(shape, 8192) == published


def test_gpt3_within_a_tenth_of_a_percent_of_its_paper():
    # Layer: 12 h^2 + 13 h with h = 12288; then 50257 h, 2048 h positions, final norm 2 h.
    h = 12_288
    by_hand = 96 * (12 * h * h + 13 * h) + 50_257 * h + 2_048 * h + 2 * h
    assert by_hand == 174_604_259_328
    assert total_params(GPT3_175B, 2048) == by_hand
    # Brown et al. 2020 print 174.6 B in table D.1.
    assert total_params(GPT3_175B, 2048) == pytest.approx(174.6e9, rel=1e-3)


def test_vocabulary_is_padded_to_a_multiple_of_128_per_rank():
    # 128256 = 1002 * 128; per 8 ranks the unit is 1024: ceil(125.25) = 126 units.
    padded = padded_vocab(LLAMA3_8B, ranks(1, 2, 4, 8))
    assert padded.tolist() == [128_256, 128_256, 128_512, 129_024]
    assert padded_vocab(GPT3_175B, ranks(1, 8)).tolist() == [51_200, 51_200]
    # torchtitan and Hugging Face's classes pad to what tp divides alone, whatever a model fixes.
    plain = replace(GPT3_175B, pads_vocab=False)
    assert padded_vocab(plain, ranks(1, 8)).tolist() == [50_257, 50_264]


def test_padding_counts_on_the_device_but_not_in_the_total():
    longer = replace(LLAMA3_8B, vocab=128_257)
    assert embedding_params(longer, 8192, ranks(1)).item() == 128_384 * 4_096
    assert total_params(longer, 8192) - total_params(LLAMA3_8B, 8192) == 2 * 4_096


def test_kv_heads_are_replicated_beyond_their_number():
    assert kv_heads_per_rank(LLAMA3_8B, ranks(1, 2, 8, 16, 32)).tolist() == [8, 4, 1, 1, 1]
    # At t = 16: Q and projection 2 * 4096 * 256, K and V one whole head each, MLP 3 * 4096 * 896.
    by_hand = 2 * 4096 * 256 + 2 * 4096 * 128 + 3 * 4096 * 896 + 2 * 4096
    assert layer_params(LLAMA3_8B, ranks(16)).item() == by_hand


def test_biases_of_row_parallel_layers_and_norms_are_on_every_rank():
    h, t = 12_288, 8
    biases = 3 * h / t + 4 * h / t + 2 * h  # QKV and FC1 split; projection and FC2 whole
    assert layer_params(GPT3_175B, ranks(t)).item() == 12 * h * h / t + 4 * h + biases


def test_a_tied_head_costs_nothing_on_one_stage_and_a_copy_on_several():
    tied = replace(LLAMA3_8B, tied=True)
    matrix = 128_256 * 4_096
    assert head_params(tied, ranks(1), ranks(1)).item() == 4_096
    assert head_params(tied, ranks(1), ranks(4)).item() == matrix + 4_096
    assert head_params(LLAMA3_8B, ranks(1, 1), ranks(1, 4)).tolist() == [matrix + 4_096] * 2
    assert total_params(LLAMA3_8B, 8192) - total_params(tied, 8192) == matrix


def test_learned_positions_cover_the_longer_of_sequence_and_table():
    assert embedding_params(GPT3_175B, 4_096, ranks(1)).item() == (51_200 + 4_096) * 12_288
    fixed = replace(GPT3_175B, max_positions=8_192)
    assert embedding_params(fixed, 4_096, ranks(1)).item() == (51_200 + 8_192) * 12_288


def sum_over_ranks(problem, tp: int, pp: int, vpp: int, split: str) -> float:
    shapes = ShapeTable.of_columns(
        tp * pp, {"tp": [tp], "pp": [pp], "vpp": [vpp], "split": [SPLITS.index(split)]}
    )
    terms = shape_terms(problem, shapes, WHOLE)
    return tp * float((terms.kinds.n_ranks * terms.params).sum())


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(
    ("tp", "pp", "vpp"), [(1, 2, 1), (2, 4, 1), (4, 2, 2), (8, 8, 1), (16, 3, 2)]
)
@pytest.mark.parametrize("shape", [LLAMA3_8B, replace(LLAMA3_8B, tied=True), GPT3_175B])
def test_the_sum_over_ranks_is_the_total_plus_what_is_replicated(
    toy_problem, shape: ModelShape, tp, pp, vpp, split
):
    shape = replace(shape, layers=48)
    h, whole = shape.hidden, 2 if shape.bias else 0
    norm = 1 if shape.norm == "rmsnorm" else 2
    per_layer = (tp - 1) * (2 * norm + whole) * h
    per_layer += 2 * h * shape.head_dim * max(0, tp - shape.kv_heads)  # replicated KV heads
    if shape.bias:
        per_layer += 2 * shape.head_dim * max(0, tp - shape.kv_heads)
    extra = 48 * per_layer + (tp - 1) * norm * h  # and the final norm
    extra += (tp - 1) * 2048 * h * (shape.positions == "learned")
    padding = (padded_vocab(shape, ranks(tp)).item() - shape.vocab) * h
    extra += 2 * padding + shape.vocab * h * shape.tied  # the last stage's copy
    total = total_params(shape, 2048)
    held = sum_over_ranks(toy_problem(shape, seq_len=2048), tp, pp, vpp, split)
    assert held == pytest.approx(total + extra, rel=1e-14)


@given(tp=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_more_tensor_parallelism_never_adds_parameters_to_a_rank(tp):
    for shape in (LLAMA3_8B, GPT3_175B):
        one, two = layer_params(shape, ranks(tp, 2 * tp))
        assert one / 2 <= two < one
