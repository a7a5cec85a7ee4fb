"""Packed samples: keys of a query, fill of a pack, padding."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.data.lengths import (
    N_SAMPLES,
    SampleData,
    best_pack_tokens,
    fill_frac,
    histogram_lengths,
    lognormal_lengths,
    sample_data,
)
from costmodels.data.steps import padding_multiple, useful_frac
from costmodels.examples import LLAMA3_8B
from costmodels.layers.flops import model_flops_per_step, model_flops_per_token
from costmodels.layers.layer_kind import LayerInputs, SplitDegrees
from costmodels.modes import ModeRows
from costmodels.shapes import TrainingJob


def test_attention_of_a_pack_is_the_sum_of_squares():
    found = sample_data([100.0, 300.0], 1000, "masked")
    assert found.mean_tokens == 200.0
    assert found.mean_square == (100.0**2 + 300.0**2) / 2
    # (100^2 + 300^2) / (2 (100 + 300))
    assert found.run_keys == 125.0
    assert sample_data([100.0, 300.0], 1000, "unmasked").run_keys == 0.0


def test_samples_longer_than_a_pack_are_cut():
    found = sample_data([3000.0, 1000.0], 1000, "masked")
    assert (found.mean_tokens, found.fill_frac) == (1000.0, 1.0)


@pytest.mark.parametrize(
    ("lengths", "tokens", "packing", "expected"),
    [
        ([600.0, 500.0, 400.0, 300.0], 1000, "masked", 1800 / 2000),
        ([600.0, 500.0, 450.0], 1000, "masked", 1550 / 2000),
        ([600.0, 600.0, 600.0], 1000, "unmasked", 1800 / 3000),
        ([250.0, 750.0], 1000, "none", 0.5),
    ],
)
def test_fill_of_packs(lengths, tokens, packing, expected):
    assert fill_frac(lengths, tokens, packing) == pytest.approx(expected)


def test_a_log_normal_distribution_has_the_mean_and_the_p95():
    found = np.array(lognormal_lengths(800.0, 2400.0, 1e9))
    assert len(found) == N_SAMPLES
    assert found.mean() == pytest.approx(800.0, rel=0.01)
    assert np.quantile(found, 0.95) == pytest.approx(2400.0, rel=0.02)
    assert max(lognormal_lengths(800.0, 2400.0, 4096.0)) == 4096.0
    for p95 in (700.0, 3200.0):
        with pytest.raises(ValueError, match="a p95 from 800 to 309"):
            lognormal_lengths(800.0, p95, 8192.0)


def test_quantiles_of_a_histogram():
    found = histogram_lengths([(2048, 1), (512, 3)])
    assert (found.count(512.0), found.count(2048.0)) == (N_SAMPLES * 3 // 4, N_SAMPLES // 4)


def test_the_shortest_pack_of_those_that_are_filled():
    assert best_pack_tokens([1024.0] * 64, 8192) == 1024
    assert best_pack_tokens([1500.0] * 50, 8192) == 8192  # 5 of 1500 against 1 or 2


def test_padding_to_chunks_of_context_parallelism(toy_problem, plain_layout):
    layout = plain_layout(toy_problem(), tp=2, dp=2)
    assert padding_multiple(layout) == 1
    assert padding_multiple(replace(layout, sp=True)) == 2
    assert padding_multiple(replace(layout, cp=4, n_devices=16)) == 16
    job = TrainingJob(4096, 8, data=SampleData("masked", 100.0, 1e4, 0.9))
    assert useful_frac(job, layout) == 0.9
    assert useful_frac(job, replace(layout, cp=4)) == pytest.approx(0.9 * 100 / 107.5)
    assert useful_frac(replace(job, data=None), layout) == 1.0


def test_only_the_core_of_attention_takes_less(toy_problem):
    plain = toy_problem()
    data = SampleData("masked", 512.0, 512.0**2, 1.0)
    packed = replace(plain, job=replace(plain.job, data=data))
    one = np.ones(1, dtype=np.int32)
    split, modes = SplitDegrees(one, one, one, one, 0 * one), ModeRows.of_sp(0 * one)
    tokens = np.full(1, 4096.0)
    whole, inside = (
        LayerInputs(x, split, tokens, modes).attention.compute for x in (plain, packed)
    )
    part = plain.pool.accelerator.efficiency
    half = part.attention_seq_half
    launch = part.kernel_latency_s
    ratio = (inside.forward_s - launch) / (whole.forward_s - launch)
    # keys 512 in place of 4096, at the rate of so short runs
    assert ratio == pytest.approx(512 / 4096 * (4096 / (4096 + half)) / (512 / (512 + half)))


def test_model_flops_count_the_keys_that_are_seen():
    data = SampleData("masked", 512.0, 512.0**2, 1.0)
    job = TrainingJob(8192, 2, data=data)
    expected = model_flops_per_token(LLAMA3_8B, 8192) - 6 * 32 * 4096 * (8192 - 512)
    assert model_flops_per_step(LLAMA3_8B, job) == pytest.approx(expected * 2 * 8192)
