"""Who holds a lease or a key, and whether that process is gone or silent."""

import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def this_process() -> str:
    """Return the name of this process: machine, space of process ids, id and when it started."""
    return f"{_place()}/{os.getpid()}/{_start_of(os.getpid())}/{secrets.token_hex(4)}"


def is_gone(holder: str) -> bool:
    """Tell whether a process is known to have ended: only one of this machine ever is."""
    place, _, rest = holder.partition("/")
    pid, _, rest = rest.partition("/")
    started = rest.partition("/")[0]
    if place != _place() or not pid.isdigit() or not started:
        return False
    return _start_of(int(pid)) != started


def new_claim() -> str:
    """Return a random name of a call of this process, from which others tell when it is gone."""
    start = _start_of(os.getpid())
    return f"{_place_hash()}.{os.getpid():x}.{int(start or 0):x}.{secrets.token_hex(4)}"


def is_abandoned(claim: str) -> bool:
    """Tell whether the process of a `new_claim` has ended: only one of this machine ever is."""
    place, _, rest = claim.partition(".")
    pid, _, rest = rest.partition(".")
    start = rest.partition(".")[0]
    if place != _place_hash() or start in ("", "0"):
        return False
    try:
        return _start_of(int(pid, 16)) != str(int(start, 16))
    except ValueError:
        return False


def _place_hash() -> str:
    return hashlib.sha256(_place().encode()).hexdigest()[:6]


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _start_of(pid: int) -> str:
    """Return when a process started, in ticks since boot; empty where it is not there."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if status[0] in "ZX" else status[19]


class Watcher:
    """What this process has seen of the leases of others, and since when."""

    def __init__(self, lease_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease_s
        self._monotonic = monotonic
        self._seen: dict[str, tuple[tuple[int, int], float]] = {}
        self._looked_s = monotonic()

    def abandoned(self, leases: Iterable[tuple[str, int, int, str]]) -> list[tuple[str, int, int]]:
        """Return those of (job, fence, beat, holder) whose holder is gone or has been silent.

        `leases` are all that there are now; what is not among them is forgotten. To be called
        every third of a lease: after a longer pause, because the database was away or this
        process was, nobody could send a heartbeat that was seen, and all start anew.
        """
        now_s = self._monotonic()
        if now_s - self._looked_s > self._lease_s / 2:
            self._seen.clear()
        self._looked_s = now_s
        seen, results = {}, []
        for job_id, fence, beat, holder in leases:
            before = self._seen.get(job_id)
            since_s = before[1] if before and before[0] == (fence, beat) else now_s
            seen[job_id] = ((fence, beat), since_s)
            if now_s - since_s >= self._lease_s or is_gone(holder):
                results.append((job_id, fence, beat))
        self._seen = seen
        return results
