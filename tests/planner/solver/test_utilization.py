"""MFU over the peak of the matrix products, and over that of bf16 beside it."""

import pytest

import planner
from costmodels.layers.flops import model_flops_per_step
from planner.render.answers.result import result_document
from planner.render.terminal import terminal_text
from planner.solver.answer.result import Result
from planner.solver.answer.utilization import mfu_words

PINS = {"devices": 8, "tp": 2, "mbs": 1}


def test_fp8_has_mfu_over_both_peaks():
    plan = planner.solve("llama3-8b", "h100-x8", pins={**PINS, "precision": "fp8-tensorwise"}).best
    problem = plan.breakdown.rows.problem
    flops = model_flops_per_step(problem.shape, problem.job)
    # H100 SXM: 989.4 TFLOP/s in bf16, 1,978.9 in fp8 (NVIDIA's data sheet, dense).
    assert plan.mfu_bf16 == pytest.approx(flops / (plan.step_time_s * 8 * 989.4e12), rel=1e-3)
    assert plan.mfu_bf16 == pytest.approx(2 * plan.mfu, rel=1e-3)
    assert plan.mfu_over_bf16 == plan.mfu_bf16
    assert "of the bf16 peak" in mfu_words(plan)


def test_bf16_says_it_once():
    plan = planner.solve("llama3-8b", "h100-x8", pins=PINS).best
    assert plan.mfu_bf16 == plan.mfu
    assert plan.mfu_over_bf16 is None
    assert "bf16" not in mfu_words(plan)


def test_the_table_has_the_column_where_it_says_more():
    pins = {**PINS, "precision": "fp8-tensorwise"}
    low, plain = (
        planner.solve("llama3-8b", "h100-x8", pins=pins),
        planner.solve("llama3-8b", "h100-x8", pins=PINS),
    )
    assert "bf16%" in terminal_text(result_document(low))
    assert "bf16%" not in terminal_text(result_document(plain))
    again = Result.from_json(low.to_json())
    assert again.best.mfu_bf16 == low.best.mfu_bf16
