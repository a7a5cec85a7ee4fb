"""What a process that works for long holds of memory, and gives back.

Answers make and free arrays of all sizes, and what the C library then has between those that stay
counts as memory of the process: after thousands of questions as much as all tables that are kept.
"""

import contextlib
import ctypes
import gc
import os

SLACK_BYTES = 32_000_000
"""Growth after which a process gives back what it does not use: a millisecond, and the time to
look for cycles, after many answers."""


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as sizes:
            return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def give_back() -> None:
    """Free what is unreachable, and give free memory back to the system where glibc has any."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Tidy:
    """Gives memory back whenever a process has grown by `SLACK_BYTES` since the last time.

    What cannot be given back is in use: it is looked at again after as much growth more.
    """

    def __init__(self) -> None:
        self._left_bytes = 0
        """Resident memory after the last time."""

    def after(self, now_bytes: int) -> bool:
        """Give memory back where `now_bytes` is too much more than was left; tell whether."""
        if now_bytes - self._left_bytes < SLACK_BYTES:
            return False
        give_back()
        self._left_bytes = resident_bytes()
        return True
