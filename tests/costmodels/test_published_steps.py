"""Iteration times of Korthikanti et al. 2022, table 5; no constant is fitted to these rows."""

import numpy as np
import pytest

from costmodels.breakdown import break_down
from costmodels.layers.flops import model_flops_per_step
from tests.costmodels.korthikanti import MODELS

MEDIAN_TOLERANCE, WORST_TOLERANCE = 0.05, 0.10
"""Asked for: 10 % in the median. Reached: 0.9 % in the median, 4.8 % at worst (1T, too slow)."""


@pytest.fixture(scope="module")
def priced(read_rows, real_pool, toy_problem, plain_layout):
    """Every row with its breakdown."""
    out = []
    for row in read_rows("korthikanti_table5.csv"):
        number = {
            key: int(row[key]) for key in ("n_devices", "gbs", "mbs", "tp", "pp", "vpp", "sp")
        }
        pool = real_pool("a100-sxm-80gb", number["n_devices"] // 8, "ib-hdr-200")
        shape = MODELS[row["model"]]
        problem = toy_problem(shape, pool, "megatron-lm-2022", None, 2048, number["gbs"], "fp16")
        layout = plain_layout(
            problem,
            number["tp"],
            number["pp"],
            1,
            number["vpp"],
            number["mbs"],
            0,
            bool(number["sp"]),
            row["recompute"],
        )
        assert layout.schedule == row["schedule"]
        assert layout.n_devices == number["n_devices"]
        out.append((row, problem, break_down(problem, layout)))
    return out


def test_the_eight_iteration_times(priced):
    errors = np.array([found.step_s / float(row["step_s"]) - 1 for row, _, found in priced])
    assert len(errors) == 8
    assert np.median(np.abs(errors)) < MEDIAN_TOLERANCE
    assert np.max(np.abs(errors)) < WORST_TOLERANCE


def test_what_sequence_parallelism_and_selective_recompute_gain(priced):
    # The paper's point: 29 to 32 % more throughput; measured ratios 1.29, 1.32, 1.30, 1.32.
    for (full, _, slow), (selective, _, fast) in zip(priced[::2], priced[1::2], strict=True):
        measured = float(full["step_s"]) / float(selective["step_s"])
        assert slow.step_s / fast.step_s == pytest.approx(measured, rel=0.03)


def test_the_published_model_flops_utilisation(priced):
    # MFU of the sequence-parallel rows, Megatron-LM README: 41.5, 51.4, 56.0, 56.3 %. It counts
    # full attention (1 + s/6h), Megatron's present counter the causal half.
    for (_, problem, found), published in zip(
        priced[1::2], (0.415, 0.514, 0.56, 0.563), strict=True
    ):
        shape, job = problem.shape, problem.job
        flops = model_flops_per_step(shape, job)
        flops += 6.0 * shape.layers * shape.q_width * job.seq_len * job.tokens_per_step
        mfu = flops / (found.step_s * found.layout.n_devices * 312e12)
        assert mfu == pytest.approx(published, rel=0.08)


def test_every_run_fits_its_devices(priced):
    for _, problem, found in priced:
        assert found.peak_bytes < problem.pool.usable_bytes


def test_the_closed_form_is_near_the_recurrence(priced):
    for _, _, found in priced:
        assert found.closed_form_step_s == pytest.approx(found.step_s, rel=0.05)
