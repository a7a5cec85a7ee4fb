"""States and update by group of parameters: what matrices change beyond one figure a parameter.

`costmodels.memory` and `costmodels.layers.compute` price every parameter alike, by the least that
one of any group takes (`Recipe.state_bytes`). What hidden matrices, and embeddings, head and
vectors, take more stands here: shards of whole matrices, factors, preconditioners, Newton-Schulz.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from costmodels.comm.collectives import collective_s
from costmodels.comm.placement import Group
from costmodels.layers.kinds import kinds_of
from costmodels.optimizers.matrices import Matrix, mtp_matrix
from costmodels.optimizers.matrix_times import LAYER_SHARDED, exchange_s, matrix_times
from costmodels.optimizers.packing import Holding, packed
from costmodels.optimizers.preconditioning import preconditioner_bytes
from costmodels.optimizers.records import (
    BY_MATRIX,
    Optimizer,
    scalar_bytes,
    step_bytes,
)
from costmodels.plans import ShapeTable
from costmodels.problem import Problem
from costmodels.schedule.stages import StageKinds
from costmodels.shapes import ModelShape
from costmodels.towers.vision import trained_matrices

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

FACTOR_BYTES = 4.0
"""A sum over a row or a column (Adafactor)."""


@dataclass(frozen=True, slots=True)
class RankMatrices:
    """What one rank has before its states are shared out."""

    items: tuple[tuple[Matrix, int], ...]
    """Matrices, and how many alike."""
    others: float
    """Parameters of embeddings, head and vectors, of all of them where there are none."""
    tp: int
    """Ranks that cut a matrix: tp, or etp of routed experts."""
    n_shard: int
    """Ranks that share the states; 1 without sharding."""


@dataclass(frozen=True, slots=True)
class GroupTerms:
    """What the groups take more than one figure a parameter; of one rank, or arrays of many."""

    state_bytes: Floats
    update_s: Floats
    moved_params: Floats
    """Parameters more that are reduced and gathered: shards as long as the fullest."""

    @property
    def is_padded(self) -> bool:
        """Whether any buffer is longer than its parameters."""
        return bool(self.moved_params.any())


def needs_groups(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer treats a matrix as one."""
    return optimizer.sharding == BY_MATRIX or optimizer.has_factors


def kinds_without_matrices(shape: ModelShape) -> tuple[str, ...]:
    """Return the kinds of layers of a model whose matrices are not listed."""
    counts = zip(kinds_of(shape), shape.kind_counts, strict=True)
    return tuple(kind.name for kind, count in counts if count and kind.matrices is None)


def rank_terms(problem: Problem, rank: RankMatrices) -> GroupTerms:
    """Return what groups take more on one rank whose states are shards of whole matrices.

    states: (M + K_m) E + B - (M + K) N_m / D + (K_o - K) N_o / D + (W + G) (D E - N_m)
    update: the same in bytes read and written, over the sustained HBM bandwidth; and the matrices

    E elements of the fullest of D ranks (`packed`), B its preconditioners, N_m and N_o parameters
    of matrices and of the rest, M the master copy, K_m and K_o their states, K the lesser. The
    last summand is of shards aligned to matrices, whose buffers are D times the fullest.
    Source: Megatron-LM core/optimizer/layer_wise_optimizer.py. Left out: that the fullest and the
    slowest rank may be two; without the layout, embeddings are handed out whole too.
    """
    recipe, tp, n_shard = problem.job.recipe, rank.tp, rank.n_shard
    elements = [matrix.shard_elements(tp) for matrix, _ in rank.items]
    n_matrix = sum(n * count for n, (_, count) in zip(elements, rank.items, strict=True))
    holdings = _holdings(rank)
    fullest = max(_sum(elements, holding) for holding in holdings)
    kept_bytes = _kept_bytes(problem)
    bytes_of = [
        kept_bytes.of_matrix * n + kept_bytes.beside(matrix, tp)
        for n, (matrix, _) in zip(elements, rank.items, strict=True)
    ]
    states = (
        max(_sum(bytes_of, holding) for holding in holdings)
        - kept_bytes.least * n_matrix / n_shard
    )
    states += (kept_bytes.of_others - kept_bytes.least) * rank.others / n_shard
    padding = (
        n_shard * fullest - n_matrix if n_shard > 1 and problem.job.muon.param_layout else 0.0
    )
    states += (recipe.param_bytes + recipe.grad_bytes) * padding
    moved = kept_bytes.moved_matrix * fullest - kept_bytes.moved_least * n_matrix / n_shard
    moved += (kept_bytes.moved_others - kept_bytes.moved_least) * rank.others / n_shard
    part = problem.pool.accelerator
    elementwise_s = moved / (part.hbm_bytes_per_s * part.efficiency.hbm_frac)
    return GroupTerms(
        np.asarray(states),
        np.asarray(elementwise_s + _slowest_s(problem, rank, holdings)),
        np.asarray(padding),
    )


@dataclass(frozen=True, slots=True)
class _KeptBytes:
    """Bytes a parameter with its master copy, and what its update moves."""

    of_matrix: float
    of_others: float
    least: float
    moved_matrix: float
    moved_others: float
    moved_least: float
    has_preconditioners: bool

    def beside(self, matrix: Matrix, tp: int) -> float:
        """Return what one matrix has beside states of its own size, bytes."""
        return preconditioner_bytes(*matrix.shard_sizes(tp)) if self.has_preconditioners else 0.0


def _kept_bytes(problem: Problem) -> _KeptBytes:
    recipe, optimizer = problem.job.recipe, problem.job.recipe.optimizer
    of_others = scalar_bytes(optimizer, problem.job.muon)
    least = min(optimizer.matrix_bytes, of_others)
    master = recipe.state_bytes - least

    def moved(states: float) -> float:
        # Norm, clipping and the gradient itself, the cast of the weights.
        grad = recipe.grad_bytes
        return 4.0 * grad + 6.0 + step_bytes(optimizer, states, grad)

    of_matrix = optimizer.matrix_bytes
    return _KeptBytes(
        of_matrix=master + of_matrix,
        of_others=master + of_others,
        least=master + least,
        moved_matrix=moved(of_matrix),
        moved_others=moved(of_others),
        moved_least=moved(least),
        has_preconditioners=optimizer.has_preconditioners,
    )


def _holdings(rank: RankMatrices) -> tuple[Holding, ...]:
    counts = tuple(count for _, count in rank.items)
    costs = tuple(matrix.packing_cost(rank.tp) for matrix, _ in rank.items)
    return packed(costs, counts, rank.n_shard)


def _sum(values: list[float], holding: Holding) -> float:
    return float(sum(value * n for value, n in zip(values, holding, strict=True)))


def _slowest_s(problem: Problem, rank: RankMatrices, held: tuple[Holding, ...]) -> Floats:
    """Return the time of the matrices on the slowest rank, seconds."""
    times = [matrix_times(problem, matrix, rank.tp) for matrix, _ in rank.items]
    if rank.tp > 1 and problem.job.muon.tp_mode == LAYER_SHARDED:
        compute = [x.compute_s for x in times]
        return _greatest(_homes_s(problem, rank, compute, holding) for holding in held)
    one = [x.compute_s + x.traffic_s for x in times]
    return _greatest(_total_s(one, holding) for holding in held)


def _homes_s(
    problem: Problem, rank: RankMatrices, compute_s: list[Floats], holding: Holding
) -> Floats:
    """Return the time of matrices with one home each among the tp ranks that cut them."""
    cut = tuple(n if matrix.cut else 0 for n, (matrix, _) in zip(holding, rank.items, strict=True))
    uncut = tuple(n - cut_n for n, cut_n in zip(holding, cut, strict=True))
    costs = tuple(matrix.packing_cost(1) for matrix, _ in rank.items)
    homes = _greatest(_total_s(compute_s, home) for home in packed(costs, cut, rank.tp))
    elements = _sum([matrix.shard_elements(rank.tp) for matrix, _ in rank.items], cut)
    return homes + _total_s(compute_s, uncut) + exchange_s(problem, elements, rank.tp)


def _total_s(times: list[Floats], holding: Holding) -> Floats:
    return np.asarray(sum((t * n for t, n in zip(times, holding, strict=True)), np.zeros(())))


def _greatest(values: Iterator[Floats]) -> Floats:
    return reduce(np.maximum, values)


# Of all shapes ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MatrixCounts:
    """Matrices of the ranks of all shapes."""

    matrices: tuple[Matrix, ...]
    counts: Ints
    """`(n_matrices, n_shapes, n_kinds)`."""


def rank_matrices(
    problem: Problem, shapes: ShapeTable, kinds: StageKinds, *, routed: bool
) -> MatrixCounts:
    """Return the matrices of each kind of rank: those of routed experts, or all others.

    Without what `muon.mamba_in_proj` leaves to the scalar optimizer. Source: Megatron-LM after
    0.19, core/ssm/mamba_mixer.py (`use_muon`).
    """
    shape, leaves_inputs = problem.shape, not problem.job.muon.mamba_in_proj
    each = kinds_of(shape)
    others = kinds.of_other_kinds
    layers = [kinds.layers] if others is None else [kinds.layers - sum(others), *others]
    if len(layers) < len(each):  # all layers are of the first kind
        layers += [np.zeros_like(kinds.layers)] * (len(each) - len(layers))
    counted: dict[Matrix, Floats] = {}

    def add(matrix: Matrix, n_layers: Floats) -> None:
        if matrix.is_routed == routed and not (leaves_inputs and matrix.is_state_input):
            share = shapes.ep[:, None] if routed else 1
            counted[matrix] = counted.get(matrix, 0.0) + n_layers * matrix.count / share

    for kind, n_layers in zip(each, layers, strict=True):
        for matrix in kind.matrices(shape) if kind.matrices else ():
            add(matrix, n_layers)
    for matrix, count in trained_matrices(shape):
        add(matrix, kinds.has_embedding * count)
    if shape.mtp_layers:
        modules = kinds.has_head * shape.mtp_layers
        add(mtp_matrix(shape), modules)
        last = each[shape.layer_sequence[-1]]
        for matrix in last.matrices(shape) if last.matrices else ():
            add(matrix, modules)
    counts = [np.rint(n).astype(np.int32) for n in counted.values()]
    none = np.zeros((0, *kinds.layers.shape), dtype=np.int32)
    return MatrixCounts(tuple(counted), np.array(counts) if counts else none)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a model with a data-parallel group of its own: routed experts, or the rest."""

    params: Floats
    """On one device, `(n_shapes, n_kinds)`."""
    cut: Ints
    """tp, or etp, of each shape."""
    n_shard: Floats
    """Ranks of a ZeRO group, `(n_shardings, n_shapes)`; of one, where nothing is sharded."""
    shard: Group
    """Their placement, by shape or by sharding and shape."""
    is_routed: bool


def group_terms(
    problem: Problem, shapes: ShapeTable, kinds: StageKinds, part: Part
) -> GroupTerms | None:
    """Return what the groups of parameters of a part take more, by sharding, shape and kind.

    None for optimizers with one figure a parameter.
    """
    optimizer = problem.job.recipe.optimizer
    if not needs_groups(optimizer):
        return None
    of_ranks = rank_matrices(problem, shapes, kinds, routed=part.is_routed)
    return (_factor_terms if optimizer.has_factors else _packed_terms)(problem, of_ranks, part)


def _packed_terms(problem: Problem, of_ranks: MatrixCounts, part: Part) -> GroupTerms:
    """Return `rank_terms` of all ranks, once for those alike."""
    n_shardings, (n_shapes, n_kinds) = len(part.n_shard), part.params.shape
    size = (n_shardings, n_shapes, n_kinds)
    columns = [np.broadcast_to(part.cut[None, :, None], size)]
    columns.append(np.broadcast_to(np.rint(part.n_shard)[..., None], size))
    columns += [np.broadcast_to(count[None], size) for count in of_ranks.counts]
    columns.append(np.broadcast_to(part.params[None], size))
    table = np.stack([x.reshape(-1) for x in columns], axis=-1).astype(np.float64)
    rows, places = np.unique(table, axis=0, return_inverse=True)
    places = places.reshape(size)
    shape_idx = np.broadcast_to(np.arange(n_shapes)[None, :, None], size)
    each = [_of_row(problem, of_ranks.matrices, row.tolist()) for row in rows]

    def spread(figure: Callable[[GroupTerms], Floats]) -> Floats:
        values = [np.broadcast_to(figure(x).reshape(-1), (n_shapes,)) for x in each]
        return np.asarray(np.array(values)[places, shape_idx])

    return GroupTerms(
        spread(lambda x: x.state_bytes),
        spread(lambda x: x.update_s),
        spread(lambda x: x.moved_params),
    )


def _of_row(problem: Problem, matrices: tuple[Matrix, ...], row: list[float]) -> GroupTerms:
    tp, n_shard, *counts, params = row
    items = tuple((m, int(n)) for m, n in zip(matrices, counts, strict=True))
    inside = sum(m.shard_elements(int(tp)) * n for m, n in items)
    rank = RankMatrices(items, max(0.0, params - inside), int(tp), int(n_shard))
    return rank_terms(problem, rank)


def _factor_terms(problem: Problem, of_ranks: MatrixCounts, part: Part) -> GroupTerms:
    """Return what sums over rows and columns take: Adafactor.

    states: 4 (m / D + n) a matrix of m rows; of embedding and head 4 (V / D + h), V from their
    parameters. update: an all-reduce of 4 n bytes a matrix over the D ranks that have its rows.
    Source: torch optim/_adafactor.py on shards of rows (FSDP2). Left out: second moments of
    vectors, which are whole; matrices that tensor parallelism cuts.
    """
    shards, group, hidden = part.n_shard[..., None], part.shard, float(problem.shape.hidden)
    inside = sum(
        (m.elements * n for m, n in zip(of_ranks.matrices, of_ranks.counts, strict=True)),
        np.zeros_like(part.params),
    )
    rows_of_ends = np.maximum(0.0, part.params - inside) / hidden
    sums: list[tuple[Floats, float, Floats]] = [
        (m.rows * n.astype(np.float64), float(m.columns), n.astype(np.float64))
        for m, n in zip(of_ranks.matrices, of_ranks.counts, strict=True)
    ]
    sums.append((rows_of_ends, hidden, np.minimum(1.0, np.floor(rows_of_ends / hidden))))
    states = update = np.zeros((*part.n_shard.shape, part.params.shape[1]))
    for rows, columns, count in sums:
        states = states + FACTOR_BYTES * (rows / shards + count * columns)
        one_s = collective_s("all-reduce", FACTOR_BYTES * columns, group, problem.pool)[..., None]
        update = update + count * np.where(shards > 1, one_s, 0.0)
    return GroupTerms(states, update, np.zeros_like(states))
