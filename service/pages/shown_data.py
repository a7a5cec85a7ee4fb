"""What pages show and no request should compute: written by `scripts/page_data`, packaged."""

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def shown_data(name: str) -> dict[str, Any]:
    """Return `accuracy` or `cases`; read once by a process."""
    text = (files("service.pages") / "data" / f"{name}.json").read_text(encoding="utf-8")
    entries: dict[str, Any] = json.loads(text)
    return entries
