"""Times of a collective over message sizes, and the group of the model that they belong to."""

from dataclasses import dataclass, replace

from costmodels.comm.collectives import collective_s, point_to_point_s
from costmodels.comm.placement import Group, RankSpacing, place_spaced_group
from hardware.parts import Fabric, Pool

SEND_RECEIVE = "send-receive"
"""Every rank sends to the next of its group and receives from the one before."""


@dataclass(frozen=True, slots=True)
class SizeSweep:
    """One collective on one set of equal groups that run at the same time."""

    source: str
    """File and line, or file and entry, as messages and tables name it."""
    collective: str
    """A key of `costmodels.comm.collectives.ALGORITHMS`, or `SEND_RECEIVE`."""
    n_ranks: int
    """Ranks of one group."""
    n_nodes: int
    """Nodes over which one group is spread."""
    busy_per_node: int
    """Devices of a node that take part, of all groups together."""
    sizes_bytes: tuple[float, ...]
    """The whole logical tensor, as in `costmodels.comm.collectives`; the message of a send."""
    times_s: tuple[float, ...]
    device: str = ""
    """What the driver calls the accelerator; empty where the source does not say."""

    @property
    def ranks_per_node(self) -> int:
        """Ranks of one group on each of its nodes."""
        return self.n_ranks // self.n_nodes

    @property
    def place_words(self) -> str:
        """How many ranks where, in words."""
        nodes = f"{self.n_nodes} node" + ("s" if self.n_nodes > 1 else "")
        text = f"{self.n_ranks} ranks on {nodes}"
        n_groups = self.busy_per_node // self.ranks_per_node
        return text + (f", {n_groups} groups at once" if n_groups > 1 else "")


def nodes_per_domain(pool: Pool) -> int:
    """Return how many whole nodes share one scale-up domain, at least one."""
    return max(1, pool.scale_up_domain // pool.devices_per_node)


def n_domains(sweep: SizeSweep, pool: Pool) -> int:
    """Return the scale-up domains over which the group lies, its nodes packed into racks."""
    return -(-sweep.n_nodes // nodes_per_domain(pool))


def measured_group(sweep: SizeSweep, pool: Pool, fabric: Fabric) -> tuple[Group, Pool]:
    """Return the group as placed, and the pool of the devices that took part.

    The pool has as many devices per node as were busy, with the network ports that those reach:
    their share where ports are fewer than devices or as many, one each where some stood idle.
    Nodes of a rack are taken to be packed.
    """
    busy, total, ports = sweep.busy_per_node, pool.devices_per_node, pool.nics_per_node
    reached = max(ports * busy // total, min(ports, busy))
    domain = max(1, min(nodes_per_domain(pool), sweep.n_nodes) * busy)
    if pool.scale_up_domain < total:
        domain = max(1, min(pool.scale_up_domain, busy))
    here = replace(
        pool,
        n_nodes=sweep.n_nodes,
        devices_per_node=busy,
        nics_per_node=max(1, reached),
        scale_up_domain=domain,
    )
    stride = max(1, busy // sweep.ranks_per_node)
    spacing = RankSpacing(sweep.ranks_per_node, stride, sweep.n_nodes, busy)
    if sweep.ranks_per_node == 1:
        spacing = RankSpacing(sweep.n_nodes, busy)
    elif sweep.n_nodes == 1 or stride == 1:
        spacing = RankSpacing(sweep.n_ranks, stride)
    return place_spaced_group(spacing, here, fabric), here


def predicted_s(sweep: SizeSweep, pool: Pool, fabric: Fabric) -> "list[float]":
    """Return the model's times of the sweep's sizes on a pool, seconds."""
    group, here = measured_group(sweep, pool, fabric)
    if sweep.collective == SEND_RECEIVE:
        times = point_to_point_s(sweep.sizes_bytes, group, here)
    else:
        times = collective_s(sweep.collective, sweep.sizes_bytes, group, here)
    results: list[float] = times.tolist()
    return results
