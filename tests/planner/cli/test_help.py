"""What the command line says of itself: help by section, completion, man pages, first steps."""

from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from planner.cli import completion
from planner.cli.app import app
from planner.cli.plugins import SECTIONS, first_line, help_section
from tests.planner.command import run_here

LONGEST_SUMMARY = 62
"""Columns that are left beside the names of commands in a window of 80."""


def commands() -> dict[str, object]:
    group = typer.main.get_command(app)
    with group.make_context("planner", [], resilient_parsing=True) as context:
        return {name: group.get_command(context, name) for name in group.list_commands(context)}


def test_every_summary_is_whole_in_a_window_of_80() -> None:
    for name, command in commands().items():
        summary = first_line(command.help)
        assert 0 < len(summary) <= LONGEST_SUMMARY, name
    shown = CliRunner().invoke(app, ["--help"], terminal_width=80).output
    assert "..." not in shown.replace("[ARGS]...", "")
    assert max(map(len, shown.splitlines())) <= 80
    for name, command in commands().items():
        assert any(first_line(command.help) in x for x in shown.splitlines() if f"  {name} " in x)


def test_every_section_has_commands() -> None:
    assert {help_section(command) for command in commands().values()} == set(SECTIONS)


def test_planner_alone_says_what_to_type() -> None:
    done = run_here()
    assert (done.returncode, done.stderr) == (2, "")
    typed = [x.strip() for x in done.stdout.splitlines() if x.startswith("  planner ")]
    assert len(typed) == 4
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_first_step_is_a_command_that_works(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = next(x for x in run_here().stdout.splitlines() if x.startswith("  planner "))
    assert run_here(*first.split()[1:]).returncode == 0


def test_completions_begin_with_what_is_typed() -> None:
    assert "llama3-70b" in completion.complete_models("llama3")
    assert "h100-x512" in completion.clusters("h100")
    assert "24xh100-sxm-80gb" in completion.clusters("24xh100")
    assert all(x.startswith("24xb200") for x in completion.clusters("24xb200"))
    assert completion.clusters("24xb200")
    assert "megatron" in completion.complete_frameworks("meg")
    assert "tp,step" in completion.columns("tp,st")
    assert "h100-sxm-80gb" in completion.complete_parts("h100")
    assert [code for code, _ in completion.rules("mem001")] == ["MEM001"]
    assert completion.questions("band") == ["bandwidth"]
    assert completion.objectives("cos") == ["cost"]


def test_plans_of_the_last_result_are_completed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert completion.plans("") == []
    assert run_here("solve", "llama3-8b", "h100-x8", "--top", "2").returncode == 0
    assert [name for name, _ in completion.plans("last")] == ["last#1", "last#2"]


def test_man_pages_hold_every_option(tmp_path: Path) -> None:
    assert run_here("man", "--out", str(tmp_path)).returncode == 0
    assert {f"planner-{name}.1" for name in commands()} <= {x.name for x in tmp_path.iterdir()}
    page = (tmp_path / "planner-solve.1").read_text("utf-8")
    for parameter in commands()["solve"].params:
        for name in parameter.opts:
            shown = name.replace("-", "\\-") if name.startswith("-") else name.upper()
            assert shown in page
    assert run_here("man", "solve").stdout == page


def test_an_unknown_page_is_one_clear_error() -> None:
    done = run_here("man", "nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nonsense" in done.stderr


@pytest.mark.parametrize("names", ["tp,nonsense", "stepp"])
def test_an_unknown_column_names_those_there_are(names: str) -> None:
    done = run_here("solve", "llama3-8b", "h100-x8", "--columns", names)
    assert (done.returncode, done.stdout) == (2, "")
    assert "tp" in done.stderr
    assert "step" in done.stderr


def test_columns_are_those_that_are_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = run_here("solve", "llama3-8b", "h100-x8", "--top", "1", "--columns", "step,tp,ep")
    lines = done.stdout.splitlines()
    head = next(i for i, line in enumerate(lines) if line.split() == ["step", "tp", "ep"])
    row = lines[head + 2].split()
    assert row[0] == "*"
    assert row[2:] == ["1", "1"]
