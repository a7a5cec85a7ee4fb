"""Reads the node that NCCL or RCCL saw: the XML that NCCL_TOPO_DUMP_FILE names.

Entity declarations are refused, so that a small file cannot unfold into a large one.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from xml.etree.ElementTree import Element

from planner.specs.importers.clusters.facts import Devices, Evidence, Facts, Hardware, Ports
from planner.specs.importers.dump_text import bad_dump

_INFINIBAND, _ETHERNET = "0x0207", "0x0200"
_SPEEDS = {
    "InfiniBand": {100: "ib-edr-100", 200: "ib-hdr-200", 400: "ib-ndr-400", 800: "ib-xdr-800"},
    "Ethernet": {100: "roce-100", 200: "roce-200", 400: "roce-400", 800: "roce-800"},
}
"""Catalogue links by kind and speed in Gb/s."""
_AMAZON = "0x1d0f"
_ALPHANUMERIC_CAPABILITY = re.compile(r"gfx[0-9a-f]+")


def looks_like_nccl_topology(text: str) -> bool:
    """Tell whether a text is the topology of a node as NCCL writes it."""
    return bool(re.search(r"<system\b", text[:20_000]) and "<cpu" in text)


def read_nccl_topology(text: str, source: str) -> Facts:
    """Return the inside of a node as NCCL saw it: the devices and ports of one job."""
    if re.search(r"<!(?:DOCTYPE|ENTITY)", text):
        raise bad_dump(source, "declares entities, which NCCL never writes", "dump it again")
    try:
        system = ElementTree.fromstring(text[text.index("<") :].strip())
    except (ElementTree.ParseError, ValueError) as error:
        line = getattr(error, "position", (0, 0))[0]
        raise bad_dump(source, f"is no XML: {error}", "is the file cut off?", line) from None
    if system.tag != "system":
        raise bad_dump(source, f"holds <{system.tag}> where NCCL writes <system>", "")
    hosts: dict[str, list[tuple[Element, Element]]] = {}
    for cpu in system.iter("cpu"):
        hosts.setdefault(cpu.get("host_hash", ""), []).extend(_with_parents(cpu))
    # In a rack with NVLink across nodes one file holds several hosts: the fullest shows the node.
    pairs = max(hosts.values(), key=lambda p: sum(c.tag == "gpu" for _, c in p), default=[])
    gpus = [(pci, gpu) for pci, gpu in pairs if gpu.tag == "gpu"]
    if not gpus:
        raise bad_dump(source, "lists no GPU", "dump it from a job that uses GPUs")
    kinds = Counter(_evidence(pci, gpu) for pci, gpu in gpus)
    hardware = Hardware(
        tuple(Devices(evidence, n, n) for evidence, n in kinds.items()),
        ports=_ports(pairs, len(gpus)),
        may_hide_devices=True,
    )
    maker = "RCCL" if any(gpu.get("gcn") for _, gpu in gpus) else "NCCL"
    return Facts(source, f"{maker} topology", hardware=hardware)


def _with_parents(top: Element) -> Iterator[tuple[Element, Element]]:
    """Yield every element below `top` with the device on the PCI bus that holds it."""
    stack = [(top, top)]
    while stack:
        pci, element = stack.pop()
        for child in element:
            holder = child if child.tag == "pci" else pci
            yield holder, child
            stack.append((holder, child))


def _evidence(pci: Element, gpu: Element) -> Evidence:
    graphics = _ALPHANUMERIC_CAPABILITY.fullmatch(gpu.get("gcn", ""))
    sm = _number(gpu.get("sm"))
    capability = graphics[0] if graphics else f"{sm // 10}.{sm % 10}" if sm else ""
    n_links = sum(_number(link.get("count")) for link in gpu.iter("nvlink"))
    memory = _number(gpu.get("mem"))  # some versions write MiB
    return Evidence(
        memory_bytes=memory * 2.0**20 if 1000 < memory < 10_000_000 else 0.0,
        n_links=frozenset({n_links}) if n_links and not graphics else frozenset(),
        pci_id=pci.get("device", "").removeprefix("0x").lower(),
        capability=capability,
    )


def _ports(pairs: list[tuple[Element, Element]], n_gpus: int) -> Ports:
    """Return the ports of the fastest kind: slower ones serve storage or the front end.

    Of more ports than GPUs, but no multiple of them, one for each GPU counts.
    """
    counter: Counter[tuple[str, int]] = Counter()
    for pci, net in pairs:
        speed = _number(net.get("speed")) if net.tag == "net" else 0
        if speed and "bond" not in net.get("name", ""):
            counter[_kind(pci), speed] += 1
    if not counter:
        return Ports()
    kind, speed = max(counter, key=lambda x: (x[1], counter[x], x[0]))
    n = counter[kind, speed]
    shown = f"{n} ports of {speed / 1000:g} Gb/s"
    if n > n_gpus and n % n_gpus:
        n = n_gpus
    link = _SPEEDS.get(kind, {}).get(round(speed / 1000), "")
    return Ports(link, n if link else 0, kind=kind, why=shown, why_n=shown)


def _kind(pci: Element) -> str:
    if pci.get("vendor") == _AMAZON:
        return "EFA"
    device_class = pci.get("class", "")
    if device_class.startswith(_INFINIBAND):
        return "InfiniBand"
    return "Ethernet" if device_class.startswith(_ETHERNET) else ""


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 12 else 0
