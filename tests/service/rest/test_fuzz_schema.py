"""Requests that schemathesis makes of docs/openapi.json, sent to a service over HTTP."""

import contextlib
import json
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable

from service.access.auth import Auth, read_tokens
from tests.service.serving import served

TOKEN = "schema-0123456789abcdef"
FILE = Path(__file__).parents[3] / "docs" / "openapi.json"
ANSWERED = ["2xx", "304", "403", "404", "409", "410", "429", "400", "413", "422", "504"]
"""To requests that the document allows: what it says of their meaning comes last, such as names
that are none, cursors of no page, more work than is done."""
REJECTION = "negative_data_rejection"
"""The check that a request which the document does not allow is refused."""
N_REQUESTS = 30
"""Of each operation, and as many again that the document does not allow."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    auth = Auth(read_tokens(f"schema admin {TOKEN}", "tokens"), 10**9)
    with served(tmp_path_factory.mktemp("schema"), auth) as found:
        yield found


@pytest.mark.service
def test_generated_requests_are_answered_as_the_document_says(address):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import schemathesis
        from schemathesis import GenerationMode
        from schemathesis.checks import CHECKS, load_all_checks

        load_all_checks()
    checks = CHECKS.get_all()
    assert len(checks) >= 14
    document = schemathesis.openapi.from_dict(json.loads(FILE.read_text()))
    document.config.update(base_url=address)
    document.config.checks.positive_data_acceptance.expected_statuses = ANSWERED
    statuses: Counter[str] = Counter()
    for result in document.get_all_operations():
        operation = result.ok()
        if operation.label.endswith(("/events", ":watch")):
            continue  # streams: tests/service/rest/test_application.py reads them
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            ask(operation, mode, checks, statuses)
    assert sum(statuses.values()) >= 1_000, statuses
    assert statuses["200"] + statuses["202"] > 100, statuses


def is_lost(case: Any, response: Any) -> bool:
    """Tell whether all that makes a request wrong is not in what was sent.

    A token is always sent, and parameters without a value are left out of an address.
    """
    wrong = {where.value for where, part in case.meta.components.items() if part.mode.is_negative}
    sent = parse_qs(urlsplit(response.request.url).query, keep_blank_values=True)
    lost_parameters = set(case.query or ()) - set(sent)
    lost_token = "Authorization" not in (case.headers or {})
    return (
        wrong <= {"query", "header"}
        and ("query" not in wrong or bool(lost_parameters))
        and ("header" not in wrong or lost_token)
    )


def ask(operation: Any, mode: Any, checks: list[Any], statuses: Counter[str]) -> None:
    strategy = operation.as_strategy(generation_mode=mode)

    @seed(0)
    @settings(
        max_examples=N_REQUESTS,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def one(case: Any) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        response = case.call(headers=headers, timeout=30)
        statuses[str(response.status_code)] += 1
        excluded = [REJECTION] if is_lost(case, response) else []
        asked = [check for check in checks if check.__name__ not in excluded]
        case.validate_response(response, checks=asked, headers=headers)
        assert "Traceback" not in response.text

    with contextlib.suppress(Unsatisfiable):  # it reads neither body nor parameters
        one()
