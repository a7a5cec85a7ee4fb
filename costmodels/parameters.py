"""How many parameters a model has, and how many its ends put on one device."""

import numpy as np
from numpy.typing import NDArray

from costmodels.layers.kinds import kinds_of, present_kinds
from costmodels.layers.params import (
    expert_linear_params,
    expert_params,
    head_transform_params,
    mtp_params,
    padded_vocab,
    stream_params,
)
from costmodels.layers.streams.connections import collapse_params
from costmodels.shapes import ModelShape
from costmodels.towers.encoder import encoder_end_params
from costmodels.towers.latents import input_params, output_params
from costmodels.towers.vision import trained_vision_params, vision_params
from costmodels.tuning.model import model_adapter_params
from costmodels.tuning.records import OTHER_BYTES, TuningJob

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


def embedding_params(shape: ModelShape, seq_len: int, tp: Ints) -> Floats:
    """Return the trained parameters before the layers, on the first stage of one tp rank.

    Those of the embeddings, of a vision tower and its projector as far as they are trained, and of
    an encoder's ends; of a diffusion transformer those that make tokens of latents and text.
    """
    if shape.diffusion:
        return np.full(len(tp), float(input_params(shape)))
    total = lookup_params(shape, seq_len, tp)
    if shape.vision:
        total = total + trained_vision_params(shape, tp)
    return total + encoder_end_params(shape, tp) if shape.encoder else total


def lookup_params(shape: ModelShape, seq_len: int, tp: Ints) -> Floats:
    """Return the parameters of the embeddings on one tensor-parallel rank."""
    positions = max(shape.max_positions, seq_len) if shape.positions == "learned" else 0
    rows = padded_vocab(shape, tp) * shape.hidden / np.asarray(tp) + positions * shape.hidden
    if not shape.per_layer:
        return rows
    return rows + per_layer_params(shape) / np.asarray(tp) + stream_params(shape)


def per_layer_params(shape: ModelShape) -> int:
    """Return the parameters of the embeddings of all layers, V_p p L; 0 without any.

    Tensor parallelism cuts their rows. Source: transformers models/gemma4
    (embed_tokens_per_layer). What projects the model's own embedding to their width is counted in
    the layers.

    >>> from dataclasses import replace
    >>> from costmodels.examples import LLAMA3_8B
    >>> from costmodels.shapes import PerLayerShape
    >>> per_layer_params(replace(LLAMA3_8B, per_layer=PerLayerShape(256, 1000)))  # 1000 * 256 * 32
    8192000
    """
    if shape.per_layer is None:
        return 0
    return shape.per_layer.vocab * shape.per_layer.width * shape.layers


def head_params(shape: ModelShape, tp: Ints, pp: Ints) -> Floats:
    """Return the parameters of final norm and head on the last stage of one tensor-parallel rank.

    A tied head costs nothing on one stage; over several, the last stage holds its own copy.
    Modules of multi-token prediction stand there too, with a copy of the embedding where it is
    another stage's.
    The layer before the head that encoders have stands there whole.
    Source: Megatron-LM core/parallel_state.py (embedding group of first and last stage).
    """
    if shape.diffusion:
        return np.full(len(tp), float(output_params(shape)))
    matrix = padded_vocab(shape, tp) * shape.hidden / np.asarray(tp)
    own_copy = (np.asarray(pp) > 1) | (not shape.tied)
    final_norm = (1 if shape.norm == "rmsnorm" else 2) * shape.hidden
    final_norm += head_transform_params(shape) + stream_params(shape) + collapse_params(shape)
    if shape.mtp_layers:
        layer = kinds_of(shape)[shape.layer_sequence[-1]].params(shape, tp)
        lookup = matrix * ((np.asarray(pp) > 1) & (not shape.tied))
        layer = layer + collapse_params(shape)  # every module has one of its own
        return matrix * own_copy + final_norm + lookup + mtp_params(shape, tp, layer)
    return matrix * own_copy + final_norm


def total_params(shape: ModelShape, seq_len: int) -> float:
    """Return the parameters of the whole model with its true (unpadded) vocabulary.

    All experts count, modules of multi-token prediction do not, as in published totals.

    >>> from costmodels.examples import LLAMA3_8B
    >>> total_params(LLAMA3_8B, 8192)
    8030261248.0
    """
    return _model_params(shape, seq_len, shape.n_experts)


def active_params(shape: ModelShape, seq_len: int) -> float:
    """Return the parameters that one token meets: `top_k` experts of every expert layer.

    The embeddings count in full, as in published numbers. Equal to `total_params` without experts.

    >>> from costmodels.examples import MIXTRAL_8X7B
    >>> round(active_params(MIXTRAL_8X7B, 4096) / 1e9, 2)
    12.88
    """
    return _model_params(shape, seq_len, shape.top_k)


def trained_params(shape: ModelShape, seq_len: int, tuning: TuningJob | None = None) -> float:
    """Return the parameters that have gradients: all but those of a frozen vision tower.

    With `tuning` those of its adapters alone.

    >>> from costmodels.examples import LLAMA3_8B
    >>> trained_params(LLAMA3_8B, 8192, TuningJob(16, ("q", "v")))  # 32 x 16 (8192 + 5120)
    6815744.0
    """
    if tuning:
        return model_adapter_params(shape, tuning, 1.0)
    if not shape.vision:
        return total_params(shape, seq_len)
    one = np.ones(1, dtype=np.int32)
    frozen = vision_params(shape, one) - trained_vision_params(shape, one)
    return total_params(shape, seq_len) - float(frozen[0])


def frozen_model_bytes(shape: ModelShape, seq_len: int, tuning: TuningJob) -> float:
    """Return what the frozen weights of a model take in their storage, bytes.

    Its vocabulary unpadded: a lower bound of what all devices hold together.
    """
    one, linear = np.ones(1, dtype=np.int32), 0.0
    for kind, count in present_kinds(shape):
        each = kind.linear_weights(shape, one)
        if kind.is_routed:
            each = each + expert_linear_params(shape, one, one)
        linear += count * float(each[0])
    total = total_params(shape, seq_len)
    return OTHER_BYTES * total - (OTHER_BYTES - tuning.storage.weight_bytes) * linear


def _model_params(shape: ModelShape, seq_len: int, n_experts: int) -> float:
    one = np.ones(1, dtype=np.int32)
    layers = 0.0
    for kind, count in present_kinds(shape):
        each = float(kind.params(shape, one)[0])
        if kind.is_routed:
            each += float(expert_params(shape, one, one)[0]) * n_experts / shape.n_experts
        layers += count * each
    if shape.diffusion:
        return layers + input_params(shape) + output_params(shape)
    matrices = (1 if shape.tied else 2) * shape.vocab * shape.hidden
    positions = max(shape.max_positions, seq_len) if shape.positions == "learned" else 0
    final_norm = (1 if shape.norm == "rmsnorm" else 2) * shape.hidden
    final_norm += head_transform_params(shape) + 2 * stream_params(shape)
    final_norm += collapse_params(shape)
    if shape.vision:
        layers += float(vision_params(shape, one)[0])
    layers += float(encoder_end_params(shape, one)[0])
    return layers + matrices + positions * shape.hidden + final_norm + per_layer_params(shape)
