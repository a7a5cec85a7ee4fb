"""Which chunks of an interleaved rank are in flight at its peak, and what unequal ones hold.

A rank of interleaved 1F1B warms up with w = 2 (p - r - 1) + (v - 1) p forwards over groups of p
micro-batches a chunk, then runs a forward and a backward in turn, backwards with the chunks
reversed. Before backward number k it holds, of chunk c with n = min(m v, w + 1 + k) forwards done,

    a_c(k) = F_c(n) - F_(v-1-c)(k)
    F_c(n) = p floor(n / (p v)) + min(p, max(0, n mod (p v) - c p))

micro-batches: W = min(m v, w + 1) chunks whenever k is in the steady state, but more of the first
chunks than of the last. With as many layers in every chunk the sum is W / v of the rank's layers;
with unequal ones the peak is the largest of sum_c a_c(k) L_c over k. a_c is linear between the
multiples of p that k and n pass, and repeats every p v backwards, so 2 v + 1 moments hold it.
Source: Megatron-LM core/pipeline_parallel/schedules.py (warm-up counts, get_model_chunk_id);
counted from `pipeline.rank_program` in the tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Chunk = tuple[int, ...]
"""The kind of each layer of a chunk, in model order: positions in `ModelShape.kinds`."""
PASSING: Chunk = (-1,)
"""A chunk without layers that passes on what it receives: it keeps that, like the input of a
recomputed layer (Megatron-LM core/transformer/transformer_block.py clones it for the output)."""

ROUNDS = 3
"""Rounds of p micro-batches from which on a longer step holds no more at its peak."""


def _of_chunk(n_blocks: ArrayLike, chunk: Ints, pp: int, vpp: int) -> Ints:
    """Return how many of a rank's first `n_blocks` forwards are those of `chunk`."""
    n = np.asarray(n_blocks)
    of_group = np.clip(n % (pp * vpp) - chunk * pp, 0, pp)
    return np.asarray(n // (pp * vpp) * pp + of_group)


@lru_cache(maxsize=8192)
def chunks_in_flight(rank: int, pp: int, vpp: int, n_rounds: int) -> Ints:
    """Return the micro-batches in flight of each chunk of a rank, whenever that may be the peak.

    `(n_moments, vpp)`, different rows; `n_rounds` rounds of p micro-batches make a step.

    >>> chunks_in_flight(0, 4, 2, 3).tolist()  # 11 at a time, of two chunks
    [[7, 4], [8, 3]]
    """
    n_forwards = n_rounds * pp * vpp
    warm_up = 2 * (pp - rank - 1) + (vpp - 1) * pp
    last = min(max(0, n_forwards - warm_up - 1), pp * vpp)
    moments = np.arange(last + 1)
    turns = (moments % pp == 0) | ((warm_up + 1 + moments) % pp == 0) | (moments == last)
    k, chunk = moments[turns][:, None], np.arange(vpp)
    done = np.minimum(n_forwards, warm_up + 1 + k)
    counts = _of_chunk(done, chunk, pp, vpp) - _of_chunk(k, vpp - 1 - chunk, pp, vpp)
    # In the order of time; the moment a period later is the first one again.
    return np.array(list(dict.fromkeys(map(tuple, counts.tolist()))), dtype=np.int64)


def beyond_mean(rank: int, pp: int, vpp: int, n_rounds: int) -> Floats:
    """Return the same less the mean over a rank's chunks: 0 where they are in flight alike."""
    counts = chunks_in_flight(rank, pp, vpp, n_rounds)
    return np.asarray(counts - counts.mean(axis=1, keepdims=True))


@dataclass(frozen=True, slots=True)
class UnequalChunks:
    """What ranks with unequal interleaved chunks hold in flight beyond chunks of mean size.

    Layers times micro-batches, at every moment that may be the peak; which one it is depends on
    what a layer keeps. Whoever holds equal chunks is at row 0, zeros.
    """

    row: NDArray[np.intp]
    """Of each kind of rank, `(n_shapes, n_kinds)`."""
    layers: Floats
    """Layers among the first i of each chunk, all and those of each other kind than the model's
    first: `(n_rows, ROUNDS, n_moments, 1 + n_other_kinds, 1 + layers of the longest chunk)`.
    Where some chunk is empty one more counts the `PASSING` ones, last, whatever i."""

    def take(self, rows: NDArray[np.intp]) -> "UnequalChunks | None":
        """Return those of the shapes at `rows`; None where none of them has unequal chunks."""
        row = self.row[rows]
        return replace(self, row=row) if row.any() else None


@lru_cache(maxsize=8192)
def _layers_beyond_mean(
    rank: int, pp: int, chunks: tuple[Chunk, ...], n_others: int, has_passing: bool
) -> Floats:
    """Return one row of `UnequalChunks.layers`, with as many moments as it needs."""
    longest = max(map(len, chunks))
    first = np.zeros((len(chunks), 1 + n_others + has_passing, longest + 1))
    for c, chunk in enumerate(chunks):
        if chunk == PASSING:
            first[c, -1] = 1.0
            continue
        kinds = np.array(chunk, dtype=np.int64)
        flags = np.array([np.ones(len(chunk)), *(kinds == i for i in range(1, 1 + n_others))])
        first[c, : 1 + n_others, 1 : 1 + len(chunk)] = np.cumsum(flags, axis=1)
        first[c, : 1 + n_others, 1 + len(chunk) :] = flags.sum(axis=1, keepdims=True)
    by_round = []
    for n_rounds in range(1, ROUNDS + 1):
        more = np.tensordot(beyond_mean(rank, pp, len(chunks), n_rounds), first, axes=1)
        by_round.append(_different(more, n_others + has_passing))
    n_moments = max(map(len, by_round))
    return np.stack(
        [np.concatenate([x, x[:1].repeat(n_moments - len(x), axis=0)]) for x in by_round]
    )


def _different(layers: Floats, n_others: int) -> Floats:
    """Return the different moments; where all layers are alike and keep the same, the peak alone.

    Of chunks of two sizes the same moment is the peak whatever is recomputed: what a chunk keeps
    grows with its layers.
    """
    # Some ten short rows: `np.unique` over rows takes ten times as long.
    rounded = layers.round(9).reshape(len(layers), -1).tolist()
    firsts: dict[tuple[float, ...], int] = {}
    for i, row in enumerate(map(tuple, rounded)):
        firsts.setdefault(row, i)
    moments = layers[[firsts[row] for row in sorted(firsts)]]
    total = moments[:, 0, -1]
    peak = moments[total.argmax()]
    rest = moments[..., -1:] - moments  # those that are not recomputed
    least = (moments <= peak + 1e-9).all() and (rest <= rest[total.argmax()] + 1e-9).all()
    if not n_others and least:
        return np.asarray(peak[None])
    return np.asarray(moments)


def unequal_chunks(
    ranks: Sequence[Sequence[tuple[int, int, tuple[Chunk, ...]]]], n_others: int
) -> UnequalChunks | None:
    """Return what unequal chunks hold; None where all chunks are equal.

    `ranks` has for each shape and kind of rank its rank, pp, and its chunks where they are
    unequal; `n_others` is how many kinds of layers the model has besides its first.
    """
    rows: dict[tuple[int, int, tuple[Chunk, ...]], int] = {}
    index = [[rows.setdefault(x, 1 + len(rows)) if x[2] else 0 for x in row] for row in ranks]
    if not rows:
        return None
    has_passing = any(PASSING in chunks for *_, chunks in rows)
    tables = [_layers_beyond_mean(*key, n_others, has_passing) for key in rows]
    n_moments = max(x.shape[1] for x in tables)
    longest = max(x.shape[3] for x in tables)
    n_kinds = tables[0].shape[2]
    layers = np.zeros((1 + len(rows), ROUNDS, n_moments, n_kinds, longest))
    for i, table in enumerate(tables, start=1):
        n, depth = table.shape[1], table.shape[3]
        layers[i, :, :n, :, :depth] = table
        layers[i, :, n:, :, :depth] = table[:, :1]
        layers[i, ..., depth:] = layers[i, ..., depth - 1 : depth]
    return UnequalChunks(np.array(index, dtype=np.intp), layers)
