"""Nodes whose NVLink domain spans them: which rack each is in, and as many of each rack as fit."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from planner.specs.importers.clusters.facts import Position
from planner.specs.importers.clusters.members import ImportContext, Member
from planner.specs.importers.clusters.node_groups import Arrangement, arrange, rack_size
from planner.specs.importers.hostlist import compress_hosts, natural_key


@dataclass(frozen=True, slots=True)
class Racks:
    """The rack of every node."""

    of_node: Mapping[str, str]
    why: str
    assumed: bool = False


def racks_of(members: Sequence[Member], per_rack: int, context: ImportContext) -> Racks:
    """Return the rack of every node of a pool: read, or assumed from groups or from names.

    `per_rack` is the number of nodes in a full rack. Nodes that are down count too: they show
    where one rack ends and the next begins.
    """
    nodes = sorted((m.node for m in members), key=lambda node: natural_key(node.name))
    named = {n.name: n.position.domain for n in nodes if n.position.domain}
    source = next((n.position.why for n in nodes if n.position.domain), "")
    if named and max(Counter(named.values()).values()) <= per_rack:
        if missing := [n.name for n in nodes if n.name not in named]:
            context.note_nodes("left out", {"in no NVLink domain": missing})
        return Racks(named, f"NVLink domains from {source}")
    lowest = {n.name: n.position.path[-1] for n in nodes if n.position.path}
    unsaid = "the input names no NVLink domain"
    if len(lowest) == len(nodes) and max(Counter(lowest.values()).values()) <= per_rack:
        why = f"{unsaid}; its lowest groups of at most {per_rack} nodes are taken for racks"
        return Racks(lowest, why, assumed=True)
    in_order = {n.name: f"rack{i // per_rack}" for i, n in enumerate(nodes)}
    why = f"{unsaid}; every {per_rack} nodes in the order of names are taken for a rack"
    return Racks(in_order, why, assumed=True)


def arranged_in_racks(
    chosen: Sequence[Member],
    members: Sequence[Member],
    racks: Racks,
    full: int,
    context: ImportContext,
) -> tuple[Arrangement, int]:
    """Return the nodes to use in network order, and how many of each rack they are.

    All NVLink domains of a pool have one size in the model, so that nodes beyond it are left out.
    """
    above = _positions_of_racks(members, racks.of_node)
    placed = [(m.name, above[racks.of_node[m.name]]) for m in chosen if m.name in racks.of_node]
    if not placed:
        return Arrangement((), ()), 0
    counts = list(Counter(racks.of_node[name] for name, _ in placed).values())
    size = rack_size(counts, full)
    result = arrange(placed, size)
    n_used = len(result.order) - result.n_loose
    if result.n_loose:
        left = compress_hosts(result.order[n_used:])
        context.notes.append(
            f"not used: {left}, because racks have {sizes_text(counts)} free nodes and {size} of"
            " each make NVLink domains of one size"
        )
    tiers = tuple(level for level in result.levels if level.n_nodes > size)
    return replace(result, order=result.order[:n_used], levels=tiers, n_loose=0), size


def _positions_of_racks(
    members: Sequence[Member], racks: Mapping[str, str]
) -> dict[str, Position]:
    """Return the place of every rack: the groups that hold all its nodes, then the rack."""
    entries: dict[str, Position] = {}
    for member in members:
        rack = racks.get(member.name)
        if rack is None:
            continue
        position = member.node.position
        path = position.path[:-1] if position.path[-1:] == (rack,) else position.path
        if rack in entries:
            pairs = zip(path, entries[rack].path[:-1], strict=False)
            path = tuple(name for name, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        entries[rack] = Position((*path, rack), (*position.levels[: len(path)], "rack"))
    return entries


def sizes_text(counts: Sequence[int]) -> str:
    """Return group sizes in words.

    >>> sizes_text([16, 13, 16])
    '2 x 16 and 13'
    """
    result = sorted(Counter(counts).items(), reverse=True)
    parts = [f"{k} x {n}" if k > 1 else str(n) for n, k in result]
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]
