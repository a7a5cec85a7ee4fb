"""Step time against memory as a drawing in the page: no script, and the colours of the reader."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planner.units import GIB
from service.pages.answer.scatter import MOST_DRAWN, pareto_rows

if TYPE_CHECKING:
    from planner.solver.answer.result import Result

Data = dict[str, Any]
WIDE = 3.0
"""Slowest over fastest from which the axis of time is logarithmic."""
SIDE = 1000
"""Units along each side of the drawing; the page stretches it."""
MOST_TICKS = 6


def even_places(low: float, high: float) -> list[float]:
    """Return round values between two ends, evenly apart: 1, 2 or 5 times a power of ten.

    >>> even_places(9.3, 31.0)
    [10.0, 15.0, 20.0, 25.0, 30.0]
    """
    span = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(span))
    step = next(power * x for x in (1, 2, 5, 10) if power * x >= span)
    first = math.ceil(low / step)
    return [round(i * step, 12) for i in range(first, math.floor(high / step) + 1)]


def log_places(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten between two ends; thinned where there are many.

    >>> log_places(8.0, 130.0)
    [10.0, 20.0, 50.0, 100.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
        if len(values) <= MOST_TICKS:
            break
    return values


class Side:
    """Values along one side of the drawing, from 0 to `SIDE`."""

    def __init__(self, low: float, high: float, is_log: bool = False) -> None:
        self._log = is_log
        self.low, self.high = self._at(low), self._at(high)
        self.ticks = log_places(low, high) if is_log else even_places(low, high)

    def _at(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def place(self, value: float) -> float:
        """Return where a value stands, in units of the drawing."""
        return round(SIDE * (self._at(value) - self.low) / (self.high - self.low), 1)


def front_drawing(result: "Result") -> Data:
    """Return the plans of a result as paths: dots of others and ties, the front, the first.

    x is the step time, y the memory of the fullest device in GiB, both to the right and upwards;
    of more than `MOST_DRAWN` others some are drawn, evenly chosen.
    """
    plans = result.plans
    longest = max(plan.step_time_s for plan in plans)
    factor, unit = (1.0, "s") if longest >= 10 else (1e3, "ms")
    points = [(p.step_time_s * factor, p.breakdown.peak_bytes / GIB) for p in plans]
    front = pareto_rows(points)
    ties = [i for i, plan in enumerate(plans) if plan.tie and i]
    named = {0, *front, *ties}
    others = [i for i in range(len(plans)) if i not in named]
    others = others[:: max(1, -(-len(others) // MOST_DRAWN))]
    limit = min(plan.usable_bytes for plan in plans) / GIB
    x, y = scales(points, limit)

    def dots(rows: Sequence[int]) -> str:
        return "".join(f"M{x.place(points[i][0])} {SIDE - y.place(points[i][1])}h0" for i in rows)

    stairs = "".join(
        f"{'M' if not k else 'H'}{x.place(points[i][0])}"
        f"{' ' if not k else 'V'}{SIDE - y.place(points[i][1])}"
        for k, i in enumerate(front)
    )
    return {
        "unit": unit,
        "others": dots(others),
        "ties": dots(ties),
        "front": dots(front),
        "stairs": stairs,
        "first": dots([0]),
        "limit": round(100 - y.place(limit) * 100 / SIDE, 2),
        "limit_gib": round(limit, 1),
        "x_ticks": [(_text(value), x.place(value) * 100 / SIDE) for value in x.ticks],
        "y_ticks": [(_text(value), 100 - y.place(value) * 100 / SIDE) for value in y.ticks],
        "has_ties": bool(ties),
    }


def scales(points: Sequence[tuple[float, float]], limit: float) -> tuple[Side, Side]:
    """Return the scales of time and memory: all points and the limit, with some room around."""
    times, sizes = [x for x, _ in points], [y for _, y in points] + [limit]
    low, high = min(times), max(times)
    room = 0.06 * (high - low) or 0.02 * high
    wide = high / low > WIDE
    time = Side(low * 0.94, high * 1.06, True) if wide else Side(low - room, high + room)
    above = 0.08 * (max(sizes) - min(sizes)) or 0.02 * max(sizes)
    return time, Side(max(0.0, min(sizes) - above), max(sizes) + above)


def _text(value: float) -> str:
    return f"{value:,.10g}"
