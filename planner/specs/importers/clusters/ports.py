"""Which network ports a node has: read, taken from the machine, assumed and said, or asked for."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.specs.importers.clusters.facts import Ports

if TYPE_CHECKING:
    from hardware.catalogue import Catalogue
    from hardware.parts import Platform

_GENERATIONS = {"edr": "ib-edr-100", "hdr": "ib-hdr-200", "ndr": "ib-ndr-400", "xdr": "ib-xdr-800"}
_GBIT_PER_S = 0.125e9
_WORD = re.compile(
    r"(?<![a-z0-9])(?:(?:ib|infiniband|connectx[0-9]?)[-_]?)?(edr|hdr|ndr|xdr)[-_]?([0-9]{2,3})?"
    r"g?(?![a-z0-9])"
)
_ETHERNET = re.compile(r"(?<![a-z0-9])roce(?:v2)?[-_]?(100|200|400|800)g?(?![a-z0-9])")
_KINDS = (
    ("InfiniBand", re.compile(r"(?<![a-z0-9])(?:ib|infiniband)(?![a-z])")),
    ("Ethernet", re.compile(r"(?<![a-z0-9])(?:roce|ethernet|eth)(?:v2)?(?![a-z])")),
    ("EFA", re.compile(r"(?<![a-z0-9])efa(?![a-z])")),
    ("Omni-Path", re.compile(r"(?<![a-z0-9])(?:opa|omnipath|omni-path)(?![a-z])")),
    ("Slingshot", re.compile(r"(?<![a-z0-9])slingshot(?![a-z])")),
)
KIND_OF_LINK = {"ib": "InfiniBand", "roce": "Ethernet", "efa": "EFA", "opa": "Omni-Path"}
"""By the first word of a link's catalogue name."""


@dataclass(frozen=True, slots=True)
class Network:
    """The ports of a node."""

    instance: str = ""
    """Catalogue machine that says them; link and number are then empty."""
    link: str = ""
    """Catalogue name; empty: not known, and has to be asked for."""
    n: int = 0
    bytes_per_s: float = 0.0
    """Speed of a port where it is not that of the link."""
    why_link: str = ""
    why_n: str = ""
    link_assumed: bool = False
    n_assumed: bool = False
    kind: str = ""
    """What is known of a link that has to be asked for: `InfiniBand`."""


def ports_in_words(labels: Iterable[str]) -> Ports:
    """Return what features or labels say of the ports: `ndr`, `hdr100`, `roce400`, `ib`.

    >>> ports_in_words(["h100", "ib_ndr"]).link
    'ib-ndr-400'
    """
    kind = Ports()
    for word in labels:
        low = word.lower()
        if match := _WORD.search(low):
            link = _GENERATIONS[match[1]]
            speed = int(match[2] or 0)
            odd = speed and speed != int(link.rpartition("-")[2])
            return Ports(link, bytes_per_s=speed * _GBIT_PER_S if odd else 0.0, why=word)
        if match := _ETHERNET.search(low):
            return Ports(f"roce-{match[1]}", why=word)
        for name, pattern in _KINDS:
            if not kind.kind and pattern.search(low):
                kind = Ports(kind=name, why=word)
    return kind


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes that are alike: their devices and what an input says of their ports."""

    part: str
    """Catalogue name of the accelerator."""
    n_devices: int
    instance: str
    """Name of the cloud machine; empty where the input names none."""
    ports: Ports


def port_network_of(
    kind: NodeKind, n_nodes: int, requested: tuple[str, int], catalogue: "Catalogue"
) -> Network:
    """Return the network of so many nodes of a kind.

    `requested` are the user's link and number of ports, empty and 0 where not given. Without a
    word in the input the ports are those of the reference server of the accelerator, marked as
    assumed; a link that stays unknown is empty.
    """
    from hardware.catalogue import UnknownPartError

    link, n = requested
    part, n_devices, ports = kind.part, kind.n_devices, kind.ports
    if kind.instance and not (link or n):
        try:
            machine = catalogue.platform(kind.instance)
        except UnknownPartError:
            machine = None
        if machine and machine.accelerator == part and machine.devices_per_node == n_devices:
            return Network(instance=machine.name, why_link=kind.instance)
    if ports.kind == "EFA" and not (link or n):
        machine = _amazon_machine(part, n_devices, ports.n, catalogue)
        if machine:
            why = f"{ports.why or 'EFA'}; the only machine with EFA and {n_devices} {part}"
            return Network(instance=machine.name, why_link=why, link_assumed=True)
    reference = _reference(part, n_devices, catalogue)
    result = _known_link(part, n_nodes, ports, link, reference, catalogue)
    if not result.link:
        return result
    return _with_number(result, n, n_devices, ports, reference)


def _reference(part: str, n_devices: int, catalogue: "Catalogue") -> "Platform | None":
    """Return the maker's server with this accelerator and number of devices, if there is one."""
    servers = (p for p in catalogue.platforms.values() if p.kind == "platform")
    same = (p for p in servers if (p.accelerator, p.devices_per_node) == (part, n_devices))
    return next(same, None)


def _amazon_machine(
    part: str, n_devices: int, n_ports: int, catalogue: "Catalogue"
) -> "Platform | None":
    """Return the cloud machine with EFA ports that fits, if only one does."""
    fitting = [
        p
        for p in catalogue.platforms.values()
        if (p.accelerator, p.devices_per_node) == (part, n_devices)
        and p.nic.startswith("efa-")
        and n_ports in (0, p.nics_per_node)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _known_link(
    part: str,
    n_nodes: int,
    ports: Ports,
    nic: str,
    reference: "Platform | None",
    catalogue: "Catalogue",
) -> Network:
    if nic:
        return Network(link=catalogue.link(nic).name, why_link="given with --nic")
    if ports.link:
        return Network(link=ports.link, bytes_per_s=ports.bytes_per_s, why_link=ports.why)
    same_number = reference and ports.n in (0, reference.nics_per_node)
    if reference and same_number and ports.kind in ("", port_kind_of(reference.nic)):
        message = f"{ports.kind}, and " if ports.kind else "the input does not say, and "
        why = f"{message}{reference.name} has it"
        return Network(link=reference.nic, why_link=why, link_assumed=True)
    if n_nodes == 1 and not ports.kind and part in catalogue.typical_nics:
        why = "the input does not say; in one node nothing uses it"
        return Network(link=catalogue.typical_nics[part].link, why_link=why, link_assumed=True)
    return Network(kind=ports.kind)


def _with_number(
    network: Network, n_nics: int, n_devices: int, ports: Ports, reference: "Platform | None"
) -> Network:
    n, why, assumed = n_devices, "the input does not say; one for every device", True
    if n_nics:
        n, why, assumed = n_nics, "given with --nics", False
    elif ports.n:
        n, why, assumed = ports.n, ports.why_n, False
    elif reference:
        n, why = reference.nics_per_node, f"the input does not say; as in {reference.name}"
    return Network(
        link=network.link,
        n=n,
        bytes_per_s=network.bytes_per_s,
        why_link=network.why_link,
        why_n=why,
        link_assumed=network.link_assumed,
        n_assumed=assumed,
    )


def port_kind_of(link: str) -> str:
    """Return the kind of network that a catalogue link belongs to."""
    return KIND_OF_LINK.get(link.partition("-")[0], "")
