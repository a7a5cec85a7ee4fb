"""The keys that an experiment of Primus may set, with what its presets set of them.

The table (`planner/data/primus_options.json`) was asked of one commit by scripts/primus_options.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from planner.frameworks.megatron.flags import default_of


@dataclass(frozen=True, slots=True)
class PrimusOption:
    """One key of an experiment."""

    key: str
    flags: tuple[str, ...]
    """Options of Megatron-LM's parser that set it; none for a key of Primus alone."""
    kind: str
    """`int`, `float`, `str`, `bool`, `pattern`; empty where the table does not know it."""
    has_several: bool
    """Whether the parser takes a list."""
    default: Any
    """The parser's."""
    choices: tuple[Any, ...]
    has_preset: bool
    """Whether the presets set it, so that the parser's default never counts."""
    preset: Any
    """What `pre_trainer.yaml` and `language_model.yaml` set, with the files that they extend."""


@cache
def option_table() -> tuple[Mapping[str, Any], Mapping[str, PrimusOption]]:
    """Return where the table is of (`commit`, `core_commit`), and the options by key."""
    text = (files("planner") / "data" / "primus_options.json").read_text(encoding="utf-8")
    data = json.loads(text)
    options = {
        row["key"]: PrimusOption(
            row["key"],
            tuple(row["flags"]),
            row["kind"],
            "nargs" in row,
            row.get("default"),
            tuple(row.get("choices", ())),
            "preset" in row,
            row.get("preset"),
        )
        for row in data.pop("options")
    }
    return data, options


@cache
def known_keys() -> frozenset[str]:
    """Return the keys that something reads: options, and names that code of Primus reads."""
    data, options = option_table()
    return frozenset((*options, *data["also_read"]))


def presets() -> dict[str, Any]:
    """Return what the presets set, by key."""
    return {key: one.preset for key, one in option_table()[1].items() if one.has_preset}


def default_value(key: str) -> Any:
    """Return the value of a key that no file sets: the parser's default.

    That of a newer parser where the commit's is not known.
    """
    one = option_table()[1].get(key)
    return one.default if one is not None and one.flags else default_of(key)


def odd_values(settings: Mapping[str, Any]) -> list[str]:
    """Return what of the settings of an experiment Primus does not have, a sentence each.

    Keys that the table does not hold, values of another type than the key's, words outside its
    choices. A null is taken for every key.
    """
    result = []
    for key, value in settings.items():
        one = option_table()[1].get(key)
        if one is None:
            result.append(f"{key}: no key of Primus")
        elif value is not None and (fault := _fault(one, value)):
            result.append(f"{key}: {fault}")
    return result


_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "pattern": (int, str, list),
}


def _fault(one: PrimusOption, value: Any) -> str:
    if one.kind == "bool" or isinstance(value, bool):
        is_right = isinstance(value, bool) and one.kind in ("bool", "")
        return "" if is_right else f"{value!r} where {one.kind or 'another value'} is due"
    values = value if isinstance(value, list) and one.has_several else [value]
    for each in values:
        if one.kind in _TYPES and not isinstance(each, _TYPES[one.kind]):
            return f"{each!r} is no {one.kind}"
        if one.choices and each not in one.choices:
            return f"{each!r} is not one of {', '.join(map(str, one.choices))}"
    return ""
