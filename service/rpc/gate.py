"""The gate of the gRPC transport: who calls, how refusals are told, logs and metrics of a call."""

import asyncio
import contextlib
import logging
import math
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from service.access.admission import overloaded
from service.access.auth import Auth
from service.access.caller import Caller, CallerLeft, caller_fields
from service.engine import Engine
from service.handlers.calls import CALLS
from service.handlers.limits import RequestLimits
from service.handlers.problems import Refusal, refused
from service.proto.planner.v1 import planner_pb2 as pb
from service.rpc.open_sockets import SocketGuard, plain_address
from service.rpc.receiving import Receiver
from service.rpc.status import DETAILS, MOST_CHARS, status_details, status_of
from service.telemetry import logs
from service.telemetry.metrics import Metrics
from service.telemetry.tracing import server_span

log = logging.getLogger("planner.service")

SERVICE = pb.DESCRIPTOR.services_by_name["Planner"]
NAME: str = SERVICE.full_name
OPERATIONS = {method.name: method.name[0].lower() + method.name[1:] for method in SERVICE.methods}
"""Name in logs and metrics of every method: that of the same operation over HTTP."""
CALL_OF = {"".join(word.title() for word in name.split("-")): name for name in CALLS} | {
    "SolveStream": "solve"
}
"""The call that a method makes."""
MOST_CALLS = 1_024
"""Calls that are served at the same time, streams too."""
RESERVE, RESERVE_S = 0.1, 0.2
"""Part of a deadline that is kept for the way back to the caller, and the most that is."""
STEPS_PER_OCTAVE = 8
"""Deadlines are rounded down to so many steps between a time and its double: the same questions of
many callers, each with its own deadline, are then computed once."""
_OUTCOMES = {
    grpc.StatusCode.OK: "done",
    grpc.StatusCode.CANCELLED: "left",
    grpc.StatusCode.INTERNAL: "failed",
    grpc.StatusCode.UNKNOWN: "failed",
    grpc.StatusCode.UNAVAILABLE: "failed",
    grpc.StatusCode.DEADLINE_EXCEEDED: "failed",
}
"""In the audit log; all others are refusals."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def time_left(given_s: float | None, settings: RequestLimits) -> float | None:
    """Return the time that a search has by a call's deadline, None where that is no bound.

    >>> [time_left(s, Settings()) for s in (None, 1e6, 8.2, 2.2)]
    [None, None, 8.0, 2.0]
    """
    if given_s is None or given_s > 2 * settings.hard_s:
        return None
    left_s = given_s - min(RESERVE_S, RESERVE * given_s)
    if left_s <= 0:
        return 1e-3
    return float(2.0 ** (math.floor(math.log2(left_s) * STEPS_PER_OCTAVE) / STEPS_PER_OCTAVE))


def knows(etags: str, etag: str) -> bool:
    """Tell whether the metadata if-none-match names an answer, quoted as in HTTP or not."""
    names = (name.strip().removeprefix("W/").strip('"') for name in etags.split(","))
    return bool(etag) and any(name in ("*", etag) for name in names)


@dataclass(slots=True)
class GrpcExchange:
    """One call and what is known of its answer."""

    method: str
    context: Any
    metadata: Mapping[str, Any]
    id: str
    begun_s: float
    caller: Caller | None = None
    code: grpc.StatusCode = grpc.StatusCode.OK
    n_bytes: int = 0
    fast: bool = False
    trailers: list[tuple[str, str]] = field(default_factory=list)
    """Metadata of the answer."""
    fields: dict[str, Any] = field(default_factory=dict)
    """More for the log."""
    peer: tuple[str, int] = ("", 0)
    """Address and port that it came from."""
    is_twice: bool = False
    """Whether a name stands twice in the metadata."""

    def header(self, name: str) -> str:
        """Return metadata of the call; empty without it."""
        return self.optional_header(name) or ""

    def optional_header(self, name: str) -> str | None:
        """Return metadata of the call, which may be empty; None without it."""
        value = self.metadata.get(name)
        return value.decode("latin-1") if isinstance(value, bytes) else value

    def deadline_s(self, settings: RequestLimits) -> float | None:
        """Return the time that a search has."""
        return time_left(self.context.time_remaining(), settings)


Unary = Callable[[bytes, GrpcExchange], Awaitable[bytes]]
Streamed = Callable[[bytes, GrpcExchange], AsyncIterator[bytes]]


async def _write(context: Any, part: bytes) -> None:
    """Send a part of a stream."""
    try:
        await context.write(part)
    except Exception as error:  # none that gRPC would name in public
        raise CallerLeft from error


class Gate:
    """What every method of the service goes through."""

    def __init__(
        self,
        engine: Engine,
        auth: Auth,
        settings: RequestLimits,
        metrics: Metrics,
        tracer: Any = None,
    ) -> None:
        self.engine = engine
        self.auth = auth
        self.settings = settings
        self.metrics = metrics
        self._tracer = tracer
        self._n_calls = 0
        self._receiver = Receiver(settings)
        self.sockets: SocketGuard | None = None
        """Told which connections have calls; None before the server listens."""

    @property
    def n_calls(self) -> int:
        """Calls that are served now."""
        return self._n_calls

    def _begun(self, method: str, context: Any, peer: tuple[str, int]) -> GrpcExchange:
        every = context.invocation_metadata() or ()
        metadata = dict(every)
        value = metadata.get("x-request-id", "")
        is_valid = isinstance(value, str) and _REQUEST_ID.fullmatch(value)
        id = value if is_valid else secrets.token_hex(8)
        is_twice = len(metadata) < len(every)
        begun_s = time.monotonic()
        return GrpcExchange(method, context, metadata, id, begun_s, peer=peer, is_twice=is_twice)

    async def _admit(self, exchange: GrpcExchange) -> Caller:
        if self._n_calls > MOST_CALLS:
            raise overloaded(f"{MOST_CALLS} calls are served at the same time", 1.0)
        authorization = exchange.metadata.get("authorization")
        if exchange.is_twice:
            authorization = authorization_of(exchange.context.invocation_metadata())
        exchange.caller = await self.auth.identified(
            authorization, exchange.peer[0], exchange.optional_header("planner-priority")
        )
        return exchange.caller

    def unary(self, method: str, work: Unary) -> Any:
        """Return what answers with what `work` returns, and takes the message itself."""

        async def serve(_: Any, context: Any) -> bytes:
            return await self._served(method, context, work)

        return serve

    def streamed(self, method: str, work: Streamed) -> Any:
        """Return what sends what `work` yields, and takes the message itself."""

        async def send(request: bytes, exchange: GrpcExchange) -> bytes:
            async with contextlib.aclosing(work(request, exchange)) as parts:  # type: ignore[type-var]  # they are generators
                async for part in parts:
                    exchange.n_bytes += len(part)
                    await _write(exchange.context, part)
            return b""

        async def serve(_: Any, context: Any) -> None:
            await self._served(method, context, send)

        return serve

    async def _served(self, method: str, context: Any, work: Unary) -> bytes:
        peer = peer_of(context.peer())
        if self.sockets is None:
            return await self._answered(method, context, peer, work)
        with self.sockets.served(peer):
            return await self._answered(method, context, peer, work)

    async def _answered(
        self, method: str, context: Any, peer: tuple[str, int], work: Unary
    ) -> bytes:
        exchange = self._begun(method, context, peer)
        token = logs.REQUEST.set(exchange.id)
        self._n_calls += 1
        try:
            with self._span(exchange):
                try:
                    caller = await self._admit(exchange)
                    request = await self._receiver.message(context, caller.name)
                    answer = await work(request, exchange)
                    exchange.n_bytes += len(answer)
                    self._tell(exchange)
                    return answer
                except Refusal as problem:
                    refusal = problem
                except CallerLeft:
                    exchange.code = grpc.StatusCode.CANCELLED
                    return b""
                except Exception as error:
                    refusal = _defect(error)
                exchange.code = status_of(refusal)
            await self._refuse(exchange, refusal)
            return b""  # not reached: it raises
        except asyncio.CancelledError:
            exchange.code = grpc.StatusCode.CANCELLED
            raise
        finally:
            self._n_calls -= 1
            self._noted(exchange)
            logs.REQUEST.reset(token)

    def _tell(self, exchange: GrpcExchange) -> None:
        exchange.context.set_trailing_metadata((*exchange.trailers, ("x-request-id", exchange.id)))

    async def _refuse(self, exchange: GrpcExchange, problem: Refusal) -> None:
        exchange.fields["code"] = problem.code
        details = [("x-request-id", exchange.id), (DETAILS, status_details(problem, exchange.id))]
        text = f"{problem.title}: {problem.detail}"[:MOST_CHARS]
        await exchange.context.abort(status_of(problem), text, tuple(details))

    @contextlib.contextmanager
    def _span(self, exchange: GrpcExchange) -> Any:
        if self._tracer is None:
            yield
            return
        texts = {name: exchange.header(name) for name in exchange.metadata}
        with server_span(self._tracer, OPERATIONS[exchange.method], texts) as span:
            yield
            span.set_attribute("rpc.system", "grpc")
            span.set_attribute("rpc.service", NAME)
            span.set_attribute("rpc.method", exchange.method)
            span.set_attribute("rpc.grpc.status_code", exchange.code.value[0])
            span.set_attribute("planner.request_id", exchange.id)

    def _noted(self, exchange: GrpcExchange) -> None:
        """Count and log a call that is over."""
        name = OPERATIONS[exchange.method]
        code = exchange.code
        self.metrics.request("grpc", name, code.name)
        if self.auth.audit.is_on:
            self._audited(exchange, name)
        failed = code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
        level = logging.DEBUG if exchange.fast and not failed else logging.INFO
        if logs.access.isEnabledFor(level):
            logs.log_access(
                level,
                f"gRPC {exchange.method}",
                operation=name,
                status=code.name,
                seconds=round(time.monotonic() - exchange.begun_s, 6),
                bytes=exchange.n_bytes,
                caller=exchange.caller.name if exchange.caller else "",
                address=exchange.peer[0],
                **exchange.fields,
            )

    def _audited(self, exchange: GrpcExchange, name: str) -> None:
        """Write who asked for what, and what came of it."""
        self.auth.audit.note(
            "request",
            transport="grpc",
            operation=name,
            **caller_fields(exchange.caller),
            address=address_of(exchange.context.peer()),
            outcome=_OUTCOMES.get(exchange.code, "refused"),
            status=exchange.code.name,
            code=exchange.fields.get("code"),
            request_id=exchange.id,
            job_id=exchange.fields.get("job_id"),
        )


def authorization_of(metadata: Any) -> bytes | str | None:
    """Return the authorization in metadata; `Refusal` 400 where it stands twice."""
    found = [value for name, value in metadata or () if name == "authorization"]
    if len(found) > 1:
        raise refused("malformed", "the metadata authorization stands twice", 400)
    return found[0] if found else None


def _defect(error: Exception) -> Refusal:
    log.exception("a defect while answering")
    detail = f"{type(error).__name__}: please report it with the request id"
    return refused("defect", detail, 500)


def address_of(peer: str) -> str:
    """Return the address in a peer as gRPC writes it.

    >>> [address_of(x) for x in ("ipv4:10.0.0.7:51234", "ipv6:%5B::1%5D:51234", "unix:")]
    ['10.0.0.7', '::1', '']
    """
    return peer_of(peer)[0]


def peer_of(peer: str) -> tuple[str, int]:
    """Return the address and the port in a peer as gRPC writes it.

    >>> [peer_of(x) for x in ("ipv4:10.0.0.7:51234", "ipv6:%5B::ffff:10.0.0.7%5D:51234", "unix:")]
    [('10.0.0.7', 51234), ('10.0.0.7', 51234), ('', 0)]
    """
    kind, _, rest = peer.partition(":")
    host, _, port = rest.rpartition(":")
    if kind == "ipv6":
        host = plain_address(host.replace("%5B", "").replace("%5D", "").strip("[]"))
    is_known = kind in ("ipv4", "ipv6") and port.isdigit()
    return (host, int(port)) if is_known else ("", 0)
