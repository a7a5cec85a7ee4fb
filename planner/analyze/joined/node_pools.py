"""The node list beside the script of a run over several pools: which pool each node rank is of."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.errors import SpecError, UsageError
from planner.frameworks.launchers.node_types import NODE_LIST
from planner.specs.inputs import Content, FileOrContent
from planner.specs.yaml.document import read_text

LINE = "RANK POOL [HOST]"
"""What a line of the list says."""


def node_list_of(file: FileOrContent, files: Mapping[str, str] | None) -> str:
    """Return the node list of a run: among the files given, or beside the run; empty without.

    Raises `UsageError` for a list that is empty or cannot be read.
    """
    if files and NODE_LIST in files:
        return _not_empty(files[NODE_LIST], NODE_LIST)
    if isinstance(file, Content) or files is not None:
        return ""
    path = Path(os.fspath(file)).parent / NODE_LIST
    if not os.path.lexists(path):
        return ""
    try:
        text = read_text(str(path))
    except SpecError as error:
        first = error.problems[0]
        raise UsageError(
            f"{path}: the list of nodes cannot be read: {first.message}",
            f"a line a node: {LINE}, or remove it",
            "files",
        ) from None
    return _not_empty(text, str(path))


def _not_empty(text: str, path: str) -> str:
    if text.strip():
        return text
    raise UsageError(f"{path}: it names no node", f"a line a node: {LINE}, or remove it", "files")


def node_pools(text: str, pools: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the pool of each node, by node rank; `pools` are the known names.

    Raises `UsageError` for a line of another form, ranks that do not follow one another, and a
    pool that the cluster does not have.
    """
    rows = [line.split() for line in text.splitlines() if line.strip()]
    names = []
    for number, row in enumerate(rows):
        if len(row) not in (2, 3) or row[0] != str(number):
            raise _wrong(f"line {number + 1} is {' '.join(row)!r}", f"{LINE}, from 0 on")
        if row[1] not in pools:
            raise _wrong(f"the cluster has no pool {row[1]!r}", f"one of {', '.join(pools)}")
        names.append(str(pools[row[1]]))
    return tuple(names)


def listed_pools(text: str) -> tuple[str, ...]:
    """Return the pool that each line names, known or not; lines of another form name none."""
    rows = [line.split() for line in text.splitlines()]
    return tuple(row[1] for row in rows if len(row) in (2, 3))


def _wrong(what: str, fix: str) -> UsageError:
    return UsageError(f"{NODE_LIST}: {what}", fix, "files")


def pool_names(names: Sequence[str], merged: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the pool that each name means: those that are planned as one have several."""
    known = {name: name for name in names}
    return known | {part: name for name, parts in merged.items() for part in parts}
