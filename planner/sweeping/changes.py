"""The documents of a point: a model and a cluster file with the values of the point in place."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from planner.errors import Problem, SpecError
from planner.sweeping.fields import DEVICES, section_of
from planner.units import show
from planner.yamlfile import Document, KeyPath, path_text

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
            path, value = _nodes_of(data, path, value, origin)
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
            _drop_rival(target, key)
        return
    inner = target[key] if isinstance(key, int) else target.get(key)
    if key == "accelerator" and isinstance(target, dict):
        inner = _spelled_out(target, inner)
    if inner is None:
        inner = {}
    if not isinstance(inner, dict | list):
        here = path_text(parts)
        message = f"{here} is {show(inner)}, and has no {rest[0]!r} inside"
        raise SpecError(Problem(message, "", origin))
    target[key] = inner = inner.copy()
    _put(inner, rest, value, parts, origin)


def _key(target: Any, name: str, parts: KeyPath | list[str | int], origin: str) -> str | int:
    if not isinstance(target, list):
        return name
    if name.isdigit() and int(name) < len(target):
        return int(name)
    here = path_text(parts)
    message = f"no item {name!r} in {here}, a list of {len(target)}"
    fix = f"use an index from 0 to {len(target) - 1}" if target else "add items in the file"
    raise SpecError(Problem(message, fix, origin))


def _drop_rival(pool: dict[str, Any], key: str | int) -> None:
    """Take away what cannot stand beside a new accelerator or instance of a pool."""
    rivals = {"accelerator": "instance", "instance": "accelerator"}
    if key in rivals and "nodes" in pool:
        pool.pop(rivals[str(key)], None)


def _spelled_out(pool: dict[str, Any], given: object) -> object:
    """Return an accelerator as a mapping whose figures can be replaced.

    Where the pool names an instance, what the instance says of the node is written out beside it.
    """
    if isinstance(given, str):
        return {"like": given}
    if given is not None or not isinstance(pool.get("instance"), str):
        return given
    from hardware.catalogue import UnknownPartError, load_catalogue

    try:
        platform = load_catalogue().platform(pool["instance"])
    except UnknownPartError:
        return given  # the reader says so, with the place in the file
    del pool["instance"]
    pool.setdefault("accelerators_per_node", platform.devices_per_node)
    pool.setdefault("nic", platform.nic)
    pool.setdefault("nics_per_node", platform.nics_per_node)
    return {"like": platform.accelerator}


def _nodes_of(
    data: Mapping[str, Any], path: str, n_devices: object, origin: str
) -> tuple[str, object]:
    """Return the field and the number of nodes that make so many devices of a pool."""
    head, index, _ = path.split(".")
    pools = data.get(head)
    found = pools[int(index)] if isinstance(pools, list) and int(index) < len(pools) else None
    per_node = devices_per_node(found) if isinstance(found, Mapping) else 0
    if per_node and isinstance(n_devices, int) and n_devices % per_node:
        message = f"{n_devices} devices are no whole nodes of {per_node}"
        raise SpecError(Problem(message, f"give a multiple of {per_node}", origin, path=path))
    return f"{head}.{index}.nodes", int(str(n_devices)) // (per_node or 1)


def devices_per_node(pool: Mapping[str, Any]) -> int:
    """Return the devices in a node of a pool as its document says; 0 where it does not."""
    from hardware.catalogue import UnknownPartError, load_catalogue

    stated = pool.get("accelerators_per_node")
    if isinstance(stated, int):
        return stated
    part = pool.get("accelerator")
    name = part.get("like") if isinstance(part, Mapping) else part
    catalogue = load_catalogue()
    try:
        if isinstance(pool.get("instance"), str):
            return catalogue.platform(pool["instance"]).devices_per_node
        return catalogue.accelerator(str(name)).devices_per_node
    except UnknownPartError:
        return 0
