"""What a dump of a cluster says, before it is known which catalogue parts it means."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an input says about the accelerators of a node."""

    name: str = ""
    """What the input calls them; empty where it names none."""
    labels: tuple[str, ...] = ()
    """Other words that may name the part or its form: features, labels."""
    memory_bytes: float = 0.0
    """Memory of one device as the driver reports it; 0: not said."""
    n_links: frozenset[int] = frozenset()
    """Possible numbers of NVLinks of one device, {0} for none; empty: not said."""
    bridged: bool | None = None
    """NVLink joins pairs only, as a bridge does (True), or all devices of a node (False)."""
    pci_id: str = ""
    """Device id on the PCI bus, four hexadecimal digits."""
    capability: str = ""
    """Compute capability such as `9.0`, or AMD's graphics version such as `gfx942`; `cuda` or
    `gfx` where only the maker is known."""


@dataclass(frozen=True, slots=True)
class Ports:
    """What an input says about the network ports of a node for training traffic."""

    link: str = ""
    """Catalogue name of the link; empty: not said."""
    n: int = 0
    """Ports of a node; 0: not said."""
    bytes_per_s: float = 0.0
    """Speed of one port where it is not that of the link; 0: that of the link."""
    kind: str = ""
    """`InfiniBand`, `Ethernet`, `EFA`, ... where the input says no more than that."""
    why: str = ""
    """Where link or kind was read."""
    why_n: str = ""
    """Where the number was read."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a node sits in the network."""

    path: tuple[str, ...] = ()
    """Names of the groups of nodes that hold it, from the widest to that of its own switch."""
    levels: tuple[str, ...] = ()
    """What the groups of `path` are called: `spine`, `leaf`, `block`, ..."""
    domain: str = ""
    """Name of its NVLink domain where that spans nodes."""
    why: str = ""
    """Where it was read."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The accelerators of one kind in a node."""

    evidence: Evidence
    n: int
    """Whole devices."""
    n_free: int
    """Whole devices that work and that nobody uses now; all where the input does not say."""
    shared: str = ""
    """Why they are no whole devices (`MIG slices`, `time-sliced`); empty: they are."""
    resource: str = ""
    """Name of the Kubernetes resource that pods ask for."""
    n_broken: int = 0
    """Devices that the node has and does not offer."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of an inventory."""

    name: str
    devices: tuple[Devices, ...] = ()
    unhealthy: str = ""
    """Why the node is no part of the cluster now (`drained`, `not ready`); empty: it is."""
    busy: str = ""
    """Why none of its devices is free (`allocated`, `reserved`); empty: some may be."""
    cpu_work: bool = False
    """Jobs hold processors or memory of it and none of its devices, which count as free."""
    partitions: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    instance: str = ""
    """Cloud machine or server as the input calls it."""
    position: Position = Position()
    ports: Ports = Ports()


@dataclass(frozen=True, slots=True)
class Hardware:
    """The inside of one node, as seen on it."""

    devices: tuple[Devices, ...]
    ports: Ports = Ports()
    domain: int = 0
    """Devices joined by NVLink or its like inside the node; 0: not said."""
    may_hide_devices: bool = False
    """The dump shows the devices of one job, which may be fewer than the node has."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What one file says."""

    source: str
    """File as the user named it."""
    format: str
    """What the file is, in words."""
    nodes: tuple[Node, ...] = ()
    positions: Mapping[str, Position] = field(default_factory=dict)
    """Of the nodes of a topology, by name."""
    in_use: Mapping[str, Mapping[str, int]] | None = None
    """Devices that pods hold, by node and resource; None: the file lists no pods."""
    hardware: Hardware | None = None
    notes: tuple[str, ...] = ()
