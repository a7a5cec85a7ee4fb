"""The costs of one plan with experts, latent attention, predicted tokens or split backwards.

What `oracle_physics` is to dense models under whole backwards: scalars, every rank and every layer
on its own, none of the package's formulas. It stands on the groups, collectives and products of
that module. The order in which a rank of a schedule that splits the backward runs its blocks is
data of `costmodels.schedule.zero_bubble`, checked there against what its authors published.
"""

import math
from dataclasses import dataclass, replace

from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.schedule import zero_bubble
from costmodels.shapes import ModelShape
from tests.searches import oracle_diffusion as diffusion
from tests.searches import oracle_dispatch as dispatch
from tests.searches import oracle_graphs as graphs
from tests.searches import oracle_hybrids as hybrids
from tests.searches import oracle_offload as offload
from tests.searches import oracle_optimizers as optimizers
from tests.searches import oracle_physics as physics
from tests.searches import oracle_streams as streams
from tests.searches import oracle_towers as towers
from tests.searches.oracle_physics import Products

SPLIT = ("zb-h1", "zb-v", "dualpipe", "dualpipe-v")
FOLDED = ("zb-v", "dualpipe-v")
Pair = tuple[float, float]
"""Forward and backward."""


def is_special(problem: Problem, schedule: str) -> bool:
    """Tell whether `oracle_physics` leaves a plan to this module."""
    shape = problem.shape
    sizes = shape.n_experts or shape.kv_rank or shape.mtp_layers or shape.layer_runs
    ends = shape.vision or shape.head_transform
    return bool(sizes or ends or schedule in SPLIT)


def add(a: Pair, b: Pair, times: float = 1.0) -> Pair:
    return a[0] + times * b[0], a[1] + times * b[1]


# Where the layers are ------------------------------------------------------------------------


def stages_of(layout: Layout, rank: int) -> list[int]:
    """Return the virtual stages of a rank: dealt round, in a V, or one of each way."""
    p = layout.pp
    if layout.schedule in FOLDED:
        return [rank, 2 * p - 1 - rank]
    if layout.schedule == "dualpipe":
        return sorted([rank, p - 1 - rank])
    return list(range(rank, p * layout.vpp, p))


def routed_layers(shape: ModelShape) -> list[bool] | list[hybrids.Kind]:
    """Tell of every layer whether it has experts; of hybrids the kind, none of them with some."""
    if shape.layer_runs:
        return hybrids.kinds_of(shape)
    if not shape.n_experts:
        return [False] * shape.layers
    late = [i - shape.dense_layers + 1 for i in range(shape.layers)]
    return [n >= 1 and n % shape.moe_every == 0 for n in late]


def layers_of(problem: Problem, layout: Layout, stage: int) -> list[tuple[bool, bool]]:
    """Return the layers of a virtual stage: (has experts, is recomputed whole)."""
    first = sum(layout.stage_layers[:stage])
    kinds = routed_layers(problem.shape)[first : first + layout.stage_layers[stage]]
    return [(kind, i < layout.recompute_layers) for i, kind in enumerate(kinds)]


def rank_layers(problem: Problem, layout: Layout, rank: int) -> list[tuple[bool, bool]]:
    return [x for stage in stages_of(layout, rank) for x in layers_of(problem, layout, stage)]


def has_embedding(layout: Layout, rank: int) -> bool:
    return 0 in stages_of(layout, rank)


def has_head(layout: Layout, rank: int) -> bool:
    return len(layout.stage_layers) - 1 in stages_of(layout, rank)


# Parameters ----------------------------------------------------------------------------------


def v_width(problem: Problem) -> float:
    shape = problem.shape
    return shape.heads * (shape.v_head if shape.kv_rank else shape.head_dim)


def beside_experts(problem: Problem) -> Problem:
    """Return the model whose MLP is the shared experts: what a layer with experts has besides."""
    shape = replace(problem.shape, ffn=problem.shape.shared_ffn, n_experts=0, shared_ffn=0)
    return replace(problem, shape=shape)


def layer_weights(problem: Problem, tp: int) -> float:
    """Return the weights of the linear layers of a layer without routed experts."""
    shape = problem.shape
    if not shape.kv_rank:
        return physics.layer_weights(problem, tp)
    h, q, a = shape.hidden, shape.heads * shape.head_dim, shape.heads
    down = h * (shape.q_rank + shape.kv_rank + shape.qk_rope)
    up = (shape.q_rank or h) * q / tp + shape.kv_rank * a * (shape.qk_nope + shape.v_head) / tp
    mlp = (3 if shape.gated else 2) * h * shape.ffn / tp
    return down + up + a * shape.v_head / tp * h + mlp


def rank_weights(problem: Problem, layout: Layout, rank: int) -> float:
    """Return the weights of a rank's linear layers but for routed experts."""
    kinds, tp, shape = routed_layers(problem.shape), layout.tp, problem.shape
    one, other = layer_weights(problem, tp), layer_weights(beside_experts(problem), tp)
    held = sum(other if routed else one for routed, _ in rank_layers(problem, layout, rank))
    if has_head(layout, rank) and shape.mtp_layers:
        module = 2 * shape.hidden**2 / tp + (other if kinds[-1] else one)
        held += shape.mtp_layers * module
    return held


def expert_weights(problem: Problem, layout: Layout, rank: int) -> float:
    """Return those of a rank's routed experts."""
    shape = problem.shape
    if not shape.n_experts:
        return 0.0
    one = (3 if shape.gated else 2) * shape.hidden * shape.expert_ffn / layout.etp
    here = experts_params(problem, layout.ep, layout.etp)
    n_layers = rank_experts(problem, layout, rank) / here
    return n_layers * shape.n_experts / layout.ep * one


def layer_params(problem: Problem, tp: int) -> float:
    """Return a layer without routed experts."""
    shape = problem.shape
    if not shape.kv_rank:
        return physics.layer_params(problem, tp)
    h, q, a = shape.hidden, shape.heads * shape.head_dim, shape.heads
    queries = h * q / tp
    if shape.q_rank:
        queries = h * shape.q_rank + shape.q_rank + shape.q_rank * q / tp
    latents = h * (shape.kv_rank + shape.qk_rope) + shape.kv_rank
    keys = shape.kv_rank * a * shape.qk_nope / tp
    values = shape.kv_rank * a * shape.v_head / tp
    mlp = (3 if shape.gated else 2) * h * shape.ffn / tp
    norms = 2 * h * (1 if shape.norm == "rmsnorm" else 2)
    return queries + latents + keys + values + a * shape.v_head / tp * h + mlp + norms


def routed_layer_params(problem: Problem, tp: int) -> float:
    """Return a layer with experts but for the routed ones: the router is on every rank."""
    shape = problem.shape
    router = shape.hidden * shape.n_experts if shape.n_experts > 1 else 0
    # The second bias of an MLP that is not there.
    nothing = shape.hidden if shape.bias and not shape.shared_ffn else 0
    return layer_params(beside_experts(problem), tp) + router - nothing


def experts_params(problem: Problem, ep: int, etp: int) -> float:
    """Return the routed experts of one layer on a device."""
    shape = problem.shape
    up = 2 if shape.gated else 1
    one = up * shape.hidden * shape.expert_ffn / etp + shape.expert_ffn / etp * shape.hidden
    if shape.bias:
        one += up * shape.expert_ffn / etp + shape.hidden
    return shape.n_experts // ep * one


def head_params(problem: Problem, layout: Layout) -> float:
    """Return final norm, head, and the modules of predicted tokens with a copy of the lookup."""
    shape, tp, pp = problem.shape, layout.tp, layout.pp
    if shape.diffusion:
        return diffusion.end_params(problem)[1]
    held = physics.head_params(problem, tp, pp) + towers.transform_params(shape)
    held += streams.collapse_params(shape)
    if shape.mtp_layers:
        vectors = 1 if shape.norm == "rmsnorm" else 2
        last = routed_layer_params if routed_layers(problem.shape)[-1] else layer_params
        own = 2 * shape.hidden * shape.hidden / tp + 3 * vectors * shape.hidden
        held += shape.mtp_layers * (last(problem, tp) + own)
        if pp > 1 and not shape.tied:
            held += physics.padded_vocab(problem, tp) / tp * shape.hidden
    return held


def first_params(problem: Problem, tp: int) -> float:
    """Return what stands before the layers: the lookup, or what makes tokens of latents."""
    if problem.shape.diffusion:
        return diffusion.end_params(problem)[0]
    return physics.embedding_params(problem, tp)


def rank_params(problem: Problem, layout: Layout, rank: int) -> float:
    """Return the parameters of a rank but for routed experts."""
    kinds = [routed for routed, _ in rank_layers(problem, layout, rank)]
    one, other = layer_params(problem, layout.tp), routed_layer_params(problem, layout.tp)
    held = sum(other if routed else one for routed in kinds)
    if problem.shape.layer_runs:
        held = sum(hybrids.params(problem, kind, layout.tp) for kind in kinds)
    if has_embedding(layout, rank):
        held += first_params(problem, layout.tp) + towers.trained(problem, layout.tp)
        held += towers.reader_params(problem, layout.tp)
    if has_head(layout, rank):
        held += head_params(problem, layout)
    return held


def rank_experts(problem: Problem, layout: Layout, rank: int) -> float:
    """Return the parameters of a rank's routed experts."""
    if not problem.shape.n_experts:
        return 0.0
    held = sum(routed for routed, _ in rank_layers(problem, layout, rank))
    if has_head(layout, rank) and routed_layers(problem.shape)[-1]:
        held += problem.shape.mtp_layers
    return held * experts_params(problem, layout.ep, layout.etp)


def true_params(problem: Problem) -> float:
    """Return the parameters of the whole model, the vocabulary unpadded, predicted tokens not."""
    shape = problem.shape
    rows = shape.vocab * (1 if shape.tied else 2)
    if shape.positions == "learned":
        rows += max(shape.max_positions, problem.job.seq_len)
    rows += 1 if shape.norm == "rmsnorm" else 2
    total = rows * shape.hidden + towers.transform_params(shape) + towers.params(problem, 1)
    total += towers.reader_params(problem, 1)
    total += streams.collapse_params(shape)
    if shape.per_layer:
        total += shape.per_layer.vocab * shape.per_layer.width * shape.layers
        total += 2 * physics.stream_params(problem)
    if shape.diffusion:
        total = sum(diffusion.end_params(problem))
    if shape.layer_runs:
        kinds = hybrids.kinds_of(shape)
        return total + sum(hybrids.params(problem, kind, 1) for kind in kinds)
    for routed in routed_layers(problem.shape):
        total += (routed_layer_params if routed else layer_params)(problem, 1)
        total += experts_params(problem, 1, 1) if routed else 0.0
    return total


# One layer -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A kind of layer, for one micro-batch."""

    times: Pair
    wgrad: float
    """What of the backward can wait: the weight gradients of linear layers."""
    again: float
    """All of the forward again."""
    kept: float
    modules: dict[str, tuple[float, float, float]]
    """By name: seconds again, bytes of attention dropped, bytes of the MLP dropped."""
    temporaries: float
    away: offload.Away
    """What its modules have on the host."""
    fill: float = 0.0
    """What it takes more with no other micro-batch beside it."""
    pool: float = 0.0
    """What its graphs hold; one pool for layers of all kinds."""
    buffers: float = 0.0
    """What dispatchers hold, once for all layers."""

    def dropped(self, names: tuple[str, ...]) -> Pair:
        """Return what attention and MLP drop."""
        parts = [self.modules.get(name, (0.0, 0.0, 0.0)) for name in names]
        return sum(x[1] for x in parts), sum(x[2] for x in parts)

    def left(self, names: tuple[str, ...]) -> float:
        return self.kept - sum(self.dropped(names))

    def again_s(self, names: tuple[str, ...]) -> float:
        return sum(self.modules[name][0] for name in names if name in self.modules)


def linear(problem: Problem, tokens: float, tp: int) -> tuple[Products, Products]:
    """Return column- and row-parallel products."""
    shape, h = problem.shape, problem.shape.hidden
    up, down = mlp_sizes(problem, tp)
    heads = [(h, shape.heads * shape.head_dim / tp + 2 * physics.kv_width_per_rank(problem, tp))]
    if shape.kv_rank:
        heads = up_sizes(problem, tp)
    column = physics.products(problem, tokens, heads + up)
    row = physics.products(problem, tokens, [(v_width(problem) / tp, h), *down])
    if shape.kv_rank:
        narrow = shape.q_rank + shape.kv_rank + shape.qk_rope
        more = physics.products(problem, tokens / tp, [(h, narrow)])
        column = Products(
            column.forward + more.forward, column.dgrad + more.dgrad, column.wgrad + more.wgrad
        )
    return column, row


def mlp_sizes(
    problem: Problem, tp: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    shape = problem.shape
    if not shape.ffn:
        return [], []
    wide = (2 if shape.gated else 1) * shape.ffn / tp
    return [(shape.hidden, wide)], [(shape.ffn / tp, shape.hidden)]


def up_sizes(problem: Problem, tp: int) -> list[tuple[float, float]]:
    """Return the products from the latents to queries, and to keys and values."""
    shape = problem.shape
    pairs = shape.heads * (shape.qk_nope + shape.v_head) / tp
    queries = shape.heads * shape.head_dim / tp
    return [(shape.q_rank or shape.hidden, queries), (shape.kv_rank, pairs)]


def attention(problem: Problem, layout: Layout, tokens: float) -> physics.Context:
    """Return the core; with keys and values of two widths 2 + 3 products of the one, 2 + 2."""
    shape, part, tp = problem.shape, problem.pool.accelerator, layout.tp
    if not shape.kv_rank:
        return physics.context(problem, layout, tokens)
    assert layout.cp == 1, "the instances cut no latents over cp"
    assert shape.flash_attention
    s, eff = problem.job.seq_len, part.efficiency
    keys, values = shape.qk_nope + shape.qk_rope, shape.v_head
    of_keys = s * shape.heads * keys / tp * tokens
    of_values = s * shape.heads * values / tp * tokens
    wanted = "fp16" if problem.job.recipe.gemm_precision == "fp16" else "bf16"
    peak = part.peak_flops_per_s.get(wanted, part.peak_flops_per_s["fp16"])
    if problem.job.fp8_attention:
        peak = 0.9 * problem.pool.accelerator.peak_flops_per_s["fp8"]
    tiles = shape.heads / tp * (tokens / s) * math.ceil(s / 128)
    rate = peak * s / (s + eff.attention_seq_half) * min(1.0, tiles / part.n_sms)
    ahead, behind = eff.attention_frac[physics.attention_kernel(problem)]
    forward = (of_keys + of_values) / (rate * 0.89 * ahead) + eff.kernel_latency_s
    backward = (3 * of_keys + 2 * of_values) / (rate * 0.78 * behind) + eff.kernel_latency_s
    return physics.Context((forward, backward), (0.0, 0.0), (0.0, 0.0))


def moved_s(problem: Problem, n_bytes: float) -> float:
    """Return the time of memory-bound work of the stack's operators."""
    return n_bytes * problem.stack.elementwise_factor / physics.hbm_rate(problem)


def one_kernel_s(problem: Problem, n_bytes: float) -> float:
    return moved_s(problem, n_bytes) + problem.pool.accelerator.efficiency.kernel_latency_s


def latents(problem: Problem) -> float:
    return float(problem.shape.q_rank + problem.shape.kv_rank) if problem.shape.kv_rank else 0.0


def elementwise(problem: Problem, tokens: float, tp: int, sp: bool) -> Pair:
    norms = moved_s(problem, 5.0 * tokens * latents(problem) / tp)
    return add(physics.elementwise_s(problem, tokens, tp, sp), (norms, norms))


def tp_traffic(
    problem: Problem,
    tokens: float,
    tp: int,
    sp: bool,
    products: tuple[Products, Products],
    blocks: float,
) -> tuple[Pair, Pair]:
    """Return (all, exposed) of forward and backward: a gather and a reduction around a block."""
    stack, x = problem.stack, 2.0 * tokens * problem.shape.hidden
    (column, row), pieces = products, physics.in_pieces
    gather, reduce = (
        blocks * run(problem, tp, x) for run in (physics.tp_gather_s, physics.tp_reduce_s)
    )
    if not sp:
        left = reduce if stack.tp_overlap == "none" else max(0.0, reduce - column.wgrad)
        return (reduce, reduce), (reduce, left)
    again = gather if stack.sp_regather else 0.0
    ahead, behind = 2 * gather, 2 * gather + again
    if stack.tp_overlap == "none":
        return (ahead, ahead), (behind, behind)
    left = max(0.0, gather - column.wgrad) + max(0.0, again - column.dgrad)
    if stack.tp_overlap == "bulk" or physics.place(problem, tp, 1).n_domains > 1:
        return (ahead, ahead), (behind, left + gather)
    if stack.tp_overlap == "pieces":
        work = column.forward + row.forward
        rest = column.total + row.total - work
        return (
            (ahead, ahead / 2 + pieces(ahead / 2, work / 2, tp)),
            (behind, behind / 2 + pieces(behind / 2, rest / 2, tp)),
        )
    piped = pieces(gather, column.forward, tp) + pieces(gather, row.forward, tp)
    return (ahead, piped), (behind, left + pieces(gather, row.dgrad, tp))


def kept_bytes(problem: Problem, tokens: float, tp: int, sp: bool) -> float:
    """Return what a layer without routed experts keeps, scores included."""
    shape, a = problem.shape, problem.shape.heads
    kept = physics.layer_activation_bytes(problem, tokens, tp, sp, scores=True)
    if shape.kv_rank:  # queries, keys; values, output; the latents and the one rotated key
        ordinary = 4.0 * a * shape.head_dim / tp + 4.0 * physics.kv_width_per_rank(problem, tp)
        latent = 4.0 * a * shape.head_dim / tp + 4.0 * a * shape.v_head / tp
        q = physics.kept_input(problem)
        latent += ((2.0 + q) * latents(problem) + 2.0 * shape.qk_rope) / tp
        delayed = problem.job.precision == "fp8-delayed" and problem.stack.quantized_copies
        if delayed:
            width = a * (shape.v_head - shape.head_dim) / tp
            latent += physics.low_share(problem) * width
        if problem.stack.keeps_kv_product:
            latent += 2.0 * a * shape.qk_nope / tp
        kept += tokens * (latent - ordinary)
        # Both down projections quantise the norm's output; those in bf16 share it.
        kept += tokens * shape.hidden * (norms_of_down(problem) - q) / (tp if sp else 1)
    return kept


def norms_of_down(problem: Problem) -> float:
    """Return what latent attention's first projections keep of an element of the norm's output."""
    job = problem.job
    if job.precision not in physics.KEPT_INPUT or not problem.stack.quantized_copies:
        return 2.0
    y = physics.low_share(problem)
    return 2.0 * (1 - y) + 2.0 * y * physics.KEPT_INPUT[job.precision]


def mlp_module(problem: Problem, tokens: float, tp: int, sp: bool) -> tuple[float, float]:
    """Return an MLP without its norm: seconds of its forward, bytes that it keeps."""
    shape, stack = problem.shape, problem.stack
    up, down = (physics.products(problem, tokens, sizes) for sizes in mlp_sizes(problem, tp))
    ahead, _ = tp_traffic(problem, tokens, tp, sp, (up, down), 1)
    activation = (6 if shape.gated else 4) * shape.ffn / tp
    kept = physics.columns_kept(problem) - (2.0 - physics.kept_input(problem))
    kept *= shape.ffn / tp
    if sp and not stack.sp_regather:
        kept += 2.0 * shape.hidden * (tp - 1) / tp
    seconds = up.forward + down.forward + one_kernel_s(problem, tokens * activation) + ahead[1]
    return seconds, tokens * kept


def up_module(problem: Problem, tokens: float, tp: int, sp: bool) -> tuple[float, float]:
    """Return the way from the latents to queries, keys and values."""
    shape = problem.shape
    q, kv = shape.heads * shape.head_dim / tp, physics.kv_width_per_rank(problem, tp)
    moved = 5.0 * latents(problem) / tp + (4.0 * (q + kv) if shape.positions == "rope" else 0.0)
    seconds = physics.products(problem, tokens, up_sizes(problem, tp)).forward
    seconds += one_kernel_s(problem, tokens * moved)
    if sp:
        width = (shape.q_rank or shape.hidden) + shape.kv_rank + shape.qk_rope
        seconds += physics.tp_gather_s(problem, tp, 2.0 * tokens * width)
    kept = 4.0 * q + 2.0 * shape.heads * shape.v_head / tp
    if problem.stack.keeps_kv_product:
        kept += 2.0 * shape.heads * shape.qk_nope / tp
    kept += physics.kept_input(problem) * latents(problem) / tp
    return seconds, tokens * kept


def layer(problem: Problem, layout: Layout, routed: bool) -> Layer:
    """Return a layer, dense or with experts."""
    if isinstance(routed, hybrids.Kind):
        found = hybrids.layer(problem, layout, routed, tp_traffic)
        away = offload.away(problem, layout, physics.offload_widths(problem, layout.tp, 0.0))
        tokens, nothing = float(layout.mbs * problem.job.seq_len), (0.0, 0.0)
        core = physics.Context(nothing, nothing, nothing)
        if routed.reads:
            inner = hybrids.encoder_of(problem)
            tokens, problem = float(layout.mbs * inner.job.seq_len), inner
        own = hybrids.own(problem, routed)
        every = layer_modules(own, tokens, layout.tp, layout.sp, core, False)
        modules = {"mlp": every["mlp"]} if routed.feeds else {}
        if routed.mixer in streams.MIXERS:
            modules["mla_up_proj"] = streams.up_module(problem, tokens, layout.tp)
        if routed.mixer == "gdn":
            modules["gdn_norm_out"] = hybrids.norm_out(problem, tokens, layout.tp)
        return Layer(modules=modules, away=away, **vars(found))
    whole, stack, tp, sp = problem, problem.stack, layout.tp, layout.sp
    problem = beside_experts(problem) if routed else problem
    shape, tokens = problem.shape, layout.mbs * problem.job.seq_len / layout.cp
    column, row = linear(problem, tokens, tp)
    core = attention(problem, layout, tokens)
    blocks = 2 if shape.ffn or not routed else 1
    (f_all, f_open), (b_all, b_open) = tp_traffic(problem, tokens, tp, sp, (column, row), blocks)
    ahead = column.forward + row.forward + core.core[0] + f_open + core.exposed[0]
    behind = column.dgrad + column.wgrad + row.dgrad + row.wgrad + core.core[1] + b_open
    behind += core.exposed[1]
    device = add((ahead, behind), elementwise(problem, tokens, tp, sp))
    eager = physics.launch_s(problem, tp)
    launch = graphs.dense_launch_s(layout, eager)
    kept = kept_bytes(problem, tokens, tp, sp) + core.kept
    if routed or not shape.ffn:  # the router keeps the norm's output, no product of the MLP does
        whole_width = tokens * shape.hidden / (tp if sp else 1)
        kept += (2.0 - physics.kept_input(problem)) * whole_width
    inner = (6.0 if shape.gated else 4.0) * shape.ffn / tp * tokens
    temporaries = max(inner, core.buffers) + 6.0 * tokens * shape.hidden
    pool, buffers = graphs.pool_bytes(layout, temporaries), 0.0
    if stack.keeps == "products":  # norms and the activation once more
        temporaries += 2.0 * tokens * (2 * shape.hidden / (tp if sp else 1) + shape.ffn / tp)
    modules = layer_modules(whole, tokens, tp, sp, core, routed)
    again = device[0]
    hidden = [
        a - b + c - d
        for a, b, c, d in zip(
            (f_all, b_all), (f_open, b_open), core.total, core.exposed, strict=True
        )
    ]
    device = add(device, (hidden[0], hidden[1]), stack.overlap_slowdown)
    fill = 0.0
    if routed:
        experts = routed_experts(whole, layout)
        launch = experts_launch_s(whole, layout, eager)
        halves = dispatch.Halves(
            attention=add(device, experts.routing),
            experts=(
                experts.compute[0] - experts.routing[0],
                experts.compute[1] - experts.routing[1] - experts.wgrad,
            ),
            experts_wgrad=experts.wgrad,
        )
        beside = dispatch.beside(whole, layout, experts.exchange_s, halves)
        both = add(device, experts.compute)
        alone = sum(both) + 2 * experts.exchange_s
        device = add(add(both, beside.exposed), (beside.tax, beside.tax))
        if beside.hidden > 0:
            dry = dispatch.synced_s(whole, launch)
            behind_s = [
                x + max(dry, physics.paced_s(problem, launch, x) - x) for x in (alone, sum(device))
            ]
            fill = max(0.0, behind_s[0] - behind_s[1])
        again += experts.compute[0] + beside.exposed[0]
        buffers = experts.buffers
        kept, temporaries = kept + experts.kept, temporaries + experts.temporaries
        modules["moe_act"] = (experts.activation_s, 0.0, experts.activation_bytes)
        shared = modules.get("shared_experts", (0.0, 0.0, 0.0))
        all_again = experts.compute[0] + experts.exchange_s + shared[0]
        modules["moe"] = (all_again, 0.0, experts.kept + shared[2])
    synced = dispatch.synced_s(whole, launch) if routed else 0.0
    late = max(synced, physics.paced_s(problem, launch, sum(device)) - sum(device))
    alone = add(device, (late / 3, late * 2 / 3))
    rows = experts.rows if routed else 0.0
    away = offload.away(whole, layout, physics.offload_widths(whole, tp, rows))
    for name, gone in (("mla_up_proj", away.of_up), ("layernorm", away.of_norm)):
        if name in modules:
            seconds, of_attention, of_mlp = modules[name]
            modules[name] = (seconds, of_attention - gone, of_mlp)
    return Layer(
        away=away,
        times=add(alone, offload.waits(whole, away.copied, alone)),
        wgrad=column.wgrad + row.wgrad + (experts.wgrad if routed else 0.0),
        again=physics.paced_s(problem, launch / 3, again),
        kept=kept - away.freed,
        modules=modules,
        temporaries=temporaries,
        fill=fill,
        pool=pool,
        buffers=buffers,
    )


def experts_launch_s(problem: Problem, layout: Layout, eager_s: float) -> float:
    """Return the launches of a layer with experts."""
    shape, stack = problem.shape, problem.stack
    routing = stack.routing_host_s if shape.n_experts > 1 and stack.routes_on_host else 0.0
    left = graphs.expert_launch_s(layout, eager_s, routing, bool(shape.shared_ffn))
    each = (0.005 if problem.job.recipe.linear_precision else 0.002) * routing
    return left + graphs.products_launch_s(layout, stack.kind, shape.n_experts / layout.ep, each)


def layer_modules(
    whole: Problem, tokens: float, tp: int, sp: bool, core: physics.Context, routed: bool
) -> dict[str, tuple[float, float, float]]:
    """Return the modules of a layer but for the routed experts."""
    problem = beside_experts(whole) if routed else whole
    shape = problem.shape
    width = tokens * shape.hidden / (tp if sp else 1)
    norm_s = one_kernel_s(problem, (4 if physics.norm_is_a_kernel(problem) else 20) * width)
    norm_bytes = (2.0 + physics.norm_besides(problem)) * width
    if problem.stack.keeps == "products":
        norm_bytes = 0.0
    scores = physics.layer_activation_bytes(problem, tokens, tp, sp, scores=True)
    scores -= physics.layer_activation_bytes(problem, tokens, tp, sp, scores=False)
    if problem.stack.keeps == "products" and shape.flash_attention:  # the output, and its sums
        scores += tokens * (2.0 * shape.heads * (shape.v_head or shape.head_dim) / tp)
        scores += tokens * 4.0 * shape.heads / tp
    found = {"core_attn": (core.core[0] + core.exposed[0], scores, 0.0)}
    latent = bool(shape.kv_rank)
    if latent or routed:
        down = (norm_bytes + (norms_of_down(problem) - 2.0) * width) * latent
        found["layernorm"] = ((latent + routed) * norm_s, down, norm_bytes * routed)
    if latent:
        seconds, kept = up_module(problem, tokens, tp, sp)
        found["mla_up_proj"] = (seconds, kept, 0.0)
    if shape.ffn:
        seconds, kept = mlp_module(problem, tokens, tp, sp)
        if routed:
            found["shared_experts"] = (seconds, 0.0, kept)
        else:
            norm_bytes -= (2.0 - physics.kept_input(problem)) * width
            found["mlp"] = (norm_s + seconds, 0.0, norm_bytes + kept)
    return found


# Experts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Experts:
    """The routed experts of one layer."""

    compute: Pair
    routing: Pair
    """What of it comes before the dispatch."""
    wgrad: float
    """What of it can wait."""
    exchange_s: float
    """Each way, if nothing hides it."""
    kept: float
    temporaries: float
    buffers: float
    activation_s: float
    activation_bytes: float
    rows: float


def routed_experts(problem: Problem, layout: Layout) -> Experts:
    shape, stack, part = problem.shape, problem.stack, problem.pool.accelerator
    h, n_experts, local = shape.hidden, shape.n_experts, shape.n_experts // layout.ep
    tokens = layout.mbs * problem.job.seq_len / layout.cp / (layout.tp if layout.sp else 1)
    load = shape.capacity_factor or (shape.imbalance if layout.ep > 1 else 1.0)
    rows, width = tokens * shape.top_k * layout.etp * load, shape.expert_ffn / layout.etp
    ahead, behind, wgrad = grouped_products(problem, rows, local, width)
    chain = dispatch.chain_bytes(problem, layout, width)
    if chain:
        ahead += rows * chain[0] / physics.hbm_rate(problem)
        behind += rows * chain[1] / physics.hbm_rate(problem)
    else:
        ahead += moved_s(problem, (6 if shape.gated else 4) * rows * width)
        behind += moved_s(problem, (10 if shape.gated else 6) * rows * width)
    latency, hbm = part.efficiency.kernel_latency_s, physics.hbm_rate(problem)
    routing = (0.0, 0.0)
    if n_experts > 1:
        precision, wide = problem.job.recipe.gemm_precision, part.efficiency.wgrad_frac
        scores = 21.0 * tokens * n_experts / hbm + 5 * latency
        router = physics.gemm_s(problem, precision, tokens, n_experts, h)
        router += physics.gemm_s(problem, precision, h, tokens, n_experts, wide)
        product = physics.gemm_s(problem, precision, tokens, h, n_experts)
        routing = (product + scores, router + scores)
        ordered = dispatch.ordered_rows(problem, layout, tokens, rows, load)
        moved = 2 * h * ordered / (0.75 * hbm) + 4 * latency
        ahead, behind = add(add((ahead, behind), routing), (moved, moved))
    room = rows
    if stack.memory_plan == "phases" and not shape.capacity_factor:  # for the worst case
        worst = min(layout.ep, n_experts / shape.top_k)
        room = max(rows, tokens * shape.top_k * layout.etp * worst)
    inner = (6.0 if shape.gated else 4.0) * width
    narrow = physics.kept_input(problem)
    kept = inner - (2.0 - narrow) * width
    gate = 2.0 * width if shape.gated and not stack.fused_activation else 0.0
    permuted = narrow * h if n_experts > 1 else 0.0
    passing = 4.0 * h if n_experts > 1 else 0.0
    scores = 8.0 * n_experts * tokens if n_experts > 1 else 0.0
    passed = inner
    if stack.memory_plan == "phases":
        passed, passing = 2.0 * width, 1.5 * passing
    return Experts(
        compute=(ahead, behind),
        routing=routing,
        wgrad=wgrad,
        exchange_s=dispatch.exchange_s(problem, layout, tokens, load),
        kept=room * (kept + gate + permuted) + scores,
        temporaries=dispatch.temporaries(problem, layout, tokens, room * (passed + passing)),
        buffers=dispatch.buffer_bytes(problem, layout, tokens),
        activation_s=one_kernel_s(problem, (6 if shape.gated else 4) * rows * width),
        activation_bytes=rows * (narrow * width + gate),
        rows=rows,
    )


def grouped_products(
    problem: Problem, rows: float, local: int, width: float
) -> tuple[float, float, float]:
    """Return the products of `local` experts in one launch: ahead, behind, weight gradients."""
    if any(problem.job.bf16_layers) and (y := physics.low_share(problem)):
        job = replace(problem.job, bf16_layers=(0, 0))
        low = grouped_products(replace(problem, job=job), rows, local, width)
        wide = grouped_products(physics.in_bf16(problem), rows, local, width)
        mixed = [y * a + (1 - y) * b for a, b in zip(low, wide, strict=True)]
        return mixed[0], mixed[1], mixed[2]
    shape, recipe, part = problem.shape, problem.job.recipe, problem.pool.accelerator
    eff, each = part.efficiency, rows / local
    precision = recipe.linear_precision or recipe.gemm_precision
    peaks = part.peak_flops_per_s
    density = peaks.get("bf16", peaks.get("fp16", 0.0)) / part.hbm_bytes_per_s
    half = 217.0 * (density / 161.0) ** 1.9 * min(recipe.grad_bytes, 4.0) / 4.0
    fills = (1 - math.exp(-each / 330), 1 - math.exp(-each / 230), each / (each + half))

    def one(m: float, k: float, n: float, rate: float, fill: float) -> float:
        if local == 1:
            return physics.gemm_s(problem, precision, m, k, n, rate)
        flops = 2.0 * local * m * n * (k + eff.gemm_k_half)
        work = flops / (peaks[precision] * eff.gemm_frac * rate * fill)
        element = physics.ELEMENT_BYTES.get(precision, 2.0)
        traffic = element * local * (m * k + k * n + m * n) / physics.hbm_rate(problem)
        return max(work, traffic) + eff.kernel_latency_s

    cast = recipe.cast_bytes * rows / physics.hbm_rate(problem)
    rate, ahead, behind, wgrad = recipe.linear_rate_frac, 0.0, 0.0, 0.0
    up = (2 if shape.gated else 1) * width
    for k, n in ((shape.hidden, up), (width, shape.hidden)):
        ahead += one(each, k, n, rate, fills[0]) + cast * k
        behind += one(each, n, k, rate, fills[1]) + cast * n
        gradient = one(k, each, n, rate * eff.wgrad_frac, fills[2])
        if local == 1:
            gradient = physics.summed_gradient_s(problem, gradient, k * n)
        wgrad += gradient
    return ahead, behind + wgrad, wgrad


# One micro-batch -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Micro:
    """Everything of one micro-batch: both kinds of layer and the ends."""

    layers: dict[bool, Layer]
    embedding: Pair
    head: Pair
    head_wgrad: float
    checkpoint: float
    embedding_bytes: float
    logits: float
    message: float


def micro_batch(problem: Problem, layout: Layout) -> Micro:
    shape, stack, tp, sp = problem.shape, problem.stack, layout.tp, layout.sp
    assert not stack.blocking_p2p, "the instances stall nothing"
    tokens = layout.mbs * problem.job.seq_len / layout.cp
    width = tokens * shape.hidden / (tp if sp else 1)
    kinds = routed_layers(problem.shape)
    layers = {kind: layer(problem, layout, kind) for kind in sorted({*kinds})}
    if shape.diffusion:
        of_first, of_last = (
            diffusion.end_s(problem, layout.mbs, tp, sp, which) for which in (0, 1)
        )
        first_bytes, last_bytes = diffusion.end_bytes(problem, layout.mbs, tp, sp)
        return Micro(
            layers=layers,
            embedding=of_first[0],
            head=of_last[0],
            head_wgrad=of_last[1],
            checkpoint=2.0 * width,
            embedding_bytes=first_bytes,
            logits=last_bytes,
            message=2.0 * tokens * shape.hidden / (tp if sp or stack.p2p_scatter else 1),
        )
    first, end = (run(problem, tokens, tp, sp) for run in (physics.embedding_s, physics.head_s))
    further = hybrids.streams_s(problem, tokens, tp, sp)
    head = add((end.forward, end.backward), towers.transform_s(problem, tokens))
    head = add(add(head, further), streams.collapse_s(problem, tokens, tp, sp))
    logits = physics.logit_bytes(problem, tokens, tp) + 4.0 * width
    logits += 6.0 * width * shape.head_transform
    n_streams = streams.count(shape)
    logits += 2.0 * width * n_streams * (n_streams > 1)
    samples = tokens * layout.cp / problem.job.seq_len
    tower = towers.tower(problem, (tp, sp), samples, tp_traffic)
    reader = towers.reader(problem, samples, tp, sp)
    if shape.mtp_layers:
        more = add(add(head, layers[kinds[-1]].times), mtp_module(problem, tokens, tp, sp))
        head, logits = add(head, more, shape.mtp_layers), logits * (1 + shape.mtp_layers)
    columns, recipe = physics.padded_vocab(problem, tp) / tp, problem.job.recipe
    wgrad_frac = problem.pool.accelerator.efficiency.wgrad_frac
    return Micro(
        layers=layers,
        embedding=add(
            add(add((first.forward, first.backward), further), tower.times), reader.times
        ),
        head=head,
        head_wgrad=physics.gemm_s(
            problem,
            "fp8" if problem.job.fp8_output else recipe.gemm_precision,
            shape.hidden,
            tokens,
            columns,
            wgrad_frac * (recipe.linear_rate_frac if problem.job.fp8_output else 1.0),
        ),
        checkpoint=towers.checkpoint_bytes(problem, samples, width, tp if sp else 1)
        * n_streams
        * (shape.per_layer.streams if shape.per_layer else 1),
        embedding_bytes=tokens * 8.0
        + (width if shape.dropout else 0.0)
        + tower.kept
        + reader.kept,
        logits=logits,
        message=2.0 * tokens * shape.hidden * n_streams / (tp if sp or stack.p2p_scatter else 1),
    )


def mtp_module(problem: Problem, tokens: float, tp: int, sp: bool) -> Pair:
    """Return the projection of a predicted token and its three norms."""
    h, recipe = problem.shape.hidden, problem.job.recipe
    precision = recipe.linear_precision or recipe.gemm_precision
    rate, eff = recipe.linear_rate_frac, problem.pool.accelerator.efficiency
    norms = moved_s(problem, 3.0 * tokens * h / (tp if sp else 1))
    forward = physics.gemm_s(problem, precision, tokens, 2 * h, h / tp, rate)
    backward = physics.gemm_s(problem, precision, tokens, h / tp, 2 * h, rate)
    backward += physics.gemm_s(problem, precision, 2 * h, tokens, h / tp, rate * eff.wgrad_frac)
    return forward + 4.0 * norms, backward + 6.0 * norms


# Time ----------------------------------------------------------------------------------------


def stage_s(problem: Problem, layout: Layout, one: Micro, stage: int) -> Pair:
    """Return forward and backward of one virtual stage."""
    total, names = (0.0, 0.0), layout.recompute_modules
    for routed, again in layers_of(problem, layout, stage):
        kind = one.layers[routed]
        total = add(total, kind.times)
        total = add(total, (0.0, kind.again if again else kind.again_s(names)))
    if stage == 0:
        total = add(total, one.embedding)
    if stage == len(layout.stage_layers) - 1:
        last = one.layers[routed_layers(problem.shape)[-1]]
        more = problem.shape.mtp_layers * last.again_s(names)
        total = add(total, add(one.head, (0.0, more)))
    return total


def stage_wgrad_s(problem: Problem, layout: Layout, one: Micro, stage: int) -> float:
    kinds = [routed for routed, _ in layers_of(problem, layout, stage)]
    late = sum(one.layers[kind].wgrad for kind in kinds)
    return late + (one.head_wgrad if stage == len(layout.stage_layers) - 1 else 0.0)


def rank_s(problem: Problem, layout: Layout, one: Micro, rank: int) -> Pair:
    """Return what a rank runs for the mean micro-batch."""
    share = 0.5 if layout.schedule == "dualpipe" else 1.0
    times = [stage_s(problem, layout, one, stage) for stage in stages_of(layout, rank)]
    return share * sum(x[0] for x in times), share * sum(x[1] for x in times)


def rank_wgrad_s(problem: Problem, layout: Layout, one: Micro, rank: int) -> float:
    share = 0.5 if layout.schedule == "dualpipe" else 1.0
    return share * sum(stage_wgrad_s(problem, layout, one, j) for j in stages_of(layout, rank))


def idle_s(layout: Layout, f: float, b: float, w: float) -> float:
    """Return the idle time of a schedule that splits the backward, of equal ranks."""
    p, m = layout.pp, layout.n_micro
    if layout.schedule == "zb-h1":
        return (p - 1) * (f + b) - (min(m, p) - 1) * min(b, w)
    few = (p - 1) * (f + b) - (m - 1) * min(f, (f + b) / 2)
    f, b, w = f / 2, b / 2, w / 2
    if layout.schedule == "zb-v":
        terms = [(p - 1) * b, 2 * (p - 1) * (b - w), (2 * p - 3) * f - (p - 2) * b]
        return max(*terms, max(f, b) + (p - 2) * w, few) if p > 1 else 0.0
    q = p / 2 if layout.schedule == "dualpipe" else p
    if q <= 1:
        return 0.0
    dual = max((q - 1) * (2 * f + b - w), (q - 2) * f + (q - 1) * (2 * b - w), 2 * (q - 1) * f)
    return 2 * dual if layout.schedule == "dualpipe" else dual


def split_crossings(layout: Layout) -> float:
    p, m = layout.pp, layout.n_micro / (2 if layout.schedule == "dualpipe" else 1)
    plain = physics.in_turn(p, int(m))
    if layout.schedule == "zb-h1":
        return min(plain, 4 * (p - 1))
    return max(5 * p - 7, 2 * (p - 1)) if layout.schedule == "zb-v" else plain


def closed_flush_s(problem: Problem, layout: Layout, one: Micro) -> float:
    p, v, m = layout.pp, layout.vpp, layout.n_micro
    pairs = [rank_s(problem, layout, one, rank) for rank in range(p)]
    times = [sum(pair) for pair in pairs]
    slowest = times.index(max(times))
    if p == 1:
        return m * times[0]
    hops = physics.hops_s(problem, layout, one.message)
    if layout.schedule in SPLIT:
        others = [r for r in range(p) if r != slowest]
        late = [rank_wgrad_s(problem, layout, one, rank) for rank in range(p)]
        mean = [
            sum(values[r] for r in others) / (p - 1)
            for values in (
                [x[0] for x in pairs],
                [x[1] - w for x, w in zip(pairs, late, strict=True)],
                late,
            )
        ]
        hop = sum(hops[:-1]) / (p - 1) if layout.schedule in FOLDED else max(hops[:-1])
        return m * times[slowest] + idle_s(layout, *mean) + split_crossings(layout) * hop
    crossings = {
        "gpipe": 2 * (p - 1),
        "1f1b": physics.in_turn(p, m),
        "interleaved": 2 * (p * v - 1),
    }[layout.schedule]
    flush = m * times[slowest] + (sum(times) - times[slowest]) / v
    return flush + crossings * physics.hop_s(problem, layout, one.message)


def passes(problem: Problem, layout: Layout, rank: int) -> tuple[physics.Passes, physics.Passes]:
    """Return the traffic of the rank's parameters and that of its routed experts."""
    zero, ranks = layout.zero, layout.dp * layout.cp
    g = layout.shard or ranks
    params = rank_params(problem, layout, rank)
    if optimizers.is_by_matrix(problem):
        params += optimizers.padding(problem, rank_shares(problem, layout, rank)[0])
    held = [routed for routed, _ in rank_layers(problem, layout, rank)]
    dense = one_pass(
        problem,
        layout,
        (params, rank_weights(problem, layout, rank)),
        len(held) + 1 if zero >= 2 else pieces(problem, layout, params, ranks),
        (
            physics.place_copies(problem, layout, ranks, 1),
            physics.place_copies(problem, layout, g, 1),
            physics.place_copies(problem, layout, ranks // g, g),
            physics.place_copies(problem, layout, layout.hpz if layout.hpz > 1 else g, 1),
        ),
    )
    if not problem.shape.n_experts:
        return dense, physics.Passes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    copies = layout.tp * ranks // (layout.ep * layout.etp)
    part = max(1, copies // (ranks // g))
    apart = layout.ep * layout.etp * (layout.pp if physics.pipelines_inside(layout) else 1)
    params = rank_experts(problem, layout, rank)
    if optimizers.is_by_matrix(problem):
        params += optimizers.padding(problem, rank_shares(problem, layout, rank)[1])
    routed = one_pass(
        problem,
        layout,
        (params, expert_weights(problem, layout, rank)),
        max(1, sum(held)) if zero >= 2 else pieces(problem, layout, params, copies),
        (
            physics.place(problem, copies, apart),
            physics.place(problem, part, apart),
            physics.place(problem, copies // part, apart * part),
            physics.place(problem, layout.hpz if layout.hpz > 1 else part, apart),
        ),
    )
    return dense, routed


def pieces(problem: Problem, layout: Layout, params: float, copies: int) -> int:
    stack = problem.stack
    overlap = stack.zero1_overlap if layout.zero else stack.dp_overlap
    if overlap == "none" or not layout.dp_overlap:
        return 1
    bucket = max(stack.bucket_params, stack.bucket_params_per_rank * copies)
    return max(1, math.ceil(params / bucket))


def one_pass(
    problem: Problem,
    layout: Layout,
    params: tuple[float, float],
    n: int,
    groups: tuple[physics.Group, physics.Group, physics.Group, physics.Group],
) -> physics.Passes:
    stack = problem.stack
    whole, shard, copies, close = groups
    grads = physics.reduced_bytes(problem) * params[0] / n
    weights = physics.gathered_bytes_of(problem, *params) / n
    late_sum, late_gather = physics.at_the_end(stack, layout.zero)

    def met(group: physics.Group, late: bool) -> physics.Group:
        return physics.all_at_once(problem, group, late)

    if physics.sums_whole(problem, layout.zero):
        each = physics.all_reduce_s(problem, met(whole, late_sum), grads)
        if layout.zero == 0:
            return physics.Passes(n * each, each, 0.0, 0.0, 0.0, 0.0)
    else:
        each = physics.all_gather_s(problem, met(shard, late_sum), grads)
        each += physics.all_reduce_s(problem, met(copies, late_sum), grads / shard.n_ranks)
    gather = n * physics.all_gather_s(problem, met(shard, late_gather), weights)
    if layout.zero == 1 and stack.zero1_gather == "broadcast":
        k = shard.n_ranks
        gather = k * physics.broadcast_s(problem, shard, n * weights / k)
    if layout.zero >= 2 and stack.zero3_traffic == "by-tensor":
        share = physics.by_tensor_share(problem, shard)
        each, gather = each / share, gather / share
    near = gather
    if layout.hpz > 1:
        near = n * physics.all_gather_s(problem, close, weights)
        if stack.zero3_traffic == "by-tensor":
            near /= physics.by_tensor_share(problem, close)
    return physics.Passes(n * each, each, gather, gather / n, near, near / n)


def both_passes(problem: Problem, layout: Layout, rank: int) -> physics.Passes:
    """Return both kinds one after the other; the larger of the last pieces is left over."""
    a, b = passes(problem, layout, rank)
    return physics.Passes(
        a.reduce + b.reduce,
        max(a.reduce_piece, b.reduce_piece),
        a.gather + b.gather,
        max(a.gather_piece, b.gather_piece),
        a.near + b.near,
        max(a.near_piece, b.near_piece),
    )


def data_parallel_s(problem: Problem, layout: Layout, one: Micro, rank: int) -> float:
    """Return what data parallelism adds to a step on one rank, the slowdown of compute too."""
    stack, zero, m = problem.stack, layout.zero, layout.n_micro
    forward, backward = rank_s(problem, layout, one, rank)
    dp = both_passes(problem, layout, rank)
    often, once = physics.exposed_each_s, physics.exposed_once_s
    reduce = once(dp.reduce, dp.reduce_piece, backward, layout)
    if layout.schedule in SPLIT:  # whole with the last weight gradients, all chunks together
        late = rank_wgrad_s(problem, layout, one, rank)
        reduce = once(dp.reduce, dp.reduce_piece, late, replace(layout, vpp=1))
    gather = once(dp.gather, dp.gather_piece, forward, layout)
    kind = stack.zero1_overlap if zero else stack.dp_overlap
    gather = gather if kind == "both" else dp.gather
    if zero <= 1:
        exposed, total = reduce if kind != "none" else dp.reduce, dp.reduce + dp.gather
        exposed += gather
    elif zero == 2:
        exposed = m * often(dp.reduce, dp.reduce_piece, backward) + gather
        total = m * dp.reduce + dp.gather
    else:
        exposed = often(dp.gather, dp.gather_piece, forward)
        exposed += (m - 1) * often(dp.near, dp.near_piece, forward)
        exposed += m * often(dp.near + dp.reduce, dp.reduce_piece, backward)
        total = dp.gather + (2 * m - 1) * dp.near + m * dp.reduce
    if not layout.dp_overlap or (zero >= 2 and stack.zero3_traffic == "by-tensor"):
        exposed = total
    return exposed + stack.overlap_slowdown * max(0.0, total - exposed)


def optimizer_s(problem: Problem, layout: Layout) -> float:
    """Return the update of the rank that has most of it."""
    g, ranks = problem.job.recipe.grad_bytes, layout.dp * layout.cp
    copies = ranks // (layout.shard or ranks)
    edp = max(1, layout.tp * ranks // (layout.ep * layout.etp))

    def update(params: float, shards: int) -> float:
        d = shards if layout.zero else 1
        cleared = g / (d if layout.zero >= 2 else 1)
        adam = physics.adam_bytes(problem)
        return params * (cleared + (g + 2 * g + (g + adam) + 6) / d)

    if optimizers.is_by_matrix(problem):
        degrees = layout.tp, layout.etp
        return max(
            sum(
                physics.matrix_update_s(problem, tp, share)
                for tp, share in zip(degrees, rank_shares(problem, layout, rank), strict=False)
            )
            for rank in range(layout.pp)
        )
    moved = [
        update(rank_params(problem, layout, rank), ranks // copies)
        + update(rank_experts(problem, layout, rank), max(1, edp // copies))
        for rank in range(layout.pp)
    ]
    return max(moved) / physics.hbm_rate(problem)


def rank_shares(problem: Problem, layout: Layout, rank: int) -> list[optimizers.Share]:
    """Return what a rank shares out: all but routed experts, and these."""
    ranks = layout.dp * layout.cp
    held = [routed for routed, _ in rank_layers(problem, layout, rank)]
    dense = [x for routed in held for x in optimizers.layer_matrices(problem, routed, layout.tp)]
    shards = (layout.shard or ranks) if layout.zero else 1
    result = [optimizers.Share(rank_params(problem, layout, rank), dense, shards)]
    if problem.shape.n_experts:
        edp = max(1, layout.tp * ranks // (layout.ep * layout.etp))
        part = max(1, edp // (ranks // (layout.shard or ranks))) if layout.zero else 1
        one = optimizers.expert_matrices(problem, layout.ep, layout.etp)
        experts = rank_experts(problem, layout, rank)
        result.append(optimizers.Share(experts, one * sum(held), part))
    return result


def shared_s(problem: Problem, layout: Layout) -> float:
    """Return the sum of gradients that two ranks of a pipeline share."""
    shape, recipe = problem.shape, problem.job.recipe
    if layout.pp == 1 or layout.schedule in FOLDED:
        return 0.0
    params = 0.0
    if shape.tied or shape.mtp_layers:
        params = physics.padded_vocab(problem, layout.tp) / layout.tp * shape.hidden
    if layout.schedule == "dualpipe":
        params = max(rank_params(problem, layout, rank) for rank in range(layout.pp))
    size = recipe.grad_wire_bytes * params
    return (
        physics.all_reduce_s(problem, physics.ends_group(problem, layout), size) if size else 0.0
    )


def outside_s(problem: Problem, layout: Layout, one: Micro) -> float:
    assert not layout.optimizer_offload, "the instances have no host"
    assert not layout.activation_offload_layers
    data = max(data_parallel_s(problem, layout, one, rank) for rank in range(layout.pp))
    once = optimizer_s(problem, layout) + shared_s(problem, layout) + fill_s(problem, one)
    return data + once + problem.stack.fixed_step_s


def fill_s(problem: Problem, one: Micro) -> float:
    """Return what the first forwards and last backwards of a step miss a partner for."""
    kinds = routed_layers(problem.shape)
    kinds += kinds[-1:] * problem.shape.mtp_layers
    return sum(one.layers[kind].fill for kind in kinds)


def closed_form_s(problem: Problem, layout: Layout, one: Micro) -> float:
    flush = physics.straggler(problem, layout) * closed_flush_s(problem, layout, one)
    return flush + outside_s(problem, layout, one)


def exact_step_s(problem: Problem, layout: Layout, one: Micro) -> float:
    """Return the step with every block of the pipeline run in turn."""
    flush = simulated_s(problem, layout, one)
    return physics.straggler(problem, layout) * flush + outside_s(problem, layout, one)


def overlap_is_no_slower(problem: Problem, layout: Layout, least_mbs: int) -> bool:
    """Tell whether overlap is proven to be no slower for every micro-batch of a shape."""
    if layout.zero >= 2:
        return True
    stack, shape, v, t = problem.stack, problem.shape, layout.vpp, layout.tp
    kind = stack.zero1_overlap if layout.zero else stack.dp_overlap
    weights = shape.hidden * v_width(problem) / t
    if not shape.kv_rank:
        q = shape.heads * shape.head_dim / t
        weights += shape.hidden * (q + 2 * physics.kv_width_per_rank(problem, t))
    if not shape.n_experts:
        weights += (3 if shape.gated else 2) * shape.hidden * shape.ffn / t
    if shape.layer_runs:
        weights = hybrids.least_weights(problem, t)
    recipe = problem.job.recipe
    precision = recipe.linear_precision or recipe.gemm_precision
    peak = problem.pool.accelerator.peak_flops_per_s[precision]
    least = 2 * weights * least_mbs * problem.job.seq_len / layout.cp / peak
    least = 0.0 if layout.schedule in SPLIT else least
    on, off = replace(layout, dp_overlap=True), replace(layout, dp_overlap=False)
    for rank in range(layout.pp):
        a, b = both_passes(problem, on, rank), both_passes(problem, off, rank)
        window = len(rank_layers(problem, layout, rank)) * least
        reduce, gather = a.reduce, a.gather
        if kind != "none":
            left = a.reduce - 2 * window
            reduce = min(a.reduce, max(a.reduce_piece, left, left / v))
        if kind == "both":
            left = a.gather - window
            gather = min(a.gather, max(a.gather_piece, left, left / v))
        slowed = stack.overlap_slowdown * (a.reduce + a.gather - reduce - gather)
        if reduce + gather + slowed > (b.reduce + b.gather) * (1 + 1e-12):
            return False
    return True


# The exact pipeline --------------------------------------------------------------------------


Part = tuple[int, int, int]
"""Virtual stage, micro-batch, kind of block."""
F, B, INPUT, W = range(4)


def programs(layout: Layout) -> list[list[tuple[Part, ...]]]:
    """Return what every rank runs, in order; W apart where the schedule has it apart."""
    p, m = layout.pp, layout.n_micro
    if layout.schedule in SPLIT:
        return [zero_bubble.program(layout.schedule, rank, p, m) for rank in range(p)]
    letters = {"F": F, "B": B}
    plain = replace(layout, schedule="1f1b") if p == 1 else layout
    return [
        [((stage, micro, letters[kind]),) for kind, stage, micro in physics.program(plain, rank)]
        for rank in range(p)
    ]


def simulated_s(problem: Problem, layout: Layout, one: Micro) -> float:
    """Run every block as soon as its rank is free and its input has arrived."""
    p, n = layout.pp, len(layout.stage_layers)
    ways = 2 if layout.schedule == "dualpipe" else 1
    hops = physics.hops_s(problem, layout, one.message)
    took = []
    for stage in range(n):
        ahead, behind = stage_s(problem, layout, one, stage)
        late = stage_wgrad_s(problem, layout, one, stage)
        took.append({F: ahead, B: behind, INPUT: behind - late, W: late})
    took *= ways

    def rank_of(stage: int) -> int:
        if ways == 2 or layout.schedule in FOLDED:
            return stage if stage < p else 2 * p - 1 - stage
        return stage % p

    def hop(stage: int, following: int) -> float:
        a, b = rank_of(stage), rank_of(following)
        if a == b and p > 1:
            return 0.0
        return hops[a if layout.schedule not in SPLIT else min(a, b)] if p > 1 else 0.0

    ends: dict[tuple[int, int, bool], float] = {}

    def arrival(stage: int, micro: int, kind: int) -> float | None:
        first, last = stage // n * n, stage // n * n + n - 1
        if kind == W or (kind == F and stage == first):
            return 0.0
        if kind == F:
            sent, wire = ends.get((stage - 1, micro, True)), hop(stage - 1, stage)
        elif stage == last:
            sent, wire = ends.get((stage, micro, True)), 0.0
        else:
            sent, wire = ends.get((stage + 1, micro, False)), hop(stage, stage + 1)
        return None if sent is None else sent + wire

    todo, free = [list(reversed(x)) for x in programs(layout)], [0.0] * p
    while any(todo):
        left = sum(map(len, todo))
        for rank, blocks in enumerate(todo):
            while blocks:
                inputs = [arrival(*part) for part in blocks[-1]]
                if any(at is None for at in inputs):
                    break
                parts = blocks.pop()
                free[rank] = max(free[rank], *(at for at in inputs if at is not None))
                free[rank] += sum(took[stage][kind] for stage, _, kind in parts)
                for stage, micro, kind in parts:
                    if kind != W:
                        ends[stage, micro, kind == F] = free[rank]
        assert sum(map(len, todo)) < left, "the schedule deadlocks"
    return max(free)


# Memory --------------------------------------------------------------------------------------


def in_flight(layout: Layout, rank: int) -> float:
    """Return the micro-batches whose activations a rank holds, each with all of its stages."""
    p, m = layout.pp, layout.n_micro
    held = {
        "zb-h1": min(m, p),
        "zb-v": min(2 * m, 2 * p) / 2,
        "dualpipe": (p + 1) / 2,
        "dualpipe-v": (2 * p + 1) / 2,
    }
    if layout.schedule in SPLIT:
        return held[layout.schedule]
    return physics.in_flight(layout, rank) + one_more(layout, rank)


def one_more(layout: Layout, rank: int) -> float:
    """Return the chunk, as a part of a micro-batch, that a combined 1F1B has in flight besides."""
    if layout.pp == 1 or dispatch.overlap(layout) != "1f1b":
        return 0.0
    chunks = physics.in_flight(layout, rank) * layout.vpp
    return (min(chunks + 1, layout.n_micro * layout.vpp) - chunks) / layout.vpp


def waiting(layout: Layout, rank: int) -> tuple[float, float]:
    """Return the chunks before their B, and those that wait for W alone."""
    p, m, r = layout.pp, layout.n_micro, float(rank)
    if layout.schedule == "zb-h1":
        late = min(r, m)
        return min(p - r, m - late), late
    if layout.schedule == "zb-v":
        late = min(2 * r, 2 * m)
        return min(p - r, 2 * m - late), late
    half, n = float(p), float(m)
    if layout.schedule == "dualpipe":
        half, n, r = p / 2, m / 2, min(r, p - 1 - r)
    late = min(r, n)
    return min(half - r, 2 * n - late), late


def scratch_bytes(problem: Problem, layout: Layout) -> float:
    """Return one gradient for each kind of weight of the model: dense, shared, an expert's."""
    shape, tp, h = problem.shape, layout.tp, problem.shape.hidden
    if not problem.stack.fused_wgrad:
        return 0.0
    if shape.layer_runs:
        return hybrids.scratch(problem, tp)
    per_mlp = 3 if shape.gated else 2
    kinds = routed_layers(problem.shape)
    if shape.kv_rank:
        heads = layer_params(replace(problem, shape=replace(shape, ffn=0)), tp)
        heads -= 2 * h * (1 if shape.norm == "rmsnorm" else 2)
    else:
        q = shape.heads * shape.head_dim / tp
        heads = h * (2 * q + 2 * physics.kv_width_per_rank(problem, tp))
    found = heads + (0.0 if all(kinds) else per_mlp * h * shape.ffn / tp)
    if any(kinds):
        found += per_mlp * h * shape.shared_ffn / tp
        found += per_mlp * h * shape.expert_ffn / layout.etp
    return 2.0 * found


def communicators(problem: Problem, layout: Layout) -> int:
    groups = [
        physics.place_copies(problem, layout, layout.dp * layout.cp, 1),
        physics.place(problem, layout.pp, physics.next_stage(layout)),
        physics.place(problem, layout.cp, layout.tp),
    ]
    if problem.shape.n_experts:
        n = layout.ep * layout.etp
        inside = layout.pp if physics.pipelines_inside(layout) else 1
        copies = max(1, layout.tp * layout.cp * layout.dp // n)
        groups += [
            physics.place(problem, copies, n * inside),
            physics.place(problem, layout.ep, layout.etp),
        ]
    return sum(group.n_domains > 1 for group in groups)


def rank_bytes(problem: Problem, layout: Layout, one: Micro, rank: int) -> float:
    shape, stack, names = problem.shape, problem.stack, layout.recompute_modules
    held = rank_layers(problem, layout, rank)
    whole = [one.layers[routed].left(names) for routed, again in held if not again]
    n_again = sum(again for _, again in held)
    # A stage without layers keeps what it was sent, unless it is the first.
    stages, empty = stages_of(layout, rank), 0 in layout.stage_layers
    n_inputs = n_again + sum(j > 0 and not layout.stage_layers[j] for j in stages)
    per_micro = n_inputs * one.checkpoint + sum(whole)
    modules = 0.0
    if has_head(layout, rank):
        modules = shape.mtp_layers * one.layers[routed_layers(problem.shape)[-1]].left(names)
    ids = one.embedding_bytes if has_embedding(layout, rank) else 0.0
    per_micro += modules
    activations = in_flight(layout, rank) * per_micro
    if layout.schedule == "interleaved":
        chunks, left = [], list(held)
        for j, n in zip(stages, layout.stage_layers[rank :: layout.pp], strict=True):
            these, left = left[:n], left[n:]
            sent = one.checkpoint if j > 0 and not n else 0.0
            chunks.append(
                sum(
                    (one.checkpoint if again else one.layers[r].left(names) for r, again in these),
                    sent,
                )
            )
        activations = physics.held_at_peak(layout, rank, chunks)
        activations += one_more(layout, rank) * sum(chunks)  # a chunk of mean size
        activations += in_flight(layout, rank) * modules
    if layout.schedule in SPLIT:
        before, late = waiting(layout, rank)
        share = 1.0 if layout.schedule == "zb-h1" else 0.5
        waits = 0.0
        for routed, _ in held:
            kind = one.layers[routed]
            waits += kind.kept - (kind.modules["core_attn"][1] if "core_attn" in names else 0.0)
        late_bytes = before * per_micro + late * waits
        activations = max(activations, share * late_bytes)
    activations += in_flight(layout, rank) * ids
    logits = one.logits if has_head(layout, rank) else 0.0
    # The kinds of the model, not of the rank: one layer runs backward at a time.
    dropped = max(max(kind.dropped(names)) for kind in one.layers.values())
    again = max(kind.kept for kind in one.layers.values()) if n_again else dropped
    temporaries = max(kind.temporaries for kind in one.layers.values())
    gone = logits if problem.stack.logits_sharded else 0.0
    passing = max(0.0, again + temporaries - gone)
    messages = 2.0 * one.message if layout.pp > 1 else 0.0
    scratch = scratch_bytes(problem, layout)
    scratch += max(kind.pool for kind in one.layers.values())
    scratch += sum(kind.buffers for kind in one.layers.values())
    if empty and not held and not (has_head(layout, rank) and shape.mtp_layers):
        passing = scratch = 0.0
    lasting = scratch + messages + unsharded_bytes(problem, layout)
    if layout.pp == 1 and dispatch.overlap(layout) == "1f1b":  # one fills as another empties
        lasting += max(kind.kept for kind in one.layers.values())
    sent = max(kind.away.freed for kind in one.layers.values())
    n_held = len(held) + shape.mtp_layers * has_head(layout, rank)
    flight = in_flight(layout, rank)
    lasting += offload.on_the_way(sent, flight * n_held)
    states = physics.state_bytes(problem, layout, rank_params(problem, layout, rank))
    if optimizers.is_by_matrix(problem):
        shares = rank_shares(problem, layout, rank)
        states = sum(optimizers.state_bytes(problem, share) for share in shares)
    elif shape.n_experts:
        mine = expert_shards(layout)
        states += physics.state_bytes(problem, mine, rank_experts(problem, layout, rank))
    linear = rank_weights(problem, layout, rank) + expert_weights(problem, layout, rank)
    states += physics.weight_copies(problem, linear, layout.zero)
    if has_embedding(layout, rank):
        states += towers.frozen_bytes(problem, layout.tp)
    overhead = stack.context_bytes + communicators(problem, layout) * stack.communicator_bytes
    kept = (1.0 + stack.fragmentation_frac) * activations
    if stack.memory_plan == "phases":
        head, backward = planned_bytes(problem, layout, rank)
        moments = (head + logits, backward + again + temporaries + messages)
        return states + kept + overhead + max(moments)
    return states + kept + logits + passing + lasting + overhead


def planned_bytes(problem: Problem, layout: Layout, rank: int) -> tuple[float, float]:
    """Return what head and backward of one program hold beside tensors: copies, gradients."""
    shape, recipe, tp, zero = problem.shape, problem.job.recipe, layout.tp, layout.zero
    n, n_experts = physics.n_shards(layout), physics.n_shards(expert_shards(layout))
    matrix = physics.padded_vocab(problem, tp) * shape.hidden / tp * has_head(layout, rank)
    own = 0.0 if shape.tied and layout.pp == 1 else matrix
    ends = physics.embedding_params(problem, tp) * has_embedding(layout, rank) + own
    rest, experts = rank_params(problem, layout, rank) - ends, rank_experts(problem, layout, rank)
    layers = rest / n + experts / n_experts if zero >= 3 else rest + experts
    gradients = rest / n + experts / n_experts if zero else rest + experts
    gathered = 0.0
    if zero >= 3:
        width = max(shape.ffn, shape.heads * shape.head_dim)
        gathered = 2 * shape.hidden * width / tp
        if shape.n_experts:
            gathered = max(gathered, experts_params(problem, layout.ep, layout.etp))
    always = 2.0 * layers
    if zero in (1, 2):  # weights that the update gathers, beside those that the step reads
        always += 4.0 * (rest + experts + ends)
    wide = recipe.grad_bytes
    if layout.n_micro > 1:
        cut = n if zero >= 3 else 1
        if zero in (1, 2):  # gradients of cast weights, whole
            wide, gradients = 2.0, layers
        always += wide * layers + (wide + 2.0) * ends / cut
    head = matrix if zero >= 3 else 0.0
    if zero and 1 < n <= 32:  # a ring: three pieces, and the logits twice
        tokens = layout.mbs * problem.job.seq_len / layout.cp
        head, left = head + tokens * matrix / shape.hidden, matrix * min(1, 3 / n)
    else:
        head, left = head + matrix, matrix
    backward = wide * gradients + 2.0 * (left + gathered)
    return always + 2.0 * head, always + backward


def expert_shards(layout: Layout) -> Layout:
    """Return the layout with the ranks over which ZeRO shards routed experts as its groups."""
    ranks = layout.dp * layout.cp
    edp = max(1, layout.tp * ranks // (layout.ep * layout.etp))
    return replace(layout, shard=max(1, edp // (ranks // (layout.shard or ranks))))


def unsharded_bytes(problem: Problem, layout: Layout) -> float:
    """Return the two units that ZeRO 2 and 3 hold whole, the larger kind of layer twice."""
    recipe, kinds = problem.job.recipe, routed_layers(problem.shape)
    units = []
    if any(kinds):
        experts = experts_params(problem, layout.ep, layout.etp)
        units.append(routed_layer_params(problem, layout.tp) + experts)
    if not kinds[0]:
        units.append(layer_params(problem, layout.tp))
    if problem.shape.layer_runs:
        units = [hybrids.params(problem, kind, layout.tp) for kind in kinds]
    unit = max(units)
    both = unit + max(unit, first_params(problem, layout.tp))
    grads = recipe.param_wire_bytes if layout.zero >= 2 else 0.0
    value = both * (grads + (recipe.param_bytes if layout.zero >= 3 else 0.0))
    ranks = range(layout.pp)
    most = max(rank_params(problem, layout, rank) for rank in ranks)
    value += physics.flat_bytes(problem, layout, most)
    if problem.shape.n_experts:
        most = max(rank_experts(problem, layout, rank) for rank in ranks)
        value += physics.flat_bytes(problem, expert_shards(layout), most)
    return value


def host_bytes(problem: Problem, layout: Layout, one: Micro) -> float:
    """Return what modules of all micro-batches in flight have on the host, of the fullest rank."""
    last = one.layers[routed_layers(problem.shape)[-1]].away.copied * problem.shape.mtp_layers
    found = []
    for rank in range(layout.pp):
        held = rank_layers(problem, layout, rank)
        each = sum(one.layers[routed].away.copied for routed, _ in held)
        found.append(in_flight(layout, rank) * (each + last * has_head(layout, rank)))
    return max(found)


def peak_bytes(problem: Problem, layout: Layout, one: Micro) -> float:
    return max(rank_bytes(problem, layout, one, rank) for rank in range(layout.pp))
