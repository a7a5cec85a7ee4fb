"""The fields that a sweep may vary: every path of a model file and of a cluster file.

What a field holds, in which unit and within which bounds, is read from the schemas, so that a
field that is added there can be varied at once.
"""

import inspect
import json
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from planner import units
from planner.errors import BadValue
from planner.specs.cluster.pool_fields import DEVICES
from planner.specs.schema import (
    AcceleratorSpec,
    ClusterFile,
    ModelFile,
    ModelSpec,
    OperationsSpec,
    PoolLinkSpec,
    PoolSpec,
    TierSpec,
    Tokens,
    TrainingSpec,
)
from planner.specs.yaml.document import close_names, path_text
from planner.specs.yaml.faults import meant_key
from planner.units import shown_value

WHOLE_FILES = ("model", "cluster")
"""Axes whose values are whole files."""
PARAMS = "model.params"
"""Parameters of a model that a family makes (`planner.sweeps.families`)."""
OF_MODEL = ("model", "training", "search")
"""Sections of a model file; every other path is of the cluster file."""

Dimension = tuple[tuple[str, float], ...]
"""Base units with their powers, sorted: `(("B", 1.0), ("s", -1.0))`; empty for plain numbers."""
PLAIN: Dimension = ()
BYTES: Dimension = (("B", 1.0),)
SECONDS: Dimension = (("s", 1.0),)
WATTS: Dimension = (("W", 1.0),)
BYTES_PER_S: Dimension = (("B", 1.0), ("s", -1.0))
FLOPS_PER_S: Dimension = (("FLOP", 1.0), ("s", -1.0))
TEXT: Dimension = (("text", 1.0),)
"""Of words: they can be compared with words alone."""
TRUTH: Dimension = (("truth", 1.0),)
"""Of comparisons and switches."""

QUANTITIES: tuple[tuple[Callable[[object], float], Dimension, str], ...] = (
    (units.parse_size, BYTES, "B"),
    (units.parse_bandwidth, BYTES_PER_S, "B/s"),
    (units.parse_rate, FLOPS_PER_S, "FLOP/s"),
    (units.parse_power, WATTS, "W"),
    (units.parse_time, SECONDS, "s"),
)
"""Parsers of quantities with a unit, their dimensions and base units."""
_PLAIN_PARSERS = (units.parse_count, units.parse_ratio)


def dimension_in_words(dimension: Dimension) -> str:
    """Return a dimension as its base units; empty for plain numbers, words and truths.

    >>> dimension_in_words((("B", 1.0), ("s", -1.0)))
    'B/s'
    """
    if dimension in (TEXT, TRUTH):
        return ""
    parts = [(unit, power, "*") for unit, power in dimension if power > 0]
    parts += [(unit, -power, "/") for unit, power in dimension if power < 0]
    text = "".join(
        f"{sign}{unit}" + (f"^{power:g}" if power != 1 else "") for unit, power, sign in parts
    )
    return f"1{text}" if text.startswith("/") else text[1:]


@dataclass(frozen=True, slots=True)
class Field:
    """What may stand at one path."""

    path: str
    is_integer: bool
    """Whole numbers only."""
    parse: Callable[[object], float] | None
    """Reads a number or a quantity into base units; None where the value is none."""
    dimension: Dimension
    unit: str
    """Base unit of numbers; empty for plain ones and for words."""
    schema: Any
    """Type that pydantic checks a value against; None where files are named."""
    allows_text: bool = False
    """Words may stand in place of numbers."""

    @property
    def is_number(self) -> bool:
        """Whether values can be ordered and sampled."""
        return self.parse is not None

    def __reduce__(self) -> tuple[Callable[[str], "Field"], tuple[str]]:
        """Pickle the path: schemas hold functions that cannot be sent to a worker."""
        return field_at, (self.path,)

    def check(self, value: object) -> None:
        """Raise `BadValue` for a value that the schema refuses."""
        if self.schema is None:
            if not isinstance(value, str | Mapping):
                raise BadValue(f"expected a file or an example by name, got {shown_value(value)}")
            return
        try:
            _adapter(self.path).validate_python(value)
        except ValidationError as error:
            raise _bad_value(self.schema, error.errors(include_url=False)[0]) from None

    def base(self, value: object) -> float | int | str | bool | None:
        """Return a value as a table holds it: a number in base units, else text."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str) and self.allows_text:
            return value
        if self.parse is not None and not isinstance(value, list | Mapping):
            number = self.parse(value)
            return int(number) if self.is_integer else float(number)
        return field_text(value)


def field_text(value: object) -> str:
    """Return a value of several parts as text: its name if it has one, else JSON.

    >>> field_text({"like": "h100-sxm-80gb", "name": "h100-big"}), field_text([8, 16])
    ('h100-big', '[8, 16]')
    """
    if isinstance(value, Mapping):
        if name := value.get("name"):
            return str(name)
        return json.dumps(value, sort_keys=True, default=str)
    return json.dumps(value) if isinstance(value, list) else str(value)


@lru_cache(maxsize=1024)  # of paths that callers write
def field_at(path: str) -> Field:
    """Return what may stand at a dotted path; `BadValue` with close names where nothing may."""
    if path in WHOLE_FILES:
        return Field(path, False, None, PLAIN, "", None)
    if path == PARAMS:
        return Field(path, False, units.parse_count, PLAIN, "", Tokens)
    parts = path.split(".")
    if parts[0] == "pools" and len(parts) == 3 and parts[2] == DEVICES and parts[1].isdecimal():
        return Field(path, True, _number, PLAIN, "", Annotated[int, *_nodes_bounds()])
    schema: Any = ModelFile if parts[0] in OF_MODEL else ClusterFile
    here: list[str] = []
    for part in parts:
        schema = _step(schema, part, here, path)
        here.append(part)
    return _field(path, schema)


def section_of(path: str) -> str:
    """Return the file that a path belongs to: `model` or `cluster`."""
    return "model" if path.split(".")[0] in OF_MODEL else "cluster"


def known_paths() -> list[str]:
    """Return the paths that can be varied, with `0` for the first item of lists."""
    return [DEVICES_PATH, PARAMS, *_paths(ModelFile, ""), *_paths(ClusterFile, "")]


DEVICES_PATH = f"pools.0.{DEVICES}"


def _paths(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in section.model_fields.items():
        inner = next(_models_in(info.annotation), None)
        path = f"{prefix}{name}"
        yield path
        item = _list_item(info.annotation)
        if isinstance(item, type) and issubclass(item, BaseModel):
            yield f"{path}.0"
            yield from _paths(item, f"{path}.0.")
        elif inner is not None:
            yield from _paths(inner, f"{path}.")


def _step(schema: Any, part: str, here: list[str], path: str) -> Any:
    """Return the type of what is called `part` inside a type."""
    owner = ".".join(here) or "the top level"
    item = _list_item(schema)
    if item is not None and (part.isdecimal() or not _key_type(schema)):
        if not (part.isascii() and part.isdecimal() and len(part) < 6):
            fix = f"number its items from 0, such as {'.'.join([*here, '0', part])}"
            raise BadValue(f"unknown field {path!r}: {owner} is a list", fix)
        return item
    section = next(_models_in(schema), None)
    if section is not None:
        if part in section.model_fields:
            info = section.model_fields[part]
            return Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        raise BadValue(f"unknown field {path!r}", _guess(section, part, here, path))
    value = _key_type(schema)
    if value is not None:
        keys, inner = value
        try:
            TypeAdapter(keys).validate_python(part)
        except ValidationError as error:
            bad = error.errors()[0].get("ctx", {}).get("error")
            message = f"unknown field {path!r}: {bad.message if bad else part}"
            raise BadValue(message, bad.hint if bad else "") from None
        return inner
    raise BadValue(f"unknown field {path!r}: {owner} has nothing inside", f"vary {owner} itself")


def _guess(section: type[BaseModel], part: str, here: list[str], path: str) -> str:
    """Return what the user most likely meant by an unknown field."""
    if name := meant_key(part, section):
        return f"did you mean {'.'.join([*here, name])}?"
    if part in _COUNTS:
        return f"did you mean {DEVICES_PATH}?"
    if not here:
        for prefix, inside in _USUAL_SECTIONS:
            if name := meant_key(part, inside):
                return f"did you mean {prefix}.{name}?"
    same = [p for p in known_paths() if p.split(".")[-1] == path.split(".")[-1]]
    close = same or close_names(path, known_paths(), 3)
    near = close_names(part, list(section.model_fields), 1)
    if near:
        return f"did you mean {'.'.join([*here, near[0]])}?"
    if close:
        return f"did you mean {' or '.join(close[:3])}?"
    names = list(section.model_fields)
    return f"fields of {'.'.join(here) or 'a cluster file'}: {', '.join(names)}"


_COUNTS = ("devices", "n_devices", "gpus", "n_gpus", "accelerators", "world_size")
_USUAL_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("pools.0", PoolSpec),
    ("training", TrainingSpec),
    ("model", ModelSpec),
    ("pools.0.accelerator", AcceleratorSpec),
    ("operations", OperationsSpec),
    ("fabric.tiers.0", TierSpec),
    ("links.0", PoolLinkSpec),
)
"""Where a field without its section most likely belongs."""


def _bad_value(schema: Any, error: Mapping[str, Any]) -> BadValue:
    """Return what pydantic found wrong with a value, in the words of the other files."""
    context, kind = error.get("ctx", {}), error["type"]
    loc = [x for x in error["loc"] if x not in _UNION_MEMBERS]
    head = f"{path_text(loc)}: " if loc else ""
    bad = context.get("error")
    if isinstance(bad, BadValue):
        return BadValue(head + bad.message, bad.hint)
    value = shown_value(error["input"])
    if kind in _BOUNDS:
        comparison, key = _BOUNDS[kind]
        return BadValue(f"{head}must be {comparison} {context[key]}, got {value}")
    if kind == "extra_forbidden":
        section = next(_models_in(schema), None)
        names = list(section.model_fields) if section else []
        name = meant_key(str(loc[-1]), section) if section else None
        close = [name] if name else close_names(str(loc[-1]), names, 1)
        fix = f"did you mean {close[0]}?" if close else f"keys here: {', '.join(names)}"
        return BadValue(f"unknown key {shown_value(loc[-1])}", fix)
    if kind == "missing":
        return BadValue(f"{path_text(loc)} is missing", "")
    return BadValue(f"{head}{error['msg'][0].lower()}{error['msg'][1:]}, got {value}")


_UNION_MEMBERS = ("name", "inline", "int", "str", "[key]")
"""What pydantic puts into the place of an error beside the keys."""
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
}


def _members(schema: Any) -> Iterator[Any]:
    """Yield the members of a union with their annotations, nothing but itself for others."""
    origin = get_origin(schema)
    if origin is Annotated:
        inner, *metadata = get_args(schema)
        for member in _members(inner):
            yield Annotated[member, *metadata]
    elif origin in (Union, types.UnionType):
        for member in get_args(schema):
            yield from _members(member)
    else:
        yield schema


def _plain(schema: Any) -> Any:
    return get_args(schema)[0] if get_origin(schema) is Annotated else schema


def _list_item(schema: Any) -> Any:
    results = [_plain(m) for m in _members(schema)]
    return next((get_args(m)[0] for m in results if get_origin(m) is list), None)


def _key_type(schema: Any) -> tuple[Any, Any] | None:
    """Return the types of key and value of a mapping with free keys."""
    results = [_plain(m) for m in _members(schema)]
    return next(((get_args(m)[0], get_args(m)[1]) for m in results if get_origin(m) is dict), None)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    if get_origin(annotation) is list:
        return
    for member in get_args(annotation):
        yield from _models_in(member)


def _validators(schema: Any) -> Iterator[BeforeValidator]:
    for member in _members(schema):
        if get_origin(member) is Annotated:
            for note in get_args(member)[1:]:
                if isinstance(note, BeforeValidator):
                    yield note
                elif isinstance(note, FieldInfo):
                    yield from (m for m in note.metadata if isinstance(m, BeforeValidator))


def _field(path: str, schema: Any) -> Field:
    """Return a field from its type, by what its validator reads."""
    bases = {_plain(m) for m in _members(schema) if isinstance(_plain(m), type)}
    if bases == {int, str}:  # values of search axes
        return Field(path, True, _number, PLAIN, "", schema, allows_text=True)
    if not bases & {int, float} or bases - {int, float, type(None)}:
        return Field(path, False, None, PLAIN, "", schema)
    if bases & {int}:
        return Field(path, True, _number, PLAIN, "", schema)
    for validator in _validators(schema):
        parse = inspect.getclosurevars(validator.func).nonlocals.get("parse")
        for quantity, dimension, unit in QUANTITIES:
            if parse is quantity:
                return Field(path, False, quantity, dimension, unit, schema)
        if parse in _PLAIN_PARSERS:
            return Field(path, False, parse, PLAIN, "", schema)
    return Field(path, False, _number, PLAIN, "", schema)


def _number(value: object) -> float:
    """Read a plain number, also one that YAML takes for text: `1e-6`."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise BadValue(f"expected a number, got the text {shown_value(value)}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadValue(f"expected a number, got {shown_value(value)}")
    return value


def _nodes_bounds() -> tuple[Any, ...]:
    return tuple(PoolSpec.model_fields["nodes"].metadata)


@lru_cache(maxsize=256)
def _adapter(path: str) -> TypeAdapter[Any]:
    return TypeAdapter(field_at(path).schema)
