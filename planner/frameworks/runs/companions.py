"""The files that a run names and that lie beside it, for those who send a run elsewhere."""

import re
from pathlib import Path

from planner.errors import SpecError
from planner.frameworks.runs.replica_start import ReplicaStart, replica_start
from planner.specs.yaml.document import read_text

ENDINGS = ("json", "yaml", "yml", "toml", "py", "sh", "slurm", "sbatch", "txt", "conf", "env")
_NAMED = re.compile(rf"[\w./@+-]*\w\.(?:{'|'.join(ENDINGS)})\b")
MOST_FILES = 32
"""Files that are read for one run; a launch script names a few."""


def files_beside(name: str, text: str) -> dict[str, str]:
    """Return the texts of files that a run names, and those name, by their path from its folder.

    Only files within the folder of the run: a text may name anything, and what it names leaves
    this machine.
    """
    folder = Path(name).resolve().parent
    entries: dict[str, str] = {}
    if start := replica_start(text):
        for own, _ in start.folders:
            entries |= _files_of_kind(folder, own, start)
        return entries
    waiting = [text]
    while waiting:
        for named in dict.fromkeys(_NAMED.findall(waiting.pop())):
            for path in (folder / named.lstrip("/"), folder / named.rsplit("/", 1)[-1]):
                inside = _inside(path, folder, Path(name).name)
                if inside and inside not in entries and len(entries) < MOST_FILES:
                    try:
                        entries[inside] = read_text(str(path))
                    except SpecError:
                        continue
                    waiting.append(entries[inside])
    return entries


def _files_of_kind(folder: Path, own: str, start: ReplicaStart) -> dict[str, str]:
    """Return the script of one kind of replica and what it names, by path from the start."""
    script = folder / start.named(own)
    if not _inside(script, folder, ""):
        return {}
    try:
        text = read_text(str(script))
    except SpecError:
        return {}
    found = {f"{own}/{path}": x for path, x in files_beside(str(script), text).items()}
    return {start.named(own): text} | found


def _inside(path: Path, folder: Path, own: str) -> str:
    """Return the path of a file from the folder; empty where it is none to send."""
    try:
        real = path.resolve()
        if not real.is_file() or not real.is_relative_to(folder) or real == folder / own:
            return ""
        return real.relative_to(folder).as_posix()
    except (OSError, ValueError):
        return ""
