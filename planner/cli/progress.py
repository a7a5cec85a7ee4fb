"""One line of progress on a terminal: rate, elapsed, remaining, and the best so far."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from planner.cli.arguments import short_time

AFTER_S = 0.5
"""What takes less needs no line."""
EVERY_S = 0.1
"""A line is drawn anew at most so often."""
BAR_WIDTH = 20
SIZES = "sizes"
"""What is counted while a curve is computed, and what a service calls that."""


class TerminalProgress:
    """Shows how far a search is, on a terminal alone.

    Called with (done, total), a total of 0 where it is open; `found` is told the best step time so
    far, seconds. Where the total changes something else begins, and its time is counted anew.
    """

    def __init__(
        self,
        what: str = "searching",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._stream, self._clock = what, stream or sys.stderr, clock
        self._start_s = clock()
        self._next_s = self._start_s + AFTER_S
        self._best_s: float | None = None
        self._is_drawn = False
        self._total: int | None = None

    def found(self, step_s: float) -> None:
        """Keep the step time of the best plan so far, seconds."""
        self._best_s = step_s if self._best_s is None else min(step_s, self._best_s)

    def __call__(self, done: int, total: int) -> None:
        """Draw the line, unless it was drawn just now; take it away at the end."""
        if not self._stream.isatty():
            return
        now_s = self._clock()
        if self._total not in (None, total):
            self._start_s = now_s
        self._total = total
        if total and done >= total:
            self.close()
        elif now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            text = search_progress_text(
                self._what, (done, total), now_s - self._start_s, self._best_s
            )
            columns = shutil.get_terminal_size((100, 24)).columns
            self._draw(f"\r\x1b[K{text[: columns - 1]}")
            self._is_drawn = True

    def close(self) -> None:
        """Take the line away."""
        if self._is_drawn:
            self._draw("\r\x1b[K")
            self._is_drawn = False

    def _draw(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def search_progress_text(
    what: str, done_of: tuple[int, int], elapsed_s: float, best_s: float | None = None
) -> str:
    """Return the line: the share that is done, its rate, and the time left at that rate.

    With a total of 0 the line counts what was tried, and tells no time left.

    >>> search_progress_text("searching", (25, 100), 2.0, 16.126)
    'searching [#####...............] 25%, 12.5 %/s, 2 s elapsed, 6 s left, best so far 16.13 s'
    >>> search_progress_text("trying", (25, 0), 2.0)
    'trying: 25 tried, 12.5/s, 2 s elapsed'
    """
    done, total = done_of
    if not total:
        rate = [f"{done / elapsed_s:.3g}/s"] if elapsed_s > 0 else []
        return ", ".join([f"{what}: {done:,} tried", *rate, f"{short_time(elapsed_s)} elapsed"])
    share = done / total if total else 1.0
    full = int(BAR_WIDTH * share)
    bar = f"[{'#' * full}{'.' * (BAR_WIDTH - full)}]"
    parts = [f"{what} {bar} {share:.0%}"]
    if share > 0 and elapsed_s > 0:
        parts.append(f"{100 * share / elapsed_s:.3g} %/s")
    parts.append(f"{short_time(elapsed_s)} elapsed")
    if share > 0:
        parts.append(f"{short_time(elapsed_s * (1 / share - 1))} left")
    if best_s is not None:
        parts.append(f"best so far {best_s:.2f} s")
    return ", ".join(parts)
