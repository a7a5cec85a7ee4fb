"""From the document of a cluster to its pools, fabric and operations."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hardware.parts import Cluster, Fabric, Operations, Tier
from planner import units
from planner.errors import CatalogError
from planner.specs.cluster.links import canonical_link, link_faults, pool_links
from planner.specs.cluster.pools import other_uses, read_pool
from planner.specs.contradictions import cluster_faults, name_fault
from planner.specs.importers.hostlist import compress_hosts
from planner.specs.inputs import ClusterInput, PoolSource, default_name, import_notes
from planner.specs.schema import ClusterFile, OperationsSpec, PoolSpec
from planner.specs.yaml.document import Document
from planner.specs.yaml.faults import raise_faults, validated

if TYPE_CHECKING:
    from hardware.catalogue import Catalogue


def read_cluster(document: Document) -> ClusterInput:
    """Return a cluster from a document; `SpecError` for what is wrong with it."""
    spec = validated(ClusterFile, document)
    raise_faults(document, cluster_faults(spec))
    catalogue = _catalogue()
    tiers = tuple(Tier(t.name, t.nodes, t.oversubscription, t.sharp) for t in spec.fabric.tiers)
    fabric = Fabric(tiers, spec.fabric.rail_optimized, spec.fabric.sharp)
    read = [
        read_pool(pool_spec, i, fabric, catalogue, document)
        for i, pool_spec in enumerate(spec.pools)
    ]
    pools = tuple(pool for pool, _, _ in read)
    raise_faults(document, [name_fault(i, [p.name for p in pools]) for i in range(len(pools))])
    raise_faults(document, link_faults(spec, [pool.name for pool in pools]))
    cluster = Cluster(spec.name or default_name(document, "cluster"), pools, fabric)
    cluster = dataclasses.replace(cluster, links=pool_links(spec.links, cluster))
    sources = tuple(source for _, _, source in read)
    canonical = _canonical_cluster(cluster, [accelerator for _, accelerator, _ in read], sources)
    for pool, pool_spec in zip(canonical["pools"], spec.pools, strict=True):
        if pool_spec.price_per_hour is not None:
            pool["price_per_hour"] = pool_spec.price_per_hour
        if pool_spec.device_mtbf is not None:
            pool["device_mtbf"] = units.exact_time(pool_spec.device_mtbf)
    sources = tuple(
        dataclasses.replace(source, others=other_uses(pool_spec, pool, entry, path, document))
        for i, (source, pool_spec, pool, entry) in enumerate(
            zip(sources, spec.pools, pools, canonical["pools"], strict=True)
        )
        if (path := ("pools", i))
    )
    if spec.links:
        canonical["links"] = [canonical_link(link) for link in spec.links]
    if operations := _canonical_operations(spec.operations):
        canonical["operations"] = operations
    return ClusterInput(
        cluster=cluster,
        document=canonical,
        path=document.file,
        sources=sources,
        operations=tuple(
            _operations(catalogue.operations, spec.operations, pool_spec)
            for pool_spec in spec.pools
        ),
        notes=import_notes(document),
        from_dump=document.imported is not None and not sets_nodes(document),
    )


def sets_nodes(document: Document) -> bool:
    """Tell whether an option states a number of nodes."""
    return any(path[-1] in ("nodes", "free_nodes") for path in document.overrides)


def _catalogue() -> "Catalogue":
    from hardware.catalogue import CatalogueError, load_catalogue  # only clusters need its files

    try:
        return load_catalogue()
    except CatalogueError as error:
        raise CatalogError(str(error)) from error


def _operations(defaults: Operations, spec: OperationsSpec, pool: PoolSpec) -> Operations:
    """Return the defaults with what the file states in their place."""
    fields = {
        "power_overhead": spec.power_overhead,
        "pue": spec.pue,
        "device_mtbf_s": pool.device_mtbf or spec.device_mtbf,
        "restart_s": spec.restart,
        "checkpoint_bytes_per_s": spec.checkpoint_bandwidth,
        "checkpoint_s": spec.checkpoint_time,
        "price_per_device_hour": pool.price_per_hour,
    }
    changed: dict[str, Any] = {key: value for key, value in fields.items() if value is not None}
    if spec.checkpoint_bandwidth is not None:
        changed["bandwidth_is_per_device"] = False
    sources = {k: v for k, v in defaults.provenance.items() if k not in changed}
    return dataclasses.replace(defaults, **changed, provenance=sources)


def _canonical_operations(operations: OperationsSpec) -> dict[str, Any]:
    """Return what the file states under `operations`, in base units."""
    fields = operations.model_dump(exclude_none=True)
    for key in ("device_mtbf", "restart", "checkpoint_time"):
        if key in fields:
            fields[key] = units.exact_time(fields[key])
    if "checkpoint_bandwidth" in fields:
        fields["checkpoint_bandwidth"] = units.exact_bandwidth(fields["checkpoint_bandwidth"])
    return fields


def _canonical_cluster(
    cluster: Cluster, accelerators: Sequence[Any], sources: Sequence[PoolSource]
) -> dict[str, Any]:
    fabric = cluster.fabric
    return {
        "name": cluster.name,
        "pools": [
            {
                "name": pool.name,
                "accelerator": accelerator,
                "nodes": pool.n_nodes,
                "accelerators_per_node": pool.devices_per_node,
                "scale_up_domain": pool.scale_up_domain,
                "nics_per_node": pool.nics_per_node,
                "nic": pool.nic.name,
                "nic_speed": units.exact_bandwidth(pool.nic.bytes_per_s),
                "memory_margin": units.exact_size(pool.memory_margin_bytes),
            }
            | dict(source.network)
            | dict(source.host)
            | ({"hosts": compress_hosts(source.hosts)} if source.hosts else {})
            | dict(source.file_fields)
            for pool, accelerator, source in zip(cluster.pools, accelerators, sources, strict=True)
        ],
        "fabric": {
            "tiers": [
                {"name": t.name, "nodes": t.n_nodes, "oversubscription": t.oversubscription}
                | ({"sharp": True} if t.sharp else {})
                for t in fabric.tiers
            ],
            "rail_optimized": fabric.rail_optimized,
        }
        # Named only where set: the identity of a plan does not change with what it does not use.
        | ({"sharp": True} if fabric.sharp else {}),
    }
