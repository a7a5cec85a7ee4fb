"""Scale-up domains of which jobs use a part: 64 of an NVL72's 72 devices.

Groups of 16, 32 or 64 ranks that follow one another over racks of 72 straddle two of them; over
16 of a rack's 18 nodes they do not. Schedulers give a job the same number of nodes of every rack
(Slurm: --segment). Of nodes that are no whole racks it takes equal parts of as few as hold them.
"""

from dataclasses import replace
from typing import Any

from hardware.parts import Pool


def _racks(pool: Pool) -> tuple[int, int]:
    """Return the nodes of a scale-up domain, and the fewest domains that hold the pool's nodes."""
    nodes = pool.scale_up_domain // pool.devices_per_node
    return nodes, -(-pool.n_nodes // nodes)


def segments(pool: Pool) -> tuple[int, ...]:
    """Return the parts of a domain that are worth trying beside the whole, devices each.

    The largest power of two in nodes, and equal parts where the nodes are no whole domains.
    """
    if pool.scale_up_domain <= pool.devices_per_node:
        return ()
    nodes, n_racks = _racks(pool)
    even = pool.n_nodes // n_racks
    power = 1 << (even.bit_length() - 1)
    sizes = {size for size in (even, power) if 1 < size < nodes}
    return tuple(size * pool.devices_per_node for size in sorted(sizes, reverse=True))


def whole_segment(n_nodes: int, nodes: int) -> int:
    """Return the nodes of every domain of `nodes` that a job takes which uses all its `n_nodes`.

    The most that divide them, so that no node of the job is left over. Where the fewest domains
    that hold the job divide its nodes, that is an equal part of each (the first of `segments`).
    Source: launch scripts of NeMo and Megatron Bridge, which pass this number to --segment.

    >>> whole_segment(64, 18), whole_segment(36, 18), whole_segment(24, 18), whole_segment(16, 18)
    (16, 18, 12, 16)
    """
    return next(used for used in range(min(nodes, n_nodes), 0, -1) if n_nodes % used == 0)


def with_segment(pool: Pool, used: int) -> Pool:
    """Return a pool of which jobs use `used` nodes of every scale-up domain."""
    nodes = pool.scale_up_domain // pool.devices_per_node
    return replace(
        pool,
        scale_up_domain=used * pool.devices_per_node,
        domain_nodes=nodes if used < nodes else 0,
    )


def in_segments(pool: Pool, segment: int) -> Pool:
    """Return a pool of which jobs use `segment` devices of every scale-up domain.

    Fewer where its nodes do not go round.
    """
    _, n_racks = _racks(pool)
    used = min(segment // pool.devices_per_node, pool.n_nodes // n_racks)
    return replace(with_segment(pool, used), n_nodes=used * n_racks)


def segment_keys(pool: Pool, segment: int) -> tuple[tuple[str, Any], ...]:
    """Return what a cluster document says of `in_segments`: the whole pool, and the part."""
    return (
        ("nodes", pool.n_nodes),
        ("scale_up_domain", pool.scale_up_domain),
        ("segment", segment),
    )


def hosts_in_segments(hosts: tuple[str, ...], pool: Pool, used: Pool) -> tuple[str, ...]:
    """Return the hosts of the whole pool that jobs use, the first of every domain."""
    nodes, _ = _racks(pool)
    if not hosts or pool.n_nodes % nodes:
        return hosts[: used.n_nodes]
    maximum = used.scale_up_domain // used.devices_per_node
    return tuple(host for i, host in enumerate(hosts) if i % nodes < maximum)
