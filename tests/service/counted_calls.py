"""The real calls, slowly, with a line in the file `COUNTED_ROWS` for every row that is computed.

That is a point of a sweep, or a size of a curve, by its index.
"""

import os
import time
from pathlib import Path
from typing import Any

from planner.sweeps import run as running
from planner.sweeps.scaling import curve
from service.pages.calls import CALLS as CALLS
from service.pages.calls import RunningCall as RunningCall
from service.pages.calls import answer as answer
from service.pages.calls import dumps as dumps
from service.pages.calls import is_complete as is_complete
from service.pages.calls import read_request as read_request
from service.pages.calls import request_size as request_size

ROW_S = 0.15
"""How long a row takes at least, so that a test can kill in the middle of a job."""


def _count(index: int) -> None:
    time.sleep(ROW_S)
    with Path(os.environ["COUNTED_ROWS"]).open("a") as counted:
        counted.write(f"{index}\n")


class CountedSolver(running.PointSolver):
    """Searches points one after the other and counts them."""

    def _row(self, point: Any, first: Any) -> Any:
        found = super()._row(point, first)
        _count(point.index)
        return found


_size_row = curve._size_row


def _counted_size(index: int, *given: Any) -> curve.SizeRow:
    _count(index)
    return _size_row(index, *given)


running.PointSolver = CountedSolver  # type: ignore[misc]  # its subclass
curve._size_row = _counted_size
