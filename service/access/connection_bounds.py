"""How many connections there may be, of all and of one address, and which of them end first.

A connection is idle while no request of it is answered. Where a new one is too many, the oldest
idle one ends for it: of its address, or of all. Only where none is idle the new one is refused.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Protocol

from service.access.auth import address_network
from service.telemetry.connection_tally import ConnectionTally


class OpenConnection(Protocol):
    """A connection, as far as it is bounded."""

    def end_idle(self) -> None:
        """End it, because others need its place."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Most connections of a listener, all of them and those of one address."""

    total: int
    per_address: int


class ConnectionBounds:
    """The open connections of a listener, and who has to go where they are too many."""

    def __init__(self, limits: ConnectionLimits, tally: ConnectionTally) -> None:
        self._limits, self._tally = limits, tally
        tally.measure = self.counts
        self._addresses: dict[OpenConnection, str] = {}
        self._idle: OrderedDict[OpenConnection, None] = OrderedDict()
        """The longest idle one first."""
        self._idle_of: dict[str, OrderedDict[OpenConnection, None]] = {}
        self._n_of: Counter[str] = Counter()

    def counts(self) -> dict[str, int]:
        """Return how many are open, by state."""
        return {"idle": len(self._idle), "busy": len(self._addresses) - len(self._idle)}

    def admit(self, connection: OpenConnection, address: str) -> bool:
        """Take a new connection, idle so far; False where there is no place for it.

        Others may end for it. Those of an IPv6 network of 64 bits count as one address.
        """
        owner = address_network(address)
        if self._n_of[owner] >= self._limits.per_address:
            reason, candidates = "address", self._idle_of.get(owner)
        elif len(self._addresses) >= self._limits.total:
            reason, candidates = "total", self._idle
        else:
            self._add(connection, owner)
            return True
        oldest = next(iter(candidates or ()), None)
        self._tally.note(owner, reason, was_refused=oldest is None)
        if oldest is None:
            return False
        self.forget(oldest)
        self._add(connection, owner)
        oldest.end_idle()
        return True

    def _add(self, connection: OpenConnection, owner: str) -> None:
        self._addresses[connection] = owner
        self._n_of[owner] += 1
        self.set_idle(connection)

    def set_busy(self, connection: OpenConnection) -> None:
        """Note that a request of a connection is answered."""
        owner = self._addresses.get(connection)
        if owner is None or connection not in self._idle:
            return
        del self._idle[connection]
        idle = self._idle_of[owner]
        del idle[connection]
        if not idle:
            del self._idle_of[owner]

    def set_idle(self, connection: OpenConnection) -> None:
        """Note that no request of a connection is answered from now on."""
        owner = self._addresses.get(connection)
        if owner is not None and connection not in self._idle:
            self._idle[connection] = None
            self._idle_of.setdefault(owner, OrderedDict())[connection] = None

    def renew(self, connection: OpenConnection) -> None:
        """Note that an idle connection was used just now."""
        self.set_busy(connection)
        self.set_idle(connection)

    def forget(self, connection: OpenConnection) -> None:
        """Forget a connection that has ended."""
        self.set_busy(connection)
        owner = self._addresses.pop(connection, None)
        if owner is None:
            return
        self._n_of[owner] -= 1
        if not self._n_of[owner]:
            del self._n_of[owner]
