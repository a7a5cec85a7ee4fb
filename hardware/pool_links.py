"""Links between the pools of a cluster: those that it states, and what its fabric leaves."""

from math import prod

from hardware.parts import Cluster, Pool, PoolLink


def way_out_bytes_per_s(pool: Pool, cluster: Cluster) -> float:
    """Return what all devices of a pool send out of it together, one-way.

    n_devices B_nic / product of the oversubscription of all tiers of the fabric.
    """
    over = prod(tier.oversubscription for tier in cluster.fabric.tiers)
    return pool.n_devices * pool.nic_bytes_per_s / over


def link_between(cluster: Cluster, first: Pool, second: Pool) -> PoolLink:
    """Return the link between two pools: the stated one, or the way over the common fabric.

    The latter carries what the smaller way out of the two does, each message at the larger
    latency of the two NICs. Left out: traffic of other pairs of pools over the same switches.
    """
    names = {first.name, second.name}
    stated = next((x for x in cluster.links if set(x.pools) == names), None)
    if stated is not None:
        return stated
    return PoolLink(
        pools=(first.name, second.name),
        bytes_per_s=min(way_out_bytes_per_s(x, cluster) for x in (first, second)),
        latency_s=max(first.nic.p2p_latency_s, second.nic.p2p_latency_s),
    )
