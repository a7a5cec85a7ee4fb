"""Between the messages of planner.proto and the plain data of requests and answers.

Requests become the JSON that the schemas read, so that there is one set of them. Answers fill the
messages that mirror their JSON names; `to_dict` gives back what they were filled from, numbers
included. What a message has no field for is kept in its field `more`, so that nothing is lost.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message

from service.handlers.limits import DEFAULTS, RequestLimits, too_large
from service.handlers.problems import Fault, Refusal, refused
from service.proto.planner.v1 import planner_pb2 as pb

Data = dict[str, Any]
M = TypeVar("M", bound=Message)

EXACT = 2**53
"""Whole numbers up to it are exact as a double, which is what Struct holds."""
MORE = "more"
SPARSE = frozenset({"planner.v1.Problem", "planner.v1.Fault", "planner.v1.Page"})
"""Messages whose JSON leaves out what is not known, where that of others has a null."""
_STRUCT, _LIST, _VALUE = (
    "google.protobuf.Struct",
    "google.protobuf.ListValue",
    "google.protobuf.Value",
)


# Requests


def body_of(message: Any, settings: RequestLimits = DEFAULTS) -> bytes:
    """Return the JSON body that a request message stands for; `Refusal` where it is none.

    `delivery` is not part of it. Maps have no order, so their keys come in that of their names.
    """
    if message.json:
        _only_json(message, top=True)
        return bytes(message.json.encode())
    data = _Reader(settings).fields(message, top=True)
    return json.dumps(data, separators=(",", ":")).encode()


def _only_json(message: Any, top: bool) -> None:
    others = {field.name for field, _ in message.ListFields()} - {"json"}
    if top:
        others -= {"delivery"}
    if others:
        detail = f"json: it is the whole request, and {', '.join(sorted(others))} stand beside it"
        raise refused("malformed", detail, 422, [Fault(detail, field="json")])


class _Reader:
    """Turns a request into plain data, within the limit of its values."""

    def __init__(self, settings: RequestLimits) -> None:
        self._settings = settings
        self._n = 0

    def _count(self, n: int) -> None:
        self._n += n
        if self._n > self._settings.nodes:
            fix = "send fewer values, or the text of a file in their place"
            raise too_large("values in the request", self._n, self._settings.nodes, "body", fix)

    def fields(self, message: Any, top: bool = False) -> Data:
        """Return the fields that are set, under their names."""
        out: Data = {}
        for field, value in message.ListFields():
            if field.name == "delivery":
                if not top:
                    detail = "delivery: it stands in the outermost request alone"
                    raise refused("malformed", detail, 422, [Fault(detail, field="delivery")])
                continue
            if field.message_type is None:
                out[field.name] = list(value) if field.is_repeated else value
                self._count(len(value) if field.is_repeated else 1)
            elif field.message_type.GetOptions().map_entry:
                scalar = field.message_type.fields_by_name["value"].message_type is None
                self._count(len(value))
                out[field.name] = {
                    key: value[key] if scalar else self.value(value[key]) for key in sorted(value)
                }
            elif field.is_repeated:
                out[field.name] = [self.value(each) for each in value]
            else:
                out[field.name] = self.value(value)
        return out

    def value(self, message: Any) -> Any:
        """Return what a message inside a request stands for."""
        name = message.DESCRIPTOR.full_name
        if name == _VALUE:
            return self._json_value(message)
        if name == _STRUCT:
            return self._struct(message)
        if name == _LIST:
            return self._list(message)
        if name == "planner.v1.Document":
            source = message.WhichOneof("source")
            if source is None:
                detail = "a document without content: name, text or content"
                raise refused("malformed", detail, 422, [Fault(detail)])
            document = getattr(message, source)
            return document if source == "name" else self.value(document)
        if name == "planner.v1.Text":
            named = {"name": message.name} if message.name else {}
            return {"text": message.text, **named}
        if getattr(message, "json", ""):
            _only_json(message, top=False)
            return _inner_json(message.json, self._settings)
        return self.fields(message)

    def _struct(self, message: Any) -> Data:
        fields = message.fields
        self._count(len(fields))
        return {key: self._json_value(fields[key]) for key in sorted(fields)}

    def _list(self, message: Any) -> list[Any]:
        self._count(len(message.values))
        return [self._json_value(each) for each in message.values]

    def _json_value(self, message: Any) -> Any:
        kind = message.WhichOneof("kind")
        if kind == "number_value":
            return _number(message.number_value)
        if kind == "struct_value":
            return self._struct(message.struct_value)
        if kind == "list_value":
            return self._list(message.list_value)
        if kind == "null_value":
            return None
        if kind is None:
            raise refused("malformed", "a google.protobuf.Value holds no value", 400)
        return getattr(message, kind)


def _inner_json(text: str, settings: RequestLimits) -> Any:
    from service.handlers.limits import json_body

    return json_body(text, settings)


def _number(value: float) -> int | float:
    if not math.isfinite(value):
        raise refused("malformed", f"{value} is no number of JSON", 400)
    return int(value) if value.is_integer() and abs(value) <= EXACT else value


# Answers


def message_of(data: Mapping[str, Any], kind: type[M]) -> M:
    """Return a message filled from plain data; what it has no field for is in `more`."""
    message: M = kind()
    fill(message, data)
    return message


def fill(message: Any, data: Mapping[str, Any]) -> None:
    """Fill a message, or a Struct, that is empty."""
    if message.DESCRIPTOR.full_name == _STRUCT:
        message.update(data)
        return
    names = message.DESCRIPTOR.fields_by_name
    more: Data = {}
    for name, value in data.items():
        field = names.get(name)
        if field is None or name == MORE or not _set(message, field, value):
            more[name] = value
    if more:
        message.more.update(more)


def _set(message: Any, field: Any, value: Any) -> bool:
    """Set a field; tell whether it can hold the value as it is."""
    name = field.name
    if value is None:
        return bool(field.has_presence)
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    if is_map != isinstance(value, Mapping) and (is_map or field.message_type is None):
        return False
    if isinstance(value, list) != (field.is_repeated and not is_map):
        return False
    if field.message_type is None:  # Python takes True for 1, and so do messages
        is_bool = field.cpp_type == field.CPPTYPE_BOOL
        items = value if isinstance(value, list) else [value]
        if any(isinstance(each, bool) != is_bool for each in items):
            return False
    try:
        if field.message_type is None:
            if field.is_repeated:
                getattr(message, name).extend(value)
            elif field.enum_type is not None:
                setattr(message, name, field.enum_type.values_by_name[value].number)
            else:
                setattr(message, name, value)
        elif is_map:
            getattr(message, name).update(value)
        elif field.is_repeated:
            _extend(getattr(message, name), field.message_type.full_name, value)
        else:
            place = getattr(message, name)
            place.SetInParent()
            fill(place, value)
    except (TypeError, ValueError, KeyError, AttributeError):
        message.ClearField(name)
        return False
    return True


def _extend(place: Any, kind: str, values: Any) -> None:
    for value in values:
        if kind == _LIST:
            place.add().extend(value)
        elif kind == _VALUE:
            place.add().CopyFrom(_value_of(value))
        else:
            fill(place.add(), value)


def _value_of(value: Any) -> Any:
    from google.protobuf.struct_pb2 import ListValue

    holder = ListValue()
    holder.extend([value])
    return holder.values[0]


def to_dict(message: Any) -> Any:
    """Return the plain data that a message of an answer was filled from: the JSON of the call.

    Optional fields that are not set are None, or left out as the JSON leaves them out. Whole
    numbers of a Struct are integers.
    """
    name = message.DESCRIPTOR.full_name
    if name in (_STRUCT, _LIST, _VALUE):
        return _Reader(_UNBOUNDED).value(message)
    sparse = name in SPARSE
    out: Data = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.name == MORE or (field.full_name in _LEFT_OUT and not value):
            continue
        if field.full_name in _OF_GRPC and not message.HasField(field.name):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            out[field.name] = dict(value)
        elif field.is_repeated:
            plain = field.message_type is None
            out[field.name] = list(value) if plain else [to_dict(each) for each in value]
            if sparse and field.name == "errors" and not value:
                del out[field.name]
        elif field.has_presence and not message.HasField(field.name):
            if not sparse:
                out[field.name] = None
        elif field.message_type is not None:
            out[field.name] = to_dict(value)
        elif field.enum_type is not None:
            out[field.name] = field.enum_type.values_by_number[value].name
        elif value or name not in _SPARSE_SCALARS or field.name == "message":
            out[field.name] = value
    if MORE in message.DESCRIPTOR.fields_by_name and message.HasField(MORE):
        out |= to_dict(message.more)
    return out


_SPARSE_SCALARS = frozenset({"planner.v1.Problem", "planner.v1.Fault"})
_LEFT_OUT = frozenset(
    {
        "planner.v1.Plan.first_releases",
        "planner.v1.Plan.n_variants",
        "planner.v1.SolveAnswer.together",
    }
)
"""Fields of answers whose JSON leaves them out where they say nothing, in place of null."""
_OF_GRPC = frozenset({"planner.v1.Job.result"})
"""Fields that answers over HTTP do not have: there a body is either a job or an answer."""
_UNBOUNDED = RequestLimits(nodes=2**62)


def problem_message(problem: Refusal, instance: str = "") -> pb.Problem:
    """Return the document of a problem as a message."""
    return message_of(problem.to_json(instance), pb.Problem)
