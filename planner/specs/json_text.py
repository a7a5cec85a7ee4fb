"""JSON as Python's `json` writes it with an indent of one, at the speed of its compiled encoder.

`json.dumps(..., indent=1)` walks every value in Python; results hold some hundred values a plan.
Here only containers are: what holds none is encoded at once, with the indent in its separators.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from json import encoder
from typing import Any

NESTED = (dict, list, tuple)
_MAKE: Any = getattr(encoder, "c_make_encoder", None)
"""The compiled encoder; None in a Python without it."""


def indented(value: Any) -> str:
    """Return `json.dumps(value, indent=1, allow_nan=False)`; `ValueError` for nan and inf."""
    if _MAKE is None:
        return json.dumps(value, indent=1, allow_nan=False)
    parts: list[str] = []
    _write(value, 0, parts)
    return "".join(parts)


@lru_cache(maxsize=64)
def _flat(depth: int) -> Callable[[Any, int], tuple[str, ...]]:
    """Return the encoder of values `depth` deep that hold no containers but empty ones."""
    text, separators = encoder.encode_basestring_ascii, (": ", ",\n" + " " * (depth + 1))
    made: Callable[[Any, int], tuple[str, ...]] = _MAKE(
        None, json.JSONEncoder().default, text, None, *separators, False, False, False
    )
    return made


def _write(value: Any, depth: int, parts: list[str]) -> None:
    """Add the text of a value that stands `depth` deep."""
    if not isinstance(value, NESTED) or not value:
        parts += _flat(depth)(value, 0)
        return
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    encode, between = _flat(depth), f",{inner}"
    if isinstance(value, dict):
        parts.append("{" + inner)
        plain: dict[Any, Any] = {}
        """What was passed since the last container."""
        for key, x in value.items():
            if not isinstance(x, NESTED):
                plain[key] = x
                continue
            if plain:
                parts += ("".join(encode(plain, 0))[1:-1], between)
                plain = {}
            parts.append(f"{_name(key)}: ")
            _write(x, depth + 1, parts)
            parts.append(between)
        if plain:
            parts.append("".join(encode(plain, 0))[1:-1])
        else:
            parts.pop()
        parts.append(outer + "}")
        return
    parts.append("[" + inner)
    if any(map(_is_nested, value)):
        for x in value:
            _write(x, depth + 1, parts)
            parts.append(between)
        parts.pop()
    else:
        parts.append("".join(encode(value, 0))[1:-1])
    parts.append(outer + "]")


def _is_nested(value: Any) -> bool:
    return isinstance(value, NESTED)


def _name(key: Any) -> str:
    """Return a key as `json` writes it."""
    if isinstance(key, str):
        return encoder.encode_basestring_ascii(key)
    return "".join(_flat(0)({key: 0}, 0))[1:-4]
