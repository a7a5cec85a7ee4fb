"""One split of the layers for several kinds of pipelines."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

import numpy as np

from costmodels.mixed.plans import MixedPlan, MixedStage, PipelineKind
from searches.mixed.fills import (
    TOLERANCE,
    Filling,
    Pipeline,
    cuts_of,
    filled,
    least_filled_s,
    stages_of,
)
from searches.mixed.grids.rows import Row

SMALL = 64
"""Splits up to which all are looked at."""
SLACK = (0.0, 0.02, 0.06, 0.15)
"""Of the slowest stage, of splits with less work in all."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """A stage of several kinds of pipelines, which holds the same layers in all of them."""

    stages: tuple[Filling, ...]

    def time_s(self, start: int, end: int) -> float:
        """Return the time in the slowest kind."""
        return max(x.time_s(start, end) for x in self.stages)

    def reach(self, start: int, most_s: float) -> int:
        """Return the end that all kinds reach."""
        return min(x.reach(start, most_s) for x in self.stages)

    def back(self, end: int, most_s: float) -> int:
        """Return the start from which all kinds reach an end."""
        return max(x.back(end, most_s) for x in self.stages)


def _pipeline(row: Row, pools: Sequence[int]) -> Pipeline:
    return Pipeline(tuple((row.way.ways[p], len(list(g))) for p, g in groupby(pools)))


def shared_stages(
    row: Row, kinds: Sequence[tuple[int, ...]], counts: Sequence[int]
) -> list[Filling]:
    """Return the stages of some kinds, each so many pipelines that share optimizer states."""
    problem, m = row.way.problem, row.n_micro
    each = [
        stages_of(problem, _pipeline(row, pools), n, m)
        for pools, n in zip(kinds, counts, strict=True)
    ]
    return [_Shared(x) for x in zip(*each, strict=True)]


def is_small(row: Row) -> bool:
    """Tell whether all splits are looked at."""
    return math.comb(row.way.problem.n_layers - 1, row.pp - 1) <= SMALL


def splits_of(
    row: Row, kinds: Sequence[tuple[int, ...]], stages: Sequence[Filling], low_s: float
) -> Iterator[list[int]]:
    """Yield layers by stage: those of least slowest stage, and with less work in all."""
    n_layers, pp = row.way.problem.n_layers, row.pp
    if is_small(row):
        for inner in combinations(range(1, n_layers), pp - 1):
            yield np.diff((0, *inner, n_layers)).tolist()
        return
    least_s = least_filled_s(stages, 0, n_layers, low_s)
    if not math.isfinite(least_s):
        return
    alike = [len(list(g)) for _, g in groupby(zip(*kinds, strict=True))]
    seen: set[tuple[int, ...]] = set()
    for slack in SLACK if len(alike) > 1 else SLACK[:1]:
        for cuts in cuts_of(stages, alike, n_layers, least_s * (1.0 + slack)):
            ends = _even(row, stages, alike, (0, *cuts, n_layers))
            if ends is not None and tuple(ends) not in seen:
                seen.add(tuple(ends))
                yield np.diff(ends, prepend=0).tolist()


def _even(
    row: Row, stages: Sequence[Filling], lengths: Sequence[int], borders: Sequence[int]
) -> list[int] | None:
    """Return the ends of stages whose parts meet at borders, each part as even as can be."""
    results: list[int] = []
    at = 0
    for n, start, end in zip(lengths, borders, borders[1:], strict=False):
        own = stages[at : at + n]
        at += n
        if end - start < n:
            return None
        limit = least_filled_s(own, start, end, float(row.way.least_s[0][end - start]) / n)
        ends = filled(own, start, end, limit * (1.0 + TOLERANCE)) if limit < math.inf else None
        if ends is None:
            return None
        results += ends
    return results


def grid_of(
    row: Row,
    kinds: Sequence[tuple[int, ...]],
    counts: Sequence[int],
    layers: Sequence[int],
) -> MixedPlan:
    """Return the plan of some kinds with one split."""
    table, m, mbs = next(iter(row.way.tables.values())), row.n_micro, row.way.mbs
    made = tuple(
        PipelineKind(
            stages=tuple(
                MixedStage(p, table.tp, table.cp, k, table.recompute, table.ep)
                for p, k in zip(pools, layers, strict=True)
            ),
            n_pipelines=n,
            mbs=mbs,
            n_micro=m,
            n_sequences=n * mbs * m,
        )
        for pools, n in sorted(zip(kinds, counts, strict=True))
    )
    return MixedPlan(made, row.way.problem.zero)
