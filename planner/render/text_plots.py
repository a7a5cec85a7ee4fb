"""Plots of characters: the Pareto front as points, step times over TP and PP as a heat map."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.render.nouns import noun_of
from planner.render.style import Style
from planner.solver.answer.result import Plan, Result
from planner.units import GIB

PLAIN = Style(is_on=False)
HEIGHT = 10
"""Rows of a plot of points."""
MAX_COLUMNS = 72
SHADES = "█▓▒░"
"""Of a heat map, the best first: the fastest quarter of the range, then the others."""
MARKS = "123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""What stands for a plan of each rank."""


@dataclass(frozen=True, slots=True)
class PlotMeasure:
    """A value of plans that can be an axis of a plot."""

    title: str
    value: Callable[[Plan], float | None]


def _of_run(name: str) -> Callable[[Plan], float | None]:
    return lambda plan: getattr(plan.run, name) if plan.run else None


MEASURES: Mapping[str, PlotMeasure] = {
    "step_time": PlotMeasure("step (s)", lambda plan: plan.step_time_s),
    "tokens_per_s": PlotMeasure("tokens/s", lambda plan: plan.tokens_per_s),
    "memory": PlotMeasure("memory (GiB)", lambda plan: plan.breakdown.peak_bytes / GIB),
    "devices": PlotMeasure("{devices}", lambda plan: float(plan.layout.n_devices)),
    "cost": PlotMeasure("$ per million tokens", _of_run("usd_per_million_tokens")),
    "energy": PlotMeasure("J per token", _of_run("energy_j_per_token")),
    "goodput": PlotMeasure("run (s)", _of_run("expected_s")),
}
"""By objective; `devices` is what those of the cluster are called."""


def front_lines(result: Result, width: int, style: Style = PLAIN) -> list[str]:
    """Return the first two objectives of a Pareto front as points marked by rank.

    Nothing for other answers, and where fewer than two plans have both values.
    """
    names = result.inputs["options"].get("pareto") or []
    if len(names) < 2:
        return []
    across, up = (MEASURES[name] for name in names[:2])
    points = [(across.value(plan), up.value(plan), plan.rank) for plan in result.plans]
    known = [(x, y, rank) for x, y, rank in points if x is not None and y is not None]
    if len(known) < 2:
        return []
    title = f"Pareto front: {up.title} over {across.title}, marked by rank"
    title = title.format(devices=noun_of(result).many)
    return [title[:width], *scatter_lines(known, width, style)]


def scatter_lines(
    points: Sequence[tuple[float, float, int]], width: int, style: Style = PLAIN
) -> list[str]:
    """Return points (x, y, rank) as a plot with the ends of both axes.

    Where points share a cell the first rank is seen.
    """
    low_x, high_x = min(p[0] for p in points), max(p[0] for p in points)
    low_y, high_y = min(p[1] for p in points), max(p[1] for p in points)
    top, bottom = f"{high_y:.4g}", f"{low_y:.4g}"
    label = max(len(top), len(bottom))
    columns = min(MAX_COLUMNS, width - label - 3)
    grid = [[" "] * columns for _ in range(HEIGHT)]
    for x, y, rank in sorted(points, key=lambda p: -p[2]):
        row = HEIGHT - 1 - plot_cell(y, (low_y, high_y), HEIGHT)
        grid[row][plot_cell(x, (low_x, high_x), columns)] = MARKS[(rank - 1) % len(MARKS)]
    labels = {0: top, HEIGHT - 1: bottom}
    lines = [
        f"{labels.get(i, ''):>{label}} │{style.colour(''.join(row).rstrip(), 'compute')}"
        for i, row in enumerate(grid)
    ]
    left, right = f"{low_x:.4g}", f"{high_x:.4g}"
    ends = left + right.rjust(columns - len(left))
    return [*lines, f"{'':>{label}} └{'─' * columns}", f"{'':>{label}}  {ends}"]


def plot_cell(value: float, ends: tuple[float, float], n: int) -> int:
    """Return in which of `n` equal cells between two ends a value lies.

    >>> plot_cell(0.0, (0.0, 1.0), 4), plot_cell(0.5, (0.0, 1.0), 4), plot_cell(1.0, (0.0, 1.0), 4)
    (0, 2, 3)
    """
    low, high = ends
    return 0 if high <= low else min(n - 1, int((value - low) / (high - low) * n))


def map_lines(result: Result, width: int, style: Style = PLAIN) -> list[str]:
    """Return the best listed step time for each TP and PP, shaded; nothing for one of them."""
    best: dict[tuple[int, int], float] = {}
    for plan in result.plans:
        key = plan.layout.tp, plan.layout.pp
        best[key] = min(plan.step_time_s, best.get(key, float("inf")))
    if len(best) < 2:
        return []
    rows, columns = sorted({tp for tp, _ in best}), sorted({pp for _, pp in best})
    cell = max(8, *(len(f"{x:.2f}") + 2 for x in best.values()))
    shown = columns[: max(1, (width - 6) // (cell + 1))]
    ends = min(best.values()), max(best.values())
    lines = ["Best listed step (s) for TP and PP; dark is fast"]
    lines.append("      " + " ".join(f"{f'PP {pp}':<{cell}}" for pp in shown))
    for tp in rows:
        cells = (_map_cell(best.get((tp, pp)), ends, cell, style) for pp in shown)
        lines.append(f"{f'TP {tp}':<6}{' '.join(cells)}")
    return [line.rstrip() for line in lines]


def _map_cell(value: float | None, ends: tuple[float, float], width: int, style: Style) -> str:
    if value is None:
        return "-".ljust(width)
    shade = SHADES[plot_cell(value, ends, len(SHADES))]
    text = f"{value:.2f}"
    return f"{style.colour(shade, 'compute')} {text.ljust(width - 2)}"
