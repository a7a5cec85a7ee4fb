"""What a question that was answered before costs: CPU of the service, latencies at a given rate.

    python benchmarks/cached_load.py [--transport http,grpc] [--rate 1000] [--seconds 60]

Beside each transport runs a control: a server under the same library that answers the same bytes
and does nothing else. Load goes to both by turns, some seconds each, so that both meet the same
machine in the same minute. Requests are sent when they are due, whether or not earlier ones are
answered, and latencies count from when they were due. CPU is that of the server's process, all of
its threads, user and system, over the requests that it answered.

Exit status 1 where a target is missed: 0.5 ms over HTTP and 1 ms over gRPC, no error, and the
99th percentile within twice that of the control.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.bench_service import CACHED, SOLVE, free_port, quantile, serve, started

TURN_S = 5.0
"""How long the load goes to one of both before it goes to the other."""
CONNECTIONS = 8
MOST_CPU_MS = {"http": 0.5, "grpc": 1.0}
MOST_RATIO = 2.0
TOKEN = "0123456789abcdef" * 2


class Asked(Protocol):
    """A server that can be asked the question."""

    async def ask(self, n: int) -> bool:
        """Ask once; return whether the answer is the right one."""


@dataclass
class Measured:
    """What one server did."""

    pid: int
    cpu_s: float = 0.0
    seconds: list[float] = field(default_factory=list)
    """Of each request, from when it was due."""
    wall_s: float = 0.0
    n_wrong: int = 0

    def figures(self) -> dict[str, float]:
        """Return the figures of a row."""
        n = max(1, len(self.seconds))
        return {
            "requests": len(self.seconds),
            "per_s": len(self.seconds) / max(self.wall_s, 1e-9),
            "cpu_ms": 1e3 * self.cpu_s / n,
            "p50_ms": 1e3 * quantile(self.seconds, 0.5),
            "p99_ms": 1e3 * quantile(self.seconds, 0.99),
            "errors": self.n_wrong,
        }


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used, seconds: user and system, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Replies(asyncio.Protocol):
    """One connection of HTTP: replies in the order of requests, told apart by their length."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._waiting: list[asyncio.Future[bytes]] = []
        self._transport: Any = None
        self.is_over = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def post(self, request: bytes) -> "asyncio.Future[bytes]":
        """Send a request; the body of a reply of status 200 follows, else nothing."""
        reply = asyncio.get_running_loop().create_future()
        self._waiting.append(reply)
        self._transport.write(request)
        return reply

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
            if len(self._buffer) < end + 4 + length:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            reply = self._waiting.pop(0)
            if not reply.done():
                reply.set_result(body if b" 200 " in head.partition(b"\r\n")[0] else b"")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        for reply in self._waiting:
            if not reply.done():
                reply.set_result(b"")


class HttpAsked:
    """Asks over connections that stay open, each for one request at a time."""

    def __init__(self, port: int) -> None:
        self._port, self._idle = port, asyncio.Queue[_Replies]()
        body = json.dumps(CACHED).encode()
        head = (
            f"POST {SOLVE} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self.payload = b""

    async def _connected(self) -> _Replies:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(_Replies, "127.0.0.1", self._port))[1]

    async def open(self) -> None:
        """Connect, and learn what the answer is."""
        for _ in range(CONNECTIONS):
            made = await self._connected()
            self._idle.put_nowait(made)
        for _ in range(2):  # computed, then from memory
            self.payload = await made.post(self._request)

    async def ask(self, n: int) -> bool:
        """Ask once; return whether the answer is the right one."""
        connection = await self._idle.get()
        if connection.is_over:  # it was idle for too long, while the other server had the load
            connection = await self._connected()
        try:
            return bool(self.payload) and await connection.post(self._request) == self.payload
        finally:
            self._idle.put_nowait(connection)


class GrpcAsked:
    """Asks over two channels of gRPC."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.payload = b""

    async def open(self) -> None:
        """Connect, and learn what the answer is."""
        import grpc

        from service.proto.planner.v1 import planner_pb2 as pb

        self._message = pb.SolveRequest(
            model=pb.Document(name=CACHED["model"]), cluster=pb.Document(name=CACHED["cluster"])
        ).SerializeToString()
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        address = f"127.0.0.1:{self._port}"
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(2)]
        self._calls = [x.unary_unary("/planner.v1.Planner/Solve") for x in self._channels]
        self._metadata = (("authorization", f"Bearer {TOKEN}"),)
        for call in self._calls:
            self.payload = await call(self._message, metadata=self._metadata)

    async def ask(self, n: int) -> bool:
        """Ask once; return whether the answer is the right one."""
        import grpc

        with suppress(grpc.aio.AioRpcError):
            call = self._calls[n % len(self._calls)]
            return bool(await call(self._message, metadata=self._metadata) == self.payload)
        return False


async def _load(asked: Asked, measured: Measured, rate_per_s: float, seconds: float) -> None:
    """Send requests when they are due, for so long."""

    async def one(n: int, due_s: float) -> None:
        measured.n_wrong += not await asked.ask(n)
        measured.seconds.append(time.perf_counter() - due_s)

    tasks: set[asyncio.Task[None]] = set()
    before_s, begun_s, n = cpu_s(measured.pid), time.perf_counter(), 0
    while n < rate_per_s * seconds:
        due_s = begun_s + n / rate_per_s
        wait_s = due_s - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        task = asyncio.create_task(one(n, due_s))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        n += 1
    while tasks:
        await asyncio.gather(*tasks)
    measured.wall_s += time.perf_counter() - begun_s
    measured.cpu_s += cpu_s(measured.pid) - before_s


async def by_turns(
    servers: dict[str, tuple[Asked, Measured]], rate_per_s: float, seconds: float
) -> None:
    """Load all servers for so long each, by turns."""
    for asked, measured in servers.values():  # that all is warm
        await _load(asked, Measured(measured.pid), min(200.0, rate_per_s), 1.0)
    left_s = seconds
    while left_s > 0:
        for asked, measured in servers.values():
            await _load(asked, measured, rate_per_s, min(TURN_S, left_s))
        left_s -= TURN_S


def grpc_control(payload: Path) -> None:
    """Serve the bytes of a file to every call: as little as gRPC can do in Python."""
    import grpc

    body = payload.read_bytes()

    async def answer(request: bytes, context: Any) -> bytes:
        return body

    async def run() -> None:
        server = grpc.aio.server()
        method = grpc.unary_unary_rpc_method_handler(answer)
        handler = grpc.method_handlers_generic_handler("planner.v1.Planner", {"Solve": method})
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(f"bare at grpc://127.0.0.1:{port} ", file=sys.stderr, flush=True)
        await server.wait_for_termination()

    asyncio.run(run())


def _port_of(address: str) -> int:
    return int(address.rstrip("/").rpartition(":")[2])


async def _measured(
    kind: str, made: Callable[[int], Any], pid: int, port: int, folder: Path, given: Any
) -> dict[str, dict[str, float]]:
    ours = made(port)
    await ours.open()
    if not ours.payload:
        raise RuntimeError(f"{kind}: the service does not answer")
    payload = folder / kind
    payload.write_bytes(ours.payload)
    if kind == "http":
        program = str(Path(__file__).with_name("bench_service.py"))
        command = [sys.executable, program, "--reference", str(payload)]
    else:
        command = [sys.executable, __file__, "--control", str(payload)]
    with started(command, "bare at ") as (control_pid, address):
        control = made(_port_of(address))
        await control.open()
        servers: dict[str, tuple[Asked, Measured]] = {
            "control": (control, Measured(control_pid)),
            "service": (ours, Measured(pid)),
        }
        await by_turns(servers, given.rate, given.seconds)
    return {name: measured.figures() for name, (_, measured) in servers.items()}


def verdicts(kind: str, found: dict[str, dict[str, float]]) -> list[str]:
    """Return what is missed."""
    ours, control = found["service"], found["control"]
    missed = []
    if ours["cpu_ms"] > MOST_CPU_MS[kind]:
        missed.append(f"{kind}: {ours['cpu_ms']:.2f} ms CPU, asked {MOST_CPU_MS[kind]}")
    if ours["errors"]:
        missed.append(f"{kind}: {ours['errors']:.0f} without the answer")
    if ours["p99_ms"] > MOST_RATIO * control["p99_ms"]:
        missed.append(f"{kind}: p99 {ours['p99_ms'] / control['p99_ms']:.2f} times the control")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--transport", default="http,grpc")
    parser.add_argument("--rate", type=float, default=1_000.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load on each server")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--control", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.control:
        grpc_control(given.control)
        return 0
    kinds: dict[str, Any] = {"http": HttpAsked, "grpc": GrpcAsked}
    rows, missed = {}, []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="planner-bench-")))
        tokens = folder / "tokens"
        tokens.write_text(f"caller solve {TOKEN}\n")
        grpc_port = free_port()
        pid, address = stack.enter_context(serve(folder, tokens, 1, grpc_port))
        for kind in given.transport.split(","):
            port = grpc_port if kind == "grpc" else _port_of(address)
            load_before = os.getloadavg()[0]
            found = asyncio.run(_measured(kind, kinds[kind], pid, port, folder, given))
            size = (folder / kind).stat().st_size
            rows[kind] = {**found, "answer_bytes": size, "load": load_before}
            print(f"{kind}: {size:,} bytes, load of the machine {load_before:.1f} before")
            for name, row in found.items():
                print(
                    f"  {name:8s}{row['requests']:>8.0f} requests {row['per_s']:>7.0f}/s"
                    f"  CPU {row['cpu_ms']:.3f} ms  p50 {row['p50_ms']:.2f} p99"
                    f" {row['p99_ms']:.2f} ms  errors {row['errors']:.0f}",
                    flush=True,
                )
            missed += verdicts(kind, found)
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=1) + "\n")
    if missed:
        print("missed: " + "; ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
