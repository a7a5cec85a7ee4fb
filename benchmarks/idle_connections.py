r"""Hold idle connections to a service without a token, and see who is still answered.

    ulimit -n 20000
    planner serve --token-file tokens.txt &
    python benchmarks/idle_connections.py --http 127.0.0.1:8642 --grpc 127.0.0.1:8643 \
        --probes 127.0.0.1:8644 --token TOKEN

A process of its own opens the sockets, from the same address as the callers, and opens those again
that the service closes, `--refill-per-s` a second. A third of them say nothing, a third begin a
request, and a third have had an answer. Meanwhile 24 probes and 22 calls with a token come, each
on a connection of its own, and over gRPC 22 new channels. Prints one line a kind: how many were
answered, and the slowest (s); then what the service has counted.
"""

import argparse
import contextlib
import http.client
import multiprocessing
import resource
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

N_PROBES, N_CALLS = 24, 22
TIMEOUT_S = 3.0
"""After which a probe or a call counts as not answered."""
QUESTION = b'{"model": "llama3-8b", "cluster": "h100-x8", "top": 1}'
BEGINNINGS = (b"", b"GET /livez HTTP/1.1\r\nHo", b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _opened(address: tuple[str, int], beginning: bytes) -> socket.socket | None:
    connection = socket.socket()
    connection.settimeout(1.0)
    try:
        connection.connect(address)
        connection.sendall(beginning)
    except OSError:
        connection.close()
        return None
    connection.setblocking(False)
    return connection


def hold(address: tuple[str, int], n: int, refill_per_s: float, ready: Any) -> None:
    """Hold `n` connections until this process is ended."""
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2
    )
    waiting = selectors.DefaultSelector()
    n_held = n_opened = 0
    started_s = time.monotonic()
    while True:
        allowed = n if not ready.is_set() else 1 + int(refill_per_s * 0.1)
        for _ in range(min(allowed, n - n_held)):
            n_opened += 1
            connection = _opened(address, BEGINNINGS[n_opened % 3])
            if connection is not None:
                waiting.register(connection, selectors.EVENT_READ)
                n_held += 1
            elif time.monotonic() - started_s > 30.0:
                break
        ready.set()
        end_s = time.monotonic() + 0.1
        while (left_s := end_s - time.monotonic()) > 0:
            for key, _ in waiting.select(left_s):
                ended: Any = key.fileobj
                with contextlib.suppress(OSError):
                    if ended.recv(65_536):
                        continue
                waiting.unregister(ended)
                ended.close()
                n_held -= 1


def probe(address: tuple[str, int]) -> bool:
    """Tell whether a probe is answered."""
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("GET", "/livez")
        return connection.getresponse().status == 200


def ask(address: tuple[str, int], token: str) -> bool:
    """Tell whether a call with a token is answered."""
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_S)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    with contextlib.closing(connection):
        connection.request("POST", "/v1/plans:solve", QUESTION, headers)
        return connection.getresponse().status == 200


def ask_grpc(address: tuple[str, int], token: str) -> bool:
    """Tell whether a call over a new channel is answered."""
    import grpc

    from service.proto.planner.v1 import planner_pb2 as pb
    from service.proto.planner.v1 import planner_pb2_grpc

    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel("{}:{}".format(*address), options) as channel:
        stub = planner_pb2_grpc.PlannerStub(channel)
        metadata = (("authorization", f"Bearer {token}"),)
        request = pb.GetVersionRequest()
        return bool(stub.GetVersion(request, timeout=TIMEOUT_S, metadata=metadata).version)


def tried(what: str, n: int, work: Callable[[], bool]) -> None:
    """Print how many of `n` tries were answered, and the slowest of them (s)."""
    n_answered, slowest_s, faults = 0, 0.0, []
    for _ in range(n):
        begun_s = time.monotonic()
        try:
            is_answered = work()
        except Exception as error:  # whatever came of it, it was no answer
            is_answered = False
            faults.append(type(error).__name__)
        if is_answered:
            n_answered += 1
            slowest_s = max(slowest_s, time.monotonic() - begun_s)
        time.sleep(max(0.0, 0.2 - (time.monotonic() - begun_s)))
    why = f" ({', '.join(faults)})" if faults else ""
    print(
        f"{what}: {n_answered} of {n} answered, the slowest in {slowest_s:.3f} s{why}", flush=True
    )


@contextlib.contextmanager
def attacked(address: tuple[str, int], n: int, refill_per_s: float) -> Any:
    """Hold `n` connections to an address meanwhile."""
    ready = multiprocessing.Event()
    holder = multiprocessing.Process(
        target=hold, args=(address, n, refill_per_s, ready), daemon=True
    )
    holder.start()
    ready.wait(120.0)
    try:
        yield
    finally:
        holder.kill()
        holder.join()


def counted(address: tuple[str, int], token: str) -> list[str]:
    """Return what the service says of its connections."""
    connection = http.client.HTTPConnection(*address, timeout=10.0)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        text = connection.getresponse().read().decode()
    return [line for line in text.splitlines() if line.startswith("planner_connections")]


def main() -> None:
    """Run the attack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--http", type=_address, default=("127.0.0.1", 8642))
    parser.add_argument("--grpc", type=_address)
    parser.add_argument("--probes", type=_address, help="listener of probes; that of HTTP without")
    parser.add_argument("--token", required=True)
    parser.add_argument("--sockets", type=int, default=4_500)
    parser.add_argument("--grpc-sockets", type=int, default=6_000)
    parser.add_argument("--refill-per-s", type=float, default=200.0)
    given = parser.parse_args()
    ask(given.http, given.token)
    with attacked(given.http, given.sockets, given.refill_per_s):
        tried("probes, HTTP listener", N_PROBES, lambda: probe(given.http))
        if given.probes:
            tried("probes, their listener", N_PROBES, lambda: probe(given.probes))
        tried("calls with a token", N_CALLS, lambda: ask(given.http, given.token))
    if given.grpc:
        with attacked(given.grpc, given.grpc_sockets, given.refill_per_s):
            tried("gRPC, new channels", N_CALLS, lambda: ask_grpc(given.grpc, given.token))
    print("\n".join(counted(given.http, given.token)))


if __name__ == "__main__":
    main()
