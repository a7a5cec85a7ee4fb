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
    return ("scale-up", *(named or ("scale-out",)), "top")


def spread(n_ranks: Floats, stride: Floats, unit: int, n_devices: int) -> tuple[Floats, Floats]:
    """Return (ranks per unit, units touched) of the worst-placed group, units of `unit` devices.

    Groups of span P s follow one another in rank order. When the span divides the unit, a group
    lies inside one; otherwise groups start at multiples of gcd(span, unit) within a unit, so the
    worst of them has max(1, gcd // s) ranks in some unit and touches ceil((span - gcd)/unit) + 1
    units (span/unit when that is whole), never more than it has ranks. A unit that holds all
    `n_devices` devices holds every group, whatever its span.
    """
    span = np.rint(n_ranks * stride).astype(np.int64)
    common = np.gcd(span, unit)
    within = (unit % span == 0) | (n_ranks <= 1) | (unit >= n_devices)
    touched = np.where(span % unit == 0, span / unit, np.ceil((span - common) / unit) + 1)
    inside = np.minimum(n_ranks, np.maximum(1.0, np.floor(common / stride)))
    return (
        np.where(within, n_ranks, inside),
        np.where(within, 1.0, np.minimum(n_ranks, touched)),
    )


def place_group(n_ranks: ArrayLike, stride: ArrayLike, pool: Pool, fabric: Fabric) -> Group:
    """Return where a group of `n_ranks` ranks, `stride` apart in rank order, ends up.

    The worst-placed of the sibling groups counts (`spread`). Its ring leaves a domain with the
    NICs of its ranks there; inside a unit of a tier that has r of its ranks, the group owns r
    shares of the uplink, each 1/oversubscription of a NIC, oversubscription compounding from tier
    to tier: B = min(ranks_per_domain * B_nic, min_i r_i * B_nic / (o_1 ... o_i)).

    Source: NCCL builds one ring per NIC of the ranks on a node (SimAI calbusbw.cc uses the same
    rule); the uplink share is a count of flows. Left out: hash collisions between flows.
    """
    ranks, step = np.broadcast_arrays(
        np.asarray(n_ranks, dtype=np.float64), np.asarray(stride, dtype=np.float64)
    )
    per_domain, n_domains = spread(ranks, step, pool.scale_up_domain, pool.n_devices)
    wire = per_domain * pool.nic_bytes_per_s
    tier = np.where(n_domains > 1, 1, 0)
    over = 1.0
    for level, entry in enumerate(fabric.tiers):
        unit = entry.n_nodes * pool.devices_per_node
        inside, units = spread(ranks, step, unit, pool.n_devices)
        over *= entry.oversubscription
        share = inside * pool.nic_bytes_per_s / over
        climbs = (units > 1) & (n_domains > 1)
        wire = np.where(climbs, np.minimum(wire, share), wire)
        tier = np.where(climbs, level + 2, tier)
    extra = 0.0 if fabric.rail_optimized else NON_RAIL_HOP_S
    return Group(ranks, per_domain, n_domains, wire, tier.astype(np.int32), extra)
