"""Reads nvidia-smi: its table, `-L`, `-q`, `--query-gpu`, `topo -m` and `nvlink -s`."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from planner.specs.importers.clusters.accelerators import is_mig, is_vgpu
from planner.specs.importers.clusters.facts import Devices, Evidence, Facts, Hardware, Ports
from planner.specs.importers.dump_text import bad_dump

_TOPO_ROW = re.compile(r"^[ \t]*(GPU[0-9]+|NIC[0-9]+|[a-z]\w*_?\w*)[ \t]+(.*)$")
_CELL = re.compile(r"X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS|N/A")
_TOPO = re.compile(r"^[ \t]*GPU0[ \t]+X(?:[ \t]|$)", re.MULTILINE)
_LIST = re.compile(r"^GPU ([0-9]+): (.+?) \(UUID: GPU-", re.MULTILINE)
_QUERY = re.compile(r"^GPU +[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9]", re.MULTILINE)
_TABLE = re.compile(r"^\| +([0-9]+) +(\S.*?\S) +(?:On|Off|N/A|Enabled|Disabled) +\|", re.MULTILINE)
_TABLE_MEMORY = re.compile(r"([0-9]+) ?MiB */ *([0-9]+) ?MiB")
_MAKER = re.compile(r"(?:NVIDIA|Tesla|GRID|Quadro|GeForce|[AHV][0-9]00)\b")
_NEAR = ("PIX", "PXB")
"""A GPU and a port below the same PCIe switch, or below neighbouring ones."""
_PORT_KINDS = (
    (re.compile(r"^(?:rdmap|efa)"), "EFA"),
    (re.compile(r"^(?:bnxt_re|irdma|roce)"), "Ethernet"),
    (re.compile(r"^(?:hfi1|opap)"), "Omni-Path"),
    (re.compile(r"^(?:cxi|hsi)"), "Slingshot"),
    (re.compile(r"^(?:mlx5_ib|ibp|ib[0-9])"), "InfiniBand"),
)


def looks_like_nvidia_smi(text: str) -> bool:
    """Tell whether a text is what one of nvidia-smi's commands prints."""
    return _form(text) != ""


def read_nvidia_smi(text: str, source: str) -> Facts:
    """Return the inside of a node as nvidia-smi shows it."""
    form = _form(text)
    readers = {
        "topo -m": _topology,
        "-q": _query,
        "-L": _list,
        "--query-gpu": _csv,
        "table": _table,
    }
    hardware = readers[form](text, source)
    if not any(kind.n for kind in hardware.devices):
        raise bad_dump(source, "nvidia-smi lists no GPU", "run it on a node with GPUs")
    return Facts(source, f"nvidia-smi {form}", hardware=hardware)


def _form(text: str) -> str:
    """Return which command printed a text; empty when it is none of nvidia-smi."""
    if _TOPO.search(text):
        return "topo -m"
    if "NVSMI LOG" in text or (_QUERY.search(text) and "Product Name" in text):
        return "-q"
    if re.search(r"^\|? *NVIDIA-SMI [0-9]", text, re.MULTILINE) and "MiB" in text:
        return "table"
    if _LIST.search(text):
        return "-L"
    return "--query-gpu" if _csv_columns(text) else ""


def _devices(names: Sequence[str], evidence: Mapping[str, Evidence], sliced: int) -> list[Devices]:
    """Return one entry for every name; `sliced` of the devices are cut into MIG slices."""
    results = []
    for name, n in Counter(names).items():
        shared = "virtual GPUs" if is_vgpu(name) else ""
        total = n if len(set(names)) > 1 else n - sliced
        if total > 0:
            results.append(Devices(evidence.get(name, Evidence(name)), total, total, shared))
    if sliced:
        results.append(Devices(Evidence(names[0]), sliced, 0, "MIG slices"))
    return results


def _table(text: str, source: str) -> Hardware:
    names = [match[2] for match in _TABLE.finditer(text)]
    memory = [int(match[2]) for match in _TABLE_MEMORY.finditer(text)]
    if any(name.endswith("...") for name in names):
        fix = "run nvidia-smi -L, which prints it whole"
        raise bad_dump(source, f"the name of the GPU is cut off: {names[0]!r}", fix)
    same = {
        name: Evidence(name, memory_bytes=max(memory, default=0) * 2.0**20) for name in set(names)
    }
    if len(same) > 1:
        same = {name: Evidence(name) for name in same}
    n_sliced = len(re.findall(r"^\|.*\| +Enabled\*? \|$", text, re.MULTILINE))
    return Hardware(tuple(_devices(names, same, min(n_sliced, len(names)))))


def _list(text: str, source: str) -> Hardware:
    """Read `nvidia-smi -L`, and `nvlink -s`, which lists the links below each GPU."""
    parts = re.split(r"(?m)^(?=GPU [0-9]+: )", text)
    names, sliced, links = [], 0, []
    for part in parts:
        match = _LIST.match(part)
        if match is None:
            continue
        names.append(match[2])
        sliced += bool(re.search(r"^\s+MIG ", part, re.MULTILINE) or is_mig(match[2]))
        states = re.findall(r"^\s+Link [0-9]+: (.+)$", part, re.MULTILINE)
        if states:
            links.append(sum("inactive" not in state for state in states))
    n_links = frozenset(set(links)) if len(set(links)) == 1 else frozenset()
    evidence = {name: Evidence(name, n_links=n_links) for name in names}
    return Hardware(tuple(_devices(names, evidence, sliced)))


def _query(text: str, source: str) -> Hardware:
    parts = [x for x in re.split(r"(?m)^(?=GPU +[0-9A-Fa-f]{4,8}:)", text) if _QUERY.match(x)]
    names, sliced, virtual = [], 0, False
    evidence: dict[str, Evidence] = {}
    for part in parts:
        name = _value(part, "Product Name")
        names.append(name)
        memory = re.search(r"FB Memory Usage\s*\n\s+Total\s*: ([0-9]+) MiB", part)
        size = int(memory[1]) * 2.0**20 if memory else 0.0
        evidence.setdefault(name, Evidence(name, memory_bytes=size))
        mode = re.search(r"MIG Mode\s*\n\s+Current\s*: (\w+)", part)
        sliced += bool(mode and mode[1] == "Enabled")
        virtual |= _value(part, "Virtualization Mode") == "VGPU"
    attached = re.search(r"^Attached GPUs\s*: ([0-9]+)", text, re.MULTILINE)
    if attached and int(attached[1]) != len(parts):
        message = f"{attached[1]} GPUs are attached, but {len(parts)} are listed"
        raise bad_dump(source, message, "is the file cut off? give the whole output")
    devices = _devices(names, evidence, sliced)
    if virtual:
        devices = [Devices(d.evidence, d.n, 0, "virtual GPUs") for d in devices]
    return Hardware(tuple(devices))


def _value(text: str, key: str) -> str:
    match = re.search(rf"^\s+{key}\s*: (.+?)\s*$", text, re.MULTILINE)
    return match[1] if match else ""


def _csv_columns(text: str) -> dict[str, int]:
    """Return which columns hold name, memory, capability and MIG mode; nothing for other texts."""
    rows = _csv_rows(text)
    if not rows or len({len(row) for row in rows}) != 1:
        return {}
    head = [cell.lower().split(" [")[0] for cell in rows[0]]
    column_names = {
        "name": "name",
        "gpu_name": "name",
        "memory.total": "memory",
        "compute_cap": "capability",
        "mig.mode.current": "mig",
    }
    titled = {column_names[cell]: i for i, cell in enumerate(head) if cell in column_names}
    if titled:
        names = [row[titled["name"]] for row in rows[1:]] if "name" in titled else ["NVIDIA"]
        ours = "name" not in titled and "memory" in titled
        return titled if ours or any(_MAKER.match(name) for name in names) else {}
    entries: dict[str, int] = {}
    columns = list(zip(*rows, strict=True))
    for i, column in enumerate(columns):
        if all(_MAKER.match(cell) for cell in column):
            entries.setdefault("name", i)
        elif all(re.fullmatch(r"[0-9]+ MiB", x) for x in column):
            # Total memory is the largest of those that may stand there: total, free, used.
            old = entries.get("memory")
            if old is None or int(column[0][:-4]) > int(columns[old][0][:-4]):
                entries["memory"] = i
        elif all(re.fullmatch(r"[0-9]{1,2}\.[0-9]", x) for x in column):
            entries.setdefault("capability", i)
        elif all(x in ("Enabled", "Disabled", "[N/A]") for x in column):
            entries.setdefault("mig", i)
    return entries if "name" in entries else {}


def _csv_rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 4096 or not all("," in line or len(lines) < 64 for line in lines):
        return []
    try:
        return [[cell.strip() for cell in row] for row in csv.reader(lines, strict=True)]
    except csv.Error:
        return []


def _csv(text: str, source: str) -> Hardware:
    columns, rows = _csv_columns(text), _csv_rows(text)
    if "name" not in columns:
        raise bad_dump(
            source,
            "the CSV of nvidia-smi has no column name",
            "nvidia-smi --query-gpu=index,name,memory.total --format=csv",
        )
    titled = rows[0][columns["name"]].lower() in ("name", "gpu_name")
    units = rows[0][columns["memory"]].lower() if titled and "memory" in columns else ""
    names, sliced = [], 0
    evidence: dict[str, Evidence] = {}
    for row in rows[1:] if titled else rows:
        name = row[columns["name"]]
        names.append(name)
        size = (
            re.match(r"([0-9]+)(?: (MiB))?", row[columns["memory"]])
            if "memory" in columns
            else None
        )
        has_unit = size is not None and (size[2] or "mib" in units)
        capability = row[columns["capability"]] if "capability" in columns else ""
        bytes_ = int(size[1]) * 2.0**20 if size and has_unit else 0.0
        evidence.setdefault(name, Evidence(name, memory_bytes=bytes_, capability=capability))
        sliced += "mig" in columns and row[columns["mig"]] == "Enabled"
    return Hardware(tuple(_devices(names, evidence, sliced)))


def _topology(text: str, source: str) -> Hardware:
    """Read the matrix of `topo -m`: NVLinks between GPUs, and which ports are near them."""
    rows = dict(_topology_rows(text))
    gpus = [name for name in rows if name.startswith("GPU")]
    ports = [name for name in rows if not name.startswith("GPU")]
    n = len(gpus)
    for name in gpus:
        if len(rows[name]) < n:
            message = f"the row of {name} has {len(rows[name])} cells for {n} GPUs"
            raise bad_dump(source, message, "is the file cut off? give the whole output")
    links = [[_n_links(rows[a][j]) for j in range(n)] for a in gpus]
    domain = _joined(links) if n > 1 else 0
    bridged = domain == 2 if n > 2 and domain in (2, n) else None
    evidence = Evidence(n_links=_link_sums(links), bridged=bridged, capability="cuda")
    near = _near_ports(rows, gpus, ports, text)
    return Hardware((Devices(evidence, n, n),), ports=near, domain=domain)


def _topology_rows(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the cells of every row of the matrix, as far as they are relations."""
    for line in text.splitlines():
        match = _TOPO_ROW.match(line)
        if match is None:
            continue
        cells = []
        for cell in match[2].split():
            if not _CELL.fullmatch(cell):
                break
            cells.append(cell)
        if "X" in cells:
            yield match[1], cells


def _n_links(cell: str) -> int:
    return int(cell[2:]) if cell.startswith("NV") else 0


def _link_sums(links: Sequence[Sequence[int]]) -> frozenset[int]:
    """Return how many NVLinks a device may have.

    Behind a switch every pair shows all links of a device; direct links add up along a row.
    """
    n = len(links)
    if n < 2:
        return frozenset()
    sums = {sum(row) for row in links}
    largest = {max(row) for row in links}
    if len(sums) > 1:
        return frozenset()
    return frozenset(sums | largest) if len(largest) == 1 else frozenset(sums)


def _joined(links: Sequence[Sequence[int]]) -> int:
    """Return the size of the groups that NVLink joins; 0 when they differ, 1 without NVLink."""
    n = len(links)
    group = list(range(n))
    for i in range(n):
        for j in range(n):
            if links[i][j] and group[i] != group[j]:
                old, new = group[j], group[i]
                group = [new if g == old else g for g in group]
    sizes = set(Counter(group).values())
    return sizes.pop() if len(sizes) == 1 else 0


def _near_ports(
    rows: Mapping[str, list[str]], gpus: Sequence[str], ports: Sequence[str], text: str
) -> Ports:
    """Return the ports that sit below the PCIe switch of a GPU: those for training traffic."""
    if not ports:
        return Ports()
    n = len(gpus)
    near = [i for i in range(len(ports)) if any(_cell(rows[g], n + i) in _NEAR for g in gpus)]
    legend = dict(re.findall(r"^\s*(NIC[0-9]+): *(\S+)", text, re.MULTILINE))
    names = [legend.get(name, name) for name in ports]
    kinds = {_port_kind(names[i]) for i in near or range(len(ports))}
    kind = kinds.pop() if len(kinds) == 1 else ""
    n_near = len(near)
    if n_near > n and n_near % n:
        # Beside one port for every GPU there are those for storage.
        n_near = n
    shown = f"{len(near)} of {len(ports)} ports are PIX or PXB to a GPU"
    return Ports(n=n_near, kind=kind, why=f"ports {', '.join(names)}", why_n=shown)


def _cell(row: Sequence[str], i: int) -> str:
    return row[i] if i < len(row) else ""


def _port_kind(name: str) -> str:
    return next((kind for pattern, kind in _PORT_KINDS if pattern.match(name)), "")
