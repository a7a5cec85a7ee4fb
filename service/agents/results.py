"""Results of one server: kept by their id, so that later calls name a plan of them."""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from planner.errors import FileError, UsageError
from planner.solver.answer.result_store import (
    cache_folder,
    joined_plan_of,
    pick_plan,
    read_result,
    save_text,
)

Data = dict[str, Any]
MOST_BYTES = 64_000_000
"""Texts of results that a server keeps; the oldest go first."""
LAST = "last"
_ID = re.compile(r"[0-9a-f]{6,64}")


class Results:
    """Results by id; over stdio those of the command line too, which shares the user's cache."""

    def __init__(self, shares_cache: bool) -> None:
        """Keep results; `shares_cache`: also in the user's cache folder, where `last` lies."""
        self.shares_cache = shares_cache
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, result: Mapping[str, Any]) -> str:
        """Keep a result and return its id."""
        result_id, text = str(result["result_id"]), json.dumps(result, indent=1, allow_nan=False)
        with self._lock:
            self._texts[result_id] = text
            self._texts.move_to_end(result_id)
            while len(self._texts) > 1 and sum(map(len, self._texts.values())) > MOST_BYTES:
                self._texts.popitem(last=False)
        if self.shares_cache:
            save_text(result_id, text + "\n")
        return result_id

    def ids(self) -> list[str]:
        """Return the ids of the results that are kept here, the newest first."""
        with self._lock:
            return list(reversed(self._texts))

    def text(self, result_id: str) -> str:
        """Return the JSON of a result; `FileError` where none of this id is kept."""
        with self._lock:
            if result_id in self._texts:
                return self._texts[result_id]
        if self.shares_cache and _ID.fullmatch(result_id):
            file = cache_folder() / f"{result_id}.json"
            if file.is_file():
                return file.read_text(encoding="utf-8")
        raise FileError(
            f"no result {result_id[:80]!r} is kept here",
            "ask solve or evaluate again, and name a plan by the ref of their answer",
            "plan",
        )

    def plan(self, reference: str) -> Data:
        """Return result and plan id of a reference `RESULT_ID#RANK`, as requests hold them.

        `UsageError` where the result is not kept, or has no such plan.
        """
        source, mark, which = reference.strip().partition("#")
        if source == LAST and not self.shares_cache:
            raise UsageError(
                "'last' is whatever anybody asked last of this server",
                "name the plan by the ref of its answer, such as 73b6279bf1c4#1",
                "plan",
            )
        result = read_result(LAST) if source == LAST else json.loads(self.text(source))
        which = which if mark else "1"
        if joined := joined_plan_of(result, which):
            return {"result": result, "plan": joined.plan_id}
        plan = pick_plan(result["plans"], which, source)
        return {"result": result, "plan": plan["plan_id"]}
