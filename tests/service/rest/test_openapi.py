"""The OpenAPI document: current, whole, and never changed so that its readers break."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from service.handlers.calls import CALLS
from service.rest.compatibility import breaking_changes
from service.rest.openapi import openapi_document, openapi_text
from service.rest.operations import OPERATIONS, TAGS

FILE = Path(__file__).parents[3] / "docs" / "openapi.json"


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def test_the_committed_document_is_current():
    assert FILE.read_text() == openapi_text(), "scripts/openapi writes it"


def test_the_document_does_not_break_the_readers_of_the_committed_one(committed):
    assert breaking_changes(committed, openapi_document()) == []


def test_every_call_has_an_operation_with_its_schema(committed):
    by_id = {
        operation["operationId"]: operation
        for methods in committed["paths"].values()
        for operation in methods.values()
    }
    assert len(by_id) == len(OPERATIONS)
    for each in OPERATIONS:
        described = by_id[each.id]
        assert "default" in described["responses"]
        if each.call:
            assert described["x-role"] == CALLS[each.call].role
        if each.request:
            ref = described["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            fields = committed["components"]["schemas"][ref.rpartition("/")[2]]["properties"]
            names = {f.alias or name for name, f in each.request.model_fields.items()}
            assert fields.keys() == names
    assert {each.call for each in OPERATIONS if each.call} == CALLS.keys()


def test_the_document_is_valid(committed):
    OpenAPIV31SpecValidator(committed).validate()


def test_every_operation_says_what_its_readers_need(committed):
    assert [tag["name"] for tag in committed["tags"]] == list(TAGS)
    assert committed["servers"][0]["url"] == "/"
    for path, methods in committed["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            assert operation["tags"][0] in TAGS, where
            assert operation["summary"], where
            assert operation["description"].endswith("."), where
            statuses = operation["responses"].keys() - {"default"}
            assert any(status[0] == "2" for status in statuses), where
            assert any(status[0] == "4" for status in statuses), where
            for status, answer in operation["responses"].items():
                content = answer.get("content", {})
                assert all(x["schema"] for x in content.values()), f"{where} {status}"


def test_statuses_are_told_as_the_role_and_the_body_have_it():
    for each in OPERATIONS:
        assert (401 in each.problems) == bool(each.role), each.id
        assert ({408, 413, 415} <= {*each.problems}) == (each.method == "POST"), each.id
        assert each.request is None or 422 in each.problems, each.id


def test_the_document_names_the_prefix_of_a_proxy():
    assert openapi_document("/planner")["servers"][0]["url"] == "/planner"


def test_all_references_lead_somewhere(committed):
    def look(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                kind, name = value["$ref"].removeprefix("#/components/").split("/")
                assert name in committed["components"][kind]
            for each in value.values():
                look(each)
        elif isinstance(value, list):
            for each in value:
                look(each)

    look(committed)


SOLVE = ("paths", "/v1/plans:solve", "post")
REQUEST = ("components", "schemas", "SolveRequest")
ANSWER = ("components", "schemas", "SolveAnswer")


def changed(document: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    out = copy.deepcopy(document)
    place = out
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return out


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (SOLVE[:2], None, "POST /v1/plans:solve is gone"),
        ((*SOLVE, "operationId"), "ask", "is called ask"),
        ((*SOLVE, "parameters"), [], "the parameter Idempotency-Key is gone"),
        ((*SOLVE, "responses", "200"), None, "no longer answers 200"),
        ((*SOLVE, "x-role"), "admin", "the role admin"),
        ((*REQUEST, "properties", "top"), None, "SolveRequest.top is gone"),
        ((*REQUEST, "properties", "top"), {"type": "integer"}, "SolveRequest.top is no longer"),
        ((*REQUEST, "required"), ["model", "cluster", "top"], "SolveRequest.top is required"),
        ((*REQUEST, "properties", "pool"), {"type": "string", "maxLength": 3}, "maxLength is 3"),
        ((*ANSWER, "properties", "plans"), None, "SolveAnswer.plans is gone"),
        ((*ANSWER, "properties", "complete"), {"type": "string"}, "complete may be string"),
        ((*ANSWER, "properties", "result_id"), {}, "result_id may be anything"),
        ((*ANSWER, "required"), [], "SolveAnswer.plans may be missing"),
        (("components", "schemas", "Plan", "properties", "mfu"), None, "Plan.mfu is gone"),
        (("components", "schemas", "Closest", "properties", "layout"), None, "Closest.layout"),
        (("paths", "/livez", "get", "security"), [{"token": []}], "/livez asks for a token"),
    ],
)
def test_changes_that_break_readers_are_found(committed, path, value, said):
    faults = breaking_changes(committed, changed(committed, path, value))
    assert any(said in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("paths", "/v1/more"), {"get": {"operationId": "more", "responses": {}}}),
        ((*REQUEST, "properties", "more"), {"type": "string"}),
        ((*ANSWER, "properties", "more"), {"type": "string"}),
        ((*REQUEST, "required"), ["model"]),
        ((*SOLVE, "summary"), "in other words"),
        ((*SOLVE, "responses", "418"), {"description": "more"}),
    ],
)
def test_additions_break_nobody(committed, path, value):
    assert breaking_changes(committed, changed(committed, path, value)) == []


@pytest.mark.parametrize(
    ("field", "is_told"), [("SolveRequest.objective", True), ("SolveRequest.pool", False)]
)
def test_a_text_becomes_words_only_where_it_never_was_more(committed, field, is_told):
    place = ("components", "schemas", *field.replace(".", ".properties.").split("."))
    old = changed(committed, place, {"type": "string"})
    new = changed(committed, place, {"type": "string", "enum": ["a"]})
    assert (breaking_changes(old, new) == []) == is_told


def test_refusals_tell_their_headers_and_answers_where_to_go_on(committed):
    parts = committed["components"]
    assert "WWW-Authenticate" in parts["responses"]["Unauthenticated"]["headers"]
    assert "Retry-After" in parts["responses"]["Busy"]["headers"]
    for methods in committed["paths"].values():
        for operation in methods.values():
            accepted = operation["responses"].get("202")
            if accepted:
                assert {"Location", "Retry-After"} <= accepted["headers"].keys()
                assert {"Job", "Events", "Result", "Cancel"} <= accepted["links"].keys()
    known = {each.id: {p.name for p in each.parameters} for each in OPERATIONS}
    for link in parts["links"].values():
        assert link["parameters"].keys() <= known[link["operationId"]]


def test_requests_name_the_words_that_fields_hold(committed):
    schemas = committed["components"]["schemas"]
    assert schemas["JobRequest"]["properties"]["call"]["enum"] == list(CALLS)
    assert {"step_time", "cost", ""} <= set(schemas["ObjectiveName"]["enum"])
    open_ended = schemas["LauncherName"]["anyOf"]
    assert open_ended[0]["enum"][0] == "torchrun"
    assert "enum" not in open_ended[1]
    assert schemas["ProblemAnswer"]["properties"]["errors"]["items"]["$ref"].endswith("Fault")
