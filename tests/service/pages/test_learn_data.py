"""What the page of Learn is made of: fields, problems, results; without a browser."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.learn import calculators
from service.handlers.problems import Refusal
from service.handlers.running_call import RunningCall
from service.pages.views.learn import LearnAnswer, LearnBody, _learn, unbroken

ROOT = Path(__file__).resolve().parents[3]
TABLE = ROOT / "tests" / "planner" / "learn" / "writeups.yaml"
CASES = [case for row in yaml.safe_load(TABLE.read_text("utf-8")) for case in row["cases"]]


def page(name: str, **inputs: str) -> dict[str, Any]:
    return _learn(LearnBody(name=name, inputs=inputs), RunningCall())


def fields(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for group in data["groups"] for field in group["fields"]}


@pytest.mark.parametrize("name", list(calculators()))
def test_every_calculator_has_fields_results_and_figures(name: str) -> None:
    data = page(name)
    LearnAnswer.model_validate(data)
    assert data["result"]["numbers"]
    assert data["figures"]
    ids = [*fields(data), *(figure["key"] for figure in data["figures"])]
    assert len(set(ids)) == len(ids)
    for field in fields(data).values():
        assert field["label"]
        assert field["problem"] == ""
        assert field["kind"] == "choice" or len(field["steps"]) > field["place"] >= 0


def test_a_field_that_follows_shows_what_it_took() -> None:
    found = fields(page("tensor-parallel", device="a100-sxm-80gb"))
    assert (found["peak_flops_per_s"]["value"], found["peak_flops_per_s"]["placeholder"]) == (
        "",
        "312",
    )
    assert found["device"]["value"] == "a100-sxm-80gb"


def test_what_is_wrong_stands_at_its_field_and_there_is_no_result() -> None:
    data = page("memory", ranks="0", params="<script>", nonsense="1")
    found = fields(data)
    assert "from 1 to" in found["ranks"]["problem"]
    assert "not a number" in found["params"]["problem"]
    assert found["params"]["value"] == "<script>"  # the template escapes it
    assert data["others"][0]["name"] == "nonsense"
    assert data["result"] is None
    assert data["figures"] == []


@pytest.mark.parametrize("place", range(len(CASES)))
def test_every_example_of_other_pages_can_be_entered(place: int) -> None:
    case = CASES[place]
    inputs = {key: str(value) for key, value in case["set"].items()}
    data = page(case["calculator"], **inputs)
    assert data["result"]
    assert not data["others"]
    shown = fields(data)
    for key, text in inputs.items():  # and is shown in the unit of its field
        assert shown[key]["value"] == text or float(shown[key]["value"]) > 0


def test_an_unknown_calculator_is_no_page() -> None:
    with pytest.raises(Refusal) as refused:
        page("pipelin")
    assert refused.value.status == 404


def test_numbers_keep_their_unit_on_the_line() -> None:
    assert unbroken("27.3 %") == "27.3\xa0%"
    assert unbroken("2 (P - 1)(a + n/P b)") == "2 (P - 1)(a + n/P b)"
    assert unbroken(7) == 7
