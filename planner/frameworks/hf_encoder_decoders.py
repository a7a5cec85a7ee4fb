"""Writes an encoder-decoder as a config.json of the class of transformers that has its layers.

Sources: configuration and modeling files of transformers 5.23.
"""

from collections.abc import Mapping

from costmodels.shapes import EncoderShape, ModelShape, OperatorsShape, TrainingJob
from planner.errors import EmitError
from planner.specs.schema import OTHER_MODEL, DetailsSpec
from searches.frameworks.common import kind_sequence

Fields = dict[str, object]
KINDS = frozenset({"encoder+dense", "causal-cross+dense"})
DROPOUT = 0.1
OFFSET = 2
"""Rows of BART's tables of positions that no position has."""
SPECIAL_IDS: Fields = {
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}
"""Ids that every vocabulary has; those of a class may lie behind the last."""


def encoder_decoder_config(shape: ModelShape, job: TrainingJob, details: DetailsSpec) -> Fields:
    """Return the fields of config.json; `EmitError` names the part that no class has."""
    assert shape.encoder is not None  # asked for models with one alone
    stated = details.stated()
    odd = {
        "layers of other kinds": not set(kind_sequence(shape)) <= KINDS,
        "a head of its own": not shape.tied,
        "KV heads for several heads": shape.kv_heads != shape.heads,
        "an encoder of another width": shape.encoder.hidden not in (0, shape.hidden),
        "an embedding of the encoder": shape.encoder.vocab > 0,
        **{name: bool(stated.get(name)) for name in OTHER_MODEL if name != "post_norms"},
    }
    _refuse("no class of encoder-decoders that planner writes has", odd)
    if shape.norm == "rmsnorm":
        return _t5(shape, shape.encoder) | _spread("initializer_factor", details)
    return _bart(shape, shape.encoder, job, details) | _spread("init_std", details)


def _spread(name: str, details: DetailsSpec) -> Fields:
    """Return the spread of new embeddings; none where the class's own is taken."""
    return {name: details.init_std} if details.init_std else {}


def _refuse(beginning: str, odd: Mapping[str, bool]) -> None:
    if hit := [name for name, on in odd.items() if on]:
        raise EmitError(f"{beginning} {', '.join(hit)}")


def _sides(shape: ModelShape) -> tuple[int, int]:
    """Return the layers of encoder and decoder."""
    kinds = kind_sequence(shape)
    n_encoder = kinds.count("encoder+dense")
    return n_encoder, len(kinds) - n_encoder


def _t5(shape: ModelShape, encoder: EncoderShape) -> Fields:
    sizes = {"heads": shape.heads, "head_dim": shape.head_dim, "ffn": shape.ffn}
    odd = {
        "biases": shape.bias,
        "learned positions": shape.positions == "learned" or encoder.positions > 0,
        "convolutions": encoder.conv_channels > 0,
        "an encoder of other sizes": any(
            getattr(encoder, name) not in (0, size) for name, size in sizes.items()
        ),
    }
    _refuse("T5's class does not have", odd)
    own = shape.operators or OperatorsShape(activation="gelu_new" if shape.gated else "relu")
    names = {"relu": "relu", "gelu_new": "gelu"} if shape.gated else {"relu": "relu"}
    activation = names.get(own.activation, "silu" if shape.gated else own.activation or "gelu")
    before, after = _sides(shape)
    return {
        "model_type": "umt5" if own.layer_positions else "t5",
        "architectures": [f"{'UMT5' if own.layer_positions else 'T5'}ForConditionalGeneration"],
        "vocab_size": shape.vocab,
        "d_model": shape.hidden,
        "d_kv": shape.head_dim,
        "d_ff": shape.ffn,
        "num_layers": before,
        "num_decoder_layers": after,
        "num_heads": shape.heads,
        "feed_forward_proj": f"gated-{activation}" if shape.gated else activation,
        "dropout_rate": DROPOUT if shape.dropout else 0.0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }


def _bart(
    shape: ModelShape, encoder: EncoderShape, job: TrainingJob, details: DetailsSpec
) -> Fields:
    odd = {
        "an MLP of three matrices": shape.gated,
        "layers without biases": not shape.bias,
        "heads that do not make the width": shape.q_width != shape.hidden,
    }
    _refuse("BART's class does not have", odd)
    own = shape.operators or OperatorsShape()
    before, after = _sides(shape)
    return {
        **_positions(shape, encoder, job, details),
        **SPECIAL_IDS,
        "vocab_size": shape.vocab,
        "d_model": shape.hidden,
        "encoder_layers": before,
        "decoder_layers": after,
        "encoder_attention_heads": encoder.heads or shape.heads,
        "decoder_attention_heads": shape.heads,
        "encoder_ffn_dim": encoder.ffn or shape.ffn,
        "decoder_ffn_dim": shape.ffn,
        "activation_function": own.activation or "gelu",
        "dropout": DROPOUT if shape.dropout else 0.0,
        "attention_dropout": DROPOUT if own.attention_dropout else 0.0,
        "activation_dropout": DROPOUT if own.activation_dropout else 0.0,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
    }


def _positions(
    shape: ModelShape, encoder: EncoderShape, job: TrainingJob, details: DetailsSpec
) -> Fields:
    """Return the class by its norms and tables of positions, and the rows of those."""
    after_norms = details.post_norms == "instead"
    most = max(encoder.seq_len, job.seq_len)
    if encoder.conv_channels:
        _refuse("Whisper's class does not have", {"norms behind attention and MLP": after_norms})
        return {
            "model_type": "whisper",
            "architectures": ["WhisperForConditionalGeneration"],
            "num_mel_bins": encoder.conv_channels,
            "max_source_positions": encoder.positions or encoder.seq_len,
            "max_target_positions": shape.max_positions or job.seq_len,
            "begin_suppress_tokens": None,
        }
    if shape.positions != "learned":
        _refuse("M2M-100's class does not have", {"norms behind attention and MLP": after_norms})
        return {"model_type": "m2m_100", "max_position_embeddings": most}
    rows = shape.max_positions or job.seq_len
    _refuse("no class has", {"tables of two lengths": encoder.positions != rows})
    if rows - OFFSET >= most:
        name = "bart" if after_norms else "mbart"
        return {"model_type": name, "max_position_embeddings": rows - OFFSET}
    return {
        "model_type": "marian" if after_norms else "pegasus",
        "max_position_embeddings": rows,
    }
