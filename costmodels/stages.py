"""How layers go to pipeline stages, and the few stages that decide time and memory."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SPLITS = ("even", "ends")
"""`even`: every virtual stage holds layers / (pp vpp). `ends`: the embedding and the loss count
as one layer each, stages hold the floor or the ceiling, the ends fewer (Llama 3's own layout)."""

N_KINDS = 4
"""At most four kinds of rank exist under `SPLITS`: first, last, and two interior ones."""


@lru_cache(maxsize=65536)
def stage_layers(layers: int, pp: int, vpp: int, split: str) -> tuple[int, ...]:
    """Return the layers of each virtual stage in model order, or () when the split is impossible.

    Virtual stage j is chunk j // pp on rank j % pp. With `ends`, the layers + 2 units (embedding,
    layers, loss) are cut into floor or ceiling shares; the larger shares go to the stages before
    the last, which hold fewer micro-batches in flight, and last to the ends.

    >>> stage_layers(126, 16, 1, "ends")[:3], sum(stage_layers(126, 16, 1, "ends"))
    ((7, 8, 8), 126)
    """
    n_stages = pp * vpp
    if split == "even":
        share, rest = divmod(layers, n_stages)
        return (share,) * n_stages if rest == 0 and share else ()
    share, rest = divmod(layers + 2, n_stages)
    if n_stages == 1 or share < 2:
        return ()
    counts = [share] * n_stages
    receivers = [*range(n_stages - 2, 0, -1), 0, n_stages - 1]
    for j in receivers[:rest]:
        counts[j] += 1
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


@dataclass(frozen=True, slots=True)
class StageKinds:
    """The distinct kinds of pipeline rank of each shape; arrays are `(n_shapes, n_kinds)`.

    Ranks that hold the same chunks and the same ends differ only in their micro-batches in
    flight, which never grow with the rank; so the lowest rank of a kind stands for all of it.
    Arrays have as many kinds as the shape with most of them needs, at most `N_KINDS`; unused
    places repeat the first kind. `chunk_layers` and `chunk_counts` are `(n_shapes, n_kinds, 3)`:
    how many of the rank's chunks hold how many layers.
    """

    rank: NDArray[np.int32]
    n_ranks: NDArray[np.float64]
    """Ranks of this kind; 0 in unused places."""
    layers: NDArray[np.float64]
    has_embedding: NDArray[np.float64]
    has_head: NDArray[np.float64]
    chunk_layers: NDArray[np.float64]
    chunk_counts: NDArray[np.float64]


@lru_cache(maxsize=65536)
def _kinds_of(layers: int, pp: int, vpp: int, split: str) -> tuple[tuple[float, ...], ...]:
    counts = stage_layers(layers, pp, vpp, split)
    low = min(counts)
    ranks: dict[tuple[tuple[int, ...], bool, bool], list[int]] = {}
    for rank in range(pp):
        chunks = tuple(sorted(counts[rank::pp]))
        ranks.setdefault((chunks, rank == 0, rank == pp - 1), []).append(rank)
    rows = [
        (
            who[0],
            sum(chunks),
            first,
            last,
            *(chunks.count(low + i) for i in range(3)),
            low,
            len(who),
        )
        for (chunks, first, last), who in ranks.items()
    ]
    return tuple(tuple(float(x) for x in row) for row in rows)


def n_kinds(
    layers: int, pp: NDArray[np.int32], vpp: NDArray[np.int32], split: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Return how many distinct kinds of rank each shape has, `(n_shapes,)`."""
    triples = zip(pp, vpp, split, strict=True)
    return np.array(
        [len(_kinds_of(layers, int(p), int(v), SPLITS[int(c)])) for p, v, c in triples],
        dtype=np.int64,
    )


def stage_kinds(
    layers: int, pp: NDArray[np.int32], vpp: NDArray[np.int32], split: NDArray[np.int32]
) -> StageKinds:
    """Return the kinds of rank of each shape (pp, vpp, index into `SPLITS`)."""
    found = [
        _kinds_of(layers, int(p), int(v), SPLITS[int(c)])
        for p, v, c in zip(pp, vpp, split, strict=True)
    ]
    most = max((len(rows) for rows in found), default=1)
    padded = [rows + ((*rows[0][:-1], 0.0),) * (most - len(rows)) for rows in found]
    block = np.array(padded, dtype=np.float64).reshape(len(pp), most, 9)
    return StageKinds(
        rank=block[..., 0].astype(np.int32),
        n_ranks=np.ascontiguousarray(block[..., 8]),
        layers=np.ascontiguousarray(block[..., 1]),
        has_embedding=np.ascontiguousarray(block[..., 2]),
        has_head=np.ascontiguousarray(block[..., 3]),
        chunk_layers=block[..., 7, None] + np.arange(3.0),
        chunk_counts=np.ascontiguousarray(block[..., 4:7]),
    )
