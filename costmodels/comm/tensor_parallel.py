"""Tensor-parallel traffic of one layer and of the ends of the model, per micro-batch."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.comm.collectives import collective_s
from costmodels.comm.exposure import Exposure
from costmodels.comm.placement import Group, place_group
from costmodels.layers.compute import LinearTimes
from costmodels.layers.params import padded_vocab
from costmodels.plans import SP_OVERLAPPED
from costmodels.problem import Problem
from costmodels.stacks import StackProfile

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


def _behind(total_s: Floats, window_s: Floats) -> Floats:
    """Return what a transfer of `total_s` exposes beside `window_s` of compute."""
    return np.maximum(0.0, total_s - window_s)


def _pieces(total_s: Floats, window_s: Floats, tp: Floats) -> Floats:
    """Return what a transfer cut in tp pieces, each beside its share of one GEMM, exposes."""
    return np.maximum(total_s / tp, total_s - window_s * (1.0 - 1.0 / tp))


def _half_piped(total_s: Floats, window_s: Floats, tp: Floats) -> Floats:
    """Return what is exposed when every second collective is cut in tp pieces beside its GEMM."""
    return total_s / 2 + _pieces(total_s / 2, window_s, tp)


def tensor_parallel_group(problem: Problem, tp: Ints) -> Group:
    """Return the placement of tensor-parallel groups: neighbours in rank order."""
    return place_group(tp, np.ones_like(tp), problem.pool, problem.fabric)


def tp_collective_s(
    problem: Problem, collective: str, size_bytes: ArrayLike, group: Group
) -> Floats:
    """Return the time of a tensor-parallel collective, seconds.

    That of the wire, and `tp_hop_s` for each further rank of the group (twice in an all-reduce):
    ranks reach a collective at different moments, and all wait for the last.
    """
    wire = collective_s(collective, size_bytes, group, problem.pool)
    passes = 2.0 if collective == "all-reduce" else 1.0
    return wire + passes * problem.stack.tp_hop_s * (group.n_ranks - 1)


def layer_exposures(
    problem: Problem,
    tokens: Floats,
    tp: Ints,
    sp: Ints,
    linear: LinearTimes,
    blocks: float | Floats = 2,
) -> tuple[Exposure, Exposure]:
    """Return the forward and backward tensor-parallel time of one layer, and what is exposed.

    x = 2 b s h bytes, twice that in fp32. Without SP two all-reduces of x each way; with it two
    all-gathers and two reduce-scatters forward, the same backward, and two more all-gathers where
    the stack keeps only the shard of its inputs (`sp_regather`). What is hidden depends on the
    stack: `bulk` runs the input gradient's reduction beside the weight gradient of the
    column-parallel layers, and the second gather beside their data gradient; `userbuffers` also
    pipes the others through their own GEMM in tp pieces; `pieces` (PyTorch's async TP) pipes every
    second one through its own, half of the GEMMs (without SP it is `bulk`); `none` hides nothing.
    Pieces are written into the memory of peers: a group over several domains has `bulk` instead.
    These are the `blocks` = 2 of a dense layer, attention and MLP; an expert layer without shared
    experts has one, and half of all that.

    Source: Megatron-LM core/tensor_parallel/layers.py (order of operations), Korthikanti et al.
    2022 section 4.2 (volumes). Left out: the loss of GEMM rate by cutting it into pieces.
    """
    stack, t = problem.stack, np.asarray(tp, dtype=np.float64)
    group = tensor_parallel_group(problem, tp)
    x = problem.job.recipe.activation_bytes * tokens * problem.shape.hidden
    gather = tp_collective_s(problem, "all-gather", x, group)
    reduce = tp_collective_s(problem, "all-reduce", x, group)
    regather = blocks * gather if stack.sp_regather else 0 * gather
    with_sp, on = np.asarray(sp) > 0, np.asarray(sp) == SP_OVERLAPPED
    forward = np.where(with_sp, 2 * blocks * gather, blocks * reduce)
    backward = np.where(with_sp, 2 * blocks * gather + regather, blocks * reduce)

    def exposed(kind: str) -> tuple[Floats, Floats]:
        if kind == "none":
            return forward, backward
        input_grad = np.where(with_sp, blocks * gather, blocks * reduce)
        behind = _behind(input_grad, linear.column_wgrad_s)
        behind = behind + np.where(with_sp, _behind(regather, linear.column_dgrad_s), 0.0)
        output_grad = np.where(with_sp, blocks * gather, 0.0)
        bulk, apart = behind + output_grad, group.n_domains > 1
        if kind == "pieces":
            ahead = _half_piped(forward, linear.both.forward_s / 2, t)
            after = _half_piped(backward, linear.both.backward_s / 2, t)
            cut = with_sp & ~apart
            return np.where(cut, ahead, forward), np.where(cut, after, bulk)
        if kind == "userbuffers":
            ahead = _pieces(blocks * gather, linear.column_forward_s, t)
            ahead = ahead + _pieces(blocks * gather, linear.row_forward_s, t)
            piped = _pieces(blocks * gather, linear.row_dgrad_s, t)
            after = behind + np.where(with_sp, piped, 0.0)
            return np.where(with_sp & ~apart, ahead, forward), np.where(apart, bulk, after)
        return forward, bulk

    usual = exposed(stack.tp_overlap)
    if stack.tp_overlap_on and on.any():
        pieces = exposed(stack.tp_overlap_on)
        usual = np.where(on, pieces[0], usual[0]), np.where(on, pieces[1], usual[1])
    return Exposure(forward, usual[0]), Exposure(backward, usual[1])


def loss_calls(stack: StackProfile) -> int:
    """Return the all-reduces of a vocabulary-parallel loss, which sum three fp32 numbers a token.

    Largest logit, logit of the label, sum of exponentials; a fused loss sends the last two at
    once. Source: Megatron-LM core/tensor_parallel/cross_entropy.py, core/fusions/
    fused_cross_entropy.py.
    """
    return 2 if stack.fused_loss else 3


def end_times(
    problem: Problem, tokens: Floats, tp: Ints, sp: Ints
) -> tuple[Floats, Floats, Floats]:
    """Return the exposed time of the ends' collectives: embedding, head forward, head backward.

    Embedding: one reduce-scatter of x forward and one all-gather backward with SP, one
    all-reduce forward without. Head: one all-gather forward and one reduce-scatter backward with
    SP, one all-reduce backward without; the vocabulary-parallel loss adds `loss_calls` all-reduces
    of 12 bytes a token together, or, where the stack gathers its logits, one all-gather of 2 V
    bytes a token.
    Source: Megatron-LM core/tensor_parallel/{layers,cross_entropy}.py.
    """
    group = tensor_parallel_group(problem, tp)
    x = problem.job.recipe.activation_bytes * tokens * problem.shape.hidden
    gather = tp_collective_s(problem, "all-gather", x, group)
    reduce = tp_collective_s(problem, "all-reduce", x, group)
    if problem.stack.logits_sharded:
        calls = loss_calls(problem.stack)
        loss = calls * tp_collective_s(problem, "all-reduce", 12.0 * tokens / calls, group)
    else:
        width = problem.job.recipe.activation_bytes
        logits = width * tokens * padded_vocab(problem.shape, tp)
        loss = tp_collective_s(problem, "all-gather", logits, group)
    with_sp = np.asarray(sp) > 0
    embedding = np.where(with_sp, 2 * gather, reduce)
    head_forward = np.where(with_sp, gather, 0.0) + loss
    return embedding, head_forward, np.where(with_sp, gather, reduce)
