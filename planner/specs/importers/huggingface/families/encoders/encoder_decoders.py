"""Encoder-decoders (T5, BART and what follows it, Whisper) as model files.

Sources: configuration and modeling files of transformers 5.23.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from costmodels.towers.encoder_layers import NAME as ENCODER_LAYER
from planner.errors import SpecError
from planner.specs.importers.huggingface.families.encoders.encoder_only import EncoderFile
from planner.specs.importers.imported import Imported, Origin
from planner.specs.yaml.document import Document
from planner.units import shown_value


@dataclass(frozen=True, slots=True)
class EncoderDecoderFamily:
    """How the types of one family say their sizes, and what all of them have."""

    defaults: Mapping[str, int]
    """Sizes by key, as the configuration class has them."""
    gated: bool = False
    norm: str = "layernorm"
    bias: bool = True
    learned: bool = True
    """Positions are a table of parameters on both sides."""
    offset: int = 0
    """Rows of that table that no position has."""
    always_tied: bool = False
    """Embedding and head are one matrix whatever the file says."""
    batch: int = 0
    texts: tuple[int, int] = (0, 0)
    """Tokens of encoder and decoder in the training of the paper; 0: as many as positions."""
    post_norms: bool = False
    activation: str = "gelu"
    """Of the MLP where the file says none."""
    dropout: float = 0.1
    """Of the residual stream where the file says none; so on for that of scores."""
    attention_dropout: float = 0.0
    norm_operator: str = "kernel"
    """As in `OperatorsShape.norm`."""
    copies_output: bool = False
    """As in `OperatorsShape`; so on."""
    layer_positions: bool = False
    notes: tuple[str, ...] = field(default=())


_BART = {
    "vocab_size": 50265,
    "max_position_embeddings": 1024,
    "encoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_layers": 12,
    "decoder_ffn_dim": 4096,
    "decoder_attention_heads": 16,
    "d_model": 1024,
}
_T5 = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
}
_RELATIVE = ("ignored (under 0.1 % of parameters): relative positions",)
_SINES = ("tables of sines count as trained: transformers has them among its parameters",)
_T5_FAMILY = EncoderDecoderFamily(
    _T5,
    norm="rmsnorm",
    bias=False,
    learned=False,
    always_tied=True,
    batch=2048,
    texts=(512, 114),
    activation="relu",
    attention_dropout=0.1,
    norm_operator="scaled",
    notes=_RELATIVE,
)
_MT5_FAMILY = replace(
    _T5_FAMILY,
    defaults={**_T5, "vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6},
    gated=True,
    activation="gated-gelu",
    batch=1024,
    texts=(1024, 256),
)
_BLENDERBOT = {
    **_BART,
    "vocab_size": 8008,
    "max_position_embeddings": 128,
    "encoder_layers": 2,
    "encoder_ffn_dim": 10240,
    "encoder_attention_heads": 32,
    "decoder_layers": 24,
    "decoder_ffn_dim": 10240,
    "decoder_attention_heads": 32,
    "d_model": 2560,
}
_BLENDERBOT_SMALL = {
    **_BART,
    "max_position_embeddings": 512,
    "encoder_layers": 8,
    "encoder_ffn_dim": 2048,
    "decoder_layers": 8,
    "decoder_ffn_dim": 2048,
    "d_model": 512,
}
_M2M = {**_BART, "vocab_size": 128112}
_MARIAN = {**_BART, "vocab_size": 58101}
_WHISPER = {
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_layers": 4,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "encoder_ffn_dim": 1536,
    "d_model": 384,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}
FAMILIES: Mapping[str, EncoderDecoderFamily] = {
    "t5": _T5_FAMILY,
    "mt5": _MT5_FAMILY,
    "umt5": replace(_MT5_FAMILY, layer_positions=True),
    "bart": EncoderDecoderFamily(_BART, offset=2, post_norms=True, batch=8000),
    "mvp": EncoderDecoderFamily(_BART, offset=2, post_norms=True, batch=8192),
    "mbart": EncoderDecoderFamily(_BART, offset=2, batch=256),
    "plbart": EncoderDecoderFamily(
        {
            **_BART,
            "vocab_size": 50005,
            "encoder_layers": 6,
            "encoder_ffn_dim": 3072,
            "encoder_attention_heads": 12,
            "decoder_layers": 6,
            "decoder_ffn_dim": 3072,
            "decoder_attention_heads": 12,
            "d_model": 768,
        },
        offset=2,
        post_norms=True,
        attention_dropout=0.1,
        batch=2048,
    ),
    "pegasus": EncoderDecoderFamily(_BART, batch=8192, notes=_SINES),
    "marian": EncoderDecoderFamily(_MARIAN, post_norms=True, batch=256, notes=_SINES),
    "m2m_100": EncoderDecoderFamily(
        _M2M, learned=False, batch=256, activation="relu", attention_dropout=0.1
    ),
    "blenderbot": EncoderDecoderFamily(_BLENDERBOT, batch=256),
    "blenderbot-small": EncoderDecoderFamily(_BLENDERBOT_SMALL, post_norms=True, batch=256),
    "whisper": EncoderDecoderFamily(
        _WHISPER,
        batch=256,
        copies_output=True,
        dropout=0.0,
        notes=("ignored (under 0.1 % of parameters): keys have no biases",),
    ),
}
"""By `model_type`."""
TYPES = tuple(FAMILIES)


def is_encoder_decoder(data: Mapping[str, Any]) -> bool:
    """Tell whether a configuration is one of an encoder-decoder, with its sizes."""
    kind = data.get("model_type")
    return isinstance(kind, str) and kind in FAMILIES


def read_encoder_decoder(document: Document, overrides: Mapping[str, object]) -> Imported:
    """Return the model file of an encoder-decoder's config.json; `SpecError` for a bad size."""
    kind = str(document.data["model_type"])
    family = FAMILIES[kind]
    of_file = EncoderFile(document)
    sizes = _t5 if "d_kv" in family.defaults else _bart
    encoder = sizes(of_file, family)
    _refuse_what_is_apart(document, family)
    tied = "every T5 in transformers 5" if family.always_tied else "tie_word_embeddings"
    of_file.put("tied", True, tied)
    of_file.put("norm", family.norm, f"as in every {kind}")
    of_file.put("bias", family.bias, f"as in every {kind}")
    if family.post_norms:
        of_file.put("details", {"post_norms": "instead"}, "norms behind attention and MLP")
    after, seq_len = encoder.pop("decoder_layers"), encoder.pop("decoder_seq_len")
    ahead = of_file.model["layers"] - after
    runs = [
        {"kind": ENCODER_LAYER, "count": ahead},
        {"kind": "causal-cross+dense", "count": after},
    ]
    of_file.put("operators", _operators(document.data, family), "transformers' code of it")
    of_file.put("layer_kinds", runs, "layers of the encoder, then of the decoder")
    of_file.put("encoder", encoder, "the encoder's side of the file")
    stated = str(overrides.get("training.seq_len", ""))
    if stated.isascii() and stated.isdigit() and len(stated) < 10 and int(stated):
        seq_len = int(stated)
    job = {
        "seq_len": seq_len,
        "global_batch": family.batch,
        "precision": "bf16",
        "optimizer": "adam",
    }
    why = ("tokens of the decoder", "that of its paper, about", "usual", "usual")
    of_file.origins += [
        Origin(("training", name), text, assumed=True) for name, text in zip(job, why, strict=True)
    ]
    return Imported(
        kind="model",
        document={"model": of_file.model, "training": job},
        origins=tuple(of_file.origins),
        source=document.file or "Python data",
        format=f"Hugging Face config.json ({kind})",
        notes=(
            *family.notes,
            *_of_untied(document.data, family),
            "encoder.seq_len tokens stand before training.seq_len of the decoder: set both",
        ),
    )


_ACTIVATIONS = {
    "relu": "relu",
    "gated-relu": "relu",
    "gated-gelu": "gelu_new",
    "gelu_new": "gelu_new",
}
"""Activations that keep other than their input, by their name in a file."""


def _operators(data: Mapping[str, Any], family: EncoderDecoderFamily) -> dict[str, Any]:
    """Return the section `operators`: what transformers' code of a family computes with."""
    is_t5 = "d_kv" in family.defaults
    key = "feed_forward_proj" if is_t5 else "activation_function"
    named = str(data.get(key) or family.activation)
    everywhere = data.get("dropout_rate", family.dropout) if is_t5 else 0.0
    out: dict[str, Any] = {
        "activation": _ACTIVATIONS.get(named, ""),
        "norm": family.norm_operator,
        "scores": "16-bit",
        "copies_output": family.copies_output,
        "layer_positions": family.layer_positions,
        "activation_dropout": bool(data.get("activation_dropout", everywhere)),
        "attention_dropout": bool(
            everywhere if is_t5 else data.get("attention_dropout", family.attention_dropout)
        ),
    }
    return {name: value for name, value in out.items() if value}


_APART = {
    "is_encoder_decoder": (True, "one side of it alone"),
    "tie_word_embeddings": (True, "an embedding for each side and a head of its own"),
    "share_encoder_decoder_embeddings": (True, "an embedding for each side"),
}
"""Keys that must be so, and what the model has otherwise."""


def _refuse_what_is_apart(document: Document, family: EncoderDecoderFamily) -> None:
    """Raise `SpecError` where a model is not of one embedding and two sides."""
    for key, (usual, otherwise) in _APART.items():
        if key == "tie_word_embeddings" and family.always_tied:
            continue
        if document.data.get(key, usual) is not usual:
            message = f"{key} {shown_value(document.data[key])}: {otherwise} is not priced"
            raise SpecError(document.problem((key,), message, "write a model file of its layers"))


def _of_untied(data: Mapping[str, Any], family: EncoderDecoderFamily) -> tuple[str, ...]:
    """Return the note on a T5 whose file says that its head is a matrix of its own."""
    if not family.always_tied or data.get("tie_word_embeddings", True) is not False:
        return ()
    return (
        "tie_word_embeddings false: transformers 5 shares the matrix all the same; published"
        " weights of T5 1.1 and mT5 have a head besides (model.tied false)",
    )


def _t5(of_file: EncoderFile, family: EncoderDecoderFamily) -> dict[str, Any]:
    """Set what T5 has; return the section of the encoder, and what it says of the decoder."""
    data, usual = of_file.document.data, family.defaults
    after = of_file.count("num_layers", usual["num_layers"])
    both = of_file.count("num_decoder_layers", after) if data.get("num_decoder_layers") else after
    of_file.put("layers", after + both, "num_layers + num_decoder_layers")
    for name, key in (
        ("hidden", "d_model"),
        ("heads", "num_heads"),
        ("ffn", "d_ff"),
        ("head_dim", "d_kv"),
        ("vocab", "vocab_size"),
    ):
        of_file.put(name, of_file.count(key, usual[key]), key)
    projection = str(data.get("feed_forward_proj", "gated-gelu" if family.gated else "relu"))
    of_file.put("gated", projection.startswith("gated"), "feed_forward_proj")
    of_file.put("positions", "rope", "relative ones, a table of one layer")
    of_file.put("flash_attention", False, "scores have positions added to them")
    of_file.put("dropout", bool(data.get("dropout_rate", 0.1)), "dropout_rate")
    source, target = family.texts
    return {"seq_len": source, "decoder_seq_len": target, "decoder_layers": both}


def _bart(of_file: EncoderFile, family: EncoderDecoderFamily) -> dict[str, Any]:
    """Set what BART and Whisper have; return what `_t5` does."""
    data, usual = of_file.document.data, family.defaults
    sizes = {key: of_file.count(key, value) for key, value in usual.items()}
    layers = sizes["encoder_layers"] + sizes["decoder_layers"]
    of_file.put("layers", layers, "encoder_layers + decoder_layers")
    for name, key in (
        ("hidden", "d_model"),
        ("heads", "decoder_attention_heads"),
        ("ffn", "decoder_ffn_dim"),
        ("vocab", "vocab_size"),
    ):
        of_file.put(name, sizes[key], key)
    of_file.put("gated", False, "two MLP matrices")
    of_file.put("dropout", bool(data.get("dropout", family.dropout)), "dropout")
    hears = "num_mel_bins" in sizes
    source = sizes["max_source_positions" if hears else "max_position_embeddings"]
    target = sizes["max_target_positions" if hears else "max_position_embeddings"]
    if family.learned:
        of_file.put("positions", "learned", "a table on both sides")
        of_file.put("max_positions", target + family.offset, "rows of the decoder's")
    encoder: dict[str, Any] = {"seq_len": source}
    if sizes["encoder_attention_heads"] != sizes["decoder_attention_heads"]:
        encoder["heads"] = sizes["encoder_attention_heads"]
        encoder["head_dim"] = sizes["d_model"] // sizes["encoder_attention_heads"]
    if sizes["encoder_ffn_dim"] != sizes["decoder_ffn_dim"]:
        encoder["ffn"] = sizes["encoder_ffn_dim"]
    if family.learned:
        encoder["positions"] = source + family.offset
    if hears:
        encoder["conv_channels"] = sizes["num_mel_bins"]
    return {**encoder, "decoder_seq_len": target, "decoder_layers": sizes["decoder_layers"]}
