"""Looks values up in a configuration by the names of its type, and says where they stand."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import Problem, SpecError
from planner.intake.huggingface.files import TEXT_SECTIONS, has_sizes
from planner.intake.huggingface.model_types import (
    ALIASES,
    KEYS,
    REFUSED,
    SIZES,
    TYPES,
    ModelType,
    Switch,
)
from planner.units import show
from planner.yamlfile import Document, KeyPath, close_names, path_text

_OTHER_TOWERS = ("vision_config", "audio_config", "vision_tower", "mm_vision_tower")


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

    @property
    def section(self) -> Mapping[str, Any]:
        """The keys of the language model."""
        found: Any = self.document.data
        for key in self.path:
            found = found[key]
        return dict(found)

    def look(self, name: str) -> Found:
        """Return what the file, else the default of the type, says about a field.

        Two names of the same thing with different values are a `SpecError`.
        """
        names, section = self.rules.keys.get(name, KEYS[name]), self.section
        given = [key for key in names if key in section]
        told = [key for key in given if section[key] is not None]
        for key in told[1:]:
            if section[key] != section[told[0]]:
                message = (
                    f"is {show(section[key])}, and {told[0]} is {show(section[told[0]])}:"
                    " they mean the same"
                )
                raise SpecError(self.problem((*self.path, key), message, "keep the right one"))
        if given:
            key = (told or given)[0]
            path = (*self.path, key)
            return Found(section[key], path_text(path), path)
        missing = f": no {names[0]} in the file" if names else ""
        return Found(self.defaults.get(name), f"default of {self.name}{missing}", None)

    def count(self, name: str, least: int = 1) -> Found:
        """Return a whole number, or None; `SpecError` for anything else."""
        found = self.look(name)
        value = found.value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and value >= least):
            message = f"expected a whole number from {least} on, got {show(found.value)}"
            raise SpecError(self.problem(found.path, message))
        return Found(value, found.text, found.path)

    def needed(self, name: str) -> Found:
        """Return a whole number that must be there."""
        found = self.count(name)
        if found.value is None:
            names = self.rules.keys.get(name, KEYS[name]) or (name,)
            message = f"{names[0]} is missing" if found.path is None else "is null"
            raise SpecError(self.problem(found.path, message, f"{self.name} needs it"))
        return found

    def switch(self, name: Switch) -> Found:
        """Return true or false; a switch that nothing says is off."""
        if isinstance(name, bool):
            return Found(name, f"as in every {self.name}", None)
        found = self.look(name)
        if found.value is not None and not isinstance(found.value, bool):
            message = f"expected true or false, got {show(found.value)}"
            raise SpecError(self.problem(found.path, message))
        return Found(bool(found.value), found.text, found.path)

    def numbers(self, name: str) -> list[int] | None:
        """Return a list of whole numbers, or None."""
        found = self.look(name)
        if found.value is None:
            return None
        if not isinstance(found.value, Sequence) or not all(type(x) is int for x in found.value):
            message = f"expected a list of layers, got {show(found.value)}"
            raise SpecError(self.problem(found.path, message))
        return list(found.value)

    def problem(self, path: KeyPath | None, message: str, fix: str = "") -> Problem:
        """Return a problem at a place of the file; at the section where there is no place."""
        return self.document.problem(self.path if path is None else path, message, fix)


def open_config(document: Document, as_type: str = "") -> Config:
    """Find the section with the language model and the rules to read it by.

    `as_type` replaces the type that the file states.
    """
    data = document.data
    inner = next((name for name in TEXT_SECTIONS if isinstance(data.get(name), Mapping)), None)
    path: KeyPath = (inner,) if inner else ()
    section = data[inner] if inner else data
    stated = section.get("model_type", data.get("model_type"))
    if stated is not None and not isinstance(stated, str):
        message = f"expected a name, got {show(stated)}"
        raise SpecError(document.problem((*path, "model_type"), message))
    if as_type and as_type not in TYPES:
        known = ", ".join(close_names(as_type, TYPES) or TYPES)
        raise SpecError(Problem(f"--as: no type {as_type!r}", f"one of {known}"))
    if as_type:
        name = as_type
        # The sizes of another type are no defaults of this one.
        others: Mapping[str, object] = dict.fromkeys(SIZES)
    else:
        name, others = _type(document, path, section, stated)
    rules, notes = TYPES[name], _notes(data, stated, name)
    return Config(document, path, name, rules, {**rules.defaults, **others}, notes)


def _notes(data: Mapping[str, Any], stated: str | None, name: str) -> tuple[str, ...]:
    """Return what is left out of the file, and that it is read as another type than it says."""
    notes = []
    if towers := [key for key in _OTHER_TOWERS if data.get(key)]:
        notes.append(
            f"{' and '.join(towers)} left out: this is the language model alone, without the"
            " time and the memory of the other towers"
        )
    if stated and name not in (stated, f"{stated}_text"):
        code = ", without the code that auto_map names" if "auto_map" in data else ""
        notes.append(f"model_type {stated} is read as {name}{code}")
    return tuple(notes)


def _type(
    document: Document, path: KeyPath, section: Mapping[str, Any], stated: str | None
) -> tuple[str, Mapping[str, object]]:
    """Return the type to read a file as, and the defaults in which it differs."""
    where = (*path, "model_type")
    if stated is not None and stated in TYPES:
        return stated, {}
    if stated is not None and stated in ALIASES:
        return ALIASES[stated]
    if stated is not None and stated in REFUSED:
        message = f"model_type {stated}: {REFUSED[stated]}, which the cost model does not have"
        raise SpecError(document.problem(where, message, f"known: {', '.join(TYPES)}"))
    by_class = {name.replace("_", ""): name for name in TYPES}
    for given in (section.get("architectures"), document.data.get("architectures")):
        for architecture in given if isinstance(given, list) else ():
            plain = re.sub(r"(For\w+|LMHeadModel|Model)$", "", str(architecture)).lower()
            if plain in by_class:
                return by_class[plain], {}
    if stated is None and not has_sizes(section):
        message = "none of the keys that say a model's size, such as model_type and hidden_size"
        raise SpecError(document.problem((), message, "is it the config.json of the model?"))
    close = close_names(stated, TYPES, 2) if stated else []
    fix = f"did you mean {' or '.join(close)}? " if close else ""
    fix += f"known: {', '.join(TYPES)}"
    if has_sizes(section):
        file = document.file or "config.json"
        fix += (
            "; if its layers are those of one of them, read it as that one:"
            f" planner import model {file} --as llama --out model.yaml"
        )
    message = f"unknown model_type {stated}" if stated else "model_type is missing"
    raise SpecError(document.problem(where, message, fix))
