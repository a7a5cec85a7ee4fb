"""What layers of diffusion transformers are made of: streams of tokens, modulation, norms.

A stream is the tokens that share one set of weights: patches of latents, text, or both together.
All streams of a layer meet in one attention. Modulation is a scale and a shift of what a sublayer
takes and a gate of what it gives, the same for all tokens of a sample.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from costmodels.layers.compute import ForwardBackward, LinearTimes, products_of
from costmodels.layers.layer_kind import Floats, Ints, LayerInputs
from costmodels.layers.sublayers.sublayer import ranks
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import DiffusionShape, ModelShape

ALL: tuple[float, ...] = (1.0,)
"""Shares of the tokens where one set of weights serves all of them."""
NORM_STATISTICS_BYTES = 8.0
"""Mean and standard deviation of a token, fp32."""

Size = tuple[Floats, float | Floats, float | Floats]
"""Rows, inner length and columns of a product on one rank."""


def diffusion_sizes(shape: ModelShape) -> DiffusionShape:
    """Return the `diffusion` section of a model whose layers are of such kinds."""
    assert shape.diffusion is not None  # checked where the model is read
    return shape.diffusion


def two_streams(shape: ModelShape) -> tuple[float, float]:
    """Return the shares of patches and of text among the tokens of a sequence."""
    x = diffusion_sizes(shape)
    return x.latents / x.tokens, x.text_tokens / x.tokens


def condition_width(shape: ModelShape) -> int:
    """Return the width of the vector of step and pooled text."""
    return diffusion_sizes(shape).condition or shape.hidden


@dataclass(frozen=True, slots=True)
class Modulation:
    """Scales, shifts and gates that a layer has of its own, in vectors of the model's width."""

    made: int = 0
    """By matrices of the layer, from the vector of the step."""
    learned: int = 0
    """As a table that is added to what all layers have."""

    def params(self, shape: ModelShape, tp: Ints) -> Floats:
        """Return its parameters on one rank: n h (c + bias) / t, and the table whole.

        c is the width of the vector of the step. Source: diffusers models/normalization.py
        (AdaLayerNormZero), Megatron-Bridge diffusion/models/flux/flux_layer_spec.py (AdaLN, a
        column-parallel layer).
        """
        made = self.made * shape.hidden * (condition_width(shape) + shape.bias) / ranks(tp)
        return np.asarray(made + self.learned * shape.hidden)

    def weights(self, shape: ModelShape) -> int:
        """Return the weights of its matrices, uncut."""
        return self.made * shape.hidden * condition_width(shape)

    def macs(self, shape: ModelShape) -> float:
        """Return its multiply-adds over the tokens of a sequence: one vector a sample."""
        return self.weights(shape) / diffusion_sizes(shape).tokens

    def matrices(self, shape: ModelShape, parts: tuple[int, ...]) -> tuple[Matrix, ...]:
        """Return its matrices, one of each number of vectors in `parts`."""
        if not self.made:
            return ()
        width = condition_width(shape)
        return tuple(Matrix(n * shape.hidden, width, cut="rows") for n in parts)


def samples_of(inputs: LayerInputs) -> Floats:
    """Return the samples of a micro-batch: every rank of a context-parallel group has them all."""
    return inputs.tokens * inputs.split.cp / inputs.problem.job.seq_len


def product_sum(inputs: LayerInputs, sizes: Iterable[Size]) -> tuple[Floats, Floats, Floats]:
    """Return forward, data and weight gradient of some products one after another, seconds."""
    problem = inputs.problem
    part, stack = problem.pool.accelerator, problem.stack
    three = products_of(problem.shape.layers, problem.job, part, stack)
    total = (np.zeros_like(inputs.tokens),) * 3
    for size in sizes:
        first, second, third = three(*size)
        total = (total[0] + first, total[1] + second, total[2] + third)
    return total


def linear_of(inputs: LayerInputs, column: Iterable[Size], row: Iterable[Size]) -> LinearTimes:
    """Return the times of column-parallel and row-parallel products."""
    return LinearTimes(*product_sum(inputs, column), *product_sum(inputs, row))


def cut_of(inputs: LayerInputs) -> Floats:
    """Return over how many ranks tensors of full width are cut: tp with sequence parallelism."""
    return np.where(inputs.sp > 0, ranks(inputs.split.tp), 1.0)


def moved_s(
    inputs: LayerInputs, bytes_of_token: tuple[Floats, Floats], kernels: tuple[int, int]
) -> ForwardBackward:
    """Return the time of operators that move so many bytes a token, forward and backward."""
    problem = inputs.problem
    eff = problem.pool.accelerator.efficiency
    rate = problem.pool.accelerator.hbm_bytes_per_s * eff.hbm_frac
    per_byte = problem.stack.elementwise_factor / rate
    ahead, after = (inputs.tokens * x * per_byte for x in bytes_of_token)
    return ForwardBackward(
        ahead + kernels[0] * eff.kernel_latency_s, after + kernels[1] * eff.kernel_latency_s
    )


def modulated_bytes(inputs: LayerInputs) -> tuple[Floats, Floats]:
    """Return what a modulated sublayer moves beside its core, bytes a token, each way.

    In 16 bits, over t with SP. Forward 22 h: norm 4, scale 4, shift 4, gate 4, addition 6.
    Backward 32 h: norm 6, scale 8 with its sum, shift 2, gate 8 with its sum, addition 8 of two
    ways. 9 h more each way in fp32. Source: operands of diffusers models/normalization.py
    (AdaLayerNormZero) counted by hand.
    """
    wide = 9.0 if diffusion_sizes(inputs.problem.shape).wide_norms else 0.0
    width = inputs.problem.shape.hidden / cut_of(inputs)
    return (22.0 + wide) * width, (32.0 + wide) * width


def gathered_factor(inputs: LayerInputs) -> Floats:
    """Return over how many ranks the input of a product is cut: 1 where it is kept gathered."""
    cut = cut_of(inputs)
    return cut if inputs.problem.stack.sp_regather else np.ones_like(cut)


def modulated_kept_bytes(inputs: LayerInputs, *, is_feed: bool, is_gated: bool = True) -> Floats:
    """Return what norm, modulation and gate of a sublayer keep, bytes a token.

    The input of the norm with its two numbers, its output, that under modulation as the input of
    a product, and what the gate multiplies: 8 h in 16 bits. In fp32 (`wide_norms`) the norm has 8
    h of them, and the gate of a feed 4 h. A root mean square (`norm`) of single operators has 4 h
    more. Source: saved tensors of diffusers models/normalization.py,
    models/transformers/transformer_wan.py and transformer_ltx.py.
    """
    shape, e = inputs.problem.shape, inputs.element_bytes
    is_wide = diffusion_sizes(shape).wide_norms
    copy = 4.0 * (shape.norm == "rmsnorm")
    norm = ((8.0 if is_wide else 2.0 * e) + copy) * shape.hidden + NORM_STATISTICS_BYTES
    gate = (4.0 if is_wide and is_feed else e) * shape.hidden * is_gated
    return (norm + gate) / cut_of(inputs) + e * shape.hidden / gathered_factor(inputs)


def text_share(shape: ModelShape) -> float:
    """Return the text tokens of a sample over the tokens of its sequence."""
    x = diffusion_sizes(shape)
    return x.text_tokens / x.tokens
