"""Commands whose options stand in a record: a function takes it, typer sees its fields."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar, get_type_hints

Record = TypeVar("Record")


def records_as_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer: parameters that are dataclasses give way to their fields.

    The fields are annotated as options of typer are, and stand in the help in their order.
    """
    hints = get_type_hints(function, include_extras=True)
    records = {
        name: hints[name]
        for name in inspect.signature(function).parameters
        if isinstance(hints[name], type) and is_dataclass(hints[name])
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in records:
            parameters.append(parameter.replace(annotation=hints[name]))
            continue
        parameters += record_options(records[name])

    @wraps(function)
    def command(**values: Any) -> None:
        for name, record in records.items():
            made = record_of(record, values)
            for option in record_options(record):
                del values[option.name]
            values[name] = made
        function(**values)

    # After a field with a default none without one may stand: all are given by name.
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [x.replace(kind=inspect.Parameter.KEYWORD_ONLY) for x in parameters]
    )
    command.__annotations__ = {x.name: x.annotation for x in parameters}
    return command


def record_options(record: type) -> list[inspect.Parameter]:
    """Return the fields of a record as parameters, those of a record in it in its place."""
    hints = get_type_hints(record, include_extras=True)
    options: list[inspect.Parameter] = []
    for field in fields(record):
        if is_dataclass(kind := hints[field.name]) and isinstance(kind, type):
            options += record_options(kind)
            continue
        make = field.default_factory
        default = field.default if make is MISSING else make()
        options.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is MISSING else default,
                annotation=hints[field.name],
            )
        )
    return options


def record_of(record: type[Record], values: Mapping[str, Any]) -> Record:
    """Return the record of a command's parameters, by the names of `record_options`."""
    hints = get_type_hints(record)
    own = {
        field.name: record_of(kind, values)
        if is_dataclass(kind := hints[field.name]) and isinstance(kind, type)
        else values[field.name]
        for field in fields(record)  # type: ignore[arg-type]  # each is one
    }
    return record(**own)
