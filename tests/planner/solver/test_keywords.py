"""Keywords of the library's functions: the same fields as the records that they make."""

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

import planner
from planner.analyze.check.check import CheckKeywords, CheckOptions
from planner.analyze.recommend.questions import RecommendKeywords
from planner.errors import UsageError
from planner.solver.execution import Execution
from planner.solver.keywords import EvaluateKeywords, SolveKeywords
from planner.solver.request import SolveRequest
from planner.sweeps.library import SweepKeywords
from planner.sweeps.run import SweepExecution
from planner.sweeps.scaling.curve import ScaleKeywords

FIELDS = set(SolveRequest.model_fields)
EXECUTION = {"executor", "ray_address"} | {field.name for field in fields(Execution)}
OWN: dict[type, set[str]] = {
    SolveKeywords: EXECUTION,
    EvaluateKeywords: set(),
    RecommendKeywords: {
        "most",
        "by",
        "step",
        "tolerance_frac",
        "days",
        "usd_per_device_hour",
        "progress",
    },
    ScaleKeywords: {"scaling", "over", "least", "most", "points", "stop", "progress"},
}
"""Keywords that are no fields of a request."""
TYPES = get_type_hints(SolveRequest)
"""Types of the fields, without what their JSON schema adds."""


@pytest.mark.parametrize("keywords", OWN)
def test_keywords_are_fields_of_the_request(keywords: type) -> None:
    names = set(keywords.__annotations__)
    assert names - FIELDS == OWN[keywords]
    for name in names & FIELDS:
        field = SolveRequest.model_fields[name]
        if not field.metadata and field.annotation is not Any:  # else it reads other types, too
            assert keywords.__annotations__[name] == TYPES[name]


def test_solve_has_every_field_of_the_request() -> None:
    assert set(SolveKeywords.__annotations__) >= FIELDS


@pytest.mark.parametrize(
    ("keywords", "record"), [(SweepKeywords, SweepExecution), (CheckKeywords, CheckOptions)]
)
def test_keywords_are_fields_of_the_record(keywords: type, record: type) -> None:
    own = {field.name for field in fields(record)} - {"elsewhere"}
    assert set(keywords.__annotations__) == own


@pytest.mark.parametrize(
    "call",
    [
        lambda: planner.solve("llama3-8b", "h100-x8", pin={"tp": 2}),  # type: ignore[call-arg]
        lambda: planner.evaluate("llama3-8b", "h100-x8", top=1),  # type: ignore[call-arg]
        lambda: planner.scale("llama3-8b", "h100-x8", to=64),  # type: ignore[call-arg]
        lambda: planner.recommend("size", "llama3-8b", "h100-x8", top=1),  # type: ignore[call-arg]
        lambda: planner.check("train.sh", "h100-x8", top=1),  # type: ignore[call-arg]
        lambda: planner.sweep("sweep.yaml", "out.csv", top=1),  # type: ignore[call-arg]
    ],
)
def test_an_unknown_keyword_is_named_with_those_that_there_are(call: Any) -> None:
    with pytest.raises(UsageError, match=r"unknown keyword '\w+'\n  fix: one of \w+"):
        call()


def test_a_request_and_its_own_fields_are_not_both_given() -> None:
    with pytest.raises(UsageError, match="top is a field of the request"):
        planner.solve("llama3-8b", "h100-x8", SolveRequest.of(top=1), top=2)
