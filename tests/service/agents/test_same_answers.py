"""The tools answer what the command line answers, to the last digit."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.agents.tool import Desk
from service.agents.tools import call_tool
from tests.planner.command import run_here
from tests.repeats import slow
from tests.service.agents.desk import SMALL, new_desk, with_cache

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "examples" / "imports" / "train_llama3_8b.sh"
WORDS = ("llama3-8b", "h100-x8")
CHANGED = ("--top", "1", "--seq", "4096", "--pin", "tp=2", "--set", "pools.0.nodes=2")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    with_cache(monkeypatch, tmp_path)
    return new_desk(opens_files=True, shares_cache=True)


def full(name: str, arguments: dict[str, Any], desk: Desk) -> tuple[str, dict[str, Any]]:
    text, data = call_tool(name, {**arguments, "details": "full"}, desk)
    return text, data["full"]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("solve", {**SMALL, "top": 2}, ("solve", *WORDS, "--top", "2")),
        (
            "solve",
            {**SMALL, "top": 1, "seq": 4096, "pins": {"tp": 2}, "set": {"pools.0.nodes": 2}},
            ("solve", *WORDS, *CHANGED),
        ),
        (
            "solve",
            {"model": "llama3-8b", "cluster": "1xh100", "top": 1},
            ("solve", "llama3-8b", "1xh100", "--top", "1"),
        ),
        (
            "evaluate",
            {**SMALL, "pins": {"tp": 8, "mbs": 1}},
            ("evaluate", *WORDS, "--pin", "tp=8,mbs=1"),
        ),
        (
            "recommend",
            {**SMALL, "question": "devices"},
            ("recommend", "devices", *WORDS),
        ),
        slow(
            "scale",
            {**SMALL, "to": 16, "points": 2, "pins": {"tp": 1}},
            ("scale", *WORDS, "--to", "16", "--points", "2", "--pin", "tp=1"),
        ),
        (
            "check",
            {"run": str(SCRIPT), "cluster": "h100-x8"},
            ("check", str(SCRIPT), "h100-x8"),
        ),
        ("check_spec", {"document": "mixtral-8x7b"}, ("check-spec", "mixtral-8x7b")),
        (
            "learn",
            {"name": "pipeline", "inputs": {"stages": 8, "stage_s": 0.02}},
            ("learn", "pipeline", "--set", "stages=8", "--set", "stage_s=20ms"),
        ),
    ],
)
def test_full_answers_are_those_of_the_command_line(
    name: str, arguments: dict[str, Any], words: tuple[str, ...], desk: Desk
) -> None:
    _, data = full(name, arguments, desk)
    printed = json.loads(run_here(*words, "--format", "json").stdout)
    if name == "check_spec":
        assert {key: data[key] for key in ("kind", "document", "notes")}.items() <= printed.items()
        assert call_tool(name, arguments, desk)[1]["parameters"] == printed["parameters"]
        return
    if name == "check":  # the command line says where the file lies, and where its lines are
        for each in (data, printed):
            each["source"] = Path(each["source"]).name
    assert data == printed


def test_the_text_of_an_answer_is_the_card_of_the_command_line(desk: Desk) -> None:
    text, data = call_tool("solve", {**SMALL, "top": 2}, desk)
    printed = run_here("solve", *WORDS, "--top", "2").stdout
    card = text.partition("\nPlans:\n")[0]
    assert len(card) > 1000
    ref = data["plans"][0]["ref"]
    assert printed.startswith(card.replace(ref, "last#1"))
    assert data["sentence"] == printed.splitlines()[0]


def test_plans_are_those_that_the_command_line_opens(desk: Desk) -> None:
    _, solved = call_tool("solve", {**SMALL, "top": 2}, desk)
    first, second = (plan["ref"] for plan in solved["plans"])
    text, explained = full("explain", {"plan": first}, desk)
    assert explained == json.loads(run_here("explain", "last#1", "--format", "json").stdout)
    assert text == run_here("explain", "last#1").stdout
    _, compared = full("compare", {"a": first, "b": second}, desk)
    assert compared == json.loads(run_here("diff", "last#1", "last#2", "--format", "json").stdout)


@pytest.mark.slow
def test_changed_plans_are_those_of_the_command_line(desk: Desk) -> None:
    _, solved = call_tool("solve", {**SMALL, "top": 2}, desk)
    first, second = (plan["ref"] for plan in solved["plans"])
    text, _ = full("compare", {"a": first, "b": second}, desk)
    assert text == run_here("diff", "last#1", "last#2").stdout
    _, changed = full("neighbours", {"plan": second}, desk)
    assert changed == json.loads(run_here("neighbours", "last#2", "--format", "json").stdout)
    _, moved = full("replan", {"plan": first, "gained": 1}, desk)
    replanned = run_here("replan", f"{first.partition('#')[0]}.json#1", "--gained", "1")
    assert replanned.returncode == 1  # the command line names files, and `last`
    call_tool("solve", {**SMALL, "top": 2}, desk)
    printed = run_here("replan", "last#1", "--gained", "1", "--format", "json").stdout
    assert moved == json.loads(printed)


def test_files_are_those_that_the_command_line_writes(desk: Desk, tmp_path: Path) -> None:
    _, solved = call_tool("solve", {**SMALL, "top": 1}, desk)
    arguments = {"plan": solved["plans"][0]["ref"], "for": "megatron", "launcher": ["slurm"]}
    _, written = full("emit", arguments, desk)
    out = tmp_path / "out"
    run_here("emit", "last#1", "--for", "megatron", "--launcher", "slurm", "--out", str(out))
    (folder,) = out.iterdir()
    assert written["files"] == {path.name: path.read_text() for path in folder.iterdir()}
    short = call_tool("emit", arguments, desk)[1]
    assert {*short["files"], *short["left_out"]} == {*written["files"]}
    assert all(short["files"][name] == written["files"][name] for name in short["files"])


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("rule", {"code": "TP002"}, ("rule", "TP002")),
        ("rule", {}, ("rule",)),
        ("catalog", {"details": "full"}, ("catalog", "list")),
        ("catalog", {"name": "h100", "details": "full"}, ("catalog", "show", "h100")),
        ("learn", {}, ("learn",)),
    ],
)
def test_facts_are_told_in_the_same_words(
    name: str, arguments: dict[str, Any], words: tuple[str, ...], desk: Desk
) -> None:
    text, _ = call_tool(name, arguments, desk)
    assert text.split() == run_here(*words).stdout.split()
