"""The OpenAPI 3.1 document of the REST transport, and what would break those who rely on it.

The document is made of the table of operations below, from which the routes come too, and of the
schemas of `service.handlers.schemas`. `scripts/openapi` writes it to docs/openapi.json.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.handlers import schemas
from service.handlers.calls import CALLS

API_VERSION = "1.0"
"""Version of the interface: the second number grows with additions, /v1 becomes /v2 otherwise."""
Data = dict[str, Any]
PATHS = {"sweep": "/v1/sweeps", "check-spec": "/v1/specs:check"}
"""Paths of the calls that are not /v1/plans:NAME."""
FACTS = {"catalogue": "name", "rules": "code"}
"""Calls that are read with GET, and their parameter."""
JSON, PROBLEM, SSE, TEXT = (
    "application/json",
    "application/problem+json",
    "text/event-stream",
    "text/plain",
)


@dataclass(frozen=True, slots=True)
class OpenApiParameter:
    """A parameter of an operation."""

    name: str
    where: Literal["query", "path", "header"]
    schema: Mapping[str, Any]
    meaning: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    id: str
    method: Literal["GET", "POST"]
    path: str
    title: str
    answers: Mapping[int, tuple[str, type[BaseModel] | None]]
    """Media type and schema by status; problems come on top."""
    request: type[BaseModel] | None = None
    call: str = ""
    """The call that it makes, where it makes one."""
    role: str = "read"
    """What a caller must be allowed at least; empty where no token is asked for."""
    parameters: tuple[OpenApiParameter, ...] = ()


TEXT_SCHEMA: Data = {"type": "string"}
KEY = OpenApiParameter(
    "Idempotency-Key",
    "header",
    {"type": "string", "maxLength": 200},
    "A repeated request with the same key and body gets the first answer or job.",
)
PREFER = OpenApiParameter(
    "Prefer",
    "header",
    TEXT_SCHEMA,
    "`wait=SECONDS`: the best so far when they are over; `respond-async`: a job (RFC 7240).",
)
KNOWN = OpenApiParameter(
    "If-None-Match", "header", TEXT_SCHEMA, "ETags of answers that the caller has: 304 for those."
)
JOB_ID = OpenApiParameter(
    "job_id", "path", {"type": "string", "pattern": "^[A-Za-z0-9]{1,64}$"}, "A job."
)
CURSOR = OpenApiParameter(
    "cursor", "query", {"type": "string", "maxLength": 100}, "`next_cursor` of the page before."
)
LIMIT = OpenApiParameter(
    "limit", "query", {"type": "integer", "minimum": 1, "maximum": 1000}, "Most items of the page."
)
SO_FAR = OpenApiParameter(
    "so_far",
    "query",
    {"type": "boolean"},
    "A page of the rows that a sweep or scale has before its answer, in the order they came.",
)
STATE = OpenApiParameter(
    "state",
    "query",
    {"type": "string", "enum": list(schemas.JobAnswer.model_fields["state"].annotation.__args__)},  # type: ignore[union-attr]  # a Literal
    "Only jobs in this state.",
)
LAST_EVENT = OpenApiParameter(
    "Last-Event-ID", "header", {"type": "integer", "minimum": 0}, "Events up to it are left out."
)


def _operations() -> Iterator[Operation]:
    for name, call in CALLS.items():
        arguments: Data = {"call": name, "role": call.role, "title": call.title}
        words = name.split("-")
        id = words[0] + "".join(word.title() for word in words[1:])
        answer: dict[int, tuple[str, type[BaseModel] | None]] = {200: (JSON, call.answer)}
        job: dict[int, tuple[str, type[BaseModel] | None]] = {202: (JSON, schemas.JobAnswer)}
        if name in FACTS:
            which = OpenApiParameter(FACTS[name], "query", TEXT_SCHEMA, "One of them.")
            answers = {**answer, 304: ("", None)}
            yield Operation(
                id, "GET", f"/v1/{name}", answers=answers, parameters=(which, KNOWN), **arguments
            )
            continue
        path = PATHS.get(name, f"/v1/plans:{name}")
        if name == "sweep":
            yield Operation(
                id, "POST", path, answers=job, request=call.request, parameters=(KEY,), **arguments
            )
            continue
        answers = {**answer, **job, 304: ("", None)}
        yield Operation(
            id,
            "POST",
            path,
            answers=answers,
            request=call.request,
            parameters=(KEY, PREFER, KNOWN),
            **arguments,
        )
    job_answer = (JSON, schemas.JobAnswer)
    yield Operation(
        "submitJob",
        "POST",
        "/v1/jobs",
        "Submit a job",
        {202: job_answer},
        schemas.JobRequest,
        role="read",
        parameters=(KEY,),
    )
    yield Operation(
        "listJobs",
        "GET",
        "/v1/jobs",
        "One's own jobs, the newest first",
        {200: (JSON, schemas.JobsAnswer)},
        parameters=(STATE, LIMIT, CURSOR),
    )
    yield Operation(
        "getJob", "GET", "/v1/jobs/{job_id}", "A job", {200: job_answer}, parameters=(JOB_ID,)
    )
    yield Operation(
        "cancelJob",
        "POST",
        "/v1/jobs/{job_id}:cancel",
        "Cancel a job; one that has ended stays as it is",
        {200: job_answer},
        role="solve",
        parameters=(JOB_ID,),
    )
    yield Operation(
        "watchJob",
        "GET",
        "/v1/jobs/{job_id}/events",
        "What happens to a job, as server-sent events `state` and `progress`",
        {200: (SSE, None), 204: ("", None)},
        parameters=(JOB_ID, LAST_EVENT),
    )
    yield Operation(
        "getResult",
        "GET",
        "/v1/jobs/{job_id}/result",
        "The answer of a job; with `limit` or `cursor` a page of its longest list",
        {200: (JSON, None), 304: ("", None)},
        parameters=(JOB_ID, LIMIT, CURSOR, SO_FAR, KNOWN),
    )
    yield Operation(
        "getVersion", "GET", "/v1/version", "What answers", {200: (JSON, schemas.VersionAnswer)}
    )
    yield Operation("getMetrics", "GET", "/metrics", "Metrics for Prometheus", {200: (TEXT, None)})
    yield Operation(
        "isAlive", "GET", "/livez", "Whether the process answers", {200: (TEXT, None)}, role=""
    )
    yield Operation(
        "isReady",
        "GET",
        "/readyz",
        "Whether questions would be answered",
        {200: (TEXT, None)},
        role="",
    )
    yield Operation(
        "getOpenapi",
        "GET",
        "/openapi.json",
        "This document",
        {200: (JSON, None), 304: ("", None)},
        role="",
        parameters=(KNOWN,),
    )


OPERATIONS = tuple(_operations())
"""Everything that the REST transport answers."""


@cache
def openapi_document() -> Data:
    """Return the OpenAPI document."""
    models: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = []
    for each in OPERATIONS:
        if each.request:
            models.append((each.request, "validation"))
        models += [(model, "serialization") for _, model in each.answers.values() if model]
    models += [(schemas.ProblemAnswer, "serialization"), (schemas.PageAnswer, "serialization")]
    refs, defined = models_json_schema(
        list(dict.fromkeys(models)), by_alias=True, ref_template="#/components/schemas/{model}"
    )
    of_request = {model: ref for (model, mode), ref in refs.items() if mode == "validation"}
    of_answer = {model: ref for (model, mode), ref in refs.items() if mode == "serialization"}
    paths: Data = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method.lower()] = _described(
            each, of_request, of_answer
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "planner",
            "version": API_VERSION,
            "summary": "The fastest way to split an LLM training job over a cluster.",
            "description": (
                "Answers are the JSON of the command line. That nothing fits is an answer with"
                " reasons, not an error. Fields may be added to answers: ignore unknown ones."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": dict(sorted(defined.get("$defs", {}).items())),
        },
    }


def _described(
    each: Operation, of_request: Mapping[Any, Any], of_answer: Mapping[Any, Any]
) -> Data:
    out: Data = {"operationId": each.id, "summary": each.title}
    if each.parameters:
        out["parameters"] = [
            {
                "name": p.name,
                "in": p.where,
                "description": p.meaning,
                "schema": dict(p.schema),
                **({"required": True} if p.where == "path" else {}),
            }
            for p in each.parameters
        ]
    if each.request:
        content = {JSON: {"schema": of_request[each.request]}}
        out["requestBody"] = {"required": True, "content": content}
    out["responses"] = {}
    for status, (media, model) in sorted(each.answers.items()):
        answer: Data = {"description": _MEANINGS[status]}
        if media:
            schema = of_answer[model] if model else TEXT_SCHEMA if media == TEXT else {}
            answer["content"] = {media: {"schema": schema}}
        out["responses"][str(status)] = answer
    out["responses"]["default"] = {
        "description": "Refused: see `code`, `detail` and `errors`.",
        "content": {PROBLEM: {"schema": of_answer[schemas.ProblemAnswer]}},
    }
    if each.role:
        out["x-role"] = each.role
    else:
        out["security"] = []
    return out


_MEANINGS = {
    200: "The answer.",
    202: "A job was accepted; its address is in the header Location.",
    204: "Nothing more will happen to the job.",
    304: "The caller has it already.",
}


def openapi_text() -> str:
    """Return the text of the document, the same bytes every time."""
    return json.dumps(openapi_document(), indent=1, ensure_ascii=False) + "\n"


def openapi_breaking_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
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
        for status, answer in was["responses"].items():
            new = now["responses"].get(status)
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

    def _resolved(self, document: Mapping[str, Any], schema: Data) -> Data:
        while "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            schema = document["components"]["schemas"][name]
        return schema

    def _schema(self, where: str, was: Data, now: Data, is_request: bool) -> Iterator[str]:
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
        if is_request and lost:
            yield f"{where} is no longer {' or '.join(lost)}"
        if not is_request and (added or (before and not after)):
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
        for key in ("anyOf", "oneOf"):
            for one in was.get(key, ()):
                for other in now.get(key, ()):
                    of = "$ref" if "$ref" in one else "type"
                    if one.get(of) and one.get(of) == other.get(of):
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
