"""Where the ranks of a process group sit: in how many domains, across which tiers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardware.parts import Fabric, Pool

Floats = NDArray[np.float64]

NON_RAIL_HOP_S = 1.0e-6
"""Extra latency of a scale-out hop when same-index devices are not on one switch (assumed:
two more switch traversals of about half a microsecond)."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group, or many at once: arrays of one shape.

    `wire_bytes_per_s` is the one-way bandwidth that a ring through the group reaches per rank
    outside the scale-up domain, with every sibling group talking at the same time.
    """

    n_ranks: Floats
    ranks_per_domain: Floats
    n_domains: Floats
    wire_bytes_per_s: Floats
    tier: NDArray[np.int32]
    """0: inside the scale-up domain; 1 + i: traffic climbs into tier i of the fabric."""
    extra_hop_s: float = 0.0


def tier_names(fabric: Fabric) -> tuple[str, ...]:
    """Return the names that `Group.tier` indexes, from the scale-up domain upwards."""
    named = tuple(tier.name for tier in fabric.tiers)
    return ("scale-up", *(named or ("scale-out",)), "above")


def place_group(n_ranks: ArrayLike, stride: ArrayLike, pool: Pool, fabric: Fabric) -> Group:
    """Return where a group of `n_ranks` ranks, `stride` apart in rank order, ends up.

    Consecutive ranks fill a domain of D devices before the next, so a group has
    max(1, D // stride) ranks per domain. Its ring leaves a domain with the NICs of those ranks;
    inside a unit of a tier that has r of its ranks, the group owns r shares of the uplink, each
    1/oversubscription of a NIC: B = min(ranks_per_domain * B_nic, min_i r_i * B_nic / o_i).

    Source: NCCL builds one ring per NIC of the ranks on a node (SimAI calbusbw.cc uses the same
    rule); the uplink share is a count of flows. Left out: hash collisions between flows.
    """
    ranks = np.asarray(n_ranks, dtype=np.float64)
    step = np.asarray(stride, dtype=np.float64)
    ranks, step = np.broadcast_arrays(ranks, step)
    domain = float(pool.scale_up_domain)
    per_domain = np.minimum(ranks, np.maximum(1.0, np.floor(domain / step)))
    n_domains = np.ceil(ranks / per_domain)
    wire = per_domain * pool.nic_bytes_per_s
    tier = np.where(n_domains > 1, 1, 0)
    for level, entry in enumerate(fabric.tiers):
        unit = float(entry.n_nodes * pool.devices_per_node)
        inside = np.minimum(ranks, np.maximum(1.0, np.floor(unit / step)))
        crosses = ranks > inside
        share = inside * pool.nic_bytes_per_s / entry.oversubscription
        wire = np.where(crosses, np.minimum(wire, share), wire)
        tier = np.where(crosses, level + 2, tier)
    extra = 0.0 if fabric.rail_optimized else NON_RAIL_HOP_S
    return Group(ranks, per_domain, n_domains, wire, tier.astype(np.int32), extra)
