"""Ends of a model in scalars: a vision tower before the embedding, a layer before the head."""

from dataclasses import dataclass, replace
from itertools import pairwise

from costmodels.layers.kinds import layer_run
from costmodels.problem import Problem
from costmodels.shapes import ModelShape, VisionShape
from tests.searches import oracle_hybrids as hybrids
from tests.searches import oracle_physics as physics

Pair = tuple[float, float]
KIND = hybrids.Kind("bidirectional+dense")


@dataclass(frozen=True)
class Tower:
    """Tower and projector of one micro-batch."""

    times: Pair
    kept: float


def layers_of(problem: Problem, seen: int) -> Problem:
    """Return the layers of the tower as a model whose sequences are what a patch attends to."""
    vision, shape = problem.shape.vision, problem.shape
    assert vision is not None
    inner = ModelShape(
        "tower",
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
        layer_runs=(layer_run(KIND, vision.layers),),
    )
    return replace(problem, shape=inner, job=replace(problem.job, seq_len=seen))


def reaches(vision: VisionShape) -> list[int]:
    """Return what each layer attends to, patches."""
    if not vision.block:
        return [vision.patches] * vision.layers
    every = vision.full_every or vision.layers + 1
    whole = [(i + 1) % every == 0 for i in range(vision.layers)]
    return [vision.patches if x else vision.block for x in whole]


def inputs_of_patch(vision: VisionShape) -> int:
    return vision.channels * vision.patch * vision.patch * vision.frames


def projector(problem: Problem) -> list[tuple[int, int]]:
    """Return the matrices of one projector, inputs and outputs."""
    vision = problem.shape.vision
    assert vision is not None
    first = vision.hidden * (1 if vision.pooled else vision.merge)
    widths = [first, *vision.projector, problem.shape.hidden]
    return list(pairwise(widths))


def parts_params(problem: Problem, tp: int) -> tuple[float, float]:
    """Return the parameters of the tower and of its projectors on one rank."""
    vision = problem.shape.vision
    if vision is None:
        return 0.0, 0.0
    inner = layers_of(problem, vision.patches)
    held = vision.layers * hybrids.params(inner, KIND, tp)
    held += hybrids.norm(inner.shape)
    held += vision.hidden * (inputs_of_patch(vision) + vision.positions + vision.bias)
    one = sum(a * b / tp + b * vision.projector_bias for a, b in projector(problem))
    return held, (1 + vision.inner_projectors) * one


def params(problem: Problem, tp: int) -> float:
    return sum(parts_params(problem, tp))


def trained(problem: Problem, tp: int) -> float:
    """Return those that have gradients."""
    vision, (tower, ends) = problem.shape.vision, parts_params(problem, tp)
    if vision is None or vision.trained == "none":
        return 0.0
    return tower + ends if vision.trained == "all" else ends


def frozen_bytes(problem: Problem, tp: int) -> float:
    left = params(problem, tp) - trained(problem, tp)
    return problem.job.recipe.param_bytes * left


def three(problem: Problem, tokens: float, a: float, b: float) -> tuple[float, float, float]:
    """Return forward, gradient of the input and of the weights of one product."""
    found = physics.products(problem, tokens, [(a, b)])
    return found.forward, found.dgrad, found.wgrad


def tower(
    problem: Problem, degrees: tuple[int, bool], samples: float, traffic: hybrids.Traffic
) -> Tower:
    """Return tower and projector; `traffic` is `oracle_models.tp_traffic`."""
    vision, (tp, sp) = problem.shape.vision, degrees
    if vision is None:
        return Tower((0.0, 0.0), 0.0)
    patches = samples * vision.images * vision.patches
    ahead = behind = kept = 0.0
    is_trained = vision.trained == "all"
    for seen in reaches(vision):
        one = hybrids.parts(layers_of(problem, seen), degrees, KIND, patches, traffic)
        ahead += one.times[0]
        if is_trained:
            behind += one.times[1] + (one.again if vision.recompute else 0.0)
            size = 2.0 * patches * vision.hidden / (tp if sp else 1)
            kept += size if vision.recompute else one.kept
    numbers = inputs_of_patch(vision)
    forward, _, wgrad = three(problem, patches, numbers, vision.hidden)
    ahead += forward
    if is_trained:
        behind += wgrad
        kept += 2.0 * patches * numbers
    tokens, n = patches / vision.merge, 1 + vision.inner_projectors
    for i, (a, b) in enumerate(projector(problem)):
        forward, dgrad, wgrad = three(problem, tokens, a, b / tp)
        ahead += n * forward
        if vision.trained == "none":
            continue
        behind += n * wgrad
        if i or is_trained:
            behind += n * dgrad
        # An inner width is cut over tp, and kept before and after its activation.
        kept += n * 2.0 * tokens * (2.0 * a / tp if i else a)
    return Tower((ahead, behind), kept)


def sound(problem: Problem) -> list[tuple[int, float, float]]:
    """Return the two convolutions over sound as products: frames of one, inputs and outputs."""
    x, h = problem.shape.encoder, hybrids.encoder_of(problem).shape.hidden
    assert x is not None
    if not x.conv_channels:
        return []
    return [(2, 3 * x.conv_channels, h), (1, 3 * h, h)]


def reader_params(problem: Problem, tp: int) -> float:
    """Return what an encoder has beside its layers: lookups, convolutions, its last norm."""
    x = problem.shape.encoder
    if x is None:
        return 0.0
    inner = hybrids.encoder_of(problem).shape
    weights = sum(a * b + b for _, a, b in sound(problem))
    held = x.vocab * inner.hidden / tp + x.positions * inner.hidden
    return held + weights + hybrids.norm(inner)


def reader(problem: Problem, samples: float, tp: int, sp: bool) -> Tower:
    """Return what makes an encoder's first input, and what of its ends is kept."""
    x = problem.shape.encoder
    if x is None:
        return Tower((0.0, 0.0), 0.0)
    inner = hybrids.encoder_of(problem)
    tokens, h = samples * x.seq_len, inner.shape.hidden
    kept = tokens * (2.0 * h + 2.0 * h)
    if not x.conv_channels:
        unit = tokens * h / physics.hbm_rate(problem)
        mask = 3.0 / (tp if sp else 1) if inner.shape.dropout else 0.0
        latency = problem.pool.accelerator.efficiency.kernel_latency_s
        times = (4 + mask) * unit + latency, (8 + mask) * unit + latency
        return Tower(times, kept + 8.0 * tokens)
    ahead = behind = 0.0
    for i, (frames, a, b) in enumerate(sound(problem)):
        forward, dgrad, wgrad = three(inner, frames * tokens, a, b)
        ahead, behind = ahead + forward, behind + wgrad + (dgrad if i else 0.0)
    # Inputs of both, of which the second is twice as long, and of their activations.
    kept += 2.0 * tokens * (2 * x.conv_channels + 2 * h + 2 * h + h)
    return Tower((ahead, behind), kept)


def checkpoint_bytes(problem: Problem, samples: float, width: float, parts: int) -> float:
    """Return the mean input of a layer, which are of two lengths and widths with an encoder."""
    x = problem.shape.encoder
    if x is None:
        return 2.0 * width
    inner = hybrids.encoder_of(problem).shape
    both = [2.0 * width] * (problem.shape.layers - inner.layers)
    both += [2.0 * samples * x.seq_len * inner.hidden / parts] * inner.layers
    return sum(both) / len(both)


def transform_params(shape: ModelShape) -> float:
    """Return the layer before the head: a square matrix and a norm."""
    if not shape.head_transform:
        return 0.0
    return shape.hidden * shape.hidden + hybrids.norm(shape) + shape.hidden * shape.bias


def transform_s(problem: Problem, tokens: float) -> Pair:
    """Return its products, its activation and its norm, whole on every rank."""
    shape, latency = problem.shape, problem.pool.accelerator.efficiency.kernel_latency_s
    if not shape.head_transform:
        return 0.0, 0.0
    h = shape.hidden
    square = physics.gemm_s(problem, problem.job.recipe.gemm_precision, tokens, h, h, 1.0)
    moved = 12.0 * tokens * h * problem.stack.elementwise_factor / physics.hbm_rate(problem)
    return square + moved + 2 * latency, 2 * square + moved + 2 * latency
