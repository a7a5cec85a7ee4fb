"""What feeds forward behind a mixer, or alone: an MLP, routed experts, or nothing."""

import numpy as np

from costmodels import memory
from costmodels.layers import experts, params
from costmodels.layers.compute import ForwardBackward, mlp_linear_times
from costmodels.layers.layer_kind import Floats, Ints, LayerInputs, LayerMacs
from costmodels.layers.moe import expert_macs
from costmodels.layers.recompute import mlp_modules, routed_terms
from costmodels.layers.sublayers.sublayer import (
    Feed,
    FeedTerms,
    elementwise_s,
    ends_bytes,
    no_linear,
    norm_params,
    without_feed,
)
from costmodels.optimizers.matrices import expert_matrices, mlp_matrices
from costmodels.schedule.launches import ATTENTION_SHARE
from costmodels.shapes import ModelShape


def _mlp_params(shape: ModelShape, tp: Ints) -> Floats:
    both = params.layer_params(shape, tp) - params.layer_params(without_feed(shape), tp)
    return np.asarray(both + norm_params(shape) + shape.hidden * shape.bias)


def _mlp_replicated(shape: ModelShape) -> int:
    return norm_params(shape) + shape.hidden * shape.bias


def _mlp_linear_params(shape: ModelShape, tp: Ints) -> Floats:
    matrices = (3.0 if shape.gated else 2.0) * shape.hidden * shape.ffn
    return np.asarray(matrices / tp.astype(np.float64))


def _mlp_macs(shape: ModelShape) -> LayerMacs:
    mlp = (3 if shape.gated else 2) * shape.hidden * shape.ffn
    return LayerMacs(0, 0, mlp, {"mlp": mlp})


def _width_kept(inputs: LayerInputs, shape: ModelShape, *, routes: bool) -> Floats:
    """Return what an MLP keeps, its norm included, as `layer_activation_bytes` counts it."""
    stack, tp, sp = inputs.problem.stack, inputs.split.tp, inputs.sp
    ones, batch = np.ones_like(inputs.tokens), inputs.micro_batch
    with_mlp = memory.layer_activation_bytes(
        shape, stack, batch._replace(routes=routes), tp, sp, ones
    )
    alone = memory.layer_activation_bytes(without_feed(shape), stack, batch, tp, sp, ones)
    return with_mlp - alone + ends_bytes(inputs)


def _activation_widths(shape: ModelShape, tp: Ints) -> tuple[Floats, Floats]:
    t = tp.astype(np.float64)
    return (
        (6.0 if shape.gated else 4.0) * shape.ffn / t,
        (10.0 if shape.gated else 6.0) * shape.ffn / t,
    )


def _working(inputs: LayerInputs, shape: ModelShape) -> Floats:
    """Return the temporaries of an MLP beyond three tensors of a layer's width."""
    width, none = inputs.element_bytes, 0.0
    total = memory.working_bytes(shape, inputs.tokens, inputs.split.tp, none, width)
    return total - inputs.tokens * 3 * width * shape.hidden


def _scratch(inputs: LayerInputs, shape: ModelShape) -> Floats:
    stack, tp = inputs.problem.stack, inputs.split.tp
    alone = memory.scratch_bytes(without_feed(shape), stack, tp)
    return memory.scratch_bytes(shape, stack, tp) - alone


def mlp_terms(inputs: LayerInputs) -> FeedTerms:
    """Return the terms of an MLP."""
    problem, tokens, sp, tp = inputs.problem, inputs.tokens, inputs.sp, inputs.split.tp
    shape, part = problem.shape, problem.pool.accelerator
    return FeedTerms(
        linear=mlp_linear_times(shape, problem.job, part, problem.stack, tokens, tp),
        elementwise=elementwise_s(inputs, *_activation_widths(shape, tp)),
        blocks=1,
        launches=1.0 - ATTENTION_SHARE,
        kept_bytes=_width_kept(inputs, shape, routes=False),
        modules=mlp_modules(problem, tokens, tp, sp),
        scratch_bytes=_scratch(inputs, shape),
        working_bytes=_working(inputs, shape),
    )


def _moe_params(shape: ModelShape, tp: Ints) -> Floats:
    bare = params.layer_params(without_feed(shape), tp)
    of_feed = norm_params(shape) + shape.hidden * shape.bias
    return np.asarray(params.expert_layer_params(shape, tp) - bare + of_feed)


def _moe_replicated(shape: ModelShape) -> int:
    total = params.replicated_params(shape, routed=True)
    bare = params.replicated_params(without_feed(shape), routed=False)
    return total - bare + _mlp_replicated(shape)


def _moe_linear_params(shape: ModelShape, tp: Ints) -> Floats:
    latents = 2.0 * shape.hidden * shape.moe_latent
    return _mlp_linear_params(shape.without_experts(), tp) + latents


def _moe_macs(shape: ModelShape) -> LayerMacs:
    mlp, modules = expert_macs(shape)
    return LayerMacs(0, 0, mlp, modules)


def moe_terms(inputs: LayerInputs) -> FeedTerms:
    """Return the terms of routed experts; their exchange depends on the layer."""
    problem, tokens, sp, tp = inputs.problem, inputs.tokens, inputs.sp, inputs.split.tp
    shape, part, degrees = (
        problem.shape.without_experts(),
        problem.pool.accelerator,
        inputs.degrees,
    )
    routed = experts.expert_times(problem, tokens, degrees, inputs.modes)
    of_experts = experts.expert_kept_bytes(problem, tokens, *degrees)
    linear = no_linear(tokens)
    if shape.ffn:
        linear = mlp_linear_times(shape, problem.job, part, problem.stack, tokens, tp)
    of_routed = routed_terms(problem, tokens, degrees, routed, of_experts)
    dispatcher_bytes = experts.dispatcher_bytes(problem, tokens, degrees, inputs.modes)
    scratch = _scratch(inputs, shape) + experts.expert_scratch_bytes(problem, inputs.split.etp)
    transient = experts.transient_bytes(problem, tokens, degrees, inputs.modes)
    return FeedTerms(
        linear=linear,
        elementwise=elementwise_s(inputs, *_activation_widths(shape, tp)),
        blocks=1 if shape.ffn else 0,
        launches=1.0 - ATTENTION_SHARE,
        kept_bytes=of_experts + _width_kept(inputs, shape, routes=True),
        modules=mlp_modules(problem, tokens, tp, sp, of_routed),
        scratch_bytes=scratch + dispatcher_bytes,
        working_bytes=_working(inputs, shape) + transient,
        routed=routed,
    )


def _moe_modules(shape: ModelShape) -> tuple[str, ...]:
    shared = ("shared_experts",) if shape.shared_ffn else ()
    return ("layernorm", "moe", "moe_act", *shared)


def _nothing(shape: ModelShape, tp: Ints) -> Floats:
    return np.zeros_like(tp, dtype=np.float64)


def no_feed_terms(inputs: LayerInputs) -> FeedTerms:
    """Return the terms of a layer that ends behind its mixer."""
    zeros = np.zeros_like(inputs.tokens)
    nothing = ForwardBackward(zeros, zeros)
    return FeedTerms(no_linear(inputs.tokens), nothing, 0, 0.0, zeros, {}, zeros, zeros)


MLP = Feed(
    name="dense",
    title="MLP",
    equation="x + mlp(norm(x))",
    source="Megatron-LM core/transformer/mlp.py",
    params=_mlp_params,
    replicated_params=_mlp_replicated,
    linear_params=_mlp_linear_params,
    macs=_mlp_macs,
    terms=mlp_terms,
    modules=lambda shape: ("mlp",) if shape.ffn else (),
    matrices=lambda shape: mlp_matrices(shape, shape.ffn),
)
EXPERTS = Feed(
    name="moe",
    title="experts",
    equation="x + sum over k experts of p expert(norm(x)) + shared",
    source="Megatron-LM core/transformer/moe",
    params=_moe_params,
    replicated_params=_moe_replicated,
    linear_params=_moe_linear_params,
    macs=_moe_macs,
    terms=moe_terms,
    modules=_moe_modules,
    blocks=lambda shape: 1 if shape.shared_ffn else 0,
    matrices=expert_matrices,
)
NO_FEED = Feed(
    name="none",
    title="nothing behind it",
    equation="",
    source="",
    params=_nothing,
    replicated_params=lambda shape: 0,
    linear_params=_nothing,
    macs=lambda shape: LayerMacs(0, 0, 0, {}),
    terms=no_feed_terms,
    modules=lambda shape: (),
    blocks=lambda shape: 0,
)
FEEDS = (MLP, EXPERTS, NO_FEED)
