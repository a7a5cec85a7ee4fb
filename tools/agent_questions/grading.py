"""Answers graded: each check of a question against what the tools answered."""

from collections.abc import Mapping, Sequence
from typing import Any

from tools.agent_questions.question import Question, values_at

NEAR_WITHIN = 0.02
"""Fraction by which a number may be off where `near` names none."""


def faults_of(question: Question, answers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with the answers to a question, a text a check; empty if right."""
    if len(answers) < len(question.calls):
        return [f"{len(answers)} of {len(question.calls)} calls were answered"]
    faults = (_fault(check, answers) for check in question.checks)
    return [fault for fault in faults if fault]


def _fault(check: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> str:
    """Return how an answer fails a check; empty where it holds."""
    found = _values(check, answers)
    shown = f"{check.get('of', 1)}: {check.get('path', '')}"
    if not found:
        return f"{shown}: there is no such value"
    try:
        value = _combined(found, check, answers)
        holds = _holds(value, check)
    except (TypeError, ValueError, ZeroDivisionError, LookupError) as error:
        return f"{shown}: {error}"
    return "" if holds else f"{shown}: {value!r:.200} is not {_asked(check)}"


def _values(place: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> list[Any]:
    return list(values_at(answers[place.get("of", 1) - 1], place.get("path", "")))


def _combined(
    found: list[Any], check: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]
) -> Any:
    """Return the value of a check: one, a list under `*`, a ratio (`over`), a difference."""
    value: Any = found if "*" in check.get("path", "").split(".") else found[0]
    for name in ("over", "less"):
        if name not in check:
            continue
        other = _number(check[name], answers)
        value = float(value) / other if name == "over" else float(value) - other
    return value


def _number(place: Any, answers: Sequence[Mapping[str, Any]]) -> float:
    """Return a number that a check names: itself, or a place in an answer."""
    if isinstance(place, int | float):
        return float(place)
    found = _values(place, answers)
    if not found:
        raise LookupError(f"there is no value at {place}")
    return float(found[0])


def _holds(value: Any, check: Mapping[str, Any]) -> bool:
    if "near" in check:
        off = abs(float(value) - check["near"])
        return off <= check.get("within", NEAR_WITHIN) * abs(check["near"])
    if "at_least" in check:
        return float(value) >= check["at_least"]
    if "at_most" in check:
        return float(value) <= check["at_most"]
    if "has" in check:
        return all(_holds_item(value, item) for item in _listed(check["has"]))
    if "lacks" in check:
        return not any(_holds_item(value, item) for item in _listed(check["lacks"]))
    if "in" in check:
        return value in check["in"]
    is_same = type(value) is type(check.get("is", check.get("is_not"))) or not isinstance(
        value, bool
    )
    return (value == check["is"] and is_same) if "is" in check else value != check["is_not"]


def _holds_item(value: Any, item: Any) -> bool:
    """Tell whether a text, a mapping or a list holds an item; texts in any case of letters."""
    if isinstance(value, str):
        return str(item).lower() in value.lower()
    texts = [x for x in value if isinstance(x, str)]
    return item in value or any(str(item).lower() in x.lower() for x in texts)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _asked(check: Mapping[str, Any]) -> str:
    names = ("near", "within", "at_least", "at_most", "has", "lacks", "in", "is", "is_not")
    return ", ".join(f"{name} {check[name]!r}" for name in names if name in check)
