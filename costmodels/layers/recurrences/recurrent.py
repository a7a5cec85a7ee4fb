"""Mixers with a state in place of attention: what those of all kinds have in common.

A projection to all inputs of the recurrence, a short convolution over some of them, a scan that
runs chunk by chunk (products inside chunks, a state from chunk to chunk), a gated norm, and the
projection back. Heads are cut over tp, and over cp by all-to-alls of heads for sequence.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from costmodels.comm.collectives import collective_s
from costmodels.comm.context_parallel import context_group
from costmodels.comm.exposure import Exposure
from costmodels.layers.compute import ForwardBackward, LinearTimes, products_of
from costmodels.layers.layer_kind import Floats, LayerInputs
from costmodels.layers.recompute import Modules
from costmodels.layers.sublayers.sublayer import MixerTerms, elementwise_s, ends_bytes

SCAN_RATE_FRAC = 0.5
"""Rate of the small products of a scan over that of a large product: assumed, as of the batched
scores of an unfused attention; scans of published sizes are bound by memory."""
DENSE_KERNELS = 13
"""Kernels of a dense layer's forward in Transformer Engine (`launches.ATTENTION_SHARE`)."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """One mixer on one rank; per token unless said, arrays of one length.

    Bytes are those of activations in 16 bits.
    """

    in_width: Floats
    """Columns of the projections from the residual stream."""
    out_width: Floats
    """Rows of the projection back to it."""
    elementwise_bytes: tuple[Floats, Floats]
    """What convolution, gates and gated norm move, forward and backward."""
    scan_flops: tuple[Floats, Floats]
    scan_bytes: tuple[Floats, Floats]
    """What the kernels of the scan move, forward and backward."""
    scan_kernels: tuple[int, int]
    kept_bytes: Floats
    """Tensors that the backward needs, between the projections and with the last one's input."""
    backward_bytes: Floats
    """Temporaries of the backward of scan and convolution."""
    exchanged: tuple[Floats, ...]
    """Elements of the all-to-alls over cp in a forward."""
    kernels: int
    """Launches of a forward, the projections' included."""
    inner: tuple[tuple[Floats, Floats], ...] = ()
    """Further products between the projections, (inner, columns) each."""


def recurrent_terms(
    inputs: LayerInputs, one: Recurrence, modules: Callable[[LayerInputs], Modules] | None = None
) -> MixerTerms:
    """Return the terms of a recurrence.

    t_scan = max( FLOPs / (P eta / 2),  bytes / B_hbm ) + launches

    each way, P eta the sustained rate of a large product. In the linear layers of fp8 and fp4
    recipes the inputs of both projections are kept quantised. All-to-alls are exposed, two of
    each width in a forward and as many backward. Left out: overlap of copies with products,
    padding of the last chunk.
    """
    problem, tokens, tp = inputs.problem, inputs.tokens, inputs.split.tp
    part, width = problem.pool.accelerator, inputs.element_bytes
    wide, saved = width / 2.0, inputs.micro_batch.quantized.saved_bytes
    cut = np.where(inputs.sp > 0, tp.astype(np.float64), 1.0)
    quantized = saved * (problem.shape.hidden / cut + one.out_width)
    forward, backward = _exchange(inputs, one)
    ahead, after = one.elementwise_bytes
    scratch = np.zeros_like(tokens)
    if problem.stack.fused_wgrad:
        scratch = 2.0 * problem.shape.hidden * (one.in_width + one.out_width)
        scratch = scratch + sum(2.0 * k * n for k, n in one.inner)
    return MixerTerms(
        linear=_linear_times(inputs, one),
        elementwise=elementwise_s(inputs, wide * ahead, wide * after),
        blocks=1,
        launches=one.kernels / DENSE_KERNELS,
        kept_bytes=ends_bytes(inputs) + tokens * (wide * one.kept_bytes - quantized),
        modules=modules(inputs) if modules else {},
        scratch_bytes=scratch,
        core=ForwardBackward(
            *(
                scan_s(inputs, flops, wide * moved) + kernels * part.efficiency.kernel_latency_s
                for flops, moved, kernels in zip(
                    one.scan_flops, one.scan_bytes, one.scan_kernels, strict=True
                )
            )
        ),
        cp_forward=forward,
        cp_backward=backward,
        buffer_bytes=tokens * wide * one.backward_bytes,
    )


def _linear_times(inputs: LayerInputs, one: Recurrence) -> LinearTimes:
    problem, h = inputs.problem, float(inputs.problem.shape.hidden)
    part, stack = problem.pool.accelerator, problem.stack
    three = products_of(problem.shape.layers, problem.job, part, stack)
    column = [three(inputs.tokens, h, one.in_width)]
    column += [three(inputs.tokens, k, n) for k, n in one.inner]
    forward, dgrad, wgrad = (np.asarray(sum(x)) for x in zip(*column, strict=True))
    return LinearTimes(forward, dgrad, wgrad, *three(inputs.tokens, one.out_width, h))


def scan_s(inputs: LayerInputs, flops: Floats, moved_bytes: Floats) -> Floats:
    """Return the time of small products that move so many bytes, a token, without launches."""
    part, job = inputs.problem.pool.accelerator, inputs.problem.job
    precision = "fp16" if job.recipe.gemm_precision == "fp16" else "bf16"
    peaks = part.peak_flops_per_s
    peak = peaks[precision if precision in peaks else job.recipe.gemm_precision]
    rate = peak * part.efficiency.gemm_frac * SCAN_RATE_FRAC
    bandwidth = part.hbm_bytes_per_s * part.efficiency.hbm_frac
    return np.asarray(inputs.tokens * np.maximum(flops / rate, moved_bytes / bandwidth))


def _exchange(inputs: LayerInputs, one: Recurrence) -> tuple[Exposure, Exposure]:
    """Return the all-to-alls of heads for sequence over cp; backward sends the gradients."""
    total = exchange_s(inputs, one.exchanged)
    return Exposure(total, total), Exposure(total, total)


def exchange_s(inputs: LayerInputs, widths: tuple[Floats, ...]) -> Floats:
    """Return the time of an all-to-all over cp for each width, elements of a token; seconds."""
    total = np.zeros_like(inputs.tokens)
    if np.all(inputs.split.cp == 1):
        return total
    problem = inputs.problem
    group = context_group(problem, inputs.split.context)
    hops_s = problem.stack.tp_hop_s * (inputs.split.cp - 1.0)
    for width in widths:
        size = inputs.element_bytes * inputs.tokens * width
        total = total + collective_s("all-to-all", size, group, problem.pool) + hops_s
    return np.where(inputs.split.cp > 1, total, 0.0)
