"""Time of a collective: latency by steps, bandwidth by protocol, the best algorithm.

Every time is base + steps * hop + bytes / bandwidth with the figures of one wire protocol (LL,
LL128, Simple); the fastest protocol and algorithm wins, which gives the size-dependent bandwidth
that measurements show. `size_bytes` is the whole logical tensor: the gathered array of an
all-gather, the input of a reduce-scatter, the buffer of an all-reduce.

Source of the form and the constants: NCCL 2.30 src/graph/tuning.cc; checked in the tests against
published nccl-tests tables. Left out: congestion, NCCL's tree correction factors (64 B to 256 MB)
and per-channel tree caps, so an all-reduce across nodes below 1 GiB comes out too fast; over racks
of more than 16 devices it runs as a ring, as published runs do.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.comm.placement import Group
from hardware.parts import PROTOCOLS, Pool

Floats = NDArray[np.float64]

SIMPLE = PROTOCOLS.index("simple")
LL, LL128 = PROTOCOLS.index("ll"), PROTOCOLS.index("ll128")

ONE = 1.0
PLATEAU_FACTOR = 1.4
"""Growth of the latency of a ring all-reduce over several nodes with the Simple protocol."""
TREE_FRAC = 0.92
"""Share of the ring's wire bandwidth that the double binary tree reaches."""
IN_SWITCH_LATENCY_S = 25e-6
IN_SWITCH_NET_HOP_S = 18e-6
IN_NETWORK_LATENCY_S = 31e-6
"""One pass through summing switches of the scale-out network (NCCL's CollNetDirect)."""
RACK_LATENCY_S_PER_RANK = 9.3e-6
"""In-switch sums of more than a node's ranks: what each rank above eight adds (fitted to the
all-reduces of 72 GB200 in CoreWeave's nccl-tests: 0.62 ms beside the bandwidth)."""
NODE_RANKS, LARGEST_NODE = 8, 16
"""Ranks of an HGX node, and of the largest node (DGX-2): a domain above is a rack."""
PAT_BASE_S, PAT_PER_RANK_S, PAT_HOP_SHARE, PAT_FRAC = 8e-6, 2.8e-6, 1 / 3.5, 0.75
"""The logarithmic all-gather of one-rank-per-node groups (NCCL's PAT)."""


def inside_bytes_per_s(group: Group, pool: Pool) -> Floats:
    """Return what the ranks of a group in one domain reach there, one-way per rank.

    B_ring behind a switch. With a link to each of L peers, the g ranks have g - 1 of them:
    B_ring min(1, (g - 1)/L), so two MI300X get 1/7 of what eight get. A domain of n <= L devices
    has its links shared out over the n - 1 peers, L = n - 1: two of four V100 get 1/3. One of more
    than L + 1 is a hybrid cube mesh: in each half every pair has a link, some have two, so that
    every device has n/2 in its half and the others to its place in the other half: four of
    eight V100 get 4/6, two 1/6.

    Source: the wiring (AMD publishes seven equal links; V100 has six, in nodes of eight the mesh
    that `nvidia-smi topo -m` prints on a DGX-1, in nodes of four two to each peer); checked by
    all-reduces on two and eight MI300X, and by published runs of eight V100, whose groups of two
    are as slow as that. Left out: rings that reach their peers by way of devices outside the
    group; pairs of a cube mesh that have two links.
    """
    part = pool.accelerator
    if not part.n_peer_links:
        return np.asarray(part.ring_bytes_per_s)
    domain, per_domain = pool.scale_up_domain, group.ranks_per_domain
    largest = max(1, min(part.n_peer_links, domain - 1))
    n_links = np.clip(per_domain - 1, 1.0, largest)
    if domain - 1 > part.n_peer_links > domain // 2:
        n_links = np.where(per_domain == domain // 2, domain / 2, n_links)
    return np.asarray(part.ring_bytes_per_s * (n_links / largest))


def _bus_bytes_per_s_inside(group: Group, pool: Pool, protocol: int) -> Floats:
    result: Floats = np.minimum(
        inside_bytes_per_s(group, pool) * pool.scale_up.protocol_frac[protocol],
        pool.scale_up.protocol_bytes_per_s[protocol],
    )
    return result


def _bus_bytes_per_s(
    group: Group, pool: Pool, protocol: int, fewer: Floats | float = ONE
) -> Floats:
    """Return the ring bus bandwidth of `protocol`, one-way per rank; outside over `fewer`."""
    inside = _bus_bytes_per_s_inside(group, pool, protocol)
    outside = np.minimum(
        group.wire_bytes_per_s * pool.nic.protocol_frac[protocol],
        pool.nic.protocol_bytes_per_s[protocol],
    )
    if fewer is not ONE:
        outside = outside / fewer
    limit = np.where(group.ranks_per_domain > 1, np.minimum(inside, outside), outside)
    return np.where(group.n_domains > 1, limit, inside)


def _over_racks(group: Group, pool: Pool) -> NDArray[np.bool_]:
    """Return where a group spans several racks, in which all-reduces run as plain rings.

    Published all-reduces over 2 and 20 NVL72 racks (CoreWeave, NCCL 2.26) follow the latency of a
    ring through all ranks; trees and in-switch sums would be up to five times as fast.
    """
    return np.asarray((group.n_domains > 1) & (pool.scale_up_domain > LARGEST_NODE))


def _ring_latency_s(group: Group, pool: Pool, protocol: int, rounds: float) -> Floats:
    """Return base + hops of a ring that goes `rounds` times around the group.

    A hop between domains costs the scale-out link's latency; where that link is `lockstep`, every
    hop of a ring that leaves the domain does.
    """
    inside, outside = pool.scale_up.ring_hop_s[protocol], pool.nic.ring_hop_s[protocol]
    far = group.n_ranks if pool.nic.lockstep else group.n_domains
    out_hops = np.where(group.n_domains > 1, far - 1, 0.0)
    in_hops = group.n_ranks - 1 - out_hops
    hops = in_hops * inside + out_hops * (outside + group.extra_hop_s)
    return pool.scale_up.ring_base_s[protocol] + rounds * hops


def _best(times: list[Floats], group: Group) -> Floats:
    best = times[0]
    for other in times[1:]:
        best = np.minimum(best, other)
    return np.where(group.n_ranks > 1, best, 0.0)


def ring_all_gather_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of a ring all-gather (and of a ring reduce-scatter), seconds.

    t = base + (P - 1) hops + (P - 1)/P n / B

    B outside the domain is divided by (k/2)^x over k > 2 domains, x the link's `ring_decline`:
    0.4 on EFA, 0 elsewhere. Source: Thakur, Rabenseifner and Gropp, IJHPCA 2005; constants of
    NCCL; x fitted to published runs.
    """
    n, ranks = np.asarray(size_bytes, dtype=np.float64), group.n_ranks
    fewer: Floats | float = ONE
    if np.any(pool.nic.ring_decline):
        fewer = np.maximum(1.0, group.n_domains / 2.0) ** pool.nic.ring_decline
    sent = (ranks - 1) / ranks * n
    return _best(
        [
            _ring_latency_s(group, pool, p, 1.0) + sent / _bus_bytes_per_s(group, pool, p, fewer)
            for p in range(len(PROTOCOLS))
        ],
        group,
    )


def logarithmic_all_gather_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of a recursive-doubling all-gather (or -halving reduce-scatter), seconds.

    t = base + log2(P) hop/3.5 + 2.8 us P + (P - 1)/P n / (0.75 B), infinite unless every rank is
    alone in its domain: the form and constants of NCCL's PAT, which exists for that case only.
    """
    n, ranks = np.asarray(size_bytes, dtype=np.float64), group.n_ranks
    hop = (pool.nic.ring_hop_s[SIMPLE] + group.extra_hop_s) * PAT_HOP_SHARE
    wire = PAT_FRAC * _bus_bytes_per_s(group, pool, SIMPLE)
    constants = PAT_BASE_S + PAT_PER_RANK_S * ranks
    time = pool.nic.latency_factor * constants + np.log2(ranks) * hop
    time = time + (ranks - 1) / ranks * n / wire
    alone = (group.ranks_per_domain == 1) & (group.n_domains > 1)
    return np.where(ranks > 1, np.where(alone, time, np.inf), 0.0)


def ring_all_reduce_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of a ring all-reduce, seconds: a reduce-scatter, then an all-gather.

    t = base + 2 (P - 1) hops + 2 (P - 1)/P n / B
    """
    n, ranks = np.asarray(size_bytes, dtype=np.float64), group.n_ranks
    sent, times = 2 * (ranks - 1) / ranks * n, []
    for p in range(len(PROTOCOLS)):
        latency = _ring_latency_s(group, pool, p, 2.0)
        if p == SIMPLE:
            latency = np.where(group.n_domains > 1, PLATEAU_FACTOR, 1.0) * latency
        times.append(latency + sent / _bus_bytes_per_s(group, pool, p))
    return _best(times, group)


def tree_all_reduce_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of a double-binary-tree all-reduce, seconds.

    t = base + 2 [ (g - 1) hop_in + log2(k) hop_out ] + 2 n / (0.92 B); g ranks per domain, k
    domains; LL loses 3.8, LL128 9/7 (one domain) or 128/120 more bandwidth. Infinite over racks.
    """
    n = np.asarray(size_bytes, dtype=np.float64)
    several, levels = group.n_domains > 1, np.log2(group.n_domains)
    total, times = TREE_FRAC * _bus_bytes_per_s(group, pool, SIMPLE), []
    for p in range(len(PROTOCOLS)):
        inside, outside = pool.scale_up.tree_hop_s[p], pool.nic.tree_hop_s[p] + group.extra_hop_s
        hops = (group.ranks_per_domain - 1) * inside + levels * outside
        wire = total / 3.8 if p == LL else total
        wire = wire * np.where(several, 120 / 128, 7 / 9) if p == LL128 else wire
        times.append(pool.scale_up.tree_base_s[p] + 2 * hops + 2 * n / wire)
    best = _best(times, group)
    return np.where((group.n_ranks > 1) & _over_racks(group, pool), np.inf, best)


def hierarchical_all_reduce_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of an all-reduce summed inside the switches, seconds.

    Inside one domain: latency + 2 (P - 1)/P n / B_switch. Over k domains (reduce-scatter inside,
    tree all-reduce of n/g between them, all-gather inside, pipelined): latency
    + 2 log2(k) hop + 2 (k - 1)/k (n/g) / (B_wire/g), or the inner part if that is slower.
    Infinite where the part has no in-switch reduction, the group is below its least size, or it
    spans several racks. The latency is 25 us for a node and 9.3 us more for every further rank.
    Source: NCCL's NVLS and NVLSTree latencies; published all-reduces of a rack.
    """
    n, ranks = np.asarray(size_bytes, dtype=np.float64), group.n_ranks
    part = pool.accelerator
    if not np.any(part.in_switch_all_reduce_bytes_per_s):
        return np.where(ranks > 1, np.inf, 0.0)
    g, k = group.ranks_per_domain, group.n_domains
    inner = 2 * (g - 1) / g * n / part.in_switch_all_reduce_bytes_per_s
    outer = 2 * (k - 1) / k * n / group.wire_bytes_per_s
    near, far = pool.scale_up.latency_factor, pool.nic.latency_factor
    hop = far * IN_SWITCH_NET_HOP_S + group.extra_hop_s
    latency = near * IN_SWITCH_LATENCY_S + 2 * np.log2(k) * hop
    latency = latency + near * RACK_LATENCY_S_PER_RANK * np.maximum(g - NODE_RANKS, 0.0)
    time = latency + np.maximum(inner, outer)
    reached = (g >= part.in_switch_min_ranks) & ~_over_racks(group, pool)
    return np.where(ranks > 1, np.where(reached, time, np.inf), 0.0)


def in_network_all_reduce_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of an all-reduce that the network's switches sum, seconds.

    t = latency + max( inside part, n / B_wire ): every rank sends n/g up and gets the sum back
    once, where a ring sends 2 (k - 1)/k n/g. The part inside a domain is that of the in-switch sum
    of the scale-up link (then 25 + 18 us), else a ring's reduce-scatter and all-gather (its base,
    2 (g - 1) hops and 31 us). Infinite inside one domain, and above the tiers that sum.

    Source: NCCL's NVLS and CollNet latencies; volumes of SHARP's streaming aggregation. Left out:
    how many groups a switch can serve at once.
    """
    n, ranks, part = np.asarray(size_bytes, dtype=np.float64), group.n_ranks, pool.accelerator
    if not pool.n_summing_tiers:
        return np.where(ranks > 1, np.inf, 0.0)
    g, rate = group.ranks_per_domain, part.in_switch_all_reduce_bytes_per_s
    outer = n / group.wire_bytes_per_s
    ring = 2 * (g - 1) / g * n / _bus_bytes_per_s_inside(group, pool, SIMPLE)
    hops = pool.scale_up.ring_base_s[SIMPLE] + 2 * (g - 1) * pool.scale_up.ring_hop_s[SIMPLE]
    far = pool.nic.latency_factor
    time = hops + far * IN_NETWORK_LATENCY_S + np.maximum(ring, outer)
    if np.any(rate):
        both = np.maximum(2 * (g - 1) / g * n / rate, outer)
        near = pool.scale_up.latency_factor * IN_SWITCH_LATENCY_S
        both = both + (near + far * IN_SWITCH_NET_HOP_S)
        time = np.where(g >= part.in_switch_min_ranks, np.minimum(time, both), time)
    reached = (group.n_domains > 1) & (group.tier <= pool.n_summing_tiers)
    return np.where(ranks > 1, np.where(reached, time + group.extra_hop_s, np.inf), 0.0)


def all_to_all_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of a direct all-to-all, seconds; `size_bytes` is what each rank holds.

    t = (P - 1) launches pipelined + max( inside share / B_ring, outside share / B_nic )
    """
    n, ranks = np.asarray(size_bytes, dtype=np.float64), group.n_ranks
    inside = (group.ranks_per_domain - 1) / ranks * n / inside_bytes_per_s(group, pool)
    outside = (ranks - group.ranks_per_domain) / ranks * n / pool.nic_bytes_per_s
    hops = (group.ranks_per_domain - 1) * pool.scale_up.ring_hop_s[LL]
    hops = hops + (ranks - group.ranks_per_domain) * pool.nic.ring_hop_s[LL]
    time = pool.scale_up.ring_base_s[SIMPLE] + hops + np.maximum(inside, outside)
    return np.where(ranks > 1, time, 0.0)


def pipelined_ring_broadcast_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of a broadcast or a reduce, pipelined around a ring: (P - 1) hops + n/B."""
    n = np.asarray(size_bytes, dtype=np.float64)
    return _best(
        [
            _ring_latency_s(group, pool, p, 1.0) + n / _bus_bytes_per_s(group, pool, p)
            for p in range(len(PROTOCOLS))
        ],
        group,
    )


def direct_gather_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of a gather to (or scatter from) one rank; its own link is the limit."""
    n, ranks = np.asarray(size_bytes, dtype=np.float64), group.n_ranks
    one_link = np.where(group.n_domains > 1, pool.nic_bytes_per_s, inside_bytes_per_s(group, pool))
    time = pool.scale_up.ring_base_s[SIMPLE] + (ranks - 1) / ranks * n / one_link
    return np.where(ranks > 1, time, 0.0)


Algorithm = Callable[[ArrayLike, Group, Pool], Floats]

ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all-reduce": {
        "ring": ring_all_reduce_s,
        "tree": tree_all_reduce_s,
        "hierarchical": hierarchical_all_reduce_s,
        "in-network": in_network_all_reduce_s,
    },
    "all-gather": {"ring": ring_all_gather_s, "logarithmic": logarithmic_all_gather_s},
    "reduce-scatter": {"ring": ring_all_gather_s, "logarithmic": logarithmic_all_gather_s},
    "all-to-all": {"direct": all_to_all_s},
    "broadcast": {"ring": pipelined_ring_broadcast_s},
    "reduce": {"ring": pipelined_ring_broadcast_s},
    "gather": {"direct": direct_gather_s},
    "scatter": {"direct": direct_gather_s},
}
"""The algorithms of each of the eight collectives."""


def collective_s(collective: str, size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of `collective` with its fastest algorithm, seconds.

    Nothing for zero bytes: ranks that hold none of what is shared call nothing.
    """
    times = [run(size_bytes, group, pool) for run in ALGORITHMS[collective].values()]
    best = times[0]
    for other in times[1:]:
        best = np.minimum(best, other)
    some = np.asarray(size_bytes) > 0
    return best if some.all() else np.where(some, best, 0.0)


def chosen_algorithm(collective: str, size_bytes: float, group: Group, pool: Pool) -> str:
    """Return the name of the fastest algorithm for one size and group."""
    times = {
        name: float(np.asarray(run(size_bytes, group, pool)).reshape(-1)[0])
        for name, run in ALGORITHMS[collective].items()
    }
    return min(times, key=lambda name: (times[name], name))


def point_to_point_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of one message between neighbours of a group, seconds: a + n / B."""
    n = np.asarray(size_bytes, dtype=np.float64)
    outside = group.n_domains > 1
    wire = group.wire_bytes_per_s / group.ranks_per_domain
    latency = np.where(outside, pool.nic.p2p_latency_s, pool.scale_up.p2p_latency_s)
    link = np.where(outside, wire, pool.accelerator.pair_bytes_per_s)
    return np.where(group.n_ranks > 1, latency + n / link, 0.0)
