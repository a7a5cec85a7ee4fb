"""Which pools of a cluster are one, and which can be joined."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import SearchError
from planner.solver.options import SolveOptions
from planner.solver.problem import make_problem
from planner.specs.importers.hostlist import compress_hosts, expand_hosts
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import cluster_from_dict

OWN_KEYS = ("name", "nodes", "hosts")
"""What a pool may have of its own beside others of the same part."""
MAX_NAME = 64
"""Characters of a name."""


@dataclass(frozen=True, slots=True)
class MergedCluster:
    """A cluster whose pools of one part are one."""

    cluster: ClusterInput
    merged: Mapping[str, tuple[str, ...]]
    """Names of the pools that a new one is made of, by its name."""


def with_merged_pools(cluster: ClusterInput) -> MergedCluster:
    """Return a cluster with one pool for all nodes that nothing tells apart.

    Pools are one where their nodes are alike and no link is stated for either: the fabric joins
    their nodes as it joins those of one pool.
    """
    linked = {name for link in cluster.cluster.links for name in link.pools}
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in cluster.document["pools"]:
        own = entry["name"] if entry["name"] in linked else ""
        alike = {key: x for key, x in entry.items() if key not in OWN_KEYS}
        groups.setdefault(json.dumps([own, alike], sort_keys=True), []).append(entry)
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return MergedCluster(cluster, {})
    entries = [_merged_entry(group) for group in groups.values()]
    read = cluster_from_dict({**cluster.document, "pools": entries})
    names = {_joined_name(group): tuple(x["name"] for x in group) for group in several}
    read = replace(read, notes=cluster.notes, path=cluster.path, from_dump=cluster.from_dump)
    return MergedCluster(read, names)


def _joined_name(group: Sequence[Mapping[str, Any]]) -> str:
    names = [entry["name"] for entry in group]
    whole = "+".join(names)
    if len(whole) <= MAX_NAME:
        return whole
    more = f"+{len(names) - 1}"
    return f"{names[0][: MAX_NAME - len(more)]}{more}"


def _merged_entry(group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    entry = {**group[0], "name": _joined_name(group), "nodes": sum(x["nodes"] for x in group)}
    hosts = (
        [name for x in group for name in expand_hosts(x["hosts"]) if "hosts" in x]
        if all("hosts" in x for x in group)
        else []
    )
    entry.pop("hosts", None)
    return entry | ({"hosts": compress_hosts(tuple(hosts))} if hosts else {})


@dataclass(frozen=True, slots=True)
class Joinable:
    """Which pools of a cluster one job can use together."""

    indices: tuple[int, ...]
    """Their places in the cluster, in an order that their names do not decide."""
    alone: Mapping[str, str]
    """The other pools, and why each is planned alone."""


def joinable_pools(model: ModelInput, cluster: ClusterInput, options: SolveOptions) -> Joinable:
    """Return the pools that one job can use together: those of the vendor with most devices."""
    pools = cluster.cluster.pools
    alone: dict[str, str] = {}
    able = []
    for i, pool in enumerate(pools):
        if pool.accelerator.torus:
            alone[pool.name] = (
                f"the links of {pool.accelerator.name} are a torus, which ends at its slice"
            )
            continue
        try:
            make_problem(model, cluster.only(i), options)
        except SearchError as error:
            alone[pool.name] = error.message
            continue
        able.append(i)
    devices: Counter[str] = Counter()
    for i in able:
        devices[pools[i].accelerator.vendor] += pools[i].n_devices
    most = min(devices, key=lambda vendor: (-devices[vendor], vendor)) if devices else ""
    for i in able:
        vendor = pools[i].accelerator.vendor
        if vendor != most:
            alone[pools[i].name] = f"no collective library joins devices of {vendor} and {most}"
    joined = [i for i in able if pools[i].name not in alone]
    return Joinable(in_order(cluster, joined), alone)


def in_order(cluster: ClusterInput, indices: Sequence[int]) -> tuple[int, ...]:
    """Return places of pools in the order that plans name them in, which names do not decide."""
    return tuple(sorted(indices, key=lambda i: _content_key(cluster, i)))


def _content_key(cluster: ClusterInput, index: int) -> tuple[str, str, str]:
    """Return what orders pools: what they are, and names only between pools that are alike."""
    entry = cluster.document["pools"][index]
    what = {key: x for key, x in entry.items() if key not in ("name", "hosts")}
    links = sorted(
        json.dumps([link.bytes_per_s, link.latency_s, link.price_per_byte, link.is_wan])
        for link in cluster.cluster.links
        if entry["name"] in link.pools
    )
    return json.dumps(what, sort_keys=True), json.dumps(links), entry["name"]
