"""The real calls, with a line in the file `COUNTED_POINTS` for every point of a sweep; slowly."""

import os
import time
from pathlib import Path
from typing import Any

from planner.sweeping.running import PointSolver
from service.pages.calls import CALLS as CALLS
from service.pages.calls import Running as Running
from service.pages.calls import answer as answer
from service.pages.calls import dumps as dumps
from service.pages.calls import is_complete as is_complete
from service.pages.calls import measure as measure
from service.pages.calls import read_request as read_request

POINT_S = 0.15
"""How long a point takes at least, so that a test can kill in the middle of a sweep."""


class CountedSolver(PointSolver):
    """Searches points one after the other and counts them."""

    def _row(self, point: Any, first: Any) -> Any:
        found = super()._row(point, first)
        time.sleep(POINT_S)
        with Path(os.environ["COUNTED_POINTS"]).open("a") as counted:
            counted.write(f"{point.index}\n")
        return found


def _count() -> None:
    import planner.sweeping.running

    planner.sweeping.running.PointSolver = CountedSolver  # type: ignore[misc]  # its subclass


_count()
