"""Layers of an encoder in front of a decoder: bidirectional, over a sequence of another length."""

from dataclasses import replace

from costmodels.layers.layer_kind import (
    Floats,
    Ints,
    KindTerms,
    LayerInputs,
    LayerMacs,
)
from costmodels.layers.sublayers.bidirectional import BIDIRECTIONAL
from costmodels.layers.sublayers.composition import composed
from costmodels.layers.sublayers.feeds import MLP
from costmodels.optimizers.matrices import Matrix
from costmodels.shapes import EncoderShape, LayerRun, ModelShape

_LAYER = composed(BIDIRECTIONAL, MLP)
NAME = "encoder+dense"


def _sizes(shape: ModelShape) -> EncoderShape:
    assert shape.encoder is not None  # checked where the model is read
    return shape.encoder


def encoder_shape(shape: ModelShape) -> ModelShape:
    """Return the layers of an encoder as a model of their own."""
    x = _sizes(shape)
    count = dict(zip(shape.kinds, shape.kind_counts, strict=True)).get(NAME, 1)
    return replace(
        shape.without_experts(),
        layers=count,
        hidden=x.hidden or shape.hidden,
        heads=x.heads or shape.heads,
        kv_heads=x.kv_heads or x.heads or shape.kv_heads,
        head_dim=x.head_dim or shape.head_dim,
        ffn=x.ffn or shape.ffn,
        layer_runs=(LayerRun(_LAYER.name, count, False),),
        cross=None,
        encoder=None,
        vision=None,
        dense_layers=0,
    )


def tokens_ratio(shape: ModelShape, seq_len: int) -> float:
    """Return the tokens that the encoder reads for each of the decoder."""
    return _sizes(shape).seq_len / seq_len


def _params(shape: ModelShape, tp: Ints) -> Floats:
    return _LAYER.params(encoder_shape(shape), tp)


def _linear_params(shape: ModelShape, tp: Ints) -> Floats:
    return _LAYER.linear_weights(encoder_shape(shape), tp)


def encoder_macs(shape: ModelShape) -> LayerMacs:
    """Return the multiply-adds of an encoder's layer.

    S (P + M) of a sequence in projections and MLP, however long the decoder's is, and 2 h_q S^2 in
    the core, over its s tokens. S tokens of the encoder.
    """
    x, each = _sizes(shape), _LAYER.macs(encoder_shape(shape))
    core = x.seq_len * each.core_macs(x.seq_len)
    of_sequence = x.seq_len * (each.projections + each.mlp)
    return LayerMacs(0, 0, 0, {}, lambda seq_len: core / seq_len, of_sequence=of_sequence)


def encoder_inputs(inputs: LayerInputs) -> LayerInputs:
    """Return what the terms of the encoder's layers depend on: its sizes, length and tokens."""
    problem = inputs.problem
    job = replace(problem.job, seq_len=_sizes(problem.shape).seq_len)
    alone = replace(problem, shape=encoder_shape(problem.shape), job=job)
    tokens = inputs.tokens * tokens_ratio(problem.shape, problem.job.seq_len)
    return LayerInputs(alone, inputs.split, tokens, inputs.modes)


def encoder_terms(inputs: LayerInputs) -> KindTerms:
    """Return the terms of an encoder's layer: those of a bidirectional one of its sizes."""
    return _LAYER.terms(encoder_inputs(inputs))


def _matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    assert _LAYER.matrices is not None
    return _LAYER.matrices(encoder_shape(shape))


ENCODER = replace(
    _LAYER,
    name=NAME,
    title="encoder layer",
    source="Raffel et al. 2020 (T5); transformers models/t5, models/whisper",
    params=_params,
    replicated_params=lambda shape: _LAYER.replicated_params(encoder_shape(shape)),
    matrix_params=lambda shape, tp: _LAYER.matrix_params(encoder_shape(shape), tp),
    linear_params=_linear_params,
    macs=encoder_macs,
    terms=encoder_terms,
    modules=lambda shape: _LAYER.modules(encoder_shape(shape)),
    mixer="encoder",
    matrices=_matrices,
    frameworks=("deepspeed", "fsdp2"),
)
