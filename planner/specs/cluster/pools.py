"""One pool of a cluster file: its accelerator, network, host and free nodes."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from hardware.parts import (
    PROTOCOLS,
    Accelerator,
    Fabric,
    Host,
    Link,
    Platform,
    Pool,
    Provenance,
)
from planner import units
from planner.errors import SpecError
from planner.option_names import command
from planner.specs.cluster.segments import hosts_in_segments, in_segments, segment_keys, segments
from planner.specs.cluster.slices import slice_devices, slice_fault, slice_keys
from planner.specs.contradictions import domain_fault, segment_fault
from planner.specs.importers.hostlist import compress_hosts, expand_hosts
from planner.specs.inputs import OtherUse, PoolSource
from planner.specs.schema import AcceleratorSpec, PoolSpec, SpecFault
from planner.specs.yaml.document import Document, KeyPath
from planner.specs.yaml.faults import raise_faults

if TYPE_CHECKING:
    from hardware.catalogue import Catalogue


Part = TypeVar("Part", Accelerator, Link, Platform)


EVERY_FIGURE = "every figure (announced)"
"""Stands for the figures of a part that nobody has measured."""


IN_SWITCH_MIN_RANKS = 6
"""Smallest group for which a library lets switches sum, where a file gives such a rate to a part
without one: as on Blackwell."""


_SCALE_UP_FIGURES = (
    "scale_up_bytes_per_s",
    "ring_bytes_per_s",
    "in_switch_all_reduce_bytes_per_s",
)


HOST_KEYS = ("host_link", "host_memory", "host_memory_bandwidth")
"""What a cluster file may say about the host of a node."""


def read_pool(
    spec: PoolSpec, index: int, fabric: Fabric, catalogue: "Catalogue", document: Document
) -> tuple[Pool, Any, PoolSource]:
    """Return one pool, its accelerator as the canonical document names it, and its source."""
    path: KeyPath = ("pools", index)
    platform = _platform(spec, path, catalogue, document)
    accelerator, base_name = _accelerator(spec, platform, path, catalogue, document)
    usual = platform.devices_per_node if platform else accelerator.devices_per_node
    devices_per_node = spec.accelerators_per_node or usual
    nic_name, n_usual = _nic_name(spec, platform, base_name, devices_per_node, catalogue)
    nic = _nic(spec, nic_name, base_name, path, catalogue, document)
    n_nics = spec.nics_per_node or n_usual
    n_nodes, per_node = _free(spec, devices_per_node, path, document)
    raise_faults(document, [slice_fault(spec, accelerator, spec.nodes * devices_per_node, path)])
    domain = (
        slice_devices(spec, accelerator)
        or spec.scale_up_domain
        or default_domain(accelerator, spec.nodes * devices_per_node, devices_per_node)
    )
    if (
        accelerator.scale_up_domain > accelerator.devices_per_node
        and domain % devices_per_node == 0
    ):
        domain = min(domain, spec.nodes * devices_per_node)  # a part of a rack
    raise_faults(
        document,
        [
            domain_fault((*path, "scale_up_domain"), domain, spec.nodes, devices_per_node),
            segment_fault((*path, "segment"), spec.segment, domain, devices_per_node),
            _power_fault(spec, accelerator, (*path, "power_limit")),
            _sharp_fault(fabric, nic),
            _tier_inside_domain_fault(fabric, domain // devices_per_node),
        ],
    )
    if spec.power_limit and spec.power_limit < accelerator.tdp_w:
        accelerator = dataclasses.replace(accelerator, power_limit_w=spec.power_limit)
    scale_up = catalogue.link(accelerator.scale_up_link)
    network = _replaced_network(spec, accelerator, scale_up, nic)
    pool = Pool(
        name=spec.name or accelerator.name,
        accelerator=_summing(spec, accelerator, path, document),
        n_nodes=n_nodes,
        devices_per_node=per_node,
        scale_up_domain=_free_domain(domain, devices_per_node, n_nodes, per_node),
        scale_up=_with_hop(scale_up, spec.scale_up_latency),
        nics_per_node=max(1, n_nics * per_node // devices_per_node),
        nic=_with_hop(nic, spec.nic_latency),
        memory_margin_bytes=spec.memory_margin,
        n_summing_tiers=fabric.n_summing_tiers,
        host=_host(spec, accelerator, devices_per_node, path, document),
        slice=spec.slice or (),
    )
    full = pool
    replaced_keys: tuple[tuple[str, Any], ...] = ()
    if spec.segment and spec.segment < domain and spec.free_devices is None:
        pool = in_segments(full, spec.segment)
        replaced_keys = segment_keys(full, spec.segment)
    raise_faults(document, [_margin_fault(pool, path)])
    named = _canonical_accelerator(accelerator.name, spec.accelerator, base_name)
    hosts = _hosts(spec, n_nodes, per_node, path, document)
    own_ports = spec.nic is not None or spec.nics_per_node is not None
    keys = ("nodes",) if spec.free_nodes is None else ("nodes", "free_nodes")
    # A rack that grows with its nodes may outgrow the lowest tier, which then has to grow too.
    grows = spec.scale_up_domain is None and domain < default_domain(
        accelerator, accelerator.scale_up_domain, devices_per_node
    )
    source = PoolSource(
        index=index,
        assumed=_assumed(pool, None if own_ports else platform),
        node_keys=() if spec.free_devices or (grows and fabric.tiers) else keys,
        own_domain=spec.scale_up_domain is not None or spec.slice is not None,
        hosts=hosts_in_segments(hosts, full, pool) if replaced_keys else hosts,
        host=_stated_host(spec),
        network=(*network, *slice_keys(pool)),
        announced=_announced(base_name, pool, catalogue),
        file_fields=(
            *replaced_keys,
            *((("hosts", compress_hosts(hosts)),) if replaced_keys and hosts else ()),
        ),
    )
    return pool, named, source


def other_uses(
    spec: PoolSpec, pool: Pool, entry: Mapping[str, Any], path: KeyPath, document: Document
) -> tuple[OtherUse, ...]:
    """Return the other ways to use the nodes of a pool that was read, whose document is `entry`.

    Every other number of devices of a node where nodes may be used in part; of racks the devices
    into which groups of powers of two fit.
    """
    if spec.partial_nodes and spec.free_devices:
        return _other_shares(spec, pool, entry, path, document)
    if spec.segment or spec.free_devices:
        return ()
    hosts = _hosts(spec, pool.n_nodes, pool.devices_per_node, path, document)
    results = []
    for size in segments(pool):
        used = dataclasses.replace(
            in_segments(pool, size), name=f"{pool.name}-{size}-of-{pool.scale_up_domain}"
        )
        message = {**entry, **dict(segment_keys(pool, size)), "name": used.name}
        results.append(OtherUse(used, message, hosts_in_segments(hosts, pool, used)))
    return tuple(results)


def _other_shares(
    spec: PoolSpec, pool: Pool, entry: Mapping[str, Any], path: KeyPath, document: Document
) -> tuple[OtherUse, ...]:
    free, results = spec.free_devices or [], []
    for share in sorted({*range(1, max(free) + 1)} - {pool.devices_per_node}, reverse=True):
        n_nodes = sum(n >= share for n in free)
        devices_per_node = spec.accelerators_per_node or pool.accelerator.devices_per_node
        n_nics = round(pool.nics_per_node * devices_per_node / pool.devices_per_node)
        nics = max(1, n_nics * share // devices_per_node)
        domain = share
        if pool.scale_up_domain > pool.devices_per_node:  # racks
            nodes_inside = (
                spec.scale_up_domain or pool.accelerator.scale_up_domain
            ) // devices_per_node
            domain = min(nodes_inside, n_nodes) * share
        elif spec.scale_up_domain:
            domain = min(spec.scale_up_domain, share)
        name = f"{pool.name}-{share}-a-node"
        used = dataclasses.replace(
            pool,
            name=name,
            n_nodes=n_nodes,
            devices_per_node=share,
            scale_up_domain=domain,
            nics_per_node=nics,
        )
        hosts = _hosts(spec, n_nodes, share, path, document)
        message = {
            **entry,
            "name": name,
            "nodes": n_nodes,
            "accelerators_per_node": share,
            "scale_up_domain": domain,
            "nics_per_node": nics,
        }
        message |= {"hosts": compress_hosts(hosts)} if hosts else {}
        results.append(OtherUse(used, message, hosts))
    return tuple(results)


_LATENCIES = ("ring_base_s", "ring_hop_s", "tree_base_s", "tree_hop_s")
"""Fields of a link that hold a latency for each protocol."""


_LL = PROTOCOLS.index("ll")


def _replaces_hop(link: Link, hop_s: float | None) -> bool:
    """Tell whether a file states another hop than the catalogue, whatever the unit."""
    return hop_s is not None and not math.isclose(hop_s, link.ring_hop_s[_LL], rel_tol=1e-9)


def _with_hop(link: Link, hop_s: float | None) -> Link:
    """Return a link whose hop takes `hop_s` with the fastest protocol; None: as it is.

    All its latencies change by the same factor: those of the other protocols and of a message,
    and the library's constants for sums in its switches.
    """
    if not _replaces_hop(link, hop_s):
        return link
    assert hop_s is not None
    ratio = hop_s / link.ring_hop_s[_LL]
    scaled = {key: tuple(x * ratio for x in getattr(link, key)) for key in _LATENCIES}
    gone = {*_LATENCIES, "p2p_latency_s"}
    changes: dict[str, Any] = {
        **scaled,
        "p2p_latency_s": link.p2p_latency_s * ratio,
        "latency_factor": link.latency_factor * ratio,
        "provenance": {k: v for k, v in link.provenance.items() if k not in gone},
    }
    return dataclasses.replace(link, **changes)


def _summing(spec: PoolSpec, part: Accelerator, path: KeyPath, document: Document) -> Accelerator:
    """Return the accelerator with in-switch sums switched off where the pool says so."""
    rate = part.in_switch_all_reduce_bytes_per_s
    if spec.sums_in_switch and not rate:
        message = f"no rate is known at which switches of {part.name} sum"
        fix = "state `in_switch_bandwidth` in a mapping under `accelerator`, or leave this key out"
        raise SpecError(document.problem((*path, "sums_in_switch"), message, fix))
    if spec.sums_in_switch is not False or not rate:
        return part
    return dataclasses.replace(
        part,
        in_switch_all_reduce_bytes_per_s=0.0,
        in_switch_min_ranks=0,
        provenance={k: v for k, v in part.provenance.items() if not k.startswith("in_switch")},
    )


def _replaced_network(
    spec: PoolSpec, part: Accelerator, scale_up: Link, nic: Link
) -> tuple[tuple[str, str | bool], ...]:
    """Return latencies, switch and power limit that the file replaces, as it would state them."""
    results: list[tuple[str, str | bool]] = []
    for key, hop_s, link in (
        ("scale_up_latency", spec.scale_up_latency, scale_up),
        ("nic_latency", spec.nic_latency, nic),
    ):
        if _replaces_hop(link, hop_s):
            results.append((key, units.exact_time(hop_s or 0.0)))
    if spec.sums_in_switch is False and part.in_switch_all_reduce_bytes_per_s:
        results.append(("sums_in_switch", False))
    if part.power_limit_w:
        results.append(("power_limit", f"{part.power_limit_w!r} W"))
    return tuple(results)


def _announced(base_name: str, pool: Pool, catalogue: "Catalogue") -> tuple[str, ...]:
    """Return the catalogue names of the parts of a pool that nobody has measured."""
    parts = (catalogue.accelerator(base_name), pool.scale_up, pool.nic)
    return tuple(part.name for part in parts if part.status == "assumed")


def _host(
    spec: PoolSpec, part: Accelerator, per_node: int, path: KeyPath, document: Document
) -> Host | None:
    """Return a device's share of its host: what the file says, else the usual platform's."""
    usual = part.host
    figures = [getattr(spec, key) for key in HOST_KEYS]
    if not any(figures):
        return usual
    missing = [key for key, value in zip(HOST_KEYS, figures, strict=True) if not value]
    if missing and usual is None:
        message = f"the host of {part.name} is not in the catalogue, and {missing[0]} is missing"
        key = next(key for key, value in zip(HOST_KEYS, figures, strict=True) if value)
        fix = f"give all of {', '.join(HOST_KEYS)}, or none"
        raise SpecError(document.problem((*path, key), message, fix))
    link, memory, bandwidth = figures
    base = usual or Host(0.0, 0.0, 0.0)
    return Host(
        link or base.link_bytes_per_s,
        memory / per_node if memory else base.memory_bytes,
        bandwidth / per_node if bandwidth else base.memory_bytes_per_s,
    )


def _platform(
    spec: PoolSpec, path: KeyPath, catalogue: "Catalogue", document: Document
) -> Platform | None:
    if spec.instance is None:
        return None
    key = (*path, "instance")
    return _part(catalogue.platform, spec.instance, "instance", document, key)


def _free(spec: PoolSpec, per_node: int, path: KeyPath, document: Document) -> tuple[int, int]:
    """Return the nodes that plans may use, and how many devices of each."""
    free = spec.free_devices
    if free is None:
        return spec.free_nodes or spec.nodes, per_node
    key = (*path, "free_devices")
    for i, n in enumerate(free):
        if n > per_node:
            message = f"{n} free devices in a node of {per_node}"
            raise SpecError(document.problem((*key, i), message, f"give at most {per_node}"))
    # Most devices in use; of equal totals the fuller nodes, which have fewer neighbours.
    shares = range(1, per_node + 1) if spec.partial_nodes else (per_node,)
    total, share = max((n * sum(x >= n for x in free), n) for n in shares)
    if not total:
        fix = "wait for one, or set `partial_nodes: true`" if any(free) else "wait for one"
        raise SpecError(document.problem(key, "no node is free", fix))
    return total // share, share


def _hosts(
    spec: PoolSpec, n_nodes: int, per_node: int, path: KeyPath, document: Document
) -> tuple[str, ...]:
    """Return the names of the nodes that plans use."""
    if spec.hosts is None:
        return ()
    names, free = expand_hosts(spec.hosts), spec.free_devices
    n_named = n_nodes if free is None else len(free)
    if len(names) != n_named:
        # With --set another number is meant: the first of the list, or nodes without known names.
        if any((*path, key) in document.overrides for key in ("nodes", "free_nodes")):
            return names[:n_nodes] if len(names) > n_nodes else ()
        which = "nodes that plans use" if free is None else "numbers in `free_devices`"
        message = f"{len(names)} hosts for {n_named} {which}"
        raise SpecError(document.problem((*path, "hosts"), message, "name every one of them once"))
    if free is None:
        return names
    return tuple(name for name, n in zip(names, free, strict=True) if n >= per_node)


def _free_domain(domain: int, n_devices: int, n_nodes: int, per_node: int) -> int:
    """Return the devices of a scale-up domain that a plan may use.

    Free nodes are taken to fill racks from the first on.
    """
    if domain <= n_devices:
        return min(domain, per_node)
    return min(domain // n_devices, n_nodes) * per_node


def _tier_inside_domain_fault(fabric: Fabric, domain_nodes: int) -> SpecFault | None:
    """Refuse a tier smaller than a rack: traffic inside a scale-up domain enters no tier."""
    if not fabric.tiers or fabric.tiers[0].n_nodes >= domain_nodes:
        return None
    tier = fabric.tiers[0]
    message = f"{tier.n_nodes} nodes of tier {tier.name!r} lie in a domain of {domain_nodes} nodes"
    fix = f"give at least {domain_nodes}, or leave the tier out"
    return SpecFault(("fabric", "tiers", 0, "nodes"), message, fix)


def _sharp_fault(fabric: Fabric, nic: Link) -> SpecFault | None:
    if not fabric.n_summing_tiers or nic.sums_in_switch:
        return None
    path: KeyPath = ("fabric", "sharp") if fabric.sharp else ("fabric", "tiers", 0, "sharp")
    message = f"switches of a {nic.name} network do not sum all-reduces"
    return SpecFault(path, message, "set it for InfiniBand from HDR on, such as ib-ndr-400")


def default_domain(part: Accelerator, n_devices: int, per_node: int) -> int:
    """Return the devices of a scale-up domain: the catalogue's, beyond a node only in racks."""
    rack = part.scale_up_domain > part.devices_per_node and part.scale_up_domain % per_node == 0
    return min(part.scale_up_domain, n_devices if rack else per_node)


def _accelerator(
    spec: PoolSpec,
    platform: Platform | None,
    pool_path: KeyPath,
    catalogue: "Catalogue",
    document: Document,
) -> tuple[Accelerator, str]:
    """Return the accelerator with the figures that the file replaces, and its catalogue name."""
    path: KeyPath = (*pool_path, "accelerator")
    inline = platform.accelerator if platform else spec.accelerator
    if inline is None or isinstance(inline, str):  # None was refused before
        part = _part(catalogue.accelerator, inline or "", "accelerator", document, path)
        return part, part.name
    base = _part(catalogue.accelerator, inline.like, "accelerator", document, (*path, "like"))
    replaced: dict[str, float] = {}
    if inline.memory:
        replaced["memory_bytes"] = inline.memory
    if inline.hbm_bandwidth:
        replaced["hbm_bytes_per_s"] = inline.hbm_bandwidth
    if inline.scale_up_bandwidth:
        # What collectives reach moves with the data-sheet figure.
        ratio = inline.scale_up_bandwidth / base.scale_up_bytes_per_s
        for name in _SCALE_UP_FIGURES:
            replaced[name] = getattr(base, name) * ratio
    if inline.in_switch_bandwidth:
        replaced["in_switch_all_reduce_bytes_per_s"] = inline.in_switch_bandwidth
        replaced["in_switch_min_ranks"] = base.in_switch_min_ranks or IN_SWITCH_MIN_RANKS
    if inline.power:
        replaced["tdp_w"] = inline.power
    inline_figures = {*replaced, *(f"peak_flops_per_s.{precision}" for precision in inline.peaks)}
    changes: dict[str, Any] = {
        **replaced,
        "name": inline.name or f"{base.name}-custom",
        "peak_flops_per_s": {**base.peak_flops_per_s, **inline.peaks},
        "provenance": {k: v for k, v in base.provenance.items() if k not in inline_figures},
    }
    return dataclasses.replace(base, **changes), base.name


def _nic_name(
    spec: PoolSpec,
    platform: Platform | None,
    base_name: str,
    per_node: int,
    catalogue: "Catalogue",
) -> tuple[str | None, int]:
    """Return the name of the network port, None for an unknown one, and the number in a node.

    Without `nic:` both come from the instance, else from the usual platform of the accelerator;
    otherwise the number defaults to one per device.
    """
    if spec.nic is not None:
        return spec.nic, per_node
    if platform:
        share = per_node / platform.devices_per_node
        return platform.nic, max(1, round(platform.nics_per_node * share))
    usual = catalogue.typical_nics.get(base_name)
    return (usual.link, max(1, round(usual.n_per_device * per_node))) if usual else (None, 0)


def _nic(
    spec: PoolSpec,
    name: str | None,
    base_name: str,
    pool_path: KeyPath,
    catalogue: "Catalogue",
    document: Document,
) -> Link:
    """Return the network port, at the speed that the file gives it."""
    path: KeyPath = (*pool_path, "nic")
    if name is None:
        message = f"is missing, and no usual network port is known for {base_name}"
        raise SpecError(document.problem(path, message, "add `nic:`, such as ib-ndr-400"))
    nic = _part(catalogue.link, name, "link", document, path)
    if nic.kind != "scale-out":
        message = f"{nic.name} is a link inside a node, not a network port"
        raise SpecError(document.problem(path, message, "name a link such as ib-ndr-400"))
    if spec.nic_speed and spec.nic_speed != nic.bytes_per_s:
        sources = {k: v for k, v in nic.provenance.items() if k != "bytes_per_s"}
        nic = dataclasses.replace(nic, bytes_per_s=spec.nic_speed, provenance=sources)
    return nic


def _part(
    find: Callable[[str], Part], name: str, noun: str, document: Document, path: KeyPath
) -> Part:
    """Look a part up in the catalogue; an unknown name is a problem of the file."""
    from hardware.catalogue import UnknownPartError

    try:
        return find(name)
    except UnknownPartError as error:
        close = " or ".join(error.suggestions)
        guess = f"did you mean {close}? " if close else ""
        fix = f"{guess}`" + command("catalog list") + "` shows all names"
        message = f"unknown {noun} {units.shown_value(name)}"
        raise SpecError(document.problem(path, message, fix)) from None


LEAST_POWER_FRAC = 0.25
"""Lowest power limit over the power of the board that is believed: boards accept none below about
a quarter (200 of 700 W), and the law of rates was read off at 500 of 700 W."""


def _power_fault(spec: PoolSpec, part: Accelerator, path: KeyPath) -> SpecFault | None:
    """Refuse a limit that is none, or of which no rate is known."""
    limit, board = spec.power_limit, part.tdp_w
    if limit is None:
        return None
    own = isinstance(spec.accelerator, AcceleratorSpec) and spec.accelerator.power is not None
    if not board:
        message = f"the power of {part.name} itself is not known"
        return SpecFault(path, message, "state it under `accelerator`, as `power`")
    if limit > board or (own and limit == board):
        message = f"{limit:g} W is not below the {board:g} W of the board"
        fix = "leave it out" + ", or give the power of the board under `accelerator`" * own
        return SpecFault(path, message, fix)
    if limit < LEAST_POWER_FRAC * board:
        message = f"{limit:g} W is less than a quarter of the {board:g} W of the board"
        return SpecFault(path, message, f"give {LEAST_POWER_FRAC * board:g} W or more")
    return None


def _margin_fault(pool: Pool, path: KeyPath) -> SpecFault | None:
    if pool.usable_bytes > 0:
        return None
    margin, memory = pool.memory_margin_bytes, pool.accelerator.memory_bytes
    message = f"{units.format_size(margin)} leave nothing of {units.format_size(memory)} of memory"
    return SpecFault((*path, "memory_margin"), message, "lower it; the default is 2 GiB")


def _stated_host(spec: PoolSpec) -> tuple[tuple[str, str], ...]:
    """Return what the file says about the host, as it would be stated there."""
    results = []
    for key in HOST_KEYS:
        value = getattr(spec, key)
        exact = units.exact_size if key == "host_memory" else units.exact_bandwidth
        results += [(key, exact(value))] if value else []
    return tuple(results)


def _canonical_accelerator(
    name: str, accelerator: str | AcceleratorSpec | None, base_name: str
) -> Any:
    if not isinstance(accelerator, AcceleratorSpec):
        return base_name
    exact: dict[str, Any] = {"like": base_name, "name": name}
    if accelerator.memory:
        exact["memory"] = units.exact_size(accelerator.memory)
    for key in ("hbm_bandwidth", "scale_up_bandwidth", "in_switch_bandwidth"):
        if value := getattr(accelerator, key):
            exact[key] = units.exact_bandwidth(value)
    if accelerator.power:
        exact["power"] = f"{accelerator.power!r} W"
    if accelerator.peaks:
        exact["peaks"] = {
            k: units.exact_rate(accelerator.peaks[k]) for k in sorted(accelerator.peaks)
        }
    return exact


def _assumed(pool: Pool, platform: Platform | None) -> tuple[str, ...]:
    """Name the figures in use that the catalogue marks as assumed; of announced parts all at once.

    `platform` is where the ports come from, if from an instance.
    """
    parts: list[tuple[str, Mapping[str, Provenance]]] = []
    for part in (pool.accelerator, pool.scale_up, pool.nic):
        origins = part.provenance
        if part.status == "assumed":
            origins = {EVERY_FIGURE: Provenance("", "", "assumed")}
        parts.append((part.name, origins))
    if platform:
        ports = {k: v for k, v in platform.provenance.items() if k == "nics_per_node"}
        parts.append((platform.name, ports))
    figures = tuple(
        f"{part}.{figure}"
        for part, provenance in parts
        for figure, origin in provenance.items()
        # Figures of the host are named where they count: with plans that offload to it.
        if origin.status == "assumed" and not figure.startswith("host.")
    )
    part = pool.accelerator
    if not part.power_limit_w:
        return figures
    share = f"{part.power_share:.3g} of its rates at {part.power_limit_w:g} of {part.tdp_w:g} W"
    return (*figures, f"{part.name}.power_share ({share})")
