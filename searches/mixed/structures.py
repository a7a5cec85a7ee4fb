"""Pipelines that may share several pools, as columns, with bounds on what each gets done."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedProblem, StageTable
from searches.mixed.fills import Pipeline, Way, layer_sum_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_STAGES = 48
"""Of one pipeline."""


@dataclass(frozen=True, slots=True)
class Structures:
    """Pipelines by the ways that their parts run in and the stages of each; columns `(n,)`."""

    ways: tuple[Way, ...]
    parts: Ints
    """Positions in `ways`, `(n, most parts)`; -1 where a pipeline has fewer."""
    counts: Ints
    """Stages of each part, `(n, most parts)`; 0 where there is none."""
    devices: Floats
    """Devices of each pool in one pipeline, `(n, n_pools)`."""
    slowest_s: Floats
    """Lower bound of the slowest stage's forward and backward, `(n,)`."""
    total_s: Floats
    """Lower bound of the sum over its stages, `(n,)`."""
    mbs: Floats

    def __len__(self) -> int:
        return len(self.mbs)

    def pipeline(self, i: int) -> Pipeline:
        """Return one of the pipelines."""
        pairs = zip(self.parts[i].tolist(), self.counts[i].tolist(), strict=True)
        return Pipeline(tuple((self.ways[w], n) for w, n in pairs if n))

    @property
    def pp(self) -> Ints:
        """Stages of each pipeline."""
        return np.asarray(self.counts.sum(axis=1))

    def most_micro(self, time_s: float, overhead_s: float, factor: float) -> Floats:
        """Return an upper bound of the micro-batches that each runs within a step, `(n,)`.

        S [ (m - 1) slowest + total ] + overhead <= T.
        """
        room = (time_s - overhead_s) / factor - self.total_s
        return np.maximum(0.0, np.floor(room / self.slowest_s * (1.0 + 1e-12)) + 1.0)


def _stage_counts(most: int) -> list[int]:
    """Return the numbers of stages that one part may have: all up to 16, then even ones."""
    return [n for n in range(1, most + 1) if n <= 16 or n % 2 == 0]


def _shares(ways: Sequence[Way], n_layers: int) -> tuple[Floats, Floats]:
    """Return the work of all layers relative to each way of a pair, and the least of both.

    y_k the rate of way k, 1 / its mean time of a layer: sum over layers of min_k (y_k t_k(l)).
    """
    times = [np.diff(w.tables[0].forward_s.layers + w.tables[0].backward_s.layers) for w in ways]
    means = np.array([max(float(x.mean()), 1e-30) for x in times])
    relative = np.array([t / mean for t, mean in zip(times, means, strict=True)])
    return means, np.asarray(relative.min(axis=0).sum())


def _embedding_s(table: StageTable) -> float:
    return table.forward_s.embedding + table.backward_s.embedding


def _head_s(table: StageTable) -> float:
    return table.forward_s.head + table.backward_s.head


def structures_of(
    problem: MixedProblem, ways: Sequence[Way], most_spanned: int, most_stages: int = MOST_STAGES
) -> Structures:
    """Return every pipeline over up to `most_spanned` pools, each pool's stages together.

    The slowest stage is bounded by weak duality: for any rates y_k >= 0 and stages p_k of way k

        slowest >= sum over layers of min_k ( y_k t_k ) / sum_k p_k y_k

    with t_k the times without recomputation; the ends of the model are left out, as is memory.
    """
    n_layers, n_pools = problem.n_layers, len(problem.pools)
    by_pool = [[i for i, w in enumerate(ways) if w.pool == k] for k in range(n_pools)]
    blocks: list[tuple[tuple[int, ...], Ints, Floats, float]] = []
    limit = min(most_stages, n_layers)

    def most(way: Way) -> int:
        fits = problem.pools[way.pool].n_devices // (
            way.n_devices * way.tables[0].pipelines_multiple
        )
        return min(limit, fits)

    def add(chosen: tuple[int, ...]) -> None:
        own = [ways[i] for i in chosen]
        axes = [np.array(_stage_counts(most(w)), dtype=np.int64) for w in own]
        if any(not len(x) for x in axes):
            return
        grid = np.stack([x.ravel() for x in np.meshgrid(*axes, indexing="ij")], axis=1)
        grid = grid[grid.sum(axis=1) <= limit]
        if not len(grid):
            return
        means, work = _shares(own, n_layers)
        cheapest = np.min(
            [np.diff(w.tables[0].forward_s.layers + w.tables[0].backward_s.layers) for w in own],
            axis=0,
        )
        slowest = float(work) / (grid / means).sum(axis=1)
        ends_s = sum(min(end(w.tables[0]) for w in own) for end in (_embedding_s, _head_s))
        blocks.append((chosen, grid, slowest, float(cheapest.sum()) + ends_s))

    def extend(chosen: tuple[int, ...], pools: tuple[int, ...]) -> None:
        if not pools:
            add(chosen)
            return
        for i in by_pool[pools[0]]:
            if not chosen or ways[i].degrees == ways[chosen[0]].degrees:
                extend((*chosen, i), pools[1:])

    for length in range(1, min(most_spanned, n_pools) + 1):
        for pools in permutations(range(n_pools), length):
            extend((), pools)
    width = min(most_spanned, n_pools)
    n = sum(len(grid) for _, grid, _, _ in blocks)
    parts = np.full((n, width), -1, dtype=np.int64)
    counts = np.zeros((n, width), dtype=np.int64)
    slowest_s, total_s = np.zeros(n), np.zeros(n)
    at = 0
    for chosen, grid, slowest, total in blocks:
        rows = slice(at, at + len(grid))
        parts[rows, : len(chosen)] = chosen
        counts[rows, : len(chosen)] = grid
        slowest_s[rows], total_s[rows] = slowest, total
        at += len(grid)
    stage_devices = np.array([w.n_devices for w in ways], dtype=np.float64)
    pool_of = np.array([w.pool for w in ways])
    mbs_of = np.array([w.mbs for w in ways], dtype=np.float64)
    devices = np.zeros((n, n_pools))
    for j in range(width):
        has = counts[:, j] > 0
        np.add.at(
            devices,
            (np.flatnonzero(has), pool_of[parts[has, j]]),
            counts[has, j] * stage_devices[parts[has, j]],
        )
    return Structures(
        ways=tuple(ways),
        parts=parts,
        counts=counts,
        devices=devices,
        slowest_s=slowest_s,
        total_s=total_s,
        mbs=mbs_of[parts[:, 0]] if n else np.zeros(0),
    )


def fastest_way_s(problem: MixedProblem, ways: Sequence[Way]) -> Floats:
    """Return the least device seconds that a sequence takes on each pool, `(n_pools,)`.

    Infinite for a pool without ways.
    """
    result = np.full(len(problem.pools), np.inf)
    for way in ways:
        each = layer_sum_s(way.tables[0]) * way.n_devices / way.mbs
        result[way.pool] = min(result[way.pool], each)
    return result
