"""The OpenAPI 3.1 document of the REST transport.

It is made of `service.rest.operations.OPERATIONS`, from which the routes come too, and of the
pydantic models of `service.handlers.schemas` and `service.handlers.answers`. `scripts/openapi`
writes it to docs/openapi.json.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from service.handlers import answers, schemas
from service.http.exchange import JSON, PROBLEM, SSE, TEXT, Operation
from service.rest.operations import OPERATIONS, TAGS

API_VERSION = "1.0"
"""Version of the interface: the second number grows with additions, /v1 becomes /v2 otherwise."""
Data = dict[str, Any]
Mode = Literal["validation", "serialization"]
Refs = Mapping[tuple[Any, Mode], Mapping[str, Any]]

_STRING = {"type": "string"}
_LINES = "lines `id:`, `event:` and `data:` with JSON."
_EVENTS = {
    "watchJob": f"Events `state`, `progress` and `problem`: {_LINES}",
    "watchJobs": f"Events `added`, `modified`, `deleted`, `bookmark`, `problem`: {_LINES}",
}
_ANSWERS = {
    200: "The answer.",
    201: "It was made; its address is in the header Location.",
    202: "A job was accepted; its address is in the header Location.",
    204: "Nothing more will happen to the job, or it is gone.",
    304: "The caller has it already.",
}
_PROBLEMS = {
    400: ("Malformed", "The body, a header or the query cannot be read."),
    401: ("Unauthenticated", "A token is needed, or the one that came is not known."),
    403: ("NotAllowed", "The role of the caller does not reach, or a page of another site asks."),
    404: ("Unknown", "There is no such job or call, or it is not one's own."),
    408: ("SlowBody", "The body did not arrive in time."),
    409: ("Conflict", "The job has no answer yet, or the idempotency key is in use."),
    410: ("Expired", "It is not kept any more: submit the request, or list the jobs, again."),
    413: ("TooLarge", "The body, or a document in it, is larger than the limits allow."),
    415: ("WrongMediaType", "The body is not application/json, or is compressed."),
    421: ("WrongHost", "The service is not called by this name."),
    422: ("Refused", "The request cannot be answered: `errors` name field, line and what to do."),
    429: ("Busy", "Too much at once: come back after `Retry-After` seconds."),
    500: ("Defect", "A defect of the service: please report it with the id of the request."),
    503: ("NotReady", "The service starts or stops, or has too many connections."),
    504: ("OutOfTime", "Nothing was found before the time of the call was over."),
    507: ("StoreFull", "The store has no space for more jobs."),
}
"""Name and description of the refusals by status."""
_RETRIED = (429, 503)


_TITLES = {
    model.__name__: str(model.model_config["title"])
    for model in (*vars(schemas).values(), *vars(answers).values())
    if isinstance(model, type) and issubclass(model, BaseModel) and "title" in model.model_config
}
"""Names of components by those of their models, where they differ."""


class _TitledSchemas(GenerateJsonSchema):
    """Calls a component what its model's title says."""

    def normalize_name(self, name: str) -> str:
        """Return the key of a component."""
        return super().normalize_name(_TITLES.get(name, name))


def _header(meaning: str, kind: str = "string") -> Data:
    return {"description": meaning, "schema": {"type": kind}}


_ETAG = {"ETag": _header("Content hash of the request: send it as If-None-Match.")}
_LOCATION = {"Location": _header("Address of the job.")}
_RETRY_AFTER = {"Retry-After": _header("Seconds.", "integer")}


def openapi_document(root_path: str = "") -> Data:
    """Return the OpenAPI document of a service whose paths have a prefix."""
    models: list[tuple[type[BaseModel], Mode]] = []
    for each in OPERATIONS:
        if each.request:
            models.append((each.request, "validation"))
        models += [(model, "serialization") for _, model in each.answers.values() if model]
    others = (answers.ProblemAnswer, answers.PageAnswer, answers.SweepAnswer)
    models += [(model, "serialization") for model in others]
    refs, defined = models_json_schema(
        list(dict.fromkeys(models)),
        by_alias=True,
        ref_template="#/components/schemas/{model}",
        schema_generator=_TitledSchemas,
    )
    paths: Data = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, refs)
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
        "servers": [
            {"url": root_path or "/", "description": "The service that this document came from."}
        ],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Of the service's token file; none where it has no file.",
                }
            },
            "responses": {
                name: _problem(status, text, refs) for status, (name, text) in _PROBLEMS.items()
            },
            "schemas": dict(sorted(defined.get("$defs", {}).items())),
        },
    }


def _problem(status: int, text: str, refs: Refs) -> Data:
    schema = refs[answers.ProblemAnswer, "serialization"]
    out: Data = {"description": text, "content": {PROBLEM: {"schema": schema}}}
    return out | ({"headers": _RETRY_AFTER} if status in _RETRIED else {})


def _operation(each: Operation, refs: Refs) -> Data:
    out: Data = {
        "operationId": each.id,
        "tags": [each.tag],
        "summary": each.title,
        "description": each.description,
    }
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
        content = {JSON: {"schema": refs[each.request, "validation"]}}
        out["requestBody"] = {"required": True, "content": content}
    out["responses"] = {
        str(status): _answer(each, status, refs) for status in sorted(each.answers)
    } | {
        str(status): {"$ref": f"#/components/responses/{_PROBLEMS[status][0]}"}
        for status in sorted(each.problems)
    }
    out["responses"]["default"] = {
        "description": "Refused: see `code`, `detail` and `errors`.",
        "content": {PROBLEM: {"schema": refs[answers.ProblemAnswer, "serialization"]}},
    }
    if each.role:
        out["x-role"] = each.role
    else:
        out["security"] = []
    return out


def _answer(each: Operation, status: int, refs: Refs) -> Data:
    media, model = each.answers[status]
    out: Data = {"description": _ANSWERS[status]}
    if status == 201:
        out["headers"] = {"Location": _header("Its address.")}
    elif status == 202:
        out["headers"] = _LOCATION | _RETRY_AFTER
    elif status == 200 and 304 in each.answers:
        out["headers"] = _ETAG
    if media:
        schema = refs[model, "serialization"] if model else _schema(each, media, refs)
        out["content"] = {media: {"schema": schema}}
    return out


def _schema(each: Operation, media: str, refs: Refs) -> Mapping[str, Any]:
    """Return the schema of an answer that is no single model."""
    if media == TEXT:
        return _STRING
    if media == SSE:
        return {**_STRING, "description": _EVENTS[each.id]}
    if each.id == "getOpenapi":
        return {"type": "object"}
    models = [x.answers[200][1] for x in OPERATIONS if x.call and 200 in x.answers]
    choices = [answers.PageAnswer, answers.SweepAnswer, *models]
    return {"anyOf": [refs[model, "serialization"] for model in dict.fromkeys(choices) if model]}


def openapi_text(root_path: str = "") -> str:
    """Return the text of the document, the same bytes every time."""
    return json.dumps(openapi_document(root_path), indent=1, ensure_ascii=False) + "\n"
