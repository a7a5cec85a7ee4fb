"""How layers go to pipeline stages, and the few stages that decide time and memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from costmodels.layers.factor import distinct
from costmodels.shapes import ModelShape

SPLITS = ("even", "ends")
"""`even`: every virtual stage holds layers / (pp vpp). `ends`: the embedding and the loss count
as one layer each, stages hold the floor or the ceiling, the ends fewer (Llama 3's own layout).
Any other split is spelled out, stage by stage: `9-11-11-9` (`spelled`)."""

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


@lru_cache(maxsize=8192)
def stage_layers(layers: int, pp: int, vpp: int, split: str) -> tuple[int, ...]:
    """Return the layers of each virtual stage in model order, or () when the split is impossible.

    Virtual stage j is chunk j // pp on rank j % pp. With `ends`, the layers + 2 units (embedding,
    layers, loss) are cut into floor or ceiling shares; the larger shares go to the stages before
    the last, which hold fewer micro-batches in flight, and last to the ends.

    >>> stage_layers(126, 16, 1, "ends")[:3], sum(stage_layers(126, 16, 1, "ends"))
    ((7, 8, 8), 126)
    """
    n_stages = pp * vpp
    if split not in SPLITS:
        named = tuple(int(count) for count in split.split("-"))
        return named if len(named) == n_stages and sum(named) == layers else ()
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
    Weight gradients that wait do grow with it, hence `late_rank`.
    Arrays have as many kinds as the shape with most of them needs, under `SPLITS` at most
    `N_KINDS`; unused places repeat the first kind. `chunk_layers` and `chunk_counts` are
    `(n_shapes, n_kinds, n_sizes)`: how many of the rank's chunks hold how many layers; n_sizes is
    3 under `SPLITS`.
    """

    rank: NDArray[np.int32]
    late_rank: NDArray[np.int32]
    """The rank of the kind furthest from the first stage (`BOTH_WAYS`: from either end)."""
    n_ranks: NDArray[np.float64]
    """Ranks of this kind; 0 in unused places."""
    layers: NDArray[np.float64]
    has_embedding: NDArray[np.float64]
    has_head: NDArray[np.float64]
    chunk_layers: NDArray[np.float64]
    chunk_counts: NDArray[np.float64]
    expert_prefix: NDArray[np.float64] | None = None
    """Expert layers among the first i of each of the rank's chunks, summed over its chunks,
    `(n_shapes, n_kinds, 1 + layers of the longest chunk)`; None without expert layers."""

    def take(self, rows: NDArray[np.intp]) -> "StageKinds":
        """Return the kinds of the shapes at `rows`."""
        prefix = self.expert_prefix
        return StageKinds(
            rank=self.rank[rows],
            late_rank=self.late_rank[rows],
            n_ranks=self.n_ranks[rows],
            layers=self.layers[rows],
            has_embedding=self.has_embedding[rows],
            has_head=self.has_head[rows],
            chunk_layers=self.chunk_layers[rows],
            chunk_counts=self.chunk_counts[rows],
            expert_prefix=None if prefix is None else prefix[rows],
        )

    def each(self, at: NDArray[np.intp]) -> "StageKinds":
        """Return kinds as those of shapes of their own; `at` counts them shape by shape."""

        def one(values: NDArray[np.float64]) -> NDArray[np.float64]:
            return values.reshape(-1, 1, *values.shape[2:])[at]

        prefix = self.expert_prefix
        return StageKinds(
            rank=self.rank.reshape(-1, 1)[at],
            late_rank=self.late_rank.reshape(-1, 1)[at],
            n_ranks=one(self.n_ranks),
            layers=one(self.layers),
            has_embedding=one(self.has_embedding),
            has_head=one(self.has_head),
            chunk_layers=one(self.chunk_layers),
            chunk_counts=one(self.chunk_counts),
            expert_prefix=None if prefix is None else one(prefix),
        )

    @property
    def expert_layers(self) -> NDArray[np.float64] | None:
        """Expert layers of the rank, `(n_shapes, n_kinds)`; None without any."""
        return None if self.expert_prefix is None else self.expert_prefix[..., -1]


def expert_prefix(
    counts: Sequence[int], chunks: Sequence[int], experts: Sequence[bool], longest: int
) -> tuple[float, ...]:
    """Return the expert layers among the first 0, 1, ... `longest` layers of some chunks, summed.

    Virtual stage j holds the next `counts[j]` layers in model order, `chunks` lists those of one
    rank; `experts` says of each layer whether it has experts.

    >>> expert_prefix((3, 3), (0, 1), (False, True, True, True, False, True), 3)
    (0.0, 1.0, 2.0, 4.0)
    """
    starts = [0, *accumulate(counts)]
    before = [0, *accumulate(experts)]
    return tuple(
        float(sum(before[starts[j] + min(i, counts[j])] - before[starts[j]] for j in chunks))
        for i in range(longest + 1)
    )


def n_sizes(counts: Sequence[int]) -> int:
    """Return how many consecutive chunk sizes a split may use: at least 3, for one shape of array.

    >>> n_sizes((9, 11, 11, 9)), n_sizes((5, 5, 5, 1))
    (3, 5)
    """
    return max(3, max(counts) - min(counts) + 1)


@lru_cache(maxsize=8192)
def _kinds_of(
    layers: int,
    pp: int,
    vpp: int,
    split: str,
    placement: int,
    sizes: int,
    experts: tuple[bool, ...] = (),
) -> tuple[tuple[float, ...], ...]:
    """Return the row of each kind of rank; with expert layers their prefix stands first."""
    counts = stage_layers(layers, pp, vpp, split)
    low = min(counts)
    ranks: dict[tuple[tuple[int, ...], tuple[float, ...], bool, bool], list[int]] = {}
    for rank in range(pp):
        held = rank_stages(rank, pp, len(counts), placement)
        chunks = tuple(sorted(counts[j] for j in held))
        prefix = expert_prefix(counts, held, experts, max(counts)) if experts else ()
        ends = (0 in held, len(counts) - 1 in held)
        ranks.setdefault((chunks, prefix, *ends), []).append(rank)
    rows = [
        (
            *prefix,
            who[0],
            max(who, key=lambda r: min(r, pp - 1 - r) if placement == BOTH_WAYS else r),
            sum(chunks),
            first,
            last,
            *(chunks.count(low + i) for i in range(sizes)),
            low,
            len(who),
        )
        for (chunks, prefix, first, last), who in ranks.items()
    ]
    return tuple(tuple(float(x) for x in row) for row in rows)


def _found(
    layers: int,
    pp: NDArray[np.int32],
    vpp: NDArray[np.int32],
    split: NDArray[np.int32],
    names: tuple[str, ...],
    placement: NDArray[np.int32] | None,
    experts: tuple[bool, ...] = (),
) -> tuple[list[tuple[tuple[float, ...], ...]], int]:
    """Return the kinds of each shape, and how many chunk sizes their rows count."""
    rows = [(int(p), int(v), names[int(c)]) for p, v, c in zip(pp, vpp, split, strict=True)]
    places = [LOOPED] * len(rows) if placement is None else placement.tolist()
    sizes = 3
    if names != SPLITS:
        sizes = max(n_sizes(stage_layers(layers, *row)) for row in rows)
    result = zip(rows, places, strict=True)
    return [_kinds_of(layers, *row, at, sizes, experts) for row, at in result], sizes


def n_kinds(
    layers: int,
    pp: NDArray[np.int32],
    vpp: NDArray[np.int32],
    split: NDArray[np.int32],
    placement: NDArray[np.int32] | None = None,
    names: tuple[str, ...] = SPLITS,
) -> NDArray[np.int64]:
    """Return how many distinct kinds of rank each shape has, `(n_shapes,)`."""
    found, _ = _found(layers, pp, vpp, split, names, placement)
    return np.array([len(rows) for rows in found], dtype=np.int64)


def stage_kinds(
    layers: int,
    pp: NDArray[np.int32],
    vpp: NDArray[np.int32],
    split: NDArray[np.int32],
    names: tuple[str, ...] = SPLITS,
    placement: NDArray[np.int32] | None = None,
    experts: tuple[bool, ...] = (),
) -> StageKinds:
    """Return the kinds of rank of each shape (pp, vpp, index into `names`, looped placement).

    `experts` says of each layer whether it has experts; empty where none has. Ranks that differ in
    their expert layers are of different kinds then.
    """
    # Many shapes are the same but for their other degrees.
    several = distinct((pp, vpp, split, np.zeros_like(pp) if placement is None else placement))
    pp, vpp, split, places = several.columns
    placement = None if placement is None else places
    found, sizes = _found(layers, pp, vpp, split, names, placement)
    if any(experts):
        found, _ = _found(layers, pp, vpp, split, names, placement, experts)
        return _kinds_with_experts(found, sizes).take(several.index)
    return _as_kinds(found, sizes).take(several.index)


def _kinds_with_experts(found: list[tuple[tuple[float, ...], ...]], sizes: int) -> StageKinds:
    lengths = [len(kinds[0]) - 7 - sizes for kinds in found]
    plain = [tuple(kind[n:] for kind in kinds) for kinds, n in zip(found, lengths, strict=True)]
    kinds = _as_kinds(plain, sizes)
    prefix = np.zeros((*kinds.layers.shape, max(lengths, default=1)))
    for i, (rank_kinds, n) in enumerate(zip(found, lengths, strict=True)):
        for j in range(prefix.shape[1]):
            values = rank_kinds[j if j < len(rank_kinds) else 0][:n]
            prefix[i, j, :n], prefix[i, j, n:] = values, values[-1]
    return replace(kinds, expert_prefix=prefix)


def _as_kinds(found: list[tuple[tuple[float, ...], ...]], sizes: int) -> StageKinds:
    largest = max((len(rows) for rows in found), default=1)
    padded = [rows + ((*rows[0][:-1], 0.0),) * (largest - len(rows)) for rows in found]
    block = np.array(padded, dtype=np.float64).reshape(len(found), largest, 7 + sizes)
    return StageKinds(
        rank=block[..., 0].astype(np.int32),
        late_rank=block[..., 1].astype(np.int32),
        n_ranks=np.ascontiguousarray(block[..., -1]),
        layers=np.ascontiguousarray(block[..., 2]),
        has_embedding=np.ascontiguousarray(block[..., 3]),
        has_head=np.ascontiguousarray(block[..., 4]),
        chunk_layers=block[..., -2, None] + np.arange(float(sizes)),
        chunk_counts=np.ascontiguousarray(block[..., 5:-2]),
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
