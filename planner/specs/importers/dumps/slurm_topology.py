"""Reads Slurm's network: `scontrol show topology` (tree and block) and `topology.conf`."""

import re
from collections.abc import Mapping

from planner.errors import BadValue
from planner.specs.importers.clusters.facts import Facts, Position
from planner.specs.importers.dump_text import bad_dump
from planner.specs.importers.dumps.slurm import levels_of_tree
from planner.specs.importers.hostlist import expand_hosts

_LINE = re.compile(r"^[ \t]*(SwitchName|BlockName|AggregatedBlock)=", re.MULTILINE)
_PAIR = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S*)")
_MAX_DEPTH = 8


def looks_like_slurm_topology(text: str) -> bool:
    """Tell whether a text holds switches or blocks of Slurm."""
    return bool(_LINE.search(text))


def read_topology(text: str, source: str) -> Facts:
    """Return the place of every node in the tree of switches or in the blocks."""
    lines = [line.split("#")[0] for line in text.splitlines() if _LINE.match(line)]
    entries = [dict(_PAIR.findall(line)) for line in lines]
    try:
        if any("SwitchName" in entry for entry in entries):
            positions = _tree([e for e in entries if "SwitchName" in e])
        else:
            positions = _blocks(entries)
    except BadValue as error:
        raise bad_dump(source, error.message, error.hint) from None
    if not positions:
        raise bad_dump(source, "the topology names no node", "give the whole output")
    return Facts(source, "Slurm, scontrol show topology", positions=positions)


def _tree(entries: list[dict[str, str]]) -> Mapping[str, Position]:
    """Return the switches above every node, the root first."""
    parent: dict[str, str] = {}
    for entry in entries:
        for below in expand_hosts(entry["Switches"]) if entry.get("Switches") else ():
            parent.setdefault(below, entry["SwitchName"])
    positions = {}
    # The switches above a leaf list its nodes too: only those without switches below are leaves.
    for entry in entries:
        if entry.get("Switches") or entry.get("Nodes") in (None, "", "(null)"):
            continue
        path = [entry["SwitchName"]]
        while path[0] in parent and len(path) < _MAX_DEPTH:
            path.insert(0, parent[path[0]])
        for node in expand_hosts(entry["Nodes"]):
            levels = levels_of_tree(len(path))
            positions[node] = Position(tuple(path), levels, why="SwitchName")
    return positions


def _blocks(entries: list[dict[str, str]]) -> Mapping[str, Position]:
    """Return the block of every node, below the smallest aggregated block that holds it."""
    bases = [e for e in entries if "BlockName" in e and e.get("Nodes")]
    wider = [e for e in entries if "AggregatedBlock" in e and e.get("Nodes")]
    # Aggregated blocks come as BlockName=b[1-4] in some versions.
    wider += [e for e in bases if "[" in e["BlockName"] or "," in e["BlockName"]]
    bases = [e for e in bases if e not in wider]
    above: dict[str, tuple[int, str]] = {}
    for entry in wider:
        nodes = expand_hosts(entry["Nodes"])
        name = entry.get("AggregatedBlock") or entry["BlockName"]
        for node in nodes:
            above[node] = min(above.get(node, (len(nodes), name)), (len(nodes), name))
    positions = {}
    for entry in bases:
        name = entry["BlockName"]
        for node in expand_hosts(entry["Nodes"]):
            path = (above[node][1], name) if node in above else (name,)
            levels = ("aggregated-block", "block")[-len(path) :]
            positions[node] = Position(path, levels, domain=name, why="BlockName")
    return positions
