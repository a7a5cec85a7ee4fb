"""The documents of a point: a model and a cluster file with the values of the point in place."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.specs.cluster.pool_fields import DEVICES, drop_rival, nodes_of, spelled_out
from planner.specs.yaml.document import Document, KeyPath, path_text
from planner.sweeps.fields import section_of
from planner.units import shown_value

Change = tuple[str, object, str]
"""Path, value, and what set it, for messages: an option, or a place in a sweep file."""


def changed(document: Document, changes: Iterable[Change]) -> Document:
    """Return a document with values replaced, whole sections before what is inside them.

    Missing sections are added; None takes a field away, so that its default counts. The original
    is not touched. Raises `SpecError` for an item of a list that does not exist.
    """
    ordered = sorted(changes, key=lambda change: _order(change[0]))
    if not ordered:
        return document
    data, overrides = dict(document.data), dict(document.overrides)
    for path, value, origin in ordered:
        parts: list[str | int] = []
        if path.endswith(f".{DEVICES}"):
            path, value = nodes_of(data, path, value, origin)
        _put(data, path.split("."), value, parts, origin)
        overrides[tuple(parts)] = origin
    return replace(document, data=data, overrides=overrides)


def of_section(changes: Iterable[Change], section: str) -> list[Change]:
    """Return the changes of the `model` or the `cluster` file."""
    return [change for change in changes if section_of(change[0]) == section]


def _order(path: str) -> tuple[bool, int, str]:
    """Return where a change comes: outer fields first, numbers of devices last of all."""
    return path.endswith(f".{DEVICES}"), path.count("."), path


def _put(
    target: Any, names: list[str], value: object, parts: list[str | int], origin: str
) -> None:
    """Set a value inside `target`, which is a copy; what lies deeper is copied on the way."""
    name, *rest = names
    key = _key(target, name, parts, origin)
    parts.append(key)
    if not rest:
        if value is None and isinstance(target, dict):
            target.pop(key, None)
        else:
            target[key] = value
        if isinstance(target, dict) and value is not None:
            drop_rival(target, key)
        return
    inner = target[key] if isinstance(key, int) else target.get(key)
    if key == "accelerator" and isinstance(target, dict):
        inner = spelled_out(target, inner)
    if inner is None:
        inner = {}
    if not isinstance(inner, dict | list):
        here = path_text(parts)
        message = f"{here} is {shown_value(inner)}, and has no {rest[0]!r} inside"
        raise SpecError(InputProblem(message, "", origin))
    target[key] = inner = inner.copy()
    _put(inner, rest, value, parts, origin)


def _key(target: Any, name: str, parts: KeyPath | list[str | int], origin: str) -> str | int:
    if not isinstance(target, list):
        return name
    if name.isdecimal() and int(name) < len(target):
        return int(name)
    here = path_text(parts)
    message = f"no item {name!r} in {here}, a list of {len(target)}"
    fix = f"use an index from 0 to {len(target) - 1}" if target else "add items in the file"
    raise SpecError(InputProblem(message, fix, origin))
