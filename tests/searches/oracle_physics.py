"""The costs of one plan a second time: scalars, `math`, one function per term, no numpy.

Written from the docstrings of `costmodels`, sharing none of its formulas: only the plain data
types and two fitted constants come from there. Every pipeline rank is priced, where the package
prices kinds of rank.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist

from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.stacks import StackProfile
from tests.searches import oracle_graphs as graphs
from tests.searches import oracle_offload as offload
from tests.searches import oracle_optimizers as optimizers
from tests.searches import oracle_tuning as tuning

PROTOCOLS = ("ll", "ll128", "simple")
ELEMENT_BYTES = {"fp8": 1.0, "fp4": 0.5625, "tf32": 4.0, "fp32": 4.0}
KEPT_INPUT = {
    "fp8-delayed": 1.0,
    "fp8-tensorwise": 1.0,
    "fp8-rowwise": 1.0,
    "fp8-blockwise": 1.03125,
    "fp8-mxfp8": 1.03125,
    "nvfp4": 0.5625,
}
"""Bytes of an input that a linear layer of Transformer Engine keeps, with its scale."""
TWO_LAYOUTS = {"fp8-blockwise": 2.0, "fp8-mxfp8": 2.0625, "nvfp4": 1.125}
"""Bytes of both layouts of a weight; the others have one or two of 1 byte."""
WIRE = {"fp8-mxfp8": 2.0, "nvfp4": 0.5}
"""Bytes of a weight that is gathered quantised, 1 otherwise."""


def low_share(problem: Problem) -> float:
    """Return the share of the layers whose linear layers are quantised."""
    if problem.job.precision not in KEPT_INPUT:
        return 0.0
    return 1 - min(1.0, sum(problem.job.bf16_layers) / problem.shape.layers)


def kept_input(problem: Problem) -> float:
    """Return the bytes of an input that a linear layer keeps, mean over the layers."""
    if number_bytes(problem) == 4 or not problem.stack.quantized_copies:
        return number_bytes(problem)
    y = low_share(problem)
    return 2.0 * (1 - y) + y * KEPT_INPUT.get(problem.job.precision, 2.0)


def weight_copies(problem: Problem, linear: float, zero: int) -> float:
    """Return what quantised weights of linear layers take more than 16-bit ones."""
    job = problem.job
    if job.precision not in KEPT_INPUT or zero == 3 or not problem.stack.quantized_copies:
        return 0.0
    blackwell = problem.pool.accelerator.generation in ("blackwell", "blackwell-ultra", "rubin")
    each = TWO_LAYOUTS.get(job.precision, 1.0 if blackwell else 2.0)
    return low_share(problem) * linear * (each - (2.0 if job.fp8_param_gather else 0.0))


def gathered_bytes_of(problem: Problem, params: float, linear: float) -> float:
    """Return the bytes of `params` weights in a gather, `linear` of them of linear layers."""
    job, whole = problem.job, problem.job.recipe.param_wire_bytes * params
    if not job.fp8_param_gather or not problem.stack.quantized_copies:
        return whole
    return whole - low_share(problem) * linear * (2.0 - WIRE.get(job.precision, 1.0))


def layer_weights(problem: Problem, tp: int) -> float:
    """Return the weights of the linear layers of a dense layer."""
    shape = problem.shape
    h, q, f = shape.hidden, shape.heads * shape.head_dim, shape.ffn
    heads = h * (q / tp + 2 * kv_width_per_rank(problem, tp)) + q / tp * h
    return heads + (3 if shape.gated else 2) * h * f / tp


# Parameters ----------------------------------------------------------------------------------


def number_bytes(problem: Problem) -> float:
    """Return the width of an activation: fp32 jobs have 4 bytes, all others 16 bits."""
    return 4.0 if problem.job.precision == "fp32" else 2.0


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
    own = shape.per_layer.vocab * shape.per_layer.width * shape.layers if shape.per_layer else 0
    return rows * shape.hidden + own / tp + stream_params(problem)


def stream_params(problem: Problem) -> int:
    """Return the matrices that make further residual streams; as many join them."""
    shape = problem.shape
    return shape.hidden * shape.hidden * (shape.per_layer.streams - 1) if shape.per_layer else 0


def head_params(problem: Problem, tp: int, pp: int) -> float:
    shape = problem.shape
    final_norm = shape.hidden * (1 if shape.norm == "rmsnorm" else 2)
    shares_the_embedding = shape.tied and pp == 1
    return (final_norm + stream_params(problem)) + (
        0 if shares_the_embedding else padded_vocab(problem, tp) * shape.hidden / tp
    )


def rank_layers(layout: Layout, rank: int) -> int:
    return sum(layout.stage_layers[rank :: layout.pp])


def rank_params(problem: Problem, layout: Layout, rank: int) -> float:
    """Return what a rank trains."""
    if tuning.is_tuned(problem):
        return rank_layers(layout, rank) * tuning.params(problem, layout.tp)
    return held_params(problem, layout, rank)


def frozen_bytes(problem: Problem, layout: Layout, rank: int) -> float:
    """Return the frozen weights of a rank, whole; 0 where all are trained."""
    if not tuning.is_tuned(problem):
        return 0.0
    linear = rank_layers(layout, rank) * layer_weights(problem, layout.tp)
    return tuning.frozen_bytes(problem, held_params(problem, layout, rank), linear)


def held_params(problem: Problem, layout: Layout, rank: int) -> float:
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


@cache
def spread(n_ranks: int, unit: int, stride: int, n_devices: int) -> tuple[int, int]:
    """Return (fewest ranks in a unit, most units touched) by looking at every group.

    Everything lies in the one unit that holds all devices; otherwise there are as many groups as
    it takes to start at every possible place of a unit.
    """
    if n_ranks == 1 or unit >= n_devices:
        return n_ranks, 1
    blocks = {group * n_ranks * stride % unit for group in range(unit)}
    residues = {residue % unit for residue in range(stride)}
    fewest, most = n_ranks, 1
    for start in {(block + residue) % unit for block in blocks for residue in residues}:
        units = Counter((start + i * stride) // unit for i in range(n_ranks))
        fewest, most = min(fewest, *units.values()), max(most, len(units))
    return fewest, most


def place(problem: Problem, n_ranks: int, stride: int) -> Group:
    pool = problem.pool
    return place_by(problem, n_ranks, lambda unit: spread(n_ranks, unit, stride, pool.n_devices))


def pipelines_inside(layout: Layout) -> bool:
    return layout.rank_order == "tp-cp-ep-pp-dp" and layout.pp > 1


def next_stage(layout: Layout) -> int:
    """Return how far the next stage of a pipeline is in rank order."""
    return layout.tp * layout.cp * (1 if pipelines_inside(layout) else layout.dp)


@cache
def spread_of_copies(
    tp: int, cp: int, pp: int, n_members: int, step: int, unit: int, n_devices: int
) -> tuple[int, int]:
    """Return what `spread` does for some of the copies of a stage with pipelines inside.

    Copy i is cp rank i % cp of data-parallel rank i // cp, whose pipelines begin tp cp pp ranks
    after those of the one before. A group has every `step`th copy, `n_members` of them; it takes
    as many groups as reach every possible place of a unit.
    """
    if n_members == 1 or unit >= n_devices:
        return n_members, 1
    fewest, most = n_members, 1
    for block, k in itertools.product(range(unit * cp), range(step)):
        copies = [block * n_members * step + k + j * step for j in range(n_members)]
        for stage, o in itertools.product(range(pp), range(tp)):
            ranks = [((i // cp) * pp + stage) * cp * tp + i % cp * tp + o for i in copies]
            units = [rank // unit for rank in ranks]
            fewest = min(fewest, *(units.count(u) for u in units))
            most = max(most, len(set(units)))
    return fewest, most


def place_copies(problem: Problem, layout: Layout, n_members: int, step: int) -> Group:
    """Place the groups of every `step`th of the dp cp ranks that hold the same weights."""
    if not pipelines_inside(layout):
        return place(problem, n_members, layout.tp * step)
    degrees, n = (layout.tp, layout.cp, layout.pp, n_members, step), problem.pool.n_devices
    return place_by(problem, n_members, lambda unit: spread_of_copies(*degrees, unit, n))


def place_by(problem: Problem, n_ranks: int, spread: Callable[[int], tuple[int, int]]) -> Group:
    pool = problem.pool
    per_domain, n_domains = spread(pool.scale_up_domain)
    wire = per_domain * nic_rate(problem)
    share, climbs = nic_rate(problem), int(n_domains > 1)
    for level, tier in enumerate(problem.fabric.tiers, start=2):
        share /= tier.oversubscription
        unit = tier.n_nodes * pool.devices_per_node
        inside, units = spread(unit)
        if units > 1:
            wire, climbs = min(wire, inside * share), level
    return Group(n_ranks, per_domain, n_domains, wire, extra_hop_s(problem), climbs)


def extra_hop_s(problem: Problem) -> float:
    return 0.0 if problem.fabric.rail_optimized else 1e-6


def linked_share(problem: Problem, g: int) -> float:
    """Return the share of a device's links that lead to the others of g in its domain."""
    links = problem.pool.accelerator.n_peer_links
    domain = problem.pool.scale_up_domain
    peers = max(1, min(links, domain - 1))
    if domain // 2 < links < domain - 1 and 2 * g == domain:  # half of a hybrid cube mesh
        return g / peers
    return min(peers, max(1, g - 1)) / peers


def by_tensor_share(problem: Problem, group: Group) -> float:
    """Return the share of its wire that a group has with one blocking call per tensor."""
    others = problem.pool.scale_up_domain / group.per_domain if group.n_domains > 1 else 1.0
    return min(1.0, problem.stack.tensor_wire_frac * max(1.0, others))


def inside_rate(problem: Problem, group: Group, protocol: int) -> float:
    up, part = problem.pool.scale_up, problem.pool.accelerator
    rate = part.ring_bytes_per_s
    if part.n_peer_links:  # a link to every peer, of which a group has those to its own members
        rate *= linked_share(problem, group.per_domain)
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
    outside = group.n_domains - 1
    if outside and problem.pool.nic.lockstep:
        outside = group.n_ranks - 1
    inside = group.n_ranks - 1 - outside
    out_hop = problem.pool.nic.ring_hop_s[protocol] + group.extra_hop_s
    return inside * problem.pool.scale_up.ring_hop_s[protocol] + outside * out_hop


def all_gather_s(problem: Problem, group: Group, n: float) -> float:
    """Return the time of an all-gather or a reduce-scatter of `n` bytes."""
    p = group.n_ranks
    if p == 1 or not n:
        return 0.0
    found = []
    for protocol in range(3):
        latency = problem.pool.scale_up.ring_base_s[protocol] + ring_hops_s(
            problem, group, protocol
        )
        rate = bus_rate(problem, group, protocol)
        found.append(latency + (p - 1) / p * n / rate)
    if group.per_domain == 1 and group.n_domains > 1:
        hop = (problem.pool.nic.ring_hop_s[2] + group.extra_hop_s) / 3.5
        latency = 8e-6 + math.log2(p) * hop + 2.8e-6 * p
        found.append(latency + (p - 1) / p * n / (0.75 * bus_rate(problem, group, 2)))
    return min(found)


def broadcast_s(problem: Problem, group: Group, n: float) -> float:
    if group.n_ranks == 1 or not n:
        return 0.0
    return min(
        problem.pool.scale_up.ring_base_s[protocol]
        + ring_hops_s(problem, group, protocol)
        + n / bus_rate(problem, group, protocol)
        for protocol in range(3)
    )


def all_reduce_s(problem: Problem, group: Group, n: float) -> float:
    if group.n_ranks == 1 or not n:
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
    """Return the time of a message over each boundary, the last from rank p - 1 back to 0.

    Every pipeline is looked at, and the slowest counts.
    """
    stride, p = next_stage(layout), layout.pp
    over_nodes = layout.tp / problem.pool.scale_up_domain
    late = (
        problem.stack.stalled_message_s if problem.stack.blocking_p2p and over_nodes > 2 else 0.0
    )
    firsts = [block + o for block in range(0, layout.n_devices, p * stride) for o in range(stride)]

    def seconds(boundary: int) -> float:
        start, end = boundary * stride, (boundary + 1) % p * stride
        wires = [one_hop(problem, start + o, end + o, stride) for o in firsts]
        latency = max(wire[0] for wire in wires)
        return late + latency + message_bytes * max(wire[1] for wire in wires)

    return [seconds(boundary) for boundary in range(p)]


def one_hop(problem: Problem, sender: int, receiver: int, stride: int) -> tuple[float, float]:
    """Return latency and seconds per byte from one device to another."""
    pool = problem.pool
    if sender // pool.scale_up_domain == receiver // pool.scale_up_domain:
        pair = pool.accelerator.ring_bytes_per_s / (pool.accelerator.n_peer_links or 1)
        return pool.scale_up.p2p_latency_s, 1 / pair
    rate = over = nic_rate(problem)
    for tier in problem.fabric.tiers:
        over /= tier.oversubscription
        unit = tier.n_nodes * pool.devices_per_node
        if sender // unit != receiver // unit:
            rate = min(rate, over * max(1, unit // stride))
    return pool.nic.p2p_latency_s + extra_hop_s(problem), 1 / rate


def hop_s(problem: Problem, layout: Layout, message_bytes: float) -> float:
    """Return the hop of the closed form: the slowest (1F1B) or the mean by use (interleaved)."""
    if layout.pp == 1:
        return 0.0
    hops = hops_s(problem, layout, message_bytes)
    if layout.vpp == 1:
        return max(hops[:-1])
    uses = [layout.vpp] * (layout.pp - 1) + [layout.vpp - 1]
    return sum(n * hop for n, hop in zip(uses, hops, strict=True)) / sum(uses)


def gemm_s(
    problem: Problem, precision: str, m: float, k: float, n: float, rate_frac: float = 1.0
) -> float:
    part = problem.pool.accelerator
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


def summed_gradient_s(problem: Problem, product_s: float, weights: float) -> float:
    """Return a weight gradient with its sum into those of the micro-batches before."""
    wide = min(4.0, problem.job.recipe.grad_bytes)
    if problem.stack.fused_wgrad:
        return math.sqrt(product_s**2 + (2 * wide * weights / hbm_rate(problem)) ** 2)
    return product_s + (2 + 2 * wide) * weights / hbm_rate(problem)


def in_bf16(problem: Problem) -> Problem:
    """Return the same job with linear layers in bf16 and gradients as wide."""
    wide = problem.job.recipe.grad_bytes == 4
    job = replace(problem.job, precision="bf16" if wide else "bf16-grads", grad_dtype="")
    return replace(problem, job=replace(job, fp8_param_gather=False, bf16_layers=(0, 0)))


def products(problem: Problem, tokens: float, sizes: list[tuple[float, float]]) -> Products:
    """Return the products of the body, with the casts of what fp8 recipes quantise."""
    if any(problem.job.bf16_layers) and (y := low_share(problem)):
        job = replace(problem.job, bf16_layers=(0, 0))
        low = products(replace(problem, job=job), tokens, sizes)
        wide = products(in_bf16(problem), tokens, sizes)
        return Products(
            *(
                y * getattr(low, x) + (1 - y) * getattr(wide, x)
                for x in ("forward", "dgrad", "wgrad")
            )
        )
    recipe = problem.job.recipe
    precision, frac = recipe.linear_precision or recipe.gemm_precision, recipe.linear_rate_frac
    cast = recipe.cast_bytes * tokens / hbm_rate(problem)
    if tuning.is_tuned(problem):
        wide = sum(tuning.widening_s(problem, k * n) for k, n in sizes)
        return Products(
            sum(gemm_s(problem, precision, tokens, k, n, frac) + cast * k for k, n in sizes)
            + wide,
            sum(gemm_s(problem, precision, tokens, n, k, frac) + cast * n for k, n in sizes)
            + wide,
            0.0,
        )
    wgrad = frac * problem.pool.accelerator.efficiency.wgrad_frac
    return Products(
        sum(gemm_s(problem, precision, tokens, k, n, frac) + cast * k for k, n in sizes),
        sum(gemm_s(problem, precision, tokens, n, k, frac) + cast * n for k, n in sizes),
        sum(
            summed_gradient_s(problem, gemm_s(problem, precision, k, tokens, n, wgrad), k * n)
            for k, n in sizes
        ),
    )


def with_adapters(
    problem: Problem, tokens: float, tp: int, plain: Products, names: list[str]
) -> Products:
    """Return products of linear layers with those of their adapters, operators included."""
    forward, dgrad, wgrad = plain.forward, plain.dgrad, plain.wgrad
    precision = problem.job.recipe.gemm_precision
    slower = problem.pool.accelerator.efficiency.wgrad_frac
    for name in names:
        for k, n in tuning.adapter(problem, name, tp):
            forward += gemm_s(problem, precision, tokens, k, n)
            dgrad += gemm_s(problem, precision, tokens, n, k)
            wgrad += gemm_s(problem, precision, k, tokens, n, slower)
        ahead, back = tuning.operator_bytes(problem, name, tp)
        forward += tokens * ahead / hbm_rate(problem)
        dgrad += tokens * back / hbm_rate(problem)
    return Products(forward, dgrad, wgrad)


def column_products(problem: Problem, tokens: float, tp: int) -> Products:
    shape = problem.shape
    qkv = shape.heads * shape.head_dim / tp + 2 * kv_width_per_rank(problem, tp)
    up = (2 if shape.gated else 1) * shape.ffn / tp
    plain = products(problem, tokens, [(shape.hidden, qkv), (shape.hidden, up)])
    if not tuning.is_tuned(problem):
        return plain
    names = tuning.named(problem, column=True, mlp=False)
    return with_adapters(problem, tokens, tp, plain, names)


def row_products(problem: Problem, tokens: float, tp: int) -> Products:
    shape = problem.shape
    q = shape.heads * shape.head_dim / tp
    plain = products(problem, tokens, [(q, shape.hidden), (shape.ffn / tp, shape.hidden)])
    if not tuning.is_tuned(problem):
        return plain
    names = tuning.named(problem, column=False, mlp=False)
    return with_adapters(problem, tokens, tp, plain, names)


def softmax_is_fused(problem: Problem, tokens: float, tp: int) -> bool:
    """Tell whether a micro-batch's score matrices on a rank come in fours, as the kernel asks."""
    matrices = round(problem.shape.heads / tp * tokens / problem.job.seq_len)
    return problem.stack.fused_softmax and matrices % 4 == 0


def attention_s(
    problem: Problem, tokens: float, tp: int, kernels: int = 1, blocks: int = 1
) -> tuple[float, float]:
    """Return the core in `kernels`, each over the keys of one of `blocks` of a sequence."""
    shape, part, s = problem.shape, problem.pool.accelerator, problem.job.seq_len
    eff, peaks = part.efficiency, part.peak_flops_per_s
    wanted = "fp16" if problem.job.recipe.gemm_precision == "fp16" else "bf16"
    peak = peaks.get(wanted, peaks["fp16"])
    if problem.job.fp8_attention:
        peak = 0.9 * peaks["fp8"]
    causal_flops = 2.0 * s * shape.heads * shape.head_dim / tp * tokens
    if not shape.flash_attention:
        rate = peak * eff.gemm_frac * 0.5
        per_score = 4.0 if softmax_is_fused(problem, tokens, tp) else 24.0
        per_score += 4.0 if shape.dropout else 0.0
        scores = per_score * shape.heads / tp * s * tokens / hbm_rate(problem)
        outside_products = scores + 4 * eff.kernel_latency_s
        return (
            2 * causal_flops / rate + outside_products,
            4 * causal_flops / rate + outside_products,
        )
    forward_frac, backward_frac = eff.attention_frac[attention_kernel(problem)]
    tiles = shape.heads / tp * (tokens / s) * math.ceil(s / 128)
    keys, launches = s / blocks, kernels * eff.kernel_latency_s
    rate = peak * keys / (keys + eff.attention_seq_half) * min(1.0, tiles / part.n_sms)
    return (
        causal_flops / (rate * forward_frac) + launches,
        2.5 * causal_flops / (rate * backward_frac) + launches,
    )


def attention_kernel(problem: Problem) -> str:
    known = problem.pool.accelerator.efficiency.attention_frac
    for name in problem.stack.attention_kernels:
        if name in known:
            return name
    return min((name for name in known if name != "unfused"), default="unfused")


def norm_is_a_kernel(problem: Problem) -> bool:
    """Tell whether a norm is one kernel: as the model's own code has it, else as the stack."""
    own = None if problem.stack.fused_activation else problem.shape.operators
    return own.norm == "kernel" if own and own.norm else problem.stack.fused_norms


def norm_besides(problem: Problem) -> float:
    """Return what a norm keeps beside a kernel's, bytes of an element in 16 bits."""
    if norm_is_a_kernel(problem):
        return 0.0
    own = problem.shape.operators
    if own and own.norm == "scaled":
        return 4.0 + 2.0
    return 10.0 if problem.stack.norm_keeps == "product" else 4.0


def columns_kept(problem: Problem) -> float:
    """Return what an MLP keeps of one column of its inner width in 16 bits, bytes."""
    shape, named = problem.shape, ""
    if shape.operators:
        named = shape.operators.activation
    if named == "relu":  # its output alone, and of a gate both and their product
        return 6.0 if shape.gated else 2.0
    kept = 6.0 if shape.gated else 4.0
    if problem.stack.keeps == "products":
        return kept - 2.0
    if not problem.stack.fused_activation:
        kept += 2.0 * shape.gated + (2.0 + 2.0 + 2.0) * (named == "gelu_new")
    return kept


def elementwise_s(problem: Problem, tokens: float, tp: int, sp: bool) -> tuple[float, float]:
    shape = problem.shape
    norm = 1 if norm_is_a_kernel(problem) else 5
    masks = 2 if shape.dropout else 0
    width = shape.hidden / (tp if sp else 1)
    rotary = 0.0
    if shape.positions == "rope":
        rotary = 4 * (shape.heads * shape.head_dim / tp + kv_width_per_rank(problem, tp))
    forward = (8 * norm + 12 + masks) * width + rotary + (6 if shape.gated else 4) * shape.ffn / tp
    backward = (
        (12 * norm + 8 + masks) * width + rotary + (10 if shape.gated else 6) * shape.ffn / tp
    )
    rate = hbm_rate(problem) / problem.stack.elementwise_factor
    launches = 6 * problem.pool.accelerator.efficiency.kernel_latency_s
    return tokens * forward / rate + launches, tokens * backward / rate + launches


@dataclass(frozen=True)
class End:
    """Embedding or head for one micro-batch: forward, backward, and the collectives in both."""

    forward: float
    backward: float
    comm: float


def embedding_s(problem: Problem, tokens: float, tp: int, sp: bool) -> End:
    """Return the lookup and its gradient, with the collectives of both, half on each side."""
    shape, latency = problem.shape, problem.pool.accelerator.efficiency.kernel_latency_s
    mask = 3.0 / (tp if sp else 1) if shape.dropout else 0.0
    unit, x = tokens * shape.hidden / hbm_rate(problem), number_bytes(problem) * tokens
    x *= shape.hidden
    comm = 2 * tp_gather_s(problem, tp, x) if sp else tp_reduce_s(problem, tp, x)
    if tuning.is_tuned(problem):  # the table is frozen
        return End((4 + mask) * unit + latency + comm / 2, 0.0, comm / 2)
    return End(
        (4 + mask) * unit + latency + comm / 2, (8 + mask) * unit + latency + comm / 2, comm
    )


def head_s(problem: Problem, tokens: float, tp: int, sp: bool) -> End:
    """Return final norm, head and loss, with their collectives."""
    shape, stack, part = problem.shape, problem.stack, problem.pool.accelerator
    recipe, vocab = problem.job.recipe, padded_vocab(problem, tp)
    precision, columns, rate, cast = recipe.gemm_precision, vocab / tp, 1.0, 0.0
    if problem.job.fp8_output:
        precision, rate = "fp8", recipe.linear_rate_frac
        cast = recipe.cast_bytes * tokens / hbm_rate(problem)
    per_logit = (5.0 if stack.fused_loss else 14.0) * stack.elementwise_factor
    logits = columns if stack.logits_sharded else vocab
    loss = tokens * (logits * per_logit + 10.0 * shape.hidden) / hbm_rate(problem) / 2
    loss += 4 * part.efficiency.kernel_latency_s
    forward = gemm_s(problem, precision, tokens, shape.hidden, columns, rate) + loss
    forward += cast * shape.hidden
    backward = gemm_s(problem, precision, tokens, columns, shape.hidden, rate) + loss
    backward += cast * columns
    wgrad_frac = rate * part.efficiency.wgrad_frac
    if not tuning.is_tuned(problem):
        backward += gemm_s(problem, precision, shape.hidden, tokens, columns, wgrad_frac)
    x = number_bytes(problem) * tokens * shape.hidden
    ahead = tp_gather_s(problem, tp, x) if sp else 0.0
    if stack.logits_sharded:
        calls = 2 if stack.fused_loss else 3  # the last two of three numbers a token in one
        ahead += calls * tp_reduce_s(problem, tp, 12.0 * tokens / calls)
    else:
        ahead += tp_gather_s(problem, tp, number_bytes(problem) * tokens * vocab)
    after = tp_gather_s(problem, tp, x) if sp else tp_reduce_s(problem, tp, x)
    return End(forward + ahead, backward + after, ahead + after)


# Tensor parallelism --------------------------------------------------------------------------


def tp_gather_s(problem: Problem, tp: int, n: float) -> float:
    """Return the time of an all-gather or reduce-scatter: wire, and waiting for the last rank."""
    return all_gather_s(problem, place(problem, tp, 1), n) + problem.stack.tp_hop_s * (tp - 1)


def tp_reduce_s(problem: Problem, tp: int, n: float) -> float:
    return all_reduce_s(problem, place(problem, tp, 1), n) + 2 * problem.stack.tp_hop_s * (tp - 1)


def tp_traffic_s(
    problem: Problem, tokens: float, tp: int, sp: bool, column: Products, row: Products
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return (all, exposed) of forward and of backward of one layer."""
    stack, x = problem.stack, number_bytes(problem) * tokens * problem.shape.hidden
    gather, reduce = tp_gather_s(problem, tp, x), tp_reduce_s(problem, tp, x)
    if not sp:
        both = 2 * reduce
        exposed = both if stack.tp_overlap == "none" else max(0.0, both - column.wgrad)
        return (both, both), (both, exposed)
    regather = 2 * gather if stack.sp_regather else 0.0
    forward, backward = 4 * gather, 4 * gather + regather
    if stack.tp_overlap == "none":
        return (forward, forward), (backward, backward)
    behind = max(0.0, 2 * gather - column.wgrad) + max(0.0, regather - column.dgrad)
    if stack.tp_overlap == "bulk" or place(problem, tp, 1).n_domains > 1:
        return (forward, forward), (backward, behind + 2 * gather)
    if stack.tp_overlap == "pieces":
        ahead, after = column.forward + row.forward, column.total + row.total
        after -= ahead
        return (
            (forward, forward / 2 + in_pieces(forward / 2, ahead / 2, tp)),
            (backward, backward / 2 + in_pieces(backward / 2, after / 2, tp)),
        )
    piped = in_pieces(2 * gather, column.forward, tp) + in_pieces(2 * gather, row.forward, tp)
    return (forward, piped), (backward, behind + in_pieces(2 * gather, row.dgrad, tp))


def in_pieces(total: float, window: float, tp: int) -> float:
    return max(total / tp, total - window * (1 - 1 / tp))


def mlp_products(problem: Problem, tokens: float, tp: int) -> tuple[Products, Products]:
    """Return the products up and down."""
    shape = problem.shape
    up = (2 if shape.gated else 1) * shape.ffn / tp
    both = (
        products(problem, tokens, [(shape.hidden, up)]),
        products(problem, tokens, [(shape.ffn / tp, shape.hidden)]),
    )
    if not tuning.is_tuned(problem):
        return both
    names = [tuning.named(problem, column=column, mlp=True) for column in (True, False)]
    first, second = (
        with_adapters(problem, tokens, tp, plain, mine)
        for plain, mine in zip(both, names, strict=True)
    )
    return first, second


def mlp_traffic_s(problem: Problem, tokens: float, tp: int, sp: bool) -> float:
    """Return what one forward of the MLP waits for its collectives: a gather and a reduction."""
    x = number_bytes(problem) * tokens * problem.shape.hidden
    kind = problem.stack.tp_overlap
    if not sp:
        return tp_reduce_s(problem, tp, x)
    gather = tp_gather_s(problem, tp, x)
    if place(problem, tp, 1).n_domains > 1:
        return 2 * gather
    up, down = mlp_products(problem, tokens, tp)
    if kind == "pieces":
        return gather + in_pieces(gather, (up.forward + down.forward) / 2, tp)
    if kind == "userbuffers":
        return in_pieces(gather, up.forward, tp) + in_pieces(gather, down.forward, tp)
    return 2 * gather


def mlp_forward_s(problem: Problem, tokens: float, tp: int, sp: bool) -> float:
    shape, stack = problem.shape, problem.stack
    up, down = mlp_products(problem, tokens, tp)
    norm = (4 if norm_is_a_kernel(problem) else 20) * shape.hidden / (tp if sp else 1)
    activation = (6 if shape.gated else 4) * shape.ffn / tp
    moved = tokens * (norm + activation) * stack.elementwise_factor / hbm_rate(problem)
    launches = 2 * problem.pool.accelerator.efficiency.kernel_latency_s
    return up.forward + down.forward + moved + launches + mlp_traffic_s(problem, tokens, tp, sp)


# Context parallelism -------------------------------------------------------------------------


@dataclass(frozen=True)
class Context:
    """The attention core of one layer and what its ranks exchange; (forward, backward) seconds."""

    core: tuple[float, float]
    """With what puts its parts together."""
    total: tuple[float, float]
    exposed: tuple[float, float]
    kept: float = 0.0
    buffers: float = 0.0


def context(problem: Problem, layout: Layout, tokens: float) -> Context:
    """Return the attention of a layer; with cp 1 nothing is exchanged."""
    if layout.cp == 1:
        return Context(attention_s(problem, tokens, layout.tp), (0.0, 0.0), (0.0, 0.0))
    exchange = {"p2p": ring, "all-gather": gathered, "a2a": ulysses}[layout.cp_comm]
    return exchange(problem, layout, tokens)


def widths(problem: Problem, tp: int) -> tuple[float, float]:
    """Return the widths of a rank's queries and keys."""
    shape = problem.shape
    return shape.heads * shape.head_dim / tp, kv_width_per_rank(problem, tp)


def with_memory_traffic(
    problem: Problem, core: tuple[float, float], moved: tuple[float, float], n: tuple[int, int]
) -> tuple[float, float]:
    """Return the core with bytes moved and kernels launched forward and backward besides."""
    latency = problem.pool.accelerator.efficiency.kernel_latency_s
    return (
        core[0] + moved[0] / hbm_rate(problem) + n[0] * latency,
        core[1] + moved[1] / hbm_rate(problem) + n[1] * latency,
    )


def neighbour_s(problem: Problem, group: Group, size: float) -> float:
    """Return a message to the next rank of a ring."""
    pool = problem.pool
    if group.n_domains == 1:
        pair = pool.accelerator.ring_bytes_per_s / (pool.accelerator.n_peer_links or 1)
        return pool.scale_up.p2p_latency_s + size / pair
    return pool.nic.p2p_latency_s + size / (group.wire / group.per_domain)


def ring(problem: Problem, layout: Layout, tokens: float) -> Context:
    """Walk around the ring step by step: a step is as long as its kernel or its messages."""
    c, (q, k) = layout.cp, widths(problem, layout.tp)
    group = place(problem, c, layout.tp)
    core = attention_s(problem, tokens, layout.tp, c, c)
    number = number_bytes(problem)
    block = 2 * number * tokens * k  # keys and values
    ahead = [block] * (c - 1) + [0.0]
    behind = [block] + [2 * block] * (c - 2) + [block]
    spans = []
    for sizes, kernel in ((ahead, core[0] / c), (behind, core[1] / c)):
        taken = [neighbour_s(problem, group, size) if size else 0.0 for size in sizes]
        spans.append((sum(taken), sum(max(0.0, t - kernel) for t in taken)))
    (all_ahead, late_ahead), (all_behind, late_behind) = spans
    moved = (0.75 * c * 6 * q * tokens, 0.75 * c * 6 * (q + 2 * k) * tokens)
    return Context(
        with_memory_traffic(problem, core, moved, (c, 3 * c)),
        (all_ahead, all_behind),
        (late_ahead, late_behind),
        buffers=2 * 4 * number * tokens * k + 2 * number * tokens * (q + 2 * k),
    )


def gathered(problem: Problem, layout: Layout, tokens: float) -> Context:
    c, (q, k) = layout.cp, widths(problem, layout.tp)
    group = place(problem, c, layout.tp)
    one = all_gather_s(problem, group, c * number_bytes(problem) * tokens * k)
    one += problem.stack.tp_hop_s * (c - 1)
    pair = 2 * c * tokens * k  # elements of gathered keys and values
    core = attention_s(problem, tokens, layout.tp, kernels=2)
    total = (2 * one, 2 * one + 2 * one)
    return Context(
        with_memory_traffic(problem, core, (4.0 * pair, (4 + 4 + 6) * pair), (2, 6)),
        total,
        total,
        buffers=number_bytes(problem) * (2 * pair + tokens * q),
    )


def ulysses(problem: Problem, layout: Layout, tokens: float) -> Context:
    c, (q, k) = layout.cp, widths(problem, layout.tp)
    group = place(problem, c, layout.tp)
    hop = problem.stack.tp_hop_s * (c - 1)
    number = number_bytes(problem)
    passes = [all_to_all_s(problem, group, number * tokens * w) + hop for w in (q, k, k, q)]
    moved = 2 * 4.0 * tokens * (q + k + k + q)
    core = attention_s(problem, tokens, layout.tp)
    return Context(
        with_memory_traffic(problem, core, (moved, moved), (8, 8)),
        (sum(passes), sum(passes)),
        (sum(passes), sum(passes)),
        kept=number * tokens * q,
        buffers=2 * number * tokens * (q + 2 * k),
    )


def all_to_all_s(problem: Problem, group: Group, n: float) -> float:
    """Return the time in which each rank sends 1/P of its n bytes to every other."""
    pool, p, g = problem.pool, group.n_ranks, group.per_domain
    part = pool.accelerator
    up = part.ring_bytes_per_s
    if part.n_peer_links:
        up *= linked_share(problem, g)
    hops = (g - 1) * pool.scale_up.ring_hop_s[0]
    hops += (p - g) * (pool.nic.ring_hop_s[0] + group.extra_hop_s)
    slower = max((g - 1) / p * n / up, (p - g) / p * n / (group.wire / g))
    if not n:
        return 0.0
    return pool.scale_up.ring_base_s[2] + hops + slower


# One layer -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MicroBatch:
    """Times and bytes of one micro-batch for one (tp, cp, exchange, mbs, sp)."""

    layer: tuple[float, float]
    """Forward and backward, all of the next six in them."""
    linear_s: float
    attention_s: float
    elementwise_s: float
    host_s: float
    tp_exposed: tuple[float, float]
    tp_hidden_s: float
    cp_exposed: tuple[float, float]
    cp_hidden_s: float
    embedding: End
    head: End
    again_full_s: float
    again_core_s: float
    again_mlp_s: float
    """Norm, both products, activation and the collectives around them."""
    again_mlp_tp_s: float
    """What of it waits for the collectives."""
    kept: float
    scores: float
    """What recomputing the attention core saves of it."""
    of_mlp: float
    """What recomputing the MLP saves of it."""
    checkpoint: float
    temporaries: float
    pool: float
    """What CUDA graphs hold."""
    logits: float
    embedding_bytes: float
    message: float
    away: offload.Away
    """What modules have on the host."""
    copies: tuple[float, float]
    """What the layer waits for them, in `layer`."""


def micro_batch(problem: Problem, layout: Layout) -> MicroBatch:
    shape, stack, tp, sp = problem.shape, problem.stack, layout.tp, layout.sp
    tokens = layout.mbs * problem.job.seq_len / layout.cp
    width = tokens * shape.hidden / (tp if sp else 1)
    column, row = column_products(problem, tokens, tp), row_products(problem, tokens, tp)
    cp = context(problem, layout, tokens)
    attention = cp.core
    elementwise = elementwise_s(problem, tokens, tp, sp)
    tp_forward, tp_backward = tp_traffic_s(problem, tokens, tp, sp, column, row)
    again = column.forward + row.forward + attention[0] + elementwise[0] + tp_forward[1]
    again += cp.exposed[0]
    hidden = [total - exposed for total, exposed in zip(cp.total, cp.exposed, strict=True)]
    forward = again + stack.overlap_slowdown * (tp_forward[0] - tp_forward[1] + hidden[0])
    backward = column.dgrad + column.wgrad + row.dgrad + row.wgrad + attention[1] + elementwise[1]
    backward += tp_backward[1] + stack.overlap_slowdown * (tp_backward[0] - tp_backward[1])
    backward += cp.exposed[1] + stack.overlap_slowdown * hidden[1]
    launch = graphs.dense_launch_s(layout, launch_s(problem, tp))
    temporaries = temporary_bytes(problem, tokens, tp, cp.buffers)
    host = paced_s(problem, launch, forward + backward) - (forward + backward)
    scattered = sp or stack.p2p_scatter
    alone = (forward + host / 3, backward + host * 2 / 3)
    away = offload.away(problem, layout, offload_widths(problem, tp))
    copies = offload.waits(problem, away.copied, alone)
    return MicroBatch(
        layer=(alone[0] + copies[0], alone[1] + copies[1]),
        away=away,
        copies=copies,
        linear_s=column.total + row.total,
        attention_s=sum(attention),
        elementwise_s=sum(elementwise),
        host_s=host,
        tp_exposed=(tp_forward[1], tp_backward[1]),
        tp_hidden_s=tp_forward[0] - tp_forward[1] + tp_backward[0] - tp_backward[1],
        cp_exposed=cp.exposed,
        cp_hidden_s=sum(hidden),
        embedding=embedding_s(problem, tokens, tp, sp),
        head=head_s(problem, tokens, tp, sp),
        again_full_s=paced_s(problem, launch / 3, again),
        again_core_s=attention[0] + cp.exposed[0],
        again_mlp_s=mlp_forward_s(problem, tokens, tp, sp),
        again_mlp_tp_s=mlp_traffic_s(problem, tokens, tp, sp),
        kept=layer_activation_bytes(problem, tokens, tp, sp, scores=True) + cp.kept - away.freed,
        scores=layer_activation_bytes(problem, tokens, tp, sp, scores=True)
        - layer_activation_bytes(problem, tokens, tp, sp, scores=False),
        of_mlp=mlp_activation_bytes(problem, tokens, tp, sp),
        checkpoint=number_bytes(problem) * width,
        temporaries=temporaries,
        pool=graphs.pool_bytes(layout, temporaries),
        logits=logit_bytes(problem, tokens, tp) + 2 * number_bytes(problem) * width,
        embedding_bytes=tokens * 8.0 + (width if shape.dropout else 0.0),
        message=number_bytes(problem) * tokens * shape.hidden / (tp if scattered else 1),
    )


def offload_widths(problem: Problem, tp: int, rows: float = 0.0) -> offload.Widths:
    """Return the widths of what modules save, for a layer with `rows` of routed experts."""
    kept, number = kept_input(problem), number_bytes(problem)
    delayed = problem.job.precision == "fp8-delayed" and problem.stack.quantized_copies
    down = number
    if number == 2.0 and kept < number:  # both first projections keep a copy
        down = 2.0 * (1 - low_share(problem)) + 2.0 * (kept - 2.0 * (1 - low_share(problem)))
    return offload.Widths(
        number=number,
        kept=kept,
        down=down,
        again=low_share(problem) if delayed else 0.0,
        kv=kv_width_per_rank(problem, tp),
        rows=rows,
    )


def paced_s(problem: Problem, launch: float, device: float) -> float:
    """Return how long kernels take with their launches; far ahead, the host hides the shorter."""
    if problem.stack.launches_ahead:
        return max(launch, device)
    return math.sqrt(launch * launch + device * device)


def launch_s(problem: Problem, tp: int) -> float:
    """Return the host's time for one layer; without collectives to launch it is shorter."""
    stack = problem.stack
    alone = 0.6 if stack.launches_collectives else 1.0
    parts = 2.2 if problem.shape.kv_rank else 1.0  # of latent attention
    parts *= tuning.kernels(problem) if tuning.is_tuned(problem) else 1.0
    return stack.host_s_per_layer * parts * (1.0 if tp > 1 else alone)


# Memory --------------------------------------------------------------------------------------


def layer_activation_bytes(
    problem: Problem, tokens: float, tp: int, sp: bool, scores: bool
) -> float:
    shape, stack, q = problem.shape, problem.stack, problem.shape.heads * problem.shape.head_dim
    kv = kv_width_per_rank(problem, tp)
    number = number_bytes(problem)
    full_width = 4 * number + (2.0 if shape.dropout else 0.0)
    if not stack.fused_norms:  # in fp32 only the scaled input is a tensor of its own
        full_width += 20.0 if number == 2.0 else 8.0
    kept = kept_input(problem)
    full_width -= 2 * (number - kept)  # what QKV and the MLP take
    if stack.keeps == "products":
        full_width -= 2 * number
    per_token = full_width * shape.hidden / (tp if sp else 1)
    if problem.job.precision == "fp8-delayed" and stack.quantized_copies:
        per_token += low_share(problem) * q / tp  # attention's output a second time
    if sp and not stack.sp_regather:  # two gathered inputs, of which a shard is counted above
        per_token += 2 * number * shape.hidden * (tp - 1) / tp
    per_token += 2 * number * (q / tp + kv)
    per_token += ((2 if shape.gated else 1) * number + kept) * shape.ffn / tp
    if stack.keeps == "products":
        per_token -= number * shape.ffn / tp
    if not stack.fused_activation:
        per_token += number * shape.ffn / tp if shape.gated else 0.0
    if shape.flash_attention:
        per_token += 4.0 * shape.heads / tp
    elif scores:
        per_score = 2 * number + (1.0 if shape.dropout else 0.0)
        per_score += 0.0 if softmax_is_fused(problem, tokens, tp) else 4.0
        per_token += per_score * shape.heads * problem.job.seq_len / tp
    if tuning.is_tuned(problem):
        for part in ("attention", "mlp"):
            shared, own = tuning.freed(problem, tp, part)
            per_token -= shared / (tp if sp else 1) + own
    return tokens * per_token


def logit_bytes(problem: Problem, tokens: float, tp: int) -> float:
    """Return what the loss holds; gathered logits are whole and exist a second time."""
    vocab, per_logit = padded_vocab(problem, tp), problem.stack.logit_bytes
    if problem.stack.logits_sharded:
        return tokens * vocab / tp * per_logit
    return tokens * vocab * per_logit + gathered_bytes(problem, tokens, tp)


def gathered_bytes(problem: Problem, tokens: float, tp: int) -> float:
    """Return what a gather of the logits takes until the last layer runs backward."""
    gathers = tp > 1 and not problem.stack.logits_sharded
    return 14.0 * tokens * padded_vocab(problem, tp) if gathers else 0.0


def temporary_bytes(problem: Problem, tokens: float, tp: int, exchange: float) -> float:
    """Return gradients of the MLP or, if larger, the exchange, and three full tensors."""
    shape = problem.shape
    number = number_bytes(problem)
    inner = tokens * (3 if shape.gated else 2) * number * shape.ffn / tp
    return max(inner, exchange) + 3 * number * tokens * shape.hidden


def scratch_bytes(problem: Problem, tp: int) -> float:
    """Return one 16-bit weight gradient per linear layer of different shape."""
    shape = problem.shape
    if not problem.stack.fused_wgrad:
        return 0.0
    q, f = shape.heads * shape.head_dim / tp, shape.ffn / tp
    columns = q + 2 * kv_width_per_rank(problem, tp) + q + (2 if shape.gated else 1) * f + f
    return 2.0 * shape.hidden * columns


def n_shards(layout: Layout) -> int:
    """Return the ranks of one ZeRO group."""
    return layout.shard or layout.dp * layout.cp


def state_bytes(problem: Problem, layout: Layout, params: float) -> float:
    recipe, d = problem.job.recipe, n_shards(layout)
    if problem.stack.memory_plan == "phases":  # fp32 weights and moments alone
        weights = 4.0 / (d if layout.zero >= 3 else 1)
        return params * (weights + (recipe.state_bytes - 4.0) / (d if layout.zero else 1))
    weights = recipe.param_bytes / (d if layout.zero >= 3 else 1)
    if problem.stack.sharded_units and layout.zero >= 3 and recipe.param_bytes == 2:
        weights = 0.0
    if layout.hpz > 1:
        weights += recipe.param_bytes / layout.hpz
    copy = 4.0 if recipe.grad_bytes == 6 and recipe.grad_wire_bytes == 2 else 0.0
    kept = recipe.grad_bytes - copy
    if problem.stack.grad_copies == "whole":
        kept, copy = recipe.grad_bytes, 0.0
    elif problem.stack.grad_copies == "alone" and copy:
        kept, copy = 4.0, 0.0
    grads = kept / (d if layout.zero >= 2 else 1)
    states = (recipe.state_bytes + copy) / (d if layout.zero >= 1 else 1)
    if layout.optimizer_offload:
        states = 0.0
        if layout.zero >= 2 and problem.stack.offload_overlap == "gradients":
            grads = 0.0
    return params * (weights + grads + states)


def unsharded_bytes(problem: Problem, layout: Layout) -> float:
    """Return the units that ZeRO 2 (gradients) and 3 (and weights) hold whole."""
    recipe, layer = problem.job.recipe, layer_params(problem, layout.tp)
    if tuning.is_tuned(problem):
        ends = 2.0 * embedding_params(problem, layout.tp)
        layer = tuning.frozen_bytes(problem, layer, layer_weights(problem, layout.tp))
        wide = 2.0 * tuning.largest_linear(problem, layout.tp)
        units = layer + max(layer, ends) if layout.zero >= 3 else 0.0
        most = max(rank_params(problem, layout, rank) for rank in range(layout.pp))
        wide = wide if problem.job.tuning.base != "bf16" else 0.0
        return units + wide + flat_bytes(problem, layout, most)
    units = layer + max(layer, embedding_params(problem, layout.tp))
    grads = recipe.param_wire_bytes if layout.zero >= 2 else 0.0
    most = max(rank_params(problem, layout, rank) for rank in range(layout.pp))
    flat = flat_bytes(problem, layout, most)
    return units * (grads + (recipe.param_bytes if layout.zero >= 3 else 0.0)) + flat


def flat_bytes(problem: Problem, layout: Layout, params: float) -> float:
    """Return the flat tensors of DeepSpeed's optimizer: gathered weights, gradients of a second
    bucket, gradients of the partition (and their cast to fp32)."""
    recipe, wire = problem.job.recipe, 5e8
    casts = recipe.grad_bytes == 6 and recipe.grad_wire_bytes == 2
    if not problem.stack.flat_optimizer or layout.zero == 3:
        return 0.0
    if layout.zero == 0:
        return 4.0 * params if casts else 0.0
    kept = recipe.grad_bytes
    if casts:
        kept = 2.0 if problem.stack.grad_copies == "sharded" else kept
        kept = 4.0 if problem.stack.grad_copies == "alone" else kept
    part = 0.0 if kept == 6 else kept
    part += 4.0 if kept == 2 and not casts else 0.0
    if layout.optimizer_offload:
        part = 0.0
    value = part * params / n_shards(layout)
    value += recipe.param_wire_bytes * params / max(1, int(params / wire))
    return value + recipe.grad_wire_bytes * max(0.0, min(params - wire, wire))


def in_flight(layout: Layout, rank: int) -> float:
    """Return whole-rank micro-batches held at the peak; a chunk counts 1 / vpp."""
    p, v, m = layout.pp, layout.vpp, layout.n_micro
    if layout.schedule == "gpipe":
        return m
    if layout.schedule == "interleaved":
        return min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1) / v
    return min(m, p - rank)


def held_at_peak(layout: Layout, rank: int, chunks: list[float]) -> float:
    """Return the activations of a rank at its peak, bytes; `chunks` are those of a micro-batch.

    Interleaved ranks are stepped through, forward and backward in turn.
    """
    p, v, m = layout.pp, layout.vpp, layout.n_micro
    if layout.schedule != "interleaved" or len(set(chunks)) == 1:
        return in_flight(layout, rank) * sum(chunks)
    order = [chunk for _ in range(m // p) for chunk in range(v) for _ in range(p)]
    warm_up = min(len(order), 2 * (p - rank - 1) + (v - 1) * p)
    held = most = sum(chunks[c] for c in order[:warm_up])
    for k, done in enumerate(order):
        if warm_up + k < len(order):
            held += chunks[order[warm_up + k]]
        most = max(most, held)
        held -= chunks[v - 1 - done]
    return most


def queued_bytes(problem: Problem, layout: Layout, rank: int) -> float:
    """Return the full-width tensors that collectives hold while the launch queue is full."""
    stack, p, v = problem.stack, layout.pp, layout.vpp
    if layout.tp == 1:
        return 0.0
    if p > 1:
        forwards = in_flight(layout, rank) * v - 1
        if forwards * (problem.shape.layers / (p * v) + 1) < 19:
            return 0.0
        if stack.blocking_p2p and place(problem, layout.tp, 1).n_domains > 2:
            return 0.0
    tokens = layout.mbs * problem.job.seq_len / layout.cp
    return stack.queued_tensors * number_bytes(problem) * tokens * problem.shape.hidden


def recomputed_layers(layout: Layout, rank: int) -> int:
    return sum(min(n, layout.recompute_layers) for n in layout.stage_layers[rank :: layout.pp])


def overhead_bytes(problem: Problem, layout: Layout) -> float:
    """Return the context and a buffer for every further communicator that leaves the domain."""
    data = place_copies(problem, layout, layout.dp * layout.cp, 1)
    pipeline = place(problem, layout.pp, next_stage(layout))
    ring_of_keys = place(problem, layout.cp, layout.tp)
    outside = sum(group.n_domains > 1 for group in (data, pipeline, ring_of_keys))
    return problem.stack.context_bytes + outside * problem.stack.communicator_bytes


def mlp_activation_bytes(problem: Problem, tokens: float, tp: int, sp: bool) -> float:
    """Return what the MLP keeps but its norm's input: the norm's output, up, the activation."""
    shape, stack, shards = problem.shape, problem.stack, tp if sp else 1
    number, kept = number_bytes(problem), kept_input(problem)
    per_token = kept * shape.hidden / shards
    if not stack.fused_norms:
        per_token += (10.0 if number == 2.0 else 4.0) * shape.hidden / shards
    if sp and not stack.sp_regather:
        per_token += number * shape.hidden * (tp - 1) / tp
    per_token += ((2 if shape.gated else 1) * number + kept) * shape.ffn / tp
    if shape.gated and not stack.fused_activation:
        per_token += number * shape.ffn / tp
    if tuning.is_tuned(problem):
        shared, own = tuning.freed(problem, tp, "mlp")
        per_token -= shared / shards + own
    return tokens * per_token


def rank_memory(problem: Problem, layout: Layout, one: MicroBatch, rank: int) -> dict[str, float]:
    """Return the memory of one pipeline rank by term.

    The loss's tensors and what the first layer's backward needs for a moment share one place.
    """
    again = recomputed_layers(layout, rank)
    away = layout.activation_offload_layers
    whole_away, inputs_away = (0, away) if layout.recompute == "full" else (away, 0)
    scores = one.scores if "core_attn" in layout.recompute_modules else 0.0
    of_mlp = one.of_mlp if "mlp" in layout.recompute_modules else 0.0
    kept = one.kept - scores - of_mlp
    chunks = []
    for chunk, n in enumerate(layout.stage_layers[rank :: layout.pp]):
        inputs = min(n, layout.recompute_layers)
        if not n and (rank or chunk):
            inputs = 1  # what the stage was sent
        chunks.append((n - min(n, inputs)) * kept + inputs * one.checkpoint)
    chunks[0] -= whole_away * kept + (inputs_away - min(2, inputs_away)) * one.checkpoint
    activations = held_at_peak(layout, rank, chunks)
    if rank == 0:
        activations += in_flight(layout, rank) * one.embedding_bytes
    passing = one.temporaries
    if again:
        passing += one.kept
    else:  # the MLP's part is gone when attention's comes back
        passing += max(scores, of_mlp)
    lasting = scratch_bytes(problem, layout.tp) + one.pool
    if not any(layout.stage_layers[rank :: layout.pp]):
        lasting = passing = 0.0
    lasting += unsharded_bytes(problem, layout)
    lasting += 2.0 * one.message if layout.pp > 1 else 0.0
    lasting += queued_bytes(problem, layout, rank)
    held = in_flight(layout, rank) * rank_layers(layout, rank)
    lasting += offload.on_the_way(one.away.freed, held)
    logits = one.logits if rank == layout.pp - 1 else 0.0
    place_shared = logits
    if not problem.stack.logits_sharded:
        tokens = layout.mbs * problem.job.seq_len / layout.cp
        last = rank == layout.pp - 1
        place_shared = gathered_bytes(problem, tokens, layout.tp) if last else 0.0
    states = state_bytes(problem, layout, rank_params(problem, layout, rank))
    if tuning.is_tuned(problem):
        share = tuning.frozen_share(problem, layout, n_shards(layout))
        states += share * frozen_bytes(problem, layout, rank)
    if optimizers.is_by_matrix(problem):
        states = optimizers.state_bytes(problem, rank_share(problem, layout, rank))
    return {
        "states": states
        + weight_copies(
            problem,
            rank_layers(layout, rank) * layer_weights(problem, layout.tp),
            layout.zero,
        ),
        "activations": activations,
        "logits": logits,
        "working": lasting + max(place_shared, passing) - place_shared,
        "fragmentation": problem.stack.fragmentation_frac * activations,
        "overhead": overhead_bytes(problem, layout),
    }


def rank_bytes(problem: Problem, layout: Layout, one: MicroBatch, rank: int) -> float:
    return sum(rank_memory(problem, layout, one, rank).values())


# Step time -----------------------------------------------------------------------------------


def stalled_s(problem: Problem, layout: Layout, one: MicroBatch) -> float:
    """Return what a layer takes longer because messages to another node block its collectives."""
    if not problem.stack.blocking_p2p or layout.tp == 1:
        return 0.0
    if place(problem, layout.pp, next_stage(layout)).n_domains == 1:
        return 0.0
    over = place(problem, layout.tp, 1).n_domains
    steps = layout.tp + (2 * over if over > 1 else 0)
    least = launch_s(problem, layout.tp) + 8 * steps * problem.stack.stalled_hop_s
    return max(0.0, least - sum(one.layer))


def virtual_stage_s(
    problem: Problem, layout: Layout, one: MicroBatch, stage: int
) -> tuple[float, float]:
    """Return forward and backward of one virtual stage for one micro-batch."""
    held, late = layout.stage_layers[stage], stalled_s(problem, layout, one)
    forward, backward = held * (one.layer[0] + late / 3), held * (one.layer[1] + late * 2 / 3)
    backward += min(held, layout.recompute_layers) * one.again_full_s
    if "core_attn" in layout.recompute_modules:
        backward += held * one.again_core_s
    if "mlp" in layout.recompute_modules:
        backward += held * one.again_mlp_s
    if stage == 0:
        forward, backward = forward + one.embedding.forward, backward + one.embedding.backward
    if stage == len(layout.stage_layers) - 1:
        forward, backward = forward + one.head.forward, backward + one.head.backward
    down, up = copy_waits_s(problem, layout, one)
    return forward + down, backward + up


def activations_on_host(layout: Layout, one: MicroBatch) -> float:
    """Return the bytes of a micro-batch that wait on the host for their backward."""
    each = one.checkpoint if layout.recompute == "full" else one.kept
    return layout.activation_offload_layers * each


def copy_waits_s(problem: Problem, layout: Layout, one: MicroBatch) -> tuple[float, float]:
    """Return what forward and backward of a micro-batch wait for copies of activations."""
    n, layers = layout.activation_offload_layers, problem.shape.layers
    if not n:
        return 0.0, 0.0
    host, kind = problem.pool.host, problem.stack.activation_copies
    copies = activations_on_host(layout, one) / min(host.link_bytes_per_s, host.memory_bytes_per_s)
    forward, backward = one.layer
    if kind == "blocking":
        return copies, copies
    if kind == "windowed" and layout.recompute == "none":
        return (
            waits_of_window(copies / n, forward, layers, n),
            waits_of_window(copies / n, backward, layers, n),
        )
    backward += one.again_full_s * layout.recompute_layers / layers
    down, up = (max(0.0, copies - max(0, layers - 2) * x) for x in (forward, backward))
    return down, copies if kind == "on-demand" else up


def waits_of_window(copy: float, compute: float, layers: int, n: int) -> float:
    """Follow layers and copies one by one: what the last of the layers starts late.

    Of the first n layers the copy of each starts when the layer has ended and the copy before it
    too; the layer that needs its place, `layers - n` further on, waits for its end. The backward
    is the same in a mirror: the last copy up ends when the first layer needs it.
    """
    start, copied = 0.0, []
    for i in range(layers):
        if i >= layers - n:
            start = max(start, copied[i - (layers - n)])
        if i < n:
            copied.append(max([start + compute, *copied[-1:]]) + copy)
        start += compute
    return start - layers * compute


def rank_s(problem: Problem, layout: Layout, one: MicroBatch, rank: int) -> tuple[float, float]:
    stages = range(rank, layout.pp * layout.vpp, layout.pp)
    times = [virtual_stage_s(problem, layout, one, stage) for stage in stages]
    return sum(t[0] for t in times), sum(t[1] for t in times)


def in_turn(p: int, m: int) -> int:
    """Return the messages that 1F1B waits for, counted: a micro-batch after the first waits for
    its way down and up, but for one in every p."""
    return 2 * (p - 1) + sum(2 for i in range(m - 1) if i % p)


def closed_flush_s(problem: Problem, layout: Layout, one: MicroBatch) -> float:
    """Return m t_max + (sum of the others) / v, and the point-to-point time that shows."""
    p, v, m = layout.pp, layout.vpp, layout.n_micro
    times = [sum(rank_s(problem, layout, one, rank)) for rank in range(p)]
    slowest = max(times)
    flush = m * slowest + (sum(times) - slowest) / v
    if p == 1:
        return flush
    crossings = {
        "gpipe": 2 * (p - 1),
        "1f1b": in_turn(p, m),
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


@dataclass(frozen=True)
class Passes:
    """One pass over the parameters of a rank: seconds of the whole and of one piece."""

    reduce: float
    reduce_piece: float
    gather: float
    gather_piece: float
    near: float
    """The same weights again in a step: from the second copy where there is one."""
    near_piece: float


def reduced_bytes(problem: Problem) -> float:
    """Return the bytes of a gradient on the wire."""
    recipe = problem.job.recipe
    narrow = min(recipe.grad_wire_bytes, recipe.param_wire_bytes)
    fixed = {"fp32": 4.0, "weights": narrow}
    return fixed.get(problem.stack.reduce_width, recipe.grad_wire_bytes)


def sums_whole(problem: Problem, zero: int) -> bool:
    """Tell whether every rank gets the whole sum of the gradients."""
    by_matrix = optimizers.is_by_matrix(problem) and not problem.job.muon.param_layout
    return zero == 0 or (zero == 1 and (by_matrix or problem.stack.zero1_reduce == "all-reduce"))


def at_the_end(stack: StackProfile, zero: int) -> tuple[bool, bool]:
    """Tell whether the sum, and the gather, come once a step with nothing beside them."""
    if zero > 1 or stack.sharded_units:
        return False, False
    kind = (stack.dp_overlap, stack.zero1_overlap)[zero]
    return kind == "none", kind != "both"


def all_at_once(problem: Problem, group: Group, late: bool) -> Group:
    """Return the group with the wire left to it where all rings of the cluster meet."""
    if not late or group.n_domains <= 2:
        return group
    return replace(group, wire=group.wire * (2 / group.n_domains) ** problem.pool.nic.ring_decline)


def passes(problem: Problem, layout: Layout, rank: int) -> Passes:
    """Return the reduction of the gradients and the gather of the weights."""
    stack, g = problem.stack, n_shards(layout)
    params = rank_params(problem, layout, rank)
    if optimizers.is_by_matrix(problem):
        params += optimizers.padding(problem, rank_share(problem, layout, rank))
    pieces = n_pieces(problem, layout, params, rank)
    linear = rank_layers(layout, rank) * layer_weights(problem, layout.tp)
    grads = reduced_bytes(problem) * params
    weights = gathered_bytes_of(problem, params, linear)
    group = place_copies(problem, layout, g, 1)
    late_sum, late_gather = at_the_end(stack, layout.zero)
    if sums_whole(problem, layout.zero):
        everyone = place_copies(problem, layout, layout.dp * layout.cp, 1)
        met = all_at_once(problem, everyone, late_sum)
        reduce = pieces * all_reduce_s(problem, met, grads / pieces)
        if layout.zero == 0:
            return Passes(reduce, reduce / pieces, 0.0, 0.0, 0.0, 0.0)
    else:
        copies = place_copies(problem, layout, layout.dp * layout.cp // g, g)
        met = all_at_once(problem, group, late_sum)
        reduce = all_gather_s(problem, met, grads / pieces)
        met = all_at_once(problem, copies, late_sum)
        reduce = pieces * (reduce + all_reduce_s(problem, met, grads / pieces / g))
    gathered, n_reduced = (
        tuning.is_tuned(problem) and tuning.gathers_frozen(problem, layout),
        pieces,
    )
    if gathered:
        weights += frozen_bytes(problem, layout, rank)
        pieces = rank_layers(layout, rank) + (rank == 0) + (rank == layout.pp - 1)
    met = all_at_once(problem, group, late_gather)
    gather = pieces * all_gather_s(problem, met, weights / pieces)
    if layout.zero == 1 and stack.zero1_gather == "broadcast":
        gather = g * broadcast_s(problem, group, weights / g)
    if layout.zero >= 2 and stack.zero3_traffic == "by-tensor":
        share = by_tensor_share(problem, group)
        reduce, gather = reduce / share, gather / share
    near = gather
    if layout.hpz > 1:
        close = place_copies(problem, layout, layout.hpz, 1)
        near = pieces * all_gather_s(problem, close, weights / pieces)
        near /= by_tensor_share(problem, close) if stack.zero3_traffic == "by-tensor" else 1
    piece = reduce / n_reduced
    return Passes(reduce, piece, gather, gather / pieces, near, near / pieces)


def data_parallel_s(
    problem: Problem, layout: Layout, one: MicroBatch, rank: int
) -> tuple[float, float]:
    """Return the (exposed, hidden) data-parallel time of a step on one rank."""
    stack, zero, m = problem.stack, layout.zero, layout.n_micro
    forward, backward = rank_s(problem, layout, one, rank)
    dp = passes(problem, layout, rank)
    reduce = exposed_once_s(dp.reduce, dp.reduce_piece, backward, layout)
    gather = exposed_once_s(dp.gather, dp.gather_piece, forward, layout)
    if zero <= 1:
        overlap = stack.zero1_overlap if zero else stack.dp_overlap
        reduce = dp.reduce if overlap == "none" else reduce
        gather = gather if overlap == "both" else dp.gather
        exposed, total = reduce + gather, dp.reduce + dp.gather
    elif zero == 2:
        gather = gather if stack.zero1_overlap == "both" else dp.gather
        exposed = m * exposed_each_s(dp.reduce, dp.reduce_piece, backward) + gather
        total = m * dp.reduce + dp.gather
    else:
        # The first of 2 m gathers is over all ranks, the others where the second copy is.
        exposed = exposed_each_s(dp.gather, dp.gather_piece, forward)
        exposed += (m - 1) * exposed_each_s(dp.near, dp.near_piece, forward)
        exposed += m * exposed_each_s(dp.near + dp.reduce, dp.reduce_piece, backward)
        total = dp.gather + (2 * m - 1) * dp.near + m * dp.reduce
    if not layout.dp_overlap or (zero >= 2 and stack.zero3_traffic == "by-tensor"):
        exposed = total
    return exposed, max(0.0, total - exposed)


def slowest_data_parallel_s(
    problem: Problem, layout: Layout, one: MicroBatch
) -> tuple[float, float]:
    """Return what data parallelism adds where it adds most: exposed, and slowdown of compute."""
    ranks = [data_parallel_s(problem, layout, one, rank) for rank in range(layout.pp)]
    slowdown = problem.stack.overlap_slowdown
    return max(((e, slowdown * hidden) for e, hidden in ranks), key=sum)


def overlap_is_no_slower(problem: Problem, layout: Layout, least_mbs: int) -> bool:
    """Tell whether that is proven for every micro-batch of a shape, rank by rank.

    Windows are at least the FLOPs of the linear layers at the peak.
    """
    if layout.zero >= 2:
        return True
    stack, shape, v = problem.stack, problem.shape, layout.vpp
    overlap = stack.zero1_overlap if layout.zero else stack.dp_overlap
    on, off = replace(layout, dp_overlap=True), replace(layout, dp_overlap=False)
    h, q, t = shape.hidden, shape.heads * shape.head_dim, layout.tp
    weights = h * (2 * q / t + 2 * kv_width_per_rank(problem, t))
    weights += (3 if shape.gated else 2) * h * shape.ffn / t
    recipe = problem.job.recipe
    peak = problem.pool.accelerator.peak_flops_per_s[
        recipe.linear_precision or recipe.gemm_precision
    ]
    split = layout.schedule not in ("none", "gpipe", "1f1b", "interleaved")
    one = 0.0 if split else 2 * weights * least_mbs * problem.job.seq_len / layout.cp / peak
    for rank in range(layout.pp):
        a, b = passes(problem, on, rank), passes(problem, off, rank)
        window = rank_layers(layout, rank) * one
        reduce, gather = a.reduce, a.gather
        if overlap != "none":
            left = a.reduce - 2 * window
            reduce = min(a.reduce, max(a.reduce_piece, left, left / v))
        if overlap == "both":
            left = a.gather - window
            gather = min(a.gather, max(a.gather_piece, left, left / v))
        hidden = a.reduce + a.gather - reduce - gather
        most = reduce + gather + stack.overlap_slowdown * hidden
        if most > (b.reduce + b.gather) * (1 + 1e-12):
            return False
    return True


def n_pieces(problem: Problem, layout: Layout, params: float, rank: int) -> int:
    """Return the calls per pass: buckets, or layers with ZeRO 2 and 3 (an end is one more)."""
    stack = problem.stack
    if layout.zero >= 2:
        return rank_layers(layout, rank) + 1
    overlap = stack.zero1_overlap if layout.zero else stack.dp_overlap
    if overlap == "none" or not layout.dp_overlap:
        return 1
    bucket = max(stack.bucket_params, stack.bucket_params_per_rank * layout.dp * layout.cp)
    return max(1, math.ceil(params / bucket))


def adam_bytes(problem: Problem) -> float:
    """Return what Adam reads and writes of the states; narrower moments are 8 or 6 bytes."""
    job = problem.job
    if job.optimizer != "adam":
        return 2 * (4 + min(optimizers.STATES[job.optimizer]))
    if job.optimizer_states == "fp32":
        return 24.0
    return 12.0 if has_remainders(problem) else 16.0


def has_remainders(problem: Problem) -> bool:
    """Tell whether 16-bit weights are the upper half of the master copy."""
    bf16 = problem.job.precision in ("bf16", "bf16-grads", "fp8-delayed")
    return bf16 and not problem.job.fp8_param_gather


def optimizer_s(problem: Problem, layout: Layout) -> float:
    """Return the update on the rank with the most parameters."""
    if optimizers.is_by_matrix(problem):
        shares = (rank_share(problem, layout, rank) for rank in range(layout.pp))
        return max(matrix_update_s(problem, layout.tp, share) for share in shares)
    params = max(rank_params(problem, layout, rank) for rank in range(layout.pp))
    g, shards = problem.job.recipe.grad_bytes, n_shards(layout) if layout.zero else 1
    zero_grads, norm, clip = g / (shards if layout.zero >= 2 else 1), g, 2 * g
    adam, cast = g + adam_bytes(problem), 4 + 2
    if layout.optimizer_offload:
        adam = 0
        clip = 0 if problem.stack.offload_overlap == "gradients" else clip
    return params * (zero_grads + (norm + clip + adam + cast) / shards) / hbm_rate(problem)


def rank_share(problem: Problem, layout: Layout, rank: int) -> optimizers.Share:
    """Return what a rank of a dense model shares out."""
    matrices = optimizers.layer_matrices(problem, False, layout.tp) * rank_layers(layout, rank)
    shards = n_shards(layout) if layout.zero else 1
    return optimizers.Share(rank_params(problem, layout, rank), matrices, shards)


def matrix_update_s(problem: Problem, tp: int, share: optimizers.Share) -> float:
    """Return the update of one share where states are of whole matrices."""
    moved = optimizers.update_bytes(problem, share) / hbm_rate(problem)
    ranks = optimizers.holdings(share)
    if problem.job.muon.tp_mode == "layer-sharded" and tp > 1:
        return moved + max(homes_s(problem, tp, held) for held in ranks)
    return moved + max(sum(matrix_s(problem, tp, x) for x in held) for held in ranks)


def homes_s(problem: Problem, tp: int, held: list[optimizers.One]) -> float:
    """Return the time of matrices with one home among the tensor-parallel ranks."""
    cut = [x for x in held if x.cut]
    homes = [*optimizers.homes(cut, tp)]
    work = max(sum(newton_schulz_s(problem, *p) for x in mine for p in x.whole) for mine in homes)
    work += sum(newton_schulz_s(problem, *p) for x in held if not x.cut for p in x.whole)
    sent = 4.0 * sum(x.size for x in cut)
    return work + 2 * all_to_all_s(problem, place(problem, tp, 1), sent)


def newton_schulz_s(problem: Problem, rows: float, columns: float) -> float:
    """Return the steps on one matrix, over the shorter side."""
    return gram_steps_s(problem, min(rows, columns), max(rows, columns))


def gram_steps_s(problem: Problem, g: float, n: float) -> float:
    launch, muon = problem.pool.accelerator.efficiency.kernel_latency_s, problem.job.muon
    first, second = gemm_s(problem, "bf16", g, n, g), gemm_s(problem, "bf16", g, g, g)
    if muon.use_syrk:
        first, second = ((x - launch) / 2 + launch for x in (first, second))
    one = first + second + gemm_s(problem, "bf16", g, g, n)
    return muon.num_ns_steps * one + 12.0 * g * n / hbm_rate(problem)


def matrix_s(problem: Problem, tp: int, one: optimizers.One) -> float:
    """Return the time of one matrix beside its elementwise update."""
    if problem.job.optimizer == "soap":
        part = problem.pool.accelerator
        rate = part.peak_flops_per_s["fp32"] * part.efficiency.gemm_frac
        return optimizers.soap_flops(one.rows, one.columns) / rate
    group, mode, total = place(problem, tp, 1), problem.job.muon.tp_mode, 0.0
    for rows, columns in one.whole:
        if tp == 1 or not one.cut:
            total += newton_schulz_s(problem, rows, columns)
        elif mode == "duplicated":
            total += newton_schulz_s(problem, rows, columns)
            total += all_gather_s(problem, group, 4.0 * rows * columns)
        else:
            kept, split = (columns, rows / tp) if one.cut == "rows" else (rows, columns / tp)
            if mode == "blockwise":
                total += newton_schulz_s(problem, kept, split)
            else:
                total += gram_steps_s(problem, kept, split)
                total += problem.job.muon.num_ns_steps * all_reduce_s(problem, group, 2 * kept**2)
    return total


def offloaded_params(problem: Problem, layout: Layout, rank: int) -> float:
    return rank_params(problem, layout, rank) / (n_shards(layout) if layout.zero else 1)


def host_holds(problem: Problem, layout: Layout) -> bool:
    """Tell whether master, two moments and a gradient in fp32 fit: 90 % of a device's share."""
    most = max(offloaded_params(problem, layout, rank) for rank in range(layout.pp))
    return (4 + 4 + 4 + 4) * most <= 0.9 * problem.pool.host.memory_bytes


def host_holds_all(problem: Problem, layout: Layout, one: MicroBatch) -> bool:
    """Tell whether stored activations fit there too."""
    sends = offload.sent_modules(layout)
    if not layout.activation_offload_layers and not sends:
        return True
    most = activations_on_host(layout, one)
    held = (in_flight(layout, rank) * rank_layers(layout, rank) for rank in range(layout.pp))
    most += one.away.copied * max(held)
    if layout.optimizer_offload:
        ranks = range(layout.pp)
        most += 16 * max(offloaded_params(problem, layout, rank) for rank in ranks)
    return most <= 0.9 * problem.pool.host.memory_bytes


def offload_s(problem: Problem, layout: Layout, one: MicroBatch) -> float:
    """Return the update on the host where it takes longest."""
    if not layout.optimizer_offload:
        return 0.0
    return max(rank_offload_s(problem, layout, one, rank) for rank in range(layout.pp))


def rank_offload_s(problem: Problem, layout: Layout, one: MicroBatch, rank: int) -> float:
    stack, host, m = problem.stack, problem.pool.host, layout.n_micro
    n, leaves = offloaded_params(problem, layout, rank), stack.offload_overlap == "gradients"
    copy = 4 * n / host.link_bytes_per_s
    adam = (4 + 12 + 12 + (8 if leaves else 0)) * n / (0.45 * host.memory_bytes_per_s)
    bucket = max(stack.bucket_params, stack.bucket_params_per_rank * layout.dp * layout.cp)
    pieces = max(1, math.ceil(rank_params(problem, layout, rank) / bucket))
    if not leaves:
        first = (copy + adam + copy) / pieces
        return first + max(copy, adam) / pieces * (pieces - 1)
    backward = rank_s(problem, layout, one, rank)[1]
    if layout.zero < 2:
        return exposed_once_s(copy, copy / pieces, backward, layout) + adam + copy
    part = copy * min(4, problem.job.recipe.grad_bytes) / 4
    sent = [part] + [2 * part] * (m - 2) + [part + copy] if m > 1 else [copy]
    return sum(exposed_each_s(x, copy / pieces, backward) for x in sent) + adam + copy


def tied_embedding_s(problem: Problem, layout: Layout) -> float:
    """Return the sum of the tied matrix's gradient over first and last stage."""
    if not problem.shape.tied or layout.pp == 1 or tuning.is_tuned(problem):
        return 0.0
    rows = padded_vocab(problem, layout.tp) / layout.tp
    size = problem.job.recipe.grad_wire_bytes * rows * problem.shape.hidden
    return all_reduce_s(problem, ends_group(problem, layout), size)


def ends_group(problem: Problem, layout: Layout) -> Group:
    """Place first and last stage by looking where each pair of devices really is."""
    pool, width = problem.pool, next_stage(layout)
    stride = width * (layout.pp - 1)
    blocks = range(0, layout.n_devices, width * layout.pp)
    firsts = [block + r for block in blocks for r in range(width)]

    def some_cross(unit: int) -> bool:
        return any(r // unit != (r + stride) // unit for r in firsts)

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
    data = sum(slowest_data_parallel_s(problem, layout, one))
    once = optimizer_s(problem, layout) + tied_embedding_s(problem, layout)
    once += offload_s(problem, layout, one)
    return data + once + problem.stack.fixed_step_s


def time_terms(problem: Problem, layout: Layout, one: MicroBatch, rank: int) -> dict[str, float]:
    """Return the step time by term as pipeline rank `rank` sees it; their sum is the step."""
    m, held, again = layout.n_micro, rank_layers(layout, rank), recomputed_layers(layout, rank)
    ahead = (one.tp_exposed[0], one.cp_exposed[0])
    cores = held if "core_attn" in layout.recompute_modules else 0
    mlps = held if "mlp" in layout.recompute_modules else 0
    modules = cores * (one.again_core_s - ahead[1])
    modules += mlps * (one.again_mlp_s - one.again_mlp_tp_s)
    ends = [one.embedding] * (rank == 0) + [one.head] * (rank == layout.pp - 1)
    own = {"embedding": 0.0, "head": 0.0}
    if rank == 0:
        own["embedding"] = one.embedding.forward + one.embedding.backward - one.embedding.comm
    if rank == layout.pp - 1:
        own["head"] = one.head.forward + one.head.backward - one.head.comm
    tp = held * sum(one.tp_exposed) + again * one.tp_exposed[0] + sum(end.comm for end in ends)
    tp += mlps * one.again_mlp_tp_s
    cp = held * sum(one.cp_exposed) + (again + cores) * one.cp_exposed[0]
    dp, slowed = slowest_data_parallel_s(problem, layout, one)
    flush = simulated_flush_s(problem, layout, one)
    at_once = simulated_flush_s(problem, layout, one, hops=[0.0] * layout.pp)
    slowdown = problem.stack.overlap_slowdown
    return {
        "linear": m * held * one.linear_s,
        "attention": m * held * one.attention_s,
        "elementwise": m * held * one.elementwise_s,
        "head": m * own["head"],
        "embedding": m * own["embedding"],
        "recompute": m * (again * (one.again_full_s - sum(ahead)) + modules),
        "host": m * held * (one.host_s + stalled_s(problem, layout, one)),
        "experts": 0.0,  # the instances are dense
        "ep": 0.0,
        "tp": m * tp,
        "cp": m * cp,
        "overlap": m * held * slowdown * (one.tp_hidden_s + one.cp_hidden_s) + slowed,
        "pp": flush - at_once + tied_embedding_s(problem, layout),
        "bubble": at_once - m * sum(rank_s(problem, layout, one, rank)),
        "dp": dp,
        "optimizer": optimizer_s(problem, layout),
        "offload": offload_s(problem, layout, one)
        + m * sum(copy_waits_s(problem, layout, one))
        + m * held * sum(one.copies),
        "straggler": (straggler(problem, layout) - 1) * flush,
        "fixed": problem.stack.fixed_step_s,
    }


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


def simulated_flush_s(
    problem: Problem, layout: Layout, one: MicroBatch, hops: list[float] | None = None
) -> float:
    """Run every block as soon as its rank is free and its input has arrived."""
    n_stages = layout.pp * layout.vpp
    times = [virtual_stage_s(problem, layout, one, stage) for stage in range(n_stages)]
    hops = hops or hops_s(problem, layout, one.message)
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
