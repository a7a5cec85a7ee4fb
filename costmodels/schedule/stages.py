"""How layers go to pipeline stages, and the few stages that decide time and memory."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.layers.factor import distinct
from costmodels.schedule.in_flight import PASSING, Chunk, UnequalChunks, unequal_chunks
from costmodels.shapes import ModelShape

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

SPLITS = ("even", "ends")
"""`even`: every virtual stage holds layers / (pp vpp). `ends`: the embedding and the loss count
as one layer each, stages hold the floor or the ceiling, the ends fewer (Llama 3's own layout).
Any other split is spelled out, stage by stage: `9-11-11-9` (`spelled`); a stage may be empty."""

ENDS_UNITS = 2
"""What `ends` counts as layers besides: the embedding and the loss."""

N_KINDS = 4
"""At most four kinds of rank exist under `SPLITS`: first, last, and two interior ones."""

LOOPED, FOLDED, BOTH_WAYS = range(3)
"""Where virtual stages lie. `LOOPED`: stage j on rank j % pp. `FOLDED` (two a rank): in a V,
stages r and 2 pp - 1 - r on rank r. `BOTH_WAYS`: pp stages, each held twice: r and pp - 1 - r on
rank r."""


def rank_stages(rank: int, pp: int, n_stages: int, placement: int) -> tuple[int, ...]:
    """Return the virtual stages of a rank in model order.

    >>> rank_stages(1, 4, 8, LOOPED), rank_stages(1, 4, 8, FOLDED), rank_stages(1, 4, 4, BOTH_WAYS)
    ((1, 5), (1, 6), (1, 2))
    """
    if placement == LOOPED:
        return tuple(range(rank, n_stages, pp))
    return tuple(sorted((rank, (2 * pp if placement == FOLDED else pp) - 1 - rank)))


def spelled(counts: Sequence[int]) -> str:
    """Return the name of the split that gives virtual stage j `counts[j]` layers.

    >>> spelled((9, 11, 11, 9))
    '9-11-11-9'
    """
    return "-".join(str(count) for count in counts)


def most_stages(layers: int) -> int:
    """Return the most virtual stages that `SPLITS` give some layers: one a layer and an end."""
    return layers + ENDS_UNITS


@lru_cache(maxsize=8192)
def stage_layers(layers: int, pp: int, vpp: int, split: str) -> tuple[int, ...]:
    """Return the layers of each virtual stage in model order, or () when the split is impossible.

    Virtual stage j is chunk j // pp on rank j % pp. With `ends`, the layers + 2 units (embedding,
    layers, loss) are cut into floor or ceiling shares; the larger shares go to the stages before
    the last, which hold fewer micro-batches in flight, and last to the ends. A share of one unit
    leaves an end with the embedding or the loss alone; interleaved it needs interior stages alike,
    as one layer beside two would wait for half of its time. Spelled splits may have empty stages
    anywhere.

    >>> stage_layers(126, 16, 1, "ends")[:3], sum(stage_layers(126, 16, 1, "ends"))
    ((7, 8, 8), 126)
    >>> stage_layers(61, 32, 1, "ends") == (1, *(2,) * 30, 0)
    True
    """
    n_stages = pp * vpp
    if split not in SPLITS:
        named = tuple(int(count) for count in split.split("-"))
        return named if len(named) == n_stages and sum(named) == layers else ()
    if split == "even":
        share, rest = divmod(layers, n_stages)
        return (share,) * n_stages if rest == 0 and share else ()
    share, rest = divmod(layers + ENDS_UNITS, n_stages)
    if n_stages == 1 or share < 1:
        return ()
    if share == 1 and vpp > 1 and 0 < rest < n_stages - ENDS_UNITS:
        return ()
    counts = [share] * n_stages
    receivers = [*range(n_stages - 2, 0, -1), 0, n_stages - 1]
    for j in receivers[:rest]:
        counts[j] += 1
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


@dataclass(frozen=True, slots=True)
class StageSplits:
    """Over how many stages each shape's layers go, and how; columns of one length."""

    pp: Ints
    vpp: Ints
    split: Ints
    """Index into `names`."""
    names: tuple[str, ...] = SPLITS
    placement: Ints | None = None
    """None where all are looped."""


@dataclass(frozen=True, slots=True)
class StageKinds:
    """The distinct kinds of pipeline rank of each shape; arrays are `(n_shapes, n_kinds)`.

    Ranks that hold the same chunks and the same ends differ only in their micro-batches in
    flight, which never grow with the rank; so the lowest rank of a kind stands for all of it.
    Weight gradients that wait do grow with it, hence `late_rank`.
    Arrays have as many kinds as the shape with most of them needs, under `SPLITS` at most
    `N_KINDS`; unused places repeat the first kind. `chunk_layers` and `chunk_counts` are
    `(n_shapes, n_kinds, n_sizes)`: how many of the rank's chunks hold how many layers; n_sizes is
    3 under `SPLITS`.
    """

    rank: Ints
    late_rank: Ints
    """The rank of the kind furthest from the first stage (`BOTH_WAYS`: from either end)."""
    n_ranks: Floats
    """Ranks of this kind; 0 in unused places."""
    layers: Floats
    has_embedding: Floats
    has_head: Floats
    chunk_layers: Floats
    chunk_counts: Floats
    prefix: Floats | None = None
    """Layers of each other kind than the model's first (`ModelShape.kinds`) among the first i of
    each of the rank's chunks, summed over its chunks, `(n_other_kinds, n_shapes, n_kinds, 1 +
    layers of the longest chunk)`; None where all layers are of one kind."""
    unequal: UnequalChunks | None = None
    """What ranks with unequal interleaved chunks hold beyond mean ones; None without such."""
    passing: Floats | None = None
    """Chunks without layers that receive what they pass on, `(n_shapes, n_kinds)`: all empty ones
    but the model's first. None where no stage is empty."""

    def take(self, rows: NDArray[np.intp]) -> "StageKinds":
        """Return the kinds of the shapes at `rows`."""
        columns = {name: getattr(self, name)[rows] for name in _BY_SHAPE}
        prefix = None if self.prefix is None else self.prefix[:, rows]
        unequal = None if self.unequal is None else self.unequal.take(rows)
        passing = None if self.passing is None else self.passing[rows]
        return StageKinds(**columns, prefix=prefix, unequal=unequal, passing=passing)

    def each(self, positions: NDArray[np.intp]) -> "StageKinds":
        """Return kinds as those of shapes of their own; `positions` count them shape by shape.

        For traffic: `unequal` and `passing` are left out.
        """

        def alone(values: NDArray[Any]) -> NDArray[Any]:
            return values.reshape(-1, 1, *values.shape[2:])[positions]

        columns = {name: alone(getattr(self, name)) for name in _BY_SHAPE}
        prefix = None if self.prefix is None else np.array([alone(x) for x in self.prefix])
        return StageKinds(**columns, prefix=prefix, unequal=None)

    @property
    def of_other_kinds(self) -> Floats | None:
        """Layers of each other kind than the model's first, `(n_other_kinds, n_shapes, n_kinds)`.

        None where all layers are of one kind.
        """
        return None if self.prefix is None else self.prefix[..., -1]


_BY_SHAPE = tuple(
    field.name
    for field in fields(StageKinds)
    if field.name not in ("prefix", "unequal", "passing")
)


def other_kinds(sequence: Sequence[int]) -> list[list[bool]]:
    """Return for each kind but the model's first which layers are of it.

    >>> other_kinds((0, 2, 1))
    [[False, False, True], [False, True, False]]
    """
    return [[kind == i for kind in sequence] for i in range(1, 1 + max(sequence, default=0))]


def stage_prefixes(
    counts: Sequence[int], flags: Sequence[Sequence[bool]], longest: int
) -> NDArray[np.int64]:
    """Return the flagged layers among the first 0, 1, ... `longest` ones of each virtual stage.

    Virtual stage j holds the next `counts[j]` layers in model order; each row of `flags` says of
    every layer whether it is of some kind. `(n_kinds, n_stages, 1 + longest)`.
    """
    before = np.cumsum([[0, *row] for row in flags], axis=1, dtype=np.int64)
    sizes = np.array(counts, dtype=np.int64)[:, None]
    starts = np.cumsum(sizes, axis=0) - sizes
    ends = starts + np.minimum(np.arange(longest + 1), sizes)
    return np.asarray(before[:, ends] - before[:, starts])


def layer_prefix(
    counts: Sequence[int], chunks: Sequence[int], flags: Sequence[bool], longest: int
) -> tuple[float, ...]:
    """Return the flagged layers among the first 0, 1, ... `longest` ones of some chunks, summed.

    As `stage_prefixes` counts them; `chunks` lists the virtual stages of one rank.

    >>> layer_prefix((3, 3), (0, 1), (False, True, True, True, False, True), 3)
    (0.0, 1.0, 2.0, 4.0)
    """
    each = stage_prefixes(counts, [flags], longest)[0, list(chunks)]
    return tuple(float(n) for n in each.sum(axis=0))


def n_sizes(counts: Sequence[int]) -> int:
    """Return how many consecutive chunk sizes a split may use: at least 3, for one shape of array.

    >>> n_sizes((9, 11, 11, 9)), n_sizes((5, 5, 5, 1))
    (3, 5)
    """
    return max(3, max(counts) - min(counts) + 1)


class _Pipeline(NamedTuple):
    """How the layers of one shape go to stages."""

    pp: int
    vpp: int
    split: str
    placement: int


class _RankKind(NamedTuple):
    """One kind of rank of one shape."""

    numbers: tuple[float, ...]
    """Rank, late rank, layers, ends, chunks of each size, the least size, ranks of the kind."""
    prefixes: tuple[tuple[float, ...], ...]
    """By other kind of layer, as `StageKinds.prefix`."""
    chunks: tuple[Chunk, ...]
    """The rank's chunks in model order where they are interleaved and unequal; else empty."""
    passing: int
    """As `StageKinds.passing`."""
    has_empty: bool
    """Some stage of the shape is empty."""


def interleaved_chunks(
    counts: Sequence[int], stages: Sequence[int], sequence: Sequence[int]
) -> tuple[Chunk, ...]:
    """Return the chunks of one rank where they are not all alike; else nothing.

    An empty one that receives what it passes on is `PASSING`.
    """
    starts = [0, *accumulate(counts)]
    chunks = tuple(
        tuple(sequence[starts[j] : starts[j] + counts[j]]) if counts[j] or not j else PASSING
        for j in stages
    )
    return chunks if len(set(chunks)) > 1 else ()


def passing_chunks(counts: Sequence[int], stages: Sequence[int]) -> int:
    """Return how many of some virtual stages have no layers and receive what they pass on.

    >>> passing_chunks((0, 2, 1, 0), (0, 3))  # the first has the embedding
    1
    """
    return sum(counts[j] == 0 and j > 0 for j in stages)


@lru_cache(maxsize=8192)
def _kinds_of(
    layers: int, pipeline: _Pipeline, sizes: int, sequence: tuple[int, ...] = ()
) -> tuple[_RankKind, ...]:
    """Return each kind of rank; with layers of several kinds those of other kinds are counted."""
    pp, vpp, split, placement = pipeline
    counts = stage_layers(layers, pp, vpp, split)
    low, longest = min(counts), max(counts)
    flags = other_kinds(sequence)
    each = stage_prefixes(counts, flags, longest).astype(np.float64) if flags else None
    interleaved = vpp > 1 and placement == LOOPED
    ranks: dict[tuple[Any, ...], list[int]] = {}
    for rank in range(pp):
        stages = rank_stages(rank, pp, len(counts), placement)
        sorted_counts = tuple(sorted(counts[j] for j in stages))
        prefixes: tuple[tuple[float, ...], ...] = ()
        if each is not None:
            prefixes = tuple(map(tuple, each[:, list(stages)].sum(axis=1).tolist()))
        ends = (0 in stages, len(counts) - 1 in stages)
        chunks: tuple[Chunk, ...] = ()
        if interleaved:
            chunks = interleaved_chunks(counts, stages, sequence or (0,) * layers)
        ranks.setdefault((sorted_counts, prefixes, *ends, chunks), []).append(rank)
    kinds = []
    for (sorted_counts, prefixes, first, last, chunks), members in ranks.items():
        own = rank_stages(members[0], pp, len(counts), placement)
        furthest = max(members, key=lambda r: min(r, pp - 1 - r) if placement == BOTH_WAYS else r)
        numbers = (
            members[0],
            furthest,
            sum(sorted_counts),
            first,
            last,
            *(sorted_counts.count(low + i) for i in range(sizes)),
            low,
            len(members),
        )
        kinds.append(
            _RankKind(
                tuple(float(x) for x in numbers),
                prefixes,
                chunks,
                passing_chunks(counts, own),
                low == 0,
            )
        )
    return tuple(kinds)


def _kinds_of_shapes(
    layers: int, splits: StageSplits, sequence: tuple[int, ...] = ()
) -> tuple[list[tuple[_RankKind, ...]], int]:
    """Return the kinds of each shape, and how many chunk sizes their rows count."""
    names, columns = splits.names, (splits.pp, splits.vpp, splits.split)
    rows = [(int(p), int(v), names[int(c)]) for p, v, c in zip(*columns, strict=True)]
    placements = [LOOPED] * len(rows) if splits.placement is None else splits.placement.tolist()
    sizes = 3
    if names != SPLITS:
        sizes = max(n_sizes(stage_layers(layers, *row)) for row in rows)
    pairs = zip(rows, placements, strict=True)
    return [
        _kinds_of(layers, _Pipeline(*row, placement), sizes, sequence) for row, placement in pairs
    ], sizes


def n_kinds(layers: int, splits: StageSplits) -> NDArray[np.int64]:
    """Return how many distinct kinds of rank each shape has, `(n_shapes,)`."""
    kinds, _ = _kinds_of_shapes(layers, splits)
    return np.array([len(rows) for rows in kinds], dtype=np.int64)


def stage_kinds(
    layers: int,
    splits: StageSplits,
    sequence: tuple[int, ...] = (),
    *,
    with_held: bool = True,
) -> StageKinds:
    """Return the kinds of rank of each shape.

    `sequence` says of each layer which of the model's kinds it is, 0 the first; empty where all
    are of one kind. Ranks that differ in their layers of other kinds are of different kinds then.
    Without `with_held` what unequal chunks hold (`unequal`) is left out: for times alone.
    """
    # Many shapes are the same but for their other degrees.
    pp, placement = splits.pp, splits.placement
    columns = (pp, splits.vpp, splits.split, np.zeros_like(pp) if placement is None else placement)
    several = distinct(columns)
    pp, vpp, split, places = several.columns
    few = StageSplits(pp, vpp, split, splits.names, None if placement is None else places)
    kinds, sizes = _kinds_of_shapes(layers, few, sequence if any(sequence) else ())
    held_of = pp.tolist() if with_held else None
    return _as_kinds(kinds, sizes, held_of).take(several.index)


def _as_kinds(
    shapes: list[tuple[_RankKind, ...]], sizes: int, pps: Sequence[int] | None
) -> StageKinds:
    """Return the arrays of the kinds of each shape, unused places repeating the first kind.

    Without `pps`, the pp of each shape, there is no `unequal`.
    """
    largest = max((len(rows) for rows in shapes), default=1)
    padded = [
        [*(x.numbers for x in rows), *[(*rows[0].numbers[:-1], 0.0)] * (largest - len(rows))]
        for rows in shapes
    ]
    block = np.array(padded, dtype=np.float64).reshape(len(shapes), largest, 7 + sizes)
    everywhere = [[*rows, *(rows[:1] * (largest - len(rows)))] for rows in shapes]
    ranks = block[..., 0].astype(np.int32)
    prefix = None
    if shapes and shapes[0][0].prefixes:
        longest = max(len(rows[0].prefixes[0]) for rows in shapes)
        prefix = np.zeros((len(shapes[0][0].prefixes), len(shapes), largest, longest))
        for i, rows in enumerate(everywhere):
            for j, kind in enumerate(rows):
                for other, values in enumerate(kind.prefixes):
                    n = len(values)
                    prefix[other, i, j, :n], prefix[other, i, j, n:] = values, values[-1]
    unequal = None
    if pps is not None:
        unequal = unequal_chunks(
            [
                [(int(rank), pp, kind.chunks) for rank, kind in zip(row, kinds, strict=True)]
                for row, pp, kinds in zip(ranks, pps, everywhere, strict=True)
            ],
            0 if prefix is None else len(prefix),
        )
    passing = None
    if any(rows[0].has_empty for rows in shapes):
        passing = np.array([[float(kind.passing) for kind in rows] for rows in everywhere])
    return StageKinds(
        rank=ranks,
        late_rank=block[..., 1].astype(np.int32),
        n_ranks=np.ascontiguousarray(block[..., -1]),
        layers=np.ascontiguousarray(block[..., 2]),
        has_embedding=np.ascontiguousarray(block[..., 3]),
        has_head=np.ascontiguousarray(block[..., 4]),
        chunk_layers=block[..., -2, None] + np.arange(float(sizes)),
        chunk_counts=np.ascontiguousarray(block[..., 5:-2]),
        prefix=prefix,
        unequal=unequal,
        passing=passing,
    )


def end_weights(shape: ModelShape, balancer: str) -> tuple[float, float]:
    """Return what embedding and head weigh for a balancer, in units of one dense layer.

    `params`: V h parameters each (the head none if tied); `flops`: the head alone, V h.
    """
    projections = shape.hidden * (2 * shape.q_width + 2 * shape.kv_width)
    layer = projections + (3 if shape.gated else 2) * shape.hidden * shape.ffn
    matrix = shape.vocab * shape.hidden / layer
    if balancer == "flops":
        return 0.0, matrix
    return matrix, 0.0 if shape.tied else matrix


def balanced_layers(
    layers: int, n_stages: int, first: float, last: float, balancer: str
) -> tuple[int, ...]:
    """Return how a stack's own balancer splits layers over stages in model order.

    `first` and `last` are the weights of embedding and head in units of one layer. `params`: the
    heaviest stage is as light as can be, filled from the front (DeepSpeed's partition by
    parameters). `flops`: a stage takes layers until the sum reaches its share of the total, the
    layer that reaches it included; the embedding weighs nothing (nanotron's partition by cost).
    Its code closes a stage only past the share, which matters where a head weighs a whole number
    of layers: published runs of such a model then have the times, and the memory of their first
    rank, of stages that end at it. A stage may be left without a layer.

    >>> balanced_layers(40, 4, 2.07, 2.07, "params"), balanced_layers(16, 4, 0.0, 3.9, "flops")
    ((9, 11, 11, 9), (5, 5, 5, 1))
    """
    if balancer == "flops":
        share, counts = (layers + last) / n_stages, [0] * n_stages
        stage = 0
        for layer in range(1, layers + 1):
            counts[stage] += 1
            if layer >= share * (stage + 1) - 1e-9:
                stage += 1
        return tuple(counts)
    weights = [first + (last if n_stages == 1 else 0.0), *[0.0] * (n_stages - 2), last]
    extra = weights[:n_stages]
    sums = {weight + count for weight in extra for count in range(layers + 1)}
    limit = min(
        total
        for total in sums
        if total >= max(extra) and sum(int(total - w + 1e-9) for w in extra) >= layers
    )
    counts, left = [], layers
    for weight in extra:
        counts.append(min(left, int(limit - weight + 1e-9)))
        left -= counts[-1]
    return tuple(counts)
