"""`planner.sweep`: a sweep from Python, run and read."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.sweeps.reader import SweepRows, read_sweep
from planner.sweeps.run import Progress, run_sweep
from planner.sweeps.spec.spec import load_sweep, sweep_from_dict


def sweep(
    source: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    form: str = "",
    executor: str = "automatic",
    ray_address: str = "",
    point_limit_s: float = 0.0,
    progress: Progress | None = None,
) -> SweepRows:
    """Search the points of a sweep that have no row in `out` yet; return the rows.

    `source` is a sweep file or a dict of its structure; the other arguments are those of
    `run_sweep`. Where Ctrl-C ended the run the rows so far are returned, with `finished` False,
    and the same call goes on; before any row it comes through. Raises `SpecError` for a bad sweep,
    `UsageError` for a bad option and `SweepFileError` where rows cannot be kept.
    """
    requested = sweep_from_dict(source) if isinstance(source, Mapping) else load_sweep(source)
    run = run_sweep(
        requested,
        out,
        form=form,
        executor=executor,
        ray_address=ray_address,
        point_limit_s=point_limit_s,
        progress=progress,
    )
    if run.interrupted and not run.n_done:
        raise KeyboardInterrupt
    return read_sweep(Path(out))
