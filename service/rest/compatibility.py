"""Which changes of an OpenAPI document break programs that were written for it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

Data = dict[str, Any]


ALWAYS_WORDS = frozenset(
    {
        "SolveRequest.objective",
        "SolveRequest.stack",
        "SolveRequest.allow[]",
        "EvaluateRequest.stack",
        "EvaluateRequest.allow[]",
        "ScaleRequest.stack",
        "ScaleRequest.allow[]",
        "JobRequest.call",
        "GET /v1/jobs call",
        "GET /v1/jobs:watch call",
    }
)
"""Fields of requests that older documents called texts, and that were never any but some words:
the service has refused all others from its first release on, or, of lists of jobs, found nothing
by them, so an enum breaks nobody. Nothing is added here for a field that was once open."""

NULL_OF_NEW_REQUESTS = frozenset({"ExplainAnswer.plan"})
"""Properties of answers that are null only where a request names what older services refused: a
plan over several pools. Programs that do not ask for such find there what they always did."""


def breaking_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what a program that was written for `old` would stumble over in `new`.

    Gone: operations, parameters, answers, properties of answers, values that a request may hold.
    New: required parameters and properties of requests, values that an answer may hold. Changed:
    types, and what a property of an answer promised to hold.
    """
    return list(_Comparison(old, new).faults())


class _Comparison:
    """Two documents, followed through their references."""

    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self._old, self._new = old, new
        self._seen: set[tuple[str, str, bool]] = set()

    def faults(self) -> Iterator[str]:
        for path, methods in self._old["paths"].items():
            for method, was in methods.items():
                where = f"{method.upper()} {path}"
                now = self._new["paths"].get(path, {}).get(method)
                if now is None:
                    yield f"{where} is gone"
                else:
                    yield from self._operation(where, was, now)

    def _operation(self, where: str, was: Data, now: Data) -> Iterator[str]:
        if was["operationId"] != now["operationId"]:
            yield f"{where}: the operation is called {now['operationId']}"
        if was.get("security") == [] and now.get("security") != []:
            yield f"{where} asks for a token"
        if was.get("x-role") != now.get("x-role"):
            yield f"{where} asks for the role {now.get('x-role')}"
        before = {(p["in"], p["name"]): p for p in was.get("parameters", ())}
        after = {(p["in"], p["name"]): p for p in now.get("parameters", ())}
        for key, parameter in before.items():
            if key not in after:
                yield f"{where}: the parameter {key[1]} is gone"
            else:
                inside = f"{where} {key[1]}"
                yield from self._schema(inside, parameter["schema"], after[key]["schema"], True)
        for key, parameter in after.items():
            required = parameter.get("required") and not before.get(key, {}).get("required")
            if required:
                yield f"{where}: the parameter {key[1]} is required"
        if now.get("requestBody") and not was.get("requestBody"):
            yield f"{where} needs a body"
        for media, content in (was.get("requestBody") or {}).get("content", {}).items():
            new = (now.get("requestBody") or {}).get("content", {}).get(media)
            if new is None:
                yield f"{where} no longer reads {media}"
            else:
                yield from self._schema(f"{where} body", content["schema"], new["schema"], True)
        for status, stated in was["responses"].items():
            answer = self._response(self._old, stated) or {}
            new = self._response(self._new, now["responses"].get(status))
            if new is None:
                yield f"{where} no longer answers {status}"
                continue
            for media, content in answer.get("content", {}).items():
                other = new.get("content", {}).get(media)
                if other is None:
                    yield f"{where} {status} is no longer {media}"
                else:
                    inside = f"{where} {status}"
                    yield from self._schema(inside, content["schema"], other["schema"], False)

    def _response(self, document: Mapping[str, Any], answer: Data | None) -> Data | None:
        """Return a response, followed through its reference."""
        if answer is not None and "$ref" in answer:
            name = answer["$ref"].rpartition("/")[2]
            return dict(document["components"]["responses"][name])
        return answer

    def _resolved(self, document: Mapping[str, Any], schema: Data) -> Data:
        while "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            schema = document["components"]["schemas"][name]
        return schema

    def _schema(self, where: str, was: Data, now: Data, is_request: bool) -> Iterator[str]:
        if not is_request and where in NULL_OF_NEW_REQUESTS:
            now = _not_null(now)
        if "$ref" in was and "$ref" in now:
            pair = (was["$ref"], now["$ref"], is_request)
            if pair in self._seen:
                return
            self._seen.add(pair)
            where = was["$ref"].rpartition("/")[2]
        was, now = self._resolved(self._old, was), self._resolved(self._new, now)
        before, after = self._kinds(self._old, was), self._kinds(self._new, now)
        lost, added = sorted(before - after), sorted(after - before)
        if "string" in before:
            added = [kind for kind in added if not kind.startswith('"')]
        is_told = where in ALWAYS_WORDS and lost == ["string"] and "enum" in now
        if is_request and lost and not is_told:
            yield f"{where} is no longer {' or '.join(lost)}"
        if not is_request and before and (added or not after):
            yield f"{where} may be {' or '.join(added) or 'anything'}"
        yield from self._bounds(where, was, now, is_request)
        yield from self._properties(where, was, now, is_request)
        for one, other in self._branches(was, now):
            yield from self._schema(where, one, other, is_request)
        for key in ("items", "additionalProperties"):
            if isinstance(was.get(key), dict) and isinstance(now.get(key), dict):
                yield from self._schema(f"{where}[]", was[key], now[key], is_request)
        if (
            is_request
            and was.get("additionalProperties", True)
            and (now.get("additionalProperties", True) is False)
        ):
            yield f"{where} takes no other fields"

    def _branches(self, was: Data, now: Data) -> Iterator[tuple[Data, Data]]:
        """Yield the alternatives of both that correspond: the same name, or the same type."""
        for union in ("anyOf", "oneOf"):
            for one in was.get(union, ()):
                for other in now.get(union, ()):
                    key = "$ref" if "$ref" in one else "type"
                    is_same = one.get(key) == other.get(key) and (
                        ("enum" in one) == ("enum" in other)
                    )
                    if one.get(key) and is_same:
                        yield one, other

    def _properties(self, where: str, was: Data, now: Data, is_request: bool) -> Iterator[str]:
        old, new = was.get("properties", {}), now.get("properties", {})
        for name, schema in old.items():
            if name not in new:
                yield f"{where}.{name} is gone"
            else:
                yield from self._schema(f"{where}.{name}", schema, new[name], is_request)
        required, needed = set(was.get("required", ())), set(now.get("required", ()))
        if is_request:
            for name in sorted(needed - required):
                yield f"{where}.{name} is required"
        else:
            for name in sorted((required - needed) & new.keys()):
                yield f"{where}.{name} may be missing"

    def _bounds(self, where: str, was: Data, now: Data, is_request: bool) -> Iterator[str]:
        if not is_request:
            return
        for key, tighter in (
            ("minimum", 1),
            ("minLength", 1),
            ("minItems", 1),
            ("exclusiveMinimum", 1),
            ("maximum", -1),
            ("maxLength", -1),
            ("maxItems", -1),
            ("exclusiveMaximum", -1),
        ):
            if key in now and (key not in was or (now[key] - was[key]) * tighter > 0):
                yield f"{where}: {key} is {now[key]}"
        if "pattern" in now and now["pattern"] != was.get("pattern"):
            yield f"{where}: the pattern is {now['pattern']}"

    def _kinds(self, document: Mapping[str, Any], schema: Data) -> set[str]:
        """Return the types and the values that a schema allows; empty for anything."""
        schema = self._resolved(document, schema)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return set().union(*(self._kinds(document, each) for each in schema[key]))
        if "enum" in schema:
            return {json.dumps(value) for value in schema["enum"]}
        if "const" in schema:
            return {json.dumps(schema["const"])}
        kind = schema.get("type", ())
        return {kind} if isinstance(kind, str) else set(kind)


def _not_null(schema: Data) -> Data:
    """Return the one alternative of a schema besides null; the schema where it has none."""
    others = [x for x in schema.get("anyOf", ()) if x.get("type") != "null"]
    return others[0] if len(others) == 1 else schema
