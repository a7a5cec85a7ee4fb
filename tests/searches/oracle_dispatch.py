"""How tokens reach their experts, and what of it hides: scalars, written from the equations."""

import itertools
from dataclasses import dataclass
from functools import cache

from costmodels.plans import Layout
from costmodels.problem import Problem
from tests.searches import oracle_physics as physics
from tests.searches.oracle_graphs import graph, mode

Pair = tuple[float, float]
"""Forward and backward."""


def dispatcher(problem: Problem, layout: Layout) -> str:
    """Return the dispatcher that a plan runs with: at rest, that of the stack."""
    named = mode(layout, "dispatcher", "alltoall")
    return problem.stack.dispatcher if named == "alltoall" else named


def overlap(layout: Layout) -> str:
    return mode(layout, "ep_overlap", "off")


def all_ranks(problem: Problem, layout: Layout) -> physics.Group:
    """Place the ep etp neighbours that hold all experts between them."""
    return physics.place(problem, layout.ep * layout.etp, 1)


# One exchange --------------------------------------------------------------------------------


@cache
def distinct_parts(n_experts: int, top_k: int, n_groups: int, top_groups: int, n: int) -> float:
    """Return in how many of n equal parts the experts of a token lie, the mean over all draws."""
    size, counts = n_experts // n_groups, []
    for groups in itertools.combinations(range(n_groups), top_groups):
        allowed = [e for e in range(n_experts) if e // size in groups]
        for drawn in itertools.combinations(allowed, top_k):
            counts.append(len({e * n // n_experts for e in drawn}))
    return sum(counts) / len(counts)


def copies(problem: Problem, layout: Layout) -> Pair:
    """Return the copies of a token that stay in the domain, and those that leave it."""
    shape, ranks = problem.shape, layout.ep
    inside = physics.place(problem, ranks, layout.etp).per_domain
    if dispatcher(problem, layout) == "alltoall":
        return shape.top_k * (inside - 1) / ranks, shape.top_k * (ranks - inside) / ranks
    routing = (shape.n_experts, shape.top_k, shape.n_groups, shape.top_groups)
    near = distinct_parts(*routing, ranks) * (ranks - 1) / ranks
    domains = max(1, round(ranks / inside))
    return near, distinct_parts(*routing, domains) * (ranks - inside) / ranks


def synced_s(problem: Problem, launch: float) -> float:
    """Return what of the launches a device always waits for: it has to count rows first."""
    shape, stack = problem.shape, problem.stack
    counts = stack.routes_on_host and shape.n_experts > 1 and not shape.capacity_factor
    return stack.synced_host_share * launch if counts else 0.0


def ordered_rows(
    problem: Problem, layout: Layout, tokens: float, rows: float, load: float
) -> float:
    """Return the rows that are read or written one way to lie by expert, and as they came."""
    shape, several = problem.shape, problem.shape.n_experts > layout.ep
    if dispatcher(problem, layout) in ("alltoall", "allgather"):
        again = rows if several and layout.ep * layout.etp > 1 else 0.0
        return 4 * (tokens * shape.top_k + again)
    routing = (shape.n_experts, shape.top_k, shape.n_groups, shape.top_groups)
    return 2 * (distinct_parts(*routing, layout.ep) * tokens * load + rows)


def chain_bytes(problem: Problem, layout: Layout, width: float) -> Pair | None:
    """Return what a row moves through experts with biases, where operators do it one by one."""
    shape, stack = problem.shape, problem.stack
    apart = stack.kind == "fused" and stack.routes_on_host and graph(layout) != "full_iteration"
    if not (shape.bias and shape.n_experts > 1 and apart):
        return None
    inner = 54 if shape.gated else 34
    return inner * width + 12 * shape.hidden, 2 * inner * width + 24 * shape.hidden


def ring_rate(problem: Problem, group: physics.Group) -> float:
    """Return the ring bandwidth inside a domain without a protocol's share."""
    part = problem.pool.accelerator
    rate: float = part.ring_bytes_per_s
    if part.n_peer_links:
        rate *= physics.linked_share(problem, group.per_domain)
    return rate


def leg_s(problem: Problem, layout: Layout, one_copy_bytes: float) -> float:
    """Return a dispatch or a combine; `one_copy_bytes` is what a device's tokens weigh once."""
    pool, ranks = problem.pool, layout.ep
    if dispatcher(problem, layout) == "allgather":
        group = all_ranks(problem, layout)
        whole = one_copy_bytes * group.n_ranks
        return physics.tp_gather_s(problem, group.n_ranks, whole)
    if ranks == 1:
        return 0.0
    group, (near, far) = physics.place(problem, ranks, layout.etp), copies(problem, layout)
    inside = group.per_domain
    near_s = near * one_copy_bytes / (0.75 * ring_rate(problem, group))
    far_s = far * one_copy_bytes / (0.9 * group.wire / inside)
    hops = (inside - 1) * pool.scale_up.ring_hop_s[0]
    hops += (ranks - inside) * (pool.nic.ring_hop_s[0] + group.extra_hop_s)
    simple = 2
    return pool.scale_up.ring_base_s[simple] + hops + max(near_s, far_s)


def exchange_s(problem: Problem, layout: Layout, tokens: float, load: float) -> float:
    """Return what goes one way: a dispatch, a combine, and over etp a gather and its reverse."""
    wide = 2.0 * problem.shape.hidden * tokens
    if dispatcher(problem, layout) == "allgather":
        return 2 * leg_s(problem, layout, wide)
    wide *= load
    way = 2 * leg_s(problem, layout, wide)
    rows = wide * problem.shape.top_k * layout.etp
    return way + 2 * physics.tp_gather_s(problem, layout.etp, rows)


# Beside another micro-batch ------------------------------------------------------------------


@dataclass(frozen=True)
class Halves:
    """One expert layer: up to the dispatch, and between dispatch and combine."""

    attention: Pair
    experts: Pair
    """Without weight gradients."""
    experts_wgrad: float


@dataclass(frozen=True)
class Beside:
    """What shows of an exchange, and what the hidden rest takes of the compute beside it."""

    exposed: Pair
    hidden: float
    tax: float
    """Each way."""


def beside(problem: Problem, layout: Layout, way_s: float, halves: Halves) -> Beside:
    """Return all of an exchange as it is, or with overlap what its four legs stick out."""
    if overlap(layout) == "off":
        return Beside((way_s, way_s), 0.0, 0.0)
    one = way_s / 2
    windows = {
        "dispatch of the forward": halves.experts[1],
        "combine of the forward": halves.attention[1],
        "combine of the backward": halves.attention[0],
        "dispatch of the backward": halves.experts_wgrad + halves.experts[0],
    }
    waits = [max(0.0, one - window) for window in windows.values()]
    exposed = (waits[0] + waits[1], waits[2] + waits[3])
    hidden = 2 * way_s - sum(exposed)
    return Beside(exposed, hidden, taken_share(problem, layout) * hidden / 2)


def taken_share(problem: Problem, layout: Layout) -> float:
    """Return the share of compute that the kernels of an exchange take."""
    named, part = dispatcher(problem, layout), problem.pool.accelerator
    if named == "deepep":
        return 20 / part.n_sms
    if named == "hybridep":
        group = physics.place(problem, layout.ep, layout.etp)
        return (24 if group.n_domains == 1 else 8) / part.n_sms
    return float(problem.stack.overlap_slowdown)


# Memory --------------------------------------------------------------------------------------


def buffer_bytes(problem: Problem, layout: Layout, tokens: float) -> float:
    """Return the buffers that a dispatcher keeps for all layers."""
    h, n_experts, ranks = problem.shape.hidden, problem.shape.n_experts, layout.ep * layout.etp
    if ranks == 1:
        return 0.0
    if dispatcher(problem, layout) == "deepep":
        steps = ((8, 256), (64, 288), (96, 480), (128, 560))
        chunk = next((tokens for most, tokens in steps if ranks <= most), 720)
        held = min(ranks, 8) * chunk * (2 * h + 2056)
        if ranks > 8:
            held += ranks / 8 * 128 * 2 * (2 * h + 2072)
        return 10.0 * held
    if dispatcher(problem, layout) == "hybridep":
        domains = all_ranks(problem, layout).n_domains
        routes = 4 * n_experts / domains
        held = ranks * (2 * h + routes + h / 32)
        if domains > 1:
            held += 2 * h + 4 * n_experts + h / 32
            held += (domains - 1) * (2 * h + routes + h / 32)
            held += 2 * (domains - 1) * (2 * h + routes)
        return tokens * held
    return 0.0


def temporaries(problem: Problem, layout: Layout, tokens: float, eager_bytes: float) -> float:
    """Return the temporaries of experts: with room to spare, twice, and all tokens gathered."""
    held = eager_bytes
    if graph(layout) == "full_iteration" and not problem.shape.capacity_factor:
        held *= 1.5
    if overlap(layout) != "off":
        held *= 2
    if mode(layout, "dispatcher", "alltoall") == "allgather":
        held += 4.0 * problem.shape.hidden * tokens * layout.ep * layout.etp
    return held
