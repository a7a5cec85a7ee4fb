"""Deprecated parts of answers: in the document, and in the headers of what holds them."""

from datetime import date, timedelta
from email.utils import parsedate_to_datetime

import pytest

from service.handlers import answers
from service.rest.deprecation import DEPRECATED, Deprecation, deprecated_fields
from service.rest.openapi import openapi_document
from tests.service.rest.test_application import Service

YEAR = timedelta(days=365)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    found = Service(tmp_path_factory.mktemp("deprecation"))
    yield found
    found.close()


def test_what_is_deprecated_stays_a_year_and_names_what_to_use():
    for each in DEPRECATED.values():
        assert each.sunset - each.since >= YEAR
        model, _, _ = each.field.partition(".")
        assert each.instead in getattr(answers, model).model_fields


def test_fields_are_found_inside_of_others():
    (found,) = deprecated_fields(answers.JobsAnswer)
    assert found.field == "JobAnswer.request_id"


def test_headers_are_those_of_the_standards():
    made = Deprecation("JobAnswer.request_id", date(2026, 11, 28), date(2027, 12, 1), "content_id")
    assert made.headers("/planner") == [
        (b"deprecation", b"@1795824000"),
        (b"sunset", b"Wed, 01 Dec 2027 00:00:00 GMT"),
        (b"link", b'</planner/openapi.json>; rel="deprecation"; type="application/json"'),
    ]


def test_answers_that_hold_a_deprecated_field_say_so_and_no_others(service):
    job = service.ask("POST", "/v1/sweeps", json={"n": 3})
    listed = service.ask("GET", "/v1/jobs")
    for answer in (job, listed):
        assert answer.headers["deprecation"].startswith("@")
        assert parsedate_to_datetime(answer.headers["sunset"])
        assert 'rel="deprecation"' in answer.headers["link"]
    for answer in (
        service.ask("POST", "/v1/plans:solve", json={"n": 3}),
        service.ask("GET", "/v1/jobs/none"),
        service.ask("GET", "/v1/version"),
    ):
        assert not {"deprecation", "sunset"} & answer.headers.keys()


def test_the_document_tells_the_same():
    document = openapi_document()
    told = {
        (operation["operationId"], int(status))
        for methods in document["paths"].values()
        for operation in methods.values()
        for status, answer in operation["responses"].items()
        if "Deprecation" in answer.get("headers", {})
    }
    assert told == DEPRECATED.keys()
    field = document["components"]["schemas"]["JobAnswer"]["properties"]["request_id"]
    assert field["deprecated"] is True
    assert date.fromisoformat(field["x-sunset"]) > date.fromisoformat(field["x-deprecated-since"])
