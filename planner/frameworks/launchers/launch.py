"""Launch files: what starts a framework's script on every node, ranks where the plan wants them.

The script of a framework (`megatron.sh`, ...) starts the processes of one node and is told three
things: NODE_RANK, MASTER_ADDR, MASTER_PORT. Rank = NODE_RANK x processes per node + device, so
that ranks stand as `planner.frameworks.launchers.placement` says as soon as node ranks follow the
network. The files here see to that: each finds the node's place in the list of hosts, or, where no
hosts are named, keeps the nodes of a domain or leaf together.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hardware.parts import Pool, Tier
from planner.frameworks.launchers.placement import Placement

MAX_NAME = 40
"""Characters of a job's name: with what JobSet appends, a host name has at most 63."""


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring nodes that the plan wants near one another."""

    n_nodes: int
    tier: str
    """`scale-up` for a domain larger than a node, else the name of the lowest tier."""
    groups: tuple[str, ...]
    """Kinds of groups that reach over several nodes and stay inside one block."""
    n_least: int
    """Nodes of the widest of them: blocks of this size would do for these groups."""

    @property
    def is_domain(self) -> bool:
        """True for a scale-up domain, false for a leaf of the network."""
        return self.tier == "scale-up"


@dataclass(frozen=True, slots=True)
class Launch:
    """What every launcher is written from."""

    script: str
    """Name of the framework's script, such as `megatron.sh`."""
    files: Mapping[str, str]
    """All files of the framework, the script among them; without what only a smoke run needs."""
    name: str
    """Name of the job: small letters, digits and dashes."""
    header: Sequence[str]
    """Comment lines that name the plan."""
    placement: Placement
    pool: Pool
    block: Block | None
    """None where all nodes are alike to the plan."""

    @property
    def framework(self) -> str:
        """The script's name without its ending."""
        return self.script.removesuffix(".sh")

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts in network order; empty when none were named."""
        return self.placement.hosts if self.placement.hosts_known else ()

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.placement.hosts)

    @property
    def per_node(self) -> int:
        """Processes, and devices, on each node."""
        return self.placement.devices_per_node

    @property
    def whole_nodes(self) -> bool:
        """False when a node has more devices than the plan uses, so that jobs may share it."""
        return self.per_node >= self.pool.accelerator.devices_per_node


def job_name(text: str) -> str:
    """Return a name that Slurm and Kubernetes take, its end kept: it tells plans apart.

    >>> job_name("Llama3 70B/eba7b3f3133a"), job_name("7b-1")
    ('llama3-70b-eba7b3f3133a', 'job-7b-1')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = plain[-MAX_NAME:].strip("-")
    return plain if plain[:1].isalpha() else f"job-{plain}"


def block_of(placement: Placement, tiers: Sequence[Tier]) -> Block | None:
    """Return the blocks of neighbouring nodes that the plan counts on, if any.

    Scale-up domains larger than a node always; else units of the lowest tier where some group of
    several nodes stays inside one.
    """
    n_nodes, several = len(placement.hosts), [g for g in placement.groups if g.n_nodes > 1]
    if n_nodes == 1:
        return None
    if placement.nodes_per_domain > 1:
        size, tier = placement.nodes_per_domain, "scale-up"
        inside = [group for group in several if group.n_domains == 1]
    elif tiers:
        size, tier = min(tiers[0].n_nodes, n_nodes), tiers[0].name
        inside = [group for group in several if group.tier == tier]
        if not inside:
            return None
    else:
        return None
    names = tuple(group.name for group in inside)
    return Block(size, tier, names, max((group.n_nodes for group in inside), default=1))
