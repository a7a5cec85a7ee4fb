"""Who follows the jobs of a service whose processes are killed: a watcher, and a receiver.

For scripts/chaos: in the end the watcher has seen every change once, and the receiver was told of
the end of every job, at least once and under one id.
"""

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator
from typing import Any

from tests.service.webhooks.receiving import Receiver


class Watcher:
    """Watches all jobs over whichever process answers, from the last version that it has seen."""

    def __init__(self, addresses: Callable[[], list[str]], version: int) -> None:
        self._addresses = addresses
        self._first = self._seen = version
        self.changes: list[dict[str, Any]] = []
        self.n_resumed = 0
        """Connections that were lost."""
        self.fault = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.is_set():
            for address in self._addresses():
                path = f"{address}/v1/jobs:watch?resource_version={self._seen}&timeout_s=5"
                try:
                    with urllib.request.urlopen(path, timeout=30) as answer:
                        for event in _events(answer):
                            self._take(event)
                except urllib.error.HTTPError as error:
                    if error.code == 410:
                        self.fault = f"the watcher is told to list again at {self._seen}"
                        return
                except (OSError, ValueError):
                    self.n_resumed += 1
                except Exception:  # half an event: the service was killed while it wrote
                    self.n_resumed += 1
            time.sleep(0.05)

    def _take(self, event: dict[str, Any]) -> None:
        if event["job"] is not None:
            self.changes.append(event)
        self._seen = event["resource_version"]

    def close(self, version: int) -> None:
        """End when all changes up to a version were seen, or after a minute."""
        end_s = time.monotonic() + 60.0
        while self._seen < version and time.monotonic() < end_s and not self.fault:
            time.sleep(0.05)
        self._over.set()
        self._thread.join(60.0)

    def faults(self, job_ids: Collection[str], version: int) -> list[str]:
        """Return what was missed, seen twice or in another order, up to a version."""
        found = [self.fault] if self.fault else []
        versions = [
            x["resource_version"] for x in self.changes if x["resource_version"] <= version
        ]
        if versions != list(range(self._first + 1, version + 1)):
            missed = len(set(range(self._first + 1, version + 1)) - set(versions))
            twice = len(versions) - len(set(versions))
            found.append(f"the watcher missed {missed} changes and saw {twice} twice")
        told: dict[str, list[tuple[str, str]]] = {}
        for change in self.changes:
            job = change["job"]
            told.setdefault(job["job_id"], []).append((change["type"], job["state"]))
        for job_id in job_ids:
            changes = told.get(job_id, [("", "")])
            added = [kind for kind, _ in changes].count("ADDED")
            ended = [state for _, state in changes].count("SUCCEEDED")
            if (added, ended, changes[0][0], changes[-1][1]) != (1, 1, "ADDED", "SUCCEEDED"):
                found.append(f"the watcher was told of {job_id}: {changes}")
        return found


def _events(answer: Any) -> Iterator[dict[str, Any]]:
    """Yield server-sent events that have come whole."""
    data = ""
    for raw in answer:
        line = raw.decode().rstrip("\n")
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
        elif not line and data:
            event = json.loads(data)
            data = ""
            if "resource_version" not in event:
                raise ConnectionError("the service stops")
            yield event


def unsent(there: Receiver, job_ids: Collection[str], within_s: float) -> list[str]:
    """Return what a receiver was not told of the ends of jobs, or told under two ids."""
    end_s = time.monotonic() + within_s
    while True:
        ids = _ids_by_job(there)
        if set(job_ids) <= ids.keys() or time.monotonic() > end_s:
            break
        time.sleep(0.2)
    found = [f"no webhook was sent for {x}" for x in job_ids if x not in ids]
    return found + [
        f"webhooks of {x} have ids {ids[x]}" for x in job_ids if len(ids.get(x, ())) > 1
    ]


def _ids_by_job(there: Receiver) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for headers, body in list(there.came):
        with contextlib.suppress(KeyError, ValueError):
            found.setdefault(json.loads(body)["data"]["job_id"], set()).add(headers["webhook-id"])
    return found
