"""The script that starts sharded replicas of several kinds: which folder a node's files lie in.

As `planner emit` writes it: the rank of a node says its kind, and the script of the kind's folder
is run.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from planner.errors import SpecError, UsageError
from planner.specs.yaml.document import read_text

_CASE = re.compile(
    r"\(\(\s*NODE_RANK\s*<=\s*(\d{1,7})\s*\)\)[^\n]*\n\s*KIND=([A-Za-z0-9._+-]+)\s*\n"
)
_RUN = re.compile(r'^exec bash "\$\{HERE\}/\$\{KIND\}/([A-Za-z0-9._-]+\.sh)"', re.MULTILINE)

_BATCHES = re.compile(r'--rank-batches "([0-9x,]+)"')


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """What a start script runs: the script of one of its folders."""

    script: str
    folders: tuple[tuple[str, range], ...]
    """Each with its node ranks, in their order."""
    rank_batches: str = ""
    """Data-parallel ranks by their micro-batch, as it tells the program: `8x1,4x2`; "" if not."""

    @property
    def n_nodes(self) -> int:
        """Nodes that it starts."""
        return self.folders[-1][1].stop

    def named(self, folder: str) -> str:
        """Return the path of a folder's script from that of the start."""
        return f"{folder}/{self.script}"


def replica_start(text: str) -> ReplicaStart | None:
    """Return what a start script runs; None for another text.

    Raises `UsageError` for a folder that is named twice, and ranks that do not ascend.
    """
    run, cases = _RUN.search(text), _CASE.findall(text)
    if run is None or not cases:
        return None
    ends = [0, *(int(last) + 1 for last, _ in cases)]
    names = [folder for _, folder in cases]
    if any(a >= b for a, b in pairwise(ends)) or len(set(names)) < len(names):
        raise UsageError(
            f"the start script names nodes of {', '.join(names)} out of order",
            "NODE_RANK <= N of ascending N, each with a folder of its own",
            "run",
        )
    if any(name.strip(".") == "" for name in names):
        raise UsageError("the start script names no folder", "write its files again", "run")
    ranges = [range(a, b) for a, b in pairwise(ends)]
    told = _BATCHES.search(text)
    batches = told.group(1) if told else ""
    return ReplicaStart(run.group(1), tuple(zip(names, ranges, strict=True)), batches)


def start_in(path: str) -> str:
    """Return the start script in a folder of replicas' files; the path itself where none is."""
    folder = Path(path)
    if not folder.is_dir():
        return path
    for script in sorted(folder.glob("*.sh")):
        try:
            is_start = replica_start(read_text(str(script))) is not None
        except (SpecError, UsageError):
            continue
        if is_start:
            return str(script)
    return path
