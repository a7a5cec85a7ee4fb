"""Memory of one device by term, for the rank that needs most.

Every function returns bytes per device. Per-stage arrays are `(n, n_kinds)`, one column for each
distinct kind of pipeline rank (`costmodels.schedule.stages`).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.layers.params import (
    kv_heads_per_rank,
    latent_params,
    padded_vocab,
    qk_norm_params,
)
from costmodels.offload.optimizer import gradients_leave
from costmodels.precision import Recipe
from costmodels.problem import Problem
from costmodels.schedule import zero_bubble
from costmodels.shapes import ModelShape, OperatorsShape
from costmodels.stacks import FUSED, StackProfile, fuses_softmax
from costmodels.tuning.activations import Freed, freed_bytes
from costmodels.tuning.records import TuningJob

Floats = NDArray[np.float64]


class KeptBytes(NamedTuple):
    """Bytes that one unsharded parameter takes in a software stack."""

    weights: float
    """W; beside a sharded master copy `shard_weights` in place of them."""
    shard_weights: float
    grads: float
    """G, kept through the accumulation."""
    states: float
    """K: optimizer states with the master copy, and what is sharded with them."""


MASTER_BYTES = 4.0
"""Of fp32 weights, which a recipe with a master copy counts among its states."""


def param_bytes_kept(recipe: Recipe, stack: StackProfile = FUSED) -> KeptBytes:
    """Return what a parameter takes by kind, before sharding.

    FSDP2 casts its master copy at every gather. Where a recipe copies gradients for the update,
    `StackProfile.grad_copies` says what is kept of both. Where a compiler plans the memory of a
    step, weights are fp32, and what else there is of them lives within the step
    (`costmodels.phases`).

    >>> from costmodels.precision import RECIPES
    >>> param_bytes_kept(RECIPES["fp16", "adam"])
    KeptBytes(weights=2, shard_weights=2, grads=2.0, states=16.0)
    """
    if stack.memory_plan == "phases":
        master = MASTER_BYTES if recipe.has_master_copy else 0.0
        weights = master or recipe.param_bytes
        return KeptBytes(weights, weights, 0.0, recipe.state_bytes - master)
    cast = bool(stack.sharded_units) and recipe.has_master_copy
    copy, grads, states = recipe.grad_copy_bytes, recipe.grad_bytes, recipe.state_bytes
    if copy and stack.grad_copies == "sharded":
        grads, states = grads - copy, states + copy
    elif copy and stack.grad_copies == "alone":
        grads = copy
    return KeptBytes(recipe.param_bytes, 0.0 if cast else recipe.param_bytes, grads, states)


class StateParts(NamedTuple):
    """Bytes that a device holds per local parameter, by kind; each of one shape."""

    weights: Floats
    grads: Floats
    optimizer: Floats
    """States of the optimizer with the master copy."""


def state_parts_per_param(
    recipe: Recipe,
    zero: ArrayLike,
    n_shard: ArrayLike,
    offload: ArrayLike = 0,
    *,
    hpz: ArrayLike = 1,
    stack: StackProfile = FUSED,
) -> StateParts:
    """Return what `state_bytes_per_param` adds up, by kind; arguments and source are its own.

    >>> from costmodels.precision import RECIPES
    >>> [float(x) for x in state_parts_per_param(RECIPES["bf16", "adam"], 2, 8)]
    [2.0, 0.5, 1.5]
    """
    stage, d = np.asarray(zero), np.asarray(n_shard, dtype=np.float64)
    per_param = param_bytes_kept(recipe, stack)
    weights = np.where(stage >= 3, per_param.shard_weights / d, per_param.weights)
    if stack.sharded_units and recipe.is_narrow:
        weights = weights + np.where((stage == 1) | (stage == 2), recipe.param_bytes / d, 0.0)
    grads = per_param.grads / np.where(stage >= 2, d, 1.0)
    states = per_param.states / np.where(stage >= 1, d, 1.0)
    group = np.asarray(hpz, dtype=np.float64)
    if np.any(group > 1):
        second = (stage >= 3) & (group > 1)
        weights = weights + np.where(second, recipe.param_bytes / group, 0.0)
    offloaded = np.asarray(offload) > 0
    if not offloaded.any():
        return StateParts(weights, grads, states)
    if gradients_leave(stack):
        grads = np.where(offloaded & (stage >= 2), 0.0, grads)
    return StateParts(weights, grads, np.where(offloaded, 0.0, states))


def state_bytes_per_param(
    recipe: Recipe,
    zero: ArrayLike,
    n_shard: ArrayLike,
    offload: ArrayLike = 0,
    *,
    hpz: ArrayLike = 1,
    stack: StackProfile = FUSED,
) -> Floats:
    """Return bytes of weights, gradients and optimizer state per local parameter.

    stage 0: W + G + K; 1: W + G + K/D; 2: W + (G + K)/D; 3: (W + G + K)/D

    With the optimizer on the host (`offload`) K is 0; gradients stay in Megatron-LM, and in
    DeepSpeed up to stage 1 (`gradients_leave`: G is 0 too from stage 2 on). With stage 3 and a
    second copy of the weights over groups of `hpz` ranks W/hpz comes on top. W, G and K are
    those of `param_bytes_kept`; FSDP2 has no W with stage 3.

    Source: Rajbhandari et al. 2020 (ZeRO), section 5; Megatron-LM dist_optimizer.md; Wang et al.
    2023 (ZeRO++), section 3.2; DeepSpeed partition_parameters.py (_partition_param_sec); torch
    fsdp/_fully_shard/_fsdp_param.py (init_all_gather_outputs). Left out:
    the unsharded working set of stage 3 (`zero3_working_bytes`).

    >>> from costmodels.precision import RECIPES
    >>> state_bytes_per_param(RECIPES["bf16", "adam"], 1, 8).item()  # 6 + 12/8
    7.5
    """
    parts = state_parts_per_param(recipe, zero, n_shard, offload, hpz=hpz, stack=stack)
    return parts.weights + parts.grads + parts.optimizer


GATHERED_LOGIT_BYTES = 14.0
"""Bytes per logit that a gather over tp takes until the last layer runs backward. Fit over which
layouts of the one stack that gathers ran out of memory: pieces, their concatenation and its
gradient, some of them in fp32."""
EAGER_GATE_BYTES = 2.0
"""What eager operators keep beside fused ones, bytes per element: the activated gate. Rotation is
linear, autograd keeps its tables alone."""
EAGER_NORM_BYTES = {"product": 10.0, "input": 4.0}
"""What a norm written as fp32 operators keeps beside a fused one, bytes per element, by what else
than its 16-bit result it keeps (`StackProfile.norm_keeps`): `product`, the input and the scaled
input in fp32 (4 + 4) and the latter in 16 bits (2); `input`, the input in fp32 (4) and the scaled
input in 16 bits (2) in place of the input in 16 bits (2), as transformers' LlamaRMSNorm does: the
product keeps the same copy as the square, the cast of the product nothing (replayed)."""
EAGER_SCORE_KEPT_BYTES = 4.0
"""What eager operators keep per score beside a fused softmax: the scores in fp32."""


def eager_bytes(
    shape: ModelShape,
    stack: StackProfile,
    tp: ArrayLike,
    sp: ArrayLike,
    element_bytes: float = 2.0,
) -> tuple[Floats, Floats]:
    """Return what a stack's eager operators keep per layer and token, beyond fused kernels.

    (split over tp always, split over tp only with sequence parallelism), bytes: the activated gate
    2 f / t; 20 h for two norms, or 8 h (`eager_norm_bytes`). A stack that
    does not gather the inputs of its column-parallel layers again keeps the gathered ones:
    4 h (t - 1) / t beside the 4 h / t of `layer_activation_bytes`. Rotary embeddings keep nothing:
    they are linear. Activations in fp32 (`element_bytes` 4) have gate and inputs twice as wide.
    """
    t = np.asarray(tp, dtype=np.float64)
    split = np.zeros_like(t)
    split = split + activation_bytes_besides(shape, stack, element_bytes) * shape.ffn / t
    total = np.zeros_like(t)
    if not stack.sp_regather:
        # Counted so that dividing by t under sequence parallelism leaves it.
        inputs = 2.0 * element_bytes * shape.hidden * (t - 1.0)
        total = total + np.where(np.asarray(sp) > 0, inputs, 0.0)
    if besides := norm_bytes_besides(shape, stack, element_bytes):
        total = total + 2 * besides * shape.hidden
    return split, total


def eager_norm_bytes(stack: StackProfile, element_bytes: float = 2.0) -> float:
    """Return what a norm of fp32 operators keeps beside a fused one, bytes per element.

    `EAGER_NORM_BYTES` of 16-bit activations. Of fp32 ones no cast makes a copy: beside the input,
    which a fused norm keeps too, there is the scaled input alone, 4.
    """
    return EAGER_NORM_BYTES[stack.norm_keeps] if element_bytes == 2.0 else 4.0


CHAIN_BYTES = 6.0
"""What transformers' `gelu_new` keeps beside the input of its chain, bytes an element: half of it,
the hyperbolic tangent, and that and one (activations.py, NewGELUActivation)."""
SCALED_NORM_BYTES = 6.0
"""The same of T5's norm: the input in fp32 (4), of which it keeps the square alone, and the scaled
input in 16 bits (2); it scales the input in 16 bits, which a fused norm keeps too."""


def own_operators(shape: ModelShape, stack: StackProfile) -> OperatorsShape | None:
    """Return the operators of a model's own code; None: the stack has others, or compiles it."""
    return None if stack.fused_activation else shape.operators


def fuses_norms(shape: ModelShape, stack: StackProfile) -> bool:
    """Tell whether a norm is one kernel: as the model's own code has it, else the stack."""
    own = own_operators(shape, stack)
    return own.norm == "kernel" if own and own.norm else stack.fused_norms


def norm_bytes_besides(
    shape: ModelShape, stack: StackProfile, element_bytes: float = 2.0
) -> float:
    """Return what a norm keeps beside a fused one, bytes per element.

    `SCALED_NORM_BYTES` of T5's in 16 bits, in fp32 the scaled input alone, 4; else
    `eager_norm_bytes` where the stack has no kernel. Source: saved tensors of transformers
    models/t5 (T5LayerNorm).
    """
    if fuses_norms(shape, stack):
        return 0.0
    own = own_operators(shape, stack)
    if own and own.norm == "scaled":
        return SCALED_NORM_BYTES if element_bytes == 2.0 else 4.0
    return eager_norm_bytes(stack, element_bytes)


def inner_bytes(shape: ModelShape, stack: StackProfile = FUSED) -> float:
    """Return what an MLP keeps of one column of its inner width in 16 bits, bytes a token.

    Input and output of the activation, 4, with a gate 6; of ReLU the output alone, 2, which is the
    input of the next product: its sign says the gradient. Where outputs of products alone are kept
    no output of the activation.
    """
    if stack.keeps == "products":
        return 4.0 if shape.gated else 2.0
    if shape.gated:
        return 6.0
    return 2.0 if shape.operators and shape.operators.activation == "relu" else 4.0


def activation_bytes_besides(
    shape: ModelShape, stack: StackProfile, element_bytes: float = 2.0
) -> float:
    """Return what a stack's activation keeps beside `inner_bytes` of one column, bytes a token.

    The activated gate, 2, unless it is fused or ReLU, whose output is one with it; `CHAIN_BYTES`
    of a chain of operators. Where elements are dropped before the last product a mask, 1, and of
    ReLU without a gate what is left, 2.
    """
    own, width, total = shape.operators, element_bytes / 2.0, 0.0
    named = own.activation if own else ""
    if not stack.fused_activation:
        total += width * EAGER_GATE_BYTES if shape.gated and named != "relu" else 0.0
        total += width * CHAIN_BYTES if named == "gelu_new" else 0.0
    if own is not None and own.activation_dropout:
        total += 1.0 + (2.0 * width if named == "relu" and not shape.gated else 0.0)
    return total


def score_bytes(
    shape: ModelShape, stack: StackProfile, matrices: ArrayLike, element_bytes: float = 2.0
) -> tuple[float, Floats]:
    """Return what is kept of one score without a flash kernel, and what eager operators add.

    4 (5 with dropout) bytes, and `EAGER_SCORE_KEPT_BYTES` where softmax is no fused kernel
    (`matrices` as in `fuses_softmax`). Of a model's own softmax its output, 2, or 4 in fp32, and
    nothing besides; with dropout a mask and what is left. Source: saved tensors of transformers
    models/{t5,bart}, and of PyTorch's _scaled_dot_product_attention_math.
    """
    own, wide = own_operators(shape, stack), element_bytes / 2.0
    if own and own.scores:
        each = 4.0 if own.scores == "math" else 2.0 * wide
        kept = 2.0 * each + 1.0 if own.attention_dropout else each
        return kept, np.zeros_like(np.asarray(matrices, dtype=np.float64))
    is_eager = ~fuses_softmax(stack, matrices)
    kept = 4.0 * wide + (1.0 if shape.dropout else 0.0)
    return kept, np.asarray(is_eager * EAGER_SCORE_KEPT_BYTES)


def keeps_output_twice(shape: ModelShape, stack: StackProfile) -> bool:
    """Tell whether the output of a flash kernel is kept as it comes and in one piece."""
    own = own_operators(shape, stack)
    return bool(own and shape.flash_attention and own.copies_output)


def qk_norm_bytes(
    shape: ModelShape, stack: StackProfile, tp: ArrayLike, element_bytes: float = 2.0
) -> Floats:
    """Return what norms of queries and keys keep beside their results, bytes a token.

    (2 + n) (h_q / t + h_kv) + 4 (a + a_kv) / t, n as of other norms (`norm_bytes_besides`), and a
    number a head, or one each over their width.
    Nothing where outputs of products alone are kept.
    Source: saved tensors of transformers models/qwen3.
    """
    t = np.asarray(tp, dtype=np.float64)
    if not qk_norm_params(shape) or stack.keeps == "products":
        return np.zeros_like(t)
    heads = kv_heads_per_rank(shape, tp)
    each = element_bytes + norm_bytes_besides(shape, stack, element_bytes)
    of_head = shape.operators is not None and shape.operators.qk_norm == "head"
    numbers = shape.heads / t + heads if of_head else 2.0
    return np.asarray(each * (shape.q_width / t + heads * shape.head_dim) + 4.0 * numbers)


def kv_product_bytes(shape: ModelShape, stack: StackProfile) -> float:
    """Return what values of latent attention keep beside themselves in 16 bits, bytes a token.

    2 a d_n where they are a view of the product that makes keys and values
    (`StackProfile.keeps_kv_product`). Source: saved tensors of torchtitan models/deepseek_v3.
    """
    return 2.0 * shape.heads * shape.qk_nope if stack.keeps_kv_product else 0.0


POSITION_INDEX_BYTES = 8.0
"""Of the bucket of one pair of tokens, which the lookup of its position keeps."""


def operand_bytes(
    shape: ModelShape, stack: StackProfile, batch: "MicroBatch", tp: ArrayLike
) -> Floats:
    """Return what own attention keeps beside queries, keys, values and output, bytes a token.

    2 h_q / t in 16 bits where a flash kernel's output is kept twice; 2 (h_q / t + 2 h_kv) where
    PyTorch computes in fp32 without a kernel; 2 (h_q / t + h_kv) where values are a view of one
    product with queries and keys that are rotated; 8 s where a layer looks up relative positions,
    once a micro-batch, on every rank of tp.
    """
    own, q = own_operators(shape, stack), shape.q_width / np.asarray(tp, dtype=np.float64)
    total = np.zeros_like(q)
    if own is None:
        return total
    if keeps_output_twice(shape, stack):
        total = total + batch.element_bytes * q
    if own.scores == "math" and not shape.flash_attention:
        kv = kv_heads_per_rank(shape, tp) * shape.head_dim
        total = total + (4.0 - batch.element_bytes) * (q + 2.0 * kv)
    if own.joint_qkv:
        keys = kv_heads_per_rank(shape, tp) * shape.head_dim
        total = total + batch.element_bytes * (q + keys)
    if own.layer_positions:
        share = np.minimum(1.0, batch.seq_len / np.asarray(batch.tokens, dtype=np.float64))
        total = total + POSITION_INDEX_BYTES * batch.seq_len * share
    return np.asarray(total)


class QuantizedInputs(NamedTuple):
    """What linear layers keep of their inputs where they quantise them, mean over the layers."""

    share: float = 0.0
    """Of the model's layers; the others stay in 16 bits."""
    saved_bytes: float = 0.0
    """What one element of one input takes less than 2 bytes."""
    copy_bytes: float = 0.0
    """What the copy of an element takes where another operator keeps the original."""


def quantized_inputs(problem: Problem) -> QuantizedInputs:
    """Return what the recipe of a job makes of kept inputs in a software stack.

    saved = y (2 - q), y the share of layers that are quantised, q bytes an element with its scale:
    1 (delayed, current), 1.03 (blocks of 128, mxfp8), 0.56 (nvfp4); 0 where the stack quantises
    what it keeps in bf16 (`StackProfile.quantized_copies`).

    Source: Transformer Engine 2.x pytorch/module/linear.py (the column-wise copy alone is saved).
    """
    recipe, job = problem.job.recipe, problem.job
    if not recipe.linear_input_bytes or not problem.stack.quantized_copies or job.tuning:
        return QuantizedInputs()
    share = 1.0 - job.bf16_frac(problem.shape.layers)
    saved = share * (2.0 - recipe.linear_input_bytes)
    return QuantizedInputs(share, saved, share * recipe.output_copy_bytes)


DOWN_PROJECTIONS = 2
"""Linear layers that latent attention begins with, to queries and to keys and values: each
quantises its own copy of the norm's output."""


class MicroBatch(NamedTuple):
    """One micro-batch on one device."""

    tokens: ArrayLike
    """Those of the device: its share of the sequences where context is parallel."""
    seq_len: int
    """Tokens of a whole sequence."""
    element_bytes: float = 2.0
    """Width of an activation (`Recipe.activation_bytes`)."""
    quantized: QuantizedInputs = QuantizedInputs()
    routes: bool = False
    """Routed experts follow the second norm, whose output the router keeps in 16 bits."""
    tuning: TuningJob | None = None
    """Adapters beside frozen weights; none: all weights are trained."""


def freed_by_tuning(
    shape: ModelShape,
    stack: StackProfile,
    tuning: TuningJob,
    tp: ArrayLike,
    element_bytes: float,
) -> Freed:
    """Return `freed_bytes` in a stack: eager norms keep a 16-bit copy for their weight."""
    norm_copy = 2.0 if not stack.fused_norms and element_bytes == 2.0 else 0.0
    return freed_bytes(shape, tuning, tp, element_bytes, norm_copy)


def layer_activation_bytes(
    shape: ModelShape,
    stack: StackProfile,
    batch: MicroBatch,
    tp: ArrayLike,
    sp: ArrayLike,
    keep_scores: ArrayLike,
) -> Floats:
    """Return what one layer keeps for its backward for one micro-batch, bytes per device.

    per token: 8h (two norm inputs and outputs) + 2h (masks, with dropout), divided by t only
    with sequence parallelism; (4 h_q + 4 h_kv + c f) / t, c = 6 gated, 4 otherwise; 4 a / t
    (log-sum-exp) with a flash kernel; without one 5 a s / t (4 without dropout) for the scores,
    unless the attention core is recomputed (`keep_scores` = 0). With latent attention 4 a (d_k +
    d_v) / t + (4 (r_q + r_kv) + 2 d_r) / t in place of 4 h_q / t + 4 h_kv, and
    `kv_product_bytes`. What a stack's eager
    operators keep beside that comes on top (`eager_bytes`), and 4 a s / t for its scores in fp32
    without a flash kernel. A gate of attention's output keeps 4 h_q / t, itself and what it gates.
    Activations in fp32 (`element_bytes` 4) take twice that, but for masks,
    the log-sum-exp and scores that are in fp32 anyway. Where linear layers keep quantised inputs
    (`quantized_inputs`), what `saved_input_bytes` says comes off. Where outputs of products alone
    are kept (`StackProfile.keeps`) 4h of the 8h, and c is 4 (2 without a gate): `rebuilt_bytes`.

    With h_q = h_kv = h, f = 4h and dropout this is s b h (10 + 24/t + 5 a s / (h t)) of
    Korthikanti et al. 2022, section 4.1, and s b h / t (34 + 5 a s / h) with sequence parallelism.
    Left out: temporaries (`working_bytes`).

    >>> from costmodels.examples import GPT3_175B
    >>> from dataclasses import replace
    >>> gpt3 = replace(GPT3_175B, flash_attention=False)
    >>> from costmodels.stacks import FUSED
    >>> layer = layer_activation_bytes(gpt3, FUSED, MicroBatch(2048, 2048), 1, 0, 1).item()
    >>> layer / (2048 * 12288)  # 34 + 5 * 96 * 2048 / 12288
    114.0
    """
    t = np.asarray(tp, dtype=np.float64)
    h, q = shape.hidden, shape.q_width
    pair = 0 if shape.kv_shared else kv_heads_per_rank(shape, tp) * shape.pair_dim
    wide = batch.element_bytes / 2.0
    of_norms = 4.0 if stack.keeps == "products" else 8.0
    unsplit = (of_norms * wide + (2.0 if shape.dropout else 0.0)) * h
    inner = inner_bytes(shape, stack) * shape.ffn / t
    if shape.latent:
        # Queries and keys of one width, values and output of another; latents before and after
        # their norms, and the one key with positions, on the rank's share of the sequence.
        split = (4.0 * q + 4.0 * shape.v_width) / t + inner
        split = split + (4.0 * (shape.q_rank + shape.kv_rank) + 2.0 * shape.qk_rope) / t
        split = split + kv_product_bytes(shape, stack) / t
    else:
        split = (2.0 * q + 2.0 * shape.v_width) / t + 2.0 * pair + inner
        split = split + 4.0 * shape.gate_width / t
    split = wide * split
    if shape.flash_attention:
        scores = 4.0 * shape.heads / t
    else:
        matrices = np.round(shape.heads / t * np.asarray(batch.tokens) / batch.seq_len)
        width, besides = score_bytes(shape, stack, matrices, batch.element_bytes)
        scores = np.asarray(keep_scores) * width * shape.heads * batch.seq_len / t
    if batch.quantized.share:
        saved, saved_split = saved_input_bytes(shape, batch, tp)
        unsplit, split = unsplit - saved, split - saved_split
    if batch.tuning:
        freed = freed_by_tuning(shape, stack, batch.tuning, tp, batch.element_bytes)
        has_feed = bool(shape.ffn) or batch.routes
        unsplit = unsplit - freed.norm - (freed.mlp_norm if has_feed else 0.0)
        split = split - freed.attention - freed.mlp
    more_split, more_unsplit = eager_bytes(shape, stack, tp, sp, batch.element_bytes)
    if not shape.flash_attention:
        besides = np.asarray(keep_scores) * besides
        more_split = more_split + besides * shape.heads * batch.seq_len / t
    more_split = more_split + operand_bytes(shape, stack, batch, tp)
    more_split = more_split + qk_norm_bytes(shape, stack, tp, batch.element_bytes)
    total = (unsplit + more_unsplit) / np.where(np.asarray(sp) > 0, t, 1.0)
    per_token = total + split + more_split + scores
    return np.asarray(batch.tokens, dtype=np.float64) * per_token


def rebuilt_bytes(
    shape: ModelShape,
    stack: StackProfile,
    tokens: ArrayLike,
    tp: ArrayLike,
    sp: ArrayLike,
    element_bytes: float = 2.0,
) -> Floats:
    """Return what a layer that keeps outputs of products alone builds again, bytes.

    2 (2 h / t_sp + f / t) a token: outputs of both norms and of the activation, and of norms of
    queries and keys, while the layer runs backward. 0 where all of it is kept.
    Source: jax.checkpoint_policies.save_only_these_names; buffers of steps of MaxText.
    """
    t, n = np.asarray(tp, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
    if stack.keeps != "products":
        return np.zeros_like(n * t)
    split = np.where(np.asarray(sp) > 0, t, 1.0)
    each = 2.0 * shape.hidden / split + shape.ffn / t
    if qk_norm_params(shape):
        each = each + shape.q_width / t + kv_heads_per_rank(shape, tp) * shape.head_dim
    return np.asarray(element_bytes * n * each)


def context_output_bytes(
    shape: ModelShape,
    stack: StackProfile,
    tokens: ArrayLike,
    tp: ArrayLike,
    element_bytes: float = 2.0,
) -> Floats:
    """Return what a flash kernel keeps that runs again where products alone are kept, bytes.

    (2 h_v + 4 a) / t a token: its output and the log-sum-exp. 0 where the output is kept for the
    projection after it.
    """
    t, n = np.asarray(tp, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
    if stack.keeps != "products" or not shape.flash_attention:
        return np.zeros_like(n * t)
    return np.asarray(n * (element_bytes * shape.v_width + 4.0 * shape.heads) / t)


def saved_input_bytes(shape: ModelShape, batch: MicroBatch, tp: ArrayLike) -> tuple[float, Floats]:
    """Return what quantised inputs save of a layer, bytes a token: cut over tp with SP, by t.

    With d = 2 - q and the share y of the layers: d h for the norm before QKV (2 y h (1 - q) for
    that of latent attention, of which two projections keep a copy each); d h for the one before
    an MLP, nothing before experts, whose router (and shared experts) keep the original; d f / t
    for the second product of the MLP; d (r_q + r_kv) / t for latents; - y q h_v / t for the output
    of attention under delayed scaling. Norms, attention, activation and residual keep 16 bits.

    Source: Megatron-LM core/transformer (save_original_input), docs/framework_switches.md, 7.3.
    """
    t, quantized = np.asarray(tp, dtype=np.float64), batch.quantized
    d, h = quantized.saved_bytes, shape.hidden
    saved = DOWN_PROJECTIONS * d - 2.0 * quantized.share if shape.latent else d
    if shape.ffn and not batch.routes:
        saved += d
    split = d * shape.ffn - quantized.copy_bytes * shape.v_width
    if shape.latent:
        split += d * (shape.q_rank + shape.kv_rank)
    return saved * h, split / t


def checkpoint_bytes(
    shape: ModelShape,
    tokens: ArrayLike,
    tp: ArrayLike,
    sp: ArrayLike,
    element_bytes: float = 2.0,
) -> Floats:
    """Return what a fully recomputed layer keeps: its input, 2 s b h (over t with SP).

    Source: Korthikanti et al. 2022, section 5 (full recompute).
    """
    split = np.where(np.asarray(sp) > 0, np.asarray(tp, dtype=np.float64), 1.0)
    return element_bytes * np.asarray(tokens, dtype=np.float64) * shape.hidden / split


def in_flight_chunks(
    schedule: ArrayLike, rank: ArrayLike, pp: ArrayLike, vpp: ArrayLike, n_micro: ArrayLike
) -> Floats:
    """Return the model chunks whose activations rank `rank` holds at its peak.

    GPipe: m. 1F1B: min(m, p - r). Interleaved: min(m v, 2 (p - r - 1) + (v - 1) p + 1). Schedules
    that split the backward: `zero_bubble.held_chunks`.
    Source: Megatron-LM core/pipeline_parallel/schedules.py (warm-up counts).

    >>> in_flight_chunks(3, np.arange(4), 4, 2, 8)
    array([11.,  9.,  7.,  5.])
    """
    code, r = np.asarray(schedule), np.asarray(rank, dtype=np.float64)
    p, v, m = (np.asarray(x, dtype=np.float64) for x in (pp, vpp, n_micro))
    one_f_one_b = np.minimum(m, p - r)
    interleaved = np.minimum(m * v, 2 * (p - r - 1) + (v - 1) * p + 1)
    chunks = np.where(code == 3, interleaved, np.where(code == 1, m, one_f_one_b))
    if np.any(code >= zero_bubble.FIRST_CODE):
        split = zero_bubble.held_chunks(code, p, m)
        return np.where(code >= zero_bubble.FIRST_CODE, split, chunks)
    return chunks


def logits_bytes(
    shape: ModelShape, stack: StackProfile, tokens: ArrayLike, tp: NDArray[np.int32]
) -> Floats:
    """Return what head and loss keep for one micro-batch on the last stage, bytes.

    tokens * V/t * `logit_bytes` of the stack: 6 with a fused cross-entropy, 14 in eager code.
    Where the stack gathers its logits V instead of V/t, and `gathered_bytes` more.
    """
    vocab = np.asarray(tokens) * padded_vocab(shape, tp)
    if not stack.logits_sharded:
        return vocab * stack.logit_bytes + gathered_bytes(shape, stack, tokens, tp)
    return vocab / np.asarray(tp) * stack.logit_bytes


def gathered_bytes(
    shape: ModelShape, stack: StackProfile, tokens: ArrayLike, tp: NDArray[np.int32]
) -> Floats:
    """Return what gathering the logits takes for a moment, bytes: tokens * V * 14 where tp > 1.

    0 in stacks that do not gather them.
    """
    vocab = np.asarray(tokens, dtype=np.float64) * padded_vocab(shape, tp)
    gathers = (np.asarray(tp) > 1) & (not stack.logits_sharded)
    return np.where(gathers, GATHERED_LOGIT_BYTES * vocab, 0.0)


def ring_bytes(
    shape: ModelShape, stack: StackProfile, tokens: ArrayLike, tp: NDArray[np.int32]
) -> Floats:
    """Return what logits take beside their gradient in a planned step, bytes: 2 tokens V / t.

    Where the head's gradient is summed in a ring, piece by piece, its loop reads the gradient of
    the logits, which then has a place of its own; else it takes that of the logits
    (`costmodels.phases`). 0 in other stacks.
    """
    n = np.asarray(tokens, dtype=np.float64)
    if stack.memory_plan != "phases":
        return np.zeros_like(n * tp)
    return 2.0 * n * padded_vocab(shape, tp) / np.asarray(tp)


def working_bytes(
    shape: ModelShape,
    tokens: ArrayLike,
    tp: ArrayLike,
    exchange_bytes: ArrayLike = 0.0,
    element_bytes: float = 2.0,
) -> Floats:
    """Return the temporaries of one layer's backward, bytes.

    Gradients of the MLP's inner activations ((4 or 2) f + 2 f bytes a token, over t), or the
    buffers of context parallelism (`exchange_bytes`) if they are larger, and three full-width
    tensors (gathered input, its gradient, the residual's gradient). Source: the tensors alive in
    that backward, counted by hand. The peak coincides with the start of a
    backward, when all activations are still held.
    """
    t = np.asarray(tp, dtype=np.float64)
    h, f = shape.hidden, shape.ffn
    inner = element_bytes / 2.0 * ((4.0 if shape.gated else 2.0) + 2.0) * f / t
    n = np.asarray(tokens, dtype=np.float64)
    core = n * 3 * element_bytes * h + np.asarray(exchange_bytes)
    return np.asarray(np.maximum(n * (inner + 3 * element_bytes * h), core))


LAYERS_IN_QUEUE = 19
"""Layers that fill the device's queue of launches: 1024 entries, 50 to 55 kernels in the forward
of an eager layer."""


def queued_bytes(
    shape: ModelShape,
    stack: StackProfile,
    tokens: ArrayLike,
    tp: ArrayLike,
    element_bytes: float = 2.0,
) -> Floats:
    """Return what tensor-parallel collectives hold while the queue of launches is full, bytes.

    2 n h `queued_tensors` where tp > 1: full-width inputs of reduce-scatters and outputs of
    all-gathers. The caching allocator hands them out again only when the device has passed the
    collective (`record_stream`), and a host that is far ahead has asked for new ones by then.

    >>> from dataclasses import replace
    >>> from costmodels.examples import LLAMA3_70B
    >>> from costmodels.stacks import EAGER
    >>> queued = replace(EAGER, queued_tensors=42.0)
    >>> queued_bytes(LLAMA3_70B, queued, 4096, np.array([1, 8])).tolist()  # 2 * 4096 * 8192 * 42
    [0.0, 2818572288.0]
    """
    total = element_bytes * np.asarray(tokens, dtype=np.float64) * shape.hidden
    return np.where(np.asarray(tp) > 1, stack.queued_tensors * total, 0.0)


def queue_is_full(
    n_layers: int,
    pp: ArrayLike,
    vpp: ArrayLike,
    chunks: ArrayLike,
    tp_domains: ArrayLike,
    *,
    blocking_p2p: bool,
) -> NDArray[np.bool_]:
    """Return whether the host can be a full queue of launches ahead of the device.

    Without a pipeline nothing makes it wait. With one it waits for the first message that comes
    back, after the forwards of the warm-up: (`chunks` - 1) (L / (p v) + 1) >= 19 layers, where a
    pass counts as one layer more for what comes before its layers, and `chunks` are those in
    flight. Messages that block behind tensor-parallel groups over more than two domains
    (`tp_domains`, `blocking_p2p`) hold up the host at each.

    Source: published sweep of nanotron, models of 16 and 32 layers; our reading of it.

    >>> p = np.array([1, 2, 4, 8])
    >>> queue_is_full(16, p, 1, p, 1, blocking_p2p=True).tolist()  # 9, 15, 21 layers ahead
    [True, False, False, True]
    >>> queue_is_full(32, p, 1, p, 1, blocking_p2p=True).tolist()  # 17, 27, 35
    [True, False, True, True]
    """
    stages = np.asarray(pp, dtype=np.float64)
    ahead = (np.asarray(chunks) - 1.0) * (n_layers / (stages * np.asarray(vpp)) + 1.0)
    full = ahead >= LAYERS_IN_QUEUE
    if blocking_p2p:
        full = full & (np.asarray(tp_domains) <= 2)
    return np.asarray((stages == 1) | full)


def scratch_bytes(shape: ModelShape, stack: StackProfile, tp: ArrayLike) -> Floats:
    """Return the bf16 scratch gradients, one per distinct shape of a layer's linear weights.

    They exist, for good, with fused weight-gradient accumulation. Source: Transformer Engine
    >= 2.3 `get_dummy_wgrad`.
    """
    if not stack.fused_wgrad:
        return np.zeros_like(np.asarray(tp, dtype=np.float64))
    t = np.asarray(tp, dtype=np.float64)
    kv = kv_heads_per_rank(shape, tp) * shape.projected_dim
    qkv = shape.q_width / t + kv + shape.gate_width / t
    up = (2 if shape.gated else 1) * shape.ffn / t
    if shape.latent:
        return 2.0 * (latent_params(shape, np.asarray(tp)) + shape.hidden * (up + shape.ffn / t))
    return 2.0 * shape.hidden * (qkv + shape.v_width / t + up + shape.ffn / t)


def zero3_working_bytes(
    recipe: Recipe, layer_params: ArrayLike, end_params: ArrayLike, zero: ArrayLike
) -> Floats:
    """Return the unsharded units that ZeRO-3 (and the gradients that ZeRO-2) need at once, bytes.

    Two units of weights (one computes, one is gathered) and two of gradients, where the largest
    unit may be the embedding. Source: Megatron-LM docs megatron_fsdp.md (double buffer).
    """
    stage = np.asarray(zero)
    units = np.asarray(layer_params) + np.maximum(layer_params, end_params)
    weights = np.where(stage >= 3, recipe.param_bytes, 0.0)
    grads = np.where(stage >= 2, recipe.param_wire_bytes, 0.0)
    return np.asarray(units * (weights + grads))


FLAT_BUCKET_PARAMS = 5e8
"""Parameters that DeepSpeed reduces or gathers at once by default (`reduce_bucket_size`,
`allgather_bucket_size`)."""


def flat_copy_bytes(
    recipe: Recipe,
    stack: StackProfile,
    params: ArrayLike,
    zero: ArrayLike,
    n_shard: ArrayLike,
    *,
    offload: ArrayLike = 0,
) -> Floats:
    """Return the copies that an optimizer over flat tensors makes at the update, bytes.

    ZeRO 1 and 2 of N parameters over D ranks, B parameters a bucket (`FLAT_BUCKET_PARAMS`):

      w_p N / max(1, N // B)   weights, gathered to a flat tensor of a bucket or more
      w_g min(max(N - B, 0), B)  gradients, flattened to be reduced: the first bucket lies where
                                 weights are gathered later, others, of other size, do not
      f N / D                  gradients of the partition: flattened, and cast to fp32

    f = g + 4 of 16-bit gradients, without the 4 where K has that copy already; g of fp32 ones; 0
    where fp32 gradients lie flat beside 16-bit ones. Without ZeRO the copies of gradients that a
    recipe casts one by one before they are flattened (fp16: 4 N). No partition with the optimizer
    on the host. They come when activations have gone, but a flat tensor does not fit where those
    lay: the allocator holds both (what nvidia-smi and `memory_reserved` count).

    Source: DeepSpeed 0.5 to 0.6 runtime/zero/stage_1_and_2.py (allreduce_bucket, step; torch's
    all_gather of a list), runtime/fp16/fused_optimizer.py (step), runtime/bf16_optimizer.py.
    0 in other software, and with ZeRO 3 (`zero3_working_bytes`).

    >>> from costmodels.precision import RECIPES
    >>> from costmodels.stacks import STACKS
    >>> stack = STACKS["megatron-deepspeed"]
    >>> flat_copy_bytes(RECIPES["fp16", "adam"], stack, 4e9, 1, 8).item()  # 1e9 + 1e9 + 2 x 5e8
    3000000000.0
    """
    n, stage = np.asarray(params, dtype=np.float64), np.asarray(zero)
    if not stack.flat_optimizer:
        return np.zeros(np.broadcast_shapes(n.shape, stage.shape))
    bucket = FLAT_BUCKET_PARAMS
    moved = recipe.grad_wire_bytes * np.clip(n - bucket, 0.0, bucket)
    moved = moved + recipe.param_wire_bytes * n / np.maximum(1.0, n // bucket)
    per_param = np.where(np.asarray(offload) > 0, 0.0, _partition_bytes(recipe, stack))
    sharded = moved + per_param * n / np.asarray(n_shard, dtype=np.float64)
    alone = recipe.grad_copy_bytes * n
    return np.asarray(np.where(stage == 0, alone, np.where(stage < 3, sharded, 0.0)))


def _partition_bytes(recipe: Recipe, stack: StackProfile) -> float:
    """Return f of `flat_copy_bytes`."""
    grad_bytes = param_bytes_kept(recipe, stack).grads
    if grad_bytes > 4.0:
        return 0.0
    casts = grad_bytes < 4.0 and not recipe.grad_copy_bytes
    return grad_bytes + (4.0 if casts else 0.0)
