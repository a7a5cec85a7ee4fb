"""Which formats are read in place of our own files, and how one is recognized."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.intake import huggingface
from planner.intake.imported import Imported, Kind
from planner.runs.megatron_model import looks_like_megatron, read_megatron_model


@dataclass(frozen=True, slots=True)
class Format:
    """One format that users have files of."""

    name: str
    kind: Kind
    title: str
    """What the file is, in words."""
    looks_like: Callable[[str], bool]
    """Tell from the text whether it is, or was meant to be, of this format."""
    read: Callable[[str, str, Mapping[str, object]], Imported]
    """Read the text of a file (as the user named it). The mapping holds what the user states with
    `--set`, by dotted path: a reader need not ask for that, nor assume it."""


FORMATS: tuple[Format, ...] = (
    Format(
        name="huggingface",
        kind="model",
        title="Hugging Face config.json",
        looks_like=huggingface.looks_like,
        read=huggingface.read,
    ),
    Format(
        name="megatron",
        kind="model",
        title="Megatron-LM arguments",
        looks_like=looks_like_megatron,
        read=read_megatron_model,
    ),
)
"""In the order in which they are tried."""


def find_format(text: str) -> Format | None:
    """Return the format of a text; None when it is none of them, such as one of our own files."""
    return next((known for known in FORMATS if known.looks_like(text)), None)


def text_of(data: Mapping[str, Any]) -> str:
    """Return Python data as the text that a reader takes; empty where it is not JSON's."""
    try:
        return json.dumps(data)
    except (TypeError, ValueError, RecursionError):
        return ""
