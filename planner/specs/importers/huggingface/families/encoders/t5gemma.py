"""T5Gemma as a model file: Gemma 2's layers as an encoder, and as a decoder that attends to it.

Sources: configuration and modeling files of transformers 5.23 (models/t5gemma).
"""

from collections.abc import Mapping
from typing import Any

from costmodels.towers.encoder_layers import NAME as ENCODER_LAYER
from planner.errors import SpecError
from planner.specs.importers.imported import Imported, Origin
from planner.specs.yaml.document import Document
from planner.units import shown_value

TYPE = "t5gemma"
DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
}
"""Sizes of a side where the file says none."""
_FIELDS = (
    ("hidden", "hidden_size"),
    ("heads", "num_attention_heads"),
    ("kv_heads", "num_key_value_heads"),
    ("head_dim", "head_dim"),
    ("ffn", "intermediate_size"),
)
DECODER_TOKENS, BATCH = 1024, 256


def is_t5gemma(data: Mapping[str, Any]) -> bool:
    """Tell whether a configuration is one of T5Gemma."""
    return data.get("model_type") == TYPE


def _sizes(document: Document, side: str) -> dict[str, int]:
    """Return the sizes of a side; `SpecError` for one that is no whole number."""
    stated = document.data.get(side) or {}
    found = {}
    for key, usual in DEFAULTS.items():
        value = stated.get(key, usual) if isinstance(stated, Mapping) else None
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            message = f"{side}.{key}: expected a whole number from 1 on, got {shown_value(value)}"
            raise SpecError(document.problem((side,), message))
        found[key] = value
    return found


def _origins() -> list[Origin]:
    """Return where the fields of the model are from."""
    texts = {name: f"decoder.{key}" for name, key in _FIELDS}
    texts |= {
        "layers": "num_hidden_layers of both sides",
        "vocab": "decoder.vocab_size",
        "tied": "tie_word_embeddings",
        "dropout": "dropout_rate",
        "gated": "three MLP matrices, as in every Gemma",
        "layer_kinds": "layers of the encoder, then of the decoder",
        "encoder": "the encoder's side of the file; its window as its length",
    }
    return [Origin(("model", name), text) for name, text in texts.items()]


def read_t5gemma(document: Document, overrides: Mapping[str, object]) -> Imported:
    """Return the model file of a T5Gemma's config.json; `SpecError` for a bad size."""
    before, after = _sizes(document, "encoder"), _sizes(document, "decoder")
    tied = document.data.get("tie_word_embeddings", True) is not False
    dropout = bool(document.data.get("dropout_rate", 0.0))
    encoder = {name: before[key] for name, key in _FIELDS}
    window = min(before["sliding_window"], after["sliding_window"])
    encoder |= {"seq_len": before["sliding_window"], "vocab": before["vocab_size"]}
    model: dict[str, Any] = {
        "layers": before["num_hidden_layers"] + after["num_hidden_layers"],
        **{name: after[key] for name, key in _FIELDS},
        "gated": True,
        "vocab": after["vocab_size"],
        "tied": tied,
        "dropout": dropout,
        "details": {"post_norms": "also", "norm_one_plus": True},
        "layer_kinds": [
            {"kind": ENCODER_LAYER, "count": before["num_hidden_layers"]},
            {"kind": "causal-cross+dense", "count": after["num_hidden_layers"]},
        ],
        "encoder": encoder,
    }
    job = {"seq_len": DECODER_TOKENS, "global_batch": BATCH, "precision": "bf16"}
    job |= {"optimizer": "adam"}
    usual = [Origin(("training", name), "usual", assumed=True) for name in job]
    return Imported(
        kind="model",
        document={"model": model, "training": job},
        origins=(*_origins(), *usual),
        source=document.file or "Python data",
        format=f"Hugging Face config.json ({TYPE})",
        notes=(
            f"layers with a window count as full: sequences beyond {window} tokens are overrated",
            "encoder.seq_len tokens stand before training.seq_len of the decoder: set both",
        ),
    )
