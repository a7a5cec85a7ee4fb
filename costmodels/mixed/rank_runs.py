"""Ranks of a grid over several pools: which follow one another on a pool, and whether on nodes."""

from collections.abc import Hashable, Sequence
from itertools import groupby
from typing import TypeVar

Pool = TypeVar("Pool", bound=Hashable)


def rank_runs(
    kinds: Sequence[tuple[Sequence[Pool], int]], stage_devices: int, inside: bool
) -> list[tuple[Pool, int]]:
    """Return pools and how many ranks follow one another on each, in the order of ranks.

    `kinds` are the pool of each stage and the pipelines of each kind. Ranks of a stage of all
    pipelines follow one another, kind by kind, or with `inside` whole pipelines do.
    """
    if inside:
        pieces = [(p, 1) for pools, n in kinds for _ in range(n) for p in pools]
    else:
        stages = zip(*(pools for pools, _ in kinds), strict=True)
        counts = [n for _, n in kinds]
        pieces = [(p, n) for stage in stages for p, n in zip(stage, counts, strict=True)]
    return [
        (pool, stage_devices * sum(n for _, n in run))
        for pool, run in groupby(pieces, lambda x: x[0])
    ]


def fills_nodes(runs: Sequence[tuple[Pool, int]], per_node: int) -> bool:
    """Tell whether no node would hold ranks of two pools."""
    return all(n % per_node == 0 for _, n in runs)


def pipelines_inside(
    kinds: Sequence[tuple[Sequence[Pool], int]], stage_devices: int, per_node: int
) -> bool | None:
    """Return the order of ranks in which nodes are of one pool each: whether pipelines lie inside.

    None where a node would hold ranks of two pools in both.
    """
    for inside in (False, True):
        if fills_nodes(rank_runs(kinds, stage_devices, inside), per_node):
            return inside
    return None
