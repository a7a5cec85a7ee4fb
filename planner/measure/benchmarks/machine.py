"""The pool that measurements belong to: of a cluster file, or the usual one of their devices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hardware.catalogue import UnknownPartError, load_catalogue
from hardware.parts import Fabric, Pool
from planner.errors import UsageError
from planner.measure.benchmarks.sweep import SizeSweep
from planner.specs.importers.clusters.accelerators import identify
from planner.specs.importers.clusters.facts import Evidence
from planner.specs.inputs import ClusterInput
from planner.specs.loader import cluster_from_dict, load_cluster


@dataclass(frozen=True, slots=True)
class Where:
    """A pool with the catalogue's figures, and its fabric."""

    pool: Pool
    fabric: Fabric
    notes: tuple[str, ...] = ()


def find_pool(
    device: str, sweeps: Sequence[SizeSweep], cluster: str = "", pool: str = "", link: str = ""
) -> Where:
    """Return the pool of `cluster`, or the usual nodes of `device` as its driver calls it.

    `link` is the network between the nodes where no cluster says it. Raises `UsageError` where the
    pool is not decided, or its nodes are not those of the sweeps.
    """
    if cluster and link:
        raise UsageError("--link is what the cluster file says", "give --cluster or --link")
    if pool and not cluster:
        raise UsageError("--pool names a pool of a cluster file", "--cluster CLUSTER")
    part = _part(device) if device else ""
    busy = max((sweep.busy_per_node for sweep in sweeps), default=1)
    n_nodes = max((sweep.n_nodes for sweep in sweeps), default=1)
    if cluster:
        result = _of_cluster(load_cluster(cluster), cluster, pool, part)
    elif part:
        result = _usual(part, busy, n_nodes, link)
    else:
        what = f"{device!r} is no accelerator of the catalogue" if device else "no device is named"
        raise UsageError(f"{what}, so its links are not known", "--cluster CLUSTER")
    here, wide = result.pool, result.pool.devices_per_node
    if part and part != here.accelerator.name:
        base = load_catalogue().accelerators.get(here.accelerator.name)
        if base is not None:  # else: spelled out in the cluster file
            message = f"the times are of {part}, the pool has {here.accelerator.name}"
            raise UsageError(message, "give the cluster that they were taken on")
    if busy > wide:
        message = f"the times are of {busy} devices a node, {here.name} has {wide}"
        raise UsageError(message, "give the cluster that they were taken on")
    return result


def _part(device: str) -> str:
    """Return the catalogue name of what a driver calls a device; empty where it is not decided."""
    return identify(Evidence(name=device), 8, load_catalogue(), {}).part


def _of_cluster(cluster: ClusterInput, name: str, pool: str, part: str) -> Where:
    if pool:
        cluster = cluster.pool(pool)
    pools = cluster.cluster.pools
    fitting = [one for one in pools if one.accelerator.name == part] if len(pools) > 1 else pools
    if len(fitting) != 1:
        names = ", ".join(one.name for one in pools)
        raise UsageError(f"{name} has several pools that may be meant", f"--pool, one of {names}")
    return Where(fitting[0], cluster.cluster.fabric)


def _usual(part: str, busy: int, n_nodes: int, link: str) -> Where:
    entry: dict[str, Any] = {"accelerator": part, "nodes": n_nodes}
    catalogue = load_catalogue()
    if link:
        try:
            named = catalogue.link(link)
        except UnknownPartError as error:
            raise UsageError(f"--link: {error}") from None
        if named.kind != "scale-out":
            message = f"--link: {named.name} is a link inside a node, told from the accelerator"
            raise UsageError(message, "name the network between the nodes, such as ib-ndr-400")
        entry["nic"] = named.name
    if busy > catalogue.accelerator(part).devices_per_node:
        entry["accelerators_per_node"] = busy
    value = cluster_from_dict({"name": part, "pools": [entry], "fabric": {}})
    pool = value.cluster.pools[0]
    notes: tuple[str, ...] = ()
    if n_nodes > 1 and not link:
        ports = f"{pool.nics_per_node} ports of {pool.nic.name}"
        notes = (f"nodes taken to be the usual ones: {ports}; --cluster or --link says otherwise",)
    return Where(pool, value.cluster.fabric, notes)
