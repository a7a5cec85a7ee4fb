"""All that depends on how one layer is split, on mbs and sp: its times, its bytes, the ends'."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodels import memory
from costmodels.comm import context_parallel
from costmodels.comm.context_parallel import ContextSplit
from costmodels.comm.exposure import Exposure
from costmodels.comm.tensor_parallel import end_times, layer_exposures
from costmodels.layers import experts
from costmodels.layers.compute import (
    ForwardBackward,
    attention_times,
    elementwise_times,
    embedding_times,
    head_times,
    head_weight_grad_s,
    linear_times,
    mtp_times,
)
from costmodels.layers.factor import distinct
from costmodels.layers.recompute import (
    Core,
    ModuleTerms,
    SetTerms,
    module_terms,
    routed_terms,
    set_terms,
)
from costmodels.plans import ShapeTable
from costmodels.problem import Problem
from costmodels.stacks import StackProfile

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

HOST_FORWARD_SHARE = 1 / 3
"""Share of a layer's launch time that falls on the forward: it has half the kernels."""


@dataclass(frozen=True, slots=True)
class ExpertLayerTerms:
    """An expert layer, where it differs from a dense one; arrays `(n_distinct,)`."""

    linear: ForwardBackward
    """Attention and shared experts."""
    elementwise: ForwardBackward
    """The same."""
    routed: ForwardBackward
    """Router, permutation, products and activation of the routed experts."""
    exchange: ForwardBackward
    """All-to-alls over ep and collectives over etp."""
    tp_forward: Exposure
    tp_backward: Exposure
    tax: ForwardBackward
    host: ForwardBackward
    layer: ForwardBackward
    """All of one layer, its attention included."""
    recompute_full_s: Floats
    kept_bytes: Floats
    modules: ModuleTerms
    working_bytes: Floats
    scratch_bytes: Floats
    """Beyond those of a dense layer, or of attention where no layer is dense."""


@dataclass(frozen=True, slots=True)
class LayerTerms:
    """Per micro-batch and device, for each distinct (split, mbs, sp); arrays `(n_distinct,)`."""

    linear: ForwardBackward
    attention: ForwardBackward
    elementwise: ForwardBackward
    tp_forward: Exposure
    tp_backward: Exposure
    cp_forward: Exposure
    cp_backward: Exposure
    tax: ForwardBackward
    """Slowdown of compute beside hidden tensor- and context-parallel traffic."""
    host: ForwardBackward
    """What the host adds when it launches more slowly than the device computes."""
    embedding: ForwardBackward
    """With its collectives."""
    head: ForwardBackward
    """With its collectives."""
    embedding_tp: ForwardBackward
    """The collectives in `embedding`."""
    head_cp: ForwardBackward
    """The exchange of keys and values in `head`: that of the modules of multi-token prediction."""
    head_ep: ForwardBackward
    """The exchange of tokens between experts in `head`, of the same modules."""
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
    modules: ModuleTerms
    """What recomputing each module alone takes and leaves out."""
    kept_bytes: Floats
    """Activations of one layer, scores included where they are stored."""
    checkpoint_bytes: Floats
    working_bytes: Floats
    """Temporaries of one layer's backward."""
    scratch_bytes: Floats
    """Scratch weight gradients, held for good."""
    queued_bytes: Floats
    """Full-width tensors of collectives that are not yet free, where the host is far ahead."""
    logits_bytes: Floats
    """Logits and the final norm's input and output, one micro-batch."""
    gathered_bytes: Floats
    """The part of them that only the gather over tp needs."""
    embedding_bytes: Floats
    """Token ids and dropout mask, per micro-batch in flight on the first stage."""
    message_bytes: Floats
    """One activation tensor between two pipeline ranks."""
    experts: ExpertLayerTerms | None = None
    """The expert layers; the terms above are then those of the dense layers."""


def host_s(problem: Problem, tp: Ints) -> Floats:
    """Return the least time in which the host gets one layer launched, both directions, seconds.

    The stack's time per layer, `host_share_without_tp` of it where there is no collective to
    launch and launching them counts.
    """
    stack = problem.stack
    alone = stack.host_share_without_tp if stack.launches_collectives else 1.0
    return np.where(np.asarray(tp) > 1, 1.0, alone) * stack.host_s_per_layer


@dataclass(frozen=True, slots=True)
class SplitDegrees:
    """Over how many ranks one layer is split; arrays of one length."""

    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    cp_comm: Ints
    """Index into `CP_COMMS`."""

    @property
    def context(self) -> ContextSplit:
        """The part of it that context parallelism depends on."""
        return ContextSplit(self.tp, self.cp, self.cp_comm)

    @staticmethod
    def of_shapes(shapes: ShapeTable) -> "SplitDegrees":
        """Return the split of every shape."""
        return SplitDegrees(shapes.tp, shapes.cp, shapes.ep, shapes.etp, shapes.cp_comm)

    @staticmethod
    def of_tp(tp: Ints) -> "SplitDegrees":
        """Return splits by tensor parallelism alone."""
        one = np.ones_like(tp)
        return SplitDegrees(tp, one, one, one, 0 * one)


def _waits_and_tax(
    stack: StackProfile, ahead: tuple[Exposure, Exposure], after: tuple[Exposure, Exposure]
) -> tuple[ForwardBackward, ForwardBackward]:
    """Return what a layer waits for tp and cp, and how the hidden rest slows its compute."""
    exposed = ForwardBackward(*(tp.exposed_s + cp.exposed_s for tp, cp in (ahead, after)))
    slowdown = stack.overlap_slowdown
    tax = ForwardBackward(*(slowdown * (tp.hidden_s + cp.hidden_s) for tp, cp in (ahead, after)))
    return exposed, tax


def _host_waits(launch_s: Floats, device: ForwardBackward) -> ForwardBackward:
    """Return what the host adds to a layer that the device finishes before it is launched."""
    missing = np.maximum(0.0, launch_s - device.total_s)
    return ForwardBackward(HOST_FORWARD_SHARE * missing, (1 - HOST_FORWARD_SHARE) * missing)


def layer_terms(problem: Problem, split: SplitDegrees, mbs: Ints, sp: Ints) -> LayerTerms:
    """Return the terms of each (split, mbs, sp); arrays of one length."""
    shape, job, stack = problem.shape, problem.job, problem.stack
    part, tp = problem.pool.accelerator, split.tp
    tokens = np.asarray(mbs, dtype=np.float64) * job.seq_len / split.cp
    gemms = linear_times(shape, job, part, stack, tokens, tp)
    context = split.context
    kernels = context_parallel.attention_kernels(context)
    attention = attention_times(shape, job, part, stack, tokens, tp, kernels)
    cp_forward, cp_backward = context_parallel.exchange_times(problem, context, tokens, attention)
    attention = attention + context_parallel.merge_times(problem, context, tokens)
    elementwise = elementwise_times(shape, part, stack, tokens, tp, sp)
    forward, backward = layer_exposures(problem, tokens, tp, sp, gemms)
    exposed, tax = _waits_and_tax(stack, (forward, cp_forward), (backward, cp_backward))
    device = gemms.both + attention + elementwise + exposed + tax
    launch = host_s(problem, tp)
    host = _host_waits(launch, device)
    embed_comm, head_fwd_comm, head_bwd_comm = end_times(problem, tokens, tp, sp)
    embedding_tp = ForwardBackward(embed_comm / 2, embed_comm / 2)
    head_tp = ForwardBackward(head_fwd_comm, head_bwd_comm)
    head = head_times(shape, job, part, stack, tokens, tp) + head_tp
    layer, routed = device + host, None
    activations = (shape, stack, tokens, job.seq_len, tp, sp)
    with_scores = memory.layer_activation_bytes(*activations, np.ones_like(tokens))
    scores = with_scores - memory.layer_activation_bytes(*activations, np.zeros_like(tokens))
    recomputed = Core(attention.forward_s + cp_forward.exposed_s, scores)
    buffers = context_parallel.buffer_bytes(problem, context, tokens)
    sent = context_parallel.kept_bytes(problem, context, tokens)
    working = memory.working_bytes(shape, tokens, tp, buffers)
    scratch = memory.scratch_bytes(shape, stack, tp)
    if shape.n_expert_layers:
        core = AttentionBlock(attention, cp_forward, cp_backward, sent, buffers, recomputed)
        routed = expert_layer_terms(problem, split, tokens, sp, core)
        if shape.n_expert_layers == shape.layers:
            working = routed.working_bytes
            scratch = memory.scratch_bytes(replace(shape, ffn=0), stack, tp)
        working = np.maximum(working, routed.working_bytes)
        scratch = scratch + routed.scratch_bytes
    nothing = ForwardBackward(np.zeros_like(tokens), np.zeros_like(tokens))
    head_cp, head_ep = nothing, nothing
    if shape.mtp_layers:
        last, waits = layer, ForwardBackward(forward.exposed_s, backward.exposed_s)
        if routed and shape.expert_layers[-1]:
            last, again_f, again_b = routed.layer, routed.tp_forward, routed.tp_backward
            waits = ForwardBackward(again_f.exposed_s, again_b.exposed_s)
            head_ep = routed.exchange * float(shape.mtp_layers)
        n_more = float(shape.mtp_layers)
        module = mtp_times(shape, job, part, stack, tokens, tp, sp)
        head = head + (head + last + module) * n_more
        head_tp = head_tp + (head_tp + waits) * n_more
        head_cp = ForwardBackward(cp_forward.exposed_s, cp_backward.exposed_s) * n_more
    parts = np.where(np.asarray(sp) > 0, tp, 1).astype(np.float64)
    masks = shape.hidden / parts if shape.dropout else 0.0
    again = gemms.both.forward_s + attention.forward_s + elementwise.forward_s + exposed.forward_s
    return LayerTerms(
        linear=gemms.both,
        attention=attention,
        elementwise=elementwise,
        tp_forward=forward,
        tp_backward=backward,
        cp_forward=cp_forward,
        cp_backward=cp_backward,
        tax=tax,
        host=host,
        embedding=embedding_times(shape, part, tokens, tp, sp) + embedding_tp,
        head=head,
        embedding_tp=embedding_tp,
        head_tp=head_tp,
        head_cp=head_cp,
        head_ep=head_ep,
        layer=layer,
        weight_grad_s=gemms.column_wgrad_s + gemms.row_wgrad_s,
        head_weight_grad_s=head_weight_grad_s(shape, job, part, tokens, tp),
        recompute_full_s=np.maximum(again, HOST_FORWARD_SHARE * launch),
        modules=module_terms(problem, tokens, tp, sp, recomputed),
        kept_bytes=with_scores + sent,
        checkpoint_bytes=memory.checkpoint_bytes(shape, tokens, tp, sp),
        working_bytes=working,
        scratch_bytes=scratch,
        queued_bytes=memory.queued_bytes(shape, stack, tokens, tp),
        logits_bytes=(1.0 + shape.mtp_layers)
        * (memory.logits_bytes(shape, stack, tokens, tp) + 4.0 * tokens * shape.hidden / parts),
        gathered_bytes=(1.0 + shape.mtp_layers) * memory.gathered_bytes(shape, stack, tokens, tp),
        embedding_bytes=tokens * (8.0 + masks),
        message_bytes=2.0 * tokens * shape.hidden / (tp if stack.p2p_scatter else parts),
        experts=routed,
    )


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """What every layer's attention costs, whatever its MLP; arrays of one length."""

    compute: ForwardBackward
    cp_forward: Exposure
    cp_backward: Exposure
    kept_bytes: Floats
    """What the exchange keeps for the backward."""
    buffer_bytes: Floats
    recomputed: Core


def expert_layer_terms(
    problem: Problem, split: SplitDegrees, tokens: Floats, sp: Ints, core: AttentionBlock
) -> ExpertLayerTerms:
    """Return the terms of a layer with experts.

    A layer whose MLP is the shared experts (or that has none), and the routed experts; nothing of
    the exchange runs beside compute.
    """
    shape, job, stack = problem.shape.without_experts(), problem.job, problem.stack
    part, tp, degrees = problem.pool.accelerator, split.tp, (split.tp, sp, split.ep, split.etp)
    gemms = linear_times(shape, job, part, stack, tokens, tp)
    elementwise = elementwise_times(shape, part, stack, tokens, tp, sp)
    blocks = 2 if shape.ffn else 1
    forward, backward = layer_exposures(problem, tokens, tp, sp, gemms, blocks)
    routed = experts.expert_times(problem, tokens, *degrees)
    exposed, tax = _waits_and_tax(stack, (forward, core.cp_forward), (backward, core.cp_backward))
    device = gemms.both + core.compute + elementwise + exposed + tax
    device = device + routed.compute + routed.exchange
    launch = host_s(problem, tp) + experts.expert_host_s(problem)
    host = _host_waits(launch, device)
    ones = np.ones_like(tokens)
    of_experts = experts.expert_kept_bytes(problem, tokens, *degrees)
    alone = replace(shape, ffn=0)
    shared = memory.scratch_bytes(shape, stack, tp) - memory.scratch_bytes(alone, stack, tp)
    recomputed = device.forward_s - tax.forward_s
    return ExpertLayerTerms(
        linear=gemms.both,
        elementwise=elementwise,
        routed=routed.compute,
        exchange=routed.exchange,
        tp_forward=forward,
        tp_backward=backward,
        tax=tax,
        host=host,
        layer=device + host,
        recompute_full_s=np.maximum(recomputed, HOST_FORWARD_SHARE * launch),
        kept_bytes=of_experts
        + core.kept_bytes
        + memory.layer_activation_bytes(shape, stack, tokens, job.seq_len, tp, sp, ones),
        modules=module_terms(
            problem,
            tokens,
            tp,
            sp,
            core.recomputed,
            routed_terms(problem, tokens, degrees, routed, of_experts),
        ),
        working_bytes=memory.working_bytes(shape, tokens, tp, core.buffer_bytes)
        + experts.expert_working_bytes(problem, tokens, *degrees),
        scratch_bytes=shared + experts.expert_scratch_bytes(problem, split.etp),
    )


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Layer terms of a grid of splits, micro-batches and sp, for tables of the same shapes."""

    terms: LayerTerms
    split_code: NDArray[np.intp]
    """Shape -> position of its split in the grid."""
    mbs_code: NDArray[np.intp]
    """Micro-batch -> position in the grid; unused sizes hold 0."""
    n_mbs: int
    n_sp: int
    """Values of sp in the grid: 2, or 3 with `tp_overlap`."""
    sets: SetTerms
    """The same of the sets of recomputed modules in use."""

    def index(self, shape: Ints, mbs: Ints, sp: Ints) -> NDArray[np.intp]:
        """Return where each (shape, mbs, sp) stands in `terms`, `(n,)`."""
        at = self.split_code[shape] * self.n_mbs + self.mbs_code[mbs]
        return np.asarray(at * self.n_sp + sp)


def sets_of(problem: Problem, terms: LayerTerms, codes: Ints) -> SetTerms:
    """Return the terms of some sets of recomputed modules (`axes.modules_code`)."""
    shape, routed = problem.shape, terms.experts
    return set_terms(
        codes,
        terms.modules,
        terms.kept_bytes,
        routed.modules if routed else None,
        routed.kept_bytes if routed else None,
        shape.n_expert_layers == shape.layers,
    )


def layer_table(
    problem: Problem, shapes: ShapeTable, mbs: Ints, modules: Ints, n_sp: int = 2
) -> LayerTable:
    """Return the layer terms of the splits of `shapes` with the distinct values of `mbs`.

    `n_sp` is 3 where plans with `tp_overlap` are among them.

    `modules` are the sets of recomputed modules that plans over them may have, as
    `axes.modules_code` numbers them.
    """
    result = distinct((shapes.tp, shapes.cp, shapes.ep, shapes.etp, shapes.cp_comm))
    sizes = np.unique(mbs)
    mbs_code = np.zeros(int(sizes[-1]) + 1, dtype=np.intp)
    mbs_code[sizes] = np.arange(len(sizes))
    n_splits = len(result.columns[0])
    grid = np.meshgrid(np.arange(n_splits), sizes, np.arange(n_sp), indexing="ij")
    of_split, of_mbs, of_sp = (axis.reshape(-1).astype(np.int32) for axis in grid)
    split = SplitDegrees(*(column[of_split] for column in result.columns))
    terms = layer_terms(problem, split, of_mbs, of_sp)
    sets = sets_of(problem, terms, modules)
    return LayerTable(terms, result.index, mbs_code, len(sizes), n_sp, sets)
