"""Pipelines that may share several pools, as columns, with bounds on what each gets done."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.mixed.tables import MixedProblem, StageTable
from searches.mixed.fills import Pipeline, Way, layer_times_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_STAGES = 48
"""Of one pipeline."""
ROUNDING = 1e-9
"""Share of a micro-batch by which bounds may be missed by rounding."""


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
    slow_total_s: Floats
    """The same with all layers on the slowest of its ways, `(n,)`."""
    moved: Floats
    """What a second more in the slowest stage takes from that sum at most, seconds, `(n,)`."""
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

    def most_micro(self, room_s: float | Floats, slowest_s: Floats | None = None) -> Floats:
        """Return an upper bound of the micro-batches that each runs within some time, `(n,)`.

        (m - 1) B + W(B) <= room  for some B >= `slowest_s`, W(B) = max(total, slow total - c B):
        with layers on a faster way the sum falls by c at most while the slowest stage grows. The
        left side is least at one end: at the least B, or where W reaches its own least.
        """
        least = self.slowest_s if slowest_s is None else slowest_s
        possible = np.isfinite(least)
        least = np.where(possible, least, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            later = np.where(self.moved > 0, (self.slow_total_s - self.total_s) / self.moved, 0.0)
        later = np.maximum(least, later)
        total = np.maximum(self.total_s, self.slow_total_s - self.moved * least)
        near = np.floor((room_s - total) / least + ROUNDING)
        far = np.floor((room_s - self.total_s) / later + ROUNDING)
        return np.where(possible, np.maximum(0.0, np.maximum(near, far) + 1.0), 0.0)


STAGE_COUNTS = (*range(1, 13), 14, 16, 20, 24, 28, 32, 40, 48)
"""Numbers of stages that one part of a pipeline may have."""


def _shares(times: Floats) -> tuple[Floats, Floats]:
    """Return the mean time of a layer by way, and the work of all layers at those rates.

    `times` are `(n_ways, n_layers)`; the work is the sum over layers of min_k t_k / mean_k.
    """
    means = np.maximum(times.mean(axis=1), 1e-30)
    return means, np.asarray((times / means[:, None]).min(axis=0).sum())


class _Block(NamedTuple):
    """Pipelines whose parts run in the same ways."""

    ways: tuple[int, ...]
    counts: Ints
    slowest_s: Floats
    totals_s: tuple[float, float]
    moved: Floats


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
    blocks: list[_Block] = []
    limit = min(most_stages, n_layers)

    def most(way: Way) -> int:
        fits = problem.pools[way.pool].n_devices // (
            way.n_devices * way.tables[0].pipelines_multiple
        )
        return min(limit, fits)

    def add(chosen: tuple[int, ...]) -> None:
        own = [ways[i] for i in chosen]
        axes = [np.array([n for n in STAGE_COUNTS if n <= most(w)], dtype=np.int64) for w in own]
        if any(not len(x) for x in axes):
            return
        grid = np.stack([x.ravel() for x in np.meshgrid(*axes, indexing="ij")], axis=1)
        grid = grid[grid.sum(axis=1) <= limit]
        if not len(grid):
            return
        times = np.array([layer_times_s(w.tables[0]) for w in own])
        means, work = _shares(times)
        cheapest = times.min(axis=0)
        slow = int(times.sum(axis=1).argmax())
        ratios = np.max(times[slow] / np.maximum(times, 1e-30), axis=1)
        moved = grid @ np.maximum(0.0, ratios - 1.0)
        slowest = float(work) / (grid / means).sum(axis=1)
        ends_s = sum(min(end(w.tables[0]) for w in own) for end in (_embedding_s, _head_s))
        totals = float(cheapest.sum()) + ends_s, float(times[slow].sum()) + ends_s
        blocks.append(_Block(chosen, grid, slowest, totals, moved))

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
    n = sum(len(block.counts) for block in blocks)
    parts = np.full((n, width), -1, dtype=np.int64)
    counts = np.zeros((n, width), dtype=np.int64)
    slowest_s, total_s, slow_total_s, moved = (np.zeros(n) for _ in range(4))
    start = 0
    for block in blocks:
        rows = slice(start, start + len(block.counts))
        parts[rows, : len(block.ways)] = block.ways
        counts[rows, : len(block.ways)] = block.counts
        slowest_s[rows], moved[rows] = block.slowest_s, block.moved
        total_s[rows], slow_total_s[rows] = block.totals_s
        start = rows.stop
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
        slow_total_s=slow_total_s,
        moved=moved,
        mbs=mbs_of[parts[:, 0]] if n else np.zeros(0),
    )


def least_sequence_s(problem: MixedProblem, ways: Sequence[Way]) -> float:
    """Return the least seconds a sequence that all pools together take; infinite without ways.

    By weak duality, with N_k devices of a pool, r_kl the least device seconds of layer l on it and
    any y_k >= 0 (here one over their sum): what a pool is slow at another may do.

        seconds >= sum over layers of min_k ( y_k r_kl ) / sum_k N_k y_k
    """
    least: dict[int, Floats] = {}
    for way in ways:
        each = layer_times_s(way.tables[0]) * way.n_devices / way.mbs
        least[way.pool] = np.minimum(least.get(way.pool, np.inf), each)
    if not least:
        return float("inf")
    worth = {k: 1.0 / max(float(each.sum()), 1e-30) for k, each in least.items()}
    work = np.min([worth[k] * each for k, each in least.items()], axis=0).sum()
    return float(work) / sum(problem.pools[k].n_devices * y for k, y in worth.items())
