"""A job as it was emitted: what starts it, and what it has to say of itself."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TAIL_CHARS = 3000
"""Of the output of a command or a job that failed, the end is shown."""


class NotEmittedError(Exception):
    """A case has no job: it was not solved, or not written."""


@dataclass(frozen=True, slots=True)
class EmittedJob:
    """What starts a case, and what is compared."""

    command: Sequence[str]
    env: Mapping[str, str]
    expected: Mapping[str, Any]
    layout: Mapping[str, Any]
    programs: Path | None = None
    """Folder with programs that come before those of the environment."""
    more: Callable[[Mapping[str, Any]], Sequence[str]] = lambda _: ()
    """What else a job has otherwise than its plan, of what it reports."""


def answer_of(command: Sequence[str]) -> str:
    """Return what a command of `planner` prints; raise `NotEmittedError` where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        shown = " ".join(command[-12:])
        raise NotEmittedError(f"{shown}: exit {done.returncode}: {done.stderr[-TAIL_CHARS:]}")
    return done.stdout
