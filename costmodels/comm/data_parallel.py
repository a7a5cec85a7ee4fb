"""Data-parallel and ZeRO traffic: how much, how long, and what compute waits for."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.comm.collectives import collective_s
from costmodels.comm.fsdp import grad_wire_bytes
from costmodels.comm.placement import Group
from costmodels.optimizers.records import reduces_whole
from costmodels.problem import Problem
from costmodels.stacks import StackProfile
from hardware.parts import Pool

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DataParallelTimes:
    """Wire time of one pass over the local parameters, seconds; arrays of one shape.

    With ZeRO 0 and 1 a pass happens once per step, with 2 the reduction, with 3 everything once
    per micro-batch.
    """

    reduce_s: Floats
    """Gradients: all-reduce (ZeRO 0) or reduce-scatter."""
    reduce_piece_s: Floats
    """The last piece of it, which nothing hides."""
    gather_s: Floats
    """Weights: all-gather; 0 without sharding."""
    gather_piece_s: Floats
    again_s: Floats | None = None
    """The same weights once more in a step, from the second copy (hpZ); as the gather where a plan
    has none. None where no plan has one."""
    again_piece_s: Floats | None = None

    def take(self, rows: Any) -> "DataParallelTimes":
        """Return the times at `rows` of the first axis, or at several axes' (`np.ix_`)."""
        columns = (self.reduce_s, self.reduce_piece_s, self.gather_s, self.gather_piece_s)
        times = DataParallelTimes(*(column[rows] for column in columns))
        if self.again_s is None or self.again_piece_s is None:
            return times
        return replace(times, again_s=self.again_s[rows], again_piece_s=self.again_piece_s[rows])

    def kind(self, k: int) -> "DataParallelTimes":
        """Return those of one kind of rank, where the kinds come first."""
        return self.take(k)


def n_pieces(
    problem: Problem, params: Floats, dp: ArrayLike, zero: ArrayLike, blocking: ArrayLike = 0
) -> Floats:
    """Return in how many pieces the traffic of `params` local parameters is cut.

    max(1, ceil(N / max(40e6, 1e6 dp))) with Megatron's overlap; one piece without overlap.
    Source: Megatron-LM core/distributed/distributed_data_parallel.py.
    """
    stack = problem.stack
    piece = np.maximum(stack.bucket_params, stack.bucket_params_per_rank * np.asarray(dp))
    cut = np.maximum(1.0, np.ceil(params / piece))
    overlapped = np.where(
        np.asarray(zero) >= 1, stack.zero1_overlap != "none", stack.dp_overlap != "none"
    )
    return np.where(overlapped & (np.asarray(blocking) == 0), cut, 1.0)


@dataclass(frozen=True, slots=True)
class DataGroups:
    """Placement of the data-parallel groups; arrays of one shape."""

    all_ranks: Group
    """All ranks that hold the same part of the model."""
    shard: Group
    """Those among which ZeRO shards; equal to `all_ranks` without replication."""
    replicas: Group
    """Ranks that hold the same shard; one rank without replication."""
    second_copy: Group | None = None
    """Those that share a second copy of the weights (hpZ), `shard` where there is none; None where
    no plan has one."""

    def of_shapes(self, index: NDArray[np.intp]) -> "DataGroups":
        """Return the groups at `index` of the last axis, that of shapes."""
        recomputed = None if self.second_copy is None else self.second_copy.of_shapes(index)
        all_ranks, shard, replicas = (
            part.of_shapes(index) for part in (self.all_ranks, self.shard, self.replicas)
        )
        return DataGroups(all_ranks, shard, replicas, recomputed)


def broadcast_gather_s(problem: Problem, weights: Floats, group: Group) -> Floats:
    """Return the time to gather `weights` bytes when every rank broadcasts its shard in turn.

    D broadcasts of n/D, whatever the pieces of the reduction: latency grows with the square of D.
    Source: InternLM/InternEvo
    hybrid_zero_optim.py (one broadcast per rank of the group).
    """
    one = collective_s("broadcast", weights / group.n_ranks, group, problem.pool)
    return group.n_ranks * one


def by_tensor_frac(problem: Problem, group: Group) -> Floats:
    """Return the share of its wire that a group reaches with one blocking call per tensor.

    min(1, f S), f = `tensor_wire_frac`, S the groups that share a domain's way out: between two
    calls the wire is idle and free for the others, so that a group is held to f of the whole wire
    and to its own share, whichever is less. S = 1 for a group inside one domain.
    Left out: calls of different groups that meet.
    """
    stack, pool = problem.stack, problem.pool
    siblings = np.where(group.n_domains > 1, pool.scale_up_domain / group.ranks_per_domain, 1.0)
    return np.asarray(np.minimum(1.0, stack.tensor_wire_frac * np.maximum(1.0, siblings)))


def unhidden_once(stack: StackProfile, level: int) -> tuple[bool, bool]:
    """Tell whether reduction and gather of ZeRO 0 or 1 happen at once, with nothing beside them.

    `level` is the ZeRO stage. Units of FSDP2 are always spread over a pass.
    """
    overlap = stack.zero1_overlap if level else stack.dp_overlap
    alone = not stack.sharded_units
    return alone and overlap == "none", alone and overlap != "both"


def sums_whole(problem: Problem, zero: int) -> bool:
    """Tell whether every rank gets the whole sum of the gradients in a ZeRO stage.

    Always in stage 0; in stage 1 where the stack does so, or the optimizer.
    """
    if zero != 1:
        return not zero
    by_optimizer = reduces_whole(problem.job.recipe.optimizer, problem.job.muon)
    return problem.stack.zero1_reduce == "all-reduce" or by_optimizer


def crowded(group: Group, pool: Pool, is_at_once: ArrayLike = True) -> Group:
    """Return a group with the wire that its ring reaches where all rings of a cluster run at once.

    B / max(1, k/2)^x where `is_at_once`, over k domains, x the link's `ring_decline`: every rank
    of the cluster begins its ring at the end of the step, and flows of different rings meet in the
    switches; spread over a backward they do not. Source: x fitted to published runs, by link; a
    form without a derivation. Left out: which switches the rings share.
    """
    if not np.any(pool.nic.ring_decline):
        return group
    fewer = np.maximum(1.0, group.n_domains / 2.0) ** pool.nic.ring_decline
    wire = group.wire_bytes_per_s / np.where(is_at_once, fewer, 1.0)
    return replace(group, wire_bytes_per_s=wire)


def data_parallel_times(
    problem: Problem,
    groups: DataGroups,
    params: Floats,
    pieces: Floats,
    zero: ArrayLike,
    narrow_params: Floats | None = None,
) -> DataParallelTimes:
    """Return the wire times of one pass over `params` local parameters in `pieces` calls.

    ZeRO 0: all-reduce of G_w N. ZeRO 1-3: reduce-scatter of G_w N and all-gather of W_w N over
    the ranks of one ZeRO group, G_w and W_w the recipe's widths on the wire; with groups of g
    that are replicated, also an all-reduce of G_w N/g over the replicas. With a second copy of the
    weights, gathers after a step's first run over the ranks that share it. Of `narrow_params`,
    weights that are gathered quantised, W_w is `Recipe.linear_wire_bytes`. Optimizers whose shards
    of whole matrices have no layout of their own sum gradients whole in ZeRO 1 too.
    Source: Megatron-LM dist_optimizer.md; ZeRO section 7; PyTorch FSDP (hybrid shard); ZeRO++,
    section 3.2 (hpZ). Where a stack's ZeRO 1 sums whole gradients (`zero1_reduce`), it moves what
    ZeRO 0 does. What happens once a step with nothing beside it runs on `crowded` wires.
    Left out: that of plans with `dp_blocking`; broadcasts, which one rank at a time sends.
    """
    recipe, stage, pool = problem.job.recipe, np.asarray(zero), problem.pool
    stack = problem.stack
    at_once = unhidden_once(stack, 1)
    shard = crowded(groups.shard, pool, (stage == 1) & at_once[0])
    grads = grad_wire_bytes(recipe, problem.stack) * params / pieces
    weights = recipe.param_wire_bytes * params / pieces
    if narrow_params is not None:
        narrower = recipe.param_wire_bytes - recipe.linear_wire_bytes
        weights = weights - narrower * narrow_params / pieces
    reduce = collective_s("reduce-scatter", grads, shard, pool)
    if np.any(groups.replicas.n_ranks > 1):
        part = grads / groups.shard.n_ranks
        replicas = crowded(groups.replicas, pool, (stage == 1) & at_once[0])
        reduce = reduce + collective_s("all-reduce", part, replicas, pool)
    for level in (0, 1) if sums_whole(problem, 1) else (0,):
        if np.any(stage == level):
            summed = _all_reduced(grads, groups, stage == level, (problem, level))
            reduce = np.where(stage == level, summed, reduce)
    gathered = crowded(groups.shard, pool, (stage == 1) & at_once[1])
    gather = collective_s("all-gather", weights, gathered, pool)
    if stack.zero1_gather == "broadcast":
        in_turn = broadcast_gather_s(problem, weights * pieces, groups.shard) / pieces
        gather = np.where(stage == 1, in_turn, gather)
    gather = np.where(stage >= 1, gather, 0.0)
    recomputed = gather
    if groups.second_copy is not None:
        near = collective_s("all-gather", weights, groups.second_copy, pool)
        recomputed = np.where(stage >= 3, near, gather)
    if stack.zero3_traffic == "by-tensor":
        slow = np.where(stage >= 2, by_tensor_frac(problem, groups.shard), 1.0)
        reduce, gather = reduce / slow, gather / slow
        near = slow if groups.second_copy is None else by_tensor_frac(problem, groups.second_copy)
        recomputed = recomputed / np.where(stage >= 3, near, slow)
    times = DataParallelTimes(pieces * reduce, reduce, pieces * gather, gather)
    if groups.second_copy is None:
        return times
    return replace(times, again_s=pieces * recomputed, again_piece_s=recomputed)


def _all_reduced(
    grads: Floats, groups: DataGroups, is_wanted: NDArray[np.bool_], of: tuple[Problem, int]
) -> Floats:
    """Return the sum of whole gradients; where shardings are an axis, of those that want it.

    `of` is the problem and the ZeRO stage, 0 or 1.
    """
    problem, level = of
    ranks = crowded(groups.all_ranks, problem.pool, unhidden_once(problem.stack, level)[0])
    if not grads.ndim or is_wanted.shape != (len(grads), *(1,) * (grads.ndim - 1)):
        return collective_s("all-reduce", grads, ranks, problem.pool)
    rows, result = np.flatnonzero(is_wanted.reshape(-1)), np.zeros_like(grads)
    result[rows] = collective_s("all-reduce", grads[rows], ranks, problem.pool)
    return result


def exposed_once_s(
    total_s: Floats,
    piece_s: Floats,
    window_s: Floats,
    pp: ArrayLike,
    vpp: ArrayLike,
    n_micro: ArrayLike,
) -> Floats:
    """Return what a once-per-step transfer exposes beside the last backward (first forward).

    max( piece, c/v - w/v, c - (w/v)(1 + min(p, m)(v - 1)) ), at most c. w is the window: one
    micro-batch's backward (or forward) of the rank. With v chunks a chunk's traffic starts when
    its last micro-batch is done, so all chunks but one have up to p micro-batches as window.
    Source: Megatron-LM's per-chunk gradient synchronisation; the calculon authors make the same
    observation. Left out: idle time of later ranks in the drain.
    """
    v = np.asarray(vpp, dtype=np.float64)
    groups = np.minimum(np.asarray(pp), np.asarray(n_micro))
    exposed: Floats = np.asarray(total_s - window_s * ((1.0 + groups * (v - 1.0)) / v))
    if np.any(v > 1):
        np.maximum(exposed, total_s / v - window_s / v, out=exposed)
    np.maximum(exposed, piece_s, out=exposed)
    np.minimum(exposed, total_s, out=exposed)
    return exposed


def exposed_each_s(total_s: Floats, piece_s: Floats, window_s: Floats) -> Floats:
    """Return what a per-micro-batch transfer exposes: its first piece and what outlasts compute.

    piece + max(0, c - piece - w): with equal units the sum over units of max(compute, transfer).
    Source: prefetch of one unit ahead, as in FSDP and Megatron-FSDP.
    """
    return np.minimum(total_s, piece_s + np.maximum(0.0, total_s - piece_s - window_s))
