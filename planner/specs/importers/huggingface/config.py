"""Looks values up in a configuration by the names of its type, and says where they stand."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.specs.importers.huggingface.by_fields import SIGNS, rules_by_fields
from planner.specs.importers.huggingface.families.params_json import PARAMS_TYPES, params_type
from planner.specs.importers.huggingface.families.refused import REFUSED
from planner.specs.importers.huggingface.files import TEXT_SECTIONS, has_sizes
from planner.specs.importers.huggingface.model_types import ALIASES, TYPES
from planner.specs.importers.huggingface.rules import KEYS, SIZES, ModelType, Switch
from planner.specs.yaml.document import Document, KeyPath, close_names, path_text
from planner.units import shown_value

_ABSENT = object()
ODD_VALUES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What computing with values of other types than were meant may raise."""
_OTHER_TOWERS = (
    "vision_config",
    "audio_config",
    "vision_tower",
    "mm_vision_tower",
    "vit_config",
    "visual_tokenizer_config",
    "visual",
    "img_processor",
    "audio_processor",
    "perceiver_config",
    "talker_config",
    "token2wav_config",
    "code2wav_config",
    "tts_config",
    "gen_vision_config",
    "vq_config",
    "kimi_audio_config",
)


class UnknownTypeError(SpecError):
    """No row of the table is that of a file, and none of its names says what it is."""


@dataclass(frozen=True, slots=True)
class Found:
    """A value and where it stands."""

    value: Any
    text: str
    """Its key, or whose default it is."""
    path: KeyPath | None
    """None where it is a default, or where nothing says it."""


@dataclass(frozen=True, slots=True)
class Config:
    """The section with the language model, and the rules of its type."""

    document: Document
    path: KeyPath
    """Where the section stands: `()` or `("text_config",)`."""
    name: str
    """The type whose rules are used."""
    rules: ModelType
    defaults: Mapping[str, object]
    """By field, where the file does not say it."""
    notes: tuple[str, ...] = ()
    """On the choice of the section and of the type."""
    borrowed: bool = False
    """The rules are those of another type than the file states, and their defaults not its own."""
    by_fields: bool = False
    """The type is unknown: the rules are made of the file's own keys (`by_fields`)."""

    def always(self, field: str = "") -> Found:
        """Return what every model of the type has; of an unknown one, which key of it tells."""
        if not self.by_fields:
            return Found(True, f"in every {self.name}", None)
        for key in SIGNS.get(field, ()):
            if self.section.get(key) is not None:
                return Found(True, key, (*self.path, key))
        return Found(True, "no key says otherwise", None)

    @property
    def section(self) -> Mapping[str, Any]:
        """The keys of the language model."""
        result: Any = self.document.data
        for key in self.path:
            result = result[key]
        return dict(result)

    def look(self, name: str) -> Found:
        """Return what the file, else the default of the type, says about a field.

        Two names of the same thing with different values are a `SpecError`.
        """
        names = self.rules.keys.get(name, KEYS[name])
        section = {key: value for key, value in self._values(names) if value is not _ABSENT}
        if name in self.rules.null_is_missing:
            section = {key: value for key, value in section.items() if value is not None}
        if name == "vocab" and section.get("vocab_size") == -1:
            section = {}  # Llama's first files leave it to the tokenizer
        values = [key for key in names if key in section]
        present = [key for key in values if section[key] is not None]
        for key in present[1:]:
            if _one(section[key]) != _one(section[present[0]]):
                message = (
                    f"is {shown_value(section[key])}, and {present[0]} is "
                    f"{shown_value(section[present[0]])}:"
                    " they mean the same"
                )
                path = (*self.path, *key.split("."))
                raise SpecError(self.problem(path, message, "keep the right one"))
        if values and not (section[values[0]] == "auto" and name in self.rules.computed):
            key = (present or values)[0]
            path = (*self.path, *key.split("."))
            return Found(section[key], path_text(path), path)
        missing = f"no {names[0]} in the file" if names else ""
        if name in self.rules.computed:
            value = self._computed(name)
            return Found(value, f"computed as in every {self.name}: {missing}", None)
        if self.by_fields:
            return Found(self.defaults.get(name), missing or "no key says it", None)
        text = f"default of {self.name}" + f": {missing}" * bool(missing)
        return Found(self.defaults.get(name), text, None)

    def _computed(self, name: str) -> Any:
        """Return what the values of other fields come to; `SpecError` where these are odd."""
        seen: dict[str, Found] = {}

        def look(other: str) -> Any:
            seen[other] = self.look(other)
            return seen[other].value

        try:
            return self.rules.computed[name](look)
        except ODD_VALUES:
            said = [f"{x.text} {shown_value(x.value)}" for x in seen.values() if x.path]
            paths = [x.path for x in seen.values() if x.path]
            message = (
                f"{name} cannot be computed with {' and '.join(said) or 'no key that says it'}"
            )
            problem = self.problem(paths[-1] if paths else None, message, "state whole numbers")
            raise SpecError(problem) from None

    def ffn_width(self) -> tuple[int, str] | None:
        """Return the width of MLPs that several keys say, and how; None where one key says it.

        Raises `SpecError` where what they hold is no width.
        """
        if self.rules.ffn_of is None:
            return None
        try:
            return self.rules.ffn_of(self.section)
        except ODD_VALUES as error:
            message = f"the width of MLPs cannot be computed: {error}"
            raise SpecError(self.problem(None, message, f"as {self.name} has its keys")) from None

    def _values(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """Yield the value of each name; those with a dot stand in an inner section."""
        data = self.section
        for name in names:
            outer, _, inner = name.partition(".")
            value = data.get(outer, _ABSENT)
            if inner:
                value = value.get(inner, _ABSENT) if isinstance(value, Mapping) else _ABSENT
            yield name, value

    def count(self, name: str, least: int = 1) -> Found:
        """Return a whole number, or None; `SpecError` for anything else.

        A list with the same number for every layer is that number.
        """
        result = self.look(name)
        value = result.value
        if (value is False and name in ("groups", "top_groups")) or (
            value == 0 == least - 1 and (name == "window")
        ):
            value = None
        value = _one(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (is_whole and value >= least):
            message = f"expected a whole number from {least} on, got {shown_value(result.value)}"
            raise SpecError(self.problem(result.path, message))
        return Found(value, result.text, result.path)

    def needed(self, name: str) -> Found:
        """Return a whole number that must be there."""
        result = self.count(name)
        if result.value is None:
            names = self.rules.keys.get(name, KEYS[name]) or (name,)
            message = f"{names[0]} is missing" if result.path is None else "is null"
            raise SpecError(self.problem(result.path, message, f"{self.name} needs it"))
        return result

    def switch(self, name: Switch) -> Found:
        """Return true or false; a switch that nothing says is off."""
        if isinstance(name, bool):
            text = "no key says it" if self.by_fields else f"as in every {self.name}"
            return Found(name, text, None)
        result = self.look(name)
        if result.value is not None and not isinstance(result.value, bool):
            message = f"expected true or false, got {shown_value(result.value)}"
            raise SpecError(self.problem(result.path, message))
        return Found(bool(result.value), result.text, result.path)

    def numbers(self, name: str) -> list[int] | None:
        """Return a list of whole numbers, or None."""
        result = self.look(name)
        if result.value is None:
            return None
        stated = result.value.split(",") if isinstance(result.value, str) else ()
        if stated and all(x.strip().isdecimal() for x in stated):
            return [int(x) for x in stated]
        if not isinstance(result.value, Sequence) or not all(type(x) is int for x in result.value):
            message = f"expected a list of layers, got {shown_value(result.value)}"
            raise SpecError(self.problem(result.path, message))
        return list(result.value)

    def problem(self, path: KeyPath | None, message: str, fix: str = "") -> InputProblem:
        """Return a problem at a place of the file; at the section where there is no place."""
        return self.document.problem(self.path if path is None else path, message, fix)


def _one(value: Any) -> Any:
    """Return what a list says of every layer; any other value as it is."""
    is_same = isinstance(value, list) and value and all(x == value[0] for x in value)
    return value[0] if is_same else value


def open_config(document: Document, as_type: str = "") -> Config:
    """Find the section with the language model and the rules to read it by.

    `as_type` replaces the type that the file states.
    """
    data = document.data
    path, section, type_name = _language_model(document)
    if type_name is not None and not isinstance(type_name, str):
        message = f"expected a name, got {shown_value(type_name)}"
        raise SpecError(document.problem((*path, "model_type"), message))
    if as_type and as_type not in TYPES:
        choices = ", ".join(close_names(as_type, TYPES) or TYPES)
        raise SpecError(InputProblem(f"--as: no type {as_type!r}", f"one of {choices}"))
    if as_type:
        nothing: Mapping[str, object] = dict.fromkeys(SIZES)
        name, others, borrowed = as_type, nothing, True
    else:
        name, others, borrowed = _type(document, path, section, type_name)
    rules, notes = {**TYPES, **PARAMS_TYPES}[name], _notes(data, type_name, name)
    defaults = {**rules.defaults, **others}
    return Config(document, path, name, rules, defaults, notes, borrowed)


def open_by_fields(document: Document, others: Sequence[str] = ()) -> Config:
    """Return a file of an unknown type with rules made of its own keys.

    `others`: known types that have all of its keys too, for the note.
    """
    path, section, type_name = _language_model(document)
    name = str(type_name or "file")
    start = f"model_type {type_name} is not known" if type_name else "the file has no model_type"
    close = close_names(str(type_name), TYPES, 2) if type_name else []
    start += f" (did you mean {' or '.join(close)}?)" if close else ""
    offer = f"; --as {others[0]} reads it as that type" if others else ""
    if others[1:]:
        offer += f" (or as {', '.join(others[1:])})"
    note = f"{start}: read by its fields, what none of them says is assumed{offer}"
    rules = rules_by_fields(section)
    towers = _notes(document.data, None, name)
    return Config(
        document, path, name, rules, rules.defaults, (note, *towers), False, by_fields=True
    )


def _language_model(document: Document) -> tuple[KeyPath, Mapping[str, Any], Any]:
    """Return where the section with the language model stands, it, and the type that it states."""
    data = document.data
    path: KeyPath = ()
    section: Mapping[str, Any] = data
    for _ in range(2):  # a thinker of speech holds a section of text itself
        inner = next((x for x in TEXT_SECTIONS if isinstance(section.get(x), Mapping)), None)
        if inner is None:
            break
        path, section = (*path, inner), section[inner]
    return path, section, section.get("model_type", data.get("model_type"))


def _notes(data: Mapping[str, Any], type_name: str | None, name: str) -> tuple[str, ...]:
    """Return what is left out of the file, and that it is read as another type than it says."""
    notes = []
    thinker = data.get("thinker_config")
    inner = thinker if isinstance(thinker, Mapping) else {}
    if towers := [key for key in _OTHER_TOWERS if data.get(key) or inner.get(key)]:
        notes.append(
            f"{' and '.join(towers)} left out: this is the language model alone, without the"
            " time and the memory of the other towers"
        )
    if name == "molmo":
        notes.append(
            "the tower of images left out, whose sizes stand in the code beside the weights: this"
            " is the language model alone"
        )
    if type_name and name not in (type_name, f"{type_name}_text"):
        code = ", without the code that auto_map names" if "auto_map" in data else ""
        notes.append(f"model_type {type_name} is read as {name}{code}")
    return tuple(notes)


def _type(
    document: Document, path: KeyPath, section: Mapping[str, Any], type_name: str | None
) -> tuple[str, Mapping[str, object], bool]:
    """Return the type to read a file as, the defaults in which it differs, and if it is borrowed.

    The sizes of another type are no defaults of a file that only names its class.
    """
    where = (*path, "model_type")
    classes = [_BY_CLASS.get(x, ("", {}))[0] for x in _class_words(document, section)]
    words = classes if type_name is None else [type_name]
    rows = [TYPES.get(x) or TYPES.get(ALIASES.get(x, ("", {}))[0]) for x in words]
    if not any(known and (known.mixer or known.own_layers) for known in rows):
        _refuse_by_key(document, path, section)
    type_name = _renamed(document, section, type_name)
    if type_name is None and (name := params_type(section)):
        return name, {}, False
    if type_name is not None and type_name in TYPES:
        return type_name, {}, False
    if type_name is not None and type_name in ALIASES:
        return *ALIASES[type_name], False
    if type_name is not None and type_name.lower() in REFUSED:
        message = f"model_type {type_name}: {REFUSED[type_name.lower()]}, which is not priced"
        raise SpecError(document.problem(where, message, _NO_OTHER))
    if found := _type_of_class(document, section, type_name):
        return found
    if type_name is None and not has_sizes(section):
        message = "none of the keys that say a model's size, such as model_type and hidden_size"
        raise SpecError(document.problem((), message, "is it the config.json of the model?"))
    close = close_names(type_name, TYPES, 2) if type_name else []
    fix = f"did you mean {' or '.join(close)}? " if close else ""
    message = f"unknown model_type {type_name}" if type_name else "model_type is missing"
    raise UnknownTypeError(document.problem(where, message, fix))


def _class_words(document: Document, section: Mapping[str, Any]) -> dict[str, str]:
    """Return the classes that a file names, by the start of their names in small letters."""
    stated = [section.get("architectures"), document.data.get("architectures")]
    classes = [str(x) for names in stated if isinstance(names, list) for x in names]
    ends = re.compile(r"(For\w+|LMHeadModel|Model)$")
    return {ends.sub("", architecture).lower(): architecture for architecture in classes}


def _type_of_class(
    document: Document, section: Mapping[str, Any], type_name: str | None
) -> tuple[str, Mapping[str, object], bool] | None:
    """Return what `_type` does by the class that a file names; None where that says nothing.

    A file without a type is what its class says, whose defaults but sizes it has. Raises
    `SpecError` where the layers of such a class have no price.
    """
    for plain, architecture in _class_words(document, section).items():
        if plain in _BY_CLASS:
            name, others = _BY_CLASS[plain]
            name = (_renamed(document, section, name) or name) if type_name is None else name
            unknown = (x for x in SIZES if TYPES[name].keys.get(x, KEYS[x]))
            return name, {**others, **dict.fromkeys(unknown)}, type_name is not None
        if type_name is None and plain in _REFUSED_BY_CLASS:
            message = f"{architecture}: {_REFUSED_BY_CLASS[plain]}, which is not priced"
            raise SpecError(document.problem((), message, _NO_OTHER))
    return None


def _class_word(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_BY_CLASS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    **{_class_word(name): row for name, row in ALIASES.items()},
    **{_class_word(name): (name, {}) for name in TYPES},
}
"""Type and defaults of its own by the start of a class's name."""
_REFUSED_BY_CLASS = {
    _class_word(name): why for name, why in REFUSED.items() if "does not say" not in why
}
"""What the layers of a class have, where its name alone tells."""


def _renamed(document: Document, section: Mapping[str, Any], type_name: str | None) -> str | None:
    """Return the name of the layers where a file has that of others."""
    architectures = section.get("architectures", document.data.get("architectures"))
    if type_name == "git" and architectures == ["Grok1ForCausalLM"]:
        return "grok-2"
    if type_name is not None and type_name in _BY_VERSION:
        version = str(section.get("version", ""))
        return _BY_VERSION[type_name].get(version, type_name)
    if type_name == "bailing_hybrid" and not _has_deltas(section, architectures):
        return "bailing_moe_v2_5"
    if type_name == "xverse" and section.get("num_experts"):
        return "xverse_moe"
    if type_name == "hunyuan" and section.get("num_experts", 1) in (None, 1):
        return "hunyuan_v1_dense"
    is_latent = section.get("use_mla") is not False and section.get("kv_lora_rank", 1)
    return "deepseek" if type_name == "deepseek_v2" and not is_latent else type_name


def _has_deltas(section: Mapping[str, Any], architectures: Any) -> bool:
    """Tell whether a hybrid Ling has delta nets (3.0) or lightning attention (2.5)."""
    if isinstance(architectures, list | str) and "BailingMoeV2_5ForCausalLM" in architectures:
        return False
    return "group_norm_size" not in section or any("kda" in key for key in section)


_BY_VERSION: Mapping[str, Mapping[str, str]] = {
    "minicpmv": {
        "2.0": "minicpm",
        "2.5": "llama",
        "2.6": "qwen2",
        "4.0": "llama",
        "4": "llama",
        "4.5": "qwen3",
    },
    "minicpmo": {"2.6": "qwen2", "4.5": "qwen3"},
}
"""By type and its key `version`, whose layers the language model has."""


_BY_KEY: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("ssm_cfg",),
        "the configuration of an original Mamba (state-spaces): layers with a state space in place"
        " of attention",
    ),
    (
        ("block_configs", "num_key_value_heads_per_layer", "layer_configs", "num_query_heads"),
        "layers that differ from one another in width, as an architecture search (NAS) left them",
    ),
    (
        ("ssm_state_size", "ssm_cfg.layer", "state_size", "mamba_layer_idx"),
        "layers with a state space (Mamba) in place of attention",
    ),
    (("attn_layer_period",), "attention in some layers only, a state space in the others"),
)


def _refuse_by_key(document: Document, path: KeyPath, section: Mapping[str, Any]) -> None:
    """Refuse a file whose keys say that its layers are of a kind without a price."""
    for names, what in _BY_KEY:
        for name in names:
            value = section.get(name)
            if (value or (name == "ssm_cfg" and value is not None)) and not (
                isinstance(value, int) and name == "num_query_heads"
            ):
                message = f"{what}, which is not priced"
                raise SpecError(document.problem((*path, name), message, _NO_OTHER))


_NO_OTHER = "no other type has these layers: `--as` is of no use"
