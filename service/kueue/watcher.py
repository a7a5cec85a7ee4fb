"""The names of all objects of a kind, as they come and change: a list, then watches.

A watch that the server ends is taken up where it ended. Where that is too long ago (410) all
objects are listed anew, so that nothing is missed; what is seen twice does no harm.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from service.kueue.api import ApiClient, ApiError, Resource, Stream
from service.kueue.work_queue import Key

log = logging.getLogger("planner.kueue")
FIRST_PAUSE_S = 0.5
MOST_PAUSE_S = 30.0
GONE = 410
"""Status of a watch from a resource version that the server does not remember any more."""


class Watcher:
    """Tells of every object of a kind."""

    def __init__(
        self,
        api: ApiClient,
        resource: Resource,
        tell: Callable[[Key, Mapping[str, Any]], None],
        stop: threading.Event,
    ) -> None:
        """Prepare; `tell` is given the key of an object that came or changed, and the object."""
        self._api, self._resource, self._tell, self._stop = api, resource, tell, stop
        self._stream = Stream()
        self.listed = threading.Event()
        """Set once all objects that there are were told of."""

    def run(self) -> None:
        """Watch until it is stopped."""
        version, pause_s = "", FIRST_PAUSE_S
        while not self._stop.is_set():
            try:
                if not version:
                    version = self._list()
                for event in self._api.watch(self._resource, version, self._stream):
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] in ("ADDED", "MODIFIED"):
                        self._told(event["object"])
                    pause_s = FIRST_PAUSE_S
            except ApiError as error:
                if error.status == GONE:
                    log.info("listing anew", extra={"fields": {"kind": self._resource.kind}})
                    version = ""
                    continue
                if self._stop.is_set():
                    return
                fields = {"kind": self._resource.kind, "error": error.message, "pause_s": pause_s}
                log.warning("the watch ended", extra={"fields": fields})
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, MOST_PAUSE_S)

    def end(self) -> None:
        """End the watch that runs."""
        self._stream.end()

    def _list(self) -> str:
        items, version = self._api.list_all(self._resource)
        for item in items:
            self._told(item)
        self.listed.set()
        return version

    def _told(self, item: Mapping[str, Any]) -> None:
        meta = item["metadata"]
        self._tell((meta.get("namespace", ""), meta["name"]), item)
