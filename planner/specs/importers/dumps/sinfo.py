"""Reads the tables of `sinfo`, with or without a header, in fixed columns or with `|`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from planner.errors import BadValue
from planner.specs.importers.clusters.facts import Facts
from planner.specs.importers.dump_text import bad_dump
from planner.specs.importers.dumps.slurm import NodeRow, facts_of_rows, is_state, parse_gres
from planner.specs.importers.hostlist import expand_hosts

COMMAND = "sinfo -N -O NodeList:60,Gres:100,GresUsed:100,StateLong:40,Partition:40,Features:100"
_ROLES = {
    "NODELIST": "node",
    "HOSTNAMES": "node",
    "NODE_NAME": "node",
    "NODEHOST": "node",
    "GRES": "gres",
    "GRES_USED": "used",
    "STATE": "state",
    "STATECOMPLETE": "state",
    "STATELONG": "state",
    "STATECOMPACT": "state",
    "PARTITION": "partition",
    "AVAIL_FEATURES": "features",
    "ACTIVE_FEATURES": "features",
    "FEATURES_ACT": "features",
    "FEATURES": "features",
}
"""What the columns hold that are read, by their title."""
_TITLES = {
    *_ROLES,
    "CPUS",
    "MEMORY",
    "AVAIL",
    "TIMELIMIT",
    "NODES",
    "TMP_DISK",
    "WEIGHT",
    "AVAIL_FE",
    "REASON",
    "S:C:T",
    "CPUS(A/I/O/T)",
    "NODES(A/I/O/T)",
    "NODES(A/I)",
    "FREE_MEM",
    "CPU_LOAD",
    "SOCKETS",
    "CORES",
    "THREADS",
    "JOB_SIZE",
    "ROOT",
    "OVERSUBSCRIBE",
    "GROUPS",
    "PRIO_TIER",
    "ALLOCMEM",
    "USER",
    "TIMESTAMP",
    "CLUSTER",
    "VERSION",
    "NODE_ADDR",
    "ALLOCNODES",
    "DEFAULTTIME",
}
_GPU = re.compile(r"(?<![\w.-])gpu(?::[A-Za-z][\w.-]*)?(?::[0-9]+)?(?=[\s,|(]|$)")
_DEFAULT_WIDTH = 20
"""Columns of `sinfo -O` are cut at this width unless another is asked for."""


def looks_like_sinfo(text: str) -> bool:
    """Tell whether a text is a table of `sinfo`."""
    lines = _lines(text)[:50]
    if not lines or "=" in lines[0] or lines[0].lstrip()[:1] in "{[<":
        return False
    if _title_columns(lines[0]):
        return True
    rows = [_cells(line) for line in lines]
    return any(_GPU.search(line) for line in lines) and all(
        len(row) > 1 and any(is_state(word) or word.isdigit() for word in row) for row in rows
    )


def read_table(text: str, source: str) -> Facts:
    """Return the nodes of a table of `sinfo`."""
    lines = _lines(text)
    titles = _title_columns(lines[0])
    if titles:
        roles = [_ROLES.get(title, "") for title, _ in titles]
        body = [line for line in lines[1:] if not _title_columns(line)]
        rows = [_by_title(line, titles, roles, source) for line in body]
    else:
        rows = list(_without_titles(lines, source))
    for needed, title in (("node", "NODELIST"), ("gres", "GRES")):
        if not rows or needed not in rows[0]:
            message = (
                f"the table of sinfo has no column {title}" if rows else "no node in the table"
            )
            raise bad_dump(source, message, f"run {COMMAND}")
    results = [row for cells in rows for row in _rows(cells, source)]
    facts = facts_of_rows(results, source, "Slurm, sinfo")
    if all("state" in cells for cells in rows):
        return facts
    note = f"{source} has no column STATE, so all its nodes count as free; run {COMMAND}"
    return replace(facts, notes=(*facts.notes, note))


def _lines(text: str) -> list[str]:
    """Return the lines that hold something; the date that `sinfo -l` prints is left out."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    dated = lines and re.match(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d", lines[0])
    return lines[1:] if dated else lines


def _cells(line: str) -> list[str]:
    return [x.strip() for x in line.split("|")] if "|" in line else line.split()


def _title_columns(line: str) -> list[tuple[str, int]]:
    """Return the titles of a header and where they begin; nothing when the line is none."""
    titles = [x.strip() for x in line.split("|")] if "|" in line else line.split()
    if not titles or not all(title.upper() in _TITLES for title in titles):
        return []
    starts, column = [], 0
    for title in titles:
        column = line.index(title, column)
        starts.append((title.upper(), column))
        column += len(title)
    return starts


def _by_title(
    line: str, titles: Sequence[tuple[str, int]], roles: Sequence[str], source: str
) -> Mapping[str, str]:
    """Return the cells of a line by role: by separators, else by the columns of the header."""
    cells = _cells(line)
    if len(cells) != len(titles):
        cells = _sliced(line, titles, source)
    entries: dict[str, str] = {}
    for role, cell, (title, _) in zip(roles, cells, titles, strict=True):
        if role == "gres":
            _refuse_cut(cell, title, source)
        if role:
            entries.setdefault(role, cell)
    return entries


def _sliced(line: str, titles: Sequence[tuple[str, int]], source: str) -> list[str]:
    """Return the cells of a line whose columns stand under those of the header."""
    starts = [start for _, start in titles]
    for title, start in titles[1:]:
        if line[start - 1 : start].strip():
            before = titles[starts.index(start) - 1][0]
            if before in _ROLES or title in _ROLES:
                width = start - starts[starts.index(start) - 1]
                raise bad_dump(source, f"the column {before} is cut at {width}", f"run {COMMAND}")
    ends = [*starts[1:], len(line)]
    return [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]


def _refuse_cut(cell: str, title: str, source: str) -> None:
    """Refuse a list of devices that ends where a column of the usual width does."""
    total = all(gres.counted for gres in parse_gres(cell))
    if len(cell) >= _DEFAULT_WIDTH and not total:
        raise bad_dump(source, f"the column {title} is cut off: {cell!r}", f"run {COMMAND}")


def _without_titles(lines: Sequence[str], source: str) -> Iterator[Mapping[str, str]]:
    """Yield the cells of lines without a header by role, told apart by what they look like."""
    table = [_cells(line) for line in lines]
    width = max(len(row) for row in table)
    complete = [row for row in table if len(row) == width]
    columns = list(zip(*complete, strict=True))
    roles: dict[str, int] = {}
    for i, column in enumerate(columns):
        if "gres" not in roles and any(_GPU.match(cell) for cell in column):
            roles["gres"] = i
        elif "state" not in roles and all(is_state(cell) for cell in column):
            roles["state"] = i
    rest = [
        i
        for i, column in enumerate(columns)
        if i not in roles.values() and not all(_is_figure(cell) for cell in column)
    ]
    if rest:
        node = max(rest, key=lambda i: (_host_like(columns[i]), -i))
        roles["node"] = node
        others = [i for i in rest if i != node]
        if others:
            # Features and partitions look alike: either may answer for --partition.
            roles["partition"] = others[-1]
            roles["features"] = others[0]
    for line, row in zip(lines, table, strict=True):
        if len(row) != width:
            message = f"a line with {len(row)} columns among those with {width}: {line.strip()!r}"
            raise bad_dump(source, message, f"are columns cut off? run {COMMAND}")
        cells = {role: row[i] for role, i in roles.items()}
        _refuse_cut(cells.get("gres", ""), "GRES", source)
        yield cells


def _is_figure(cell: str) -> bool:
    return bool(re.fullmatch(r"[0-9][0-9.,:/+-]*[KMGT]?|up|down|infinite|N/A|\(null\)", cell))


def _host_like(column: Sequence[str]) -> tuple[int, int]:
    """Return how much a column looks like hosts: different names, names with numbers."""
    return len(set(column)), sum(any(sign.isdigit() for sign in cell) for cell in column)


def _rows(cells: Mapping[str, str], source: str) -> Iterator[NodeRow]:
    partitions = tuple(x.rstrip("*") for x in cells.get("partition", "").split(",") if x)
    try:
        names = expand_hosts(cells["node"])
    except BadValue as error:
        raise bad_dump(source, error.message, error.hint) from None
    # One line may stand for many nodes; what they use is then not that of each.
    used = cells.get("used", "") if len(names) == 1 else ""
    features = [x.rstrip("*") for x in cells.get("features", "").split(",")]
    features = [x for x in features if x not in ("", "(null)")]
    for name in names:
        state = cells.get("state", "IDLE")
        yield NodeRow(name, cells["gres"], state, used, partitions, tuple(features))
