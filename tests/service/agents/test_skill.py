"""SKILL.md and the pages that agents read name what there is."""

import re
import shlex
import tomllib
from pathlib import Path

import yaml
from typer.main import get_command

from planner.cli import app as cli
from planner.specs.examples import example_names
from service.agents.resources import PAGES, page_path
from service.agents.tools import TOOLS

ROOT = Path(__file__).resolve().parents[3]
SKILL = (ROOT / "SKILL.md").read_text(encoding="utf-8")
CODE = re.findall(r"`([^`\n]+)`", SKILL)


def test_the_head_says_what_it_is_for() -> None:
    head = yaml.safe_load(SKILL.split("---\n")[1])
    assert head["name"] == "planner"
    assert 100 < len(head["description"]) < 1024


def test_it_is_short() -> None:
    assert len(SKILL) < 5_000


def test_every_tool_that_it_names_has_these_arguments() -> None:
    calls = [found for text in CODE if (found := re.fullmatch(r"(\w+)\((.*)\)", text))]
    named = {call[1] for call in calls}
    assert named <= {*TOOLS}
    assert {"solve", "evaluate", "explain", "check", "recommend", "scale", "rule"} <= named
    for call in calls:
        properties = {*TOOLS[call[1]].input_schema()["properties"]}
        words = [part.partition("=")[0].strip() for part in call[2].split(",")]
        arguments = {word for word in words if re.fullmatch(r"[a-z_]+", word)}
        assert arguments <= properties, call[0]


def test_every_command_that_it_names_has_these_options() -> None:
    commands = get_command(cli.app).commands  # type: ignore[attr-defined]  # a group
    lines = [shlex.split(text) for text in CODE if text.startswith("planner ")]
    assert len(lines) >= 10
    for _, name, *words in lines:
        assert name in commands
        options = {option for x in commands[name].params for option in x.opts}
        if name != "catalog":
            assert {word for word in words if word.startswith("--")} <= options, name


def test_examples_that_it_names_are_there() -> None:
    (line,) = [line for line in SKILL.splitlines() if line.startswith("- **Model**")]
    assert {*re.findall(r"`([a-z0-9-]+)`", line)} <= {*example_names("model")}


def test_every_page_is_there_and_in_the_wheel() -> None:
    assert all(page_path(name) for name in PAGES)
    assert page_path("nothing") is None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included["docs"] == "planner/docs"
    assert included["SKILL.md"] == "planner/docs/SKILL.md"


def test_the_index_for_agents_lists_files_that_there_are() -> None:
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 40
    assert all((ROOT / link).is_file() for link in links)
    pages = {f"docs/{name}.md" for name in PAGES if name != "SKILL"}
    assert pages <= {*links}
