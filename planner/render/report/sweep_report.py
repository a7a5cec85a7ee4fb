"""The report of a sweep as one HTML file."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from planner.errors import UsageError
from planner.render.report.points import PointAxis, SweepPoints


def report(sweep_file: str | os.PathLike[str], x: str = "", y: str = "") -> str:
    """Return the report of a sweep as HTML; `x` and `y` are the axes of its maps.

    `sweep_file` is what a sweep has written, finished or not. Raises `SweepFileError` for a file
    that is no sweep and `UsageError` for an axis that it does not vary.
    """
    require_extra()
    from planner.render.report.page import sweep_page

    points = read_points(os.fspath(sweep_file))
    return sweep_page(points, Path(sweep_file).name, *axes_of_maps(points, x, y))


def axes_of_maps(points: SweepPoints, x: str, y: str) -> tuple[PointAxis | None, PointAxis | None]:
    """Return the axes of the maps; `UsageError` for names of none, or twice of the same."""
    x_axis, y_axis = chosen_axis(points, x, "--x"), chosen_axis(points, y, "--y")
    if x_axis is not None and x_axis is y_axis:
        raise UsageError(f"--x and --y are both {x_axis.path}", "name two different axes")
    return x_axis, y_axis


def require_extra() -> None:
    """Raise one clear error unless the libraries of the extra [report] are installed."""
    missing = [name for name in ("plotly", "jinja2") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"reports need {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'}"
            " not installed",
            "pip install 'parallelism-planner[report]'",
        )


def read_points(sweep_file: str) -> SweepPoints:
    """Return the rows of a finished or partial sweep."""
    from planner.sweeps.reader import read_sweep

    sweep = read_sweep(Path(sweep_file))
    if not sweep.finished:
        sys.stderr.write(
            f"{sweep_file}: the sweep is not finished: {len(sweep):,} points so far are reported\n"
        )
    return SweepPoints(sweep.values, sweep.header)


def chosen_axis(points: SweepPoints, path: str, option: str) -> PointAxis | None:
    """Return the axis that an option names; `UsageError` with the axes there are."""
    if not path:
        return None
    axis = points.axis(path)
    if axis is None or len(axis.values) < 2:
        paths = ", ".join(a.path for a in points.axes if len(a.values) > 1)
        if not paths:
            raise UsageError(f"{option}: the sweep varies nothing", f"leave {option} out")
        raise UsageError(
            f"{option}: {path!r} is not an axis of the sweep with several values",
            f"one of {paths}",
        )
    return axis
