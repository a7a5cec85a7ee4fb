"""Encoders (ModernBERT, BERT and its kin) as model files, with the head for masked tokens.

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
BERT_LIKE = {
    "bert": 0,
    "roberta": 2,
    "xlm-roberta": 2,
    "camembert": 2,
    "electra": 0,
    "ernie": 0,
    "distilbert": 0,
    "mpnet": 2,
    "data2vec-text": 2,
    "megatron-bert": 0,
    "roberta-prelayernorm": 2,
    "xlm-roberta-xl": 2,
    "esm": 2,
}
"""Types whose positions are learned, and how many of those no token has."""
MODERN = "modernbert"
EURO = "eurobert"
DECODER = "modernbert-decoder"
"""ModernBERT's layers as a decoder, with its head."""
_PRE_NORMS = ("megatron-bert", "roberta-prelayernorm", "xlm-roberta-xl", "esm")
"""Types with norms in front of attention and MLP, where those of BERT stand behind."""
_NAMES: Mapping[str, Mapping[str, str]] = {
    "distilbert": {
        "num_hidden_layers": "n_layers",
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_dropout_prob": "dropout",
    }
}
"""By type, its names of keys that others have too."""
_SMALL_PARTS = {
    "ernie": ", kinds of tasks",
    "mpnet": ", distances of tokens in buckets",
    "esm": ", a head for contacts",
    EURO: "",
}
"""By type, small parts that it has beside those of all."""
_UNPRICED = {
    "is_decoder": False,
    "add_cross_attention": False,
    "attention_bias": False,
    "mlp_bias": False,
    "norm_bias": False,
    "sinusoidal_pos_embds": False,
    "emb_layer_norm_before": False,
    "is_folding_model": False,
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

    def name(self, key: str) -> str:
        """Return the type's own name of a key."""
        return _NAMES.get(str(self.document.data["model_type"]), {}).get(key, key)

    def take(self, name: str, key: str) -> None:
        """Copy a whole number that must be there."""
        self.put(name, self.count(key), key)


def is_encoder(data: Mapping[str, Any]) -> bool:
    """Tell whether a configuration is one of an encoder, with its sizes."""
    kind = data.get("model_type")
    is_known = isinstance(kind, str) and kind in (MODERN, EURO, DECODER, *BERT_LIKE)
    return is_known and ("hidden_size" in data or "dim" in data)


def read_encoder(document: Document, overrides: Mapping[str, object]) -> Imported:
    """Return the model file of an encoder's config.json; `SpecError` for what is not priced."""
    data, encoder = document.data, EncoderFile(document)
    for key, neutral in _UNPRICED.items():
        if data.get(key, neutral) not in (neutral, None):
            message = f"{key} {shown_value(data[key])}: such an encoder is not priced"
            raise SpecError(document.problem((key,), message, "write a model file of its layers"))
    _expect_one_width(encoder)
    for name, key in (
        ("layers", "num_hidden_layers"),
        ("hidden", "hidden_size"),
        ("heads", "num_attention_heads"),
        ("ffn", "intermediate_size"),
        ("vocab", "vocab_size"),
    ):
        encoder.take(name, encoder.name(key))
    kind = str(data["model_type"])
    {MODERN: _modern, DECODER: _modern, EURO: _euro}.get(kind, _bert)(encoder)
    if operators := _operators(data, kind):
        encoder.put("operators", operators, "transformers' code of it")
    tied = data.get("tie_word_embeddings", kind != EURO)
    encoder.put("tied", tied is not False, "tie_word_embeddings")
    if kind != EURO:
        encoder.put("head_transform", True, "a layer stands before the head")
    longest = encoder.count("max_position_embeddings", 512 if kind in BERT_LIKE else LONGEST)
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
        notes=_notes(kind),
    )


def _operators(data: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return what transformers' code of a type computes with; nothing where it is as a Llama's."""
    if kind == EURO:
        return {}
    common = {"norm": "kernel", "scores": "16-bit"}
    if kind in (MODERN, DECODER):
        drops = bool(data.get("attention_dropout")), bool(data.get("mlp_dropout"))
        found = {
            "joint_qkv": kind == MODERN,
            "attention_dropout": drops[0],
            "activation_dropout": drops[1],
        }
    else:
        key = "attention_dropout" if kind == "distilbert" else "attention_probs_dropout_prob"
        named = data.get("activation" if kind == "distilbert" else "hidden_act")
        found = {"attention_dropout": bool(data.get(key, 0.1))}
        common |= {"activation": named} if named in ("relu", "gelu_new") else {}
    return common | {name: value for name, value in found.items() if value}


def _notes(kind: str) -> tuple[str, ...]:
    """Return what is said of a model of some type."""
    small = "ignored (under 0.1 % of parameters): bias of the head"
    if kind == DECODER:
        return (f"{small}, a norm of the embeddings",)
    return (
        f"{small}, types of tokens" + _SMALL_PARTS.get(kind, ""),
        "the loss counts as one over all tokens, whatever share is masked",
    )


def _expect_one_width(encoder: EncoderFile) -> None:
    """Refuse embeddings of another width than the layers', and positions that are not priced."""
    document, data = encoder.document, encoder.document.data
    width = data.get("embedding_size")
    if width not in (None, data.get("hidden_size")):
        message = f"embedding_size {shown_value(width)} is not hidden_size: embeddings of another"
        message += " width than the layers are not priced"
        raise SpecError(document.problem(("embedding_size",), message, ""))
    positions = data.get("position_embedding_type")
    known = ("absolute", "rotary") if data["model_type"] == "esm" else ("absolute",)
    if positions not in (None, *known):
        message = (
            f"position_embedding_type {shown_value(positions)}: such an encoder is not priced"
        )
        fix = "write a model file of its layers"
        raise SpecError(document.problem(("position_embedding_type",), message, fix))


def _euro(encoder: EncoderFile) -> None:
    """Set what EuroBERT has: layers of Llama that attend to both sides."""
    layers, heads = encoder.model["layers"], encoder.model["heads"]
    encoder.put("kv_heads", encoder.count("num_key_value_heads", heads), "num_key_value_heads")
    encoder.put("gated", True, "three MLP matrices, as in every eurobert")
    encoder.put("norm", "rmsnorm", "as in every eurobert")
    runs = [{"kind": "bidirectional+dense", "count": layers}]
    encoder.put("layer_kinds", runs, "every layer attends to all tokens")


def _modern(encoder: EncoderFile) -> None:
    """Set what ModernBERT has: windows in two of three layers, gates, rotary positions.

    As a decoder its layers see what is before them, in windows half as wide.
    """
    layers, local = encoder.model["layers"], encoder.count("local_attention", 128)
    listed = encoder.document.data.get("layer_types")
    every = encoder.count("global_attn_every_n_layers", 3)
    full = [i % every == 0 for i in range(layers)]
    source = "global_attn_every_n_layers"
    if listed is not None:
        full, source = _listed(encoder, listed), "layer_types"
    is_decoder = encoder.document.data["model_type"] == DECODER
    whole, part = ("attention", "window") if is_decoder else _BOTH_SIDES
    kinds = [whole if on else part for on in full]
    runs: list[dict[str, Any]] = []
    for kind in kinds:
        name = "dense" if kind == "attention" else f"{kind}+dense"
        if runs and runs[-1]["kind"] == name:
            runs[-1]["count"] += 1
        else:
            runs.append({"kind": name, "count": 1})
    encoder.put("gated", True, "three MLP matrices, as in every modernbert")
    encoder.put("norm", "rmsnorm", "norms without biases: one vector")
    encoder.put("layer_kinds", runs, source)
    if not all(full):
        size = max(1, local // 2) if is_decoder else 2 * (local // 2) + 1
        sides = "to the left" if is_decoder else "on both sides"
        encoder.put("window", {"size": size}, f"local_attention {local}, {sides}")


_BOTH_SIDES = ("bidirectional", "bidirectional-window")


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
    kind = data["model_type"]
    encoder.put("gated", False, f"two MLP matrices, as in every {data['model_type']}")
    encoder.put("norm", "layernorm", f"as in every {data['model_type']}")
    encoder.put("bias", True, f"as in every {data['model_type']}")
    if data.get("position_embedding_type") != "rotary":
        encoder.put("positions", "learned", f"as in every {kind}")
        rows = encoder.count("max_position_embeddings", 512)
        encoder.put("max_positions", rows, "max_position_embeddings")
    key = encoder.name("hidden_dropout_prob")
    encoder.put("dropout", bool(data.get(key, 0.1)), key)
    runs = [{"kind": "bidirectional+dense", "count": layers}]
    encoder.put("layer_kinds", runs, "every layer attends to all tokens")
    if kind not in _PRE_NORMS:
        encoder.put("details", {"post_norms": "instead"}, "norms behind attention and MLP")
