"""Reads rocm-smi (table, `--showproductname`, `--showtopo`, `--json`) and amd-smi."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from planner.specs.importers.clusters.facts import Devices, Evidence, Facts, Hardware
from planner.specs.importers.dump_text import as_dict, as_list, as_text, bad_dump, json_of

_CARD = re.compile(r"^card[0-9]+$")
_FIELD = re.compile(r"^GPU\[([0-9]+)\]\s*: *([^:\n]+?) *:\s*(.*?)\s*$", re.MULTILINE)
_CONCISE = re.compile(
    r"^([0-9]+) +(?:[0-9]+ +)?(?:\[?(0x[0-9a-f]{4}))\b.*?(?:(SPX|DPX|TPX|QPX|CPX)[, ].*)?$",
    re.MULTILINE,
)
_OLD_CONCISE = re.compile(r"^([0-9]+) +[0-9.]+c ", re.MULTILINE)
_BUS = r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]"
_AMD_SMI = re.compile(rf"^GPU: *[0-9]+ *$|^LINK TYPE TABLE:|^ACCESS TABLE:|^{_BUS} ", re.MULTILINE)


def looks_like_rocm_smi(text: str) -> bool:
    """Tell whether a text is what rocm-smi or amd-smi prints."""
    if text.lstrip()[:1] in ("{", "["):
        return bool(_cards(json_of(text)))
    return "ROCm System Management" in text or "ROCM-SMI" in text or bool(_AMD_SMI.search(text))


def read_rocm_smi(text: str, source: str) -> Facts:
    """Return the inside of a node with AMD accelerators."""
    is_json = text.lstrip()[:1] in ("{", "[")
    cards = _cards(json_of(text)) if is_json else _text_cards(text)
    domain = _joined(text)
    if not cards and domain[0]:
        cards = [{} for _ in range(domain[0])]
    if not cards:
        raise bad_dump(source, "lists no GPU", "rocm-smi --showproductname")
    kinds = Counter((_evidence(card), _partition(card)) for card in cards)
    devices = tuple(
        Devices(evidence, n, 0 if mode else n, f"parts of GPUs ({mode})" if mode else "")
        for (evidence, mode), n in kinds.items()
    )
    of_amd_smi = _AMD_SMI.search(text) or '"gpu":' in text
    maker = "amd-smi" if of_amd_smi else "rocm-smi"
    return Facts(source, maker, hardware=Hardware(devices, domain=domain[1]))


def _cards(data: Any) -> list[Mapping[str, str]]:
    """Return the fields of every card in JSON, with keys in lower case."""
    if isinstance(data, Mapping) and any(_CARD.match(str(key)) for key in data):
        results = [as_dict(value) for key, value in data.items() if _CARD.match(str(key))]
        return [{str(k).lower(): as_text(v) for k, v in card.items()} for card in results]
    entries = as_list(data.get("gpu_data")) if isinstance(data, Mapping) else as_list(data)
    cards: list[Mapping[str, str]] = []
    for entry in map(as_dict, entries):
        if "gpu" not in entry:
            return []
        asic, memory = as_dict(entry.get("asic")), as_dict(entry.get("vram"))
        partition = as_dict(entry.get("partition"))
        size = as_dict(memory.get("size"))
        cards.append(
            {
                "card series": as_text(asic.get("market_name")),
                "card model": as_text(asic.get("device_id")),
                "gfx version": as_text(asic.get("target_graphics_version")),
                "vram mib": as_text(size.get("value")) if size.get("unit") == "MB" else "",
                "compute partition": as_text(
                    partition.get("accelerator_partition") or partition.get("compute_partition")
                ),
            }
        )
    return cards


def _text_cards(text: str) -> list[Mapping[str, str]]:
    """Return the fields of every GPU in text, with keys in lower case."""
    cards: dict[str, dict[str, str]] = {}
    for match in _FIELD.finditer(text):
        cards.setdefault(match[1], {})[match[2].strip().lower()] = match[3]
    for match in _CONCISE.finditer(text):
        fields = cards.setdefault(match[1], {})
        fields.setdefault("card model", match[2])
        if match[3]:
            fields.setdefault("compute partition", match[3])
    if not cards:
        cards = {match[1]: {} for match in _OLD_CONCISE.finditer(text)}
    if not cards:
        cards = {str(i): fields for i, fields in enumerate(_amd_cards(text))}
    return list(cards.values())


def _amd_cards(text: str) -> Iterator[dict[str, str]]:
    """Yield the GPUs of `amd-smi list` and `amd-smi static`."""
    names = {
        "market_name": "card series",
        "device_id": "card model",
        "size": "vram size",
        "target_graphics_version": "gfx version",
        "accelerator_partition": "compute partition",
        "compute_partition": "compute partition",
    }
    for part in re.split(r"(?m)^(?=GPU: *[0-9]+ *$)", text):
        if re.match(r"GPU: *[0-9]+", part):
            pairs = re.findall(r"^\s+([A-Z_]+): *(.+?) *$", part, re.MULTILINE)
            entries: dict[str, str] = {}
            for key, value in pairs:
                if key.lower() in names:
                    entries.setdefault(names[key.lower()], value)
            yield entries


def _evidence(card: Mapping[str, str]) -> Evidence:
    model = card.get("card model", "").lower()
    series = card.get("card series", "")
    # Old drivers give only the number of the device, or repeat it as the name.
    named = "" if series.startswith("0x") or series in ("N/A", "") else series
    total = card.get("vram total memory (b)", "") or card.get("vram total memory", "")
    size = re.fullmatch(r"([0-9]+) ?MB", card.get("vram size", ""))
    mib = card.get("vram mib", "") or (size[1] if size else "")
    memory = (
        float(total) if total.isdecimal() else float(mib) * 2.0**20 if mib.isdecimal() else 0.0
    )
    graphics = re.search(r"gfx[0-9a-f]+", card.get("gfx version", "").lower())
    return Evidence(
        name=named,
        memory_bytes=memory if 1e9 < memory < 1e13 else 0.0,
        pci_id=model.removeprefix("0x") if re.fullmatch(r"0x[0-9a-f]{4}", model) else "",
        capability=graphics[0] if graphics else "gfx",
    )


def _partition(card: Mapping[str, str]) -> str:
    """Return the mode in which a device is cut up; empty for a whole one."""
    mode = card.get("compute partition", "").upper().split(",")[0].strip()
    return mode if mode in ("DPX", "TPX", "QPX", "CPX") else ""


def _joined(text: str) -> tuple[int, int]:
    """Return the GPUs in the table of links, and how many of them xGMI joins (1: none).

    Both are 0 without a table.
    """
    parts = re.split(r"Link Type between two GPUs[ =]*\n|LINK TYPE TABLE:[ \t]*\n", text)
    if len(parts) < 2:
        return 0, 0
    rows = []
    for line in parts[1].splitlines():
        cells = line.split()
        if not cells or not re.fullmatch(rf"GPU[0-9]+|{_BUS}", cells[0]):
            break
        if any(cell in ("XGMI", "PCIE", "SELF", "0", "X") for cell in cells[1:]):
            rows.append(cells[1:])
    joined = {1 + sum(cell == "XGMI" for cell in row) for row in rows}
    return len(rows), joined.pop() if len(joined) == 1 else 0
