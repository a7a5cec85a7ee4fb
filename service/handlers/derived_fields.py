"""Fields of schemas that are made of records: of a search, of the axes of a layout."""

from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, create_model

from planner.option_names import SEARCH_FIELDS
from planner.solver.request import SolveRequest

Schema = TypeVar("Schema", bound=BaseModel)


def with_fields(**fields: Any) -> Callable[[type[Schema]], type[Schema]]:
    """Return a decorator that adds fields to a schema, after its own: (type, default)."""

    def extended(schema: type[Schema]) -> type[Schema]:
        return create_model(
            schema.__name__,
            __base__=schema,
            __doc__=schema.__doc__,
            __module__=schema.__module__,
            **fields,
        )

    return extended


def search_fields(*keywords: str) -> dict[str, Any]:
    """Return fields of `SolveRequest` as requests hold them: their names and types in JSON."""
    fields: dict[str, Any] = {}
    for keyword in keywords:
        info = SolveRequest.model_fields[keyword]
        kind = _json_type(keyword)
        default = get_origin(kind)() if get_origin(kind) in (list, dict) else info.default
        field = Field(default, json_schema_extra=info.json_schema_extra)
        fields[SEARCH_FIELDS[keyword].field_name] = (kind, field)
    return fields


def _json_type(keyword: str) -> Any:
    """Return the type of what users write for a field of a search."""
    info = SolveRequest.model_fields[keyword]
    for each in info.metadata:
        if isinstance(each, BeforeValidator):
            return each.json_schema_input_type
    is_tuple = get_origin(info.annotation) is tuple
    return list[get_args(info.annotation)[0]] if is_tuple else info.annotation  # type: ignore[misc]
