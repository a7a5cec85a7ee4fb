"""Reading dumps: files and standard input as clean text, JSON parsed once, errors in one form."""

import json
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from planner.errors import InputProblem, SpecError

MAX_BYTES = 256_000_000
"""Largest dump that is read: `kubectl get nodes,pods -A -o json` of thousands of nodes."""

STANDARD_INPUT = "standard input"
"""Name of what `-` reads, in messages."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\([AB0]")


def bad_dump(source: str, message: str, fix: str = "", line: int = 0) -> SpecError:
    """Return the error for a dump that cannot be used."""
    return SpecError(InputProblem(message, fix, source, line))


def read_dump(name: str) -> str:
    """Return the text of a file, or of standard input for `-`."""
    try:
        if name == "-":
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(Path(name), "rb") as stream:
                raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise bad_dump(name, "no such file", "name the file with the output") from None
    except IsADirectoryError:
        raise bad_dump(name, "is a directory, not a file", "name its files") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise bad_dump(name, f"cannot be read: {reason}") from None
    if len(raw) > MAX_BYTES:
        message = f"is larger than {MAX_BYTES // 1_000_000} MB"
        raise bad_dump(name, message, "give the nodes of one partition only")
    return decode(raw, name)


def decode(raw: bytes, name: str) -> str:
    """Return bytes as text; files that a Windows shell wrote are UTF-16."""
    utf16 = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = raw.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        raise bad_dump(name, "is not text", "give the output of the command as it is") from None
    if "\0" in text:
        raise bad_dump(name, "is a binary file", "give the output of the command as it is")
    return text


def clean(text: str) -> str:
    """Return text without colour codes and carriage returns."""
    return _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


@lru_cache(maxsize=2)  # they may have megabytes, and belong to one question
def json_of(text: str) -> Any:
    """Return the content of a JSON text; None when it is none. Do not change what is returned."""
    start = text.lstrip()[:1]
    if start not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def as_dict(value: Any) -> dict[str, Any]:
    """Return a JSON value as a mapping; an empty one when it is something else."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a JSON value as a list; an empty one when it is something else."""
    return value if isinstance(value, list) else []


def as_text(value: Any) -> str:
    """Return a JSON value as text; empty when it is no plain value."""
    return str(value) if isinstance(value, str | int | float) else ""


def as_count(value: Any) -> int:
    """Return a JSON number, or text with digits, as a count; 0 when it is neither."""
    text = as_text(value).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
