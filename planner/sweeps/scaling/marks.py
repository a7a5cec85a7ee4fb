"""What a scaling curve says: the knee, where more devices stop paying, where waiting takes over.

Of sizes with a plan. n devices, S throughput over that of the first size, E = S n_1 / n.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def solved(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that have a plan."""
    return [row for row in rows if row["best.step_time_s"] is not None]


def knee(rows: Sequence[Row]) -> int | None:
    """Return the size at the knee of strong scaling: that of the largest E / T, so of S^2 / n.

    Up to the knee one per cent more devices buys half a per cent of throughput or more. None where
    it is not below the largest size, or there are fewer than three.

    Source: Eager, Zahorjan and Lazowska, Speedup versus efficiency in parallel systems, IEEE
    Transactions on Computers 38(3), 1989: efficiency over execution time is largest there.
    """
    result = solved(rows)
    if len(result) < 3:
        return None
    best = max(result, key=lambda row: float(row["best.tokens_per_s"]) ** 2 / row["scale.size"])
    return None if best is result[-1] else int(best["scale.size"])


def fastest(rows: Sequence[Row]) -> int | None:
    """Return the size beyond which throughput only falls, failures counted; None if none is."""
    return _inner(rows, lambda row: float(row["scale.wall_tokens_per_s"]))


def cheapest(rows: Sequence[Row]) -> int | None:
    """Return the size beyond which every token costs more device time; None if none is."""
    return _inner(rows, lambda row: -float(row["scale.device_s_per_token"]))


def _inner(rows: Sequence[Row], value: Any) -> int | None:
    result = solved(rows)
    if len(result) < 2:
        return None
    best = max(result, key=value)
    return None if best is result[-1] else int(best["scale.size"])


def takeover(rows: Sequence[Row]) -> Row | None:
    """Return the first size that waits longer for the network than it computes, if there is one.

    Of the sizes from the last on at which it does not.
    """
    result = solved(rows)
    waits = [row["scale.exposed_comm_s"] > row["scale.compute_s"] for row in result]
    if not waits or not waits[-1]:
        return None
    first = len(waits) - waits[::-1].index(False) if False in waits else 0
    return result[first]


def wall(rows: Sequence[Row]) -> int | None:
    """Return the largest size that fits where a larger one was tried that does not."""
    fits = [row["scale.size"] for row in solved(rows)]
    fails = [row["scale.size"] for row in rows if row["status"] == "infeasible"]
    return max(fits) if fits and fails and max(fails) > max(fits) else None


def marks(rows: Sequence[Row], over: str, scaling: str) -> dict[str, Any]:
    """Return what the curve says, by name; None for what is not reached in it."""
    last = takeover(rows)
    entries: dict[str, Any] = {
        "takeover": last and last["scale.size"],
        "critical_tokens_per_device": last and last["scale.tokens_per_device"],
    }
    if over != "devices":
        return {"wall": wall(rows), **entries}
    strong = scaling == "strong"
    return {
        "knee": knee(rows) if strong else None,
        "break_even_cost": cheapest(rows),
        "break_even_throughput": fastest(rows),
        **entries,
    }
