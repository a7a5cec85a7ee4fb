"""All that depends on how one layer is split, on mbs and mode: its times, its bytes, the ends'."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels import memory
from costmodels.comm.tensor_parallel import end_times
from costmodels.layers.compute import (
    ForwardBackward,
    embedding_times,
    head_times,
    head_weight_grad_s,
    mtp_times,
)
from costmodels.layers.factor import distinct
from costmodels.layers.kinds import kinds_of
from costmodels.layers.layer_kind import (
    ExpertLayerTerms,
    KindTerms,
    LayerInputs,
    SplitDegrees,
)
from costmodels.layers.recompute import KeptByKind, SetTerms, set_terms
from costmodels.layers.streams.ends import collapse_bytes, collapse_s, mtp_streams_s, n_streams
from costmodels.layers.sublayers.injected import stream_times
from costmodels.modes import ModeRows, ModeTable
from costmodels.plans import ShapeTable
from costmodels.problem import Problem
from costmodels.shapes import DENSE, MOE
from costmodels.towers.encoder import encoder_end_bytes, encoder_end_times
from costmodels.towers.encoder_layers import encoder_inputs
from costmodels.towers.latents import end_terms
from costmodels.towers.vision import TowerTerms, tower_terms
from costmodels.tuning.reference import ends_with_reference, with_reference

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class LayerTerms(KindTerms):
    """A layer of the model's first kind, the other kinds, and the ends of the model.

    Per micro-batch and device, for each distinct (split, mbs, mode); arrays `(n_distinct,)`.
    `working_bytes` and `scratch_bytes` are those of all kinds together.
    """

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
    head_weight_grad_s: Floats
    """The part of the head's backward that can wait: its weight gradient."""
    checkpoint_bytes: Floats
    """What a fully recomputed layer keeps."""
    queued_bytes: Floats
    """Full-width tensors of collectives that are not yet free, where the host is far ahead."""
    logits_bytes: Floats
    """Logits and the final norm's input and output, one micro-batch."""
    gathered_bytes: Floats
    """The part of them that only the gather over tp needs."""
    ring_bytes: Floats
    """The logits once more, beside their gradient (`memory.ring_bytes`)."""
    embedding_bytes: Floats
    """Token ids and dropout mask, per micro-batch in flight on the first stage."""
    message_bytes: Floats
    """One activation tensor between two pipeline ranks."""
    others: tuple[KindTerms, ...] = ()
    """The other kinds of layers, in the order of `ModelShape.kinds`."""
    tower: TowerTerms | None = None
    """A vision tower before the embedding, whose bytes are in `embedding_bytes`."""

    @property
    def before_layers(self) -> ForwardBackward:
        """Embedding and vision tower, on the first stage."""
        return self.embedding + self.tower.total if self.tower else self.embedding

    @property
    def experts(self) -> ExpertLayerTerms | None:
        """The layers with routed experts; None without."""
        return next((x for x in self.others if isinstance(x, ExpertLayerTerms)), None)

    @property
    def of_kinds(self) -> tuple[KindTerms, ...]:
        """The layers of each kind, in the order of `ModelShape.kinds`."""
        return (self, *self.others)


@dataclass(frozen=True, slots=True)
class _Head:
    """The head of the model and the modules of multi-token prediction beside it."""

    total: ForwardBackward
    tp: ForwardBackward
    cp: ForwardBackward
    ep: ForwardBackward


def _head(inputs: LayerInputs, collectives: ForwardBackward, last: KindTerms) -> _Head:
    """Return the head with its collectives; modules of multi-token prediction are like `last`."""
    problem, tokens, tp = inputs.problem, inputs.tokens, inputs.split.tp
    shape, job, stack = problem.shape, problem.job, problem.stack
    accelerator, zeros = problem.pool.accelerator, np.zeros_like(tokens)
    nothing = ForwardBackward(zeros, zeros)
    head = head_times(shape, job, accelerator, stack, tokens, tp) + collectives
    if shape.residual_streams:
        head = head + collapse_s(inputs)
    if not shape.mtp_layers:
        return _Head(head, collectives, nothing, nothing)
    n_more = float(shape.mtp_layers)
    module = mtp_times(problem, tokens, tp, inputs.sp)
    if shape.residual_streams:
        module = module + mtp_streams_s(inputs)
    waits = ForwardBackward(last.tp_forward.exposed_s, last.tp_backward.exposed_s)
    cp = ForwardBackward(last.cp_forward.exposed_s, last.cp_backward.exposed_s)
    exchange = last.exchange if isinstance(last, ExpertLayerTerms) else None
    return _Head(
        total=head + (head + last.layer + module) * n_more,
        tp=collectives + (collectives + waits) * n_more,
        cp=cp * n_more,
        ep=exchange * n_more if exchange else nothing,
    )


def mean_checkpoint_bytes(inputs: LayerInputs, own: Floats) -> Floats:
    """Return the mean input of a layer where those of an encoder have inputs of their own, bytes.

    Exact where all layers or none are recomputed.
    """
    shape, encoder = inputs.problem.shape, encoder_inputs(inputs)
    of_encoder = memory.checkpoint_bytes(
        encoder.problem.shape, encoder.tokens, inputs.split.tp, inputs.sp, inputs.element_bytes
    )
    frac = encoder.problem.shape.layers / shape.layers
    return np.asarray(frac * of_encoder + (1.0 - frac) * own)


def _vocabulary_ends(inputs: LayerInputs, last: KindTerms) -> dict[str, Any]:
    """Return the fields of `LayerTerms` that are embedding and head, `last` the last layer."""
    problem, tokens, tp, sp = inputs.problem, inputs.tokens, inputs.split.tp, inputs.sp
    shape, job, stack = problem.shape, problem.job, problem.stack
    embed_comm, *of_head = end_times(problem, tokens, tp, sp)
    embedding_tp = ForwardBackward(embed_comm / 2, embed_comm / 2)
    head = _head(inputs, ForwardBackward(*of_head), last)
    parts = np.where(np.asarray(sp) > 0, tp, 1).astype(np.float64)
    masks = shape.hidden / parts if shape.dropout else 0.0
    accelerator, n_heads = problem.pool.accelerator, 1.0 + shape.mtp_layers
    normed = 2.0 * inputs.element_bytes * tokens * shape.hidden / parts
    logits = memory.logits_bytes(shape, stack, tokens, tp) + normed
    if shape.head_transform:  # the inputs of its product, its activation and its norm
        logits = logits + 1.5 * normed
    if shape.residual_streams:
        logits = logits + collapse_bytes(shape, tokens, parts, inputs.element_bytes)
    embedding = embedding_times(shape, accelerator, tokens, tp, sp) + embedding_tp
    if job.tuning:  # a frozen table has no gradient, nor does what is looked up in it
        embedding_tp = replace(embedding_tp, backward_s=np.zeros_like(tokens))
        embedding = replace(embedding, backward_s=np.zeros_like(tokens))
    embedding_bytes = tokens * (8.0 + masks)
    if shape.per_layer and shape.per_layer.streams > 1:
        more = stream_times(inputs)
        embedding, head = embedding + more, replace(head, total=head.total + more)
    tower = tower_terms(inputs) if shape.vision else None
    if tower:
        embedding_bytes = embedding_bytes + tower.kept_bytes
    if shape.encoder:
        embedding = embedding + encoder_end_times(inputs)
        embedding_bytes = embedding_bytes + encoder_end_bytes(inputs)
    return {
        "embedding": embedding,
        "head": head.total,
        "embedding_tp": embedding_tp,
        "head_cp": head.cp,
        "head_ep": head.ep,
        "head_tp": head.tp,
        "head_weight_grad_s": head_weight_grad_s(shape, job, accelerator, tokens, tp),
        "logits_bytes": n_heads * logits,
        "gathered_bytes": n_heads * memory.gathered_bytes(shape, stack, tokens, tp),
        "ring_bytes": memory.ring_bytes(shape, stack, tokens, tp),
        "embedding_bytes": embedding_bytes,
        "tower": tower,
    }


def _latent_ends(inputs: LayerInputs) -> dict[str, Any]:
    """Return the same of a diffusion transformer, whose ends have no collectives."""
    ends, zeros = end_terms(inputs), np.zeros_like(inputs.tokens)
    nothing = ForwardBackward(zeros, zeros)
    return {
        "embedding": ends.first,
        "head": ends.last,
        **dict.fromkeys(("embedding_tp", "head_cp", "head_ep", "head_tp"), nothing),
        "head_weight_grad_s": ends.last_weight_grad_s,
        "logits_bytes": ends.last_bytes,
        "gathered_bytes": zeros,
        "ring_bytes": zeros,
        "embedding_bytes": ends.first_bytes,
    }


def layer_terms(problem: Problem, split: SplitDegrees, mbs: Ints, modes: ModeRows) -> LayerTerms:
    """Return the terms of each (split, mbs, mode); arrays of one length."""
    sp = modes.sp
    shape, job, stack, tp = problem.shape, problem.job, problem.stack, split.tp
    tokens = np.asarray(mbs, dtype=np.float64) * job.seq_len / split.cp
    inputs = LayerInputs(problem, split, tokens, modes)
    first, *others = (kind.terms(inputs) for kind in kinds_of(shape))
    if job.has_reference:
        first, *others = (with_reference(x) for x in (first, *others))
    working, scratch = first.working_bytes, first.scratch_bytes
    if not shape.kind_counts[0]:
        working = others[0].working_bytes
        scratch = memory.scratch_bytes(replace(shape, ffn=0), stack, tp)
        if MOE not in shape.kinds:
            scratch = np.zeros_like(scratch)
    elif shape.kinds[0] != DENSE and MOE in shape.kinds:
        scratch = scratch + memory.scratch_bytes(replace(shape, ffn=0), stack, tp)
    for other in others:
        working = np.maximum(working, other.working_bytes)
        scratch = scratch + other.scratch_bytes
    last = (first, *others)[shape.layer_sequence[-1]]
    ends = _latent_ends(inputs) if shape.diffusion else _vocabulary_ends(inputs, last)
    ends = ends_with_reference(ends) if job.has_reference else ends
    parts = np.where(np.asarray(sp) > 0, tp, 1).astype(np.float64)
    width = inputs.element_bytes
    streams = n_streams(shape)
    checkpoint = memory.checkpoint_bytes(shape, tokens, tp, sp, width) * streams
    if shape.encoder:
        checkpoint = mean_checkpoint_bytes(inputs, checkpoint)
    if shape.per_layer:
        checkpoint = checkpoint * shape.per_layer.streams
    of_first = {field.name: getattr(first, field.name) for field in fields(KindTerms)}
    return LayerTerms(
        **of_first | {"working_bytes": working, "scratch_bytes": scratch},
        **ends,
        checkpoint_bytes=checkpoint,
        queued_bytes=memory.queued_bytes(shape, stack, tokens, tp, width),
        message_bytes=width
        * tokens
        * shape.hidden
        * streams
        / (tp if stack.p2p_scatter else parts),
        others=tuple(others),
    )


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Layer terms of a grid of splits, micro-batches and modes, for tables of the same shapes."""

    terms: LayerTerms
    split_code: NDArray[np.intp]
    """Shape -> position of its split in the grid."""
    mbs_code: NDArray[np.intp]
    """Micro-batch -> position in the grid; unused sizes hold 0."""
    n_mbs: int
    modes: ModeTable
    """The modes in the grid."""
    sets: SetTerms
    """The same of the sets of recomputed modules in use."""

    def index(self, shape: Ints, mbs: Ints, modes: ModeRows) -> NDArray[np.intp]:
        """Return where each (shape, mbs, mode) stands in `terms`, `(n,)`."""
        batch = self.split_code[shape] * self.n_mbs + self.mbs_code[mbs]
        return np.asarray(batch * len(self.modes) + self.modes.index(modes))


def sets_of(problem: Problem, terms: LayerTerms, codes: Ints) -> SetTerms:
    """Return the terms of some sets of recomputed modules (`axes.modules_code`)."""
    kinds = [KeptByKind(x.modules, x.kept_bytes) for x in terms.of_kinds]
    return set_terms(codes, kinds, is_first_present=problem.shape.kind_counts[0] > 0)


def layer_table(
    problem: Problem,
    shapes: ShapeTable,
    mbs: Ints,
    modules: Ints,
    modes: ModeTable = ModeTable(),
) -> LayerTable:
    """Return the layer terms of the splits of `shapes` with the distinct values of `mbs`.

    `modes` are those that plans over them may have, `modules` their sets of recomputed modules, as
    `axes.modules_code` numbers them.
    """
    result = distinct((shapes.tp, shapes.cp, shapes.ep, shapes.etp, shapes.cp_comm))
    sizes = np.unique(mbs)
    mbs_code = np.zeros(int(sizes[-1]) + 1, dtype=np.intp)
    mbs_code[sizes] = np.arange(len(sizes))
    n_splits = len(result.columns[0])
    grid = np.meshgrid(np.arange(n_splits), sizes, np.arange(len(modes)), indexing="ij")
    of_split, of_mbs, of_mode = (axis.reshape(-1).astype(np.int32) for axis in grid)
    split = SplitDegrees(*(column[of_split] for column in result.columns))
    terms = layer_terms(problem, split, of_mbs, modes.rows(of_mode))
    sets = sets_of(problem, terms, modules)
    return LayerTable(terms, result.index, mbs_code, len(sizes), modes, sets)
