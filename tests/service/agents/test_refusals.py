"""Refusals that an agent can act on: what was asked, what is wrong, what to change."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.agents import plan_tools
from service.agents.tools import TOOLS, call_tool, refusal_json, refusal_text
from service.handlers.problems import Refusal
from tests.service.agents.desk import SMALL, new_desk, refused


@pytest.mark.parametrize(
    ("name", "arguments", "code", "field", "change"),
    [
        ("solve", {**SMALL, "tp": 8}, "malformed", "tp", 'pins={"tp": 8}'),
        ("solve", {**SMALL, "seq_len": 4096}, "malformed", "seq_len", "seq=4096"),
        ("solve", {**SMALL, "objektive": "cost"}, "malformed", "objektive", "objective"),
        ("solve", {"cluster": "h100-x8"}, "malformed", "model", "add it"),
        ("solve", {**SMALL, "seq": "long"}, "malformed", "seq", "integer"),
        ("solve", {**SMALL, "pins": {"tpp": 8}}, "bad-option", "pins", "tp, pp"),
        ("solve", {**SMALL, "objective": "fun"}, "bad-option", "objective", "cost"),
        ("solve", {**SMALL, "model": "llama3-70"}, "bad-specification", "model", "llama3-70b"),
        ("solve", {**SMALL, "cluster": "8xh1000"}, "bad-specification", "", "h100"),
        ("evaluate", {**SMALL, "pins": {"tp": 3}}, "bad-layout", "pins", "divides 8"),
        ("catalog", {"name": "h1000"}, "unknown-part", "name", "catalog"),
        ("rule", {"code": "TP999"}, "bad-option", "code", "rule"),
        ("rule", {"find": "zebra"}, "bad-option", "find", "another"),
        ("learn", {"name": "pipelin"}, "bad-option", "name", "pipeline"),
        ("explain", {"plan": "nothing#1"}, "bad-option", "plan", "ref"),
        ("recommend", {**SMALL, "question": "many"}, "malformed", "question", "devices"),
        (
            "emit",
            {"plan": "nothing#1", "launcher": ["sbatch"]},
            "malformed",
            "launcher.0",
            "slurm",
        ),
        ("solves", SMALL, "unknown-call", "", "solve"),
    ],
)
def test_a_refusal_says_where_and_what_to_change(
    name: str, arguments: dict[str, Any], code: str, field: str, change: str
) -> None:
    data = refused(name, arguments)
    assert data["refused"] == code
    assert data["asked"] == {"tool": name, "arguments": arguments}
    problem = data["problems"][0]
    assert problem.get("field", "") == field
    assert change in problem["change"]
    assert "GET /v1" not in str(data)
    text = refusal_text(data)
    assert problem["wrong"] in text
    assert "Traceback" not in text


def test_a_rule_that_forbids_a_layout_is_explained_by_the_next_call() -> None:
    data = refused("evaluate", {"model": "llama3-8b", "cluster": "64xh100", "pins": {"tp": 64}})
    assert data["problems"][0]["rule"] == "TP001"
    (following,) = data["next"]
    rules = call_tool(following["tool"], following["arguments"], new_desk())[1]["rules"]
    assert [rule["code"] for rule in rules] == ["TP001"]


def test_all_faults_of_a_document_are_told_by_line() -> None:
    text = "model:\n  layers: 4\n  hidden: -1\ntraining: {seq_len: 512, global_batch: 8}\n"
    problems = refused("solve", {**SMALL, "model": text})["problems"]
    assert len(problems) > 3
    assert {"model.hidden", "model.heads"} <= {problem["field"] for problem in problems}
    assert next(x for x in problems if x["field"] == "model.hidden")["line"] == 3


def test_long_arguments_are_not_repeated_whole() -> None:
    data = refused("check", {"run": "x\n" * 5_000, "cluster": "nowhere"})
    assert len(data["asked"]["arguments"]["run"]) < 300


def test_a_defect_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(plan_tools, "card_of", broken)
    data = refused("solve", {**SMALL, "top": 1})
    assert (data["refused"], data["problems"][0]["wrong"]) == ("defect", "ZeroDivisionError")


SENSELESS = (None, 0, -1, 1e30, "", "x", "last", "../x", "\0", "tp=", {}, {"": ""}, {"tp": [1]})
SEARCHES = ("solve", "recommend", "scale")
TINY = {
    "model": {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "gated": True, "vocab": 100}
    | {"name": "tiny", "tied": False},
    "training": {"seq_len": 64, "global_batch": 2},
}


@pytest.mark.parametrize(
    "tool",
    [
        pytest.param(tool, id=name, marks=[pytest.mark.slow] * (name in SEARCHES))
        for name, tool in TOOLS.items()
    ],
)
def test_senseless_arguments_are_refused_or_answered_and_never_a_defect(tool: Any) -> None:
    desk = new_desk()
    properties = tool.input_schema()["properties"]
    usual = {"model": TINY, "cluster": "1xh100", "pins": {}, "question": "micro-batch"}
    usual |= {"plan": "x#1", "a": "x", "b": "y", "run": "{}", "document": "llama3-8b"}
    usual = {name: value for name, value in usual.items() if name in properties}
    n_refused = 0
    for name in properties:
        for value in SENSELESS:
            arguments = {**usual, name: value}
            try:
                call_tool(tool.name, arguments, desk)
            except Refusal as refusal:
                data = refusal_json(refusal, tool.name, arguments)
                assert data["refused"] != "defect", (name, value, data)
                assert refusal_text(data).startswith("Refused (")
                n_refused += 1
    assert n_refused > 10


def test_a_search_that_is_stopped_says_so() -> None:
    asked = {"model": "llama3-70b", "cluster": "h100-x512", "time_limit_s": 0.001}
    assert call_tool("solve", asked, new_desk())[1]["complete"] is False


def test_no_file_is_opened_for_a_caller_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokens.txt").write_text("alice solve 8da1ade96c37\n")
    (tmp_path / "secret").write_text("key: 8da1ade96c37\n")
    monkeypatch.chdir(tmp_path)
    asked = {"question": "hardware", "model": "llama3-8b"}
    for cluster in ("tokens.txt", "secret,8xh100", "8xh100,..", "./secret", "8xh100, secret"):
        answer = refused("recommend", {**asked, "cluster": cluster})
        assert "8da1ade96c37" not in json.dumps(answer)
        assert "list of names" in json.dumps(answer)
    answer = refused("recommend", {**asked, "cluster": "8000000xh100"})
    assert "131,072" in json.dumps(answer)
