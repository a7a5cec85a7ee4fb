"""What several residual streams add outside layers: messages, inputs that are kept, the head."""

import numpy as np
from numpy.typing import ArrayLike

from costmodels.layers.compute import ForwardBackward
from costmodels.layers.gemm import gemm_s, linear_rate_frac
from costmodels.layers.layer_kind import Floats, LayerInputs
from costmodels.shapes import ModelShape


def n_streams(shape: ModelShape) -> int:
    """Return the residual streams of a model: what a stage sends and a layer's input is wide."""
    return shape.residual_streams.count if shape.residual_streams else 1


def collapse_s(inputs: LayerInputs) -> ForwardBackward:
    """Return the time in which all streams become one in front of the final norm, seconds.

    Numbers and sum read the streams twice and write one, 2 n + 1 elements; 5 n + 1 backward (sum
    2 n + 1, numbers 2 n, their gradients added n). Streams are made of the embedding, n elements
    written, and their gradients are added, n read: those are here too. 0 for one stream.
    """
    n, zeros = float(n_streams(inputs.problem.shape)), np.zeros_like(inputs.tokens)
    if n == 1.0:
        return ForwardBackward(zeros, zeros)
    problem, part = inputs.problem, inputs.problem.pool.accelerator
    moved = inputs.tokens * inputs.element_bytes * problem.shape.hidden
    moved = moved / np.where(inputs.sp > 0, inputs.split.tp.astype(np.float64), 1.0)
    per_byte = problem.stack.elementwise_factor / (part.hbm_bytes_per_s * part.efficiency.hbm_frac)
    launch_s = 3.0 * part.efficiency.kernel_latency_s
    return ForwardBackward(
        moved * (3.0 * n + 1.0) * per_byte + launch_s,
        moved * (6.0 * n + 1.0) * per_byte + launch_s,
    )


def mtp_streams_s(inputs: LayerInputs) -> ForwardBackward:
    """Return what a module of multi-token prediction takes more with several streams, seconds.

    The projection of hidden states meets every stream: n - 1 products h -> h / t more than
    `mtp_times` has. Source: Megatron-Bridge models/deepseek/deepseek_v4_bridge.py (e_proj and
    h_proj).
    """
    more, zeros = n_streams(inputs.problem.shape) - 1.0, np.zeros_like(inputs.tokens)
    if not more:
        return ForwardBackward(zeros, zeros)
    problem, t = inputs.problem, inputs.split.tp.astype(np.float64)
    part, recipe, h = problem.pool.accelerator, problem.job.recipe, float(problem.shape.hidden)
    rate, rows = linear_rate_frac(recipe, part), more * inputs.tokens
    sizes = ((rows, h, h / t, rate), (rows, h / t, h, rate))
    forward, dgrad = (gemm_s(a, b, c, part, recipe.linear, r) for a, b, c, r in sizes)
    slower = rate * part.efficiency.wgrad_frac
    wgrad = gemm_s(h, rows, h / t, part, recipe.linear, slower)
    return ForwardBackward(forward, dgrad + wgrad)


def collapse_bytes(shape: ModelShape, tokens: ArrayLike, parts: ArrayLike, width: float) -> Floats:
    """Return the streams that the head keeps for its backward, bytes; 0 for one stream.

    n h elements a token, over the ranks that cut a sequence (`parts`). Left out: their copies in
    fp32 of eager operators.
    """
    n = n_streams(shape)
    kept = np.asarray(tokens, dtype=np.float64) * width * shape.hidden * n / np.asarray(parts)
    return np.asarray(kept if n > 1 else 0.0 * kept)
