"""The format of a file of questions, read and checked; docs/agents.md describes it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MOST_CALLS = 2
FIELDS = {"id", "kind", "question", "calls", "right", "source", "checks"}
TESTS = {
    "is": "the value is this one",
    "is_not": "the value is another one",
    "in": "the value is one of these",
    "has": "the list or text holds this, or all of these",
    "lacks": "the list or text holds none of these",
    "at_least": "the number is this or more",
    "at_most": "the number is this or less",
    "near": "the number is this, `within` a fraction of it (0.02)",
}
"""What a check may ask of a value, by its key."""
CHECK_FIELDS = {"of", "path", "over", "less", "within", *TESTS}


class QuestionFileError(Exception):
    """A file of questions that cannot be read; the message says where and what to change."""


@dataclass(frozen=True)
class Call:
    """One call of a tool."""

    tool: str
    arguments: dict[str, Any]
    """A mapping `{$answer: N, path: P}` in it stands for a value of the answer to call N."""


@dataclass(frozen=True)
class Question:
    """One question."""

    id: str
    kind: str
    question: str
    calls: tuple[Call, ...]
    right: str
    """The right answer in words."""
    source: str
    """Where the right answer is from, and how it follows; never our own output."""
    checks: tuple[dict[str, Any], ...]
    """All of them have to hold."""


def read_questions(path: Path) -> list[Question]:
    """Return the questions of a file; `QuestionFileError` for the first thing that is wrong."""
    try:
        items = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise QuestionFileError(f"{path}: {error}\n  fix: name a YAML list of questions") from None
    if not isinstance(items, list) or not items:
        raise QuestionFileError(
            f"{path} holds no list\n  fix: a list of questions, see docs/agents.md"
        )
    questions = [_question(item, f"{path}: question {n}") for n, item in enumerate(items, 1)]
    ids = [question.id for question in questions]
    twice = next((x for x in ids if ids.count(x) > 1), None)
    if twice is not None:
        raise QuestionFileError(f"{path}: the id {twice!r} stands twice\n  fix: another id")
    return questions


def _question(item: Any, where: str) -> Question:
    _expect(isinstance(item, dict), where, "is no mapping", f"fields: {sorted(FIELDS)}")
    where = f"{where} ({item.get('id', '')})"
    wrong = sorted(FIELDS ^ set(item))
    _expect(not wrong, where, f"fields missing or unknown: {wrong}", f"fields: {sorted(FIELDS)}")
    for call in item["calls"]:
        is_call = isinstance(call, dict) and {*call} == {"tool", "arguments"}
        _expect(is_call, where, f"{call!r:.60} is not a call", "tool and arguments")
    calls = tuple(Call(**call) for call in item["calls"])
    _expect(1 <= len(calls) <= MOST_CALLS, where, f"{len(calls)} calls", f"1 to {MOST_CALLS}")
    _expect(bool(item["checks"]), where, "no checks: it could not be wrong", "add one")
    for check in item["checks"]:
        unknown = sorted(set(check) - CHECK_FIELDS)
        _expect(not unknown, where, f"unknown in a check: {unknown}", f"{sorted(CHECK_FIELDS)}")
        asked = [name for name in TESTS if name in check]
        _expect(len(asked) == 1, where, f"a check with {asked}", f"one of {sorted(TESTS)}")
        _expect(1 <= check.get("of", 1) <= len(calls), where, "of: no such call", "its number")
    return Question(**{**item, "calls": calls, "checks": tuple(item["checks"])})


def _expect(is_right: bool, where: str, wrong: str, fix: str) -> None:
    if not is_right:
        raise QuestionFileError(f"{where}: {wrong}\n  fix: {fix}")


def values_at(data: Any, path: str) -> Iterator[Any]:
    """Yield the values at a path with dots: keys, numbers of items, `*` for all of them.

    `length` after a list is its length. Nothing is yielded where there is none.
    """
    head, _, rest = path.partition(".")
    if not path:
        yield data
    elif head == "*" and isinstance(data, list | dict):
        for item in data.values() if isinstance(data, dict) else data:
            yield from values_at(item, rest)
    elif head == "length" and isinstance(data, list):
        yield len(data)
    elif isinstance(data, list) and head.lstrip("-").isdigit():
        if -len(data) <= int(head) < len(data):
            yield from values_at(data[int(head)], rest)
    elif isinstance(data, dict):
        for key in (head, *_longer_keys(data, path)):
            if key in data:
                yield from values_at(data[key], path[len(key) + 1 :])
                return


def _longer_keys(data: dict[str, Any], path: str) -> list[str]:
    """Return keys of a mapping that have dots themselves, such as names of files."""
    return [key for key in data if "." in key and f"{path}.".startswith(f"{key}.")]
