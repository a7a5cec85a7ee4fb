"""Connections of the gRPC port: counted, and the oldest idle ones ended where they are too many.

gRPC bounds its connections by refusing new ones, so that whoever holds many keeps all others out,
and it shows none of them. Its sockets are those of this process: they are found among its open
files, and one is ended as its caller could, by shutting it down. Where the system has no
/proc/self/fd nothing is found, and the bound of gRPC itself holds.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from service.access.auth import address_network
from service.access.connection_bounds import ConnectionLimits
from service.telemetry.connection_tally import ConnectionTally

log = logging.getLogger("planner.service")

LOOK_S = 0.25
"""Time between two looks at the sockets."""
ROOM = 8
"""Least part of the places that is free after a look, as a divisor: for those that come next."""
FOLDER = "/proc/self/fd"


@dataclass(frozen=True, slots=True)
class OpenSocket:
    """A connection of the port."""

    file: int
    peer: tuple[str, int]


def has_open_files() -> bool:
    """Tell whether the system shows the open files of this process."""
    return os.path.isdir(FOLDER)


def open_sockets(port: int) -> list[OpenSocket]:
    """Return the connections of this process that came to a port; none where it is not known."""
    try:
        files = [int(name) for name in os.listdir(FOLDER)]
    except OSError:
        return []
    return [found for file in files if (found := _socket_at(file, port)) is not None]


def _socket_at(file: int, port: int) -> OpenSocket | None:
    try:
        # Read as one of IPv6: the longer addresses, and those of IPv4 fit in.
        seen = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=file)
    except OSError:  # no socket, or gone
        return None
    try:
        own = seen.getsockname()
        if not isinstance(own, tuple) or own[1] != port:
            return None
        peer = seen.getpeername()
        return OpenSocket(file, (str(peer[0]), int(peer[1])))
    except (OSError, IndexError):  # one that listens, or is of another kind
        return None
    finally:
        seen.detach()  # the file stays whose it is


def end_socket(which: OpenSocket, port: int) -> bool:
    """End a connection as its caller could; False where it is gone meanwhile."""
    try:
        file = os.dup(which.file)
    except OSError:
        return False
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=file) as own:
        # The number may be of another file by now: this one is looked at once more.
        if _socket_at(file, port) != OpenSocket(file, which.peer):
            return False
        with contextlib.suppress(OSError):
            own.shutdown(socket.SHUT_RDWR)
        return True


def plain_address(address: str) -> str:
    """Return an address as one of IPv4 where it is written as one of IPv6."""
    return address.removeprefix("::ffff:").partition("%")[0]


class SocketGuard:
    """Ends the oldest idle connections of the port where there are too many."""

    def __init__(self, port: int, limits: ConnectionLimits, tally: ConnectionTally) -> None:
        self._port, self._limits, self._tally = port, limits, tally
        self._calls: Counter[tuple[str, int]] = Counter()
        """Calls that are served, by the peer of their connection."""
        self._recent: set[tuple[str, int]] = set()
        """Peers of calls that ended since the last look."""
        self._idle_s: dict[tuple[str, int], float] = {}
        """When a connection was first seen, or last seen with a call."""
        self._ended: set[tuple[str, int]] = set()
        """Peers of connections that were ended, as long as gRPC has not closed them."""
        tally.measure = self.counts

    @contextlib.contextmanager
    def served(self, peer: tuple[str, int]) -> Iterator[None]:
        """Keep the connection of a call meanwhile."""
        self._calls[peer] += 1
        try:
            yield
        finally:
            self._calls[peer] -= 1
            if not self._calls[peer]:
                del self._calls[peer]
            if len(self._recent) < self._limits.total:
                self._recent.add(peer)

    def counts(self) -> dict[str, int]:
        """Return how many connections there are, by state."""
        found = open_sockets(self._port)
        n_busy = sum((plain_address(each.peer[0]), each.peer[1]) in self._calls for each in found)
        return {"idle": len(found) - n_busy, "busy": n_busy}

    async def watch(self) -> None:
        """Look at the connections now and then, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look()
            except OSError as error:
                log.warning("the connections of gRPC cannot be counted: %s", error.strerror)

    async def _look(self) -> None:
        recent, self._recent = self._recent, set()
        least = min(self._limits.total, self._limits.per_address)
        if not has_open_files() or len(os.listdir(FOLDER)) <= least:
            self._idle_s = {}
            return
        every = await asyncio.to_thread(open_sockets, self._port)
        self._ended &= {each.peer for each in every}
        found = [each for each in every if each.peer not in self._ended]
        now_s, before = time.monotonic(), self._idle_s
        self._idle_s = {}
        for each in found:
            peer = (plain_address(each.peer[0]), each.peer[1])
            is_used = peer in self._calls or peer in recent
            self._idle_s[peer] = now_s if is_used else before.get(peer, now_s)
        for each, reason in self._surplus(found):
            peer = (plain_address(each.peer[0]), each.peer[1])
            if peer not in self._calls and end_socket(each, self._port):
                self._ended.add(each.peer)
                self._tally.note(address_network(peer[0]), reason, was_refused=False)

    def _surplus(self, found: list[OpenSocket]) -> list[tuple[OpenSocket, str]]:
        """Return the connections that have to go, and why: of an address, or of all."""
        owners = {each: address_network(plain_address(each.peer[0])) for each in found}
        n_at_first = Counter(owners.values())
        n_of, n_left = Counter(n_at_first), len(found)
        surplus: list[tuple[OpenSocket, str]] = []
        for each in self._idle_first(found):
            owner = owners[each]
            if _is_over(n_of[owner], self._limits.per_address, n_at_first[owner]):
                reason = "address"
            elif _is_over(n_left, self._limits.total, len(found)):
                reason = "total"
            else:
                continue
            n_of[owner] -= 1
            n_left -= 1
            surplus.append((each, reason))
        return surplus

    def _idle_first(self, found: list[OpenSocket]) -> list[OpenSocket]:
        """Return the connections without a call, the longest idle first.

        Of those that were seen at the same look the one with the lower file number came first:
        the system gives the lowest that is free.
        """
        idle = [
            (self._idle_s[peer], each.file, each)
            for each in found
            if (peer := (plain_address(each.peer[0]), each.peer[1])) not in self._calls
        ]
        return [each for _, _, each in sorted(idle, key=lambda entry: entry[:2])]


def _is_over(n_left: int, maximum: int, n_at_first: int) -> bool:
    """Tell whether more have to go: where there were too many, until some places are free."""
    return n_at_first > maximum and n_left > maximum - maximum // ROOM
