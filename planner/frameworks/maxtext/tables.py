"""What MaxText's own package says of its keys and models (`scripts/maxtext_tables`)."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

_DATA = files("planner") / "data"


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads((_DATA / "maxtext.json").read_text("utf-8"))
    return table


def key_kinds() -> Mapping[str, str]:
    """Return what each key of the release takes: int, float, bool, word, or other."""
    kinds: Mapping[str, str] = _table()["kinds"]
    return kinds


def earlier_keys() -> frozenset[str]:
    """Return keys that base.yml once had and that the release does not."""
    return frozenset(_table()["earlier"])


def default_sizes() -> Mapping[str, Any]:
    """Return the sizes of base.yml."""
    sizes: Mapping[str, Any] = _table()["defaults"]
    return sizes


def model_sizes() -> Mapping[str, Mapping[str, Any]]:
    """Return the sizes that each model of the package states, by `model_name`."""
    models: Mapping[str, Mapping[str, Any]] = _table()["models"]
    return models


@cache
def key_choices() -> Mapping[str, tuple[str, ...]]:
    """Return the words that keys take."""
    table = json.loads((_DATA / "flags" / "maxtext.json").read_text("utf-8"))
    keys = table["releases"][_table()["release"]]
    return {name: tuple(one["choices"]) for name, one in keys.items() if "choices" in one}


def faults(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the schema refuses of some keys, in words.

    >>> faults({"ici_fsdp_parallelism": "many", "decoder_block": "llama2", "steps": 10})
    ("ici_fsdp_parallelism: 'many' is no int",)
    """
    kinds, choices, results = key_kinds(), key_choices(), []
    for name, value in settings.items():
        kind = kinds.get(name, "other")
        if value is None or not _misfits(kind, value):
            if kind == "word" and isinstance(value, str) and value not in choices.get(name, ()):
                results.append(f"{name}: {value!r} is none of {', '.join(choices[name])}")
            continue
        results.append(f"{name}: {value!r} is no {kind}")
    return tuple(results)


_TRUTH = ("true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "1", "0")


def _misfits(kind: str, value: Any) -> bool:
    """Tell whether pydantic takes a value for none of a kind, words of numbers for numbers."""
    if kind == "bool":
        return not isinstance(value, bool) and str(value).lower() not in _TRUTH
    if kind not in ("int", "float") or isinstance(value, bool):
        return False
    try:
        number = float(str(value).replace("_", ""))
    except ValueError:
        return True
    return kind == "int" and not number.is_integer()
