"""Keys that wait to be worked on: each once, never by two workers, some of them later."""

import heapq
import threading
import time

Key = tuple[str, str]
"""Namespace and name of an object; the namespace is empty where it has none."""


class WorkQueue:
    """A queue of keys for several workers.

    A key that is added while it is worked on is worked on once more afterwards; so nothing that
    happened meanwhile is missed, and no key is in the hands of two.
    """

    def __init__(self) -> None:
        self._ready: dict[Key, None] = {}
        self._running: set[Key] = set()
        self._again: set[Key] = set()
        self._later: list[tuple[float, int, Key]] = []
        self._n_added = 0
        self._failures: dict[Key, int] = {}
        self._changed = threading.Condition()
        self._ended = False

    def add(self, key: Key, delay_s: float = 0.0) -> None:
        """Add a key, to be worked on now or after a while."""
        with self._changed:
            if delay_s > 0.0:
                self._n_added += 1  # keys need no order
                heapq.heappush(self._later, (time.monotonic() + delay_s, self._n_added, key))
            else:
                self._add(key)
            self._changed.notify_all()

    def _add(self, key: Key) -> None:
        if key in self._running:
            self._again.add(key)
        else:
            self._ready[key] = None

    def take(self) -> Key | None:
        """Return the next key once there is one; None once the queue has ended."""
        with self._changed:
            while not self._ended:
                now_s = time.monotonic()
                while self._later and self._later[0][0] <= now_s:
                    self._add(heapq.heappop(self._later)[2])
                if self._ready:
                    key = next(iter(self._ready))
                    del self._ready[key]
                    self._running.add(key)
                    return key
                self._changed.wait(self._later[0][0] - now_s if self._later else None)
            return None

    def done(self, key: Key) -> None:
        """Say that a key was worked on, and need not be again."""
        with self._changed:
            self._failures.pop(key, None)
            self._finish(key)

    def failed(self, key: Key, first_s: float, most_s: float) -> float:
        """Add a key again after a pause, which doubles with every failure; return it."""
        with self._changed:
            n = self._failures[key] = self._failures.get(key, 0) + 1
            self._finish(key)
        pause_s = min(first_s * 2.0 ** min(n - 1, 30), most_s)
        self.add(key, pause_s)
        return pause_s

    def _finish(self, key: Key) -> None:
        self._running.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._ready[key] = None
            self._changed.notify_all()

    def end(self) -> None:
        """Let every worker end."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
