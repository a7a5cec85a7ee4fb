"""`planner learn`: the list, text, JSON, Markdown, and what a mistake gets."""

import json

import pytest

from planner.learn import calculators
from tests.planner.command import run_here


def test_the_list_names_every_calculator() -> None:
    found = run_here("learn")
    assert found.returncode == 0
    for name in calculators():
        assert f"{name} " in found.stdout


@pytest.mark.parametrize("name", list(calculators()))
def test_every_calculator_as_text_json_and_markdown(name: str) -> None:
    text = run_here("learn", name)
    assert text.returncode == 0
    assert max(map(len, text.stdout.splitlines())) <= 100
    assert "where common formulas differ, and why" in text.stdout
    data = json.loads(run_here("learn", name, "--format", "json").stdout)
    assert data["calculator"] == name
    assert all(x["formula"] and x["substituted"] and x["source"] for x in data["numbers"])
    markdown = run_here("learn", name, "--format", "markdown").stdout
    assert markdown.startswith("# ")
    assert "## Where common formulas differ, and why" in markdown


def test_inputs_with_units() -> None:
    words = ("--set", "stages=8", "--set", "micro_batches=32", "--set", "link_bytes_per_s=400Gb/s")
    data = json.loads(run_here("learn", "pipeline", *words, "--format", "json").stdout)
    assert data["inputs"]["link_bytes_per_s"]["value"] == 50e9
    values = {x["key"]: x["value"] for x in data["numbers"]}
    assert values["bubble_frac"] == pytest.approx(7 / 39)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("learn", "pipelin"), "did you mean pipeline?"),
        (("learn", "pipeline", "--set", "stages"), "KEY=VALUE"),
        (("learn", "pipeline", "--set", "stages=0"), "stages: 0 is out of range; from 1 to 256"),
        (("learn", "pipeline", "--set", "stag=4"), "did you mean stages"),
        (("learn", "pipeline", "--format", "xml"), "one of text, json, markdown"),
        (("learn", "--set", "stages=4"), "--set needs a calculator"),
    ],
)
def test_a_mistake_is_one_clear_message(words: tuple[str, ...], said: str) -> None:
    found = run_here(*words)
    assert found.returncode == 2
    assert found.stdout == ""
    assert said in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr
