"""Which grids lie on whole nodes: programs start as many ranks on each, all of one pool."""

from collections.abc import Sequence

import numpy as np

from costmodels.mixed.plans import MixedPlan
from costmodels.mixed.rank_runs import pipelines_inside
from costmodels.mixed.tables import MixedProblem
from searches.mixed.grids.kinds import Ints
from searches.mixed.grids.rows import GridWay

EXACT = 64
"""Numbers of pipelines up to which each is looked at."""


def on_whole_nodes(way: GridWay, kinds: Sequence[tuple[int, ...]], counts: Ints) -> Ints:
    """Return the numbers of pipelines by kind with which no node holds ranks of two pools.

    All where nodes are of unlike size: no order of ranks fits those. Of very many those with
    which every kind fills nodes stage by stage.
    """
    sizes = {way.problem.pools[p].devices_per_node for pools in kinds for p in pools}
    if len(sizes) > 1 or not len(counts):
        return counts
    (per_node,) = sizes
    if len(counts) > EXACT:
        whole = (counts * way.n_devices % per_node == 0).all(axis=1)
        if whole.any():
            return np.asarray(counts[whole])
        counts = counts[:: -(-len(counts) // EXACT)]
    kept = [
        _is_whole(list(zip(kinds, row, strict=True)), way.degrees, per_node)
        for row in counts.tolist()
    ]
    return np.asarray(counts[np.array(kept, dtype=bool)])


def _is_whole(
    kinds: Sequence[tuple[Sequence[int], int]], degrees: tuple[int, int, int], per_node: int
) -> bool:
    """Tell whether some order of ranks that Megatron-LM has fills whole nodes.

    With pipelines inside the experts' grid, which folds tp over ep, has the same pipelines only
    where it takes as many ranks a stage.
    """
    tp, cp, ep = degrees
    inside = pipelines_inside(kinds, tp * cp, per_node)
    if inside:
        return len(kinds[0][0]) == 1 or ep == tp * cp or ep == cp == 1
    return inside is not None


def is_on_whole_nodes(plan: MixedPlan, problem: MixedProblem) -> bool:
    """Tell of a plan that is one grid whether nodes hold ranks of one pool each."""
    sizes = {problem.pools[stage.pool].devices_per_node for stage in plan.stages}
    if len(sizes) > 1:
        return True
    stage = next(plan.stages)
    kinds = [(tuple(x.pool for x in kind.stages), kind.n_pipelines) for kind in plan.kinds]
    return _is_whole(kinds, (stage.tp, stage.cp, stage.ep), *sizes)
