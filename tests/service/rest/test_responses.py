"""What is read of a request before its endpoint."""

import pytest

from service.handlers.problems import Refusal
from service.rest.operations import operation_of
from service.rest.responses import check_headers


def test_a_header_longer_than_the_document_says_is_refused() -> None:
    name, most = "Planner-Labels", 8000
    solve = operation_of("POST", "/v1/plans:solve")
    assert solve is not None
    check_headers(solve, {})
    check_headers(solve, {name.lower().encode(): b"k" * most})
    with pytest.raises(Refusal) as caught:
        check_headers(solve, {name.lower().encode(): b"k" * (most + 1)})
    assert (caught.value.status, caught.value.code) == (400, "malformed")
    assert f"{name}: {most + 1} characters; give at most {most}" in str(caught.value.detail)
