"""The audit log: who asked for what, and what came of it; one JSON object a line.

    {"time": "2026-03-01T12:00:00.123Z", "event": "request", "transport": "rest",
     "operation": "submitJob", "caller": "slurm", "group": "schedulers", "role": "solve",
     "how": "token", "address": "10.0.0.7", "outcome": "done", "status": 202,
     "request_id": "6f1c...", "job_id": "0a3f..."}

It holds no body, no token, no header and no query: operations are a fixed set, names are those of
callers who are known, and every text is cut. A file grows to a bound, then begins anew; so many
old ones are kept. Lines are written where they come about: none is lost in a queue, and a disk
that is full is told in the ordinary log and counted, while the service goes on.
"""

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from planner.errors import UsageError

log = logging.getLogger("planner.service")

MOST_BYTES = 100_000_000
"""Of one file."""
KEPT_FILES = 4
"""Older files that are kept: FILE.1, the newest, to FILE.4."""
MOST_CHARS = 200
"""Of one text of a line."""
TOLD_S = 60.0
"""Least time between two lines of the log about an audit log that cannot be written."""


def outcome_of(status: int) -> str:
    """Return what came of a request by its status over HTTP."""
    if status < 400 or status == 499:
        return "left" if status == 499 else "done"
    return "refused" if status < 500 else "failed"


class AuditLog:
    """The audit log of one process; without a file nothing is written."""

    def __init__(
        self,
        path: str = "",
        most_bytes: int = MOST_BYTES,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Open a file, of which others read nothing; `-` is stdout.

        Raises `UsageError` where it cannot be written.
        """
        self._path = path
        self._most_bytes = most_bytes
        self._wall = wall
        self._writing = threading.Lock()
        self._stream: TextIO | None = None
        self._n_bytes = 0
        self._told_s = -TOLD_S
        self.n_lost = 0
        """Lines that could not be written."""
        if path:
            try:
                self._open()
            except OSError as error:
                raise UsageError(
                    f"the audit log {path} cannot be written: {error.strerror}",
                    "name a file in a folder of this user",
                ) from None

    @property
    def is_on(self) -> bool:
        """Whether there is one."""
        return bool(self._path)

    def _open(self) -> None:
        if self._path == "-":
            self._stream = sys.stdout
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(self._path, flags, 0o600)
        self._n_bytes = os.fstat(handle).st_size
        self._stream = os.fdopen(handle, "a", buffering=1, encoding="utf-8")

    def note(self, event: str, **fields: Any) -> None:
        """Write a line; texts are cut, what is empty is left out."""
        if not self._path:
            return
        now_s = self._wall()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s))
        line: dict[str, Any] = {"time": f"{moment}.{int(now_s % 1 * 1000):03d}Z", "event": event}
        for name, value in fields.items():
            if value is None or value == "":
                continue
            line[name] = value[:MOST_CHARS] if isinstance(value, str) else value
        text = json.dumps(line, default=str) + "\n"
        with self._writing:
            try:
                self._write(text)
            except (OSError, ValueError) as error:
                self.n_lost += 1
                self._tell(error)

    def _write(self, text: str) -> None:
        if self._path != "-" and self._n_bytes + len(text) > self._most_bytes:
            self._rotate()
        if self._stream is None:
            self._open()
        assert self._stream is not None
        self._stream.write(text)
        self._stream.flush()
        self._n_bytes += len(text)

    def _rotate(self) -> None:
        self._close()
        for n in range(KEPT_FILES, 0, -1):
            older = Path(f"{self._path}.{n - 1}") if n > 1 else Path(self._path)
            with contextlib.suppress(FileNotFoundError):
                older.replace(f"{self._path}.{n}")

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None and stream is not sys.stdout:
            with contextlib.suppress(OSError):
                stream.close()

    def reopen(self) -> None:
        """Write to the file of that name as it is now: another program may have moved the old."""
        if self._path and self._path != "-":
            with self._writing:
                self._close()

    def close(self) -> None:
        """Close the file."""
        with self._writing:
            self._close()

    def _tell(self, error: Exception) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= TOLD_S:
            self._told_s = now_s
            log.error("the audit log cannot be written, %d lines are lost: %s", self.n_lost, error)
