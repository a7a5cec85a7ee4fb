"""Time of a collective: latency by steps, bandwidth by protocol, the best algorithm.

`collective_s` is the one price of a collective: the least time of the algorithms of `ALGORITHMS`
that run on the group. A new one is one record (`register_algorithm`, docs/extending.md).

Every time is base + steps * hop + bytes / bandwidth with the figures of one wire protocol (LL,
LL128, Simple); the fastest protocol and algorithm wins, which gives the size-dependent bandwidth
that measurements show. `size_bytes` is the whole logical tensor: the gathered array of an
all-gather, the input of a reduce-scatter, the buffer of an all-reduce.

Source of the form and the constants: NCCL 2.30 src/graph/tuning.cc; checked in the tests against
published nccl-tests tables. Left out: congestion, NCCL's tree correction factors (64 B to 256 MB)
and per-channel tree caps, so an all-reduce across nodes below 1 GiB comes out too fast; over racks
of more than 16 devices it runs as a ring, as published runs do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.comm.placement import Group
from costmodels.documentation.docstrings import FunctionText, function_text
from hardware.parts import PROTOCOLS, Pool

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SIMPLE = PROTOCOLS.index("simple")
LL, LL128 = PROTOCOLS.index("ll"), PROTOCOLS.index("ll128")

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


@dataclass(frozen=True, slots=True)
class AllToAllBytes:
    """What each rank sends in an all-to-all, bytes, and what share of its links that reaches."""

    inside_bytes: Floats
    """To the other ranks of its domain."""
    outside_bytes: Floats
    """To ranks of other domains."""
    inside_frac: float = 1.0
    """Share of the ring rate inside a domain."""
    outside_frac: float = 1.0
    """Share of what a rank has of its group's way out of the domain."""


Message = ArrayLike | AllToAllBytes
"""Bytes of the whole logical tensor; of an all-to-all what each rank holds, in equal shares for
all ranks, or `AllToAllBytes`."""


def even_exchange(size_bytes: ArrayLike, group: Group) -> AllToAllBytes:
    """Return the all-to-all in which each rank sends 1/P of `size_bytes` to every other."""
    n, ranks, inside = np.asarray(size_bytes, np.float64), group.n_ranks, group.ranks_per_domain
    return AllToAllBytes((inside - 1) / ranks * n, (ranks - inside) / ranks * n)


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
    if group.torus is not None:
        return np.asarray(part.ring_bytes_per_s * group.torus.ring_frac)
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


def _bus_bytes_per_s(group: Group, pool: Pool, protocol: int) -> Floats:
    """Return the ring bus bandwidth of `protocol`, one-way per rank."""
    inside = _bus_bytes_per_s_inside(group, pool, protocol)
    outside = np.minimum(
        group.wire_bytes_per_s * pool.nic.protocol_frac[protocol],
        pool.nic.protocol_bytes_per_s[protocol],
    )
    limit = np.where(group.ranks_per_domain > 1, np.minimum(inside, outside), outside)
    return np.where(group.n_domains > 1, limit, inside)


def _over_racks(group: Group, pool: Pool) -> Bools:
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


def _fastest_protocol(seconds: Callable[[int], Floats]) -> Floats:
    """Return the least of the times by wire protocol."""
    return reduce(np.minimum, (seconds(protocol) for protocol in range(len(PROTOCOLS))))


def ring_all_gather_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of a ring all-gather (and of a ring reduce-scatter), seconds.

    t = base + (P - 1) hops + (P - 1)/P n / B

    Source: Thakur, Rabenseifner and Gropp, IJHPCA 2005; constants of NCCL.
    """
    n, ranks = np.asarray(size_bytes, dtype=np.float64), group.n_ranks
    sent = (ranks - 1) / ranks * n
    return _fastest_protocol(
        lambda p: _ring_latency_s(group, pool, p, 1.0) + sent / _bus_bytes_per_s(group, pool, p)
    )


def pat_all_gather_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of a recursive-doubling all-gather (or -halving reduce-scatter), seconds.

    t = base + log2(P) hop/3.5 + 2.8 us P + (P - 1)/P n / (0.75 B)

    Source: NCCL's PAT, which runs only where every rank of a group is alone in its domain.
    """
    n, ranks = np.asarray(size_bytes, dtype=np.float64), group.n_ranks
    hop = (pool.nic.ring_hop_s[SIMPLE] + group.extra_hop_s) * PAT_HOP_SHARE
    wire = PAT_FRAC * _bus_bytes_per_s(group, pool, SIMPLE)
    constants = PAT_BASE_S + PAT_PER_RANK_S * ranks
    time = pool.nic.latency_factor * constants + np.log2(ranks) * hop
    return np.asarray(time + (ranks - 1) / ranks * n / wire)


def _is_alone(group: Group, pool: Pool) -> Bools:
    """Return where every rank is alone in its domain."""
    return np.asarray((group.ranks_per_domain == 1) & (group.n_domains > 1))


def ring_all_reduce_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of a ring all-reduce, seconds: a reduce-scatter, then an all-gather.

    t = base + 2 (P - 1) hops + 2 (P - 1)/P n / B

    Hops of Simple over several domains cost 1.4 times as much.
    Source: Thakur, Rabenseifner and Gropp, IJHPCA 2005; constants of NCCL.
    """
    n, ranks = np.asarray(size_bytes, dtype=np.float64), group.n_ranks
    sent = 2 * (ranks - 1) / ranks * n

    def seconds(protocol: int) -> Floats:
        latency = _ring_latency_s(group, pool, protocol, 2.0)
        if protocol == SIMPLE:
            latency = np.where(group.n_domains > 1, PLATEAU_FACTOR, 1.0) * latency
        return np.asarray(latency + sent / _bus_bytes_per_s(group, pool, protocol))

    return _fastest_protocol(seconds)


def tree_all_reduce_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of a double-binary-tree all-reduce, seconds.

    t = base + 2 ((g - 1) hop_in + log2(k) hop_out) + 2 n / (0.92 B)

    g ranks per domain, k domains; LL loses 3.8, LL128 9/7 (one domain) or 128/120 more bandwidth.
    Source: NCCL 2.30 src/graph/tuning.cc.
    """
    n = np.asarray(size_bytes, dtype=np.float64)
    several, levels = group.n_domains > 1, np.log2(group.n_domains)
    total = TREE_FRAC * _bus_bytes_per_s(group, pool, SIMPLE)

    def seconds(p: int) -> Floats:
        inside, outside = pool.scale_up.tree_hop_s[p], pool.nic.tree_hop_s[p] + group.extra_hop_s
        hops = (group.ranks_per_domain - 1) * inside + levels * outside
        wire = total / 3.8 if p == LL else total
        wire = wire * np.where(several, 120 / 128, 7 / 9) if p == LL128 else wire
        return np.asarray(pool.scale_up.tree_base_s[p] + 2 * hops + 2 * n / wire)

    return _fastest_protocol(seconds)


def nvls_all_reduce_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of an all-reduce summed inside the switches, seconds.

    t = 25 us + 9.3 us max(0, g - 8) + 2 log2(k) 18 us
    + max( 2 (g - 1)/g n / B_switch, 2 (k - 1)/k n / B_wire )

    Over k domains a reduce-scatter inside, a tree all-reduce of n/g between them and an
    all-gather inside, pipelined.
    Source: NCCL's NVLS and NVLSTree latencies; published all-reduces of a rack.
    """
    n, part = np.asarray(size_bytes, dtype=np.float64), pool.accelerator
    g, k = group.ranks_per_domain, group.n_domains
    inner = 2 * (g - 1) / g * n / part.in_switch_all_reduce_bytes_per_s
    outer = 2 * (k - 1) / k * n / group.wire_bytes_per_s
    near, far = pool.scale_up.latency_factor, pool.nic.latency_factor
    hop = far * IN_SWITCH_NET_HOP_S + group.extra_hop_s
    latency = near * IN_SWITCH_LATENCY_S + 2 * np.log2(k) * hop
    latency = latency + near * RACK_LATENCY_S_PER_RANK * np.maximum(g - NODE_RANKS, 0.0)
    return np.asarray(latency + np.maximum(inner, outer))


def _is_summed_in_switch(group: Group, pool: Pool) -> Bools:
    """Return where the part's switches sum: its least size is reached, in one rack."""
    part = pool.accelerator
    if not np.any(part.in_switch_all_reduce_bytes_per_s):
        return np.zeros((), dtype=bool)
    reached = group.ranks_per_domain >= part.in_switch_min_ranks
    return np.asarray(reached & ~_over_racks(group, pool))


def sharp_all_reduce_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of an all-reduce that the network's switches sum, seconds.

    t = latency + max( inside part, n / B_wire )

    Every rank sends n/g up and gets the sum back once, where a ring sends 2 (k - 1)/k n/g. The
    part inside a domain is that of the in-switch sum of the scale-up link (then 25 + 18 us), else
    a ring's reduce-scatter and all-gather (its base, 2 (g - 1) hops and 31 us).

    Source: NCCL's NVLS and CollNet latencies; volumes of SHARP's streaming aggregation. Left out:
    how many groups a switch can serve at once.
    """
    n, part = np.asarray(size_bytes, dtype=np.float64), pool.accelerator
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
    return np.asarray(time + group.extra_hop_s)


def _is_summed_in_network(group: Group, pool: Pool) -> Bools:
    """Return where all tiers that a group of several domains climbs into sum."""
    return np.asarray((group.n_domains > 1) & (group.tier <= pool.n_summing_tiers))


def direct_all_to_all_s(exchange: AllToAllBytes, group: Group, pool: Pool) -> Floats:
    """Return the time of a direct all-to-all, seconds: every rank sends to every other.

    t = base + hops + max( inside bytes / (f_in B_ring), outside bytes / (f_out B_wire) )

    A hop of the LL protocol for each other rank, B_wire what one rank has of its group's way out
    of the domain. f_in and f_out are 1 for equal shares (`even_exchange`), which comes out too
    fast; those of tokens for experts are in `costmodels.layers.experts`.
    Left out: tiers above the lowest that a group spans.
    """
    inside = exchange.inside_bytes / (exchange.inside_frac * inside_bytes_per_s(group, pool))
    wire = group.wire_bytes_per_s / group.ranks_per_domain
    outside = exchange.outside_bytes / (exchange.outside_frac * wire)
    hops = (group.ranks_per_domain - 1) * pool.scale_up.ring_hop_s[LL]
    others = group.n_ranks - group.ranks_per_domain
    hops = hops + others * (pool.nic.ring_hop_s[LL] + group.extra_hop_s)
    return np.asarray(pool.scale_up.ring_base_s[SIMPLE] + hops + np.maximum(inside, outside))


def pipelined_ring_broadcast_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of a broadcast or a reduce, pipelined around a ring.

    t = base + (P - 1) hops + n / B

    Source: NCCL 2.30 src/graph/tuning.cc.
    """
    n = np.asarray(size_bytes, dtype=np.float64)
    return _fastest_protocol(
        lambda p: _ring_latency_s(group, pool, p, 1.0) + n / _bus_bytes_per_s(group, pool, p)
    )


def direct_gather_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of a gather to (or scatter from) one rank; its own link is the limit.

    t = base + (P - 1)/P n / B_link
    """
    n, ranks = np.asarray(size_bytes, dtype=np.float64), group.n_ranks
    one_link = np.where(group.n_domains > 1, pool.nic_bytes_per_s, inside_bytes_per_s(group, pool))
    return np.asarray(pool.scale_up.ring_base_s[SIMPLE] + (ranks - 1) / ranks * n / one_link)


@dataclass(frozen=True, slots=True)
class CollectiveAlgorithm:
    """One way in which a collective runs: its price, where it runs, what is said of it."""

    name: str
    """As transfers and results call it."""
    operation: str
    """The collective: `all-reduce`, `all-to-all`, ..."""
    title: str
    """As sentences call it."""
    seconds: Callable[[Any, Group, Pool], Floats]
    """Its time from the bytes (of an all-to-all the `AllToAllBytes`), where it runs. The docstring
    holds equation, source and what is left out."""
    runs_on: Callable[[Group, Pool], Bools] | None = None
    """Where it runs; None: on every group."""
    needs: str = ""
    """The same in words: what it asks of the group and its links."""

    @property
    def text(self) -> FunctionText:
        """Equation, source and what is left out."""
        return function_text(self.seconds)

    def time_s(self, message: Message, group: Group, pool: Pool) -> Floats:
        """Return its time, seconds: infinite where it does not run, 0 for one rank."""
        times = self.times_s(_message(self.operation, message, group), group, pool)
        return np.where(group.n_ranks > 1, np.inf if times is None else times, 0.0)

    def times_s(self, message: Message, group: Group, pool: Pool) -> Floats | None:
        """Return the times where it runs, infinite elsewhere; None where it runs on no group.

        `message` is `AllToAllBytes` for an all-to-all; the times of single ranks mean nothing.
        """
        if self.runs_on is None:
            return self.seconds(message, group, pool)
        is_run = self.runs_on(group, pool)
        if not is_run.any():
            return None
        return np.where(is_run, self.seconds(message, group, pool), np.inf)


def torus_all_gather_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of an all-gather (or reduce-scatter) on a torus, seconds.

    t = base + hops + (g - 1)/g n / sum_axes B_axis + (k - 1) hop_out + (k - 1)/k n / B_wire

    Bandwidth adds over the axes that a group has: two links of an axis that closes to a ring, one
    of a line (docs/tpu.md). k slices exchange their parts over the data-centre network first.
    Source: jax-ml/scaling-book, sharding.md. Left out: axes of unlike length, on which XLA may not
    use all links at once; phases that overlap.
    """
    n, g, k = np.asarray(size_bytes, np.float64), group.ranks_per_domain, group.n_domains
    assert group.torus is not None
    near = pool.scale_up.ring_base_s[SIMPLE] + group.torus.hops * pool.scale_up.ring_hop_s[SIMPLE]
    near = np.where(g > 1, near + (g - 1) / g * n / inside_bytes_per_s(group, pool), 0.0)
    hop = pool.nic.ring_hop_s[SIMPLE] + group.extra_hop_s
    far = pool.nic.ring_base_s[SIMPLE] + (k - 1) * hop + (k - 1) / k * n / group.wire_bytes_per_s
    return np.asarray(near + np.where(k > 1, far, 0.0))


def torus_all_reduce_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of an all-reduce on a torus, seconds: reduce-scatter, then all-gather.

    t = 2 t_all-gather. Source: jax-ml/scaling-book, sharding.md.
    """
    return np.asarray(2.0 * torus_all_gather_s(size_bytes, group, pool))


def torus_broadcast_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of a broadcast or a reduce on a torus, seconds: n/B in place of (g - 1)/g.

    Every part goes down another of the axes first. Never below an all-gather's time.
    """
    n, g = np.asarray(size_bytes, np.float64), group.ranks_per_domain
    rest = np.where(g > 1, n / g / inside_bytes_per_s(group, pool), 0.0)
    return np.asarray(torus_all_gather_s(n, group, pool) + rest)


def torus_all_to_all_s(exchange: AllToAllBytes, group: Group, pool: Pool) -> Floats:
    """Return the time of an all-to-all on a torus, seconds.

    t = base + hops + max( inside bytes / (f_in B_bisection), outside bytes / (f_out B_wire) )

    A ring of d chips, two links each, is crossed in the mean by d/4 hops: a quarter of the time of
    an all-gather of all that is sent. The longest axis of a group decides, of a line d/2 hops.
    Source: jax-ml/scaling-book, sharding.md. Left out: uneven loads of links.
    """
    share = group.torus
    assert share is not None
    near = exchange.inside_frac * pool.accelerator.ring_bytes_per_s * share.exchange_frac
    wire = group.wire_bytes_per_s / group.ranks_per_domain
    outside = exchange.outside_bytes / (exchange.outside_frac * wire)
    hops = share.hops * pool.scale_up.ring_hop_s[SIMPLE]
    hop = pool.nic.ring_hop_s[SIMPLE] + group.extra_hop_s
    hops = hops + np.where(group.n_domains > 1, (group.n_domains - 1) * hop, 0.0)
    base = pool.scale_up.ring_base_s[SIMPLE] + hops
    return np.asarray(base + np.maximum(exchange.inside_bytes / near, outside))


def _gathers(operation: str) -> tuple[CollectiveAlgorithm, ...]:
    """Return the algorithms of an all-gather or, the same in reverse, a reduce-scatter."""
    name, title, needs = "logarithmic", "recursive doubling", "one rank in each domain"
    return (
        CollectiveAlgorithm("ring", operation, "ring", ring_all_gather_s),
        CollectiveAlgorithm(name, operation, title, pat_all_gather_s, _is_alone, needs),
    )


_BUILT_IN = (
    CollectiveAlgorithm("ring", "all-reduce", "ring", ring_all_reduce_s),
    CollectiveAlgorithm(
        "tree",
        "all-reduce",
        "double binary tree",
        tree_all_reduce_s,
        lambda group, pool: ~_over_racks(group, pool),
        "not over several racks",
    ),
    CollectiveAlgorithm(
        "hierarchical",
        "all-reduce",
        "summed in the switches",
        nvls_all_reduce_s,
        _is_summed_in_switch,
        "switches inside the domain that sum (NVLS), their least ranks, not over several racks",
    ),
    CollectiveAlgorithm(
        "in-network",
        "all-reduce",
        "summed in the network",
        sharp_all_reduce_s,
        _is_summed_in_network,
        "several domains, switches between them that sum (SHARP)",
    ),
    *_gathers("all-gather"),
    *_gathers("reduce-scatter"),
    CollectiveAlgorithm("direct", "all-to-all", "direct", direct_all_to_all_s),
    CollectiveAlgorithm("ring", "broadcast", "ring", pipelined_ring_broadcast_s),
    CollectiveAlgorithm("ring", "reduce", "ring", pipelined_ring_broadcast_s),
    CollectiveAlgorithm("direct", "gather", "direct", direct_gather_s),
    CollectiveAlgorithm("direct", "scatter", "direct", direct_gather_s),
)

_ON_TORUS = {
    operation: {"torus": CollectiveAlgorithm("torus", operation, "torus", seconds)}
    for operation, seconds in (
        ("all-reduce", torus_all_reduce_s),
        ("all-gather", torus_all_gather_s),
        ("reduce-scatter", torus_all_gather_s),
        ("all-to-all", torus_all_to_all_s),
        ("broadcast", torus_broadcast_s),
        ("reduce", torus_broadcast_s),
        ("gather", torus_all_gather_s),
        ("scatter", torus_all_gather_s),
    )
}
"""The algorithms of groups on a torus, in place of all others."""

ALGORITHMS: dict[str, dict[str, CollectiveAlgorithm]] = {}
"""The algorithms of each of the eight collectives, by name (`register_algorithm`)."""


def register_algorithm(algorithm: CollectiveAlgorithm) -> CollectiveAlgorithm:
    """Add an algorithm of a collective: from now on it is used where it is the fastest."""
    of_operation = ALGORITHMS.setdefault(algorithm.operation, {})
    if algorithm.name in of_operation:
        raise ValueError(f"{algorithm.operation} has an algorithm {algorithm.name!r}")
    of_operation[algorithm.name] = algorithm
    return algorithm


for _algorithm in _BUILT_IN:
    register_algorithm(_algorithm)


@contextmanager
def temporary_algorithm(algorithm: CollectiveAlgorithm) -> Iterator[CollectiveAlgorithm]:
    """Add an algorithm for the time of a `with` block."""
    register_algorithm(algorithm)
    try:
        yield algorithm
    finally:
        del ALGORITHMS[algorithm.operation][algorithm.name]


def _algorithms(collective: str, group: Group) -> dict[str, CollectiveAlgorithm]:
    return (ALGORITHMS if group.torus is None else _ON_TORUS)[collective]


def _message(operation: str, message: Message, group: Group) -> ArrayLike | AllToAllBytes:
    """Return what an algorithm is priced by: an all-to-all by its `AllToAllBytes`."""
    if operation != "all-to-all" or isinstance(message, AllToAllBytes):
        return message
    return even_exchange(message, group)


def collective_s(collective: str, message: Message, group: Group, pool: Pool) -> Floats:
    """Return the time of `collective` with its fastest algorithm, seconds.

    Nothing for zero bytes: ranks that hold none of what is shared call nothing.
    """
    message = _message(collective, message, group)
    all_times = (x.times_s(message, group, pool) for x in _algorithms(collective, group).values())
    times = [one for one in all_times if one is not None]
    if isinstance(message, AllToAllBytes):
        is_sent = message.inside_bytes + message.outside_bytes > 0
    else:
        is_sent = np.asarray(message) > 0
    is_priced = group.n_ranks > 1
    if not is_sent.all():
        is_priced = is_priced & is_sent
    return np.where(is_priced, reduce(np.minimum, times), 0.0)


def chosen_algorithm(
    collective: str, message: Message, group: Group, pool: Pool
) -> CollectiveAlgorithm:
    """Return the fastest algorithm for one message and group; of equal ones the first by name."""
    algorithms = _algorithms(collective, group)
    times = {
        name: float(np.asarray(algorithm.time_s(message, group, pool)).reshape(-1)[0])
        for name, algorithm in algorithms.items()
    }
    return algorithms[min(times, key=lambda name: (times[name], name))]


def torus_sent_bytes_per_s(collective: str, group: Group, pool: Pool) -> Floats:
    """Return what a rank sends at by one collective inside its slice, bytes per second.

    What bounds the wire time of a group on a torus, without latencies: all-gathers and what is
    made of them have the links of their axes, an all-to-all those that cross its slowest axis
    (`costmodels.comm.torus`), a message one link that it shares with those it passes.
    """
    share = group.torus
    assert share is not None
    if collective == "all-to-all":
        return np.asarray(pool.accelerator.ring_bytes_per_s * share.exchange_frac)
    if collective == "point-to-point":
        return np.asarray(pool.accelerator.pair_bytes_per_s / share.links_apart)
    return inside_bytes_per_s(group, pool)


def point_to_point_s(size_bytes: ArrayLike, group: Group, pool: Pool) -> Floats:
    """Return the time of one message between neighbours of a group, seconds: a + n / B."""
    n = np.asarray(size_bytes, dtype=np.float64)
    outside = group.n_domains > 1
    wire = group.wire_bytes_per_s / group.ranks_per_domain
    latency = np.where(outside, pool.nic.p2p_latency_s, pool.scale_up.p2p_latency_s)
    near: ArrayLike = pool.accelerator.pair_bytes_per_s
    if group.torus is not None:
        near = near / group.torus.links_apart
    link = np.where(outside, wire, near)
    return np.where(group.n_ranks > 1, latency + n / link, 0.0)
