"""Our schemas of Kueue's kinds beside its own custom resource definitions."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.kubernetes_api.schemas import GROUP, Schema, is_open, kinds

ALIKE = (
    "type",
    "format",
    "enum",
    "pattern",
    "default",
    "minimum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-int-or-string",
)
"""What a field of ours says as theirs does."""


def definitions(folder: Path) -> dict[tuple[str, str], Schema]:
    """Return the schemas of the definitions in a folder, by plural and version."""
    found: dict[tuple[str, str], Schema] = {}
    for path in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if not isinstance(document, Mapping) or "CustomResource" not in document.get(
                "kind", ""
            ):
                continue
            spec = document["spec"]
            if spec["group"] == GROUP:
                for version in spec["versions"]:
                    schema = version["schema"]["openAPIV3Schema"]
                    found[spec["names"]["plural"], version["name"]] = schema
    return found


def differences(folder: Path) -> list[str]:
    """Return where our schemas differ from the definitions in a folder."""
    theirs = definitions(folder)
    lines: list[str] = []
    for kind in kinds().values():
        if kind.group != GROUP:
            continue
        schema = theirs.get((kind.plural, kind.versions[0]))
        if schema is None:
            lines.append(f"{kind.plural}: no definition of {kind.versions[0]} in {folder}")
        else:
            lines += _compared(kind.schema, schema, kind.plural)
    return lines


def n_fields(schema: Any) -> int:
    """Return how many fields a schema names."""
    if not isinstance(schema, Mapping):
        return 0
    fields = schema.get("properties") or {}
    inner = sum(map(n_fields, fields.values())) + n_fields(schema.get("items"))
    return len(fields) + inner + n_fields(schema.get("additionalProperties"))


def _compared(ours: Schema, theirs: Schema, path: str) -> Iterator[str]:
    if is_open(ours):  # one value to us: a pod template
        return
    for name in ALIKE:
        if ours.get(name) != theirs.get(name) and not (
            name in ("type", "pattern") and "x-kubernetes-int-or-string" in theirs
        ):
            yield f"{path}: {name} is {ours.get(name)!r}, theirs {theirs.get(name)!r}"
    if {*ours.get("required", ())} != {*theirs.get("required", ())}:
        yield f"{path}: required {ours.get('required')}, theirs {theirs.get('required')}"
    for name, inner in (ours.get("properties") or {}).items():
        if name not in (theirs.get("properties") or {}):
            yield f"{path}.{name}: theirs has no such field"
        else:
            yield from _compared(inner, theirs["properties"][name], f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        mine, other = ours.get(name), theirs.get(name)
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            yield from _compared(mine, other, f"{path}.{name}")
        elif (mine is None) != (other is None):
            yield f"{path}: {name} is {mine!r}, theirs {other!r}"
