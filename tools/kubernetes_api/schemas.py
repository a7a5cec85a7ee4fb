"""Schemas of kinds: what a value must be, what is filled in, and how lists are merged.

OpenAPI v3 as custom resource definitions have it. A field that a schema does not name is
refused, as by `fieldValidation=Strict`; the real server drops it otherwise.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).parent / "data" / "kueue.yaml"
GROUP = "kueue.x-k8s.io"
Schema = Mapping[str, Any]
OPEN: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object that the server has."""

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    namespaced: bool
    schema: Schema
    has_status: bool = True
    """Whether status is a subresource of its own."""
    has_generation: bool = True

    @property
    def api_version(self) -> str:
        """As its objects say it."""
        return f"{self.group}/{self.versions[0]}" if self.group else self.versions[0]


@cache
def kinds() -> dict[tuple[str, str], Kind]:
    """Return the kinds by group and plural: Kueue's, and those of Kubernetes that it meets."""
    named = [
        Kind("batch", ("v1",), "jobs", "Job", True, OPEN),
        Kind("", ("v1",), "configmaps", "ConfigMap", True, OPEN, False, False),
    ]
    for plural, entry in yaml.safe_load(FILE.read_text())["kinds"].items():
        schema = entry["schema"]
        versions, status = tuple(entry["versions"]), "status" in schema["properties"]
        named.append(
            Kind(GROUP, versions, plural, entry["kind"], entry["namespaced"], schema, status)
        )
    return {(x.group, x.plural): x for x in named}


def is_open(schema: Schema) -> bool:
    """Tell whether a schema says nothing of what is inside."""
    return bool(schema.get("x-kubernetes-preserve-unknown-fields"))


def field_schema(schema: Schema, name: str) -> Schema:
    """Return the schema of a field of an object; an open one where it is not known."""
    if name in (schema.get("properties") or {}):
        found: Schema = schema["properties"][name]
        return found
    extra = schema.get("additionalProperties")
    return extra if isinstance(extra, Mapping) else {"x-kubernetes-preserve-unknown-fields": True}


def with_defaults(value: Any, schema: Schema) -> Any:
    """Return a value with the defaults of its schema filled in."""
    if isinstance(value, dict) and not is_open(schema):
        for name, inner in (schema.get("properties") or {}).items():
            if name not in value and "default" in inner:
                value = {**value, name: inner["default"]}
        return {k: with_defaults(x, field_schema(schema, k)) for k, x in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [with_defaults(x, schema["items"]) for x in value]
    return value


def faults(value: Any, schema: Schema, path: str = "") -> Iterator[str]:
    """Yield what is wrong with a value, each with its place."""
    if is_open(schema) or not schema:
        return
    where = path or "the object"
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not _QUANTITY.fullmatch(str(value)):
            yield f"{where}: {value!r} is no quantity"
        return
    expected = _TYPES[schema["type"]]
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        yield f"{where}: must be of type {schema['type']}, not {type(value).__name__}"
    elif isinstance(value, dict):
        yield from _object_faults(value, schema, path)
    elif isinstance(value, list):
        yield from _list_faults(value, schema, path)
    else:
        yield from _scalar_faults(value, schema, where)


def _object_faults(value: dict[str, Any], schema: Schema, path: str) -> Iterator[str]:
    known, extra = schema.get("properties"), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}: Required value"
    if len(value) > schema.get("maxProperties", len(value)):
        yield f"{path}: has {len(value)} fields, {schema['maxProperties']} at most"
    for name, inner in value.items():
        place = f"{path}.{name}" if path else name
        if known is not None and name not in known and extra is None:
            yield f'strict decoding error: unknown field "{place}"'
        elif known is not None or extra is not None:
            yield from faults(inner, field_schema(schema, name), place)


def _list_faults(value: list[Any], schema: Schema, path: str) -> Iterator[str]:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        bounds = f"{schema.get('minItems', 0)} to {schema.get('maxItems', 'many')}"
        yield f"{path}: must have {bounds} items, not {len(value)}"
    for i, item in enumerate(value):
        yield from faults(item, schema["items"], f"{path}[{i}]")
    if keys := schema.get("x-kubernetes-list-map-keys"):
        seen = [tuple(item.get(key) for key in keys) for item in value if isinstance(item, dict)]
        for key in sorted({str(x) for x in seen if seen.count(x) > 1}):
            yield f"{path}: Duplicate value: {key}"


def _scalar_faults(value: Any, schema: Schema, where: str) -> Iterator[str]:
    if value not in schema.get("enum", (value,)):
        yield f"{where}: Unsupported value: {value!r}: supported values: {schema['enum']}"
    if isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            yield f"{where}: {len(value)} characters are too few or too many"
        if schema.get("format") == "date-time" and not _TIME.fullmatch(value):
            yield f"{where}: {value!r} is no time of RFC 3339"
        pattern = schema.get("pattern", "").removeprefix("^(?i)")
        flags = re.IGNORECASE if schema.get("pattern", "").startswith("^(?i)") else 0
        if pattern and not re.search(pattern, value, flags):
            yield f"{where}: {value!r} does not match {schema['pattern']}"
    elif value < schema.get("minimum", value):
        yield f"{where}: should be greater than or equal to {schema['minimum']}"


def rules_of(value: Any, schema: Schema, path: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield the names of the rules of a schema with the values that they are about."""
    for name in schema.get("x-rules", ()):
        yield name, value, path
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in (schema.get("properties") or {}):
                yield from rules_of(inner, schema["properties"][name], f"{path}.{name}")
    elif isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            yield from rules_of(item, schema["items"], f"{path}[{i}]")
