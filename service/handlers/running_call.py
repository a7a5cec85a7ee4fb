"""What a call may use while it runs: its time, who is told of its progress, where it searches."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from searches.pricing.shared_work import SharedWork
from service.handlers.limits import DEFAULTS, RequestLimits
from service.handlers.partial_results import KeptRow, Rows

Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class RunningCall:
    """What a call may use besides its request; the answer depends on it where it is stopped."""

    settings: RequestLimits = DEFAULTS
    time_limit_s: float = 0.0
    """Seconds after which a search answers with the best so far, and says so; 0: the setting's."""
    end_s: float = math.inf
    """By the monotonic clock, when that is for all searches of one call."""
    stop: Stop | None = None
    """Asked now and then; true ends a search with the best so far."""
    progress: Callable[[Mapping[str, Any]], None] | None = None
    """Told `{"phase", "done", "total", "best_step_time_s"}`, the last None where it is not known.
    """
    executor: str = "serial"
    """Where searches run, one of `searches.executors.executor.NAMES`; the answer does not depend
    on it."""
    ray_address: str = ""
    shared: SharedWork | None = None
    """Tables that questions of one process share; the answer does not depend on it."""
    rows: Mapping[int, KeptRow] = field(default_factory=dict)
    """Rows of the answer that are there from before, by place: not computed again."""
    keep: Callable[[Rows], None] | None = None
    """Given rows of the answer as they come, for a later attempt to go on with."""
    spent_s: float = 0.0
    """Time in which those before were computed: it counts as time of this call."""


SHORT_LIMIT_S = 10.0
"""Limits from which on a search is seldom asked to stop: small steps between two looks cost time.
"""


def stop_of(running: RunningCall, asked_s: float = 0.0) -> Stop:
    """Return what ends a search: the caller, or the time limit."""
    from searches.search import Seldom

    end = min(running.end_s, time.monotonic() + time_left_s(running, asked_s))
    left_s = end - time.monotonic()

    def stop() -> bool:
        return time.monotonic() > end or (running.stop is not None and running.stop())

    return stop if left_s < SHORT_LIMIT_S else Seldom(stop)


def time_left_s(running: RunningCall, asked_s: float = 0.0) -> float:
    """Return the time that a call has left, seconds."""
    limits = (running.time_limit_s or running.settings.solve_s, asked_s)
    return max(0.0, min(x for x in limits if x > 0.0) - running.spent_s)


class SearchProgress:
    """Tells how far a search is, with the best step time that it has found so far."""

    def __init__(self, tell: Callable[[Mapping[str, Any]], None], phase: str) -> None:
        self._tell, self._phase = tell, phase
        self._best_s: float | None = None

    def __call__(self, done: int, total: int) -> None:
        """Tell how many of all parts are done."""
        self._tell(
            {"phase": self._phase, "done": done, "total": total, "best_step_time_s": self._best_s}
        )

    def found(self, step_s: float) -> None:
        """Note the step time of the best plan of a part of the search."""
        self._best_s = step_s if self._best_s is None else min(step_s, self._best_s)


def search_progress(running: RunningCall, phase: str) -> SearchProgress | None:
    """Return what a search tells its progress to; None where nobody asks."""
    return SearchProgress(running.progress, phase) if running.progress else None
