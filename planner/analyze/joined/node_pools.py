"""The node list beside the script of a run over several pools: which pool each node rank is of."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.errors import SpecError, UsageError
from planner.frameworks.launchers.node_types import NODE_LIST
from planner.specs.inputs import Content, FileOrContent
from planner.specs.yaml.document import read_text


def node_list_of(file: FileOrContent, files: Mapping[str, str] | None) -> str:
    """Return the node list of a run: among the files given, or beside the run; empty without."""
    if files and NODE_LIST in files:
        return files[NODE_LIST]
    if isinstance(file, Content) or files is not None:
        return ""
    path = Path(os.fspath(file)).parent / NODE_LIST
    try:
        return read_text(str(path)) if path.is_file() else ""
    except (OSError, SpecError):
        return ""


def node_pools(text: str, pools: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the pool of each node, by node rank; `pools` are the known names.

    Raises `UsageError` for a line of another form, ranks that do not follow one another, and a
    pool that the cluster does not have.
    """
    rows = [line.split() for line in text.splitlines() if line.strip()]
    names = []
    for number, row in enumerate(rows):
        if len(row) not in (2, 3) or row[0] != str(number):
            raise _wrong(f"line {number + 1} is {' '.join(row)!r}", "RANK POOL [HOST], from 0 on")
        if row[1] not in pools:
            raise _wrong(f"the cluster has no pool {row[1]!r}", f"one of {', '.join(pools)}")
        names.append(str(pools[row[1]]))
    if not names:
        raise _wrong("it names no node", "a line a node: RANK POOL [HOST]")
    return tuple(names)


def _wrong(what: str, fix: str) -> UsageError:
    return UsageError(f"{NODE_LIST}: {what}", fix, "files")


def pool_names(names: Sequence[str], merged: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the pool that each name means: those that are planned as one have several."""
    known = {name: name for name in names}
    return known | {part: name for name, parts in merged.items() for part in parts}
