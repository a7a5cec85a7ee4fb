"""The controller as a whole: what it watches, and the threads that work on it.

Two at once do no harm: a check that one has decided is not pending any more for the other, and
what both write at the same time is refused to the later (409). So there is no election.
"""

import logging
import threading
from collections.abc import Mapping
from typing import Any

from service.kueue.api import ApiError
from service.kueue.reconciler import Reconciler
from service.kueue.watcher import Watcher
from service.kueue.work_queue import Key, WorkQueue
from service.kueue.workload import check_states, is_waiting

log = logging.getLogger("planner.kueue")
FIRST_PAUSE_S = 1.0
MOST_PAUSE_S = 120.0
STOP_S = 5.0
"""How long the end waits for each thread; all are daemons."""


class Controller:
    """Watches Workloads and AdmissionChecks, and lets a reconciler look at those that changed."""

    def __init__(self, reconciler: Reconciler, n_workers: int = 2) -> None:
        self._reconciler = reconciler
        self._n_workers = n_workers
        self._queue = WorkQueue()
        self._waiting: dict[Key, frozenset[str]] = {}
        """Workloads that wait for checks, with the names of these."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        api, kinds = reconciler.api, reconciler.kinds
        self._watchers = (
            Watcher(api, kinds.checks, self._see_check, self._stop),
            Watcher(api, kinds.workloads, self._see_workload, self._stop),
        )
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start all threads."""
        work = [(f"worker-{i}", self._work) for i in range(self._n_workers)]
        work += [(f"watch-{i}", each.run) for i, each in enumerate(self._watchers)]
        for name, run in work:
            thread = threading.Thread(target=run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def wait_listed(self, timeout_s: float) -> bool:
        """Wait until all objects that there were are known; tell whether they are."""
        return all(each.listed.wait(timeout_s) for each in self._watchers)

    def stop(self) -> None:
        """Stop all threads; what is being decided is not written any more."""
        self._stop.set()
        self._queue.end()
        for watcher in self._watchers:
            watcher.end()
        for thread in self._threads:
            thread.join(STOP_S)

    def _see_check(self, key: Key, check: Mapping[str, Any]) -> None:
        self._queue.add(key)
        with self._lock:
            users = [each for each, names in self._waiting.items() if key[1] in names]
        for user in users:
            self._queue.add(user)

    def _see_workload(self, key: Key, workload: Mapping[str, Any]) -> None:
        pending = [x["name"] for x in check_states(workload) if x["state"] == "Pending"]
        with self._lock:
            if not pending or not is_waiting(workload):
                self._waiting.pop(key, None)
                return
            self._waiting[key] = frozenset(pending)
        self._queue.add(key)

    def _work(self) -> None:
        while (key := self._queue.take()) is not None:
            namespace, name = key
            try:
                if namespace:
                    self._reconciler.reconcile(namespace, name)
                else:
                    self._reconciler.reconcile_check(name)
            except Exception as error:
                if self._stop.is_set():
                    return
                self._failed(key, error)
            else:
                self._queue.done(key)

    def _failed(self, key: Key, error: Exception) -> None:
        """Try again later; what is no answer of the API server is a defect, and logged whole."""
        pause_s = self._queue.failed(key, FIRST_PAUSE_S, MOST_PAUSE_S)
        fields = {"object": "/".join(filter(None, key)), "error": str(error), "pause_s": pause_s}
        trace = None if isinstance(error, ApiError) else error
        log.warning("not decided", extra={"fields": fields}, exc_info=trace)
