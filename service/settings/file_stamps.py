"""Whether files have changed since they were read."""

import contextlib
from pathlib import Path

LOOK_S = 10.0
"""Least time between two looks."""
Stamps = tuple[tuple[int, int, int] | None, ...]


def stamps_of(files: list[Path]) -> Stamps:
    """Return what changes when a file is written, or replaced by another."""
    return tuple(_stamp(file) for file in files)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):
        found = file.stat()
        return found.st_mtime_ns, found.st_ino, found.st_size
    return None
