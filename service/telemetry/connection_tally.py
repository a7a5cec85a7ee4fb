"""What became of the connections of one listener: for metrics, and a line in the log."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

log = logging.getLogger("planner.service")

LOGGED_S = 60.0
"""Least time between two lines of the log about one listener."""


@dataclass(slots=True)
class ConnectionTally:
    """What became of the connections of one transport."""

    transport: str
    measure: Callable[[], Mapping[str, int]] = dict
    """Returns how many are open, by state: `idle`, `busy`."""
    monotonic: Callable[[], float] = time.monotonic
    ended: Counter[str] = field(default_factory=Counter)
    """Idle ones that ended for others, by reason: `address` or `total`."""
    refused: Counter[str] = field(default_factory=Counter)
    """New ones that found no place, by the same reasons."""
    _logged_s: float = -LOGGED_S
    _n_logged: int = 0

    def note(self, address: str, reason: str, was_refused: bool) -> None:
        """Count a connection that ended or was refused; a line in the log, once a minute."""
        (self.refused if was_refused else self.ended)[reason] += 1
        now_s = self.monotonic()
        if now_s - self._logged_s < LOGGED_S:
            return
        n = self.ended.total() + self.refused.total()
        fields = {
            "transport": self.transport,
            "reason": reason,
            "address": address,
            "ended": self.ended.total(),
            "refused": self.refused.total(),
            "since_last_line": n - self._n_logged,
        }
        self._logged_s, self._n_logged = now_s, n
        log.warning("too many connections: the oldest idle ones end", extra={"fields": fields})
