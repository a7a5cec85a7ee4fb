"""Links between the pools of a cluster file."""

from collections.abc import Sequence
from typing import Any

from hardware.parts import Cluster, PoolLink
from planner import units
from planner.specs.schema import ClusterFile, PoolLinkSpec, SpecFault
from planner.specs.yaml.document import KeyPath, close_names

GB = 1e9
"""Bytes of the unit in which traffic is sold."""


def link_faults(spec: ClusterFile, names: Sequence[str]) -> list[SpecFault]:
    """Return what is wrong with the links between pools, whose names are as read."""
    faults: list[SpecFault] = []
    seen: set[frozenset[str]] = set()
    for i, link in enumerate(spec.links):
        path: KeyPath = ("links", i)
        first, second = link.between
        for place, name in enumerate(link.between):
            if name not in names:
                close = close_names(name, names, 1)
                guess = f"did you mean {close[0]}? " if close else ""
                message = f"the cluster has no pool {name!r}"
                fix = f"{guess}pools: {', '.join(names)}"
                faults.append(SpecFault((*path, "between", place), message, fix))
        pair = frozenset(link.between)
        if first == second:
            message = f"joins pool {first!r} with itself"
            fix = "name two pools; what joins the nodes of one stands under `fabric:`"
            faults.append(SpecFault((*path, "between"), message, fix))
        elif pair in seen:
            message = f"a second link between {first!r} and {second!r}"
            faults.append(SpecFault((*path, "between"), message, "keep one of them"))
        seen.add(pair)
        if (link.bandwidth is None) == (link.oversubscription is None):
            both = link.bandwidth is not None
            message = "stands beside `bandwidth`" if both else "is missing"
            key = "oversubscription" if both else "bandwidth"
            fix = "keep one of them" if both else "such as `400 GB/s`, or give `oversubscription`"
            faults.append(SpecFault((*path, key), message, fix))
        if link.wan and link.latency is None:
            message = "is missing, which a `wan` link states"
            faults.append(SpecFault((*path, "latency"), message, "such as `20 ms`"))
    return faults


def pool_links(specs: Sequence[PoolLinkSpec], cluster: Cluster) -> tuple[PoolLink, ...]:
    """Return the links that a file states, with what it leaves to the ports of the pools."""
    return tuple(_pool_link(spec, cluster) for spec in specs)


def _pool_link(spec: PoolLinkSpec, cluster: Cluster) -> PoolLink:
    pools = [pool for pool in cluster.pools if pool.name in spec.between]
    ports = min(pool.n_devices * pool.nic_bytes_per_s for pool in pools)
    latency_s = spec.latency
    if latency_s is None:
        latency_s = max(pool.nic.p2p_latency_s for pool in pools)
    return PoolLink(
        pools=(spec.between[0], spec.between[1]),
        bytes_per_s=spec.bandwidth or ports / (spec.oversubscription or 1.0),
        latency_s=latency_s,
        price_per_byte=(spec.price_per_gb or 0.0) / GB,
        is_wan=spec.wan,
    )


def canonical_link(spec: PoolLinkSpec) -> dict[str, Any]:
    """Return a link as the canonical document has it: what the file states, in base units."""
    link: dict[str, Any] = {"between": list(spec.between)}
    if spec.bandwidth is not None:
        link["bandwidth"] = units.exact_bandwidth(spec.bandwidth)
    if spec.oversubscription is not None:
        link["oversubscription"] = spec.oversubscription
    if spec.latency is not None:
        link["latency"] = units.exact_time(spec.latency)
    if spec.wan:
        link["wan"] = True
    if spec.price_per_gb:
        link["price_per_gb"] = spec.price_per_gb
    return link
