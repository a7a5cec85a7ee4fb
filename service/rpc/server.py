"""The gRPC transport: a server of planner.v1.Planner, with health and reflection.

What is refused is a status with details (`service.rpc.status`); a defect says so and is logged
with its trace, which no caller sees.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from planner.errors import UsageError
from service.access.admission import overloaded
from service.access.auth import Auth, unauthenticated
from service.access.caller import Caller
from service.access.connection_bounds import ConnectionLimits
from service.engine import Engine
from service.handlers.limits import RequestLimits
from service.handlers.problems import Refusal
from service.rpc.gate import MOST_CALLS, NAME, Gate, authorization_of, peer_of
from service.rpc.methods import Grpc
from service.rpc.open_sockets import SocketGuard, has_open_files
from service.rpc.receiving import Receiver
from service.rpc.standard_services import REFLECTION, health_list, reflection_v1
from service.rpc.status import MOST_CHARS, status_of
from service.settings.certificates import Certificates
from service.telemetry.metrics import Metrics
from service.telemetry.tracing import configured_tracer

if TYPE_CHECKING:
    from service.settings.serving import Serving

log = logging.getLogger("planner.service")

MOST_STREAMS = 1_000
"""Calls of one connection at the same time; more of them wait at the caller. Where calls are reset
faster than they are forgotten, gRPC refuses more than so many with UNAVAILABLE."""
REFUSED_FACTOR = 4
"""Calls that are still answered, with a refusal, as a multiple of those that are served; gRPC
itself refuses more, without details."""
LEAVING_S = 3_600.0
"""How long calls in flight may go on at a port that is left; the service stops long before."""
UNSEEN_FACTOR = 4
"""Connections that gRPC takes until the next look at them, as a multiple of those there may be."""
PENDING = 8_192
"""Calls that wait to be taken, of all connections: more than those have streams in practice."""
RETRY_S = 0.02
"""Time between two tries to listen at a port again."""
KNOWN_S = 1.0
"""Time between two looks at whether the token of an open stream is still known."""
READY_S = 1.0
"""Time between two looks at whether the service is ready, for its health."""
_NO_COMPRESSION = 1
"""Set of algorithms: none. A few bytes must not become many."""


def options(settings: RequestLimits, share_port: bool = False) -> list[tuple[str, int]]:
    """Return the options of the server, see grpc/impl/channel_arg_names.h."""
    n_connections = settings.connections * (UNSEEN_FACTOR if has_open_files() else 1)
    return [
        ("grpc.max_receive_message_length", settings.body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", MOST_STREAMS),
        # Calls that wait to be taken: those beyond are ended without a word to their callers.
        ("grpc.server.max_pending_requests", PENDING),
        ("grpc.server.max_pending_requests_hard_limit", 2 * PENDING),
        ("grpc.max_metadata_size", 16_384),
        ("grpc.absolute_max_metadata_size", 32_768),
        ("grpc.compression_enabled_algorithms_bitset", _NO_COMPRESSION),
        ("grpc.so_reuseport", int(share_port)),  # without it, a port in use is an error
        ("grpc.max_allowed_incoming_connections", n_connections),
        ("grpc.server_handshake_timeout_ms", 10_000),
        # A silent caller is asked whether it is there; one that asks too often is sent away.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.max_connection_idle_ms", 600_000),
    ]


class StreamGate(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # it is not typed
    """Asks for a token, where there are some, before a stream that stays open as one likes.

    Reflection and `Watch` of health would else let anybody hold every place that there is for
    calls. `Check` of health asks for none: probes have no token.
    """

    def __init__(self, auth: Auth, settings: RequestLimits, most_streams: int) -> None:
        """Let a caller hold `most_streams` of them."""
        self._auth = auth
        self._receiver = Receiver(settings)
        self._most = most_streams
        self._open: Counter[str] = Counter()
        self.sockets: SocketGuard | None = None
        """Told which connections have calls; None before the server listens."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Return the handler of a call, or one that refuses it."""
        result = await continuation(details)
        method: str = details.method
        if method.startswith(f"/{NAME}/") or result is None:
            return result
        name, caller = "", Caller("")
        if not method.endswith("/Check"):
            try:
                sent = authorization_of(details.invocation_metadata)
                caller = await self._auth.identified(sent)
                name = caller.name
                if self._open[name] >= self._most:
                    raise overloaded(f"{self._most} streams of yours are open", 5.0)
            except Refusal as problem:
                return _refusing(problem)
        assert self.sockets is not None
        served = _ServedStreams(self._receiver, caller, self._open, self.sockets)
        return _reading(result, served)


async def _refused(problem: Refusal, context: Any) -> None:
    await context.abort(status_of(problem), f"{problem.title}: {problem.detail}"[:MOST_CHARS])


def _refusing(problem: Refusal) -> Any:
    async def refuse(_: Any, context: Any) -> None:
        await _refused(problem, context)

    return grpc.stream_stream_rpc_method_handler(refuse)  # which takes no message before


@dataclass(frozen=True, slots=True)
class _ServedStreams:
    """Calls of health and reflection by one caller."""

    receiver: Receiver
    caller: Caller
    n_open: Counter[str]
    """Streams by caller."""
    sockets: SocketGuard

    @contextlib.contextmanager
    def counted(self, context: Any) -> Iterator[None]:
        """Count a call, and keep its connection, meanwhile."""
        n_open, caller = self.n_open, self.caller.name
        n_open[caller] += 1
        try:
            with self.sockets.served(peer_of(context.peer())):
                yield
        finally:
            n_open[caller] -= 1
            if not n_open[caller]:
                del n_open[caller]


def _removed() -> Refusal:
    return unauthenticated("the token was removed, or has expired, while the stream was open")


async def _done_while_known(work: "asyncio.Future[Any]", caller: Caller) -> bool:
    """Wait for some work; False, and it is cancelled, where the caller's token goes first."""
    try:
        while not (await asyncio.wait({work}, timeout=KNOWN_S))[0]:
            if not await caller.is_known():
                return False
        return True
    finally:
        work.cancel()


def _reading(handler: Any, served: _ServedStreams) -> Any:
    """Return a handler of health or reflection that refuses bytes which are none of its messages.

    gRPC would answer UNKNOWN and log a trace for each of them, and anybody may send them.
    """

    async def read(data: bytes, context: Any) -> Any:
        try:
            return handler.request_deserializer(data)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the bytes are no such message")

    async def one(_: Any, context: Any) -> Any:
        try:
            data = await served.receiver.message(context, served.caller.name)
        except Refusal as problem:
            return await _refused(problem, context)
        work = handler.unary_stream if handler.response_streaming else handler.unary_unary
        with served.counted(context):
            working = asyncio.ensure_future(work(await read(data, context), context))
            if await _done_while_known(working, served.caller):
                return working.result()
        await _refused(_removed(), context)

    async def several(parts: Any, context: Any) -> Any:
        async def messages() -> Any:
            coming = aiter(parts)
            while True:
                part = asyncio.ensure_future(anext(coming))
                if not await _done_while_known(part, served.caller):
                    await _refused(_removed(), context)
                try:
                    data = part.result()
                except StopAsyncIteration:
                    return
                yield await read(data, context)

        with served.counted(context):
            async for answer in handler.stream_stream(messages(), context):
                yield answer

    write = handler.response_serializer
    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(several, None, write)
    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(one, None, write)
    return grpc.stream_unary_rpc_method_handler(one, None, write)


@dataclass(frozen=True, slots=True)
class GrpcEndpoint:
    """Where a server listens, and how."""

    address: str
    """HOST:PORT; port 0 for any that is free."""
    credentials: Any = None
    """Of TLS; None without it."""
    share_port: bool = False


class GrpcServer:
    """A gRPC server that runs."""

    def __init__(
        self,
        server: Any,
        rebind: Callable[[], Any],
        engine: Engine,
        gate: Gate,
        address: str,
    ) -> None:
        self.gate = gate
        """What its calls go through."""
        self.port = int(address.rpartition(":")[2])
        self.address = address
        """HOST:PORT."""
        self._server = server
        self._rebind = rebind
        """Returns another server at the same port, `UsageError` while it is in use."""
        self._engine = engine
        self._health = health.aio.HealthServicer()
        self._statuses: dict[str, Any] = {}
        """What was said last, by the name of a service."""
        self._add_health(server)
        self._stopping = False
        self._guarding: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve."""
        await self._set_health()
        self._looking = asyncio.create_task(self._look())
        if self.gate.sockets is not None:
            self._counting = asyncio.create_task(self.gate.sockets.watch())
        await self._server.start()
        self._guarding = asyncio.create_task(self._guard())

    async def _guard(self) -> None:
        """Serve again where gRPC itself ends the server, as some releases do at a caller's bytes.

        Calls in flight are lost then; without this, the port would be until the next start.
        """
        while True:
            try:
                await self._server.wait_for_termination()
                return
            except Exception as error:
                if self._stopping:
                    return
                log.error("gRPC has ended its server (%s): it is started again", error)
            while not self._stopping:
                try:
                    server = self._rebind()
                    break
                except UsageError:  # the port is still held
                    await asyncio.sleep(RETRY_S)
            else:
                return
            self._add_health(server)
            self._server = server
            await server.start()

    def _add_health(self, server: Any) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        server.add_generic_rpc_handlers((health_list(lambda: self._statuses),))

    async def _set_health(self) -> None:
        """Say what /readyz says."""
        status = health_pb2.HealthCheckResponse.SERVING
        try:
            await self._engine.ready()
        except Refusal:
            status = health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", NAME):
            self._statuses[name] = status
            await self._health.set(name, status)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(READY_S)
            try:
                await self._set_health()
            except Exception:
                log.exception("a defect in the health of the service")

    def leave(self) -> None:
        """Listen no more, for others at the same port; calls in flight go on until `stop`."""
        self._leaving = asyncio.create_task(self._server.stop(LEAVING_S))

    async def stop(self, grace_s: float) -> None:
        """End it; calls in flight have `grace_s` to finish."""
        looking = [each for each in (self._looking, self._counting) if each is not None]
        for each in looking:
            each.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
        not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
        self._statuses = dict.fromkeys(self._statuses, not_serving)
        await self._health.enter_graceful_shutdown()
        self._stopping = True
        server = self._server
        await server.stop(grace_s)
        if self._guarding is not None:
            await asyncio.gather(self._guarding, return_exceptions=True)
        self._server = None
        if self._leaving is not None:
            await asyncio.gather(self._leaving, return_exceptions=True)
            self._leaving = None
        del server  # what gRPC does when it is collected needs the event loop
        await asyncio.sleep(0)


def bound(
    engine: Engine,
    auth: Auth,
    settings: RequestLimits,
    metrics: Metrics,
    endpoint: GrpcEndpoint,
) -> GrpcServer:
    """Return a server that listens at an endpoint and is to be started.

    `UsageError` where it cannot listen there.
    """
    grpc.aio.init_grpc_aio()
    methods = Grpc(engine, auth, settings, metrics, configured_tracer())
    gate = StreamGate(auth, settings, engine.options.watchers_per_caller)

    def made(address: str) -> tuple[Any, int]:
        server = grpc.aio.server(
            interceptors=[gate],
            options=options(settings, endpoint.share_port),
            maximum_concurrent_rpcs=REFUSED_FACTOR * MOST_CALLS,
        )
        server.add_generic_rpc_handlers((methods.handler(),))
        names = (NAME, health.SERVICE_NAME, reflection.SERVICE_NAME, REFLECTION)
        reflection.enable_server_reflection(names, server)
        server.add_generic_rpc_handlers((reflection_v1(names),))
        try:
            if endpoint.credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, endpoint.credentials)
        except RuntimeError:
            port = 0
        if not port:
            del server  # as when it stops: not with the traceback, after the event loop
            raise UsageError(
                f"gRPC cannot listen at {address}: the port is in use, or the host is not here",
                "another --grpc-port, or --grpc-port 0 for none",
            )
        return server, port

    server, port = made(endpoint.address)
    limits = ConnectionLimits(settings.connections, settings.connections_per_address)
    methods.sockets = gate.sockets = SocketGuard(port, limits, metrics.tally("grpc"))
    text = f"{endpoint.address.rpartition(':')[0]}:{port}"
    return GrpcServer(server, lambda: made(text)[0], engine, methods, text)


def credentials_of(serving: "Serving", certificates: Certificates) -> Any:
    """Return the credentials of TLS, of the files as they are at each handshake; None without.

    Files that cannot be used change nothing.
    """
    cert, key, authority = serving.tls_cert, serving.tls_key, serving.tls_client_ca
    if not cert or not key:
        return None

    def now() -> Any:
        roots = authority.read_bytes() if authority else None
        pair = (key.read_bytes(), cert.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)

    used = certificates.version

    def changed() -> Any:
        nonlocal used
        certificates.context()
        if certificates.version == used:
            return None
        used = certificates.version
        return now()

    return grpc.dynamic_ssl_server_credentials(
        now(), changed, require_client_authentication=authority is not None
    )


def address_to_listen(serving: "Serving") -> str:
    """Return the address of the gRPC port."""
    host = serving.host.strip("[]")
    return f"[{host}]:{serving.grpc_port}" if ":" in host else f"{host}:{serving.grpc_port}"


async def start_server(
    engine: Engine, serving: "Serving", auth: Auth, metrics: Metrics
) -> GrpcServer:
    """Start the transport; `UsageError` where it cannot listen."""
    endpoint = GrpcEndpoint(
        address_to_listen(serving),
        credentials_of(serving, Certificates(serving)),
        serving.share_port,
    )
    server = bound(engine, auth, serving.limits, metrics, endpoint)
    await server.start()
    return server
