"""The ends of a diffusion transformer: what makes tokens of latents and text, and latents again.

They stand in place of embedding and head, on the first and the last stage. Patches of latents and
text embeddings are brought to the width of the model; the step, the strength of guidance and a
pooled embedding become one vector a sample; behind the layers a norm under modulation and one
product give what the loss compares with the target.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.layers.compute import ForwardBackward
from costmodels.layers.diffusion.streams import (
    condition_width,
    cut_of,
    diffusion_sizes,
    moved_s,
    product_sum,
    samples_of,
)
from costmodels.layers.layer_kind import LayerInputs
from costmodels.shapes import ModelShape

Floats = NDArray[np.float64]

REFINER_RATIO = 4
"""Inner width of the MLP of a layer that refines text, over that of the model (HunyuanVideo)."""
LOSS_BYTES = 28.0
"""Of a number of the output: the target read and widened, difference, square and gradient."""


@dataclass(frozen=True, slots=True)
class EndProduct:
    """One linear layer of the ends, whole on every rank."""

    rows: float
    """Of a sample."""
    inner: int
    columns: int
    reads_data: bool = False
    """Its input is data: no gradient of it is computed."""
    is_biased: bool = True
    """It has a bias where the model has biases."""

    def params(self, shape: ModelShape) -> int:
        """Return its weights, and its bias."""
        return self.columns * (self.inner + (shape.bias and self.is_biased))

    @property
    def ahead_flops(self) -> float:
        """Forward of a sample: 2 FLOPs a multiply-add."""
        return 2.0 * self.rows * self.inner * self.columns

    @property
    def flops(self) -> float:
        """Forward plus backward of a sample: 2 FLOPs a multiply-add, three or two products."""
        return (2 if self.reads_data else 3) * self.ahead_flops


def _embedder(inner: int, width: int) -> list[EndProduct]:
    """Return the two products that make a vector of a sample."""
    return [EndProduct(1.0, inner, width, reads_data=True), EndProduct(1.0, width, width)]


def _refiner(shape: ModelShape) -> list[EndProduct]:
    """Return the products of the small encoder that text runs through.

    A vector of the step and of the mean of the text gates each sublayer; a layer has attention and
    an MLP of four times the width. Source: diffusers
    models/transformers/transformer_hunyuan_video.py (HunyuanVideoTokenRefiner).
    """
    x, h = diffusion_sizes(shape), shape.hidden
    if not x.refiner_layers:
        return []
    tokens, wide = float(x.text_tokens), REFINER_RATIO * h
    layer = [
        *[EndProduct(tokens, h, h)] * 4,
        EndProduct(tokens, h, wide),
        EndProduct(tokens, wide, h),
        EndProduct(1.0, h, 2 * h),
    ]
    vectors = [*_embedder(x.time_width, h), *_embedder(x.text_width, h)]
    return [*vectors, *layer * x.refiner_layers]


def input_products(shape: ModelShape) -> list[EndProduct]:
    """Return the products before the layers: patches, text, the vector of a sample, modulation.

    Sources: diffusers models/embeddings.py (PatchEmbed, PixArtAlphaTextProjection,
    CombinedTimestepGuidanceTextProjEmbeddings), normalization.py (AdaLayerNormSingle),
    transformers/transformer_flux2.py.
    """
    x, h, c = diffusion_sizes(shape), shape.hidden, condition_width(shape)
    found = [EndProduct(float(x.latents), x.patch_inputs, h, reads_data=True)]
    widths = (x.text_width, *(h for _ in range(x.text_layers)))
    for i in range(x.text_layers):
        is_first = i == 0 and not x.text_norm
        found.append(EndProduct(float(x.text_tokens), widths[i], h, reads_data=is_first))
    found += _embedder(x.time_width, c) * (1 + x.guidance)
    found += _embedder(x.pooled_width, c) if x.pooled_width else []
    if x.modulation == "table":
        found.append(EndProduct(1.0, c, 6 * h))
    if x.modulation == "shared":
        found += [EndProduct(1.0, c, n * h, is_biased=False) for n in (6, 6, 3)]
    return [*found, *_refiner(shape)]


def output_products(shape: ModelShape) -> list[EndProduct]:
    """Return the products behind the layers: scale and shift of the last norm, and the latents."""
    x, h = diffusion_sizes(shape), shape.hidden
    made = [EndProduct(1.0, condition_width(shape), 2 * h)] if x.modulation != "table" else []
    return [*made, EndProduct(float(x.latents), h, x.patch_outputs)]


def input_params(shape: ModelShape) -> int:
    """Return the parameters before the layers, whole on every rank of the first stage.

    Those of `input_products`, a norm of the text embeddings, and two norms with biases, 4 h, of
    each layer that refines text.
    """
    x = diffusion_sizes(shape)
    vectors = x.text_width * x.text_norm + 4 * shape.hidden * x.refiner_layers
    return sum(one.params(shape) for one in input_products(shape)) + vectors


def output_params(shape: ModelShape) -> int:
    """Return the parameters behind the layers, whole on every rank of the last stage.

    Those of `output_products`, a table of 2 h, and 4 h of two norms with biases (`affine`).
    """
    x = diffusion_sizes(shape)
    vectors = 2 * (x.modulation == "table") + 4 * x.affine
    return sum(one.params(shape) for one in output_products(shape)) + vectors * shape.hidden


def end_flops(shape: ModelShape) -> float:
    """Return forward plus backward FLOPs of the ends for one sample.

    F = sum of 2 (3, or 2 where the input is data) rows inner columns + 12 n T^2 h

    the last of n layers that refine T tokens of text, whose attention has no mask.
    """
    x = diffusion_sizes(shape)
    products = sum(one.flops for one in (*input_products(shape), *output_products(shape)))
    return products + 12.0 * x.refiner_layers * x.text_tokens**2 * shape.hidden


# Times and bytes --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EndTerms:
    """Both ends, per micro-batch and device; arrays `(n,)`."""

    first: ForwardBackward
    last: ForwardBackward
    last_weight_grad_s: Floats
    first_bytes: Floats
    """What a micro-batch keeps before the layers."""
    last_bytes: Floats
    """What it keeps behind them."""


def _times(inputs: LayerInputs, products: Iterable[EndProduct]) -> tuple[ForwardBackward, Floats]:
    """Return the time of products, and the part of it that is weight gradients, seconds.

    Rows of tokens are shared out over cp, and over tp with sequence parallelism; vectors of a
    sample are computed by every rank.
    """
    samples, split = samples_of(inputs), inputs.split.cp * cut_of(inputs)
    zeros = np.zeros_like(inputs.tokens)
    total, weight_grads = ForwardBackward(zeros, zeros), zeros
    for one in products:
        rows = samples * one.rows / (split if one.rows > 1 else 1.0)
        ahead, dgrad, wgrad = product_sum(inputs, [(rows, one.inner, one.columns)])
        after = wgrad if one.reads_data else dgrad + wgrad
        total, weight_grads = total + ForwardBackward(ahead, after), weight_grads + wgrad
    return total, weight_grads


def end_terms(inputs: LayerInputs) -> EndTerms:
    """Return what the ends take and keep for a micro-batch.

    Products, whole on every rank (`EndProduct`). Before the layers 6 h bytes a token forward and 6
    backward of activations and copies; behind them norm, scale and shift, 12 h forward and 18
    backward, and `LOSS_BYTES` a number of the output. Kept: inputs of the products; input and
    output of the last norm and that of the last product, 3 e h, and output and target in fp32.
    Left out: attention of the layers that refine text, sending the vector of a sample and
    the text of cross attention on to later stages.
    """
    shape, e = inputs.problem.shape, inputs.element_bytes
    x, cut = diffusion_sizes(shape), cut_of(inputs)
    of_first, _ = _times(inputs, input_products(shape))
    of_last, weight_grad_s = _times(inputs, output_products(shape))
    width = shape.hidden / cut
    numbers = x.patch_outputs * x.latents / x.tokens / cut
    first = of_first + moved_s(inputs, (6.0 * width, 6.0 * width), (6, 6))
    last = of_last + moved_s(
        inputs,
        (12.0 * width + LOSS_BYTES / 2 * numbers, 18.0 * width + LOSS_BYTES / 2 * numbers),
        (6, 9),
    )
    samples, split = samples_of(inputs), inputs.split.cp * cut
    kept = sum(one.rows * one.inner for one in input_products(shape)) * e
    text = x.text_tokens * shape.hidden * e if x.cross else 0.0
    return EndTerms(
        first,
        last,
        weight_grad_s,
        samples * (kept / split + text),
        inputs.tokens * (3.0 * e * width + 8.0 * numbers),
    )
