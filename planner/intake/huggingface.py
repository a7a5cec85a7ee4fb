"""Hugging Face config.json to a model file.

Nothing is downloaded and no code of a repository is run: the sizes are read by the rules of the
file's `model_type` (`huggingface_types`). What the file does not say, the training section, is
assumed and marked as such; what the cost model does not have is refused where it would make the
numbers wrong, and is a note that says which way they are off where the effect is small or known.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import Any

from planner.errors import Problem, SpecError
from planner.intake.huggingface_types import (
    ALIASES,
    DROPOUT_KEYS,
    KEYS,
    REFUSED,
    TYPES,
    ModelType,
    Switch,
)
from planner.intake.imported import Imported, Origin
from planner.units import format_count, show
from planner.yamlfile import Document, KeyPath, close_names, parse_yaml, path_text

LONGEST_SEQ_LEN = 8192
"""Tokens of a sequence where the file does not say them: pre-training of the Llama 3 models
(arXiv 2407.21783, section 3.4)."""
TOKENS_PER_STEP = 4 * 2**20
"""Tokens of a step where the file does not say them: LLaMA (arXiv 2302.13971, section 2.3),
Llama 2 (arXiv 2307.09288, table 1) and the start of Llama 3 405B (section 3.4.1)."""

_TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
"""Sections of multimodal files that hold the language model."""
_OTHER_MODALITIES = ("vision_config", "audio_config", "vision_tower", "mm_vision_tower")
_SIGNS = (
    "model_type", "architectures", "num_hidden_layers", "num_attention_heads", "hidden_size",
    "intermediate_size", "max_position_embeddings", "n_embd", "n_layer", "n_head",
    "transformers_version", "torch_dtype", *_TEXT_SECTIONS,
)  # fmt: skip
"""Keys of such a file: two of them, or `model_type`, make one."""
_OWN_SECTIONS = ("model", "training", "pools", "fabric")

_MISTAKEN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("*.index.json", ("weight_map",), "the index of a model's weight files"),
    ("tokenizer_config.json", ("tokenizer_class",), "the configuration of a tokenizer"),
    ("tokenizer.json", ("pre_tokenizer",), "a tokenizer"),
    ("vocab.json", (), "the vocabulary of a tokenizer"),
    ("special_tokens_map.json", ("bos_token", "eos_token"), "the special tokens of a tokenizer"),
    ("generation_config.json", ("eos_token_id", "transformers_version"),
     "the configuration of text generation"),
    ("*preprocessor_config.json", ("image_processor_type",), "the configuration of a processor"),
    ("adapter_config.json", ("peft_type",), "the configuration of an adapter"),
    ("*.safetensors", (), "a file of weights"),
    ("*.gguf", (), "a file of weights"),
    ("pytorch_model*.bin", (), "a file of weights"),
)  # fmt: skip
"""Other files of a model's folder: their names, the keys by which they are known, what they are."""

_FULL_ATTENTION, _LOCAL_ATTENTION = "full_attention", ("sliding_attention", "chunked_attention")


def looks_like(text: str) -> bool:
    """Tell whether a text is, or was meant to be, a JSON file of a Hugging Face model's folder."""
    keys = _top_keys(text)
    if keys.intersection(_OWN_SECTIONS):
        return False
    mistaken = any(names and keys.issuperset(names) for _, names, _ in _MISTAKEN)
    return "model_type" in keys or len(keys.intersection(_SIGNS)) > 1 or mistaken


def _top_keys(text: str) -> set[str]:
    """Return the keys at the top of JSON or YAML; all keys where the JSON is broken."""
    if not text.lstrip().startswith("{"):
        return set(re.findall(r"^(\w+)\s*:", text, re.MULTILINE))
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return set(re.findall(r'"(\w+)"\s*:', text))
    return set(data) if isinstance(data, dict) else set()


def mistaken_name(file: str) -> SpecError | None:
    """Return the error for a file whose name says that it is another one of a model's folder."""
    name = PurePath(file).name
    for pattern, _, what in _MISTAKEN:
        if fnmatch(name, pattern):
            return SpecError(_mistaken(what, file))
    return None


def _mistaken(what: str, file: str) -> Problem:
    sibling = Path(file).parent / "config.json"
    there = str(sibling) if file and sibling.is_file() else "the config.json beside it"
    return Problem(f"is {what}, not of a model", f"give {there}", file)


def config_in_folder(folder: Path) -> Path | None:
    """Return the configuration in a model's folder, or in its folder of the Hub's cache."""
    revision = folder / "refs" / "main"
    if revision.is_file():
        folder = folder / "snapshots" / revision.read_text(encoding="utf-8").strip()
    return folder / "config.json" if (folder / "config.json").is_file() else None


def read(text: str, file: str, stated: Mapping[str, object]) -> Imported:
    """Return the model file that a config.json makes.

    `stated` are values that the user sets by path; assumptions follow them. Raises `SpecError`
    with the line.
    """
    return _Importer(_open(_sections(text, file), ""), stated).imported()


def read_as(text: str, file: str, as_type: str) -> Imported:
    """Return the model file that a config.json makes whose layers are those of another type."""
    return _Importer(_open(_sections(text, file), as_type), {}).imported()


def _sections(text: str, file: str) -> Document:
    """Return the file as data; one that is no configuration of a model is a `SpecError`."""
    document = _parse(text, file)
    if not isinstance(document.data, Mapping):
        message = f"expected the keys of a Hugging Face config.json, got {show(document.data)}"
        raise SpecError(document.problem((), message))
    if "model_type" not in document.data:
        for _, names, what in _MISTAKEN:
            if names and set(document.data).issuperset(names) and not _has_sizes(document.data):
                raise SpecError(_mistaken(what, file))
    return document


_SIZE_KEYS = {
    name
    for key in ("layers", "hidden", "heads")
    for keys in (KEYS, *(rules.keys for rules in TYPES.values()))
    for name in keys.get(key, ())
}


def _has_sizes(data: Mapping[str, Any]) -> bool:
    return not _SIZE_KEYS.isdisjoint(data) or not set(_TEXT_SECTIONS).isdisjoint(data)


def _parse(text: str, file: str) -> Document:
    """Read JSON with line marks: as YAML, whose flow style it is, except that tabs are blanks."""
    try:
        return parse_yaml(text.replace("\t", " "), file)
    except SpecError as error:
        try:
            json.loads(text)
        except json.JSONDecodeError as broken:
            if text.lstrip().startswith("{"):
                message = f"not valid JSON: {broken.msg[:1].lower()}{broken.msg[1:]}"
                fix = "check commas, quotes and brackets near here"
                problem = Problem(message, fix, file, broken.lineno, broken.colno)
                raise SpecError(problem) from None
        raise error from None


@dataclass(frozen=True, slots=True)
class _Found:
    """A value and where it stands."""

    value: Any
    text: str
    """Its key, or whose default it is."""
    path: KeyPath | None
    """None where it is a default, or where nothing says it."""


@dataclass(frozen=True, slots=True)
class _Config:
    """The section with the language model, and the rules of its type."""

    document: Document
    path: KeyPath
    """Where the section stands: `()` or `("text_config",)`."""
    name: str
    """The type whose rules are used."""
    rules: ModelType
    defaults: Mapping[str, object]
    notes: tuple[str, ...] = ()

    @property
    def section(self) -> Mapping[str, Any]:
        """The keys of the language model."""
        found: Any = self.document.data
        for key in self.path:
            found = found[key]
        return dict(found)

    def look(self, name: str) -> _Found:
        """Return what the file, else the default of the type, says about a field."""
        names = self.rules.keys.get(name, KEYS.get(name, (name,)))
        given = [key for key in names if key in self.section]
        values = [self.section[key] for key in given]
        told = [i for i, value in enumerate(values) if value is not None]
        for i in told[1:]:
            if values[i] != values[told[0]]:
                other = f"{given[told[0]]} is {show(values[told[0]])}"
                message = f"is {show(values[i])}, and {other}: they mean the same"
                raise SpecError(self.problem(given[i], message, "keep the right one"))
        if given:
            i = (told or [0])[0]
            here = (*self.path, given[i])
            return _Found(values[i], path_text(here), here)
        default = self.defaults.get(name)
        missing = f": no {names[0]} in the file" if names else ""
        return _Found(default, f"default of {self.name}{missing}", None)

    def count(self, name: str, least: int = 1) -> _Found:
        """Return a whole number, or None; `SpecError` for anything else."""
        found = self.look(name)
        value = found.value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None or (
            isinstance(value, int) and not isinstance(value, bool) and value >= least
        ):
            return _Found(value, found.text, found.path)
        message = f"expected a whole number from {least} on, got {show(found.value)}"
        raise SpecError(self.document.problem(found.path or (), message))

    def needed(self, name: str) -> _Found:
        """Return a whole number that must be there."""
        found = self.count(name)
        if found.value is None:
            names = self.rules.keys.get(name, KEYS[name]) or (name,)
            message = f"{names[0]} is missing" if found.path is None else "is null"
            fix = f"{self.name} needs it" + (f" ({', '.join(names)})" if len(names) > 1 else "")
            raise SpecError(self.document.problem(found.path or self.path, message, fix))
        return found

    def switch(self, name: Switch) -> _Found:
        """Return true or false; a switch that nothing says is off."""
        if isinstance(name, bool):
            return _Found(name, f"as in every {self.name}", None)
        found = self.look(name)
        if found.value is not None and not isinstance(found.value, bool):
            message = f"expected true or false, got {show(found.value)}"
            raise SpecError(self.document.problem(found.path or (), message))
        return _Found(bool(found.value), found.text, found.path)

    def numbers(self, name: str) -> tuple[list[int] | None, KeyPath | None]:
        """Return a list of whole numbers, or None."""
        found = self.look(name)
        if found.value is None:
            return None, found.path
        if not isinstance(found.value, Sequence) or not all(type(x) is int for x in found.value):
            message = f"expected a list of layers, got {show(found.value)}"
            raise SpecError(self.document.problem(found.path or (), message))
        return list(found.value), found.path

    def problem(self, key: str, message: str, fix: str = "") -> Problem:
        """Return a problem at a key of the section."""
        return self.document.problem((*self.path, key), message, fix)


def _open(document: Document, as_type: str) -> _Config:
    """Find the section with the language model and the rules to read it by."""
    data, path = document.data, ()
    notes: list[str] = []
    for name in _TEXT_SECTIONS:
        if isinstance(data.get(name), Mapping):
            path, section = (name,), data[name]
            break
    else:
        section = data
    left_out = [name for name in _OTHER_MODALITIES if data.get(name)]
    if left_out:
        notes.append(
            f"{' and '.join(left_out)} left out: this is the language model alone, without the"
            " time and the memory of the other towers"
        )
    stated = section.get("model_type", data.get("model_type"))
    if stated is not None and not isinstance(stated, str):
        message = f"expected a name, got {show(stated)}"
        raise SpecError(document.problem((*path, "model_type"), message))
    if as_type and as_type not in TYPES:
        known = ", ".join(close_names(as_type, TYPES) or TYPES)
        raise SpecError(Problem(f"--as: no type {as_type!r}", f"one of {known}"))
    name, others = (as_type, {}) if as_type else _type(document, path, section, stated)
    if stated and name not in (stated, stated.removesuffix("_text"), f"{stated}_text"):
        notes.append(f"model_type {stated} is read as {name}")
    if "auto_map" in data:
        notes.append(f"auto_map names code of its own, which is not run: read as {name}")
    rules = TYPES[name]
    return _Config(document, path, name, rules, {**rules.defaults, **others}, tuple(notes))


def _type(
    document: Document, path: KeyPath, section: Mapping[str, Any], stated: str | None
) -> tuple[str, Mapping[str, object]]:
    """Return the rules to read a file by, and the defaults that differ from theirs."""
    if stated in TYPES:
        return stated, {}
    if stated in ALIASES:
        return ALIASES[stated]
    where = (*path, "model_type")
    if stated in REFUSED:
        message = f"model_type {stated}: {REFUSED[stated]}, which the cost model does not have"
        raise SpecError(document.problem(where, message, f"known: {', '.join(TYPES)}"))
    by_class = {name.replace("_", ""): name for name in TYPES}
    for given in (section.get("architectures"), document.data.get("architectures")):
        for architecture in given if isinstance(given, list) else ():
            plain = re.sub(r"(For\w+|LMHeadModel|Model)$", "", str(architecture)).lower()
            if plain in by_class:
                return by_class[plain], {}
    if not _has_sizes(section) and stated is None:
        message = "none of the keys that say a model's size, such as model_type and hidden_size"
        raise SpecError(document.problem((), message, "is it the config.json of the model?"))
    close = close_names(stated, TYPES, 2) if stated else []
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    fix = f"{guess}known: {', '.join(TYPES)}"
    if _has_sizes(section):
        file = document.file or "config.json"
        fix += (
            "; if its layers are those of one of them, read it as that one:"
            f" planner import model {file} --as llama --out model.yaml"
        )
    message = f"unknown model_type {stated}" if stated else "model_type is missing"
    raise SpecError(document.problem(where, message, fix))


@dataclass(slots=True)
class _Importer:
    """Builds the document of a model file field by field."""

    config: _Config
    stated: Mapping[str, object]
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    origins: list[Origin] = field(default_factory=list)
    marks: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def imported(self) -> Imported:
        """Return the whole file."""
        self.notes += self.config.notes
        self._widths()
        n_expert_layers = self._experts()
        self._mlp(n_expert_layers)
        self._rest()
        self._training()
        self.notes += [note for make in _NOTES if (note := make(self.config, self.training))]
        self._name()
        order = [name for name in _ORDER if name in self.model]
        document = {"model": {name: self.model[name] for name in order}, "training": self.training}
        return Imported(
            kind="model",
            document=document,
            origins=tuple(sorted(self.origins, key=lambda o: _place(o.path))),
            source=self.config.document.file or "Python data",
            format=f"Hugging Face config.json ({self.config.name})",
            notes=tuple(self.notes),
            marks=self.marks,
        )

    def _put(
        self, path: KeyPath, value: object, text: str, at: KeyPath | None = None, *, assumed=False
    ) -> None:
        """Set one field, with its origin and the place where it stands in the input."""
        section = self.model if path[0] == "model" else self.training
        for key in path[1:-1]:
            section = section.setdefault(key, {})
        section[path[-1]] = value
        self.origins.append(Origin(path, text, assumed))
        document = self.config.document
        if at is not None and at in document.value_marks:
            self.marks[path] = document.value_marks[at]

    def _take(self, name: str, *path: str, needed: bool = True) -> int | None:
        """Copy one whole number of the file."""
        found = self.config.needed(name) if needed else self.config.count(name)
        if found.value is not None:
            where = ("model", *(path or (name,)))
            core = found.path is None and name in ("layers", "hidden", "heads", "vocab")
            self._put(where, found.value, found.text, found.path, assumed=core)
        return found.value

    def _widths(self) -> None:
        """Set layers, widths and heads."""
        config = self.config
        self._take("layers")
        hidden, heads = self._take("hidden"), self._take("heads")
        self._take("vocab")
        if config.rules.latent:
            if config.count("q_rank", 0).value:
                self._take("q_rank", "mla", "q_rank")
            else:
                path = config.look("q_rank").path
                self._put(("model", "mla", "q_rank"), 0, "queries are not compressed", path)
            for name in ("kv_rank", "qk_nope", "qk_rope", "v_head"):
                self._take(name, "mla", name)
            return
        self._kv_heads(heads or 1)
        head_dim = config.count("head_dim")
        if head_dim.value is not None:
            self._put(("model", "head_dim"), head_dim.value, head_dim.text, head_dim.path)
            return
        names = [config.needed(name).text for name in ("hidden", "heads")]
        if (hidden or 1) % (heads or 1):
            message = f"{hidden} is not a multiple of the {heads} heads"
            fix = "give head_dim, or correct one of them"
            path = config.needed("hidden").path or ()
            raise SpecError(config.document.problem(path, message, fix))
        self._put(("model", "head_dim"), (hidden or 1) // (heads or 1), " / ".join(names))

    def _kv_heads(self, heads: int) -> None:
        """Set the heads of keys and values; all heads share one in multi-query attention."""
        config, path = self.config, ("model", "kv_heads")
        multi_query = config.switch("multi_query")
        if multi_query.value and not config.switch("new_decoder").value:
            self._put(path, 1, f"one for all heads: {multi_query.text}", multi_query.path)
            return
        found = config.count("kv_heads")
        if found.value is not None:
            self._put(path, found.value, found.text, found.path)
        else:
            self._put(path, heads, "as many as heads")

    def _experts(self) -> int:
        """Set the experts; return how many layers have them."""
        config = self.config
        n_layers = int(self.model["layers"])
        if not config.rules.experts or config.count("experts", 0).value == 0:
            return 0
        layers = expert_layers(config, n_layers)
        n_expert_layers = sum(layers)
        if not n_expert_layers:
            self.notes.append("no layer has experts: read as a dense model")
            return 0
        dense, every = expert_pattern(layers, config)
        for name in ("experts", "topk", "moe_ffn"):
            self._take(name, "moe", name)
        shared = config.count("shared_experts", 0)
        if shared.value:
            self._put(("model", "moe", "shared_experts"), shared.value, shared.text, shared.path)
        width = config.count("shared_ffn", 0)
        if width.value:
            self._put(("model", "moe", "shared_experts"), 1, "one shared expert")
            self._put(("model", "moe", "shared_ffn"), width.value, width.text, width.path)
        if dense:
            source = config.look("first_dense")
            text = source.text if source.path else f"{n_layers - n_expert_layers} dense layers"
            self._put(("model", "moe", "dense_layers"), dense, text, source.path)
        if every > 1:
            source = config.look("expert_step")
            text = source.text if source.path else f"experts in every layer number {every}"
            self._put(("model", "moe", "every"), every, text, source.path)
        groups = config.count("groups")
        if (groups.value or 1) > 1 and config.look("topk_method").value != "greedy":
            self._put(("model", "moe", "routing_groups"), groups.value, groups.text, groups.path)
            self._take("top_groups", "moe", "top_groups")
        return n_expert_layers

    def _mlp(self, n_expert_layers: int) -> None:
        """Set the MLP of dense layers."""
        config = self.config
        gated = f"{'three' if config.rules.gated else 'two'} MLP matrices in every {config.name}"
        self._put(("model", "gated"), config.rules.gated, gated)
        if n_expert_layers == self.model["layers"]:
            return
        found = config.count("ffn")
        if found.value is None and not config.rules.gated:
            hidden = config.needed("hidden")
            self._put(("model", "ffn"), 4 * hidden.value, f"4 * {hidden.text}", found.path)
        else:
            self._take("ffn")

    def _rest(self) -> None:
        """Set what has few parameters: the head, norms, biases, positions, dropout."""
        config = self.config
        rules, every = config.rules, f"in every {config.name}"
        tied = config.switch("tied")
        outer = config.document.data.get("tie_word_embeddings")
        if tied.path is None and config.path and isinstance(outer, bool):
            tied = _Found(outer, "tie_word_embeddings", ("tie_word_embeddings",))
        self._put(("model", "tied"), tied.value, tied.text, tied.path)
        self._put(("model", "norm"), rules.norm, every)
        mlp_bias = config.switch(rules.biases[2])
        text = mlp_bias.text if mlp_bias.path or mlp_bias.value else "none in the MLP"
        self._put(("model", "bias"), mlp_bias.value, text, mlp_bias.path)
        self._put(("model", "positions"), rules.positions, every)
        if rules.positions == "learned":
            self._take("max_positions")
        self._dropout()
        embedding = config.count("embedding_width")
        if embedding.value not in (None, self.model["hidden"]):
            message = (
                f"the embeddings have width {embedding.value} and the layers"
                f" {self.model['hidden']}, with projections in between: the cost model has one width"
            )
            raise SpecError(config.document.problem(embedding.path or (), message))
        modules = config.count("mtp_layers", 0)
        if modules.value:
            self._put(("model", "mtp_layers"), modules.value, modules.text, modules.path)

    def _dropout(self) -> None:
        section = self.config.section
        given = {
            key: section[key]
            for key in DROPOUT_KEYS
            if isinstance(section.get(key), int | float) and section[key] is not True
        }
        on = [key for key, value in given.items() if value > 0]
        if on:
            text = f"{path_text((*self.config.path, on[0]))} {given[on[0]]:g}"
            self._put(("model", "dropout"), True, text, (*self.config.path, on[0]))
        elif not given and self.config.rules.dropout:
            rate = self.config.rules.dropout
            self._put(("model", "dropout"), True, f"default of {self.config.name}: {rate:g}")

    def _training(self) -> None:
        """Set the job, which such a file does not say."""
        seq_len, why = self._seq_len()
        self._put(("training", "seq_len"), seq_len, why, assumed=True)
        batch = assumed_batch(seq_len)
        words = f"{format_count(batch * seq_len)} tokens a step"
        self._put(("training", "global_batch"), batch, words, assumed=True)
        self._put(("training", "precision"), "bf16", self._weights(), assumed=True)
        self._put(("training", "optimizer"), "adam", "usual", assumed=True)

    def _weights(self) -> str:
        """Say what the weights of the file are stored in."""
        for section in (self.config.section, self.config.document.data):
            for key in ("dtype", "torch_dtype"):
                if isinstance(section.get(key), str):
                    return f"usual; the weights of the file are {section[key]}"
        return "usual"

    def _seq_len(self) -> tuple[int, str]:
        """Return the tokens of a sequence, as stated or assumed, and the reason."""
        given = self.stated.get("training.seq_len")
        if given is not None and str(given).isdigit() and int(str(given)) > 0:
            return int(str(given)), "stated"
        found = self.config.count("max_positions")
        name, original = _original_positions(self.config.section)
        bounds = [(LONGEST_SEQ_LEN, "not in the file")]
        if found.value:
            bounds = [(LONGEST_SEQ_LEN, f"of {found.text} {found.value}"), (found.value, found.text)]
        if original:
            bounds.append((original, name))
        return min(bounds)

    def _name(self) -> None:
        """Name the model: by its file, else as the file says, else by its folder or its type."""
        document = self.config.document
        path = PurePath(document.file)
        base = document.data.get("_name_or_path")
        hub = re.search(r"models--[^/\\]+?--([^/\\]+)", document.file)
        tries = (
            (path.stem if path.stem not in _PLAIN_STEMS else "", "name of the file"),
            (PurePath(base).name if isinstance(base, str) else "", "_name_or_path"),
            (hub[1] if hub else "", "folder of the file"),
            (path.parent.name, "folder of the file"),
            (self.config.name, "model_type"),
        )
        for name, text in tries:
            plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-._+")[:64]
            if plain:
                self._put(("model", "name"), plain, text)
                return


_PLAIN_STEMS = ("", "config", "text_config", "-", "stdin")
"""Names of files that say nothing of the model."""

_ORDER = (
    "name", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "gated", "vocab", "tied",
    "norm", "bias", "positions", "max_positions", "dropout", "mla", "moe", "mtp_layers",
)  # fmt: skip
"""Fields of `model:` in the order of the file."""


def _place(path: KeyPath) -> tuple[int, int, str]:
    """Return where an origin stands: the model before the job, fields in the order of the file."""
    known = _ORDER.index(str(path[1])) if path[1] in _ORDER else len(_ORDER)
    return int(path[0] != "model"), known, ""


def assumed_batch(seq_len: int) -> int:
    """Return the sequences of a step: the power of two with which it is nearest to 4 M tokens.

    >>> assumed_batch(8192), assumed_batch(2048), assumed_batch(10**9)
    (512, 2048, 1)
    """
    return int(2 ** max(0, round(math.log2(TOKENS_PER_STEP / seq_len))))


def _original_positions(section: Mapping[str, Any]) -> tuple[str, int]:
    """Return the sequences of pre-training where rotary positions were stretched afterwards."""
    key = "original_max_position_embeddings"
    for name in ("rope_scaling", "rope_parameters", ""):
        inner = section.get(name) if name else section
        value = inner.get(key) if isinstance(inner, Mapping) else None
        if isinstance(value, int) and value > 0:
            return f"{name}.{key}" if name else key, value
    return "", 0


def expert_layers(config: _Config, n_layers: int) -> list[bool]:
    """Return which layers have experts."""
    listed, _ = config.numbers("expert_list")
    if listed is not None:
        return [i in listed for i in range(n_layers)]
    dense, _ = config.numbers("dense_list")
    first = config.count("first_dense", 0).value or 0
    frequency = config.count("expert_frequency").value or 1
    step = config.count("expert_step").value or 1
    return [
        i >= first and i % frequency == 0 and (i + 1) % step == 0 and i not in (dense or ())
        for i in range(n_layers)
    ]


def expert_pattern(layers: Sequence[bool], config: _Config) -> tuple[int, int]:
    """Return the number of dense layers before, and of which of the others every n-th has experts.

    Raises `SpecError` for another pattern, which a model file cannot say.
    """
    first = list(layers).index(True)
    for every in range(1, first + 2):
        dense = first + 1 - every
        if all(
            on == (i >= dense and (i - dense + 1) % every == 0) for i, on in enumerate(layers)
        ):
            return dense, every
    names = ("expert_list", "dense_list", "expert_frequency", "expert_step")
    at = next((p for name in names if (p := config.look(name).path)), config.path)
    kinds = "".join("x" if on else "-" for on in layers[:24]) + ("..." * (len(layers) > 24))
    message = (
        f"experts (x) and dense layers (-) follow each other as {kinds}: the cost model has experts"
        " in every n-th layer after the first dense ones"
    )
    fix = "write a model file with the nearest pattern (`dense_layers` and `every` of `model.moe`)"
    raise SpecError(config.document.problem(at, message, fix))


def _local_layers(config: _Config, n_layers: int) -> int:
    """Return how many layers see a window (or a chunk) of the sequence only."""
    types = config.look("layer_types")
    if types.value is not None:
        listed = types.value if isinstance(types.value, list) else [types.value]
        for i, kind in enumerate(listed):
            if kind not in (_FULL_ATTENTION, *_LOCAL_ATTENTION):
                message = f"layers with {show(kind)}, which the cost model does not have"
                raise SpecError(config.document.problem((*(types.path or ()), i), message))
        return sum(kind in _LOCAL_ATTENTION for kind in listed)
    if config.look("window_on").value is False:
        return 0
    pattern = config.count("window_pattern").value
    if pattern:
        return sum((i + 1) % pattern > 0 for i in range(n_layers))
    alternating = config.look("attention_types")
    if alternating.value is not None:
        try:
            return sum(kinds.count("local") * times for kinds, times in alternating.value)
        except (TypeError, ValueError, AttributeError):
            message = f"expected [[[\"global\", \"local\"], n]], got {show(alternating.value)}"
            raise SpecError(config.document.problem(alternating.path or (), message)) from None
    return n_layers - min(n_layers, config.count("window_from", 0).value or 0)


def _window_note(config: _Config, training: Mapping[str, Any]) -> str:
    """Say by how much the attention of local layers is priced too high."""
    n_layers = int(config.needed("layers").value)
    n_local, window = _local_layers(config, n_layers), config.count("window").value
    seq_len = int(training["seq_len"])
    if not n_local or not window or seq_len <= window:
        return ""
    if config.look("window").text.endswith("attention_chunk_size"):
        pairs = seq_len * (window + 1) / 2
    else:
        pairs = window * seq_len - window * (window - 1) / 2
    times = seq_len * (seq_len + 1) / 2 / pairs
    return (
        f"{n_local} of {n_layers} layers attend to {window} tokens at a time and are priced over"
        f" all {seq_len}: {times:.3g} times their attention, so that real steps are shorter"
    )


def _parallel_note(config: _Config, _: Mapping[str, Any]) -> str:
    if not (config.switch(config.rules.parallel).value or config.switch("new_decoder").value):
        return ""
    return (
        "attention and MLP stand side by side and are priced one after the other: a framework that"
        " joins them has half the tensor-parallel traffic, so that real steps may be shorter"
    )


def _alibi_note(config: _Config, _: Mapping[str, Any]) -> str:
    if not config.switch("alibi").value:
        return ""
    return "ALiBi is priced as rotary positions: as many parameters, nearly the same time"


def _cap_note(config: _Config, _: Mapping[str, Any]) -> str:
    if not config.look("soft_cap").value:
        return ""
    return (
        "attention scores are capped, priced as in a fused kernel that does it; without one the"
        " score matrix is stored, and memory and time are higher (model.flash_attention=false)"
    )


def _small_parts_note(config: _Config, _: Mapping[str, Any]) -> str:
    """Name the parts that are left out because they are small."""
    rules, parts = config.rules, list(config.rules.extra)
    if config.switch(rules.qk_norm).value:
        parts.insert(0, "norms of queries and keys")
    qkv, out, mlp = (config.switch(name).value for name in rules.biases)
    uneven = [w for w, on in (("queries, keys and values", qkv), ("attention outputs", out)) if on]
    if uneven and not mlp:
        parts.insert(0, "biases of " + " and ".join(uneven))
    if not parts:
        return ""
    return (
        f"left out, below 0.1 % of the parameters and about 1 % of a step: {', '.join(parts)}"
    )


def _quantized_note(config: _Config, _: Mapping[str, Any]) -> str:
    for section in (config.section, config.document.data):
        given = section.get("quantization_config")
        if isinstance(given, Mapping):
            method = given.get("quant_method")
            name = f" ({method})" if isinstance(method, str) else ""
            return f"the weights of the file are quantized{name}: read as the model trained in bf16"
    return ""


def _mtp_note(config: _Config, _: Mapping[str, Any]) -> str:
    n = config.count("mtp_layers", 0).value
    if not n:
        return ""
    return (
        f"{n} module(s) of multi-token prediction are trained too; model.mtp_layers=0 leaves"
        " them out"
    )


_NOTES: tuple[Callable[[_Config, Mapping[str, Any]], str], ...] = (
    _window_note,
    _parallel_note,
    _alibi_note,
    _cap_note,
    _small_parts_note,
    _mtp_note,
    _quantized_note,
)
