"""Adapters of one layer: their parameters and the time of their products."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.layers.gemm import gemm_s
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.tuning.records import TuningJob
from costmodels.tuning.targets import (
    COLUMNS,
    EXPERTS,
    ROWS,
    LinearLayer,
    adapted,
    attention_linears,
    mlp_linears,
)
from hardware.parts import Accelerator

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

ADAPTER_LAUNCHES = 0.09
"""Kernels of one adapter over those of a dense layer, both directions: 5 forward (dropout, A, B,
scale, sum) and 8 backward (scale, B twice, A twice, dropout, two sums) against some 145."""
FROZEN_LAUNCHES = 0.03
"""Kernels of the weight gradients that a layer has no more, over those of a dense layer: 4."""
DEQUANTIZE_LAUNCHES = 0.1
"""Kernels that widen the seven quantized weights of a layer, forward and backward, over those of a
dense layer."""


def adapter_sizes(
    linear: LinearLayer, rank: int, shape: ModelShape, tp: ArrayLike
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return what a rank holds of A (inner, columns) and of B (inner, columns), elements.

    Of a linear layer with cut outputs A's columns are cut and B's; of one with cut inputs A's
    inputs and B's outputs. Source: NeMo Megatron-Bridge peft/utils.py (ParallelLinearAdapter).
    """
    t = np.asarray(tp, dtype=np.float64)
    one, r = np.ones_like(t), float(rank)
    inner, outer = linear.rank_sizes(shape, tp)
    a_columns = r / t if linear.cut == COLUMNS else r * one
    b_columns = outer / t if linear.cut == ROWS else outer
    return inner, a_columns, r * one, b_columns


def adapter_params(
    linears: Iterable[LinearLayer], rank: int, shape: ModelShape, tp: Ints
) -> Floats:
    """Return the parameters of the adapters of some linear layers on one of tp ranks.

    N = r (inner + outer) / t for each, r (inner + outer) where nothing is cut.
    Source: Hu et al. 2021 (LoRA), section 4.
    """
    total = np.zeros_like(tp, dtype=np.float64)
    for linear in linears:
        a_inner, a_columns, b_inner, b_columns = adapter_sizes(linear, rank, shape, tp)
        total = total + a_inner * a_columns + b_inner * b_columns
    return total


def layer_adapter_params(
    shape: ModelShape, tuning: TuningJob, tp: Ints, *, routed: bool
) -> Floats:
    """Return the adapters of one layer of attention and an MLP, without those of routed experts.

    A layer with routed experts has its shared ones in place of the MLP.
    """
    of_layer = shape.without_experts() if routed else shape
    linears = adapted((*attention_linears(of_layer), *mlp_linears(of_layer)), tuning.targets)
    return adapter_params(linears, tuning.rank, of_layer, tp)


def expert_adapter_params(
    shape: ModelShape, tuning: TuningJob, ep: ArrayLike, etp: ArrayLike
) -> Floats:
    """Return the adapters of the routed experts of one layer on one device.

    N = E r (h + c f_e + f_e + h) / (e t_e), c = 2 gated, 1 otherwise: one of each of the two
    matrices of every expert; 0 where experts are no target.
    """
    if EXPERTS not in tuning.targets:
        return np.zeros_like(np.asarray(ep), dtype=np.float64)
    width = np.asarray(ep, dtype=np.float64) * np.asarray(etp)
    up = (2 if shape.gated else 1) * shape.expert_ffn
    sizes = 2 * shape.expert_hidden + up + shape.expert_ffn
    return np.asarray(shape.n_experts * tuning.rank * sizes / width)


Three = tuple[Floats, Floats, Floats]
"""Forward, data gradient, weight gradient, seconds."""


def adapter_times(
    linears: Sequence[LinearLayer],
    shape: ModelShape,
    job: TrainingJob,
    accelerator: Accelerator,
    tokens: Floats,
    tp: Ints,
) -> tuple[Three, Three]:
    """Return the times of adapters, of column-parallel and of other linear layers, seconds.

    A and B as products in 16 bits with both gradients, and their operators (`moved_bytes`) over
    the sustained bandwidth. Left out: collectives of rank r.
    """
    assert job.tuning is not None  # asked for of adapters alone
    tuning, precision, eff = job.tuning, job.recipe.gemm_precision, accelerator.efficiency
    per_byte = 1.0 / (accelerator.hbm_bytes_per_s * eff.hbm_frac)
    n, zero = np.asarray(tokens, dtype=np.float64), np.zeros(np.broadcast_shapes(np.shape(tokens)))
    sums = {True: [zero, zero, zero], False: [zero, zero, zero]}
    for linear in adapted(linears, tuning.targets):
        a_inner, a_columns, b_inner, b_columns = adapter_sizes(linear, tuning.rank, shape, tp)
        total = sums[linear.cut == COLUMNS]
        for inner, columns in ((a_inner, a_columns), (b_inner, b_columns)):
            total[0] = total[0] + gemm_s(n, inner, columns, accelerator, precision)
            total[1] = total[1] + gemm_s(n, columns, inner, accelerator, precision)
            wgrad_s = gemm_s(inner, n, columns, accelerator, precision, eff.wgrad_frac)
            total[2] = total[2] + wgrad_s
        ahead, back = moved_bytes(a_inner, b_columns, tuning)
        total[0] = total[0] + n * ahead * per_byte
        total[1] = total[1] + n * back * per_byte
    first, second = (tuple(sums[key]) for key in (True, False))
    return first, second  # type: ignore[return-value]  # three each


def moved_bytes(inner: Floats, outer: Floats, tuning: TuningJob) -> tuple[Floats, Floats]:
    """Return what the operators of one adapter move a token, forward and backward, bytes.

    10 o forward (scale 4, sum 6); 4 o + 6 i backward (scale, sum of the input's gradients); with
    dropout 5 i more each way. i and o are elements of input and output on the rank, each operator
    a kernel of its own. Source: peft tuners/lora/layer.py (Linear.forward), operand counts.
    """
    masks = 5.0 if tuning.dropout else 0.0
    return 10.0 * outer + masks * inner, 4.0 * outer + (6.0 + masks) * inner


def dequantize_s(weights: ArrayLike, tuning: TuningJob, accelerator: Accelerator) -> Floats:
    """Return the time to widen quantized weights to 16 bits once, seconds.

    (b + 2) w / B_hbm: b bytes a weight read, 2 written; 0 for weights in 16 bits. Needed at every
    use: forward, data gradient, and forward again. Source: bitsandbytes autograd/_functions.py
    (MatMul4Bit, MatMul8bitLt); Dettmers et al. 2023, section 3 (equation 6).
    """
    count = np.asarray(weights, dtype=np.float64)
    if not tuning.storage.is_quantized:
        return np.zeros_like(count)
    eff = accelerator.efficiency
    moved = (tuning.storage.weight_bytes + 2.0) * count
    return moved / (accelerator.hbm_bytes_per_s * eff.hbm_frac) + eff.kernel_latency_s


def launches_frac(shape: ModelShape, tuning: TuningJob | None) -> float:
    """Return the kernels of a dense layer with adapters over those of one that trains all."""
    if tuning is None:
        return 1.0
    n_adapters = len(adapted((*attention_linears(shape), *mlp_linears(shape)), tuning.targets))
    widened = DEQUANTIZE_LAUNCHES * tuning.storage.is_quantized
    return 1.0 - FROZEN_LAUNCHES + ADAPTER_LAUNCHES * n_adapters + widened
