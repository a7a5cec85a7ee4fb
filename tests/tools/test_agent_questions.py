"""The questions with known answers: their format, grading that can fail, and our forty."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp import Client

from service.agents.server import make_server
from service.agents.tools import TOOLS
from tests.repeats import slow
from tests.service.agents.desk import new_desk
from tools.agent_questions.grading import faults_of
from tools.agent_questions.question import (
    Call,
    Question,
    QuestionFileError,
    read_questions,
    values_at,
)
from tools.agent_questions.run import QUESTIONS, Outcome, asked, filled, main, report

OURS = read_questions(QUESTIONS)
VALIDATION = Path(__file__).resolve().parents[2] / "planner" / "data" / "validation"


def outcomes_of(questions: list[Question]) -> list[Outcome]:
    async def run() -> list[Outcome]:
        async with Client(make_server(new_desk())) as client:
            return await asked(client, questions)

    return asyncio.run(run())


def graded(data: dict[str, Any], *checks: dict[str, Any]) -> list[str]:
    question = Question("x", "x", "?", (Call("rule", {}),), "", "", checks)
    return faults_of(question, [data])


def test_there_are_forty_of_many_kinds_with_one_or_two_calls_each() -> None:
    assert len(OURS) == 40
    assert len({question.kind for question in OURS}) >= 10
    assert {call.tool for question in OURS for call in question.calls} <= {*TOOLS}
    used = {call.tool for question in OURS for call in question.calls}
    assert {"solve", "evaluate", "explain", "check", "recommend", "scale", "rule"} <= used
    assert sum(question.source.startswith("measured: ") for question in OURS) >= 6


def test_measured_rows_are_those_of_the_validation_data() -> None:
    rows = (VALIDATION / "points.csv").read_text().splitlines()
    ids = {row.partition(",")[0] for row in rows}
    words = {word.strip(",.") for question in OURS for word in question.source.split()}
    named = words & ids
    assert len(named) >= 7


@pytest.mark.slow
def test_our_questions_are_answered_right() -> None:
    outcomes = outcomes_of(OURS)
    wrong = [(outcome.question.id, outcome.faults) for outcome in outcomes if outcome.faults]
    assert len(wrong) <= 2, wrong


@pytest.mark.parametrize("kinds", [("learn", "rule", "memory"), slow(("breaks",))])
def test_quick_ones_are_answered_right(kinds: tuple[str, ...]) -> None:
    quick = [q for q in OURS if q.id.split("-")[0] in kinds]
    outcomes = outcomes_of(
        [q for q in quick if q.id not in ("breaks-01", "breaks-02", "breaks-03")]
    )
    assert len(outcomes) >= 4
    assert [(x.question.id, x.faults) for x in outcomes if x.faults] == []


def test_an_answer_to_another_question_is_graded_wrong() -> None:
    """No check holds of whatever is answered: each of ours fails on what others are answered."""

    async def answers(client: Any) -> list[dict[str, Any]]:
        calls = [("rule", {"code": "EP001"}), ("learn", {"name": "memory"})]
        results = [await client.call_tool(*call) for call in calls]
        return [
            {**x.structured_content, "text": x.content[0].text, "is_error": False} for x in results
        ]

    async def run() -> list[dict[str, Any]]:
        async with Client(make_server(new_desk())) as client:
            return await answers(client)

    others = asyncio.run(run())
    right = [question.id for question in OURS if not faults_of(question, others)]
    assert right == []


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        ({"path": "a", "is": 2}, True),
        ({"path": "a", "is": 3}, False),
        ({"path": "a", "is": True}, False),
        ({"path": "yes", "is": True}, True),
        ({"path": "yes", "is": 1}, False),
        ({"path": "a", "is_not": 2}, False),
        ({"path": "a", "in": [1, 2]}, True),
        ({"path": "a", "in": [1]}, False),
        ({"path": "a", "at_least": 2}, True),
        ({"path": "a", "at_least": 2.1}, False),
        ({"path": "a", "at_most": 1.9}, False),
        ({"path": "a", "near": 2.03}, True),
        ({"path": "a", "near": 2.03, "within": 0.001}, False),
        ({"path": "a", "over": {"path": "b"}, "is": 0.5}, True),
        ({"path": "a", "less": {"path": "b"}, "is": -2.0}, True),
        ({"path": "a", "over": 0, "is": 1}, False),
        ({"path": "items.0.code", "is": "X1"}, True),
        ({"path": "items.-1.code", "is": "X2"}, True),
        ({"path": "items.2.code", "is": "X2"}, False),
        ({"path": "items.length", "is": 2}, True),
        ({"path": "items.*.code", "has": "X2"}, True),
        ({"path": "items.*.code", "has": ["X1", "X3"]}, False),
        ({"path": "items.*.code", "lacks": "X3"}, True),
        ({"path": "word", "has": ["PLAN", "best"]}, True),
        ({"path": "word", "lacks": "best"}, False),
        ({"path": "none", "is": None}, False),
        ({"path": "word", "at_least": 1}, False),
        ({"path": "files.run.sh", "has": "--tp"}, True),
    ],
)
def test_checks(check: dict[str, Any], holds: bool) -> None:
    data = {
        "a": 2,
        "b": 4,
        "yes": True,
        "word": "the best plan",
        "items": [{"code": "X1"}, {"code": "X2"}],
        "files": {"run.sh": "x --tp 8"},
    }
    assert (graded(data, check) == []) is holds


def test_every_check_has_to_hold() -> None:
    checks = ({"path": "a", "is": 1}, {"path": "b", "is": 1})
    assert graded({"a": 1, "b": 1}, *checks) == []
    assert len(graded({"a": 1, "b": 2}, *checks)) == 1


def test_values_of_the_first_answer_go_into_the_second_call() -> None:
    answers = [{"plans": [{"ref": "abc#1"}]}]
    reference = {"$answer": 1, "path": "plans.0.ref"}
    assert filled({"plan": reference, "x": [reference]}, answers) == {
        "plan": "abc#1",
        "x": ["abc#1"],
    }
    with pytest.raises(LookupError):
        filled({"$answer": 1, "path": "plans.1.ref"}, answers)
    assert list(values_at(answers[0], "plans.*.ref")) == ["abc#1"]


def test_what_is_wrong_is_reported_with_the_right_answer() -> None:
    outcomes = [Outcome(OURS[0], ["1: fits: True is not is False"], 0.5, 100)]
    text = report(outcomes, is_verbose=False)
    assert OURS[0].id in text
    assert OURS[0].right in text
    assert text.endswith("0 of 1 right, 1 calls, 0.5 s\n")


def changed(**fields: Any) -> list[dict[str, Any]]:
    question = {
        "id": "a",
        "kind": "rule",
        "question": "?",
        "calls": [{"tool": "rule", "arguments": {}}],
        "right": "x",
        "source": "hand",
        "checks": [{"path": "rules.length", "at_least": 1}],
    }
    return [{**copy.deepcopy(question), **fields}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "fix"),
        ("[]", "no list"),
        (changed(checks=[]), "no checks"),
        (changed(checks=[{"path": "x"}]), "a check with []"),
        (changed(checks=[{"path": "x", "is": 1, "in": [1]}]), "a check with"),
        (changed(checks=[{"path": "x", "equals": 1}]), "equals"),
        (changed(checks=[{"of": 2, "path": "x", "is": 1}]), "no such call"),
        (changed(calls=[{"tool": "rule", "arguments": {}}] * 3), "3 calls"),
        (changed(calls=[{"tool": "rule"}]), "not a call"),
        (changed(more=1), "more"),
        (changed() * 2, "stands twice"),
    ],
)
def test_a_file_in_another_form_is_refused(content: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "questions.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    with pytest.raises(QuestionFileError) as caught:
        read_questions(file)
    assert said in str(caught.value)
    assert "fix: " in str(caught.value)


@pytest.mark.slow
def test_the_script_takes_a_file_and_asks_over_stdio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(changed()))
    assert main([str(file)]) == 0
    assert capsys.readouterr().out.startswith("1 of 1 right, 1 calls")
    file.write_text(yaml.safe_dump(changed(checks=[{"path": "rules.length", "at_most": 0}])))
    assert main([str(file)]) == 1
    assert "WRONG  a" in capsys.readouterr().out


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert main([str(tmp_path / "none.yaml")]) == 2
