"""The script that asks the frameworks: what it makes of their answers, without a framework."""

import copy
import json
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from tools.samples.draw import draw_plans
from tools.samples.write import files_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script():
    """Return scripts/check_frameworks as a module."""
    path = str(ROOT / "scripts" / "check_frameworks")
    loader = SourceFileLoader("check_frameworks", path)
    module = module_from_spec(spec_from_loader("check_frameworks", loader))
    sys.modules["check_frameworks"] = module
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def forked(script):
    import forked

    return forked


@pytest.fixture(scope="module")
def asked(script):
    """Return the questions to every checker about a few drawn plans."""
    drawn = [
        {"id": one.name, "framework": name, "files": files_of(one)}
        for name in ("megatron", "bridge", "deepspeed", "torchtitan", "fsdp2")
        for one in draw_plans(name, 4, seed=10)
    ]
    return script.ask_about(list(script.ALL_CHECKERS), drawn)


def understood(question):
    """Return the answer of a framework that understood a plan."""
    return {"id": question.id, "accepted": True, "resolved": copy.deepcopy(question.wants)}


def test_every_checker_is_asked_and_told_what_to_expect(script, asked):
    assert set(asked) == set(script.ALL_CHECKERS)
    for name, questions in asked.items():
        for question in questions:
            assert len(question.wants) > 8, name
            assert json.loads(json.dumps(question.case))  # goes through a file of JSON lines


@pytest.mark.parametrize("name", ["megatron", "bridge", "deepspeed", "torchtitan", "accelerate"])
def test_a_wrong_layout_is_noticed(script, asked, name):
    questions = asked[name]
    answers = {question.id: understood(question) for question in questions}
    found = script.judge(name, questions, answers)
    assert found == {"files": len(questions), "refused": {}, "different": {}}
    for key in questions[0].wants:
        told = answers | {questions[0].id: understood(questions[0])}
        told[questions[0].id]["resolved"][key] = "something else"
        found = script.judge(name, questions, told)
        assert list(found["different"]) == [questions[0].id], key
        assert f"{key} is something else, the plan says" in found["different"][questions[0].id]


@pytest.mark.slow
def test_a_plan_that_is_told_wrongly_is_noticed(script):
    # The framework reads the files as they are; the plan beside them says one more tp.
    told = (
        ("megatron", "tp"),
        ("megatron", "pp"),
        ("deepspeed", "dp"),
        ("torchtitan", "cp"),
        ("bridge", "ep"),
        ("accelerate", "mbs"),
    )
    for checker, axis in told:
        one = script.ALL_CHECKERS[checker]
        drawn = next(draw_plans(one.framework, 1, seed=5))
        files = files_of(drawn)
        (right,) = script.questions(one, drawn.name, files)
        axis_value = getattr(drawn.layout, axis)
        (wrong,) = script.questions(one, drawn.name, files, {axis: axis_value + 1})
        found = script.judge(checker, [wrong], {wrong.id: understood(right)})
        assert found["different"], (checker, axis)


def test_a_refusal_keeps_the_words_of_the_framework(script, asked):
    question = asked["megatron"][0]
    failed = {"stage": "validate", "ok": False, "error": "AssertionError: no"}
    answer = {"id": question.id, "accepted": False, "stages": [failed], "resolved": {}}
    found = script.judge("megatron", [question], {question.id: answer})
    assert found["refused"] == {question.id: "validate: AssertionError: no"}


def test_a_checker_that_dies_is_no_verdict(script, asked):
    question = asked["megatron"][0]
    answer = {"id": question.id, "accepted": False, "died": True, "error": "checker: boom"}
    with pytest.raises(script.CannotRun, match="boom"):
        script.judge("megatron", [question], {question.id: answer})


@pytest.mark.parametrize(
    ("accepts", "codes", "breaks", "kind"),
    [
        (True, [], "", "both accept"),
        (False, ["MLM101"], "MLM101", "both refuse"),
        (False, ["MLM101", "MLM112"], "MLM112", "both refuse"),
        (False, ["MLM101"], "MLM999|MLM101", "both refuse"),
        (False, [], "MLM101", "only the framework refuses"),
        (True, ["MLM101"], "", "only planner check refuses"),
        (False, ["MLM112"], "MLM101", "refused for another rule"),
    ],
)
def test_verdicts_are_compared(script, asked, accepts, codes, breaks, kind):
    question = asked["megatron"][0]
    answers = {question.id: {"accepted": accepts, "errors": ["no"], "resolved": {}}}
    refused = [{"code": code, "reason": "why"} for code in codes]
    ours = {question.id: {"refused": refused, "change": "a change", "breaks": breaks}}
    found = script.judge_variations([question], answers, ours)
    count = found[kind] if isinstance(found[kind], int) else len(found[kind])
    assert count == 1
    others = {
        "both accept",
        "both refuse",
        "only the framework refuses",
        "only planner check refuses",
        "refused for another rule",
    } - {kind}
    others -= {"both refuse"} if kind == "refused for another rule" else set()
    assert not any(found[other] for other in others)


def test_releases_replace_pins_and_nothing_else(script):
    import environments

    pins = "# why\na==1\nbb==2\n"
    assert environments.with_releases(pins, {}) == pins
    assert environments.with_releases(pins, {"a": "3"}) == "# why\na==3\nbb==2\n"
    assert environments.with_releases(pins, {"a": "", "b": "9"}) == "# why\na\nbb==2\n"
    assert script.releases_of(["a==1.2", "b"]) == {"a": "1.2", "b": ""}


def test_each_case_runs_in_a_process_of_its_own(forked):
    seen = []

    def check(case):
        seen.append(case["id"])  # in the fork: nothing of it comes back
        if case["id"] == "dies":
            raise SystemExit(3)
        return {"accepted": case["id"] == "good", "n_seen": len(seen)}

    lines = [json.dumps({"id": name}) for name in ("good", "bad", "dies", "good")]
    found = [answer for _, answer in forked.answers(lines, check)]
    assert [answer["accepted"] for answer in found] == [True, False, False, True]
    assert [answer.get("n_seen") for answer in found] == [1, 1, None, 1]
    assert found[2]["died"]
    assert seen == []


@pytest.mark.slow
def test_a_case_without_an_end_is_given_up(forked, monkeypatch):
    monkeypatch.setattr(forked, "CASE_LIMIT_S", 1)

    def check(case):
        while True:
            pass

    ((_, answer),) = forked.answers(['{"id": "x"}'], check)
    assert answer["died"]
    assert "no end after 1 s" in answer["error"]


def test_patience_makes_time_limits_longer(script, monkeypatch):
    import environments

    monkeypatch.delenv("PLANNER_CHECK_PATIENCE", raising=False)
    assert environments.patient(30.0) == 30.0
    monkeypatch.setenv("PLANNER_CHECK_PATIENCE", "2.5")
    assert environments.patient(30.0) == 75.0
    script.options_of(["--patience", "4"])
    assert environments.patient(30.0) == 120.0
    for wrong in ("-1", "0", "soon"):
        monkeypatch.setenv("PLANNER_CHECK_PATIENCE", wrong)
        with pytest.raises(SystemExit):
            script.options_of([])
