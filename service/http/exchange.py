"""One HTTP request and what is known of its answer; its headers, read."""

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from service.access.caller import Caller

Header = tuple[bytes, bytes]
Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON, PROBLEM, SSE, TEXT = (
    "application/json",
    "application/problem+json",
    "text/event-stream",
    "text/plain",
)
MOST_WAIT_S = 86_400.0
LEAST_WAIT_S = 0.001
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class OperationParameter:
    """A parameter of an operation."""

    name: str
    where: Literal["query", "path", "header"]
    schema: Mapping[str, Any]
    meaning: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    id: str
    method: Literal["GET", "POST", "DELETE"]
    path: str
    title: str
    tag: str
    description: str
    answers: Mapping[int, tuple[str, type[BaseModel] | None]]
    """Media type and schema by status; problems come on top."""
    problems: tuple[int, ...]
    """Statuses of the problems that it is refused with."""
    request: type[BaseModel] | None = None
    call: str = ""
    """The call that it makes, where it makes one."""
    role: str = "read"
    """What a caller must be allowed at least; empty where no token is asked for."""
    parameters: tuple[OperationParameter, ...] = ()


@dataclass(slots=True)
class HttpExchange:
    """One request and what is known of its answer."""

    id: str
    headers: Mapping[bytes, bytes]
    begun_s: float
    operation: Operation | None = None
    caller: Caller | None = None
    body: bytes = b""
    status: int = 0
    """0 while nothing was sent."""
    n_bytes: int = 0
    fast: bool = False
    cut: bool = False
    """The rest of its body is not read."""
    page: bool = False
    """Answered as HTML, to a browser."""
    address: str = ""
    """Of who sent it, known or not."""
    next: str = ""
    """Page to go to after a sign-in, query included: not for the log."""
    fields: dict[str, Any] = field(default_factory=dict)
    """More for the log."""

    def header(self, name: bytes) -> str:
        """Return a header of the request; empty without it."""
        return self.optional_header(name) or ""

    def optional_header(self, name: bytes) -> str | None:
        """Return a header of the request, which may be empty; None without it."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1").strip()


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """Return the id that a request came with, else a new one."""
    value = headers.get(b"x-request-id", b"").decode("latin-1")
    return value if _REQUEST_ID.fullmatch(value) else secrets.token_hex(8)


def preferences(prefer: str) -> dict[str, str]:
    """Return the values of a header `Prefer` by name; of equal ones the first, after RFC 7240."""
    entries: dict[str, str] = {}
    for part in re.split("[,;]", prefer):
        name, _, value = part.partition("=")
        entries.setdefault(name.strip().lower(), value.strip().strip('"'))
    return entries


def wait_s(prefer: str) -> float | None:
    """Return the seconds of `Prefer: wait=N`; None without it.

    What is no number of seconds is ignored, as RFC 7240 has it: that no `Preference-Applied` comes
    back tells the caller. With `wait=0` there is what is known at once.
    """
    value = preferences(prefer).get("wait", "")
    if not _SECONDS.fullmatch(value):
        return None
    return min(max(float(value), LEAST_WAIT_S), MOST_WAIT_S)


def wants_job(prefer: str) -> bool:
    """Tell whether `Prefer` asks for a job."""
    return "respond-async" in preferences(prefer)


def etag_matches(if_none_match: str, etag: str) -> bool:
    """Tell whether a header If-None-Match names an answer."""
    if not if_none_match or not etag:
        return False
    names = (name.strip().removeprefix("W/") for name in if_none_match.split(","))
    return any(name in ("*", f'"{etag}"') for name in names)
