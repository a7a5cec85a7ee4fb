"""The file of `--limits`, and the table of its names in the docs."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from planner.errors import SpecError
from planner.specs.yaml.document import Document, parse_yaml
from service.handlers.limits import RequestLimits
from service.settings.limits_file import (
    NAMED,
    known_limits,
    limits_table,
    read_limits,
    with_limits,
)
from service.settings.options import Options

DOCS = Path(__file__).parents[3] / "docs" / "service.md"


def test_limits_are_set_by_name_and_the_others_stay(tmp_path):
    file = tmp_path / "limits.yaml"
    file.write_text("# ours\nsolve_s: 20\nqueue_length: 200\nretention_s: 3_600\nspace: 1e7\n")
    settings, options = read_limits(file, RequestLimits(), Options(workers=3))
    assert (settings.solve_s, settings.queue_length, settings.space) == (20.0, 200, 10_000_000)
    assert isinstance(settings.space, int)
    assert (options.retention_s, options.workers) == (3600.0, 3)
    assert settings.hard_s == RequestLimits().hard_s


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("solve_s: 5\nqueue_lenght: 3", 2, "no such limit"),
        ("solve_s: 0", 1, "is no limit"),
        ("solve_s: -1", 1, "is no limit"),
        ("solve_s: true", 1, "is no limit"),
        ("solve_s: .inf", 1, "is no limit"),
        ("solve_s: fast", 1, "is no limit"),
        ("top: 1.5", 1, "no whole number"),
        ("top: 1e300", 1, "is no limit"),
        ("hard_s: 10", 1, "hard_s (10.0) is less than solve_s (60.0)"),
        ("workers: 3", 1, "no such limit"),
        ("- 1", 1, "name: number"),
    ],
)
def test_what_is_no_limit_is_said_with_its_line(text, line, said):
    with pytest.raises(SpecError) as caught:
        with_limits(parse_yaml(text, "limits.yaml"), RequestLimits(), Options())
    (problem,) = caught.value.problems
    assert said in problem.message
    assert (problem.file, problem.line) == ("limits.yaml", line)


def test_an_empty_file_is_told_what_to_write(tmp_path):
    file = tmp_path / "limits.yaml"
    file.write_text("\n")
    with pytest.raises(SpecError, match="the file is empty") as caught:
        read_limits(file, RequestLimits(), Options())
    assert "solve_s: 20" in caught.value.problems[0].hint


def test_an_unknown_name_is_told_a_close_one():
    with pytest.raises(SpecError) as caught:
        with_limits(Document({"solv_s": 1}), RequestLimits(), Options())
    assert "solve_s" in caught.value.problems[0].hint


def test_every_limit_has_a_meaning_and_stands_in_the_docs():
    known: dict[str, Any] = known_limits()
    assert known.keys() == {each.name for each in fields(RequestLimits)} | set(NAMED)
    assert all(meaning for _, meaning in known.values()), known
    assert limits_table() in DOCS.read_text(), "python -m service.settings.limits_file"
