"""The first Mamba layer: a state of N elements for every channel, decayed by its own number."""

import numpy as np
from numpy.typing import ArrayLike

from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.recurrences.recurrent import Recurrence, recurrent_terms
from costmodels.layers.sublayers.sublayer import HeadsCut, Mixer, MixerTerms, norm_params, ranks
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import Mamba1Shape, ModelShape

VECTOR_SHARE = 8.0
"""Rate of the small products of a scan over that of fp32 outside the tensor cores, where this scan
runs: the latter is 1/16 of the rate in bf16 (A100 19.5 of 312, H100 67 of 989 TFLOP/s)."""


def _sizes(shape: ModelShape) -> Mamba1Shape:
    assert shape.mamba1 is not None  # checked where the model is read
    return shape.mamba1


def mamba1_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of a first Mamba layer and its norm on one tensor-parallel rank.

    N = [3 h d + (2 r + 2 n) d + (c + 1) d + d + d n + d] / t + h

    d the inner width, n the state, r the rank of dt, c the taps of the convolution (with a bias);
    dt has a bias, A is d n, D is d. Source: mamba_ssm modules/mamba_simple.py.
    """
    x = _sizes(shape)
    vectors = (x.conv + 1) * x.inner + x.inner * (x.state + 2)
    return np.asarray(mamba1_linear_params(shape, tp) + vectors / ranks(tp) + norm_params(shape))


def mamba1_linear_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of its linear layers: [3 h d + d (r + 2 n) + r d] / t."""
    x = _sizes(shape)
    width = 3 * shape.hidden + 2 * x.dt_rank + 2 * x.state
    return np.asarray(x.inner * width / ranks(tp))


def mamba1_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return its four projections, x and z in one, and A.

    A is d n, a matrix by its two dimensions although no product has it; filters have three.
    Source: mamba_ssm modules/mamba_simple.py (in_proj, x_proj, dt_proj, out_proj, A_log).
    """
    x = _sizes(shape)
    return (
        Matrix(2 * x.inner, shape.hidden, cut="rows"),
        Matrix(x.dt_rank + 2 * x.state, x.inner, cut="columns"),
        Matrix(x.inner, x.dt_rank, cut="rows"),
        Matrix(shape.hidden, x.inner, cut="columns"),
        Matrix(x.inner, x.state, cut="rows"),
    )


def mamba1_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of a token: the linear layers, and 4.5 d n of the scan.

    Source: mamba_ssm, flops_selective_scan_ref: 9 d n FLOPs. Left out: the convolution.
    """
    x, one = _sizes(shape), np.ones(1, dtype=np.int32)
    projections = round(mamba1_linear_params(shape, one).item())
    scan = 4.5 * x.inner * x.state
    return LayerMacs(projections, 0, 0, {}, lambda seq_len: scan)


def mamba1_recurrence(inputs: LayerInputs) -> Recurrence:
    """Return what a first Mamba layer of one rank is to `recurrent_terms`.

    Per token, with d of the rank:

    FLOPs   9 d n forward, 2.5 times that backward (states computed again), in fp32 on the vector
            units (`VECTOR_SHARE`)
    bytes   10 d + 4 n forward (x, dt, z, B, C; output and gated output), 20 d + 8 n backward
    conv    4 bytes an element of d forward, 10 backward (computed again)
    kept    4 d, the projection's output; 2 (r + 2 n); 2 d, the scan's output

    Saved tensors: mamba_ssm ops/selective_scan_interface.py, MambaInnerFn (checkpoint_lvl 1);
    operands of its kernels, counted by hand. Left out: the sum over tp of the r + 2 n columns.
    """
    x, t = _sizes(inputs.problem.shape), ranks(inputs.split.tp)
    d, n = x.inner / t, float(x.state)
    small = x.dt_rank + 2.0 * n
    flops = 9.0 * d * n * VECTOR_SHARE
    return Recurrence(
        in_width=2 * d,
        out_width=d,
        elementwise_bytes=(4 * d, 10 * d),
        scan_flops=(flops, 2.5 * flops),
        scan_bytes=(10 * d + 4 * n, 20 * d + 8 * n),
        scan_kernels=(1, 1),
        kept_bytes=6 * d + 2 * small,
        backward_bytes=10 * d + 2 * small,
        exchanged=exchanged(inputs.problem.shape, inputs.split.tp, inputs.split.cp),
        kernels=8,
        inner=((d, small + 0 * d), (x.dt_rank + 0 * d, d)),
    )


def exchanged(shape: ModelShape, tp: Ints, cp: ArrayLike) -> tuple[Floats, ...]:
    """Return the elements of a token in the all-to-alls of a forward: x and z; the output."""
    width = _sizes(shape).inner / ranks(tp)
    return 2 * width, width


def mamba1_terms(inputs: LayerInputs) -> MixerTerms:
    """Return the terms of a first Mamba layer."""
    return recurrent_terms(inputs, mamba1_recurrence(inputs))


MAMBA1 = Mixer(
    name="mamba1",
    title="the first Mamba",
    equation="x + W_o (gate(z) scan(conv(x), dt(x), B(x), C(x))), x and z W_i norm(x)",
    source="Gu and Dao 2023 (arXiv 2312.00752); mamba_ssm modules/mamba_simple.py",
    params=mamba1_params,
    replicated_params=norm_params,
    linear_params=mamba1_linear_params,
    macs=mamba1_macs,
    terms=mamba1_terms,
    modules=lambda shape: (),
    section="mamba1",
    exchanged=exchanged,
    cut_over=lambda shape: HeadsCut(_sizes(shape).inner, _sizes(shape).inner),
    frameworks=("deepspeed", "fsdp2"),
    matrices=mamba1_matrices,
)
