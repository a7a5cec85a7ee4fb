"""The cluster file of an inventory: pools, what is free, network order, tiers, every field's origin."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner import units
from planner.errors import Problem, SpecError, UsageError
from planner.intake.accelerators import ALL, UNNAMED, Match, identify
from planner.intake.cluster_facts import Devices, Facts, Node, Ports, Position
from planner.intake.hostlist import compress_hosts, natural_key
from planner.intake.import_options import ImportOptions
from planner.intake.imported import Imported, Origin
from planner.intake.node_groups import Arrangement, Level, arrange, rack_size
from planner.intake.ports import Network, network_of

if TYPE_CHECKING:
    from hardware.catalogue import Catalogue
    from hardware.parts import Accelerator

Path = tuple[str | int, ...]
ANONYMOUS = ""
"""Name of the node that a dump of its inside describes, where nobody names it."""
_MANY_CANDIDATES = 8


def sources_of(facts: Sequence[Facts]) -> str:
    """Return the files, as the user named them."""
    return ", ".join(dict.fromkeys(one.source for one in facts))


def build_cluster_file(
    facts: Sequence[Facts],
    nodes: Sequence[Node],
    options: ImportOptions,
    notes: list[str],
    catalogue: "Catalogue",
) -> Imported:
    """Return the cluster file of these nodes; `SpecError` with all questions that are open."""
    return _Builder(facts, nodes, options, notes, catalogue).build()


@dataclass(frozen=True, slots=True)
class _Member:
    """A node as part of a pool."""

    node: Node
    devices: Devices
    match: Match


@dataclass(slots=True)
class _PoolDraft:
    """Nodes with the same accelerator, the same number of them, and the same network."""

    part: str
    n_devices: int
    network: Network
    members: list[_Member]


class _Builder:
    """Builds the cluster file from the nodes."""

    def __init__(
        self,
        facts: Sequence[Facts],
        nodes: Sequence[Node],
        options: ImportOptions,
        notes: list[str],
        catalogue: "Catalogue",
    ) -> None:
        self.facts = facts
        self.nodes = nodes
        self.options = options
        self.notes = notes
        self.catalogue = catalogue
        self.origins: list[Origin] = []

    def build(self) -> Imported:
        """Return the file; raise when a part has to be named or no node is free."""
        self._check_answers()
        members = self._members()
        drafts = self._drafts(members)
        pools, levels = [], []
        for draft in drafts:
            entry, tiers = self._pool(draft, len(pools))
            if entry:
                pools.append(entry)
                levels.append(tiers)
        if not pools:
            reasons = "; ".join(n for n in self.notes if n.startswith(("not ", "left out")))
            fix = "give a dump that lists healthy nodes with GPUs"
            if not self.options.everything and any(not m.node.unhealthy for m in members):
                fix = "--all plans for all healthy nodes, in use or not"
            if any(n.startswith("not used:") for n in self.notes):
                fix = "--partial uses nodes in part; --all ignores what is in use"
            raise self._error("no node is free" + (f": {reasons}" if reasons else ""), fix)
        self._name_pools(pools)
        document: dict[str, Any] = {"name": self._name(), "pools": pools}
        self._fabric(document, levels)
        return Imported(
            kind="cluster",
            document=document,
            origins=tuple(self.origins),
            source=sources_of(self.facts),
            format="; ".join(dict.fromkeys(one.format for one in self.facts)),
            notes=tuple(self.notes),
        )

    def _error(self, message: str, fix: str) -> SpecError:
        return SpecError(Problem(message, fix, sources_of(self.facts)))

    def _say(self, path: Path, text: str, assumed: bool = False) -> None:
        self.origins.append(Origin(path, text, assumed))

    def _check_answers(self) -> None:
        """Refuse answers about devices that the dumps do not have."""
        from hardware.device_names import plain_name

        named = {d.evidence.name for node in self.nodes for d in node.devices if not d.shared}
        known = {k for x in named for k in (x.lower() or UNNAMED, plain_name(x))}
        shown = ", ".join(sorted(x or UNNAMED for x in named)) or "no GPU"
        for key in self.options.accelerators:
            if key != ALL and key not in known:
                raise UsageError(f"--accelerator: no device is called {key!r}", f"there: {shown}")
        if ALL in self.options.accelerators and len(named) > 1:
            raise UsageError(f"--accelerator: for which of {shown}?", "write TYPE=NAME")

    # ---- which nodes, with which accelerators

    def _members(self) -> list[_Member]:
        """Return the usable nodes by their devices; ask for accelerators that are not decided."""
        questions: dict[str, list[tuple[Node, Devices, Match]]] = {}
        members, shared, elsewhere, bare = [], {}, {}, []
        for node in self.nodes:
            if not node.devices:
                bare.append(node)
            for devices in node.devices:
                if devices.shared:
                    shared.setdefault(devices.shared, []).append(node.name)
                    continue
                match = self._identify(node, devices)
                if match.elsewhere:
                    kind = f"{devices.evidence.name or 'gpu'} x {devices.n}"
                    elsewhere.setdefault(kind, []).append(node.name)
                elif match.part:
                    members.append(_Member(node, devices, match))
                else:
                    key = devices.evidence.name
                    questions.setdefault(key, []).append((node, devices, match))
        for why, names in shared.items():
            self._note_nodes("left out: training needs whole GPUs", {why: names})
        for kind, names in elsewhere.items():
            self._note_nodes("left out: not in the catalogue", {kind: names})
        if bare:
            self.notes.append(f"left out: {_count(len(bare), 'node')} without GPUs")
        if questions:
            raise self._question(questions)
        if not members:
            reasons = "; ".join(n for n in self.notes if n.startswith("left out"))
            message = "no node has whole GPUs that the catalogue holds"
            raise self._error(
                f"{message}: {reasons}" if reasons else message,
                "planner catalog list shows what it holds",
            )
        return members

    def _identify(self, node: Node, devices: Devices) -> Match:
        """Return what the devices of a node are; the machine says it where the device does not."""
        n = self.options.devices or devices.n
        match = identify(devices.evidence, n, self.catalogue, self.options.accelerators)
        if match.part and not match.assumed:
            return match
        instance = self._instance(node, devices)
        machine = self.catalogue.platforms.get(instance)
        if machine and machine.devices_per_node == n:
            left = {match.part, *match.candidates} - {""}
            if machine.accelerator in left or not left:
                return Match(machine.accelerator, instance)
        return match

    def _instance(self, node: Node, devices: Devices) -> str:
        """Return the catalogue machine that the node or its features name."""
        from hardware.catalogue import UnknownPartError

        # A short feature such as `p5` may be the name of a rack.
        words = [w for w in devices.evidence.words if re.search(r"[0-9]", w) and re.search("[.-]", w)]
        for word in filter(None, (node.instance, *words)):
            try:
                return self.catalogue.platform(word).name
            except UnknownPartError:
                continue
        return ""

    def _question(self, questions: Mapping[str, list[tuple[Node, Devices, Match]]]) -> SpecError:
        asked, answers = [], []
        for name, cases in questions.items():
            counts = Counter(devices.n for _, devices, _ in cases)
            sizes = ", ".join(f"{_count(k, 'node')} x {n}" for n, k in sorted(counts.items()))
            label = name or UNNAMED
            asked.append(f"{label} ({sizes})")
            _, devices, match = cases[0]
            if match.contradiction:
                said = ", ".join((name, *devices.evidence.words[-1:]))
                asked[-1] += f", where the inputs do not fit together ({said})"
            known = self._ordered(match.candidates, devices.n)
            first = known[0] if known else "h100-sxm-80gb"
            others = ", ".join((*known[1:_MANY_CANDIDATES], "none"))
            more = "; `planner catalog list` shows all" if len(known) > _MANY_CANDIDATES else ""
            key = "" if not name and len(questions) == 1 else f"{label}="
            shown = f"{key}{first}"
            answers.append(f"--accelerator {_quoted(shown)} (or {others}{more})")
        what = "which accelerator is" if len(asked) == 1 else "which accelerators are"
        files = " ".join(dict.fromkeys(one.source for one in self.facts))
        return self._error(
            f"{what} {'; '.join(asked)}?", f"planner import cluster {files} {' '.join(answers)}"
        )

    def _ordered(self, parts: Sequence[str], n_devices: int) -> list[str]:
        """Return candidates with those first that a catalogue machine of this size holds."""
        usual = {
            p.accelerator
            for p in self.catalogue.platforms.values()
            if p.devices_per_node == n_devices
        }
        return sorted(parts, key=lambda part: part not in usual)

    # ---- pools

    def _drafts(self, members: list[_Member]) -> list[_PoolDraft]:
        """Return the pools, the largest first; ask for networks that are not known."""
        grouped: dict[tuple[str, int, str, Ports], list[_Member]] = {}
        for member in members:
            n = self._whole_node(member)
            ports = replace(member.node.ports, why="")
            instance = self._instance(member.node, member.devices)
            grouped.setdefault((member.match.part, n, instance, ports), []).append(member)
        drafts: dict[tuple[str, int, Network], _PoolDraft] = {}
        unknown: list[tuple[str, int, int, str]] = []
        for (part, n, instance, _), same in grouped.items():
            asked = self.options.nic, self.options.nics
            ports = same[0].node.ports
            network = network_of(part, n, len(same), instance, ports, asked, self.catalogue)
            if not network.link and not network.instance:
                unknown.append((part, n, len(same), network.kind))
                continue
            key = (part, n, replace(network, why_link="", why_n=""))
            draft = drafts.setdefault(key, _PoolDraft(part, n, network, []))
            draft.members += same
        if unknown:
            raise self._nic_question(unknown)
        return sorted(
            drafts.values(),
            key=lambda d: (-d.n_devices * len(d.members), d.part, d.n_devices, d.network.link),
        )

    def _whole_node(self, member: _Member) -> int:
        """Return the devices of the node; a dump of one job must show all, or the user says it."""
        n = member.devices.n
        insides = [one.hardware for one in self.facts if one.hardware]
        hidden = not any(one.nodes for one in self.facts) and all(
            h.may_hide_devices for h in insides
        )
        if self.options.devices:
            if not hidden and n != self.options.devices:
                raise UsageError(
                    f"--devices {self.options.devices}: the dump shows {n} in a node", "leave it out"
                )
            return self.options.devices
        part = member.match.part
        usual = {
            p.devices_per_node for p in self.catalogue.platforms.values() if p.accelerator == part
        } | {self.catalogue.accelerators[part].devices_per_node}
        if hidden and n not in usual:
            raise self._error(
                f"how many {part} has a node? The dump shows the {n} of one job",
                f"--devices {max(usual)}, if a node has as many as usual",
            )
        return n

    def _nic_question(self, unknown: list[tuple[str, int, int, str]]) -> SpecError:
        links = [link.name for link in self.catalogue.links.values() if link.kind == "scale-out"]
        asked = [
            f"{n} {part} ({_count(n_nodes, 'node')}{', ' + kind if kind else ''})"
            for part, n, n_nodes, kind in unknown
        ]
        n = unknown[0][1]
        return self._error(
            f"which network ports have nodes with {'; '.join(asked)}?",
            f"--nic ib-ndr-400 --nics {n} (or {', '.join(x for x in links if x != 'ib-ndr-400')})",
        )

    def _pool(self, draft: _PoolDraft, index: int) -> tuple[dict[str, Any], tuple[Level, ...]]:
        """Return the entry of a pool and the tiers of its nodes; an empty entry if none is free."""
        healthy = [m for m in draft.members if not m.node.unhealthy]
        self._note_left_out(draft)
        free = {m.node.name: self._free(m, draft.n_devices) for m in healthy}
        used, share = self._used(free, draft.n_devices)
        self._note_in_part(free, draft.n_devices)
        if not used:
            return {}, ()
        part = self.catalogue.accelerators[draft.part]
        chosen = [m for m in healthy if m.node.name in used]
        arrangement, domain = self._arranged(chosen, draft, part)
        order = arrangement.order
        path: Path = ("pools", index)
        entry: dict[str, Any] = {"name": ""}
        network = draft.network
        match = max((m.match for m in draft.members), key=lambda m: m.assumed)
        if network.instance:
            entry["instance"] = network.instance
            self._say((*path, "instance"), network.why_link, network.link_assumed)
        else:
            entry["accelerator"] = draft.part
            self._say((*path, "accelerator"), match.why, match.assumed)
        entry["nodes"] = len(healthy)
        self._say((*path, "nodes"), self._nodes_origin(len(healthy), len(draft.members)))
        self._free_entry(entry, path, free, order, share, draft.n_devices)
        if not network.instance:
            entry["accelerators_per_node"] = draft.n_devices
            said = "given with --devices" if self.options.devices else "devices of a node"
            self._say((*path, "accelerators_per_node"), said)
        if domain[0]:
            entry["scale_up_domain"] = domain[0]
            self._say((*path, "scale_up_domain"), domain[1], domain[2])
        if network.link:
            entry["nics_per_node"] = network.n
            self._say((*path, "nics_per_node"), network.why_n, network.n_assumed)
            entry["nic"] = network.link
            self._say((*path, "nic"), network.why_link, network.link_assumed)
            if network.bytes_per_s:
                entry["nic_speed"] = units.format_link_speed(network.bytes_per_s)
                self._say((*path, "nic_speed"), network.why_link)
        hosts = self._host_order(order, free)
        if "free_devices" not in entry:
            hosts = list(order)
        if ANONYMOUS not in hosts:
            entry["hosts"] = compress_hosts(hosts)
            self._say((*path, "hosts"), "in network order")
        return entry, arrangement.levels

    def _nodes_origin(self, n_healthy: int, n_listed: int) -> str:
        if n_healthy == n_listed:
            return "nodes of this kind"
        return f"healthy nodes of this kind, of {n_listed}"

    def _free(self, member: _Member, whole: int) -> int:
        """Return the devices of a node that a plan may use now."""
        devices = member.devices
        if self.options.everything:
            return whole - devices.n_broken
        if member.node.busy:
            return 0
        return whole if devices.n_free == devices.n else devices.n_free

    def _used(self, free: Mapping[str, int], whole: int) -> tuple[set[str], int]:
        """Return the nodes that plans use, and how many devices of each."""
        shares = range(1, whole + 1) if self.options.partial else (whole,)
        total, share = max(
            ((n * sum(x >= n for x in free.values()), n) for n in shares), default=(0, whole)
        )
        return ({name for name, n in free.items() if n >= share} if total else set()), share

    def _free_entry(
        self,
        entry: dict[str, Any],
        path: Path,
        free: Mapping[str, int],
        order: Sequence[str],
        share: int,
        whole: int,
    ) -> None:
        """Say what is free: all, a number of whole nodes, or devices node by node."""
        in_part = [name for name, n in free.items() if 0 < n < whole]
        spare = [name for name, n in free.items() if n >= share and name not in set(order)]
        if in_part and not spare:
            entry["free_devices"] = [free[name] for name in self._host_order(order, free)]
            self._say((*path, "free_devices"), "devices that nobody uses now, in the order of hosts")
            if self.options.partial:
                entry["partial_nodes"] = True
                self._say((*path, "partial_nodes"), "given with --partial")
        elif len(order) < len(free):
            entry["free_nodes"] = len(order)
            self._say((*path, "free_nodes"), "nodes that nobody uses now")

    def _note_in_part(self, free: Mapping[str, int], whole: int) -> None:
        in_part = sorted((name for name, n in free.items() if 0 < n < whole), key=natural_key)
        if in_part and not self.options.partial:
            n = sum(free[name] for name in in_part)
            hosts = compress_hosts(in_part)
            self.notes.append(
                f"not used: {n} free GPUs of nodes in use in part, {hosts}; --partial uses them"
            )

    def _host_order(self, order: Sequence[str], free: Mapping[str, int]) -> list[str]:
        """Return all healthy nodes: those in use, then those with most free devices."""
        others = sorted(set(free) - set(order), key=lambda name: (-free[name], natural_key(name)))
        return [*order, *others]

    def _note_left_out(self, draft: _PoolDraft) -> None:
        """Say which nodes are left out as unhealthy, and which count as not free."""
        gone: dict[str, list[str]] = {}
        busy: dict[str, list[str]] = {}
        for member in draft.members:
            node = member.node
            if node.unhealthy:
                gone.setdefault(node.unhealthy, []).append(node.name)
            elif node.busy:
                busy.setdefault(node.busy, []).append(node.name)
            elif not member.devices.n_free:
                busy.setdefault("no GPU free", []).append(node.name)
            if member.devices.n_broken and not node.unhealthy:
                what = f"{member.devices.n_broken} of {member.devices.n} GPUs not offered"
                self._note_nodes("not whole", {what: [node.name]})
        if gone:
            self._note_nodes("left out", gone)
        if busy and not self.options.everything:
            self._note_nodes("not free now", busy)
        if busy and self.options.everything:
            n = sum(map(len, busy.values()))
            self.notes.append(f"{_count(n, 'node')} in use or reserved count as usable (--all)")

    def _note_nodes(self, what: str, by_reason: Mapping[str, list[str]]) -> None:
        parts = [
            f"{compress_hosts(sorted(set(names), key=natural_key))} {reason}".strip()
            for reason, names in sorted(by_reason.items())
        ]
        self.notes.append(f"{what}: {'; '.join(parts)}")

    # ---- racks and tiers

    def _arranged(
        self, chosen: list[_Member], draft: _PoolDraft, part: "Accelerator"
    ) -> tuple[Arrangement, tuple[int, str, bool]]:
        """Return the nodes in network order, and the scale-up domain where it has to be said."""
        per_rack = part.scale_up_domain // draft.n_devices
        in_racks = part.scale_up_domain > part.devices_per_node and per_rack > 1
        positions = [(m.node.name, m.node.position) for m in chosen]
        if not in_racks:
            found = self._placed(positions)
            return found, self._domain_in_node(draft, part)
        racks, why, assumed = self._racks(draft, per_rack)
        above = self._above_racks(draft, racks)
        wide = [(name, above[racks[name]]) for name, _ in positions if name in racks]
        counts = list(Counter(racks[name] for name, _ in wide).values())
        size = rack_size(counts, per_rack)
        found = arrange(wide, size)
        n_used = len(found.order) - found.n_loose
        if found.n_loose:
            self.notes.append(
                f"racks have {_sizes(counts)} free nodes: {size} of each are used, so that all NVLink"
                f" domains are equal; not used: {compress_hosts(found.order[n_used:])}"
            )
        tiers = tuple(level for level in found.levels if level.n_nodes > size)
        found = replace(found, order=found.order[:n_used], levels=tiers, n_loose=0)
        return found, (size * draft.n_devices, f"{why}; {size} nodes of a rack", assumed)

    @staticmethod
    def _above_racks(draft: _PoolDraft, racks: Mapping[str, str]) -> dict[str, Position]:
        """Return the place of every rack: the groups that hold all its nodes, and the rack."""
        found: dict[str, Position] = {}
        for member in draft.members:
            rack = racks.get(member.node.name)
            if rack is None:
                continue
            at = member.node.position
            path = at.path[:-1] if at.path[-1:] == (rack,) else at.path
            if rack in found:
                known = found[rack].path[:-1]
                n = next((i for i, x in enumerate(zip(path, known)) if x[0] != x[1]), len(known))
                path = path[: min(n, len(known))]
            found[rack] = Position((*path, rack), (*at.levels[: len(path)], "rack"))
        return found

    def _racks(self, draft: _PoolDraft, per_rack: int) -> tuple[dict[str, str], str, bool]:
        """Return the rack of every node, where that was read, and whether it is assumed."""
        nodes = sorted((m.node for m in draft.members), key=lambda n: natural_key(n.name))
        named = {n.name: n.position.domain for n in nodes if n.position.domain}
        if len(named) == len(nodes) and max(Counter(named.values()).values()) <= per_rack:
            return named, f"NVLink domains from {nodes[0].position.why}", False
        lowest = {n.name: n.position.path[-1] for n in nodes if n.position.path}
        if len(lowest) == len(nodes) and max(Counter(lowest.values()).values()) <= per_rack:
            why = f"the input names no NVLink domain; lowest groups of at most {per_rack} nodes"
            return lowest, f"{why} are taken for racks", True
        if named:
            missing = [n.name for n in nodes if n.name not in named]
            self._note_nodes("in no NVLink domain", {"left out": missing})
            return named, f"NVLink domains from {nodes[0].position.why}", False
        racks = {n.name: f"rack{i // per_rack}" for i, n in enumerate(nodes)}
        why = f"the input names no NVLink domain; every {per_rack} nodes in the order of names"
        return racks, f"{why} are taken for one", True

    def _domain_in_node(
        self, draft: _PoolDraft, part: "Accelerator"
    ) -> tuple[int, str, bool]:
        """Return the devices that NVLink joins, where a dump shows fewer than is usual."""
        usual = min(part.scale_up_domain, draft.n_devices)
        seen = [one.hardware.domain for one in self.facts if one.hardware]
        joined = next((n for n in seen if n), 0)
        if part.scale_up_link.startswith("pcie"):  # bridges between pairs are left out
            return 0, "", False
        if not joined or joined == usual or draft.n_devices % joined:
            return 0, "", False
        return joined, f"NVLink joins {joined} devices", False

    def _placed(self, positions: Sequence[tuple[str, Position]]) -> Arrangement:
        found = arrange(positions)
        if found.unplaced and len(found.unplaced) < len(positions):
            hosts = compress_hosts(found.unplaced)
            self.notes.append(f"last in the order, because the topology does not name them: {hosts}")
        for level in found.levels:
            if level.n_rest:
                self.notes.append(
                    f"groups of level {level.name} hold {_sizes(level.sizes)} of the nodes in use:"
                    f" {level.n_nodes} is taken for all, the last {level.n_rest} nodes of `hosts`"
                    " fill no whole group"
                )
        return found

    def _fabric(self, document: dict[str, Any], levels: Sequence[tuple[Level, ...]]) -> None:
        """Add the network between the nodes."""
        pools = document["pools"]
        if all(pool["nodes"] == 1 for pool in pools):
            return
        fabric: dict[str, Any] = {}
        rails = [self._is_railed(pool) for pool in pools]
        fabric["rail_optimized"] = all(rails)
        why = "usual with a port for every device" if all(rails) else "usual with these ports"
        self._say(("fabric", "rail_optimized"), f"{why}; the input does not say", True)
        tiers = self._tiers(pools, levels)
        if tiers:
            fabric["tiers"] = []
        for i, level in enumerate(tiers):
            fabric["tiers"].append({"name": level.name, "nodes": level.n_nodes, "oversubscription": 1})
            self._say(("fabric", "tiers", i, "nodes"), "nodes in use of one group")
            self._say(("fabric", "tiers", i, "oversubscription"), "the input does not say", True)
        document["fabric"] = fabric

    def _is_railed(self, pool: Mapping[str, Any]) -> bool:
        """Tell whether ports of one index usually share a switch."""
        if "instance" in pool:
            machine = self.catalogue.platforms[pool["instance"]]
            link, n, devices = machine.nic, machine.nics_per_node, machine.devices_per_node
        else:
            link, n = pool["nic"], pool["nics_per_node"]
            devices = pool["accelerators_per_node"]
        return link.startswith(("ib-", "roce-")) and n >= devices

    def _tiers(
        self, pools: Sequence[Mapping[str, Any]], levels: Sequence[tuple[Level, ...]]
    ) -> tuple[Level, ...]:
        """Return the tiers of the one fabric that all pools share."""
        found = [tiers for tiers in levels if tiers]
        if not found:
            return ()
        tiers = found[0]
        if any([x.n_nodes for x in other] != [x.n_nodes for x in tiers] for other in found[1:]):
            lowest = min((other[0] for other in found), key=lambda level: level.n_nodes)
            sizes = sorted({other[0].n_nodes for other in found})
            self.notes.append(
                f"pools have lowest groups of {_sizes(sizes)} nodes: {lowest.n_nodes} is taken for all"
            )
            tiers = (lowest,)
        racks = [
            pool["scale_up_domain"] // self._per_node(pool)
            for pool in pools
            if "scale_up_domain" in pool
        ]
        inside = max(racks, default=1)
        kept = tuple(level for level in tiers if level.n_nodes >= inside)
        if len(kept) < len(tiers):
            self.notes.append(f"groups smaller than an NVLink domain of {inside} nodes are left out")
        return kept

    def _per_node(self, pool: Mapping[str, Any]) -> int:
        if "accelerators_per_node" in pool:
            return int(pool["accelerators_per_node"])
        return self.catalogue.platforms[pool["instance"]].devices_per_node

    # ---- names

    def _name_pools(self, pools: list[dict[str, Any]]) -> None:
        """Name every pool after its accelerator, and after what sets it apart where that is not
        enough.
        """
        short = [self._short_name(pool) for pool in pools]
        for i, (pool, name) in enumerate(zip(pools, short, strict=True)):
            if short.count(name) > 1:
                name = f"{name}-x{self._per_node(pool)}"
            taken = [other["name"] for other in pools[:i]]
            if name in taken:
                name = f"{short[i]}-{pool.get('instance') or pool['nic']}"
            if name in taken:
                name = f"{name}-{i + 1}"
            pool["name"] = name
            self._say(("pools", i, "name"), "after the accelerator")

    def _short_name(self, pool: Mapping[str, Any]) -> str:
        from hardware.device_names import load_device_names

        part = pool.get("accelerator") or self.catalogue.platforms[pool["instance"]].accelerator
        return next((f.family for f in load_device_names().forms if f.part == part), str(part))

    def _name(self) -> str:
        """Return the name of the cluster: given, else that of the first file."""
        if self.options.name:
            self._say(("name",), "given with --name")
            return self.options.name
        stem = re.sub(r"\.[A-Za-z]{2,5}$", "", re.split(r"[\\/]", self.facts[0].source)[-1])
        plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", stem).strip("-._+")[:64]
        self._say(("name",), "name of the file" if plain else "the input gives none")
        return plain or "cluster"


def _sizes(counts: Iterable[int]) -> str:
    """Return group sizes in words: `2 x 16, 13`."""
    found = Counter(counts)
    parts = [f"{k} x {n}" if k > 1 else str(n) for n, k in sorted(found.items(), reverse=True)]
    return ", ".join(parts)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _quoted(text: str) -> str:
    return f"'{text}'" if re.search(r"[^A-Za-z0-9._=/+-]", text) else text
