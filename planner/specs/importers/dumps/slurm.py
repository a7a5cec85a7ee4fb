"""Reads Slurm's nodes: `scontrol show node` (both forms and `--json`) and `sinfo --json`.

Also the common ground of all Slurm readers: states, generic resources (GRES) and what is in use.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import BadValue
from planner.specs.importers.clusters.accelerators import is_mig, is_vgpu
from planner.specs.importers.clusters.facts import Devices, Evidence, Facts, Node, Position
from planner.specs.importers.clusters.ports import ports_in_words
from planner.specs.importers.dump_text import as_dict, as_list, as_text, bad_dump, json_of
from planner.specs.importers.hostlist import compress_hosts, expand_hosts

_SUFFIXES = {
    "*": "not responding",
    "~": "powered down",
    "#": "powering up",
    "!": "powering down",
    "%": "powering down",
    "$": "in maintenance",
    "@": "waiting for a reboot",
    "^": "rebooting",
    "-": "planned for another job",
    "+": "",
}
"""What sinfo puts behind a state."""
_UNHEALTHY = {
    "DOWN": "down",
    "DRAIN": "drained",
    "DRAINED": "drained",
    "DRAINING": "draining",
    "DRNG": "draining",
    "FAIL": "failed",
    "FAILING": "failing",
    "FAILG": "failing",
    "MAINT": "in maintenance",
    "MAINTENANCE": "in maintenance",
    "INVAL": "invalid",
    "INVALID": "invalid",
    "INVALID_REG": "invalid",
    "UNKNOWN": "of unknown state",
    "UNK": "of unknown state",
    "UNK*": "of unknown state",
    "NO_RESPOND": "not responding",
    "NOT_RESPONDING": "not responding",
    "ERROR": "in error",
    "FUTURE": "not there yet",
    "FUTR": "not there yet",
    "REBOOT": "rebooting",
    "REBOOT_ISSUED": "rebooting",
    "REBOOT_REQUESTED": "waiting for a reboot",
    "REBOOT_ASAP": "waiting for a reboot",
}
"""States of nodes that are no part of the cluster now."""
_BUSY = {
    "ALLOCATED": "allocated",
    "ALLOC": "allocated",
    "COMPLETING": "completing a job",
    "COMP": "completing a job",
    "RESERVED": "reserved",
    "RESV": "reserved",
    "PLANNED": "planned for another job",
    "PLND": "planned for another job",
    "POWERED_DOWN": "powered down",
    "POWER_DOWN": "powering down",
    "POW_DN": "powered down",
    "POWERING_DOWN": "powering down",
    "POWERING_UP": "powering up",
    "POWER_UP": "powering up",
    "POW_UP": "powering up",
    "POWER_SAVING": "powered down",
    "PERFCTRS": "in use",
    "NPC": "in use",
    "BLOCKED": "blocked by another job",
    "BLOCK": "blocked by another job",
}
"""States of healthy nodes none of whose devices is free now."""
_NEUTRAL = {"IDLE", "MIXED", "MIX", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "EXTERNAL"}
_STATE_WORDS = {*_UNHEALTHY, *_BUSY, *_NEUTRAL}

_FIELDS = (
    "NodeName",
    "Gres",
    "GresUsed",
    "State",
    "Partitions",
    "CfgTRES",
    "AllocTRES",
    "CPUAlloc",
    "AvailableFeatures",
    "ActiveFeatures",
    "Features",
    "Feature",
    "InstanceType",
    "Topology",
    "Reason",
    "OS",
    "Comment",
    "Extra",
)
_FIELD = re.compile(rf"(?:^|\s)({'|'.join(_FIELDS)})=")
_RECORD = re.compile(r"^[ \t]*NodeName=", re.MULTILINE)
_EMPTY = {"", "(null)", "N/A", "n/a", "none", "None"}
_UNKNOWN_USE = "Slurm does not say how many of their GPUs are in use"


@dataclass(frozen=True, slots=True)
class Gres:
    """Devices of one type in a GRES list."""

    type: str
    """The site's name of the device; empty when the list gives none."""
    n: int
    counted: bool
    """The list gives the number."""


def looks_like_slurm(text: str) -> bool:
    """Tell whether a text is a list of nodes of Slurm, as text or as JSON."""
    if text.lstrip()[:1] == "{":
        data = as_dict(json_of(text))
        return bool(_json_nodes(data) or "sinfo" in data)
    match = _RECORD.search(text)
    return bool(match and re.search(r"\b(?:State|Gres|Partitions|CPUTot|CPUs)=", text))


def read_nodes(text: str, source: str) -> Facts:
    """Return the nodes of `scontrol show node`, in either form or as JSON, or `sinfo --json`."""
    if text.lstrip()[:1] == "{":
        data = as_dict(json_of(text))
        if "sinfo" in data:
            return _facts(list(_sinfo_rows(as_list(data["sinfo"]))), source, "sinfo --json")
        return _facts([_json_row(x) for x in _json_nodes(data)], source, "scontrol --json")
    rows = [row for record in _records(text) for row in _text_rows(record, source)]
    return _facts(rows, source, "scontrol show node")


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node as any of Slurm's commands shows it."""

    name: str
    gres: str
    state: str
    used: str = ""
    """GRES in use; empty when the command does not say."""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    instance: str = ""
    topology: str = ""
    cfg_tres: str = ""
    alloc_tres: str | None = None
    """Trackable resources in use; None when the command does not say."""


def _facts(rows: list[NodeRow], source: str, form: str) -> Facts:
    return facts_of_rows(rows, source, f"Slurm, {form}")


def facts_of_rows(rows: Iterable[NodeRow], source: str, form: str) -> Facts:
    """Return the nodes of rows; a node that stands in several partitions comes once."""
    by_name: dict[str, list[NodeRow]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    nodes, unclear = [], []
    for same in by_name.values():
        node, is_use_known = _node(same)
        nodes.append(node)
        if not is_use_known:
            unclear.append(node.name)
    notes = []
    if unclear:
        notes.append(
            f"{_UNKNOWN_USE}, so they count as not free: {compress_hosts(unclear)};"
            " `scontrol -d show node` says it"
        )
    return Facts(source, form, nodes=tuple(nodes), notes=tuple(notes))


def _node(same: list[NodeRow]) -> tuple[Node, bool]:
    """Return a node from its rows, and whether the GPUs in use are known where it matters."""
    row = same[0]
    partitions = tuple(dict.fromkeys(p for x in same for p in x.partitions))
    unhealthy, busy = _state(row.state)
    features = tuple(dict.fromkeys(f for x in same for f in x.features))
    gres = parse_gres(row.gres) or _tres_gres(row.cfg_tres)
    used, is_use_known = _in_use(row, gres, busy)
    # What `shard` or `mps` hold is a share of a GPU that no other job gets whole.
    if re.search(r"gres/(?:shard|mps)\b[^,]*=[1-9]", row.alloc_tres or ""):
        is_use_known = False
    devices = []
    for kind in gres:
        shared = (
            "MIG slices" if is_mig(kind.type) else "virtual GPUs" if is_vgpu(kind.type) else ""
        )
        free = max(0, kind.n - used.get(kind.type, 0)) if is_use_known else 0
        evidence = Evidence(name=kind.type, labels=features)
        devices.append(Devices(evidence, kind.n, 0 if busy else free, shared))
    node = Node(
        name=row.name,
        devices=tuple(devices),
        unhealthy=unhealthy,
        busy=busy,
        cpu_work=is_use_known and "MIX" in row.state.upper() and not any(used.values()),
        partitions=partitions,
        instance=row.instance,
        position=_position(row.topology),
        ports=ports_in_words(features),
    )
    return node, is_use_known or bool(unhealthy or busy or not gres)


def _state(text: str) -> tuple[str, str]:
    """Return why a node is unhealthy and why it is busy; both empty when it is neither."""
    unhealthy: list[str] = []
    busy: list[str] = []
    for word in re.split(r"[+\s,]+", text.strip().upper()):
        plain = word.rstrip("".join(_SUFFIXES))
        for sign in word[len(plain) :]:
            meaning = _SUFFIXES[sign]
            target = busy if "power" in meaning or "planned" in meaning else unhealthy
            target += [meaning] if meaning else []
        if plain in _BUSY:
            busy.append(_BUSY[plain])
        elif plain in _UNHEALTHY:
            unhealthy.append(_UNHEALTHY[plain])
        elif plain and plain not in _NEUTRAL:
            unhealthy.append(f"in state {plain.lower()}")
    if "allocated" in busy or "MIX" in text.upper():
        unhealthy = ["draining" if word == "drained" else word for word in unhealthy]
    return ", ".join(dict.fromkeys(unhealthy)), ", ".join(dict.fromkeys(busy))


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Return the GPUs of a GRES list, one entry for every type.

    >>> parse_gres("gpu:h100:8(S:0-1),pfsdir:scratch:1")
    (Gres(type='h100', n=8, counted=True),)
    """
    entries: dict[str, Gres] = {}
    for entry in _split_gres(text):
        head, *rest = entry.split("(")[0].split(":")
        if head.strip().lower() != "gpu":
            continue
        rest = [x.strip() for x in rest if x.strip() not in ("", "no_consume")]
        counted = bool(rest and re.fullmatch(r"[0-9]{1,6}", rest[-1]))
        if counted and len(rest) == 1:
            kind, n = "", int(rest[0])
        else:
            kind, n = (rest[0] if rest else ""), int(rest[-1]) if counted else 1
        before = entries.get(kind)
        entries[kind] = Gres(kind, n + (before.n if before else 0), counted)
    return tuple(entries.values())


def _split_gres(text: str) -> list[str]:
    """Return the entries of a GRES list; commas inside parentheses do not separate."""
    if text.strip() in _EMPTY:
        return []
    return [x.strip() for x in re.split(r",(?![^()]*\))", text) if x.strip()]


def _tres_gres(text: str) -> tuple[Gres, ...]:
    """Return the GPUs of a TRES list such as `cpu=224,gres/gpu=8,gres/gpu:h100=8`."""
    return tuple(Gres(kind, n, True) for kind, n in _tres(text).items())


def _tres(text: str) -> dict[str, int]:
    """Return GPUs by type; the plain `gres/gpu` is their sum and counts only where it is alone."""
    counter: Counter[str] = Counter()
    for item in text.split(","):
        key, _, value = item.strip().partition("=")
        if key.startswith("gres/gpu") and value.isascii() and value.isdigit():
            counter[key.removeprefix("gres/gpu").lstrip(":")] += int(value)
    if len(counter) > 1:
        counter.pop("", None)
    return dict(counter)


def _in_use(row: NodeRow, gres: tuple[Gres, ...], busy: str) -> tuple[dict[str, int], bool]:
    """Return the GPUs in use by type, and whether that is known."""
    if "MIX" not in row.state.upper() or busy:
        return {}, True
    types = [kind.type for kind in gres]
    if row.used not in _EMPTY:
        used = {kind.type: kind.n for kind in parse_gres(row.used)}
        return _by_type(used, types)
    if row.alloc_tres is None or not _tres(row.cfg_tres):
        return {}, False
    return _by_type(_tres(row.alloc_tres), types)


def _by_type(used: Mapping[str, int], types: list[str]) -> tuple[dict[str, int], bool]:
    """Return what is in use by the types of a node; a plain number belongs to an only type."""
    if not any(used.values()):
        return {}, True
    if set(used) <= set(types):
        return dict(used), True
    if len(types) == 1:
        return {types[0]: sum(used.values())}, True
    return {}, False


def _position(text: str) -> Position:
    """Return the place that a node's `Topology=name:root:...:leaf` gives."""
    if text in _EMPTY:
        return Position()
    *_, units = max((x.split(":", 1) for x in text.split(",")), key=lambda x: x[-1].count(":"))
    path = tuple(units.split(":"))
    levels = ("block",) if len(path) == 1 else levels_of_tree(len(path))
    return Position(path, levels, why=f"Topology={text}")


def levels_of_tree(depth: int) -> tuple[str, ...]:
    """Return the names of the levels of a tree, the widest first: core, spine, leaf."""
    names = ("leaf", "spine", "core", *(f"level-{i}" for i in range(3, depth)))
    return tuple(reversed(names[:depth]))


def _records(text: str) -> Iterator[str]:
    """Yield the text of every node."""
    starts = [match.start() for match in _RECORD.finditer(text)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        record = text[start:end].strip("\n")
        yield re.split(r"\n[ \t]*\n|\n(?=SwitchName=|BlockName=|AggregatedBlock=)", record)[0]


def _fields(record: str) -> dict[str, str]:
    """Return the fields of a node; of several with one name the first counts.

    `OS=` and `Reason=` hold blanks, the TRES lists hold further equals signs: a value ends where
    the next known field begins.
    """
    marks = list(_FIELD.finditer(record))
    ends = [mark.start() for mark in marks[1:]] + [len(record)]
    fields: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=True):
        value = record[mark.end() : end].strip()
        if mark[1] not in ("OS", "Reason", "Comment", "Extra"):
            value = value.split()[0] if value else ""
        fields.setdefault(mark[1], value)
    return fields


def _text_rows(record: str, source: str) -> Iterator[NodeRow]:
    fields = _fields(record)
    name = fields.get("NodeName", "")
    state = fields.get("State", "")
    if name == "DEFAULT":
        return
    is_config = "[" in name or (state.upper() == "UNKNOWN" and "CPUAlloc" not in fields)
    if not state and not is_config:
        message = f"node {name or '?'} has no State"
        raise bad_dump(source, message, "is the file cut off? give the whole output")
    try:
        names = expand_hosts(name)
    except BadValue as error:
        raise bad_dump(source, error.message, error.hint) from None
    features = fields.get("ActiveFeatures") or fields.get("AvailableFeatures") or ""
    features = features or fields.get("Features") or fields.get("Feature") or ""
    for one in names:
        yield NodeRow(
            name=one,
            gres=fields.get("Gres", ""),
            # A line of slurm.conf: nothing is known of the state.
            state="IDLE" if is_config else state,
            used=fields.get("GresUsed", ""),
            partitions=_list(fields.get("Partitions", "")),
            features=_list(features),
            instance=_plain(fields.get("InstanceType", "")),
            topology=_plain(fields.get("Topology", "")),
            cfg_tres=fields.get("CfgTRES", ""),
            alloc_tres=fields.get("AllocTRES"),
        )


def _list(value: Any) -> tuple[str, ...]:
    """Return the words of a list, as JSON or separated by commas; `*` marks a default."""
    items = value if isinstance(value, list) else as_text(value).split(",")
    names = (as_text(item).strip().rstrip("*") for item in items)
    return tuple(word for word in names if word not in _EMPTY)


def _plain(text: str) -> str:
    return "" if text in _EMPTY else text


def _json_nodes(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of `scontrol show node --json`, and of the older `sinfo --json`."""
    nodes = [as_dict(node) for node in as_list(data.get("nodes"))]
    return nodes if nodes and all("state" in n and ("name" in n) for n in nodes) else []


def _json_row(node: Mapping[str, Any]) -> NodeRow:
    flags = [*_list(node.get("state")), *_list(node.get("state_flags"))]
    features = _list(node.get("active_features")) or _list(node.get("features"))
    topology = node.get("topology") or node.get("topology_str")
    alloc = node.get("tres_used")
    return NodeRow(
        name=as_text(node.get("name")),
        gres=as_text(node.get("gres")),
        state="+".join(flags),
        used=as_text(node.get("gres_used")),
        partitions=_list(node.get("partitions")),
        features=features,
        instance=_plain(as_text(node.get("instance_type"))),
        topology=_plain(as_text(topology)),
        cfg_tres=as_text(node.get("tres")),
        alloc_tres=None if alloc is None else as_text(alloc),
    )


def _sinfo_rows(entries: list[Any]) -> Iterator[NodeRow]:
    """Yield the nodes of `sinfo --json`: every entry stands for nodes that look the same."""
    for entry in map(as_dict, entries):
        names = [as_text(x) for x in as_list(as_dict(entry.get("nodes")).get("nodes"))]
        gres = entry.get("gres")
        total = as_text(as_dict(gres).get("total")) if isinstance(gres, dict) else as_text(gres)
        used = as_text(as_dict(gres).get("used")) if len(names) == 1 else ""
        features = as_dict(entry.get("features"))
        for name in names:
            yield NodeRow(
                name=name,
                gres=total,
                state="+".join(_list(as_dict(entry.get("node")).get("state"))),
                used=used,
                partitions=_list(as_dict(entry.get("partition")).get("name")),
                features=_list(features.get("active")) or _list(features.get("total")),
            )


def is_state(word: str) -> bool:
    """Tell whether a word is a state of a node: `idle*`, `IDLE+CLOUD`, `mix`."""
    parts = word.upper().rstrip("".join(_SUFFIXES)).split("+")
    return all(part.rstrip("".join(_SUFFIXES)) in _STATE_WORDS for part in parts)
