"""Where the ranks of a process group sit: in how many domains, across which tiers."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.comm.torus import TorusShare, torus_share
from hardware.parts import Fabric, Pool, Tier, used_tiers

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
    extra_hop_s: Floats | float = 0.0
    torus: TorusShare | None = None
    """What the group has of its slice's links; None without a torus."""

    def take(self, rows: NDArray[np.intp]) -> "Group":
        """Return the groups at `rows` of the first axis."""
        return Group(
            self.n_ranks[rows],
            self.ranks_per_domain[rows],
            self.n_domains[rows],
            self.wire_bytes_per_s[rows],
            self.tier[rows],
            self.extra_hop_s,
            self.torus and self.torus.each(lambda column: column[rows]),
        )

    def of_shapes(self, index: NDArray[np.intp]) -> "Group":
        """Return the groups at `index` of the last axis, that of shapes."""
        return Group(
            self.n_ranks.take(index, axis=-1),
            self.ranks_per_domain.take(index, axis=-1),
            self.n_domains.take(index, axis=-1),
            self.wire_bytes_per_s.take(index, axis=-1),
            self.tier.take(index, axis=-1),
            self.extra_hop_s,
            self.torus and self.torus.each(lambda column: column.take(index, axis=-1)),
        )


def tier_names(fabric: Fabric) -> tuple[str, ...]:
    """Return the names that `Group.tier` indexes, from the scale-up domain upwards."""
    named = tuple(tier.name for tier in fabric.tiers)
    return ("scale-up", *(named or ("scale-out",)), "top")


def spread(n_ranks: Floats, stride: Floats, unit: int, n_devices: int) -> tuple[Floats, Floats]:
    """Return (ranks per unit, units touched) of the worst-placed group, units of `unit` devices.

    Groups of span P s follow one another in rank order. When the span divides the unit, a group
    lies inside one; otherwise groups start at multiples of gcd(span, unit) within a unit, so the
    worst of them has max(1, gcd // s) ranks in some unit and touches
    ceil((span - max(gcd, s))/unit) + 1 units (span/unit when that is whole), never more than it
    has ranks: its last rank is s from the end of its span. A unit that holds all
    `n_devices` devices holds every group, whatever its span.
    """
    if unit >= n_devices:
        return n_ranks, np.ones_like(n_ranks)
    span = np.rint(n_ranks * stride).astype(np.int64)
    common = np.gcd(span, unit)
    within = (unit % span == 0) | (n_ranks <= 1)
    beyond = np.ceil((span - np.maximum(common, np.rint(stride))) / unit) + 1
    touched = np.where(span % unit == 0, span / unit, beyond)
    inside = np.minimum(n_ranks, np.maximum(1.0, np.floor(common / stride)))
    return (
        np.where(within, n_ranks, inside),
        np.where(within, 1.0, np.minimum(n_ranks, touched)),
    )


@dataclass(frozen=True, slots=True)
class RankSpacing:
    """How the ranks of a group follow one another in rank order; numbers, or arrays of one shape.

    `copies` runs of `n_ranks` ranks; ranks of a run are `stride` apart, runs begin `apart` ranks
    apart. A single run has no use for `apart`, which is then 1.
    """

    n_ranks: ArrayLike
    stride: ArrayLike
    copies: ArrayLike = 1
    apart: ArrayLike = 1


def spread_runs(
    runs: tuple[Floats, Floats],
    copies: Floats,
    apart: Floats,
    unit: int,
    n_devices: int,
    one: tuple[Floats, Floats] | None = None,
) -> tuple[Floats, Floats]:
    """Return (ranks per unit, units touched) of the worst-placed group of several runs.

    `runs` holds the ranks of a run and their stride, `one` the `spread` of one run, if known. Run
    j of a group begins `apart` j ranks after the first, and the runs of other groups fill what
    lies between. Runs of span R that divides the unit lie in one each, and a unit that the group
    enters has max(1, gcd(S, unit) // apart) of them, S = copies apart being the span of all.
    Otherwise a unit may have a part of a run only, and of whole ones (gcd(S, unit) - R + 1) //
    apart. Units are the fewer of those that all runs touch one by one and of those that the span S
    touches. Exact where `apart` divides the unit or the unit divides it; else never too
    favourable.
    """
    n_ranks, stride = runs
    inside, touched = one or spread(n_ranks, stride, unit, n_devices)
    span = np.rint(copies * apart).astype(np.int64)
    run = np.where(n_ranks > 1, np.rint(n_ranks * stride), 1.0)
    common = np.gcd(span, unit)
    total = np.floor(np.maximum(0.0, common - run + 1) / apart)
    total = np.where(unit % run == 0, np.maximum(1.0, np.floor(common / apart)), total)
    reached = np.where(span % unit == 0, span / unit, np.ceil((span - common) / unit) + 1)
    within = (unit % span == 0) | (n_ranks * copies <= 1) | (unit >= n_devices)
    return (
        np.where(within, n_ranks * copies, np.maximum(inside, n_ranks * total)),
        np.where(within, 1.0, np.minimum(copies * touched, reached)),
    )


class _PoolFigures(NamedTuple):
    """What of a pool and its fabric places groups; the rates may be columns."""

    scale_up_domain: int
    devices_per_node: int
    n_devices: int
    nic_bytes_per_s: Any
    extra_hop_s: Any


def place_group(n_ranks: ArrayLike, stride: ArrayLike, pool: Pool, fabric: Fabric) -> Group:
    """Return where a group of `n_ranks` ranks, `stride` apart in rank order, ends up."""
    return place_spaced_group(RankSpacing(n_ranks, stride), pool, fabric)


def place_spaced_group(spacing: RankSpacing, pool: Pool, fabric: Fabric) -> Group:
    """Return where a group ends up.

    The worst-placed of the sibling groups counts (`spread`). Its ring leaves a domain with the
    NICs of its ranks there; inside a unit of a tier that has r of its ranks, the group owns r
    shares of the uplink, each 1/oversubscription of a NIC, oversubscription compounding from tier
    to tier: B = min(ranks_per_domain * B_nic, min_i r_i * B_nic / (o_1 ... o_i)).

    Source: NCCL builds one ring per NIC of the ranks on a node (SimAI calbusbw.cc uses the same
    rule); the uplink share is a count of flows. Left out: hash collisions between flows.
    """
    columns = [
        np.asarray(column, dtype=np.float64)
        for column in (spacing.n_ranks, spacing.stride, spacing.copies, spacing.apart)
    ]
    extra = 0.0 if fabric.rail_optimized else pool.nic.latency_factor * NON_RAIL_HOP_S
    figures = _PoolFigures(
        pool.scale_up_domain,
        pool.devices_per_node,
        pool.n_devices,
        pool.nic_bytes_per_s,
        extra,
    )
    tiers = used_tiers(fabric, pool)
    if pool.slice_shape:
        group = _placed(columns, tiers, figures)
        run, step, copies, apart = np.broadcast_arrays(*columns)
        share = torus_share((run, step), (copies, apart), group.ranks_per_domain, pool)
        return replace(group, torus=share)
    few = sum(column.size for column in columns) <= MOST_KNOWN
    if not few or any(isinstance(figure, np.ndarray) for figure in figures):
        return _placed(columns, tiers, figures)
    # The same few groups are asked for again and again.
    texts = tuple((column.shape, column.tobytes()) for column in columns)
    return _placed_once(texts, tiers, figures)


MOST_KNOWN = 64
"""Numbers of a call up to which its groups are kept for the next one like it."""


@lru_cache(maxsize=2048)
def _placed_once(
    texts: tuple[tuple[tuple[int, ...], bytes], ...],
    tiers: tuple[Tier, ...],
    figures: _PoolFigures,
) -> Group:
    columns = [np.frombuffer(raw, dtype=np.float64).reshape(shape) for shape, raw in texts]
    return _placed(columns, tiers, figures)


def _placed(columns: list[Floats], tiers: tuple[Tier, ...], pool: _PoolFigures) -> Group:
    """Return `place_spaced_group` of a spacing's columns; the rates may be columns too."""
    run, step, copies, apart = np.broadcast_arrays(*columns)
    several = bool((copies > 1).any())

    def over(unit: int) -> tuple[Floats, Floats]:
        one = spread(run, step, unit, pool.n_devices)
        if not several:
            return one
        more = spread_runs((run, step), copies, apart, unit, pool.n_devices, one)
        return np.where(copies > 1, more[0], one[0]), np.where(copies > 1, more[1], one[1])

    per_domain, n_domains = over(pool.scale_up_domain)
    wire = per_domain * pool.nic_bytes_per_s
    tier = np.where(n_domains > 1, 1, 0)
    oversubscription = 1.0
    for level, entry in enumerate(tiers):
        inside, units = over(entry.n_nodes * pool.devices_per_node)
        oversubscription *= entry.oversubscription
        share = inside * pool.nic_bytes_per_s / oversubscription
        climbs = (units > 1) & (n_domains > 1)
        wire = np.where(climbs, np.minimum(wire, share), wire)
        tier = np.where(climbs, level + 2, tier)
    tiers_climbed = tier.astype(np.int32)
    return Group(run * copies, per_domain, n_domains, wire, tiers_climbed, pool.extra_hop_s)
