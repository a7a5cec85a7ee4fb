"""What tools take and answer: schemas, short answers, plans by their names, nearest changes."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from service.agents.arguments import Detailed, SolveArguments
from service.agents.requests import call_of_command
from service.agents.tools import TOOLS, call_tool
from tests.repeats import slow
from tests.service.agents.desk import SMALL, new_desk, refused, with_cache

MODEL_FILE = """\
model: {name: tiny, layers: 4, hidden: 512, heads: 8, ffn: 1024, gated: true, vocab: 1000,
  tied: false}
training: {seq_len: 512, global_batch: 8}
"""
DEEPSPEED = """\
{"train_batch_size": 100, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}}
"""


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_schemas_are_valid_and_say_what_everything_is(tool: Any) -> None:
    for schema in (tool.input_schema(), tool.output_schema()):
        Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
    properties = tool.input_schema()["properties"]
    silent = [name for name, field in properties.items() if not field.get("description")]
    assert not silent
    assert properties["details"]["enum"] == ["short", "full"]
    assert issubclass(tool.arguments, Detailed)
    assert len(tool.description) > 60


def test_choices_are_enumerated() -> None:
    solve = TOOLS["solve"].input_schema()["properties"]
    assert {"cost", "step_time", "goodput"} <= {*solve["objective"]["enum"]}
    assert {"tp", "pp", "devices", "recompute"} <= {*solve["pins"]["propertyNames"]["enum"]}
    assert {"lora", "qlora"} <= {*solve["task"]["enum"]}
    recommend = TOOLS["recommend"].input_schema()["properties"]
    assert "hardware" in recommend["question"]["enum"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("solve", {**SMALL, "top": 1}),
        ("solve", {"model": "llama3-8b", "cluster": "1xh100"}),
        ("evaluate", {**SMALL, "pins": {"zero": 1}}),
        ("recommend", {**SMALL, "question": "devices", "pins": {"tp": 1}}),
        slow("recommend", {**SMALL, "question": "bandwidth"}),
        slow("scale", {**SMALL, "to": 16, "points": 2, "pins": {"tp": 1}}),
        ("check", {"run": DEEPSPEED, "model": "llama3-8b", "cluster": "h100-x8"}),
        ("catalog", {"name": "ib-ndr-400"}),
        ("catalog", {}),
        ("rule", {"find": "expert"}),
        ("learn", {}),
        ("learn", {"name": "memory"}),
        ("check_spec", {"document": "h100-x8"}),
        ("check_spec", {"document": "llama3-8b", "details": "full"}),
    ],
)
def test_answers_are_as_their_schemas_say(name: str, arguments: dict[str, Any]) -> None:
    text, data = call_tool(name, arguments, new_desk())
    validator = Draft202012Validator(TOOLS[name].output_schema())
    assert not [error.message for error in validator.iter_errors(data)]
    assert text.endswith("\n")
    assert ("full" in data) == (arguments.get("details") == "full")


def test_answers_about_plans_are_as_their_schemas_say() -> None:
    desk = new_desk()
    _, solved = call_tool("solve", {**SMALL, "top": 2}, desk)
    first, second = (plan["ref"] for plan in solved["plans"])
    calls = {
        "explain": {"plan": first},
        "neighbours": {"plan": first},
        "compare": {"a": first, "b": second},
        "replan": {"plan": first, "gained": 1},
        "emit": {"plan": first},
        "place": {"plan": first},
        "trace": {"plan": first, "micro_batches": 1},
    }
    for name, arguments in calls.items():
        data = call_tool(name, arguments, desk)[1]
        validator = Draft202012Validator(TOOLS[name].output_schema())
        assert not [error.message for error in validator.iter_errors(data)], name
    opened = call_tool("explain", {"plan": first, "term": "states"}, desk)[1]
    assert (opened["term"], opened["changes"]) == ("states", [])


def test_short_answers_are_short() -> None:
    text, data = call_tool("solve", SMALL, new_desk())
    full = call_tool("solve", {**SMALL, "details": "full"}, new_desk())[1]["full"]
    assert len(text) < 2_500
    assert len(repr(data)) < len(repr(full))
    assert len(data["plans"]) == 3


def test_the_calls_that_follow_can_be_made() -> None:
    desk = new_desk()
    for following in call_tool("solve", {**SMALL, "top": 1}, desk)[1]["next"]:
        assert call_tool(following["tool"], following["arguments"], desk)[0]


def test_where_nothing_fits_the_nearest_changes_are_calls_that_fit() -> None:
    desk = new_desk()
    asked = {"model": "llama3-8b", "cluster": "1xh100"}
    text, data = call_tool("solve", asked, desk)
    assert (data["fits"], data["plans"]) == (False, [])
    assert data["closest"]["missing_bytes"] > 0
    assert {part["code"] for part in data["conflicts"]} == {"MEM001"}
    assert len(data["would_help"]) >= 2
    for change in data["would_help"]:
        assert change["change"] in text
        call = change["call"]
        answer = call_tool(call["tool"], call["arguments"], desk)[1]
        assert answer["fits"]
        assert answer["plans"][0]["step_time_s"] <= change["step_time_s"] * 1.1


def test_a_layout_that_does_not_fit_comes_with_changes_after_which_it_does() -> None:
    desk = new_desk()
    data = call_tool("evaluate", {**SMALL, "pins": {"zero": 1, "mbs": 1}}, desk)[1]
    assert not data["fits"]
    steps = [change["step_time_s"] for change in data["would_help"]]
    assert 1 <= len(steps) <= 3
    assert steps == sorted(steps)
    for change in data["would_help"]:
        answer = call_tool(change["call"]["tool"], change["call"]["arguments"], desk)[1]
        assert answer["fits"]
        assert answer["plans"][0]["step_time_s"] == pytest.approx(change["step_time_s"])


def test_a_command_becomes_a_call() -> None:
    asked = SolveArguments(model="my.yaml", cluster="64xh100", calibration="own.yaml")
    command = (
        "planner solve MODEL 64xh100 --pin recompute=full --only tp=4,8 --max pp=16"
        " --framework deepspeed --pareto step_time,memory --memory-margin 0.1 --calibration X"
        " --set pools.0.nodes=3 --set pools.0.nic_speed='25 GB/s'"
    )
    call = call_of_command(command, "why", asked)
    assert call.tool == "solve"
    assert call.arguments == {
        "model": "my.yaml",
        "cluster": "64xh100",
        "pins": {"recompute": "full"},
        "only": {"tp": [4, 8]},
        "max": {"pp": 16},
        "framework": "deepspeed",
        "pareto": ["step_time", "memory"],
        "memory_margin": 0.1,
        "calibration": "own.yaml",
        "set": {"pools.0.nodes": 3, "pools.0.nic_speed": "25 GB/s"},
    }
    assert SolveArguments.model_validate(call.arguments)


def test_pins_may_be_written_as_on_the_command_line() -> None:
    given = [{"tp": 2, "zero": 1}, "tp=2,zero=1", '{"tp": 2, "zero": 1}']
    answers = [call_tool("evaluate", {**SMALL, "pins": pins}, new_desk()) for pins in given]
    assert answers[0] == answers[1] == answers[2]


def test_short_names_of_the_job_are_fields_of_it() -> None:
    asked = {**SMALL, "pins": {"tp": 8}}
    short = call_tool("evaluate", {**asked, "seq": 4096, "batch": 64}, new_desk())
    fields = {"training.seq_len": 4096, "training.global_batch": 64}
    assert call_tool("evaluate", {**asked, "set": fields}, new_desk()) == short


def test_files_are_read_over_stdio_and_refused_over_http(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(MODEL_FILE)
    asked = {"model": str(file), "cluster": "1xh100", "top": 1}
    data = call_tool("solve", asked, new_desk(opens_files=True))[1]
    assert data["fits"]
    as_text = call_tool("solve", {**asked, "model": MODEL_FILE}, new_desk())[1]
    assert as_text["plans"][0]["step_time_s"] == data["plans"][0]["step_time_s"]
    assert refused("solve", asked)["refused"] == "path-or-url"
    run = {"run": str(file), "cluster": "h100-x8"}
    assert refused("check", run)["refused"] == "path-or-url"
    for name in ("calibration", "reference"):
        assert refused("solve", {**SMALL, name: str(file)})["refused"] == "path-or-url"


def test_the_last_result_is_the_users_over_stdio_and_nobodys_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cache(monkeypatch, tmp_path)
    here = new_desk(opens_files=True, shares_cache=True)
    ref = call_tool("solve", {**SMALL, "top": 1}, here)[1]["plans"][0]["ref"]
    named = call_tool("place", {"plan": ref}, here)
    assert call_tool("place", {"plan": "last#1"}, here) == named
    later = new_desk(opens_files=True, shares_cache=True)
    assert call_tool("place", {"plan": ref}, later) == named
    assert refused("explain", {"plan": "last#1"})["problems"][0]["field"] == "plan"
    assert refused("explain", {"plan": ref})["problems"][0]["field"] == "plan"
