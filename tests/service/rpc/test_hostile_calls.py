"""Streams of gRPC that anybody could hold open."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from service.access.auth import Auth, read_tokens
from service.access.caller import Caller
from service.handlers.limits import RequestLimits
from service.rpc.server import GrpcEndpoint, bound
from service.telemetry import logs
from service.telemetry.metrics import Metrics
from tests.service import fuzzing, fuzzing_wire
from tests.service.inline import inline_engine
from tests.service.waiting import PATIENCE_S

ANY_PORT = GrpcEndpoint("127.0.0.1:0")

TOKEN = "hostile-0123456789"


async def statuses(folder: Path, auth: Auth, metadata: Any) -> tuple[str, str, str]:
    """Return how `Check`, `Watch` and reflection end."""
    async with inline_engine(folder) as engine:
        server = bound(engine, auth, RequestLimits(), Metrics(engine), ANY_PORT)
        await server.start()
        try:
            async with grpc.aio.insecure_channel(server.address) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                mirror = reflection_pb2_grpc.ServerReflectionStub(channel)
                asked = reflection_pb2.ServerReflectionRequest(list_services="")

                async def ended(work: Any) -> str:
                    try:
                        await asyncio.wait_for(work, PATIENCE_S)
                        return "OK"
                    except grpc.aio.AioRpcError as error:
                        code: str = error.code().name
                        return code

                question = health_pb2.HealthCheckRequest()
                return (
                    await ended(health.Check(question, metadata=metadata)),
                    await ended(health.Watch(question, metadata=metadata).__aiter__().__anext__()),
                    await ended(
                        mirror.ServerReflectionInfo(iter([asked]), metadata=metadata)
                        .__aiter__()
                        .__anext__()
                    ),
                )
        finally:
            await server.stop(0.0)


@pytest.mark.parametrize(
    ("asks", "metadata", "wanted"),
    [
        (False, (), ("OK", "OK", "OK")),
        (True, (), ("OK", "UNAUTHENTICATED", "UNAUTHENTICATED")),
        (True, (("authorization", "Bearer wrong"),), ("OK", "UNAUTHENTICATED", "UNAUTHENTICATED")),
        (True, (("authorization", f"Bearer {TOKEN}"),), ("OK", "OK", "OK")),
    ],
)
def test_streams_ask_for_a_token_where_there_are_some(tmp_path, asks, metadata, wanted):
    auth = Auth(read_tokens(f"ann read {TOKEN}", "tokens")) if asks else Auth()
    assert asyncio.run(statuses(tmp_path, auth, metadata)) == wanted


@pytest.mark.parametrize(
    "path",
    [
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
def test_bytes_that_are_no_message_are_refused_without_a_trace_in_the_log(tmp_path, caplog, path):
    async def run() -> str:
        async with inline_engine(tmp_path) as engine:
            server = bound(engine, Auth(), RequestLimits(), Metrics(engine), ANY_PORT)
            await server.start()
            try:
                async with grpc.aio.insecure_channel(server.address) as channel:
                    call = channel.stream_stream(path)(iter([b"\xff" * 20]), timeout=PATIENCE_S)
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await call.read()
                    code: str = refused.value.code().name
                    return code
            finally:
                await server.stop(0.0)

    assert asyncio.run(run()) == "INVALID_ARGUMENT"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_no_byte_of_a_token_that_is_no_utf_8_is_logged(tmp_path, caplog):
    """gRPC logs metadata that it cannot decode, and the authorization is metadata."""
    spoilt = [(b"authorization", b"Bearer " + TOKEN.encode()[:-1] + b"\xff")]

    async def run() -> None:
        async with inline_engine(tmp_path) as engine:
            auth = Auth(read_tokens(f"ann read {TOKEN}", "tokens"))
            server = bound(engine, auth, RequestLimits(), Metrics(engine), ANY_PORT)
            await server.start()
            try:
                fields = [*fuzzing_wire.fields_of("/planner.v1.Planner/GetVersion"), *spoilt]
                call = fuzzing_wire.PREFACE + fuzzing_wire.frame(4, 0, 0, b"")
                call += fuzzing_wire.frame(1, 4, 1, fuzzing_wire.headers_block(fields))
                call += fuzzing_wire.frame(0, 1, 1, b"\0" * 5)
                async with asyncio.timeout(PATIENCE_S):
                    while not caplog.records:
                        await fuzzing_wire.send_raw(server.port, call, 0.05, abort=False)
            finally:
                await server.stop(0.0)

    logs.guard_grpc()
    asyncio.run(run())
    texts = [record.getMessage() + repr(record.args) for record in caplog.records]
    assert any("no UTF-8" in text for text in texts), texts
    assert not any(
        TOKEN[:8] in text or record.exc_info
        for text, record in zip(texts, caplog.records, strict=True)
    )


@contextlib.asynccontextmanager
async def asked_of(folder: Path, settings: RequestLimits, **auth: Any) -> AsyncIterator[Any]:
    """Yield a server, and what calls a method without ever sending a message."""
    async with inline_engine(folder) as engine:
        server = bound(engine, Auth(**auth), settings, Metrics(engine), ANY_PORT)
        await server.start()
        silent = asyncio.Event()

        async def never() -> AsyncIterator[bytes]:
            await silent.wait()
            yield b""

        async with grpc.aio.insecure_channel(server.address) as channel:

            def call(path: str, token: str = "") -> Any:
                told = (("authorization", f"Bearer {token}"),) if token else ()
                return channel.stream_unary(path)(never(), metadata=told, timeout=PATIENCE_S)

            try:
                yield server, call
            finally:
                silent.set()
                await server.stop(0.0)


async def status(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details()


def test_no_message_is_taken_before_it_is_known_who_calls(tmp_path):
    """gRPC would hold megabytes of it, from anybody, on as many streams as there may be."""

    async def run() -> list[str]:
        tokens = read_tokens(f"ann read {TOKEN}", "tokens")
        async with asked_of(tmp_path, RequestLimits(), tokens=tokens) as (_, call):
            paths = (
                "/planner.v1.Planner/Solve",
                "/planner.v1.Planner/WatchJob",
                "/grpc.health.v1.Health/Watch",
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            )
            return [(await status(call(path)))[0] for path in paths]

    assert asyncio.run(run()) == ["UNAUTHENTICATED"] * 4


def test_a_caller_holds_no_more_streams_open_than_its_share(tmp_path):
    """Calls of others have no place where one caller holds all that there are."""

    async def run() -> list[str]:
        async with inline_engine(tmp_path) as engine:
            engine.options = replace(engine.options, watchers_per_caller=2)
            server = bound(engine, Auth(), RequestLimits(), Metrics(engine), ANY_PORT)
            await server.start()
            try:
                async with grpc.aio.insecure_channel(server.address) as channel:
                    health = health_pb2_grpc.HealthStub(channel)
                    mirror = reflection_pb2_grpc.ServerReflectionStub(channel)
                    wanted = reflection_pb2.ServerReflectionRequest(list_services="")
                    sending = asyncio.Event()

                    async def one() -> AsyncIterator[Any]:
                        yield wanted
                        await sending.wait()

                    async def ended() -> str:
                        try:
                            await health.Watch(health_pb2.HealthCheckRequest()).read()
                            return "OK"
                        except grpc.aio.AioRpcError as error:
                            return str(error.code().name)

                    first = health.Watch(health_pb2.HealthCheckRequest())
                    second = mirror.ServerReflectionInfo(one())
                    await first.read()
                    await second.read()
                    found = [await ended()]
                    await health.Check(health_pb2.HealthCheckRequest())
                    first.cancel()
                    second.cancel()
                    async with asyncio.timeout(PATIENCE_S):
                        while await ended() != "OK":
                            await asyncio.sleep(0.01)
                    return [*found, "OK"]
            finally:
                await server.stop(0.0)

    assert asyncio.run(run()) == ["RESOURCE_EXHAUSTED", "OK"]


@pytest.mark.parametrize("path", ["/planner.v1.Planner/Solve", "/grpc.health.v1.Health/Check"])
def test_a_message_that_does_not_arrive_ends_its_call(tmp_path, monkeypatch, path):
    monkeypatch.setattr("service.rpc.receiving.MESSAGE_S", 0.2)
    monkeypatch.setattr("service.rpc.receiving.SOON_S", 0.05)

    async def run() -> tuple[str, str]:
        async with asked_of(tmp_path, RequestLimits()) as (_, call):
            return await status(call(path))

    code, said = asyncio.run(run())
    assert code == "DEADLINE_EXCEEDED"
    assert "did not arrive" in said


def test_a_caller_sends_no_more_slow_messages_at_once_than_its_share(tmp_path, monkeypatch):
    monkeypatch.setattr("service.rpc.receiving.SOON_S", 0.05)

    async def run() -> tuple[str, str]:
        async with asked_of(tmp_path, RequestLimits(per_caller=2)) as (server, call):
            first = [call("/planner.v1.Planner/Solve") for _ in range(2)]
            slow = server.gate._receiver._slow
            async with asyncio.timeout(PATIENCE_S):
                while slow.total() < 2:
                    await asyncio.sleep(0.01)
                refused = await status(call("/planner.v1.Planner/Solve"))
                for each in first:
                    each.cancel()
                while slow:
                    await asyncio.sleep(0.01)
            return refused

    code, said = asyncio.run(run())
    assert code == "RESOURCE_EXHAUSTED"
    assert "of yours" in said


def test_a_path_that_is_no_utf_8_does_not_end_the_server(tmp_path):
    """grpcio 1.84 and 1.85 end it at that: it is then started again."""

    async def run() -> list[bytes]:
        async with inline_engine(tmp_path) as engine:
            server = bound(engine, Auth(), RequestLimits(), Metrics(engine), ANY_PORT)
            await server.start()
            fields = fuzzing_wire.fields_of("/planner.v1.Planner/GetVersion")
            fields[3] = (b":path", b"/planner.v1.Planner/\xb4")
            call = fuzzing_wire.PREFACE + fuzzing_wire.frame(fuzzing_wire.SETTINGS, 0, 0, b"")
            call += fuzzing_wire.frame(
                fuzzing_wire.HEADERS,
                fuzzing_wire.END_HEADERS,
                1,
                fuzzing_wire.headers_block(fields),
            )
            call += fuzzing_wire.frame(fuzzing_wire.DATA, fuzzing_wire.END_STREAM, 1, b"\0" * 5)
            answers = []
            try:
                for _ in range(2):
                    await fuzzing_wire.send_raw(server.port, call, 0.2, abort=False)
                    async with grpc.aio.insecure_channel(server.address) as channel:
                        ask = channel.unary_unary("/planner.v1.Planner/GetVersion")
                        answers.append(await ask(b"", timeout=PATIENCE_S, wait_for_ready=True))
            finally:
                await server.stop(0.0)
            return answers

    first, second = asyncio.run(run())
    assert first == second != b""


def test_a_stream_that_is_left_while_its_question_is_refused_logs_no_defect(tmp_path):
    from service.handlers.problems import refused
    from service.proto.planner.v1 import planner_pb2 as pb
    from service.rpc.gate import GrpcExchange
    from service.rpc.methods import Grpc

    said: list[str] = []
    readers: list[asyncio.Future[bytes]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: said.append(context["message"])
        )
        async with inline_engine(tmp_path) as engine:
            methods = Grpc(engine, Auth(), RequestLimits(), Metrics(engine))

            async def call(*_: object) -> None:
                readers[0].cancel()  # the caller leaves at that moment
                raise refused("malformed", "objective: is no text")

            engine.call = call  # type: ignore[assignment,method-assign]  # as far as asked
            context: Any = fuzzing.Context((), None)
            exchange = GrpcExchange("SolveStream", context, {}, "id", 0.0, Caller("ann"))
            stream = methods._solve_stream(pb.SolveRequest().SerializeToString(), exchange)
            readers.append(asyncio.ensure_future(anext(stream)))
            with pytest.raises(asyncio.CancelledError):
                await readers[0]
            readers.clear()
        gc.collect()  # a task tells of its error when it is forgotten
        await asyncio.sleep(0)

    asyncio.run(run())
    assert said == []
