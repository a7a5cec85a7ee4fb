"""The costs of one plan a second time: scalars, `math`, one function per term, no numpy.

Written from the docstrings of `costmodels`, sharing none of its formulas: only the plain data
types come from there. Every pipeline rank is priced, where the package prices kinds of rank.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

from costmodels.plans import Layout
from costmodels.problem import Problem

PROTOCOLS = ("ll", "ll128", "simple")
ELEMENT_BYTES = {"fp8": 1.0, "tf32": 4.0, "fp32": 4.0}


# Parameters ----------------------------------------------------------------------------------


def padded_vocab(problem: Problem, tp: int) -> float:
    shape = problem.shape
    unit = shape.vocab_multiple * tp
    return float(shape.padded_vocab or math.ceil(shape.vocab / unit) * unit)


def kv_width_per_rank(problem: Problem, tp: int) -> float:
    """Below one KV head per rank the head is replicated."""
    return max(problem.shape.kv_heads / tp, 1.0) * problem.shape.head_dim


def layer_params(problem: Problem, tp: int) -> float:
    shape = problem.shape
    h, q, f = shape.hidden, shape.heads * shape.head_dim, shape.ffn
    kv, n_up = kv_width_per_rank(problem, tp), 2 if shape.gated else 1
    qkv = h * (q / tp + 2 * kv)
    projection = q / tp * h
    mlp = n_up * h * f / tp + f / tp * h
    norms = 2 * h * (1 if shape.norm == "rmsnorm" else 2)
    biases = q / tp + 2 * kv + n_up * f / tp + h + h if shape.bias else 0.0
    return qkv + projection + mlp + norms + biases


def embedding_params(problem: Problem, tp: int) -> float:
    shape = problem.shape
    rows = padded_vocab(problem, tp) / tp
    if shape.positions == "learned":
        rows += max(shape.max_positions, problem.job.seq_len)
    return rows * shape.hidden


def head_params(problem: Problem, tp: int, pp: int) -> float:
    shape = problem.shape
    final_norm = shape.hidden * (1 if shape.norm == "rmsnorm" else 2)
    shares_the_embedding = shape.tied and pp == 1
    return final_norm + (
        0 if shares_the_embedding else padded_vocab(problem, tp) * shape.hidden / tp
    )


def rank_layers(layout: Layout, rank: int) -> int:
    return sum(layout.stage_layers[rank :: layout.pp])


def rank_params(problem: Problem, layout: Layout, rank: int) -> float:
    held = rank_layers(layout, rank) * layer_params(problem, layout.tp)
    if rank == 0:
        held += embedding_params(problem, layout.tp)
    if rank == layout.pp - 1:
        held += head_params(problem, layout.tp, layout.pp)
    return held


# Groups and collectives ----------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    n_ranks: int
    per_domain: int
    n_domains: int
    wire: float
    extra_hop_s: float
    tier: int


def nic_rate(problem: Problem) -> float:
    pool = problem.pool
    per_node = pool.nic.bytes_per_s * pool.nic.efficiency * pool.nics_per_node
    return per_node / pool.devices_per_node


def spread(n_ranks: int, unit: int, stride: int) -> tuple[int, int]:
    """Return (fewest ranks in a unit, most units touched) by looking at every group."""
    if n_ranks == 1:
        return 1, 1
    fewest, most = n_ranks, 1
    for group in range(unit):
        for residue in range(stride):
            start = group * n_ranks * stride + residue
            units = [(start + i * stride) // unit for i in range(n_ranks)]
            fewest = min(fewest, *(units.count(u) for u in units))
            most = max(most, len(set(units)))
    return fewest, most


def place(problem: Problem, n_ranks: int, stride: int) -> Group:
    pool = problem.pool
    per_domain, n_domains = spread(n_ranks, pool.scale_up_domain, stride)
    wire = per_domain * nic_rate(problem)
    share, climbs = nic_rate(problem), int(n_domains > 1)
    for level, tier in enumerate(problem.fabric.tiers, start=2):
        share /= tier.oversubscription
        inside, units = spread(n_ranks, tier.n_nodes * pool.devices_per_node, stride)
        if units > 1:
            wire, climbs = min(wire, inside * share), level
    return Group(n_ranks, per_domain, n_domains, wire, extra_hop_s(problem), climbs)


def extra_hop_s(problem: Problem) -> float:
    return 0.0 if problem.fabric.rail_optimized else 1e-6


def inside_rate(problem: Problem, group: Group, protocol: int) -> float:
    up, part = problem.pool.scale_up, problem.pool.accelerator
    rate = part.ring_bytes_per_s
    if part.n_peer_links:  # a link to every peer, of which a group has those to its own members
        rate *= max(1, min(group.per_domain - 1, part.n_peer_links)) / part.n_peer_links
    return min(rate * up.protocol_frac[protocol], up.protocol_bytes_per_s[protocol])


def bus_rate(problem: Problem, group: Group, protocol: int) -> float:
    nic = problem.pool.nic
    inside = inside_rate(problem, group, protocol)
    if group.n_domains == 1:
        return inside
    outside = group.wire * nic.protocol_frac[protocol]
    outside = min(outside, nic.protocol_bytes_per_s[protocol])
    return min(inside, outside) if group.per_domain > 1 else outside


def ring_hops_s(problem: Problem, group: Group, protocol: int) -> float:
    """Return the latency of one round through all ranks of the group."""
    outside = group.n_domains - 1 if group.n_domains > 1 else 0
    inside = group.n_ranks - 1 - outside
    out_hop = problem.pool.nic.ring_hop_s[protocol] + group.extra_hop_s
    return inside * problem.pool.scale_up.ring_hop_s[protocol] + outside * out_hop


def all_gather_s(problem: Problem, group: Group, n: float) -> float:
    """Return the time of an all-gather or a reduce-scatter of `n` bytes."""
    p = group.n_ranks
    if p == 1:
        return 0.0
    found = []
    for protocol in range(3):
        latency = problem.pool.scale_up.ring_base_s[protocol] + ring_hops_s(
            problem, group, protocol
        )
        found.append(latency + (p - 1) / p * n / bus_rate(problem, group, protocol))
    if group.per_domain == 1 and group.n_domains > 1:
        hop = (problem.pool.nic.ring_hop_s[2] + group.extra_hop_s) / 3.5
        latency = 8e-6 + math.log2(p) * hop + 2.8e-6 * p
        found.append(latency + (p - 1) / p * n / (0.75 * bus_rate(problem, group, 2)))
    return min(found)


def all_reduce_s(problem: Problem, group: Group, n: float) -> float:
    if group.n_ranks == 1:
        return 0.0
    return min(
        ring_all_reduce_s(problem, group, n),
        tree_all_reduce_s(problem, group, n),
        in_switch_all_reduce_s(problem, group, n),
        in_network_all_reduce_s(problem, group, n),
    )


def ring_all_reduce_s(problem: Problem, group: Group, n: float) -> float:
    p, found = group.n_ranks, []
    for protocol, name in enumerate(PROTOCOLS):
        latency = problem.pool.scale_up.ring_base_s[protocol]
        latency += 2 * ring_hops_s(problem, group, protocol)
        if name == "simple" and group.n_domains > 1:
            latency *= 1.4
        found.append(latency + 2 * (p - 1) / p * n / bus_rate(problem, group, protocol))
    return min(found)


def over_racks(problem: Problem, group: Group) -> bool:
    return group.n_domains > 1 and problem.pool.scale_up_domain > 16


def tree_all_reduce_s(problem: Problem, group: Group, n: float) -> float:
    if over_racks(problem, group):
        return math.inf
    up, nic, found = problem.pool.scale_up, problem.pool.nic, []
    for protocol, name in enumerate(PROTOCOLS):
        wire = 0.92 * bus_rate(problem, group, 2)
        if name == "ll":
            wire /= 3.8
        if name == "ll128":
            wire *= 120 / 128 if group.n_domains > 1 else 7 / 9
        hops = (group.per_domain - 1) * up.tree_hop_s[protocol]
        hops += math.log2(group.n_domains) * (nic.tree_hop_s[protocol] + group.extra_hop_s)
        found.append(up.tree_base_s[protocol] + 2 * hops + 2 * n / wire)
    return min(found)


def in_switch_all_reduce_s(problem: Problem, group: Group, n: float) -> float:
    part, g, k = problem.pool.accelerator, group.per_domain, group.n_domains
    if not part.in_switch_all_reduce_bytes_per_s or g < part.in_switch_min_ranks:
        return math.inf
    if over_racks(problem, group):
        return math.inf
    inner = 2 * (g - 1) / g * n / part.in_switch_all_reduce_bytes_per_s
    outer = 2 * (k - 1) / k * n / group.wire
    latency = 25e-6 + 9.3e-6 * max(0, g - 8)
    return latency + 2 * math.log2(k) * (18e-6 + group.extra_hop_s) + max(inner, outer)


def in_network_all_reduce_s(problem: Problem, group: Group, n: float) -> float:
    """Return the time when the network's switches sum: n/g up and down once for every rank."""
    pool, g = problem.pool, group.per_domain
    if group.n_domains == 1 or pool.n_summing_tiers < group.tier:
        return math.inf
    up, outer = pool.scale_up, n / group.wire
    latency = up.ring_base_s[2] + 2 * (g - 1) * up.ring_hop_s[2] + 31e-6
    times = [latency + max(2 * (g - 1) / g * n / inside_rate(problem, group, 2), outer)]
    rate = pool.accelerator.in_switch_all_reduce_bytes_per_s
    if rate and g >= pool.accelerator.in_switch_min_ranks:
        times.append(43e-6 + max(2 * (g - 1) / g * n / rate, outer))
    return min(times) + group.extra_hop_s


def hops_s(problem: Problem, layout: Layout, message_bytes: float) -> list[float]:
    """Return the time of a message over each boundary, the last from rank p - 1 back to 0."""
    pool, p = problem.pool, layout.pp
    stride, nic = layout.tp * layout.dp, nic_rate(problem)

    def crosses(boundary: int, unit: int) -> bool:
        there = (boundary + 1) % p
        return any(
            (boundary * stride + o) // unit != (there * stride + o) // unit for o in range(stride)
        )

    out = []
    for boundary in range(p):
        seconds_per_byte = 1 / pool.accelerator.ring_bytes_per_s
        latency = pool.scale_up.p2p_latency_s
        if crosses(boundary, pool.scale_up_domain):
            seconds_per_byte = max(seconds_per_byte, 1 / nic)
            latency = pool.nic.p2p_latency_s + extra_hop_s(problem)
        over = 1.0
        for tier in problem.fabric.tiers:
            over *= tier.oversubscription
            unit = tier.n_nodes * pool.devices_per_node
            if crosses(boundary, unit):
                shares = max(1, unit // stride)
                seconds_per_byte = max(seconds_per_byte, 1 / nic, over / (nic * shares))
        out.append(latency + message_bytes * seconds_per_byte)
    return out


def hop_s(problem: Problem, layout: Layout, message_bytes: float) -> float:
    """Return the hop of the closed form: the slowest (1F1B) or the mean by use (interleaved)."""
    if layout.pp == 1:
        return 0.0
    hops = hops_s(problem, layout, message_bytes)
    if layout.vpp == 1:
        return max(hops[:-1])
    uses = [layout.vpp] * (layout.pp - 1) + [layout.vpp - 1]
    return sum(n * hop for n, hop in zip(uses, hops, strict=True)) / sum(uses)


def gemm_s(problem: Problem, m: float, k: float, n: float, rate_frac: float = 1.0) -> float:
    part, precision = problem.pool.accelerator, problem.job.recipe.gemm_precision
    eff = part.efficiency
    rate = part.peak_flops_per_s[precision] * eff.gemm_frac * rate_frac
    times = []
    for rows, columns in ((256, 128), (128, 256), (128, 128), (128, 64), (64, 64)):
        tiles = math.ceil(m / rows) * math.ceil(n / columns)
        waves = math.ceil(tiles / part.n_sms)
        loss = 0.95 ** math.log2(256 * 128 / (rows * columns))
        flops = 2.0 * waves * part.n_sms * rows * columns * (k + eff.gemm_k_half)
        times.append(flops / (rate * loss))
    traffic = ELEMENT_BYTES.get(precision, 2.0) * (m * k + k * n + m * n)
    return max(min(times), traffic / hbm_rate(problem)) + eff.kernel_latency_s


def hbm_rate(problem: Problem) -> float:
    part = problem.pool.accelerator
    return part.hbm_bytes_per_s * part.efficiency.hbm_frac


@dataclass(frozen=True)
class Products:
    """Forward, data gradient and weight gradient of the linear layers of one kind."""

    forward: float
    dgrad: float
    wgrad: float

    @property
    def total(self) -> float:
        return self.forward + self.dgrad + self.wgrad


def products(problem: Problem, tokens: float, sizes: list[tuple[float, float]]) -> Products:
    wgrad = problem.pool.accelerator.efficiency.wgrad_frac
    return Products(
        sum(gemm_s(problem, tokens, k, n) for k, n in sizes),
        sum(gemm_s(problem, tokens, n, k) for k, n in sizes),
        sum(gemm_s(problem, k, tokens, n, wgrad) for k, n in sizes),
    )


def column_products(problem: Problem, tokens: float, tp: int) -> Products:
    shape = problem.shape
    qkv = shape.heads * shape.head_dim / tp + 2 * kv_width_per_rank(problem, tp)
    up = (2 if shape.gated else 1) * shape.ffn / tp
    return products(problem, tokens, [(shape.hidden, qkv), (shape.hidden, up)])


def row_products(problem: Problem, tokens: float, tp: int) -> Products:
    shape = problem.shape
    q = shape.heads * shape.head_dim / tp
    return products(problem, tokens, [(q, shape.hidden), (shape.ffn / tp, shape.hidden)])


def attention_s(problem: Problem, tokens: float, tp: int) -> tuple[float, float]:
    shape, part, s = problem.shape, problem.pool.accelerator, problem.job.seq_len
    eff, peaks = part.efficiency, part.peak_flops_per_s
    wanted = "fp16" if problem.job.recipe.gemm_precision == "fp16" else "bf16"
    peak = peaks.get(wanted, peaks["fp16"])
    causal_flops = 2.0 * s * shape.heads * shape.head_dim / tp * tokens
    if not shape.flash_attention:
        rate = peak * eff.gemm_frac * 0.5
        scores = (
            (8.0 if shape.dropout else 4.0) * shape.heads / tp * s * tokens / hbm_rate(problem)
        )
        outside_products = scores + 4 * eff.kernel_latency_s
        return (
            2 * causal_flops / rate + outside_products,
            4 * causal_flops / rate + outside_products,
        )
    forward_frac, backward_frac = eff.attention_frac[attention_kernel(problem)]
    tiles = shape.heads / tp * (tokens / s) * math.ceil(s / 128)
    rate = peak * s / (s + eff.attention_seq_half) * min(1.0, tiles / part.n_sms)
    return (
        causal_flops / (rate * forward_frac) + eff.kernel_latency_s,
        2.5 * causal_flops / (rate * backward_frac) + eff.kernel_latency_s,
    )


def attention_kernel(problem: Problem) -> str:
    known = problem.pool.accelerator.efficiency.attention_frac
    for name in problem.stack.attention_kernels:
        if name in known:
            return name
    return min((name for name in known if name != "unfused"), default="unfused")


def elementwise_s(problem: Problem, tokens: float, tp: int, sp: bool) -> tuple[float, float]:
    shape = problem.shape
    full_width = (20 + (2 if shape.dropout else 0)) * shape.hidden / (tp if sp else 1)
    rotary = 0.0
    if shape.positions == "rope":
        rotary = 4 * (shape.heads * shape.head_dim / tp + kv_width_per_rank(problem, tp))
    forward = full_width + rotary + (6 if shape.gated else 4) * shape.ffn / tp
    backward = full_width + rotary + (10 if shape.gated else 6) * shape.ffn / tp
    rate = hbm_rate(problem) / problem.stack.elementwise_factor
    launches = 6 * problem.pool.accelerator.efficiency.kernel_latency_s
    return tokens * forward / rate + launches, tokens * backward / rate + launches


def embedding_s(problem: Problem, tokens: float, tp: int, sp: bool) -> tuple[float, float]:
    """Return the lookup and its gradient, with the collectives of both, half on each side."""
    shape, latency = problem.shape, problem.pool.accelerator.efficiency.kernel_latency_s
    mask = 3.0 / (tp if sp else 1) if shape.dropout else 0.0
    unit = tokens * shape.hidden / hbm_rate(problem)
    group, x = place(problem, tp, 1), 2.0 * tokens * shape.hidden
    comm = 2 * all_gather_s(problem, group, x) if sp else all_reduce_s(problem, group, x)
    return (4 + mask) * unit + latency + comm / 2, (8 + mask) * unit + latency + comm / 2


def head_s(problem: Problem, tokens: float, tp: int, sp: bool) -> tuple[float, float]:
    """Return final norm, head and loss, with their collectives."""
    shape, stack = problem.shape, problem.stack
    columns = padded_vocab(problem, tp) / tp
    per_logit = (14.0 if stack.logit_bytes > 2 else 5.0) * stack.elementwise_factor
    loss = tokens * (columns * per_logit + 10.0 * shape.hidden) / hbm_rate(problem) / 2
    loss += 4 * problem.pool.accelerator.efficiency.kernel_latency_s
    gemms = products(problem, tokens, [(shape.hidden, columns)])
    group, x = place(problem, tp, 1), 2.0 * tokens * shape.hidden
    gather = all_gather_s(problem, group, x)
    forward = 3 * all_reduce_s(problem, group, 4.0 * tokens) + (gather if sp else 0.0)
    backward = gather if sp else all_reduce_s(problem, group, x)
    return gemms.forward + loss + forward, gemms.dgrad + gemms.wgrad + loss + backward


# Tensor parallelism --------------------------------------------------------------------------


def tp_traffic_s(
    problem: Problem, tokens: float, tp: int, sp: bool, column: Products, row: Products
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return (all, exposed) of forward and of backward of one layer."""
    stack, group = problem.stack, place(problem, tp, 1)
    x = 2.0 * tokens * problem.shape.hidden
    gather, reduce = all_gather_s(problem, group, x), all_reduce_s(problem, group, x)
    if not sp:
        both = 2 * reduce
        exposed = both if stack.tp_overlap == "none" else max(0.0, both - column.wgrad)
        return (both, both), (both, exposed)
    regather = 2 * gather if stack.sp_regather else 0.0
    forward, backward = 4 * gather, 4 * gather + regather
    if stack.tp_overlap == "none":
        return (forward, forward), (backward, backward)
    behind = max(0.0, 2 * gather - column.wgrad) + max(0.0, regather - column.dgrad)
    if stack.tp_overlap == "bulk":
        return (forward, forward), (backward, behind + 2 * gather)
    piped = in_pieces(2 * gather, column.forward, tp) + in_pieces(2 * gather, row.forward, tp)
    return (forward, piped), (backward, behind + in_pieces(2 * gather, row.dgrad, tp))


def in_pieces(total: float, window: float, tp: int) -> float:
    return max(total / tp, total - window * (1 - 1 / tp))


# One layer -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MicroBatch:
    """Times and bytes of one micro-batch for one (tp, mbs, sp)."""

    layer: tuple[float, float]
    embedding: tuple[float, float]
    head: tuple[float, float]
    again_full_s: float
    again_core_s: float
    kept: float
    kept_without_core: float
    checkpoint: float
    working: float
    logits: float
    embedding_bytes: float
    message: float


def micro_batch(problem: Problem, tp: int, mbs: int, sp: bool) -> MicroBatch:
    shape, stack = problem.shape, problem.stack
    tokens = float(mbs * problem.job.seq_len)
    width = tokens * shape.hidden / (tp if sp else 1)
    column, row = column_products(problem, tokens, tp), row_products(problem, tokens, tp)
    attention = attention_s(problem, tokens, tp)
    elementwise = elementwise_s(problem, tokens, tp, sp)
    tp_forward, tp_backward = tp_traffic_s(problem, tokens, tp, sp, column, row)
    again = column.forward + row.forward + attention[0] + elementwise[0] + tp_forward[1]
    forward = again + stack.overlap_slowdown * (tp_forward[0] - tp_forward[1])
    backward = column.dgrad + column.wgrad + row.dgrad + row.wgrad + attention[1] + elementwise[1]
    backward += tp_backward[1] + stack.overlap_slowdown * (tp_backward[0] - tp_backward[1])
    launches = max(0.0, stack.host_s_per_layer - forward - backward)
    scattered = sp or stack.p2p_scatter
    return MicroBatch(
        layer=(forward + launches / 3, backward + launches * 2 / 3),
        embedding=embedding_s(problem, tokens, tp, sp),
        head=head_s(problem, tokens, tp, sp),
        again_full_s=max(again, stack.host_s_per_layer / 3),
        again_core_s=attention[0],
        kept=layer_activation_bytes(problem, tokens, tp, sp, scores=True),
        kept_without_core=layer_activation_bytes(problem, tokens, tp, sp, scores=False),
        checkpoint=2.0 * width,
        working=working_bytes(problem, tokens, tp),
        logits=tokens * padded_vocab(problem, tp) / tp * stack.logit_bytes + 4.0 * width,
        embedding_bytes=tokens * 8.0 + (width if shape.dropout else 0.0),
        message=2.0 * tokens * shape.hidden / (tp if scattered else 1),
    )


# Memory --------------------------------------------------------------------------------------


def layer_activation_bytes(
    problem: Problem, tokens: float, tp: int, sp: bool, scores: bool
) -> float:
    shape, q = problem.shape, problem.shape.heads * problem.shape.head_dim
    per_token = (10.0 if shape.dropout else 8.0) * shape.hidden / (tp if sp else 1)
    per_token += 4.0 * q / tp + 4.0 * kv_width_per_rank(problem, tp)
    per_token += (6.0 if shape.gated else 4.0) * shape.ffn / tp
    if shape.flash_attention:
        per_token += 4.0 * shape.heads / tp
    elif scores:
        per_token += (5.0 if shape.dropout else 4.0) * shape.heads * problem.job.seq_len / tp
    return tokens * per_token


def working_bytes(problem: Problem, tokens: float, tp: int) -> float:
    """Return gradients of the MLP, three full tensors, and scratch for the weight gradients."""
    shape = problem.shape
    h, f, q = shape.hidden, shape.ffn, shape.heads * shape.head_dim
    temporaries = tokens * ((6.0 if shape.gated else 4.0) * f / tp + 6.0 * h)
    if not problem.stack.fused_wgrad:
        return temporaries
    qkv, up = q / tp + 2 * kv_width_per_rank(problem, tp), (2 if shape.gated else 1) * f / tp
    return temporaries + 2.0 * (h * qkv + q / tp * h + h * up + f / tp * h)


def state_bytes(problem: Problem, layout: Layout, params: float) -> float:
    recipe, d = problem.job.recipe, layout.dp
    weights = recipe.param_bytes / (d if layout.zero >= 3 else 1)
    grads = recipe.grad_bytes / (d if layout.zero >= 2 else 1)
    states = recipe.state_bytes / (d if layout.zero >= 1 else 1)
    return params * (weights + grads + states)


def unsharded_bytes(problem: Problem, layout: Layout) -> float:
    """Return the units that ZeRO 2 (gradients) and 3 (and weights) hold whole."""
    recipe, layer = problem.job.recipe, layer_params(problem, layout.tp)
    units = layer + max(layer, embedding_params(problem, layout.tp))
    grads = recipe.param_wire_bytes if layout.zero >= 2 else 0.0
    return units * (grads + (recipe.param_bytes if layout.zero >= 3 else 0.0))


def in_flight(layout: Layout, rank: int) -> float:
    """Return whole-rank micro-batches held at the peak; a chunk counts 1 / vpp."""
    p, v, m = layout.pp, layout.vpp, layout.n_micro
    if layout.schedule == "gpipe":
        return m
    if layout.schedule == "interleaved":
        return min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1) / v
    return min(m, p - rank)


def recomputed_layers(layout: Layout, rank: int) -> int:
    return sum(min(n, layout.recompute_layers) for n in layout.stage_layers[rank :: layout.pp])


def overhead_bytes(problem: Problem, layout: Layout) -> float:
    """Return the context and a buffer for every further communicator that leaves the domain."""
    data = place(problem, layout.dp, layout.tp)
    pipeline = place(problem, layout.pp, layout.tp * layout.dp)
    outside = (data.n_domains > 1) + (pipeline.n_domains > 1)
    return problem.stack.context_bytes + outside * problem.stack.communicator_bytes


def rank_bytes(problem: Problem, layout: Layout, one: MicroBatch, rank: int) -> float:
    """Return the memory of one pipeline rank."""
    again = recomputed_layers(layout, rank)
    kept = one.kept_without_core if layout.recompute == "selective" else one.kept
    per_micro = (rank_layers(layout, rank) - again) * kept + again * one.checkpoint
    if rank == 0:
        per_micro += one.embedding_bytes
    activations = in_flight(layout, rank) * per_micro
    working = one.working + unsharded_bytes(problem, layout)
    if again:
        working += one.kept
    elif layout.recompute == "selective":
        working += one.kept - one.kept_without_core
    working += 2.0 * one.message if layout.pp > 1 else 0.0
    logits = one.logits if rank == layout.pp - 1 else 0.0
    states = state_bytes(problem, layout, rank_params(problem, layout, rank))
    lost = problem.stack.fragmentation_frac * activations
    return states + activations + logits + working + lost + overhead_bytes(problem, layout)


# Step time -----------------------------------------------------------------------------------


def virtual_stage_s(layout: Layout, one: MicroBatch, stage: int) -> tuple[float, float]:
    """Return forward and backward of one virtual stage for one micro-batch."""
    held = layout.stage_layers[stage]
    forward, backward = held * one.layer[0], held * one.layer[1]
    backward += min(held, layout.recompute_layers) * one.again_full_s
    if layout.recompute == "selective":
        backward += held * one.again_core_s
    if stage == 0:
        forward, backward = forward + one.embedding[0], backward + one.embedding[1]
    if stage == len(layout.stage_layers) - 1:
        forward, backward = forward + one.head[0], backward + one.head[1]
    return forward, backward


def rank_s(layout: Layout, one: MicroBatch, rank: int) -> tuple[float, float]:
    stages = range(rank, layout.pp * layout.vpp, layout.pp)
    times = [virtual_stage_s(layout, one, stage) for stage in stages]
    return sum(t[0] for t in times), sum(t[1] for t in times)


def closed_flush_s(problem: Problem, layout: Layout, one: MicroBatch) -> float:
    """Return m t_max + (sum of the others) / v, and the point-to-point time that shows."""
    p, v, m = layout.pp, layout.vpp, layout.n_micro
    times = [sum(rank_s(layout, one, rank)) for rank in range(p)]
    slowest = max(times)
    flush = m * slowest + (sum(times) - slowest) / v
    if p == 1:
        return flush
    crossings = {
        "gpipe": 2 * (p - 1),
        "1f1b": max(2 * (p - 1) * (1 + m / p) - 2, 2 * (p - 1)),
        "interleaved": 2 * (p * v - 1),
    }
    return flush + crossings[layout.schedule] * hop_s(problem, layout, one.message)


def straggler(problem: Problem, layout: Layout) -> float:
    nodes = max(1.0, layout.n_devices / problem.pool.devices_per_node)
    if nodes <= 1:
        return 1.0
    slowest = NormalDist().inv_cdf((nodes - 0.375) / (nodes + 0.25))
    return 1.0 + problem.stack.node_spread * slowest


def exposed_once_s(total: float, piece: float, window: float, layout: Layout) -> float:
    v, groups = layout.vpp, min(layout.pp, layout.n_micro)
    chunk = total / v - window / v
    overall = total - window / v * (1 + groups * (v - 1))
    return min(total, max(piece, chunk, overall))


def exposed_each_s(total: float, piece: float, window: float) -> float:
    return min(total, piece + max(0.0, total - piece - window))


def data_parallel_s(problem: Problem, layout: Layout, one: MicroBatch, rank: int) -> float:
    """Return what data parallelism adds to the step on one rank: exposed, and slowed compute."""
    stack, recipe, zero, m = problem.stack, problem.job.recipe, layout.zero, layout.n_micro
    params = rank_params(problem, layout, rank)
    pieces = n_pieces(problem, layout, params, rank)
    group = place(problem, layout.dp, layout.tp)
    reduce_one = all_gather_s if zero else all_reduce_s
    reduce_piece = reduce_one(problem, group, recipe.grad_wire_bytes * params / pieces)
    gather_piece = 0.0
    if zero:
        gather_piece = all_gather_s(problem, group, recipe.param_wire_bytes * params / pieces)
    reduce, gather = pieces * reduce_piece, pieces * gather_piece
    if not stack.dp_overlap:
        return reduce * (m if zero >= 2 else 1) + gather * (2 * m if zero == 3 else 1)
    forward, backward = rank_s(layout, one, rank)
    if zero <= 1:
        exposed = exposed_once_s(reduce, reduce_piece, backward, layout)
        exposed += exposed_once_s(gather, gather_piece, forward, layout)
        total = reduce + gather
    elif zero == 2:
        exposed = m * exposed_each_s(reduce, reduce_piece, backward)
        exposed += exposed_once_s(gather, gather_piece, forward, layout)
        total = m * reduce + gather
    else:
        exposed = m * exposed_each_s(gather, gather_piece, forward)
        exposed += m * exposed_each_s(gather + reduce, reduce_piece, backward)
        total = m * (2 * gather + reduce)
    return exposed + stack.overlap_slowdown * max(0.0, total - exposed)


def n_pieces(problem: Problem, layout: Layout, params: float, rank: int) -> int:
    """Return the calls per pass: buckets, or layers with ZeRO 2 and 3 (an end is one more)."""
    stack = problem.stack
    if layout.zero >= 2:
        return rank_layers(layout, rank) + 1
    if not stack.dp_overlap:
        return 1
    bucket = max(stack.bucket_params, stack.bucket_params_per_rank * layout.dp)
    return max(1, math.ceil(params / bucket))


def optimizer_s(problem: Problem, layout: Layout) -> float:
    """Return the update on the rank with the most parameters."""
    params = max(rank_params(problem, layout, rank) for rank in range(layout.pp))
    g, shards = problem.job.recipe.grad_bytes, layout.dp if layout.zero else 1
    zero_grads, norm, clip = g / (layout.dp if layout.zero >= 2 else 1), g, 2 * g
    adam, cast = g + 12 + 12, 4 + 2
    return params * (zero_grads + (norm + clip + adam + cast) / shards) / hbm_rate(problem)


def tied_embedding_s(problem: Problem, layout: Layout) -> float:
    """Return the sum of the tied matrix's gradient over first and last stage."""
    if not problem.shape.tied or layout.pp == 1:
        return 0.0
    rows = padded_vocab(problem, layout.tp) / layout.tp
    size = problem.job.recipe.grad_wire_bytes * rows * problem.shape.hidden
    return all_reduce_s(problem, ends_group(problem, layout), size)


def ends_group(problem: Problem, layout: Layout) -> Group:
    """Place first and last stage by looking where each pair of devices really is."""
    pool, stride = problem.pool, layout.tp * layout.dp * (layout.pp - 1)

    def some_cross(unit: int) -> bool:
        return any(r // unit != (r + stride) // unit for r in range(layout.tp * layout.dp))

    if not some_cross(pool.scale_up_domain):
        return Group(2, 2, 1, 2 * nic_rate(problem), extra_hop_s(problem), 0)
    wire, climbs = nic_rate(problem), 1
    over = 1.0
    for level, tier in enumerate(problem.fabric.tiers, start=2):
        over *= tier.oversubscription
        if some_cross(tier.n_nodes * pool.devices_per_node):
            wire, climbs = min(wire, nic_rate(problem) / over), level
    return Group(2, 1, 2, wire, extra_hop_s(problem), climbs)


def outside_pipeline_s(problem: Problem, layout: Layout, one: MicroBatch) -> float:
    data = max(data_parallel_s(problem, layout, one, rank) for rank in range(layout.pp))
    once = optimizer_s(problem, layout) + tied_embedding_s(problem, layout)
    return data + once + problem.stack.fixed_step_s


# The exact pipeline --------------------------------------------------------------------------


def program(layout: Layout, rank: int) -> list[tuple[str, int, int]]:
    """Return the blocks of one rank in order: ("F" or "B", virtual stage, micro-batch)."""
    p, v, m = layout.pp, layout.vpp, layout.n_micro
    if layout.schedule == "interleaved":
        assert m % p == 0
        slots = [(k // p % v, k // (p * v) * p + k % p) for k in range(m * v)]
        warm_up = 2 * (p - rank - 1) + (v - 1) * p
    else:
        slots = [(0, k) for k in range(m)]
        warm_up = m if layout.schedule == "gpipe" else p - rank - 1
    forwards = [("F", chunk * p + rank, micro) for chunk, micro in slots]
    backwards = [("B", (v - 1 - chunk) * p + rank, micro) for chunk, micro in slots]
    blocks = forwards[:warm_up]
    for forward in forwards[warm_up:]:
        blocks += [forward, backwards.pop(0)]
    return blocks + backwards


def simulated_flush_s(problem: Problem, layout: Layout, one: MicroBatch) -> float:
    """Run every block as soon as its rank is free and its input has arrived."""
    n_stages = layout.pp * layout.vpp
    times = [virtual_stage_s(layout, one, stage) for stage in range(n_stages)]
    hops = hops_s(problem, layout, one.message)
    todo = [program(layout, rank)[::-1] for rank in range(layout.pp)]
    free, end = [0.0] * layout.pp, {}

    def arrival(kind: str, stage: int, micro: int) -> float | None:
        if kind == "F":
            return 0.0 if stage == 0 else late(end.get(("F", stage - 1, micro)), stage - 1)
        if stage == n_stages - 1:
            return end.get(("F", stage, micro))
        return late(end.get(("B", stage + 1, micro)), stage)

    def late(time: float | None, lower_stage: int) -> float | None:
        return None if time is None else time + hops[lower_stage % layout.pp]

    while any(todo):
        before = len(end)
        for rank, blocks in enumerate(todo):
            while blocks and (at := arrival(*blocks[-1])) is not None:
                kind, stage, micro = blocks.pop()
                free[rank] = max(free[rank], at) + times[stage][0 if kind == "F" else 1]
                end[kind, stage, micro] = free[rank]
        assert len(end) > before, "the schedule deadlocks"
    return max(free)
