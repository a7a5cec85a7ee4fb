"""Requests before any work: what is wrong with their fields, their options, their content hash."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from service.handlers.problems import Fault, Refusal, refused
from service.handlers.schemas import Request

Data = dict[str, Any]

DOCUMENTS = (
    "model",
    "cluster",
    "calibration",
    "reference",
    "run",
    "files",
    "document",
    "result",
    "spec",
    "jobs",
    "clusters",
)
"""Fields of requests that hold documents; all others are options."""


def request_options_of(request: BaseModel) -> Data:
    """Return a request without its documents."""
    out: Data = {}
    for name in type(request).model_fields:
        value = getattr(request, name)
        if name in DOCUMENTS:
            continue
        out[name] = request_options_of(value) if isinstance(value, BaseModel) else value
    return out


_DOCUMENT = (
    "is neither a text nor a mapping",
    'the name of an example, what its file holds, or {"text": "...", "name": "FILE.yaml"}',
)
_WRONG_TYPE = {
    "missing": ("is missing", "add it to the request"),
    "int_type": ("is no whole number", "such as 4, without quotes"),
    "int_from_float": ("is no whole number", "such as 4"),
    "float_type": ("is no number", "such as 2.5, without quotes"),
    "bool_type": ("is neither true nor false", "true or false, without quotes"),
    "string_type": ("is no text", "a text in quotes"),
    "list_type": ("is no list", "a list in brackets, such as [1, 2]"),
    "dict_type": ("is no mapping", "names and values in braces"),
    "greater_than_equal": ("{given:g} is too small", "{ge:g} or more"),
}
"""What is wrong, and what to write, by pydantic's name of the fault; others say it themselves."""


_KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "list": "a list",
    "dict": "a mapping",
    "none": "null",
}
"""What may stand for a value that can be several things, by pydantic's name of the kind."""


def schema_problem(
    call: str, request: type[Request], error: ValidationError, data: Mapping[str, Any]
) -> Refusal:
    """Return what is wrong with a request, the fields named."""
    entries: dict[str, list[tuple[str, Any]]] = {}
    for item in error.errors(include_url=False)[:40]:
        path, kind = _located(item["loc"], data)
        entries.setdefault(path, []).append((kind, item))
    # A value may be one of several things: what is wrong inside one of them says more than that it
    # is none of the others.
    fields = [f for f in entries if not any(x.startswith(f"{f}.") for x in entries)]
    faults = [_schema_fault(call, request, field, entries[field]) for field in fields[:20]]
    first = faults[0]
    detail = f"{first.field}: {first.message}" if first.field else first.message
    return refused("malformed", detail, 422, faults)


def _located(loc: Sequence[str | int], data: Any) -> tuple[str, str]:
    """Return the path of a fault in the request, and the kind of value that was tried there."""
    path, kind = [], ""
    for part in loc:
        inside = isinstance(data, Mapping) and part in data
        among = isinstance(data, list) and isinstance(part, int) and part < len(data)
        word = str(part).split("[")[0].removeprefix("constrained-")
        if not (inside or among) and (word in _KINDS or word == "Text"):
            kind = word
            continue
        path.append(str(part))
        data, kind = data[part] if inside or among else None, ""
    return ".".join(path), kind


def _schema_fault(
    call: str, request: type[Request], field: str, items: Sequence[tuple[str, Any]]
) -> Fault:
    """Return one fault of a field: of a value that may be several things, all that was tried."""
    kinds = [kind for kind, _ in items if kind]
    # Of the right kind, and still wrong: that is to be said.
    item = next((x for _, x in items if not x["type"].endswith("_type")), items[0][1])
    if len(kinds) > 1 and item["type"].endswith("_type"):
        if "Text" in kinds:
            return Fault(*_DOCUMENT, field)
        if {"bool", "int", "float", "str"} <= set(kinds):
            return Fault("is no single value", "a number, a text, true or false", field)
        allowed = list(dict.fromkeys(_KINDS[kind] for kind in kinds))
        text = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
        return Fault(f"is not {text}", text, field)
    if item["type"] == "extra_forbidden":
        names = ", ".join(f.alias or n for n, f in request.model_fields.items())
        meant = _meant_field(field, request)
        return Fault("unknown field", f"{meant}fields of {call}: {names}", field)
    text = item["msg"].removeprefix("Value error, ")
    message, fix = _WRONG_TYPE.get(item["type"], (text, ""))
    return Fault(message.format(given=item["input"]), fix.format(**item.get("ctx") or {}), field)


def _meant_field(field: str, request: type[BaseModel]) -> str:
    """Return what is likely meant by an unknown field: another, or a value of a document."""
    from planner.specs.schema import ClusterFile, ModelFile
    from planner.specs.yaml.document import close_names
    from planner.specs.yaml.faults import paths_of_key

    if "." in field:
        return ""
    close = close_names(field, [f.alias or n for n, f in request.model_fields.items()], 1)
    paths = paths_of_key(field, [ModelFile, ClusterFile]) if "set" in request.model_fields else []
    if paths and not close:
        return f'did you mean `{paths[0]}`? "set": {{"{paths[0]}": ...}} changes it; '
    return f"did you mean `{close[0]}`? " if close else ""


def place_of(source: str, request: BaseModel) -> str:
    """Return the field of a request that holds the document which messages call `source`.

    Empty where none does: some documents name others, and options are no documents.
    """

    def path_in(value: Any, path: str) -> str:
        if isinstance(value, BaseModel):
            value = {name: getattr(value, name) for name in type(value).model_fields}
        if not isinstance(value, Mapping):
            return ""
        if "text" in value and value.get("name") == source:
            return path
        inner = {key: f"{path}.{key}" if path else str(key) for key in value}
        if source in DOCUMENTS and value.get(source) is not None:
            return inner[source]
        within = (path_in(value[k], inner[k]) for k in value if k not in ("result", "spec"))
        return next(filter(None, within), "")

    return path_in(request, "")


def request_id(name: str, request: Request) -> str:
    """Return the content hash of a call, 64 hex digits.

    Over the name of the call, its request with every default filled in, the catalogue, the shipped
    calibration, the packaged examples and the version. Without `time_limit_s`: whatever it is,
    complete answers are the same; others must not be cached. The order of mappings in the request
    counts: it is that of the rows of a sweep, and of the changes that `set` makes.
    """
    data = _without_time_limits(request.model_dump(mode="json", by_alias=True))
    text = json.dumps([name, data, _ground()], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _without_time_limits(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    inside = {"solve", "evaluate", "a", "b", "plan"}
    return {
        key: _without_time_limits(value) if key in inside else value
        for key, value in data.items()
        if key != "time_limit_s"
    }


@cache
def _ground() -> tuple[str, ...]:
    """Return what answers depend on beside the request."""
    import planner
    from hardware.catalogue import load_catalogue
    from planner.solver.calibration.file import load_calibration
    from planner.specs.examples import example_content, example_names
    from planner.specs.identity import content_id

    kinds: tuple[Literal["model"], Literal["cluster"]] = ("model", "cluster")
    examples = {
        f"{kind}/{name}": example_content(kind, name).content
        for kind in kinds
        for name in example_names(kind)
    }
    return (
        planner.__version__,
        load_catalogue().content_hash,
        load_calibration().content_hash,
        content_id(examples),
    )
