"""Encoders (ModernBERT, BERT, RoBERTa) as model files, with the head for masked tokens.

Sources: configuration and modeling files of transformers 5.23.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.errors import SpecError
from planner.specs.importers.imported import Imported, Origin
from planner.specs.yaml.document import Document
from planner.units import shown_value

LONGEST = 8192
"""Tokens of a sequence at most, as of decoders."""
BATCH = 256
"""Sequences of a step, which no such file says: BERT (arXiv 1810.04805, appendix A.2)."""
BERT_LIKE = {"bert": 0, "roberta": 2, "xlm-roberta": 2, "camembert": 2}
"""Types with learned positions, and how many of those no token has."""
MODERN = "modernbert"
_UNPRICED = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "attention_bias": False,
    "mlp_bias": False,
    "norm_bias": False,
}
"""Keys that must be neutral, and their neutral value."""


@dataclass(slots=True)
class EncoderFile:
    """One configuration on its way to a model file."""

    document: Document
    model: dict[str, Any] = field(default_factory=dict)
    origins: list[Origin] = field(default_factory=list)

    def put(self, name: str, value: object, text: str, *, assumed: bool = False) -> None:
        """Set a field of the model."""
        self.model[name] = value
        self.origins.append(Origin(("model", name), text, assumed))

    def count(self, key: str, default: int | None = None) -> int:
        """Return a whole number of the file."""
        value = self.document.data.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            got = shown_value(value) if key in self.document.data else "nothing"
            message = f"{key}: expected a whole number from 1 on, got {got}"
            path = (key,) if key in self.document.data else ()
            raise SpecError(self.document.problem(path, message))
        return value

    def take(self, name: str, key: str) -> None:
        """Copy a whole number that must be there."""
        self.put(name, self.count(key), key)


def is_encoder(data: Mapping[str, Any]) -> bool:
    """Tell whether a configuration is one of an encoder, with its sizes."""
    kind = data.get("model_type")
    return isinstance(kind, str) and kind in (MODERN, *BERT_LIKE) and "hidden_size" in data


def read_encoder(document: Document, overrides: Mapping[str, object]) -> Imported:
    """Return the model file of an encoder's config.json; `SpecError` for what is not priced."""
    data, encoder = document.data, EncoderFile(document)
    for key, neutral in _UNPRICED.items():
        if data.get(key, neutral) not in (neutral, None):
            message = f"{key} {shown_value(data[key])}: such an encoder is not priced"
            raise SpecError(document.problem((key,), message, "write a model file of its layers"))
    for name, key in (
        ("layers", "num_hidden_layers"),
        ("hidden", "hidden_size"),
        ("heads", "num_attention_heads"),
        ("ffn", "intermediate_size"),
        ("vocab", "vocab_size"),
    ):
        encoder.take(name, key)
    is_modern = data["model_type"] == MODERN
    (_modern if is_modern else _bert)(encoder)
    tied = data.get("tie_word_embeddings", True)
    encoder.put("tied", tied is not False, "tie_word_embeddings")
    encoder.put("head_transform", True, "head that predicts masked tokens")
    longest = encoder.count("max_position_embeddings", LONGEST if is_modern else 512)
    longest -= BERT_LIKE.get(str(data["model_type"]), 0)
    seq_len, why = min(longest, LONGEST), f"at most {LONGEST}; max_position_embeddings"
    stated = str(overrides.get("training.seq_len", ""))
    if stated.isascii() and stated.isdigit() and len(stated) < 10 and int(stated):
        seq_len, why = int(stated), "stated"
    job = {"seq_len": seq_len, "global_batch": BATCH, "precision": "bf16", "optimizer": "adam"}
    texts = (why, "that of BERT", "usual", "usual")
    encoder.origins += [
        Origin(("training", name), text, assumed=True)
        for name, text in zip(job, texts, strict=True)
    ]
    return Imported(
        kind="model",
        document={"model": encoder.model, "training": job},
        origins=tuple(encoder.origins),
        source=document.file or "Python data",
        format=f"Hugging Face config.json ({data['model_type']})",
        notes=(
            "not priced, below 0.1 % of the parameters: bias of the head, types of tokens",
            "the loss counts as one over all tokens, whatever share is masked",
        ),
    )


def _modern(encoder: EncoderFile) -> None:
    """Set what ModernBERT has: windows in two of three layers, gates, rotary positions."""
    layers, local = encoder.model["layers"], encoder.count("local_attention", 128)
    listed = encoder.document.data.get("layer_types")
    every = encoder.count("global_attn_every_n_layers", 3)
    full = [i % every == 0 for i in range(layers)]
    source = "global_attn_every_n_layers"
    if listed is not None:
        full, source = _listed(encoder, listed), "layer_types"
    kinds = ["bidirectional" if on else "bidirectional-window" for on in full]
    runs: list[dict[str, Any]] = []
    for kind in kinds:
        if runs and runs[-1]["kind"] == f"{kind}+dense":
            runs[-1]["count"] += 1
        else:
            runs.append({"kind": f"{kind}+dense", "count": 1})
    encoder.put("gated", True, "three MLP matrices, as in every modernbert")
    encoder.put("norm", "rmsnorm", "norms without biases: one vector")
    encoder.put("layer_kinds", runs, source)
    if not all(full):
        size = 2 * (local // 2) + 1
        encoder.put("window", {"size": size}, f"local_attention {local}, on both sides")


def _listed(encoder: EncoderFile, listed: Any) -> list[bool]:
    """Return of each listed layer whether it attends to all tokens."""
    words = {"full_attention": True, "sliding_attention": False}
    is_list = isinstance(listed, Sequence) and not isinstance(listed, str)
    if not is_list or len(listed) != encoder.model["layers"] or not set(listed) <= set(words):
        message = (
            f"expected {' or '.join(words)} for each of {encoder.model['layers']} layers, got"
            f" {shown_value(listed)}"
        )
        raise SpecError(encoder.document.problem(("layer_types",), message))
    return [words[word] for word in listed]


def _bert(encoder: EncoderFile) -> None:
    """Set what BERT has: learned positions, biases, norms with biases, dropout."""
    layers, data = encoder.model["layers"], encoder.document.data
    encoder.put("gated", False, f"two MLP matrices, as in every {data['model_type']}")
    encoder.put("norm", "layernorm", f"as in every {data['model_type']}")
    encoder.put("bias", True, f"as in every {data['model_type']}")
    encoder.put("positions", "learned", f"as in every {data['model_type']}")
    encoder.put(
        "max_positions", encoder.count("max_position_embeddings", 512), "max_position_embeddings"
    )
    rate = data.get("hidden_dropout_prob", 0.1)
    encoder.put("dropout", bool(rate), "hidden_dropout_prob")
    runs = [{"kind": "bidirectional+dense", "count": layers}]
    encoder.put("layer_kinds", runs, "every layer attends to all tokens")
    encoder.put("details", {"post_norms": "instead"}, "norms behind attention and MLP")
