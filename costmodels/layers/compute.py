"""Time of one layer, and of the ends of the model, on one device.

Matrix products, attention, memory-bound operators: seconds per micro-batch, forward and backward
apart, without communication.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.layers.gemm import gemm_s, linear_rate_frac
from costmodels.layers.params import kv_heads_per_rank, padded_vocab, qk_norm_params
from costmodels.memory import fuses_norms
from costmodels.precision import FP8_RATE_FRAC
from costmodels.problem import Problem
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import StackProfile, fuses_softmax
from costmodels.tuning.adapters import adapter_times, dequantize_s
from costmodels.tuning.targets import attention_linears, mlp_linears
from hardware.parts import Accelerator

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

SCORE_BYTES, EAGER_SCORE_BYTES, DROPOUT_BYTES = 4.0, 24.0, 4.0
"""Memory traffic per score element of an unfused attention, forward: a fused scale-mask-softmax
reads and writes (2 + 2); eager operators scale (2 + 2), mask (2 + 2), widen (2 + 4), normalise
(4 + 4) and narrow (4 + 2) apart, less where two of them are one; dropout where it is on reads and
writes (2 + 2). About the same again in backward. A fit over measured runs with a fused softmax and
dropout gave 17 for both directions together, one with eager operators 25 for each."""
UNFUSED_RATE_FRAC = 0.5
"""Rate of the batched score GEMMs of an unfused attention over that of a large GEMM."""
ATTENTION_TILE = 128
"""Query rows of one tile of a flash kernel."""
BACKWARD_OVER_FORWARD = 2.5
"""Matrix products of a flash backward over those of its forward: five against two."""
LATENT = (0.89, 0.78)
"""Rate of a kernel with heads of 192 and values of 128 over that with 128, forward and backward:
0.54 / 0.59 and 0.40 / 0.50 on A100, 0.43 / 0.50 and 0.315 / 0.42 on B200 (SimuMax, 4dcaae5)."""


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """Seconds per micro-batch, forward and backward; arrays of one shape."""

    forward_s: Floats
    backward_s: Floats

    def __mul__(self, times: float) -> "ForwardBackward":
        return ForwardBackward(self.forward_s * times, self.backward_s * times)

    def __add__(self, other: "ForwardBackward") -> "ForwardBackward":
        return ForwardBackward(
            self.forward_s + other.forward_s, self.backward_s + other.backward_s
        )

    @property
    def total_s(self) -> Floats:
        """Forward plus backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True)
class LinearTimes:
    """GEMM times of one layer; column-parallel and row-parallel apart for the overlap windows."""

    column_forward_s: Floats
    column_dgrad_s: Floats
    column_wgrad_s: Floats
    row_forward_s: Floats
    row_dgrad_s: Floats
    row_wgrad_s: Floats

    def __add__(self, other: "LinearTimes") -> "LinearTimes":
        pairs = ((getattr(self, x.name), getattr(other, x.name)) for x in fields(self))
        return LinearTimes(*(one + two for one, two in pairs))

    @property
    def both(self) -> ForwardBackward:
        """All linear layers, forward and backward."""
        return ForwardBackward(
            self.column_forward_s + self.row_forward_s,
            self.column_dgrad_s + self.column_wgrad_s + self.row_dgrad_s + self.row_wgrad_s,
        )


def linear_times(
    shape: ModelShape,
    job: TrainingJob,
    accelerator: Accelerator,
    stack: StackProfile,
    tokens: Floats,
    tp: Ints,
) -> LinearTimes:
    """Return the GEMM times of one layer's four linear layers on one device.

    QKV (h -> (h_q + 2 h_kv)/t, h_q/t more with a gate of the output) and up (h -> f/t, twice f
    gated) are column-parallel, the attention projection (h_q/t -> h) and down (f/t -> h)
    row-parallel; backward is a data-gradient
    and a weight-gradient product of the same FLOPs, the latter at `wgrad_frac` of the rate and
    summed into the gradients of the step (`accumulated_s`). fp8
    recipes quantise the input forward and the output's gradient backward, `cast_bytes` each.
    Latent attention has r_q -> h_q/t and r_kv -> a (d_n + d_v)/t in place of QKV, and h -> r_q +
    r_kv + d_r on the rank's share of the tokens. No MLP where `ffn` is 0.
    Left out: casts of the weights, once a step.
    """
    t = np.asarray(tp, dtype=np.float64)
    h = float(shape.hidden)
    qkv = shape.q_width / t + kv_heads_per_rank(shape, tp) * shape.projected_dim
    qkv = qkv + shape.gate_width / t
    three = products_of(shape.layers, job, accelerator, stack)
    mlp = _mlp_sizes(shape, t)
    inputs = _up_projections(shape, t) if shape.latent else [(h, qkv)]
    column = _sum_of(three(tokens, *sizes) for sizes in (*inputs, *mlp[:1]))
    row = _sum_of(three(tokens, *sizes) for sizes in ((shape.v_width / t, h), *mlp[1:]))
    if shape.latent:
        down = float(shape.q_rank + shape.kv_rank + shape.qk_rope)
        column = _sum_of((column, three(tokens / t, h, down)))
    if job.tuning:
        linears = (*attention_linears(shape), *mlp_linears(shape))
        more = adapter_times(linears, shape, job, accelerator, tokens, tp)
        return LinearTimes(*column, *row) + LinearTimes(*more[0], *more[1])
    return LinearTimes(*column, *row)


@dataclass(frozen=True, slots=True)
class Product:
    """One linear layer on one rank: (rows x inner) times (inner x columns) elements."""

    name: str
    rows: float
    inner: float
    columns: float


def linear_products(shape: ModelShape, tokens: float, tp: int) -> tuple[Product, ...]:
    """Return the products of one layer that `linear_times` adds up, those without an MLP too."""
    t, ranks = np.float64(tp), np.array(tp, dtype=np.int32)
    h = float(shape.hidden)
    if shape.latent:
        names, down = ("q_up", "kv_up"), float(shape.q_rank + shape.kv_rank + shape.qk_rope)
        sizes = _up_projections(shape, np.asarray(t))
        results = [(n, tokens, *size) for n, size in zip(names, sizes, strict=True)]
        results.append(("qkv_down", tokens / tp, h, down))
    else:
        kv = kv_heads_per_rank(shape, ranks).item()
        qkv = shape.q_width / t + kv * shape.projected_dim + shape.gate_width / t
        results = [("qkv", tokens, h, qkv)]
    results.append(("attention_out", tokens, shape.v_width / t, h))
    mlp = zip(("mlp_up", "mlp_down"), _mlp_sizes(shape, np.asarray(t)), strict=False)
    results += [(name, tokens, *size) for name, size in mlp]
    return tuple(Product(n, *(float(np.asarray(x)) for x in sizes)) for n, *sizes in results)


def product_times(
    product: Product, job: TrainingJob, accelerator: Accelerator, stack: StackProfile
) -> tuple[float, float, float]:
    """Return forward, data gradient and weight gradient of a linear layer, seconds."""
    three = products_of(0, job, accelerator, stack)
    result = three(np.asarray(product.rows), product.inner, product.columns)
    return float(result[0]), float(result[1]), float(result[2])


def _mlp_sizes(shape: ModelShape, t: Floats) -> list[tuple[ArrayLike, ArrayLike]]:
    """Return (inner, columns) of the MLP's two products on one of t ranks; none without an MLP."""
    if not shape.ffn:
        return []
    up = (2 if shape.gated else 1) * shape.ffn / t
    return [(float(shape.hidden), up), (shape.ffn / t, float(shape.hidden))]


def _up_projections(shape: ModelShape, t: Floats) -> list[tuple[ArrayLike, ArrayLike]]:
    """Return (inner, columns) of the products from the latents to queries, and to keys, values."""
    keys = shape.heads * (shape.qk_nope + shape.v_head) / t
    return [(float(shape.q_rank or shape.hidden), shape.q_width / t), (float(shape.kv_rank), keys)]


Three = tuple[Floats, Floats, Floats]


def bf16_job(job: TrainingJob) -> TrainingJob:
    """Return a job whose linear layers stay in bf16, with gradients as wide as before."""
    narrow = "bf16" if job.recipe.grad_bytes == 2 else ""
    return replace(
        job, precision="bf16", grad_dtype=narrow, fp8_param_gather=False, bf16_layers=(0, 0)
    )


def products_of(
    layers: int, job: TrainingJob, accelerator: Accelerator, stack: StackProfile
) -> Callable[[Floats, ArrayLike, ArrayLike], Three]:
    """Return the function of (rows, inner, columns) to forward, data and weight gradient times.

    Of a model of `layers` layers some may stay in bf16: the mean over all layers. Left out: which
    stage of a pipeline holds them.
    """
    recipe, eff = job.recipe, accelerator.efficiency
    wide_frac = job.bf16_frac(layers)
    if wide_frac:
        low = products_of(0, replace(job, bf16_layers=(0, 0)), accelerator, stack)
        wide = products_of(0, bf16_job(job), accelerator, stack)

        def both(rows: Floats, inner: ArrayLike, columns: ArrayLike) -> Three:
            parts = zip(low(rows, inner, columns), wide(rows, inner, columns), strict=True)
            first, second, third = ((1.0 - wide_frac) * a + wide_frac * b for a, b in parts)
            return first, second, third

        return both
    precision, rate = recipe.linear, linear_rate_frac(recipe, accelerator)
    cast_s = recipe.cast_bytes / (accelerator.hbm_bytes_per_s * eff.hbm_frac)

    def three(rows: Floats, inner: ArrayLike, columns: ArrayLike) -> Three:
        forward = gemm_s(rows, inner, columns, accelerator, precision, rate)
        dgrad = gemm_s(rows, columns, inner, accelerator, precision, rate)
        wgrad = gemm_s(inner, rows, columns, accelerator, precision, rate * eff.wgrad_frac)
        weights = np.asarray(inner) * np.asarray(columns)
        if job.tuning:
            widen_s = dequantize_s(weights, job.tuning, accelerator)
            forward, dgrad = forward + widen_s, dgrad + widen_s
            return (
                forward + cast_s * rows * np.asarray(inner),
                dgrad + cast_s * rows * np.asarray(columns),
                0.0 * wgrad,
            )
        return (
            forward + cast_s * rows * np.asarray(inner),
            dgrad + cast_s * rows * np.asarray(columns),
            accumulated_s(wgrad, weights, job, accelerator, stack),
        )

    return three


def accumulated_s(
    product_s: Floats,
    weights: ArrayLike,
    job: TrainingJob,
    accelerator: Accelerator,
    stack: StackProfile,
) -> Floats:
    """Return the time of a weight gradient with its sum into the gradients of the step, seconds.

    fused (`fused_wgrad`): sqrt( product^2 + (2 G w / B_hbm)^2 ), the epilogue of each tile reads
    and writes G bytes a weight, partly beside the products of other tiles; otherwise product +
    (2 + 2 G) w / B_hbm, an operator of its own reads the new gradient and the sum and writes the
    sum. w weights, G the bytes of a gradient, at most 4, B_hbm sustained.

    Source: Megatron-LM core/tensor_parallel/layers.py (fused accumulation) and
    distributed_data_parallel.py (the hook without it); the root of squares instead of the larger
    of both is fitted over published runs of 2048 to 16384 tokens on H100, bf16 and fp8. Left out:
    the first micro-batch of PyTorch's own accumulation, which only stores; output head, routed
    experts (`costmodels.layers.experts.rows_fracs` has their sum).
    """
    eff, grad = accelerator.efficiency, min(job.recipe.grad_bytes, 4.0)
    per_byte = np.asarray(weights) / (accelerator.hbm_bytes_per_s * eff.hbm_frac)
    if stack.fused_wgrad:
        return np.hypot(product_s, 2.0 * grad * per_byte)
    return np.asarray(product_s + (2.0 + 2.0 * grad) * per_byte)


def mlp_linear_times(
    shape: ModelShape,
    job: TrainingJob,
    accelerator: Accelerator,
    stack: StackProfile,
    tokens: Floats,
    tp: Ints,
) -> LinearTimes:
    """Return the part of `linear_times` that is the MLP's: up and down. The model has an MLP."""
    up, down = _mlp_sizes(shape, np.asarray(tp, dtype=np.float64))
    three = products_of(shape.layers, job, accelerator, stack)
    times = LinearTimes(*three(tokens, *up), *three(tokens, *down))
    if not job.tuning:
        return times
    more = adapter_times(mlp_linears(shape), shape, job, accelerator, tokens, tp)
    return times + LinearTimes(*more[0], *more[1])


def up_projection_s(
    shape: ModelShape,
    job: TrainingJob,
    accelerator: Accelerator,
    stack: StackProfile,
    tokens: Floats,
    tp: Ints,
) -> Floats:
    """Return the forward time of latent attention's products from the latents, seconds."""
    three = products_of(shape.layers, job, accelerator, stack)
    sizes = _up_projections(shape, np.asarray(tp, dtype=np.float64))
    return np.asarray(sum(three(tokens, *one)[0] for one in sizes))


def _sum_of(parts: Iterable[Sequence[Floats]]) -> list[Floats]:
    """Return the sums of the first, second, ... entries."""
    first, *rest = parts
    total = list(first)
    for part in rest:
        total = [a + b for a, b in zip(total, part, strict=True)]
    return total


def fused_kernel(stack: StackProfile, accelerator: Accelerator) -> str:
    """Return the fused attention kernel that the stack uses on this accelerator."""
    rates = accelerator.efficiency.attention_frac
    usable = sorted(name for name in rates if name != "unfused")
    preferred = [name for name in stack.attention_kernels if name in rates]
    return (preferred + usable + ["unfused"])[0]


@dataclass(frozen=True, slots=True)
class AttentionKernels:
    """How the attention core of one layer is cut; arrays that broadcast."""

    tp: Ints
    """Ranks that share the heads."""
    n_kernels: ArrayLike = 1.0
    """Kernels of a rank one after another, forward; as many backward."""
    key_blocks: ArrayLike = 1.0
    """Parts into which the keys of a sequence are cut, one to a kernel."""
    run_keys: float = 0.0
    """Mean keys of a query that a flash kernel multiplies; 0: all before it, s / 2."""


def attention_times(
    shape: ModelShape,
    job: TrainingJob,
    accelerator: Accelerator,
    stack: StackProfile,
    tokens: Floats,
    kernels: AttentionKernels,
) -> ForwardBackward:
    """Return the time of the attention core (scores, softmax, values) of one layer.

    flash: 2 s h_q / t FLOPs per token forward (the causal half of 4 s h_q), 2.5 times that
    backward, at P * share * s / (s + s_half), slowed when heads * sequences * s / 128 tiles do
    not fill the multiprocessors. Cut into `kernels` over s / n keys each, s / n stands for s in
    the rate and every kernel has its launch. With latent attention keys and values differ in
    width: s a (d_k + d_v) / t FLOPs, three products over keys and two over values backward, and
    `LATENT` of the share. Queries that reach only `run_keys` keys have these in place of s / 2,
    and twice them in place of s in the rate. unfused: the full square at half the GEMM rate, plus
    the traffic of the scores. In fp8 P is 0.9 of the peak of fp8 (assumed: the share of 16-bit
    kernels is kept; casts are fused). Sources: FlashAttention-2 and -3 benchmark figures (rates
    and FLOP convention); Korthikanti et al. 2022 (unfused operators).
    """
    t = np.asarray(kernels.tp, dtype=np.float64)
    s, eff = float(job.seq_len), accelerator.efficiency
    n = np.asarray(tokens, dtype=np.float64)
    precision = "fp16" if job.recipe.gemm_precision == "fp16" else "bf16"
    peaks = accelerator.peak_flops_per_s
    peak = peaks[precision if precision in peaks else job.recipe.gemm_precision]
    if job.recipe.attention_precision:
        peak = peaks[job.recipe.attention_precision] * FP8_RATE_FRAC
    causal_flops = 2.0 * s * shape.q_width / t * n
    recomputed = BACKWARD_OVER_FORWARD
    if shape.v_head:
        qk = shape.qk_nope + shape.qk_rope if shape.latent else shape.head_dim
        v = shape.v_head
        causal_flops = s * shape.heads * (qk + v) / t * n
        recomputed = (3.0 * qk + 2.0 * v) / (qk + v)
    if shape.flash_attention:
        forward_frac, backward_frac = eff.attention_frac[fused_kernel(stack, accelerator)]
        keys = s / np.asarray(kernels.key_blocks, dtype=np.float64)
        if kernels.run_keys:
            causal_flops = causal_flops * (2.0 * kernels.run_keys / s)
            keys = 2.0 * kernels.run_keys / np.asarray(kernels.key_blocks, dtype=np.float64)
        length = keys / (keys + eff.attention_seq_half)
        if shape.latent:
            forward_frac, backward_frac = forward_frac * LATENT[0], backward_frac * LATENT[1]
        tiles = shape.heads / t * (n / s) * np.ceil(s / ATTENTION_TILE)
        filled = np.minimum(1.0, tiles / accelerator.n_sms)
        rate = peak * length * filled
        launches = np.asarray(kernels.n_kernels) * eff.kernel_latency_s
        return ForwardBackward(
            causal_flops / (rate * forward_frac) + launches,
            recomputed * causal_flops / (rate * backward_frac) + launches,
        )
    rate = peak * eff.gemm_frac * UNFUSED_RATE_FRAC
    scores = shape.heads / t * s * n
    is_fused = fuses_softmax(stack, np.round(shape.heads / t * n / s))
    score_bytes = np.where(is_fused, SCORE_BYTES, EAGER_SCORE_BYTES)
    score_bytes = score_bytes + (DROPOUT_BYTES if shape.dropout else 0.0)
    traffic_s = score_bytes * scores / (accelerator.hbm_bytes_per_s * eff.hbm_frac)
    forward = 2.0 * causal_flops / rate + traffic_s + 4 * eff.kernel_latency_s
    return ForwardBackward(
        forward, 2.0 * 2.0 * causal_flops / rate + traffic_s + 4 * eff.kernel_latency_s
    )


def elementwise_times(
    shape: ModelShape,
    accelerator: Accelerator,
    stack: StackProfile,
    tokens: Floats,
    tp: Ints,
    sp: Ints,
) -> ForwardBackward:
    """Return the time of one layer's memory-bound operators: norms, residuals, rotary, activation.

    bytes per token, forward: (8 u + 12) h (two norms 4h, two residual additions 6h; + 2h masks
    with dropout) over t with SP, 4 (h_q + h_kv)/t rotary, (6 gated, 4 otherwise) f / t;
    backward: (12 u + 8) h (norms 6h, additions 4h; + 2h), the same rotary, (10, 6) f / t.
    Latent attention: the same for queries and the keys put together of two parts, and 5 (r_q +
    r_kv)/t for the norms of the latents. u = 1, or `unfused_norm_factor` where the stack has no
    norm kernel. Times the stack's traffic factor, over the sustained HBM bandwidth, plus launches.
    Source: operand counts of each operator in bf16.
    """
    t = np.asarray(tp, dtype=np.float64)
    n = np.asarray(tokens, dtype=np.float64)
    total = np.where(np.asarray(sp) > 0, t, 1.0)
    masks = 2.0 if shape.dropout else 0.0
    rotary = rotary_width(shape, tp)
    norm = 1.0 if fuses_norms(shape, stack) else stack.unfused_norm_factor
    forward = (8.0 * norm + 12.0 + masks) * shape.hidden / total + rotary
    backward = (12.0 * norm + 8.0 + masks) * shape.hidden / total + rotary
    forward += (6.0 if shape.gated else 4.0) * shape.ffn / t
    backward += (10.0 if shape.gated else 6.0) * shape.ffn / t
    eff = accelerator.efficiency
    per_byte = stack.elementwise_factor / (accelerator.hbm_bytes_per_s * eff.hbm_frac)
    launches = 6 * eff.kernel_latency_s
    return ForwardBackward(n * forward * per_byte + launches, n * backward * per_byte + launches)


def rotary_width(shape: ModelShape, tp: Ints) -> Floats | float:
    """Return the bytes a token that rotation, and the norms of latents, move in each direction.

    Norms of queries and keys move 4 (h_q + h_kv) / t forward and 6 backward: 5 in the mean.
    A gate of attention's output moves 6 h_q / t forward and 10 h_q / t backward: 8 in the mean.
    """
    t = np.asarray(tp, dtype=np.float64)
    rotary: Floats | float = 0.0
    if shape.positions == "rope":
        keys = 0.0 if shape.kv_shared else kv_heads_per_rank(shape, tp) * shape.head_dim
        rotary = 4.0 * (shape.q_width / t + keys)
    if shape.latent:
        rotary = rotary + 5.0 * (shape.q_rank + shape.kv_rank) / t
    elif qk_norm_params(shape):
        keys = kv_heads_per_rank(shape, tp) * shape.head_dim
        rotary = rotary + 5.0 * (shape.q_width / t + keys)
    return rotary + 8.0 * shape.gate_width / t if shape.attention_gate else rotary


def norm_forward_s(
    shape: ModelShape,
    accelerator: Accelerator,
    stack: StackProfile,
    tokens: Floats,
    tp: Ints,
    sp: Ints,
) -> Floats:
    """Return the forward of one norm of a layer, as `elementwise_times` counts it: 4 u h bytes."""
    width = shape.hidden / np.where(np.asarray(sp) > 0, np.asarray(tp, dtype=np.float64), 1.0)
    norm = 4.0 if fuses_norms(shape, stack) else 4.0 * stack.unfused_norm_factor
    return _one_kernel_s(tokens * norm * width, accelerator, stack)


def activation_forward_s(
    shape: ModelShape, accelerator: Accelerator, stack: StackProfile, tokens: Floats, tp: Ints
) -> Floats:
    """Return the forward of the MLP's activation: (6 gated, 4 otherwise) f / t bytes a token."""
    width = (6.0 if shape.gated else 4.0) * shape.ffn / np.asarray(tp, dtype=np.float64)
    return _one_kernel_s(tokens * width, accelerator, stack)


def latent_rotary_forward_s(
    shape: ModelShape, accelerator: Accelerator, stack: StackProfile, tokens: Floats, tp: Ints
) -> Floats:
    """Return the forward of latent attention's rotation and of the norms of its latents."""
    t = np.asarray(tp, dtype=np.float64)
    width = 4.0 * (shape.q_width / t + kv_heads_per_rank(shape, tp) * shape.head_dim)
    width = (width if shape.positions == "rope" else 0.0) + 5.0 * (
        shape.q_rank + shape.kv_rank
    ) / t
    return _one_kernel_s(tokens * width, accelerator, stack)


def _one_kernel_s(moved_bytes: Floats, accelerator: Accelerator, stack: StackProfile) -> Floats:
    """Return the time of one memory-bound operator that moves so many bytes, seconds."""
    eff = accelerator.efficiency
    per_byte = stack.elementwise_factor / (accelerator.hbm_bytes_per_s * eff.hbm_frac)
    return np.asarray(moved_bytes * per_byte + eff.kernel_latency_s)


def head_times(
    shape: ModelShape,
    job: TrainingJob,
    accelerator: Accelerator,
    stack: StackProfile,
    tokens: Floats,
    tp: Ints,
) -> ForwardBackward:
    """Return the time of final norm, output head and cross-entropy on the last stage.

    Three GEMMs h x V/t, and 14 bytes of traffic per logit times the stack's factor (softmax and
    its gradient over fp32 copies; a third of it with a fused cross-entropy) with 10 h bytes a
    token of the final norm, half in each direction. A stack that gathers its logits runs the loss
    on all V of them. With a layer before the head three products h x h more, whole on every rank,
    and 24 h bytes a token of its activation and norm. Left out: that a rank has a part of those
    tokens with sequence parallelism. Source: operand counts; Megatron-LM vocabulary-parallel
    cross-entropy.
    """
    t = np.asarray(tp, dtype=np.float64)
    n = np.asarray(tokens, dtype=np.float64)
    columns = padded_vocab(shape, tp) / t
    recipe, h, eff = job.recipe, float(shape.hidden), accelerator.efficiency
    precision, rate, cast_s = recipe.gemm_precision, 1.0, 0.0
    if recipe.head_precision:
        precision, rate = recipe.head_precision, linear_rate_frac(recipe, accelerator)
        cast_s = recipe.cast_bytes / (accelerator.hbm_bytes_per_s * eff.hbm_frac)
    logit_traffic = 5.0 if stack.fused_loss else 14.0
    logits = columns if stack.logits_sharded else columns * t
    traffic = n * (logits * logit_traffic * stack.elementwise_factor + 10.0 * shape.hidden)
    loss = traffic / (accelerator.hbm_bytes_per_s * eff.hbm_frac) / 2 + 4 * eff.kernel_latency_s
    dgrad = gemm_s(n, columns, h, accelerator, precision, rate) + cast_s * n * columns
    wgrad = head_weight_grad_s(shape, job, accelerator, tokens, tp)
    if shape.head_transform:
        moved = 12.0 * n * h * stack.elementwise_factor
        loss = loss + moved / (accelerator.hbm_bytes_per_s * eff.hbm_frac)
        loss = loss + 2 * eff.kernel_latency_s
        square = gemm_s(n, h, h, accelerator, recipe.gemm_precision)
        return ForwardBackward(
            gemm_s(n, h, columns, accelerator, precision, rate) + cast_s * n * h + loss + square,
            dgrad + wgrad + loss + 2.0 * square,
        )
    return ForwardBackward(
        gemm_s(n, h, columns, accelerator, precision, rate) + cast_s * n * h + loss,
        dgrad + wgrad + loss,
    )


def head_weight_grad_s(
    shape: ModelShape, job: TrainingJob, accelerator: Accelerator, tokens: Floats, tp: Ints
) -> Floats:
    """Return the part of the head's backward that is its weight gradient, one GEMM, seconds."""
    n, columns = np.asarray(tokens, dtype=np.float64), padded_vocab(shape, tp) / np.asarray(tp)
    if job.tuning:  # frozen
        return 0.0 * n * columns
    rate, recipe = accelerator.efficiency.wgrad_frac, job.recipe
    precision = recipe.head_precision or recipe.gemm_precision
    if recipe.head_precision:
        rate = linear_rate_frac(recipe, accelerator) * rate
    return gemm_s(float(shape.hidden), n, columns, accelerator, precision, rate)


def mtp_times(problem: Problem, tokens: Floats, tp: Ints, sp: Ints) -> ForwardBackward:
    """Return what a module of multi-token prediction takes beside its layer and its head.

    One product 2 h -> h/t and three norms of h, of which 4 h bytes forward and 6 h backward each,
    over t with SP. Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2. Left out: the second
    lookup in the embedding, the gather of the product.
    """
    t, h = np.asarray(tp, dtype=np.float64), float(problem.shape.hidden)
    accelerator, recipe = problem.pool.accelerator, problem.job.recipe
    eff, precision = accelerator.efficiency, recipe.linear
    rate, n = linear_rate_frac(recipe, accelerator), np.asarray(tokens, dtype=np.float64)
    width = 3.0 * h / np.where(np.asarray(sp) > 0, t, 1.0) * problem.stack.elementwise_factor
    norms = n * width / (accelerator.hbm_bytes_per_s * eff.hbm_frac)
    dgrad = gemm_s(n, h / t, 2 * h, accelerator, precision, rate)
    wgrad = gemm_s(2 * h, n, h / t, accelerator, precision, rate * eff.wgrad_frac)
    return ForwardBackward(
        gemm_s(n, 2 * h, h / t, accelerator, precision, rate) + 4.0 * norms,
        dgrad + wgrad + 6.0 * norms,
    )


def embedding_times(
    shape: ModelShape, accelerator: Accelerator, tokens: Floats, tp: Ints, sp: Ints
) -> ForwardBackward:
    """Return the time of the embedding lookup and its gradient on the first stage.

    4 h bytes a token forward (read a row, write it), 8 h backward (fp32 accumulation), plus 3 h
    for a dropout mask. Left out: sorting of repeated tokens.
    """
    n = np.asarray(tokens, dtype=np.float64)
    eff = accelerator.efficiency
    per_byte = shape.hidden / (accelerator.hbm_bytes_per_s * eff.hbm_frac)
    mask = 3.0 / np.where(np.asarray(sp) > 0, np.asarray(tp), 1) if shape.dropout else 0.0
    return ForwardBackward(
        n * (4.0 + mask) * per_byte + eff.kernel_latency_s,
        n * (8.0 + mask) * per_byte + eff.kernel_latency_s,
    )


def optimizer_s(
    n_params: Floats,
    n_shard: Floats,
    n_grad_shard: Floats,
    grad_bytes: float,
    accelerator: Accelerator,
    left_out: Floats | float = 0.0,
) -> Floats:
    """Return the time of the optimizer step of one device, seconds.

    bytes: zero gradients G N (over D_g, the shards of the gradients); norm G N/D; clip 2 G N/D;
    Adam reads G + 12 and writes 12 per N/D; cast to the working precision 4 + 2 per N/D; over the
    sustained HBM bandwidth. `left_out` bytes per N/D of that are moved elsewhere: with the
    optimizer on the host, what Adam reads and writes, G + 24.
    Source: operand list of Megatron-LM's distributed optimizer, as SimuMax (4dcaae5) lists it.

    >>> from costmodels.examples import toy_accelerator
    >>> n, one = np.array(2e9), np.array(1.0)
    >>> round(float(optimizer_s(n, one, one, 4.0, toy_accelerator())), 4)  # 100 GB over 1.6 TB/s
    0.0625
    """
    per_param = grad_bytes / n_grad_shard + (4.0 * grad_bytes + 30.0 - left_out) / n_shard
    eff = accelerator.efficiency
    return n_params * per_param / (accelerator.hbm_bytes_per_s * eff.hbm_frac)
