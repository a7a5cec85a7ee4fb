"""Settings in nested files: dotted keys, overrides, numbers."""

from collections.abc import Iterable, Mapping
from typing import Any

from planner.errors import InputProblem, SpecError


def flattened(data: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested sections as dotted keys; lists stay values.

    >>> flattened({"a": {"b": 1, "c": {}}, "d": [2]})
    {'a.b': 1, 'a.c': {}, 'd': [2]}
    """
    flat: dict[str, Any] = {}
    for key, value in data.items():
        path = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, path)
        else:
            flat[path] = value
    return flat


def with_set(settings: Mapping[str, Any], changes: Iterable[tuple[str, object]]) -> dict[str, Any]:
    """Return the settings with `--set KEY=VALUE` applied; values are read as YAML.

    None takes a setting away.
    """
    from planner.option_names import option
    from planner.specs.yaml.document import parse_yaml

    changed = dict(settings)
    for key, value in changes:
        if value is None:
            changed.pop(key, None)
            continue
        text = str(value)
        given_by = option("set", f"{key}={text}")
        changed[key] = parse_yaml(text, given_by).data if text.strip() else None
    return changed


MOST_NUMBER = 10**18
"""Largest whole number, either sign, that is a size or a count of anything."""


class Reader:
    """Reads typed values out of dotted settings; a value of another type is one clear error."""

    def __init__(self, settings: Mapping[str, Any], source: str) -> None:
        self.settings = settings
        self.source = source

    def number(self, key: str, default: int = 0) -> int:
        """Return a whole number; `default` where it is not set or null."""
        value = self.settings.get(key)
        if value is None or value == "":
            return default
        if isinstance(value, bool) or not _whole(value):
            raise SpecError(
                InputProblem(f"{key}: expected a whole number, got {value!r}", "", self.source)
            )
        too_long = isinstance(value, str) and len(value) > 40
        if too_long or abs(number := int(value)) > MOST_NUMBER:
            raise SpecError(
                InputProblem(f"{key} is beyond 1e18: no size or count", "", self.source)
            )
        return number

    def text(self, key: str, default: str = "") -> str:
        """Return a text; `default` where it is not set or null."""
        value = self.settings.get(key)
        return default if value is None else str(value)

    def switch(self, key: str, default: bool = False) -> bool:
        """Return a boolean; the words true, yes, on count as true."""
        value = self.settings.get(key)
        if value is None:
            return default
        return str(value).strip().lower() in ("true", "yes", "on", "1")

    def given(self, key: str) -> bool:
        """Tell whether a key is set to something."""
        return self.settings.get(key) not in (None, "")


def _whole(value: Any) -> bool:
    if isinstance(value, int):
        return True
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, str) and value.strip().removeprefix("-").isdecimal()
