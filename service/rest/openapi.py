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
from service.handlers.calls import CALLS
from service.http.exchange import JSON, PROBLEM, SSE, TEXT, Operation
from service.rest.components import (
    PROBLEMS,
    answer_headers,
    answer_links,
    header_components,
    link_components,
    problem_headers,
    unlisted_headers,
)
from service.rest.examples import answer_example, problem_example, request_example
from service.rest.operations import OPERATIONS, TAGS

API_VERSION = "1.1"
"""Version of the interface: the second number grows with additions, /v1 becomes /v2 otherwise."""
DESCRIPTION = """\
Answers are the JSON of the command line. That nothing fits is an answer with reasons, not an
error. Fields may be added to answers: ignore unknown ones.

**Requests.** A value that the schema allows may still be refused, 422, for what it means: a name
that is none, a model that no such cluster holds, two options that exclude each other. `errors`
say which field, and what to change. A cursor of no page, a number beyond 1e18 and the character
NUL are 400.

**Deprecation.** What is to go away is marked `deprecated` here, with the day from which
(`x-deprecated-since`), the day until which it stays at least (`x-sunset`, a year later or more)
and what to use instead (`x-use-instead`). Answers that hold such a part have the headers
`Deprecation` (RFC 9745), `Sunset` (RFC 8594) and a `Link` with `rel="deprecation"`. Nothing else
goes away within /v1.
"""
NAMED = (
    "Allowance",
    "FrameworkName",
    "FrontAxis",
    "InputDocument",
    "LauncherName",
    "ObjectiveName",
    "StackName",
    "TargetName",
)
"""Titles of schemas that fields of several requests have."""
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


def openapi_document(root_path: str = "") -> Data:
    """Return the OpenAPI document of a service whose paths have a prefix."""
    models: list[tuple[type[BaseModel], Mode]] = []
    for each in OPERATIONS:
        if each.request:
            models.append((each.request, "validation"))
        models += [(model, "serialization") for _, model in each.answers.values() if model]
    others = (
        answers.ProblemAnswer,
        answers.PageAnswer,
        answers.SweepAnswer,
        answers.StateEvent,
        answers.ProgressEvent,
    )
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
    named = _named(defined["$defs"])
    named["JobRequest"]["properties"]["call"]["enum"] = list(CALLS)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "planner",
            "version": API_VERSION,
            "summary": "The fastest way to split an LLM training job over a cluster.",
            "description": DESCRIPTION,
            "contact": {"name": "Who runs this service"},
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
            "headers": header_components(),
            "links": link_components(),
            "responses": {
                **{name: _problem(status, refs) for status, (name, _) in PROBLEMS.items()},
                "Other": {
                    "description": "Refused otherwise: see `code`, `detail` and `errors`.",
                    "headers": unlisted_headers(),
                    "content": {PROBLEM: {"schema": _problem_schema(refs)}},
                },
            },
            "schemas": dict(sorted(named.items())),
        },
    }


def _named(schemas_by_name: Mapping[str, Any]) -> Data:
    """Return schemas with those of `NAMED` told once, and referred to where they stood."""
    found: Data = {}

    def told(value: Any) -> Any:
        if isinstance(value, list):
            return [told(each) for each in value]
        if not isinstance(value, dict):
            return value
        value = {key: told(each) for key, each in value.items()}
        title = value.get("title")
        if not isinstance(title, str) or title not in NAMED:
            return value
        here = {key: value.pop(key) for key in ("default",) if key in value}
        found.setdefault(title, value)
        return {"$ref": f"#/components/schemas/{title}", **here}

    result = {name: told(schema) for name, schema in schemas_by_name.items()}
    return result | found


def _problem_schema(refs: Refs) -> Mapping[str, Any]:
    return refs[answers.ProblemAnswer, "serialization"]


def _problem(status: int, refs: Refs) -> Data:
    content: Data = {"schema": _problem_schema(refs)}
    example = problem_example(status)
    if example is not None:
        content["examples"] = {"refused": {"summary": example["title"], "value": example}}
    return {
        "description": PROBLEMS[status][1],
        "headers": problem_headers(status),
        "content": {PROBLEM: content},
    }


def _operation(each: Operation, refs: Refs) -> Data:
    out: Data = {
        "operationId": each.id,
        "tags": [each.tag],
        "summary": each.title,
        "description": each.description,
    }
    example = request_example(each.id, each.call)
    if each.parameters:
        out["parameters"] = [
            {
                "name": p.name,
                "in": p.where,
                "description": p.meaning,
                "schema": dict(p.schema),
                **({"required": True} if p.where == "path" else {}),
                **({"example": example[p.name]} if p.name in (example or {}) else {}),
            }
            for p in each.parameters
        ]
    if each.request:
        body: Data = {"schema": refs[each.request, "validation"]}
        if example is not None:
            body["examples"] = {"question": {"summary": each.title, "value": example}}
        out["requestBody"] = {"required": True, "content": {JSON: body}}
    out["responses"] = {
        str(status): _answer(each, status, refs) for status in sorted(each.answers)
    } | {
        str(status): {"$ref": f"#/components/responses/{PROBLEMS[status][0]}"}
        for status in sorted(each.problems)
    }
    out["responses"]["default"] = {"$ref": "#/components/responses/Other"}
    if each.role:
        out["x-role"] = each.role
    else:
        out["security"] = []
    return out


def _answer(each: Operation, status: int, refs: Refs) -> Data:
    media, model = each.answers[status]
    out: Data = {"description": _ANSWERS[status], "headers": answer_headers(each, status)}
    if media:
        content: Data = {
            "schema": refs[model, "serialization"] if model else _schema(each, media, refs)
        }
        example = answer_example(each.id, each.call, status)
        if example is not None:
            content["examples"] = {"answer": {"summary": _ANSWERS[status], "value": example}}
        out["content"] = {media: content}
    links = answer_links(each, status)
    return out | ({"links": links} if links else {})


def _schema(each: Operation, media: str, refs: Refs) -> Mapping[str, Any]:
    """Return the schema of an answer that is no single model."""
    if media == TEXT:
        return _STRING
    if media == SSE:
        if each.id != "watchJob":
            return {**_STRING, "description": _EVENTS[each.id], "contentMediaType": SSE}
        data = [
            refs[model, "serialization"]
            for model in (answers.StateEvent, answers.ProgressEvent, answers.ProblemAnswer)
        ]
        return {
            **_STRING,
            "description": _EVENTS[each.id],
            "contentMediaType": SSE,
            "contentSchema": {"description": "`data:` of an event.", "anyOf": data},
        }
    if each.id == "getOpenapi":
        return {"type": "object"}
    models = [x.answers[200][1] for x in OPERATIONS if x.call and 200 in x.answers]
    choices = [answers.PageAnswer, answers.SweepAnswer, *models]
    return {"anyOf": [refs[model, "serialization"] for model in dict.fromkeys(choices) if model]}


def openapi_text(root_path: str = "") -> str:
    """Return the text of the document, the same bytes every time."""
    return json.dumps(openapi_document(root_path), indent=1, ensure_ascii=False) + "\n"
