"""How a search came down from all legal plans to those that are listed."""

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.solver.answer.result import Result

Data = dict[str, Any]


def funnel(result: "Result") -> list[Data]:
    """Return the stages of a search: label, plans left, what the stage took away, width in %.

    Legal plans less those above a lower bound, less those that do not fit, are those that fit. The
    widths are logarithmic, from one plan to all legal ones.
    """
    counts = result.counts
    stages = (
        ("legal plans", counts.space, 0, ""),
        ("within the bounds", counts.fit + counts.pruned, counts.excluded, "too slow by a bound"),
        ("fit the memory", counts.fit, counts.pruned, "do not fit"),
        ("listed", len(result.plans), 0, "the best of each combination of degrees"),
    )
    return [
        {"label": label, "n": n, "lost": lost, "why": why, "width": width_percent(n, counts.space)}
        for label, n, lost, why in stages
    ]


def width_percent(n: int, most: int) -> float:
    """Return the logarithmic width of a bar, in per cent of that of `most`.

    >>> width_percent(999, 999_999), width_percent(0, 10)
    (50.0, 0.0)
    """
    return round(100.0 * math.log(n + 1) / math.log(most + 1), 1) if most else 0.0
