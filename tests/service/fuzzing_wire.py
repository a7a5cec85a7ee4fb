"""Hostile calls and frames over a real gRPC port: for scripts/fuzz and the tests.

What `fuzzing.fuzz_grpc` asks the handlers, over channels; metadata beyond what is taken, messages
that are none, calls that are cancelled or left, methods that there are not, and connections that
send HTTP/2 out of order, cut off, mutated, or something else. Looked for, besides: what gRPC or
asyncio log as errors, a server that does not answer the next caller, and calls, files and threads
that are left when all is over.
"""

import asyncio
import contextlib
import logging
import random
import socket
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.telemetry import logs
from tests.service import fuzzing
from tests.service.fuzzing import ANSWER_S, TOKEN, WARM, Found, resources, where

DEFECTS = ("INTERNAL", "UNKNOWN", "DATA_LOSS")
"""Statuses that no call may end with; UNAVAILABLE neither, unless it asked for it."""
LEFT_S = 30.0
"""How long calls that were cancelled or left may still be served."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
"""Types of HTTP/2 frames (RFC 9113)."""
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 1, 1, 4, 8, 32
TEXTS = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST / HTTP/1.0\r\n\r\n" + b"x" * 99,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 99,
    b"",
    b"\x00" * 999,
    b"\xff" * 99,
    b"SSH-2.0-x\r\n",
    PREFACE[:10],
    PREFACE * 2,
    PREFACE + b"\x00" * 9,
    b"EHLO x\r\n" * 50,
)
"""What else a connection may begin with."""


# Frames


def frame(kind: int, flags: int, stream: int, payload: bytes, n_bytes: int | None = None) -> bytes:
    """Return an HTTP/2 frame; `n_bytes` is what it says of its length, where that is not so."""
    length = len(payload) if n_bytes is None else n_bytes
    head = struct.pack(">I", length & 0xFFFFFF)[1:]
    return head + struct.pack(">BBI", kind & 255, flags & 255, stream & 0xFFFFFFFF) + payload


def headers_block(fields: list[tuple[bytes, bytes]]) -> bytes:
    """Return fields as HPACK literals that nobody indexes (RFC 7541, 6.2.2)."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def fields_of(path: str) -> list[tuple[bytes, bytes]]:
    """Return the fields that every call begins with."""
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":authority", b"localhost"),
        (b":path", path.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]


def _text(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, out = len(text) - 127, [127]
    while rest >= 128:
        out.append(rest % 128 + 128)
        rest //= 128
    return bytes([*out, rest]) + text


class Connections:
    """What connections send that do not keep to HTTP/2, or hardly."""

    def __init__(self, requests: fuzzing.GrpcRequests) -> None:
        self.requests, self.rng = requests, requests.rng

    def next(self) -> bytes:
        """Return all that the next connection sends."""
        rng = self.rng
        if rng.random() < 0.15:
            return rng.choice((*TEXTS, rng.randbytes(rng.randrange(2_000))))
        frames = [frame(SETTINGS, 0, 0, b"")]
        for stream in range(1, 2 * rng.randint(1, 3), 2):
            frames += self._call(stream)
        for _ in range(rng.randint(0, 4)):
            self._change(frames)
        sent = PREFACE + b"".join(frames)
        if rng.random() < 0.3:
            sent = self._bytes(sent)
        return sent[: rng.randrange(len(sent))] if rng.random() < 0.15 else sent

    def _call(self, stream: int) -> list[bytes]:
        """Return the frames of a call."""
        from service.rpc.gate import NAME

        rng = self.rng
        method, data, _ = self.requests.next()
        data = data[:10_000]  # of one frame
        fields = fields_of(f"/{NAME}/{method}")
        fields.append((b"authorization", f"Bearer {TOKEN}".encode()))
        if rng.random() < 0.5:
            fields = self._fields(fields)
        length = rng.choice((len(data), len(data), 0, len(data) + 9, 2**32 - 1, 2**24))
        message = struct.pack(">BI", rng.choice((0, 0, 0, 0, 1, 255)), length) + data
        return [
            frame(HEADERS, END_HEADERS, stream, headers_block(fields)[:16_000]),
            frame(DATA, rng.choice((END_STREAM, END_STREAM, 0)), stream, message),
        ]

    def _fields(self, fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        rng, fields = self.rng, list(fields)
        at = rng.randrange(len(fields))
        name, value = fields[at]
        hostile = (
            b"",
            b"\0",
            b"x" * 5_000,
            b"\xff\xfe",
            b"GET",
            b"/",
            b"//",
            b"application/json",
            b"1S",
            b"99999999999S",
            b"-1S",
            b"1x",
            b"gzip",
            b"snappy",
            b"a\r\nb: c",
            b"/x" * 4_000,
        )
        names = (
            b"grpc-timeout",
            b"grpc-encoding",
            b"grpc-accept-encoding",
            b"x-bin",
            b":status",
            b":path",
            b"Upper",
            b"connection",
            b"content-length",
            b"",
            b"a b",
            b"grpc-status",
            b"user-agent",
            b"grpc-tags-bin",
            b"grpc-trace-bin",
            b"cookie",
        )
        what = rng.randrange(4)
        if what == 0:
            del fields[at]
        elif what == 1:
            fields[at] = name, rng.choice(hostile)
        elif what == 2:
            fields.insert(rng.randrange(len(fields) + 1), (rng.choice(names), rng.choice(hostile)))
        else:
            fields += [(name, value)] * rng.choice((1, 60))
        return fields

    def _change(self, frames: list[bytes]) -> None:
        rng = self.rng
        at = rng.randrange(len(frames) + 1)
        stream = rng.choice((0, 1, 1, 2, 3, 9, 2**31 - 1, 2**31, 2**32 - 1))
        word = rng.choice((0, 1, 16_384, 2**24, 2**31 - 1, 2**32 - 1)).to_bytes(4, "big")
        setting = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 0xFE03, 65_535)).to_bytes(2, "big")
        flags, many = rng.choice((0, 1, 4, 5, 8, 32, 41, 255)), rng.choice((1, 1, 3, 300))
        payload = rng.choice(
            (
                b"",
                b"\0",
                b"\xff" * 8,
                b"\x80" * 30,
                rng.randbytes(40),
                b"\x82" * 9,
                b"\xff" * 16_384,
                b"\x3f\xe1\xff\xff\xff\xff\x0f",
            )
        )
        hostile = (
            lambda: frame(SETTINGS, 0, 0, setting + word) * many,
            lambda: frame(SETTINGS, flags, stream, payload),
            lambda: frame(PING, 0, 0, b"pingping") * many,
            lambda: frame(PING, flags, stream, payload),
            lambda: frame(WINDOW, flags, stream, word),
            lambda: frame(RESET, 0, stream, word) * many,
            lambda: frame(PRIORITY, 0, stream, word + b"\x10"),
            lambda: frame(GOAWAY, 0, 0, word + word + payload),
            lambda: frame(PUSH, END_HEADERS, stream, word + payload),
            lambda: frame(CONTINUATION, flags, stream, payload) * many,
            lambda: frame(HEADERS, flags, stream, payload),
            lambda: frame(DATA, flags, stream, payload),
            lambda: frame(rng.randrange(10, 256), flags, stream, payload),
            lambda: frame(DATA, 0, stream, payload, rng.choice((0, 1, 2**14 + 1, 2**24 - 1))),
            # Calls that are begun and taken back at once, many of them (CVE-2023-44487).
            lambda: b"".join(
                frame(HEADERS, END_HEADERS, n, headers_block([(b":method", b"POST")]))
                + frame(RESET, 0, n, b"\0\0\0\x08")
                for n in range(101, 101 + 2 * many, 2)
            ),
        )
        what = rng.random()
        if what < 0.6 or not frames:
            frames.insert(at, rng.choice(hostile)())
        elif what < 0.7:
            del frames[at % len(frames)]
        elif what < 0.8:
            frames.insert(at, frames[at % len(frames)])
        elif what < 0.9:
            rng.shuffle(frames)
        else:
            frames[at % len(frames)] = self._bytes(frames[at % len(frames)])

    def _bytes(self, data: bytes) -> bytes:
        rng = self.rng
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            piece = rng.randbytes(rng.randrange(4))
            data = data[:at] + piece + data[at + rng.choice((0, len(piece), 3)) :]
        return data


async def send_raw(port: int, data: bytes, wait_s: float, abort: bool) -> None:
    """Send bytes to a port, read for a while, and close the connection, or break it off."""
    with contextlib.suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            async with asyncio.timeout(wait_s):
                await writer.drain()
                while await reader.read(65_536):
                    pass
        finally:
            if abort:
                plug = writer.get_extra_info("socket")
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            writer.close()


# Calls


@dataclass(frozen=True, slots=True)
class Ask:
    """One call."""

    path: str
    data: list[bytes]
    """Messages that it sends: one, unless it is not to be answered."""
    metadata: tuple[tuple[str, Any], ...]
    timeout_s: float | None
    leave_s: float | None
    """After how long it is cancelled; None where it is waited for."""
    streamed: bool
    """Whether the answer is a stream."""
    known: bool
    """Whether there is such a method, and one message is sent to it."""
    large: bool
    """Whether gRPC itself may refuse it."""

    def shown(self) -> str:
        """Return the call as a report shows it."""
        data = self.data[0][:10_000] if self.data else b""
        metadata = [(name, value[:80]) for name, value in self.metadata[:9]]
        return (
            f"{self.path} {len(self.data)} x {data!r} {metadata} timeout {self.timeout_s} "
            f"cancelled after {self.leave_s}"
        )


class Calls:
    """Calls near valid ones, and what a client may do to them."""

    def __init__(self, seed: int) -> None:
        from service.rpc.gate import SERVICE

        self.requests = fuzzing.GrpcRequests(seed)
        self.rng: random.Random = self.requests.rng
        self.streams = {m.name for m in SERVICE.methods if m.server_streaming}

    def next(self) -> Ask:
        """Return the next call."""
        from service.rpc.gate import NAME

        rng = self.rng
        method, data, metadata = self.requests.next()
        # What a client refuses to send is left to connections.
        metadata = tuple((k, v) for k, v in metadata if isinstance(v, str) or k.endswith("-bin"))
        path, messages, streamed, known = f"/{NAME}/{method}", [data], method in self.streams, True
        what, large = rng.random(), False
        if what < 0.08:
            known = False
            path = rng.choice(
                (
                    f"/{NAME}/Nothing",
                    "/x.Y/Z",
                    "/",
                    f"/{NAME}/",
                    f"/{NAME}/{method}/x",
                    "/a" * 500,
                    f"/{NAME}/{method.lower()}",
                    "/grpc.health.v1.Health/Check",
                    "/grpc.health.v1.Health/Watch",
                    "/grpc.health.v1.Health/List",
                    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                )
            )
        elif what < 0.13:
            known, messages = False, [data] * rng.choice((0, 2, 40))
        elif what < 0.15:
            filler, n_bytes = rng.choice((b"\0", data or b"x")), rng.choice((10**6, 9 * 10**6))
            large, messages = True, [filler * (n_bytes // len(filler))]
        if rng.random() < 0.15:
            more, large = self._metadata(), True
            metadata = (*metadata, *more)
        timeout_s = rng.choice((None, None, 5.0, 5.0, 60.0, 1e-9, 0.001, 0.01, 0.1, 1e5))
        leave_s = rng.choice((0.0, 0.0, 0.001, 0.005, 0.05)) if rng.random() < 0.25 else None
        if not known and leave_s is None:  # streams that nobody ends
            timeout_s = min(timeout_s or 0.2, 0.2)
        return Ask(path, messages, metadata, timeout_s, leave_s, streamed, known, large)

    def _metadata(self) -> tuple[tuple[str, Any], ...]:
        rng = self.rng
        n_bytes = rng.choice((100, 5_000, 16_000, 20_000, 33_000, 70_000, 500_000))
        return rng.choice(
            (
                (("x-request-id", "x" * n_bytes),),
                (("authorization", "Bearer " + "x" * n_bytes),),
                tuple((f"k{i}", "v" * 30) for i in range(n_bytes // 64)),
                (("a-bin", b"\0" * n_bytes),),
                tuple(("same", "v") for _ in range(n_bytes // 40)),
                (("idempotency-key", "k" * n_bytes), ("if-none-match", "," * n_bytes)),
                (("grpc-trace-bin", b"\xff" * min(n_bytes, 5_000)), ("traceparent", "00-" * 99)),
            )
        )


async def ask(channel: Any, asked: Ask) -> tuple[str, list[bytes], str]:
    """Make a call; return its status, what was answered, and the refusal."""
    import grpc

    given = {"metadata": asked.metadata, "timeout": asked.timeout_s}
    written: list[bytes] = []

    async def messages() -> AsyncIterator[bytes]:
        for each in asked.data:
            yield each

    async def told(call: Any) -> None:
        async for each in call:
            written.append(each)

    if len(asked.data) != 1:
        call = channel.stream_stream(asked.path)(messages(), **given)
    elif asked.streamed:
        call = channel.unary_stream(asked.path)(asked.data[0], **given)
    else:
        call = channel.unary_unary(asked.path)(asked.data[0], **given)
    streams = asked.streamed or len(asked.data) != 1
    try:
        if asked.leave_s is not None:
            await asyncio.sleep(asked.leave_s)
            call.cancel()
        if streams:
            await asyncio.wait_for(told(call), ANSWER_S)
        else:
            written.append(await asyncio.wait_for(call, ANSWER_S))
    except grpc.aio.AioRpcError as error:
        return error.code().name, written, error.details() or ""
    except grpc.aio.UsageError as error:  # it was cancelled before it had begun
        return "CANCELLED", written, str(error)
    except asyncio.CancelledError:  # whoever cancelled it
        return "CANCELLED", written, await call.details() or ""
    return "OK", written, ""


def refused_by_grpc(asked: Ask, status: str, details: str) -> bool:
    """Tell whether gRPC itself ended a call that is none of ours, or beyond what is taken."""
    if not asked.known:
        return status in ("INTERNAL", "UNKNOWN", "UNAVAILABLE") and "defect" not in details
    return asked.large and status == "UNAVAILABLE"


# The target


@contextlib.contextmanager
def errors_logged(found: Found) -> Iterator[None]:
    """Note as faults what is logged as an error meanwhile."""

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            kind = where(error) if error else record.getMessage()[:200]
            found.fault(f"logged by {record.name}: {kind}", record.getMessage())

    noting = Noting(logging.ERROR)
    logs.guard_grpc()
    logging.getLogger().addHandler(noting)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(noting)


async def is_over(still: Callable[[], bool], within_s: float) -> bool:
    """Wait until something is not so any more; tell whether that came in time."""
    end_s = time.monotonic() + within_s
    while still():
        if time.monotonic() > end_s:
            return False
        await asyncio.sleep(0.02)
    return True


def fuzz_wire(
    n_requests: int,
    seed: int,
    note: Callable[[Found], None] = lambda _: None,
    *,
    folder: Path | None = None,
    workers: bool = False,
) -> Found:
    """Call planner.v1.Planner over a port of this machine, and send frames to it."""
    with tempfile.TemporaryDirectory() as made:
        return asyncio.run(_wire(n_requests, seed, note, folder or Path(made), workers))


async def _wire(
    n_requests: int, seed: int, note: Callable[[Found], None], folder: Path, workers: bool
) -> Found:
    import grpc

    from service.access.auth import Auth, read_tokens
    from service.rpc.server import GrpcEndpoint, bound
    from service.telemetry.metrics import Metrics
    from tests.service import serving

    found, calls = Found(), Calls(seed)
    connections, rng = Connections(calls.requests), calls.rng
    auth = Auth(read_tokens(f"fuzz admin {TOKEN}", "tokens"), 10**9)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, context: found.fault(
            f"asyncio: {context['message'][:100]} {context.get('exception')!r:.200}", ""
        )
    )
    async with contextlib.AsyncExitStack() as stack:
        engine, pids = await stack.enter_async_context(fuzzing._engine(found, folder, workers))
        server = bound(
            engine, auth, serving.SETTINGS, Metrics(engine), GrpcEndpoint("127.0.0.1:0")
        )
        await server.start()
        stack.push_async_callback(server.stop, 0.5)
        stack.enter_context(errors_logged(found))
        # A small window for metadata would let the client refuse what it sends itself.
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.insecure_channel(server.address, options)
        probe = grpc.aio.insecure_channel(server.address, options)

        async def answers() -> None:
            """Note a server that does not answer a caller who does nothing wrong."""
            version = probe.unary_unary("/planner.v1.Planner/GetVersion")
            token = (("authorization", f"Bearer {TOKEN}"),)
            try:
                await version(b"", metadata=token, timeout=ANSWER_S, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                found.fault(f"the next caller: {error.code().name} {error.details()}", shown)

        for i in range(n_requests):
            if i == int(WARM * n_requests):
                await is_over(
                    lambda: server.gate.n_calls > 0 or bool(engine._job_work.running), LEFT_S
                )
                found.begin = resources(pids())
            found.n += 1
            if rng.random() < 0.35:
                data, shown = connections.next(), ""
                shown = f"bytes {data[:10_000]!r}"
                wait_s, abort = rng.choice((0.0, 0.002, 0.02)), rng.random() < 0.3
                begun_s = time.process_time()
                await send_raw(server.port, data, wait_s, abort)
                found.statuses["connection"] += 1
            else:
                asked = calls.next()
                shown = asked.shown()
                begun_s = time.process_time()
                try:
                    status, written, details = await ask(channel, asked)
                except TimeoutError:
                    found.fault(f"{asked.path}: no answer in {ANSWER_S:g} s", shown)
                    continue
                except Exception as error:
                    found.fault(where(error), shown)
                    continue
                note_answer(found, calls, asked, status, written, details)
            found.timed(time.process_time() - begun_s, shown)
            await answers()
            if i % 100 == 99:  # another connection of the same client
                await channel.close()
                channel = grpc.aio.insecure_channel(server.address, options)
            note(found)
        shown = "at the end"
        await answers()
        await channel.close()
        await probe.close()
        if not await is_over(lambda: server.gate.n_calls > 0, LEFT_S):
            found.fault(f"{server.gate.n_calls} calls are still served {LEFT_S:g} s later", "")
        if not await is_over(lambda: engine.snapshot().in_flight > 0, LEFT_S):
            found.fault(f"{engine.snapshot().in_flight} requests are still computed", "")
        await is_over(
            lambda: bool(engine._job_work.running), LEFT_S
        )  # jobs hold memory while they run
        found.end = resources(pids())
    found.check_growth()
    return found


def note_answer(
    found: Found, calls: Calls, asked: Ask, status: str, written: list[bytes], details: str
) -> None:
    """Note what no answer may be."""
    from google.protobuf.message import DecodeError

    from service.rpc.messages import _RESPONSES

    method = asked.path.rpartition("/")[2]
    name = method if method in _RESPONSES else "other"
    found.statuses[f"{name} {status}"] += 1
    shown = asked.shown()
    bad = status in (*DEFECTS, "UNAVAILABLE") and not refused_by_grpc(asked, status, details)
    if bad:
        found.fault(f"{method[:40]} {status} {details[:150]}", shown)
    if status == "CANCELLED" and asked.leave_s is None and "ancelled" not in details:
        found.fault(f"{method[:40]} was cancelled by the server: {details[:150]}", shown)
    if "Traceback" in details or 'File "/' in details:
        found.fault(f"{method[:40]} {status}: a trace", shown)
    for each in written if asked.known else ():
        try:
            message = _RESPONSES[method].FromString(each)
        except DecodeError:
            found.fault(f"{method} {status}: no answer of its kind", shown)
            continue
        fuzzing.keep_ids(calls.requests, message)
