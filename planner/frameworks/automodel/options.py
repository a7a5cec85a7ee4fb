"""The keys that sections of a recipe take, their kinds and choices, of one release.

The table (`planner/data/automodel_options.json`) is read of the package's code by
scripts/automodel_options.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from planner.frameworks.runs.settings import flattened
from searches.frameworks.automodel.keys import strategy_of


@dataclass(frozen=True, slots=True)
class RecipeKey:
    """One key of a section."""

    kind: str
    """`int`, `float`, `bool`, `str`; empty where the table does not know it, or where several
    are taken."""
    choices: tuple[str, ...]
    default: Any


@cache
def option_table() -> tuple[Mapping[str, Any], Mapping[str, Mapping[str, RecipeKey]]]:
    """Return where the table is of (`package`, `release`, ...), and the keys by section."""
    text = (files("planner") / "data" / "automodel_options.json").read_text(encoding="utf-8")
    data = json.loads(text)
    sections = {
        name: {
            row["key"]: RecipeKey(
                row.get("kind", ""), tuple(row.get("choices", ())), row.get("default")
            )
            for row in rows
        }
        for name, rows in data.pop("sections").items()
    }
    return data, sections


def own_architectures() -> frozenset[str]:
    """Return the architectures that it has classes of its own for."""
    return frozenset(option_table()[0]["architectures"])


def default_value(section: str, key: str) -> Any:
    """Return the value of a key that no file sets."""
    return option_table()[1][section][key].default


NESTED = ("distributed.pipeline", "distributed.moe", "model.backend")
"""Sections inside others."""
OWN_VALUES = ("_target_", "_recursive_", "_convert_")
"""Keys that every section may have: what it becomes."""
OF_WORDS = ("activation_checkpointing",)
"""Keys whose words are rules (`searches.frameworks.automodel.keys`)."""
LENIENT = ("true", "True", "false", "False", "none", "None")
"""Words that its loader takes for a boolean or for nothing."""


def checked_sections(recipe: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the sections of a recipe that the table knows, by name in the table."""
    flat = {"distributed.strategy": _section(recipe, "distributed").get("strategy", "fsdp2")}
    strategy = strategy_of(flat)
    found: dict[str, Mapping[str, Any]] = {}
    for name in option_table()[1]:
        if " of " in name:
            continue
        path = name.split(".")
        node: Any = recipe
        for part in path:
            node = node.get(part) if isinstance(node, Mapping) else None
        if not isinstance(node, Mapping):
            continue
        other = f"{name} of {strategy}"
        found[other if other in option_table()[1] else name] = node
    return found


def _section(recipe: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    node = recipe.get(name)
    return node if isinstance(node, Mapping) else {}


def unknown_keys(recipe: Mapping[str, Any]) -> list[str]:
    """Return the keys of sections that they do not take, with dots."""
    return [
        f"{name.partition(' ')[0]}.{key}"
        for name, node in checked_sections(recipe).items()
        for key in node
        if key not in option_table()[1][name] and key not in OWN_VALUES
    ]


def odd_values(recipe: Mapping[str, Any]) -> list[str]:
    """Return what values of sections are of another kind than their keys', a sentence each."""
    result = []
    for name, node in checked_sections(recipe).items():
        for key, value in node.items():
            one = option_table()[1][name].get(key)
            if one is None or value is None or key in OF_WORDS:
                continue
            if fault := _fault(one, value):
                result.append(f"{name.partition(' ')[0]}.{key}: {fault}")
    return result


_KINDS: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "bool": (bool,),
}


def _fault(one: RecipeKey, value: Any) -> str:
    if isinstance(value, str) and (value in LENIENT or "$" in value):
        return ""
    if one.choices and value not in one.choices:
        return f"{value!r} is not one of {', '.join(one.choices)}"
    if one.choices or not one.kind:
        return ""
    is_wrong_bool = isinstance(value, bool) and one.kind != "bool"
    if is_wrong_bool or not isinstance(value, _KINDS[one.kind]):
        return f"{value!r} is no {one.kind}"
    return ""


def top_keys() -> frozenset[str]:
    """Return the keys at the top that code of its recipes reads."""
    return frozenset(option_table()[0]["top"])


def as_settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe as dotted keys, words that its loader converts as what they stand for."""
    words = {"none": None, "None": None, "true": True, "True": True}
    words |= {"false": False, "False": False}
    flat = flattened(recipe)
    return {
        key: words.get(value, value) if isinstance(value, str) else value
        for key, value in flat.items()
    }
