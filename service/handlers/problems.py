"""What a request is refused with: the exception, and its document after RFC 9457.

Both transports translate `Refusal`: REST into `application/problem+json`, gRPC into a status with
details. "Nothing fits" is no problem but an answer with reasons.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import Location, PlannerError, SpecError
from planner.option_names import REQUEST_FIELDS, OptionMessage, in_request

TYPE = "urn:parallelism-planner:problem:"
"""Beginning of the `type` of every problem; the code follows."""
TITLES = {
    "malformed": "the body is not what this call reads",
    "unknown-call": "there is no such call",
    "too-large": "the request is too large",
    "too-much-work": "the request asks for more than this service computes",
    "path-or-url": "a request names no files and no addresses",
    "bad-specification": "a model, a cluster or another document in the request is wrong",
    "bad-option": "an option of the request does not make sense",
    "bad-layout": "the layout or the search is not possible as asked",
    "not-expressible": "the plan cannot be written as asked",
    "unknown-part": "the catalogue has no such part",
    "no-plan": "a plan was asked of a result that has none",
    "defect": "a defect of planner, not of the request",
}
"""Every code that a call refuses with, and what it means; transports and the engine add theirs."""
_RULE = re.compile(r"\b[A-Z]{2,4}\d{3}\b")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a request."""

    message: str
    """What is wrong, with what was given and what is allowed."""
    fix: str = ""
    """What to change."""
    field: str = ""
    """Place in the request, or in the document that it holds: `pools.0.nodes`."""
    source: str = ""
    """The document in the request where lines are counted: its name, or `model`, `cluster`."""
    line: int = 0
    """From 1, within that document; 0 where it is none of text."""
    column: int = 0
    rule: str = ""
    """Rule that the message is about, such as TP002."""
    code: str = ""
    """Kind of error, one of docs/errors.md: `bad-option.contradiction`."""
    in_options: Mapping[str, str] | None = None
    """Those of message, fix and source that name fields, with options of the command line in their
    place: for `planner --server`. A message that says all without its field is among them."""

    def to_json(self) -> dict[str, Any]:
        """Return what is known, under the names above; the fix also as `hint`, and one place."""
        data = {name: getattr(self, name) for name in self.__slots__}
        data["hint"] = self.fix
        data["location"] = str(Location(self.source, self.line, self.column))
        return {name: value for name, value in data.items() if value or name == "message"}


@dataclass(eq=False, repr=False)
class Refusal(Exception):
    """A request that is refused: never a trace, always what to change.

    `status` is HTTP's: 400 not readable, 413 too large, 422 wrong content, 429 too much at once
    (with `retry_after_s`).
    """

    status: int
    code: str
    title: str
    detail: str
    retry_after_s: float | None = None
    errors: Sequence[Fault] = ()
    more: Mapping[str, Any] | None = None
    """More members of the document, such as `quota`."""

    def __post_init__(self) -> None:
        super().__init__(self.detail)
        self.errors = tuple(self.errors)

    def __reduce__(self) -> tuple[Any, ...]:
        return Refusal, self._inputs(self.errors)  # worker processes send problems back

    def _inputs(self, errors: Sequence[Fault]) -> tuple[Any, ...]:
        """Return what makes the same problem with other errors."""
        kept = (self.status, self.code, self.title, self.detail, self.retry_after_s)
        return (*kept, errors, self.more)

    def inside(self, place: str) -> "Refusal":
        """Return the problem of a request that holds this one at a field, such as `solve`."""
        errors = [
            x if x.source else replace(x, field=f"{place}.{x.field}" if x.field else place)
            for x in self.errors
        ]
        return Refusal(*self._inputs(errors))

    def at(self, place: Callable[[str], str]) -> "Refusal":
        """Return the problem with the fields of documents that are wrong as a whole.

        `place` gives the field of a document by the name that messages have for it.
        """
        errors = [
            replace(x, field=place(x.source), in_options=_whole(x))
            if x.source and not x.field
            else x
            for x in self.errors
        ]
        return Refusal(*self._inputs(errors))

    def to_json(self, instance: str = "") -> dict[str, Any]:
        """Return the document of RFC 9457; `instance` is the id of the request."""
        out: dict[str, Any] = {
            "type": TYPE + self.code,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }
        if instance:
            out["instance"] = instance
        if self.errors:
            out["errors"] = [fault.to_json() for fault in self.errors]
        if self.retry_after_s is not None:
            out["retry_after_s"] = self.retry_after_s
        return out | dict(self.more or {})


def refused(code: str, detail: str, status: int = 422, errors: Sequence[Fault] = ()) -> Refusal:
    """Return a problem with the title of its code."""
    return Refusal(status, code, TITLES[code], detail, errors=errors)


def with_fix(problem: Refusal, fix: str, field: str = "", in_options: str = "") -> Refusal:
    """Return a problem of one fault, its detail, with what to change.

    `in_options` is the fix for who asks from the command line, where that is another.
    """
    place = {"message": problem.detail, "fix": in_options or fix}
    fault = Fault(problem.detail, fix, field, in_options=place)
    return replace(problem, detail=f"{problem.detail}: {fix}", errors=(fault,))


def malformed(field: str, detail: str, status: int = 400) -> Refusal:
    """Return the problem of a field that cannot be read: of a query, a header or a message."""
    return refused("malformed", detail, status, [Fault(detail, field=field)])


MAX_FAULTS = 20
"""Faults that a problem lists; the detail counts the others."""


def problem_of(error: PlannerError, fields: Mapping[str, str] = REQUEST_FIELDS) -> Refusal:
    """Return the problem that an error of the library is.

    `fields` are the fields of the request by the options that say the same: messages name those.
    """
    code = error.kind if error.kind in TITLES else "bad-option"
    if not isinstance(error, SpecError):
        fault = _fault(fields, error.message, error.hint, code=error.code)
        if error.about:
            about = fields.get(error.about, error.about)
            fault = replace(fault, field=about, in_options=_whole(fault))
        return refused(code, fault.message, errors=[fault])
    faults = [
        _fault(
            fields,
            p.message,
            p.hint,
            p.file,
            field=p.path,
            line=p.line,
            column=p.column,
            code=error.code,
        )
        for p in error.problems
    ]
    if not faults:
        return refused(code, error.message or TITLES[code])
    first, more = faults[0], len(faults) - 1
    where = f"{first.source}:{first.line}" if first.line else first.source
    detail = ": ".join(x for x in (where, first.field, first.message) if x)
    if more:
        detail += f" (and {more} more)"
    return refused(code, detail, errors=faults[:MAX_FAULTS])


def _whole(fault: Fault) -> Mapping[str, str]:
    """Return the words for the command line of a fault that says all without its field."""
    return {"message": fault.message, **(fault.in_options or {})}


def _fault(
    fields: Mapping[str, str], message: str, fix: str = "", source: str = "", **where: Any
) -> Fault:
    """Return a fault in the names of fields, the first of them its place if it has none."""
    of_options = {"message": message, "fix": fix, "source": source}
    of_fields: dict[str, Any] = {key: in_request(text, fields) for key, text in of_options.items()}
    rule = _RULE.search(message)
    if isinstance(message, OptionMessage) and not where.get("field"):
        where["field"] = next((fields[x] for x in message.options if x in fields), "")
    in_options = {key: str(x) for key, x in of_options.items() if of_fields[key] != x}
    return Fault(**of_fields, **where, rule=rule[0] if rule else "", in_options=in_options or None)
