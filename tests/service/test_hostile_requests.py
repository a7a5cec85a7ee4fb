"""Requests that want too much, files, or nothing sensible: a problem each, never a trace."""

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputProblem as Wrong
from planner.errors import SearchError, SpecError, UsageError
from service.handlers.calls import CALLS, answer, call, read_request, request_size
from service.handlers.documents import looks_like_path
from service.handlers.limits import RequestLimits, check_document_text, json_body
from service.handlers.problems import Refusal, problem_of
from service.handlers.running_call import RunningCall

JOB = {"model": "llama3-8b", "cluster": "h100-x8"}
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


def refused(name: str, body: Any, limits: RequestLimits = RequestLimits()) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call(name, body, RunningCall(limits))
    problem = caught.value
    document = problem.to_json("id")
    assert document["status"] < 500
    assert document["type"].endswith(problem.code)
    json.dumps(document, allow_nan=False)
    return problem


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return call("evaluate", {**JOB, "pins": {"tp": 2}})


@pytest.mark.parametrize(
    "text",
    [
        "/etc/passwd",
        "../../job.yaml",
        "~/m",
        "job.yaml",
        "config.json",
        r"C:\m",
        "http://h/x",
        "file:///etc/passwd",
        "https://h/x?a=b: c",
        "s3://b/k",
        "./m",
    ],
)
def test_no_path_and_no_address_is_opened(text: str, result: dict[str, Any]) -> None:
    assert looks_like_path(text)
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("solve", {**JOB, "model": text}),
        ("solve", {**JOB, "cluster": text}),
        ("evaluate", {**JOB, "pins": {}, "calibration": text}),
        ("check", {"run": text, "cluster": "h100-x8"}),
        ("check-spec", {"document": text}),
    ]
    for name, body in bodies:
        problem = refused(name, body)
        assert problem.code == "path-or-url"
        assert "opened" in problem.detail
    if "/" in text:
        assert refused("emit", {"result": result, "hosts": text}).code == "path-or-url"
        spec = {**JOB, "vary": {"model": ["llama3-8b", text]}}
        assert "no file is opened" in refused("sweep", {"spec": spec}).detail


def test_nothing_is_opened_while_calls_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: dict[str, Any]
) -> None:
    trap = tmp_path / "trap"
    trap.write_text("model: {}")
    monkeypatch.chdir(tmp_path)
    for name in ("trap", "llama3-8b", "h100-x8", "n1", "ds.json"):
        (tmp_path / name).write_text("THE TRAP")
    texts = [
        lambda: call("evaluate", {**JOB, "pins": {"tp": 2}}),
        lambda: call("place", {"result": result, "hosts": "n1"}),
        lambda: call(
            "check",
            {
                "run": "source ./trap\ndeepspeed t.py --deepspeed_config ds.json",
                "cluster": "h100-x8",
                "model": "llama3-8b",
            },
        ),
        lambda: call("solve", {**JOB, "model": "trap"}),
    ]
    for text in texts:
        try:
            said = json.dumps(text())
        except Refusal as problem:
            said = json.dumps(problem.to_json())
        assert "THE TRAP" not in said


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "malformed"),
        (b"[]", 400, "malformed"),
        (b'{"model": NaN}', 400, "malformed"),
        (b'{"model": 1e999}', 400, "malformed"),
        (b'{"model": "a", "model": "b"}', 400, "malformed"),
        (b"\xff\xfe", 400, "malformed"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "malformed"),
        (b'{"model":' + b'{"a":' * 40 + b"1" + b"}" * 41, 400, "malformed"),
        (b'{"model": ' + b"1" * 5000 + b"}", 400, "malformed"),
        (b'{"model": "\\u0000"}', 400, "malformed"),
        (b'{"model": "\\ud800"}', 400, "malformed"),
        (b'{"model": "' + b"x" * 8_000_000 + b'"}', 413, "too-large"),
        (b'{"model": [' + b"1," * 500_000 + b"1]}", 413, "too-large"),
        (b'{"model": "llama3-8b"}', 422, "malformed"),
        (b'{"model": "llama3-8b", "cluster": "h100-x8", "executor": "ray"}', 422, "malformed"),
        (b'{"model": "llama3-8b", "cluster": "h100-x8", "top": "5"}', 422, "malformed"),
        (b'{"model": "llama3-8b", "cluster": "h100-x8", "top": true}', 422, "malformed"),
    ],
)
def test_what_is_no_request(body: bytes, status: int, code: str) -> None:
    problem = refused("solve", body)
    assert (problem.status, problem.code) == (status, code)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model": "llama3-9b"}, "no example called"),
        ({"model": "h100-x8"}, "a model file is needed"),
        ({"model": ""}, "no example called"),
        ({"model": "model: {layers: 3}\n"}, "is missing"),
        ({"model": "model: !!python/object/apply:os.system ['id']\n"}, "not supported"),
        ({"model": "model: {layers: .nan}\ntraining: {}\n"}, "expected a whole number"),
        ({"model": "a: [\n"}, "not valid YAML"),
        ({"model": "x: " + "[" * 5000 + "\n"}, "brackets are open"),
        ({"model": BOMB + "model: *i\n"}, "more than 50,000 values"),
        ({"model": "model: &a 1\nb: [" + "*a, " * 101 + "*a]\n"}, "YAML aliases"),
        ({"model": "x: 1 # " + "y" * 200_000 + "\n"}, "bytes of the model"),
        ({"model": {"text": "model: {}\n", "name": "../x"}}, "no plain file name"),
        ({"set": {"pools.0.nodes": 100_000}}, "devices of pool"),
        ({"set": {"training.global_batch": 10_000_000}}, "sequences in a step"),
        ({"set": {"model.layers": 9_999}}, "layers of the model"),
        ({"set": {"pools.0.nodes": "[[[[1"}}, "not valid YAML"),
        ({"set": {"pools.0.nodes": "x" * 5000}}, "characters of"),
        ({"pins": {"tp": 10**12}}, "at most"),
        ({"pins": {"vpp": 10**6}}, "at most"),
        ({"only": {"mbs": [2**40]}}, "at most"),
        ({"pins": {"tp": 1.5}}, "whole number"),
        ({"top": 10**9}, "plans in the answer"),
        ({"calibration": {"name": "x", "values": {"gemm": 1}}}, "no parameter"),
        ({"framework": "x"}, "unknown framework"),
        ({"pareto": ["step_time"]}, "two or three"),
    ],
)
def test_wrong_content_says_what_to_change(more: dict[str, Any], said: str) -> None:
    problem = refused("solve", {**JOB, **more})
    assert problem.status in (400, 413, 422)
    assert said in problem.detail + " ".join(e.message for e in problem.errors)


def test_the_line_is_that_in_the_text_of_the_request() -> None:
    text = "model:\n  layers: 3\n  hiden: 4\ntraining: {seq_len: 8, global_batch: 1}\n"
    first = refused("solve", {**JOB, "model": text}).errors[0]
    assert (first.source, first.line, first.field) == ("model", 3, "model.hiden")
    named = refused("solve", {**JOB, "model": {"text": text, "name": "job.yaml"}}).errors[0]
    assert (named.source, named.line) == ("job.yaml", 3)
    cluster = refused("solve", {**JOB, "cluster": "pools:\n- accelerator: h1000\n  nodes: 1\n"})
    assert (cluster.errors[0].source, cluster.errors[0].line) == ("cluster", 2)
    assert "did you mean" in cluster.errors[0].fix


def test_the_rule_that_a_layout_breaks_is_named() -> None:
    problem = refused("evaluate", {**JOB, "pins": {"tp": 2, "ep": 2}})
    assert problem.code == "bad-layout"
    assert problem.errors[0].rule.startswith("EP")


def test_limits_are_those_of_the_settings() -> None:
    few = replace(RequestLimits(), space=10)
    problem = refused("solve", JOB, few)
    assert (problem.status, problem.code) == (422, "too-much-work")
    assert "candidate plans" in problem.detail
    with pytest.raises(Refusal, match="candidate plans"):
        request_size(read_request("solve", JOB), few)
    vary = {"training.global_batch": [8, 16, 32]}
    few = replace(RequestLimits(), points=2)
    assert "points: 3" in refused("sweep", {"spec": {**JOB, "vary": vary}}, few).detail
    with pytest.raises(Refusal, match="aliases"):
        check_document_text("model:\n- &a 1\n" + "- *a\n" * 101, "model")
    with pytest.raises(Refusal, match="bytes of the body"):
        json_body(b"{}", replace(RequestLimits(), body_bytes=1))


def test_many_keys_are_looked_through_once():
    keys = [f'"{n}":0' for n in range(300_000)]  # in a time that grows with n^2: an hour
    body = "{" + ",".join([*keys, keys[-1]]) + "}"
    with pytest.raises(Refusal, match="stands twice"):
        json_body(body.encode())


PLAN, INPUTS = ("plans", 0), ("inputs",)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("plans",), []),
        (("plans",), 5),
        (("plans",), [5]),
        (("inputs",), None),
        (("schema_version",), "9.0"),
        ((*INPUTS, "options"), {}),
        ((*INPUTS, "options", "pins"), 5),
        ((*INPUTS, "options", "stack"), "x"),
        ((*INPUTS, "options", "calibration"), {"a": 1}),
        ((*INPUTS, "cluster", "pools", 0, "nodes"), 10**6),
        ((*INPUTS, "model"), 5),
        ((*PLAN, "layout"), {}),
        ((*PLAN, "layout", "tp"), 10**9),
        ((*PLAN, "layout", "tp"), "8"),
        ((*PLAN, "layout", "dp"), 0),
        ((*PLAN, "layout", "gbs"), 10**9),
        ((*PLAN, "layout", "mbs"), 0),
        ((*PLAN, "layout", "n_devices"), 10**9),
        ((*PLAN, "layout", "stage_layers"), [10**6] * 3),
        ((*PLAN, "layout", "schedule"), [1]),
        ((*PLAN, "layout", "zero"), 9),
        ((*PLAN, "layout", "dp_shard"), 3),
        ((*PLAN, "layout", "etp"), 3),
        ((*PLAN, "layout", "hpz"), 5),
        ((*PLAN, "layout", "sp"), 1),
        ((*PLAN, "layout", "recompute"), "x"),
        ((*PLAN, "layout", "more"), 1),
        ((*PLAN, "pool"), "x"),
        ((*PLAN, "plan_id"), 5),
        ((*PLAN, "precision"), "x"),
        ((*PLAN, "memory"), 5),
        ((*PLAN, "rank"), "x"),
    ],
)
def test_a_result_that_was_changed_is_refused(
    result: dict[str, Any], path: tuple[Any, ...], value: object
) -> None:
    changed = copy.deepcopy(result)
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert refused("explain", {"result": changed}).status in (400, 413, 422)


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("explain", {"plan": "zzz"}, "no plan"),
        ("explain", {"plan": 10**17}, "no plan"),
        ("explain", {"term": "bubbles"}, "no term"),
        ("explain", {"solve": JOB}, "solve and result"),
        ("emit", {"for": ["x"]}, "unknown framework"),
        ("emit", {"out": "/tmp"}, "unknown field"),
        ("emit", {"launcher": ["x"]}, "unknown launcher"),
        ("place", {"hosts": ""}, "empty"),
        ("place", {"hosts": "n[1"}, "hosts: "),
        ("place", {"hosts": "n[1-99999999]"}, "hosts: "),
        ("replan", {}, "no node is lost"),
        ("replan", {"lost": 2}, "runs on 1 nodes"),
        ("replan", {"lost": ["n1"]}, "names none"),
        ("replan", {"gained": -1}, "below 0"),
        ("replan", {"lost": 1}, "no node is left"),
        ("replan", {"gained": 10**9}, "devices"),
    ],
)
def test_wrong_questions_about_a_plan(
    result: dict[str, Any], name: str, more: dict[str, Any], said: str
) -> None:
    problem = refused(name, {"result": result, **more})
    assert said in problem.detail + " ".join(e.message + e.fix for e in problem.errors)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("nope", {}),
        ("diff", {"a": {}}),
        ("explain", {}),
        ("catalogue", {"name": "h1000"}),
        ("rules", {"code": "XX999"}),
        ("rules", {"code": 5}),
        ("check-spec", {"document": {}}),
        ("check", {"run": "", "cluster": "h100-x8"}),
        ("check", {"run": "echo", "cluster": "h100-x8"}),
        ("check", {"run": "A=x\n" + "A=$A$A$A$A\n" * 40, "cluster": "h100-x8"}),
        (
            "check",
            {"run": "A=xx\n" + "echo " + "$((" * 999 + "1" + "))" * 999, "cluster": "h100-x8"},
        ),
        (
            "sweep",
            {"spec": {**JOB, "vary": {"training.global_batch": [8]}, "search": {"top": 900}}},
        ),
        ("check", {"run": "A=$((1<<99999999))\necho $A", "cluster": "h100-x8"}),
        ("sweep", {"spec": {}}),
        ("sweep", {"spec": {**JOB, "calibration": "x", "vary": {}}}),
    ],
)
def test_other_calls_refuse_as_well(name: str, body: dict[str, Any]) -> None:
    refused(name, body)


def test_documents_may_be_longer_than_options(result: dict[str, Any]) -> None:
    long = "# " + "x" * 9_000 + "\n"
    for text in (long + "model: {layers: 3}\n", {"text": long + "model: {layers: 3}\n"}):
        assert "is missing" in refused("solve", {**JOB, "model": text}).errors[0].message
    run = {"run": {"text": long + "echo", "name": "a.sh"}, "cluster": "h100-x8"}
    assert "no training command" in refused("check", run).detail
    assert refused("explain", {"result": result, "term": "x" * 9_000}).code == "too-large"


def test_errors_of_the_library_keep_their_places_and_codes() -> None:
    several = SpecError([Wrong("bad", "good", "m.yaml", 3, 5, "model.layers"), Wrong("worse")])
    problem = problem_of(several)
    assert (problem.status, problem.code) == (422, "bad-specification")
    assert problem.detail == "m.yaml:3: model.layers: bad (and 1 more)"
    assert problem.errors[0].to_json() == {
        "message": "bad",
        "fix": "good",
        "field": "model.layers",
        "source": "m.yaml",
        "line": 3,
        "column": 5,
        "code": "bad-specification",
        "hint": "good",
        "location": "m.yaml:3:5",
    }
    assert problem_of(SearchError("breaks TP002 (x)")).errors[0].rule == "TP002"
    again = pickle.loads(pickle.dumps(problem_of(UsageError("a", "b"))))
    assert again.to_json() == problem_of(UsageError("a", "b")).to_json()


def test_a_defect_is_a_problem_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(request: Any, running: RunningCall) -> Any:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setitem(CALLS, "rules", replace(CALLS["rules"], function=broken))
    with pytest.raises(Refusal) as caught:
        answer(read_request("rules", {}))
    assert (caught.value.status, caught.value.code) == (500, "defect")
    assert "Traceback" not in json.dumps(caught.value.to_json())


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


fields = [
    "model",
    "cluster",
    "pins",
    "set",
    "result",
    "plan",
    "a",
    "b",
    "run",
    "spec",
    "document",
    "lost",
    "hosts",
    "name",
    "code",
    "top",
    "x",
]
bodies = st.dictionaries(st.sampled_from(fields), values)


def answered_or_refused(name: str, body: dict[str, Any]) -> None:
    status = 200
    try:
        call(name, body)
    except Refusal as problem:
        status = problem.status
    assert status < 500


@settings(max_examples=8)
@given(st.sampled_from(sorted(CALLS)), bodies)
def test_any_request_is_answered_or_refused(name: str, body: dict[str, Any]) -> None:
    answered_or_refused(name, body)


NAMES = [
    "tp",
    "pp",
    "cp",
    "ep",
    "etp",
    "vpp",
    "mbs",
    "zero",
    "dp_shard",
    "hpz",
    "split",
    "schedule",
    "recompute",
    "sp",
    "devices",
    "precision",
]
axes = st.sampled_from(NAMES)
numbers = st.integers(-2, 10) | st.integers(-(2**60), 2**60)
words = st.sampled_from(["full", "1f1b", "even", "3-5", "16-16", "zb-v", "bf16", "on", "", "8x4"])


@pytest.mark.slow
@settings(max_examples=400)
@given(st.sampled_from(["llama3-8b", "mixtral-8x7b"]), st.dictionaries(axes, numbers | words))
def test_any_pins_are_priced_or_refused(model: str, pins: dict[str, Any]) -> None:
    answered_or_refused("evaluate", {"model": model, "cluster": "h100-x8", "pins": pins})


@pytest.mark.slow
@settings(max_examples=400)
@given(st.sampled_from(sorted(CALLS)), bodies)
def test_many_requests_are_answered_or_refused(name: str, body: dict[str, Any]) -> None:
    answered_or_refused(name, body)
