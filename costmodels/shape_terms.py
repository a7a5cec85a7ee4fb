"""All that depends on the coupled axes (tp, pp, dp, vpp, split) and the ZeRO stage alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache, reduce
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels import memory
from costmodels.comm.collectives import collective_s
from costmodels.comm.data_parallel import (
    DataGroups,
    DataParallelTimes,
    data_parallel_times,
    n_pieces,
)
from costmodels.comm.fsdp import alone_positions
from costmodels.comm.placement import (
    NON_RAIL_HOP_S,
    Group,
    RankSpacing,
    place_group,
    place_spaced_group,
)
from costmodels.comm.torus import links_apart
from costmodels.layers.compute import optimizer_s
from costmodels.layers.factor import distinct
from costmodels.layers.kinds import kinds_of
from costmodels.layers.params import expert_linear_params, expert_params, padded_vocab
from costmodels.offload.optimizer import HostUpdate, gradients_leave, host_state_bytes, host_update
from costmodels.optimizers.groups import GroupTerms, Part, group_terms
from costmodels.parameters import embedding_params, head_params, lookup_params
from costmodels.phases import (
    RING_RANKS,
    Held,
    PhaseBytes,
    gathered_params,
    head_matrix,
    phase_bytes,
)
from costmodels.plans import ShapeTable, ShardingTable
from costmodels.precision import ONE_LAYOUT_GENERATIONS
from costmodels.problem import Problem, Problems, over_kinds
from costmodels.schedule.stages import BOTH_WAYS, FOLDED, StageKinds, StageSplits, stage_kinds
from costmodels.shapes import ModelShape
from costmodels.tuning.adapters import expert_adapter_params, layer_adapter_params
from costmodels.tuning.frozen import FrozenWeights, frozen_bytes, with_gathers
from costmodels.tuning.frozen import working_bytes as frozen_unit_bytes
from costmodels.tuning.records import OTHER_BYTES
from costmodels.tuning.reference import gathers_with_reference, reference_bytes

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]
Rows = NDArray[np.intp]

MANY_SHAPES = 16
"""Shapes from which on looking for those with the same degrees pays."""
MANY_RANKS = 128
"""Kinds of rank of all shapes from which on looking for those alike pays."""
STALLING_DOMAINS = 2
"""Domains that a tensor-parallel group may span before blocked pipeline messages stall."""


@dataclass(frozen=True, slots=True)
class ExpertShapeTerms:
    """What the routed experts add: their parameters have a data-parallel group of their own."""

    params: Floats
    """Parameters of routed experts on one device, by kind of rank."""
    state_bytes: Floats
    """By sharding and kind."""
    data_parallel: DataParallelTimes
    """By sharding and kind."""
    data_groups: DataGroups
    """Ranks that hold the same experts: edp = tp cp dp / (ep etp)."""
    groups: GroupTerms | None = None
    """What an optimizer by groups of parameters takes more, by sharding and kind."""


@dataclass(frozen=True, slots=True)
class ShapeTerms:
    """Arrays `(n_shapes,)`, `(n_shapes, n_kinds)`, by sharding `(n_shardings, n_shapes, ..)`."""

    kinds: StageKinds
    params: Floats
    """Local parameters by kind of rank, without routed experts."""
    state_bytes: Floats
    """Weights, gradients and optimizer state of them by sharding and kind."""
    zero_working_bytes: Floats
    """Unsharded units of ZeRO 2 and 3, by sharding."""
    data_parallel: DataParallelTimes
    """By sharding and kind."""
    data_groups: DataGroups
    optimizer_s: Floats
    """By sharding; the rank with the most parameters."""
    embedding_sync_s: Floats
    """Sum of the gradients that two pipeline ranks share: a tied matrix's over first and last
    stage; with stages held both ways, all of a rank's."""
    pipeline_group: Group
    hop_latency_s: Floats
    hop_s_per_byte: Floats
    overhead_bytes: Floats
    """Context and communication buffers."""
    layers_again: Floats
    """Layers of a kind of rank that run again where k of each chunk do, `(n_shapes, n_kinds, 1 +
    layers of the longest chunk)`."""
    quantized_bytes: Floats | None = None
    """What quantised weights take beside (or in place of) 16-bit ones, by sharding and kind, those
    of routed experts included; None where there are none."""
    experts: ExpertShapeTerms | None = None
    frozen_bytes: Floats | None = None
    """Weights that are not trained, by sharding and kind, routed experts included; None where all
    are."""
    host_update: HostUpdate | None = None
    """By sharding and kind, of all parameters; None where nothing is offloaded."""
    groups: GroupTerms | None = None
    """What an optimizer by groups of parameters takes more, by sharding and kind; None where all
    parameters take the same. `state_bytes`, `optimizer_s` and `data_parallel` have it."""
    phases: PhaseBytes | None = None
    """What the moments of a step that a compiler lays out hold, by sharding and kind."""

    def alone(self, shape: int, sharding: int) -> "ShapeTerms":
        """Return the terms of one shape with one sharding, as if there were no others."""
        row = slice(shape, shape + 1)
        both = slice(sharding, sharding + 1), row

        def cut(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value[both]
            if is_dataclass(value) and not isinstance(value, type):
                return type(value)(*(cut(getattr(value, x.name)) for x in fields(value)))
            return value

        def groups(data_groups: DataGroups) -> DataGroups:
            parts = (
                data_groups.all_ranks,
                data_groups.shard,
                data_groups.replicas,
                data_groups.second_copy,
            )
            return DataGroups(*(group(x) for x in parts))  # type: ignore[arg-type]

        def group(one: Group | None) -> Group | None:
            if one is None or one.n_ranks.ndim > 1:
                result: Group | None = cut(one)
                return result
            return one.take(np.array([shape]))

        routed = self.experts
        return ShapeTerms(
            kinds=self.kinds.take(np.array([shape])),
            params=self.params[row],
            state_bytes=self.state_bytes[both],
            zero_working_bytes=self.zero_working_bytes[both],
            data_parallel=cut(self.data_parallel),
            data_groups=groups(self.data_groups),
            optimizer_s=self.optimizer_s[both],
            embedding_sync_s=self.embedding_sync_s[row],
            pipeline_group=self.pipeline_group.take(np.array([shape])),
            hop_latency_s=self.hop_latency_s[row],
            hop_s_per_byte=self.hop_s_per_byte[row],
            overhead_bytes=self.overhead_bytes[row],
            layers_again=self.layers_again[row],
            quantized_bytes=cut(self.quantized_bytes),
            experts=routed
            and ExpertShapeTerms(
                routed.params[row],
                routed.state_bytes[both],
                cut(routed.data_parallel),
                groups(routed.data_groups),
                cut(routed.groups),
            ),
            frozen_bytes=cut(self.frozen_bytes),
            host_update=cut(self.host_update),
            groups=cut(self.groups),
            phases=cut(self.phases),
        )


def kind_params(problem: Problem, shapes: ShapeTable, kinds: StageKinds) -> Floats:
    """Return the trained parameters on one device of each kind of rank, `(n_shapes, n_kinds)`.

    Adapters alone where there are some. Without routed experts (`kind_expert_params`).
    """
    tuning = problem.job.tuning
    if tuning is None:
        return held_kind_params(problem, shapes, kinds)
    by_kind = [
        layer_adapter_params(problem.shape, tuning, shapes.tp, routed=kind.is_routed)[:, None]
        for kind in kinds_of(problem.shape)
    ]
    return _of_layers(kinds, by_kind)


def _of_layers(kinds: StageKinds, by_kind: Sequence[Floats]) -> Floats:
    """Return what the layers of each kind of rank have of something, from that of one layer."""
    first, *others = by_kind
    counts = kinds.of_other_kinds
    if counts is None:
        return np.asarray(kinds.layers * first)
    total = (kinds.layers - reduce(np.add, counts)) * first
    for count, one in zip(counts, others, strict=True):
        total = total + count * one
    return np.asarray(total)


def held_kind_params(problem: Problem, shapes: ShapeTable, kinds: StageKinds) -> Floats:
    """Return the parameters of the model, trained or frozen, of each kind of rank.

    As `kind_params`, without adapters.
    """
    shape = problem.shape
    first = embedding_params(shape, problem.job.seq_len, shapes.tp)[:, None]
    last = head_params(shape, shapes.tp, shapes.pp)[:, None]
    layer, *others = (kind.params(shape, shapes.tp)[:, None] for kind in kinds_of(shape))
    params = kinds.layers * layer
    counts = kinds.of_other_kinds
    if counts is not None:
        params = (kinds.layers - reduce(np.add, counts)) * layer
        for count, one in zip(counts, others, strict=True):
            params = params + count * one
    return np.asarray(params + kinds.has_embedding * first + kinds.has_head * last)


def routed_layers(problem: Problem, kinds: StageKinds) -> Floats | None:
    """Return the layers with routed experts of each kind of rank; None without any."""
    if kinds.of_other_kinds is None or not problem.shape.n_experts:
        return None
    others = zip(kinds_of(problem.shape)[1:], kinds.of_other_kinds, strict=True)
    return np.asarray(reduce(np.add, [count for kind, count in others if kind.is_routed]))


def kind_expert_params(problem: Problem, shapes: ShapeTable, kinds: StageKinds) -> Floats:
    """Return the trained parameters of routed experts of each kind of rank.

    `(n_shapes, n_kinds)`; adapters alone where there are some.
    """
    tuning = problem.job.tuning
    if tuning is None:
        return held_expert_params(problem, shapes, kinds)
    layers = routed_layers(problem, kinds)
    if layers is None:
        return np.zeros_like(kinds.layers)
    return layers * expert_adapter_params(problem.shape, tuning, shapes.ep, shapes.etp)[:, None]


def held_expert_params(problem: Problem, shapes: ShapeTable, kinds: StageKinds) -> Floats:
    """Return the parameters of routed experts, trained or frozen, `(n_shapes, n_kinds)`.

    Those of multi-token prediction are on the last stage.
    """
    shape, layers = problem.shape, routed_layers(problem, kinds)
    if layers is None:
        return np.zeros_like(kinds.layers)
    more = shape.mtp_layers * shape.expert_layers[-1]
    return (layers + kinds.has_head * more) * expert_params(shape, shapes.ep, shapes.etp)[:, None]


def linear_layer_params(problem: Problem, shapes: ShapeTable, kinds: StageKinds) -> Floats:
    """Return the weights of linear layers that each kind of rank holds, `(n_shapes, n_kinds)`.

    Without routed experts, head and router, which stay in 16 bits. With multi-token prediction
    also the projection of each module, 2 h^2 / t, and its layer.
    """
    shape = problem.shape
    by_kind = [kind.linear_weights(shape, shapes.tp)[:, None] for kind in kinds_of(shape)]
    first, *others = by_kind
    counts = kinds.of_other_kinds
    params = kinds.layers * first
    if counts is not None:
        params = (kinds.layers - reduce(np.add, counts)) * first
        for count, one in zip(counts, others, strict=True):
            params = params + count * one
    if shape.mtp_layers:
        own = 2.0 * shape.hidden**2 / shapes.tp[:, None] + by_kind[shape.layer_sequence[-1]]
        params = params + kinds.has_head * shape.mtp_layers * own
    return np.asarray(params)


def narrow_params(problem: Problem, shapes: ShapeTable, kinds: StageKinds) -> Floats | None:
    """Return the weights that are gathered quantised by kind of rank; None where none are.

    Those of `linear_layer_params`, without the share of layers that stays in bf16.
    """
    job = problem.job
    if not job.recipe.gathers_quantized or not problem.stack.quantized_copies or job.tuning:
        return None
    share = 1.0 - job.bf16_frac(problem.shape.layers)
    return share * linear_layer_params(problem, shapes, kinds)


def narrow_expert_params(problem: Problem, shapes: ShapeTable, kinds: StageKinds) -> Floats | None:
    """Return the same of routed experts."""
    job = problem.job
    if not job.recipe.gathers_quantized or not problem.stack.quantized_copies or job.tuning:
        return None
    share = 1.0 - job.bf16_frac(problem.shape.layers)
    return share * expert_linear_layer_params(problem, shapes, kinds)


def expert_linear_layer_params(problem: Problem, shapes: ShapeTable, kinds: StageKinds) -> Floats:
    """Return the same of routed experts, which `kind_expert_params` counts with their biases."""
    if not problem.shape.n_experts:
        return np.zeros_like(kinds.layers)
    weights = expert_linear_params(problem.shape, shapes.ep, shapes.etp)
    share = weights / expert_params(problem.shape, shapes.ep, shapes.etp)
    return held_expert_params(problem, shapes, kinds) * share[:, None]


def quantized_weight_bytes(problem: Problem) -> float:
    """Return what a weight of a linear layer takes more than 2 bytes, mean over the layers.

    (1 - y) (n L [- W]), as `quantized_bytes` says; 0 in software that keeps no quantised weights.
    """
    if not problem.stack.quantized_copies:
        return 0.0
    one_layout = problem.pool.accelerator.generation in ONE_LAYOUT_GENERATIONS
    each = problem.job.recipe.quantized_weight_bytes(one_layout=one_layout)
    return each * (1.0 - problem.job.bf16_frac(problem.shape.layers))


def quantized_bytes(
    problem: Problem, shapes: ShapeTable, kinds: StageKinds, zero: Ints
) -> Floats | None:
    """Return what quantised weights take more than 16-bit ones, by sharding, shape and kind.

    (1 - y) (n L [- W]) N: N weights of linear layers, y the share of layers in bf16, the bytes of
    a weight `Recipe.quantized_weight_bytes`; 0 with ZeRO 3, which quantises what it gathers.
    Left out: the copy of a layer's weights then, what of a rank's layers stays in bf16.
    """
    each = quantized_weight_bytes(problem)
    if not each:
        return None
    params = linear_layer_params(problem, shapes, kinds)
    params = params + expert_linear_layer_params(problem, shapes, kinds)
    return np.where(zero[:, None, None] < 3, each * params, 0.0)


def expert_shape_terms(
    problem: Problem, shapes: ShapeTable, shardings: ShardingTable, kinds: StageKinds
) -> ExpertShapeTerms | None:
    """Return the terms of the routed experts; None for a dense model.

    Gradients are reduced, and ZeRO shards, over `expert_data_groups`. Pieces as for the rest.
    """
    routed = routed_layers(problem, kinds)
    if routed is None:
        return None
    params, copies = kind_expert_params(problem, shapes, kinds), expert_copies(shapes)
    shard, groups = shardings.shard(copies), expert_data_groups(problem, shapes, shardings)
    wide = _wide_groups(groups)
    stage = shardings.zero[:, None, None]
    blocking = shardings.dp_blocking[:, None, None]
    pieces = n_pieces(problem, params, copies.astype(np.float64)[:, None], stage, blocking)
    often = (stage >= 2) | bool(problem.stack.sharded_units)
    by_layer = np.where(often, np.maximum(1.0, routed), pieces)
    per_param = _state_bytes_per_param(problem, shardings, shard)
    narrow = narrow_expert_params(problem, shapes, kinds)
    more = expert_groups(problem, shapes, shardings, kinds)
    states = per_param[..., None] * params
    if more is None or not more.is_padded:
        times = _traffic(problem, shardings, wide, (params, narrow), by_layer)
    else:
        times = _padded_traffic(problem, shardings, groups, params + more.moved_params, copies)
    if problem.job.tuning:
        frozen = frozen_expert_weights(problem, shapes, kinds)
        times = with_gathers(problem, shardings, wide, (times, params), frozen)
    if problem.job.has_reference:
        times = gathers_with_reference(times, shardings.zero)
    return ExpertShapeTerms(
        params=params,
        state_bytes=states if more is None else states + more.state_bytes,
        data_parallel=times,
        data_groups=groups,
        groups=more,
    )


def expert_groups(
    problem: Problem, shapes: ShapeTable, shardings: ShardingTable, kinds: StageKinds
) -> GroupTerms | None:
    """Return what the optimizer's groups take more of the routed experts."""
    copies = expert_copies(shapes)
    shard = np.where(shardings.zero[:, None] >= 1, shardings.shard(copies), 1)
    group = expert_data_groups(problem, shapes, shardings).shard
    params = kind_expert_params(problem, shapes, kinds)
    part = Part(params, shapes.etp, shard.astype(np.float64), group, is_routed=True)
    return group_terms(problem, shapes, kinds, part)


def dense_groups(
    problem: Problem, shapes: ShapeTable, shardings: ShardingTable, kinds: StageKinds
) -> GroupTerms | None:
    """Return what the optimizer's groups take more of all parameters but routed experts."""
    shard = np.where(shardings.zero[:, None] >= 1, shardings.shard(shapes.replicas), 1)
    group = data_groups(problem, shapes, shardings).shard
    params = kind_params(problem, shapes, kinds)
    part = Part(params, shapes.tp, shard.astype(np.float64), group, is_routed=False)
    return group_terms(problem, shapes, kinds, part)


@dataclass(frozen=True, slots=True)
class _RankParams:
    """What ranks hold whose traffic is priced: all kinds of all shapes, or each of those alike."""

    shape: Rows
    """Shape of each row."""
    kinds: StageKinds
    params: Floats
    """`(n_rows, 1)`, or all `(n_shapes, n_kinds)`; the rows of `kinds` too."""
    narrow_params: Floats | None
    """Those of them that are gathered quantised."""
    row_of_kind: Rows | None = None
    """Where each kind of each shape finds its row, `(n_shapes, n_kinds)`; None for all."""


def _rank_params(
    problem: Problem, shapes: ShapeTable, kinds: StageKinds, params: Floats
) -> _RankParams:
    """Return what ranks hold, once for those alike where they are many and of one problem."""
    every, narrow = np.arange(len(shapes)), narrow_params(problem, shapes, kinds)
    if params.size < MANY_RANKS or isinstance(problem, Problems):
        return _RankParams(every, kinds, params, narrow)
    firsts, positions = _distinct_ranks(shapes, kinds)
    if 2 * len(firsts) > params.size:
        return _RankParams(every, kinds, params, narrow)
    alone = params.reshape(-1, 1)[firsts]
    narrow = None if narrow is None else narrow.reshape(-1, 1)[firsts]
    return _RankParams(firsts // params.shape[1], kinds.each(firsts), alone, narrow, positions)


def _dense_traffic(
    problem: Problem,
    shapes: ShapeTable,
    shardings: ShardingTable,
    resident: _RankParams,
    groups: DataGroups,
) -> DataParallelTimes:
    """Return the times of all parameters besides routed experts, by sharding, shape and kind."""
    stage, blocking = shardings.zero[:, None, None], shardings.dp_blocking[:, None, None]
    dp = shapes.replicas.astype(np.float64)[resident.shape, None]
    pieces = n_pieces(problem, resident.params, dp, stage, blocking)
    # ZeRO 2 and 3 move layer by layer: a piece is one layer (or an end of the model).
    by_layer = np.where(stage >= 2, resident.kinds.layers + 1.0, pieces)
    if problem.stack.sharded_units:
        both = resident.kinds.has_embedding * resident.kinds.has_head * problem.shape.tied
        ends = resident.kinds.has_embedding + resident.kinds.has_head - both
        ends = ends + resident.kinds.has_embedding * alone_positions(problem)
        by_layer = np.maximum(1.0, resident.kinds.layers + ends) + 0.0 * pieces
    wide = _wide_groups(
        groups if resident.row_of_kind is None else groups.of_shapes(resident.shape)
    )
    moved = resident.params, resident.narrow_params
    traffic = _traffic(problem, shardings, wide, moved, by_layer)
    return traffic if resident.row_of_kind is None else _of_ranks(traffic, resident.row_of_kind)


def _padded_traffic(
    problem: Problem, shardings: ShardingTable, groups: DataGroups, moved: Floats, dp: Ints
) -> DataParallelTimes:
    """Return the times of buffers `moved` parameters long, by sharding, shape and kind.

    Optimizers with shards of whole matrices: ZeRO 0 and 1 alone. `groups` are those of shapes.
    """
    stage, blocking = shardings.zero[:, None, None], shardings.dp_blocking[:, None, None]
    pieces = n_pieces(problem, moved, dp.astype(np.float64)[:, None], stage, blocking)
    wide = replace(_wide_groups(groups), second_copy=None)
    return data_parallel_times(over_kinds(problem), wide, moved, pieces, stage)


def _traffic(
    problem: Problem,
    shardings: ShardingTable,
    groups: DataGroups,
    moved: tuple[Floats, Floats | None],
    pieces: Floats,
) -> DataParallelTimes:
    """Return `data_parallel_times` by sharding, once for all that move the same.

    `moved` are parameters, and those of them that are gathered quantised.
    """
    rows, row_idx = _distinct_rows(shardings, TRAFFIC)
    params, narrow = moved
    problem = over_kinds(problem)
    if len(rows) == len(shardings):
        every = shardings.zero[:, None, None]
        return data_parallel_times(problem, groups, params, pieces, every, narrow)
    few = groups
    if groups.shard.n_ranks.ndim == params.ndim + 1:
        few = replace(few, shard=groups.shard.take(rows), replicas=groups.replicas.take(rows))
    if groups.second_copy is not None:
        few = replace(few, second_copy=groups.second_copy.take(rows))
    stage = shardings.zero[rows][:, None, None]
    return data_parallel_times(problem, few, params, pieces[rows], stage, narrow).take(row_idx)


def once_a_step_times(
    problem: Problem, shapes: ShapeTable, shardings: ShardingTable, kinds: StageKinds
) -> tuple[DataParallelTimes, Rows]:
    """Return the wire times of a step by sharding and rank, of ZeRO 0 and 1 alone.

    Routed experts move after the rest; the larger last piece counts. Computed once for all ranks
    that hold the same and share it with as many, however their layers are chunked: arrays are
    `(n_shardings, n_distinct)`, and the second tells where each kind of each shape finds its own,
    `(n_shapes, n_kinds)`.
    """
    firsts, positions = _distinct_ranks(shapes, kinds)
    some = shapes.take(firsts // kinds.layers.shape[1])
    result = _once_a_step_times(problem, some, shardings, kinds.each(firsts))
    return _of_ranks(result, np.arange(len(firsts))), positions


def _distinct_ranks(shapes: ShapeTable, kinds: StageKinds) -> tuple[Rows, Rows]:
    """Return one flat position of each set of ranks alike, and where each rank finds its own.

    Ranks are alike that hold the same and share it with as many, however their layers are chunked:
    what moves between replicas is the same. The second is `(n_shapes, n_kinds)`.
    """
    degrees = (shapes.tp, shapes.pp, shapes.dp, shapes.cp, shapes.ep, shapes.etp)
    columns = [np.repeat(x, kinds.layers.shape[1]) for x in (*degrees, shapes.rank_order)]
    contents = [kinds.layers, kinds.has_embedding, kinds.has_head]
    if kinds.of_other_kinds is not None:
        contents += list(kinds.of_other_kinds)
    positions = distinct([*columns, *(x.reshape(-1).astype(np.int32) for x in contents)]).index
    _, firsts = np.unique(positions, return_index=True)
    return firsts, positions.reshape(kinds.layers.shape)


def _of_ranks(distinct_times: DataParallelTimes, positions: Rows) -> DataParallelTimes:
    """Return times by sharding and `positions` from those `(n_shardings, n_distinct, 1)`."""
    columns = (
        distinct_times.reduce_s,
        distinct_times.reduce_piece_s,
        distinct_times.gather_s,
        distinct_times.gather_piece_s,
    )
    times = DataParallelTimes(*(column[:, positions, 0] for column in columns))
    if distinct_times.again_s is None or distinct_times.again_piece_s is None:
        return times
    return replace(
        times,
        again_s=distinct_times.again_s[:, positions, 0],
        again_piece_s=distinct_times.again_piece_s[:, positions, 0],
    )


def _once_a_step_times(
    problem: Problem, shapes: ShapeTable, shardings: ShardingTable, kinds: StageKinds
) -> DataParallelTimes:
    params = kind_params(problem, shapes, kinds)
    groups = data_groups(problem, shapes, shardings)
    stage, blocking = shardings.zero[:, None, None], shardings.dp_blocking[:, None, None]
    dp = shapes.replicas.astype(np.float64)[:, None]
    wide = replace(_wide_groups(groups), second_copy=None)
    pieces = n_pieces(problem, params, dp, stage, blocking)
    narrow = narrow_params(problem, shapes, kinds)
    dense = data_parallel_times(problem, wide, params, pieces, stage, narrow)
    routed = expert_shape_terms(problem, shapes, shardings, kinds)
    if routed is None:
        return dense
    more = routed.data_parallel
    return DataParallelTimes(
        dense.reduce_s + more.reduce_s,
        np.maximum(dense.reduce_piece_s, more.reduce_piece_s),
        dense.gather_s + more.gather_s,
        np.maximum(dense.gather_piece_s, more.gather_piece_s),
    )


def largest_layer_params(shape: ModelShape, shapes: ShapeTable) -> Floats:
    """Return the parameters on one device of the layer that has most, `(n_shapes,)`.

    Kinds of which the model has no layer do not count, nor a first kind behind expert layers.
    """
    largest: Floats | None = None
    first_routed = bool(shape.n_experts) and shape.expert_layers[0]
    for i, kind in enumerate(kinds_of(shape)):
        params = kind.params(shape, shapes.tp)
        if kind.is_routed:
            params = params + expert_params(shape, shapes.ep, shapes.etp)
        if i or not first_routed:
            largest = params if largest is None else np.maximum(largest, params)
    assert largest is not None  # there is a layer
    return largest


def frozen_weights(problem: Problem, shapes: ShapeTable, kinds: StageKinds) -> FrozenWeights:
    """Return the frozen weights of each kind of rank beside adapters, without routed experts."""
    return FrozenWeights(
        held_kind_params(problem, shapes, kinds),
        linear_layer_params(problem, shapes, kinds),
        kinds.layers + kinds.has_embedding + kinds.has_head,
    )


def frozen_expert_weights(
    problem: Problem, shapes: ShapeTable, kinds: StageKinds
) -> FrozenWeights:
    """Return the same of routed experts."""
    layers = routed_layers(problem, kinds)
    return FrozenWeights(
        held_expert_params(problem, shapes, kinds),
        expert_linear_layer_params(problem, shapes, kinds),
        np.zeros_like(kinds.layers) if layers is None else layers,
    )


def all_frozen_bytes(
    problem: Problem, shapes: ShapeTable, shardings: ShardingTable, kinds: StageKinds
) -> Floats | None:
    """Return what frozen weights take, by sharding, shape and kind; None where all are trained.

    Those beside adapters, which are the reference too, or a reference of its own.
    """
    if problem.job.tuning is None:
        if not problem.job.has_reference:
            return None
        width, zero = problem.job.recipe.param_bytes, shardings.zero
        held = held_kind_params(problem, shapes, kinds)
        total = reference_bytes(held, width, zero, shardings.shard(shapes.replicas))
        if not problem.shape.n_experts:
            return total
        held = held_expert_params(problem, shapes, kinds)
        shard = shardings.shard(expert_copies(shapes))
        return total + reference_bytes(held, width, zero, shard)
    weights = frozen_weights(problem, shapes, kinds)
    total = frozen_bytes(problem, shardings, weights, shardings.shard(shapes.replicas))
    if not problem.shape.n_experts:
        return total
    routed = frozen_expert_weights(problem, shapes, kinds)
    return total + frozen_bytes(problem, shardings, routed, shardings.shard(expert_copies(shapes)))


def tuned_states(
    problem: Problem, shapes: ShapeTable, shardings: ShardingTable, kinds: StageKinds
) -> dict[str, Any]:
    """Return the fields of `ShapeTerms` that hold what kinds of rank have, with adapters.

    Without what optimizers by groups of parameters take more.
    """
    params, copies = kind_params(problem, shapes, kinds), expert_copies(shapes)
    per_param = _state_bytes_per_param(problem, shardings, shardings.shard(shapes.replicas))
    states = per_param[..., None] * params
    if problem.shape.n_experts:
        of_experts = _state_bytes_per_param(problem, shardings, shardings.shard(copies))
        routed = kind_expert_params(problem, shapes, kinds)
        states = states + of_experts[..., None] * routed
    return {
        "params": params,
        "state_bytes": states,
        "frozen_bytes": all_frozen_bytes(problem, shapes, shardings, kinds),
        "quantized_bytes": quantized_bytes(problem, shapes, kinds, shardings.zero),
        "experts": None,
    }


def step_phases(
    problem: Problem, shapes: ShapeTable, shardings: ShardingTable, kinds: StageKinds
) -> PhaseBytes | None:
    """Return what the moments of a step hold beside its terms; None where terms are summed."""
    if problem.stack.memory_plan != "phases":
        return None
    shape, zero = problem.shape, shardings.zero[:, None, None]

    def over(ranks: Ints, is_cut: Bools) -> Floats:
        return np.where(is_cut, shardings.shard(ranks).astype(np.float64)[..., None], 1.0)

    copies, matrix = expert_copies(shapes), head_matrix(shape, shapes.tp)[:, None]
    ends = kinds.has_embedding * lookup_params(shape, problem.job.seq_len, shapes.tp)[:, None]
    head = kinds.has_head * matrix
    ends = ends + head * ((shapes.pp[:, None] > 1) | (not shape.tied))
    layers = np.maximum(0.0, kind_params(problem, shapes, kinds) - ends)
    routed = kind_expert_params(problem, shapes, kinds)
    shard, cut = over(shapes.replicas, zero >= 3), over(shapes.replicas, zero >= 1)
    return phase_bytes(
        problem.job.recipe,
        Held(
            layers=layers / shard + routed / over(copies, zero >= 3),
            ends=ends / shard,
            updated=np.where((zero == 1) | (zero == 2), layers + routed + ends, 0.0),
            gradients=layers / cut + routed / over(copies, zero >= 1),
            head=head,
            head_shard=head / cut,
            gathered_head=np.where(zero >= 3, head, 0.0),
            gathered=np.where(zero >= 3, gathered_params(shape, shapes)[:, None], 0.0),
            is_ring=(zero >= 1) & (cut > 1) & (cut <= RING_RANKS),
        ),
    )


def _unit_bytes(
    problem: Problem, shapes: ShapeTable, shardings: ShardingTable, ends: Floats
) -> Floats:
    """Return whole units of ZeRO 2 and 3 by sharding and shape; `ends` are parameters."""
    zero, tuning = shardings.zero[:, None], problem.job.tuning
    largest = largest_layer_params(problem.shape, shapes)
    if problem.stack.memory_plan == "phases":
        return np.zeros((len(zero), len(largest)))
    if tuning is None:
        return memory.zero3_working_bytes(problem.job.recipe, largest, ends, zero)
    linear = np.zeros_like(largest)
    for kind in kinds_of(problem.shape):
        of_kind = kind.linear_weights(problem.shape, shapes.tp)
        if kind.is_routed:
            of_kind = of_kind + expert_linear_params(problem.shape, shapes.ep, shapes.etp)
        linear = np.maximum(linear, of_kind)
    layer = FrozenWeights(largest, np.minimum(linear, largest), ends).held_bytes(tuning)
    return frozen_unit_bytes(problem, layer, OTHER_BYTES * ends, zero, shapes.tp)


def _state_bytes_per_param(problem: Problem, shardings: ShardingTable, shard: Ints) -> Floats:
    """Return what the device holds of the states of one parameter, by sharding and shape."""
    return memory.state_bytes_per_param(
        problem.job.recipe,
        shardings.zero[:, None],
        shard.astype(np.float64),
        shardings.optimizer_offload[:, None],
        hpz=shardings.hpz[:, None],
        stack=problem.stack,
    )


def _flat_copies(
    problem: Problem,
    shapes: ShapeTable,
    shardings: ShardingTable,
    params: Floats,
    routed: ExpertShapeTerms | None,
) -> Floats:
    """Return `memory.flat_copy_bytes` of the rank with most parameters, by sharding and shape."""
    recipe, stack, zero = problem.job.recipe, problem.stack, shardings.zero[:, None]
    offload = shardings.optimizer_offload[:, None]

    def copies(n_params: Floats, shard: Ints) -> Floats:
        return memory.flat_copy_bytes(recipe, stack, n_params, zero, shard, offload=offload)

    value = copies(params, shardings.shard(shapes.replicas))
    if routed and stack.flat_optimizer:
        value = value + copies(routed.params.max(axis=1), shardings.shard(expert_copies(shapes)))
    return value


def _optimizer_s(
    problem: Problem, params: Floats, shardings: ShardingTable, shards: Floats
) -> Floats:
    """Return the optimizer step over `params` by sharding; `shards` by sharding too."""
    tall = (len(shardings),) + (1,) * params.ndim
    stages, grad = shardings.zero.reshape(tall), problem.job.recipe.grad_bytes
    # With the optimizer on the host: Adam, and clipping where the gradients are there already.
    moved = grad + 24.0 + (2.0 * grad if gradients_leave(problem.stack) else 0.0)
    offloaded = shardings.optimizer_offload.reshape(tall).astype(np.float64)
    narrower = 24.0 - problem.job.recipe.adam_bytes
    return optimizer_s(
        params,
        np.where(stages >= 1, shards, 1.0),
        np.where(stages >= 2, shards, 1.0),
        grad,
        problem.pool.accelerator,
        moved * offloaded + narrower * (1.0 - offloaded) if narrower else moved * offloaded,
    )


def _held_params(
    shapes: ShapeTable, shardings: ShardingTable, params: Floats, routed: Floats | None
) -> Floats:
    """Return the parameters that a device updates, by sharding, shape and kind of rank."""

    def shards(ranks: Ints) -> Floats:
        of_group = shardings.shard(ranks).astype(np.float64)
        return np.where(shardings.zero[:, None] >= 1, of_group, 1.0)[..., None]

    resident = params / shards(shapes.replicas)
    if routed is None:
        return resident
    copies = np.maximum(1, shapes.stage_ranks // (shapes.ep * shapes.etp))
    return resident + routed / shards(copies)


def host_bytes(problem: Problem, shapes: ShapeTable, shardings: ShardingTable) -> Floats:
    """Return what one device's optimizer takes on the host, `(n_shardings, n_shapes)` bytes.

    Of the rank that updates most parameters; 0 where nothing is offloaded.
    """
    if not shardings.optimizer_offload.any():
        return np.zeros((len(shardings), len(shapes)))
    kinds = kinds_of_stages(problem, shapes, with_held=False)
    routed = kind_expert_params(problem, shapes, kinds) if problem.shape.n_experts else None
    params = kind_params(problem, shapes, kinds)
    resident = _held_params(shapes, shardings, params, routed).max(axis=-1)
    return np.where(shardings.optimizer_offload[:, None] > 0, host_state_bytes(resident), 0.0)


def _host_update(
    problem: Problem,
    shapes: ShapeTable,
    shardings: ShardingTable,
    params: Floats,
    routed: Floats | None,
) -> HostUpdate | None:
    """Return the update on the host by sharding, shape and kind; None where nothing is offloaded.

    Cut into as many pieces as overlapped data-parallel traffic: a device's part of such a piece is
    one tensor or more.
    """
    if problem.pool.host is None or not shardings.optimizer_offload.any():
        return None
    stack, ranks = problem.stack, shapes.replicas.astype(np.float64)[:, None]
    piece = np.maximum(stack.bucket_params, stack.bucket_params_per_rank * ranks)
    pieces = np.maximum(1.0, np.ceil((params if routed is None else params + routed) / piece))
    resident = _held_params(shapes, shardings, params, routed)
    return host_update(over_kinds(problem), resident, np.broadcast_to(pieces, resident.shape))


def _wide(group: Group) -> Group:
    """Return `group` with a trailing axis, to broadcast over the kinds of rank."""
    columns = (group.n_ranks, group.ranks_per_domain, group.n_domains, group.wire_bytes_per_s)
    ranks, per_domain, n_domains, wire = (column[..., None] for column in columns)
    extra = group.extra_hop_s
    extra = extra[..., None] if isinstance(extra, np.ndarray) else extra
    torus = group.torus and group.torus.each(lambda column: column[..., None])
    return Group(ranks, per_domain, n_domains, wire, group.tier[..., None], extra, torus)


def _wide_groups(groups: DataGroups) -> DataGroups:
    """Return `groups` with a trailing axis."""
    recomputed = None if groups.second_copy is None else _wide(groups.second_copy)
    return DataGroups(
        _wide(groups.all_ranks), _wide(groups.shard), _wide(groups.replicas), recomputed
    )


def shared_params(problem: Problem, shapes: ShapeTable, rank_params: Floats) -> Floats:
    """Return the parameters of a device whose gradients two pipeline ranks sum, `(n_shapes,)`.

    An embedding that first and last stage hold (a tied one, or that of multi-token prediction),
    none where one rank holds both (folded); with stages held both ways all parameters of a rank,
    `rank_params`.
    """
    matrix = np.zeros(len(shapes))
    if (problem.shape.tied or problem.shape.mtp_layers) and not problem.job.tuning:
        matrix = padded_vocab(problem.shape, shapes.tp) * problem.shape.hidden / shapes.tp
    return np.where(
        shapes.placement == BOTH_WAYS,
        rank_params,
        np.where(shapes.placement == FOLDED, 0.0, matrix),
    )


def _embedding_sync_s(problem: Problem, shapes: ShapeTable, rank_params: Floats) -> Floats:
    """Return the all-reduce of what `shared_params` counts, between two pipeline ranks."""
    shared = shared_params(problem, shapes, rank_params)
    if not shared.any():
        return shared
    size = problem.job.recipe.grad_wire_bytes * shared
    return collective_s("all-reduce", size, end_pair(problem, shapes), problem.pool)


def end_pair(problem: Problem, shapes: ShapeTable) -> Group:
    """Return the placement of the pairs of first and last stage that share a tied embedding.

    A unit holds both ends of every pair exactly when it holds all ranks of their pipelines (all
    devices, or tp cp pp where pipelines lie inside), as it holds two ranks half as many apart; the
    true stride, that of the stages times pp - 1, would ask for up to twice that.
    """
    pair = np.where(shapes.pp > 1, 2, 1)
    apart = np.maximum(1.0, shapes.stage_stride * shapes.pp / 2)
    return place_group(pair, apart, problem.pool, problem.fabric)


def boundary_hops(
    problem: Problem, stride: int, pp: int, blocks: int = 1, tp: int = 1
) -> tuple[Floats, Floats]:
    """Return latency (s) and s/byte of a message over each boundary of a pipeline, `(pp,)` each.

    Entry r is the boundary from rank r to r + 1, the last one from rank p - 1 back to rank 0 (used
    with interleaving). Ranks are `stride` devices apart; with pipelines inside, `blocks` = dp such
    blocks of pp stages follow one another, block b from rank b p s on. A boundary counts as
    crossing a unit of U devices when some pipeline does there:
    floor(((b p + r + 2) s - 1) / U) > floor((b p + r) s / U) for some b.
    Crossing costs one NIC outside the scale-up domain, and above a tier that holds r ranks of the
    pipeline r shares of the uplink, 1/oversubscription of a NIC each; where not all pipelines
    cross, the slower of that and the link inside counts. What stays inside the domain crosses no
    tier, however small its units. Where the stack's messages block and the `tp` ranks of a stage
    span more than two domains, `stalled_message_s` comes on top. Problems in columns: `(n, pp)`.
    """
    pool = problem.pool
    extra = 0.0 if problem.fabric.rail_optimized else pool.nic.latency_factor * NON_RAIL_HOP_S
    wire_s = 1.0 / pool.nic_bytes_per_s
    units, costs, over = [pool.scale_up_domain], [wire_s], 1.0
    for tier in problem.tiers:
        over *= tier.oversubscription
        unit = tier.n_nodes * pool.devices_per_node
        units.append(unit)
        costs.append(np.maximum(wire_s, over * wire_s / max(1, unit // stride)))
    stalls = problem.stack.blocking_p2p and tp > STALLING_DOMAINS * pool.scale_up_domain
    stalled_s = problem.stack.stalled_message_s if stalls else 0.0
    inside_s = pool.scale_up.p2p_latency_s + stalled_s
    outside_s = pool.nic.p2p_latency_s + extra + stalled_s
    ranks = _StageRanks(stride, pp, blocks, tuple(units))
    latencies, per_byte_s = (
        (inside_s, outside_s),
        (links_apart(pool, stride) / pool.accelerator.pair_bytes_per_s, *costs),
    )
    if not isinstance(problem, Problems):
        return _boundary_hops(ranks, latencies, per_byte_s)
    columns = np.stack(np.broadcast_arrays(*latencies, *per_byte_s), axis=-1).tolist()
    hops = (_boundary_hops(ranks, tuple(row[:2]), tuple(row[2:])) for row in columns)
    latency, per_byte = zip(*hops, strict=True)
    return np.array(latency), np.array(per_byte)


class _StageRanks(NamedTuple):
    """Where the stages of pipelines lie among the devices, as `boundary_hops` says."""

    stride: int
    pp: int
    blocks: int
    units: tuple[int, ...]
    """Devices of a domain, and of a unit of each tier."""


@lru_cache(maxsize=4096)
def _boundary_hops(
    ranks: _StageRanks, latencies_s: tuple[float, ...], per_byte_s: tuple[float, ...]
) -> tuple[Floats, Floats]:
    """Return `boundary_hops`: latencies inside and outside a domain, seconds a byte by level.

    The first of `per_byte_s` is inside the domain, the others above each unit. Nobody may write
    into the result.
    """
    inside_s, outside_s = latencies_s
    latency, per_byte = np.full(ranks.pp, inside_s), np.full(ranks.pp, per_byte_s[0])
    leaves = np.zeros(ranks.pp, dtype=bool)
    for level, (unit, cost) in enumerate(zip(ranks.units, per_byte_s[1:], strict=True)):
        crosses, all_cross = _crossings(ranks, unit)
        inside = np.where(all_cross, 0.0, per_byte) if level == 0 else per_byte
        if level == 0:
            leaves = crosses
            latency = np.where(crosses, outside_s, latency)
        # A leaf may hold fewer nodes than a rack: inside the domain no message climbs.
        per_byte = np.where(crosses & leaves, np.maximum(cost, inside), per_byte)
    return latency, per_byte


def _crossings(ranks: _StageRanks, unit: int) -> tuple[Bools, Bools]:
    """Return where some pipeline, and where all, cross a border of units of `unit` devices."""
    stride, pp = ranks.stride, ranks.pp
    # Blocks that start at the same place of a unit are alike.
    blocks = min(ranks.blocks, unit // gcd(pp * stride, unit))
    base = np.arange(blocks)[:, None] * (pp * stride)
    start = base + np.arange(pp) * stride
    crosses = (start + 2 * stride - 1) // unit > start // unit
    crosses[:, -1] = (base[:, 0] + pp * stride - 1) // unit > base[:, 0] // unit
    all_cross = crosses & ((stride >= unit) | (start % unit == unit - stride))
    return np.asarray(crosses.any(axis=0)), np.asarray(all_cross.all(axis=0))


def _once_per_degrees(
    shapes: ShapeTable, names: tuple[str, ...], place_all: Callable[[ShapeTable], DataGroups]
) -> DataGroups:
    """Return the groups of each shape, placed once for all shapes with the same degrees."""
    if len(shapes) < MANY_SHAPES:
        return place_all(shapes)
    positions = distinct([getattr(shapes, name) for name in names]).index
    _, firsts = np.unique(positions, return_index=True)
    if 2 * len(firsts) > len(shapes):
        return place_all(shapes)
    return place_all(shapes.take(firsts)).of_shapes(positions)


def data_groups(problem: Problem, shapes: ShapeTable, shardings: ShardingTable) -> DataGroups:
    """Return the placement of the data-parallel groups of each shape, ZeRO groups by sharding.

    Ranks of one ZeRO group are neighbours in their data-parallel group, so that a group as large
    as dp / nodes stays inside a node.
    """

    def place_all(some: ShapeTable) -> DataGroups:
        return _data_groups(problem, some, shardings)

    if isinstance(problem, Problems):
        return place_all(shapes)
    return _once_per_degrees(shapes, ("tp", "pp", "dp", "cp", "rank_order"), place_all)


def _data_groups(problem: Problem, shapes: ShapeTable, shardings: ShardingTable) -> DataGroups:
    pool, fabric = problem.pool, problem.fabric
    total = place_spaced_group(copy_spacing(shapes, shapes.replicas), pool, fabric)
    recomputed = None
    if (shardings.hpz > 1).any():
        rows, row_idx = _distinct_rows(shardings, ("copies", "hpz"))
        near = shardings.take(rows).second_shard(shapes.replicas)
        recomputed = place_spaced_group(copy_spacing(shapes, near), pool, fabric).take(row_idx)
    if (shardings.copies == 1).all():
        alone = place_group(np.ones_like(shapes.dp), 1, pool, fabric)
        return DataGroups(total, total, alone, recomputed)
    rows, row_idx = _distinct_rows(shardings, ("copies",))
    shard = shardings.take(rows).shard(shapes.replicas)
    return DataGroups(
        total,
        place_spaced_group(copy_spacing(shapes, shard), pool, fabric).take(row_idx),
        place_spaced_group(replica_spacing(shapes, shard), pool, fabric).take(row_idx),
        recomputed,
    )


def _distinct_rows(shardings: ShardingTable, names: Sequence[str]) -> tuple[Rows, Rows]:
    """Return one row for each combination of some columns, and where each row finds its own."""
    entries: dict[tuple[int, ...], int] = {}  # shardings are few: quicker than sorting them
    columns = (getattr(shardings, name).tolist() for name in names)
    row_idx = np.array(
        [entries.setdefault(row, len(entries)) for row in zip(*columns, strict=True)],
        dtype=np.intp,
    )
    _, rows = np.unique(row_idx, return_index=True)
    return rows, row_idx


TRAFFIC = ("zero", "copies", "dp_blocking", "hpz")
"""Columns of shardings on which traffic depends: not where the optimizer is."""


def copy_spacing(shapes: ShapeTable, n_ranks: Ints) -> RankSpacing:
    """Return the spacing of `n_ranks` neighbours among the dp cp ranks with the same weights.

    In the usual order they are tp apart. Where pipelines lie inside, the cp ranks of a stage are a
    run and runs begin tp cp pp apart; neighbours are some whole runs or an equal part of one. With
    numbers that fit neither, parts of a run of the greatest common divisor stand for them, each in
    units of its own.
    """
    cp, inside = shapes.cp, shapes.pipelines_inside
    fits = (n_ranks % cp == 0) | (cp % n_ranks == 0)
    run = np.where(inside, np.gcd(n_ranks, cp), n_ranks)
    apart = np.where(fits, shapes.tp * cp * shapes.pp, shapes.n_devices)
    return _spacing(run, shapes.tp, n_ranks // run, apart)


def replica_spacing(shapes: ShapeTable, shard: Ints) -> RankSpacing:
    """Return the spacing of the ranks that hold the same one of shards over `shard` ranks.

    They are every `shard`th of the dp cp ranks with the same weights (`copy_spacing`): one for
    every so many runs, or several in each run; with numbers that fit neither, each in a unit of
    its own.
    """
    cp, inside = shapes.cp, shapes.pipelines_inside
    copies = np.maximum(1, shapes.replicas // shard)
    fits = (shard % cp == 0) | (cp % shard == 0)
    run = np.where(inside, np.where(fits, np.maximum(1, cp // shard), 1), copies)
    apart = np.where(fits, shapes.tp * shapes.pp * np.maximum(shard, cp), shapes.n_devices)
    return _spacing(run, shapes.tp * shard, copies // run, apart)


def _spacing(run: Ints, stride: Ints, copies: Ints, apart: Ints) -> RankSpacing:
    """Return the spacing of runs; runs of one rank, and a single run, as one run."""
    alone = run == 1
    return RankSpacing(
        np.where(alone, copies, run),
        np.where(alone & (copies > 1), apart, stride),
        np.where(alone, 1, copies),
        np.where(alone | (copies == 1), 1, apart),
    )


def expert_copies(shapes: ShapeTable) -> Ints:
    """Return how many ranks hold the same experts: edp = tp cp dp / (ep etp)."""
    return np.asarray(np.maximum(1, shapes.stage_ranks // (shapes.ep * shapes.etp)))


def expert_data_groups(
    problem: Problem, shapes: ShapeTable, shardings: ShardingTable
) -> DataGroups:
    """Return the placement of the groups that hold the same experts, ZeRO groups by sharding.

    Ranks of a group are ep etp apart, or ep etp pp where pipelines lie inside. Where ZeRO groups
    of the rest are replicated, these are smaller by as much.
    """

    def place_all(some: ShapeTable) -> DataGroups:
        return _expert_data_groups(problem, some, shardings)

    if isinstance(problem, Problems):
        return place_all(shapes)
    names = ("tp", "pp", "dp", "cp", "ep", "etp", "rank_order")
    return _once_per_degrees(shapes, names, place_all)


def _expert_data_groups(
    problem: Problem, shapes: ShapeTable, shardings: ShardingTable
) -> DataGroups:
    pool, fabric, copies = problem.pool, problem.fabric, expert_copies(shapes)
    stride = shapes.ep * shapes.etp * np.where(shapes.pipelines_inside, shapes.pp, 1)
    recomputed = None
    if (shardings.hpz > 1).any():
        rows, row_idx = _distinct_rows(shardings, ("copies", "hpz"))
        near = shardings.take(rows).second_shard(copies)
        recomputed = place_group(near, stride, pool, fabric).take(row_idx)
    rows, row_idx = _distinct_rows(shardings, ("copies",))
    shard = shardings.take(rows).shard(copies)
    return DataGroups(
        place_group(copies, stride, pool, fabric),
        place_group(shard, stride, pool, fabric).take(row_idx),
        place_group(copies // shard, stride * shard, pool, fabric).take(row_idx),
        recomputed,
    )


def _hop(problem: Problem, shapes: ShapeTable) -> tuple[Floats, Floats]:
    """Return the latency and s/byte that the closed form takes for all boundaries of a shape.

    1F1B runs at the pace of its slowest boundary; interleaving pays every boundary v times and
    the way back from the last rank v - 1 times, so the mean over those counts. A folded pipeline
    has no such way back.
    """
    blocks = np.where(shapes.pipelines_inside, shapes.dp, 1)
    folds = (shapes.placement == FOLDED).astype(np.int32)
    pp, looped = shapes.pp, np.where(shapes.vpp > 1, shapes.vpp, 1)
    several = distinct((shapes.stage_stride, blocks, pp, looped, shapes.tp, folds))
    rows = list(zip(*(column.tolist() for column in several.columns), strict=True))
    out = np.zeros((2, len(rows)))
    for i, (stride, n_blocks, n_ranks, vpp, tp, folded) in enumerate(rows):
        if n_ranks == 1:
            continue
        lat, cost = boundary_hops(problem, stride, n_ranks, n_blocks, tp)
        if isinstance(problem, Problems):  # with tables of one layout
            pairs = [_typical_hop(*x, vpp, bool(folded)) for x in zip(lat, cost, strict=True)]
            latency, per_byte = np.array(pairs).T
            return latency, per_byte
        out[:, i] = _typical_hop(lat, cost, vpp, bool(folded))
    latency, per_byte = out[:, several.index]
    return latency, per_byte


def _typical_hop(lat: Floats, cost: Floats, vpp: int, folded: bool) -> tuple[float, float]:
    """Return what `_hop` takes of the boundaries of one pipeline."""
    if vpp == 1:
        slowest = int(np.lexsort((lat[:-1], cost[:-1]))[-1])
        return float(lat[slowest]), float(cost[slowest])
    times = np.full(len(lat), float(vpp))
    times[-1] = 0.0 if folded else times[-1] - 1.0
    latency, per_byte = (float(times @ x / times.sum()) for x in (lat, cost))
    return latency, per_byte


def _layers_again(kinds: StageKinds) -> Floats:
    n_layers, counts = kinds.chunk_layers, kinds.chunk_counts
    depths = np.arange(1.0 + np.where(counts > 0, n_layers, 0.0).max(initial=0.0))
    total = np.zeros((*counts.shape[:2], len(depths)))
    for i in range(counts.shape[-1]):
        total += counts[..., i, None] * np.minimum(n_layers[..., i, None], depths)
    return total


def kinds_of_stages(problem: Problem, shapes: ShapeTable, *, with_held: bool = True) -> StageKinds:
    """Return the kinds of rank of each shape; `with_held` as in `stage_kinds`."""
    columns = (shapes.pp, shapes.vpp, shapes.split, shapes.splits, shapes.placement)
    splits, shape = StageSplits(*columns), problem.shape
    return stage_kinds(shape.layers, splits, shape.layer_sequence, with_held=with_held)


def unsharded_terms(problem: Problem, shapes: ShapeTable) -> ShapeTerms:
    """Return the terms of each shape that bounds on its compute need; the rest are empty.

    What moves and what is held with a sharding is left out, and layers that run again: of those
    no depth but 0 is there.
    """
    kinds, nothing = kinds_of_stages(problem, shapes, with_held=False), np.zeros(0)
    none = replace(kinds, chunk_layers=np.zeros_like(kinds.chunk_layers))
    group = place_group(shapes.pp, shapes.stage_stride, problem.pool, problem.fabric)
    return ShapeTerms(
        kinds=kinds,
        params=nothing,
        state_bytes=nothing,
        zero_working_bytes=nothing,
        data_parallel=DataParallelTimes(nothing, nothing, nothing, nothing),
        data_groups=DataGroups(group, group, group),
        optimizer_s=nothing,
        embedding_sync_s=nothing,
        pipeline_group=group,
        hop_latency_s=nothing,
        hop_s_per_byte=nothing,
        overhead_bytes=nothing,
        layers_again=_layers_again(none),
    )


def shape_terms(problem: Problem, shapes: ShapeTable, shardings: ShardingTable) -> ShapeTerms:
    """Return the terms of each shape with each sharding; cost is one pass over both."""
    stack = problem.stack
    kinds = kinds_of_stages(problem, shapes)
    params = kind_params(problem, shapes, kinds)
    resident = _rank_params(problem, shapes, kinds, params)
    maximum = params.max(axis=1)
    zero = shardings.zero
    groups = data_groups(problem, shapes, shardings)
    shards = shardings.shard(shapes.replicas).astype(np.float64)
    per_param = _state_bytes_per_param(problem, shardings, shardings.shard(shapes.replicas))
    routed = expert_shape_terms(problem, shapes, shardings, kinds)
    more = dense_groups(problem, shapes, shardings, kinds)
    once = _optimizer_s(problem, maximum, shardings, shards)
    if routed or more:
        wide = over_kinds(problem)
        both = _optimizer_s(wide, params, shardings, shards[..., None])
        if routed:
            copies = routed.data_groups.shard.n_ranks[..., None]
            both = both + _optimizer_s(wide, routed.params, shardings, copies)
        both = both if more is None else both + more.update_s
        if routed and routed.groups:
            both = both + routed.groups.update_s
        once = both.max(axis=-1)
    ends = lookup_params(problem.shape, problem.job.seq_len, shapes.tp)
    pipeline_group = place_group(shapes.pp, shapes.stage_stride, problem.pool, problem.fabric)
    latency, per_byte = _hop(problem, shapes)
    context = place_group(shapes.cp, shapes.tp, problem.pool, problem.fabric)
    communicators = (groups.all_ranks.n_domains > 1).astype(float) + (pipeline_group.n_domains > 1)
    communicators = communicators + (context.n_domains > 1)
    if routed:
        exchange = place_group(shapes.ep, shapes.etp, problem.pool, problem.fabric)
        communicators = (
            communicators + (routed.data_groups.all_ranks.n_domains > 1) + (exchange.n_domains > 1)
        )
    states = per_param[..., None] * params
    if more is None or not more.is_padded:
        traffic = _dense_traffic(problem, shapes, shardings, resident, groups)
    else:
        moved = params + more.moved_params
        traffic = _padded_traffic(problem, shardings, groups, moved, shapes.replicas)
    if problem.job.tuning:
        frozen = frozen_weights(problem, shapes, kinds)
        wide_groups = _wide_groups(groups)
        traffic = with_gathers(problem, shardings, wide_groups, (traffic, params), frozen)
    if problem.job.has_reference:
        traffic = gathers_with_reference(traffic, shardings.zero)
    return ShapeTerms(
        kinds=kinds,
        params=params,
        state_bytes=states if more is None else states + more.state_bytes,
        zero_working_bytes=_unit_bytes(problem, shapes, shardings, ends)
        + _flat_copies(problem, shapes, shardings, maximum, routed),
        data_parallel=traffic,
        data_groups=groups,
        optimizer_s=once,
        embedding_sync_s=_embedding_sync_s(problem, shapes, maximum),
        pipeline_group=pipeline_group,
        hop_latency_s=latency,
        hop_s_per_byte=per_byte,
        overhead_bytes=stack.context_bytes + stack.communicator_bytes * communicators,
        layers_again=_layers_again(kinds),
        quantized_bytes=quantized_bytes(problem, shapes, kinds, zero),
        experts=routed,
        groups=more,
        frozen_bytes=all_frozen_bytes(problem, shapes, shardings, kinds),
        host_update=_host_update(
            problem, shapes, shardings, params, routed.params if routed else None
        ),
        phases=step_phases(problem, shapes, shardings, kinds),
    )
