"""Times of one layer and of the ends on a round-numbered accelerator."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.examples import GPT3_175B, toy_accelerator
from costmodels.layers.compute import (
    AttentionKernels,
    attention_times,
    elementwise_times,
    embedding_times,
    fused_kernel,
    head_times,
    linear_times,
    optimizer_s,
)
from costmodels.layers.gemm import gemm_s
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import EAGER, FUSED, STACKS

TOY = toy_accelerator()
MODEL = ModelShape(
    "toy",
    layers=24,
    hidden=2048,
    heads=16,
    kv_heads=8,
    head_dim=128,
    ffn=8192,
    gated=True,
    vocab=32000,
    tied=False,
)
GPT = replace(GPT3_175B, flash_attention=False)
JOB = TrainingJob(4096, 128)
LEAN = replace(FUSED, elementwise_factor=1.3)
HBM = 2e12 * 0.8
PEAK = TOY.peak_flops_per_s["bf16"]
LAUNCH = 4e-6


def one(value: float) -> np.ndarray:
    return np.array([float(value)])


def degree(value: int) -> np.ndarray:
    return np.array([value], dtype=np.int32)


def gemm(m: float, k: float, n: float, rate: float = 1.0) -> float:
    return gemm_s(m, k, n, TOY, "bf16", rate).item()


def test_linear_layers_are_twelve_products_of_the_expected_shapes():
    # t = 2: QKV 2048 -> (2048 + 2 * 1024)/2 = 2048, up 2048 -> 2 * 8192/2 = 8192 columns,
    # projection 1024 -> 2048, down 4096 -> 2048.
    times = linear_times(MODEL, JOB, TOY, FUSED, one(4096), degree(2))
    column, row = [(2048, 2048), (2048, 8192)], [(1024, 2048), (4096, 2048)]
    for layers, part in ((column, "column"), (row, "row")):
        forward = sum(gemm(4096, k, n) for k, n in layers)
        dgrad = sum(gemm(4096, n, k) for k, n in layers)
        # Four bytes of each weight read and four written, partly beside the product.
        wgrad = sum(math.hypot(gemm(k, 4096, n, 0.95), 8 * k * n / HBM) for k, n in layers)
        assert getattr(times, f"{part}_forward_s").item() == pytest.approx(forward, rel=1e-14)
        assert getattr(times, f"{part}_dgrad_s").item() == pytest.approx(dgrad, rel=1e-14)
        assert getattr(times, f"{part}_wgrad_s").item() == pytest.approx(wgrad, rel=1e-14)
    both = times.both
    assert both.total_s.item() == pytest.approx((both.forward_s + both.backward_s).item())


def test_flash_attention_by_hand():
    # 2 * 4096 * 2048 FLOPs a token * 4096 tokens = 6.8719e10; rate 300e12 * 4096/4496 * 0.6;
    # 16 heads * 32 tiles = 512 fill 100 multiprocessors.
    flops, rate = 6.8719476736e10, 300e12 * 4096 / 4496
    times = attention_times(MODEL, JOB, TOY, FUSED, one(4096), AttentionKernels(degree(1)))
    assert times.forward_s.item() == pytest.approx(flops / (rate * 0.6) + LAUNCH, rel=1e-12)
    assert times.backward_s.item() == pytest.approx(2.5 * flops / (rate * 0.5) + LAUNCH, rel=1e-12)


def test_few_local_heads_leave_multiprocessors_idle():
    # t = 8: 2 heads * 32 tiles = 64 of 100; t = 16: 32 of 100: the time stops falling.
    at = [
        attention_times(MODEL, JOB, TOY, FUSED, one(4096), AttentionKernels(degree(t)))
        for t in (1, 8, 16)
    ]
    first, eighth, sixteenth = (float(x.forward_s.item()) - LAUNCH for x in at)
    assert eighth == pytest.approx(first / 8 / 0.64, rel=1e-12)
    assert sixteenth == pytest.approx(eighth, rel=1e-12)


def test_unfused_attention_executes_the_square_and_moves_the_scores():
    # 96 heads * 2048 scores a token * 2048 tokens * 8 B over 1.6 TB/s; full square 4 s h_q.
    job = TrainingJob(2048, 64, "fp16")
    scores = 8 * 96 * 2048 * 2048 / HBM
    square = 4 * 2048 * 12_288 * 2048 / (300e12 * 0.75 * 0.5)
    times = attention_times(GPT, job, TOY, FUSED, one(2048), AttentionKernels(degree(1)))
    assert times.forward_s.item() == pytest.approx(square + scores + 4 * LAUNCH, rel=1e-12)
    assert times.backward_s.item() == pytest.approx(2 * square + scores + 4 * LAUNCH, rel=1e-12)


def test_the_fused_softmax_takes_score_matrices_in_fours():
    # 12 heads on each of 8 ranks, one sequence or two; 7 heads and one, two or four sequences.
    job, kernels = TrainingJob(2048, 64, "fp16"), AttentionKernels(degree(8))
    odd = replace(GPT, heads=56, kv_heads=56)
    for shape, sequences, per_score in ((GPT, 1, 8), (GPT, 2, 8), (odd, 2, 28), (odd, 4, 8)):
        n = sequences * 2048
        scores = per_score * shape.heads / 8 * 2048 * n / HBM
        square = 4 * 2048 * shape.q_width / 8 * n / (300e12 * 0.75 * 0.5)
        times = attention_times(shape, job, TOY, FUSED, one(n), kernels)
        assert times.forward_s.item() == pytest.approx(square + scores + 4 * LAUNCH, rel=1e-12)


@pytest.mark.parametrize(
    ("stack", "kernels", "chosen"),
    [
        ("fused", ("flash2", "flash3"), "flash3"),
        ("fused", ("cudnn", "flash2"), "cudnn"),
        ("deepspeed", ("cudnn", "flash2", "flash3"), "flash2"),
        ("deepspeed", ("cudnn", "unfused"), "cudnn"),  # not preferred, but fused
        ("deepspeed", ("unfused",), "unfused"),
    ],
)
def test_the_stack_prefers_and_the_part_decides(stack, kernels, chosen):
    known = dict.fromkeys(kernels, (0.5, 0.4))
    part = toy_accelerator(efficiency=replace(TOY.efficiency, attention_frac=known))
    assert fused_kernel(STACKS[stack], part) == chosen


def test_elementwise_by_hand():
    # Bytes a token, t = 1: 20 * 2048 + 4 (2048 + 1024) + 6 * 8192 = 102,400 forward, and
    # 20 * 2048 + 12,288 + 10 * 8192 = 135,168 backward; times 1.3 over 1.6 TB/s.
    times = elementwise_times(MODEL, TOY, LEAN, one(4096), degree(1), degree(0))
    assert times.forward_s.item() == pytest.approx(4096 * 102_400 * 1.3 / HBM + 6 * LAUNCH)
    assert times.backward_s.item() == pytest.approx(4096 * 135_168 * 1.3 / HBM + 6 * LAUNCH)
    # Norms as fp32 operators: 8 h and 12 h become five times that.
    naive = replace(LEAN, fused_norms=False)
    chain = elementwise_times(MODEL, TOY, naive, one(4096), degree(1), degree(0))
    more = 4096 * 4 * 2048 * 1.3 / HBM
    assert chain.forward_s.item() - times.forward_s.item() == pytest.approx(8 * more)
    assert chain.backward_s.item() - times.backward_s.item() == pytest.approx(12 * more)


def test_sequence_parallelism_divides_norms_and_residuals_too():
    plain = elementwise_times(GPT, TOY, LEAN, one(2048), degree(8), degree(0))
    split = elementwise_times(GPT, TOY, LEAN, one(2048), degree(8), degree(1))
    # 22 h with dropout: 7/8 of it is saved; no rotary, GeLU stays.
    saved = 2048 * 22 * 12_288 * 7 / 8 * 1.3 / HBM
    assert plain.forward_s.item() - split.forward_s.item() == pytest.approx(saved, rel=1e-9)
    whole = 2048 * (22 * 12_288 / 8 + 4 * 49_152 / 8) * 1.3 / HBM + 6 * LAUNCH
    assert split.forward_s.item() == pytest.approx(whole, rel=1e-12)


def test_head_by_hand():
    # V = 32000 = 125 * 256 (t = 2): 16000 columns; fused loss: 5 B a logit, half each way.
    times = head_times(MODEL, JOB, TOY, LEAN, one(4096), degree(2))
    loss = 4096 * (16_000 * 5 * 1.3 + 10 * 2048) / HBM / 2 + 4 * LAUNCH
    assert times.forward_s.item() == pytest.approx(gemm(4096, 2048, 16_000) + loss, rel=1e-12)
    backward = gemm(4096, 16_000, 2048) + gemm(2048, 4096, 16_000, 0.95) + loss
    assert times.backward_s.item() == pytest.approx(backward, rel=1e-12)
    eager = head_times(
        MODEL,
        JOB,
        TOY,
        replace(LEAN, elementwise_factor=2.6, fused_loss=False),
        one(4096),
        degree(2),
    )
    more = 4096 * 16_000 * (14 * 2.6 - 5 * 1.3)
    assert eager.forward_s.item() - times.forward_s.item() == pytest.approx(
        more / HBM / 2, rel=1e-9
    )
    # Gathered over t = 2: the loss runs on all 32000 columns, the product on its half.
    gathered = replace(LEAN, logits_sharded=False)
    whole = head_times(MODEL, JOB, TOY, gathered, one(4096), degree(2))
    more = 4096 * 16_000 * 5 * 1.3 / HBM / 2
    assert whole.forward_s.item() - times.forward_s.item() == pytest.approx(more, rel=1e-9)


@pytest.mark.parametrize(("recipe", "moved"), [("bf16", 10.0), ("bf16-grads", 6.0)])
def test_an_eager_stack_adds_each_weight_gradient_by_an_operator_of_its_own(recipe, moved):
    # Read the new gradient (2 bytes) and the sum, write the sum: 2 + 4 + 4, or 2 + 2 + 2.
    job = replace(JOB, precision=recipe)
    times = linear_times(MODEL, job, TOY, EAGER, one(4096), degree(1))
    product = gemm(2048, 4096, 2048, 0.95) + gemm(8192, 4096, 2048, 0.95)
    added = moved * (2048 * 2048 + 8192 * 2048) / HBM
    assert times.row_wgrad_s.item() == pytest.approx(product + added, rel=1e-12)


def test_a_fused_sum_costs_most_where_a_micro_batch_is_small():
    def share(tokens: float) -> float:
        found = linear_times(MODEL, JOB, TOY, FUSED, one(tokens), degree(1)).row_wgrad_s.item()
        return found / (gemm(2048, tokens, 2048, 0.95) + gemm(8192, tokens, 2048, 0.95))

    assert share(512) > share(2048) > share(16_384) > 1.0
    assert share(16_384) < 1.01


@pytest.mark.parametrize(
    ("name", "rate", "cast"), [("delayed", 0.9, 4.0), ("tensorwise", 0.9, 6.0)]
)
def test_fp8_layers_are_faster_by_hand(name, rate, cast):
    # Body in fp8: twice the peak at 0.9 of the share, `cast` bytes to quantise each input element.
    part = replace(TOY, peak_flops_per_s={**TOY.peak_flops_per_s, "fp8": 2 * PEAK})
    fp8 = replace(JOB, precision=f"fp8-{name}")
    found = linear_times(MODEL, fp8, part, FUSED, one(4096), degree(1))
    product = gemm_s(4096, 2048, 4096, part, "fp8", rate) + gemm_s(
        4096, 2048, 16_384, part, "fp8", rate
    )
    quantised = 2 * cast * 4096 * 2048 / HBM
    assert found.column_forward_s.item() == pytest.approx(product.item() + quantised, rel=1e-12)
    wgrad = 0.0
    for n in (4096, 16_384):
        product = gemm_s(2048, 4096, n, part, "fp8", 0.95 * rate).item()
        wgrad += math.hypot(product, 8 * 2048 * n / HBM)
    assert found.column_wgrad_s.item() == pytest.approx(wgrad, rel=1e-12)
    head = head_times(MODEL, fp8, part, LEAN, one(4096), degree(1))
    assert head == head_times(MODEL, JOB, part, LEAN, one(4096), degree(1))  # stays in bf16


def test_embedding_by_hand():
    times = embedding_times(MODEL, TOY, one(4096), degree(1), degree(0))
    assert times.forward_s.item() == pytest.approx(4096 * 4 * 2048 / HBM + LAUNCH)
    assert times.backward_s.item() == pytest.approx(4096 * 8 * 2048 / HBM + LAUNCH)
    dropped = embedding_times(GPT, TOY, one(4096), degree(8), degree(1))
    assert dropped.forward_s.item() == pytest.approx(4096 * (4 + 3 / 8) * 12_288 / HBM + LAUNCH)


def test_optimizer_by_hand():
    # G = 4: 4 N + (16 + 30) N / D; 2e9 parameters: 100 GB alone, 8 + 11.5 = 19.5 GB over 8.
    alone, shared = optimizer_s(
        np.array([2e9, 2e9]), np.array([1.0, 8.0]), np.array([1.0, 1.0]), 4.0, TOY
    )
    assert alone == pytest.approx(100e9 / HBM)
    assert shared == pytest.approx(19.5e9 / HBM)


def test_fp16_attention_uses_the_fp16_peak():
    peaks = {"bf16": 300e12, "fp16": 150e12, "tf32": 150e12}
    part = toy_accelerator(peak_flops_per_s=peaks)
    half = attention_times(
        MODEL, TrainingJob(4096, 1, "fp16"), part, FUSED, one(4096), AttentionKernels(degree(1))
    )
    full = attention_times(MODEL, JOB, part, FUSED, one(4096), AttentionKernels(degree(1)))
    ratio = (half.forward_s.item() - LAUNCH) / (full.forward_s.item() - LAUNCH)
    assert ratio == pytest.approx(2.0)


def layer_seconds(model: ModelShape, part, tokens: float, tp: int, sp: int) -> list[float]:
    """All terms of a layer and of the ends."""
    n, t, s = one(tokens), degree(tp), degree(sp)
    terms = [
        linear_times(model, JOB, part, FUSED, n, t).both,
        attention_times(model, JOB, part, FUSED, n, AttentionKernels(t)),
        elementwise_times(model, part, FUSED, n, t, s),
        head_times(model, JOB, part, FUSED, n, t),
        embedding_times(model, part, n, t, s),
    ]
    return [x for term in terms for x in (term.forward_s.item(), term.backward_s.item())]


@given(
    mbs=st.integers(1, 8),
    tp=st.sampled_from([1, 2, 4, 8]),
    sp=st.integers(0, 1),
    flash=st.booleans(),
    factor=st.floats(1.01, 3.0),
)
def test_every_term_falls_with_better_hardware_and_grows_with_work(mbs, tp, sp, flash, factor):
    model = replace(MODEL, flash_attention=flash)
    # Stored scores pass the fused softmax in fours, and otherwise eager operators.
    tokens = 4096 * (1 if flash else 4)
    base = layer_seconds(model, TOY, tokens * mbs, tp, sp)
    peaks = {name: factor * peak for name, peak in TOY.peak_flops_per_s.items()}
    better = [
        layer_seconds(model, toy_accelerator(peak_flops_per_s=peaks), tokens * mbs, tp, sp),
        layer_seconds(model, toy_accelerator(hbm_bytes_per_s=2e12 * factor), tokens * mbs, tp, sp),
    ]
    for faster in better:
        assert all(x <= y for x, y in zip(faster, base, strict=True))
    more = layer_seconds(model, TOY, tokens * (mbs + 1), tp, sp)
    assert all(x >= y * (1 - 1e-12) for x, y in zip(more, base, strict=True))
    split = layer_seconds(model, TOY, tokens * mbs, 2 * tp, sp)
    assert all(x <= y * (1 + 1e-12) for x, y in zip(split, base, strict=True))
