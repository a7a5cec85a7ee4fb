"""The nodes that a plan could use, each with its catalogue accelerator and its network.

What the dumps leave open is asked for here: one error with all accelerators that are not known,
then one with all networks.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from hardware.catalogue import Catalogue, load_catalogue
from planner.errors import SpecError, UsageError
from planner.specs.importers.clusters.accelerators import ALL, NONE, UNNAMED, Match, identify
from planner.specs.importers.clusters.facts import Devices, Evidence, Facts, Node
from planner.specs.importers.clusters.options import ImportOptions
from planner.specs.importers.clusters.ports import Network, NodeKind, port_network_of
from planner.specs.importers.dump_text import STANDARD_INPUT, bad_dump
from planner.specs.importers.hostlist import compress_hosts, natural_key

_MANY_CANDIDATES = 12
"""So many are not listed: the input says next to nothing."""


@dataclass(frozen=True, slots=True)
class ImportContext:
    """What every step needs."""

    facts: Sequence[Facts]
    options: ImportOptions
    notes: list[str]
    """What the user should know; the steps add to it."""
    catalogue: Catalogue
    matches: dict[tuple[Evidence, int], Match] = field(default_factory=dict)
    """What evidence was found to mean: nodes of one kind share it."""

    @property
    def source(self) -> str:
        """The files, as the user named them."""
        return sources_of(self.facts)

    def error(self, message: str, fix: str) -> SpecError:
        """Return an error about the dumps."""
        return bad_dump(self.source, message, fix)

    def note_nodes(self, what: str, by_reason: Mapping[str, Iterable[str]]) -> None:
        """Add a note about nodes, by reason."""
        parts = [
            f"{compress_hosts(sorted(set(names), key=natural_key))} {reason}".strip()
            for reason, names in sorted(by_reason.items())
        ]
        self.notes.append(f"{what}: {'; '.join(parts)}")


@dataclass(frozen=True, slots=True)
class Member:
    """A node as part of a pool."""

    node: Node
    devices: Devices
    match: Match

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.node.name


@dataclass(slots=True)
class NodeGroup:
    """Nodes with the same accelerator, the same number of them, and the same network: a pool."""

    part: str
    """Catalogue name of the accelerator."""
    n_devices: int
    """Accelerators of a node."""
    network: Network
    members: list[Member]


def sources_of(facts: Sequence[Facts]) -> str:
    """Return the files, as the user named them."""
    return ", ".join(dict.fromkeys(one.source for one in facts))


def count_of(n: int, noun: str) -> str:
    """Return a number of things in words."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def groups_of(nodes: Sequence[Node], context: ImportContext) -> list[NodeGroup]:
    """Return the pools of a cluster, the largest first; raise with what has to be asked."""
    _check_answers(nodes, context.options)
    members = _members(nodes, context)
    grouped: dict[NodeKind, list[Member]] = {}
    for member in members:
        n = _devices_of_node(member, context)
        ports = replace(member.node.ports, why="", why_n="")
        machine = _machine(member.node, member.devices)
        kind = NodeKind(member.match.part, n, machine, ports)
        grouped.setdefault(kind, []).append(member)
    groups: dict[tuple[str | float, ...], NodeGroup] = {}
    unknown: list[tuple[str, int, int, str]] = []
    requested = context.options.nic, context.options.nics
    for kind, same in grouped.items():
        part, n = kind.part, kind.n_devices
        explained = replace(kind, ports=same[0].node.ports)
        network = port_network_of(explained, len(same), requested, context.catalogue)
        if not network.link and not network.instance:
            healthy = [member for member in same if not member.node.unhealthy]
            if healthy:
                unknown.append((part, n, len(healthy), network.kind))
            else:
                _note_unhealthy(same, context)
            continue
        # Nodes with and without a word on the same network are one pool.
        key = part, n, network.instance, network.link, network.n, network.bytes_per_s
        groups.setdefault(key, NodeGroup(part, n, network, [])).members += same
    if unknown:
        raise _network_question(unknown, context)
    return sorted(
        groups.values(),
        key=lambda g: (-g.n_devices * len(g.members), g.part, g.n_devices, g.network.link),
    )


def _note_unhealthy(members: Iterable[Member], context: ImportContext) -> None:
    by_reason: dict[str, list[str]] = {}
    for member in members:
        by_reason.setdefault(member.node.unhealthy, []).append(member.name)
    context.note_nodes("left out", by_reason)


def _check_answers(nodes: Sequence[Node], options: ImportOptions) -> None:
    """Refuse answers about devices that the dumps do not have."""
    from hardware.device_names import plain_name

    named = {d.evidence.name for node in nodes for d in node.devices if not d.shared}
    names = {key for x in named for key in (x.lower() or UNNAMED, plain_name(x))}
    shown = ", ".join(sorted(x or UNNAMED for x in named)) or "no GPU"
    for key in options.accelerators:
        if key != ALL and key not in names:
            raise UsageError(f"--accelerator: no device is called {key!r}", f"there: {shown}")
    if ALL in options.accelerators and len(named) > 1:
        raise UsageError(f"--accelerator: for which of {shown}?", "write TYPE=NAME")


def _members(nodes: Sequence[Node], context: ImportContext) -> list[Member]:
    """Return the nodes by their devices; ask for accelerators that are not decided."""
    open_: dict[str, list[tuple[Devices, Match]]] = {}
    members: list[Member] = []
    shared: dict[str, list[str]] = {}
    elsewhere: dict[str, list[str]] = {}
    refused: dict[str, list[str]] = {}
    gone: dict[str, list[str]] = {}
    for node in nodes:
        for devices in node.devices:
            name = devices.evidence.name
            if devices.shared:
                shared.setdefault(devices.shared, []).append(node.name)
                continue
            match = _match(node, devices, context)
            if match.part == NONE:
                refused.setdefault(f"{name or UNNAMED} x {devices.n}", []).append(node.name)
            elif match.elsewhere:
                elsewhere.setdefault(f"{name or UNNAMED} x {devices.n}", []).append(node.name)
            elif match.part:
                members.append(Member(node, devices, match))
            elif node.unhealthy:  # what it holds does not matter
                gone.setdefault(node.unhealthy, []).append(node.name)
            else:
                open_.setdefault(name, []).append((devices, match))
    if shared:
        context.note_nodes("left out, training needs whole GPUs", shared)
    if elsewhere:
        context.note_nodes("left out, not in the catalogue", elsewhere)
    if refused:
        context.note_nodes("left out, as --accelerator says", refused)
    if n_bare := sum(not node.devices for node in nodes):
        context.notes.append(f"left out, without GPUs: {count_of(n_bare, 'node')}")
    if gone:
        context.note_nodes("left out", gone)
    if open_:
        raise _accelerator_question(open_, context)
    if not members:
        reasons = "; ".join(note for note in context.notes if note.startswith("left out"))
        message = "no node has whole GPUs of the catalogue"
        fix = "`planner catalog list` shows what it holds"
        if shared:
            fix = "give nodes without MIG, time slicing, virtual GPUs, CPX and DPX"
        raise context.error(f"{message}: {reasons}" if reasons else message, fix)
    return members


def _match(node: Node, devices: Devices, context: ImportContext) -> Match:
    """Return what the devices of a node are; the machine says it where the devices do not."""
    n = context.options.devices or devices.n
    match = context.matches.get((devices.evidence, n))
    if match is None:
        answers = context.options.accelerators
        match = identify(devices.evidence, n, context.catalogue, answers)
        context.matches[devices.evidence, n] = match
    if match.elsewhere or (match.part and not match.assumed):
        return match
    name = _machine(node, devices)
    machine = context.catalogue.platforms.get(name)
    possible = {match.part, *match.candidates} - {""}
    if machine is None or machine.devices_per_node != n or match.contradiction:
        return match
    fits = not possible or machine.accelerator in possible
    return Match(machine.accelerator, name) if fits else match


@cache
def _machine_names() -> Mapping[str, str]:
    """Return the catalogue name of every machine by every way of naming it."""
    machines = load_catalogue().platforms.values()
    return {key: p.name for p in machines for key in (p.name, *p.aliases)}


def _machine(node: Node, devices: Devices) -> str:
    """Return the catalogue machine that the node, or one of its features, names."""
    # A short feature such as `p5` may as well be the name of a rack.
    labels = [w for w in devices.evidence.labels if re.search(r"[0-9].*[.-]|[.-].*[0-9]", w)]
    named = (_machine_names().get(w.lower().replace("_", "-")) for w in (node.instance, *labels))
    return next(filter(None, named), "")


def _accelerator_question(
    open_: Mapping[str, list[tuple[Devices, Match]]], context: ImportContext
) -> SpecError:
    requested, answers = [], []
    for name, cases in open_.items():
        label = name or cases[0][0].resource or UNNAMED
        sizes = Counter(devices.n for devices, _ in cases)
        shown = ", ".join(f"{count_of(k, 'node')} x {n}" for n, k in sorted(sizes.items()))
        requested.append(f"{label} ({shown})")
        devices, match = cases[0]
        if match.contradiction:
            requested[-1] += f", where the inputs do not fit together: {_said(devices.evidence)}"
        key = "" if len(open_) == 1 and not name else f"{name or UNNAMED}="
        first, *others = _usual_first(match.candidates, devices.n, context.catalogue) or [""]
        rest = f"or {', '.join((*others, 'none to leave it out'))}"
        if not first or len(others) >= _MANY_CANDIDATES:
            first, rest = "NAME", "from `planner catalog list`, or none to leave it out"
        answers.append(f"--accelerator {_quoted(key + first)} ({rest})")
    what = "which accelerator is" if len(requested) == 1 else "which accelerators are"
    return context.error(f"{what} {'; '.join(requested)}?", _command(" ".join(answers), context))


def _command(answers: str, context: ImportContext) -> str:
    """Return the command with the answers to a question; only these where others stand already."""
    if context.options != ImportOptions():
        return f"add {answers}"
    names = dict.fromkeys(one.source for one in context.facts)
    files = " ".join("-" if name == STANDARD_INPUT else _quoted(name) for name in names)
    return f"planner import cluster {files} {answers}"


def _said(evidence: Evidence) -> str:
    """Return all that inputs say of a device, for a message about a contradiction."""
    parts = [evidence.name, *evidence.labels[-1:]]
    parts += [f"PCI device {evidence.pci_id}"] if evidence.pci_id else []
    parts += [f"{evidence.memory_bytes / 2**20:.0f} MiB"] if evidence.memory_bytes else []
    parts += [f"NVLinks {max(evidence.n_links)}"] if evidence.n_links else []
    parts += ["NVLink between pairs"] if evidence.bridged else []
    return ", ".join(part for part in parts if part)


def _usual_first(parts: Sequence[str], n_devices: int, catalogue: Catalogue) -> list[str]:
    """Return candidates with those first that a catalogue machine of this size holds."""
    machines = catalogue.platforms.values()
    usual = {p.accelerator for p in machines if p.devices_per_node == n_devices}
    return sorted(parts, key=lambda part: part not in usual)


def _devices_of_node(member: Member, context: ImportContext) -> int:
    """Return the devices of the node; a dump of one job must show all, or the user says it."""
    n, options = member.devices.n, context.options
    insides = [one.hardware for one in context.facts if one.hardware]
    listed = any(one.nodes for one in context.facts)
    hidden = bool(insides) and not listed and all(h.may_hide_devices for h in insides)
    if options.devices:
        if not hidden and n != options.devices:
            message = f"--devices {options.devices}: the dump shows {n} in a node"
            raise UsageError(message, "leave it out")
        return options.devices
    part = member.match.part
    machines = context.catalogue.platforms.values()
    usual = {p.devices_per_node for p in machines if p.accelerator == part}
    usual.add(context.catalogue.accelerators[part].devices_per_node)
    if hidden and n not in usual:
        raise context.error(
            f"how many {part} has a node? The dump shows the {n} of one job",
            f"--devices {max(usual)}, if a node has as many as usual",
        )
    return n


def _network_question(
    unknown: list[tuple[str, int, int, str]], context: ImportContext
) -> SpecError:
    part, n, _, _ = unknown[0]
    usual = context.catalogue.typical_nics[part]
    links = [x.name for x in context.catalogue.links.values() if x.kind == "scale-out"]
    others = ", ".join(name for name in links if name != usual.link)
    n_usual = max(1, round(usual.n_per_device * n))
    requested = [
        f"{n_devices} {name} ({count_of(n_nodes, 'node')}{', ' + kind if kind else ''})"
        for name, n_devices, n_nodes, kind in unknown
    ]
    return context.error(
        f"which network ports have nodes with {'; '.join(requested)}?",
        _command(f"--nic {usual.link} --nics {n_usual} (or {others})", context),
    )


def _quoted(text: str) -> str:
    return f"'{text}'" if re.search(r"[^A-Za-z0-9._=/+:-]", text) else text
