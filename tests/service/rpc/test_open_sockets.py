"""Connections of the gRPC port that are too many: the oldest without a call end."""

import asyncio
import socket
import time

import pytest

from service.access.connection_bounds import ConnectionLimits
from service.rpc import open_sockets
from service.rpc.open_sockets import OpenSocket, SocketGuard, end_socket, has_open_files
from service.telemetry.connection_tally import ConnectionTally
from tests.service.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(not has_open_files(), reason="no /proc/self/fd on this system")


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def connected(listener: socket.socket, n: int) -> list[tuple[socket.socket, socket.socket]]:
    """Return pairs of a caller's end and the service's."""
    pairs = []
    for _ in range(n):
        caller = socket.create_connection(listener.getsockname(), timeout=PATIENCE_S)
        pairs.append((caller, listener.accept()[0]))
    return pairs


def ends(caller: socket.socket) -> bool:
    caller.settimeout(0.05)
    try:
        return caller.recv(1) == b""
    except TimeoutError:
        return False


def test_sockets_of_the_port_are_found_and_one_is_ended(listener):
    port = listener.getsockname()[1]
    (first, own), (second, other) = connected(listener, 2)
    found = open_sockets.open_sockets(port)
    assert {each.file for each in found} == {own.fileno(), other.fileno()}
    assert {each.peer[1] for each in found} == {s.getsockname()[1] for s in (first, second)}
    which = next(each for each in found if each.file == own.fileno())
    assert not end_socket(OpenSocket(other.fileno(), which.peer), port)  # the number of another
    assert end_socket(which, port)
    assert ends(first)
    assert not ends(second)
    for each in (first, own, second, other):
        each.close()


def test_the_longest_idle_end_until_some_places_are_free(listener, monkeypatch):
    monkeypatch.setattr(open_sockets, "LOOK_S", 0.02)
    tally = ConnectionTally("grpc")
    guard = SocketGuard(listener.getsockname()[1], ConnectionLimits(100, 8), tally)
    pairs = connected(listener, 8)
    busy = pairs[0][0].getsockname()

    async def look() -> None:
        watching = asyncio.create_task(guard.watch())
        with guard.served(busy[:2]):
            await asyncio.sleep(0.1)
            assert tally.measure() == {"idle": 7, "busy": 1}
            pairs.extend(connected(listener, 2))
            end_s = time.monotonic() + PATIENCE_S
            while not tally.ended["address"] and time.monotonic() < end_s:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.1)
        watching.cancel()

    asyncio.run(look())
    # Ten are two above eight, and one place of eight is left free: three of those without a call.
    assert [ends(caller) for caller, _ in pairs] == [i in (1, 2, 3) for i in range(10)]
    assert dict(tally.ended) == {"address": 3}
    for pair in pairs:
        for each in pair:
            each.close()
