"""Who is let in and when: answers in memory, rates of callers, turns at the workers."""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from service.handlers.problems import Refusal

Value = TypeVar("Value")

MAX_CALLERS = 10_000
"""Callers whose rate is remembered."""
SMOOTHING = 0.1
"""Weight of the last measurement in a mean."""
ENTRY_BYTES = 1_000
"""Memory of an entry of the cache besides its answer."""


def overloaded(detail: str, retry_after_s: float) -> Refusal:
    """Return the polite refusal of a service that is busy."""
    return Refusal(
        429, "overloaded", "the service is busy", detail, retry_after_s=max(0.1, retry_after_s)
    )


class Cache(Generic[Value]):
    """The answers used last, bounded in bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: OrderedDict[bytes, tuple[Value, int]] = OrderedDict()
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Value | None:
        """Return what is kept under a key."""
        result = self._entries.get(key)
        if result is None:
            return None
        self._entries.move_to_end(key)
        return result[0]

    def put(self, key: bytes, value: Value, n_bytes: int) -> None:
        """Keep a value of a size, and drop those that were not used for longest."""
        n_bytes += ENTRY_BYTES
        if key in self._entries or n_bytes > self._most_bytes // 4:
            return
        self._entries[key] = value, n_bytes
        self.n_bytes += n_bytes
        while self.n_bytes > self._most_bytes:
            self.n_bytes -= self._entries.popitem(last=False)[1][1]


class Rates:
    """A bucket of tokens for every caller: `burst` at most, `per_s` more every second."""

    def __init__(
        self, per_s: float, burst: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s, self._burst, self._monotonic = per_s, float(burst), monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def has(self, caller: str) -> bool:
        """Tell whether there is a token to take."""
        tokens, then_s = self._buckets.get(caller, (self._burst, 0.0))
        return tokens + (self._monotonic() - then_s) * self._per_s >= 1.0

    def take(self, caller: str) -> None:
        """Take a token; `Refusal` 429 with the time until there is one."""
        now_s = self._monotonic()
        tokens, then_s = self._buckets.pop(caller, (self._burst, now_s))
        tokens = min(self._burst, tokens + (now_s - then_s) * self._per_s)
        enough = tokens >= 1.0
        self._buckets[caller] = (tokens - enough, now_s)
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        if not enough:
            raise overloaded(
                f"you send more than {self._per_s:g} requests a second",
                (1.0 - tokens) / self._per_s,
            )


class Turns:
    """Hands out a number of slots; those who wait get them in turn, caller by caller.

    So a caller with many requests delays the others by one request at a time. Some slots are
    spare: only a caller who holds none gets one, so that the long requests of one caller do not
    keep the others waiting.
    """

    def __init__(self, n_slots: int, most_waiting: int, n_spare: int = 0) -> None:
        self._n_slots, self._n_spare = n_slots, n_spare
        self._most_waiting = most_waiting
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self.mean_s = 0.0
        """Mean time for which a slot is held."""

    @property
    def n_waiting(self) -> int:
        """Requests that wait."""
        return sum(len(line) for line in self._waiting.values())

    @property
    def n_held(self) -> int:
        """Slots in use."""
        return self._held.total()

    def wait_s(self) -> float:
        """Return the likely time until a new request would get a slot."""
        return (self.n_waiting + 1) * self.mean_s / self._n_slots

    def _may(self, caller: str) -> bool:
        n_held = self.n_held
        n_spare = 0 if self._held[caller] else self._n_spare
        return n_held < self._n_slots + n_spare

    async def take(self, caller: str) -> None:
        """Wait for a slot; `Refusal` 429 where too many wait already."""
        if self._may(caller):
            self._held[caller] += 1
            return
        if self.n_waiting >= self._most_waiting:
            raise overloaded(f"{self.n_waiting} requests wait", self.wait_s())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free(caller)  # it was given to us while we left
            else:
                self._leave(caller, turn)
            raise

    def give(self, held_s: float, caller: str) -> None:
        """Give a slot back that a caller has held for `held_s`."""
        self.mean_s += (held_s - self.mean_s) * (SMOOTHING if self.mean_s else 1.0)
        self._free(caller)

    def _free(self, caller: str) -> None:
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        while next_one := next((name for name in self._waiting if self._may(name)), None):
            line = self._waiting[next_one]
            turn = line.popleft()
            self._waiting.move_to_end(next_one)
            if not line:
                del self._waiting[next_one]
            if not turn.done():
                self._held[next_one] += 1
                turn.set_result(None)

    def _leave(self, caller: str, turn: asyncio.Future[None]) -> None:
        line = self._waiting.get(caller)
        if line and turn in line:
            line.remove(turn)
            if not line:
                del self._waiting[caller]
