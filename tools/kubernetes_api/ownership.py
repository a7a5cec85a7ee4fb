"""Server-side apply: who owns which field of an object, what an apply changes, what conflicts.

As Kubernetes KEP-555 has it. A field is a path of parts: a name, or the keys of an item of a list
that is a map. Lists and maps that are atomic, and what no schema describes, are one field.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tools.kubernetes_api.schemas import Schema, field_schema, is_open

Path = tuple[str, ...]
Data = dict[str, Any]
IDENTITY = frozenset({"apiVersion", "kind"})
"""Fields that nobody owns; so are those of `metadata` that the server sets or that name it."""
SERVER_META = frozenset(
    {
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "managedFields",
        "deletionTimestamp",
    }
)
ABSENT: Any = object()


class ConflictError(Exception):
    """Fields that another manager owns with another value."""

    def __init__(self, fields: list[tuple[str, Path]]) -> None:
        named = ", ".join(f'"{manager}" owns {"".join(path)}' for manager, path in fields)
        super().__init__(f"Apply failed with {len(fields)} conflict(s): {named}")


def owned_part(value: Data) -> Data:
    """Return an object without what nobody owns."""
    kept = {k: v for k, v in value.items() if k not in IDENTITY}
    if "metadata" in kept:
        meta = {k: v for k, v in kept["metadata"].items() if k not in SERVER_META}
        kept["metadata"] = meta
        if not meta:
            del kept["metadata"]
    return kept


def leaves(value: Any, schema: Schema, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the fields of a value with their values; an item of a map list is one itself."""
    if isinstance(value, dict) and value and not _is_atomic(schema):
        for name, inner in value.items():
            yield from leaves(inner, field_schema(schema, name), (*path, f".{name}"))
    elif isinstance(value, list) and value and _keys(schema):
        for item in value:
            place = (*path, _item_part(item, schema))
            yield place, ABSENT
            yield from leaves(item, schema["items"], place)
    else:
        yield path, value


def _is_atomic(schema: Schema) -> bool:
    return is_open(schema) or schema.get("x-kubernetes-map-type") == "atomic"


def _keys(schema: Schema) -> list[str]:
    if schema.get("x-kubernetes-list-type") != "map":
        return []
    return list(schema["x-kubernetes-list-map-keys"])


def _item_part(item: Mapping[str, Any], schema: Schema) -> str:
    return json.dumps({key: item.get(key) for key in _keys(schema)}, sort_keys=True)


def merged(live: Any, applied: Any, schema: Schema) -> Any:
    """Return a live value with what was applied put in."""
    if isinstance(live, dict) and isinstance(applied, dict) and not _is_atomic(schema):
        result = dict(live)
        for name, value in applied.items():
            inner = field_schema(schema, name)
            result[name] = merged(live[name], value, inner) if name in live else value
        return result
    if isinstance(live, list) and isinstance(applied, list) and _keys(schema):
        places = {_item_part(item, schema): i for i, item in enumerate(live)}
        items = list(live)
        for item in applied:
            at = places.get(_item_part(item, schema))
            if at is None:
                items.append(item)
            else:
                items[at] = merged(items[at], item, schema["items"])
        return items
    return copy.deepcopy(applied)


def without(value: Any, schema: Schema, path: Path) -> Any:
    """Return a value without one field; parents stay, unless they are empty by it."""
    part, rest = path[0], path[1:]
    if isinstance(value, list):
        items = []
        for item in value:
            if _item_part(item, schema) != part:
                items.append(item)
            elif rest:
                items.append(without(item, schema["items"], rest))
        return items
    name = part.removeprefix(".")
    if not isinstance(value, dict) or name not in value:
        return value
    inner = without(value[name], field_schema(schema, name), rest) if rest else None
    kept = {k: v for k, v in value.items() if k != name}
    return kept if inner in (None, {}, []) else {**kept, name: inner}


class Owners:
    """Who owns which fields of one object: paths by manager, kind of writing and subresource."""

    def __init__(self) -> None:
        self._owned: dict[tuple[str, str, str], set[Path]] = {}

    def apply(
        self, live: Data, body: Data, schema: Schema, writer: tuple[str, str], force: bool
    ) -> Data:
        """Return the object after an apply by `writer`: its manager and subresource.

        Raises `ConflictError` where others own fields with other values and `force` is not set.
        """
        manager, subresource = writer
        mine = (manager, "Apply", subresource)
        applied = dict(leaves(owned_part(body), schema))
        present = dict(leaves(owned_part(live), schema))
        conflicts = [
            (other[0], path)
            for other, paths in sorted(self._owned.items())
            for path in sorted(paths & applied.keys())
            if other != mine and not _same(present.get(path, ABSENT), applied[path])
        ]
        if conflicts and not force:
            raise ConflictError(conflicts)
        lost = {path for _, path in conflicts}
        gone = self._owned.get(mine, set()) - applied.keys()
        for other, paths in self._owned.items():
            if other != mine:
                paths -= lost
                gone -= paths
        result = merged(live, body, schema)
        for path in sorted(gone, reverse=True):
            result = without(result, schema, path)
        self._owned[mine] = {*applied}
        return dict(result)

    def update(self, old: Data, new: Data, schema: Schema, writer: tuple[str, str]) -> None:
        """Note that `writer` put one object in the place of another: it owns what it changed."""
        before = dict(leaves(owned_part(old), schema))
        after = dict(leaves(owned_part(new), schema))
        changed = {
            path for path, value in after.items() if not _same(before.get(path, ABSENT), value)
        }
        changed |= {
            path for path, value in after.items() if value is ABSENT and path not in before
        }
        gone = before.keys() - after.keys()
        mine = self._owned.setdefault((writer[0], "Update", writer[1]), set())
        for paths in self._owned.values():
            paths -= changed | gone
        mine |= changed

    def to_json(self, api_version: str, time: str) -> list[Data]:
        """Return `metadata.managedFields`."""
        entries = []
        for (manager, operation, subresource), paths in sorted(self._owned.items()):
            if not paths:
                continue
            fields: Data = {}
            for path in sorted(paths):
                at = fields
                for part in path:
                    name = f"f:{part[1:]}" if part.startswith(".") else f"k:{part}"
                    at = at.setdefault(name, {})
            entry = {
                "manager": manager,
                "operation": operation,
                "apiVersion": api_version,
                "time": time,
                "fieldsType": "FieldsV1",
                "fieldsV1": fields,
            }
            entries.append(entry | ({"subresource": subresource} if subresource else {}))
        return entries

    def fields_of(self, manager: str) -> set[str]:
        """Return the fields that a manager owns, as texts."""
        return {
            "".join(path)
            for (name, _, _), paths in self._owned.items()
            if name == manager
            for path in paths
        }


def _same(a: Any, b: Any) -> bool:
    return a is b or (a is not ABSENT and b is not ABSENT and a == b)
