"""docs/published.md, written of the kept rows."""

from typing import Any


def page(document: dict[str, Any]) -> str:
    return ""
