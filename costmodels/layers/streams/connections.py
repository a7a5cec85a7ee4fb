"""Hyper-connections: how a sublayer reads and writes several residual streams (mHC).

A sublayer F of n streams X, each as wide as the model:

    X <- M^T X + b F(norm(a X))

a and b have n numbers, M n x n, all computed of the token's own streams; M is made doubly
stochastic by Sinkhorn-Knopp.
"""

from dataclasses import replace
from typing import TypeVar

import numpy as np

from costmodels.layers.compute import ForwardBackward
from costmodels.layers.layer_kind import Floats, LayerInputs
from costmodels.layers.sublayers.sublayer import SublayerTerms
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import ModelShape, StreamsShape

FUSED_KERNELS, DENSE_KERNELS = 4, 13
"""Launches of a connection's forward: numbers, Sinkhorn, reading, writing; of a dense layer's."""
EAGER_KERNELS, SINKHORN_KERNELS = 27, 4
"""The same of eager operators: casts, norm, product, three maps, reading and writing; and of each
turn of rows and columns a sum and a quotient."""
Terms = TypeVar("Terms", bound=SublayerTerms)


def numbers_of(streams: StreamsShape) -> int:
    """Return the numbers that a connection computes for a token: n of a, n of b, n^2 of M."""
    return streams.count * (streams.count + 2)


def connection_params(shape: ModelShape) -> int:
    """Return the parameters of one connection, whole on every tensor-parallel rank; 0 without.

    N = (n^2 + 2 n) (n h + 1) + 3

    A matrix from all streams to the numbers, a bias of each, a factor for each of a, b and M.
    Source: transformers models/deepseek_v4 (DeepseekV4HyperConnection); Xie et al. 2025, mHC.

    >>> from dataclasses import replace
    >>> from costmodels.examples import LLAMA3_8B
    >>> connection_params(replace(LLAMA3_8B, residual_streams=StreamsShape(4)))
    393243
    """
    x = shape.residual_streams
    if x is None:
        return 0
    return numbers_of(x) * (x.count * shape.hidden + 1) + 3


def collapse_params(shape: ModelShape) -> int:
    """Return the parameters of what makes one stream of all behind the last layer; 0 without.

    N = n (n h + 1) + 1. Source: transformers models/deepseek_v4 (DeepseekV4HyperHead).
    """
    x = shape.residual_streams
    if x is None:
        return 0
    return x.count * (x.count * shape.hidden + 1) + 1


def connection_macs(shape: ModelShape) -> int:
    """Return the multiply-adds of a token in one connection: (n^2 + 2 n) n h + n^2 h; 0 without.

    The numbers, and M^T X. Left out: a X and b F, which multiply elements, and Sinkhorn.
    """
    x = shape.residual_streams
    if x is None:
        return 0
    return (numbers_of(x) * x.count + x.count**2) * shape.hidden


def collapse_macs(shape: ModelShape) -> int:
    """Return the multiply-adds of a token in front of the head: n^2 h; 0 without streams."""
    x = shape.residual_streams
    return x.count**2 * shape.hidden if x else 0


def connection_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """Return the matrix of one connection; no tensor-parallel rank cuts it."""
    x = shape.residual_streams
    return (Matrix(numbers_of(x), x.count * shape.hidden),) if x else ()


def connection_tensors(shape: ModelShape) -> list[float]:
    """Return the parameters of one connection, tensor by tensor."""
    x = shape.residual_streams
    if x is None:
        return []
    numbers = numbers_of(x)
    return [float(numbers * x.count * shape.hidden), float(numbers), 3.0]


def _moved_elements(streams: StreamsShape, inputs: LayerInputs) -> tuple[float, float]:
    """Return what one connection moves, in widths of the model in 16 bits, forward and backward.

    Fused forward 4 n + 2: streams for the numbers n, for reading n and the sum 1, for writing n,
    what the sublayer gave 1, and the streams n. Backward 12 n + 3: of writing 3 n + 2, of reading
    2 n + 1, of the numbers 3 n, three gradients of the streams added 4 n.
    Eager forward 26 n + 6: cast 3, square 4, mean 2, scaling 4, product 2, reading 3 n + 2 n and
    its sum and cast 5, writing n + 1, M^T X 2 n, their sum 3 n; twice that backward (assumed).
    Source: operands of Megatron-LM core/transformer/hyper_connection.py and of transformers
    models/deepseek_v4, counted by hand.
    """
    n = float(streams.count)
    if inputs.problem.stack.fused_norms:
        return 4.0 * n + 2.0, 12.0 * n + 3.0
    return 26.0 * n + 6.0, 52.0 * n + 12.0


def connection_s(inputs: LayerInputs) -> ForwardBackward:
    """Return what a connection takes beyond the residual addition of one stream, seconds.

    t = T h w (elements - 3, 2) f / (t_sp B_hbm) + launches

    w bytes an element; 3 of them forward and 2 backward are the addition that it replaces, which
    `elementwise_s` has. f the stack's factor. Left out: the product of the numbers where it runs
    in fp32 outside tensor cores, which takes about as long as its bytes; the small Sinkhorn
    matrices, which stay in registers (in eager operators their launches count).
    """
    problem, x = inputs.problem, inputs.problem.shape.residual_streams
    assert x is not None  # checked by the caller
    part = problem.pool.accelerator
    per_byte = problem.stack.elementwise_factor / (part.hbm_bytes_per_s * part.efficiency.hbm_frac)
    width = inputs.tokens * inputs.element_bytes * problem.shape.hidden / _parts(inputs) * per_byte
    ahead, after = _moved_elements(x, inputs)
    launch_s = _kernels(x, inputs) * part.efficiency.kernel_latency_s
    return ForwardBackward(
        width * (ahead - 3.0) + launch_s, width * (after - 2.0) + 2.0 * launch_s
    )


def _kernels(streams: StreamsShape, inputs: LayerInputs) -> float:
    if inputs.problem.stack.fused_norms:
        return float(FUSED_KERNELS)
    return float(EAGER_KERNELS + SINKHORN_KERNELS * streams.sinkhorn_steps)


def _parts(inputs: LayerInputs) -> Floats:
    """Return over how many ranks the streams of a token are cut: t with sequence parallelism."""
    return np.where(inputs.sp > 0, inputs.split.tp.astype(np.float64), 1.0)


def connection_bytes(inputs: LayerInputs) -> Floats:
    """Return what a connection keeps for its backward beside the norm it feeds, bytes.

    Per token, over t with SP: 2 n h of the streams and 2 h of what the sublayer gave, in 16 bits;
    8 (n^2 + 2 n) of the numbers before and after their maps, in fp32.

    Eager operators keep the streams in fp32 before and after scaling, 8 n h more, and every step
    of Sinkhorn: 8 I n^2 + 4 n (2 I - 1) beside 6 n^2 + 22 n + 4 of the numbers, I turns.
    Source: scripts/check_layers, tensors of transformers models/deepseek_v4.
    """
    x, h = inputs.problem.shape.residual_streams, float(inputs.problem.shape.hidden)
    assert x is not None  # checked by the caller
    n, wide, turns = float(x.count), inputs.element_bytes, float(x.sinkhorn_steps)
    total = wide * (n + 1.0) * h
    if inputs.problem.stack.fused_norms:
        total += 8.0 * numbers_of(x)
    else:
        total += 8.0 * n * h + 6.0 * n**2 + 22.0 * n + 4.0
        total += 8.0 * turns * n**2 + 4.0 * n * (2.0 * turns - 1.0)
    return np.asarray(inputs.tokens * total / _parts(inputs))


def with_connection(inputs: LayerInputs, terms: Terms) -> Terms:
    """Return the terms of a sublayer with its connection; as they are for one residual stream."""
    x = inputs.problem.shape.residual_streams
    if x is None:
        return terms
    return replace(
        terms,
        elementwise=terms.elementwise + connection_s(inputs),
        launches=terms.launches + _kernels(x, inputs) / DENSE_KERNELS,
        kept_bytes=terms.kept_bytes + connection_bytes(inputs),
    )


def backward_bytes(inputs: LayerInputs) -> Floats | float:
    """Return the gradients of the streams while a sublayer runs backward, beyond those of one.

    2 (n - 1) widths: of the streams behind the sublayer and before it. 0 without streams.
    """
    x = inputs.problem.shape.residual_streams
    if x is None:
        return 0.0
    wide = inputs.element_bytes * inputs.problem.shape.hidden
    return np.asarray(inputs.tokens * 2.0 * (x.count - 1.0) * wide / _parts(inputs))
