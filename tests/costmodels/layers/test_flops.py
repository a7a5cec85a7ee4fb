"""Model FLOPs: hand numbers and the ratios to 6N that Megatron's counter gives."""

from dataclasses import replace

import pytest

from costmodels.examples import GPT3_175B, LLAMA3_8B, LLAMA3_70B, LLAMA3_405B
from costmodels.layers.flops import model_flops_per_step, model_flops_per_token
from costmodels.parameters import total_params
from costmodels.shapes import TrainingJob


def test_llama3_8b_by_hand():
    # Matrices of a layer: 25,165,824 + 16,777,216 + 176,160,768 = 218,103,808; the head
    # 128256 * 4096 = 525,336,576; the causal half of the scores 32 * 4096 * 8192.
    matrices = 32 * 218_103_808 + 525_336_576
    by_hand = 6 * matrices + 6 * 32 * 4_096 * 8_192
    assert by_hand == 51_470_401_536
    assert model_flops_per_token(LLAMA3_8B, 8192) == by_hand


@pytest.mark.parametrize(
    ("shape", "over_6n", "palm_over_megatron"),
    # 6N and 6N + 12 L h s conventions against Megatron's, at 8192 tokens, to the last digit.
    [(LLAMA3_8B, 1.068, 0.186), (LLAMA3_70B, 1.061, 0.086), (LLAMA3_405B, 1.036, 0.045)],
)
def test_ratio_to_other_conventions(shape, over_6n, palm_over_megatron):
    flops, six_n = model_flops_per_token(shape, 8192), 6 * total_params(shape, 8192)
    assert round(flops / six_n, 3) == over_6n
    palm = six_n + 12 * shape.layers * shape.hidden * 8192
    assert round(palm / flops - 1, 3) == palm_over_megatron


def test_gpt3_matches_the_formula_of_narayanan_et_al_without_recompute():
    # 72 B s L h^2 (1 + s/(6h) + V/(12 L h)) counts full attention: ours halves that term.
    h, layers, s, v = 12_288, 96, 2_048, 51_200
    published = 72 * layers * h * h * (1 + s / (6 * h) / 2 + v / (12 * layers * h))
    assert model_flops_per_token(GPT3_175B, s) == pytest.approx(published, rel=1e-12)


def test_a_step_is_the_tokens_times_the_token():
    job = TrainingJob(8192, 128)
    assert job.tokens_per_step == 1_048_576
    assert model_flops_per_step(LLAMA3_8B, job) == 1_048_576 * 51_470_401_536


def test_the_head_is_counted_with_the_padded_vocabulary_whether_tied_or_not():
    longer = replace(LLAMA3_8B, vocab=128_257)
    more = model_flops_per_token(longer, 8192) - model_flops_per_token(LLAMA3_8B, 8192)
    assert more == 6 * 128 * 4096
    tied = replace(LLAMA3_8B, tied=True)
    assert model_flops_per_token(tied, 8192) == model_flops_per_token(LLAMA3_8B, 8192)
