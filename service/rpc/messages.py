"""Messages of methods: read from bytes, written to bytes, and the limit of a page."""

from typing import Any

from google.protobuf.message import DecodeError, Message

from service.handlers.problems import malformed, refused
from service.proto.planner.v1 import planner_pb2 as pb
from service.rpc.gate import SERVICE


def _message_class(name: str) -> Any:
    return getattr(pb, name)


_REQUESTS = {method.name: _message_class(method.input_type.name) for method in SERVICE.methods}
_RESPONSES = {method.name: _message_class(method.output_type.name) for method in SERVICE.methods}


def read_message(method: str, request: bytes) -> Any:
    """Return the message of a request; `Refusal` 400 where the bytes are none."""
    kind = _REQUESTS[method]
    try:
        return kind.FromString(request)
    except DecodeError:
        detail = f"the bytes are no {kind.DESCRIPTOR.full_name}, or nested too deeply"
        raise refused("malformed", detail, 400) from None


def empty_response(method: str) -> Any:
    """Return a message of what a method answers."""
    return _RESPONSES[method]()


def message_bytes(message: Message) -> bytes:
    """Return the bytes of a message."""
    return bytes(message.SerializeToString())


def page_limit(limit: int, default: int) -> int:
    """Return the most items of a page; `Refusal` 400 for a number that is none."""
    if not 0 <= limit <= 1_000:
        raise malformed("limit", f"limit: {limit} is no number from 1 to 1000")
    return limit or default
