"""What answers hold that goes away, and how callers are told: RFC 9745 and RFC 8594.

A field is deprecated where its schema says so (`service.handlers.answers.deprecated_field`). Every
answer whose schema holds one has `Deprecation`, since when; `Sunset`, until when it is kept; and a
`Link` to the document that names the field and what is to be used instead.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from email.utils import format_datetime
from typing import Any, get_args

from pydantic import BaseModel

from service.rest.operations import OPERATIONS


@dataclass(frozen=True, slots=True)
class Deprecation:
    """A field of answers that goes away."""

    field: str
    """Model and field: `JobAnswer.request_id`."""
    since: date
    sunset: date
    """Until when it is there at least."""
    instead: str

    def headers(self, root: str) -> list[tuple[bytes, bytes]]:
        """Return what an answer that holds it is sent with; `root`: prefix of addresses."""
        begun = datetime.combine(self.since, datetime.min.time(), UTC)
        ended = datetime.combine(self.sunset, datetime.min.time(), UTC)
        link = f'<{root}/openapi.json>; rel="deprecation"; type="application/json"'
        return [
            (b"deprecation", b"@%d" % begun.timestamp()),
            (b"sunset", format_datetime(ended, usegmt=True).encode()),
            (b"link", link.encode()),
        ]


def deprecated_fields(model: type[BaseModel]) -> Iterator[Deprecation]:
    """Yield the fields of a schema that go away, with those of the schemas inside."""
    for name, field in model.model_fields.items():
        marks: Any = field.json_schema_extra
        if isinstance(marks, dict) and "x-sunset" in marks:
            yield Deprecation(
                f"{model.__name__}.{name}",
                date.fromisoformat(marks["x-deprecated-since"]),
                date.fromisoformat(marks["x-sunset"]),
                marks["x-use-instead"],
            )
        for part in _models_in(field.annotation):
            yield from deprecated_fields(part)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _first(model: type[BaseModel]) -> Deprecation | None:
    """Return the field of a schema that goes away first."""
    return min(deprecated_fields(model), key=lambda each: each.sunset, default=None)


DEPRECATED: Mapping[tuple[str, int], Deprecation] = {
    (each.id, status): found
    for each in OPERATIONS
    for status, (_, model) in each.answers.items()
    if model and (found := _first(model))
}
"""By operation and status: what of the answer goes away first."""
