"""Who is let in and when: answers in memory, rates of callers, turns at the workers."""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

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


@dataclass(frozen=True, slots=True)
class TurnShare:
    """Whose budget a slot is of, and how urgent it is."""

    group: str = ""
    weight: float = 1.0
    priority: int = 1
    """The smaller the earlier."""


class _Line(NamedTuple):
    """Requests of one caller and one priority that wait."""

    priority: int
    group: str
    weight: float
    caller: str


class Turns:
    """Hands out a number of slots; those who wait get them in turn.

    A higher priority is first. Within one, groups share the time of slots by weight, as
    `service.jobs.shares` has it for jobs, and callers of a group take turns: one with many
    requests delays the others by one request at a time. Some slots are spare: only a caller who
    holds none gets one, so that the long requests of one caller do not keep the others waiting.
    """

    def __init__(self, n_slots: int, most_waiting: int, n_spare: int = 0) -> None:
        self._n_slots, self._n_spare = n_slots, n_spare
        self._most_waiting = most_waiting
        self._held: Counter[str] = Counter()
        self._held_of: Counter[tuple[int, str]] = Counter()
        """By priority and group."""
        self._waiting: OrderedDict[_Line, deque[asyncio.Future[None]]] = OrderedDict()
        self._clocks: dict[tuple[int, str], float] = {}
        self._now_s: dict[int, float] = {}
        """Clock of a priority, where a group that joins it begins."""
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

    async def take(self, caller: str, share: TurnShare = TurnShare()) -> None:
        """Wait for a slot; `Refusal` 429 where too many wait already, none of them less urgent."""
        self._join(share)
        if self._may(caller):
            self._grant(_Line(share.priority, share.group, share.weight, caller))
            return
        if self.n_waiting >= self._most_waiting and not self._displaced(share.priority):
            raise self._too_many()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = _Line(share.priority, share.group, share.weight, caller)
        self._waiting.setdefault(line, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free(caller, share)  # it was given to us while we left
            else:
                self._leave(line, turn)
            raise

    def give(self, held_s: float, caller: str, share: TurnShare = TurnShare()) -> None:
        """Give a slot back that a caller has held for `held_s`."""
        self.mean_s += (held_s - self.mean_s) * (SMOOTHING if self.mean_s else 1.0)
        which = (share.priority, share.group)
        self._clocks[which] = self._clocks.get(which, 0.0) + held_s / share.weight
        self._free(caller, share)

    def _too_many(self) -> Refusal:
        return overloaded(f"{self.n_waiting} requests wait", self.wait_s())

    def _join(self, share: TurnShare) -> None:
        """Let a group that has nothing to do begin at the time that its priority has."""
        which = (share.priority, share.group)
        if self._held_of[which] or any(line[:2] == which for line in self._waiting):
            return
        now_s = self._now_s.get(share.priority, 0.0)
        self._clocks[which] = max(self._clocks.get(which, 0.0), now_s)

    def _displaced(self, priority: int) -> bool:
        """Refuse the newest of the least urgent requests that wait; False where none is less."""
        last = max(reversed(self._waiting), key=lambda line: line.priority, default=None)
        if last is None or last.priority <= priority:
            return False
        line = self._waiting[last]
        turn = line.pop()
        if not line:
            del self._waiting[last]
        if not turn.done():
            turn.set_exception(self._too_many())
        return True

    def _grant(self, line: _Line) -> None:
        which = (line.priority, line.group)
        self._held[line.caller] += 1
        self._held_of[which] += 1
        now_s, clock_s = self._now_s.get(line.priority, 0.0), self._clocks.get(which, 0.0)
        self._now_s[line.priority] = max(now_s, clock_s)

    def _next(self) -> _Line | None:
        """Return the line whose turn it is; of equal ones the one that waited longest."""
        best, first = None, (0, 0.0)
        for line in self._waiting:
            if best is not None and line.priority > first[0]:
                continue
            if not self._may(line.caller):
                continue
            which = (line.priority, line.group)
            ahead_s = self._held_of[which] * self.mean_s / line.weight
            rank = (line.priority, self._clocks.get(which, 0.0) + ahead_s)
            if best is None or rank < first:
                best, first = line, rank
        return best

    def _free(self, caller: str, share: TurnShare) -> None:
        which = (share.priority, share.group)
        self._held[caller] -= 1
        self._held_of[which] -= 1
        if not self._held[caller]:
            del self._held[caller]
        if not self._held_of[which]:
            del self._held_of[which]
        while (next_one := self._next()) is not None:
            line = self._waiting[next_one]
            turn = line.popleft()
            self._waiting.move_to_end(next_one)
            if not line:
                del self._waiting[next_one]
            if not turn.done():
                self._grant(next_one)
                turn.set_result(None)

    def _leave(self, which: _Line, turn: asyncio.Future[None]) -> None:
        line = self._waiting.get(which)
        if line and turn in line:
            line.remove(turn)
            if not line:
                del self._waiting[which]
