"""Commands whose options stand in a record: a function takes it, typer sees its fields."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


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
        kinds = get_type_hints(records[name], include_extras=True)
        for field in fields(records[name]):
            make = field.default_factory
            default = field.default if make is MISSING else make()
            parameters.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if default is MISSING else default,
                    annotation=kinds[field.name],
                )
            )

    @wraps(function)
    def command(**values: Any) -> None:
        for name, record in records.items():
            own = {field.name: values.pop(field.name) for field in fields(record)}
            values[name] = record(**own)
        function(**values)

    # After a field with a default none without one may stand: all are given by name.
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [x.replace(kind=inspect.Parameter.KEYWORD_ONLY) for x in parameters]
    )
    command.__annotations__ = {x.name: x.annotation for x in parameters}
    return command
