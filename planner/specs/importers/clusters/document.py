"""The cluster file of an inventory: pools, what is free, network order, tiers, origins."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hardware.parts import Accelerator
from planner import units
from planner.specs.importers.clusters.facts import Node
from planner.specs.importers.clusters.members import (
    ImportContext,
    Member,
    NodeGroup,
    count_of,
    groups_of,
)
from planner.specs.importers.clusters.node_groups import Arrangement, Level, arrange
from planner.specs.importers.clusters.racks import arranged_in_racks, racks_of, sizes_text
from planner.specs.importers.hostlist import compress_hosts, natural_key
from planner.specs.importers.imported import Imported, Origin

Path = tuple[str | int, ...]
ANONYMOUS = ""
"""Name of the node that a dump of its inside describes, where nobody names it."""
_RAILED = ("ib-", "roce-")
"""Links whose ports of one index usually share a switch."""


@dataclass(slots=True)
class _Draft:
    """The file while it is written."""

    origins: list[Origin] = field(default_factory=list)

    def put(
        self,
        entry: dict[str, Any],
        path: Path,
        value: Any,
        why: str,
        assumed: bool = False,
    ) -> None:
        """Set the field of `entry` that `path` ends in, and say where it came from."""
        entry[str(path[-1])] = value
        self.origins.append(Origin(path, why, assumed))

    def assume(self, path: Path, key: str, text: str) -> None:
        """Mark a field that is set as assumed, and say more of where it came from."""
        field_path = (*path, key)
        self.origins = [
            replace(x, text=f"{x.text}; {text}", assumed=True) if x.path == field_path else x
            for x in self.origins
        ]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The nodes of a pool that plans use, in network order."""

    arrangement: Arrangement
    free: Mapping[str, int]
    """Free devices of every healthy node."""
    share: int
    """Devices of each node that plans use."""
    domain: int = 0
    """Devices of a scale-up domain where the file has to say it; 0: as the catalogue has it."""
    why_domain: str = ""
    domain_assumed: bool = False

    @property
    def order(self) -> tuple[str, ...]:
        """The nodes in use."""
        return self.arrangement.order


def build_cluster_file(nodes: Sequence[Node], context: ImportContext) -> Imported:
    """Return the cluster file of these nodes.

    Raises `SpecError` with all questions that are open, and when no node is free.
    """
    draft = _Draft()
    document: dict[str, Any] = {}
    name, why = _name(context)
    draft.put(document, ("name",), name, why)
    pools: list[dict[str, Any]] = []
    document["pools"] = pools
    levels: list[tuple[Level, ...]] = []
    groups = groups_of(nodes, context)
    for group in groups:
        _note_left_out(group, context)
        chosen = _chosen(group, context)
        if chosen.order:
            pools.append(_pool(group, chosen, len(pools), draft, context))
            levels.append(chosen.arrangement.levels)
    if not pools:
        raise _nothing_free(groups, context)
    _name_pools(pools, draft, context)
    if any(pool["nodes"] > 1 for pool in pools):
        document["fabric"] = _fabric(pools, levels, draft, context)
    return Imported(
        kind="cluster",
        document=document,
        origins=tuple(draft.origins),
        source=context.source,
        format="; ".join(dict.fromkeys(one.format for one in context.facts)),
        notes=tuple(context.notes),
    )


def _name(context: ImportContext) -> tuple[str, str]:
    """Return the name of the cluster and where it is from: given, else that of the first file."""
    if context.options.name:
        return context.options.name, "given with --name"
    stem = re.sub(r"\.[A-Za-z]{2,5}$", "", re.split(r"[\\/]", context.facts[0].source)[-1])
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", stem).strip("-._+")[:64]
    return (plain, "name of the file") if plain else ("cluster", "the input gives none")


def _nothing_free(groups: Sequence[NodeGroup], context: ImportContext) -> Exception:
    reasons = "; ".join(x for x in context.notes if x.startswith(("not ", "left out")))
    fix = "give a dump that lists healthy nodes with GPUs"
    healthy = any(not m.node.unhealthy for group in groups for m in group.members)
    if healthy and not context.options.everything:
        fix = "--all plans for all healthy nodes, in use or not"
        if any(note.startswith("not used") for note in context.notes):
            fix = "--partial uses nodes in part; --all ignores what is in use"
    return context.error("no node is free" + (f": {reasons}" if reasons else ""), fix)


def _note_left_out(group: NodeGroup, context: ImportContext) -> None:
    """Say which nodes of a pool are left out as unhealthy, and which count as not free."""
    gone: dict[str, list[str]] = {}
    busy: dict[str, list[str]] = {}
    broken: dict[str, list[str]] = {}
    for member in group.members:
        node, devices = member.node, member.devices
        if node.unhealthy:
            gone.setdefault(node.unhealthy, []).append(node.name)
            continue
        if node.busy or not devices.n_free:
            busy.setdefault(node.busy or "no GPU free", []).append(node.name)
        if devices.n_broken:
            what = f"{devices.n_broken} of {devices.n} GPUs not offered"
            broken.setdefault(what, []).append(node.name)
    if gone:
        context.note_nodes("left out", gone)
    if broken:
        context.note_nodes("not whole", broken)
    if busy and context.options.everything:
        n = sum(map(len, busy.values()))
        context.notes.append(f"{count_of(n, 'node')} in use or reserved count as usable (--all)")
    elif busy:
        context.note_nodes("not free now", busy)


def _chosen(group: NodeGroup, context: ImportContext) -> _Chosen:
    """Return the nodes that plans use."""
    healthy = [m for m in group.members if not m.node.unhealthy]
    node_devices = group.n_devices
    free = {m.name: _n_free(m, node_devices, context) for m in healthy}
    in_part = sorted((name for name, n in free.items() if 0 < n < node_devices), key=natural_key)
    if in_part and not context.options.partial:
        n = sum(free[name] for name in in_part)
        hosts = compress_hosts(in_part)
        context.notes.append(
            f"not used: {n} free GPUs of nodes in use in part, {hosts}; --partial uses them"
        )
    part = context.catalogue.accelerators[group.part]
    per_rack = part.scale_up_domain // node_devices
    in_racks = part.scale_up_domain > part.devices_per_node and per_rack > 1
    # As the cluster file picks: most devices in use, of equal totals the fuller nodes. Racks are
    # made of whole nodes.
    shares = (
        range(1, node_devices + 1) if context.options.partial and not in_racks else (node_devices,)
    )
    total, share = max((n * sum(x >= n for x in free.values()), n) for n in shares)
    used = [m for m in healthy if free[m.name] >= share] if total else []
    if in_racks and used:
        racks = racks_of(group.members, per_rack, context)
        arrangement, size = arranged_in_racks(used, group.members, racks, per_rack, context)
        arrangement = _first_nodes(arrangement, context)
        size = min(size, len(arrangement.order))
        why = f"{racks.why}; {count_of(size, 'node')} of a rack"
        return _Chosen(arrangement, free, share, size * node_devices, why, racks.assumed)
    arrangement = _first_nodes(_in_network_order(used, context), context)
    joined = _joined_devices(part, node_devices, context)
    return _Chosen(arrangement, free, share, joined, f"NVLink joins {joined} devices")


def _first_nodes(arrangement: Arrangement, context: ImportContext) -> Arrangement:
    """Return the first nodes of the order, as many as the user wants."""
    maximum = context.options.most_nodes
    if not 0 < maximum < len(arrangement.order):
        return arrangement
    n_usable = len(arrangement.order)
    context.notes.append(f"not used: {n_usable - maximum} of {n_usable} usable nodes (--most)")
    levels = tuple(level for level in arrangement.levels if level.n_nodes < maximum)
    return replace(arrangement, order=arrangement.order[:maximum], levels=levels)


def _n_free(member: Member, n_devices: int, context: ImportContext) -> int:
    """Return the devices of a node that a plan may use now."""
    devices = member.devices
    if context.options.everything:
        return n_devices - devices.n_broken
    if member.node.busy:
        return 0
    return n_devices if devices.n_free == devices.n else devices.n_free


def _in_network_order(used: Sequence[Member], context: ImportContext) -> Arrangement:
    """Return nodes in network order, with notes where groups are uneven or nodes unknown."""
    result = arrange([(m.name, m.node.position) for m in used])
    if result.unplaced and len(result.unplaced) < len(used):
        hosts = compress_hosts(result.unplaced)
        context.notes.append(f"last in the order, not named by the topology: {hosts}")
    for level in result.levels:
        if level.n_rest:
            context.notes.append(
                f"level {level.name} has groups of {sizes_text(level.sizes)} usable nodes:"
                f" {level.n_nodes} is taken for all; nodes in no whole group, which come last:"
                f" {level.n_rest}"
            )
    for name in result.lonely:
        context.notes.append(f"level {name} is left out: each of its groups has one usable node")
    zones = {m.node.position.path[0] for m in used if m.node.position.levels[:1] == ("zone",)}
    if len(zones) > 1:
        shown = ", ".join(sorted(zones))
        context.notes.append(
            f"nodes lie in zones {shown}: links between zones are slower than priced; --selector"
            " topology.kubernetes.io/zone=NAME takes one"
        )
    return result


def _joined_devices(part: Accelerator, n_devices: int, context: ImportContext) -> int:
    """Return the devices that NVLink joins where a dump shows fewer than is usual, else 0."""
    usual = min(part.scale_up_domain, n_devices)
    seen = [one.hardware.domain for one in context.facts if one.hardware]
    joined = next((n for n in seen if n), 0)
    # Of cards only bridges between pairs are seen, which the catalogue leaves out.
    odd = joined in (0, usual) or n_devices % joined or part.scale_up_link.startswith("pcie")
    return 0 if odd else joined


def _pool(
    group: NodeGroup, chosen: _Chosen, index: int, draft: _Draft, context: ImportContext
) -> dict[str, Any]:
    """Return the entry of a pool."""
    path: Path = ("pools", index)
    entry: dict[str, Any] = {"name": ""}
    network, free = group.network, chosen.free
    match = max((m.match for m in group.members), key=lambda match: match.assumed)
    if network.instance:
        why = network.why_link
        draft.put(entry, (*path, "instance"), network.instance, why, network.link_assumed)
    else:
        draft.put(entry, (*path, "accelerator"), group.part, match.why, match.assumed)
    n_listed = len(group.members)
    why = "nodes of this kind" if len(free) == n_listed else f"healthy ones of {n_listed} nodes"
    draft.put(entry, (*path, "nodes"), len(free), why)
    hosts = _put_free(entry, path, group, chosen, draft, context)
    if text := _cpu_work(group, chosen, context):
        draft.assume(path, "free_nodes" if "free_nodes" in entry else "nodes", text)
    if not network.instance:
        why = "given with --devices" if context.options.devices else "devices of a node"
        draft.put(entry, (*path, "accelerators_per_node"), group.n_devices, why)
    if chosen.domain:
        why, assumed = chosen.why_domain, chosen.domain_assumed
        draft.put(entry, (*path, "scale_up_domain"), chosen.domain, why, assumed)
    if network.link:
        draft.put(entry, (*path, "nics_per_node"), network.n, network.why_n, network.n_assumed)
        draft.put(entry, (*path, "nic"), network.link, network.why_link, network.link_assumed)
        if network.bytes_per_s:
            speed = units.format_link_speed(network.bytes_per_s)
            draft.put(entry, (*path, "nic_speed"), speed, network.why_link)
    if ANONYMOUS not in hosts:
        placed = any(m.node.position.path or m.node.position.domain for m in group.members)
        why = "in network order" if placed else "in the order of names: no topology was given"
        draft.put(entry, (*path, "hosts"), compress_hosts(hosts), why)
    return entry


def _cpu_work(group: NodeGroup, chosen: _Chosen, context: ImportContext) -> str:
    """Return what is assumed of nodes in use that jobs without devices run on; "" for none."""
    if context.options.everything:
        return ""
    used = set(chosen.order)
    busy = [m.name for m in group.members if m.node.cpu_work and m.name in used]
    if not busy:
        return ""
    hosts = compress_hosts(sorted(busy, key=natural_key))
    return (
        f"{count_of(len(busy), 'node')} with CPU work of other jobs and no GPU in use, planned as"
        f" free ({hosts}): a job that takes whole nodes waits for them"
    )


def _put_free(
    entry: dict[str, Any],
    path: Path,
    group: NodeGroup,
    chosen: _Chosen,
    draft: _Draft,
    context: ImportContext,
) -> list[str]:
    """Say what is free: all, a number of whole nodes, or devices node by node.

    Returns the hosts that go with it.
    """
    free, order = chosen.free, chosen.order
    rest = sorted(set(free) - set(order), key=lambda name: (-free[name], natural_key(name)))
    left_free = any(free[name] >= chosen.share for name in rest)
    if any(0 < n < group.n_devices for n in free.values()) and not left_free:
        hosts = [*order, *rest]
        why = "what nobody uses now, in the order of hosts"
        draft.put(entry, (*path, "free_devices"), [free[name] for name in hosts], why)
        if context.options.partial and chosen.share < group.n_devices:
            draft.put(entry, (*path, "partial_nodes"), True, "given with --partial")
        return hosts
    if rest:
        why = "nodes that plans use" if left_free else "nodes that nobody uses now"
        draft.put(entry, (*path, "free_nodes"), len(order), why)
    return list(order)


def _fabric(
    pools: Sequence[Mapping[str, Any]],
    levels: Sequence[tuple[Level, ...]],
    draft: _Draft,
    context: ImportContext,
) -> dict[str, Any]:
    """Return the network between the nodes."""
    fabric: dict[str, Any] = {}
    railed = all(_is_railed(pool, context) for pool in pools)
    why = "usual with a port for every device" if railed else "usual with such ports"
    draft.put(fabric, ("fabric", "rail_optimized"), railed, f"{why}; the input does not say", True)
    tiers = _tiers(pools, levels, context)
    for i, level in enumerate(tiers):
        tier: dict[str, Any] = {"name": level.name}
        path: Path = ("fabric", "tiers", i)
        draft.put(tier, (*path, "nodes"), level.n_nodes, "usable nodes of one group")
        draft.put(tier, (*path, "oversubscription"), 1, "the input does not say", True)
        fabric.setdefault("tiers", []).append(tier)
    return fabric


def _is_railed(pool: Mapping[str, Any], context: ImportContext) -> bool:
    """Tell whether ports of one index usually share a switch."""
    if "instance" in pool:
        machine = context.catalogue.platforms[pool["instance"]]
        return (
            machine.nic.startswith(_RAILED) and machine.nics_per_node >= machine.devices_per_node
        )
    enough = pool["nics_per_node"] >= pool["accelerators_per_node"]
    return bool(pool["nic"].startswith(_RAILED) and enough)


def _tiers(
    pools: Sequence[Mapping[str, Any]], levels: Sequence[tuple[Level, ...]], context: ImportContext
) -> tuple[Level, ...]:
    """Return the tiers of the one fabric that all pools share."""
    results = [tiers for tiers in levels if tiers]
    if not results:
        return ()
    tiers = results[0]
    sizes = [level.n_nodes for level in tiers]
    if any([level.n_nodes for level in other] != sizes for other in results[1:]):
        lowest = min((other[0] for other in results), key=lambda level: level.n_nodes)
        shown = sizes_text([other[0].n_nodes for other in results])
        context.notes.append(
            f"pools have lowest groups of {shown} usable nodes: {lowest.n_nodes} is taken for all"
        )
        tiers = (lowest,)
    inside = max(pool.get("scale_up_domain", 1) // _per_node(pool, context) or 1 for pool in pools)
    outer = tuple(level for level in tiers if level.n_nodes >= inside)
    if len(outer) < len(tiers):
        context.notes.append(f"groups smaller than an NVLink domain of {inside} nodes: left out")
    return outer


def _per_node(pool: Mapping[str, Any], context: ImportContext) -> int:
    if "accelerators_per_node" in pool:
        return int(pool["accelerators_per_node"])
    return context.catalogue.platforms[pool["instance"]].devices_per_node


def _name_pools(pools: Sequence[dict[str, Any]], draft: _Draft, context: ImportContext) -> None:
    """Name every pool after its accelerator, further by what sets it apart."""
    short = [_family(pool, context) for pool in pools]
    taken: set[str] = set()
    for i, (pool, family) in enumerate(zip(pools, short, strict=True)):
        name = family
        if short.count(family) > 1:
            name = f"{family}-x{_per_node(pool, context)}"
        if name in taken:
            name = f"{family}-{pool.get('instance') or pool['nic']}"
        if name in taken:
            name = f"{name}-{i + 1}"
        taken.add(name)
        draft.put(pool, ("pools", i, "name"), name, "after the accelerator")


def _family(pool: Mapping[str, Any], context: ImportContext) -> str:
    from hardware.device_names import load_device_names

    part = pool.get("accelerator") or context.catalogue.platforms[pool["instance"]].accelerator
    return next((form.family for form in load_device_names().forms if form.part == part), part)
