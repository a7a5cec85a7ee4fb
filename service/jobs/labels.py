"""Labels of jobs, and what selects jobs by them: both as Kubernetes has them.

    labels      {"team": "vision", "example.com/stage": "sweep"}
    selectors   team=vision,stage!=old   stage in (a,b)   stage notin (a,b)   team   !team

`a!=b` and `a notin (b)` also select jobs without the label `a`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, exists

from service.handlers.problems import Fault, malformed, refused
from service.jobs.feed_tables import labels as label_table
from service.jobs.store import jobs

MOST_LABELS = 32
MOST_NAME, MOST_PREFIX, MOST_VALUE = 63, 253, 63
MOST_SELECTOR, MOST_REQUIREMENTS, MOST_VALUES = 2_000, 16, 64
_WORD = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
_NAME = re.compile(rf"(?:(?P<prefix>{_DOMAIN})/)?(?P<name>{_WORD})")
_VALUE = re.compile(f"(?:{_WORD})?")
_KEY = r"[A-Za-z0-9][-A-Za-z0-9_./]*"
_REQUIREMENT = re.compile(
    rf"\s*(?:(?P<absent>!)\s*(?P<absent_key>{_KEY})"
    rf"|(?P<set_key>{_KEY})\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)"
    rf"|(?P<key>{_KEY})\s*(?:(?P<operator>==|!=|=)\s*(?P<value>[-A-Za-z0-9_.]*))?)\s*"
)
SYNTAX = (
    "such as team=vision,stage!=old; also `team in (a,b)`, `team notin (a,b)`, `team`, `!team`"
)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on a label."""

    name: str
    operator: Literal["in", "notin", "exists", "absent"]
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Tell whether labels meet it."""
        if self.operator in ("exists", "absent"):
            return (self.name in labels) is (self.operator == "exists")
        return (labels.get(self.name) in self.values) is (self.operator == "in")

    def condition(self) -> ColumnElement[bool]:
        """Return what holds for the rows of jobs that meet it."""
        own = [label_table.c.job_id == jobs.c.job_id, label_table.c.name == self.name]
        if self.values:
            own.append(label_table.c.value.in_(self.values))
        there = exists().where(*own)
        return there if self.operator in ("in", "exists") else ~there


Selector = tuple[Requirement, ...]
"""All of which must hold."""


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Tell whether labels meet all of a selector."""
    return all(each.holds(labels) for each in selector)


def read_selector(text: str, field: str = "labels", status: int = 400) -> Selector:
    """Return what a text selects; `Refusal` for one that cannot be read."""
    if len(text) > MOST_SELECTOR:
        raise malformed(field, f"{field}: {len(text)} characters; {MOST_SELECTOR} at most", status)
    return tuple(_requirements(text, field, status)) if text.strip() else ()


def _requirements(text: str, field: str, status: int) -> Iterator[Requirement]:
    at = n = 0
    while True:
        found = _REQUIREMENT.match(text, at)
        if found is None:
            detail = f"{field}: {text[at : at + 60]!r} is no condition on a label: {SYNTAX}"
            raise malformed(field, detail, status)
        yield _requirement(found, field, status)
        n, at = n + 1, found.end()
        if at == len(text):
            return
        if text[at] != ",":
            detail = f"{field}: {text[at : at + 60]!r} follows a condition: {SYNTAX}"
            raise malformed(field, detail, status)
        if n == MOST_REQUIREMENTS:
            raise malformed(field, f"{field}: {MOST_REQUIREMENTS} conditions at most", status)
        at += 1


def _requirement(found: re.Match[str], field: str, status: int) -> Requirement:
    """Return the condition that was read, its parts checked."""
    name = found["absent_key"] or found["set_key"] or found["key"]
    fault = _name_fault(name)
    values: tuple[str, ...] = ()
    if found["set"]:
        values = tuple(dict.fromkeys(part.strip() for part in found["values"].split(",")))
        if len(values) > MOST_VALUES:
            fault = fault or f"{len(values)} values of one label; {MOST_VALUES} at most"
    elif found["operator"]:
        values = (found["value"],)
    fault = fault or next(filter(None, map(_value_fault, values)), "")
    if fault:
        raise malformed(field, f"{field}: {fault}", status)
    if found["absent"]:
        return Requirement(name, "absent")
    if not values:
        return Requirement(name, "exists")
    wanted = found["set"] == "in" or found["operator"] in ("=", "==")
    return Requirement(name, "in" if wanted else "notin", values)


def checked_labels(data: Any, field: str = "labels") -> dict[str, str]:
    """Return the labels of a job in the order of their names; `Refusal` 422 for what is none."""
    if not isinstance(data, Mapping):
        raise malformed(field, f'{field}: a mapping of texts, such as {{"team": "vision"}}', 422)
    if len(data) > MOST_LABELS:
        raise malformed(field, f"{field}: {len(data)} labels; {MOST_LABELS} at most", 422)
    faults = []
    for name, value in data.items():
        fault = _name_fault(str(name)) or _value_fault(value)
        if fault:
            faults.append(Fault(fault, "write labels as Kubernetes has them", f"{field}.{name}"))
    if faults:
        detail = f"{faults[0].field}: {faults[0].message}"
        raise refused("malformed", detail[:500], 422, faults[:20])
    return {name: data[name] for name in sorted(data)}


def header_tags(text: str) -> dict[str, Any]:
    """Return what a header gives the job that a call becomes, as `schemas.JobBody` has it."""
    return {"labels": labels_in(text)} if text else {}


def labels_in(text: str, field: str = "Planner-Labels") -> dict[str, str]:
    """Return the labels that a header names, as `kubectl` shows them: `team=vision,stage=old`.

    Raises `Refusal` 400 for a text that is none, 422 for names and values that no labels have.
    """
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or name.strip() in found:
            wrong = "stands twice" if equals else "has no `=`"
            detail = f"{field}: {part[:80]!r} {wrong}: such as team=vision,stage=old"
            raise malformed(field, detail)
        found[name.strip()] = value.strip()
    return checked_labels(found, field)


def _name_fault(name: str) -> str:
    found = _NAME.fullmatch(name) if len(name) <= MOST_PREFIX + 1 + MOST_NAME else None
    if found is None:
        return (
            f"{name[:80]!r} is no name of a label: letters, digits, `-`, `_` and `.` between a"
            " letter or digit at both ends, behind a domain and `/` at most"
        )
    if len(found["name"]) > MOST_NAME or len(found["prefix"] or "") > MOST_PREFIX:
        return (
            f"the name {name[:40]!r} of a label is too long: {MOST_NAME} characters, and"
            f" {MOST_PREFIX} before the `/`, at most"
        )
    return ""


def _value_fault(value: Any) -> str:
    if not isinstance(value, str):
        return f"{str(value)[:40]!r} is no text, as the value of a label is"
    if len(value) > MOST_VALUE:
        return f"the value {value[:40]!r} of a label is too long: {MOST_VALUE} characters at most"
    if _VALUE.fullmatch(value) is None:
        return (
            f"{value[:80]!r} is no value of a label: nothing, or letters, digits, `-`, `_` and `.`"
            " between a letter or digit at both ends"
        )
    return ""
