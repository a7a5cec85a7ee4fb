"""Routed experts of one layer, per micro-batch and device: times, exchanged tokens, memory.

Arrays are of one length, one entry for each way of splitting a layer. Experts fold into the ranks
of a pipeline stage apart from attention: of its tp cp dp ranks the innermost etp cut every expert,
the next ep hold different ones, and the others hold copies.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.comm.dispatch import (
    DEDUPLICATED,
    Degrees,
    dispatch_s,
    dispatcher_buffer_bytes,
    distinct_copies,
    has_dispatcher,
    with_dispatcher,
)
from costmodels.comm.placement import place_group
from costmodels.comm.tensor_parallel import tp_collective_s
from costmodels.layers.compute import ForwardBackward, accumulated_s, bf16_job, products_of
from costmodels.layers.gemm import element_bytes, gemm_s, linear_rate_frac
from costmodels.memory import quantized_inputs
from costmodels.modes import ModeRows
from costmodels.problem import Problem
from costmodels.schedule.launches import EXPERT_PRODUCTS, GROUPED_CAST_SHARE, GROUPED_SHARE
from costmodels.shapes import ModelShape
from costmodels.stacks import StackProfile
from costmodels.tuning.adapters import dequantize_s
from costmodels.tuning.targets import EXPERTS
from hardware.parts import Accelerator

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]

FORWARD_ROWS, DGRAD_ROWS = 330.0, 230.0
"""Rows per expert at which a grouped product reaches 1 - 1/e of the rate of one large product."""
WGRAD_ROWS, WGRAD_FLOPS_PER_BYTE, WGRAD_POWER = 217.0, 161.0, 1.9
"""Rows per expert at which a grouped weight gradient, accumulated in fp32, reaches half of the
rate of one large product; on a part with this many FLOPs per byte of HBM; growth with them."""
PERMUTE_FRAC = 0.75
"""Share of the sustained HBM bandwidth that gathering and scattering rows reaches: 0.50 of the
data sheet against 0.67 for ordinary operators in SimuMax's table of B200 (4dcaae5)."""
ROUTER_BYTES = 21.0
"""Memory traffic of routing per token and expert, each way: softmax of fp32 scores (4 + 4), top-k
(4 + 4), mask and probabilities (1 + 4)."""
ROUTER_KERNELS = 5


@dataclass(frozen=True, slots=True)
class ExpertTimes:
    """What the routed experts of one layer add to a layer without them."""

    compute: ForwardBackward
    """Router, permutation, grouped products, activation."""
    exchange: ForwardBackward
    """A dispatch and a combine over ep with the collectives over etp, as if nothing hid them."""
    routing: ForwardBackward
    """The part of `compute` that comes before the dispatch: the router and its scores."""
    weight_grad_s: Floats
    """The part of its backward that can wait: the weight gradients of the products."""


class GroupedProduct(NamedTuple):
    """Products of one size, (rows x inner) times (inner x columns) elements each."""

    groups: ArrayLike
    rows: ArrayLike
    inner: ArrayLike
    columns: ArrayLike


def grouped_gemm_s(
    product: GroupedProduct,
    accelerator: Accelerator,
    precision: str,
    rate_frac: float,
    rows_frac: ArrayLike,
) -> Floats:
    """Return the time of `groups` products (rows x inner) (inner x columns) in one launch.

    t = max( 2 G rows columns (inner + k0) / (P eta u),  G bytes / (B_hbm * frac) ) + launch

    u = `rows_frac`, the rate over that of one large product. A single product is an ordinary one
    (`costmodels.layers.gemm`). Left out: waves of tiles, which many groups fill.
    """
    g, m, k, n = (np.asarray(x, dtype=np.float64) for x in product)
    eff = accelerator.efficiency
    rate = accelerator.peak_flops_per_s[precision] * eff.gemm_frac * rate_frac
    work = 2.0 * g * m * n * (k + eff.gemm_k_half) / (rate * np.asarray(rows_frac))
    traffic = element_bytes(precision) * g * (m * k + k * n + m * n)
    memory = traffic / (accelerator.hbm_bytes_per_s * eff.hbm_frac)
    many = np.maximum(work, memory) + eff.kernel_latency_s
    return np.where(g > 1, many, gemm_s(m, k, n, accelerator, precision, rate_frac))


def rows_fracs(
    rows: Floats, accelerator: Accelerator, grad_bytes: float
) -> tuple[Floats, Floats, Floats]:
    """Return the rate of grouped products over that of one large one: forward, dgrad, wgrad.

    1 - exp(-M / 330), 1 - exp(-M / 230), and M / (M + M_w) with
    M_w = 217 (P / B_hbm / 161)^1.9 G / 4 for the weight gradient, which reads and writes G bytes a
    weight. M rows per expert, P the bf16 peak.

    Source: fit to SimuMax's tables (4dcaae5) of B200 at 128 to 9832 rows, and of A100 at 616 and
    1232; fp32 and bf16 gradients. Mean error 5 %, worst 26 % (forward, 128 rows).
    """
    peaks = accelerator.peak_flops_per_s
    intensity = peaks.get("bf16", peaks.get("fp16", 0.0)) / accelerator.hbm_bytes_per_s
    half = WGRAD_ROWS * (intensity / WGRAD_FLOPS_PER_BYTE) ** WGRAD_POWER
    half *= min(grad_bytes, 4.0) / 4.0
    return 1 - np.exp(-rows / FORWARD_ROWS), 1 - np.exp(-rows / DGRAD_ROWS), rows / (rows + half)


def load_factor(shape: ModelShape, ep: ArrayLike) -> Floats:
    """Return the rows of the busiest rank over the mean.

    With a capacity that factor on every rank, the rest dropped; else `imbalance`, and 1 where one
    rank holds all experts.
    """
    if shape.capacity_factor:
        return np.full(np.shape(ep), shape.capacity_factor)
    return np.where(np.asarray(ep) > 1, shape.imbalance, 1.0)


def parts_for_routing(stack: StackProfile, sp: Ints, ep: Ints) -> Bools:
    """Return where tp ranks that hold the same tokens route a share each, and gather the outputs.

    Source: torchtitan models/common/moe_sharding.py (ep without sequence parallelism).
    """
    parts = (np.asarray(sp) == 0) & (np.asarray(ep) > 1) & (stack.etp_gathers == "tokens")
    return np.asarray(parts, dtype=np.bool_)


def local_tokens(stack: StackProfile, tokens: Floats, tp: Ints, sp: Ints, ep: Ints) -> Floats:
    """Return the tokens that one rank routes: its share of the sequence with sp."""
    cut = (np.asarray(sp) > 0) | parts_for_routing(stack, sp, ep)
    return np.asarray(tokens / np.where(cut, tp, 1), dtype=np.float64)


def shares_of_tokens(stack: StackProfile, sp: Ints, etp: Ints) -> Ints:
    """Return how many ranks' tokens the etp ranks of an expert compute together.

    1 where all of them hold the same tokens: those that gather before routing, without sequence
    parallelism, have nothing to gather and sum their outputs as a dense MLP does.
    """
    if stack.etp_gathers != "tokens":
        return np.asarray(etp, dtype=np.int32)
    return np.where(np.asarray(sp) > 0, etp, 1).astype(np.int32)


def expert_rows(problem: Problem, tokens: Floats, sp: Ints, ep: Ints, etp: Ints) -> Floats:
    """Return the rows that all experts of the busiest rank compute: n k t_e lambda.

    `tokens` are those that a rank routes; over ep it gets as many copies as it sends, and those of
    all etp ranks are gathered (`shares_of_tokens`).
    """
    shape, shares = problem.shape, shares_of_tokens(problem.stack, sp, etp)
    return tokens * shape.top_k * shares * load_factor(shape, ep)


def roomy_rows(problem: Problem, tokens: Floats, sp: Ints, ep: Ints, etp: Ints) -> Floats:
    """Return the rows that a rank has room for: `expert_rows`, more where sizes are fixed.

    A step that is compiled as one program has buffers for the worst case, in which all tokens of
    the ep ranks go to one of them: n k t_e min(e, E / k). With a capacity it has that.
    Source: MaxText layers/moe.py (get_ragged_buffer_size).
    """
    shape, rows = problem.shape, expert_rows(problem, tokens, sp, ep, etp)
    if problem.stack.memory_plan != "phases" or shape.capacity_factor:
        return rows
    worst = np.minimum(np.asarray(ep, dtype=np.float64), shape.n_experts / shape.top_k)
    mean = tokens * shape.top_k * shares_of_tokens(problem.stack, sp, etp)
    return np.asarray(np.maximum(rows, mean * worst))


def expert_times(
    problem: Problem, tokens: Floats, degrees: Degrees, modes: ModeRows
) -> ExpertTimes:
    """Return the times of the routed experts of one layer.

    compute: the router's product h x E and 21 E bytes a token; `permuted_bytes`; two
    grouped products of E/e experts, with n k e t_e / E rows each (times the load);
    `activation_bytes` a row. A single expert is not routed.

    Latent experts (`moe_latent` l) have l for h everywhere but in the router, and two projections
    of l h (`_latent_times`).

    exchange: a dispatch and a combine each way (`dispatch_s`); over etp an all-gather and a
    reduce-scatter of 2 h bytes a row (or a token, `etp_gathers`) each way, but for the allgather
    dispatcher, whose own goes over both; where tp ranks route parts of the same tokens an
    all-gather of 2 h bytes a token over tp.

    Source: Megatron-LM core/transformer/moe (token dispatchers, grouped GEMM). Left out: waiting
    for the split sizes to reach the host; overlap, which `expert_overlap` has.
    """
    tp, sp, ep, etp = degrees
    shape, stack = problem.shape, problem.stack
    part, pool = problem.pool.accelerator, problem.pool
    n = local_tokens(stack, tokens, tp, sp, ep)
    e, cut, h = (
        np.asarray(ep, dtype=np.float64),
        np.asarray(etp, dtype=np.float64),
        shape.expert_hidden,
    )
    rows = expert_rows(problem, n, sp, ep, etp)
    local = shape.n_experts / e
    per_byte = 1.0 / (part.hbm_bytes_per_s * part.efficiency.hbm_frac)
    products, weight_grad_s = _products(problem, rows, local, shape.expert_ffn / cut)
    ahead, back = activation_bytes(problem, etp, modes)
    activation = ForwardBackward(rows * ahead * per_byte, rows * back * per_byte)
    compute, nothing = products + activation, np.zeros_like(rows)
    routing = ForwardBackward(nothing, nothing)
    if shape.n_experts > 1:
        moved = permuted_bytes(problem, n, degrees, modes)
        permute = moved * per_byte / PERMUTE_FRAC + 4 * part.efficiency.kernel_latency_s
        scores = ROUTER_BYTES * n * shape.n_experts * per_byte
        scores = scores + ROUTER_KERNELS * part.efficiency.kernel_latency_s
        compute = compute + _router(problem, n) + ForwardBackward(permute, permute)
        compute = compute + ForwardBackward(scores, scores)
        routing = _router(problem, n) + ForwardBackward(scores, scores)
    if shape.moe_latent:
        latents, latent_wgrad_s = _latent_times(problem, n)
        compute, weight_grad_s = compute + latents, weight_grad_s + latent_wgrad_s
    element = problem.job.recipe.activation_bytes
    one = dispatch_s(problem, n, load_factor(shape, ep), degrees, modes)
    inner = place_group(etp, np.ones_like(etp), pool, problem.fabric)
    wide = rows / shape.top_k if stack.etp_gathers == "tokens" else rows
    gather = tp_collective_s(problem, "all-gather", element * h * wide, inner)
    gather = np.where(has_dispatcher(problem, modes, "allgather"), 0.0, gather)
    parts = parts_for_routing(stack, sp, ep)
    both = 2 * one + 2 * gather
    if parts.any():
        row = place_group(tp, np.ones_like(tp), pool, problem.fabric)
        recomputed = tp_collective_s(problem, "all-gather", element * h * tokens, row)
        both = both + np.where(parts, recomputed, 0.0)
    return ExpertTimes(compute, ForwardBackward(both, both), routing, weight_grad_s)


def _router(problem: Problem, tokens: Floats) -> ForwardBackward:
    """Return the router's products, in the precision of the head."""
    shape, part = problem.shape, problem.pool.accelerator
    precision, wide = problem.job.recipe.gemm_precision, part.efficiency.wgrad_frac
    h, n = float(shape.hidden), float(shape.n_experts)
    wgrad = gemm_s(h, tokens, n, part, precision, wide) * (problem.job.tuning is None)
    return ForwardBackward(
        gemm_s(tokens, h, n, part, precision),
        gemm_s(tokens, n, h, part, precision) + wgrad,
    )


def _latent_times(problem: Problem, tokens: Floats) -> tuple[ForwardBackward, Floats]:
    """Return the projections to and from the width of latent experts, and their weight gradients.

    h -> l before the dispatch and l -> h after the combine, whole on every tp rank, of the tokens
    that it routes. Source: Megatron-LM core/transformer/moe/moe_layer.py (fc1_latent_proj).
    """
    shape, part = problem.shape, problem.pool.accelerator
    three = products_of(shape.layers, problem.job, part, problem.stack)
    down = three(tokens, float(shape.hidden), float(shape.moe_latent))
    up = three(tokens, float(shape.moe_latent), float(shape.hidden))
    forward, dgrad, wgrad = (a + b for a, b in zip(down, up, strict=True))
    return ForwardBackward(forward, dgrad + wgrad), wgrad


def _products(
    problem: Problem, rows: Floats, local: Floats, width: Floats
) -> tuple[ForwardBackward, Floats]:
    """Return the two grouped products over `local` experts, and their weight gradients' time.

    `rows` in all. The mean over the model's layers where some of them stay in bf16.
    """
    job = problem.job
    wide = job.bf16_frac(problem.shape.layers)
    if wide:
        low = replace(problem, job=replace(job, bf16_layers=(0, 0)))
        in_bf16, bf16_wgrad_s = _products(replace(problem, job=bf16_job(job)), rows, local, width)
        narrow, narrow_wgrad_s = _products(low, rows, local, width)
        mean_wgrad_s = narrow_wgrad_s * (1.0 - wide) + bf16_wgrad_s * wide
        return narrow * (1.0 - wide) + in_bf16 * wide, mean_wgrad_s
    shape, recipe, part = problem.shape, problem.job.recipe, problem.pool.accelerator
    eff, h = part.efficiency, float(shape.expert_hidden)
    precision, rate = recipe.linear, linear_rate_frac(recipe, part)
    cast_s = recipe.cast_bytes / (part.hbm_bytes_per_s * eff.hbm_frac)
    each = rows / local
    ahead, back, weights = rows_fracs(each, part, recipe.grad_bytes)

    def both(inner: ArrayLike, columns: ArrayLike) -> tuple[ForwardBackward, Floats]:
        output, input_grad, weight_grad = (
            GroupedProduct(local, *sizes)
            for sizes in ((each, inner, columns), (each, columns, inner), (inner, each, columns))
        )
        forward = grouped_gemm_s(output, part, precision, rate, ahead)
        dgrad = grouped_gemm_s(input_grad, part, precision, rate, back)
        wgrad = grouped_gemm_s(weight_grad, part, precision, rate * eff.wgrad_frac, weights)
        one = accumulated_s(wgrad, np.asarray(inner) * columns, problem.job, part, problem.stack)
        wgrad = np.where(local > 1, wgrad, one)  # `rows_fracs` of several has the sum
        if problem.job.tuning:
            n_weights = local * np.asarray(inner) * np.asarray(columns)
            widen_s = dequantize_s(n_weights, problem.job.tuning, part)
            more, wgrad = _adapter_products(problem, each, local, (inner, columns))
            forward, dgrad = forward + widen_s + more[0], dgrad + widen_s + more[1]
        cast_in, cast_out = cast_s * rows * np.asarray(inner), cast_s * rows * np.asarray(columns)
        return ForwardBackward(forward + cast_in, dgrad + cast_out + wgrad), np.asarray(wgrad)

    first, first_wgrad_s = both(h, (2 if shape.gated else 1) * width)
    second, second_wgrad_s = both(width, h)
    return first + second, first_wgrad_s + second_wgrad_s


def _adapter_products(
    problem: Problem, rows: Floats, local: Floats, sizes: tuple[ArrayLike, ArrayLike]
) -> tuple[tuple[Floats, Floats], Floats]:
    """Return forward and data gradient of the adapters of `local` experts, and weight gradients.

    A and B as grouped products of `rows` rows an expert, beside one of `sizes` (inner, columns); 0
    where experts have no adapters. Left out: their operators and launches.
    """
    tuning, part = problem.job.tuning, problem.pool.accelerator
    zeros = np.zeros_like(rows)
    if tuning is None or EXPERTS not in tuning.targets:
        return (zeros, zeros), zeros
    rank, precision = float(tuning.rank), problem.job.recipe.gemm_precision
    ahead, back, weights = rows_fracs(rows, part, problem.job.recipe.grad_bytes)
    forward, dgrad, wgrad = zeros, zeros, zeros
    for inner, columns in ((sizes[0], rank), (rank, sizes[1])):
        first, second, third = (
            grouped_gemm_s(GroupedProduct(local, *size), part, precision, 1.0, frac)
            for size, frac in (
                ((rows, inner, columns), ahead),
                ((rows, columns, inner), back),
                ((inner, rows, columns), weights),
            )
        )
        forward, dgrad, wgrad = forward + first, dgrad + second, wgrad + third
    return (forward, dgrad), wgrad


def routing_host_s(problem: Problem) -> float:
    """Return the host's time to launch what routing adds to a layer, both directions, seconds."""
    stack = problem.stack
    return stack.routing_host_s if problem.shape.n_experts > 1 and stack.routes_on_host else 0.0


def synced_host_s(problem: Problem, launch_s: Floats) -> Floats:
    """Return what of a layer's launches the device waits for in any case, seconds.

    `synced_host_share` of them, those in graphs apart: nobody but the device knows the rows of
    every expert. Nothing with a capacity, which fixes them, and with a single expert.
    """
    shape, stack = problem.shape, problem.stack
    if shape.capacity_factor or shape.n_experts <= 1 or not stack.routes_on_host:
        return np.zeros_like(launch_s)
    return np.asarray(stack.synced_host_share * launch_s)


BIASED_GATED, BIASED_PLAIN, BIASED_OUTPUT = (54.0, 108.0), (34.0, 68.0), (12.0, 24.0)
"""Traffic of an activation with biases, forward and backward, bytes per element of the inner width
(gated, plain) and of the output. Forward, gated: bias added expert by expert to both halves (8),
parts put together (8), clamp of both halves (8), scaled sigmoid and its product (14), offset (4),
product (6), probability in fp32 (6); output: bias times probability (8), together (4). Backward:
twice that, sums of the biases' gradients among it."""


def activation_bytes(problem: Problem, etp: Ints, modes: ModeRows) -> tuple[Floats, Floats]:
    """Return what the activation of experts moves a row, forward and backward, bytes.

    (6, 10) f_e / t_e, (4, 6) without a gate, times the stack's factor. Where experts have biases
    and are launched one by one by software with grouped products, a chain of operators instead:
    (54, 108) f_e / t_e and (12, 24) h; kernels that a graph of the whole iteration captures have
    biases in them. Source: Megatron-LM core/transformer/moe/experts.py (TEGroupedMLP._apply_bias,
    bias_act_func); operand counts. Runs of gpt-oss in bf16 on five parts come out 20 to 30 % too
    fast without it, and within 10 % in the median with it.
    """
    shape, stack = problem.shape, problem.stack
    width = shape.expert_ffn / np.asarray(etp, dtype=np.float64)
    fused = (6.0, 10.0) if shape.gated else (4.0, 6.0)
    forward, backward = (each * width * stack.elementwise_factor for each in fused)
    if not (shape.bias and shape.n_experts > 1 and stack.kind == "fused" and stack.routes_on_host):
        return forward, backward
    is_whole_graph = modes.have("cuda_graph", "full_iteration")
    chain = BIASED_GATED if shape.gated else BIASED_PLAIN
    each = (x * width + y * shape.expert_hidden for x, y in zip(chain, BIASED_OUTPUT, strict=True))
    eager_forward, eager_backward = each
    return np.where(is_whole_graph, forward, eager_forward), np.where(
        is_whole_graph, backward, eager_backward
    )


def permuted_bytes(problem: Problem, tokens: Floats, degrees: Degrees, modes: ModeRows) -> Floats:
    """Return what putting rows in the order of their experts, and back, moves one way, bytes.

    2 h bytes a row. alltoall, allgather: k copies of a token are read and written before the
    dispatch and after the combine; where a rank has several experts of several ranks' tokens, the
    rows that arrive are once more on both sides: 4 (n k + rows). deepep, hybridep: the rows that
    arrive, d a token (`distinct_units`), are read and the rows of experts written, and back; the
    exchange itself takes tokens from where they lie: 2 (d n + rows).
    Source: Megatron-LM core/transformer/moe/token_dispatcher.py; fused_a2a.py.
    """
    shape, ranks = problem.shape, np.asarray(degrees.ep * degrees.etp, dtype=np.float64)
    rows = expert_rows(problem, tokens, degrees.sp, degrees.ep, degrees.etp)
    local = shape.n_experts / np.asarray(degrees.ep, dtype=np.float64)

    def sorted_twice() -> Floats:
        again = np.where((local > 1) & (ranks > 1), rows, 0.0)
        return np.asarray(4.0 * (tokens * shape.top_k + again))

    def on_arrival() -> Floats:
        arrived = distinct_copies(problem, degrees.ep) * tokens * load_factor(shape, degrees.ep)
        return np.asarray(2.0 * (arrived + rows))

    of_name = dict.fromkeys(("alltoall", "allgather"), sorted_twice)
    of_name |= dict.fromkeys(DEDUPLICATED, on_arrival)
    return 2.0 * shape.expert_hidden * with_dispatcher(problem, modes, of_name)


def products_host_s(problem: Problem, ep: Ints) -> Floats:
    """Return the host's time to launch the grouped products of a layer, both directions, seconds.

    6 products of E / e experts, 0.002 R each, 0.005 R with casts to fp8 or fp4 (R the launches
    that routing adds), where the stack launches them expert by expert and a rank has several; a
    layer's own launch time has one of each.
    """
    share = GROUPED_SHARE
    if problem.job.recipe.linear_precision:
        share += GROUPED_CAST_SHARE
    each = share * routing_host_s(problem)
    local = problem.shape.n_experts / np.asarray(ep, dtype=np.float64)
    if problem.stack.kind != "fused":
        return np.zeros_like(local)
    return EXPERT_PRODUCTS * each * np.maximum(0.0, local - 1.0)


def keeps_inputs(problem: Problem) -> bool:
    """Tell whether the products of routed experts keep their inputs: those that train."""
    tuning = problem.job.tuning
    return tuning is None or EXPERTS in tuning.targets


def expert_kept_bytes(
    problem: Problem, tokens: Floats, tp: Ints, sp: Ints, ep: Ints, etp: Ints
) -> Floats:
    """Return what the routed experts of one layer keep for their backward, bytes.

    (6 gated, 4 otherwise) f_e / t_e a row, 2 f_e more where the gate is not fused; with several
    experts also the permuted input, 2 h a row (1/t_e of them before the gather over etp), and 8 E
    of scores a token. The expert's output is not kept where its probability is applied before the
    second product (`routed_scores`), else 4 h a row; 2 h a token of all etp ranks where they are
    gathered before routing. Quantised inputs of both products take q bytes in place of 2
    (`costmodels.memory.quantized_inputs`). Frozen experts keep neither input (`keeps_inputs`).
    Source: Megatron-LM core/transformer/moe (memory-efficient permutation). Left out: rows that
    pad those of an expert.
    """
    shape, stack, cut = problem.shape, problem.stack, np.asarray(etp, dtype=np.float64)
    n = local_tokens(stack, tokens, tp, sp, ep)
    rows = roomy_rows(problem, n, sp, ep, etp)
    inner, reads = 6.0 if shape.gated else 4.0, keeps_inputs(problem)
    if shape.gated and not stack.fused_activation:
        inner += 2.0
    if not reads:
        inner -= 2.0
    element = problem.job.recipe.activation_bytes
    saved, h = quantized_inputs(problem).saved_bytes, shape.expert_hidden
    stored = rows * (element / 2.0 * inner - saved) * shape.expert_ffn / cut
    if shape.n_experts > 1:
        stored = stored + rows * (element - saved) * h * reads + 8.0 * shape.n_experts * n
        if stack.routed_scores == "after":
            stored = stored + rows * (2.0 * element) * h
        if stack.etp_gathers == "tokens":  # beside the rank's own share, counted with the norm
            shares = shares_of_tokens(stack, sp, etp).astype(np.float64)
            gathered = rows / shape.top_k * element * h * (shares - 1.0) / shares
            stored = stored + gathered
    if shape.moe_latent and not problem.job.tuning:  # the input of the projection back
        stored = stored + n * (element - saved) * shape.moe_latent
    return np.asarray(stored)


STASH_FACTOR = 1.5
"""Rows that a rank makes room for over the mean, where a graph of the whole iteration needs fixed
sizes (`--moe-expert-rank-capacity-factor` of the performance recipes with paged stash)."""


def dispatcher_bytes(
    problem: Problem, tokens: Floats, degrees: Degrees, modes: ModeRows
) -> Floats:
    """Return what the experts' dispatcher holds for good, bytes (`dispatcher_buffer_bytes`)."""
    tp, sp, ep, _ = degrees
    n = local_tokens(problem.stack, tokens, tp, sp, ep)
    return dispatcher_buffer_bytes(problem, n, degrees, modes)


def transient_bytes(problem: Problem, tokens: Floats, degrees: Degrees, modes: ModeRows) -> Floats:
    """Return the temporaries of experts and their exchange, bytes.

    `expert_working_bytes`; 1.5 of them in a graph of the whole iteration, which has room for a
    fixed number of rows; twice with two micro-batches at once; and with the allgather dispatcher
    4 h a token of all ep etp ranks (gathered input, gradients before the reduce-scatter).
    """
    tp, sp, ep, etp = degrees
    value = expert_working_bytes(problem, tokens, *degrees)
    if modes.uses("cuda_graph") and not problem.shape.capacity_factor:
        value = np.where(modes.have("cuda_graph", "full_iteration"), STASH_FACTOR, 1.0) * value
    if modes.uses("ep_overlap"):
        value = np.where(modes.codes("ep_overlap") > 0, 2.0, 1.0) * value
    gathers = has_dispatcher(problem, modes, "allgather")
    if gathers.any():
        n = local_tokens(problem.stack, tokens, tp, sp, ep)
        width = 2.0 * problem.job.recipe.activation_bytes * problem.shape.expert_hidden
        gathered = width * n * np.asarray(ep * etp, dtype=np.float64)
        value = value + np.where(gathers, gathered, 0.0)
    return value


def expert_working_bytes(
    problem: Problem, tokens: Floats, tp: Ints, sp: Ints, ep: Ints, etp: Ints
) -> Floats:
    """Return the temporaries of the experts' backward, bytes.

    (6 gated, 4 otherwise) f_e / t_e a row, and the gradients of permuted input and output, 4 h a
    row, where tokens are permuted. In a step that is compiled as one program 2 f_e / t_e, because
    gradients of both products take the places of these, and 6 h, with the rows of the combine
    (buffers of libtpu, `costmodels.phases`).
    """
    n = local_tokens(problem.stack, tokens, tp, sp, ep)
    shape, rows = problem.shape, roomy_rows(problem, n, sp, ep, etp)
    inner, permuted = 6.0 if shape.gated else 4.0, 4.0
    if problem.stack.memory_plan == "phases":
        inner, permuted = 2.0, 6.0
    wide = problem.job.recipe.activation_bytes / 2.0
    each = wide * inner * shape.expert_ffn / np.asarray(etp, dtype=np.float64)
    if shape.n_experts > 1:
        each = each + wide * permuted * shape.expert_hidden
    return np.asarray(rows * each)


def expert_scratch_bytes(problem: Problem, etp: Ints) -> Floats:
    """Return the bf16 scratch gradients of an expert's two weights, held for good, bytes."""
    shape, cut = problem.shape, np.asarray(etp, dtype=np.float64)
    if not problem.stack.fused_wgrad:
        return np.zeros_like(cut)
    return 2.0 * shape.expert_hidden * ((3 if shape.gated else 2) * shape.expert_ffn / cut)
