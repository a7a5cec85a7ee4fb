"""Frozen weights: what they take on a device, and what gathering their shards takes."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodels.comm.data_parallel import DataGroups, DataParallelTimes, data_parallel_times
from costmodels.plans import ShardingTable
from costmodels.problem import Problem, over_kinds
from costmodels.shapes import ModelShape
from costmodels.tuning.records import OTHER_BYTES, TuningJob
from costmodels.tuning.targets import attention_linears, mlp_linears

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class FrozenWeights:
    """Weights of one kind on the devices, `(n_shapes, n_kinds)`."""

    params: Floats
    linear_params: Floats
    """Those of them in linear layers, which a quantized base narrows."""
    units: Floats
    """Calls in which a rank gathers them: layers and ends."""

    def held_bytes(self, tuning: TuningJob) -> Floats:
        """Return what they take whole on one rank of a data-parallel group, bytes.

        2 N + (b - 2) L: L weights of linear layers at b bytes (`BASES`), N with the others.
        """
        narrower = OTHER_BYTES - tuning.storage.weight_bytes
        return OTHER_BYTES * self.params - narrower * self.linear_params


def frozen_bytes(
    problem: Problem, shardings: ShardingTable, weights: FrozenWeights, shard: Ints
) -> Floats:
    """Return what frozen weights take on a device, by sharding, shape and kind of rank, bytes.

    All of them, or 1/D with ZeRO 3; FSDP2 has its shard beside them with ZeRO 1 and 2. `shard` are
    the ranks of a ZeRO group by sharding and shape.
    Source: DeepSpeed runtime/zero/partition_parameters.py, torch fsdp/_fully_shard (frozen
    parameters are sharded as others are).
    """
    assert problem.job.tuning is not None  # asked for of frozen weights alone
    zero, d = shardings.zero[:, None, None], shard.astype(np.float64)[..., None]
    share = np.where(zero >= 3, 1.0 / d, 1.0)
    if problem.stack.sharded_units:
        share = share + np.where((zero == 1) | (zero == 2), 1.0 / d, 0.0)
    return np.asarray(share * weights.held_bytes(problem.job.tuning))


def least_stage(problem: Problem) -> int:
    """Return the ZeRO stage from which on frozen weights are gathered: 3, any of FSDP2."""
    return 1 if problem.stack.sharded_units else 3


def gathered_params(problem: Problem, weights: FrozenWeights) -> Floats:
    """Return frozen weights in their storage as parameters of the recipe's width on the wire."""
    assert problem.job.tuning is not None  # asked for of frozen weights alone
    return weights.held_bytes(problem.job.tuning) / problem.job.recipe.param_wire_bytes


def with_gathers(
    problem: Problem,
    shardings: ShardingTable,
    groups: DataGroups,
    trained: tuple[DataParallelTimes, Floats],
    weights: FrozenWeights,
) -> DataParallelTimes:
    """Return the traffic of trained parameters with the gathers of frozen weights beside them.

    Where weights are sharded (ZeRO 3, any stage of FSDP2) a gather brings both, the frozen ones as
    they are stored. `trained` are times and parameters; `groups` have a trailing axis.
    """
    times, params = trained
    zero = shardings.zero[:, None, None]
    is_sharded = zero >= least_stage(problem)
    total = params + gathered_params(problem, weights)
    pieces = np.maximum(1.0, weights.units) + 0.0 * zero
    both = data_parallel_times(over_kinds(problem), groups, total, pieces, zero)
    named = ("gather_s", "gather_piece_s", "again_s", "again_piece_s")
    changed = {
        name: np.where(is_sharded, getattr(both, name), getattr(times, name))
        for name in named
        if getattr(both, name) is not None
    }
    return replace(times, **changed)


def working_bytes(
    problem: Problem, layer_bytes: Floats, end_bytes: Floats, zero: Ints, tp: Ints
) -> Floats:
    """Return frozen units that ZeRO 3 needs whole at once, and one widened weight, bytes.

    Two units, as `costmodels.memory.zero3_working_bytes` counts them, in their storage. Of a
    quantized base also the largest linear layer in 16 bits, as each is widened where it is used.
    """
    units = layer_bytes + np.maximum(layer_bytes, end_bytes)
    value = np.where(zero >= 3, units, 0.0)
    assert problem.job.tuning is not None  # asked for of frozen weights alone
    if not problem.job.tuning.storage.is_quantized:
        return value
    return np.asarray(value + 2.0 * largest_linear(problem.shape, tp))


def largest_linear(shape: ModelShape, tp: Ints) -> Floats:
    """Return the weights of a rank's largest linear layer; fused ones count by their parts."""
    linears = (*attention_linears(shape), *mlp_linears(shape))
    total = np.zeros_like(tp, dtype=np.float64)
    for linear in linears:
        if linear.name not in ("qkv", "gate_up"):
            inner, outer = linear.rank_sizes(shape, tp)
            total = np.maximum(total, inner * outer)
    return total
