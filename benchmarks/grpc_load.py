"""Load on the gRPC port: a question that was answered before, again and again, at a given rate.

    planner serve --workers 1 &
    python benchmarks/grpc_load.py 127.0.0.1:8643 --rate 1000 --seconds 10

Requests are sent when they are due, whether or not earlier ones are answered, and latencies count
from when they were due: a server that falls behind cannot hide it. With --rate 0 as many as
--callers wait at a time, each sending its next when it is answered.
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from typing import Any

import grpc

from service.proto.planner.v1 import planner_pb2 as pb

METHOD = "/planner.v1.Planner/Solve"


async def measure(
    address: str,
    *,
    rate_per_s: float = 1_000.0,
    seconds: float = 10.0,
    connections: int = 2,
    callers: int = 16,
    token: str = "",
    form: str = "message",
    model: str = "llama3-70b",
    cluster: str = "h100-x512",
) -> dict[str, Any]:
    """Return latencies in milliseconds and what was answered, by status."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    asked = pb.SolveRequest(
        model=pb.Document(name=model),
        cluster=pb.Document(name=cluster),
        delivery=pb.Delivery(form=pb.Delivery.Form.Value(f"FORM_{form.upper()}")),
    ).SerializeToString()
    channels = [
        grpc.aio.insecure_channel(
            address,
            options=[
                ("grpc.max_receive_message_length", -1),
                ("grpc.use_local_subchannel_pool", 1),  # a connection of its own
            ],
        )
        for _ in range(connections)
    ]
    calls = [each.unary_unary(METHOD) for each in channels]  # bytes in, bytes out
    first = await calls[0](asked, metadata=metadata)
    for call in calls:
        assert await call(asked, metadata=metadata) == first
    latencies: list[float] = []
    statuses: Counter[str] = Counter()

    async def ask(n: int, due_s: float) -> None:
        try:
            found = await calls[n % connections](asked, metadata=metadata)
            statuses["OK" if found == first else "OTHER ANSWER"] += 1
        except grpc.aio.AioRpcError as error:
            statuses[f"{error.code().name}: {error.details()}"[:160]] += 1
        latencies.append(time.perf_counter() - due_s)

    begun_s = time.perf_counter()
    if rate_per_s:
        tasks = set()
        n = 0
        while (due_s := begun_s + n / rate_per_s) < begun_s + seconds:
            wait_s = due_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            task = asyncio.create_task(ask(n, due_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            n += 1
        await asyncio.gather(*tasks)
    else:

        async def caller(n: int) -> None:
            while time.perf_counter() - begun_s < seconds:
                await ask(n, time.perf_counter())

        await asyncio.gather(*(caller(n) for n in range(callers)))
    spent_s = time.perf_counter() - begun_s
    for channel in channels:
        await channel.close()
    latencies.sort()
    at = {
        f"p{100 * q:g}_ms": latencies[min(len(latencies) - 1, int(q * len(latencies)))] * 1e3
        for q in (0.5, 0.9, 0.99, 0.999)
    }
    return {
        "requests": len(latencies),
        "per_s": len(latencies) / spent_s,
        **at,
        "max_ms": latencies[-1] * 1e3,
        "answer_bytes": len(first),
        "statuses": dict(statuses),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("address", help="HOST:PORT")
    parser.add_argument("--rate", type=float, default=1_000.0, help="a second; 0: as many as go")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--callers", type=int, default=16, help="with --rate 0")
    parser.add_argument("--token", default="")
    parser.add_argument("--form", choices=["message", "json"], default="message")
    given = parser.parse_args()
    found = asyncio.run(
        measure(
            given.address,
            rate_per_s=given.rate,
            seconds=given.seconds,
            connections=given.connections,
            callers=given.callers,
            token=given.token,
            form=given.form,
        )
    )
    print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}))


if __name__ == "__main__":
    main()
