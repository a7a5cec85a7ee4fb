"""All that depends on (tp, mbs, sp) alone: one layer's times and bytes, and those of the ends."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels import memory
from costmodels.compute import (
    ForwardBackward,
    attention_times,
    elementwise_times,
    embedding_times,
    head_times,
    head_weight_grad_s,
    linear_times,
)
from costmodels.problem import Problem
from costmodels.tensor_parallel import Exposure, end_times, layer_exposures

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

HOST_SHARE_WITHOUT_TP = 0.6
"""Launch time of a layer without tensor-parallel collectives over that with them (fit over
measured host-bound runs; a layer launches two to four collectives each way)."""
HOST_FORWARD_SHARE = 1 / 3
"""Share of a layer's launch time that falls on the forward: it has half the kernels."""


@dataclass(frozen=True, slots=True)
class LayerTerms:
    """Per micro-batch and device, for each distinct (tp, mbs, sp); arrays `(n_distinct,)`."""

    linear: ForwardBackward
    attention: ForwardBackward
    elementwise: ForwardBackward
    tp_forward: Exposure
    tp_backward: Exposure
    tax: ForwardBackward
    """Slowdown of compute beside hidden tensor-parallel traffic."""
    host: ForwardBackward
    """What the host adds when it launches more slowly than the device computes."""
    embedding: ForwardBackward
    """With its collectives."""
    head: ForwardBackward
    """With its collectives."""
    embedding_tp: ForwardBackward
    """The collectives in `embedding`."""
    head_tp: ForwardBackward
    """The collectives in `head`."""
    layer: ForwardBackward
    """All of one layer: the sum of the terms above it."""
    weight_grad_s: Floats
    """The part of a layer's backward that can wait: the weight gradients of its linear layers."""
    head_weight_grad_s: Floats
    """The same of the head."""
    recompute_full_s: Floats
    """One layer's forward again, with its collectives, at least the host's time for it."""
    recompute_core_s: Floats
    """The attention core's forward again."""
    kept_bytes: Floats
    """Activations of one layer, scores included where they are stored."""
    kept_core_bytes: Floats
    """The same with the attention core recomputed."""
    checkpoint_bytes: Floats
    working_bytes: Floats
    """Temporaries of one layer's backward."""
    scratch_bytes: Floats
    """Scratch weight gradients, held for good."""
    logits_bytes: Floats
    """Logits and the final norm's input and output, one micro-batch."""
    embedding_bytes: Floats
    """Token ids and dropout mask, per micro-batch in flight on the first stage."""
    message_bytes: Floats
    """One activation tensor between two pipeline ranks."""


def host_s(problem: Problem, tp: Ints) -> Floats:
    """Return the least time in which the host gets one layer launched, both directions, seconds.

    The stack's time per layer, `HOST_SHARE_WITHOUT_TP` of it where there is no collective to
    launch.
    """
    share = np.where(np.asarray(tp) > 1, 1.0, HOST_SHARE_WITHOUT_TP)
    return share * problem.stack.host_s_per_layer


def layer_terms(problem: Problem, tp: Ints, mbs: Ints, sp: Ints) -> LayerTerms:
    """Return the terms of each (tp, mbs, sp); arrays of one length."""
    shape, job, stack = problem.shape, problem.job, problem.stack
    part = problem.pool.accelerator
    tokens = np.asarray(mbs, dtype=np.float64) * job.seq_len
    gemms = linear_times(shape, job, part, tokens, tp)
    attention = attention_times(shape, job, part, stack, tokens, tp)
    elementwise = elementwise_times(shape, part, stack, tokens, tp, sp)
    forward, backward = layer_exposures(problem, tokens, tp, sp, gemms)
    slowdown = stack.overlap_slowdown
    tax = ForwardBackward(slowdown * forward.hidden_s, slowdown * backward.hidden_s)
    exposed = ForwardBackward(forward.exposed_s, backward.exposed_s)
    device = gemms.both + attention + elementwise + exposed + tax
    launch = host_s(problem, tp)
    missing = np.maximum(0.0, launch - device.total_s)
    host = ForwardBackward(HOST_FORWARD_SHARE * missing, (1 - HOST_FORWARD_SHARE) * missing)
    embed_comm, head_fwd_comm, head_bwd_comm = end_times(problem, tokens, tp, sp)
    embedding_tp = ForwardBackward(embed_comm / 2, embed_comm / 2)
    head_tp = ForwardBackward(head_fwd_comm, head_bwd_comm)
    split = np.where(np.asarray(sp) > 0, tp, 1).astype(np.float64)
    masks = shape.hidden / split if shape.dropout else 0.0
    ones, zeros = np.ones_like(tokens), np.zeros_like(tokens)
    again = gemms.both.forward_s + attention.forward_s + elementwise.forward_s + forward.exposed_s
    return LayerTerms(
        linear=gemms.both,
        attention=attention,
        elementwise=elementwise,
        tp_forward=forward,
        tp_backward=backward,
        tax=tax,
        host=host,
        embedding=embedding_times(shape, part, tokens, tp, sp) + embedding_tp,
        head=head_times(shape, job, part, stack, tokens, tp) + head_tp,
        embedding_tp=embedding_tp,
        head_tp=head_tp,
        layer=device + host,
        weight_grad_s=gemms.column_wgrad_s + gemms.row_wgrad_s,
        head_weight_grad_s=head_weight_grad_s(shape, job, part, tokens, tp),
        recompute_full_s=np.maximum(again, HOST_FORWARD_SHARE * launch),
        recompute_core_s=attention.forward_s,
        kept_bytes=memory.layer_activation_bytes(shape, stack, tokens, job.seq_len, tp, sp, ones),
        kept_core_bytes=memory.layer_activation_bytes(
            shape, stack, tokens, job.seq_len, tp, sp, zeros
        ),
        checkpoint_bytes=memory.checkpoint_bytes(shape, tokens, tp, sp),
        working_bytes=memory.working_bytes(shape, tokens, tp),
        scratch_bytes=memory.scratch_bytes(shape, stack, tp),
        logits_bytes=memory.logits_bytes(shape, stack, tokens, tp)
        + 4.0 * tokens * shape.hidden / split,
        embedding_bytes=tokens * (8.0 + masks),
        message_bytes=2.0 * tokens * shape.hidden / (tp if stack.p2p_scatter else split),
    )


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Layer terms of a grid of (tp, mbs, sp), computed once for many tables of plans."""

    terms: LayerTerms
    tp_code: NDArray[np.intp]
    """tp -> position in the grid; unused degrees hold 0."""
    mbs_code: NDArray[np.intp]
    n_mbs: int

    def index(self, tp: Ints, mbs: Ints, sp: Ints) -> NDArray[np.intp]:
        """Return where each (tp, mbs, sp) stands in `terms`, `(n,)`."""
        return np.asarray((self.tp_code[tp] * self.n_mbs + self.mbs_code[mbs]) * 2 + sp)


def layer_table(problem: Problem, tp: Ints, mbs: Ints) -> LayerTable:
    """Return the layer terms of every combination of the distinct values of `tp` and `mbs`."""
    degrees, sizes = np.unique(tp), np.unique(mbs)
    tp_code = np.zeros(int(degrees[-1]) + 1, dtype=np.intp)
    mbs_code = np.zeros(int(sizes[-1]) + 1, dtype=np.intp)
    tp_code[degrees], mbs_code[sizes] = np.arange(len(degrees)), np.arange(len(sizes))
    grid = np.meshgrid(degrees, sizes, np.arange(2), indexing="ij")
    columns = [axis.reshape(-1).astype(np.int32) for axis in grid]
    return LayerTable(layer_terms(problem, *columns), tp_code, mbs_code, len(sizes))
