"""Megatron-Core's gradient buckets: how many calls a rank's data-parallel traffic is cut into.

A buffer takes parameters from the last registered to the first and closes a bucket as soon as it
holds `limit` elements. Only the first chunk of the first pipeline stage is cut at all, and nothing
without overlap. Source: Megatron-LM core/distributed/{distributed_data_parallel,
param_and_grad_buffer}.py, core/optimizer/distrib_optimizer.py (0.17 to 0.19).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from costmodels.layers.kinds import MIXERS, kinds_of, present_kinds, sublayers
from costmodels.layers.layer_kind import LayerKind
from costmodels.layers.params import kv_heads_per_rank, padded_vocab
from costmodels.layers.streams.connections import connection_tensors
from costmodels.layers.sublayers.sublayer import Mixer
from costmodels.optimizers.matrices import attention_matrices
from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import StackProfile
from costmodels.towers.vision import patch_inputs, projector_widths, tower_shape


def n_buckets(sizes: Iterable[float], limit: float) -> int:
    """Return the buckets of tensors in the order in which their gradients come.

    >>> n_buckets([3, 3, 5, 1], 5), n_buckets([5, 5], 5)  # 3 + 3, 5, 1
    (3, 2)
    """
    closed, filled = 0, 0.0
    for size in sizes:
        filled += size
        if filled >= limit:
            closed, filled = closed + 1, 0.0
    return closed + (filled > 0)


def rank_buckets(
    shape: ModelShape, job: TrainingJob, stack: StackProfile, layout: Layout, rank: int
) -> tuple[int, int]:
    """Return the buckets of one pipeline rank: of routed experts, and of all else.

    Experts that are cut as all else (`in_one_buffer`) lie in the buckets of the rest; the first
    number is then the second.
    """
    chunks = layout.stages_of(rank)
    counts, starts = layout.stage_layers, np.cumsum((0, *layout.stage_layers))
    routed = [any(shape.expert_layers[starts[j] : starts[j] + counts[j]]) for j in chunks]
    together = in_one_buffer(layout) and any(routed)
    by_layer = len(chunks) if together else sum(routed), len(chunks)
    if rank or not layout.dp_overlap or layout.dp * layout.cp == 1:
        return by_layer
    j = chunks[0]
    kinds = [kinds_of(shape)[i] for i in shape.layer_sequence[starts[j] : starts[j] + counts[j]]]
    alone = layout.zero > 0 and shape.tied and layout.pp > 1
    tensors = _tower(shape, layout.tp)
    tensors += [] if alone else _embedding(shape, job, layout.tp)
    inside = _experts(shape, layout) if together else ()
    tensors += [size for kind in kinds for size in _layer(shape, layout.tp, kind, inside)]
    if layout.pp == 1:
        tensors += _head(shape, layout.tp)
    limit = bucket_limit(stack, layout.dp * layout.cp)
    dense = n_buckets(reversed(tensors), limit) + alone
    if together:
        return by_layer[0] - 1 + dense, by_layer[1] - 1 + dense
    own = [size for kind in kinds if kind.is_routed for size in _experts(shape, layout)]
    in_experts = n_buckets(reversed(own), limit)
    return by_layer[0] - routed[0] + in_experts, by_layer[1] - 1 + dense


def in_one_buffer(layout: Layout) -> bool:
    """Tell whether experts share the buffers of all else: over the same ranks, cut the same way.

    Source: Megatron-LM core/distributed/param_and_grad_buffer.py (group_params_for_buffers).
    """
    return layout.ep == 1 and layout.etp == layout.tp


def bucket_limit(stack: StackProfile, replicas: int) -> float:
    """Return how many elements close a bucket: max(40e6, 1e6 dp cp)."""
    return max(stack.bucket_params, stack.bucket_params_per_rank * replicas)


def _norm(shape: ModelShape, width: float) -> list[float]:
    return [width] if shape.norm == "rmsnorm" else [width, width]


def _linear(shape: ModelShape, rows: float, columns: float) -> list[float]:
    """Return a matrix with `rows` outputs, and its bias."""
    return [rows * columns, *([rows] * shape.bias)]


def _embedding(shape: ModelShape, job: TrainingJob, tp: int) -> list[float]:
    positions = max(shape.max_positions, job.seq_len) if shape.positions == "learned" else 0
    return [_vocabulary(shape, tp), *([positions * shape.hidden] * bool(positions))]


def _vocabulary(shape: ModelShape, tp: int) -> float:
    rows = padded_vocab(shape, np.array([tp], dtype=np.int32)).item()
    return float(rows * shape.hidden / tp)


def _head(shape: ModelShape, tp: int) -> list[float]:
    """Return the final norm and the head of a model that stands on one stage."""
    return _norm(shape, shape.hidden) + ([] if shape.tied else [_vocabulary(shape, tp)])


def _attention(shape: ModelShape, tp: int) -> list[float]:
    h, kv = shape.hidden, kv_heads_per_rank(shape, tp).item() * shape.projected_dim
    if not shape.latent:
        out = [h * shape.v_width / tp, *([h] * shape.bias)]
        return (
            out + _norm(shape, h) + _linear(shape, (shape.q_width + shape.gate_width) / tp + kv, h)
        )
    query = [h * shape.q_width / tp]
    if shape.q_rank:
        query = [shape.q_rank * h, *_norm(shape, shape.q_rank)]
        query += [shape.q_rank * shape.q_width / tp]
    up = shape.kv_rank * shape.heads * (shape.qk_nope + shape.v_head) / tp
    down = (shape.kv_rank + shape.qk_rope) * h
    pair = [down, *_norm(shape, shape.kv_rank), up]
    return [*_norm(shape, h), h * shape.v_width / tp, *query, *pair]


def _mixer(shape: ModelShape, mixer: Mixer, tp: int) -> list[float]:
    """Return the tensors of a mixer with its norm: those of attention first where it has them.

    Of the others the vectors count as one tensor, behind the first matrix: filters, decays and
    norms of heads stand there (Megatron-LM core/ssm/{mamba_mixer,gated_delta_net/common}.py).
    """
    listed = mixer.matrices(shape) if mixer.matrices else ()
    if mixer.attends:
        listed = listed[len(attention_matrices(shape)) :]
    attention = _attention(shape, tp) if mixer.attends else []
    if mixer.attends and not listed:
        return attention
    norm = [] if mixer.attends else _norm(shape, shape.hidden)
    matrices = [one.shard_elements(tp) for one in listed for _ in range(one.count)]
    total = mixer.params(shape, np.array([tp], dtype=np.int32)).item()
    vectors = total - sum((*norm, *matrices, *attention))
    return [*norm, *matrices[:1], *([vectors] * (vectors > 0)), *matrices[1:], *attention]


def _mlp(shape: ModelShape, width: float, outer: int = 0) -> list[float]:
    """Return the tensors of an MLP between the model's width, or `outer`."""
    outer = outer or shape.hidden
    first = _linear(shape, (2 if shape.gated else 1) * width, outer)
    return [*first, outer * width, *([outer] * shape.bias)]


def _layer(
    shape: ModelShape, tp: int, kind: LayerKind, experts: Sequence[float] = ()
) -> list[float]:
    """Return the tensors of a layer in the order of Megatron-Core's modules."""
    mixer = _mixer(shape, MIXERS[kind.mixer], tp) if kind.mixer in MIXERS else []
    mixer = mixer + connection_tensors(shape) * sublayers(kind)
    norm, h = _norm(shape, shape.hidden), shape.hidden
    if kind.feed == "dense":
        return mixer + norm + _mlp(shape, shape.ffn / tp)
    if not kind.is_routed:
        return mixer
    around = [float(h * shape.moe_latent)] * 2 if shape.moe_latent else []
    shared = _mlp(shape, shape.shared_ffn / tp) if shape.shared_ffn else []
    return [*mixer, *norm, float(h * shape.n_experts), *around, *experts, *shared]


def _experts(shape: ModelShape, layout: Layout) -> Sequence[float]:
    one = _mlp(shape, shape.expert_ffn / layout.etp, shape.expert_hidden)
    return one * (shape.n_experts // layout.ep)


def _tower(shape: ModelShape, tp: int) -> list[float]:
    """Return the trained tensors of a vision tower and its projectors, which stand first."""
    vision = shape.vision
    if vision is None or vision.trained == "none":
        return []
    widths = projector_widths(vision, shape)
    sizes = [(a * b / tp, float(b)) for a, b in pairwise(widths)]
    projector = [x for weight, bias in sizes for x in (weight, *([bias] * vision.projector_bias))]
    projectors = projector * (1 + vision.inner_projectors)
    if vision.trained != "all":
        return projectors
    inner = tower_shape(vision, shape)
    (kind,) = (kind for kind, _ in present_kinds(inner))
    ends = [float(vision.hidden * patch_inputs(vision)), *([float(vision.hidden)] * vision.bias)]
    ends += [float(vision.hidden * vision.positions)] * bool(vision.positions)
    layers = _layer(inner, tp, kind) * vision.layers
    return [*ends, *layers, *_norm(inner, vision.hidden), *projectors]
