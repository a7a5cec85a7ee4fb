"""From the place of every node in the network to tiers of one size, and hosts in network order.

The model has one size for each tier, and takes that many neighbours of the list for one group.
Real groups are uneven once nodes are down or in use: the size is chosen so that most nodes lie in
whole groups, and those that do not come last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.specs.importers.clusters.facts import Position
from planner.specs.importers.hostlist import natural_key

LEAST_IN_WHOLE_GROUPS = 0.75
"""Share of the nodes that whole groups must hold, unless the rest is one smaller group."""


@dataclass(frozen=True, slots=True)
class Level:
    """A tier of the network."""

    name: str
    n_nodes: int
    """Nodes of one group."""
    sizes: tuple[int, ...]
    """Nodes in use in each real group, the largest first."""
    n_rest: int
    """Nodes, or nodes of groups below, that fill no whole group."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Nodes in network order, and the tiers that this order fills."""

    order: tuple[str, ...]
    levels: tuple[Level, ...]
    """From the lowest up; levels with one group, or with groups of one node, are left out."""
    unplaced: tuple[str, ...] = ()
    """Nodes that the topology does not name; they come last in the order."""
    lonely: tuple[str, ...] = ()
    """Levels left out because each of their groups holds one usable node."""
    n_loose: int = 0
    """Nodes that fill no whole group of the lowest level; they come before the unplaced ones."""


def common_size(counts: Sequence[int]) -> int:
    """Return the size that stands for groups of these sizes.

    The largest with which all nodes but those of one smaller group, or at least three quarters of
    all nodes, fill whole groups; if there is none, the one with which most nodes do.

    >>> common_size([16, 16, 13]), common_size([16, 13, 12]), common_size([32, 32, 32, 31, 2])
    (16, 12, 31)
    """
    total, best = sum(counts), (0, 1)
    for size in range(max(counts), 1, -1):
        n_placed = sum(count // size for count in counts) * size
        rests = sum(count % size > 0 for count in counts)
        if n_placed and (rests <= 1 or n_placed >= LEAST_IN_WHOLE_GROUPS * total):
            return size
        best = max(best, (n_placed, size))
    return best[1]


def rack_size(counts: Sequence[int], full: int) -> int:
    """Return how many nodes to use of every rack, so that most nodes are in use in equal racks.

    A full rack (where all hold half of one or less: that), or a power of two: other numbers of
    devices lack the divisors that a plan could use.

    >>> rack_size([18, 18, 17], 18), rack_size([18] * 20 + [17], 18), rack_size([9], 18)
    (16, 18, 9)
    """
    largest = max(counts)
    total = full if largest > full // 2 else full // 2
    sizes = {total, *(1 << k for k in range(full.bit_length()))}
    fitting = [size for size in sizes if largest < 2 * size <= 2 * largest] or [1]
    return max(fitting, key=lambda size: (sum(count // size for count in counts) * size, size))


def arrange(positions: Sequence[tuple[str, Position]], size: int = 0) -> Arrangement:
    """Return nodes in network order, and the tiers that their positions give.

    `size` fixes the size of the lowest groups; without it `common_size` chooses.
    """
    placed = [(name, position) for name, position in positions if position.path]
    unplaced = sorted((name for name, position in positions if not position.path), key=natural_key)
    if not placed:
        return Arrangement(tuple(unplaced), ())
    depth = max(len(position.path) for _, position in placed)
    names = max((position.levels for _, position in placed), key=len)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, position in placed:
        # Branches of a tree may differ in depth: levels are counted from the leaves.
        path = ("",) * (depth - len(position.path)) + position.path
        groups.setdefault(path, []).append(name)
    keys = sorted(groups, key=lambda path: [natural_key(part) for part in path])
    units = [(key, [[n] for n in sorted(groups[key], key=natural_key)]) for key in keys]
    levels: list[Level] = []
    lonely: list[str] = []
    rest: list[str] = []
    n_nodes, n_loose = 1, 0
    for k in range(depth - 1, -1, -1):
        by_group: dict[tuple[str, ...], list[list[str]]] = {}
        for key, chunks in units:
            by_group.setdefault(key[: k + 1], []).extend(chunks)
        counts = [len(chunks) for chunks in by_group.values()]
        if len(counts) == 1 and not (size and k == depth - 1):
            break
        per_group = size if size and k == depth - 1 else common_size(counts)
        joined: list[tuple[tuple[str, ...], list[list[str]]]] = []
        left: list[str] = []
        for key, chunks in by_group.items():
            n_whole = len(chunks) // per_group
            packed = [
                [name for chunk in chunks[i * per_group : (i + 1) * per_group] for name in chunk]
                for i in range(n_whole)
            ]
            joined.append((key, packed))
            left += [name for chunk in chunks[n_whole * per_group :] for name in chunk]
        sizes = tuple(sorted((n * n_nodes for n in counts), reverse=True))
        n_nodes *= per_group
        if per_group == 1 and k == depth - 1:
            lonely.append(names[k - depth])
        elif per_group > 1:
            levels.append(Level(names[k - depth], n_nodes, sizes, len(left)))
        n_loose = len(left) if k == depth - 1 else n_loose
        units, rest = joined, left + rest
    order = [name for _, chunks in units for chunk in chunks for name in chunk]
    return Arrangement(
        (*order, *rest, *unplaced), tuple(levels), tuple(unplaced), tuple(lonely), n_loose
    )
