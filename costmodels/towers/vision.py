"""A vision tower and its projector, which stand before the embedding on the first stage.

The tower reads patches of images, attends over all patches of one image and runs through layers of
its own width. The projector makes tokens of the language model of what it returns; they stand in
the sequence, whose length counts them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from costmodels import memory
from costmodels.layers.compute import ForwardBackward, products_of
from costmodels.layers.kinds import LAYER_KINDS, layer_run
from costmodels.layers.layer_kind import KindTerms, LayerInputs, SplitDegrees
from costmodels.layers.params import layer_params
from costmodels.modes import ModeRows
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import ModelShape, VisionShape

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

LAYER = "bidirectional+dense"
"""Kind of layer of a tower."""


@dataclass(frozen=True, slots=True)
class TowerTerms:
    """Tower and projector, per micro-batch and device of the first stage; arrays `(n,)`."""

    total: ForwardBackward
    """With what shows of the collectives of tensor parallelism."""
    kept_bytes: Floats
    """What a micro-batch keeps for its backward."""
    frozen_bytes: Floats
    """Weights that are not trained: no gradients, no optimizer states."""


def tower_shape(vision: VisionShape, shape: ModelShape) -> ModelShape:
    """Return the layers of a tower as a model of their own."""
    return ModelShape(
        name=shape.name,
        layers=vision.layers,
        hidden=vision.hidden,
        heads=vision.heads,
        kv_heads=vision.heads,
        head_dim=vision.hidden // vision.heads,
        ffn=vision.ffn,
        gated=vision.gated,
        vocab=1,
        tied=True,
        norm=vision.norm,
        bias=vision.bias,
        positions="learned" if vision.positions else "rope",
        flash_attention=shape.flash_attention,
        pads_vocab=shape.pads_vocab,
        layer_runs=(layer_run(LAYER, vision.layers),),
    )


def projector_widths(vision: VisionShape, shape: ModelShape) -> tuple[int, ...]:
    """Return the widths from what enters a projector to the width of the language model.

    `merge` patches side by side, or one width where their mean is taken.
    """
    first = vision.hidden * (1 if vision.pooled else vision.merge)
    return (first, *vision.projector, shape.hidden)


def attended(vision: VisionShape) -> tuple[tuple[int, int], ...]:
    """Return (layers, patches that see one another): whole images, and blocks inside them."""
    if not vision.block:
        return ((vision.layers, vision.patches),)
    full = vision.layers // vision.full_every if vision.full_every else 0
    return ((full, vision.patches), (vision.layers - full, vision.block))


# Parameters and FLOPs ---------------------------------------------------------------------------


def encoder_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of the tower on one tensor-parallel rank, without its projector.

    N = n layer + c p^2 f h_v + P h_v + norm (+ h_v with biases)

    p the side of a patch in pixels, c channels, f frames of a patch, P learned positions; `layer`
    as `layer_params` of the tower's widths. What is not in layers is whole on every rank.
    Source: Dosovitskiy et al. 2020 (ViT); transformers models/{siglip,qwen2_5_vl}.
    """
    vision = shape.vision
    if vision is None:
        return np.zeros(len(tp))
    inner = tower_shape(vision, shape)
    norm = 1 if vision.norm == "rmsnorm" else 2
    ends = patch_inputs(vision) + vision.positions + norm + vision.bias
    return np.asarray(vision.layers * layer_params(inner, tp) + ends * vision.hidden)


def projector_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of all projectors on one tensor-parallel rank.

    N = (1 + d) sum of w_i w_(i+1) / t (+ w_(i+1) with biases), d further ones for inner layers

    Source: transformers models/{llava,qwen2_5_vl,qwen3_vl}; Megatron-LM
    core/models/vision/multimodal_projector.py.
    """
    vision = shape.vision
    if vision is None:
        return np.zeros(len(tp))
    widths = projector_widths(vision, shape)
    weights = sum(a * b for a, b in pairwise(widths)) / np.asarray(tp, dtype=np.float64)
    biases = vision.projector_bias * sum(widths[1:])
    return np.asarray((1 + vision.inner_projectors) * (weights + biases))


def trained_vision_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return the parameters of tower and projector that have gradients."""
    trained = shape.vision.trained if shape.vision else "none"
    tower = encoder_params(shape, tp) * (trained == "all")
    return np.asarray(tower + projector_params(shape, tp) * (trained != "none"))


def vision_params(shape: ModelShape, tp: Ints) -> Floats:
    """Return all parameters of tower and projector on one tensor-parallel rank."""
    return encoder_params(shape, tp) + projector_params(shape, tp)


def trained_matrices(shape: ModelShape) -> tuple[tuple[Matrix, int], ...]:
    """Return the trained matrices of tower and projectors, and how many of each.

    Those of its layers, and of projectors one after another, cut by rows and by columns in turn.
    Patches are filters, positions an embedding: they are none.
    Source: Megatron-LM core/optimizer/emerging_optimizers.py (_is_nonlinear_or_embedding), which
    asks for two dimensions wherever a weight stands.
    """
    vision = shape.vision
    if vision is None or vision.trained == "none":
        return ()
    of_layers = LAYER_KINDS[LAYER].matrices
    assert of_layers is not None
    whole = of_layers(tower_shape(vision, shape)) if vision.trained == "all" else ()
    widths = enumerate(pairwise(projector_widths(vision, shape)))
    projector = [Matrix(b, a, cut=("rows", "columns")[i % 2]) for i, (a, b) in widths]
    n_projectors = 1 + vision.inner_projectors
    return (
        *((matrix, vision.layers) for matrix in whole),
        *((matrix, n_projectors) for matrix in projector),
    )


def patch_inputs(vision: VisionShape) -> int:
    """Return the numbers that make one patch: c p^2 f."""
    return vision.channels * vision.patch**2 * vision.frames


def vision_flops(shape: ModelShape) -> float:
    """Return forward plus backward FLOPs of tower and projector for one sequence.

    F = I { 2 P [ n (4 h_v^2 + c h_v f_v) + c p^2 f h_v ] + 4 h_v sum of n_i P s_i } a_v
      + 2 I P / m (1 + d) sum of w_i w_(i+1) a_p

    I images of P patches, s_i what n_i layers attend to in full, m patches a token. a_v is 3 where
    the tower is trained and 1 where not; a_p is 3, but 1 where nothing is trained, and without
    the gradient of its input where only the projector is. The product of the patches has no
    gradient of its input.
    Source: Megatron-Bridge training/utils/flop_utils.py (vit_flops_from_patch_stats), whose sums
    of patches and of squares these are.
    """
    vision = shape.vision
    if vision is None:
        return 0.0
    macs = LAYER_KINDS[LAYER].macs(tower_shape(vision, shape))
    n = vision.images * vision.patches
    body = n * vision.layers * (macs.projections + macs.mlp)
    core = sum(n * layers * macs.core_macs(seen) for layers, seen in attended(vision))
    patches = n * patch_inputs(vision) * vision.hidden
    widths = projector_widths(vision, shape)
    products = [n / vision.merge * a * b for a, b in pairwise(widths)]
    ahead, tower_passes, projector_passes = 2.0 * sum(products), 1, 1
    if vision.trained != "none":
        projector_passes = 3
    if vision.trained == "all":
        tower_passes = 3
    flops = 2.0 * tower_passes * (body + core) + projector_passes * ahead * _projectors(vision)
    flops += 2.0 * (2 if vision.trained == "all" else 1) * patches
    if vision.trained == "projector":
        flops -= 2.0 * products[0] * _projectors(vision)
    return float(flops)


def _projectors(vision: VisionShape) -> int:
    return 1 + vision.inner_projectors


# Times and bytes --------------------------------------------------------------------------------


def tower_terms(inputs: LayerInputs) -> TowerTerms:
    """Return what tower and projector take and keep for a micro-batch of the language model.

    t = n layer_v + product of patches + projector, b I images of P patches

    A layer is one of an encoder (`sublayers.bidirectional`) over tp ranks, sequences of P patches,
    or of a block's. Every rank of a context-parallel group runs all images: the sequence is cut
    behind the projector. Forward only, and nothing kept, where a part is frozen and nothing before
    it is trained. Layers with `recompute` keep their inputs and run again. Left out: norms and
    activations of the projector, the scatter of its tokens into the sequence, images of unlike
    sizes, CUDA graphs of the tower, gathering frozen weights that ZeRO 3 shards.
    Source: Megatron-LM examples/multimodal, core/models/multimodal/llava_model.py.
    """
    problem, shape = inputs.problem, inputs.problem.shape
    vision = shape.vision
    assert vision is not None  # asked for models with one alone
    samples = inputs.tokens * inputs.split.cp / problem.job.seq_len
    patches = samples * (vision.images * vision.patches)
    zeros = np.zeros_like(patches)
    ahead, after, kept_bytes = zeros, zeros, zeros
    trains = vision.trained == "all"
    for count, layer, size in _layers(inputs, patches):
        again = layer.recompute_full_s if vision.recompute else zeros
        ahead = ahead + count * layer.layer.forward_s
        if trains:
            after = after + count * (layer.layer.backward_s + again)
            kept_bytes = kept_bytes + count * (size if vision.recompute else layer.kept_bytes)
    of_patches, of_projector = _patches(inputs, patches), _projector(inputs, patches)
    ends = of_patches + of_projector
    frozen = vision_params(shape, inputs.split.tp) - trained_vision_params(shape, inputs.split.tp)
    return TowerTerms(
        ForwardBackward(ahead + ends.forward_s, after + ends.backward_s),
        kept_bytes + _kept_ends_bytes(inputs, patches),
        problem.job.recipe.param_bytes * frozen,
    )


def _layers(inputs: LayerInputs, patches: Floats) -> Iterator[tuple[int, KindTerms, Floats]]:
    """Yield the number of layers of one reach, the terms of one, and the bytes of its input."""
    problem, sp, tp = inputs.problem, inputs.sp, inputs.split.tp
    vision = problem.shape.vision
    assert vision is not None
    inner = tower_shape(vision, problem.shape)
    for count, seen in attended(vision):
        job = replace(problem.job, seq_len=seen)
        alone = replace(problem, shape=inner, job=job)
        of_tower = LayerInputs(alone, SplitDegrees.of_tp(tp), patches, ModeRows.of_sp(sp))
        size = memory.checkpoint_bytes(inner, patches, tp, sp, inputs.element_bytes)
        yield count, LAYER_KINDS[LAYER].terms(of_tower), size


def _patches(inputs: LayerInputs, patches: Floats) -> ForwardBackward:
    """Return the product that makes vectors of patches, whole on every tp rank."""
    problem, vision = inputs.problem, inputs.problem.shape.vision
    assert vision is not None
    three = products_of(0, problem.job, problem.pool.accelerator, problem.stack)
    ahead, _, wgrad = three(patches, float(patch_inputs(vision)), float(vision.hidden))
    return ForwardBackward(ahead, wgrad if vision.trained == "all" else 0.0 * wgrad)


def _projector(inputs: LayerInputs, patches: Floats) -> ForwardBackward:
    """Return the products of all projectors, cut over tp."""
    problem, vision = inputs.problem, inputs.problem.shape.vision
    assert vision is not None
    three = products_of(0, problem.job, problem.pool.accelerator, problem.stack)
    tokens, t = patches / vision.merge, inputs.split.tp.astype(np.float64)
    result = ForwardBackward(np.zeros_like(patches), np.zeros_like(patches))
    for i, (a, b) in enumerate(pairwise(projector_widths(vision, problem.shape))):
        ahead, dgrad, wgrad = three(tokens, float(a), b / t)
        back = np.zeros_like(ahead)
        if vision.trained != "none":
            back = wgrad if i == 0 and vision.trained == "projector" else dgrad + wgrad
        result = result + ForwardBackward(ahead, back)
    return result * float(_projectors(vision))


def _kept_ends_bytes(inputs: LayerInputs, patches: Floats) -> Floats:
    """Return what the products of patches and projectors keep: their inputs, bytes.

    Behind each inner product of a projector also the input of its activation.
    """
    shape, vision, wide = inputs.problem.shape, inputs.problem.shape.vision, inputs.element_bytes
    assert vision is not None
    widths = projector_widths(vision, shape)
    inner = sum(widths[1:-1]) / inputs.split.tp.astype(np.float64)
    of_projector = patches / vision.merge * (widths[0] + 2.0 * inner) * _projectors(vision)
    of_patches = patches * patch_inputs(vision) if vision.trained == "all" else 0.0 * patches
    trains = vision.trained != "none"
    return np.asarray(wide * (of_patches + (of_projector if trains else 0.0)))
