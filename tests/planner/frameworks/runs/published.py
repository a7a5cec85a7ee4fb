"""Configurations in the shapes of published ones: read from tests/planner/frameworks/runs/data."""

import re
from pathlib import Path

DATA = Path(__file__).parent / "data"
H100_X64 = {"pools": [{"accelerator": "h100-sxm-80gb", "nodes": 8}], "fabric": {}}


def entries(name: str) -> list[tuple[str, str]]:
    """Return (name, text) of a file whose entries begin with lines of `=== name`."""
    parts = re.split(r"^=== (.*)$", (DATA / name).read_text(), flags=re.M)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def scripts() -> list[Path]:
    """Return the launch scripts."""
    return sorted(p for p in (DATA / "megatron").iterdir() if p.suffix in (".sh", ".txt"))
